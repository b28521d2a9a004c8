"""Causal attention on arrays."""

from fractions import Fraction

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from reference.networks import GRIDS, random_states
from scipy.special import softmax

import lim_jax as lim
from lim_jax.grid.cells import CellGrid
from lim_jax.network.attention import attention_weights

QUERY = random_states(0, 9, 3)
KEY = random_states(1, 9, 3)
weights_of = jax.jit(attention_weights)


class SignedGrid(CellGrid):
    """A grid with signed, dense prefix weights, as an interpolatory quadrature has them."""

    def prefix_weights(self):
        return 1.0 + 0.4 * random_states(3, 9, 9)


def twin(query, key, prefix):
    """The formula of the module's first line, without a rule of its own."""
    mass = prefix * jnp.exp(query @ key.T / np.sqrt(query.shape[1]))
    return mass / mass.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("kind", [*GRIDS, "signed"])
def test_attention_is_its_formula_in_value_and_derivatives(kind):
    # `eq:normalized-kernel-variation`.
    grid = SignedGrid(cells=9, offset=Fraction(0)) if kind == "signed" else GRIDS[kind](9)
    seed = random_states(2, 9, 9)
    direction = (random_states(4, 9, 3), random_states(5, 9, 3))

    @jax.jit
    def both_ways(point, direction):
        """By our rule and by the formula: values, gradients and their slopes."""

        def in_value_and_derivatives(weights):
            def total(query, key):
                return jnp.sum(seed * weights(query, key) ** 2)

            first, second = jax.jvp(jax.grad(total, argnums=(0, 1)), point, direction)
            return weights(*point), first, second

        formulas = (
            lambda query, key: attention_weights(query, key, grid),
            lambda query, key: twin(query, key, grid.prefix_weights()),
        )
        return [in_value_and_derivatives(formula) for formula in formulas]

    ours, theirs = both_ways((QUERY, KEY), direction)
    chex.assert_trees_all_close(ours[0], theirs[0], rtol=1e-13)
    chex.assert_trees_all_close(ours[1], theirs[1], rtol=1e-11, atol=1e-13)
    chex.assert_trees_all_close(ours[2], theirs[2], rtol=1e-10, atol=1e-12)


def test_the_rule_agrees_with_differences_to_second_order():
    def on_tokens(query, key):
        return weights_of(query, key, lim.token_grid(9))

    check_grads(on_tokens, (QUERY, KEY), order=2)


def test_tokens_give_the_finite_causal_softmax():
    # `eq:causal-attention-weights`.
    scores = np.asarray(QUERY) @ np.asarray(KEY).T / np.sqrt(3)
    expected = softmax(np.where(np.tri(9, dtype=bool), scores, -np.inf), axis=1)
    weights = weights_of(QUERY, KEY, lim.token_grid(9))
    np.testing.assert_allclose(weights, expected, rtol=1e-13)


def test_midpoints_lower_the_diagonal_score_by_log_two():
    scores = np.asarray(QUERY) @ np.asarray(KEY).T / np.sqrt(3) - np.log(2) * np.eye(9)
    expected = softmax(np.where(np.tri(9, dtype=bool), scores, -np.inf), axis=1)
    weights = weights_of(QUERY, KEY, lim.midpoint_grid(9))
    np.testing.assert_allclose(weights, expected, rtol=1e-13)


def test_the_future_has_no_weight_and_no_gradient():
    # `eq:causal-support-recalled`.
    def fourth_output(key, value):
        return lim.causal_attention(QUERY, key, value, lim.token_grid(9))[3].sum()

    gradients = jax.jit(jax.grad(fourth_output, argnums=(0, 1)))(KEY, random_states(6, 9, 2))
    for gradient in map(np.asarray, gradients):
        assert np.all(gradient[4:] == 0) and np.any(gradient[:4] != 0)


@pytest.mark.parametrize("dtype, largest", [(jnp.float32, 1e4), (jnp.float64, 1e6)])
def test_large_scores_do_not_overflow(dtype, largest):
    grid = lim.token_grid(9, dtype=dtype)
    query = np.asarray(largest * np.asarray(QUERY), dtype)

    def entropy(query):
        weights = attention_weights(query, KEY.astype(dtype), grid)
        return jnp.sum(weights**2)

    value, gradient = jax.jit(jax.value_and_grad(entropy))(query)
    assert np.isfinite(value) and np.all(np.isfinite(gradient)) and gradient.dtype == dtype


def test_attention_weights_in_single_precision_are_near_double():
    query = np.asarray(QUERY, np.float32)
    key = np.asarray(KEY, np.float32)
    single = weights_of(query, key, lim.token_grid(9, dtype=jnp.float32))
    np.testing.assert_allclose(single, weights_of(QUERY, KEY, lim.token_grid(9)), rtol=2e-6)
