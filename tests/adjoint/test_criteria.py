"""Primacy, recency and queries: criteria that hold, that fail and that are vacuous."""

from functools import partial

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import random_flow, random_labels, random_states, randomised

import lim_jax as lim
from lim_jax.adjoint import criteria, residual, terminal_covectors
from lim_jax.adjoint.cone import JointCone
from lim_jax.adjoint.krylov import NormBounds
from lim_jax.adjoint.ledger import channels
from lim_jax.adjoint.sites import attention_sites
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
    return jax.vmap(lambda x: channels(flow, terminal_loss, (x, None), GRID))(states)


def first_feature(x, y):
    """The mean of feature 0: the same terminal covector everywhere."""
    return lim.integral(x[:, 0], GRID)


@eqx.filter_jit
def cone_of(flow, states, terminal_loss):
    by_channel = ledger(flow, states, terminal_loss)
    sites = jax.vmap(lambda s, p: attention_sites(flow, s, p, GRID))(
        by_channel.states, by_channel.covectors
    )
    return lim.adjoint.joint_cone(sites, GRID)


def test_primacy_holds_where_attention_listens_to_the_left():
    # `prop:primacy-noncancellation`, `eq:cone-left-joint-coercivity`,
    # `eq:cone-middle-joint-upper-bound`, `eq:cone-geometric-region-factor`,
    # `eq:cone-actual-primacy-condition`.
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


def test_the_cones_bounds_by_hand():
    """Unequal entries, T = 2: the least on the left, the largest in the middle, cells shared."""
    # `eq:cone-left-joint-coercivity`, `eq:cone-middle-joint-upper-bound`,
    # `eq:cone-geometric-region-factor`, `eq:cone-left-actual-lower-bound`,
    # `eq:cone-middle-actual-upper-bound`, `eq:cone-actual-primacy-condition`.
    grid = lim.graded_grid(4)
    regions = lim.boundary_regions(grid, 0.3)
    weights = np.asarray(grid.weights)
    future = weights @ np.asarray(grid.prefix_weights()) / weights
    cone = JointCone(*map(jnp.array, ([3.0, 2, 9, 9], [9, 9, 4, 5.0], [9.0] * 4, future, 2.0)))
    bounds = criteria.cone_bounds(cone, regions)
    # By hand: edges 0, 1/64, 1/8, 27/64, 1; 0.3 lies in the third cell and 0.7 in the fourth.
    width = 27 / 64 - 1 / 8
    left = np.array([1, 1, (0.3 - 1 / 8) / width, 0]) * weights
    middle = np.array([0, 0, (27 / 64 - 0.3) / width, (0.7 - 27 / 64) / (37 / 64)]) * weights
    squares = future**2
    np.testing.assert_allclose(bounds.left_bound, 2 * 4 * (left @ squares) / left.sum())
    np.testing.assert_allclose(bounds.middle_bound, 5 * 4 * (middle @ squares) / middle.sum())
    (inequality,) = criteria.primacy_noncancellation(cone, regions).inequalities
    assert (inequality.greater, inequality.lesser) == (bounds.left_bound, bounds.middle_bound)


