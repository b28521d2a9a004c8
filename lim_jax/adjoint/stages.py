r"""The residual stages of a layer, each with its own kernel K and local operator B.

A layer is one stage, or several in turn. The kernel of attention and of recurrent layers is a sum
over heads, so that the part that each head adds to a covector is known.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lim_jax._checks import require
from lim_jax._jit import filter_jit
from lim_jax.adjoint.tangent import Parts, pull_back
from lim_jax.grid.cells import CellGrid, token_grid
from lim_jax.grid.measure import Grid, Scalar
from lim_jax.network.field import FIELDS_WITH_HEADS, SumOfFields, TransformerField, heads_of
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.kv_cache import KVCache, RowAttention
from lim_jax.network.multihead import CausalAttention, by_head
from lim_jax.network.slots import Field, State
from lim_jax.network.steps import euler, split

Covectors = Float[Array, "covectors length width"]
Heads = Float[Array, "heads length width"]


class SparseRows(NamedTuple):
    """A covector that is zero but at a few positions; rows at a repeated position are added."""

    positions: Int[Array, " few"]
    rows: Float[Array, "few width"]

    def dense(self, length: int) -> State:
        """Return the covector at all positions."""
        zeros = jnp.zeros((length, self.rows.shape[1]), self.rows.dtype)
        return zeros.at[self.positions].add(self.rows)


class Pulled(NamedTuple):
    """The images of several covectors, and of a sparse one, under a field's adjoint."""

    parts: Parts  # of the several, with a leading axis
    sparse: Parts | None = None  # the local part's rows, and the kernel's part at all positions
    heads: Heads | None = None  # by head, the kernel's part of the sum of all covectors


Pull = Callable[[Covectors, SparseRows | None], Pulled]


class Stage(NamedTuple):
    r"""A residual stage :math:`x + \varepsilon\zeta\,f(x)` of a layer, and the covector P at it."""

    field: Any
    state: State
    covector: State
    parts: Parts  # epsilon zeta B* P and epsilon zeta K* P, which the stage adds to P
    heads: Heads | None = None  # the second by head, of `hops.pull_back_hops`


def pull_back_stages(
    flow: ResidualFlow, layer: tuple[Any, Scalar], x: State, covector: State, grid: Grid
) -> list[Stage]:
    r"""Carry a covector back through the residual stages of one layer, the last stage first."""
    fields = _stages(flow, layer)
    increment = layer[1]
    states = [x]
    for stage in fields[:-1]:
        states.append(euler(stage, states[-1], grid, increment))
    stages = []
    for stage, state in reversed(list(zip(fields, states, strict=True))):
        parts = pull_back(stage, state, covector, grid)
        parts = Parts(increment * parts.local, increment * parts.kernel)
        stages.append(Stage(stage, state, covector, parts))
        covector = covector + parts.local + parts.kernel
    return stages


def linearised_stages(
    flow: ResidualFlow, layer: tuple[Any, Scalar], x: State, grid: Grid
) -> list[tuple[Any, State, Pull]]:
    """Linearise the residual stages of one layer, the last first, each once for all covectors."""
    # A field, its state and its `Pull` for each. A sparse covector needs a network that keeps keys
    # and values (`has_kv_cache`), on a token grid.
    fields = _stages(flow, layer)
    increment = layer[1]

    def scaled(pull: Pull) -> Pull:
        """Multiply what a pull-back returns by the layer's increment."""
        return lambda *inputs: jax.tree.map(lambda part: increment * part, pull(*inputs))

    stages = []
    for field in fields:
        value, pull = _linearise(field, x, grid)
        stages.append((field, x, scaled(pull)))
        x = x + increment * value
    return stages[::-1]


def _stages(flow: ResidualFlow, layer: tuple[Any, Scalar]) -> Any:
    """Return the fields of a layer's residual stages in order; raise ValueError if it has none."""
    require(
        flow.step in (euler, split),
        "flow.step",
        got=getattr(flow.step, "__name__", repr(flow.step)),
        expected="euler or split",
        cure=(
            "Make the flow with one of these steps, or take continuous_adjoint for the limit of "
            "many layers: other steps have no exact residual stages."
        ),
    )
    return (layer[0],) if flow.step is euler else layer[0].sublayers


@filter_jit
def pull_back_heads(attention: Any, x: State, covector: State, grid: Grid) -> Heads:
    r"""Carry a covector back through each head's kernel; the heads' parts sum to :math:`K^*P`."""
    _, pull = _linearise(attention, x, grid)
    heads = pull(covector[None], None).heads
    assert heads is not None
    return heads


def with_rows(heads: Heads, most: int) -> Float[Array, "most length width"]:
    """Pad the parts of heads with zeros, so that layers of fewer heads have as many rows."""
    return jnp.pad(heads, ((0, most - len(heads)), (0, 0), (0, 0)))


