"""Both deficits by channels, and what every certificate is: its ties, refusals, honesty, text."""

import collections
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import random_flow, random_labels, random_states, randomised

import lim_jax as lim
from lim_jax.adjoint import criteria, deficits, residual, terminal_covectors
from lim_jax.adjoint.certificate import Certificate, Inequality, Premise, certificate_table
from lim_jax.adjoint.cone import JointCone
from lim_jax.adjoint.ledger import RegionalChannels, channels, regional_channels
from lim_jax.adjoint.sites import attention_sites
from lim_jax.loss import last_token, teacher_forcing

LENGTH = 20
GRID = lim.token_grid(LENGTH)
REGIONS = lim.boundary_regions(GRID, 0.2)


def products(*energies, cross=0.0):
    """Regions with given channel energies (residual, cone, local), one example."""
    matrices = [np.diag(row) + cross * (1 - np.eye(3)) for row in energies]
    return RegionalChannels(jnp.asarray(matrices)[None])


def test_the_exact_characterisation_is_an_equivalence():
    # `cor:exact-double-deficit`, `eq:exact-left-middle-channel-condition`,
    # `eq:exact-right-middle-channel-condition`.
    holds = deficits.exact_characterisation(products((0, 2, 0.1), (0.5, 0.2, 0.1), (2, 0, 0.1)))
    assert holds.holds and holds.concluded
    fails = deficits.exact_characterisation(products((0, 2, 0.1), (3, 0.2, 0.1), (2, 0, 0.1)))
    assert not fails.holds and not fails.concluded and not fails.vacuous
    nothing = deficits.exact_characterisation(products((0.0,) * 3, (0.0,) * 3, (0.0,) * 3))
    assert not nothing.holds and "Z = 0" in nothing.vacuous
    # Of channels that are not orthogonal: by their energies, and by the energy of their sum.
    weights = np.asarray(REGIONS.weights) / np.asarray(REGIONS.weights.sum(axis=1, keepdims=True))
    verdicts = collections.Counter()
    for vectors in np.random.default_rng(0).standard_normal((40, 1, 3, LENGTH, 1)):
        certificate = deficits.exact_characterisation(paired(vectors, REGIONS))
        channels, total = ((of**2).sum(axis=-1)[0] @ weights.T for of in (vectors, vectors.sum(1)))
        apart = total - total[1]
        sums = channels.sum(axis=0)
        for side, b in zip(certificate.inequalities, (0, 2), strict=True):
            np.testing.assert_allclose(side.greater, sums[b] - sums[1], atol=1e-12)
            np.testing.assert_allclose(side.greater - side.lesser, apart[b], atol=1e-12)
        assert certificate.holds is certificate.concluded is bool(apart[0] > 0 and apart[2] > 0)
        verdicts[certificate.holds] += 1
    assert min(verdicts.values()) >= 5


def test_cross_terms_can_undo_a_u_shape():
    """The paper's fourth counterexample: energies (1, 1/4, 1), their sum (0, 1, 0)."""
    channel = jnp.array([[1.0, 0.5, 1.0], [-1.0, 0.5, -1.0], [0.0, 0.0, 0.0]])
    by_region = regional_channels(
        channel[None, :, :, None], lim.boundary_regions(lim.token_grid(3), "1/3")
    )
    certificate = deficits.exact_characterisation(by_region)
    assert not certificate.holds and not certificate.concluded
    np.testing.assert_allclose(
        by_region.energies[:, :2], [[1, 1], [0.25, 0.25], [1, 1]], atol=1e-14
    )
    np.testing.assert_allclose(by_region.totals, [0, 1, 0], atol=1e-14)


def paired(vectors, regions):
    """Regional products in NumPy: `regional_channels` would compile for every length."""
    weights = regions._host_weights()
    weights = weights / weights.sum(axis=1, keepdims=True)
    return RegionalChannels(
        jax.device_put(np.einsum("bi,naid,ncid->nbac", weights, vectors, vectors))
    )


