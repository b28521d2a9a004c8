"""The precision of sums: float32 at least, whatever the terms'."""

import math
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

Tree = TypeVar("Tree")


def accumulator(dtype: DTypeLike) -> jnp.dtype:
    """The precision in which to sum: that of the terms, or float32 where theirs is half."""
    return jnp.dtype(dtype if jnp.finfo(dtype).bits > 32 else jnp.float32)


def promote(tree: Tree) -> Tree:
    """Arrays of half precision in float32, all others as they are."""

    def wide(leaf: Any) -> Any:
        return leaf.astype(accumulator(leaf.dtype)) if eqx.is_inexact_array(leaf) else leaf

    return jax.tree.map(wide, tree)


def matmul(left: Array, right: Array) -> Array:
    """A product of matrices in the precision of its sums (`accumulator`).

    Examples
    --------
    >>> row = jnp.full((1, 4), 3e4, jnp.float16)
    >>> matmul(row, jnp.ones((4, 1), jnp.float16)).tolist()
    [[120000.0]]
    """
    return jnp.matmul(left, right, preferred_element_type=accumulator(jnp.result_type(left, right)))


def beyond_rounding(part: Float[Array, "..."], whole: Float[Array, "..."]) -> Bool[Array, ""]:
    """Whether numbers are other than zero beyond rounding, beside the largest of all."""
    rounding = math.sqrt(jnp.finfo(whole.dtype).eps)
    return jnp.abs(part).max() > rounding * jnp.abs(whole).max()
