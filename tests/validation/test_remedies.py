"""What each arm does to a gradient, against its definition written out."""

from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import drawn

import lim_jax as lim
from benchmarks.validation import remedies, retrievers
from benchmarks.validation.laws import edge_law, middle_law
from benchmarks.validation.retrieval import KeyValueTask, key_value_examples
from benchmarks.validation.retrievers import Setting, answer_batch, draw, new_retriever

RECORDS = 4
LENGTH = 9
BATCH = 5
SETTING = Setting(KeyValueTask(RECORDS, 5, 3), width=4, heads=2, depth=1, batch=BATCH)
GOLD = np.array([0, 3, 1, 0, 2])
EVEN = np.ones(BATCH)
EPSILON = 1e-8


def examples(seed, gold=GOLD):
    return key_value_examples(SETTING.task, jax.device_put(gold), key=jax.random.key(seed))


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


def risk(model, examples, weights):
    return (weights * cross_entropies(model, embedded(model, examples), examples)).mean()


def record_energies(losses, model, examples):
    slopes = jax.grad(lambda x: losses(model, x, examples).sum())(embedded(model, examples))
    return ((LENGTH * slopes) ** 2).sum(axis=2)[:, :-1].reshape(-1, RECORDS, 2).mean(axis=2)


def discrepancy(density, target=1.0):
    return ((density - target) ** 2).mean() / 2


def ratio_penalty(model, examples):
    energies = record_energies(cross_entropies, model, examples).mean(axis=0)
    return discrepancy(energies / (energies.mean() + EPSILON))


def profile_penalty(model, examples):
    energies = record_energies(margins, model, examples)
    shares = energies / (energies.mean(axis=1, keepdims=True) + EPSILON)
    return discrepancy(shares.mean(axis=0))


PLACES = np.arange(1.0, 1 + RECORDS)


def made_penalty(loss, model, batch, grid, penalty):
    """Of all that a penalty is given, but no second derivative: other arms are of the right one."""
    losses = jax.vmap(loss, (None, 0, 0))(model, *batch)
    return (losses * (penalty.target @ PLACES)).mean()


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(remedies, "influence_penalty", made_penalty)


def weighted_margins(model, examples, weights):
    return (weights * margins(model, embedded(model, examples), examples)).mean()


# What arms are defined by, each compiled once; sums and norms are NumPy's.
slope_of_risk = jax.jit(jax.grad(risk))
ratio_slope = jax.jit(jax.grad(ratio_penalty))
slope_of_margins = jax.jit(jax.grad(weighted_margins))
value_and_slope_of_profile = jax.jit(jax.value_and_grad(profile_penalty))


def risk_slope(examples, weights=EVEN):
    return slope_of_risk(network(), examples, weights)


def made_slope(examples, weights):
    """Of the first examples, each with its weight."""
    return slope_of_margins(network(), examples, mean_of_first(weights))


def mean_of_first(weights):
    """Weights in a mean of the whole batch that make it one of the first examples."""
    return np.append(weights, np.zeros(BATCH - len(weights))) * BATCH / len(weights)


def norm(tree):
    return np.sqrt(sum(np.sum(np.asarray(leaf) ** 2) for leaf in jax.tree.leaves(tree)))


def clipped(gradient, strength, clip=1.0):
    shorter = strength * min(1.0, clip / (strength * norm(gradient)))
    return jax.tree.map(lambda leaf: shorter * np.asarray(leaf), gradient)


def plus(first, second):
    return jax.tree.map(np.add, first, second)


def assert_same(ours, theirs):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


@cache
def network():
    """Of attention alone, without a norm: what an arm does to a gradient asks for no more."""
    model = drawn(partial(new_retriever, SETTING))
    layers = eqx.tree_at(lambda layer: layer.norm, model.flow.layers.attention, eqx.nn.Identity())
    flow = lim.ResidualFlow(layers, horizon=float(SETTING.depth))
    return eqx.tree_at(lambda model: model.flow, model, flow)


MIDDLE = np.array([2, 3, 3, 2]) / 2.5
LAW = np.array([1, 0.02, 0.02, 1]) / 2.04
WEIGHTS = np.array([0.5, 2.0, 1.0, 0.5])
MULTIPLIER = 0.3


