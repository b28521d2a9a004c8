"""Certificates: what a proposition says of data, and numbers compared beyond their rounding."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lim_jax._checks import require, require_known, require_several


class Premise(NamedTuple):
    """An assumption of a proposition, the number that it speaks of, and whether it is true.

    Attributes
    ----------
    statement
        The assumption in words.
    value
        The number that was computed for it.
    holds
        Whether the assumption is true of the data.
    """

    statement: str
    value: float
    holds: bool


class Inequality(NamedTuple):
    """A strict inequality of computed numbers, greater above lesser.

    Attributes
    ----------
    statement
        The inequality in words.
    greater
        The side that must be greater.
    lesser
        The side that must be less.
    rounding
        How far rounding may have moved the two sides: the root of the dtype's rounding unit times
        the sizes of what was added up.
    """

    statement: str
    greater: float
    lesser: float
    rounding: float

    @property
    def margin(self) -> float:
        """The difference of the two sides; not positive where the inequality fails."""
        return self.greater - self.lesser

    @property
    def roundings(self) -> float:
        """The margin over the rounding: it holds above 1, and from -1 to 1 it is a tie.

        Infinite where the rounding is zero and the margin is not.
        """
        if self.rounding > 0:
            return self.margin / self.rounding
        return math.copysign(math.inf, self.margin) if self.margin else 0.0

    @property
    def holds(self) -> bool:
        """Whether the margin is more than rounding."""
        return self.margin > self.rounding

    def record(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings."""
        derived = {name: getattr(self, name) for name in ("margin", "roundings", "holds")}
        return {**self._asdict(), **derived}


class Certificate(NamedTuple):
    """What a proposition says of the data.

    Its ``holds`` says whether premises and inequalities hold, so that the conclusion follows;
    ``concluded`` whether the conclusion is true on the data; ``margin`` is the least margin of the
    inequalities; ``record()`` has everything as plain numbers and strings. Print it to read it.

    Attributes
    ----------
    name
        The proposition's name.
    source
        The label of the proposition in the paper.
    premises
        The assumptions, each with its number.
    inequalities
        The criterion: all of them must hold.
    conclusion
        What follows, in words.
    measured
        The conclusion, measured apart from the criterion.
    vacuous
        Why no other side of the inequalities could have satisfied the criterion; empty if one
        could.
    decisive
        What would let a vacuous criterion decide; empty if it is not vacuous.
    """

    name: str
    source: str
    premises: tuple[Premise, ...]
    inequalities: tuple[Inequality, ...]
    conclusion: str
    measured: tuple[Inequality, ...]
    vacuous: str = ""
    decisive: str = ""

    def __str__(self) -> str:
        return certificate_table([self])

    @property
    def margin(self) -> float:
        """The least margin of the inequalities."""
        return min(inequality.margin for inequality in self.inequalities)

    @property
    def holds(self) -> bool:
        """Whether premises and inequalities hold, so that the conclusion follows."""
        conditions = (*self.premises, *self.inequalities)
        return not self.vacuous and all(condition.holds for condition in conditions)

    @property
    def concluded(self) -> bool:
        """Whether the conclusion is true on the data."""
        return all(inequality.holds for inequality in self.measured)

    def record(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings."""
        derived = {name: getattr(self, name) for name in ("margin", "holds", "concluded")}
        return {
            **self._asdict(),
            "premises": [premise._asdict() for premise in self.premises],
            "inequalities": [inequality.record() for inequality in self.inequalities],
            "measured": [inequality.record() for inequality in self.measured],
            **derived,
        }


def half_digits(precision: Any) -> float:
    """Return the square root of a dtype's rounding unit."""
    return math.sqrt(jnp.finfo(precision).eps)


def make_inequality(
    statement: str, greater: Any, lesser: Any, precision: Any, *, scale: Any = None
) -> Inequality:
    """Return an inequality of two numbers, whose rounding grows with `scale` or their sizes.

    Beside infinity nothing is a matter of rounding.
    """
    size = float(abs(greater) + abs(lesser) if scale is None else scale)
    rounding = half_digits(precision) * size if math.isfinite(size) else 0.0
    return Inequality(statement, float(greater), float(lesser), rounding)


def require_concrete(name: str, tree: PyTree, *, bounds: bool = False) -> None:
    """Raise ValueError for traced arrays and NaN, and for infinity except in bounds."""
    require_known(tree, name, "concrete numbers, as a certificate compares them")
    unfit = np.isnan if bounds else lambda leaf: ~np.isfinite(leaf)
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    floats = [array for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)]
    require(
        not any(unfit(array).any() for array in floats),
        name,
        got="NaN" if bounds else "NaN or infinite values",
        expected="numbers" if bounds else "finite ones",
        cure="Find where they come from: an inequality of them says nothing.",
    )


def certificate_table(certificates: Sequence[Certificate]) -> str:
    """Write certificates as text, a paragraph for each, with the margins of their inequalities.

    Parameters
    ----------
    certificates
        A list of certificates, at least one, as `primacy_noncancellation`, `recency_survival`,
        `right_biased_queries`, `exact_characterisation` and `double_deficit` return them.

    Returns
    -------
    str
        The paragraphs, their lines joined by line ends. A difference within rounding is marked as a
        tie.

    Raises
    ------
    ValueError
        If `certificates` is no list of certificates, or empty.
    """
    require_several(certificates, Certificate, "certificates", "Pass a list of them.")
    lines = []
    for certificate in certificates:
        verdict = "HOLDS" if certificate.holds else "does not hold"
        verdict = f"vacuous: {certificate.vacuous}" if certificate.vacuous else verdict
        lines.append(f"{certificate.name} ({certificate.source}): {verdict}")
        if certificate.vacuous:
            lines.append(f"    it could decide: {certificate.decisive}")
        for premise in certificate.premises:
            mark = "yes" if premise.holds else "NO"
            lines.append(f"    premise   {premise.statement}: {premise.value:.4g}  {mark}")
        for compared in certificate.inequalities:
            sides = f"{compared.greater:.4g} against {compared.lesser:.4g}"
            margin = f"margin {compared.margin:+.4g}{_tie(compared)}"
            lines.append(f"    compare   {compared.statement}: {sides}, {margin}")
        truth = "true" if certificate.concluded else "false"
        lines.append(f"    measured  {certificate.conclusion}: {truth}")
        for compared in certificate.measured:
            sides = f"{compared.greater:.4g}, {compared.lesser:.4g}{_tie(compared)}"
            lines.append(f"              {compared.statement}: {sides}")
    return "\n".join(lines)


def _tie(inequality: Inequality) -> str:
    """Return a remark if an inequality holds or fails within its rounding, else nothing."""
    return " (a tie)" if abs(inequality.margin) <= inequality.rounding else ""
