"""Whether a network decodes an answer."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from lim_jax._checks import (
    error_if,
    error_if_got,
    error_if_not_finite,
    require,
    require_floats,
    require_indices,
    widen_integers,
)


def decodes_greedily(
    logits: Float[Array, "length vocabulary"],
    targets: Integer[Array, " length"],
    weights: Float[Array, " length"],
) -> Bool[Array, ""]:
    r"""Tell whether greedy decoding gives the whole answer, from logits that were given the answer.

    .. math:: \arg\max_c z_{ic} = y_i \quad\text{wherever } \alpha_i \ne 0.

    Nothing is decoded: up to the first wrong word the network has read what it would have read
    while decoding. Of equal logits the first word's counts. No derivative.

    Parameters
    ----------
    logits
        A row for each place: row i is of the word after place i.
    targets
        The word after each place, ``window[1:]``; anything where the weight is zero.
    weights
        The weights :math:`\alpha` of the loss, which are not zero where the answer is asked.

    Returns
    -------
    Bool[Array, ""]
        Whether all words that are asked are the likeliest.

    Raises
    ------
    ValueError
        If the three do not have one length.
    EquinoxRuntimeError
        If no weight asks, a target that is asked is no word, or logits or weights are not finite.

    Examples
    --------
    >>> logits = jnp.array([[9.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
    >>> bool(decodes_greedily(logits, jnp.array([1, 1, 0]), jnp.array([0.0, 0.5, 0.5])))
    True
    """
    require_floats(logits, "logits", "length vocabulary")
    length, vocabulary = logits.shape
    require_floats(weights, "weights", "length", length=length)
    require_indices(targets, "targets")
    require(
        targets.size == length,
        "targets",
        got=f"{targets.size} of them",
        expected=f"{length}, one for each row of logits",
        cure="Take window[1:] as the targets of a window.",
    )
    asks = error_if_not_finite(weights, "weights") != 0
    message = (
        "weights: got zeros alone, expected some that ask for an answer. Pass a weight above zero "
        "at each position of the answer."
    )
    asks = error_if(asks, ~asks.any(), message)
    targets = widen_integers(targets)
    last = vocabulary - 1
    targets = error_if_got(
        targets,
        "targets",
        got={
            "a number below zero": asks & (targets < 0),
            f"a number above {last}": asks & (targets > last),
        },
        expected=f"numbers from 0 to {last} where weights are not zero",
        cure="Take ids of the vocabulary of logits.",
    )
    best = jnp.argmax(error_if_not_finite(logits, "logits"), axis=1).astype(targets.dtype)
    return jnp.all((best == targets) | ~asks)
