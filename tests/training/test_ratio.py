"""The bias of a ratio of means, by enumeration of all batches of a finite law, and its cures."""

import itertools
from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.differences import central_difference, fitted_order
from reference.networks import random_states

import lim_jax as lim
from lim_jax.training import balanced_density, crossed_density, ratio_bias

SIZE = 4
GRID = lim.graded_grid(SIZE)
CELLS = np.asarray(GRID.weights)
# A law of three examples: the energies of each at four positions, and how often each is drawn.
LAW = np.array([[1.0, 2.0, 3.0, 4.0], [6.0, 1.0, 0.5, 1.0], [0.2, 0.1, 0.4, 0.3]])
CHANCES = np.array([0.5, 0.2, 0.3])


def ratio(energy, epsilon=0.0):
    return energy / (CELLS @ energy + epsilon)


def batches(size):
    """All batches of a size but for their order, the rows of each, and the chance of each."""
    counts = np.array(
        [c for c in itertools.product(range(size + 1), repeat=len(LAW)) if sum(c) == size]
    )
    ways = [factorial(size) / np.prod([float(factorial(n)) for n in c]) for c in counts]
    rows = np.stack([np.repeat(LAW, c, axis=0) for c in counts])
    return jax.device_put(rows), np.array(ways) * np.prod(CHANCES**counts, axis=1)


@jax.jit
def estimates(rows):
    return jax.vmap(lambda energies: ratio_bias(energies, GRID))(rows)


def test_the_jackknife_is_right_to_second_order():
    """From 32 examples to 64 the true bias falls as 1/B, and what the estimate misses as 1/B^2."""
    true = []
    missed = []
    sizes = np.array([32, 64])
    for size in sizes:
        rows, chances = batches(size)
        assert abs(chances.sum() - 1) < 1e-12
        densities = np.stack([ratio(batch.mean(axis=0)) for batch in np.asarray(rows)])
        bias = chances @ densities - ratio(CHANCES @ LAW)
        true.append(np.abs(bias).max())
        missed.append(np.abs(chances @ np.asarray(estimates(rows)) - bias).max())
    assert abs(fitted_order(sizes, true) - 1) < 0.15
    assert abs(fitted_order(sizes, missed) - 2) < 0.15
    assert missed[-1] < true[-1] / 20


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_the_jackknife_leaves_each_example_out_once(epsilon):
    """(B - 1) times what leaving one out changes on average, by NumPy, with a stabiliser too."""
    energies = np.exp(np.asarray(random_states(3, 6, SIZE)))
    left_out = [ratio(np.delete(energies, b, axis=0).mean(axis=0), epsilon) for b in range(6)]
    expected = 5 * (np.mean(left_out, axis=0) - ratio(energies.mean(axis=0), epsilon))
    bias = ratio_bias(jax.device_put(energies), GRID, epsilon=epsilon)
    np.testing.assert_allclose(bias, expected, rtol=1e-11)


@pytest.mark.parametrize("largest", [1.0, 1e3], ids=["alike", "one has a fifth"])
def test_the_bias_of_a_large_batch_survives_half_of_the_digits(largest):
    """Four thousand examples in float32: their densities differ by less than its rounding allows.

    The relative rounding of a sum of so many is some 1e-6; a difference of densities would lose
    another factor of 4,000.
    """
    energies = np.random.default_rng(0).gamma(2.0, size=(4096, SIZE)) * np.array([1, 2, 3, 4])
    energies[7] *= largest
    expected = ratio_bias(jax.device_put(energies), GRID)
    with jax.enable_x64(False):
        bias = ratio_bias(jnp.asarray(energies, "float32"), lim.graded_grid(SIZE, "float32"))
    assert bias.dtype == jnp.float32
    np.testing.assert_allclose(bias, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_its_derivative_is_a_difference():
    energies = jnp.exp(random_states(3, 5, SIZE))
    change = random_states(4, 5, SIZE)

    def value(energies):
        return ratio_bias(energies, GRID) @ jnp.arange(1.0, 5.0)

    slope = jnp.vdot(jax.jit(jax.grad(value))(energies), change)
    expected = central_difference(value, energies, change)
    np.testing.assert_allclose(slope, expected, rtol=1e-8)
    np.testing.assert_allclose(jax.jvp(value, (energies,), (change,))[1], expected, rtol=1e-8)


def test_crossed_halves_have_the_bias_of_the_reciprocal_alone():
    """Their numerators and denominators are independent: E m = m Z E(1/Z), at every place."""
    halves = np.array(list(itertools.product(range(3), repeat=2)))
    chances = CHANCES[halves].prod(axis=1)
    pairs = np.array(list(itertools.product(range(len(halves)), repeat=2)))
    rows = LAW[halves[pairs].reshape(len(pairs), 4)]
    crossed = jax.jit(jax.vmap(lambda e: crossed_density(e, GRID.weights, epsilon=0.0)))
    found = chances[pairs].prod(axis=1) @ np.asarray(crossed(jax.device_put(rows)))
    reciprocal = chances @ (1 / (LAW[halves].mean(axis=1) @ CELLS))
    expected = CHANCES @ LAW * reciprocal
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert reciprocal * (CHANCES @ LAW @ CELLS) > 1.1  # too large, by Jensen's inequality


def test_of_independent_gamma_energies_the_plain_ratio_has_no_bias_and_the_crossed_one_has():
    """A cure is none for every law: Gamma totals are independent of their shares.

    Of shapes a at four positions the halves of 8 examples have totals Gamma(A), A = 4 sum(a), and
    E m is m A/(A - 1).
    """
    shapes = np.array([0.5, 1.0, 1.5, 2.0])
    draws = 40_000
    grid = lim.token_grid(SIZE)
    energies = np.random.default_rng(1).gamma(shapes, size=(draws, 8, SIZE))
    true = SIZE * shapes / shapes.sum()
    total = 4 * shapes.sum()

    @jax.jit
    @jax.vmap
    def all_three(energies):
        densities = [
            estimate(energies, grid.weights, epsilon=0.0)
            for estimate in (balanced_density, crossed_density)
        ]
        return *densities, ratio_bias(energies, grid)

    plain, crossed, bias = map(np.asarray, all_three(jax.device_put(energies)))
    for found, expected in ((plain, true), (crossed, true * total / (total - 1)), (bias, 0)):
        error = found.std(axis=0) / np.sqrt(draws)
        assert (np.abs(found.mean(axis=0) - expected) < 4 * error).all()
    assert (true / (total - 1) > 5 * crossed.std(axis=0) / np.sqrt(draws)).all()


@pytest.mark.parametrize("estimate", ["ratio_bias", "crossed_density"])
def test_one_example_alone_is_refused(estimate):
    one = jnp.ones((1, SIZE))
    calls = {
        "ratio_bias": lambda: ratio_bias(one, GRID),
        "crossed_density": lambda: crossed_density(one, GRID.weights, epsilon=0.0),
    }
    with pytest.raises(ValueError, match="energies: got one example, expected at least two"):
        calls[estimate]()


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_the_bias_on_a_grid_of_few_bits_has_weights_of_single_precision(dtype, as_users_run):
    """A third has a rounding of 1e-3 in bfloat16, which was one of the bias."""
    rows = jnp.asarray(LAW[:, :3], jnp.float32)
    expected = ratio_bias(rows, lim.token_grid(3, jnp.float32), epsilon=0.1)
    found = ratio_bias(rows, lim.token_grid(3, dtype), epsilon=0.1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
