"""Whether a response holds what is asked, as the tasks' sources judge it."""

import re
import string
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lim_jax._checks import (
    guarded,
    guarded_finite,
    require,
    require_floats,
    require_indices,
    require_several,
    require_text,
)

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    r"""Lower case, without ASCII's punctuation, then without articles; white space is single.

    As SQuAD and lost-in-the-middle compare answers.

    Examples
    --------
    >>> normalised("  The U.S.A. (an\tisland's  end)")
    'usa islands end'
    """
    require_text(text, "text")
    plain = text.lower().translate(PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", plain).split())


def contains_normalised(response: str, answers: Sequence[str]) -> bool:
    r"""Whether any of the answers is part of the response's first line, both `normalised`.

    Lost-in-the-middle's score of questions over documents, of which a copy is no answer: so the
    first line. Its key-value task's score is `any_found`.

    Examples
    --------
    >>> contains_normalised("It is the Eiffel Tower.", ["Louvre", "an Eiffel tower"])
    True
    >>> contains_normalised("Who knows?\nThe Louvre", ["Louvre"])
    False
    """
    require_text(response, "response")
    line = normalised(response.split("\n")[0])
    return any(normalised(answer) in line for answer in _required(answers))


def exact_match(response: str, answers: Sequence[str]) -> bool:
    r"""Whether the response, without white space around it, is one of the answers.

    NoLiMa's exact match; SQuAD's is of what is `normalised`.

    Examples
    --------
    >>> exact_match(" Ada\n", ["Ada"]), exact_match("ada", ["Ada"])
    (True, False)
    """
    require_text(response, "response")
    return response.strip() in _required(answers)


def contains_answer(response: str, answers: Sequence[str]) -> bool:
    """Whether any of the answers is part of the response, to the letter.

    NoLiMa's score.

    Examples
    --------
    >>> contains_answer("It was Ada.", ["Ada"]), contains_answer("It was ada.", ["Ada"])
    (True, False)
    """
    require_text(response, "response")
    return any(answer in response for answer in _required(answers))


def share_found(response: str, references: Sequence[str]) -> float:
    """The share of the references that are part of the response, in upper or lower case.

    RULER's string match of "all", of one response: its needles' score is 100 times the mean.

    Examples
    --------
    >>> share_found("They are 7, 12 and 30.", ["7", "30", "45", "12"])
    0.75
    """
    found = _found(response, references)
    return sum(found) / len(found)


def any_found(response: str, references: Sequence[str]) -> bool:
    """Whether any of the references is part of the response, in upper or lower case.

    RULER's string match of "part", of one response: its questions' score is 100 times the mean.
    Lost-in-the-middle's of key-value retrieval too, whose one reference is the value.

    Examples
    --------
    >>> any_found("Value: 7F3A", ["7f3a"])
    True
    """
    return any(_found(response, references))


def decodes_greedily(
    logits: Float[Array, "length vocabulary"],
    targets: Int[Array, " length"],
    weights: Float[Array, " length"],
) -> Bool[Array, ""]:
    r"""Whether greedy decoding gives the whole answer, from logits that were given the answer.

    .. math:: \arg\max_c z_{ic} = y_i \quad\text{wherever } \alpha_i \ne 0.

    Nothing is decoded: as long as every word so far is the answer's, the network has read what
    it would have read while decoding, so that both agree up to the first wrong word, and the answer
    comes out whole exactly where there is none. Of equal logits the first word's counts. No
    derivative.

    Parameters
    ----------
    logits
        Of the next word, one row for each place.
    targets
        The word after each place (anything where the weight is zero): ``window[1:]``.
    weights
        Of the loss: not zero at the places that ask for the answer's words.

    Raises
    ------
    ValueError
        Where shapes differ.
    EquinoxRuntimeError
        Where no place is asked, a target is outside the vocabulary, or something is not finite.

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
        targets.shape == (length,),
        "targets",
        got=f"{targets.shape[0]}",
        expected=f"{length}, one for each row of logits",
        cure="Of a window take window[1:].",
    )
    asked = guarded_finite(weights, "weights") != 0
    message = "weights: got none but zero, expected some that ask for an answer. Ask its places."
    asked = guarded(asked, ~asked.any(), message)
    message = f"targets: expected numbers from 0 to {vocabulary - 1} where asked, got others."
    targets = guarded(targets, (asked & ((targets < 0) | (targets >= vocabulary))).any(), message)
    best = jnp.argmax(guarded_finite(logits, "logits"), axis=1).astype(targets.dtype)
    return jnp.all((best == targets) | ~asked)


def _found(response: str, references: Sequence[str]) -> list[bool]:
    require_text(response, "response")
    return [one.lower() in response.lower() for one in _required(references)]


def _required(answers: Sequence[str]) -> Sequence[str]:
    """Refuse no answers, and letters in the place of a list."""
    require_several(answers, str, "answers", "Pass [answer] where there is one.")
    return answers
