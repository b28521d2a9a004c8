"""What layers keep of a context: a token more costs its own row, not the context's.

On the token grid of at least all tokens that are to come, a network maps a context, `prefill`, and
then the tokens that follow, one or several at once, `extend`.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lim_jax._checks import in_a_line, require
from lim_jax._products import matmul
from lim_jax.grid.cells import CellGrid, token_grid
from lim_jax.grid.measure import Grid
from lim_jax.network.attention import causal_attention, weights_of_rows
from lim_jax.network.caps_and_sinks import PLAIN, Shaping
from lim_jax.network.experts import MixtureOfExperts
from lim_jax.network.field import SumOfFields, TransformerField, heads_of
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.gated_delta import GatedDelta, KimiDelta
from lim_jax.network.latent import LatentAttention
from lim_jax.network.mamba2 import Mamba2
from lim_jax.network.masks import Rope
from lim_jax.network.multihead import CausalAttention, by_head
from lim_jax.network.recurrent import RecurrentMixer
from lim_jax.network.short_convolution import ShortConvolution
from lim_jax.network.slots import State
from lim_jax.network.steps import euler, split
from lim_jax.network.tokenwise import FeedForward, GatedFeedForward, NormedResidual

Place = Int[Array, ""]
RowPositions = Int[Array, " rows"]
Caches = tuple[Any, ...]  # of each kind of layers, what each field of a layer keeps
RECURRENT = RecurrentMixer | ShortConvolution
TOKENWISE = FeedForward, GatedFeedForward, MixtureOfExperts, NormedResidual


class KVCache(NamedTuple):
    """Keys and values of one layer or of all, a row for each place; rows to come mean nothing."""

    key: Float[Array, "*depth groups length size"]
    value: Float[Array, "*depth groups length features"]


class Passed(NamedTuple):
    """What tokens leave behind as they pass through a network.

    Attributes
    ----------
    state
        Their last states.
    caches
        What layers keep of them and of those before them.
    states
        Their states before each layer; a program that does not use these does not keep them.
    """

    state: State
    caches: Caches
    states: Float[Array, "depth rows width"]


class RowAttention(eqx.Module):
    """Attention of some tokens, at places of a grid, to a layer's keys and values, theirs too."""

    attention: CausalAttention
    cache: KVCache
    places: RowPositions
    grid: CellGrid

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Compute attention from the rows of `x` to the cached rows."""
        attention = self.attention
        query = attention.queries(x, _rope_at(attention, self.grid, self.places))
        key, value = (by_head(grouped, query.shape[0]) for grouped in self.cache)
        heads = attention.map_heads(self._read, query, key, value)
        return attention.project_output(heads, attention.gates(x))

    def _read(self, query: Array, key: Array, value: Array, shaping: Shaping = PLAIN) -> Array:
        """Compute one head's attention from the rows, each masked to its prefix."""
        grid = self.attention.prefixes(self.grid)
        positions = jnp.arange(self.grid.size)[None]
        assert isinstance(grid, CellGrid)
        first = 0 if grid.starts is None else grid.starts[self.places][:, None]
        seen = (first <= positions) & (positions <= self.places[:, None])
        prefix = jnp.where(seen, grid.weights[None], 0)
        weights = weights_of_rows(query, key, prefix, self.grid, shaping, self.places)
        return matmul(weights, value).astype(value.dtype)


def _rope_at(attention: CausalAttention, grid: Grid, places: RowPositions) -> Rope | None:
    """Return what positions give the queries and keys at some places."""
    return jax.tree.map(lambda rope: rope[places], attention.rope(grid))


def has_kv_cache(flow: ResidualFlow) -> bool:
    """Tell whether a flow can be computed token by token with caches."""
    return flow.step in (euler, split) and all(map(_has_cache, flow.kinds))


def _has_cache(field: Any) -> bool:
    """Tell whether a layer's cache is known, and its other fields map each token by itself."""
    if isinstance(field, TransformerField):
        return heads_of(field.attention) > 0 and _has_cache(field.attention)
    if isinstance(field, SumOfFields):
        return all(map(_has_cache, field.sublayers))
    if isinstance(field, CausalAttention):
        is_supported = type(field) in (CausalAttention, LatentAttention)
        return is_supported and field.attend is causal_attention
    return type(field) in (*TOKENWISE, GatedDelta, KimiDelta, Mamba2, ShortConvolution)


