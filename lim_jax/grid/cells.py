"""Grids of cells: tokens, midpoints, and cells graded towards position 0."""

from bisect import bisect_left
from dataclasses import replace
from fractions import Fraction
from functools import partial
from numbers import Rational

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from lim_jax._checks import counted, guarded, require, require_floats, require_indices
from lim_jax.grid.measure import Grid, require_on_grid

Starts = Int[Array, " length"]
LENGTH = "Pass the context length, for example token_grid(48)."


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
        Where each row's prefix begins, by `starting`, `windowed` or `chunked`; None for prefixes
        that all begin at the first position. The only array that a grid may hold.

    Raises
    ------
    ValueError
        Where `cells` or `power` is not a positive whole number known before tracing, `offset` is no
        fraction in [0, 1), or the dtype is not floating.
    """

    cells: int = eqx.field(static=True, converter=partial(counted, name="size", cure=LENGTH))
    offset: Fraction = eqx.field(static=True)
    power: int = eqx.field(static=True, default=1)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    starts: Starts | None = None

    def __check_init__(self):
        cure = "token_grid has 0, midpoint_grid one half."
        inside = isinstance(self.offset, Rational) and 0 <= self.offset < 1
        expected = "a Fraction in [0, 1)"
        require(inside, "offset", got=repr(self.offset), expected=expected, cure=cure)
        counted(self.power, "power")

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

    def chunked(self, chunk: int) -> "CellGrid":
        """Let each row see nothing before its own stretch of `chunk` positions of its context.

        Examples
        --------
        >>> (3 * token_grid(3).chunked(2).prefix_weights()).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
        """
        chunk = counted(chunk, "chunk", cure="A stretch holds one position at least.")
        if chunk >= self.size:
            return self
        rows = jnp.arange(self.size)
        first = jnp.zeros_like(rows) if self.starts is None else self.starts
        return self._begun(first + (rows - first) // chunk * chunk)

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
