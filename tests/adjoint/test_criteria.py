"""Certificates: one that holds, one that fails, one that is vacuous, and honesty on random data."""

import collections

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import random_flow, random_labels, random_states, randomised

import lim_jax as lim
from lim_jax.adjoint import criteria, residual
from lim_jax.adjoint.ledger import RegionalChannels, channels, regional_channels
from lim_jax.adjoint.tangent import attention_sites
from lim_jax.loss import last_token, teacher_forcing

LENGTH = 20
GRID = lim.token_grid(LENGTH)
REGIONS = lim.boundary_regions(GRID, 0.2)


def listening_to_the_left(strength):
    """Attention that scores token j by g(p_j), 1 on the left and 0 elsewhere, and passes feature 0.

    States are (1, g(p)): the kernel is the attention matrix itself times E_00, so nothing cancels.
    """
    row = jnp.zeros((1, 1, 2))
    attention = lim.CausalAttention(
        eqx.nn.Identity(),
        query=row.at[0, 0, 0].set(strength),
        key=row.at[0, 0, 1].set(1.0),
        value=row.at[0, 0, 0].set(1.0),
        output=jnp.zeros((1, 2, 1)).at[0, 0, 0].set(1.0),
    )
    flow = lim.ResidualFlow(jax.tree.map(lambda leaf: leaf[None], attention))
    left = np.where(np.asarray(GRID.nodes) < 0.25, 1.0, 0.0)
    return flow, jnp.asarray(np.stack([np.ones(LENGTH), left], axis=1)[None])


def ledger(flow, states, terminal_loss):
    return jax.vmap(lambda x: channels(flow, terminal_loss, x, GRID))(states)


def first_feature(x):
    """The mean of feature 0: the same terminal covector everywhere."""
    return lim.integral(x[:, 0], GRID)


@eqx.filter_jit
def cone_of(flow, states, terminal_loss):
    found = ledger(flow, states, terminal_loss)
    sites = jax.vmap(lambda s, p: attention_sites(flow, s, p, GRID))(found.states, found.covectors)
    return lim.adjoint.joint_cone(sites, GRID)


def test_primacy_holds_where_attention_listens_to_the_left():
    flow, states = listening_to_the_left(4.0)
    cone = cone_of(flow, states, first_feature)
    certificate = criteria.primacy_noncancellation(cone, REGIONS)
    assert certificate.holds and certificate.concluded and not certificate.vacuous
    # By hand: the kernel is e^(4 g(q)) over the mean of e^(4 g) up to p, the covector 1.
    scores = np.exp(4.0 * np.asarray(states[0, :, 1]))
    future = 1 - np.arange(LENGTH) / LENGTH
    kernels = np.tril(scores[None] / (np.cumsum(scores)[:, None] / LENGTH))
    lowest = min(kernels[j:, j].min() ** 2 for j in range(4))
    largest = max(kernels[j:, j].max() ** 2 for j in range(4, 16))
    expected = lowest * (future[:4] ** 2).mean(), largest * (future[4:16] ** 2).mean()
    (inequality,) = certificate.inequalities
    np.testing.assert_allclose((inequality.greater, inequality.lesser), expected, rtol=1e-10)


def test_primacy_fails_on_averaging_though_it_is_there():
    flow, states = listening_to_the_left(0.0)
    cone = cone_of(flow, states, first_feature)
    certificate = criteria.primacy_noncancellation(cone, REGIONS)
    assert not certificate.holds and not certificate.vacuous
    assert certificate.concluded and certificate.margin < 0


def test_primacy_is_vacuous_where_contributions_cancel():
    flow = random_flow(depth=2)
    cone = cone_of(flow, random_states(1, 2, LENGTH, 6), lambda x: lim.inner(jnp.sin(x), x, GRID))
    certificate = criteria.primacy_noncancellation(cone, REGIONS)
    assert not certificate.holds
    assert "cancels" in certificate.vacuous
    assert [premise.holds for premise in certificate.premises] == [False]


@jax.jit
def _survival(layers, states, readout, labels, weights):
    flow = lim.ResidualFlow(layers)

    def loss(x):
        return lim.autoregressive_cross_entropy(readout(x, GRID), labels, weights)

    def growth(x):
        norms = residual.interaction_norms(flow, x, GRID, key=jax.random.key(0))
        return residual.amplification(norms)

    covectors = ledger(flow, states, loss).covectors
    return covectors[:, -1], covectors[:, 0], jax.vmap(growth)(states)


