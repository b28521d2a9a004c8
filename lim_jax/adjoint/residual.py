r"""The residual path, along which the terminal covector passes the layers.

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

from lim_jax._checks import as_int, error_if_got, require_floats, require_key, require_kind
from lim_jax._jit import filter_jit
from lim_jax._precision import accumulator, promote
from lim_jax._random import gaussian
from lim_jax.adjoint.krylov import NormBounds, checked_steps, norm_bounds
from lim_jax.adjoint.sweep import Example, TerminalLoss, run_forward
from lim_jax.grid.measure import Grid, Scalar
from lim_jax.network.continuous_flow import ContinuousFlow, require_continuous
from lim_jax.network.flow import ResidualFlow, require_flow
from lim_jax.network.slots import State
from lim_jax.network.steps import euler


@filter_jit
def interaction_orders(
    flow: ResidualFlow, terminal_loss: TerminalLoss, example: Example, grid: Grid, highest: int
) -> Float[Array, "orders length width"]:
    r"""Expand the input adjoint by the number of layers that interact.

    `eq:identity-plus-interaction-expansion` of `eq:residual-adjoint-product`: row r is the sum of
    :math:`B_{k_1}\cdots B_{k_r}P_M` over all :math:`k_1 < \dots < k_r`. Row 0 is the residual
    channel, and the rows up to the number of layers sum to :math:`P_0`. One reverse sweep carries
    all orders.

    Parameters
    ----------
    flow
        The depth flow, of any step.
    terminal_loss
        A function ``terminal_loss(state, y)`` that returns a scalar, for example a cross-entropy of
        a readout.
    example
        A pair ``(x, y)``: the input :math:`X_0`, of shape ``(length, width)``, and its labels, any
        pytree, or None where the loss looks at none.
    grid
        The positions of x, in the precision of x.
    highest
        The highest order, a whole number from 0 to the number of layers, known before tracing.

    Returns
    -------
    Array
        A density for each order, of shape ``(highest + 1, length, width)``.

    Raises
    ------
    ValueError
        If `flow` is no `ResidualFlow`, the loss no function, the example no pair, x does not fit
        the grid, or `highest` is no such number.

    Examples
    --------
    >>> flow = ResidualFlow(jnp.ones(2), step=lambda rate, x, grid, step: x + step * rate * x)
    >>> loss, example = lambda x, y: y * x.sum(), (jnp.ones((1, 1)), 1.0)
    >>> orders = interaction_orders(flow, loss, example, lim.token_grid(1), 2)
    >>> orders.ravel().tolist()  # (1 + 1/2)^2
    [1.0, 1.0, 0.25]
    """
    (_, states), _, gradient = run_forward(flow, terminal_loss, example, grid)
    highest = as_int(
        highest,
        "highest",
        least=0,
        most=flow.depth,
        expected=f"an order from 0 to {flow.depth}, the number of layers, known before tracing",
    )
    weights = grid.weights[:, None]
    dtype = gradient.dtype
    orders = jnp.zeros((highest + 1, *gradient.shape), accumulator(dtype))
    orders = orders.at[0].set(promote(gradient / weights))

    def backward(orders, layer, state):
        """Carry each order's covector through one layer, which adds to the next order."""
        _, push = jax.linearize(lambda x: flow.transition(layer, x, grid) - x, state)
        transpose = jax.linear_transpose(push, state)
        lower = orders[:-1].astype(dtype)
        added = jax.vmap(lambda covector: transpose(weights * covector)[0] / weights)(lower)
        return orders.at[1:].add(promote(added)), None

    orders, _ = flow.scan(backward, orders, states[:-1], reverse=True)
    return orders.astype(dtype)


