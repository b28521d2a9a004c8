"""Layers to the depth flow: trajectories and controls, measured."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lim_jax._jit import cached_jit, filter_jit
from lim_jax.grid.measure import Grid
from lim_jax.limits.constants import (
    DepthConstants,
    DepthProfile,
    depth_constants,
    largest_control_distances,
    linear_knots,
    proved_constants,
    sampled_profile,
)
from lim_jax.limits.premises import require_lipschitz, require_resnet_premises
from lim_jax.limits.refinement import (
    Study,
    fit_order,
    refine,
    require_refinements,
    require_rising,
    rounding_error,
)
from lim_jax.limits.schemes import (
    Control,
    Flows,
    Scheme,
    Step,
    reference_flows,
    require_reference_flows,
)
from lim_jax.network.continuous_flow import ContinuousFlow
from lim_jax.network.controls import control_distance
from lim_jax.network.flow import ResidualFlow, unit_profile
from lim_jax.network.slots import State
from lim_jax.network.steps import euler, heun, rk4, split, strang

DepthFunction = Callable[[Array], Array]
Follow = Callable[[PyTree, State, Grid], Float[Array, "times length width"]]
STEPS = (euler, split, heun, strang, rk4)  # Euler's up to O(eps^2), for Lipschitz fields


def trajectory_studies(
    control: Control,
    x: State,
    grid: Grid,
    depths: Sequence[int],
    schemes: Mapping[str, Scheme],
    *,
    horizon: float = 1.0,
    profile: DepthFunction = unit_profile,
    references: Flows | None = None,
    lipschitz: bool = False,
) -> dict[str, Study]:
    r"""Compare residual recursions with the depth flow of a control (`thm:resnet-ode`).

    Two studies of each scheme, in the grid's :math:`L^2` norm:

    - ``"<scheme>: on layers"``: the largest error over the times :math:`t_k`
      (`eq:convergent-control-grid-bound`);
    - ``"<scheme>: between layers"``: the supremum over [0, T], where a layer's state stands until
      the next (`eq:resnet-ode-convergent-control-bound`). It is of order 1 at best.

    By the theorem either is at most
    :math:`C_T(\varepsilon + \|\theta^\varepsilon - \theta\|_{L^1})`, and the claimed order is that
    of the bracket. :math:`C_T` follows the proof (`DepthConstants`), with the largest defect of a
    layer over all depths. The premises hold for a `linear_control` of pre-norm Transformer fields,
    :math:`\zeta = 1` and the steps of this library: then constants are bounds (`proved_constants`).
    For others state them by a `DepthProfile` and by `lipschitz`: then, and if the bounds overflow,
    constants are samples along the flow, the coarsest recursion and halfway, so the study's verdict
    is "measured". Without premises nothing is claimed.

    Parameters
    ----------
    control
        The depth flow's control, :math:`t \mapsto` field, from a depth time in [0, T].
    x
        The initial state :math:`X_0`, (length, width).
    grid
        The positions of its rows.
    depths
        The refinements: numbers M of layers. A fitted order takes four or more.
    schemes
        By name, how the control becomes layers and how a layer is applied.
    horizon
        :math:`T`; the step is :math:`\varepsilon = T/M`.
    profile
        The depth profile :math:`\zeta`; by default one. Any but one is to be a `DepthProfile` if
        orders and bounds are to be claimed.
    references
        Two depth flows to the horizon: the second is the limit, the first gives its error. By
        default `reference_flows`, to 1e-13. Where these do not reach T, as along a profile with
        very many kinks, they raise EquinoxRuntimeError: pass flows of a constant step.
    lipschitz
        Whether you state that fields are Lipschitz in states and parameters and the control is in
        time, and that a step from elsewhere is Euler's up to :math:`O(\varepsilon^2)`. By default
        nothing is stated.

    Returns
    -------
    dict[str, Study]
        The two studies of each scheme, by the names above.

    Raises
    ------
    ValueError
        If a `DepthProfile` is negative or exceeds what it states, the references are not two flows
        to `horizon` or are one flow twice, samples do not bear out what `lipschitz` states, depths
        are not whole numbers that rise, or an order is to be claimed from fewer than four.

    Examples
    --------
    >>> field = lim.FeedForward.init(2, key=jax.random.key(0))
    >>> x, depths = jnp.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]), (8, 16, 32, 64)
    >>> schemes = {"Euler": Scheme()}
    >>> studies = trajectory_studies(
    ...     lambda time: field, x, lim.token_grid(3), depths, schemes, lipschitz=True
    ... )
    >>> study = studies["Euler: on layers"]
    >>> study.claimed, round(study.order.value, 1), study.verdict
    (1.0, 1.0, 'measured')
    """
    require_rising(depths, "depths")
    flows = reference_flows(control, horizon, profile) if references is None else references
    require_reference_flows(flows, horizon)
    if isinstance(profile, DepthProfile):
        profile.require_stated(horizon)
    if lipschitz:
        _require_lipschitz_in_time(control, x, grid, horizon)
    # Ends of layers of all depths: within a layer the error is convex up to O(eps^2).
    times = np.unique(np.concatenate([np.linspace(0, horizon, n + 1) for n in depths]))

    def solution(flow: ContinuousFlow) -> np.ndarray:
        """Solve the flow, and return its states at the times."""
        return np.asarray(_states_at(flow, x, grid, jnp.asarray(times)))

    check, expected = map(solution, flows)
    limit_error = _largest_norm(check - expected, grid)
    limit = _DepthLimit(control, profile, grid, times, expected, limit_error)
    return {
        f"{name}: {where}": study
        for name, scheme in schemes.items()
        for where, study in _scheme_studies(scheme, depths, limit, lipschitz).items()
    }


@cached_jit
def _states_at(
    flow: ContinuousFlow, x: State, grid: Grid, times: Float[Array, " times"]
) -> Float[Array, "times length width"]:
    """Return a continuous flow's states at the times."""
    return flow.trajectory(x, grid, times).states


