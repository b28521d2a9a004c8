r"""The lower triangle of pairs of positions, tile by tile: how arrays are cut and tiles visited.

A group of heads and examples goes at a time, on a CPU as many as fill a core's cache with a tile of
each; an accelerator takes all at once, in wider tiles. A block is an array
``(group, tile, *rest)``. Tiles that no row sees are skipped.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from lim_jax._linear import Points, Program, Vectors
from lim_jax._sharded_axes import varying_as
from lim_jax.grid.cells import CellGrid

TILE = 128  # positions
CACHE = 2**16  # pairs of positions, which a core works on at once
WIDE = 512  # positions, on an accelerator: fewer and larger kernels, of all heads and examples
Sweep = Callable[[Points, Vectors, "Tiling"], PyTree]


class PositionArrays(NamedTuple):
    """Arrays of positions beside queries, keys and values, in the order of their passing."""

    log_weights: Any = None  # of keys, added to their scores
    parts: Any = None  # numbers of parts, within which the log weights do not count
    starts: Any = None  # of each row's prefix


class Tiling(NamedTuple):
    """How the pairs of positions are cut and shared."""

    grid: CellGrid  # prefixes begin at its first position, and all weigh the same
    tile: int  # positions
    axis: str | None = None  # of a mesh, whose devices hold as many positions each
    cap: float | None = None  # of scores (`caps_and_sinks`)
    # Whether all heads and examples go at once, in tiles of `WIDE` positions at most: as on an
    # accelerator, which few large kernels keep busy.
    wide: bool = False
    arrays: tuple[str, ...] = ()  # which of `PositionArrays` there are

    def named(self, arrays: Sequence[Array]) -> PositionArrays:
        """Return the arrays that are passed beside queries, keys and values, by name."""
        return PositionArrays(**dict(zip(self.arrays, arrays, strict=True)))

    @property
    def devices(self) -> int:
        """The number of devices that share the positions."""
        return 1 if self.axis is None else jax.lax.axis_size(self.axis)

    @property
    def size(self) -> int:
        """The number of positions on this device."""
        return self.grid.size // self.devices

    def with_tiles_up_to(self, most: int) -> "Tiling":
        """Return a tiling of equal tiles with `most` positions at most."""
        count = -(-self.size // most)
        return self._replace(tile=-(-self.size // count))

    def log_weights(self, dtype: jnp.dtype) -> Float[Array, "1 blocks tile"]:
        r"""Return :math:`\log\Delta p_j` of this device's positions; padding has minus infinity."""
        weights = jnp.log(self.grid.weights).astype(dtype)
        if self.axis is not None:
            first = jax.lax.axis_index(self.axis) * self.size
            weights = jax.lax.dynamic_slice_in_dim(weights, first, self.size)
        filled = jnp.pad(weights, (0, -self.size % self.tile), constant_values=-jnp.inf)
        return filled.reshape(1, -1, self.tile)


def tiling(grid: CellGrid, axis: str | None = None) -> Tiling:
    """Return equal tiles of `TILE` positions at most, or of twice as many in long contexts."""
    most = TILE if grid.size < 16 * TILE else 2 * TILE
    wide = jax.default_backend() != "cpu"
    names = tuple(name for name, x in position_arrays(grid)._asdict().items() if x is not None)
    return Tiling(grid.unmasked, most, axis, wide=wide, arrays=names).with_tiles_up_to(most)


def position_arrays(grid: CellGrid) -> PositionArrays:
    """Return a grid's arrays of positions."""
    return PositionArrays(grid.log_weights, grid.parts, grid.starts)


class Place(NamedTuple):
    """The position of a tile: its first row and column, and its rows' prefix starts and parts."""

    row: Int[Array, ""]
    column: Int[Array, ""]
    tile: int
    starts: Int[Array, "group tile"] | None = None
    parts: Int[Array, "group tile"] | None = None

    @property
    def is_visible(self) -> Bool[Array, ""]:
        """Whether any row sees any column of this tile."""
        past = self.column < self.row + self.tile
        if self.starts is None:
            return past
        return past & (self.column + self.tile > self.starts.min())

    @property
    def rows(self) -> Int[Array, " tile"]:
        """The positions of its rows."""
        return self.row + jnp.arange(self.tile)

    @property
    def columns(self) -> Int[Array, " tile"]:
        """The positions of its columns."""
        return self.column + jnp.arange(self.tile)


