"""The study of what is answered without a document: its outcomes, counts and page."""

import pytest
from reference.as_users import ROOT
from reference.networks import byte_network

from benchmarks.validation import answers_without
from benchmarks.validation.answers_without import outcome_of, page_of, row_of
from benchmarks.validation.support import documents_of, drawn_question, rows_of
from lim_jax.models import LanguageModel


def row(documents, answer, without, kind="facts", seed=0):
    return {"kind": kind, "seed": seed, "documents": documents, "right": "harp", "wrong": "horn",
            "answer": answer, "without": without}  # fmt: skip


@pytest.mark.parametrize(
    ("documents", "answer", "without", "outcome"),
    [
        ("contradicted", "She plays the harp.", "It is a Horn.", "other"),
        ("contradicted", "The horn", "the harp", "other"),
        ("contradicted", "The horn", "a horn...", "same"),
        ("contradicted", "The horn", "the drum", "else"),
        ("contradicted", "The harp", "", "else"),
        ("contradicted", "harp or horn", "a harp", None),
        ("contradicted", "a drum", "a harp", None),
        ("evidence", "the harp", "The harp", "same"),
        ("evidence", "the harp", "Spring", "else"),
        ("evidence", "the horn", "the harp", None),  # no document says it
    ],
)
def test_an_outcome_is_told_by_the_things_that_answers_state(documents, answer, without, outcome):
    assert outcome_of(row(documents, answer, without)) == outcome


def test_the_page_counts_answers_that_state_what_a_document_says():
    rows = [
        row("contradicted", "harp", "horn"),
        row("contradicted", "horn", "harp", seed=1),
        row("contradicted", "horn", "drum", kind="keys"),
        row("contradicted", "drum", "harp", kind="keys", seed=1),
        row("evidence", "harp", "harp", kind="prose"),
        row("evidence", "harp", "drum", kind="prose", seed=1),
        row("evidence", "harp", "drum", kind="prose", seed=2),
        row("evidence", "harp", "drum", kind="prose", seed=3),
    ]
    page = page_of(rows, "a model")
    assert "answers in 2 of 3 cases what the other says" in page
    assert "stays the same in 1 of 4.**" in page and "asked a model 8 questions" in page
    assert "| facts | two say different things | 2 | 2 | 0 | 0 |" in page
    assert "| keys | two say different things | 1 | 0 | 0 | 1 |" in page
    assert "| prose | one says it | 4 | 0 | 1 | 3 |" in page


def test_the_page_is_that_of_its_table():
    page = (ROOT / "docs" / "study" / "answers_without.md").read_text(encoding="utf-8")
    rows = rows_of(ROOT / "docs" / "study" / "answers_without.csv")
    assert page_of(rows, "SmolLM2-135M-Instruct.Q4_1") == page


@pytest.mark.slow
@pytest.mark.parametrize("condition", answers_without.CONDITIONS)
def test_a_row_is_what_ask_says(condition):
    model = LanguageModel(byte_network(256, seed=3))
    found = row_of(model, "facts", 1, condition)
    question = drawn_question("facts", 1)
    statements, _ = answers_without.CONDITIONS[condition]
    titles = [document.title for document in documents_of(question, statements, False)]
    assert found["taken out"] in titles and len(titles) == 4 + len(statements)
    assert (found["right"], found["wrong"]) == (question.right, question.wrong)
    assert found["answer"] and found["without"]
