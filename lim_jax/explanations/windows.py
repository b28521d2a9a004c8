"""The contexts of an explanation: ids of one length or of several, and where each is asked."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._checks import ARRAYS, described, require, require_floats, require_kind
from lim_jax.density.common_grid import TokenMask, common_token_grid
from lim_jax.grid.cells import token_grid
from lim_jax.grid.interpolation import carrying_shares
from lim_jax.grid.partition import (
    Regions,
    boundary_regions,
    has_all_regions,
    require_regions,
)
from lim_jax.models.causal import CausalLM

# Contexts of ids with the id after each, of one length or each of its own; and where they ask.
Windows = Int[Array, "examples tokens"] | Sequence[Int[Array | np.ndarray, " _"]]
QueryWeights = Float[Array, "*examples length"] | Sequence[Float[Array | np.ndarray, " _"]]


def require_windows(model: Any, windows: Any, regions: Any) -> None:
    """Raise ValueError unless these are a model, windows of ids, and regions that fit them."""
    require_kind(model, CausalLM, "model", "Take models.load(folder), or models.byte_model.")
    require_regions(regions)
    length = regions.grid.size
    if isinstance(windows, Sequence):
        others = [at for at, row in enumerate(windows) if not _is_row_of_ids(row)]
        _require_ids(
            len(windows) > 0 and not others,
            f"{described(windows[others[0]])} at index {others[0]}" if others else "none",
            length,
        )
    else:
        _require_ids(
            _are_ids(windows) and windows.shape[1:] == (length + 1,) and len(windows) > 0,
            described(windows),
            length,
        )
    _require_positions_of_all(windows, regions)


def _require_ids(holds: bool, got: str, length: int) -> None:
    """Raise ValueError unless windows hold ids, as the caller found, for regions of a length."""
    require(
        holds,
        "windows",
        got=got,
        expected=(
            f"ids, whole numbers of shape (examples, {length + 1}); or a list of rows of two or "
            "more"
        ),
        cure=(
            "Take models.sample_windows(ids, length, count): a window holds a context and the id "
            "after it."
        ),
    )


def _are_ids(ids: Any) -> bool:
    """Tell whether this is an array of whole numbers."""
    return isinstance(ids, ARRAYS) and jnp.issubdtype(ids.dtype, jnp.integer)


def _is_row_of_ids(row: Any) -> bool:
    """Tell whether this is a context of at least one id with the id after it."""
    return _are_ids(row) and row.ndim == 1 and row.size > 1


def _require_positions_of_all(windows: Windows, regions: Regions) -> None:
    """Raise ValueError where regions leave out positions that a context does not have as they do.

    A position that is left out on one grid names no token on a grid of another length.
    """
    length = regions.grid.size
    lengths = [len(window) - 1 for window in windows]
    shortest = min(lengths)
    longest = max(lengths)
    left_out = len(regions.left_out)
    require(
        not left_out or shortest == longest == length,
        "regions",
        got=f"{left_out} of {length} positions left out, and contexts of {shortest} to {longest}",
        expected="no position left out where a context's length is not that of the regions",
        cure="Pass regions of boundary_regions as they are, or contexts of their length.",
    )


def require_query_weights(query_weights: Any, windows: Windows) -> None:
    """Raise ValueError unless there is a weight for each position of each context."""
    lengths = [len(window) - 1 for window in windows]
    if isinstance(query_weights, Sequence):
        require(
            len(query_weights) == len(lengths),
            "query_weights",
            got=f"{len(query_weights)} rows",
            expected=f"{len(lengths)}, one for each context",
            cure="Pass one row for each context.",
        )
        for row, length in zip(query_weights, lengths, strict=True):
            require_floats(row, "query_weights", "length", length=length)
        return
    require(
        len(set(lengths)) == 1,
        "query_weights",
        got=described(query_weights),
        expected="a list of rows",
        cure="Pass a row for each context, of its own length.",
    )
    axes = "examples length" if np.ndim(query_weights) == 2 else "length"
    length = lengths[0]
    examples = len(lengths)
    require_floats(query_weights, "query_weights", axes, length=length, examples=examples)


def carried_to(
    regions: Regions, length: int
) -> tuple[Regions, Float[np.ndarray, "cells length"] | None]:
    """Return a context's own regions and the matrix that carries its profiles to `regions`.

    None stands for the matrix where the lengths are the same.
    """
    if length == regions.grid.size:
        return regions, None
    dtype = regions.grid.nodes.dtype
    context_regions = boundary_regions(token_grid(length, dtype), regions.delta, regions.convention)
    return context_regions, carrying_shares(context_regions.grid, regions.grid).astype(dtype)


def unasked_tokens(count: int, query_weights: QueryWeights, regions: Regions) -> list[TokenMask]:
    """Return which tokens of each of `count` contexts are neither asked nor left out by regions."""
    if isinstance(query_weights, Sequence):
        rows = [np.asarray(row) for row in query_weights]
    else:
        rows = list(np.broadcast_to(query_weights, (count, regions.grid.size)))
    return [(row == 0) & ~np.isin(np.arange(row.size), regions.left_out) for row in rows]


def regions_of_unasked(unasked: Sequence[TokenMask], regions: Regions) -> Regions | None:
    """Return regions of the tokens that are not asked; None if a context or region has none."""
    lengths = [int(tokens.sum()) for tokens in unasked]
    if min(lengths) == 0:
        return None
    grid = common_token_grid(lengths, regions.grid.nodes.dtype)
    if not has_all_regions(grid, regions.delta, regions.convention):
        return None
    return boundary_regions(grid, regions.delta, regions.convention)
