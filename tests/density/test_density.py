"""Influence of any pure loss: densities, indices, standard errors, streaming."""

from dataclasses import replace
from functools import reduce
from itertools import pairwise
from types import SimpleNamespace

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.differences import central_gradient
from reference.networks import random_labels, random_states, randomised

import lim_jax as lim
from lim_jax.density import adjoint_energies
from lim_jax.loss import last_token

GRID = lim.token_grid(10)
COUNT = 6  # examples, nearly everywhere: programs are of a number of them


def linear_loss(params, x, y):
    """A loss whose input gradient is its label times a parameter."""
    return params * jnp.vdot(x, y)


def linear_batch(seed, examples, grid=GRID, width=3):
    """Covectors whose size varies over positions and over examples."""
    generator = np.random.default_rng(seed)
    scale = 1 + np.cos(6 * np.asarray(grid.nodes)) ** 2 + np.arange(grid.size) / grid.size
    common = np.exp(generator.standard_normal((examples, 1, 1)) / 3)
    y = common * scale[:, None] * generator.standard_normal((examples, grid.size, width))
    return jax.device_put((np.zeros(y.shape), y))


@eqx.filter_jit
def _all_numbers(result):
    names = (
        "total", "density", "regional_integrals", "regional_averages", "energy_error",
        "total_error", "density_error", "alike",
    )  # fmt: skip
    numbers = {name: getattr(result, name) for name in names}
    return numbers | {"indices": result.indices(), "index_errors": result.index_errors()}


def numbers_of(result):
    """Everything that a result says, of one program."""
    return SimpleNamespace(**jax.tree.map(np.asarray, _all_numbers(result)))


def energies(batch, grid=GRID):
    return (np.asarray(batch[1]) ** 2).sum(axis=2) / np.asarray(grid.weights) ** 2


@pytest.mark.parametrize("make", [lim.token_grid, lim.graded_grid])
def test_a_bare_function_by_its_closed_form(make):
    # `def:influence`, `eq:unnormalized-influence-density`, `eq:influence-density`.
    grid = make(10)
    batch = linear_batch(0, COUNT, grid)
    measured = lim.influence(linear_loss, 2.0, batch, grid)
    result = numbers_of(measured)
    expected = 4 * energies(batch, grid).mean(axis=0)
    np.testing.assert_allclose(measured.energy, expected, rtol=1e-12)
    total = np.sum(np.asarray(grid.weights) * expected)
    np.testing.assert_allclose(result.total, total, rtol=1e-12)
    np.testing.assert_allclose(result.density, expected / total, rtol=1e-12)
    np.testing.assert_allclose(result.regional_integrals.sum(), total, rtol=1e-12)
    of_examples = eqx.filter_jit(adjoint_energies)(linear_loss, 2.0, batch, grid)
    np.testing.assert_allclose(of_examples, 4 * energies(batch, grid), rtol=1e-12)


def test_the_density_is_a_ratio_of_expectations():
    batch = linear_batch(1, COUNT)
    result = numbers_of(lim.influence(linear_loss, 1.0, batch, GRID))
    profiles = energies(batch) / energies(batch).mean(axis=1, keepdims=True)
    assert np.abs(result.density - profiles.mean(axis=0)).max() > 0.02


class Recurrent(eqx.Module):
    """Another architecture: a gated recurrent unit over positions, with a linear head."""

    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __call__(self, x):
        def step(state, token):
            state = self.cell(token, state)
            return state, self.head(state)

        return jax.lax.scan(step, jnp.zeros(self.cell.hidden_size), x)[1]


def recurrent_loss(model, x, y):
    return lim.cross_entropy(model(x), y, GRID)


