"""Headers of GGUF files: their options, and how tensors lie in one file or in several."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import lazy_loader
import numpy as np

from lim_jax._argument_error import Refusal
from lim_jax._checks import require_extra
from lim_jax.checkpoints.options import require_in

gguf: Any = lazy_loader.load("gguf")  # of the extra; the rest does without
MAGIC = b"GGUF"
VERSIONS = (2, 3)
# The format's numbers of kinds of values; those of numbers by their precision.
STRING = 8
ARRAY = 9
NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip
NAME_OF_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


class Stored(NamedTuple):
    """How a tensor lies in its file."""

    file: Path
    kind: Any  # its quantisation
    shape: tuple[int, ...]  # of the numbers
    byte_shape: tuple[int, ...]  # shape of the bytes that are stored for them
    offset: int  # in bytes


class _Header:
    """Reader of a header from its beginning; a file that is too short raises EOFError."""

    # The gguf package's own reader makes several arrays for every word of a vocabulary.

    def __init__(self, stream: BinaryIO, size: int):
        self.stream = stream
        self.size = size

    def next_bytes(self, count: int) -> bytes:
        """Return the next bytes."""
        data = self.stream.read(count) if count <= self.size else b""
        if len(data) < count:
            raise EOFError("it ends within its header")
        return data

    def numbers(self, kind: int, count: int) -> list[Any]:
        """Return the next numbers of one kind."""
        data = self.next_bytes(count * np.dtype(NUMBERS[kind]).itemsize)
        return np.frombuffer(data, NUMBERS[kind]).tolist()

    def integer(self, size: int = 8) -> int:
        """Return the next unsigned integer, of `size` bytes."""
        return int.from_bytes(self.next_bytes(size), "little")

    def text(self) -> str:
        """Return the next string."""
        return self.next_bytes(self.integer()).decode()

    def value(self, kind: int) -> Any:
        """Return the next value of a kind: a string, a number, or a list of either."""
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.numbers(kind, 1)[0]
        kind = self.integer(4)
        count = self.integer()
        if kind in NUMBERS:
            return self.numbers(kind, count)
        return [self.value(kind) for _ in range(count)]


def words_of(header: Mapping[str, Any]) -> list[str]:
    """Return the words of a file's vocabulary, by its options; none if it states no list."""
    words = header.get("tokenizer.ggml.tokens")
    return words if isinstance(words, list) else []


def is_gguf(path: Path) -> bool:
    """Tell whether a path is that of a GGUF file, by how it begins, or else by its name."""
    if path.suffix == ".gguf" or not os.path.isfile(path):
        return path.suffix == ".gguf"
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def read_header(file: Path) -> tuple[dict[str, Stored], dict[str, Any]]:
    """Return a file's tensors and options by name; of several files, those of all, by the first."""
    require_extra("gguf", "models")
    tensors, options = _read_one(file)
    count = options.get("split.count", 0)
    if count in (0, 1):
        return tensors, options
    name = NAME_OF_PART.fullmatch(file.name)
    is_named_first = name is not None and int(name[2]) == 1 and int(name[3]) == count
    require_in(
        file.name,
        is_named_first and options.get("split.no") == 0,
        f"split.count = {count} and split.no = {options.get('split.no')}",
        f"the name of the first of {count} files, which ends in -00001-of-{count:05}.gguf",
        "Pass the first file; the others lie beside it.",
    )
    assert name is not None
    names = [f"{name[1]}-{number:05}-of-{count:05}.gguf" for number in range(2, count + 1)]
    missing = [other for other in names if not file.with_name(other).is_file()]
    require_in(
        file.name,
        not missing,
        f"{count - len(missing)} of {count} files, without {' and '.join(missing[:3])}",
        "all of them in one folder",
        "Download the others beside it.",
    )
    for number, other in enumerate(names, 1):
        part = file.with_name(other)
        part_tensors, part_options = _read_one(part)
        stated_number = part_options.get("split.no")
        stated_count = part_options.get("split.count")
        is_next = stated_number == number and stated_count == count
        require_in(
            part.name,
            is_next and not part_tensors.keys() & tensors.keys(),
            f"split.no = {stated_number} of {stated_count}, or tensors twice",
            f"number {number} of {count}",
        )
        tensors |= part_tensors
    stated = options.get("split.tensors.count", len(tensors))
    require_in(
        file.name,
        len(tensors) == stated,
        f"{len(tensors)} tensors in {count} files",
        f"{stated}, as the first says",
    )
    return tensors, options


def _read_one(file: Path) -> tuple[dict[str, Stored], dict[str, Any]]:
    """Read the header of one file; raise ValueError if it is broken."""
    require_in(
        "file",
        file.is_file(),
        f"no file {file}",
        "a GGUF file",
        "Pass the path of the file itself.",
    )
    try:
        with file.open("rb") as stream:
            return _parse(file, _Header(stream, file.stat().st_size))
    except Exception as error:  # whatever the bytes of other files give
        raise Refusal(
            f"{file.name}: got a broken file ({error}), expected GGUF. Download it again."
        ) from error


def _parse(file: Path, header: _Header) -> tuple[dict[str, Stored], dict[str, Any]]:
    """Parse a header into tensors and options; raise ValueError if a tensor is cut off."""
    magic = header.next_bytes(4)
    version = header.integer(4)
    if magic != MAGIC or version not in VERSIONS:
        raise ValueError(f"{magic} of version {version}")
    num_tensors = header.integer()
    num_options = header.integer()
    options = {}
    for _ in range(num_options):
        name = header.text()
        if name in options:
            raise ValueError(f"the name {name!r} twice")
        options[name] = header.value(header.integer(4))
    named = [_tensor(file, header) for _ in range(num_tensors)]
    alignment = options.get("general.alignment", 32)
    start = -(-header.stream.tell() // alignment) * alignment
    tensors = {name: tensor._replace(offset=start + tensor.offset) for name, tensor in named}
    ends = [tensor.offset + math.prod(tensor.byte_shape) for tensor in tensors.values()]
    empty = any(min(tensor.shape) < 1 for tensor in tensors.values())
    if len(tensors) < num_tensors or max(ends, default=0) > header.size or empty:
        raise ValueError("a tensor twice, empty, or cut off")
    return tensors, options


def _tensor(file: Path, header: _Header) -> tuple[str, Stored]:
    """Parse one tensor's name, and how it lies in the file, its offset from where data begins."""
    name = header.text()
    axes = header.integer(4)
    shape = tuple(reversed(header.numbers(10, axes)))
    kind = gguf.GGMLQuantizationType(header.integer(4))
    byte_shape = tuple(gguf.quant_shape_to_byte_shape(shape, kind))
    offset = header.integer()
    return name, Stored(file, kind, shape, byte_shape, offset)
