"""What changed from one influence to another, with its standard error."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._checks import described, require, require_kind
from lim_jax._jit import filter_jit
from lim_jax.density.statistics import Indices, Influence, all_known, number_lines
from lim_jax.grid.measure import Scalar
from lim_jax.grid.partition import Regions
from lim_jax.probes import Estimate

Pairs = Int[np.ndarray, "pairs 2"]  # numbers of an example in the first and in the second
Results = tuple[Any, Any, Indices]  # density, total, indices, or such a number for each example


class Comparison(NamedTuple):
    """The second of two influences minus the first, with standard errors."""

    regions: Regions
    # Whether errors are of differences example by example, as far as examples are in both. Else
    # those of the two add in squares, right of independent examples and too much of equal ones.
    paired: bool
    density: Float[Array, " length"]
    density_error: Float[Array, " length"]
    total: Scalar
    total_error: Scalar
    indices: Indices
    index_errors: Indices
    pairs: int | None = None  # how many examples are in both

    def __str__(self) -> str:
        """Return the numbers in a few lines of text."""
        if not all_known(self._replace(paired=None, pairs=None)) or self.density.ndim > 1:
            return repr(self)
        kind = "pair by pair" if self.paired else "as if of independent examples"
        numbers = self.indices, self.index_errors, self.total, self.total_error
        return "\n".join([f"second minus first, {kind}", *number_lines(*numbers)])


def compare(first: Influence, second: Influence, *, pairs: Pairs | None = None) -> Comparison:
    r"""Subtract the first influence from the second, with standard errors.

    With the derivative :math:`T'` of a result in the mean energies, example e deviates by
    :math:`d_e = T'[E_e - \bar E]`. With some examples in both and others in one alone, the error is

    .. math:: \sigma^2 = \sum_{(a, b)} \Bigl(\frac{d_{2,b}}{\sqrt{n_2(n_2 - 1)}}
              - \frac{d_{1,a}}{\sqrt{n_1(n_1 - 1)}}\Bigr)^2
              + \sum_{a\text{ alone}} \frac{d_{1,a}^2}{n_1(n_1 - 1)}
              + \sum_{b\text{ alone}} \frac{d_{2,b}^2}{n_2(n_2 - 1)}

    What the examples do to both cancels in pairs. Where energies are not kept in both
    (`keep_examples`), the two errors add in squares.

    Parameters
    ----------
    first
        The influence to subtract.
    second
        The influence to subtract it from, over the same regions.
    pairs
        Which examples are the same: a NumPy array whose rows are an example's number in the first
        and in the second, known before tracing. By default all in their order, where there are as
        many of both, else none.

    Returns
    -------
    Comparison
        The density, the total and the indices of the second minus those of the first, with their
        errors. Print it for a table.

    Raises
    ------
    ValueError
        If one is not an Influence, their regions differ, or `pairs` are not such numbers of kept
        examples, or have one twice.

    Examples
    --------
    >>> regions = lim.boundary_regions(lim.token_grid(4), 0.25)
    >>> energies = jnp.array([[1.0, 2.0, 4.0, 1.0], [3.0, 2.0, 2.0, 1.0]])
    >>> first, second = (
    ...     Influence.from_energies(energies + more, regions, keep_examples=True)
    ...     for more in (0.0, jnp.array([[1.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 1.0]]))
    ... )
    >>> print(compare(first, second))
    second minus first, pair by pair
                           left             middle              right
    density          0.4 ± 0.04       -0.25 ± 0.05         0.1 ± 0.14
    gap 0.35 ± 0.19   LIM 0.833 ± 0.389   contrast 0.179 ± 0.168
    total 0.5 ± 0.25
    """
    for influence, name in ((first, "first"), (second, "second")):
        require_kind(influence, Influence, name, "Measure one with density.influence.")
    require(
        first.regions.same_as(second.regions),
        "second",
        got=f"influence over {second.regions}",
        expected=f"influence over {first.regions}, those of the first",
        cure="Measure both with the same regions.",
    )
    energies = first.example_energies, second.example_energies
    counts = [0 if examples is None else len(examples) for examples in energies]
    if pairs is None:
        paired = counts[0] if counts[0] == counts[1] else 0
        pairs = np.stack([np.arange(paired)] * 2, axis=1)
    pairs = _known_pairs(pairs, *counts)
    (density, total, indices), errors = _differences(first, second, pairs if len(pairs) else None)
    density_error, total_error, index_errors = errors
    return Comparison(
        first.regions,
        len(pairs) > 0,
        density,
        density_error,
        total,
        total_error,
        indices,
        index_errors,
        len(pairs),
    )


@filter_jit
def compare_means(
    first: Float[Array, " examples *shape"], second: Float[Array, " others *shape"], pairs: Any
) -> Estimate:
    """Subtract the first mean from the second, with its error, in pairs where there are some."""
    means = first.mean(axis=0), second.mean(axis=0)
    return Estimate(means[1] - means[0], _error(first - means[0], second - means[1], pairs))


def paired_names(first: Sequence[str], second: Sequence[str]) -> Pairs:
    """Pair the entries of two lists that have one name, by their numbers, in their order."""
    places_by_name: defaultdict[str, list[int]] = defaultdict(list)
    for place, name in reversed(list(enumerate(second))):
        places_by_name[name].append(place)
    pairs = [
        (place, places_by_name[name].pop())
        for place, name in enumerate(first)
        if places_by_name[name]
    ]
    return np.array(pairs, int).reshape(-1, 2)


@filter_jit
def _differences(first: Influence, second: Influence, pairs: Any) -> tuple[Results, Results]:
    """Subtract the first influence's results from the second's, with their standard errors."""
    if pairs is None:
        both = [
            (influence.density_error, influence.total_error, influence.index_errors())
            for influence in (first, second)
        ]
        errors = jax.tree.map(jnp.hypot, *both)
    else:
        error = _error(first._deviations(), second._deviations(), pairs)
        errors = error[:-7], error[-7], Indices(*error[-6:])  # of density, total and indices
    results = [
        (influence.density, influence.total, influence.indices()) for influence in (second, first)
    ]
    return jax.tree.map(jnp.subtract, *results), errors


def _error(
    first: Float[Array, " examples *shape"], second: Float[Array, " others *shape"], pairs: Any
) -> Float[Array, "*shape"]:
    """Compute the standard error of a difference of means from the deviations from each mean."""
    a = _over_root_of_pairs(first)
    b = _over_root_of_pairs(second)
    paired = b[pairs[:, 1]] - a[pairs[:, 0]]
    alone = a.at[pairs[:, 0]].set(0), b.at[pairs[:, 1]].set(0)
    error = jnp.sqrt(sum(jnp.sum(part**2, axis=0) for part in (paired, *alone)))
    return error if min(len(a), len(b)) > 1 else jnp.full_like(error, jnp.inf)


def _over_root_of_pairs(
    deviations: Float[Array, " examples *shape"],
) -> Float[Array, " examples *shape"]:
    """Divide the deviations of n examples by the root of n (n - 1); that of one example by one."""
    count = len(deviations)
    return jnp.asarray(deviations) / max(count * (count - 1), 1) ** 0.5


def _known_pairs(pairs: Any, first: int, second: int) -> Pairs:
    """Return the pairs; raise ValueError unless they number examples of both, none twice."""
    rows = isinstance(pairs, np.ndarray) and np.issubdtype(pairs.dtype, np.integer)
    rows = rows and pairs.ndim == 2 and pairs.shape[1] == 2
    inside = rows and bool(((pairs >= 0) & (pairs < [first, second])).all())
    require(
        inside and all(len(set(column)) == len(column) for column in pairs.T.tolist()),
        "pairs",
        got=f"{pairs.tolist()}" if rows else described(pairs),
        expected=f"a NumPy array of whole numbers with two columns, below {first} and {second}, "
        "none of a column twice",
        cure="Measure both influences with keep_examples=True.",
    )
    return pairs
