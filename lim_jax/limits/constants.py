"""The constants behind the bounds on a recursion in depth."""

import math
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import require_callable, require_floats
from lim_jax.grid.integrals import inner
from lim_jax.grid.measure import Grid, require_on_grid
from lim_jax.network.continuous import ContinuousFlow, require_continuous
from lim_jax.network.field import State


class DepthConstants(NamedTuple):
    r"""The numbers that the proof of `thm:resnet-ode` rests on, each the largest over samples.

    Attributes
    ----------
    state
        :math:`\Lambda = \|D_X\mathscr F_\theta(X)\|`.
    control
        :math:`C_\theta = \|D_\theta\mathscr F_\theta(X)\|`, from the Euclidean norm of all
        parameters.
    speed
        :math:`M = \|\mathscr F_\theta(X)\|`.
    defect
        :math:`C_{split} = \|d_k\|/\varepsilon^2` (`eq:discrete-residual-with-defect`).
    """

    state: float
    control: float
    speed: float
    defect: float = 0.0

    def on_layers(self, horizon: float) -> float:
        r""":math:`C_T` of `eq:convergent-control-grid-bound`, for a depth profile of one.

        :math:`e^{T\Lambda}\max\{T(\Lambda M/2 + C_{split}),\,C_\theta\}`: a layer adds the
        defect, :math:`\Lambda M\varepsilon^2/2` as the flow moves on within it, and
        :math:`C_\theta` times the controls' distance (`eq:convergent-control-local-defect`);
        :math:`e^{T\Lambda}` is Gronwall's.
        """
        layer = horizon * (self.state * self.speed / 2 + self.defect)
        return math.exp(horizon * self.state) * max(layer, self.control)

    def between_layers(self, horizon: float) -> float:
        r""":math:`C_T` of `eq:resnet-ode-convergent-control-bound`: :math:`M` more."""
        return self.on_layers(horizon) + self.speed


@eqx.filter_jit
def depth_constants(
    fields: PyTree, states: Float[Array, "samples length width"], grid: Grid
) -> DepthConstants:
    r"""Measure the constants of fields at states, a field for each state, in the grid's norm.

    Dense: every Jacobian is formed.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> from lim_jax.network.field import FeedForward
    >>> keys = jax.random.split(jax.random.key(0), 2)
    >>> fields = jax.vmap(lambda key: FeedForward.init(2, key=key))(keys)
    >>> found = depth_constants(fields, jnp.ones((2, 3, 2)), token_grid(3))
    >>> float(found.speed)  # a token without variance is normalised to zero
    0.0
    """
    require_callable(fields, "fields", "(x, context, grid), of which each array has a leading axis")
    require_on_grid(states, grid, "states", "times length width", "Pass a state for each field.")
    root = jnp.sqrt(grid.weights)[:, None]

    def sizes(field: Any, x: State) -> tuple[Array, Array, Array]:
        arrays, static = eqx.partition(field, eqx.is_inexact_array)
        parameters, unravel = ravel_pytree(arrays)

        def scaled(parameters: Array, z: Array) -> Array:
            moved = eqx.combine(unravel(parameters), static)
            return (root * moved(z / root, z / root, grid)).ravel()

        by_control, by_state = jax.jacrev(scaled, argnums=(0, 1))(parameters, root * x)
        image = scaled(parameters, root * x)
        norm = partial(jnp.linalg.norm, ord=2)
        return norm(by_state.reshape(x.size, x.size)), norm(by_control), norm(image)

    found = eqx.filter_vmap(sizes)(fields, states)
    return DepthConstants(*(values.max() for values in found))


@eqx.filter_jit
def time_slopes(
    flow: ContinuousFlow, x: State, grid: Grid, times: Float[Array, " times"]
) -> Float[Array, " times"]:
    r"""Measure :math:`\|\partial_t\,\zeta(t)\mathscr F_{\theta_t}(X)\|` at one state, on the grid.

    `eq:depth-time-consistency`: between two times of one piece of the control the field changes by
    at most :math:`C_G`, the largest slope there, times their distance.

    Parameters
    ----------
    flow
        Its profile and its control, differentiable in time: `linear_control`, `cubic_control`, or
        any smooth callable.
    x, grid
        The state, held still, and its positions.
    times
        Depth times; where pieces of the control meet, the slope is that of one of them.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> flow = ContinuousFlow(lambda time: lambda x, context, grid: time**2 * x)
    >>> time_slopes(flow, jnp.ones((3, 1)), token_grid(3), jnp.array([0.0, 0.5, 1.0])).tolist()
    [0.0, 1.0, 2.0]
    """
    require_continuous(flow)
    require_on_grid(x, grid, "x", "length width")
    require_floats(times, "times", "times", "Pass an array of depth times.")

    def rate(time: Array) -> State:
        return flow.profile(time) * flow.control(time)(x, x, grid)

    def slope(time: Array) -> Array:
        change = jax.jvp(rate, (time,), (jnp.ones_like(time),))[1]
        return jnp.sqrt(inner(change, change, grid))

    return jax.vmap(slope)(times)
