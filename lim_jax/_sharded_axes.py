"""Arrays that differ from device to device inside `jax.shard_map`: their types say over which axes.

A loop's carry and a conditional's branches are of one type: zeros are made to vary as their sums.
"""

from typing import Any, TypeVar

import jax
from jaxtyping import PyTree

Tree = TypeVar("Tree")


def varying_axes(tree: PyTree) -> frozenset[str]:
    """Return the axes of the mesh over which any array varies: none outside of `jax.shard_map`."""
    return frozenset().union(*map(_axes, jax.tree.leaves(tree)))


def varying_as(tree: Tree, like: PyTree) -> Tree:
    """Cast arrays to vary over all axes over which these or those of `like` do."""
    axes = varying_axes((tree, like))

    def cast(leaf: Any) -> Any:
        missing = tuple(axes - _axes(leaf))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, tree)


def _axes(leaf: Any) -> frozenset[str]:
    manual = getattr(jax.typeof(leaf), "manual_axis_type", None)
    return frozenset() if manual is None else manual.varying
