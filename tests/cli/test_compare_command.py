"""The command compare: two folders of profile, read back and subtracted by NumPy."""

import base64
import contextlib
import csv
import io
import json
from html.parser import HTMLParser
from typing import Any, NamedTuple

import numpy as np
import pytest
from matplotlib.figure import Figure
from reference.json_entries import require_entries

from lim_jax import results
from lim_jax.attribution.answer_comparison import compare_answers
from lim_jax.cli.commands import main
from lim_jax.results.context_energies import MeasuredContexts
from lim_jax.results.tables import FILES

PLACES = np.arange(1, 13) / 12
COMMON = np.exp(np.random.default_rng(0).standard_normal((5, 1)) / 2)


def energies(seed, tilt):
    """Float32, as a network's; the contexts move both alike."""
    noise = np.exp(np.random.default_rng(seed).standard_normal((5, 12)) / 10)
    return (COMMON * noise * (1 + tilt * PLACES)).astype(np.float32)


ROWS = energies(1, 0.0), energies(2, 2.0)
NAMES = list("abcde"), list("bdaxy")
PAIRS = np.array([[0, 2], [1, 0], [3, 1]])
ORDER = [1, 3, 0, 2, 4]  # of the second's rows: x and y are c and e under other names


def write_folders(path):
    """Of the second result the contexts in another order, two under other names."""
    for name, rows, names in zip("AB", (ROWS[0], ROWS[1][ORDER]), NAMES, strict=True):
        shares = {
            "key": (rows[:, :3].sum(axis=1) / rows.sum(axis=1)).tolist(),
            name: [0.5] * 5,
        }
        kept = MeasuredContexts(names, list(rows), [9] * 5, shares, 0.25)
        results.save(kept, path / name / "contexts.npz")
    return path


@pytest.fixture
def folders(tmp_path):
    return write_folders(tmp_path)