@pytest.mark.slow
def test_ties_neither_hold_nor_are_concluded():
    """The paper's own counterexample, the identity under a uniform loss, at any length and delta.

    Every side is equal but for rounding, which differs with the length, delta and the values.
    """
    generator = np.random.default_rng(0)
    for length in (7, 33):
        grid = lim.token_grid(length)
        overlaps = [lim.boundary_regions(grid, d) for d in (0.05, 0.11, 0.2, 0.3, 0.37, 0.49)]
        points = [lim.boundary_regions(grid, d, "points") for d in (0.15, 0.2)]
        for regions in overlaps + points:
            value = generator.standard_normal((2, 1, 3)) * np.ones((1, length, 1))
            vectors = np.stack([value, 0 * value, 0 * value], axis=1)
            regional = paired(vectors, regions)
            terminal = jax.device_put(value)
            uniform = jax.device_put(np.full(length, 1 / length))
            rho = jax.device_put((value**2).sum(axis=2).mean(axis=0))
            for certificate in (
                deficits.exact_characterisation(regional),
                deficits.double_deficit(regional, exact_bounds(regional)),
                criteria.recency_survival(terminal, terminal, jnp.zeros(2), regions),
                criteria.right_biased_queries(uniform, rho, terminal, regions),
            ):
                assert not certificate.holds and not certificate.concluded
                for one in certificate.measured:
                    assert abs(one.roundings) < 1
            (even,) = certificate.inequalities  # teacher forcing: a tie of the sides themselves
            assert abs(even.roundings) < 1


def test_the_rounding_of_a_conclusion_is_of_all_terms_on_both_its_sides():
    """The half of the digits, of the boundary's energies, the middle's, and twice their pairs."""
    regional = products((1, 2, 1), (3, 30, 2), (2, 1, 4), cross=-0.3)
    sizes = np.array([4, 35, 7]) + 2 * 3 * 0.3
    for certificate in (
        deficits.exact_characterisation(regional),
        deficits.double_deficit(regional, exact_bounds(regional)),
    ):
        expected = np.sqrt(np.finfo(float).eps) * (sizes[[0, 2]] + sizes[1])
        np.testing.assert_allclose([one.rounding for one in certificate.measured], expected)


def test_a_margin_beyond_rounding_is_no_tie():
    """A millionth more at both ends is seen in float64, and is a tie in float32."""
    for dtype, seen in ((np.float64, True), (np.float32, False)):
        rows = [(1 + 1e-6, 0, 0), (1, 0, 0), (1 + 1e-6, 0, 0)]
        matrices = np.array([np.diag(row) for row in rows])[None].astype(dtype)
        certificate = deficits.exact_characterisation(RegionalChannels(jax.device_put(matrices)))
        assert certificate.holds is seen and certificate.concluded is seen


def test_products_are_averaged_over_examples_not_averages_multiplied():
    """Two examples whose channels are anticorrelated: E[ab] is not E[a] E[b]."""
    regions = lim.boundary_regions(lim.token_grid(3), "1/3")
    vectors = np.zeros((2, 3, 3, 1))
    vectors[:, 0, :, 0] = [[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]]
    vectors[:, 1, :, 0] = [[2.0, 1.0, -1.0], [-1.0, 1.0, 4.0]]
    by_region = regional_channels(jax.device_put(vectors), regions)
    res = vectors[:, 0, :, 0]
    cone = vectors[:, 1, :, 0]
    pairs = (res * cone).mean(axis=0)
    np.testing.assert_allclose(by_region.pairs[:, 0], pairs, atol=1e-14)
    energies = np.stack([(res**2).mean(axis=0), (cone**2).mean(axis=0), np.zeros(3)], axis=1)
    np.testing.assert_allclose(by_region.energies, energies, atol=1e-14)
    correlations = np.abs(pairs) / np.sqrt(energies[:, 0] * energies[:, 1])
    np.testing.assert_allclose(by_region.correlations[:, 0], correlations, atol=1e-14)
    certificate = deficits.double_deficit(by_region, exact_bounds(by_region))
    left, right = certificate.inequalities
    gamma = 2 * np.abs(pairs)
    np.testing.assert_allclose(left.greater, energies[0, 1])
    np.testing.assert_allclose(right.greater, energies[2, 0])
    spent = energies[1].sum() + gamma[1]
    np.testing.assert_allclose([left.lesser, right.lesser], [spent + gamma[0], spent + gamma[2]])


