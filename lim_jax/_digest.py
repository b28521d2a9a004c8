"""A fingerprint of a value, the same in every process: two of one digest compute the same.

It is of data and names: of arrays, static fields and plain values, and of the names of what a
library has. What a function of the user's own computes no fingerprint says: the user names it.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from hashlib import sha256
from numbers import Number
from pathlib import PurePath
from types import EllipsisType, FunctionType, ModuleType, NoneType
from typing import Any
from weakref import finalize

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lim_jax._argument_error import Refusal
from lim_jax._checks import ARRAYS

PLAIN = NoneType | Number | str | bytes | PurePath | Enum | range | slice | EllipsisType | np.dtype
NUMBERS = (*ARRAYS, np.generic)
# What these have is told by its name: other versions of them may compute it otherwise compiled, and
# compute the same.
LIBRARIES = {
    *sys.stdlib_module_names, "diffrax", "equinox", "jax", "jaxlib", "lim_jax", "lineax",
    "ml_dtypes", "numpy", "optax", "optimistix",
}  # fmt: skip
DERIVATIVES = ("jvp", "fwd", "bwd")  # what jax.custom_jvp and custom_vjp are given
# What was met before, by its address, which is its own as long as it is kept here; and its hash.
HashesById = dict[int, tuple[Any, bytes]]
# By the addresses of JAX's arrays, as long as they live: they never change, and every step of a run
# asks for a fingerprint of the whole network.
HASHES_OF_ARRAYS: dict[int, bytes] = {}


def digest(value: PyTree, after: str = "", *, named: bool = False) -> str:
    """Return a fingerprint of the data that a value computes with; `after` is an earlier one.

    Functions and classes of `LIBRARIES` are told by their names. A function or class of the user's
    own raises `Refusal`, unless it is `named`: the user gave a name for it, which the caller
    compares. Of such objects the data count, and named tuples are data.
    """
    return sha256(after.encode() + _hash(value, {}, named)).hexdigest()[:16]


def _hash(value: Any, hashes: HashesById, named: bool) -> bytes:
    """Hash a value and all that it holds; `hashes` has those of objects met before."""
    if id(value) in hashes:
        return hashes[id(value)][1]
    hashes[id(value)] = value, b"itself"
    if isinstance(value, jax.Array):
        hashed = _hash_once(value, hashes, named)
    elif isinstance(value, NUMBERS):
        hashed = _hash_of_array(value, hashes, named)
    elif isinstance(value, PLAIN):
        hashed = _hash_parts(type(value), repr(value).encode())
    elif isinstance(value, type | ModuleType):
        _require_known(value, named)
        hashed = _hash_parts(type(value), _qualified_name(value).encode())
    elif _held_by_library(value):
        hashed = _hash_parts(FunctionType, _qualified_name(value).encode())
    elif isinstance(value, FunctionType):
        _require_known(value, named)
        hashed = _hash_parts(FunctionType, b"named by the user")
    elif isinstance(value, Mapping | Set):
        entries = value.items() if isinstance(value, Mapping) else value
        hashed = _hash_parts(type(value), *sorted(_hash(entry, hashes, named) for entry in entries))
    else:
        hashed = _hash_parts(
            type(value), *(_hash(part, hashes, named) for part in _parts(value, named))
        )
    hashes[id(value)] = value, hashed
    return hashed


def _require_known(value: Any, named: bool) -> None:
    """Raise ValueError at a function or class of no library, unless the user named the run."""
    if named or _held_by_library(value):
        return
    what = "class" if isinstance(value, type) else "function"
    raise Refusal(
        f"run: got no name for the {what} {_qualified_name(value)}, expected one of your own, by "
        "which a checkpoint tells this run from others. Pass a text as run, and another text when "
        "what it computes changes."
    )


def _held_by_library(value: Any) -> bool:
    """Tell whether a library has this object under its own name, where pickle would find it."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in LIBRARIES
    module = getattr(value, "__module__", None) or ""
    entry: Any = sys.modules.get(module) if module.partition(".")[0] in LIBRARIES else None
    for part in (getattr(value, "__qualname__", None) or "").split("."):
        entry = getattr(entry, part, None)
    return entry is not None and entry is value


def _hash_parts(kind: type, *parts: Any) -> bytes:
    """Hash the name of a type and byte strings, whose lengths keep them apart."""
    hashed = sha256(f"{_qualified_name(kind)} {[len(part) for part in parts]}".encode())
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def _qualified_name(value: Any) -> str:
    """Return the module and qualified name of a function, class or module."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    return f"{getattr(value, '__module__', '')}.{name}"


def _hash_once(array: jax.Array, hashes: HashesById, named: bool) -> bytes:
    """Hash an array of JAX, or return its hash of an earlier call."""
    address = id(array)
    if address not in HASHES_OF_ARRAYS:
        HASHES_OF_ARRAYS[address] = _hash_of_array(array, hashes, named)
        finalize(array, HASHES_OF_ARRAYS.pop, address, None)
    return HASHES_OF_ARRAYS[address]


def _hash_of_array(array: Any, hashes: HashesById, named: bool) -> bytes:
    """Hash an array's type, shape and bytes, alike for NumPy and JAX; random keys by their data."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        numbers = _hash(jax.random.key_data(array), hashes, named)
        return _hash_parts(jax.Array, str(array.dtype).encode(), numbers)
    array = np.asarray(array)
    if array.dtype.hasobject:
        objects = _hash(array.ravel().tolist(), hashes, named)
        return _hash_parts(np.ndarray, str(array.shape).encode(), objects)
    numbers = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return _hash_parts(np.ndarray, f"{array.dtype} {array.shape}".encode(), numbers)


def _parts(value: Any, named: bool) -> Iterable[Any]:
    """Return the parts that tell a value from others of its type, in a fixed order."""
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
    if hasattr(value, "__self__"):  # bound
        return getattr(value, "__func__", _qualified_name(value)), value.__self__
    if hasattr(value, "__wrapped__"):  # such as by jax.jit, whose own state holds addresses
        return value.__wrapped__, *(getattr(value, rule, None) for rule in DERIVATIVES)
    _require_known(type(value), named)
    return (_state(value),)


def _state(value: Any) -> dict[str, Any]:
    """Return an object's fields by name, without the dunder attributes that wrappers copy."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    state: Any = object.__getstate__(value)
    parts = state if isinstance(state, tuple) else (state,)
    named = {name: part for some in parts if some for name, part in some.items()}
    return {name: part for name, part in named.items() if not name.startswith("__")}
