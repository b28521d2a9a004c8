"""The language model and its explanation: learning, and numbers that other modules give."""

from functools import cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.architectures import architecture_flow
from reference.dense import kernel_blocks
from reference.drawn import assert_nothing_is_cut
from reference.networks import WIDTH, byte_network, layer_of, random_states

import lim_jax as lim
from lim_jax import models, plots
from lim_jax.adjoint import criteria
from lim_jax.adjoint.cone import JointCone, cone_mass
from lim_jax.adjoint.hops import attention_hops
from lim_jax.adjoint.ledger import channels, cone_by_head
from lim_jax.adjoint.sites import attention_sites
from lim_jax.density import Influence
from lim_jax.density.common_grid import influence_of_contexts
from lim_jax.explanations.certificates import Judged
from lim_jax.explanations.explanation import average_cone_mass, explanation_table
from lim_jax.explanations.influence_table import contexts_needed, index_lines, influence_table
from lim_jax.explanations.windows import require_windows
from lim_jax.loss import last_token, teacher_forcing
from lim_jax.models import small_models
from lim_jax.network.norms import LayerNorm
from lim_jax.probes import sample_mean

LENGTH = 8
REGIONS = lim.boundary_regions(lim.token_grid(LENGTH), 0.25)
WORDS = 11


def on_host(tree):
    return jax.tree.map(np.asarray, tree)


@cache
def model():
    return byte_network(LENGTH, depth=2)


def batch(weights, count=3):
    return jax.jit(jax.vmap(model().example, in_axes=(0, None)))(windows(count), weights)


@cache
def windows(count=3):
    text = small_models.standard_library_text(10_000)
    cut = eqx.filter_jit(small_models.sample_windows)
    return cut(text, LENGTH, count, key=jax.random.key(1))


def test_text_is_the_librarys_own_and_windows_are_cut_from_it():
    text = np.asarray(small_models.standard_library_text(5_000))
    assert b"def " in bytes(text.astype(np.uint8))
    for window in np.asarray(windows(20)):
        needle = bytes(window.astype(np.uint8))
        whole = bytes(np.asarray(small_models.standard_library_text(10_000)).astype(np.uint8))
        assert len(needle) == LENGTH + 1 and needle in whole
    with pytest.raises(ValueError, match="size: got"):
        small_models.standard_library_text(10**10)
    with pytest.raises(ValueError, match="text: got 8 ids"):
        small_models.sample_windows(jnp.arange(8), 8, 1, key=jax.random.key(0))


@pytest.mark.slow
def test_the_models_loss_is_the_next_bytes_surprise():
    @eqx.filter_jit
    def measured(model, windows):
        x, y = model.example(windows[0], last_token(LENGTH))
        end = model.flow(x, lim.token_grid(LENGTH))
        return model.loss(x, y), end @ model.head.T

    found, logits = measured(model(), windows())
    logits = np.asarray(logits)[-1]
    byte = int(windows()[0, -1])
    expected = np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[byte]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@cache
def explained(ask, depth=0, certificates: Judged = "deciding"):
    return lim.explanations.explain(
        model(),
        windows(),
        ask(LENGTH),
        REGIONS,
        key=jax.random.key(3),
        depth=depth,
        certificates=certificates,
    )


assert_close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-14)


def squared_norms(vectors):
    return (np.asarray(vectors) ** 2).sum(axis=-1)


class RestOfNetwork(NamedTuple):
    """What the layer after depth one has of each context."""

    states: Any
    initial: Any
    parts: Any  # the three channels of the initial covector
    derivatives: Any
    blocks: Any  # of its attention
    met: Any  # covectors that the attention meets


