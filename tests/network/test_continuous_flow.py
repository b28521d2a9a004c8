"""The continuous depth flow, its controls, its status, and its adjoint equation."""

import dataclasses

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.light import light_layers
from reference.networks import random_flow, random_labels, random_states
from scipy.linalg import expm

import lim_jax as lim
from lim_jax.adjoint.adjoint_equation import continuous_adjoint
from lim_jax.grid.panels import gauss_grid
from lim_jax.limits.fields import smooth_states
from lim_jax.network.continuous_flow import ContinuousFlow
from lim_jax.network.controls import LayerwiseControl, control_distance, linear_control
from lim_jax.network.steps import heun

GRID = lim.token_grid(12)
TIGHT = diffrax.PIDController(rtol=1e-10, atol=1e-10)


def rising_profile(time):
    return 1 + time


jitted_adjoint = eqx.filter_jit(continuous_adjoint)


def integral_on(grid):
    return lambda x, y: lim.integral(x, grid).sum()


class Constant(eqx.Module):
    """The field that moves every token alike."""

    weight: jax.Array

    def __call__(self, x, context, grid):
        return jnp.zeros_like(x) + self.weight


def averaging():
    """Causal averaging as an attention layer: zero queries, one value matrix."""
    value = np.asarray(random_states(1, 3, 3)) / 2
    matrices = np.zeros((1, 1, 3)), np.zeros((1, 1, 3)), value[None], np.eye(3)[None]
    return lim.CausalAttention(eqx.nn.Identity(), *map(jax.device_put, matrices))


def halving(x, context, grid):
    """The field of the fewest operations, where nothing depends on it."""
    return -0.5 * x


def averaging_matrix(value):
    return np.kron(np.tri(12) / np.arange(1, 13)[:, None], np.asarray(value))


def tight_flow(control, **options):
    return ContinuousFlow(control, stepsize_controller=TIGHT, solver=diffrax.Dopri8(), **options)


def euler_flow(control, step, **options):
    """Euler's method, the cheapest to trace, where nothing depends on the solver."""
    constant = diffrax.ConstantStepSize()
    return ContinuousFlow(
        control, solver=diffrax.Euler(), stepsize_controller=constant, first_step=step, **options
    )