@cache
def arms():
    """Some draw or compute as they are made: not where tests are collected."""
    return {
        "plain": remedies.plain(SETTING),
        "importance": remedies.importance_weighted(SETTING),
        "answers": remedies.answers_on_probes(SETTING),
        "training law": remedies.balanced_on_training(SETTING, strength=0.1),
        "probes": remedies.balanced_on_probes(
            SETTING, strength=0.01, target="middle", law="edges", probes=3, every=2
        ),
        "own answers": remedies.selective_on_probes(SETTING, strength=0.1, probes=4),
        "mislabelled": remedies.selective_on_probes(
            SETTING,
            answers="true",
            strength=0.5,
            clip=0.3,
            law="only edges",
            probes=4,
            every=2,
            wrong=1.0,
            taught=True,
        ),
        "some answers": remedies.answers_on_probes(SETTING, probes=3),
        "reweighted": remedies.reweighted(SETTING)._replace(memory=WEIGHTS),
        "constrained": remedies.constrained_on_probes(SETTING, limit=0.02, stiffness=10.0)._replace(
            memory=np.array(MULTIPLIER)
        ),
        "observed": remedies.observed(SETTING, examples=3, places=5),
    }


@cache
def compiled(name):
    """By itself: all together would take half as long again."""
    return eqx.filter_jit(arms()[name].gradient)


@cache
def gradient_and_memory(name, step=20):
    """An arm's gradient and memory."""
    return compiled(name)(network(), arms()[name].memory, batches(step))


DEFINITIONS = {
    "plain": lambda b: risk_slope(b.training),
    "importance": lambda b: risk_slope(b.training, 0.25 / LAW[GOLD]),
    "answers": lambda b: plus(risk_slope(b.training), risk_slope(b.probes)),
    "some answers": lambda b: plus(
        risk_slope(b.training), risk_slope(b.probes, mean_of_first(np.ones(3)))
    ),
    "training law": lambda b: plus(
        risk_slope(b.training), clipped(ratio_slope(network(), b.training), 0.1)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFINITIONS)
def test_an_arms_gradient_is_its_definitions(name):
    assert_same(gradient_and_memory(name)[0], DEFINITIONS[name](batches()))


@pytest.mark.slow
@pytest.mark.usefixtures("made")
def test_some_probes_of_another_law_are_drawn_anew_and_another_profile_is_aimed_at():
    """On every other step, where the penalty is twice as strong: it rests between."""
    anew = draw(SETTING, SETTING.gold_law, key=batches().key)
    risks = risk_slope(batches().training)
    penalty = clipped(made_slope(anew, np.full(3, MIDDLE @ PLACES)), 0.02)
    ours, rests = (gradient_and_memory("probes", step)[0] for step in (20, 21))
    assert_same(ours, plus(risks, penalty))
    assert_same(rests, risks)


def first(examples, count):
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[:count]), examples)


@jax.jit
@jax.grad
def selective_slope(model, examples):
    """Of minus the logarithm of the gold records' shares, times the records' number."""
    energies = record_energies(margins, model, examples)
    shares = energies / (energies.mean(axis=1, keepdims=True) + EPSILON)
    return -jnp.log(jnp.diag(shares[:, examples.gold[:, 0]]) + 1e-6).mean()


