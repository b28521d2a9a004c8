"""Readouts, query weights and cross-entropies."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from networks import random_labels, random_states
from scipy.special import log_softmax

import lim_jax as lim
from lim_jax.adjoint.sweep import terminal_adjoint
from lim_jax.loss import hat, last_token, logit_residual, query_subset, teacher_forcing

GRID = lim.token_grid(12)
WEIGHT = random_states(4, 6, 5)
EDGES = ("zero", "renormalised", "reflecting")


def test_the_linear_readout_is_a_product():
    x, bias = random_states(), jnp.arange(5.0)
    expected = np.asarray(x) @ np.asarray(WEIGHT)
    np.testing.assert_allclose(lim.LinearReadout(WEIGHT)(x, GRID), expected, rtol=1e-14)
    np.testing.assert_allclose(
        lim.LinearReadout(WEIGHT, bias)(x, GRID), expected + np.arange(5), rtol=1e-13
    )
    assert lim.LinearReadout.init(6, 9, key=jax.random.key(0))(x, GRID).shape == (12, 9)


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("bandwidth", [1 / 12, 0.3, 1.0])
def test_bands_are_the_loops(edges, bandwidth):
    band = lim.BandReadout(jnp.eye(6), bandwidth, edges)
    expected = reference.band_average(np.asarray(random_states()), bandwidth, edges)
    np.testing.assert_allclose(band(random_states(), GRID), expected, rtol=1e-12, atol=1e-14)


def test_only_the_reflecting_band_sums_right_both_ways():
    sums = {
        edges: [lim.BandReadout(jnp.eye(1), 0.25, edges).matrix(GRID).sum(axis=a) for a in (1, 0)]
        for edges in EDGES
    }
    interior = slice(3, -3)
    for rows, _ in sums.values():
        np.testing.assert_allclose(rows[interior], 1, rtol=1e-12)
    np.testing.assert_allclose(sums["reflecting"], 1, rtol=1e-12)
    np.testing.assert_allclose(sums["renormalised"][0], 1, rtol=1e-12)
    assert abs(sums["renormalised"][1][0] - 1) > 0.1
    assert sums["zero"][0][0] < 0.8 and sums["zero"][1][0] < 0.8


@pytest.mark.parametrize("make", [lim.midpoint_grid, lim.graded_grid])
def test_bands_average_smooth_fields_on_every_grid(make):
    """Away from the ends the hat's average of cos(wp) is cos(wp) sinc^2(wb/2)."""
    grid, frequency, bandwidth = make(400), 3.0, 0.2
    band = lim.BandReadout(jnp.eye(1), bandwidth)
    found = band(jnp.cos(frequency * grid.nodes)[:, None], grid)[:, 0]
    factor = np.sinc(frequency * bandwidth / 2 / np.pi) ** 2
    inside = (grid.nodes > bandwidth) & (grid.nodes < 1 - bandwidth)
    error = jnp.where(inside, found - factor * jnp.cos(frequency * grid.nodes), 0)
    assert float(jnp.abs(error).max()) < 1e-3


def test_the_hat_has_integral_one():
    middles = (jnp.arange(2000.0) + 0.5) / 1000 - 1
    np.testing.assert_allclose(hat(middles).mean() * 2, 1.0, rtol=1e-12)


def test_a_tokenwise_readout_may_have_parameters():
    readout = lim.TokenwiseReadout(lambda z: jnp.tanh(z @ WEIGHT))
    x = random_states()
    np.testing.assert_allclose(readout(x, GRID), np.tanh(x @ WEIGHT), rtol=1e-12)


def test_cross_entropies_are_their_sums():
    logits, labels = random_states(1, 12, 5), random_labels()
    surprise = -(np.asarray(labels) * log_softmax(np.asarray(logits), axis=1)).sum(axis=1)
    np.testing.assert_allclose(lim.cross_entropy(logits, labels, GRID), surprise.mean(), rtol=1e-13)
    weights = jnp.arange(12.0)
    np.testing.assert_allclose(
        lim.cross_entropy(logits, labels, GRID, weights),
        np.mean(np.arange(12) * surprise),
        rtol=1e-13,
    )
    graded = lim.graded_grid(12)
    np.testing.assert_allclose(
        lim.cross_entropy(logits, labels, graded),
        np.sum(np.asarray(graded.weights) * surprise),
        rtol=1e-13,
    )
    alpha = jnp.arange(12.0) / 66
    np.testing.assert_allclose(
        lim.autoregressive_cross_entropy(logits, labels, alpha),
        np.sum(np.asarray(alpha) * surprise),
        rtol=1e-13,
    )


