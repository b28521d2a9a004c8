"""Two results of `profile` beside each other, from a terminal."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import tyro

from lim_jax import plots
from lim_jax._checks import AnyPath, as_path
from lim_jax.cli.folder import Named, run_folder, save_figure, write_json, write_table
from lim_jax.cli.kept import read_contexts_of
from lim_jax.density.statistics import Indices
from lim_jax.results.measured import (
    ComparedContexts,
    ComparedInfluences,
    ComparedShares,
    compare_contexts,
    middle_in_words,
    record_in_words,
)

Row = tuple[Any, ...]  # the name, both numbers, their difference and its error
POSITION_COLUMNS = (
    "position", "first", "first_error", "second", "second_error", "difference", "error"
)  # fmt: skip
RECORD_COLUMNS = (
    "record", "first", "first_error", "second", "second_error", "difference", "error",
    "first_contexts", "second_contexts", "pairs",
)  # fmt: skip
REST = ", queries left out"
PAGE = "profile.html"
BESIDE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; margin: 1rem; }}
main {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(34rem, 100%), 1fr));
  gap: 1rem; }}
iframe {{ width: 100%; height: 85vh; box-sizing: border-box; border: 1px solid #999; }}
</style>
<h1>{title}</h1>{said}
<main>{frames}</main></html>
"""
INDEX_NAMES = ("density left", "density middle", "density right", "gap", "LIM", "contrast", "total")


def compare(
    first: tyro.conf.Positional[Named],
    second: tyro.conf.Positional[Named],
    out: Named = Path("compare"),
    overwrite: bool = False,
) -> int:
    """Say what changed from one profile to another: two models, two prompts, two orders.

    Contexts of one id, or without ids of one text, are paired, and errors are of their differences;
    others count with independent errors. Prints how much more of the influence the second gives the
    middle, and the differences of density, indices and of each record's share; writes compare.json,
    compare.csv (by position), records.csv, and a figure as PNG and SVG; and where both folders have
    a page, compare.html with the two beside each other.

    Args:
        first: The folder of a finished lim-jax profile.
        second: Another, from which the first is subtracted.
        out: The folder to write to.
        overwrite: Write over what is in the folder. Without, it must be empty, or of this run.
    """
    first, second = as_path(first, "first"), as_path(second, "second")
    arguments = {"first": first, "second": second}
    with run_folder(out, "compare", arguments, overwrite=overwrite) as folder:
        kept = read_contexts_of(first, "first"), read_contexts_of(second, "second")
        found, names = compare_contexts(*kept), _names(first, second)
        print(f"== {names[1]} minus {names[0]}: {_described(found)} ==")
        print(_finding(found, names))
        print(_table(found, names))
        _write(found, names, folder)
        pages = [place / PAGE for place in (first, second) if (place / PAGE).is_file()]
        if len(pages) == 2:
            write_beside(folder / "compare.html", _finding(found, names), names, pages)
        print(f"Wrote compare.json, tables and figures to {folder}.")
    return 0


def write_beside(
    path: AnyPath, finding: str, names: Sequence[str], pages: Sequence[AnyPath]
) -> None:
    """Write two pages into one, beside each other, below one another where a screen is narrow."""
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in finding.splitlines())
    frames = "".join(
        f'<section><h2>{escape(name)}</h2><iframe title="{escape(name)}" '
        f'srcdoc="{escape(as_path(page).read_text("utf-8"))}"></iframe></section>'
        for name, page in zip(names, pages, strict=True)
    )
    title = escape(f"{names[1]} minus {names[0]}")
    as_path(path).write_text(BESIDE.format(title=title, said=said, frames=frames), "utf-8")


def _names(first: Path, second: Path) -> tuple[str, str]:
    """The folders' own names, or all of their paths where these are one."""
    one, two = first.resolve(), second.resolve()
    return (one.name, two.name) if one.name != two.name else (str(first), str(second))