@pytest.mark.slow
def test_the_cones_bounds_are_honest():
    """`eq:cone-left-actual-lower-bound`, `eq:cone-middle-actual-upper-bound`: thirty cones.

    Attention that listens to the left, of any strength, in two layers under a depth profile, and
    covectors of both signs or of one: primacy holds for some of them and fails for others.
    """
    grid = lim.graded_grid(9)
    regions = lim.boundary_regions(grid, 0.2)
    flow, _ = listening_to_the_left(1.0)
    layers = jax.tree.map(lambda leaf: np.repeat(leaf, 2, axis=0), flow.layers)
    left = np.asarray(grid.nodes) < 0.2

    @jax.jit
    @jax.vmap
    def compute(strength, covectors, first):
        scored = eqx.tree_at(lambda a: a.query, layers, strength * jax.device_put(layers.query))
        flow = lim.ResidualFlow(scored, horizon=1.7, profile=lambda time: 0.5 + time)
        states = jnp.stack([first, jnp.broadcast_to(left.astype(float), first.shape)], axis=2)

        def sites(x, covector):
            loss = lambda x, y: lim.inner(x[:, 0], y, grid)  # noqa: E731
            ledger = channels(flow, loss, (x, covector), grid)
            return attention_sites(flow, ledger.states, ledger.covectors, grid)

        return lim.adjoint.joint_cone(jax.vmap(sites)(states, covectors), grid)

    generator = np.random.default_rng(0)
    strengths = generator.uniform(0, 9, 30)
    covectors = generator.uniform(0.9, 1.1, (30, 2, 9))
    covectors[::5] -= 1
    first = generator.uniform(0.8, 1.2, (30, 2, 9))
    cones = jax.tree.map(np.asarray, compute(*map(jax.device_put, (strengths, covectors, first))))
    verdicts = set()
    for index in range(30):
        cone = jax.tree.map(lambda leaf: jax.device_put(leaf[index]), cones)  # noqa: B023
        bounds = criteria.cone_bounds(cone, regions)
        assert bounds.left_bound <= bounds.left and bounds.middle <= bounds.middle_bound
        certificate = criteria.primacy_noncancellation(cone, regions)
        assert certificate.concluded or not certificate.holds
        verdicts.add((certificate.holds, certificate.concluded, bool(certificate.vacuous)))
    assert {held for held, _, _ in verdicts} == {True, False} and any(v for *_, v in verdicts)


def test_primacy_fails_on_averaging_though_it_is_there():
    flow, states = listening_to_the_left(0.0)
    cone = cone_of(flow, states, first_feature)
    certificate = criteria.primacy_noncancellation(cone, REGIONS)
    assert not certificate.holds and not certificate.vacuous
    assert certificate.concluded and certificate.margin < 0


def test_primacy_is_vacuous_where_contributions_cancel():
    flow, states = listening_to_the_left(0.0)
    cone = cone_of(randomised(flow, 2, 1.0), random_states(1, *states.shape), first_feature)
    certificate = criteria.primacy_noncancellation(cone, REGIONS)
    assert not certificate.holds
    assert "cancels" in certificate.vacuous and "later depth" in certificate.decisive
    assert [premise.holds for premise in certificate.premises] == [False, True]


@jax.jit
def _survival(layers, states, readout, labels, weights):
    flow = lim.ResidualFlow(layers)

    def loss(x, y):
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


def test_layers_move_regional_energies_within_their_bound():
    """`eq:regional-squared-energy-stability`, on layers weak and strong."""
    changes = []
    for scale in (0.05, 0.5):
        terminal, initial, bounds = survival(scale, last_token(LENGTH))
        for c in (bounds.product, bounds.exponential):
            stability = jax.tree.map(
                np.asarray, criteria.energy_stability(terminal, initial, c, REGIONS)
            )
            change = np.abs(stability.initial - stability.terminal)
            assert (change <= stability.bound).all()
            changes.append(change.max() / stability.bound.min())
        # By hand, the sizes of the regions 0.2, 0.6 and 0.2.
        squares = (np.asarray(terminal) ** 2).sum(axis=(1, 2)) / LENGTH
        c = np.asarray(bounds.exponential)
        expected = ((2 * c + c**2) * squares).mean() / np.array([0.2, 0.6, 0.2])
        np.testing.assert_allclose(stability.bound, expected, rtol=1e-12)
    assert max(changes) > 0.01


def test_the_bound_on_a_regions_energy_is_over_that_regions_own_size():
    """Of points of a graded grid the three sizes are unequal; the layers change nothing."""
    # `eq:regional-squared-energy-stability`.
    grid = lim.graded_grid(7)
    regions = lim.boundary_regions(grid, "2/5", "points")
    nodes, weights = np.asarray(grid.nodes), np.asarray(grid.weights)
    left, right = nodes < 2 / 5, nodes >= 3 / 5
    sizes = np.array([weights[inside].sum() for inside in (left, ~left & ~right, right)])
    generator = np.random.default_rng(0)
    terminal = generator.standard_normal((3, 7, 2))
    c = generator.uniform(0.1, 2, 3)
    squares = (terminal**2).sum(axis=2) @ weights
    expected = np.mean((2 * c + c**2) * squares) / sizes
    still = jax.device_put(terminal)
    bound = criteria.energy_stability(still, still, jax.device_put(c), regions).bound
    np.testing.assert_allclose(bound, expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(1, LENGTH, 4), (2, LENGTH, 1), (3, LENGTH, 4)])
