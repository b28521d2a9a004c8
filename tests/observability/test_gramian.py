"""Observability Gramians, their probes, and the penalty on their traces."""

import dataclasses
import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.differences import difference_by_calls
from reference.light import light_flow
from reference.networks import random_flow, random_states

import lim_jax as lim
from lim_jax import probes
from lim_jax.network.steps import heun
from lim_jax.observability import gramian
from lim_jax.observability.gramian import (
    ObservedTokens,
    condition_numbers,
    gramian_traces,
    observability_gramians,
)
from lim_jax.observability.trace_estimates import (
    gaussian_probe_moments,
    layer_injected_traces,
    probed_observability,
    probed_traces,
)
from lim_jax.training.discrepancy import influence_discrepancy
from lim_jax.training.gramian_penalties import sampled_trace_penalty, trace_penalty
from lim_jax.training.reweighting import reweight_positions

GRID = lim.graded_grid(5)
FLOW = light_flow(depth=3, width=4, horizon=1.5)
X = random_states(0, 5, 4)


def observations(x):
    """Two combinations of the last token's features, at layers 0, 1, 2."""
    return FLOW.trajectory(x, GRID).states[:-1, -1] @ random_states(1, 4, 2)


@jax.jit
@jax.vmap
def tangents(direction):
    return jax.jvp(observations, (X,), (direction,))[1]


@jax.jit
def gramians_of_observations(x):
    return observability_gramians(observations, x, 0.5)


def attentive(flow):
    """The attention of every layer alone: half the program where routes are compared."""
    return dataclasses.replace(flow, layers=flow.layers.attention)


def random_gramians(seed=2, length=5, width=3):
    factors = np.asarray(random_states(seed, length, width, width))
    return jax.device_put(factors @ factors.transpose(0, 2, 1))


def test_gramians_by_position_injections():
    """`eq:finite-token-observability-gramian` by forward tangents, one basis vector at a time."""
    seen = np.asarray(tangents(np.eye(20).reshape(20, 5, 4))).reshape(5, 4, -1)
    expected = np.zeros((5, 4, 4))
    for i in range(5):
        for a in range(4):
            for b in range(4):
                expected[i, a, b] = 0.5 * np.sum(seen[i, a] * seen[i, b])
    gramians = gramians_of_observations(X)
    np.testing.assert_allclose(gramians, expected, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(
        gramian_traces(gramians), expected.trace(axis1=1, axis2=2), rtol=1e-11
    )


def test_probes_are_propagated_injections():
    """`eq:discrete-observability-trace-estimator` by tangents of the flow itself."""
    # `eq:finite-token-observability-quadratic-form`.
    probes = random_states(3, 4, 4)
    traces = np.asarray(probed_traces(gramians_of_observations(X), probes))
    # Every probe at every position, a tangent for each: as many as the basis has.
    injected = np.einsum("ip,ra->irpa", np.eye(5), probes).reshape(20, 5, 4)
    seen = np.asarray(tangents(injected)).reshape(5, 4, -1)
    np.testing.assert_allclose(traces, 0.5 * (seen**2).sum(axis=2).mean(axis=1), rtol=1e-11)
    # `eq:observability-trace-unbiasedness`: all signs, equally likely.
    signs = jax.device_put(np.array(list(itertools.product((-1.0, 1.0), repeat=4))))
    gramians = np.asarray(gramians_of_observations(X))
    np.testing.assert_allclose(
        probed_traces(jax.device_put(gramians), signs), np.trace(gramians, axis1=1, axis2=2)
    )


def test_condition_numbers_are_quotients_of_eigenvalues():
    gramians = random_gramians()
    expected = [np.linalg.cond(gramian) for gramian in np.asarray(gramians)]
    jitted = jax.jit(condition_numbers)
    np.testing.assert_allclose(jitted(gramians), expected, rtol=1e-9)
    singular = jnp.asarray(np.diag([1.0, 0.0])[None])
    assert jitted(singular).tolist() == [jnp.inf]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_condition_numbers_of_singular_gramians_are_infinite_despite_rounding(dtype):
    """Of rank 3 in width 4; and not of a large condition that the precision resolves."""
    factors = np.asarray(random_states(4, 20, 4, 3), dtype)
    gramians = jax.device_put(factors @ factors.transpose(0, 2, 1))
    assert np.isinf(condition_numbers(gramians)).all()
    large = np.diag(np.geomspace(1, 1e5, 4)).astype(dtype)
    np.testing.assert_allclose(condition_numbers(jax.device_put(large[None])), 1e5, rtol=0.05)


def test_condition_numbers_do_not_see_a_factor_at_each_position():
    # `eq:simulation-condition-number-invariance`.
    gramians = random_gramians()
    factors = jnp.exp(random_states(5, len(gramians)))
    scaled = jax.jit(condition_numbers)(factors[:, None, None] * gramians)
    np.testing.assert_allclose(scaled, jax.jit(condition_numbers)(gramians), rtol=1e-9)

    def mean(gramians):
        return jnp.log(condition_numbers(gramians)).mean()

    change = np.asarray(random_states(6, *gramians.shape))
    change = jax.device_put(change + change.transpose(0, 2, 1))
    slope = jnp.vdot(jax.jit(jax.grad(mean))(gramians), change)
    moved = difference_by_calls(jax.jit(mean), gramians, change)
    np.testing.assert_allclose(slope, moved, rtol=1e-6)
    several = jax.jit(jax.vmap(condition_numbers))(jnp.stack([gramians, 2 * gramians]))
    np.testing.assert_allclose(several[1], several[0], rtol=1e-9)


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.float64])
def test_a_weight_of_layers_may_be_a_number_of_numpy(kind, as_users_run):
    """It weighs as Python's own number does."""

    def observations(x):
        return x.reshape(1, -1)

    gramians = observability_gramians(observations, jnp.ones((2, 1)), kind(2))
    np.testing.assert_array_equal(gramians, 2 * np.ones((2, 1, 1)))
    with jax.disable_jit():
        gramians = observability_gramians(observations, jnp.ones((2, 1)), kind(2))
    np.testing.assert_array_equal(gramians, 2 * np.ones((2, 1, 1)))


