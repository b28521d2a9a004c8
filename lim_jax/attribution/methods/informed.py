"""Informed ablations: texts chosen to tell parts apart, and what the mask gradient says."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from lim_jax.attribution.ablation_design import balanced_design
from lim_jax.attribution.method import Cost, Method, Run, Scores
from lim_jax.attribution.methods import leave_one_out, mask_gradient
from lim_jax.attribution.segments import Segment
from lim_jax.attribution.shrunk_regression import shrunk_regression
from lim_jax.attribution.together import SETS
from lim_jax.attribution.without_parts import losses_without
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM
from lim_jax.prompts.contexts import Context

PASSES = 24  # over the whole context
LEAST_TEXTS = 4  # of which a regression has an error
ENOUGH_TEXTS = 16  # that a regression keeps where sets of documents are left out besides


def method(passes: int) -> Method:
    """Return the method of a budget of passes; other parts than documents take one more each."""
    return Method(
        words="what the mask gradient and texts without half of the parts say together",
        how="what the answer's log odds gain from the part, by texts that keep half of the parts "
        "and by the mask gradient",
        scores=partial(scores, passes),
        document_parts="documents",  # sentences want more texts than these
        cost=lambda parts, answer: cost(passes, answer),
    )


def scores(
    passes: int,
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    parts: Sequence[Segment],
    loss: Loss,
    run: Run,
) -> Scores:
    """Score parts of documents by a regression that is shrunk towards the mask gradient.

    It is of the loss on texts that keep about half of these parts. Other parts, such as the
    question, are left out one at a time, and all are where there is one document. Where the passes
    leave too few texts the mask gradient is all.
    """
    prior = mask_gradient.scores(model, context, answer, parts, loss, run.within("prior"))
    texts = texts_of_passes(passes, len(answer))
    documents = prior.documents
    if texts < LEAST_TEXTS:
        return prior._replace(note=_note(passes, len(answer)))
    if documents.size < 2:
        alone = leave_one_out.scores(model, context, answer, parts, loss, run.within("texts"))
        return alone._replace(total_effect=prior.total_effect)
    design = balanced_design(documents.size, texts)
    masks = np.ones((len(design), len(parts)), bool)
    masks[:, documents] = design
    ablated = losses_without(model, context, answer, parts, masks, loss, run.within("texts"))
    by_part = np.zeros((len(answer), len(parts)))
    errors = np.full(by_part.shape, np.nan)
    for row, scores_before in enumerate(prior.by_part[:, documents]):
        fit = shrunk_regression(design, -ablated[:, row], scores_before)
        by_part[row, documents] = fit.scores
        errors[row, documents] = fit.errors
    others = np.setdiff1d(np.arange(len(parts)), documents)
    if others.size:
        masks = np.ones((others.size, len(parts)), bool)
        masks[np.arange(others.size), others] = False
        without = losses_without(model, context, answer, parts, masks, loss, run.within("others"))
        by_part[:, others] = (without - prior.losses).T
    return prior._replace(by_part=by_part, by_token=None, errors=errors)


def texts_of_passes(passes: int, answer: int) -> int:
    """Return how many texts, half as long as the whole, the mask gradient leaves of the passes."""
    return max(0, 2 * (passes - mask_gradient.METHOD.cost(0, answer).total))


def leaves_sets(passes: int, answer: int) -> bool:
    """Tell whether passes suffice to leave out all sets of the documents that score most too.

    These texts, which are nearly as long as the whole, are read beside those of the scores.
    """
    return texts_of_passes(passes - SETS, answer) >= ENOUGH_TEXTS


def _note(passes: int, answer: int) -> str:
    """Say that scores are those of the mask gradient, and how many passes would add texts."""
    enough = mask_gradient.METHOD.cost(0, answer).total + LEAST_TEXTS // 2
    few = "1 pass leaves" if passes == 1 else f"{passes} passes leave"
    return f"Scores are those of the mask gradient alone: {few} no texts beside it, {enough} would."


def cost(passes: int, answer: int) -> Cost:
    """Return the cost of a budget, at least the mask gradient's."""
    gradients = mask_gradient.METHOD.cost(0, answer)
    return gradients._replace(passes=gradients.passes + max(0, passes - gradients.total))


METHOD = method(PASSES)
