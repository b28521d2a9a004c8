"""What a model is to read, from a file of your own: a text, or a line for each context."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lim_jax._argument_error import Refusal
from lim_jax._checks import AnyPath, as_path, require
from lim_jax._files import files_within, parsed_json, text_of_file
from lim_jax.checkpoints.text import CURE_OF_CHATS, ChatTemplate
from lim_jax.models import LanguageModel
from lim_jax.models.loss_kinds import LOSSES, LossName, loss_kind
from lim_jax.prompts.chat import Message, chat_prompt, content_text, require_messages
from lim_jax.prompts.contexts import (
    Context,
    PromptOnly,
    positions_by_name,
    require_foil_read,
    tokenize_context,
    tokenize_prompt,
)
from lim_jax.prompts.documents import (
    ANSWER,
    MOST_LETTERS,
    REST,
    Document,
    RenderedPrompt,
    document_prompt,
    named_documents,
)
from lim_jax.tasks import encode_text
from lim_jax.tasks.prompts import EncodedText

# What a line must have, and what it may have beside.
KINDS = {
    ("text",): ("spans",),
    ("prompt",): ("answer", "foil", "spans"),
    ("documents", "question"): ("answer", "foil"),
    ("messages",): ("answer", "foil", "documents", "tools"),
}
DOCUMENT = '{"title": "...", "text": "..."}'
TEXTS = ("text", "prompt", "question", "answer", "foil")
CURE = "Write one JSON object on each line, or a list of them in a .json file; quote its texts."


class Line(NamedTuple):
    """A line of a file: what is asked, before it is laid out.

    Attributes
    ----------
    where
        The file and the line, which errors name.
    text
        The text, or the prompt; empty where the line has documents or messages.
    spans
        The named parts of the text: start, end and name, in characters; the end is not of the part.
    documents
        The documents that are asked about, each with a name of its own.
    question
        What is asked about the documents; empty where messages ask it.
    messages
        The messages of a chat, in order.
    template
        The chat template that lays out the messages; None without one.
    answer
        The answer, with the space before it where one follows; None where the line has none.
    foil
        What might have followed instead, as the answer; empty for none.
    asks
        Whether an answer can follow; not after a ``text``.
    id
        The name by which `compare` finds the line in another file; empty for none.
    tools
        The functions that the assistant may call, as schemas.
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
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def prompt(self) -> RenderedPrompt:
        """The text that stands before the answer; a chat's is made by its template."""
        if self.template is not None:
            return chat_prompt(self.messages, self.template, self.documents, self.tools)
        if self.documents:
            return document_prompt(self.documents, self.question)
        return RenderedPrompt(self.text, self.spans)


def require_data(data: AnyPath, loss: LossName, foil: str = "") -> None:
    """Raise ValueError unless a file can be read, and all that it holds has one of the forms.

    It is called before a model is opened, without which no more is known.
    """
    data = Path(data)
    if _is_text(data):
        _content(data)
        _require_loss_of_text(data, loss)
    else:
        _lines(data, foil)


def read_prompts(
    data: AnyPath, model: LanguageModel, loss: LossName, max_length: int, foil: str = ""
) -> list[Context | PromptOnly]:
    """Read the contexts of a text, or of lines of JSON (`read_lines`).

    A line without the answer that the loss asks for gives a prompt alone.
    """
    data = Path(data)
    tokenizer = model.tokenizer
    if _is_text(data):
        return [*_cut(encode_text(_content(data), tokenizer), data, loss, max_length)]
    lines = read_lines(data, model.chat_template, foil)
    return [context_of_line(line, tokenizer, loss, max_length) for line in lines]


def read_lines(data: AnyPath, template: ChatTemplate | None = None, foil: str = "") -> list[Line]:
    """Read lines in the form of docs/commands.md, or a list of such objects in a ``.json`` file."""
    lines = _lines(Path(data), foil)
    _warn_of_white_space(lines)
    chats = [line.where for line in lines if line.messages]
    require(
        not chats or template is not None,
        "".join(chats[:1]),
        cure=CURE_OF_CHATS,
        got="messages of a chat, and a model without a chat template",
        expected="one with chat_template.jinja, or in tokenizer_config.json",
    )
    return [line._replace(template=template) if line.messages else line for line in lines]


