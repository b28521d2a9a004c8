"""The mask path: the mask gradient's integral as all documents come in from next to nothing."""

from collections.abc import Sequence

import numpy as np

from lim_jax.adjoint.masking import path_rule
from lim_jax.attribution.mask_gradients import LEAST, effect_of_documents, mask_gradients
from lim_jax.attribution.scores import Cost, Method, Run, Scores, scores_by_token
from lim_jax.attribution.segments import Segment, document_numbers
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM
from lim_jax.prompts.contexts import Context

# Gradients of a path. On the README's question four add up to a quarter too much, eight to 3 % too
# little.
NODES = 8


def scores(
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    parts: Sequence[Segment],
    loss: Loss,
    run: Run,
) -> Scores:
    """Return the integrals, which add up to what all documents give but for the quadrature's error.

    Documents alone come in, so nothing else has a score.
    """
    rule = path_rule(NODES, LEAST)
    by_token = mask_gradients(model, context, answer, loss, rule, run.within("path"))
    by_token = np.where(document_numbers(context) >= 0, by_token, 0)
    effect = effect_of_documents(model, context, loss, run.within("effect"))
    return scores_by_token(answer, parts, by_token, effect)


METHOD = Method(
    words="the same from next to nothing on, so that scores add up",
    how="the integral of the derivative of the answer's log odds in an additive attention mask, as "
    "all documents come in from next to nothing",
    scores=scores,
    cost=lambda parts, answer: Cost(NODES + 2, NODES * answer),
)
