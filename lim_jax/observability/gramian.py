r"""Observability Gramians: how visible a perturbation of each position stays along depth.

.. math:: G_i = \sum_k \varepsilon\, J_{k,i}^* C_k^* C_k J_{k,i}

Observations are any pure function of the input with a row for each layer; `ObservedTokens` are
those of a flow, swept once for all. Gramians are Euclidean: no weights :math:`\Delta p` enter.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._checks import (
    ARRAYS,
    as_finite,
    as_int,
    as_nonnegative,
    error_if_got,
    error_if_not_finite,
    require,
    require_callable,
    require_floating,
    require_floats,
    require_indices,
    require_kind,
    require_name,
    widen_integers,
)
from lim_jax._jit import filter_jit
from lim_jax._precision import accumulator, promote
from lim_jax.grid.measure import Grid, require_grid
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.slots import State

Observations = Callable[[State], Float[Array, "depth observed"]]
Gramians = Float[Array, "positions width width"]
Positions = Int[Array, " positions"]
Steps = float | Float[Array, " depth"]
Mode = Literal["cheapest", "forward", "reverse"]
LEFT_OUT = "Pass 0 as the weight of a layer to leave it out."
# What a product back takes of one forward, with its share of the Gramian's own sums, as measured.
PRODUCT_BACK = 1.4
STEP_CURE = "Pass a number, or jnp.array of one float for each layer."


class ObservedTokens(eqx.Module):
    r"""Observe some tokens of every layer but the last, raw or through a readout.

    Call it on an input of shape ``(length, width)`` for observations of shape
    ``(depth, observed)``.

    Attributes
    ----------
    flow
        The network, a `network.ResidualFlow` of M layers; the states :math:`X_0, \dots, X_{M-1}`
        are observed.
    grid
        The positions of the input.
    positions
        The numbers of the tokens that are observed, counted from 0. A single one, the last, makes
        the final-query selector.
    readout
        A function ``readout(x, grid)`` of a layer's states, which keeps a row for each position;
        differentiated it becomes the task-aligned :math:`C_k = DH(X_k)`. None, the default, shows
        the states themselves.

    Raises
    ------
    ValueError
        If the flow is no ResidualFlow, the grid no Grid, the positions are no whole numbers along
        one axis, or none; or, when called, if the readout keeps not a row for each position.
    EquinoxRuntimeError
        If the grid has no such position.

    Examples
    --------
    >>> flow = ResidualFlow(jnp.zeros(3), step=lambda layer, x, grid, step: x)
    >>> see_last = ObservedTokens(flow, lim.token_grid(2), jnp.array([1]))
    >>> gramian_traces(observability_gramians(see_last, jnp.ones((2, 4)), 1 / 3)).tolist()
    [0.0, 4.0]
    """

    flow: ResidualFlow
    grid: Grid
    positions: Int[Array, " queries"]
    readout: Callable[[State, Grid], State] | None = None

    def __post_init__(self):
        """Raise an error at other kinds; guard positions, as one that is missing reads another."""
        require_kind(self.flow, ResidualFlow, "flow", "Make it with network.ResidualFlow.")
        require_grid(self.grid)
        require_indices(self.positions, "positions")
        self.positions = guarded_positions(self.positions, self.grid.weights)

    def __call__(self, x: State) -> Float[Array, "depth observed"]:
        r"""Observe :math:`X_0, \dots, X_{M-1}` from the input `x`.

        Parameters
        ----------
        x
            The input of one example, of shape ``(length, width)``.

        Returns
        -------
        Array
            What is observed, a row for each layer.
        """
        return jax.vmap(self.observe)(self.flow.trajectory(x, self.grid).states[:-1])

    def observe(self, state: State) -> Float[Array, " observed"]:
        """Observe one layer's state.

        Parameters
        ----------
        state
            The states of one layer, of shape ``(length, width)``.

        Returns
        -------
        Array
            The features of the observed tokens, one after the other.

        Raises
        ------
        ValueError
            If the state, or what the readout makes of it, has not a row of floats for each
            position.
        """
        features = state if self.readout is None else self.readout(state, self.grid)
        # JAX clips a row that is not there to the last one.
        name = "state" if self.readout is None else "readout"
        require_floats(
            features,
            name,
            "length *features",
            "Make it one row of features for each position.",
            length=self.grid.size,
        )
        return features[self.positions].ravel()


@filter_jit
def observability_gramians(
    observations: Observations,
    x: State,
    step: Steps,
    mode: Mode = "cheapest",
    *,
    positions: Positions | None = None,
) -> Gramians:
    r"""Compute the Gramian :math:`G_i` of every position, or of some.

    .. math:: G_i = \sum_k \varepsilon\, J_{k,i}^* C_k^* C_k J_{k,i}

    `eq:finite-token-observability-gramian`. Forward mode carries each feature of each position
    through the layers, reverse mode each number observed back to the input
    (`subsec:algorithm-complexity`); `layer_products` says what either costs. Both are exact, and
    differentiable in every mode.

    Parameters
    ----------
    observations
        ``observations(x) -> (depth, observed)``, from the input to the observations
        :math:`C_k X_k`, a row for each layer :math:`k = 0,\dots,M-1`; the terminal state is not
        among them. `ObservedTokens`, or any pure function.
    x
        The input of one example, of shape ``(length, width)``.
    step
        :math:`\varepsilon`, a number not below zero, or one such weight for each layer: zero for a
        layer that is left out, :math:`\varepsilon/\pi_k` for one that is kept with probability
        :math:`\pi_k`.
    mode
        ``"forward"``, ``"reverse"``, or ``"cheapest"``, the default: the one that `cheapest_mode`
        names.
    positions
        The numbers of the monitored positions, counted from 0; all by default. Forward mode
        computes no others.

    Returns
    -------
    Array
        The Gramians, of shape ``(positions, width, width)``, symmetric and positive semidefinite.
        They are Euclidean: no weights :math:`\Delta p` enter.

    Raises
    ------
    ValueError
        If `observations` are no function to a row for each layer, `x` is not of one example, the
        positions are no whole numbers, `step` is a number below zero, NaN or infinite or has not
        one weight for each layer, or `mode` has no such name.
    EquinoxRuntimeError
        If x has no such position, or a weight in an array `step` is below zero, NaN or infinite.

    Examples
    --------
    >>> observations = lambda x: 3 * x.reshape(1, -1)  # one layer, all of both tokens seen
    >>> observability_gramians(observations, jnp.ones((2, 1)), step=0.5).ravel().tolist()
    [4.5, 4.5]
    """
    # Every route passes all layers of a function: their number does not tell which is cheapest.
    depth = None if isinstance(observations, ObservedTokens) else 1
    products = layer_products(observations, x, positions, depth=depth)
    require_name(
        mode,
        (*products, "cheapest"),
        "mode",
        "Pass one of these names, which observability_gramians explains.",
    )
    chosen = cheapest_mode(products) if mode == "cheapest" else mode
    positions = jnp.arange(len(x)) if positions is None else guarded_positions(positions, x)
    if chosen == "forward":
        return _gramians_by_push(observations, x, step, positions)
    if not isinstance(observations, ObservedTokens):
        return _pulled_gramians(observations, x, step)[positions]
    return _gramians_by_sweep(observations, x, step)[positions]


def require_observations(observations: Any, x: Any) -> tuple[int, int]:
    """Return how many layers are observed, and how many numbers of each; raise at other shapes."""
    require_callable(observations, "observations", "of the input")
    require_floats(x, "x", "length width", cure="Pass one example: vmap over a batch.")
    observed: Any = jax.eval_shape(observations, x)
    is_array = hasattr(observed, "shape")
    require(
        is_array and len(observed.shape) == 2,
        "observations",
        got=f"shape {observed.shape}" if is_array else type(observed).__name__,
        expected="a row for each layer, (depth, observed)",
        cure="Pass a function that returns for example observed.reshape(1, -1) of one layer.",
    )
    return observed.shape


def guarded_positions(positions: Positions, x: Float[Array, "length ..."]) -> Positions:
    """Return numbers of positions, whose use raises where x does not have them."""
    last = x.shape[0] - 1
    positions = widen_integers(positions)
    return error_if_got(
        positions,
        "positions",
        got={"a number below zero": positions < 0, f"a number above {last}": positions > last},
        expected=f"numbers from 0 to {last}",
        cure="Pass positions that x has.",
    )


def layer_products(
    observations: Observations,
    x: State,
    positions: Positions | None = None,
    *,
    depth: int | None = None,
) -> dict[str, int]:
    """Count the products with one layer's derivative that each route to the Gramians takes.

    The costs of `subsec:algorithm-complexity`. With S positions of width d, M layers, K of them
    observed and r numbers at each: :math:`SdM` forward; in reverse :math:`KrM`, but
    :math:`rM(M-1)/2` for `ObservedTokens`, whose sweep stops where nothing is seen above. Nothing
    is computed: shapes alone are looked at.

    Parameters
    ----------
    observations
        ``observations(x) -> (K, r)``, what is seen of an input at each observed layer:
        `ObservedTokens`, or any pure function.
    x
        The input of one example, of shape ``(length, width)``.
    positions
        The numbers of the S monitored positions; all by default.
    depth
        M, how many layers the observations run through, of which they may show fewer. By default
        that of `ObservedTokens`; for another function it is to be passed.

    Returns
    -------
    dict
        The number of products of each route, ``forward`` and ``reverse``.

    Raises
    ------
    ValueError
        If `observations` are no function to a row for each layer, `x` is not of one example, the
        positions are no whole numbers, or `depth` is missing or not that of `ObservedTokens`.

    Examples
    --------
    >>> layer_products(lambda x: 3 * x.reshape(1, -1), jnp.ones((2, 1)), depth=1)
    {'forward': 2, 'reverse': 2}
    """
    layers, observed = require_observations(observations, x)
    if positions is not None:
        require_indices(positions, "positions")
    is_flow = isinstance(observations, ObservedTokens)
    if is_flow:
        depth = layers if depth is None else depth
        depth = as_int(
            depth,
            "depth",
            least=layers,
            most=layers,
            expected=f"{layers}, the layers of the flow",
            cure="Leave it out: ObservedTokens observe all of their layers.",
        )
    else:
        depth = as_int(
            depth,
            "depth",
            cure="Pass how many layers the observations run through, of which they may show fewer.",
        )
    num_positions = x.shape[0] if positions is None else positions.shape[0]
    products = depth * (depth - 1) // 2 if is_flow else layers * depth
    return {"forward": num_positions * x.shape[1] * depth, "reverse": observed * products}


def cheapest_mode(products: Mapping[str, int]) -> str:
    """Name the route that takes least time, from `layer_products` or `trace_products`."""
    forward_routes = ("forward", "probes")

    def cost(mode: str) -> float:
        """Count a route's products in products forward."""
        return (1.0 if mode in forward_routes else PRODUCT_BACK) * products[mode]

    return min(products, key=cost)


