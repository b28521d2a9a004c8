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
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from numbers import Real
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from lim_jax._checks import (
    counted,
    described,
    guarded,
    require,
    require_floats,
    require_indices,
    require_scalar,
)

Convention = Literal["overlap", "points"]
Exact = int | float | str | Fraction
Intervals = Sequence[tuple[Exact, Exact]]
Starts = Int[Array, " length"]
LENGTH = "Pass the context length, for example token_grid(48)."
NODES = "64 nodes on one panel give ten digits for smooth fields."


class Grid(eqx.Module):
    """Positions in (0, 1] with a measure and its prefix measures.

    A grid is static: it is known before tracing, holds no array leaves, and can be closed over,
    passed to a jitted function or vmapped past at no cost. (Only where prefixes begin is data: see
    `CellGrid.starting`.) Its arrays have the dtype `dtype`, by default the precision that JAX is
    set to when they are asked for.
    """

    dtype: eqx.AbstractVar[DTypeLike | None]

    def __check_init__(self):
        require(
            self.dtype is None or _is_floating(self.dtype),
            "dtype",
            got=repr(self.dtype),
            expected="a floating-point dtype, or None for JAX's default",
            cure="Pass for example jnp.float32.",
        )

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
        """The width of the widest cell, known before tracing."""
        return float(np.diff(self._edges()).max())

    @abstractmethod
    def prefix_weights(self) -> Float[Array, "length length"]:
        r"""The weights :math:`W_{ij}` of :math:`\int_0^{p_i}`, one row for each node."""

    @property
    def past(self) -> Bool[Array, "length length"]:
        """Which nodes are in each row's prefix: its own and those left of it."""
        return self.nodes[None, :] <= self.nodes[:, None]

    def windowed(self, window: int) -> "Grid":
        """Let each row's prefix be its last positions only, where prefixes are of whole cells."""
        raise ValueError(
            f"window: got {window} positions on {type(self).__name__}, expected a grid of cells. "
            "Take token_grid, or attention without a window."
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


class CellGrid(Grid):
    r"""The image of equal cells under :math:`p = \xi^g`, with one node in each cell.

    The nodes are :math:`p_i = ((i - a)/L)^g`, the cells :math:`I_i = (((i-1)/L)^g, (i/L)^g]`, and
    the weights :math:`g\,\xi_i^{g-1}/L`. Prefix weights are non-negative: a whole cell for
    :math:`j < i` and the fraction :math:`1 - a` of the node's own cell.

    Attributes
    ----------
    cells
        The number of cells, :math:`L`.
    offset
        :math:`a`, how far (in cells) the node stands left of its cell's right end.
    power
        :math:`g`, the grading towards position 0.
    dtype
        The dtype of the arrays; None takes JAX's default float.
    starts
        Where each row's prefix begins, made by `starting` or `windowed`; None for prefixes that
        all begin at the first position. The only array that a grid may hold.

    Raises
    ------
    ValueError
        Where `cells` is not a positive whole number known before tracing, or the dtype is not
        floating.
    """

    cells: int = eqx.field(static=True, converter=partial(counted, name="size", cure=LENGTH))
    offset: Fraction = eqx.field(static=True)
    power: int = eqx.field(static=True, default=1)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    starts: Starts | None = None

    @property
    def size(self) -> int:
        """The number of cells."""
        return self.cells

    def starting(self, starts: Starts) -> "CellGrid":
        r"""Let row i's prefix begin somewhere: :math:`W_{ij}` is zero for j < start_i.

        Packed contexts do not see each other, and nothing sees padding on the left:
        `segment_starts` of their numbers or of the mask. Nodes, weights and integrals over position
        stay as they are; what has prefixes, such as attention, takes these. Where prefixes begin
        twice, in a window of a packed row, the later start counts.

        Parameters
        ----------
        starts
            The first position that each row sees, from 0 to its own; may be traced.

        Raises
        ------
        ValueError
            Where there is not a whole number for each position.
        EquinoxRuntimeError
            Where a prefix begins before the first position or after its own.

        Examples
        --------
        >>> grid = token_grid(4).starting(jnp.array([0, 0, 2, 2]))
        >>> (4 * grid.prefix_weights()).astype(int).tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
        """
        require_indices(starts, "starts")
        require(
            starts.shape == (self.size,),
            "starts",
            got=f"{starts.shape[0]} of them",
            expected=f"{self.size}, one for each position",
            cure="Say for every row where its prefix begins.",
        )
        late = (starts < 0) | (starts > jnp.arange(self.size))
        message = "starts: expected numbers from 0 to the row's own, got others."
        return self._begun(guarded(starts, late, message))

    def windowed(self, window: int) -> "CellGrid":
        """Let each row's prefix be its last `window` positions, its own included.

        Examples
        --------
        >>> (3 * token_grid(3).windowed(2).prefix_weights()).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
        """
        window = counted(window, "window", cure="A window holds the row's own position at least.")
        if window >= self.size:
            return self
        return self._begun(jnp.maximum(jnp.arange(self.size) - window + 1, 0))

    def _begun(self, starts: Starts) -> "CellGrid":
        later = starts if self.starts is None else jnp.maximum(starts, self.starts)
        return replace(self, starts=later)

    @property
    def whole(self) -> "CellGrid":
        """The same positions, with prefixes that all begin at the first."""
        return replace(self, starts=None)

    @property
    def past(self) -> Bool[Array, "length length"]:
        """Which positions are in each row's prefix, from its start to its own."""
        row, column = jnp.arange(self.size)[:, None], jnp.arange(self.size)[None, :]
        past = column <= row
        return past if self.starts is None else past & (column >= self.starts[:, None])

    def prefix_weights(self) -> Float[Array, "length length"]:
        """Whole cells left of the node's own, and the part of its own left of the node."""
        weights = self.weights
        own_cell = jnp.eye(self.size, dtype=bool)
        covered = jnp.where(own_cell, float(1 - self.offset), 1.0).astype(weights.dtype)
        return jnp.where(self.past, covered * weights[None, :], 0)

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

    def _weights_to(self, positions: np.ndarray) -> np.ndarray:
        edges = self._edges()
        covered = np.clip((positions[:, None] - edges[:-1]) / np.diff(edges), 0, 1)
        return covered * self._weights()

    def interpolate(
        self, values: Float[Array, "length *rest"], positions: Float[Array, " points"]
    ) -> Float[Array, "points *rest"]:
        """Interpolate linearly; beyond the first and last node, continue the nearest line."""
        require_on_grid(values, self)
        require_floats(positions, "positions", "points")
        require(
            self.size > 1,
            "grid",
            got="one node",
            expected="at least two",
            cure="A line needs two points.",
        )
        nodes = self.nodes
        left = jnp.clip(jnp.searchsorted(nodes, positions) - 1, 0, self.size - 2)
        share = (positions - nodes[left]) / (nodes[left + 1] - nodes[left])
        share = share.reshape(-1, *(1 for _ in values.shape[1:]))
        return (1 - share) * values[left] + share * values[left + 1]

    def _equal_nodes(self) -> np.ndarray:
        return (np.arange(1, self.size + 1) - float(self.offset)) / self.size


class PanelGrid(Grid):
    r"""Gauss--Legendre nodes on panels: the continuum itself, to rounding, for smooth fields.

    On each panel a field is its interpolating polynomial. Prefix weights are the exact integrals
    of the interpolant: dense, signed, and spectrally accurate. Attention on this grid is therefore
    the Volterra operator, not a causal matrix: inside a panel a row may weigh nodes ahead of it.

    Attributes
    ----------
    breaks
        The panels' ends, from 0 to 1.
    order
        The number of nodes on each panel.
    dtype
        The dtype of the arrays; None takes JAX's default float.

    Raises
    ------
    ValueError
        Where the breaks do not increase from 0 to 1, `order` is not a positive whole number, the
        dtype is not floating, or the weights fail their own identities.
    """

    breaks: tuple[float, ...] = eqx.field(static=True)
    order: int = eqx.field(static=True, converter=partial(counted, name="order", cure=NODES))
    dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        require(
            isinstance(self.breaks, tuple)
            and all(isinstance(end, Real) for end in self.breaks)
            and self.breaks[:1] == (0,)
            and self.breaks[-1:] == (1,)
            and bool(np.all(np.diff(self.breaks) > 0)),
            "breaks",
            got=f"{self.breaks}",
            expected="a tuple of numbers that increase from 0 to 1",
            cure="One panel is (0, 1).",
        )
        self._check_identities()

    def _check_identities(self) -> None:
        """Gauss weights integrate degree 2 order - 1, prefix weights degree order - 1."""
        nodes, degree = self._nodes(), self.order - 1
        prefix = self._weights_to(nodes) @ nodes**degree - nodes**self.order / self.order
        whole = self._weights() @ nodes ** (2 * degree + 1) - 1 / (2 * degree + 2)
        error = max(np.abs(prefix).max(), abs(whole))
        require(
            bool(error < 1e-12),
            "grid",
            got=f"an error of {error:.1e} in the integral of a polynomial",
            expected="exact weights",
            cure="Pass the breaks in float64, or take fewer nodes on each panel and more panels.",
        )

    @property
    def size(self) -> int:
        """The number of nodes on all panels."""
        return self.order * (len(self.breaks) - 1)

    def prefix_weights(self) -> Float[Array, "length length"]:
        """Integrals of the interpolant, exact for polynomials of degree `order` - 1."""
        return self._cast(self._weights_to(self._nodes()))

    def centres(self) -> Float[Array, " length"]:
        """The nodes."""
        return self.nodes

    def interpolate(
        self, values: Float[Array, "length *rest"], positions: Float[Array, " points"]
    ) -> Float[Array, "points *rest"]:
        """Evaluate each panel's polynomial, by its barycentric form.

        The limits at 0 and 1 are the polynomials' values there. Differentiable in `values` alone.
        """
        require_on_grid(values, self)
        require_floats(positions, "positions", "points")
        breaks = self._cast(np.array(self.breaks))
        panel = jnp.clip(jnp.searchsorted(breaks, positions) - 1, 0, len(self.breaks) - 2)
        members = panel[:, None] * self.order + jnp.arange(self.order, dtype=panel.dtype)[None, :]
        # Any common factor of a panel's barycentric weights cancels, so those of [-1, 1] serve.
        reference, gauss = np.polynomial.legendre.leggauss(self.order)
        signs = (-1.0) ** np.arange(self.order)
        barycentric = self._cast(signs * np.sqrt((1 - reference**2) * gauss))
        distance = positions[:, None] - self.nodes[members]
        at_node = distance == 0
        shares = barycentric[None, :] / jnp.where(at_node, 1, distance)
        on_any = jnp.any(at_node, axis=1, keepdims=True)
        shares = jnp.where(on_any, at_node.astype(shares.dtype), shares)
        shares = shares / shares.sum(axis=1, keepdims=True)
        return jnp.einsum("pk,pk...->p...", shares, values[members])

    def _nodes(self) -> np.ndarray:
        reference, _ = np.polynomial.legendre.leggauss(self.order)
        starts, widths = np.array(self.breaks[:-1]), np.diff(self.breaks)
        return (starts[:, None] + widths[:, None] * (reference + 1) / 2).ravel()

    def _weights(self) -> np.ndarray:
        _, gauss = np.polynomial.legendre.leggauss(self.order)
        return np.outer(np.diff(self.breaks) / 2, gauss).ravel()

    def _edges(self) -> np.ndarray:
        # Gauss weights separate the nodes: each lies inside the cell of its weight's size.
        edges = np.concatenate([[0.0], np.cumsum(self._weights())])
        edges[-1] = 1.0
        return edges

    def _nodes_below(self, position: Fraction) -> int:
        nodes = self._nodes()
        return bisect_left(range(self.size), position, key=lambda i: Fraction(float(nodes[i])))

    def _weights_to(self, positions: np.ndarray) -> np.ndarray:
        # On [-1, 1] the interpolant's Legendre coefficients are (2n+1)/2 sum_j w_j P_n(x_j) f_j,
        # exactly by Gauss quadrature, and (2n+1) times the integral of P_n from -1 to x is
        # P_{n+1}(x) - P_{n-1}(x), or x + 1 for n = 0.
        reference, gauss = np.polynomial.legendre.leggauss(self.order)
        starts, widths = np.array(self.breaks[:-1]), np.diff(self.breaks)
        x = np.clip(2 * (positions[:, None] - starts) / widths - 1, -1, 1)
        values = np.polynomial.legendre.legvander(x, self.order)
        primitives = np.concatenate([(x + 1)[..., None], values[..., 2:] - values[..., :-2]], -1)
        at_nodes = np.polynomial.legendre.legvander(reference, self.order - 1)
        rows = np.einsum("pqn,jn->pqj", primitives, at_nodes) * gauss / 2 * widths[:, None] / 2
        return rows.reshape(len(positions), self.size)


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
    return CellGrid(cells=size, offset=Fraction(0), dtype=dtype)


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
    return CellGrid(cells=size, offset=Fraction(1, 2), dtype=dtype)


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
    return CellGrid(cells=size, offset=Fraction(1, 2), power=3, dtype=dtype)


def gauss_grid(order: int, panels: int = 1, dtype: DTypeLike | None = None) -> PanelGrid:
    r"""Gauss--Legendre panels, halved again and again towards position 0.

    With one panel, 64 nodes give attention of a smooth field to ten digits. More panels resolve
    what is singular at 0, such as the adjoint of causal averaging: their ends are
    :math:`0, 2^{1-n}, \dots, \frac12, 1`.

    Examples
    --------
    >>> gauss_grid(2, panels=2).breaks
    (0.0, 0.5, 1.0)
    >>> grid = gauss_grid(12)
    >>> prefix = grid.prefix_weights() @ jnp.cos(grid.nodes)
    >>> bool(jnp.allclose(prefix, jnp.sin(grid.nodes), rtol=0, atol=1e-13))
    True
    """
    panels = counted(panels, "panels", cure="One panel is [0, 1].")
    breaks = (0.0, *(0.5**k for k in reversed(range(panels))))
    return PanelGrid(breaks=breaks, order=order, dtype=dtype)


def segment_starts(segments: Int[Array, " length"]) -> Starts:
    """Where each position's segment begins: for rows of packed contexts, and for padding.

    A segment is a run of equal numbers. Of an attention mask, 0 on padding and 1 on tokens, the
    padding is a segment of its own, which no token sees.

    Raises
    ------
    ValueError
        Where segments are no whole numbers along one axis.

    Examples
    --------
    >>> segment_starts(jnp.array([7, 7, 3, 3, 3])).tolist()
    [0, 0, 2, 2, 2]
    >>> segment_starts(jnp.array([0, 1, 1])).tolist()  # a mask, padded on the left
    [0, 1, 1]
    """
    require_indices(segments, "segments")
    begins = jnp.concatenate([jnp.ones(1, bool), segments[1:] != segments[:-1]])
    places = jnp.where(begins, jnp.arange(segments.shape[0]), 0)
    return jax.lax.cummax(places)


def resample(
    values: Float[Array, "length *rest"], source: Grid, target: Grid
) -> Float[Array, "target_length *rest"]:
    r"""Carry a smooth field from one grid to another by interpolation on the source.

    Polynomial on Gauss--Legendre panels, linear on cells (of order 2). A density stays a density,
    and a NaN stays one where it is read.

    Raises
    ------
    ValueError
        Where `values` has not a row for each position of the source.

    Examples
    --------
    >>> fine, coarse = gauss_grid(16), token_grid(4)
    >>> bool(jnp.allclose(resample(jnp.exp(fine.nodes), fine, coarse), jnp.exp(coarse.nodes)))
    True
    """
    require_grid(source, "source")
    require_grid(target, "target")
    return source.interpolate(values, target.nodes)


def carried(
    density: Float[Array, "length *rest"], source: Grid, target: Grid
) -> Float[Array, "target_length *rest"]:
    r"""Carry a measure from one grid to another, by how much of its cells each cell holds.

    .. math:: f_t = \frac{1}{\Delta p_t} \sum_s f_s \int_{I_t} \phi_s

    with :math:`\phi_s` one on cell s (on a Gauss--Legendre panel the polynomial of node s). The
    integral is kept exactly, and a measure that is nowhere negative stays so on cells. For contexts
    of different lengths; to evaluate a smooth field elsewhere take `resample`.

    Examples
    --------
    >>> carried(jnp.array([3.0, 0.0]), token_grid(2), token_grid(3)).round(6).tolist()
    [3.0, 1.5, 0.0]
    """
    require_on_grid(density, source, "density")
    shares = jnp.asarray(carrying_shares(source, target), density.dtype)
    return jnp.tensordot(shares, density, axes=1)


def carrying_shares(source: Grid, target: Grid) -> Float[np.ndarray, "target_length length"]:
    r"""The matrix :math:`\int_{I_t}\phi_s/\Delta p_t` by which `carried` acts, in float64.

    Made on the host, for those who carry from grids of many sizes in one program: columns of zeros
    carry padding. Sums of parts that are not negative lose no digits behind a cell of large mass,
    as differences of a cumulative do.

    Examples
    --------
    >>> carrying_shares(token_grid(2), token_grid(3)).round(6).tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    require_grid(source, "source")
    require_grid(target, "target")
    below = source._weights_to(target._edges())
    return np.diff(below, axis=0) / target._weights()[:, None]


def integral(values: Float[Array, "length *rest"], grid: Grid) -> Float[Array, "*rest"]:
    r"""Integrate over position: :math:`\sum_i \Delta p_i f_i`. NaN and infinity pass on.

    Raises
    ------
    ValueError
        Where `values` is no floating-point array with a row for each position.

    Examples
    --------
    >>> grid = midpoint_grid(100)
    >>> round(float(integral(grid.nodes**2, grid)), 4)
    0.3333
    """
    require_on_grid(values, grid)
    return jnp.tensordot(grid.weights, values, axes=1)


def inner(
    left: Float[Array, "length *rest"], right: Float[Array, "length *rest"], grid: Grid
) -> Float[Array, ""]:
    r"""The grid's :math:`L^2` pairing :math:`\sum_i \Delta p_i\, a_i \cdot b_i`.

    Raises
    ------
    ValueError
        Where the shapes differ, or are not the grid's.

    Examples
    --------
    >>> float(inner(jnp.ones((4, 3)), jnp.ones((4, 3)), token_grid(4)))
    3.0
    """
    require_on_grid(left, grid, "left")
    require_on_grid(right, grid, "right")
    require(
        left.shape == right.shape,
        "right",
        got=f"shape {right.shape}",
        expected=f"{left.shape}, that of left",
        cure="Pair two fields of the same features.",
    )
    return jnp.sum(integral(left * right, grid))


def cell_embedding(
    values: Float[Array, "length *rest"], grid: Grid, positions: Float[Array, " points"]
) -> Float[Array, "points *rest"]:
    r"""Evaluate the cellwise constant field :math:`\mathcal E_L(v)(p) = v_l`, :math:`p \in I_l`.

    This is the embedding of `eq:terminal-adjoint-density-embedding`. Position 0, which belongs to
    no cell, takes the first cell's value. Differentiable in `values`; not in `positions`.

    Raises
    ------
    ValueError
        Where `values` has not a row for each cell.
    EquinoxRuntimeError
        Where a position lies outside [0, 1].

    Examples
    --------
    >>> cell_embedding(jnp.array([1.0, 2.0]), token_grid(2), jnp.array([0.1, 0.5, 0.6])).tolist()
    [1.0, 1.0, 2.0]
    """
    require_on_grid(values, grid)
    require_floats(positions, "positions", "points")
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
        ``"overlap"`` shares a cell between regions by its overlap with them (a Gauss--Legendre
        panel by the integral of its polynomial); ``"points"`` gives each cell to the region that
        its node lies in.
    left_out
        Positions that belong to no region, made by `without`.
    """

    grid: Grid
    delta: Fraction = eqx.field(static=True)
    convention: Convention = eqx.field(static=True)
    left_out: tuple[int, ...] = eqx.field(static=True, default=())

    def __check_init__(self):
        require_grid(self.grid)
        empty = [
            name
            for name, weights in zip(("left", "middle", "right"), self._host_weights(), strict=True)
            if not weights.any()
        ]
        require(
            not empty,
            "regions",
            got=f"no node in the {' and '.join(empty)} region of {self.grid.size} positions "
            f"at delta = {self.delta}, {len(self.left_out)} of them left out",
            expected="at least one node in each region",
            cure='Take a larger delta, a longer context, or convention="overlap".',
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
        return self.grid._cast(self._kept(self.grid._weights()))

    def without(self, positions: Sequence[int]) -> "Regions":
        """Leave positions out of all regions: integrals and averages are over the others.

        Raises
        ------
        ValueError
            Where a position is not on the grid, or a region is left without any.

        Examples
        --------
        >>> regions = boundary_regions(token_grid(10), 0.2).without([9])
        >>> [round(float(size), 6) for size in regions.weights.sum(axis=1)]
        [0.2, 0.6, 0.1]
        """
        last = self.grid.size - 1
        require(
            isinstance(positions, Sequence) and not isinstance(positions, str),
            "positions",
            got=described(positions),
            expected=f"a list of numbers from 0 to {last}",
            cure="One position is a list of one.",
        )
        numbers = f"numbers from 0 to {last}"
        cure = "Count from zero: the last position is L - 1."
        whole = [
            counted(position, "positions", least=0, most=last, expected=numbers, cure=cure)
            for position in positions
        ]
        chosen = tuple(sorted({*self.left_out, *whole}))
        return Regions(self.grid, self.delta, self.convention, chosen)

    def _host_weights(self) -> np.ndarray:
        ends = (self.delta, 1 - self.delta)
        left, boundary = (_weights_below(self.grid, end, self.convention) for end in ends)
        rows = np.stack([left, boundary - left, self.grid._weights() - boundary])
        return self._kept(rows)

    def _kept(self, weights: np.ndarray) -> np.ndarray:
        kept = ~np.isin(np.arange(self.grid.size), self.left_out)
        return np.where(kept, weights, 0.0)


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
        Where delta is not a number in (0, 1/2), the grid is none, or a region holds no node
        (``"points"`` only).

    Examples
    --------
    >>> points = boundary_regions(token_grid(48), 0.2, "points")
    >>> [int(count) for count in jnp.round(48 * points.weights.sum(axis=1))]
    [9, 29, 10]
    >>> overlap = boundary_regions(token_grid(48), 0.2)
    >>> [round(float(size), 6) for size in overlap.weights.sum(axis=1)]
    [0.2, 0.6, 0.2]
    """
    _require_convention(convention)
    require_grid(grid)
    exact = _exact_fraction(delta)
    require(
        0 < exact < Fraction(1, 2),
        "delta",
        got=str(delta),
        expected="a number strictly between 0 and 1/2",
        cure="delta is the width of each boundary region; the paper takes 0.2.",
    )
    return Regions(grid, exact, convention)


def interval_weights(
    grid: Grid,
    intervals: Intervals,
    convention: Convention = "overlap",
) -> Float[Array, " length"]:
    r"""Give the weights of :math:`\int_B` for a union B of intervals :math:`[a, b)` in [0, 1].

    Parts of :math:`\Delta p_i`: additive over disjoint sets, and all of them for [0, 1). An end at
    1 is closed, as that of :math:`E_R` is. What intervals share counts once.

    Parameters
    ----------
    grid
        The positions.
    intervals
        Their ends :math:`a \le b`, read as `boundary_regions` reads delta.
    convention
        As in `boundary_regions`.

    Raises
    ------
    ValueError
        Where an end lies outside [0, 1] or left of its start, or is not known before tracing.

    Examples
    --------
    >>> interval_weights(token_grid(4), [(0, "3/8"), ("3/4", 1)]).tolist()
    [0.25, 0.125, 0.0, 0.25]
    >>> interval_weights(token_grid(4), [("1/4", "3/4")], "points").tolist()
    [0.25, 0.25, 0.0, 0.0]
    """
    _require_convention(convention)
    require_grid(grid)
    pairs = isinstance(intervals, Sequence) and all(
        isinstance(pair, Sequence) and len(pair) == 2 for pair in intervals
    )
    require(
        pairs and not isinstance(intervals, str),
        "intervals",
        got=described(intervals),
        expected="pairs of ends, such as [(0, 0.2), (0.8, 1)]",
        cure="One interval is a list of one pair.",
    )
    weights, reached = np.zeros(grid.size), Fraction(0)
    exact = [tuple(_exact_fraction(end, "intervals") for end in pair) for pair in intervals]
    for start, stop in sorted(exact):
        require(
            0 <= start <= stop <= 1,
            "intervals",
            got=f"[{start}, {stop})",
            expected="two ends with 0 <= a <= b <= 1",
            cure="Positions are fractions of the context.",
        )
        start, stop = max(start, reached), max(stop, reached)
        reached = stop
        weights += _weights_below(grid, stop, convention) - _weights_below(grid, start, convention)
    return grid._cast(weights)


def _weights_below(grid: Grid, end: Fraction, convention: Convention) -> np.ndarray:
    """The weights of the integral over [0, end), and over [0, 1] where the end is 1."""
    if end == 1:
        return grid._weights()
    if convention == "points":
        return np.where(np.arange(grid.size) < grid._nodes_below(end), grid._weights(), 0.0)
    return grid._weights_to(np.array([end], dtype=float))[0]


def _require_convention(convention: str) -> None:
    require(
        convention in ("overlap", "points"),
        "convention",
        got=repr(convention),
        expected='"overlap" or "points"',
        cure="See boundary_regions.",
    )


def regional_averages(
    values: Float[Array, "length *rest"], regions: Regions
) -> Float[Array, "3 *rest"]:
    r"""Average a function of position over E_L, E_M and E_R.

    On the token grid this is :math:`\frac1\delta\int_{E_L} f` and so on
    (`eq:gd-left-average`, `eq:gd-middle-average`, `eq:gd-right-average`). NaN and infinity pass
    on.

    Raises
    ------
    ValueError
        Where `regions` are none, or `values` has not a row for each position of their grid.

    Examples
    --------
    >>> grid = token_grid(10)
    >>> [round(float(a), 3) for a in regional_averages(grid.nodes, boundary_regions(grid, 0.2))]
    [0.15, 0.55, 0.95]
    """
    require_regions(regions)
    require_on_grid(values, regions.grid)
    return _averages(values, regions.weights)


@jax.jit
def _averages(values: Array, weights: Float[Array, "3 length"]) -> Array:
    sizes = weights.sum(axis=1).reshape(3, *(1 for _ in values.shape[1:]))
    return jnp.tensordot(weights, values, axes=1) / sizes


def require_grid(grid: Any, name: str = "grid") -> None:
    """Refuse what is no grid: a length, an array of nodes, None."""
    require(
        isinstance(grid, Grid),
        name,
        got=described(grid),
        expected="a Grid",
        cure="Make one of the context's length, for example token_grid(48).",
    )


def require_regions(regions: Any, name: str = "regions") -> None:
    """Refuse what is no division of a grid: a number, an array of weights, None."""
    require(
        isinstance(regions, Regions),
        name,
        got=described(regions),
        expected="Regions of a grid",
        cure="Make them with boundary_regions(grid, delta).",
    )


def require_on_grid(
    values: Any,
    grid: Any,
    name: str = "values",
    axes: str = "length *rest",
    cure: str = "",
    **sizes: int,
) -> None:
    """Refuse values that do not fit a grid, and grids that are none.

    Values are arrays of floats, of JAX or NumPy, with the axes named: ``length`` is the grid's
    size, others are as in `_checks.require_floats`. Lists, integers, complex numbers and strings
    are refused: they are neither converted nor differentiated.

    Examples
    --------
    >>> require_on_grid(jnp.ones((5, 2)), token_grid(4), "x", "length width")
    Traceback (most recent call last):
    ValueError: x: got shape (5, 2), expected (4, width). Pass one row for each position.
    """
    require_grid(grid)
    require_floats(values, name, axes, cure, length=grid.size, **sizes)


def require_profile(profile: Any, grid: Grid, name: str) -> None:
    """Refuse what is neither a number nor an array of one for each position."""
    if getattr(profile, "shape", ()) == ():
        require_grid(grid)
        require_scalar(profile, name)
    else:
        require_on_grid(profile, grid, name, "length")


def guarded_density(
    values: Float[Array, " length"], grid: Grid, name: str
) -> Float[Array, " length"]:
    """Return a density of position; its use raises where it is negative, NaN, infinite, or zero."""
    require_on_grid(values, grid, name, "length")
    fits = jnp.all((values >= 0) & (values < jnp.inf)) & (integral(values, grid) > 0)
    message = f"{name}: expected a finite density of position, nowhere negative and not zero."
    return guarded(values, ~fits, message)


def _is_floating(dtype: Any) -> bool:
    try:
        return jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        return False


def _exact_fraction(value: Exact, name: str = "delta") -> Fraction:
    if isinstance(value, Fraction):
        return value
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(
            f"{name}: got {described(value)}, expected a number known before tracing. "
            "Regions are static: pass a Python float, a Fraction or a string."
        ) from error
