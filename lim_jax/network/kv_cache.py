r"""The cache of a context's keys and values: a token more costs its own row, not the context's.

Row i of causal attention reads :math:`\sum_{j \le i} A_{ij} v_j`, of which only the query and one
key and value are its own. On the token grid of at least all tokens that are to come, a network
maps a context, `prefill`, and then each token that follows, `decode_step`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lim_jax._precision import matmul
from lim_jax.grid.cells import CellGrid, token_grid
from lim_jax.grid.measure import Grid
from lim_jax.network.attention import causal_attention, weights_of_rows
from lim_jax.network.field import TransformerField
from lim_jax.network.flow import ResidualFlow, euler, split
from lim_jax.network.latent import LatentAttention
from lim_jax.network.masks import Rope
from lim_jax.network.multihead import CausalAttention, by_head
from lim_jax.network.shaping import PLAIN, Shaping
from lim_jax.network.slots import Field, State

Place = Int[Array, ""]


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
        """Attend from the one row of `x`."""
        attention = self.attention
        query = attention.queries(x, _rope_at(attention, self.grid, self.place))
        key, value = (by_head(grouped, query.shape[0]) for grouped in self.cache)
        heads = attention.of_heads(self._read, query, key, value)
        return attention.project_output(heads, attention.gates(x))

    def _read(self, query: Array, key: Array, value: Array, shaping: Shaping = PLAIN) -> Array:
        grid, places = self.attention.prefixes(self.grid), jnp.arange(self.grid.size)
        assert isinstance(grid, CellGrid)
        first = 0 if grid.starts is None else grid.starts[self.place]
        prefix = jnp.where((first <= places) & (places <= self.place), grid.weights, 0)[None]
        weights = weights_of_rows(query, key, prefix, self.grid, shaping, self.place)
        return matmul(weights, value).astype(value.dtype)


class RowField(eqx.Module):
    """`field.TransformerField` of one token."""

    attention: RowAttention
    feed_forward: Field

    @property
    def sublayers(self) -> tuple[RowAttention, Field]:
        """The fields whose sum this is, in the order in which a layer applies them."""
        return self.attention, self.feed_forward

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Add the sublayers."""
        return self.attention(x, context, grid) + self.feed_forward(x, context, grid)


def _rope_at(attention: CausalAttention, grid: Grid, place: Place) -> Rope | None:
    """The rope of one place's query and key."""
    return jax.tree.map(lambda rope: rope[place][None], attention.rope(grid))


def has_kv_cache(flow: ResidualFlow) -> bool:
    """Whether a layer's keys and values are those of its first state, and known to be read so."""
    field: Any = flow.kinds[0]
    return (
        len(flow.kinds) == 1
        and isinstance(field, TransformerField)
        and type(field.attention) in (CausalAttention, LatentAttention)
        and field.attention.attend is causal_attention
        and flow.step in (euler, split)
    )


def prefill(flow: ResidualFlow, x: State, grid: CellGrid) -> tuple[State, KVCache]:
    """Map a context on the token grid to last states, keys and values; the flow `has_kv_cache`."""

    def body(x: State, layer: Any) -> tuple[State, KVCache]:
        attention = layer[0].attention
        own = KVCache(*attention.sources(x, attention.rope(grid)))
        return flow.transition(layer, x, grid), own

    return flow.scan(body, x)


def decode_step(
    flow: ResidualFlow, x: Float[Array, "1 width"], place: Place, cache: KVCache, grid: CellGrid
) -> tuple[Float[Array, "1 width"], KVCache]:
    """Map one token more to its last state, and put its keys and values among the others'.

    >>> layers = TransformerField.init(4, heads=2, key=jax.random.key(0))
    >>> flow = ResidualFlow(jax.tree.map(lambda leaf: leaf[None], layers))
    >>> grid, x = token_grid(3), jax.random.normal(jax.random.key(1), (3, 4))
    >>> _, cache = prefill(flow, x.at[2].set(0), grid)
    >>> last, _ = decode_step(flow, x[2:], jnp.array(2), cache, grid)
    >>> bool(jnp.allclose(last, flow(x, grid)[2:], atol=1e-5))
    True
    """
    own_grid = token_grid(1, grid.dtype)

    def body(x: State, layer: Any, *cache: Array) -> tuple[State, KVCache]:
        field, increment = layer
        own = KVCache(*field.attention.sources(x, _rope_at(field.attention, grid, place)))
        here = _put(KVCache(*cache), own, place)
        row = RowField(RowAttention(field.attention, here, place, grid), field.feed_forward)
        return flow.transition((row, increment), x, own_grid), own

    x, own = flow.scan(body, x, *cache)
    return x, _put(cache, own, place)


def _put(cache: KVCache, own: KVCache, place: Place) -> KVCache:
    """One row of keys and of values in its place."""

    def put(rows: Array, row: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(rows, row, place, axis=rows.ndim - 2)

    return jax.tree.map(put, cache, own)
