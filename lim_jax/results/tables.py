"""Tables and documents as files: every column of them, its unit and what it means."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lim_jax._atomic_files import write_file

NUMBER = "number"
SHARE = "0 to 1"
TEXT = "text"
DENSITY = "1 is uniform"
ENERGY = "squared gradient"

COLUMNS: dict[str, tuple[str, str]] = {
    "context": (NUMBER, "the context, from 0 as measured; of lines in several orders the first's"),
    "line": (NUMBER, "the line of the data, from 0"),
    "order": (NUMBER, "the order in which its documents stand, from 0"),
    "id": (TEXT, "the line's own, or what tells its text from others"),
    "name": (TEXT, "of a part: a document's title or number, a span's name, `question`"),
    "kind": (
        TEXT,
        "of `ask` `document`, `question` or `message`; of `profile` and `explain` `part`, whatever "
        "has a name; `rest` is what is in no part",
    ),
    "document": (TEXT, "the document's title, or its number in the line"),
    "place": (NUMBER, "where a document stands among the others, from 1"),
    "share": (SHARE, "of a context's whole influence, on average"),
    "score": (
        "of the method",
        "the part's by the method: of influence its share, else signed; null where it has none",
    ),
    "of_documents": ("-1 to 1", "the document's or span's score over the sizes of all such scores"),
    "of_tokens": (SHARE, "of a context's tokens, on average"),
    "tokens": ("tokens", "how many, on average"),
    "contexts": ("contexts", "how many have it; of lines in several orders, how many lines"),
    "texts": ("texts", "how many different ones these contexts have under the name"),
    "most": (TEXT, "the tokens that hold most of it, each with its part of that"),
    "error": (
        "as before it",
        "standard error over contexts, or of one answer's score; empty or null where there is none",
    ),
    "digest": (TEXT, "tells a document's text from others, by which `compare` finds it; else null"),
    "index": (NUMBER, "the token, from 0"),
    "token": (TEXT, "the token; of a character of several tokens the whole character"),
    "piece": (TEXT, "which of a character's tokens it is, such as `1/3`; else empty"),
    "position": (SHARE, "in the context: the token's number from 1, over how many there are"),
    "weight": (SHARE, "of the loss, that of the token after this one"),
    "energy": (ENERGY, "the influence of the token"),
    "density": (DENSITY, "the influence density at the position"),
    "signed": ("of the loss", "by how much it falls as attention reads more of a unit of position"),
    "signed_error": ("of the loss", "its standard error"),
    "asked": (NUMBER, "the first token, from 0, after which the loss asks"),
    "total": (ENERGY, "the influence of the whole context"),
    "share_left": (SHARE, "of the influence, in the left boundary region"),
    "share_middle": (SHARE, "of the influence, between the boundary regions"),
    "share_right": (SHARE, "of the influence, in the right boundary region"),
    "residual energy": (ENERGY, "of the residual channel at the position"),
    "cone energy": (ENERGY, "of the cone channel, which is attention's"),
    "local energy": (ENERGY, "of the local channel, which is of the token alone"),
    "0 hops energy": (ENERGY, "of what reaches the loss without attention"),
    "1 hop energy": (ENERGY, "of what reaches it by one attention hop"),
    "2 hops energy": (ENERGY, "by two"),
    "3 or more hops energy": (ENERGY, "by more"),
    "first": (
        "as the file",
        "in the first result: a density by position, a share or score by part",
    ),
    "first_error": ("as the file", "its standard error"),
    "second": ("as the file", "in the second result"),
    "second_error": ("as the file", "its standard error"),
    "second_name": (TEXT, "what the second answer calls the document, where that differs"),
    "difference": ("as the file", "the second minus the first"),
    "first_contexts": ("contexts", "how many of the first have the part"),
    "second_contexts": ("contexts", "how many of the second have it"),
    "pairs": ("contexts", "how many are in both"),
    "answer_part": (NUMBER, "the part of the answer, from 0"),
    "said": (TEXT, "the part of the answer"),
    "part": (NUMBER, "the part of the documents, from 0"),
    "text": (TEXT, "the part of the documents"),
}

PART = ("name", "kind", "share", "error", "tokens", "of_tokens", "contexts", "texts", "most")
CHANGE = ("first", "first_error", "second", "second_error", "difference", "error")
FILES: dict[str, tuple[str, ...]] = {
    "answer.json, parts": (
        "name", "kind", "score", "of_documents", "tokens", "of_tokens", "most", "error",
        "digest",
    ),
    "profile.json, records": PART,
    "records.csv": PART,
    "profile --method, records.csv": (
        "name", "kind", "score", "error", "of_documents", "tokens", "of_tokens", "contexts",
        "texts", "most",
    ),
    "profile --method, records_by_context.csv": (
        "context", "id", "name", "kind", "score", "tokens", "of_tokens"
    ),
    "profile --method, scores.csv": ("context", "index", "token", "piece", "weight", "score"),
    "profile.csv": ("position", "density", "error"),
    "profile --signed, profile.csv": ("position", "density", "error", "signed", "signed_error"),
    "tokens.csv": (
        "context", "index", "token", "piece", "position", "weight", "energy", "density"
    ),
    "scores.csv": ("index", "token", "piece", "weight", "score"),
    "contexts.csv": ("context", "id", "tokens", "asked", "total", "share_left",
        "share_middle", "share_right"),
    "records_by_context.csv": ("context", "id", "name", "kind", "share", "tokens", "of_tokens"),
    "explanation.csv": (
        "position", "density", "error", "residual energy", "cone energy", "local energy",
        "0 hops energy", "1 hop energy", "2 hops energy", "3 or more hops energy",
    ),
    "by_place.csv": ("place", "share", "error"),
    "by_document.csv": ("document", "share", "error"),
    "two_way.csv": ("document", "place", "share", "error"),
    "orders.csv": ("context", "line", "order", "id", "place", "document", "share"),
    "matrix.csv": ("answer_part", "said", "part", "name", "text", "tokens", "score"),
    "compare.csv": ("position", *CHANGE),
    "compare, records.csv": ("name", *CHANGE, "first_contexts", "second_contexts", "pairs"),
    "compare, records.csv of answers": (
        "name", "kind", "first", "second", "difference", "second_name"
    ),
}  # fmt: skip

# Of the JSON files: entries by where they stand in the file. REGION is left, middle or right,
# CHANNEL residual, cone or local, and HOPS how many; SIDE is first or second, ROW baseline or an
# algorithm, WHEN before or after, COUNT and NAME any.
YES = "true or false"
INFLUENCE: dict[str, tuple[str, str]] = {
    "length": ("positions", "on the grid to which all contexts are carried"),
    "delta": (SHARE, "the width of each boundary region"),
    "examples": ("contexts", "how many are averaged"),
    "alike": (YES, "whether all contexts have one profile"),
    "left_out": ("positions", "the numbers, from 0, of those that are in no region"),
    "total": (ENERGY, "the influence of a whole context, on average"),
    "total_error": (ENERGY, "its standard error"),
    "indices.REGION": (DENSITY, "the density's average over the region"),
    "indices.gap": (DENSITY, "the lesser of left and right, less middle"),
    "indices.lim": (NUMBER, "LIM: the gap over the lesser of left and right"),
    "indices.symmetric_contrast": ("-1 to 1", "the gap over the lesser of both plus middle"),
    "index_errors.REGION": (DENSITY, "the average's standard error"),
    "index_errors.gap": (DENSITY, "the gap's"),
    "index_errors.lim": (NUMBER, "LIM's"),
    "index_errors.symmetric_contrast": (NUMBER, "the symmetric contrast's"),
    "positions": (SHARE, "where the density is given"),
    "density": (DENSITY, "the influence density at each position"),
    "density_error": (DENSITY, "its standard error"),
}
INEQUALITY: dict[str, tuple[str, str]] = {
    "statement": (TEXT, "the inequality"),
    "greater": (NUMBER, "the side that must be greater"),
    "lesser": (NUMBER, "the other side"),
    "rounding": (NUMBER, "how far rounding may have moved the sides"),
    "margin": (NUMBER, "the greater side less the other"),
    "roundings": (NUMBER, "the margin over the rounding"),
    "holds": (YES, "whether it is true"),
}

CURVE: dict[str, tuple[str, str]] = {
    "name": (TEXT, "the method"),
    "costs": (NUMBER, "its cost at each refinement: evaluations of the field, or positions"),
    "errors": ("of the quantity", "its largest error at each"),
}
GATES: dict[str, tuple[str, str]] = {
    "REGION": (DENSITY, "the density's average over the region"),
    "gap": (DENSITY, "the lesser of left and right, less middle"),
    "symmetric_contrast": ("-1 to 1", "the gap over the lesser of both plus middle"),
    "lim": (NUMBER, "LIM: the gap over the lesser of left and right"),
    "influence_imbalance": (NUMBER, "the integral of the density's squared distance from one"),
    "Z": (ENERGY, "the influence's total over the length"),
}


def _inside(name: str, entries: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Return the entries of what stands under a name."""
    return {f"{name}.{entry}": row for entry, row in entries.items()}


