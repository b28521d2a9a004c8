r"""The derivative of a loss in the measure of attention: what each position gave it, signed.

Let :math:`u_j` be added to the scores of key j in every layer and head (`Grid.weighted`), an
additive attention mask, which multiplies the measure of its prefix: :math:`W_{ij}\,e^{u_j}`. The
*mask gradient* is

.. math:: g_j = \frac{\partial J}{\partial u_j}
          = \sum_{k, h, i} A_{ij}\,\langle dO_i,\, v_j - o_i\rangle

over layers k, heads h and rows i, with :math:`o_i` what a head reads and :math:`dO_i` the covector
of that: one backward pass has it for all positions. As :math:`g_j/\Delta p_j` it is a density, the
first variation of the loss in the logarithm of the measure. Positions compete for attention, so
that of each head it has integral zero over the context, unless there are sinks or parts.

Related: integrated gradients of attention weights, without the part of the normalisation (Hao et
al., 2021), attention knockout, which takes u of single edges to minus infinity (Geva et al., 2023).
"""

import math
from dataclasses import replace
from numbers import Real
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lim_jax._checks import ARRAYS, as_int, described, require
from lim_jax._jit import filter_jit
from lim_jax._precision import accumulator, promote
from lim_jax.adjoint.sites import attention_of, most_heads, require_attention
from lim_jax.adjoint.sweep import Example, TerminalLoss, require_loss, run_forward
from lim_jax.adjoint.tangent import causal_by_construction
from lim_jax.grid.integrals import integral
from lim_jax.grid.measure import Grid, Scalar, require_grid
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.slots import State

ByHead = Float[Array, "depth heads length"]


class MaskGradient(NamedTuple):
    r"""A loss at the grid's log weights, and its derivatives, which are densities.

    Attributes
    ----------
    loss
        The loss at the grid's log weights, a scalar.
    by_head
        :math:`g_j/\Delta p_j`, of shape ``(depth, heads, length)``, in float32 at least.
    covector
        :math:`P_0`, of the same backward pass, of shape ``(length, width)``.
    """

    loss: Scalar
    by_head: ByHead
    covector: State

    @property
    def total(self) -> Float[Array, " length"]:
        """The sum of `by_head` over layers and heads."""
        return self.by_head.sum(axis=(0, 1))


class MaskPath(NamedTuple):
    """A loss at the two ends of a path, and the integral of the mask gradient along it.

    Attributes
    ----------
    loss
        The loss of the whole context, a scalar.
    loss_without
        The loss with the chosen positions at the least weight.
    by_head
        What each chosen position gave: a density of shape ``(depth, heads, length)``, zero at the
        others, in float32 at least.
    remainder
        ``loss - loss_without`` less the integral of ``total``: the quadrature's error in the sum of
        all positions. If it is not small beside what is read from ``total``, take more nodes; of
        states in half precision it is mostly the rounding of both losses.
    """

    loss: Scalar
    loss_without: Scalar
    by_head: ByHead
    remainder: Scalar

    @property
    def total(self) -> Float[Array, " length"]:
        """The sum of `by_head` over layers and heads."""
        return self.by_head.sum(axis=(0, 1))


