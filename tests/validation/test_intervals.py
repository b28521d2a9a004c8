"""Intervals cover what they claim to, and rank correlations are SciPy's."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.validation import intervals


def test_a_paired_interval_is_students():
    first, second = np.random.default_rng(0).standard_normal((2, 5, 3))
    differences = first - second
    wide = stats.t.isf(0.05, 4) / np.sqrt(5)
    interval = intervals.paired_interval(differences, level=0.9)
    half = wide * differences.std(axis=0, ddof=1)
    np.testing.assert_allclose(interval.low, differences.mean(axis=0) - half, rtol=1e-12)
    np.testing.assert_allclose(interval.high, differences.mean(axis=0) + half, rtol=1e-12)
    np.testing.assert_allclose(interval.value, first.mean(axis=0) - second.mean(axis=0), rtol=1e-12)
    alone = intervals.paired_interval(first[:1])
    assert (alone.low == -np.inf).all() and (alone.high == np.inf).all()
    same = intervals.paired_interval(np.stack([np.full(4, 0.1), np.zeros(4)], axis=1))
    np.testing.assert_allclose(same, [[0.1, 0], [0.1, 0], [0.1, 0]], rtol=1e-12)
    assert np.isnan(intervals.paired_interval(np.array([0.1, np.nan]))).all()


def test_rank_correlations_are_scipys_where_values_tie_too():
    generator = np.random.default_rng(1)
    x = generator.integers(0, 4, (6, 9)) + 0.0
    y = generator.standard_normal((6, 9)).round(1) + 0.3 * x
    x[4], y[5, 2] = 2.5, np.nan
    correlation = intervals.rank_correlation(x, y)
    expected = [np.asarray(stats.spearmanr(*pair))[0] for pair in zip(x[:4], y[:4], strict=True)]
    np.testing.assert_allclose(correlation[:4], expected, rtol=1e-12)
    assert np.isnan(correlation[4:]).all()
    assert np.isnan(intervals.rank_correlation(y[0], x[4]))


def test_paired_intervals_cover_the_mean_as_often_as_they_say():
    """Of five normal seeds, 20,000 times at once: some 0.0022 of the share is chance at 0.9."""
    samples = 2 + np.random.default_rng(2).standard_normal((5, 20_000))
    interval = intervals.paired_interval(samples, level=0.9)
    covered = np.mean((interval.low < 2) & (interval.high > 2))
    assert abs(covered - 0.9) < 4 * 0.0022


@pytest.mark.parametrize(("count", "expected"), [(5, 0.83), (20, 0.93)])
def test_bootstrap_intervals_cover_as_often_as_their_documentation_says(count, expected):
    """The same draws serve 4,000 data sets; of a skew law it is not that of the normal one."""
    samples = np.random.default_rng(3).standard_normal((count, 4000))
    interval = intervals.bootstrap_interval(samples, resamples=1000)
    covered = np.mean((interval.low < 0) & (interval.high > 0))
    assert abs(covered - expected) < 0.02


def test_bootstrap_ends_are_quantiles_of_a_statistic_of_what_is_drawn_together():
    """Of a ratio of means, whose spread is known to first order; and of the mean, exactly so."""
    x, y = 3 + np.random.default_rng(4).standard_normal((2, 400))

    def ratio(samples):
        return samples[0].mean() / samples[1].mean()

    interval = intervals.bootstrap_interval((x, y), ratio, level=0.9)
    value = x.mean() / y.mean()
    error = np.std(x - value * y) / y.mean() / np.sqrt(400)
    assert interval.value == pytest.approx(value)
    width = interval.high - interval.low
    assert width == pytest.approx(2 * stats.norm.isf(0.05) * error, rel=0.1)
    together = intervals.bootstrap_interval((x, 2 * x), ratio)
    np.testing.assert_allclose(together, 0.5, rtol=1e-12)
    other = intervals.bootstrap_interval((x, y), ratio, level=0.9, seed=1)
    assert other.value == interval.value and other.low != interval.low


def test_draws_of_which_the_statistic_is_none_are_left_out():
    """Of two constant sides there is no correlation: half of all draws of two seeds are those."""

    def correlation(samples):
        return intervals.rank_correlation(np.array([1.0, 2.0]), samples[:, 0])

    samples = np.array([[1.0], [3.0]])
    interval = intervals.bootstrap_interval(samples, correlation, resamples=200)
    assert (interval.value, interval.low, interval.high) == (1, -1, 1)
    nothing = intervals.bootstrap_interval(samples[:1].repeat(2, axis=0), correlation, resamples=9)
    assert np.isnan(nothing).all()
