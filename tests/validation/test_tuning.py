"""What trains of a published model, by which gradient, and how it is judged: on short texts.

The truth is of whole contexts without padding, one after another, by the model's logits and NumPy
or by gradients of them.
"""

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.differences import difference_by_calls
from reference.networks import byte_network, random_flow, randomised

import lim_jax as lim
from benchmarks.validation import tuning
from benchmarks.validation.texts import PromptSetting, drawn_prompt, text_batch
from lim_jax import tasks
from lim_jax.grid import token_grid
from lim_jax.tasks.prompts import Prompt
from lim_jax.weights import FetchedLayers, LayerSource

RECORDS = 3
SIZE = 24
LAST = 2
BATCH = {"size": SIZE, "queries": 3, "dtype": "float64"}


def example(records, asked, answer, gold):
    """Records of unequal lengths, one after another."""
    ends = np.cumsum([len(record) for record in records])
    spans = tuple((int(end) - len(record), int(end)) for record, end in zip(records, ends))  # noqa: B905
    return tasks.encode(Prompt("".join(records) + asked, answer, spans, (gold,)))


EXAMPLES = [
    example(("a=12;", "bc=3;", "d=456;"), "?d=", "456", 2),
    example(("x=1;", "yz=22;", "u=3;"), "?yz=", "22", 1),
]
PROBES = [
    example(("k=1;", "mn=23;", "o=4;"), "?k=", "1", 0),
    example(("pq=77;", "r=8;", "s=9;"), "?r=", "8", 1),
]


@cache
def network():
    """Over bytes, of three layers with biases."""
    flow = random_flow(depth=3, width=4, step=lim.split, horizon=3.0)
    return eqx.tree_at(lambda model: model.flow, byte_network(SIZE), flow)


def batch(examples):
    return text_batch(examples, RECORDS, **BATCH)


def names(tree):
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


TRAINED = {
    f".flow.layers.{name}"
    for name in (
        "attention.norm.scale",
        "attention.query",
        "attention.key",
        "attention.query_bias",
        "attention.key_bias",
        "feed_forward.norm.scale",
    )
}


@pytest.mark.slow
def test_the_last_layers_norms_queries_and_keys_train_and_nothing_else():
    """Every number of a gradient's leaves moves, in these layers; all others keep every bit."""
    model = network()
    rows = tuning.trained_rows(model, LAST)
    assert set(names(rows)) == TRAINED
    gradient = compiled(model, rows, batch(EXAMPLES), batch(PROBES), 1.0)
    moved = tuning.with_rows(model, jax.tree.map(jnp.add, rows, gradient))
    before = names(model)
    after = names(moved)
    assert set(before) == set(after) and set(before) > TRAINED
    for name, leaf in before.items():
        if name in TRAINED:
            np.testing.assert_array_equal(after[name][0], leaf[0])
            moves = [(after[name][layer] != leaf[layer]).all() for layer in (1, 2)]
            # A bias of all keys alike shifts no softmax.
            assert all(moves) or "key_bias" in name, name
        else:
            np.testing.assert_array_equal(after[name], leaf)
    of_all = names(tuning.trained_rows(model))
    assert all(len(leaf) == 3 for leaf in of_all.values()) and set(of_all) == TRAINED


def asked_at(one):
    return np.flatnonzero(one.weights)


def risk(model, examples):
    total = 0.0
    for one in examples:
        places = asked_at(one)
        window = np.asarray(one.window)
        rows = jax.nn.log_softmax(model.logits(jnp.asarray(window[:-1]))[places])
        total -= rows[np.arange(len(places)), window[places + 1]].mean()
    return total / len(examples)


