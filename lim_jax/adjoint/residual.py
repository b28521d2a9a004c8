r"""The residual path: how far the terminal covector survives the layers.

.. math:: P_0 = (I + B_0)(I + B_1)\cdots(I + B_{M-1})P_M, \qquad
          B_k = (D_{X_k}X_{k+1} - I)^*

(`eq:residual-adjoint-product`), with :math:`B_k = \varepsilon\zeta D\mathscr F^*` for the
one-field recursion. Norms are those of operators on :math:`L^2` of the grid.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from lim_jax._checks import require
from lim_jax._random import gaussian
from lim_jax.adjoint.sweep import terminal_adjoint
from lim_jax.grid import Grid, Regions, inner
from lim_jax.network.field import State
from lim_jax.network.flow import ResidualFlow

Scalar = Float[Array, ""]


@eqx.filter_jit
def interaction_orders(
    flow: ResidualFlow,
    terminal_loss: Callable[[State], Scalar],
    x: State,
    grid: Grid,
    highest: int,
) -> Float[Array, "orders length width"]:
    r"""Expand the input adjoint by the number of layers that interact.

    `eq:identity-plus-interaction-expansion`: row r is the sum of
    :math:`B_{k_1}\cdots B_{k_r}P_M` over all :math:`k_1 < \dots < k_r`. Row 0 is the residual
    channel, and the rows up to the number of layers sum to :math:`P_0`. One reverse sweep carries
    all orders.

    Parameters
    ----------
    flow
        The depth flow, of any step.
    terminal_loss
        From the terminal state to a scalar.
    x
        The input of one example.
    grid
        Its positions.
    highest
        The highest order, at most the number of layers.

    Raises
    ------
    ValueError
        Where `highest` is not between 0 and the number of layers.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> flow = ResidualFlow(jnp.ones(2), step=lambda rate, x, grid, step: x + step * rate * x)
    >>> orders = interaction_orders(flow, lambda x: x.sum(), jnp.ones((1, 1)), token_grid(1), 2)
    >>> orders.ravel().tolist()  # (1 + 1/2)^2
    [1.0, 1.0, 0.25]
    """
    require(
        0 <= highest <= flow.depth,
        "highest",
        got=f"{highest}",
        expected=f"an order from 0 to {flow.depth}, the number of layers",
        cure="There are no more layers to interact; the expansion ends there.",
    )
    states = flow.trajectory(x, grid).states
    terminal = terminal_adjoint(terminal_loss, states[-1], grid)
    orders = jnp.zeros((highest + 1, *x.shape), x.dtype).at[0].set(terminal)

    def backward(orders, layer, state):
        added = jax.vmap(_interaction(flow, layer, state, grid).pull)(orders[:-1])
        return orders.at[1:].add(added), None

    orders, _ = flow.scan(backward, orders, states[:-1], reverse=True)
    return orders


class InteractionNorms(NamedTuple):
    r"""The operator norms :math:`\|B_k\|` of the layers, by power iteration.

    Attributes
    ----------
    value
        Approached from below.
    residual
        How far the iteration is from an eigenvector: some singular value of :math:`B_k` lies
        within this of `value`. Small values say that the iteration has settled.
    """

    value: Float[Array, " depth"]
    residual: Float[Array, " depth"]


@eqx.filter_jit
def interaction_norms(
    flow: ResidualFlow, x: State, grid: Grid, *, key: Key[Array, ""], iterations: int = 60
) -> InteractionNorms:
    r"""Measure :math:`\|B_k\|` of every layer along the flow from x.

    For the one-field recursion the largest over :math:`\varepsilon` is :math:`\Lambda`
    (`eq:adjoint-operator-bound`).

    Parameters
    ----------
    flow
        The depth flow, of any step.
    x
        The input of one example.
    grid
        Its positions.
    key
        For the random start.
    iterations
        Of the power method on :math:`B_kB_k^*`.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> flow = ResidualFlow(jnp.ones(2), step=lambda rate, x, grid, step: x - step * rate * x)
    >>> found = interaction_norms(flow, jnp.ones((1, 1)), token_grid(1), key=jax.random.key(0))
    >>> found.value.tolist()
    [0.5, 0.5]
    """
    states = flow.trajectory(x, grid).states
    start = gaussian(key, x.shape, x.dtype)

    def norm(vector: State) -> Scalar:
        return jnp.sqrt(inner(vector, vector, grid))

    def unit(vector: State) -> State:
        size = norm(vector)
        return vector / jnp.where(size > 0, size, 1)

    def measure(carry, layer, state):
        interaction = _interaction(flow, layer, state, grid)

        def iterate(vector, _):
            return unit(interaction.pull(interaction.push(vector))), None

        vector, _ = jax.lax.scan(iterate, unit(start), length=iterations)
        pushed = interaction.push(vector)
        value = norm(pushed)
        gap = norm(interaction.pull(pushed) - value**2 * vector)
        return carry, (value, gap / jnp.where(value > 0, value, 1))

    _, (value, residual) = flow.scan(measure, x, states[:-1])
    return InteractionNorms(value, residual)


class Amplification(NamedTuple):
    r"""Bounds c on :math:`\|P_0 - P_T\| \le c\,\|P_T\|`.

    Attributes
    ----------
    exponential
        The paper's :math:`e^{T\Lambda} - 1` (`eq:residual-stability-bound`).
    product
        The sharper :math:`\prod_k (1 + \|B_k\|) - 1`.
    """

    exponential: Scalar
    product: Scalar


def amplification(norms: InteractionNorms) -> Amplification:
    r"""Bound what the layers do to the terminal covector.

    Norms are taken with their residuals added. :math:`T\Lambda = M\max_k\|B_k\|`, so the product
    is never the larger of the two.

    Examples
    --------
    >>> found = amplification(InteractionNorms(jnp.array([0.5, 1.0]), jnp.zeros(2)))
    >>> round(float(found.product), 3), round(float(found.exponential), 3)
    (2.0, 6.389)
    """
    sizes = norms.value + norms.residual
    return Amplification(jnp.expm1(sizes.shape[0] * sizes.max()), jnp.expm1(jnp.log1p(sizes).sum()))


class QueryMasses(NamedTuple):
    r"""Where a loss asks: the query weights :math:`\alpha` by region (left, middle, right).

    Attributes
    ----------
    masses
        :math:`\omega_B = \sum_{i \in B}\alpha_i` (`eq:query-mass-discrete`).
    squares
        :math:`|B|^{-1}\int_B \chi^2` of the density :math:`\chi_i = \alpha_i/\Delta p_i`
        (`eq:continuum-query-right-bias`); on point regions of tokens :math:`L^2` times the average
        of :math:`\alpha_i^2` (`eq:right-biased-squared-query-mass`). Masses compare regions of
        different length, so it is these that decide.
    """

    masses: Float[Array, "3"]
    squares: Float[Array, "3"]


def query_masses(query_weights: Float[Array, " length"], regions: Regions) -> QueryMasses:
    """Sum query weights, and average the squares of their density, over E_L, E_M and E_R.

    Examples
    --------
    >>> from lim_jax.grid import boundary_regions, token_grid
    >>> regions = boundary_regions(token_grid(4), "1/3", "points")
    >>> found = query_masses(jnp.array([0.0, 0.0, 0.5, 0.5]), regions)
    >>> found.masses.tolist(), found.squares.tolist()
    ([0.0, 0.0, 1.0], [0.0, 0.0, 4.0])
    """
    density = query_weights / regions.grid.weights
    weights = regions.weights
    return QueryMasses(weights @ density, (weights @ density**2) / weights.sum(axis=1))


def readout_support(query_weights: Float[Array, " length"], radius: int) -> Float[Array, " length"]:
    r"""Where the terminal covector of a local readout may be other than zero: 1 there, else 0.

    The tokens within `radius` of a query (`eq:local-readout-support`); a readout of one token has
    radius 0.

    Examples
    --------
    >>> readout_support(jnp.array([0.0, 0.0, 0.0, 1.0]), 1).tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    near = jnp.ones(2 * radius + 1, query_weights.dtype)
    asked = (query_weights > 0).astype(query_weights.dtype)
    reached = jnp.convolve(asked, near)[radius : radius + asked.shape[0]]
    return (reached > 0.5).astype(query_weights.dtype)


class _Interaction(NamedTuple):
    """A layer's derivative minus the identity, and its adjoint in the grid's pairing."""

    push: Callable[[State], State]
    pull: Callable[[State], State]


def _interaction(
    flow: ResidualFlow, layer: tuple[Any, Scalar], state: State, grid: Grid
) -> _Interaction:
    weights = grid.weights[:, None]
    _, push = jax.linearize(lambda x: flow.transition(layer, x, grid) - x, state)
    transpose = jax.linear_transpose(push, state)
    return _Interaction(push, lambda covector: transpose(weights * covector)[0] / weights)