def _is_text(data: Path) -> bool:
    """Tell whether a file holds a text, and no lines of JSON."""
    return data.suffix.lower() not in (".jsonl", ".json")


def _lines(data: Path, foil: str) -> list[Line]:
    """Return the lines of a file before a template is known; raise ValueError at other forms."""
    lines = [_line(entry, where, foil) for where, entry in _entries(data)]
    _require_distinct_ids(lines)
    return lines


def _warn_of_white_space(lines: Sequence[Line]) -> None:
    """Warn that white space at the end of an answer or foil is asked too."""
    texts = [(line.where, text) for line in lines for text in (line.answer, line.foil) if text]
    wheres = list(dict.fromkeys(where for where, text in texts if text != text.rstrip()))
    if wheres:
        more = f", as in {len(wheres) - 1} more" * (len(wheres) > 1)
        warnings.warn(
            f"{wheres[0]}: the answer or foil ends in white space, which is asked as a part of "
            f"it{more}. Take it away unless it is meant.",
            stacklevel=4,
        )


def read_documents(path: AnyPath) -> tuple[Document, ...]:
    """Read the documents of a folder and of those in it, or of a file, each under its own name."""
    path = as_path(path, "documents")
    if os.path.isdir(path):  # of a text in place of a path, as a path itself says not
        return _documents_of_folder(path)
    require(
        os.path.isfile(path),
        "documents",
        got=f"{path}, which is no file and no folder",
        expected="a folder of texts, PDFs or .docx, one of these, or a .json or .jsonl file",
        cure="Check the path.",
    )
    if path.suffix.lower() in (".json", ".jsonl"):
        return _documents(_entries(path, "documents"))
    text = text_of_file(path, "documents", MOST_LETTERS)
    require(
        text.strip() != "",
        "documents",
        got=f"{path}, in which nothing stands",
        expected="a text",
        cure="Pass a file that has one.",
    )
    return named_documents([Document(_title(Path(path.name)), text)])


def _documents_of_folder(folder: Path) -> tuple[Document, ...]:
    """Read each file of a folder as a document, and warn of empty ones."""
    files = files_within(folder)
    texts = {file: text_of_file(folder / file, "documents", MOST_LETTERS) for file in files}
    empty = [file for file, text in texts.items() if not text.strip()]
    require(
        len(files) > len(empty),
        "documents",
        got=f"{folder} without a file that has a text",
        expected="at least one",
        cure="Pass a folder with a file for each document.",
    )
    if empty:
        names = ", ".join(map(str, empty))
        warnings.warn(f"documents: {folder} has empty files, left out: {names}.", stacklevel=3)
    return named_documents(
        [Document(_title(file), text) for file, text in texts.items() if text.strip()]
    )


def _title(file: Path) -> str:
    """Return the title of a file's document: its path without the ending."""
    return file.with_suffix("").as_posix().encode(errors="replace").decode()


def context_of_line(
    line: Line, tokenizer: Any, loss: LossName, max_length: int
) -> Context | PromptOnly:
    """Return the context of a line, or its prompt where an answer is asked and it has none."""
    _require_letters(line)
    with _placing_errors(line.where):
        prompt = line.prompt
        context = None
        if loss_kind(loss).needs_answer and line.answer is None and line.asks and prompt.text:
            require_foil_read(line.foil, loss_kind(loss), "foil")
            context = tokenize_prompt(prompt, tokenizer, line.foil)
    if context is None:
        context = tokenize_context(
            prompt, line.answer or "", tokenizer, loss=loss, foil=line.foil, where=line.where
        )
    shorter = "give fewer or shorter documents" if line.documents else "shorten the text"
    require(
        context.length <= max_length,
        line.where,
        got=f"{context.length + 1} tokens{_tokens_of_documents(line, context)}",
        expected=f"from 2 to {max_length + 1}: a context of `max_length`, and the target after it",
        cure=f"Raise `max_length` to at least {context.length}, or {shorter}.",
    )
    return context._replace(id=line.id)


