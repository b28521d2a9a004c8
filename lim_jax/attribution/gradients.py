"""The usual attributions of one example: Euclidean, signed, a number for each token."""

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
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.multihead import CausalAttention, by_head
from lim_jax.network.slots import State
from lim_jax.network.steps import euler, split

Tokens = Float[Array, " length"]


def gradient_times_input(loss: Loss, params: PyTree, x: State, y: Any) -> Tokens:
    r"""Return :math:`x_i\cdot\partial_{x_i}\ell` by token (Shrikumar, Greenside, Kundaje 2017)."""
    return jnp.sum(x * jax.grad(loss, argnums=1)(params, x, y), axis=1)


def integrated_gradients(
    loss: Loss, params: PyTree, x: State, y: Any, baseline: State, *, steps: int = 32
) -> Tokens:
    r"""Compute :math:`(x - b)_i\cdot\int_0^1 \partial_{x_i}\ell(b + s(x - b))\,ds` by midpoints.

    A number for each token: Sundararajan, Taly and Yan, "Axiomatic attribution for deep networks"
    (2017).
    """
    step = x - baseline
    nodes = (jnp.arange(steps, dtype=x.dtype) + 0.5) / steps

    def at(node: Float[Array, ""]) -> Tokens:
        """Compute each token's part of the integrand at one node of the path."""
        return jnp.sum(step * jax.grad(loss, argnums=1)(params, baseline + node * step, y), axis=1)

    return jax.lax.map(at, nodes).mean(axis=0)


def attention_rollout(flow: ResidualFlow, x: State, grid: Grid) -> Float[Array, "length length"]:
    r"""Compute the rollout :math:`\prod_k \tfrac12\bigl(\tfrac1H\sum_h A_k^h + I\bigr)`.

    Abnar and Zuidema, "Quantifying attention flow in transformers" (2020). Rows sum to one, or with
    sinks to less.
    """
    # Only there a layer attends once, from the state that enters it.
    kinds = " and ".join(type(attention_of(kind)).__name__ for kind in flow.kinds)
    require(
        reads_by_softmax(flow),
        "flow.layers",
        got=kinds,
        expected="attention in every layer",
        cure="Take another method: a recurrent layer has no attention matrix to roll out.",
    )
    assert flow.step in (euler, split)

    def roll_out(carry, layer):
        """Multiply one layer's mean attention, halved with the identity, into the rollout."""
        x, rollout = carry
        field, _ = layer
        rollout = (_mean_attention(attention_of(field), x, grid) @ rollout + rollout) / 2
        return (flow.transition(layer, x, grid), rollout), None

    (_, rollout), _ = flow.scan(roll_out, (x, jnp.eye(grid.size, dtype=x.dtype)))
    return rollout


def _mean_attention(
    attention: CausalAttention, x: State, grid: Grid
) -> Float[Array, "length length"]:
    """Return a layer's attention weights, averaged over its heads."""
    rope = attention.rope(grid)
    prefixes = attention.prefixes(grid)
    query = attention.queries(x, rope)
    key, _ = attention.sources(x, rope)
    of_head = partial(attention_weights, grid=prefixes)
    return attention.map_heads(of_head, query, by_head(key, query.shape[0])).mean(axis=0)
