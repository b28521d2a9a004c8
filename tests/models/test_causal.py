"""Checkpoints from a folder: their logits and their whole ledger, against NumPy written apart."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import publishers
from reference.publishers import CONFIGS, PLACES, WORDS, write
from scipy.special import log_softmax

import lim_jax as lim
from lim_jax import models
from lim_jax.adjoint.hops import attention_hops
from lim_jax.adjoint.ledger import channels
from lim_jax.loss import last_token, teacher_forcing

TOKENS = np.array([3, 1, 4, 1, 5, 9, 2])
IDS = jax.device_put(TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("gpt2"), CONFIGS["gpt2"])


@pytest.fixture(scope="module")
def model(folder):
    return models.load(folder, dtype="float64")


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_gives_its_publishers_logits_and_an_exact_ledger(tmp_path, name):
    """Channels and hops sum to the gradient, which central differences know."""
    model = models.load(write(tmp_path, CONFIGS[name]), dtype="float64")
    grid, weights, targets = lim.token_grid(7), teacher_forcing(7), jnp.roll(IDS, -1)

    @eqx.filter_jit
    def measured(model, moved):
        x = model.embed(IDS)
        terminal_loss = lambda state, y: model.terminal_loss(state, y, weights)  # noqa: E731
        found = channels(model.flow, terminal_loss, (x, targets), grid)
        hops = attention_hops(model.flow, terminal_loss, (x, targets), grid, 2)[0]
        losses = [model.loss(x + step * moved, targets, weights) for step in (1e-5, -1e-5)]
        return model.logits(IDS), found.vectors.sum(axis=0), hops.sum(axis=0), losses

    moved = np.random.default_rng(1).standard_normal((7, publishers.WIDTH))
    found = jax.tree.map(np.asarray, measured(model, jax.device_put(moved)))
    logits, adjoint, hops, (up, down) = found
    np.testing.assert_allclose(logits, publishers.logits(CONFIGS[name], TOKENS), rtol=1e-11)
    np.testing.assert_allclose(hops, adjoint, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose((up - down) / 2e-5, (adjoint * moved).sum() / 7, rtol=1e-6)


@pytest.mark.parametrize("name", ["gpt_neox", "qwen3"])
def test_rotary_networks_take_contexts_of_any_length(tmp_path, name):
    model = models.load(write(tmp_path, CONFIGS[name]), dtype="float64")
    logits = eqx.filter_jit(lambda model, ids: model.logits(ids))
    long, short = (np.asarray(logits(model, IDS[:length])) for length in (7, 4))
    np.testing.assert_allclose(short, long[:4], rtol=1e-11)  # causal, and turned alike


def test_losses_are_the_publishers(model):
    expected = publishers.logits(CONFIGS["gpt2"], TOKENS)
    targets = jax.device_put(np.append(TOKENS[1:], -1))
    weights = teacher_forcing(7, continuation=False)
    surprise = -log_softmax(expected, axis=1)[np.arange(6), TOKENS[1:]]
    loss = eqx.filter_jit(lambda model: model.loss_of_ids(IDS, targets, weights))(model)
    np.testing.assert_allclose(loss, surprise.mean(), rtol=1e-12)


def test_the_gradient_of_a_loss_of_ids_reaches_the_embeddings(model):
    weights = last_token(7)

    @eqx.filter_jit
    def gradient(model):
        return eqx.filter_grad(lambda model: model.loss_of_ids(IDS, IDS, weights))(model)

    found = gradient(model)
    rows = np.abs(np.asarray(found.embedding)).max(axis=1) > 1e-6
    assert rows.all()  # the head reads all words
    moved = np.abs(np.asarray(found.positions)).max(axis=1) > 1e-6
    np.testing.assert_array_equal(moved, np.arange(PLACES) < 7)


def test_influence_of_a_checkpoint_is_the_square_of_its_adjoint(model):
    grid, weights, targets = lim.token_grid(7), teacher_forcing(7), jnp.roll(IDS, -1)

    @eqx.filter_jit
    def measured(model):
        x = model.embed(IDS)
        loss = lambda s, y: model.terminal_loss(s, y, weights)  # noqa: E731
        found = channels(model.flow, loss, (x, targets), grid)
        batch = x[None], targets[None]
        influence = lim.influence(lambda m, x, y: m.loss(x, y, weights), model, batch, grid)
        return found.vectors.sum(axis=0), influence.energy

    total, energy = map(np.asarray, measured(model))
    np.testing.assert_allclose(energy, (total**2).sum(axis=1), rtol=1e-10)


def test_weights_come_back_as_they_were(folder, model, tmp_path):
    single = models.load(folder)
    assert single.embedding.dtype == jnp.float32 and single.head is None
    tensors = publishers.tensors(CONFIGS["gpt2"])
    np.testing.assert_array_equal(single.embedding, tensors["wte.weight"])
    prefixed = {f"transformer.{name}": array for name, array in tensors.items()}
    prefixed["lm_head.weight"] = prefixed["transformer.wte.weight"]
    prefixed["transformer.h.0.attn.bias"] = np.ones((1, 1, 8, 8), np.float32)
    other = models.load(write(tmp_path, CONFIGS["gpt2"], prefixed), dtype="float64")
    for left, right in zip(jax.tree.leaves(other), jax.tree.leaves(model), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    "name, config, message",
    [
        ("gpt2", {"model_type": "mamba"}, "model_type = 'mamba', expected gpt2 or"),
        ("gpt2", {"activation_function": "swiglu"}, "activation_function = 'swiglu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx = True"),
        ("gpt2", {"n_head": 5}, "5 heads at width 16"),
        ("gpt2", {"n_layer": 0}, "n_layer = 0, expected a positive whole number"),
        ("gpt2", {"n_layer": 3}, "no h.2"),
        ("gpt2", {"n_layer": 1}, "h.1.*, which the family does not have"),
        ("gpt2", {"vocab_size": 12}, r"wte.weight: got shape \(11, 16\), expected \(12, 16\)"),
        ("gpt2", {"layer_norm_epsilon": None}, "layer_norm_epsilon = None"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type = 'yarn'"),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, "factor = None"),
        ("llama", {"num_key_value_heads": 3}, "k_proj.weight: got shape"),
        ("llama, tied and biased", {"model_type": "mistral"}, "which the family does not have"),
        ("mistral", {"sliding_window": 0}, "sliding_window = 0, expected a positive"),
        ("qwen2", {"max_window_layers": 1}, "layer_types = .'full_attention', 'sliding_att"),
        ("qwen2", {"sliding_window": None}, "sliding_window = None, expected a positive"),
        ("qwen3", {"layer_types": ["sliding_attention", "full_attention"]}, "sliding_attention"),
        ("qwen3", {"model_type": "qwen2"}, "no model.layers.0.self_attn.q_proj.bias"),
        ("gpt_neox", {"hidden_act": "mish"}, "hidden_act = 'mish'"),
        ("gpt_neox", {"attention_bias": False}, "attention_bias = False"),
    ],
)
def test_options_that_are_not_known_are_refused(tmp_path, name, config, message):
    arrays = publishers.tensors(CONFIGS[name])
    with pytest.raises(ValueError, match=message):
        models.load(write(tmp_path, CONFIGS[name] | config, arrays))


def test_ids_outside_vocabulary_and_places_are_refused(model):
    embed = eqx.filter_jit(lambda ids: model.embed(ids))
    with pytest.raises(
        eqx.EquinoxRuntimeError, match=f"ids: expected numbers from 0 to {WORDS - 1}"
    ):
        jax.block_until_ready(embed(jnp.array([1, 11])))
    with pytest.raises(ValueError, match="at most 8, the places"):
        embed(jnp.zeros(9, int))
