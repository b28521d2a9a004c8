"""The continuous depth flow that residual recursions discretise."""

from collections.abc import Callable
from typing import Any, TypeVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import (
    as_int,
    error_if_first,
    error_if_got,
    error_if_not_finite,
    require,
    require_callable,
    require_floats,
    require_kind,
    require_optional,
)
from lim_jax._errors import translate_errors
from lim_jax.grid.measure import Grid, Scalar
from lim_jax.network.controls import InterpolatedControl, LayerwiseControl
from lim_jax.network.flow import (
    Trajectory,
    require_depth_profile,
    require_horizon,
    require_state,
    unit_profile,
)
from lim_jax.network.slots import State

Tree = TypeVar("Tree")


class ContinuousFlow(eqx.Module):
    r"""The depth flow :math:`\partial_t X_t = \zeta(t)\,\mathscr F_{\theta_t}(X_t)` on [0, T].

    `eq:continuous-depth`, solved by diffrax. Calls and trajectories raise where the solver fails;
    `solve` hands out its own status. The solver's options are not arrays: hand a flow to
    `equinox.filter_jit`, or close over it. How it is differentiated is diffrax's `adjoint`:

    | adjoint | for |
    |---|---|
    | `RecursiveCheckpointAdjoint` | first-order reverse mode with least memory (the default) |
    | `DirectAdjoint` | every nesting; give `max_steps` tightly, memory grows with it |
    | `ForwardMode` | forward mode only |
    | `BacksolveAdjoint` | first-order reverse mode, approximate |
    | `ImplicitAdjoint` | refused: for a flow of finite depth it is wrong |

    With as many `checkpoints` as steps the default takes no step twice.

    Attributes
    ----------
    control
        :math:`t \mapsto` field: of `linear_control` or `LayerwiseControl`, with the same horizon,
        or any callable module.
    horizon
        The depth :math:`T`.
    profile
        The depth profile :math:`\zeta`, finite and not negative (`ass:depth-profile`), which is
        checked at 65 times; one by default.
    solver
        A solver of diffrax, by default Tsitouras' method of order 5.
    stepsize_controller
        A controller of diffrax, by default of relative and absolute tolerance 1e-6.
    adjoint
        One of the table's.
    first_step
        The first step in depth time, or every step of a constant controller; None lets the
        controller choose.
    max_steps
        The most steps that the solver may take.

    Raises
    ------
    ValueError
        Where the horizon or the first step is not positive, the control has another horizon,
        `max_steps` is no positive whole number, the adjoint is refused, or (when called) the state
        does not fit the grid or the fields, or the profile is negative, infinite or not a number.
    EquinoxRuntimeError
        Where a state is not finite, a solver does not reach T, or a profile of traced values is not
        as it must be.

    Examples
    --------
    >>> class Decay(eqx.Module):
    ...     def __call__(self, x, context, grid):
    ...         return -x
    >>> flow = ContinuousFlow(lambda time: Decay(), horizon=1.0)
    >>> x = jnp.ones((4, 1))
    >>> bool(jnp.allclose(flow(x, lim.gauss_grid(4)), jnp.exp(-1.0), atol=1e-6))
    True
    """

    control: Callable[[Scalar], Any]
    horizon: float = eqx.field(static=True, default=1.0)
    profile: Callable[[Scalar], Scalar] = eqx.field(static=True, default=unit_profile)
    solver: diffrax.AbstractSolver = diffrax.Tsit5()
    stepsize_controller: diffrax.AbstractStepSizeController = diffrax.PIDController(1e-6, 1e-6)
    adjoint: diffrax.AbstractAdjoint = diffrax.RecursiveCheckpointAdjoint()
    first_step: float | None = eqx.field(static=True, default=None)
    max_steps: int = eqx.field(static=True, default=4096)

    def __check_init__(self):
        """Raise ValueError at unfit arguments, or an adjoint that assumes a steady state."""
        require_horizon(self.horizon)
        require_callable(self.control, "control", "from depth to a field")
        if isinstance(self.control, LayerwiseControl | InterpolatedControl):
            require(
                self.control.horizon == self.horizon,
                "control",
                got=f"a control of horizon {self.control.horizon}",
                expected=f"one of {self.horizon}, the flow's own",
                cure="Give both the same horizon.",
            )
        require_callable(self.profile, "profile", "of depth")
        as_int(self.max_steps, "max_steps")
        require_optional(self.first_step, "first_step", "Pass None to let the controller choose.")
        require(
            not isinstance(self.adjoint, diffrax.ImplicitAdjoint),
            "adjoint",
            got="ImplicitAdjoint",
            expected="an adjoint of the solved trajectory",
            cure=(
                "Take RecursiveCheckpointAdjoint or DirectAdjoint: this one assumes a steady state."
            ),
        )

    def __call__(self, x: State, grid: Grid) -> State:
        """Flow from :math:`X_0` to :math:`X_T`."""
        return self._checked(self.solve(x, grid))[-1]

    def trajectory(self, x: State, grid: Grid, times: Float[Array, " times"]) -> Trajectory:
        """Flow from :math:`X_0`, and return the states at the given depth times.

        Parameters
        ----------
        x
            The input state :math:`X_0`, of shape ``(length, width)``.
        grid
            The positions.
        times
            The depth times, not decreasing, within [0, T].

        Returns
        -------
        Trajectory
            The times, and the states at them.

        Raises
        ------
        ValueError
            Where the state does not fit the grid, or the times are no array of floats along one
            axis.
        EquinoxRuntimeError
            Where times decrease or lie outside [0, T], a state is not finite, or the solver does
            not reach T.
        """
        times = guarded_times(times, self.horizon)
        return Trajectory(times, self._checked(self.solve(x, grid, diffrax.SaveAt(ts=times))))

    def solve(self, x: State, grid: Grid, saveat: diffrax.SaveAt | None = None) -> diffrax.Solution:
        """Solve, and return diffrax's solution with its status `result`, which is yours to check.

        A check whose value is unused is dropped, as under ``jit(grad(...))``: return ``result`` as
        auxiliary output.

        Parameters
        ----------
        x
            The input state :math:`X_0`, of shape ``(length, width)``.
        grid
            The positions.
        saveat
            Which states the solution keeps; by default the last alone.

        Returns
        -------
        diffrax.Solution
            The solution, whose ``ys`` are states along a leading axis.

        Raises
        ------
        ValueError
            If the state does not fit the grid or the fields, or the profile is negative, infinite
            or not a number at one of 65 times.
        EquinoxRuntimeError
            If a state is not finite, or a profile that depends on traced values is not as it must
            be.
        """
        require_state(x, grid)
        times = np.linspace(0.0, self.horizon, 65)
        x = require_depth_profile(x, self.profile, times, x.dtype)
        x = error_if_not_finite(x, "x")
        rate = _Rate(self.profile, grid)
        return self.integrate(rate, x, diffrax.SaveAt(t1=True) if saveat is None else saveat)

    @translate_errors()
    def integrate(
        self,
        rate: Callable[..., PyTree],
        initial: PyTree,
        saveat: diffrax.SaveAt,
        *,
        backward: bool = False,
    ) -> diffrax.Solution:
        """Solve any equation along depth with this flow's solver, controller and adjoint.

        Of ``rate(time, value, control)``, from 0 to T or `backward`; the status is the caller's.
        """
        dtype = jax.tree.leaves(initial)[0].dtype
        ends = jnp.array([0.0, self.horizon], dtype)
        start, end = ends[::-1] if backward else ends
        step = None
        if self.first_step is not None:
            step = jnp.full((), -self.first_step if backward else self.first_step, dtype)
        return diffrax.diffeqsolve(
            diffrax.ODETerm(rate),
            self.solver,
            t0=start,
            t1=end,
            dt0=step,
            y0=initial,
            args=self.control,
            saveat=saveat,
            adjoint=self.adjoint,
            stepsize_controller=self.stepsize_controller,
            max_steps=self.max_steps,
            throw=False,
        )

    def _checked(self, solution: diffrax.Solution) -> Float[Array, "times length width"]:
        """Return the states of a solution; their use raises where the solver stopped early."""
        states = self.reached(solution, solution.ys)
        assert states is not None
        return states

    def reached(self, solution: diffrax.Solution, values: Tree) -> Tree:
        """Return a solution's values; their use raises where the solver stopped early.

        Parameters
        ----------
        solution
            The solution, of `solve` or `integrate`.
        values
            Any pytree of arrays that were computed with it.

        Returns
        -------
        PyTree
            The values.

        Raises
        ------
        EquinoxRuntimeError
            If the solver took `max_steps` without coming to the end, or failed on the way.
        """
        stopped = solution.result == diffrax.RESULTS.max_steps_reached
        smooth = "or a control and a profile that are smoother in depth time."
        return error_if_first(
            values,
            (
                stopped,
                f"flow: got no solution within {self.max_steps} steps, expected one over the whole "
                "depth. Take more max_steps, looser tolerances in stepsize_controller, a constant "
                f"step, {smooth}",
            ),
            (
                ~diffrax.is_successful(solution.result),
                "flow: got a solver that failed on the way, expected a solution over the whole "
                f"depth. Take another solver or a constant step, {smooth}",
            ),
        )


def require_continuous(flow: Any) -> None:
    """Raise ValueError unless this is a `ContinuousFlow`."""
    require_kind(
        flow,
        ContinuousFlow,
        "flow",
        "Take adjoint_trajectory, channels or interaction_norms for layers.",
    )


class _Rate(eqx.Module):
    """The vector field as one class, not a new closure per call, so that JAX compiles it once."""

    profile: Callable[[Scalar], Scalar] = eqx.field(static=True)
    grid: Grid

    def __call__(self, time: Scalar, x: State, control: Callable[[Scalar], Any]) -> State:
        """Compute the rate of change of the state at a depth time."""
        return self.profile(time) * control(time)(x, x, self.grid)


def guarded_times(times: Float[Array, " times"], horizon: float) -> Float[Array, " times"]:
    """Return depth times; their use raises unless they increase within [0, T]."""
    require_floats(times, "times", "times", cure="Pass the depth times along one axis.")
    return error_if_got(
        times,
        "times",
        got={
            "a time below zero or NaN": ~(times >= 0),
            f"a time above {horizon}": times > horizon,
            "a time below the one before": jnp.diff(times) < 0,
        },
        expected=f"depth times that increase within [0, {horizon}]",
        cure="Sort them, and leave those outside out.",
    )