def _require_letters(line: Line) -> None:
    """Raise ValueError for too many letters, before they are encoded for a minute."""
    texts = {document.name: document.text for document in line.documents}
    for number, message in enumerate(line.messages, 1):
        texts[f"{message['role']} {number}"] = content_text(message.get("content")) or ""
    sizes = {name: len(text) for name, text in (*texts.items(), ("the text", line.text))}
    longest = max(sizes, key=lambda name: sizes[name])
    require(
        sum(sizes.values()) <= MOST_LETTERS,
        line.where,
        got=f"{sum(sizes.values()):,} letters, {sizes[longest]:,} of them in “{longest}”",
        expected=f"at most {MOST_LETTERS:,}",
        cure="Cut out what matters, or leave the rest out.",
    )


def _tokens_of_documents(line: Line, context: Context | PromptOnly) -> str:
    """Say how many of a context's tokens documents have, and which of them is the longest."""
    names = {document.name for document in line.documents}
    if isinstance(context, Context):
        positions = positions_by_name(context.spans)
        sizes = {name: at.size for name, at in positions.items() if name in names}
    else:
        within = context.encoded.within
        sizes = {n: int(within(a, b).sum()) for a, b, n in context.prompt.spans if n in names}
    if not sizes:
        return ""
    longest = max(sizes, key=lambda name: sizes[name])
    count = f"{len(sizes)} documents have" if len(sizes) > 1 else "the document has"
    most = f" and “{longest}” has the most, {sizes[longest]:,}" * (len(sizes) > 1)
    return f", of which {count} {sum(sizes.values()):,}{most}"


def _entries(data: Path, name: str = "data") -> list[tuple[str, Any]]:
    """Return the parsed objects of a file's lines, or of its list, each with where it stands."""
    content = _content(data, name)
    if data.suffix.lower() == ".json":
        listed = parsed_json(content, f"{data}", CURE)
        require(
            isinstance(listed, list),
            f"{data}",
            got=content[:40],
            expected="a list of objects",
            cure="Put the objects in a list, or each on a line of its own in a file named .jsonl.",
        )
        entries = [(f"{data}, entry {n}", entry) for n, entry in enumerate(listed, 1)]
    else:
        # Texts may hold characters that str.splitlines takes for the end of a line.
        lines = [(n, line) for n, line in enumerate(content.split("\n"), 1) if line.strip()]
        wheres = [(f"{data}, line {n}", line) for n, line in lines]
        entries = [(where, parsed_json(line, where, CURE)) for where, line in wheres]
    require(
        bool(entries),
        name,
        got=f"{data}, in which nothing stands",
        expected="at least one object",
        cure=CURE,
    )
    return entries


def _content(data: Path, name: str = "data") -> str:
    """Return the text of a file; raise ValueError if there is no such file."""
    require(
        os.path.isfile(data),  # of a text in place of a path, as a path itself says not
        name,
        got=f"{data}, which is no file",
        expected="a text, or JSON lines in a file named .jsonl",
        cure="Check the path.",
    )
    return text_of_file(data, name)


def _cut(encoded: EncodedText, data: Path, loss: LossName, max_length: int) -> list[Context]:
    """Cut a text's tokens into contexts of one length; a shorter text is one context."""
    _require_loss_of_text(data, loss)
    targets = len(encoded.ids) - 1
    length = min(max_length, targets)
    require(
        length > 0,
        "data",
        got=f"{targets + 1} tokens in {data}",
        expected="at least two",
        cure="Pass a longer text: the last token is only a target.",
    )
    weights = loss_kind(loss).weights(np.zeros(length, bool))
    return [
        Context(encoded.ids[at : at + length + 1], weights, encoded.tokens[at : at + length])
        for at in range(0, targets - length + 1, length)
    ]