def _require_lipschitz_in_time(control: Control, x: State, grid: Grid, horizon: float) -> None:
    """Raise ValueError if the control's field, in four random directions, looks not Lipschitz."""
    directions = jnp.asarray(np.random.default_rng(0).standard_normal((4, x.size)))

    def velocities(p: Float[Array, " times"]) -> Float[Array, "times 4"]:
        """Compute the field along four directions at positions of depth time in [0, 1]."""

        def velocity(p: Array) -> Array:
            """Compute the field along the directions at one position."""
            return directions @ control(horizon * p)(x, x, grid).ravel()

        return jax.lax.map(velocity, p, batch_size=1024)

    require_lipschitz(velocities, "control")


class _DepthLimit(NamedTuple):
    """The depth flow of a control at the times of all depths, and its own error."""

    control: Control
    profile: DepthFunction
    grid: Grid
    times: np.ndarray
    states: np.ndarray
    flow_error: float

    @property
    def horizon(self) -> float:
        """Return the time at which the flow ends."""
        return float(self.times[-1])

    def at(self, times: np.ndarray) -> np.ndarray:
        """Return the states at some of the times."""
        return self.states[np.searchsorted(self.times, times - 1e-12)]

    def error_on_layers(self, states: np.ndarray) -> float:
        """Return the largest error of a recursion's states at the times of its layers."""
        times = np.linspace(0, self.horizon, len(states))
        return _largest_norm(states - self.at(times), self.grid)

    def error_between_layers(self, states: np.ndarray) -> float:
        """Return the largest error of the piecewise constant states, on both sides of jumps."""
        layer = self.times / self.horizon * (len(states) - 1)
        after = np.floor(layer + 1e-9).astype(int)
        before = np.maximum(np.ceil(layer - 1e-9).astype(int) - 1, 0)
        return max(_largest_norm(states[at] - self.states, self.grid) for at in (before, after))


