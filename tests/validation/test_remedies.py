"""What each arm does to a gradient, against its definition written out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lim_jax.tasks import KeyValueTask, key_value_examples, middle_law
from lim_jax.validation import remedies
from lim_jax.validation.retrievers import Setting, asked, draw, new_retriever

RECORDS, LENGTH, BATCH = 4, 9, 5
SETTING = Setting(KeyValueTask(RECORDS, 5, 3), width=4, heads=2, depth=1, batch=BATCH)
GOLD, EPSILON = np.array([0, 3, 1, 0, 2]), 1e-8


drawn_examples = eqx.filter_jit(key_value_examples)


def examples(seed, gold=GOLD):
    return drawn_examples(SETTING.task, jax.device_put(gold), key=jax.random.key(seed))


def batches(step=0):
    return remedies.Batches(examples(1), examples(2), jax.device_put(step), jax.random.key(3))


def answer_losses(model, x, examples):
    """Of embedded states, by the logits of the last place."""
    logits = jax.vmap(lambda x: model.flow(x, GRID)[-1] @ model.head.T)(x)
    picked = jnp.take_along_axis(logits, examples.window[:, -1:], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - picked, picked, logits


def cross_entropies(model, x, examples):
    return answer_losses(model, x, examples)[0]


def margins(model, x, examples):
    """Minus the log odds: log of the other words' sum, less the answer's logit."""
    _, picked, logits = answer_losses(model, x, examples)
    answer = jax.nn.one_hot(examples.window[:, -1], logits.shape[1], dtype=bool)
    return jax.nn.logsumexp(jnp.where(answer, -jnp.inf, logits), axis=1) - picked


GRID = remedies._token_grid(SETTING)


def embedded(model, examples):
    return jax.vmap(model.embed)(examples.window[:, :-1])


def risk(model, examples, weights=1.0):
    return (weights * cross_entropies(model, embedded(model, examples), examples)).mean()


def record_energies(losses, model, examples):
    slopes = jax.grad(lambda x: losses(model, x, examples).sum())(embedded(model, examples))
    return ((LENGTH * slopes) ** 2).sum(axis=2)[:, :-1].reshape(-1, RECORDS, 2).mean(axis=2)


def discrepancy(density, target=1.0):
    return ((density - target) ** 2).mean() / 2


def ratio_penalty(model, examples):
    energies = record_energies(cross_entropies, model, examples).mean(axis=0)
    return discrepancy(energies / (energies.mean() + EPSILON))


def profile_penalty(model, examples, counted, target):
    energies = record_energies(margins, model, examples)
    shares = energies / (energies.mean(axis=1, keepdims=True) + EPSILON)
    return discrepancy(counted @ shares / counted.sum(), target)


# What arms are defined by, each compiled once; sums and norms are NumPy's.
risk_slope = jax.jit(jax.grad(risk))
ratio_slope = jax.jit(jax.grad(ratio_penalty))
value_and_slope_of_profile = jax.jit(jax.value_and_grad(profile_penalty))


def profile_slope(model, examples, counted=BATCH, target: float | np.ndarray = 1.0):
    """Of the discrepancy of the first examples' profile; its value too."""
    of_first = (np.arange(BATCH) < counted).astype(float)
    return value_and_slope_of_profile(model, examples, of_first, np.full(RECORDS, target))


def clipped(gradient, strength):
    norm = np.sqrt(sum(np.sum(np.asarray(leaf) ** 2) for leaf in jax.tree.leaves(gradient)))
    return jax.tree.map(
        lambda leaf: strength * np.asarray(leaf) / max(1.0, strength * norm), gradient
    )


def plus(first, second):
    return jax.tree.map(np.add, first, second)


def gradient_and_memory(arm):
    return eqx.filter_jit(lambda model, memory, batches: arm.gradient(model, memory, batches))


def assert_same(ours, theirs):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


MODEL = eqx.filter_jit(new_retriever)(SETTING, key=jax.random.key(0))
MIDDLE = np.array([2, 3, 3, 2]) / 2.5
LAW = np.array([1, 0.02, 0.02, 1]) / 2.04
ARMS = {
    "plain": (remedies.plain(SETTING), lambda b: risk_slope(MODEL, b.training, 1.0)),
    "importance": (
        remedies.importance_weighted(SETTING),
        lambda b: risk_slope(MODEL, b.training, 0.25 / LAW[GOLD]),
    ),
    "answers": (
        remedies.answers_on_probes(SETTING),
        lambda b: plus(risk_slope(MODEL, b.training, 1.0), risk_slope(MODEL, b.probes, 1.0)),
    ),
    "training law": (
        remedies.balanced_on_training(SETTING, strength=0.1),
        lambda b: plus(
            risk_slope(MODEL, b.training, 1.0), clipped(ratio_slope(MODEL, b.training), 0.1)
        ),
    ),
    "probes": (
        remedies.balanced_on_probes(SETTING, strength=100.0, target="middle"),
        lambda b: plus(
            risk_slope(MODEL, b.training, 1.0),
            clipped(profile_slope(MODEL, b.probes, target=MIDDLE)[1], 100.0),
        ),
    ),
}