def test_covectors_of_other_shapes_are_no_pair(shape, as_users_run):
    """They would broadcast to energies that look right."""
    terminal = jnp.ones((2, LENGTH, 4))
    initial = jnp.ones(shape)
    with pytest.raises(ValueError, match=r"initial: got .*shape"):
        criteria.energy_stability(terminal, initial, jnp.ones(2), REGIONS)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_cone_of_no_numbers_bounds_nothing(bad):
    grid = lim.token_grid(4)
    rows = jnp.ones(4)
    cone = JointCone(rows, rows, rows, rows.at[1].set(bad), jnp.array(1.0))
    with pytest.raises(ValueError, match="cone: got NaN or infinite values"):
        criteria.cone_bounds(cone, lim.boundary_regions(grid, 0.25))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_regions_of_a_cone_are_on_its_grid(dtype):
    """On each of these its futures are column sums of other weights, here dense."""
    starts = jnp.asarray(np.repeat([0, 5], [5, 7]))
    grids = {
        "tokens": lim.token_grid(12, dtype),
        "midpoints": lim.midpoint_grid(12, dtype),
        "graded": lim.graded_grid(12, dtype),
        "packed": lim.token_grid(12, dtype).starting(starts),
        "packed midpoints": lim.midpoint_grid(12, dtype).starting(starts),
        "panels": lim.gauss_grid(12, dtype=dtype),
    }
    one = jnp.ones(12, dtype)
    for name, grid in grids.items():
        weights = np.asarray(grid.weights)
        futures = jax.device_put(weights @ np.asarray(grid.prefix_weights()) / weights)
        cone = JointCone(one, one, one, futures, jnp.ones((), dtype))
        for other, positions in grids.items():
            regions = lim.boundary_regions(positions, 0.2)
            if name == other != "panels":
                criteria.cone_bounds(cone, regions)
                continue
            with pytest.raises(ValueError, match="regions: got regions of .*the cone's grid"):
                criteria.cone_bounds(cone, regions)


def test_recency_survives_weak_layers_only():
    # `prop:regional-recency-persistence`.
    terminal, initial, bounds = survival(0.05, last_token(LENGTH))
    for c in (bounds.product, bounds.exponential):
        certificate = criteria.recency_survival(terminal, initial, c, REGIONS)
        assert certificate.holds and certificate.concluded and not certificate.vacuous
    terminal, initial, bounds = survival(0.5, last_token(LENGTH))
    certificate = criteria.recency_survival(terminal, initial, bounds.exponential, REGIONS)
    assert not certificate.holds and "amplify" in certificate.vacuous


def test_recencys_sides_and_conclusion_by_hand():
    """Three levels of the terminal covector; an initial one that is heavier in the middle."""
    # `prop:regional-recency-persistence`, `eq:regional-recency-survival-condition`,
    # `eq:recency-moment-condition`.
    levels = np.repeat([2.0, 1.0, 3.0], [4, 12, 4])[None, :, None]
    terminal = jax.device_put(levels)
    initial = jax.device_put(levels[:, ::-1] ** -1)
    certificate = criteria.recency_survival(terminal, initial, jnp.array([0.1]), REGIONS)
    (inequality,) = certificate.inequalities
    (measured,) = certificate.measured
    mean = (levels**2).mean()
    np.testing.assert_allclose(inequality.greater, 9 - 1)
    np.testing.assert_allclose(inequality.lesser, (1 / 0.2 + 1 / 0.6) * 0.21 * mean)
    np.testing.assert_allclose((measured.greater, measured.lesser), (1 / 4, 1))
    assert not certificate.concluded
    unbounded = criteria.recency_survival(terminal, initial, jnp.array([jnp.inf]), REGIONS)
    assert [premise.holds for premise in unbounded.premises] == [True, False, True]
    # Not within rounding: no number is a tie with infinity.
    assert unbounded.inequalities[0].roundings == -np.inf and "tie" not in str(unbounded)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0])
