"""A fingerprint of a value, the same in every process: two of one digest compute the same.

It is of arrays, of static fields and plain values, and of functions' code with what this uses; of
no address, no `hash`, no order of a set.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from hashlib import sha256
from inspect import unwrap
from numbers import Number
from pathlib import PurePath
from types import CellType, CodeType, EllipsisType, FunctionType, ModuleType, NoneType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lim_jax._checks import ARRAYS

PLAIN = NoneType | Number | str | bytes | PurePath | Enum | range | slice | EllipsisType | np.dtype
NUMBERS = (*ARRAYS, np.generic)
DATA = (NoneType, Number, str, bytes, eqx.Module)
LIBRARIES = ("diffrax", "equinox", "jax", "jaxlib", "lim_jax", "optax")
RULES = ("jvp", "fwd", "bwd")  # derivatives that functions are given by jax.custom_jvp, custom_vjp
# What was met before, by its address, which is its own as long as it is kept here; and its hash.
Known = dict[int, tuple[Any, bytes]]


def digest(value: PyTree, after: str = "") -> str:
    """A fingerprint of all that a value computes with, and of what went before it.

    Classes, functions of `LIBRARIES`, and functions found in other modules, are told by their
    names.
    """
    return sha256(after.encode() + _hash(value, {})).hexdigest()[:16]


def _hash(value: Any, known: Known) -> bytes:
    if id(value) in known:
        return known[id(value)][1]
    known[id(value)] = value, b"itself"
    if isinstance(value, NUMBERS):
        hashed = _hash_of_array(value, known)
    elif isinstance(value, PLAIN):
        hashed = _joined(type(value), repr(value).encode())
    elif isinstance(value, type | ModuleType):
        hashed = _joined(type(value), _name(value).encode())
    elif _held_by_library(value):
        hashed = _joined(FunctionType, _name(value).encode())
    elif isinstance(value, Mapping | Set):
        entries = value.items() if isinstance(value, Mapping) else value
        hashed = _joined(type(value), *sorted(_hash(entry, known) for entry in entries))
    else:
        hashed = _joined(type(value), *(_hash(part, known) for part in _parts(value)))
    known[id(value)] = value, hashed
    return hashed


def _held_by_library(value: Any) -> bool:
    """Whether a library has it under its own name, by which pickle would find it too."""
    module = getattr(value, "__module__", None) or ""
    held: Any = sys.modules.get(module) if module.partition(".")[0] in LIBRARIES else None
    for part in (getattr(value, "__qualname__", None) or "").split("."):
        held = getattr(held, part, None)
    return held is not None and held is value


def _joined(kind: type, *parts: Any) -> bytes:
    hashed = sha256(f"{_name(kind)} {[len(part) for part in parts]}".encode())
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def _name(value: Any) -> str:
    own = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    return f"{getattr(value, '__module__', '')}.{own}"


def _hash_of_array(array: Any, known: Known) -> bytes:
    """Of NumPy's arrays and of JAX's alike, and of random keys."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        numbers = _hash(jax.random.key_data(array), known)
        return _joined(jax.Array, str(array.dtype).encode(), numbers)
    array = np.asarray(array)
    if array.dtype.hasobject:
        return _joined(np.ndarray, str(array.shape).encode(), _hash(array.ravel().tolist(), known))
    numbers = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return _joined(np.ndarray, f"{array.dtype} {array.shape}".encode(), numbers)


def _parts(value: Any) -> Iterable[Any]:
    """What tells a value from others of its type, in order."""
    if hasattr(value, "_identity"):
        return value._identity()
    if isinstance(value, Sequence):
        return value
    if isinstance(value, jax.sharding.Mesh):
        return value.axis_names, value.devices.shape
    if isinstance(value, jax.ShapeDtypeStruct):
        return value.shape, value.dtype
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if isinstance(value, CodeType):
        return value.co_code, value.co_consts, value.co_names, value.co_varnames, value.co_freevars
    if hasattr(value, "__self__"):  # bound
        return getattr(value, "__func__", _name(value)), value.__self__
    wrapped = getattr(value, "__wrapped__", None)
    # These may hold addresses: compiled programs, and the very code of a checker of types.
    by_library = not isinstance(value, FunctionType) or hasattr(value, "__beartype_wrapper")
    if wrapped is not None and by_library:
        return wrapped, *(getattr(value, rule, None) for rule in RULES), _data(_state(value))
    if isinstance(value, FunctionType):
        used = _closed_over(value), _found_beside(value)
        return value.__code__, value.__defaults__, value.__kwdefaults__, *used
    return (_state(value),)


def _state(value: Any) -> dict[str, Any]:
    """An object's fields by name, without the name and the module that wrappers copy."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    state: Any = object.__getstate__(value)
    parts = state if isinstance(state, tuple) else (state,)
    named = {name: part for some in parts if some for name, part in some.items()}
    return {name: part for name, part in named.items() if not name.startswith("__")}


def _closed_over(function: FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    # A cell is empty where what it is of is not there yet.
    return {name: cell.cell_contents for name, cell in cells if cell != CellType()}


def _found_beside(function: FunctionType) -> dict[str, Any]:
    """What a function finds by name: data, functions of its module, and the others' names."""
    space = function.__globals__
    used = {name: space[name] for name in _names(function.__code__) if name in space}
    beside = {
        name: value
        for name, value in used.items()
        if getattr(unwrap(value), "__globals__", None) is space
    }
    return {name: _name(value) for name, value in used.items()} | _data(used) | beside


def _names(code: CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _data(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are networks, or numbers, words and arrays, or in containers of them."""
    return {name: value for name, value in values.items() if _is_data(value)}


def _is_data(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_data, value.values()))
    if isinstance(value, list | tuple | Set):
        return all(map(_is_data, value))
    return isinstance(value, NUMBERS + DATA)
