"""Contexts of any lengths on one grid: their regions, their influence, and tokens left out."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Bool

from lim_jax.density.statistics import Influence
from lim_jax.grid.cells import CellGrid, token_grid
from lim_jax.grid.interpolation import carrying_shares
from lim_jax.grid.partition import Convention, Regions, boundary_regions

CELLS = 100  # at most, where contexts are of several lengths
TokenMask = Bool[np.ndarray, " _"]


def common_regions(
    lengths: Sequence[int],
    delta: float | Fraction,
    dtype: DTypeLike | None = None,
    convention: Convention = "overlap",
) -> Regions:
    """Return the boundary regions of one grid for contexts of these lengths.

    If lengths differ, it has as many cells as their median, but at most `CELLS`.
    """
    return boundary_regions(common_token_grid(lengths, dtype), delta, convention)


def common_token_grid(lengths: Sequence[int], dtype: DTypeLike | None = None) -> CellGrid:
    """Return one token grid for contexts of these lengths, as of `common_regions`."""
    several = len(set(lengths)) > 1
    return token_grid(min(CELLS, int(np.median(lengths))) if several else lengths[0], dtype)


def influence_of_contexts(energies: Sequence[Any], regions: Regions) -> Influence:
    """Measure the influence of contexts of any lengths, whose energies are carried to one grid."""
    arrays = [np.asarray(energy) for energy in energies]
    lengths = {array.size for array in arrays}
    shares = {length: carrying_shares(token_grid(length), regions.grid) for length in lengths}
    carried = np.stack([shares[array.size] @ array for array in arrays])
    dtype = regions.weights.dtype
    return Influence.from_energies(
        jax.device_put(carried.astype(dtype)), regions, keep_examples=True
    )


def energies_of_tokens(energies: Sequence[Any], kept: Sequence[TokenMask]) -> list[np.ndarray]:
    """Return the energies of the tokens that are kept of each context, as of a context of these.

    They are scaled so that their integral over these tokens alone is that in the whole context.
    """
    pairs = zip(map(np.asarray, energies), kept, strict=True)
    return [energy[mask] * int(mask.sum()) / energy.size for energy, mask in pairs]
