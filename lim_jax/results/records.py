"""Results as JSON: plain numbers and strings, for other programs and for tables."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
from jax.core import Tracer

from lim_jax._checks import (
    ARRAYS,
    counted,
    described,
    require,
)


def to_json(result: Any, indent: int | None = None) -> str:
    """Write a result as JSON, with all that it holds.

    What has a method ``record()`` is written by it: influence, explanations, certificates, rows of
    a convergence study. Other results are written field by field, arrays as nested lists, and any
    dictionaries and lists of results entry by entry.

    JSON has no word for what is not a finite number: these are the strings "NaN", "Infinity" and
    "-Infinity", which ``float`` reads, and ``Number`` in JavaScript.

    Parameters
    ----------
    result
        A result of the library, or dictionaries and lists of them.
    indent
        As in `json.dumps`.

    Raises
    ------
    ValueError
        Where something in it is traced, or has no such form.

    Examples
    --------
    >>> from lim_jax.probes import Estimate
    >>> to_json({"mass": Estimate(np.ones(2), np.full(2, np.inf))})
    '{"mass": {"value": [1.0, 1.0], "error": ["Infinity", "Infinity"]}}'
    """
    indent = None if indent is None else counted(indent, "indent", least=0)
    return json.dumps(plain(result), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """What `to_json` writes, before it is text: dictionaries, lists, numbers and strings."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _word(value)
    if isinstance(value, ARRAYS + (np.generic,)):
        return plain(known(value).tolist())
    is_kind = isinstance(value, type) and value.__module__.startswith("lim_jax.")
    if hasattr(value, "record") and not is_kind:
        return plain(value.record())
    if hasattr(value, "_asdict") and not is_kind:
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, eqx.Module):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Fraction | Path | np.dtype):
        return str(value)
    named = getattr(value, "__name__", None)  # a function, or a type of numbers
    require(
        named is not None and not is_kind,
        "result",
        got=described(value),
        expected="results, arrays, numbers and strings, in dictionaries and lists",
        cure="Leave it out, for example by result._replace(name=None).",
    )
    return str(named)


def _word(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def known(array: Any) -> np.ndarray:
    """Return an array as NumPy's; refuse one that is traced."""
    require(
        not isinstance(array, Tracer),
        "result",
        got="traced arrays",
        expected="numbers that are there",
        cure="Call it outside jax.jit, jax.vmap and jax.grad.",
    )
    return np.asarray(array)
