"""A context's tokens, as they stand in the text of a page and on the card of each."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lim_jax._checks import require
from lim_jax.adjoint.ledger import CHANNELS
from lim_jax.attribution.token_text import (
    group_tokens,
    in_text,
    most_in_words,
    sum_by_text,
    visible,
)
from lim_jax.density.statistics import Influence
from lim_jax.explanations.account import HOPS, TokenBreakdown
from lim_jax.grid.partition import REGIONS
from lim_jax.prompts.contexts import positions_by_name
from lim_jax.report.shades import Shading
from lim_jax.report.wording import digits, with_error
from lim_jax.results.percentages import percent

FIELDS = ("token", "place", "position", "density", "mean", "part", "asks", *CHANNELS, *HOPS)


class ShownContext(NamedTuple):
    """A context on a page: what the text needs of each token, and its card (`FIELDS`)."""

    tokens: list[dict[str, Any]]
    records: list[list[str]]
    after: str
    length: int


def context_density(account: TokenBreakdown) -> np.ndarray:
    """Return the density of one context's own influence; zero where it has none."""
    energy = np.asarray(account.energy, float)
    return energy / (energy.mean() or 1)


def shown_context(
    account: TokenBreakdown, texts: Sequence[str], influence: Influence, shade: Shading
) -> ShownContext:
    """Return a context's tokens, shaded by its own density, and the card of each."""
    density = context_density(account)
    query_weights = np.asarray(account.query_weights)
    groups = group_tokens(texts[:-1])
    # The cell of the influence's grid in which the middle of each token's own cell lies.
    middles = (np.arange(len(density)) + 0.5) / len(density)
    cells = np.searchsorted(np.asarray(influence.grid.edges), middles) - 1
    regions = np.asarray(influence.regions.weights).argmax(axis=0)[cells]
    firsts = regions[[group[0] for _, group in groups]]
    begins = np.diff(firsts, prepend=-1) != 0
    shades = shade(np.array([density[group].mean() for _, group in groups])).tolist()
    everywhere = (query_weights > 0).all()
    tokens = [
        {
            "text": in_text(text),
            "shade": group_shade,
            "asked": bool(query_weights[group].sum() > 0 and not everywhere),
            "region": REGIONS[first] if begin else "",
        }
        for (text, group), group_shade, first, begin in zip(
            groups, shades, firsts.tolist(), begins, strict=True
        )
    ]
    names = [REGIONS[region] for region in regions]
    records = _records(account, density, groups, names, cells, influence)
    return ShownContext(tokens, records, in_text(texts[-1]), len(density))


class Block(NamedTuple):
    """A named part of a context on a page: its shares in per cent, and its main tokens."""

    name: str
    share: str
    tokens: str
    width: float
    shade: int
    most: str


def blocks_of(
    account: TokenBreakdown, texts: Sequence[str], spans: Sequence[Any], shade: Shading
) -> list[Block]:
    """Return the named parts of a context, in its order, and what is in none, with their shares."""
    density = context_density(account)
    named = {name: positions.tolist() for name, positions in positions_by_name(spans).items()}
    outside = [at for positions in named.values() for at in positions if not 0 <= at < len(density)]
    require(
        not outside,
        "spans",
        got=f"the places {outside[:3]}",
        expected=f"places from 0 to {len(density) - 1}",
        cure="Count them from the first token of the context that is shown.",
    )
    inside = {at for positions in named.values() for at in positions}
    rest = [at for at in range(len(density)) if at not in inside]
    parts = [*named.items(), ("", rest)] if named and rest else named.items()
    return [_block(name, at, density, texts, shade) for name, at in parts]


def _block(
    name: str, positions: list[int], density: np.ndarray, texts: Sequence[str], shade: Shading
) -> Block:
    """Return what the page shows of a named part: its shares, its shade and its main tokens."""
    part_density = density[positions]
    total = density.sum() or 1
    share = float(part_density.sum() / total)
    mean = np.array([part_density.mean() if positions else 0.0])
    return Block(
        name,
        percent(share),
        percent(len(positions) / len(density)),
        round(100 * share, 2),
        int(shade(mean)[0]),
        most_in_words(sum_by_text(texts[: len(density)], density, positions)),
    )


def _records(
    account: TokenBreakdown,
    density: np.ndarray,
    groups: Sequence[tuple[str, list[int]]],
    names: Sequence[str],
    cells: np.ndarray,
    influence: Influence,
) -> list[list[str]]:
    """Return what each card tells; of several tokens the mean density and summed shares."""
    length = len(density)
    mean = np.asarray(influence.density)[cells]
    error = np.asarray(influence.density_error)[cells]
    parts = [np.asarray(energies, float) for energies in (account.channels, account.hops)]
    query_weights = np.asarray(account.query_weights)
    records = []
    for text, group in groups:
        first = group[0] + 1
        last = group[-1] + 1
        weight = query_weights[group].sum()
        numbers = f"{first}" if first == last else f"{first} to {last}"
        shares = np.concatenate([parts_shares(part[:, group].sum(axis=1)) for part in parts])
        records.append(
            [
                "".join(map(visible, text)),
                f"{numbers} of {length}, {names[group[0]]}",
                f"{last / length:.4f}",
                digits(density[group].mean()),
                # A mean's error is at most the mean of the errors.
                with_error(mean[group].mean(), error[group].mean()),
                f"{digits(100 * density[group].sum() / length)} %",
                f"The loss asks here, with weight {digits(weight)}." if weight > 0 else "",
                *(f"{100 * share:.1f}" for share in shares),
            ]
        )
    return records


def parts_shares(parts: Any) -> np.ndarray:
    """Return each part's share of the parts' sum; zero where that is zero."""
    parts = np.asarray(parts, float)
    total = parts.sum(axis=0)
    return parts / np.where(total > 0, total, 1)
