"""The precision of products, as JAX's configuration asks, and of sums, float32 at least.

Squares leave the range of a precision where their numbers do not: norms are taken in units.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, PyTree

Tree = TypeVar("Tree")


PRECISIONS = "bfloat16", "tensorfloat32", "float32"
HALF = "bfloat16", "BF16_BF16_F32"


def precision_asked() -> str | None:
    """Return the value of `jax.default_matmul_precision` where this is called."""
    config: Any = jax.config
    return config.jax_default_matmul_precision


def computing(precision: str | None) -> AbstractContextManager:
    """Return a context whose products are traced in a precision; None keeps JAX's configuration."""
    return nullcontext() if precision is None else jax.default_matmul_precision(precision)


def rounds(*operands: Array) -> bool:
    """Tell whether a product of these operands rounds to bfloat16 and sums in float32.

    It does where the configuration asks for it and one is float32, none float64.
    """
    dtypes = {jnp.dtype(operand.dtype) for operand in operands}
    single = jnp.dtype("float32") in dtypes and all(jnp.finfo(d).bits <= 32 for d in dtypes)
    return single and precision_asked() in HALF


def accumulator(dtype: DTypeLike) -> jnp.dtype:
    """Return the dtype to sum in: that of the terms, or float32 if theirs is narrower."""
    return jnp.dtype(dtype if jnp.finfo(dtype).bits > 32 else jnp.float32)


def promote(tree: Tree) -> Tree:
    """Return arrays of half precision as float32, all others as they are."""

    def wide(leaf: Any) -> Any:
        """Convert an array of floats to the type in which it is accumulated."""
        return leaf.astype(accumulator(leaf.dtype)) if eqx.is_inexact_array(leaf) else leaf

    return jax.tree.map(wide, tree)


def beyond_rounding(part: Float[Array, "..."], total: Float[Array, "..."]) -> Bool[Array, ""]:
    """Tell whether `part` has a number beyond rounding errors of the largest of `total`."""
    rounding = math.sqrt(jnp.finfo(total.dtype).eps)
    return jnp.abs(part).max() > rounding * jnp.abs(total).max()


def in_finest(tree: Tree) -> Tree:
    """Return arrays of several dtypes in the finest of them, float32 at least."""
    dtypes = [accumulator(leaf.dtype) for leaf in jax.tree.leaves(tree)]
    finest = max(dtypes, key=lambda dtype: jnp.finfo(dtype).bits, default=None)
    return jax.tree.map(lambda leaf: leaf.astype(finest), tree)


def unit_of(tree: PyTree) -> Float[Array, ""]:
    """Return the largest absolute entry of all arrays, or one if all are zero, held fixed."""
    sizes = [jnp.abs(leaf).max(initial=0) for leaf in jax.tree.leaves(in_finest(tree))]
    largest = jax.lax.stop_gradient(reduce(jnp.maximum, sizes, 0.0))
    return jnp.where(largest == 0, 1, largest)


def norm(tree: PyTree) -> Float[Array, ""]:
    """Return the Euclidean norm of all arrays together, whose derivative is zero where it is."""
    # In units of the largest entry: squares of others would overflow, or vanish.
    tree = in_finest(tree)
    unit = unit_of(tree)
    square = sum(jnp.sum((leaf / unit) ** 2) for leaf in jax.tree.leaves(tree))
    positive = square > 0
    return unit * jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


def normalise(tree: Tree) -> Tree:
    """Divide arrays by the Euclidean norm of all, each in its own dtype; zeros stay zeros."""
    unit = unit_of(tree)
    in_units = jax.tree.map(lambda leaf: leaf / unit, in_finest(tree))
    size = norm(in_units)
    size = jnp.where(size == 0, 1, size)
    return jax.tree.map(lambda leaf, own: (leaf / size).astype(own.dtype), in_units, tree)
