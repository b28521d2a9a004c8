r"""The influence density and its indices, with standard errors over the data law.

With the energies :math:`\|P_0(p)\|^2` of examples

.. math:: I(p) = \mathbb E\,\|P_0(p)\|^2, \qquad Z = \int_0^1 I, \qquad m = I/Z

are the unnormalised density, the total and the influence density (`def:influence`). The density
is a ratio of expectations, not a mean of the examples' profiles; its standard errors are those
of the ratio, by linearisation, from what examples deviate from the common profile: where profiles
are alike, these are small differences, which a difference of sums of squares would lose.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_context
from jaxtyping import Array, Bool, Float, PyTree

from lim_jax._checks import (
    ARRAYS,
    as_finite_nonnegative,
    error_if_got,
    in_a_line,
    require,
    require_floats,
)
from lim_jax._jit import cached_jit, filter_jit
from lim_jax._precision import promote
from lim_jax.grid.measure import Grid, Scalar
from lim_jax.grid.partition import (
    REGIONS,
    Convention,
    Intervals,
    Regions,
    interval_weights,
    regional_averages,
    require_regions,
)

SHOWN = 6  # positions left out that a summary names
ROUNDING = 8  # so many times the precision what is computed in it may differ
ALIKE = "all examples have one profile: their errors say nothing of other examples"


class Indices(NamedTuple):
    r"""The paper's indices of a positional density, from `indices`.

    Attributes
    ----------
    left, middle, right
        The density's averages over the three regions (`eq:gd-left-average` and those below it).
    gap
        :math:`\Delta = \min(\bar m_L, \bar m_R) - \bar m_M`, Lost-in-the-Middle where positive.
    lim
        The stabilised index, no less than :math:`-1/((1 - 2\delta)\,\varepsilon_0)`.
    symmetric_contrast
        The contrast, in [-1, 1].
    """

    left: Scalar
    middle: Scalar
    right: Scalar
    gap: Scalar
    lim: Scalar
    symmetric_contrast: Scalar


@filter_jit
def indices(averages: Float[Array, "3"], epsilon: Scalar | float = 1e-8) -> Indices:
    r"""Compute :math:`\Delta_\delta`, LIM and SC from left, middle and right averages of a density.

    .. math:: \mathsf{LIM} = \frac{\Delta}{\min(\bar m_L, \bar m_R) + \varepsilon_0},\qquad
              \mathsf{SC} = \frac{\Delta}{\min(\bar m_L, \bar m_R) + \bar m_M + \varepsilon_0}

    `eq:gd-lim-gap`, `eq:gd-lim-index`, `eq:gd-lim-symmetric-contrast`. Of averages that are all
    zero LIM and SC are zero, also where :math:`\varepsilon_0` is. NaN passes on.

    Parameters
    ----------
    averages
        :math:`\bar m_L, \bar m_M, \bar m_R`, as `grid.regional_averages` returns them.
    epsilon
        :math:`\varepsilon_0`, finite and not negative; above zero, as 1e-8 by default, it keeps the
        denominators from zero.

    Returns
    -------
    Indices
        The three averages, the gap, LIM and the symmetric contrast, each a scalar.

    Raises
    ------
    ValueError
        If `averages` is no array of three floating-point numbers, or `epsilon` is no finite number
        or below zero.
    EquinoxRuntimeError
        If a traced `epsilon` is negative, NaN or infinite.

    Examples
    --------
    >>> values = indices(jnp.array([2.0, 0.5, 1.5]))
    >>> float(values.gap), round(float(values.lim), 4), float(values.symmetric_contrast) < 0.5
    (1.0, 0.6667, True)
    """
    require_floats(averages, "averages", "regions", regions=3)
    epsilon = as_finite_nonnegative(epsilon, "epsilon")
    left, middle, right = averages
    boundary = jnp.minimum(left, right)
    gap = boundary - middle
    lim = _ratio(gap, boundary + epsilon)
    contrast = _ratio(gap, boundary + middle + epsilon)
    return Indices(left, middle, right, gap, lim, contrast)


def _ratio(part: Scalar, whole: Scalar) -> Scalar:
    """Divide two numbers; return zero where both are zero."""
    return part / jnp.where((part == 0) & (whole == 0), 1, whole)


class Influence(eqx.Module):
    r"""Adjoint energies over the data law: their mean, and their scatter for standard errors.

    A sufficient statistic: two of them, of two batches, `merge` into that of both. With one example
    standard errors are infinite; where several are `alike` they are zero but for rounding, and
    `summary` says so.

    Of regions that leave positions out (`grid.Regions.without`), such as the last token, on which a
    last-token loss puts most influence, all results are of the rest: `total` is
    :math:`Z' = \int_{[0,1]\setminus X} I`, the density :math:`I/Z'` has integral one over the
    positions kept and is zero on the set X of those left out, and the average over a region is
    :math:`|B\setminus X|^{-1}\int_{B\setminus X} I/Z'`: of a uniform influence :math:`1/(1-|X|)`,
    which cancels in LIM and the contrast.

    Attributes
    ----------
    regions
        The regions of `regional_averages` and `indices`, which hold the grid.
    count
        The number of examples.
    energy
        :math:`I(p_i)`, the mean of :math:`\|P_0(p_i)\|^2` (`eq:unnormalized-influence-density`).
    energy_scatter, total_scatter
        Sums over examples of squares of deviations from the mean, of each energy and of the total
        :math:`Z_b`; in units of `unit` squared, as are those below.
    density_scatter, cross_scatter, regional_scatter
        Such sums of :math:`r_b = E_b - m\,Z_b`, by which an example's energy deviates from the
        common profile: of its squares, of its products with :math:`Z_b`, and of products of its
        integrals over the three regions.
    unit
        A power of two near the largest energy, by which squares neither underflow nor overflow; 1
        by default.
    example_energies
        :math:`\|P_0(p_i)\|^2` of every example (`keep_examples`), by which two influences of the
        same examples are compared (`results.compare`); None by default.
    """

    regions: Regions
    count: Scalar
    energy: Float[Array, " length"]
    energy_scatter: Float[Array, " length"]
    total_scatter: Scalar
    density_scatter: Float[Array, " length"]
    cross_scatter: Float[Array, " length"]
    regional_scatter: Float[Array, "3 3"]
    unit: Scalar = eqx.field(default=1.0, converter=jnp.asarray)
    example_energies: Float[Array, "examples length"] | None = None

    @classmethod
    @cached_jit
    def from_energies(
        cls,
        energies: Float[Array, "examples length"],
        regions: Regions,
        *,
        keep_examples: bool = False,
    ) -> "Influence":
        r"""Summarise energies from `adjoint_energies`, without another gradient.

        Parameters
        ----------
        energies
            :math:`\|P_0(p_i)\|^2` of every example, of shape ``(examples, length)``, finite and
            nowhere negative.
        regions
            Where to average; they hold the grid.
        keep_examples
            Whether the result keeps the energies; it does not by default.

        Returns
        -------
        Influence
            The influence over these examples.

        Raises
        ------
        ValueError
            If the energies have not a column for each position, or there is no example.
        EquinoxRuntimeError
            If an energy is negative, NaN or infinite.

        Examples
        --------
        >>> regions = lim.boundary_regions(lim.token_grid(4), 0.25)
        >>> energies = jnp.array([[1.0, 2.0, 3.0, 90.0]])
        >>> Influence.from_energies(energies, regions).density[:3].round(3).tolist()
        [0.042, 0.083, 0.125]
        """
        require_regions(regions)
        require_floats(energies, "energies", "examples length", length=regions.grid.size)
        energies = error_if_got(
            energies,
            "energies",
            got={"a number below zero": energies < 0, "NaN or infinity": ~jnp.isfinite(energies)},
            expected="finite numbers from 0 on",
            cure="Find where NaN or infinity come from, and pass squares of adjoints.",
        )
        return cls._from_energies(energies, jnp.ones(len(energies), bool), regions, keep_examples)

    @classmethod
    def _from_energies(
        cls,
        energies: Float[Array, "examples length"],
        counts: Bool[Array, " examples"],
        regions: Regions,
        keep_examples: bool,
    ) -> "Influence":
        """Compute the mean and the scatters of energies over the examples that count."""
        energies = promote(energies)
        regions = regions.in_single_precision
        shares = counts.astype(energies.dtype)[:, None]
        count = shares.sum()
        mean = (shares * energies).sum(axis=0) / count
        unit = _power_of_two(mean)
        deviations = shares * (energies - mean[None, :]) / unit
        # A sum, which accelerators take in full precision: a product's rounding is no deviation.
        totals = jnp.sum(deviations * regions.kept_weights[None, :], axis=1)
        profile = mean / _or_one(regions.kept_weights @ mean)
        changes = deviations - totals[:, None] * profile[None, :]
        regional = changes @ regions.weights.T
        return cls(
            regions,
            count,
            mean,
            energy_scatter=jnp.sum(deviations**2, axis=0),
            total_scatter=jnp.sum(totals**2),
            density_scatter=jnp.sum(changes**2, axis=0),
            cross_scatter=totals @ changes,
            regional_scatter=regional.T @ regional,
            unit=unit,
            example_energies=energies if keep_examples else None,
        )

    @property
    def grid(self) -> Grid:
        """The positions."""
        return self.regions.grid

    @property
    @filter_jit
    def total(self) -> Scalar:
        r""":math:`Z = \int I`. Grows like L for a last-token loss: report L with it."""
        return self.regions.kept_weights @ self.energy

    @property
    def degenerate(self) -> Bool[Array, ""]:
        """True where Z = 0: no position matters, and density and indices (all 0) mean nothing."""
        return self.total == 0

    @property
    @filter_jit
    def density(self) -> Float[Array, " length"]:
        """The influence density m (`eq:influence-density`); zero where degenerate or left out."""
        return jnp.where(self._kept, self.energy / _or_one(self.total), 0)

    @property
    @filter_jit
    def regional_integrals(self) -> Float[Array, "3"]:
        r"""The influence measure :math:`\mathcal I` of E_L, E_M, E_R (`eq:influence-measure`)."""
        return self.regions.weights @ self.energy

    def measure(self, intervals: Intervals, convention: Convention | None = None) -> Scalar:
        r"""Compute the influence measure :math:`\mathcal I(B)` of a union B of intervals [a, b).

        `eq:influence-measure`: additive over disjoint sets, and `total` for [0, 1). For its
        standard error take `probes.sample_mean` of `adjoint_energies` times `interval_weights`.

        Parameters
        ----------
        intervals
            Pairs ``(a, b)`` from 0 to 1, of numbers or of fractions as text, such as ``"3/8"``;
            what they share counts once.
        convention
            How an interval takes in positions, ``"overlap"`` or ``"points"``; by default as the
            regions do.

        Returns
        -------
        Array
            The measure, a scalar: the integral of the energy over the positions kept in the set.

        Raises
        ------
        ValueError
            If `intervals` are no such pairs, or `convention` has another name.

        Examples
        --------
        >>> regions = lim.boundary_regions(lim.token_grid(4), 0.25)
        >>> result = Influence.from_energies(jnp.array([[1.0, 2.0, 3.0, 4.0]]), regions)
        >>> float(result.measure([(0, "3/8"), ("3/4", 1)]))  # 1/4 + 2/8 + 4/4
        1.5
        """
        weights = interval_weights(self.grid, intervals, convention or self.regions.convention)
        return jnp.where(self._kept, weights, 0) @ self.energy

    @property
    @filter_jit
    def regional_averages(self) -> Float[Array, "3"]:
        """The density's averages over what is kept of E_L, E_M and E_R."""
        return regional_averages(self.density, self.regions)

    @property
    @filter_jit
    def energy_error(self) -> Float[Array, " length"]:
        """The standard error of `energy`."""
        return self.unit * self._standard_error(self.energy_scatter)

    @property
    @filter_jit
    def total_error(self) -> Scalar:
        """The standard error of `total`."""
        return self.unit * self._standard_error(self.total_scatter)

    @property
    @filter_jit
    def density_error(self) -> Float[Array, " length"]:
        r"""The standard error of `density`, from the deviations :math:`E_b - m\,Z_b`."""
        error = self._standard_error(self.density_scatter) / (_or_one(self.total) / self.unit)
        return jnp.where(self._kept, error, 0)

    @property
    @filter_jit
    def alike(self) -> Bool[Array, ""]:
        """True where several examples have one profile, up to rounding."""
        spread = self.unit * jnp.sqrt(self.density_scatter / self.count)
        close = spread <= ROUNDING * jnp.finfo(spread.dtype).eps * self.energy
        return (self.count > 1) & jnp.all(close | ~self._kept)

    @filter_jit
    def indices(self, epsilon: Scalar | float = 1e-8) -> Indices:
        r"""Compute the regional averages, gap, LIM and symmetric contrast of the density.

        Parameters
        ----------
        epsilon
            :math:`\varepsilon_0`, added to the denominators; 1e-8 by default.

        Returns
        -------
        Indices
            The indices, each a scalar.
        """
        return indices(self.regional_averages, epsilon)

    @filter_jit
    def index_errors(self, epsilon: Scalar | float = 1e-8) -> Indices:
        r"""Compute standard errors of `indices`, linearised: multiples of one profile have none.

        Parameters
        ----------
        epsilon
            :math:`\varepsilon_0`, added to the denominators; 1e-8 by default.

        Returns
        -------
        Indices
            The standard error of each index.
        """
        slopes = self._slopes(epsilon)
        scatters = jnp.sum((slopes @ self.regional_scatter) * slopes, axis=1)
        return Indices(*self._standard_error(scatters))

    def _deviations(self) -> Float[Array, "examples results"]:
        """Return what each kept example adds to density, total and `indices`, to first order."""
        energies = self.example_energies
        assert energies is not None
        weights = self.regions.kept_weights
        total = _or_one(self.total)
        changes = energies - self.energy[None, :]
        totals = (changes @ weights)[:, None]
        density_changes = changes - totals * (self.energy / total)[None, :]
        index_changes = (
            (density_changes / self.unit) @ self.regions.weights.T @ self._slopes(1e-8).T
        )
        return jnp.concatenate(
            [jnp.where(self._kept, density_changes / total, 0), totals, index_changes], axis=1
        )

    def _slopes(self, epsilon: Scalar | float) -> Float[Array, "6 3"]:
        """Differentiate `indices` in regional integrals of energies over the unit, at fixed Z."""
        total = _or_one(self.total) / self.unit
        slopes = jnp.stack(jax.jacfwd(indices)(self.regional_averages, epsilon))
        return slopes / (total * self.regions.weights.sum(axis=1))[None, :]

    def merge(self, other: "Influence") -> "Influence":
        """Pool with the influence of other examples, over the same regions of the same positions.

        Parameters
        ----------
        other
            The influence of the other examples, on a grid that may have other masks. Energies of
            single examples are kept where both have them.

        Returns
        -------
        Influence
            The influence over the examples of both.

        Raises
        ------
        ValueError
            If `other` is no influence, or over other regions.
        """
        regions = self.regions
        theirs = getattr(other, "regions", None)
        same = isinstance(theirs, Regions) and regions.same_as(theirs)
        require(
            same,
            "other",
            got=f"influence over {in_a_line(theirs)}" if theirs is not None else "no influence",
            expected=f"influence over {in_a_line(regions)}",
            cure="Measure both with the same regions, which contexts of two lengths do not have.",
        )
        examples = _concatenate(self.example_energies, other.example_energies)
        pooled = self._without_examples._pooled(other._without_examples)
        return replace(pooled, example_energies=examples)

    @filter_jit
    def _pooled(self, other: "Influence") -> "Influence":
        """Pool means and scatters with those of other examples."""
        count = self.count + other.count
        energy = self.energy + (other.energy - self.energy) * (other.count / count)
        unit = _power_of_two(energy)
        scatters = jax.tree.map(jnp.add, self._about(energy, unit), other._about(energy, unit))
        return Influence(self.regions, count, energy, **scatters, unit=unit)

    def _about(self, mean: Float[Array, " length"], unit: Scalar) -> dict[str, Array]:
        """Return the scatters about another mean and its profile, in another unit, by field."""
        kept_weights = self.regions.kept_weights
        weights = self.regions.weights
        shift = (self.energy - mean) / unit
        total = self.total / unit
        total_shift = jnp.sum(kept_weights * shift)
        profile_shift = self.energy / _or_one(self.total) - mean / _or_one(kept_weights @ mean)
        ratio = (self.unit / unit) ** 2
        # With the profile m' in place of m an example deviates by r'_b = r_b + (m - m') Z_b. The
        # squares and products of r'_b are expanded with sum_b r_b = 0, by which sum_b r_b Z_b is
        # the cross scatter, and with sum_b Z_b^2 = total_scatter + count Z^2.
        cross = ratio * self.cross_scatter
        totals = ratio * self.total_scatter
        squares = totals + self.count * total**2
        across = jnp.outer(weights @ cross, weights @ profile_shift)
        along = weights @ profile_shift
        return {
            "energy_scatter": ratio * self.energy_scatter + self.count * shift**2,
            "total_scatter": totals + self.count * total_shift**2,
            "density_scatter": (
                ratio * self.density_scatter
                + 2 * profile_shift * cross
                + profile_shift**2 * squares
            ),
            "cross_scatter": cross + profile_shift * (totals + self.count * total * total_shift),
            "regional_scatter": (
                ratio * self.regional_scatter
                + across
                + across.T
                + jnp.outer(along, along) * squares
            ),
        }

    def summary(self) -> str:
        """Return the numbers in a few lines of text, which `print` shows; while traced, the `repr`.

        Examples
        --------
        >>> energies = jnp.array([[1.0, 2.0, 4.0, 1.0], [3.0, 2.0, 2.0, 1.0]])
        >>> print(Influence.from_energies(energies, lim.boundary_regions(lim.token_grid(4), 0.25)))
        influence of 2 examples on 4 positions, delta = 0.25
                               left             middle              right
        density             1 ± 0.5        1.25 ± 0.25            0.5 ± 0
        gap -0.75 ± 0.25   LIM -1.5 ± 0.5   contrast -0.429 ± 0.0816
        total 2 ± 0
        """
        if not all_known(self) or self.energy.ndim > 1:
            return repr(self)
        with eval_context():  # inside another's trace too
            numbers, alike = self._numbers()
        count = int(self.count)
        left_out = self.regions.left_out
        examples = "1 example" if count == 1 else f"{count} examples"
        head = (
            f"influence of {examples} on {self.grid.size} positions, "
            f"delta = {float(self.regions.delta):g}"
        )
        if left_out:
            names = list(map(str, left_out[:SHOWN]))
            if len(left_out) > SHOWN:
                names.append("...")
            head += f", {len(left_out)} left out ({', '.join(names)})"
        if float(numbers[2]) == 0:
            head += "\nno position matters: all energies are zero"
        elif bool(alike):
            head += f"\n{ALIKE}"
        return "\n".join([head, *number_lines(*numbers)])

    def __str__(self) -> str:
        """Return what `summary` says."""
        return self.summary()

    def record(self) -> dict[str, Any]:
        """Return all results as plain numbers and strings."""
        (indices, index_errors, total, total_error), alike = self._numbers()
        return {
            "length": self.grid.size,
            "delta": float(self.regions.delta),
            "examples": int(self.count),
            "alike": bool(alike),
            "left_out": list(self.regions.left_out),
            "total": float(total),
            "total_error": float(total_error),
            "indices": numbers_by_name(indices),
            "index_errors": numbers_by_name(index_errors),
            "positions": self.grid.nodes.tolist(),
            "density": self.density.tolist(),
            "density_error": self.density_error.tolist(),
        }

    @filter_jit
    def _numbers(self) -> tuple[tuple[Indices, Indices, Scalar, Scalar], Bool[Array, ""]]:
        """Return what `summary` prints, from one program: indices, total, errors, and `alike`."""
        numbers = self.indices(), self.index_errors(), self.total, self.total_error
        return numbers, self.alike

    @property
    def _without_examples(self) -> "Influence":
        """Return a copy without the examples' energies."""
        return replace(self, example_energies=None)

    @property
    def _kept(self) -> Bool[Array, " length"]:
        """Tell which positions lie in the regions and are not left out."""
        return self.regions.kept_weights > 0

    def _standard_error(self, scatter: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the standard error of a mean; where it is zero its derivative is zero."""
        freedom = self.count * (self.count - 1)
        variance = scatter / jnp.where(freedom > 0, freedom, 1)
        # Rounding may leave the scatter of a merged average slightly negative.
        error = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1)), 0)
        return jnp.where(freedom > 0, error, jnp.inf)


def _or_one(total: Scalar) -> Scalar:
    """Return the total, or one where it is zero, to divide by."""
    return jnp.where(total == 0, 1, total)


def _power_of_two(energy: Float[Array, " length"]) -> Scalar:
    """Return the power of two next to half the largest entry, held fixed; one if all are zero."""
    largest = jax.lax.stop_gradient(energy.max())
    limits = jnp.finfo(energy.dtype)
    # Without bits of mantissa what is left is a power of two.
    power = jax.lax.reduce_precision(largest / 2, limits.nexp, 0)
    return jnp.where(largest > 0, jnp.maximum(power, limits.tiny), 1)


def number_lines(
    indices: Indices, index_errors: Indices, total: Scalar, total_error: Scalar
) -> list[str]:
    """Lay out regional averages, indices and total, each with its error."""
    left, middle, right, gap, lim, contrast = map(_with_error, indices, index_errors)
    return [
        " " * 8 + "".join(f"{region:>19s}" for region in REGIONS),
        "density " + "".join(f"{words:>19s}" for words in (left, middle, right)),
        f"gap {gap}   LIM {lim}   contrast {contrast}",
        f"total {_with_error(total, total_error)}",
    ]


def _with_error(value: Scalar, error: Scalar) -> str:
    """Return a number and its error in three digits."""
    return f"{float(value):.3g} ± {float(error):.3g}"


def numbers_by_name(values: Any) -> dict[str, float]:
    """Return the fields of a named tuple as plain numbers."""
    return {name: float(value) for name, value in values._asdict().items()}


def all_known(result: PyTree) -> bool:
    """Tell whether all leaves are arrays with values, and none is traced."""
    leaves = jax.tree.leaves(result)
    return all(isinstance(leaf, ARRAYS) and not isinstance(leaf, Tracer) for leaf in leaves)


def _concatenate(
    first: Float[Array, "_ length"] | None, second: Float[Array, "_ length"] | None
) -> Float[Array, "_ length"] | None:
    """Concatenate energies, on the host if known, so that no number of examples is compiled for."""
    if first is None or second is None:
        return None
    if all_known((first, second)):
        return jax.device_put(np.concatenate([first, second]))
    return jnp.concatenate([first, second])
