"""Readouts, query weights and cross-entropies."""

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_network
from reference.as_users import temporary_bytes
from reference.networks import random_labels, random_states
from scipy.special import log_softmax

import lim_jax as lim
from lim_jax.adjoint.sweep import terminal_adjoint
from lim_jax.loss import (
    LocalReadout,
    contrast_loss,
    last_token,
    logit_residual,
    margin_loss,
    positionwise_cross_entropy,
    teacher_forcing,
)
from lim_jax.loss.losses import Slices, checked_queries, sliced_cross_entropy, sliced_margin_loss
from lim_jax.loss.readouts import hat

GRID = lim.token_grid(12)
WEIGHT = random_states(4, 6, 5)
EDGES = ("zero", "renormalised", "reflecting")
cross_entropy = jax.jit(lim.cross_entropy)
autoregressive = jax.jit(lim.autoregressive_cross_entropy)


@jax.jit
def read(readout, x, grid=GRID):
    return readout(x, grid)


@jax.jit
def band_matrix(band, grid=GRID):
    return band.matrix(grid)


def eye(size):
    return jax.device_put(np.eye(size))


def test_the_linear_readout_is_a_product():
    # `eq:linear-readout-example`.
    x = random_states()
    bias = jax.device_put(np.arange(5.0))
    expected = np.asarray(x) @ np.asarray(WEIGHT)
    # Six terms may cancel, and are rounded as often on either side; and so is a bias of 4 at most.
    rounding = 8 * np.finfo(float).eps * ((np.abs(x) @ np.abs(WEIGHT)).max() + 4)
    np.testing.assert_allclose(read(lim.LinearReadout(WEIGHT), x), expected, rtol=0, atol=rounding)
    np.testing.assert_allclose(
        read(lim.LinearReadout(WEIGHT, bias), x), expected + np.arange(5), rtol=0, atol=rounding
    )
    drawn = jax.eval_shape(lambda: lim.LinearReadout.init(6, 9, key=jax.random.key(0)))
    assert jax.eval_shape(read, drawn, x).shape == (12, 9)


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("bandwidth", [1 / 12, 0.3, 1.0])
def test_bands_are_the_loops(edges, bandwidth):
    # `eq:local-readout-finite`.
    band = lim.BandReadout(eye(6), bandwidth, edges)
    expected = numpy_network.band_average(np.asarray(random_states()), bandwidth, edges)
    np.testing.assert_allclose(read(band, random_states()), expected, rtol=1e-12, atol=1e-14)


def test_only_the_reflecting_band_sums_right_both_ways():
    sums = {
        edges: [matrix.sum(axis=1), matrix.sum(axis=0)]
        for edges in EDGES
        for matrix in [np.asarray(band_matrix(lim.BandReadout(eye(1), 0.25, edges)))]
    }
    interior = slice(3, -3)
    for rows, _ in sums.values():
        np.testing.assert_allclose(rows[interior], 1, rtol=1e-12)
    np.testing.assert_allclose(sums["reflecting"], 1, rtol=1e-12)
    np.testing.assert_allclose(sums["renormalised"][0], 1, rtol=1e-12)
    assert abs(sums["renormalised"][1][0] - 1) > 0.1
    assert sums["zero"][0][0] < 0.8 and sums["zero"][1][0] < 0.8


@pytest.mark.parametrize("make", [lim.midpoint_grid, lim.graded_grid])
def test_bands_average_smooth_fields_on_every_grid(make):
    """Away from the ends the hat's average of cos(wp) is cos(wp) sinc^2(wb/2)."""
    grid = make(400)
    frequency = 3.0
    bandwidth = 0.2
    band = lim.BandReadout(eye(1), bandwidth)
    nodes = np.asarray(grid.nodes)
    averages = np.asarray(read(band, np.cos(frequency * nodes)[:, None], grid))[:, 0]
    factor = np.sinc(frequency * bandwidth / 2 / np.pi) ** 2
    error = np.abs(averages - factor * np.cos(frequency * nodes))
    assert error[(nodes > bandwidth) & (nodes < 1 - bandwidth)].max() < 1e-3


