"""The constants of the bounds on a recursion in depth."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import require, require_callable, require_floats
from lim_jax._jit import filter_jit
from lim_jax._precision import unit_of
from lim_jax.grid.cells import CellGrid
from lim_jax.grid.integrals import inner
from lim_jax.grid.measure import Grid, require_on_grid
from lim_jax.network.continuous_flow import ContinuousFlow, require_continuous
from lim_jax.network.controls import InterpolatedControl
from lim_jax.network.field import TransformerField
from lim_jax.network.flow import require_horizon, unit_profile
from lim_jax.network.regularity import HARDY, field_regularity, hardy_bound
from lim_jax.network.slots import State
from lim_jax.probes import deviation_of

PROFILE_STEPS = 4096  # between the times at which a depth profile is sampled


class DepthProfile(NamedTuple):
    r"""A depth profile with a stated bound and a stated slope (`ass:depth-profile`).

    It is called like its function :math:`\zeta`. Samples cannot prove the two numbers, but
    `require_stated` raises where they refute them, or the profile is negative.

    Parameters
    ----------
    function
        :math:`\zeta`, from a depth time to a number, both arrays without axes.
    bound
        :math:`\|\zeta\|_\infty` on [0, T], or more.
    lipschitz
        :math:`\mathrm{Lip}(\zeta)` on [0, T], or more.

    Examples
    --------
    >>> profile = DepthProfile(lambda time: 1 - time / 2, bound=1.0, lipschitz=0.5)
    >>> float(profile(jnp.array(1.0)))
    0.5
    """

    function: Callable[[Array], Array]
    bound: float
    lipschitz: float

    def __call__(self, time: Array) -> Array:
        """Return the profile at a depth time."""
        return self.function(time)

    def require_stated(self, horizon: float = 1.0) -> None:
        """Raise ValueError if at 4,097 times the profile is negative or exceeds what it states.

        Parameters
        ----------
        horizon
            :math:`T`, positive; the times are from 0 to T.

        Raises
        ------
        ValueError
            If the horizon is no positive number; if a value is below zero or not finite, or is
            larger than `bound`, or a slope between two of the times is steeper than `lipschitz`,
            each by more than rounding may make it.
        """
        require_horizon(horizon)
        values = _profile_values(self.function, horizon)
        finite = np.isfinite(values)
        # A few operations round a value by four units in the last place of the largest.
        unit = float(jnp.finfo(jax.dtypes.canonicalize_dtype(float)).eps)
        rounding = 4 * unit * np.abs(values[finite]).max(initial=0.0)
        fails = ~(finite & (values >= -rounding))
        at = int(fails.argmax())
        require(
            not fails.any(),
            "profile",
            got=f"{values[at]} at depth time {horizon * at / PROFILE_STEPS:.6g}",
            expected="finite values that are not negative",
            cure="Pass none below zero; to reverse a field, negate its output.",
        )
        # A slope is the difference of two such values over T/4096, at times that are rounded too,
        # which moves either by T times the slope, in the last place.
        largest, steepest = sampled_profile(self.function, horizon)
        steps = PROFILE_STEPS / horizon
        rounding_of_slopes = 2 * steps * (rounding + unit * horizon * self.lipschitz)
        for name, stated, reached, allowed in (
            ("bound", self.bound, largest, rounding),
            ("lipschitz", self.lipschitz, steepest, rounding_of_slopes),
        ):
            require(
                bool(reached <= stated * (1 + 1e-6) + allowed),
                f"profile.{name}",
                got=f"{stated:g}",
                expected=f"at least {reached:g}, which the profile reaches",
                cure="State the largest value, and the steepest slope, of the profile on [0, T].",
            )


def _profile_values(
    profile: Callable[[Array], Array], horizon: float
) -> Float[np.ndarray, " times"]:
    """Return a profile's values at 4,097 times from 0 to T."""
    times = jnp.asarray(np.linspace(0, horizon, PROFILE_STEPS + 1))
    return np.asarray(jax.vmap(profile)(times), float)


