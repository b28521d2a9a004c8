"""The language model: what it draws, and what it reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import byte_network
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel

import lim_jax as lim
from lim_jax.checkpoints.text import texts_of_ids
from lim_jax.loss import last_token
from lim_jax.models import small_models
from lim_jax.network.frequencies import rotary_frequencies
from lim_jax.network.positions import Rotary

LENGTH = 6


def test_layers_are_split_at_unit_step():
    flow = byte_network(LENGTH, depth=3).flow
    assert flow.depth == flow.horizon == 3 and flow.step is lim.split


def test_embeddings_are_normal_and_drawn_apart():
    def init():
        return small_models.byte_model(300, width=8, heads=2, depth=1, key=jax.random.key(5))

    model = jax.jit(lambda: (lambda m: (m.embedding, m.positions))(init()))()
    entries = np.stack([np.ravel(part)[: 256 * 8] for part in model])
    assert np.abs(np.mean(entries**2, axis=1) - 1).max() < 5 * np.sqrt(2 / 2048)
    assert abs(np.corrcoef(entries)[0, 1]) < 5 / np.sqrt(2048)


def test_rotary_positions_have_no_length_and_learned_ones_do():
    def init(length, rotary):
        sizes = {"width": 8, "heads": 2, "depth": 1}
        return small_models.gaussian_model(9, length, rotary=rotary, key=jax.random.key(0), **sizes)

    rotary = Rotary(rotary_frequencies(4))
    assert init(None, rotary).positions is None
    with pytest.raises(ValueError, match="length: got 8 with rotary positions, expected None"):
        init(8, rotary)
    with pytest.raises(ValueError, match="length: got None, expected a whole number"):
        init(None, None)


def test_a_context_is_embedded_by_byte_and_place_and_asks_for_the_next_byte():
    model = byte_network(LENGTH)
    windows = np.array([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])
    example = jax.jit(jax.vmap(model.example, in_axes=(0, None)))
    states, queries = jax.tree.map(np.asarray, example(windows, last_token(LENGTH)))
    embedding = np.asarray(model.embedding)
    positions = np.asarray(model.positions)
    for n in range(2):
        for place in range(LENGTH):
            expected = embedding[windows[n, place]] + positions[place]
            np.testing.assert_allclose(states[n, place], expected, rtol=1e-15)
    np.testing.assert_array_equal(queries.targets, windows[:, 1:])
    np.testing.assert_array_equal(queries.weights, np.tile(np.eye(LENGTH)[-1], (2, 1)))
    assert queries.positions is None


def test_windows_lie_inside_the_text_and_begin_anywhere_in_it():
    cut = jax.jit(
        lambda: small_models.sample_windows(jnp.arange(10), 3, 300, key=jax.random.key(0))
    )
    windows = np.asarray(cut())
    np.testing.assert_array_equal(windows, windows[:, :1] + np.arange(4))
    assert set(windows[:, 0].tolist()) == set(range(7))


def test_texts_of_ids_join_to_the_text_that_was_read():
    """Of a letter of several ids the last has it; spaces that words begin with stay."""
    text = "né 世\n界 x"
    alphabet = {letter: n for n, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    of_bytes = Tokenizer(BPE(alphabet, []))
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    of_bytes.decoder = decoders.ByteLevel()  # pyright: ignore
    for tokenizer, ids in ((None, text.encode()), (of_bytes, of_bytes.encode(text).ids)):
        texts = texts_of_ids(jnp.asarray(list(ids)), tokenizer)
        assert texts == ["n", "", "é", " ", "", "", "世", "\n", "", "", "界", " ", "x"]
    of_words = Tokenizer(WordLevel({"▁the": 0, "▁cat": 1, "s": 2}))
    of_words.decoder = decoders.Metaspace()  # pyright: ignore
    assert texts_of_ids(jnp.array([0, 1, 2, 0]), of_words) == ["the", " cat", "s", " the"]
    of_words.add_special_tokens(["<end>"])  # a control token is shown as it is spelt
    texts = texts_of_ids(jnp.array([3, 0, 3]), of_words)
    assert [one.strip() for one in texts] == ["<end>", "the", "<end>"]


def test_ids_without_a_tokenizer_are_bytes():
    with pytest.raises(ValueError, match=r"ids: got \[-1, 256\], expected bytes, 0 to 255"):
        texts_of_ids(jnp.array([3, 256, -1]))
