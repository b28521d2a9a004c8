r"""Frequencies of rotary positions, and how contexts longer than those of training scale them.

Slow pairs of features have not turned once within the tokens of training; beyond these their angles
are new to the network. A scaling slows pairs down until the angles of longer contexts are known.
"""

import math
from collections.abc import Callable, Sequence

import equinox as eqx
import numpy as np

from lim_jax._checks import counted, described, is_real, require, require_known

Number = float | int
Frequencies = tuple[float, ...]
OfLength = Callable[[Number], Frequencies]
OWN = "Take a checkpoint's own numbers."
POSITIVE = "a positive finite number"
LENGTH = "Pass how many tokens a context has."
PAIRS = "Pass one angle a token for each pair of features, as rotary_frequencies makes them."


def spelt(frequencies: Sequence[float] | np.ndarray) -> Frequencies:
    """Frequencies as a hashable tuple of Python's floats."""
    row = isinstance(frequencies, Sequence) or np.ndim(frequencies) == 1
    numbers = tuple(frequencies) if row else ()
    require(
        len(numbers) > 0 and all(is_real(n) and math.isfinite(n) for n in numbers),
        "frequencies",
        got=described(frequencies) if not numbers else f"{numbers}",
        expected="finite numbers known before tracing, at least one",
        cure=PAIRS,
    )
    return tuple(map(float, numbers))


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
    require_known(base, "base", expected=POSITIVE, cure="Try 10_000.0.")
    cure = "Features turn in pairs: of an odd head let all but one turn."
    require(size % 2 == 0, "size", got=f"{size}", expected="an even number", cure=cure)
    return spelt(float(base) ** (-np.arange(0, size, 2) / size))


def linear_scaling(frequencies: Frequencies, factor: Number) -> Frequencies:
    """Frequencies divided by a factor: as many more tokens in the same angles.

    Examples
    --------
    >>> linear_scaling((1.0, 0.5), factor=4.0)
    (0.25, 0.125)
    """
    require_known(factor, "factor", expected=POSITIVE, cure="Try 4.0.")
    return spelt(np.asarray(spelt(frequencies)) / factor)


def llama3_scaling(
    frequencies: Frequencies, *, factor: Number, low: Number, high: Number, trained: Number
) -> Frequencies:
    r"""Llama 3's scaling: slow pairs are divided by a factor, quick ones kept, others between.

    A pair that turns :math:`c = n\omega/2\pi` times within the n tokens of training has its
    frequency times :math:`s + (1 - s)/f`, with s from 0 at c = `low` to 1 at c = `high`; where
    the two are one, 0 before and 1 from there.

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
        Where a number is not positive and finite, or `low` is above `high`.

    Examples
    --------
    >>> found = llama3_scaling((6.3, 1.5, 0.6), factor=2.0, low=1.0, high=2.0, trained=6.2831853)
    >>> [round(frequency, 3) for frequency in found]
    [6.3, 1.125, 0.3]
    """
    numbers = {"factor": factor, "low": low, "high": high, "trained": trained}
    for name, number in numbers.items():
        require_known(number, name, expected=POSITIVE, cure=OWN)
    require(low <= high, "low", got=f"{low}", expected=f"at most high, {high}", cure=OWN)
    kept = np.asarray(spelt(frequencies))
    rounds = trained * kept / (2 * math.pi)
    between = np.clip((rounds - low) / (high - low), 0, 1) if low < high else 1.0
    share = np.where(rounds < low, 0.0, between)
    return spelt(kept * (share + (1 - share) / factor))