@pytest.mark.slow
def test_an_equinox_model_of_another_architecture():
    def made(key):
        return Recurrent(eqx.nn.GRUCell(3, 4, key=key), eqx.nn.Linear(4, 5, key=key))

    model = randomised(eqx.filter_eval_shape(made, jax.random.key(0)), 0)
    x = random_states(1, 2, 10, 3)
    y = random_labels(2, 2, 10, 5)
    result = lim.influence(recurrent_loss, model, (x, y), GRID)

    @jax.jit
    @jax.vmap
    def gradients(x, y):
        return central_gradient(lambda x: recurrent_loss(model, x, y), x)

    expected = np.mean((100 * np.asarray(gradients(x, y)) ** 2).sum(axis=2), axis=0)
    np.testing.assert_allclose(result.energy, expected, rtol=1e-7)


def test_without_influence_indices_are_zero_also_where_nothing_is_added_to_denominators():
    indices = lim.indices(jnp.zeros(3), 0.0)
    assert [float(number) for number in indices] == [0.0] * 6
    # In the middle alone there is influence: the limit of the index as epsilon goes to zero.
    only = lim.indices(jnp.array([0.0, 2.0, 0.0]), 0.0)
    assert (float(only.lim), float(only.symmetric_contrast)) == (-np.inf, -1.0)


def test_indices_by_hand():
    # `eq:gd-lim-gap`, `eq:gd-lim-index`, `eq:gd-lim-symmetric-contrast`.
    averages = jnp.array([3.2269, 0.1417, 1.3479])
    indices = lim.indices(averages)
    np.testing.assert_allclose(indices[:3], averages)
    np.testing.assert_allclose(indices.gap, 1.2062, rtol=1e-12)
    np.testing.assert_allclose(indices.lim, 1.2062 / (1.3479 + 1e-8), rtol=1e-12)
    np.testing.assert_allclose(indices.symmetric_contrast, 1.2062 / (1.4896 + 1e-8), rtol=1e-12)
    np.testing.assert_allclose(lim.indices(averages, 1.0).lim, 1.2062 / 2.3479, rtol=1e-12)


def test_lim_falls_as_far_as_its_stabiliser_lets_it_and_the_contrast_does_not():
    indices = lim.indices(jnp.array([1e-3, 1.6, 1e-3]))
    assert indices.lim < -1000 and -1 <= indices.symmetric_contrast < -0.99
    # All in the middle: -1/((1 - 2 delta) eps_0), `eq:gd-lim-index`.
    np.testing.assert_allclose(lim.indices(jnp.array([0, 1 / 0.6, 0]), 0.01).lim, -1 / 0.006)


def linearised_errors(samples, weights, regional):
    """Standard errors of m and of the regional averages, written out example by example."""
    count = len(samples)
    mean = samples.mean(axis=0)
    total = weights @ mean
    density = mean / total
    residual = samples - np.outer(samples @ weights, density)
    of_density = np.sqrt((residual**2).sum(axis=0) / (count * (count - 1))) / total
    sizes = regional.sum(axis=1)
    integrals = samples @ regional.T
    averages = integrals.mean(axis=0) / total
    residual = integrals - np.outer(integrals.sum(axis=1), averages)
    of_averages = np.sqrt((residual**2).sum(axis=0) / (count * (count - 1))) / total / sizes
    return of_density, of_averages


def test_standard_errors_are_those_of_the_linearised_ratio():
    batch = linear_batch(2, COUNT)
    result = numbers_of(lim.influence(linear_loss, 1.0, batch, GRID))
    samples = energies(batch)
    weights = np.asarray(GRID.weights)
    regional = np.asarray(lim.boundary_regions(GRID, 0.2).weights)
    of_density, of_averages = linearised_errors(samples, weights, regional)
    np.testing.assert_allclose(result.density_error, of_density, rtol=1e-10)
    np.testing.assert_allclose(result.index_errors[:3], of_averages, rtol=1e-10)
    np.testing.assert_allclose(
        result.energy_error, samples.std(axis=0, ddof=1) / np.sqrt(COUNT), rtol=1e-10
    )
    np.testing.assert_allclose(
        result.total_error, (samples @ weights).std(ddof=1) / np.sqrt(COUNT), rtol=1e-10
    )


