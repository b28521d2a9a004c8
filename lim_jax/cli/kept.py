"""What a profile keeps of its contexts, one by one, for tables and for `compare`."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from lim_jax._checks import AnyPath, as_path, require
from lim_jax.asking import Context, places_by_name
from lim_jax.cli.folder import write_table
from lim_jax.density.statistics import Influence
from lim_jax.results.archive import load, save
from lim_jax.results.measured import MeasuredContexts

KEPT = "contexts.npz"
COLUMNS = ("context", "name", "tokens", "asked", "total", "left", "middle", "right")
RECORD_COLUMNS = ("context", "record", "share", "tokens")
Shares = Mapping[str, Float[np.ndarray, "contexts 2"]]


def record_shares(contexts: Sequence[Context], energies: Sequence[np.ndarray]) -> Shares:
    """By record, of each context the shares of its influence and of its tokens; NaN without it."""
    found: dict[str, np.ndarray] = {}
    for number, (context, energy) in enumerate(zip(contexts, energies, strict=True)):
        for name, chosen in places_by_name(context.spans).items():
            share = float(energy[chosen].sum() / (energy.sum() or 1))
            of_all = found.setdefault(name, np.full((len(contexts), 2), np.nan))
            of_all[number] = share, chosen.size / energy.size
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
        {name: of_all[:, 0].tolist() for name, of_all in shares.items()},
        delta,
    )


def write_contexts(
    kept: MeasuredContexts, influence: Influence, shares: Shares, folder: AnyPath
) -> None:
    """Write contexts.npz, which `results.load` reads, and two tables.

    In contexts.csv a row is a context, with the shares of its influence that are left, in the
    middle and right; in records_by_context.csv it is a record of a context.
    """
    folder = as_path(folder, "folder")
    save(kept, folder / KEPT)
    of_regions = np.asarray(influence.example_energies) @ np.asarray(influence.regions.weights).T
    totals = of_regions.sum(axis=1)
    parts = of_regions / np.where(totals > 0, totals, 1)[:, None]
    columns = range(len(totals)), kept.names, map(len, kept.energies), kept.asked, totals.tolist()
    rows = zip(*columns, *parts.T.tolist(), strict=True)
    write_table(folder / "contexts.csv", COLUMNS, rows)
    records = [
        (number, name, *of_all[number].tolist())
        for number in range(len(totals))
        for name, of_all in shares.items()
        if not np.isnan(of_all[number, 0])
    ]
    write_table(folder / "records_by_context.csv", RECORD_COLUMNS, records)


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
