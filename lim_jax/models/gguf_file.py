"""GGUF files of llama.cpp: one file, or several, with options and often quantised weights.

Tensors get the names and shapes that their publisher gave them, so that families read them as they
read a folder: interleaved rows of queries and keys are reordered, ones are subtracted from norms to
which llama.cpp added them, stacked experts are separated, and transposed matrices turned back.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lazy_loader
import numpy as np

from lim_jax._refusal import Refusal
from lim_jax.models.checkpoint import Rows, read_rows, require_shape, require_tensor
from lim_jax.models.gguf_architectures import (
    ARCHITECTURES,
    FREQUENCIES,
    LONG,
    SHORT,
    Architecture,
    architecture_of,
    published_config,
)
from lim_jax.models.gguf_header import Stored, read_header
from lim_jax.models.options import Configuration, require_in

gguf: Any = lazy_loader.load("gguf")  # of the extra; the rest does without
FACTORS = (FREQUENCIES, LONG, SHORT)


class _Published(NamedTuple):
    """A tensor as its publisher has it."""

    stored: tuple[Stored, ...]  # what it is made of, of as many rows
    shape: tuple[int, ...]
    of: Callable[..., np.ndarray] = lambda rows: rows  # makes some of its rows of theirs
    whole: Callable[[np.ndarray], np.ndarray] | None = None  # makes it of all these rows


class GGUFCheckpoint(NamedTuple):
    """A file that was looked through, with the interface of `checkpoint.Checkpoint`."""

    config: Configuration  # by the names of config.json
    files: Mapping[str, _Published]  # by the publisher's names
    header: Mapping[str, Any]  # the file's options, by its own names

    def read(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """Read one tensor, dequantised, with its rows in the publisher's order."""
        require_tensor(self.files, name)
        whole, stored = self.files[name].whole, self.files[name].shape
        if whole is None:
            return read_rows(name, shape, dtype, self.rows(name, shape))
        values = whole(read_rows(name, stored, dtype, self.rows(name, stored)))
        require_shape(name, values.shape, shape)
        return np.ascontiguousarray(values)

    def rows(self, name: str, shape: tuple[int, ...]) -> Rows:
        """Return a function that reads some rows of one tensor as they stand, dequantised."""
        require_tensor(self.files, name)
        tensor = self.files[name]
        require_shape(name, tensor.shape, shape)

        def rows(part: slice) -> np.ndarray:
            return tensor.of(*(_dequantized(name, stored, part) for stored in tensor.stored))

        return rows

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor as its publisher has it."""
        require_tensor(self.files, name)
        return self.files[name].shape

    @property
    def paths(self) -> list[Path]:
        """The files that hold the weights."""
        stored = [part for tensor in self.files.values() for part in tensor.stored]
        return sorted({part.file for part in stored})

    @property
    def precisions(self) -> set[str]:
        """The precisions of all matrices, by the file's names for them."""
        stored = [part for tensor in self.files.values() for part in tensor.stored]
        return {part.kind.name for part in stored if len(part.shape) > 1}


def _dequantized(name: str, tensor: Stored, part: slice) -> np.ndarray:
    """Read some rows and dequantise them."""
    size = math.prod(tensor.rows) // tensor.shape[0]  # of a row, in bytes
    count, offset = part.stop - part.start, tensor.offset + part.start * size
    stored = np.fromfile(tensor.file, np.uint8, count * size, offset=offset)
    shape = (count, *tensor.rows[1:]) if len(tensor.shape) > 1 else -1
    try:
        return gguf.dequantize(stored.reshape(shape), tensor.kind)
    except NotImplementedError as error:
        raise Refusal(
            f"{name}: got the quantisation {tensor.kind.name}, expected one that the "
            "gguf package undoes. Convert the file to another."
        ) from error


def open_gguf(file: Path) -> GGUFCheckpoint:
    """Look through a GGUF file of one of `gguf_architectures.ARCHITECTURES`."""
    stored, options = read_header(file)
    kind = options.get("general.type", "model")  # others are adapters, and parts that read images
    got, cure = f"general.type = {kind}", "Merge an adapter by llama.cpp's own programs."
    require_in(file.name, kind == "model", got, "model: a whole one", cure)
    name = options.get("general.architecture")
    got, cure = f"the architecture {name!r}", "Take the publisher's folder with safetensors."
    require_in(file.name, name in ARCHITECTURES, got, " or ".join(ARCHITECTURES), cure)
    own = {k.removeprefix(f"{name}."): v for k, v in options.items() if k.startswith(f"{name}.")}
    factors = {}
    for stem in FACTORS:
        if (tensor := stored.pop(f"{stem}.weight", None)) is not None:
            factors[stem] = _dequantized(stem, tensor, slice(0, tensor.shape[0])).tolist()
    words = len(options.get("tokenizer.ggml.tokens", ()))
    config = published_config(str(name), own, words, frozenset(stored), factors)
    tensors, architecture = {}, architecture_of(str(name), own)
    for tensor_name in stored:
        tensors |= _published(tensor_name, stored, architecture, config)
    return GGUFCheckpoint(Configuration(config), tensors, options)


