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
    "left": (SHARE, "of the influence, in the left boundary region"),
    "middle": (SHARE, "of the influence, between the boundary regions"),
    "right": (SHARE, "of the influence, in the right boundary region"),
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
    "contexts.csv": ("context", "id", "tokens", "asked", "total", "left", "middle", "right"),
    "records_by_context.csv": ("context", "id", "name", "kind", "share", "tokens", "of_tokens"),
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