@filter_jit
def interaction_norms(
    flow: ResidualFlow,
    x: State,
    grid: Grid,
    *,
    key: Key[Array, ""],
    steps: int = 40,
    failure: float = 1e-9,
) -> NormBounds:
    r"""Bound :math:`\|B_k\|` of every layer along the flow from x, from both sides.

    For the one-field recursion the largest over :math:`\varepsilon` is :math:`\Lambda`
    (`eq:adjoint-operator-bound`). Norms are those on :math:`L^2` of the grid.

    Parameters
    ----------
    flow
        The depth flow, of any step.
    x
        The input of one example, of shape ``(length, width)``.
    grid
        The positions of x, in the precision of x.
    key
        The random key of the vector from which every layer's search starts.
    steps
        The dimension of each layer's Krylov space, a positive whole number. With as many steps as x
        has numbers, or more, both bounds are the norm itself.
    failure
        The probability, of each layer by itself, that ``upper`` is below the norm: above 0 and
        below 1/2, known before tracing.

    Returns
    -------
    NormBounds
        ``attained``, which a vector attains, and ``upper``, each a number for every layer.

    Raises
    ------
    ValueError
        If `flow` is no `ResidualFlow`, x does not fit the grid, or `key`, `steps` or `failure` is
        none of these.
    NotImplementedError
        If the norms are differentiated twice: they are differentiable once.

    Examples
    --------
    >>> flow = ResidualFlow(jnp.ones(2), step=lambda rate, x, grid, step: x - step * rate * x)
    >>> norms = interaction_norms(flow, jnp.ones((1, 1)), lim.token_grid(1), key=jax.random.key(0))
    >>> norms.upper.tolist()
    [0.5, 0.5]
    """

    def change(layer: Any, x: State) -> State:
        """Return what a layer adds to the state."""
        return flow.transition(layer, x, grid) - x

    return _norms_by_layer(flow, change, x, grid, key, steps, failure)


@filter_jit
def splitting_remainders(
    flow: ResidualFlow,
    x: State,
    grid: Grid,
    *,
    key: Key[Array, ""],
    steps: int = 40,
    failure: float = 1e-9,
) -> NormBounds:
    r"""Bound :math:`\|E_k\|` of :math:`D_{X_k}X_{k+1} = I + \varepsilon A_k + E_k` in every layer.

    `eq:residual-jacobian-remainder`, with :math:`A_k = \zeta(t_k)\,D\mathscr F(X_k)`: how far a
    layer's derivative is from that of the one-field step. Zero for `euler`, for `split` of the
    order of :math:`\varepsilon^2`. Norms are those on :math:`L^2` of the grid.

    Parameters
    ----------
    flow
        The depth flow, of any step, whose layers are functions ``field(x, context, grid)``.
    x
        The input of one example, of shape ``(length, width)``.
    grid
        The positions of x, in the precision of x.
    key
        The random key of the vector from which every layer's search starts.
    steps
        The dimension of each layer's Krylov space, a positive whole number. With as many steps as x
        has numbers, or more, both bounds are the norm itself.
    failure
        The probability, of each layer by itself, that ``upper`` is below the norm: above 0 and
        below 1/2, known before tracing.

    Returns
    -------
    NormBounds
        ``attained``, which a vector attains, and ``upper``, each a number for every layer.

    Raises
    ------
    ValueError
        If `flow` is no `ResidualFlow`, a layer cannot be called, x does not fit the grid, or `key`,
        `steps` or `failure` is none of these.
    NotImplementedError
        If the norms are differentiated twice: they are differentiable once.

    Examples
    --------
    >>> class Growth(eqx.Module):
    ...     rates: Array
    ...
    ...     def __call__(self, x, context, grid):
    ...         return self.rates * x
    >>> exact = lambda field, x, grid, step: jnp.exp(step * field.rates) * x
    >>> flow, key = ResidualFlow(Growth(jnp.ones(2)), step=exact), jax.random.key(0)
    >>> norms = splitting_remainders(flow, jnp.ones((1, 1)), lim.token_grid(1), key=key)
    >>> bool(jnp.allclose(norms.upper, jnp.exp(0.5) - 1.5))
    True
    """

    def remainder(layer: Any, x: State) -> State:
        """Subtract Euler's step from a layer's own."""
        field, increment = layer
        return flow.transition(layer, x, grid) - euler(field, x, grid, increment)

    return _norms_by_layer(flow, remainder, x, grid, key, steps, failure)