def survival(scale, weights):
    """Terminal and initial covectors of three examples, and the bounds on their amplification."""
    layers = randomised(random_flow(depth=2).layers, 0, scale)
    readout = lim.LinearReadout(random_states(4, 6, 5))
    states = random_states(1, 3, LENGTH, 6)
    return _survival(layers, states, readout, random_labels(3, LENGTH, 5), weights)


def test_recency_survives_weak_layers_only():
    terminal, initial, bounds = survival(0.05, last_token(LENGTH))
    for c in (bounds.product, bounds.exponential):
        certificate = criteria.recency_survival(terminal, initial, c, REGIONS)
        assert certificate.holds and certificate.concluded and not certificate.vacuous
    terminal, initial, bounds = survival(0.5, last_token(LENGTH))
    certificate = criteria.recency_survival(terminal, initial, bounds.exponential, REGIONS)
    assert not certificate.holds and "amplify" in certificate.vacuous


def test_recency_fails_without_a_right_heavy_covector():
    terminal, _, bounds = survival(0.05, teacher_forcing(LENGTH))
    flat = jnp.asarray(np.ones(terminal.shape))
    certificate = criteria.recency_survival(flat, flat, bounds.product, REGIONS)
    assert not certificate.holds and not certificate.vacuous
    assert not certificate.premises[0].holds


def test_the_ceiling_of_recency_is_the_papers():
    """At delta = 0.2 the paper's c is useless from T Lambda = log(7/4)/2 = 0.280 on."""
    spike = jnp.asarray(np.eye(LENGTH)[None, :, -1:])
    for size, vacuous in ((0.279, False), (0.281, True)):
        c = jnp.asarray(np.expm1([size]))
        certificate = criteria.recency_survival(spike, spike, c, REGIONS)
        assert bool(certificate.vacuous) is vacuous
        (one,) = certificate.inequalities
        expected = (1 / 0.2 + 1 / 0.6) * np.expm1(2 * size) / LENGTH
        np.testing.assert_allclose((one.greater, one.lesser), (1 / 0.2 / LENGTH, expected))
        # All of P_T on the right: the inequality itself changes sides at the ceiling.
        assert certificate.holds is not vacuous


def products(*energies, cross=0.0):
    """Regions with given channel energies (residual, cone, local), one example."""
    found = [np.diag(row) + cross * (1 - np.eye(3)) for row in energies]
    return RegionalChannels(jnp.asarray(found)[None])


def test_the_exact_characterisation_is_an_equivalence():
    holds = criteria.exact_characterisation(products((0, 2, 0.1), (0.5, 0.2, 0.1), (2, 0, 0.1)))
    assert holds.holds and holds.concluded
    fails = criteria.exact_characterisation(products((0, 2, 0.1), (3, 0.2, 0.1), (2, 0, 0.1)))
    assert not fails.holds and not fails.concluded and not fails.vacuous
    nothing = criteria.exact_characterisation(products((0.0,) * 3, (0.0,) * 3, (0.0,) * 3))
    assert not nothing.holds and "Z = 0" in nothing.vacuous


def test_cross_terms_can_undo_a_u_shape():
    """The paper's fourth counterexample: energies (1, 1/4, 1), their sum (0, 1, 0)."""
    channel = jnp.array([[1.0, 0.5, 1.0], [-1.0, 0.5, -1.0], [0.0, 0.0, 0.0]])
    found = regional_channels(
        channel[None, :, :, None], lim.boundary_regions(lim.token_grid(3), "1/3")
    )
    certificate = criteria.exact_characterisation(found)
    assert not certificate.holds and not certificate.concluded
    np.testing.assert_allclose(found.energies[:, :2], [[1, 1], [0.25, 0.25], [1, 1]], atol=1e-14)
    np.testing.assert_allclose(found.totals, [0, 1, 0], atol=1e-14)


def exact_bounds(regional):
    return criteria.ChannelBounds(
        regional.energies, regional.energies[0, 1], regional.energies[2, 0], regional.correlations
    )


