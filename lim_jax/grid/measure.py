r"""Position as a grid with a measure: nodes, weights and prefix weights on (0, 1].

A grid replaces :math:`\int_0^1 f` by :math:`\sum_i \Delta p_i f(p_i)` and every prefix integral
:math:`\int_0^{p_i} f` by :math:`\sum_j W_{ij} f(p_j)`, so a finite Transformer and its continuum
limit are one formula on two grids. Functions of position keep their size as the grid is refined.
"""

from abc import abstractmethod
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from lim_jax._checks import (
    described,
    error_if,
    error_if_got,
    require,
    require_floats,
    require_indices,
)
from lim_jax._precision import accumulator

AnyGrid = TypeVar("AnyGrid", bound="Grid")
Scalar = Float[Array, ""]
ONE_EACH = "Pass a number for each position."
REMOVED = -1e4  # stands for minus infinity in scores: finite, so that no row sums to zero


class Grid(eqx.Module):
    """Positions in (0, 1] with a measure and its prefix measures.

    Make one by `token_grid`, `midpoint_grid`, `graded_grid` or `gauss_grid`: this class is what
    they share. A grid is static: it is known before tracing and holds no array leaves, but see
    `weighted` and `CellGrid.starting`.

    Attributes
    ----------
    dtype
        The floating-point dtype of the grid's arrays; None is for JAX's default float.
    log_weights
        What attention adds to the scores of each position's key, set by `weighted`; None, the
        default, adds nothing.
    parts
        The number of each position's part, set by `weighted`: a row reads its own part as if there
        were no log weights. None, the default, is for no parts.
    """

    dtype: eqx.AbstractVar[DTypeLike | None]
    log_weights: Float[Array, "*heads length"] | None = eqx.field(default=None, kw_only=True)
    parts: Int[Array, " length"] | None = eqx.field(default=None, kw_only=True)

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
        r"""Return the weights :math:`W_{ij}` of :math:`\int_0^{p_i}`, one row for each node."""

    @property
    def past(self) -> Bool[Array, "length length"]:
        """Whether each node is in each row's prefix: its own and those left of it."""
        return self.nodes[None, :] <= self.nodes[:, None]

    def weighted(
        self: AnyGrid,
        log_weights: Float[Array, " length"],
        parts: Int[Array, " length"] | None = None,
    ) -> AnyGrid:
        r"""Weigh what attention reads at position j by :math:`e^{u_j}`: :math:`W_{ij}\,e^{u_j}`.

        An additive attention mask, the same in all layers and heads, in which everything can be
        differentiated: :math:`u_j`, the `log_weights`, is added to the scores of key j. Minus
        infinity removes the position, plus infinity raises EquinoxRuntimeError; a row that sees
        removed positions alone reads them as before, in float32 to three digits, since minus
        infinity is -10,000 here: scores that differ by as much are beyond it. A recurrent layer
        writes :math:`e^{u_j}` times as much of token j. Nodes, weights and integrals over position
        stay.

        With `parts`, the number of each position's part, a row reads its own part as before, and
        all others, and those of no part, whose number is negative, by :math:`u`. The state of a
        recurrent layer is one for all rows, and knows no parts.

        Parameters
        ----------
        log_weights
            The logarithm of each position's weight, below infinity; minus infinity leaves a
            position out.
        parts
            The number of each position's part, negative for none; None where every row reads by
            the weights.

        Returns
        -------
        Grid
            The same positions, with these weights in place of any that the grid had.

        Raises
        ------
        ValueError
            If `log_weights` has not a floating-point number, or `parts` not a whole number, for
            each position.
        EquinoxRuntimeError
            If a logarithm is plus infinity or NaN.

        Examples
        --------
        >>> flat = jnp.zeros((3, 1))
        >>> grid = lim.token_grid(3).weighted(jnp.array([-jnp.inf, 0.0, jnp.log(3.0)]))
        >>> lim.network.attention_weights(flat, flat, grid).round(2).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.25, 0.75]]
        """
        require_floats(log_weights, "log_weights", "length", ONE_EACH, length=self.size)
        message = (
            "log_weights: got infinity or NaN, expected numbers below infinity. Pass logarithms of "
            "weights from 0 on, -inf to leave a position out."
        )
        log_weights = error_if(log_weights, ~(log_weights < jnp.inf), message)
        log_weights = jnp.maximum(log_weights, REMOVED)
        if parts is not None:
            require_indices(parts, "parts")
            require(
                parts.shape == (self.size,),
                "parts",
                got=f"{parts.shape[0]} of them",
                expected=f"{self.size}, one for each position",
                cure=ONE_EACH,
            )
        return replace(self, log_weights=log_weights, parts=parts)

    def mask(self, rows: Int[Array, " rows"] | None = None) -> Float[Array, "_ length"]:
        """Return the log weights to add to scores, zero where a row reads keys of its own part.

        Of all rows, or of those with these numbers; one is given for all where there are no parts.
        """
        assert self.log_weights is not None
        if self.parts is None:
            return self.log_weights[None]
        row_parts = self.parts if rows is None else self.parts[rows]
        same_part = (row_parts[:, None] == self.parts[None]) & (self.parts >= 0)[None]
        return jnp.where(same_part, 0, self.log_weights[None])

    @property
    def in_single_precision(self: AnyGrid) -> AnyGrid:
        """The same positions, in float32 where they are in half precision: for sums over them."""
        dtype = self.weights.dtype
        # Weights of few bits are off by one factor on equal cells, which no sum averages out.
        return self if accumulator(dtype) == dtype else replace(self, dtype=accumulator(dtype))

    @property
    def unmasked(self: AnyGrid) -> AnyGrid:
        """The same positions, without log weights."""
        return replace(self, log_weights=None, parts=None)

    def has_positions_of(self, other: "Grid") -> bool:
        """Tell whether another grid has the same positions, in any precision and however masked."""
        # Of positions alone: where prefixes start and what they weigh may be traced.
        ours = replace(self.unmasked, dtype=None)
        return bool(ours == replace(other.unmasked, dtype=None))

    @abstractmethod
    def centres(self) -> Float[Array, " length"]:
        """Return the middle of each cell, in the coordinate in which the cells are equal."""

    def _cast(self, values: np.ndarray) -> Float[Array, "..."]:
        """Convert numbers of double precision to the grid's dtype."""
        return jnp.asarray(values, self.dtype or float)

    @abstractmethod
    def _nodes(self) -> np.ndarray:
        """Return the nodes as NumPy float64."""

    @abstractmethod
    def _weights(self) -> np.ndarray:
        """Return the weights as NumPy float64."""

    @abstractmethod
    def _edges(self) -> np.ndarray:
        """Return the cell edges as NumPy float64, from 0 to 1."""

    @abstractmethod
    def _nodes_below(self, position: Fraction) -> int:
        """Count the nodes strictly left of an exact position."""

    @abstractmethod
    def _weights_to(self, positions: np.ndarray) -> np.ndarray:
        """Return the weights of the integral from 0 to any positions, a row for each."""

    @abstractmethod
    def interpolate(
        self, values: Float[Array, " length *rest"], positions: Float[Array, " points"]
    ) -> Float[Array, " points *rest"]:
        """Evaluate a smooth field, known at the nodes, at other positions in [0, 1]."""


