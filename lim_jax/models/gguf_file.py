"""GGUF files of llama.cpp: one file with options, tensors, and often quantised weights.

Tensors are given the names and the shapes that their publisher gave them, so that families read
them as they do a folder: llama.cpp's order of the rows of queries and keys, which pairs
neighbouring features, is undone, ones are taken from norms to which it added them, and experts
that it stacks are cut apart.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import lazy_loader
import numpy as np

from lim_jax._checks import AnyPath, as_path, require, require_extra
from lim_jax.models.checkpoint import Rows, gathered, require_shape, require_tensor
from lim_jax.models.gguf_architectures import (
    ARCHITECTURES,
    FREQUENCIES,
    LONG,
    OUTSIDE,
    SHORT,
    Architecture,
    architecture_of,
    published_config,
)
from lim_jax.models.options import Configuration

gguf: Any = lazy_loader.load("gguf")  # of the extra; the rest does without
FACTORS = (FREQUENCIES, LONG, SHORT)


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


class _Published(NamedTuple):
    """A tensor as its publisher has it.

    Attributes
    ----------
    stored
        What it is made of, of the same number of rows.
    shape
        Its own.
    of
        Makes some of its rows of theirs.
    heads
        In how many heads neighbouring rows turn together, which the publisher has halves apart.
    """

    stored: tuple[_Stored, ...]
    shape: tuple[int, ...]
    of: Callable[..., np.ndarray] = lambda rows: rows
    heads: int | None = None


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
    files: Mapping[str, _Published]

    def read(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """Read one tensor, its quantisation and the order of its rows undone.

        Raises
        ------
        ValueError
            Where it is missing, has another shape or an unknown quantisation, or is not finite.
        """
        values, heads = gathered(name, shape, dtype, self.rows(name, shape)), self.files[name].heads
        return values if heads is None else _halves_apart(values, heads)

    def rows(self, name: str, shape: tuple[int, ...]) -> Rows:
        """What reads some rows of one tensor as they stand, their quantisation undone.

        Raises
        ------
        ValueError
            Where it is missing, or has another shape or an unknown quantisation.
        """
        require_tensor(self.files, name)
        tensor = self.files[name]
        require_shape(name, tensor.shape, shape)

        def rows(part: slice) -> np.ndarray:
            return tensor.of(*(_dequantized(name, self.file, one, part) for one in tensor.stored))

        return rows

    @property
    def paths(self) -> list[Path]:
        """The file that holds the weights."""
        return [self.file]

    @property
    def precisions(self) -> set[str]:
        """Those of all matrices, as the file calls them."""
        stored = (one for tensor in self.files.values() for one in tensor.stored)
        return {one.kind.name for one in stored if len(one.shape) > 1}


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
    about = file.stat()
    try:
        reader, options = _read_header(file, about.st_size, about.st_mtime_ns)
    except Exception as error:  # whatever the library meets in what is no GGUF file
        raise ValueError(
            f"{file.name}: got a broken file ({error}), expected GGUF. Download it again."
        ) from error
    return reader, dict(options)


@lru_cache(maxsize=1)
def _read_header(file: Path, size: int, modified: int) -> tuple[Any, dict[str, Any]]:
    """Parse a file as it is now: a second for 49,152 words, and a command asks six times."""
    reader = _reader()(file)
    return reader, {name: field.contents() for name, field in reader.fields.items()}


@cache
def _reader() -> Any:
    """The package's reader, of a plain array: its own, mapped one takes three times as long.

    It looks at every word of the vocabulary by a slice of that array.
    """

    def given(self: Any, mapped: np.ndarray) -> None:
        self.bytes = np.asarray(mapped)

    return type("Reader", (gguf.GGUFReader,), {"data": property(lambda self: self.bytes, given)})


def open_gguf(file: AnyPath) -> GGUFCheckpoint:
    """Look through a GGUF file of one of `gguf_architectures.ARCHITECTURES`.

    Raises
    ------
    ModuleNotFoundError
        Without the package gguf, of the extra ``models``.
    ValueError
        Where the file is broken, or its architecture or an option of it is not known.
    """
    file, (reader, options) = as_path(file, "file"), opened_gguf(file)
    _require_whole_model(file, options)
    name = options.get("general.architecture")
    require(
        name in ARCHITECTURES,
        file.name,
        got=f"the architecture {name!r}",
        expected=" or ".join(ARCHITECTURES),
        cure="Take the publisher's folder with safetensors.",
    )
    own = {k.removeprefix(f"{name}."): v for k, v in options.items() if k.startswith(f"{name}.")}
    stored = {tensor.name: _stored(tensor) for tensor in reader.tensors}
    factors = {}
    for stem in FACTORS:
        if (one := stored.pop(f"{stem}.weight", None)) is not None:
            factors[stem] = _dequantized(stem, file, one, slice(0, one.rows[0])).tolist()
    words = len(options.get("tokenizer.ggml.tokens", ()))
    config = published_config(str(name), own, words, frozenset(stored), factors)
    files, architecture = {}, architecture_of(str(name), own)
    for tensor in stored:
        files |= _published(tensor, stored, architecture, config)
    return GGUFCheckpoint(file, Configuration(config), files)


def _require_whole_model(file: Path, options: Mapping[str, Any]) -> None:
    """Refuse adapters, parts that read images, and one file of several."""
    for name, usual in (("general.type", "model"), ("split.count", 1)):
        require(
            options.get(name, usual) in (usual, 0),
            file.name,
            got=f"{name} = {options.get(name)}",
            expected=f"{usual}: a whole model in one file",
            cure="Merge an adapter, or the files, by llama.cpp's own programs.",
        )


def _stored(tensor: Any) -> _Stored:
    shape = tuple(map(int, reversed(tensor.shape)))
    data = tensor.data
    return _Stored(tensor.tensor_type, shape, data.shape, data.dtype, int(tensor.data_offset))


def _published(
    name: str, stored: Mapping[str, _Stored], architecture: Architecture, config: Mapping[str, Any]
) -> dict[str, _Published]:
    """The publisher's tensors of one of llama.cpp's; under its own name where nobody knows it."""
    tensor, (stem, _, kind) = stored[name], name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block is None or kind not in ("weight", "bias"):
        return {
            f"{OUTSIDE[stem]}.{kind}" if stem in OUTSIDE else name: _changed(
                name, tensor, architecture
            )
        }
    at, stem = f"model.layers.{block[1]}.", block[2]
    if stem in architecture.experts:
        return {
            f"{at}{architecture.experts[stem].format(number)}.{kind}": _one(tensor, number)
            for number in range(tensor.shape[0])
        }
    if stem.endswith("_exps") and kind in architecture.together:
        return _together(name, stored, at, architecture)
    if stem not in architecture.layer:
        return {name: _Published((tensor,), tensor.shape)}
    own = architecture.layer[stem]
    if architecture.neighbours and stem in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if stem == "attn_q" else "num_key_value_heads"]
        return {f"{at}{own}.{kind}": _Published((tensor,), tensor.shape, heads=heads)}
    whole = at + own if stem == "attn_sinks" else f"{at}{own}.{kind}"
    return {whole: _changed(name, tensor, architecture)}


def _changed(name: str, tensor: _Stored, architecture: Architecture) -> _Published:
    """A tensor as it stands, but for the one that llama.cpp added to a norm."""
    if architecture.from_one and name.endswith("norm.weight"):
        return _Published((tensor,), tensor.shape, lambda rows: rows - 1)
    return _Published((tensor,), tensor.shape)


def _one(tensor: _Stored, number: int) -> _Published:
    """One expert's matrix of all that are stacked."""
    before = number * math.prod(tensor.rows[1:]) * tensor.dtype.itemsize
    own = tensor._replace(
        shape=tensor.shape[1:], rows=tensor.rows[1:], offset=tensor.offset + before
    )
    return _Published((own,), own.shape)


