"""Attention rollout: what attention hands on from each token to the places that ask."""

from collections.abc import Sequence
from typing import Any

from lim_jax.attribution import gradients
from lim_jax.attribution.by_token import score_by_token
from lim_jax.attribution.gradients import Tokens
from lim_jax.attribution.method import Cost, Method, Run, Scores
from lim_jax.attribution.segments import Segment
from lim_jax.density.adjoints import Loss, LossOfIds
from lim_jax.grid.cells import token_grid
from lim_jax.models.causal import CausalLM
from lim_jax.prompts.contexts import Context

NAME = "rollout"


def scores(
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    parts: Sequence[Segment],
    loss: Loss,
    run: Run,
) -> Scores:
    """Score tokens by `gradients.attention_rollout` to the queries, whatever the answer says."""
    return score_by_token(NAME, _score_tokens, model, context, answer, parts, loss, run)


def _score_tokens(loss: LossOfIds, model: CausalLM, ids: Any, y: Any, _: Any) -> Tokens:
    """Average the rows of the attention rollout at the queries by the query weights.

    They are shares of all that attention hands on, which is less than one where there are sinks.
    """
    x = loss.embed(model, ids, y)
    matrix = gradients.attention_rollout(model.flow, x, token_grid(x.shape[0], x.dtype))
    handed_on = y.weights @ matrix[y.positions]
    return handed_on / handed_on.sum()


METHOD = Method(
    words="what attention hands on",
    how="the share of the word that attention hands on to the answer, through all layers",
    scores=scores,
    cost=lambda parts, answer: Cost(1),
    answer_parts=("answer",),
    signed=False,
    whole="all that attention hands on",
    reads_foil=False,  # attention hands on the same whatever is answered
)