def test_standard_errors_are_honest():
    """Over 400 data sets the results scatter by what one data set's errors say."""
    examples = 200
    repeats = 400
    x, y = linear_batch(3, examples * repeats)
    batches = [np.asarray(leaf).reshape(repeats, examples, 10, 3) for leaf in (x, y)]

    @jax.jit
    @jax.vmap
    def measured(x, y):
        result = lim.influence(linear_loss, 1.0, (x, y), GRID)
        errors = (result.density_error, result.total_error, result.index_errors())
        return (result.density, result.total, result.indices()), errors

    values, errors = jax.tree.map(np.asarray, measured(*batches))
    scatter = jax.tree.map(lambda leaf: leaf.std(axis=0, ddof=1), values)
    claimed = jax.tree.map(lambda leaf: leaf.mean(axis=0), errors)
    # Of 400 repeats a deviation is known to 3.5 per cent; four of these.
    chex.assert_trees_all_close(scatter, claimed, rtol=0.14)


def test_streams_of_any_batch_sizes_give_the_result_of_all():
    x, y = linear_batch(4, COUNT)
    whole = lim.influence(linear_loss, 1.0, (x, y), GRID)
    streamed = lim.influence_stream(linear_loss, 1.0, pieces_of((x, y), 0, 2, 5, 6), GRID)
    chex.assert_trees_all_close(streamed, whole, rtol=1e-12)
    errors = (numbers_of(result).index_errors for result in (streamed, whole))
    chex.assert_trees_all_close(*errors, rtol=1e-11)
    assert float(streamed.count) == COUNT