@filter_jit
def mask_gradient(
    flow: ResidualFlow, terminal_loss: TerminalLoss, example: Example, grid: Grid
) -> MaskGradient:
    """Differentiate a loss in the log weights of all positions, by layer and head.

    In one backward pass, layer by layer, which gives the input adjoint too. Where a softmax is
    saturated its derivative says little: taken where the parts that are compared weigh 0.2 to 0.5,
    ``grid.weighted(jnp.where(chosen, jnp.log(0.2), 0.0))``, it agrees better with what removing
    them does.

    Parameters
    ----------
    flow
        The depth flow, of any step. Layers that have heads have attention, or a recurrent layer, of
        this library.
    terminal_loss
        A function ``terminal_loss(state, y)`` that returns a scalar, for example a cross-entropy of
        a readout.
    example
        A pair ``(x, y)``: the input :math:`X_0`, of shape ``(length, width)``, and its labels, any
        pytree, or None where the loss looks at none.
    grid
        The positions of x, in the precision of x. The derivative is taken at its log weights
        (`Grid.weighted`), which are zero without them.

    Returns
    -------
    MaskGradient
        The loss, its derivatives by layer and head, and :math:`P_0`. Derivatives are densities: the
        Euclidean ones :math:`g_j` are ``grid.weights`` times them, and a part's is the sum of these
        over its positions. There are zeros in place of the heads that a layer lacks beside the one
        with most.

    Raises
    ------
    ValueError
        If no layer has heads, or some have attention of your own, which may not read log weights;
        if a layer of `split` or `strang` has several sublayers with heads; if `flow` is no
        `ResidualFlow`, the loss no function, the example no pair, or x does not fit the grid.

    Examples
    --------
    Two tokens attend evenly, and the second reads the mean of 1 and 3; a loss asks for it.

    >>> layer = jax.tree.map(lambda leaf: leaf[None], lim.limits.averaging_attention())
    >>> flow, x, grid = ResidualFlow(layer), jnp.array([[1.0], [3.0]]), lim.token_grid(2)
    >>> gradient = mask_gradient(flow, lambda state, y: state[y, 0], (x, 1), grid)
    >>> (grid.weights * gradient.total).tolist()  # A (v - o) = (1 - 2)/2 and (3 - 2)/2
    [-0.5, 0.5]
    """
    _require_log_weights_read(flow)
    heads = most_heads(flow)
    (_, states), loss, terminal = run_forward(flow, terminal_loss, example, grid)
    log_weights = jnp.broadcast_to(_log_weights(grid), (heads, grid.size))

    def backward(gradient, layer, state):
        """Pull the gradient back through one layer, to the state and to the log weights."""

        def transition(state, log_weights):
            """Apply the layer with these log weights."""
            return flow.transition(layer, state, replace(grid, log_weights=log_weights))

        return jax.vjp(transition, state, log_weights)[1](gradient)

    gradient, by_head = flow.scan(backward, terminal, states[:-1], reverse=True)
    by_head = promote(by_head) / grid.in_single_precision.weights[None, None, :]
    return MaskGradient(loss, by_head, gradient / grid.weights[:, None])


