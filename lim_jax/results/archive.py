"""Results in one file: arrays in NumPy's format, and the rest as JSON text that names them."""

import math
from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lim_jax._argument_error import refusal
from lim_jax._checks import ARRAYS, AnyPath, as_path, described, require, require_known
from lim_jax._npz import Arrays, Format, put_array, read_arrays, take_array, write_arrays
from lim_jax._partial_runs import checkpoint_file

RESULT = Format("lim_jax result", "path", "Write it again by results.save, or copy it whole.")
# By room and name, with the file of each: it is loaded when a result of it is read.
KINDS = {
    "adjoint.Certificate": "adjoint.certificate",
    "adjoint.Channels": "adjoint.ledger",
    "adjoint.Inequality": "adjoint.certificate",
    "adjoint.Premise": "adjoint.certificate",
    "adjoint.RegionalChannels": "adjoint.ledger",
    "density.Indices": "density.statistics",
    "density.Influence": "density.statistics",
    "explanations.Explanation": "explanations.explanation",
    "grid.CellGrid": "grid.cells",
    "grid.PanelGrid": "grid.panels",
    "grid.Regions": "grid.partition",
    "limits.Curve": "limits.rows",
    "limits.Row": "limits.rows",
    "limits.Study": "limits.refinement",
    "probes.Estimate": "probes",
    "results.Comparison": "results.comparison",
    "results.MeasuredContexts": "results.context_energies",
    "training.TrainingPath": "training.dynamics",
}
# A study's rows are a sequence with a name.
SEQUENCES = {"builtins.list": "list", "builtins.tuple": "tuple", "limits.Rates": "rates"}


def kind_of(result: Any) -> str:
    """Return the room and the name of a result's type: ``density.Influence``."""
    modules = type(result).__module__.split(".")
    room = modules[1] if modules[0] == "lim_jax" and len(modules) > 1 else modules[0]
    return f"{room}.{type(result).__name__}"


def save(result: Any, path: AnyPath) -> None:
    """Write a result to a file that `load` reads back, every number exactly.

    For other tools take ``to_xarray(result).to_netcdf(path)``.

    Parameters
    ----------
    result
        An influence, channels, an explanation, certificates, rates and studies of limits, a
        training path (whose parameters are arrays in dictionaries and lists), a comparison,
        measured contexts; or a list or a dictionary of them, and of arrays and numbers, none
        traced.
    path
        The file, by custom ``*.npz``. One of that name is replaced at once; a folder that is
        missing is made.

    Returns
    -------
    None
        The file is written whole.

    Raises
    ------
    ValueError
        If something in the result is traced or of a kind that cannot be written, or `path` is a
        folder.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from lim_jax.density import Influence
    >>> regions = lim.boundary_regions(lim.token_grid(4), 0.25)
    >>> influence = Influence.from_energies(jnp.array([[1.0, 2.0, 4.0, 1.0]]), regions)
    >>> with TemporaryDirectory() as folder:
    ...     save(influence, f"{folder}/influence.npz")
    ...     float(load(f"{folder}/influence.npz").merge(influence).count)
    2.0
    """
    path = checkpoint_file(path, "path")
    arrays = {}
    write_arrays(path, RESULT, {"result": _as_json(result, "", arrays)}, arrays)


def load(path: AnyPath) -> Any:
    """Read what `save` wrote: the same result, its arrays exact and in their precision.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Any
        The result, of the type that was saved, with its arrays on JAX's default device.

    Raises
    ------
    ValueError
        If there is no such file, it is damaged, is no result of ours, or has finer numbers than JAX
        is set to.
    """
    path = as_path(path)
    require(path.is_file(), "path", got=str(path), expected="a file", cure="Check the path.")
    header, arrays = read_arrays(path, RESULT)
    try:
        return _from_json(header["result"], arrays)
    except Exception as error:  # whatever the parts make of what they are not
        if refusal(error) is not None:
            raise
        raise RESULT.refused(path, "of a header that does not fit its arrays") from error


