r"""What every token of one context does: its energy, by channel, by hops and by depth.

Where `explanation` averages over contexts, an account keeps the tokens of one, to be laid beside
its text.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._checks import (
    counted,
    require_callable,
    require_floats,
    require_kind,
)
from lim_jax.adjoint.hops import attention_hops
from lim_jax.adjoint.ledger import Channels, channels, cone_by_head
from lim_jax.adjoint.sites import AttentionSites, attention_sites
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Grid
from lim_jax.models.causal import CausalLM
from lim_jax.models.ids import require_window
from lim_jax.network.flow import ResidualFlow, require_flow
from lim_jax.network.slots import State

Scalar = Float[Array, ""]
Profile = Float[Array, " length"]

HOPS = ("0 hops", "1 hop", "2 hops", "3 or more hops")


class TokenAccount(NamedTuple):
    r"""Energies of one context, by token: squared norms of covectors, which are densities.

    Energies of parts need not sum to that of the sum: parts may oppose or help each other.

    Attributes
    ----------
    loss
        Of the context.
    query_weights
        Where the loss asks, and with which weight.
    channels
        :math:`\|P_\alpha(p)\|^2` of the residual, the cone and the local channel at depth k, in
        the order of `ledger.CHANNELS`.
    hops
        :math:`\|P_k^{(r)}(p)\|^2` by attention hops, in the order of `HOPS`.
    heads
        :math:`\int \|P\|^2` of what every head of the layers from k on adds to the cone channel.
    by_depth
        :math:`\|P_j(p)\|^2` at every depth j; the last is that of :math:`P_T`.
    """

    loss: Scalar
    query_weights: Profile
    channels: Float[Array, "3 length"]
    hops: Float[Array, "hops length"]
    heads: Float[Array, "layers heads"]
    by_depth: Float[Array, "times length"]

    @property
    def depth(self) -> int:
        """The depth k of the account."""
        return self.by_depth.shape[0] - 1 - self.heads.shape[0]

    @property
    def energy(self) -> Float[Array | np.ndarray, " length"]:
        r""":math:`\|P_k(p)\|^2` at the depth k of the account."""
        return self.by_depth[self.depth]


def account_of_context(
    model: CausalLM,
    window: Int[Array | np.ndarray, " tokens"],
    query_weights: Float[Array | np.ndarray, " length"],
    depth: int = 0,
    terminal_loss: Callable[[CausalLM, State, Any], Scalar] = CausalLM.terminal_loss,
) -> TokenAccount:
    """Account for the influence of every token of one context.

    Compiled once for each length, precision, depth and loss.

    Parameters
    ----------
    model
        Any: from `models.load`, or `models.byte_model`.
    window
        A context of L ids with the id after it, as in `CausalLM.example`.
    query_weights
        Where the loss asks: `loss.teacher_forcing`, `loss.last_token`, or others.
    depth
        Of the state whose tokens are judged: 0 is the input, k that after k layers.
    terminal_loss
        `CausalLM.terminal_loss` or `CausalLM.terminal_margin_loss`.

    Raises
    ------
    ValueError
        Where the window holds no context and an id after it, the weights are not one for each
        place of it, or `depth` is no whole number from 0 to the last layer's.
    EquinoxRuntimeError
        Where an id is outside the vocabulary, or the weights do not sum to one.

    Examples
    --------
    >>> from lim_jax.loss import teacher_forcing
    >>> from lim_jax.models.language import byte_model
    >>> model = byte_model(5, width=4, heads=2, depth=3, key=jax.random.key(0))
    >>> window = jnp.array(list(b"hello!"))
    >>> found = account_of_context(model, window, teacher_forcing(5), depth=1)
    >>> found.energy.shape, found.hops.shape, found.heads.shape, found.depth
    ((5,), (4, 5), (2, 2), 1)
    """
    require_kind(model, CausalLM, "model", "Take models.load(folder), or models.byte_model.")
    require_window(window, "window")
    length = window.shape[0] - 1
    require_floats(query_weights, "query_weights", "length", length=length)
    depth = counted_depth(depth, model.flow)
    require_callable(terminal_loss, "terminal_loss", "terminal_loss(model, state, y)")
    return _account(model, jnp.asarray(window), jnp.asarray(query_weights), depth, terminal_loss)


def counted_depth(depth: Any, flow: ResidualFlow) -> int:
    """Return a depth before one of a flow's layers; refuse any other."""
    last = flow.depth - 1
    expected = f"a whole number from 0 to {last}, the last layer's depth"
    return counted(depth, "depth", least=0, most=last, expected=expected)


class ContextParts(NamedTuple):
    r"""What one context's adjoint is made of at depth k.

    Attributes
    ----------
    ledger
        Its channels, from the input to :math:`P_T`.
    sites
        Attention in the layers from k on.
    hop_energies
        :math:`\|P_k^{(r)}(p)\|^2` by attention hops, in the order of `HOPS`.
    head_energies
        :math:`\int \|P\|^2` of what every head of these layers adds to the cone channel.
    """

    ledger: Channels
    sites: AttentionSites
    hop_energies: Float[Array, "hops length"]
    head_energies: Float[Array, "layers heads"]


def parts_of_context(
    flow: ResidualFlow,
    terminal_loss: Callable[[State, Any], Scalar],
    example: tuple[State, Any],
    grid: Grid,
    depth: int,
) -> ContextParts:
    """Take one context's adjoint apart, for the account of its tokens or for a mean over contexts.

    Parameters
    ----------
    flow, terminal_loss, example, grid
        As in `ledger.channels`.
    depth
        k, from 0 to the last layer's.
    """
    require_flow(flow)
    depth = counted_depth(depth, flow)
    ledger = channels(flow, terminal_loss, example, grid)
    hops = attention_hops(flow, terminal_loss, example, grid, len(HOPS) - 1)
    sites = attention_sites(flow, ledger.states, ledger.covectors, grid)
    sites = jax.tree.map(lambda leaf: leaf[depth:], sites)
    return ContextParts(ledger, sites, _squares(hops[depth]), _head_energies(sites, grid))


@eqx.filter_jit
def _account(
    model: CausalLM,
    window: Int[Array, " tokens"],
    query_weights: Profile,
    depth: int,
    terminal_loss: Callable[[CausalLM, State, Any], Scalar],
) -> TokenAccount:
    example = model.example(window, query_weights)
    grid = token_grid(window.shape[0] - 1, model.embedding.dtype)
    parts = parts_of_context(model.flow, partial(terminal_loss, model), example, grid, depth)
    return TokenAccount(
        parts.ledger.loss,
        example[1].weights,
        _squares(parts.ledger.at_depth(depth)),
        parts.hop_energies,
        parts.head_energies,
        _squares(parts.ledger.covectors),
    )


def _squares(vectors: Float[Array, "*parts width"]) -> Float[Array, "*parts"]:
    return jnp.sum(vectors**2, axis=-1)


def _head_energies(sites: AttentionSites, grid: Grid) -> Float[Array, "layers heads"]:
    """Layer by layer, so that the covectors of one layer's heads are held at a time."""
    arrays, static = eqx.partition(sites, eqx.is_array)

    def at_site(arrays: AttentionSites) -> Float[Array, " heads"]:
        one = eqx.combine(jax.tree.map(lambda leaf: leaf[None], arrays), static)
        return _squares(cone_by_head(one, grid)[0]) @ grid.weights

    return jax.lax.map(at_site, arrays)
