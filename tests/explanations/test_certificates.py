"""Certificates that stop where they cannot hold: cheap numbers bound the dear ones."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.dense import formed_blocks
from reference.networks import byte_network

import lim_jax as lim
from lim_jax import explanations, models
from lim_jax.adjoint.ledger import channels
from lim_jax.explanations import certificates, explanation
from lim_jax.explanations.account import parts_of_ids, targets_of_windows
from lim_jax.explanations.explanation import average_cone_mass
from lim_jax.loss import last_token, teacher_forcing

LENGTH = 5
LAYERS = 3
DEPTH = 1
COUNT = 2
REGIONS = lim.boundary_regions(lim.token_grid(LENGTH), 0.3)
WINDOWS = jax.device_put(np.random.default_rng(3).integers(0, 256, (COUNT, LENGTH + 1)))
KEY = jax.random.key(1)


@cache
def model():
    return byte_network(LENGTH, depth=LAYERS, seed=1)


@cache
def contexts_and_adjoints():
    """The contexts' ids, what is asked of them, and their adjoints."""
    targets = targets_of_windows(model(), WINDOWS, teacher_forcing(LENGTH))
    loss = models.CausalLM.loss
    parts = []
    for at in range(COUNT):
        ids = WINDOWS[at, :-1]
        asks = jax.tree.map(lambda leaf, at=at: leaf[at], targets)
        parts.append((ids, asks, parts_of_ids(model(), ids, asks, DEPTH, loss)))
    return explanation._stack(parts)


@cache
def dense():
    """States, covectors and the blocks of the attention of layer DEPTH, of every context."""
    network = model()
    grid = REGIONS.grid

    def one(window):
        example = network.example(window, teacher_forcing(LENGTH))
        ledger = channels(network.flow, network.terminal_loss, example, grid)
        layer = jax.tree.map(lambda leaf: leaf[DEPTH], network.flow.layers)
        state = ledger.states[DEPTH]
        blocks = LENGTH * formed_blocks(layer.attention, state, grid)
        after = state + network.flow.horizon / LAYERS * layer.attention(state, state, grid)
        _, pull = jax.vjp(lambda x: layer.sublayers[1](x, x, grid), after)
        attention_input = ledger.covectors[DEPTH + 1]
        attention_input = attention_input + network.flow.horizon / LAYERS * pull(attention_input)[0]
        return ledger.covectors, blocks, attention_input

    return tuple(map(np.asarray, jax.jit(lambda rows: jax.lax.map(one, rows))(WINDOWS)))


@pytest.mark.slow
def test_the_covectors_bound_the_layers_amplification_from_below():
    covectors, _, _ = dense()
    moved = np.linalg.norm(covectors[:, :-1] - covectors[:, 1:], axis=(2, 3))
    ratios = moved / np.linalg.norm(covectors[:, 1:], axis=(2, 3))
    ids, _, adjoints = contexts_and_adjoints()
    below = np.asarray(certificates._products_from_below(adjoints.growths, DEPTH))
    for layers in range(LAYERS - DEPTH):
        expected = np.prod(1 + ratios[:, DEPTH + layers :], axis=1) - 1
        np.testing.assert_allclose(below[:, layers], expected, rtol=1e-10)
    exact = certificates._amplifications(model(), ids, REGIONS.grid, DEPTH, KEY)
    assert (below < np.asarray(exact)).all() and below.shape == exact.shape


@pytest.mark.slow
def test_the_first_tokens_contributions_are_those_of_dense_blocks():
    _, blocks, covectors = dense()
    states, met = contexts_and_adjoints()[-1].attention_input
    np.testing.assert_allclose(met, covectors, rtol=1e-10, atol=1e-14)
    parts = np.einsum("nixa,nix->nia", blocks[:, :, 0], covectors)
    expected = np.einsum("nia,nja->ij", parts, parts).min() / COUNT
    least = certificates._least_of_first_token(model(), states, met, REGIONS.grid, DEPTH)
    np.testing.assert_allclose(least, expected, rtol=1e-9)
    assert expected < 0


