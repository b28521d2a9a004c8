"""The kernel's blocks and cone mass against dense Jacobians of the context slot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import LENGTH, random_flow, random_states

import lim_jax as lim
from lim_jax import kernel

GRIDS = {"tokens": lim.token_grid, "midpoints": lim.midpoint_grid, "graded": lim.graded_grid}


def attention():
    return jax.tree.map(lambda leaf: leaf[0], random_flow(depth=1).layers).attention


def dense_blocks(field, x, grid):
    """K_ij as (length, length, width, width), from the Jacobian in the context slot."""
    jacobian = jax.jacfwd(lambda context: field(x, context, grid))(x)
    return jnp.moveaxis(jacobian, 2, 1)


@pytest.mark.parametrize("grid_name", GRIDS)
def test_blocks_are_the_jacobian_of_the_context(grid_name):
    grid, x = GRIDS[grid_name](LENGTH), random_states()
    factors = kernel.kernel_factors(attention(), x, grid)
    blocks = jax.vmap(factors.column, out_axes=1)(jnp.arange(LENGTH))
    blocks = grid.prefix_weights()[:, :, None, None] * blocks
    np.testing.assert_allclose(blocks, dense_blocks(attention(), x, grid), rtol=0, atol=1e-13)


@pytest.mark.parametrize("norm", ["operator", "frobenius"])
def test_cone_mass_on_tokens_is_the_papers_sum(norm):
    """Sum over i >= j of Δp ||L K_ij||^2, by NumPy's singular values."""
    grid, x = lim.token_grid(LENGTH), random_states()
    blocks = np.asarray(dense_blocks(attention(), x, grid)) * LENGTH
    sizes = np.linalg.norm(blocks, ord=2 if norm == "operator" else "fro", axis=(2, 3))
    expected = np.tril(sizes**2).sum(axis=0) / LENGTH
    found = kernel.cone_mass(attention(), x, grid, norm)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_cone_mass_of_averaging_is_known():
    """For k = 1/p it is the integral of p^-2 from q to 1, 1/q - 1, spectrally on panels."""
    one = jnp.ones((1, 1, 1))
    averaging = lim.CausalAttention(lambda z: z, 0 * one, 0 * one, one, one)
    grid = lim.gauss_grid(20, panels=8)
    found = kernel.cone_mass(averaging, jnp.ones((grid.size, 1)), grid)
    inside = np.asarray(grid.nodes) > 2.0**-7
    expected = 1 / grid.nodes - 1
    np.testing.assert_allclose(found[inside], expected[inside], rtol=1e-11, atol=1e-11)
