r"""The adjoint of a continuous depth flow: its own equation, solved backward in depth."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import error_if
from lim_jax.adjoint.sweep import Example, TerminalLoss, require_loss
from lim_jax.adjoint.tangent import causal_by_construction, looks_ahead, pull_back
from lim_jax.density.adjoints import scalar_loss
from lim_jax.grid.measure import Grid, Scalar
from lim_jax.network.continuous_flow import ContinuousFlow, guarded_times, require_continuous
from lim_jax.network.slots import State

Carried = tuple[State, State, State]


class ContinuousAdjoint(NamedTuple):
    r"""The adjoint of a continuous flow along depth, and the channels of its end.

    All covectors are densities. The channels are the generator terms of
    :math:`P_0 = P_T + \int_0^T \zeta K^*P\,dt + \int_0^T \zeta B^*P\,dt`
    (`eq:continuous-adjoint-duhamel`), which sum to :math:`P_0` to rounding.

    Attributes
    ----------
    loss
        The terminal loss, a scalar.
    times
        The depth times at which covectors were asked for.
    covectors
        :math:`P_t` at these times, of shape ``(times, length, width)``.
    residual
        :math:`P_T`, of shape ``(length, width)`` like the other channels.
    cone
        The kernel's integral (`eq:depth-integrated-cone-channel`).
    local
        The local operator's integral.
    """

    loss: Scalar
    times: Float[Array, " times"]
    covectors: Float[Array, "times length width"]
    residual: State
    cone: State
    local: State


def continuous_adjoint(
    flow: ContinuousFlow,
    terminal_loss: TerminalLoss,
    example: Example,
    grid: Grid,
    times: Float[Array, " times"],
) -> ContinuousAdjoint:
    r"""Solve the adjoint equation backward in depth, with the flow's solver and tolerance.

    :math:`-\partial_t P_t = \zeta(t)\,D\mathscr F_{\theta_t}(X_t)^* P_t` (`eq:adjoint`), along the
    dense interpolation of the forward solution; what the kernel and the local operator add is
    integrated beside P. It agrees with the derivative of the forward solve within the tolerances of
    both. To differentiate further, differentiate the flow itself.

    Parameters
    ----------
    flow
        The continuous depth flow.
    terminal_loss
        A function ``terminal_loss(state, y)`` that returns a scalar, for example a cross-entropy of
        a readout.
    example
        A pair ``(x, y)``: the input :math:`X_0`, of shape ``(length, width)``, and its labels, any
        pytree, or None where the loss looks at none.
    grid
        The positions of x, in the precision of x.
    times
        The depth times at which to save P, increasing, from 0 to the flow's horizon.

    Returns
    -------
    ContinuousAdjoint
        The loss, :math:`P_t` at the times, and the channels of :math:`P_0`, whatever the times are.

    Raises
    ------
    ValueError
        If `flow` is no `ContinuousFlow`, the loss no function or no scalar, the example no pair, x
        does not fit the grid, or `times` are no floats along one axis.
    EquinoxRuntimeError
        If the times do not increase within the horizon, a state is not finite, a solve fails, or
        the field is not causal at either end, as far as `looks_ahead` sees.

    Examples
    --------
    >>> grid = lim.gauss_grid(4)
    >>> flow = ContinuousFlow(lambda time: lambda x, context, grid: -x)
    >>> times = jnp.array([0.0, 1.0])
    >>> loss = lambda x, y: lim.integral(x, grid).sum()
    >>> adjoint = continuous_adjoint(flow, loss, (jnp.ones((4, 1)), None), grid, times)
    >>> bool(jnp.allclose(adjoint.covectors[0], jnp.exp(-1.0), atol=1e-5))
    True
    """
    require_continuous(flow)
    x, y = require_loss(terminal_loss, example)
    times = guarded_times(times, flow.horizon)
    forward = flow.solve(x, grid, diffrax.SaveAt(t1=True, dense=True))
    forward = flow.reached(forward, forward)
    assert forward.ys is not None
    value_and_gradient = jax.value_and_grad(scalar_loss(terminal_loss, "terminal_loss"))
    loss, gradient = value_and_gradient(forward.ys[-1], y)
    terminal = gradient / grid.weights[:, None]

    zeros = jnp.zeros_like(x)
    at_times = diffrax.SubSaveAt(ts=times[::-1], fn=_covector)
    at_end = diffrax.SubSaveAt(t1=True, fn=_parts)
    rates = _Rates(forward, flow.profile, grid)
    saveat = diffrax.SaveAt(subs=[at_times, at_end])
    backward = flow.integrate(rates, (terminal, zeros, zeros), saveat, backward=True)
    assert backward.ys is not None
    covectors, (cone, local) = flow.reached(backward, backward.ys)
    ends = jnp.array([0.0, flow.horizon], x.dtype)
    states_at_ends = (x, forward.ys[-1])
    return ContinuousAdjoint(
        loss=loss,
        times=times,
        covectors=covectors[::-1],
        residual=terminal,
        cone=_causal(cone[0], flow, grid, ends, states_at_ends),
        local=local[0],
    )


def _causal(
    cone: State, flow: ContinuousFlow, grid: Grid, times: Array, states: tuple[State, ...]
) -> State:
    """Return the cone channel, whose use raises if the field reads later tokens at some time."""
    fields = [(flow.control(time), state) for time, state in zip(times, states, strict=True)]
    unknown = [(field, state) for field, state in fields if not causal_by_construction(field)]
    ahead = [looks_ahead(field, state, grid) for field, state in unknown]
    if not ahead:
        return cone
    message = (
        "flow.control: got a field that reads later tokens, expected a causal one. Let "
        "each position read its prefix alone: else what comes through the context is no cone."
    )
    return error_if(cone, jnp.any(jnp.stack(ahead)), message)


# A type and two functions, not closures made by each call: a second adjoint compiles nothing.
class _Rates(eqx.Module):
    """The adjoint equation beside the integrals of its kernel's and its local operator's share."""

    forward: diffrax.Solution
    profile: Callable[[Scalar], Scalar] = eqx.field(static=True)
    grid: Grid

    def __call__(self, time: Scalar, carried: Carried, control: Callable[[Scalar], Any]) -> Carried:
        """Return the derivatives in depth time of the adjoint and of the two integrals."""
        covector, _, _ = carried
        parts = pull_back(control(time), self.forward.evaluate(time), covector, self.grid)
        scale = -self.profile(time)
        return scale * (parts.local + parts.kernel), scale * parts.kernel, scale * parts.local


def _covector(time: Scalar, carried: Carried, control: Any) -> State:
    """Return the adjoint out of what the equation carries."""
    return carried[0]


def _parts(time: Scalar, carried: Carried, control: Any) -> tuple[State, State]:
    """Return the integrals of the kernel's and the local operator's shares."""
    return carried[1:]
