r"""How queries and keys know their positions: pairs of features are rotated, or scores are biased.

Rotary positions: a pair of features of the vector at position p is rotated by the angle
:math:`p\,n\,\omega`, where :math:`\omega` is the pair's frequency for a token and n the number of
tokens for which [0, 1] stands. A score then depends on :math:`(p - q)\,n\,\omega` alone: on a token
grid of n tokens it is a real model's. With n held fixed as the grid is refined, rotary attention
tends to the Volterra operator of the rotated queries and keys.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import described, is_real, require, require_optional, require_positive
from lim_jax._precision import promote, rounds
from lim_jax.grid.measure import Grid
from lim_jax.network.frequencies import OWN, POSITIVE, Frequencies, FrequenciesByLength, Number

Rope = Float[Array, "length 2 pairs"]
RopeWithFactors = Float[Array, "length 3 pairs"]
Vectors = Float[Array, "heads length size"]
ExtendedVectors = Float[Array, "heads length more"]


def _known(frequencies: Any) -> Frequencies | FrequenciesByLength:
    """Return finite frequencies as a tuple of floats, which can be hashed; functions unchanged."""
    if isinstance(frequencies, Callable) and not isinstance(frequencies, type):
        return frequencies
    row = isinstance(frequencies, Sequence) or np.ndim(frequencies) == 1  # pyright: ignore
    numbers = tuple(frequencies) if row else ()  # pyright: ignore
    require(
        len(numbers) > 0 and all(is_real(n) and math.isfinite(n) for n in numbers),
        "frequencies",
        got=described(frequencies) if not numbers else f"{numbers}",
        expected="finite numbers known before tracing, at least one",
        cure="Pass one angle a token for each pair of features.",
    )
    return tuple(map(float, numbers))


def _require_whole_contexts(grid: Grid) -> None:
    """Raise ValueError at a grid whose prefixes do not begin where contexts do."""
    cut = getattr(grid, "cut", "")
    require(
        not cut,
        "grid",
        got=f"prefixes that were {cut}",
        expected="those of whole contexts: positions count from where a context begins",
        cure="Pass AttentionMask the window or the chunk, and leave the grid as it is.",
    )


class Rotary(eqx.Module):
    """How the features of queries and keys are rotated along the positions.

    Features m and m + r/2 are pair m, of the first r features; the others rest (partial rotary).
    Angles are made in float64 on the host: at 10,000 tokens one of float32 is wrong by 1e-3.

    Attributes
    ----------
    frequencies
        One angle a token, in radians, for each of the r/2 pairs, known before tracing; or a
        function of the number of tokens that gives them.
    tokens
        How many tokens [0, 1] stands for: None for as many as the grid has positions, as in a real
        model, a number for the continuum limit.
    amplitude
        The factor by which the rotated features grow, in queries as in keys (`yarn_amplitude`); 1
        by default.
    from_zero
        Whether the first token of each context is rotated by no angle, where a norm that follows
        the rotation sees more than differences of positions; by default it is rotated by that of
        one token.

    Raises
    ------
    ValueError
        Where a number is missing, not finite or (but for frequencies) not positive; where
        frequencies that depend on a context's length meet a grid of several contexts; where
        `from_zero` meets a grid whose prefixes were cut by a window or to chunks.

    Examples
    --------
    >>> import math
    >>> rotary = Rotary(frequencies=(math.pi / 2,))
    >>> rotated = rotary.rotated(jnp.ones((1, 3, 2)), rotary.rope(lim.token_grid(3)))
    >>> jnp.round(rotated[0]).tolist()  # by one, two and three right angles
    [[-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]]
    """

    frequencies: Frequencies | FrequenciesByLength = eqx.field(static=True, converter=_known)
    tokens: Number | None = eqx.field(static=True, default=None)
    amplitude: Number = eqx.field(static=True, default=1.0)
    from_zero: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        """Raise ValueError unless tokens and amplitude are positive."""
        require_optional(self.tokens, "tokens", "Pass the length of contexts in training.")
        require_positive(
            self.amplitude,
            "amplitude",
            expected=POSITIVE,
            cure="Pass 1.0 to leave lengths as they are.",
        )

    @property
    def rotary_dim(self) -> int:
        """The number of a head's features that are rotated."""
        return 2 * len(self._frequencies(1))

    def same_rope(self, first: Number, second: Number) -> bool:
        """Tell whether tokens are rotated alike in contexts of two lengths."""
        same = self._frequencies(first) == self._frequencies(second)
        return self.tokens is not None or same

    def _frequencies(self, tokens: Number) -> Frequencies:
        """Return the frequencies in a context of that many tokens."""
        frequencies = self.frequencies
        return frequencies(tokens) if isinstance(frequencies, Callable) else frequencies

    def rope(self, grid: Grid) -> Rope:
        """Return the cosines and sines of every position's angles, in JAX's default precision.

        Parameters
        ----------
        grid
            The positions.

        Returns
        -------
        Rope
            The cosines and the sines of the angles times `amplitude`, of shape
            ``(length, 2, pairs)``.

        Raises
        ------
        ValueError
            If the angles depend on a context's length, and the grid has several contexts or is
            padded on the left.
        """
        starts = getattr(grid, "starts", None)
        require(
            starts is None or self.same_rope(1, grid.size),
            "grid",
            got=f"several contexts, or padding on the left, in {grid.size} positions",
            expected="one context: its length says how its tokens are rotated",
            cure="Measure each context by itself.",
        )
        if self.from_zero:
            _require_whole_contexts(grid)
        tokens = grid.size if self.tokens is None else self.tokens
        positions = grid._nodes() * tokens - (1 if self.from_zero else 0)
        angles = np.outer(positions, self._frequencies(tokens))
        rope = jnp.asarray(self.amplitude * np.stack([np.cos(angles), np.sin(angles)], axis=1))
        if not self.from_zero or starts is None:
            return rope
        return rope[jnp.arange(grid.size) - starts]

    def rotated(self, vectors: Vectors, rope: Rope) -> Vectors:
        """Rotate each row's pairs of features by its angles."""
        wide = promote(vectors)
        pairs = rope.shape[2]
        cosine, sine = (rope[None, :, part].astype(wide.dtype) for part in (0, 1))
        first, second, unrotated = jnp.split(wide, (pairs, 2 * pairs), axis=2)
        features = (first * cosine - second * sine, second * cosine + first * sine, unrotated)
        return jnp.concatenate(features, axis=2).astype(vectors.dtype)

    def encode_queries(self, vectors: Vectors, rope: Rope) -> Vectors:
        """Rotate queries."""
        return self.rotated(vectors, rope)

    def encode_keys(self, vectors: Vectors, rope: Rope) -> Vectors:
        """Rotate keys."""
        return self.rotated(vectors, rope)


