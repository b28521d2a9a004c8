"""Results in words and digits, as a page says them."""

from typing import Any

import numpy as np

from lim_jax._checks import require
from lim_jax.adjoint.certificate import Certificate
from lim_jax.density.statistics import Influence
from lim_jax.grid.partition import REGIONS
from lim_jax.results.percentages import error_words

SAYING = {
    "held": "Its premises and inequalities hold here, so it follows: {conclusion}.",
    "failed": "What it asks for is not so here, so nothing follows.",
    "vacuous": "It could not have held here: {vacuous}.",
}
QUESTIONS = {
    "right-biased queries": "Does the loss ask so much more of the end than of the middle that "
    "the last state matters more at the end?",
    "survival of recency": "Do the layers change so little that the end must keep its lead over "
    "the middle?",
    "primacy of the cone channel": "Does what later tokens read of the beginning add up so well "
    "that through attention the beginning must matter more than the middle?",
    "double deficit from channel bounds": "Are the boundaries' own channels so strong that both "
    "ends must matter more than the middle?",
    "exact characterisation": "Do channels and their cross terms together put both ends above the "
    "middle?",
}
PLAIN = {
    "right-biased queries": "the last state matters more at the end than in the middle",
    "survival of recency": "the end matters more than the middle",
    "primacy of the cone channel": "through attention the beginning matters more than the middle",
    "double deficit from channel bounds": "both ends matter more than the middle",
    "exact characterisation": "both ends matter more than the middle",
}


def digits(value: Any) -> str:
    """Write a number to three digits, or from a thousand to a million to its last whole one."""
    value = float(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def with_error(value: Any, error: Any) -> str:
    """Write a value with its standard error; alone where one context has none."""
    return digits(value) + error_words(error, digits)


def index_words(influence: Influence) -> list[tuple[str, str]]:
    """Return the regional averages and indices by name, each with its error."""
    names = (*REGIONS, "gap Δ", "LIM", "contrast SC")
    pairs = zip(names, influence.indices(), influence.index_errors(), strict=True)
    return [(name, with_error(value, error)) for name, value, error in pairs]


def verdict(influence: Influence) -> str:
    """Say whether the middle is lost, as far as the gap's two standard errors tell."""
    if bool(influence.degenerate):
        return "No position has any influence."
    gap = float(influence.indices().gap)
    error = 2 * float(influence.index_errors().gap)
    require(
        not np.isnan([gap, error]).any(),
        "influence",
        got="an influence with a gap of NaN",
        expected="finite energies",
        cure="Find where they come from.",
    )
    if not np.isfinite(error):
        return "One context has no error, so nothing is decided."
    if bool(influence.alike):
        return "All contexts have one profile, whose error says nothing, so nothing is decided."
    if gap > error:
        return "Lost in the middle: both ends matter more than the middle, by over two errors."
    if gap < -error:
        return "Not lost in the middle: an end matters less than the middle, by over two errors."
    return "Undecided: the gap between the ends and the middle is within two errors of zero."


def certificate_words(certificate: Certificate) -> dict[str, Any]:
    """Return a certificate's verdict, why it is so, and what was measured apart, in words."""
    kind = _kind(certificate)
    premises = [
        (premise.statement, digits(premise.value), premise.holds)
        for premise in certificate.premises
    ]
    inequalities = [
        (sides.statement, f"{digits(sides.greater)} against {digits(sides.lesser)}", sides.holds)
        for sides in certificate.inequalities
    ]
    return {
        "name": certificate.name,
        "question": QUESTIONS.get(certificate.name, certificate.name),
        "source": certificate.source,
        "kind": kind,
        "saying": SAYING[kind].format(**certificate._asdict()),
        "conclusion": certificate.conclusion,
        "plain": PLAIN.get(certificate.name, certificate.conclusion),
        "concluded": certificate.concluded,
        "lines": premises + inequalities,
    }


def _kind(certificate: Certificate) -> str:
    """Return the key of `SAYING` for a certificate's verdict."""
    if certificate.vacuous:
        return "vacuous"
    return "held" if certificate.holds else "failed"