@pytest.fixture(scope="module")
def rest():
    """By a network of the one layer that follows, whose input is the state after the first."""
    network = model()
    layers = jax.tree.map(lambda leaf: jax.device_put(leaf[1:]), on_host(network.flow.layers))
    rest = lim.ResidualFlow(layers, 1.0, step=lim.split)
    grid = REGIONS.grid

    def one(example):
        x, y = example
        x = network.flow.trajectory(x, grid).states[1]
        ledger = channels(rest, network.terminal_loss, (x, y), grid)
        sites = attention_sites(rest, ledger.states, ledger.covectors, grid)
        attention = jax.tree.map(lambda leaf: leaf[0], sites.attention)
        parts = ledger.covectors[-1], ledger.cone_by_depth[0], ledger.local_by_depth[0]
        return RestOfNetwork(
            ledger.states[0],
            ledger.covectors[0],
            jnp.stack(parts),
            jax.jacfwd(lambda x: rest(x, grid))(x),
            kernel_blocks(attention, x, grid),
            sites.covectors[0],
        )

    return on_host(jax.jit(partial(jax.lax.map, one))(batch(last_token(LENGTH))))


@pytest.fixture(scope="module")
def explained_from_depth_one():
    """Dear: all that certificates may ask is computed."""
    return explained(last_token, 1, "all")


@pytest.mark.slow
def test_at_a_depth_influence_and_channels_are_of_the_states_there(explained_from_depth_one, rest):
    explanation = explained_from_depth_one
    assert_close(explanation.influence.energy, squared_norms(rest.initial).mean(axis=0))
    assert_close(explanation.channel_energies, squared_norms(rest.parts).mean(axis=0))
    scales = squared_norms(rest.states).mean(axis=1)
    relative = scales[:, None, None] * squared_norms(rest.parts)
    assert_close(explanation.relative_energies, relative.mean(axis=0))


@pytest.mark.slow
def test_at_the_last_depth_the_layers_only_hop_is_its_cone(explained_from_depth_one, rest):
    explanation = explained_from_depth_one
    hops = np.stack([rest.parts[:, 0] + rest.parts[:, 2], rest.parts[:, 1]], axis=1)
    assert_close(explanation.hop_energies[:2], squared_norms(hops).mean(axis=0))
    assert_close(explanation.hop_energies[2:], 0)


@pytest.mark.slow
def test_the_depth_of_an_explanation_is_recorded_and_shown(explained_from_depth_one):
    explanation = explained_from_depth_one
    assert explanation.depth == explanation.record()["depth"] == 1
    assert "at depth 1 " in explanation_table(explanation)


def assert_judges_alike(found, expected):
    assert found.name == expected.name
    for ours, theirs in zip(found.inequalities, expected.inequalities, strict=True):
        assert_close(ours.greater, theirs.greater)
        assert_close(ours.lesser, theirs.lesser)


@pytest.mark.slow
def test_at_a_depth_recencys_survival_is_judged_by_the_layers_that_follow(
    explained_from_depth_one, rest
):
    size = rest.states[0].size
    moved = rest.derivatives.reshape(-1, size, size) - np.eye(size)
    growth = np.linalg.norm(moved, ord=2, axis=(1, 2))
    terminal, initial, growth = jax.device_put((rest.parts[:, 0], rest.initial, growth))
    expected = criteria.recency_survival(terminal, initial, growth, REGIONS)
    assert_judges_alike(explained_from_depth_one.certificates[1], expected)


@pytest.mark.slow
def test_at_a_depth_primacys_noncancellation_is_judged_by_the_layers_that_follow(
    explained_from_depth_one, rest
):
    contributions = LENGTH * np.einsum("nijab,nia->jnib", rest.blocks, rest.met)
    gamma = np.einsum("jnib,jnrb->jir", contributions, contributions) / len(rest.states)
    future = [one[j:, j:] for j, one in enumerate(gamma)]  # of each position
    lowest = np.array([of.min() for of in future])
    largest = np.array([np.abs(of).max() for of in future])
    shares = 1 - np.arange(LENGTH) / LENGTH
    energies = squared_norms(rest.parts[:, 1]).mean(axis=0)
    cone = JointCone(*jax.device_put((lowest, largest, energies, shares, np.ones(()))))
    expected = criteria.primacy_noncancellation(cone, REGIONS)
    assert_judges_alike(explained_from_depth_one.certificates[2], expected)


