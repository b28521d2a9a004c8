"""Layers to the depth flow: trajectories and controls, measured."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lim_jax._errors import filter_jit
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
from lim_jax.limits.refinement import Study, fit_order, refine
from lim_jax.limits.schemes import Control, Flows, Scheme, Step, reference_flows
from lim_jax.network.continuous import ContinuousFlow, control_distance
from lim_jax.network.flow import ResidualFlow, euler, heun, rk4, split, strang, unit_profile
from lim_jax.network.slots import State

Profile = Callable[[Array], Array]
Follow = Callable[[PyTree, State, Grid], Float[Array, "times length width"]]
STEPS = (euler, split, heun, strang, rk4)  # Euler's up to O(eps^2), of Lipschitz fields


def trajectory_studies(
    control: Control,
    x: State,
    grid: Grid,
    depths: Sequence[int],
    schemes: Mapping[str, Scheme],
    *,
    horizon: float = 1.0,
    profile: Profile = unit_profile,
    references: Flows | None = None,
    lipschitz: bool = False,
) -> dict[str, Study]:
    r"""Residual recursions against the depth flow of a control (`thm:resnet-ode`).

    Two studies of each scheme, in the grid's :math:`L^2` norm:

    - ``"<scheme>: on layers"``: the largest error over the times :math:`t_k`
      (`eq:convergent-control-grid-bound`);
    - ``"<scheme>: between layers"``: the supremum over [0, T], where a layer's state stands until
      the next (`eq:resnet-ode-convergent-control-bound`). It is of order 1 at best. The times of
      all depths are compared, ends of layers included: within a layer the error is convex up to
      :math:`O(\varepsilon^2)`.

    By the theorem either is at most
    :math:`C_T(\varepsilon + \|\theta^\varepsilon - \theta\|_{L^1})`, and the claimed order is
    that of the bracket. :math:`C_T` is by the proof's own steps (`DepthConstants`), with every
    layer's own defect, the largest over all depths. The premises are known of a `linear_control`
    of pre-norm Transformer fields, :math:`\zeta = 1` and the steps of this library. Others are
    yours to say, by a `DepthProfile` and by `lipschitz`; unsaid, nothing is claimed.

    Where they are known the constants are bounds (`proved_constants`, `largest_control_distances`),
    and an error beyond :math:`C_T` times the bracket would refute the theorem. Otherwise, and where
    those overflow, they are samples: the largest along the flow, along the coarsest recursion, and
    halfway (`depth_constants`, `control_distance`). What lies between samples may be larger, so
    such a study is ``sampled``: its bound is measured, and neither holds nor is broken.

    Parameters
    ----------
    control
        :math:`t \mapsto` field.
    x, grid
        The input and its positions.
    depths
        Numbers of layers.
    schemes
        Two studies are made of each.
    horizon
        :math:`T`.
    profile
        :math:`\zeta`: one, or a `DepthProfile`; of another function nothing is claimed.
    references
        Two depth flows: the last is the limit, the first tells its error. By default those of
        `reference_flows`.
    lipschitz
        Whether fields are Lipschitz in states and parameters and the control is in time, and a
        step of your own is Euler's up to :math:`O(\varepsilon^2)`. Said, it is refused where the
        field at x is not resolved as such in time (`require_lipschitz`), or by defects and
        constants (`require_resnet_premises`).

    Raises
    ------
    ValueError
        Where a `DepthProfile` exceeds what it states, or what is said is refuted.

    Examples
    --------
    >>> from lim_jax.network.tokenwise import FeedForward
    >>> from lim_jax.grid import token_grid
    >>> field = FeedForward.init(2, key=jax.random.key(0))
    >>> x, depths = jnp.ones((3, 2)), (8, 16, 32, 64)
    >>> schemes = {"Euler": Scheme()}
    >>> studies = trajectory_studies(
    ...     lambda time: field, x, token_grid(3), depths, schemes, lipschitz=True
    ... )
    >>> studies["Euler: on layers"].claimed, studies["Euler: on layers"].verdict
    (1.0, 'measured')
    """
    if isinstance(profile, DepthProfile):
        profile.require_stated(horizon)
    if lipschitz:
        _require_lipschitz_in_time(control, x, grid, horizon)
    times = np.unique(np.concatenate([np.linspace(0, horizon, n + 1) for n in depths]))

    def solution(flow: ContinuousFlow) -> np.ndarray:
        return np.asarray(eqx.filter_jit(flow.trajectory)(x, grid, jnp.asarray(times)).states)

    flows = reference_flows(control, horizon, profile) if references is None else references
    check, expected = map(solution, flows)
    own = _largest_norm(check - expected, grid)
    limit = _Limit(control, profile, grid, times, expected, own)
    return {
        f"{name}: {where}": study
        for name, scheme in schemes.items()
        for where, study in _scheme_studies(scheme, depths, limit, lipschitz).items()
    }


def _require_lipschitz_in_time(control: Control, x: State, grid: Grid, horizon: float) -> None:
    """Refuse a control whose field at one state is not resolved as such, in four directions."""
    directions = jnp.asarray(np.random.default_rng(0).standard_normal((4, x.size)))

    def velocities(p: Float[Array, " times"]) -> Float[Array, "times 4"]:
        def velocity(p: Array) -> Array:
            return directions @ control(horizon * p)(x, x, grid).ravel()

        return jax.lax.map(velocity, p, batch_size=1024)

    require_lipschitz(velocities, "control")


class _Limit(NamedTuple):
    """The depth flow of a control at the times of all depths, and how well it is known."""

    control: Control
    profile: Profile
    grid: Grid
    times: np.ndarray
    states: np.ndarray
    own_error: float

    @property
    def horizon(self) -> float:
        return float(self.times[-1])

    def at(self, times: np.ndarray) -> np.ndarray:
        """The states at some of the times."""
        return self.states[np.searchsorted(self.times, times - 1e-12)]

    def error_on_layers(self, states: np.ndarray) -> float:
        """The largest over layers."""
        return _largest_norm(states - self.at(_layer_times(states, self.horizon)), self.grid)

    def error_between_layers(self, states: np.ndarray) -> float:
        """That of the piecewise constant interpolation, before and after each jump."""
        layer = self.times / self.horizon * (len(states) - 1)
        after = np.floor(layer + 1e-9).astype(int)
        before = np.maximum(np.ceil(layer - 1e-9).astype(int) - 1, 0)
        return max(_largest_norm(states[at] - self.states, self.grid) for at in (before, after))


class _Run(NamedTuple):
    """A recursion of one depth, the theorem's bracket, and its largest defect over ε²."""

    layers: PyTree
    states: np.ndarray
    bracket: float
    defect: float


