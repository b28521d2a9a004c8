r"""Depth: residual recursions over layers, and the continuous flow that they discretise.

.. math:: X_{k+1} = X_k + \varepsilon\,\zeta(t_k)\,\mathscr F_{\theta_k}(X_k), \qquad
          t_k = k\varepsilon,\quad \varepsilon = T/M

A step function says how one layer is applied: `euler` is the one-field recursion above
(`eq:discrete-residual`), `split` a real pre-norm layer (`eq:complete-transformer-layer`). A
GPT-2 block is `split` with a horizon of as many units as there are layers. `ContinuousFlow` solves
the limit :math:`\partial_t X_t = \zeta(t)\,\mathscr F_{\theta_t}(X_t)` (`eq:continuous-depth`)
under a control :math:`t \mapsto \theta_t`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Shaped

from lim_jax._checks import require, require_floating
from lim_jax.blocked import KEPT
from lim_jax.field import Field, State
from lim_jax.grid import Grid

Scalar = Float[Array, ""]


class Trajectory(NamedTuple):
    r"""The states along depth, of a flow or of its tangent.

    Attributes
    ----------
    times
        :math:`t_0 = 0, \dots, t_M = T`.
    states
        :math:`X_0, \dots, X_M`.
    """

    times: Float[Array, " times"]
    states: Float[Array, "times length width"]


def euler(field: Field, x: State, grid: Grid, increment: Scalar | float) -> State:
    r"""One residual step :math:`x + \varepsilon\zeta\,\mathscr F(x)` (`eq:discrete-residual`).

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> euler(lambda x, context, grid: -context, jnp.ones((2, 1)), token_grid(2), 0.5).tolist()
    [[0.5], [0.5]]
    """
    return x + increment * field(x, x, grid)


def split(field: Any, x: State, grid: Grid, increment: Scalar | float) -> State:
    r"""One pre-norm layer: the field's sublayers one after the other.

    :math:`\tilde x = x + \varepsilon\zeta\,\mathrm{Attn}(x)`, then
    :math:`\tilde x + \varepsilon\zeta\,\mathrm{FNN}(\tilde x)` (`eq:complete-transformer-layer`).
    It differs from `euler` by :math:`O(\varepsilon^2)` in each step.

    Raises
    ------
    ValueError
        Where the field has no `sublayers`.
    """
    _require_sublayers(field)
    for sublayer in field.sublayers:
        x = euler(sublayer, x, grid, increment)
    return x


def heun(field: Field, x: State, grid: Grid, increment: Scalar | float) -> State:
    r"""Heun's step, of order 2 in depth for a field that does not change within the layer.

    The mean of the field at x and at its `euler` step. To follow a control to order 2, sample it
    in the middle of each layer.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> heun(lambda x, context, grid: -context, jnp.ones((2, 1)), token_grid(2), 0.5).tolist()
    [[0.625], [0.625]]
    """
    slope = field(x, x, grid)
    ahead = x + increment * slope
    return x + increment * (slope + field(ahead, ahead, grid)) / 2


def strang(field: Any, x: State, grid: Grid, increment: Scalar | float) -> State:
    r"""A symmetric layer: the sublayers for half a step, then in reverse order for the other half.

    Each by `heun`, so the step is of order 2 where `split` is of order 1.

    Raises
    ------
    ValueError
        Where the field has no `sublayers`.
    """
    _require_sublayers(field)
    for sublayer in (*field.sublayers, *reversed(field.sublayers)):
        x = heun(sublayer, x, grid, increment / 2)
    return x


def rk4(field: Field, x: State, grid: Grid, increment: Scalar | float) -> State:
    """The classical Runge--Kutta step, of order 4 for a field that does not change in the layer.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> found = rk4(lambda x, context, grid: -context, jnp.ones((1, 1)), token_grid(1), 0.5)
    >>> round(float(found[0, 0]), 6)  # 1 - h + h^2/2 - h^3/6 + h^4/24
    0.606771
    """

    def slope(state: State) -> State:
        return field(state, state, grid)

    first = slope(x)
    second = slope(x + increment / 2 * first)
    third = slope(x + increment / 2 * second)
    fourth = slope(x + increment * third)
    return x + increment / 6 * (first + 2 * second + 2 * third + fourth)


def unit_profile(time: Scalar) -> Scalar:
    r"""The depth profile :math:`\zeta \equiv 1`."""
    return jnp.ones_like(time)


class ResidualFlow(eqx.Module):
    r"""A residual network of M layers on the depth interval [0, T].

    Call it to get the terminal state :math:`X_M`; `trajectory` gives all states. A `scan` runs
    over the layers, so compile time does not grow with depth. Works under every nesting of jit,
    vmap, grad, jvp and vjp, in the state and in the layers' parameters.

    Attributes
    ----------
    layers
        One field whose arrays have a leading layer axis: the layerwise control
        :math:`\theta_0,\dots,\theta_{M-1}`.
    horizon
        :math:`T`; the step is :math:`\varepsilon = T/M`.
    profile
        The depth profile :math:`\zeta`.
    step
        `euler`, `split`, `heun`, `strang`, `rk4`, or any function of the same arguments.

    Raises
    ------
    ValueError
        Where the layers have no common leading axis, the horizon is not positive, or (when
        called) the state's shape or dtype does not fit the grid or the layers.

    Examples
    --------
    >>> from lim_jax.field import TransformerField
    >>> from lim_jax.grid import token_grid
    >>> keys = jax.random.split(jax.random.key(0), 8)
    >>> layers = jax.vmap(lambda key: TransformerField.init(6, heads=2, key=key))(keys)
    >>> flow = ResidualFlow(layers, step=split)
    >>> x = jax.random.normal(jax.random.key(1), (5, 6))
    >>> flow(x, token_grid(5)).shape, flow.trajectory(x, token_grid(5)).states.shape
    ((5, 6), (9, 5, 6))
    """

    layers: PyTree
    horizon: float = eqx.field(static=True, default=1.0)
    profile: Callable[[Scalar], Scalar] = eqx.field(static=True, default=unit_profile)
    step: Callable[[Any, State, Grid, Scalar], State] = eqx.field(static=True, default=euler)

    def __check_init__(self):
        shapes = {leaf.shape[:1] for leaf in jax.tree.leaves(eqx.filter(self.layers, eqx.is_array))}
        require(
            len(shapes) == 1 and shapes != {()},
            "layers",
            got=f"leading axes {sorted(shapes)}",
            expected="arrays that share one leading layer axis",
            cure="Build the layers under vmap over keys, or stack them with jax.tree.map.",
        )
        _require_horizon(self.horizon)

    @property
    def depth(self) -> int:
        """The number of layers, :math:`M`."""
        return jax.tree.leaves(eqx.filter(self.layers, eqx.is_array))[0].shape[0]

    def __call__(self, x: State, grid: Grid) -> State:
        """Flow from :math:`X_0` to :math:`X_M`."""
        _require_fits(x, grid)
        return self.scan(lambda x, layer: (self.transition(layer, x, grid), None), x)[0]

    def trajectory(self, x: State, grid: Grid) -> Trajectory:
        """Flow from :math:`X_0`, keeping every state."""
        _require_fits(x, grid)

        def step(x, layer):
            x = self.transition(layer, x, grid)
            return x, x

        _, states = self.scan(step, x)
        return Trajectory(self._times(x.dtype), jnp.concatenate([x[None], states]))

    def transition(self, layer: tuple[Any, Scalar], x: State, grid: Grid) -> State:
        """Apply one layer: a pair of its field and its increment, as `scan` hands it out."""
        field, increment = layer
        return self.step(field, x, grid, increment)

    def scan(
        self,
        body: Callable[..., tuple[PyTree, PyTree]],
        carry: PyTree,
        *inputs: Shaped[Array, "depth ..."],
        reverse: bool = False,
    ) -> tuple[PyTree, PyTree]:
        r"""Scan ``body(carry, layer, *inputs)`` over depth.

        A layer is the pair of its field and its increment :math:`\varepsilon\zeta(t_k)`.
        """
        arrays, static = eqx.partition(self.layers, eqx.is_array)
        dtype = jax.tree.leaves(carry)[0].dtype
        increments = self.horizon / self.depth * jax.vmap(self.profile)(self._times(dtype)[:-1])

        def layer_body(carry, scanned):
            arrays, increment, *inputs = scanned
            return body(carry, (eqx.combine(arrays, static), increment), *inputs)

        return jax.lax.scan(
            jax.checkpoint(
                layer_body,
                prevent_cse=False,
                policy=jax.checkpoint_policies.save_only_these_names(KEPT),
            ),
            carry,
            (arrays, increments, *inputs),
            reverse=reverse,
        )

    def _times(self, dtype: jnp.dtype) -> Float[Array, " times"]:
        return jnp.linspace(0.0, self.horizon, self.depth + 1, dtype=dtype)


class LayerwiseControl(eqx.Module):
    r"""The piecewise constant control :math:`\theta_t = \theta_k` on :math:`[t_k, t_{k+1})`.

    Attributes
    ----------
    layers
        One field whose arrays have a leading layer axis.
    horizon
        :math:`T`.
    """

    layers: PyTree
    horizon: float = eqx.field(static=True, default=1.0)

    def __call__(self, time: Scalar) -> Any:
        """The layer at a depth time; a boundary belongs to the layer that it begins."""
        arrays, static = eqx.partition(self.layers, eqx.is_array)
        depth = jax.tree.leaves(arrays)[0].shape[0]
        # Solvers arrive at a boundary a rounding error early; that still begins the next layer.
        layer = jnp.floor(time * depth / self.horizon + jnp.sqrt(jnp.finfo(time.dtype).eps))
        index = jnp.clip(layer.astype(int), 0, depth - 1)
        return eqx.combine(jax.tree.map(lambda leaf: leaf[index], arrays), static)


class InterpolatedControl(eqx.Module):
    """A control that follows a path through parameter space; see `linear_control`."""

    path: diffrax.AbstractPath

    def __call__(self, time: Scalar) -> Any:
        """The field at a depth time."""
        return self.path.evaluate(time)


def linear_control(fields: PyTree, horizon: float = 1.0) -> InterpolatedControl:
    r"""The control that joins the given fields by straight lines in parameter space.

    Parameters
    ----------
    fields
        One field whose arrays have a leading axis: its values at equally spaced depth times
        from 0 to `horizon`, both included.
    horizon
        :math:`T`.

    Examples
    --------
    >>> from lim_jax.field import FeedForward
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> fields = jax.vmap(lambda key: FeedForward.init(2, key=key))(keys)
    >>> control = linear_control(fields, horizon=2.0)
    >>> bool(jnp.allclose(control(jnp.array(1.0)).inner, fields.inner[1]))
    True
    """
    return InterpolatedControl(diffrax.LinearInterpolation(_knots(fields, horizon), fields))


def cubic_control(fields: PyTree, horizon: float = 1.0) -> InterpolatedControl:
    """The control that joins the given fields by cubics with continuous derivative.

    Parameters are those of `linear_control`; derivatives at the knots are backward differences.
    """
    knots = _knots(fields, horizon)
    coefficients = diffrax.backward_hermite_coefficients(knots, fields)
    return InterpolatedControl(diffrax.CubicInterpolation(knots, coefficients))


class ContinuousFlow(eqx.Module):
    r"""The depth flow :math:`\partial_t X_t = \zeta(t)\,\mathscr F_{\theta_t}(X_t)` on [0, T].

    `eq:continuous-depth`, solved by diffrax. Calls and trajectories raise where the solver fails,
    also inside jit, if the state they return is used; `solve` hands out the solver's own status.
    The solver's options are not arrays: hand a flow to `equinox.filter_jit`, or close over it.

    How it is differentiated is diffrax's `adjoint`:

    =============================  ============================================================
    adjoint                        for
    =============================  ============================================================
    `RecursiveCheckpointAdjoint`   first-order reverse mode with least memory (the default); with
                                   as many `checkpoints` as steps no step is taken twice
    `DirectAdjoint`                every nesting; give `max_steps` tightly, memory grows with it
    `ForwardMode`                  forward mode only
    `BacksolveAdjoint`             first-order reverse mode, approximate
    `ImplicitAdjoint`              refused: for a flow of finite depth it is wrong
    =============================  ============================================================

    Attributes
    ----------
    control
        :math:`t \mapsto` field: `LayerwiseControl`, `linear_control`, `cubic_control`, or any
        callable module.
    horizon
        :math:`T`.
    profile
        :math:`\zeta`.
    solver, stepsize_controller, adjoint
        diffrax's; by default Tsitouras' method with relative and absolute tolerance 1e-6.
    first_step
        The first step, or the step of a constant controller; None lets the controller choose.
    max_steps
        The most steps taken.

    Raises
    ------
    ValueError
        Where the horizon is not positive, the adjoint is refused, or the state does not fit.
    EquinoxRuntimeError
        Where the solver does not reach T.

    Examples
    --------
    >>> from lim_jax.grid import gauss_grid
    >>> class Decay(eqx.Module):
    ...     def __call__(self, x, context, grid):
    ...         return -x
    >>> flow = ContinuousFlow(lambda time: Decay(), horizon=1.0)
    >>> x = jnp.ones((4, 1))
    >>> bool(jnp.allclose(flow(x, gauss_grid(4)), jnp.exp(-1.0), atol=1e-6))
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
        _require_horizon(self.horizon)
        require(
            not isinstance(self.adjoint, diffrax.ImplicitAdjoint),
            "adjoint",
            got="ImplicitAdjoint",
            expected="an adjoint of the solved trajectory",
            cure="It assumes a steady state; take RecursiveCheckpointAdjoint or DirectAdjoint.",
        )

    def __call__(self, x: State, grid: Grid) -> State:
        """Flow from :math:`X_0` to :math:`X_T`."""
        return self._checked(self.solve(x, grid))[-1]

    def trajectory(self, x: State, grid: Grid, times: Float[Array, " times"]) -> Trajectory:
        """Flow from :math:`X_0`, keeping the states at the given depth times."""
        return Trajectory(times, self._checked(self.solve(x, grid, diffrax.SaveAt(ts=times))))

    def solve(self, x: State, grid: Grid, saveat: diffrax.SaveAt | None = None) -> diffrax.Solution:
        """Solve, and return diffrax's solution with its status `result`, which is yours to check.

        Under ``jit(grad(...))`` a check whose value is unused is dropped: return ``result`` and
        ``stats`` as auxiliary output and look at them outside.
        """
        _require_fits(x, grid)

        def rate(time, x, control):
            return self.profile(time) * control(time)(x, x, grid)

        return self.integrate(rate, x, diffrax.SaveAt(t1=True) if saveat is None else saveat)

    def integrate(
        self,
        rate: Callable[..., PyTree],
        initial: PyTree,
        saveat: diffrax.SaveAt,
        *,
        backward: bool = False,
    ) -> diffrax.Solution:
        """Solve any equation along depth with this flow's solver, controller and adjoint.

        `rate` is called as ``rate(time, value, control)``; depth runs from 0 to T, or `backward`
        from T to 0. The status is the caller's to check.
        """
        dtype = jax.tree.leaves(initial)[0].dtype
        ends = jnp.array([0.0, self.horizon], dtype)
        start, end = ends[::-1] if backward else ends
        step = self.first_step and jnp.full((), self.first_step, dtype)
        return diffrax.diffeqsolve(
            diffrax.ODETerm(rate),
            self.solver,
            t0=start,
            t1=end,
            dt0=-step if step is not None and backward else step,
            y0=initial,
            args=self.control,
            saveat=saveat,
            stepsize_controller=self.stepsize_controller,
            adjoint=self.adjoint,
            max_steps=self.max_steps,
            throw=False,
        )

    def _checked(self, solution: diffrax.Solution) -> Float[Array, "times length width"]:
        failed = ~diffrax.is_successful(solution.result)
        states = solution.result.error_if(solution.ys, failed)
        assert states is not None
        return states