class GeneratorNorms(NamedTuple):
    """Bounds on the norm of a continuous flow's generator at some depth times.

    Attributes
    ----------
    attained
        What a vector attains at each time, never above the norm.
    upper
        The upper bound at each time, below the norm with the probability of failure asked for.
    times
        The depth times.
    horizon
        The depth T of the flow.
    """

    attained: Float[Array, "*examples times"]
    upper: Float[Array, "*examples times"]
    times: Float[Array, "*examples times"]
    horizon: Float[Array, "*examples"]

    @property
    def amplification(self) -> Float[Array, "*examples"]:
        r""":math:`e^{T\Lambda} - 1` of the largest norm: no bound, as norms between are unknown."""
        return jnp.expm1(self.horizon * self.upper.max(axis=-1))


@filter_jit
def generator_norms(
    flow: ContinuousFlow,
    x: State,
    grid: Grid,
    times: Float[Array, " times"],
    *,
    key: Key[Array, ""],
    steps: int = 40,
    failure: float = 1e-9,
) -> GeneratorNorms:
    r"""Bound :math:`|\zeta(t)|\,\|D\mathscr F_{\theta_t}(X_t)^*\|` along a continuous flow.

    `eq:adjoint-operator-bound`: :math:`\Lambda` is its supremum over t. The largest over the
    depth times is below it by what the norm changes between them. In the example
    :math:`\Lambda = 2`, at the horizon 1. Norms are those on :math:`L^2` of the grid.

    Parameters
    ----------
    flow
        The continuous depth flow.
    x
        The input of one example, of shape ``(length, width)``.
    grid
        The positions of x, in the precision of x.
    times
        The depth times at which the norm is bounded, increasing, from 0 to the flow's horizon.
    key
        The random key of the vector from which every search starts.
    steps
        The dimension of the Krylov space at each time, a positive whole number. With as many steps
        as x has numbers, or more, both bounds are the norm itself.
    failure
        The probability, of each time by itself, that ``upper`` is below the norm: above 0 and below
        1/2, known before tracing.

    Returns
    -------
    GeneratorNorms
        Both bounds at every time; ``norms.amplification`` is :math:`e^{T\Lambda} - 1` of the
        largest upper one.

    Raises
    ------
    ValueError
        If `flow` is no `ContinuousFlow`, x does not fit the grid, or `times`, `key`, `steps` or
        `failure` is none of these.
    EquinoxRuntimeError
        If the times do not increase within the horizon, a state is not finite, or the solver fails.
    NotImplementedError
        If the norms are differentiated twice: they are differentiable once.

    Examples
    --------
    >>> flow = ContinuousFlow(lambda time: lambda x, context, grid: -(1 + time) * x)
    >>> x, times = jnp.ones((1, 1)), jnp.array([0.0, 1.0])
    >>> norms = generator_norms(flow, x, lim.token_grid(1), times, key=jax.random.key(0))
    >>> norms.upper.tolist(), round(float(norms.amplification), 3)
    ([1.0, 2.0], 6.389)
    """
    require_continuous(flow)
    states = flow.trajectory(x, grid, times)
    bounds = _bounds_at(x, grid, key, steps, failure)

    def rate(timed: tuple[Any, Scalar], x: State) -> State:
        """Compute the state's derivative in depth time."""
        control, time = timed
        return flow.profile(time) * control(time)(x, x, grid)

    def at_time(visited: tuple[Scalar, State]) -> NormBounds:
        """Bound the norm of the rate's derivative at one time's state."""
        time, state = visited
        return bounds(rate, (flow.control, time), state)

    norms = jax.lax.map(at_time, states)
    horizon = jnp.asarray(flow.horizon, norms.upper.dtype)
    return GeneratorNorms(norms.attained, norms.upper, states.times, horizon)


class Amplification(NamedTuple):
    r"""Bounds c on :math:`\|P_0 - P_T\| \le c\,\|P_T\|`, as certain as the norms they come from.

    Attributes
    ----------
    exponential
        The paper's :math:`e^{T\Lambda} - 1` (`eq:residual-stability-bound`).
    product
        The sharper :math:`\prod_k (1 + \|B_k\|) - 1`.
    products
        The same product of the layers from each on, of shape ``(layers,)``; the first is `product`.
    """

    exponential: Scalar
    product: Scalar
    products: Float[Array, " layers"]


