"""The mask path: the mask gradient's integral as all documents come in from next to nothing."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from lim_jax.adjoint.masking import path_rule
from lim_jax.attribution.mask_gradients import LEAST, losses_at_ends, mask_gradients
from lim_jax.attribution.method import Cost, Method, Run, Scores, scores_by_token
from lim_jax.attribution.segments import Segment, document_numbers
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM
from lim_jax.prompts.contexts import Context

# Gradients of a path. On the README's question four add up to a quarter too much, eight to 3 % too
# little. Up to `MOST_NODES` they are doubled while the scores' sum misses what the documents gave
# by more than `NEAR` of it, and by more than is shown.
NODES = 8
MOST_NODES = 64
NEAR = 1 / 20
SHOWN = 0.005


def scores(
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    parts: Sequence[Segment],
    loss: Loss,
    run: Run,
) -> Scores:
    """Integrate minus the mask gradient as all documents come in from next to nothing.

    The scores add up to what all documents give, but for the quadrature's error. Documents alone
    come in, so nothing else has a score.
    """
    without, whole = losses_at_ends(model, context, answer, loss, run.within("effect"))
    effects = without - whole
    inside = document_numbers(context) >= 0
    by_token = np.zeros((len(answer), context.length))
    nodes = NODES
    unfinished = np.arange(len(answer))
    while True:
        rows = [answer[number] for number in unfinished.tolist()]
        node_run = run.within(f"{nodes} gradients")
        gradients = mask_gradients(model, context, rows, loss, path_rule(nodes, LEAST), node_run)
        by_token[unfinished] = np.where(inside, gradients, 0)
        unfinished = unfinished[
            is_unresolved(by_token[unfinished].sum(axis=1), effects[unfinished])
        ]
        if not unfinished.size or 2 * nodes > MOST_NODES:
            note = _note(by_token, effects)
            result = scores_by_token(answer, parts, by_token, effects, note)
            return result._replace(losses=whole)
        nodes *= 2


def is_unresolved(
    sums: Float[np.ndarray, " answer"], effects: Float[np.ndarray, " answer"]
) -> Bool[np.ndarray, " answer"]:
    """Tell for which parts of the answer a path's scores miss the effect of all documents."""
    return np.abs(sums - effects) > np.maximum(NEAR * np.abs(effects), SHOWN)


def _note(
    by_token: Float[np.ndarray, "answer length"], effects: Float[np.ndarray, " answer"]
) -> str:
    """Say by how much scores miss that effect after the most gradients; nothing where none do."""
    sums = by_token.sum(axis=1)
    far = is_unresolved(sums, effects)
    if not far.any():
        return ""
    most = np.abs(sums - effects)[far].max()
    return (
        f"For {far.sum()} of {far.size} parts of the answer, after {MOST_NODES} gradients, scores "
        f"add up to something else than documents gave, by {most:.2f} at most."
    )


METHOD = Method(
    words="the same from next to nothing on, so that scores add up",
    how="the integral of the derivative of the answer's log odds in an additive attention mask, as "
    "all documents come in from next to nothing",
    scores=scores,
    cost=lambda parts, answer: Cost(NODES + 2, NODES * answer),
)
