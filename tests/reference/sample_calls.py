"""Right calls, and what can mean nothing in place of each of their arguments."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

LENGTH = 3  # of an axis along which rows are counted
NOT_FINITE = {"NaN": np.nan, "infinity": np.inf}
JUNK = {
    "string": "3?", "list": [1.0, 2.0], "list of strings": ["1", "2"], "empty list": [],
    "dictionary": {"size": 3}, "complex number": 1j, "object": object(),
}  # fmt: skip
ARRAY = np.ones((2, 5, 7))
# What a call refuses besides, in places of numbers that have bounds and of lists.
NEGATIVE = {"negative": -1e-3}
NOT_POSITIVE = NOT_FINITE | {"zero": 0, "negative": -4.0}
NO_SHARE = NEGATIVE | {"one": 1.0}
EMPTY = {"empty list": []}


class Call(NamedTuple):
    """A function with right arguments, and where `bad_values` says too much or too little of one.

    `accepts` are kinds of bad values that mean something in an argument's place ("anything": all
    are the caller's own affair), `refuses` are more values that mean nothing. NaN in what stands in
    `hides_nan` need not be seen in the results: it is not read, or the call is never run here.
    """

    function: Callable[..., Any]
    right: dict[str, Any]
    accepts: dict[str, str] = {}
    refuses: dict[str, dict[str, Any]] = {}
    hides_nan: str = ""

    def bad(self, argument: str) -> dict[str, Any]:
        """Return the values that must be refused in an argument's place, by kind."""
        kinds = self.accepts.get(argument, "").split(", ")
        values = {} if kinds == ["anything"] else bad_values(self.right[argument])
        values = {kind: value for kind, value in values.items() if kind.split(":")[0] not in kinds}
        return values | self.refuses.get(argument, {})

    def poisoned(self, argument: str) -> dict[str, Any]:
        """Return what must be refused or give NaN: the argument with one number that is none."""
        right = self.right[argument]
        if argument in self.hides_nan.split() or self.accepts.get(argument) == "anything":
            return {}
        if isinstance(right, float):
            return NOT_FINITE
        if not is_numeric(right) or not np.issubdtype(right.dtype, np.floating):
            return {}
        first = np.arange(right.size).reshape(right.shape) == 0
        return {name: np.where(first, value, right) for name, value in NOT_FINITE.items()}


def is_numeric(value: Any) -> bool:
    """Tell arrays of numbers from keys, which are arrays of JAX too."""
    if isinstance(value, jax.Array):
        return not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return isinstance(value, np.ndarray)


def bad_values(right: Any) -> dict[str, Any]:
    """Return what can mean nothing in place of a value, by its type; kinds name the values."""
    none = {"none": None}
    integer = {"int": 3}
    real = {"float": 0.5}
    array = {"array": ARRAY}
    if is_numeric(right):
        numbers = np.asarray(right)
        if np.issubdtype(numbers.dtype, np.floating):
            return none | integer | real | JUNK | bad_arrays(numbers) | bad_rows(numbers)
        floats = {"floats": numbers + 0.0}
        listed = {"as a list": numbers.tolist()}
        return (
            none | integer | real | array | JUNK | floats | listed | {"none of them": numbers[:0]}
        )
    if isinstance(right, int):
        return none | real | {"array": np.ones(2, int), "negative": -1, "boolean": True} | JUNK
    if isinstance(right, float):
        return none | array | {"boolean": True} | JUNK
    values = none | integer | real | array | JUNK
    if isinstance(right, str):
        del values["string"]
    elif type(right) in (list, tuple):
        del values["empty list"]
        values["its class"] = type(right)
    elif not (right is None or callable(right) or isinstance(right, dict)):
        values["its class"] = type(right)
    return values


def bad_arrays(numbers: np.ndarray) -> dict[str, Any]:
    """Return the numbers in other types and shapes."""
    return {
        "as a list": numbers.tolist(),
        "complex": numbers + 1j,
        "booleans": numbers > 0,
        "integers": (10 * numbers).astype(int),
        "numbers as strings": numbers.astype(str),
        "objects": numbers.astype(object),
        "batched": numbers[None],
    }


def bad_rows(numbers: np.ndarray) -> dict[str, Any]:
    """Return the numbers with one row more, one less and none, along each axis of rows."""
    rows = {}
    for axis in (axis for axis, size in enumerate(numbers.shape) if size == LENGTH):
        more = np.concatenate([numbers, numbers.take([0], axis)], axis)
        rows[f"rows: one more along {axis}"] = more
        rows[f"rows: one less along {axis}"] = numbers.take(range(LENGTH - 1), axis)
        rows[f"rows: none along {axis}"] = numbers.take([], axis)
    return rows
