"""A room's names, loaded when they are used, and an error that helps to find a missing one."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import lazy_loader

PACKAGE = Path(__file__).parent


def attach_stub(
    room: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a package's ``__getattr__``, ``__dir__`` and ``__all__``, by the stub beside it."""
    load, listed, names = lazy_loader.attach_stub(room, file)

    def get(name: str) -> Any:
        """Load a public name; raise AttributeError that says where a missing one may be found."""
        if name in names:
            return load(name)
        if name.startswith("__"):  # asked by tools
            raise AttributeError(name)
        raise AttributeError(missing(room, name))

    return get, listed, names


def missing(room: str, name: str) -> str:
    """Say where a missing name is, or list names that begin like it, and the public packages."""
    room_of = _rooms_by_name()
    start = name[:5].lower()
    like = [each for each in room_of if any(word.startswith(start) for word in each.split("_"))]
    if name in room_of:
        suggestions = [name]
    else:
        suggestions = sorted(like, key=lambda each: room_of[each] != room)[:5]
    expected = ", ".join(f"{room_of[each]}.{each}" for each in suggestions)
    expected = expected or f"one of dir({room})"
    rooms = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.pyi"))
    return (
        f"{room}.{name}: got a name that is not there, expected {expected}. "
        f"Look in the rooms of lim_jax: {', '.join(rooms)}."
    )


@cache
def _rooms_by_name() -> dict[str, str]:
    """Return the package that exports each public name, `lim_jax` itself where it does."""
    doors = [*sorted(PACKAGE.glob("*/__init__.pyi")), PACKAGE / "__init__.pyi"]
    return {
        name: ".".join(["lim_jax", *door.parent.relative_to(PACKAGE).parts])
        for door in doors
        for name in re.findall(r"import (\w+) as", door.read_text(encoding="utf-8"))
    }
