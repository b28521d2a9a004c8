"""Moments of laws that have them and of laws that have not, in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lim_jax as lim
from lim_jax import probes
from lim_jax.limits import fourth_moment_studies

SIZES = (4, 8, 16, 32)
WEIGHT = np.array([1.0, -2.0])
ETA = np.array([3.0, 4.0])


def labels(tail, count):
    """Of size k^(1/alpha) for the k-th largest of a Pareto law, shuffled: E y^4 is infinite."""
    ranks = (np.random.default_rng(0).permutation(count) + 0.5) / count
    return ranks ** (-1 / tail)


def studies(loss, tail=None, make_grid=lim.graded_grid):
    def batch(grid):
        y = np.array([1.0, 2, 3]) if tail is None else labels(tail, 400)
        return jax.device_put((np.zeros((y.size, grid.size, 2)), y))

    params, direction = jax.device_put((WEIGHT, ETA))
    return fourth_moment_studies(loss, params, batch, direction, SIZES, make_grid)


def whole(grid):
    """P_0 is y w everywhere, and its slope y eta: fourth moments that know no length."""
    return lambda weight, x, y: lim.integral(x, grid) @ weight * y


def last(grid):
    """P_0 is y w over the last cell's mass, there: fourth moments are over the mass's cube."""
    return lambda weight, x, y: x[-1] @ weight * y


def test_fourth_moments_that_know_no_length_do_not_grow():
    # `rem:l4-sensitivity-practice`, `eq:adjoint-l4-sensitivity-assumption`.
    moments = studies(whole)
    fourth = np.mean([1, 2**4, 3**4])
    masses = [float(np.sum(lim.graded_grid(size).weights)) for size in SIZES]
    np.testing.assert_allclose(moments["adjoint"].errors, 25 * fourth * np.array(masses), rtol=1e-9)
    np.testing.assert_allclose(moments["sensitivity"].errors, fourth * np.array(masses), rtol=1e-9)
    error = np.std([1, 2**4, 3**4], ddof=1) / np.sqrt(3) * max(masses)
    for name, size in (("adjoint", 25), ("sensitivity", 1)):
        study = moments[name]
        assert abs(study.order.value) < 0.1
        np.testing.assert_allclose(study.reference_error, size * error, rtol=1e-9)
        assert (study.source, study.claimed) == ("rem:l4-sensitivity-practice", None)
        assert study.bounds is None and study.refinements == SIZES


def test_the_fourth_moments_of_a_last_token_grow_like_the_cube_of_the_length():
    # `rem:l4-sensitivity-practice`.
    moments = studies(last, make_grid=lim.token_grid)
    fourth = np.mean([1, 2**4, 3**4])
    np.testing.assert_allclose(moments["adjoint"].errors, 25 * fourth * np.array(SIZES) ** 3.0)
    np.testing.assert_allclose(moments["sensitivity"].errors, fourth * np.array(SIZES) ** 3.0)
    assert abs(moments["sensitivity"].order.value + 3) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("tail", [24, 2])
def test_moments_that_a_heavy_tail_carries_are_not_resolved(tail):
    """Labels with P(y > s) = s^-24 have an eighth moment, those with s^-2 no fourth."""
    # `rem:l4-sensitivity-practice`, `eq:data-fourth-moment`.
    moments = studies(whole, tail)
    fourths = labels(tail, 400) ** 4
    np.testing.assert_allclose(moments["adjoint"].errors[-1], 25 * fourths.mean(), rtol=0.02)
    assert all(study.resolved is (tail == 24) for study in moments.values())
    # The tail of y^4 is like s^(-tail / 4).
    index = probes.tail_index(jax.device_put(labels(tail, 4096) ** 4))
    assert abs(float(index.value) - tail / 4) < float(index.error) / 4


@pytest.mark.slow
def test_the_moment_of_recency_is_finite_of_any_sample_and_grows_where_the_law_has_none():
    """Terminal covectors of size s, P(s > r) = 1/r, whose squares have a tail like r^(-1/2)."""
    # `eq:recency-moment-condition`, `prop:regional-recency-persistence`.
    sizes = labels(1, 2048)
    regions = lim.boundary_regions(lim.token_grid(5), 0.2)
    terminal = jnp.asarray(sizes[:, None, None] * np.arange(1.0, 6)[None, :, None])
    c = np.full(2048, 0.1)
    certificate = lim.adjoint.recency_survival(terminal, terminal, jnp.asarray(c), regions)
    moments = (2 * c + c**2) * 11 * sizes**2
    premise = certificate.premises[1]
    assert premise.holds and premise.statement.endswith("finite, as of every sample of finite c")
    np.testing.assert_allclose(premise.value, (1 / 0.2 + 1 / 0.6) * moments.mean(), rtol=1e-9)
    index = probes.tail_index(jnp.asarray(moments))
    assert abs(float(index.value) - 1 / 2) < float(index.error) / 4
