r"""Position as a grid with a measure: nodes, weights and prefix weights on (0, 1].

A grid replaces :math:`\int_0^1 f` by :math:`\sum_i \Delta p_i f(p_i)` and every prefix integral
:math:`\int_0^{p_i} f` by :math:`\sum_j W_{ij} f(p_j)`. All that the rest of the library knows of
position comes through these numbers, so a finite Transformer and its continuum limit are one
formula on two grids.

Everything here is *density-normalised*: functions of position keep their size as the grid is
refined.
"""

from abc import abstractmethod
from bisect import bisect_left
from fractions import Fraction
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from lim_jax._checks import guarded, require

Convention = Literal["overlap", "points"]


class Grid(eqx.Module):
    """Positions in (0, 1] with a measure and its prefix measures.

    A grid is static: it is known before tracing, holds no array leaves, and can be closed over,
    passed to a jitted function or vmapped past at no cost. Its arrays have the dtype `dtype`,
    by default the precision that JAX is set to when they are asked for.
    """

    size: eqx.AbstractVar[int]
    dtype: eqx.AbstractVar[DTypeLike | None]

    @property
    def nodes(self) -> Float[Array, " length"]:
        """The positions :math:`p_i`, increasing."""
        return self._cast(self._nodes())

    @property
    def weights(self) -> Float[Array, " length"]:
        r"""The weights :math:`\Delta p_i` of :math:`\int_0^1`."""
        return self._cast(self._weights())

    @property
    def edges(self) -> Float[Array, " edges"]:
        r"""The ends of the cells :math:`I_l = (e_{l-1}, e_l]` around the nodes."""
        return self._cast(self._edges())

    @property
    def widest_cell(self) -> float:
        """The width of the widest cell, known before tracing."""
        return float(np.diff(self._edges()).max())

    @abstractmethod
    def prefix_weights(self) -> Float[Array, "length length"]:
        r"""The weights :math:`W_{ij}` of :math:`\int_0^{p_i}`, one row for each node."""

    @abstractmethod
    def centres(self) -> Float[Array, " length"]:
        """The middle of each cell, in the coordinate in which the cells are equal."""

    def _cast(self, values: np.ndarray) -> Float[Array, "..."]:
        return jnp.asarray(values, self.dtype or float)

    @abstractmethod
    def _nodes(self) -> np.ndarray:
        """The nodes as NumPy float64."""

    @abstractmethod
    def _weights(self) -> np.ndarray:
        """The weights as NumPy float64."""

    @abstractmethod
    def _edges(self) -> np.ndarray:
        """The cell edges as NumPy float64, from 0 to 1."""

    @abstractmethod
    def _nodes_below(self, position: Fraction) -> int:
        """Count the nodes strictly left of an exact position."""


class CellGrid(Grid):
    r"""The image of equal cells under :math:`p = \xi^g`, with one node in each cell.

    The nodes are :math:`p_i = ((i - a)/L)^g`, the cells :math:`I_i = (((i-1)/L)^g, (i/L)^g]`, and
    the weights :math:`g\,\xi_i^{g-1}/L`. Prefix weights are non-negative: a whole cell for
    :math:`j < i` and the fraction :math:`1 - a` of the node's own cell.

    Attributes
    ----------
    size
        The number of cells, :math:`L`.
    offset
        :math:`a`, how far (in cells) the node stands left of its cell's right end.
    power
        :math:`g`, the grading towards position 0.
    dtype
        The dtype of the arrays; None takes JAX's default float.

    Raises
    ------
    ValueError
        Where `size` is not a positive whole number.
    """

    size: int = eqx.field(static=True)
    offset: Fraction = eqx.field(static=True)
    power: int = eqx.field(static=True, default=1)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        require(
            isinstance(self.size, int) and self.size >= 1,
            "size",
            got=repr(self.size),
            expected="a positive int, the number of cells",
            cure="Pass the context length, for example token_grid(48).",
        )

    def prefix_weights(self) -> Float[Array, "length length"]:
        """Whole cells left of the node's own, and the part of its own left of the node."""
        weights = self.weights
        row, column = jnp.arange(self.size)[:, None], jnp.arange(self.size)[None, :]
        own_cell = jnp.where(row == column, float(1 - self.offset), 0.0)
        covered = jnp.where(column < row, 1.0, own_cell).astype(weights.dtype)
        return covered * weights[None, :]

    def centres(self) -> Float[Array, " length"]:
        """The image of the middle of each equal cell."""
        middle = (np.arange(1, self.size + 1) - 0.5) / self.size
        return self._cast(middle**self.power)

    def _nodes(self) -> np.ndarray:
        return self._equal_nodes() ** self.power

    def _weights(self) -> np.ndarray:
        return self.power * self._equal_nodes() ** (self.power - 1) / self.size

    def _edges(self) -> np.ndarray:
        return (np.arange(self.size + 1) / self.size) ** self.power

    def _nodes_below(self, position: Fraction) -> int:
        # Exact rationals: in floats 41/50 < 1 - 0.18, though both are 0.82.
        def node(index: int) -> Fraction:
            return ((index + 1 - self.offset) / self.size) ** self.power

        return bisect_left(range(self.size), position, key=node)

    def _equal_nodes(self) -> np.ndarray:
        return (np.arange(1, self.size + 1) - float(self.offset)) / self.size