def test_the_double_deficit_holds_fails_and_is_vacuous():
    deficit = products((0.1, 5, 0.0), (0.2, 0.2, 0.0), (6, 0.1, 0.0))
    certificate = criteria.double_deficit(deficit, exact_bounds(deficit))
    assert certificate.holds and certificate.concluded
    even = products((1, 1, 0.0), (1, 1, 0.0), (1, 1, 0.0))
    certificate = criteria.double_deficit(even, exact_bounds(even))
    assert not certificate.holds and not certificate.vacuous and not certificate.concluded
    crossed = exact_bounds(even)._replace(correlations=jnp.ones((3, 3)))
    certificate = criteria.double_deficit(even, crossed)
    assert "cross terms alone" in certificate.vacuous


def test_the_double_deficits_sides_by_hand():
    """l = 5 and 6; u = 1 throughout the rest; rho = 1/4 on one pair of every region."""
    found = products((0.0,) * 3, (0.0,) * 3, (0.0,) * 3)
    upper = jnp.ones((3, 3))
    rho = jnp.asarray(np.outer(np.ones(3), [0, 0, 0.25]))
    bounds = criteria.ChannelBounds(upper, jnp.array(0.0), jnp.array(0.0), rho)
    certificate = criteria.double_deficit(found, bounds)
    # U_M = 3, Gamma = 2 * 0.25 for each region.
    assert [one.lesser for one in certificate.inequalities] == [4.0, 4.0]


@pytest.mark.parametrize(
    "change, named",
    [
        (lambda b: b._replace(upper=b.upper.at[1, 2].set(0.1)), r"upper\[middle, local\]"),
        (lambda b: b._replace(left=b.left + 1), "left: got a bound that the data contradict"),
        (lambda b: b._replace(right=b.right + 1), "right: got"),
        (
            lambda b: b._replace(correlations=b.correlations.at[2, 1].set(0.0)),
            r"correlations\[right, residual-local\]",
        ),
    ],
)
def test_bounds_that_the_data_contradict_are_refused_by_name(change, named):
    regional = products((1, 2, 1), (1, 2, 1), (1, 2, 1), cross=0.5)
    with pytest.raises(ValueError, match=named):
        criteria.double_deficit(regional, change(exact_bounds(regional)))


def test_bootstrap_bounds_cover_the_data_and_the_truth():
    """Energies |z|^2 with mean 1: over 50 samples the upper bound is above 1 nearly always."""
    generator = np.random.default_rng(0)
    squares = generator.standard_normal((50, 60, 3, 3)) ** 2
    products = jnp.asarray(squares[:, :, :, :, None] * np.eye(3))
    keys = jax.vmap(jax.random.key)(jnp.arange(50))

    @jax.jit
    @jax.vmap
    def bounds(products, key):
        data = RegionalChannels(products)
        return criteria.bootstrap_bounds(data, key=key, resamples=200), data.energies

    found, energies = jax.tree.map(np.asarray, bounds(products, keys))
    assert (found.upper >= energies).all()
    assert (found.left <= energies[:, 0, 1]).all() and (found.right <= energies[:, 2, 0]).all()
    for trial in range(50):
        one = jax.tree.map(lambda leaf: leaf[trial], found)  # noqa: B023
        criteria.double_deficit(RegionalChannels(products[trial]), one)
    covered = np.sum((found.upper[:, 0, 0] > 1) & (found.left < 1))
    assert covered >= 40  # 0.9 for two one-sided 95 % bounds, less for the small sample


def test_right_biased_queries():
    energies = jnp.asarray(np.linspace(1.0, 1.5, LENGTH))
    holds = criteria.right_biased_queries(last_token(LENGTH), energies, REGIONS)
    assert holds.holds and holds.concluded
    uniform = criteria.right_biased_queries(teacher_forcing(LENGTH), jnp.ones(LENGTH), REGIONS)
    assert not uniform.holds and not uniform.vacuous and not uniform.concluded
    np.testing.assert_allclose(uniform.margin, 0, atol=1e-12)
    # Even queries: the least residual of tokens 17 to 20 against the largest of 5 to 16.
    rising = criteria.right_biased_queries(teacher_forcing(LENGTH), energies, REGIONS)
    (one,) = rising.inequalities
    np.testing.assert_allclose((one.greater, one.lesser), (energies[16], energies[15]))
    assert rising.holds and rising.concluded
    first = jnp.asarray(np.eye(LENGTH)[0])
    nowhere = criteria.right_biased_queries(first, energies, REGIONS)
    assert "no query asks" in nowhere.vacuous
    silent = criteria.right_biased_queries(last_token(LENGTH), energies.at[-1].set(0.0), REGIONS)
    assert "no readout residual" in silent.vacuous


