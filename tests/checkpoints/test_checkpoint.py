"""Folders of weights: what is sound is read as it is, what is broken is refused by name."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from reference.as_users import run_python
from safetensors.numpy import save_file

from lim_jax.checkpoints import checkpoint
from lim_jax.checkpoints.checkpoint import INDEX, WHOLE, open_checkpoint

CONFIG = json.dumps({"model_type": "gpt2"})


def tensors():
    generator = np.random.default_rng(0)
    return {
        "a": generator.standard_normal((3, 4)).astype(np.float32),
        "b.c": generator.standard_normal(5).astype(ml_dtypes.bfloat16),
        "d": generator.standard_normal((2, 1)).astype(np.float16),
    }


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(CONFIG, encoding="utf-8")
    save_file(tensors(), tmp_path / WHOLE)
    return tmp_path


def shard(folder, weight_map):
    """Cut the file into one for each name of a file in the map, and write the index."""
    (folder / WHOLE).unlink()
    for file in set(weight_map.values()):
        parts = {name: tensors()[name] for name, at in weight_map.items() if at == file}
        save_file(parts, folder / file)
    write_index(folder, weight_map)


def write_index(folder, weight_map):
    (folder / INDEX).write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8"
    )


def read_all(folder):
    opened = open_checkpoint(folder)
    return {name: opened.read(name, array.shape) for name, array in tensors().items()}


def rewritten(folder, header, payload):
    """A file of this header, spelt by hand."""
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / WHOLE).write_bytes(struct.pack("<Q", len(data)) + data + payload)


def test_a_configuration_may_hold_infinity(tmp_path):
    """As that of Nemotron-H, by Python's own writer: it is no JSON, and is published."""
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, Infinity]}', encoding="utf-8")
    assert checkpoint.json_object(tmp_path / "config.json") == {"time_step_limit": [0.0, np.inf]}


@pytest.mark.parametrize("sharded", [False, True])
def test_tensors_come_back_in_full_precision(folder, sharded):
    if sharded:
        shard(folder, {"a": "one.safetensors", "b.c": "two.safetensors", "d": "one.safetensors"})
    for name, tensor in read_all(folder).items():
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, tensors()[name].astype(np.float32))
    assert open_checkpoint(folder).read("a", (3, 4), "float64").dtype == np.float64
    assert open_checkpoint(folder).config == {"model_type": "gpt2"}


@pytest.mark.slow
def test_without_the_extra_all_but_reading_works_and_reading_names_it(folder):
    program = """
import sys
sys.modules["gguf"] = sys.modules["safetensors"] = None
import lim_jax as lim
for name in dir(lim.models):
    getattr(lim.models, name)
for path in (".", "model.gguf"):
    try:
        lim.models.load(path)
    except ModuleNotFoundError as error:
        print(error)
"""
    done = run_python("-c", program, folder=folder)
    assert done.returncode == 0, done.stderr
    for line, package in zip(done.stdout.splitlines(), ("safetensors", "gguf"), strict=True):
        assert line.startswith(f"{package}: got") and 'install "lim_jax[models]"' in line


def spelt(*entries):
    return {name: {"dtype": d, "shape": s, "data_offsets": o} for name, d, s, o in entries}