def _as_json(value: Any, place: str, arrays: Arrays) -> Any:
    """Return a value as JSON, with its arrays put aside into `arrays` under their places.

    A value without a tag stands for itself.
    """
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, ARRAYS):
        return put_array(to_numpy(value), place or "array", arrays)
    if isinstance(value, Fraction):
        return {"fraction": str(value)}
    if isinstance(value, Mapping):
        others = [name for name in value if not isinstance(name, str)]
        require(
            not others,
            place or "result",
            got=f"an entry named {others[0]!r}" if others else "",
            expected="names that are texts",
            cure="Name entries by texts: a file knows no others.",
        )
        return {"dict": _entries_as_json(value, place, arrays)}
    if kind_of(value) in SEQUENCES:
        entries = _entries_as_json(dict(enumerate(value)), place, arrays)
        return {SEQUENCES[kind_of(value)]: list(entries.values())}
    if kind_of(value) in KINDS:
        parts = {name: getattr(value, name) for name in _field_names(type(value))}
        return {"kind": kind_of(value), "parts": _entries_as_json(parts, place, arrays)}
    kinds = np.generic | bool | int | float | complex
    is_number_type = isinstance(value, type) and issubclass(value, kinds)
    require(
        is_number_type or isinstance(value, np.dtype | type(jnp.float32)),
        place or "result",
        got=described(value),
        expected="a result, or lists and dictionaries of results, arrays and numbers",
        cure="Leave it out, for example by result._replace(params=None).",
    )
    return {"dtype": jnp.dtype(value).name}


def _entries_as_json(entries: Mapping[Any, Any], place: str, arrays: Arrays) -> dict[str, Any]:
    """Return each entry as JSON under its name."""
    return {
        str(name): _as_json(entry, f"{place}.{name}".lstrip("."), arrays)
        for name, entry in entries.items()
    }


def _from_json(value: Any, arrays: Arrays) -> Any:
    """Return the value that `_as_json` wrote in this way."""
    match value:
        case {"array": _, "dtype": _}:
            return _on_device(take_array(value, arrays))
        case {"kind": kind, "parts": parts}:
            require(
                kind in KINDS,
                "path",
                got=f"a result of the kind {kind!r}",
                expected=f"one of {', '.join(KINDS)}",
                cure="Read it with the lim_jax that wrote it.",
            )
            made = getattr(import_module(f"lim_jax.{KINDS[kind]}"), kind.split(".")[1])
            return made(**{name: _from_json(part, arrays) for name, part in parts.items()})
        case {"dict": entries}:
            return {name: _from_json(entry, arrays) for name, entry in entries.items()}
        case {"list": entries}:
            return [_from_json(entry, arrays) for entry in entries]
        case {"tuple": entries}:
            return tuple(_from_json(entry, arrays) for entry in entries)
        case {"rates": entries}:  # its file loads the solvers of differential equations
            rates = import_module("lim_jax.limits.network_studies").Rates
            return rates(_from_json(entry, arrays) for entry in entries)
        case {"float": text}:
            return float(text)
        case {"fraction": text}:
            return Fraction(text)
        case {"dtype": name}:
            return jnp.dtype(name)
        case dict() | list():
            raise ValueError("what no result is written as")
    return value


def _on_device(array: np.ndarray) -> jax.Array:
    """Put an array on JAX's default device; raise ValueError if JAX would make it less precise."""
    fits = jax.dtypes.canonicalize_dtype(array.dtype)
    require(
        fits == array.dtype,
        "path",
        got=f"numbers of {array.dtype}",
        expected="a precision that JAX is set to",
        cure="Load it inside of `with jax.enable_x64(True):`, or run with JAX_ENABLE_X64=1.",
    )
    return jax.device_put(array)


def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of a result type's fields."""
    return getattr(kind, "_fields", None) or tuple(field.name for field in fields(kind))


def to_numpy(array: Any) -> np.ndarray:
    """Return an array as NumPy's; raise ValueError for a traced one."""
    require_known(array, "result")
    return np.asarray(array)
