"""The paper's criteria of primacy and recency as certificates, computed from data.

Where one holds its conclusion does, if the bounds that it was given are true. These functions need
concrete numbers: call them outside `jax.jit`. NaN and infinity raise.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lim_jax._checks import (
    as_nonnegative,
    described,
    error_if,
    error_if_not_finite,
    in_a_line,
    require,
    require_floats,
    require_kind,
)
from lim_jax._precision import promote, unit_of
from lim_jax.adjoint.certificate import (
    Certificate,
    Premise,
    half_digits,
    make_inequality,
    require_concrete,
)
from lim_jax.adjoint.cone import JointCone, future_lengths
from lim_jax.adjoint.residual import GeneratorNorms
from lim_jax.adjoint.terminal_covectors import query_masses
from lim_jax.grid.cells import CellGrid
from lim_jax.grid.measure import Scalar, require_on_grid
from lim_jax.grid.partition import LEFT, MIDDLE, RIGHT, Regions, regional_averages, require_regions


class ConeBounds(NamedTuple):
    r"""The cone energy's averages over the left and the middle, with the bounds on them.

    Attributes
    ----------
    left_bound
        :math:`\kappa_L T^2 A_{E_L}`, at most `left` (`eq:cone-left-actual-lower-bound`).
    left
        The average of the cone energy over E_L.
    middle
        The average of the cone energy over E_M.
    middle_bound
        :math:`K_M T^2 A_{E_M}`, at least `middle` (`eq:cone-middle-actual-upper-bound`).
    """

    left_bound: float
    left: float
    middle: float
    middle_bound: float


def cone_bounds(cone: JointCone, regions: Regions) -> ConeBounds:
    r"""Bound the cone energy's average from below on the left, from above in the middle.

    With :math:`\kappa_L` the least :math:`\Gamma` over E_L and :math:`K_M` the largest
    :math:`|\Gamma|` over E_M (`eq:cone-left-joint-coercivity`, `eq:cone-middle-joint-upper-bound`).
    On a grid :math:`A_B` averages the square of the cone's own length, :math:`(L - j + 1)/L` on
    tokens, not of 1 - q (`eq:cone-geometric-region-factor`).

    Parameters
    ----------
    cone
        The result of `joint_cone`.
    regions
        The regions E_L, E_M and E_R, from `boundary_regions` on the cone's grid.

    Returns
    -------
    ConeBounds
        Both averages and both bounds, Python floats.

    Raises
    ------
    ValueError
        If `cone` is no `JointCone`, is traced, or has NaN or infinity, or the regions are not on
        its grid.
    """
    require_kind(cone, JointCone, "cone", "Take it from joint_cone.")
    require_regions(regions)
    require_on_grid(cone.energy, regions.grid, "cone.energy", "length")
    require_concrete("cone", cone)
    _require_same_grid(cone, regions)
    lowest, largest = _extremes(cone, regions)
    scale = float(cone.horizon) ** 2
    areas = np.asarray(regional_averages(cone.future**2, regions))
    energies = np.asarray(regional_averages(cone.energy, regions))
    below = lowest * scale * float(areas[LEFT])
    above = largest * scale * float(areas[MIDDLE])
    return ConeBounds(below, float(energies[LEFT]), float(energies[MIDDLE]), above)


def _require_same_grid(cone: JointCone, regions: Regions) -> None:
    """Raise ValueError unless the cone's futures are those of the regions' grid."""
    grid = regions.grid
    futures = np.asarray(cone.future, float)
    rounding = half_digits(cone.future.dtype)
    same = isinstance(grid, CellGrid) and np.allclose(futures, future_lengths(grid), rounding, 0)
    require(
        same,
        "regions",
        got=f"regions of {in_a_line(grid)}, whose positions have other futures",
        expected="regions of the cone's grid",
        cure="Make them by boundary_regions on the grid that joint_cone was given.",
    )


def _extremes(cone: JointCone, regions: Regions) -> tuple[float, float]:
    r"""Return :math:`\kappa_L` and :math:`K_M`, over the cells that the regions touch."""
    inside = np.asarray(regions.weights) > 0
    lowest = np.asarray(cone.lowest)
    largest = np.asarray(cone.largest)
    return float(lowest[inside[LEFT]].min()), float(largest[inside[MIDDLE]].max())


def _refuting_positions(cone: JointCone, regions: Regions) -> int:
    r"""Count the positions of E_L and E_M whose numbers contradict :math:`\Gamma`'s extremes."""
    inside = np.asarray(regions.weights) > 0
    area = (float(cone.horizon) * np.asarray(cone.future, float)) ** 2
    energy = np.asarray(cone.energy, float)
    least = area * np.asarray(cone.lowest, float)
    most = area * np.asarray(cone.largest, float)
    rounding = half_digits(cone.energy.dtype)
    below = inside[LEFT] & (energy < least - rounding * (np.abs(least) + energy))
    above = inside[MIDDLE] & (energy > most + rounding * (np.abs(most) + energy))
    # Of one integrand the least is nowhere beyond the largest size.
    apart = np.abs(least) > (1 + rounding) * most
    return int((below | above | ((inside[LEFT] | inside[MIDDLE]) & apart)).sum())