def test_criteria_on_channels_are_met_both_ways():
    """Eighty sets of random channels, their boundaries and correlations of all strengths."""
    generator = np.random.default_rng(1)
    regions = lim.boundary_regions(lim.graded_grid(9), 0.2)
    counts = collections.Counter()
    for _ in range(80):
        vectors = generator.standard_normal((3, 3, 9, 2))
        weights = generator.uniform(0.02, 1, 3)[None, :, None, None]
        vectors *= weights * np.where(generator.uniform() < 0.5, 0.1, 1)
        left, right = generator.choice([0.3, 2.0, 9.0], 2)
        inside = regions._host_weights() > 0
        vectors[:, 1, inside[0]] += left * generator.choice([-1, 1], (3, 1, 1))
        vectors[:, 0, inside[2]] += right * generator.choice([-1, 1], (3, 1, 1))
        regional = paired(vectors, regions)
        total = (vectors.sum(axis=1) ** 2).sum(axis=2).mean(axis=0)
        shares = regions._host_weights()
        left, middle, right = shares @ total / shares.sum(axis=1)
        deficit = bool(min(left, right) > middle)
        exact = deficits.exact_characterisation(regional)
        assert exact.holds is exact.concluded is deficit
        double = deficits.double_deficit(regional, exact_bounds(regional))
        assert double.concluded is deficit and (deficit or not double.holds)
        counts.update([("exact", exact.holds), ("double", double.holds, deficit)])
    cases = ("exact", True), ("exact", False), ("double", True, True), ("double", False, True)
    assert all(counts[case] > 2 for case in cases), counts


@pytest.mark.parametrize("name", ["terminal", "regional", "cone", "weights"])
def test_certificates_refuse_nan_and_tracers(name, as_users_run):
    nan = jnp.full((1, LENGTH, 2), jnp.nan)
    one = jnp.ones(1)
    weights = teacher_forcing(LENGTH)
    futures = jnp.asarray(1 - np.arange(LENGTH) / LENGTH)
    judged = {
        "terminal": lambda x: criteria.recency_survival(x, x, one, REGIONS),
        "regional": lambda x: deficits.exact_characterisation(
            RegionalChannels(x.sum() * jnp.ones((1, 3, 3, 3)))
        ),
        "cone": lambda x: criteria.primacy_noncancellation(
            JointCone(*[x.sum() * jnp.ones(LENGTH)] * 3, future=futures, horizon=jnp.ones(())),
            REGIONS,
        ),
        "weights": lambda x: criteria.right_biased_queries(
            x[0, :, 0], jnp.ones(LENGTH), jnp.ones((1, LENGTH, 1)), REGIONS
        ),
    }[name]
    judged(weights[None, :, None] * jnp.ones((1, 1, 2)))
    with pytest.raises(ValueError, match="got NaN"):
        judged(nan)
    with pytest.raises(ValueError, match="Call it outside jax.jit"):
        jax.jit(lambda x: judged(x).holds)(nan)


def exact_bounds(regional):
    return deficits.ChannelBounds(
        regional.energies, regional.energies[0, 1], regional.energies[2, 0], regional.correlations
    )


