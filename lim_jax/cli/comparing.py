"""Two results of `profile` beside each other, from a terminal."""

import base64
import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import tyro

from lim_jax._checks import as_path
from lim_jax.cli.columns import FILES
from lim_jax.cli.folder import Named, run_folder, save_figure, write_json, write_table
from lim_jax.cli.kept import read_contexts_of
from lim_jax.density.statistics import Indices
from lim_jax.plots.profile import influence_difference
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
BESIDE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; margin: 1rem; }}
main {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(34rem, 100%), 1fr));
  gap: 1rem; }}
table {{ border-collapse: collapse; font-size: 14px; }}
th, td {{ text-align: right; padding: 3px 14px 3px 0; border-bottom: 1px solid #ccc; }}
th:first-child, td:first-child {{ text-align: left; }}
figure {{ margin: 1rem 0; }}
figure img {{ max-width: 100%; background: #fff; }}
iframe {{ width: 100%; height: 85vh; box-sizing: border-box; border: 1px solid #999; }}
</style>
<h1>{title}</h1>{said}
{table}{figures}
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
        kept = read_contexts_of(first, "first"), read_contexts_of(second, "second")
        found, names = compare_contexts(*kept), _names(first, second)
        print(f"== {names[1]} minus {names[0]}: {_described(found)} ==")
        print(_finding(found, names))
        print(_table(found, names))
        _write(found, names, folder)
        pages = [place / PAGE for place in (first, second) if (place / PAGE).is_file()]
        _write_page(found, names, pages if len(pages) == 2 else [], folder)
        print(f"Wrote compare.json, tables, figures and compare.html to {folder}.")
    return 0


def _write_page(
    found: ComparedContexts, names: tuple[str, str], pages: Sequence[Path], folder: Path
) -> None:
    """Write compare.html: what was found, its table and figures, and two pages side by side."""
    said = _finding(found, names).splitlines()
    frames = [
        f'<section><h2>{escape(name)}</h2><iframe title="{escape(name)}" '
        f'srcdoc="{escape(page.read_text("utf-8"))}"></iframe></section>'
        for name, page in zip(names, pages, strict=bool(pages))
    ]
    head, *rows = _cells(found, names)
    lines = [_html_row("th", head), *(_html_row("td", row) for row in rows)]
    pictures = {"influence": "Both densities, and their difference"}
    if found.without_queries is not None:
        pictures["influence_without_queries"] = "The same without the queried tokens"
    figures = [
        f'<figure><img alt="{title}" src="{_inlined(folder / f"{name}.svg")}"></figure>'
        for name, title in pictures.items()
    ]
    page = BESIDE.format(
        title=escape(f"{names[1]} minus {names[0]}"),
        said="".join(f"<p>{escape(sentence)}</p>" for sentence in (_described(found), *said)),
        table=f"<table>{''.join(lines)}</table>",
        figures="".join(figures),
        frames="".join(frames),
    )
    (folder / "compare.html").write_text(page, "utf-8")


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _inlined(picture: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.read_bytes()).decode()}"


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
        lines.append(f"{record_in_words(found.shares, names)} {BY_NAME}")
    return "\n".join(lines)


def _cells(found: ComparedContexts, names: tuple[str, str]) -> list[list[str]]:
    """The rows of the table, whole names in the first: parts stand in quotation marks."""
    rows = _index_rows(found.whole, "")
    if found.without_queries is not None:
        rows += _index_rows(found.without_queries, REST)
    rows += [_share_row(name, shares) for name, shares in found.shares.items()]
    head = ["", *names, "difference", "error"]
    return [head, *([name, *map(_spelt, numbers)] for name, *numbers in rows)]


def _table(found: ComparedContexts, names: tuple[str, str]) -> str:
    rows = _cells(found, names)
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{name:{first}s}" + "".join(map("  {:>{}s}".format, cells, others))
        for name, *cells in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _spelt(number: float) -> str:
    """Nothing for the error of one context, which is none."""
    return f"{number:.4g}" if math.isfinite(number) else ""


def _index_rows(found: ComparedInfluences, suffix: str) -> list[Row]:
    """The regional averages of the density and the indices, and the total."""
    columns = [_numbers(one) for one in (found.first.record(), found.second.record())]
    change = found.change
    columns.append([*map(float, change.indices), float(change.total)])
    columns.append([*map(float, change.index_errors), float(change.total_error)])
    rows = zip(INDEX_NAMES, *columns, strict=True)
    return [(name + suffix, *numbers) for name, *numbers in rows]


def _numbers(record: dict[str, Any]) -> list[float]:
    return [*record["indices"].values(), record["total"]]


def _share_row(name: str, shares: ComparedShares) -> Row:
    first, second, change = shares[:3]
    return (f"share of “{name}”", *map(float, (first.value, second.value, *change)))


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
        "records": [dict(zip(FILES["compare, records.csv"], row, strict=True)) for row in records],
    }
    write_json(folder / "compare.json", document)
    write_table(folder / "compare.csv", FILES["compare.csv"], _by_position(found.whole))
    write_table(folder / "records.csv", FILES["compare, records.csv"], records)
    for name, part in measured.items():
        title = "queries left out" if name != "influence" else ""
        save_figure(influence_difference(part, names, title), folder, name)


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
