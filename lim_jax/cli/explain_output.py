"""An explanation printed, written and drawn: words first, then numbers and figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lim_jax import checkpoints, plots, report
from lim_jax.attribution.explanation_run import ContextBatch
from lim_jax.attribution.heads import HeadOfPart, heads_table
from lim_jax.attribution.parts import MeanShare, context_names, mean_shares, shares_by_context
from lim_jax.attribution.profile_run import SHOWN, accounts_of_contexts
from lim_jax.attribution.time_budget import NetworkAndLoss
from lim_jax.explanations import Explanation
from lim_jax.explanations.influence_table import influence_table
from lim_jax.models import LanguageModel
from lim_jax.models.loss_kinds import LossName, loss_kind
from lim_jax.probes import Estimate
from lim_jax.prompts.contexts import Context
from lim_jax.report import sentences
from lim_jax.results.tables import FILES, write_json, write_table


def report_explanation(
    result: Explanation,
    mass: Estimate | None,
    heads: Sequence[HeadOfPart],
    contexts: Sequence[Context],
    title: str,
    out: Path,
) -> None:
    """Print an explanation, write its numbers and draw it, with the cone mass where there is one.

    `title` stands over the figures: which network is explained, under which loss.
    """
    records = _records(contexts, result)
    print("\n".join(words(result, records)))
    if heads:
        print(heads_table(heads))
    document = {
        **result.record(),
        "records": [record._asdict() for record in records],
        "heads_of_parts": [head._asdict() for head in heads],
        "cone_mass": None if mass is None else _as_lists(mass),
    }
    write_json(out / "explanation.json", document)
    _write_profiles(result, out / "explanation.csv")
    figures = _figures(result, mass, title)
    for name, figure in figures.items():
        plots.figure_style.save_figure(figure, out, name)
    print(f"Wrote explanation.json, explanation.csv and {len(figures)} figures to {out}.")


def words(result: Explanation, records: Sequence[MeanShare]) -> list[str]:
    """Return an explanation in lines: findings, named parts, positions, channels, certificates."""
    influence = result.influence
    rest = result.without_queries
    regions = result.influence.regions
    weights = np.asarray(influence.grid.weights)
    channels, hops = (
        np.asarray(parts) @ weights for parts in (result.channel_energies, result.hop_energies)
    )
    lines = [
        sentences.records_finding(records),
        sentences.influence_finding(influence, rest),
        *sentences.record_lines(records),
        f"Density at depth {result.depth}, boundary regions of {float(regions.delta):g}:",
        influence_table(influence, rest),
        sentences.parts_finding(channels, hops, result.depth),
        *sentences.certificate_lines(result.certificates),
    ]
    return [line for line in lines if line]


def _records(contexts: Sequence[Context], result: Explanation) -> list[MeanShare]:
    """Average what each named part holds, from the token energies of an explanation."""
    energies = list(map(np.asarray, result.token_energies))
    return mean_shares(shares_by_context(contexts, energies), contexts, energies)


def _as_lists(mass: Estimate) -> dict[str, Any]:
    """Return the value and the error of an estimate as lists."""
    return {name: values.tolist() for name, values in mass._asdict().items()}


def _write_profiles(result: Explanation, file: Path) -> None:
    """Write a table by position: the density, its error, and the energies of channels and hops."""
    influence = result.influence
    columns = (
        influence.grid.nodes,
        influence.density,
        influence.density_error,
        *result.channel_energies,
        *result.hop_energies,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    write_table(file, FILES["explanation.csv"], rows)


def _figures(result: Explanation, mass: Estimate | None, title: str) -> dict[str, Any]:
    """Draw the figures, and return them by the names of their files."""
    influence = result.influence
    figures = {
        "influence": plots.influence_profile(influence, title),
        "channels": plots.channel_energies(result, title),
        "hops": plots.hop_energies(result, title),
        "certificates": plots.certificate_margins(result.certificates, title),
    }
    if result.without_queries is not None:
        without_queries = plots.influence_profile(result.without_queries, title)
        figures["influence_without_queries"] = without_queries
    if mass is not None:
        figures["cone_mass"] = plots.cone_masses({"cone mass": mass}, influence.regions, title)
    return figures


def write_explained_page(
    result: Explanation,
    network_and_loss: NetworkAndLoss,
    batch: ContextBatch,
    model: LanguageModel,
    loss_name: LossName,
    out: Path,
) -> None:
    """Write explanation.html, which shades every token of the first contexts."""
    contexts = batch.contexts[:SHOWN]
    weights = list(network_and_loss.weights[:SHOWN])
    rows = list(map(np.asarray, batch.windows[:SHOWN]))
    accounts = accounts_of_contexts(
        network_and_loss.network, rows, weights, depth=result.depth, loss=network_and_loss.loss
    )
    page = report.influence_page(
        result.influence,
        accounts,
        [checkpoints.texts_of_ids(window, model.tokenizer) for window in rows],
        title=f"Why does {model.name} use what it uses?",
        about={"model": model.name, "loss": loss_kind(loss_name).words},
        certificates=result.certificates,
        without_queries=result.without_queries,
        names=context_names(contexts),
        spans=[context.spans for context in contexts],
        records=_records(batch.contexts, result),
    )
    page.save(out / "explanation.html")
    print(f"Wrote explanation.html to {out}.")