def test_explanations_are_of_depths_before_the_last_state():
    for depth in (-1, 2):
        with pytest.raises(ValueError, match="depth: got .*expected a whole number from 0 to 1"):
            explained(last_token, depth)


def test_an_explanation_inside_a_transformation_is_refused(as_users_run):
    """Else it ended in JAX's TracerArrayConversionError, without what to do."""
    given = {
        "model": model(),
        "windows": windows(),
        "query_weights": last_token(LENGTH),
        "key": jax.random.key(3),
    }
    explain = partial(lim.explanations.explain, regions=REGIONS, **given)
    traced = eqx.filter_jit(lambda changed: explain(**changed))
    for name, value in given.items():
        with pytest.raises(ValueError, match=f"{name}: got traced arrays, .+ outside jax.jit"):
            traced({name: value})


def test_the_context_that_is_none_is_named(as_users_run):
    """Else the first of the list was shown, which is a right one."""
    row = windows()[0]
    floats = jnp.ones(5)
    for others, got in (([floats], "float64 with shape .5,."), ([row[:1]], "shape .1,.")):
        with pytest.raises(ValueError, match=f"windows: got an array of .*{got} at index 1, "):
            require_windows(model(), [row, *others], REGIONS)


def test_positions_are_left_out_of_contexts_of_the_regions_length_alone():
    """Else the last of eight positions was left out of some numbers, and of a shorter context's of
    none: position 7 of 8 names no token of 6."""
    rows = [windows()[0], windows()[1, :7]]
    weights = [last_token(8), last_token(6)]
    explain = partial(lim.explanations.explain, model(), key=jax.random.key(3))
    with pytest.raises(ValueError, match=r"regions: got 1 of 8 positions left out, .+ of 6 to 8, "):
        explain(rows, weights, REGIONS.without([7]))
    require_windows(model(), rows, REGIONS)
    require_windows(model(), list(windows()), REGIONS.without([7]))


@pytest.mark.slow
def test_an_explanation_is_made_of_its_parts():
    # `eq:residual-influence-component`.
    regions = REGIONS
    weights = teacher_forcing(LENGTH)
    explanation = explained(teacher_forcing)
    network = model()
    grid = regions.grid

    @jax.jit
    @jax.vmap
    def ledgers(x, y):
        ledger = channels(network.flow, network.terminal_loss, (x, y), grid)
        sites = attention_sites(network.flow, ledger.states, ledger.covectors, grid)
        return ledger.vectors, cone_by_head(sites, grid), (x**2).sum(axis=1).mean()

    vectors, heads, scales = map(np.asarray, ledgers(*batch(weights)))
    np.testing.assert_allclose(
        explanation.channel_energies, (vectors**2).sum(axis=3).mean(axis=0), rtol=1e-10
    )
    energy = (vectors.sum(axis=1) ** 2).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(explanation.influence.energy, energy, rtol=1e-10)
    relative = scales[:, None, None] * (vectors**2).sum(axis=3)
    np.testing.assert_allclose(explanation.relative_energies, relative.mean(axis=0), rtol=1e-10)
    terminal = (vectors[:, 0] ** 2).sum(axis=2)
    averages = np.array([lim.regional_averages(jax.device_put(t), regions) for t in terminal])
    contrasts = (averages[:, 2] - averages[:, 1]) / (terminal.mean())
    np.testing.assert_allclose(explanation.terminal_contrast.value, contrasts.mean(), rtol=1e-10)
    # The delta method, by the covariance of numerator and denominator.
    covariance = np.cov(averages[:, 2] - averages[:, 1], terminal.mean(axis=1))
    slopes = np.array([1, -contrasts.mean()]) / terminal.mean()
    error = np.sqrt(slopes @ covariance @ slopes / 3)
    np.testing.assert_allclose(explanation.terminal_contrast.error, error, rtol=1e-8, atol=1e-12)
    assert len(explanation.certificates) == 5
    by_head = (heads**2).sum(axis=4).mean(axis=(0, 3))  # equal cells: the integral is the mean
    np.testing.assert_allclose(explanation.head_energies, by_head, rtol=1e-10)
    np.testing.assert_allclose(heads.sum(axis=(1, 2)), vectors[:, 1], rtol=1e-8, atol=1e-12)
    # Recency's survival is of the initial covector.
    averages = lim.regional_averages(jax.device_put(energy), regions)
    assert explanation.certificates[1].concluded == bool(averages[2] > averages[1])
    assert explanation.without_queries is None  # it asks everywhere


