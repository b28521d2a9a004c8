"""Gaussian draws, along one axis and then reshaped: the same bits as JAX's, compiled sooner."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key


def gaussian(
    key: Key[Array, ""], shape: tuple[int, ...], dtype: jnp.dtype | None = None
) -> Float[Array, "..."]:
    """Draw independent standard normal entries; `dtype` is by default JAX's own."""
    return jax.random.normal(key, (math.prod(shape),), dtype).reshape(shape)


def fan_in(key: Key[Array, ""], *shape: int) -> Float[Array, "..."]:
    """Draw Gaussian matrices whose entries have variance one over the last axis's size."""
    return gaussian(key, shape) / math.sqrt(shape[-1])
