"""Files from which a run that was interrupted goes on: arrays, or lines of plain values."""

import json
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

from lim_jax._argument_error import Refusal
from lim_jax._atomic_files import saying_what_is_lacking, write_file
from lim_jax._checks import AnyPath, as_path, require
from lim_jax._digest import digest
from lim_jax._npz import (
    Arrays,
    Format,
    put_array,
    read_arrays,
    take_array,
    write_arrays,
)

Result = TypeVar("Result")
# What tells one run from another: plain values by name.
Run = Mapping[str, Any]
REMOVE = "Remove it, or name another checkpoint."
RUN = Format("lim_jax run", "checkpoint", f"Copy it whole. {REMOVE}")
SAME = "Pass what that run was given, to go on; or remove it, or name another checkpoint."


def checkpoint_file(file: AnyPath, name: str = "checkpoint") -> Path:
    """Return a path where a file is or can be made; raise ValueError at others."""
    path = as_path(file, name)
    _require_path(path, name, not path.is_dir(), "a folder", "a file, there or to be made")
    return path


def checkpoint_folder(checkpoint: AnyPath) -> Path:
    """Return a path where a folder is or can be made; raise ValueError at others."""
    path = as_path(checkpoint, "checkpoint")
    _require_path(path, "checkpoint", not path.is_file(), "a file", "a folder, there or to be made")
    return path


def within_checkpoint(checkpoint: Path | None, name: str) -> Path | None:
    """Return the path of this name in the folder of a checkpoint; None where there is none."""
    return None if checkpoint is None else checkpoint / name


def _require_path(path: Path, name: str, holds: bool, kind: str, expected: str) -> None:
    """Raise ValueError unless `holds` and no parent of the path is a file."""
    within = next((parent for parent in path.parents if parent.is_file()), None)
    require(
        holds and within is None,
        name,
        got=(
            f"{path}, which is {kind}" if within is None else f"{path}, inside of the file {within}"
        ),
        expected=expected,
        cure="Name another path.",
    )


def store(path: Path, run: Run, about: Mapping[str, Any], tree: PyTree) -> None:
    """Store a pytree's arrays and numbers, with the run they belong to and facts about them."""
    arrays: Arrays = {}
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_array_like))
    entries = [put_array(np.asarray(leaf), str(n), arrays) for n, leaf in enumerate(leaves)]
    write_arrays(path, RUN, {"run": run, **about, "leaves": entries}, arrays)


def restore(path: Path, run: Run) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Read the header and leaves that `store` wrote; raise ValueError if of another run."""
    about, arrays = read_arrays(checkpoint_file(path), RUN)
    _require_run(path, about, run)
    return about, [take_array(leaf, arrays) for leaf in about["leaves"]]


def _as_read_from_json(value: Any) -> Any:
    """Return a value as JSON reads it back: lists in place of tuples."""
    return json.loads(json.dumps(value))


def _document(text: bytes) -> dict[str, Any]:
    """Parse a line of JSON; return an empty dictionary if it is no object."""
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _require_run(path: Path, about: Mapping[str, Any], run: Run) -> None:
    """Raise ValueError unless a file's header names the same run."""
    earlier_run = about.get("run")
    require(
        isinstance(earlier_run, dict),
        "checkpoint",
        got=f"{path}, which is of no run",
        expected="what a run stored",
        cure=REMOVE,
    )
    assert isinstance(earlier_run, dict)
    for name, value in _as_read_from_json(run).items():
        require(
            earlier_run.get(name) == value,
            "checkpoint",
            got=f"{path}, of {name} {earlier_run.get(name)}",
            expected=f"one of {name} {value}",
            cure=SAME,
        )


def each_once(
    groups: Mapping[str, Callable[[], Any]],
    checkpoint: AnyPath | None,
    run: Run,
    progress: Callable[[list], Iterable] = iter,
) -> dict[str, Any]:
    """Compute each group's result, unless a checkpoint file of JSON lines has it already."""
    file = None if checkpoint is None else checkpoint_file(checkpoint)
    begun = file is not None and file.exists()
    done = _journal(file, run) if file is not None and begun else {}
    for name in progress(list(groups)):
        if name in done:
            continue
        done[name] = _as_read_from_json(groups[name]())
        if file is not None:
            if not begun:
                write_file(file, _line({"run": run}))
                begun = True
            line = _line({"name": name, "found": done[name]})
            with saying_what_is_lacking(file, len(line)), file.open("ab") as grown:
                grown.write(line)
    return {name: done[name] for name in groups if name in done}


def once(
    path: Path,
    run: Run,
    measure: Callable[[], Result],
    make_result: Callable[[list], Result] = itemgetter(0),
) -> Result:
    """Measure once: read the result from a file if there is one, and else compute and store it."""
    if path.exists():
        return make_result(restore(path, run)[1])
    result = measure()
    store(path, run, {}, result)
    return result


def _journal(path: Path, run: Run) -> dict[str, Any]:
    """Read the results of a run from a file of JSON lines, and cut off a torn last line.

    The first line names the run; ValueError is raised where it is another's.
    """
    file_lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in file_lines if line.endswith(b"\n")]
    head, *lines = whole or [b""]  # a torn first line names no run
    _require_run(path, _document(head), run)
    entries = list(map(_document, lines))
    if not all({"name", "found"} <= entry.keys() for entry in entries):
        raise Refusal(
            f"checkpoint: got {path}, which is cut short or damaged, expected all that a run "
            f"stored. {RUN.cure}"
        )
    write_file(path, b"".join([head, *lines]))
    return {entry["name"]: entry["found"] for entry in entries}


def _line(document: Mapping[str, Any]) -> bytes:
    """Return a JSON document as one line of a file."""
    return json.dumps(document).encode() + b"\n"


def reduced(
    measure: Callable[[Any], Result],
    merge: Callable[[Result, Result], Result],
    items: Iterable[Any],
    checkpoint: AnyPath,
    run: Run,
    make_result: Callable[[list[Array]], Result],
    *,
    named: bool = False,
) -> Result:
    """Measure one item or more and merge the results, which are stored after each item.

    With `named` the run has a name of the user's, by which code in the items is told (`digest`).
    """
    checkpoint = checkpoint_file(checkpoint)
    num_done = 0
    last_fingerprint = ""
    result = None
    if checkpoint.exists():
        about, leaves = restore(checkpoint, run)
        num_done = about["items"]
        last_fingerprint = about["seen"]
        result = make_result(jax.device_put(leaves))
    number = 0
    fingerprint = ""
    for number, item in enumerate(items, start=1):
        fingerprint = digest(item, after=fingerprint, named=named)
        if number > num_done:
            result = measure(item) if result is None else merge(result, measure(item))
            store(checkpoint, run, {"items": number, "seen": fingerprint}, result)
        elif number == num_done:
            _require_same_items(fingerprint == last_fingerprint, "others", checkpoint, num_done)
    _require_same_items(number >= num_done, f"{number}", checkpoint, num_done)
    assert result is not None
    return result


def _require_same_items(same: bool, got: str, checkpoint: Path, counted: int) -> None:
    """Raise ValueError unless the items are the ones that the checkpoint counted."""
    require(
        same,
        "batches",
        got=got,
        expected=f"first the {counted} that {checkpoint} counts, the same in the same order",
        cure=f"Give them again, for example by one seed. {REMOVE}",
    )
