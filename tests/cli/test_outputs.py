"""One number, wherever a command says it: terminal, page, JSON and CSV, of names that collide.

The energies are drawn here: what is tested is who says them, and under which name.
"""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from reference.json_entries import require_entries
from reference.pages import Read
from reference.publishers import CONFIGS, write_with_letters

from lim_jax import explanations, models, report
from lim_jax.attribution import files
from lim_jax.cli.commands import main
from lim_jax.explanations.account import TokenBreakdown
from lim_jax.results.percentages import percent
from lim_jax.results.tables import COLUMNS, FILES, KEYS

COMMANDS = Path(__file__).parents[2] / "docs" / "commands.md"
# Two titles are names of the commands' own, and two begin alike.
LONG = "a title that is longer than any column is wide, "
DOCUMENTS = {"the rest": "abcabd", "any document": "hgjh", f"{LONG}one": "ic", f"{LONG}two": "fdf"}


def drawn(window):
    """Energies of a context, of which any place tells the context."""
    seed = np.random.default_rng(np.asarray(window).tolist())
    return np.exp(seed.standard_normal(len(window) - 1)).astype(np.float32)


def account(network, window, weights, depth, loss, progress):
    energy = np.asarray(drawn(window), float)[None]
    parts: Any = (
        np.ones(()),
        np.asarray(weights),
        *(np.repeat(energy, n, 0) for n in (3, 4)),
        np.ones((1, 1)),
        np.repeat(energy, 2, 0),
    )
    return TokenBreakdown(*parts)


