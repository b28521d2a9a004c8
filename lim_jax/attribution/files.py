"""The files of what was measured: contexts, tokens and orders in tables, and contexts read back."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lim_jax._checks import require
from lim_jax.attribution.answer import Answer
from lim_jax.attribution.answer_comparison import ANSWER, AnswerRecord, ComparedAnswers
from lim_jax.attribution.mean_scores import ScoresOfContexts
from lim_jax.attribution.method import Scores
from lim_jax.attribution.orders import ShuffledShares
from lim_jax.attribution.parts import PartsByContext, context_ids, is_document, iterate_parts
from lim_jax.attribution.profile_run import Measured
from lim_jax.attribution.signed_profile import SignedProfile
from lim_jax.attribution.token_text import group_tokens
from lim_jax.density.statistics import Influence
from lim_jax.results.archive import load, save
from lim_jax.results.context_energies import MeasuredContexts
from lim_jax.results.tables import FILES, write_json, write_table

CONTEXTS = "contexts.npz"


def write_measured(result: Measured, signed: SignedProfile | None, folder: Path) -> None:
    """Write profile.json, profile.csv, tokens.csv, records.csv and those of `write_contexts`."""
    document: dict[str, Any] = {
        name: influence.record() for name, influence in result.influences.items()
    }
    overall = result.influence
    columns = FILES["profile.csv"]
    numbers = [overall.grid.nodes, overall.density, overall.density_error]
    if signed is not None:
        columns = FILES["profile --signed, profile.csv"]
        numbers += signed.density
        document["signed"] = signed.record()
    records = [record._asdict() for record in result.records]
    write_json(folder / "profile.json", {**document, "records": records})
    rows = zip(*(column.tolist() for column in numbers), strict=True)
    write_table(folder / "profile.csv", columns, rows)
    write_table(folder / "tokens.csv", FILES["tokens.csv"], tokens_table(result))
    write_table(folder / "records.csv", FILES["records.csv"], result.records)
    orders = len(result.contexts) // len(result.by_id.names)
    numbered = range(0, len(result.contexts), orders)
    write_contexts(result.by_id, overall, result.shares, numbered, folder)


def write_contexts(
    measured: MeasuredContexts,
    influence: Influence,
    shares: PartsByContext,
    numbers: range,
    folder: Path,
) -> None:
    """Write contexts.npz, contexts.csv and records_by_context.csv, numbered like tokens.csv."""
    save(measured, folder / CONTEXTS)
    by_region = np.asarray(influence.example_energies) @ np.asarray(influence.regions.weights).T
    totals = by_region.sum(axis=1)
    parts = by_region / np.where(totals > 0, totals, 1)[:, None]
    lengths = map(len, measured.energies)
    columns = [numbers, measured.names, lengths, measured.asked, totals.tolist()]
    columns += parts.T.tolist()
    write_table(folder / "contexts.csv", FILES["contexts.csv"], zip(*columns, strict=True))
    records = _shares_by_context(measured, shares, numbers)
    write_table(folder / "records_by_context.csv", FILES["records_by_context.csv"], records)


def _shares_by_context(
    measured: MeasuredContexts, parts: PartsByContext, numbers: range
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of records_by_context.csv: the share of each part that a context has."""
    for row, (number, id) in enumerate(zip(numbers, measured.names, strict=True)):
        for part in parts:
            share = float(part.scores[row])
            if not np.isnan(share):
                tokens = int(part.tokens[row])
                token_share = float(part.token_shares[row])
                yield number, id, part.name, part.kind, share, tokens, token_share


def write_scores(result: ScoresOfContexts, loss: str, folder: Path) -> None:
    """Write profile.json, two tables of parts, and scores.csv where tokens have scores."""
    records = [record._asdict() for record in result.records]
    document: dict[str, Any] = {"method": result.method, "loss": loss, "records": records}
    if result.total_effects is not None:
        document["given"] = result.total_effects.tolist()
    write_json(folder / "profile.json", document)
    write_table(folder / "records.csv", FILES["profile --method, records.csv"], result.records)
    names = FILES["profile --method, records_by_context.csv"]
    write_table(folder / "records_by_context.csv", names, _scores_by_context(result))
    if result.scores[0].tokens is not None:
        names = FILES["profile --method, scores.csv"]
        write_table(folder / "scores.csv", names, _scores_by_token(result))


def _scores_by_context(result: ScoresOfContexts) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of records_by_context.csv: the score of each part that the method scores."""
    ids = context_ids(result.contexts)
    columns = ids, result.contexts, result.scores
    for number, (id, context, scores) in enumerate(zip(*columns, strict=True)):
        by_name = scores.by_name()
        for part, positions in iterate_parts(context):
            share = positions.size / context.length
            if part in by_name or is_document(*part):
                yield number, id, *part, by_name.get(part, 0.0), positions.size, share


def _scores_by_token(result: ScoresOfContexts) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of scores.csv: the score of each token of each context."""
    for number, (context, scores) in enumerate(zip(result.contexts, result.scores, strict=True)):
        for row in _by_token(context.tokens, context.weights, scores.tokens):
            yield number, *row