def in_groups(sweep: Sweep) -> Program:
    """Make a program of arrays of positions from a function of one group's blocks.

    ``sweep(points, vectors, tiling)`` is called for one group after another, of points
    ``(group, blocks, tile, *rest)`` and vectors ``(group, blocks, vectors, tile, *rest)``, and
    gives arrays as the vectors, or where there are none as the points.
    """

    def program(points: Points, vectors: Vectors, tiling: Tiling) -> PyTree:
        """Cut arrays into groups and blocks, map the function over groups, and join."""
        count = points[0].shape[0]
        between = 1 if vectors else 0
        if tiling.wide:
            group = count
            tiling = tiling.with_tiles_up_to(max(WIDE, tiling.tile))
        elif not isinstance(count, int):
            group = count  # a symbolic number of examples, in `jax.export`, has no known divisors
        else:
            # Of two at least: of one alone XLA turns every block of keys round, element by element.
            most = max(CACHE * jax.device_count() // tiling.tile**2, 2)
            group = max(size for size in range(1, min(most, count) + 1) if count % size == 0)
        blocks = [
            [_into_blocks(x, axes, group, tiling.tile) for x in arrays]
            for arrays, axes in ((points, 0), (vectors, 1))
        ]
        results = jax.lax.map(lambda blocks: sweep(blocks[0], blocks[1], tiling), blocks)
        return [_join(x, between, tiling.size) for x in results]

    return program


def _has_several_devices() -> bool:
    """Tell whether there are several devices, so that each group must have examples of each."""
    return jax.device_count() > 1


def _into_blocks(array: Array, between: int, group: int, tile: int) -> Array:
    """Cut an array into groups, which come first, and blocks; `between` counts axes of vectors."""
    axis = 1 + between
    edges = [(0, 0)] * array.ndim
    edges[axis] = (0, -array.shape[axis] % tile)
    # Rows that only fill the last tile begin where its last row does.
    starts = jnp.issubdtype(array.dtype, jnp.integer)
    array = jnp.pad(array, edges, mode="edge" if starts else "constant")
    groups = (group, -1) if _has_several_devices() else (-1, group)
    shape = array.shape[1:axis]
    trailing = array.shape[axis + 1 :]
    array = array.reshape(*groups, *shape, array.shape[axis] // tile, tile, *trailing)
    if _has_several_devices():
        array = jnp.swapaxes(array, 0, 1)
    return jnp.moveaxis(array, axis + 1, 2)


def _join(array: Array, between: int, length: int) -> Array:
    """Join groups and blocks again: the inverse of `_into_blocks`."""
    axis = 1 + between
    array = jnp.moveaxis(array, 2, axis + 1)
    if _has_several_devices():
        array = jnp.swapaxes(array, 0, 1)
    shape = array.shape[2 : axis + 1]
    trailing = array.shape[axis + 3 :]
    count = array.shape[0] * array.shape[1]
    array = array.reshape(count, *shape, -1, *trailing)
    return jax.lax.slice_in_dim(array, 0, length, axis=axis)


def each_vector(function: Callable[[PyTree], Any], vectors: PyTree) -> Any:
    """Map a function over a tile's vectors, one by one: ``(group, vectors, tile, *rest)``."""
    in_front = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), vectors)
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), jax.lax.map(function, in_front))