@pytest.mark.parametrize("make", [jnp.array, np.array])
def test_weights_of_layers_may_be_whole_numbers(make, as_users_run):
    """A layer that is left out and one that is not: such weights were refused, one 1 was not."""
    x = jnp.arange(1.0, 4.0)[:, None]

    def observations(x):
        return jnp.concatenate([x, 10 * x], axis=1).T

    gramians = observability_gramians(observations, x, make([1, 0]))
    np.testing.assert_array_equal(gramians.ravel(), [1, 1, 1])
    gramians = observability_gramians(observations, x, make([0, 2]))
    np.testing.assert_array_equal(gramians.ravel(), [200, 200, 200])
    np.testing.assert_array_equal(gramian.layer_steps(make([1, 0]), jnp.ones((2, 1))), [1, 0])
    with pytest.raises(ValueError, match=r"Pass a number, or jnp\.array of one float for each"):
        observability_gramians(observations, x, [1.0, 0.0])  # pyright: ignore
    with pytest.raises(RuntimeError, match="step: got a number below zero"):
        observability_gramians(observations, x, make([1, -1]))


def test_positions_may_be_of_integers_that_end_before_the_context_does():
    """128 and more are no numbers of int8, to which the last position was compared."""
    x = random_states(0, 200, 2)

    def see(x):
        return (x**2).reshape(1, -1)

    some = observability_gramians(see, x, 0.5, positions=jnp.array([3, 100], jnp.int8))
    expected = 2 * np.asarray(x)[[3, 100]] ** 2  # 0.5 (2 x)^2 of each feature
    np.testing.assert_allclose(jax.vmap(jnp.diag)(some), expected, rtol=1e-12)


@pytest.mark.parametrize("method", ["forward", "reverse"])
def test_states_of_half_precision_may_be_observed_in_single_precision(method):
    x = jnp.ones((3, 2), jnp.bfloat16)
    with jax.numpy_dtype_promotion("standard"):
        gramians = observability_gramians(
            lambda x: 3 * x.astype(jnp.float32).reshape(1, -1), x, 0.5, method
        )
    expected = np.broadcast_to(4.5 * np.eye(2), (3, 2, 2))
    np.testing.assert_allclose(np.asarray(gramians, float), expected)