def sampled_profile(profile: Callable[[Array], Array], horizon: float) -> tuple[float, float]:
    """Return a profile's largest size and steepest slope at 4,097 times (`ass:depth-profile`)."""
    values = _profile_values(profile, horizon)
    slopes = np.abs(np.diff(values)) * PROFILE_STEPS / horizon
    return float(np.abs(values).max()), float(slopes.max())


class DepthConstants(NamedTuple):
    r"""The constants in the proof of `thm:resnet-ode`.

    States are measured in the grid's :math:`L^2` norm, and fields in the Euclidean norm of all
    their parameters.

    Parameters
    ----------
    state_lipschitz
        :math:`\Lambda`, the Lipschitz constant of :math:`\mathscr F_\theta` in the state.
    control_lipschitz
        :math:`C_\theta`, its Lipschitz constant in the parameters.
    field_bound
        :math:`M`, the largest :math:`\|\mathscr F_\theta(X)\|`.
    defect
        :math:`C_{split} = \|d_k\|/\varepsilon^2` (`eq:discrete-residual-with-defect`); by default
        0, that of Euler's step.
    profile_bound
        :math:`Z = \|\zeta\|_\infty` of the depth profile; by default 1.
    profile_lipschitz
        :math:`\mathrm{Lip}(\zeta)` of the depth profile; by default 0.
    """

    state_lipschitz: float
    control_lipschitz: float
    field_bound: float
    defect: float = 0.0
    profile_bound: float = 1.0
    profile_lipschitz: float = 0.0

    def layer_factor(self, step: float) -> float:
        r"""Return the factor of the error within a layer, :math:`1 + \varepsilon Z\Lambda`."""
        return 1 + step * self.profile_bound * self.state_lipschitz

    def layer_defect(self, step: float, distance: float) -> float:
        r"""Bound what a layer adds to the error, :math:`\|d_k\| + \tau_k`.

        `eq:convergent-control-local-defect`: :math:`\varepsilon^2(C_{split} + (Z^2\Lambda +
        \mathrm{Lip}(\zeta))M/2) + Z C_\theta\,
        \int_{t_k}^{t_{k+1}}\|\theta^\varepsilon_k - \theta(r)\|\,dr`; the integral is `distance`.
        """
        lipschitz = self.profile_bound**2 * self.state_lipschitz + self.profile_lipschitz
        moving = lipschitz * self.field_bound / 2
        apart = self.profile_bound * self.control_lipschitz * distance
        return step**2 * (self.defect + moving) + apart

    def by_layer(
        self, step: float, distances: Float[np.ndarray, " depth"]
    ) -> Float[np.ndarray, " times"]:
        r"""Bound the errors :math:`e_0, \dots, e_M` of all layers, from the first to the last.

        :math:`e_{k+1} \le (1 + C\varepsilon)\,e_k + \|d_k\| + \tau_k`
        (`eq:convergent-control-error-recursion-pre`), by `layer_factor` and `layer_defect` with
        the controls' distance in each layer.
        """
        errors = [0.0]
        for distance in distances:
            added = self.layer_defect(step, float(distance))
            errors.append(self.layer_factor(step) * errors[-1] + added)
        return np.array(errors)

    def on_layers(self, horizon: float) -> float:
        r"""Compute :math:`C_T` of `eq:convergent-control-grid-bound`.

        :math:`e^{TZ\Lambda}\max\{T(C_{split} + (Z^2\Lambda + \mathrm{Lip}(\zeta))M/2),\,
        Z C_\theta\}`: what the layers add, times Gronwall's exponential, which may be infinite.
        """
        with np.errstate(over="ignore"):
            growth = float(np.exp(np.float64(horizon * self.profile_bound * self.state_lipschitz)))
        by_control = self.profile_bound * self.control_lipschitz
        return growth * max(horizon * self.layer_defect(1.0, 0.0), by_control)

    def between_layers(self, horizon: float) -> float:
        """Compute :math:`C_T` of `eq:resnet-ode-convergent-control-bound`: :math:`ZM` more."""
        return self.on_layers(horizon) + self.profile_bound * self.field_bound


