"""What docs/errata.md says of the paper, where no other test holds it; and that its tests exist."""

import itertools
import re
from functools import cache
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.dense import jacobian_blocks
from reference.differences import fitted_order
from reference.networks import LENGTH, layer_of, random_flow, random_states

import lim_jax as lim
from lim_jax import paper
from lim_jax.grid.partition import Convention
from lim_jax.loss import teacher_forcing
from lim_jax.observability.gramian import condition_numbers, gramian_traces
from lim_jax.observability.trace_estimates import gaussian_probe_moments, probed_traces
from lim_jax.paper.algorithms import algorithm2_run
from lim_jax.paper.simulation import gate_gramians, gate_influence
from lim_jax.training.estimators import balanced_density
from lim_jax.training.gramian_penalties import gramian_penalty, trace_penalty

ROOT = Path(__file__).parent.parent
ERRATA = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
SIZES = (40, 80, 160)


def averaging():
    """Causal averaging of one feature."""
    zeros, one = jax.device_put((np.zeros((1, 1, 1)), np.ones((1, 1, 1))))
    return lim.CausalAttention(eqx.nn.Identity(), zeros, zeros, one, one)


def test_every_test_that_the_errata_name_is_there():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", ERRATA)
    assert len(named) > 60
    for file, test in named:
        assert re.search(
            rf"^def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE
        ), (file, test)


@cache
def section_4():
    """Density, condition numbers and Gramians at gates that are all alike."""

    @jax.jit
    def measured(gates):
        gramians = gate_gramians(gates)
        return gate_influence(gates).density, condition_numbers(gramians), gramians

    return measured(np.zeros(paper.simulation.LENGTH))


def test_section_4_divides_the_context_in_two_ways():
    """The table's figures are those of shared cells, the condition numbers' those of points."""
    density, numbers, _ = section_4()
    expected: dict[Convention, tuple[list, list]] = {
        "overlap": ([3.2269, 0.1417, 1.3479], [164.8, 35.8, 16.4]),
        "points": ([3.4117, 0.1496, 1.2957], [171.1, 36.7, 16.6]),
    }
    for convention, (averages, means) in expected.items():
        regions = lim.boundary_regions(paper.simulation.GRID, paper.simulation.DELTA, convention)
        np.testing.assert_allclose(lim.regional_averages(density, regions), averages, atol=5e-5)
        np.testing.assert_allclose(lim.regional_averages(numbers, regions), means, atol=0.05)


@pytest.mark.slow
def test_the_last_weights_of_algorithm_2_leave_the_clipping_interval():
    """[0.15, 8]: renormalising comes after clipping."""
    weights = np.asarray(algorithm2_run().gates)
    np.testing.assert_allclose(weights.min(), 0.0939, atol=5e-5)


def test_rademacher_probes_err_a_thousand_times_less_than_gaussian_ones():
    """One common probe, all 16 signs; for Gaussian ones tr(Q Sigma) is 2/N times Omega_HS."""
    # `eq:algorithm3-penalty-estimator-bias`, `eq:gd-observability-penalty`.
    _, _, gramians = section_4()
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=paper.simulation.WIDTH)))

    @jax.jit
    def measured(gramians):
        estimates = jax.vmap(lambda probe: probed_traces(gramians, probe[None]))(signs)
        traces = jnp.concatenate([estimates, gramian_traces(gramians)[None]])
        bias = gaussian_probe_moments(gramians, paper.simulation.GRID, 1).bias
        matrix = gramian_penalty(gramians, paper.simulation.GRID)
        return jax.vmap(lambda g: trace_penalty(g, paper.simulation.GRID))(traces), bias, matrix

    (*penalties, true), gaussian, matrix = map(np.asarray, measured(gramians))
    penalties = np.array(penalties)
    np.testing.assert_allclose(penalties.mean() / true - 1, 5.14e-4, atol=5e-7)
    np.testing.assert_allclose(penalties.std() / true, 0.0119, atol=5e-5)
    np.testing.assert_allclose(gaussian / true, 0.5008, atol=5e-5)
    np.testing.assert_allclose(gaussian, 2 * matrix, rtol=1e-12)


@jax.jit
def cone_masses(attention):
    """Of averaging: the printed estimator and the density, on tokens."""
    masses = {}
    for size in SIZES:
        grid = lim.token_grid(size)
        x = jnp.ones((size, 1))
        masses[size] = [
            lim.adjoint.cone_mass(attention, x, grid, "frobenius", normalisation)
            for normalisation in ("finite", "density")
        ]
    return masses


