r"""A causal convolution of every feature by itself, cut into a token's own tap and earlier ones.

.. math:: y_i = w_0 \odot r_i + \sum_{m=1}^{n-1} w_m \odot r_{i-m}

A field of two slots takes the own row from the slot `x` where it belongs to the query, so that no
token of that slot reads another. Taps are stored as in checkpoints, the own one last. A packed row
begins with rows of zeros before it.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import error_if, require
from lim_jax.grid.cells import CellGrid, Starts
from lim_jax.grid.measure import Grid
from lim_jax.weights import Weight

Rows = Float[Array, "heads length size"]
Taps = Float[Weight, "heads size taps"]


def packed_starts(grid: Grid) -> Starts | None:
    """Return where each row's context begins, None if at the first; raise off the token grid."""
    tokens = isinstance(grid, CellGrid) and grid.is_of_tokens
    require(
        tokens,
        "grid",
        got=type(grid).__name__,
        expected="token_grid: a recurrent layer goes from token to token",
        cure=(
            "Take token_grid: the step, decay and taps are those of one token, and no rates of a "
            "continuum."
        ),
    )
    assert isinstance(grid, CellGrid)
    starts = grid.starts
    if starts is None:
        return None
    sliding = (starts != jnp.arange(grid.size)) & (starts != jnp.roll(starts, 1))
    message = (
        "starts: got rows of a window, expected contexts one after another. Pass segment_starts: "
        "a recurrent layer forgets all or nothing."
    )
    return error_if(starts, sliding, message)


def current_tap(rows: Rows, taps: Taps) -> Rows:
    """Return the convolution's term of each token's own row."""
    return taps[:, None, :, -1] * rows


def earlier_taps(
    rows: Rows,
    taps: Taps,
    starts: Starts | None = None,
    before: Float[Array, "heads earlier size"] | None = None,
) -> Rows:
    """Return the convolution's terms of the rows before each token.

    `before` has the rows before the first, as many as there are taps for them; zeros by default.
    """
    heads, length, size = rows.shape
    earlier = taps.shape[2] - 1
    if before is None:
        before = jnp.zeros((heads, earlier, size), rows.dtype)
    padded = jnp.concatenate([before, rows], axis=1)
    total = jnp.zeros_like(rows)
    for back in range(1, earlier + 1):
        shifted = padded[:, earlier - back : earlier - back + length]
        if starts is not None:
            inside = jnp.arange(length) - back >= starts
            shifted = jnp.where(inside[None, :, None], shifted, 0)
        total += taps[:, None, :, -1 - back] * shifted
    return total
