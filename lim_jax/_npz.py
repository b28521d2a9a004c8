"""Arrays and a header of JSON in one file: an ``.npz`` archive, as `numpy.load` opens it.

Nothing in it is code. It is seen whole or not at all, and its check sums are held against it.
"""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from lim_jax._argument_error import Refusal
from lim_jax._atomic_files import whole_file
from lim_jax._checks import require

VERSION = 1
ARCHIVE = b"PK\x03\x04"  # how a zip file begins, which an .npz is
Arrays = dict[str, Any]  # NumPy's, by name


class Format(NamedTuple):
    """A kind of file: the name in its header, the argument that passes it, and a cure."""

    name: str
    argument: str
    cure: str

    def refused(self, path: Path, got: str) -> Refusal:
        """Return the error for a file that is not of this kind."""
        return Refusal(
            f"{self.argument}: got {path}, which is {got}, expected a {self.name} of version "
            f"{VERSION}. {self.cure}"
        )


def write_arrays(path: Path, kind: Format, header: Mapping[str, Any], arrays: Arrays) -> None:
    """Write a header of plain values and the arrays of `put_array` to a file for `read_arrays`."""
    about = {"format": kind.name, "version": VERSION, "lim_jax": version("lim_jax"), **header}
    arrays = {"header": np.array(json.dumps(about, allow_nan=False)), **arrays}
    size = sum(array.nbytes for array in arrays.values())
    with whole_file(path, size) as half_written, half_written.open("wb") as file:
        np.savez(file, **arrays)


def read_arrays(path: Path, kind: Format) -> tuple[dict[str, Any], Arrays]:
    """Read the header and the arrays; raise ValueError unless the file is of this kind."""
    with path.open("rb") as file:
        if file.read(len(ARCHIVE)) != ARCHIVE:
            raise kind.refused(path, "a file of another format")
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except Exception as error:  # whatever its readers make of bytes that are no archive
            raise kind.refused(path, "a damaged archive, perhaps cut off") from error
    try:
        header = json.loads(arrays.pop("header").item())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise kind.refused(path, "an archive without our header") from error
    if not isinstance(header, dict) or header.get("format") != kind.name:
        raise kind.refused(path, "an archive without our header")
    if header.get("version") != VERSION:
        raise kind.refused(
            path,
            f"of version {header.get('version')} of the format, by lim_jax {header.get('lim_jax')}",
        )
    return header, arrays


def put_array(array: np.ndarray, name: str, arrays: Arrays) -> dict[str, str]:
    """Add an array to `arrays`, and return its header entry; bfloat16 and the like are widened."""
    free = name not in ("file", "header", "allow_pickle")
    require(
        free,
        "result",
        got=f"an array named {name}",
        expected="another name",
        cure="Rename it: the file has an entry of its own of this name.",
    )
    arrays[name] = array.astype(np.float32) if array.dtype.kind == "V" else array
    return {"array": name, "dtype": array.dtype.name}


def take_array(entry: Mapping[str, str], arrays: Arrays) -> np.ndarray:
    """Return the array of a header entry that `put_array` made, in its original precision."""
    return arrays[entry["array"]].astype(jnp.dtype(entry["dtype"]), copy=False)
