"""Whether a document supports an answer: verdicts by thresholds, and texts read without it."""

import shutil

import jax
import numpy as np
import pytest
from reference.networks import byte_network
from test_informed import CONTEXT, DOCUMENTS, LOSS, losses_of_text, text_of

import lim_jax as lim
from lim_jax.attribution import questions, support
from lim_jax.attribution.answer import AnswerPart, answer_finding
from lim_jax.attribution.method import Run, Scores
from lim_jax.attribution.methods import informed, leave_one_out, mask_gradient, mask_path
from lim_jax.attribution.segments import answer_segments, context_segments
from lim_jax.attribution.support import Support, support_of_answer
from lim_jax.attribution.together import Together
from lim_jax.checkpoints.text import ChatTemplate
from lim_jax.models import generation
from lim_jax.models.language_model import LanguageModel
from lim_jax.prompts import own_answers

FEW = support.UNSUPPORTED
MANY = support.SUPPORTED
LITTLE = support.LITTLE
UNLIKELY = support.UNLIKELY


@pytest.mark.parametrize(
    ("loss", "total_effect", "verdict"),
    [
        (MANY, 0.0, "supported"),
        (MANY - 0.01, 9.0, "unclear"),
        (FEW, 0.0, "unclear"),
        (FEW - 0.01, LITTLE - 0.01, "unsupported"),
        (FEW - 0.01, LITTLE, "unclear"),  # as where two documents state it
        (-1.0, -2.0, "unsupported"),
        (FEW - 0.01, None, "unclear"),  # two documents may state it
        (MANY, None, "supported"),
    ],
)
def test_a_verdict_follows_from_what_the_answer_loses_and_is_given(loss, total_effect, verdict):
    assert Support("guide", 1.25, loss, total_effect).verdict == verdict


def test_a_copy_is_no_reason_to_doubt_an_answer():
    """It loses little without either, and much without both."""
    assert Support("guide", 1.25, 0.1, 0.2, MANY).verdict == "supported"
    assert Support("guide", 1.25, 0.1, 0.2, MANY - 0.01).verdict == "unsupported"
    assert Support("guide", 1.25, MANY, 0.2, 0.1).verdict == "supported"


def test_an_answer_that_the_model_would_hardly_give_is_not_said_to_be_supported():
    """As a wrong answer that is forced on it, and becomes still less likely without a document."""
    hardly = UNLIKELY - 0.01
    assert Support("guide", UNLIKELY, 9.0, 9.0).verdict == "supported"
    assert Support("guide", hardly, 9.0, 9.0).verdict == "unclear"
    assert Support("guide", hardly, 0.1, 0.2, 9.0).verdict == "unclear"
    assert Support("guide", hardly, 0.1, 0.2).verdict == "unsupported"


def test_an_answer_that_is_given_without_the_document_too_is_not_said_to_be_supported():
    """Unless all documents give it much: then others may state it too."""
    again = Support("guide", 1.25, 9.0, LITTLE - 0.01, given_without=True)
    assert again.verdict == "unclear"
    assert again._replace(given_without=False).verdict == "supported"
    assert again._replace(given_without=None).verdict == "supported", "it was not its own"
    assert again._replace(total_effect=LITTLE).verdict == "supported"
    assert again._replace(total_effect=None).verdict == "supported", "nothing says that"
    assert again._replace(loss=0.1).verdict == "unsupported"


def test_the_finding_says_why_an_answer_is_not_supported():
    assert Support("guide", UNLIKELY, 5.19, 4.93).finding == (
        "Without “guide” in the text the answer loses 5.19 of log odds."
    )
    unlikely = Support("guide", -6.394, 2.0, 4.93)
    reason = (
        "The model would hardly give this answer: with all documents its log odds are -6.39 a "
        "token."
    )
    assert unlikely.finding == (
        f"Without “guide” in the text the answer loses 2.00 of log odds. {reason}"
    )
    little = unlikely._replace(loss=-0.04, total_effect=0.06).finding
    assert little.endswith(f" or more. {reason}")
    assert Support("guide", 0.5, -0.04, 0.06).finding == (
        "Without “guide” in the text the answer gains 0.04 of log odds; of a small model's answers "
        f"that a document of one sentence states, nineteen in twenty lose {FEW} or more, or all "
        f"documents together give them {LITTLE} or more."
    )