def table(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


def expected_change(first, second):
    """The density's difference, and its error by leaving out one context after the other."""

    def density(rows):
        return rows.mean(axis=0) / rows.mean()

    change = density(second) - density(first)
    contexts = [(0, 2), (1, 0), (2, None), (3, 1), (4, None), (None, 3), (None, 4)]
    left_out = np.array(
        [
            density(second if b is None else np.delete(second, b, axis=0))
            - density(first if a is None else np.delete(first, a, axis=0))
            - change
            for a, b in contexts
        ]
    )
    return change, np.sqrt(4 / 5 * (left_out**2).sum(axis=0))


class Compared(NamedTuple):
    """What one run of the command wrote, printed and drew."""

    rows: list[dict[str, str]]
    document: dict[str, Any]
    printed: list[str]
    figures: dict[str, list[Any]]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = write_folders(tmp_path_factory.mktemp("compared"))
    figures = {}

    def savefig(figure, path, **options):
        figures[path.name] = figure.axes
        path.touch()

    out = folder / "C"
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(printed):
        patched.setattr(Figure, "savefig", savefig)
        assert main(["compare", str(folder / "A"), str(folder / "B"), "--out", str(out)]) == 0
    document = json.loads((out / "compare.json").read_text(encoding="utf-8"))
    rows = table(out / "compare.csv")
    return Compared(rows, document, printed.getvalue().splitlines(), figures)


@pytest.mark.slow
def test_two_densities_are_subtracted_in_pairs(compared):
    change, error = expected_change(*(rows.astype(float) for rows in (ROWS[0], ROWS[1][ORDER])))
    np.testing.assert_allclose(column(compared.rows, "position"), PLACES, rtol=1e-6)
    np.testing.assert_allclose(column(compared.rows, "difference"), change, atol=1e-5)
    np.testing.assert_allclose(column(compared.rows, "error"), error, rtol=0.15)
    for name, of_one in (("first", ROWS[0]), ("second", ROWS[1])):
        density = of_one.mean(axis=0) / of_one.mean()
        np.testing.assert_allclose(column(compared.rows, name), density, rtol=1e-4)


@pytest.mark.slow
def test_every_entry_of_a_comparison_of_profiles_is_in_the_table_of_names(compared):
    require_entries(compared.document, "compare.json of profiles", "compare, records.csv")


@pytest.mark.slow
def test_the_document_has_the_densities_of_the_table(compared):
    document = compared.document
    whole = document["influence"]
    rows = compared.rows
    assert document["pairs"] == 3 and (document["first"], document["second"]) == ("A", "B")
    np.testing.assert_array_equal(whole["difference"]["density"], column(rows, "difference"))
    np.testing.assert_array_equal(whole["difference"]["density_error"], column(rows, "error"))
    for name in ("first", "second"):
        np.testing.assert_array_equal(whole[name]["density"], column(rows, name))
        np.testing.assert_array_equal(whole[name]["density_error"], column(rows, f"{name}_error"))


@pytest.mark.slow
def test_indices_and_totals_are_subtracted_with_and_without_the_queried_tokens(compared):
    change, _ = expected_change(*(rows.astype(float) for rows in (ROWS[0], ROWS[1][ORDER])))
    whole = compared.document["influence"]["difference"]
    middle = change[3:9].sum() / 12
    assert whole["indices"]["middle"] / 2 == pytest.approx(middle, rel=1e-3)
    totals = [of_one.mean() for of_one in ROWS]
    assert whole["total"] == pytest.approx(totals[1] - totals[0], rel=1e-4)
    rest = compared.document["influence_without_queries"]["difference"]
    lost = [of_one[:, :9].sum() / 60 for of_one in ROWS]
    assert rest["total"] == pytest.approx(lost[1] - lost[0], rel=1e-4)


@pytest.mark.slow
def test_the_finding_is_printed_and_kept(compared):
    difference = compared.document["influence"]["difference"]
    points, errors = (50 * difference[of]["middle"] for of in ("indices", "index_errors"))
    word = "more" if points > 0 else "less"
    head, first, second, *_ = compared.printed
    assert head == "== B minus A: 3 contexts in both, paired, 2 and 2 in one alone =="
    assert first.startswith(f"B uses the middle {abs(points):.1f} ± {errors:.1f} points {word}")
    assert second.startswith("Without the queried tokens: B uses the middle ")
    assert compared.document["finding"].splitlines() == compared.printed[1:4]


@pytest.mark.slow
def test_the_indices_of_both_and_their_difference_are_printed(compared):
    whole = compared.document["influence"]
    numbers = [
        whole["first"]["indices"],
        whole["second"]["indices"],
        whole["difference"]["indices"],
        whole["difference"]["index_errors"],
    ]
    expected = ["density", "middle", *(f"{of['middle']:.4g}" for of in numbers)]
    assert expected in [line.split() for line in compared.printed]


@pytest.mark.slow
def test_the_difference_is_drawn_below_the_densities_within_two_errors(compared):
    change, _ = expected_change(*(rows.astype(float) for rows in (ROWS[0], ROWS[1][ORDER])))
    assert compared.figures.keys() == {
        f"{name}.{kind}"
        for name in ("influence", "influence_without_queries")
        for kind in ("png", "svg")
    }
    upper, lower = compared.figures["influence.png"]
    assert upper.get_title() == "5 and 5 contexts, 3 in both"
    assert [line.get_label() for line in upper.lines][:1] == ["A ± 2 standard errors"]
    assert lower.get_ylabel() == "B minus A"
    np.testing.assert_allclose(lower.lines[0].get_ydata(), change, atol=1e-5)
    band = lower.collections[0].get_paths()[0].vertices
    difference, error = (column(compared.rows, name)[0] for name in ("difference", "error"))
    first = difference + np.array([-2, 2]) * error
    np.testing.assert_allclose(sorted({round(y, 4) for x, y in band if x < 0.1}), first, atol=2e-4)


def test_records_are_compared_where_both_have_them(folders, monkeypatch, capsys):
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda figure, path, **options: path.write_text(path.name, encoding="utf-8"),
    )
    out = folders / "C"
    assert main(["compare", str(folders / "A"), str(folders / "B"), "--out", str(out)]) == 0
    (row,) = table(out / "records.csv")
    shares = [rows[:, :3].sum(axis=1) / rows.sum(axis=1) for rows in (ROWS[0], ROWS[1][ORDER])]
    means = [share.mean() for share in shares]
    assert row["name"] == "key"
    numbers = {name: float(value) for name, value in row.items() if name != "name"}
    assert numbers["first"] == pytest.approx(means[0]) and numbers["second_contexts"] == 5
    assert numbers["second"] == pytest.approx(means[1]) and numbers["pairs"] == 3
    assert numbers["difference"] == pytest.approx(means[1] - means[0], rel=1e-4)
    deviations = [(share - share.mean()) / np.sqrt(20) for share in shares]
    covariance = (deviations[0][PAIRS[:, 0]] * deviations[1][PAIRS[:, 1]]).sum()
    variance = (deviations[0] ** 2).sum() + (deviations[1] ** 2).sum() - 2 * covariance
    assert numbers["error"] == pytest.approx(np.sqrt(variance), rel=1e-3)
    for name, share in zip(("first_error", "second_error"), shares, strict=True):
        assert numbers[name] == pytest.approx(share.std(ddof=1) / np.sqrt(5), rel=1e-3)
    (record,) = json.loads((out / "compare.json").read_text(encoding="utf-8"))["records"]
    assert record == {"name": "key", **numbers}
    points = 100 * abs(numbers["difference"])
    said = f"Of the records, “key” changed most for its error: B gives it {points:.1f} ±"
    assert any(line.startswith(said) for line in capsys.readouterr().out.splitlines())


