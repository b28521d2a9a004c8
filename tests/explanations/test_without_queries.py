"""What is left without the queries, by NumPy from the energies of single tokens."""

import jax
import numpy as np
import pytest

from lim_jax.explanations import explain
from lim_jax.grid import boundary_regions, token_grid
from lim_jax.models import byte_model
from lim_jax.results.context_energies import pooled_influences

# A fifth of the tokens that are left, and of the cells of their common grid, is a whole number.
CONTEXTS = {
    "several lengths": [(41, [40]), (37, [35, 36]), (24, [20, 21, 22, 23])],
    "one length": [(26, [25]), (26, [25]), (26, list(range(20, 26)))],
}


@pytest.fixture(scope="module")
def network():
    return byte_model(512, width=8, heads=2, depth=2, key=jax.random.key(0))


def explained(network, lengths_and_queries, lengths, delta="1/5"):
    """An explanation of random bytes, each context asked at positions of its own."""
    draw = np.random.default_rng(0)
    windows, weights = [], []
    for length, queries in lengths_and_queries:
        windows.append(draw.integers(97, 122, length + 1).astype(np.int32))
        weights.append(np.isin(np.arange(length), queries) / len(queries))
    cells = int(np.median(lengths))
    regions = boundary_regions(token_grid(cells, network.embedding.dtype), delta)
    rows = [row.astype(network.embedding.dtype) for row in weights]
    if len(set(lengths)) == 1:
        windows, rows = jax.device_put(np.stack(windows)), jax.device_put(np.stack(rows))
    return explain(network, windows, rows, regions, key=jax.random.key(1))


def averages_over(density, ends):
    """Average a function that is constant on equal cells over intervals, by its antiderivative."""
    below = np.append(0, np.cumsum(density)) / density.size
    at = np.interp(ends, np.linspace(0, 1, density.size + 1), below)
    return np.diff(at) / np.diff(ends)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONTEXTS)
def test_each_context_leaves_out_the_queries_of_its_own(network, kind):
    contexts = CONTEXTS[kind]
    explanation = explained(network, contexts, [length for length, _ in contexts])
    energies = [np.asarray(energy, float) for energy in explanation.token_energies]
    queried = sum(
        energy[queries].sum() / energy.size
        for energy, (_, queries) in zip(energies, contexts, strict=True)
    )
    share = queried / sum(energy.mean() for energy in energies)
    rest = explanation.without_queries
    assert rest is not None
    np.testing.assert_allclose(1 - rest.total / explanation.influence.total, share, rtol=1e-9)
    assert f"The queried tokens hold {share:.1%} of the influence." in str(explanation)
    # Each token that is kept is an equal part of [0, 1], and its energy a part of the whole's.
    parts = []
    for energy, (length, queries) in zip(energies, contexts, strict=True):
        kept = np.delete(energy, queries)
        parts.append(averages_over(kept, [0, 0.2, 0.8, 1]) * kept.size / length)
    parts = np.mean(parts, axis=0)
    averages = parts / (parts @ [0.2, 0.6, 0.2])
    np.testing.assert_allclose(rest.indices()[:3], averages, rtol=1e-9)
    assert rest.regions.left_out == ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONTEXTS)
def test_queries_at_the_end_leave_what_a_profile_leaves(network, kind):
    contexts = CONTEXTS[kind]
    explanation = explained(network, contexts, [length for length, _ in contexts])
    energies = list(map(np.asarray, explanation.token_energies))
    _, expected = pooled_influences(energies, [queries[0] for _, queries in contexts], 0.2)
    rest = explanation.without_queries
    assert rest is not None and expected is not None
    np.testing.assert_allclose(rest.density, expected.density, rtol=1e-5)
    np.testing.assert_allclose(rest.indices(), expected.indices(), rtol=1e-5)
    np.testing.assert_allclose(rest.index_errors(), expected.index_errors(), rtol=1e-4)
