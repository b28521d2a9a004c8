r"""Position as a grid with a measure: nodes, weights and prefix weights on (0, 1].

A grid replaces :math:`\int_0^1 f` by :math:`\sum_i \Delta p_i f(p_i)` and every prefix integral
:math:`\int_0^{p_i} f` by :math:`\sum_j W_{ij} f(p_j)`. All that the rest of the library knows of
position comes through these numbers, so a finite Transformer and its continuum limit are one
formula on two grids.

Everything here is *density-normalised*: functions of position keep their size as the grid is
refined.
"""

from abc import abstractmethod
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from lim_jax._checks import described, require, require_floats
from lim_jax._refusal import Refusal


class Grid(eqx.Module):
    """Positions in (0, 1] with a measure and its prefix measures.

    A grid is static: it is known before tracing, holds no array leaves (but see
    `CellGrid.starting`) and can be closed over, passed to a jitted function or vmapped past at no
    cost. Its arrays have the dtype `dtype`, by default JAX's default float when they are read.
    """

    dtype: eqx.AbstractVar[DTypeLike | None]

    def __check_init__(self):
        floating = self.dtype is None or _is_floating(self.dtype)
        expected = "a floating-point dtype, or None for JAX's default"
        cure = "Pass for example jnp.float32."
        require(floating, "dtype", got=repr(self.dtype), expected=expected, cure=cure)

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of positions."""

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
        """The width of the widest cell, a Python float."""
        return float(np.diff(self._edges()).max())

    @abstractmethod
    def prefix_weights(self) -> Float[Array, "length length"]:
        r"""The weights :math:`W_{ij}` of :math:`\int_0^{p_i}`, one row for each node."""

    @property
    def past(self) -> Bool[Array, "length length"]:
        """Whether each node is in each row's prefix: its own and those left of it."""
        return self.nodes[None, :] <= self.nodes[:, None]

    def windowed(self, window: int) -> "Grid":
        """Limit each row's prefix to its last positions; only a `CellGrid` can."""
        raise Refusal(self._no_cells("window", window))

    def chunked(self, chunk: int) -> "Grid":
        """Limit each row's prefix to its chunk; only a `CellGrid` can."""
        raise Refusal(self._no_cells("chunk", chunk))

    def _no_cells(self, name: str, size: int) -> str:
        kind = type(self).__name__
        return (
            f"{name}: got {size} positions on {kind}, expected a grid of cells. "
            f"Take token_grid, or attention without a {name}."
        )

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

    @abstractmethod
    def _weights_to(self, positions: np.ndarray) -> np.ndarray:
        """The weights of the integral from 0 to any positions, a row for each."""

    @abstractmethod
    def interpolate(
        self, values: Float[Array, "length *rest"], positions: Float[Array, " points"]
    ) -> Float[Array, "points *rest"]:
        """Evaluate a smooth field, known at the nodes, at other positions."""


def require_grid(grid: Any, name: str = "grid") -> None:
    """Raise ValueError unless `grid` is a Grid: a length or an array of nodes is none."""
    cure = "Make one of the context's length, for example token_grid(48)."
    require(isinstance(grid, Grid), name, got=described(grid), expected="a Grid", cure=cure)


def require_on_grid(
    values: Any,
    grid: Any,
    name: str = "values",
    axes: str = "length *rest",
    cure: str = "",
    **sizes: int,
) -> None:
    """Raise ValueError unless `grid` is a Grid and `values` a float array with the named axes.

    ``length`` is the grid's size; other axes are as in `_checks.require_floats`.
    """
    require_grid(grid)
    require_floats(values, name, axes, cure, length=grid.size, **sizes)


def _is_floating(dtype: Any) -> bool:
    try:
        return jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        return False
