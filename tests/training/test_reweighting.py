"""Algorithm 2's weights, on cells of unequal weights, against NumPy."""

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.differences import central_difference, difference_by_calls, fitted_order
from reference.networks import random_labels, random_states

import lim_jax as lim
from lim_jax import paper
from lim_jax.paper.algorithms import algorithm2_run
from lim_jax.paper.simulation import gate_influence
from lim_jax.training.reweighting import (
    first_order_step,
    importance_weights,
    response,
    response_map,
    reweight_positions,
    reweighting_run,
)

SIZE = 7
GRID = lim.graded_grid(SIZE)
CELLS = np.asarray(GRID.weights)
DENSITY = np.exp(np.asarray(random_states(0, SIZE)))
TARGET = 1 + np.cos(5 * np.asarray(GRID.nodes)) / 3


def of_unit_mean(seed):
    weights = np.exp(np.asarray(random_states(seed, SIZE)) / 2)
    return weights / (CELLS @ weights)


def on_device(*arrays):
    return [jax.device_put(array) for array in arrays]


def lim_by_hand(density, regions):
    rows = regions._host_weights()
    left, middle, right = rows / rows.sum(axis=1, keepdims=True) @ density
    least = jnp.minimum(left, right)
    return (least - middle) / (least + 1e-8)


def updated(weights, rate, smallest=0.2, largest=3.0):
    raised = np.clip(weights * np.exp(rate * (TARGET - DENSITY)), smallest, largest)
    return raised / (CELLS @ raised)


def test_the_first_order_step_is_that_of_the_update():
    """`eq:normalized-multiplicative-first-order-step`: the update differs by the rate's square."""
    weights, density, target = on_device(of_unit_mean(1), DENSITY, TARGET)
    rates = np.array([0.1, 0.05, 0.025, 0.0125])

    @jax.jit
    @jax.vmap
    def errors(rate):
        step = first_order_step(weights, density, target, GRID, rate=rate)
        exact = reweight_positions(
            weights, density, target, GRID, rate=rate, smallest=0.0, largest=1e9
        )
        return jnp.abs(exact - weights - step).max(), jnp.abs(step).max(), GRID.weights @ step

    errors_of_rates, steps, means = map(np.asarray, errors(rates))
    assert abs(fitted_order(1 / rates, errors_of_rates) - 2) < 0.15
    assert abs(fitted_order(1 / rates, steps) - 1) < 1e-10
    np.testing.assert_allclose(means, 0, atol=1e-15)
    assert (errors_of_rates < steps / 2).all()


def test_updates_have_unit_integral():
    # `eq:mask-aware-weight-update`.
    weights = of_unit_mean(1)
    at, density, target = on_device(weights, DENSITY, TARGET)
    density_after = reweight_positions(
        at, density, target, GRID, rate=0.7, smallest=0.5, largest=1.0
    )
    np.testing.assert_allclose(density_after, updated(weights, 0.7, 0.5, 1.0), rtol=1e-12)
    assert (
        density_after.max() > 1 and density_after.min() < 1
    )  # clipped first, then brought to unit mean


def test_a_weight_of_zero_stays_zero_however_fast_it_would_grow():
    """By symmetry the two others are alike, at any rate: also where e to the rate is infinite."""
    weights, density = on_device(np.array([0.0, 1.5, 1.5]), np.array([0.0, 1.01, 1.01]))

    @jax.jit
    @partial(jax.jacfwd, has_aux=True)
    def slope(rate):
        after = reweight_positions(
            weights, density, 1.0, lim.token_grid(3), rate=rate, smallest=0.0, largest=8.0
        )
        return after, after

    change, after = slope(800.0)
    np.testing.assert_allclose(after, [0, 1.5, 1.5], rtol=1e-12)
    np.testing.assert_allclose(change, 0, atol=1e-12)


def test_importance_weights_are_quotients_of_densities():
    """`eq:positional-importance-weight` of profiles that are not densities yet."""
    deployed = np.arange(7.0)
    trained = np.exp(np.arange(7.0) / 3)
    at_deployment, at_training = on_device(deployed, trained)
    weights = np.asarray(importance_weights(at_deployment, at_training, GRID))
    expected = (deployed / (CELLS @ deployed)) / (trained / (CELLS @ trained))
    np.testing.assert_allclose(weights, expected, rtol=1e-12)
    errors = np.cos(np.arange(7.0))
    density = trained / (CELLS @ trained)
    risk = CELLS @ (deployed * errors) / (CELLS @ deployed)
    np.testing.assert_allclose(CELLS @ (weights * density * errors), risk, rtol=1e-12)
    with pytest.raises(RuntimeError, match="Train on these positions too"):
        importance_weights(jnp.ones(7), at_deployment, GRID)


