"""Documents together: sets of made-up losses, and texts that were written out without documents."""

import jax
import numpy as np
import pytest
from reference.networks import byte_network
from test_informed import CONTEXT, DOCUMENTS, LOSS, losses_of_text, text_of

import lim_jax as lim
from lim_jax.attribution.method import Run
from lim_jax.attribution.methods import informed
from lim_jax.attribution.segments import Segment, answer_segments, context_segments
from lim_jax.attribution.together import (
    DocumentGroup,
    Together,
    masks_without_sets,
    most_telling,
    read_together,
)
from lim_jax.models.language_model import LanguageModel

# What an answer loses without a; b; a and b; c; a and c; b and c; all.
ONE_SUFFICES = (0.0, 0.2, 0.1, 3.1)
ALL_NEEDED = (0.0, 2.9, 3.3, 3.1)
EACH_ITS_OWN = (0.0, 1.5, 1.4, 2.9)
THREE_COPIES = (0.0, 0.1, 0.0, 0.2, 0.05, 0.1, 0.15, 2.5)
TWO_COPIES_AND_ANOTHER = (0.0, 0.1, 0.2, 3.0, 1.0, 1.1, 1.2, 4.0)
TWO_HALVES_AND_NOTHING = (0.0, 2.0, 2.1, 2.2, 0.0, 2.0, 2.1, 2.2)
COPIES_OF_WHICH_ONE_IS_NEEDED_TOO = (0.0, 0.1, 0.6, 3.0, 0.65, 1.0, 0.7, 3.5)


def together(losses):
    names = ("guide", "survey", "note")[: len(losses).bit_length() - 1]
    return Together(names, np.array(losses))


def finding(losses):
    return together(losses).finding


@pytest.mark.parametrize(
    "losses, groups",
    [
        (ONE_SUFFICES, [(("guide", "survey"), "one suffices", 0.2, 3.1)]),
        ((0.0, -0.1, -0.45, 2.75), [(("guide", "survey"), "one suffices", 0.0, 2.75)]),
        (ALL_NEEDED, [(("guide", "survey"), "needed together", 2.9, 3.1)]),
        (THREE_COPIES, [(("guide", "survey", "note"), "one suffices", 0.2, 2.5)]),
        (
            COPIES_OF_WHICH_ONE_IS_NEEDED_TOO,
            [
                (("guide", "survey"), "one suffices", 0.6, 3.0),
                (("survey", "note"), "needed together", 0.6, 0.7),
            ],
        ),
        (EACH_ITS_OWN, []),
    ],
)
def test_groups_are_those_of_the_sentences(losses, groups):
    assert together(losses).groups == [DocumentGroup(*group) for group in groups]
    sentences = [DocumentGroup(*group).sentence for group in groups]
    assert finding(losses) == " ".join(sentences)


def test_of_two_copies_one_suffices():
    assert finding(ONE_SUFFICES) == (
        "One of “guide” and “survey” suffices: without the other the answer loses at most 0.20 of "
        "log odds, without both 3.10."
    )


def test_of_copies_that_each_take_away_from_the_other_none_is_lost():
    assert "loses at most 0.00 of log odds, without both 2.75." in finding((0.0, -0.1, -0.45, 2.75))


def test_two_halves_are_needed_together():
    assert finding(ALL_NEEDED) == (
        "“guide” and “survey” are needed together: without one of them the answer loses at least "
        "2.90 of log odds, without both 3.10."
    )


def test_of_three_copies_one_suffices_and_no_two_are_named():
    assert finding(THREE_COPIES) == (
        "One of “guide”, “survey” and “note” suffices: without the others the answer loses at most "
        "0.20 of log odds, without all 2.50."
    )


def test_copies_are_seen_beside_a_document_of_its_own():
    assert finding(TWO_COPIES_AND_ANOTHER).startswith("One of “guide” and “survey” suffices")
    swapped = [TWO_COPIES_AND_ANOTHER[number] for number in (0, 4, 2, 6, 1, 5, 3, 7)]
    assert finding(swapped).startswith("One of “survey” and “note” suffices")


def test_halves_are_seen_beside_a_document_that_gives_nothing():
    assert finding(TWO_HALVES_AND_NOTHING).startswith("“guide” and “survey” are needed together")


@pytest.mark.parametrize(
    "losses",
    [
        EACH_ITS_OWN,
        tuple(loss / 10 for loss in ONE_SUFFICES),  # next to nothing in all
        tuple(-loss for loss in ALL_NEEDED),  # against the answer
        (0.0, 0.9, 0.1, 3.1),  # without one it loses more than a quarter
        (0.0, 2.9, 2.2, 3.1),  # without one it keeps more than a quarter
        (0.0, 3.0, 0.0, 3.0),  # one gives all
        (0.0, 3.0),
    ],
)
def test_nothing_is_said_where_documents_add_up_or_give_little(losses):
    assert not finding(losses)


