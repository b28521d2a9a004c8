"""What a model is to read, from a file of your own: a text, or a line for each context."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lim_jax import models
from lim_jax._checks import AnyPath, as_path, require, require_text
from lim_jax.asking.chat import Message, chat_prompt, require_messages
from lim_jax.asking.contexts import Asked, Context, Unanswered, context_of, unanswered
from lim_jax.asking.documents import Document, Laid, document_prompt, named_documents
from lim_jax.asking.templates import ChatTemplate, read_chat_template
from lim_jax.tasks import EncodedText, encode_text

# What a line must have, and what it may have beside.
KINDS = {
    ("text",): ("spans",),
    ("prompt",): ("answer", "foil", "spans"),
    ("documents", "question"): ("answer", "foil"),
    ("messages",): ("answer", "foil", "documents"),
}
TEXTS = ("text", "prompt", "question", "answer", "foil")
CURE = "One object stands on a line, and text is a string."


class Line(NamedTuple):
    """A line of a file: what is asked, before it is laid out.

    Attributes
    ----------
    where
        The file and the line, for what is wrong with it.
    text
        Of a line with a text or a prompt; else empty.
    spans
        Its parts in characters.
    documents, question, messages
        Of a line that has them.
    template
        By which messages are laid out.
    answer
        As it follows; None where the line has none.
    foil
        What might have followed instead; empty where there is none.
    asks
        Whether an answer can follow: not after what is a text by itself.
    id
        Its own name, by which `compare` finds it in another file; empty without one.
    """

    where: str
    text: str = ""
    spans: tuple[tuple[int, int, str], ...] = ()
    documents: tuple[Document, ...] = ()
    question: str = ""
    messages: tuple[Message, ...] = ()
    template: ChatTemplate | None = None
    answer: str | None = None
    foil: str = ""
    asks: bool = True
    id: str = ""

    @property
    def laid(self) -> Laid:
        """The text that stands before the answer; of messages a process makes it."""
        if self.template is not None:
            return chat_prompt(self.messages, self.template, self.documents)
        if self.documents:
            return document_prompt(self.documents, self.question)
        return Laid(self.text, self.spans)


def read_contexts(data: AnyPath, model: AnyPath, asked: Asked, max_length: int) -> list[Context]:
    """Read contexts as `read_prompts` does; where an answer is asked, a line must have one.

    Parameters
    ----------
    data, model, asked, max_length
        As in `read_prompts`.

    Raises
    ------
    ValueError
        As there, and where a line has no answer.
    """
    found = read_prompts(data, model, asked, max_length)
    given = [one for one in found if isinstance(one, Context)]
    require(
        len(given) == len(found),
        f"{data}",
        got=f"{len(found) - len(given)} lines without an answer",
        expected="an answer in each",
        cure="Or let the model answer: read_prompts, and self_answered.",
    )
    return given


def read_prompts(
    data: AnyPath, model: AnyPath, asked: Asked, max_length: int, foil: str = ""
) -> list[Context | Unanswered]:
    """Read a text, or a context of each line of JSON (`read_lines`), by a model's tokenizer.

    A text is cut into contexts of `max_length` tokens; what is left at its end is left out. A token
    belongs where its last character is.

    Parameters
    ----------
    data
        The file, in UTF-8.
    model
        Whose tokenizer reads it, as `models.read_tokenizer` finds that.
    asked
        As in `context_of`. Of a line without an answer, of which one is asked, there comes back
        what is `Unanswered`.
    max_length
        The most tokens of a context, or of a prompt that is unanswered.
    foil
        As in `read_lines`.

    Raises
    ------
    ValueError
        Where the file is missing or empty, the tokenizer is none, or a line, which the message
        names, is no such object, or too long.
    """
    data = as_path(data, "data")
    read = models.read_tokenizer(model)
    if data.suffix not in (".jsonl", ".json"):
        return [*_cut(encode_text(_content(data), read), data, asked, max_length)]
    lines = read_lines(data, model, foil)
    return [context_of_line(line, read, asked, max_length) for line in lines]


def read_lines(data: AnyPath, model: AnyPath | None = None, foil: str = "") -> list[Line]:
    r"""Read JSON lines; or a list of the same objects, of a file whose name ends in ``.json``.

    A line has a ``text``; or a ``prompt``; or ``documents``, a list of ``{"title": ..., "text":
    ...}`` of which the title may be left out, and a ``question``; or ``messages``, a list of
    ``{"role": ..., "content": ...}``, and maybe ``documents``. All but a text may have an
    ``answer`` and a ``foil``, what might have followed instead. Text and prompt may have ``spans``:
    ``[[start, end, "name"], ...]`` in characters of the text, or of prompt and answer together. By
    an ``id`` a line is paired with that of another file; any other entry is refused.

    Parameters
    ----------
    data
        The file, in UTF-8.
    model
        Whose template lays out messages, as in `read_chat_template`; None where there are none.
    foil
        That of lines that have none of their own.

    Raises
    ------
    ValueError
        Where the file is missing or empty, a line, which the message names, is no such object, or
        there are messages and no template.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "asked.jsonl"
    ...     _ = path.write_text('{"documents": [{"text": "Wrens sing."}], "question": "Who?"}')
    ...     (line,) = read_lines(path)
    >>> line.laid.text
    'Wrens sing.\n\nQuestion: Who?\nAnswer:'
    """
    data = as_path(data, "data")
    lines = [_line(entry, where, foil) for where, entry in _entries(data)]
    chats = [line.where for line in lines if line.messages]
    if not chats:
        return lines
    if model is None:
        raise ValueError(f"{chats[0]}: got messages, expected a model whose they are. Pass model.")
    template = read_chat_template(model)
    return [line._replace(template=template) if line.messages else line for line in lines]


def read_documents(path: AnyPath) -> tuple[Document, ...]:
    """Read documents, each under a name of its own: of a folder, or of a file.

    A folder's are its files, which are texts in UTF-8, in the order of their names, which without
    their endings are the titles. A file of JSON lines, or of a list in a file named ``.json``, has
    ``{"title": ..., "text": ...}`` for each, of which the title may be left out; any other file is
    one document.

    Raises
    ------
    ValueError
        Where nothing is there, or what is there is no text or no such object.
    """
    path = as_path(path, "documents")
    if path.suffix in (".json", ".jsonl"):
        return _documents([entry for _, entry in _entries(path)], f"{path}")
    within = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [one for one in within if not one.name.startswith(".") and not one.is_dir()]
    require(bool(files), "documents", got=f"{path} without a file", expected="some",
            cure="Folders inside are not read.")  # fmt: skip
    return _documents([{"title": one.stem, "text": _content(one)} for one in files], f"{path}")


def context_of_line(
    line: Line, tokenizer: Any, asked: Asked, max_length: int
) -> Context | Unanswered:
    """The context of a line, or its prompt where an answer is asked and it has none.

    Parameters
    ----------
    line
        Of `read_lines`; its documents may stand in another order by now.
    tokenizer, asked, max_length
        As in `context_of` and in `read_contexts`.
    """
    with _told_of(line.where):
        laid = line.laid
    if asked != "next-token" and line.answer is None and line.asks and laid.text:
        found = unanswered(laid, tokenizer, line.foil)
    else:
        found = context_of(
            laid, line.answer or "", tokenizer, asked=asked, foil=line.foil, where=line.where
        )
    require(
        found.length <= max_length,
        line.where,
        got=f"{found.length + 1} tokens",
        expected=f"from 2 to {max_length + 1}: a context of --max-length, and the target after it",
        cure="Raise --max-length, or leave the line out.",
    )
    return found._replace(id=line.id)


def _entries(data: Path) -> list[tuple[str, Any]]:
    """What stands on each line, or in each entry of a list, with where that is."""
    content = _content(data)
    if data.suffix == ".json":
        found = _parsed(content, f"{data}")
        cure = "Or put each object on a line by itself, in a file of the name .jsonl."
        listed = isinstance(found, list)
        require(listed, f"{data}", got=content[:40], expected="a list of objects", cure=cure)
        entries = [(f"{data}, entry {n}", entry) for n, entry in enumerate(found, 1)]
    else:
        # Texts may hold characters that str.splitlines takes for the end of a line.
        lines = [(n, line) for n, line in enumerate(content.split("\n"), 1) if line.strip()]
        wheres = [(f"{data}, line {n}", line) for n, line in lines]
        entries = [(where, _parsed(line, where)) for where, line in wheres]
    require(bool(entries), "data", got=f"{data} without a line", expected="some",
            cure="Each line is an object with text, or with prompt and answer.")  # fmt: skip
    return entries


def _content(data: Path) -> str:
    require(
        data.is_file(),
        "data",
        got=f"{data}, which is no file",
        expected="a text, or JSON lines in a file of the name .jsonl",
        cure="Each line holds text, or prompt and answer.",
    )
    try:
        return data.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"data: got {data}, whose byte {error.start} is not of UTF-8, expected a text that is. "
            "Save it in that encoding."
        ) from error


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


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: got {text[:40]!r}, expected JSON ({error}). {CURE}") from error


def _line(entry: Any, where: str, foil: str) -> Line:
    """An object whose entries are what they should be."""
    keys = set(entry) if isinstance(entry, dict) else set()
    kinds = [kind for kind in KINDS if keys >= set(kind)]
    require(len(kinds) == 1, where, got=_shown(entry), expected=_expected(), cure=CURE)
    (kind,) = kinds
    known = (*kind, *KINDS[kind], "id")
    others = ", ".join(f'"{key}"' for key in entry if key not in known)
    require(not others, where, got=f"the entry {others}", expected=" ".join(known),
            cure="What is not read is refused: it may be misspelt.")  # fmt: skip
    for name in keys & set(TEXTS):
        require(isinstance(entry[name], str), where, got=f"{name} = {entry[name]!r}"[:60],
                expected=f"{name} as a text", cure=CURE)  # fmt: skip
    question, answer, foil = entry.get("question", ""), entry.get("answer"), entry.get("foil", foil)
    asks = "question" not in entry or bool(question.strip())
    require(asks, where, got=f"{question = }", expected="one", cure="Ask something.")
    documents = _documents(entry["documents"], where) if "documents" in entry else ()
    if question:
        answer, foil = answer and spaced(answer), foil and spaced(foil)
    return Line(
        where,
        entry.get("text", entry.get("prompt", "")),
        _spans(entry.get("spans", []), where),
        documents,
        question,
        _messages(entry["messages"], where) if "messages" in entry else (),
        None,
        answer,
        foil,
        "text" not in entry,
        str(entry.get("id", "")),
    )


def _messages(messages: Any, where: str) -> tuple[Message, ...]:
    with _told_of(where):
        require_messages(messages)
    return tuple(messages)


@contextmanager
def _told_of(where: str) -> Iterator[None]:
    """What is refused, with where it stands."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}, {error}") from error


