"""The study of documents together: its questions, its rows beside methods of shapiq, its page."""

import csv
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from reference.as_users import ROOT
from reference.networks import byte_network

import lim_jax as lim
from benchmarks.validation import pairs_of_shapiq, prices, together, together_page
from benchmarks.validation.pairs_of_shapiq import REGRESSION, Fitted, fit_pairs
from benchmarks.validation.prices import INFORMED, PROXY_SPEX
from benchmarks.validation.subsets import Subsets, kept_of_sets, numbers_of
from benchmarks.validation.together_page import ALL_TEXTS
from benchmarks.validation.together_questions import (
    KINDS,
    OTHERS,
    Drawn,
    drawn_question,
    said_of,
)
from lim_jax.attribution.segments import context_segments
from lim_jax.attribution.together import DocumentGroup, Together, masks_without_sets
from lim_jax.attribution.without_parts import without_parts
from lim_jax.models import LanguageModel

NAMES = tuple("abcdef")
SIZES = np.array([10, 10, 5, 5, 5, 5])  # tokens of documents, in a text of a hundred
# Interactions of documents by their numbers: of a and b one suffices, c and d are halves.
ODDS = {(): 1.0, (0,): 3.0, (1,): 3.0, (0, 1): -3.0, (2, 3): 2.0, (4,): 0.1}


def lost_of(odds):
    """What an answer loses without each set of six documents, as interactions say, text by text."""
    sums = [
        sum(value for among, value in odds.items() if not any(number >> k & 1 for k in among))
        for number in range(64)
    ]
    return sums[0] - np.array(sums)


SUBSETS = Subsets(NAMES, lost_of(ODDS), 100 - ~kept_of_sets(6) @ SIZES)


@pytest.mark.parametrize("seed", range(6))
def test_the_evidence_of_each_kind_stands_where_it_is_said_to(seed):
    for kind, number in (("one", 1), ("copy", 2), ("halves", 2)):
        drawn = drawn_question(kind, seed)
        texts = {document.title: document.text for document in drawn.documents}
        assert len(texts) == OTHERS + number and len(drawn.evidence) == number
        holding = [title for title, text in texts.items() if f"{drawn.answer}." in text]
        assert len(holding) == (2 if kind == "copy" else 1)
        assert {*holding} <= {*drawn.evidence}
        if kind == "halves":
            (link,) = {*drawn.evidence} - {*holding}
            person, neighbour = texts[link].removesuffix(".").split("'s neighbour is ")
            assert texts[holding[0]].startswith(f"{neighbour} ") and f"{person}'s" in drawn.question


def test_what_is_said_of_two_documents_is_that_of_them_alone():
    evidence = ("Note 1", "Note 4")
    suffices = DocumentGroup(("Note 4", "Note 1"), "one suffices", 0.1, 3.0)
    needed = DocumentGroup(("Note 1", "Note 4"), "needed together", 2.9, 3.0)
    beside = DocumentGroup(("Note 1", "Note 5"), "needed together", 2.9, 3.0)
    three = DocumentGroup(("Note 1", "Note 4", "Note 5"), "one suffices", 0.1, 3.0)
    assert said_of([], evidence) == "nothing"
    assert said_of([suffices], evidence) == "one suffices"
    assert said_of([needed], evidence) == "needed together"
    for groups in ([beside], [three], [suffices, beside]):
        assert said_of(groups, evidence) == "other"
    assert said_of([needed], ("Note 1", "Note 1")) == "other"


def test_subsets_know_what_is_so_of_all_pairs():
    suffices = (frozenset("ab"), "one suffices")
    needed = (frozenset("cd"), "needed together")
    assert SUBSETS.pairs == {suffices, needed}
    assert SUBSETS.holds(suffices) and SUBSETS.holds(needed)
    assert not SUBSETS.holds((frozenset("ab"), "needed together"))
    assert not SUBSETS.holds((frozenset("abe"), "one suffices"))


def test_sets_of_some_documents_are_those_with_all_others_in():
    found = SUBSETS.together(("d", "b", "a"))
    assert found.names == ("d", "b", "a")
    np.testing.assert_allclose(found.losses, [0, 2, 0, 2, 0, 2, 3, 5])
    kept = SUBSETS.kept_without(("d", "b"))
    expected = [[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1], [1, 0, 1, 1, 1, 1], [1, 0, 1, 0, 1, 1]]
    np.testing.assert_array_equal(kept, np.array(expected, bool))
    np.testing.assert_array_equal(numbers_of(kept), [0, 8, 2, 10])


