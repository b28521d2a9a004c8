"""The attention of every layer with the state and the covector at which it is linearised."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import require, require_kind
from lim_jax.adjoint.stages import pull_back_stages
from lim_jax.grid.measure import Grid, require_on_grid
from lim_jax.network.field import FIELDS_WITH_HEADS, SumOfFields, TransformerField, heads_of
from lim_jax.network.flow import ResidualFlow, require_flow
from lim_jax.network.layer_kinds import LayersByKind, kinds_of, select_part
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.steps import split, strang
from lim_jax.weights import in_memory, like_of

Result = TypeVar("Result")


class AttentionSites(NamedTuple):
    r"""Every layer's attention, with a leading layer axis, and where it is linearised.

    Attributes
    ----------
    attention
        The attention of all layers: arrays have a leading layer axis. Weights that are fetched, or
        layers of several kinds, are held as in `ResidualFlow.layers`; `map_sites` goes through
        them.
    increments
        :math:`\varepsilon\zeta(t_k)`, of shape ``(depth,)``.
    step
        :math:`\varepsilon`, the same for each layer, of shape ``(depth,)``.
    states
        The state that each layer's attention reads, of shape ``(depth, length, width)``.
    covectors
        The covector that it pulls back, a density of the states' shape: :math:`P_{k+1}`, carried
        back by the later stages of the layer.
    """

    # With a leading axis, or `FetchedParts`, or `LayersByKind` of these: `map_sites`.
    attention: Any
    increments: Float[Array, " depth"]
    step: Float[Array, " depth"]
    states: Float[Array, "depth length width"]
    covectors: Float[Array, "depth length width"]


def attention_sites(
    flow: ResidualFlow,
    states: Float[Array, "times length width"],
    covectors: Float[Array, "times length width"],
    grid: Grid,
) -> AttentionSites:
    r"""Find every layer's attention, the state that it reads and the covector that it pulls back.

    The terms of the cone channel are made of these (`eq:depth-integrated-cone-channel`).

    Parameters
    ----------
    flow
        The depth flow, whose ``step`` is `euler` or `split`, and some of whose layers have heads.
    states
        :math:`X_0, \dots, X_M`, of shape ``(M + 1, length, width)``, as `adjoint_trajectory` gives
        them.
    covectors
        :math:`P_0, \dots, P_M`, densities, of the states' shape, as `adjoint_trajectory` gives
        them.
    grid
        The positions of the states.

    Returns
    -------
    AttentionSites
        Attention, increments, states and covectors, with a leading axis of layers.

    Raises
    ------
    ValueError
        If no layer has heads, a split layer has several sublayers with heads, the step is another
        one, or states or covectors do not fit the grid and the number of layers.
    """
    require_attention(flow)
    for values, name in ((states, "states"), (covectors, "covectors")):
        require_on_grid(values, grid, name, "times length width", times=flow.depth + 1)

    def visit(carry, layer, state, covector):
        """Return the layer's increment, and state and covector where its attention reads."""
        stages = pull_back_stages(flow, layer, state, covector, grid)
        readers = [stage for stage in stages if attention_of(stage.field) is not None]
        site = (readers or stages)[0]  # without attention there is nothing to be linearised
        _, increment = layer
        return carry, (increment, site.state, site.covector)

    _, by_layer = flow.scan(visit, states[0], states[:-1], covectors[1:])
    increments, site_states, site_covectors = by_layer
    step = jnp.full_like(increments, flow.horizon / flow.depth)
    attention = select_part(flow.layers, attention_of)
    return AttentionSites(attention, increments, step, site_states, site_covectors)


def attention_kinds(attention: Any) -> tuple[Any, ...]:
    """Return the attention of each kind of layers of `AttentionSites.attention`."""
    return tuple(map(like_of, kinds_of(attention)))


def map_sites(function: Callable[[Any, AttentionSites], Result], sites: AttentionSites) -> Result:
    """Map ``function(attention, site)`` over layers; attention is None in a layer without heads."""
    arrays_by_layer = sites._replace(attention=None)
    if isinstance(sites.attention, LayersByKind):
        call = sites.attention.call
        entries = sites.attention.entries

        def visit_entry(inputs: tuple[Any, AttentionSites]) -> Result:
            """Call the function with a layer of one of several kinds."""
            entry, site = inputs
            return call(lambda attention: function(attention, site), entry)

        return jax.lax.map(visit_entry, (entries, arrays_by_layer))
    arrays, static = eqx.partition(sites.attention, eqx.is_array)

    def visit_layer(inputs: tuple[Any, AttentionSites]) -> Result:
        """Call the function with a layer of the one kind."""
        layer_arrays, site = inputs
        return function(in_memory(eqx.combine(layer_arrays, static)), site)

    return jax.lax.map(visit_layer, (arrays, arrays_by_layer))


def require_attention(flow: Any) -> None:
    """Raise ValueError unless a flow's layers have heads, each layer where it reads one state."""
    require_flow(flow)
    require(
        most_heads(flow) > 0,
        "flow.layers",
        got=" and ".join(type(kind).__name__ for kind in flow.kinds),
        expected="TransformerField or CausalAttention, or a recurrent layer of this library",
        cure="Take attention_hops, channels and cone_mass for fields of your own.",
    )
    in_turn = max(map(_reading_sublayers, flow.kinds)) if flow.step in (split, strang) else 1
    require(
        in_turn <= 1,
        "flow.layers",
        got=f"a layer that applies {in_turn} sublayers with heads one after the other",
        expected="one such sublayer in each layer of this step",
        cure=(
            "Give each a layer of its own; heads that read the same state may stand in one "
            "SumOfFields that is a sublayer."
        ),
    )


def _reading_sublayers(field: Any) -> int:
    """Count the sublayers of a layer that have heads, each of which may be a sum of several."""
    return sum(heads_of(sublayer) > 0 for sublayer in getattr(field, "sublayers", ()))


def require_softmax(attention: Any, reason: str) -> None:
    """Raise ValueError unless the attention of every layer is `CausalAttention`."""
    kinds = attention_kinds(attention)
    others = [type(kind).__name__ for kind in kinds if not isinstance(kind, CausalAttention)]
    require(
        not others,
        "attention",
        got=" and ".join(others),
        expected="CausalAttention in every layer",
        cure=reason,
    )


def attention_of(field: Any) -> Any:
    """Return the sublayer of a field that has heads, the sum of several such, or None."""
    if isinstance(field, TransformerField):
        return attention_of(field.attention)
    if isinstance(field, SumOfFields):
        readers = [part for part in map(attention_of, field.sublayers) if part is not None]
        if len(readers) > 1:
            return SumOfFields(tuple(readers))
        return readers[0] if readers else None
    return field if isinstance(field, FIELDS_WITH_HEADS) else None


def reads_by_softmax(flow: ResidualFlow) -> bool:
    """Tell whether `CausalAttention` is what reads the context in every layer."""
    return all(isinstance(attention_of(kind), CausalAttention) for kind in flow.kinds)


def most_heads(flow: ResidualFlow) -> int:
    """Return the largest number of heads of a layer; 0 if no layer has heads."""
    return max(heads_of(attention_of(kind)) for kind in flow.kinds)


def require_sites(sites: Any, grid: Grid, axes: str = "depth length width") -> None:
    """Raise ValueError unless these are sites of attention on this grid."""
    require_kind(sites, AttentionSites, "sites", "Take them from attention_sites.")
    require_on_grid(sites.states, grid, "sites", axes)
