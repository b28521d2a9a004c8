"""Algorithm 1 towards a target of each example: where the evidence is, not everywhere.

On graded cells, with pools of unequal sizes that share a cell and leave one position out, and rows
of a target that are no densities; the truth is the definition, example by example.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.differences import difference_by_calls
from reference.networks import byte_network, random_states

import lim_jax as lim
from benchmarks.validation.remedies import example_density
from lim_jax.loss import margin_loss, own_margin_loss
from lim_jax.models import Targets, causal
from lim_jax.training import (
    Penalty,
    balanced_objective,
    influence_penalty,
    risk_and_penalty,
)
from lim_jax.training.discrepancy import cross_entropy_discrepancy, squared_discrepancy
from lim_jax.training.estimators import (
    balanced_density,
    pooled_energies,
)

LENGTH = 6
WIDTH = 3
CLASSES = 4
BATCH = 3
GRID = lim.graded_grid(LENGTH)
WIDTHS = np.asarray(GRID.weights)
X = random_states(2, BATCH, LENGTH, WIDTH)
ASKED = jax.device_put(np.array([0.0, 0.1, 0.0, 0.2, 0.4, 0.3]))
POOLS = jax.device_put(np.array([[1, 1, 0.3, 0, 0, 0], [0, 0, 0.7, 0, 1, 1]]) * WIDTHS)
OF_POOLS = jax.device_put(np.array([[0.2, 1.7], [1.1, 0.6], [2.1, 0.0]]))
OF_PLACES = jax.device_put(np.exp(np.sin(np.arange(18.0))).reshape(BATCH, LENGTH))
PARAMS = {"mixing": random_states(5, WIDTH, WIDTH), "readout": random_states(6, WIDTH, CLASSES)}
MOVED = {"mixing": random_states(7, WIDTH, WIDTH), "readout": random_states(8, WIDTH, CLASSES)}


def logits(params, x):
    return jnp.tanh(jnp.cumsum(x, axis=0) @ params["mixing"]) @ params["readout"]


def own(params, x, y):
    return own_margin_loss(logits(params, x), ASKED)


def energies_of(params):
    """The definition, whose answers are found by a program of their own."""

    def energy(x):
        answers = jnp.argmax(logits(PARAMS, x), axis=1)
        gradient = jax.grad(lambda x: margin_loss(logits(params, x), answers, ASKED))(x)
        return jnp.sum((gradient / GRID.weights[:, None]) ** 2, axis=1)

    return jax.lax.map(energy, X)


def squares(share, target, sizes):
    return jnp.sum(sizes * (share - target) ** 2) / 2


def surprise(share, target, sizes):
    return -jnp.sum(sizes * target * jnp.log(share + 1e-6))


def plain_penalty(params, formula, target, pools):
    """One example after another; its gradient is that of a gradient."""
    sizes = GRID.weights if pools is None else pools.sum(axis=1) / pools.sum()
    total = 0.0
    for energy, row in zip(energies_of(params), target, strict=True):
        places = energy if pools is None else pools @ energy / pools.sum(axis=1)
        total = total + formula(places / jnp.sum(sizes * places), row, sizes)
    return total / BATCH


CASES = {
    "pools": (cross_entropy_discrepancy, surprise, balanced_density, OF_POOLS, POOLS),
    "positions": (squared_discrepancy, squares, example_density, OF_PLACES, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_penalty_and_its_gradient_are_those_of_the_examples_one_by_one(case):
    """Value; gradient against the gradient's gradient; of pools forward and second order too."""
    discrepancy, formula, estimate, target, pools = CASES[case]
    penalty = Penalty(target, discrepancy, estimate, pools, epsilon=0.0)

    def ours(params):
        return influence_penalty(own, params, (X, None), GRID, penalty)

    @jax.jit
    def derivatives(params):
        plain = jax.value_and_grad(lambda p: plain_penalty(p, formula, target, pools))(params)
        found = jax.value_and_grad(ours)(params), plain
        if pools is None:
            return found
        apart = risk_and_penalty(own, params, (X, None), GRID, penalty)[:2]
        forward = jax.jvp(ours, (params,), (MOVED,))[1]
        curved = jax.jvp(jax.grad(ours), (params,), (MOVED,))[1]
        return *found, apart, forward, curved

    (value, gradient), (expected, slope), *others = derivatives(PARAMS)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    assert min(np.abs(leaf).max() for leaf in slope.values()) > 1e-2
    for name in PARAMS:
        np.testing.assert_allclose(gradient[name], slope[name], rtol=1e-9, atol=1e-12)
    if not others:
        return
    (values, gradients), forward, curved = others
    np.testing.assert_allclose(values.penalty, expected, rtol=1e-12)
    for name in PARAMS:
        np.testing.assert_allclose(gradients.penalty[name], slope[name], rtol=1e-9, atol=1e-12)
    along = sum(np.vdot(gradient[name], MOVED[name]) for name in MOVED)
    moved = difference_by_calls(lambda params: derivatives(params)[0][0], PARAMS, MOVED)
    np.testing.assert_allclose(along, moved, rtol=1e-7)
    np.testing.assert_allclose(forward, along, rtol=1e-11)

    def slope_along(params):
        return sum(np.vdot(derivatives(params)[1][1][name], MOVED[name]) for name in MOVED)

    moved = difference_by_calls(slope_along, PARAMS, MOVED)
    along = sum(np.vdot(curved[name], MOVED[name]) for name in MOVED)
    np.testing.assert_allclose(along, moved, rtol=1e-6)


