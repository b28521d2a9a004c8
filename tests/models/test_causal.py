"""Checkpoints from a folder: their logits and their whole ledger, against NumPy written apart."""

import tracemalloc
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import publishers
from reference.as_users import temporary_bytes
from reference.networks import byte_network
from reference.publishers import CONFIGS, PLACES, WORDS, write
from scipy.special import log_softmax

import lim_jax as lim
from lim_jax import models
from lim_jax.adjoint.hops import attention_hops
from lim_jax.adjoint.ledger import channels
from lim_jax.checkpoints import checkpoint, placement
from lim_jax.density import LossOfIds
from lim_jax.grid import segment_starts
from lim_jax.loss import last_token, teacher_forcing
from lim_jax.models import Targets
from lim_jax.models.padding import padded_size

TOKENS = np.array([3, 1, 4, 1, 5, 9, 2])
IDS = jax.device_put(TOKENS)
WINDOW = jax.device_put(np.append(TOKENS, 6))
loss_of_ids = LossOfIds(models.CausalLM.embed, models.CausalLM.loss)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("gpt2"), CONFIGS["gpt2"])


@pytest.fixture(scope="module")
def model(folder):
    return models.load(folder, dtype="float64")


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox, serial", "llama, linear"])
def test_networks_give_their_publishers_logits(tmp_path, name):
    """By NumPy; `test_families` has every family beside transformers."""
    model = models.load(write(tmp_path, CONFIGS[name]), dtype="float64")
    logits = eqx.filter_jit(lambda model: model.logits(IDS))(model)
    np.testing.assert_allclose(logits, publishers.logits(CONFIGS[name], TOKENS), rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_neox", "qwen3"])
def test_loaded_networks_have_an_exact_ledger(tmp_path, name):
    """Channels and hops sum to the gradient, which central differences know.

    Blocks in parallel and one after the other; `test_hops` has every architecture. Influence is its
    square.
    """
    model = models.load(write(tmp_path, CONFIGS[name]), dtype="float64")
    grid = lim.token_grid(7)

    def measured(model, moved):
        x, y = model.example(WINDOW, teacher_forcing(7))
        ledger = channels(model.flow, model.terminal_loss, (x, y), grid)
        hops = attention_hops(model.flow, model.terminal_loss, (x, y), grid, 2)[0]
        losses = jax.vmap(lambda step: model.loss(x + step * moved, y))(jnp.array([1e-5, -1e-5]))
        batch = jax.tree.map(lambda leaf: leaf[None], (x, y))
        energy = lim.influence(models.CausalLM.loss, model, batch, grid).energy
        return ledger.vectors.sum(axis=0), hops.sum(axis=0), losses, energy

    moved = np.random.default_rng(1).standard_normal((7, publishers.WIDTH))
    found = eqx.filter_jit(measured)(model, jax.device_put(moved))
    adjoint, hops, (up, down), energy = found
    np.testing.assert_allclose(hops, adjoint, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose((up - down) / 2e-5, (adjoint * moved).sum() / 7, rtol=1e-6)
    np.testing.assert_allclose(energy, (adjoint**2).sum(axis=1), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_neox", "qwen3"])
def test_rotary_networks_take_contexts_of_any_length(tmp_path, name):
    model = models.load(write(tmp_path, CONFIGS[name]), dtype="float64")
    logits = eqx.filter_jit(lambda model, ids: model.logits(ids))
    long, short = (np.asarray(logits(model, IDS[:length])) for length in (7, 4))
    np.testing.assert_allclose(short, long[:4], rtol=1e-11)  # causal, and turned alike


def test_losses_are_the_publishers(model):
    expected = publishers.logits(CONFIGS["gpt2"], TOKENS)
    targets = jax.device_put(np.append(TOKENS[1:], -1))
    y = Targets(targets, teacher_forcing(7, continuation=False))
    surprise = -log_softmax(expected, axis=1)[np.arange(6), TOKENS[1:]]
    loss = eqx.filter_jit(lambda model: loss_of_ids(model, IDS, y))(model)
    np.testing.assert_allclose(loss, surprise.mean(), rtol=1e-12)


@pytest.mark.slow
def test_the_gradient_of_a_loss_of_ids_reaches_the_embeddings(model):
    y = Targets(IDS, last_token(7))

    @eqx.filter_jit
    def gradient(model):
        return eqx.filter_grad(lambda model: loss_of_ids(model, IDS, y))(model)

    gradients = gradient(model)
    rows = np.abs(np.asarray(gradients.embedding)).max(axis=1) > 1e-6
    assert rows.all()  # the head reads all words
    moved = np.abs(np.asarray(gradients.positions)).max(axis=1) > 1e-6
    np.testing.assert_array_equal(moved, np.arange(PLACES) < 7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_places_that_are_asked_give_the_numbers_of_all_places(tmp_path, name):
    """Values, and gradients in states and parameters; two examples, each with its own places."""
    model = models.load(write(tmp_path, CONFIGS[name]), dtype="float64")
    rng = np.random.default_rng(3)
    places = np.array([[5, 2], [6, 0]])
    weights = np.array([[0.3, 0.7], [0.9, 0.1]])
    targets = rng.integers(WORDS, size=(2, 7))
    states = rng.standard_normal((2, 7, publishers.WIDTH))
    everywhere = np.zeros((2, 7))
    np.put_along_axis(everywhere, places, weights, axis=1)
    dense = Targets(*map(jax.device_put, (targets, everywhere)))
    of_places = np.take_along_axis(targets, places, axis=1), weights, places
    few = Targets(*map(jax.device_put, of_places))

    def measured(model, states, y):
        def risk(kind):
            ask = eqx.filter_value_and_grad(lambda at: kind(at[0], at[1], at[2]))
            return jax.vmap(lambda state, y: ask((model, state, y)))(states, y)

        losses = models.CausalLM.loss, models.CausalLM.margin_loss
        return [risk(loss.terminal) for loss in losses]

    states = jax.device_put(states)
    found, expected = (eqx.filter_jit(measured)(model, states, y) for y in (few, dense))
    for (values, (in_model, in_state, _)), (all_values, (in_all, in_states, _)) in zip(
        found, expected, strict=True
    ):
        np.testing.assert_allclose(values, all_values, rtol=1e-13)
        np.testing.assert_allclose(in_state, in_states, rtol=1e-11, atol=1e-15)
        for left, right in zip(jax.tree.leaves(in_model), jax.tree.leaves(in_all), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-11, atol=1e-14)
    # Of the logits at those places.
    read_out = eqx.filter_jit(jax.vmap(lambda s: model.readout(s, lim.token_grid(7))))
    logits = np.asarray(read_out(states))
    rows = log_softmax(np.take_along_axis(logits, places[:, :, None], axis=1), axis=2)
    answers = np.take_along_axis(targets, places, axis=1)[:, :, None]
    likely = np.take_along_axis(rows, answers, axis=2)[:, :, 0]
    (values, _), (margins, _) = found
    np.testing.assert_allclose(values, -(weights * likely).sum(axis=1), rtol=1e-12)
    odds = likely - np.log1p(-np.exp(likely))
    np.testing.assert_allclose(margins, -(weights * odds).sum(axis=1), rtol=1e-11)


def test_the_head_reads_no_other_places():
    """At 49,152 words one place takes no logits of 512: the compiled program's own memory."""
    model = byte_network(512, heads=1)
    y = Targets(*map(jax.device_put, (np.array([40_000]), np.array([1.0]), np.array([511]))))

    @jax.jit
    @jax.value_and_grad
    def loss(head, state):
        return eqx.tree_at(lambda m: m.head, model, head).terminal_loss(state, y)

    head, state = jax.device_put((np.zeros((49_152, 4)), np.zeros((512, 4))))
    assert temporary_bytes(loss.trace(head, state)) < 8 * 16 * 49_152


def test_queries_that_do_not_fit_are_refused(model, as_users_run):
    state, one = jax.device_put((np.zeros((7, publishers.WIDTH)), np.ones(1)))
    first = jax.device_put(TOKENS[:1])
    loss = eqx.filter_jit(models.CausalLM.terminal_loss)
    for place in (7, -1):
        with pytest.raises(
            eqx.EquinoxRuntimeError, match="positions: got .*expected numbers from 0 to 6"
        ):
            jax.block_until_ready(
                loss(model, state, Targets(first, one, jax.device_put(np.array([place]))))
            )
    with pytest.raises(
        ValueError, match="y: got an array of int64.*expected an instance of Targets"
    ):
        loss(model, state, IDS)
    with pytest.raises(eqx.EquinoxRuntimeError, match="weights that sum to one"):
        some = Targets(IDS[:2], teacher_forcing(7)[:2], jax.device_put(np.array([1, 2])))
        jax.block_until_ready(loss(model, state, some))


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


@pytest.mark.slow
def test_loading_holds_little_more_than_the_weights_and_jax_takes_them_over(tmp_path, monkeypatch):
    """Half a million of them: embedding and head are half, and a layer is a twentieth."""
    sizes = {"WORDS": 2000, "WIDTH": 64, "HIDDEN": 64, "DEPTH": 12}
    for name, size in sizes.items():
        monkeypatch.setattr(publishers, name, size)
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    config = CONFIGS["llama"] | dict(zip(names, sizes.values(), strict=True))
    models.load(write(tmp_path, config))  # once before, so that all else that it takes is there
    monkeypatch.setattr(checkpoint, "NUMBERS_AT_ONCE", 10_000)
    monkeypatch.setattr(placement, "ROWS_AT_ONCE", 160)

    def traced(_, size, **__):  # memory that is counted, aligned as a page is
        memory = np.empty(size + 64, np.uint8)
        return memory[-memory.ctypes.data % 64 :]

    monkeypatch.setattr(checkpoint, "mmap", traced)

    def loaded():
        tracemalloc.start()
        model = models.load(tmp_path)
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak, held, model

    # Once in three: what else the process takes meanwhile is not the load's.
    peak, held, model = loaded()
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(model))
    for _ in range(2):
        if peak >= 1.2 * weights:
            peak, held, model = loaded()
    assert 0.95 * weights < held  # of NumPy's memory, which JAX has not copied
    assert peak < 1.2 * weights
    expected = publishers.tensors(config)["lm_head.weight"]
    np.testing.assert_array_equal(model.head, expected)  # read in thirteen parts


@pytest.mark.parametrize(
    "name, config, message",
    [
        ("gpt2", {"model_type": "bert"}, "model_type = 'bert', expected one of the"),
        ("gpt2", {"activation_function": "swiglu"}, "activation_function = 'swiglu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx = True"),
        ("gpt2", {"n_head": 5}, "5 heads at width 16"),
        ("gpt2", {"n_layer": 0}, "n_layer = 0, expected a positive whole number"),
        ("gpt2", {"n_layer": 3}, "no h.2"),
        (
            "llama",
            {"architectures": ["LlamaForSequenceClassification"]},
            "LlamaForSequenceClassification, which gives no logits over words, expected a lang",
        ),
        (
            "qwen2",
            {"architectures": ["Qwen2ForTokenClassification"]},
            "Qwen2ForTokenClassification, which gives no logits",
        ),
        ("gpt2", {"n_layer": 1}, "h.1.*, which the family does not have"),
        ("gpt2", {"vocab_size": 12}, r"wte.weight: got shape \(11, 16\), expected \(12, 16\)"),
        ("gpt2", {"layer_norm_epsilon": None}, "layer_norm_epsilon = None"),
        ("llama", {"rope_scaling": {"rope_type": "xpos", "factor": 2.0}}, "rope_type = 'xpos'"),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, "factor = None"),
        ("llama", {"num_key_value_heads": 3}, "k_proj.weight: got shape"),
        (
            "llama, tied and biased",
            {"model_type": "mistral"},
            "attention_bias = True, expected False",
        ),
        (
            "llama",
            {"embedding_multiplier": 12.0},
            "embedding_multiplier = 12.0, expected 1.0",
        ),
        (
            "llama",
            {"quantization_config": {"bits": 4}},
            "quantization_config of quant_method = None",
        ),
        ("llama", {"is_causal": False}, "is_causal = False, expected True"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved = True, expected False"),
        (
            "llama",
            {"architectures": ["GraniteForCausalLM"]},
            "GraniteForCausalLM with model_type = l",
        ),
        (
            "qwen2",
            {"architectures": ["Qwen2MoeForCausalLM"]},
            "Qwen2MoeForCausalLM with model_type",
        ),
        ("llama", {"rope_scaling": [2.0]}, "rope_scaling = list, expected an object"),
        ("llama", {"rope_scaling": {"factor": 4.0}}, "factor = 4.0 of a default scaling"),
        (
            "llama",
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor = 0.5",
        ),
        (
            "llama",
            {
                "rope_parameters": {"rope_theta": 9.0},
                "rope_scaling": {"type": "linear", "factor": 2},
            },
            "rope_theta = 9.0 in rope_parameters, None with rope_scaling",
        ),
        ("mistral", {"layer_types": ["full_attention"]}, "layer_types = 1 of .'full_attention'"),
        ("mistral", {"layer_types": ["full_attention", "linear_attention"]}, "'linear_attention'"),
        ("mistral", {"sliding_window": 0}, "sliding_window = 0, expected a positive"),
        (
            "qwen2",
            {"sliding_window": None, "layer_types": 2 * ["sliding_attention"]},
            "sliding_window = None, expected a positive",
        ),
        ("qwen3", {"model_type": "qwen2"}, "no model.layers.0.self_attn.q_proj.bias"),
        ("gpt_neox", {"hidden_act": "mish"}, "hidden_act = 'mish'"),
        ("gpt_neox", {"attention_bias": False}, "attention_bias = False"),
    ],
)
def test_options_that_are_not_known_are_refused(tmp_path, name, config, message):
    arrays = publishers.tensors(CONFIGS[name])
    with pytest.raises(ValueError, match=message):
        models.load(write(tmp_path, CONFIGS[name] | config, arrays))


def test_a_model_without_a_head_is_said_to_have_none(tmp_path):
    """As one of embeddings: nothing is wrong with its download."""
    arrays = publishers.tensors(CONFIGS["llama"])
    del arrays["lm_head.weight"]
    folder = write(tmp_path, CONFIGS["llama"] | {"architectures": ["LlamaModel"]}, arrays)
    with pytest.raises(
        ValueError,
        match="no lm_head.weight, expected a head .*embeddings or a cl.*state tie_word_embeddings",
    ):
        models.load(folder)


SCALED = {"rope_type": "linear", "factor": 4.0, "rope_theta": 9.0}
OTHER_HEAD = {"lm_head.weight": np.linspace(-1, 1, 11 * 16).reshape(11, 16).astype(np.float32)}
AS_PUBLISHED = {
    "a scaling beside other parameters": (
        "llama", {"rope_parameters": {"rope_theta": 9.0}, "rope_scaling": SCALED}, {},
    ),
    "tied, with a head of its own": ("llama, tied and biased", {}, OTHER_HEAD),
    "tied, with the embedding again": ("llama, tied and biased", {}, "model.embed_tokens.weight"),
    "untied GPT-2": ("gpt2", {"tie_word_embeddings": False}, OTHER_HEAD),
    "tied GPT-NeoX": ("gpt_neox", {"tie_word_embeddings": True, "hidden_act": "gelu_fast"}, None),
    "whole windows": ("mistral", {"sliding_window": None, "max_position_embeddings": 7}, {}),
    "layers that differ": ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, {}),
    "windows from a layer on": ("qwen2", {"max_window_layers": 1}, {}),
    "windows of no width": ("qwen2", {"sliding_window": None}, {}),
    "products in parts": ("llama", {"pretraining_tp": 2, "architectures": ["LlamaModel"]}, {}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name, changed, more", AS_PUBLISHED.values(), ids=AS_PUBLISHED)
def test_options_are_read_as_the_publishers_do(tmp_path, name, changed, more):
    config = CONFIGS[name] | changed
    arrays = publishers.tensors(CONFIGS[name])
    if more is None:
        del arrays["embed_out.weight"]
    else:
        arrays |= {"lm_head.weight": arrays[more]} if isinstance(more, str) else more
    model = models.load(write(tmp_path, config, arrays), dtype="float64")
    logits = eqx.filter_jit(lambda model: model.logits(IDS))(model)
    np.testing.assert_allclose(logits, publishers.logits(config, TOKENS, arrays), rtol=1e-11)
    assert (model.head is None) is (more is None or isinstance(more, str))


def test_windows_are_4096_tokens_wide_where_nothing_is_said(tmp_path):
    config = {k: v for k, v in CONFIGS["mistral"].items() if k != "sliding_window"}
    loaded = models.load(write(tmp_path, config, publishers.tensors(CONFIGS["mistral"])))
    assert loaded.flow.layers.attention.mask.window == 4096


def test_qwens_windows_begin_where_nothing_is_said_at_layer_28(tmp_path):
    """As the publisher's own default, so that a network of two layers has none."""
    config = {k: v for k, v in CONFIGS["qwen2"].items() if k != "max_window_layers"}
    loaded = models.load(write(tmp_path, config, publishers.tensors(CONFIGS["qwen2"])))
    assert loaded.flow.layers.attention.mask.window is None


@pytest.mark.usefixtures("as_users_run")
def test_a_position_out_of_range_is_told_from_what_to_count(model):
    """And not to take the ids of the tokenizer, as an id is."""
    x = model.embed(IDS)
    y = Targets(IDS[:1], jnp.ones(1), jnp.array([7]))
    message = "positions: got a number above 6, .* Count the context's places from 0"
    with pytest.raises(Exception, match=message):
        model.loss(x, y)


def test_ids_outside_vocabulary_and_places_are_refused(model):
    embed = eqx.filter_jit(lambda ids: model.embed(ids))
    with pytest.raises(
        eqx.EquinoxRuntimeError, match=f"ids: got .*expected numbers from 0 to {WORDS - 1}"
    ):
        jax.block_until_ready(embed(jnp.array([1, 11])))
    with pytest.raises(ValueError, match="at most 8, the places"):
        embed(jnp.zeros(9, int))
    indexed = replace(model, positions=None, longest=(8, "its own limit"))
    assert indexed.embed(jnp.zeros(8, int)).shape[0] == 8
    with pytest.raises(ValueError, match="at most 8, its own limit"):
        indexed.embed(jnp.zeros(9, int))
    with pytest.raises(ValueError, match="of 11 ids, expected at most 9: a context has .* 8, its"):
        models.answer(indexed, jnp.zeros(8, int), tokens=3)
    assert padded_size(indexed, 7) == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, of_loss", [("gpt2", lambda of: of), ("mistral", eqx.filter_value_and_grad)]
)
def test_packed_contexts_have_the_logits_and_losses_of_contexts_alone(tmp_path, name, of_loss):
    """Learned places and turns: logits, losses, and of turns the gradient of all parameters."""
    model = models.load(write(tmp_path, CONFIGS[name]), dtype="float64")
    ids = np.concatenate([TOKENS, TOKENS[2:6]])

    def measured(model, ids, targets, contexts):
        weights = jnp.concatenate([0.25 * teacher_forcing(7), 0.75 * last_token(4)])
        packed = models.Targets(targets, weights, starts=segment_starts(contexts))
        alone = [
            (ids[:7], models.Targets(targets[:7], teacher_forcing(7))),
            (ids[7:], models.Targets(targets[7:], last_token(4))),
        ]
        one = of_loss(lambda model: loss_of_ids(model, ids, packed))(model)
        apart = of_loss(
            lambda model: sum(
                s * loss_of_ids(model, *x) for s, x in zip((0.25, 0.75), alone, strict=True)
            )
        )(model)
        return one, apart, model.logits(ids, packed)

    inputs = jax.device_put((ids, np.roll(ids, -1), np.repeat([0, 1], [7, 4])))
    *losses, logits = eqx.filter_jit(measured)(model, *inputs)
    for ours, theirs in zip(*map(jax.tree.leaves, losses), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    expected = [publishers.logits(CONFIGS[name], row) for row in (ids[:7], ids[7:])]
    np.testing.assert_allclose(logits, np.concatenate(expected), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("learned", [True, False])
def test_a_packed_context_longer_than_the_limit_is_refused(model, learned):
    if not learned:
        model = replace(model, positions=None, longest=(8, "its own limit"))
    ids = jnp.zeros(12, int)
    starts = jnp.asarray([0, 0, 0, 0, *[4] * 8])
    y = models.Targets(ids, teacher_forcing(12), starts=starts)
    embed = eqx.filter_jit(lambda model, y: model.embed(ids, y))
    jax.block_until_ready(embed(model, y))
    y = y._replace(starts=starts.at[3:].set(3))
    with pytest.raises(
        Exception, match="ids: got a longer context, expected at most 8 ids in each, "
    ):
        jax.block_until_ready(embed(model, y))


def test_starts_of_few_bits_count_many_places():
    model = byte_network(200)
    y = models.Targets(jnp.zeros(200, int), teacher_forcing(200), starts=jnp.zeros(200, jnp.int8))
    expected = model.embedding[:1] + model.positions
    np.testing.assert_allclose(model.embed(y.targets, y), expected, rtol=1e-15)


@pytest.mark.parametrize(("dtype", "words"), [("uint8", 300), ("uint8", 257), ("uint16", 65_540)])
def test_ids_of_few_bits_are_ids_of_a_larger_vocabulary(dtype, words):
    """As data sets keep them: the last word's number does not fit these bits, and theirs do."""
    model = byte_network(16)
    embedding = jnp.zeros((words, 4)).at[7].set(1.0)
    model = replace(model, embedding=embedding, head=None, positions=None)
    states = model.embed(jnp.array([7, 200], dtype))
    assert states[:, 0].tolist() == [1.0, 0.0]
