"""From one grid to another, and to positions between the nodes."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax.grid.measure import Grid, checked_positions, require_on_grid


def carrying_shares(source: Grid, target: Grid) -> Float[np.ndarray, "target_length length"]:
    """Return the matrix that carries a density to another grid, its integral kept.

    Row t averages over cell t.
    """
    below = source._weights_to(target._edges())
    return np.diff(below, axis=0) / target._weights()[:, None]


def cell_embedding(
    values: Float[Array, " length *rest"], grid: Grid, positions: Float[Array, " points"]
) -> Float[Array, " points *rest"]:
    r"""Evaluate the cellwise constant field :math:`\mathcal E_L(v)(p) = v_l`, :math:`p \in I_l`.

    This is the embedding of `eq:terminal-adjoint-density-embedding`, on [0, 1]. Differentiable in
    `values`; not in `positions`.

    Parameters
    ----------
    values
        The field's value on each cell of the grid: a first axis of positions, and any others.
    grid
        The grid whose cells :math:`I_l = (e_{l-1}, e_l]` these are.
    positions
        Where to evaluate the field, numbers in [0, 1]. Position 0, which belongs to no cell, takes
        the first cell's value.

    Returns
    -------
    Float[Array, "points *rest"]
        The value of the cell that each position lies in.

    Raises
    ------
    ValueError
        If `values` has not a row for each cell, or `positions` is not an array of floats along one
        axis.
    EquinoxRuntimeError
        If a position lies outside of [0, 1].

    Examples
    --------
    >>> values, positions = jnp.array([1.0, 2.0]), jnp.array([0.1, 0.5, 0.6])
    >>> cell_embedding(values, lim.token_grid(2), positions).tolist()
    [1.0, 1.0, 2.0]
    """
    require_on_grid(values, grid)
    positions = checked_positions(positions)
    # In the coarser precision: a position at an edge is there, however both were rounded.
    dtype = max(grid.edges.dtype, positions.dtype, key=lambda dtype: jnp.finfo(dtype).eps)
    edges = grid.edges.astype(dtype)
    cells = jnp.searchsorted(edges, positions.astype(dtype), side="left") - 1
    return jnp.asarray(values)[jnp.clip(cells, 0, grid.size - 1)]