def _described(found: ComparedContexts) -> str:
    counts = [int(one.count) for one in found.whole[:2]]
    if not found.pairs:
        return f"{counts[0]} and {counts[1]} contexts, none in both: errors are independent"
    rest = [count - found.pairs for count in counts]
    alone = f", {rest[0]} and {rest[1]} in one alone" if any(rest) else ""
    return f"{found.pairs} contexts in both, paired{alone}"


def _finding(found: ComparedContexts, names: tuple[str, str]) -> str:
    rest = found.without_queries
    lines = [middle_in_words(found.whole.change, names)]
    if rest is not None:
        lines.append(f"Without the queried tokens: {middle_in_words(rest.change, names)}")
    if found.shares:
        lines.append(record_in_words(found.shares, names))
    return "\n".join(lines)


def _table(found: ComparedContexts, names: tuple[str, str]) -> str:
    rows = _index_rows(found.whole, "")
    if found.without_queries is not None:
        rows += _index_rows(found.without_queries, REST)
    rows += [_share_row(name, shares) for name, shares in found.shares.items()]
    heads = (*(name[-12:] for name in names), "difference", "error")
    lines = [f"{'':40s} " + " ".join(f"{head:>12s}" for head in heads)]
    for name, *numbers in rows:
        lines.append(f"{name[:40]:40s} " + " ".join(map(_spelt, numbers)))
    return "\n".join(lines)


def _spelt(number: float) -> str:
    """Nothing for the error of one context, which is none."""
    return f"{number:12.4g}" if math.isfinite(number) else " " * 12


def _index_rows(found: ComparedInfluences, suffix: str) -> list[Row]:
    """The regional averages of the density and the indices, and the total."""
    first, second, change = found
    columns = first.indices(), second.indices(), change.indices, change.index_errors
    rows = [list(map(float, row)) for row in zip(*columns, strict=True)]
    rows.append(list(map(float, (first.total, second.total, change.total, change.total_error))))
    return [(name + suffix, *row) for name, row in zip(INDEX_NAMES, rows, strict=True)]


def _share_row(name: str, shares: ComparedShares) -> Row:
    first, second, change = shares[:3]
    return (f"share of {name}", *map(float, (first.value, second.value, *change)))


def _write(found: ComparedContexts, names: tuple[str, str], folder: Path) -> None:
    parts = {"influence": found.whole, "influence_without_queries": found.without_queries}
    measured = {name: part for name, part in parts.items() if part is not None}
    records = [_record_row(name, shares) for name, shares in found.shares.items()]
    document = {
        "finding": _finding(found, names),
        "first": names[0],
        "second": names[1],
        "pairs": found.pairs,
        **{name: _document(part) for name, part in measured.items()},
        "records": [dict(zip(RECORD_COLUMNS, row, strict=True)) for row in records],
    }
    write_json(folder / "compare.json", document)
    write_table(folder / "compare.csv", POSITION_COLUMNS, _by_position(found.whole))
    write_table(folder / "records.csv", RECORD_COLUMNS, records)
    for name, part in measured.items():
        title = "queries left out" if name != "influence" else ""
        save_figure(plots.influence_difference(part, names, title), folder, name)


def _record_row(name: str, found: ComparedShares) -> tuple[Any, ...]:
    numbers = [float(number) for estimate in found[:3] for number in estimate]
    return (name, *numbers, *found.contexts, found.pairs)


def _document(found: ComparedInfluences) -> dict[str, Any]:
    change = found.change
    difference = {
        "total": float(change.total),
        "total_error": float(change.total_error),
        "indices": _by_name(change.indices),
        "index_errors": _by_name(change.index_errors),
        "density": change.density.tolist(),
        "density_error": change.density_error.tolist(),
    }
    return {
        "first": found.first.record(),
        "second": found.second.record(),
        "difference": difference,
    }


def _by_name(values: Indices) -> dict[str, float]:
    return {name: float(value) for name, value in values._asdict().items()}


def _by_position(found: ComparedInfluences) -> Iterator[tuple[float, ...]]:
    first, second, change = found
    columns = (
        change.regions.grid.nodes, first.density, first.density_error, second.density,
        second.density_error, change.density, change.density_error,
    )  # fmt: skip
    return zip(*(column.tolist() for column in columns), strict=True)