def _gramians_by_push(
    observations: Observations, x: State, step: Steps, positions: Positions
) -> Gramians:
    """Compute Gramians by forward mode, one monitored position at a time.

    `eq:finite-token-position-injection`, `eq:finite-token-position-jacobian`.
    """
    observed, push = jax.linearize(observations, x)
    steps = layer_steps(step, observed)

    def gramian(position: Array) -> Float[Array, "width width"]:
        """Push all unit vectors at one position forward, and sum their products over depth."""
        basis = jnp.eye(x.shape[1], dtype=x.dtype)
        tangents = jax.vmap(lambda e: jnp.zeros_like(x).at[position].set(e))(basis)
        images = promote(jax.vmap(push)(tangents))
        return jnp.einsum("k,ako,bko->ab", steps, images, images)

    return jax.lax.map(gramian, positions).astype(observed.dtype)


def _pulled_gramians(observations: Observations, x: State, step: Steps) -> Gramians:
    """Compute Gramians by reverse mode, through any function, one observed layer at a time."""
    observed, pull = jax.vjp(observations, x)
    basis = jnp.eye(observed.shape[1], dtype=observed.dtype)

    def add(gramians: Gramians, layer: tuple[Array, Array]) -> tuple[Gramians, None]:
        """Add what one observed layer contributes to all Gramians."""
        index, weight = layer
        pulled = jax.vmap(lambda e: pull(jnp.zeros_like(observed).at[index].set(e))[0])(basis)
        rows = promote(pulled)
        return gramians + weight * jnp.einsum("ria,rib->iab", rows, rows), None

    layers = jnp.arange(observed.shape[0]), layer_steps(step, observed)
    none = jnp.zeros((*x.shape, x.shape[1]), jnp.result_type(x, observed))
    return jax.lax.scan(add, promote(none), layers)[0].astype(none.dtype)


