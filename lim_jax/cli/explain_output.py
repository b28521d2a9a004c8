"""Explanations printed, written and drawn: words first, then numbers and figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from lim_jax import models, plots, report
from lim_jax.adjoint.ledger import CHANNELS
from lim_jax.attribution.explaining import stem
from lim_jax.attribution.heads import HeadOfPart, heads_table
from lim_jax.attribution.measuring import shown_accounts
from lim_jax.attribution.parts import Record, averaged_records, context_names, record_shares
from lim_jax.attribution.time_budget import Case, described_contexts
from lim_jax.explanations import Explanation
from lim_jax.explanations.account import HOPS
from lim_jax.explanations.tables import influence_table
from lim_jax.explanations.windows import Windows
from lim_jax.grid.partition import Regions
from lim_jax.models import LanguageModel
from lim_jax.probes import Estimate
from lim_jax.prompts.contexts import Context
from lim_jax.report import sentences
from lim_jax.results.tables import write_json, write_table


def report_explanations(
    results: Mapping[str, Explanation],
    masses: Mapping[str, Estimate],
    losses: jax.Array | None,
    regions: Regions,
    contexts: Sequence[Context],
    heads: Mapping[str, Sequence[HeadOfPart]],
    out: Path,
) -> None:
    """Print every explanation, write all numbers and draw; `losses` are those of training."""
    figures, documents = 0, {}
    for name, result in results.items():
        records = _records(contexts, result)
        figures += _save_explanation(result, name, out)
        parts = [record._asdict() for record in records]
        of_parts = [head._asdict() for head in heads.get(name, ())]
        documents[name] = {**result.record(), "records": parts, "heads_of_parts": of_parts}
        lengths = [energy.size for energy in result.token_energies]
        print(f"\n== {name}: {described_contexts(lengths)} ==")
        print("\n".join(words(result, records)))
        if of_parts:
            print(heads_table(heads[name]))
    document = {
        "training_losses": [] if losses is None else losses.tolist(),
        "cone_mass": {
            name: {part: values.tolist() for part, values in mass._asdict().items()}
            for name, mass in masses.items()
        },
        "explanations": documents,
    }
    write_json(out / "explanation.json", document)
    if masses:
        plots.drawing.save_figure(plots.cone_masses(masses, regions), out, "cone_mass")
        figures += 1
    if losses is not None:
        print(f"\nTraining took the loss from {losses[0]:.3f} to {losses[-1]:.3f} nats a byte.")
    print(f"Wrote explanation.json, tables and {figures} figures to {out}.")


def words(result: Explanation, records: Sequence[Record]) -> list[str]:
    """An explanation in lines: the finding, documents, positions, ways, certificates."""
    influence, rest, regions = result.influence, result.without_queries, result.influence.regions
    weights = np.asarray(influence.grid.weights)
    channels, hops = (
        np.asarray(parts) @ weights for parts in (result.channel_energies, result.hop_energies)
    )
    lines = [
        sentences.records_finding(records),
        sentences.finding(influence, rest),
        *sentences.record_lines(records),
        f"Density at depth {result.depth}, boundary regions of {float(regions.delta):g}:",
        influence_table(influence, rest),
        sentences.parts_finding(channels, hops, result.depth),
        *sentences.certificate_lines(result.certificates),
    ]
    return [line for line in lines if line]


def _records(contexts: Sequence[Context], result: Explanation) -> list[Record]:
    """Of the named parts; bytes of the byte-level network have none."""
    if not contexts:
        return []
    energies = list(map(np.asarray, result.token_energies))
    return averaged_records(record_shares(contexts, energies), contexts, energies)


def _save_explanation(result: Explanation, name: str, out: Path) -> int:
    file, influence = stem(name), result.influence
    columns = (
        influence.grid.nodes, influence.density, influence.density_error,
        *result.channel_energies, *result.hop_energies,
    )  # fmt: skip
    names = (f"{part} energy" for part in (*CHANNELS, *HOPS))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    write_table(out / f"{file}.csv", ("position", "density", "error", *names), rows)
    figures = {
        "influence": plots.influence_profile(influence, name),
        "channels": plots.channel_energies(result, name),
        "hops": plots.hop_energies(result, name),
        "certificates": plots.certificate_margins(result.certificates, name),
    }
    if result.without_queries is not None:
        figures["influence_without_queries"] = plots.influence_profile(result.without_queries, name)
    for kind, figure in figures.items():
        plots.drawing.save_figure(figure, out, f"{file}_{kind}")
    return len(figures)


def write_pages(
    results: Mapping[str, Explanation],
    cases: Mapping[str, Case],
    windows: Windows,
    contexts: Sequence[Context],
    model: LanguageModel,
    out: Path,
) -> None:
    """Write a page for each network and loss."""
    rows = list(map(np.asarray, windows))
    for name, case in cases.items():
        result = results[name]
        accounts = shown_accounts(
            case.network, rows, list(case.weights),
            depth=result.depth, loss=case.loss,
        )  # fmt: skip
        shown = contexts[: len(accounts)]
        texts = [models.texts_of_ids(window, model.tokenizer) for window in rows[: len(accounts)]]
        report.write_page(
            out / f"{stem(name)}.html", result.influence, accounts, texts,
            title=f"Why does {model.name} use what it uses? ({name})" if model.name else name,
            certificates=result.certificates, without_queries=result.without_queries,
            names=context_names(shown), spans=[context.spans for context in shown],
            records=_records(contexts, result),
        )  # fmt: skip
    print(f"Wrote a page for each network and loss to {out}.")
