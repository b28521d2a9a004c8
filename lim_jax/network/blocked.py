r"""Causal attention tile by tile: the dense formula's numbers in memory linear in the length.

On a `CellGrid` prefix weights are known without a matrix, :math:`W_{ij} = \Delta p_j` left of the
diagonal, from the position where row i's prefix begins. Tiles that no row sees, ahead of the
diagonal or before every start, are skipped. Rows are normalised as they grow (the running maximum
and sum of Milakov and Gimelshein, 2018), and their log-sum-exp is kept:

.. math:: \ell_i = \log\sum_j W_{ij}\,e^{s_{ij}}, \qquad A_{ij} = W_{ij}\,e^{s_{ij} - \ell_i},
          \qquad o_i = \sum_j A_{ij} v_j.

The derivative is made of the same tiles,

.. math:: \dot\ell_i = \sum_j A_{ij}\,\dot s_{ij}, \qquad
          \dot o_i = \sum_j A_{ij}(\dot s_{ij}\,v_j + \dot v_j) - \dot\ell_i\,o_i,

a linear scan of remade tiles, which JAX transposes into the reverse sweep and differentiates
again. Only :math:`o` and :math:`\ell` are kept for it.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, PyTree

from lim_jax._checks import require_floats
from lim_jax._precision import accumulator, matmul
from lim_jax.grid import CellGrid, Grid, Starts, require_on_grid

TILE = 128
KEPT = "attention outputs"


def blocked_attention(
    query: Float[Array, "length size"],
    key: Float[Array, "length size"],
    value: Float[Array, "length features"],
    grid: CellGrid,
) -> Float[Array, "length features"]:
    r"""One head of causal attention, tile by tile; `attention.causal_attention` for long grids.

    Sums are accumulated in float32 at least, whatever the inputs' precision.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> values = jnp.array([[1.0], [3.0]])
    >>> blocked_attention(jnp.zeros((2, 1)), jnp.zeros((2, 1)), values, token_grid(2)).tolist()
    [[1.0], [2.0]]
    """
    require_heads(query, key, grid, value)
    scaled = query / math.sqrt(query.shape[1])
    features, _ = _attend(scaled, key, value, grid.starts, grid.whole)
    return features.astype(value.dtype)


def require_heads(query: Array, key: Array, grid: Grid, *value: Array) -> None:
    """Refuse queries, keys and values that do not fit the grid, and keys of another size."""
    require_on_grid(query, grid, "query", "length size")
    require_floats(key, "key", "length size", length=grid.size, size=query.shape[1])
    for array in value:
        require_on_grid(array, grid, "value", "length features")


class Row(NamedTuple):
    """What grows along a row block: the unnormalised output, its sum, and the highest score."""

    features: Float[Array, "tile features"]
    total: Float[Array, " tile"]
    highest: Float[Array, " tile"]


class Place(NamedTuple):
    """Where a tile stands: its row and column of tiles, and where its rows' prefixes begin."""

    row: Int[Array, ""]
    column: Int[Array, ""]
    starts: Int[Array, " tile"] | None

    @property
    def seen(self) -> Bool[Array, ""]:
        """Whether any row of the tile sees any of its columns."""
        past = self.column <= self.row
        if self.starts is None:
            return past
        return past & (self.column >= self.starts.min() // self.starts.shape[0])


@partial(jax.custom_jvp, nondiff_argnums=(4,))
def _attend(
    query: Float[Array, "length size"],
    key: Float[Array, "length size"],
    value: Float[Array, "length features"],
    starts: Starts | None,
    grid: CellGrid,
) -> tuple[Float[Array, "length features"], Float[Array, " length"]]:
    r"""Outputs :math:`o` and log-sum-exps :math:`\ell`; queries come scaled."""
    dtype = accumulator(query.dtype)

    def grow(row: Row, query: Array, column: tuple, place: Place) -> Row:
        key, value, log_weight = column
        scores = _scores(query, key, log_weight, place, grid)
        highest = jnp.maximum(row.highest, scores.max(axis=1))
        mass, shrunk = jnp.exp(scores - highest[:, None]), jnp.exp(row.highest - highest)
        return Row(
            row.features * shrunk[:, None] + matmul(mass.astype(value.dtype), value),
            row.total * shrunk + mass.sum(axis=1),
            highest,
        )

    tile = min(TILE, grid.size)
    empty = Row(
        jnp.zeros((tile, value.shape[1]), dtype),
        jnp.zeros(tile, dtype),
        # Finite: a row that sees nothing of its first tiles must not take infinity from infinity.
        jnp.full(tile, jnp.finfo(dtype).min, dtype),
    )
    columns = _tiles(key), _tiles(value), _log_weights(grid, dtype)
    features, total, highest = _over_tiles(grow, empty, _tiles(query), columns, starts)
    return _joined(features / total[..., None], grid), _joined(highest + jnp.log(total), grid)


@_attend.defjvp
def _attend_jvp(grid, primals, tangents):
    *primals, starts = primals
    features, log_total = checkpoint_name(_attend(*primals, starts, grid), KEPT)
    moved, log_slope = _slopes(primals, log_total, tangents[:3], starts, grid)
    return (features, log_total), (moved - log_slope[:, None] * features, log_slope)


def _slopes(primals, log_total, tangents, starts, grid):
    r"""The sums :math:`\sum_j A_{ij}(\dot s_{ij}v_j + \dot v_j)` and :math:`\dot\ell_i`.

    What `eq:attention-first-variation-schematic` is made of; :math:`\dot s_{ij}` is the sum of a
    query's and a key's part (`eq:head-score-variation`).
    """

    def grow(sums: tuple, row: tuple, column: tuple, place: Place) -> tuple:
        query, query_slope, log_total = row
        key, key_slope, value, value_slope, log_weight = column
        scores = _scores(query, key, log_weight, place, grid)
        weights = jnp.exp(scores - log_total[:, None])
        moved = weights * (matmul(query_slope, key.T) + matmul(query, key_slope))
        weights, pushed = weights.astype(value.dtype), moved.astype(value.dtype)
        features = matmul(pushed, value) + matmul(weights, value_slope.T)
        return sums[0] + features, sums[1] + moved.sum(axis=1)

    def across(slope: Array) -> Array:
        # Transposed, these products then sum over a tile's rows into (size, tile): on a CPU three
        # times as fast as into (tile, size).
        return jnp.swapaxes(_tiles(slope), 1, 2)

    (query, key, value), (query_slope, key_slope, value_slope) = primals, tangents
    rows = _tiles(query), _tiles(query_slope), _tiles(log_total)
    columns = _tiles(key), across(key_slope), _tiles(value), across(value_slope)
    columns = *columns, _log_weights(grid, log_total.dtype)
    tile = rows[2].shape[1]
    empty = jnp.zeros((tile, value.shape[1]), log_total.dtype), jnp.zeros(tile, log_total.dtype)
    return tuple(_joined(sums, grid) for sums in _over_tiles(grow, empty, rows, columns, starts))


def _over_tiles(
    body: Callable[[Any, Any, Any, Place], Any],
    start: PyTree,
    rows: PyTree,
    columns: PyTree,
    starts: Starts | None,
) -> PyTree:
    """Carry ``body`` from `start` along every row of tiles through those it sees, remade."""
    blocks, tile_size = jax.tree.leaves(rows)[0].shape[:2]
    indices = jnp.arange(blocks)
    if starts is not None:
        # Rows that only fill the last tile see what its last row sees.
        filled = jnp.pad(starts, (0, blocks * tile_size - starts.shape[0]), mode="edge")
        starts = filled.reshape(blocks, tile_size)

    def along(_, row):
        i, starts, row = row

        def tile(carry, column):
            j, column = column
            place = Place(i, j, starts)
            carry = jax.lax.cond(
                place.seen,
                lambda carry: body(carry, row, column, place),
                lambda carry: carry,
                carry,
            )
            return carry, None

        tile = jax.checkpoint(tile, prevent_cse=False)
        return None, jax.lax.scan(tile, start, (indices, columns))[0]

    along = jax.checkpoint(along, prevent_cse=False)
    return jax.lax.scan(along, None, (indices, starts, rows))[1]


def _scores(query, key, log_weight, place, grid):
    """A tile of scores plus log-weights; what its rows do not see is masked."""
    scores = matmul(query, key.T) + log_weight[None, :]
    row, column = jnp.arange(query.shape[0])[:, None], jnp.arange(query.shape[0])[None, :]
    on_diagonal = math.log(1 - grid.offset)
    masked = jnp.where(
        column < row, scores, jnp.where(column == row, scores + on_diagonal, -jnp.inf)
    )
    scores = jnp.where(place.row == place.column, masked, scores)
    if place.starts is None:
        return scores
    began = place.starts[:, None] <= place.column * query.shape[0] + column
    return jnp.where(began, scores, -jnp.inf)


def _log_weights(grid: CellGrid, dtype: jnp.dtype) -> Float[Array, "blocks tile"]:
    return _tiles(jnp.log(grid.weights).astype(dtype))


def _tiles(array: Float[Array, "length *rest"]) -> Float[Array, "blocks tile *rest"]:
    """Cut into blocks, the last one padded: no position looks ahead at what is padded."""
    size = array.shape[0]
    tile = min(TILE, size)
    padded = jnp.pad(array, ((0, -size % tile), *((0, 0) for _ in array.shape[1:])))
    return padded.reshape(-1, tile, *array.shape[1:])


def _joined(
    blocks: Float[Array, "blocks tile *rest"], grid: CellGrid
) -> Float[Array, "length *rest"]:
    return blocks.reshape(-1, *blocks.shape[2:])[: grid.size]