def test_a_linear_flow_is_a_matrix_exponential():
    # `eq:continuous-depth`.
    layer = averaging()
    flow = tight_flow(lambda time: layer, horizon=2.0, profile=rising_profile)
    x = random_states(2, 12, 3)
    # The integral of 1 + t over [0, 2] is 4, over [0, 1] it is 3/2.
    generator = averaging_matrix(layer.value[0])
    expected = [expm(size * generator) @ np.asarray(x).ravel() for size in (0, 1.5, 4)]
    times = jnp.array([0.0, 1.0, 2.0])
    trajectory, end = jax.jit(lambda x: (flow.trajectory(x, GRID, times), flow(x, GRID)))(x)
    np.testing.assert_array_equal(trajectory.times, times)
    # Between steps states come from the solver's dense output, which is of lower order.
    states = np.asarray(trajectory.states).reshape(3, -1)
    np.testing.assert_allclose(states, expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(np.ravel(end), expected[-1], rtol=1e-8, atol=1e-9)


def test_euler_by_diffrax_is_the_recursion():
    depth = 7
    layers = light_layers(depth).attention
    recursion = lim.ResidualFlow(layers, horizon=1.7, profile=rising_profile)
    flow = euler_flow(
        LayerwiseControl(layers, horizon=1.7),
        1.7 / depth,
        horizon=1.7,
        profile=rising_profile,
        max_steps=depth + 1,
    )
    states, expected = jax.jit(lambda x: (flow(x, GRID), recursion(x, GRID)))(random_states())
    np.testing.assert_allclose(states, expected, rtol=1e-12, atol=1e-13)


def test_layerwise_controls_jump_at_the_layers_ends():
    def weights(control, times):
        return jax.jit(jax.vmap(lambda time: control(time).weight))(jnp.asarray(times))

    control = LayerwiseControl(Constant(jnp.asarray(np.arange(5.0))), horizon=2.0)
    values = weights(control, [0.0, 0.39, 0.4, 0.8 - 1e-13, 1.99, 2.0])
    np.testing.assert_array_equal(values, [0, 0, 1, 2, 4, 4])
    single = LayerwiseControl(Constant(jnp.asarray(np.arange(96, dtype=np.float32))))
    steps = np.cumsum(np.full(95, 1 / 96, np.float32))
    np.testing.assert_array_equal(weights(single, steps), np.arange(1, 96))


def test_interpolated_controls_by_their_knots_and_between():
    knots = Constant(random_states(0, 5, 2))
    times = jnp.array([0.0, 0.5, 1.0, 1.5, 2.0, 0.75])

    @jax.jit
    def weights(knots):
        control = linear_control(knots, 2.0)
        return jax.vmap(lambda time: control(time).weight)(times)

    values = np.asarray(knots.weight)
    expected = [*values, (values[1] + values[2]) / 2]
    np.testing.assert_allclose(weights(knots), expected, rtol=1e-12)


def test_controls_of_another_horizon_are_refused(as_users_run):
    """By the value they have at a flow's end: X' = 1 of one layer, and of a line from 0 to 2."""
    layers = Constant(jnp.ones((1, 1, 1)))
    line = Constant(jnp.array([[[0.0]], [[2.0]]]))
    x, grid = jnp.zeros((1, 1)), lim.token_grid(1)
    for horizon in (1.0, 2.0):
        for control in (LayerwiseControl(layers, horizon), linear_control(line, horizon)):
            end = ContinuousFlow(control, horizon=horizon)(x, grid)
            np.testing.assert_allclose(end, [[horizon]], rtol=1e-6)
            with pytest.raises(ValueError, match=f"control: got a control of horizon {horizon}"):
                ContinuousFlow(control, horizon=3 - horizon)
    with pytest.raises(ValueError, match="horizon: got 0.0"):
        LayerwiseControl(layers, horizon=0.0)
    with pytest.raises(ValueError, match="fields: got 1, expected at least two to join"):
        linear_control(layers)


def test_the_distance_of_two_controls_in_closed_form():
    """A line sampled at its layers' starts; a jump and a slope; in the norm of all parameters."""
    # `eq:control-l1-convergence`.
    slope = np.array([3.0, -4.0])

    def line(time):
        return Constant(time * jnp.asarray(slope))

    @jax.jit
    def distances(shift):
        starts = jnp.asarray(2.0 * np.arange(7) / 7)
        layers = Constant(jnp.outer(starts, jnp.asarray(slope)))
        moved = Constant(layers.weight + shift[None])
        return control_distance(layers, line, 2.0), control_distance(moved, line, 2.0)

    # 5 times the mean of t - t_k over [0, 2]; then the shift is across the slope: a root.
    step = 2 / 7
    across = 0.3 * np.array([4.0, 3.0])
    measured_distances = distances(jnp.asarray(across))
    np.testing.assert_allclose(measured_distances[0], 2 * 5 * step / 2, rtol=1e-12)
    t = (np.arange(100_000) + 0.5) / 100_000 * step
    expected = 2 * np.mean(np.hypot(1.5, 5 * t))
    np.testing.assert_allclose(measured_distances[1], expected, rtol=1e-6)


def test_the_distance_of_a_control_to_itself_has_a_derivative():
    fields = Constant(random_states(0, 4, 2))

    def distance(shift):
        layers = Constant(fields.weight + shift)
        return control_distance(layers, LayerwiseControl(fields, 1.0))

    value, gradient = jax.jit(jax.value_and_grad(distance))(jnp.array(0.0))
    assert value == 0 and gradient == 0
    value, gradient = jax.jit(jax.value_and_grad(distance))(jnp.array(-0.5))
    np.testing.assert_allclose((value, gradient), (0.5 * 2**0.5, -(2**0.5)), rtol=1e-12)
    with pytest.raises(ValueError, match="horizon: got 0.0"):
        control_distance(fields, lambda time: fields, 0.0)


@pytest.mark.slow
def test_the_depth_flow_is_resolved_on_two_grids():
    """The continuum itself: 64 and 96 Gauss-Legendre nodes give the same flow, at equal steps."""
    # `eq:induced-transformer-field`.
    stacked = light_layers(depth=1, width=3)

    @jax.jit
    def ends(stacked):
        layer = jax.tree.map(lambda leaf: 0.6 * leaf[0], stacked)
        flow = euler_flow(lambda time: layer, 0.125)
        return [
            grid.interpolate(flow(smooth_states(grid.nodes), grid), gauss_grid(30).nodes)
            for grid in (gauss_grid(64), gauss_grid(96))
        ]

    np.testing.assert_allclose(*ends(stacked), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_a_solver_that_fails_says_so():
    x = random_states(2, 12, 3)
    flow = euler_flow(lambda time: halving, 0.25, max_steps=2)
    solution = flow.solve(x, GRID)
    assert not bool(diffrax.is_successful(solution.result))
    for call in (
        lambda: flow(x, GRID),
        lambda: eqx.filter_jit(flow.trajectory)(x, GRID, jnp.array([1.0])).states,
        lambda: (
            jitted_adjoint(flow, integral_on(GRID), (x, None), GRID, jnp.array([0.0])).covectors
        ),
        lambda: eqx.filter_jit(jax.grad(lambda x: jnp.sum(flow(x, GRID) ** 2)))(x),
    ):
        with pytest.raises(
            RuntimeError,
            match=r"flow: got no solution within \d+ steps, expected .+ Take more max_steps",
        ):
            jax.block_until_ready(call())


@pytest.mark.slow
def test_the_status_survives_jit_of_grad_as_auxiliary_output():
    flow = euler_flow(lambda time: halving, 0.25, max_steps=2)

    def loss(x):
        solution = flow.solve(x, GRID)
        assert solution.ys is not None
        return solution.ys[-1].sum(), (solution.result, solution.stats["num_steps"])

    _, (result, steps) = eqx.filter_jit(jax.grad(loss, has_aux=True))(random_states(2, 12, 3))
    assert not bool(diffrax.is_successful(result)) and int(steps) == 2


FIRST = {"grad": lambda f: jax.grad(f), "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[1]}
SECOND = {
    "jvp of grad": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1],
    "grad of grad": lambda f: jax.grad(lambda x: jnp.vdot(x, jax.grad(f)(x))),
    "grad of jvp": lambda f: jax.grad(lambda x: jax.jvp(f, (x,), (x,))[1]),
}
WORKS = {
    "RecursiveCheckpointAdjoint": {"grad"},
    "DirectAdjoint": {*FIRST, *SECOND},
    "ForwardMode": {"jvp"},
    "BacksolveAdjoint": {"grad"},
}


class Nonlinear(eqx.Module):
    rate: jax.Array

    def __call__(self, x, context, grid):
        return jnp.sin(self.rate * (x + lim.integral(context, grid)[None]))


CONSTANT_LAYERS = Nonlinear(jnp.asarray(np.full(8, 0.5)))


def squared_end(flow):
    return jax.jit(lambda x: jnp.sum(flow(x, lim.token_grid(3)) ** 2))


@pytest.fixture(scope="module")
def derivatives_of_the_recursion():
    """Every nesting of Euler's recursion, in which diffrax has no part, and Heun's gradient."""
    loss, second = (
        squared_end(lim.ResidualFlow(CONSTANT_LAYERS, step=step)) for step in (lim.euler, heun)
    )

    def compute(x):
        nestings = {name: transform(loss)(x) for name, transform in (FIRST | SECOND).items()}
        return nestings, {"grad": jax.grad(second)(x)}

    return eqx.filter_jit(compute)(random_states(0, 3, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_which_adjoint_allows_which_nesting(name, derivatives_of_the_recursion):
    """The table in the docstring of ContinuousFlow, with the cases that raise.

    By Euler's method, the cheapest to trace, where it neither allows more than others do nor is
    too inexact.
    """
    backwards = name == "BacksolveAdjoint"
    second = backwards or name == "RecursiveCheckpointAdjoint"
    loss = squared_end(
        ContinuousFlow(
            LayerwiseControl(CONSTANT_LAYERS),
            adjoint=getattr(diffrax, name)(),
            max_steps=16,
            solver=diffrax.Heun() if second else diffrax.Euler(),
            stepsize_controller=diffrax.ConstantStepSize(),
            first_step=0.125,
        )
    )
    x = random_states(0, 3, 2)
    tolerance = 1e-3 if backwards else 1e-10
    transformed = {nesting: transform(loss) for nesting, transform in (FIRST | SECOND).items()}
    works = jax.jit(lambda x: {nesting: transformed[nesting](x) for nesting in WORKS[name]})(x)
    for nesting, outcome in works.items():
        expected = derivatives_of_the_recursion[second][nesting]
        np.testing.assert_allclose(outcome, expected, rtol=tolerance, err_msg=nesting)
    for nesting in transformed.keys() - works.keys():
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            jax.jit(transformed[nesting])(x)


def test_the_wrong_adjoint_is_refused(as_users_run):
    with pytest.raises(ValueError, match="ImplicitAdjoint.*DirectAdjoint"):
        ContinuousFlow(lambda time: averaging(), adjoint=diffrax.ImplicitAdjoint())
    with pytest.raises(ValueError, match="horizon: got 0.0"):
        ContinuousFlow(lambda time: averaging(), horizon=0.0)
    with pytest.raises(ValueError, match="horizon: got -1.0"):
        linear_control(Constant(jnp.ones((2, 1))), horizon=-1.0)


def test_a_continuous_flow_keeps_its_precision():
    layer = averaging()
    x = random_states(2, 12, 3)

    @jax.jit
    def end(layer, start):
        return ContinuousFlow(lambda time: layer)(start, lim.token_grid(12, dtype=jnp.float32))

    state = end(*jax.tree.map(lambda leaf: jax.device_put(np.float32(leaf)), (layer, x)))
    assert state.dtype == jnp.float32
    expected = expm(averaging_matrix(layer.value[0])) @ np.ravel(x)
    np.testing.assert_allclose(np.ravel(state), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_adjoint_equation_agrees_with_differentiating_the_solve():
    """On panels, whose weights are dense and unequal; on tokens there are closed forms below.

    Along one direction forward through the solve: its reverse compiles in three times the time.
    """
    # `eq:adjoint`, `eq:continuous-adjoint-duhamel`.
    grid = gauss_grid(12)
    layers = random_flow(depth=3).layers
    flow = ContinuousFlow(
        linear_control(layers, horizon=1.5),
        horizon=1.5,
        profile=rising_profile,
        solver=diffrax.Dopri8(),
        stepsize_controller=diffrax.ConstantStepSize(),
        first_step=1.5 / 12,
    )
    forward = dataclasses.replace(flow, adjoint=diffrax.ForwardMode())
    weight = random_states(4, 6, 5)

    def terminal_loss(x, y):
        return lim.cross_entropy(x @ weight, y, grid)

    @jax.jit
    def both(x, move):
        y = random_labels()
        times = jnp.array([0.0, 0.7, 1.5])
        adjoint = continuous_adjoint(flow, terminal_loss, (x, y), grid, times)
        return adjoint, jax.jvp(lambda x: terminal_loss(forward(x, grid), y), (x,), (move,))

    move = np.asarray(random_states(9))
    adjoint, (loss, slope) = jax.tree.map(np.asarray, both(random_states(), move))
    np.testing.assert_allclose(adjoint.loss, loss, rtol=1e-9)
    pairs = adjoint.covectors[0] * move * np.asarray(grid.weights)[:, None]
    np.testing.assert_allclose(pairs.sum(), slope, rtol=0, atol=1e-7 * np.abs(pairs).max())
    scale = np.abs(adjoint.covectors[0]).max()
    np.testing.assert_allclose(adjoint.covectors[-1], adjoint.residual, rtol=1e-12)
    channels = adjoint.residual + adjoint.cone + adjoint.local
    np.testing.assert_allclose(adjoint.covectors[0], channels, rtol=0, atol=1e-12 * scale)


def test_the_adjoint_runs_backward_with_a_constant_step():
    """Euler in 20 steps of x' = zeta x^2/2: the product of 1 + zeta x / 20 from the end on."""
    # `eq:adjoint`, `eq:continuous-adjoint-duhamel`.
    field = lambda x, context, grid: x**2 / 2  # noqa: E731
    flow = euler_flow(lambda time: field, 0.05, profile=rising_profile)
    x = jnp.asarray(np.ones((12, 1)))
    times = jnp.array([0.0, 1.0])
    grid = lim.graded_grid(12)
    trajectory = jitted_adjoint(flow, integral_on(grid), (x, None), grid, times)
    states = [1.0]
    for k in range(20):
        states.append(states[k] + (1 + k / 20) / 20 * states[k] ** 2 / 2)
    growth = np.prod([1 + (1 + k / 20) / 20 * states[k] for k in range(20, 0, -1)])
    np.testing.assert_allclose(trajectory.covectors[0], growth, rtol=1e-12)
    np.testing.assert_allclose(trajectory.covectors[1], 1, rtol=1e-12)
    np.testing.assert_allclose(trajectory.local, growth - 1, rtol=1e-12)
    assert not np.any(trajectory.cone)  # of a field of each token alone


@pytest.mark.slow
def test_an_adjoint_that_is_not_solved_says_so():
    """Nothing moves at x = 0, so the forward solve is easy; the adjoint grows like exp(300)."""
    flow = ContinuousFlow(
        lambda time: lambda x, context, grid: jnp.sin(300 * x),
        stepsize_controller=TIGHT,
        solver=diffrax.Heun(),
        max_steps=16,
    )
    x = jnp.asarray(np.zeros((12, 1)))
    times = jnp.array([0.0])
    assert not np.any(jax.jit(flow)(x, GRID))
    with pytest.raises(
        RuntimeError,
        match=r"flow: got no solution within \d+ steps, expected .+ Take more max_steps",
    ):
        trajectory = jitted_adjoint(flow, integral_on(GRID), (x, None), GRID, times)
        jax.block_until_ready(trajectory.covectors)


@pytest.mark.slow
def test_the_adjoint_of_averaging_is_the_transposed_exponential():
    """And the cone channel is what it adds to the terminal covector: there is no local one."""
    # `eq:adjoint`, `eq:continuous-adjoint-duhamel`, `eq:depth-integrated-cone-channel`.
    layer = averaging()
    flow = tight_flow(lambda time: layer, horizon=2.0, profile=rising_profile)
    covector = random_states(3, 12, 3)
    adjoint = jitted_adjoint(
        flow,
        lambda x, y: lim.inner(y, x, GRID),
        (random_states(2, 12, 3), covector),
        GRID,
        jnp.array([0.0, 1.0]),
    )
    generator = averaging_matrix(layer.value[0])
    # The integrals of 1 + t over [0, 2] and [1, 2].
    for covectors, remaining in zip(adjoint.covectors, (4.0, 2.5), strict=True):
        expected = expm(remaining * generator).T @ np.asarray(covector).ravel()
        np.testing.assert_allclose(np.ravel(covectors), expected, rtol=1e-7, atol=1e-8)
    added = (expm(4.0 * generator).T - np.eye(36)) @ np.asarray(covector).ravel()
    np.testing.assert_allclose(np.ravel(adjoint.cone), added, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(adjoint.residual, covector, rtol=1e-12)
    assert not np.any(adjoint.local)
