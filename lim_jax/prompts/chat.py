"""A chat laid out by the model's own template, with where each message and document stands."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from lim_jax._argument_error import Refusal
from lim_jax._checks import described, require, require_kind, require_several
from lim_jax.checkpoints.text import ChatTemplate
from lim_jax.prompts.documents import (
    QUESTION,
    ROLES,
    Document,
    RenderedPrompt,
    document_pieces,
    named_documents,
)
from lim_jax.prompts.templates import render_chats

PRIVATE = range(0xE000, 0xF8FF)  # letters that Unicode leaves to everyone
# Names of functions and of types, which templates compare, and which spell no token of control.
WORD = re.compile(r"[\w $./:-]*")
# What a message may have beside what is said.
FURTHER = {"assistant": ("tool_calls",), "tool": ("tool_call_id", "name")}
NOTHING = (None, [])  # as logs have the calls of a message that calls nothing
CALL = '{"type": "function", "function": {"name": "...", ...}}'
Message = Mapping[str, Any]
Pieces = Sequence[tuple[str, str]]


class _Marks(NamedTuple):
    """Two letters that are in no text: around a piece's number they stand for it."""

    opens: str
    closes: str

    def around(self, number: int) -> str:
        """Return what stands for a piece."""
        return f"{self.opens}{number}{self.closes}"


class _Text(NamedTuple):
    """The numbers of pieces that stand in a chat one after another."""

    numbers: Sequence[int]


class _Layout(NamedTuple):
    """A chat in numbered pieces, each a text under a name, so that each can be found again."""

    pieces: list[tuple[str, str]]
    chat: dict[str, Any]  # the template's variables, with a `_Text` for each text
    required: set[int]  # pieces that the template must lay out: the others are parts of calls

    def put(self, texts: Pieces, required: bool = True) -> _Text:
        """Add pieces, and return the `_Text` that stands for them in the chat."""
        numbers = range(len(self.pieces), len(self.pieces) + len(texts))
        self.pieces.extend(texts)
        self.required.update(numbers if required else ())
        return _Text(numbers)

    def mark_texts(self, value: Any) -> Any:
        """Put a `_Text` in place of each text of lists and objects that is more than a word."""
        if isinstance(value, Mapping):
            return {name: self.mark_texts(entry) for name, entry in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self.mark_texts(entry) for entry in value]
        more = isinstance(value, str) and WORD.fullmatch(value) is None
        return self.put([(value, "")], required=False) if more else value


def _fill(value: Any, texts: Sequence[str]) -> Any:
    """Return the template's variables with the texts of pieces in place of each `_Text`."""
    if isinstance(value, _Text):
        return "".join(texts[number] for number in value.numbers)
    if isinstance(value, Mapping):
        return {name: _fill(entry, texts) for name, entry in value.items()}
    return [_fill(entry, texts) for entry in value] if isinstance(value, list) else value