def test_one_context_of_each_has_no_error_and_none_in_both_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda figure, path, **options: path.write_text(path.name, encoding="utf-8"),
    )
    for name, rows in zip(("x/same", "y/same"), ROWS, strict=True):
        kept = MeasuredContexts([name], [rows[0]], [0], {}, 0.25)
        results.save(kept, tmp_path / name / "contexts.npz")
    arguments = [str(tmp_path / "x" / "same"), str(tmp_path / "y" / "same")]
    assert main(["compare", *arguments, "--out", str(tmp_path / "C")]) == 0
    printed = capsys.readouterr().out
    assert f"{arguments[1]} minus {arguments[0]}: 1 and 1 contexts, none in both" in printed
    assert "which has no error" in printed and "inf" not in printed and "queried" not in printed
    document = json.loads((tmp_path / "C" / "compare.json").read_text(encoding="utf-8"))
    assert document["influence"]["difference"]["total_error"] is None
    assert "influence_without_queries" not in document and document["records"] == []


class Frames(HTMLParser):
    """What the frames of a page hold, its paragraphs, the cells of its table and its pictures."""

    def __init__(self, page):
        super().__init__()
        self.held, self.told, self.inside = [], {"p": [], "th": [], "td": []}, ""
        self.pictures = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "bdi":  # whose text is that of what is around it
            return
        self.inside = tag
        if tag in self.told:
            self.told[tag].append("")
        if tag == "iframe":
            self.held.append(dict(attrs)["srcdoc"])
        if tag == "img":
            kind, _, data = (dict(attrs)["src"] or "").partition("base64,")
            assert kind == "data:image/svg+xml;", "in the page itself"
            self.pictures.append(base64.b64decode(data).decode())

    def handle_endtag(self, tag):
        self.inside = self.inside if tag == "bdi" else ""

    def handle_data(self, data):
        if self.inside in self.told:
            self.told[self.inside][-1] += data