@pytest.mark.parametrize("method", ["forward", "reverse"])
def test_gramians_of_many_layers_in_half_precision_are_their_sums(method):
    """In bfloat16 256 + 1 is 256, and in float16 a square of 300 is infinite."""
    x = jnp.ones((3, 2), jnp.bfloat16)
    many = observability_gramians(lambda x: jnp.tile(x.reshape(1, -1), (640, 1)), x, 1.0, method)
    x = x.astype(jnp.float16)
    large = observability_gramians(lambda x: 300 * x.reshape(1, -1), x, 0.5, method)
    for gramians, trace in ((many, 640), (large, 0.5 * 300**2)):
        expected = np.broadcast_to(trace * np.eye(2), (3, 2, 2))
        rounding = float(jnp.finfo(gramians.dtype).eps)
        np.testing.assert_allclose(np.asarray(gramians, float), expected, rtol=rounding)
    assert (many.dtype, large.dtype) == (jnp.bfloat16, jnp.float16)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_condition_numbers_of_half_precision_know_its_rounding(dtype):
    small = float(jnp.finfo(dtype).eps)  # to the largest, one, no more than a rounding
    diagonals = jnp.array([[1, 0.25], [1, small]], dtype)
    assert diagonals[1, 1] > 0
    numbers = condition_numbers(jax.vmap(jnp.diag)(diagonals))
    np.testing.assert_allclose(np.asarray(numbers, float), [4, np.inf])


def test_the_deviation_of_equal_gramians_is_zero_and_so_is_its_derivative():
    equal = jnp.ones((2, 3, 3))
    moments = jax.jit(lambda gramians: gaussian_probe_moments(gramians, lim.token_grid(2), 1))
    slope = jax.jit(jax.grad(lambda gramians: moments(gramians).deviation))(equal)
    assert moments(equal).deviation == 0
    np.testing.assert_array_equal(slope, 0)


@pytest.mark.parametrize("probes", [1, 3])
def test_exact_probe_moments_against_a_simulation(probes):
    # `eq:algorithm3-penalty-estimator-bias`.
    grid = lim.graded_grid(5)
    gramians = random_gramians()
    draws = np.random.default_rng(0).standard_normal((400_000, probes, 3))
    traces = np.einsum("nra,iab,nrb->ni", draws, np.asarray(gramians), draws) / probes
    weights = np.asarray(grid.weights)
    centred = traces - (traces @ weights)[:, None] / weights.sum()
    penalties = (centred**2) @ weights
    moments, true = jax.jit(
        lambda gramians: (
            gaussian_probe_moments(gramians, grid, probes),
            trace_penalty(gramian_traces(gramians), grid),
        )
    )(gramians)
    error = penalties.std() / np.sqrt(len(penalties))
    assert abs(penalties.mean() - float(true) - float(moments.bias)) < 4 * error
    spread = penalties.var()
    fourth = np.mean((penalties - penalties.mean()) ** 4)
    error = np.sqrt((fourth - spread**2) / len(penalties))
    assert abs(spread - float(moments.deviation) ** 2) < 4 * error


def test_the_bias_is_that_of_the_matrix_penalty():
    """tr(Q Sigma) = (2/N) Omega_obs for common Gaussian probes."""
    gramians = random_gramians()
    grid = lim.graded_grid(5)
    weights = np.asarray(grid.weights)
    centred = np.asarray(gramians) - np.tensordot(weights, gramians, axes=1) / weights.sum()
    expected = 2 / 7 * weights @ (centred**2).sum(axis=(1, 2))
    moments = gaussian_probe_moments(gramians, grid, 7)
    np.testing.assert_allclose(moments.bias, expected, rtol=1e-12)


def test_the_deviation_of_many_probes_is_that_of_a_linear_form():
    """As N grows the penalty is linear in the estimate: variance 4 g'Q Sigma Q g."""
    gramians = random_gramians()
    probes = 10**8
    grid = lim.graded_grid(5)
    weights = np.asarray(grid.weights)
    centre = np.eye(5) - weights[None, :] / weights.sum()
    centring = centre.T @ np.diag(weights) @ centre
    covariance = 2 / probes * np.einsum("iab,jba->ij", gramians, gramians)
    pushed = centring @ np.asarray(gramian_traces(gramians))
    expected = 2 * np.sqrt(pushed @ covariance @ pushed)
    deviation = gaussian_probe_moments(gramians, grid, probes).deviation
    np.testing.assert_allclose(deviation, expected, rtol=1e-6)


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_probe_moments_in_float32_scale_with_the_squares_of_the_gramians(unit):
    """Where the fourth powers of entries leave float32; the penalty is y^2 - 1 of chi^2_1."""
    gramians = jnp.array([[[0.0]], [[2.0 * unit]]], jnp.float32)
    moments = gaussian_probe_moments(gramians, lim.token_grid(2, jnp.float32), 1)
    assert moments.deviation.dtype == jnp.float32
    np.testing.assert_allclose(np.array(moments) / unit**2, [2, np.sqrt(96)], rtol=1e-5)


