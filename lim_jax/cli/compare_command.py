"""Two results of `profile` or of `ask` beside each other, from a terminal."""

import os
from collections.abc import Sequence
from pathlib import Path

import tyro

from lim_jax import plots
from lim_jax._checks import as_path, require, require_extra
from lim_jax._terminal import in_one_line
from lim_jax._text_tables import text_table
from lim_jax.attribution.answer_comparison import AnswerRecord, compare_answers, read_answers
from lim_jax.attribution.files import load_contexts, write_compared_answers
from lim_jax.cli.arguments import FirstFolder, Out, Overwrite, SecondFolder
from lim_jax.report.page import comparison_page
from lim_jax.results.comparison_tables import (
    by_position,
    cells,
    described_pairs,
    document,
    finding,
    record_row,
)
from lim_jax.results.context_energies import MeasuredContexts, compare_contexts
from lim_jax.results.run_folder import finished_arguments, run_folder
from lim_jax.results.tables import FILES, write_json, write_table

PAGES = ("answer.html", "profile.html")
Names = tuple[str, str]
Told = tuple[list[str], list[list[str]], dict[str, Path]]


def compare(
    first: tyro.conf.Positional[FirstFolder],
    second: tyro.conf.Positional[SecondFolder],
    out: Out = Path("compare"),
    overwrite: Overwrite = False,
) -> int:
    """Say what changed from one profile or answer to another: two models, two prompts, two orders.

    Contexts of one id, or without ids of one text, are paired, and errors are of their differences;
    others count with independent errors. Prints how much more of the influence the second gives the
    middle, and the differences of density, indices and of each record's share; writes compare.json,
    compare.csv (by position), records.csv, a figure as PNG and SVG, and compare.html with all of
    it, and with the two pages beside each other where both folders have one. Of two folders of
    lim-jax ask by one method it prints both answers, and the score of each part in either; it
    writes compare.json, records.csv and compare.html.

    Args:
        first: The folder of a finished lim-jax profile, or of lim-jax ask.
        second: Another, from which the first is subtracted.
    """
    first = as_path(first, "first")
    second = as_path(second, "second")
    arguments = {"first": first, "second": second}
    for name, path in arguments.items():
        require(
            os.path.isdir(path),  # False of a text too long for a path, where Path.is_dir raises
            name,
            got=f"{path}, which is no folder",
            expected="the folder of a finished lim-jax profile, or of lim-jax ask",
            cure="Check the path.",
        )
    with run_folder(out, "compare", arguments, overwrite=overwrite) as folder:
        require_extra("jinja2", "report")
        names = _names(first, second)
        losses = [
            finished_arguments(path, name).get("loss")
            for path, name in ((first, "first"), (second, "second"))
        ]
        answers = read_answers(first, second)
        if answers:
            sentences, rows, figures = _answers(answers, names, folder)
        else:
            measured = load_contexts(first, "first"), load_contexts(second, "second")
            sentences, rows, figures = _profiles(measured, names, folder)
            if len({*losses} - {None}) > 1:
                asked = " and ".join(f"--loss {loss}" for loss in losses)
                sentences.append(f"They ask by {asked}, so that influences have other units.")
        title = f"{names[1]} minus {names[0]}"
        print(f"== {title}: {sentences[0]} ==", *sentences[1:], text_table(rows), sep="\n")
        page = comparison_page(
            title=title,
            sentences=sentences,
            rows=rows,
            figures=figures,
            pages=list(zip(names, _pages(first, second), strict=False)),
        )
        page.save(folder / "compare.html")
        written = "records.csv" if answers else "tables, figures"
        print(f"Wrote compare.json, {written} and compare.html to {folder}.")
    return 0


def _profiles(
    measured: tuple[MeasuredContexts, MeasuredContexts], names: Names, folder: Path
) -> Told:
    """Compare two profiles and write the files; return sentences, table rows and figures."""
    comparison = compare_contexts(*measured)
    parts = {"influence": comparison.whole, "influence_without_queries": comparison.without_queries}
    parts = {name: part for name, part in parts.items() if part is not None}
    records = [record_row(name, shares) for name, shares in comparison.shares.items()]
    columns = FILES["compare, records.csv"]
    sentence = finding(comparison, names)
    document_of_all = {
        "finding": sentence,
        "first": names[0],
        "second": names[1],
        "pairs": comparison.pairs,
        **{name: document(part) for name, part in parts.items()},
        "records": [dict(zip(columns, row, strict=True)) for row in records],
    }
    write_json(folder / "compare.json", document_of_all)
    write_table(folder / "compare.csv", FILES["compare.csv"], by_position(comparison.whole))
    write_table(folder / "records.csv", columns, records)
    titles = {
        "Both densities, and their difference": "",
        "The same without the queried tokens": "queries left out",
    }
    figures = {}
    for (name, part), (caption, title) in zip(parts.items(), titles.items(), strict=False):
        figure = plots.profile.influence_difference(part, names, title)
        plots.figure_style.save_figure(figure, folder, name)
        figures[caption] = folder / f"{name}.svg"
    return [described_pairs(comparison), *sentence.splitlines()], cells(comparison, names), figures


def _answers(answers: Sequence[AnswerRecord], names: Names, folder: Path) -> Told:
    """Compare two answers and write the files; return sentences, table rows and no figures."""
    comparison = compare_answers(answers[0], answers[1], names)
    write_compared_answers(comparison, folder)
    first, second = (answer["question"] for answer in answers)
    title = f"“{first}”" if first == second else "two questions"
    return [title, *comparison.finding.splitlines()], comparison.rows, {}


def _pages(first: Path, second: Path) -> list[str]:
    """Return the two pages of the first kind that both folders have; none where there is none."""
    for name in PAGES:
        files = first / name, second / name
        if all(file.is_file() for file in files):
            return [file.read_text("utf-8") for file in files]
    return []


def _names(first: Path, second: Path) -> Names:
    """Return the names of two folders, or their whole paths if both have one name.

    A folder that is compared with itself is called the first and the second.
    """
    first_name = in_one_line(first.resolve().name)
    second_name = in_one_line(second.resolve().name)
    if first_name == second_name:
        first_name = in_one_line(str(first))
        second_name = in_one_line(str(second))
    if first_name == second_name:
        return f"{first_name} (first)", f"{second_name} (second)"
    return first_name, second_name
