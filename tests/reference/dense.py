"""Dense twins: Jacobians of fields as blocks, by one column at a time."""

import jax
import jax.numpy as jnp
import numpy as np

from lim_jax.adjoint import kernel_factors


def jacobian_blocks(function, x):
    """The Jacobian of a map of states, as (length, length, width, width)."""
    return jnp.moveaxis(jax.jacfwd(function)(x), 2, 1)


@jax.jit
def kernel_blocks(field, x, grid):
    """K_ij of a field: its Jacobian in the context slot."""
    return jacobian_blocks(lambda context: field(x, context, grid), x)


@jax.jit
def formed_blocks(attention, x, grid):
    """K^_ij of attention from the library's factors, a column at a time."""
    factors = kernel_factors(attention, x, grid)
    blocks = jax.vmap(factors.column, out_axes=1)(jnp.arange(grid.size))
    return grid.prefix_weights()[:, :, None, None] * blocks


def transposed(matrix, grid):
    """The adjoint in the grid's pairing of a matrix that acts on states, flattened."""
    weights = np.repeat(np.asarray(grid.weights), len(matrix) // grid.size)
    return matrix.T * weights[None, :] / weights[:, None]


def prefix_weights(grid):
    """Those of a grid of cells by NumPy: cells left of a row's, and the share of its own."""
    cells = np.tril(np.broadcast_to(np.asarray(grid.weights), (grid.size, grid.size)))
    return cells - float(grid.offset) * np.diag(np.diag(cells))
