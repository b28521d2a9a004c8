"""The contexts of a profile, one by one: written for tables and for `compare`, and read back."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from lim_jax._checks import require
from lim_jax.cli.columns import FILES
from lim_jax.cli.folder import write_table
from lim_jax.density.statistics import Influence
from lim_jax.prompts.contexts import Context, places_by_name
from lim_jax.prompts.documents import QUESTION
from lim_jax.report.sentences import REST
from lim_jax.results.archive import load, save
from lim_jax.results.measured import MeasuredContexts

CONTEXTS = "contexts.npz"


class PartShares(NamedTuple):
    """What a part holds of each context: its share, how many tokens, and its share of these.

    NaN without it. What is in no part has the kind ``"rest"``, since a part may have any name.
    """

    name: str
    kind: str
    held: Float[np.ndarray, "contexts 3"]


Shares = Sequence[PartShares]


def record_shares(contexts: Sequence[Context], energies: Sequence[np.ndarray]) -> Shares:
    """Of the parts of each name, in the order in which they are met; the rest stands last."""
    shares: dict[tuple[str, str], PartShares] = {}
    for number, (context, energy) in enumerate(zip(contexts, energies, strict=True)):
        for part, places in parts_of(context):
            share = float(energy[places].sum() / (energy.sum() or 1))
            without = np.full((len(contexts), 3), np.nan)
            of_all = shares.setdefault(part, PartShares(*part, without))
            of_all.held[number] = share, places.size, places.size / energy.size
    return sorted(shares.values(), key=lambda part: part.kind == REST)


def parts_of(context: Context) -> Iterator[tuple[tuple[str, str], np.ndarray]]:
    """The name and the kind of each part of a context, and its tokens; last those in no part."""
    named = places_by_name(context.spans)
    for name, places in named.items():
        yield (name, "part"), places
    rest = np.setdiff1d(np.arange(context.length), np.concatenate([*named.values(), []]))
    if named and rest.size:
        yield ("", REST), rest


def part_text(context: Context, places: np.ndarray) -> str:
    """A part's letters and digits: what stands at its edges differs from order to order."""
    return "".join(filter(str.isalnum, "".join(context.tokens[place] for place in places.tolist())))


def context_names(contexts: Sequence[Context], orders: int = 1) -> list[str]:
    """What the first contexts are called: by their question, their id, or their number.

    Each line stands in so many `orders`, one after another.

    >>> from lim_jax.prompts.documents import RenderedPrompt
    >>> from lim_jax.prompts import context_of
    >>> asked = context_of(RenderedPrompt("Wren. Who sings?", ((6, 16, "question"),)), " She")
    >>> context_names([asked._replace(id="7"), context_of(RenderedPrompt("Who?"), " She")])
    ['“Who sings?” (id 7)', 'context 1']
    """
    names = []
    for number, context in enumerate(contexts):
        places = places_by_name(context.spans).get(QUESTION, [])
        question = "".join(context.tokens[place] for place in places).strip()
        id = f"id {context.id}" if context.id else ""
        name = f"“{question}”" + f" ({id})" * bool(id) if question else id or f"context {number}"
        names.append(name + f", order {number % orders}" * (orders > 1))
    return names


def measured_contexts(
    contexts: Sequence[Context], energies: Sequence[np.ndarray], shares: Shares, delta: float
) -> MeasuredContexts:
    """Contexts under their ids, or names that tell their texts, whichever tokenizer cut these."""
    texts = ["".join(context.tokens).encode() for context in contexts]
    names = [
        context.id or hashlib.sha256(text).hexdigest()[:16]
        for context, text in zip(contexts, texts, strict=True)
    ]
    asked = [int(np.flatnonzero(context.weights)[0]) for context in contexts]
    by_name = {part.name: part.held[:, 0].tolist() for part in shares if part.kind != REST}
    return MeasuredContexts(names, list(energies), asked, by_name, delta)


def write_contexts(
    measured: MeasuredContexts, influence: Influence, shares: Shares, numbers: range, folder: Path
) -> None:
    """Write contexts.npz, which `results.load` reads, and two tables.

    In contexts.csv a row is a context, with the shares of its influence that are left, in the
    middle and right; in records_by_context.csv it is a part of a context. Contexts have their
    `numbers` in tokens.csv.
    """
    save(measured, folder / CONTEXTS)
    of_regions = np.asarray(influence.example_energies) @ np.asarray(influence.regions.weights).T
    totals = of_regions.sum(axis=1)
    parts = of_regions / np.where(totals > 0, totals, 1)[:, None]
    lengths = map(len, measured.energies)
    columns = numbers, measured.names, lengths, measured.asked, totals.tolist()
    rows = zip(*columns, *parts.T.tolist(), strict=True)
    write_table(folder / "contexts.csv", FILES["contexts.csv"], rows)
    records = [
        (number, id, part.name, part.kind, share, int(tokens), of_tokens)
        for at, (number, id) in enumerate(zip(numbers, measured.names, strict=True))
        for part in shares
        for share, tokens, of_tokens in [part.held[at].tolist()]
        if not np.isnan(share)
    ]
    write_table(folder / "records_by_context.csv", FILES["records_by_context.csv"], records)


def read_contexts(folder: Path, name: str) -> MeasuredContexts:
    """Read the contexts that `profile` wrote to its folder, by the name of an argument."""
    path = folder / CONTEXTS
    expected = "the folder of a finished lim-jax profile or ask"
    cure = "Run that first; those of before this version are measured anew with --overwrite."
    got = f"{folder}, which has no {CONTEXTS}"
    require(path.is_file(), name, got=got, expected=expected, cure=cure)
    measured = load(path)
    require(
        isinstance(measured, MeasuredContexts),
        name,
        got=f"{path} with another result",
        expected="measured contexts",
        cure="Run lim-jax profile anew.",
    )
    return measured
