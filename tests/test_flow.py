"""Residual recursions over depth."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from networks import fitted_order, random_flow, random_states

import lim_jax as lim

GRID = lim.token_grid(12)
SCHEMES = {"euler": lim.euler, "split": lim.split}


def quadratic_profile(time):
    return 1 + time**2


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_flow_is_the_numpy_recursion(scheme):
    flow = random_flow(depth=3, step=SCHEMES[scheme], horizon=1.5)
    layers = [jax.tree.map(lambda leaf: leaf[k], flow.layers) for k in range(3)]  # noqa: B023
    x = random_states()
    expected = reference.flow(layers, np.asarray(x), 1.5, scheme)
    np.testing.assert_allclose(flow(x, GRID), expected, rtol=1e-12, atol=1e-13)


def test_a_gpt2_stack_is_the_split_scheme_with_unit_steps():
    flow = random_flow(depth=3, step=lim.split, horizon=3.0)
    states = np.asarray(random_states())
    for k in range(3):
        layer = jax.tree.map(lambda leaf: leaf[k], flow.layers)  # noqa: B023
        states = states + reference.attention(layer.attention, states)
        states = states + reference.feed_forward(layer.feed_forward, states)
    np.testing.assert_allclose(flow(random_states(), GRID), states, rtol=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_trajectory_follows_profile_and_times(scheme):
    flow = random_flow(depth=4, step=SCHEMES[scheme], horizon=2.0, profile=quadratic_profile)
    x = random_states()
    times, states = flow.trajectory(x, GRID)
    np.testing.assert_allclose(times, [0, 0.5, 1.0, 1.5, 2.0], rtol=1e-15)
    for k in range(4):
        np.testing.assert_allclose(states[k], x, rtol=1e-12)
        field = jax.tree.map(lambda leaf: leaf[k], flow.layers)  # noqa: B023
        parts = [field] if scheme == "euler" else field.sublayers
        for part in parts:
            x = x + 0.5 * (1 + (0.5 * k) ** 2) * part(x, x, GRID)
    np.testing.assert_allclose(states[4], x, rtol=1e-12)
    np.testing.assert_allclose(flow(random_states(), GRID), x, rtol=1e-12)


def test_a_linear_flow_is_a_matrix_power():
    """Zero queries average causally, so M Euler steps are powers of I + eps C (x) V."""
    value = random_states(1, 3, 3) / 2
    zeros = jnp.zeros((1, 1, 3))
    layer = lim.CausalAttention(eqx.nn.Identity(), zeros, zeros, value[None], jnp.eye(3)[None])
    layers = jax.tree.map(lambda leaf: jnp.stack(6 * [leaf]), layer)
    x = random_states(2, 12, 3)
    cesaro = np.tri(12) / np.arange(1, 13)[:, None]
    step = np.eye(36) + np.kron(cesaro, np.asarray(value)) / 6
    expected = np.linalg.matrix_power(step, 6) @ np.asarray(x).ravel()
    found = lim.ResidualFlow(layers)(x, GRID)
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-12)


def test_split_differs_from_euler_at_first_order():
    x, depths, errors = random_states(), (8, 16, 32, 64), []
    layer = random_flow(depth=1).layers
    for depth in depths:
        layers = jax.tree.map(lambda leaf: jnp.repeat(leaf, depth, axis=0), layer)  # noqa: B023
        ends = [lim.ResidualFlow(layers, step=step)(x, GRID) for step in SCHEMES.values()]
        errors.append(float(jnp.abs(ends[0] - ends[1]).max()))
    assert abs(fitted_order(depths, errors) - 1) < 0.15


def test_the_program_does_not_grow_with_depth():
    sizes = [
        len(str(jax.make_jaxpr(random_flow(depth=depth))(random_states(), GRID)).splitlines())
        for depth in (2, 16)
    ]
    assert sizes[0] == sizes[1]


def test_any_function_of_two_slots_is_a_field():
    class Mean(eqx.Module):
        rate: jax.Array

        def __call__(self, x, context, grid):
            return self.rate * (lim.integral(context, grid)[None, :] - x)

    x = random_states()
    flow = lim.ResidualFlow(Mean(jnp.full(5, 2.0)), horizon=1.0)
    mean = x.mean(axis=0, keepdims=True)
    np.testing.assert_allclose(flow(x, GRID), mean + (x - mean) * 0.6**5, rtol=1e-12)


def test_precision_is_kept():
    flow = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), random_flow(depth=3))
    x = random_states().astype(jnp.float32)
    single = flow(x, lim.token_grid(12, dtype=jnp.float32))
    assert single.dtype == jnp.float32
    double = random_flow(depth=3)(random_states(), GRID)
    np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-5)


def test_batches_are_vmapped():
    flow, batch = random_flow(), random_states(2, 3, 12, 6)
    found = jax.vmap(flow, in_axes=(0, None))(batch, GRID)
    np.testing.assert_allclose(found[1], flow(batch[1], GRID), rtol=1e-12)
