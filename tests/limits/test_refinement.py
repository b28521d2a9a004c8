"""Fits and constants of refinement studies, against NumPy's own fit and plain loops."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import random_states

import lim_jax as lim
from lim_jax.limits import depth
from lim_jax.limits.attention_error import attention_constant
from lim_jax.limits.refinement import Study, fit_order
from lim_jax.limits.rows import Row, rates_table
from lim_jax.network.flow import unit_profile


@pytest.mark.parametrize("count", [4, 5, 9])
def test_fitted_orders_are_numpys_with_their_covariance(count):
    refinements = 10.0 * 1.7 ** np.arange(count)
    noise = np.exp(0.1 * np.random.default_rng(count).standard_normal(count))
    errors = 0.4 * refinements**-1.5 * noise
    order = fit_order(refinements.tolist(), errors.tolist())
    fit, covariance = np.polyfit(np.log(refinements), np.log(errors), 1, cov=True)
    np.testing.assert_allclose(order.value, -fit[0], rtol=1e-10)
    np.testing.assert_allclose(order.constant, np.exp(fit[1]), rtol=1e-10)
    np.testing.assert_allclose(order.half_width, 2 * np.sqrt(covariance[0, 0]), rtol=1e-8)


@pytest.mark.parametrize("broken", [np.nan, np.inf, 0.0, -1.0])
def test_an_order_is_of_positive_finite_numbers(broken):
    numbers = [1.0, 2, 4, 8]
    for changed in (0, 1):
        arguments = [numbers, [1.0, 0.5, 0.25, 0.125]]
        arguments[changed] = [*arguments[changed][:3], broken]
        with pytest.raises(ValueError, match="errors: got .+ expected at least four positive"):
            fit_order(*arguments)


def test_the_constant_of_attention_is_the_proofs_by_loops():
    """Two heads without norms or biases, whose states and slopes are known."""
    query, key, value = (random_states(seed, 2, 3, 4) for seed in range(3))
    output = random_states(3, 2, 4, 3)
    attention = lim.CausalAttention(eqx.nn.Identity(), query, key, value, output)
    heads = list(zip(*map(np.asarray, (query, key, value, output)), strict=True))
    rates = np.array([1.0, 2.0, 0.5, 3.0])
    points = 13

    def states(p):
        return jnp.sin(jnp.asarray(rates)[None, :] * p[:, None])

    p = np.linspace(0, 1, points)[:, None]
    x = np.sin(rates * p)
    slope = rates * np.cos(rates * p)
    largest = 0
    for i in range(points):
        total = 0
        for w_query, w_key, w_value, w_out in heads:
            q = w_query @ x[i] / np.sqrt(3)
            sizes = []
            for j in range(i + 1):
                v = w_out @ w_value @ x[j]
                dv = w_out @ w_value @ slope[j]
                mass = np.exp(q @ w_key @ x[j])
                dmass = mass * (q @ w_key @ slope[j])
                ends = np.linalg.norm(dmass * v + mass * dv), np.linalg.norm(v), abs(dmass), mass
                sizes.append(ends)
            product, features, steepest, _ = np.max(sizes, axis=0)
            total += (product + features * steepest) / (2 * np.min(sizes, axis=0)[3])
        largest = max(largest, total)
    constant = attention_constant(attention, states, points)
    np.testing.assert_allclose(constant, largest, rtol=1e-10)


def test_errors_in_depth_are_the_largest_of_all_times_also_between_layers():
    """The flow is at 0, 6, 0, 0, 0 at its five times, the layers at 1, 3 and 2 at three of them."""
    grid = lim.graded_grid(2)
    direction = np.array([[1.0], [2.0]])
    size = np.sqrt(np.asarray(grid.weights) @ [1, 4])
    flow, layers = (np.array(at)[:, None, None] * direction for at in ([0, 6, 0, 0, 0], [1, 3, 2]))
    times = np.linspace(0, 2, 5)
    limit = depth._DepthLimit(lambda time: None, unit_profile, grid, times, flow, 0.0)
    np.testing.assert_allclose(limit.error_on_layers(layers), 3 * size, rtol=1e-12)
    np.testing.assert_allclose(limit.error_between_layers(layers), 5 * size, rtol=1e-12)


def test_the_table_of_rates_marks_bounds_that_break_and_references_that_are_coarse():
    sizes = (4.0, 8.0, 16.0, 32.0)
    errors = (1.0, 0.5, 0.25, 0.125)
    kept = (2.0, 1.0, 0.5, 0.25)
    broken = (2.0, 0.25, 0.5, 0.25)

    def words(bounds, reference, expected):
        study = Study("eq:mine", 1.0, sizes, errors, bounds, reference)
        line = rates_table([Row("mine", study, expected)]).splitlines()[1]
        return line.split()

    assert words(kept, 0.0, 1.0)[1:7] == ["1.00", "1.00", "1.00", "±", "0.00", "holds"]
    assert words(kept, 0.0124, 1.0)[7:] == ["4", "1.2e-02"]
    assert words(broken, 0.0124, 1.0)[6:] == ["BROKEN", "4", "1.2e-02", "DIFFERS"]
    assert words(None, 0.0126, 1.0)[6:] == ["–", "4", "1.3e-02", "COARSE", "REFERENCE"]
