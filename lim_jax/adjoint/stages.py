r"""The residual stages of a layer, each with its own kernel K and local operator B.

A layer of a network is one stage, or several that follow one another. Attention's kernel is a sum
over heads, so that what each of them adds to a covector is told apart.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lim_jax._checks import described, require, require_kind
from lim_jax._errors import filter_jit
from lim_jax.adjoint.tangent import Parts, pull_back
from lim_jax.grid.cells import CellGrid, token_grid
from lim_jax.grid.measure import Grid, require_on_grid
from lim_jax.network.field import TransformerField
from lim_jax.network.flow import ResidualFlow, euler, require_flow, split
from lim_jax.network.keeping import Kept, RowAttention
from lim_jax.network.multihead import CausalAttention, by_head
from lim_jax.network.slots import Field, State

Scalar = Float[Array, ""]
Covectors = Float[Array, "covectors length width"]
Heads = Float[Array, "heads length width"]


class Few(NamedTuple):
    """A covector that is zero but at a few places.

    Attributes
    ----------
    places
        Where it is not; what stands at a place that is named twice is added.
    rows
        Its rows there.
    """

    places: Int[Array, " few"]
    rows: Float[Array, "few width"]

    def whole(self, length: int) -> State:
        """The covector at all places."""
        zeros = jnp.zeros((length, self.rows.shape[1]), self.rows.dtype)
        return zeros.at[self.places].add(self.rows)


class Pulled(NamedTuple):
    """What a field makes of several covectors, and of one that is zero but at a few places.

    Attributes
    ----------
    parts
        Of each of the several, with a leading axis.
    few
        Of the one: the rows of its local part, and its kernel's part at all places; else None.
    heads
        Of the sum of all what every head's kernel makes; None without attention.
    """

    parts: Parts
    few: Parts | None = None
    heads: Heads | None = None


Pull = Callable[[Covectors, Few | None], Pulled]


class Stage(NamedTuple):
    r"""One residual stage :math:`x + \varepsilon\zeta\,f(x)` of a layer, met by a covector.

    Attributes
    ----------
    field
        f: the layer's whole field, or one of its sublayers.
    state
        The state at which the stage is linearised.
    covector
        The covector P that the stage pulls back.
    parts
        :math:`\varepsilon\zeta B^*P` and :math:`\varepsilon\zeta K^*P`, which it adds to P.
    heads
        Of `hops.pull_back_hops`, where the field has attention: what each head's kernel adds.
    """

    field: Any
    state: State
    covector: State
    parts: Parts
    heads: Heads | None = None


def pull_back_stages(
    flow: ResidualFlow, layer: tuple[Any, Scalar], x: State, covector: State, grid: Grid
) -> list[Stage]:
    r"""Carry a covector back through the residual stages of one layer, the last stage first.

    `euler` has one stage, its field. `split` has its sublayers: attention meets
    :math:`\tilde P = (I + \varepsilon\zeta D\mathrm{FNN}(\tilde X)^*)P_{k+1}`, the network
    :math:`P_{k+1}` itself. What all stages add is :math:`P_k - P_{k+1}`, exactly.

    Raises
    ------
    ValueError
        Where the flow's step is neither `euler` nor `split`.
    """
    fields, increment = _require_stages(flow, layer, x, grid), layer[1]
    require_on_grid(covector, grid, "covector", "length width", width=x.shape[1])
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
    """The residual stages of one layer, the last first, each evaluated once for all covectors.

    Parameters
    ----------
    flow, layer, x, grid
        As in `pull_back_stages`.

    Returns
    -------
    list
        Of each stage its field, its state, and what it adds to several covectors and maybe to one
        more that is zero but at a few places: a function to `Pulled`. That one takes attention of
        the rows of these places alone; it is for networks that keep keys and values
        (`keeping.keeps`), on a token grid.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> field = lambda x, context, grid: 2 * x + 3 * context
    >>> flow = ResidualFlow(jnp.ones(1))  # its step is euler
    >>> layer, x = (field, jnp.array(0.5)), jnp.ones((1, 1))
    >>> ((_, _, pull),) = linearised_stages(flow, layer, x, token_grid(1))
    >>> parts, _, heads = pull(jnp.array([[[1.0]], [[2.0]]]), None)
    >>> parts.local.ravel().tolist(), parts.kernel.ravel().tolist(), heads
    ([1.0, 2.0], [1.5, 3.0], None)
    """
    fields, increment = _require_stages(flow, layer, x, grid), layer[1]

    def scaled(pull: Pull) -> Pull:
        return lambda *met: jax.tree.map(lambda part: increment * part, pull(*met))

    stages = []
    for field in fields:
        value, pull = _linearised(field, x, grid)
        stages.append((field, x, scaled(pull)))
        x = x + increment * value
    return stages[::-1]


def _require_stages(flow: ResidualFlow, layer: tuple[Any, Scalar], x: State, grid: Grid) -> Any:
    """The fields of a layer's residual stages, the first first; refuse what has none."""
    require_flow(flow)
    require(
        flow.step in (euler, split),
        "flow.step",
        got=getattr(flow.step, "__name__", repr(flow.step)),
        expected="euler or split",
        cure="Other steps have no exact residual stages; for the limit take continuous_adjoint.",
    )
    require(
        isinstance(layer, tuple) and len(layer) == 2,
        "layer",
        got=described(layer),
        expected="a pair of a field and its increment",
        cure="ResidualFlow.scan hands it to what visits the layers.",
    )
    require_on_grid(x, grid, "x", "length width")
    return (layer[0],) if flow.step is euler else layer[0].sublayers


