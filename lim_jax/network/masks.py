"""Which positions a row of attention sees, and how queries and keys know theirs.

Where layers differ, the kind is a number among a layer's parameters: one scan runs over all.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from lim_jax._checks import as_int, require
from lim_jax.grid.cells import CellGrid
from lim_jax.grid.measure import Grid
from lim_jax.network.positions import Positions

WHOLE = "Leave it out for attention to the whole prefix."
Rope = PyTree[Float[Array, "length ..."]]


class AttentionMask(eqx.Module):
    r"""What one row of attention sees of its prefix, and how positions enter scores.

    Attributes
    ----------
    window, chunk
        How many positions of the grid a row sees, the last ones with its own (sliding windows); or
        how many a chunk has, whose rows see none before it. None for the whole prefix. Both count
        positions, so they have no continuum limit. ValueError where they are no positive whole
        numbers known before tracing, or both are given.
    positions
        How queries and keys change with their positions: a `Rotary`, another of `positions`, or
        None.

    Examples
    --------
    >>> masks = AttentionMask(window=2), AttentionMask(chunk=2)
    >>> [mask.prefixes(lim.token_grid(5)).starts.tolist() for mask in masks]
    [[0, 0, 1, 2, 3], [0, 0, 2, 2, 4]]
    """

    window: int | None = eqx.field(static=True, default=None)
    chunk: int | None = eqx.field(static=True, default=None)
    positions: Positions | None = None

    def __check_init__(self):
        """Raise ValueError unless at most one of window and chunk is given, a positive integer."""
        for name in ("window", "chunk"):
            if getattr(self, name) is not None:
                as_int(getattr(self, name), name, cure=WHOLE)
        most_one = self.window is None or self.chunk is None
        require(
            most_one, "mask", got="a window and a chunk", expected="at most one of them", cure=WHOLE
        )

    @property
    def rotary_dim(self) -> int:
        """The number of a head's features that are rotated."""
        return 0 if self.positions is None else self.positions.rotary_dim

    def same_rope(self, first: int, second: int) -> bool:
        """Tell whether positions enter scores alike in contexts of two lengths."""
        if self.positions is None or first == second:
            return True
        # Where [0, 1] stands for a number of tokens, those of a longer context are closer together.
        return self.positions.tokens is None and self.positions.same_rope(first, second)

    def prefixes(self, grid: Grid) -> Grid:
        """Return the grid with prefixes cut to the window or chunk.

        Parameters
        ----------
        grid
            The positions.

        Returns
        -------
        Grid
            The same positions; the grid itself where the mask has no window and no chunk.

        Raises
        ------
        ValueError
            If a mask with a window or a chunk meets a grid that is none of cells, or one with a
            chunk a grid that was windowed or chunked before.
        """
        if self.window is not None:
            return _require_cells(grid, "window", self.window).windowed(self.window)
        if self.chunk is not None:
            return _require_cells(grid, "chunk", self.chunk).chunked(self.chunk)
        return grid

    def rope(self, grid: Grid) -> Rope | None:
        """Return what `encode_queries` and `encode_keys` need, a row for each position, or None."""
        return None if self.positions is None else self.positions.rope(grid)

    def encode_queries(self, vectors: Array, rope: Rope | None) -> Array:
        """Apply positions to queries; without `rope` they stay unchanged."""
        if self.positions is None or rope is None:
            return vectors
        return self.positions.encode_queries(vectors, rope)

    def encode_keys(self, vectors: Array, rope: Rope | None) -> Array:
        """Apply positions to keys; without `rope` they stay unchanged."""
        if self.positions is None or rope is None:
            return vectors
        return self.positions.encode_keys(vectors, rope)


class SwitchedMask(eqx.Module):
    """One of several `kinds` of masks; the parameter `kind` has each layer's number of its kind."""

    kinds: tuple[AttentionMask, ...] = eqx.field(static=True)
    kind: Int[Array, "*layers"]

    @property
    def rotary_dim(self) -> int:
        """The largest number of a head's rotated features in any kind."""
        return max(kind.rotary_dim for kind in self.kinds)

    def same_rope(self, first: int, second: int) -> bool:
        """Tell whether positions enter scores alike in contexts of two lengths."""
        return all(kind.same_rope(first, second) for kind in self.kinds)

    def prefixes(self, grid: Grid) -> Grid:
        """Return the grid with the prefixes of this layer's kind."""
        grids = [kind.prefixes(grid) for kind in self.kinds]
        if all(kind_grid is grid for kind_grid in grids):
            return grid
        starts = []
        for kind_grid in grids:
            assert isinstance(kind_grid, CellGrid)
            from_first = jnp.zeros(grid.size, int)
            starts.append(from_first if kind_grid.starts is None else kind_grid.starts)
        return replace(grid, starts=jnp.stack(starts)[self.kind])

    def rope(self, grid: Grid) -> tuple[Rope | None, ...]:
        """Return what `encode_queries` and `encode_keys` need, for each kind of layer."""
        return tuple(kind.rope(grid) for kind in self.kinds)

    def encode_queries(self, vectors: Array, rope: tuple[Rope | None, ...] | None) -> Array:
        """Apply the positions of this layer's kind to queries; without `rope` they stay."""
        return self._by_kind(lambda mask, kind_rope: mask.encode_queries(vectors, kind_rope), rope)

    def encode_keys(self, vectors: Array, rope: tuple[Rope | None, ...] | None) -> Array:
        """Apply the positions of this layer's kind to keys; without `rope` they stay."""
        return self._by_kind(lambda mask, kind_rope: mask.encode_keys(vectors, kind_rope), rope)

    def _by_kind(self, encode: Callable[[AttentionMask, Any], Array], rope: Any) -> Array:
        """Apply the mask of this layer's kind by a switch."""
        rope = rope or (None,) * len(self.kinds)

        def branch(number: int) -> Callable[[Any], Array]:
            """Return a function that applies the mask of one kind."""
            return lambda rope: encode(self.kinds[number], rope[number])

        branches = [branch(number) for number in range(len(self.kinds))]
        return jax.lax.switch(self.kind, branches, rope)


def _require_cells(grid: Grid, name: str, size: int) -> CellGrid:
    """Return a grid of cells; raise ValueError at others, whose prefixes cannot be cut."""
    require(
        isinstance(grid, CellGrid),
        name,
        got=f"{size} positions on {type(grid).__name__}",
        expected="a grid of cells",
        cure=f"Take token_grid, or attention without a {name}.",
    )
    assert isinstance(grid, CellGrid)
    return grid


def layer_masks(masks: list[AttentionMask]) -> list[AttentionMask] | list[SwitchedMask]:
    """Return the layers' masks in one structure, so that they can be stacked.

    Equal masks stay as they are. Where layers differ, each has a `SwitchedMask` of all kinds with
    the number of its own.
    """
    kinds = tuple(dict.fromkeys(masks))
    if len(kinds) == 1:
        return masks
    return [SwitchedMask(kinds, jnp.array(kinds.index(mask))) for mask in masks]