def primacy_noncancellation(cone: JointCone, regions: Regions) -> Certificate:
    r"""Certify primacy of the cone channel where contributions do not cancel.

    `prop:primacy-noncancellation`: :math:`\kappa_L A_{E_L} > K_M A_{E_M}`
    (`eq:cone-actual-primacy-condition`), the bounds of `cone_bounds`, implies that the cone energy
    is on average larger over E_L than over E_M. It is sufficient and far from necessary: causal
    averaging, which is primacy itself, fails it.

    Parameters
    ----------
    cone
        The result of `joint_cone`, concrete numbers.
    regions
        The regions E_L, E_M and E_R, from `boundary_regions` on the cone's grid.

    Returns
    -------
    Certificate
        The comparison of both bounds, with the factor :math:`T^2`; it is vacuous where
        :math:`\kappa_L` is not positive. One premise says whether :math:`\kappa_L` and :math:`K_M`
        bound the cone energy at all positions.

    Raises
    ------
    ValueError
        If `cone` is no `JointCone`, is traced, or has NaN or infinity, or the regions are not on
        its grid.
    """
    require_concrete("cone", cone)
    bounds = cone_bounds(cone, regions)
    precision = jnp.result_type(cone.energy)
    lowest, _ = _extremes(cone, regions)
    refuted = _refuting_positions(cone, regions)
    statement = "κ_L and K_M bound the cone energy, but at so many positions"
    bounding = Premise(statement, float(refuted), refuted == 0)
    vacuous = ""
    decisive = ""
    if lowest <= 0:
        vacuous = (
            f"some pair of contributions to the left cancels (κ_L = {lowest:.3g}), so its lower "
            "bound is not positive"
        )
        decisive = (
            "of a later depth, or wider or other regions, where no two contributions to the left "
            "point apart (κ_L > 0)"
        )
    return Certificate(
        name="primacy of the cone channel",
        source="prop:primacy-noncancellation",
        premises=(
            Premise("κ_L > 0: no cancellation on the left", lowest, lowest > 0),
            bounding,
        ),
        inequalities=(
            make_inequality(
                "κ_L T² A_L > K_M T² A_M", bounds.left_bound, bounds.middle_bound, precision
            ),
        ),
        conclusion="the cone energy averages more over the left than over the middle",
        measured=(
            make_inequality("mean of Q_cone, left > middle", bounds.left, bounds.middle, precision),
        ),
        vacuous=vacuous,
        decisive=decisive,
    )


