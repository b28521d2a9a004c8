"""Observability Gramians, their probes, and the penalty on their traces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import random_flow, random_states

import lim_jax as lim
from lim_jax.gramian import (
    condition_numbers,
    gaussian_probe_moments,
    gramian_traces,
    observability_gramians,
    probed_traces,
)
from lim_jax.penalties import influence_discrepancy, trace_penalty
from lim_jax.remedies import reweight_positions

GRID = lim.token_grid(5)
FLOW = random_flow(depth=3, width=4, horizon=1.5)
X = random_states(0, 5, 4)


def observations(x):
    """Two combinations of the last token's features, at layers 0, 1, 2."""
    return FLOW.trajectory(x, GRID).states[:-1, -1] @ random_states(1, 4, 2)


def random_gramians(seed=2, length=5, width=3):
    factors = np.asarray(random_states(seed, length, width, width))
    return jnp.asarray(factors @ factors.transpose(0, 2, 1))


def test_gramians_by_position_injections():
    """eq:finite-token-observability-gramian by forward tangents, one basis vector at a time."""

    @jax.jit
    def tangent(direction):
        return jax.jvp(observations, (X,), (direction,))[1]

    expected = np.zeros((5, 4, 4))
    for i in range(5):
        seen = [np.asarray(tangent(jnp.zeros((5, 4)).at[i, a].set(1.0))) for a in range(4)]
        for a in range(4):
            for b in range(4):
                expected[i, a, b] = 0.5 * np.sum(seen[a] * seen[b])
    gramians = observability_gramians(observations, X, 0.5)
    np.testing.assert_allclose(gramians, expected, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(
        gramian_traces(gramians), expected.trace(axis1=1, axis2=2), rtol=1e-11
    )


def test_probes_are_propagated_injections():
    """eq:discrete-observability-trace-estimator by tangents of the flow itself."""
    probes = random_states(3, 6, 4)
    found = probed_traces(observability_gramians(observations, X, 0.5), probes)
    tangent = jax.jit(lambda direction: jax.jvp(observations, (X,), (direction,))[1])
    for i in range(5):
        seen = [tangent(jnp.zeros((5, 4)).at[i].set(probe)) for probe in probes]
        expected = np.mean([0.5 * float(jnp.sum(s**2)) for s in seen])
        np.testing.assert_allclose(found[i], expected, rtol=1e-11)


def test_condition_numbers_are_quotients_of_eigenvalues():
    gramians = random_gramians()
    expected = [np.linalg.cond(np.asarray(gramian)) for gramian in gramians]
    np.testing.assert_allclose(condition_numbers(gramians), expected, rtol=1e-9)
    singular = jnp.diag(jnp.array([1.0, 0.0]))[None]
    assert condition_numbers(singular).tolist() == [jnp.inf]


@pytest.mark.parametrize("probes", [1, 3])
def test_exact_probe_moments_against_a_simulation(probes):
    grid, gramians = lim.graded_grid(5), random_gramians()
    draws = np.random.default_rng(0).standard_normal((400_000, probes, 3))
    traces = np.einsum("nra,iab,nrb->ni", draws, np.asarray(gramians), draws) / probes
    weights = np.asarray(grid.weights)
    centred = traces - (traces @ weights)[:, None]
    penalties = (centred**2) @ weights
    moments = gaussian_probe_moments(gramians, grid, probes)
    true = float(trace_penalty(gramian_traces(gramians), grid))
    error = penalties.std() / np.sqrt(len(penalties))
    assert abs(penalties.mean() - true - float(moments.bias)) < 4 * error
    spread = penalties.var()
    fourth = np.mean((penalties - penalties.mean()) ** 4)
    error = np.sqrt((fourth - spread**2) / len(penalties))
    assert abs(spread - float(moments.deviation) ** 2) < 4 * error


def test_the_bias_is_that_of_the_matrix_penalty():
    """tr(Q Sigma) = (2/N) Omega_obs for common Gaussian probes."""
    gramians = random_gramians()
    centred = np.asarray(gramians) - np.asarray(gramians).mean(axis=0)
    expected = 2 / 7 * np.mean((centred**2).sum(axis=(1, 2)))
    moments = gaussian_probe_moments(gramians, GRID, 7)
    np.testing.assert_allclose(moments.bias, expected, rtol=1e-12)


def test_the_deviation_of_many_probes_is_that_of_a_linear_form():
    """As N grows the penalty is linear in the estimate: variance 4 g'Q Sigma Q g."""
    gramians, probes = random_gramians(), 10**8
    weights = np.full(5, 0.2)
    centring = np.diag(weights) - np.outer(weights, weights)
    covariance = 2 / probes * np.einsum("iab,jba->ij", gramians, gramians)
    pushed = centring @ np.asarray(gramian_traces(gramians))
    expected = 2 * np.sqrt(pushed @ covariance @ pushed)
    found = gaussian_probe_moments(gramians, GRID, probes).deviation
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_penalties_are_weighted_variances():
    grid, profile = lim.graded_grid(5), random_states(4, 5)
    weights = np.asarray(grid.weights)
    target = jnp.arange(5.0)
    expected = 0.5 * np.sum(weights * (np.asarray(profile) - np.arange(5)) ** 2)
    np.testing.assert_allclose(influence_discrepancy(profile, target, grid), expected, rtol=1e-13)
    mean = np.sum(weights * np.asarray(profile))
    expected = np.sum(weights * (np.asarray(profile) - mean) ** 2)
    np.testing.assert_allclose(trace_penalty(profile, grid), expected, rtol=1e-13)


def test_reweighting_clips_and_then_renormalises():
    weights = jnp.array([1.0, 1.0, 0.2, 6.0, 1.0])
    density, target = jnp.array([1.0, 3.0, 9.0, -1.0, 0.0]), jnp.array([1.0, 1.0, 1.0, 1.0, 2.0])
    raised = np.asarray(weights) * np.exp(0.5 * (np.asarray(target) - np.asarray(density)))
    clipped = np.clip(raised, 0.15, 8.0)
    assert clipped[2] == 0.15 and clipped[3] == 8.0
    found = reweight_positions(weights, density, target, GRID, rate=0.5, smallest=0.15, largest=8.0)
    np.testing.assert_allclose(found, clipped / clipped.mean(), rtol=1e-13)
    np.testing.assert_allclose(found.mean(), 1.0, rtol=1e-13)