@pytest.mark.slow
def test_where_a_criterion_cannot_hold_its_dear_numbers_are_left_out(monkeypatch):
    """The verdict, why, and what was measured are those of all numbers."""
    loss = models.CausalLM.terminal_loss
    ids, asked, adjoints = contexts_and_adjoints()
    of_contexts = adjoints, REGIONS, DEPTH
    survival = certificates.survival_of_recency(model(), ids, *of_contexts, KEY, "all")
    inputs = model(), (ids, asked), *of_contexts, loss
    primacy = certificates.primacy_of_the_cone(*inputs, "all")
    assert survival.vacuous and primacy.vacuous
    least = primacy.premises[0].value
    with monkeypatch.context() as patched:
        for dear in ("_amplifications", "_joint_cone"):
            patched.setattr(certificates, dear, None)
        quick = certificates.survival_of_recency(model(), ids, *of_contexts, KEY, "deciding")
        other = certificates.primacy_of_the_cone(*inputs, "deciding")
    for one, full in ((quick, survival), (other, primacy)):
        assert one.vacuous and one.decisive and not one.holds and one.name == full.name
        for seen, truth in zip(one.measured, full.measured, strict=True):
            np.testing.assert_allclose(seen[1:], truth[1:], rtol=1e-9)
    (needed,) = quick.inequalities
    np.testing.assert_allclose(needed.greater, np.sqrt(1 + 0.4 / 0.7) - 1, rtol=1e-6)
    products = certificates._products_from_below(adjoints.growths, DEPTH)
    np.testing.assert_allclose(needed.lesser, products[:, 0].min())
    (refuted,) = other.inequalities
    assert not needed.holds and not refuted.holds
    first = other.premises[0].value  # the least of some of the pairs, computed by another program
    assert first >= least - 1e-9 * abs(least)
    assert first == refuted.greater < 0 == refuted.lesser
    # Where the cheap look decides nothing, the dear numbers are computed.
    still = adjoints._replace(growths=0 * adjoints.growths)
    again = certificates.survival_of_recency(model(), ids, still, REGIONS, DEPTH, KEY, "deciding")
    assert again == survival
    monkeypatch.setattr(certificates, "_least_of_first_token", lambda *inputs: jnp.ones(()))
    assert certificates.primacy_of_the_cone(*inputs, "deciding") == primacy


@pytest.mark.slow
def test_contexts_with_queries_of_their_own_are_explained_as_each_by_itself():
    """Of a margin, and of cross-entropy asked unalike, right-biased queries are not judged."""
    rows = np.array([last_token(LENGTH), [0.0, 0.25, 0.75, 0.0, 0.0]])
    margin = models.CausalLM.margin_loss
    seen: list = []
    measured = explanations.explain(
        model(),
        WINDOWS,
        jax.device_put(rows),
        REGIONS,
        key=KEY,
        loss=margin,
        progress=lambda numbers: seen.append(len(numbers)) or numbers,
    )
    assert seen == [COUNT, 5]  # contexts, then criteria
    network = model()

    @jax.jit
    @jax.vmap
    def gradients(window, weights):
        return jax.grad(network.margin_loss)(*network.example(window, weights))

    energies = ((LENGTH * np.asarray(gradients(WINDOWS, rows))) ** 2).sum(axis=2)
    np.testing.assert_allclose(measured.influence.energy, energies.mean(axis=0), rtol=1e-10)
    assert measured.without_queries is not None
    assert measured.without_queries.grid.size == 3  # tokens, of 4 and of 3 that are not asked
    names = [certificate.name for certificate in measured.certificates]
    assert "right-biased queries" not in names and len(names) == 4


FOUR_CELLS = lim.boundary_regions(lim.token_grid(4), 0.3)
OF_LENGTHS = [np.asarray(WINDOWS[0]), np.asarray(WINDOWS[1, :4])]
THEIR_QUERIES = [np.array([0.0, 0.25, 0.0, 0.0, 0.75]), np.array([0.0, 0.0, 1.0])]


@pytest.fixture(scope="module")
def of_lengths():
    """The explanation of contexts of five tokens and of three, on four cells."""
    return explanations.explain(model(), OF_LENGTHS, THEIR_QUERIES, FOUR_CELLS, key=KEY)


@pytest.fixture(scope="module")
def alone():
    """Each of these contexts' own adjoint, which `test_account` holds to gradients."""
    targets = targets_of_windows(model(), OF_LENGTHS, THEIR_QUERIES)
    parts = []
    for at, window in enumerate(OF_LENGTHS):
        ids = jnp.asarray(window[:-1])
        asks = jax.tree.map(lambda leaf, at=at: leaf[at], targets)
        parts.append(parts_of_ids(model(), ids, asks, 0, models.CausalLM.loss))
    return parts


