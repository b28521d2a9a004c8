"""Cross-entropies and margins: the scalar that influence is about.

Arrays of other shapes than the grid's raise ValueError. Class numbers outside the vocabulary where
a position counts, and query weights that are negative or do not sum to one, raise
EquinoxRuntimeError. NaN and infinity in logits and labels pass on.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from lim_jax._checks import (
    described,
    error_if_got,
    require,
    require_floating,
    require_floats,
)
from lim_jax._jit import filter_jit
from lim_jax.grid.measure import Grid, Scalar, require_on_grid
from lim_jax.loss.readouts import Logits

Labels = Float[Array, "length vocabulary"] | Int[Array, " length"]
# Logits as few as those of some last tokens are kept for the way back, which reads the head anyway.
LOGITS = "logits"
FEW_LOGITS = 2**22
FEW_EPS = 4  # A sum, a quotient and what they are of are each rounded by half an eps at most.


class Slices(NamedTuple):
    """Logits some classes at a time, where they are too many to stand all at once."""

    of: Callable[[Int[Array, ""]], Float[Array, "length size"]]  # from a class number on
    size: int  # classes at a time, at most all
    classes: int  # in all
    dtype: DTypeLike


@filter_jit
def cross_entropy(
    logits: Logits,
    labels: Labels,
    grid: Grid,
    position_weights: Float[Array, " length"] | None = None,
) -> Scalar:
    r"""Compute the cross-entropy of labels, averaged over positions by the grid's measure.

    .. math:: -\sum_l \Delta p_l\,w_l\,Y_l^\top \log\mathrm{softmax}(z_l)

    With w = 1 (default) `eq:discrete-cross-entropy` on tokens and `eq:continuum-cross-entropy` on
    finer grids; with `position_weights`, such as a query density of `eq:continuum-ar-loss`,
    `eq:discrete-weighted-cross-entropy`, in the continuum `eq:weighted-cross-entropy`. Works under
    jit, vmap, grad and jvp; NaN and infinity pass on.

    Parameters
    ----------
    logits
        :math:`z`, a row for each position, a column for each class. A class may be masked (-inf);
        all may be, and count for nothing, where the weight is zero.
    labels
        :math:`Y`, class numbers, one whole number for each position; or a row of probabilities, or
        of any soft weights, for each position. Where an answer is nearly sure, its own share of the
        gradient keeps its digits with class numbers alone: with rows it is rounded as 1 is.
    grid
        The positions.
    position_weights
        :math:`w`, a number for each position; 1 everywhere by default. Weights of unit mean,
        :math:`\sum_l \Delta p_l w_l = 1`, keep the loss's scale.

    Returns
    -------
    Array
        The loss, a scalar in nats.

    Raises
    ------
    ValueError
        If `logits`, `labels` or `position_weights` has another shape or kind than stated.
    EquinoxRuntimeError
        If a class number is outside the vocabulary at a position whose weight is not zero.

    Examples
    --------
    >>> uniform = cross_entropy(jnp.zeros((3, 4)), jnp.array([0, 1, 3]), lim.token_grid(3))
    >>> bool(jnp.allclose(uniform, jnp.log(4)))
    True
    """
    require_on_grid(logits, grid, "logits", "length vocabulary")
    if position_weights is None:  # then no weight is zero, which would be treated apart
        return grid.weights @ _losses(logits, labels, jnp.array(True), "labels")
    require_on_grid(position_weights, grid, "position_weights", "length")
    return _weighted_cross_entropy(logits, labels, grid.weights * position_weights, "labels")


@filter_jit
def autoregressive_cross_entropy(
    logits: Logits, targets: Labels, query_weights: Float[Array, " length"]
) -> Scalar:
    r"""Compute the next-token loss :math:`-\sum_i \alpha_i\,Y_{i+1}^\top\log\mathrm{softmax}(H_i)`.

    `eq:autoregressive-terminal-loss`. Works under jit, vmap, grad and jvp; NaN and infinity in
    logits and targets pass on.

    Parameters
    ----------
    logits
        :math:`H`, a row for each query, a column for each class. A class may be masked (-inf); all
        may be, and count for nothing, where :math:`\alpha_i = 0`.
    targets
        Row i holds the target :math:`Y_{i+1}` of query i, a class number or a row of soft weights;
        any whole number, or any finite row, where :math:`\alpha_i = 0`.
    query_weights
        :math:`\alpha`, a number for each query, nowhere negative, of sum one; see `teacher_forcing`
        and `last_token`.

    Returns
    -------
    Array
        The loss, a scalar in nats.

    Raises
    ------
    ValueError
        If the three have not a row for each query, or the targets are neither class numbers nor a
        floating-point row of all classes.
    EquinoxRuntimeError
        If a query weight is negative or their sum is not one, or a class number is outside the
        vocabulary where a query counts.

    Examples
    --------
    >>> from lim_jax.loss import last_token
    >>> targets = jnp.array([-1, 0])  # the first query is not asked
    >>> loss = autoregressive_cross_entropy(jnp.zeros((2, 2)), targets, last_token(2))
    >>> bool(jnp.allclose(loss, jnp.log(2)))
    True
    """
    return _weighted_cross_entropy(logits, targets, checked_queries(query_weights), "targets")


@filter_jit
def margin_loss(
    logits: Logits, targets: Int[Array, " length"], query_weights: Float[Array, " length"]
) -> Scalar:
    r"""Compute the log odds of the other classes over the answer, :math:`-\sum_i \alpha_i\,\mu_i`.

    .. math:: \mu_i = z_{i,y_i} - \log\sum_{c\ne y_i} e^{z_{ic}}

    is the margin of the answer :math:`y_i`, its log odds :math:`\log p/(1-p)`: the cross-entropy of
    a query is :math:`\log(1 + e^{-\mu})`. The derivative in :math:`z_{i,y_i}` is :math:`-\alpha_i`
    however sure the network is, where that of the cross-entropy vanishes like :math:`1-p`.

    Parameters
    ----------
    logits
        :math:`z`, a row for each query, a column for each class, at least two. A class other than
        the answer may be masked (-inf); where all of them are, the loss is :math:`-\infty`. Where
        :math:`\alpha_i = 0` all may be, and count for nothing.
    targets
        :math:`y`, the class number of each query's answer; any number where :math:`\alpha_i = 0`.
    query_weights
        :math:`\alpha`, a number for each query, nowhere negative, of sum one.

    Returns
    -------
    Array
        The loss, a scalar in nats; negative where the answers are likelier than not.

    Raises
    ------
    ValueError
        If the three have not a row for each query, the targets are no class numbers, or there is
        one class only.
    EquinoxRuntimeError
        If a query weight is negative or their sum is not one, or a class number is outside the
        vocabulary where a query counts.

    Examples
    --------
    >>> logits = jnp.log(jnp.array([[0.2, 0.8], [0.25, 0.75]]))
    >>> odds = margin_loss(logits, jnp.array([1, 1]), jnp.array([1.0, 0.0]))
    >>> bool(jnp.allclose(odds, -jnp.log(4)))
    True
    """
    query_weights = checked_queries(query_weights)
    _require_labels(logits, targets, "targets")
    _require_for_each(query_weights, logits[:, 0])
    _require_answers(targets, logits.shape[1], "targets")
    classes = _known_classes(targets, logits.shape[1], query_weights != 0, "targets")
    answers, others, alone = _answers_and_rest(logits, classes)
    # Where nothing is asked, 0 keeps the slope finite.
    others = jnp.where(alone & (query_weights != 0), -jnp.inf, others)
    return _weighted_sum(others - answers, query_weights)


def own_margin_loss(logits: Logits, query_weights: Float[Array, " length"]) -> Scalar:
    r"""Compute the `margin_loss` of the network's own answers, each query's likeliest class.

    Its influence is that on what the network says, whether right or not. Which class it is, the
    first of equal ones, has no derivative.

    Parameters
    ----------
    logits
        A row for each query, a column for each class, at least two.
    query_weights
        :math:`\alpha`, a number for each query, nowhere negative, of sum one.

    Returns
    -------
    Array
        The log odds of the other classes over the network's answers, a scalar in nats.

    Raises
    ------
    ValueError
        If the two have not a row for each query, or there is one class only.
    EquinoxRuntimeError
        If a query weight is negative or their sum is not one.

    Examples
    --------
    >>> logits = jnp.log(jnp.array([[0.2, 0.8], [0.25, 0.75]]))
    >>> odds = own_margin_loss(logits, jnp.array([0.5, 0.5]))  # 4 and 3 to one
    >>> bool(jnp.allclose(odds, -jnp.log(12) / 2))
    True
    """
    require_floats(logits, "logits", "length vocabulary")
    return margin_loss(logits, logits.argmax(axis=1), query_weights)


@filter_jit
def contrast_loss(
    logits: Logits,
    answer: Int[Array, " tokens"],
    foil_logits: Float[Array, "others vocabulary"],
    foil: Int[Array, " others"],
) -> Scalar:
    r"""Compute the log odds of a foil over an answer, each a sequence of tokens.

    It is :math:`\log p(\text{foil}) - \log p(\text{answer})`,

    .. math:: \sum_j \log \mathrm{softmax}(z'_j)_{y'_j} - \sum_j \log \mathrm{softmax}(z_j)_{y_j},

    a sum over the tokens of each.

    Parameters
    ----------
    logits
        :math:`z`, a row for each token of the answer, from the position before it; a column for
        each class, at least two.
    answer
        :math:`y`, the class numbers of the answer's tokens.
    foil_logits
        :math:`z'`, a row for each token of the foil, from the position before it, where the network
        reads the foil after the same prompt.
    foil
        :math:`y'`, the class numbers of the foil's tokens.

    Returns
    -------
    Array
        The log odds, a scalar in nats; negative where the answer is likelier.

    Raises
    ------
    ValueError
        If logits have not a row for each token, the tokens are no class numbers, or there is one
        class only.
    EquinoxRuntimeError
        If a class number is outside the vocabulary.

    Examples
    --------
    >>> z = jnp.log(jnp.array([[0.2, 0.8], [0.25, 0.75]]))
    >>> odds = contrast_loss(z[:1], jnp.array([1]), z, jnp.array([0, 1]))
    >>> bool(jnp.allclose(odds, jnp.log(0.2 * 0.75 / 0.8)))
    True
    """
    answer_losses = _losses_of_answer(logits, answer, "answer", "logits")
    return answer_losses.sum() - _losses_of_answer(foil_logits, foil, "foil", "foil_logits").sum()


def _losses_of_answer(
    logits: Logits, answer: Int[Array, " length"], name: str, logits_name: str
) -> Float[Array, " length"]:
    """Compute the cross-entropy of each of an answer's tokens, one of several classes."""
    _require_labels(logits, answer, name, logits_name)
    _require_answers(answer, logits.shape[1], name, logits_name)
    return _losses(logits, answer, jnp.array(True), name)