def _scheme_studies(
    scheme: Scheme, depths: Sequence[int], limit: _Limit, lipschitz: bool
) -> dict[str, Study]:
    runs = _runs(scheme, depths, limit)
    layers = [run.layers for run in runs.values()]
    proved = proved_constants(layers, limit.control, limit.profile, limit.grid, limit.horizon)
    sampled = proved is None or not math.isfinite(proved.between_layers(limit.horizon))
    constants = claimed = None
    if _premises(proved, limit.profile, scheme.step, lipschitz):
        rates = [scheme.rate(depth, limit.horizon) for depth in depths]
        claimed = round(fit_order(depths, rates).value, 2)
        constants = _sampled_constants(runs[min(depths)], limit) if sampled else proved
        assert constants is not None
        defects = {depth: run.defect for depth, run in runs.items()}
        size = _largest_norm(limit.states, limit.grid) / limit.horizon**2
        constants = _with_defects(constants, defects, size, lipschitz)

    def study(label: str, error: Callable, constant: Callable) -> Study:
        return refine(
            label,
            claimed,
            depths,
            lambda depth: error(runs[depth].states),
            limit.own_error,
            constants and (lambda depth: constant(constants, limit.horizon) * runs[depth].bracket),
            sampled=sampled,
        )

    return {
        "on layers": study(
            "eq:convergent-control-grid-bound", limit.error_on_layers, DepthConstants.on_layers
        ),
        "between layers": study(
            "eq:resnet-ode-convergent-control-bound",
            limit.error_between_layers,
            DepthConstants.between_layers,
        ),
    }


