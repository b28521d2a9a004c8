"""What a model is to read, from a file of your own: contexts, what is asked of them, records."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from lim_jax import models
from lim_jax._checks import AnyPath, as_path, require
from lim_jax.tasks import EncodedText, encode_text

Asked = Literal["next-token", "answer", "margin"]


class Span(NamedTuple):
    """A part of a context under a name, such as a record.

    Attributes
    ----------
    name
        Spans of one name count together.
    places
        Its tokens.
    """

    name: str
    places: Int[np.ndarray, " tokens"]


class Context(NamedTuple):
    """A context with the id after it, and what is asked of it.

    Attributes
    ----------
    window
        The ids; the last is a target only.
    weights
        Of the loss, one for each place.
    tokens
        What each token of the context shows: one after another they are the text.
    spans
        Its named parts.
    """

    window: Int[np.ndarray, " tokens"]
    weights: Float[np.ndarray, " length"]
    tokens: tuple[str, ...]
    spans: tuple[Span, ...] = ()

    @property
    def length(self) -> int:
        """The number of tokens l that are read."""
        return len(self.weights)


def read_contexts(data: AnyPath, model: AnyPath, asked: Asked, max_length: int) -> list[Context]:
    """Read a text, or JSON lines where the file's name ends in ``.jsonl``.

    A text is cut into contexts of `max_length` tokens; what is left at its end is left out. A line
    has a ``text``, or a ``prompt`` and an ``answer``, and may have ``spans``: ``[[start, end,
    "name"], ...]`` in characters of the text, or of prompt and answer together. A token belongs
    where its last character is. Other entries of a line are not read.

    Parameters
    ----------
    data
        The file, in UTF-8.
    model
        Whose tokenizer reads it, as `models.read_tokenizer` finds that.
    asked
        ``"next-token"`` asks every place; ``"answer"`` and ``"margin"`` the answer's tokens alone.
    max_length
        The most tokens of a context.

    Raises
    ------
    ValueError
        Where the file is missing or empty, the tokenizer is none, or a line, which the message
        names, is no such object, or too long.
    """
    data = as_path(data, "data")
    require(
        data.is_file(),
        "data",
        got=f"{data}, which is no file",
        expected="a text, or JSON lines in a file of the name .jsonl",
        cure="Each line holds text, or prompt and answer.",
    )
    read = models.read_tokenizer(model)
    try:
        content = data.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"data: got {data}, whose byte {error.start} is not of UTF-8, expected a text that is. "
            "Save it in that encoding."
        ) from error
    if data.suffix != ".jsonl":
        return _cut(encode_text(content, read), data, asked, max_length)
    # Texts may hold characters that str.splitlines takes for the end of a line.
    lines = [(n, line) for n, line in enumerate(content.split("\n"), 1) if line.strip()]
    empty = "Each line is an object with text, or with prompt and answer."
    require(bool(lines), "data", got=f"{data} without a line", expected="some", cure=empty)
    return [_of_line(line, read, asked, max_length, f"{data}, line {n}") for n, line in lines]


def _cut(found: EncodedText, data: Path, asked: Asked, max_length: int) -> list[Context]:
    """Contexts of one length, one after another; a short text is one by itself."""
    require(
        asked == "next-token",
        "loss",
        got=f"{asked} of the text {data}",
        expected="next-token",
        cure="An answer is asked of JSON lines with prompt and answer.",
    )
    targets = len(found.ids) - 1
    length = min(max_length, targets)
    require(length > 0, "data", got=f"{targets + 1} tokens in {data}", expected="at least two",
            cure="The last token is a target only.")  # fmt: skip
    weights = np.full(length, 1 / length)
    return [
        Context(found.ids[at : at + length + 1], weights, found.tokens[at : at + length])
        for at in range(0, targets - length + 1, length)
    ]


def _of_line(line: str, tokenizer: Any, asked: Asked, max_length: int, where: str) -> Context:
    record = _record(line, where)
    prompt, answer = record.get("prompt", ""), record.get("answer", "")
    text = record.get("text", prompt + answer)
    found = encode_text(text, tokenizer)
    length = len(found.ids) - 1
    require(
        0 < length <= max_length,
        where,
        got=f"{length + 1} tokens",
        expected=f"from 2 to {max_length + 1}: a context of --max-length, and the target after it",
        cure="Raise --max-length, or leave the line out.",
    )
    weights = np.full(length, 1 / length)
    if asked != "next-token":
        answered = found.within(len(prompt), len(text))
        require(
            "answer" in record and bool(answered.any() and not answered[0]),
            where,
            got=f"the answer {answer!r} after the prompt {prompt!r}",
            expected="a prompt and an answer of some tokens each",
            cure="--loss next-token takes any text.",
        )
        weights = answered[1:] / answered.sum()
    spans = tuple(_span(one, found, text, where) for one in record.get("spans", []))
    return Context(found.ids, weights, found.tokens[:length], spans)


def _record(line: str, where: str) -> Mapping[str, Any]:
    """A line's object, whose entries are what they should be."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where}: got {line[:40]!r}, expected a JSON object ({error}). One object a line."
        ) from error
    named = ({"text"}, {"prompt", "answer"})
    entries = set(record) & {"text", "prompt", "answer"} if isinstance(record, dict) else set()
    require(
        entries in named
        and all(isinstance(record[name], str) for name in entries)
        and isinstance(record.get("spans", []), list),
        where,
        got=line[:40],
        expected='{"text": "..."} or {"prompt": "...", "answer": "..."}, "spans" as a list',
        cure="Text is a string, and one object stands on a line.",
    )
    return record


def _span(span: Any, found: EncodedText, text: str, where: str) -> Span:
    """The context's tokens whose last characters lie in [start, end)."""
    whole = isinstance(span, list) and list(map(type, span)) == [int, int, str]
    require(
        whole and 0 <= span[0] < span[1] <= len(text),
        where,
        got=f"the span {span}",
        expected=f'[start, end, "name"] with 0 <= start < end <= {len(text)}, the characters',
        cure="The end is not of the span, as in a Python slice.",
    )
    start, end, name = span
    return Span(name, np.flatnonzero(found.within(start, end)[:-1]))