@filter_jit
def positionwise_cross_entropy(logits: Logits, labels: Labels) -> Float[Array, " length"]:
    r"""Compute the loss of every position by itself; its mean over data is :math:`r_\vartheta(p)`.

    `eq:positionwise-risk-density`: the risk is its integral, a weighted risk that of w times it
    (`eq:weighted-risk-change-of-measure`).

    Parameters
    ----------
    logits
        A row for each position, a column for each class. A class may be masked (-inf).
    labels
        Class numbers, one whole number for each position; or a row of probabilities, or of any soft
        weights, for each position.

    Returns
    -------
    Array
        The cross-entropy at each position in nats, without the grid's weights.

    Raises
    ------
    ValueError
        If the logits are no floating-point array of shape ``(length, vocabulary)``, or the labels
        do not fit them.
    EquinoxRuntimeError
        If a class number is outside the vocabulary.

    Examples
    --------
    >>> labels = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> positionwise_cross_entropy(jnp.zeros((2, 2)), labels).round(4).tolist()
    [0.6931, 0.6931]
    """
    return _losses(logits, labels, jnp.array(True), "labels")


@filter_jit
def logit_residual(logits: Logits, labels: Labels) -> Logits:
    r"""Compute the cross-entropy's derivative in each token's logits, before weights.

    :math:`(\mathbf 1\cdot Y)\,\mathrm{softmax}(z) - Y`, which is `eq:continuum-logit-variation`'s
    :math:`\mathrm{softmax}(z) - Y` where the labels sum to one.

    Parameters
    ----------
    logits
        :math:`z`, a row for each position, a column for each class.
    labels
        :math:`Y`, class numbers, one whole number for each position; or a row of probabilities, or
        of any soft weights, for each position, with which a nearly sure answer's
        share is rounded as 1 is.

    Returns
    -------
    Array
        The derivative, of the logits' shape. Times :math:`\Delta p_i` or :math:`\alpha_i` it is the
        Euclidean gradient of the loss (`eq:autoregressive-logit-residual`).

    Raises
    ------
    ValueError
        If the logits are no floating-point array of shape ``(length, vocabulary)``, or the labels
        do not fit them.
    EquinoxRuntimeError
        If a class number is outside the vocabulary.

    Examples
    --------
    >>> logit_residual(jnp.zeros((1, 2)), jnp.array([[3.0, 1.0]])).tolist()
    [[-1.0, 1.0]]
    """
    _require_labels(logits, labels, "labels")
    likely = jax.nn.softmax(logits, axis=1)
    if _class_numbers(labels):
        classes = _known_classes(labels, logits.shape[1], jnp.array(True), "labels")
        is_answer = _is_answer(logits, classes)
        # Less one the answer's share would be rounded to zero where it is nearly one.
        others = jnp.where(is_answer, 0, likely).sum(axis=1, keepdims=True)
        return jnp.where(is_answer, -others, likely)
    return labels.sum(axis=1, keepdims=True) * likely - labels