def _gramians_by_sweep(observations: ObservedTokens, x: State, step: Steps) -> Gramians:
    """Compute Gramians by one sweep down the layers, each linearised once for all above it."""
    flow = observations.flow
    grid = observations.grid
    depth = observations.flow.depth

    def back(covectors: Array, layer: Any, state: State, index: Array) -> tuple[Array, None]:
        """Carry what later layers observe back through a layer, and add its observations."""
        _, pull = jax.vjp(lambda x: flow.transition(layer, x, grid), state)
        features, pull_features = jax.vjp(observations.observe, state)
        rows = jax.vmap(lambda e: pull_features(e)[0])(jnp.eye(features.size, dtype=features.dtype))

        def through(entry: tuple[Array, Array]) -> Array:
            """Pull rows back through the layer if it lies below what they observe."""
            pull_rows = jax.vmap(lambda covector: pull(covector)[0])
            return jax.lax.cond(entry[0], pull_rows, lambda rows: rows, entry[1])

        covectors = jax.lax.map(through, (jnp.arange(depth) > index, covectors))
        return covectors.at[index].set(rows), None

    states = flow.trajectory(x, grid).states[:-1]
    shape = jax.eval_shape(observations.observe, x)
    covectors = jnp.zeros((depth, shape.size, *x.shape), shape.dtype)
    covectors, _ = flow.scan(back, covectors, states, jnp.arange(depth), reverse=True)
    steps = layer_steps(step, covectors)
    rows = promote(covectors)
    return jnp.einsum("k,koia,koib->iab", steps, rows, rows).astype(covectors.dtype)