def weighted(params, x, y):
    """Its energies are the squares of the parameters times the example's label."""
    return jnp.vdot(params * y, x[:, 0])


ONES, LABELS = jax.device_put((np.ones((2, 2, 1)), np.array([[1.0, 1.0], [2.0, 1.0]])))
# On two cells the examples' densities are (2, 8)/5 and (1, 1).
ROOTS = jax.device_put(np.array([1.0, 2.0]))
EACH = jax.device_put(np.array([[2.0, 0.0], [0.5, 1.5]]))


@pytest.mark.slow
def test_each_example_has_its_own_density_and_target():
    """In closed form, and in every objective that takes a target."""
    problem = (weighted, ROOTS, (ONES, LABELS), lim.token_grid(2))
    of_each = Penalty(EACH, epsilon=0.0)
    expected = (1.6**2 / 2 + 0.5**2 / 2) / 2  # the mean of two; of the batch's density another
    np.testing.assert_allclose(influence_penalty(*problem, of_each), expected, rtol=1e-12)
    objective = balanced_objective(*problem, of_each, strength=0.5)
    np.testing.assert_allclose(objective, 3.5 + expected / 2, rtol=1e-12)
    of_batch = influence_penalty(*problem, Penalty(EACH[0], epsilon=0.0))
    assert abs(float(of_batch) - expected) > 0.05


def test_a_discrepancy_may_be_ones_own_and_batches_may_be_mapped():
    """Each target of several, by vmap; a discrepancy that takes the places' weights apart."""

    def largest(density, target, weights):
        return jnp.max(weights * jnp.abs(density - target))

    def penalty(target):
        of_largest = Penalty(target, largest, epsilon=0.0)
        return influence_penalty(weighted, ROOTS, (ONES, LABELS), lim.token_grid(2), of_largest)

    targets = jnp.stack([EACH, EACH[::-1]])
    np.testing.assert_allclose(
        jax.jit(jax.vmap(penalty))(targets), [(0.8 + 0.25) / 2, (0.05 + 0.5) / 2], rtol=1e-12
    )


def test_a_share_of_zero_is_finite_and_so_is_its_gradient():
    surprising = Penalty(EACH[::-1], cross_entropy_discrepancy, epsilon=0.0)
    at = jnp.array([0.0, 2.0])  # no influence where both targets ask for some

    def penalty(params):
        return influence_penalty(weighted, params, (ONES, LABELS), lim.token_grid(2), surprising)

    value, gradient = jax.jit(jax.value_and_grad(penalty))(at)
    expected = -(0.25 * np.log(1e-6) + 0.75 * np.log(2 + 1e-6) + np.log(1e-6)) / 2
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    "name, cure", [("target", "Pass a density."), ("density", "Pass a density of energies: ")]
)
def test_what_is_negative_has_no_cross_entropy(name, cure):
    numbers = {"density": jnp.ones(2), "target": jnp.ones(2)} | {name: jnp.array([2.5, -0.5])}
    message = f"{name}: got a number below zero, expected nothing below zero. {cure}"
    with pytest.raises(Exception, match=message):
        jax.block_until_ready(cross_entropy_discrepancy(**numbers, weights=jnp.array([0.5, 0.5])))