def token_grid(size: int, dtype: DTypeLike | None = None) -> CellGrid:
    r"""The paper's token grid: :math:`p_i = i/L`, right-endpoint cells, :math:`\Delta p_i = 1/L`.

    Prefix weights are uniform on :math:`j \le i`, so attention on this grid is exactly the finite
    causal softmax (`eq:causal-attention-weights`). Prefix sums are of order 1.

    Examples
    --------
    >>> token_grid(4).nodes.tolist()
    [0.25, 0.5, 0.75, 1.0]
    >>> token_grid(3).prefix_weights().tolist()[1]  # 1/L on j <= i
    [0.3333333333333333, 0.3333333333333333, 0.0]
    """
    return CellGrid(size, offset=Fraction(0), dtype=dtype)


def midpoint_grid(size: int, dtype: DTypeLike | None = None) -> CellGrid:
    r"""Nodes in the middle of equal cells; half of the own cell in each prefix.

    Attention on it is a causal softmax with :math:`-\log 2` on the diagonal. Prefix sums are of
    order 2 inside and of order 1 at the first token.

    Examples
    --------
    >>> midpoint_grid(2).nodes.tolist()
    [0.25, 0.75]
    >>> midpoint_grid(2).prefix_weights().tolist()
    [[0.25, 0.0], [0.5, 0.25]]
    """
    return CellGrid(size, offset=Fraction(1, 2), dtype=dtype)


def graded_grid(size: int, dtype: DTypeLike | None = None) -> CellGrid:
    r"""Midpoints of equal cells in :math:`\xi`, with :math:`p = \xi^3`: fine near position 0.

    The adjoint of causal averaging grows like :math:`\log(1/p)` at 0; the grading resolves it,
    which makes regional influence of order 2 where equal cells have less than 1. The weights
    :math:`3\xi_i^2/L` sum to :math:`1 - 1/(4L^2)`.

    Examples
    --------
    >>> graded_grid(2).nodes.tolist()
    [0.015625, 0.421875]
    """
    return CellGrid(size, offset=Fraction(1, 2), power=3, dtype=dtype)


def integral(values: Float[Array, "length *rest"], grid: Grid) -> Float[Array, "*rest"]:
    r"""Integrate over position: :math:`\sum_i \Delta p_i f_i`.

    Examples
    --------
    >>> grid = midpoint_grid(100)
    >>> round(float(integral(grid.nodes**2, grid)), 4)
    0.3333
    """
    return jnp.tensordot(grid.weights, values, axes=1)


def inner(
    left: Float[Array, "length *rest"], right: Float[Array, "length *rest"], grid: Grid
) -> Float[Array, ""]:
    r"""The grid's :math:`L^2` pairing :math:`\sum_i \Delta p_i\, a_i \cdot b_i`.

    Examples
    --------
    >>> float(inner(jnp.ones((4, 3)), jnp.ones((4, 3)), token_grid(4)))
    3.0
    """
    return jnp.sum(integral(left * right, grid))


def cell_embedding(
    values: Float[Array, "length *rest"], grid: Grid, positions: Float[Array, " points"]
) -> Float[Array, "points *rest"]:
    r"""Evaluate the cellwise constant field :math:`\mathcal E_L(v)(p) = v_l`, :math:`p \in I_l`.

    This is the embedding of `eq:terminal-adjoint-density-embedding`. Position 0, which belongs to
    no cell, takes the first cell's value. Differentiable in `values`; not in `positions`.

    Raises
    ------
    EquinoxRuntimeError
        Where a position lies outside [0, 1].

    Examples
    --------
    >>> cell_embedding(jnp.array([1.0, 2.0]), token_grid(2), jnp.array([0.1, 0.5, 0.6])).tolist()
    [1.0, 1.0, 2.0]
    """
    outside = ~jnp.all((positions >= 0) & (positions <= 1))
    positions = guarded(positions, outside, "positions: expected numbers in [0, 1], got others.")
    cells = jnp.searchsorted(grid.edges, positions, side="left") - 1
    return values[jnp.clip(cells, 0, grid.size - 1)]


