"""Layers to the depth flow: input adjoints, influence and cone mass, measured."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lim_jax._checks import require
from lim_jax._errors import filter_jit
from lim_jax.adjoint.cone import cone_mass
from lim_jax.adjoint.continuous import continuous_adjoint
from lim_jax.adjoint.sweep import Example, TerminalLoss, adjoint_trajectory
from lim_jax.grid.integrals import integral
from lim_jax.grid.measure import Grid
from lim_jax.grid.partition import boundary_regions, regional_averages
from lim_jax.limits.refinement import Study, refine
from lim_jax.limits.schemes import Control, Flows, Scheme, reference_flows
from lim_jax.network.continuous import ContinuousFlow
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
    delta: float = 0.2,
    references: Flows | None = None,
) -> dict[str, Study]:
    r"""The input adjoint, the density and the cone mass of layers against the depth flow's.

    - ``input adjoint``: :math:`P_0` in the grid's :math:`L^2`, against the adjoint equation
      (`eq:adjoint`) solved backward;
    - ``density``: the influence density m of one example, in :math:`L^1`;
    - ``regional averages``: the largest error of the three;
    - ``cone mass``: at the terminal state, the largest relative error over positions. The
      control's fields need an `attention`.

    All of order 1 for `euler` and `split`, as measured: the paper states no order. Keys are
    ``"<scheme>: <quantity>"``; `references` are as in `trajectory_studies`.
    """
    terminal = jnp.array(horizon)

    @filter_jit  # apart from the adjoints: one program, whatever the depth
    def quantities(adjoint: State, state: State) -> dict[str, Array]:
        energy = (adjoint**2).sum(axis=1)
        density = energy / integral(energy, grid)
        return {
            "input adjoint": adjoint,
            "density": density,
            "regional averages": regional_averages(density, boundary_regions(grid, delta)),
            "cone mass": cone_mass(control(terminal).attention, state, grid),
        }

    @filter_jit
    def ends_of_flow(flow: ContinuousFlow) -> tuple[State, State]:
        found = continuous_adjoint(flow, terminal_loss, example, grid, jnp.zeros(1))
        return found.covectors[0], flow(example[0], grid)

    @filter_jit
    def ends_of_layers(flows: list[ResidualFlow]) -> list[tuple[State, State]]:
        found = (adjoint_trajectory(flow, terminal_loss, example, grid) for flow in flows)
        return [(adjoint.covectors[0], adjoint.states[-1]) for adjoint in found]

    flows = _references(references, control, horizon)
    check, expected = (quantities(*ends_of_flow(flow)) for flow in flows)
    own = _distances(check, expected, grid)

    def studies(scheme: Scheme) -> dict[str, Study]:
        flows = [scheme.recursion(control, depth, horizon) for depth in depths]
        found = (_distances(quantities(*ends), expected, grid) for ends in ends_of_layers(flows))
        errors = dict(zip(depths, found, strict=True))

        def study(name: str, source: str) -> Study:
            return refine(source, None, depths, lambda depth: errors[depth][name], own[name])

        return {name: study(name, source) for name, source in _QUANTITIES.items()}

    return {
        f"{label}: {name}": study
        for label, scheme in schemes.items()
        for name, study in studies(scheme).items()
    }


def _references(references: Flows | None, control: Control, horizon: float) -> Flows:
    """One's own flows, refused if they end elsewhere; or those of the control."""
    flows = reference_flows(control, horizon) if references is None else references
    require(
        all(flow.horizon == horizon for flow in flows),
        "references",
        got=f"flows to {', '.join(f'{flow.horizon:g}' for flow in flows)}",
        expected=f"two depth flows to {horizon:g}",
        cure="Pass the horizon of the study.",
    )
    return flows


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
