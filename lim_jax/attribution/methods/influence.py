"""Influence: each token's share of the squared input adjoint, the density of one context."""

from collections.abc import Sequence
from functools import partial

from lim_jax.attribution.method import (
    Cost,
    Method,
    Run,
    Scores,
    require_uncut,
    run_options,
    scores_by_token,
)
from lim_jax.attribution.profile_run import LAYERS
from lim_jax.attribution.segments import Segment
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM
from lim_jax.models.ids import energies_of_ids
from lim_jax.prompts.contexts import Context


def scores(
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    parts: Sequence[Segment],
    loss: Loss,
    run: Run,
) -> Scores:
    """Score tokens by their shares of the whole influence (`eq:influence-density`)."""
    require_uncut(answer, "since squares of sums are not sums")
    (energy,) = energies_of_ids(
        model,
        [context.window],
        ask=[context.ask],
        loss=loss,
        progress_of_layers=partial(run.bar, **LAYERS),
        **run_options("influence", run),
    )
    shares = energy / (energy.sum() or 1)
    return scores_by_token(answer, parts, shares[None])


METHOD = Method(
    words="its share of the squared gradient",
    how="the share of the squared derivative of the answer's loss in the words",
    scores=scores,
    cost=lambda parts, answer: Cost(1, 1),
    answer_parts=("answer",),
    signed=False,
    whole="the whole influence",
)
