"""The paper's counterexamples to unconditional shape claims (`subsec:counterexamples`)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from reference.networks import random_flow, random_states

import lim_jax as lim
from lim_jax.observability.gramian import observability_gramians

GRID = lim.token_grid(10)
COVECTOR = jnp.array([1.0, -2.0, 0.5])


def uniform_loss(flow, x, y):
    """A loss whose terminal covector is the same at every position."""
    return lim.integral(flow(x, GRID) @ COVECTOR, GRID)


def still(layers):
    """The identity network: every array of the layers zero."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.zeros(leaf.shape)), layers)


def test_causal_masking_without_primacy():
    # `subsec:counterexamples`.
    attention = random_flow(depth=4, width=3, heads=1).layers.attention
    silent = eqx.tree_at(
        lambda a: (a.value, a.value_bias),
        attention,
        replace_fn=jnp.zeros_like,
    )
    batch = random_states(0, 3, 10, 3), None
    result = lim.influence(uniform_loss, lim.ResidualFlow(silent), batch, GRID)
    np.testing.assert_allclose(result.density, 1.0, rtol=1e-12)
    # The mask itself is there: with values the profile leans to the left.
    result = lim.influence(uniform_loss, lim.ResidualFlow(attention), batch, GRID)
    assert np.abs(np.asarray(result.density) - 1).max() > 0.01


def test_residual_connections_without_recency():
    # `subsec:counterexamples`.
    def teacher_forced_loss(flow, x, y):
        return lim.cross_entropy(flow(x, GRID), y, GRID)

    flow = lim.ResidualFlow(still(random_flow(depth=4, width=3, heads=1).layers))
    x = np.broadcast_to(COVECTOR, (2, 10, 3))
    y = np.broadcast_to(np.eye(3)[:2, None], (2, 10, 3))
    result = lim.influence(teacher_forced_loss, flow, (jnp.asarray(x), jnp.asarray(y)), GRID)
    np.testing.assert_allclose(result.density, 1.0, rtol=1e-12)
    np.testing.assert_allclose(result.indices().gap, 0.0, atol=1e-12)


def test_equal_observability_without_equal_influence():
    # `subsec:counterexamples`.
    grid = lim.token_grid(2)
    flow = lim.ResidualFlow(still(random_flow(depth=3, width=2, heads=1).layers))
    x = random_states(0, 2, 2)
    observed = observability_gramians(
        lambda x: flow.trajectory(x, grid).states[:-1].reshape(3, -1), x, 1 / 3
    )
    np.testing.assert_allclose(observed, np.stack([np.eye(2), np.eye(2)]), rtol=1e-14, atol=0)
    covectors = jnp.array([[2.0, 0.0], [1.0, 0.0]])
    result = lim.influence(
        lambda flow, x, y: lim.inner(covectors, flow(x, grid), grid), flow, (x[None], None), grid
    )
    np.testing.assert_allclose(result.energy, [4.0, 1.0], rtol=1e-14)
