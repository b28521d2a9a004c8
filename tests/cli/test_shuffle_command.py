"""profile --shuffle: what it writes, made again by NumPy from its own tokens."""

import contextlib
import csv
import io
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from matplotlib.figure import Figure
from reference.json_entries import require_entries
from reference.publishers import CONFIGS, spelt, write_with_letters
from scipy import stats

from lim_jax import models, results
from lim_jax.attribution.orders import average_orders
from lim_jax.cli.commands import main
from lim_jax.prompts.contexts import Context, Span
from lim_jax.prompts.document_orders import ShuffledContexts

GENERATOR = np.random.default_rng(4)
SIZES = (3, 5, 4)  # of the documents, in letters
TEXTS = [[spelt(GENERATOR.integers(11, size=size)) for size in SIZES] for _ in range(2)]
NAMES = [["a", "b", "c"], ["c", "a", "b"]]  # the second line's stand in another order


def written(path, titles=NAMES):
    """Lines of a title and a text for each document, which stand below one another."""
    lines = []
    for number, (names, texts) in enumerate(zip(titles, TEXTS, strict=True)):
        pairs = zip(names, texts, strict=True)
        documents = [{"title": title, "text": text} for title, text in pairs]
        lines.append(
            {
                "documents": documents,
                "question": spelt([1, 2]),
                "answer": spelt([3, 4]),
                "id": number,
            }
        )
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_with_letters(tmp_path_factory.mktemp("weights"), CONFIGS["llama"])


