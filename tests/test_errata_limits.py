"""What docs/errata.md says of the paper's limits and derivatives, in NumPy written apart."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from reference.numpy_network import layer_norm

LIMITS = (Path(__file__).parent.parent / "docs" / "limits.md").read_text(encoding="utf-8")
CELL_NODES, CELL_WEIGHTS = np.polynomial.legendre.leggauss(3)


def cell_quadrature(edges):
    """Gauss nodes and weights of each cell between `edges`: exact to order 6 of its length."""
    lengths = np.diff(edges)[:, None]
    return edges[:-1, None] + lengths * (CELL_NODES + 1) / 2, lengths * CELL_WEIGHTS / 2


def mean_square_error(size, values, exact):
    """The L^2 distance between a field that is one value on each token's cell and `exact`."""
    nodes, weights = cell_quadrature(np.arange(size + 1) / size)
    return np.sqrt((weights * (values[:, None] - exact(nodes)) ** 2).sum())


def local_slopes(sizes, errors):
    """The order between each length and the next."""
    return -np.diff(np.log(errors)) / np.diff(np.log(sizes))


# Two features, (d, -d): what the paper's layer norm and a tanh block make of d.
ETA = 0.5


def block(d):
    """`eq:mlp-block` after `eq:smooth-layernorm` at width two, whose variance is d^2."""
    return np.tanh(2 * d / np.sqrt(d**2 + ETA))


def block_slope(d):
    """The derivative of `block`, by a complex step."""
    return block(d + 1e-30j).imag / 1e-30


def test_controls_that_never_converge_in_l1_may_have_trajectories_that_do():
    """1 + 2 (-1)^k is at distance 2 from 1 at every depth, and its trajectory errs like 1/M."""
    # `eq:control-l1-convergence`, `thm:resnet-ode`.
    depths = np.array([64, 128, 256, 512, 1024])

    def last_state(controls):
        d = 0.3
        for control in controls:
            d += control * block(d) / len(controls)
        return d

    def distance(controls):
        return np.abs(controls - 1).mean()

    # Richardson's value of the flow whose control is 1, from two depths.
    fine = [last_state(np.ones(size)) for size in (4000, 8000)]
    limit = 2 * fine[1] - fine[0]
    alternating = [1 + 2 * (-1.0) ** np.arange(depth) for depth in depths]
    assert [distance(controls) for controls in alternating] == [2] * len(depths)
    errors = np.abs([last_state(controls) - limit for controls in alternating])
    np.testing.assert_allclose(local_slopes(depths, errors), 1, atol=0.02)
    np.testing.assert_allclose((errors * depths)[2:], 0.842, rtol=0.01)
    # A control as far away that does not alternate goes elsewhere.
    assert abs(last_state(np.full(1024, 3.0)) - limit) > 1


def logarithmic_integrals(polynomial, edges):
    """The integrals of a polynomial in log(1/q) over the cells between `edges`, from 0 on."""
    # The primitive of y^n is q (y^n + n y^(n-1) + n (n-1) y^(n-2) + ...), y = log(1/q).
    primitive = np.zeros(len(polynomial))
    for power, coefficient in enumerate(polynomial):
        term = coefficient
        for lower in range(power, -1, -1):
            primitive[lower] += term
            term *= lower
    y = -np.log(edges[1:])
    values = edges[1:] * np.polynomial.polynomial.polyval(y, primitive)
    return np.diff(np.concatenate([[0], values]))


ADJOINTS = {1: np.array([1, 1.0]), 2: np.array([1, 2, 0.5])}


def averaged_adjoint(size, layers):
    """P_0 of one or two layers of causal averaging under an even loss, on tokens.

    In the continuum it is 1 + y and 1 + 2 y + y^2/2, y = log(1/q); on tokens the sums h of 1/i
    and s of 1/i^2 from the token on make it 1 + h and 1 + 2 h + (h^2 + s)/2.
    """
    inverse = 1 / np.arange(1, size + 1)
    h, s = (np.cumsum(terms[::-1])[::-1] for terms in (inverse, inverse**2))
    return 1 + h if layers == 1 else 1 + 2 * h + (h**2 + s) / 2