def test_penalties_are_weighted_variances():
    # `eq:influence-discrepancy-functional`, `eq:true-trace-observability-penalty`.
    grid = lim.graded_grid(5)
    profile = random_states(4, 5)
    weights = np.asarray(grid.weights)
    target = jnp.arange(5.0)
    expected = 0.5 * np.sum(weights * (np.asarray(profile) - np.arange(5)) ** 2)
    np.testing.assert_allclose(influence_discrepancy(profile, target, grid), expected, rtol=1e-13)
    mean = np.sum(weights * np.asarray(profile)) / weights.sum()
    expected = np.sum(weights * (np.asarray(profile) - mean) ** 2)
    np.testing.assert_allclose(trace_penalty(profile, grid), expected, rtol=1e-13)


def test_reweighting_clips_and_then_renormalises():
    # `eq:mask-aware-weight-update`.
    weights, density, target = np.array(
        [[1, 1, 0.2, 6, 1], [1, 3, 9, -1, 0], [1, 1, 1, 1, 2]], float
    )
    raised = weights * np.exp(0.5 * (target - density))
    clipped = np.clip(raised, 0.15, 8.0)
    assert clipped[2] == 0.15 and clipped[3] == 8.0
    grid = lim.token_grid(5)
    before, measured, aim = map(jax.device_put, (weights, density, target))
    density_after = np.asarray(
        reweight_positions(before, measured, aim, grid, rate=0.5, smallest=0.15, largest=8.0)
    )
    np.testing.assert_allclose(density_after, clipped / clipped.mean(), rtol=1e-13)
    np.testing.assert_allclose(density_after.mean(), 1.0, rtol=1e-13)


def observed(flow, grid):
    """The last two tokens of every layer but the last."""
    return lambda x: flow.trajectory(x, grid).states[:-1, -2:].reshape(flow.depth, -1)


def setting():
    grid = lim.graded_grid(6)
    flow = light_flow(1, depth=3, width=4, step=lim.split)
    return observed(flow, grid), random_states(2, 6, 4), grid


SOME = np.array([4, 1])


@functools.cache
def settings_gramians():
    """Those of the setting at steps of 1/2 by every route, and at given ones: one program."""
    observations, x, _ = setting()
    gramians = functools.partial(observability_gramians, observations, x)
    some = jnp.asarray(SOME)

    @jax.jit
    def compute(steps):
        return {
            "forward": gramians(0.5, "forward"),
            "reverse": gramians(0.5, "reverse"),
            "weighted": gramians(steps),
            "some forward": gramians(0.5, "forward", positions=some),
            "some reverse": gramians(0.5, "reverse", positions=some),
        }

    return lambda steps: jax.tree.map(np.asarray, compute(np.array(steps)))


@pytest.fixture(scope="module")
def exact_gramians():
    """Those of the setting at step 1/2, which the first test here holds to differences."""
    return settings_gramians()([0.5, 0.5, 0.5])["forward"]


