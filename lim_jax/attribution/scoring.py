"""Named parts of contexts scored by any method: means over the contexts that have them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from lim_jax._checks import require
from lim_jax.attribution.measuring import Bar, no_bar
from lim_jax.attribution.methods import (
    METHODS,
    Cost,
    MethodName,
    Scored,
    scores_of_parts,
)
from lim_jax.attribution.parts import REST, averaged_records, is_document, part_scores, parts_of
from lim_jax.models import CausalLM
from lim_jax.models.losses import LossName, loss_kind
from lim_jax.prompts.contexts import Context


class ScoredPart(NamedTuple):
    """A part's score by a method, averaged over the contexts that have it; else as `parts.Record`.

    `of_documents` is its mean share of the sizes of all documents' scores, None of other parts.
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


class ScoredContexts(NamedTuple):
    """Contexts with their scores, the parts of each name on average, and what all parts gave."""

    method: str
    contexts: Sequence[Context]
    scored: Sequence[Scored]
    records: Sequence[ScoredPart]
    given: Float[np.ndarray, " contexts"] | None = None


def score_contexts(
    network: CausalLM,
    contexts: Sequence[Context],
    asked: LossName,
    method: MethodName,
    *,
    checkpoint: Path | None = None,
    bar: Bar = no_bar,
) -> ScoredContexts:
    """Score the parts of contexts by a method; with a checkpoint a run goes on where it stopped."""
    require(
        any(context.spans for context in contexts), "data", got="lines without named parts",
        expected=f"documents or spans, which `method={method}` scores",
        cure="Give lines of documents or with spans; of a text `method=influence` says by token.",
    )  # fmt: skip
    loss = loss_kind(asked).loss
    scored = scores_of_parts(network, contexts, loss, method, checkpoint=checkpoint, bar=bar)
    adds_up = METHODS[method].adds_up
    given = np.array([scores.given for scores in scored], float) if adds_up else None
    return ScoredContexts(method, contexts, scored, scored_records(contexts, scored), given)


def cost_of_contexts(contexts: Sequence[Context], method: MethodName) -> Cost:
    """What a method takes for the context of the most parts."""
    return METHODS[method].cost(max(len(list(parts_of(context))) for context in contexts))


def scored_records(contexts: Sequence[Context], scored: Sequence[Scored]) -> list[ScoredPart]:
    """The parts of each name, in the order in which they are met; the rest stands last."""
    parts = part_scores(contexts, [scores.parts for scores in scored])
    speaking_for = [
        np.zeros(context.length) if scores.tokens is None else np.maximum(scores.tokens, 0)
        for context, scores in zip(contexts, scored, strict=True)
    ]
    sizes = [
        sum(abs(score) for part, score in scores.parts.items() if is_document(*part)) or 1
        for scores in scored
    ]
    records = []
    for part, mean in zip(parts, averaged_records(parts, contexts, speaking_for), strict=True):
        share = float(np.nanmean(part.held[:, 0] / sizes)) if is_document(*part[:2]) else None
        records.append(ScoredPart(*mean[:4], share, *mean[4:]))
    return records


def scores_finding(scored: ScoredContexts) -> str:
    """Which part's score is the largest on average, and which speaks against what is asked."""
    named = (part for part in scored.records if part.kind != REST)
    ordered = sorted(named, key=lambda part: part.score)
    least, top = ordered[0], ordered[-1]
    finding = f"“{top.name}” has the largest score by {scored.method}, {_with_error(top)}."
    if least.score < 0 < top.score:
        finding += f" “{least.name}” has the least, {_with_error(least)}."
    if scored.given is None:
        return finding
    # They differ by the quadrature's error alone.
    sums = np.array([sum(scores.parts.values()) for scores in scored.scored])
    most = abs(scored.given - sums).max()
    return (
        f"{finding} All documents together give {scored.given.mean():+.3f} on average; their "
        f"scores add up to {sums.mean():+.3f}, and differ from it by at most {most:.3f} in a "
        "context."
    )


def _with_error(part: ScoredPart) -> str:
    return f"{part.score:+.3f}" + (f" ± {part.error:.3f}" if np.isfinite(part.error) else "")
