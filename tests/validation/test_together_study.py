"""The study of documents together: its questions, what counts as right, and its page."""

import csv

import numpy as np
import pytest
from reference.as_users import ROOT
from reference.networks import byte_network

from benchmarks.validation import together
from lim_jax.models import LanguageModel


@pytest.mark.parametrize("seed", range(6))
def test_the_evidence_of_each_kind_stands_where_it_is_said_to(seed):
    for kind, number in (("one", 1), ("copy", 2), ("halves", 2)):
        drawn = together.drawn_question(kind, seed)
        texts = {document.title: document.text for document in drawn.documents}
        assert len(texts) == together.OTHERS + number and len(drawn.evidence) == number
        holding = [title for title, text in texts.items() if f"{drawn.answer}." in text]
        assert len(holding) == (2 if kind == "copy" else 1)
        assert {*holding} <= {*drawn.evidence}
        if kind == "halves":
            (link,) = {*drawn.evidence} - {*holding}
            person, neighbour = texts[link].removesuffix(".").split("'s neighbour is ")
            assert texts[holding[0]].startswith(f"{neighbour} ") and f"{person}'s" in drawn.question


def test_what_is_said_of_two_documents_is_read_in_either_order():
    evidence = ("Note 1", "Note 4")
    assert together.said_of("", evidence) == "nothing"
    assert (
        together.said_of("One of “Note 4” and “Note 1” suffices: ...", evidence) == "one suffices"
    )
    needed = "“Note 1” and “Note 4” are needed together: ..."
    assert together.said_of(needed, evidence) == "both are needed"
    assert together.said_of(needed, ("Note 1", "Note 2")) == "other"
    assert together.said_of("One of “Note 1”, “Note 4” and “Note 5” suffices", evidence) == "other"


def test_the_page_counts_what_is_said():
    said = {"copy": ["one suffices", "nothing"], "halves": ["other"], "one": ["nothing"] * 3}
    rows = [{"kind": kind, "said": one} for kind, words in said.items() for one in words]
    page = together.page_of(rows, "a model")
    assert "| two state it | 2 | 1 | 0 | 1 | 0 |" in page
    assert "| each holds a half | 1 | 0 | 0 | 0 | 1 |" in page
    text = " ".join(page.split())
    assert "it is said in 50% (0% to 100%) of cases that one suffices" in text
    assert "in 0% (0% to 0%) that both are needed" in text
    assert "rightly nothing in 100% (100% to 100%)" in text and "a model 6 questions" in text


def test_the_page_of_together_is_that_of_its_table():
    folder = ROOT / "docs" / "study"
    with (folder / "together.csv").open(newline="", encoding="utf-8") as file:
        page = together.page_of(list(csv.DictReader(file)), "SmolLM2-135M-Instruct.Q4_1")
    assert (folder / "together.md").read_text(encoding="utf-8") == page


@pytest.mark.slow
@pytest.mark.parametrize("kind", together.KINDS)
def test_a_row_has_what_the_answer_loses_without_the_evidence(kind):
    model = LanguageModel(byte_network(640, depth=1, seed=3))
    row = together.row_of(model, kind, 2)
    assert row["kind"] == kind and row["right"] == together.KINDS[kind] and row["seed"] == 2
    assert row["said"] in (together.SUFFICES, together.NEEDED, together.NOTHING, "other")
    losses = [row[name] for name in ("without the first", "without the second", "without both")]
    known = [loss for loss in losses if loss is not None]
    assert np.isfinite(known).all()
    assert (len(known) == 3) == (
        row["among the first"] == len(together.drawn_question(kind, 2).evidence)
    )
    if kind == "one":
        assert losses[0] == losses[1] == losses[2]