def proved_constants(
    layers: Sequence[PyTree],
    control: Callable[[Array], Any] | None,
    profile: Any,
    grid: Grid,
    horizon: float = 1.0,
) -> DepthConstants | None:
    r"""Return constants that are bounds, not samples: those of `prop:transformer-lipschitz`.

    They come from `field_regularity` on the convex hull of the stacked layers of every depth, and
    of the knots of a `linear_control`.

    Parameters
    ----------
    layers
        Stacked fields, each one field whose arrays have a leading layer axis: those of every depth.
        May be empty if there is a `linear_control`.
    control
        The depth flow's control, :math:`t \mapsto` field; None if the layers approach no limit.
    profile
        The depth profile :math:`\zeta`: `unit_profile`, or a `DepthProfile`.
    grid
        The positions, in whose :math:`L^2` norm the constants hold.
    horizon
        :math:`T`, up to which the control's knots must reach.

    Returns
    -------
    DepthConstants or None
        The constants, with a defect of 0. None if nothing proves them: of a control that is not a
        `linear_control`, or whose knots end before T; fields other than a `TransformerField`, or
        that `field_regularity` refuses; a profile that is neither one nor a `DepthProfile`; and
        prefixes other than a cell grid's from 0, or on whose cells Hardy's inequality fails
        (`hardy_bound`): not on tokens, midpoints and graded cells.

    Raises
    ------
    ValueError
        If there are neither layers nor a control, or the `DepthProfile` is negative on [0, T] or
        exceeds what it states there.

    Examples
    --------
    >>> keys = jax.random.split(jax.random.key(0), 2)
    >>> fields = jax.vmap(lambda key: TransformerField.init(4, norm_eps=0.1, key=key))(keys)
    >>> fields = jax.tree.map(lambda leaf: 0.2 * leaf, fields)
    >>> grid, control = lim.token_grid(3), lim.network.linear_control(fields)
    >>> proved_constants([fields], control, unit_profile, grid).state_lipschitz < 1
    True
    >>> proved_constants([fields], lambda time: fields, unit_profile, grid) is None
    True
    """
    require(
        len(layers) > 0 or control is not None,
        "layers",
        got="none and no control",
        expected="stacked fields, or a linear_control of them",
        cure="Pass the layers of every depth.",
    )
    knots = linear_knots(control)
    stated = profile is unit_profile or type(profile) is DepthProfile
    between = control is None or (knots is not None and _span_horizon(knots[0], horizon))
    fields = [*layers, *(knots or ())[1:]]
    transformers = all(type(field) is TransformerField for field in fields)
    if not (stated and between and transformers and _averages_by_hardy(grid)):
        return None
    if profile is not unit_profile:
        profile.require_stated(horizon)
    try:
        hull = jax.tree.map(lambda *leaves: np.concatenate(leaves), *fields)
        regularity = field_regularity(hull)
    except ValueError:  # of different kinds, or of one that nothing bounds
        return None
    # A field is bounded at every position, so in the grid's norm by the root of its mass.
    mass = math.sqrt(np.asarray(grid.weights).sum())
    largest, steepest = (1.0, 0.0) if profile is unit_profile else profile[1:]
    return DepthConstants(
        float(regularity.lipschitz),
        mass * float(regularity.control),
        mass * float(regularity.bound),
        profile_bound=largest,
        profile_lipschitz=steepest,
    )


def _averages_by_hardy(grid: Grid) -> bool:
    """Tell whether averages over this grid's prefixes obey the bound of `field_regularity`."""
    if type(grid) is not CellGrid or not 0 <= grid.offset < 1:
        return False
    unmasked = grid.starts is None and grid.log_weights is None
    return unmasked and hardy_bound(grid) <= HARDY


def _span_horizon(knots: Array, horizon: float) -> bool:
    """Tell whether knots span [0, T], up to rounding: beyond them a control extrapolates."""
    return bool(knots[0] <= 0) and bool(horizon <= knots[-1] * (1 + 1e-6))


def linear_knots(control: Any) -> tuple[Array, PyTree] | None:
    """Return the times and fields that a `linear_control` joins; None for another control."""
    path = control.path if type(control) is InterpolatedControl else None
    return (path.ts, path.ys) if type(path) is diffrax.LinearInterpolation else None


