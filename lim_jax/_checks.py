"""Errors that say what was got, what was expected, and the cure.

Shapes and static values are checked before tracing and raise `ValueError`. Values that may be
traced are checked by `guarded`, whose result must be used: it raises when the numbers arrive.
"""

import warnings
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

Tree = TypeVar("Tree")


def require(holds: bool, name: str, *, got: object, expected: str, cure: str) -> None:
    """Raise a `ValueError` that names the argument, unless `holds`."""
    if not holds:
        raise ValueError(f"{name}: got {got}, expected {expected}. {cure}")


def require_floating(array: Array, name: str, cure: str) -> None:
    """Refuse arrays that have no derivative: integers, booleans and complex numbers."""
    require(
        jnp.issubdtype(jnp.result_type(array), jnp.floating),
        name,
        got=f"an array of {jnp.result_type(array)}",
        expected="a floating-point array",
        cure=cure,
    )


def guarded(tree: Tree, fails: Bool[Array, "..."], message: str) -> Tree:
    """Return `tree`; where any of `fails` is true its use raises, inside `jax.jit` too."""
    return eqx.error_if(tree, fails, message)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no floating-point leaf holds a NaN or an infinity."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def undifferentiated(tree: PyTree, message: str) -> Any:
    """Return `tree`; a derivative of it in any mode raises `NotImplementedError` with a message."""
    return tree


@undifferentiated.defjvp
def _undifferentiated_jvp(message, primals, tangents):
    raise NotImplementedError(message)


def warn_of_miscompiling_jaxlib(installed: str) -> None:
    """Warn on jaxlib 0.10.2, whose CPU compiler gets vmapped VJPs of LayerNorm wrong."""
    if installed == "0.10.2":
        warnings.warn(
            "jaxlib 0.10.2 miscompiles the vmapped VJP of layer normalisation on CPU: influence, "
            "Gramians and Jacobians can be wrong by tens of per cent without a sign. "
            "Install another version: python -m pip install 'jaxlib!=0.10.2' 'jax!=0.10.2'.",
            RuntimeWarning,
            stacklevel=2,
        )


warn_of_miscompiling_jaxlib(version("jaxlib"))