@pytest.mark.slow
def test_a_last_token_loss_is_shown_with_and_without_its_query():
    explanation = explained(last_token)
    rest = explanation.without_queries
    assert rest is not None and rest.grid.size == LENGTH - 1
    energy = np.asarray(explanation.influence.energy)
    assert energy[-1] > 0.4 * energy.sum()  # most of it is the query's own
    density = (LENGTH - 1) * energy[:-1] / energy[:-1].sum()
    np.testing.assert_allclose(rest.density, density, rtol=1e-10)
    # Regions of 7/4 tokens, and between them of 7/2.
    shares = np.array([[1, 0.75, 0, 0, 0, 0, 0], [0, 0.25, 1, 1, 1, 0.25, 0]])
    averages = [*shares @ density / shares.sum(axis=1), shares[0, ::-1] @ density / 1.75]
    np.testing.assert_allclose(rest.indices()[:3], averages, rtol=1e-10)
    record = explanation.record()
    np.testing.assert_allclose(record["density"], explanation.influence.density)
    np.testing.assert_allclose(record["without_queries"]["density"], density, rtol=1e-10)
    assert record["left_out"] == record["without_queries"]["left_out"] == []
    assert record["without_queries"]["indices"]["lim"] == float(rest.indices().lim)
    lines = explanation_table(explanation).splitlines()
    rows = [list(map(float, line.split()[-3:])) for line in lines[1:5]]
    for row, numbers in zip(
        rows,
        (
            explanation.influence.indices(),
            explanation.influence.index_errors(),
            averages,
            rest.index_errors(),
        ),
        strict=True,
    ):
        np.testing.assert_allclose(row, numbers[:3], rtol=1e-3)
    printed = "\n".join(lines)
    share = energy[-1] / energy.sum()
    assert f"The queried tokens hold {share:.1%} of the influence." in printed
    assert f"Without: LIM {float(rest.indices().lim):+.3f}" in printed


@pytest.mark.slow
def test_of_no_influence_the_queries_hold_no_share():
    """Where it vanishes at every position there is nothing to divide."""
    regions = lim.boundary_regions(lim.token_grid(8), 0.2)
    nothing = influence_of_contexts([np.zeros(8)], regions)
    lines = index_lines(nothing, nothing)
    assert len(lines) == 2 and "nan%" not in "".join(lines)
    assert lines[0] == "There is no influence, and so no LIM and no symmetric contrast."
    assert lines[1].startswith("Without: ")


def test_contexts_needed_make_the_interval_as_narrow_as_asked():
    """On fresh contexts, as many as a few foretell: two errors are a tenth, or half of one."""
    regions = lim.boundary_regions(lim.token_grid(5), 0.2)
    generator = np.random.default_rng(0)

    def drawn(count, middle):
        energies = generator.exponential(size=(count, 5)) * np.array([3, middle, middle, middle, 2])
        return Influence.from_energies(jax.device_put(energies), regions)

    # Beyond minus one the width is a part of LIM.
    for middle, scale, width in ((1.0, 1.0, 0.1), (20.0, 9.0, 0.05)):
        many = drawn(contexts_needed(drawn(400, middle), width), middle)
        interval_width = 2 * float(many.index_errors().lim)
        assert interval_width == pytest.approx(width * scale, rel=0.2)
        assert float(many.indices().lim) == pytest.approx(1 - middle / 2, abs=3 * width * scale)
    assert contexts_needed(drawn(1, 1.0)) is None
    line = influence_table(drawn(2, 1.0)).splitlines()[-1]
    assert "two errors within ±0.1 would take some" in line
    line = influence_table(drawn(2, 20.0)).splitlines()[-1]
    assert "two errors within 10 % would take some" in line
    assert "would take" not in influence_table(drawn(4000, 1.0))
    alike = np.array([[3.0, 1.0, 1.0, 1.0, 2.0]] * 2)
    alike = Influence.from_energies(jax.device_put(alike), regions)
    line = influence_table(alike).splitlines()[-1]
    assert "± 0.000, of contexts that all have one profile" in line


