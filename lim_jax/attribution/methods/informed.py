"""Informed ablations: texts chosen to tell parts apart, and what the mask gradient says."""

from collections.abc import Sequence

import numpy as np

from lim_jax.attribution.ablation_design import balanced_design
from lim_jax.attribution.method import Cost, Method, Run, Scores, no_prefix
from lim_jax.attribution.methods import leave_one_out, mask_gradient
from lim_jax.attribution.segments import Segment
from lim_jax.attribution.shrunk_regression import shrunk_regression
from lim_jax.attribution.together import MOST, Together, masks_without_sets, most_telling
from lim_jax.attribution.without_parts import losses_without
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM
from lim_jax.prompts.contexts import Context

PASSES = 24  # over the whole context
LEAST_TEXTS = 4  # of which a regression has an error
ENOUGH_TEXTS = 16  # that a regression keeps where others are read for what documents do together


def method(passes: int) -> Method:
    """Return the method of a budget of passes; other parts than documents take one more each."""

    def scores(
        model: CausalLM,
        context: Context,
        answer: Sequence[Segment],
        parts: Sequence[Segment],
        loss: Loss,
        run: Run,
    ) -> Scores:
        """Score parts of documents by a regression that is shrunk towards the mask gradient.

        It is of the loss on texts that keep about half of these parts. Other parts, such as the
        question, are left out one at a time, and all are where there is one document. Where the
        passes leave too few texts the mask gradient is all; where they leave enough, all sets of
        the documents that matter most are left out too.
        """
        prior = mask_gradient.scores(model, context, answer, parts, loss, run.within("prior"))
        halves, sets = texts_of_passes(passes, len(answer))
        documents = prior.documents
        if halves < LEAST_TEXTS:
            return prior
        if documents.size < 2:
            alone = leave_one_out.scores(model, context, answer, parts, loss, run.within("texts"))
            return alone._replace(total_effect=prior.total_effect)
        others = np.setdiff1d(np.arange(len(parts)), documents)
        design = balanced_design(documents.size, halves)
        masks = np.ones((len(design), len(parts)), bool)
        masks[:, documents] = design
        ablated = losses_without(model, context, answer, parts, masks, loss, run.within("texts"))
        whole = prior.losses
        assert whole is not None  # the mask gradient reads it
        by_part = np.zeros((len(answer), len(parts)))
        errors = np.full(by_part.shape, np.nan)
        if others.size:
            masks = np.ones((others.size, len(parts)), bool)
            masks[np.arange(others.size), others] = False
            without = losses_without(
                model, context, answer, parts, masks, loss, run.within("others")
            )
            by_part[:, others] = (without - whole).T
        for row, scores_before in enumerate(prior.by_part[:, documents]):
            fit = shrunk_regression(design, -ablated[:, row], scores_before)
            by_part[row, documents] = fit.scores
            errors[row, documents] = fit.errors
        result = prior._replace(by_part=by_part, by_token=None, errors=errors)
        if not sets:
            return result
        # These texts are of one question: what others share is not theirs.
        run = run._replace(texts=no_prefix)
        names = most_telling(parts, by_part.sum(axis=0), documents.tolist())
        masks = masks_without_sets(parts, names)[1:]  # the first of them is the whole
        losses = losses_without(model, context, answer, parts, masks, loss, run.within("sets"))
        lost = losses.sum(axis=1) - whole.sum()
        return result._replace(together=Together(names, np.append(0.0, lost)))

    return Method(
        words="what the mask gradient and texts without half of the parts say together",
        how="what the answer's log odds gain from the part, by texts that keep half of the parts "
        "and by the mask gradient",
        scores=scores,
        document_parts="documents",  # sentences want more texts than these
        cost=lambda parts, answer: cost(passes, answer),
    )


def texts_of_passes(passes: int, answer: int) -> tuple[int, int]:
    """Return how many texts are read for the regression, and how many for sets of documents.

    These are what is left beside the mask gradient. A text of the regression is half as long as
    the whole; those of sets, all or none, are nearly as long.
    """
    left = passes - mask_gradient.METHOD.cost(0, answer).total
    sets = 2**MOST - 1
    if 2 * (left - sets) >= ENOUGH_TEXTS:
        return 2 * (left - sets), sets
    return max(0, 2 * left), 0


def cost(passes: int, answer: int) -> Cost:
    """Return the cost of a budget, at least the mask gradient's."""
    gradients = mask_gradient.METHOD.cost(0, answer)
    return gradients._replace(passes=gradients.passes + max(0, passes - gradients.total))


METHOD = method(PASSES)