class EnergyStability(NamedTuple):
    r"""Regional energies of :math:`P_T` and :math:`P_0`, and a bound on their differences.

    Each has three numbers, of the regions left, middle and right.

    Attributes
    ----------
    terminal
        :math:`\mathcal A_B(P_T)`, the average of :math:`\mathbb E\|P_T(p)\|^2` over a region.
    initial
        :math:`\mathcal A_B(P_0)`.
    bound
        The most that the two may differ by.
    """

    terminal: Float[Array, "3"]
    initial: Float[Array, "3"]
    bound: Float[Array, "3"]


def energy_stability(
    terminal: Float[Array, "examples length width"],
    initial: Float[Array, "examples length width"],
    amplification: Float[Array, " examples"],
    regions: Regions,
) -> EnergyStability:
    r"""Bound the change of regional squared energy from :math:`P_T` to :math:`P_0`.

    `eq:regional-squared-energy-stability`:

    .. math:: |\mathcal A_B(P_0) - \mathcal A_B(P_T)|
              \le \tfrac{1}{|B|}\,\mathbb E\bigl[(2c + c^2)\,\|P_T\|^2\bigr].

    Parameters
    ----------
    terminal
        :math:`P_T` of every example, densities, of shape ``(examples, length, width)``.
    initial
        :math:`P_0` of every example, densities, of the same shape.
    amplification
        c of every example, of shape ``(examples,)``, with :math:`\|P_0 - P_T\| \le c\,\|P_T\|` in
        the grid's norm (`eq:residual-stability-bound`): ``product`` or ``exponential`` of
        `residual.amplification`.
    regions
        The regions E_L, E_M and E_R, from `boundary_regions` on the covectors' grid.

    Returns
    -------
    EnergyStability
        Both energies and the bound, three numbers each.

    Raises
    ------
    ValueError
        If the covectors do not fit the regions' grid, or there is not one c for each example.
    EquinoxRuntimeError
        If a covector is NaN or infinite, or a c NaN, negative, or smaller than the covectors say.

    Examples
    --------
    >>> regions = lim.boundary_regions(lim.token_grid(3), "1/3")
    >>> ones = jnp.ones((1, 3, 1))
    >>> energies = energy_stability(ones, 1.5 * ones, jnp.array([0.5]), regions)
    >>> jnp.round(energies.initial - energies.terminal, 4).tolist()
    [1.25, 1.25, 1.25]
    >>> jnp.round(energies.bound, 4).tolist()
    [3.75, 3.75, 3.75]
    """
    stability, unit, change = _stability(terminal, initial, amplification, regions)
    stability = EnergyStability(*(energies * unit**2 for energies in stability))
    message = (
        "amplification: got a c that the covectors refute, expected |P_0 - P_T| <= c |P_T| in "
        "every example. Take it from residual.amplification, of the same layers and grid."
    )
    return error_if(stability, jnp.any(change.refuted), message)


class _Change(NamedTuple):
    r""":math:`\|P_0 - P_T\|/\|P_T\|` of every example, and whether the covectors refute its c."""

    ratio: Float[Array, " examples"]
    refuted: Bool[Array, " examples"]


