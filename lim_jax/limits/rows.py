"""What is measured of a limit, and the table of it.

Where a measured order differs from the printed one the row gives the reason.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lim_jax._checks import require_several
from lim_jax.limits.refinement import Study

TOLERANCE = 0.15


class Row(NamedTuple):
    """One measured limit.

    Attributes
    ----------
    name
        What is refined and where.
    study
        Errors, bounds and the reference's own error.
    expected
        The order that this field should show; None where none is known.
    reason
        Why, where that differs from the order that the paper states; or where the paper states
        none, from that of smooth fields on tokens. Else empty.
    doubt
        Why the reference is doubtful, with the cure; empty where nothing says so.
    """

    name: str
    study: Study
    expected: float | None
    reason: str = ""
    doubt: str = ""

    @property
    def topic(self) -> str:
        """What stands before the first comma of the name: rows of a topic share a figure."""
        return self.name.partition(",")[0]

    @property
    def agrees(self) -> bool:
        """Whether the measured order is an expected one, to 0.15, and no bound is broken."""
        apart = 0.0 if self.expected is None else abs(self.study.order.value - self.expected)
        return apart <= TOLERANCE and self.study.holds is not False

    def record(self) -> dict[str, Any]:
        """Everything as plain numbers and strings."""
        order = self.study.order
        return {
            "name": self.name,
            "expected": self.expected,
            "reason": self.reason,
            "doubt": self.doubt,
            "agrees": self.agrees,
            "order": order._asdict(),
            "holds": self.study.holds,
            "verdict": self.study.verdict,
            **self.study._asdict(),
        }


class Curve(NamedTuple):
    """Errors against cost.

    Attributes
    ----------
    name
        The method.
    costs, errors
        One for each refinement.
    """

    name: str
    costs: tuple[float, ...]
    errors: tuple[float, ...]


def rates_table(rows: Sequence[Row]) -> str:
    """Lay out measured rows with claimed, expected and measured orders, bounds and reasons.

    A dash stands for an order that is not stated or not known, and for a bound that is not
    explicit; of the others stands the study's verdict. Errors that are not ten times the
    reference's own are marked: a finer one is needed. So are doubtful references, with the cause
    below the table.
    """
    require_several(rows, Row, "rows", "Take what limits.study gives.")
    lines = [
        f"{'limit':64s} {'claimed':>7s} {'expected':>8s} {'measured':>14s} {'bound':>10s} "
        f"{'constant':>9s} {'reference':>9s}"
    ]
    for row in rows:
        study, order = row.study, row.study.order
        bound = "–" if study.bounds is None else study.verdict
        claimed, expected = (
            "–" if stated is None else f"{stated:.2f}" for stated in (study.claimed, row.expected)
        )
        lines.append(
            f"{row.name:64s} {claimed:>7s} {expected:>8s} "
            f"{order.value:7.2f} ±{order.error:5.2f} {bound:>10s} {order.constant:9.2g} "
            f"{study.reference_error:9.1e}{'' if row.agrees else '   DIFFERS'}"
            f"{'' if study.resolved else '   COARSE REFERENCE'}"
            f"{'   DOUBTFUL REFERENCE' if row.doubt else ''}"
        )
    lines += _listed(
        "Where the expected order is not the claimed one, or not the usual one:",
        {row.name: row.reason for row in rows},
    )
    lines += _listed("Where the reference is doubtful:", {row.name: row.doubt for row in rows})
    return "\n".join(lines)


def _listed(heading: str, of_rows: Mapping[str, str]) -> list[str]:
    lines = [f"- {remark}: {'; '.join(names)}" for remark, names in remarks(of_rows).items()]
    return ["", heading, *lines] if lines else []


def remarks(of_rows: Mapping[str, str]) -> dict[str, list[str]]:
    """Every remark once, with the names of the rows that it is on; empty ones are none.

    Examples
    --------
    >>> remarks({"a": "late", "b": "", "c": "late"})
    {'late': ['a', 'c']}
    """
    named: dict[str, list[str]] = {}
    for name, remark in of_rows.items():
        if remark:
            named.setdefault(remark, []).append(name)
    return named
