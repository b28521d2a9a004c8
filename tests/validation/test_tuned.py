"""Arms that train a published model further: which texts they see, what is kept, what is compared.

Gradients and judgements, which `test_tuning` holds, are cheap ones here.
"""

import inspect
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.made_tuning import SEEDS, made_tuning
from reference.networks import byte_network
from scipy import stats

from benchmarks.validation import tuned
from benchmarks.validation.remedies import PLAIN
from benchmarks.validation.retrievers import PlaceScores
from benchmarks.validation.texts import PromptSetting
from benchmarks.validation.tuned import (
    ALONE,
    AT_EQUAL_STEPS,
    AT_EQUAL_TIME,
    BEFORE,
    SELECTIVE,
    Tuning,
    tuning_gains,
)
from benchmarks.validation.tuning import trained_rows

SHORT = PromptSetting(5, 10, key_length=2, value_length=2)
LONGER = PromptSetting(7, 7, key_length=2, value_length=2)
TUNING = Tuning(SHORT, LONGER, seeds=2, stages=3, every=2, batch=3, probes=2, rate=0.01, last=1)
STEPS = 6


@pytest.fixture(scope="module")
def model():
    return byte_network(200, depth=2)


@pytest.fixture
def seen(monkeypatch):
    """What a step's gradient is taken of; its slope is the sum of what it sees."""
    steps = []
    judged = []

    def gradient(model, rows, training, probes, *, strength):
        steps.append((training, probes, strength))
        sight = sum(part.ids.sum().astype(float) for part in (training, probes) if part is not None)
        return jax.tree.map(lambda leaf: jnp.cos(sight + leaf), rows)

    def judge(model, rows, rounds):
        judged.append(rounds)
        total = sum(leaf.sum() for leaf in jax.tree.leaves(rows))
        places = jnp.arange(1.0, 1 + len(rounds[0].gold))
        return PlaceScores(total * places, total + places, total - places)

    monkeypatch.setattr(tuned, "tuning_gradient", gradient)
    monkeypatch.setattr(tuned, "judge", judge)
    monkeypatch.setattr(tuned, "_update", inspect.unwrap(tuned._update))  # not compiled
    with jax.numpy_dtype_promotion("standard"):  # optax promotes
        yield steps, judged


def without_times(found):
    arms = {
        name: {part: arm[part] for part in arm if part != "seconds_per_step"}
        for name, arm in found["arms"].items()
    }
    return found | {"arms": arms}


@pytest.mark.slow
def test_what_is_run_is_what_is_recorded(model, seen):
    """Every stage of every arm, from the same beginning; numbers by Adam written out."""
    record = tuned.tune(model, None, TUNING, seed=3)
    assert json.loads(json.dumps(record)) == record
    assert record["tuning"]["short"] == SHORT._asdict() and record["tuning"]["rate"] == 0.01
    rows = trained_rows(model, 1)
    assert record["trained"] == sum(leaf.size for leaf in jax.tree.leaves(rows))
    assert list(record["arms"]) == [PLAIN, SELECTIVE, ALONE]
    texts = tuned._texts(TUNING, None, range(3, 5), "float64")
    for name, arm in record["arms"].items():
        assert arm["steps"] == [0, 2, 4, 6]
        assert len(arm["seconds_per_step"]) == 2 and min(arm["seconds_per_step"]) > 0
        for number, seed in enumerate((3, 4)):
            totals = followed(rows, texts[seed], name)
            for length, records in (("short", 5), ("longer", 7)):
                places = np.arange(1, 1 + records)
                of_seed = {part: np.array(arm[length][part])[:, number] for part in arm[length]}
                np.testing.assert_allclose(of_seed["accuracy"], np.outer(totals, places), rtol=1e-9)
                np.testing.assert_allclose(
                    of_seed["margin"], np.add.outer(totals, places), rtol=1e-9
                )
                np.testing.assert_allclose(
                    of_seed["cross_entropy"], np.subtract.outer(totals, places), rtol=1e-9
                )


def followed(rows, texts, arm):
    """The sum of what trains after every stage, by Adam's rule."""
    place = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(rows)])
    first = 0 * place
    second = 0 * place
    totals = [place.sum()]
    for step in range(STEPS):
        sight = 0
        if arm != ALONE:
            sight += int(texts.training[step].ids.sum())
        if arm != PLAIN:
            sight += int(texts.probes[step].ids.sum())
        slope = np.cos(sight + place)
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        scaled = first / (1 - 0.9 ** (step + 1))
        place = place - 0.01 * scaled / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)
        if step % 2:
            totals.append(place.sum())
    return totals