def test_a_price_counts_the_tokens_of_texts():
    assert SUBSETS.price(SUBSETS.kept_without(("a",))) == pytest.approx(1 + 0.9)
    assert SUBSETS.price(kept_of_sets(6)) == pytest.approx(64 * 0.8)


def test_informed_ablations_read_a_gradient_texts_and_sets():
    """The gradient and two passes count five; 24 texts have half of the documents, but 19 tokens.

    Their design leaves every document out as often as not. The seven sets of a, b and c leave each
    of them out four times.
    """
    halves = 24 * 0.8
    sets = 7 - 4 * 0.25
    assert together.price_of_informed(SUBSETS, ("a", "b", "c")) == pytest.approx(5 + halves + sets)


class Approximator:
    """A method that reads a text after the other, and says what it was told to say."""

    def __init__(self, interactions):
        self.interactions = interactions

    def approximate(self, texts, game):
        odds = [game(kept.astype(int)[None])[0] for kept in kept_of_sets(6)[:texts]]
        np.testing.assert_allclose(odds, -SUBSETS.lost[:texts])
        if self.interactions is None:
            raise IndexError("index 1 is out of bounds for axis 0 with size 1")
        return SimpleNamespace(dict_values=self.interactions)


def test_interactions_that_were_fitted_say_what_is_lost(monkeypatch):
    """The three of the largest scores of their own are a, b and e; pairs count where both stay."""
    asked = []

    def regression(documents, **options):
        asked.append((documents, options))
        return Approximator(ODDS)

    monkeypatch.setattr(pairs_of_shapiq, "shapiq", SimpleNamespace(RegressionFBII=regression))
    found = fit_pairs(REGRESSION, SUBSETS, 3)
    assert asked == [(6, {"max_order": 2, "pairing_trick": True, "random_state": 0})]
    assert found.price == pytest.approx(1 + 0.9 + 0.9)
    assert found.together.names == ("a", "b", "e")
    np.testing.assert_allclose(found.together.losses, [0, 0, 0, 3, 0.1, 0.1, 0.1, 3.1])


def test_a_method_that_fails_says_nothing_and_has_its_price(monkeypatch):
    asked = []

    def failing(**options):
        asked.append(options)
        return Approximator(None)

    monkeypatch.setattr(prices, "shapiq", SimpleNamespace(ProxySPEX=failing))
    found = fit_pairs(PROXY_SPEX, SUBSETS, 2)
    assert asked == [{"n": 6, "index": "FBII", "max_order": 2, "random_state": 0}]
    assert found.price == pytest.approx(1.9)
    assert found.together.names == () and found.together.groups == []


