"""The continuous depth flow, its controls, its status, and its adjoint equation."""

import chex
import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import random_flow, random_labels, random_states
from scipy.linalg import expm

import lim_jax as lim
from lim_jax.adjoint.continuous import continuous_adjoint
from lim_jax.grid import gauss_grid
from lim_jax.network.continuous import (
    ContinuousFlow,
    LayerwiseControl,
    cubic_control,
    linear_control,
)

GRID = lim.token_grid(12)
TIGHT = diffrax.PIDController(rtol=1e-10, atol=1e-10)


def rising_profile(time):
    return 1 + time


class Constant(eqx.Module):
    """The field that moves every token alike."""

    weight: jax.Array

    def __call__(self, x, context, grid):
        return jnp.zeros_like(x) + self.weight


def averaging(value=None):
    """Causal averaging as an attention layer: zero queries, one value matrix."""
    zeros = jnp.zeros((1, 1, 3))
    value = random_states(1, 3, 3) / 2 if value is None else value
    return lim.CausalAttention(eqx.nn.Identity(), zeros, zeros, value[None], jnp.eye(3)[None])


def averaging_matrix(value):
    return np.kron(np.tri(12) / np.arange(1, 13)[:, None], np.asarray(value))


def tight_flow(control, **options):
    return ContinuousFlow(control, stepsize_controller=TIGHT, solver=diffrax.Dopri8(), **options)


