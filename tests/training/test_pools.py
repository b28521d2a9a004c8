"""Penalties on pools of positions, by every estimator, and the penalty's gradient by itself.

On graded cells, with pools of unequal sizes that share a cell and leave two positions out; the
truth is the definition, pool by pool and example by example, differentiated twice in reverse.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.differences import difference_by_calls
from reference.networks import random_labels, random_states

import lim_jax as lim
from benchmarks.validation.remedies import example_density
from lim_jax.cost.job import job_cost
from lim_jax.density import LossOfIds
from lim_jax.loss import margin_loss
from lim_jax.training.density_objectives import (
    Penalty,
    balanced_objective,
    influence_penalty,
    risk_and_penalty,
)
from lim_jax.training.estimators import balanced_density, crossed_density

LENGTH = 7
WIDTH = 3
CLASSES = 4
BATCH = 5
GRID = lim.graded_grid(LENGTH)
X = random_states(2, BATCH, LENGTH, WIDTH)
LABELS = 1.3 * random_labels(3, BATCH, LENGTH, CLASSES)
ANSWERS = jax.device_put(np.random.default_rng(4).integers(0, CLASSES, (BATCH, LENGTH)))
ASKED = jax.device_put(np.array([0.0, 0.1, 0.0, 0.2, 0.0, 0.4, 0.3]))
SHARES = np.array([[1, 1, 0.3, 0, 0, 0, 0], [0, 0, 0.7, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1, 0]])
POOLS = jax.device_put(SHARES * np.asarray(GRID.weights))
SIZES = np.asarray(POOLS).sum(axis=1)
MEASURE = jax.device_put(SIZES / SIZES.sum())
TARGET = jax.device_put(np.array([1.4, 0.7, 1.1]))
PARAMS = {"mixing": random_states(5, WIDTH, WIDTH), "readout": random_states(6, WIDTH, CLASSES)}
MOVED = {"mixing": random_states(7, WIDTH, WIDTH), "readout": random_states(8, WIDTH, CLASSES)}


def logits(params, x):
    return jnp.tanh(jnp.cumsum(x, axis=0) @ params["mixing"]) @ params["readout"]


def cross_entropy(params, x, y):
    return lim.cross_entropy(logits(params, x), y[0], GRID)


def margin(params, x, y):
    return margin_loss(logits(params, x), y[1], ASKED)


BATCH_OF_BOTH = X, (LABELS, ANSWERS)


def energies_of(loss, params):
    def energy(example):
        gradient = jax.grad(loss, argnums=1)(params, *example)
        return jnp.sum((gradient / GRID.weights[:, None]) ** 2, axis=1)

    return jax.lax.map(energy, BATCH_OF_BOTH)


def ratio(energy, shares):
    return energy / jnp.sum(shares * energy)


def mean(energies, shares):
    return sum(energies) / len(energies)


def means_of_halves(energies, shares):
    """Of five examples: two, and the three others."""
    return jnp.stack([sum(half) / len(half) for half in (energies[:2], energies[2:])])


def mean_of_ratios(energies, shares):
    return sum(ratio(energy, shares) for energy in energies) / len(energies)


def crossed(halves, shares):
    first, second = halves
    return (first / jnp.sum(shares * second) + second / jnp.sum(shares * first)) / 2


# Each estimator, and by hand its statistic of a batch and the density that this stands for.
ESTIMATORS = {
    "balanced": (balanced_density, mean, ratio),
    "crossed": (crossed_density, means_of_halves, crossed),
    "example": (example_density, mean_of_ratios, lambda profile, shares: profile),
}
LOSSES = {"cross-entropy": cross_entropy, "margin": margin}


def plain_penalty(loss, params, plain):
    """The definition; its gradient is that of a gradient."""
    pooled = [
        jnp.stack([weights @ energy / size for weights, size in zip(POOLS, SIZES, strict=True)])
        for energy in energies_of(loss, params)
    ]
    return jnp.sum(MEASURE * (plain(pooled, MEASURE) - TARGET) ** 2) / 2


def dot(left, right):
    return sum(np.vdot(left[name], right[name]) for name in left)


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator, loss",
    [("balanced", "cross-entropy"), *((estimator, "margin") for estimator in ESTIMATORS)],
)
def test_a_pooled_penalty_and_its_gradient_are_those_of_the_definition(estimator, loss):
    """Value; gradient against the gradient's gradient, differences, and forward mode."""
    estimate, statistic, density = ESTIMATORS[estimator]
    loss = LOSSES[loss]

    def plain(energies, shares):
        return density(statistic(energies, shares), shares)

    def ours(params):
        penalty = Penalty(TARGET, epsilon=0.0, estimate=estimate, pools=POOLS)
        return influence_penalty(loss, params, BATCH_OF_BOTH, GRID, penalty)

    @jax.jit
    def derivatives(params):
        definition = jax.value_and_grad(lambda p: plain_penalty(loss, p, plain))(params)
        forward = jax.jvp(ours, (params,), (MOVED,))[1]
        return jax.value_and_grad(ours)(params), definition, forward

    (value, gradient), (expected, slope), forward = derivatives(PARAMS)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    assert max(np.abs(leaf).max() for leaf in slope.values()) > 1e-2
    for name in PARAMS:
        np.testing.assert_allclose(gradient[name], slope[name], rtol=1e-9, atol=1e-12, err_msg=name)
    along = dot(gradient, MOVED)
    moved = difference_by_calls(lambda params: derivatives(params)[0][0], PARAMS, MOVED)
    np.testing.assert_allclose(along, moved, rtol=1e-7)
    np.testing.assert_allclose(forward, along, rtol=1e-11)


