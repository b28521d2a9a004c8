"""Two results of `profile` beside each other, from a terminal."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro

from lim_jax._checks import as_path, require_extra
from lim_jax._tables import text_table
from lim_jax.cli.columns import FILES
from lim_jax.cli.contexts_io import read_contexts
from lim_jax.cli.folder import Named, run_folder, save_figure, write_json, write_table
from lim_jax.density.statistics import Indices
from lim_jax.plots.profile import influence_difference
from lim_jax.report.page import write_comparison
from lim_jax.results.measured import (
    ComparedContexts,
    ComparedInfluences,
    ComparedShares,
    compare_contexts,
    middle_in_words,
    record_in_words,
)

Row = tuple[Any, ...]  # the name, both numbers, their difference and its error
REST = ", queries left out"
BY_NAME = "Records are compared by name, and averaged over all texts that have it."
PAGE = "profile.html"
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
    compare.csv (by position), records.csv, a figure as PNG and SVG, and compare.html with all of
    it, and with the two pages beside each other where both folders have one.

    Args:
        first: The folder of a finished lim-jax profile.
        second: Another, from which the first is subtracted.
        out: The folder to write to.
        overwrite: Write over what is in the folder. Without, it must be empty, or of this run.
    """
    first, second = as_path(first, "first"), as_path(second, "second")
    arguments = {"first": first, "second": second}
    with run_folder(out, "compare", arguments, overwrite=overwrite) as folder:
        require_extra("jinja2", "report")
        measured = read_contexts(first, "first"), read_contexts(second, "second")
        compared, names = compare_contexts(*measured), _names(first, second)
        print(f"== {names[1]} minus {names[0]}: {_described(compared)} ==")
        print(_finding(compared, names))
        print(text_table(_cells(compared, names)))
        _write(compared, names, folder)
        files = first / PAGE, second / PAGE
        both = all(file.is_file() for file in files)
        pages = [file.read_text("utf-8") for file in files] if both else []
        _write_page(compared, names, pages, folder)
        print(f"Wrote compare.json, tables, figures and compare.html to {folder}.")
    return 0


def _write_page(
    compared: ComparedContexts, names: tuple[str, str], pages: Sequence[str], folder: Path
) -> None:
    """Write compare.html: the finding, its table and figures, and two pages side by side."""
    figures = {"Both densities, and their difference": folder / "influence.svg"}
    if compared.without_queries is not None:
        figures["The same without the queried tokens"] = folder / "influence_without_queries.svg"
    write_comparison(
        folder / "compare.html",
        title=f"{names[1]} minus {names[0]}",
        sentences=[_described(compared), *_finding(compared, names).splitlines()],
        rows=_cells(compared, names),
        figures=figures,
        pages=list(zip(names, pages, strict=bool(pages))),
    )


def _names(first: Path, second: Path) -> tuple[str, str]:
    """The folders' own names, or all of their paths where these are one."""
    one, two = first.resolve().name, second.resolve().name
    return (one, two) if one != two else (str(first), str(second))


def _described(compared: ComparedContexts) -> str:
    counts = [int(influence.count) for influence in compared.whole[:2]]
    if not compared.pairs:
        return f"{counts[0]} and {counts[1]} contexts, none in both: errors are independent"
    rest = [count - compared.pairs for count in counts]
    alone = f", {rest[0]} and {rest[1]} in one alone" if any(rest) else ""
    return f"{compared.pairs} contexts in both, paired{alone}"


def _finding(compared: ComparedContexts, names: tuple[str, str]) -> str:
    rest = compared.without_queries
    lines = [middle_in_words(compared.whole.change, names)]
    if rest is not None:
        lines.append(f"Without the queried tokens: {middle_in_words(rest.change, names)}")
    if compared.shares:
        lines.append(f"{record_in_words(compared.shares, names)} {BY_NAME}")
    return "\n".join(lines)


def _cells(compared: ComparedContexts, names: tuple[str, str]) -> list[list[str]]:
    """The rows of the table, whole names in the first: parts stand in quotation marks."""
    rows = _index_rows(compared.whole, "")
    if compared.without_queries is not None:
        rows += _index_rows(compared.without_queries, REST)
    rows += [_share_row(name, shares) for name, shares in compared.shares.items()]
    head = ["", *names, "difference", "error"]
    return [head, *([name, *map(_spelt, numbers)] for name, *numbers in rows)]


def _spelt(number: float) -> str:
    """Nothing for the error of one context, which is none."""
    return f"{number:.4g}" if math.isfinite(number) else ""


def _index_rows(compared: ComparedInfluences, suffix: str) -> list[Row]:
    """The regional averages of the density and the indices, and the total."""
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


def _share_row(name: str, shares: ComparedShares) -> Row:
    first, second, change = shares[:3]
    return (f"share of “{name}”", *map(float, (first.value, second.value, *change)))


def _write(compared: ComparedContexts, names: tuple[str, str], folder: Path) -> None:
    parts = {"influence": compared.whole, "influence_without_queries": compared.without_queries}
    measured = {name: part for name, part in parts.items() if part is not None}
    records = [_record_row(name, shares) for name, shares in compared.shares.items()]
    document = {
        "finding": _finding(compared, names),
        "first": names[0],
        "second": names[1],
        "pairs": compared.pairs,
        **{name: _document(part) for name, part in measured.items()},
        "records": [dict(zip(FILES["compare, records.csv"], row, strict=True)) for row in records],
    }
    write_json(folder / "compare.json", document)
    write_table(folder / "compare.csv", FILES["compare.csv"], _by_position(compared.whole))
    write_table(folder / "records.csv", FILES["compare, records.csv"], records)
    for name, part in measured.items():
        title = "queries left out" if name != "influence" else ""
        save_figure(influence_difference(part, names, title), folder, name)


def _record_row(name: str, shares: ComparedShares) -> tuple[Any, ...]:
    numbers = [float(number) for estimate in shares[:3] for number in estimate]
    return (name, *numbers, *shares.contexts, shares.pairs)


def _document(compared: ComparedInfluences) -> dict[str, Any]:
    first, second, change = compared
    difference = {
        "total": float(change.total),
        "total_error": float(change.total_error),
        "indices": _by_name(change.indices),
        "index_errors": _by_name(change.index_errors),
        "density": change.density.tolist(),
        "density_error": change.density_error.tolist(),
    }
    return {"first": first.record(), "second": second.record(), "difference": difference}


def _by_name(values: Indices) -> dict[str, float]:
    return {name: float(value) for name, value in values._asdict().items()}


def _by_position(compared: ComparedInfluences) -> Iterator[tuple[float, ...]]:
    first, second, change = compared
    columns = (
        change.regions.grid.nodes, first.density, first.density_error, second.density,
        second.density_error, change.density, change.density_error,
    )  # fmt: skip
    return zip(*(column.tolist() for column in columns), strict=True)
