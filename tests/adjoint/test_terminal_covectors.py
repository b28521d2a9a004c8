"""Query weights, the support of local readouts, and readout residuals by hand and by autodiff."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import VOCABULARY, WIDTH, random_labels, random_states
from scipy.special import log_softmax

import lim_jax as lim
from lim_jax.adjoint import terminal_covectors
from lim_jax.loss import LocalReadout

LENGTH = 20
GRID = lim.token_grid(LENGTH)
REGIONS = lim.boundary_regions(GRID, 0.2)


ROWS = 1.7 * random_labels(3, 3, LENGTH, 5)
NUMBERS = jax.device_put(np.random.default_rng(2).integers(5, size=(3, LENGTH)))


@pytest.mark.parametrize("targets", [ROWS, NUMBERS], ids=["rows", "class numbers"])
def test_readout_residuals_times_query_weights_are_the_terminal_energies(targets):
    # `eq:finite-recency-energy-contrast`.
    readout = lim.LinearReadout(random_states(4, 6, 5))
    states = random_states(1, 3, LENGTH, 6)
    weights = random_labels(8, 1, LENGTH)[0]
    measured = eqx.filter_jit(terminal_covectors.readout_residual_energies)
    energies = np.asarray(measured(readout, states, targets, REGIONS))

    def loss(x, y):
        return lim.autoregressive_cross_entropy(readout(x, GRID), y, weights)

    covectors = np.asarray(jax.jit(jax.vmap(jax.grad(loss)))(states, targets))
    euclidean = (covectors**2).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(np.asarray(weights) ** 2 * energies, euclidean, rtol=1e-10)


def test_residual_energies_of_another_map_at_every_token():
    """`eq:tokenwise-terminal-adjoint` in NumPy, with labels of sum 1.7; a window is refused."""
    # `eq:finite-recency-energy-contrast`.
    blocks = random_states(4, LENGTH, 1, 5, 6)
    states = random_states(1, 3, LENGTH, 6)
    measured = eqx.filter_jit(terminal_covectors.readout_residual_energies)
    energies = measured(LocalReadout(blocks), states, ROWS, REGIONS)
    maps = np.asarray(blocks)[:, 0]
    logits = np.einsum("ivd,nid->niv", maps, np.asarray(states))
    residual = 1.7 * np.exp(log_softmax(logits, axis=2)) - np.asarray(ROWS)
    covectors = np.einsum("ivd,niv->nid", maps, residual)
    np.testing.assert_allclose(energies, (covectors**2).sum(axis=2).mean(axis=0), rtol=1e-12)
    behind = LocalReadout(jnp.pad(blocks, ((0, 0), (0, 2), (0, 0), (0, 0))))
    with pytest.raises(eqx.EquinoxRuntimeError, match="expected a tokenwise"):
        measured(behind, states, ROWS, REGIONS)


def test_query_masses_by_hand():
    """Ten tokens; a fifth of the length on either side."""
    # `eq:query-mass-discrete`, `eq:continuum-query-right-bias`,
    # `eq:right-biased-squared-query-mass`.
    alpha = jnp.zeros(10).at[jnp.array([0, 4, 9])].set(jnp.array([0.2, 0.3, 0.5]))
    masses = terminal_covectors.query_masses(
        alpha, lim.boundary_regions(lim.token_grid(10), 0.2, "points")
    )
    # p = 0.1 is left; 0.2 ... 0.7 are the middle; 0.8, 0.9 and 1 are right.
    np.testing.assert_allclose(masses.masses, [0.2, 0.3, 0.5])
    expected = [100 * 0.2**2 / 1, 100 * 0.3**2 / 6, 100 * 0.5**2 / 3]
    np.testing.assert_allclose(masses.squares, expected)


def test_query_masses_of_unequal_cells():
    """Sums of the weights, and averages of the squares of their density, by loops over points."""
    grid = lim.graded_grid(9)
    alpha = np.arange(1.0, 10.0) / 45
    regions = lim.boundary_regions(grid, 0.2, "points")
    masses = terminal_covectors.query_masses(jnp.asarray(alpha), regions)
    nodes = np.asarray(grid.nodes)
    weights = np.asarray(grid.weights)
    members = (nodes < 0.2, (nodes >= 0.2) & (nodes < 0.8), nodes >= 0.8)
    np.testing.assert_allclose(masses.masses, [alpha[b].sum() for b in members], rtol=1e-13)
    squares = [np.sum(alpha[b] ** 2 / weights[b]) / weights[b].sum() for b in members]
    np.testing.assert_allclose(masses.squares, squares, rtol=1e-13)


@pytest.mark.parametrize(
    "delta, last, ratio, by_masses, by_squares",
    [
        (0.2, 12, 0.2, True, True),
        (0.4, 11, 2.0, True, False),
        (0.2, 12, 0.6, False, True),
        (0.2, 12, 1.5, False, False),
        (0.4, 5, 1.0, True, False),  # even queries tie in their squares
        (0.2, 12, 1e9, False, False),  # as good as none ask on the right
    ],
)
def test_query_masses_of_a_step_are_known(delta, last, ratio, by_masses, by_squares):
    """The density is `ratio` times as large at the first `last` nodes of 13, which are cubes.

    Their cells are 3 u^2/L at u = (i - 1/2)/L: the first k sum to k (4 k^2 - 1)/(4 L^3).
    """
    # `eq:right-biased-query-mass`, `eq:right-biased-squared-query-mass`,
    # `eq:query-mass-discrete`, `eq:continuum-query-right-bias`.
    size = 13
    grid = lim.graded_grid(13)

    def cells(count):
        return count * (4 * count**2 - 1) / (4 * size**3)

    after = 1 / (ratio * cells(last) + cells(size) - cells(last))
    steps = after * np.where(np.arange(size) < last, ratio, 1.0)
    alpha = jax.device_put(np.diff(cells(np.arange(size + 1.0))) * steps)
    regions = lim.boundary_regions(grid, delta, "points")
    masses = jax.jit(terminal_covectors.query_masses, static_argnums=1)(alpha, regions)
    nodes = ((np.arange(size) + 0.5) / size) ** 3
    ends = np.array([0, (nodes < delta).sum(), (nodes < 1 - delta).sum(), size])
    lengths = np.diff(cells(ends))
    early = np.diff(cells(np.minimum(ends, last)))
    np.testing.assert_allclose(masses.masses, after * (lengths + (ratio - 1) * early), rtol=1e-12)
    squares = after**2 * (lengths + (ratio**2 - 1) * early) / lengths
    np.testing.assert_allclose(masses.squares, squares, rtol=1e-12)
    judged = bool(masses.right_biased), bool(masses.right_biased_by_squares)
    assert judged == (by_masses, by_squares)


def test_masses_that_are_equal_but_for_rounding_are_not_biased():
    """0.3 in the middle and on the right, but for a part in 10^15; then a millionth more."""
    regions = lim.boundary_regions(lim.token_grid(9), "1/3")
    tenths = jnp.array([0.1, 0.1, 0.2, 0.1, 0.2, 0.0, 0.0, 0.3 * (1 + 1e-15), 0.0])
    masses = terminal_covectors.query_masses(tenths, regions)
    assert masses.masses[2] != masses.masses[1] and not masses.right_biased
    moved = tenths.at[8].set(1e-6).at[0].add(-1e-6)
    more = terminal_covectors.query_masses(moved, regions)
    assert more.right_biased and more.right_biased_by_squares


def test_masses_that_are_no_numbers_are_not_compared():
    masses = terminal_covectors.QueryMasses(
        jnp.array([0.5, jnp.nan, 0.5]), jnp.array([0.0, 1.0, jnp.inf])
    )
    for judge in (lambda m: m.right_biased, lambda m: m.right_biased_by_squares):
        with pytest.raises(eqx.EquinoxRuntimeError, match="query_weights"):
            jax.block_until_ready(eqx.filter_jit(judge)(masses))


def test_terminal_covectors_of_local_readouts_stay_near_the_queries():
    # `eq:local-readout-support`.
    grid = lim.token_grid(20)
    readout = lim.BandReadout(random_states(4, WIDTH, VOCABULARY), 0.15)
    weights = jnp.asarray(np.isin(np.arange(20), [4, 19]) * 0.5)
    labels = random_labels(3, 20, 5)

    def loss(x):
        return lim.autoregressive_cross_entropy(readout(x, grid), labels, weights)

    covector = np.asarray(jax.jit(jax.grad(loss))(random_states(1, 20, WIDTH)))
    touched = (covector != 0).any(axis=1)
    support = np.asarray(terminal_covectors.readout_support(weights, 3)) > 0
    assert not (touched & ~support).any()
    expected = np.zeros(20, bool)
    expected[[1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19]] = True
    np.testing.assert_array_equal(support, expected)
    np.testing.assert_array_equal(terminal_covectors.readout_support(weights, 0) > 0, weights > 0)


def test_tokens_far_apart_that_are_mixed_are_seen():
    """Four and sixteen of twenty apart: they differ in the last binary digit only."""
    readout = lim.LinearReadout(random_states(4, 6, 5))
    states = random_states(1, 1, LENGTH, 6)
    targets = random_labels(3, 1, LENGTH, 5)
    swapped = np.arange(LENGTH)
    swapped[[3, 19]] = [19, 3]

    def mixing(states, grid):
        return readout(states, grid)[swapped]

    with pytest.raises(eqx.EquinoxRuntimeError, match="expected a tokenwise"):
        eqx.filter_jit(terminal_covectors.readout_residual_energies)(
            mixing, states, targets, REGIONS
        )


def test_readout_residual_energies_of_half_precision_are_squares_of_single(as_users_run):
    """Squares of residuals pulled back to some 1e-4 are zeros of float16."""
    rows = (1e-4 * random_states(4, 6, 5)).astype(jnp.float16)
    states = random_states(1, 3, LENGTH, 6).astype(jnp.float16)
    regions = lim.boundary_regions(lim.token_grid(LENGTH, jnp.float16), 0.2)
    energies = terminal_covectors.readout_residual_energies(
        lim.LinearReadout(rows), states, NUMBERS, regions
    )
    # By hand in float64.
    matrix = np.asarray(rows, float)
    logits = np.asarray(states, float) @ matrix
    residual = np.exp(log_softmax(logits, axis=-1)) - np.eye(5)[np.asarray(NUMBERS)]
    covectors = residual @ matrix.T
    np.testing.assert_allclose(energies, (covectors**2).sum(axis=2).mean(axis=0), rtol=2e-2)


def test_query_masses_of_half_precision_are_sums_of_single(as_users_run):
    """In float16 the square of the density of one query among 400 tokens is infinite."""
    weights = jnp.zeros(400, jnp.float16).at[7].set(0.75).at[395].set(0.25)
    regions = lim.boundary_regions(lim.token_grid(400, jnp.float16), "1/4")
    found = terminal_covectors.query_masses(weights, regions)
    np.testing.assert_allclose(found.masses, [0.75, 0, 0.25], rtol=1e-6)
    np.testing.assert_allclose(found.squares, [0.75**2 * 1600, 0, 0.25**2 * 1600], rtol=1e-6)
