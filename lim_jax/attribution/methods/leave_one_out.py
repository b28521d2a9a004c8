"""Leave one out: what the answer loses where a part of the context is taken out of the text."""

from collections.abc import Sequence

import numpy as np

from lim_jax.attribution.method import Cost, Method, Run, Scores
from lim_jax.attribution.segments import Segment
from lim_jax.attribution.without_parts import losses_without
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM
from lim_jax.prompts.contexts import Context


def scores(
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    parts: Sequence[Segment],
    loss: Loss,
    run: Run,
) -> Scores:
    """Score parts of the context by how much the loss of the answer's parts rises without them."""
    everything = np.ones((1, len(parts)), bool)
    masks = np.concatenate([everything, ~np.eye(len(parts), dtype=bool)])
    losses = losses_without(model, context, answer, parts, masks, loss, run)
    return Scores(answer, parts, (losses[1:] - losses[0]).T, losses=losses[0])


METHOD = Method(
    words="the loss's rise without it",
    how="what the answer's log odds lose where the part is taken out of the text",
    scores=scores,
    document_parts="documents",  # a text is read for each
    cost=lambda parts, answer: Cost(parts + 1),
)