def surprise(model, probes, answers):
    """Minus the logarithm of the gold records' energies over the mean, each a token's average."""
    total = 0.0
    for one, answer in zip(probes, answers, strict=True):
        place = asked_at(one)[0]
        ids = jnp.asarray(one.window[:-1])

        def margin(x, place=place, answer=answer):
            grid = token_grid(len(x))
            row = model.readout(model.flow(x, grid)[place][None], grid)[0]
            others = jnp.delete(row, answer, assume_unique_indices=True)
            return jax.nn.logsumexp(others) - row[answer]

        energies = (jax.grad(margin)(model.embed(ids)) ** 2).sum(axis=1)
        members = [one.records == record for record in range(RECORDS)]
        averages = jnp.stack([energies[mine].mean() for mine in members])
        overall = energies[one.records >= 0].mean()
        total -= jnp.log(averages[one.gold[0]] / overall + 1e-6)
    return total / len(probes)


@eqx.filter_jit
def likeliest(model, probes):
    return [jnp.argmax(model.logits(ids)[place]) for ids, place in probes]


@eqx.filter_jit
def truth(rows, answers):
    """Risk and penalty of a model with these rows, written out."""
    model = tuning.with_rows(network(), rows)
    return risk(model, EXAMPLES), surprise(model, PROBES, answers)


@eqx.filter_jit
def _compiled(model, rows, training, probes, strength):
    return tuning.tuning_gradient(model, rows, training, probes, strength=strength)


def compiled(model, rows, training, probes, strength):
    """By one program for all strengths."""
    return _compiled(model, rows, training, probes, jnp.asarray(strength))


def along(gradient, direction):
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    return sum(np.vdot(one, other) for one, other in pairs)


def norm(tree):
    return np.sqrt(along(tree, tree))


def apart(first, second):
    return jax.tree.map(np.subtract, first, second)


@pytest.mark.slow
def test_a_steps_gradient_is_that_of_answers_and_of_the_evidences_share():
    """By differences of what is written out; half of the own answers are not the true ones."""
    rows = tuning.trained_rows(network(), LAST)
    contexts = [(jax.device_put(probe.window[:-1]), asked_at(probe)[0]) for probe in PROBES]
    answers = tuple(int(one) for one in likeliest(network(), contexts))
    true = [int(probe.window[asked_at(probe)[0] + 1]) for probe in PROBES]
    assert answers[0] != true[0]
    direction = randomised(rows, 7)
    slope, of_penalty = difference_by_calls(lambda rows: truth(rows, answers), rows, direction)
    weak = 1e-3
    of_answers, *both = (
        compiled(network(), rows, batch(EXAMPLES), batch(PROBES), strength)
        for strength in (0.0, weak, 1e6)
    )
    evidence, clipped = (apart(found, of_answers) for found in both)
    assert norm(evidence) < 1 and abs(of_penalty) > 1e-2
    np.testing.assert_allclose(along(evidence, direction), weak * of_penalty, rtol=1e-5)
    np.testing.assert_allclose(along(of_answers, direction), slope, rtol=1e-7)
    np.testing.assert_allclose(along(clipped, evidence), norm(evidence), rtol=1e-9)
    np.testing.assert_allclose(norm(clipped), 1, rtol=1e-9)


@pytest.mark.usefixtures("as_users_run")
def test_where_nothing_is_learnt_of_nothing_is_added(monkeypatch):
    """Of a risk and a penalty that are made up; the latter's gradient is no longer than one."""
    for name, factor in (("_risk", 1.0), ("_penalty", 0.1)):
        made = lambda rows, model, batch, factor=factor: factor * batch * rows  # noqa: E731
        monkeypatch.setattr(tuning, name, made)
    given: list[Any] = [(3.0, None), (None, 5.0), (3.0, 5.0), (None, 50.0)]
    gradients = [
        tuning.tuning_gradient(network(), jnp.array(2.0), *of, strength=0.5) for of in given
    ]
    np.testing.assert_allclose(gradients, [3, 0.25, 3.25, 1])


@pytest.mark.slow
def test_no_word_of_a_probes_answer_is_read():
    rows = tuning.trained_rows(network(), LAST)
    told = batch(EXAMPLES)
    other = batch(EXAMPLES)
    ids = np.array(other.ids)
    for row, one in zip(ids, EXAMPLES, strict=True):
        row[asked_at(one)[1:]] ^= 1
    other = other._replace(ids=jax.device_put(ids), y=other.y._replace(targets=other.y.targets ^ 1))
    gradients = [compiled(network(), rows, told, probes, 1.0) for probes in (told, other)]
    for one, another in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(one, another, rtol=1e-9, atol=1e-15)