def energies_alone(alone):
    return [(np.asarray(one.vectors).sum(axis=0) ** 2).sum(axis=1) for one in alone]


def own_regions(length):
    return lim.boundary_regions(lim.token_grid(length), 0.3)


def carried(energy):
    """A profile of any length on four cells, by overlap."""
    edges, targets = (np.arange(n + 1) / n for n in (len(energy), 4))
    whole = np.interp(targets, edges, np.append(0, np.cumsum(energy) / len(energy)))
    return 4 * np.diff(whole)


@pytest.mark.slow
def test_contexts_of_several_lengths_have_energies_on_their_own_tokens(of_lengths, alone):
    for one, expected in zip(of_lengths.token_energies, energies_alone(alone), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-10)


@pytest.mark.slow
def test_contexts_of_several_lengths_have_their_mean_influence_by_overlap(of_lengths, alone):
    expected = np.mean([carried(one) for one in energies_alone(alone)], axis=0)
    np.testing.assert_allclose(of_lengths.influence.energy, expected, rtol=1e-10)


@pytest.mark.slow
def test_contexts_of_several_lengths_have_their_mean_parts_by_overlap(of_lengths, alone):
    vectors = [np.asarray(one.vectors) for one in alone]
    channel = [[carried((c**2).sum(axis=1)) for c in of] for of in vectors]
    hops = [[carried(hop) for hop in np.asarray(one.hop_energies)] for one in alone]
    scales = [np.mean(np.asarray(one.state) ** 2) * 4 for one in alone]
    relative = [np.array(one) * scale for one, scale in zip(channel, scales, strict=True)]
    for profiles, expected in (
        (of_lengths.channel_energies, channel),
        (of_lengths.hop_energies, hops),
        (of_lengths.relative_energies, relative),
    ):
        np.testing.assert_allclose(profiles, np.mean(expected, axis=0), rtol=1e-9, atol=1e-13)


@pytest.mark.slow
def test_contexts_of_several_lengths_have_their_mean_cone_mass_by_overlap():
    masses = []
    for window in OF_LENGTHS:
        regions = own_regions(len(window) - 1)
        mass = average_cone_mass(model(), jax.device_put(window[None]), regions)
        masses.append(carried(mass.value))
    mean_mass = average_cone_mass(model(), OF_LENGTHS, FOUR_CELLS)
    np.testing.assert_allclose(mean_mass.value, np.mean(masses, axis=0), rtol=1e-9)


@pytest.mark.slow
def test_contexts_of_several_lengths_are_averaged_on_their_own_regions(of_lengths, alone):
    averages = [
        lim.regional_averages(jax.device_put(one), own_regions(len(one)))
        for one in energies_alone(alone)
    ]
    np.testing.assert_allclose(of_lengths.regional.totals, np.mean(averages, axis=0), rtol=1e-10)
    kept = [np.delete(one, np.flatnonzero(row)) / one.size
            for one, row in zip(energies_alone(alone), THEIR_QUERIES, strict=True)]  # fmt: skip
    assert of_lengths.without_queries is not None
    total = np.mean([one.sum() for one in kept])
    np.testing.assert_allclose(of_lengths.without_queries.total, total, rtol=1e-9)


@pytest.mark.slow
def test_contexts_of_several_lengths_are_judged_by_channels_alone(of_lengths):
    assert [certificate.name for certificate in of_lengths.certificates] == [
        "double deficit from channel bounds",
        "exact characterisation",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "windows, said",
    [(OF_LENGTHS[:1], "query_weights: got 2 rows, expe"), ([], "windows: got none")],
)
def test_contexts_of_several_lengths_have_a_row_of_weights_each(windows, said):
    with pytest.raises(ValueError, match=said):
        explanations.explain(model(), windows, THEIR_QUERIES, FOUR_CELLS, key=KEY)


@pytest.mark.slow
def test_contexts_of_several_lengths_have_no_weights_in_common():
    weights = teacher_forcing(LENGTH)
    with pytest.raises(ValueError, match="query_weights: got .*, expected a list of rows"):
        explanations.explain(model(), OF_LENGTHS, weights, FOUR_CELLS, key=KEY)
