"""The attention of every layer with the state and the covector at which it is linearised."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import require, require_kind
from lim_jax.adjoint.stages import pull_back_stages
from lim_jax.grid.measure import Grid, require_on_grid
from lim_jax.network.field import TransformerField
from lim_jax.network.flow import ResidualFlow, require_flow
from lim_jax.network.multihead import CausalAttention
from lim_jax.weights import FetchedLayers, FetchedParts


class AttentionSites(NamedTuple):
    """Every layer's attention, with a leading layer axis, and where it is linearised."""

    attention: CausalAttention | FetchedParts  # take a layer by `weights.in_memory`
    increments: Float[Array, " depth"]  # epsilon zeta(t_k)
    step: Float[Array, " depth"]  # epsilon, for each layer
    states: Float[Array, "depth length width"]
    covectors: Float[Array, "depth length width"]  # P_{k+1}, in the split scheme \tilde P_k


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
        Its layers are `TransformerField` or `CausalAttention`; its step is `euler` or `split`.
    states, covectors
        :math:`X_0, \dots, X_M` and :math:`P_0, \dots, P_M`, as `adjoint_trajectory` gives them.
    grid
        Their positions.

    Raises
    ------
    ValueError
        Where the layers have no attention, or the step is another one.
    """
    require_attention(flow)
    for values, name in ((states, "states"), (covectors, "covectors")):
        require_on_grid(values, grid, name, "times length width", times=flow.depth + 1)

    def visit(_, layer, state, covector):
        stages = pull_back_stages(flow, layer, state, covector, grid)
        (site,) = (stage for stage in stages if attention_of(stage.field) is not None)
        return _, (layer[1], site.state, site.covector)

    _, (increments, *where) = flow.scan(visit, states[0], states[:-1], covectors[1:])
    step = jnp.full_like(increments, flow.horizon / flow.depth)
    fetched = isinstance(flow.layers, FetchedLayers)
    attention = flow.layers.parts(attention_of) if fetched else attention_of(flow.layers)
    return AttentionSites(attention, increments, step, *where)


def require_attention(flow: Any) -> None:
    """Raise ValueError unless a flow is a recursion over layers with attention."""
    require_flow(flow)
    holds = attention_of(flow.pattern) is not None
    got, expected = type(flow.pattern).__name__, "TransformerField or CausalAttention"
    cure = "Kernels in closed form are those of CausalAttention."
    require(holds, "flow.layers", got=got, expected=expected, cure=cure)


def attention_of(field: Any) -> Any:
    """The attention of a field that is attention or has it among its sublayers, else None."""
    if isinstance(field, TransformerField):
        return field.attention
    return field if isinstance(field, CausalAttention) else None


def require_sites(sites: Any, grid: Grid, axes: str = "depth length width") -> None:
    """Raise ValueError unless these are sites of attention on this grid."""
    require_kind(sites, AttentionSites, "sites", "Take them from attention_sites.")
    require_on_grid(sites.states, grid, "sites", axes)