def largest_control_distances(
    layers: PyTree, control: Any, horizon: float = 1.0
) -> Float[np.ndarray, " depth"]:
    """Bound each layer's distance from a linear control (`eq:control-l1-convergence`)."""
    knots_and_values = linear_knots(control)
    assert knots_and_values is not None
    knots = np.asarray(knots_and_values[0])
    values = _flatten(knots_and_values[1])
    ours = _flatten(layers)
    depth = len(ours)
    between = knots[(knots > 0) & (knots < horizon)]
    ends = np.union1d(np.linspace(0, horizon, 2 * depth + 1), between)
    piece = np.clip(np.searchsorted(knots, ends, "right") - 1, 0, len(knots) - 2)
    part = ((ends - knots[piece]) / np.diff(knots)[piece])[:, None]
    theirs = (1 - part) * values[piece] + part * values[piece + 1]
    layer = np.clip((ends[:-1] + ends[1:]) / 2 * depth / horizon, 0, depth - 1).astype(int)
    distances = sum(
        np.linalg.norm(ours[layer] - side, axis=1) for side in (theirs[:-1], theirs[1:])
    )
    return np.bincount(layer, np.diff(ends) / 2 * distances, minlength=depth)


def _flatten(fields: PyTree) -> Float[np.ndarray, "fields parameters"]:
    """Join the floating-point leaves of stacked fields to one row of parameters for each field.

    In float64: squares of small changes would vanish.
    """
    leaves = [
        np.asarray(leaf, float)
        for leaf in jax.tree.leaves(eqx.filter(fields, eqx.is_inexact_array))
    ]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


@filter_jit
def depth_constants(
    fields: PyTree, states: Float[Array, "samples length width"], grid: Grid
) -> DepthConstants:
    """Measure the constants of stacked fields, each at one state, from dense Jacobians."""
    root = jnp.sqrt(grid.weights)[:, None]

    def sizes(field: Any, x: State) -> tuple[Array, Array, Array]:
        """Return the norms of one field's Jacobians in state and parameters, and of its value."""
        arrays, static = eqx.partition(field, eqx.is_inexact_array)
        parameters, unravel = ravel_pytree(arrays)

        def scaled_field(parameters: Array, z: Array) -> Array:
            """Apply the field with a vector for its parameters, on states scaled by the weights."""
            field_at = eqx.combine(unravel(parameters), static)
            return (root * field_at(z / root, z / root, grid)).ravel()

        by_control, by_state = jax.jacrev(scaled_field, argnums=(0, 1))(parameters, root * x)
        image = scaled_field(parameters, root * x)
        norm = partial(jnp.linalg.norm, ord=2)
        return norm(by_state.reshape(x.size, x.size)), norm(by_control), norm(image)

    return DepthConstants(*(values.max() for values in eqx.filter_vmap(sizes)(fields, states)))


def readout_bound(
    readout: Callable[[State, Grid], State], x: State, grid: Grid
) -> Float[Array, ""]:
    r"""Compute the norm of a readout's adjoint, :math:`\|DH(X)^*\|`, in the grid's :math:`L^2`.

    :math:`M_R` of `eq:readout-adjoint-boundedness` at one state; a linear readout has the same at
    every state. The Jacobian is formed densely.

    Parameters
    ----------
    readout
        A function ``readout(x, grid)`` from states to logits, (length, width) to (length, outputs),
        such as a `LinearReadout`.
    x
        The state :math:`X` at which the readout is differentiated.
    grid
        The positions of its rows, in whose :math:`L^2` norm both states and logits are measured.

    Returns
    -------
    Float[Array, ""]
        The largest singular value of the readout's derivative.

    Raises
    ------
    ValueError
        If the readout is no function, or `x` has not a row for each position.

    Examples
    --------
    >>> readout = lim.LinearReadout(jnp.array([[3.0, 0.0], [0.0, -5.0]]))
    >>> round(float(readout_bound(readout, jnp.ones((3, 2)), lim.token_grid(3))), 6)
    5.0
    """
    require_callable(readout, "readout", "readout(x, grid), from states to logits")
    require_on_grid(x, grid, "x", "length width")
    root = jnp.sqrt(grid.weights)[:, None]

    def scaled(z: State) -> Float[Array, " outputs"]:
        """Apply the readout between states and outputs scaled by the weights."""
        return (root * readout(z / root, grid)).ravel()

    jacobian = jax.jacrev(scaled)(root * x)
    return jnp.linalg.norm(jacobian.reshape(-1, x.size), ord=2)