def over_tiles(
    visit: Callable[[Any, Any, Any, Any, Place], tuple[Any, Any]],
    rows: PyTree,
    columns: PyTree,
    row_results: PyTree,
    column_results: PyTree,
    beside: PositionArrays,
    tiling: Tiling,
) -> tuple[Any, Any]:
    """Visit all tiles that are seen, row by row, and update the results of their rows and columns.

    ``visit(of_row, of_column, row, column, place)`` gives the first two anew. Where devices share
    positions, columns travel round their ring, past all rows.
    """
    blocks = jax.tree.leaves(rows)[0].shape[1]
    row_results, column_results = varying_as((row_results, column_results), (rows, columns, beside))
    if tiling.axis is None:
        pairs = np.stack(np.tril_indices(blocks))
        here = jnp.array(0)
        return _visit_pairs(
            visit, rows, columns, row_results, column_results, beside, pairs, here, here, tiling
        )
    pairs = np.indices((blocks, blocks)).reshape(2, -1)
    device = jax.lax.axis_index(tiling.axis).astype(int)
    devices = tiling.devices
    ring = [(index, (index + 1) % devices) for index in range(devices)]

    def meet(state: tuple[Any, Any, Any], turn: Array) -> tuple[tuple[Any, Any, Any], None]:
        """Visit the tiles of the columns that are here, and pass these on to the next device."""
        row_results, columns, column_results = state
        row = device * tiling.size
        column = (device - turn) % devices * tiling.size
        row_results, column_results = _visit_pairs(
            visit, rows, columns, row_results, column_results, beside, pairs, row, column, tiling
        )
        travelling = jax.tree.map(
            lambda x: jax.lax.ppermute(x, tiling.axis, ring), (columns, column_results)
        )
        return (row_results, *travelling), None

    start = (row_results, columns, column_results)
    (row_results, _, column_results), _ = jax.lax.scan(meet, start, jnp.arange(devices))
    return row_results, column_results


def _visit_pairs(
    visit: Callable[[Any, Any, Any, Any, Place], tuple[Any, Any]],
    rows: PyTree,
    columns: PyTree,
    row_results: PyTree,
    column_results: PyTree,
    beside: PositionArrays,
    pairs: Int[np.ndarray, "2 pairs"],
    row: Int[Array, ""],
    column: Int[Array, ""],
    tiling: Tiling,
) -> tuple[Any, Any]:
    """Visit pairs of blocks in order, and return the results of rows and columns after them.

    `row` and `column` are the first positions of all blocks.
    """
    # Without starts and on one device no pair is ahead of the diagonal.
    all_seen = tiling.axis is None and beside.starts is None

    @jax.checkpoint
    def step(state: tuple[Any, Any], pair: tuple[Array, Array]) -> tuple[tuple[Any, Any], None]:
        """Visit one pair of blocks, if any of its rows sees any of its columns."""
        row_results, column_results = state
        i, j = pair
        tile = tiling.tile
        marks = _block((beside.starts, beside.parts), i)
        place = Place(row + i * tile, column + j * tile, tile, *marks)

        def visit_tile(there: tuple[Any, Any]) -> tuple[Any, Any]:
            """Visit the tile."""
            return visit(*there, _block(rows, i), _block(columns, j), place)

        there = _block(row_results, i), _block(column_results, j)
        if all_seen:
            row_result, column_result = visit_tile(there)
        else:
            row_result, column_result = jax.lax.cond(
                place.is_visible, visit_tile, lambda there: there, there
            )
        return (
            _replace_block(row_results, i, row_result),
            _replace_block(column_results, j, column_result),
        ), None

    indices = tuple(map(jnp.asarray, pairs))
    results, _ = jax.lax.scan(step, (row_results, column_results), indices)
    return results


def _block(tree: PyTree, index: Array) -> Any:
    """Return one block of each array."""

    def block(array: Array) -> Array:
        """Take one tile of an array."""
        return jax.lax.dynamic_index_in_dim(array, index, 1, False, allow_negative_indices=False)

    return jax.tree.map(block, tree)


def _replace_block(tree: PyTree, index: Array, block: Any) -> Any:
    """Replace one block of each array."""

    def replace_block(array: Array, entry: Array) -> Array:
        """Write the block into one array."""
        return jax.lax.dynamic_update_index_in_dim(
            array, entry, index, 1, allow_negative_indices=False
        )

    return jax.tree.map(replace_block, tree, block)