def test_teacher_forcing_has_both_conventions():
    tokens = np.array([3, 1, 4, 1, 0, 2])  # five observed, and a continuation
    logits = random_states(1, 5, 5)
    surprise = -log_softmax(np.asarray(logits), axis=1)[np.arange(5), tokens[1:]]
    targets = jax.nn.one_hot(tokens[1:], 5)
    found = lim.autoregressive_cross_entropy(logits, targets, teacher_forcing(5))
    np.testing.assert_allclose(found, surprise.mean(), rtol=1e-13)
    found = lim.autoregressive_cross_entropy(
        logits, targets, teacher_forcing(5, continuation=False)
    )
    np.testing.assert_allclose(found, surprise[:4].mean(), rtol=1e-13)
    found = lim.autoregressive_cross_entropy(logits, targets, last_token(5))
    np.testing.assert_allclose(found, surprise[4], rtol=1e-13)
    found = lim.autoregressive_cross_entropy(logits, targets, query_subset(5, jnp.array([0, 3])))
    np.testing.assert_allclose(found, surprise[[0, 3]].mean(), rtol=1e-13)


@pytest.mark.parametrize("total", [1.0, 2.5, 0.0])
def test_the_residual_is_the_gradient_for_labels_of_any_sum(total):
    logits, labels = random_states(1, 12, 5), total * random_labels()
    gradient = jax.grad(lim.cross_entropy)(logits, labels, GRID)
    chex.assert_trees_all_close(12 * gradient, logit_residual(logits, labels), atol=1e-14)


def test_a_masked_class_costs_nothing():
    logits = random_states(1, 12, 5).at[:, 2].set(-jnp.inf)
    labels = random_labels().at[:, 2].set(0.0)
    value, gradient = jax.value_and_grad(lim.cross_entropy)(logits, labels, GRID)
    kept = np.array([0, 1, 3, 4])
    np.testing.assert_allclose(
        value, lim.cross_entropy(logits[:, kept], labels[:, kept], GRID), rtol=1e-13
    )
    assert np.all(np.isfinite(gradient)) and np.all(np.asarray(gradient[:, 2]) == 0)


@pytest.mark.parametrize("make", [lim.token_grid, lim.midpoint_grid, lim.graded_grid])
def test_terminal_adjoints_by_the_papers_formula(make):
    """P_T = (softmax - Y) W_out* as a density, for the linear and the banded readout."""
    grid, x, labels = make(12), random_states(), random_labels()
    for readout, spread in (
        (lim.LinearReadout(WEIGHT), jnp.eye(12)),
        (lim.BandReadout(WEIGHT, 0.4), lim.BandReadout(WEIGHT, 0.4).matrix(grid)),
    ):
        found = terminal_adjoint(
            lambda x, r=readout: lim.cross_entropy(r(x, grid), labels, grid), x, grid
        )
        residual = jax.nn.softmax(readout(x, grid), axis=1) - labels
        weights = grid.weights[:, None]
        expected = spread.T @ (weights * residual) / weights @ WEIGHT.T
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_autoregressive_terminal_adjoint():
    """eq:autoregressive-terminal-adjoint, as a density."""
    x, labels, alpha = random_states(), random_labels(), jnp.arange(12.0) / 66
    found = terminal_adjoint(
        lambda x: lim.autoregressive_cross_entropy(x @ WEIGHT, labels, alpha), x, GRID
    )
    residual = alpha[:, None] * (jax.nn.softmax(x @ WEIGHT, axis=1) - labels)
    np.testing.assert_allclose(found, 12 * residual @ WEIGHT.T, rtol=1e-12, atol=1e-14)
