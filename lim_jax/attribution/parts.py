"""What named parts of contexts hold of the influence: shares by context, and their averages."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from lim_jax.attribution.token_text import most_in_words, sum_by_text
from lim_jax.probes import sample_mean
from lim_jax.prompts.contexts import Context, positions_by_name
from lim_jax.prompts.documents import QUESTION, is_reserved
from lim_jax.results.context_energies import MeasuredContexts

Energy = Float[np.ndarray, " _"]
UNNAMED = "rest"  # the kind of what is in no part
IN_NO_PART = "the rest, in no part"


class PartByContext(NamedTuple):
    """A part's score in each context; NaN in contexts that lack the part.

    Attributes
    ----------
    name, kind
        The part, as `iterate_parts` names it.
    scores
        Its share of the context's influence, or its score by another method.
    tokens, token_shares
        How many tokens it has, and their share of the context's tokens.
    """

    name: str
    kind: str
    scores: Float[np.ndarray, " contexts"]
    tokens: Float[np.ndarray, " contexts"]
    token_shares: Float[np.ndarray, " contexts"]


PartsByContext = Sequence[PartByContext]


def shares_by_context(
    contexts: Sequence[Context], energies: Sequence[np.ndarray]
) -> PartsByContext:
    """Return the share of the influence that each named part holds of each context."""
    scores = []
    for context, energy in zip(contexts, energies, strict=True):
        total = energy.sum() or 1
        shares = {part: float(energy[at].sum() / total) for part, at in iterate_parts(context)}
        scores.append(shares)
    return scores_by_context(contexts, scores)


def scores_by_context(
    contexts: Sequence[Context], scores: Sequence[Mapping[tuple[str, str], float]]
) -> PartsByContext:
    """Collect the score and the tokens that each part has in each context.

    A document without a score has no tokens and gives nothing; other parts without are left out.
    """
    parts: dict[tuple[str, str], PartByContext] = {}
    for number, (context, scores_of_context) in enumerate(zip(contexts, scores, strict=True)):
        for part, positions in iterate_parts(context):
            if part not in scores_of_context and not is_document(*part):
                continue
            if part not in parts:
                parts[part] = _part_of_no_context(*part, len(contexts))
            by_context = parts[part]
            by_context.scores[number] = scores_of_context.get(part, 0.0)
            by_context.tokens[number] = positions.size
            by_context.token_shares[number] = positions.size / context.length
    return sorted(parts.values(), key=lambda part: part.kind == UNNAMED)


def _part_of_no_context(name: str, kind: str, contexts: int) -> PartByContext:
    """Return a part that no context has yet."""
    scores = np.full(contexts, np.nan)
    return PartByContext(name, kind, scores, tokens=scores.copy(), token_shares=scores.copy())


def is_document(name: str, kind: str) -> bool:
    """Tell whether a part is a document or a span of the user's, not the question or a message."""
    return kind == "part" and not is_reserved(name)


def iterate_parts(context: Context) -> Iterator[tuple[tuple[str, str], np.ndarray]]:
    """Yield the name and kind of each part of a context with its tokens, last those in no part."""
    named = positions_by_name(context.spans)
    for name, positions in named.items():
        yield (name, "part"), positions
    rest = np.setdiff1d(np.arange(context.length), np.concatenate([*named.values(), []]))
    if named and rest.size:
        yield ("", UNNAMED), rest


def windows_and_ask(contexts: Sequence[Context]) -> tuple[list[np.ndarray], list[Any]]:
    """Return the windows of contexts, and what is asked of each."""
    return [context.window for context in contexts], [context.ask for context in contexts]


def part_text(context: Context, positions: np.ndarray) -> str:
    """Return a part's letters and digits, as what stands at its edges differs between orders."""
    text = "".join(context.tokens[position] for position in positions.tolist())
    return "".join(filter(str.isalnum, text))


def context_names(contexts: Sequence[Context], orders: int = 1) -> list[str]:
    """Name contexts by question and id, else by number; of several orders, by the order too."""
    names = []
    for number, context in enumerate(contexts):
        question = "".join(context.part_texts.get(QUESTION, {}).values()).strip()
        if question and context.id:
            name = f"“{question}” (id {context.id})"
        elif question:
            name = f"“{question}”"
        elif context.id:
            name = f"id {context.id}"
        else:
            name = f"context {number}"
        if orders > 1:
            name += f", order {number % orders}"
        names.append(name)
    return names


def context_ids(contexts: Sequence[Context]) -> list[str]:
    """Return each context's id, or a digest of its text where it has none."""
    texts = ["".join(context.tokens).encode() for context in contexts]
    return [
        context.id or hashlib.sha256(text).hexdigest()[:16]
        for context, text in zip(contexts, texts, strict=True)
    ]


def measured_contexts(
    contexts: Sequence[Context],
    energies: Sequence[np.ndarray],
    shares: PartsByContext,
    delta: float,
) -> MeasuredContexts:
    """Return what was measured of contexts, under their ids."""
    first_queries = [context.first_query for context in contexts]
    by_name = {part.name: part.scores.tolist() for part in shares if part.kind != UNNAMED}
    return MeasuredContexts(context_ids(contexts), list(energies), first_queries, by_name, delta)


class MeanShare(NamedTuple):
    """What a part holds, averaged over the contexts that have it: its share of their influence.

    Attributes
    ----------
    name, kind
        The part, as `iterate_parts` names it.
    share
        Its share of a context's influence, from 0 to 1, averaged over contexts.
    error
        The standard error of `share`; infinite where one context has the part.
    tokens
        How many tokens it has in a context, on average.
    of_tokens
        Their share of a context's tokens, from 0 to 1, on average.
    contexts
        How many contexts have it.
    texts
        How many different texts it has in them, told apart by letters and digits.
    most
        The tokens that hold most of its share over all contexts, each with its part of that in per
        cent, as a text; empty where it holds none.
    """

    name: str
    kind: str
    share: float
    error: float
    tokens: float
    of_tokens: float
    contexts: int
    texts: int
    most: str = ""


def mean_shares(
    shares: PartsByContext, contexts: Sequence[Context], energies: Sequence[Energy]
) -> list[MeanShare]:
    """Average what each part holds over `contexts`, and name the tokens that hold most of it."""
    by_text = defaultdict[tuple[str, str], Counter](Counter)
    texts = defaultdict[tuple[str, str], set[str]](set)
    for context, energy in zip(contexts, energies, strict=True):
        shares_of_tokens = energy / (energy.sum() or 1)
        for part, positions in iterate_parts(context):
            by_text[part].update(sum_by_text(context.tokens, shares_of_tokens, positions.tolist()))
            texts[part].add(part_text(context, positions))
    means = []
    for part in shares:
        label = (part.name, part.kind)
        means.append(_mean_share(part, by_text[label], len(texts[label])))
    return means


def _mean_share(part: PartByContext, by_text: Counter, texts: int) -> MeanShare:
    """Average a part's share and its tokens over the contexts that have it."""
    is_here = ~np.isnan(part.scores)
    mean, error = map(float, sample_mean(jax.device_put(part.scores[is_here])))
    return MeanShare(
        part.name,
        part.kind,
        share=mean,
        error=error,
        tokens=float(part.tokens[is_here].mean()),
        of_tokens=float(part.token_shares[is_here].mean()),
        contexts=int(is_here.sum()),
        texts=texts,
        most=most_in_words(by_text) if any(by_text.values()) else "",
    )