class Run:
    """A command's folder, what it printed, and its page."""

    def __init__(self, out, printed):
        self.out, self.printed = out, printed.splitlines()
        for page in ("profile.html", "answer.html"):
            if (out / page).exists():
                self.page = Read((out / page).read_text("utf-8"))

    def table(self, name):
        with (self.out / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def json(self, name):
        return json.loads((self.out / name).read_text(encoding="utf-8"))

    def line(self, begins):
        """The one of a table that begins with a name, and goes on with a number."""
        rows = re.compile(re.escape(begins) + r" +[\d.]+%")
        (found,) = filter(rows.match, self.printed)
        return found

    def texts(self, *of):
        return [" ".join(element["text"].split()) for element in self.page.all(*of)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_with_letters(tmp_path_factory.mktemp("weights"), CONFIGS["llama"])


@pytest.fixture
def run(folder, tmp_path, monkeypatch, capsys):
    def energies(network, windows, **rest):
        return [drawn(window) for window in windows]

    monkeypatch.setattr(models, "energies_of_ids", energies)
    monkeypatch.setattr(explanations, "account_of_context", account)
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())
    monkeypatch.setattr(report.page.vl_convert, "javascript_bundle", str)  # 0.9 MB less to parse

    def of(command, *arguments, out="out"):
        capsys.readouterr()
        options = "--out", str(tmp_path / out)
        assert main([command, str(folder), *map(str, arguments), *options]) == 0
        return Run(tmp_path / out, capsys.readouterr().out)

    return of


def lines(path, documents):
    """Two lines of as many documents each, with ids."""
    asked = [
        {"documents": one, "question": f"b{number}", "answer": "ad", "id": f"line {number}"}
        for number, one in enumerate(documents)
    ]
    path.write_text("\n".join(map(json.dumps, asked)), encoding="utf-8")
    return path


def test_every_name_is_in_the_table_with_its_unit():
    assert {name for names in FILES.values() for name in names} == set(COLUMNS)
    page = COMMANDS.read_text("utf-8")
    tables = {"name": COLUMNS}
    for file, entries in KEYS.items():
        name, of, what = file.partition(" of ")
        tables[f"in `{name}`{of}{what}"] = entries
    for name, entries in tables.items():
        head = f"| {name} | unit | what it is |\n|---|---|---|\n"
        said = page.split(head)[1].split("\n\n")[0]
        rows = [f"| `{entry}` | {unit} | {meaning} |" for entry, (unit, meaning) in entries.items()]
        assert said.splitlines() == rows


def test_a_character_of_several_tokens_keeps_a_row_for_each_in_which_it_can_be_read():
    pieces = files._pieces(["n", "", "", "\u4e16", "!", ""])
    wholes = [("\u4e16", "1/3"), ("\u4e16", "2/3"), ("\u4e16", "3/3")]
    assert pieces == [("n", ""), *wholes, ("!", ""), ("\ufffd", "")]


def require_columns(found):
    """Every table's columns are those of the table of names."""
    for path in found.out.glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            assert tuple(next(csv.reader(file))) == FILES[path.name]


def require_records(found, over_all):
    """What every part holds: alike in two files, on the terminal and, where it is there, the page.

    Returns
    -------
    records
        The rows of records.csv.
    """
    records = found.table("records.csv")
    written = [
        {name: "" if value is None else str(value) for name, value in one.items()}
        for one in found.json("profile.json")["records"]
    ]
    assert written == records
    rows = {}
    if over_all:
        (table,) = found.page.all("table", "records")
        heads = found.page.texts_in(table, "th")[5:]  # after those of the columns
        cells = np.array(found.page.texts_in(table, "td")).reshape(-1, 4).tolist()
        rows = dict(zip(heads, cells, strict=True))
        assert len(rows) == len(records), "no two look alike"
    by_context = found.table("records_by_context.csv")
    for record in records:
        part = record["name"], record["kind"]
        each = [row for row in by_context if (row["name"], row["kind"]) == part]
        for name in ("share", "tokens", "of_tokens"):
            mean = np.mean([float(row[name]) for row in each])
            assert float(record[name]) == pytest.approx(mean, rel=1e-5)
        share = float(record["share"])
        error = float(record["error"] or "inf")
        rest = record["kind"] == "rest"
        several = int(record["texts"]) > 1
        texts = f" ({record['texts']} different texts)" * several
        words = "the rest, in no part" if rest else f"“{record['name']}”{texts}"
        if over_all:
            assert f"{share:.1%}" in found.line(words) and record["most"] in found.line(words)
            name = record["name"] + f" {record['texts']} different texts" * several
            shown = rows[words if rest else name]
            assert shown[0].startswith(percent(share, error))
            assert shown[1] == percent(float(record["of_tokens"]))
            assert shown[2:] == [record["contexts"], record["most"]]
    return records


@pytest.mark.slow
def test_a_question_of_documents_whose_titles_are_words_of_ours(run, tmp_path):
    documents = tmp_path / "documents.jsonl"
    entries = [{"title": title, "text": text} for title, text in DOCUMENTS.items()]
    documents.write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    found = run("ask", "bc", "--documents", documents, "--answer", "ad", "--method", "influence")
    require_columns(found)
    document = found.json("answer.json")
    require_entries(document, "answer.json", "answer.json, parts", absent=["support.", "together."])
    parts = document["parts"]
    assert [one["kind"] for one in parts] == [*["document"] * 4, "question", "rest"]
    # One of our own words gets its number.
    named = {f"{title} (document 1)" if title == "the rest" else title for title in DOCUMENTS}
    assert {one["name"] for one in parts[:4]} == named
    assert sum(one["score"] for one in parts) == pytest.approx(1, rel=1e-5)
    assert sum(one["of_documents"] or 0 for one in parts) == pytest.approx(1, rel=1e-5)
    scores = found.table("scores.csv")
    assert sum(one["tokens"] for one in parts) == len(scores)
    assert sum(float(row["score"]) for row in scores) == pytest.approx(1, rel=1e-5)
    gave = {name: 0.0 for name in named}
    for row in found.table("matrix.csv"):
        gave[row["name"]] += float(row["score"])
    for part in parts:
        assert tuple(part) == FILES["answer.json, parts"]
        words = "the rest, in no part" if part["kind"] == "rest" else f"“{part['name']}”"
        told = found.line(words).removeprefix(words).split()
        assert told[0] == f"{part['score']:.1%}" and str(part["tokens"]) in told
        assert part["most"] in found.line(words)
        assert gave.get(part["name"], part["score"]) == pytest.approx(part["score"], rel=1e-3)
    # The page begins with the question.
    assert found.texts("h1") == ["bc"]
    # On the terminal the finding follows what the run takes.
    assert document["finding"] in found.printed[:4]


@pytest.fixture
def two_lines(tmp_path):
    texts = ["abca", "hgj", "if"], ["dd", "eab", "cjic"]
    documents = [[{"text": text} for text in line] for line in texts]
    return "--data", lines(tmp_path / "data.jsonl", documents), "--loss", "margin"


@pytest.fixture
def shuffled(run, two_lines):
    return run("profile", *two_lines, "--shuffle", "3", "--html")


@pytest.mark.slow
def test_columns_and_records_of_orders_are_as_the_tables_say(shuffled):
    require_columns(shuffled)
    profile = shuffled.json("profile.json")
    absent = "signed", "method", "loss", "given"
    require_entries(profile, "profile.json", "profile.json, records", absent=absent)
    records = require_records(shuffled, over_all=True)
    assert [(record["name"], record["texts"]) for record in records[:3]] == [
        (f"document {number}", "2") for number in (1, 2, 3)
    ]


@pytest.mark.slow
def test_a_page_of_orders_shows_the_first_contexts_by_line_and_order(shuffled):
    terms = shuffled.texts("dt")
    values = shuffled.texts("dd")
    assert values[terms.index("contexts shown")] == "first 5 of 6 measured"
    assert [summary.split(":")[0] for summary in shuffled.texts("summary")[:4]] == [
        *(f"“b0” (id line 0), order {order}" for order in range(3)),
        "“b1” (id line 1), order 0",
    ]


@pytest.mark.slow
def test_a_page_of_orders_says_the_terminals_sentences(shuffled):
    """Which says that the documents are others."""
    document = shuffled.json("shuffle.json")
    said = shuffled.texts("p", "finding")
    begins = shuffled.printed.index(said[0])
    assert shuffled.printed[begins : begins + len(said)] == said
    finding = document["finding"].splitlines()
    assert said[1 : 1 + len(finding)] == finding
    assert not document["same_documents"] and "not one document" in said[0]


@pytest.mark.slow
def test_a_page_of_orders_has_the_files_table_by_place(shuffled):
    (table,) = shuffled.page.all("table", "by-place")
    heads = shuffled.page.texts_in(table, "th")[5:]  # after those of the columns
    cells = np.array(shuffled.page.texts_in(table, "td")).reshape(4, 4).tolist()
    for row in shuffled.table("two_way.csv"):
        number = int(row["document"].split()[1])
        cell = cells[number - 1][int(row["place"]) - 1]
        assert cell == f"{100 * float(row['share']):.1f} ± {100 * float(row['error']):.1f}"
        assert heads[number - 1] == f"“{row['document']}”"


@pytest.mark.slow
def test_orders_are_found_again_in_tokens_contexts_and_ids(shuffled):
    orders = shuffled.table("orders.csv")
    contexts = shuffled.table("contexts.csv")
    of_tokens = {row["context"] for row in shuffled.table("tokens.csv")}
    assert {row["context"] for row in orders} == of_tokens
    assert [(row["context"], row["id"]) for row in contexts] == [("0", "line 0"), ("3", "line 1")]
    assert {(row["line"], row["id"]) for row in orders} == {("0", "line 0"), ("1", "line 1")}


@pytest.mark.slow
def test_orders_are_compared_with_the_lines_as_they_stand(run, two_lines, shuffled, tmp_path):
    """By the shares and errors of both profiles, in the file and on the page."""
    one_order = run("profile", *two_lines, out="plain")
    require_records(one_order, over_all=False)
    compared = tmp_path / "compared"
    arguments = [str(one_order.out), str(shuffled.out), "--out", str(compared)]
    assert main(["compare", *arguments]) == 0
    page = Read((compared / "compare.html").read_text("utf-8"))
    heads = [one["text"] for one in page.all("th")[5:]]  # after those of the columns
    numbers_of = np.array([one["text"] for one in page.all("td")]).reshape(-1, 4).tolist()
    cells = dict(zip(heads, numbers_of, strict=True))
    with (compared / "records.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == FILES["compare, records.csv"] and len(rows) == 4
    for row in rows:
        for which, of in (("first", one_order), ("second", shuffled)):
            (record,) = (one for one in of.table("records.csv") if one["name"] == row["name"])
            assert float(row[which]) == pytest.approx(float(record["share"]), rel=1e-6)
            assert float(row[f"{which}_error"]) == pytest.approx(float(record["error"]), rel=1e-6)
        numbers = (row[name] for name in ("first", "second", "difference", "error"))
        shown = cells[f"share of “{row['name']}”"]
        assert shown == [f"{float(number):.4g}" for number in numbers]