def _together(
    name: str, stored: Mapping[str, _Stored], at: str, architecture: Architecture
) -> dict[str, _Published]:
    """All experts of a layer in two tensors, one of gates and of what they let through.

    The tensor of what gates let through is read with that of the gates.
    """
    tensor, (stem, _, kind) = stored[name], name.rpartition(".")
    turned, sides = (_turned, _sides) if architecture.by_turns else (_same, _same)
    inner, outer = (at + own for own in architecture.together[kind])
    if stem.endswith("ffn_down_exps"):
        return {outer: _Published((tensor,), turned(tensor.shape), sides)}
    gate, up = (re.sub(r"ffn_\w+_exps", f"ffn_{part}_exps", name) for part in ("gate", "up"))
    require_tensor(stored, gate)
    require_tensor(stored, up)
    if name != gate:
        return {}
    require_shape(up, stored[up].shape, tensor.shape)
    shape = tensor.shape[0], 2 * tensor.shape[1], *tensor.shape[2:]

    def mixed(gates: np.ndarray, ups: np.ndarray) -> np.ndarray:
        both = np.stack([gates, ups], axis=2 if architecture.by_turns else 1)
        return sides(both.reshape(len(gates), *shape[1:]))

    return {inner: _Published((tensor, stored[up]), turned(shape), mixed)}


def _same(what: Any) -> Any:
    return what


def _turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[0], *reversed(shape[1:])


def _sides(rows: np.ndarray) -> np.ndarray:
    return rows.swapaxes(1, -1)