def test_forward_and_reverse_give_one_gramian():
    # `eq:finite-token-position-injection`, `eq:finite-token-position-jacobian`,
    # `eq:finite-token-observability-gramian`.
    observations, x, _ = setting()
    steps = np.array([0.5, 0.0, 1.0])
    directions = np.eye(24).reshape(24, 6, 4)
    gramians = settings_gramians()(steps)
    forward, reverse, weighted = (gramians[k] for k in ("forward", "reverse", "weighted"))
    slopes = difference_by_calls(
        jax.jit(jax.vmap(observations)), np.tile(x, (24, 1, 1)), directions
    )
    np.testing.assert_allclose(forward, reverse, rtol=1e-10, atol=1e-12)
    # By finite differences of the observations, position by position.
    jacobian = slopes.reshape(6, 4, -1)
    expected = 0.5 * np.einsum("iao,ibo->iab", jacobian, jacobian)
    np.testing.assert_allclose(forward, expected, rtol=1e-6, atol=1e-8)
    by_layer = jacobian.reshape(6, 4, 3, -1)
    expected = np.einsum("k,iako,ibko->iab", steps, by_layer, by_layer)
    np.testing.assert_allclose(weighted, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_a_bare_functions_gramians_are_given_at_the_positions_asked_for(exact_gramians, mode):
    gramians = settings_gramians()([0.5, 0.5, 0.5])[f"some {mode}"]
    np.testing.assert_allclose(gramians, exact_gramians[SOME], rtol=1e-10)


@pytest.mark.slow
def test_probes_estimate_traces_and_orthogonal_ones_give_them(exact_gramians):
    # `eq:observability-trace-unbiasedness`, `eq:discrete-observability-trace-estimator`.
    observations, x, _ = setting()
    steps = jax.device_put(np.array([0.5, 0.2, 1.0]))

    @jax.jit
    def compute(x):
        exact = 2 * jnp.linalg.qr(jax.random.normal(jax.random.key(0), (4, 4)))[0]
        own = jax.random.normal(jax.random.key(1), (4000, 2, 4))
        draws = probed_observability(observations, x, 0.5, own, jnp.asarray(SOME))
        weighted = probed_observability(observations, x, steps, exact).mean(axis=0)
        traces_of_probes = probed_observability(observations, x, 0.5, exact)
        return traces_of_probes, probes.sample_mean(draws), weighted

    traces_of_probes, sampled, weighted = jax.tree.map(np.asarray, compute(x))
    unequal = np.trace(settings_gramians()(steps)["weighted"], axis1=1, axis2=2)
    np.testing.assert_allclose(weighted, unequal, rtol=1e-10)
    traces = np.trace(exact_gramians, axis1=1, axis2=2)
    np.testing.assert_allclose(traces_of_probes.mean(axis=0), traces, rtol=1e-10)
    assert (np.abs(sampled.value - traces[SOME]) < 4 * sampled.error).all()


def test_noise_injected_at_every_layer_estimates_all_traces_at_once(exact_gramians):
    observations, x, _ = setting()
    unequal = jax.device_put(np.array([0.5, 0.05, 1.5]))

    @jax.jit
    def estimated(x):
        noise = jax.random.normal(jax.random.key(2), (4000, 3, 8))

        def estimate(steps):
            return probes.sample_mean(layer_injected_traces(observations, x, steps, noise))

        return estimate(0.5), estimate(unequal)

    even, uneven = jax.tree.map(np.asarray, estimated(x))
    gramians = settings_gramians()(unequal)["weighted"]
    for found, exact in ((even, exact_gramians), (uneven, gramians)):
        traces = np.trace(exact, axis1=1, axis2=2)
        assert (np.abs(found.value - traces) < 4 * found.error).all()


def test_the_crossfit_penalty_is_unbiased_and_the_squared_one_is_not(exact_gramians):
    """Over 10^4 draws of common Gaussian probes; the squared one's bias is (2/N) Omega_HS."""
    # `eq:algorithm3-crossfit-unbiased-penalty`, `eq:discrete-observability-penalty`,
    # `eq:gd-observability-penalty`, `rem:algorithm3-bias`.
    _, _, grid = setting()

    @jax.jit
    def estimated(gramians):
        def both(some):
            first, second = jax.vmap(lambda some: probed_traces(gramians, some))(some)
            crossed = lim.training.crossfit_penalty(first, second, grid)
            return crossed, lim.training.trace_penalty(first, grid)

        drawn = jax.random.normal(jax.random.key(3), (10_000, 2, 3, 4))
        crossed, squared = map(probes.sample_mean, jax.vmap(both)(drawn))
        exact = lim.training.trace_penalty(gramian_traces(gramians), grid)
        return crossed, squared, exact, lim.training.gramian_penalty(gramians, grid)

    crossed, squared, exact, matrix = jax.tree.map(np.asarray, estimated(exact_gramians))
    assert abs(crossed.value - exact) < 3 * crossed.error
    bias = 2 / 3 * matrix
    assert abs(squared.value - exact - bias) < 4 * squared.error
    assert bias > 10 * squared.error


def test_a_penalty_on_sampled_positions_is_their_weighted_scatter():
    """About their weighted mean, whatever weights sum to; of all tokens it is `trace_penalty`."""
    weights, traces = np.array([0.5, 0.2, 1.1]), np.array([1.0, 3.0, 7.0])
    mean = weights @ traces / weights.sum()
    sampled = sampled_trace_penalty(jax.device_put(traces), jax.device_put(weights))
    np.testing.assert_allclose(sampled, weights @ (traces - mean) ** 2, rtol=1e-13)
    grid = lim.token_grid(6)
    everywhere = jnp.array([1.0, 3.0, 2.0, 7.0, 5.0, 4.0])
    whole = sampled_trace_penalty(everywhere, grid.weights)
    np.testing.assert_allclose(whole, lim.training.trace_penalty(everywhere, grid), rtol=1e-12)


@pytest.mark.slow
def test_gramians_of_normalised_networks_are_blind_to_a_shift():
    """A shift of a token reaches no other: J_{k,i} **1** = E_i **1**, and i alone may see it."""
    # `eq:finite-token-observability-gramian`.
    flow = random_flow(1, depth=3, width=4)
    norm = lim.LayerNorm.init(4, 0.1)
    grid = lim.token_grid(6)

    def selected(x):
        return flow.trajectory(x, grid).states[:-1, -1]

    def normalised(x):
        return jax.vmap(norm)(selected(x))

    @jax.jit
    def compute(x):
        of_states = observability_gramians(selected, x, 0.5)
        gramians = observability_gramians(normalised, x, 0.5)
        return of_states, condition_numbers(of_states), gramians

    of_states, whole, gramians = map(np.asarray, compute(random_states(2, 6, 4)))
    # Through a norm of the final token no shift is seen; by a selector, that of this token is.
    np.testing.assert_allclose(gramians.sum(axis=2), 0, atol=1e-12)
    np.testing.assert_allclose(of_states[:-1].sum(axis=2), 0, atol=1e-12)
    np.testing.assert_allclose(of_states[-1].sum(), 0.5 * 3 * 4, rtol=1e-12)
    assert (whole[:-1] > 1e12).all() and whole[-1] < 3


def test_the_cheaper_mode_is_taken():
    """One map knows its transpose only, the other cannot be transposed."""

    @jax.custom_vjp
    def reverse_only(x):
        return x

    reverse_only.defvjp(lambda x: (x, None), lambda _, g: (g,))

    def forward_only(x):
        return jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]

    x = random_states(0, 3, 2)
    few = observability_gramians(lambda x: reverse_only(x)[:1], x, 1.0)
    np.testing.assert_allclose(gramian_traces(few), [2, 0, 0])
    many = observability_gramians(lambda x: jnp.stack([forward_only(x).ravel()] * 2), x, 1.0)
    np.testing.assert_allclose(gramian_traces(many), [64, 64, 64])
    with pytest.raises(ValueError, match="derivative: got .*custom_vjp"):
        observability_gramians(reverse_only, x, 1.0, "forward")


