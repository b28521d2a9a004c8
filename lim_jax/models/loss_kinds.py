"""The kinds of loss that contexts are asked by: one table, by name."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from lim_jax._checks import require_name
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM, LossOfLogits
from lim_jax.models.foils import contrast_loss

AnswerMask = Bool[np.ndarray, " length"]
OnePassLoss = Literal["next-token", "answer", "margin", "last-token", "own-margin"]
LossName = Literal[OnePassLoss, "contrast"]


class LossKind(NamedTuple):
    """What is asked of a context.

    Attributes
    ----------
    words
        What pages and the help call it.
    loss
        A loss of embedded states and of what is asked.
    weights
        A function from which places stand before the answer's tokens to the query weights, of sum
        one: an asked token's is at the place before it.
    needs_answer, needs_foil
        Whether it asks for an answer, and for what might have followed instead.
    """

    words: str
    loss: Loss
    weights: Callable[[AnswerMask], Float[np.ndarray, " length"]]
    needs_answer: bool = False
    needs_foil: bool = False

    @property
    def one_pass(self) -> bool:
        """Whether it is a loss of the last states of one pass, where explanations start."""
        return isinstance(self.loss, LossOfLogits)


def _everywhere(in_answer: AnswerMask) -> Float[np.ndarray, " length"]:
    """Return equal query weights at every position."""
    return np.full(in_answer.size, 1 / in_answer.size)


def _at_the_answer(in_answer: AnswerMask) -> Float[np.ndarray, " length"]:
    """Return equal query weights at the positions that predict the answer."""
    return in_answer / in_answer.sum()


def _at_the_end(in_answer: AnswerMask) -> Float[np.ndarray, " length"]:
    """Return query weights of one at the last position."""
    return np.append(np.zeros(in_answer.size - 1), 1.0)


CROSS_ENTROPY = CausalLM.loss
MARGIN = CausalLM.margin_loss
OWN = CausalLM.own_margin_loss
LOSSES: dict[str, LossKind] = {
    "next-token": LossKind("every next token, by cross-entropy", CROSS_ENTROPY, _everywhere),
    "answer": LossKind(
        "the answer's tokens, by cross-entropy", CROSS_ENTROPY, _at_the_answer, needs_answer=True
    ),
    "margin": LossKind(
        "the answer's tokens, by their log odds", MARGIN, _at_the_answer, needs_answer=True
    ),
    "last-token": LossKind("the last token, by cross-entropy", CROSS_ENTROPY, _at_the_end),
    "own-margin": LossKind(
        "the model's own word for the last token, by its log odds", OWN, _at_the_end
    ),
    "contrast": LossKind(
        "the answer over the foil, by log odds", contrast_loss, _at_the_end,
        needs_answer=True, needs_foil=True,
    ),
}  # fmt: skip


def loss_kind(name: str) -> LossKind:
    """Return the kind of loss of this name; raise ValueError at another name."""
    require_name(name, LOSSES, "loss", "Pass one of these names: they say what the loss is of.")
    return LOSSES[name]