def attention_and_readout(params, x):
    scores = jnp.where(np.tri(SIZE) > 0, x @ params["scores"] @ x.T, -np.inf)
    return (x + jax.nn.softmax(scores, axis=1) @ x) @ params["readout"]


def losses_by_hand(params, x, y):
    return -jnp.sum(y * jax.nn.log_softmax(attention_and_readout(params, x), axis=1), axis=1)


def density_by_hand(params, batch, weights):
    """Four steps with momentum, v = g + 0.6 v, of -0.3 v; then the density under even weights."""

    def risk(params):
        losses = jax.vmap(lambda x, y: losses_by_hand(params, x, y))(*batch)
        return jnp.sum(losses @ (CELLS * weights)) / 2

    def step(_, state):
        params, speed = state
        speed = jax.tree.map(lambda v, g: 0.6 * v + g, speed, jax.grad(risk)(params))
        return jax.tree.map(lambda p, v: p - 0.3 * v, params, speed), speed

    params, _ = jax.lax.fori_loop(0, 4, step, (params, jax.tree.map(jnp.zeros_like, params)))
    slopes = jax.vmap(jax.grad(lambda x, y: CELLS @ losses_by_hand(params, x, y)))(*batch)
    energy = (slopes**2).sum(axis=(0, 2)) / CELLS**2
    return energy / (CELLS @ energy)


@pytest.mark.slow
def test_a_stage_that_trains_answers_its_weights():
    """Attention and a readout: the density by a loop, LIM's slope by central differences."""
    # `eq:influence-response-map`, `eq:lim-outer-loop-first-order-change`,
    # `eq:discrete-weighted-cross-entropy`.
    params = {"scores": random_states(5, 3, 3), "readout": random_states(6, 3, 4)}
    batch = random_states(7, 2, SIZE, 3), 1.3 * random_labels(8, 2, SIZE, 4)
    regions = lim.boundary_regions(GRID, "2/5")
    weights = of_unit_mean(1)
    change = np.asarray(random_states(4, SIZE)) / 10

    def weighted(weights):
        return lambda params, x, y: lim.cross_entropy(
            attention_and_readout(params, x), y, GRID, weights
        )

    def stage(weights):
        options = {"optimiser": optax.sgd(0.3, momentum=0.6), "steps": 4}
        return response_map(weighted, params, weights, batch, GRID, **options)

    @jax.jit
    def by_hand(weights):
        density = density_by_hand(params, batch, weights)
        return density, lim_by_hand(density, regions)

    at = jax.device_put(weights)
    found = jax.jit(lambda w: response(stage, w, jax.device_put(change), regions))(at)
    density, value = by_hand(at)
    np.testing.assert_allclose(found.lim, value, rtol=1e-9)
    slope = difference_by_calls(lambda w: by_hand(w)[1], at, change)

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def gradient_and_density(weights):
        density = stage(weights)
        return lim_by_hand(density, regions), density

    gradient, given = gradient_and_density(at)
    np.testing.assert_allclose(given, density, rtol=1e-10)
    np.testing.assert_allclose(np.asarray(gradient) @ change, slope, rtol=1e-6)
    assert abs(slope) > 1e-3
    np.testing.assert_allclose(found.change, slope, rtol=1e-6)
    np.testing.assert_allclose(found.alignment, -slope / (change @ change), rtol=1e-6)


def test_the_response_on_unequal_cells():
    regions = lim.boundary_regions(GRID, "2/5")
    mixing = np.exp(np.asarray(random_states(3, SIZE, SIZE)) / 3)
    weights = of_unit_mean(1)
    change = np.asarray(random_states(4, SIZE)) / 10

    def stage(weights):
        energy = (mixing @ weights) ** 2
        return energy / (CELLS @ energy)

    def index(weights):
        return lim_by_hand(stage(weights), regions)

    @jax.jit
    def measured(weights):
        response_ = response(stage, weights, jax.device_put(change), regions)
        return response_, index(weights), central_difference(index, weights, change)

    response_, lim_, slope = jax.tree.map(np.asarray, measured(jax.device_put(weights)))
    np.testing.assert_allclose(response_.lim, lim_, rtol=1e-12)
    np.testing.assert_allclose(response_.change, slope, rtol=1e-7)
    np.testing.assert_allclose(response_.alignment, -slope / (change @ change), rtol=1e-7)


