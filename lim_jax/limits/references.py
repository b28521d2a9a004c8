"""References on Gauss--Legendre panels: which of their digits can be relied on.

A smooth functional of a smooth field is the same number on two panel grids but for rounding. One
that indexes or counts positions is not, for any field; and for a field with a kink none is.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from lim_jax.grid.measure import Grid
from lim_jax.grid.panels import PanelGrid

PICKS = (
    "of one cubic it differs on two Gauss grids: it indexes, counts or averages rows, or takes an "
    "extreme of them, and every grid has others. Take lim.integral, grid.interpolate at a "
    "position, or the whole field with a norm"
)
ROUGH = (
    "its limit differs on two Gauss grids by more than half of its digits: the input, the network, "
    "or its kernel across p = q is steep or has a kink, or the network picks rows. Pass finer "
    "references, panels that end at the kink, or three grids of the same kind to extrapolate"
)


def polynomial_twins(results: Sequence[PyTree], grids: Sequence[Grid]) -> list[PyTree]:
    """Replace results on two panel grids by one cubic through four rows; return [] for others."""
    panels = all(isinstance(grid, PanelGrid) for grid in grids)
    if not panels or grids[0].size == grids[1].size:
        return []
    leaves, trees = zip(*map(jax.tree.flatten, results), strict=True)
    if trees[0] != trees[1]:
        return []
    pairs = [_twins(pair, grids) for pair in zip(*leaves, strict=True)]
    if not all(pairs):
        return []
    return [jax.tree.unflatten(trees[0], side) for side in zip(*pairs, strict=True)]


def _twins(pair: tuple[Any, Any], grids: Sequence[Grid]) -> tuple[Any, Any] | None:
    """Return a leaf's cubic on both grids, or None if it has no single axis of positions."""
    first, second = map(jnp.shape, pair)
    if first == second:
        return pair[1], pair[1]
    if len(first) != len(second) or not jnp.issubdtype(pair[1].dtype, jnp.floating):
        return None
    differing = [axis for axis in range(len(first)) if first[axis] != second[axis]]
    axis = differing[0]
    if len(differing) > 1 or (first[axis], second[axis]) != (grids[0].size, grids[1].size):
        return None
    rows = jnp.moveaxis(pair[1], axis, 0)[np.arange(1, 8, 2) * grids[1].size // 8]

    def cubic(grid: Grid) -> Array:
        """Evaluate at a grid's nodes the cubic with these Bernstein coefficients."""
        p = grid._nodes()[:, None]
        powers = np.arange(4)
        basis = np.array([1, 3, 3, 1]) * p**powers * (1 - p) ** (3 - powers)
        return jnp.moveaxis(jnp.tensordot(jnp.asarray(basis, rows.dtype), rows, 1), 0, axis)

    return cubic(grids[0]), cubic(grids[1])


def reliability_warning(polynomial_change: float, limit_change: float, dtype: Any) -> str:
    """Say why a reference is unreliable, from changes between two panel grids; "" if it is not."""
    rounding = np.sqrt(np.finfo(dtype).eps)
    if polynomial_change > rounding:
        return PICKS
    return ROUGH if limit_change > rounding else ""
