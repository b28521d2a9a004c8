r"""The usual attributions of one example: by how much its tokens or records are said to matter.

To be compared with influence. Each is of a pure loss ``loss(params, x, y)`` of states, at one
example; rollout is of the network alone. Euclidean and signed: an attribution is a number for each
token or record, a part of the loss, and no density.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from lim_jax._checks import (
    counted,
    require,
    require_callable,
    require_floats,
    require_indices,
)
from lim_jax.density.adjoints import Loss
from lim_jax.grid.measure import Grid, require_on_grid
from lim_jax.network.attention import attention_weights
from lim_jax.network.field import TransformerField
from lim_jax.network.flow import ResidualFlow, euler, require_flow, split
from lim_jax.network.multihead import CausalAttention, by_head
from lim_jax.network.slots import State

Tokens = Float[Array, " length"]


def gradient_times_input(loss: Loss, params: PyTree, x: State, y: Any) -> Tokens:
    r"""By token, :math:`x_i\cdot\partial_{x_i}\ell`.

    The first-order estimate of what the loss loses with the token, by Shrikumar, Greenside and
    Kundaje, "Learning important features through propagating activation differences" (2017).

    Parameters
    ----------
    loss
        ``loss(params, x, y) -> scalar``.
    params, y
        What the loss reads beside the states.
    x
        The states.

    Raises
    ------
    ValueError
        Where the states are no floats of shape ``(length, width)``.

    Examples
    --------
    >>> loss = lambda weight, x, y: weight * x[0, 0] ** 2
    >>> gradient_times_input(loss, 1.0, jnp.array([[3.0], [5.0]]), None).tolist()
    [18.0, 0.0]
    """
    _require_case(loss, x)
    return jnp.sum(x * jax.grad(loss, argnums=1)(params, x, y), axis=1)


def integrated_gradients(
    loss: Loss, params: PyTree, x: State, y: Any, baseline: State, *, steps: int = 32
) -> Tokens:
    r"""By token, :math:`(x - b)_i\cdot\int_0^1 \partial_{x_i}\ell(b + s(x - b))\,ds`.

    By Sundararajan, Taly and Yan, "Axiomatic attribution for deep networks" (2017), by the midpoint
    rule. *Complete*: the integrals sum to :math:`\ell(x) - \ell(b)`, and what the rule gives does
    so to :math:`O(n^{-2})` for n steps where the loss is smooth.

    Parameters
    ----------
    loss, params, x, y
        As in `gradient_times_input`.
    baseline
        :math:`b`, states of nothing in particular.
    steps
        Of the rule: one gradient each, one after another.

    Raises
    ------
    ValueError
        Where the baseline is not of the states' shape, or there are no steps.

    Examples
    --------
    >>> loss = lambda weight, x, y: weight * x[0, 0] ** 2
    >>> x = jnp.array([[3.0], [5.0]])
    >>> integrated_gradients(loss, 1.0, x, None, jnp.zeros((2, 1)), steps=1).tolist()
    [9.0, 0.0]
    """
    _require_case(loss, x)
    _require_baseline(baseline, x)
    step = x - baseline
    nodes = (jnp.arange(counted(steps, "steps"), dtype=x.dtype) + 0.5) / steps

    def at(node: Float[Array, ""]) -> Tokens:
        return jnp.sum(step * jax.grad(loss, argnums=1)(params, baseline + node * step, y), axis=1)

    return jax.lax.map(at, nodes).mean(axis=0)


def occlusion(
    loss: Loss,
    params: PyTree,
    x: State,
    y: Any,
    baseline: State,
    records: Int[Array, " length"],
    count: int,
) -> Float[Array, " records"]:
    r"""By record, what the loss gains where the record's states are the baseline's.

    :math:`\ell(x \text{ with } x_i = b_i \text{ for } i \in r) - \ell(x)`: of images by Zeiler and
    Fergus, "Visualizing and understanding convolutional networks" (2014), of words by Li, Monroe
    and Jurafsky, "Understanding neural networks through representation erasure" (2016). One loss
    for each record, one after another.

    Parameters
    ----------
    loss, params, x, y, baseline
        As in `integrated_gradients`.
    records
        The number of the record that each token belongs to, -1 for none.
    count
        How many records.

    Raises
    ------
    ValueError
        Where the baseline or the records do not fit the states.

    Examples
    --------
    >>> loss = lambda weight, x, y: weight * x.sum()
    >>> x, none, records = jnp.array([[3.0], [5.0]]), jnp.zeros((2, 1)), jnp.array([1, 0])
    >>> occlusion(loss, -1.0, x, None, none, records, 2).tolist()
    [5.0, 3.0]
    """
    _require_case(loss, x)
    _require_baseline(baseline, x)
    require_indices(records, "records")
    require(
        records.shape == x.shape[:1],
        "records",
        got=f"{records.shape[0]} numbers",
        expected=f"{x.shape[0]}, one for each token",
        cure="Take the example's own.",
    )
    numbers = jnp.arange(counted(count, "count"), dtype=records.dtype)

    def without(number: Int[Array, ""]) -> Float[Array, ""]:
        return loss(params, jnp.where((records == number)[:, None], baseline, x), y)

    return jax.lax.map(without, numbers) - loss(params, x, y)


def attention_rollout(flow: ResidualFlow, x: State, grid: Grid) -> Float[Array, "length length"]:
    r"""How much of each token attention hands on to each other through all layers.

    .. math:: \bar A_M\cdots\bar A_1,\qquad
              \bar A_k = \tfrac12\Bigl(\tfrac1H\sum_h A_k^h + I\Bigr)

    By Abnar and Zuidema, "Quantifying attention flow in transformers" (2020). Rows sum to one; the
    last is what is said of a loss that asks at the end. It knows neither the loss nor values,
    networks and norms.

    Parameters
    ----------
    flow
        Of `TransformerField` or `CausalAttention`, by `euler` or `split`.
    x
        The states that enter it.
    grid
        Their positions.

    Raises
    ------
    ValueError
        Where the layers have no attention, or the step is another one.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> from equinox.nn import Identity
    >>> one = jnp.ones((1, 1, 1))
    >>> averaging = CausalAttention(Identity(), 0 * one, 0 * one, one, one)
    >>> flow = ResidualFlow(jax.tree.map(lambda leaf: leaf[None], averaging))
    >>> attention_rollout(flow, jnp.ones((2, 1)), token_grid(2)).tolist()
    [[1.0, 0.0], [0.25, 0.75]]
    """
    require_flow(flow)
    require_on_grid(x, grid, "x", "length width")
    step = getattr(flow.step, "__name__", "another step")
    attending = isinstance(flow.pattern, TransformerField | CausalAttention)
    require(
        attending and flow.step in (euler, split),
        "flow",
        got=f"layers of {type(flow.pattern).__name__} by {step}",
        expected="TransformerField or CausalAttention, by euler or split",
        cure="Only there a layer attends once, from the state that enters it.",
    )

    def handed_on(carry, layer):
        x, rollout = carry
        field, _ = layer
        attention = field.attention if isinstance(field, TransformerField) else field
        mixed = (_mean_attention(attention, x, grid) @ rollout + rollout) / 2
        return (flow.transition(layer, x, grid), mixed), None

    (_, rollout), _ = flow.scan(handed_on, (x, jnp.eye(grid.size, dtype=x.dtype)))
    return rollout


def _mean_attention(
    attention: CausalAttention, x: State, grid: Grid
) -> Float[Array, "length length"]:
    """The heads' mean attention matrix."""
    turns, prefixes = attention.turns(grid), attention.prefixes(grid)
    query, (key, _) = attention.queries(x, turns), attention.sources(x, turns)
    of_head = partial(attention_weights, grid=prefixes)
    return attention.of_heads(of_head, query, by_head(key, query.shape[0])).mean(axis=0)


def _require_case(loss: Any, x: Any) -> None:
    require_callable(loss, "loss", "loss(params, x, y) of one example")
    require_floats(x, "x", "length width")


def _require_baseline(baseline: Any, x: State) -> None:
    length, width = x.shape
    cure = "Pass states, such as zeros or the average word's."
    require_floats(baseline, "baseline", "length width", cure, length=length, width=width)