def load_contexts(folder: Path, name: str) -> MeasuredContexts:
    """Read the contexts that `profile` wrote to a folder, which errors call by `name`."""
    path = folder / CONTEXTS
    require(
        os.path.isfile(path),
        name,
        got=f"{folder}, which has no {CONTEXTS}",
        expected="the folder of a finished lim-jax profile by influence, or two of lim-jax ask",
        cure="Run that first, with `overwrite` where an earlier version wrote the folder.",
    )
    measured = load(path)
    require(
        isinstance(measured, MeasuredContexts),
        name,
        got=f"{path}, which holds another result",
        expected="the contexts that lim-jax profile measured",
        cure="Run lim-jax profile anew.",
    )
    return measured


def tokens_table(result: Measured) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each token of each context, with its density within that context."""
    for number, (context, energy) in enumerate(zip(result.contexts, result.energies, strict=True)):
        positions = np.arange(1, context.length + 1) / context.length
        columns = positions, context.weights, energy, energy / (energy.mean() or 1)
        for row in _by_token(context.tokens, *columns):
            yield number, *row


def _by_token(tokens: Sequence[str], *columns: Any) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each token: its number, its text, its piece, and its entry of each column."""
    lists = [column.tolist() for column in columns]
    rows = zip(_pieces(tokens), *lists, strict=True)
    for number, ((text, piece), *numbers) in enumerate(rows):
        yield number, text, piece, *numbers


def _pieces(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Return the text that each token shows, and which piece of a character it is, such as 1/3."""
    pieces = []
    for text, group in group_tokens(tokens):
        if len(group) == 1:
            pieces.append((text, ""))
        else:
            pieces += [(text, f"{number + 1}/{len(group)}") for number in range(len(group))]
    return pieces


def plain_estimate(part: Any) -> dict[str, Any]:
    """Return the value and the error of an estimate of shares as plain numbers."""
    return {"share": np.asarray(part.value).tolist(), "error": np.asarray(part.error).tolist()}


def write_orders(result: ShuffledShares, ids: Sequence[str], folder: Path) -> None:
    """Write by_place.csv, by_document.csv, two_way.csv and orders.csv."""
    effects = result.effects
    names = result.names
    places = range(1, len(names) + 1)
    effect_of = {"place": (places, effects.by_place), "document": (names, effects.by_document)}
    for name, (labels, part) in effect_of.items():
        rows = zip(labels, part.value.tolist(), part.error.tolist(), strict=True)
        write_table(folder / f"by_{name}.csv", FILES[f"by_{name}.csv"], rows)
    value, error = (np.asarray(column).tolist() for column in effects.table)
    table = [
        (name, place, value[row][place - 1], error[row][place - 1])
        for row, name in enumerate(names)
        for place in places
    ]
    write_table(folder / "two_way.csv", FILES["two_way.csv"], table)
    write_table(folder / "orders.csv", FILES["orders.csv"], _by_order(result, ids))


def _by_order(result: ShuffledShares, ids: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each document of each order; contexts are numbered as in tokens.csv."""
    orders = result.shares.shape[1]
    for (line, order, place), share in np.ndenumerate(result.shares):
        name = result.names[int(result.documents[line, order, place])]
        yield line * orders + order, line, order, ids[line], place + 1, name, float(share)


def write_answer(answer: Answer, folder: Path) -> None:
    """Write answer.json, matrix.csv, and scores.csv where tokens have scores."""
    write_json(folder / ANSWER, answer.record())
    write_table(folder / "matrix.csv", FILES["matrix.csv"], _matrix(answer.scores))
    if answer.tokens is not None:
        context = answer.context
        rows = _by_token(context.tokens, context.weights, answer.tokens)
        write_table(folder / "scores.csv", FILES["scores.csv"], rows)


def _matrix(scores: Scores) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each part of the answer and each part of the documents."""
    for row, answer in enumerate(scores.answer):
        for number, column in enumerate(scores.documents.tolist()):
            part = scores.parts[column]
            score = float(scores.by_part[row, column])
            yield row, answer.text, number, part.within, part.text, part.positions.size, score


def write_compared_answers(comparison: ComparedAnswers, folder: Path) -> None:
    """Write compare.json and records.csv."""
    first, second = comparison.answers
    document = {
        "finding": comparison.finding,
        "method": first["method"],
        "first": _compared_answer(comparison.names[0], first),
        "second": _compared_answer(comparison.names[1], second),
        "records": [part._asdict() for part in comparison.parts],
    }
    write_json(folder / "compare.json", document)
    names = FILES["compare, records.csv of answers"]
    write_table(folder / "records.csv", names, comparison.parts)


def _compared_answer(name: str, answer: AnswerRecord) -> dict[str, Any]:
    """Return what compare.json holds of one of its answers."""
    entries = ("question", "answer", "foil", "given")
    return {"name": name, **{entry: answer[entry] for entry in entries}}