@pytest.mark.slow
@pytest.mark.parametrize("step", [lim.split, heun])
def test_all_routes_give_the_gramians_of_the_dense_jacobian(step):
    grid = lim.graded_grid(6)
    x = random_states(2, 6, 4)
    flow = light_flow(1, depth=4, width=4, step=step)
    flow = flow if step is lim.split else attentive(flow)
    readout = lim.BandReadout(random_states(3, 4, 3), 0.5)
    see = ObservedTokens(flow, grid, jax.device_put(np.array([2, 5])), readout)
    steps = jax.device_put(np.array([0.5, 0.0, 1.0, 0.25]))
    some = jax.device_put(np.array([4, 0, 3]))

    def routes(x):
        def both(at=None):
            return [
                observability_gramians(see, x, steps, "forward", positions=at),
                observability_gramians(see, x, steps, "reverse", positions=at),
            ]

        return jax.jacfwd(see)(x), both(), both(some) if step is lim.split else []

    jacobian, by_route, at_some = jax.tree.map(np.asarray, jax.jit(routes)(x))
    expected = np.einsum("k,koia,koib->iab", steps, jacobian, jacobian)
    scale = np.abs(expected).max()
    for gramians in by_route:
        np.testing.assert_allclose(gramians, expected, rtol=0, atol=1e-10 * scale)
    for gramians in at_some:
        np.testing.assert_allclose(gramians, expected[np.asarray(some)], rtol=0, atol=1e-10 * scale)


