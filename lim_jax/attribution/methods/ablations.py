"""Ablations: a sparse regression of the answer's log odds on which parts of the text are kept."""

from collections.abc import Sequence
from typing import Any

import lazy_loader
import numpy as np
from jaxtyping import Bool, Float

from lim_jax._checks import require_extra
from lim_jax.attribution.method import Cost, Method, Run, Scores
from lim_jax.attribution.segments import Segment
from lim_jax.attribution.without_parts import losses_without
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM
from lim_jax.prompts.contexts import Context

sklearn: Any = lazy_loader.load("sklearn")  # of the extra; the rest does without
ABLATIONS = 64


def scores(
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    parts: Sequence[Segment],
    loss: Loss,
    run: Run,
) -> Scores:
    """Score parts by a sparse regression on texts that keep each part by the toss of a coin."""
    rng = np.random.default_rng(0)
    masks = rng.integers(2, size=(ABLATIONS, len(parts))).astype(bool)
    losses = losses_without(model, context, answer, parts, masks, loss, run)
    by_part = [sparse_regression(masks, -part_losses) for part_losses in losses.T]
    return Scores(answer, parts, np.stack(by_part))


def sparse_regression(
    masks: Bool[np.ndarray, "ablations parts"],
    values: Float[np.ndarray, " ablations"],
    strength: float = 0.01,
) -> Float[np.ndarray, " parts"]:
    """Fit a Lasso that predicts a value, such as the answer's log odds, from the parts kept.

    On features of mean zero and variance one, with the `strength` of Cohen-Wang, Shah, Georgiev and
    Madry, "ContextCite: attributing model generation to context" (2024); in the value's units.
    """
    require_extra("sklearn", "faithfulness")
    features = np.asarray(masks, float)
    scale = features.std(axis=0)
    scale = np.where(scale > 0, scale, 1)
    fitted = sklearn.linear_model.Lasso(alpha=strength)
    fitted.fit((features - features.mean(axis=0)) / scale, np.asarray(values, float))
    return fitted.coef_ / scale


METHOD = Method(
    words="its coefficient in a sparse regression",
    how="a coefficient of a sparse regression of the answer's log odds on which parts of the text "
    "are kept",
    scores=scores,
    document_parts="documents",  # so many coefficients need many texts
    cost=lambda parts, answer: Cost(ABLATIONS),
)