def test_the_page_has_the_table_and_the_figures_and_both_pages_where_they_are(
    folders, monkeypatch, capsys
):
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda figure, path, **options: path.write_text(path.name, encoding="utf-8"),
    )
    pages = ['<p class="a">A & "one"</p><script>1 < 2</script>', "<p>ß {x}</p>"]
    arguments = [str(folders / "A"), str(folders / "B"), "--out", str(folders / "C")]
    for name, page in zip("AB", pages, strict=True):
        (folders / name / "profile.html").write_text(page, "utf-8")
        assert main(["compare", *arguments, "--overwrite"]) == 0
        written = (folders / "C" / "compare.html").read_text("utf-8")
        assert Frames(written).held == (pages if name == "B" else [])
    frames = Frames((folders / "C" / "compare.html").read_text("utf-8"))
    document = json.loads((folders / "C" / "compare.json").read_text(encoding="utf-8"))
    _, *said = frames.told["p"]
    assert said == document["finding"].splitlines()
    assert frames.pictures == ["influence.svg", "influence_without_queries.svg"]
    printed = capsys.readouterr().out
    assert frames.told["th"][:5] == ["", "A", "B", "difference", "error"]
    cells = np.array(frames.told["td"]).reshape(-1, 4).tolist()
    rows = [[head, *row] for head, row in zip(frames.told["th"][5:], cells, strict=True)]
    assert len(rows) == 15 and rows[-1][0] == "share of “key”"
    for row in rows:  # each as the terminal has it
        assert any(line.split() == " ".join(row).split() for line in printed.splitlines())
    (record,) = document["records"]
    assert rows[-1][1:] == [
        f"{record[of]:.4g}" for of in ("first", "second", "difference", "error")
    ]


SCORES = {"B": {"a": 0.5, "b": -0.25, "c": 1.0, "": -0.5}, "C": {"a": -0.75, "b": -0.375, "": 0.25}}


def answers(folder, **changed):
    """Answers as `ask` writes them: the second is without a document, and asks something else."""
    for name, scores in SCORES.items():
        kinds = {"": "rest"}
        parts = [
            {"name": part, "kind": kinds.get(part, "document"), "score": score}
            for part, score in scores.items()
        ]
        record = {"question": f"{name}?", "answer": f"of\n{name}", "cut": name == "C", "foil": "",
                  "method": "mask-gradient", "given": 2.0, "parts": parts}  # fmt: skip
        (folder / name).mkdir(exist_ok=True)
        record |= changed if name == "C" else {}
        (folder / name / "answer.json").write_text(json.dumps(record), encoding="utf-8")
        (folder / name / "answer.html").write_text(f"<p>{name}</p>", encoding="utf-8")
    return ["compare", *(str(folder / name) for name in SCORES), "--out", str(folder / "out")]


def test_two_answers_are_shown_with_the_scores_of_each_part(tmp_path, capsys):
    assert main(answers(tmp_path)) == 0
    printed = capsys.readouterr().out.splitlines()
    out = tmp_path / "out"
    expected = [
        "== C minus B: two questions ==",
        "They answer different questions: “B?” and “C?”.",
        "B: “of B”",
        "C: “of C...”",
        "Of the documents of both “a” changed most, from +0.500 to -0.750.",
        "Only in B: “c” (+1.000).",
        "All documents together give +2.00 and +2.00 of log odds.",
        "score                      B       C  difference",
        "“a”                   +0.500  -0.750      -1.250",
        "“b”                   -0.250  -0.375      -0.125",
        "“c”                   +1.000",
        "the rest, in no part  -0.500  +0.250      +0.750",
    ]
    assert printed[:-1] == expected
    document = json.loads((out / "compare.json").read_text(encoding="utf-8"))
    require_entries(document, "compare.json of answers", "compare, records.csv of answers")
    assert document["finding"].splitlines() == expected[1:7]
    assert document["second"] == {
        "name": "C",
        "question": "C?",
        "answer": "of\nC",
        "foil": "",
        "given": 2.0,
    }
    assert [row["difference"] for row in document["records"]] == [-1.25, -0.125, None, 0.75]
    rows = table(out / "records.csv")
    assert [row["second"] for row in rows] == ["-0.75", "-0.375", "", "0.25"]
    assert tuple(rows[0]) == FILES["compare, records.csv of answers"]
    page = Frames((out / "compare.html").read_text("utf-8"))
    assert page.held == ["<p>B</p>", "<p>C</p>"] and page.told["p"] == [
        "two questions",
        *expected[1:7],
    ]
    assert {path.name for path in out.iterdir()} == {
        "compare.json",
        "records.csv",
        "compare.html",
        "run.json",
    }
    about = {"question": "", "answer": "a", "cut": False, "foil": "", "given": None}
    about["method"] = "influence"
    first, second = (
        {**about, "parts": [{"name": "a", "kind": "document", "score": share}]}
        for share in (0.5, 0.25)
    )
    alike = compare_answers(first, second)
    assert str(alike).splitlines() == [
        "first: “a”",
        "second: “a”",
        "Of the documents of both “a” changed most, from 50.0% to 25.0%.",
        "",
        "score  first  second  difference",
        "“a”    50.0%   25.0%      -25.0%",
    ]