def test_small_covectors_change_no_verdict_of_recency(scale):
    """On the right 1.1, else 1, times numbers whose squares are zero in single precision."""
    # `prop:regional-recency-persistence`.
    levels = (scale * np.repeat([1.0, 1.1], [16, 4])).astype(np.float32)[None, :, None]
    regions = lim.boundary_regions(lim.token_grid(20, jnp.float32), 0.2)
    terminal = jax.device_put(levels)
    for c, holds in ((0.0, True), (0.1, False)):
        certificate = criteria.recency_survival(
            terminal, terminal, jnp.array([c], jnp.float32), regions
        )
        (inequality,) = certificate.inequalities
        assert certificate.holds == holds and certificate.concluded
        np.testing.assert_allclose(inequality.greater / scale**2, 0.21, rtol=1e-4)
        bound = (1 / 0.2 + 1 / 0.6) * (2 * c + c**2) * 1.042
        np.testing.assert_allclose(inequality.lesser / scale**2, bound, rtol=1e-4)


def test_a_c_that_the_covectors_refute_proves_nothing():
    """P_T of ones on the right, P_0 of fives in the middle: |P_0 - P_T|^2 = 304/20, |P_T|^2 = 4/20.

    A second example, whose layers change nothing, keeps c.
    """
    # `eq:residual-stability-bound`, `prop:regional-recency-persistence`.
    terminal = np.repeat([0.0, 0.0, 1.0], [4, 12, 4])[None, :, None]
    initial = np.repeat([0.0, 5.0, 0.0], [4, 12, 4])[None, :, None]
    first, last = (jax.device_put(np.concatenate([p, terminal])) for p in (terminal, initial))
    needed = np.sqrt(304 / 4)
    for c, kept in ((0.01, False), (needed * (1 - 1e-6), False), (needed * (1 + 1e-12), True)):
        growth = jnp.array([c, 0.0])
        certificate = criteria.recency_survival(first, last, growth, REGIONS)
        premise = certificate.premises[2]
        assert premise.holds is kept and not certificate.holds and not certificate.concluded
        assert premise.statement.startswith("c >= |P_0 - P_T| / |P_T|")
        np.testing.assert_allclose(premise.value, needed, rtol=1e-12)
        if kept:
            criteria.energy_stability(first, last, growth, REGIONS)
            continue
        with pytest.raises(RuntimeError, match=r"c that the covectors refute, expected \|P_0"):
            criteria.energy_stability(first, last, growth, REGIONS)
    # Where P_T is zero no c is enough, but for a P_0 that is zero too.
    for start, kept in ((1.0, False), (0.0, True)):
        nothing = jnp.zeros((1, LENGTH, 1))
        found = criteria.recency_survival(nothing, nothing + start, jnp.array([9.0]), REGIONS)
        assert found.premises[2].holds is kept and not found.holds
    # A million-millionth of these covectors says the same, though its squares vanish in float32.
    grid = lim.token_grid(LENGTH, jnp.float32)
    tiny = np.float32(1e-25)
    first, last = (jax.device_put(tiny * np.asarray(p, np.float32)) for p in (first, last))
    growth = jnp.array([0.01, 0.0], jnp.float32)
    found = criteria.recency_survival(first, last, growth, lim.boundary_regions(grid, 0.2))
    np.testing.assert_allclose(found.premises[2].value, needed, rtol=1e-5)


def test_a_change_of_one_region_refutes_a_c_beside_a_larger_region():
    """On the left ten thousand, where nothing changes: beside its norm the right's change is small.

    Yet of c = 0 no region's energy changes at all, and the right's falls below the middle's.
    """
    # `eq:regional-squared-energy-stability`, `prop:regional-recency-persistence`.
    regions = lim.boundary_regions(lim.token_grid(LENGTH, jnp.float32), 0.2)
    levels = [1e4, 1.0, 1.2], [1e4, 1.0, 0.8]
    terminal, initial = (
        jnp.asarray(np.repeat(level, [4, 12, 4])[None, :, None], jnp.float32) for level in levels
    )
    nothing = jnp.zeros(1, jnp.float32)
    certificate = criteria.recency_survival(terminal, initial, nothing, regions)
    assert not certificate.premises[2].holds and not certificate.holds
    assert not certificate.concluded
    with pytest.raises(RuntimeError, match="c that the covectors refute"):
        criteria.energy_stability(terminal, initial, nothing, regions)


