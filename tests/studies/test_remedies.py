"""What each arm does to a gradient, against its definition written out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lim_jax.studies import remedies
from lim_jax.studies.retrievers import Setting, asked, draw, new_retriever
from lim_jax.tasks import KeyValueTask, key_value_examples, middle_law

RECORDS, LENGTH, BATCH = 4, 9, 5
SETTING = Setting(KeyValueTask(RECORDS, 5, 3), width=4, heads=2, depth=1, batch=BATCH)
GOLD, EPSILON = np.array([0, 3, 1, 0, 2]), 1e-8


def examples(seed, gold=GOLD):
    return key_value_examples(SETTING.task, jax.device_put(gold), key=jax.random.key(seed))


def batches(step=0):
    return remedies.Batches(examples(1), examples(2), jnp.asarray(step), jax.random.key(3))


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


def profile_penalty(model, examples, target=1.0):
    energies = record_energies(margins, model, examples)
    shares = energies / (energies.mean(axis=1, keepdims=True) + EPSILON)
    return discrepancy(shares.mean(axis=0), target)


def clipped(gradient, strength):
    norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
    return jax.tree.map(lambda leaf: strength * leaf / jnp.maximum(1.0, strength * norm), gradient)


def plus(first, second):
    return jax.tree.map(jnp.add, first, second)


MODEL = new_retriever(SETTING, key=jax.random.key(0))
MIDDLE = np.array([2, 3, 3, 2]) / 2.5
LAW = np.array([1, 0.02, 0.02, 1]) / 2.04
ARMS = {
    "plain": (remedies.plain(SETTING), lambda m, b: jax.grad(risk)(m, b.training)),
    "importance": (
        remedies.importance_weighted(SETTING),
        lambda m, b: jax.grad(risk)(m, b.training, jax.device_put(0.25 / LAW[GOLD])),
    ),
    "answers": (
        remedies.answers_on_probes(SETTING),
        lambda m, b: plus(jax.grad(risk)(m, b.training), jax.grad(risk)(m, b.probes)),
    ),
    "training law": (
        remedies.balanced_on_training(SETTING, strength=0.1),
        lambda m, b: plus(
            jax.grad(risk)(m, b.training), clipped(jax.grad(ratio_penalty)(m, b.training), 0.1)
        ),
    ),
    "probes": (
        remedies.balanced_on_probes(SETTING, strength=100.0, target="middle"),
        lambda m, b: plus(
            jax.grad(risk)(m, b.training),
            clipped(jax.grad(profile_penalty)(m, b.probes, jax.device_put(MIDDLE)), 100.0),
        ),
    ),
}


@pytest.mark.parametrize("name", ARMS)
def test_an_arms_gradient_is_its_definitions(name):
    arm, definition = ARMS[name]

    @eqx.filter_jit
    def both(model, batches):
        return arm.gradient(model, arm.memory, batches)[0], definition(model, batches)

    ours, theirs = both(MODEL, batches())
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def test_probes_of_another_law_are_drawn_anew():
    arm = remedies.balanced_on_probes(SETTING, strength=0.01, law="edges")
    drawn = draw(SETTING, SETTING.gold_law, key=batches().key)

    @eqx.filter_jit
    def both(model, batches):
        penalty = clipped(jax.grad(profile_penalty)(model, drawn), 0.01)
        return arm.gradient(model, (), batches)[0], plus(
            jax.grad(risk)(model, batches.training), penalty
        )

    for one, other in zip(*map(jax.tree.leaves, both(MODEL, batches())), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def test_a_penalty_on_some_steps_and_probes_is_as_strong_and_rests_between():
    arm = remedies.balanced_on_probes(SETTING, strength=0.01, probes=3, every=2)
    first = jax.tree.map(lambda leaf: leaf[:3], batches().probes)

    @eqx.filter_jit
    def measured(model, looked, between):
        rests = arm.gradient(model, (), between)[0]
        risks = jax.grad(risk)(model, looked.training)
        penalty = clipped(jax.grad(profile_penalty)(model, first), 0.02)
        return arm.gradient(model, (), looked)[0], plus(risks, penalty), rests, risks

    ours, theirs, rests, risks = measured(MODEL, batches(4), batches(5))
    for pair in ((ours, theirs), (rests, risks)):
        for one, other in zip(*map(jax.tree.leaves, pair), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def test_weights_by_record_move_every_tenth_step():
    """Algorithm 2's update, with the influence of the batch that is weighted next."""
    arm = remedies.reweighted(SETTING)
    weights = jnp.array([0.5, 2.0, 1.0, 0.5])

    @eqx.filter_jit
    def measured(model):
        energies = record_energies(cross_entropies, model, batches().training).mean(axis=0)
        moved = arm.gradient(model, weights, batches(20))
        return energies / energies.mean(), moved, arm.gradient(model, weights, batches(21))

    density, (gradient, moved), (_, kept) = measured(MODEL)
    raised = np.clip(np.asarray(weights) * np.exp(0.5 * (1 - np.asarray(density))), 0.1, 8)
    np.testing.assert_allclose(moved, raised / raised.mean(), rtol=1e-6)
    np.testing.assert_array_equal(kept, weights)
    expected = eqx.filter_jit(jax.grad(risk))(MODEL, batches().training, moved[GOLD])
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def test_the_constraints_multiplier_rises_where_it_is_broken():
    arm = remedies.constrained_on_probes(SETTING, limit=0.02, stiffness=10.0)

    @eqx.filter_jit
    def measured(model, multiplier):
        gradient, raised = arm.gradient(model, multiplier, batches())
        risks, penalty = jax.grad(risk)(model, batches().training), profile_penalty
        return gradient, raised, risks, jax.value_and_grad(penalty)(model, batches().probes)

    gradient, multiplier, risks, (value, slope) = measured(MODEL, jnp.asarray(0.3))
    assert value > 0.02
    raised = 0.3 + 10 * (value - 0.02)
    np.testing.assert_allclose(multiplier, 0.3 + 0.02 * (raised - 0.3), rtol=1e-6)
    expected = plus(risks, clipped(slope, raised))
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def test_observability_pulls_at_the_layers_by_at_most_its_norm():
    arm = remedies.observed(SETTING, examples=3, places=5)

    @eqx.filter_jit
    def pulled(model):
        gradient, _ = arm.gradient(model, (), batches())
        risks = jax.grad(risk)(model, batches().training)
        return jax.tree.map(jnp.subtract, gradient, risks)

    pull = pulled(MODEL)
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