def test_readout_residuals_times_query_weights_are_the_terminal_energies():
    readout = lim.LinearReadout(random_states(4, 6, 5))
    states, targets = random_states(1, 3, LENGTH, 6), random_labels(3, 3, LENGTH, 5)
    weights = random_labels(8, 1, LENGTH)[0]
    measured = eqx.filter_jit(criteria.readout_residual_energies)
    found = np.asarray(measured(readout, states, targets, REGIONS))

    def loss(x, y):
        return lim.autoregressive_cross_entropy(readout(x, GRID), y, weights)

    covectors = np.asarray(jax.jit(jax.vmap(jax.grad(loss)))(states, targets))
    euclidean = (covectors**2).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(np.asarray(weights) ** 2 * found, euclidean, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("step", [lim.euler, lim.split])
def test_whenever_a_certificate_holds_its_conclusion_does(step):
    """100 networks and data sets for each scheme, of all strengths, under two losses."""
    grid = lim.token_grid(10)
    regions = lim.boundary_regions(grid, 0.2)
    readout = lim.LinearReadout(random_states(4, 4, 5))

    @jax.jit
    @jax.vmap
    def measured(layers, states, labels, weights):
        flow = lim.ResidualFlow(layers, step=step)

        def one(x, y):
            found = channels(
                flow,
                lambda x: lim.autoregressive_cross_entropy(readout(x, grid), y, weights),
                x,
                grid,
            )
            norms = residual.interaction_norms(flow, x, grid, key=jax.random.key(0))
            sites = attention_sites(flow, found.states, found.covectors, grid)
            return found, residual.amplification(norms), sites

        found, bounds, sites = jax.vmap(one)(states, labels)
        energies = criteria.readout_residual_energies(readout, found.states[:, -1], labels, regions)
        regional = regional_channels(jax.vmap(lambda f: f.vectors)(found), regions)
        terminal, initial = found.covectors[:, -1], found.covectors[:, 0]
        averages = lim.regional_averages((initial**2).sum(axis=2).mean(axis=0), regions)
        cone = lim.adjoint.joint_cone(sites, grid)
        return cone, terminal, initial, bounds.product, regional, energies, averages

    def drawn(seed):
        scale = (0.02, 0.1, 0.5, 1.5)[seed % 4]
        layers = randomised(random_flow(depth=2, width=4).layers, seed, scale)
        weights = (last_token(10), teacher_forcing(10), random_labels(seed, 1, 10)[0])[seed % 3]
        return layers, random_states(seed, 3, 10, 4), random_labels(seed, 3, 10, 5), weights

    inputs = [drawn(seed) for seed in range(100)]
    stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *inputs)
    outputs = jax.tree.map(np.asarray, measured(*stacked))
    held: dict[str, int] = collections.Counter()
    for seed in range(100):
        cone, terminal, initial, product, regional, energies, averages = jax.tree.map(
            lambda leaf: jnp.asarray(leaf[seed]),  # noqa: B023
            outputs,
        )
        weights = inputs[seed][-1]
        certificates = {
            "primacy": criteria.primacy_noncancellation(cone, regions),
            "recency": criteria.recency_survival(terminal, initial, product, regions),
            "exact": criteria.exact_characterisation(regional),
            "double": criteria.double_deficit(regional, exact_bounds(regional)),
            "queries": criteria.right_biased_queries(weights, energies, regions),
        }
        deficit = bool(min(averages[0], averages[2]) > averages[1])
        assert certificates["exact"].holds is deficit
        assert deficit or not certificates["double"].holds
        for name, certificate in certificates.items():
            held[name] += certificate.holds
            assert certificate.concluded or not certificate.holds, (seed, name, certificate)
    assert held["recency"] > 5 and held["exact"] > 5 and held["queries"] > 5, held


def test_certificates_are_records_and_text():
    certificate = criteria.exact_characterisation(
        products((0, 2, 0.1), (0.5, 0.2, 0.1), (2, 0, 0.1))
    )  # fmt: skip
    record = certificate.record()
    assert record["holds"] and record["source"] == "cor:exact-double-deficit"
    assert record["margin"] == pytest.approx(1.3)
    text = criteria.certificate_table([certificate])
    assert "HOLDS" in text and "cor:exact-double-deficit" in text and "margin +1.3" in text
