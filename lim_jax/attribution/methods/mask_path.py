"""The mask path: the mask gradient's integral as all documents come in from next to nothing."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from lim_jax.attribution.mask_gradients import LEAST, losses_at_ends, mask_gradients
from lim_jax.attribution.method import Cost, Method, Run, Scores, scores_by_token, sum_by_part
from lim_jax.attribution.parts import is_document
from lim_jax.attribution.segments import Segment, document_numbers
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM
from lim_jax.prompts.contexts import Context

# Gradients of a path. Of fifteen answers by SmolLM2 these are enough for twelve, as
# benchmarks/mask_path.py says. Up to `MOST_NODES` as many and one more come between them while the
# scores' sum misses what the documents gave by more than `NEAR` of it, and by more than is shown.
NODES = 7
MOST_NODES = 63
NEAR = 1 / 20
SHOWN = 0.005


class PathRule(NamedTuple):
    """At which log weights of all documents gradients are taken, and the share of each."""

    log_weights: Float[np.ndarray, " nodes"]
    shares: Float[np.ndarray, " nodes"]


def nested_rule(nodes: int) -> PathRule:
    r"""Return a rule for the integral over the log weight from that of `LEAST` to zero.

    Every second node is a node of the rule with half as many (of 7 those of 3), so that a finer
    rule needs gradients at the other nodes alone. It is Fejér's second rule, whose nodes are
    :math:`\cos\theta_k` with :math:`\theta_k = k\pi/(n + 1)` and whose weights are

    .. math:: \frac{4\sin\theta_k}{n + 1}\sum_{j=1}^{(n + 1)/2}\frac{\sin((2j - 1)\theta_k)}{2j - 1}

    (Waldvogel, "Fast construction of the Fejér and Clenshaw-Curtis quadrature rules", 2006), in the
    square root t of the weight: an answer changes most at weights of a hundredth to one, and the
    log weight's differential is :math:`2\,dt/t`.
    """
    angles = np.pi * np.arange(1, nodes + 1) / (nodes + 1)
    odd = np.arange(1, nodes + 1, 2)
    sines = np.sin(odd * angles[:, None]) / odd
    weights = 4 * np.sin(angles) / (nodes + 1) * sines.sum(axis=1)
    first = np.sqrt(LEAST)
    roots = (1 + first) / 2 + (1 - first) / 2 * np.cos(angles)
    return PathRule(2 * np.log(roots), (1 - first) * weights / roots)


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
    come in, so nothing else has a score. A score's error is its change from the rule with half as
    many gradients.
    """
    without, whole = losses_at_ends(model, context, answer, loss, run.within("effect"))
    effects = without - whole
    inside = document_numbers(context) >= 0
    documents = [part for part in parts if is_document(*part.label)]

    def gradients_at(
        rows: Int[np.ndarray, " rows"], log_weights: Float[np.ndarray, " nodes"]
    ) -> Float[np.ndarray, "nodes rows length"]:
        """Take the gradients of some parts of the answer in the documents' tokens alone."""
        chosen = [answer[row] for row in rows.tolist()]
        node_run = run.within(f"{len(log_weights)} gradients")
        gradients = mask_gradients(model, context, chosen, loss, log_weights, node_run)
        return np.where(inside, gradients, 0)

    by_token = np.zeros((len(answer), context.length))
    changes = np.zeros_like(by_token)
    rows = np.arange(len(answer))  # whose scores are not known to add up
    nodes = NODES
    gradients = gradients_at(rows, nested_rule(nodes).log_weights)
    while True:
        by_token[rows] = np.tensordot(nested_rule(nodes).shares, gradients, axes=1)
        coarser = np.tensordot(nested_rule(nodes // 2).shares, gradients[1::2], axes=1)
        changes[rows] = by_token[rows] - coarser
        unresolved = is_unresolved(by_token[rows].sum(axis=1), effects[rows])
        nodes = 2 * nodes + 1
        if not unresolved.any() or nodes > MOST_NODES:
            break
        rows = rows[unresolved]
        between = gradients_at(rows, nested_rule(nodes).log_weights[::2])
        finer = np.empty((nodes, *between.shape[1:]))
        finer[::2] = between
        finer[1::2] = gradients[:, unresolved]
        gradients = finer
    result = scores_by_token(answer, documents, by_token, effects, _note(by_token, effects))
    errors = np.abs(sum_by_part(changes, documents))
    return result._replace(losses=whole, errors=errors, changes=changes)


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
    words="the same as all documents come in from next to nothing, so that scores add up",
    how="the integral of the derivative of the answer's log odds in an additive attention mask, as "
    "all documents come in from next to nothing",
    scores=scores,
    cost=lambda parts, answer: Cost(NODES + 2, NODES * answer),
)