def test_products_are_counted_as_the_cost_model_says():
    """S d M forward, r M (M-1)/2 back through known layers, K r M else."""
    # `subsec:algorithm-complexity`.
    see = ObservedTokens(light_flow(1, depth=4, width=4), lim.token_grid(6), jnp.array([5]))
    x = random_states(2, 6, 4)
    assert gramian.layer_products(see, x) == {"forward": 96, "reverse": 24}
    assert gramian.layer_products(see, x, jnp.array([1])) == {"forward": 16, "reverse": 24}
    assert gramian.layer_products(see, x, depth=4) == gramian.layer_products(see, x)
    assert gramian.layer_products(lambda x: see(x), x, depth=4) == {"forward": 96, "reverse": 64}
    with pytest.raises(ValueError, match=r"depth: got 2, expected 4, the .+\. Leave it out"):
        gramian.layer_products(see, x, depth=2)
    with pytest.raises(ValueError, match=r"depth: got None, .+ how many layers the obs"):
        gramian.layer_products(lambda x: see(x), x)


def test_observed_tokens_are_those_that_the_grid_has(as_users_run):
    for position, got in ((5, "a number above 4"), (-1, "a number below zero")):
        with pytest.raises(RuntimeError, match=f"positions: got {got}, expected numbers from 0"):
            ObservedTokens(FLOW, GRID, jnp.array([0, position]))
    for none in (jnp.zeros(0, int), jnp.array([0.0])):
        with pytest.raises(ValueError, match="positions: got .*, expected at least one whole num"):
            ObservedTokens(FLOW, GRID, none)


def test_a_readout_that_drops_rows_observes_no_other_position(as_users_run):
    """Else the first row stood for every token: forward mode found it, and reverse mode zeros."""
    see = ObservedTokens(FLOW, GRID, jnp.array([4]), lambda x, grid: 7 * x[:1])
    for mode in ("forward", "reverse"):
        with pytest.raises(ValueError, match=r"readout: got shape \(1, 4\), expected \(5,"):
            observability_gramians(see, X, 1.0, mode)


def test_a_traced_position_that_the_grid_has_not_is_no_last_one(as_users_run):
    """Else the last token was observed where position 9 of 5 was asked for."""

    @eqx.filter_jit
    def observed(positions):
        return ObservedTokens(FLOW, GRID, positions)(X)

    expected = FLOW.trajectory(X, GRID).states[:-1, 4]
    np.testing.assert_allclose(observed(jnp.array([4])), expected, rtol=1e-12)
    with pytest.raises(RuntimeError, match="positions: got a number above 4, expected numbers"):
        observed(jnp.array([9]))


def test_tokens_are_observed_of_a_flow_and_on_a_grid(as_users_run):
    """Else a length in the grid's place ended in an AttributeError, and no flow was accepted."""
    with pytest.raises(ValueError, match="grid: got 4, expected a Grid"):
        ObservedTokens(FLOW, 4, jnp.array([0]))  # pyright: ignore
    with pytest.raises(ValueError, match="flow: got None, expected an instance of ResidualFlow"):
        ObservedTokens(None, GRID, jnp.array([0]))  # pyright: ignore


@pytest.mark.slow
def test_gramians_by_reverse_are_differentiated():
    """A skipped layer of the sweep must not stop derivatives."""
    flow = attentive(light_flow(1, depth=3, width=4))
    seen = jnp.asarray(np.array([4]))
    see = ObservedTokens(flow, lim.token_grid(5), seen)

    @jax.jit
    @jax.value_and_grad
    def total(x):
        return gramian_traces(observability_gramians(see, x, 0.5, "reverse")).sum()

    x = random_states(2, 5, 4)
    direction = random_states(3, 5, 4)
    moved = difference_by_calls(lambda x: total(x)[0], x, direction)
    np.testing.assert_allclose(np.vdot(total(x)[1], direction), moved, rtol=1e-8)
