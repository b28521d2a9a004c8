"""A question asked in Python: the rows of its answer by hand, of small networks over bytes."""

import csv
from dataclasses import replace
from functools import partial
from hashlib import sha256
from math import isnan
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import byte_network
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import Split

import lim_jax as lim
from lim_jax.attribution import questions
from lim_jax.attribution.answer import AnswerPart, answer_finding
from lim_jax.attribution.files import write_answer
from lim_jax.attribution.methods import informed
from lim_jax.attribution.methods.method_table import METHODS
from lim_jax.attribution.operations import pass_operations
from lim_jax.attribution.questions import Question, question_line, read_question
from lim_jax.checkpoints.text import ChatTemplate
from lim_jax.models import CausalLM, LanguageModel, Targets
from lim_jax.models.foils import contrast, contrast_loss
from lim_jax.prompts.documents import Document

QUESTION = "Who?"
DOCUMENTS = ["Up.", "Dn 2."]
PROMPT = "Up.\n\nDn 2.\n\nQuestion: Who?\nAnswer:"
NAMES = ["document 1", "document 2", "question", ""]
PLACES = dict(zip(NAMES, (range(3), range(5, 10), range(22, 26)), strict=False))


@pytest.fixture(scope="module")
def network():
    return byte_network(48, depth=2, seed=17)  # whose documents have scores of both signs


@pytest.fixture(scope="module")
def ask(network):
    """Ask the network, and have it answer "It" where nothing else is said."""

    def ask_network(method, *, network=network, answer="It", **how) -> Any:
        model = LanguageModel(network)
        return lim.ask(model, QUESTION, DOCUMENTS, answer=answer, method=method, **how)

    return ask_network


def rows_of_answer_parts(answered):
    return [segment.text for segment in answered.scores.answer]


@pytest.fixture(scope="module")
def signed(ask):
    return ask("gradient-times-input")


def test_rows_are_sums_over_the_tokens_of_each_part(signed):
    """Of two documents and the question; what is in none of them is the rest."""
    by_name = {part.name: part for part in signed.parts}
    assert sorted(by_name) == sorted(NAMES)
    length = len(PROMPT) + 2
    inside = set().union(*PLACES.values())
    rest = [place for place in range(length) if place not in inside]
    for name, places in {**PLACES, "": rest}.items():
        part = by_name[name]
        places = list(places)
        np.testing.assert_allclose(part.score, signed.tokens[places].sum(), rtol=1e-12)
        assert (part.tokens, part.of_tokens) == (len(places), len(places) / length)
    kinds = {name: by_name[name].kind for name in NAMES}
    assert kinds == {
        "document 1": "document",
        "document 2": "document",
        "question": "question",
        "": "rest",
    }


def test_shares_of_documents_of_both_signs_are_of_their_sizes(signed):
    """So that none is above one: the size of a score is its distance from zero."""
    first, second = (part for part in signed.parts if part.kind == "document")
    assert first.score > 0 > second.score
    sizes = first.score - second.score
    assert first.of_documents == pytest.approx(first.score / sizes)
    assert second.of_documents == pytest.approx(second.score / sizes)
    assert all(part.of_documents is None for part in signed.parts[2:])


def test_documents_come_first_from_the_largest_score_and_the_rest_is_last(signed):
    kinds = [part.kind for part in signed.parts]
    assert kinds == ["document", "document", "question", "rest"]
    assert signed.parts[0].score > signed.parts[1].score


def test_tokens_that_speak_against_the_answer_do_not_hold_most_of_it(signed):
    """The named tokens share what speaks for the answer among themselves."""
    part = next(part for part in signed.parts if part.name == "document 2")
    letters = dict(zip("Dn 2.", signed.tokens[5:10], strict=True))
    assert min(letters.values()) < 0 < letters["n"] == max(letters.values())
    share = letters["n"] / sum(score for score in letters.values() if score > 0)
    assert part.most.startswith(f"“n” {100 * share:.0f} %, “D” ")


