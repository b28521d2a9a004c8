"""The activations that configurations name."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array


def tanh_gelu(x: Array) -> Array:
    """Compute GELU by the hyperbolic tangent, as GPT-2 does."""
    return jax.nn.gelu(x, approximate=True)


def bloom_gelu(x: Array) -> Array:
    """Compute GELU by the hyperbolic tangent, with BLOOM's eight digits of the root of 2 / pi."""
    return 0.5 * x * (1 + jnp.tanh(0.79788456 * x * (1 + 0.044715 * x**2)))


def exact_gelu(x: Array) -> Array:
    """Compute GELU by the error function."""
    return jax.nn.gelu(x, approximate=False)


def squared_relu(x: Array) -> Array:
    """Compute the square of ReLU."""
    return jax.nn.relu(x) ** 2


def xielu(x: Array, numbers: Array) -> Array:
    """Compute Apertus's xIELU, whose four numbers are learned."""
    above, below, slope, least = numbers
    negative = (jnp.expm1(jnp.minimum(x, least)) - x) * (slope + jax.nn.softplus(below))
    return slope * x + jnp.where(x > 0, jax.nn.softplus(above) * x * x, negative)


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu_new": tanh_gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "gelu_fast": tanh_gelu,
    "gelu": exact_gelu,
    "relu": jax.nn.relu,
    "relu2": squared_relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
}
