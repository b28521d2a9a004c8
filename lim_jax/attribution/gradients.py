r"""The usual attributions of one example: by how much its tokens or records are said to matter.

To be compared with influence. Each is of a pure loss ``loss(params, x, y)`` of states, at one
example; rollout is of the network alone. Euclidean and signed: an attribution is a number for each
token, a part of the loss, and no density.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import require
from lim_jax.adjoint.sites import attention_of, reads_by_softmax
from lim_jax.density.adjoints import Loss
from lim_jax.grid.measure import Grid
from lim_jax.network.attention import attention_weights
from lim_jax.network.flow import ResidualFlow, euler, split
from lim_jax.network.multihead import CausalAttention, by_head
from lim_jax.network.slots import State

Tokens = Float[Array, " length"]


def gradient_times_input(loss: Loss, params: PyTree, x: State, y: Any) -> Tokens:
    r"""By token, :math:`x_i\cdot\partial_{x_i}\ell`.

    The first-order estimate of what the loss loses with the token, by Shrikumar, Greenside and
    Kundaje, "Learning important features through propagating activation differences" (2017).
    """
    return jnp.sum(x * jax.grad(loss, argnums=1)(params, x, y), axis=1)


def integrated_gradients(
    loss: Loss, params: PyTree, x: State, y: Any, baseline: State, *, steps: int = 32
) -> Tokens:
    r"""By token, :math:`(x - b)_i\cdot\int_0^1 \partial_{x_i}\ell(b + s(x - b))\,ds`.

    By Sundararajan, Taly and Yan, "Axiomatic attribution for deep networks" (2017), by the midpoint
    rule, one gradient for each step. *Complete*: the integrals sum to :math:`\ell(x) - \ell(b)`,
    and the rule's do so to :math:`O(n^{-2})` for n steps where the loss is smooth.
    """
    step = x - baseline
    nodes = (jnp.arange(steps, dtype=x.dtype) + 0.5) / steps

    def at(node: Float[Array, ""]) -> Tokens:
        return jnp.sum(step * jax.grad(loss, argnums=1)(params, baseline + node * step, y), axis=1)

    return jax.lax.map(at, nodes).mean(axis=0)


def attention_rollout(flow: ResidualFlow, x: State, grid: Grid) -> Float[Array, "length length"]:
    r"""How much of each token attention hands on to each other through all layers.

    .. math:: \bar A_M\cdots\bar A_1,\qquad
              \bar A_k = \tfrac12\Bigl(\tfrac1H\sum_h A_k^h + I\Bigr)

    By Abnar and Zuidema, "Quantifying attention flow in transformers" (2020). Rows sum to one; the
    last is what is said of a loss that asks at the end. It knows neither the loss nor values,
    networks and norms.
    """
    # Only there a layer attends once, from the state that enters it.
    kinds = " and ".join(type(attention_of(kind)).__name__ for kind in flow.kinds)
    expected = "attention in every layer"
    cure = "A recurrent layer has no attention matrix to roll out: take another method."
    require(reads_by_softmax(flow), "flow.layers", got=kinds, expected=expected, cure=cure)
    assert flow.step in (euler, split)

    def handed_on(carry, layer):
        x, rollout = carry
        field, _ = layer
        rollout = (_mean_attention(attention_of(field), x, grid) @ rollout + rollout) / 2
        return (flow.transition(layer, x, grid), rollout), None

    (_, rollout), _ = flow.scan(handed_on, (x, jnp.eye(grid.size, dtype=x.dtype)))
    return rollout


def _mean_attention(
    attention: CausalAttention, x: State, grid: Grid
) -> Float[Array, "length length"]:
    """The heads' mean attention matrix."""
    rope, prefixes = attention.rope(grid), attention.prefixes(grid)
    query, (key, _) = attention.queries(x, rope), attention.sources(x, rope)
    of_head = partial(attention_weights, grid=prefixes)
    return attention.of_heads(of_head, query, by_head(key, query.shape[0])).mean(axis=0)