def spaced(answer: str) -> str:
    """An answer as it follows a question: after a space.

    Examples
    --------
    >>> spaced("a bird"), spaced(" a bird")
    (' a bird', ' a bird')
    """
    require_text(answer, "answer")
    return f" {answer.lstrip()}"


def _documents(entries: Any, where: str) -> tuple[Document, ...]:
    expected = 'a list of {"title": "...", "text": "..."}, at least one; the title may be left out'
    cure = "Neither is anything but a text, and other entries are misspelt."
    listed = entries if isinstance(entries, list) else []
    require(bool(listed), where, got=f"documents = {_shown(entries)}", expected=expected, cure=cure)
    for number, one in enumerate(listed, 1):
        texts = isinstance(one, dict) and all(isinstance(text, str) for text in one.values())
        require(
            texts and {"text"} <= set(one) <= {"title", "text"} and bool(one["text"].strip()),
            f"{where}, document {number}",
            got=_shown(one),
            expected=expected,
            cure=cure,
        )
    return named_documents([Document(one.get("title", ""), one["text"]) for one in listed])


def _spans(spans: Any, where: str) -> tuple[tuple[int, int, str], ...]:
    require(isinstance(spans, list), where, got=f"spans = {_shown(spans)}",
            expected='"spans" as a list', cure='Such as [[0, 6, "record 1"]].')  # fmt: skip
    for span in spans:
        require(
            isinstance(span, list) and list(map(type, span)) == [int, int, str],
            where,
            got=f"the span {span}",
            expected='[start, end, "name"] in characters of the text',
            cure="The end is not of the span, as in a Python slice.",
        )
    return tuple(map(tuple, spans))


def _expected() -> str:
    """The kinds of a line, in words."""
    kinds = (", ".join(f'"{name}": ...' for name in (*kind, *KINDS[kind][:1])) for kind in KINDS)
    return "one of " + " or ".join(f"{{{kind}}}" for kind in kinds)


def _shown(entry: Any) -> str:
    return json.dumps(entry, ensure_ascii=False)[:60]
