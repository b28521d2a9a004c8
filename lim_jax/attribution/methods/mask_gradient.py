"""The mask gradient: how much the answer gains as attention reads more of a token."""

import math
from collections.abc import Sequence

import numpy as np

from lim_jax.attribution.mask_gradients import losses_at_ends, mask_gradients
from lim_jax.attribution.method import Cost, Method, Run, Scores, scores_by_token
from lim_jax.attribution.segments import Segment
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM
from lim_jax.prompts.contexts import Context

# What every document weighs where the gradient is taken, each reading itself as before: in the
# study 0.2 and 0.5 do best, and 0.1 is far behind in long texts (docs/study/faithfulness.md).
WEIGHT = 0.2
# A score is what the part gives on the way from the weight `WEIGHT`**2 to one, as far as one slope
# says: the midpoint rule in the log weight, whose length this is.
LENGTH = -2 * math.log(WEIGHT)


def scores(
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    parts: Sequence[Segment],
    loss: Loss,
    run: Run,
) -> Scores:
    """Score tokens by minus the loss's derivatives in their log weights, documents at `WEIGHT`.

    At a weight of one the softmax is saturated, and its derivative says little. Times `LENGTH` they
    are about what tokens give, as those of the mask path are.
    """
    at = np.array([math.log(WEIGHT)])
    (slopes,) = mask_gradients(model, context, answer, loss, at, run.within("gradient"))
    by_token = LENGTH * slopes
    without, whole = losses_at_ends(model, context, answer, loss, run.within("effect"))
    result = scores_by_token(answer, parts, by_token, without - whole)
    return result._replace(losses=whole)


METHOD = Method(
    words="by how much the answer gains as attention reads more of it",
    how="the derivative of the answer's log odds in an additive attention mask, where every part "
    "weighs a fifth, times the way from next to nothing to the whole",
    scores=scores,
    cost=lambda parts, answer: Cost(3, answer),
)
