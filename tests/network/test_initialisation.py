"""What `init` draws: variances, biases, and that every keyword arrives."""

import jax
import jax.numpy as jnp
import numpy as np
from reference.networks import random_states

import lim_jax as lim

WIDTH, HEADS, SIZE, HIDDEN = 40, 3, 25, 90


def variance_of(leaf):
    """Entries of mean zero have this variance, to four standard errors."""
    leaf = np.asarray(leaf)
    spread = np.mean(leaf**2)
    assert abs(leaf.mean()) < 4 * np.sqrt(spread / leaf.size)
    return spread, 4 * spread * np.sqrt(2 / leaf.size)


def test_matrices_have_variance_one_over_what_they_sum():
    @jax.jit
    def drawn(key):
        keys = jax.random.split(key, 3)
        attention = lim.CausalAttention.init(WIDTH, heads=HEADS, head_size=SIZE, key=keys[0])
        feed_forward = lim.FeedForward.init(WIDTH, hidden=HIDDEN, key=keys[1])
        readout = lim.LinearReadout.init(WIDTH, HIDDEN, key=keys[2])
        return {
            "query": (attention.query, 1 / WIDTH),
            "key": (attention.key, 1 / WIDTH),
            "value": (attention.value, 1 / WIDTH),
            "output": (attention.output, 1 / (HEADS * SIZE)),
            "inner": (feed_forward.inner, 1 / WIDTH),
            "outer": (feed_forward.outer, 1 / HIDDEN),
            "readout": (readout.weight, 1 / WIDTH),
        }

    found = drawn(jax.random.key(0))
    for name, (leaf, expected) in found.items():
        variance, error = variance_of(leaf)
        assert abs(variance - expected) < error, name
        assert error < expected / 5, name
    flat = [np.asarray(leaf).ravel()[:500] for leaf, _ in found.values()]
    correlations = np.corrcoef(flat) - np.eye(len(flat))
    assert np.abs(correlations).max() < 0.25  # every matrix has a key of its own


def test_every_keyword_of_a_field_arrives():
    def attend(query, key, value, grid):
        return jnp.cos(value)

    field = lim.TransformerField.init(
        8, heads=2, head_size=3, hidden=5, activation=jnp.sin, bias=True, attend=attend, eta=0.25,
        key=jax.random.key(0),
    )  # fmt: skip
    attention, feed_forward = field.attention, field.feed_forward
    assert attention.query.shape == (2, 3, 8) and feed_forward.inner.shape == (5, 8)
    assert attention.norm.eta == feed_forward.norm.eta == 0.25
    for bias in (attention.query_bias, attention.output_bias, feed_forward.inner_bias):
        np.testing.assert_array_equal(bias, 0)
    x = np.asarray(random_states(1, 4, 8))
    grid = lim.graded_grid(4)
    found = np.asarray(jax.jit(lambda field, x: field(x, x, grid))(field, jax.device_put(x)))
    centred = x - x.mean(axis=1, keepdims=True)
    z = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 0.25)
    values = np.cos(np.einsum("hsw,lw->hls", attention.value, z))
    expected = np.einsum("hws,hls->lw", attention.output, values)
    expected += np.sin(z @ np.asarray(feed_forward.inner).T) @ np.asarray(feed_forward.outer).T
    np.testing.assert_allclose(found, expected, rtol=1e-11)
