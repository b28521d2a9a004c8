"""profile --shuffle: what it writes, made again by NumPy from its own tokens."""

import csv
import json

import numpy as np
import pytest
from matplotlib.figure import Figure
from reference.publishers import CONFIGS, spelt, write_with_letters
from scipy import stats

from lim_jax import models, results
from lim_jax.attribution.orders import averaged_orders
from lim_jax.cli.commands import main
from lim_jax.prompts.contexts import Context, Span
from lim_jax.prompts.shuffling import ShuffledContexts

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
        lines.append({"documents": documents, "question": spelt([1, 2]), "answer": spelt([3, 4]),
                      "id": number})  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_with_letters(tmp_path_factory.mktemp("weights"), CONFIGS["llama"])


def table(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


@pytest.mark.slow
def test_documents_in_three_orders_of_two_lines(folder, tmp_path, capsys, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, path: drawn.setdefault(path.name, figure.axes[0])
    )
    out = tmp_path / "out"
    arguments = [str(folder), "--data", str(written(tmp_path / "data.jsonl")), "--out", str(out)]
    assert main(["profile", *arguments, "--loss", "margin", "--shuffle", "3"]) == 0
    tokens = table(out / "tokens.csv")
    energies, texts = [], []
    for number in range(6):
        rows = [row for row in tokens if int(row["context"]) == number]
        energies.append(column(rows, "energy"))
        texts.append("".join(row["token"] for row in rows))
    # Every document at every place once: its share by where its text stands in the tokens.
    cells, orders = {}, table(out / "orders.csv")
    for row in orders:
        context, line, place = int(row["context"]), int(row["line"]), int(row["place"])
        assert context == 3 * line + int(row["order"])
        shown = {
            name: f"{name}\n{text}" for name, text in zip(NAMES[line], TEXTS[line], strict=True)
        }
        starts = {name: texts[context].index(part) for name, part in shown.items()}
        start, length = starts[row["document"]], len(shown[row["document"]])
        energy = energies[context]
        share = energy[start : start + length].sum() / energy.sum()
        np.testing.assert_allclose(float(row["share"]), share, rtol=1e-4)
        cells[line, row["document"], place] = float(row["share"])
        assert sorted(starts.values()).index(start) == place - 1
    assert len(cells) == 18
    shares = np.array([[[cells[n, d, p] for p in (1, 2, 3)] for d in "abc"] for n in (0, 1)])
    by_place, by_document = shares.mean(axis=1), shares.mean(axis=2)
    rows = table(out / "by_place.csv")
    np.testing.assert_allclose(column(rows, "place"), [1, 2, 3])
    np.testing.assert_allclose(column(rows, "share"), by_place.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(column(rows, "error"), stats.sem(by_place), rtol=1e-9)
    rows = table(out / "by_document.csv")
    assert [row["document"] for row in rows] == ["a", "b", "c"]
    np.testing.assert_allclose(column(rows, "share"), by_document.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(column(rows, "error"), stats.sem(by_document), rtol=1e-9)
    rows = table(out / "two_way.csv")
    assert [(row["document"], row["place"]) for row in rows] == [
        (d, p) for d in "abc" for p in "123"
    ]
    np.testing.assert_allclose(column(rows, "share"), shares.mean(axis=0).ravel(), rtol=1e-9)
    np.testing.assert_allclose(column(rows, "error"), stats.sem(shares).ravel(), rtol=1e-9)
    document = json.loads((out / "shuffle.json").read_text())
    assert document["documents"] == ["a", "b", "c"]
    assert (document["contexts"], document["orders"]) == (2, 3)
    gaps = by_place[:, [0, 2]].mean(axis=1) - by_place[:, 1]
    np.testing.assert_allclose(document["gap"]["share"], gaps.mean(), rtol=1e-9)
    np.testing.assert_allclose(document["gap"]["error"], stats.sem(gaps), rtol=1e-9)
    np.testing.assert_allclose(document["by_place"]["share"], by_place.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(document["table"]["share"], shares.mean(axis=0), rtol=1e-9)
    printed = capsys.readouterr().out
    assert document["finding"] in printed and "Errors are over 2 lines" in printed
    assert "6 contexts of 46 tokens, 3 orders of each line, loss margin" in printed
    lines = drawn["shuffle.svg"].lines
    np.testing.assert_allclose(lines[0].get_ydata(), shares[:, 0].mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(lines[-1].get_ydata(), by_place.mean(axis=0), rtol=1e-9)
    # Orders of a line count as one context everywhere else.
    averaged = np.array(energies).reshape(2, 3, 46).mean(axis=1)
    density = averaged.mean(axis=0) / averaged.mean()
    np.testing.assert_allclose(column(table(out / "profile.csv"), "density"), density, rtol=1e-4)
    assert json.loads((out / "profile.json").read_text())["influence"]["examples"] == 2
    kept = results.load(out / "contexts.npz")
    np.testing.assert_allclose(np.array(kept.energies), averaged, rtol=1e-4)
    assert kept.names == ["0", "1"] and kept.asked == [43, 43]
    np.testing.assert_allclose([kept.shares[name] for name in "abc"], by_document.T, rtol=1e-4)
    records = {row["name"]: row for row in table(out / "records.csv")}
    assert list(records) == ["a", "b", "c", "question", ""], "as they stand in the line"
    record = records["b"]
    assert float(record["share"]) == pytest.approx(by_document[:, 1].mean(), rel=1e-4)
    assert int(record["contexts"]) == 2


@pytest.mark.slow
def test_lines_of_other_documents_are_told_by_their_number(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: None)
    monkeypatch.setattr(models, "energies_of_ids", lambda network, windows, **rest: [
        np.arange(1.0, len(window), dtype=np.float32) for window in windows
    ])  # fmt: skip
    data, out = (
        written(tmp_path / "data.jsonl", [["a", "b", "c"], ["d", "b", "c"]]),
        tmp_path / "out",
    )
    arguments = ["profile", str(folder), "--data", str(data), "--loss", "answer", "--shuffle"]
    assert main([*arguments, "2", "--out", str(out)]) == 0
    document = json.loads((out / "shuffle.json").read_text())
    assert document["documents"] == ["document 1", "document 2", "document 3"]
    first = next(row for row in table(out / "orders.csv") if row["document"] == "document 1")
    assert first["line"] == "0" and "document 1" in capsys.readouterr().out
    data.write_text(data.read_text().splitlines()[0])
    assert main([*arguments, "3", "--out", str(out), "--overwrite"]) == 0
    assert "Errors are over 3 orders of one line" in capsys.readouterr().out


@pytest.mark.parametrize("shuffle, message", [("1", "orders: got 1"), ("-1", "shuffle: got -1")])
def test_fewer_than_two_orders_are_refused(shuffle, message, folder, tmp_path):
    data = written(tmp_path / "data.jsonl")
    arguments = [str(folder), "--data", str(data), "--loss", "answer", "--out", str(tmp_path / "o")]
    with pytest.raises(ValueError, match=message):
        main(["profile", *arguments, "--shuffle", shuffle])
    assert not (tmp_path / "o").exists()


def test_orders_of_other_lengths_are_averaged_on_the_first_ones_tokens():
    def context(length, places):
        weights = np.eye(length)[length - 1]
        return Context(np.zeros(length + 1, int), weights, ("t",) * length,
                       (Span("the rest", np.array(places)),))  # fmt: skip

    line = ShuffledContexts(
        ("the rest",), np.zeros((2, 1), int), (context(4, [0]), context(6, [2, 3]))
    )
    energies = [np.array([4.0, 1.0, 2.0, 1.0]), np.array([3.0, 1.0, 2.0, 6.0, 0.0, 3.0])]
    alone, averaged, shares = averaged_orders([line], energies)
    second = np.repeat(energies[1], 2).reshape(4, 3).mean(axis=1)
    np.testing.assert_allclose(averaged[0], (energies[0] + second) / 2, rtol=1e-12)
    assert alone == [line.contexts[0]]
    expected = [[(4 / 8 + 8 / 15) / 2, 1.5, (1 / 4 + 2 / 6) / 2]]
    assert [(one.name, one.kind) for one in shares] == [("the rest", "part"), ("", "rest")], (
        "a name of ours"
    )
    np.testing.assert_allclose(shares[0].held, expected)
    np.testing.assert_allclose(shares[1].held, np.array([[1, 5, 1]]) - expected)
