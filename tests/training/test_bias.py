"""What the remedies do to a fitted parameter, and whether a stage answers as one hopes."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.differences import central_difference, fitted_order
from reference.networks import random_states

import lim_jax as lim
from lim_jax import paper
from lim_jax.loss import positionwise_cross_entropy
from lim_jax.observability.gramian import gramian_traces, observability_gramians
from lim_jax.paper.simulation import gate_influence
from lim_jax.training.density_objectives import (
    balanced_objective,
    influence_penalty,
    risk_and_penalty,
)
from lim_jax.training.gramian_penalties import trace_penalty

SIZE = 4
GRID = lim.token_grid(SIZE)
ROOT = np.asarray(random_states(0, SIZE, SIZE)) / 2
HESSIAN = jax.device_put(np.eye(SIZE) + ROOT @ ROOT.T)
MINIMUM = jax.device_put(np.array([0.3, -0.2, 0.1, 0.4]))
BATCH = jax.device_put(np.zeros((1, SIZE, 1))), None


def example_loss(params, x, y):
    """A quadratic with a known minimiser at x = 0, whose input adjoint is exp(params)."""
    gap = params - MINIMUM
    return gap @ HESSIAN @ gap / 2 + jnp.exp(params) @ x[:, 0]


def risk(params):
    return example_loss(params, BATCH[0][0], None)


def trace_of_gates(params):
    """The trace penalty of a flow whose input gates are the parameters."""

    def observations(x):
        return jnp.cumsum(jnp.exp(params)[:, None] * x, axis=0).reshape(1, -1)

    gramians = observability_gramians(observations, jnp.zeros((SIZE, 1)), 1.0)
    return trace_penalty(gramian_traces(gramians), GRID) / 100


def stationary(objective, start):
    """Newton's method, to rounding."""

    def newton(_, at):
        return at - jnp.linalg.solve(jax.hessian(objective)(at), jax.grad(objective)(at))

    return jax.lax.fori_loop(0, 8, newton, start)


PENALTIES = {
    "algorithm 1": lambda p: influence_penalty(example_loss, p, BATCH, GRID),
    "algorithm 3": lambda p: trace_of_gates(p) / 2,
}


@pytest.mark.parametrize("name", PENALTIES)
def test_the_minimiser_moves_as_the_expansion_says_to_second_order(name):
    # `eq:influence-regularization-bias-expansion`,
    # `eq:influence-regularization-parameter-shift-bound`, `eq:algorithm3-objective-bias-expansion`.
    penalty = PENALTIES[name]
    strengths = (0.02, 0.01, 0.005, 0.0025)

    @jax.jit
    def measured(beta):
        """How far the minimiser moves, how far from predicted, and the penalty's slope there."""
        found = stationary(lambda p: risk(p) + beta * penalty(p), MINIMUM)
        predicted = lim.training.parameter_shift(risk, penalty, MINIMUM, beta)
        sizes = found - MINIMUM, found - MINIMUM - predicted, jax.grad(penalty)(found)
        return jnp.stack([jnp.linalg.norm(size) for size in sizes])

    moved, errors, slopes = np.array([measured(beta) for beta in (*strengths, 0.0)]).T
    assert abs(fitted_order(1 / np.array(strengths), errors[:-1]) - 2) < 0.15
    assert abs(fitted_order(1 / np.array(strengths), moved[:-1]) - 1) < 0.15
    # The bound beta G / mu, with the largest slope on the way.
    curvature = np.linalg.eigvalsh(HESSIAN)[0]
    assert moved[0] <= float(lim.training.shift_bound(strengths[0], slopes.max(), curvature))
    # Of mu p^2 / 2 and G p it is what p moves by: 0.3 * 5 / 4.
    np.testing.assert_allclose(lim.training.shift_bound(0.3, 5.0, 4.0), 0.375, rtol=1e-14)
    with pytest.raises(RuntimeError, match="not strongly convex"):
        lim.training.shift_bound(0.1, 1.0, -0.5)


@pytest.mark.parametrize(
    "dtype, numbers, exact",
    [
        ("float16", (1e-4, 1e-4, 1e-4), 1e-4),
        ("float32", (1e-30, 1e-30, 1e-30), 1e-30),
    ],
)
def test_a_bound_of_the_shift_is_of_the_numbers_and_not_of_their_product(dtype, numbers, exact):
    """The product of the first two is zero in either precision."""
    # `eq:influence-regularization-parameter-shift-bound`.
    arrays = [jnp.asarray(number, dtype) for number in numbers]
    np.testing.assert_allclose(float(lim.training.shift_bound(*arrays)), exact, rtol=2e-3)


