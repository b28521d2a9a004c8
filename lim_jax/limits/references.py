"""References on Gauss--Legendre panels: what they know to rounding, and what they do not.

A smooth functional of a smooth field is the same number on two of them but for rounding. One that
indexes or counts positions is not, of whatever field; and of a field with a kink none is.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lim_jax.grid.measure import Grid
from lim_jax.grid.panels import PanelGrid

PICKS = (
    "of one cubic it differs on two Gauss grids: it indexes, counts or averages rows, or takes an "
    "extreme of them, and every grid has others. Take lim.integral, grid.interpolate at a place, "
    "or the whole field with a norm"
)
ROUGH = (
    "its limit differs on two Gauss grids by more than half of its digits: the input, the network, "
    "or its kernel across p = q is steep or has a kink, or the network picks rows. Pass finer "
    "references, panels that end at the kink, or three grids of the same kind to extrapolate"
)


def polynomial_twins(results: Sequence[PyTree], grids: Sequence[Grid]) -> list[PyTree]:
    r"""Make one polynomial field on two panel grids of what a network gave on them.

    Every array with an axis of positions becomes Bernstein's cubic with four of the second grid's
    rows, on both grids: whatever was not smooth is gone. Its rows are means of those that were, so
    that what is positive remains so.

    Parameters
    ----------
    results
        What the network gave on each of the two grids.
    grids
        Two grids.

    Returns
    -------
    list
        The two; empty where the grids are no panels of two sizes, or the results differ in more
        than their axes of positions.

    Examples
    --------
    >>> from lim_jax.grid import gauss_grid
    >>> grids = gauss_grid(8), gauss_grid(12)
    >>> first, second = polynomial_twins([jnp.abs(grid.nodes - 0.5) for grid in grids], grids)
    >>> bool(abs(grids[0].weights @ first - grids[1].weights @ second) < 1e-6)
    True
    """
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
    """One leaf on two grids; None where its shapes differ in more than an axis of positions."""
    shapes = [jnp.shape(leaf) for leaf in pair]
    if shapes[0] == shapes[1]:
        return pair[1], pair[1]
    if len(shapes[0]) != len(shapes[1]) or not jnp.issubdtype(pair[1].dtype, jnp.floating):
        return None
    sizes = [(axis, *both) for axis, both in enumerate(zip(*shapes, strict=True))]
    differing = [(axis, *both) for axis, *both in sizes if both[0] != both[1]]
    if [tuple(both) for _, *both in differing] != [(grids[0].size, grids[1].size)]:
        return None
    axis = differing[0][0]
    rows = jnp.moveaxis(pair[1], axis, 0)[np.arange(1, 8, 2) * grids[1].size // 8]

    def cubic(grid: Grid) -> Array:
        basis = jnp.asarray(_bernstein(grid), rows.dtype)
        return jnp.moveaxis(jnp.tensordot(basis, rows, 1), 0, axis)

    return cubic(grids[0]), cubic(grids[1])


def _bernstein(grid: Grid) -> Float[np.ndarray, "length 4"]:
    """The four cubics, at the nodes: not negative, and of sum one."""
    p = grid._nodes()[:, None]
    powers = np.arange(4)
    return np.array([1, 3, 3, 1]) * p**powers * (1 - p) ** (3 - powers)


def doubt(of_polynomial: float, of_limit: float, dtype: Any) -> str:
    """Say why a reference on panels is doubtful, if half of its digits change with the panels.

    Parameters
    ----------
    of_polynomial, of_limit
        How much the quantity changes between the two grids, relative to its size: of
        `polynomial_twins`, and of the network.
    dtype
        In which it is computed.

    Returns
    -------
    str
        Cause and cure; empty where neither is more than half of the digits.

    Examples
    --------
    >>> doubt(1e-15, 1e-13, "float64"), doubt(1e-3, 1e-3, "float64")[:44]
    ('', 'of one cubic it differs on two Gauss grids: ')
    """
    rounding = np.sqrt(np.finfo(dtype).eps)
    if of_polynomial > rounding:
        return PICKS
    return ROUGH if of_limit > rounding else ""