def test_the_hat_has_integral_one():
    middles = (np.arange(2000.0) + 0.5) / 1000 - 1
    np.testing.assert_allclose(np.asarray(jax.jit(hat)(middles)).mean() * 2, 1.0, rtol=1e-12)


def test_a_tokenwise_readout_may_have_parameters():
    x = random_states()
    logits = jax.jit(
        lambda x, weight: lim.TokenwiseReadout(lambda z: jnp.tanh(z @ weight))(x, GRID)
    )(x, WEIGHT)
    np.testing.assert_allclose(logits, np.tanh(np.asarray(x) @ np.asarray(WEIGHT)), rtol=1e-12)


def test_cross_entropies_are_their_sums():
    # `eq:discrete-cross-entropy`, `eq:discrete-weighted-cross-entropy`,
    # `eq:weighted-cross-entropy`, `eq:autoregressive-terminal-loss`, `eq:continuum-cross-entropy`.
    logits = random_states(1, 12, 5)
    labels = random_labels()
    surprise = -(np.asarray(labels) * log_softmax(np.asarray(logits), axis=1)).sum(axis=1)
    weights = np.arange(12.0)
    graded = lim.graded_grid(12)
    panels = lim.gauss_grid(8)
    mixed = np.asarray(panels.nodes)[:, None] * np.array([1, -1]) + np.array([0, 1])
    for value, expected in (
        (cross_entropy(logits, labels, GRID), surprise.mean()),
        (cross_entropy(logits, labels, GRID, weights), np.mean(weights * surprise)),
        (cross_entropy(logits, labels, graded), np.sum(np.asarray(graded.weights) * surprise)),
        (
            cross_entropy(logits, labels, graded, weights),
            np.sum(np.asarray(graded.weights) * weights * surprise),
        ),
        (autoregressive(logits, labels, weights / 66), np.sum(weights / 66 * surprise)),
        # The continuum: still logits and labels (p, 1 - p) have a density that is linear in p.
        (cross_entropy(np.full((8, 2), [1, -0.5]), mixed, panels), np.log(np.exp(1.5) + 1) - 0.75),
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-13)


def test_teacher_forcing_has_both_conventions():
    # `eq:autoregressive-terminal-loss`.
    tokens = np.array([3, 1, 4, 1, 0, 2])  # five observed, and a continuation
    logits = random_states(1, 5, 5)
    surprise = -log_softmax(np.asarray(logits), axis=1)[np.arange(5), tokens[1:]]

    @jax.jit
    def losses(logits):
        targets = jax.nn.one_hot(tokens[1:], 5)
        return [
            lim.autoregressive_cross_entropy(logits, targets, weights)
            for weights in (
                teacher_forcing(5),
                teacher_forcing(5, continuation=False),
                last_token(5),
                jnp.array([0.5, 0.0, 0.0, 0.5, 0.0]),
            )
        ]

    expected = surprise.mean(), surprise[:4].mean(), surprise[4], surprise[[0, 3]].mean()
    np.testing.assert_allclose(losses(logits), expected, rtol=1e-13)


def test_class_numbers_are_rows_of_one():
    """Losses, gradients and residuals, in NumPy, on unequal cells and under unequal weights."""
    grid = lim.graded_grid(7)
    logits = random_states(1, 7, 5)
    classes = np.array([3, 0, 4, 4, 1, 0, 2])
    weights = jnp.arange(7.0)

    @jax.jit
    @jax.value_and_grad
    def loss(logits, classes):
        return lim.cross_entropy(logits, classes, grid, weights)

    value, gradient = jax.tree.map(np.asarray, loss(logits, classes))
    surprise = -log_softmax(np.asarray(logits), axis=1)
    shares = np.asarray(grid.weights * weights)
    np.testing.assert_allclose(value, shares @ surprise[np.arange(7), classes], rtol=1e-13)
    rows = np.exp(-surprise) - np.eye(5)[classes]
    np.testing.assert_allclose(gradient, shares[:, None] * rows, atol=1e-14)
    np.testing.assert_allclose(logit_residual(logits, jnp.asarray(classes)), rows, atol=1e-14)


