"""Tokens to the continuum: loss, adjoints and influence, of fields of position."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import as_int, error_if, require, require_positive
from lim_jax._jit import cached_jit, filter_jit
from lim_jax.adjoint.sweep import adjoint_trajectory, terminal_adjoint
from lim_jax.grid.cells import token_grid
from lim_jax.grid.integrals import integral
from lim_jax.grid.interpolation import cell_embedding
from lim_jax.grid.measure import Grid
from lim_jax.grid.panels import PanelGrid, gauss_grid
from lim_jax.grid.partition import boundary_regions, regional_averages
from lim_jax.limits.attention_error import (
    SMOOTH,
    MakeGrid,
    PositionField,
    References,
    require_references,
)
from lim_jax.limits.premises import require_lipschitz
from lim_jax.limits.refinement import Study, refine, require_rising, rounding_error
from lim_jax.loss.losses import cross_entropy
from lim_jax.loss.readouts import LinearReadout, TokenwiseReadout
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.slots import State

QueryDensity = Callable[[Float[Array, " points"]], Float[Array, " points"]]
Readout = Callable[[State, Grid], State]
SAMPLES = np.linspace(0.0, 1.0, 2001)  # where densities are looked at, and slopes are measured
INSIDE = 0.2  # from this position on errors of an input adjoint, which is singular at 0, are seen
DELTA = 0.2  # the width of the left and right regions over which influence is averaged
SINGULAR_AT_ZERO = (gauss_grid(24, panels=24), gauss_grid(28, panels=28))


def loss_study(
    logits: PositionField,
    labels: PositionField,
    sizes: Sequence[int],
    make_grid: MakeGrid = token_grid,
    *,
    query_density: QueryDensity | None = None,
    references: References = SMOOTH,
    lipschitz: bool = False,
) -> Study:
    r"""Compare the token-averaged with the continuum cross-entropy.

    `thm:loss-adjoint-continuum-error`: on tokens, for a `lipschitz` loss density g, the study has
    the theorem's order and its bound :math:`L_g/L` (`eq:cross-entropy-discrete-continuum-error`),
    measured with the largest slope of g at 2,001 points.

    Parameters
    ----------
    logits
        The logits as a field of position: from positions, (points,), to a row for each, (points,
        outputs).
    labels
        The labels as a field of position, of the logits' shape: the probabilities of the outputs.
    sizes
        The refinements L: numbers of positions, for which `make_grid` makes the grids. A fitted
        order takes four or more.
    make_grid
        From a size to its grid; by default `token_grid`, the only one on which anything is claimed.
    query_density
        :math:`\chi`, from positions, (points,), to a number for each, none negative: a density with
        respect to dp, of integral one. By default it is one everywhere.
        With it the loss is `eq:continuum-ar-loss`, for which the paper states no order; the bound
        is the slope of :math:`\chi g` over L, by its proof.
    references
        Two grids for the continuum: the second gives the limit, the first tells its error. By
        default 64 and 96 Gauss nodes on one panel, for smooth fields.
    lipschitz
        Whether you state that logits and labels, and with them g or :math:`\chi g`, are Lipschitz.
        By default nothing is stated, and nothing claimed.

    Returns
    -------
    Study
        The absolute error of the loss at each size.

    Raises
    ------
    ValueError
        If sizes are not whole numbers that rise, the query density has not a number for each
        position, is negative at one of 2,001 points or has another integral than one, the two
        references have the same nodes, or a density that is stated to be Lipschitz is not resolved
        as such at 25,600 points.

    Examples
    --------
    >>> logits = lambda p: jnp.stack([jnp.sin(3 * p), p], axis=1)
    >>> labels = lambda p: jnp.stack([p, 1 - p], axis=1)
    >>> study = loss_study(logits, labels, (10, 20, 40, 80), lipschitz=True)
    >>> study.verdict, abs(study.order.value - 1) < 0.15
    ('measured', True)
    """
    chi = query_density

    def loss(grid: Grid) -> Float[Array, ""]:
        """Compute the loss on one grid."""
        weights = None if chi is None else chi(grid.nodes)
        return cross_entropy(logits(grid.nodes), labels(grid.nodes), grid, weights)

    def density(p: Float[Array, " points"]) -> Float[Array, "points 1"]:
        """Compute the integrand of the loss at positions."""
        losses = -(labels(p) * jax.nn.log_softmax(logits(p))).sum(axis=1)
        return (losses if chi is None else chi(p) * losses)[:, None]

    require_rising(sizes, "sizes")
    require_references(references)
    _require_query_density(chi)
    if lipschitz:
        require_lipschitz(density, "logits, labels")
    grids = [*map(make_grid, sizes), *references]
    values = filter_jit(lambda grids: [loss(grid) for grid in grids])(grids)
    *losses, check_loss, expected = map(float, values)
    rounding = rounding_error(np.asarray(values[-1]), abs(expected))
    premises = lipschitz and make_grid is token_grid
    slope = _largest_slope(density) if premises else math.nan
    return refine(
        "eq:continuum-ar-loss" if chi is not None else "eq:cross-entropy-discrete-continuum-error",
        1.0 if premises and chi is None else None,
        sizes,
        [abs(value - expected) for value in losses],
        abs(check_loss - expected),
        (lambda size: slope / size) if premises else None,
        sampled=True,
        rounding=rounding,
    )


def _require_query_density(chi: QueryDensity | None) -> None:
    """Raise ValueError unless 2,001 positions have a number each, none negative, of mean one."""
    if chi is None:
        return
    values = np.asarray(filter_jit(chi)(jnp.asarray(SAMPLES)))
    require(
        values.shape == SAMPLES.shape,
        "query_density",
        got=f"shape {values.shape} at 2,001 positions",
        expected=f"shape {SAMPLES.shape}, a number for each",
        cure="Make a constant of that shape too, as jnp.ones_like(p) is.",
    )
    at = int(np.argmax(~(values >= 0)))
    require(
        bool((values >= 0).all()),
        "query_density",
        got=f"{values[at]:.3g} at {SAMPLES[at]:.3g}",
        expected="a density, nothing below zero",
        cure=(
            "Pass a function that is nowhere negative: it says which part of the loss each "
            "position has."
        ),
    )
    total = np.trapezoid(values, SAMPLES)
    # Between two points both the integral and the rule are between the least and the largest
    # value, so that they differ by no more than the density varies there, times the points' step.
    variation = np.abs(np.diff(values)).sum() * SAMPLES[1]
    rounding = rounding_error(values, float(values.max()))
    require(
        bool(abs(total - 1) <= variation + rounding),
        "query_density",
        got=f"an integral of {total:.4g}",
        expected="a density of integral one",
        cure="Divide it by its integral: it says which part of the loss each position has.",
    )


def _largest_slope(field: PositionField) -> float:
    """Return the largest absolute derivative of a field of one feature at the samples."""
    p = jnp.asarray(SAMPLES)
    _, slopes = filter_jit(lambda p: jax.jvp(field, (p,), (jnp.ones_like(p),)))(p)
    return float(jnp.abs(slopes).max())


def _steepest_secant(values: Float[Array, "points features"]) -> Float[Array, ""]:
    """Return the steepest slope of a field between neighbours of the samples."""
    steps = jnp.diff(values, axis=0)
    return jnp.linalg.norm(steps, axis=1).max() * (SAMPLES.size - 1)


def terminal_adjoint_study(
    readout: Callable[[int], Readout],
    limit: Readout,
    states: PositionField,
    labels: PositionField,
    sizes: Sequence[int],
    *,
    query_density: QueryDensity | None = None,
    references: References = SMOOTH,
    lipschitz: bool = False,
) -> Study:
    r"""Compare the embedded terminal adjoint of tokens with the continuum's, in :math:`L^2`.

    `eq:terminal-adjoint-discrete-continuum-error` of `thm:loss-adjoint-continuum-error`, between
    fields that are constant on cells (`eq:linear-readout-cellwise-consistency`;
    `rem:linear-readout-consistency`): order 1 if the readout's adjoint is consistent
    (`eq:readout-adjoint-consistency`). A window of w tokens, ``BandReadout(weight, w / (2 *
    size))``, tends to the tokenwise readout: at order ½ if rows or columns lose mass at its ends.

    Order and bound are claimed if :math:`P_T` is `lipschitz`, and the readout is `limit` itself at
    every size, a `LinearReadout` or a `TokenwiseReadout`. The bound :math:`\mathrm{Lip}(P_T)/L`,
    which `eq:linear-readout-first-order-bound` implies for linear readouts, is measured with the
    steepest secant between 2,001 points.

    Parameters
    ----------
    readout
        From a number of tokens to the readout of so many: a function ``(x, grid)`` from states,
        (length, width), to logits, (length, outputs).
    limit
        The tokenwise readout of the continuum.
    states
        The terminal states as a field X(p): from positions, (points,), to a row for each, (points,
        width).
    labels
        The labels as a field of position, (points, outputs): the probabilities of the outputs.
    sizes
        The refinements: numbers L of tokens. A fitted order takes four or more.
    query_density
        :math:`\chi`, from positions, (points,), to a number for each, none negative: a density with
        respect to dp, of integral one. By default it is one everywhere.
        With it the adjoint is `eq:continuum-ar-terminal-adjoint`, for which the paper states no
        order; the bound holds.
    references
        Two grids for the continuum: the second gives the limit, the first tells its error. By
        default 64 and 96 Gauss nodes on one panel, for smooth fields.
    lipschitz
        Whether you state that :math:`P_T` is Lipschitz, by logits, labels and the readout's
        derivative. By default nothing is stated, and nothing claimed.

    Returns
    -------
    Study
        The error of the adjoint density at each size, in :math:`L^2`.

    Raises
    ------
    ValueError
        If sizes are not whole numbers that rise, the query density has not a number for each
        position, is negative at one of 2,001 points or has another integral than one, the two
        references have the same nodes, or an adjoint that is stated to be Lipschitz is not resolved
        as such at 25,600 points.
    """
    require_rising(sizes, "sizes")
    require_references(references)
    _require_query_density(query_density)
    chi = query_density
    check, reference = references
    runs = [*((readout(size), token_grid(size)) for size in sizes), (limit, check)]

    def adjoint(readout: Readout, grid: Grid, p: Array | None = None) -> State:
        """Compute the terminal adjoint on a grid, at its nodes or at other positions."""
        p = grid.nodes if p is None else p
        example = (states(p), labels(p))
        weights = None if chi is None else chi(p)
        return terminal_adjoint(
            lambda x, y: cross_entropy(readout(x, grid), y, grid, weights), example, grid
        )

    def tokenwise_adjoint(p: Array) -> State:
        """Compute the limit's terminal adjoint at any positions, whatever the grid."""
        return adjoint(limit, token_grid(p.size), p)

    tokenwise = type(limit) in (LinearReadout, TokenwiseReadout)
    if lipschitz and tokenwise:
        require_lipschitz(tokenwise_adjoint, "states, labels")

    @cached_jit
    def measure() -> tuple[list[Array], Array]:
        """Return the error on each grid and the steepest slope of the limit."""
        exact = adjoint(limit, reference)
        steepest = _steepest_secant(_embedding(exact, reference, jnp.asarray(SAMPLES)))
        return _gaps(adjoint, runs, exact, reference), steepest

    (*gaps, check_gap), slope = jax.tree.map(float, measure())
    premises = lipschitz and tokenwise and all(readout(size) is limit for size in sizes)
    plain = "eq:terminal-adjoint-discrete-continuum-error"
    source = plain if chi is None else "eq:continuum-ar-terminal-adjoint"
    claimed = 1.0 if premises and chi is None else None
    bound = (lambda size: slope / size) if premises else None
    return refine(source, claimed, sizes, gaps, check_gap, bound, sampled=True)


