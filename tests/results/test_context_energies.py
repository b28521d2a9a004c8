"""Contexts of many lengths compared, in pairs where these are in both: against NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from lim_jax.density import Influence
from lim_jax.density.common_grid import common_regions, influence_of_contexts
from lim_jax.probes import Estimate
from lim_jax.results import compare, compare_contexts
from lim_jax.results.comparison import compare_means, paired_names
from lim_jax.results.comparison_tables import middle_in_words, record_in_words
from lim_jax.results.context_energies import (
    ComparedShares,
    MeasuredContexts,
)

NONE = np.zeros((0, 2), int)


def in_common(generator, first, second, shared):
    """Numbers of examples that move both alike, in two orders; and which are the same."""
    common = 5 * generator.standard_normal(first + second - shared)
    ours = generator.permutation(np.arange(first))
    theirs = generator.permutation(np.arange(first - shared, common.size))
    one = common[ours]
    two = 1 + common[theirs]
    place = {example: number for number, example in enumerate(theirs)}
    pairs = [(number, place[one]) for number, one in enumerate(ours) if one in place]
    noise = [0.1 * generator.standard_normal(values.size) for values in (one, two)]
    return one + noise[0], two + noise[1], np.array(pairs, int).reshape(-1, 2)


def test_means_in_pairs_and_apart_have_the_errors_of_students_tests():
    """Where the examples move both alike, pairs know the difference twenty times better."""
    one, two, pairs = in_common(np.random.default_rng(0), 30, 30, 30)
    first = jax.device_put(one)
    second = jax.device_put(two)
    paired, apart = (compare_means(first, second, which) for which in (pairs, NONE))
    ours = np.asarray(stats.ttest_rel(two[pairs[:, 1]], one[pairs[:, 0]]))
    np.testing.assert_allclose(paired.value / paired.error, ours[0], rtol=1e-10)
    theirs = np.asarray(stats.ttest_ind(two, one, equal_var=False))
    np.testing.assert_allclose(apart.value / apart.error, theirs[0], rtol=1e-10)
    np.testing.assert_allclose(paired.value, two.mean() - one.mean(), rtol=1e-12)
    assert float(apart.error) > 20 * float(paired.error)


def test_means_that_have_some_examples_in_common_vary_as_their_error_says():
    """Of 600 draws the spread of the difference is known to 2.9 %."""
    generator = np.random.default_rng(1)
    comparisons = []
    for _ in range(600):
        one, two, pairs = in_common(generator, 12, 9, 6)
        assert len(pairs) == 6
        deviations = (one - one.mean()) / np.sqrt(12 * 11), (two - two.mean()) / np.sqrt(9 * 8)
        # Written apart: both variances, less twice the covariance of what is in both.
        covariance = (deviations[0][pairs[:, 0]] * deviations[1][pairs[:, 1]]).sum()
        variance = (deviations[0] ** 2).sum() + (deviations[1] ** 2).sum() - 2 * covariance
        comparisons.append((two.mean() - one.mean(), variance))
    last = compare_means(jax.device_put(one), jax.device_put(two), pairs)  # pyright: ignore[reportPossiblyUnboundVariable]
    np.testing.assert_allclose(last.error, np.sqrt(comparisons[-1][1]), rtol=1e-10)
    np.testing.assert_allclose(last.value, comparisons[-1][0], rtol=1e-10)
    differences, variances = np.transpose(comparisons)
    np.testing.assert_allclose(variances.mean(), differences.var(ddof=1), rtol=0.12)


def test_one_example_of_either_has_no_error():
    one = jax.device_put(np.array([1.0]))
    two = jax.device_put(np.array([3.0, 5.0]))
    for first, second, pairs in ((one, two, [[0, 1]]), (two, one, [[1, 0]])):
        comparison = compare_means(first, second, np.array(pairs))
        assert abs(float(comparison.value)) == 3 and np.isinf(comparison.error)


@pytest.mark.slow
def test_influences_are_paired_by_the_pairs_that_are_told():
    """In another order, with examples of their own: the total is linear, its error a mean's."""
    generator = np.random.default_rng(2)
    regions = common_regions([7], 0.3)
    common = np.exp(generator.standard_normal((14, 1)))
    energies = common * np.exp(generator.standard_normal((14, 7)) / 10) * np.linspace(1, 2, 7)
    order = np.array([9, 3, 12, 0, 13, 5, 7])
    first = energies[:10]
    second = energies[order] * np.linspace(2, 1, 7)
    pairs = np.array([[9, 0], [3, 1], [0, 3], [5, 5], [7, 6]])
    one, two = (influence_of_contexts(list(rows), regions) for rows in (first, second))
    comparison = compare(one, two, pairs=pairs)
    assert comparison.paired and comparison.pairs == 5
    means = compare_means(
        jax.device_put(first.mean(axis=1)), jax.device_put(second.mean(axis=1)), pairs
    )
    np.testing.assert_allclose(comparison.total, means.value, rtol=1e-10)
    np.testing.assert_allclose(comparison.total_error, means.error, rtol=1e-10)
    # The same examples by themselves, in one order and in another.
    rows = [list(first[pairs[:, 0]]), list(second[pairs[:, 1]])]
    aligned = compare(*(influence_of_contexts(of_one, regions) for of_one in rows))
    mixed = [4, 2, 0, 1, 3]
    again = influence_of_contexts([rows[0][number] for number in mixed], regions)
    whole = influence_of_contexts(rows[1], regions)
    told = compare(again, whole, pairs=np.stack([np.arange(5), mixed], axis=1))
    assert aligned.pairs == told.pairs == 5
    np.testing.assert_allclose(told.density_error, aligned.density_error, rtol=1e-10)
    np.testing.assert_allclose(list(told.index_errors), list(aligned.index_errors), rtol=1e-10)
    none = compare(one, two, pairs=NONE)
    assert not none.paired and none.pairs == 0
    np.testing.assert_allclose(
        none.total_error, np.hypot(one.total_error, two.total_error), rtol=1e-10
    )