class UnitRotary(Rotary):
    """Rotary positions that divide rotated vectors by their root mean square: Llama 4's."""

    norm_eps: float = eqx.field(static=True, kw_only=True)

    def rotated(self, vectors: Vectors, rope: Rope) -> Vectors:
        """Rotate each row by its angles, and divide it by its root mean square."""
        wide = promote(super().rotated(vectors, rope))
        squares = jnp.mean(wide**2, axis=2, keepdims=True)
        return (wide * jax.lax.rsqrt(squares + self.norm_eps)).astype(vectors.dtype)


class Tempered(eqx.Module):
    r"""Queries that grow with their position: :math:`1 + a\log(1 + \lfloor i/f\rfloor)`: Llama 4's.

    `scale` and `floor` are a and f, `tokens` is as of `Rotary`; i counts from 1, or `from_zero`.
    """

    scale: Number = eqx.field(static=True)
    floor: Number = eqx.field(static=True)
    tokens: Number | None = eqx.field(static=True, default=None)
    from_zero: bool = eqx.field(static=True, default=False)
    rotary_dim = 0

    def __check_init__(self):
        """Raise ValueError unless scale and floor are positive."""
        for name in ("scale", "floor"):  # a configuration's own numbers
            require_positive(getattr(self, name), name, expected=POSITIVE, cure=OWN)

    def same_rope(self, first: Number, second: Number) -> bool:
        """Return True: a position's factor is the same in contexts of every length."""
        return True

    def rope(self, grid: Grid) -> Float[Array, " length"]:
        """Return the factors of queries; packed contexts each count from their own first token."""
        _require_whole_contexts(grid)
        tokens = grid.size if self.tokens is None else self.tokens
        # A node times n may fall a rounding below its whole number.
        positions = jnp.asarray(np.round(grid._nodes() * tokens, 6))
        starts = getattr(grid, "starts", None)
        if starts is not None:
            positions = positions - starts.astype(positions.dtype)
        if self.from_zero:
            positions = positions - 1
        return 1 + self.scale * jnp.log1p(jnp.floor(positions / self.floor))

    def encode_queries(self, vectors: Vectors, rope: Float[Array, " length"]) -> Vectors:
        """Multiply queries by their factors."""
        return rope.astype(vectors.dtype)[None, :, None] * vectors

    def encode_keys(self, vectors: Vectors, rope: Float[Array, " length"]) -> Vectors:
        """Return the keys as they are."""
        return vectors