@pytest.mark.slow
@pytest.mark.parametrize("texts", [39, 64])
def test_the_sum_of_shapiqs_interactions_is_what_it_fitted(texts):
    pytest.importorskip("shapiq")
    found = fit_pairs(REGRESSION, SUBSETS, texts)
    np.testing.assert_allclose(
        found.together.losses, SUBSETS.together(found.together.names).losses, atol=1e-9
    )
    tokens = found.price / SUBSETS.price(kept_of_sets(6))
    assert tokens == pytest.approx(texts / 64, rel=0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of what it then fails at
def test_trees_of_proxy_spex_do_not_split_on_few_texts_and_once_on_all():
    pytest.importorskip("shapiq")
    assert fit_pairs(PROXY_SPEX, SUBSETS, 39).together.names == ()
    losses = fit_pairs(PROXY_SPEX, SUBSETS, 64).together.losses
    np.testing.assert_allclose(losses[[3, 5, 6]], losses[[1, 1, 2]] + losses[[2, 4, 4]])
    np.testing.assert_allclose(losses[1:3], 1.5, atol=0.1)  # half of what a and b give together


def test_a_row_says_what_each_method_says_and_what_is_so_to_the_model(monkeypatch):
    """Without one of two copies 0.8 is lost of the 2.8 of both: more than a quarter, not a third.

    The regression says that one suffices, as it was written, though to the model that is not so;
    ProxySPEX on all texts says that two others are needed together, as they are to the model.
    """
    documents = tuple(f"Note {number}" for number in range(1, 7))
    lost = lost_of({(0,): 2.0, (4,): 2.0, (0, 4): -1.2, (2, 3): 2.0})
    names = ["Note 1", "Note 5", "Note 2"]
    reading = {
        "kind": "copy",
        "seed": 1,
        "question": "Who did?",
        "answer": "Ann",
        "evidence": ["Note 1", "Note 5"],
        "given": 2.5,
        "names": names,
        "losses": Subsets(documents, lost, SUBSETS.tokens).together(names).losses.tolist(),
        "documents": documents,
        "lost": lost.tolist(),
        "tokens": SUBSETS.tokens.tolist(),
    }
    suffices = Together(("Note 3", "Note 1", "Note 5"), np.array([0, 0, 0.1, 0.1, 0.1, 0.1, 3, 3]))
    needed = Together(("Note 3", "Note 4", "Note 1"), np.array([0.0, 2, 2, 2, 0, 2, 2, 2]))
    fitted = {
        (PROXY_SPEX, 38): Fitted(20.0, Together((), np.zeros(1))),
        (PROXY_SPEX, 64): Fitted(64.0, needed),
        (REGRESSION, 38): Fitted(21.0, suffices),
    }
    monkeypatch.setattr(together, "fit_pairs", lambda method, _, texts: fitted[method, texts])
    about = {
        "kind": "copy",
        "seed": 1,
        "given": 2.5,
        "question": "Who did?",
        "answer": "Ann",
        "right": "one suffices",
        "for the model": "nothing",
        "pairs": 1,
    }
    own = {
        **about,
        "method": "informed",
        "price": pytest.approx(5 + 24 * 0.8 + 7 - 4 * 0.25),
        "failed": 0,
        "among the first": 2,
        "without the first": pytest.approx(0.8),
        "without the second": pytest.approx(0.8),
        "without both": pytest.approx(2.8),
        "said": "nothing",
        "said at 1/4": "nothing",
        "said at 1/3": "one suffices",
        "said at 2/5": "one suffices",
        "within": 0,
        "found": 0,
        "not so": 0,
    }
    shares = ("said", "said at 1/4", "said at 1/3", "said at 2/5")
    unknown = dict.fromkeys(("without the first", "without the second", "without both"))
    proxy = {
        **own,
        **unknown,
        **dict.fromkeys(shares, "nothing"),
        "method": "ProxySPEX",
        "price": 20.0,
        "failed": 1,
        "among the first": 0,
    }
    of_all = {
        **proxy,
        **dict.fromkeys(shares, "other"),
        "method": "ProxySPEX on all texts",
        "price": 64.0,
        "failed": 0,
        "among the first": 1,
        "without the first": 0.0,
        "within": 1,
        "found": 1,
    }
    regression = {
        **own,
        **dict.fromkeys(shares, "one suffices"),
        "method": "regression of pairs",
        "price": 21.0,
        "without the first": 0.1,
        "without the second": 0.1,
        "without both": 3.0,
        "not so": 1,
    }
    assert together.rows_of(reading) == [own, proxy, of_all, regression]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_question_is_read_without_each_set_of_its_documents(kind):
    """Those of the three best are read by informed ablations too."""
    model = LanguageModel(byte_network(640, depth=1, seed=3))
    reading = together.read_question(model, drawn_question, kind, 2)
    drawn = drawn_question(kind, 2)
    subsets = Subsets(*(reading[name] for name in ("documents", "lost", "tokens")))
    assert list(subsets.names) == [document.title for document in drawn.documents]
    of_best = subsets._replace(lost=np.array(subsets.lost)).together(reading["names"])
    np.testing.assert_allclose(of_best.losses, reading["losses"], atol=1e-9)
    assert reading["kind"] == kind and reading["seed"] == 2 and np.isfinite(reading["given"])
    written = Drawn(reading["question"], drawn.documents, reading["answer"], reading["evidence"])
    assert written == drawn
    context = lim.ask(model, drawn.question, drawn.documents, answer=drawn.answer).context
    parts = context_segments(context)
    masks = masks_without_sets(parts, subsets.names)
    assert subsets.tokens == [without_parts(context, parts, mask).length for mask in masks]


def test_questions_are_read_once(tmp_path, monkeypatch):
    read = []

    def read_question(model, draw, kind, seed):
        read.append((draw, kind, seed))
        return {"kind": kind, "seed": seed}

    monkeypatch.setattr(together, "read_question", read_question)
    model = LanguageModel(byte_network(16, depth=1))
    expected = [(kind, seed) for seed in range(2) for kind in KINDS]
    for _ in range(2):
        readings = together.read_all(model, drawn_question, 2, tmp_path)
        assert [(one["kind"], one["seed"]) for one in readings] == expected
    assert read == [(drawn_question, *asked) for asked in expected]


def row(kind, method, said, seed=0, shares=None, model="nothing", **counts):
    """A row of the table, as it is read: of words and numbers in words."""
    third, most = shares or (said, said)
    numbers = {"price": 28, "failed": 0, "pairs": 0, "within": 0, "found": 0, "not so": 0}
    return {
        "kind": kind,
        "seed": str(seed),
        "method": method,
        "said": said,
        "said at 1/4": said,
        "said at 1/3": third,
        "said at 2/5": most,
        "right": KINDS[kind],
        "for the model": model,
        **{name: str(number) for name, number in (numbers | counts).items()},
    }


def rows_of_others(proxy="nothing"):
    """Two answers of each kind by each method of shapiq, of which ProxySPEX fails."""
    said_by_others: list[tuple[str, str, dict[str, Any]]] = [
        (PROXY_SPEX, proxy, {"failed": 1, "pairs": 1}),
        (ALL_TEXTS, "nothing", {"price": 46, "pairs": 1}),
        (REGRESSION, "one suffices", {"pairs": 1, "within": 1, "found": 1, "not so": 2}),
    ]
    return [
        row(kind, method, said, seed, **counts)
        for kind in KINDS
        for method, said, counts in said_by_others
        for seed in range(2)
    ]


OWN = [
    row("copy", INFORMED, "one suffices", 0, model="one suffices", pairs=2, within=2, found=1),
    row("copy", INFORMED, "nothing", 1, ("nothing", "one suffices"), pairs=1),
    row("halves", INFORMED, "other", 0, model="needed together", pairs=1, within=1),
    row("halves", INFORMED, "needed together", 1, price=30),
    row("one", INFORMED, "nothing", 0),
    row("one", INFORMED, "nothing", 1, ("other", "other")),
]


def page_of(rows):
    return together_page.page_of(rows, "What is needed?", "Asked were six questions.", "rows.csv")


def words_of(page):
    return " ".join(page.split())


def test_the_page_begins_with_what_is_found():
    text = words_of(page_of(OWN + rows_of_others()))
    assert (
        "**Where two documents state the evidence, it is said in 50% (1% to 99%) of cases that one "
        "suffices; where each holds a half, in 50% (1% to 99%) that both are needed; where one "
        "states it, rightly nothing in 100% (16% to 100%).** To the model one of two that state it "
        "suffices in 1 of 2 answers, and both halves are needed in 1 of 2. Of 4 pairs the rule "
        "holds to the model, 3 of them among the three documents that informed ablations score "
        "highest: they find 1, and say 0 that do not hold. On as many tokens ProxySPEX finds 0: it "
        "fails on 6 of 6 answers. A regression of pairs finds 6, "
        "and says 12 that do not hold; on copies the share that informed ablations say rightly, "
        "less its own, is -50% (-100% to +0%)."
    ) in text
    assert text.startswith("# What is needed? **Where") and "Asked were six questions. ##" in text
    assert text.endswith("is a row of [rows.csv](rows.csv).")


def test_the_page_counts_what_is_said_by_each_method():
    page = page_of(OWN + rows_of_others("other"))
    for line in (
        "| two state it, 2 | informed | 28.0 | 0 | 1 | 0 | 1 | 0 | 50% (1% to 99%) |  |",
        "| each holds a half, 2 | informed | 29.0 | 0 | 0 | 1 | 0 | 1 | 50% (1% to 99%) |  |",
        "| one states it, 2 | informed | 28.0 | 0 | 0 | 0 | 2 | 0 | 100% (16% to 100%) |  |",
        "| two state it, 2 | ProxySPEX | 28.0 | 2 | 0 | 0 | 0 | 2 | 0% (0% to 84%) "
        "| +50% (+0% to +100%) |",
        "| two state it, 2 | ProxySPEX on all texts | 46.0 | 0 | 0 | 0 | 2 | 0 | 0% (0% to 84%) "
        "| +50% (+0% to +100%) |",
        "| two state it, 2 | regression of pairs | 28.0 | 0 | 2 | 0 | 0 | 0 | 100% (16% to 100%) "
        "| -50% (-100% to +0%) |",
        "| one states it, 2 | regression of pairs | 28.0 | 0 | 2 | 0 | 0 | 0 | 0% (0% to 84%) "
        "| +100% (+100% to +100%) |",
    ):
        assert line in page.splitlines()
    text = words_of(page)
    assert "loses 0.5 of log odds or more without both, and less than 0.25 of that" in text
    assert "where it loses more than 0.75 of it without either" in text
    assert (
        "A leaf of ProxySPEX's trees holds twenty texts or more. On fewer than forty they do not "
        "split: it fails, and says nothing. On all 64 of six documents they split once"
    ) in text


def test_the_page_counts_what_is_so_to_the_model():
    lines = page_of(OWN + rows_of_others()).splitlines()
    assert "| two state it | informed | 3 | 2 | 1 | 0 | 33% (0% to 50%) |" in lines
    assert "| each holds a half | informed | 1 | 1 | 0 | 0 | 0% (0% to 0%) |" in lines
    assert "| one states it | informed | 0 | 0 | 0 | 0 |  |" in lines
    assert "| two state it | ProxySPEX | 2 | 0 | 0 | 0 | 0% (0% to 0%) |" in lines
    assert "| two state it | regression of pairs | 2 | 2 | 2 | 4 | 100% (100% to 100%) |" in lines


def test_the_page_keeps_a_share_that_no_other_is_better_than():
    """Odd seeds do not count: there the largest share says more."""
    page = page_of(OWN + rows_of_others())
    for line in (
        "| 1/4 | 100% (3% to 100%) | 0 of 1 | 0% (0% to 98%) | 0 of 1 |",
        "| 1/3 | 100% (3% to 100%) | 0 of 1 | 0% (0% to 98%) | 1 of 1 |",
        "| 2/5 | 100% (3% to 100%) | 0 of 1 | 100% (3% to 100%) | 1 of 1 |",
    ):
        assert line in page.splitlines()
    assert (
        "On even seeds no other that rightly says nothing of one document says more of copies: "
        "1/4 stays."
    ) in page


@pytest.mark.parametrize(
    "third_of_one, copies, words",
    [
        ("nothing", ["one suffices"] * 2, "+100% (+100% to +100%) more of copies, a clear gain."),
        ("nothing", ["nothing"] * 2, "+0% (+0% to +0%) more of copies, no clear gain: 1/4 stays."),
        (
            "other",
            ["one suffices"] * 2,
            "+100% (+100% to +100%) more of copies, no clear gain: 1/4 stays.",
        ),
    ],
)
def test_a_share_that_even_seeds_choose_is_judged_by_odd_ones(third_of_one, copies, words):
    """The largest share says something of one document on even seeds, so that it is not chosen."""
    own = [
        row("copy", INFORMED, "nothing", 0, ("one suffices", "one suffices")),
        *(
            row("copy", INFORMED, "nothing", seed, (said, said))
            for seed, said in zip((1, 3), copies, strict=True)
        ),
        row("one", INFORMED, "nothing", 0, ("nothing", "other")),
        row("one", INFORMED, "nothing", 1, (third_of_one, "nothing")),
    ]
    assert together_page.chosen_words(own) == f"Even seeds choose 1/3. On odd seeds it says {words}"


def test_the_page_of_together_is_that_of_its_table():
    folder = ROOT / "docs" / "study"
    with (folder / "together.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    about = together.ABOUT.format(model="SmolLM2-135M-Instruct.Q4_1", questions=72)
    page = together_page.page_of(rows, together.TITLE, about, "together.csv")
    assert (folder / "together.md").read_text(encoding="utf-8") == page
