"""Regions and intervals: which part of each cell is in them, and averages over them."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._argument_error import Refusal
from lim_jax._checks import ARRAYS, as_int, described, require, require_name
from lim_jax._precision import promote
from lim_jax.grid.measure import Grid, require_grid, require_on_grid

Convention = Literal["overlap", "points"]
Exact = int | float | str | Fraction
Intervals = Sequence[tuple[Exact, Exact]]
REGIONS = ("left", "middle", "right")
LEFT, MIDDLE, RIGHT = range(3)


class Regions(eqx.Module):
    r"""The partition :math:`E_L=[0,\delta),\ E_M=[\delta,1-\delta),\ E_R=[1-\delta,1]` on a grid.

    Convention ``"overlap"`` shares a cell between regions by its overlap with them (a
    Gauss--Legendre panel by the integral of its polynomial); ``"points"`` gives each cell to the
    region that its node lies in. Positions in `left_out` belong to no region; see `without`.
    """

    grid: Grid
    delta: Fraction = eqx.field(static=True)
    convention: Convention = eqx.field(static=True)
    left_out: tuple[int, ...] = eqx.field(static=True, default=())

    def __check_init__(self):
        """Raise ValueError if a region has no node."""
        names = zip(REGIONS, self._host_weights(), strict=True)
        empty = " and ".join(name for name, weights in names if not weights.any())
        overlap = ', or convention="overlap"' if self.convention == "points" else ""
        fewer = ", or leave fewer positions out" if self.left_out else ""
        require(
            not empty,
            "regions",
            got=(
                f"no node in the {empty} region of {self.grid.size} positions at delta = "
                f"{self.delta}, {len(self.left_out)} of them left out"
            ),
            expected="at least one node in each region",
            cure=f"Take a larger delta or a longer context{overlap}{fewer}.",
        )

    @property
    def weights(self) -> Float[Array, "3 length"]:
        r"""The weights of the integrals over E_L, E_M and E_R: parts of :math:`\Delta p_i`.

        Row sums are the regions' sizes; column sums are :math:`\Delta p_i`, or zero where left out.
        """
        return self.grid._cast(self._host_weights())

    @property
    def kept_weights(self) -> Float[Array, " length"]:
        r"""The weights :math:`\Delta p_i` of the positions kept; zero where left out."""
        return self.grid._cast(self._without_left_out(self.grid._weights()))

    @property
    def in_single_precision(self) -> "Regions":
        """The same regions, of a grid in float32 where theirs is in half precision."""
        grid = self.grid.in_single_precision
        return self if grid is self.grid else replace(self, grid=grid)

    def same_as(self, other: "Regions") -> bool:
        """Tell whether other regions divide the same positions alike, in any precision and mask."""
        same_positions = self.grid.has_positions_of(other.grid)
        ours = self.delta, self.convention, self.left_out
        theirs = other.delta, other.convention, other.left_out
        return same_positions and ours == theirs

    def without(self, positions: Sequence[int] | Int[Array | np.ndarray, " some"]) -> "Regions":
        """Leave positions out of all regions: integrals and averages are over the others."""
        last = self.grid.size - 1
        expected = f"a list of whole numbers from 0 to {last}"
        cure = "Pass position numbers of the grid, of which the last is L - 1."
        listed = isinstance(positions, Sequence) and not isinstance(positions, str)
        along_one_axis = isinstance(positions, ARRAYS) and positions.ndim == 1
        require(
            listed or along_one_axis,
            "positions",
            got=described(positions),
            expected=expected,
            cure=cure,
        )
        added = {
            as_int(position, "positions", least=0, most=last, expected=expected, cure=cure)
            for position in positions
        }
        left_out = tuple(sorted({*self.left_out, *added}))
        return Regions(self.grid, self.delta, self.convention, left_out)

    def _host_weights(self) -> np.ndarray:
        """Return the weights of the integrals over E_L, E_M and E_R as NumPy float64."""
        return self._without_left_out(_region_weights(self.grid, self.delta, self.convention))

    def _without_left_out(self, weights: np.ndarray) -> np.ndarray:
        """Set the weights of positions that are left out to zero."""
        inside = ~np.isin(np.arange(self.grid.size), self.left_out)
        return np.where(inside, weights, 0.0)


def boundary_regions(
    grid: Grid, delta: float | str | Fraction, convention: Convention = "overlap"
) -> Regions:
    r"""Divide the context into left, middle and right as the paper does, half-open and exactly.

    Parameters
    ----------
    grid
        The positions to divide.
    delta
        The width :math:`\delta \in (0, 1/2)` of the left and of the right region, known before
        tracing: a float stands for the decimal that it prints, a string such as ``"1/7"`` for the
        rational that it spells.
    convention
        ``"overlap"``, the default and that of the paper's table, shares a cell between regions by
        its overlap with them. ``"points"``, that of its condition numbers and of
        `eq:discrete-right-middle-sets`, gives each cell to the region that its node lies in.

    Returns
    -------
    Regions
        The partition :math:`E_L=[0,\delta)`, :math:`E_M=[\delta,1-\delta)`,
        :math:`E_R=[1-\delta,1]` with its weights.

    Raises
    ------
    ValueError
        If `grid` is not a Grid, `delta` is out of its range or traced, `convention` is neither of
        the two, or a region holds no node by ``"points"``.

    Examples
    --------
    >>> points = boundary_regions(lim.token_grid(48), 0.2, "points")
    >>> [int(count) for count in jnp.round(48 * points.weights.sum(axis=1))]
    [9, 29, 10]
    >>> overlap = boundary_regions(lim.token_grid(48), 0.2)
    >>> [round(float(size), 6) for size in overlap.weights.sum(axis=1)]
    [0.2, 0.6, 0.2]
    """
    require_grid(grid)
    exact = exact_fraction(delta)
    require(
        0 < exact < Fraction(1, 2),
        "delta",
        got=str(delta),
        expected="a number strictly between 0 and 1/2",
        cure="Take 0.2 as the paper does: delta is the width of each boundary region.",
    )
    return Regions(grid, exact, convention)


def interval_weights(
    grid: Grid, intervals: Intervals, convention: Convention = "overlap"
) -> Float[Array, " length"]:
    r"""Give the weights of :math:`\int_B` for a union B of half-open intervals :math:`[a, b)`.

    They include position 1 where b is 1. The weights are parts of :math:`\Delta p_i`; what
    intervals share counts once. Ends are read as delta is.
    """
    require_grid(grid)
    expected = "pairs (a, b) with 0 <= a <= b <= 1"
    cure = "Pass for example [(0, 0.2), (0.8, 1)]."
    are_pairs = isinstance(intervals, Sequence) and all(
        isinstance(pair, Sequence) and len(pair) == 2 for pair in intervals
    )
    require(are_pairs, "intervals", got=described(intervals), expected=expected, cure=cure)
    weights = np.zeros(grid.size)
    reached = Fraction(0)
    ends = [tuple(exact_fraction(end, "intervals") for end in pair) for pair in intervals]
    for start, stop in sorted(ends):
        inside = 0 <= start <= stop <= 1
        require(inside, "intervals", got=f"[{start}, {stop})", expected=expected, cure=cure)
        start = max(start, reached)
        stop = max(stop, reached)
        reached = stop
        weights += _weights_below(grid, stop, convention) - _weights_below(grid, start, convention)
    return grid._cast(weights)


def has_all_regions(grid: Grid, delta: Fraction, convention: Convention) -> bool:
    """Tell whether each region has a node; by points a few positions have none in some region."""
    return bool(_region_weights(grid, delta, convention).any(axis=1).all())


def _region_weights(grid: Grid, delta: Fraction, convention: Convention) -> np.ndarray:
    """Return the weights of the integrals over E_L, E_M and E_R as NumPy float64."""
    left, boundary = (_weights_below(grid, end, convention) for end in (delta, 1 - delta))
    return np.stack([left, boundary - left, grid._weights() - boundary])


def _weights_below(grid: Grid, end: Fraction, convention: Convention) -> np.ndarray:
    """Return the weights of the integral over [0, end), and over [0, 1] where the end is 1."""
    require_name(
        convention,
        ("overlap", "points"),
        "convention",
        "Pass one of these names, which boundary_regions explains.",
    )
    if end == 1:
        return grid._weights()
    if convention == "points":
        return np.where(np.arange(grid.size) < grid._nodes_below(end), grid._weights(), 0.0)
    return grid._weights_to(np.array([end], dtype=float))[0]


def regional_averages(
    values: Float[Array, " length *rest"], regions: Regions
) -> Float[Array, " 3 *rest"]:
    r"""Average a function of position over E_L, E_M and E_R.

    On the token grid this is :math:`\frac1\delta\int_{E_L} f` and so on (`eq:gd-left-average`,
    `eq:gd-middle-average`, `eq:gd-right-average`).

    Parameters
    ----------
    values
        The function f at each position, such as a density: a first axis of positions, and any
        others. NaN and infinity pass on, to the regions that they lie in alone.
    regions
        The regions of the same grid, by `boundary_regions`. Positions that they leave out do not
        count.

    Returns
    -------
    Float[Array, "3 *rest"]
        The averages over left, middle and right, in this order and in the unit of `values`; in
        float32 at least.

    Raises
    ------
    ValueError
        If `regions` is not Regions, or `values` is not an array of floats with a row for each of
        their positions.

    Examples
    --------
    >>> grid = lim.token_grid(10)
    >>> [round(float(a), 3) for a in regional_averages(grid.nodes, boundary_regions(grid, 0.2))]
    [0.15, 0.55, 0.95]
    """
    require_regions(regions)
    require_on_grid(values, regions.grid)
    return _averages(promote(values), regions.in_single_precision.weights)


@jax.jit
def _averages(values: Array, weights: Float[Array, "3 length"]) -> Array:
    """Average values over three regions, each given by its weights."""
    shares = weights.reshape(*weights.shape, *(1 for _ in values.shape[1:]))
    # Outside a region a weight is zero, and zero times NaN or infinity would be NaN.
    inside = jnp.where(shares != 0, values, 0)
    return (shares * inside).sum(axis=1) / shares.sum(axis=1)


def require_regions(regions: Any, grid: Grid | None = None) -> None:
    """Raise ValueError unless these are Regions, of the positions of `grid` where it is given."""
    cure = "Make them with boundary_regions(grid, delta)."
    require(
        isinstance(regions, Regions),
        "regions",
        got=described(regions),
        expected="Regions of a grid",
        cure=cure,
    )
    if grid is None:
        return
    same = grid.has_positions_of(regions.grid)
    require(
        same,
        "regions",
        got=f"regions of {regions.grid.unmasked}",
        expected=f"regions of {grid.unmasked}",
        cure=cure,
    )


def exact_fraction(value: Exact, name: str = "delta") -> Fraction:
    """Return the decimal that a number prints, exactly; raise ValueError if it is not known."""
    if isinstance(value, Fraction):
        return value
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise Refusal(
            f"{name}: got {described(value)}, expected a finite number known before "
            "tracing. Pass a Python float, a Fraction or a string: regions are static."
        ) from error
