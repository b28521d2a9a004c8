"""The rooms that this one became: `explanations`, `paper` and `validation`.

What it handed out, and its modules by their names, are found in them, with a `DeprecationWarning`.
It goes with the next minor version.
"""

import warnings
from typing import Any

# Under other names: two of them were those of modules, which are asked for by `__getattr__`.
from lim_jax import explanations as _explanations
from lim_jax import paper as _paper
from lim_jax import validation as _validation
from lim_jax._doors import missing

ROOMS = (_explanations, _paper, _validation)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # asked by tools
        raise AttributeError(name)
    for room in ROOMS:
        if name in room.__all__:
            _warn(name, f"{room.__name__}.{name}")
            return getattr(room, name)
        if room.__name__ == f"lim_jax.{name}":
            _warn(name, room.__name__)
            return room
    raise AttributeError(missing(__name__, name))


def __dir__() -> list[str]:
    return sorted(name for room in ROOMS for name in room.__all__)


def _warn(name: str, place: str) -> None:
    message = f"lim_jax.studies.{name} goes with the next minor version: take {place}."
    warnings.warn(message, DeprecationWarning, stacklevel=3)