def readout_consistency_study(
    readout: Callable[[int], Readout],
    limit: Readout,
    states: PositionField,
    residuals: PositionField,
    sizes: Sequence[int],
    *,
    references: References = SMOOTH,
    lipschitz: bool = False,
) -> Study:
    r"""Measure how consistent a readout's adjoint is, at any field of residuals :math:`\Delta`.

    :math:`\|\mathcal E_L(DH_L(X_L)^*\Delta_L) - DH(X)^*\Delta\|`, which by
    `eq:readout-adjoint-consistency` is at most :math:`C_R/L` for every Lipschitz :math:`\Delta`: a
    smaller order at one of them refutes it. For `residuals` that are `lipschitz`, and a
    `LinearReadout` that is `limit` itself at every size, the study has the order of
    `rem:linear-readout-consistency` and the bound :math:`\|W_{out}\|\,\mathrm{Lip}(\Delta)/L`
    (`eq:linear-readout-first-order-bound`), with the steepest secant between 2,001 points.

    Parameters
    ----------
    readout
        From a number of tokens to the readout of so many: a function ``(x, grid)`` from states,
        (length, width), to logits, (length, outputs).
    limit
        The readout of the continuum, which is applied on the panels of the references.
    states
        The states as a field X(p): from positions, (points,), to a row for each, (points, width).
    residuals
        :math:`\Delta`, a field of position with the logits' width, a density with respect to dp.
    sizes
        The refinements: numbers L of tokens. A fitted order takes four or more.
    references
        Two grids for the continuum: the second gives the limit, the first tells its error. By
        default 64 and 96 Gauss nodes on one panel, for smooth fields.
    lipschitz
        Whether you state that the residuals are Lipschitz. By default nothing is stated, and
        nothing claimed.

    Returns
    -------
    Study
        The error at each size, in :math:`L^2`.

    Raises
    ------
    ValueError
        If sizes are not whole numbers that rise, the two references have the same nodes, or
        residuals that are stated to be Lipschitz are not resolved as such at 25,600 points.

    Examples
    --------
    >>> readout, field = lim.LinearReadout(jnp.eye(2)), lambda p: jnp.stack([p, 2 * p], axis=1)
    >>> sizes = (10, 20, 40, 80)
    >>> study = readout_consistency_study(
    ...     lambda size: readout, readout, field, field, sizes, lipschitz=True
    ... )
    >>> abs(study.order.value - 1) < 0.01, study.verdict
    (True, 'measured')
    """
    require_rising(sizes, "sizes")
    require_references(references)
    if lipschitz:
        require_lipschitz(residuals, "residuals")
    check, reference = references
    runs = [*((readout(size), token_grid(size)) for size in sizes), (limit, check)]

    def adjoint(readout: Readout, grid: Grid) -> State:
        """Pull the residuals back through the readout on one grid."""
        _, pull = jax.vjp(lambda x: readout(x, grid), states(grid.nodes))
        weights = grid.weights[:, None]
        return pull(weights * residuals(grid.nodes))[0] / weights

    @cached_jit
    def measure() -> tuple[list[Array], Array]:
        """Return the error on each grid and the steepest slope of the residuals."""
        exact = adjoint(limit, reference)
        steepest = _steepest_secant(residuals(jnp.asarray(SAMPLES)))
        return _gaps(adjoint, runs, exact, reference), steepest

    (*gaps, check_gap), steepest = jax.tree.map(float, measure())
    source = "eq:readout-adjoint-consistency"
    same = all(readout(size) is limit for size in sizes)
    if not (lipschitz and same and type(limit) is LinearReadout):
        return refine(source, None, sizes, gaps, check_gap, sampled=True)
    assert isinstance(limit, LinearReadout)
    constant = float(np.linalg.norm(limit.weight, 2)) * steepest

    def bound(size: int) -> float:
        """Compute the bound at one size."""
        return constant / size

    return refine(source, 1.0, sizes, gaps, check_gap, bound, sampled=True)


