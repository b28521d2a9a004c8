"""Tokens to the continuum: cone masses, the true ones and those that are printed."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lim_jax._checks import require
from lim_jax._jit import filter_jit
from lim_jax.adjoint.cone import cone_mass
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Grid
from lim_jax.grid.panels import gauss_grid
from lim_jax.grid.partition import boundary_regions, regional_averages
from lim_jax.limits.attention_error import MakeGrid, PositionField, References, require_references
from lim_jax.limits.refinement import Study, refine, refine_against, require_rising
from lim_jax.network.multihead import CausalAttention

QUARTERS = (0.25, 0.5, 0.75)
FOUR_PANELS = (gauss_grid(32, panels=4), gauss_grid(40, panels=4))


def cone_mass_study(
    attention: CausalAttention,
    states: PositionField,
    sizes: Sequence[int],
    make_grid: MakeGrid = token_grid,
    *,
    positions: tuple[float, ...] = QUARTERS,
    references: References = FOUR_PANELS,
) -> Study:
    r"""Compare the density cone mass of tokens with that of the continuum.

    The mass is :math:`\int_q^1\|K(p,q)\|^2 dp` (`eq:cone-mass`). The errors are the largest
    relative ones at a few positions, to which cone masses in the operator norm are interpolated
    from the nodes. The paper states no order.

    Parameters
    ----------
    attention
        One attention sublayer, whose arrays have no layer axis.
    states
        The input as a field X(p): from positions, (points,), to a row for each, (points, width).
    sizes
        The refinements: numbers of positions, for which `make_grid` makes the grids.
    make_grid
        From a size to its grid; by default `token_grid`.
    positions
        The positions q between 0 and 1 at which masses are compared, by default 1/4, 1/2 and 3/4.
        The mass grows like 1/q at 0, and is zero at 1.
    references
        Two grids for the continuum: the second gives the limit, the first tells its error. By
        default 32 and 40 Gauss nodes on each of four panels.

    Returns
    -------
    Study
        The largest relative error at each refinement, without a claimed order or a bound.

    Raises
    ------
    ValueError
        If sizes are not whole numbers that rise, a position is not between 0 and 1 or there is
        none, or the two references have the same nodes.
    """
    require_rising(sizes, "sizes")
    require_references(references)
    inside = all(0 < position < 1 for position in positions)
    require(
        len(positions) > 0 and inside,
        "positions",
        got=f"{positions}",
        expected="positions between 0 and 1, at least one",
        cure="Pass positions above 0, where the mass has no bound, and below 1, where it is zero, "
        "such as [0.25, 0.5, 0.75].",
    )
    at = jnp.asarray(np.array(positions))

    @filter_jit
    def relative(grids: Sequence[Grid]) -> list[Array]:
        """Compute each grid's cone masses, divided by those of the last."""
        masses = [
            grid.interpolate(cone_mass(attention, states(grid.nodes), grid), at) for grid in grids
        ]
        return [mass / masses[-1] for mass in masses]

    *masses, check, exact = relative([*map(make_grid, sizes), *references])
    return refine_against("eq:cone-mass", sizes, masses, (check, exact))


def printed_cone_mass_study(
    attention: CausalAttention, states: PositionField, sizes: Sequence[int]
) -> Study:
    """Measure `eq:finite-cone-mass-estimator` as it is printed: it falls like :math:`L^{-2}`."""

    @filter_jit
    def largest(grid: Grid) -> Array:
        """Return the largest cone mass at the quarters, in the paper's finite normalisation."""
        masses = cone_mass(attention, states(grid.nodes), grid, normalisation="finite")
        return grid.interpolate(masses, jnp.array(QUARTERS)).max()

    source = "eq:finite-cone-mass-estimator"
    return refine(source, None, sizes, [largest(token_grid(n)) for n in sizes], 0.0)


def left_cone_mass_study(
    attention: CausalAttention, states: PositionField, sizes: Sequence[int], *, delta: float = 0.2
) -> Study:
    r"""Measure by how much the left region's average of the cone mass grows when L doubles.

    The density (`eq:cone-mass`) grows like 1/q at 0, which has no integral: the average grows like
    log L, and what a doubling adds falls at order 0, to a constant and not to zero.

    Parameters
    ----------
    attention
        One attention sublayer, whose arrays have no layer axis.
    states
        The input as a field X(p): from positions, (points,), to a row for each, (points, width).
    sizes
        Numbers L of tokens; each is measured on L and on 2 L tokens.
    delta
        The width :math:`\delta` of the left region :math:`[0, \delta)`, below one half.

    Returns
    -------
    Study
        What the doubling adds to the average, in place of an error, at each L; without a claimed
        order or a bound.

    Raises
    ------
    ValueError
        If sizes are not whole numbers that rise, or `delta` is not between 0 and one half.
    """
    require_rising(sizes, "sizes")

    @filter_jit
    def average(grid: Grid) -> Array:
        """Average the cone mass over the left region."""
        masses = cone_mass(attention, states(grid.nodes), grid)
        return regional_averages(masses, boundary_regions(grid, delta))[0]

    averages = {n: float(average(token_grid(n))) for n in {*sizes, *(2 * size for size in sizes)}}
    growth = [averages[2 * n] - averages[n] for n in sizes]
    study = refine("eq:cone-mass", None, sizes, growth, 0.0)
    return study._replace(ylabel="growth of the average from n to 2n positions")