@pytest.mark.slow
def test_records_and_tables_give_every_number_under_its_name():
    explanation = explained(last_token)
    record = explanation.record()
    regional = explanation.regional
    rows = {line[:26].strip(): line[26:] for line in explanation_table(explanation).split("\n")}
    cells = {"left": slice(2), "middle": slice(2, 6), "right": slice(6, 8)}
    for index, channel in enumerate(("residual", "cone", "local")):
        np.testing.assert_allclose(
            record["channel_energies"][channel], explanation.channel_energies[index]
        )
        energies = np.mean(regional.products[:, :, index, index], axis=0)
        # `eq:residual-influence-component` and its like, averaged.
        averages = [
            float(explanation.channel_energies[index, where].mean()) for where in cells.values()
        ]
        np.testing.assert_allclose(averages, energies, rtol=1e-10, atol=1e-15)
        for region, energy in zip(("left", "middle", "right"), energies, strict=True):
            np.testing.assert_allclose(record["regional_energies"][region][channel], energy)
        shown = [float(number) for number in rows[f"{channel} energy"].split()]
        np.testing.assert_allclose(shown, energies, rtol=1e-3)
    np.testing.assert_allclose(record["head_energies"], explanation.head_energies)
    assert record["terminal_contrast"] == {
        "value": float(explanation.terminal_contrast.value),
        "error": float(explanation.terminal_contrast.error),
    }
    sides = {
        region: np.asarray(explanation.hop_energies)[:, where].mean(axis=1)
        for region, where in cells.items()
    }
    for index, hops in enumerate(("0 hops", "1 hop", "2 hops", "3 or more hops")):
        np.testing.assert_allclose(record["hop_energies"][hops], explanation.hop_energies[index])
        energies = [averages[index] for averages in sides.values()]
        recorded = [record["regional_hop_energies"][region][hops] for region in sides]
        np.testing.assert_allclose(recorded, energies, rtol=1e-12)
        shown = [float(number) for number in rows[f"energy of {hops}"].split()]
        np.testing.assert_allclose(shown, energies, rtol=1e-3)
    for index, channel in enumerate(("residual", "cone", "local")):
        relative = record["relative_energies"][channel]
        np.testing.assert_allclose(relative, explanation.relative_energies[index])
    assert record["length"] == LENGTH and record["delta"] == 0.25 and record["examples"] == 3
    np.testing.assert_allclose(record["density_error"], explanation.influence.density_error)
    np.testing.assert_allclose(record["total"], np.mean(explanation.influence.energy))
    assert [c["name"] for c in record["certificates"]] == [c.name for c in explanation.certificates]


def neox_like():
    """Parallel blocks of partly turning heads: the one-field recursion; a head of its own."""
    flow = architecture_flow("partial rotary", step=lim.euler, horizon=2.0)
    rows = random_states(7, WORDS, WIDTH), None
    return models.CausalLM(*rows, flow, LayerNorm.init(WIDTH, 0.1), random_states(9, WORDS, WIDTH))


def windows_of_ids(count):
    return jax.device_put(np.random.default_rng(0).integers(WORDS, size=(count, LENGTH + 1)))