def require_grid(grid: Any, name: str = "grid") -> None:
    """Raise ValueError unless `grid` is a Grid: a length or an array of nodes is none."""
    require(
        isinstance(grid, Grid),
        name,
        got=described(grid),
        expected="a Grid",
        cure="Make one of the context's length, for example token_grid(48).",
    )


def require_on_grid(
    values: Any,
    grid: Any,
    name: str = "values",
    axes: str = "length *rest",
    cure: str = "",
    **sizes: int,
) -> None:
    """Raise ValueError unless `values` are floats with these axes, ``length`` the grid's."""
    require_grid(grid)
    cure = cure or f"Pass an array of this shape, whose length is the grid's {grid.size} positions."
    require_floats(values, name, axes, cure, length=grid.size, **sizes)


def checked_positions(positions: Any) -> Float[Array, " points"]:
    """Return an array of positions along one axis; where one is not in [0, 1] its use raises."""
    require_floats(positions, "positions", "points")
    return error_if_got(
        positions,
        "positions",
        got={"a number below zero or NaN": ~(positions >= 0), "a number above one": positions > 1},
        expected="numbers in [0, 1]",
        cure="Divide token numbers by the length.",
    )


def as_dtype(dtype: Any) -> np.dtype | None:
    """Return a floating-point dtype, however it is spelt, or None; raise ValueError at others."""
    floating = dtype is None or _is_floating(dtype)
    require(
        floating,
        "dtype",
        got=repr(dtype),
        expected="a floating-point dtype, or None for JAX's default",
        cure="Pass for example jnp.float32.",
    )
    return None if dtype is None else jnp.dtype(dtype)


def _is_floating(dtype: Any) -> bool:
    """Tell whether this names a floating-point dtype."""
    try:
        return jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        return False
