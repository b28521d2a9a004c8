"""The limits in depth measured on one set of fields: their rows and costs."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lim_jax._jit import filter_jit
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Grid
from lim_jax.limits import depth as in_depth
from lim_jax.limits.depth_adjoints import input_adjoint_depth_studies
from lim_jax.limits.fields import WIDTH, smooth_states, terminal_loss
from lim_jax.limits.refinement import Study, refine_against, richardson
from lim_jax.limits.rows import Curve, Row
from lim_jax.limits.schemes import Scheme, perturbation, reference_flows
from lim_jax.network.continuous_flow import ContinuousFlow
from lim_jax.network.controls import linear_control
from lim_jax.network.field import TransformerField
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.norms import LayerNorm
from lim_jax.network.slots import State
from lim_jax.network.steps import euler, heun, rk4, split, strang
from lim_jax.network.tokenwise import FeedForward


def _random_fields(seed: int, count: int) -> TransformerField:
    """Draw stacked transformer fields with Gaussian weights of deviation 1/2."""
    generator = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        """Draw normal numbers of standard deviation 0.5, for every field at once."""
        return jnp.asarray(0.5 * generator.standard_normal((count, *shape)))

    def norm() -> LayerNorm:
        """Draw the layer norms of all fields."""
        return LayerNorm(normal(WIDTH), normal(WIDTH), 0.1)

    square = (1, WIDTH, WIDTH)
    return TransformerField(
        CausalAttention(norm(), normal(*square), normal(*square), normal(*square), normal(*square)),
        FeedForward(norm(), normal(7, WIDTH), normal(7), normal(WIDTH, 7), normal(WIDTH)),
    )


# Depth is refined on twelve tokens: the limits in depth hold on every grid.
_GRID = token_grid(12)


@filter_jit
def _end(flow: Callable[[State, Grid], State], x: State) -> State:
    """Return a flow's last states on the study's grid."""
    return flow(x, _GRID)


def _control(seed: int) -> Callable[[Array], TransformerField]:
    """Return the field as a function of time, linear between three random ones."""
    return linear_control(_random_fields(seed, 3))


def _depth_rows(depths: tuple[int, ...], quick: bool, seed: int) -> Iterator[Row]:
    """Yield the rows that refine depth: schemes, the split, and extrapolation."""
    schemes = {
        "Euler": Scheme(euler),
        "split": Scheme(split),
        "Heun, control in the middle": Scheme(heun, 0.5),
        "Strang, control in the middle": Scheme(strang, 0.5),
        "Runge-Kutta 4, control in the middle": Scheme(rk4, 0.5),
    }
    if quick:
        schemes = {name: schemes[name] for name in ("Euler", "split")}
    reasons = {
        "Heun": "a step of order 2 with layers sampled in the middle, not at t_k",
        "Strang": "a symmetric layer of Heun steps with layers sampled in the middle",
        "Runge-Kutta 4": "layers that do not change within a step see the control to order 2",
    }
    x = smooth_states(_GRID.nodes)
    studies = in_depth.trajectory_studies(_control(seed), x, _GRID, depths, schemes)
    for name, study in studies.items():
        scheme, _, where = name.partition(": ")
        reason = reasons.get(scheme.partition(",")[0], "") if where == "on layers" else ""
        yield Row(f"trajectory, {name}", study, 2 if reason else 1, reason)
    field = _control(seed)(jnp.array(0.0))
    yield Row("split, defect of a layer", in_depth.split_defect_study(field, x, _GRID, depths), 2)
    if quick:
        return
    study = _extrapolated_depth(depths, seed)
    yield Row("trajectory, Euler, Richardson", study, 2, "two depths cancel")
    study = in_depth.split_gap_study(_control(seed), x, _GRID, depths)
    yield Row("split, against one-field", study, 1)


def _extrapolated_depth(depths: tuple[int, ...], seed: int) -> Study:
    """Study the terminal state of Euler's recursion, extrapolated from two depths."""
    x = smooth_states(_GRID.nodes)

    def terminal(depth: int) -> State:
        """Return the last states of the recursion at one depth."""
        return _end(Scheme().recursion(_control(seed), depth, 1.0), x)

    limits = (_end(flow, x) for flow in reference_flows(_control(seed)))
    source = "eq:resnet-ode-convergent-control-bound"
    return refine_against(source, depths, map(richardson(terminal), depths), limits)