def test_class_numbers_outside_the_vocabulary_are_refused_where_they_count():
    logits = random_states(1, 4, 5)
    weights = jnp.array([0.0, 0.5, 0.5, 0.0])
    loss = eqx.filter_jit(jax.value_and_grad(lim.autoregressive_cross_entropy))
    padded, others = (
        loss(logits, jnp.array([c, 1, 4, d]), weights) for c, d in ((-100, 5), (0, 0))
    )
    chex.assert_trees_all_close(padded, others, rtol=1e-15)
    for wrong in (5, -1):
        with pytest.raises(eqx.EquinoxRuntimeError, match="class numbers from 0 to 4"):
            jax.block_until_ready(loss(logits, jnp.array([0, wrong, 4, 0]), weights))


@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_class_numbers_may_be_of_an_integer_type_that_cannot_hold_the_last_class(dtype):
    """Of 300 equally likely classes: log 300, log odds 299, residuals of 1/300 and -299/300."""
    numbers = jnp.array([1, 2, 100], dtype)
    logits = jnp.zeros((3, 300))
    losses = positionwise_cross_entropy(logits, numbers)
    np.testing.assert_allclose(losses, np.log(300), rtol=1e-14)
    np.testing.assert_allclose(cross_entropy(logits, numbers, lim.token_grid(3)), np.log(300))
    odds = margin_loss(logits, numbers, last_token(3))
    np.testing.assert_allclose(odds, np.log(299), rtol=1e-14)
    sliced = sliced_margin_loss(
        Slices(lambda at: logits[:, :100], 100, 300, "float64"), numbers, last_token(3)
    )
    np.testing.assert_allclose(sliced, np.log(299), rtol=1e-14)
    expected = 1 / 300 - np.eye(300)[[1, 2, 100]]
    np.testing.assert_allclose(logit_residual(logits, numbers), expected, rtol=1e-12)


@eqx.filter_jit
@jax.value_and_grad
def margins(logits, answers, weights):
    return margin_loss(logits, answers, weights)


def test_the_margin_loss_is_minus_the_log_odds_of_the_answers():
    """By probabilities, in NumPy; its derivative is the others' softmax, and -1 at the answer."""
    logits = random_states(1, 7, 5)
    answers = np.array([3, 0, 4, 4, 1, -100, 2])
    weights = np.array([0.1, 0.2, 0.05, 0.3, 0.25, 0.0, 0.1])
    value, gradient = jax.tree.map(np.asarray, margins(logits, answers, jax.device_put(weights)))
    likely = np.exp(log_softmax(np.asarray(logits), axis=1))
    chosen = np.eye(5)[answers % 5]
    odds = np.log(likely / (1 - likely))[chosen > 0]
    np.testing.assert_allclose(value, -weights @ odds, rtol=1e-12)
    others = likely * (1 - chosen) / (likely * (1 - chosen)).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(gradient, weights[:, None] * (others - chosen), atol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_dominating_answer_and_masked_classes_leave_the_margin_finite(dtype):
    """Where the cross-entropy is zero to the last digit and has no gradient left."""
    logits = np.array([[300.0, 1.0, -np.inf, 0.5], [-200.0, 4.0, 4.0, -np.inf]], dtype)
    answers = np.array([0, 0])
    weights = np.array([0.25, 0.75], dtype)
    value, gradient = jax.tree.map(
        np.asarray, margins(*map(jax.device_put, (logits, answers, weights)))
    )
    assert value.dtype == gradient.dtype == dtype
    expected = 0.25 * (np.log(np.exp(1) + np.exp(0.5)) - 300) + 0.75 * (4 + np.log(2) + 200)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    share = 1 / (1 + np.exp(-0.5))
    rows = [[-0.25, 0.25 * share, 0, 0.25 * (1 - share)], [-0.75, 0.375, 0.375, 0]]
    np.testing.assert_allclose(gradient, rows, atol=1e-6)


def test_a_margin_is_one_answers_over_at_least_one_other_class(as_users_run):
    weights = jnp.array([0.5, 0.5])
    logits = random_states(1, 2, 3)
    with pytest.raises(ValueError, match="targets: got an array of float64.*class numbers"):
        margin_loss(logits, jax.nn.one_hot(jnp.array([0, 1]), 3), weights)
    with pytest.raises(ValueError, match="logits: got 1, expected at least two classes"):
        margin_loss(logits[:, :1], jnp.array([0, 0]), weights)
    with pytest.raises(eqx.EquinoxRuntimeError, match="class numbers from 0 to 2"):
        jax.block_until_ready(margins(logits, jnp.array([0, 3]), weights))
    with pytest.raises(eqx.EquinoxRuntimeError, match="weights that sum to one"):
        jax.block_until_ready(margins(logits, jnp.array([0, 1]), 2 * weights))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, np.float32, np.float64])
