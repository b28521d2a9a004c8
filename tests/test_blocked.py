"""Blocked attention gives the dense formula's numbers, in every mode, in linear memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import random_states

import lim_jax as lim
from lim_jax.network import attention, blocked
from lim_jax.network.attention import attention_weights, causal_attention

GRIDS = {"tokens": lim.token_grid, "midpoints": lim.midpoint_grid, "graded": lim.graded_grid}
MODES = {
    "value": lambda f: lambda at, *directions: f(*at),
    "grad": lambda f: lambda at, *directions: grad(f)(at),
    "jvp": lambda f: lambda at, u, v: jax.jvp(f, at, u)[1],
    "jvp of grad": lambda f: lambda at, u, v: jax.jvp(lambda *at: grad(f)(at), at, u)[1],
    "grad of jvp": lambda f: lambda at, u, v: grad(lambda *at: jax.jvp(f, at, u)[1])(at),
    "grad of grad": lambda f: (
        lambda at, u, v: grad(
            lambda *at: sum(jnp.vdot(g, d) for g, d in zip(grad(f)(at), u, strict=True))
        )(at)
    ),
    "jvp of jvp": lambda f: lambda at, u, v: jax.jvp(lambda *at: jax.jvp(f, at, u)[1], at, v)[1],
}


def grad(function):
    """The gradient of a function of three arrays, weighed to one number."""
    return lambda at: jax.grad(lambda at: jnp.sum(jnp.sin(function(*at))))(at)


def dense(grid):
    return lambda query, key, value: attention_weights(query, key, grid) @ value


def tiled(grid):
    return lambda query, key, value: causal_attention(query, key, value, grid)


def small_tiles(monkeypatch):
    monkeypatch.setattr(blocked, "TILE", 4)
    monkeypatch.setattr(attention, "TILE", 4)


def arrays(seed, length, size=3, features=2):
    shapes = (length, size), (length, size), (length, features)
    return tuple(random_states(seed + i, *shape) for i, shape in enumerate(shapes))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", GRIDS)
def test_every_derivative_is_the_dense_ones(name, mode, monkeypatch):
    """Three tiles, the last one not full; two examples at once."""
    small_tiles(monkeypatch)
    grid = GRIDS[name](10)

    at, u, v = (
        jax.tree.map(lambda a, b: jnp.stack([a, b]), arrays(seed, 10), arrays(seed + 50, 10))
        for seed in (0, 10, 20)
    )
    found = jax.jit(jax.vmap(MODES[mode](tiled(grid))))(at, u, v)
    expected = jax.jit(jax.vmap(MODES[mode](dense(grid))))(at, u, v)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)


def test_long_grids_are_blocked_by_themselves():
    grid = lim.token_grid(2 * blocked.TILE + 5)
    query, key, value = arrays(0, grid.size)
    found = causal_attention(query, key, value, grid)
    np.testing.assert_allclose(found, dense(grid)(query, key, value), rtol=1e-12, atol=1e-14)
    text = str(jax.make_jaxpr(tiled(grid))(query, key, value))
    assert f"{grid.size},{grid.size}" not in text


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_large_scores_neither_overflow_nor_vanish(scale, monkeypatch):
    small_tiles(monkeypatch)
    grid = lim.token_grid(10)
    query, key, value = arrays(0, 10)
    at = scale * query, key, value
    slope = jax.grad(lambda *at: jnp.sum(tiled(grid)(*at) ** 2), (0, 1, 2))(*at)
    expected = jax.grad(lambda *at: jnp.sum(dense(grid)(*at) ** 2), (0, 1, 2))(*at)
    for ours, theirs in zip(slope, expected, strict=True):
        assert bool(jnp.isfinite(ours).all())
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_half_precision_is_summed_in_single():
    """bfloat16 inputs: as exact as their own rounding, over a thousand summands."""
    grid = lim.token_grid(1024)
    at = [array.astype(jnp.bfloat16) for array in arrays(0, 1024)]
    exact = dense(grid)(*(array.astype(float) for array in at))
    found = tiled(grid)(*at)
    assert found.dtype == jnp.bfloat16
    error = jnp.abs(found.astype(float) - exact)
    assert float(error.max()) < 2 * float(jnp.finfo(jnp.bfloat16).eps) * float(jnp.abs(exact).max())
    # At the end of the context a mean of a thousand: summed in bfloat16 it would be off by more.
    assert float(error[-100:].max()) < 2e-3


@pytest.mark.parametrize("mode", ["value", "grad", "jvp of grad"])
def test_memory_grows_linearly(mode):
    def temporary(length):
        grid = lim.token_grid(length)
        shapes = jax.eval_shape(lambda: arrays(0, length))
        job = MODES[mode](tiled(grid))
        compiled = jax.jit(job).lower(shapes, shapes, shapes).compile()
        analysis = compiled.memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    assert temporary(4096) < 2.2 * temporary(2048)