def _gaps(
    adjoint: Callable[[Readout, Grid], State],
    runs: list[tuple[Readout, Grid]],
    exact: Array,
    reference: Grid,
) -> list[Array]:
    """Compute each run's distance in :math:`L^2` between its adjoint and the exact one."""
    rule = _fine_quadrature(reference)
    expected = _embedding(exact, reference, rule.nodes)
    fields = ((adjoint(*run), run[1]) for run in runs)
    return [rule.norm(_embedding(*field, rule.nodes) - expected) for field in fields]


def singularity_study(
    flow: ResidualFlow,
    terminal_loss: Callable[[State, Grid], Float[Array, ""]],
    states: PositionField,
    *,
    halvings: Sequence[int] = (50, 75, 100, 150, 198),
) -> Study:
    r"""Measure how the continuum's input adjoint grows at 0: like :math:`\log(1/q)^M`.

    At :math:`q = \tfrac34 2^{-h}` for every h of `halvings`, of which there are 198 at most, as the
    panels of the reference are halved no further.
    """
    halvings = [as_int(halving, "halvings", least=1, most=198) for halving in halvings]
    positions = 0.75 * 0.5 ** np.array(halvings, float)

    @filter_jit
    def sizes(grid: Grid) -> Float[Array, " points"]:
        """Compute the input adjoint's Euclidean norm at the positions."""
        example = states(grid.nodes), grid
        adjoint = adjoint_trajectory(flow, terminal_loss, example, grid).covectors[0]
        return jnp.linalg.norm(grid.interpolate(adjoint, jnp.asarray(positions)), axis=1)

    check, reference = (np.asarray(sizes(gauss_grid(order, panels=200))) for order in (4, 5))
    reference_error = float(np.abs(check - reference).max())
    study = refine(
        "eq:adjoint", None, (-np.log(positions)).tolist(), reference.tolist(), reference_error
    )
    return study._replace(xlabel="log(1/q)", ylabel="size of the input adjoint at q")