def squared(layers):
    return np.polynomial.polynomial.polymul(ADJOINTS[layers], ADJOINTS[layers])


def mean_square(size, layers):
    """The error of P_0 in L^2, by the integrals of P_0 over cells and of its square."""
    adjoint = averaged_adjoint(size, layers)
    means = logarithmic_integrals(ADJOINTS[layers], np.arange(size + 1) / size)
    (square,) = logarithmic_integrals(squared(layers), np.array([0, 1.0]))
    return np.sqrt(np.sum(adjoint**2 / size - 2 * adjoint * means) + square)


def of_density(size, layers):
    """That of the normalised density in L^1, by sixteen midpoints in a cell."""
    energies = averaged_adjoint(size, layers) ** 2
    (total,) = logarithmic_integrals(squared(layers), np.array([0, 1.0]))
    y = -np.log((np.arange(16 * size) + 0.5) / (16 * size))
    exact = np.polynomial.polynomial.polyval(y, squared(layers)) / total
    return np.abs(np.repeat(energies / energies.mean(), 16) - exact).mean()


def of_averages(size, layers):
    """The largest error of the density's three averages at delta = 0.2."""
    energies = averaged_adjoint(size, layers) ** 2
    averages = [part.mean() for part in np.split(energies, [size // 5, size - size // 5])]
    exact = logarithmic_integrals(squared(layers), np.array([0, 0.2, 0.8, 1])) / [0.2, 0.6, 0.2]
    (total,) = logarithmic_integrals(squared(layers), np.array([0, 1.0]))
    return np.abs(np.divide(averages, energies.mean()) - exact / total).max()


ERRORS = {
    "P_0 in the mean square": mean_square,
    "density": of_density,
    "regional averages": of_averages,
}


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ERRORS)
def test_powers_of_a_logarithm_slow_the_input_adjoint(name, layers):
    """The slopes of docs/limits.md from 100, 800, 10,000 and 500,000 tokens to their doubles."""
    # `eq:terminal-adjoint-discrete-continuum-error`.
    row = re.search(rf"^\| {name}, {layers} layers? \|(.*)\|$", LIMITS, re.MULTILINE)
    assert row is not None
    printed = [float(cell) for cell in row[1].split("|") if cell.strip()]
    assert len(printed) >= 3
    for size, slope in zip((100, 800, 10_000, 500_000), printed, strict=False):
        errors = [ERRORS[name](length, layers) for length in (size, 2 * size)]
        np.testing.assert_allclose(local_slopes([1, 2], errors), slope, atol=6e-4)


def test_the_error_of_a_left_average_is_a_cubic_in_the_logarithm():
    """After two layers L times the error of the left integral is -(log L)^3/3 and lower powers.

    Beside h is s, about 1/j at token j, which adds (log L)^3/6; the sum over tokens of h less
    the cell's mean of y is -1/2, and the derivative of P_0^2 there (log L)^3.
    """
    sizes = np.array([5_000, 10_000, 100_000, 1_000_000])
    (exact,) = logarithmic_integrals(squared(2), np.array([0, 0.2]))
    errors = [(averaged_adjoint(size, 2)[: size // 5] ** 2).sum() / size - exact for size in sizes]
    cubic = np.polyfit(np.log(sizes), sizes * errors, 3)
    np.testing.assert_allclose(cubic[0], -1 / 3, rtol=2e-3)
    # It is no fit of four numbers only: it foretells a fifth.
    estimated_time = np.polyval(cubic, np.log(500_000)) / 500_000
    error = (averaged_adjoint(500_000, 2)[:100_000] ** 2).sum() / 500_000 - exact
    np.testing.assert_allclose(estimated_time, error, rtol=1e-5)


@pytest.mark.slow
def test_the_input_adjoint_loses_a_logarithm_by_layer_in_l2():
    """Error times sqrt L: 1.1228 after one layer, and 1.1228 log L more after the second."""
    sizes = np.array([100_000, 200_000])
    errors = {
        layers: np.array([mean_square(size, layers) for size in sizes]) * np.sqrt(sizes)
        for layers in (1, 2)
    }
    np.testing.assert_allclose(errors[1], 1.1228, atol=1e-4)
    np.testing.assert_allclose(np.diff(errors[2]) / np.log(2), 1.1228, rtol=5e-3)


def residual(p):
    return np.cos(3 * p) + p


@pytest.mark.parametrize("kind, order, constant", [("positions", 1, 0.81), ("tokens", 0.5, 0.624)])
def test_a_cut_off_window_keeps_the_rate_where_its_continuum_is_cut_off_alike(
    kind, order, constant
):
    """A hat of width 0.2 against its own integral; one of 8 tokens, against the residual.

    The latter misses 28, 21, 15, 10, 6, 3 and 1 of 64 at the first tokens, where the residual
    is 1; at the last it is 0.01.
    """
    # `rem:linear-readout-consistency`, `eq:readout-adjoint-consistency`.
    nodes, weights = np.polynomial.legendre.leggauss(12)
    width = 0.2
    sizes = np.array([100, 200, 400, 800])

    def windowed(q):
        """The integral over p in (0, 1) of hat((p - q)/width)/width times the residual."""
        total = np.zeros(q.shape)
        for low, high in (np.maximum(q - width, 0), q), (q, np.minimum(q + width, 1)):
            p = low[..., None] + (high - low)[..., None] * (nodes + 1) / 2
            hats = (1 - np.abs(p - q[..., None]) / width) / width
            total += (high - low) / 2 * (hats * residual(p) @ weights)
        return total

    def error(size):
        p = np.arange(1, size + 1) / size
        bandwidth = width if kind == "positions" else 8 / size
        hats = np.maximum(1 - np.abs(p[:, None] - p) / bandwidth, 0) / bandwidth
        exact = windowed if kind == "positions" else residual
        return mean_square_error(size, hats @ residual(p) / size, exact)

    errors = np.array([error(size) for size in sizes])
    np.testing.assert_allclose(local_slopes(sizes, errors), order, atol=0.05)
    np.testing.assert_allclose(errors[-1] * sizes[-1] ** order, constant, rtol=0.01)


def test_a_jump_of_the_labels_costs_the_terminal_adjoint_half_an_order():
    """Of the cell that the jump divides a share f is wrong: sqrt(f/L) times the jump's size.

    Tokenwise logits (0, sin p); one-hot labels that change at 1/3, a jump of sqrt 2. The loss
    keeps its first order, and the adjoint does on all other cells.
    """
    # `thm:loss-adjoint-continuum-error`, `eq:terminal-adjoint-discrete-continuum-error`.
    sizes = np.array([100, 200, 400, 800])

    def probability(p):
        return 1 / (1 + np.exp(-np.sin(p)))

    def errors(size):
        edges = np.sort(np.append(np.arange(size + 1) / size, 1 / 3))
        p, weights = cell_quadrature(edges)
        token = np.ceil(p.mean(axis=1, keepdims=True) * size) / size
        # Both entries of the residual are one another's negatives.
        gap = (probability(token) - (token > 1 / 3)) - (probability(p) - (p > 1 / 3))
        squares = (2 * weights * gap**2).sum(axis=1)
        divided = np.ceil(size / 3) == np.round(token[:, 0] * size)
        loss = [
            -np.where(at > 1 / 3, np.log(probability(at)), np.log(1 - probability(at)))
            for at in (token, p)
        ]
        return (
            np.sqrt(squares.sum()),
            np.sqrt(squares[~divided].sum()),
            abs((weights * (loss[0] - loss[1])).sum()),
        )

    whole, elsewhere, loss = np.transpose([errors(size) for size in sizes])
    share = np.where(sizes % 3 == 1, 1 / 3, 2 / 3)
    np.testing.assert_allclose(whole * np.sqrt(sizes), np.sqrt(2 * share), rtol=5e-2)
    np.testing.assert_allclose(local_slopes(sizes, elsewhere), 1, atol=0.02)
    assert (loss * sizes).max() < 1


def test_the_theorem_of_the_loss_is_silent_on_the_networks_own_states():
    """Averaging with value -2 takes x = p to 0 in the continuum, and to -1/L on tokens.

    Labels and terminal field are constant, so that L_g = 0 and the printed bound is 0.
    """
    # `thm:loss-adjoint-continuum-error`, `eq:cross-entropy-discrete-continuum-error`.
    for size in (50, 100, 200):
        states = np.arange(1, size + 1) / size
        terminal = states - 2 * np.cumsum(states) / np.arange(1, size + 1)
        np.testing.assert_allclose(terminal, -1 / size, rtol=1e-10)
        # Logits (0, x), the label first: the loss log(1 + e^x), the residual 1/(1 + e^-x).
        loss = np.log1p(np.exp(terminal)).mean() - np.log(2)
        adjoint = np.mean(1 / (1 + np.exp(-terminal))) - 1 / 2
        np.testing.assert_allclose(
            [float(loss) * size, float(adjoint) * size], [-1 / 2, -1 / 4], rtol=5e-3
        )


def test_blocks_are_differentiable_at_finite_length_and_in_the_supremum():
    """What `prop:influence-differentiability` supposes in L^2, where it does not hold."""
    states = np.linspace(-0.4, 0.4, 11)

    def remainder(bump):
        return block(states + bump) - block(states) - block_slope(states) * bump

    # One token's bump of size 1 tends to 0 in L^2, its remainder is the same share at every L.
    one = 1.0 * (np.arange(11) == 7)
    share = np.linalg.norm(remainder(one)) / np.linalg.norm(one)
    # The factor L^-1/2 of both norms cancels.
    np.testing.assert_allclose(share, 1.65, atol=5e-3)
    # At one length, or in the supremum, it falls with the bump.
    for norm in (2, np.inf):
        shares = [
            np.linalg.norm(remainder(size * one), norm) / np.linalg.norm(size * one, norm)
            for size in (1e-2, 5e-3)
        ]
        np.testing.assert_allclose(shares[0] / shares[1], 2, rtol=0.02)
        assert shares[0] < share / 20


def test_the_fields_constants_hold_in_every_ball():
    """Layer norm is bounded and Lipschitz everywhere: C_F and M_R of all radii are one."""
    # `prop:transformer-lipschitz`, `eq:transformer-field-state-lipschitz`,
    # `eq:transformer-field-uniform-bound`, `eq:preln-uniform-normalized-bound`.
    generator = np.random.default_rng(0)
    query, key, value, inner, outer = generator.standard_normal((5, 4, 4)) / 2
    x, move = generator.standard_normal((2, 12, 4))
    mask = np.tril(np.ones((12, 12)))

    def field(x):
        centred = x - x.mean(axis=1, keepdims=True)
        u = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + ETA)
        scores = mask * np.exp((u @ query.T) @ (u @ key.T).T / 2)
        attention = scores / scores.sum(axis=1, keepdims=True) @ u @ value.T
        return attention + np.tanh(u @ inner.T) @ outer.T

    def slope(x):
        return np.linalg.norm(field(x + 1e-30j * move).imag / 1e-30) / np.linalg.norm(move)

    def largest(matrix):
        return np.linalg.norm(matrix, 2)

    # The norm of LN is at most 2 at width 4, so that of a token's field at most this.
    bound = 2 * largest(value) + 2 * largest(inner) * largest(outer)
    norms = [np.linalg.norm(field(radius * x), axis=1).max() for radius in (1e-2, 1, 1e2, 1e6)]
    assert norms[0] < 0.1 * norms[1] and max(norms) < bound
    np.testing.assert_allclose(norms[2], norms[3], rtol=1e-3)
    # The slope is largest where states are small, and falls like 1/R.
    slopes = np.array([slope(radius * x) for radius in (1e-6, 1, 1e2, 1e4, 1e6)])
    assert slopes.max() == slopes[0]
    np.testing.assert_allclose(slopes[2:-1] / slopes[3:], 100, rtol=0.01)


def test_layer_norm_of_one_feature_is_its_shift():
    """`eq:smooth-layernorm` at width one: a formula without a singularity, and constant."""
    norm = SimpleNamespace(scale=[3.0], shift=[0.5], norm_eps=0.1)
    states = np.array([[-2.0], [0.0], [7.0]])
    np.testing.assert_array_equal(layer_norm(norm, states), 0.5)
    two = SimpleNamespace(scale=[3.0, 3.0], shift=[0.5, 0.5], norm_eps=0.1)
    assert np.ptp(layer_norm(two, np.hstack([states, -states]))[:, 0]) > 1


def test_second_moments_make_the_influence_differentiable():
    """Labels of size 2^k with chance 8^-k: E s^2 is 7/4, E s^4 infinite, and I has its slope.

    One feature x = 1, logits (0, w x), the label s e_1: P_0 = s w / (1 + e^(-w x)).
    """
    # `eq:data-fourth-moment`, `eq:influence-parameter-gradient`.
    sizes = 2.0 ** np.arange(60)
    chances = 7 / 8 / sizes**3
    np.testing.assert_allclose(chances.sum(), 1)

    def adjoint(w):
        return sizes * w / (1 + np.exp(-w))

    def influence(w):
        return chances @ adjoint(w) ** 2

    w = 0.7
    step = 1e-5
    slope = adjoint(w + 1e-30j).imag / 1e-30
    expected = 2 * chances @ (slope * adjoint(w))
    difference = (influence(w + step) - influence(w - step)) / (2 * step)
    np.testing.assert_allclose(difference, expected, rtol=1e-8)
    np.testing.assert_allclose(chances @ sizes**2, 7 / 4)
    fourths = np.cumsum(chances * sizes**4)
    assert fourths[-1] > 1e8 * fourths[30]  # it doubles with every term
    # The bound: the mean of |<D P_0, P_0>| needs no more than the means of both squares.
    assert expected <= chances @ (slope**2 + adjoint(w) ** 2)


def test_the_first_variation_of_tokens_is_short_by_the_length():
    """P_T of `eq:terminal-adjoint-softmax` is Euclidean, the pairing of the state space is 1/L."""
    # `eq:first-variation`.
    size = 16
    width = 3
    step = 1e-5
    generator = np.random.default_rng(0)
    x, move, mixing = (generator.standard_normal(s) for s in [(size, width)] * 2 + [(width, 4)])
    labels = np.eye(4)[generator.integers(0, 4, size)]
    propagator = np.eye(size) + np.tril(np.ones((size, size))) / np.arange(1, size + 1)[:, None]

    def softmax(logits):
        return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    def loss(x):
        return -np.mean(np.sum(labels * np.log(softmax(propagator @ x @ mixing)), axis=1))

    terminal = (softmax(propagator @ x @ mixing) - labels) @ mixing.T / size
    initial = propagator.T @ terminal
    variation = (loss(x + step * move) - loss(x - step * move)) / (2 * step)
    np.testing.assert_allclose(variation / np.mean(np.sum(initial * move, axis=1)), 16, rtol=1e-6)
    np.testing.assert_allclose(variation / np.sum(initial * move), 1, rtol=1e-6)