@filter_jit
def mask_path(
    flow: ResidualFlow,
    terminal_loss: TerminalLoss,
    example: Example,
    grid: Grid,
    chosen: Bool[Array, " length"],
    *,
    nodes: int = 4,
    least: float = 1e-3,
) -> MaskPath:
    r"""Integrate the mask gradient of chosen positions as all of them come in together.

    .. math:: c_j = \int_{\log w_0}^0 g_j(u = s\,\mathbf 1_{\rm chosen})\,ds, \qquad
              \sum_j c_j = J(\text{whole}) - J(\text{chosen at } w_0)

    by Gauss--Legendre quadrature: `nodes` mask gradients one after another, and two forward passes
    for the loss at both ends, which tell the quadrature's error in the sum of all positions.

    Parameters
    ----------
    flow
        The depth flow, of any step. Layers that have heads have attention, or a recurrent layer, of
        this library.
    terminal_loss
        A function ``terminal_loss(state, y)`` that returns a scalar, for example a cross-entropy of
        a readout.
    example
        A pair ``(x, y)``: the input :math:`X_0`, of shape ``(length, width)``, and its labels, any
        pytree, or None where the loss looks at none.
    grid
        The positions of x, in the precision of x. Its log weights are added to those of the path.
        With its parts, by ``grid.weighted(jnp.zeros(grid.size), parts)``, each part goes on reading
        itself.
    chosen
        Booleans of shape ``(length,)``: the positions that come in, while the others weigh the same
        all along. Leave the first position out: many heads rest on it, and without it the integrand
        swings.
    nodes
        The number of quadrature nodes, a positive whole number.
    least
        :math:`w_0`, the weight at which the chosen positions begin, between 0 and 1.

    Returns
    -------
    MaskPath
        The loss at both ends, and the integral by layer and head, a density: ``grid.weights`` times
        it is :math:`c_j`.

    Raises
    ------
    ValueError
        If `chosen`, `nodes` or `least` is none of these; if no layer has heads, or some have
        attention of your own, which may not read log weights; if a layer of `split` or `strang` has
        several sublayers with heads; if `flow` is no `ResidualFlow`, the loss no function, the
        example no pair, or x does not fit the grid.

    Examples
    --------
    >>> layer = jax.tree.map(lambda leaf: leaf[None], lim.limits.averaging_attention())
    >>> flow, x, grid = ResidualFlow(layer), jnp.array([[1.0], [3.0]]), lim.token_grid(2)
    >>> chosen = jnp.array([True, False])
    >>> path = mask_path(flow, lambda state, y: state[y, 0], (x, 1), grid, chosen)
    >>> float(path.loss), round(float(path.loss_without), 2)  # 3 and the mean of 1 and 3, or of 3
    (5.0, 6.0)
    >>> (grid.weights * path.total).round(2).tolist(), bool(abs(path.remainder) < 0.01)
    ([-0.99, 0.0], True)
    """
    _require_log_weights_read(flow)
    heads = most_heads(flow)
    x, y = require_loss(terminal_loss, example)
    require_grid(grid)
    require(
        isinstance(chosen, ARRAYS) and chosen.dtype == bool and chosen.shape == (grid.size,),
        "chosen",
        got=described(chosen),
        expected=f"booleans, one for each of {grid.size} positions",
        cure="Pass for example parts >= 0.",
    )
    nodes = as_int(nodes, "nodes")
    require(
        isinstance(least, Real) and 0 < least < 1,
        "least",
        got=repr(least),
        expected="a number between 0 and 1",
        cure="Take 1e-3: what weighs nothing at all is infinitely far away.",
    )
    log_weights = _log_weights(grid)

    def at(log_weight):
        """Return the grid with a log weight added to the chosen positions."""
        return replace(grid, log_weights=log_weights + jnp.where(chosen, log_weight, 0))

    def add(by_head, node):
        """Add one quadrature node's share of the gradient."""
        log_weight, share = node
        place = at(log_weight.astype(log_weights.dtype))
        gradient = mask_gradient(flow, terminal_loss, (x, y), place)
        return by_head + share * jnp.where(chosen[None, None, :], gradient.by_head, 0), None

    def loss(log_weight):
        """Compute the loss with a log weight added to the chosen positions."""
        return terminal_loss(flow(x, at(log_weight)), y)

    precision = accumulator(log_weights.dtype)
    path = jnp.asarray(path_rule(nodes, least).T, precision)
    nothing = jnp.zeros((flow.depth, heads, grid.size), precision)
    by_head, _ = jax.lax.scan(add, nothing, path)
    # Of the ends: a rule that left out a node was off thirty times the error that it should tell.
    loss_with, loss_without = jax.lax.map(
        loss, jnp.asarray([0, math.log(least)], log_weights.dtype)
    )
    change = promote(loss_with) - promote(loss_without)
    remainder = change - integral(by_head.sum(axis=(0, 1)), grid)
    return MaskPath(loss_with, loss_without, by_head, remainder)


def path_rule(nodes: int, least: float) -> Float[np.ndarray, "2 nodes"]:
    """Return Gauss--Legendre nodes from the logarithm of `least` to zero, and their weights."""
    points, shares = np.polynomial.legendre.leggauss(nodes)
    first = math.log(least)
    return np.stack([first * (1 - points) / 2, -first * shares / 2])


def _log_weights(grid: Grid) -> Float[Array, " length"]:
    """Return the grid's log weights, zeros if it has none."""
    return jnp.zeros_like(grid.weights) if grid.log_weights is None else grid.log_weights


def _require_log_weights_read(flow: ResidualFlow) -> None:
    """Raise ValueError unless the attention of all layers reads the grid's log weights."""
    require_attention(flow)
    readers = [attention_of(kind) for kind in flow.kinds]
    unknown = [
        reader for reader in readers if reader is not None and not causal_by_construction(reader)
    ]
    require(
        not unknown,
        "flow.layers",
        got=" and ".join(
            f"{described(reader)} that attends by {described(getattr(reader, 'attend', None))}"
            for reader in unknown
        ),
        expected="attention of this library, which reads the grid's log weights",
        cure="Take jax.grad in the log weights, if your own attention reads them.",
    )