def test_covectors_of_few_bits_decide_nothing_within_their_rounding():
    """A right that is heavier by 2 % is no heavier for sure in bfloat16, of 8 bits."""
    # `eq:regional-recency-survival-condition`.
    regions = lim.boundary_regions(lim.token_grid(LENGTH, jnp.bfloat16), 0.2)
    levels = [1.0, 1.0, 1.01], [1.0, 1.01, 1.0]
    terminal, initial = (
        jnp.asarray(np.repeat(level, [4, 12, 4])[None, :, None], jnp.bfloat16) for level in levels
    )
    certificate = criteria.recency_survival(terminal, initial, jnp.zeros(1, jnp.float32), regions)
    assert not certificate.holds
    (inequality,) = certificate.inequalities
    assert 0 < inequality.margin < inequality.rounding


@pytest.mark.parametrize("layers", [[-0.5], [0.5, -0.1]])
def test_a_negative_c_is_refused(layers):
    spike = jnp.asarray(np.eye(LENGTH)[None, :, -1:])
    growth = jnp.array([layers])
    with pytest.raises(
        RuntimeError, match="amplification: got a number below zero, expected nothing"
    ):
        criteria.recency_survival(spike, spike, growth, REGIONS)
    if len(layers) == 1:
        with pytest.raises(
            RuntimeError, match="amplification: got a number below zero, expected nothing"
        ):
            criteria.energy_stability(spike, spike, growth[:, 0], REGIONS)


@pytest.mark.parametrize("of", [lambda call: call, jax.jit], ids=["known", "traced"])
def test_what_is_no_number_has_no_energy(of):
    """An infinite c is a bound, of nothing."""
    ones = jnp.ones((1, LENGTH, 1))
    growth = jnp.ones(1)
    stability = of(partial(criteria.energy_stability, regions=REGIONS))
    for bad in (np.nan, np.inf):
        with pytest.raises(RuntimeError, match="terminal: got NaN or infinite values"):
            jax.block_until_ready(stability(ones.at[0, 3].set(bad), ones, growth))
        with pytest.raises(RuntimeError, match="initial: got NaN or infinite values"):
            jax.block_until_ready(stability(ones, ones.at[0, 3].set(bad), growth))
    with pytest.raises(RuntimeError, match="amplification: got NaN, expected a number or inf"):
        jax.block_until_ready(stability(ones, ones, np.nan * growth))
    assert np.isinf(stability(ones, ones, np.inf * growth).bound).all()


def test_examples_without_a_c_are_refused():
    spike = jnp.asarray(np.eye(LENGTH)[None, :, -1:])
    with pytest.raises(ValueError, match="amplification: got .* expected at least one c for each"):
        criteria.recency_survival(spike, spike, jnp.zeros((1, 0)), REGIONS)


def test_norms_that_contradict_each_other_make_no_c():
    """A vector attains more than the upper bound, or less than nothing."""
    upper = jnp.array([0.5, 1.0])
    for attained in ([0.5, 1.1], [0.5, -1.0]):
        with pytest.raises(RuntimeError, match="norms: got bounds that contradict each other"):
            residual.amplification(NormBounds(jnp.array(attained), upper))
    nan = upper.at[1].set(jnp.nan)
    for bounds in (NormBounds(upper, nan), NormBounds(nan, upper)):
        with pytest.raises(RuntimeError, match="norms: got NaN, expected 0 <= attained <= upper"):
            residual.amplification(bounds)
    np.testing.assert_allclose(residual.amplification(NormBounds(upper, upper)).product, 2)