class TemperedRotary(Rotary):
    """Rotary positions with queries multiplied by factors of `tempered`: those of Ministral 3."""

    tempered: Tempered = eqx.field(static=True, kw_only=True)

    def rope(self, grid: Grid) -> RopeWithFactors:
        """Return the cosines and sines of every angle, with the factors of queries."""
        rope = super().rope(grid)
        factors = self.tempered.rope(grid).astype(rope.dtype)[:, None, None]
        return jnp.concatenate([rope, jnp.broadcast_to(factors, rope[:, :1].shape)], axis=1)

    def encode_queries(self, vectors: Vectors, rope: RopeWithFactors) -> Vectors:
        """Rotate queries, and multiply them by their factors."""
        return self.tempered.encode_queries(self.rotated(vectors, rope[:, :2]), rope[:, 2, 0])

    def encode_keys(self, vectors: Vectors, rope: RopeWithFactors) -> Vectors:
        """Rotate keys."""
        return self.rotated(vectors, rope[:, :2])


class Alibi(eqx.Module):
    r"""Scores that fall linearly with the distance: :math:`s_{ij} - m_h\,(i - j)` of head h.

    Attention with linear biases (Press, Smith and Lewis, 2022). A softmax does not see what depends
    on the row alone, so the score gains :math:`m_h\,j`: one more feature, of the key its position,
    counted from 0, of the query its head's slope; where products are of half precision three, that
    sum to the position. `tokens` is as of `Rotary`.
    """

    slopes: Frequencies = eqx.field(static=True)
    tokens: Number | None = eqx.field(static=True, default=None)
    rotary_dim = 0

    def same_rope(self, first: Number, second: Number) -> bool:
        """Return True: distances are the same in contexts of every length."""
        return True

    def rope(self, grid: Grid) -> Float[Array, " length"]:
        """Return the positions :math:`p_j n - 1`."""
        tokens = grid.size if self.tokens is None else self.tokens
        return jnp.asarray(grid._nodes() * tokens - 1)

    def encode_queries(self, vectors: Vectors, rope: Float[Array, " length"]) -> ExtendedVectors:
        """Append each head's slope to its queries, scaled for a size that is larger by these."""
        heads, length, size = vectors.shape
        extended = size + _features(vectors)
        slopes = jnp.asarray(np.sqrt(extended) * np.asarray(self.slopes), vectors.dtype)
        added = jnp.broadcast_to(slopes[:, None, None], (heads, length, extended - size))
        return jnp.concatenate([np.sqrt(extended / size).item() * vectors, added], axis=2)

    def encode_keys(self, vectors: Vectors, rope: Float[Array, " length"]) -> ExtendedVectors:
        """Append the positions to the keys."""
        rest = rope
        features = []
        for _ in range(_features(vectors) - 1):
            # XLA may take a number that is rounded and widened again for the number itself.
            rounded = jax.lax.reduce_precision(rest, exponent_bits=8, mantissa_bits=7)
            features.append(rounded)
            rest = rest - rounded
        positions = jnp.stack([*features, rest], axis=1).astype(vectors.dtype)
        added = jnp.broadcast_to(positions, (*vectors.shape[:2], positions.shape[1]))
        return jnp.concatenate([vectors, added], axis=2)


def _features(vectors: Array) -> int:
    """Return how many features hold a position: numbers of bfloat16 have a third of its digits."""
    halved = rounds(vectors) or jnp.finfo(vectors.dtype).bits < 32
    return 3 if halved else 1


Positions = Rotary | Alibi | Tempered
