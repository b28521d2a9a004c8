"""Half and single precision, against float64 on the same inputs.

In float16 the squares of numbers of some 1e4 overflow; in float32 sums of many probabilities err.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.dense import kernel_blocks
from reference.networks import GRIDS

import lim_jax as lim
from lim_jax._precision import norm, normalise
from lim_jax.adjoint import cone_mass, probed_cone_mass
from lim_jax.network import attention_kernel, attention_weights
from lim_jax.network.tiled_attention import blocked_attention

LENGTH = 7
WIDTH = 6
ROUNDING = 4e-3  # a few of float16's


def large(seed, *shape, size=1e4):
    """Entries of some 1e4, whose squares are far beyond the largest float16, 65504."""
    values = size * np.random.default_rng(seed).standard_normal(shape)
    return jax.device_put(values.astype(np.float16))


def exact(array):
    return np.asarray(array).astype(np.float64)


def test_layer_normalisation_of_a_large_token():
    z = large(0, WIDTH)
    scale = large(1, WIDTH, size=1)
    values = lim.LayerNorm(scale, jax.device_put(np.ones(WIDTH, np.float16)), 1e-3)(z)
    centred = exact(z) - exact(z).mean()
    expected = exact(scale) * centred / np.sqrt((centred**2).mean() + 1e-3) + 1
    assert values.dtype == jnp.float16
    np.testing.assert_allclose(exact(values), expected, atol=ROUNDING * np.abs(expected).max())


@jax.jit
def attended(query, key, value, grid):
    return (
        attention_weights(query, key, grid),
        attention_kernel(query, key, grid),
        lim.causal_attention(query, key, value, grid),
        blocked_attention(query, key, value, grid),
    )


@pytest.mark.parametrize("kind", GRIDS)
def test_attention_of_large_queries_and_keys(kind):
    query, key, value = (large(seed, LENGTH, WIDTH) for seed in (1, 2, 3))
    prefix = np.asarray(GRIDS[kind](LENGTH).prefix_weights())
    scores = np.where(prefix != 0, exact(query) @ exact(key).T / np.sqrt(WIDTH), -np.inf)
    mass = prefix * np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = mass / mass.sum(axis=1, keepdims=True)
    kernel = weights / np.where(prefix != 0, prefix, 1)
    features = weights @ exact(value)
    found = attended(query, key, value, GRIDS[kind](LENGTH, dtype=jnp.float16))
    for half, expected in zip(found, (weights, kernel, features, features), strict=True):
        assert half.dtype == jnp.float16
        np.testing.assert_allclose(exact(half), expected, atol=ROUNDING * np.abs(expected).max())


@pytest.mark.slow
def test_cone_mass_of_large_states():
    """Masses of some 1e-8, which float16 does not hold: they are given in float32."""
    grid = lim.graded_grid(LENGTH, dtype=jnp.float16)
    attention = lim.CausalAttention.init(WIDTH, heads=2, norm_eps=1e-3, key=jax.random.key(0))
    half = jax.tree.map(lambda leaf: jax.device_put(np.float16(leaf)), attention)
    x = large(4, LENGTH, WIDTH)
    fine = lim.graded_grid(LENGTH)
    wide = jax.tree.map(lambda leaf: jax.device_put(exact(leaf)), half)
    prefix = np.asarray(fine.prefix_weights())
    weights = np.asarray(fine.weights)
    blocks = np.asarray(kernel_blocks(wide, jax.device_put(exact(x)), fine))
    blocks = blocks / np.where(prefix != 0, prefix, 1)[:, :, None, None]
    # The weights of the integral over p >= q; on a token they are dp_i W_ij / dp_j.
    cone = weights[:, None] * prefix / weights[None, :]
    squares = np.linalg.norm(blocks, 2, axis=(2, 3)) ** 2, (blocks**2).sum(axis=(2, 3))
    operator, frobenius = ((cone * square).sum(axis=0) for square in squares)
    np.testing.assert_allclose(exact(cone_mass(half, x, grid)), operator, rtol=5e-3)
    mass = exact(cone_mass(half, x, grid, "frobenius"))
    np.testing.assert_allclose(mass, frobenius, rtol=5e-3)
    own = cone_mass(lambda x, context, grid: half(x, context, grid), x, grid, "frobenius")
    assert own.dtype == jnp.float32
    np.testing.assert_allclose(exact(own), frobenius, rtol=2e-2)
    probes = jax.device_put(np.sqrt(np.float16(WIDTH)) * np.eye(WIDTH, dtype=np.float16))
    probed = probed_cone_mass(half, x, grid, probes).value
    np.testing.assert_allclose(exact(probed), frobenius, rtol=5e-3)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 1e30])
def test_the_norm_of_a_tree_and_its_slope_at_every_size(size):
    """Squares of float32 below 1e-23 or above 1e19 vanish or overflow; the slope is the unit."""
    values = np.array([3.0, 0.0, -4.0, 12.0]) * size
    tree = {
        "first": jax.device_put(values[:2].astype(np.float32)),
        "none": jnp.zeros((0, 2), jnp.bfloat16),
        "second": jax.device_put(values[2:].reshape(1, 2).astype(np.float32)),
    }
    total, slope = jax.jit(jax.value_and_grad(norm))(tree)
    unit = jax.jit(normalise)(tree)
    expected = np.array([3.0, 0.0, -4.0, 12.0]) / 13 * (size > 0)
    np.testing.assert_allclose(total, 13 * size, rtol=1e-6)
    for vectors in (slope, unit):
        found = np.concatenate([exact(vectors[name]).ravel() for name in ("first", "second")])
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert unit["none"].dtype == jnp.bfloat16 and unit["none"].shape == (0, 2)