def _require_loss_of_text(data: Path, loss: LossName) -> None:
    """Raise ValueError for a loss that asks for an answer, which a text does not have."""
    require(
        not loss_kind(loss).needs_answer,
        "loss",
        got=f"{loss} with {data}, a text without answers",
        expected=" or ".join(name for name, other in LOSSES.items() if not other.needs_answer),
        cure="Pass JSON lines with prompt and answer, or take one of these losses.",
    )


def _line(entry: Any, where: str, foil: str) -> Line:
    """Return the line that an entry of a file describes; raise ValueError if it describes none."""
    _require_form(entry, where)
    question = entry.get("question", "")
    require(
        "question" not in entry or bool(question.strip()),
        where,
        got=f"{question = }",
        expected="a text that is not empty",
        cure="Write the question.",
    )
    documents = _documents_of_line(entry["documents"], where) if "documents" in entry else ()
    messages = entry.get("messages", ())
    tools = entry.get("tools", [])
    with _placing_errors(where):
        if "messages" in entry:
            require_messages(messages)
        answer, foil = _as_they_follow(
            entry.get("answer"), entry.get("foil", foil), question, messages
        )
    require(
        isinstance(tools, list),
        where,
        got=f"tools = {_shown(tools)}"[:60],
        expected="a list",
        cure="Pass a list of schemas of functions.",
    )
    return Line(
        where,
        text=entry.get("text", entry.get("prompt", "")),
        spans=_spans(entry.get("spans", []), where),
        documents=documents,
        question=question,
        messages=tuple(messages),
        answer=answer,
        foil=foil,
        asks="text" not in entry,
        id=_id(entry, where),
        tools=tuple(tools),
    )


def _require_form(entry: Any, where: str) -> None:
    """Raise ValueError unless an entry is of one kind, with names and texts of that kind alone."""
    keys = set(entry) if isinstance(entry, dict) else set()
    kinds = [kind for kind in KINDS if keys >= set(kind)]
    begun = [kind for kind in KINDS if not kinds and keys & set(kind)]
    lacking = [f'"{name}"' for kind in begun for name in kind if name not in keys]
    forms = (", ".join(f'"{name}": ...' for name in (*kind, *KINDS[kind][:1])) for kind in KINDS)
    require(
        len(kinds) == 1,
        where,
        got=_shown(entry) + "".join(f", without {name}" for name in lacking),
        expected="one of " + " or ".join(f"{{{kind}}}" for kind in forms),
        cure="Add that entry." if lacking else CURE,
    )
    (kind,) = kinds
    names = (*kind, *KINDS[kind], "id")
    others = ", ".join(f'"{key}"' for key in entry if key not in names)
    require(
        not others,
        where,
        got=f"the entry {others}",
        expected=f"some of {', '.join(names)}",
        cure="Leave it out, or spell it as one of these: what is not read is refused.",
    )
    for name in keys & set(TEXTS):
        require(
            isinstance(entry[name], str),
            where,
            got=f"{name} = {entry[name]!r}"[:60],
            expected=f"{name} as a text",
            cure=CURE,
        )


def _as_they_follow(
    answer: str | None, foil: str, question: str, messages: Sequence[Any]
) -> tuple[str | None, str]:
    """Return an answer and a foil as they follow a question or a chat; after a prompt as given."""
    if not question and not messages:
        return answer, foil
    require_words(answer, "answer")
    require_words(foil or None, "foil")
    if question:
        return answer and spaced(answer), foil and spaced(foil)
    return answer and answer.strip(), foil.strip()


def require_words(text: str | None, name: str) -> None:
    """Raise ValueError for an answer or a foil in which nothing is said; None is none."""
    require(
        text is None or text.strip() != "",
        name,
        got=f"{text!r}",
        expected="words",
        cure="Leave it out for none, as of an answer that the model is to give itself.",
    )