def _linearise_heads(attention: Any, x: State, grid: Grid) -> tuple[State, Pull]:
    """Linearise attention or a recurrent layer at x, once for all covectors and heads."""
    weights = grid.weights[:, None]
    softmax = isinstance(attention, CausalAttention)
    source_argument = attention.rope(grid) if softmax else grid
    sources, pull_sources = jax.vjp(lambda context: attention.sources(context, source_argument), x)
    structure = jax.tree.structure(sources)
    heads = heads_of(attention)

    def attend(x: State, *by_heads: Array) -> State:
        """Apply the attention with each query head's own copy of its sources."""
        if softmax:
            query = attention.queries(x, source_argument)
            return attention.attended(query, *by_heads, attention.gates(x), grid)
        output = attention.reads(x, jax.tree.unflatten(structure, by_heads), grid)
        return attention.project_output(output, attention.gates(x))

    each_head = [by_head(grouped, heads) for grouped in sources]
    value, pull = jax.vjp(attend, x, *each_head)

    def kernel(*by_heads: Array) -> State:
        """Pull gradients of all heads' sources back to the context."""
        summed = map(_sum_groups, by_heads, sources)
        return pull_sources(jax.tree.unflatten(structure, summed))[0] / weights

    def head_kernel(head: Array, *by_heads: Array) -> State:
        """Pull the gradients of one head's sources back to the context."""
        return kernel(*(jnp.zeros_like(each).at[head].set(each[head]) for each in by_heads))

    def pull_all(covectors: Covectors, sparse: SparseRows | None) -> Pulled:
        """Carry covectors, and a sparse one if there is one, back through the linearised layer."""
        local, *gradients = jax.vmap(lambda covector: pull(weights * covector))(covectors)
        total = [each.sum(axis=0) for each in gradients]
        sparse_parts = None
        if sparse is not None:
            if softmax:
                rows, *row_gradients = _pull_rows(attention, x, each_head, sparse, grid)
            else:
                rows, *row_gradients = _pull_dense(pull, sparse, weights)
            total = [
                dense + rows_part for dense, rows_part in zip(total, row_gradients, strict=True)
            ]
            sparse_parts = Parts(rows, kernel(*row_gradients))
        by_heads = jax.vmap(lambda head: head_kernel(head, *total))(jnp.arange(heads))
        parts = Parts(local / weights[None], jax.vmap(kernel)(*gradients))
        return Pulled(parts, sparse_parts, by_heads)

    return value, pull_all


def _sum_groups(by_heads: Array, source: Array) -> Array:
    """Sum the query heads' gradients over the heads that share one source."""
    return by_heads.reshape(len(source), -1, *source.shape[1:]).sum(axis=1)


def _pull_dense(
    pull: Callable[[State], tuple[Array, ...]], sparse: SparseRows, weights: Array
) -> tuple[Array, ...]:
    """Carry a sparse covector, written out, back through a layer whose rows depend on each other.

    Return what comes to the rows at its positions, and to each source.
    """
    local, *source_gradients = pull(weights * sparse.dense(len(weights)))
    # A position that is named twice has its row in shares.
    counts = jnp.zeros_like(weights).at[sparse.positions].add(1)
    return (local / weights / jnp.maximum(counts, 1))[sparse.positions], *source_gradients


def _pull_rows(
    attention: CausalAttention, x: State, sources: list[Array], sparse: SparseRows, grid: Grid
) -> tuple[Array, ...]:
    """Carry a sparse covector back through attention at its positions, to rows and sources."""
    assert isinstance(grid, CellGrid)
    positions = sparse.positions
    weights = grid.weights[sparse.positions][:, None]

    def attend(rows: Array, key: Array, value: Array) -> Array:
        """Apply the attention at the few rows' positions alone."""
        return RowAttention(attention, KVCache(key, value), positions, grid)(rows, rows, grid)

    _, pull = jax.vjp(attend, x[positions], *sources)
    rows, *source_gradients = pull(weights * sparse.rows)
    return rows / weights, *source_gradients


def _linearise_field(field: Field, x: State, grid: Grid) -> tuple[State, Pull]:
    """Return the value at x of a field without heads, and its `Pull`."""
    weights = grid.weights[:, None]
    value, pull = jax.vjp(lambda x, context: field(x, context, grid), x, x)

    def pull_all(covectors: Covectors, sparse: SparseRows | None) -> Pulled:
        """Pull covectors, and rows of sparse ones, back through the field."""
        gradients = jax.vmap(lambda covector: pull(weights * covector))(covectors)
        parts = Parts(*(part / weights[None] for part in gradients))
        if sparse is None:
            return Pulled(parts)
        alone = token_grid(len(sparse.positions), x.dtype)  # a field that maps each token by itself
        _, pull_rows = jax.vjp(lambda rows: field(rows, rows, alone), x[sparse.positions])
        return Pulled(parts, Parts(pull_rows(sparse.rows)[0], jnp.zeros_like(x)))

    return value, pull_all


def _linearise(field: Field, x: State, grid: Grid) -> tuple[State, Pull]:
    """Return a field's value at x, and its `Pull`, the adjoint for several covectors at once."""
    if isinstance(field, FIELDS_WITH_HEADS):
        return _linearise_heads(field, x, grid)
    if not isinstance(field, TransformerField | SumOfFields):
        return _linearise_field(field, x, grid)
    values, pulls = zip(*(_linearise(part, x, grid) for part in field.sublayers), strict=True)

    def pull_all(covectors: Covectors, sparse: SparseRows | None) -> Pulled:
        """Pull covectors back through every term of the field and add the results."""
        parts, sparse_parts, heads = zip(*(pull(covectors, sparse) for pull in pulls), strict=True)
        add = partial(jax.tree.map, lambda *terms: sum(terms))
        each = [some for some in heads if some is not None]
        return Pulled(add(*parts), add(*sparse_parts), jnp.concatenate(each) if each else None)

    return jnp.sum(jnp.stack(values), axis=0), pull_all