def test_a_linear_flow_is_a_matrix_exponential():
    layer = averaging()
    flow = tight_flow(lambda time: layer, horizon=2.0, profile=rising_profile)
    x = random_states(2, 12, 3)
    # The integral of 1 + t over [0, 2] is 4, over [0, 1] it is 3/2.
    generator = averaging_matrix(layer.value[0])
    expected = [expm(size * generator) @ np.asarray(x).ravel() for size in (0, 1.5, 4)]
    times, states = flow.trajectory(x, GRID, jnp.array([0.0, 1.0, 2.0]))
    # Between steps states come from the solver's dense output, which is of lower order.
    np.testing.assert_allclose(states.reshape(3, -1), expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(flow(x, GRID).ravel(), expected[-1], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("depth", [7, 12])
def test_euler_by_diffrax_is_the_recursion(depth):
    layers = random_flow(depth=depth).layers
    recursion = lim.ResidualFlow(layers, horizon=1.7, profile=rising_profile)
    flow = ContinuousFlow(
        LayerwiseControl(layers, horizon=1.7),
        horizon=1.7,
        profile=rising_profile,
        solver=diffrax.Euler(),
        stepsize_controller=diffrax.ConstantStepSize(),
        first_step=1.7 / depth,
        max_steps=depth + 1,
    )
    x = random_states()
    np.testing.assert_allclose(flow(x, GRID), recursion(x, GRID), rtol=1e-12, atol=1e-13)


def test_layerwise_controls_jump_at_the_layers_ends():
    control = LayerwiseControl(Constant(jnp.arange(5.0)), horizon=2.0)
    times = jnp.array([0.0, 0.39, 0.4, 0.8 - 1e-13, 1.99, 2.0])
    found = [float(control(time).weight) for time in times]
    assert found == [0, 0, 1, 2, 4, 4]
    single = LayerwiseControl(Constant(jnp.arange(96.0, dtype=jnp.float32)))
    steps = jnp.cumsum(jnp.full(95, 1 / 96, jnp.float32))
    np.testing.assert_array_equal(jax.vmap(lambda t: single(t).weight)(steps), np.arange(1, 96))


def test_interpolated_controls_by_their_knots_and_between():
    knots = Constant(random_states(0, 5, 2))
    linear, cubic = linear_control(knots, horizon=2.0), cubic_control(knots, horizon=2.0)
    for k in range(5):
        for control in (linear, cubic):
            np.testing.assert_allclose(
                control(jnp.array(0.5 * k)).weight, knots.weight[k], rtol=1e-12
            )
    middle = (knots.weight[1] + knots.weight[2]) / 2
    np.testing.assert_allclose(linear(jnp.array(0.75)).weight, middle, rtol=1e-12)
    # A cubic through backward differences reproduces a straight line.
    line = Constant(3 * jnp.linspace(0.0, 2.0, 5)[:, None])
    np.testing.assert_allclose(
        cubic_control(line, horizon=2.0)(jnp.array(1.1)).weight, [3.3], rtol=1e-12
    )
    assert float(jnp.abs(cubic(jnp.array(0.75)).weight - middle).max()) > 1e-3


def test_the_depth_flow_is_resolved_on_two_grids():
    """The continuum itself: 64 and 96 Gauss-Legendre nodes give the same flow."""
    layer = jax.tree.map(lambda leaf: 0.6 * leaf[0], random_flow(depth=1, width=3, heads=1).layers)
    flow = tight_flow(lambda time: layer)
    ends = []
    for order in (64, 96):
        grid = gauss_grid(order)
        p = grid.nodes
        x = jnp.stack([jnp.sin(3 * p) + 0.3, jnp.cos(5 * p), p**2 - 0.4 * jnp.sin(7 * p)], axis=1)
        ends.append(grid.interpolate(jax.jit(flow)(x, grid), gauss_grid(30).nodes))
    np.testing.assert_allclose(*ends, rtol=0, atol=1e-9)


def test_a_solver_that_fails_says_so():
    layer = averaging()
    flow = tight_flow(lambda time: layer, max_steps=2)
    x = random_states(2, 12, 3)
    solution = flow.solve(x, GRID)
    assert not bool(diffrax.is_successful(solution.result))
    for call in (
        lambda: flow(x, GRID),
        lambda: eqx.filter_jit(flow)(x, GRID),
        lambda: flow.trajectory(x, GRID, jnp.array([1.0])).states,
        lambda: continuous_adjoint(flow, jnp.sum, x, GRID, jnp.array([0.0])).covectors,
        lambda: eqx.filter_jit(jax.grad(lambda x: jnp.sum(flow(x, GRID) ** 2)))(x),
    ):
        with pytest.raises(RuntimeError, match="maximum number of solver steps"):
            jax.block_until_ready(call())


def test_the_status_survives_jit_of_grad_as_auxiliary_output():
    layer = averaging()
    flow = tight_flow(lambda time: layer, max_steps=2)

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


@pytest.mark.parametrize("name", WORKS)
def test_which_adjoint_allows_which_nesting(name):
    """The table in the docstring of ContinuousFlow, with the cases that raise."""
    adjoint = getattr(diffrax, name)()
    scale = jnp.full((), 0.5)

    class Nonlinear(eqx.Module):
        rate: jax.Array

        def __call__(self, x, context, grid):
            return jnp.sin(self.rate * (x + lim.integral(context, grid)[None]))

    def loss(x, adjoint=adjoint):
        flow = ContinuousFlow(
            LayerwiseControl(jax.tree.map(lambda leaf: leaf[None], Nonlinear(scale))),
            adjoint=adjoint,
            max_steps=16,
            stepsize_controller=diffrax.ConstantStepSize(),
            first_step=0.125,
        )
        return jnp.sum(flow(x, lim.token_grid(3)) ** 2)

    x = random_states(0, 3, 2)
    for nesting, transform in (FIRST | SECOND).items():
        transformed = jax.jit(transform(loss))
        if nesting in WORKS[name]:
            expected = transform(lambda x: loss(x, diffrax.DirectAdjoint()))(x)
            tolerance = 1e-3 if name == "BacksolveAdjoint" else 1e-10
            np.testing.assert_allclose(transformed(x), expected, rtol=tolerance, err_msg=nesting)
        else:
            with pytest.raises((TypeError, ValueError, RuntimeError)):
                transformed(x)


def test_the_wrong_adjoint_is_refused(as_users_run):
    with pytest.raises(ValueError, match="ImplicitAdjoint.*DirectAdjoint"):
        ContinuousFlow(lambda time: averaging(), adjoint=diffrax.ImplicitAdjoint())
    with pytest.raises(ValueError, match="horizon: got 0.0"):
        ContinuousFlow(lambda time: averaging(), horizon=0.0)
    with pytest.raises(ValueError, match="horizon: got -1.0"):
        linear_control(Constant(jnp.ones((2, 1))), horizon=-1.0)


def test_precision_is_kept():
    layer = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), averaging())
    grid = lim.token_grid(12, dtype=jnp.float32)
    found = ContinuousFlow(lambda time: layer)(random_states(2, 12, 3).astype(jnp.float32), grid)
    assert found.dtype == jnp.float32
    double = ContinuousFlow(lambda time: averaging())(random_states(2, 12, 3), GRID)
    np.testing.assert_allclose(found, double, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("grid", [GRID, gauss_grid(12)], ids=["tokens", "panels"])
def test_the_adjoint_equation_agrees_with_differentiating_the_solve(grid):
    layers = random_flow(depth=3).layers
    flow = tight_flow(linear_control(layers, horizon=1.5), horizon=1.5, profile=rising_profile)
    weight = random_states(4, 6, 5)

    def terminal_loss(x):
        return lim.cross_entropy(x @ weight, random_labels(), grid)

    @jax.jit
    def both(x):
        adjoint = continuous_adjoint(flow, terminal_loss, x, grid, jnp.array([0.0, 0.7, 1.5]))
        loss, gradient = jax.value_and_grad(lambda x: terminal_loss(flow(x, grid)))(x)
        return adjoint, loss, gradient / grid.weights[:, None]

    adjoint, loss, density = both(random_states())
    chex.assert_trees_all_close(adjoint.loss, loss, rtol=1e-9)
    scale = float(jnp.abs(density).max())
    np.testing.assert_allclose(adjoint.covectors[0], density, rtol=0, atol=1e-7 * scale)
    np.testing.assert_allclose(adjoint.covectors[-1], adjoint.residual, rtol=1e-12)
    channels = adjoint.residual + adjoint.cone + adjoint.local
    np.testing.assert_allclose(adjoint.covectors[0], channels, rtol=0, atol=1e-12 * scale)


def test_the_adjoint_runs_backward_with_a_constant_step():
    """Euler in 20 steps of the equation P' = a P: (1 + a/20)^20, in closed form."""
    flow = ContinuousFlow(
        lambda time: lambda x, context, grid: 0.5 * x,
        solver=diffrax.Euler(),
        stepsize_controller=diffrax.ConstantStepSize(),
        first_step=0.05,
    )
    found = continuous_adjoint(
        flow, lambda x: lim.integral(x, GRID).sum(), jnp.ones((12, 1)), GRID, jnp.array([0.0])
    )
    np.testing.assert_allclose(found.covectors, (1 + 0.5 / 20) ** 20, rtol=1e-12)


def test_an_adjoint_that_is_not_solved_says_so():
    """Nothing moves at x = 0, so the forward solve is easy; the adjoint grows like exp(300)."""
    flow = ContinuousFlow(
        lambda time: lambda x, context, grid: jnp.sin(300 * x),
        stepsize_controller=TIGHT,
        max_steps=16,
    )
    x, times = jnp.zeros((12, 1)), jnp.array([0.0])
    assert float(flow(x, GRID).sum()) == 0
    with pytest.raises(RuntimeError, match="maximum number of solver steps"):
        found = continuous_adjoint(flow, lambda x: lim.integral(x, GRID).sum(), x, GRID, times)
        jax.block_until_ready(found.covectors)


def test_the_channels_of_pure_sublayers():
    """Averaging has no local part, a tokenwise field no kernel."""
    grid, x = GRID, random_states(2, 12, 3)
    feed_forward = jax.tree.map(
        lambda leaf: leaf[0], random_flow(depth=1, width=3, heads=1).layers.feed_forward
    )
    for layer, silent in ((averaging(), "local"), (feed_forward, "cone")):
        flow = tight_flow(lambda time, layer=layer: layer)
        adjoint = continuous_adjoint(
            flow, lambda x: lim.integral(jnp.sin(x), grid).sum(), x, grid, jnp.array([0.0])
        )
        assert float(jnp.abs(getattr(adjoint, silent)).max()) == 0
        assert float(jnp.abs(adjoint.covectors[0] - adjoint.residual).max()) > 0.01


def test_the_adjoint_of_averaging_is_the_transposed_exponential():
    layer = averaging()
    flow = tight_flow(lambda time: layer, horizon=2.0)
    covector = random_states(3, 12, 3)
    adjoint = continuous_adjoint(
        flow,
        lambda x: lim.inner(covector, x, GRID),
        random_states(2, 12, 3),
        GRID,
        jnp.array([0.0, 1.0]),
    )
    generator = averaging_matrix(layer.value[0])
    for covectors, remaining in zip(adjoint.covectors, (2.0, 1.0), strict=True):
        expected = expm(remaining * generator).T @ np.asarray(covector).ravel()
        np.testing.assert_allclose(covectors.ravel(), expected, rtol=1e-8, atol=1e-9)