def test_a_point_that_is_no_minimum_of_the_risk_has_no_shift():
    """Where it is as steep as the penalty is strong, as it is at the penalised minimiser."""
    # `eq:influence-regularization-bias-expansion`.
    shift = lim.training.parameter_shift
    penalty = lambda p: jnp.sum((p - 1) ** 2)  # noqa: E731
    bowl = lambda p: 2 * jnp.sum(p**2)  # noqa: E731
    start = jnp.zeros(2)
    for strength in (0.1, -0.1):  # one below zero rewards what the penalty measures
        np.testing.assert_allclose(shift(bowl, penalty, start, strength), start + strength / 2)
        balanced = start + strength * 2 / (4 + strength * 2)
        for point in (balanced, start + 0.3):
            with pytest.raises(
                RuntimeError, match="params: got .*expected those at which the risk is least"
            ):
                shift(bowl, penalty, point, strength)
    # A penalty that is least there shifts nothing, whatever is left of the risk's slope.
    balanced = start + 0.3
    assert not np.any(shift(bowl, lambda p: jnp.sum((p - balanced) ** 2), balanced, 0.1))
    with pytest.raises(
        RuntimeError, match="risk: got a Hessian .*expected a positive definite one"
    ):
        shift(lambda p: -bowl(p), penalty, start, 0.1)


@pytest.mark.parametrize("count", [20, 2000])
def test_a_shift_is_as_exact_as_is_asked_for(count):
    """The norm of what is left of H s + beta g, relative to that of beta g."""
    curvatures = np.geomspace(1, 1000, count)
    strength = 0.1

    def left(**options):
        shift = lim.training.parameter_shift(
            lambda p: p @ (curvatures * p) / 2, jnp.sum, jnp.zeros(count), strength, **options
        )
        residual = curvatures * np.asarray(shift) / strength + 1
        return np.linalg.norm(residual) / np.sqrt(count)

    assert left() < 1e-9
    assert left(tolerance=1e-2) < 2e-2
    assert 1e-3 < left(tolerance=3e-2) < 6e-2


def test_a_shift_of_single_precision_is_found():
    """In closed form, where no residual is as small as the default tolerance."""
    curvatures = np.geomspace(1, 1000, 20, dtype=np.float32)
    start = jnp.zeros(20, jnp.float32)
    shift = lim.training.parameter_shift(
        lambda p: p @ (curvatures * p) / 2, jnp.sum, start, strength=0.1
    )
    assert shift.dtype == jnp.float32
    np.testing.assert_allclose(shift, -0.1 / curvatures, rtol=1e-3)


@pytest.mark.parametrize("slope", [1e-20, 1e-5, 1.0, 1e20])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_shift_is_found_at_every_scale_of_the_slope_and_the_risk(slope, dtype):
    """Unequal curvatures: were the solver's tolerance absolute, it would stop after one step."""
    curvatures = jnp.array([1.0, 100.0, 10.0, 3.0], jnp.float32)
    slopes = jnp.array([1.0, 2.0, 3.0, 4.0], jnp.float32)
    rounding = max(1e-4, 2 * float(jnp.finfo(dtype).eps))  # the solver's tolerance, or the answer's
    for scale in (1e-6, 1.0, 1e6):
        shift = lim.training.parameter_shift(
            lambda p, scale=scale: scale * jnp.sum(curvatures * p**2) / 2,
            lambda p, scale=scale: scale * slope * jnp.sum(slopes * (p - 1)),
            jnp.zeros(4, dtype),
            strength=0.5,
        )
        assert shift.dtype == dtype
        expected = np.array([-0.5, -0.01, -0.15, -2 / 3]) * slope
        np.testing.assert_allclose(np.asarray(shift, float), expected, rtol=rounding)


def test_parameters_without_entries_do_not_move():
    """A bias of a layer of no features is an array of none: it has no largest entry."""
    start = {"weight": jnp.zeros(()), "bias": jnp.zeros(0)}
    shift = lim.training.parameter_shift(
        lambda p: 2 * p["weight"] ** 2 + p["bias"].sum(),
        lambda p: (p["weight"] - 1) ** 2 + p["bias"].sum(),
        start,
        strength=0.1,
    )
    np.testing.assert_allclose(shift["weight"], 0.05, rtol=1e-12)  # 0.1 * 2 / 4
    assert shift["bias"].shape == (0,)