def time_slope_bounds(flow: ContinuousFlow, grid: Grid) -> Float[np.ndarray, " pieces"] | None:
    r"""Bound :math:`C_G` of `eq:depth-time-consistency` on every piece of a linear control.

    :math:`\|\zeta\|_\infty\,C_\theta\,\|\dot\theta\| + \mathrm{Lip}(\zeta)\,M`, for all states of
    any ball, since layer normalisation bounds what the field depends on.

    Parameters
    ----------
    flow
        The depth flow of a `linear_control` of Transformer fields, whose profile is one or a
        `DepthProfile`. Its solver is not used.
    grid
        The positions, in whose :math:`L^2` norm the slopes are bounded.

    Returns
    -------
    Float[ndarray, " pieces"] or None
        A bound for the piece between each two neighbouring knots; None if `proved_constants` are
        None for this flow and grid.

    Raises
    ------
    ValueError
        If `flow` is not a `ContinuousFlow`, or its `DepthProfile` is negative on [0, T] or exceeds
        what it states there.

    Examples
    --------
    >>> fields = TransformerField.init(4, norm_eps=0.1, key=jax.random.key(0))
    >>> still = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf, leaf]), fields)
    >>> flow = ContinuousFlow(lim.network.linear_control(still))
    >>> time_slope_bounds(flow, lim.token_grid(3)).tolist()
    [0.0, 0.0]
    """
    require_continuous(flow)
    knots = linear_knots(flow.control)
    constants = proved_constants([], flow.control, flow.profile, grid, flow.horizon)
    if knots is None or constants is None:
        return None
    moves = np.linalg.norm(np.diff(_flatten(knots[1]), axis=0), axis=1)
    speeds = moves / np.diff(np.asarray(knots[0]))
    moving = constants.profile_bound * constants.control_lipschitz * speeds
    return moving + constants.profile_lipschitz * constants.field_bound


@filter_jit
def time_slopes(
    flow: ContinuousFlow, x: State, grid: Grid, times: Float[Array, " times"]
) -> Float[Array, " times"]:
    r"""Measure :math:`\|\partial_t\,\zeta(t)\mathscr F_{\theta_t}(X)\|` at one state, on the grid.

    `eq:depth-time-consistency` at this state; `time_slope_bounds` are for all states, as is the
    paper's :math:`C_G`.

    Parameters
    ----------
    flow
        The depth flow, whose profile and control are differentiated in time. Its solver is not
        used.
    x
        The state :math:`X`, the same at all times: (length, width).
    grid
        The positions of its rows, in whose :math:`L^2` norm slopes are measured.
    times
        The depth times; where pieces of the control meet, the slope is that of one of them.

    Returns
    -------
    Float[Array, " times"]
        The slope at each time.

    Raises
    ------
    ValueError
        If `flow` is not a `ContinuousFlow`, `x` has not a row for each position, or `times` is not
        an array of floats along one axis.

    Examples
    --------
    >>> flow = ContinuousFlow(lambda time: lambda x, context, grid: time**2 * x)
    >>> time_slopes(flow, jnp.ones((3, 1)), lim.token_grid(3), jnp.array([0.0, 0.5, 1.0])).tolist()
    [0.0, 1.0, 2.0]
    """
    require_continuous(flow)
    require_on_grid(x, grid, "x", "length width")
    require_floats(times, "times", "times", "Pass an array of depth times.")

    def rate(time: Array) -> State:
        """Compute the state's derivative in depth time at one time."""
        return flow.profile(time) * flow.control(time)(x, x, grid)

    def slope(time: Array) -> Array:
        """Compute the norm of the rate's derivative in time."""
        change = jax.jvp(rate, (time,), (jnp.ones_like(time),))[1]
        unit = unit_of(change)  # squares of other numbers would vanish or overflow
        return unit * deviation_of(inner(change / unit, change / unit, grid))

    return jax.vmap(slope)(times)