def test_an_answer_is_the_text_that_the_loss_asks_for(ask):
    answered = ask("rollout", answer="It is so")
    assert answered.text == "It is so" and answered.shown == "It is so"
    assert answered.question == QUESTION and answered.foil == ""
    assert "".join(answered.context.tokens) == PROMPT + " It is s"


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_integrated_gradients_begin_where_documents_are_average_words(ask, network, scale):
    """With an embedding that is multiplied, as Gemma's: so is the average word."""
    scaled = replace(network, embedding_scale=scale)
    answered = ask("integrated-gradients", network=scaled)
    context = answered.context
    words = np.asarray(network.embedding)
    ids = context.window[:-1]
    inside = np.zeros(context.length, bool)
    inside[[*PLACES["document 1"], *PLACES["document 2"]]] = True
    step = np.where(inside[:, None], scale * (words[ids] - words.mean(axis=0)), 0)
    x = scale * words[ids] + np.asarray(network.positions)[: len(ids)]
    (places,) = context.weights.nonzero()
    weights = context.weights[places].astype(float)
    y = Targets(*jax.device_put((context.window[1:][places], weights, places)))

    @eqx.filter_jit
    def gradient(x, y):
        return jax.grad(partial(CausalLM.margin_loss, scaled))(x, y)

    nodes = (np.arange(8) + 0.5) / 8
    slopes = [np.asarray(gradient(jnp.asarray(x - (1 - node) * step), y)) for node in nodes]
    expected = -np.sum(step * np.mean(slopes, axis=0), axis=1)
    np.testing.assert_allclose(answered.tokens, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.slow
def test_with_a_foil_documents_give_the_odds_of_the_two(ask, network):
    """A foil is another whole answer: its odds, and not those of the answer, are what is given."""
    answered = ask("mask-gradient", foil=" No ")
    assert answered.foil == "No" and answered.text == "It"
    assert "decides most between “It” and “No”" in answered.finding
    assert rows_of_answer_parts(answered) == ["It"], "the whole answer"
    prompt, this, that = (
        np.frombuffer(text.encode(), np.uint8).astype("int32") for text in (PROMPT, " It", " No")
    )
    y = contrast(prompt, this, that, "float64")
    x = network.embed(jax.device_put(prompt))
    numbers = np.full(len(prompt), -1)
    numbers[1:3], numbers[5:10] = 0, 1

    def loss(weight):
        log_weights = jax.device_put(np.where(numbers >= 0, np.log(weight), 0))
        weighted = y._replace(log_weights=log_weights, parts=jax.device_put(numbers))
        return eqx.filter_jit(contrast_loss)(network, x, weighted)

    np.testing.assert_allclose(answered.total_effect, loss(1e-3) - loss(1), rtol=1e-9)


@pytest.mark.slow
def test_without_a_foil_an_answer_is_cut_into_sentences(ask):
    answered = ask("mask-gradient", answer="No. It is.")
    assert rows_of_answer_parts(answered) == [" No. ", "It is."]
    assert ask("rollout").method == "rollout"
    with pytest.raises(ValueError, match="parts: got 'token' with a foil"):
        ask("mask-gradient", foil="No", parts="token")


@pytest.mark.slow
def test_a_finding_says_what_scores_add_up_to(ask):
    answered = ask("mask-path")
    whole = sum(part.score for part in answered.parts if part.kind == "document")
    assert answered.finding.endswith(
        f" All documents together give {answered.total_effect:+.2f} of log odds; their scores add "
        f"up to {whole:+.2f}."
    )
    assert "All documents" not in ask("rollout").finding


def test_a_matrix_counts_the_tokens_of_each_part(network, tmp_path):
    """Not its letters, of which one may be of several tokens."""
    model = LanguageModel(network)
    documents = ["Né.", "Up. On."]
    answered = lim.ask(model, QUESTION, documents, answer="It", method="mask-gradient")
    write_answer(answered, tmp_path)
    with (tmp_path / "matrix.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    cells = [(row["name"], row["text"], row["tokens"]) for row in rows[:3]]
    assert cells == [
        ("document 1", "Né.", "4"),
        ("document 2", "Up. ", "4"),
        ("document 2", "On.", "3"),
    ]


def test_an_answer_without_a_document_is_compared_with_it_text_by_text(network):
    """A document without a title is named by its number, which is another without the first."""
    model = LanguageModel(network)
    texts = ["Up.", "Dn 2.", "W."]
    asked = [lim.ask(model, QUESTION, some, answer="She") for some in (texts, texts[1:])]
    compared = asked[0].compare(asked[1])
    pairs = {part.name: part.second_name for part in compared.parts if part.kind == "document"}
    assert pairs == {"document 1": "", "document 2": "document 1", "document 3": "document 2"}
    for part in compared.parts:
        assert isnan(part.second) == (part.name == "document 1")
    assert "Only in first: “document 1”" in compared.finding
    assert "Only in second" not in compared.finding


def test_a_part_has_the_digest_of_its_documents_text(network):
    """Not of its title, nor of the white space at its ends."""
    documents = [Document("Bird", "Up.\n"), Document("", "Dn.")]
    answered = lim.ask(LanguageModel(network), QUESTION, documents, answer="She")
    digests = {part["name"]: part["digest"] for part in answered.record()["parts"]}
    assert digests.pop("Bird") == sha256(b"Up.").hexdigest()[:16]
    assert digests.pop("document 2") == sha256(b"Dn.").hexdigest()[:16]
    assert set(digests.values()) == {None}


def rated(*scores):
    """Documents of ten tokens each with these scores, and the rest."""
    documents = [
        AnswerPart(name, "document", score, 0.0, 10, 0.25, "")
        for name, score in zip("ab", scores, strict=True)
    ]
    return [*documents, AnswerPart("", "rest", 9.0, None, 20, 0.5, "")]


def test_a_finding_names_what_speaks_against_only_where_another_speaks_for():
    said = answer_finding(rated(0.25, -1.5), "Wren", signed=True)
    assert said == (
        "The answer “Wren” comes from “a” most of all: +0.25, with 10 of 20 tokens of documents. "
        "Against it speaks “b” most: -1.50."
    )
    said = answer_finding(rated(-0.25, -0.5), "Wren", signed=True)
    assert said == (
        "No document speaks for the answer “Wren”; the least against it, “a”: -0.25, with 10 of 20 "
        "tokens of documents."
    )
    assert "gainst" not in answer_finding(rated(0.25, 0.5), "Wren", signed=True)
    assert "gainst" not in answer_finding(rated(0.25, -1.49), "Wren", signed=True), "as others do"
    for_it, against, rest = rated(0.25, -2)
    for error, is_said in ((1.0, True), (1.01, False)):
        parts = [for_it, against._replace(error=error), rest]
        assert ("Against it" in answer_finding(parts, "Wren", signed=True)) == is_said
        assert ("Against it" in answer_finding(parts, "Wren", "Owl", signed=True)) == is_said
    beside = answer_finding(rated(0.25, -0.1), "Wren", "Owl", signed=True)
    assert beside.endswith(" Against it speaks “b” most: -0.10.")
    said = answer_finding(rated(0.25, 0.5), "Wren", "Owl", signed=True)
    assert said.startswith("“b” decides most between “Wren” and “Owl”: +0.50")


@pytest.mark.parametrize("signed", [True, False])
def test_a_document_without_tokens_gave_nothing_though_others_score_less(signed):
    """Its score is zero, which is above one below zero, and above a share that is none."""
    empty, other, rest = rated(0.0, -0.5 if signed else 0.0)
    parts = [empty._replace(tokens=0), other, rest]
    said = answer_finding(
        parts, "Wren", "Owl" if not signed else "", signed=signed, verdict="unclear"
    )
    assert "“b”" in said and "“a”" not in said


@pytest.mark.parametrize(
    "method, whole",
    [("influence", "the whole influence"), ("rollout", "all that attention hands on")],
)
def test_shares_are_of_what_the_method_shares_out(ask, method, whole):
    finding = ask(method=method).finding
    assert f" % of {whole}." in finding and finding.count(" of the whole") == (method != "rollout")


def test_an_answer_of_the_models_own_that_did_not_end_is_cut(ask):
    assert ask("rollout", answer=None, answer_tokens=2).cut
    assert not ask("rollout").cut


def test_a_question_keeps_what_is_finished_where_it_is_told_to(ask, tmp_path):
    alone = ask("rollout")
    kept = ask("rollout", checkpoint=tmp_path / "kept")
    assert [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    np.testing.assert_array_equal(kept.tokens, alone.tokens)


def read_with(network, **options):
    """What `ask` would read and compute; the options in place of its own."""
    asked = {
        "method": None,
        "passes": None,
        "parts": None,
        "document_parts": None,
        "chat": True,
        "answer": None,
        "answer_tokens": 40,
        "foil": "No",
        "max_length": 4096,
    }
    return read_question(LanguageModel(network), Question(QUESTION, DOCUMENTS, **asked | options))


def test_the_path_is_taken_where_it_is_cheap_and_one_gradient_else(network, monkeypatch):
    """What is cheap goes by the operations of scores and support, of an answer to come too."""
    prompt = read_with(network, foil="", parts="token")
    assert prompt.method_name == "mask-path"
    passes = 7 + 2 + 2 * 7 * 40 + 2
    assert prompt.cost(LanguageModel(network)).total == passes
    operations = passes * pass_operations(network, prompt.read.length + 40)
    assert prompt.operations(LanguageModel(network)) == operations
    known = read_with(network, foil="", parts="token", answer="It")
    of_known = (7 + 2 + 2 * 7 * 3 + 1) * pass_operations(network, known.read.length)
    assert known.operations(LanguageModel(network)) == of_known
    monkeypatch.setattr(questions, "AFFORDABLE", operations)
    assert read_with(network, foil="", parts="token").method_name == "mask-path"
    monkeypatch.setattr(questions, "AFFORDABLE", operations - 1)
    longer = read_with(network, foil="", parts="token")
    assert longer.method_name == "mask-gradient"
    assert longer.cost(LanguageModel(network)).total == 3 + 2 * 40 + 2
    monkeypatch.setattr(questions, "AFFORDABLE", 0)
    assert read_with(network, method="mask-path").method_name == "mask-path"
    assert read_with(network, method="rollout", foil="").method_name == "rollout"
    assert read_with(network, passes=8).method_name == "informed"


def test_a_question_foretells_what_scoring_takes(network):
    """Of an answer that is not known as many tokens as it may have, and a sentence of each 16; and
    beside no foil one pass of the text without a document, and one of answering it anew."""
    model = LanguageModel(network)

    def cost(method, *, answer=None, parts=None, document_parts=None, foil="No"):
        read = read_with(
            network,
            method=method,
            answer=answer,
            parts=parts,
            document_parts=document_parts,
            foil=foil,
        )
        return read.cost(model)

    def of_answer(parts, without=2):
        alone = METHODS["mask-gradient"].cost(0, parts)
        return alone._replace(passes=alone.passes + without)

    assert cost("mask-gradient", parts="token", foil="") == of_answer(40)
    assert cost("mask-gradient", parts="sentence", foil="") == of_answer(2)
    assert cost("mask-gradient", parts="answer", foil="") == of_answer(1)
    assert cost("mask-gradient", parts="token", answer="It", foil="") == of_answer(3, 1)
    assert cost("mask-gradient") == METHODS["mask-gradient"].cost(0, 1)
    # The whole text, and without each document, the question and the rest; or each token.
    assert cost("leave-one-out").total == cost("leave-one-out", answer="It").total == 5
    by_token = cost("leave-one-out", answer="It", document_parts="tokens").total
    assert by_token == 1 + sum(map(len, DOCUMENTS)) + 2
    assert cost("leave-one-out", document_parts="tokens").total == by_token
    # Seven sets of three documents are among the passes of a budget, and the answer without one.
    assert cost("informed", answer="It", parts="answer", foil="").total == informed.PASSES
    assert cost("informed", parts="answer", foil="").total == informed.PASSES + 1
    assert cost("informed", answer="It", parts="token", foil="").total == informed.PASSES
    assert cost("informed", answer="It").total == informed.PASSES


@pytest.mark.parametrize("name", ["answer", "foil"])
def test_a_blank_answer_or_foil_is_refused_before_the_model_answers(network, name):
    with pytest.raises(ValueError, match=rf"{name}: got ' \\n', expected words"):
        read_with(network, **{"foil": "", name: " \n"})


@pytest.mark.parametrize("answer", ["It", None], ids=["given", "the model's own"])
def test_documents_of_which_no_token_is_left_are_refused_before_the_model_answers(network, answer):
    """A tokenizer may leave out letters that nobody sees, such as a space of width zero."""
    letters = [*map(chr, range(32, 127)), "\n"]
    words = {letter: number for number, letter in enumerate(letters)}
    tokenizer: Any = Tokenizer(WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.normalizer = Replace("\u200b", "")
    model = LanguageModel(network, tokenizer)
    with pytest.raises(ValueError, match="documents: got texts of which .* makes no token"):
        lim.ask(model, QUESTION, ["\u200b", "\u200b\u200b"], answer=answer)
    assert lim.ask(model, QUESTION, ["\u200b", "Up."], answer="It", method="influence").support


def test_an_answer_follows_a_space_but_in_a_chat():
    model = LanguageModel(byte_network(8), chat_template=ChatTemplate("", {}))
    line_of = partial(question_line, model, QUESTION, DOCUMENTS, answer="It", foil="No")
    chat = line_of()
    plain = line_of(chat=False)
    assert [message["content"] for message in chat.messages] == [QUESTION]
    assert (chat.answer, chat.foil, chat.question) == ("It", "No", "")
    assert (plain.answer, plain.foil, plain.question) == (" It", " No", QUESTION)
    assert plain.messages == () and plain.template is None
    assert [document.name for document in plain.documents] == ["document 1", "document 2"]