def proportional_frequencies(size: int, base: Number, part: Number) -> Frequencies:
    r"""The frequencies of a whole head of which a part of the pairs turns, the quick ones.

    :math:`b^{-2m/r}` for :math:`m < \lfloor \text{part}\cdot r/2\rfloor`, zero for the others.

    Raises
    ------
    ValueError
        As `rotary_frequencies`, and where the part is not in (0, 1].

    Examples
    --------
    >>> proportional_frequencies(4, base=100.0, part=0.5)
    (1.0, 0.0)
    """
    whole = np.asarray(rotary_frequencies(size, base))
    require_known(part, "part", expected="a share in (0, 1]", cure=OWN)
    require(part <= 1, "part", got=f"{part}", expected="a share in (0, 1]", cure=OWN)
    return spelt(np.where(np.arange(size // 2) < int(part * size // 2), whole, 0.0))


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
    r"""YaRN's scaling: pairs are slowed by a share that rises linearly in the pair's number.

    Pair m turns :math:`c` times within the n tokens of training where
    :math:`m = r \log(n / 2\pi c) / (2\log b)`. Up to that of `fast` turns pairs are kept, from that
    of `slow` turns on divided by the factor (Peng, Quesnelle, Fan and Shippole, 2023).

    Parameters
    ----------
    frequencies
        From `rotary_frequencies` with the same `base`.
    factor, trained
        The factor, and n: in a checkpoint's configuration ``original_max_position_embeddings``.
    fast, slow
        There ``beta_fast`` and ``beta_slow``.
    whole_pairs
        Whether the two ends are rounded outwards to whole pairs, there ``truncate``.

    Raises
    ------
    ValueError
        Where a number is not positive and finite, or the base is one.

    Examples
    --------
    >>> found = yarn_scaling(rotary_frequencies(8, 1e4), base=1e4, factor=4.0, trained=64)
    >>> [round(kept, 6) for kept in found]
    [1.0, 0.0625, 0.0025, 0.00025]
    """
    numbers = {"base": base, "factor": factor, "trained": trained, "fast": fast, "slow": slow}
    for name, number in numbers.items():
        require_known(number, name, expected=POSITIVE, cure=OWN)
    require(base != 1, "base", got="1", expected="a base that tells pairs apart", cure=OWN)
    kept = np.asarray(spelt(frequencies))
    ends = [
        len(kept) * math.log(trained / (turns * 2 * math.pi)) / math.log(base)
        for turns in (fast, slow)
    ]
    if whole_pairs:
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    first, last = max(ends[0], 0), min(ends[1], 2 * len(kept) - 1)
    slowed = np.clip((np.arange(len(kept)) - first) / max(last - first, 1e-3), 0, 1)
    return spelt(kept * (1 - slowed + slowed / factor))


def yarn_amplitude(factor: Number, weight: Number = 1) -> float:
    r""":math:`1 + w\log(f)/10`: by how much YaRN sharpens scores, in queries and in keys.

    Examples
    --------
    >>> yarn_amplitude(1.0), round(yarn_amplitude(40.0), 4)
    (1.0, 1.3689)
    """
    for name, number in {"factor": factor, "weight": weight}.items():
        require_known(number, name, expected=POSITIVE, cure=OWN)
    return 1.0 if factor <= 1 else 1 + 0.1 * weight * math.log(factor)


class LongFrequencies(eqx.Module):
    """Frequencies of short contexts, and others of contexts longer than those of training.

    LongRoPE's way (Ding and others, 2024). A function of the number of tokens, for
    `positions.Rotary`.

    Attributes
    ----------
    short, long
        One angle a token for each pair.
    trained
        Up to how many tokens a context is short.

    Raises
    ------
    ValueError
        Where frequencies are not finite, or not as many; where a number of tokens is not positive.

    Examples
    --------
    >>> LongFrequencies(short=(1.0,), long=(0.5,), trained=8)(9)
    (0.5,)
    """

    short: Frequencies = eqx.field(static=True, converter=spelt)
    long: Frequencies = eqx.field(static=True, converter=spelt)
    trained: int = eqx.field(static=True)

    def __check_init__(self):
        counted(self.trained, "trained", cure=OWN)
        pairs = len(self.short), len(self.long)
        same = f"as many as short, {pairs[0]}"
        require(pairs[0] == pairs[1], "long", got=f"{pairs[1]}", expected=same, cure=PAIRS)

    def __call__(self, tokens: Number) -> Frequencies:
        """The frequencies of a context of that many tokens."""
        require_known(tokens, "tokens", expected=POSITIVE, cure=LENGTH)
        return self.long if tokens > self.trained else self.short


class DynamicFrequencies(eqx.Module):
    r"""Frequencies whose base grows with a context that is longer than those of training.

    The base is :math:`b\,(fL/n - f + 1)^{r/(r-2)}` for a context of :math:`L > n` tokens. A
    function of the number of tokens, for `positions.Rotary`.

    Attributes
    ----------
    size
        r, how many features turn: more than two.
    base, factor
        b and f.
    trained
        n.

    Raises
    ------
    ValueError
        Where a number is not positive and finite, or the size is not even and above two.

    Examples
    --------
    >>> frequencies = DynamicFrequencies(size=4, base=100.0, factor=2.0, trained=8)
    >>> [[round(turn, 4) for turn in frequencies(tokens)] for tokens in (8, 16)]
    [[1.0, 0.1], [1.0, 0.0333]]
    """

    size: int = eqx.field(static=True)
    base: Number = eqx.field(static=True)
    factor: Number = eqx.field(static=True)
    trained: int = eqx.field(static=True)

    def __check_init__(self):
        counted(self.size, "size", least=4, cure="Of two features no base is asked.")
        counted(self.trained, "trained", cure=OWN)
        for name in ("base", "factor"):
            require_known(getattr(self, name), name, expected=POSITIVE, cure=OWN)
        rotary_frequencies(self.size, self.base)

    def __call__(self, tokens: Number) -> Frequencies:
        """The frequencies of a context of that many tokens."""
        require_known(tokens, "tokens", expected=POSITIVE, cure=LENGTH)
        longer = max(tokens, self.trained) / self.trained
        grown = (self.factor * longer - (self.factor - 1)) ** (self.size / (self.size - 2))
        return rotary_frequencies(self.size, self.base * grown)