def test_a_cone_whose_energies_refute_its_bounds_proves_nothing():
    """Of three positions each is a region; T = 1."""
    # `eq:cone-left-actual-lower-bound`, `eq:cone-middle-actual-upper-bound`.
    regions = lim.boundary_regions(lim.token_grid(3), "1/3")
    one = jnp.ones(())

    def judged(energy, least_in_the_middle=0.0):
        lowest = jnp.array([4.0, least_in_the_middle, 0.0])
        largest = jnp.array([9.0, 2.0, 2.0])
        futures = jnp.array([1.0, 2 / 3, 1 / 3])
        cone = JointCone(lowest, largest, jnp.array(energy), futures, one)
        return criteria.primacy_noncancellation(cone, regions)

    held = judged([5.0, 0.5, 7.0])
    assert held.holds and held.concluded
    for energy, refuted in (([1.0, 0.5, 7.0], 1), ([5.0, 6.0, 7.0], 1), ([1.0, 6.0, 7.0], 2)):
        certificate = judged(energy)
        assert certificate.inequalities[0].holds and not certificate.holds
        assert (certificate.premises[1].value, certificate.premises[1].holds) == (refuted, False)
    # A size of at most 2 in the middle, where something is -3.
    certificate = judged([5.0, 0.5, 7.0], -3.0)
    assert certificate.inequalities[0].holds and not certificate.holds
    assert (certificate.premises[1].value, certificate.premises[1].holds) == (1, False)


def test_queries_that_are_no_weights_are_refused():
    """Those below zero in the middle were not counted there, and their squares are on P_T."""
    # `eq:query-mass-discrete`, `eq:right-biased-squared-query-mass`.
    weights = np.zeros(LENGTH)
    weights[[8, 18]] = -1.0, 2.0
    energies = jnp.ones(LENGTH)
    for wrong in (weights, np.full(LENGTH, 1.0)):
        wrong = jax.device_put(wrong)
        for call in (
            lambda w=wrong: queried(w, energies),
            lambda w=wrong: terminal_covectors.query_masses(w, REGIONS),
            lambda w=wrong: terminal_covectors.readout_support(w, 1),
        ):
            with pytest.raises(
                RuntimeError, match="query_weights: got .*expected non-negative weights"
            ):
                call()
    with pytest.raises(RuntimeError, match="residual_energies: got .*expected nothing below zero"):
        criteria.right_biased_queries(
            last_token(LENGTH), -energies, energies[None, :, None], REGIONS
        )


def test_energies_on_the_left_hide_nothing_elsewhere():
    """The left asks ten million times as much; on the right and in the middle P_T is another's."""
    asked = np.repeat([1e8, 0.0, 1.0], [4, 12, 4])
    asked = jax.device_put(asked / asked.sum())
    energies = jnp.ones(LENGTH)
    honest = covectors_of(asked, energies)
    other = honest[:, jnp.concatenate([jnp.arange(4), jnp.arange(4, 20)[::-1]])]
    held = criteria.right_biased_queries(asked, energies, honest, REGIONS)
    assert held.holds and held.concluded
    refuted = criteria.right_biased_queries(asked, energies, other, REGIONS)
    assert not refuted.concluded and not refuted.holds and not refuted.premises[1].holds


def test_a_covector_in_bfloat16_is_judged_by_sums_in_float32():
    """Sums of squares in bfloat16 would stop growing at 256 terms of one size."""
    regions = lim.boundary_regions(lim.token_grid(LENGTH, jnp.float32), 0.2)
    levels = np.repeat(np.repeat([1.0, 1.0, 2.0], [4, 12, 4])[None, :, None], 1000, axis=2)
    covector = jax.device_put(levels.astype(jnp.bfloat16))
    bound = jax.device_put(np.array([0.125], np.float32))
    certificate = criteria.recency_survival(covector, covector, bound, regions)
    (one,) = certificate.inequalities
    expected = (1 / 0.2 + 1 / 0.6) * (0.25 + 0.125**2) * (levels**2).sum(axis=2).mean()
    np.testing.assert_allclose((one.greater, one.lesser), (3000, expected), rtol=1e-5)
    asked = jax.device_put(np.full(LENGTH, 1 / LENGTH, np.float32))
    energies = jax.device_put((levels**2).sum(axis=(0, 2)).astype(jnp.bfloat16))
    (one,) = criteria.right_biased_queries(asked, energies, covector, regions).measured
    np.testing.assert_allclose((one.greater, one.lesser), (4000, 1000), rtol=1e-5)