def test_the_bias_of_a_ratio_is_of_energies_in_two_examples_at_least():
    """Where one example alone has any, the batch without it has no density."""
    alone = jnp.zeros((3, SIZE)).at[1].set(1.0)
    for energies in (0 * alone, alone):
        with pytest.raises(
            RuntimeError, match="energies: got only one example with some above zero, expected two"
        ):
            lim.training.ratio_bias(energies, GRID)
    for bad in (np.nan, np.inf):
        with pytest.raises(RuntimeError, match="energies: got NaN or infinite values"):
            lim.training.ratio_bias(jnp.where(alone > 0, bad, 1.0), GRID)
    # With epsilon the densities without each are 1/3, 0, 1/3, and that of all is 1/4.
    bias = lim.training.ratio_bias(alone, GRID, epsilon=1.0)
    np.testing.assert_allclose(bias, np.full(SIZE, 2 * (2 / 9 - 1 / 4)), rtol=1e-12)


def test_bounds_of_a_shift_are_of_finite_numbers_and_tolerances_relative():
    # `eq:influence-regularization-parameter-shift-bound`.
    numbers = {"strength": 0.0, "slope": 1.0, "convexity": 1.0}
    for name, bad in itertools.product(("strength", "slope"), (np.nan, np.inf)):
        with pytest.raises(ValueError, match=f"{name}: got {bad}, expected a finite number"):
            lim.training.shift_bound(**numbers | {name: bad})
    for tolerance in (0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match="tolerance: got .*, expected a number above 0 and be"):
            lim.training.parameter_shift(risk, jnp.sum, MINIMUM, 0.1, tolerance)


def test_the_balanced_objective_is_risk_and_penalty():
    # `eq:gd-target-penalty`.
    @jax.jit
    def both(params):
        value = balanced_objective(example_loss, params, BATCH, GRID, strength=0.7)
        influence = lim.influence(example_loss, params, BATCH, GRID)
        density = influence.energy / (influence.total + 1e-8)
        return value, risk(params) + 0.7 * (GRID.weights @ (density - 1) ** 2 / 2)

    np.testing.assert_allclose(*both(MINIMUM + 0.1), rtol=1e-13)


def test_the_response_is_the_slope_of_lim():
    # `eq:influence-response-map`, `eq:lim-outer-loop-first-order-change`,
    # `eq:lim-response-alignment-condition`.
    regions = lim.boundary_regions(GRID, 0.25)
    mixing = jnp.exp(random_states(1, SIZE, SIZE) / 3)

    def stage(weights):
        energy = (mixing @ weights) ** 2
        return energy / lim.integral(energy, GRID)

    weights = jnp.array([1.5, 0.5, 1.2, 0.8])
    change = jnp.array([0.1, -0.2, 0.05, 0.05])

    def index(weights):
        return lim.indices(lim.regional_averages(stage(weights), regions)).lim

    @jax.jit
    def measured(weights):
        response = lim.training.response(stage, weights, change, regions)
        return response, index(weights), central_difference(index, weights, change)

    result, value, slope = jax.tree.map(np.asarray, measured(weights))
    np.testing.assert_allclose(result.lim, value, rtol=1e-13)
    np.testing.assert_allclose(result.change, slope, rtol=1e-7)
    np.testing.assert_allclose(
        result.alignment, -result.change / float(change @ change), rtol=1e-12
    )
    still = jax.jit(lambda: lim.training.response(stage, weights, 0 * change, regions))()
    assert (still.change, still.alignment) == (0, 0)


@pytest.mark.parametrize("size", [1e-24, 1e-10, 1e22])
def test_alignment_is_found_at_every_size_of_the_change(size):
    """LIM falls by half of the change, whose square leaves float32."""
    regions = lim.boundary_regions(lim.token_grid(4, jnp.float32), 0.25)
    weights = jnp.array([2.0, 0.5, 0.5, 1.0], jnp.float32)
    change = size * jnp.eye(4, dtype=jnp.float32)[1]
    answer = lim.training.response(lambda w: w, weights, change, regions)
    np.testing.assert_allclose(answer.change, -size / 2, rtol=1e-6)
    np.testing.assert_allclose(answer.alignment, 0.5 / size, rtol=1e-6)


