"""The language model's randomness and data: windows, embeddings, and a key for every step."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lim_jax.models import language

LENGTH = 8


@cache
def model():
    init = eqx.filter_jit(language.LanguageModel.init)
    return init(LENGTH, width=16, heads=2, depth=2, key=jax.random.key(0))


def test_windows_reach_from_the_first_byte_to_the_last_and_no_further():
    text = jnp.arange(20, 31)
    windows = np.asarray(language.sample_windows(text, 4, 300, key=jax.random.key(0)))
    assert (np.diff(windows, axis=1) == 1).all()
    assert set(windows[:, 0]) == set(range(20, 27)) and windows.max() == 30


def test_states_are_embeddings_of_bytes_and_of_places():
    tokens = np.array([7, 7, 250, 0, 7, 31, 32, 7])
    embedding, positions = np.asarray(model().embedding), np.asarray(model().positions)
    found = np.asarray(model().embed(jax.device_put(tokens)))
    np.testing.assert_allclose(found, embedding[tokens] + positions, rtol=1e-15)
    assert np.abs(found[0] - found[1]).max() > 0.1, "one byte at two places"
    for leaf in (embedding, positions):
        assert abs(np.mean(leaf**2) - 1) < 4 * np.sqrt(2 / leaf.size)


def test_targets_are_the_bytes_after():
    windows = np.arange(2 * (LENGTH + 1)).reshape(2, -1)
    x, targets = language.batch_of_windows(model(), jax.device_put(windows))
    np.testing.assert_array_equal(np.argmax(targets, axis=2), windows[:, 1:])
    np.testing.assert_allclose(np.sum(targets, axis=2), 1)
    first = np.asarray(model().embedding)[windows[:, 0]] + np.asarray(model().positions)[0]
    np.testing.assert_allclose(x[:, 0], first, rtol=1e-15)


def test_every_step_of_training_sees_windows_of_its_own():
    """At rate zero the network stands still, and losses differ by their windows alone."""
    text = language.standard_library_text(5_000)
    with jax.numpy_dtype_promotion("standard"):  # optax promotes
        trained, losses = language.train(model(), text, 6, key=jax.random.key(1), batch=2, rate=0.0)
    np.testing.assert_array_equal(trained.embedding, model().embedding)
    assert len(set(np.asarray(losses).tolist())) == 6