def test_the_double_deficit_holds_fails_and_is_vacuous():
    # `thm:channel-energy-double-deficit`.
    deficit = products((0.1, 5, 0.0), (0.2, 0.2, 0.0), (6, 0.1, 0.0))
    certificate = deficits.double_deficit(deficit, exact_bounds(deficit))
    assert certificate.holds and certificate.concluded
    even = products((1, 1, 0.0), (1, 1, 0.0), (1, 1, 0.0))
    certificate = deficits.double_deficit(even, exact_bounds(even))
    assert not certificate.holds and not certificate.vacuous and not certificate.concluded
    crossed = exact_bounds(even)._replace(correlations=jnp.ones((3, 3)))
    certificate = deficits.double_deficit(even, crossed)
    assert "cross terms alone" in certificate.vacuous
    # The channels are orthogonal: with bounds as tight as the data the left has l > Gamma.
    assert certificate.decisive.startswith("with more examples")
    pairs = [[[1.0, c, 0.0], [c, 1.0, 0.0], [0.0, 0.0, 0.0]] for c in (0.6, 0.0, 0.4)]
    mixed = RegionalChannels(jnp.asarray([pairs]))
    certificate = deficits.double_deficit(mixed, exact_bounds(mixed))
    assert "undo the left boundary" in certificate.vacuous  # 2 0.6 > 1, and 2 0.4 < 1
    assert "not with more examples" in certificate.decisive and " left " in certificate.decisive
    crossed = exact_bounds(mixed)._replace(correlations=jnp.ones((3, 3)))
    both = deficits.double_deficit(mixed, crossed)
    assert "left and the right" in both.vacuous and "right" not in both.decisive
    assert f"it could decide: {both.decisive}" in certificate_table([both])


@pytest.mark.parametrize("scale", [1e-12, 1e-10, 1.0, 1e10])
def test_the_covectors_unit_changes_no_verdict_in_single_precision(scale):
    """At both ends the cone is the residual's multiple, and cancels it: cross terms undo a U.

    The squares of these energies under- and overflow, but energies do not.
    """
    # `eq:channel-correlation-bound`, `eq:channel-cross-bound-gamma`.
    vectors = np.array([[-0.9, 0.3, 1.0], [1.0, 0.0, -0.9], [0.0, 0.0, 0.0]])
    scaled = jax.device_put((scale * vectors).astype(np.float32))
    regions = lim.boundary_regions(lim.token_grid(3, jnp.float32), "1/3")
    regional = regional_channels(scaled[None, :, :, None], regions)
    parallel = np.array([[1, 0, 0], [0, 0, 0], [1, 0, 0]])
    np.testing.assert_allclose(regional.correlations, parallel, rtol=1e-6)
    drawn = deficits.bootstrap_bounds(regional, key=jax.random.key(0))
    for bounds in (drawn, drawn._replace(correlations=jnp.ones((3, 3), jnp.float32))):
        certificate = deficits.double_deficit(regional, bounds)
        assert not certificate.holds and "left and the right" in certificate.vacuous
        left, right = certificate.inequalities
        lesser = np.array([left.lesser, right.lesser]) / scale**2
        np.testing.assert_allclose(lesser, 0.09 + 2 * 0.9, rtol=1e-5)


def test_the_double_deficits_sides_by_hand():
    """Bounds of one's own, no two alike: U_M = 21, and Gamma = 1.5, 8 and 0.5."""
    # `thm:channel-energy-double-deficit`, `eq:channel-cross-bound-gamma`,
    # `eq:checkable-double-deficit-conditions`.
    matrices = products((0, 5, 0.0), (0, 0, 0.0), (6, 0, 0.0))
    upper = jnp.array([[1.0, 9, 4], [4, 1, 16], [16, 4, 1]])
    rho = jnp.array([[0.25, 0, 0], [0, 0.5, 0], [0, 0, 0.125]])
    bounds = deficits.ChannelBounds(upper, jnp.array(5.0), jnp.array(6.0), rho)
    certificate = deficits.double_deficit(matrices, bounds)
    sides = [(inequality.greater, inequality.lesser) for inequality in certificate.inequalities]
    assert sides == [(5, 30.5), (6, 29.5)]
    nothing = deficits.double_deficit(matrices, bounds._replace(left=jnp.array(0.0)))
    assert [premise.holds for premise in nothing.premises] == [False, True]


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
    # `eq:channel-upper-bounds`, `eq:boundary-channel-lower-bounds`, `eq:channel-correlation-bound`.
    regional = products((1, 2, 1), (1, 2, 1), (1, 2, 1), cross=0.5)
    with pytest.raises(ValueError, match=named):
        deficits.double_deficit(regional, change(exact_bounds(regional)))


