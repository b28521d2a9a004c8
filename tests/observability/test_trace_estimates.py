"""Estimated traces: their covariance, what it adds to the penalty, and the cheapest route."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.light import light_flow
from reference.networks import random_states

import lim_jax as lim
from lim_jax import paper
from lim_jax.cost.counting import operations
from lim_jax.observability.gramian import (
    ObservedTokens,
    cheapest_mode,
    gramian_traces,
    observability_gramians,
)
from lim_jax.observability.trace_estimates import (
    accumulated_numbers,
    gaussian_probe_moments,
    layer_injected_traces,
    penalty_bias,
    probed_observability,
    probed_traces,
    trace_products,
)
from lim_jax.paper.simulation import gate_gramians
from lim_jax.training.gramian_penalties import (
    crossfit_penalty,
    gramian_penalty,
    sampled_trace_penalty,
    trace_penalty,
)

GRID = lim.graded_grid(5)


def random_gramians(seed=2, length=5, width=3):
    factors = np.asarray(random_states(seed, length, width, width))
    return jax.device_put(factors @ factors.transpose(0, 2, 1))


def probed_covariance(gramians, probes, *, signs=False):
    if signs:
        gramians = gramians * (1 - np.eye(gramians.shape[1]))
    return 2 / probes * np.einsum("iab,jba->ij", gramians, gramians)


def test_the_covariance_of_gaussian_probes_gives_their_bias():
    gramians = random_gramians()
    bias = penalty_bias(jax.device_put(probed_covariance(np.asarray(gramians), 7)), GRID)
    np.testing.assert_allclose(bias, gaussian_probe_moments(gramians, GRID, 7).bias, rtol=1e-11)


def test_the_penaltys_bias_for_any_covariance():
    """`eq:algorithm3-penalty-estimator-bias` over a two-point law along each axis of the noise."""
    # `rem:algorithm3-bias`.
    root = np.asarray(random_states(0, 5, 5))
    traces = np.asarray(random_states(1, 5))
    noisy = traces + np.sqrt(5) * np.concatenate([root.T, -root.T])  # covariance root root'
    penalties = jax.jit(jax.vmap(lambda g: trace_penalty(g, GRID)))
    excess = np.mean(penalties(noisy)) - penalties(traces[None])[0]
    bias = penalty_bias(jax.device_put(root @ root.T), GRID)
    np.testing.assert_allclose(bias, excess, rtol=1e-11)
    weights = np.asarray(GRID.weights)
    assert weights.sum() < 1  # so that the printed Q, without the sum, is another one
    q = np.diag(weights) - np.outer(weights, weights) / weights.sum()
    np.testing.assert_allclose(np.trace(q @ root @ root.T), bias, rtol=1e-11)


def test_equal_traces_cost_nothing_where_weights_do_not_sum_to_one():
    """Nor do equal Gramians; and of some positions, which are all, it is the same penalty."""
    equal = jnp.full(5, 1000.0)
    assert trace_penalty(equal, GRID) < 1e-20
    assert abs(crossfit_penalty(equal, random_states(4, 5), GRID)) < 1e-10
    gramians = jnp.broadcast_to(1000 * jnp.eye(2), (5, 2, 2))
    assert gramian_penalty(gramians, GRID) < 1e-20
    assert gaussian_probe_moments(gramians, GRID, 3).bias < 1e-20
    traces = random_states(1, 5)
    of_positions = sampled_trace_penalty(traces, GRID.weights)
    np.testing.assert_allclose(trace_penalty(traces, GRID), of_positions, rtol=1e-13)


def test_penalties_weigh_unequal_cells():
    """`eq:gd-observability-penalty` and `eq:algorithm3-crossfit-unbiased-penalty` by NumPy."""
    weights = np.asarray(GRID.weights)
    gramians = np.asarray(random_gramians())
    deviations = gramians - np.einsum("i,iab->ab", weights, gramians) / weights.sum()
    expected = weights @ (deviations**2).sum(axis=(1, 2))
    np.testing.assert_allclose(gramian_penalty(random_gramians(), GRID), expected, rtol=1e-12)
    first, second = np.asarray(random_states(4, 2, 5))
    means = np.stack([first, second]) @ weights / weights.sum()
    expected = weights @ ((first - means[0]) * (second - means[1]))
    penalty = crossfit_penalty(jax.device_put(first), jax.device_put(second), GRID)
    np.testing.assert_allclose(penalty, expected, rtol=1e-12)


def test_on_section_4s_gramians_signs_have_a_thousandth_of_the_bias():
    @jax.jit
    def compute():
        gramians = gate_gramians(jnp.zeros(paper.simulation.LENGTH))
        return gramians, trace_penalty(gramian_traces(gramians), paper.simulation.GRID)

    gramians, penalty = map(np.asarray, compute())
    covariances = [probed_covariance(gramians, 1, signs=signs) for signs in (False, True)]
    biases = [penalty_bias(jax.device_put(c), paper.simulation.GRID) for c in covariances]
    gaussian, rademacher = np.asarray(biases) / penalty
    np.testing.assert_allclose(gaussian, 0.5008, atol=5e-5)
    np.testing.assert_allclose(rademacher, 0.0005, atol=5e-5)


def see(tokens):
    return ObservedTokens(light_flow(1, depth=3, width=4), lim.graded_grid(6), jnp.array(tokens))


# Tokens observed, positions monitored, draws, and the route whose products are fewest.
ROUTES = {
    "few draws": ([0, 1, 2, 3, 4, 5], None, 1, "injected"),
    "one position": ([0, 1, 2, 3, 4, 5], [2], 2, "probes"),
    "one position, many draws": ([0, 1, 2, 3, 4, 5], [2], 50, "forward"),
    "little observed": ([5], None, 50, "reverse"),
}


@pytest.mark.parametrize("name", ROUTES)
def test_the_route_with_fewest_products_is_taken(name):
    """`subsec:algorithm-complexity`; with one position, ahead is quicker than back."""
    tokens, positions, draws, expected = ROUTES[name]
    monitored = None if positions is None else jnp.array(positions)
    products = trace_products(see(tokens), random_states(2, 6, 4), draws, monitored)
    depth = 3
    observed = 4 * len(tokens)
    chosen = 6 if positions is None else 1
    assert products == {
        "forward": chosen * 4 * depth,
        "reverse": observed * depth * (depth - 1) // 2,
        "probes": chosen * draws * depth,
        "injected": draws * depth,
    }
    assert cheapest_mode(products) == expected
    assert cheapest_mode({"probes": 13, "injected": 10}) == "probes"
    assert cheapest_mode({"probes": 15, "injected": 10}) == "injected"


def test_two_observed_layers_of_twelve_cost_as_many_products_as_twelve():
    """Counted in the programs themselves, of layers that multiply every token by one matrix.

    S = L = 6, d = r = 4, M = 12 and K = 2: S d M = 288 and K r M = 96 products, R = 5 probes
    S R M = 360, injected noise R M = 60; and S R K d = 240 numbers are squared and added up.
    """
    # `subsec:algorithm-complexity`.
    matrix = np.eye(4)
    x = random_states(2, 6, 4)
    step = 0.5

    def observed(x):
        _, states = jax.lax.scan(lambda x, _: (x + jnp.sin(x) @ matrix, x), x, length=12)
        return states[jnp.array([5, 11]), -1]

    count = trace_products(observed, x, 5, depth=12)
    assert count == {"forward": 288, "reverse": 96, "probes": 360, "injected": 60}
    numbers = accumulated_numbers(observed, x, 5)
    assert numbers == {"forward": 192, "probes": 240, "reverse": 192, "injected": 120}
    some = accumulated_numbers(observed, x, 5, jnp.array([1]))
    assert some == {"forward": 32, "probes": 40, "reverse": 192, "injected": 120}
    layer = 2 * 6 * 4 * 4  # operations of one product with a layer

    def products(job):
        """How many layers a program multiplies by, but for the M of the states themselves."""
        return operations(jax.make_jaxpr(job)(x)) / layer - 12

    noise = jnp.ones((5, 2, 4))
    probes = jnp.ones((5, 4))
    # The Gramians' own sums are products, too: each number with each of the d of its row.
    gramians = numbers["forward"] * 4 * 2 / layer
    exact = {
        "forward": lambda x: observability_gramians(observed, x, step, "forward"),
        "reverse": lambda x: observability_gramians(observed, x, step, "reverse"),
    }
    for mode, job in exact.items():  # whose rows may be weighed by a product
        assert gramians <= products(job) - count[mode] <= 1.25 * gramians
    made = products(lambda x: layer_injected_traces(observed, x, step, noise))
    assert made == count["injected"]
    made = products(lambda x: probed_observability(observed, x, step, probes))
    assert 0 <= made - count["probes"] < 1  # the sum over layers
    assert (
        squares(lambda x: probed_observability(observed, x, step, probes), x) == numbers["probes"]
    )
    probed = squares(lambda x: probed_observability(observed, x, step, probes, jnp.array([1])), x)
    assert probed == some["probes"]
    made = squares(lambda x: layer_injected_traces(observed, x, step, noise), x)
    assert made == numbers["injected"]


def squares(job, x):
    """How many numbers a program squares."""

    def counted(jaxpr):
        equations = [e for e in jaxpr.eqns if e.primitive.name in ("square", "integer_pow")]
        inside = [
            counted(getattr(value, "jaxpr", value))
            for equation in jaxpr.eqns
            for value in equation.params.values()
            if hasattr(getattr(value, "jaxpr", value), "eqns")
        ]
        return sum(equation.outvars[0].aval.size for equation in equations) + sum(inside)

    return counted(jax.make_jaxpr(job)(x).jaxpr)


def test_traces_of_half_precision_square_in_single_precision():
    """In float16 the square of 300 is infinite, and so was the trace, of half of that."""
    x = jnp.ones((2, 1), jnp.float16)
    probe = jnp.ones((1, 1), jnp.float16)
    noise = jnp.ones((1, 1, 2), jnp.float16)

    def see(x):
        return 300 * x.reshape(1, -1)

    np.testing.assert_array_equal(probed_observability(see, x, 0.5, probe), [[45_000, 45_000]])
    traces = layer_injected_traces(see, x, 0.25, noise)
    np.testing.assert_array_equal(traces, [[22_500, 22_500]])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_moments_of_half_precision_are_those_of_single(dtype, as_users_run):
    """The moments raised TypeError, and the traces of seven probes overflowed in float16."""
    roots = np.random.default_rng(3).normal(size=(5, 3, 3))
    gramians = jnp.asarray(2e3 * roots @ roots.swapaxes(1, 2), dtype)
    probes = jnp.asarray(np.random.default_rng(4).choice([-1.0, 1.0], size=(7, 3)), dtype)
    exact = np.asarray(gramians, float)
    signs = np.asarray(probes, float)
    expected = np.einsum("ra,iab,rb->i", signs, exact, signs) / 7
    np.testing.assert_allclose(probed_traces(gramians, probes), expected, rtol=1e-5)
    grid = lim.token_grid(5, dtype)
    bias, deviation = gaussian_probe_moments(gramians, grid, 2)
    # With two probes, the mean square of the deviation of each Gramian from their mean.
    centred = exact - exact.mean(axis=0)
    np.testing.assert_allclose(bias, (centred**2).sum(axis=(1, 2)).mean(), rtol=1e-5)
    double = gaussian_probe_moments(gramians.astype(jnp.float64), lim.token_grid(5), 2)
    np.testing.assert_allclose(deviation, double.deviation, rtol=1e-5)
    covariance = jnp.asarray(np.diag([1.0, 2.0, 4.0, 8.0, 301.0]), dtype)
    variances = np.diag(np.asarray(covariance, float))
    found = penalty_bias(covariance, grid)
    np.testing.assert_allclose(found, variances.mean() * 4 / 5, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_a_step_is_not_rounded_to_the_precision_of_states(dtype, as_users_run):
    """1/3 is off by 1e-3 in bfloat16, and 1e-9 is zero in float16."""
    x = jnp.ones((2, 1), dtype)
    probe = jnp.ones((1, 1), dtype)

    def see(x):
        return x.reshape(1, -1)

    for step in (1 / 3, 1e-9):
        found = probed_observability(see, x, step, probe)
        np.testing.assert_allclose(found, [[step, step]], rtol=1e-6)
