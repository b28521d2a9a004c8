"""Folders of weights, whole or sharded: their configuration and tensors, and what is broken."""

import json
import math
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Any, NamedTuple

import lazy_loader
import numpy as np

from lim_jax._argument_error import Refusal
from lim_jax._checks import AnyPath, as_path, require_extra
from lim_jax.checkpoints import integers, quantised_formats
from lim_jax.checkpoints.integers import ReadRows
from lim_jax.checkpoints.options import Configuration, require_in

safetensors: Any = lazy_loader.load("safetensors")  # of the extra; the rest does without
WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PRECISIONS = ("F64", "F32", "F16", "BF16")
EIGHT_BITS = "F8_E4M3"
BYTES = "U8"
ADAPTER = "adapter_config.json"
QUANTISED = ("quantization_config", "quantization")
MODELOPT_FILE = "hf_quant_config.json"
SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
LONGEST_HEADER = 100_000_000
NUMBERS_AT_ONCE = 2**20
FOLDER = "a folder with config.json and safetensors files"
OF_ONE_CHECKPOINT = "Download it again, with the config.json of this checkpoint."
REPOSITORY = "Download the whole repository of the model."


class Checkpoint(NamedTuple):
    """A folder that was looked through; its tensors are still in their files.

    Attributes
    ----------
    config
        The options of ``config.json``.
    files
        The file of every tensor, by its unquantised name.
    stored
        The file of everything that files hold, scales too, by its name there.
    quantisation
        How matrices are quantised; None if they are not.
    aliases
        From names of `files` to those of the files themselves, where the two differ.
    """

    config: Configuration
    files: Mapping[str, Path]
    stored: Mapping[str, Path]
    quantisation: quantised_formats.Quantisation | None = None
    aliases: Mapping[str, str] = {}

    def read(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """Read one tensor, converted to `dtype` some rows at a time."""
        return read_rows(name, shape or (1,), dtype, self.rows(name, shape)).reshape(shape)

    def rows(self, name: str, shape: tuple[int, ...]) -> ReadRows:
        """Return a function that reads some rows of one tensor, in the precision of its own."""
        require_tensor(self.files, name)
        name = self.aliases.get(name, name)
        packing = None if self.quantisation is None else self.quantisation.packing
        if packing is not None and integers.is_packed(packing, name, self.stored):
            words = self._stored_shape(name) if name in self.stored else ()
            return integers.packed_rows(packing, self._part, self.stored, name, shape, words)
        scheme = self._scheme(name, shape)
        if scheme is None:
            return self._rows(name, shape)
        row_readers = {"fp8": self._fp8_rows, "nvfp4": self._nvfp4_rows, "mxfp4": self._mxfp4_rows}
        return row_readers[scheme](name, shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor as its file holds it."""
        require_tensor(self.files, name)
        return self._stored_shape(self.aliases.get(name, name))

    def _stored_shape(self, name: str) -> tuple[int, ...]:
        """Read the shape of a tensor from its file's header."""
        with _open(self.stored[name]) as file:
            return tuple(file.get_slice(name).get_shape())

    def __repr__(self) -> str:
        """Name the family, and count tensors and files."""
        files = "1 file" if len(self.paths) == 1 else f"{len(self.paths)} files"
        return f"Checkpoint({self.family}, {len(self.files)} tensors in {files})"

    @property
    def family(self) -> str:
        """The publisher's name of the family."""
        return str(self.config.options.get("model_type"))

    @property
    def paths(self) -> list[Path]:
        """The files that hold the weights."""
        return sorted(set(self.stored.values()))

    @property
    def precisions(self) -> set[str]:
        """The precisions of all matrices, by the files' names for them."""
        precisions = set()
        for path in self.paths:
            with _open(path) as file:
                parts = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118
                precisions |= {part.get_dtype() for part in parts if len(part.get_shape()) > 1}
        return precisions

    def _scheme(self, name: str, shape: tuple[int, ...]) -> str | None:
        """Tell how a matrix is quantised, judged by its files; None if it is not."""
        if name not in self.stored:
            return "mxfp4" if name + quantised_formats.BLOCKS in self.stored else "nvfp4"
        if self.quantisation is None or len(shape) != 2:
            return None
        with _open(self.stored[name]) as file:
            scheme = {EIGHT_BITS: "fp8", BYTES: "nvfp4"}.get(file.get_slice(name).get_dtype())
        return scheme if scheme in self.quantisation.schemes else None

    def _part(
        self, name: str, shape: tuple[int, ...], precisions: tuple[str, ...]
    ) -> Callable[..., np.ndarray]:
        """Check a tensor's precision and shape, and return a function that reads a part of it."""
        self._require_stored(name, shape, precisions)

        def read_slice(index: Any) -> np.ndarray:
            """Read a part of the tensor from its file."""
            with _open(self.stored[name]) as file:
                return file.get_slice(name)[index]

        return read_slice

    def _require_stored(
        self, name: str, shape: tuple[int, ...], precisions: tuple[str, ...]
    ) -> str:
        """Return a tensor's precision; raise ValueError if it or the shape is another."""
        require_tensor(self.stored, name)
        with _open(self.stored[name]) as file:
            tensor = file.get_slice(name)
            precision = tensor.get_dtype()
            stored_shape = tuple(tensor.get_shape())
        require_in(
            name,
            precision in precisions,
            f"the precision {precision}",
            ", ".join(precisions),
            "Convert quantised weights to one of these.",
        )
        require_shape(name, stored_shape, shape)
        return precision

    def _rows(
        self, name: str, shape: tuple[int, ...], precisions: tuple[str, ...] = PRECISIONS
    ) -> ReadRows:
        """Check a tensor's precision and shape, and return a function that reads some rows."""
        precision = self._require_stored(name, shape, precisions)
        if precision == EIGHT_BITS:
            return _bytes(self.stored[name], name, shape)

        def rows(part: slice) -> np.ndarray:
            """Read some rows, from a file that is opened for this read alone."""
            # The file is opened for each read, so that it lets go of the pages that were read.
            with _open(self.stored[name]) as file:
                return file.get_slice(name)[part] if shape else file.get_tensor(name)[None]

        return rows

    def _fp8_rows(self, name: str, shape: tuple[int, ...]) -> ReadRows:
        """Return a function that reads and dequantises some rows of an FP8 matrix."""
        assert self.quantisation is not None
        rows, columns = shape
        block_rows, block_columns = self.quantisation.block
        block = (block_rows or rows, block_columns or columns)
        blocks = (-(-rows // block[0]), -(-columns // block[1]))
        numbers = self._rows(name, shape, (EIGHT_BITS,))
        names = [name + end for end in quantised_formats.SCALE]
        stored = [scale for scale in names if scale in self.stored]
        scales = self._scales(stored[0] if stored else names[0], blocks)
        return lambda part: quantised_formats.dequantise_fp8(
            numbers(part), scales, part.start, block
        )

    def _nvfp4_rows(self, name: str, shape: tuple[int, ...]) -> ReadRows:
        """Return a function that reads and dequantises some rows of an NVFP4 matrix."""
        require_in(
            name,
            len(shape) == 2 and shape[1] % quantised_formats.GROUP == 0,
            "numbers of four bits",
            f"unquantised ones of shape {shape}",
            integers.UNQUANTISED,
        )
        packed = name + quantised_formats.PACKED
        rows, columns = shape
        packed = packed if packed in self.stored else name
        pairs = self._rows(packed, (rows, columns // 2), (BYTES,))
        groups = rows, columns // quantised_formats.GROUP
        scales = self._rows(name + quantised_formats.SCALE[1], groups, (EIGHT_BITS,))
        if packed == name:
            factor = self._scales(name + quantised_formats.FACTOR, (1, 1))
        else:
            divisor = self._scales(name + quantised_formats.DIVISOR, (1, 1))
            require_in(
                name + quantised_formats.DIVISOR,
                divisor.item() != 0,
                str(divisor.item()),
                "a number to divide by",
            )
            factor = 1 / divisor
        return lambda part: quantised_formats.dequantise_nvfp4(
            pairs(part), quantised_formats.eight_bits(scales(part)) * factor
        )

    def _scales(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Read all scales of a matrix; a file may leave out axes of size one."""
        require_tensor(self.stored, name)
        with _open(self.stored[name]) as file:
            precision = file.get_slice(name).get_dtype()
            require_in(
                name, precision in PRECISIONS, f"the precision {precision}", ", ".join(PRECISIONS)
            )
            scales = file.get_tensor(name).astype(np.float64)
        if _without_ones(scales.shape) != _without_ones(shape):
            require_shape(name, scales.shape, shape)
        return scales.reshape(shape)

    def _mxfp4_rows(self, name: str, shape: tuple[int, ...]) -> ReadRows:
        """Return a function that dequantises some experts' MXFP4 matrices, held transposed."""
        require_in(
            name,
            len(shape) == 3 and shape[1] % (2 * quantised_formats.PAIRS) == 0,
            "numbers of four bits",
            "unquantised ones" if len(shape) != 3 else f"shape {shape}",
            integers.UNQUANTISED,
        )
        experts, columns, rows = shape
        scale_shape = experts, rows, columns // (2 * quantised_formats.PAIRS)
        blocks = self._rows(
            name + quantised_formats.BLOCKS, (*scale_shape, quantised_formats.PAIRS), (BYTES,)
        )
        scales = self._rows(name + quantised_formats.SCALES, scale_shape, (BYTES,))
        return lambda part: quantised_formats.dequantise_mxfp4(blocks(part), scales(part))


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its axes of size one."""
    return tuple(size for size in shape if size != 1)


def read_rows(name: str, shape: tuple[int, ...], dtype: str, rows: ReadRows) -> np.ndarray:
    """Read a tensor some rows at a time, each block converted and checked to be finite."""
    values = np.empty(shape, dtype)
    step = max(1, NUMBERS_AT_ONCE // math.prod(shape[1:]))
    for start in range(0, shape[0], step):
        part = slice(start, min(start + step, shape[0]))
        values[part] = rows(part)
        require_finite(name, values[part])
    return values


def unfilled(shape: tuple[int, ...], dtype: np.dtype | str) -> np.ndarray:
    """Return an array of zeros, aligned so that a CPU's JAX takes it over without a copy.

    In pages of the system's own size: NumPy asks for huge ones, and a virtual machine that has none
    at hand takes longer to find them than the weights take to be read.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = mmap(-1, max(size, 1), access=ACCESS_COPY)
    return np.frombuffer(memory, np.uint8, size).view(dtype).reshape(shape)


def require_tensor(files: Mapping[str, Any], name: str, cure: str = OF_ONE_CHECKPOINT) -> None:
    """Raise ValueError if a checkpoint lacks a tensor that its network has."""
    require_in("tensor", name in files, f"no {name}", "all of the network's weights", cure)


def require_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise ValueError unless a tensor has the shape that follows from the options."""
    options = f"{expected}, by the checkpoint's options"
    require_in(
        name,
        shape == expected,
        f"shape {shape}",
        options,
        "Take the weights and the options of one network.",
    )


def require_finite(name: str, values: np.ndarray) -> None:
    """Raise ValueError at weights that are NaN or infinite."""
    # Half precision is widened, which NumPy tests several times as fast.
    wide = values.astype(np.result_type(values, np.float32), copy=False)
    finite = bool(np.isfinite(wide).all())
    require_in(
        name,
        finite,
        "NaN or infinite weights",
        "finite ones",
        "Download it again; in half precision weights may have overflowed when saved.",
    )


def open_checkpoint(folder: AnyPath) -> Checkpoint:
    """Look through a folder of ``config.json`` and safetensors files, whole or sharded.

    No weight is read: the headers of the files say what they hold.

    Parameters
    ----------
    folder
        The folder, as its publisher left it.

    Returns
    -------
    Checkpoint
        The configuration, and the file of every tensor.

    Raises
    ------
    ModuleNotFoundError
        Without the extra ``models``.
    ValueError
        If the folder is none, is broken or lacks a file, holds an adapter or pickled weights alone,
        or is quantised in a way that is not known.
    """
    require_extra("safetensors", "models")
    folder = as_path(folder, "folder")
    is_folder = os.path.isdir(folder)  # of a text in place of a path, as a path itself says not
    require_in("folder", is_folder, str(folder), FOLDER, REPOSITORY)
    adapter = folder / ADAPTER
    require_in(
        "folder",
        not adapter.exists(),
        f"an adapter ({ADAPTER}) in {folder}",
        "whole weights",
        "Merge it into its model, and save that.",
    )
    config = Configuration(json_object(folder / "config.json"))
    quantisation = quantised_formats.quantisation_of(_stated_quantisation(folder, config))
    if (folder / INDEX).is_file():
        files = _sharded(folder)
    else:
        _require_weights(folder)
        files = dict.fromkeys(_names(folder / WHOLE), folder / WHOLE)
    return Checkpoint(
        config, quantised_formats.unquantised_names(files, quantisation), files, quantisation
    )


def _stated_quantisation(folder: Path, config: Configuration) -> Any:
    """Return the options of quantisation that a checkpoint states, or None."""
    text = config.get("text_config")
    for options in (config, text if isinstance(text, Mapping) else {}):
        for name in QUANTISED:
            if options.get(name) is not None:
                return options[name]
    if not (folder / MODELOPT_FILE).is_file():
        return None
    stated = Configuration(json_object(folder / MODELOPT_FILE), MODELOPT_FILE)
    return {"quant_method": "modelopt", **stated.get_object("quantization")}


def _require_weights(folder: Path) -> None:
    """Raise ValueError if a folder has no file of all weights, and say what it has instead."""
    files = sorted(folder.iterdir())
    links = [file for file in files if file.name in (WHOLE, INDEX) and not file.exists()]
    shards = [file.name for file in files if SHARD.fullmatch(file.name)]
    pickled = [file.name for file in files if file.suffix in (".bin", ".pt", ".pth", ".ckpt")]
    others = [file.name for file in files if file.suffix in (".safetensors", ".gguf")]
    got = "neither"
    cure = REPOSITORY
    if links:
        got = absent(links[0])
        cure = "Download it again."
    elif shards:
        got = f"{shards[0]} without an index"
        cure = f"Download {INDEX} beside it."
    elif pickled:
        got = f"only pickled weights ({pickled[0]})"
        cure = "Convert them to safetensors: pickled files run code when they are read."
    elif others:
        got = f"only {others[0]}"
        cure = "Pass a GGUF file by its own path; rename weights that are whole."
    require_in(
        "folder", (folder / WHOLE).is_file(), f"{got} in {folder}", f"{WHOLE} or {INDEX}", cure
    )


def absent(file: Path) -> str:
    """Describe a missing file: no file, or a link to one that is missing."""
    if file.is_symlink():
        return f"{file.name}, a link to {file.readlink()}, which is not there,"
    return f"no file {file.name}"


def _sharded(folder: Path) -> dict[str, Path]:
    """Return the file of every tensor by the index; raise ValueError where files disagree."""
    weight_map = json_object(folder / INDEX).get("weight_map")
    spelt = isinstance(weight_map, dict) and all(isinstance(v, str) for v in weight_map.values())
    require_in(
        INDEX,
        spelt and bool(weight_map),
        f"weight_map = {str(weight_map)[:60]}",
        "the file of every tensor",
    )
    assert isinstance(weight_map, dict)
    for name in set(weight_map.values()):
        inside = Path(name).name == name and name.endswith(".safetensors")
        require_in(
            INDEX,
            inside,
            f"the file {name!r}",
            "safetensors files in the folder itself",
            "Do not trust it: take the publisher's own.",
        )
    beside = (folder / WHOLE).exists() and WHOLE not in weight_map.values()
    got = f"{WHOLE} beside {INDEX}, which does not name it"
    require_in(
        "folder", not beside, f"{got}, in {folder}", "one of the two", "Move one of them away."
    )
    names_by_file = {file: set(_names(folder / file)) for file in sorted(set(weight_map.values()))}
    stated_names = {file: set() for file in names_by_file}
    for name, file in weight_map.items():
        stated_names[file].add(name)
    for file, names in names_by_file.items():
        for name in sorted(names ^ stated_names[file]):
            require_in(
                INDEX,
                False,
                f"{name} in one of index and {file}",
                "the same tensors in both",
                "Download both anew: they must be of one download.",
            )
    return {name: folder / file for name, file in weight_map.items()}


def _names(file: Path) -> list[str]:
    """Read the names of a file's tensors, and raise ValueError at repeated names."""
    with _open(file) as opened:
        names = list(opened.keys())
    _header(file)  # the library silently keeps the last of two tensors of one name
    return names


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """Read a safetensors file's header, and return it with the offset at which the data begins."""
    with file.open("rb") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        most = f"at most {LONGEST_HEADER}"
        require_in(file.name, size <= LONGEST_HEADER, f"a header of {size} bytes", most)
        return _loads(stream.read(size), file), 8 + size


def _bytes(file: Path, name: str, shape: tuple[int, ...]) -> ReadRows:
    """Return a function that reads some rows of an FP8 tensor as bytes, as NumPy has no FP8."""
    header, start = _header(file)
    start += header[name]["data_offsets"][0]

    def rows(part: slice) -> np.ndarray:
        """Read some rows of bytes at their offset in the file."""
        some = (part.stop - part.start, *shape[1:])
        size = math.prod(shape[1:])
        offset = start + part.start * size
        return np.fromfile(file, np.uint8, math.prod(some), offset=offset).reshape(some)

    return rows


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    """Open a safetensors file; raise ValueError if it is missing or broken."""
    require_in(
        "weights",
        file.is_file(),
        f"{absent(file)} in {file.parent}",
        "every file that the index names",
        REPOSITORY,
    )
    try:
        handle = safetensors.safe_open(file, framework="numpy")
    except (safetensors.SafetensorError, OSError) as error:
        raise Refusal(
            f"{file.name}: got a broken file ({error}), expected safetensors. "
            "Download it again; files of other kinds are not read."
        ) from error
    with handle as opened:
        yield opened


def json_object(file: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds; raise ValueError if a name stands twice."""
    require_in(file.name, file.is_file(), f"{absent(file)} in {file.parent}", FOLDER, REPOSITORY)
    value = _loads(file.read_bytes(), file)
    is_object = isinstance(value, dict)
    require_in(file.name, is_object, type(value).__name__, "an object of names and values")
    return value


def _loads(data: bytes, file: Path) -> Any:
    """Parse the JSON of a file; raise ValueError at errors and at repeated names."""

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Make a dictionary of a JSON object's pairs; raise ValueError if a name stands twice."""
        names = Counter(name for name, _ in pairs)
        for name in sorted(name for name, count in names.items() if count > 1):
            require_in(
                file.name,
                False,
                f"the name {name!r} twice",
                "every name once",
                "Download it again: which one is meant cannot be known.",
            )
        return dict(pairs)

    try:
        # With NaN and Infinity, which users' files may not hold: transformers writes infinite
        # limits so, and each number of an option is checked where it is read.
        return json.loads(data.decode(), object_pairs_hook=distinct)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(
            f"{file.name}: got no JSON ({error}), expected JSON in UTF-8. Download it again."
        ) from error
