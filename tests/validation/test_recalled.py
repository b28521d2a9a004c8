"""Networks of many questions: what is asked, what a step follows, what is compared."""

from functools import partial

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import drawn
from scipy import stats

from benchmarks.validation import recalled
from benchmarks.validation.recalled import (
    RECALLED,
    RecallSetting,
    all_answers_batch,
    recall_gains,
    recall_gradient,
    recall_record,
)
from benchmarks.validation.remedies import PLAIN, SELECTIVE
from benchmarks.validation.retrieval import RecallTask, recall_examples
from lim_jax import ResidualFlow, token_grid
from lim_jax.models import gaussian_model
from lim_jax.tasks.prompts import Example

TASK = RecallTask(pairs=3, length=14, keys=5, values=4, power=0.5)
SETTING = RecallSetting(
    TASK, width=4, heads=1, depth=1, batch=2, probes=3, strength=0.05, stages=2, every=1
)
KEYS = jax.random.split(jax.random.key(3), 2)


@jax.jit
def four_of(seed):
    return recall_examples(TASK, 4, key=jax.random.key(seed))


def some(count, seed):
    """The first of four, so that one program draws all."""
    four = jax.tree.map(np.asarray, four_of(seed))
    return jax.tree.map(lambda leaf: jax.device_put(leaf[:count]), four)


@pytest.fixture
def cheap(monkeypatch):
    """A gradient that depends on all that a step draws, which numbers stand for.

    And networks of one number drawn by seed: they compile quickly.
    """

    def gradient(setting, model, examples, probes, key):
        seen = [one.window.sum() for one in (examples, probes) if one is not None]
        return jax.tree.map(lambda leaf: jnp.cos(sum(seen) + leaf), eqx.filter(model, eqx.is_array))

    def network(*sizes, key, **options):
        made = eqx.filter_eval_shape(gaussian_model, *sizes, key=key, **options)
        number = jax.random.uniform(key)
        return jax.tree.map(
            lambda leaf: jnp.cos(99 * number * jnp.arange(leaf.size)).reshape(leaf.shape), made
        )

    def draw(task, count, *, key):
        windows = jax.random.uniform(key, (count, task.length))
        return Example(windows, windows, windows, windows)

    monkeypatch.setattr(recalled, "recall_examples", draw)
    monkeypatch.setattr(recalled, "recall_gradient", gradient)
    monkeypatch.setattr(recalled, "gaussian_model", network)
    with jax.numpy_dtype_promotion("standard"):  # optax promotes
        yield


def test_every_question_is_asked_where_its_key_stands_again():
    examples = some(4, 0)
    ids, y = all_answers_batch(examples)
    assert y.positions is not None
    for row in range(4):
        window = np.asarray(examples.window[row])
        places = np.asarray(y.positions[row])
        assert list(places) == sorted(places) and (places >= 2 * TASK.pairs).all()
        for query, gold in enumerate(np.asarray(examples.gold[row])):
            assert window[places[query]] == window[2 * gold]
            assert y.targets[row, query] == window[2 * gold + 1]
    np.testing.assert_allclose(y.weights, 1 / 3)
    np.testing.assert_array_equal(ids, examples.window[:, :-1])


@pytest.fixture(scope="module")
def model():
    """Of attention alone: what a step follows asks for no more."""
    model = drawn(partial(gaussian_model, 9, 14, width=4, heads=1, depth=1))
    layers = ResidualFlow(model.flow.layers.attention)
    return eqx.tree_at(lambda model: model.flow, model, layers)


def cross_entropy(model, examples):
    ids, y = all_answers_batch(examples)
    logits = jax.vmap(lambda ids, places: model.logits(ids)[places])(ids, y.positions)
    logs = jnp.take_along_axis(jax.nn.log_softmax(logits), y.targets[..., None], axis=2)
    return -logs.mean()


def surprise(model, probes, chosen):
    """Minus the logarithm of the evidence's density, written apart, to be differentiated twice."""
    ids, y = all_answers_batch(probes)
    places = jnp.asarray(y.positions)
    grid = token_grid(TASK.length)

    def of_one(row, query):
        place = places[row, query]
        gold = probes.gold[row, query]

        def margin(x):
            logits = model.readout(model.flow(x, grid), grid)[place]
            top = jax.lax.stop_gradient(logits.argmax())
            others = jnp.where(jnp.arange(len(logits)) == top, -jnp.inf, logits)
            return logits[top] - jax.nn.logsumexp(others)

        energies = (jax.grad(margin)(model.embed(ids[row])) * TASK.length) ** 2
        by_pair = energies.sum(axis=1)[: 2 * TASK.pairs].reshape(-1, 2).mean(axis=1)
        return -jnp.log(by_pair[gold] / (by_pair.mean() + 1e-8) + 1e-6)

    return jax.vmap(of_one)(jnp.arange(len(chosen)), chosen).mean()


