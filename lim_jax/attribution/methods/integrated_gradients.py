"""Integrated gradients: from the average word at the documents' places to what stands there."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from lim_jax._checks import described, require
from lim_jax.attribution import gradients
from lim_jax.attribution.by_token import score_by_token
from lim_jax.attribution.gradients import Tokens
from lim_jax.attribution.method import Cost, Method, Run, Scores
from lim_jax.attribution.segments import Segment
from lim_jax.density.adjoints import Loss, LossOfIds
from lim_jax.models.causal import CausalLM
from lim_jax.prompts.contexts import Context

STEPS = 8
NAME = "integrated-gradients"


def scores(
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    parts: Sequence[Segment],
    loss: Loss,
    run: Run,
) -> Scores:
    """Score tokens for the whole answer by minus `gradients.integrated_gradients`."""
    require(
        isinstance(model.embedding, Array),
        "model",
        got=f"an embedding as {described(model.embedding)}",
        expected="an array in full precision and in memory, of whose words the average is taken",
        cure="Load the model without `storage_dtype`, or take another method.",
    )
    return score_by_token(NAME, _score_tokens, model, context, answer, parts, loss, run)


def _score_tokens(loss: LossOfIds, model: CausalLM, ids: Any, y: Any, parts: Any) -> Tokens:
    """Return minus the integrated gradients, from the average word in place of documents' words."""
    x = loss.embed(model, ids, y)
    words = model.embedding
    assert isinstance(words, Array)
    average = model.embedding_scale * (words.mean(axis=0)[None] - words[ids])
    baseline = jnp.where((parts != -1)[:, None], x + average, x)
    return -gradients.integrated_gradients(loss.loss, model, x, y, baseline, steps=STEPS)


METHOD = Method(
    words="the gradient's integral from average words",
    how="the integral of the derivative of the answer's log odds, as the documents' words come "
    "from the average word",
    scores=scores,
    cost=lambda parts, answer: Cost(STEPS, STEPS),
    answer_parts=("answer",),
)
