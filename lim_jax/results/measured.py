r"""What was measured of contexts one by one, kept so that it can be compared.

A density of many contexts forgets them; a difference of two is best known where the same contexts
stand in both. So their own energies are kept, each on the cells of its own tokens, with what the
named records hold of each.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import DTypeLike

from lim_jax._checks import described, require, require_floats, require_kind, require_several
from lim_jax.density.statistics import Influence
from lim_jax.grid.carrying import carrying_shares
from lim_jax.grid.cells import token_grid
from lim_jax.grid.partition import Regions, boundary_regions, require_regions
from lim_jax.probes import Estimate, sample_mean
from lim_jax.results.comparison import (
    Comparison,
    Pairs,
    compare,
    compare_means,
    paired_names,
)

CELLS = 100  # at most, where contexts are of several lengths


class MeasuredContexts(NamedTuple):
    r"""Contexts as they were measured, one by one.

    Attributes
    ----------
    names
        What tells contexts apart: of two results, those of one name are one context.
    energies
        :math:`\|P_0(p_i)\|^2` of each, on its own `grid.token_grid`.
    asked
        Of each the first place where the loss asks.
    shares
        By record, what it holds of each context's total Z; NaN where a context has no such record.
    delta
        The width of each boundary region.
    """

    names: Sequence[str]
    energies: Sequence[Any]
    asked: Sequence[int]
    shares: Mapping[str, Sequence[float]]
    delta: float


class ComparedInfluences(NamedTuple):
    """Two influences on one grid, and the second minus the first."""

    first: Influence
    second: Influence
    change: Comparison


class ComparedShares(NamedTuple):
    """What a record holds of the contexts that have it, in two results, and what changed.

    Attributes
    ----------
    first, second, change
        Means over contexts of its share of Z, and the second minus the first.
    contexts, pairs
        How many have it in the first and in the second; and how many of these are in both.
    """

    first: Estimate
    second: Estimate
    change: Estimate
    contexts: tuple[int, int]
    pairs: int


class ComparedContexts(NamedTuple):
    """Two results, context by context where these are in both.

    Attributes
    ----------
    pairs
        How many are in both.
    whole
        The influence of all tokens.
    without_queries
        That of the tokens before the first that is asked; None where a context asks from its first.
    shares
        By record, of those that both have.
    """

    pairs: int
    whole: ComparedInfluences
    without_queries: ComparedInfluences | None
    shares: Mapping[str, ComparedShares]

    def __str__(self) -> str:
        """What changed, in a few lines of text."""
        shares = [
            f"{name}: {float(one.change.value):+.4f} ± {float(one.change.error):.4f} of the total"
            for name, one in self.shares.items()
        ]
        return "\n".join([f"{self.pairs} contexts in pairs", str(self.whole.change), *shares])


def compare_contexts(first: MeasuredContexts, second: MeasuredContexts) -> ComparedContexts:
    """Subtract the first result from the second, in pairs of contexts of one name.

    Contexts in one result alone count too, with independent errors (`results.compare`). Lengths may
    differ: all are carried to one grid, that of `common_regions`.

    Raises
    ------
    ValueError
        Where one is no such result, or their boundary regions differ in width.

    Examples
    --------
    >>> energies = [np.array([1.0, 1.0, 2.0, 4.0]), np.array([2.0, 1.0, 1.0, 4.0])]
    >>> first = MeasuredContexts(["a", "b"], energies, [0, 0], {"key": [0.2, 0.1]}, 0.25)
    >>> second = MeasuredContexts(["b", "c"], energies, [0, 0], {"key": [0.4, 0.3]}, 0.25)
    >>> found = compare_contexts(first, second)
    >>> found.pairs, round(float(found.shares["key"].change.value), 3)
    (1, 0.2)
    """
    for found, name in ((first, "first"), (second, "second")):
        require_kind(found, MeasuredContexts, name, "Read contexts.npz by results.load.")
    require(
        first.delta == second.delta,
        "second",
        got=f"boundary regions of {second.delta}",
        expected=f"those of the first, {first.delta}",
        cure="Measure both with one delta.",
    )
    pairs = paired_names(first.names, second.names)
    one, two = energies_before_queries(first), energies_before_queries(second)
    rest = None
    if one is not None and two is not None:
        rest = _compared_influences(one, two, first.delta, pairs)
    names = [name for name in first.shares if name in second.shares]
    return ComparedContexts(
        len(pairs),
        _compared_influences(first.energies, second.energies, first.delta, pairs),
        rest,
        {name: _compared_shares(first.shares[name], second.shares[name], pairs) for name in names},
    )


def middle_in_words(change: Comparison, names: Sequence[str] = ("first", "second")) -> str:
    """Say in a sentence what the middle gained or lost, in points of a hundred of the influence.

    What is within two standard errors is not told from nothing.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> regions = boundary_regions(token_grid(4), 0.25)
    >>> rows = np.array([[1.0, 2.0, 4.0, 1.0], [3.0, 2.0, 2.0, 1.0]])
    >>> one, two = (influence_of_contexts(list(rows + more), regions) for more in (0.0, 4.0))
    >>> middle_in_words(compare(one, two), ("A", "B"))
    'B uses the middle 8.3 ± 8.3 points less than A, which is within two errors.'
    """
    require_kind(change, Comparison, "change", "Take it from results.compare.")
    size = float(np.asarray(change.regions.weights)[1].sum())
    moved = points_in_words(
        size * float(change.indices.middle), size * float(change.index_errors.middle)
    )
    return "{1} uses the middle {2} than {0}{3}.".format(*names, *moved)


def record_in_words(
    shares: Mapping[str, ComparedShares], names: Sequence[str] = ("first", "second")
) -> str:
    """Say in a sentence which record's share has changed most, in its errors.

    Examples
    --------
    >>> made = [Estimate(np.array(value), np.array(0.01)) for value in (0.5, 0.25, -0.25)]
    >>> record_in_words({"key": ComparedShares(*made, (9, 9), 9)}, ("A", "B"))
    'Of the records, “key” changed most: B gives it 25.0 ± 1.0 points less than A.'
    """
    require_kind(shares, Mapping, "shares", "Take those of compare_contexts.")
    require_several(list(shares.values()), ComparedShares, "shares", "Name records by spans.")

    def in_errors(name: str) -> float:
        change = shares[name].change
        value, error = abs(float(change.value)), float(change.error)
        return value if math.isinf(error) else value / (error or math.inf)

    most = max(shares, key=in_errors)
    moved = points_in_words(float(shares[most].change.value), float(shares[most].change.error))
    words = "Of the records, “{4}” changed most: {1} gives it {2} than {0}{3}."
    return words.format(*names, *moved, most)


def points_in_words(share: float, error: float) -> tuple[str, str]:
    """Points of a hundred, more or less; and what is to be said of their error.

    Examples
    --------
    >>> points_in_words(-0.125, 0.1)
    ('12.5 ± 10.0 points less', ', which is within two errors')
    >>> points_in_words(0.125, 0.0)[1]
    ', the same in every context, so that the error says nothing'
    """
    spelt = f"{100 * abs(share):.1f}{error_in_words(100 * error)}"
    if math.isinf(error):
        doubt = ", of one context alone, which has no error"
    elif error == 0:
        doubt = ", the same in every context, so that the error says nothing"
    else:
        doubt = ", which is within two errors" if abs(share) <= 2 * error else ""
    return f"{spelt} points {'less' if share < 0 else 'more'}", doubt


def error_in_words(error: float) -> str:
    """A standard error in points as it follows a number: that of zero is said to be so.

    Examples
    --------
    >>> error_in_words(0.25), error_in_words(0.0), error_in_words(math.inf)
    (' ± 0.2', ' (error 0)', '')
    """
    if error == 0:
        return " (error 0)"
    return "" if math.isinf(error) else f" ± {error:.1f}"


def _compared_influences(
    first: Sequence[Any], second: Sequence[Any], delta: float, pairs: Pairs
) -> ComparedInfluences:
    both = [*first, *second]
    dtype = np.result_type(*{energy.dtype for energy in both})
    regions = common_regions([len(energy) for energy in both], delta, dtype)
    one, two = (influence_of_contexts(energies, regions) for energies in (first, second))
    return ComparedInfluences(one, two, compare(one, two, pairs=pairs))


def _compared_shares(
    first: Sequence[float], second: Sequence[float], pairs: Pairs
) -> ComparedShares:
    """Of the contexts that have the record, which are numbered anew."""
    has = ~np.isnan(first), ~np.isnan(second)
    chosen = pairs[has[0][pairs[:, 0]] & has[1][pairs[:, 1]]]
    anew = [(np.cumsum(one) - 1)[column] for one, column in zip(has, chosen.T, strict=True)]
    shares = [
        jax.device_put(np.asarray(values)[one])
        for values, one in zip((first, second), has, strict=True)
    ]
    change = compare_means(shares[0], shares[1], np.stack(anew, axis=1))
    first_mean, second_mean = map(sample_mean, shares)
    contexts = len(shares[0]), len(shares[1])
    return ComparedShares(first_mean, second_mean, change, contexts, len(chosen))


def energies_before_queries(contexts: MeasuredContexts) -> list[np.ndarray] | None:
    """The energies of the tokens before the first that is asked, as contexts of their own.

    Densities on the grid of what is left, whose cells are wider: masses stay. None where a context
    asks from its first token.

    Examples
    --------
    >>> contexts = MeasuredContexts(["a"], [np.array([4.0, 8.0, 1.0, 1.0])], [2], {}, 0.2)
    >>> energies_before_queries(contexts)
    [array([2., 4.])]
    """
    require_kind(contexts, MeasuredContexts, "contexts", "Read contexts.npz by results.load.")
    if min(contexts.asked) == 0:
        return None
    pairs = zip(map(np.asarray, contexts.energies), contexts.asked, strict=True)
    return [energy[:end] * end / energy.size for energy, end in pairs]


def common_regions(lengths: Sequence[int], delta: float, dtype: DTypeLike | None = None) -> Regions:
    """The boundary regions of a grid for contexts of these lengths.

    Their own token grid where they have one length, else one of at most a hundred cells, and of no
    more than the median context has tokens.

    Raises
    ------
    ValueError
        Where there are no lengths, or one is no positive whole number; of `delta` as in
        `grid.boundary_regions`.

    Examples
    --------
    >>> [common_regions(lengths, 0.2).grid.size for lengths in ([7, 7], [7, 9, 12], [300, 400])]
    [7, 9, 100]
    """
    listed = isinstance(lengths, Sequence) and not isinstance(lengths, str) and len(lengths) > 0
    require(
        listed and all(type(length) is int and length > 0 for length in lengths),
        "lengths",
        got=described(lengths) if not isinstance(lengths, list) else str(lengths),
        expected="a list of positive whole numbers, at least one",
        cure="Pass how many tokens each context has.",
    )
    several = len(set(lengths)) > 1
    cells = min(CELLS, int(np.median(lengths))) if several else lengths[0]
    return boundary_regions(token_grid(cells, dtype), delta)


def influence_of_contexts(energies: Sequence[Any], regions: Regions) -> Influence:
    r"""Pool contexts of any lengths on one grid, by how much of their cells each cell holds.

    Every context counts alike, and their energies are kept (`Influence.example_energies`).

    Parameters
    ----------
    energies
        :math:`\|P_0(p_i)\|^2` of each context, on its own `grid.token_grid`.
    regions
        Over the common grid, such as `common_regions`.

    Raises
    ------
    ValueError
        Where there are no contexts, or one's energies are no array along one axis, are not finite
        or are negative.

    Examples
    --------
    >>> regions = common_regions([2, 4, 2], 0.25)
    >>> energies = [np.array([1.0, 3.0]), np.array([2.0, 2.0, 2.0, 6.0])]
    >>> found = influence_of_contexts(energies, regions)
    >>> found.energy.tolist(), float(found.count)
    ([1.5, 3.5], 2.0)
    """
    require_regions(regions)
    listed = isinstance(energies, Sequence) and len(energies) > 0
    require(listed, "energies", got=described(energies), expected="a list of arrays, at least one",
            cure="Pass those of each context.")  # fmt: skip
    arrays = [np.asarray(energy) for energy in energies]
    for array in arrays:
        require_floats(array, "energies", "length")
    lengths = {array.size for array in arrays}
    shares = {length: carrying_shares(token_grid(length), regions.grid) for length in lengths}
    carried = np.stack([shares[array.size] @ array for array in arrays])
    dtype = regions.weights.dtype
    return Influence.from_energies(
        jax.device_put(carried.astype(dtype)), regions, keep_examples=True
    )
