"""An answer and documents in parts: as a whole, by paragraph, by sentence, or by token."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Int

from lim_jax._checks import require, require_name
from lim_jax.attribution.parts import REST, is_document, parts_of
from lim_jax.attribution.tokens import joined_tokens
from lim_jax.models.text import texts_of_ids
from lim_jax.prompts.contexts import Context, places_by_name
from lim_jax.prompts.cutting import paragraphs, sentences

AnswerParts = Literal["answer", "sentence", "token"]
DocumentParts = Literal["documents", "paragraphs", "sentences", "tokens"]
Texts = Sequence[str]
# The number of a document's token with which the context begins. Many heads rest on that, whatever
# it says: it keeps its weight where documents lose theirs, and has no score.
FIRST = -2


class Segment(NamedTuple):
    """A part of an answer or of a context: in what it is, what it says, and its tokens' places.

    The answer's places are of the tokens before its own, where the loss asks. What is in no named
    part of a context is within "".
    """

    within: str
    text: str
    places: Int[np.ndarray, " tokens"]

    @property
    def label(self) -> tuple[str, str]:
        """The name and the kind of what it is in, as `parts.parts_of` has them."""
        return self.within, "part" if self.within else REST


def _whole(texts: Texts) -> list[list[int]]:
    return [list(range(len(texts)))]


def _tokens(texts: Texts) -> list[list[int]]:
    return [group for _, group in joined_tokens(texts)]


def _cut(by: Callable[[str], list[tuple[int, int]]]) -> Callable[[Texts], list[list[int]]]:
    def numbers(texts: Texts) -> list[list[int]]:
        text, sizes = "".join(texts), np.array([len(token) for token in texts], int)
        # Of a character of several tokens all are where the last is, which has its text.
        last = np.minimum(np.cumsum(sizes) - (sizes > 0), len(text) - 1)
        parts = [np.flatnonzero((start <= last) & (last < end)) for start, end in by(text)]
        return [part.tolist() for part in parts if part.size]

    return numbers


CUTS: dict[str, Callable[[Texts], list[list[int]]]] = {
    "answer": _whole,
    "paragraphs": _cut(paragraphs),
    "sentence": _cut(sentences),
    "sentences": _cut(sentences),
    "token": _tokens,
    "tokens": _tokens,
}


def answer_segments(
    context: Context, tokenizer: Any = None, parts: str = "sentence"
) -> list[Segment]:
    """The parts of a context's answer; one that is compared with a foil is refused."""
    require_name(parts, get_args(AnswerParts), "parts", "Of documents: document_parts.")
    require(context.contrast is None, "parts", got="an answer with a foil",
            expected="an answer alone", cure="Leave the foil out.")  # fmt: skip
    asked = np.flatnonzero(context.weights)
    texts = texts_of_ids(context.window[asked + 1], tokenizer)
    return _segments("answer", asked, texts, parts)


def whole_answer(context: Context, text: str = "") -> Segment:
    """Return an answer as one part: its text, where it is known, and the places that ask."""
    places = np.flatnonzero(context.weights)
    return Segment("answer", text, places)


def document_segments(context: Context, parts: str = "sentences") -> list[Segment]:
    """The parts of a context's documents: of every span but the question and messages."""
    require_name(parts, get_args(DocumentParts), "document_parts", "Of the answer: parts.")
    if parts == "documents":
        return [_segment(context, *document) for document in document_places(context).items()]
    return [
        segment
        for name, places in document_places(context).items()
        for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
        for segment in _segments(name, run, [context.tokens[at] for at in run.tolist()], parts)
    ]


def context_segments(context: Context, parts: str = "documents") -> list[Segment]:
    """Return all parts of a context: those of documents, other named ones, and the rest."""
    others = [
        _segment(context, name, places)
        for (name, kind), places in parts_of(context)
        if not is_document(name, kind) and places.size
    ]
    return [*document_segments(context, parts), *others]


def _segment(context: Context, within: str, places: Int[np.ndarray, " tokens"]) -> Segment:
    text = "".join(context.tokens[place] for place in places.tolist())
    return Segment(within, text, places)


def document_places(context: Context) -> dict[str, Int[np.ndarray, " tokens"]]:
    """The tokens of each document."""
    named = places_by_name(context.spans).items()
    return {name: at for name, at in named if is_document(name, "part") and at.size}


def document_numbers(context: Context) -> Int[np.ndarray, " length"]:
    """The number of each token's document, -1 of those in none; of the context's first `FIRST`."""
    numbers = np.full(context.length, -1, np.int32)
    for number, places in enumerate(document_places(context).values()):
        numbers[places] = number
    numbers[0] = -1 if numbers[0] < 0 else FIRST
    return numbers


def _segments(
    within: str, places: Int[np.ndarray, " tokens"], texts: Texts, parts: str
) -> list[Segment]:
    return [
        Segment(within, "".join(texts[number] for number in part), places[part])
        for part in CUTS[parts](texts)
    ]
