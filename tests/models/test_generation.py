"""A model's own answer: each id the likeliest by the logits of the whole context before it."""

import json
import runpy
from functools import cache, partial

import equinox as eqx
import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.as_users import ROOT
from reference.compilations import compilations
from reference.networks import randomised

from lim_jax import models
from lim_jax.checkpoints.gguf_header import read_header
from lim_jax.checkpoints.text import end_ids
from lim_jax.grid import token_grid
from lim_jax.models import generation
from lim_jax.models.generation import extend_logits, prefill_logits
from lim_jax.network import ResidualFlow, TransformerField, causal_attention, euler, heun, split
from lim_jax.network.kv_cache import has_kv_cache

RECORD = json.loads((ROOT / "tests" / "checkpoints" / "recorded.json").read_text(encoding="utf-8"))
WRITE = runpy.run_path(str(ROOT / "benchmarks" / "random_weights.py"))["write"]
IDS = np.array(RECORD["ids"])
KNOWN = 7  # logits are recorded after the seventh and the last
# Learned places; layers that see differently, experts and sinks; latent vectors; linear biases;
# chunks and tempered queries; norms after turns.
NETWORKS = (
    "gpt2", "gpt_oss", "deepseek_v3", "bloom, three heads", "llama4_text", "hunyuan_v1_dense"
)  # fmt: skip


def model_of(name, folder, **options):
    network = RECORD["networks"][name]
    return models.load(WRITE(folder, network["config"], network["shapes"]), **options)


@partial(jax.jit, static_argnums=2)
def logits_by_kept(model, ids, rows=1):
    """Logits after the first `KNOWN` ids, and each `rows` more, by what is kept of others.

    The last ones are filled up with an id that is none of the context's.
    """
    more = len(ids) - KNOWN
    filled = jnp.pad(ids, (0, -more % rows), constant_values=1)
    grid = token_grid(len(filled), model.embedding.dtype)
    first, kept = prefill_logits(model, filled, jnp.array(KNOWN))

    def one(kept, place):
        following = jax.lax.dynamic_slice_in_dim(filled, place, rows)
        count = jnp.minimum(rows, len(ids) - place)
        logits, kept = extend_logits(model, following, count, place, kept, grid)
        return kept, logits

    _, others = jax.lax.scan(one, kept, jnp.arange(KNOWN, len(ids), rows))
    return jnp.concatenate([first[None], others])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3], ids=["one by one", "three at once"])
@pytest.mark.parametrize("name", NETWORKS)
def test_with_keys_and_values_kept_logits_are_those_of_the_whole_context(name, rows, tmp_path):
    """As transformers has them, in the midst and at the end; `test_families` has all logits."""
    model = model_of(name, tmp_path, dtype="float64")
    assert has_kv_cache(model.flow)
    logits = np.asarray(logits_by_kept(model, jnp.asarray(IDS), rows))
    network = RECORD["networks"][name]
    _, first, last = RECORD["places"]
    assert (first, last) == (KNOWN - 1, len(IDS) - 1)
    asked = logits[[0, -1]][:, RECORD["words"]]
    expected = np.array(network["logits"])[1:]
    np.testing.assert_allclose(asked, expected, rtol=0, atol=1e-12 * network["largest"])


@pytest.mark.slow
@pytest.mark.parametrize("held", ["kept", "opened"])
def test_logits_by_kept_keys_and_values_are_the_same_of_weights_that_are_fetched(held, tmp_path):
    model = model_of("gemma2", tmp_path, storage_dtype="bfloat16")
    model = models.open(tmp_path) if held == "opened" else model
    expected = eqx.filter_jit(models.CausalLM.logits)(model, jnp.asarray(IDS))[KNOWN - 1 :]
    logits = logits_by_kept(model, IDS)
    assert logits.dtype == "float32"
    bound = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=bound)


def assert_likeliest(model, ids, answered):
    """Of the context and what was answered, each id by the logits after those before it."""
    row = np.concatenate([ids, answered])
    logits = cache(
        lambda length: eqx.filter_jit(models.CausalLM.logits)(model, jnp.asarray(row[:length]))
    )
    for length in range(len(ids), len(row)):
        alike = [most for most in range(length, len(row)) if model.same_rope(length, most)]
        assert row[length] == np.argmax(logits(max(alike))[length - 1])


def stretched(folder):
    """Contexts of 11 ids and more turn otherwise than shorter ones, all alike."""
    network = RECORD["networks"]["phi3, long"]
    trained = {"original_max_position_embeddings": 10}
    config = network["config"] | trained
    config["rope_parameters"] = network["config"]["rope_parameters"] | trained
    return models.load(WRITE(folder, config, network["shapes"]), dtype="float64")


OTHERS = {
    "learned places": lambda folder: model_of("gpt2", folder, dtype="float64"),
    "one other turn": stretched,
    "turns of each length": lambda folder: model_of("llama, dynamic", folder, dtype="float64"),
    "another step": lambda folder: with_step(model_of("gpt2", folder, dtype="float64"), heun),
}


def with_step(model, step):
    flow = ResidualFlow(model.flow.layers, model.flow.horizon, step=step)
    return eqx.tree_at(lambda model: model.flow, model, flow)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_each_id_is_the_likeliest_after_all_before_it(name, tmp_path):
    model = OTHERS[name](tmp_path)
    tokens = 4 if name == "turns of each length" else 8  # each compiles a program, and a logit's
    answered = models.answer(model, IDS[:5], tokens=tokens)
    assert answered.shape == (tokens,) and answered.dtype == "int32"
    assert_likeliest(model, IDS[:5], answered)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return model_of("gpt2", tmp_path_factory.mktemp("gpt2"))