def _stability(
    terminal: Array, initial: Array, amplification: Array, regions: Regions
) -> tuple[EnergyStability, Scalar, _Change]:
    """Check the arguments of `energy_stability`; return its result and every example's change.

    Energies are in units of the largest entry squared; the entry itself stands between the two.
    """
    require_regions(regions)
    axes = "examples length width"
    require_on_grid(terminal, regions.grid, "terminal", axes)
    examples, _, width = terminal.shape
    require_on_grid(initial, regions.grid, "initial", axes, examples=examples, width=width)
    require_floats(amplification, "amplification", "examples", examples=terminal.shape[0])
    terminal = error_if_not_finite(terminal, "terminal")
    initial = error_if_not_finite(initial, "initial")
    cure = "Pass bounds of norms, 0 for layers that change nothing."
    message = f"amplification: got NaN, expected a number or infinity. {cure}"
    amplification = error_if(amplification, jnp.isnan(amplification), message)
    amplification = as_nonnegative(amplification, "amplification", cure)
    regions = regions.in_single_precision
    weights = regions.grid.weights
    unit = unit_of((terminal, initial))
    squares, energy, change_bound = _mean_squares(terminal, initial, unit, amplification, weights)
    stability = EnergyStability(
        regional_averages(squares, regions),
        regional_averages(energy, regions),
        change_bound / regions.weights.sum(axis=1),
    )
    change = _change(terminal, initial, amplification, weights)
    # One region's energies may refute c where the change is within rounding of the whole norm.
    rounding = half_digits(_coarsest(terminal, initial, amplification))
    beyond = jnp.abs(stability.initial - stability.terminal) - stability.bound
    refuted = beyond > rounding * (stability.initial + stability.terminal)
    return stability, unit, change._replace(refuted=change.refuted | refuted.any())


def _coarsest(*arrays: Array) -> jnp.dtype:
    """Return the dtype of fewest digits, to whose rounding numbers of several are known."""
    return max((array.dtype for array in arrays), key=lambda dtype: jnp.finfo(dtype).eps)


@jax.jit
def _mean_squares(
    terminal: Array, initial: Array, unit: Scalar, amplification: Array, weights: Array
) -> tuple[Array, Array, Array]:
    r"""Return the mean :math:`\|P_T\|^2`, the mean :math:`\|P_0\|^2`, and the bound's numerator.

    All are in units of `unit` squared: squares of small covectors vanish.
    """
    terminal, initial, amplification = promote((terminal, initial, amplification))
    terminal, initial = (array / unit.astype(array.dtype) for array in (terminal, initial))
    squares = (terminal**2).sum(axis=2)
    growth = 2 * amplification + amplification**2
    change_bound = _times(growth, squares @ weights).mean()
    return squares.mean(axis=0), (initial**2).sum(axis=2).mean(axis=0), change_bound


@jax.jit
def _change(terminal: Array, initial: Array, amplification: Array, weights: Array) -> _Change:
    """Compute every example's relative change, and tell whether it is above c beyond rounding."""
    rounding = half_digits(_coarsest(terminal, initial, amplification))
    terminal, initial, amplification = promote((terminal, initial, amplification))
    # Squares of small covectors underflow: those of each example over its largest entry do not.
    largest = jnp.maximum(jnp.abs(terminal), jnp.abs(initial)).max(axis=(1, 2), keepdims=True)
    largest = jnp.where(largest > 0, largest, 1)

    def norm(covectors: Array) -> Float[Array, " examples"]:
        """Compute each example's norm in units of its largest entry."""
        return jnp.sqrt(((covectors / largest) ** 2).sum(axis=2) @ weights)

    before, after, distance = map(norm, (terminal, initial, initial - terminal))
    beyond = distance - _times(amplification, before)
    ratio = jnp.where(before > 0, distance / jnp.where(before > 0, before, 1), jnp.inf)
    return _Change(jnp.where(distance > 0, ratio, 0), beyond > rounding * (before + after))


def _times(factor: Array, size: Array) -> Array:
    """Return the product, zero where the size is zero, even if the factor is infinite."""
    return jnp.where(size > 0, factor * size, 0)


