"""Needles: where they stand in the haystack, which are asked for, and what is the answer."""

import re
from collections import Counter

import numpy as np
import pytest

from lim_jax.tasks import (
    NeedleQuestion,
    cut_haystack,
    encode,
    needle_prompt,
    needle_question_prompt,
    python_sentences,
    share_found,
)

SENTENCES = ["Aa.", "Bbb bb.", "Ccccc c cc.", "D!", "Eee ee?", "Ffff.", "Gg gg gg."]
NEEDLE = re.compile(r"The number of ([a-z]+ [a-z]+) is (\d{7})\.")


def parts(prompt):
    """The body between the instruction and the question, and the needles as a reader finds them."""
    _, body, question = prompt.text.split("\n\n")
    return body, NEEDLE.findall(body), question


@pytest.mark.parametrize("depth", np.linspace(0, 1, 21).tolist())
def test_a_needle_stands_behind_the_last_sentence_that_ends_by_its_depth(depth):
    prompt = needle_prompt(SENTENCES, seed=1, depths=[depth])
    body, needles, question = parts(prompt)
    before, after = NEEDLE.split(body)[0].strip(), NEEDLE.split(body)[-1].strip()
    whole = " ".join(SENTENCES)
    assert " ".join(part for part in (before, after) if part) == whole
    assert before == "" or before[-1] in ".!?"
    assert len(before) <= depth * len(whole)
    # No further sentence would have fitted.
    following = re.match(r"[^.!?]*[.!?]", after)
    assert (after == "") == (depth == 1)
    if following:
        assert len(before) + 1 * (before != "") + following.end() > depth * len(whole)
    ((name, number),) = needles
    ((start, end),) = prompt.spans
    assert prompt.text[start:end] == f"The number of {name} is {number}." and prompt.gold == (0,)
    assert prompt.answer == f" {number}" and question == f"What is the number of {name}? It is"


@pytest.mark.parametrize(
    "keys, values, queries", [(1, 1, 1), (4, 1, 1), (1, 4, 1), (4, 1, 4), (5, 3, 2), (3, 2, 3)]
)
def test_what_is_asked_for_is_what_a_reader_finds(keys, values, queries):
    for seed in range(5):
        prompt = needle_prompt(SENTENCES, seed, keys=keys, values=values, queries=queries)
        body, needles, question = parts(prompt)
        assert NEEDLE.sub("", body).split() == " ".join(SENTENCES).split()
        assert Counter(name for name, _ in needles) == Counter(
            {name: values for name in {name for name, _ in needles}}
        )
        assert len(needles) == keys * values == len({number for _, number in needles})
        # The question's names, in its order; each name's numbers, in the text's.
        names = sorted({name for name, _ in needles if name in question}, key=question.index)
        expected = [number for one in names for name, number in needles if name == one]
        assert len(names) == queries
        assert prompt.answer.strip().split(", ") == expected
        assert [needles[place][1] for place in prompt.gold] == expected
        spelt = [prompt.text[start:end] for start, end in prompt.spans]
        assert spelt == ["The number of {} is {}.".format(*needle) for needle in needles]
        assert share_found(f"They are{prompt.answer}", expected) == 1
        several = queries * values > 1
        assert question.startswith("What are all" if several else "What is the number of")


def test_several_names_are_listed_as_one_says_them():
    _, _, two = parts(needle_prompt([], 0, keys=2, queries=2))
    assert re.search(r"numbers of \w+ \w+ and \w+ \w+\? They are$", two)
    _, _, three = parts(needle_prompt([], 0, keys=5, queries=3))
    assert re.search(r"numbers of \w+ \w+, \w+ \w+ and \w+ \w+\? They are$", three)


def test_depths_are_those_of_the_needles_with_the_names_asked_for_first():
    # Name 0 has depths 0.9 and 0.1, name 1, which is not asked for, 0.5 and 0.
    prompt = needle_prompt(SENTENCES, 2, keys=2, values=2, depths=[0.9, 0.1, 0.5, 0.0])
    _, needles, question = parts(prompt)
    asked = [name in question for name, _ in needles]
    assert asked == [False, True, False, True] and prompt.gold == (1, 3)
    # Without depths they are uniform, and the gold needle is anywhere among all.
    golds = [needle_prompt([], seed, keys=4).gold[0] for seed in range(400)]
    np.testing.assert_allclose(np.bincount(golds), 100, atol=4 * np.sqrt(75))
    bodies = [parts(needle_prompt(["A."] * 99, seed))[0] for seed in range(400)]
    before = [body.index("T") / 3 for body in bodies]  # sentences of three characters
    np.testing.assert_allclose(np.mean(before), 49.5, atol=4 * 100 / np.sqrt(12 * 400))
    np.testing.assert_allclose(np.std(before), 100 / np.sqrt(12), rtol=0.15)