def _control_rows(depths: tuple[int, ...], seed: int) -> Iterator[Row]:
    """Yield the rows of perturbed controls: only biases move, so the L^1 distance is exact."""
    zero = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), _random_fields(0, 1))
    direction = eqx.tree_at(lambda f: f.feed_forward.outer_bias, zero, jnp.ones(WIDTH))

    sizes = {
        "uniform, size sqrt(eps)": lambda depth: np.full(depth, depth**-0.5),
        "one spike of fixed size": lambda depth: 1.0 * (np.arange(depth) == depth // 2),
        "alternating, size sqrt(eps)": lambda depth: depth**-0.5 * (-1.0) ** np.arange(depth),
    }
    schemes = {name: Scheme(perturbation=perturbation(direction, sizes[name])) for name in sizes}
    x = smooth_states(_GRID.nodes)
    studies = in_depth.trajectory_studies(_control(seed), x, _GRID, depths, schemes)
    reason = "an alternating change averages out: L^1 convergence is sufficient, not necessary"
    for name, study in studies.items():
        order = 0.5 if name.startswith("uniform") else 1
        yield Row(f"perturbed control, {name}", study, order, reason if "alter" in name else "")


def _shadowing_rows(depths: tuple[int, ...], seed: int) -> Iterator[Row]:
    """Yield the rows of layers that alternate between two fields: no control is a limit in L^1."""
    x = smooth_states(_GRID.nodes)
    two = _random_fields(3 + seed, 2)

    def alternating_layers(depth: int) -> TransformerField:
        """Return so many layers, the two fields by turns."""
        return jax.tree.map(lambda leaf: leaf[jnp.arange(depth) % 2], two)

    for name, step in {"Euler": euler, "split": split}.items():
        study = in_depth.shadowing_study(alternating_layers, x, _GRID, depths, step=step)
        yield Row(f"shadowing without a limit, {name}", study, 1)


def _depth_adjoint_rows(depths: tuple[int, ...], seed: int) -> Iterator[Row]:
    """Yield the rows of the input adjoint, its density and the cone mass, as depth is refined."""
    schemes = {"Euler": Scheme(euler), "split": Scheme(split)}
    example = smooth_states(_GRID.nodes)
    studies = input_adjoint_depth_studies(
        _control(seed), terminal_loss, (example, _GRID), _GRID, depths, schemes=schemes
    )
    for name, study in studies.items():
        yield Row(f"in depth, {name}", study, 1)


# By the names of their groups.
LAYER_ROWS: dict[str, Callable[..., Iterator[Row]]] = {
    "depth": _depth_rows,
    "controls": _control_rows,
    "shadowing": _shadowing_rows,
    "adjoint-in-depth": _depth_adjoint_rows,
}


def depth_costs(depths: Iterable[int], seed: int = 0) -> list[Curve]:
    """Measure terminal errors of depth schemes against evaluations of one field, fixed in depth."""
    depths = tuple(depths)
    field = _control(seed)(jnp.array(0.0))
    x = smooth_states(_GRID.nodes)
    _, flow = reference_flows(lambda time: field)
    exact = _end(flow, x)

    def terminal(step: Callable, depth: int) -> State:
        """Return the last states of the recursion by one kind of step."""
        return _end(Scheme(step).recursion(lambda time: field, depth, 1.0), x)

    methods = {
        "Euler": (1, partial(terminal, euler)),
        "split": (1, partial(terminal, split)),
        "Richardson on Euler": (3, richardson(partial(terminal, euler))),
        "Heun": (2, partial(terminal, heun)),
        "Strang": (4, partial(terminal, strang)),
        "Runge-Kutta 4": (4, partial(terminal, rk4)),
    }
    curves = [
        Curve.against(exact, name, {cost * depth: values(depth) for depth in depths})
        for name, (cost, values) in methods.items()
    ]
    return [*curves, _adaptive_curve(field, x, exact)]


def _adaptive_curve(field: Any, x: State, exact: State) -> Curve:
    """Measure Tsitouras' adaptive method, at six evaluations for each step, rejected or not."""

    def solve(tolerance: float) -> tuple[float, float]:
        """Return the number of evaluations that a tolerance takes, and the terminal error."""
        flow = ContinuousFlow(
            lambda time: field,
            stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        )
        solution = flow.solve(x, _GRID)
        assert solution.ys is not None
        error = float(jnp.abs(solution.ys[-1] - exact).max())
        return 6.0 * float(solution.stats["num_steps"]) + 1, error

    costs, errors = zip(*map(solve, (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)), strict=True)
    return Curve("Tsitouras 5, adaptive", costs, errors)