def pieces_of(batch, *cuts):
    """Parts of a batch, cut on the host."""
    batch = [np.asarray(leaf) for leaf in batch]
    return [jax.device_put((x[a:b], y[a:b])) for x, y in [batch] for a, b in pairwise(cuts)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype, exponent", [("float64", 565), ("float32", 70)])
def test_standard_errors_are_of_any_scale(dtype, exponent):
    """Squares of such energies underflow or overflow; powers of two change no digit."""
    regions = lim.boundary_regions(lim.token_grid(10, dtype), 0.2)
    plain = (energies(linear_batch(6, COUNT)) / 64).astype(dtype)

    def errors(scale):
        one, two = (
            lim.Influence.from_energies(jax.device_put(plain[part] * scale), regions)
            for part in (slice(0, 3), slice(3, None))
        )
        both = numbers_of(one.merge(two))
        scaled = (both.energy_error / scale, both.total_error / scale)
        return *scaled, both.density_error, *both.index_errors

    expected = errors(np.dtype(dtype).type(1))
    assert all(np.all(np.asarray(error) > 0) for error in expected)
    for power in (-exponent, exponent):
        chex.assert_trees_all_close(
            errors(np.ldexp(np.ones((), dtype), power)), expected, rtol=1e-5
        )


def test_a_ragged_last_batch_compiles_nothing():
    traces = []

    def loss(params, x, y):
        traces.append(x.shape)
        return jnp.sum(jnp.sin(x) * y)

    batch = random_states(0, 11, GRID.size, 2), random_states(1, 11, GRID.size, 2)
    pieces = pieces_of(batch, 0, 4, 8, 11)
    lim.influence_stream(loss, None, pieces[:1], GRID)
    once = len(traces)
    streamed = lim.influence_stream(loss, None, pieces, GRID)
    assert len(traces) == once
    x, y = map(np.asarray, batch)
    expected = 100 * ((np.cos(x) * y) ** 2).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(streamed.energy, expected, rtol=1e-12)


def squared_outputs(network, x, y):
    return jnp.sum(jax.vmap(network)(x) ** 2)


@pytest.mark.slow
def test_modules_with_functions_among_their_leaves():
    """By the chain rule: a bare function closes over its arrays, a module of Equinox has them."""
    generator = np.random.default_rng(6)
    arrays = [generator.standard_normal(s) for s in ((4, 3), (2, 4), (7, 10, 3))]
    inner, outer, x = jax.device_put(arrays)
    module = eqx.filter_eval_shape(
        eqx.nn.MLP,
        3,
        2,
        4,
        1,
        activation=jnp.tanh,
        use_bias=False,
        use_final_bias=False,
        key=jax.random.key(0),
    )
    module = eqx.tree_at(lambda m: [layer.weight for layer in m.layers], module, [inner, outer])
    first, second, tokens = arrays
    hidden = np.tanh(tokens @ first.T)
    gradients = 2 * ((hidden @ second.T @ second) * (1 - hidden**2)) @ first
    expected = np.sum(gradients**2, axis=2).mean(axis=0) / np.asarray(GRID.weights) ** 2

    def of_closure(inner):
        network = lim.TokenwiseReadout(lambda token: outer @ jnp.tanh(inner @ token))
        loss = lambda network, x, y: jnp.sum(network(x, GRID) ** 2)  # noqa: E731
        return lim.influence(loss, network, (x, None), GRID)

    def of_module(module):
        return lim.influence(squared_outputs, module, (x, None), GRID)

    def with_slope(measured):
        def total(params):
            result = measured(params)
            return result.total, result.energy

        return eqx.filter_jit(eqx.filter_grad(total, has_aux=True))

    slope, of_bare = with_slope(of_closure)(inner)
    theirs, of_theirs = with_slope(of_module)(module)
    for energy in (of_bare, of_theirs, of_module(module).energy):
        np.testing.assert_allclose(energy, expected, rtol=1e-11)
    np.testing.assert_allclose(slope, theirs.layers[0].weight, rtol=1e-10)


def test_streaming_holds_against_a_large_mean():
    """Deviations are pooled, not squares: no cancellation when the scatter is small."""
    y = 1e4 * (1 + 1e-6 * np.asarray(random_states(5, COUNT, 10, 3)))
    x, y = jax.device_put((np.zeros(y.shape), y))
    whole = numbers_of(lim.influence(linear_loss, 1.0, (x, y), GRID))
    pieces = pieces_of((x, y), 0, 2, 4, 6)
    streamed = numbers_of(lim.influence_stream(linear_loss, 1.0, pieces, GRID))
    np.testing.assert_allclose(streamed.density_error, whole.density_error, rtol=1e-6)


def test_one_example_has_unknown_errors():
    result = numbers_of(lim.influence(linear_loss, 1.0, linear_batch(6, 1), GRID))
    assert np.all(np.isinf(result.density_error)) and np.isinf(result.total_error)
    assert all(np.isinf(error) for error in result.index_errors)


# Of ten positions in float32, and without two of them.
SINGLE = lim.boundary_regions(lim.token_grid(10, "float32"), 0.2)
REST = SINGLE.without((0, 9))


@pytest.mark.parametrize("sizes, regions", [(0.0, SINGLE), (1.0, REST)])
def test_errors_of_profiles_that_hardly_differ_are_those_in_double_precision(sizes, regions):
    """In float32, alike to 1e-4, of one size and of many: at once and in pieces of three."""
    normal = np.random.default_rng(0).standard_normal
    alike = np.exp(normal(10)) * (1 + 1e-4 * normal((30, 10))) * np.exp(sizes * normal((30, 1)))
    samples = alike.astype(np.float32)
    pieces = jax.device_put([samples, *np.split(samples, 10)])
    influences = [lim.Influence.from_energies(piece, regions) for piece in pieces]
    weights = np.asarray(regions.weights, float)
    kept = weights.sum(axis=0)
    samples = np.asarray(samples, float)
    of_density, of_averages = linearised_errors(samples, kept, weights)
    totals = samples @ kept
    for result in map(numbers_of, (influences[0], reduce(lim.Influence.merge, influences[1:]))):
        np.testing.assert_allclose(result.density_error, of_density * (kept > 0), rtol=0.01)
        np.testing.assert_allclose(result.index_errors[:3], of_averages, rtol=0.01)
        np.testing.assert_allclose(result.total_error, totals.std(ddof=1) / 30**0.5, rtol=0.01)
        assert not result.alike


def test_examples_of_one_profile_are_said_to_be_alike():
    """Identical ones and multiples of one, merged or not; neither others nor one alone."""
    (sample,) = energies(linear_batch(7, 1))

    def measured(*rows):
        rows = jax.device_put(np.array(rows, np.float32))
        return lim.Influence.from_energies(rows, REST)

    same = measured(*[sample] * 3)
    others = measured(sample, 1.3 * sample, 7 * sample)
    numbers = numbers_of(same)
    assert numbers.total_error < 1e-6 * numbers.total and numbers.density_error.max() < 1e-6
    outside = sample * np.where(np.arange(10) == 9, 2, 1)  # at a place that is left out
    for influence in (same, others, same.merge(others), measured(sample, outside, sample)):
        assert numbers_of(influence).alike
    assert "one profile: their errors say nothing" in str(others)
    assert others.record()["alike"] is True
    moved = measured(sample, sample, sample * np.where(np.arange(10) == 5, 1 + 1e-5, 1))
    assert "one profile" not in str(moved)
    assert not numbers_of(moved).alike and not numbers_of(measured(sample)).alike


def test_no_influence_is_reported_as_degenerate():
    batch = linear_batch(8, COUNT)
    result = lim.influence(linear_loss, 0.0, batch, GRID)
    assert bool(result.degenerate)
    numbers = vars(numbers_of(result))
    assert numbers.pop("alike")
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(numbers))

    @jax.jit
    @jax.grad
    def gradient(p):
        return lim.influence(linear_loss, p, batch, GRID).indices().gap

    assert np.isfinite(gradient(0.0))
    assert not bool(lim.influence(linear_loss, 1e-3, batch, GRID).degenerate)