def _id(entry: dict[str, Any], where: str) -> str:
    """Return an entry's id as a text, empty without one; raise ValueError for other values."""
    if "id" not in entry:
        return ""
    name = entry["id"]
    named = isinstance(name, str | int) and not isinstance(name, bool) and f"{name}".strip()
    require(
        bool(named),
        where,
        got=f"id = {_shown(name)}",
        expected="a text or a whole number",
        cure="Give each line an id of its own, or leave the entry out.",
    )
    return f"{name}"


def _require_distinct_ids(lines: Sequence[Line]) -> None:
    """Raise ValueError for an id that stands twice, as lines are paired by their ids."""
    first: dict[str, str] = {}
    for line in lines:
        other = first.setdefault(line.id, line.where)
        require(
            not line.id or other == line.where,
            line.where,
            got=f"the id {line.id!r}, as {other.rpartition(', ')[2]} has",
            expected="an id of its own",
            cure="Give each line another id, such as its number.",
        )


@contextmanager
def _placing_errors(where: str) -> Iterator[None]:
    """Put where the line stands in front of what errors say."""
    try:
        yield
    except Refusal as error:
        raise Refusal(f"{where}, {error}") from error


def spaced(answer: str) -> str:
    """Return an answer as it follows a question: after one space, with none at its end."""
    return f" {answer.strip()}"


def _documents_of_line(entries: Any, where: str) -> tuple[Document, ...]:
    """Return the documents of a line; raise ValueError unless there are some, each with a text."""
    listed = entries if isinstance(entries, list) else []
    require(
        bool(listed),
        where,
        got=f"documents = {_shown(entries)}",
        expected=f"a list of {DOCUMENT}, at least one",
        cure="Write them as such a list.",
    )
    return _documents([(f"{where}, document {n}", entry) for n, entry in enumerate(listed, 1)])


def _documents(entries: Sequence[tuple[str, Any]]) -> tuple[Document, ...]:
    """Return the documents of entries, each with where it stands.

    Raise ValueError unless each has a text.
    """
    for where, entry in entries:
        texts = isinstance(entry, dict) and all(isinstance(text, str) for text in entry.values())
        lacking = ', without "text"' if isinstance(entry, dict) and "text" not in entry else ""
        require(
            texts and {"text"} <= set(entry) <= {"title", "text"} and bool(entry["text"].strip()),
            where,
            got=f"{_shown(entry)}{lacking}",
            expected=f"{DOCUMENT}, of which the title may be left out",
            cure='Write a "text", and no entry but these two, both as texts.',
        )
    return named_documents(
        [Document(entry.get("title", ""), entry["text"]) for _, entry in entries]
    )


def _spans(spans: Any, where: str) -> tuple[tuple[int, int, str], ...]:
    """Return the spans of an entry, none of them called as the answer or the rest.

    Raise ValueError unless each is a start, an end and a name.
    """
    require(
        isinstance(spans, list),
        where,
        got=f"spans = {_shown(spans)}",
        expected='"spans" as a list',
        cure='Write for example [[0, 6, "record 1"]].',
    )
    for span in spans:
        listed = isinstance(span, list) and list(map(type, span)) == [int, int, str]
        require(
            listed and span[2].strip() != "",
            where,
            got=f"the span {span}",
            expected='[start, end, "name"] in characters of the text, with a name',
            cure="Count characters from 0, with the end left out as in a Python slice.",
        )
    names = {name for *_, name in spans}
    return tuple((start, end, _distinct_name(name, names)) for start, end, name in spans)


def _distinct_name(name: str, names: set[str]) -> str:
    """Return a span's name, or another if the answer or the rest is called by it."""
    if name not in (ANSWER, REST):
        return name
    while name in names:
        name += " (span)"
    return name


def _shown(entry: Any) -> str:
    """Return the first 60 letters of an entry in JSON, for errors."""
    return json.dumps(entry, ensure_ascii=False)[:60]
