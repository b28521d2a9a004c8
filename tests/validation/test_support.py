"""The study of what tells supported answers: its questions, statistics and page."""

import jax
import numpy as np
import pytest
from reference.as_users import ROOT
from reference.networks import byte_network
from scipy.special import log_softmax, logit

import lim_jax as lim
from benchmarks.validation import support
from lim_jax.models import LanguageModel


@pytest.mark.parametrize("kind", support.KINDS)
def test_the_documents_of_a_question_state_what_they_are_said_to(kind):
    question = support.drawn_question(kind, 5)
    answers = question.right, question.wrong
    for condition, (statements, _) in support.CONDITIONS.items():
        documents = support.documents_of(question, statements, kind == "prose")
        text = "\n".join(document.text for document in documents)
        assert text.count(question.evidence) == ("evidence" in statements), condition
        assert text.count(question.contradiction) == ("contradiction" in statements)
        assert [answer in text for answer in answers] == [
            "evidence" in statements,
            "contradiction" in statements,
        ]
    assert question.evidence.replace(question.right, question.wrong) == question.contradiction
    assert question.other != question.evidence


def test_an_answer_states_a_thing_as_a_word():
    assert support.states("She wears a Ring.", "ring")
    assert not support.states("Spring is here", "ring")


def test_auroc_counts_pairs_and_halves_of_ties():
    positive = np.array([2.0, 3.0, -1.0])
    negative = np.array([1.0, 2.0])
    assert support.auroc(positive, negative) == (1 + 0.5 + 1 + 1 + 0 + 0) / 6


def made_rows(seeds=8):
    """Of each question an answer that is stated, one that is elsewhere, and two that no text has.

    What they lose is 2, 0.5, 0.25 and 0 more than a hundredth of the seed.
    """
    return [
        {"kind": kind, "seed": seed, "supported": int(n == 0), "held": int(n < 2)}
        | {"lost": (2.0, 0.5, 0.25, 0.0)[n] + seed / 100, "given": 0.0}
        for seed in range(seeds)
        for kind in support.KINDS
        for n in range(4)
    ]


def test_groups_of_answers_are_told_by_what_documents_hold():
    assert [support.group_of(row) for row in made_rows(1)[:4]] == [
        "stated",
        "elsewhere",
        "absent",
        "absent",
    ]
    assert support.holds("Ann plays the harp.", "a harp", "What does Ann play?")
    assert support.holds("Ann wears a red cap.", "Red cap, shoes.", "What does Ann wear?")
    assert not support.holds("Ann wears a cap.", "Cap, shoes.", "What does Ann wear?"), "one of two"
    assert not support.holds("Ann plays the harp.", "Ann plays the horn.", "What does Ann play?")
    assert not support.holds("Ann plays.", "the answer is", "What?"), "nothing of its own"


def test_a_statistic_is_compared_between_groups_and_its_interval_holds_it():
    rows = made_rows()
    for below in (("absent",), ("absent", "elsewhere")):
        above = support.judge_statistic(rows, "lost", below)
        assert above.value == above.low == above.high == 1
    swapped = [
        row | {"lost": -1.0} if row["supported"] and row["seed"] < 2 else row for row in rows
    ]
    part = support.judge_statistic(swapped, "lost", ("absent",))
    assert part.value == 0.75 and part.low < 0.75 < part.high
    second = [row | {"lost": 0.4} if row["supported"] else row for row in rows]
    assert support.judge_statistic(second, "lost", ("absent",)).value == 1
    assert support.judge_statistic(second, "lost", ("elsewhere",)).value == 0


def test_the_page_counts_verdicts_on_questions_that_chose_no_threshold():
    """Of each kind four seeds of eight; of two kinds documents are of one sentence."""
    columns = dict.fromkeys(support.STATISTICS, 0.0) | {"answer": "own", "given without": 0}
    page = support.page_of([columns | row for row in made_rows()], "a model")
    assert "asked a model 96 times: 8 questions\nof a fact" in page
    assert "of a place, and 8 of a fact at the end" in page
    assert "| one sentence | a document states it | 8 | 8 | 0 | 0 |" in page
    assert "| one sentence | no document has its words | 16 | 0 | 0 | 16 |" in page
    assert "| prose | a document has its words, of something else | 4 | 0 | 4 | 0 |" in page
    assert "0% are said to be supported by one" in page and "and 100% to\nhave one**" in page
    assert "(48 answers by a small model)" in page and "the first 4 questions" in page
    assert "0 of 24 that no document has are said to be supported, and 12 of 12 that" in page


def test_the_page_is_that_of_its_table():
    page = (ROOT / "docs" / "study" / "support.md").read_text(encoding="utf-8")
    rows = support.rows_of(ROOT / "docs" / "study" / "support.csv")
    assert support.page_of(rows, "SmolLM2-135M-Instruct.Q4_1") == page


@pytest.mark.slow
def test_a_row_is_what_ask_says_of_one_answer(tmp_path):
    """The log odds without documents are those with them less what they give."""
    model = LanguageModel(byte_network(256, seed=3))
    row = support.row_of(model, "facts", 0, "evidence", "right")
    assert row["supported"] == 1 and row["text"] == support.drawn_question("facts", 0).right
    assert row["tokens"] == len(row["text"].encode()) + 1  # after a space
    np.testing.assert_allclose(row["log odds"] - row["without documents"], row["given"], rtol=1e-6)
    question = support.drawn_question("facts", 0)
    documents = support.documents_of(question, ("evidence",), False)
    context = lim.ask(
        model, question.text, documents, answer=question.right, parts="answer"
    ).context
    logits = np.asarray(model.network.logits(jax.device_put(context.window[:-1])))
    at = np.flatnonzero(context.weights)
    likely = np.exp(log_softmax(logits, axis=1)[at, context.window[at + 1]])
    np.testing.assert_allclose(row["log odds"], np.mean(logit(likely)), rtol=1e-6)
    assert support.row_of(model, "facts", 0, "none", "right")["supported"] == 0