@pytest.mark.slow
def test_influence_is_drawn_to_each_probes_gold_record():
    """Of the network's own answers, which are others than the true ones; below it is of these."""
    some = first(batches().probes, 4)
    model = network()
    logits = jax.jit(lambda some: answer_losses(model, embedded(model, some), some)[2])
    window = np.array(some.window)
    own = np.argmax(logits(some), axis=1)
    assert (window[:, -1] != own).any()
    window[:, -1] = own
    some = some._replace(window=jax.device_put(window))
    penalty = clipped(selective_slope(network(), some), 0.1)
    assert_same(
        gradient_and_memory("own answers")[0], plus(risk_slope(batches().training), penalty)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("made")
def test_evidence_may_be_said_to_stand_elsewhere_and_answers_be_told_beside_it():
    """All labels wrong, of probes at the edges, every other step, clipped and told."""
    edges = draw(SETTING, edge_law(RECORDS, odds=0.0), key=batches().key)
    gold = np.asarray(edges.gold[:4, 0])
    assert set(gold.tolist()) <= {0, RECORDS - 1}
    _, of_place = jax.random.split(jax.random.fold_in(batches().key, 1))
    moved = (gold + np.asarray(jax.random.randint(of_place, (4,), 1, RECORDS))) % RECORDS
    assert (moved != gold).all()
    slope = made_slope(edges, RECORDS * PLACES[moved])
    assert norm(slope) > 0.3
    risks = risk_slope(batches().training)
    told = risk_slope(edges, mean_of_first(np.ones(4)))
    ours, rests = (gradient_and_memory("mislabelled", step)[0] for step in (20, 21))
    assert_same(ours, plus(plus(risks, told), clipped(slope, 1.0, 0.3)))
    assert_same(rests, risks)


def test_some_arms_look_at_their_probes_every_few_steps():
    looks = {name: arm.every for name, arm in arms().items() if arm.every != 1}
    assert looks == {"probes": 2, "mislabelled": 2, "reweighted": 10}


@pytest.mark.slow
def test_weights_by_record_move_every_tenth_step():
    """Algorithm 2's update, with the influence of the batch that is weighted next."""
    training = batches().training
    of_records = jax.jit(lambda model: record_energies(cross_entropies, model, training))
    energies = np.asarray(of_records(network())).mean(axis=0)
    density = energies / energies.mean()
    (gradient, moved), (_, kept) = (gradient_and_memory("reweighted", step) for step in (20, 21))
    raised = np.clip(WEIGHTS * np.exp(0.5 * (1 - density)), 0.1, 8)
    np.testing.assert_allclose(moved, raised / raised.mean(), rtol=1e-6)
    np.testing.assert_array_equal(kept, WEIGHTS)
    assert_same(gradient, risk_slope(training, np.asarray(moved)[GOLD]))


@pytest.mark.slow
def test_the_constraints_multiplier_rises_where_it_is_broken():
    gradient, multiplier = gradient_and_memory("constrained")
    value, slope = value_and_slope_of_profile(network(), batches().probes)
    assert value > 0.02
    raised = MULTIPLIER + 10 * (float(value) - 0.02)
    np.testing.assert_allclose(multiplier, MULTIPLIER + 0.02 * (raised - MULTIPLIER), rtol=1e-6)
    assert_same(gradient, plus(risk_slope(batches().training), clipped(slope, raised)))


def observed_penalty(model, batches):
    """Half the scatter over places of what a step there does to the last place, before layers."""
    of_signs, of_places = jax.random.split(batches.key)
    places = jax.random.choice(of_places, 2 * RECORDS, (5,), replace=False)
    signs = jax.random.rademacher(of_signs, (1, SETTING.width), dtype=float)[0]

    def trace(x, place):
        step = jnp.zeros_like(x).at[place].set(signs)
        last = lambda x: model.flow.trajectory(x, GRID).states[:-1, -1]  # noqa: E731
        return (jax.jvp(last, (x,), (step,))[1] ** 2).sum()

    x = embedded(model, batches.training)[:3]
    traces = jax.vmap(jax.vmap(trace, (None, 0)), (0, None))(x, places).mean(axis=0)
    return ((traces - traces.mean()) ** 2).sum() / LENGTH / 2


@pytest.mark.slow
def test_observability_pulls_down_its_own_slope():
    """Of two layers: before the first nothing else is seen at the last place."""
    deeper = jax.tree.map(lambda leaf: jnp.concatenate([2 * leaf, leaf]), network().flow.layers)
    model = eqx.tree_at(lambda model: model.flow.layers, network(), deeper)
    gradient, _ = compiled("observed")(model, arms()["observed"].memory, batches())
    slopes = jax.jit(
        lambda model: (
            jax.grad(risk)(model, batches().training, EVEN),
            jax.grad(observed_penalty)(model, batches()),
        )
    )
    risks, slope = slopes(model)
    assert norm(slope) > 1  # and is clipped
    assert_same(gradient, plus(risks, clipped(slope, 1.0)))


def test_the_middle_is_what_the_law_of_edges_leaves():
    values = np.random.default_rng(0).uniform(size=(2, 3, 11))
    middle = retrievers.in_the_middle(jax.device_put(values))
    np.testing.assert_allclose(middle, values[:, :, 2:9].mean(axis=2))
    assert (np.asarray(middle_law(11, odds=0.0))[2:9] > 0).all()


def test_a_batch_is_asked_at_its_last_place():
    ids, y = answer_batch(examples(1))
    assert ids.shape == (BATCH, LENGTH) and (np.asarray(y.positions) == LENGTH - 1).all()