def test_query_weights_of_few_bits_sum_to_one_as_others_do(dtype, as_users_run):
    """Else weights whose sum is 5 % too large passed in bfloat16, and so did a loss of 1.05 times
    the mean; weights that are equal, or divided by their sum, are right in any precision."""
    for length in (3, 100, 4999):
        equal = teacher_forcing(length).astype(dtype)
        shares = jnp.linspace(0.5, 1.5, length).astype(dtype)
        for weights in (equal, shares / shares.sum()):
            np.testing.assert_array_equal(checked_queries(weights), weights)
    for wrong in (0.525, 0.475):
        with pytest.raises(eqx.EquinoxRuntimeError, match="query_weights: got another sum"):
            checked_queries(jnp.full(2, wrong, dtype))


def test_errors_of_losses_name_the_callers_own_arguments(as_users_run):
    """Else targets and foils were called labels, and the logits of foils logits."""
    logits = random_states(1, 2, 3)
    half = jnp.array([0.5, 0.5])
    two = jnp.array([0, 1])
    three = jnp.array([0, 1, 2])
    mean = lim.autoregressive_cross_entropy
    with pytest.raises(ValueError, match=r"^targets: got an array of int64 with shape \(3,\)"):
        mean(logits, three, half)
    with pytest.raises(eqx.EquinoxRuntimeError, match=r"^targets: got a number above 2"):
        mean(logits, two + 2, half)
    with pytest.raises(ValueError, match=r"^query_weights: got shape \(1,\), expected \(2,\)"):
        mean(logits, two, jnp.ones(1))
    with pytest.raises(ValueError, match="^targets: got an array of int64 with shape"):
        margin_loss(logits, three, half)
    with pytest.raises(eqx.EquinoxRuntimeError, match="^targets: got a number below zero"):
        margin_loss(logits, two - 1, half)
    with pytest.raises(ValueError, match="^foil: got an array of int64 with shape"):
        contrast_loss(logits, two, logits, three)
    with pytest.raises(ValueError, match="^foil: got an array of float64 .*class numbers"):
        contrast_loss(logits, two, logits, logits)
    with pytest.raises(ValueError, match="^foil_logits: got 1, expected at least two classes"):
        contrast_loss(logits, two, logits[:, :1], two)
    with pytest.raises(ValueError, match=r"^foil_logits: got shape \(2,\)"):
        contrast_loss(logits, two, half, two)
    with pytest.raises(eqx.EquinoxRuntimeError, match="^answer: got a number above 2"):
        contrast_loss(logits, two + 2, logits, two)


