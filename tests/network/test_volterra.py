"""The continuum: Gauss-Legendre grids and Volterra attention, against an independent rule."""

import math

import jax
import numpy as np
import pytest
from reference.differences import fitted_order
from reference.networks import layer_of, random_flow, random_states

import lim_jax as lim
from lim_jax.grid.panels import gauss_grid
from lim_jax.network.attention import attention_kernel, attention_weights

ETA = 0.1
GENERATOR = np.random.default_rng(5)
QUERY, KEY, VALUE = GENERATOR.standard_normal((3, 3, 3))


def smooth_field(p):
    """A smooth field on [0, 1]."""
    return np.stack([np.sin(3 * p) + 0.3, np.cos(5 * p), p**2 - 0.4 * np.sin(7 * p)], axis=-1)


def attention():
    scale, shift, *maps = jax.device_put(
        (np.ones(3), np.zeros(3), *(matrix[None] for matrix in (QUERY, KEY, VALUE, np.eye(3))))
    )
    return lim.CausalAttention(lim.LayerNorm(scale, shift, ETA), *maps)


def independent_attention(p, count=200):
    """The Volterra integral by q = p u with a Gauss rule in u, in NumPy."""

    def normalised(x):
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + ETA)

    u, w = np.polynomial.legendre.leggauss(count)
    u = (u + 1) / 2
    w = w / 2
    past = normalised(smooth_field(np.outer(p, u)))
    now = normalised(smooth_field(p))
    scores = np.einsum("pa,pua->pu", now @ QUERY.T, past @ KEY.T) / np.sqrt(3)
    mass = w * np.exp(scores)
    return np.einsum("pu,pua->pa", mass / mass.sum(axis=1, keepdims=True), past @ VALUE.T)


def evaluated(grid):
    x = smooth_field(np.asarray(grid.nodes))
    return np.asarray(attend(attention(), x, grid))


@jax.jit
def attend(attention, x, grid):
    return attention(x, x, grid)


weights_of = jax.jit(attention_weights)
resampled = jax.jit(lambda values, source, target: source.interpolate(values, target.nodes))


@jax.jit
def interpolated(values, positions, grid):
    return grid.interpolate(values, positions)


# The error of an analytic field falls by a factor with every node of a panel: here with four of the
# one panel to a sixth. Of 48 nodes 4e-10 is left, of these 3e-13.
@pytest.mark.parametrize("grid", [gauss_grid(64), gauss_grid(32, panels=6)], ids=["one", "graded"])
def test_volterra_attention_to_ten_digits(grid):
    # `eq:continuum-causal-attention`, `eq:one-head-causal-map`, `eq:continuum-attention-numerator`,
    # `eq:continuum-attention-denominator`.
    expected = independent_attention(np.asarray(grid.nodes))
    np.testing.assert_allclose(evaluated(grid), expected, rtol=0, atol=1e-10)


