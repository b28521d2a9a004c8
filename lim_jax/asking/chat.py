"""A chat laid out by the model's own template, with where each message and document stands."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lim_jax._checks import described, require, require_kind, require_several
from lim_jax.asking.documents import (
    QUESTION,
    Document,
    Laid,
    document_pieces,
    named_documents,
)
from lim_jax.asking.templates import ChatTemplate, rendered

# Around a piece's number they stand for it; no text has these, which Unicode leaves to everyone.
OPENS, CLOSES = "\ue000", "\ue001"
Message = Mapping[str, str]
Pieces = Sequence[tuple[str, str]]


class _Layout(NamedTuple):
    """A chat in numbered pieces, each a text under a name, so that each can be found again."""

    pieces: list[tuple[str, str]]
    messages: list[tuple[str, range]]  # a role, and the numbers of the pieces that are said
    documents: list[dict[str, int]]

    def variables(self, texts: Sequence[str]) -> dict[str, Any]:
        """Of the template, with these texts for the pieces."""
        chat: dict[str, Any] = {
            "messages": [
                {"role": role, "content": "".join(texts[number] for number in numbers)}
                for role, numbers in self.messages
            ]
        }
        if self.documents:
            chat["documents"] = [
                {part: texts[number] for part, number in one.items()} for one in self.documents
            ]
        return chat


def chat_prompt(
    messages: Sequence[Message], template: ChatTemplate, documents: Sequence[Document] = ()
) -> Laid:
    r"""A chat as its model reads it, up to where the assistant begins to speak.

    Each message is a part under its role and its number, such as ``user 2``. Documents go where the
    template has a place for them, else before the text of the user's last message, which is then
    the part ``question``. An answer follows at once.

    Where the template puts a text is found by laying out the same chat with marks in their places,
    so that texts may repeat one another or the template's own words, and may lose white space at
    their ends.

    Parameters
    ----------
    messages
        Each ``{"role": ..., "content": ...}``, both texts.
    template
        Of `read_chat_template`.
    documents
        As in `documents.document_prompt`.

    Raises
    ------
    ModuleNotFoundError
        Without jinja2, of the extra ``models``.
    ValueError
        Where messages are none, the template refuses them, takes too long, or leaves out or
        changes what is said, so that it cannot be found.

    Examples
    --------
    >>> source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}<model>"
    >>> laid = chat_prompt([{"role": "user", "content": "user "}], ChatTemplate(source, {}))
    >>> laid.text, laid.spans
    ('<user>user<model>', ((6, 10, 'user 1'),))
    """
    require_kind(template, ChatTemplate, "template", "Take it from read_chat_template(model).")
    require_messages(messages)
    named = named_documents(documents) if documents else ()
    layouts = [_layout(messages)]
    if named:
        layouts = [_beside(messages, named), _layout(messages, document_pieces(named))]
    texts = [[text for text, _ in layout.pieces] for layout in layouts]
    require(
        OPENS not in "".join(texts[-1]), "messages", got=f"the letter {OPENS!r}",
        expected="texts of known letters", cure="Leave it out: it marks where a text is.",
    )  # fmt: skip
    marks = [[f"{OPENS}{n}{CLOSES}" for n in range(len(layout.pieces))] for layout in layouts]
    pairs = [pair for both in zip(layouts, texts, marks, strict=True) for pair in _pair(*both)]
    found = rendered(template, pairs)
    # With documents, the first layout is the template's own place for them: is there one?
    first = len(layouts) == 2 and all(
        marks[0][one["text"]] in found[1].get("text", "") for one in layouts[0].documents
    )
    chosen = 0 if first else len(layouts) - 1
    whole, frame = found[2 * chosen : 2 * chosen + 2]
    require(
        "text" in whole and "text" in frame,
        "messages",
        got=f"what the model's chat template refuses ({whole.get('error', frame.get('error'))})",
        expected="a chat that it takes",
        cure="Such as one of the user alone: some templates know no system.",
    )
    return Laid(whole["text"], _found(layouts[chosen], whole["text"], frame["text"]), marked=True)


def _pair(layout: _Layout, texts: list[str], marks: list[str]) -> tuple[dict, dict]:
    return layout.variables(texts), layout.variables(marks)


def _layout(messages: Sequence[Message], before: Pieces | None = None) -> _Layout:
    """With pieces before what the user said last, which is then the question; None without."""
    pieces, laid = [], []
    users = [number for number, one in enumerate(messages) if one["role"] == "user"]
    require(
        bool(users) or before is None, "messages", got="documents, and none of a user",
        expected="a user who asks", cure="The question is the user's last message.",
    )  # fmt: skip
    for number, message in enumerate(messages):
        start, role = len(pieces), message["role"]
        asks = before is not None and number == users[-1]
        pieces += before if before is not None and asks else ()
        pieces.append((message["content"], QUESTION if asks else f"{role} {number + 1}"))
        laid.append((role, range(start, len(pieces))))
    return _Layout(pieces, laid, [])


def _beside(messages: Sequence[Message], documents: Sequence[Document]) -> _Layout:
    """With documents that the template itself is to place."""
    pieces, laid, _ = _layout(messages, ())
    numbered = []
    for one in documents:
        shown = {part: text for part in ("title", "text") if (text := getattr(one, part))}
        numbered.append({part: len(pieces) + n for n, part in enumerate(shown)})
        pieces += [(text, one.name) for text in shown.values()]
    return _Layout(pieces, laid, numbered)


def _found(layout: _Layout, text: str, frame: str) -> tuple[tuple[int, int, str], ...]:
    """Where each piece stands in a text, by the same text with marks in the pieces' places."""
    said = re.split(f"{OPENS}(\\d+){CLOSES}", frame)
    numbers = [int(one) for one in said[1::2]]
    left_out = {name for _, name in layout.pieces} - {layout.pieces[n][1] for n in numbers} - {""}
    require(
        not left_out, "messages",
        got=f"{', '.join(sorted(left_out))}, which the model's chat template leaves out",
        expected="what it lays out", cure="Leave it out, or ask by a prompt without a chat.",
    )  # fmt: skip
    put = [f"({'|'.join(_as_put(layout.pieces[number][0]))})" for number in numbers]
    between = [re.escape(one) for one in said[::2]]
    pattern = "".join(one + here for one, here in zip(between, [*put, ""], strict=True))
    match = re.fullmatch(pattern, text)
    if match is None:
        raise ValueError(
            "messages: got texts that the model's chat template changes, expected texts that can "
            "be found in the chat again. Leave out what it reads otherwise, or ask by a prompt."
        )
    spans = [
        (*match.span(group), layout.pieces[number][1]) for group, number in enumerate(numbers, 1)
    ]
    return tuple(span for span in spans if span[2] and span[0] < span[1])


def _as_put(text: str) -> list[str]:
    """The forms in which templates put a text, as patterns: whole, or stripped, or as JSON."""
    forms = text, text.strip(), text.lstrip(), text.rstrip()
    return [re.escape(one) for one in dict.fromkeys((*forms, *map(_in_json, forms)))]


def _in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def require_messages(messages: Any) -> None:
    """Refuse what is no list of messages, each a role and what is said, both texts.

    Examples
    --------
    >>> require_messages([{"role": "user", "content": ""}])
    Traceback (most recent call last):
    ValueError: messages, message 1: got {'role': 'user', 'content': ''}, expected {"role": ...
    """
    require_several(messages, Mapping, "messages", 'Each is {"role": "user", "content": "..."}.')
    for number, one in enumerate(messages, 1):
        texts = all(isinstance(text, str) and text.strip() for text in one.values())
        require(
            texts and set(one) == {"role", "content"},
            f"messages, message {number}",
            got=f"{dict(one)!r}"[:60] if isinstance(one, Mapping) else described(one),
            expected='{"role": "...", "content": "..."}, both texts that are not empty',
            cure="Parts, pictures and calls of tools are not read.",
        )
