"""Losses of logits that never stand all at once: those of logits that do, derivatives too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from lim_jax import loss
from lim_jax.loss import losses
from lim_jax.loss.losses import Slices, sliced_answers, sliced_cross_entropy, sliced_margin_loss

QUERIES = 4
CLASSES = 7
DRAW = np.random.default_rng(0)
LOGITS = 30 * DRAW.standard_normal((QUERIES, CLASSES))
WEIGHTS = np.array([0.5, 0.0, 0.2, 0.3])
# Of the last slice's classes one is an answer alone.
NUMBERS = np.array([6, -3, 0, 3], np.int32)  # as tokenizers give them
SOFT = DRAW.uniform(size=(QUERIES, CLASSES))
SOFT[0] *= 0
SOFT[2, 4] = 0


def slices(logits, size):
    def of(start):
        return jax.lax.dynamic_slice_in_dim(logits, start, size, axis=1)

    return Slices(of, size, CLASSES, logits.dtype)


def others(logits) -> np.ndarray:
    """The logarithm of the sum of the exponentials of all classes but the answer."""
    masked = np.where(np.arange(CLASSES) == NUMBERS[:, None], -np.inf, logits)
    return np.asarray(logsumexp(masked, axis=1))


def put(array):
    return jax.device_put(array)


ANSWERS = LOGITS[np.arange(QUERIES), NUMBERS]
CASES = {
    "cross-entropy": (
        sliced_cross_entropy,
        NUMBERS,
        -WEIGHTS @ log_softmax(LOGITS, axis=1)[np.arange(QUERIES), NUMBERS],
    ),
    "soft": (
        sliced_cross_entropy,
        SOFT,
        -WEIGHTS @ (SOFT * log_softmax(LOGITS, axis=1)).sum(axis=1),
    ),
    "margin": (sliced_margin_loss, NUMBERS, WEIGHTS @ (others(LOGITS) - ANSWERS)),
}


def test_the_largest_class_is_the_first_of_equal_ones_in_any_slice():
    """In the first slice, in the last, in the overlap of both, twice in one and in two."""
    rows = np.array([[9, 1, 2, 3], [1, 2, 3, 9], [1, 2, 9, 3], [1, 9, 9, 0], [0, 9, 1, 9.0]])

    def of(start):
        return jax.lax.dynamic_slice_in_dim(put(rows), start, 3, axis=1)

    answers = sliced_answers(Slices(of, 3, 4, "float64"))
    np.testing.assert_array_equal(answers, [0, 3, 2, 1, 1])


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("name", CASES)
def test_a_sliced_loss_and_its_gradient_are_those_of_whole_logits(name, size):
    function, targets, expected = CASES[name]

    def of(logits):
        return function(slices(logits, size), put(targets), put(WEIGHTS))

    @jax.jit
    def both(logits):
        return jax.value_and_grad(of)(logits), jax.jvp(of, (logits,), (jnp.cos(logits),))

    (value, gradient), (_, slope) = both(put(LOGITS))
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    likely = np.exp(log_softmax(LOGITS, axis=1))
    chosen = np.arange(CLASSES) == NUMBERS[:, None]
    if name == "soft":
        residual = SOFT.sum(axis=1, keepdims=True) * likely - SOFT
    elif name == "margin":
        residual = np.where(chosen, -1, np.exp(LOGITS - others(LOGITS)[:, None]))
    else:
        residual = likely - chosen
    expected = np.where(WEIGHTS[:, None] == 0, 0, WEIGHTS[:, None] * residual)
    np.testing.assert_allclose(gradient, expected, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(slope, (expected * np.cos(LOGITS)).sum(), rtol=1e-11)


@pytest.mark.parametrize("size", [2, 7])
def test_masked_classes_take_no_part(size):
    # The second query asks for nothing; a masked class of label zero counts for nothing.
    masked = LOGITS.copy()
    masked[2, 4], masked[3, 5:] = -np.inf, -np.inf
    soft = SOFT.copy()
    soft[3, 5:] = 0
    safe = np.where(np.isinf(masked), -1e300, masked)
    expected = -WEIGHTS @ (soft * np.where(soft == 0, 0, log_softmax(safe, axis=1))).sum(axis=1)

    def of(logits):
        return sliced_cross_entropy(slices(logits, size), put(soft), put(WEIGHTS))

    value, gradient = jax.jit(jax.value_and_grad(of))(put(masked))
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    assert np.isfinite(np.asarray(gradient)).all()


@pytest.mark.parametrize("name", ["cross-entropy", "margin"])
def test_second_derivatives_are_those_of_whole_logits(name):
    function, targets, _ = CASES[name]
    twin = loss.margin_loss if name == "margin" else loss.autoregressive_cross_entropy

    def of_slices(logits):
        return function(slices(logits, 3), put(targets), put(WEIGHTS))

    def of_all(logits):
        return twin(logits, put(targets), put(WEIGHTS))

    logits = put(LOGITS / 30)
    second, expected = (
        jax.jit(lambda x, of=of: jax.jvp(jax.grad(of), (x,), (jnp.cos(x),))[1])(logits)
        for of in (of_slices, of_all)
    )
    np.testing.assert_allclose(second, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("function", [sliced_cross_entropy, sliced_margin_loss])
def test_a_sure_answer_keeps_its_digits(function):
    # The answer's odds are e^100: the cross-entropy is e^-100, which no difference of sums keeps.
    logits = np.zeros((1, CLASSES))
    logits[0, 2] = 100 + np.log(CLASSES - 1)

    @jax.jit
    def of(logits):
        return function(slices(logits, 3), put(np.array([2])), put(np.ones(1)))

    value = of(put(logits))
    expected = np.exp(-100.0) if function is sliced_cross_entropy else -100.0
    np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_labels_that_do_not_fit_the_slices_are_refused(as_users_run):
    of = slices(put(LOGITS), 3)
    with pytest.raises(Exception, match="sum to one"):
        jax.block_until_ready(sliced_cross_entropy(of, put(NUMBERS), put(2 * WEIGHTS)))
    with pytest.raises(Exception, match="class numbers from 0 to 6"):
        jax.block_until_ready(sliced_margin_loss(of, put(NUMBERS + 1), put(WEIGHTS)))
    with pytest.raises(ValueError, match=r"targets: got .* with logits of shape \(4, 7\)"):
        sliced_cross_entropy(of, put(SOFT[:, :6]), put(WEIGHTS))
    with pytest.raises(ValueError, match="targets: got"):
        sliced_margin_loss(of, put(SOFT), put(WEIGHTS))


def test_few_logits_are_made_once_and_many_once_more_on_the_way_back(monkeypatch):
    head = put(DRAW.standard_normal((CLASSES, 2)))
    state = put(np.ones((QUERIES, 2)))

    def products() -> int:
        def risk(state):
            def of(start):
                return state @ jax.lax.dynamic_slice_in_dim(head, start, 3).T

            asked = Slices(of, 3, CLASSES, state.dtype)
            return sliced_cross_entropy(asked, put(NUMBERS), put(WEIGHTS))

        return str(jax.make_jaxpr(jax.grad(risk))(state)).count("dot_general")

    few = products()
    monkeypatch.setattr(losses, "FEW_LOGITS", QUERIES * CLASSES - 1)
    assert products() == few + 1