def test_the_independent_rule_against_itself():
    p = np.linspace(0.001, 1, 50)
    np.testing.assert_allclose(
        independent_attention(p), independent_attention(p, count=120), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize(
    "make, order",
    [(lim.token_grid, 1), (lim.midpoint_grid, 2), (lim.graded_grid, 2)],
    ids=["tokens", "midpoints", "graded"],
)
def test_the_other_grids_converge_to_it(make, order):
    """Inside [1/10, 1]; on tokens at the first cells too."""
    sizes = (12, 24, 48, 96)
    errors = []
    for size in sizes:
        grid = make(size)
        nodes = np.asarray(grid.nodes)
        error = np.abs(evaluated(grid) - independent_attention(nodes))
        errors.append(error[nodes >= (0 if order == 1 else 0.1)].max())
    assert abs(fitted_order(sizes, errors) - order) < 0.15


def test_the_kernel_is_the_measures_density():
    # `eq:continuum-causal-kernel`, `eq:one-head-score-and-kernel`, `eq:continuum-attention-score`,
    # `eq:causal-support-recalled`.
    grid = gauss_grid(40)
    # The kernel at (p, q) for smooth scores: exp(s) over its prefix integral.
    p = np.asarray(grid.nodes)
    query = np.stack([np.sin(p), p], 1)
    key = np.stack([p, p**2], 1)
    kernel = np.asarray(jax.jit(attention_kernel)(query, key, grid))
    u, w = np.polynomial.legendre.leggauss(60)
    for i in (0, 7, 39):
        r = p[i] * (u + 1) / 2
        scores = (np.sin(p[i]) * r + p[i] * r**2) / np.sqrt(2)
        partition = p[i] * np.sum(w / 2 * np.exp(scores))
        expected = np.exp(query[i] @ key.T / np.sqrt(2)) / partition * (p <= p[i])
        np.testing.assert_allclose(kernel[i], expected, rtol=1e-11)
    tokens = lim.token_grid(9)
    query = random_states(0, 9, 2)
    key = random_states(1, 9, 2)
    kernel = np.asarray(jax.jit(attention_kernel)(query, key, tokens))
    np.testing.assert_allclose(kernel / 9, weights_of(query, key, tokens), rtol=1e-13, atol=1e-16)


def test_prefix_measures_have_mass_one_and_integrate_moments():
    # `eq:attention-induced-measure`.
    grid = gauss_grid(40)
    nodes = np.asarray(grid.nodes)
    ones = np.ones((40, 1))
    weights = np.asarray(weights_of(0 * ones, 0 * ones, grid))
    for degree in range(5):
        expected = nodes**degree / (degree + 1)  # the mean of q^degree on [0, p]
        np.testing.assert_allclose(weights @ nodes**degree, expected, rtol=0, atol=1e-13)
    tilted = np.asarray(weights_of(ones, nodes[:, None], grid))
    expected = nodes / -np.expm1(-nodes) - 1  # the mean of q under e^q, by parts
    np.testing.assert_allclose(tilted @ nodes, expected, rtol=0, atol=1e-13)


def test_attention_tends_to_its_trace_at_zero():
    # `eq:continuum-attention-left-trace`.
    left_trace = jax.jit(lambda attention, z: attention.left_trace(z))
    trace = np.asarray(left_trace(attention(), smooth_field(np.array(0.0))))
    positions = np.array([1e-2, 1e-3, 1e-4])
    errors = np.abs(independent_attention(positions) - trace).max(axis=1)
    assert abs(fitted_order(1 / positions, errors) - 1) < 0.1
    grid = gauss_grid(96)  # extrapolation to 0 costs two digits
    at_zero = interpolated(evaluated(grid), np.zeros(1), grid)
    np.testing.assert_allclose(at_zero, trace[None], rtol=0, atol=1e-9)
    biased = layer_of(random_flow(depth=1)).attention
    x = np.asarray(random_states())
    attended = np.asarray(attend(biased, x, lim.token_grid(12)))
    np.testing.assert_allclose(left_trace(biased, x[0]), attended[0], rtol=1e-13)


def test_prefix_sums_err_by_the_largest_slope_and_denominators_have_a_floor():
    """The theorem's steps on tokens: p_i/2L times the slope of e^S v and of e^S, and p_i e^-B."""
    size = 30
    grid = lim.token_grid(size)
    p = np.asarray(grid.nodes)
    prefix = np.asarray(grid.prefix_weights())
    u, w = np.polynomial.legendre.leggauss(60)
    fine = np.linspace(0, 1, 4001)
    gauss = (u + 1) / 2

    def scores(at, past):
        return (smooth_field(at) @ QUERY.T) @ (smooth_field(past) @ KEY.T).T / np.sqrt(3)

    floor = np.exp(-np.abs(scores(p, fine)).max())
    for i in range(size):
        for values in (np.ones_like, lambda q: np.cos(5 * q)):
            found = prefix[i] @ (np.exp(scores(p[i], p)) * values(p))
            past = p[i] * gauss
            exact = p[i] * (w / 2) @ (np.exp(scores(p[i], past)) * values(past))
            before = fine[fine <= p[i] + 1e-12]
            slopes = np.diff(np.exp(scores(p[i], before)) * values(before)) * 4000
            bound = p[i] / (2 * size) * np.abs(slopes).max()
            assert abs(found - exact) <= bound * (1 + 1e-2)
            if values is np.ones_like:
                assert min(found, exact) >= p[i] * floor


@pytest.mark.parametrize("grid", [gauss_grid(9), gauss_grid(5, panels=4)], ids=["one", "graded"])
def test_panels_integrate_polynomials_exactly(grid):
    p = np.asarray(grid.nodes)
    prefix = np.asarray(grid.prefix_weights())
    for degree in range(grid.order):
        expected = p ** (degree + 1) / (degree + 1)
        np.testing.assert_allclose(prefix @ p**degree, expected, rtol=0, atol=1e-15)
    degrees = np.arange(2 * grid.order)
    integrals = jax.jit(lim.integral)(p[:, None] ** degrees, grid)
    np.testing.assert_allclose(integrals, 1 / (degrees + 1), rtol=1e-14)
    edges = np.asarray(grid.edges)
    assert np.all((edges[:-1] < p) & (p < edges[1:]))


def test_regions_of_panels_are_spectral():
    grid = gauss_grid(30)
    values = np.exp(np.asarray(grid.nodes))
    averages = jax.jit(lim.regional_averages)(values, lim.boundary_regions(grid, 0.2))
    ends = np.exp([0, 0.2, 0.8, 1])
    np.testing.assert_allclose(averages, np.diff(ends) / [0.2, 0.6, 0.2], rtol=1e-13)
    points = lim.boundary_regions(grid, 0.2, "points").weights
    p = np.asarray(grid.nodes)
    expected = [(p < 0.2).sum(), ((p >= 0.2) & (p < 0.8)).sum(), (p >= 0.8).sum()]
    assert (np.asarray(points) != 0).sum(axis=1).tolist() == expected


def test_resampling_between_grids():
    fine = gauss_grid(20)
    panels = gauss_grid(12, panels=3)
    tokens = lim.token_grid(500)

    def field(grid):
        p = np.asarray(grid.nodes)
        return np.stack([np.exp(p), np.sin(4 * p)], axis=1)

    def truncation(order, width):
        """Of a polynomial through Gauss nodes, as no derivative of the field is above 4^order."""
        return (4 * width) ** order * math.factorial(order) / math.factorial(2 * order)

    # A line between tokens misses by h^2 / 8 of the second derivative, 16 at most. Rounded values
    # of up to e are summed by 20 weights, whose sizes sum to less than 8.
    lines = (1 / 500) ** 2 / 8 * 16
    rounding = 20 * 8 * np.e * np.finfo(float).eps
    for source, target, error in (
        (fine, panels, truncation(20, 1)),
        (panels, fine, truncation(12, 1 / 2)),
        (tokens, panels, lines),
        (fine, tokens, truncation(20, 1)),
    ):
        values = resampled(field(source), source, target)
        np.testing.assert_allclose(values, field(target), rtol=0, atol=error + rounding)
    # At a node the value is its own.
    np.testing.assert_array_equal(resampled(field(fine), fine, fine), field(fine))


def test_linear_resampling_is_of_second_order():
    sizes = (20, 40, 80, 160)
    target = gauss_grid(30)

    def wave(grid):
        return np.cos(6 * np.asarray(grid.nodes))

    errors = []
    for source in map(lim.graded_grid, sizes):
        values = np.asarray(resampled(wave(source), source, target))
        errors.append(np.abs(values - wave(target)).max())
    assert abs(fitted_order(sizes, errors) - 2) < 0.15


def test_interpolation_has_a_gradient_in_its_values():
    grid = gauss_grid(6)
    positions = np.array([0.3, 0.9])
    matrix = np.asarray(jax.jit(jax.jacrev(interpolated))(np.zeros(6), positions, grid))
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, rtol=1e-14)
    for degree in range(6):
        values = np.asarray(grid.nodes) ** degree
        np.testing.assert_allclose(matrix @ values, positions**degree, rtol=1e-13)


def test_a_grid_without_panels_or_nodes_is_refused():
    with pytest.raises(ValueError, match="panels: got 0"):
        gauss_grid(4, panels=0)
    with pytest.raises(ValueError, match="order: got 0"):
        gauss_grid(0)
