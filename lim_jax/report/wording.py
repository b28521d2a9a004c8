"""Results in words and digits, as a page says them."""

from typing import Any

import numpy as np
from scipy.special import stdtr

from lim_jax._checks import require
from lim_jax.adjoint.certificate import Certificate
from lim_jax.density.statistics import Influence
from lim_jax.grid.partition import REGIONS
from lim_jax.results.percentages import error_words, percent

ROUGH = 0.1  # the share of cases by chance from which it is said
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
# The paper's letters in each certificate's conditions.
LETTERS = {
    "right-biased queries": "P_T is the loss's gradient at the last state of a position, and R_res "
    "the average of its square over the right less that over the middle. χ is the weight with "
    "which the loss asks at a position, as a density, and ρ the mean square of the gradient there "
    "where that weight is one: ρ₋ is its least value on the right, ρ₊ its largest in the middle.",
    "survival of recency": "P_T is the loss's gradient at the last state of a position, P_0 that "
    "at the state that is judged, I its mean square. R_res is the average of |P_T|² over the right "
    "less that over the middle. c bounds how much the layers change the gradient of the whole "
    "context, as a multiple of it; E[...] is a mean over contexts, in which |P_T|² is of the whole "
    "context too. |E_R| and |E_M| are the widths of the right and the middle.",
    "primacy of the cone channel": "Q_cone is the mean square of what attention of later tokens "
    "adds to the gradient at a position. It is a sum over pairs of contributions, each of a layer "
    "and a later token: κ_L is the least mean product of two that reach a position on the left, "
    "K_M the largest in size of two that reach one in the middle. T is the length of the flow in "
    "depth, and A_L and A_M are the averages over the left and the middle of the square of how "
    "much of the context comes after a position.",
    "double deficit from channel bounds": "l(left) is what the cone channel holds on the left at "
    "least, l(right) what the residual channel holds on the right at least. U(middle) is what the "
    "three channels hold in the middle at most, and Γ of a region the most that their cross terms "
    "add or take there.",
    "exact characterisation": "J of a region is the average there of each channel's mean square, "
    "summed over the three channels, and Ξ what their cross terms add.",
}


def digits(value: Any) -> str:
    """Write a number to three digits, or from a thousand to a million to its last whole one."""
    value = float(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def with_error(value: Any, error: Any) -> str:
    """Write a value with its standard error; alone where one context has none."""
    return digits(value) + error_words(error, digits)


def index_words(influence: Influence) -> list[tuple[str, str]]:
    """Return the regional averages and indices by name, each with its error.

    Without any influence there are no indices, which are its ratios.
    """
    names = (*REGIONS, "gap Δ", "LIM", "contrast SC")
    if bool(influence.degenerate):
        return [(name, "0" if name in REGIONS else "none") for name in names]
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
    if abs(gap) <= error:
        return "Undecided: the gap between the ends and the middle is within two errors of zero."
    count = int(influence.count)
    # How often a gap of nothing but chance is over two errors, by Student's distribution: 30 % for
    # two contexts, 10 % for six, 5 % for many.
    by_chance = 2 * float(stdtr(count - 1, -2.0))
    if count == 2:
        return (
            "Undecided: the gap between the ends and the middle is over two errors, but of two "
            f"contexts it is so in {percent(by_chance)} of cases by chance alone."
        )
    few = ""
    if by_chance > ROUGH:
        few = f", as of {count} contexts it is in {percent(by_chance)} of cases by chance alone"
    if gap > 0:
        return (
            f"Lost in the middle: both ends matter more than the middle, by over two errors{few}."
        )
    return f"Not lost in the middle: an end matters less than the middle, by over two errors{few}."


def certificate_words(certificate: Certificate) -> dict[str, Any]:
    """Return a certificate's verdict, why it is so, and what was measured apart, in words."""
    kind = _kind(certificate)
    plain = PLAIN.get(certificate.name, certificate.conclusion)
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
        "saying": SAYING[kind].format(conclusion=plain, vacuous=certificate.vacuous),
        "plain": plain,
        "letters": LETTERS.get(certificate.name, ""),
        "concluded": certificate.concluded,
        "lines": premises + inequalities,
    }


def _kind(certificate: Certificate) -> str:
    """Return the key of `SAYING` for a certificate's verdict."""
    if certificate.vacuous:
        return "vacuous"
    return "held" if certificate.holds else "failed"