def amplification(norms: NormBounds) -> Amplification:
    r"""Bound the change of the terminal covector by the upper bounds on the layers' norms.

    c of `eq:residual-stability-bound`. :math:`T\Lambda = M\max_k\|B_k\|`, so the product is never
    the larger of the two. Of M layers they fail with at most M times the norms' probability of
    failure.

    Parameters
    ----------
    norms
        The `interaction_norms` of one example; of several, `vmap` over them. For a continuous flow
        take ``generator_norms(...).amplification`` in place of this.

    Returns
    -------
    Amplification
        The bounds ``exponential`` and ``product``, and ``products`` of the layers from each on.

    Raises
    ------
    ValueError
        If `norms` are no `NormBounds`, or not a number for each layer.
    EquinoxRuntimeError
        If a bound is NaN, an upper one is below what a vector attains, or a norm is negative.

    Examples
    --------
    >>> sizes = jnp.array([0.5, 1.0])
    >>> growth = amplification(NormBounds(sizes, sizes))
    >>> round(float(growth.product), 3), round(float(growth.exponential), 3)
    (2.0, 6.389)
    >>> growth.products.round(3).tolist()
    [2.0, 1.0]
    """
    require_kind(
        norms,
        NormBounds,
        "norms",
        "Take them from interaction_norms; of a continuous flow c is norms.amplification.",
    )
    require_floats(
        norms.upper,
        "norms.upper",
        "layers",
        "Pass the norms of one example; map over several with jax.vmap.",
    )
    require_floats(norms.attained, "norms.attained", "layers", layers=norms.upper.shape[0])
    rounding = jnp.sqrt(jnp.finfo(norms.upper.dtype).eps)
    above = norms.attained > norms.upper * (1 + rounding)
    sizes = error_if_got(
        norms.upper,
        "norms",
        got={
            "NaN": jnp.isnan(norms.attained) | jnp.isnan(norms.upper),
            "bounds that contradict each other": above | (norms.attained < 0),
        },
        expected="0 <= attained <= upper in every layer",
        cure="Take them from interaction_norms.",
    )
    products = jnp.expm1(jnp.cumsum(jnp.log1p(sizes)[::-1])[::-1])
    return Amplification(jnp.expm1(sizes.shape[0] * sizes.max()), products[0], products)


def _norms_by_layer(
    flow: ResidualFlow,
    change: Callable[[Any, State], State],
    x: State,
    grid: Grid,
    key: Key[Array, ""],
    steps: int,
    failure: float,
) -> NormBounds:
    """Bound the derivative of ``change(layer, x)`` in every layer along the flow from x."""
    require_flow(flow)
    states = flow.trajectory(x, grid).states
    bounds = _bounds_at(x, grid, key, steps, failure)

    def measure(carry, layer, state):
        """Bound one layer's norm and pass the state on."""
        return carry, bounds(change, layer, state)

    return flow.scan(measure, x, states[:-1])[1]


def _bounds_at(
    x: State, grid: Grid, key: Key[Array, ""], steps: int, failure: float
) -> Callable[[Callable[[Any, State], State], Any, State], NormBounds]:
    """Return a function that bounds the derivative of ``change(layer, x)`` in :math:`L^2`."""
    require_key(key)
    steps = checked_steps(steps, failure)
    # Vectors of half precision are orthogonal to three digits only, and would end the search.
    start = gaussian(key, x.shape, accumulator(x.dtype))

    def bounds(change: Callable[[Any, State], State], layer: Any, state: State) -> NormBounds:
        """Bound the derivative of ``change(layer, x)`` in x at one layer and state."""
        arrays, static = eqx.partition(layer, eqx.is_array)

        def operator(arguments: tuple[Any, State]) -> Callable[[State], State]:
            """Return the derivative at a state, as a map of vectors in the weighted norm."""
            arrays, state = arguments
            combined = eqx.combine(arrays, static)
            root = jnp.sqrt(promote(grid.weights))[:, None]
            _, push = jax.linearize(lambda x: change(combined, x), state)
            return lambda vector: root * promote(push((vector / root).astype(state.dtype)))

        return norm_bounds(operator, (arrays, state), start, steps=steps, failure=failure)

    return bounds
