r"""Which positions a row of attention sees, and how queries and keys know theirs.

Layers of one network may differ in both, as where most see a window and some the whole context.
Which kind a layer is of is then a number among its parameters, so that one scan runs over all.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from lim_jax._checks import as_int, require
from lim_jax.grid.cells import CellGrid
from lim_jax.grid.measure import Grid
from lim_jax.network.positions import Places

WHOLE = "None is for attention to the whole prefix."
Turns = PyTree[Float[Array, "length ..."]]


class Span(eqx.Module):
    r"""What one row of attention sees of its prefix, and how positions enter scores.

    Attributes
    ----------
    window
        How many positions of the grid a row sees, the last ones with its own (sliding windows), or
        None for its whole prefix. It counts positions, so it has no continuum limit.
    chunk
        How many positions a chunk of a context has, whose rows see none before their own chunk, or
        None.
    places
        How queries and keys change with their positions: a `Rotary`, another of `positions`, or
        None.

    Raises
    ------
    ValueError
        Where a window or a chunk is no positive whole number known before tracing, or both are.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> [Span(**what).prefixes(token_grid(5)).starts.tolist() for what in ({"window": 2},
    ...     {"chunk": 2})]
    [[0, 0, 1, 2, 3], [0, 0, 2, 2, 4]]
    """

    window: int | None = eqx.field(static=True, default=None)
    chunk: int | None = eqx.field(static=True, default=None)
    places: Places | None = None

    def __check_init__(self):
        for name in ("window", "chunk"):
            if getattr(self, name) is not None:
                as_int(getattr(self, name), name, cure=WHOLE)
        require(
            self.window is None or self.chunk is None,
            "span",
            got="a window and a chunk",
            expected="one of them at most",
            cure=WHOLE,
        )

    @property
    def turning(self) -> int:
        """How many features of a head are rotated."""
        return 0 if self.places is None else self.places.turning

    def alike(self, first: int, second: int) -> bool:
        """Whether contexts of two lengths know their positions in the same way."""
        if self.places is None or first == second:
            return True
        # Where [0, 1] stands for a number of tokens, those of a longer context are closer together.
        return self.places.tokens is None and self.places.alike(first, second)

    def prefixes(self, grid: Grid) -> Grid:
        """The grid with the prefixes that rows attend to."""
        if self.window is not None:
            return grid.windowed(self.window)
        return grid if self.chunk is None else grid.chunked(self.chunk)

    def turns(self, grid: Grid) -> Turns | None:
        """What queries and keys know of the positions, a row for each; None if nothing."""
        return None if self.places is None else self.places.turns(grid)

    def of_queries(self, vectors: Array, turns: Turns | None) -> Array:
        """Put queries to their positions; without turns they stay."""
        if self.places is None or turns is None:
            return vectors
        return self.places.of_queries(vectors, turns)

    def of_keys(self, vectors: Array, turns: Turns | None) -> Array:
        """Put keys to their positions; without turns they stay."""
        if self.places is None or turns is None:
            return vectors
        return self.places.of_keys(vectors, turns)


class Spans(eqx.Module):
    r"""One of several `kinds` of spans, by a number among the parameters, `kind`.

    Of a network's layers there is one number each.

    >>> from lim_jax.grid import token_grid
    >>> layers = Spans((Span(window=2), Span()), jnp.array([0, 1]))
    >>> jax.vmap(lambda span: span.prefixes(token_grid(4)).starts)(layers).tolist()
    [[0, 0, 1, 2], [0, 0, 0, 0]]
    """

    kinds: tuple[Span, ...] = eqx.field(static=True)
    kind: Int[Array, "*layers"]

    @property
    def turning(self) -> int:
        """How many features of a head are rotated, where most are."""
        return max(kind.turning for kind in self.kinds)

    def alike(self, first: int, second: int) -> bool:
        """Whether contexts of two lengths know their positions in the same way."""
        return all(kind.alike(first, second) for kind in self.kinds)

    def prefixes(self, grid: Grid) -> Grid:
        """The grid with the prefixes that rows of this layer attend to."""
        seen = [kind.prefixes(grid) for kind in self.kinds]
        cut = [own for own in seen if isinstance(own, CellGrid)]
        if all(own is grid for own in seen) or not isinstance(grid, CellGrid):
            return grid
        nothing = jnp.zeros(grid.size, int)
        starts = [nothing if own.starts is None else own.starts for own in cut]
        return replace(grid, starts=jnp.stack(starts)[self.kind])

    def turns(self, grid: Grid) -> tuple[Turns | None, ...]:
        """What queries and keys know of the positions in a layer of each kind."""
        return tuple(kind.turns(grid) for kind in self.kinds)

    def of_queries(self, vectors: Array, turns: tuple[Turns | None, ...] | None) -> Array:
        """Put queries to their positions; without turns they stay."""
        return self._by_kind(lambda span, of_kind: span.of_queries(vectors, of_kind), turns)

    def of_keys(self, vectors: Array, turns: tuple[Turns | None, ...] | None) -> Array:
        """Put keys to their positions; without turns they stay."""
        return self._by_kind(lambda span, of_kind: span.of_keys(vectors, of_kind), turns)

    def _by_kind(self, put: Callable[[Span, Any], Array], turns: Any) -> Array:
        turns = turns or (None,) * len(self.kinds)
        branches = [partial(put, kind) for kind in self.kinds]
        put_by = [lambda turns, at=at, put=put: put(turns[at]) for at, put in enumerate(branches)]
        return jax.lax.switch(self.kind, put_by, turns)


def spans_of(of_layers: list[Span]) -> Any:
    """The span of each of several layers, in order, as `reading.stacked` takes them: one if alike.

    >>> near, far = Span(window=2), Span()
    >>> [layer.kind.item() for layer in spans_of([near, near, far])]
    [0, 0, 1]
    """
    kinds = tuple(dict.fromkeys(of_layers))
    if len(kinds) == 1:
        return of_layers
    return [Spans(kinds, jnp.array(kinds.index(span))) for span in of_layers]