def recency_survival(
    terminal: Float[Array, "examples length width"],
    initial: Float[Array, "examples length width"],
    amplification: Float[Array, " examples *layers"] | GeneratorNorms,
    regions: Regions,
) -> Certificate:
    r"""Certify that a right-heavy terminal covector survives (`prop:regional-recency-persistence`).

    .. math:: \mathsf R_{\rm res} > \Bigl(\tfrac{1}{|E_R|} + \tfrac{1}{|E_M|}\Bigr)
              \mathbb E\bigl[(2c + c^2)\,\|P_T\|^2\bigr]

    implies that the influence is on average larger over E_R than over E_M, if
    :math:`\|P_0 - P_T\| \le c\,\|P_T\|`: a premise that fails where some example refutes it
    (`eq:regional-recency-survival-condition`, under `eq:recency-moment-condition`, which no sample
    tests: `probes.tail_index` of :math:`(2c + c^2)\|P_T\|^2` is well above 1 where it does not
    refute it). As :math:`\mathsf R_{\rm res} \le \mathbb E\|P_T\|^2/|E_R|`, it cannot hold where
    every :math:`(1+c)^2 \ge 1 + |E_M|/(|E_R| + |E_M|)`: with the paper's c, where
    :math:`T\Lambda \ge \tfrac12\log(1 + \frac{1-2\delta}{1-\delta})`.

    Parameters
    ----------
    terminal
        :math:`P_T` of every example, densities, of shape ``(examples, length, width)``.
    initial
        :math:`P_0` of every example, densities, of the same shape.
    amplification
        c of every example, of shape ``(examples,)``, from `residual.amplification`; infinity is
        accepted. It may also be its ``products``, of shape ``(examples, layers)``, whose first is
        c: a criterion that cannot hold then says at which depth it could. Of a continuous flow it
        is :math:`e^{TC} - 1`, of a proved :math:`C \ge |\zeta(t)|\,\|D\mathscr F_{\theta_t}\|`; or
        `generator_norms` of every example, by `vmap`, whose c is no bound between the sampled depth
        times, so that the certificate never holds.
    regions
        The regions E_L, E_M and E_R, from `boundary_regions` on the covectors' grid.

    Returns
    -------
    Certificate
        The comparison above; it is vacuous where every c is too large for it.

    Raises
    ------
    ValueError
        If a number is traced or NaN, a covector infinite, a covector not on the regions' grid, or
        there is not one c, or one row of products, for each example.
    EquinoxRuntimeError
        If a c is negative.
    """
    require_concrete("terminal and initial", (terminal, initial))
    require_concrete("amplification", amplification, bounds=True)
    amplification, sampling = _amplification_and_premise(amplification)
    later = _amplification_rows(amplification)
    stability, unit, relative_change = _stability(terminal, initial, later[:, 0], regions)
    # In Python's floats, whose range has the squares of all numbers in single precision.
    before, after, change = (float(unit) ** 2 * np.asarray(values, float) for values in stability)
    precision = _coarsest(terminal, initial, later)
    bound = float(change[RIGHT] + change[MIDDLE])
    contrast = float(before[RIGHT] - before[MIDDLE])
    ceiling = bearable_amplification(regions)
    least = later.min(axis=0).tolist()
    heavy = make_inequality("R_res > 0", before[RIGHT], before[MIDDLE], precision)
    vacuous = ""
    decisive = ""
    if least[0] >= ceiling:
        vacuous = (
            f"the layers may amplify too much: every c >= {least[0]:.3g}, and the criterion "
            f"cannot hold from c = {ceiling:.3g} on"
        )
        decisive = _enough_damping(least, ceiling)
    return Certificate(
        name="survival of recency",
        source="prop:regional-recency-persistence",
        premises=(
            Premise("R_res > 0: the terminal covector is right-heavy", contrast, heavy.holds),
            Premise(
                "E[(2c + c²) |P_T|²] is finite, as of every sample of finite c",
                bound,
                math.isfinite(bound),
            ),
            Premise(
                "c >= |P_0 - P_T| / |P_T| of every example, which is at most",
                float(relative_change.ratio.max()),
                not bool(relative_change.refuted.any()),
            ),
            *sampling,
        ),
        inequalities=(
            make_inequality(
                "R_res > (1/|E_R| + 1/|E_M|) E[(2c + c²) |P_T|²]",
                contrast,
                bound,
                precision,
                scale=before[RIGHT] + before[MIDDLE] + bound,
            ),
        ),
        conclusion="influence averages more over the right than over the middle",
        measured=(
            make_inequality("mean of I, right > middle", after[RIGHT], after[MIDDLE], precision),
        ),
        vacuous=vacuous,
        decisive=decisive,
    )