def test_the_same_seed_draws_the_same_and_needles_alone_are_a_haystack():
    prompt = needle_prompt([], 3, keys=500, queries=2)
    body, needles, _ = parts(prompt)
    assert len({name for name, _ in needles}) == 500 and NEEDLE.sub("", body).strip() == ""
    assert needle_prompt([], 3, keys=500, queries=2) == prompt
    # Ten thousand numbers: some would be the same if they were drawn one by one.
    _, many, _ = parts(needle_prompt([], 3, keys=500, values=20))
    assert len({number for _, number in many}) == 10_000
    assert needle_prompt([], 4, keys=500, queries=2) != prompt


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"keys": 0}, "keys: got 0"),
        ({"keys": 501}, "keys: got 501, expected a whole number from 1 to 500"),
        ({"keys": 2, "queries": 3}, "queries: got 3, expected a whole number from 1 to 2"),
        ({"values": 0}, "values: got 0"),
        ({"depths": [0.1, 0.2]}, "depths: got .*, expected 1 from 0 to 1"),
        ({"depths": [1.1]}, "depths: got"),
        ({"depths": [float("nan")]}, "depths: got"),
    ],
)
def test_needles_that_cannot_be_hidden_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        needle_prompt(SENTENCES, 0, **wrong)


def test_a_needle_of_ones_own_is_hidden_with_a_name_drawn_for_it():
    data = NeedleQuestion("x", "{CHAR} sails. ", "Did {CHAR} or who?", ("Ada", "Emmy", "Grace"))
    drawn = set()
    for seed in range(20):
        prompt = needle_question_prompt(data, SENTENCES, 0.4, seed)
        name = prompt.answer.strip()
        ((start, end),) = prompt.spans
        assert prompt.text[start:end] == f"{name} sails. " and prompt.gold == (0,)
        assert prompt.text.endswith(f"Question: Did {name} or who?\nAnswer:")
        drawn.add(name)
    assert drawn == {"Ada", "Emmy", "Grace"}
    plain = NeedleQuestion("x", "He sails.", "Who?", ("he", "him"))
    assert {needle_question_prompt(plain, SENTENCES, 1, seed).answer for seed in range(9)} == {
        " he"
    }
    with pytest.raises(ValueError, match="depths: got"):
        needle_question_prompt(plain, SENTENCES, -0.1, 0)


def test_a_haystack_is_cut_at_the_ends_of_sentences():
    lengths = set()
    for seed in range(30):
        found = cut_haystack(SENTENCES, 20, seed)
        start = SENTENCES.index(found[0])
        turned = SENTENCES[start:] + SENTENCES[:start]
        assert found == turned[: len(found)]
        assert len(" ".join(found)) <= 20 < len(" ".join(turned[: len(found) + 1]))
        lengths.add(start)
    assert lengths == set(range(7))
    size = len(" ".join(SENTENCES))
    assert sorted(cut_haystack(SENTENCES, size, 0)) == sorted(SENTENCES)
    for wrong in (1, size + 1):
        with pytest.raises(ValueError, match=f"size: got {wrong} characters, expected from"):
            cut_haystack(SENTENCES, wrong, 0)
    with pytest.raises(ValueError, match="size: got 5 characters, expected sentences"):
        cut_haystack([], 5, 0)


def test_pythons_help_is_a_haystack_of_whole_sentences():
    found = python_sentences()
    text = " ".join(found)
    assert len(text) > 100_000
    assert all(one == " ".join(one.split()) and one[-1] in ".!?" for one in found)
    assert not re.search(r"[*=\-~^]{4}|::=|>>> ", text)
    prompt = needle_prompt(cut_haystack(found, 2000, 0), 0, depths=[0.5])
    records = encode(prompt).records
    # A needle of some fifty characters, near the middle of some two thousand.
    ((start, end),) = prompt.spans
    assert (records == 0).sum() == len(prompt.text[start:end].encode())
    assert 0.3 < np.flatnonzero(records == 0)[0] / len(records) < 0.7
