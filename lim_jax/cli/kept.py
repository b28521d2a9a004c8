"""What a profile keeps of its contexts, one by one, for tables and for `compare`."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from lim_jax._checks import AnyPath, as_path, require
from lim_jax.asking.contexts import Context, places_by_name
from lim_jax.asking.documents import QUESTION
from lim_jax.cli.columns import FILES
from lim_jax.cli.folder import write_table
from lim_jax.density.statistics import Influence
from lim_jax.report.sentences import REST
from lim_jax.results.archive import load, save
from lim_jax.results.measured import MeasuredContexts

KEPT = "contexts.npz"


class PartShares(NamedTuple):
    """What a part holds of each context.

    Attributes
    ----------
    name
        Of the part; empty for the rest.
    kind
        ``"part"``, or ``"rest"`` of what is in no part: its name is no key, for a part may have
        any.
    held
        Of each context its share of the influence, how many tokens it has, and its share of these;
        NaN without it.
    """

    name: str
    kind: str
    held: Float[np.ndarray, "contexts 3"]


Shares = Sequence[PartShares]


def record_shares(contexts: Sequence[Context], energies: Sequence[np.ndarray]) -> Shares:
    """Of the parts of each name, in the order in which they are met; the rest stands last."""
    found: dict[tuple[str, str], PartShares] = {}
    for number, (context, energy) in enumerate(zip(contexts, energies, strict=True)):
        for part, chosen in parts_of(context):
            share = float(energy[chosen].sum() / (energy.sum() or 1))
            none = np.full((len(contexts), 3), np.nan)
            of_all = found.setdefault(part, PartShares(*part, none))
            of_all.held[number] = share, chosen.size, chosen.size / energy.size
    return sorted(found.values(), key=lambda one: one.kind == REST)


def parts_of(context: Context) -> Iterator[tuple[tuple[str, str], np.ndarray]]:
    """The name and the kind of each part of a context, and its tokens; last those in no part."""
    named = places_by_name(context.spans)
    for name, chosen in named.items():
        yield (name, "part"), chosen
    rest = np.setdiff1d(np.arange(context.length), np.concatenate([*named.values(), []]))
    if named and rest.size:
        yield ("", REST), rest


def part_text(context: Context, places: np.ndarray) -> str:
    """A part's letters and digits: what stands at its edges differs from order to order."""
    return "".join(filter(str.isalnum, "".join(context.tokens[place] for place in places.tolist())))


def context_names(contexts: Sequence[Context], orders: int = 1) -> list[str]:
    """What contexts are called: by their question, their id, or their number in the tables.

    Parameters
    ----------
    contexts
        The first of all.
    orders
        Of how many orders of one line each, one after another.

    Examples
    --------
    >>> from lim_jax.asking import context_of
    >>> from lim_jax.asking.documents import RenderedPrompt
    >>> asked = context_of(RenderedPrompt("Wren. Who sings?", ((6, 16, "question"),)), " She")
    >>> context_names([asked._replace(id="7"), context_of(RenderedPrompt("Who?"), " She")])
    ['“Who sings?” (id 7)', 'context 1']
    """
    found = []
    for number, context in enumerate(contexts):
        places = places_by_name(context.spans).get(QUESTION, [])
        question = "".join(context.tokens[place] for place in places).strip()
        id = f"id {context.id}" if context.id else ""
        name = f"“{question}”" + f" ({id})" * bool(id) if question else id or f"context {number}"
        found.append(name + f", order {number % orders}" * (orders > 1))
    return found


def measured_contexts(
    contexts: Sequence[Context], energies: Sequence[np.ndarray], shares: Shares, delta: float
) -> MeasuredContexts:
    """Contexts under their ids, or names that tell their texts, whichever tokenizer cut these."""
    texts = ["".join(context.tokens).encode() for context in contexts]
    return MeasuredContexts(
        [
            context.id or hashlib.sha256(text).hexdigest()[:16]
            for context, text in zip(contexts, texts, strict=True)
        ],
        list(energies),
        [int(np.flatnonzero(context.weights)[0]) for context in contexts],
        {one.name: one.held[:, 0].tolist() for one in shares if one.kind != REST},
        delta,
    )


def write_contexts(
    kept: MeasuredContexts, influence: Influence, shares: Shares, numbers: range, folder: AnyPath
) -> None:
    """Write contexts.npz, which `results.load` reads, and two tables.

    In contexts.csv a row is a context, with the shares of its influence that are left, in the
    middle and right; in records_by_context.csv it is a part of a context.

    Parameters
    ----------
    kept, influence, shares
        Of the contexts.
    numbers
        Of each context, as in tokens.csv.
    folder
        To write to.
    """
    folder = as_path(folder, "folder")
    save(kept, folder / KEPT)
    of_regions = np.asarray(influence.example_energies) @ np.asarray(influence.regions.weights).T
    totals = of_regions.sum(axis=1)
    parts = of_regions / np.where(totals > 0, totals, 1)[:, None]
    columns = numbers, kept.names, map(len, kept.energies), kept.asked, totals.tolist()
    rows = zip(*columns, *parts.T.tolist(), strict=True)
    write_table(folder / "contexts.csv", FILES["contexts.csv"], rows)
    records = [
        (number, id, one.name, one.kind, share, int(tokens), of_tokens)
        for at, (number, id) in enumerate(zip(numbers, kept.names, strict=True))
        for one in shares
        for share, tokens, of_tokens in [one.held[at].tolist()]
        if not np.isnan(share)
    ]
    write_table(folder / "records_by_context.csv", FILES["records_by_context.csv"], records)


def read_contexts_of(folder: AnyPath, name: str) -> MeasuredContexts:
    """What `profile` kept in its folder, by the name of an argument."""
    folder = as_path(folder, name)
    require(
        (folder / KEPT).is_file(),
        name,
        got=f"{folder}, which has no {KEPT}",
        expected="the folder of a finished lim-jax profile or ask",
        cure="Run that first; those of before this version are measured anew with --overwrite.",
    )
    found = load(folder / KEPT)
    require(
        isinstance(found, MeasuredContexts),
        name,
        got=f"{folder / KEPT} with another result",
        expected="measured contexts",
        cure="Run lim-jax profile anew.",
    )
    return found
