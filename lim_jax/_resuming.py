"""What is kept of a run, so that one that was interrupted goes on.

A file is seen whole or not at all, whenever the process dies that writes it.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import equinox as eqx
from jaxtyping import PyTree

from lim_jax._checks import require

REMOVE = "Remove it, or name another checkpoint."


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under another name first, in a folder that is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half_written = path.with_name(path.name + ".part")
    with half_written.open("wb") as file:
        write(file)
    half_written.replace(path)


def store(path: Path, maker: str, about: Mapping[str, Any], tree: PyTree) -> None:
    """Store a pytree's arrays and numbers, after a line of JSON: who made it, and what it is of."""

    def write(file: BinaryIO) -> None:
        file.write(json.dumps({"maker": maker, **about}).encode() + b"\n")
        eqx.tree_serialise_leaves(file, tree)

    write_whole(path, write)


def stored(path: Path, maker: str, like: Callable[[dict], PyTree]) -> tuple[dict, PyTree]:
    """Read what `store` wrote: what it is of, and the pytree, which is shaped as `like` of that."""
    with path.open("rb") as file:
        about = _header(file)
        require(
            about.get("maker") == maker,
            "checkpoint",
            got=f"{path}, which {about.get('maker', 'something else')} wrote",
            expected=f"a file that {maker} wrote",
            cure=REMOVE,
        )
        try:
            return about, eqx.tree_deserialise_leaves(file, like(about))
        except RuntimeError as error:
            error.add_note(f"{path} is of another run. {REMOVE}")
            raise


def _header(file: BinaryIO) -> dict[str, Any]:
    try:
        about = json.loads(file.readline())
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}