@pytest.mark.slow
def test_the_printed_cone_estimator_vanishes_and_no_average_on_the_left_converges():
    """Averaging has C(q) = 1/q - 1: its integral from 0 is infinite."""
    # `eq:finite-cone-mass-estimator`, `eq:cone-mass`.
    masses = jax.tree.map(np.asarray, cone_masses(averaging()))
    printed = [masses[size][0][size // 2 - 1] for size in SIZES]
    assert abs(fitted_order(SIZES, printed) - 2) < 0.05
    density = [masses[size][1][size // 2 - 1] for size in SIZES]
    np.testing.assert_allclose(density[-1], 1.0, rtol=0.02)
    averages = [masses[size][1][: size // 5].mean() for size in SIZES]
    # (1/delta) log 2 more at every doubling, without end.
    np.testing.assert_allclose(np.diff(averages), np.log(2) / 0.2, rtol=5e-3)


@pytest.mark.slow
def test_the_printed_probes_see_the_frobenius_norm_and_the_local_operator():
    grid = lim.token_grid(LENGTH)
    x = random_states()
    attention = layer_of(random_flow(depth=1)).attention

    @jax.jit
    def measured(attention, x):
        masses = [
            lim.adjoint.cone_mass(attention, x, grid, norm, "finite")
            for norm in ("operator", "frobenius")
        ]
        whole = jacobian_blocks(lambda x: attention(x, x, grid), x)
        kernel = jacobian_blocks(lambda context: attention(x, context, grid), x)
        return *masses, whole, kernel

    operator, frobenius, whole, kernel = map(np.asarray, measured(attention, x))
    # Isotropic probes at token j give, in expectation, the squares of the blocks (i, j) of D Attn.
    printed = (whole**2).sum(axis=(0, 2, 3)) / LENGTH
    diagonal = np.arange(LENGTH)
    local = ((whole**2)[diagonal, diagonal] - (kernel**2)[diagonal, diagonal]).sum(
        axis=(1, 2)
    ) / LENGTH
    np.testing.assert_allclose(printed, frobenius + local, rtol=1e-10)
    assert (frobenius > 1.02 * operator).all()
    assert np.abs(local / frobenius).max() > 0.2


def test_query_masses_compare_regions_of_different_lengths():
    """`eq:right-biased-query-mass` against `eq:right-biased-squared-query-mass`, both ways."""
    # `eq:query-mass-discrete`, `eq:continuum-query-right-bias`.
    grid = lim.token_grid(10)
    wide = lim.adjoint.query_masses(teacher_forcing(10), lim.boundary_regions(grid, 0.4))
    assert wide.masses[2] > wide.masses[1]  # 0.4 against 0.2, of even queries
    assert wide.right_biased and not wide.right_biased_by_squares
    np.testing.assert_allclose(wide.squares, 1.0, rtol=1e-12)
    dense = jax.device_put(np.repeat([1.0, 2.0], [8, 2]) / 12)
    narrow = lim.adjoint.query_masses(dense, lim.boundary_regions(grid, 0.2))
    assert narrow.masses[2] < narrow.masses[1] and narrow.squares[2] > 3.9 * narrow.squares[1]
    assert narrow.right_biased_by_squares and not narrow.right_biased


def test_even_queries_tie_exactly():
    """Not up to endpoints: every alpha is 1/L, so every average of squares is 1/L^2."""

    @jax.jit
    def squares():
        return [
            lim.adjoint.query_masses(
                teacher_forcing(size), lim.boundary_regions(lim.token_grid(size), delta, "points")
            ).squares
            for size, delta in ((7, "1/3"), (24, "0.2"), (50, "0.18"), (101, "0.31"))
        ]

    np.testing.assert_allclose(squares(), 1.0, rtol=1e-12)


def test_the_input_adjoint_is_of_order_one_half_in_l2():
    """One layer of averaging, an even loss: P_0 = 1 + log(1/q), on tokens 1 + the sum of 1/i."""
    flow = lim.ResidualFlow(
        jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[None]), averaging())
    )

    @jax.jit
    def adjoints():
        def of(grid):
            x = jnp.zeros((grid.size, 1))
            loss = lambda x, y: lim.integral(x, grid).sum()  # noqa: E731
            return lim.adjoint_trajectory(flow, loss, (x, None), grid).covectors[0, :, 0]

        return [of(lim.token_grid(size)) for size in SIZES]

    errors = []
    for size, adjoint in zip(SIZES, adjoints(), strict=True):
        # The mean over a cell (a, b] of (c - log(1/q))^2, by the integrals of log and its square.
        edges = np.arange(1, size + 1) / size
        log = np.log(edges)
        first = np.diff(np.concatenate([[0], edges * (log - 1)]))
        second = np.diff(np.concatenate([[0], edges * (log**2 - 2 * log + 2)]))
        shift = np.asarray(adjoint) - 1
        errors.append(np.sqrt(np.sum(shift**2 / size + 2 * shift * first + second)))
    assert abs(fitted_order(SIZES, errors) - 0.5) < 0.02
    np.testing.assert_allclose(errors[-1] * np.sqrt(SIZES[-1]), 1.122, atol=2e-3)


def test_tokenwise_networks_are_not_frechet_differentiable_on_l2():
    """A bump on one cell has norm L^-1/2, and a remainder that is as large a share at every L."""
    network = layer_of(random_flow(depth=1)).feed_forward
    bump = random_states(2, 6)

    @jax.jit
    def shares(network):
        def share(grid):
            x = jnp.zeros((grid.size, 6))
            move = jnp.zeros((grid.size, 6)).at[0].set(bump)
            value, slope = jax.jvp(lambda x: network(x, x, grid), (x,), (move,))
            rest = network(x + move, x + move, grid) - value - slope
            return jnp.sqrt(lim.inner(rest, rest, grid) / lim.inner(move, move, grid))

        return jnp.stack([share(lim.token_grid(size)) for size in SIZES])

    quotients = np.asarray(shares(network))
    np.testing.assert_allclose(quotients, quotients[0], rtol=1e-12)
    assert quotients[0] > 0.1


def test_euclidean_energies_are_lost_in_the_stabiliser():
    """An even density at L = 16,384 with eps = 1e-8: 1 as densities, 0.27 as Algorithm 1 prints."""
    grid = lim.token_grid(16384)
    even = np.ones((1, grid.size))

    @jax.jit
    def totals(even):
        densities = (even, even / grid.size**2)
        weights = grid.weights
        return [weights @ balanced_density(e, weights, epsilon=1e-8) for e in densities]

    np.testing.assert_allclose(totals(even), [1.0, 0.2714], atol=5e-5)