def test_pools_of_one_position_each_are_positions():
    """To a factor: graded cells have a total that is not quite one, and that of pools is."""
    total = float(GRID.weights.sum())
    assert abs(total - 1) > 1e-3

    @jax.jit
    def both(params):
        return [
            influence_penalty(
                margin, params, BATCH_OF_BOTH, GRID, Penalty(target, epsilon=0.0, pools=pools)
            )
            for target, pools in ((0.8, None), (0.8 * total, jnp.diag(GRID.weights)))
        ]

    positions, pools = both(PARAMS)
    np.testing.assert_allclose(pools, total * np.asarray(positions), rtol=1e-12)


def test_pooled_by_regions_the_penalty_is_of_what_lim_compares():
    """Regional averages of the influence of the positions kept, scaled to a mean of one."""
    regions = lim.boundary_regions(GRID, 0.3).without([1, 5])

    @jax.jit
    def compute(params):
        between_regions = Penalty(epsilon=0.0, pools=regions.weights)
        penalty = influence_penalty(margin, params, BATCH_OF_BOTH, GRID, between_regions)
        influence = lim.influence(margin, params, BATCH_OF_BOTH, GRID, regions)
        return penalty, influence.regional_averages

    penalty, averages = map(np.asarray, compute(PARAMS))
    sizes = np.asarray(regions.weights).sum(axis=1)
    density = averages * sizes.sum()
    np.testing.assert_allclose(penalty, sizes @ (density - 1) ** 2 / sizes.sum() / 2, rtol=1e-12)
    assert penalty > 0.01


def test_each_example_counts_alike_in_its_own_density_and_not_in_the_ratio():
    energies = np.exp(np.asarray(random_states(9, BATCH, 3)))
    shares = np.array([0.2, 0.5, 0.3])
    louder = energies * np.array([1.0, 100.0, 1.0, 1.0, 1.0])[:, None]
    expected = (energies / (energies @ shares)[:, None]).mean(axis=0)
    for energies_of_batch in (energies, louder):
        density = example_density(
            jax.device_put(energies_of_batch), jax.device_put(shares), epsilon=0.0
        )
        np.testing.assert_allclose(density, expected, rtol=1e-12)
    changed = balanced_density(jax.device_put(louder), jax.device_put(shares), epsilon=0.0)
    assert np.abs(np.asarray(changed) - energies[1] / (energies[1] @ shares)).max() < 0.1
    assert np.abs(np.asarray(changed) - expected).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimators_statistic_is_averaged_over_steps(estimator):
    """Values, statistic and gradients against the definition with the average put in by hand."""
    estimate, statistic, density = ESTIMATORS[estimator]
    shape = (2, 3) if estimator == "crossed" else (3,)
    previous = jax.device_put(np.exp(np.asarray(random_states(9, *shape))))

    def plain(params):
        energies = energies_of(margin, params) @ (POOLS / SIZES[:, None]).T
        averaged = 0.75 * previous + 0.25 * statistic(energies, MEASURE)
        losses = jax.vmap(margin, in_axes=(None, 0, 0))(params, *BATCH_OF_BOTH)
        return losses.mean() + jnp.sum(
            MEASURE * (density(averaged, MEASURE) - TARGET) ** 2
        ), averaged

    penalty = Penalty(TARGET, epsilon=0.0, estimate=estimate, pools=POOLS)

    @jax.jit
    def both(params):
        apart = risk_and_penalty(
            margin, params, BATCH_OF_BOTH, GRID, penalty, previous=previous, memory=0.75
        )
        return apart, jax.value_and_grad(plain, has_aux=True)(params)

    averages, ((expected, averaged), slope) = jax.tree.map(np.asarray, both(PARAMS))
    values, gradients, kept = averages
    np.testing.assert_allclose(kept, averaged, rtol=1e-12)
    np.testing.assert_allclose(values.risk + 2 * values.penalty, expected, rtol=1e-12)
    for name in PARAMS:
        gradient = gradients.risk[name] + 2 * gradients.penalty[name]
        np.testing.assert_allclose(gradient, slope[name], rtol=1e-9, atol=1e-12)


