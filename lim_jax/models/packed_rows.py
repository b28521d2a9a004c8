"""Padded batches and packed rows of ids, cut into their contexts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Integer

from lim_jax._checks import ARRAYS, described, require

Rows = Integer[Array | np.ndarray, "rows tokens"]


def contexts(
    ids: Rows,
    mask: Rows | Bool[Array | np.ndarray, "rows tokens"] | None = None,
    segments: Rows | None = None,
) -> list[Int[Array, " _"]]:
    """Cut padded or packed rows of ids into their contexts, which never see each other.

    Parameters
    ----------
    ids
        The ids, of shape ``(rows, tokens)``.
    mask
        One for an id and zero for padding, left or right, of the shape of `ids`; None for rows
        without padding, or of which `segments` mark it.
    segments
        The number of each id's context within its row, from 1, and zero for padding, of the shape
        of `ids`; None for one context in each row.

    Returns
    -------
    list of Int[Array, " _"]
        The ids of each context, row by row: each is a window for `influence_of_ids`, whose last id
        is a target only.

    Raises
    ------
    ValueError
        If neither mask nor segments are given, shapes differ, a number is below zero, or zero where
        the mask is one, a row is all padding, or a mask or a segment has a hole.

    Examples
    --------
    >>> ids = np.array([[7, 8, 9, 0], [3, 4, 5, 6]])
    >>> [window.tolist() for window in contexts(ids, mask=np.array([[1, 1, 1, 0], [1, 1, 1, 1]]))]
    [[7, 8, 9], [3, 4, 5, 6]]
    >>> [window.tolist() for window in contexts(ids[1:], segments=np.array([[1, 1, 2, 2]]))]
    [[3, 4], [5, 6]]
    """
    has_table = mask is not None or segments is not None
    require(
        has_table,
        "mask",
        got="neither mask nor segments",
        expected="mask or segments",
        cure="Pass list(ids) as windows where rows have no padding.",
    )
    _require_table(ids, "ids", ids)
    for table, name in ((mask, "mask"), (segments, "segments")):
        if table is not None:
            _require_table(table, name, ids)
    marked = np.asarray(segments) != 0 if mask is None else np.asarray(mask)
    is_token = marked.astype(int)
    others = np.setdiff1d(is_token, (0, 1))
    require(
        others.size == 0,
        "mask",
        got=f"the numbers {others[:3].tolist()}",
        expected="ones and zeros",
        cure="Pass one for an id and zero for padding.",
    )
    numbers = is_token if segments is None else np.where(is_token == 1, np.asarray(segments), 0)
    positive = bool((numbers[is_token == 1] > 0).all())
    require(
        positive,
        "segments",
        got="numbers below one",
        expected="positive numbers except for padding",
        cure="Number contexts from one; zero is padding, where the mask is zero too.",
    )
    pairs = zip(np.asarray(ids), numbers, strict=True)
    return [jax.device_put(context) for row, of in pairs for context in _contexts_of_row(row, of)]


def _contexts_of_row(row: np.ndarray, numbers: np.ndarray) -> list[np.ndarray]:
    """Return the ids of each context of a row; raise ValueError if one is not in one piece."""
    starts = np.flatnonzero(np.diff(numbers)) + 1
    runs = [run for run in np.split(np.arange(row.size), starts) if numbers[run[0]] > 0]
    names = [int(numbers[run[0]]) for run in runs]
    in_one_piece = len(set(names)) == len(names) > 0
    require(
        in_one_piece,
        "rows",
        got=f"contexts {names} in a row",
        expected="at least one context in each row, and each in one piece",
        cure="Leave rows of padding out, and put padding left or right of a context, not inside.",
    )
    return [row[run] for run in runs]


def _require_table(table: Any, name: str, ids: Any) -> None:
    """Raise ValueError unless this is a table of integers with the shape of `ids`."""
    kinds = (np.integer, np.bool_) if name == "mask" else (np.integer,)
    integers = isinstance(table, ARRAYS) and any(
        jnp.issubdtype(table.dtype, kind) for kind in kinds
    )
    shape = "a row for each example" if table is ids else f"of shape {ids.shape}, that of ids"
    require(
        integers and table.ndim == 2 and table.size > 0 and table.shape == ids.shape,
        name,
        got=described(table),
        expected=f"whole numbers, {shape}",
        cure="Pass an array for all rows.",
    )