@pytest.mark.parametrize(
    "change, named",
    [
        ({"upper": jnp.ones(3)}, r"upper: got shape \(3,\), expected \(3, 3\)"),
        ({"correlations": jnp.ones((3, 2))}, r"correlations: got shape \(3, 2\), expected \(3, 3"),
        ({"left": jnp.zeros(2)}, r"left: got an array .* shape \(2,\), expected a real number"),
        ({"right": jnp.zeros(2)}, r"right: got an array .* shape \(2,\), expected a real number"),
    ],
)
def test_bounds_of_other_shapes_are_refused_by_name(change, named, as_users_run):
    regional = products((1, 2, 1), (1, 2, 1), (1, 2, 1))
    with pytest.raises(ValueError, match=named):
        deficits.double_deficit(regional, exact_bounds(regional)._replace(**change))


def test_products_of_no_examples_or_regions_are_refused(as_users_run):
    regional = products((1, 2, 1), (1, 2, 1), (1, 2, 1))
    for wrong in (regional.products[:0], regional.products[0]):
        with pytest.raises(ValueError, match=r"regional.products: got .*\(examples, 3, 3, 3\)"):
            deficits.exact_characterisation(RegionalChannels(wrong))
    with pytest.raises(ValueError, match="key: got 0, expected one random key"):
        deficits.bootstrap_bounds(regional, key=0)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "change",
    [
        lambda products: products.at[0, 2, 0, 1].add(0.5),  # not symmetric
        lambda products: products.at[1, 1].multiply(-1),  # energies below zero
        lambda products: products.at[0, 0, 1, 2].set(3.0).at[0, 0, 2, 1].set(3.0),  # |ab| > |a||b|
    ],
    ids=["unsymmetric", "negative", "too correlated"],
)
def test_numbers_that_no_channels_have_are_no_products(change):
    # `cor:exact-double-deficit`, `thm:channel-energy-double-deficit`.
    vectors = np.random.default_rng(0).standard_normal((2, 3, 3, 4))
    regional = RegionalChannels(jax.device_put(np.einsum("nbad,nbcd->nbac", vectors, vectors)))
    deficits.exact_characterisation(regional)
    bounds = exact_bounds(regional)
    wrong = RegionalChannels(change(regional.products))
    for call in (
        lambda: deficits.exact_characterisation(wrong),
        lambda: deficits.double_deficit(wrong, bounds),
    ):
        with pytest.raises(ValueError, match="regional.products: got numbers that no three chan"):
            call()


@pytest.mark.slow
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
        return deficits.bootstrap_bounds(data, key=key, resamples=200), data.energies

    bounds_of_draws, energies = jax.tree.map(np.asarray, bounds(products, keys))
    assert (bounds_of_draws.upper >= energies).all()
    assert (bounds_of_draws.left <= energies[:, 0, 1]).all() and (
        bounds_of_draws.right <= energies[:, 2, 0]
    ).all()
    for trial in range(50):
        one = jax.tree.map(lambda leaf: leaf[trial], bounds_of_draws)  # noqa: B023
        deficits.double_deficit(RegionalChannels(products[trial]), one)
    covered = np.sum((bounds_of_draws.upper[:, 0, 0] > 1) & (bounds_of_draws.left < 1))
    assert covered >= 40  # 0.9 for two one-sided 95 % bounds, less for the small sample


def test_bootstrap_bounds_are_of_a_probability_and_of_draws_that_reach_it():
    # `eq:channel-upper-bounds`, `eq:boundary-channel-lower-bounds`.
    factors = np.random.default_rng(0).standard_normal((2, 3, 3, 5))
    products = jax.device_put(factors @ factors.transpose(0, 1, 3, 2))
    bounds = partial(deficits.bootstrap_bounds, key=jax.random.key(0))
    for confidence in (0.0, 1.0, 1.5, np.nan):
        with pytest.raises(ValueError, match="confidence: got .*, expected a probability"):
            bounds(RegionalChannels(products), confidence=confidence)
    with pytest.raises(ValueError, match="resamples: got 19 at a confidence of 0.95"):
        bounds(RegionalChannels(products), resamples=19)
    bounds(RegionalChannels(products), resamples=20)
    with pytest.raises(ValueError, match="regional.products: got no example"):
        bounds(RegionalChannels(products[:0]))
    with pytest.raises(RuntimeError, match="regional.products: got NaN or infinite values"):
        bounds(RegionalChannels(products.at[0, 0, 0, 0].set(jnp.nan)))