def chat_prompt(
    messages: Sequence[Message],
    template: ChatTemplate,
    documents: Sequence[Document] = (),
    tools: Sequence[Mapping[str, Any]] = (),
) -> RenderedPrompt:
    """Lay out a chat as its model reads it, up to where the assistant begins to speak.

    Each message is a part under its role and its number, such as ``user 2``. Documents go where the
    template has a place for them, else before the text of the user's last message, which is then
    the part ``question``. Where the last message is the assistant's own, it is left open.

    No text of a chat is read as a token of control, such as the mark of a turn's end.

    Parameters
    ----------
    messages
        What is said, in order. Each has a ``role`` and a ``content``: a text, or a list of
        ``{"type": "text", "text": ...}``, which are read one after another. An assistant may call
        tools (``tool_calls``), and then say nothing; a message of the role ``tool`` may have a
        ``tool_call_id`` and a ``name``.
    template
        The model's own template, `LanguageModel.chat_template`; it needs jinja2, of the extra
        ``models``.
    documents
        The documents that are asked about, each a part under its name; none by default.
    tools
        What the assistant may call, each as a schema in JSON:
        ``{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}``;
        none by default.

    Returns
    -------
    RenderedPrompt
        The text of the chat, and its named parts.

    Raises
    ------
    ValueError
        If the template refuses the chat, or leaves out or changes a text but for white space at its
        ends; if messages, documents or tools are not of these forms.

    Examples
    --------
    >>> source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}<model>"
    >>> prompt = chat_prompt([{"role": "user", "content": "user "}], ChatTemplate(source, {}))
    >>> prompt.text, prompt.spans
    ('<user>user<model>', ((6, 10, 'user 1'),))
    """
    require_kind(template, ChatTemplate, "template", "Take that of a LanguageModel, if it has one.")
    require_messages(messages)
    if tools:
        _require_functions(tools, "tools")
    named = named_documents(documents) if documents else ()
    layouts = [_layout(messages, tools)]
    if named:
        beside = _beside(messages, tools, named)
        layouts = [beside, _layout(messages, tools, document_pieces(named))]
    marks = _unused_marks(template.source, *(text for one in layouts for text, _ in one.pieces))
    layout, text, frame = _choose_layout(template, layouts, marks)
    piece_spans, control = _find_pieces(layout, text, frame, marks)
    end = len(text)
    if not layout.chat["add_generation_prompt"]:
        (last,) = layout.chat["messages"][-1]["content"].numbers
        end = max(stop for _, stop, number in piece_spans if number == last)
    named_spans = [(start, stop, layout.pieces[number][1]) for start, stop, number in piece_spans]
    return RenderedPrompt(
        text[:end],
        tuple(span for span in named_spans if span[2] and span[0] < span[1] <= end),
        marked=True,
        control=tuple(span for span in control if span[1] <= end),
    )


def turn_ends(template: ChatTemplate, tokenizer: Any) -> tuple[int, ...]:
    """Return the id of the token with which a template ends what an assistant says, if it does.

    Publishers' files do not always name it among those that end an answer.
    """
    answer = _unused_marks(template.source).around(0)
    question = {"role": "user", "content": "?"}
    chat = [question, {"role": "assistant", "content": answer}, question]
    (outcome,) = render_chats(template, [{"messages": chat, "add_generation_prompt": False}])
    _, separator, after = outcome.get("text", "").rpartition(answer)
    added = getattr(tokenizer, "get_added_tokens_decoder", dict)()
    ids = {token.content: number for number, token in added.items()}
    ends = [word for word in ids if separator and after.lstrip().startswith(word)]
    return (ids[max(ends, key=len)],) if ends else ()


def _unused_marks(*texts: str) -> _Marks:
    """Return two letters that none of these texts has."""
    used = set().union(*texts)
    opens, closes, *_ = (letter for letter in map(chr, PRIVATE) if letter not in used)
    return _Marks(opens, closes)


def _choose_layout(
    template: ChatTemplate, layouts: Sequence[_Layout], marks: _Marks
) -> tuple[_Layout, str, str]:
    """Render the layouts; return the one that the template reads, its text, and that with marks."""
    texts = [[text for text, _ in layout.pieces] for layout in layouts]
    marked = [[marks.around(n) for n in range(len(layout.pieces))] for layout in layouts]
    chats = [
        _fill(layout.chat, piece_texts)
        for layout, *both in zip(layouts, texts, marked, strict=True)
        for piece_texts in both
    ]
    reduced_chats = dict(_without_calls(chats[-2]))
    rendered = render_chats(template, [*chats, *reduced_chats.values()])
    outcomes = rendered[: len(chats)]
    reduced_outcomes = rendered[len(chats) :]
    # With documents, the first layout is the template's own place for them: is there one?
    numbers = [document["text"].numbers[0] for document in layouts[0].chat.get("documents", ())]
    beside = bool(numbers) and all(marked[0][n] in outcomes[1].get("text", "") for n in numbers)
    outcome_of_texts, outcome_of_marks = outcomes[:2] if beside else outcomes[-2:]
    error = outcome_of_texts.get("error", outcome_of_marks.get("error"))
    require(
        error is None,
        "messages",
        got=f"what the model's chat template refuses ({error})",
        expected="a chat that the template takes",
        cure="Pass one message of the user alone: some templates know no system message.",
    )
    unread = [
        name
        for name, outcome in zip(reduced_chats, reduced_outcomes, strict=True)
        if outcome == outcomes[-2]
    ]
    _require_none_left_out(unread)
    return layouts[0 if beside else -1], outcome_of_texts["text"], outcome_of_marks["text"]