@pytest.mark.slow
def test_an_end_is_the_answers_last_id(tmp_path):
    model = model_of("llama", tmp_path)
    whole = models.answer(model, IDS[:5], tokens=8).tolist()
    end = next(one for one in whole if one != whole[0])
    ids = models.answer(model, IDS[:5], tokens=8, end=(36, end)).tolist()
    assert ids == whole[: whole.index(end) + 1] and 1 < len(ids) < 8
    # The first one may be an end; those of the context say nothing.
    assert (
        models.answer(model, IDS[:5], tokens=8, end=[whole[0], *IDS[:5].tolist()]).tolist()
        == whole[:1]
    )


@pytest.mark.slow
def test_one_program_serves_a_padded_length(model):
    models.answer(model, IDS[:6], tokens=2)
    others = jax.device_put(IDS[:9])
    with compilations() as programs:
        models.answer(model, others, tokens=7)
    assert programs == []
    # Of 64 places all are used, the last by no id: what follows it stands nowhere.
    full = np.resize(IDS, 60)
    assert models.answer(model, full, tokens=5).shape == (5,)


def test_another_padding_gives_the_same_answer(model, monkeypatch):
    """A context of 5 ids and an answer of 4 are padded as 8, since the last id is read by none."""
    read = []
    follow = generation._continue
    monkeypatch.setattr(
        generation, "_continue", lambda *of: read.append(of[1].shape[0] - 1) or follow(*of)
    )
    expected = models.answer(model, IDS[:5], tokens=4)
    asked = []
    padded = models.answer(
        model, IDS[:5], tokens=4, padding=lambda length: asked.append(length) or length + 5
    )
    assert read == [16, 13] and asked == [8]
    np.testing.assert_array_equal(padded, expected)
    with pytest.raises(ValueError, match="padding: got 0"):
        models.answer(model, IDS[:5], tokens=4, padding=lambda length: 0)


def test_ids_that_are_no_context_are_refused(model):
    for ids, message in (
        (np.array([], int), "ids: got none"),
        (np.array([3, 37]), r"ids: got \[37\], expected numbers from 0 to 36"),
        (np.array([-1, 3]), r"ids: got \[-1\]"),
    ):
        with pytest.raises(ValueError, match=message):
            models.answer(model, ids)
    full = np.resize(IDS, 60)
    with pytest.raises(ValueError, match="of 66 ids, expected at most 65: a context has .* 64"):
        models.answer(model, full, tokens=6)
    with pytest.raises(ValueError, match="tokens: got 0"):
        models.answer(model, IDS, tokens=0)
    with pytest.raises(ValueError, match="end: got -1"):
        models.answer(model, IDS, end=(-1,))
    broken = eqx.tree_at(
        lambda model: model.norm.scale, model, replace_fn=lambda one: one * jnp.nan
    )
    with pytest.raises(eqx.EquinoxRuntimeError, match="logits: got NaN"):
        models.answer(broken, IDS, tokens=1)


def test_other_networks_keep_nothing():
    def other(query, key, value, grid):
        return value

    def flow(attend=causal_attention, step=split):
        keys = jax.random.split(jax.random.key(0), 2)
        init = partial(TransformerField.init, 4, heads=2, attend=attend)
        layers = eqx.filter_eval_shape(jax.vmap(lambda key: init(key=key)), keys)
        return ResidualFlow(randomised(layers, 0), step=step)

    assert has_kv_cache(flow()) and has_kv_cache(flow(step=euler))
    assert not has_kv_cache(flow(other)) and not has_kv_cache(flow(step=heun))
    assert has_kv_cache(ResidualFlow(flow().layers.attention))


def test_a_publisher_says_which_ids_end(tmp_path):
    def said(**files):
        for name in ("generation_config", "config"):
            (tmp_path / f"{name}.json").unlink(missing_ok=True)
        for name, options in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(options), encoding="utf-8")
        return end_ids(tmp_path, {})

    assert said(config={"eos_token_id": 7}) == (7,)
    assert said(config={"eos_token_id": 7}, generation_config={"eos_token_id": [9, 7, 9]}) == (9, 7)
    assert said(config={"eos_token_id": [4]}, generation_config={"eos_token_id": None}) == (4,)
    assert said(config={"text_config": {"eos_token_id": 5}}) == (5,)
    assert said(config={}) == ()
    assert said(config={"text_config": None, "eos_token_id": 7}) == (7,)
    for numbers in ([1, [2]], {"a": 1}):
        with pytest.raises(ValueError, match="eos_token_id: got (list|dict), expected a whole num"):
            said(config={"eos_token_id": numbers})
    with pytest.raises(ValueError, match="eos_token_id: got '</s>'"):
        said(config={"eos_token_id": "</s>"})
    with pytest.raises(ValueError, match=r"config.json: got no file config.json"):
        said()


def test_a_file_of_llama_cpp_says_so_too(tmp_path):
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_eos_token_id(3)
    writer.add_eot_token_id(8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    header = read_header(file)[1]
    assert end_ids(file, header) == (3, 8)
    for none in (-1, 2**32 - 1):  # llama.cpp's number of no token
        assert end_ids(file, header | {"tokenizer.ggml.eot_token_id": none}) == (3,)
