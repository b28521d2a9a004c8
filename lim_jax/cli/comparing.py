"""Two results of `profile` beside each other, from a terminal."""

from collections.abc import Sequence
from pathlib import Path

import tyro

from lim_jax._checks import as_path, require_extra
from lim_jax._tables import text_table
from lim_jax.attribution.files import read_contexts
from lim_jax.cli.arguments import Named
from lim_jax.plots.drawing import save_figure
from lim_jax.plots.profile import influence_difference
from lim_jax.report.page import write_comparison
from lim_jax.results.compared import (
    by_position,
    cells,
    described_pairs,
    document,
    finding,
    record_row,
)
from lim_jax.results.measured import ComparedContexts, compare_contexts
from lim_jax.results.run_folder import run_folder
from lim_jax.results.tables import FILES, write_json, write_table

PAGE = "profile.html"


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
        print(f"== {names[1]} minus {names[0]}: {described_pairs(compared)} ==")
        print(finding(compared, names))
        print(text_table(cells(compared, names)))
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
        sentences=[described_pairs(compared), *finding(compared, names).splitlines()],
        rows=cells(compared, names),
        figures=figures,
        pages=list(zip(names, pages, strict=bool(pages))),
    )


def _names(first: Path, second: Path) -> tuple[str, str]:
    """The folders' own names, or all of their paths where these are one."""
    one, two = first.resolve().name, second.resolve().name
    return (one, two) if one != two else (str(first), str(second))


def _write(compared: ComparedContexts, names: tuple[str, str], folder: Path) -> None:
    parts = {"influence": compared.whole, "influence_without_queries": compared.without_queries}
    measured = {name: part for name, part in parts.items() if part is not None}
    records = [record_row(name, shares) for name, shares in compared.shares.items()]
    written = {
        "finding": finding(compared, names),
        "first": names[0],
        "second": names[1],
        "pairs": compared.pairs,
        **{name: document(part) for name, part in measured.items()},
        "records": [dict(zip(FILES["compare, records.csv"], row, strict=True)) for row in records],
    }
    write_json(folder / "compare.json", written)
    write_table(folder / "compare.csv", FILES["compare.csv"], by_position(compared.whole))
    write_table(folder / "records.csv", FILES["compare, records.csv"], records)
    for name, part in measured.items():
        title = "queries left out" if name != "influence" else ""
        save_figure(influence_difference(part, names, title), folder, name)
