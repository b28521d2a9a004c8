"""Integrals over position, and functions of it that are integrated."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import error_if_got, require, require_scalar
from lim_jax._precision import promote
from lim_jax.grid.measure import Grid, require_grid, require_on_grid


def integral(values: Float[Array, " length *rest"], grid: Grid) -> Float[Array, "*rest"]:
    r"""Integrate over position: :math:`\sum_i \Delta p_i f_i`.

    Parameters
    ----------
    values
        The function f at each position: a first axis of positions, and any others. NaN and infinity
        pass on.
    grid
        The positions, whose weights are :math:`\Delta p_i`.

    Returns
    -------
    Float[Array, "*rest"]
        The integral over [0, 1], of the shape of one position's values; in float32 at least.

    Raises
    ------
    ValueError
        If `values` is not an array of floats with a row for each position.

    Examples
    --------
    >>> grid = lim.midpoint_grid(100)
    >>> round(float(integral(grid.nodes**2, grid)), 4)
    0.3333
    """
    require_on_grid(values, grid)
    return jnp.tensordot(grid.in_single_precision.weights, promote(values), axes=1)


def less_their_mean(
    values: Float[Array, " length *rest"], grid: Grid
) -> Float[Array, " length *rest"]:
    """Subtract from values their mean over position, which is zero where all are equal."""
    # The weights of a graded grid sum to less than one.
    return promote(values) - (integral(values, grid) / grid.in_single_precision.weights.sum())[None]


def inner(
    left: Float[Array, " length *rest"], right: Float[Array, " length *rest"], grid: Grid
) -> Float[Array, ""]:
    r"""Compute the grid's :math:`L^2` pairing :math:`\sum_i \Delta p_i\, a_i \cdot b_i`.

    Parameters
    ----------
    left
        The field a: a first axis of positions, and any others, over which the products are summed.
    right
        The field b, of the same shape.
    grid
        The positions, whose weights :math:`\Delta p_i` multiply the products.

    Returns
    -------
    Float[Array, ""]
        The pairing, in float32 at least.

    Raises
    ------
    ValueError
        If a field is not an array of floats with a row for each position, or the shapes differ.

    Examples
    --------
    >>> float(inner(jnp.ones((4, 3)), jnp.ones((4, 3)), lim.token_grid(4)))
    3.0
    """
    require_on_grid(left, grid, "left")
    require_on_grid(right, grid, "right")
    same = left.shape == right.shape
    require(
        same,
        "right",
        got=f"shape {right.shape}",
        expected=f"{left.shape}, that of left",
        cure="Pass two fields of the same features.",
    )
    return jnp.sum(integral(promote(left) * promote(right), grid))


def require_profile(profile: Any, grid: Grid, name: str) -> None:
    """Raise ValueError unless `profile` is a number or an array with one for each position."""
    if getattr(profile, "shape", ()) == ():
        require_grid(grid)
        require_scalar(profile, name)
    else:
        require_on_grid(profile, grid, name, "length")


def guarded_density(
    values: Float[Array, " length"], grid: Grid, name: str
) -> Float[Array, " length"]:
    """Return a density; using it raises if it is negative, NaN or infinite, or zero everywhere."""
    require_on_grid(values, grid, name, "length")
    return error_if_got(
        values,
        name,
        got={
            "NaN or infinity": ~jnp.isfinite(values),
            "a number below zero": values < 0,
            "zeros alone": ~(integral(values, grid) > 0),
        },
        expected="a finite density of position, nowhere negative and not zero",
        cure="Pass for example jnp.ones(grid.size).",
    )
