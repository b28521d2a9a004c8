"""Gradient times input: the states of each token times the loss's derivative in them."""

from collections.abc import Sequence
from typing import Any

from lim_jax.attribution import gradients
from lim_jax.attribution.by_token import score_by_token
from lim_jax.attribution.gradients import Tokens
from lim_jax.attribution.method import Cost, Method, Run, Scores
from lim_jax.attribution.segments import Segment
from lim_jax.density.adjoints import Loss, LossOfIds
from lim_jax.models.causal import CausalLM
from lim_jax.prompts.contexts import Context

NAME = "gradient-times-input"


def scores(
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    parts: Sequence[Segment],
    loss: Loss,
    run: Run,
) -> Scores:
    """Score tokens for the whole answer by minus `gradients.gradient_times_input`."""
    return score_by_token(NAME, _score_tokens, model, context, answer, parts, loss, run)


def _score_tokens(loss: LossOfIds, model: CausalLM, ids: Any, y: Any, _: Any) -> Tokens:
    """Return minus gradient times input by token."""
    return -gradients.gradient_times_input(loss.loss, model, loss.embed(model, ids, y), y)


METHOD = Method(
    words="its states times the gradient",
    how="the product of the words' states and the derivative of the answer's log odds in them",
    scores=scores,
    cost=lambda parts, answer: Cost(1, 1),
    answer_parts=("answer",),
)