def _published(
    name: str, stored: Mapping[str, Stored], architecture: Architecture, config: Mapping[str, Any]
) -> dict[str, _Published]:
    """Return the publisher's tensors of one of the file's; unknown ones keep their names."""
    tensor, (stem, _, kind) = stored[name], name.rpartition(".")
    as_it_is = _Published((tensor,), tensor.shape)
    if architecture.unit_offset and name.endswith("norm.weight"):
        as_it_is = as_it_is._replace(of=lambda rows: rows - 1)
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block is None:
        own = architecture.outside.get(stem)
        return {name if own is None else f"{own}.{kind}": as_it_is}
    at, stem = f"{architecture.layers}.{block[1]}.", block[2]
    if (own := architecture.layer.get(f"{stem}.{kind}")) is not None:
        return {at + own: as_it_is}
    if stem in architecture.experts:
        return {
            f"{at}{architecture.experts[stem].format(number)}.{kind}": _expert(tensor, number)
            for number in range(tensor.shape[0])
        }
    if stem.endswith("_exps") and kind in architecture.fused_experts:
        return _fused_experts(name, stored, at, architecture)
    if stem in ("attn_k_b", "attn_v_b"):
        return _latent_keys_and_values(name, stored, at)
    if stem not in architecture.layer or kind not in ("weight", "bias"):
        return {name: as_it_is}
    if (whole := architecture.whole.get(stem)) is not None:
        as_it_is = as_it_is._replace(whole=partial(whole, sizes=config))
    return {f"{at}{architecture.layer[stem]}.{kind}": as_it_is}


def _expert(tensor: Stored, number: int) -> _Published:
    """Return one expert's matrix of all that are stacked."""
    before = number * math.prod(tensor.rows[1:])
    own = tensor._replace(
        shape=tensor.shape[1:], rows=tensor.rows[1:], offset=tensor.offset + before
    )
    return _Published((own,), own.shape)


def _fused_experts(
    name: str, stored: Mapping[str, Stored], at: str, architecture: Architecture
) -> dict[str, _Published]:
    """Return the publisher's tensor of a layer's experts: of downs, or of gates with ups."""
    tensor, (stem, _, kind) = stored[name], name.rpartition(".")
    turned, interleaved = architecture.transposed_experts, architecture.interleaved_experts
    fused, down = (at + own for own in architecture.fused_experts[kind])

    def transposed_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], *reversed(shape[1:])) if turned else shape

    def transposed(rows: np.ndarray) -> np.ndarray:
        return rows.swapaxes(1, -1) if turned else rows

    if stem.endswith("ffn_down_exps"):
        return {down: _Published((tensor,), transposed_shape(tensor.shape), transposed)}
    gate, up = (re.sub(r"ffn_\w+_exps", f"ffn_{part}_exps", name) for part in ("gate", "up"))
    require_tensor(stored, gate)
    require_tensor(stored, up)
    if name != gate:
        return {}
    require_shape(up, stored[up].shape, tensor.shape)
    shape = tensor.shape[0], 2 * tensor.shape[1], *tensor.shape[2:]

    def gate_up(gates: np.ndarray, ups: np.ndarray) -> np.ndarray:
        both = np.stack([gates, ups], axis=2 if interleaved else 1)
        return transposed(both.reshape(len(gates), *shape[1:]))

    return {fused: _Published((tensor, stored[up]), transposed_shape(shape), gate_up)}


def _latent_keys_and_values(
    name: str, stored: Mapping[str, Stored], at: str
) -> dict[str, _Published]:
    """Return the matrix of keys and values, of which files hold the keys' part transposed."""
    keys, values = (re.sub(r"attn_\w_b", f"attn_{part}_b", name) for part in "kv")
    require_tensor(stored, keys)
    require_tensor(stored, values)
    if name != keys:
        return {}
    heads, rank, still = stored[keys].shape
    require_shape(values, stored[values].shape, (heads, stored[values].shape[1], rank))

    def of_heads(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.concatenate([keys.swapaxes(1, 2), values], axis=1)

    tensor = _Published(
        (stored[keys], stored[values]), (heads, still + stored[values].shape[1], rank), of_heads,
        whole=lambda rows: rows.reshape(-1, rank),
    )  # fmt: skip
    return {f"{at}self_attn.kv_b_proj.weight": tensor}
