"""Scores, on cases by hand that pin each rule of their sources."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lim_jax.tasks import (
    any_found,
    contains_answer,
    contains_normalised,
    decodes_greedily,
    exact_match,
    normalised,
    share_found,
)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("PARIS", "paris"),
        ("the Seine, a river and an island", "seine river and island"),
        # Articles are whole words: "Athens" and "theatre" keep theirs.
        ("Athens theatre banana", "athens theatre banana"),
        # Punctuation goes first, without a space in its place, so that "a." is an article.
        ("plan a.", "plan"),
        ("a-frame", "aframe"),
        ("O'Neill (1888)", "oneill 1888"),
        # Only ASCII's is punctuation.
        ("“café” — £3", "“café” — £3"),
        # An article leaves a space.
        ("“the” café", "“ ” café"),
        (" one\t two\n\nthree ", "one two three"),
        ("The", ""),
    ],
)
def test_texts_are_normalised_as_squad_compares_them(text, expected):
    assert normalised(text) == expected


@pytest.mark.parametrize(
    "response, answers, expected",
    [
        ("I think it is the Danube.", ["Rhine", "a danube"], True),
        ("I think it is the Danube.", ["Rhine", "Elbe"], False),
        # Part of a word is enough, and an answer that is only partly there is not.
        ("Party", ["art"], True),
        ("Danube", ["Danube river"], False),
        ("Danube - river", ["the Danube River!"], True),
        # The first line alone is read, even where it is empty.
        ("No idea\nDanube", ["Danube"], False),
        ("\nDanube", ["Danube"], False),
        ("  Danube  \nNo idea", ["Danube"], True),
    ],
)
def test_any_answer_in_the_first_line_is_right(response, answers, expected):
    assert contains_normalised(response, answers) is expected


@pytest.mark.parametrize(
    "response, exact, contained",
    [
        ("Ada", True, True),
        ("\n Grace \t", True, True),
        ("ada", False, False),
        ("Ada.", False, True),
        ("Ada Grace", False, True),
        ("", False, False),
    ],
)
def test_exact_matches_are_of_whole_responses_and_to_the_letter(response, exact, contained):
    assert exact_match(response, ["Ada", "Grace"]) is exact
    assert contains_answer(response, ["Ada", "Grace"]) is contained


@pytest.mark.parametrize(
    "response, by_hand",
    [
        ("7001, 7002 and 7003", [1, 1, 0, 1]),  # 00 is part of them
        ("7001", [1, 0, 0, 1]),
        ("7003\n\n7002\nab", [0, 1, 1, 1]),  # on any line
        ("AB", [0, 0, 1, 0]),
        ("none", [0, 0, 0, 0]),
    ],
)
def test_references_are_found_anywhere_in_either_case(response, by_hand):
    references = ["7001", "7002", "aB", "00"]
    assert share_found(response, references) == sum(by_hand) / 4
    assert any_found(response, references) is (sum(by_hand) > 0)
    for reference, found in zip(references, by_hand, strict=True):
        assert any_found(response, [reference]) is bool(found)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    "score", [contains_normalised, exact_match, contains_answer, share_found, any_found]
)
def test_a_score_of_no_answers_is_refused(score):
    for answers in ([], "Ada"):
        with pytest.raises(ValueError, match="answers: got .*, expected a list of texts"):
            score("Ada", answers)


def decoded(step, prompt, count):
    """Greedy decoding word by word: the network reads what it has said itself."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(np.argmax(step(ids))))
    return ids[len(prompt) :]


def test_decoding_gives_the_answer_exactly_where_every_asked_word_is_the_best():
    """A causal network of random tables; its logits depend on all that it has read."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(4, 4))

    def step(ids):
        return sum(table[one] * np.cos(place) for place, one in enumerate(ids))

    outcomes = []
    found = jax.jit(decodes_greedily)
    for prompt in rng.integers(4, size=(30, 3)).tolist():
        right = decoded(step, prompt, 2)
        for answer in (right, [right[0], (right[1] + 1) % 4], [(right[0] + 1) % 4, right[1]]):
            window = prompt + answer
            logits = np.stack([step(window[: place + 1]) for place in range(4)])
            targets, weights = np.array(window[1:]), np.array([0.0, 0.0, 0.5, 0.5])
            outcome = bool(found(*map(jax.device_put, (logits, targets, weights))))
            assert outcome == (answer == right)
            outcomes.append((outcome, bool((logits.argmax(1) == targets).all())))
    # What is not asked is often wrong, and does not count.
    assert sum(outcome for outcome, _ in outcomes) == 30 and (True, False) in outcomes


def test_examples_are_decoded_side_by_side():
    logits = jnp.array([[[0.0, 1.0], [3.0, 2.0]], [[1.0, 1.0], [0.0, 9.0]]])
    targets, weights = jnp.array([[1, 0], [1, 1]]), jnp.array([[0.5, 0.5], [0.5, 0.5]])
    # Of equal logits the first counts: the second example's first word is 0.
    assert jax.vmap(decodes_greedily)(logits, targets, weights).tolist() == [True, False]
    assert bool(decodes_greedily(logits[1], jnp.array([0, 1]), weights[1]))


@pytest.mark.usefixtures("as_users_run")
def test_places_that_ask_nothing_or_no_word_are_refused():
    logits, targets = jnp.eye(2), jnp.array([0, 1])
    with pytest.raises(Exception, match="weights: got none but zero"):
        decodes_greedily(logits, targets, jnp.zeros(2))
    for outside in (-1, 2):
        with pytest.raises(Exception, match="targets: expected numbers from 0 to 1 where asked"):
            decodes_greedily(logits, jnp.array([0, outside]), jnp.array([0.5, 0.5]))
    assert decodes_greedily(logits, jnp.array([0, -1]), jnp.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="targets: got 3, expected 2"):
        decodes_greedily(logits, jnp.array([0, 1, 1]), jnp.array([0.5, 0.5]))
