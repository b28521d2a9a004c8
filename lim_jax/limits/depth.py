r"""Layers to the depth flow: trajectories, controls and adjoints, measured.

The depth flow is solved by Dormand and Prince's method of order 8 to a tolerance of 1e-13; its own
error is the distance to Tsitouras' method.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lim_jax.adjoint.cone import cone_mass
from lim_jax.adjoint.continuous import continuous_adjoint
from lim_jax.adjoint.sweep import adjoint_trajectory
from lim_jax.grid import Grid, boundary_regions, integral, regional_averages
from lim_jax.limits.study import Study, fit_order, refine
from lim_jax.network.continuous import ContinuousFlow
from lim_jax.network.field import State
from lim_jax.network.flow import ResidualFlow, euler, rk4, split

Control = Callable[[Array], Any]
Step = Callable[..., State]


class Scheme(NamedTuple):
    r"""How a control becomes layers, and how a layer is applied.

    Attributes
    ----------
    step
        `flow.euler`, `flow.split`, or another step function.
    offset
        Layer k is the control at :math:`(k + \text{offset})\,\varepsilon`: 0 is the paper's, ½
        keeps the order of a step of order 2.
    perturbation
        From the depth to what is added to the stacked layers; see `uniform_perturbation`,
        `spike_perturbation` and `alternating_perturbation`. None for nothing.
    """

    step: Step = euler
    offset: float = 0.0
    perturbation: Callable[[int], PyTree] | None = None

    def recursion(self, control: Control, depth: int, horizon: float) -> ResidualFlow:
        """The network of a depth."""
        times = (jnp.arange(float(depth)) + self.offset) * (horizon / depth)
        layers = eqx.filter_vmap(control)(times)
        if self.perturbation is not None:
            layers = jax.tree.map(jnp.add, layers, self.perturbation(depth))
        return ResidualFlow(layers, horizon=horizon, step=self.step)

    def rate(self, depth: int, horizon: float) -> float:
        r"""The theorem's bracket :math:`\varepsilon + \|\theta^\varepsilon - \theta\|_{L^1}`.

        Up to constants: the parameters' distance is Euclidean, and that of a smooth control from
        its samples is O(ε), which the first term stands for.
        """
        if self.perturbation is None:
            return horizon / depth
        leaves = jax.tree.leaves(self.perturbation(depth))
        sizes = np.sqrt(sum((np.asarray(leaf) ** 2).reshape(depth, -1).sum(1) for leaf in leaves))
        return horizon / depth * (1 + float(sizes.sum()))


def trajectory_studies(
    control: Control,
    x: State,
    grid: Grid,
    depths: Sequence[int],
    schemes: Mapping[str, Scheme],
    *,
    horizon: float = 1.0,
) -> dict[str, Study]:
    r"""Residual recursions against the depth flow of a control (`thm:resnet-ode`).

    The error is the largest over layers of the grid's :math:`L^2` norm; it is at most
    :math:`C_T(\varepsilon + \|\theta^\varepsilon - \theta\|_{L^1})`
    (`eq:resnet-ode-convergent-control-bound`), and the claimed order is that of the bracket.

    Parameters
    ----------
    control
        :math:`t \mapsto` field, smooth.
    x, grid
        The input and its positions.
    depths
        Numbers of layers.
    schemes
        A study is made of each.
    horizon
        :math:`T`.

    Examples
    --------
    >>> from lim_jax.network.field import FeedForward
    >>> from lim_jax.grid import token_grid
    >>> field = FeedForward.init(2, key=jax.random.key(0))
    >>> x, depths = jnp.ones((3, 2)), (8, 16, 32, 64)
    >>> schemes = {"euler": Scheme()}
    >>> studies = trajectory_studies(lambda time: field, x, token_grid(3), depths, schemes)
    >>> studies["euler"].claimed
    1.0
    """
    times = np.unique(np.concatenate([np.linspace(0, horizon, n + 1) for n in depths]))

    def solution(flow: ContinuousFlow) -> np.ndarray:
        return np.asarray(eqx.filter_jit(flow.trajectory)(x, grid, jnp.asarray(times)).states)

    expected, check = (solution(flow) for flow in reference_flows(control, horizon))

    def study(scheme: Scheme) -> Study:
        def error(depth: int) -> float:
            found = jax.jit(
                lambda x: scheme.recursion(control, depth, horizon).trajectory(x, grid).states
            )(x)
            at = np.searchsorted(times, np.linspace(0, horizon, depth + 1) - 1e-12)
            return _largest_norm(np.asarray(found) - expected[at], grid)

        claimed = fit_order(depths, [scheme.rate(depth, horizon) for depth in depths]).value
        return refine(
            "eq:resnet-ode-convergent-control-bound",
            round(claimed, 2),
            depths,
            error,
            _largest_norm(check - expected, grid),
        )

    return {name: study(scheme) for name, scheme in schemes.items()}


def uniform_perturbation(
    direction: PyTree, size: Callable[[int], float]
) -> Callable[[int], PyTree]:
    r"""Add ``size(depth)`` times a direction to every layer: :math:`L^1` distance as the size."""
    return lambda depth: _along_depth(direction, np.full(depth, size(depth)))


def spike_perturbation(direction: PyTree, size: float = 1.0) -> Callable[[int], PyTree]:
    r"""Add a direction of fixed size to one layer in the middle: :math:`L^1` distance O(ε)."""
    return lambda depth: _along_depth(
        direction, np.where(np.arange(depth) == depth // 2, size, 0.0)
    )


def alternating_perturbation(
    direction: PyTree, size: Callable[[int], float]
) -> Callable[[int], PyTree]:
    r"""Add ``size(depth)`` times a direction with alternating sign: it averages out.

    The :math:`L^1` distance is that of `uniform_perturbation`, the flow moves by O(ε) times the
    size and its square only: convergence in :math:`L^1` is sufficient, not necessary.
    """
    return lambda depth: _along_depth(
        direction, size(depth) * np.where(np.arange(depth) % 2 == 0, 1.0, -1.0)
    )


def shadowing_study(
    make_layers: Callable[[int], PyTree],
    x: State,
    grid: Grid,
    depths: Sequence[int],
    *,
    horizon: float = 1.0,
    step: Step = euler,
) -> Study:
    r"""Layers without a limit against the flow that they drive themselves (`thm:resnet-ode`, end).

    The depth flow of the piecewise constant control is followed layer by layer, in 8 steps of
    `rk4` each. Order 1, though no common flow is approached. Steps that freeze the field within a
    layer attain their own order.

    Parameters
    ----------
    make_layers
        From the depth to its stacked layers, bounded but otherwise free.
    x, grid, depths, horizon, step
        As in `trajectory_studies` and `flow.ResidualFlow`.
    """

    def followed(count: int) -> Step:
        def substeps(field: Any, x: State, grid: Grid, increment: Array) -> State:
            return jax.lax.fori_loop(
                0, count, lambda _, x: rk4(field, x, grid, increment / count), x
            )

        return substeps

    def states(depth: int, step: Step) -> np.ndarray:
        def trajectory(x: State) -> Float[Array, "times length width"]:
            flow = ResidualFlow(make_layers(depth), horizon=horizon, step=step)
            return flow.trajectory(x, grid).states

        return np.asarray(jax.jit(trajectory)(x))

    def gap(depth: int, step: Step) -> float:
        return _largest_norm(states(depth, step) - states(depth, followed(8)), grid)

    own = gap(depths[0], followed(6))
    return refine("thm:resnet-ode", 1.0, depths, lambda depth: gap(depth, step), own)


def split_defect_study(field: Any, x: State, grid: Grid, depths: Sequence[int]) -> Study:
    r"""The defect of one split layer against one Euler step, at :math:`\varepsilon = 1/M`.

    :math:`\|d_k\| \le C_{split}\,\varepsilon^2` (`eq:discrete-residual-with-defect`). Both sides
    are exact, so there is no reference error.
    """

    @jax.jit
    def defect(increment: Float[Array, ""]) -> State:
        return split(field, x, grid, increment) - euler(field, x, grid, increment)

    def error(depth: int) -> float:
        return _norm(np.asarray(defect(1 / depth)), grid)

    return refine("eq:discrete-residual-with-defect", 2.0, depths, error, 0.0)


def split_gap_study(
    control: Control, x: State, grid: Grid, depths: Sequence[int], *, horizon: float = 1.0
) -> Study:
    r"""The split against the one-field recursion: M defects of size ε² make O(ε).

    The paper states the defects' size, not this.
    """

    def terminal(step: Step, depth: int) -> np.ndarray:
        found = jax.jit(lambda x: Scheme(step).recursion(control, depth, horizon)(x, grid))(x)
        return np.asarray(found)

    def error(depth: int) -> float:
        return _norm(terminal(euler, depth) - terminal(split, depth), grid)

    return refine("eq:discrete-residual-with-defect", None, depths, error, 0.0)


def input_adjoint_depth_studies(
    control: Control,
    terminal_loss: Callable[[State], Float[Array, ""]],
    x: State,
    grid: Grid,
    depths: Sequence[int],
    *,
    schemes: Mapping[str, Scheme],
    horizon: float = 1.0,
    delta: float = 0.2,
) -> dict[str, Study]:
    r"""The input adjoint, the density and the cone mass of layers against the depth flow's.

    - ``input adjoint``: :math:`P_0` in the grid's :math:`L^2`, against the adjoint equation
      (`eq:adjoint`) solved backward;
    - ``density``: the influence density m of one example, in :math:`L^1`;
    - ``regional averages``: the largest error of the three;
    - ``cone mass``: at the terminal state, the largest relative error over positions. The
      control's fields need an `attention`.

    All of order 1 for `euler` and `split`, as measured: the paper states no order. Keys are
    ``"<scheme>: <quantity>"``.
    """
    terminal = jnp.array(horizon)

    def quantities(adjoint: State, state: State) -> dict[str, Array]:
        energy = (adjoint**2).sum(axis=1)
        density = energy / integral(energy, grid)
        return {
            "input adjoint": adjoint,
            "density": density,
            "regional averages": regional_averages(density, boundary_regions(grid, delta)),
            "cone mass": cone_mass(control(terminal).attention, state, grid),
        }

    @eqx.filter_jit
    def of_flow(flow: ContinuousFlow) -> dict[str, Array]:
        found = continuous_adjoint(flow, terminal_loss, x, grid, jnp.zeros(1))
        return quantities(found.covectors[0], flow(x, grid))

    def of_layers(scheme: Scheme, depth: int) -> dict[str, Array]:
        flow = scheme.recursion(control, depth, horizon)
        found = adjoint_trajectory(flow, terminal_loss, x, grid)
        return quantities(found.covectors[0], found.states[-1])

    expected, check = (of_flow(flow) for flow in reference_flows(control, horizon))
    own = _distances(check, expected, grid)

    def studies(scheme: Scheme) -> dict[str, Study]:
        found = {depth: jax.jit(partial(of_layers, scheme, depth))() for depth in depths}
        errors = {depth: _distances(found[depth], expected, grid) for depth in depths}

        def study(name: str, source: str) -> Study:
            return refine(source, None, depths, lambda depth: errors[depth][name], own[name])

        return {name: study(name, source) for name, source in _QUANTITIES.items()}

    return {
        f"{label}: {name}": study
        for label, scheme in schemes.items()
        for name, study in studies(scheme).items()
    }


_QUANTITIES = {
    "input adjoint": "eq:adjoint",
    "density": "eq:influence-density",
    "regional averages": "eq:gd-left-average",
    "cone mass": "eq:cone-mass",
}


def _distances(found: dict[str, Array], expected: dict[str, Array], grid: Grid) -> dict[str, float]:
    found, expected = jax.tree.map(np.asarray, (found, expected))
    gap = {name: found[name] - expected[name] for name in found}
    weights = np.asarray(grid.weights)
    return {
        "input adjoint": float(np.sqrt(weights @ (gap["input adjoint"] ** 2).sum(axis=1))),
        "density": float(weights @ np.abs(gap["density"])),
        "regional averages": float(np.abs(gap["regional averages"]).max()),
        "cone mass": float(np.abs(gap["cone mass"] / expected["cone mass"]).max()),
    }


def reference_flows(
    control: Control, horizon: float = 1.0
) -> tuple[ContinuousFlow, ContinuousFlow]:
    """The depth flow, and the same by another method."""

    def flow(solver: diffrax.AbstractSolver) -> ContinuousFlow:
        return ContinuousFlow(
            control,
            horizon=horizon,
            solver=solver,
            stepsize_controller=diffrax.PIDController(rtol=1e-13, atol=1e-13),
        )

    return flow(diffrax.Dopri8()), flow(diffrax.Tsit5())


def _largest_norm(states: np.ndarray, grid: Grid) -> float:
    squares = (states**2).sum(axis=2) @ np.asarray(grid.weights)
    return float(np.sqrt(squares.max()))


def _along_depth(direction: PyTree, sizes: np.ndarray) -> PyTree:
    """On the host: each depth is a shape of its own, which JAX would compile for."""
    return jax.tree.map(
        lambda leaf: np.multiply.outer(sizes, np.asarray(leaf)).astype(leaf.dtype), direction
    )


def _norm(values: np.ndarray, grid: Grid) -> float:
    return _largest_norm(values[None], grid)