@pytest.mark.parametrize(
    "dtype, gap", [(jnp.float32, 20.0), (jnp.float32, 60.0), (jnp.bfloat16, 8.0)]
)
def test_a_sure_answer_has_its_own_share_of_the_gradient(dtype, gap):
    """Less one its probability was rounded to zero, and so was the loss."""
    logits = np.array([[0.0, gap, 3.0], [gap, 1.0, 0.0]])
    classes = jnp.array([1, 0])
    grid = lim.token_grid(2)
    others = np.array([np.log1p(np.exp(3.0)), np.log1p(np.exp(1.0))])
    sure = np.exp(others - gap)
    rows = np.exp(logits - gap) / (1 + sure)[:, None]
    rows[np.arange(2), classes] = -sure / (1 + sure)
    rounded = jnp.asarray(logits, dtype)
    tolerance = 100 * float(jnp.finfo(dtype).eps)  # of an exponential of so large a gap
    loss = jax.jit(jax.value_and_grad(lambda z: lim.cross_entropy(z, classes, grid)))
    with jax.numpy_dtype_promotion("standard"):
        value, slope = loss(rounded)
        each = positionwise_cross_entropy(rounded, classes)
        residual = logit_residual(rounded, classes)
    np.testing.assert_allclose(value, np.log1p(sure).mean(), rtol=tolerance)
    np.testing.assert_allclose(np.asarray(each, float), np.log1p(sure), rtol=tolerance)
    for found in (2 * np.asarray(slope, float), np.asarray(residual, float)):
        np.testing.assert_allclose(found, rows, rtol=tolerance)


@pytest.mark.parametrize(
    "row, loss", [([1, -np.inf], 0.0), ([np.inf, 1], np.nan), ([1, np.inf], np.inf)]
)
def test_one_class_alone_costs_nothing_and_infinite_logits_pass_on(row, loss):
    value, slope = jax.value_and_grad(lambda z: positionwise_cross_entropy(z, jnp.array([0]))[0])(
        jnp.array([row], float)
    )
    np.testing.assert_array_equal(value, loss)
    if loss == 0:
        np.testing.assert_array_equal(slope, 0)


def test_no_row_of_classes_is_made_of_class_numbers():
    """At 49,152 words: the compiled program's temporary memory is that of the logits, not twice."""
    shapes = jax.ShapeDtypeStruct((64, 49_152), np.float32), jax.ShapeDtypeStruct((64,), np.int32)
    loss = jax.jit(lambda logits, classes: positionwise_cross_entropy(logits, classes).sum())
    assert temporary_bytes(loss.trace(*shapes)) < 1.1 * 4 * 64 * 49_152


@pytest.mark.parametrize("total", [1.0, 2.5, 0.0])
def test_the_residual_is_the_gradient_for_labels_of_any_sum(total):
    # `eq:continuum-logit-variation`, `eq:autoregressive-logit-residual`.
    logits = random_states(1, 12, 5)
    labels = total * np.asarray(random_labels())
    gradient, residual = map(np.asarray, gradient_and_residual(logits, labels))
    chex.assert_trees_all_close(12 * gradient, residual, atol=1e-14)


@jax.jit
def gradient_and_residual(logits, labels):
    return jax.grad(lim.cross_entropy)(logits, labels, GRID), logit_residual(logits, labels)


def test_a_masked_class_costs_nothing():
    logits = np.array(random_states(1, 12, 5))
    labels = np.array(random_labels())
    logits[:, 2], labels[:, 2] = -np.inf, 0.0
    value, gradient = jax.jit(jax.value_and_grad(lim.cross_entropy))(logits, labels, GRID)
    kept = np.array([0, 1, 3, 4])
    expected = cross_entropy(logits[:, kept], labels[:, kept], GRID)
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    assert np.all(np.isfinite(gradient)) and np.all(np.asarray(gradient)[:, 2] == 0)


