r"""Rotary positions: queries and keys turn with their place, and scores see differences of places.

A pair of features of the vector at position p is turned by the angle :math:`p\,n\,\omega`, where
:math:`\omega` is the pair's frequency for a token and n the number of tokens for which [0, 1]
stands. A score then depends on :math:`(p - q)\,n\,\omega` alone: on a token grid of n tokens it is
a real model's, whether tokens are counted from 0 or from 1. With n held fixed as the grid is
refined, rotary attention tends to the Volterra operator of the turned queries and keys.
"""

import math
from collections.abc import Sequence
from numbers import Real

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import counted, described, require, require_floats, require_known
from lim_jax._precision import widened
from lim_jax.grid.measure import Grid, require_grid

Number = float | int
Frequencies = tuple[float, ...]
Turns = Float[Array, "length 2 pairs"]
TOKENS = "It is the length of the contexts that the network was made for."
TURNS = "Pass what turns(grid) gives on the vectors' grid."
PAIRS = "Pass one angle a token for each pair of features, as rotary_frequencies makes them."


def _spelt(frequencies: Sequence[float] | np.ndarray) -> Frequencies:
    """Frequencies as a hashable tuple of Python's floats."""
    row = isinstance(frequencies, Sequence) or np.ndim(frequencies) == 1
    numbers = tuple(frequencies) if row else ()
    require(
        len(numbers) > 0 and all(isinstance(n, Real) and math.isfinite(n) for n in numbers),
        "frequencies",
        got=described(frequencies) if not numbers else f"{numbers}",
        expected="finite numbers known before tracing, at least one",
        cure=PAIRS,
    )
    return tuple(map(float, numbers))


class Rotary(eqx.Module):
    r"""How the features of queries and keys turn along the positions.

    Feature m and feature m + r/2 are pair m, of the first r features; the others rest (partial
    rotary). Angles are made in float64 on the host, whatever the grid's precision, and only their
    cosines and sines are rounded: at 10,000 tokens a float32 angle is wrong by 1e-3.

    Attributes
    ----------
    frequencies
        One angle a token for each of the r/2 pairs, known before tracing. From
        `rotary_frequencies`, scaled by `linear_scaling` or `llama3_scaling`.
    tokens
        How many tokens [0, 1] stands for. None is for as many as the grid has positions: a real
        model, on the token grid of any context's length. A number holds the continuum limit.

    Raises
    ------
    ValueError
        Where there are no frequencies, one is not finite, or `tokens` is neither None nor positive
        and finite; where vectors to turn are no floats.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> rotary = Rotary(frequencies=(math.pi / 2,))
    >>> turned = rotary.turned(jnp.ones((1, 3, 2)), rotary.turns(token_grid(3)))
    >>> jnp.round(turned[0]).tolist()  # by one, two and three right angles
    [[-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]]
    """

    frequencies: Frequencies = eqx.field(static=True, converter=_spelt)
    tokens: Number | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.tokens is not None:
            expected = "None or a positive finite number"
            require_known(self.tokens, "tokens", expected=expected, cure=TOKENS)

    def turns(self, grid: Grid) -> Turns:
        """The cosines and sines of every angle, in the default precision."""
        require_grid(grid)
        tokens = grid.size if self.tokens is None else self.tokens
        angles = np.outer(grid._nodes() * tokens, self.frequencies)
        return jnp.asarray(np.stack([np.cos(angles), np.sin(angles)], axis=1))

    def turned(
        self, vectors: Float[Array, "heads length size"], turns: Turns
    ) -> Float[Array, "heads length size"]:
        """Turn each row by its turns, with products in float32 at least."""
        require_floats(vectors, "vectors", "heads length size")
        require_floats(turns, "turns", "length 2 pairs", TURNS, length=vectors.shape[1])
        wide, pairs = widened(vectors), len(self.frequencies)
        cosine, sine = (turns[None, :, part].astype(wide.dtype) for part in (0, 1))
        first, second, still = jnp.split(wide, (pairs, 2 * pairs), axis=2)
        moved = (first * cosine - second * sine, second * cosine + first * sine, still)
        return jnp.concatenate(moved, axis=2).astype(vectors.dtype)


def rotary_frequencies(size: int, base: Number = 10_000.0) -> Frequencies:
    r"""The usual frequencies :math:`b^{-2m/r}` of r turning features, :math:`0 \le m < r/2`.

    Raises
    ------
    ValueError
        Where the size is odd or not a positive whole number, or the base is not positive.

    Examples
    --------
    >>> rotary_frequencies(4, base=100.0)
    (1.0, 0.1)
    """
    size = counted(size, "size", least=2)
    require_known(base, "base", expected="a positive finite number", cure="Try 10_000.0.")
    cure = "Features turn in pairs: of an odd head let all but one turn."
    require(size % 2 == 0, "size", got=f"{size}", expected="an even number", cure=cure)
    return _spelt(float(base) ** (-np.arange(0, size, 2) / size))


def linear_scaling(frequencies: Frequencies, factor: Number) -> Frequencies:
    """Frequencies divided by a factor: as many more tokens in the same angles.

    Examples
    --------
    >>> linear_scaling((1.0, 0.5), factor=4.0)
    (0.25, 0.125)
    """
    require_known(factor, "factor", expected="a positive finite number", cure="Try 4.0.")
    return _spelt(np.asarray(_spelt(frequencies)) / factor)


def llama3_scaling(
    frequencies: Frequencies, *, factor: Number, low: Number, high: Number, trained: Number
) -> Frequencies:
    r"""Llama 3's scaling: slow pairs are divided by a factor, quick ones kept, others between.

    A pair that turns :math:`c = n\omega/2\pi` times within the n tokens of training has its
    frequency times :math:`s + (1 - s)/f`, with s from 0 at c = `low` to 1 at c = `high`.

    Parameters
    ----------
    frequencies
        From `rotary_frequencies`.
    factor
        f.
    low, high
        In a checkpoint's configuration ``low_freq_factor`` and ``high_freq_factor``.
    trained
        n, there ``original_max_position_embeddings``.

    Raises
    ------
    ValueError
        Where a number is not positive and finite, or `low` is not below `high`.

    Examples
    --------
    >>> found = llama3_scaling((6.3, 1.5, 0.6), factor=2.0, low=1.0, high=2.0, trained=6.2831853)
    >>> [round(frequency, 3) for frequency in found]
    [6.3, 1.125, 0.3]
    """
    numbers = {"factor": factor, "low": low, "high": high, "trained": trained}
    cure = "Take a checkpoint's own numbers."
    for name, number in numbers.items():
        require_known(number, name, expected="a positive finite number", cure=cure)
    require(low < high, "low", got=f"{low}", expected=f"less than high, {high}", cure=cure)
    kept = np.asarray(_spelt(frequencies))
    rounds = trained * kept / (2 * math.pi)
    share = np.clip((rounds - low) / (high - low), 0, 1)
    return _spelt(kept * (share + (1 - share) / factor))
