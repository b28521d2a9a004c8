"""The adjoint along depth: inner product, forward against reverse, autodiff, differences."""

import chex
import jax
import numpy as np
import pytest
from reference.dense import transposed
from reference.differences import central_difference
from reference.networks import (
    GRIDS,
    SCHEMES,
    VOCABULARY,
    WIDTH,
    falling_profile,
    random_flow,
    random_labels,
    random_states,
)

import lim_jax as lim

READOUT = lim.BandReadout(random_states(4, WIDTH, VOCABULARY), 0.4)
LABELS = random_labels()


def setting(scheme, kind):
    grid = GRIDS[kind](12)
    flow = random_flow(depth=3, step=SCHEMES[scheme], horizon=1.5)

    def terminal_loss(x, y):
        return lim.cross_entropy(READOUT(x, grid), y, grid)

    return flow, terminal_loss, grid


@pytest.mark.parametrize("kind, scheme", [("graded", "split"), ("tokens", "euler")])
def test_the_adjoint_pairs_with_the_tangent_at_every_depth(kind, scheme):
    # `eq:first-variation`.
    flow, terminal_loss, grid = setting(scheme, kind)

    @jax.jit
    def measured(x, tangent):
        def states_and_loss(x):
            states = flow.trajectory(x, grid).states
            return states, terminal_loss(states[-1], LABELS)

        adjoint = lim.adjoint_trajectory(flow, terminal_loss, (x, LABELS), grid)
        tangents, forward = jax.jvp(states_and_loss, (x,), (tangent,))[1]
        pairings = jax.vmap(lambda p, u: lim.inner(p, u, grid))(adjoint.covectors, tangents)
        loss = lambda x: terminal_loss(flow(x, grid), LABELS)  # noqa: E731
        return pairings, forward, central_difference(loss, x, tangent)

    pairings, forward, difference = measured(random_states(1), random_states(2))
    np.testing.assert_allclose(pairings, forward, rtol=1e-11)
    np.testing.assert_allclose(pairings, difference, rtol=1e-8)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_adjoint_is_the_gradient_over_the_weights(scheme):
    # `eq:single-example-loss`.
    flow, terminal_loss, grid = setting(scheme, "graded")

    @jax.jit
    def measured(x):
        def loss_and_states(x):
            states = flow.trajectory(x, grid).states
            return terminal_loss(states[-1], LABELS), states

        adjoint = lim.adjoint_trajectory(flow, terminal_loss, (x, LABELS), grid)
        (loss, states), gradient = jax.value_and_grad(loss_and_states, has_aux=True)(x)
        terminal = jax.grad(terminal_loss)(states[-1], LABELS)
        return adjoint, loss, gradient, terminal, states

    adjoint, loss, gradient, terminal, states = jax.tree.map(np.asarray, measured(random_states(1)))
    np.testing.assert_allclose(adjoint.loss, loss, rtol=1e-13)
    weights = np.asarray(grid.weights)[:, None]
    np.testing.assert_allclose(adjoint.covectors[0], gradient / weights, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(adjoint.covectors[-1], terminal / weights, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(adjoint.states, states, rtol=1e-13)
    np.testing.assert_allclose(adjoint.times, [0, 0.5, 1, 1.5])


def test_inner_steps_carry_the_adjoint():
    """P_k = (I + eps zeta D F(X_k)*) P_{k+1} with the dense Jacobian, transposed in the pairing."""
    flow, terminal_loss, grid = setting("euler", "graded")

    # `eq:adjoint`, `eq:residual-adjoint-step`.
    @jax.jit
    def measured(x):
        adjoint = lim.adjoint_trajectory(flow, terminal_loss, (x, LABELS), grid)
        jacobian = jax.vmap(lambda field, x: jax.jacfwd(lambda x: field(x, x, grid))(x))
        return adjoint.covectors, jacobian(flow.layers, adjoint.states[:-1])

    covectors, jacobians = measured(random_states(1))
    covectors = np.asarray(covectors).reshape(4, -1)
    for k in range(3):
        size = 0.5 * falling_profile(0.5 * k)
        step = np.eye(72) + size * np.asarray(jacobians)[k].reshape(72, 72)
        expected = transposed(step, grid) @ covectors[k + 1]
        np.testing.assert_allclose(covectors[k], expected, rtol=1e-11, atol=1e-14)


def test_the_adjoint_of_a_batch_is_vmapped():
    flow, terminal_loss, grid = setting("split", "tokens")
    batch = random_states(1, 2, 12, WIDTH)

    def adjoint(x):
        return lim.adjoint_trajectory(flow, terminal_loss, (x, LABELS), grid)

    both, one = jax.jit(lambda batch: (jax.vmap(adjoint)(batch), adjoint(batch[1])))(batch)
    second = jax.tree.map(lambda leaf: np.asarray(leaf)[1], both)
    chex.assert_trees_all_close(second, jax.tree.map(np.asarray, one), rtol=1e-11)