def _premises(proved: DepthConstants | None, profile: Profile, step: Step, lipschitz: bool) -> bool:
    """Whether those of `thm:resnet-ode` are known or said."""
    stated = profile is unit_profile or isinstance(profile, DepthProfile)
    return stated and (lipschitz or (proved is not None and step in STEPS))


def _with_defects(
    constants: DepthConstants, defects: Mapping[int, float], size: float, lipschitz: bool
) -> DepthConstants:
    """Constants with the largest defect, of states of a size; refuses what is said and refuted."""
    if lipschitz:
        require_resnet_premises(defects, 100 * np.finfo(float).eps * size, constants[:3])
    return constants._replace(defect=max(defects.values()))


def _runs(scheme: Scheme, depths: Sequence[int], limit: _Limit) -> dict[int, _Run]:
    """The recursion of every depth."""
    control, horizon, profile = limit.control, limit.horizon, limit.profile
    flows = [scheme.recursion(control, depth, horizon, profile) for depth in depths]
    states = _trajectories(flows, jnp.asarray(limit.states[0]), limit.grid)
    departures = _departures(
        [flow.layers for flow in flows], states, control, profile, limit.grid, horizon
    )
    linear = linear_knots(control) is not None

    def run(depth: int, layers: PyTree, states: Array, distance: Array, defects: Array) -> _Run:
        step = horizon / depth
        defect = _largest_norm(np.asarray(defects), limit.grid) / step**2
        if linear:
            distance = largest_control_distances(layers, control, horizon).sum()
        return _Run(layers, np.asarray(states), step + float(distance), defect)

    found = zip(depths, flows, states, departures, strict=True)
    return {depth: run(depth, flow.layers, states, *of) for depth, flow, states, of in found}


@filter_jit  # one program for each step, whatever the perturbation
def _trajectories(flows: list[ResidualFlow], x: State, grid: Grid) -> list[Array]:
    return [flow.trajectory(x, grid).states for flow in flows]


# Apart from the recursion: one program, whatever the scheme.
@filter_jit
def _departures(
    layers: list[PyTree],
    states: list[Array],
    control: Control,
    profile: Profile,
    grid: Grid,
    horizon: float,
) -> list[tuple[Array, Array]]:
    """How far the layers are from a control, and their steps from Euler's, for every depth."""
    return [
        (control_distance(layers, control, horizon), _defects(layers, at, profile, grid, horizon))
        for layers, at in zip(layers, states, strict=True)
    ]


def _defects(
    layers: PyTree, states: Array, profile: Profile, grid: Grid, horizon: float
) -> Float[Array, "depth length width"]:
    """Every layer's step less Euler's."""
    step = horizon / (states.shape[0] - 1)
    increments = step * jax.vmap(profile)(step * jnp.arange(states.shape[0] - 1.0))
    one_field = eqx.filter_vmap(lambda field, x, increment: euler(field, x, grid, increment))
    return states[1:] - one_field(layers, states[:-1], increments)


def _sampled_constants(run: _Run, limit: _Limit) -> DepthConstants:
    """The constants along a recursion, along the depth flow, and halfway between them."""
    ours, starts = run.states[:-1], _layer_times(run.states, limit.horizon)[:-1]
    theirs = limit.at(starts)
    followed = Scheme().recursion(limit.control, len(starts), limit.horizon).layers
    samples = ((run.layers, ours), (followed, theirs), (run.layers, (ours + theirs) / 2))
    return _largest_constants(samples, limit.profile, limit.grid, limit.horizon)


def _largest_constants(
    samples: Iterable[tuple[PyTree, np.ndarray]], profile: Profile, grid: Grid, horizon: float
) -> DepthConstants:
    """The largest of fields at states, and of a profile at its times."""
    found = [depth_constants(fields, jnp.asarray(at), grid) for fields, at in samples]
    largest = DepthConstants(*(float(max(values)) for values in zip(*found, strict=True)))
    value, slope = sampled_profile(profile, horizon)
    return largest._replace(profile=value, profile_slope=slope)