@pytest.mark.parametrize("make", [lim.token_grid, lim.midpoint_grid, lim.graded_grid])
def test_terminal_adjoints_by_the_papers_formula(make):
    """P_T = (softmax - Y) W_out* as a density, for the linear and the banded readout."""
    # `eq:terminal-adjoint-softmax`, `eq:continuum-terminal-adjoint`,
    # `eq:linear-readout-discrete-adjoint`, `eq:linear-readout-continuum-adjoint`,
    # `eq:local-readout-adjoint`.
    grid = make(12)
    x = random_states()
    labels = random_labels()
    weights = np.asarray(grid.weights)[:, None]
    linear = lim.LinearReadout(WEIGHT)
    band = lim.BandReadout(WEIGHT, 0.4)

    @jax.jit
    def adjoint_and_probabilities(readout, x, labels):
        def loss(x, y):
            return lim.cross_entropy(readout(x, grid), y, grid)

        return terminal_adjoint(loss, (x, labels), grid), jax.nn.softmax(readout(x, grid), axis=1)

    for readout, spread in ((linear, np.eye(12)), (band, np.asarray(band_matrix(band, grid)))):
        adjoint, probabilities = map(np.asarray, adjoint_and_probabilities(readout, x, labels))
        residual = weights * (probabilities - np.asarray(labels))
        expected = spread.T @ residual / weights @ np.asarray(WEIGHT).T
        np.testing.assert_allclose(adjoint, expected, rtol=1e-12, atol=1e-13)


@jax.jit
def of_local_readout(readout, x, labels, grid, weights):
    def on_grid(x, y):
        return lim.cross_entropy(readout(x, grid), y, grid)

    def of_queries(x, y):
        return lim.autoregressive_cross_entropy(readout(x, grid), y, weights)

    adjoints = [terminal_adjoint(loss, (x, labels), grid) for loss in (on_grid, of_queries)]
    return (
        readout(x, grid),
        adjoints,
        jax.grad(lambda r: half_of_squares(r(x, grid)))(readout).blocks,
    )


def half_of_squares(logits):
    return jnp.sum(logits**2) / 2


@pytest.mark.parametrize("radius", [0, 1, 2, 8])
def test_local_readouts_of_any_blocks_are_dense_maps(radius):
    """Logits, both losses' terminal covectors and the blocks' gradient, by a dense C in NumPy."""
    # `eq:local-readout-finite`, `eq:local-readout-adjoint`, `eq:tokenwise-terminal-adjoint`,
    # `eq:local-readout-support`.
    size = 7
    width = 3
    words = 5
    grid = lim.graded_grid(7)
    blocks = np.asarray(random_states(2, size, 2 * radius + 1, words, width))
    dense = np.zeros((size, size, words, width))
    for i in range(size):
        for j in range(max(0, i - radius), min(size, i + radius + 1)):
            dense[i, j] = blocks[i, radius + j - i]
    x = np.asarray(random_states(1, size, width))
    labels = 1.7 * np.asarray(random_labels(3, 7, 5))
    alpha = np.array([0, 0.1, 0.3, 0, 0.05, 0.55, 0])
    cells = np.asarray(grid.weights)
    readout = LocalReadout(jax.device_put(blocks))
    arguments = (jax.device_put(leaf) for leaf in (x, labels))
    found = of_local_readout(readout, *arguments, grid, jax.device_put(alpha))
    logits, adjoints, gradient = jax.tree.map(np.asarray, found)
    expected = np.einsum("ijvd,jd->iv", dense, x)
    np.testing.assert_allclose(logits, expected, rtol=1e-12, atol=1e-14)
    residual = labels.sum(axis=1)[:, None] * np.exp(log_softmax(expected, axis=1)) - labels
    for adjoint, weights in zip(adjoints, (cells, alpha), strict=True):
        covector = np.einsum("ijvd,iv->jd", dense, weights[:, None] * residual) / cells[:, None]
        np.testing.assert_allclose(adjoint, covector, rtol=1e-11, atol=1e-13)
    places = np.arange(size)
    reached = np.abs(places[:, None] - places[alpha > 0]).min(axis=1) <= radius
    assert adjoints[1][reached].all() and not adjoints[1][~reached].any()
    padded = np.pad(x, ((radius, radius), (0, 0)))
    windows = np.stack([padded[i : i + 2 * radius + 1] for i in range(size)])
    slopes = np.einsum("iv,ikd->ikvd", expected, windows)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-12, atol=1e-14)