class _RecursionRun(NamedTuple):
    """A recursion of one depth, the flow at its times, the bracket, and the defect over ε²."""

    layers: PyTree
    states: np.ndarray
    flow: np.ndarray
    bracket: float
    defect: float


def _scheme_studies(
    scheme: Scheme, depths: Sequence[int], limit: _DepthLimit, lipschitz: bool
) -> dict[str, Study]:
    """Study one scheme's errors on and between layers, with bounds if the theorem applies."""
    control = limit.control
    grid = limit.grid
    horizon = limit.horizon
    runs = _recursion_runs(scheme, depths, limit)
    rounding = rounding_error(limit.states, _largest_norm(limit.states, grid))
    theorem = _Theorem(grid, horizon, limit.profile, scheme.step, lipschitz, rounding)
    layers = [run.layers for run in runs.values()]
    proved = proved_constants(layers, control, limit.profile, grid, horizon)
    constants, sampled = theorem.constants(
        runs,
        lambda depth: Scheme().recursion(control, depth, horizon).layers,
        proved,
        DepthConstants.between_layers,
    )
    claimed = None
    if constants is not None:
        require_refinements(depths, "depths", "layers")  # the claimed order is fitted to rates
        rates = [scheme.rate(depth, horizon) for depth in depths]
        claimed = round(fit_order(depths, rates).value, 2)

    def study(label: str, error: Callable, constant: Callable) -> Study:
        """Study one error over all depths, with a bound if the theorem's constants are known."""
        factor = None if constants is None else constant(constants, horizon)
        return refine(
            label,
            claimed,
            depths,
            (error(runs[depth].states) for depth in depths),
            limit.flow_error,
            None if factor is None else (lambda depth: factor * runs[depth].bracket),
            sampled=sampled,
            rounding=rounding,
        )

    on = "eq:convergent-control-grid-bound"
    between = "eq:resnet-ode-convergent-control-bound"
    return {
        "on layers": study(on, limit.error_on_layers, DepthConstants.on_layers),
        "between layers": study(between, limit.error_between_layers, DepthConstants.between_layers),
    }


class _Theorem(NamedTuple):
    """The setting of the theorem; `rounding` is by how much rounding may move the flow."""

    grid: Grid
    horizon: float
    profile: DepthFunction
    step: Step
    lipschitz: bool
    rounding: float

    def constants(
        self,
        runs: Mapping[int, _RecursionRun],
        control_layers: Callable[[int], PyTree],
        proved: DepthConstants | None,
        bound: Callable[[DepthConstants, float], float],
    ) -> tuple[DepthConstants | None, bool]:
        """Return the constants, or None if premises fail, and whether the constants are sampled."""
        sampled = proved is None or not math.isfinite(bound(proved, self.horizon))
        if not _premises(proved, self.profile, self.step, self.lipschitz):
            return None, sampled
        if sampled:
            run = runs[min(runs)]
            ours = run.states[:-1]
            theirs = run.flow[:-1]
            fields = (run.layers, control_layers(len(ours)), run.layers)
            states = (ours, theirs, (ours + theirs) / 2)
            measured = map(depth_constants, fields, map(jnp.asarray, states), [self.grid] * 3)
            largest = (float(max(values)) for values in zip(*measured, strict=True))
            value, slope = sampled_profile(self.profile, self.horizon)
            proved = DepthConstants(*largest)._replace(profile_bound=value, profile_lipschitz=slope)
        assert proved is not None
        defects = {depth: run.defect for depth, run in runs.items()}
        if self.lipschitz:
            require_resnet_premises(defects, self.rounding / self.horizon**2, proved[:3])
        return proved._replace(defect=max(defects.values())), sampled


