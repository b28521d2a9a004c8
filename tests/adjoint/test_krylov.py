"""Norms of operators: attained below, certified above, at the stated probability of failure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.differences import central_difference
from reference.networks import random_states

from lim_jax.adjoint.krylov import checked_steps, norm_bounds


def applied(matrix):
    return lambda vector: matrix @ vector


def by_starts(matrix, starts, steps, failure):
    bounds = jax.jit(
        jax.vmap(lambda s: norm_bounds(applied, matrix, s, steps=steps, failure=failure))
    )
    return jax.tree.map(np.asarray, bounds(starts))


def test_both_sides_hold_where_singular_values_cluster():
    """Power iterations have not settled after sixty steps here, and their residual says nothing."""
    matrix = jax.device_put(np.diag([1.0, *[0.99] * 7]))
    bounds = by_starts(matrix, random_states(0, 12, 8), 4, 1e-9)
    assert (bounds.attained <= 1 + 1e-12).all() and (bounds.upper >= 1).all()
    settled = by_starts(matrix, random_states(0, 12, 8), 8, 1e-9)
    np.testing.assert_allclose(settled.attained, 1, rtol=1e-12)
    np.testing.assert_array_equal(settled.upper, settled.attained)


def test_upper_sides_fail_no_more_often_than_they_say():
    """Fifty singular values, evenly spread up to 1, by three steps: 2,000 random starts.

    A component of a random unit vector of n is below t with probability t sqrt(2n/pi) at most.
    """
    matrix = jax.device_put(np.diag(np.linspace(1, 0, 50)))
    for failure in (0.4, 0.1):
        bounds = by_starts(matrix, random_states(1, 2000, 50), 3, failure)
        failed = (bounds.upper < 1).mean()
        assert failed <= failure + 3 * np.sqrt(failure / 2000)
        # By the formula itself, in NumPy.
        reach = np.arccosh(np.sqrt(100 / np.pi) / failure)
        np.testing.assert_allclose(bounds.upper / bounds.attained, np.cosh(reach / 5), rtol=1e-12)
    assert (bounds.attained < 1).all()


def test_a_whole_krylov_space_gives_the_norm():
    generator = np.random.default_rng(3)
    for matrix in (generator.standard_normal((6, 6)), np.outer(np.arange(6.0), np.ones(6))):
        bounds = by_starts(jax.device_put(matrix), random_states(4, 3, 6), 40, 1e-9)
        np.testing.assert_allclose(bounds.attained, np.linalg.norm(matrix, 2), rtol=1e-10)
    nothing = by_starts(jnp.zeros((6, 6)), random_states(4, 3, 6), 4, 1e-9)
    np.testing.assert_array_equal(nothing.upper, 0)


def test_norms_of_small_operators_do_not_underflow():
    matrix = jax.device_put((1e-25 * np.diag([3.0, 1.0, 0.5])).astype(np.float32))
    bounds = by_starts(matrix, jnp.asarray(random_states(5, 2, 3), np.float32), 2, 1e-9)
    assert (bounds.upper >= 3e-25 * (1 - 1e-5)).all() and (bounds.attained <= 3.0001e-25).all()


def test_norms_are_differentiated_once():
    matrix, direction = (random_states(seed, 5, 5) for seed in (6, 7))
    start = random_states(8, 5)

    def norm(matrix):
        return norm_bounds(applied, matrix, start, steps=3, failure=1e-9).upper

    whole = jax.jit(
        lambda m: norm_bounds(applied, m, start, steps=5, failure=1e-9).upper
    )  # settled, where the vectors that are held still are those of the norm
    slope = jax.jit(lambda m: jax.jvp(whole, (m,), (direction,))[1])(matrix)
    gradient = jax.jit(jax.grad(whole))(matrix)
    np.testing.assert_allclose(jnp.vdot(gradient, direction), slope, rtol=1e-12)
    np.testing.assert_allclose(slope, central_difference(whole, matrix, direction), rtol=1e-6)
    with pytest.raises(NotImplementedError, match="differentiated once"):
        jax.hessian(norm)(matrix)


@pytest.mark.parametrize("wrong", [{"steps": 0, "failure": 0.1}, {"steps": 3, "failure": 0.5}])
def test_no_steps_and_no_probability_are_refused(wrong):
    with pytest.raises(ValueError, match="got"):
        checked_steps(**wrong)