def test_texts_are_of_their_laws_and_no_two_alike():
    """Training asks at the edges, probes and tests anywhere."""
    many = TUNING._replace(every=15)
    texts = tuned._texts(many, None, range(2), "float32")
    training = np.concatenate([each.gold for text in texts.values() for each in text.training])
    probes = np.concatenate([each.gold for text in texts.values() for each in text.probes])
    assert len(training) == 2 * 45 * 3 and len(probes) == 2 * 45 * 2
    shares = np.bincount(training, minlength=5) / len(training)
    law = np.array([1, 0.02, 0.02, 0.02, 1]) / 2.06
    np.testing.assert_allclose(shares, law, atol=0.1)
    np.testing.assert_allclose(np.bincount(probes, minlength=5) / len(probes), 0.2, atol=0.1)
    for text in texts.values():
        assert [each.gold.tolist() for each in text.short] == [list(range(5))] * 2
        assert [each.gold.tolist() for each in text.longer] == [list(range(7))]
        assert all(each.pools.shape[1] == 7 for each in text.longer)
    short = [
        row for text in texts.values() for part in text[:3] for each in part for row in each.ids
    ]
    assert len({row.tobytes() for row in map(np.asarray, short)}) == len(short) == 2 * (45 * 5 + 10)
    shapes = {each.ids.shape[1] for text in texts.values() for part in text[:3] for each in part}
    assert len(shapes) == 1, "one program for each length"


def test_all_arms_of_a_seed_see_the_same_and_only_their_own(model, seen):
    tuned.tune(model, None, TUNING._replace(seeds=1, strength=0.3), seed=5)
    steps, judged = seen
    by_arm = np.array_split(np.arange(len(steps)), 3)
    texts = tuned._texts(TUNING._replace(seeds=1), None, range(5, 6), "float64")[5]
    for arm, indices in zip((PLAIN, SELECTIVE, ALONE), by_arm, strict=True):
        training, probes, strengths = zip(*(steps[i] for i in indices), strict=True)
        assert set(strengths) == {0.3}
        assert all((one is None) == (arm == ALONE) for one in training)
        assert all((probe is None) == (arm == PLAIN) for probe in probes)
        for seen_ones, own in ((training, texts.training), (probes, texts.probes)):
            for one, other in zip(seen_ones[-STEPS:], own, strict=True):
                if one is not None:
                    np.testing.assert_array_equal(one.ids, other.ids)
    assert {len(rounds) for rounds in judged} == {1, 2}


@pytest.mark.slow
def test_a_run_that_was_interrupted_gives_the_same_numbers(model, seen, monkeypatch, tmp_path):
    whole = tuned.tune(model, None, TUNING, folder=tmp_path / "whole")
    judge = tuned.judge
    calls = []

    def breaks(model, rows, rounds):
        calls.append(rounds)
        if len(calls) == 14:  # in the second arm, whose first stage is kept
            raise KeyboardInterrupt
        return judge(model, rows, rounds)

    monkeypatch.setattr(tuned, "judge", breaks)
    folder = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        tuned.tune(model, None, TUNING, folder=folder)
    kept = {file.name for file in folder.iterdir()}
    assert "tuning.jsonl" in kept and len(kept) == 2, "the runs that are done, and the one begun"
    again = tuned.tune(model, None, TUNING, folder=folder)
    assert without_times(again) == without_times(whole)
    assert {file.name for file in folder.iterdir()} == {"tuning.jsonl"}
    for wrong, message in (
        ((model, None, TUNING._replace(rate=0.02)), "of tuning"),
        ((replace(model, logit_scale=0.5), None, TUNING), "of model"),
    ):
        with pytest.raises(ValueError, match=f"checkpoint: got .*{message}"):
            tuned.tune(*wrong, folder=folder)


def test_gains_are_paired_by_seed():
    """Against SciPy's paired test; at equal time the plain arm is between two stages."""
    results = made_tuning()
    arms = results["arms"]

    def course(arm, length="short"):
        return np.array(arms[arm][length]["accuracy"]).mean(axis=2)

    gains = tuning_gains(results, SELECTIVE)
    assert list(gains) == [4, 8]
    for stage, steps in ((1, 4), (2, 8)):
        ours = course(SELECTIVE)[stage]
        theirs = course(PLAIN)[stage]
        test = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
        np.testing.assert_allclose(gains[steps].accuracy, [(ours - theirs).mean(), *test])
        middles = [
            np.array(arms[arm]["short"]["accuracy"])[stage, :, 2:6].mean(axis=1)
            for arm in (SELECTIVE, PLAIN)
        ]
        np.testing.assert_allclose(gains[steps].middle.value, np.mean(middles[0] - middles[1]))
        np.testing.assert_allclose(gains[steps].cross_entropy.value, (theirs - ours).mean())
    at_time = tuning_gains(results, SELECTIVE, AT_EQUAL_TIME)
    assert list(at_time) == [4], "eight steps take as long as twelve plain ones"
    between = course(SELECTIVE)[1] - course(PLAIN)[1:].mean(axis=0)  # after six steps
    np.testing.assert_allclose(at_time[4].accuracy.value, between.mean())
    begun = tuning_gains(results, ALONE, BEFORE, length="longer")
    rise = course(ALONE, "longer")[2] - course(ALONE, "longer")[0]
    np.testing.assert_allclose(begun[8].accuracy.value, rise.mean())
    assert list(begun) == [4, 8] and len(rise) == SEEDS
    own = tuning_gains(results, PLAIN, AT_EQUAL_STEPS)[4].accuracy
    np.testing.assert_array_equal(own, [0, 0, 0])
