"""GPT-2 from a folder: its logits, and the whole ledger, against NumPy written apart."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.special import log_softmax, softmax

import lim_jax as lim
from lim_jax import models
from lim_jax.adjoint.ledger import channels
from lim_jax.loss import last_token, teacher_forcing

WIDTH, HEADS, DEPTH, WORDS, PLACES, HIDDEN = 6, 2, 3, 11, 8, 10
CONFIG = {
    "model_type": "gpt2", "n_embd": WIDTH, "n_head": HEADS, "n_layer": DEPTH, "vocab_size": WORDS,
    "n_positions": PLACES, "n_inner": HIDDEN, "layer_norm_epsilon": 1e-3,
}  # fmt: skip
TOKENS = np.array([3, 1, 4, 1, 5, 9, 2])
IDS = jax.device_put(TOKENS)


def gpt2_tensors() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)

    def normal(*shape):
        return generator.standard_normal(shape).astype(np.float32) / 2

    found = {"wte.weight": normal(WORDS, WIDTH), "wpe.weight": normal(PLACES, WIDTH)}
    shapes = {
        "ln_1.weight": (WIDTH,), "ln_1.bias": (WIDTH,), "attn.c_attn.weight": (WIDTH, 3 * WIDTH),
        "attn.c_attn.bias": (3 * WIDTH,), "attn.c_proj.weight": (WIDTH, WIDTH),
        "attn.c_proj.bias": (WIDTH,), "ln_2.weight": (WIDTH,), "ln_2.bias": (WIDTH,),
        "mlp.c_fc.weight": (WIDTH, HIDDEN), "mlp.c_fc.bias": (HIDDEN,),
        "mlp.c_proj.weight": (HIDDEN, WIDTH), "mlp.c_proj.bias": (WIDTH,),
    }  # fmt: skip
    for layer in range(DEPTH):
        found |= {f"h.{layer}.{name}": normal(*shape) for name, shape in shapes.items()}
    return found | {"ln_f.weight": normal(WIDTH), "ln_f.bias": normal(WIDTH)}


def write(folder, tensors=None, **config):
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    save_file(gpt2_tensors() if tensors is None else tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def model(folder):
    return models.load(folder, dtype="float64")


def normed(x, tensors, name):
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-3)
    return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def gpt2(ids):
    """The network as its publishers write it, token by token and head by head."""
    t = {name: array.astype(float) for name, array in gpt2_tensors().items()}
    x = t["wte.weight"][ids] + t["wpe.weight"][: len(ids)]
    for layer in range(DEPTH):
        at = f"h.{layer}"
        joined = normed(x, t, f"{at}.ln_1") @ t[f"{at}.attn.c_attn.weight"]
        q, k, v = np.split(joined + t[f"{at}.attn.c_attn.bias"], 3, axis=1)
        heads = []
        for one in np.split(np.arange(WIDTH), HEADS):
            scores = q[:, one] @ k[:, one].T / np.sqrt(len(one))
            scores[np.triu_indices(len(ids), 1)] = -np.inf
            heads.append(softmax(scores, axis=1) @ v[:, one])
        x = x + np.hstack(heads) @ t[f"{at}.attn.c_proj.weight"] + t[f"{at}.attn.c_proj.bias"]
        h = normed(x, t, f"{at}.ln_2") @ t[f"{at}.mlp.c_fc.weight"] + t[f"{at}.mlp.c_fc.bias"]
        h = h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = x + h @ t[f"{at}.mlp.c_proj.weight"] + t[f"{at}.mlp.c_proj.bias"]
    return normed(x, t, "ln_f") @ t["wte.weight"].T


def test_logits_and_losses_are_the_publishers(model):
    found = eqx.filter_jit(lambda model, ids: model.logits(ids))(model, IDS)
    expected = gpt2(TOKENS)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
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


def test_the_whole_ledger_of_a_checkpoint(model):
    """Channels sum to the gradient, and influence is its square; differences in two positions."""
    grid, weights, targets = lim.token_grid(7), teacher_forcing(7), jnp.roll(IDS, -1)

    @eqx.filter_jit
    def measured(model):
        x = model.embed(IDS)
        found = channels(model.flow, lambda s: model.terminal_loss(s, targets, weights), x, grid)
        batch = x[None], targets[None]
        influence = lim.influence(lambda m, x, y: m.loss(x, y, weights), model, batch, grid)
        return x, found.vectors.sum(axis=0), influence.energy

    x, total, energy = map(np.asarray, measured(model))
    np.testing.assert_allclose(energy, (total**2).sum(axis=1), rtol=1e-10)
    loss = eqx.filter_jit(lambda model, x: model.loss(x, targets, weights))
    for place, feature in ((0, 2), (5, 1)):
        step = np.zeros_like(x)
        step[place, feature] = 1e-6
        slope = (loss(model, x + step) - loss(model, x - step)) / 2e-6
        np.testing.assert_allclose(7 * slope, total[place, feature], rtol=1e-6)


def test_weights_come_back_as_they_were(folder, model, tmp_path):
    single = models.load(folder)
    assert single.embedding.dtype == jnp.float32 and single.head is None
    np.testing.assert_array_equal(single.embedding, gpt2_tensors()["wte.weight"])
    prefixed = {f"transformer.{name}": array for name, array in gpt2_tensors().items()}
    prefixed["lm_head.weight"] = prefixed["transformer.wte.weight"]
    prefixed["transformer.h.0.attn.bias"] = np.ones((1, 1, 8, 8), np.float32)
    other = models.load(write(tmp_path, prefixed), dtype="float64")
    for left, right in zip(jax.tree.leaves(other), jax.tree.leaves(model), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"model_type": "mamba"}, "model_type = 'mamba', expected gpt2"),
        ({"activation_function": "swiglu"}, "activation_function = 'swiglu'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        ({"n_head": 4}, "4 heads at width 6"),
        ({"n_layer": 0}, "n_layer = 0, expected a positive whole number"),
        ({"n_layer": 4}, "no h.3"),
        ({"n_layer": 2}, "h.2.*, which the family does not have"),
        ({"vocab_size": 12}, r"wte.weight: got shape \(11, 6\), expected \(12, 6\)"),
        ({"layer_norm_epsilon": None}, "layer_norm_epsilon = None"),
    ],
)
def test_options_that_are_not_known_are_refused(tmp_path, config, message):
    with pytest.raises(ValueError, match=message):
        models.load(write(tmp_path, **config))


def test_ids_outside_vocabulary_and_places_are_refused(model):
    embed = eqx.filter_jit(lambda ids: model.embed(ids))
    with pytest.raises(eqx.EquinoxRuntimeError, match="ids: expected numbers from 0 to 10"):
        jax.block_until_ready(embed(jnp.array([1, 11])))
    with pytest.raises(ValueError, match="at most 8, the places"):
        embed(jnp.zeros(9, int))
