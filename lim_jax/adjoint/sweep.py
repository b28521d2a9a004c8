r"""The adjoint of a depth flow: the loss's gradient in every layer's state, as a density.

Covectors are densities, :math:`P = (\text{Euclidean gradient})/\Delta p`, so that
:math:`\langle P, \xi\rangle = \sum_i \Delta p_i\,P_i\cdot\xi_i` is a first variation and P
converges as the grid is refined. NaN and infinity pass on.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import require_callable, require_example
from lim_jax._jit import filter_jit
from lim_jax.density.adjoints import scalar_loss
from lim_jax.grid.measure import Grid, Scalar, require_on_grid
from lim_jax.network.flow import ResidualFlow, Trajectory, require_flow
from lim_jax.network.slots import State

Example = tuple[State, PyTree]
TerminalLoss = Callable[[State, Any], Scalar]

SIGNATURE = "of the terminal state and its labels"


class AdjointTrajectory(NamedTuple):
    r"""A flow and its adjoint along depth.

    Attributes
    ----------
    loss
        The terminal loss of the example, a scalar (`eq:single-example-loss`).
    times
        The depth times :math:`t_0 = 0, \dots, t_M = T` of states and covectors.
    states
        :math:`X_0, \dots, X_M`, of shape ``(M + 1, length, width)``.
    covectors
        :math:`P_0, \dots, P_M`, densities, of the states' shape: a Euclidean gradient is
        :math:`\Delta p_i` times the covector at i.
    """

    loss: Scalar
    times: Float[Array, " times"]
    states: Float[Array, "times length width"]
    covectors: Float[Array, "times length width"]


def require_loss(terminal_loss: Any, example: Any) -> Example:
    """Return an example; raise ValueError unless it is a pair and the loss a function."""
    require_callable(terminal_loss, "terminal_loss", SIGNATURE)
    require_example(example)
    return example


def run_forward(
    flow: ResidualFlow, terminal_loss: TerminalLoss, example: Example, grid: Grid
) -> tuple[Trajectory, Scalar, State]:
    """Return the states along depth, the loss of the last state, and its gradient there."""
    require_flow(flow)
    x, y = require_loss(terminal_loss, example)
    times, states = flow.trajectory(x, grid)
    value_and_gradient = jax.value_and_grad(scalar_loss(terminal_loss, "terminal_loss"))
    return Trajectory(times, states), *value_and_gradient(states[-1], y)


def terminal_adjoint(terminal_loss: TerminalLoss, example: Example, grid: Grid) -> State:
    r"""Compute the terminal covector :math:`P_T = DH(X_T)^*(\dots)` as a density.

    The gradient of the loss of the terminal state, divided by :math:`\Delta p`: for cross-entropies
    `eq:terminal-adjoint-softmax` times L (the field under :math:`\mathcal E_L`), in the continuum
    `eq:continuum-terminal-adjoint`, for query weights `eq:autoregressive-terminal-adjoint`. Through
    the readout it is `eq:tokenwise-terminal-adjoint` (linear, `eq:linear-readout-discrete-adjoint`
    and `eq:linear-readout-continuum-adjoint`), or from a window `eq:local-readout-adjoint`.

    Parameters
    ----------
    terminal_loss
        A function ``terminal_loss(state, y)`` that returns a scalar, for example a cross-entropy of
        a readout.
    example
        A pair ``(state, y)``: the terminal state :math:`X_T`, of shape ``(length, width)``, and its
        labels, any pytree, or None where the loss looks at none.
    grid
        The positions of the state.

    Returns
    -------
    Array
        :math:`P_T`, a density, of the state's shape.

    Raises
    ------
    ValueError
        If the loss is no function or gives no scalar, the example is no pair, or the state not on
        the grid.

    Examples
    --------
    >>> grid, loss = lim.token_grid(2), lambda state, y: lim.integral(y * state, grid).sum()
    >>> terminal_adjoint(loss, (jnp.ones((2, 1)), 3.0), grid).tolist()
    [[3.0], [3.0]]
    """
    state, y = require_loss(terminal_loss, example)
    require_on_grid(state, grid, "state", "length width")
    gradient = jax.grad(scalar_loss(terminal_loss, "terminal_loss"))(state, y)
    return gradient / grid.weights[:, None]


@filter_jit
def adjoint_trajectory(
    flow: ResidualFlow, terminal_loss: TerminalLoss, example: Example, grid: Grid
) -> AdjointTrajectory:
    r"""Flow forward, then carry the terminal covector back through every layer.

    :math:`P_k = (D X_{k+1}/D X_k)^* P_{k+1}`, the adjoint taken in the grid's pairing
    (`eq:residual-adjoint-step`): the exact discrete form of `eq:adjoint` for any step function.
    :math:`P_0` gives the first variation of the loss, :math:`\frac{d}{d\epsilon}\mathscr L(X_0 +
    \epsilon\xi) = \langle P_0, \xi\rangle` (`eq:first-variation`), and
    :math:`\langle P_k, U_k\rangle` is the same at every depth along a tangent U.

    Parameters
    ----------
    flow
        The depth flow, of any step.
    terminal_loss
        A function ``terminal_loss(state, y)`` that returns a scalar, for example a cross-entropy of
        a readout. A method of a Module, or a function with a name, is compiled once for all labels
        of the same shapes; a new lambda is compiled anew.
    example
        A pair ``(x, y)``: the input :math:`X_0`, of shape ``(length, width)``, and its labels, any
        pytree, or None where the loss looks at none. Of a batch, `vmap` over examples.
    grid
        The positions of x, in the precision of x.

    Returns
    -------
    AdjointTrajectory
        The loss, the states and the covectors at every depth, which are densities.

    Raises
    ------
    ValueError
        If `flow` is no `ResidualFlow`, the loss no function or no scalar, the example no pair, or x
        does not fit the grid.

    Examples
    --------
    >>> grid, keys = lim.token_grid(3), jax.random.split(jax.random.key(0), 2)
    >>> flow = ResidualFlow(jax.vmap(lambda key: lim.FeedForward.init(2, key=key))(keys))
    >>> example = jnp.ones((3, 2)), 5.0
    >>> adjoint = adjoint_trajectory(flow, lambda x, y: y * x.sum(), example, grid)
    >>> adjoint.covectors.shape
    (3, 3, 2)
    """
    (times, states), loss, terminal = run_forward(flow, terminal_loss, example, grid)

    def backward(gradient, layer, state):
        """Pull the gradient back through one layer."""
        _, transposed = jax.vjp(lambda state: flow.transition(layer, state, grid), state)
        (gradient,) = transposed(gradient)
        return gradient, gradient

    _, gradients = flow.scan(backward, terminal, states[:-1], reverse=True)
    gradients = jnp.concatenate([gradients, terminal[None]])
    return AdjointTrajectory(loss, times, states, gradients / grid.weights[None, :, None])
