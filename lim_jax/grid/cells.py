"""Grids of cells: tokens, midpoints, and cells graded towards position 0."""

from bisect import bisect_left
from dataclasses import replace
from fractions import Fraction
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from lim_jax._checks import as_int, error_if_got, require, require_indices
from lim_jax.grid.measure import Grid, as_dtype, checked_positions, require_on_grid

Starts = Int[Array, " length"]
LENGTH = "Pass the context length, for example token_grid(48)."


class CellGrid(Grid):
    r"""The image of equal cells under :math:`p = \xi^g`, with one node in each cell.

    The nodes are :math:`p_i = ((i - a)/L)^g`, the cells :math:`I_i = (((i-1)/L)^g, (i/L)^g]`, and
    the weights :math:`g\,\xi_i^{g-1}/L`. Prefix weights are non-negative: a whole cell for
    :math:`j < i` and the fraction :math:`1 - a` of the node's own cell. L is `cells`, a is `offset`
    and g is `power`. `starts` says where each row's prefix begins, None for the first position, and
    `cut` which method cut prefixes within their contexts: "windowed", "chunked", or "" for none.
    """

    cells: int = eqx.field(static=True, converter=partial(as_int, name="size", cure=LENGTH))
    offset: Fraction = eqx.field(static=True)
    power: int = eqx.field(static=True, default=1)
    dtype: DTypeLike | None = eqx.field(static=True, default=None, converter=as_dtype)
    starts: Starts | None = None
    cut: str = eqx.field(static=True, default="")

    def __check_init__(self):
        """Raise ValueError unless every position has a weight in the grid's dtype."""
        dtype = jax.dtypes.canonicalize_dtype(self.dtype or float)
        # The first cell is the smallest: adjoints are divided by its weight.
        least = self._weights()[0].astype(dtype)
        require(
            bool(least > 0),
            "grid",
            got=f"{self.size} cells, the first of which has the weight 0 in {dtype}",
            expected="a weight above 0 for each position",
            cure="Take fewer cells, or a dtype of more bits.",
        )

    @property
    def size(self) -> int:
        """The number of cells."""
        return self.cells

    def starting(self, starts: Starts) -> "CellGrid":
        """Begin row i's prefix at ``starts[i]``: :math:`W_{ij}` is zero for j < start_i.

        For packed contexts and padding on the left: pass `segment_starts` of the segments' numbers
        or of the mask, whole numbers from 0 to the row's own, which may be traced. Where a window
        and a packed row both limit a prefix, the later start counts. Chunks are counted from here:
        a grid that was `chunked` before is refused.

        >>> grid = token_grid(4).starting(jnp.array([0, 0, 2, 2]))
        >>> (4 * grid.prefix_weights()).astype(int).tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
        """
        require(
            self.cut != "chunked",
            "starts",
            got="starts of contexts on a grid whose chunks are counted already",
            expected="contexts first: chunks are counted from where they begin",
            cure="Call starting before chunked.",
        )
        require_indices(starts, "starts")
        require(
            starts.shape == (self.size,),
            "starts",
            got=f"{starts.shape[0]} of them",
            expected=f"{self.size}, one for each position",
            cure="Pass for every row where its prefix begins.",
        )
        starts = error_if_got(
            starts,
            "starts",
            got={
                "a number below zero": starts < 0,
                "a number above the row's own": starts > jnp.arange(self.size),
            },
            expected="numbers from 0 to the row's own",
            cure="Pass for each row the position at which its prefix begins.",
        )
        return self._begun(starts, self.cut)

    def windowed(self, window: int) -> "CellGrid":
        """Limit each row's prefix to its last `window` positions, its own included."""
        window = as_int(window, "window")
        if window >= self.size:
            return self
        starts = jnp.maximum(jnp.arange(self.size) - window + 1, 0)
        return self._begun(starts, self.cut or "windowed")

    def chunked(self, chunk: int) -> "CellGrid":
        """Limit each row's prefix to its own chunk of `chunk` positions of its context.

        Call it before `windowed`, whose prefixes do not tell where contexts begin.
        """
        chunk = as_int(chunk, "chunk")
        require(
            not self.cut,
            "chunk",
            got=f"{chunk} positions on a grid that was {self.cut}",
            expected="a grid of whole contexts: chunks are counted from where these begin",
            cure="Call chunked first, and windowed after it.",
        )
        if chunk >= self.size:
            return self
        rows = jnp.arange(self.size)
        first = jnp.zeros_like(rows) if self.starts is None else self.starts
        return self._begun(first + (rows - first) // chunk * chunk, "chunked")

    def _begun(self, starts: Starts, cut: str) -> "CellGrid":
        """Return the grid with prefixes that begin no earlier than `starts`."""
        later = starts if self.starts is None else jnp.maximum(starts, self.starts)
        return replace(self, starts=later, cut=cut)

    @property
    def is_of_tokens(self) -> bool:
        """Whether this is `token_grid`, masked or not: equal cells that end at their nodes."""
        return (self.offset, self.power) == (0, 1)

    @property
    def unmasked(self) -> "CellGrid":
        """The same positions, with prefixes that all begin at the first, and no log weights."""
        return replace(self, starts=None, cut="", log_weights=None, parts=None)

    @property
    def past(self) -> Bool[Array, "length length"]:
        """Whether each position is in each row's prefix, from its start to its own."""
        row = jnp.arange(self.size)[:, None]
        column = jnp.arange(self.size)[None, :]
        past = column <= row
        return past if self.starts is None else past & (column >= self.starts[:, None])

    def prefix_weights(self) -> Float[Array, "length length"]:
        """Return each row's weights: whole cells on the left, and part of the node's own cell."""
        weights = self.weights
        diagonal = jnp.eye(self.size, dtype=bool)
        share = jnp.where(diagonal, float(1 - self.offset), 1.0).astype(weights.dtype)
        return jnp.where(self.past, share * weights[None, :], 0)

    def centres(self) -> Float[Array, " length"]:
        """Return the image of the middle of each equal cell."""
        middle = (np.arange(1, self.size + 1) - 0.5) / self.size
        return self._cast(middle**self.power)

    def _nodes(self) -> np.ndarray:
        """Return the images of equal cells' nodes, in double precision."""
        return self._equal_nodes() ** self.power

    def _weights(self) -> np.ndarray:
        """Return the nodes' weights in double precision."""
        return self.power * self._equal_nodes() ** (self.power - 1) / self.size

    def _edges(self) -> np.ndarray:
        """Return the images of equal cells' edges."""
        # Powers of whole numbers are exact, so that an edge is its fraction rounded once.
        return np.arange(self.size + 1.0) ** self.power / float(self.size) ** self.power

    def _nodes_below(self, position: Fraction) -> int:
        """Count the nodes strictly left of an exact position, in rational arithmetic."""

        # Exact rationals: in floats 41/50 < 1 - 0.18, though both are 0.82.
        def node(index: int) -> Fraction:
            """Return a node's position as an exact rational number."""
            return ((index + 1 - self.offset) / self.size) ** self.power

        return bisect_left(range(self.size), position, key=node)

    def _weights_to(self, positions: np.ndarray) -> np.ndarray:
        """Return each cell's weight in the integral from zero to each position."""
        edges = self._edges()
        covered = np.clip((positions[:, None] - edges[:-1]) / np.diff(edges), 0, 1)
        return covered * self._weights()

    def interpolate(
        self, values: Float[Array, " length *rest"], positions: Float[Array, " points"]
    ) -> Float[Array, " points *rest"]:
        """Interpolate linearly; beyond the first and last node, continue the nearest line."""
        require_on_grid(values, self)
        require(
            self.size > 1,
            "grid",
            got="one node",
            expected="at least two",
            cure="Take a grid of at least two positions: a line needs two points.",
        )
        values = jnp.asarray(values)
        positions = checked_positions(positions)
        nodes = self.in_single_precision.nodes  # of few bits some coincide
        left = jnp.clip(jnp.searchsorted(nodes, positions) - 1, 0, self.size - 2)
        share = (positions - nodes[left]) / (nodes[left + 1] - nodes[left])
        share = share.reshape(-1, *(1 for _ in values.shape[1:]))
        return (1 - share) * values[left] + share * values[left + 1]

    def _equal_nodes(self) -> np.ndarray:
        """Return the nodes of equal cells, before they are mapped by the power."""
        return (np.arange(1, self.size + 1) - float(self.offset)) / self.size


def token_grid(size: int, dtype: DTypeLike | None = None) -> CellGrid:
    r"""Return the paper's token grid, whose positions are :math:`p_i = i/L`.

    Each cell ends at its node, and :math:`\Delta p_i = 1/L`. Prefix weights are uniform on
    :math:`j \le i`, so attention on this grid is exactly the finite causal softmax
    (`eq:causal-attention-weights`). Prefix sums are of order 1.

    Parameters
    ----------
    size
        The number L of tokens: the context length.
    dtype
        The floating-point dtype of the grid's arrays; by default JAX's default float.

    Returns
    -------
    CellGrid
        The grid, known before tracing.

    Raises
    ------
    ValueError
        If `size` is not a positive Python int, or `dtype` not a floating-point dtype.

    Examples
    --------
    >>> token_grid(4).nodes.tolist()
    [0.25, 0.5, 0.75, 1.0]
    >>> token_grid(3).prefix_weights().tolist()[1]  # 1/L on j <= i
    [0.3333333333333333, 0.3333333333333333, 0.0]
    """
    return CellGrid(cells=size, offset=Fraction(0), dtype=dtype)


def midpoint_grid(size: int, dtype: DTypeLike | None = None) -> CellGrid:
    r"""Return the grid of nodes in the middle of equal cells.

    Each prefix holds half of the node's own cell. Attention on it is a causal softmax with
    :math:`-\log 2` on the diagonal. Prefix sums are of order 2 inside and of order 1 at the first
    token.

    Parameters
    ----------
    size
        The number L of cells, one position in each.
    dtype
        The floating-point dtype of the grid's arrays; by default JAX's default float.

    Returns
    -------
    CellGrid
        The grid, known before tracing.

    Raises
    ------
    ValueError
        If `size` is not a positive Python int, or `dtype` not a floating-point dtype.

    Examples
    --------
    >>> midpoint_grid(2).nodes.tolist()
    [0.25, 0.75]
    >>> midpoint_grid(2).prefix_weights().tolist()
    [[0.25, 0.0], [0.5, 0.25]]
    """
    return CellGrid(cells=size, offset=Fraction(1, 2), dtype=dtype)


def graded_grid(size: int, dtype: DTypeLike | None = None) -> CellGrid:
    r"""Return midpoints of equal cells in :math:`\xi`, where :math:`p = \xi^3`: fine near 0.

    The adjoint of causal averaging grows like :math:`\log(1/p)` at 0; the grading resolves it. The
    weights :math:`3\xi_i^2/L` sum to :math:`1 - 1/(4L^2)`.

    Parameters
    ----------
    size
        The number L of cells, one position in each.
    dtype
        The floating-point dtype of the grid's arrays; by default JAX's default float.

    Returns
    -------
    CellGrid
        The grid, known before tracing.

    Raises
    ------
    ValueError
        If `size` is not a positive Python int, `dtype` not a floating-point dtype, or the first of
        so many cells has no weight in `dtype`, as from 300 on in float16.

    Examples
    --------
    >>> graded_grid(2).nodes.tolist()
    [0.015625, 0.421875]
    """
    return CellGrid(cells=size, offset=Fraction(1, 2), power=3, dtype=dtype)


def segment_starts(segments: Int[Array, " length"]) -> Starts:
    """Return where each position's segment begins: for packed contexts, and for padding.

    Pass the result to `CellGrid.starting`, by which no row reads another segment.

    Parameters
    ----------
    segments
        Whole numbers, one for each position. A segment is a run of equal ones, such as the padding
        in an attention mask. They may be traced.

    Returns
    -------
    Int[Array, " length"]
        For each position the first position, from 0, of its segment.

    Raises
    ------
    ValueError
        If `segments` is not an array of whole numbers along one axis, at least one.

    Examples
    --------
    >>> segment_starts(jnp.array([7, 7, 3, 3, 3])).tolist()
    [0, 0, 2, 2, 2]
    >>> segment_starts(jnp.array([0, 1, 1])).tolist()  # a mask, padded on the left
    [0, 1, 1]
    """
    require_indices(segments, "segments")
    begins = jnp.concatenate([jnp.ones(1, bool), segments[1:] != segments[:-1]])
    return jax.lax.cummax(jnp.where(begins, jnp.arange(segments.shape[0]), 0))
