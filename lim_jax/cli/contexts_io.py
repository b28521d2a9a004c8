"""The contexts of a profile, one by one: written for tables and for `compare`, and read back."""

from pathlib import Path

import numpy as np

from lim_jax._checks import require
from lim_jax.attribution.parts import Shares
from lim_jax.cli.columns import FILES
from lim_jax.cli.folder import write_table
from lim_jax.density.statistics import Influence
from lim_jax.results.archive import load, save
from lim_jax.results.measured import MeasuredContexts

CONTEXTS = "contexts.npz"


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
