"""The residual product against dense matrices; its bounds are honest."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.dense import transposed
from reference.differences import central_difference
from reference.networks import (
    LENGTH,
    SCHEMES,
    VOCABULARY,
    WIDTH,
    random_flow,
    random_labels,
    random_states,
)

import lim_jax as lim
from lim_jax.adjoint import residual


def loss_on(grid):
    readout = lim.LinearReadout(random_states(4, WIDTH, VOCABULARY))
    return lambda x: lim.cross_entropy(readout(x, grid), random_labels(), grid)


@eqx.filter_jit
def jacobians(flow, x, grid):
    """Of every layer where the flow meets it."""
    increment = jnp.array(flow.horizon / flow.depth)

    def jacobian(layer, state):
        return jax.jacfwd(lambda x: flow.transition((layer, increment), x, grid))(state)

    return jax.vmap(jacobian)(flow.layers, flow.trajectory(x, grid).states[:-1])


def interactions(flow, x, grid):
    """The dense B_k, transposed in the grid's pairing, and the weights that repeat."""
    weights = np.repeat(np.asarray(grid.weights), WIDTH)
    dense = np.asarray(jacobians(flow, x, grid)).reshape(flow.depth, weights.size, -1)
    moved = dense - np.eye(weights.size)
    return [transposed(matrix, grid) for matrix in moved], weights


@pytest.mark.parametrize("step", SCHEMES)
def test_orders_are_the_sums_over_subsets_of_layers(step):
    grid, x = lim.graded_grid(LENGTH), random_states()
    flow = random_flow(depth=3, step=SCHEMES[step])
    loss = loss_on(grid)

    @jax.jit
    def measured(x):
        orders, low = (residual.interaction_orders(flow, loss, x, grid, r) for r in (3, 1))
        return orders, low, jax.grad(loss)(flow(x, grid))

    orders, low, gradient = map(np.asarray, measured(x))
    (a, b, c), weights = interactions(flow, x, grid)
    terminal = gradient.ravel() / weights
    expected = [
        terminal,
        (a + b + c) @ terminal,
        (a @ b + a @ c + b @ c) @ terminal,
        a @ b @ c @ terminal,
    ]
    np.testing.assert_allclose(orders.reshape(4, -1), expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(low, orders[:2], rtol=1e-12)
    with pytest.raises(ValueError, match="highest: got 4, expected an order from 0 to 3"):
        residual.interaction_orders(flow, loss, x, grid, 4)


@pytest.mark.parametrize("step", SCHEMES)
def test_norms_are_the_largest_singular_values_and_bound_the_adjoint(step):
    grid, x = lim.graded_grid(LENGTH), random_states()
    flow = random_flow(depth=3, step=SCHEMES[step])
    loss = loss_on(grid)

    @jax.jit
    def measured(x):
        norms = residual.interaction_norms(flow, x, grid, key=jax.random.key(0))
        found = lim.adjoint_trajectory(flow, loss, x, grid).covectors
        gap, terminal = found[0] - found[-1], found[-1]
        ratio = jnp.sqrt(lim.inner(gap, gap, grid) / lim.inner(terminal, terminal, grid))
        return norms, residual.amplification(norms), ratio

    norms, bounds, ratio = jax.tree.map(np.asarray, measured(x))
    matrices, weights = interactions(flow, x, grid)
    root = np.sqrt(weights)
    exact = [np.linalg.norm(root[:, None] * b / root[None, :], ord=2) for b in matrices]
    np.testing.assert_allclose(norms.value, exact, rtol=1e-6)
    assert (norms.value <= np.array(exact) * (1 + 1e-12)).all()
    np.testing.assert_array_less(norms.residual, 1e-3)
    product = np.prod(1 + np.array(exact)) - 1
    np.testing.assert_allclose(bounds.product, product, rtol=1e-3)
    np.testing.assert_allclose(bounds.exponential, np.expm1(3 * max(exact)), rtol=1e-2)
    assert ratio < bounds.product < bounds.exponential


@pytest.mark.slow
def test_the_product_bound_is_differentiated():
    """A power iteration of as many steps as it takes to settle, against differences."""
    grid, x = lim.token_grid(4), random_states(1, 4, WIDTH)
    flow, direction = random_flow(depth=1), random_states(2, 4, WIDTH)

    def bound(x):
        norms = residual.interaction_norms(flow, x, grid, key=jax.random.key(0), iterations=80)
        return residual.amplification(norms._replace(residual=jnp.zeros(1))).product

    @jax.jit
    def slopes(x):
        forward = jax.jvp(bound, (x,), (direction,))[1]
        reverse = jnp.vdot(jax.grad(bound)(x), direction)
        return forward, reverse, central_difference(bound, x, direction)

    forward, reverse, expected = slopes(x)
    np.testing.assert_allclose(forward, expected, rtol=1e-6)
    np.testing.assert_allclose(reverse, expected, rtol=1e-6)


def test_query_masses_by_hand():
    """Ten tokens; a fifth of the length on either side."""
    alpha = jnp.zeros(10).at[jnp.array([0, 4, 9])].set(jnp.array([0.2, 0.3, 0.5]))
    found = residual.query_masses(alpha, lim.boundary_regions(lim.token_grid(10), 0.2, "points"))
    # p = 0.1 is left; 0.2 ... 0.7 are the middle; 0.8, 0.9 and 1 are right.
    np.testing.assert_allclose(found.masses, [0.2, 0.3, 0.5])
    expected = [100 * 0.2**2 / 1, 100 * 0.3**2 / 6, 100 * 0.5**2 / 3]
    np.testing.assert_allclose(found.squares, expected)


def test_terminal_covectors_of_local_readouts_stay_near_the_queries():
    grid = lim.token_grid(20)
    readout = lim.BandReadout(random_states(4, WIDTH, VOCABULARY), 0.15)
    queries, labels = jnp.asarray(np.isin(np.arange(20), [4, 19]) * 0.5), random_labels(3, 20, 5)

    def loss(x):
        return lim.autoregressive_cross_entropy(readout(x, grid), labels, queries)

    covector = np.asarray(jax.jit(jax.grad(loss))(random_states(1, 20, WIDTH)))
    touched = (covector != 0).any(axis=1)
    support = np.asarray(residual.readout_support(queries, 3)) > 0
    assert not (touched & ~support).any()
    expected = np.zeros(20, bool)
    expected[[1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19]] = True
    np.testing.assert_array_equal(support, expected)
    np.testing.assert_array_equal(residual.readout_support(queries, 0) > 0, queries > 0)