@pytest.mark.parametrize("confidence", [0.6, 0.9])
def test_bootstrap_bounds_are_quantiles_of_what_is_drawn(confidence):
    """Of two examples a quarter of the draws are one alone, a quarter the other, the rest both:
    beyond 3/4 bounds are those of the worse example, before them those of both."""
    # `eq:channel-upper-bounds`, `eq:boundary-channel-lower-bounds`, `eq:channel-correlation-bound`.
    factors = np.random.default_rng(0).standard_normal((2, 3, 3, 5))
    data = RegionalChannels(jax.device_put(factors @ factors.transpose(0, 1, 3, 2)))
    both = np.asarray(data.energies), np.asarray(data.correlations)
    alone = [RegionalChannels(data.products[one : one + 1]) for one in (0, 1)]
    energies, correlations = (
        np.stack([getattr(one, name) for one in alone]) for name in ("energies", "correlations")
    )
    most = energies.max(axis=0)
    least = energies.min(axis=0)
    rho = correlations.max(axis=0)
    rho = np.maximum(rho, both[1])  # of both together it may be larger than of either
    if confidence == 0.6:
        # Of the two examples' and the mean's correlations the middle one, and never below the data.
        middle = np.sort([*correlations, both[1]], axis=0)[1]
        most = both[0]
        least = both[0]
        rho = np.maximum(middle, both[1])
    bounds = deficits.bootstrap_bounds(
        data, key=jax.random.key(0), confidence=confidence, resamples=400
    )
    np.testing.assert_allclose(bounds.upper, most, rtol=1e-12)
    np.testing.assert_allclose(bounds.correlations, rho, rtol=1e-12)
    np.testing.assert_allclose([bounds.left, bounds.right], [least[0, 1], least[2, 0]], rtol=1e-12)


NETWORKS = 24
SHORT = lim.boundary_regions(lim.token_grid(10), 0.2)


def random_example(seed):
    """A network's layers, three examples and weights of a loss, of four strengths and three losses.

    Of split layers: certificates see the sums of either scheme, which are dense elsewhere.
    """
    scale = (0.02, 0.1, 0.5, 1.5)[seed % 4]
    layers = randomised(random_flow(depth=2, width=4).layers, seed, scale)
    weights = (last_token(10), teacher_forcing(10), random_labels(seed, 1, 10)[0])[seed % 3]
    return layers, random_states(seed, 3, 10, 4), random_labels(seed, 3, 10, 5), weights


@jax.jit
@jax.vmap
def numbers_of_certificates(layers, states, labels, weights):
    grid = SHORT.grid
    flow = lim.ResidualFlow(layers, step=lim.split)
    readout = lim.LinearReadout(random_states(4, 4, 5))

    def one(x, y):
        loss = lambda x, y: lim.autoregressive_cross_entropy(readout(x, grid), y, weights)  # noqa: E731
        ledger = channels(flow, loss, (x, y), grid)
        norms = residual.interaction_norms(flow, x, grid, key=jax.random.key(0))
        sites = attention_sites(flow, ledger.states, ledger.covectors, grid)
        return ledger, residual.amplification(norms), sites

    ledgers, bounds, sites = jax.vmap(one)(states, labels)
    energies = terminal_covectors.readout_residual_energies(
        readout, ledgers.states[:, -1], labels, SHORT
    )
    regional = regional_channels(jax.vmap(lambda f: f.vectors)(ledgers), SHORT)
    terminal = ledgers.covectors[:, -1]
    initial = ledgers.covectors[:, 0]
    averages = lim.regional_averages((initial**2).sum(axis=2).mean(axis=0), SHORT)
    cone = lim.adjoint.joint_cone(sites, grid)
    return cone, terminal, initial, bounds.product, regional, energies, averages