def _without_calls(chat: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the chat without tools or one message's calls, by the name of what is left out."""
    if "tools" in chat:
        yield "tools", {name: value for name, value in chat.items() if name != "tools"}
    for number, message in enumerate(chat["messages"]):
        if "tool_calls" in message:
            bare = {name: value for name, value in message.items() if name != "tool_calls"}
            others = chat["messages"][:number], chat["messages"][number + 1 :]
            yield (
                f"the calls of message {number + 1}",
                {**chat, "messages": [*others[0], bare, *others[1]]},
            )


def _layout(
    messages: Sequence[Message],
    tools: Any,
    before: Pieces | None = None,
) -> _Layout:
    """Lay out a chat with the pieces `before` in front of the user's last message, the question.

    Where `before` is None no message is the question.
    """
    users = [number for number, message in enumerate(messages) if message["role"] == "user"]
    require(
        bool(users) or before is None,
        "messages",
        got="documents and no message of the user",
        expected="a message of the user",
        cure="Add a message of the role user: the question is the user's last one.",
    )
    turns: list[dict[str, Any]] = []
    layout = _Layout([], {"messages": turns}, set())
    for number, message in enumerate(messages):
        role = message["role"]
        text = content_text(message.get("content"))
        asks = before is not None and number == users[-1]
        name = f"{role if role in ROLES else 'message'} {number + 1}"
        pieces = [*(before or () if asks else ()), (text or "", QUESTION if asks else name)]
        # Where nothing is said beside a call, a template is to see that it is nothing.
        content = layout.put(pieces) if text else ""
        further = {
            key: layout.mark_texts(message[key])
            for key in FURTHER.get(role, ())
            if message.get(key) not in NOTHING
        }
        turns.append({"role": role, "content": content, **further})
    open_end = messages[-1]["role"] == "assistant"
    layout.chat["add_generation_prompt"] = not open_end
    if tools:
        layout.chat["tools"] = layout.mark_texts(tools)
    return layout


def _beside(messages: Sequence[Message], tools: Any, documents: Sequence[Document]) -> _Layout:
    """Lay out a chat with documents beside its messages, which the template itself is to place."""
    layout = _layout(messages, tools, ())
    layout.chat["documents"] = [
        {
            part: layout.put([(text, document.name)], required=part == "text")
            for part in ("title", "text")
            if (text := getattr(document, part))
        }
        for document in documents
    ]
    return layout


def _find_pieces(
    layout: _Layout, text: str, frame: str, marks: _Marks
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """Find where each piece stands in a text, by the frame with marks in their places.

    The second list has what stands between them, in order.
    """
    split_frame = re.split(rf"{marks.opens}(\d+){marks.closes}", frame)
    numbers = [int(number) for number in split_frame[1::2]]
    names = {layout.pieces[number][1] for number in layout.required - set(numbers)}
    _require_none_left_out(sorted(names - {""}))
    put = [f"({'|'.join(_as_put(layout.pieces[number][0]))})" for number in numbers]
    between = [re.escape(text_between) for text_between in split_frame[::2]]
    pairs = zip(between, [*put, ""], strict=True)
    pattern = "".join(text_between + here for text_between, here in pairs)
    match = re.fullmatch(pattern, text)
    if match is None:
        raise Refusal(
            "messages: got texts that the model's chat template changes, expected texts that can "
            "be found in the chat again. Leave out what it reads otherwise, or ask by a prompt."
        )
    piece_spans = [(*match.span(group), number) for group, number in enumerate(numbers, 1)]
    edges = [0, *(edge for start, end, _ in piece_spans for edge in (start, end)), len(text)]
    return piece_spans, list(zip(edges[::2], edges[1::2], strict=True))


def _require_none_left_out(left_out: Sequence[str]) -> None:
    """Raise ValueError if the template leaves out any of these."""
    require(
        not left_out,
        "messages",
        got=f"{', '.join(left_out)}, which the model's chat template leaves out",
        expected="messages of which the template writes everything",
        cure="Leave it out, or ask by a prompt without a chat.",
    )


def _as_put(text: str) -> list[str]:
    """Return patterns of the forms in which templates put a text: whole, stripped, or as JSON."""
    forms = text, text.strip(), text.lstrip(), text.rstrip()
    in_json = [json.dumps(form, ensure_ascii=False)[1:-1] for form in forms]
    return [re.escape(form) for form in dict.fromkeys((*forms, *in_json))]


def require_messages(messages: Any) -> None:
    """Raise ValueError unless these are messages as `chat_prompt` takes them."""
    require_several(
        messages, Mapping, "messages", 'Pass for example [{"role": "user", "content": "..."}].'
    )
    for number, message in enumerate(messages, 1):
        where = f"messages, message {number}"
        role = message.get("role")
        further = FURTHER.get(role, ()) if isinstance(role, str) else ()
        calls = message.get("tool_calls") not in NOTHING
        says = bool((content_text(message.get("content")) or "").strip())
        says = says or (calls and message.get("content") in (None, ""))
        require(
            isinstance(role, str)
            and bool(role.strip())
            and says
            and set(message) <= {"role", "content", *further},
            where,
            got=f"{dict(message)!r}"[:60],
            expected='{"role": "...", "content": "..."}, both texts that are not empty',
            cure=(
                "Give each message a role and a content, which may be a list of parts of text; "
                "pictures and sounds are not read."
            ),
        )
        if calls:
            _require_functions(message["tool_calls"], f"{where}, tool_calls")
        _require_json([message.get(key) for key in further], where)
    require(
        messages[-1].get("tool_calls") in NOTHING,
        "messages",
        got="a last one that calls tools",
        expected="the tools' answers after it",
        cure="Add a message of the role tool.",
    )


def content_text(content: Any) -> str | None:
    """Return the text of a message's content; None if it is no text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [
        part.get("text")
        for part in parts
        if isinstance(part, Mapping) and set(part) == {"type", "text"} and part["type"] == "text"
    ]
    texts_alone = len(texts) == len(parts) > 0 and all(isinstance(text, str) for text in texts)
    return "".join(map(str, texts)) if texts_alone else None


def _require_functions(functions: Any, where: str) -> None:
    """Raise ValueError unless these are functions in JSON, each with a name."""
    require_several(functions, Mapping, where, f"Pass each as {CALL}.")
    for number, entry in enumerate(functions, 1):
        function = entry.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        here = f"{where}, entry {number}"
        require(
            isinstance(name, str) and bool(name),
            here,
            got=f"{dict(entry)!r}"[:60],
            expected=CALL,
            cure='Name each function, such as {"function": {"name": "search"}}.',
        )
        _require_json(entry, here)


def _require_json(value: Any, where: str) -> None:
    """Raise ValueError for values that JSON lacks, and names that may hold a token of control."""
    if isinstance(value, Mapping):
        odd = [name for name in value if not (isinstance(name, str) and WORD.fullmatch(name))]
        require(
            not odd,
            where,
            got=f"the name {odd[:1]}",
            expected="names of letters, digits and underscores",
            cure="Rename it with letters, digits and underscores: templates compare these names.",
        )
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            _require_json(entry, where)
        return
    is_json = value is None or isinstance(value, str | int)
    is_json = is_json or (isinstance(value, float) and isfinite(value))
    require(
        is_json,
        where,
        got=described(value),
        expected="a value of JSON",
        cure="Pass plain values: texts, numbers, booleans, None, lists and dictionaries of them.",
    )
