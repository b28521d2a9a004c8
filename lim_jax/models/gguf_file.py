"""GGUF files of llama.cpp: one file with options, tensors, and often quantised weights.

Tensors are given the names that their publisher gave them, so that families read them as they do a
folder; llama.cpp's order of the rows of queries and keys, which pairs neighbouring features, is
undone.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import lazy_loader
import numpy as np

from lim_jax._checks import AnyPath, as_path, require, require_extra
from lim_jax.models.checkpoint import gathered, require_shape, require_tensor
from lim_jax.models.options import Configuration

gguf: Any = lazy_loader.load("gguf")  # of the extra; the rest does without
LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}

FACTORS = "rope_freqs.weight"  # what each rotary frequency is divided by: Llama 3's scaling, done


class _Stored(NamedTuple):
    """How a tensor lies in its file: the reader's own tensors hold what it mapped of the file.

    Attributes
    ----------
    kind
        Its quantisation.
    shape
        Of the numbers.
    rows, dtype
        Shape and type of what is stored for them.
    offset
        Where it begins, in bytes.
    """

    kind: Any
    shape: tuple[int, ...]
    rows: tuple[int, ...]
    dtype: np.dtype
    offset: int


class GGUFCheckpoint(NamedTuple):
    """A file that was looked through; `checkpoint.Checkpoint`'s twin.

    Attributes
    ----------
    file
        Where it is.
    config
        The options by the names of ``config.json``.
    files
        The tensor of every publisher's name.
    """

    file: Path
    config: Configuration
    files: Mapping[str, _Stored]

    def read(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """Read one tensor, its quantisation and the order of its rows undone.

        Raises
        ------
        ValueError
            Where it is missing, has another shape or an unknown quantisation, or is not finite.
        """
        require_tensor(self.files, name)
        tensor = self.files[name]
        require_shape(name, tensor.shape, shape)

        def rows(part: slice) -> np.ndarray:
            return _dequantized(name, self.file, tensor, part)

        values = gathered(name, shape, dtype, rows)
        kind = re.search(r"self_attn\.([qk])_proj", name)
        if kind is None:
            return values
        groups = self.config["num_key_value_heads" if kind[1] == "k" else "num_attention_heads"]
        return _halves_apart(values, groups)


def _dequantized(name: str, file: Path, tensor: _Stored, part: slice) -> np.ndarray:
    """Some rows, their quantisation undone."""
    shape = (part.stop - part.start, *tensor.rows[1:])
    before = part.start * math.prod(tensor.rows[1:]) * tensor.dtype.itemsize
    stored = np.fromfile(file, tensor.dtype, math.prod(shape), offset=tensor.offset + before)
    try:
        return gguf.dequantize(stored.reshape(shape), tensor.kind)
    except NotImplementedError as error:
        raise ValueError(
            f"{name}: got the quantisation {tensor.kind.name}, expected one that the "
            "gguf package undoes. Convert the file to another."
        ) from error


def _halves_apart(rows: np.ndarray, heads: int) -> np.ndarray:
    """From pairs of neighbouring features to pairs of the two halves of a head."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def opened_gguf(file: AnyPath) -> tuple[Any, dict[str, Any]]:
    """The package's own view of a file, and its options by name.

    Raises
    ------
    ModuleNotFoundError
        Without the package gguf, of the extra ``models``.
    ValueError
        Where the file is broken.
    """
    require_extra("gguf", "models")
    file = as_path(file, "file")
    require(
        file.is_file(),
        "file",
        got=f"no file {file}",
        expected="a GGUF file",
        cure="Pass the path of the file itself.",
    )
    try:
        reader = gguf.GGUFReader(file)
        return reader, {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # whatever the library meets in what is no GGUF file
        raise ValueError(
            f"{file.name}: got a broken file ({error}), expected GGUF. Download it again."
        ) from error


def open_gguf(file: AnyPath) -> GGUFCheckpoint:
    """Look through a GGUF file of the llama architecture.

    Raises
    ------
    ModuleNotFoundError
        Without the package gguf, of the extra ``models``.
    ValueError
        Where the file is broken, or its architecture or an option of it is not known.
    """
    file, (reader, options) = as_path(file, "file"), opened_gguf(file)
    architecture = options.get("general.architecture")
    require(
        architecture == "llama",
        file.name,
        got=f"the architecture {architecture!r}",
        expected="llama",
        cure="Take the publisher's folder with safetensors.",
    )
    files = {_published(tensor.name): _stored(tensor) for tensor in reader.tensors}
    config = _config(options, "lm_head.weight" not in files)
    if FACTORS in files:
        stored = files.pop(FACTORS)
        factors = _dequantized(FACTORS, file, stored, slice(0, stored.rows[0]))
        config["rope_scaling"] = {"rope_type": "factors", "factors": factors.tolist()}
    return GGUFCheckpoint(file, Configuration(config), files)


def _stored(tensor: Any) -> _Stored:
    shape = tuple(map(int, reversed(tensor.shape)))
    data = tensor.data
    return _Stored(tensor.tensor_type, shape, data.shape, data.dtype, int(tensor.data_offset))


def _published(name: str) -> str:
    """The publisher's name of a tensor; llama.cpp's own where there is none, for nobody to know."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer is not None and layer[2] in LAYER:
        return f"model.layers.{layer[1]}.{LAYER[layer[2]]}.{layer[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{OUTSIDE[stem]}.{kind}" if stem in OUTSIDE else name


def _config(options: Mapping[str, Any], tied: bool) -> dict[str, Any]:
    def option(name: str, default: Any = None) -> Any:
        return options.get(f"llama.{name}", default)

    for name in ("expert_count", "attention.sliding_window"):
        require(
            option(name) in (None, 0, "none"),
            "options",
            got=f"{name} = {option(name)}",
            expected="none",
            cure="Networks with this option are not known here.",
        )
    linear = option("rope.scaling.factor", option("rope.scale_linear"))
    # llama.cpp scales linearly where it is told a factor and no kind.
    kind = option("rope.scaling.type", "none" if linear is None else "linear")
    require(
        kind in ("none", "linear"),
        "options",
        got=f"rope.scaling.type = {kind}",
        expected="none or linear",
        cure="Other scalings of rotary positions are not known here.",
    )
    words = option("vocab_size", len(options.get("tokenizer.ggml.tokens", ())))
    return {
        "model_type": "llama",
        "hidden_size": option("embedding_length"),
        "num_hidden_layers": option("block_count"),
        "num_attention_heads": option("attention.head_count"),
        "num_key_value_heads": option("attention.head_count_kv", option("attention.head_count")),
        "head_dim": option("rope.dimension_count"),
        "intermediate_size": option("feed_forward_length"),
        "vocab_size": words,
        "rms_norm_eps": option("attention.layer_norm_rms_epsilon", 1e-6),
        "rope_theta": option("rope.freq_base", 10_000.0),
        "rope_scaling": {"rope_type": "linear", "factor": linear} if kind == "linear" else None,
        "tie_word_embeddings": tied,
    }
