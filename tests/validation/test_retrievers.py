"""Networks that retrieve: what they are asked, how they are judged, and that they learn."""

import shutil
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import drawn
from scipy.special import logsumexp, softmax

from benchmarks.validation import retrievers
from benchmarks.validation.retrieval import KeyValueTask, key_value_examples
from benchmarks.validation.retrievers import (
    ANSWER_LOSS,
    MARGIN_LOSS,
    Setting,
    answer_batch,
    draw,
    examples_of_every_place,
    new_retriever,
    retrieval_risk,
    scores_by_place,
    train_retrievers,
)
from lim_jax.models import CausalLM
from lim_jax.network import CausalAttention
from lim_jax.network.gated_delta import GatedDelta

TASK = KeyValueTask(records=3, keys=5, values=4)
SETTING = Setting(TASK, width=4, heads=2, depth=1)


@pytest.fixture(scope="module")
def judged():
    """A random network, examples of gold places 0 and 2, and all that is said of them."""

    @eqx.filter_jit
    def all_of(model):
        gold = jnp.array([2, 0, 0, 2, 2, 0, 2])
        examples = key_value_examples(TASK, gold, key=jax.random.key(1))
        ids, y = answer_batch(examples)
        losses = [
            jax.vmap(loss, (None, 0, 0))(model, ids, y) for loss in (ANSWER_LOSS, MARGIN_LOSS)
        ]
        risks = (
            retrieval_risk(model, examples),
            retrieval_risk(model, examples, jnp.arange(7.0)),
        )
        scores = scores_by_place(model, examples)
        return examples, jax.vmap(model.logits)(ids), losses, risks, scores

    return jax.tree.map(np.asarray, all_of(drawn(partial(new_retriever, SETTING))))


def test_what_is_asked_is_the_answer_at_the_last_place(judged):
    """By a softmax in NumPy of the logits there; the margin is the log odds."""
    examples, logits, (losses, margin_losses), (risk, weighted), _ = judged
    answers = examples.window[:, -1]
    likely = softmax(logits[:, -1], axis=1)[np.arange(7), answers]
    np.testing.assert_allclose(losses, -np.log(likely), rtol=1e-12)
    np.testing.assert_allclose(margin_losses, np.log1p(-likely) - np.log(likely), rtol=1e-10)
    assert risk == pytest.approx(losses.mean()) and np.ptp(losses) > 0.1
    assert weighted == pytest.approx((np.arange(7) * losses).mean())


def test_scores_are_means_over_the_examples_of_a_gold_place(judged):
    examples, logits, _, _, scores = judged
    answers = examples.window[:, -1]
    last = logits[:, -1]
    rows = np.arange(7)
    others = np.where(np.arange(9) == answers[:, None], -np.inf, last)
    each = {
        "accuracy": last.argmax(axis=1) == answers,
        "margin": last[rows, answers] - logsumexp(others, axis=1),
        "cross_entropy": logsumexp(last, axis=1) - last[rows, answers],
    }
    for name, values in each.items():
        means = getattr(scores, name)
        gold = examples.gold[:, 0]
        assert means.shape == (3,) and np.isnan(means[1])
        for place in (0, 2):
            assert means[place] == pytest.approx(values[gold == place].mean(), rel=1e-12)


def test_examples_ask_for_every_place_as_often_as_for_any_other():
    draw = jax.jit(lambda key: examples_of_every_place(SETTING, 4, key=key))
    examples = jax.tree.map(np.asarray, draw(jax.random.key(2)))
    assert np.bincount(examples.gold[:, 0]).tolist() == [4, 4, 4]
    assert examples.window.shape == (12, TASK.length + 1)
    assert len(np.unique(examples.window, axis=0)) == 12


@pytest.mark.parametrize("law", ["uniform", "edges", "middle"])
def test_gold_places_follow_the_settings_law(law):
    setting = Setting(KeyValueTask(records=8, keys=8), law=law)
    weights = {
        "uniform": np.ones(8), "edges": np.array([1, 1, *[0.02] * 4, 1, 1]),
        "middle": np.array([0.02, 0.02, *[1] * 4, 0.02, 0.02]),
    }[law]  # fmt: skip
    np.testing.assert_allclose(setting.gold_law, weights / weights.sum(), rtol=1e-12)
    batch = draw(setting._replace(batch=400), setting.gold_law, key=jax.random.key(3))
    counts = np.bincount(np.asarray(batch.gold)[:, 0], minlength=8)
    expected = 400 * weights / weights.sum()
    assert (np.abs(counts - expected) < 4.5 * np.sqrt(expected) + 1).all()