def _premises(
    proved: DepthConstants | None, profile: DepthFunction, step: Step, lipschitz: bool
) -> bool:
    """Tell whether the premises of `thm:resnet-ode` are proved or stated."""
    stated = profile is unit_profile or isinstance(profile, DepthProfile)
    return stated and (lipschitz or (proved is not None and step in STEPS))


def _recursion_runs(
    scheme: Scheme, depths: Sequence[int], limit: _DepthLimit
) -> dict[int, _RecursionRun]:
    """Run the scheme at every depth, beside the flow's states and what enters the bound."""
    control = limit.control
    horizon = limit.horizon
    profile = limit.profile
    flows = [scheme.recursion(control, depth, horizon, profile) for depth in depths]
    layers = [flow.layers for flow in flows]
    states = _trajectories(flows, jnp.asarray(limit.states[0]), limit.grid)
    departures = _departures(layers, states, control, profile, limit.grid, horizon)
    linear = linear_knots(control) is not None

    def run(
        depth: int, layers: PyTree, states: Array, departure: tuple[Array, Array]
    ) -> _RecursionRun:
        """Collect one depth's states, the flow's beside them, and what enters the bound."""
        step = horizon / depth
        distance, defects = departure
        defect = _largest_norm(np.asarray(defects), limit.grid) / step**2
        if linear:
            distance = largest_control_distances(layers, control, horizon).sum()
        flow = limit.at(np.linspace(0, horizon, depth + 1))
        return _RecursionRun(layers, np.asarray(states), flow, step + float(distance), defect)

    return dict(zip(depths, map(run, depths, layers, states, departures), strict=True))


@filter_jit  # one program for each step, whatever the perturbation
def _trajectories(flows: list[ResidualFlow], x: State, grid: Grid) -> list[Array]:
    """Return the states of every flow."""
    return [flow.trajectory(x, grid).states for flow in flows]


@filter_jit  # not in the program of the recursion: one program serves every scheme
def _departures(
    layers: list[PyTree],
    states: list[Array],
    control: Control,
    profile: DepthFunction,
    grid: Grid,
    horizon: float,
) -> list[tuple[Array, Array]]:
    """Compute each depth's distance of layers from the control, and its steps' defects."""
    return [
        (control_distance(layers, control, horizon), _defects(layers, at, profile, grid, horizon))
        for layers, at in zip(layers, states, strict=True)
    ]


def _defects(
    layers: PyTree, states: Array, profile: DepthFunction, grid: Grid, horizon: float
) -> Float[Array, "depth length width"]:
    """Compute how far every layer's step is from Euler's step from the same state."""
    step = horizon / (states.shape[0] - 1)
    increments = step * jax.vmap(profile)(step * jnp.arange(states.shape[0] - 1.0))
    one_field = eqx.filter_vmap(lambda field, x, increment: euler(field, x, grid, increment))
    return states[1:] - one_field(layers, states[:-1], increments)