_SOURCES = {  # the label of each quantity
    "inside": "eq:adjoint",
    "global": "eq:adjoint",
    "density": "eq:influence-density",
    "regional averages": "eq:gd-left-average",
}


def input_adjoint_studies(
    flow: ResidualFlow,
    terminal_loss: Callable[[State, Grid], Float[Array, ""]],
    states: PositionField,
    sizes: Sequence[int],
    make_grid: MakeGrid = token_grid,
    *,
    references: References = SINGULAR_AT_ZERO,
) -> dict[str, Study]:
    """Compare the input adjoint and density of one example on tokens with the continuum."""
    require_rising(sizes, "sizes")
    require_references(references)
    check, reference = references
    grids = [*map(make_grid, sizes), check]

    @cached_jit
    def distances(
        reference: Grid, quadrature: _Quadrature, grids: list[Grid]
    ) -> list[dict[str, Array]]:
        """Compute the errors of adjoint, density and regional averages on every grid."""
        influence = partial(influence_of_field, flow, terminal_loss, states)
        exact, exact_density, exact_averages = influence(reference)
        exact_everywhere = _embedding(exact, reference, quadrature.nodes)
        exact_density_everywhere = _embedding(exact_density, reference, quadrature.nodes)

        def errors(grid: Grid) -> dict[str, Array]:
            """Compute the errors on one grid, by name."""
            adjoint, density, averages = influence(grid)
            gap = jnp.abs(adjoint - reference.interpolate(exact, grid.nodes))
            embed = partial(_embedding, grid=grid, positions=quadrature.nodes)
            density_gap = jnp.abs(embed(density) - exact_density_everywhere)
            return {
                "inside": jnp.where((grid.nodes >= INSIDE)[:, None], gap, 0).max(),
                "global": quadrature.norm(embed(adjoint) - exact_everywhere),
                "density": quadrature.weights @ density_gap,
                "regional averages": jnp.abs(averages - exact_averages).max(),
            }

        return [errors(grid) for grid in grids]

    by_grid = distances(reference, _fine_quadrature(reference), grids)
    *gaps, reference_errors = jax.tree.map(float, by_grid)
    return {
        name: refine(source, None, sizes, [gap[name] for gap in gaps], reference_errors[name])
        for name, source in _SOURCES.items()
    }