def table(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


class Shuffled(NamedTuple):
    """What one run of the command left, and shares that follow from its tokens' energies."""

    out: Path
    printed: str
    lines: list  # of the figure
    energies: np.ndarray  # of the six contexts' tokens
    texts: list[str]  # of the six contexts
    shares: np.ndarray  # of each line's documents a, b and c, at places 1, 2 and 3


@pytest.fixture(scope="module")
def shuffled(folder, tmp_path_factory):
    """The command with three orders of two lines; shares are of where texts stand in the tokens."""
    data = written(tmp_path_factory.mktemp("data") / "data.jsonl")
    out = tmp_path_factory.mktemp("o")
    arguments = ["profile", str(folder), "--data", str(data), "--out", str(out), "--overwrite"]
    printed = io.StringIO()
    drawn = {}
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(
            Figure,
            "savefig",
            lambda figure, path, **options: drawn.setdefault(path.name, figure.axes[0]),
        )
        assert main([*arguments, "--loss", "margin", "--shuffle", "3"]) == 0
    tokens = table(out / "tokens.csv")
    energies = []
    texts = []
    shares = np.full((2, 3, 3), np.nan)
    for context in range(6):
        rows = [row for row in tokens if int(row["context"]) == context]
        energies.append(column(rows, "energy"))
        texts.append("".join(row["token"] for row in rows))
        line = context // 3
        spans = spans_of(texts[-1], line)
        for place, name in enumerate(sorted(spans, key=spans.__getitem__)):
            start, end = spans[name]
            held = energies[-1][start:end].sum() / energies[-1].sum()
            shares[line, "abc".index(name), place] = held
    assert np.isfinite(shares).all(), "every document stands at every place once"
    lines = drawn["shuffle.svg"].lines
    return Shuffled(out, printed.getvalue(), lines, np.array(energies), texts, shares)


def spans_of(text, line):
    """Where each document of a line stands in a context's text, by its name."""
    shown = {name: f"{name}\n{said}" for name, said in zip(NAMES[line], TEXTS[line], strict=True)}
    return {name: (text.index(one), text.index(one) + len(one)) for name, one in shown.items()}


def assert_means(rows, samples):
    """Shares are the means of the lines' and errors their standard errors."""
    np.testing.assert_allclose(column(rows, "share"), samples.mean(axis=0).ravel(), rtol=1e-4)
    np.testing.assert_allclose(column(rows, "error"), stats.sem(samples).ravel(), rtol=1e-3)


@pytest.mark.slow
def test_every_document_stands_at_every_place_once_with_its_share(shuffled):
    rows = table(shuffled.out / "orders.csv")
    assert len(rows) == 18
    for row in rows:
        context = int(row["context"])
        line = int(row["line"])
        place = int(row["place"])
        assert context == 3 * line + int(row["order"])
        spans = spans_of(shuffled.texts[context], line)
        assert sorted(spans.values()).index(spans[row["document"]]) == place - 1
        expected = shuffled.shares[line, "abc".index(row["document"]), place - 1]
        np.testing.assert_allclose(float(row["share"]), expected, rtol=1e-4)


@pytest.mark.slow
def test_shares_by_place_are_means_over_documents(shuffled):
    rows = table(shuffled.out / "by_place.csv")
    np.testing.assert_allclose(column(rows, "place"), [1, 2, 3])
    assert_means(rows, shuffled.shares.mean(axis=1))


@pytest.mark.slow
def test_shares_by_document_are_means_over_places(shuffled):
    rows = table(shuffled.out / "by_document.csv")
    assert [row["document"] for row in rows] == ["a", "b", "c"]
    assert_means(rows, shuffled.shares.mean(axis=2))


@pytest.mark.slow
def test_the_two_way_table_has_every_document_at_every_place(shuffled):
    rows = table(shuffled.out / "two_way.csv")
    cells = [(row["document"], row["place"]) for row in rows]
    assert cells == [(document, place) for document in "abc" for place in "123"]
    assert_means(rows, shuffled.shares)


@pytest.mark.slow
def test_the_summary_has_the_gap_between_the_ends_and_the_middle(shuffled):
    document = json.loads((shuffled.out / "shuffle.json").read_text(encoding="utf-8"))
    assert document["documents"] == ["a", "b", "c"]
    assert (document["contexts"], document["orders"]) == (2, 3)
    by_place = shuffled.shares.mean(axis=1)
    gaps = by_place[:, [0, 2]].mean(axis=1) - by_place[:, 1]
    size = by_place.mean()  # which rounding is relative to
    np.testing.assert_allclose(document["gap"]["share"], gaps.mean(), atol=1e-4 * size)
    np.testing.assert_allclose(document["gap"]["error"], stats.sem(gaps), atol=1e-4 * size)
    np.testing.assert_allclose(document["by_place"]["share"], by_place.mean(axis=0), rtol=1e-4)
    table_ = shuffled.shares.mean(axis=0)
    np.testing.assert_allclose(document["table"]["share"], table_, rtol=1e-4)


@pytest.mark.slow
def test_every_entry_of_the_summary_is_in_the_table_of_names(shuffled):
    document = json.loads((shuffled.out / "shuffle.json").read_text(encoding="utf-8"))
    require_entries(document, "shuffle.json")


@pytest.mark.slow
def test_the_finding_is_printed_with_what_its_errors_are_over(shuffled):
    document = json.loads((shuffled.out / "shuffle.json").read_text(encoding="utf-8"))
    assert document["finding"] in shuffled.printed
    assert "Errors are over 2 lines" in shuffled.printed
    assert "6 contexts of 46 tokens, 3 orders of each line, loss margin" in shuffled.printed


@pytest.mark.slow
def test_the_figure_draws_each_document_and_their_mean_by_place(shuffled):
    first, *_, mean = shuffled.lines
    np.testing.assert_allclose(first.get_ydata(), shuffled.shares[:, 0].mean(axis=0), rtol=1e-4)
    by_place = shuffled.shares.mean(axis=(0, 1))
    np.testing.assert_allclose(mean.get_ydata(), by_place, rtol=1e-4)


@pytest.mark.slow
def test_orders_of_a_line_count_as_one_context_in_the_profile(shuffled):
    averaged = shuffled.energies.reshape(2, 3, 46).mean(axis=1)
    density = averaged.mean(axis=0) / averaged.mean()
    density_column = column(table(shuffled.out / "profile.csv"), "density")
    np.testing.assert_allclose(density_column, density, rtol=1e-4)
    profile = json.loads((shuffled.out / "profile.json").read_text(encoding="utf-8"))
    assert profile["influence"]["examples"] == 2
    kept = results.load(shuffled.out / "contexts.npz")
    np.testing.assert_allclose(np.array(kept.energies), averaged, rtol=1e-4)
    assert kept.names == ["0", "1"] and kept.asked == [43, 43]


@pytest.mark.slow
def test_orders_of_a_line_count_as_one_context_in_the_records(shuffled):
    by_document = shuffled.shares.mean(axis=2)
    kept = results.load(shuffled.out / "contexts.npz")
    np.testing.assert_allclose([kept.shares[name] for name in "abc"], by_document.T, rtol=1e-4)
    records = {row["name"]: row for row in table(shuffled.out / "records.csv")}
    assert list(records) == ["a", "b", "c", "question", ""], "as they stand in the line"
    assert float(records["b"]["share"]) == pytest.approx(by_document[:, 1].mean(), rel=1e-4)
    assert int(records["b"]["contexts"]) == 2


@pytest.mark.slow
def test_lines_of_other_documents_are_told_by_their_number(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: None)
    monkeypatch.setattr(
        models,
        "energies_of_ids",
        lambda network, windows, **rest: [
            np.arange(1.0, len(window), dtype=np.float32) for window in windows
        ],
    )
    data = written(tmp_path / "data.jsonl", [["a", "b", "c"], ["d", "b", "c"]])
    out = tmp_path / "out"
    arguments = ["profile", str(folder), "--data", str(data), "--loss", "answer", "--shuffle"]
    assert main([*arguments, "2", "--out", str(out)]) == 0
    document = json.loads((out / "shuffle.json").read_text(encoding="utf-8"))
    assert document["documents"] == ["document 1", "document 2", "document 3"]
    first = next(row for row in table(out / "orders.csv") if row["document"] == "document 1")
    assert first["line"] == "0" and "document 1" in capsys.readouterr().out
    data.write_text(data.read_text(encoding="utf-8").splitlines()[0], encoding="utf-8")
    assert main([*arguments, "3", "--out", str(out), "--overwrite"]) == 0
    assert "Errors are over 3 orders of one line" in capsys.readouterr().out


def test_lines_without_documents_have_no_orders(folder, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "abc", "answer": "d"}\n', encoding="utf-8")
    out = tmp_path / "out"
    arguments = [str(folder), "--data", str(data), "--loss", "answer", "--out", str(out)]
    with pytest.raises(
        ValueError, match="line 1: got 0 documents with --shuffle, expected at least"
    ):
        main(["profile", *arguments, "--shuffle", "2"])


@pytest.mark.parametrize(
    "shuffle, message",
    [("1", "shuffle: got 1, expected 0"), ("-1", "--shuffle -1 is not accepted")],
)
def test_fewer_than_two_orders_are_refused(shuffle, message, folder, tmp_path):
    data = written(tmp_path / "data.jsonl")
    arguments = [str(folder), "--data", str(data), "--loss", "answer", "--out", str(tmp_path / "o")]
    with pytest.raises(ValueError, match=message):
        main(["profile", *arguments, "--shuffle", shuffle])
    assert not (tmp_path / "o").exists()


def test_orders_of_other_lengths_are_averaged_on_the_first_ones_tokens():
    def context(length, places):
        weights = np.eye(length)[length - 1]
        return Context(
            np.zeros(length + 1, int),
            weights,
            ("t",) * length,
            (Span("the rest", np.array(places)),),
        )

    line = ShuffledContexts(
        ("the rest",), np.zeros((2, 1), int), (context(4, [0]), context(6, [2, 3]))
    )
    energies = [np.array([4.0, 1.0, 2.0, 1.0]), np.array([3.0, 1.0, 2.0, 6.0, 0.0, 3.0])]
    alone, averaged, shares = average_orders([line], energies)
    second = np.repeat(energies[1], 2).reshape(4, 3).mean(axis=1)
    np.testing.assert_allclose(averaged[0], (energies[0] + second) / 2, rtol=1e-12)
    assert alone == [line.contexts[0]]
    expected = np.array([(4 / 8 + 8 / 15) / 2, 1.5, (1 / 4 + 2 / 6) / 2])
    assert [(share.name, share.kind) for share in shares] == [("the rest", "part"), ("", "rest")], (
        "a name of ours"
    )
    named, rest = (
        np.concatenate([share.scores, share.tokens, share.token_shares]) for share in shares
    )
    np.testing.assert_allclose(named, expected)
    np.testing.assert_allclose(rest, np.array([1, 5, 1]) - expected)