def shadowing_study(
    make_layers: Callable[[int], PyTree],
    x: State,
    grid: Grid,
    depths: Sequence[int],
    *,
    horizon: float = 1.0,
    profile: DepthFunction = unit_profile,
    step: Step = euler,
    references: tuple[Follow, Follow] | None = None,
    lipschitz: bool = False,
) -> Study:
    r"""Compare layers without a limit with the flow that they drive themselves.

    `thm:resnet-ode`, end: the largest error over the times :math:`t_k`, in the grid's :math:`L^2`.
    It has order 1, though no common flow is approached, under premises that hold for pre-norm
    Transformer fields, :math:`\zeta = 1` and the steps of this library, and are stated by a
    `DepthProfile` and by `lipschitz` for others. If :math:`\zeta = 1`, steps that freeze the field
    within a layer attain their own order. The bound is :math:`T e^{TZ\Lambda}(C_{split} +
    (Z^2\Lambda + \mathrm{Lip}(\zeta))M/2)\,\varepsilon`, with `proved_constants` of all layers, or
    else ``sampled`` on the coarsest recursion.

    Parameters
    ----------
    make_layers
        From the depth to stacked layers, one field whose arrays have a leading axis of that length:
        bounded but otherwise free.
    x
        The initial state :math:`X_0`, (length, width).
    grid
        The positions of its rows.
    depths
        The refinements: numbers M of layers. A fitted order takes four or more.
    horizon
        :math:`T`; the step is :math:`\varepsilon = T/M`.
    profile
        The depth profile :math:`\zeta`; by default one. Any but one is to be a `DepthProfile` if
        order and bound are to be claimed.
    step
        How a layer is applied: by default `euler`, or another function
        ``step(field, x, grid, increment)``.
    references
        Two functions ``(layers, x, grid)`` to the states at the times :math:`t_k` of the flow that
        the layers drive: the second is the limit, the first gives its error. By default 6 and 8
        steps of `rk4` for each layer, over the time :math:`\int\zeta` of the layer by Gauss' rule.
    lipschitz
        Whether you state that fields are Lipschitz in states and parameters, and that a step from
        elsewhere is Euler's up to :math:`O(\varepsilon^2)`. By default nothing is stated.

    Returns
    -------
    Study
        The largest error at each depth.

    Raises
    ------
    ValueError
        If a `DepthProfile` is negative or exceeds what it states, or samples do not bear out what
        `lipschitz` states, or depths are not whole numbers that rise.
    """
    require_rising(depths, "depths")
    if isinstance(profile, DepthProfile):
        profile.require_stated(horizon)

    @filter_jit
    def followed(x: State, depth: int, follow: Follow) -> tuple[PyTree, Array, Array, Array]:
        """Return the layers of one depth, their states, the limit's, and the defects."""
        layers = make_layers(depth)
        states = ResidualFlow(layers, horizon, profile, step).trajectory(x, grid).states
        defects = _defects(layers, states, profile, grid, horizon)
        return layers, states, follow(layers, x, grid), defects

    def run(depth: int, follow: Follow) -> _RecursionRun:
        """Collect one depth's states beside the limit's, and the largest defect."""
        layers, *arrays = followed(x, depth, follow)
        states, flow, defects = map(np.asarray, arrays)
        defect = _largest_norm(defects, grid) * (depth / horizon) ** 2
        return _RecursionRun(layers, states, flow, horizon / depth, defect)

    if references is None:
        references = _follow(profile, horizon, 6), _follow(profile, horizon, 8)
    check, reference = references
    runs = {depth: run(depth, reference) for depth in depths}
    flow = runs[min(runs)].flow
    rounding = rounding_error(flow, _largest_norm(flow, grid))
    theorem = _Theorem(grid, horizon, profile, step, lipschitz, rounding)
    stacks = [run.layers for run in runs.values()]
    proved = proved_constants(stacks, None, profile, grid, horizon)
    constants, sampled = theorem.constants(
        runs, lambda depth: runs[depth].layers, proved, DepthConstants.on_layers
    )
    # The layers are their own control, at no distance.
    factor = (
        None if constants is None else constants._replace(control_lipschitz=0.0).on_layers(horizon)
    )
    return refine(
        "thm:resnet-ode",
        None if factor is None else 1.0,
        depths,
        (_largest_norm(run.states - run.flow, grid) for run in runs.values()),
        _largest_norm(run(depths[0], check).flow - runs[depths[0]].flow, grid),
        None if factor is None else (lambda depth: factor * horizon / depth),
        sampled=sampled,
        rounding=rounding,
    )