def _require_answers(targets: Labels, classes: int, name: str, logits_name: str = "logits") -> None:
    """Raise ValueError unless targets are class numbers, and there are several classes."""
    require(
        _class_numbers(targets),
        name,
        got=described(targets),
        expected="class numbers, one for each position",
        cure="Pass the number of the answer's class at each position.",
    )
    require(
        classes > 1,
        logits_name,
        got=f"{classes}",
        expected="at least two classes",
        cure="Pass logits of several classes: odds are of one class over the others.",
    )


def sliced_cross_entropy(
    slices: Slices, targets: Labels, query_weights: Float[Array, " length"]
) -> Scalar:
    """Compute `autoregressive_cross_entropy` slice by slice, without all logits at once.

    Of soft labels the share of a sure answer in the gradient is rounded to an eps of its label.
    """
    weights = checked_queries(query_weights)
    answers, others = _answers_and_others(slices, targets, weights)
    if _class_numbers(targets):
        return _weighted_sum(jax.nn.softplus(others - answers), weights)
    return _weighted_sum(targets.sum(axis=1) * others - answers, weights)


def sliced_margin_loss(
    slices: Slices, targets: Int[Array, " length"], query_weights: Float[Array, " length"]
) -> Scalar:
    """Compute `margin_loss` slice by slice, without all logits at once."""
    weights = checked_queries(query_weights)
    _require_answers(targets, slices.classes, "targets")
    answers, others = _answers_and_others(slices, targets, weights)
    return _weighted_sum(others - answers, weights)