@pytest.mark.slow
def test_alignment_agrees_with_what_section_4s_run_does():
    """At every update of 160 the predicted and the measured change of LIM have one sign."""
    regions = lim.boundary_regions(paper.simulation.GRID, paper.simulation.DELTA)

    def stage(weights):
        return gate_influence(jnp.zeros(paper.simulation.LENGTH), weights).density

    @jax.jit
    def update(weights):
        options = dict(rate=0.5, smallest=0.15, largest=8.0)
        after = lim.training.reweight_positions(
            weights, stage(weights), 1.0, paper.simulation.GRID, **options
        )
        response = lim.training.response(stage, weights, after - weights, regions)
        now = lim.training.response(stage, after, after - weights, regions).lim
        return after, response, now - response.lim

    weights = jnp.ones(paper.simulation.LENGTH)
    signs = []
    for _ in range(160):
        weights, result, measured = update(weights)
        signs.append((float(result.change), float(measured)))
    moving = [(a, b) for a, b in signs if abs(b) > 1e-10]
    assert len(moving) > 20
    assert all((a > 0) == (b > 0) for a, b in moving)


def test_importance_weights_turn_the_training_risk_into_the_deployed_one():
    # `eq:positional-importance-weight`.
    errors = jnp.array([1.0, 2.0, 3.0, 4.0])
    trained = jnp.array([2.0, 1.0, 0.5, 0.5])
    deployed = jnp.array([0.0, 1.0, 1.0, 2.0])
    weights = lim.training.importance_weights(deployed, trained, GRID)
    np.testing.assert_allclose(
        lim.integral(weights * trained * errors, GRID), lim.integral(deployed * errors, GRID)
    )
    with pytest.raises(RuntimeError, match="never seen"):
        lim.training.importance_weights(jnp.ones(4), jnp.array([0.0, 2.0, 1.0, 1.0]), GRID)


def test_a_moving_average_lessens_the_bias_of_the_ratio():
    """Over 8 steps of memory 7/8 the bias of one example's ratio falls to that of some 15."""
    generator = np.random.default_rng(2)
    profile = np.array([1.0, 2.0, 3.0, 4.0])
    energies = jnp.asarray(generator.gamma(0.5, size=(4000, 200, 1, SIZE)) * profile)
    run = functools.partial(risk_and_penalty, lambda p, x, y: jnp.vdot(p, x))

    def density_after(steps):
        def step(energy, gradients):
            weights = gradients * GRID.weights[:, None]
            batch = jnp.zeros((1, SIZE, 1)), None
            found = run(weights, batch, GRID, previous=energy, memory=7 / 8)[2]
            return found, None

        energy, _ = jax.lax.scan(step, jnp.asarray(profile), jnp.sqrt(steps)[:, 0, :, None])
        return energy / lim.integral(energy, GRID)

    averaged = np.asarray(jax.jit(jax.vmap(density_after))(energies)).mean(axis=0)
    single = np.asarray(energies[:, -1, 0])
    single = (single / single.mean(axis=1)[:, None]).mean(axis=0)
    bias = np.abs(averaged - profile / 2.5).max(), np.abs(single - profile / 2.5).max()
    assert 1 / 30 < bias[0] / bias[1] < 1 / 7


def test_weighted_risks_are_integrals_of_the_positionwise_risk():
    # `eq:positionwise-risk-density`, `eq:weighted-risk-change-of-measure`.
    logits = random_states(0, SIZE, 3)
    labels = jax.nn.softmax(random_states(1, SIZE, 3))
    weights = jnp.array([0.5, 1.5, 1.0, 1.0])
    losses = jax.jit(positionwise_cross_entropy)(logits, labels)
    expected = -np.sum(np.asarray(labels) * np.asarray(jax.nn.log_softmax(logits)), axis=1)
    np.testing.assert_allclose(losses, expected, rtol=1e-12)

    @jax.jit
    def weighted(weights):
        of_labels = lim.cross_entropy(logits, weights[:, None] * labels, GRID)
        return of_labels, lim.cross_entropy(logits, labels, GRID, weights)

    expected = np.full(2, np.mean(np.asarray(weights) * expected))
    np.testing.assert_allclose(weighted(weights), expected, rtol=1e-12)