def test_of_a_run_and_itself_nothing_changed_and_the_columns_have_two_names(tmp_path, capsys):
    answers(tmp_path)
    folder = str(tmp_path / "B")
    assert main(["compare", folder, folder, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out.splitlines()
    one, other = f"{folder} (first)", f"{folder} (second)"
    assert printed[:4] == [
        f"== {other} minus {one}: “B?” ==",
        f"{one}: “of B”",
        f"{other}: “of B”",
        "Of the documents of both none changed.",
    ]
    heads = Frames((tmp_path / "out" / "compare.html").read_text("utf-8")).told["th"]
    assert heads[:4] == ["score", one, other, "difference"]


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"method": "mask-path"}, "got scores by mask-path, expected by mask-gradient, as the"),
        ({"foil": "no"}, "got scores by mask-gradient, against a foil, expected by mask-gradient,"),
        (
            {"parts": [{"name": "d", "kind": "document", "score": 1.0}]},
            "second: got an answer from other documents",
        ),
    ],
)
def test_scores_that_are_not_of_one_kind_are_not_compared(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        main(answers(tmp_path, **changed))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"answer": "a"}'])
def test_files_that_ask_did_not_write_are_refused(tmp_path, text):
    arguments = answers(tmp_path)
    (tmp_path / "B" / "answer.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="first: got .*answer.json, which is damaged or of anot"):
        main(arguments)


def test_a_run_that_is_not_finished_is_not_compared(folders):
    """What an earlier one wrote may still be in its folder."""
    record = folders / "B" / "run.json"
    record.write_text(
        '{"command": "profile", "arguments": {}, "unfinished": {"written": []}}', encoding="utf-8"
    )
    with pytest.raises(ValueError, match="second: got .*B, whose run is not finished"):
        main(["compare", str(folders / "A"), str(folders / "B"), "--out", str(folders / "C")])


@pytest.mark.parametrize(
    ("losses", "is_said"), [(("answer", "margin"), True), (("answer",), False)]
)
def test_that_two_losses_were_asked_is_said(losses, is_said, folders, monkeypatch, capsys):
    for name, loss in zip("AB", losses, strict=False):
        record = {"arguments": {"loss": loss}, "finished": {"written": []}}
        (folders / name / "run.json").write_text(json.dumps(record), encoding="utf-8")
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())
    main(["compare", str(folders / "A"), str(folders / "B"), "--out", str(folders / "C")])
    said = "They ask by --loss answer and --loss margin, so that influences have other units."
    printed = capsys.readouterr().out
    assert (said in printed) == ("They ask" in printed) == is_said


def test_folders_without_contexts_are_refused(folders):
    results.save({"a": 1}, folders / "other" / "contexts.npz")
    (folders / "nothing").mkdir()
    for name, message in (
        ("nowhere", "which is no folder"),
        ("nothing", "has no contexts.npz"),
        ("other", "which holds another result"),
    ):
        for one, two, argument in ((name, "A", "first"), ("A", name, "second")):
            arguments = [str(folders / one), str(folders / two), "--out", str(folders / "C")]
            with pytest.raises(ValueError, match=f"{argument}: got .*{message}"):
                main(["compare", *arguments])
            assert not (folders / "C").exists()