@pytest.mark.slow
def test_the_cone_mass_averages_layers_and_contexts():
    network = neox_like()
    ids = windows_of_ids(2)
    mass = average_cone_mass(network, ids, REGIONS)
    flow = network.flow
    grid = REGIONS.grid

    @jax.jit
    @jax.vmap
    def states_of(window):
        return flow.trajectory(network.embed(window[:-1]), grid).states[:-1]

    layers = [layer_of(flow, index).attention for index in range(flow.depth)]
    states = jax.device_put([list(states) for states in np.asarray(states_of(ids))])
    masses = [
        [cone_mass(layer, state, grid) for layer, state in zip(layers, of, strict=True)]
        for of in states
    ]
    np.testing.assert_allclose(mass.value, np.mean(masses, axis=(0, 1)), rtol=1e-10)


@pytest.mark.slow
def test_networks_of_parallel_blocks_are_explained_in_single_precision():
    """Of a margin, against float64: channels and hops, and the gradient to which they sum."""
    network = neox_like()
    single = jax.tree.map(lambda leaf: jax.device_put(leaf.astype("float32")), on_host(network))
    ids = windows_of_ids(3)
    regions = lim.boundary_regions(lim.token_grid(LENGTH, "float32"), 0.25)
    asked = np.zeros(LENGTH)
    asked[[3, 6]] = 0.3, 0.7
    asked = jax.device_put(asked)
    margin = models.CausalLM.margin_loss
    explanation = lim.explanations.explain(
        single, ids, asked, regions, key=jax.random.key(3), loss=margin
    )

    @jax.jit
    @jax.vmap
    def expected(window):
        example = network.example(window, asked)
        rest = network.flow, partial(margin.terminal, network), example, REGIONS.grid
        return channels(*rest).vectors, attention_hops(*rest, 3)[0]

    vectors, hops = map(np.asarray, expected(ids))
    gradient = vectors.sum(axis=1)
    np.testing.assert_allclose(hops.sum(axis=1), gradient, rtol=1e-10, atol=1e-12)

    def assert_squares(one, other):
        assert one.dtype == jnp.float32
        other = (np.asarray(other) ** 2).sum(axis=-1).mean(axis=0)
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5 * other.max())

    assert_squares(explanation.influence.energy, gradient)
    assert_squares(explanation.channel_energies, vectors)
    assert_squares(explanation.hop_energies, hops)
    of_no_hop = np.asarray(explanation.hop_energies)[0]
    assert not np.any(of_no_hop[[0, 1, 2, 4, 5, 7]]) and of_no_hop[3] > 0
    assert explanation.without_queries is not None
    kept = np.delete(np.asarray(explanation.influence.energy), [3, 6])
    np.testing.assert_allclose(explanation.without_queries.density, kept / kept.mean(), rtol=1e-5)
    averages = lim.regional_averages(explanation.influence.energy, regions)
    np.testing.assert_allclose(explanation.regional.totals, averages, rtol=1e-4)
    assert explanation.head_energies.shape[0] == 2 and len(explanation.certificates) == 4


