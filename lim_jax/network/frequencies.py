"""Frequencies of rotary positions, and how contexts longer than those of training scale them.

A scaling slows slow pairs of features down until the angles of longer contexts are known.
"""

import math
from collections.abc import Callable, Iterable

import equinox as eqx
import numpy as np

from lim_jax._checks import as_int, require, require_positive

Number = float | int
Frequencies = tuple[float, ...]
FrequenciesByLength = Callable[[Number], Frequencies]
OWN = "Take a checkpoint's own numbers."
POSITIVE = "a positive finite number"


def _as_tuple(frequencies: Iterable[Number]) -> Frequencies:
    """Return frequencies as a tuple of Python floats."""
    return tuple(map(float, frequencies))


def rotary_frequencies(size: int, base: Number = 10_000.0) -> Frequencies:
    r"""Return the usual frequencies :math:`b^{-2m/r}`, :math:`0 \le m < r/2`, of r features."""
    size = as_int(size, "size", least=2)
    require_positive(base, "base", expected=POSITIVE, cure="Try 10_000.0.")
    require(
        size % 2 == 0,
        "size",
        got=f"{size}",
        expected="an even number",
        cure="Pass an even number: features are rotated in pairs, all but one of an odd head.",
    )
    return _as_tuple(float(base) ** (-np.arange(0, size, 2) / size))


def linear_scaling(frequencies: Frequencies, factor: Number) -> Frequencies:
    """Divide frequencies by a factor, so that as many times more tokens have the same angles."""
    require_positive(factor, "factor", expected=POSITIVE, cure="Try 4.0.")
    return _as_tuple(np.asarray(frequencies) / factor)


def llama3_scaling(
    frequencies: Frequencies, *, factor: Number, low: Number, high: Number, trained: Number
) -> Frequencies:
    """Scale frequencies as Llama 3: slow ones by a factor, quick ones not, others in between."""
    require(low <= high, "low", got=f"{low}", expected=f"at most high, {high}", cure=OWN)
    unscaled = np.asarray(frequencies)
    turns = trained * unscaled / (2 * math.pi)
    between = np.clip((turns - low) / (high - low), 0, 1) if low < high else 1.0
    share = np.where(turns < low, 0.0, between)
    return _as_tuple(unscaled * (share + (1 - share) / factor))


def proportional_frequencies(size: int, base: Number, part: Number) -> Frequencies:
    r"""Return frequencies of pairs :math:`m < \lfloor\text{part}\cdot r/2\rfloor`, then zeros."""
    require(part <= 1, "part", got=f"{part}", expected="a share in (0, 1]", cure=OWN)
    all_pairs = np.asarray(rotary_frequencies(size, base))
    return _as_tuple(np.where(np.arange(size // 2) < int(part * size // 2), all_pairs, 0.0))


def yarn_scaling(
    frequencies: Frequencies,
    *,
    base: Number,
    factor: Number,
    trained: Number,
    fast: Number = 32,
    slow: Number = 1,
    whole_pairs: bool = True,
) -> Frequencies:
    """Scale frequencies by YaRN (Peng et al., 2023): each pair is slowed more than the one before.

    From none at the pair of `fast` turns in training (``beta_fast``) to the whole factor at that of
    `slow`; `whole_pairs` is ``truncate``.
    """
    for name, number in {"factor": factor, "fast": fast, "slow": slow}.items():
        require_positive(number, name, expected=POSITIVE, cure=OWN)
    require(base != 1, "base", got="1", expected="a base that tells pairs apart", cure=OWN)
    unscaled = np.asarray(frequencies)
    ends = [
        len(unscaled) * math.log(trained / (turns * 2 * math.pi)) / math.log(base)
        for turns in (fast, slow)
    ]
    if whole_pairs:
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    first = max(ends[0], 0)
    last = min(ends[1], 2 * len(unscaled) - 1)
    slowed = np.clip((np.arange(len(unscaled)) - first) / (last - first or 1e-3), 0, 1)
    return _as_tuple(unscaled * (1 - slowed + slowed / factor))


def yarn_amplitude(factor: Number, weight: Number = 1) -> float:
    r"""Return :math:`1 + w\log(f)/10`, by which YaRN multiplies queries and keys."""
    require_positive(factor, "factor", expected=POSITIVE, cure=OWN)
    return 1.0 if factor <= 1 else 1 + 0.1 * weight * math.log(factor)


class LongFrequencies(eqx.Module):
    """LongRoPE (Ding et al., 2024): frequencies `short` up to `trained` tokens, and else `long`."""

    short: Frequencies = eqx.field(static=True)
    long: Frequencies = eqx.field(static=True)
    trained: int = eqx.field(static=True)

    def __call__(self, tokens: Number) -> Frequencies:
        """Return the frequencies of a context of that many tokens."""
        return self.long if tokens > self.trained else self.short


class DynamicFrequencies(eqx.Module):
    """Frequencies whose base grows with a context that is longer than those of training."""

    size: int = eqx.field(static=True)
    base: Number = eqx.field(static=True)
    factor: Number = eqx.field(static=True)
    trained: int = eqx.field(static=True)

    def __check_init__(self):
        """Raise ValueError unless there are two pairs of features at least, and a positive base."""
        as_int(
            self.size,
            "size",
            least=4,
            cure=(
                "Pass at least four features: two are one pair, which has a single frequency "
                "whatever the base."
            ),
        )
        rotary_frequencies(self.size, self.base)

    def __call__(self, tokens: Number) -> Frequencies:
        """Return the frequencies of a context of that many tokens."""
        longer = max(tokens, self.trained) / self.trained
        grown = (self.factor * longer - (self.factor - 1)) ** (self.size / (self.size - 2))
        return rotary_frequencies(self.size, self.base * grown)
