"""Methods whose scores are of tokens, by a program of one context."""

from collections.abc import Sequence

from lim_jax.attribution.method import Run, Scores, require_uncut, run_options, scores_by_token
from lim_jax.attribution.segments import Segment, document_numbers
from lim_jax.density.adjoints import Loss
from lim_jax.models import ids
from lim_jax.models.causal import CausalLM
from lim_jax.models.ids import scores_of_ids
from lim_jax.prompts.contexts import Context


def score_by_token(
    name: str,
    token_scores: ids.Scores,
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    parts: Sequence[Segment],
    loss: Loss,
    run: Run,
) -> Scores:
    """Score every token for the whole answer by `token_scores`, a program of one context.

    `name` is the method's, by which a checkpoint tells its scores from others.
    """
    require_uncut(answer, "as the method scores no part of it")
    (row,) = scores_of_ids(
        token_scores,
        model,
        [context.window],
        ask=[context.ask],
        loss=loss,
        parts=[document_numbers(context)],
        scores_name=name,
        **run_options(name, run),
    )
    return scores_by_token(answer, parts, row[None])
