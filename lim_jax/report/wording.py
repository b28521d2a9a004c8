"""Results in words and digits, as a page says them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from lim_jax._checks import require, require_kind, require_several
from lim_jax.adjoint.certificate import Certificate
from lim_jax.density.statistics import Influence

MEASURED = "Measure it with lim.influence."
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
    """Three digits, without an exponent below a million.

    Examples
    --------
    >>> [digits(value) for value in (0.012345, 12.345, 12345.6, 1.5e7)]
    ['0.0123', '12.3', '12,346', '1.5e+07']
    """
    value = float(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def error_words(error: Any, spelt: Callable[[float], str] = digits) -> str:
    """A standard error as it follows a number: nothing where one context has none.

    Of zero it is said: where all contexts are alike it tells nothing of others.

    Examples
    --------
    >>> error_words(0.05), error_words(np.inf), error_words(0.0)
    (' ± 0.05', '', ' (error 0)')
    """
    error = float(error)
    if error == 0:
        return " (error 0)"
    return f" ± {spelt(error)}" if not np.isinf(error) else ""


def with_error(value: Any, error: Any) -> str:
    """A value with its standard error; alone where one context has none.

    Examples
    --------
    >>> with_error(1.234, 0.05), with_error(1.234, np.inf)
    ('1.23 ± 0.05', '1.23')
    """
    return digits(value) + error_words(error)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown.

    Examples
    --------
    >>> print(markdown_table(("a", "b"), [("1", "2")]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    require_several(head, str, "head", "Name the columns.")
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def index_words(found: Influence) -> list[tuple[str, str]]:
    """The regional averages and indices by name, each with its error."""
    require_kind(found, Influence, "found", MEASURED)
    names = ("left", "middle", "right", "gap Δ", "LIM", "contrast SC")
    pairs = zip(names, found.indices(), found.index_errors(), strict=True)
    return [(name, with_error(value, error)) for name, value, error in pairs]


def verdict(found: Influence) -> str:
    """What the gap says at two standard errors."""
    require_kind(found, Influence, "found", MEASURED)
    if bool(found.degenerate):
        return "No position has any influence."
    gap, error = float(found.indices().gap), 2 * float(found.index_errors().gap)
    require(
        not np.isnan([gap, error]).any(),
        "found",
        got="an influence whose gap is NaN",
        expected="finite energies",
        cure="No word is said of it: look where they come from.",
    )
    if not np.isfinite(error):
        return "One context has no error, so nothing is decided."
    if bool(found.alike):
        return "All contexts have one profile, whose error says nothing, so nothing is decided."
    if gap > error:
        return "Lost in the middle: both ends matter more than the middle, by over two errors."
    if gap < -error:
        return "Not lost in the middle: an end matters less than the middle, by over two errors."
    return "Undecided: the gap between the ends and the middle is within two errors of zero."


def certificate_words(certificate: Certificate) -> dict[str, Any]:
    """Whether a certificate held, failed or is vacuous, why, and what was measured apart from it.

    Examples
    --------
    >>> hopeless = Certificate("criterion", "", (), (), "B", (), vacuous="A = 0")
    >>> found = certificate_words(hopeless)
    >>> found["kind"], found["saying"]
    ('vacuous', 'It could not have held here: A = 0.')
    """
    require_kind(certificate, Certificate, "certificate", "Take it from the room adjoint.")
    kind = "vacuous" if certificate.vacuous else "held" if certificate.holds else "failed"
    premises = [
        (premise.statement, digits(premise.value), premise.holds)
        for premise in certificate.premises
    ]
    inequalities = [
        (one.statement, f"{digits(one.greater)} against {digits(one.lesser)}", one.holds)
        for one in certificate.inequalities
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