class Regions(eqx.Module):
    r"""The partition :math:`E_L=[0,\delta),\ E_M=[\delta,1-\delta),\ E_R=[1-\delta,1]` on a grid.

    Made by `boundary_regions`. Static, like its grid.

    Attributes
    ----------
    grid
        The grid that is divided.
    delta
        :math:`\delta`, exactly.
    convention
        ``"overlap"`` shares a cell between regions by its overlap with them; ``"points"`` gives
        each cell to the region that its node lies in.
    """

    grid: Grid
    delta: Fraction = eqx.field(static=True)
    convention: Convention = eqx.field(static=True)

    def __check_init__(self):
        empty = [
            name
            for name, weights in zip(("left", "middle", "right"), self._host_weights(), strict=True)
            if not weights.any()
        ]
        require(
            not empty,
            "regions",
            got=f"no node in the {' and '.join(empty)} region of {self.grid.size} positions "
            f"at delta = {self.delta}",
            expected="at least one node in each region",
            cure='Take a larger delta, a longer context, or convention="overlap".',
        )

    @property
    def weights(self) -> Float[Array, "3 length"]:
        r"""Row by row :math:`\Delta p_i` times the fraction of cell i in E_L, E_M and E_R.

        Row sums are the regions' sizes; column sums are :math:`\Delta p_i`.
        """
        return self.grid._cast(self._host_weights())

    def _host_weights(self) -> np.ndarray:
        below = [self._below(position) for position in (self.delta, 1 - self.delta)]
        fractions = np.stack([below[0], below[1] - below[0], 1 - below[1]])
        return fractions * self.grid._weights()

    def _below(self, position: Fraction) -> np.ndarray:
        """The fraction of each cell that counts as left of `position`."""
        if self.convention == "points":
            return (np.arange(self.grid.size) < self.grid._nodes_below(position)).astype(float)
        edges = self.grid._edges()
        return np.clip((float(position) - edges[:-1]) / np.diff(edges), 0, 1)


def boundary_regions(
    grid: Grid, delta: float | str | Fraction, convention: Convention = "overlap"
) -> Regions:
    r"""Divide the context into left, middle and right as the paper does, half-open and exactly.

    Parameters
    ----------
    grid
        The grid to divide.
    delta
        :math:`\delta \in (0, 1/2)`. A float stands for the decimal that it prints, a string such
        as ``"1/7"`` for the rational that it spells.
    convention
        ``"overlap"`` (default; the convention of the paper's table) or ``"points"`` (that of its
        condition numbers and of `eq:discrete-right-middle-sets`).

    Raises
    ------
    ValueError
        Where delta is not in (0, 1/2), or a region holds no node (``"points"`` only).

    Examples
    --------
    >>> points = boundary_regions(token_grid(48), 0.2, "points")
    >>> [int(count) for count in jnp.round(48 * points.weights.sum(axis=1))]
    [9, 29, 10]
    >>> overlap = boundary_regions(token_grid(48), 0.2)
    >>> [round(float(size), 6) for size in overlap.weights.sum(axis=1)]
    [0.2, 0.6, 0.2]
    """
    require(
        convention in ("overlap", "points"),
        "convention",
        got=repr(convention),
        expected='"overlap" or "points"',
        cure="See boundary_regions.",
    )
    exact = _exact_fraction(delta)
    require(
        0 < exact < Fraction(1, 2),
        "delta",
        got=str(delta),
        expected="a number strictly between 0 and 1/2",
        cure="delta is the width of each boundary region; the paper takes 0.2.",
    )
    return Regions(grid, exact, convention)


def regional_averages(
    values: Float[Array, "length *rest"], regions: Regions
) -> Float[Array, "3 *rest"]:
    r"""Average a function of position over E_L, E_M and E_R.

    On the token grid this is :math:`\frac1\delta\int_{E_L} f` and so on
    (`eq:gd-left-average`, `eq:gd-middle-average`, `eq:gd-right-average`).

    Examples
    --------
    >>> grid = token_grid(10)
    >>> [round(float(a), 3) for a in regional_averages(grid.nodes, boundary_regions(grid, 0.2))]
    [0.15, 0.55, 0.95]
    """
    weights = regions.weights
    sizes = weights.sum(axis=1).reshape(3, *(1 for _ in values.shape[1:]))
    return jnp.tensordot(weights, values, axes=1) / sizes


def _exact_fraction(delta: float | str | Fraction) -> Fraction:
    if isinstance(delta, Fraction):
        return delta
    try:
        return Fraction(str(delta))
    except ValueError as error:
        raise ValueError(
            f"delta: got {delta!r}, expected a number known before tracing. "
            "Regions are static: pass a Python float, a Fraction or a string."
        ) from error