KEYS: dict[str, dict[str, tuple[str, str]]] = {
    "answer.json": {
        "question": (TEXT, "the question"),
        "answer": (TEXT, "the answer that is explained"),
        "cut": (YES, "whether the model's own answer did not end within its tokens"),
        "foil": (TEXT, "the answer that it is compared with; empty for none"),
        "method": (TEXT, "the method's name"),
        "finding": (TEXT, "what was found, in sentences"),
        "support": (TEXT, "null where the document that scores most was not taken out"),
        "support.verdict": (TEXT, "`supported`, `unclear` or `unsupported`"),
        "support.document": (TEXT, "the document that scores most"),
        "support.log_odds": ("log odds for each token", "the answer's, with all documents"),
        "support.loss": ("log odds for each token", "what the answer loses without the document"),
        "support.loss_without_copies": (
            "log odds for each token", "what it loses without its copies too; null without copies"
        ),
        "support.answer_without": (
            TEXT, "what the model answers without the document; null for an answer of yours"
        ),
        "support.given_without": (
            YES, "whether it gives the answer without the document too; null if unknown"
        ),
        "given": (
            "log odds for each token",
            "what all documents give together; beside a foil of the whole answers; null if the "
            "method lacks it",
        ),
        "together": (TEXT, "null where no sets of documents were left out"),
        "together.without": (TEXT, "the documents that are left out"),
        "together.loss": ("log odds for each token", "what the answer loses without them"),
    },
    "profile.json": {
        **_inside("influence", INFLUENCE),
        "influence_without_queries": (
            TEXT,
            "the same entries, of the tokens before each first query alone; absent where a context "
            "asks at its first token",
        ),
        "signed.density.value": ("of the loss", "with `--signed`: the signed density"),
        "signed.density.error": ("of the loss", "its standard error"),
        "signed.regional.value": ("of the loss", "its sums over left, middle and right"),
        "signed.regional.error": ("of the loss", "their standard errors"),
        "method": (TEXT, "with `--method`: its name"),
        "loss": (TEXT, "with `--method`: what was asked, as `--loss` has it"),
        "given": ("of the loss", "with `--method`: what all documents give, of each context"),
    },
    "explanation.json": {
        "depth": ("layers", "after how many the states are that are judged"),
        **INFLUENCE,
        "without_queries": (
            TEXT,
            "the entries of an influence, from `length` to `density_error`, of the tokens of each "
            "context that are not asked; null where a context has none",
        ),
        "channel_energies.CHANNEL": (ENERGY, "the channel's, at each position"),
        "relative_energies.CHANNEL": (
            "of the loss, squared", "the same times the states' mean square, at each position"
        ),
        "hop_energies.HOPS": (ENERGY, "of what takes so many hops, at each position"),
        "regional_hop_energies.REGION.HOPS": (ENERGY, "the average over the region"),
        "regional_energies.REGION.CHANNEL": (ENERGY, "the channel's average over the region"),
        "regional_energies.REGION.cross terms": (ENERGY, "of pairs of channels"),
        "regional_energies.REGION.total": (ENERGY, "the sum of these four"),
        "boundary_strengths.primacy": (ENERGY, "the cone channel's integral over the left"),
        "boundary_strengths.recency": (ENERGY, "the residual channel's over the right"),
        "head_energies": (ENERGY, "of what each head gives to the cone channel: rows are layers"),
        "terminal_contrast.value": (
            DENSITY, "of the covector after the last layer: right less middle, over the mean"
        ),
        "terminal_contrast.error": (DENSITY, "its standard error"),
        "certificates.name": (TEXT, "the criterion"),
        "certificates.source": (TEXT, "its label in the paper"),
        "certificates.premises.statement": (TEXT, "an assumption"),
        "certificates.premises.value": (NUMBER, "the number of which it speaks"),
        "certificates.premises.holds": (YES, "whether it is true"),
        **_inside("certificates.inequalities", INEQUALITY),
        "certificates.conclusion": (TEXT, "what follows where all of them hold"),
        "certificates.measured": (
            TEXT, "the conclusion as inequalities, with the same entries, measured apart"
        ),
        "certificates.vacuous": (TEXT, "why the criterion could not have held; else empty"),
        "certificates.decisive": (TEXT, "what would let it decide; else empty"),
        "certificates.margin": (NUMBER, "the least margin of its inequalities"),
        "certificates.holds": (YES, "whether premises and inequalities hold"),
        "certificates.concluded": (YES, "whether the conclusion is true, by what was measured"),
        "heads_of_parts.name": (TEXT, "a named part"),
        "heads_of_parts.layer": (NUMBER, "a head's layer, from 0"),
        "heads_of_parts.head": (NUMBER, "the head in its layer, from 0"),
        "heads_of_parts.score": ("of the loss", "what it gives of the part's mask gradient"),
        "heads_of_parts.error": ("of the loss", "its standard error"),
        "heads_of_parts.contexts": ("contexts", "how many of those measured have the part"),
        "cone_mass": (TEXT, "null without `--certificates all`"),
        "cone_mass.value": (DENSITY, "how strongly later positions attend to each position"),
        "cone_mass.error": (DENSITY, "its standard error"),
    },
    "compare.json of profiles": {
        "finding": (TEXT, "what was found, in sentences"),
        "SIDE": (TEXT, "the name of either folder"),
        "pairs": ("contexts", "how many are in both"),
        **_inside("influence.SIDE", INFLUENCE),
        "influence.difference.total": (ENERGY, "the second's total less the first's"),
        "influence.difference.total_error": (ENERGY, "its standard error"),
        "influence.difference.indices.REGION": (DENSITY, "the same of the average over the region"),
        "influence.difference.indices.gap": (DENSITY, "of the gap"),
        "influence.difference.indices.lim": (NUMBER, "of LIM"),
        "influence.difference.indices.symmetric_contrast": (
            NUMBER, "of the symmetric contrast"
        ),
        "influence.difference.index_errors.REGION": (DENSITY, "the average's standard error"),
        "influence.difference.index_errors.gap": (DENSITY, "the gap's"),
        "influence.difference.index_errors.lim": (NUMBER, "LIM's"),
        "influence.difference.index_errors.symmetric_contrast": (
            NUMBER, "the symmetric contrast's"
        ),
        "influence.difference.density": (DENSITY, "of the density at each position"),
        "influence.difference.density_error": (DENSITY, "its standard error"),
        "influence_without_queries": (
            TEXT,
            "the same entries, of the tokens before each first query alone; absent where a profile "
            "has none",
        ),
    },
    "compare.json of answers": {
        "finding": (TEXT, "what was found, in sentences"),
        "method": (TEXT, "the method of both"),
        "SIDE.name": (TEXT, "the name of either folder"),
        "SIDE.question": (TEXT, "its question"),
        "SIDE.answer": (TEXT, "its answer"),
        "SIDE.foil": (TEXT, "what that is compared with; empty for none"),
        "SIDE.given": ("log odds for each token", "as in `answer.json`"),
    },
    "shuffle.json": {
        "finding": (TEXT, "what is due to the place and what to the document, in sentences"),
        "contexts": ("contexts", "how many lines are averaged"),
        "orders": (NUMBER, "in how many orders each line was read"),
        "documents": (TEXT, "their names, in the order of `by_document` and of `table`"),
        "same_documents": (YES, "whether a name stands for one text in all lines"),
        "by_place.share": (SHARE, "of each place, whichever document stands there"),
        "by_place.error": (SHARE, "its standard error"),
        "by_document.share": (SHARE, "of each document, wherever it stands"),
        "by_document.error": (SHARE, "its standard error"),
        "gap": (TEXT, "null for two places, which have none between them"),
        "gap.share": (SHARE, "of the first and last places, on average, less of those between"),
        "gap.error": (SHARE, "its standard error"),
        "table.share": (SHARE, "rows are documents, columns places"),
        "table.error": (SHARE, "its standard error"),
    },
    "rates.json": {
        "rates.name": (TEXT, "the limit, by its topic and the case"),
        "rates.expected": (NUMBER, "the order that this case should show; null for none"),
        "rates.reason": (TEXT, "why that is not the usual one; else empty"),
        "rates.reliability_warning": (TEXT, "why the reference is unreliable; else empty"),
        "rates.agrees": (
            YES, "whether the order is the expected one to 0.15, and no bound is broken"
        ),
        "rates.order.value": (NUMBER, "the order that is fitted to the errors"),
        "rates.order.half_width": (NUMBER, "two standard errors of it"),
        "rates.order.constant": (
            "of the quantity", "the errors are fitted by this over the refinement to the order"
        ),
        "rates.holds": (YES, "whether the bound holds; null where that is not said"),
        "rates.verdict": (
            TEXT,
            "of the bound: `holds`, `BROKEN`, `unresolved` by the reference, `measured` where its "
            "constant is a sample, or `no bound`",
        ),
        "rates.source": (TEXT, "the limit's label in the paper"),
        "rates.claimed": (NUMBER, "the paper's order; null where it states none"),
        "rates.refinements": (NUMBER, "of tokens or layers, else what `rates.xlabel` says"),
        "rates.errors": (
            "of the quantity", "from the reference at each, else what `rates.ylabel` says"
        ),
        "rates.bounds": ("of the quantity", "the paper's bound on each; null for none"),
        "rates.reference_error": (
            "of the quantity", "how far the reference is from itself at another resolution"
        ),
        "rates.sampled": (YES, "whether the bound's constant is the largest of samples"),
        "rates.rounding": ("of the quantity", "how far rounding may have moved an error"),
        "rates.xlabel": (TEXT, "what is refined, as the figure says"),
        "rates.ylabel": (TEXT, "what the errors are of"),
        **_inside("costs.depth", CURVE),
        **_inside("costs.position", CURVE),
    },
    "rates.csv": {
        "study": (TEXT, "the limit, as `rates.name` has it"),
        "refinement": (NUMBER, "one of its `rates.refinements`"),
        "error": ("of the quantity", "that of its `rates.errors`"),
        "bound": ("of the quantity", "the paper's bound on it; empty for none"),
    },
    "section4.json": {
        **_inside("table.ROW", GATES),
        **_inside("minimiser.ROW", GATES),
        "minimiser.ROW.objective": (NUMBER, "the least that the algorithm's objective can be"),
        "observability.imbalance.WHEN": (
            NUMBER, "the integral of the trace density's squared distance from one"
        ),
        "observability.trace_averages.WHEN.REGION": (
            DENSITY, "the trace density's average over the region"
        ),
        "observability.penalty": (NUMBER, "the trace penalty before Algorithm 3"),
        "condition_number.REGION.mean": (NUMBER, "of the Gramians' condition numbers"),
        "condition_number.REGION.min": (NUMBER, "the smallest"),
        "condition_number.REGION.max": (NUMBER, "the largest"),
        "probe.COUNT.bias": (
            "of the penalty", "of its estimate from so many probes, in a thousand samples"
        ),
        "probe.COUNT.std": ("of the penalty", "the samples' standard deviation"),
        "probe.COUNT.bias_exact": ("of the penalty", "the bias without sampling"),
        "probe.COUNT.std_exact": ("of the penalty", "the standard deviation without sampling"),
        "change.algorithm1_imbalance": (NUMBER, "the imbalance after Algorithm 1 over that before"),
        "change.algorithm2_imbalance_decrease": (
            NUMBER, "one less the imbalance after Algorithm 2 over that before"
        ),
        "change.algorithm3_Z": (NUMBER, "Z after Algorithm 3 over that of the baseline"),
    },
    "section4.csv": {
        "name": (TEXT, "the figure, by where it stands in `section4.json`"),
        "printed": (TEXT, "as the paper prints it"),
        "ours": ("as the file", "ours, unrounded; per cent as parts of one"),
        "difference": ("as the file", "ours less the paper's"),
        "agrees": (YES, "whether ours has every printed digit"),
    },
    "counterexamples.json": {
        "slogan": (TEXT, "the claim"),
        "because": (TEXT, "why it is false"),
        "numbers.NAME": (NUMBER, "what shows that, by position or region, under its own name"),
    },
}  # fmt: skip


def write_json(path: Path, document: Any) -> None:
    """Write a document as JSON, where what is not finite, such as one example's error, is null."""
    write_file(path, (json.dumps(finite(document), indent=2, allow_nan=False) + "\n").encode())


def finite(value: Any) -> Any:
    """Return a document in which what is not finite is None."""
    if isinstance(value, Mapping):
        return {name: finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_table(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write comma-separated values; what is not finite becomes an empty cell."""
    text = io.StringIO()
    csv.writer(text).writerows([names, *map(finite, map(list, rows))])
    write_file(path, text.getvalue().encode())
