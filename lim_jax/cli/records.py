"""What named parts of contexts hold of the influence: averages, and the tokens that hold it."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from lim_jax._tables import text_table
from lim_jax.cli.contexts_io import PartShares, Shares, part_text, parts_of
from lim_jax.probes import sample_mean
from lim_jax.prompts.contexts import Context
from lim_jax.report.sentences import REST, part_words
from lim_jax.report.tokens import held_by_text, most_in_words

Energy = Float[np.ndarray, " _"]
HEAD = ("part", "   share", "   error", "  tokens", " of tokens", "contexts", "most in")


class Record(NamedTuple):
    """What a part holds, averaged over the contexts that have it: its share of their influence.

    `of_tokens` is its share of their tokens, `texts` how many different texts they have under its
    name, and `most` which of its tokens hold most of its share, each with its part of that.
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


class _PartTokens(NamedTuple):
    """Of a part over all contexts: the shares of its tokens by their text, and its own texts."""

    shares: dict[str, float]
    texts: set[str]


def averaged_records(
    shares: Shares, contexts: Sequence[Context], energies: Sequence[Energy]
) -> list[Record]:
    """Average what each part holds; the tokens that hold most are looked for in `contexts`."""
    tokens = _by_token(contexts, energies)
    return [_averaged(part, tokens[part.name, part.kind]) for part in shares]


def _averaged(part: PartShares, held: _PartTokens) -> Record:
    """Average over the contexts that have the part."""
    share, tokens, of_tokens = part.held[~np.isnan(part.held[:, 0])].T
    mean = sample_mean(jax.device_put(share))
    value, error = float(mean.value), float(mean.error)
    numbers = float(tokens.mean()), float(of_tokens.mean()), share.size, len(held.texts)
    return Record(part.name, part.kind, value, error, *numbers, most_in_words(held.shares))


def _by_token(
    contexts: Sequence[Context], energies: Sequence[Energy]
) -> dict[tuple[str, str], _PartTokens]:
    """By part and by token, the shares of all contexts' totals, added up."""
    parts: dict[tuple[str, str], _PartTokens] = {}
    for context, energy in zip(contexts, energies, strict=True):
        shares = energy / (energy.sum() or 1)
        for key, places in parts_of(context):
            part = parts.setdefault(key, _PartTokens({}, set()))
            for token, share in held_by_text(context.tokens, shares, places.tolist()).items():
                part.shares[token] = part.shares.get(token, 0.0) + share
            part.texts.add(part_text(context, places))
    return parts


def record_lines(records: Sequence[Record]) -> list[str]:
    """A line for each part under a line of names: the largest share first, and the rest last."""
    rows: list[Sequence[str]] = [HEAD]
    for part in sorted(records, key=lambda part: (part.kind == REST, -part.share)):
        error = f"{part.error:.1%}" if np.isfinite(part.error) else "-"
        tokens = f"{part.tokens:.0f}" if part.tokens.is_integer() else f"{part.tokens:.1f}"
        of_tokens, contexts = f"{part.of_tokens:.1%}", f"{part.contexts}"
        rows.append(
            (part_words(part), f"{part.share:.1%}", error, tokens, of_tokens, contexts, part.most)
        )
    return text_table(rows, left=(0, 6)).splitlines() if records else []