def _knots(fields: PyTree, horizon: float) -> Float[Array, " knots"]:
    _require_horizon(horizon)
    leaf = jax.tree.leaves(fields)[0]
    return jnp.linspace(0.0, horizon, leaf.shape[0], dtype=leaf.dtype)


def _require_sublayers(field: Any) -> None:
    require(
        hasattr(field, "sublayers"),
        "field",
        got=f"{type(field).__name__} without sublayers",
        expected="a field with the attribute sublayers, such as TransformerField",
        cure="Give the field its sublayers, or take the step euler.",
    )


def _require_horizon(horizon: float) -> None:
    require(
        horizon > 0,
        "horizon",
        got=f"{horizon}",
        expected="a positive depth",
        cure="It is T in eps = T/M; take the number of layers for eps = 1.",
    )


def _require_fits(x: State, grid: Grid) -> None:
    require_floating(x, "x", cure="Embed integer tokens first: the flow acts on vectors.")
    require(
        x.ndim == 2 and x.shape[0] == grid.size,
        "x",
        got=f"shape {x.shape}",
        expected=f"({grid.size}, width), a row for each position of the grid",
        cure="Flows take one example: vmap over a batch.",
    )
    require(
        x.dtype == grid.weights.dtype,
        "x",
        got=f"{x.dtype}",
        expected=f"the grid's {grid.weights.dtype}",
        cure=f"Make the grid with dtype={x.dtype}, or cast x.",
    )
