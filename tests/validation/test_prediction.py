"""Influence and attributions by record, assembled in NumPy from differences of the loss alone."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_network
from reference.networks import drawn, layer_of
from scipy import stats

from benchmarks.validation.prediction import (
    ATTRIBUTIONS,
    SCORES,
    RecordScores,
    predict,
    prediction_table,
    record_scores,
)
from benchmarks.validation.retrieval import KeyValueTask
from benchmarks.validation.retrievers import (
    PlaceScores,
    Setting,
    answer_batch,
    examples_of_every_place,
    new_retriever,
    over_seeds,
)
from lim_jax.grid import token_grid
from lim_jax.models import CausalLM

RECORDS = 3
STEPS = 2
SEEDS = 2
SETTING = Setting(KeyValueTask(RECORDS, keys=4, values=3), width=4, heads=2, depth=2)


@eqx.filter_jit
@eqx.filter_vmap(in_axes=(0, 0, None))
def both_losses(model, points, y):
    """Of one seed, at all points of every example: the cross-entropy, and minus the margin."""

    def of_point(x, y):
        state = model.flow(x, token_grid(len(x)))
        losses = CausalLM.loss, CausalLM.margin_loss
        return jnp.stack([loss.terminal(model, state, y) for loss in losses])

    return jax.vmap(jax.vmap(of_point, (0, None)))(points, y)


STEP = 1e-4
SIZES = np.array([1.0, -1.0, 2.0, -2.0])


def around(x):
    """Four points along each entry of x."""
    directions = np.eye(x.size).reshape(x.size, 1, *x.shape)
    return (x + STEP * SIZES[:, None, None] * directions).reshape(-1, *x.shape)


def gradient(values, shape):
    """All partial derivatives, to fourth order, of values at those points."""
    values = values.reshape(-1, 4) @ np.array([8.0, -8.0, -1.0, 1.0])
    return values.reshape(shape) / (12 * STEP)


def looked_at(models, ids, y):
    """Of every seed and example: states, both losses and what differences of them say."""
    embedding = np.asarray(models.embedding)
    positions = np.asarray(models.positions)
    x = np.take(embedding, ids, axis=1) + positions[:, None]
    baseline = np.broadcast_to((embedding.mean(axis=1)[:, None] + positions)[:, None], x.shape)
    step = x - baseline
    record = np.repeat(np.arange(RECORDS), 2)

    def points(seed, example):
        here = x[seed, example]
        none = baseline[seed, example]
        halves = [around(none + s * (here - none)) for s in (0.25, 0.75)]
        without = [np.where((np.append(record, -1) == r)[:, None], none, here) for r in (0, 1, 2)]
        return np.concatenate([around(here), *halves, without, [here]])

    examples = range(len(ids))
    values = np.asarray(
        both_losses(
            models,
            jax.device_put(
                np.stack([[points(seed, one) for one in examples] for seed in range(SEEDS)])
            ),
            y,
        )
    )
    size = 4 * x[0, 0].size
    shape = x.shape
    slopes = [gradient(values[:, :, :size, loss], shape) for loss in (0, 1)]
    halves = [gradient(values[:, :, k * size : (k + 1) * size, 1], shape) for k in (1, 2)]
    return {
        "x": x,
        "step": step,
        "cross-entropy": slopes[0],
        "margin": slopes[1],
        "path": (halves[0] + halves[1]) / 2,
        "gains": values[:, :, -4:-1, 1] - values[:, :, -1:, 1],
        "cross-entropy itself": values[:, :, -1, 0],
        "margin itself": -values[:, :, -1, 1],
    }


@pytest.fixture(scope="module")
def measured():
    """Models, what `record_scores` finds of two seeds, and what the reference does of each."""

    models = drawn(partial(new_retriever, SETTING), count=SEEDS)

    @eqx.filter_jit
    def all_of(models):
        examples = examples_of_every_place(SETTING, 2, key=jax.random.key(3))
        found = over_seeds(partial(record_scores, steps=STEPS))(models, examples)
        return found, answer_batch(examples), examples.gold[:, 0]

    found, (ids, y), gold = all_of(models)
    reference = looked_at(models, np.asarray(ids), y)
    return models, jax.tree.map(np.asarray, found), reference, np.asarray(gold)


def sums(tokens):
    """By record: pairs of tokens, the last of the context left out."""
    return tokens[:, :-1].reshape(len(tokens), RECORDS, 2).sum(axis=2)


def by_example(seen, rollouts):
    """Every attribution of one seed, of every example and record."""
    length = 2 * RECORDS + 1
    # Of density squared over cells of 1/L: (L g)^2 / L.
    energies = {
        loss: length * sums((seen[loss] ** 2).sum(axis=2)) for loss in ("cross-entropy", "margin")
    }
    shares = {
        "influence, normalised": energies["cross-entropy"],
        "gradient times input": np.abs(sums((seen["x"] * seen["margin"]).sum(axis=2))),
        "integrated gradients": np.abs(sums((seen["step"] * seen["path"]).sum(axis=2))),
        "occlusion": np.abs(seen["gains"]),
        "attention rollout": sums(rollouts),
    }
    raw = {f"influence, {name}": values / values.mean() for name, values in energies.items()}
    return raw | {
        name: np.stack([row / row.mean() for row in values]) for name, values in shares.items()
    }


@pytest.mark.slow
def test_profiles_and_values_at_gold_are_those_of_the_definitions(measured):
    """Normalised influence from the cross-entropy here, and from the margin there: they agree."""
    models, found, reference, gold = measured
    assert sorted(found.profile) == sorted(found.at_gold) == sorted(ATTRIBUTIONS)
    for seed in range(SEEDS):
        flow = jax.tree.map(lambda leaf, seed=seed: np.asarray(leaf)[seed], models.flow)
        layers = [layer_of(flow, index) for index in range(2)]
        seen = {name: values[seed] for name, values in reference.items()}
        rollouts = np.stack(
            [
                numpy_network.rollout(layers, x, 2.0, "split", lambda time: 1.0)[-1]
                for x in seen["x"]
            ]
        )
        for name, values in by_example(seen, rollouts).items():
            tolerance = {"rtol": 1e-7, "err_msg": name}
            np.testing.assert_allclose(found.profile[name][seed], values.mean(axis=0), **tolerance)
            at_gold = [values[gold == r, r].mean() for r in range(RECORDS)]
            np.testing.assert_allclose(found.at_gold[name][seed], at_gold, **tolerance)
        for name in ("cross-entropy", "margin"):
            expected = [seen[f"{name} itself"][gold == r].mean() for r in range(RECORDS)]
            got = getattr(found.scores, name.replace("-", "_"))[seed]
            np.testing.assert_allclose(got, expected, rtol=1e-10)


@pytest.fixture(scope="module")
def made():
    """Scores of four seeds and six records; the accuracy of one seed is constant."""
    generator = np.random.default_rng(0)
    profile, at_gold = (
        {name: np.exp(generator.standard_normal((4, 6))) for name in ATTRIBUTIONS} for _ in "ab"
    )
    scores = generator.random((3, 4, 6))
    scores[0, 2] = 1.0
    return RecordScores(profile, at_gold, PlaceScores(*scores))


@pytest.fixture(scope="module")
def predictions(made):
    return predict(made)


def test_predictions_are_scipys_correlations_seed_by_seed(made, predictions):
    rows = predictions
    assert len(rows) == 2 * len(ATTRIBUTIONS) * len(SCORES)
    scores = dict(zip(SCORES, (made.scores[0], made.scores[1], -made.scores[2]), strict=True))
    for row in rows:
        attributed = made.profile if row.of == "profile" else made.at_gold
        expected = np.array(
            [
                np.nan if np.ptp(right) == 0 else np.asarray(stats.spearmanr(value, right))[0]
                for value, right in zip(attributed[row.attribution], scores[row.score], strict=True)
            ]
        )
        np.testing.assert_allclose(row.correlations, expected, rtol=1e-12)
        assert row.left_out == (row.score == "accuracy")
        known = expected[~np.isnan(expected)]
        value, low, high = row.interval
        assert value == pytest.approx(known.mean())
        assert known.min() - 1e-12 <= low <= value <= high <= known.max() + 1e-12
        assert row.record()["interval"] == {"value": value, "low": low, "high": high}


def test_the_table_has_a_row_for_each_attribution_and_says_what_was_left_out(predictions):
    rows = predictions
    lines = prediction_table(rows).splitlines()
    assert len(lines) == 2 * (1 + len(ATTRIBUTIONS))
    line = lines[1 + ATTRIBUTIONS.index("occlusion")]
    value, low, high = rows[3 * ATTRIBUTIONS.index("occlusion")].interval
    assert line.split()[0] == "occlusion"
    assert f"{value:+.2f} [{low:+.2f}, {high:+.2f}] -1" in line


def test_networks_that_are_always_right_predict_nothing(made):
    always = made._replace(scores=made.scores._replace(accuracy=np.ones((4, 6))))
    rows = [prediction for prediction in predict(always) if prediction.score == "accuracy"]
    assert all(row.left_out == 4 and np.isnan(row.interval).all() for row in rows)
    assert prediction_table(rows).count("constant") == len(rows)