def prefill(flow: ResidualFlow, x: State, grid: CellGrid, length: Place | None = None) -> Passed:
    """Pass a context through a network; the caches are those of its first `length` tokens."""
    _require_tokens(grid)
    count = jnp.asarray(grid.size if length is None else length)

    def fill_cache(field: Any, x: State, _: None) -> tuple[State, Any]:
        """Apply one field to the context, and return its cache."""
        if isinstance(field, CausalAttention):
            return field(x, x, grid), KVCache(*field.sources(x, field.rope(grid)))
        if isinstance(field, RECURRENT):
            _require_one_context(grid)
            return field.advance(x, count)
        return field(x, x, grid), ()

    def body(x: State, layer: Any) -> tuple[State, Any]:
        """Apply one layer to the context, and return its caches and the states before it."""
        after, caches = _apply_layer(flow, layer, x, fill_cache, None)
        return after, (caches, x)

    state, by_kind = flow.scan_by_kind(body, x)
    caches, states = zip(*by_kind, strict=True)
    return Passed(state, caches, flow.in_order(states))


def extend(
    flow: ResidualFlow,
    x: Float[Array, "rows width"],
    place: Place,
    cache: Caches,
    grid: CellGrid,
    count: Place | None = None,
) -> Passed:
    """Pass tokens that follow a context through a network, and add them to its caches.

    The first of them stands at `place`, and the grid has a place for the last. Only the first
    `count` are meant where that is given: recurrent layers keep their memory after these, and rows
    of keys and values after them mean nothing.
    """
    _require_tokens(grid)
    rows = x.shape[0]
    places = place + jnp.arange(rows)
    count = jnp.asarray(rows if count is None else count)
    alone = token_grid(rows, grid.dtype)

    def apply_field(field: Any, x: State, cache: Any) -> tuple[State, Any]:
        """Apply one field to the tokens, and return their own rows or the memory after them."""
        if isinstance(field, CausalAttention):
            new = KVCache(*field.sources(x, _rope_at(field, grid, places)))
            reader = RowAttention(field, _put(cache, new, place), places, grid)
            return reader(x, x, alone), new
        if isinstance(field, RECURRENT):
            return field.advance(x, count, cache)
        return field(x, x, alone), ()

    def body(x: State, layer: Any, cache: Any) -> tuple[State, Any]:
        """Apply one layer to the tokens with its caches."""
        after, new = _apply_layer(flow, layer, x, apply_field, cache)
        return after, (new, x)

    state, by_kind = flow.scan_by_kind(body, x, cache)
    new, states = zip(*by_kind, strict=True)

    def update(cache: Any, new: Any) -> Any:
        """Put the tokens' keys and values into a cache; other memories are replaced."""
        return _put(cache, new, place) if isinstance(cache, KVCache) else new

    caches = jax.tree.map(update, cache, new, is_leaf=lambda node: isinstance(node, KVCache))
    return Passed(state, caches, flow.in_order(states))


def _apply_layer(
    flow: ResidualFlow, layer: Any, x: State, apply_field: Callable[..., Any], cache: Any
) -> tuple[State, Any]:
    """Apply one layer, each of its fields with its own cache, and return states and caches."""
    field, increment = layer

    def evaluate(field: Any, x: State, cache: Any) -> tuple[State, Any]:
        """Evaluate a field; the cache of a sum of fields is a tuple of its sublayers' caches."""
        if not isinstance(field, TransformerField | SumOfFields):
            return apply_field(field, x, cache)
        results = [evaluate(part, x, kept) for part, kept in _with_caches(field, cache)]
        values, caches = zip(*results, strict=True)
        return jnp.sum(jnp.stack(values), axis=0), caches

    if flow.step is euler:
        change, caches = evaluate(field, x, cache)
        return x + increment * change, caches
    caches = []
    for sublayer, kept in _with_caches(field, cache):
        change, new = evaluate(sublayer, x, kept)
        x = x + increment * change
        caches.append(new)
    return x, tuple(caches)


def _with_caches(field: Any, caches: Any) -> Iterator[tuple[Any, Any]]:
    """Pair a field's sublayers with their caches, or with None where nothing is kept yet."""
    return zip(field.sublayers, caches or (None,) * len(field.sublayers), strict=True)


def _require_tokens(grid: CellGrid) -> None:
    """Raise ValueError off the token grid, on which alone a row reads all of its own cell."""
    require(
        grid.is_of_tokens,
        "grid",
        got=in_a_line(grid),
        expected="the token grid",
        cure="Take token_grid of as many tokens as are to come.",
    )


def _require_one_context(grid: CellGrid) -> None:
    """Raise ValueError unless the grid is one context of equal weights."""
    plain = grid.starts is None and grid.log_weights is None
    require(
        plain,
        "grid",
        got="one with starts or log weights",
        expected="one context whose tokens weigh the same",
        cure="Take token_grid of one context.",
    )


def _put(cache: KVCache, new: KVCache, place: Place) -> KVCache:
    """Write tokens' keys and values into a cache from a place on."""

    def put(rows: Array, added: Array) -> Array:
        """Write the tokens' rows into an array of the cache."""
        return jax.lax.dynamic_update_slice_in_dim(rows, added, place, axis=rows.ndim - 2)

    return jax.tree.map(put, cache, new)
