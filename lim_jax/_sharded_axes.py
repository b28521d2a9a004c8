"""Arrays that differ from device to device inside `jax.shard_map`: their types say over which axes.

A loop's carry and a conditional's branches are of one type: zeros are made to vary as their sums.
"""

from typing import Any, TypeVar

import jax
from jaxtyping import PyTree

Tree = TypeVar("Tree")


def varying_axes(tree: PyTree) -> frozenset[str]:
    """Return the mesh axes over which any array varies: none outside of `jax.shard_map`."""
    return frozenset().union(*map(_axes, jax.tree.leaves(tree)))


def varying_as(tree: Tree, like: PyTree) -> Tree:
    """Cast arrays to vary over all mesh axes over which they or those of `like` do."""
    axes = varying_axes((tree, like))

    def cast(leaf: Any) -> Any:
        """Cast one leaf to vary over the axes that it lacks."""
        missing = tuple(axes - _axes(leaf))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, tree)


def _axes(leaf: Any) -> frozenset[str]:
    """Return the mesh axes over which one array varies."""
    manual = getattr(jax.typeof(leaf), "manual_axis_type", None)
    return frozenset() if manual is None else manual.varying