@pytest.mark.slow
def test_the_total_of_a_last_token_loss_grows_with_length():
    def last_token_loss(params, x, y):
        return lim.autoregressive_cross_entropy(x, y, last_token(len(x)))

    totals = []
    for size in (8, 24):
        labels = np.array(random_labels(1, 2, size, 5))
        labels[:, -1] = np.eye(5)[0]
        batch = jax.device_put((np.zeros(labels.shape), labels))
        result = lim.influence(last_token_loss, None, batch, lim.token_grid(size))
        totals.append(np.mean(result.energy))
    np.testing.assert_allclose(totals[1], 3 * totals[0], rtol=1e-12)


def test_regions_are_free():
    batch = linear_batch(9, COUNT)
    regions = lim.boundary_regions(GRID, "1/4", "points")
    result = numbers_of(lim.influence(linear_loss, 1.0, batch, GRID, regions))
    density = result.density
    expected = [density[:2].mean(), density[2:7].mean(), density[7:].mean()]
    np.testing.assert_allclose(result.regional_averages, expected, rtol=1e-12)


def test_regions_are_of_positions_whatever_masks_them():
    """The loss looks at no grid: starts and log weights, traced too, change nothing."""
    batch = linear_batch(9, COUNT)
    regions = lim.boundary_regions(GRID, 0.2)

    @jax.jit
    def totals(starts, log_weights):
        masked = GRID.starting(starts).weighted(log_weights)
        chosen = (None, regions, lim.boundary_regions(masked, 0.2))
        return [lim.influence(linear_loss, 1.0, batch, masked, each).total for each in chosen]

    expected = np.asarray(GRID.weights) @ energies(batch).mean(axis=0)
    starts = jnp.array([0, 0, 0, 0, 4, 4, 4, 7, 7, 7])
    np.testing.assert_allclose(totals(starts, GRID.nodes), expected, rtol=1e-12)
    masked = GRID.starting(starts)
    known = lim.influence(linear_loss, 1.0, batch, masked, regions)
    np.testing.assert_allclose(known.total, expected, rtol=1e-12)