def _amplification_rows(amplification: Any) -> Float[Array, "examples layers"]:
    """Return c as a row for each example; raise unless it has one c or more, none negative."""
    require_floats(amplification, "amplification", "examples *layers", "Pass c of every example.")
    require(
        amplification.size > 0,
        "amplification",
        got=described(amplification),
        expected="at least one c for each example",
        cure="Pass c of each layer, which bounds a norm.",
    )
    rows = amplification.reshape(len(amplification), -1)
    return as_nonnegative(rows, "amplification", "Pass c of each layer, which bounds a norm.")


def _amplification_and_premise(
    amplification: Array | GeneratorNorms,
) -> tuple[Array, tuple[Premise, ...]]:
    """Return every example's c, and a premise that fails if c was measured at sampled times."""
    if not isinstance(amplification, GeneratorNorms):
        return amplification, ()
    statement = "c is a bound over all of depth, not measured at sampled times, as many as"
    times = float(amplification.times.shape[-1])
    return amplification.amplification, (Premise(statement, times, False),)


def bearable_amplification(regions: Regions) -> float:
    r"""Return :math:`\sqrt{1 + |E_M|/|E_R \cup E_M|} - 1`: from here `recency_survival` fails."""
    _, middle, right = (float(size) for size in regions.weights.sum(axis=1))
    return math.sqrt(1 + middle / (right + middle)) - 1


def _enough_damping(least: list[float], ceiling: float) -> str:
    """Say at which depth or delta recency could hold, given the least c from each depth on."""
    widest = math.sqrt(2) - 1  # the ceiling as delta tends to zero
    enough = [layers for layers, c in enumerate(least) if c < ceiling]
    if enough:
        advice = f"{enough[0]} layers later, from where c >= {least[enough[0]]:.3g}"
    elif len(least) > 1:
        advice = f"at no depth: the last layer alone has c >= {least[-1]:.3g}"
    else:
        advice = f"of a later depth, whose layers have c < {ceiling:.3g}"
    smaller = f"; or at a smaller delta (c < {widest:.3g} at 0)"
    return advice if least[0] >= widest else advice + smaller


