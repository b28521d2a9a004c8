"""What was measured of contexts one by one, kept so that it can be compared context by context."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from lim_jax._checks import require, require_kind
from lim_jax.density.common_grid import (
    common_regions,
    energies_of_tokens,
    influence_of_contexts,
)
from lim_jax.density.statistics import Influence
from lim_jax.probes import Estimate, sample_mean
from lim_jax.results.comparison import Comparison, Pairs, compare, compare_means, paired_names
from lim_jax.results.percentages import error_words


class MeasuredContexts(NamedTuple):
    """Contexts as they were measured, one by one."""

    names: Sequence[str]  # of two results, contexts of one name are one context
    energies: Sequence[Any]  # |P_0(p_i)|^2 of each, on its own token grid
    asked: Sequence[int]  # of each the first place where the loss asks
    shares: Mapping[str, Sequence[float]]  # of Z, by record; NaN where a context has none such
    delta: float  # the width of each boundary region


class ComparedInfluences(NamedTuple):
    """Two influences on one grid, and the second minus the first."""

    first: Influence
    second: Influence
    change: Comparison


class ComparedShares(NamedTuple):
    """What a record holds of contexts that have it: means of its share of Z, and their change."""

    first: Estimate
    second: Estimate
    change: Estimate
    contexts: tuple[int, int]  # that have it, in the first and in the second
    pairs: int  # that have it in both


class ComparedContexts(NamedTuple):
    """Two results, context by context where these are in both, which `pairs` counts."""

    pairs: int
    whole: ComparedInfluences
    without_queries: ComparedInfluences | None  # None where a context asks from its first token
    shares: Mapping[str, ComparedShares]  # by record, of those that both have

    def __str__(self) -> str:
        """Return what changed, in a few lines of text."""
        shares = []
        for name, share in self.shares.items():
            change, error = map(float, share.change)
            words = error_words(error, "{:.4f}".format)
            shares.append(f"{name}: {change:+.4f}{words} of the total")
        return "\n".join([f"{self.pairs} contexts in pairs", str(self.whole.change), *shares])


def compare_contexts(first: MeasuredContexts, second: MeasuredContexts) -> ComparedContexts:
    """Subtract the first result from the second, in pairs of contexts of one name.

    Contexts in one result alone count too, with independent errors (`results.compare`). All lengths
    are carried to one grid.

    Parameters
    ----------
    first
        The result to subtract, from the ``contexts.npz`` of ``lim-jax profile`` by `results.load`.
    second
        The result to subtract it from, of the same width of boundary regions.

    Returns
    -------
    ComparedContexts
        How many contexts are in both; both influences and their difference, of all tokens and of
        those before the first that the loss asks for; and the shares of the records that both have.
        Print it for a few lines of text.

    Raises
    ------
    ValueError
        If one is not MeasuredContexts, or their boundary regions differ in width.

    Examples
    --------
    >>> energies = [np.array([1.0, 1.0, 2.0, 4.0]), np.array([2.0, 1.0, 1.0, 4.0])]
    >>> first = MeasuredContexts(["a", "b"], energies, [0, 0], {"key": [0.2, 0.1]}, 0.25)
    >>> second = MeasuredContexts(["b", "c"], energies, [0, 0], {"key": [0.4, 0.3]}, 0.25)
    >>> compared = compare_contexts(first, second)
    >>> compared.pairs, round(float(compared.shares["key"].change.value), 3)
    (1, 0.2)
    """
    for contexts, name in ((first, "first"), (second, "second")):
        require_kind(contexts, MeasuredContexts, name, "Read contexts.npz by results.load.")
    require(
        first.delta == second.delta,
        "second",
        got=f"boundary regions of {second.delta}",
        expected=f"those of the first, {first.delta}",
        cure="Measure both with one delta.",
    )
    pairs = paired_names(first.names, second.names)
    ours = energies_before_queries(first.energies, first.asked)
    theirs = energies_before_queries(second.energies, second.asked)
    without_queries = None
    if ours is not None and theirs is not None:
        without_queries = _compared_influences(ours, theirs, first.delta, pairs)
    names = [name for name in first.shares if name in second.shares]
    return ComparedContexts(
        len(pairs),
        _compared_influences(first.energies, second.energies, first.delta, pairs),
        without_queries,
        {name: _compared_shares(first.shares[name], second.shares[name], pairs) for name in names},
    )


def _compared_influences(
    first: Sequence[Any], second: Sequence[Any], delta: float, pairs: Pairs
) -> ComparedInfluences:
    """Compare two results' influences on one grid, in pairs of the same contexts."""
    both = [*first, *second]
    dtype = np.result_type(*{energy.dtype for energy in both})
    regions = common_regions([len(energy) for energy in both], delta, dtype)
    ours, theirs = (influence_of_contexts(energies, regions) for energies in (first, second))
    return ComparedInfluences(ours, theirs, compare(ours, theirs, pairs=pairs))


def _compared_shares(
    first: Sequence[float], second: Sequence[float], pairs: Pairs
) -> ComparedShares:
    """Compare a record's shares in two results, over the contexts that have it."""
    has = ~np.isnan(first), ~np.isnan(second)
    chosen = pairs[has[0][pairs[:, 0]] & has[1][pairs[:, 1]]]
    anew = [(np.cumsum(rows) - 1)[column] for rows, column in zip(has, chosen.T, strict=True)]
    shares = [
        jax.device_put(np.asarray(values)[rows])
        for values, rows in zip((first, second), has, strict=True)
    ]
    change = compare_means(shares[0], shares[1], np.stack(anew, axis=1))
    first_mean, second_mean = map(sample_mean, shares)
    contexts = len(shares[0]), len(shares[1])
    return ComparedShares(first_mean, second_mean, change, contexts, len(chosen))


def energies_before_queries(
    energies: Sequence[Any], first_queries: Sequence[int]
) -> list[np.ndarray] | None:
    """Return the energies before each context's first query; None if one asks from its start."""
    if min(first_queries) == 0:
        return None
    pairs = zip(energies, first_queries, strict=True)
    return energies_of_tokens(energies, [np.arange(len(energy)) < end for energy, end in pairs])


def pooled_influences(
    energies: Sequence[np.ndarray], first_queries: Sequence[int], delta: float
) -> tuple[Influence, Influence | None]:
    """Return the influence of contexts of any lengths, and that of the tokens before queries."""

    def pool(energies: Sequence[np.ndarray]) -> Influence:
        """Pool the energies of contexts into one influence on common regions."""
        lengths = [energy.size for energy in energies]
        return influence_of_contexts(energies, common_regions(lengths, delta, energies[0].dtype))

    before_queries = energies_before_queries(energies, first_queries)
    return pool(energies), None if before_queries is None else pool(before_queries)
