"""Algorithm 2's weights, on cells of unequal weights, against NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.differences import central_difference, difference_by_calls, fitted_order
from reference.networks import random_labels, random_states

import lim_jax as lim
from lim_jax.training.reweighting import (
    first_order_step,
    importance_weights,
    response,
    response_map,
    reweight_positions,
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

    found, steps, means = map(np.asarray, errors(rates))
    assert abs(fitted_order(1 / rates, found) - 2) < 0.15
    assert abs(fitted_order(1 / rates, steps) - 1) < 1e-10
    np.testing.assert_allclose(means, 0, atol=1e-15)
    assert (found < steps / 2).all()


def test_updates_have_unit_integral():
    # `eq:mask-aware-weight-update`.
    weights = of_unit_mean(1)
    at, density, target = on_device(weights, DENSITY, TARGET)
    found = reweight_positions(at, density, target, GRID, rate=0.7, smallest=0.5, largest=1.0)
    np.testing.assert_allclose(found, updated(weights, 0.7, 0.5, 1.0), rtol=1e-12)
    assert found.max() > 1 and found.min() < 1  # clipped first, then brought to unit mean


def test_importance_weights_are_quotients_of_densities():
    """`eq:positional-importance-weight` of profiles that are not densities yet."""
    deployed, trained = np.arange(7.0), np.exp(np.arange(7.0) / 3)
    at_deployment, at_training = on_device(deployed, trained)
    found = np.asarray(importance_weights(at_deployment, at_training, GRID))
    expected = (deployed / (CELLS @ deployed)) / (trained / (CELLS @ trained))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    errors, density = np.cos(np.arange(7.0)), trained / (CELLS @ trained)
    risk = CELLS @ (deployed * errors) / (CELLS @ deployed)
    np.testing.assert_allclose(CELLS @ (found * density * errors), risk, rtol=1e-12)
    with pytest.raises(RuntimeError, match="never trained on"):
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


def test_a_stage_that_trains_answers_its_weights():
    """Attention and a readout: the density by a loop, LIM's slope by central differences."""
    # `eq:influence-response-map`, `eq:lim-outer-loop-first-order-change`,
    # `eq:discrete-weighted-cross-entropy`.
    params = {"scores": random_states(5, 3, 3), "readout": random_states(6, 3, 4)}
    batch = random_states(7, 2, SIZE, 3), 1.3 * random_labels(8, 2, SIZE, 4)
    regions, weights = lim.boundary_regions(GRID, "2/5"), of_unit_mean(1)
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
    weights, change = of_unit_mean(1), np.asarray(random_states(4, SIZE)) / 10

    def stage(weights):
        energy = (mixing @ weights) ** 2
        return energy / (CELLS @ energy)

    def index(weights):
        return lim_by_hand(stage(weights), regions)

    @jax.jit
    def measured(weights):
        found = response(stage, weights, jax.device_put(change), regions)
        return found, index(weights), central_difference(index, weights, change)

    found, lim_, slope = jax.tree.map(np.asarray, measured(jax.device_put(weights)))
    np.testing.assert_allclose(found.lim, lim_, rtol=1e-12)
    np.testing.assert_allclose(found.change, slope, rtol=1e-7)
    np.testing.assert_allclose(found.alignment, -slope / (change @ change), rtol=1e-7)


def test_a_change_of_another_precision_is_refused():
    regions, weights = lim.boundary_regions(GRID, 0.3), jnp.ones(SIZE)
    with pytest.raises(ValueError, match="change: got float32, expected float64"):
        response(lambda w: w, weights, weights.astype("float32"), regions)
