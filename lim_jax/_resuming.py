"""Files from which a run that was interrupted goes on.

A file is seen whole or not at all, whenever the process dies that writes it; of one that grows by
lines, each line.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import starmap
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

from lim_jax._checks import AnyPath, as_path, require
from lim_jax._digest import digest
from lim_jax._refusal import Refusal

Result = TypeVar("Result")
# What tells one run from another: plain values by name.
Run = Mapping[str, Any]
REMOVE = "Remove it, or name another checkpoint."
SAME = f"To go on, give what that run was given. {REMOVE}"


def checkpoint_file(file: AnyPath, name: str = "checkpoint") -> Path:
    """A path where a file is or can be made."""
    path = as_path(file, name)
    _require_path(path, name, not path.is_dir(), "a folder", "a file, there or to be made")
    return path


def checkpoint_folder(checkpoint: AnyPath) -> Path:
    """A path where a folder is or can be made."""
    path = as_path(checkpoint, "checkpoint")
    expected = "a folder, there or to be made"
    _require_path(path, "checkpoint", not path.is_file(), "a file", expected)
    return path


def _require_path(path: Path, name: str, holds: bool, kind: str, expected: str) -> None:
    within = next((parent for parent in path.parents if parent.is_file()), None)
    got = f"{path}, which is {kind}" if within is None else f"{path}, inside of the file {within}"
    require(holds and within is None, name, got=got, expected=expected, cure="Name another.")


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under another name first, in a folder that is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half_written = path.with_name(path.name + ".part")
    with half_written.open("wb") as file:
        write(file)
    half_written.replace(path)


def store(path: Path, run: Run, about: Mapping[str, Any], tree: PyTree) -> None:
    """Store a pytree's arrays and numbers, after a line of JSON: of which run, and what of it."""

    def write(file: BinaryIO) -> None:
        file.write(_line({"run": run, **about}))
        eqx.tree_serialise_leaves(file, tree)

    write_whole(path, write)


def stored(path: Path, run: Run, like: Callable[[dict], PyTree]) -> tuple[dict, PyTree]:
    """Read what `store` wrote: what of the run, and the pytree, shaped as `like` of that."""
    with checkpoint_file(path).open("rb") as file:
        about = _head_of_run(path, file.readline(), run)
        try:
            tree = eqx.tree_deserialise_leaves(file, like(about))
        except Refusal:
            raise
        except Exception as error:  # whatever NumPy makes of bytes that are no arrays
            raise _damaged(path) from error
        if file.read(1):
            raise _damaged(path)
        return about, tree


def _damaged(path: Path) -> Refusal:
    return Refusal(
        f"checkpoint: got {path}, which is cut short or damaged, expected all that a run "
        f"stored. Copy it whole. {REMOVE}"
    )


def _plain(value: Any) -> Any:
    """What is read back of a value: lists for tuples."""
    return json.loads(json.dumps(value))


def _document(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _head_of_run(path: Path, line: bytes, run: Run) -> dict[str, Any]:
    """What a file's first line says; raise unless it is of this run."""
    about = _document(line)
    kept = about.get("run")
    got = f"{path}, which is {'of no run' if line else 'empty'}"
    require(
        isinstance(kept, dict), "checkpoint", got=got, expected="what a run stored", cure=REMOVE
    )
    assert isinstance(kept, dict)
    for name, value in _plain(run).items():
        got, expected = f"{path}, of {name} {kept.get(name)}", f"one of {name} {value}"
        require(kept.get(name) == value, "checkpoint", got=got, expected=expected, cure=SAME)
    return about


def each_once(
    groups: Mapping[str, Callable[[], Any]],
    checkpoint: AnyPath | None,
    run: Run,
    progress: Callable[[list], Iterable] = iter,
) -> dict[str, Any]:
    """Run each group, unless a checkpoint holds what it gave, which is stored as soon as it did.

    Groups give plain values, numbers and strings in lists and dictionaries: what JSON reads back,
    whether from a file or not. The file grows by a line for each; a line that was cut short, where
    the process died that wrote it, is left out and that group run again.
    """
    file = None if checkpoint is None else checkpoint_file(checkpoint)
    begun = file is not None and file.exists()
    done = _journal(file, run) if file is not None and begun else {}
    for name in progress(list(groups)):
        if name in done:
            continue
        done[name] = _plain(groups[name]())
        if file is not None:
            if not begun:
                write_whole(file, lambda new: new.write(_line({"run": run})))
                begun = True
            with file.open("ab") as grown:
                grown.write(_line({"name": name, "found": done[name]}))
    return {name: done[name] for name in groups}


def once(path: Path, run: Run, measure: Callable[[], Array | np.ndarray]) -> Array | np.ndarray:
    """Measure an array and store it, unless a file holds what was measured before."""
    if path.exists():
        return stored(path, run, lambda about: _shaped(*about["of"]))[1]
    array = measure()
    store(path, run, {"of": (array.shape, array.dtype.name)}, array)
    return array


def _journal(path: Path, run: Run) -> dict[str, Any]:
    """What a file of lines holds of a run, whose line is the first; a torn line is taken off."""
    kept = path.read_bytes().splitlines(keepends=True)
    head, *lines = [line for line in kept if line.endswith(b"\n")] or [b"".join(kept)[:-1]]
    _head_of_run(path, head, run)
    entries = list(map(_document, lines))
    if not all({"name", "found"} <= entry.keys() for entry in entries):
        raise _damaged(path)
    write_whole(path, lambda file: file.writelines([head, *lines]))
    return {entry["name"]: entry["found"] for entry in entries}


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"


def reduced(
    measure: Callable[[Any], Result],
    merge: Callable[[Result, Result], Result],
    items: Iterable[Any],
    checkpoint: AnyPath,
    run: Run,
    of_leaves: Callable[[list[Array]], Result],
) -> Result:
    """Measure items, at least one, and merge the results, which are stored after each of them.

    Those that a checkpoint counts are drawn and compared, not measured. A result is a pytree of
    arrays of any shapes, which `of_leaves` makes again of its leaves.
    """
    checkpoint = checkpoint_file(checkpoint)
    counted, last_seen, result = 0, "", None
    if checkpoint.exists():
        about, leaves = stored(checkpoint, run, lambda about: list(starmap(_shaped, about["of"])))
        counted, last_seen, result = about["items"], about["seen"], of_leaves(leaves)
    number, seen = 0, ""
    for number, item in enumerate(items, start=1):
        seen = digest(item, after=seen)
        if number > counted:
            result = measure(item) if result is None else merge(result, measure(item))
            leaves = jax.tree.leaves(result)
            of = [(leaf.shape, leaf.dtype.name) for leaf in leaves]
            store(checkpoint, run, {"items": number, "seen": seen, "of": of}, leaves)
        elif number == counted:
            _require_same_items(seen == last_seen, "others", checkpoint, counted)
    _require_same_items(number >= counted, f"{number}", checkpoint, counted)
    assert result is not None
    return result


def _shaped(shape: list[int], dtype: str) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def _require_same_items(same: bool, got: str, checkpoint: Path, counted: int) -> None:
    expected = f"first the {counted} that {checkpoint} counts, the same in the same order"
    cure = f"Give them again, for example by one seed. {REMOVE}"
    require(same, "batches", got=got, expected=expected, cure=cure)