def test_autoregressive_terminal_adjoint():
    """`eq:autoregressive-terminal-adjoint`, as a density."""
    # `eq:autoregressive-logit-residual`, `eq:tokenwise-terminal-adjoint`.
    alpha = np.arange(12.0) / 66

    @jax.jit
    def adjoint_and_probabilities(x, labels):
        def loss(x, y):
            return lim.autoregressive_cross_entropy(x @ WEIGHT, y, jnp.asarray(alpha))

        return terminal_adjoint(loss, (x, labels), GRID), jax.nn.softmax(x @ WEIGHT, axis=1)

    labels = random_labels()
    adjoint, probabilities = map(np.asarray, adjoint_and_probabilities(random_states(), labels))
    residual = alpha[:, None] * (probabilities - np.asarray(labels))
    expected = 12 * residual @ np.asarray(WEIGHT).T
    np.testing.assert_allclose(adjoint, expected, rtol=1e-12, atol=1e-14)


def sliced(loss):
    def of(logits, targets, weights):
        size = logits.shape[1]

        def of_slice(start):
            return jax.lax.dynamic_slice_in_dim(logits, start, 2, axis=1)

        return loss(Slices(of_slice, 2, size, logits.dtype), targets, weights)

    return of


CLASS_LOSSES = {
    "cross-entropy": lim.autoregressive_cross_entropy,
    "margin": margin_loss,
    "on a grid": lambda z, y, w: lim.cross_entropy(z, y, lim.token_grid(2), 2 * w),
    "sliced": sliced(sliced_cross_entropy),
    "sliced margin": sliced(sliced_margin_loss),
}


@pytest.mark.parametrize("row", [[-np.inf, 0.3, 0.8], [1, -np.inf, -np.inf], 3 * [-np.inf]])
@pytest.mark.parametrize("loss", CLASS_LOSSES)
def test_masked_classes_where_nothing_is_asked_are_no_loss(loss, row):
    """One's number may stand there, as that of padding does; and no derivative is lost."""
    function = CLASS_LOSSES[loss]
    logits = np.array([row, [1.0, 0.2, -0.4]])
    numbers = jnp.array([0, 1])
    weights = jnp.array([0.0, 1.0])
    value, slope = jax.value_and_grad(function)(jax.device_put(logits), numbers, weights)
    others = np.array([1.0, -0.4] if "margin" in loss else [1.0, 0.2, -0.4])
    np.testing.assert_allclose(value, np.log(np.exp(others).sum()) - 0.2, rtol=1e-14)
    assert np.isfinite(slope).all() and not np.asarray(slope)[0].any()


@pytest.mark.parametrize("loss", CLASS_LOSSES)
def test_the_derivative_in_a_weight_of_zero_is_the_loss_there(loss):
    """The losses are the slopes of the risk in the weights, wherever these are."""
    logits = np.array([[0.5, -np.inf, 0.8], [1.0, 0.2, -0.4]])

    def risk(weight):
        weights = jnp.stack([weight, 1 - weight])
        return CLASS_LOSSES[loss](jax.device_put(logits), jnp.array([0, 1]), weights)

    answers = np.array([0.5, 0.2])
    others = np.exp([0.8, 1.0]) + np.exp([-np.inf, -0.4])
    total = others if "margin" in loss else others + np.exp(answers)
    first, second = np.log(total) - answers
    np.testing.assert_allclose(jax.grad(risk)(0.0), first - second, rtol=1e-13)