@pytest.mark.slow
def test_a_step_follows_answers_and_the_evidence_of_one_question_of_each_probe(model):
    """And by the latter no further than a step of length one."""
    key = jax.random.key(7)
    examples = some(2, 1)
    probes = some(2, 2)

    @eqx.filter_jit
    def ours(strength):
        setting = SETTING._replace(strength=strength)
        return recall_gradient(setting, model, examples, probes, key)

    chosen = jax.random.randint(key, (2, 1), 0, 3)[:, 0]
    assert len(set(chosen.tolist())) == 2
    risk, slope, plain = eqx.filter_jit(
        lambda model: (
            eqx.filter_grad(cross_entropy)(model, examples),
            eqx.filter_grad(surprise)(model, probes, chosen),
            recall_gradient(SETTING, model, examples, None, key),
        )
    )(model)
    risk, slope = jax.tree.map(np.asarray, (risk, slope))
    length = np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(slope)))
    for strength in (0.5 / length, 30 / length):
        longer = max(1, strength * length)
        expected = jax.tree.map(lambda risk, pull: risk + strength * pull / longer, risk, slope)  # noqa: B023
        chex.assert_trees_all_close(ours(jax.device_put(strength)), expected, rtol=1e-8, atol=1e-12)
    chex.assert_trees_all_close(plain, risk, rtol=1e-10, atol=1e-14)


@pytest.mark.slow
@pytest.mark.usefixtures("cheap")
def test_arms_begin_alike_and_are_judged_after_every_stage(tmp_path):
    test = some(4, 5)
    records = {
        arm: recall_record(SETTING, KEYS, arm, test=test, checkpoint=tmp_path / f"{arm}.run")
        for arm in RECALLED
    }
    plain, ours = (records[name] for name in (PLAIN, SELECTIVE))
    assert plain["steps"] == ours["steps"] == [0, 1, 2]
    assert min(plain["seconds_per_step"], ours["seconds_per_step"]) > 0
    for name, shape in (("accuracy", (3, 2, 3)), ("risk", (3, 2))):
        assert np.shape(plain[name]) == np.shape(ours[name]) == shape
        assert plain[name][0] == ours[name][0]
    # Each step differs: seeds from one another, and arms.
    assert len({*np.ravel(plain["risk"]), *np.ravel(ours["risk"][1:])}) == 10
    again = recall_record(
        SETTING, KEYS, SELECTIVE, test=test, checkpoint=tmp_path / f"{SELECTIVE}.run"
    )
    assert again == ours
    # Before the first step: of each seed's network, by the pair that is asked for.
    models, _ = recalled._initial_states(SETTING, KEYS)
    ids, y = all_answers_batch(test)

    @eqx.filter_jit
    @eqx.filter_vmap
    def judged(one):
        logits = jax.vmap(lambda ids, places: one.logits(ids)[places])(ids, y.positions)
        return logits.argmax(axis=2) == y.targets, cross_entropy(one, test)

    right, risk = map(np.asarray, judged(models))
    gold = np.asarray(test.gold)
    expected = [[one[gold == pair].mean() for pair in range(3)] for one in right]
    np.testing.assert_allclose(plain["accuracy"][0], expected)
    np.testing.assert_allclose(plain["risk"][0], risk, rtol=1e-10)


def made_record(shift, seconds, stages):
    course = np.random.default_rng(shift).uniform(size=(stages + 1, 3, 4))
    return {
        "steps": [5 * stage for stage in range(stages + 1)],
        "seconds_per_step": seconds,
        "accuracy": course.tolist(),
        "risk": course[..., 0].tolist(),
    }


def test_gains_are_paired_by_seed_at_equal_steps_and_at_equal_time():
    records = {PLAIN: made_record(1, 2.0, 3), SELECTIVE: made_record(2, 3.0, 3)}
    gains = recall_gains(records)
    assert list(gains) == [5, 10, 15]
    ours, plain = (np.mean(records[name]["accuracy"], axis=2) for name in (SELECTIVE, PLAIN))
    for stage, steps in enumerate(gains, start=1):
        apart = ours[stage] - plain[stage]
        gain = gains[steps].at_equal_steps
        low, high = stats.t.interval(0.95, 2, apart.mean(), stats.sem(apart))
        np.testing.assert_allclose((gain.value, gain.low, gain.high), (apart.mean(), low, high))
    # 1.5 times as dear: 7.5 steps are half way from the first stage to the second.
    first, second, last = (gains[steps].at_equal_time for steps in gains)
    assert first is not None and second is not None and last is None
    halfway = (plain[1] + plain[2]) / 2
    np.testing.assert_allclose(first.value, (ours[1] - halfway).mean())
    np.testing.assert_allclose(second.value, (ours[2] - plain[3]).mean())