BROKEN = {
    "no configuration": (
        lambda f: (f / "config.json").unlink(),
        "config.json: got no file config.json in .*whole repos",
    ),
    "no weights": (lambda f: (f / WHOLE).unlink(), "got neither"),
    "a link that leads nowhere": (
        lambda f: ((f / WHOLE).unlink(), (f / WHOLE).symlink_to("../blobs/ab12")),
        r"got model.safetensors, a link to ../blobs/ab12, which is not there, .*Download it again",
    ),
    "a configuration that is such a link": (
        lambda f: ((f / "config.json").unlink(), (f / "config.json").symlink_to("gone")),
        "config.json: got config.json, a link to gone, which is not there",
    ),
    "a shard that is such a link": (
        lambda f: (
            (f / "one.safetensors").symlink_to("gone"), write_index(f, {"a": "one.safetensors"}),
            (f / WHOLE).unlink(),
        ), "weights: got one.safetensors, a link to gone, which is not there",
    ),
    "shards without an index": (
        lambda f: (f / WHOLE).rename(f / "model-00001-of-00002.safetensors"),
        "got model-00001-of-00002.safetensors without an index .*Download model.safetensors.index",
    ),
    "weights under another name": (
        lambda f: (f / WHOLE).rename(f / "model.Q4.gguf"),
        "got only model.Q4.gguf in .*a GGUF file by its own path",
    ),
    "whole weights beside an index that does not name them": (
        lambda f: (
            shard(f, {"a": "one.safetensors", "b.c": "two.safetensors", "d": "one.safetensors"}),
            save_file(tensors(), f / WHOLE),
        ),
        "got model.safetensors beside model.safetensors.index.json, which does not name it, in .*, "
        "expected one of the two. Move one of them away",
    ),
    "pickled weights": (
        lambda f: (f / WHOLE).rename(f / "pytorch_model.bin"),
        r"only pickled weights \(pytorch_model.bin\).*run code",
    ),
    "a pickle under another name": (
        lambda f: (f / WHOLE).write_bytes(b"\x80\x04\x95" + bytes(100)), "got a broken file",
    ),
    "a truncated file": (
        lambda f: (f / WHOLE).write_bytes((f / WHOLE).read_bytes()[:-3]), "got a broken file",
    ),
    "an empty file": (lambda f: (f / WHOLE).write_bytes(b""), "got a broken file"),
    "overlapping tensors": (
        lambda f: rewritten(f, spelt(*((name, "F32", [1], [0, 4]) for name in "ad")), bytes(4)),
        "got a broken file",
    ),
    "a name twice": (
        lambda f: rewritten(
            f,
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            bytes(4),
        ),
        "'a' twice",
    ),
    "a precision that is not known": (
        lambda f: rewritten(f, spelt(("a", "F8_E4M3", [3, 4], [0, 12])), bytes(12)),
        "a: got the precision F8_E4M3",
    ),
    "another shape": (
        lambda f: save_file(tensors() | {"a": np.zeros((4, 3), np.float32)}, f / WHOLE),
        r"a: got shape \(4, 3\), expected \(3, 4\)",
    ),
    "a missing tensor": (
        lambda f: save_file({"a": tensors()["a"]}, f / WHOLE), "got no b.c",
    ),
    "NaN": (
        lambda f: save_file(tensors() | {"a": np.full((3, 4), np.nan, np.float32)}, f / WHOLE),
        "a: got NaN or infinite weights",
    ),
    "an infinity in half precision": (
        lambda f: save_file(tensors() | {"d": np.full((2, 1), np.inf, np.float16)}, f / WHOLE),
        "d: got NaN or infinite weights",
    ),
    "a configuration that is no object": (
        lambda f: (f / "config.json").write_text("[1]", encoding="utf-8"), "config.json: got list",
    ),
    "a configuration that is no JSON": (
        lambda f: (f / "config.json").write_text("{", encoding="utf-8"), "config.json: got no JSON",
    ),
    "an option twice": (
        lambda f: (f / "config.json").write_text('{"n_embd": 4, "n_embd": 8}', "utf-8"),
        "'n_embd' twice",
    ),
    "an index that leaves the folder": (
        lambda f: write_index(f, {"a": "../model.safetensors"}),
        "got the file '../model.safetensors'",
    ),
    "an index of pickles": (lambda f: write_index(f, {"a": "pytorch_model.bin"}), "got the file"),
    "an index without a map": (
        lambda f: (f / INDEX).write_text("{}", "utf-8"), "weight_map = None",
    ),
    "an index of other tensors": (
        lambda f: write_index(f, {"a": WHOLE, "z": WHOLE}), "in one of index and model.safetensors",
    ),
    "a shard that is missing": (
        lambda f: ((f / WHOLE).unlink(), write_index(f, {"a": "one.safetensors"})),
        "got no file one.safetensors",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_are_refused(folder, case):
    broken, message = BROKEN[case]
    broken(folder)
    with pytest.raises(ValueError, match=message):
        read_all(folder)


def test_what_is_not_finite_is_found_behind_the_first_numbers_too(folder, monkeypatch):
    """A row at a time; by default a million numbers."""
    monkeypatch.setattr(checkpoint, "NUMBERS_AT_ONCE", 4)
    for row in range(3):
        holed = tensors()["a"]
        holed[row, 1] = np.nan
        save_file(tensors() | {"a": holed}, folder / WHOLE)
        with pytest.raises(ValueError, match="a: got NaN or infinite weights"):
            read_all(folder)


def test_every_broken_file_gives_one_clear_error_or_the_right_numbers(folder):
    """Three hundred files with bytes changed, cut off or added, header and payload."""
    sound = (folder / WHOLE).read_bytes()
    generator = np.random.default_rng(1)
    refused = 0
    for _ in range(300):
        data = bytearray(sound)
        place = int(generator.integers(len(data)))
        kind = generator.integers(4)
        if kind == 0:
            data[place] = int(generator.integers(256))
        elif kind == 1:
            del data[place:]
        elif kind == 2:
            data[place:place] = generator.bytes(int(generator.integers(1, 20)))
        else:
            data[: int(generator.integers(1, 9))] = generator.bytes(8)
        (folder / WHOLE).write_bytes(bytes(data))
        try:
            found = read_all(folder)
        except ValueError as error:
            assert ": got " in str(error) and "expected" in str(error), error
            refused += 1
        else:  # a byte of the payload: other numbers, but finite ones of the right shapes
            assert all(np.isfinite(array).all() for array in found.values())
    assert refused > 200