EMBEDDED = LossOfIds(
    lambda params, ids, y: jnp.tanh(params["mixing"])[ids],
    lambda params, x, y: margin(params, x, y) + jnp.sum(params["mixing"] ** 2),
)
IDS = jax.device_put(np.random.default_rng(1).integers(0, WIDTH, (BATCH, LENGTH)))
BATCHES = {
    "states": (cross_entropy, BATCH_OF_BOTH),
    "ids": (EMBEDDED, (IDS, (LABELS, ANSWERS))),
}


@pytest.mark.slow
@pytest.mark.parametrize("batch", BATCHES)
def test_the_two_gradients_apart_sum_to_that_of_the_objective(batch):
    """And each is the slope of its own value; a clip of the penalty's leaves the risk's."""
    loss, batch = BATCHES[batch]
    penalty = Penalty(epsilon=1e-3, estimate=example_density, pools=POOLS)

    @jax.jit
    def apart(params):
        return risk_and_penalty(loss, params, batch, GRID, penalty)[:2]

    @jax.jit
    def gradient(params):
        objective = lambda p: balanced_objective(loss, p, batch, GRID, penalty, strength=0.7)  # noqa: E731
        return jax.grad(objective)(params)

    values, gradients = apart(PARAMS)
    for name, whole in gradient(PARAMS).items():
        total = gradients.risk[name] + 0.7 * gradients.penalty[name]
        np.testing.assert_allclose(total, whole, rtol=1e-11, atol=1e-13, err_msg=name)
    slopes = difference_by_calls(lambda params: apart(params)[0], PARAMS, MOVED)
    for value, slope, part in zip(values, slopes, gradients, strict=True):
        np.testing.assert_allclose(dot(part, MOVED), slope, rtol=1e-7)
        assert abs(slope) > 1e-3 and np.isfinite(value)
    clip = optax.clip_by_global_norm(1e-3)
    clipped, _ = jax.jit(lambda given: clip.update(given, clip.init(PARAMS)))(gradients.penalty)
    again = apart(PARAMS)[1].risk
    for name in PARAMS:
        assert np.array_equal(gradients.risk[name], again[name])
    np.testing.assert_allclose(np.sqrt(dot(clipped, clipped)), 1e-3, rtol=1e-10)


@pytest.mark.slow
def test_the_gradients_apart_cost_no_more_than_their_sum():
    def whole(params, batch):
        def objective(params):
            return balanced_objective(cross_entropy, params, batch, GRID, strength=0.7)

        return jax.value_and_grad(objective)(params)

    def apart(params, batch):
        return risk_and_penalty(cross_entropy, params, batch, GRID)[:2]

    def task(params, batch):
        return jax.grad(lambda p: jax.vmap(cross_entropy, (None, 0, 0))(p, *batch).mean())(params)

    ours, theirs, plain = (job_cost(job, PARAMS, BATCH_OF_BOTH) for job in (apart, whole, task))
    assert ours.operations <= theirs.operations < 5 * plain.operations
    assert ours.temporary <= 1.1 * theirs.temporary


def test_gradients_apart_are_of_floating_point_arrays_alone():
    """What else a model holds has None, as Equinox's gradients have it."""
    params = (PARAMS["mixing"], 3, jnp.tanh)

    def loss(params, x, y):
        weight, power, function = params
        return jnp.sum(function(x @ weight) ** power)

    gradients = eqx.filter_jit(risk_and_penalty)(loss, params, (X, None), GRID)[1]
    for part in gradients:
        assert part[0].shape == (WIDTH, WIDTH) and part[1:] == (None, None)
        assert float(jnp.abs(part[0]).max()) > 1e-6