@pytest.mark.parametrize(
    "pairs",
    [
        [[0, 0]],
        np.array([0, 1]),
        np.array([[0.0, 1.0]]),
        np.array([[0, 3]]),
        np.array([[-1, 0]]),
        np.array([[0, 0], [0, 1]]),
        np.array([[0, 0], [1, 0]]),
    ],
)
@pytest.mark.usefixtures("as_users_run")
def test_pairs_of_no_examples_are_refused(pairs):
    regions = common_regions([2], 0.25)
    kept = influence_of_contexts([np.ones(2)] * 3, regions)
    with pytest.raises(ValueError, match="pairs: got .*below 3 and 3"):
        compare(kept, kept, pairs=pairs)


def test_pairs_need_examples_that_are_kept():
    regions = common_regions([2], 0.25)
    energies = jax.device_put(np.ones((3, 2)))
    influence = Influence.from_energies(energies, regions)
    with pytest.raises(ValueError, match="pairs: got .*below 0 and 0"):
        compare(influence, influence, pairs=np.array([[0, 0]]))


def test_names_that_stand_more_than_once_are_paired_in_their_order():
    pairs = paired_names(["a", "b", "a", "a", "c"], ["c", "a", "x", "a"])
    assert pairs.tolist() == [[0, 1], [2, 3], [4, 0]]
    assert paired_names(["a"], ["b"]).shape == (0, 2)


LENGTHS = {"a": 6, "b": 4, "c": 8, "d": 4, "e": 12}
ASKED = {"a": 4, "b": 3, "c": 6, "d": 2, "e": 10}


def made(names, seed, tilt, record="abd"):
    """Contexts that move both results alike; the second is tilted to the right."""
    common = {name: np.random.default_rng(ord(name)).exponential(1, 12) for name in "abcde"}
    generator = np.random.default_rng(seed)
    energies = [
        common[name][: LENGTHS[name]]
        * np.linspace(1, tilt, LENGTHS[name])
        * np.exp(generator.standard_normal(LENGTHS[name]) / 20)
        for name in names
    ]
    shares = {
        "key": [
            energy[1] / energy.sum() if name in record else np.nan
            for name, energy in zip(names, energies, strict=True)
        ],
        f"of {seed} alone": [0.5] * len(names),
    }
    return MeasuredContexts(list(names), energies, [ASKED[n] for n in names], shares, 0.3)