@pytest.fixture(scope="module")
def judged():
    """The certificates of each network by name, and whether its middle has the least influence."""
    inputs = [random_example(seed) for seed in range(NETWORKS)]
    stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *inputs)
    outputs = jax.tree.map(np.asarray, numbers_of_certificates(*stacked))
    judgements = []
    for seed in range(NETWORKS):
        cone, terminal, initial, product, regional, energies, averages = jax.tree.map(
            lambda leaf: jnp.asarray(leaf[seed]),  # noqa: B023
            outputs,
        )
        weights = inputs[seed][-1]
        certificates = {
            "primacy": criteria.primacy_noncancellation(cone, SHORT),
            "recency": criteria.recency_survival(terminal, initial, product, SHORT),
            "exact": deficits.exact_characterisation(regional),
            "double": deficits.double_deficit(regional, exact_bounds(regional)),
            "queries": criteria.right_biased_queries(weights, energies, terminal, SHORT),
        }
        judgements.append((certificates, bool(min(averages[0], averages[2]) > averages[1])))
    return judgements


@pytest.mark.slow
def test_whenever_a_certificate_holds_its_conclusion_does(judged):
    for seed, (certificates, _) in enumerate(judged):
        for name, certificate in certificates.items():
            assert certificate.concluded or not certificate.holds, (seed, name, certificate)


@pytest.mark.slow
def test_the_exact_certificate_holds_where_the_middle_has_the_least_influence(judged):
    for certificates, deficit in judged:
        assert certificates["exact"].holds is deficit


@pytest.mark.slow
def test_channel_bounds_certify_no_deficit_where_there_is_none(judged):
    for certificates, deficit in judged:
        assert deficit or not certificates["double"].holds


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recency", "exact", "queries"])
def test_certificates_hold_for_some_networks_and_not_for_others(judged, name):
    assert 2 < sum(certificates[name].holds for certificates, _ in judged) < NETWORKS - 2


def test_certificates_are_records_and_text():
    certificate = deficits.exact_characterisation(
        products((0, 2, 0.1), (0.5, 0.2, 0.1), (2, 0, 0.1))
    )
    record = certificate.record()
    assert record["holds"] and record["source"] == "cor:exact-double-deficit"
    assert record["margin"] == pytest.approx(1.3) and record["concluded"]
    left, right = record["inequalities"]
    assert left["holds"] and left["roundings"] == pytest.approx(1.3 / left["rounding"])
    assert [inequality["greater"] for inequality in record["measured"]] == pytest.approx([2.1, 2.1])
    text = certificate_table([certificate])
    assert "HOLDS" in text and "cor:exact-double-deficit" in text and "margin +1.3" in text
    without = certificate._replace(premises=(Premise("never", 0.5, False),)).record()
    assert without["concluded"] and not without["holds"]


def test_the_table_marks_premises_that_fail_and_ties_on_either_side_of_zero():
    premises = Premise("a > 0", 0.5, True), Premise("b < 1", 1.25, False)
    sides = [Inequality("A > B", 2.0 + apart, 2.0, 0.5) for apart in (1.0, 0.25, -0.25, -1.0)]
    certificate = Certificate("one", "eq:one", premises, tuple(sides), "it is so", tuple(sides[2:]))
    assert [side.record()["holds"] for side in sides] == [True, False, False, False]
    assert [side.record()["roundings"] for side in sides] == [2, 0.5, -0.5, -2]
    assert str(certificate).splitlines() == [
        "one (eq:one): does not hold",
        "    premise   a > 0: 0.5  yes",
        "    premise   b < 1: 1.25  NO",
        "    compare   A > B: 3 against 2, margin +1",
        "    compare   A > B: 2.25 against 2, margin +0.25 (a tie)",
        "    compare   A > B: 1.75 against 2, margin -0.25 (a tie)",
        "    compare   A > B: 1 against 2, margin -1",
        "    measured  it is so: false",
        "              A > B: 1.75, 2 (a tie)",
        "              A > B: 1, 2",
    ]