@pytest.mark.parametrize(
    "losses, relation, loss",
    [
        ((0.0, 0.9, 0.8, 3.0), "one suffices", 0.9),
        ((0.0, 2.2, 2.1, 3.0), "needed together", 2.1),
    ],
)
def test_another_share_tells_other_groups(losses, relation, loss):
    """Without one of them three tenths are lost of what both give, or all but these."""
    assert together(losses).groups_at(0.25) == together(losses).groups == []
    group = DocumentGroup(("guide", "survey"), relation, loss, 3.0)
    assert together(losses).groups_at(0.31) == [group]


def test_all_three_are_needed_where_each_takes_all_away():
    needed = (0.0, 2.0, 2.1, 2.1, 1.9, 2.2, 2.2, 2.3)
    assert finding(needed).startswith("“guide”, “survey” and “note” are needed together: ")
    assert "at least 1.90 of log odds, without all 2.30." in finding(needed)


def test_a_record_has_each_set_once():
    record = Together(("a", "b", "c"), np.arange(8) / 4).record()
    assert record == [
        {"without": ["a"], "loss": 0.25},
        {"without": ["b"], "loss": 0.5},
        {"without": ["c"], "loss": 1.0},
        {"without": ["a", "b"], "loss": 0.75},
        {"without": ["a", "c"], "loss": 1.25},
        {"without": ["b", "c"], "loss": 1.5},
        {"without": ["a", "b", "c"], "loss": 1.75},
    ]


def segments(*names):
    return [Segment(name, ("é",), np.array([at])) for at, name in enumerate(names)]


def test_documents_are_chosen_by_the_sums_of_their_parts():
    """“b” has the largest part, and others more in all; what is no document is not counted."""
    parts = segments("a", "a", "b", "b", "c", "d", "")
    scores = np.array([2.0, 0.1, 2.5, -2.4, 0.2, -7.0, 9.0])
    assert most_telling(parts, scores, range(6)) == ("a", "c", "b")


def test_a_set_leaves_out_all_parts_of_its_documents():
    masks = masks_without_sets(segments("a", "b", "a", "c"), ("c", "a"))
    np.testing.assert_array_equal(
        masks, np.array([[1, 1, 1, 1], [1, 1, 1, 0], [0, 1, 0, 1], [0, 1, 0, 0]], bool)
    )


@pytest.mark.slow
def test_losses_are_those_of_texts_that_were_written_without_the_documents():
    """Over the whole answer, though it was scored in two parts; without what all texts lose."""
    model = jax.tree.map(lambda leaf: 3 * leaf, byte_network(64, depth=2, seed=3))
    answer = answer_segments(CONTEXT, None, "token")
    parts = context_segments(CONTEXT)
    scores = informed.method(8).scores(model, CONTEXT, answer, parts, LOSS, Run())
    result = read_together(model, CONTEXT, scores, LOSS, Run())
    assert result.names == most_telling(parts, scores.by_part.sum(axis=0), range(3))
    places = [("first", "second", "third").index(name) for name in result.names]
    whole = losses_of_text(model, text_of((True, True, True))).sum()
    for number, loss in enumerate(result.losses):
        kept = [place not in [places[k] for k in range(3) if number >> k & 1] for place in range(3)]
        expected = losses_of_text(model, text_of(kept)).sum() - whole
        np.testing.assert_allclose(loss, expected, rtol=1e-9, atol=1e-12)


def test_an_answer_says_what_its_documents_do_together(monkeypatch):
    monkeypatch.setattr("lim_jax.attribution.together.LEAST", -np.inf)
    monkeypatch.setattr("lim_jax.attribution.together.SHARE", np.inf)
    model = LanguageModel(byte_network(96, depth=1, seed=3))
    answered = lim.ask(model, "Who sang?", DOCUMENTS, answer="It", passes=20)
    names = [part.name for part in answered.parts if part.kind == "document"]
    assert answered.together is not None and list(answered.together.names) == names
    assert answered.finding.endswith(answered.together.finding)
    assert len(answered.record()["together"]) == 7
    assert answered.support is not None and answered.support.name == names[0]
    assert answered.support.loss == answered.together.losses[1]
    for documents, passes, foil in ((DOCUMENTS, 19, ""), (DOCUMENTS, 20, "He"), (["Wren"], 20, "")):
        others = lim.ask(model, "Who sang?", documents, answer="It", passes=passes, foil=foil)
        assert others.together is None and others.record()["together"] is None