@pytest.mark.slow
def test_a_model_is_judged_by_place():
    """The first answer is the model's own, so that it is right."""
    model = network()
    rows = tuning.trained_rows(network(), 1)
    first = EXAMPLES[0]
    window = first.window.copy()
    logits = eqx.filter_jit(lambda ids: model.logits(ids))
    for place in asked_at(first):
        window[place + 1] = np.argmax(logits(window[:-1])[place])
    rounds = [[first._replace(window=window), EXAMPLES[1]], [EXAMPLES[0], PROBES[0]]]
    judgement = tuning.judge(model, rows, [batch(one) for one in rounds])
    expected = np.zeros((3, 2))
    for one in rounds:
        for number, prompt in enumerate(one):
            places = asked_at(prompt)
            answers = prompt.window[places + 1]
            z = np.asarray(logits(prompt.window[:-1]))[places]
            picked = z[np.arange(len(places)), answers]
            total = np.log(np.exp(z).sum(axis=1))
            others = np.log(np.exp(z).sum(axis=1) - np.exp(picked))
            right = (z.argmax(axis=1) == answers).all()
            expected[:, number] += (right, (picked - others).mean(), (total - picked).mean())
    np.testing.assert_allclose(np.stack(judgement), expected / 2, rtol=1e-10)
    assert 0 < judgement.accuracy[0] < 1


def test_a_batch_of_texts_is_padded_and_knows_its_records():
    found = text_batch(EXAMPLES, RECORDS, size=SIZE, queries=4, dtype="float64")
    assert found.ids.shape == (2, SIZE) and found.pools.shape == (2, RECORDS, SIZE)
    assert found.pools.dtype == found.y.weights.dtype == "float64"
    np.testing.assert_array_equal(found.gold, [2, 1])
    np.testing.assert_array_equal(found.pools.sum(axis=2), [[5, 5, 6], [4, 6, 4]])
    assert found.y.positions is not None
    for row, one in enumerate(EXAMPLES):
        context = one.window[:-1]
        count = len(asked_at(one))
        np.testing.assert_array_equal(found.ids[row, : len(context)], context)
        assert not found.ids[row, len(context) :].any()
        for record in range(RECORDS):
            mine = np.flatnonzero(found.pools[row, record])
            np.testing.assert_array_equal(mine, np.flatnonzero(one.records == record))
        asked = context[found.y.positions[row, :count] + 0]
        assert bytes(asked[:1].tolist()) == b"="
        np.testing.assert_array_equal(found.y.targets[row, :count], one.window[-count:])
        np.testing.assert_allclose(found.y.weights[row], [1 / count] * count + [0] * (4 - count))
    longest = text_batch(EXAMPLES, RECORDS)
    assert longest.ids.shape[1] == max(len(one.weights) for one in EXAMPLES)
    assert longest.y.weights.shape == (2, 3) and longest.y.weights.dtype == "float32"


def test_a_prompt_is_its_numbers_and_asks_where_it_is_told():
    setting = PromptSetting(RECORDS, key_length=1, value_length=2)
    assert [int(drawn_prompt(setting, number).gold[0]) for number in range(4)] == [0, 1, 2, 0]
    there = drawn_prompt(setting, 4, place=2)
    assert there.gold[0] == 2
    assert sorted(there.window.tolist()) == sorted(drawn_prompt(setting, 4).window.tolist())


def test_networks_that_cannot_be_trained_are_refused():
    model = network()
    source = LayerSource(lambda index: {"one": np.zeros(3)}, 2)
    fetched = FetchedLayers(jnp.zeros(1), source)
    with pytest.raises(ValueError, match="layers that are read from their files when needed"):
        tuning.trainable(eqx.tree_at(lambda model: model.flow.layers, model, fetched))
    identity = eqx.tree_at(lambda model: model.flow.layers, model, {"one": jnp.ones((2, 3))})
    with pytest.raises(ValueError, match="layers without norms' scales"):
        tuning.trainable(identity)