def test_the_first_sentence_names_a_source_where_there_is_one():
    parts = [
        AnswerPart("guide", "document", 0.25, 1.0, 3, 0.5, ""),
        AnswerPart("survey", "document", 0.125, 0.5, 5, 0.5, ""),
    ]

    def first(verdict, foil="", signed=True):
        return answer_finding(parts, "Wren", foil, signed=signed, verdict=verdict)

    numbers = ": +0.25, with 3 of 8 tokens of documents."
    assert first("supported") == f"The answer “Wren” comes from “guide” most of all{numbers}"
    assert first("unsupported") == (
        f"No document supports the answer “Wren”; “guide” scores most{numbers}"
    )
    assert first("unclear") == (
        "It is not clear whether a document supports the answer “Wren”; “guide” scores most"
        + numbers
    )
    assert answer_finding(parts, "", signed=True, verdict="supported") == (
        f"The answer without visible letters comes from “guide” most of all{numbers}"
    )
    parts = [part._replace(score=-part.score) for part in parts]
    beginnings = {
        None: "No document speaks for the answer “Wren”; the least against it, “survey”: -0.12",
        "unsupported": "No document supports the answer “Wren”; “survey” scores most: -0.12",
        "unclear": "It is not clear whether a document supports the answer “Wren”; “survey”",
    }
    for verdict, beginning in beginnings.items():
        assert first(verdict).startswith(beginning)
    parts = [part._replace(score=-part.score) for part in parts]
    assert first(None, foil="Owl").startswith("“guide” decides most between")
    assert first("unsupported", signed=False).startswith(
        "No document supports the answer “Wren”; “guide” scores most: it holds 100 % of what"
    )


@pytest.mark.slow
def test_the_document_that_scores_most_is_taken_out_of_the_text():
    """For the whole answer, of whose two tokens each was scored; what all documents give is the
    method's."""
    model = jax.tree.map(lambda leaf: 3 * leaf, byte_network(64, depth=2, seed=3))
    parts = context_segments(CONTEXT)
    answer = answer_segments(CONTEXT, None, "token")
    by_part = np.array([[1.0, -2.0, 0.5, 9.0], [-3.0, 4.0, 0.5, 9.0]])  # the last is no document
    scores = Scores(answer, parts, by_part, total_effect=np.array([0.25, 0.5]))
    known = scores._replace(losses=np.array([1.0, 2.0]))  # of the whole, which is not read again
    read, without_whole = (
        support_of_answer(model, CONTEXT, given, LOSS, Run()) for given in (scores, known)
    )
    whole, without = (
        losses_of_text(model, text_of(kept)).sum()
        for kept in ((True, True, True), (True, False, True))
    )
    assert read is not None and without_whole is not None
    assert read.name == "second" and read.total_effect == 0.75
    np.testing.assert_allclose([read.log_odds, read.loss], [-whole, without - whole], rtol=1e-9)
    np.testing.assert_allclose([without_whole.log_odds, without_whole.loss], [-3, without - 3])


@pytest.mark.parametrize(
    ("losses", "without_copies"),
    [
        ([0, 0.2, 0.1, 2.5, 0, 0.2, 0.1, 2.5], 2.5),  # of "second" and "first" one suffices
        ([0, 0.2, 0.1, 0.1, 0.2, 2.5, 0.1, 0.2], 2.5),  # of "second" and "third"
        ([0, 0.2, 0.1, 0.1, 0.2, 0.2, 2.5, 0.2], None),  # of "first" and "third"
        ([0, 2.3, 2.4, 2.5, 0, 2.3, 2.4, 2.5], None),  # both are needed
    ],
)
def test_copies_of_the_document_that_scores_most_are_taken_out_with_it(
    losses, without_copies, monkeypatch
):
    """The sets have been read, and nothing is read again: number 3 is without the first two."""
    parts = context_segments(CONTEXT)
    answer = answer_segments(CONTEXT, None, "answer")
    scores = Scores(answer, parts, np.array([[1.0, 2.0, 0.5, 9.0]]), losses=np.array([1.0]))
    together = Together(("second", "first", "third"), np.array(losses, float))
    assert [part.within for part in parts[:3]] == ["first", "second", "third"]
    model = byte_network(64, depth=1, seed=3)
    monkeypatch.setattr(support, "losses_without", None)
    support_of_second = support_of_answer(model, CONTEXT, scores, LOSS, Run(), together)
    assert support_of_second is not None and support_of_second.name == "second"
    assert support_of_second.log_odds == -1.0 and support_of_second.loss == losses[1]
    assert support_of_second.total_effect is None
    assert support_of_second.loss_without_copies == without_copies