def test_a_continuous_flow_has_its_c_from_its_horizon_and_no_certificate_from_samples(as_users_run):
    """F = (a + b sin^2(pi t)) X on [0, 5]: P_0 = e^{5a + 5b/2} P_T, and b unseen at whole times."""
    # `eq:adjoint-operator-bound`, `eq:residual-stability-bound`.
    grid = lim.token_grid(1)
    times = jnp.asarray(np.array([0.0, 5.0]))
    regions = lim.boundary_regions(lim.token_grid(5), 0.2)

    @jax.jit
    def norms_of(rate, swing):
        flow = lim.ContinuousFlow(
            lambda time: lambda x, c, grid: (rate + swing * jnp.sin(jnp.pi * time) ** 2) * x,
            horizon=5.0,
            solver=diffrax.Euler(),
            stepsize_controller=diffrax.ConstantStepSize(),
            first_step=0.5,
        )
        x = jnp.ones((1, 1))
        key = jax.random.key(0)
        return residual.generator_norms(flow, x, grid, times, key=key, steps=1)

    spike = np.eye(5)[None, :, -1:]
    for rate, swing in ((0.3, 0), (0.25, 0), (0.01, 0), (0, 0.4)):
        norms = norms_of(jnp.array(rate, float), jnp.array(swing, float))
        growth = float(np.exp(5 * rate + 5 * swing / 2))
        np.testing.assert_allclose(norms.amplification, np.expm1(5 * rate), rtol=1e-9, atol=1e-12)
        assert bool(norms.amplification < 0.99 * (growth - 1)) is (swing > 0), "no bound"
        terminal, initial = jax.device_put((spike, growth * spike))
        batch = jax.tree.map(lambda leaf: leaf[None], norms)
        sampled = criteria.recency_survival(terminal, initial, batch, regions)
        proved = jnp.array([growth - 1])
        certificate = criteria.recency_survival(terminal, initial, proved, regions)
        assert not sampled.holds and certificate.holds is (growth < 1.1)
        assert sampled.inequalities[0].holds is (rate < 0.1) is (not sampled.vacuous)
        *_, bounding, premise = sampled.premises
        assert "not measured at sampled times" in premise.statement
        assert (premise.value, premise.holds, len(certificate.premises)) == (2, False, 3)
        # What was measured at whole times is refuted by P_0 itself.
        assert bounding.holds is (swing == 0)
        np.testing.assert_allclose(bounding.value, growth - 1)
    with pytest.raises(ValueError, match=r"got GeneratorNorms.+of a continuous flow c is nor"):
        residual.amplification(norms)


def test_recency_fails_without_a_right_heavy_covector():
    # `prop:regional-recency-persistence`.
    terminal, _, bounds = survival(0.05, teacher_forcing(LENGTH))
    flat = jnp.asarray(np.ones(terminal.shape))
    certificate = criteria.recency_survival(flat, flat, bounds.product, REGIONS)
    assert not certificate.holds and not certificate.vacuous
    assert not certificate.premises[0].holds


def test_the_ceiling_of_recency_is_the_papers():
    """At delta = 0.2 the paper's c is useless from T Lambda = log(7/4)/2 = 0.280 on."""
    # `eq:regional-recency-survival-condition`.
    spike = jnp.asarray(np.eye(LENGTH)[None, :, -1:])
    for size, vacuous in ((0.279, False), (0.281, True)):
        c = jnp.asarray(np.expm1([size]))
        certificate = criteria.recency_survival(spike, spike, c, REGIONS)
        assert bool(certificate.vacuous) is bool(certificate.decisive) is vacuous
        (inequality,) = certificate.inequalities
        expected = (1 / 0.2 + 1 / 0.6) * np.expm1(2 * size) / LENGTH
        np.testing.assert_allclose(
            (inequality.greater, inequality.lesser), (1 / 0.2 / LENGTH, expected)
        )
        # All of P_T on the right: the inequality itself changes sides at the ceiling.
        assert certificate.holds is not vacuous


