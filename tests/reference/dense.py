"""Dense twins: Jacobians of fields as blocks, by one column at a time."""

import jax
import jax.numpy as jnp


def jacobian_blocks(function, x):
    """The Jacobian of a map of states, as (length, length, width, width)."""
    return jnp.moveaxis(jax.jacfwd(function)(x), 2, 1)


@jax.jit
def kernel_blocks(field, x, grid):
    """K_ij of a field: its Jacobian in the context slot."""
    return jacobian_blocks(lambda context: field(x, context, grid), x)
