"""Key-value prompts: valid JSON, no key twice, the value of the key that is asked for."""

import json
import re

import pytest

from benchmarks.validation.key_values import KeyValues, draw_key_values, key_value_prompt
from lim_jax.tasks import encode


def object_of(prompt):
    """What a JSON reader makes of the prompt's pairs, in order."""
    body = prompt.text[prompt.text.index("{") : prompt.text.rindex("}") + 1]
    return json.loads(body, object_pairs_hook=list)


def asked_of(prompt):
    """The key in the last line."""
    return re.findall(r'"([^"]*)"', prompt.text.rpartition("\n")[2])[0]


@pytest.mark.parametrize("place", [0, 3, 6, None])
def test_the_pair_that_is_asked_for_stands_at_its_place(place):
    data = draw_key_values(7, seed=3, key_length=2, value_length=5)
    prompt = key_value_prompt(data, place)
    pairs = object_of(prompt)
    gold = data.gold if place is None else place
    key, value = data.pairs[data.gold]
    assert prompt.gold == (gold,) and pairs[gold] == (key, value)
    assert [pair for pair in pairs if pair[0] != key] == [
        pair for pair in data.pairs if pair[0] != key
    ]
    assert asked_of(prompt) == key and prompt.answer == value
    spelt = [json.loads("{" + prompt.text[start:end] + "}") for start, end in prompt.spans]
    assert spelt == [{key: value} for key, value in pairs]
    example = encode(prompt)
    records = example.records.tolist()
    assert [records.count(number) for number in range(7)] == [2 + 5 + 6] * 7


def test_pairs_are_drawn_by_their_seed():
    data = draw_key_values(200, seed=0, key_length=2, value_length=3)
    keys, values = zip(*data.pairs, strict=True)
    assert len(set(keys)) == 200
    assert {len(key) for key in keys} == {2} and {len(value) for value in values} == {3}
    assert set("".join(keys + values)) == set("0123456789abcdef")
    assert draw_key_values(200, seed=0, key_length=2, value_length=3) == data
    assert draw_key_values(200, seed=1, key_length=2, value_length=3) != data
    golds = [draw_key_values(3, seed=seed).gold for seed in range(40)]
    assert sorted(set(golds)) == [0, 1, 2]


@pytest.mark.parametrize(
    "draw, message",
    [
        ({"count": 0}, "count: got 0"),
        ({"count": 17, "key_length": 1}, "count: got 17, .*at most 16, the keys of 1 digits"),
        ({"count": 2, "key_length": "words"}, "key_length: got 'words', .* of digits"),
        ({"count": 2, "value_length": 0}, "value_length: got 0"),
    ],
)
@pytest.mark.usefixtures("as_users_run")
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw_key_values(seed=0, **draw)


def test_a_place_or_keys_that_mean_nothing_are_refused():
    data = draw_key_values(3, seed=0)
    with pytest.raises(ValueError, match="place: got 3, expected .* the 3 pairs"):
        key_value_prompt(data, 3)
    with pytest.raises(ValueError, match="data: got 2 pairs of 1 keys, expected no key twice"):
        key_value_prompt(KeyValues((("a", "1"), ("a", "2")), 0))
