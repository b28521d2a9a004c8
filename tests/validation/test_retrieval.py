"""Batches of retrieval in ids: what they ask has one answer, and it is the one given."""

import jax
import numpy as np
import pytest
from scipy.stats import chisquare

from benchmarks.validation.laws import every_place
from benchmarks.validation.retrieval import (
    KeyValueTask,
    RecallTask,
    key_value_examples,
    recall_examples,
)
from lim_jax import tasks
from lim_jax.tasks.prompts import Example

TASK = KeyValueTask(records=5, keys=7, values=3)
RECALL = RecallTask(pairs=3, length=24, keys=9, values=4, power=0.3)


@pytest.fixture(scope="module")
def key_values() -> Example:
    draw = jax.jit(lambda gold, key: key_value_examples(TASK, gold, key=key))
    return jax.tree.map(np.asarray, draw(every_place(5, 800), jax.random.key(3)))


@pytest.fixture(scope="module")
def recalls() -> Example:
    draw = jax.jit(lambda key: recall_examples(RECALL, 4000, key=key))
    return jax.tree.map(np.asarray, draw(jax.random.key(4)))


def test_the_answer_stands_after_the_key_that_is_asked(key_values):
    for window, gold in zip(key_values.window, key_values.gold, strict=True):
        pairs = dict(window[:10].reshape(5, 2).tolist())
        assert len(pairs) == 5  # distinct keys: one answer
        assert list(pairs)[gold.item()] == window[10]
        assert pairs[window[10]] == window[11]


def test_ids_records_and_weights_are_those_of_the_task(key_values):
    keys = key_values.window[:, 0:10:2]
    values = key_values.window[:, 1:10:2]
    assert keys.min() == 0 and keys.max() == 6 and values.min() == 7 and values.max() == 9
    np.testing.assert_array_equal(key_values.records[17], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, -1])
    np.testing.assert_array_equal(key_values.weights[17], [0] * 10 + [1])
    np.testing.assert_array_equal(key_values.gold[:, 0], np.tile(np.arange(5), 800))


def test_keys_and_values_are_uniform(key_values):
    first = key_values.window[:, 0]
    third = key_values.window[:, 5] - 7
    assert chisquare(np.bincount(first, minlength=7)).pvalue > 1e-3
    assert chisquare(np.bincount(third, minlength=3)).pvalue > 1e-3


def test_every_pair_is_recalled_once_where_its_key_stands_again(recalls):
    for window, weights, gold in zip(recalls.window, recalls.weights, recalls.gold, strict=True):
        pairs = dict(window[:6].reshape(3, 2).tolist())
        query_positions = np.flatnonzero(weights)
        assert len(pairs) == 3 and (query_positions >= 6).all() and (query_positions % 2 == 0).all()
        np.testing.assert_allclose(weights[query_positions], 1 / 3)
        assert [list(pairs).index(window[at]) for at in query_positions] == gold.tolist()
        assert [pairs[window[at]] for at in query_positions] == window[query_positions + 1].tolist()
        rest = np.delete(window[6:], np.concatenate([query_positions - 6, query_positions - 5]))
        assert rest.min() >= 9 and rest.max() <= 12
    np.testing.assert_array_equal(recalls.records[0], [0, 0, 1, 1, 2, 2] + [-1] * 18)


def test_the_gap_to_a_query_follows_the_power_law(recalls):
    """Of the first pair, whose place is drawn first: P(slot r) ~ (r + 1)^(a - 1)."""
    slots = [(np.flatnonzero(window[6::2] == window[0])[0]) for window in recalls.window[:, :-1]]
    odds = np.arange(1, 10) ** (0.3 - 1)
    assert chisquare(np.bincount(slots, minlength=9), 4000 * odds / odds.sum()).pvalue > 1e-3


def test_records_weights_are_their_parts_of_the_integral():
    records = np.array([1, -1, 0, 1, 1], np.int32)
    cells = np.array([0.1, 0.3, 0.2, 0.15, 0.25])
    weights = tasks.record_weights(jax.device_put(records), jax.device_put(cells), 3)
    expected = [[0, 0, 0.2, 0, 0], [0.1, 0, 0, 0.15, 0.25], [0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(weights, expected)
