"""Named parts of contexts scored by any method: means over the contexts that have them."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from lim_jax._checks import require
from lim_jax.attribution.method import Cost, Run, Scores
from lim_jax.attribution.methods.method_table import method_named
from lim_jax.attribution.parts import UNNAMED, is_document, mean_shares, scores_by_context
from lim_jax.attribution.profile_run import no_bar
from lim_jax.attribution.segments import context_segments, whole_answer
from lim_jax.attribution.shared_contexts import shared_prefixes, shared_texts
from lim_jax.models import CausalLM
from lim_jax.models.loss_kinds import LossName, loss_kind
from lim_jax.models.padding import fitted_padding
from lim_jax.prompts.contexts import Context
from lim_jax.prompts.own_answers import ask_for_own_word


class MeanScore(NamedTuple):
    """A part's score by a method, averaged over the contexts that have the part.

    Attributes
    ----------
    name, kind
        The part, as `parts.iterate_parts` names it.
    score
        Its mean score, in units of the loss where the method is signed, and positive where the part
        speaks for what is asked; of other methods a share, from 0 to 1.
    error
        The standard error of `score` over contexts, in its unit; infinite where one context has the
        part.
    of_documents
        Of a document or span `score` over the sum of all such parts' sizes of `score`, from -1 to
        1: the sizes add up to one. None of other parts.
    tokens, of_tokens, contexts, texts
        How large the part is and how often it stands there, as `parts.MeanShare` has it.
    most
        The tokens that speak most for what is asked, over all contexts, each with its part of what
        all such tokens of the part say in per cent, as a text; empty where no token has a score.
    """

    name: str
    kind: str
    score: float
    error: float
    of_documents: float | None
    tokens: float
    of_tokens: float
    contexts: int
    texts: int
    most: str


class ScoresOfContexts(NamedTuple):
    """Contexts with their scores, and the parts of each name on average."""

    method: str
    contexts: Sequence[Context]
    scores: Sequence[Scores]
    records: Sequence[MeanScore]

    @property
    def total_effects(self) -> Float[np.ndarray, " contexts"] | None:
        """By how much all documents lower each context's loss; None where the method lacks it."""
        effects = [scores.total_effect for scores in self.scores]
        totals = [float(effect.sum()) for effect in effects if effect is not None]
        return np.array(totals) if totals and len(totals) == len(effects) else None


def score_contexts(
    network: CausalLM,
    contexts: Sequence[Context],
    loss: LossName,
    method: str,
    run: Run,
) -> ScoresOfContexts:
    """Score the named parts of contexts by a method; each finished context is kept on disk."""
    require(
        any(context.spans for context in contexts),
        "data",
        got="lines without named parts",
        expected=f"documents or spans, which `method={method}` scores",
        cure="Give the lines documents or spans, or leave `method` out for a profile by token.",
    )
    of_own_word = loss == "own-margin"
    kind = loss_kind("margin" if of_own_word else loss)
    score = method_named(method, foil=kind.needs_foil).scores
    run = run._replace(padding=fitted_padding(context.length for context in contexts))
    prefix_of = shared_prefixes(network, contexts)
    texts_of = shared_texts(network, contexts)
    rows = []
    for number in run.bar(range(len(contexts)), desc=method, unit="context"):
        context = contexts[number]
        if of_own_word:
            context = ask_for_own_word(network, context, run.padding)
        context_run = run.within(f"{number}")._replace(
            bar=no_bar, prefix=partial(prefix_of, number), texts=partial(texts_of, number)
        )
        answer = [whole_answer(context)]
        parts = context_segments(context)
        rows.append(score(network, context, answer, parts, kind.loss, context_run))
    return ScoresOfContexts(method, contexts, rows, mean_scores_of_parts(contexts, rows))


def cost_of_contexts(contexts: Sequence[Context], method: str) -> Cost:
    """Return what a method takes for the context with the most parts."""
    parts = max(len(context_segments(context)) for context in contexts)
    return method_named(method).cost(parts, 1)


def mean_scores_of_parts(
    contexts: Sequence[Context], all_scores: Sequence[Scores]
) -> list[MeanScore]:
    """Average the scores of the parts of each name over contexts; the unnamed rest stands last."""
    by_name = [scores.by_name() for scores in all_scores]
    parts = scores_by_context(contexts, by_name)
    speaking_for = [
        np.zeros(context.length) if scores.tokens is None else np.maximum(scores.tokens, 0)
        for context, scores in zip(contexts, all_scores, strict=True)
    ]
    means = mean_shares(parts, contexts, speaking_for)
    size = sum(abs(mean.share) for mean in means if is_document(mean.name, mean.kind)) or 1
    return [
        MeanScore(
            mean.name,
            mean.kind,
            score=mean.share,
            error=mean.error,
            of_documents=mean.share / size if is_document(mean.name, mean.kind) else None,
            tokens=mean.tokens,
            of_tokens=mean.of_tokens,
            contexts=mean.contexts,
            texts=mean.texts,
            most=mean.most,
        )
        for mean in means
    ]


def scores_finding(result: ScoresOfContexts) -> str:
    """Tell which part's score is the largest on average, and which speaks against what is asked."""
    named = (part for part in result.records if part.kind != UNNAMED)
    parts = sorted(named, key=lambda part: part.score)
    if not parts:
        return f"No named part has a score by {result.method}."
    least = parts[0]
    top = parts[-1]
    finding = f"“{top.name}” has the largest score by {result.method}, {_with_error(top)}."
    if least.score < 0 < top.score:
        finding += f" “{least.name}” has the least, {_with_error(least)}."
    if result.total_effects is None:
        return finding
    finding += f" All documents together give {result.total_effects.mean():+.3f} on average;"
    sums = [_sum_of_documents(scores) for scores in result.scores]
    if None in sums:
        return f"{finding} spans overlap, so that their scores do not add up to it."
    sums = np.array(sums, float)
    most = abs(result.total_effects - sums).max()
    return (
        f"{finding} their scores add up to {sums.mean():+.3f}, and differ from it by at most "
        f"{most:.3f} in a context."
    )


def _sum_of_documents(scores: Scores) -> float | None:
    """Sum the scores of documents, each token once; None of spans that overlap without them."""
    positions = [scores.parts[column].positions for column in scores.documents]
    union = np.unique(np.concatenate([*positions, np.zeros(0, int)]))
    if union.size == sum(map(len, positions)):
        return float(scores.by_part[:, scores.documents].sum())
    return None if scores.tokens is None else float(scores.tokens[union].sum())


def _with_error(part: MeanScore) -> str:
    """Write a part's score, with its standard error where that is finite."""
    return f"{part.score:+.3f}" + (f" ± {part.error:.3f}" if np.isfinite(part.error) else "")