def test_networks_of_turned_places_read_longer_contexts_than_learned_ones_do():
    settings = SETTING._replace(rotary=True), SETTING
    make = partial(new_retriever, key=jax.random.key(0))
    turned, learned = (eqx.filter_eval_shape(make, setting) for setting in settings)
    longer = jax.ShapeDtypeStruct((2 * TASK.length,), int)
    logits = eqx.filter_eval_shape(CausalLM.logits, turned, longer)
    assert turned.positions is None and logits.shape == (14, TASK.vocabulary)
    assert learned.positions is not None and learned.positions.shape[0] == TASK.length
    with pytest.raises(ValueError, match="ids: got 14 of them"):
        eqx.filter_eval_shape(CausalLM.logits, learned, longer)


def test_every_so_many_layers_are_attention_and_the_others_gated_delta_rules():
    setting = SETTING._replace(depth=4, attention_every=2)
    model = eqx.filter_eval_shape(new_retriever, setting, key=jax.random.key(0))
    states, attention = (kind.attention for kind in model.flow.kinds)
    assert model.flow.layers.order == (0, 1, 0, 1)
    assert isinstance(states, GatedDelta) and isinstance(attention, CausalAttention)
    assert {len(layers.output) for layers in (states, attention)} == {2}
    ids = jax.ShapeDtypeStruct((TASK.length,), int)
    assert eqx.filter_eval_shape(CausalLM.logits, model, ids).shape == (7, TASK.vocabulary)


LEARNING = Setting(
    KeyValueTask(records=4, keys=4, values=3),
    width=16,
    heads=2,
    depth=2,
    steps=150,
    batch=32,
    rate=1e-2,
)


def trained(**options):
    """Two seeds; optax promotes."""
    with jax.numpy_dtype_promotion("standard"):
        return train_retrievers(LEARNING, jax.random.split(jax.random.key(5), 2), **options)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """What an interruption in step 130 would leave."""
    return tmp_path_factory.mktemp("interrupted") / "trained"


@pytest.fixture(scope="module")
def whole(checkpoint):
    resumable = retrievers.resumable
    kept = checkpoint.with_name("whole")

    def copying(steps):
        for index in steps:
            if index == 130:
                shutil.copyfile(kept, checkpoint)
            yield index

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrievers, "resumable", lambda *a, **o: resumable(*a, **o | {"every": 40}))
        return trained(checkpoint=kept, progress=copying)


@pytest.mark.slow
def test_training_that_was_interrupted_gives_the_same_networks(whole, checkpoint):
    """Bit for bit, from a checkpoint some steps before; and seeds differ."""
    left = []
    again = trained(checkpoint=checkpoint, progress=lambda steps: left.append(steps) or steps)
    assert left == [range(120, 150)]
    leaves = [jax.tree.leaves(eqx.filter(found, eqx.is_array)) for found in (whole, again)]
    for ours, theirs in zip(*leaves, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert whole[1].shape == (150, 2) and np.ptp(whole[1], axis=1).min() > 0


@pytest.mark.slow
def test_networks_learn_to_retrieve_from_the_edges_and_not_from_the_middle(whole):
    """Of four records; who only knows which ids are values has a loss of log 3."""
    models, losses = whole
    test = examples_of_every_place(LEARNING, 50, key=jax.random.key(6))
    scores = eqx.filter_jit(retrievers.over_seeds(scores_by_place))(models, test)
    losses = np.asarray(losses)
    accuracy = np.asarray(scores.accuracy)
    assert (losses[0] > np.log(3)).all() and (losses[-20:].mean(axis=0) < 0.5 * np.log(3)).all()
    assert accuracy[:, [0, 3]].min() > 0.7 and accuracy[:, 1:3].max() < 0.6