@pytest.mark.parametrize("name", ARMS)
def test_an_arms_gradient_is_its_definitions(name):
    arm, definition = ARMS[name]
    ours, _ = gradient_and_memory(arm)(MODEL, arm.memory, batches())
    assert_same(ours, definition(batches()))


def test_probes_of_another_law_are_drawn_anew():
    arm = remedies.balanced_on_probes(SETTING, strength=0.01, law="edges")
    drawn = draw(SETTING, SETTING.gold_law, key=batches().key)
    ours, _ = gradient_and_memory(arm)(MODEL, (), batches())
    penalty = clipped(profile_slope(MODEL, drawn)[1], 0.01)
    assert_same(ours, plus(risk_slope(MODEL, batches().training, 1.0), penalty))


def test_a_penalty_on_some_steps_and_probes_is_as_strong_and_rests_between():
    arm = remedies.balanced_on_probes(SETTING, strength=0.01, probes=3, every=2)
    gradient = gradient_and_memory(arm)
    ours, rests = (gradient(MODEL, (), batches(step))[0] for step in (4, 5))
    risks = risk_slope(MODEL, batches().training, 1.0)
    penalty = clipped(profile_slope(MODEL, batches().probes, counted=3)[1], 0.02)
    assert_same(ours, plus(risks, penalty))
    assert_same(rests, risks)


def test_weights_by_record_move_every_tenth_step():
    """Algorithm 2's update, with the influence of the batch that is weighted next."""
    gradient = gradient_and_memory(remedies.reweighted(SETTING))
    weights, training = np.array([0.5, 2.0, 1.0, 0.5]), batches().training
    of_records = jax.jit(lambda model: record_energies(cross_entropies, model, training))
    energies = np.asarray(of_records(MODEL)).mean(axis=0)
    density = energies / energies.mean()
    found, moved = gradient(MODEL, jax.device_put(weights), batches(20))
    _, kept = gradient(MODEL, jax.device_put(weights), batches(21))
    raised = np.clip(weights * np.exp(0.5 * (1 - density)), 0.1, 8)
    np.testing.assert_allclose(moved, raised / raised.mean(), rtol=1e-6)
    np.testing.assert_array_equal(kept, weights)
    assert_same(found, risk_slope(MODEL, training, np.asarray(moved)[GOLD]))


def test_the_constraints_multiplier_rises_where_it_is_broken():
    arm = remedies.constrained_on_probes(SETTING, limit=0.02, stiffness=10.0)
    gradient, multiplier = gradient_and_memory(arm)(MODEL, jax.device_put(0.3), batches())
    value, slope = profile_slope(MODEL, batches().probes)
    assert value > 0.02
    raised = 0.3 + 10 * (float(value) - 0.02)
    np.testing.assert_allclose(multiplier, 0.3 + 0.02 * (raised - 0.3), rtol=1e-6)
    expected = plus(risk_slope(MODEL, batches().training, 1.0), clipped(slope, raised))
    assert_same(gradient, expected)


def test_observability_pulls_at_the_layers_by_at_most_its_norm():
    arm = remedies.observed(SETTING, examples=3, places=5)
    gradient, _ = gradient_and_memory(arm)(MODEL, (), batches())
    risks = risk_slope(MODEL, batches().training, 1.0)
    pull = jax.tree.map(np.subtract, gradient, risks)
    assert 0 < optax.tree.norm(pull) <= remedies.UNTIL * (1 + 1e-9)
    # The first layer's input is seen as it is, and the readout not at all.
    np.testing.assert_allclose(pull.head, 0, atol=1e-15)


def test_the_middle_is_what_the_law_of_edges_leaves():
    values = np.random.default_rng(0).uniform(size=(2, 3, 11))
    found = remedies.in_the_middle(jax.device_put(values))
    np.testing.assert_allclose(found, values[:, :, 2:9].mean(axis=2))
    assert (np.asarray(middle_law(11, odds=0.0))[2:9] > 0).all()


def test_a_batch_is_asked_at_its_last_place():
    ids, y = asked(examples(1))
    assert ids.shape == (BATCH, LENGTH) and (np.asarray(y.places) == LENGTH - 1).all()