def layer_steps(step: Steps, observed: jax.ShapeDtypeStruct | Array) -> Float[Array, " depth"]:
    """Return the weight of every layer's observations, from one for all or one for each.

    In float32 at least, as the sums over layers are.
    """
    layers = observed.shape[:1]
    if isinstance(step, np.number):
        step = step.item()
    if isinstance(step, int | float):
        step = as_nonnegative(as_finite(step, "step"), "step", LEFT_OUT)
        return jnp.full(layers, step, accumulator(observed.dtype))
    # Under jit NumPy's whole numbers are arrays.
    if isinstance(step, ARRAYS) and jnp.issubdtype(step.dtype, jnp.integer):
        step = jnp.asarray(step, accumulator(observed.dtype))
    require_floating(step, "step", cure=STEP_CURE)
    require(
        step.shape in ((), layers),
        "step",
        got=f"shape {step.shape}",
        expected=f"a number, or shape {layers}",
        cure=STEP_CURE,
    )
    weights = as_nonnegative(error_if_not_finite(step, "step"), "step", LEFT_OUT)
    return jnp.broadcast_to(weights.astype(accumulator(observed.dtype)), layers)


def gramian_traces(gramians: Gramians) -> Float[Array, " positions"]:
    r"""Compute the observability :math:`g_i = \mathrm{tr}\,G_i` of an isotropic perturbation.

    Parameters
    ----------
    gramians
        The Gramian of each position, of shape ``(positions, width, width)``, as
        `observability_gramians` returns them.

    Returns
    -------
    Array
        The trace at each position, Euclidean as the Gramians are.

    Raises
    ------
    ValueError
        If the Gramians are no floating-point array of this shape.

    Examples
    --------
    >>> gramian_traces(jnp.eye(3)[None]).tolist()
    [3.0]
    """
    require_floats(gramians, "gramians", "positions width width")
    return jnp.trace(gramians, axis1=1, axis2=2)


def condition_numbers(gramians: Gramians) -> Float[Array, " positions"]:
    r"""Compute the condition number of every Gramian, the largest eigenvalue over the smallest.

    .. math:: \kappa(G_i) = \lambda_{\max}(G_i)/\lambda_{\min}(G_i)

    What balanced traces do not see: how unlike the directions are in which a position is
    observed. A factor at each position leaves it as it is
    (`eq:simulation-condition-number-invariance`), so a network that learns such factors alone
    balances all traces and no direction. Works under jit, vmap, grad and jvp, the derivatives where
    the extreme eigenvalues are simple.

    Parameters
    ----------
    gramians
        Symmetric positive semidefinite matrices of shape ``(positions, width, width)``, as
        `observability_gramians` returns them.

    Returns
    -------
    Array
        A number for each position, at least one, and infinite where a Gramian is singular: where
        its smallest eigenvalue is no larger than the rounding of the largest, which is as many
        times the precision as there are features.

    Raises
    ------
    ValueError
        If the Gramians are no floating-point array of this shape.

    Examples
    --------
    >>> condition_numbers(jnp.array([[[4.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]])).tolist()
    [4.0, inf]
    """
    require_floats(gramians, "gramians", "positions width width")
    spectrum = jnp.linalg.eigvalsh(promote(gramians))
    smallest = spectrum[:, 0]
    largest = spectrum[:, -1]
    rounding = spectrum.shape[1] * float(jnp.finfo(gramians.dtype).eps) * largest
    singular = smallest <= rounding
    return jnp.where(singular, jnp.inf, largest / jnp.where(singular, 1, smallest))
