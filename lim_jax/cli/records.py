"""What named parts of contexts hold of the influence: averages, and the tokens that hold it."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from lim_jax import report
from lim_jax.asking import Context, places_by_name
from lim_jax.cli.kept import Shares
from lim_jax.probes import sample_mean

Energy = Float[np.ndarray, " _"]
MOST_TOKENS = 3


class Record(NamedTuple):
    """What spans of one name hold of a context's influence, averaged over the contexts with it.

    Attributes
    ----------
    share, error
        Of the context's total Z, and the standard error over contexts.
    tokens
        Of the context's tokens.
    contexts
        How many have such a span.
    most
        Which of its tokens hold most of that, each with its part of it.
    """

    share: float
    error: float
    tokens: float
    contexts: int
    most: str = ""


def averaged_records(
    shares: Shares, contexts: Sequence[Context], energies: Sequence[Energy]
) -> dict[str, Record]:
    """What the spans of each name hold, by name, in the order in which they are met.

    Parameters
    ----------
    shares
        From `kept.record_shares`.
    contexts, energies
        Where the tokens are looked for that hold most.
    """
    held = _by_token(contexts, energies)
    return {name: _averaged(of_all, held.get(name, {})) for name, of_all in shares.items()}


def _averaged(shares: Float[np.ndarray, "contexts 2"], held: Mapping[str, float]) -> Record:
    """Over the contexts that have the record."""
    share, tokens = shares[~np.isnan(shares[:, 0])].T
    mean, whole = sample_mean(jax.device_put(share)), sum(held.values()) or 1
    most = sorted(held.items(), key=lambda pair: -pair[1])[:MOST_TOKENS]
    named = [
        f"{json.dumps(token, ensure_ascii=False)} {report.percent(part / whole)}"
        for token, part in most
    ]
    error, of_tokens = float(mean.error), float(tokens.mean())
    return Record(float(mean.value), error, of_tokens, tokens.size, ", ".join(named))


def _by_token(
    contexts: Sequence[Context], energies: Sequence[Energy]
) -> dict[str, dict[str, float]]:
    """By record and by token, the shares of all contexts' totals, added up."""
    found: dict[str, dict[str, float]] = {}
    for context, energy in zip(contexts, energies, strict=True):
        parts = energy / (energy.sum() or 1)
        for name, places in places_by_name(context.spans).items():
            held = found.setdefault(name, {})
            for place in places.tolist():
                token = context.tokens[place]
                held[token] = held.get(token, 0.0) + float(parts[place])
    return found


def record_lines(records: Mapping[str, Record]) -> list[str]:
    """A line for each record under a line of names: the largest share first."""
    if not records:
        return []
    names = " ".join(f"{name:>10s}" for name in ("share", "error", "of tokens", "contexts"))
    lines = [f"{'record':26s} {names}  most in"]
    for name, one in sorted(records.items(), key=lambda pair: -pair[1].share):
        error = f"{one.error:10.4f}" if np.isfinite(one.error) else f"{'-':>10s}"
        shares = f"{one.share:10.4f} {error} {one.tokens:10.4f} {one.contexts:10d}"
        lines.append(f"{name:26s} {shares}  {one.most}")
    return lines
