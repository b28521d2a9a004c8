"""What layers keep of a context: a token more costs its own row, not the context's.

On the token grid of at least all tokens that are to come, a network maps a context, `prefill`, and
then each token that follows, `decode_step`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lim_jax._checks import require
from lim_jax._products import matmul
from lim_jax.grid.cells import CellGrid, token_grid
from lim_jax.grid.measure import Grid
from lim_jax.network.attention import causal_attention, weights_of_rows
from lim_jax.network.caps_and_sinks import PLAIN, Shaping
from lim_jax.network.experts import MixtureOfExperts
from lim_jax.network.field import SumOfFields, TransformerField, heads_of
from lim_jax.network.flow import ResidualFlow, euler, split
from lim_jax.network.gated_delta import GatedDelta, KimiDelta
from lim_jax.network.latent import LatentAttention
from lim_jax.network.mamba2 import Mamba2
from lim_jax.network.masks import Rope
from lim_jax.network.multihead import CausalAttention, by_head
from lim_jax.network.recurrent import RecurrentMixer
from lim_jax.network.short_convolution import ShortConvolution
from lim_jax.network.slots import State
from lim_jax.network.tokenwise import FeedForward, GatedFeedForward, NormedResidual

Place = Int[Array, ""]
Caches = tuple[Any, ...]  # of each kind of layers, what each field of a layer keeps
RECURRENT = RecurrentMixer | ShortConvolution
TOKENWISE = FeedForward, GatedFeedForward, MixtureOfExperts, NormedResidual


class KVCache(NamedTuple):
    """Keys and values of one layer or of all, a row for each place; rows to come mean nothing."""

    key: Float[Array, "*depth groups length size"]
    value: Float[Array, "*depth groups length features"]


class RowAttention(eqx.Module):
    """Attention of one token, at a place of a grid, to a layer's keys and values, its own too."""

    attention: CausalAttention
    cache: KVCache
    place: Place
    grid: CellGrid

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Compute attention from the one row of `x` to the cached rows."""
        attention = self.attention
        query = attention.queries(x, _rope_at(attention, self.grid, self.place))
        key, value = (by_head(grouped, query.shape[0]) for grouped in self.cache)
        heads = attention.map_heads(self._read, query, key, value)
        return attention.project_output(heads, attention.gates(x))

    def _read(self, query: Array, key: Array, value: Array, shaping: Shaping = PLAIN) -> Array:
        """Compute one head's attention from the one row, masked to its prefix."""
        grid = self.attention.prefixes(self.grid)
        positions = jnp.arange(self.grid.size)
        assert isinstance(grid, CellGrid)
        first = 0 if grid.starts is None else grid.starts[self.place]
        prefix = jnp.where((first <= positions) & (positions <= self.place), grid.weights, 0)[None]
        weights = weights_of_rows(query, key, prefix, self.grid, shaping, self.place)
        return matmul(weights, value).astype(value.dtype)


def _rope_at(attention: CausalAttention, grid: Grid, place: Place) -> Rope | None:
    """Return what positions give the queries and keys at one place."""
    return jax.tree.map(lambda rope: rope[place][None], attention.rope(grid))


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


def prefill(
    flow: ResidualFlow, x: State, grid: CellGrid, length: Place | None = None
) -> tuple[State, Caches]:
    """Map a context to its last states, and return the caches of its first `length` tokens."""
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
        """Apply one layer to the context, and return its caches."""
        return _through(flow, layer, x, fill_cache, None)

    return flow.scan_by_kind(body, x)


def decode_step(
    flow: ResidualFlow, x: Float[Array, "1 width"], place: Place, cache: Caches, grid: CellGrid
) -> tuple[Float[Array, "1 width"], Caches]:
    """Map one more token to its last state, and add its row to the caches."""
    alone = token_grid(1, grid.dtype)

    def apply_field(field: Any, x: State, cache: Any) -> tuple[State, Any]:
        """Apply one field to the token, and return its own row or memory."""
        if isinstance(field, CausalAttention):
            new = KVCache(*field.sources(x, _rope_at(field, grid, place)))
            row = RowAttention(field, _put(cache, new, place), place, grid)
            return row(x, x, alone), new
        if isinstance(field, RECURRENT):
            return field.advance(x, jnp.array(1), cache)
        return field(x, x, alone), ()

    def body(x: State, layer: Any, cache: Any) -> tuple[State, Any]:
        """Apply one layer to the token with its caches."""
        return _through(flow, layer, x, apply_field, cache)

    x, new = flow.scan_by_kind(body, x, cache)

    def update(cache: Any, new: Any) -> Any:
        """Put the token's keys and values into a cache; other memories are replaced."""
        return _put(cache, new, place) if isinstance(cache, KVCache) else new

    return x, jax.tree.map(update, cache, new, is_leaf=lambda node: isinstance(node, KVCache))


def _through(
    flow: ResidualFlow, layer: Any, x: State, apply_field: Callable[..., Any], cache: Any
) -> tuple[State, Any]:
    """Apply one layer, each of its fields with its own cache, and return states and caches."""
    field, increment = layer

    def value(field: Any, x: State, cache: Any) -> tuple[State, Any]:
        """Apply a field, or each of its sublayers, with their caches."""
        if not isinstance(field, TransformerField | SumOfFields):
            return apply_field(field, x, cache)
        parts = zip(field.sublayers, cache or (None,) * len(field.sublayers), strict=True)
        values, caches = zip(
            *(value(part, x, part_cache) for part, part_cache in parts), strict=True
        )
        return jnp.sum(jnp.stack(values), axis=0), caches

    if flow.step is euler:
        change, caches = value(field, x, cache)
        return x + increment * change, caches
    caches = []
    for stage, stage_cache in zip(
        field.sublayers, cache or (None,) * len(field.sublayers), strict=True
    ):
        change, stage_cache = value(stage, x, stage_cache)
        x = x + increment * change
        caches = [*caches, stage_cache]
    return x, tuple(caches)


def _require_one_context(grid: CellGrid) -> None:
    """Raise ValueError unless the grid is one context of equal weights."""
    plain = grid.starts is None and grid.log_weights is None
    got = "one with starts or log weights"
    cure = "Take token_grid of one context."
    require(plain, "grid", got=got, expected="one context whose tokens weigh the same", cure=cure)


def _put(cache: KVCache, new: KVCache, place: Place) -> KVCache:
    """Write one token's keys and values into a cache at its place."""

    def put(rows: Array, row: Array) -> Array:
        """Write one token's row into an array of the cache."""
        return jax.lax.dynamic_update_slice_in_dim(rows, row, place, axis=rows.ndim - 2)

    return jax.tree.map(put, cache, new)