def influence_of_field(
    flow: ResidualFlow, terminal_loss: Callable, states: PositionField, grid: Grid
) -> tuple[State, Float[Array, " length"], Float[Array, "3"]]:
    """Return the input adjoint, its density and the density's regional averages."""
    trajectory = adjoint_trajectory(flow, terminal_loss, (states(grid.nodes), grid), grid)
    adjoint = trajectory.covectors[0]
    energy = (adjoint**2).sum(axis=1)
    density = energy / integral(energy, grid)
    return adjoint, density, regional_averages(density, boundary_regions(grid, DELTA))


def cesaro_study(strength: float, sizes: Sequence[int], terms: int = 80) -> Study:
    """Compare the flow of causal averaging with its closed form, from Bessel's I_1.

    Of so many `terms` of the exponential series at a positive `strength`; too few of them raise
    EquinoxRuntimeError.
    """
    require_positive(
        strength,
        "strength",
        expected="a positive finite number",
        cure="Try 1.0: the strength is the horizon of the flow.",
    )
    terms = as_int(terms, "terms", least=2)

    @filter_jit
    def error(grid: Grid) -> Array:
        """Compute the largest relative error on one grid of the series from the closed form."""

        def next_term(row: Array, k: Array) -> tuple[Array, Array]:
            """Compute the next term of the exponential series, and yield this one."""
            adjoint = jnp.cumsum((row * grid.weights / grid.nodes)[::-1])[::-1]
            return strength / k * adjoint, row

        last = jnp.zeros(grid.size).at[-1].set(1.0) / grid.weights
        next_row, series = jax.lax.scan(next_term, last, jnp.arange(1.0, terms))
        q = grid.centres()
        inside = (q > 0.05) & (q < 0.98)
        root = jnp.sqrt(strength * jnp.log(1 / jnp.where(inside, q, 0.5)))
        kernel = strength * jax.scipy.special.i1(2 * root) / root
        gap = jnp.abs(jnp.where(inside, series.sum(axis=0) / kernel - 1, 0)).max()
        next_share = jnp.where(inside, next_row / kernel, 0).max()
        return error_if(
            gap,
            next_share > jnp.sqrt(jnp.finfo(gap.dtype).eps),
            "terms: got too few of them, expected as many as the series needs at this strength. "
            "Take more: twice as many.",
        )

    return refine("eq:continuous-depth", None, sizes, [error(token_grid(n)) for n in sizes], 0.0)