@pytest.mark.slow
@pytest.mark.parametrize("method", [mask_gradient, mask_path, leave_one_out, informed])
def test_methods_say_the_loss_of_the_whole_text(method):
    model = byte_network(64, depth=2, seed=3)
    answer = answer_segments(CONTEXT, None, "token")
    parts = context_segments(CONTEXT)
    scores = method.METHOD.scores(model, CONTEXT, answer, parts, LOSS, Run())
    expected = losses_of_text(model, text_of((True, True, True)))
    np.testing.assert_allclose(scores.losses, expected, rtol=1e-9)


@pytest.mark.parametrize("method", ["mask-gradient", "influence"])
def test_ask_says_whether_a_document_supports_the_answer(method):
    model = LanguageModel(byte_network(96, depth=1, seed=3))
    answered = lim.ask(model, "Who sang?", DOCUMENTS, answer="It", method=method)
    assert answered.support is not None and answered.support.name == answered.parts[0].name
    assert answered.support.total_effect == answered.total_effect
    record = answered.record()["support"]
    assert record == {
        "verdict": answered.support.verdict,
        "document": answered.parts[0].name,
        "log_odds": answered.support.log_odds,
        "loss": answered.support.loss,
        "loss_without_copies": None,  # this method tells of no copies
        "answer_without": None,  # it was not the model's own
        "given_without": None,
    }
    told = answered.support._replace(
        log_odds=-2.0, loss_without_copies=1.5, answer_without="He", given_without=False
    ).record()
    assert told == record | {
        "verdict": "supported",
        "log_odds": -2.0,
        "loss_without_copies": 1.5,
        "answer_without": "He",
        "given_without": False,
    }
    assert answered.support.finding in answered.finding
    beside = lim.ask(model, "Who sang?", DOCUMENTS, answer="It", foil="He", method=method)
    assert beside.support is None and beside.record()["support"] is None


@pytest.mark.parametrize(
    ("without", "sentence"),
    [
        (None, ""),
        ("It", "The model then gives the same answer."),
        ("He...", "The model then answers “He...”"),
        ("He, 62 m", "The model then answers “He, 62 m”."),
        ("", "The model then says nothing."),
    ],
)
def test_what_is_answered_without_the_document_is_said_after_what_the_answer_loses(
    without, sentence
):
    support = Support("guide", 0.5, 2.0, 4.0)
    model = LanguageModel(byte_network(96, depth=1, seed=3))
    answered = lim.ask(model, "Who sang?", DOCUMENTS, answer="It")
    asked = support._replace(answer_without=without, given_without=without == "It")
    found = answered._replace(support=asked).finding
    told = f" {support.finding} {sentence}".rstrip()
    assert f"{told} All documents together" in found
    alike = support._replace(answer_without="It...", given_without=True)
    cut = answered._replace(cut=True, support=alike).finding
    assert "The model then begins its answer alike." in cut, "what follows is not known"
    assert ("The model then" in found) == (without is not None)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (b" So.\0", "So."),
        (b" So", "So..."),
        (b"\0", ""),
        (b"S o.", "S o..."),
        (b" It\0", "It"),  # as the whole is answered
        (b" It", "It..."),
    ],
)
def test_the_model_answers_the_text_without_the_document_that_scores_most(said, shown, monkeypatch):
    """As it answered the whole: so many tokens at most, the same ends, and arrays of one size."""
    model = LanguageModel(byte_network(96, depth=1, seed=3), end_ids=(0,))
    calls = []

    def answer(network, ids, tokens, end, *, padding, prefix=None):
        calls.append((bytes(np.asarray(ids).tolist()), tokens, end, padding(len(ids) + 6)))
        return jax.device_put(np.array([*(b" It\0" if len(calls) == 1 else said)], np.int32))

    monkeypatch.setattr(own_answers, "answer", answer)
    monkeypatch.setattr(questions.generation, "answer", answer)
    answered = lim.ask(model, "Who sang?", DOCUMENTS, answer_tokens=7)
    assert answered.text == "It" and answered.support is not None
    assert answered.support.answer_without == shown
    assert answered.support.given_without == (shown == "It")
    (whole, *options), (left, *others) = calls
    number = int(answered.support.name.removeprefix("document ")) - 1
    text = DOCUMENTS[number].encode()
    assert whole.count(text) == 1 and text not in left
    taken_out = answered.context.spans[number].positions
    assert left == whole[: taken_out[0]] + whole[taken_out[-1] + 1 :]
    assert options == others == [7, (0,), 64]


