"""From one grid to another, and to positions between the nodes."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax.grid.measure import Grid, checked_positions, require_on_grid


def carried(
    density: Float[Array, "length *rest"], source: Grid, target: Grid
) -> Float[Array, "target_length *rest"]:
    r"""Carry a density to another grid: :math:`f_t = \sum_s f_s \int_{I_t} \phi_s / \Delta p_t`.

    :math:`\phi_s` is one on cell s (on a Gauss--Legendre panel the polynomial of node s), so the
    integral is kept exactly. `Grid.interpolate` evaluates a smooth field elsewhere instead.
    """
    shares = jnp.asarray(carrying_shares(source, target), density.dtype)
    return jnp.tensordot(shares, density, axes=1)


def carrying_shares(source: Grid, target: Grid) -> Float[np.ndarray, "target_length length"]:
    r"""Return the matrix :math:`\int_{I_t}\phi_s/\Delta p_t` of `carried`, in float64."""
    below = source._weights_to(target._edges())
    return np.diff(below, axis=0) / target._weights()[:, None]


def cell_embedding(
    values: Float[Array, "length *rest"], grid: Grid, positions: Float[Array, " points"]
) -> Float[Array, "points *rest"]:
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
