"""Random probes are isotropic, each of its own, and of the kinds that they say."""

import equinox as eqx
import jax
import numpy as np
import pytest

from lim_jax import probes

WIDTH = 5


@pytest.mark.parametrize("draw", [probes.gaussian_probes, probes.rademacher_probes])
def test_probes_are_isotropic_and_independent(draw):
    # `eq:isotropic-observability-probes`.
    count = 40_000
    samples = np.asarray(draw(count, WIDTH, key=jax.random.key(0)))
    error = 4 * np.sqrt(2 / count)
    assert np.abs(samples.mean(axis=0)).max() < error
    assert np.abs(samples.T @ samples / count - np.eye(WIDTH)).max() < error
    half = count // 2
    assert np.abs(samples[:half].T @ samples[half:] / half).max() < 4 / np.sqrt(half)
    fourth = 3 if draw is probes.gaussian_probes else 1
    assert abs(np.mean(samples**4) - fourth) < 4 * np.sqrt(96 / samples.size)


def test_the_standard_error_of_a_mean_has_one_degree_less():
    samples = np.exp(np.random.default_rng(0).standard_normal((4, 3)))
    estimate = probes.sample_mean(jax.device_put(samples))
    np.testing.assert_allclose(estimate.value, samples.mean(axis=0), rtol=1e-14)
    deviations = samples - samples.mean(axis=0)
    np.testing.assert_allclose(
        estimate.error, np.sqrt((deviations**2).sum(axis=0) / 12), rtol=1e-12
    )
    assert np.isinf(np.asarray(probes.sample_mean(jax.device_put(samples[:1])).error)).all()


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e30])
def test_the_standard_error_of_single_precision_is_found_at_every_size(size):
    """Squared deviations under- and overflow: the error was zero, or infinite."""
    samples = np.random.default_rng(0).standard_normal((4, 3)) * [size, 1, size]
    error = np.asarray(probes.sample_mean(jax.device_put(samples.astype(np.float32))).error)
    expected = samples.std(axis=0, ddof=1) / 2
    np.testing.assert_allclose(error, expected, rtol=1e-5)


def test_the_standard_error_of_equal_samples_has_the_derivative_zero():
    """And of others the closed one: a deviation from the mean over n (n - 1) times the error."""

    def error(samples):
        return probes.sample_mean(samples).error.sum()

    equal, unequal = np.ones(3), np.array([1.0, 2.0, 6.0])
    samples = jax.device_put(np.stack([equal, unequal], axis=1))
    slope = np.asarray(jax.jit(jax.grad(error))(samples))
    np.testing.assert_array_equal(slope[:, 0], 0)
    expected = (unequal - 3) / (6 * np.sqrt(14 / 6))
    np.testing.assert_allclose(slope[:, 1], expected, rtol=1e-12)
    _, moved = jax.jit(lambda samples: jax.jvp(error, (samples,), (samples,)))(samples)
    np.testing.assert_allclose(moved, np.sqrt(14 / 6), rtol=1e-12)
    assert np.isnan(error(samples.at[0].set(np.nan)))


def test_the_tail_index_of_samples_whose_ratio_overflows_is_not_zero():
    """The ratio of such samples is infinite in float32: the index was zero, its error infinite."""
    samples = np.array([1e25, 1e25, 1e-25, 1e-25], np.float32)
    index = jax.jit(probes.tail_index)(jax.device_put(samples))
    assert index.value.dtype == np.float32
    np.testing.assert_allclose(index.value, 1 / (50 * np.log(10)), rtol=1e-6)
    np.testing.assert_allclose(index.error, 1 / (50 * np.log(10)) / np.sqrt(2), rtol=1e-6)


@pytest.mark.parametrize("sizes", [[0, 0, 0, 9], [3, 3, 3, 3], [0, 0, 0, 0]])
def test_the_tail_index_that_is_zero_or_infinite_has_the_derivative_zero(sizes):
    """It was NaN where it is zero, at three samples of four."""
    slope = jax.grad(lambda samples: probes.tail_index(samples).value)(
        jax.device_put(np.array(sizes, float))
    )
    np.testing.assert_array_equal(slope, np.zeros(4))


def test_the_tail_index_is_as_near_as_its_error_says():
    """Of 400 samples of P(s > r) = r^-0.8: k over the index is 0.8 times k exponential gaps."""
    # `eq:data-fourth-moment`.
    samples = np.random.default_rng(0).uniform(size=(400, 930)) ** (-1 / 0.8)
    index = jax.tree.map(np.asarray, jax.jit(jax.vmap(probes.tail_index))(samples))
    inverse = 1 / index.value
    np.testing.assert_allclose(inverse.mean(), 1 / 0.8, rtol=4 / np.sqrt(400 * 30))
    np.testing.assert_allclose(inverse.std(), 1 / 0.8 / np.sqrt(30), rtol=4 / np.sqrt(2 * 400))
    np.testing.assert_allclose(index.error, index.value / np.sqrt(30), rtol=1e-12)
    largest = np.sort(samples[0])[::-1][:31]
    expected = 1 / np.mean(np.log(largest[:30] / largest[30]))
    np.testing.assert_allclose(index.value[0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    "sample, value",
    [(np.ones(9), np.inf), (np.zeros(9), np.inf), (np.eye(9)[0], 0), (np.ones(1), 0)],
    ids=["equal", "zero", "one of nine", "one"],
)
def test_samples_without_a_tail_have_no_finite_error(sample, value):
    index = probes.tail_index(jax.device_put(sample))
    assert (index.value, index.error) == (value, np.inf)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_samples_that_are_no_sizes_are_refused(bad):
    with pytest.raises(eqx.EquinoxRuntimeError, match="finite numbers from 0 on"):
        probes.tail_index(jax.device_put(np.array([1.0, 2, 3, bad])))
