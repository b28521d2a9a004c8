"""A GGUF file's tensors by the names and shapes that their publisher gave them, dequantised."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lazy_loader
import numpy as np

from lim_jax._argument_error import Refusal
from lim_jax.checkpoints.checkpoint import read_rows, require_shape, require_tensor
from lim_jax.checkpoints.gguf_header import Stored
from lim_jax.checkpoints.integers import ReadRows
from lim_jax.checkpoints.options import Configuration

gguf: Any = lazy_loader.load("gguf")  # of the extra; the rest does without


# A file of llama.cpp's has its options within.
require_converted = partial(
    require_tensor,
    cure="Take another conversion of the model: this file lacks a tensor of its options' network.",
)


class Published(NamedTuple):
    """A tensor as its publisher has it."""

    sources: tuple[Stored, ...]  # what it is made of, of as many rows
    shape: tuple[int, ...]
    from_rows: Callable[..., np.ndarray] = lambda rows: rows  # makes some of its rows of theirs
    from_all_rows: Callable[[np.ndarray], np.ndarray] | None = None  # makes it of all these rows


class GGUFCheckpoint(NamedTuple):
    """A file that was looked through, with the interface of `checkpoint.Checkpoint`."""

    config: Configuration  # by the names of config.json
    files: Mapping[str, Published]  # by the publisher's names
    header: Mapping[str, Any]  # the file's options, by its own names

    def read(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """Read one tensor, dequantised and in the publisher's layout."""
        require_converted(self.files, name)
        from_all_rows = self.files[name].from_all_rows
        stored_shape = self.files[name].shape
        if from_all_rows is None:
            return read_rows(name, shape, dtype, self.rows(name, shape))
        values = from_all_rows(read_rows(name, stored_shape, dtype, self.rows(name, stored_shape)))
        require_shape(name, values.shape, shape)
        return np.ascontiguousarray(values)

    def rows(self, name: str, shape: tuple[int, ...]) -> ReadRows:
        """Return a function that reads and dequantises some rows of one tensor."""
        require_converted(self.files, name)
        tensor = self.files[name]
        require_shape(name, tensor.shape, shape)

        def rows(part: slice) -> np.ndarray:
            """Read and dequantise some rows of the tensor."""
            return tensor.from_rows(
                *(dequantize_rows(name, source, part) for source in tensor.sources)
            )

        return rows

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor as its publisher has it."""
        require_converted(self.files, name)
        return self.files[name].shape

    def __repr__(self) -> str:
        """Name the family, and count tensors and files."""
        files = " and ".join(path.name for path in self.paths)
        return f"GGUFCheckpoint({self.family}, {len(self.files)} tensors in {files})"

    @property
    def family(self) -> str:
        """The publisher's name of the family."""
        return str(self.config.options.get("model_type"))

    @property
    def paths(self) -> list[Path]:
        """The files that hold the weights."""
        sources = [part for tensor in self.files.values() for part in tensor.sources]
        return sorted({part.file for part in sources})

    @property
    def precisions(self) -> set[str]:
        """The precisions of all matrices, by the file's names for them."""
        sources = [part for tensor in self.files.values() for part in tensor.sources]
        return {part.kind.name for part in sources if len(part.shape) > 1}


def dequantize_rows(name: str, tensor: Stored, part: slice) -> np.ndarray:
    """Read and dequantise some rows of a tensor; raise ValueError at unknown quantisations."""
    size = math.prod(tensor.byte_shape) // tensor.shape[0]  # of a row, in bytes
    count = part.stop - part.start
    offset = tensor.offset + part.start * size
    packed = np.fromfile(tensor.file, np.uint8, count * size, offset=offset)
    shape = (count, *tensor.byte_shape[1:]) if len(tensor.shape) > 1 else -1
    try:
        return gguf.dequantize(packed.reshape(shape), tensor.kind)
    except NotImplementedError as error:
        raise Refusal(
            f"{name}: got the quantisation {tensor.kind.name}, expected one that the "
            "gguf package undoes. Convert the file to another."
        ) from error