def _follow(profile: DepthFunction, horizon: float, count: int) -> Follow:
    """Make a function that solves the flow that layers drive, by `count` steps of `rk4` each."""
    nodes, weights = map(jnp.asarray, np.polynomial.legendre.leggauss(count))

    def step(field: Any, x: State, grid: Grid, increment: Array) -> State:
        """Take `count` steps of `rk4` for one layer."""
        return jax.lax.fori_loop(0, count, lambda _, x: rk4(field, x, grid, increment / count), x)

    def follow(layers: PyTree, x: State, grid: Grid) -> Float[Array, "times length width"]:
        """Return the states of the flow that the layers drive."""
        length = horizon / ResidualFlow(layers).depth

        def mean(time: Array) -> Array:
            """Average the profile over the layer that begins at a time."""
            return weights / 2 @ jax.vmap(profile)(time + length * (nodes + 1) / 2)

        return ResidualFlow(layers, horizon, mean, step).trajectory(x, grid).states

    return follow


def split_defect_study(
    field: Any, x: State, grid: Grid, depths: Sequence[int], *, lipschitz: bool = False
) -> Study:
    r"""Measure the defect of one split layer against one Euler step, at :math:`\varepsilon = 1/M`.

    :math:`\|d_k\| \le C_{split}\,\varepsilon^2` (`eq:discrete-residual-with-defect`) for a
    Lipschitz field. Both sides are exact, so there is no reference error.

    Parameters
    ----------
    field
        A field with `sublayers`, such as a `TransformerField`, without a layer axis.
    x
        The state from which both steps are taken, (length, width).
    grid
        The positions of its rows, in whose :math:`L^2` norm the defect is measured.
    depths
        The refinements: numbers M of layers, of which one is applied. A fitted order takes four or
        more.
    lipschitz
        Whether you state that the field is Lipschitz. By default the order 2 is claimed only if
        `proved_constants` bound the field.

    Returns
    -------
    Study
        The defect at each depth, without a bound.

    Raises
    ------
    ValueError
        If the field has no `sublayers`, its defects do not bear out what `lipschitz` states, or
        depths are not whole numbers that rise.
    """
    require_rising(depths, "depths")

    @filter_jit
    def defect(increment: Float[Array, ""]) -> State:
        """Subtract Euler's step from the split step."""
        return split(field, x, grid, increment) - euler(field, x, grid, increment)

    defects = [defect(jnp.asarray(1 / depth)) for depth in depths]
    errors = [_largest_norm(np.asarray(states)[None], grid) for states in defects]
    if lipschitz:
        rounding = rounding_error(np.asarray(x), _largest_norm(np.asarray(x)[None], grid))
        scaled = {depth: error * depth**2 for depth, error in zip(depths, errors, strict=True)}
        require_resnet_premises(scaled, rounding)
    stacked = jax.tree.map(lambda leaf: leaf[None], eqx.filter(field, eqx.is_array))
    constants = proved_constants([eqx.combine(stacked, field)], None, unit_profile, grid)
    claimed = 2.0 if lipschitz or constants is not None else None
    return refine("eq:discrete-residual-with-defect", claimed, depths, errors, 0.0)


def split_gap_study(control: Control, x: State, grid: Grid, depths: Sequence[int]) -> Study:
    """Compare the split with the one-field recursion: M defects of size ε² make O(ε)."""

    @filter_jit
    def gaps(x: State) -> list[State]:
        """Subtract the split step's last states from Euler's, at each depth."""

        def terminal(step: Step, depth: int) -> State:
            """Return the last states of the recursion by one kind of step."""
            return Scheme(step).recursion(control, depth, 1.0)(x, grid)

        return [terminal(euler, depth) - terminal(split, depth) for depth in depths]

    errors = [_largest_norm(np.asarray(gap)[None], grid) for gap in gaps(x)]
    return refine("eq:discrete-residual-with-defect", None, depths, errors, 0.0)


def _largest_norm(states: np.ndarray, grid: Grid) -> float:
    """Return the largest norm of the states at any time."""
    squares = (states**2).sum(axis=2) @ np.asarray(grid.weights)
    return float(np.sqrt(squares.max()))
