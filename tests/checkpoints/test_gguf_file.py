"""Files of llama.cpp: rows of queries and keys, options, and what is broken."""

import equinox as eqx
import gguf
import jax
import numpy as np
import pytest
from reference import publishers
from reference.llama_cpp import CONFIG, write
from reference.publishers import WIDTH

from lim_jax import models
from lim_jax.checkpoints import checkpoint, gguf_file, gguf_header, placement

IDS = np.array([3, 1, 4, 1, 5, 9, 2])


def test_a_file_gives_its_publishers_logits(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "NUMBERS_AT_ONCE", 3 * WIDTH)  # some rows at a time
    model = models.load(write(tmp_path / "model.gguf"), dtype="float64")
    logits = eqx.filter_jit(lambda model, ids: model.logits(ids))(model, jax.device_put(IDS))
    np.testing.assert_allclose(logits, publishers.logits(CONFIG, IDS), rtol=1e-6)  # eps is float32
    opened = models.open(tmp_path / "model.gguf", dtype="float64")
    again = eqx.filter_jit(lambda model, ids: model.logits(ids))(opened, jax.device_put(IDS))
    np.testing.assert_allclose(again, logits, rtol=1e-13)


def test_each_rotary_frequency_is_divided_by_its_own_factor(tmp_path):
    model = models.load(write(tmp_path / "model.gguf", factors=[4.0, 0.5]))
    np.testing.assert_allclose(model.flow.layers.attention.mask.positions.frequencies, [0.25, 0.02])


def test_a_factor_without_a_kind_is_a_linear_scalings(tmp_path):
    model = models.load(write(tmp_path / "model.gguf", rope_scaling_factor=4.0))
    positions = model.flow.layers.attention.mask.positions
    np.testing.assert_allclose(positions.frequencies, [0.25, 0.0025])


def test_quantisation_is_undone_some_rows_at_a_time(tmp_path, monkeypatch):
    """Whole numbers up to 127 in every block of 32 are what Q8_0 holds exactly."""
    numbers = np.random.default_rng(0).integers(-127, 128, (7, 64)).astype(np.float32)
    numbers[:, ::32] = 127
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_feed_forward_length(9)
    writer.add_vocab_size(7)
    writer.add_context_length(8)
    writer.add_layer_norm_rms_eps(1e-5)
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("token_embd.weight", gguf.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    monkeypatch.setattr(checkpoint, "NUMBERS_AT_ONCE", 3 * 64)
    tensor = gguf_file.open_gguf(tmp_path / "model.gguf").read("model.embed_tokens.weight", (7, 64))
    np.testing.assert_array_equal(tensor, numbers)
    # Such numbers stay in their file, where weights are to stay as they are published.
    opened = gguf_file.open_gguf(tmp_path / "model.gguf")
    assert opened.precisions == {"Q8_0"}
    assert placement.published_precision(opened) == placement.MIXED


VALUES = {
    "uint8": 200, "int8": -3, "uint16": 60_000, "int16": -300, "uint32": 2**32 - 1,
    "int32": -(2**31), "float32": 0.5, "uint64": 2**63, "int64": -(2**62), "float64": 1e-300,
    "bool": True, "string": "größe 🦙\n",
}  # fmt: skip


def test_a_header_is_what_the_packages_own_reader_finds(tmp_path):
    file = tmp_path / "model.gguf"
    kind = gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_custom_alignment(4096)
    for name, value in VALUES.items():
        getattr(writer, f"add_{name}")(f"one.{name}", value)
        if not name.endswith(("int32", "int64")) or name == "int32":  # it writes int32 alone
            writer.add_array(f"three.{name}", [value, value, value])
    writer.add_array("words", ["", "a", "größe"])
    for name, array in {
        "vector": np.ones(5, np.float32),
        "half": np.ones((3, 7), np.float16),
        "cube": np.ones((2, 3, 5), np.float32),
    }.items():
        writer.add_tensor(name, array)
    writer.add_tensor("eights", gguf.quantize(np.ones((3, 64), np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors, options = gguf_header.read_header(file)
    reader = gguf.GGUFReader(file)
    known = {name: field.contents() for name, field in reader.fields.items()}
    assert options == {name: value for name, value in known.items() if not name.startswith("GGUF.")}
    assert [*map(type, options.values())] == [type(known[name]) for name in options]
    for tensor, (name, stored) in zip(reader.tensors, tensors.items(), strict=True):
        assert (tensor.name, tensor.tensor_type) == (name, stored.kind)
        assert stored.shape == tuple(reversed(tensor.shape.tolist()))
        assert (tensor.data_offset, tensor.n_bytes) == (stored.offset, np.prod(stored.byte_shape))


def test_a_file_in_several_is_read_by_the_name_of_the_first(tmp_path):
    """As the package's own writer cuts it."""
    whole = write(tmp_path / "model.gguf")
    write(tmp_path / "cut.gguf", split_max_tensors=8)
    first, second, third = (tmp_path / f"cut-0000{k}-of-00003.gguf" for k in (1, 2, 3))
    opened = gguf_file.open_gguf(first)
    assert opened.paths == [first, second, third]
    network = models.load(first)
    expected = models.load(whole)
    jax.tree.map(np.testing.assert_array_equal, network, expected)
    with pytest.raises(ValueError, match="split.no = 1, expected the name of the first of 3 files"):
        models.load(second)
    data = second.read_bytes()
    others = third.read_bytes()
    second.write_bytes(others)
    third.write_bytes(data)
    with pytest.raises(ValueError, match="split.no = 2 of 3, or tensors twice, expected number 1"):
        models.load(first)
    second.write_bytes(data)
    third.unlink()
    with pytest.raises(ValueError, match="got 2 of 3 files, without cut-00003-of-00003.gguf"):
        models.load(first)
    third.write_bytes(others)
    first.rename(tmp_path / "one.gguf")
    with pytest.raises(ValueError, match="expected the name of the first of 3 files"):
        models.load(tmp_path / "one.gguf")


def test_files_that_are_broken_or_not_known_are_refused(tmp_path):
    sound = write(tmp_path / "model.gguf")
    with pytest.raises(ValueError, match="the architecture 'falcon', expected one of the"):
        models.load(write(tmp_path / "other.gguf", "falcon"))
    with pytest.raises(ValueError, match="type = longrope, expected none or linear or yarn"):
        models.load(write(tmp_path / "long.gguf", rope_scaling_type=gguf.RopeScalingType.LONGROPE))
    with pytest.raises(ValueError, match="got no file"):
        models.load(tmp_path / "missing.gguf")
    data = sound.read_bytes()
    generator = np.random.default_rng(0)
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