@pytest.mark.parametrize(
    "later, says",
    [
        ([[9.0, 0.5, 0.25], [8.0, 0.4, 0.27]], "2 layers later, from where c >= 0.25"),
        ([[9.0, 0.27, 0.1], [8.0, 0.5, 0.4]], "1 layers later, from where c >= 0.27"),
        ([[9.0, 4.0], [8.0, 3.0]], "at no depth: the last layer alone has c >= 3"),
        ([[9.0], [8.0]], "of a later depth, whose layers have c < 0.323"),
        ([[0.4, 0.3]], "1 layers later, from where c >= 0.3; or at a smaller delta"),
    ],
)
def test_a_vacuous_recency_says_from_which_depth_it_could_decide(later, says):
    """The ceiling is c = sqrt(7/4) - 1 = 0.323 at delta = 0.2; one example below it suffices."""
    later = np.array(later)
    spikes = np.broadcast_to(np.eye(LENGTH)[None, :, -1:], (len(later), LENGTH, 1))
    spikes = jax.device_put(spikes)
    all_later = jax.device_put(later)
    certificate = criteria.recency_survival(spikes, spikes, all_later, REGIONS)
    first = criteria.recency_survival(spikes, spikes, all_later[:, 0], REGIONS)
    assert certificate.vacuous and certificate.decisive.startswith(says)
    assert certificate.inequalities == first.inequalities and certificate.vacuous == first.vacuous


def covectors_of(weights, energies):
    """One example whose terminal energies are chi^2 rho."""
    density = weights / GRID.weights
    return (density * jnp.sqrt(energies))[None, :, None]


def queried(weights, energies):
    return criteria.right_biased_queries(
        weights, energies, covectors_of(weights, energies), REGIONS
    )


def test_right_biased_queries():
    # `eq:right-biased-squared-query-mass`, `eq:finite-recency-energy-contrast`.
    energies = jnp.asarray(np.linspace(1.0, 1.5, LENGTH))
    holds = queried(last_token(LENGTH), energies)
    assert holds.holds and holds.concluded
    # Even queries: the least residual of tokens 17 to 20 against the largest of 5 to 16.
    rising = queried(teacher_forcing(LENGTH), energies)
    (inequality,) = rising.inequalities
    np.testing.assert_allclose(
        (inequality.greater, inequality.lesser), (energies[16], energies[15])
    )
    assert rising.holds and rising.concluded
    first = jnp.asarray(np.eye(LENGTH)[0])
    assert "no query asks" in queried(first, energies).vacuous
    assert "the last token" in queried(first, energies).decisive
    silent = queried(last_token(LENGTH), energies.at[-1].set(0.0))
    assert "no readout residual" in silent.vacuous and not silent.holds


def test_a_readout_that_mixes_tokens_is_refused():
    """One query at p = 0.6 through a band of 0.3: its covector is heavier in the middle."""
    regions = lim.boundary_regions(GRID, 0.4, "points")
    band = lim.BandReadout(random_states(4, 6, 5), 0.3)
    states = random_states(1, 1, LENGTH, 6)
    targets = random_labels(3, 1, LENGTH, 5)
    query = jnp.eye(LENGTH)[11]
    measured = eqx.filter_jit(terminal_covectors.readout_residual_energies)
    with pytest.raises(eqx.EquinoxRuntimeError, match="expected a tokenwise"):
        measured(band, states, targets, regions)
    # With energies from elsewhere the certificate sees that they are not this covector's.
    rho = measured(lim.LinearReadout(band.weight), states, targets, regions)
    loss = lambda x: lim.autoregressive_cross_entropy(band(x, GRID), targets[0], query)  # noqa: E731
    terminal = jax.jit(jax.grad(loss))(states[0])[None] / GRID.weights[None, :, None]
    certificate = criteria.right_biased_queries(query, rho, terminal, regions)
    assert not certificate.premises[1].holds and not certificate.holds
    assert not certificate.concluded
