"""Rows of measured limits, and their table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from lim_jax._text_tables import text_table
from lim_jax.limits.refinement import Study

TOLERANCE = 0.15


class Row(NamedTuple):
    """One measured limit: what is refined and where, its study, and what is known of it."""

    name: str
    study: Study
    expected: float | None  # the order that this field should show
    reason: str = ""  # why that is not the paper's, or where it states none, that of smooth fields
    reliability_warning: str = ""  # why the reference is unreliable, with the cure

    @property
    def topic(self) -> str:
        """The name up to its first comma: rows of a topic share a figure."""
        return self.name.partition(",")[0]

    @property
    def agrees(self) -> bool:
        """Whether the measured order is the expected one, to 0.15, and no bound is broken."""
        gap = 0.0 if self.expected is None else abs(self.study.order.value - self.expected)
        return gap <= TOLERANCE and self.study.holds is not False

    def record(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings."""
        study = self.study
        fields = self._asdict()
        del fields["study"]
        derived = {"agrees": self.agrees, "order": study.order._asdict(), "holds": study.holds}
        return {**fields, **derived, "verdict": study.verdict, **study._asdict()}


class Curve(NamedTuple):
    """Errors of a method against its costs, one of each for each refinement."""

    name: str
    costs: tuple[float, ...]
    errors: tuple[float, ...]

    @classmethod
    def against(cls, exact: Array, name: str, values: Mapping[float, Array]) -> "Curve":
        """Make a curve of the largest distances of values, given by cost, from the exact one."""
        errors = (float(jnp.abs(value - exact).max()) for value in values.values())
        return cls(name, tuple(map(float, values)), tuple(errors))


def rates_table(rows: Sequence[Row]) -> str:
    """Lay out rows with claimed, expected and measured orders, the bounds' verdicts and reasons."""
    head = ["limit", "claimed", "expected", "measured", "bound", "constant", "reference", ""]
    lines = [text_table([head, *map(_cells, rows)], left=(0, len(head) - 1))]
    notes = {
        "Where the expected order is not the claimed one, or not the usual one:": "reason",
        "Where the reference is unreliable:": "reliability_warning",
    }
    for heading, field in notes.items():
        remarks = names_by_remark({row.name: getattr(row, field) for row in rows})
        listed = [f"- {remark}: {'; '.join(names)}" for remark, names in remarks.items()]
        lines += ["", heading, *listed] if listed else []
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    """Return a row's cells in the table, as text."""
    study = row.study
    order = row.study.order
    marks = {
        "DIFFERS": not row.agrees,
        "COARSE REFERENCE": not study.resolved,
        "UNRELIABLE REFERENCE": bool(row.reliability_warning),
    }
    return [
        row.name,
        *("–" if order is None else f"{order:.2f}" for order in (study.claimed, row.expected)),
        f"{order.value:.2f} ±{order.error:5.2f}",
        "–" if study.bounds is None else study.verdict,
        f"{order.constant:.2g}",
        f"{study.reference_error:.1e}",
        "  ".join(mark for mark, holds in marks.items() if holds),
    ]


def names_by_remark(remarks: Mapping[str, str]) -> dict[str, list[str]]:
    """Return every nonempty remark once, with the names of the rows that it is on."""
    groups = grouped(remarks, lambda name: remarks[name])
    return {remark: names for remark, names in groups.items() if remark}


def grouped(values: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Group values by their keys, the keys in the order in which they come."""
    groups: dict[Any, list[Any]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups
