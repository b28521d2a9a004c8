"""What named parts of contexts hold of the influence: averages, and the tokens that hold it."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from lim_jax import report
from lim_jax.asking.contexts import Context
from lim_jax.cli.kept import PartShares, Shares, part_text, parts_of
from lim_jax.probes import sample_mean
from lim_jax.report.sentences import part_words
from lim_jax.report.tokens import held_by_text, most_in_words

Energy = Float[np.ndarray, " _"]
ROW = "{:>8s}  {:>8s}  {:>8s}  {:>10s}  {:>8s}"


class Record(NamedTuple):
    """What a part holds of a context's influence, averaged over the contexts with it.

    Attributes
    ----------
    name, kind
        As in `kept.PartShares`.
    share, error
        Of the context's total Z, and the standard error over contexts.
    tokens, of_tokens
        How many it has, and its share of the context's.
    contexts
        How many have such a part.
    texts
        How many different texts these have under its name: where more than one, what is averaged
        is no one document.
    most
        Which of its tokens hold most of that, each with its part of it.
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


class _Held(NamedTuple):
    """Of a part over all contexts: the shares of its tokens by their text, and its own texts."""

    tokens: dict[str, float]
    texts: set[str]


def averaged_records(
    shares: Shares, contexts: Sequence[Context], energies: Sequence[Energy]
) -> list[Record]:
    """What the parts hold, in the order in which they are met; what is in no part stands last.

    Parameters
    ----------
    shares
        From `kept.record_shares`.
    contexts, energies
        Where the tokens are looked for that hold most.
    """
    held = _by_token(contexts, energies)
    return [_averaged(one, held[one.name, one.kind]) for one in shares]


def _averaged(part: PartShares, held: _Held) -> Record:
    """Over the contexts that have the part."""
    share, tokens, of_tokens = part.held[~np.isnan(part.held[:, 0])].T
    mean = sample_mean(jax.device_put(share))
    return Record(
        part.name,
        part.kind,
        float(mean.value),
        float(mean.error),
        float(tokens.mean()),
        float(of_tokens.mean()),
        share.size,
        len(held.texts),
        most_in_words(held.tokens),
    )


def _by_token(
    contexts: Sequence[Context], energies: Sequence[Energy]
) -> dict[tuple[str, str], _Held]:
    """By part and by token, the shares of all contexts' totals, added up."""
    found: dict[tuple[str, str], _Held] = {}
    for context, energy in zip(contexts, energies, strict=True):
        shares = energy / (energy.sum() or 1)
        for part, places in parts_of(context):
            held = found.setdefault(part, _Held({}, set()))
            for token, share in held_by_text(context.tokens, shares, places.tolist()).items():
                held.tokens[token] = held.tokens.get(token, 0.0) + share
            held.texts.add(part_text(context, places))
    return found


def record_lines(records: Sequence[Record]) -> list[str]:
    """A line for each part under a line of names: the largest share first, and the rest last."""
    if not records:
        return []
    size = max(len(part_words(one)) for one in records)
    names = ROW.format("share", "error", "tokens", "of tokens", "contexts")
    lines = [f"{'part':{size}s}  {names}  most in"]
    for one in sorted(records, key=lambda one: (one.kind == report.sentences.REST, -one.share)):
        error = f"{one.error:.1%}" if np.isfinite(one.error) else "-"
        tokens = f"{one.tokens:.0f}" if one.tokens == round(one.tokens) else f"{one.tokens:.1f}"
        shares = ROW.format(
            f"{one.share:.1%}", error, tokens, f"{one.of_tokens:.1%}", f"{one.contexts}"
        )
        lines.append(f"{part_words(one):{size}s}  {shares}  {one.most}")
    return lines