def sliced_answers(slices: Slices) -> Int[Array, " length"]:
    """Return the class of the largest logit of each row, the first of equal ones."""
    starts = jnp.arange(0, slices.classes, slices.size).clip(max=slices.classes - slices.size)

    def largest_in_slice(start: Int[Array, ""]) -> tuple[Array, Array]:
        """Return the largest logits in one slice of the vocabulary, and their classes."""
        logits = jax.lax.stop_gradient(slices.of(start))
        return logits.max(axis=1), start + logits.argmax(axis=1)

    peaks, classes = jax.lax.map(largest_in_slice, starts)
    return jnp.take_along_axis(classes, peaks.argmax(axis=0)[None], axis=0)[0]


def _answers_and_others(
    slices: Slices, targets: Labels, weights: Float[Array, " length"]
) -> tuple[Float[Array, " length"], Float[Array, " length"]]:
    """Return the answers' logits, and the log-sum-exp of the others; for soft labels of all."""
    size = slices.size
    classes = slices.classes
    _require_labels_for_shape((*weights.shape, classes), targets, "targets")
    numbered = _class_numbers(targets)
    if numbered:
        targets = _known_classes(targets, classes, weights != 0, "targets")

    def add(sums: tuple[Array, ...], index: Int[Array, ""]) -> tuple[tuple[Array, ...], None]:
        """Add one slice of classes to the answers' logits and to the running log-sum-exp."""
        answers, total, peak = sums
        # The last slice begins within the one before it, so that all are of one size.
        start = jnp.minimum(index * size, classes - size)
        logits = checkpoint_name(slices.of(start), LOGITS)
        numbers = start + jnp.arange(size)[None, :]
        new = numbers >= index * size
        if numbered:
            is_target = new & (numbers == targets[:, None])
            answer_terms = jnp.where(is_target, logits, 0)
            others = new & ~is_target
        else:
            labels = jax.lax.dynamic_slice_in_dim(targets, start, size, axis=1)
            # A masked class (logit -inf, label 0) counts for nothing.
            answer_terms = jnp.where(new & (labels != 0), labels * logits, 0)
            others = new
        largest = jnp.where(others, logits, -jnp.inf).max(axis=1)
        higher = jax.lax.stop_gradient(jnp.maximum(peak, largest))
        # Where nothing is summed, zero is not the exponential of a difference: it has no slope.
        terms = jnp.where(others, jnp.exp(jnp.where(others, logits - higher[:, None], 0)), 0)
        total = total * jnp.exp(peak - higher) + terms.sum(axis=1)
        return (answers + answer_terms.sum(axis=1), total, higher), None

    zeros = jnp.zeros(weights.shape, slices.dtype)
    sums = zeros, zeros, jnp.full_like(zeros, jnp.finfo(slices.dtype).min)
    saved = [LOGITS] if weights.size * classes <= FEW_LOGITS else []
    policy = jax.checkpoint_policies.save_only_these_names(*saved)
    add = jax.checkpoint(add, prevent_cse=False, policy=policy)
    (answers, total, peak), _ = jax.lax.scan(add, sums, jnp.arange(-(-classes // size)))
    # As in `_masked_at_weight_zero`: the logarithm of a sum of nothing has no slope.
    total = jnp.where((weights == 0) & (total == 0), 1, total)
    return answers, jnp.log(total) + peak


def _weighted_cross_entropy(
    logits: Logits, labels: Labels, weights: Float[Array, " length"], name: str
) -> Scalar:
    """Sum the positions' cross-entropies with weights; ignore what is masked at weight zero."""
    _require_labels(logits, labels, name)
    _require_for_each(weights, logits[:, 0])
    nothing = _masked_at_weight_zero(logits, weights)
    logits = jnp.where(nothing[:, None], 0, logits)
    return _weighted_sum(_losses(logits, labels, weights != 0, name), weights)


def _masked_at_weight_zero(
    logits: Logits, weights: Float[Array, " length"]
) -> Bool[Array, " length"]:
    """Tell which rows have weight zero and every class masked.

    Their log-sum-exp has no slope, and zero times that would be NaN. Other rows of weight zero
    count: their losses are the derivatives in the weights.
    """
    return (weights == 0) & jnp.isneginf(logits.max(axis=1))


def checked_queries(query_weights: Float[Array, " length"]) -> Float[Array, " length"]:
    """Return query weights; raise where one is negative or their sum is not one."""
    require_floats(query_weights, "query_weights", "length")
    precision = jnp.finfo(query_weights.dtype)
    total = query_weights.sum(dtype=jnp.float32 if precision.bits < 32 else query_weights.dtype)
    # Weights rounded one by one change a sum of one by less than a few eps, however many they are.
    of_sum = math.sqrt(float(jnp.finfo(total.dtype).eps))
    rounding = max(FEW_EPS * float(precision.eps), of_sum)
    return error_if_got(
        query_weights,
        "query_weights",
        got={
            "a weight below zero or NaN": ~(query_weights >= 0),
            "another sum": jnp.abs(total - 1) > rounding,
        },
        expected="non-negative weights that sum to one",
        cure="Divide them by their sum.",
    )


def _weighted_sum(losses: Float[Array, " length"], weights: Float[Array, " _"]) -> Scalar:
    """Sum losses by weights; an infinite loss of weight zero counts for nothing."""
    _require_for_each(weights, losses)
    # Where nothing is asked the class may be a masked one: zero times infinity is no loss.
    return weights @ jnp.where((weights == 0) & jnp.isinf(losses), 0, losses)


def _require_for_each(weights: Array, losses: Array) -> None:
    """Raise ValueError unless there is one query weight for each loss."""
    require(
        weights.shape == losses.shape,
        "query_weights",
        got=f"shape {weights.shape}",
        expected=f"{losses.shape}, one for each position",
        cure="Pass one weight for each position of the logits.",
    )


def _losses(
    logits: Logits, labels: Labels, is_query: Bool[Array, "*length"], name: str
) -> Float[Array, " length"]:
    """Compute every position's cross-entropy, with class numbers or with soft labels."""
    _require_labels(logits, labels, name)
    if _class_numbers(labels):
        classes = _known_classes(labels, logits.shape[1], is_query, name)
        answers, others, alone = _answers_and_rest(logits, classes)
        # A log-sum-exp of all classes is rounded to the answer's logit where that is far above.
        losses = jax.nn.softplus(others - answers)
        return jnp.where(alone | jnp.isposinf(answers), answers - answers, losses)
    # The safe form takes a masked class (logit -inf, label 0) as 0 rather than NaN.
    return optax.losses.safe_softmax_cross_entropy(logits, labels)


def _answers_and_rest(
    logits: Logits, classes: Int[Array, " length"]
) -> tuple[Float[Array, " length"], Float[Array, " length"], Bool[Array, " length"]]:
    """Return the answers' logits, the log-sum-exp of the others, and where all these are masked.

    There it is zero in place of minus infinity, which would have no slope.
    """
    answers = jnp.take_along_axis(logits, classes[:, None], axis=1)[:, 0]
    is_answer = _is_answer(logits, classes)
    alone = jnp.isneginf(jnp.where(is_answer, -jnp.inf, logits).max(axis=1))
    filler = jnp.where(alone, 0, -jnp.inf).astype(logits.dtype)
    return answers, jax.nn.logsumexp(jnp.where(is_answer, filler[:, None], logits), axis=1), alone


def _is_answer(logits: Logits, classes: Int[Array, " length"]) -> Bool[Array, "length vocabulary"]:
    """Tell which logits are those of the answers."""
    return jnp.arange(logits.shape[1])[None, :] == classes[:, None]


def _class_numbers(labels: Labels) -> bool:
    """Tell whether labels are class numbers, and not distributions."""
    return jnp.issubdtype(labels.dtype, jnp.integer)


def _known_classes(
    labels: Int[Array, " length"], classes: int, is_query: Bool[Array, "*length"], name: str
) -> Int[Array, " length"]:
    """Return class numbers of the vocabulary; use raises at others, but where no query is."""
    labels = labels.astype(int)  # small integers, such as uint8, may not hold the last class
    last = classes - 1
    labels = error_if_got(
        labels,
        name,
        got={
            "a number below zero": is_query & (labels < 0),
            f"a number above {last}": is_query & (labels > last),
        },
        expected=f"class numbers from 0 to {last}",
        cure="Pass logits of all classes, or cast labels to floats if they are weights.",
    )
    return jnp.clip(labels, 0, last)


def _require_labels(logits: Logits, labels: Labels, name: str, logits_name: str = "logits") -> None:
    """Raise ValueError unless logits have two axes and labels fit them."""
    require_floats(logits, logits_name, "length vocabulary")
    _require_labels_for_shape(logits.shape, labels, name)


def _require_labels_for_shape(shape: tuple[int, ...], labels: Labels, name: str) -> None:
    """Raise ValueError unless labels are class numbers or weights for logits of this shape."""
    dtype = getattr(labels, "dtype", None)
    numbered = dtype is not None and jnp.issubdtype(dtype, jnp.integer)
    require(
        getattr(labels, "shape", None) == (shape[:1] if numbered else shape),
        name,
        got=f"{described(labels)} with logits of shape {shape}",
        expected=f"integers of shape {shape[:1]} or floats of shape {shape}",
        cure="Pass a class number for each position, or a row of weights of all classes.",
    )
    if not numbered:
        require_floating(labels, name, cure="Cast weights to the logits' dtype.")