def test_a_change_of_another_precision_is_refused():
    regions = lim.boundary_regions(GRID, 0.3)
    weights = jnp.ones(SIZE)
    with pytest.raises(ValueError, match="change: got float32, expected float64"):
        response(lambda w: w, weights, weights.astype("float32"), regions)


COSTS = np.exp(np.asarray(random_states(9, SIZE)))  # of a parameter away from zero, by position
OPTIONS: dict[str, Any] = {"rate": 0.4, "smallest": 0.01, "largest": 50.0}


def gated(params, x, y):
    """A loss whose influence density is the parameters' squares, brought to integral one."""
    return lim.integral(params * x[:, 0], GRID)


def measured_gates(params, index):
    return lim.influence(gated, params, (jnp.ones((1, SIZE, 1)), None), GRID).density


def weighted_quadratic(params, weights):
    """Each parameter is drawn to one by its loss weight, and to zero by its cost."""
    return lim.integral(weights * (params - 1) ** 2 + COSTS * params**2, GRID) / 2


@jax.jit
def minimised(params, weights, index):
    """A stage that trains until nothing moves: by hand w/(w + cost)."""
    slope = jax.grad(weighted_quadratic)(params, weights) / GRID.weights
    return params - slope / (weights + COSTS), weighted_quadratic(params, jnp.ones(SIZE))


@pytest.mark.slow
@pytest.mark.parametrize("target", [1.0, TARGET / (CELLS @ TARGET)], ids=["even", "of a shape"])
def test_a_run_ends_where_the_measured_density_is_the_target(target):
    """Its fixed point: squares of w/(w + cost) go as the target, and the weights have unit mean.

    So w = cost c sqrt(nu)/(1 - c sqrt(nu)), and their mean gives c; for an even target weights go
    as the costs.
    """
    root = np.sqrt(target * np.ones(SIZE))

    def weights_of(factor):
        return COSTS * factor * root / (1 - factor * root)

    low = 0.0
    high = 1 / root.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if CELLS @ weights_of(middle) < 1 else (low, middle)
    expected = weights_of(low)
    start = jax.device_put(np.full(SIZE, 0.5))
    given = target if isinstance(target, float) else jax.device_put(target)
    done = reweighting_run(
        minimised, jax.jit(measured_gates), start, GRID, 200, target=given, **OPTIONS
    )
    np.testing.assert_allclose(done.weights[-1], expected, rtol=1e-9)
    np.testing.assert_allclose(done.state, expected / (expected + COSTS), rtol=1e-9)
    density = root**2 / (CELLS @ root**2)  # the even one on cells that add up to nearly one
    np.testing.assert_allclose(done.densities[-1], density, rtol=1e-9)
    assert done.weights.shape == done.densities.shape == (200, SIZE)
    assert done.records.shape == (200,)


def test_a_run_measures_reweights_and_then_trains():
    """Three rounds by NumPy, each with the index that it has, from weights that are not even."""

    def stage(state, weights, index):
        return state + weights * (index + 1), {"index": jnp.array(index), "mean": state.mean()}

    def measure(state, index):
        return jnp.exp(jnp.sin(state + index))

    state = np.asarray(random_states(2, SIZE))
    weights = of_unit_mean(1)
    rows = []
    start = on_device(state, weights)
    for index in range(3):
        density = np.exp(np.sin(state + index))
        mean = state.mean()
        raised = np.clip(weights * np.exp(0.3 * (TARGET - density)), 0.2, 3.0)
        weights = raised / (CELLS @ raised)
        rows.append((weights, density, mean))
        state = state + weights * (index + 1)
    done = reweighting_run(
        stage,
        measure,
        start[0],
        GRID,
        3,
        weights=start[1],
        target=jax.device_put(TARGET),
        rate=0.3,
        smallest=0.2,
        largest=3.0,
    )
    found = done.weights, done.densities, done.records["mean"]
    for ours, expected in zip(found, map(np.stack, zip(*rows, strict=True)), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12)
    np.testing.assert_allclose(done.state, state, rtol=1e-12)
    assert done.records["index"].tolist() == [0, 1, 2]