@pytest.mark.parametrize("masked", ["starts", "log weights"])
def test_influences_on_grids_of_other_masks_are_pooled_and_compared(masked):
    """Where contexts are packed or weighed in several ways their regions are the same positions."""
    rows = np.array([[1.0, 4, 9, 16], [4.0, 1, 1, 0]])
    masks = np.array([[0, 0, 2, 2], [0, 1, 1, 1]])

    def influences(masks):
        """Measure the influence of one example on a grid of each mask."""
        grids = [
            lim.token_grid(4).starting(mask)
            if masked == "starts"
            else lim.token_grid(4).weighted(-mask.astype(float))
            for mask in masks
        ]
        return [
            lim.Influence.from_energies(
                jnp.asarray(row[None]), lim.boundary_regions(grid, 0.2), keep_examples=True
            )
            for row, grid in zip(rows, grids, strict=True)
        ]

    def pooled_energy(masks):
        """Return the mean energies of both."""
        one, two = influences(masks)
        return one.merge(two).energy

    for pooled in (pooled_energy, jax.jit(pooled_energy)):
        np.testing.assert_allclose(pooled(jax.device_put(masks)), rows.mean(axis=0), rtol=1e-12)
    change = lim.results.compare(*influences(jax.device_put(masks)))
    np.testing.assert_allclose(change.total, rows[1].mean() - rows[0].mean(), rtol=1e-12)


@pytest.mark.slow
def test_positions_left_out_leave_a_density_of_the_others():
    """`def:influence` of the rest, with its errors, by NumPy on cells of unequal weights."""
    # `eq:influence-measure`, `eq:influence-density`.
    grid = lim.graded_grid(10)
    left_out = (2, 9)
    batch = linear_batch(11, COUNT, grid)
    regions = lim.boundary_regions(grid, "2/5").without(left_out)
    influence = lim.influence(linear_loss, 1.0, batch, grid, regions)
    result = numbers_of(influence)
    samples = energies(batch, grid)
    kept = ~np.isin(np.arange(10), left_out)
    weights = np.where(kept, np.asarray(grid.weights), 0)
    regional = np.asarray(lim.boundary_regions(grid, "2/5").weights) * kept
    energy = samples.mean(axis=0)
    density = np.where(kept, energy, 0) / (weights @ energy)
    np.testing.assert_allclose(influence.energy, energy, rtol=1e-12)
    np.testing.assert_allclose(result.total, weights @ energy, rtol=1e-12)
    np.testing.assert_allclose(influence.measure([(0, 1)]), weights @ energy, rtol=1e-12)
    np.testing.assert_allclose(result.density, density, rtol=1e-12)
    averages = (regional @ density) / regional.sum(axis=1)
    np.testing.assert_allclose(result.regional_averages, averages, rtol=1e-12)
    np.testing.assert_allclose(result.indices[:3], averages, rtol=1e-12)
    of_density, of_averages = linearised_errors(samples, weights, regional)
    np.testing.assert_allclose(result.density_error, np.where(kept, of_density, 0), rtol=1e-10)
    np.testing.assert_allclose(result.index_errors[:3], of_averages, rtol=1e-10)
    of_total = (samples @ weights).std(ddof=1) / np.sqrt(COUNT)
    np.testing.assert_allclose(result.total_error, of_total, rtol=1e-10)
    halves = jax.device_put(np.split(samples, 2))
    merged = [lim.Influence.from_energies(half, regions) for half in halves]
    chex.assert_trees_all_close(merged[0].merge(merged[1]), influence, rtol=1e-12)


