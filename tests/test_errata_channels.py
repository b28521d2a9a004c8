"""What docs/errata.md says of the paper's influence, channels and remedies, in NumPy."""

from functools import cache
from pathlib import Path

import numpy as np

DELTA = 0.2
PAGE = Path(__file__).parents[1] / "docs" / "errata.md"


def regional_averages(values):
    """Over left, middle and right, at delta = 0.2, of a length that five divides."""
    size = len(values)
    return np.array([part.mean() for part in np.split(values, [size // 5, size - size // 5])])


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


@cache
def section_4():
    """The propagator, its layer and the Gramians of all 48 tokens, from their definitions."""
    size = 48
    width = 4
    depth = 12
    averaging = np.tril(np.ones((size, size))) / np.arange(1, size + 1)[:, None]
    mixing = [[1, 0.25, 0, 0], [0.15, 0.8, 0.2, 0], [0, 0.15, 0.6, 0.2], [0, 0, 0.2, 0.45]]
    layer = np.eye(size * width) + 2 / depth * np.kron(averaging, mixing)
    power = np.eye(size * width)
    gramians = np.zeros((size, width, width))
    for _ in range(depth):
        seen = power[-width:].reshape(width, size, width)  # the final token by all others
        gramians += np.einsum("oif,oig->ifg", seen, seen) / depth
        power = layer @ power
    return power, layer, gramians


def imbalance(energies):
    """`eq:simulation-imbalance-metrics`, of energies that the gates multiply by e^(2u)."""
    density = energies / energies.mean()
    return np.mean((density - 1) ** 2), density


def objective(gates, ungated, fidelity, strength):
    """The objective of Algorithms 1 and 3, and its gradient by hand."""
    energies = ungated * np.exp(2 * gates)
    value, density = imbalance(energies)
    # d density_i / d u_j = 2 density_i (delta_ij - density_j / L).
    slope = 4 * density * ((density - 1) - np.mean((density - 1) * density)) / len(gates)
    value = fidelity / 2 * np.mean(gates**2) + strength / 2 * value
    return value, fidelity * gates / len(gates) + strength / 2 * slope


def adam(ungated, fidelity, strength, rate):
    """The gates after 400 steps."""
    gates, first, second = np.zeros((3, len(ungated)))
    for step in range(1, 401):
        _, slope = objective(gates, ungated, fidelity, strength)
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        scale = np.sqrt(second / (1 - 0.999**step)) + 1e-8
        gates -= rate * first / (1 - 0.9**step) / scale
    return gates


def test_the_printed_runs_stop_where_400_steps_of_adam_do():
    """Objectives 0.1409 and 0.2238 with the printed Z, written apart."""
    # `eq:simulation-algorithm1-objective`, `eq:simulation-algorithm3-objective`,
    # `tab:simulation-remedy-results`.
    power, _, gramians = section_4()
    queries = 0.85 * np.eye(48)[-1] + 0.15 / 48
    adjoint = (power.T @ np.kron(queries, [1, 0.5, -0.3, 0.2])).reshape(48, 4)
    energies = (adjoint**2).sum(axis=1)
    traces = np.trace(gramians, axis1=1, axis2=2)
    for settings, ungated, stopped, total in (
        ((0.12, 15), energies, 0.1409, 9.7981),
        ((1, 0.5), traces, 0.2238, 1.7226),
    ):
        gates = adam(ungated, *settings, rate=0.04 if settings[1] == 15 else 0.03)
        np.testing.assert_allclose(objective(gates, ungated, *settings)[0], stopped, atol=5e-5)
        np.testing.assert_allclose((energies * np.exp(2 * gates)).sum(), total, atol=5e-5)


def test_the_printed_bias_of_the_probes_lies_within_its_sampling_range():
    """Nine of ten biases of 1,000 penalties with one probe lie from 38.44 to 62.27 %.

    The law of a penalty by 16 Gauss-Hermite nodes a feature, exact to the seventh moment, is laid
    on a lattice that keeps its mean, and convolved with itself 1,000 times.
    """
    # `eq:algorithm3-penalty-estimator-bias`.
    _, _, gramians = section_4()
    forms = gramians.reshape(48, 16)
    centred = forms - forms.mean(axis=0)
    square = centred.T @ centred / 48  # the penalty of traces z is z' (this) z
    true = np.eye(4).ravel() @ square @ np.eye(4).ravel()
    nodes, weights = np.polynomial.hermite_e.hermegauss(16)
    probes = np.stack(np.meshgrid(*[nodes] * 4), axis=-1).reshape(-1, 4)
    chances = np.prod(np.meshgrid(*[weights / weights.sum()] * 4), axis=0).ravel()
    outer = (probes[:, :, None] * probes[:, None, :]).reshape(-1, 16)
    penalties = (outer @ square * outer).sum(axis=1) / true
    mean = chances @ penalties
    deviation = np.sqrt(chances @ (penalties - mean) ** 2)
    np.testing.assert_allclose([mean - 1, deviation], [0.5008, 2.2927], atol=5e-5)
    cells = 2**18
    step = 0.02
    below, share = np.divmod(np.minimum(penalties / step, cells - 2), 1)
    below = below.astype(int)
    above = share * chances
    lattice = np.bincount(below, chances - above, cells) + np.bincount(below + 1, above, cells)
    law = np.cumsum(np.fft.irfft(np.fft.rfft(lattice) ** 1000, cells))
    biases = (np.arange(cells) + 0.5) * step / 1000 - 1
    low, high = np.interp([0.05, 0.95], law, biases)
    assert f"from {100 * low:.2f} to {100 * high:.2f} %, to 0.01" in PAGE.read_text(
        encoding="utf-8"
    )
    assert low < 0.440 < mean - 1 < high
    # Paper and truth lie 0.84 standard errors apart.
    np.testing.assert_allclose((mean - 1.440) / (deviation / np.sqrt(1000)), 0.84, atol=0.005)


def test_exact_gramians_of_all_tokens_are_sums_over_a_reverse_sweep_for_each_observed_number():
    """No probe is drawn: 12 layers of 4 observed features are 48 sweeps, each from one of them."""
    # `subsec:algorithm-complexity`.
    _, layer, gramians = section_4()
    sums = np.zeros_like(gramians)
    for depth in range(12):
        for feature in range(4):
            covector = np.zeros(48 * 4)
            covector[-4 + feature] = 1
            for _ in range(depth):
                covector = layer.T @ covector
            rows = covector.reshape(48, 4)
            sums += rows[:, :, None] * rows[:, None, :] / 12
    np.testing.assert_allclose(sums, gramians, rtol=1e-12)


def test_lim_is_bounded_below_by_its_stabiliser():
    """-1/((1 - 2 delta) eps_0), which a density of the middle alone attains."""
    # `eq:gd-lim-index`.
    generator = np.random.default_rng(0)
    for epsilon in (1e-8, 0.01, 0.5):
        bound = -1 / ((1 - 2 * DELTA) * epsilon)

        def lim(averages, epsilon=epsilon):
            boundary = min(averages[0], averages[2])
            return (boundary - averages[1]) / (boundary + epsilon)

        np.testing.assert_allclose(lim([0, 1 / 0.6, 0]), bound)
        shares = generator.dirichlet([0.05, 1, 0.05], 2000)  # of mass, many near (0, 1, 0)
        values = [lim(share / [0.2, 0.6, 0.2]) for share in shares]
        assert bound * (1 + 1e-12) <= min(values) < 0.9 * bound


def recency_condition(terminal, growth):
    """The sides of `eq:regional-recency-survival-condition` over examples (rows) of energies."""
    left, middle, right = regional_averages(terminal.mean(axis=0))
    amplified = np.mean((np.exp(2 * growth) - 1) * terminal.mean(axis=1))
    return right - middle, (1 / DELTA + 1 / (1 - 2 * DELTA)) * amplified


def test_recency_survives_a_common_growth_that_its_condition_cannot_bear():
    """F = lambda X scales P_T by e^(lambda T): every profile survives, the condition does not."""
    # `eq:regional-recency-survival-condition`, `eq:residual-stability-bound`.
    terminal = np.repeat([0, 0, 0, 0, 1.0], 4)  # all on the right: the best case
    for growth, holds in ((0.279, True), (0.281, False), (1, False)):
        initial = np.linalg.matrix_power((1 + growth / 5000) * np.eye(20), 5000) @ terminal
        # The bound on P_0 - P_T is attained, up to the steps of Euler's product.
        change = np.linalg.norm(initial - terminal) / np.linalg.norm(terminal)
        np.testing.assert_allclose(change, np.expm1(growth), rtol=1e-3)
        _, middle, right = regional_averages(initial**2 / np.mean(initial**2))
        np.testing.assert_allclose([middle, right], [0, 5], rtol=1e-12)
        greater, lesser = recency_condition(terminal[None] ** 2, np.array([growth]))
        assert bool(greater > lesser) is holds


def test_the_ceiling_of_recency_binds_if_every_example_is_above_it():
    """One of two examples may be: its terminal energy is small."""
    spike = np.repeat([0, 0, 0, 0, 1.0], 4)
    greater, lesser = recency_condition(np.array([1e-4 * spike, spike]), np.array([2, 0.1]))
    assert greater > 3 * lesser
    greater, lesser = recency_condition(np.array([1e-4 * spike, spike]), np.array([2, 0.281]))
    assert greater < lesser


def test_a_tokenwise_block_alone_loses_the_middle_under_an_even_loss():
    """Neither cone nor right-biased readout: the local channel makes both boundary advantages.

    At width two the states are (d, -d), and the block's slope is largest where d is small.
    """
    # `prop:primacy-noncancellation`, `prop:regional-recency-persistence`, `sec:conclusion`.
    positions = np.arange(1, 21) / 20
    d = 2 * (1 - (2 * positions - 1) ** 2)
    terminal = np.tile([1.0, -1.0], (20, 1))

    def network(x):
        """One layer of `eq:mlp-block`, without attention: P_cone is 0, and so is every Gamma."""
        centred = x - x.mean(axis=-1, keepdims=True)
        norm = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 0.5)
        return x + np.tanh(norm)

    states = np.stack([d, -d], axis=1)
    steps = states + 1e-30j * np.eye(2)[:, None]
    jacobian = network(steps).imag / 1e-30  # moved feature, token, feature
    initial = np.einsum("fpg,pg->pf", jacobian, terminal)
    energies = (initial**2).sum(axis=1)
    averages = regional_averages(energies / energies.mean())
    np.testing.assert_allclose(averages, [1.14, 0.67, 1.86], atol=5e-3)


def test_even_queries_have_no_even_profile_unless_their_residuals_are_alike():
    """The second counterexample with states that differ: the identity, queries 1/L, one label."""
    # `subsec:counterexamples`.
    size = 20
    step = 1e-6
    states = np.stack([np.zeros(size), np.linspace(1, -1, size)], axis=1)

    def loss(logits):
        return -np.mean(np.log(softmax(logits)[:, 0]))

    adjoint = np.zeros((size, 2))
    for index in np.ndindex(size, 2):
        move = np.zeros((size, 2))
        move[index] = step
        adjoint[index] = size * (loss(states + move) - loss(states - move)) / (2 * step)
    energies = (adjoint**2).sum(axis=1)
    averages = regional_averages(energies / energies.mean())
    np.testing.assert_allclose(averages, [1.80, 0.95, 0.34], atol=5e-3)
    np.testing.assert_allclose(energies, 2 / (1 + np.exp(-states[:, 1])) ** 2, rtol=1e-8)


def test_a_local_readout_of_right_hand_queries_may_leave_nothing_on_the_right():
    """The logit at i reads X(i - 1), and the first token of the right region is the query."""
    # `eq:local-readout-finite`, `eq:local-readout-adjoint`, `eq:local-readout-support`.
    size = 20
    queries = np.eye(20)[15]
    positions = np.arange(1, size + 1)
    right = positions >= 16
    middle = (positions >= 4) & (positions < 16)
    assert queries[right].sum() == 1
    readout = np.eye(size, k=-1)  # C_{i,i-1} = I, r_H = 1
    residual = queries[:, None] * [0.3, -0.3]
    adjoint = readout.T @ residual
    assert not adjoint[right].any() and adjoint[middle].any()
    reach = np.abs(positions[:, None] - positions[queries > 0]).min(axis=1)
    assert (reach[adjoint.any(axis=1)] == 1).all(), "within r_H, as the support says"


def test_importance_weights_need_the_density_that_they_divide_by():
    """tau = 1, pi = 1/2 + p, r = 1 + p: the integral of w r is 1 + log(3)/2, of w r pi 3/2."""
    # `eq:positional-importance-weight`, `eq:weighted-risk-change-of-measure`.
    nodes, weights = np.polynomial.legendre.leggauss(20)
    p = (nodes + 1) / 2
    weights = weights / 2
    density = 1 / 2 + p
    risk = 1 + p
    weight = 1 / density
    np.testing.assert_allclose(weights @ density, 1)
    np.testing.assert_allclose(weights @ (weight * risk), 1 + np.log(3) / 2)
    np.testing.assert_allclose(weights @ (weight * risk * density), 3 / 2)