def _embedding(values: Array, grid: Grid, positions: Float[Array, " points"]) -> Array:
    """Evaluate a field at other positions: constant on each cell, or a polynomial on panels."""
    if isinstance(grid, PanelGrid):
        return grid.interpolate(values, positions)
    return cell_embedding(values, grid, positions)


class _Quadrature(NamedTuple):
    """A rule for integrands that jump at the ends of cells and are singular at 0."""

    nodes: Float[Array, " points"]
    weights: Float[Array, " points"]

    def norm(self, values: Float[Array, "points width"]) -> Float[Array, ""]:
        """Compute the :math:`L^2` norm of values at the points."""
        return jnp.sqrt(self.weights @ (values**2).sum(axis=1))


def _fine_quadrature(reference: Grid) -> _Quadrature:
    """Make a Gauss rule on panels of width 1/512, halved towards 0, cut at the reference's."""
    breaks = np.concatenate([[0.0], 0.5 ** np.arange(32, 9, -1), np.arange(1, 513) / 512])
    if isinstance(reference, PanelGrid):
        breaks = np.union1d(breaks, reference.breaks)
    nodes, weights = np.polynomial.legendre.leggauss(6)
    widths = np.diff(breaks)[:, None]
    return _Quadrature(
        jnp.asarray((breaks[:-1, None] + widths * (nodes + 1) / 2).ravel()),
        jnp.asarray((widths * weights / 2).ravel()),
    )