@filter_jit
def pull_back_heads(attention: CausalAttention, x: State, covector: State, grid: Grid) -> Heads:
    r"""Carry a covector back through each head's kernel; the heads' parts sum to :math:`K^*P`.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> attention = CausalAttention.init(4, heads=2, key=jax.random.key(0))
    >>> x = jax.random.normal(jax.random.key(1), (3, 4))
    >>> heads = pull_back_heads(attention, x, x, token_grid(3))
    >>> whole = jax.jit(pull_back)(attention, x, x, token_grid(3)).kernel
    >>> heads.shape, bool(jnp.allclose(heads.sum(axis=0), whole, atol=1e-5))
    ((2, 3, 4), True)
    """
    cure = "Pass the attention sublayer, for example field.attention."
    require_kind(attention, CausalAttention, "attention", cure)
    require_on_grid(x, grid, "x", "length width")
    require_on_grid(covector, grid, "covector", "length width", width=x.shape[1])
    _, pull = _linearised_attention(attention, x, grid)
    heads = pull(covector[None], None).heads
    assert heads is not None
    return heads


def _linearised_attention(attention: CausalAttention, x: State, grid: Grid) -> tuple[State, Pull]:
    """Attention at x, evaluated once for all covectors and heads."""
    weights, turns = grid.weights[:, None], attention.turns(grid)
    sources, pull_sources = jax.vjp(lambda context: attention.sources(context, turns), x)
    heads = len(attention.output)

    def read(x: State, key: Array, value: Array) -> State:
        query = attention.queries(x, turns)
        return attention.attended(query, key, value, attention.gates(x), grid)

    each_head = [by_head(grouped, heads) for grouped in sources]
    value, pull = jax.vjp(read, x, *each_head)

    def of_groups(of_heads: Array, grouped: Array) -> Array:
        return of_heads.reshape(len(grouped), -1, *grouped.shape[1:]).sum(axis=1)

    def kernel(*of_heads: Array) -> State:
        return pull_sources(jax.tree.map(of_groups, of_heads, sources))[0] / weights

    def one_head(head: Array, *of_heads: Array) -> State:
        return kernel(*(jnp.zeros_like(each).at[head].set(each[head]) for each in of_heads))

    def pull_all(covectors: Covectors, few: Few | None) -> Pulled:
        local, *of_heads = jax.vmap(lambda covector: pull(weights * covector))(covectors)
        whole, of_few = [each.sum(axis=0) for each in of_heads], None
        if few is not None:
            rows, *of_rows = _pull_rows(attention, x, each_head, few, grid)
            whole = [one + other for one, other in zip(whole, of_rows, strict=True)]
            of_few = Parts(rows, kernel(*of_rows))
        by_heads = jax.vmap(lambda head: one_head(head, *whole))(jnp.arange(heads))
        return Pulled(Parts(local / weights[None], jax.vmap(kernel)(*of_heads)), of_few, by_heads)

    return value, pull_all


def _pull_rows(
    attention: CausalAttention, x: State, sources: list[Array], few: Few, grid: Grid
) -> tuple[Array, ...]:
    """What attention of a few rows makes of a covector there: of the rows, and of the sources."""
    assert isinstance(grid, CellGrid)
    places, weights = few.places, grid.weights[few.places][:, None]

    def read(rows: Array, key: Array, value: Array) -> Array:
        def one(place: Array, row: Array) -> Array:
            alone = RowAttention(attention, Kept(key, value), place, grid)
            return alone(row[None], row[None], grid)[0]

        return jax.vmap(one)(places, rows)

    _, pull = jax.vjp(read, x[places], *sources)
    rows, *of_sources = pull(weights * few.rows)
    return rows / weights, *of_sources


def _linearised_field(field: Field, x: State, grid: Grid) -> tuple[State, Pull]:
    """Any field at x, evaluated once for all covectors; the heads of none are known."""
    weights = grid.weights[:, None]
    value, pull = jax.vjp(lambda x, context: field(x, context, grid), x, x)

    def pull_all(covectors: Covectors, few: Few | None) -> Pulled:
        found = jax.vmap(lambda covector: pull(weights * covector))(covectors)
        parts = Parts(*(part / weights[None] for part in found))
        if few is None:
            return Pulled(parts)
        alone = token_grid(len(few.places), x.dtype)  # a field that maps every token by itself
        _, pull_few = jax.vjp(lambda rows: field(rows, rows, alone), x[few.places])
        return Pulled(parts, Parts(pull_few(few.rows)[0], jnp.zeros_like(x)))

    return value, pull_all


def _linearised(field: Field, x: State, grid: Grid) -> tuple[State, Pull]:
    """A field at x, its attention by heads where it has one."""
    if isinstance(field, CausalAttention):
        return _linearised_attention(field, x, grid)
    if not isinstance(field, TransformerField):
        return _linearised_field(field, x, grid)
    values, pulls = zip(*(_linearised(part, x, grid) for part in field.sublayers), strict=True)

    def pull_all(covectors: Covectors, few: Few | None) -> Pulled:
        parts, of_few, heads = zip(*(pull(covectors, few) for pull in pulls), strict=True)
        parts, of_few = (jax.tree.map(lambda *all: sum(all), *one) for one in (parts, of_few))
        return Pulled(parts, of_few, heads[0])

    return jnp.sum(jnp.stack(values), axis=0), pull_all