@pytest.mark.slow
def test_section_4s_run_is_one_whose_stage_sets_the_weights():
    grid = paper.simulation.GRID

    @jax.jit
    def measure(weights, index):
        return gate_influence(jnp.zeros(grid.size), weights).density

    done = reweighting_run(
        lambda state, weights, index: (weights, jnp.array(index)),
        measure,
        jnp.ones(grid.size),
        grid,
        20,
        rate=0.5,
        smallest=0.15,
        largest=8.0,
    )
    imbalances = ((np.asarray(done.densities) - 1) ** 2).mean(axis=1)
    np.testing.assert_allclose(imbalances, algorithm2_run().history[:20], rtol=1e-10)


class Died(Exception):
    """The process, somewhere in a round."""


UPDATES = 5
MOMENTS = [(place, index) for place in ("measure", "stage") for index in range(UPDATES)]


@jax.jit
def noisy_stage(state, weights, index):
    """A stage that draws at random by its index, and keeps an optimiser's state."""
    params, speed = state
    drawn = jax.random.normal(jax.random.fold_in(jax.random.key(3), index), (SIZE,))
    speed = 0.9 * speed - 0.1 * jax.grad(weighted_quadratic)(params, weights) + drawn / 100
    return (params + speed, speed), {"speed": speed, "risk": speed @ speed}


@jax.jit
def noisy_measure(state, index):
    return measured_gates(state[0], index)


def noisy_run(updates=UPDATES, dying=(None, None), **options):
    def at(place, function):
        def called(*given):
            if (place, given[-1]) == dying:
                raise Died
            return function(*given)

        return called

    start = on_device(np.full(SIZE, 0.4), np.zeros(SIZE))
    stage = at("stage", noisy_stage)
    measure = at("measure", noisy_measure)
    return reweighting_run(stage, measure, tuple(start), GRID, updates, **OPTIONS | options)


@pytest.fixture(scope="module")
def at_once():
    return jax.tree.map(np.asarray, noisy_run())


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("place, index", MOMENTS)
def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(
    place, index, every, at_once, tmp_path
):
    """While it measures or trains, in every round; and then once more, at the round after."""
    options = {"checkpoint": tmp_path / "run", "run": "noise", "every": every}
    for moment in ((place, index), (place, index + 1)):
        if moment[1] < UPDATES:
            with pytest.raises(Died):
                noisy_run(dying=moment, **options)
    resumed = noisy_run(**options)
    chex.assert_trees_all_equal(jax.tree.map(np.asarray, resumed), at_once)
    longer = noisy_run(UPDATES + 2, **options)
    chex.assert_trees_all_equal(
        jax.tree.map(lambda leaf: np.asarray(leaf)[:UPDATES], longer[1:]), at_once[1:]
    )


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    options = {"checkpoint": tmp_path / "run", "run": "a text"}
    noisy_run(2, **options)
    noisy_run(2, **options)
    others = {
        "rate": 0.3, "smallest": 0.02, "largest": 49.0, "target": jax.device_put(TARGET),
        "run": "another", "weights": jax.device_put(of_unit_mean(1)),
    }  # fmt: skip
    for name, value in others.items():
        with pytest.raises(ValueError, match="checkpoint: got .*of start .*expected one of start"):
            noisy_run(2, **options | {name: value})


def test_a_checkpoint_needs_a_name_for_its_run(tmp_path):
    with pytest.raises(ValueError, match="run: got none beside a checkpoint"):
        noisy_run(2, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_is_differentiated_and_mapped():
    """In the rate, under jit: the last density answers it as differences say."""
    start = jax.device_put(np.full(SIZE, 0.5))
    ramp = jax.device_put(np.arange(7.0))

    def last(rate):
        done = reweighting_run(
            minimised, measured_gates, start, GRID, 3, rate=rate, smallest=0.01, largest=50.0
        )
        return done.densities[-1] @ ramp

    slopes = jax.jit(
        lambda rate: (last(rate), jax.grad(last)(rate), jax.jvp(last, (rate,), (1.0,)))
    )
    value, reverse, forward = slopes(0.4)
    expected = central_difference(last, jnp.array(0.4), jnp.array(1.0))
    assert abs(expected) > 1e-2
    np.testing.assert_allclose([reverse, forward[1]], [expected] * 2, rtol=1e-7)
    several = jax.jit(jax.vmap(last))(jnp.array([0.1, 0.4]))
    np.testing.assert_allclose(several[1], value, rtol=1e-12)


def test_a_traced_run_has_no_checkpoint(tmp_path):
    def run(rate):
        return noisy_run(2, rate=rate, checkpoint=tmp_path / "run", run="noise").weights

    with pytest.raises(ValueError, match="checkpoint: .*traced"):
        jax.jit(run)(0.4)
