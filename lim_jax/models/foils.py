"""Why this and not that: one prompt, and the odds of two continuations of it."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._checks import require, require_indices, require_kind
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Scalar
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.network.slots import State

Ids = Int[Array | np.ndarray, " _"]
MADE = "Make it by foils.contrast(prompt, answer, foil)."


class Contrast(NamedTuple):
    """What follows a prompt, and what might have followed instead: ids, with a weight for each.

    Weights of one make the sum over tokens, which is the logarithm of the whole continuation's
    probability.

    Attributes
    ----------
    answer, foil
        The ids of each continuation.
    answer_weights, foil_weights
        The weight of each of their tokens.
    length
        The prompt's length; its row may be longer, by padding on the right.
    log_weights, parts
        An additive attention mask over the prompt's row, and the number of each position's part, or
        None, as `Targets` has them.
    """

    answer: Ids
    foil: Ids
    answer_weights: Float[Array | np.ndarray, " _"]
    foil_weights: Float[Array | np.ndarray, " _"]
    length: Int[Array | np.ndarray, ""]
    log_weights: Float[Array, " _"] | None = None
    parts: Int[Array, " _"] | None = None


def contrast(prompt: Ids, answer: Ids, foil: Ids, dtype: str = "float32") -> Contrast:
    """Ask why an answer follows a prompt and not a foil, each as a whole: sums over its tokens.

    Tokens with which both begin cancel. Where one is the beginning of the other, the odds are of
    the further tokens alone, since what ends a continuation is not asked for.

    Parameters
    ----------
    prompt
        The ids of the prompt.
    answer
        The ids of what follows it.
    foil
        The ids of what might have followed instead, not the answer's own.
    dtype
        The precision of the weights, that of the model.

    Returns
    -------
    Contrast
        Both continuations with weights of one.

    Raises
    ------
    ValueError
        If the foil is the answer, or one of the three is no array of ids, at least one.
    """
    for name, ids in (("prompt", prompt), ("answer", answer), ("foil", foil)):
        require_indices(ids, name)
    same = np.array_equal(answer, foil)
    require(
        not same,
        "foil",
        got="the answer itself",
        expected="another text than the answer",
        cure="Pass what the model might have said instead.",
    )
    made = Contrast(
        np.asarray(answer),
        np.asarray(foil),
        np.ones(len(answer), dtype),
        np.ones(len(foil), dtype),
        np.array(len(prompt), np.int32),
    )
    return jax.device_put(made)


def contrast_loss(model: CausalLM, x: State, y: Contrast) -> Scalar:
    r"""Compute the log odds of a foil over an answer.

    .. math:: \log p(\text{foil}) - \log p(\text{answer})

    Each is read after the same prompt, in a pass of its own (`loss.contrast_loss` has the formula).
    It is a loss for ``influence(contrast_loss, model, (x, y), grid)``, and for `energies_of_ids`
    with a `Contrast` for each context.

    Parameters
    ----------
    model
        The language model.
    x
        The prompt's states by `CausalLM.embed`, of which nothing after the prompt's length is read.
    y
        What follows the prompt, and what might have followed instead, a `Contrast` of
        `foils.contrast`.

    Returns
    -------
    Scalar
        The log odds, in nats: each side a sum over its tokens, by the weights of `y`.

    Raises
    ------
    ValueError
        If `y` is no `Contrast`, or its parts do not fit one another.
    EquinoxRuntimeError
        If an id is outside the vocabulary, or there are more positions than the network knows.

    Examples
    --------
    >>> import equinox as eqx
    >>> from lim_jax.models.foils import contrast
    >>> from lim_jax.models.small_models import byte_model
    >>> model = byte_model(16, width=4, depth=1, key=jax.random.key(0))
    >>> prompt, this, that = (jnp.array(list(text)) for text in (b"2+2=", b"4", b"five"))
    >>> y = contrast(prompt, this, that)
    >>> bool(jnp.isfinite(eqx.filter_jit(contrast_loss)(model, model.embed(prompt), y)))
    True
    """
    require_kind(y, Contrast, "y", MADE)
    answer = _continuation_loss(model, x, y, y.answer, y.answer_weights)
    return answer - _continuation_loss(model, x, y, y.foil, y.foil_weights)


def _continuation_loss(model: CausalLM, x: State, y: Contrast, ids: Any, weights: Any) -> Scalar:
    r"""Compute :math:`-\sum_j w_j \log p(y_j)` of ids after a prompt, each given all before it."""
    require_indices(ids, "ids")
    require(
        weights.shape == ids.shape,
        "weights",
        got=f"shape {weights.shape}",
        expected=f"{ids.shape}, one for each id",
        cure=MADE,
    )
    more = ids.shape[0] - 1
    weights = jnp.asarray(weights, x.dtype)
    length = jnp.asarray(y.length, int)
    if more:
        # They stand right after the prompt, in place of whatever pads the row.
        starts = jnp.full(more, -length)
        rows = model.embed(ids[:-1], Targets(ids[:-1], weights[:-1], starts=starts))
        x = jnp.concatenate([x, jnp.zeros_like(rows)])
        x = jax.lax.dynamic_update_slice_in_dim(x, rows, length, 0)
    positions = length - 1 + jnp.arange(more + 1)
    total = weights.sum()
    grid = token_grid(x.shape[0], x.dtype)
    if y.log_weights is not None:
        pad = partial(jnp.pad, pad_width=(0, more))
        parts = None if y.parts is None else pad(y.parts, constant_values=-1)
        grid = grid.weighted(pad(y.log_weights), parts)
    state = model.flow(x, grid)
    return total * model.terminal_loss(state, Targets(ids, weights / total, positions))
