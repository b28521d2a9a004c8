r"""The adjoint of a depth flow: how much each position of each layer's state matters to the loss.

Covectors are densities, :math:`P = (\text{Euclidean gradient})/\Delta p`, so that
:math:`\langle P, \xi\rangle = \sum_i \Delta p_i\,P_i\cdot\xi_i` is a first variation and P
converges as the grid is refined.
"""

from collections.abc import Callable
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax.field import State
from lim_jax.flow import ContinuousFlow, ResidualFlow
from lim_jax.grid import Grid
from lim_jax.tangent import pull_back

Scalar = Float[Array, ""]


class AdjointTrajectory(NamedTuple):
    r"""A flow and its adjoint along depth.

    Attributes
    ----------
    loss
        The terminal loss.
    times, states
        As in `flow.Trajectory`.
    covectors
        :math:`P_0, \dots, P_M`, densities.
    """

    loss: Scalar
    times: Float[Array, " times"]
    states: Float[Array, "times length width"]
    covectors: Float[Array, "times length width"]


def terminal_adjoint(terminal_loss: Callable[[State], Scalar], state: State, grid: Grid) -> State:
    r"""The terminal covector :math:`P_T = DH(X_T)^*(\dots)` as a density.

    The gradient of the loss of the terminal state, divided by :math:`\Delta p`: for cross-entropies
    `eq:terminal-adjoint-softmax` times L (the field under :math:`\mathcal E_L`), in the continuum
    `eq:continuum-terminal-adjoint`, for query weights `eq:autoregressive-terminal-adjoint`.

    Examples
    --------
    >>> from lim_jax.grid import integral, token_grid
    >>> grid = token_grid(2)
    >>> terminal_adjoint(lambda x: integral(x, grid).sum(), jnp.ones((2, 1)), grid).tolist()
    [[1.0], [1.0]]
    """
    return jax.grad(terminal_loss)(state) / grid.weights[:, None]


@eqx.filter_jit
def adjoint_trajectory(
    flow: ResidualFlow, terminal_loss: Callable[[State], Scalar], x: State, grid: Grid
) -> AdjointTrajectory:
    r"""Flow forward, then carry the terminal covector back through every layer.

    :math:`P_k = (D X_{k+1}/D X_k)^* P_{k+1}`, the adjoint taken in the grid's pairing: the exact
    discrete form of `eq:adjoint` for either step function. :math:`P_0` gives the first variation
    of the loss, :math:`\frac{d}{d\epsilon}\mathscr L(X_0 + \epsilon\xi) = \langle P_0, \xi\rangle`
    (`eq:first-variation`), and :math:`\langle P_k, U_k\rangle` is the same at every depth along a
    tangent U.

    Parameters
    ----------
    flow
        The depth flow.
    terminal_loss
        From the terminal state to a scalar, for example a readout and a cross-entropy.
    x
        The input :math:`X_0` of one example.
    grid
        The positions of x.

    Examples
    --------
    >>> from lim_jax.grid import integral, token_grid
    >>> from lim_jax.field import FeedForward
    >>> grid, keys = token_grid(3), jax.random.split(jax.random.key(0), 2)
    >>> flow = ResidualFlow(jax.vmap(lambda key: FeedForward.init(2, key=key))(keys))
    >>> adjoint = adjoint_trajectory(flow, lambda x: x.sum(), jnp.ones((3, 2)), grid)
    >>> adjoint.covectors.shape
    (3, 3, 2)
    """
    times, states = flow.trajectory(x, grid)
    loss, terminal = jax.value_and_grad(terminal_loss)(states[-1])

    def backward(gradient, layer, state):
        _, transposed = jax.vjp(lambda state: flow.transition(layer, state, grid), state)
        (gradient,) = transposed(gradient)
        return gradient, gradient

    _, gradients = flow.scan(backward, terminal, states[:-1], reverse=True)
    gradients = jnp.concatenate([gradients, terminal[None]])
    return AdjointTrajectory(loss, times, states, gradients / grid.weights[None, :, None])


class ContinuousAdjoint(NamedTuple):
    r"""The adjoint of a continuous flow along depth, and the channels of its end.

    Attributes
    ----------
    loss
        The terminal loss.
    times, covectors
        :math:`P_t` at the depth times asked for, densities.
    residual, cone, local
        The generator terms of :math:`P_0 = P_T + \int_0^T \zeta K^*P\,dt + \int_0^T \zeta B^*P\,dt`
        (`eq:continuous-adjoint-duhamel`); they sum to :math:`P_0` to rounding.
    """

    loss: Scalar
    times: Float[Array, " times"]
    covectors: Float[Array, "times length width"]
    residual: State
    cone: State
    local: State


def continuous_adjoint(
    flow: ContinuousFlow,
    terminal_loss: Callable[[State], Scalar],
    x: State,
    grid: Grid,
    times: Float[Array, " times"],
) -> ContinuousAdjoint:
    r"""Solve the adjoint equation backward in depth, with the flow's solver and tolerance.

    :math:`-\partial_t P_t = \zeta(t)\,D\mathscr F_{\theta_t}(X_t)^* P_t` (`eq:adjoint`), along the
    dense interpolation of the forward solution. The parts that the kernel and the local operator
    add are integrated beside P. It agrees with differentiating the forward solve as far as both are
    resolved; for exact gradients of a discretisation take `adjoint_trajectory`. To differentiate
    further, differentiate the flow itself.

    Parameters
    ----------
    flow
        The depth flow.
    terminal_loss
        From the terminal state to a scalar.
    x
        The input :math:`X_0` of one example.
    grid
        The positions of x; any grid.
    times
        The depth times at which to keep P, increasing.

    Raises
    ------
    EquinoxRuntimeError
        Where either solve fails.

    Examples
    --------
    >>> from lim_jax.grid import gauss_grid, integral
    >>> grid = gauss_grid(4)
    >>> flow = ContinuousFlow(lambda time: lambda x, context, grid: -x)
    >>> times = jnp.array([0.0, 1.0])
    >>> loss = lambda x: integral(x, grid).sum()
    >>> found = continuous_adjoint(flow, loss, jnp.ones((4, 1)), grid, times)
    >>> bool(jnp.allclose(found.covectors[0], jnp.exp(-1.0), atol=1e-5))
    True
    """
    forward = flow.solve(x, grid, diffrax.SaveAt(t1=True, dense=True))
    forward = forward.result.error_if(forward, ~diffrax.is_successful(forward.result))
    assert forward.ys is not None
    loss, gradient = jax.value_and_grad(terminal_loss)(forward.ys[-1])
    terminal = gradient / grid.weights[:, None]

    def rates(time, carried, control):
        covector, _, _ = carried
        state = forward.evaluate(time)
        parts = pull_back(control(time), state, covector, grid)
        scale = -flow.profile(time)
        return scale * (parts.local + parts.kernel), scale * parts.kernel, scale * parts.local

    zeros = jnp.zeros_like(x)
    at_times = diffrax.SubSaveAt(ts=times[::-1], fn=lambda time, carried, control: carried[0])
    at_end = diffrax.SubSaveAt(t1=True, fn=lambda time, carried, control: carried[1:])
    backward = flow.integrate(
        rates, (terminal, zeros, zeros), diffrax.SaveAt(subs=[at_times, at_end]), backward=True
    )
    failed = ~diffrax.is_successful(backward.result)
    covectors, (cone, local) = backward.result.error_if(backward.ys, failed)
    return ContinuousAdjoint(loss, times, covectors[::-1], terminal, cone[0], local[0])