@pytest.mark.parametrize("discrepancy", [squared_discrepancy, cross_entropy_discrepancy])
@pytest.mark.parametrize("name", ["density", "target", "weights", "target for all"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_have_no_discrepancy(discrepancy, name, bad):
    arguments = {
        "density": jnp.ones(2),
        "target": jnp.array([0.5, 1.5]),
        "weights": jnp.array([0.5, 0.5]),
    }
    if name == "target for all":
        arguments["target"] = bad
    else:
        arguments[name] = arguments[name].at[1].set(bad)
    with pytest.raises(Exception, match=f"{name.split()[0]}: got NaN or infinite values"):
        jax.block_until_ready(discrepancy(**arguments))


def test_pools_are_averages_of_energies_and_their_shares():
    energies = np.arange(12.0).reshape(2, LENGTH) ** 2
    averages, shares = pooled_energies(jax.device_put(energies), POOLS)
    sizes = np.asarray(POOLS).sum(axis=1)
    np.testing.assert_allclose(averages, energies @ np.asarray(POOLS).T / sizes, rtol=1e-14)
    np.testing.assert_allclose(shares, sizes / sizes.sum(), rtol=1e-14)


def test_penalties_that_do_not_fit_are_refused(as_users_run):
    grid = lim.token_grid(2)

    def refused(match, function=influence_penalty, **penalty):
        with pytest.raises(ValueError, match=match):
            function(weighted, ROOTS, (ONES, LABELS), grid, Penalty(**penalty))

    refused("target: got densities of 3 examples, expected of 2", target=jnp.ones((3, 2)))
    refused(r"target: got shape \(2, 3\), expected \(examples, 2\)", target=jnp.ones((2, 3)))
    refused(r"target: got shape \(3,\), expected \(2,\)", target=jnp.ones(3))
    refused(r"target: got shape \(2, 2, 1\)", target=jnp.ones((2, 2, 1)))
    refused("discrepancy: got 1.0, expected a function", discrepancy=1.0)
    averaged = functools.partial(risk_and_penalty, previous=jnp.ones(2), memory=0.5)
    refused("target: got one density for each example of a batch", averaged, target=EACH)


def test_the_own_answer_is_the_largest_logit_and_has_no_derivative():
    """Against NumPy, with a tie; half of the answers are not those that follow if they move."""
    rows = np.array([[0.3, 2.0, -1.0], [1.5, 0.2, 1.5], [-1.0, 0.4, 0.3]])
    weights = np.array([0.5, 0.2, 0.3])
    value, gradient = jax.jit(jax.value_and_grad(own_margin_loss))(
        jax.device_put(rows), jax.device_put(weights)
    )
    answers = [1, 0, 1]
    expected = 0.0
    slope = np.zeros_like(rows)
    for i, answer in enumerate(answers):
        others = np.delete(np.arange(3), answer)
        odds = np.exp(rows[i, others])
        expected += weights[i] * (np.log(odds.sum()) - rows[i, answer])
        slope[i, answer] = -weights[i]
        slope[i, others] = weights[i] * odds / odds.sum()
    np.testing.assert_allclose(value, expected, rtol=1e-14)
    np.testing.assert_allclose(gradient, slope, rtol=1e-14)


@pytest.mark.slow
def test_a_models_own_margin_is_that_of_its_likeliest_words(monkeypatch):
    """Of two places, by slices of the vocabulary; targets are not read."""
    monkeypatch.setattr(causal, "WORDS_AT_ONCE", 100)
    model = byte_network(5)
    ids = jax.device_put(np.array([3, 200, 7, 45, 7]))
    places = np.array([2, 4])
    weights = np.array([0.25, 0.75])
    y = Targets(*map(jax.device_put, (np.array([1, 1]), weights, places)))
    rows = np.asarray(model.logits(ids))[places]
    likeliest = rows.max(axis=1)
    others = [np.log(np.exp(np.delete(row, row.argmax())).sum()) for row in rows]
    margin = jax.jit(lambda ids: model.own_margin_loss(model.embed(ids, y), y))(ids)
    np.testing.assert_allclose(margin, weights @ (others - likeliest), rtol=1e-12)