def test_what_is_left_out_does_not_matter():
    """One token's influence, however large, does not change the density of the others."""
    grid = lim.graded_grid(6)
    regions = lim.boundary_regions(grid, 0.45).without([5])
    samples = np.exp(random_states(12, 7, 6))
    larger = samples * np.array([1, 1, 1, 1, 1, 1e6])
    influences = [
        lim.Influence.from_energies(jax.device_put(e), regions) for e in (samples, larger)
    ]
    for ours, theirs in zip(
        *(
            (f.density, f.density_error, f.indices, f.index_errors)
            for f in map(numbers_of, influences)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11)
    with pytest.raises(ValueError, match="numbers from 0 to 5"):
        regions.without([6])
    with pytest.raises(ValueError, match="right region .* 1 of them left out"):
        lim.boundary_regions(grid, 0.3).without([5])


@pytest.mark.parametrize(
    "make, convention",
    [(lim.token_grid, "points"), (lim.midpoint_grid, "points"), (lim.graded_grid, "overlap")],
)
def test_the_influence_measure_of_any_set(make, convention):
    """`eq:influence-measure` by NumPy, cell by cell; additive, and in all the total."""
    grid = make(10)
    samples = energies(linear_batch(13, 5, grid), grid)
    regions = lim.boundary_regions(grid, "3/10", convention)
    influence = lim.Influence.from_energies(jax.device_put(samples), regions)
    edges = np.asarray(grid.edges)
    nodes = np.asarray(grid.nodes)

    def measured(start, stop):
        overlap = np.minimum(edges[1:], stop) - np.maximum(edges[:-1], start)
        inside = (start <= nodes) & ((nodes < stop) | (stop == 1))
        share = np.maximum(overlap, 0) / np.diff(edges) if convention == "overlap" else inside
        return (np.asarray(grid.weights) * share) @ samples.mean(axis=0)

    parts = [(0, 0.07), (0.07, 0.33), (0.33, 0.61), (0.61, 1)]
    alone = np.array([influence.measure([part]) for part in parts])
    np.testing.assert_allclose(alone, [measured(*part) for part in parts], rtol=1e-12)
    totals, integrals = eqx.filter_jit(lambda of: (of.total, of.regional_integrals))(influence)
    np.testing.assert_allclose(alone.sum(), totals, rtol=1e-12)
    union = [
        (0.33, 0.5),
        (0, 0.05),
        (0.4, 0.61),
        (0.02, 0.07),
        (0.5, 0.5),
    ]  # of the first and third
    np.testing.assert_allclose(influence.measure(union), alone[0] + alone[2], rtol=1e-12)
    ends = [(0, "3/10"), ("3/10", "7/10"), ("7/10", 1)]
    regional = [influence.measure([pair]) for pair in ends]
    np.testing.assert_allclose(regional, integrals, rtol=1e-12)
    for wrong in ((-0.1, 0.5), (0.5, 1.1), (0.5, 0.4)):
        with pytest.raises(ValueError, match="0 <= a <= b <= 1"):
            influence.measure([wrong])


def test_the_measure_on_panels_is_that_of_the_polynomial():
    grid = lim.gauss_grid(5, panels=3)
    energy = 1 + np.asarray(grid.nodes) ** 4
    regions = lim.boundary_regions(grid, 0.2)
    influence = lim.Influence.from_energies(jax.device_put(energy[None]), regions)
    expected = 0.3 + (0.4**5 - 0.1**5) / 5 + 0.4 + (1 - 0.6**5) / 5
    np.testing.assert_allclose(influence.measure([(0.6, 1), (0.1, 0.4)]), expected, rtol=1e-12)


def test_a_density_in_single_precision_is_near_double():
    grid = lim.token_grid(10, dtype=jnp.float32)
    batch = linear_batch(10, COUNT)
    rounded = jax.device_put(tuple(np.asarray(leaf, np.float32) for leaf in batch))
    single = numbers_of(lim.influence(linear_loss, 1.0, rounded, grid))
    assert single.density.dtype == single.density_error.dtype == jnp.float32
    double = numbers_of(lim.influence(linear_loss, 1.0, batch, GRID))
    np.testing.assert_allclose(single.density, double.density, rtol=1e-5)
    np.testing.assert_allclose(single.density_error, double.density_error, rtol=1e-4)


def test_a_second_batch_of_the_same_shape_compiles_nothing():
    traced = []

    def counted_loss(params, x, y):
        traced.append(1)
        return linear_loss(params, x, y)

    lim.influence(counted_loss, jnp.asarray(1.0), linear_batch(0, 4), GRID)
    first = len(traced)
    lim.influence(counted_loss, jnp.asarray(2.0), linear_batch(1, 4), GRID)
    assert len(traced) == first


@pytest.mark.slow
def test_print_shows_numbers_and_nothing_fails_where_there_are_none_yet(capsys):
    batch = linear_batch(14, COUNT)
    regions = lim.boundary_regions(GRID, 0.3).without([9])
    result = lim.influence(linear_loss, 1.0, batch, GRID, regions)
    print(result)
    shown = capsys.readouterr().out
    values, errors = (result.indices(), result.index_errors())
    assert shown == f"{result.summary()}\n"
    assert "of 6 examples on 10 positions, delta = 0.3, 1 left out (9)" in shown
    for name in ("left", "middle", "right", "gap", "lim", "symmetric_contrast"):
        assert f"{getattr(values, name):.3g} ± {getattr(errors, name):.3g}" in shown
    assert f"total {result.total:.3g} ± {result.total_error:.3g}" in shown

    @jax.jit
    def traced(scale):
        inside = lim.influence(linear_loss, scale, batch, GRID, regions)
        print(inside, "beside", result)
        return inside

    again = traced(1.0)
    inside, beside = capsys.readouterr().out.split(" beside ")
    assert inside.startswith("Influence(") and beside == shown
    assert str(again) == result.summary()
    several = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), again)
    assert str(several).startswith("Influence(")
    one = replace(again, count=jnp.ones(()), energy=jnp.zeros(GRID.size))  # what one degenerate is
    assert "1 example on" in str(one) and "no position matters" in str(one) and "± inf" in str(one)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_gradients_of_half_precision_are_over_weights_of_single(dtype):
    """1/96 is off by 2e-3 in bfloat16, and so was what is divided by it."""
    slopes = jnp.asarray(np.linspace(1, 2, 96), dtype)
    loss = lambda params, x, y: (slopes * x[:, 0]).sum()  # noqa: E731
    batch = jnp.zeros((1, 96, 1), dtype), None
    energies = lim.density.adjoint_energies(loss, None, batch, lim.token_grid(96, dtype))
    np.testing.assert_allclose(energies[0], (96 * np.asarray(slopes, float)) ** 2, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_states_of_half_precision_have_energies_and_counts_of_single(dtype, scale):
    """Squares of 1e-3 are zeros of float16, and 301 is no number of bfloat16."""
    grid = lim.token_grid(4, dtype)
    slopes = jnp.array([1.0, 2.0, 3.0, 4.0], dtype)[:, None]
    batch = jnp.zeros((301, 4, 1), dtype), None
    result = lim.influence(lambda params, x, y: scale * (slopes * x).sum(), 0.0, batch, grid)
    assert result.energy.dtype == jnp.float32 and result.count == 301
    rounding = 8 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(result.density, 4 * np.array([1, 4, 9, 16]) / 30, rtol=rounding)
    parts = lim.density.influence_stream(
        lambda params, x, y: scale * (slopes * x).sum(), 0.0, [batch] * 3, grid
    )
    assert parts.count == 903