def test_an_answer_that_was_cut_is_given_without_the_document_where_that_begins_alike(monkeypatch):
    model = LanguageModel(byte_network(96, depth=1, seed=3), end_ids=(0,))

    def answer(network, ids, tokens, end, *, padding, prefix=None):
        return jax.device_put(np.array([*b" It"], np.int32))

    monkeypatch.setattr(own_answers, "answer", answer)
    monkeypatch.setattr(questions.generation, "answer", answer)
    answered = lim.ask(model, "Who sang?", DOCUMENTS, answer_tokens=7)
    assert answered.cut and answered.support is not None
    assert answered.support.answer_without == "It..." and answered.support.given_without


def test_an_answer_without_a_document_ends_as_one_in_a_chat_does(monkeypatch):
    model = LanguageModel(byte_network(96, depth=1, seed=3))
    asked = questions.Question(
        "Who?",
        DOCUMENTS,
        method=None,
        passes=None,
        parts=None,
        document_parts=None,
        chat=True,
        answer=None,
        answer_tokens=7,
        foil="",
        max_length=4096,
    )
    prompt = questions.read_question(model, asked)
    context = lim.ask(model, "Who?", DOCUMENTS, answer="It").context
    ends = []

    def answer(network, ids, tokens, end, *, padding):
        ends.append(end)
        return jax.device_put(np.array([3], np.int32))

    monkeypatch.setattr(questions.generation, "answer", answer)
    monkeypatch.setattr(questions, "answer_ends", lambda model, in_chat: (7,) if in_chat else ())
    for chat in (True, False):
        of_chat = context._replace(chat=chat)
        questions.answer_without(model, prompt, of_chat, "document 1", Run())
    assert ends == [(7,), ()]


def test_a_turn_ends_an_answer_in_a_chat_alone(monkeypatch):
    """Of a model without a template none does."""
    monkeypatch.setattr(own_answers, "turn_ends", lambda template, tokenizer: (7,))
    network = byte_network(96, depth=1)
    model = LanguageModel(network, None, ChatTemplate("{{ messages }}", {}), (3,))
    assert own_answers.answer_ends(model, in_chat=True) == (3, 7)
    assert own_answers.answer_ends(model, in_chat=False) == (3,)
    assert own_answers.answer_ends(LanguageModel(network, end_ids=(3,)), in_chat=True) == (3,)


def test_an_answer_without_a_document_is_kept_in_a_file(monkeypatch, tmp_path):
    """A run that goes on reads it there; of another network's it is refused."""
    calls = []
    answer = generation.answer
    monkeypatch.setattr(
        questions.generation, "answer", lambda *of, **how: calls.append(of) or answer(*of, **how)
    )
    model = LanguageModel(byte_network(96, depth=1, seed=3))
    found = [
        lim.ask(model, "Who?", DOCUMENTS, answer_tokens=3, checkpoint=tmp_path).support
        for _ in range(2)
    ]
    assert found[0] == found[1] and len(calls) == 1
    other = LanguageModel(byte_network(96, depth=1, seed=4))
    for path in tmp_path.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    (tmp_path / "answers.jsonl").unlink()
    with pytest.raises(ValueError, match="answer_without"):
        lim.ask(other, "Who?", DOCUMENTS, answer_tokens=3, checkpoint=tmp_path)
