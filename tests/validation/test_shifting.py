"""Networks that turn places are asked in contexts longer than in training."""

from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import drawn

from benchmarks.validation import shifting
from benchmarks.validation.prediction import ATTRIBUTIONS, RecordScores
from benchmarks.validation.retrieval import KeyValueTask
from benchmarks.validation.retrievers import (
    PlaceScores,
    Setting,
    examples_of_every_place,
    new_retriever,
    over_seeds,
)

SETTING = Setting(KeyValueTask(2, 4, 3), width=4, heads=1, depth=1, rotary=True)


@cache
def networks():
    """Of three seeds."""
    return drawn(partial(new_retriever, SETTING), count=3)


def test_a_longer_context_has_the_same_words_and_more_records():
    setting = shifting.in_longer_contexts(SETTING, 2)
    assert setting == SETTING._replace(task=KeyValueTask(4, 4, 3))
    assert setting.task.vocabulary == SETTING.task.vocabulary


@pytest.mark.slow
def test_a_shift_asks_for_every_place_of_both_lengths(monkeypatch):
    """Judges are tested by themselves; here is what they were asked, and what is kept of it."""

    def record_scores(model, examples):
        records = jnp.arange(examples.records.shape[1] // 2, dtype=float)
        rising = records * model.head[0, 0] ** 2
        same: Any = dict.fromkeys(ATTRIBUTIONS, rising)
        falling: Any = dict.fromkeys(ATTRIBUTIONS, -rising)
        return RecordScores(same, falling, PlaceScores(*3 * [rising]))

    def scores_by_place(model, examples):
        asked = jnp.bincount(examples.gold[:, 0], length=5).astype(model.head.dtype)
        return PlaceScores(*3 * [asked])

    monkeypatch.setattr(shifting, "record_scores", record_scores)
    monkeypatch.setattr(shifting, "scores_by_place", scores_by_place)
    models = networks()
    record = shifting.shift_record(SETTING, models, test=5, attributed=2, key=jax.random.key(0))
    assert list(record) == ["2 records", "4 records"]
    assert record["2 records"]["accuracy"] == 3 * [[5, 5, 0, 0, 0]]
    assert record["4 records"]["accuracy"] == 3 * [[5, 5, 5, 5, 0]]
    slopes = np.asarray(models.head)[:, :1, 0] ** 2
    np.testing.assert_allclose(record["4 records"]["influence"], slopes * np.arange(4)[None])
    for prediction in record["4 records"]["predictions"]:
        falling = (prediction["of"] == "at the gold record") != (
            prediction["score"] == "minus cross-entropy"
        )
        np.testing.assert_allclose(prediction["correlations"], 3 * [-1 if falling else 1])


def test_all_seeds_are_asked_the_same():
    models = networks()
    asked = examples_of_every_place(SETTING, 1, key=jax.random.key(1))
    both = over_seeds(lambda model, examples: (model.head.sum(), examples.window.sum()))
    found = eqx.filter_jit(both)
    heads, windows = found(models, asked)
    np.testing.assert_allclose(heads, np.asarray(models.head).sum(axis=(1, 2)))
    np.testing.assert_array_equal(windows, 3 * [np.asarray(asked.window).sum()])