@pytest.mark.slow
def test_figures_of_an_explanation_show_its_numbers():
    explanation = explained(last_token)
    figure = plots.channel_energies(explanation, "costs $x^$")  # half a formula
    assert_nothing_is_cut(figure)
    upper, middle, lower = figure.axes
    curve = np.asarray(upper.lines[0].get_ydata())
    np.testing.assert_allclose(curve, explanation.influence.density)
    energies = np.asarray(explanation.channel_energies)
    together = energies.sum(axis=0)
    influence = np.asarray(explanation.influence.energy)
    only = np.asarray(upper.lines[1].get_ydata())
    np.testing.assert_allclose(only, together / influence.mean())
    tops = [np.asarray(part.get_paths()[0].vertices)[:, 1].max() for part in middle.collections]
    shares = energies / together
    np.testing.assert_allclose(tops, np.cumsum(shares, axis=0).max(axis=1), rtol=1e-12)
    # Signed: what is missing of the influence, or too much.
    heights = [bar.get_height() for bar in lower.containers[0]]
    np.testing.assert_allclose(heights, influence / together - 1, rtol=1e-9, atol=1e-12)
    assert min(heights) < 0 and lower.get_ylim()[0] < -1
    assert all(axes.get_ylabel() for axes in figure.axes)
    count = int(explanation.influence.count)
    assert upper.get_title() == rf"costs \$x^\$ ({LENGTH} positions, n = {count})"
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["influence density", "density without cross terms"] + [
        "residual",
        "cone",
        "local",
        "cross terms",
    ]
    for name, draw in (
        ("channel_energies", plots.channel_energies),
        ("hop_energies", plots.hop_energies),
    ):
        broken = explanation._replace(**{name: jnp.nan * getattr(explanation, name)})
        with pytest.raises(ValueError, match=f"result.{name}: got NaN or infinite values"):
            draw(broken, "title")


@pytest.mark.slow
def test_the_figure_of_certificates_names_each_row_and_its_verdict():
    explanation = explained(last_token)
    figure = plots.certificate_margins(explanation.certificates, "title")
    (axes,) = figure.axes
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert labels[0].startswith("right-biased queries: held\n")
    rows = [(c, i) for c in explanation.certificates for i in c.inequalities]
    assert len(labels) == len(rows) == len(set(labels))
    for row, (certificate, inequality) in enumerate(rows):
        sides = np.array([inequality.greater, inequality.lesser])
        shown = np.concatenate([axes.lines[3 * row + n].get_xdata() for n in (1, 2)])
        np.testing.assert_allclose(shown, sides / np.abs(sides).max(), rtol=1e-12)
        assert labels[row].endswith(inequality.statement)
        assert certificate.name in labels[row]
    assert ["left" in label.splitlines()[0] for label in labels[-2:]] == [True, False]


def test_the_figure_of_hops_shows_where_each_energy_is_and_not_where_it_is_zero():
    explanation = explained(last_token)
    (axes,) = plots.hop_energies(explanation, "title").axes
    assert axes.get_yscale() == "log" and axes.get_title().startswith("title (")
    labels = [line.get_label() for line in axes.lines]
    assert labels == ["all", "0 hops", "1 hop", "2 hops", "3 or more hops"]
    for line, values in zip(
        axes.lines, [explanation.influence.energy, *explanation.hop_energies], strict=True
    ):
        shown = np.asarray(line.get_ydata())
        values = np.asarray(values)
        np.testing.assert_array_equal(shown[values > 0], values[values > 0])
        assert np.isnan(shown[values == 0]).all()
    drawn = [np.isfinite(np.asarray(line.get_ydata())).sum() for line in axes.lines]
    assert drawn == [LENGTH, 1, LENGTH, LENGTH, 0]  # one query, and two layers


def test_cone_masses_are_drawn_under_their_names_with_two_errors():
    masses = {
        name: sample_mean(jnp.exp(random_states(seed, 9, LENGTH) / 3))
        for seed, name in enumerate(("seeded", "trained"))
    }
    (axes,) = plots.cone_masses(masses, REGIONS).axes
    assert axes.get_yscale() == "log"
    for line, band, (name, mass) in zip(axes.lines, axes.collections, masses.items(), strict=True):
        assert line.get_label() == f"{name} ± 2 standard errors"
        np.testing.assert_allclose(np.asarray(line.get_ydata()), mass.value)
        drawn = np.asarray(band.get_paths()[0].vertices)
        relative = np.asarray(mass.error) / np.asarray(mass.value)
        ends = np.asarray(mass.value) * np.exp(2 * np.outer([-1, 1], relative))
        for position, low, high in zip(np.asarray(REGIONS.grid.nodes), *ends, strict=True):
            heights = drawn[np.isclose(drawn[:, 0], position), 1]
            np.testing.assert_allclose([heights.min(), heights.max()], [low, high], rtol=1e-12)