def on_cells(energy, cells):
    """Averages over cells of another grid, through one that is finer than both."""
    fine = np.lcm(energy.size, cells)
    return np.repeat(energy, fine // energy.size).reshape(cells, -1).mean(axis=1)


def test_contexts_of_many_lengths_are_compared_on_one_grid():
    first = made("abcd", 1, 1.0)
    second = made("dbea", 2, 3.0, record="de")
    comparison = compare_contexts(first, second)
    assert comparison.pairs == 3
    cells = 5  # the median of 6, 4, 8, 4, 4, 4, 12, 6
    parts = (
        (comparison.whole, lambda energy, name: energy),
        (
            comparison.without_queries,
            lambda energy, name: energy[: ASKED[name]] * ASKED[name] / LENGTHS[name],
        ),
    )
    for (compared, chosen), cells in zip(parts, (5, 3), strict=True):
        assert compared is not None
        means = []
        for result, influence in ((first, compared.first), (second, compared.second)):
            pairs = zip(result.energies, result.names, strict=True)
            rows = np.array([on_cells(chosen(*pair), cells) for pair in pairs])
            assert influence.example_energies is not None
            np.testing.assert_allclose(influence.example_energies, rows, rtol=1e-10)
            means.append(rows.mean(axis=0))
        change = means[1] / means[1].mean() - means[0] / means[0].mean()
        np.testing.assert_allclose(compared.change.density, change, rtol=1e-9, atol=1e-12)
        assert compared.change.pairs == 3
        assert float(compared.change.regions.delta) == 0.3


def test_shares_are_compared_over_the_contexts_that_have_the_record():
    first = made("abcd", 1, 1.0)
    second = made("dbea", 2, 3.0, record="de")
    shares = compare_contexts(first, second).shares
    assert list(shares) == ["key"]
    key = shares["key"]
    one, two = (np.array(result.shares["key"]) for result in (first, second))
    one, two = one[[0, 1, 3]], two[[0, 2]]  # of a, b, d; of d, e
    assert key.contexts == (3, 2) and key.pairs == 1
    np.testing.assert_allclose(key.first, (one.mean(), one.std(ddof=1) / np.sqrt(3)), rtol=1e-10)
    np.testing.assert_allclose(key.second, (two.mean(), two.std(ddof=1) / np.sqrt(2)), rtol=1e-10)
    covariance = (one[2] - one.mean()) * (two[0] - two.mean()) / np.sqrt(3 * 2 * 2 * 1)
    error = np.sqrt(one.var(ddof=1) / 3 + two.var(ddof=1) / 2 - 2 * covariance)
    np.testing.assert_allclose(key.change, (two.mean() - one.mean(), error), rtol=1e-10)


def test_what_asks_from_its_first_token_is_compared_whole_alone():
    first = made("abcd", 1, 1.0)
    second = made("dbea", 2, 3.0)
    other = second._replace(asked=[2, 3, 0, 4])
    assert compare_contexts(first, other).without_queries is None
    assert compare_contexts(first, second).without_queries is not None


def test_results_that_cannot_be_compared_are_refused():
    first = made("ab", 1, 1.0)
    with pytest.raises(ValueError, match="second: got boundary regions of 0.2, .*0.3"):
        compare_contexts(first, first._replace(delta=0.2))


@pytest.mark.usefixtures("as_users_run")
def test_what_is_no_result_is_refused():
    with pytest.raises(ValueError, match="second: got 3"):
        compare_contexts(made("ab", 1, 1.0), 3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "middle, error, said",
    [
        (0.25, 0.1, "B uses the middle 10.0 ± 4.0 points more than A."),
        (-0.25, 0.1, "B uses the middle 10.0 ± 4.0 points less than A."),
        (
            0.25,
            0.13,
            "B uses the middle 10.0 ± 5.2 points more than A, which is within two errors.",
        ),
        (
            0.25,
            np.inf,
            "B uses the middle 10.0 points more than A, of one context alone, which has no error.",
        ),
    ],
)
def test_a_sentence_says_the_points_their_error_and_whether_they_are_told(middle, error, said):
    """The middle is two fifths of the context, so that a density of 0.25 is a tenth of Z."""
    change = compare_contexts(made("abcd", 1, 1.0), made("dbea", 2, 3.0)).whole.change
    indices, errors = (
        of_all._replace(middle=np.array(value))
        for of_all, value in ((change.indices, middle), (change.index_errors, error))
    )
    changed = change._replace(indices=indices, index_errors=errors)
    assert middle_in_words(changed, ("A", "B")) == said


def test_the_record_that_changed_most_is_told_by_its_error():
    def share(value, error):
        one = Estimate(jnp.array(value), jnp.array(error))
        return ComparedShares(one, one, one, (2, 2), 2)

    shares = {"a": share(0.5, 0.25), "b": share(-0.125, 0.01), "c": share(0.0, 0.0)}
    assert record_in_words(shares, ("A", "B")) == (
        "Of the records, “b” changed most for its error: B gives it 12.5 ± 1.0 points less than A."
    )
    alone = {name: share(value, np.inf) for name, value in (("a", 0.5), ("b", -0.125))}
    assert record_in_words(alone, ("A", "B")) == (
        "Of the records, “a” changed most: B gives it 50.0 points more than A, of one context "
        "alone, which has no error."
    )


def test_a_comparison_of_contexts_prints_its_numbers():
    comparison = compare_contexts(made("abcd", 1, 1.0), made("dbea", 2, 3.0))
    lines = str(comparison).splitlines()
    assert lines[0] == "3 contexts in pairs" and "pair by pair" in lines[1]
    value, error = map(float, comparison.shares["key"].change)
    assert lines[-1] == f"key: {value:+.4f} ± {error:.4f} of the total"
    alone = str(compare_contexts(made("a", 1, 1.0), made("a", 2, 3.0))).splitlines()
    assert alone[-1].endswith(" of the total") and "±" not in alone[-1], "it has no error"
