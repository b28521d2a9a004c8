"""Layers to the depth flow: input adjoints, influence and cone mass, measured."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lim_jax._jit import filter_jit
from lim_jax.adjoint.adjoint_equation import continuous_adjoint
from lim_jax.adjoint.cone import cone_mass
from lim_jax.adjoint.sweep import Example, TerminalLoss, adjoint_trajectory
from lim_jax.grid.integrals import integral
from lim_jax.grid.measure import Grid
from lim_jax.grid.partition import boundary_regions, regional_averages
from lim_jax.limits.position import DELTA
from lim_jax.limits.refinement import Study, refine, require_rising
from lim_jax.limits.schemes import (
    Control,
    Flows,
    Scheme,
    reference_flows,
    require_reference_flows,
)
from lim_jax.network.continuous_flow import ContinuousFlow
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.slots import State


def input_adjoint_depth_studies(
    control: Control,
    terminal_loss: TerminalLoss,
    example: Example,
    grid: Grid,
    depths: Sequence[int],
    *,
    schemes: Mapping[str, Scheme],
    horizon: float = 1.0,
    references: Flows | None = None,
) -> dict[str, Study]:
    r"""Compare the input adjoint, density and cone mass of layers with those of the depth flow.

    Four studies of each scheme, all of order 1 for `euler` and `split`, as measured: the paper
    states no order.

    - ``"<scheme>: input adjoint"``: its error in the grid's :math:`L^2`, against the adjoint
      equation (`eq:adjoint`) solved backward;
    - ``"<scheme>: density"``: the error of one example's influence density m in :math:`L^1`;
    - ``"<scheme>: regional averages"``: the largest error of the density's three averages, with
      :math:`\delta = 1/5`;
    - ``"<scheme>: cone mass"``: the largest relative error over positions, at the terminal state.

    Parameters
    ----------
    control
        The depth flow's control, :math:`t \mapsto` field, from a depth time in [0, T]. The fields
        need an `attention`, whose cone mass is measured.
    terminal_loss
        A function ``terminal_loss(x, y)`` of the terminal state and the label to a number.
    example
        One pair of an initial state, (length, width), and a label of any kind.
    grid
        The positions of the state's rows.
    depths
        The refinements: numbers M of layers. A fitted order takes four or more.
    schemes
        By name, how the control becomes layers and how a layer is applied.
    horizon
        :math:`T`; the step is :math:`\varepsilon = T/M`.
    references
        Two depth flows to the horizon: the second is the limit, the first gives its error. By
        default `reference_flows`, to 1e-13. Where these do not reach T, they raise
        EquinoxRuntimeError: pass flows of a constant step.

    Returns
    -------
    dict[str, Study]
        The four studies of each scheme, by the names above, without bounds.

    Raises
    ------
    ValueError
        If depths are not whole numbers that rise, or the references are not two flows to `horizon`
        or are one flow twice.
    """
    require_rising(depths, "depths")
    terminal = jnp.array(horizon)

    @filter_jit  # not within the programs of the adjoints: one program serves every depth
    def quantities(adjoint: State, state: State) -> dict[str, Array]:
        """Return the input adjoint, its density with regional averages, and the cone mass."""
        energy = (adjoint**2).sum(axis=1)
        density = energy / integral(energy, grid)
        return {
            "input adjoint": adjoint,
            "density": density,
            "regional averages": regional_averages(density, boundary_regions(grid, DELTA)),
            "cone mass": cone_mass(control(terminal).attention, state, grid),
        }

    @filter_jit
    def ends_of_flow(flow: ContinuousFlow) -> tuple[State, State]:
        """Return the flow's input adjoint and last states."""
        adjoint = continuous_adjoint(flow, terminal_loss, example, grid, jnp.zeros(1))
        return adjoint.covectors[0], flow(example[0], grid)

    @filter_jit
    def ends_of_layers(flows: list[ResidualFlow]) -> list[tuple[State, State]]:
        """Return each recursion's input adjoint and last states."""
        adjoints = (adjoint_trajectory(flow, terminal_loss, example, grid) for flow in flows)
        return [(adjoint.covectors[0], adjoint.states[-1]) for adjoint in adjoints]

    flows = reference_flows(control, horizon) if references is None else references
    require_reference_flows(flows, horizon)
    check, expected = (quantities(*ends_of_flow(flow)) for flow in flows)
    limit_errors = _distances(check, expected, grid)
    studies = {}
    for label, scheme in schemes.items():
        ends = ends_of_layers([scheme.recursion(control, depth, horizon) for depth in depths])
        distances = [_distances(quantities(*end), expected, grid) for end in ends]
        for name, source in _QUANTITIES.items():
            errors = [distance[name] for distance in distances]
            studies[f"{label}: {name}"] = refine(source, None, depths, errors, limit_errors[name])
    return studies


_QUANTITIES = {
    "input adjoint": "eq:adjoint",
    "density": "eq:influence-density",
    "regional averages": "eq:gd-left-average",
    "cone mass": "eq:cone-mass",
}


def _distances(
    measured: dict[str, Array], expected: dict[str, Array], grid: Grid
) -> dict[str, float]:
    """Measure how far each quantity is from its expected value, each in a norm of its own."""
    measured, expected = jax.tree.map(np.asarray, (measured, expected))
    gap = {name: measured[name] - expected[name] for name in measured}
    weights = np.asarray(grid.weights)
    return {
        "input adjoint": float(np.sqrt(weights @ (gap["input adjoint"] ** 2).sum(axis=1))),
        "density": float(weights @ np.abs(gap["density"])),
        "regional averages": float(np.abs(gap["regional averages"]).max()),
        "cone mass": float(np.abs(gap["cone mass"] / expected["cone mass"]).max()),
    }