def right_biased_queries(
    query_weights: Float[Array, " length"],
    residual_energies: Float[Array, " length"],
    terminal: Float[Array, "examples length width"],
    regions: Regions,
) -> Certificate:
    r"""Certify recency of the terminal covector from the loss's queries, by averages of squares.

    `eq:right-biased-squared-query-mass`, made sufficient. For a tokenwise readout
    :math:`\mathbb E\|P_T(i)\|^2 = \chi_i^2\rho_i` (`eq:finite-recency-energy-contrast`), so with
    :math:`\rho_- \le \rho_i \le \rho_+` over the queries of E_R and E_M,

    .. math:: \rho_-\,|E_R|^{-1}\int_{E_R}\chi^2 > \rho_+\,|E_M|^{-1}\int_{E_M}\chi^2

    implies :math:`\mathsf R_{\rm res} > 0`.

    Parameters
    ----------
    query_weights
        The loss's :math:`\alpha`, of shape ``(length,)``: not negative, with the sum one;
        :math:`\chi_i = \alpha_i/\Delta p_i` is their density.
    residual_energies
        :math:`\rho_i` from `readout_residual_energies`, of shape ``(length,)``, without query
        weights.
    terminal
        :math:`P_T` of every example, densities, of shape ``(examples, length, width)``, on which
        the conclusion is measured.
    regions
        The regions E_L, E_M and E_R, from `boundary_regions` on the loss's grid.

    Returns
    -------
    Certificate
        The comparison above. One premise says whether the energies of :math:`P_T` in the middle and
        on the right are :math:`\chi_i^2\rho_i`. It is vacuous where no query is in E_R, or some
        query there has :math:`\rho_i = 0`.

    Raises
    ------
    ValueError
        If a number is traced, NaN or infinite, or an array is not on the regions' grid.
    EquinoxRuntimeError
        If a query weight or a residual energy is negative, or the weights do not sum to one.
    """
    require_concrete("the numbers", (query_weights, residual_energies, terminal))
    squares = np.asarray(query_masses(query_weights, regions).squares)
    require_on_grid(residual_energies, regions.grid, "residual_energies", "length")
    residual_energies = as_nonnegative(
        residual_energies,
        "residual_energies",
        "Take them from readout_residual_energies: they are means of squares.",
    )
    require_on_grid(terminal, regions.grid, "terminal", "examples length width")
    is_query = np.asarray(query_weights) > 0
    weights = regions.grid.weights
    measured, expected = _measured_queries(query_weights, residual_energies, terminal, weights)
    precision = jnp.result_type(measured)
    energies = np.asarray(regional_averages(measured, regions))
    inside = np.asarray(regions.weights) > 0

    def energies_of_queries(region: int) -> np.ndarray:
        """Return the residual energies of a region's queries."""
        return np.asarray(residual_energies)[is_query & inside[region]]

    on_right = energies_of_queries(RIGHT)
    least = float(on_right.min()) if on_right.size else 0.0
    most = float(energies_of_queries(MIDDLE).max(initial=0.0))
    vacuous = ""
    decisive = ""
    if float(squares[RIGHT]) <= 0:
        vacuous = "no query asks in the right region"
        decisive = "under a loss that asks there, such as that of the last token"
    elif least == 0:
        vacuous = "some query of the right region has no readout residual (ρ = 0)"
        decisive = "without the queries of the right region that are answered for certain"
    return Certificate(
        name="right-biased queries",
        source="eq:right-biased-squared-query-mass",
        premises=(
            Premise("ρ₋ > 0 over the right queries", least, least > 0),
            _tokenwise_premise(measured, expected, regions),
        ),
        inequalities=(
            make_inequality(
                "ρ₋ mean of χ² on the right > ρ₊ mean of χ² in the middle",
                least * squares[RIGHT],
                most * squares[MIDDLE],
                precision,
            ),
        ),
        conclusion="R_res > 0: the terminal covector is right-heavy",
        measured=(
            make_inequality(
                "mean of |P_T|², right > middle", energies[RIGHT], energies[MIDDLE], precision
            ),
        ),
        vacuous=vacuous,
        decisive=decisive,
    )


def _tokenwise_premise(measured: Array, expected: Array, regions: Regions) -> Premise:
    """State that energies in the middle and on the right are those of a tokenwise readout."""

    def total(energies: Array) -> float:
        """Add the averages over the middle and the right, the two regions that are compared."""
        # Large energies on the left hide nothing there.
        return float(regional_averages(energies, regions)[MIDDLE:].sum())

    difference = total(jnp.abs(measured - expected))
    sizes = total(measured + expected)
    gap = difference / sizes if sizes > 0 else 0.0
    statement = "P_T's energies are χ² ρ in the middle and on the right, but for this part"
    return Premise(statement, gap, gap <= half_digits(jnp.result_type(measured)))


@jax.jit
def _measured_queries(
    query_weights: Array, residual_energies: Array, terminal: Array, weights: Array
) -> tuple[Array, Array]:
    r"""Return the mean :math:`\|P_T\|^2` and :math:`\chi^2\rho` at every position."""
    query_weights, residual_energies, terminal = promote(
        (query_weights, residual_energies, terminal)
    )
    measured = (terminal**2).sum(axis=2).mean(axis=0)
    return measured, (query_weights / weights) ** 2 * residual_energies
