"""Two results beside each other in sentences, tables and plain numbers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lim_jax.density.statistics import numbers_by_name
from lim_jax.grid.partition import MIDDLE
from lim_jax.results.comparison import Comparison
from lim_jax.results.context_energies import (
    ComparedContexts,
    ComparedInfluences,
    ComparedShares,
)
from lim_jax.results.percentages import points_in_words

Row = tuple[Any, ...]  # the name, both numbers, their difference and its error
WITHOUT_QUERIES = ", queries left out"
BY_NAME = "Records are compared by name, and averaged over all texts that have it."
INDEX_NAMES = ("density left", "density middle", "density right", "gap", "LIM", "contrast", "total")


def described_pairs(compared: ComparedContexts) -> str:
    """Say how many contexts are in both results, and how many in one alone."""
    counts = [int(influence.count) for influence in compared.whole[:2]]
    if not compared.pairs:
        return f"{counts[0]} and {counts[1]} contexts, none in both: errors are independent"
    unpaired = [count - compared.pairs for count in counts]
    alone = f", {unpaired[0]} and {unpaired[1]} in one alone" if any(unpaired) else ""
    return f"{compared.pairs} contexts in both, paired{alone}"


def finding(compared: ComparedContexts, names: tuple[str, str]) -> str:
    """Say what the middle gained or lost, and which record changed most."""
    without_queries = compared.without_queries
    lines = [middle_in_words(compared.whole.change, names)]
    if without_queries is not None:
        lines.append(
            f"Without the queried tokens: {middle_in_words(without_queries.change, names)}"
        )
    if compared.shares:
        lines.append(f"{record_in_words(compared.shares, names)} {BY_NAME}")
    return "\n".join(lines)


def middle_in_words(change: Comparison, names: Sequence[str] = ("first", "second")) -> str:
    """Say what the middle gained or lost, in percentage points of the influence."""
    size = float(np.asarray(change.regions.weights)[MIDDLE].sum())
    change_in_words = points_in_words(
        size * float(change.indices.middle), size * float(change.index_errors.middle)
    )
    return "{1} uses the middle {2} than {0}{3}.".format(*names, *change_in_words)


def record_in_words(
    shares: Mapping[str, ComparedShares], names: Sequence[str] = ("first", "second")
) -> str:
    """Say which record's share has changed most, relative to its standard error."""

    def in_errors(name: str) -> float:
        """Return the size of a record's change in units of its standard error."""
        change = shares[name].change
        value = abs(float(change.value))
        error = float(change.error)
        return value if math.isinf(error) else value / (error or math.inf)

    most = max(shares, key=in_errors)
    value, error = map(float, shares[most].change)
    by_what = " for its error" if math.isfinite(error) else ""
    words = "Of the records, “{4}” changed most{5}: {1} gives it {2} than {0}{3}."
    return words.format(*names, *points_in_words(value, error), most, by_what)


def cells(compared: ComparedContexts, names: tuple[str, str]) -> list[list[str]]:
    """Return the rows of the table, the first with its columns' names; records stand in quotes."""
    rows = _index_rows(compared.whole, "")
    if compared.without_queries is not None:
        rows += _index_rows(compared.without_queries, WITHOUT_QUERIES)
    rows += [
        (f"share of “{name}”", *map(float, (first.value, second.value, *change)))
        for name, (first, second, change, *_) in compared.shares.items()
    ]
    head = ["", *names, "difference", "error"]
    return [head, *([name, *map(_cell, numbers)] for name, *numbers in rows)]


def _cell(number: float) -> str:
    """Write a number to four digits; nothing for the infinite error of one context."""
    return f"{number:.4g}" if math.isfinite(number) else ""


def _index_rows(compared: ComparedInfluences, suffix: str) -> list[Row]:
    """Return a row for each index and for the total: both, their difference, and its error."""
    first, second, change = compared
    columns = [
        [*indices, total]
        for indices, total in (
            (first.indices(), first.total),
            (second.indices(), second.total),
            (change.indices, change.total),
            (change.index_errors, change.total_error),
        )
    ]
    rows = zip(INDEX_NAMES, *columns, strict=True)
    return [(name + suffix, *map(float, numbers)) for name, *numbers in rows]


def record_row(name: str, shares: ComparedShares) -> tuple[Any, ...]:
    """Return a record's row of records.csv."""
    numbers = [float(number) for estimate in shares[:3] for number in estimate]
    return (name, *numbers, *shares.contexts, shares.pairs)


def document(compared: ComparedInfluences) -> dict[str, Any]:
    """Return both influences and their difference as plain numbers."""
    first, second, change = compared
    difference = {
        "total": float(change.total),
        "total_error": float(change.total_error),
        "indices": numbers_by_name(change.indices),
        "index_errors": numbers_by_name(change.index_errors),
        "density": change.density.tolist(),
        "density_error": change.density_error.tolist(),
    }
    return {"first": first.record(), "second": second.record(), "difference": difference}


def by_position(compared: ComparedInfluences) -> Iterator[tuple[float, ...]]:
    """Return the rows of compare.csv, one for each position."""
    first, second, change = compared
    columns = (
        change.regions.grid.nodes, first.density, first.density_error, second.density,
        second.density_error, change.density, change.density_error,
    )  # fmt: skip
    return zip(*(column.tolist() for column in columns), strict=True)