def _layer_times(states: np.ndarray, horizon: float) -> np.ndarray:
    return np.linspace(0, horizon, len(states))


def shadowing_study(
    make_layers: Callable[[int], PyTree],
    x: State,
    grid: Grid,
    depths: Sequence[int],
    *,
    horizon: float = 1.0,
    profile: Profile = unit_profile,
    step: Step = euler,
    references: tuple[Follow, Follow] | None = None,
    lipschitz: bool = False,
) -> Study:
    r"""Layers without a limit against the flow that they drive themselves (`thm:resnet-ode`, end).

    The largest error over the times :math:`t_k`, in the grid's :math:`L^2`. Order 1, though no
    common flow is approached: under the premises of `trajectory_studies`, known of pre-norm
    Transformer fields or said to hold. Where :math:`\zeta = 1`, steps that freeze the field within
    a layer attain their own order.

    The bound is that of `trajectory_studies` for controls that are nowhere apart:
    :math:`T e^{TZ\Lambda}(C_{split} + (Z^2\Lambda + \mathrm{Lip}(\zeta))M/2)\,\varepsilon`. Its
    constants are `proved_constants` of all layers, or else ``sampled`` on the coarsest recursion.

    Parameters
    ----------
    make_layers
        From the depth to its stacked layers, bounded but otherwise free.
    x, grid, depths, horizon, profile
        As in `trajectory_studies`.
    step
        As in `flow.ResidualFlow`.
    references
        Two functions ``(layers, x, grid)`` to the states at the times :math:`t_k` of the flow that
        the layers drive: the last is the limit, the first tells its error. By default a layer's
        field is followed for the time :math:`\int\zeta` of the layer, by Gauss' rule, in 8 steps
        of `rk4`; or in 6.
    lipschitz
        Whether all layers are Lipschitz in states, by one constant, and a step of your own is
        Euler's up to :math:`O(\varepsilon^2)`. Refused as in `trajectory_studies`.

    Raises
    ------
    ValueError
        Where a `DepthProfile` exceeds what it states, or what is said is refuted.
    """
    if isinstance(profile, DepthProfile):
        profile.require_stated(horizon)

    @filter_jit
    def run(x: State, depth: int, follow: Follow) -> _Shadow:
        layers = make_layers(depth)
        states = ResidualFlow(layers, horizon, profile, step).trajectory(x, grid).states
        defects = _defects(layers, states, profile, grid, horizon)
        return _Shadow(layers, states, follow(layers, x, grid), defects)

    check, reference = references or (_followed(profile, horizon, count) for count in (6, 8))
    runs = {depth: run(x, depth, reference) for depth in depths}
    other = run(x, depths[0], check).flow
    constants, sampled = _shadowing_constants(runs, profile, grid, horizon, step, lipschitz)

    def gap(ours: Array, theirs: Array) -> float:
        return _largest_norm(np.asarray(ours - theirs), grid)

    return refine(
        "thm:resnet-ode",
        None if constants is None else 1.0,
        depths,
        lambda depth: gap(runs[depth].states, runs[depth].flow),
        gap(other, runs[depths[0]].flow),
        constants and (lambda depth: constants.on_layers(horizon) * horizon / depth),
        sampled=sampled,
    )


class _Shadow(NamedTuple):
    """A recursion of one depth, the flow that its layers drive, and every layer's defect."""

    layers: PyTree
    states: Array
    flow: Array
    defects: Array


def _layer_means(profile: Profile, step: float, count: int) -> Profile:
    """From a layer's time to the mean of a profile over it, by Gauss' rule."""
    nodes, weights = map(jnp.asarray, np.polynomial.legendre.leggauss(count))

    def mean(time: Array) -> Array:
        return weights / 2 @ jax.vmap(profile)(time + step * (nodes + 1) / 2)

    return mean


def _followed(profile: Profile, horizon: float, count: int) -> Follow:
    """The flow that layers drive, each in several steps of `rk4`."""

    def step(field: Any, x: State, grid: Grid, increment: Array) -> State:
        return jax.lax.fori_loop(0, count, lambda _, x: rk4(field, x, grid, increment / count), x)

    def follow(layers: PyTree, x: State, grid: Grid) -> Float[Array, "times length width"]:
        means = _layer_means(profile, horizon / ResidualFlow(layers).depth, count)
        return ResidualFlow(layers, horizon, means, step).trajectory(x, grid).states

    return follow


def _shadowing_constants(
    runs: dict[int, _Shadow],
    profile: Profile,
    grid: Grid,
    horizon: float,
    step: Step,
    lipschitz: bool,
) -> tuple[DepthConstants | None, bool]:
    """The constants of layers that are nowhere apart from their control; whether of samples."""
    proved = proved_constants([run.layers for run in runs.values()], None, profile, grid)
    sampled = proved is None or not math.isfinite(proved.on_layers(horizon))
    if not _premises(proved, profile, step, lipschitz):
        return None, sampled
    if sampled:
        layers, states, flow, _ = runs[min(runs)]
        ours, theirs = np.asarray(states)[:-1], np.asarray(flow)[:-1]
        samples = [(layers, at) for at in (ours, theirs, (ours + theirs) / 2)]
        proved = _largest_constants(samples, profile, grid, horizon)
    assert proved is not None
    defects = {
        depth: _largest_norm(np.asarray(run.defects), grid) * (depth / horizon) ** 2
        for depth, run in runs.items()
    }
    size = _largest_norm(np.asarray(runs[min(runs)].flow), grid) / horizon**2
    return _with_defects(proved, defects, size, lipschitz)._replace(control=0.0), sampled


def split_defect_study(
    field: Any, x: State, grid: Grid, depths: Sequence[int], *, lipschitz: bool = False
) -> Study:
    r"""The defect of one split layer against one Euler step, at :math:`\varepsilon = 1/M`.

    :math:`\|d_k\| \le C_{split}\,\varepsilon^2` (`eq:discrete-residual-with-defect`), of a field
    that is Lipschitz: one of a kind that `field_regularity` bounds, or one that is said to be
    `lipschitz` and not refuted (`require_resnet_premises`). Both sides are exact, so there is no
    reference error.
    """

    @jax.jit
    def defect(increment: Float[Array, ""]) -> State:
        return split(field, x, grid, increment) - euler(field, x, grid, increment)

    errors = {depth: _norm(np.asarray(defect(1 / depth)), grid) for depth in depths}
    if lipschitz:
        rounding = 100 * np.finfo(float).eps * _norm(np.asarray(x), grid)
        require_resnet_premises({depth: errors[depth] * depth**2 for depth in depths}, rounding)
    stacked = jax.tree.map(lambda leaf: leaf[None], eqx.filter(field, eqx.is_array))
    known = proved_constants([eqx.combine(stacked, field)], None, unit_profile, grid)
    claimed = 2.0 if lipschitz or known is not None else None
    return refine("eq:discrete-residual-with-defect", claimed, depths, errors.__getitem__, 0.0)


def split_gap_study(
    control: Control, x: State, grid: Grid, depths: Sequence[int], *, horizon: float = 1.0
) -> Study:
    r"""The split against the one-field recursion: M defects of size ε² make O(ε).

    The paper states the defects' size, not this.
    """

    @jax.jit
    def gaps(x: State) -> list[State]:
        def terminal(step: Step, depth: int) -> State:
            return Scheme(step).recursion(control, depth, horizon)(x, grid)

        return [terminal(euler, depth) - terminal(split, depth) for depth in depths]

    found = (_norm(np.asarray(gap), grid) for gap in gaps(x))
    errors = dict(zip(depths, found, strict=True))
    return refine("eq:discrete-residual-with-defect", None, depths, errors.__getitem__, 0.0)


def _largest_norm(states: np.ndarray, grid: Grid) -> float:
    squares = (states**2).sum(axis=2) @ np.asarray(grid.weights)
    return float(np.sqrt(squares.max()))


def _norm(values: np.ndarray, grid: Grid) -> float:
    return _largest_norm(values[None], grid)
