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
    """Of every question one supported answer at 2 or more and three that are not, below 1."""
    return [
        {
            "kind": kind,
            "seed": seed,
            "supported": int(n == 0),
            "given": 2 + seed if n == 0 else n / 4,
        }
        for seed in range(seeds)
        for kind in support.KINDS
        for n in range(4)
    ]


def test_a_threshold_of_one_half_is_judged_on_the_other():
    judgement = support.judge_statistic(made_rows(), "given")
    assert judgement["auroc"] == judgement["low"] == judgement["high"] == 1
    assert judgement["threshold"] == 0.75 and judgement["supported that fail"] == 0
    low = [
        row | {"given": 0.0 if row["supported"] and row["seed"] == 3 else row["given"]}
        for row in made_rows()
    ]
    judgement = support.judge_statistic(low, "given")
    assert judgement["supported that fail"] == 1 / 4 and judgement["low"] < judgement["auroc"] < 1


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
