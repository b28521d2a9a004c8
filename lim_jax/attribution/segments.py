"""An answer and documents in parts: as a whole, by paragraph, by sentence, or by token.

A part is some tokens and what these show of it: joined that is the part's text, though a token may
reach over its edges.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Int

from lim_jax._checks import require, require_name
from lim_jax.attribution.parts import UNNAMED, is_document, iterate_parts
from lim_jax.attribution.token_text import group_tokens
from lim_jax.checkpoints.text import texts_of_ids
from lim_jax.prompts.contexts import Context, cut_text, positions_by_name
from lim_jax.prompts.documents import title_size
from lim_jax.prompts.sentence_spans import paragraphs, sentences
from lim_jax.tasks.prompts import last_visible

AnswerParts = Literal["answer", "sentence", "token"]
DocumentParts = Literal["documents", "paragraphs", "sentences", "tokens"]
Texts = Sequence[str]
# The number of a document's token with which the context begins. Many heads rest on that, whatever
# it says: it keeps its weight where documents lose theirs, and has no score.
SINK = -2


class Segment(NamedTuple):
    """A part of an answer or of a context: in what it is, what its tokens show of it, and where.

    The answer's positions are those of the tokens before its own, where the loss asks. What is in
    no named part of a context is within "".
    """

    within: str
    texts: tuple[str, ...]  # of a character of several tokens the last has it
    positions: Int[np.ndarray, " tokens"]
    is_title: bool = False  # whether it is the line above a document, which says its name

    @property
    def text(self) -> str:
        """The text of the part."""
        return "".join(self.texts)

    @property
    def label(self) -> tuple[str, str]:
        """The name and the kind of what it is in, as `parts.iterate_parts` has them."""
        return self.within, "part" if self.within else UNNAMED


def cut_tokens(
    texts: Texts, spans: Sequence[tuple[int, int]]
) -> list[tuple[list[int], tuple[str, ...]]]:
    """Return the numbers of each span's tokens, and what each of these shows of the span.

    A token belongs where its last visible character is. What has no token of its own goes with the
    part after it.
    """
    text = "".join(texts)
    ends = np.cumsum([len(token) for token in texts]).tolist()
    belongs = []
    at = len(text) - 1
    for token, end in zip(reversed(texts), reversed(ends), strict=True):
        # Of a character of several tokens all are where the last is, which has its text.
        at = last_visible(text, end - len(token), end) if token else at
        belongs.append(at)
    belongs = np.array(belongs[::-1])
    parts = []
    begun = 0
    for start, end in spans:
        inside = np.flatnonzero((start <= belongs) & (belongs < end)).tolist()
        if inside:
            tokens = [(texts[number], ends[number]) for number in inside]
            parts.append((inside, cut_text(text, (begun, end), tokens)))
            begun = end
    return parts


def answer_segments(
    context: Context, tokenizer: Any = None, parts: str = "sentence"
) -> list[Segment]:
    """Cut a context's answer into parts; raise ValueError if it is compared with a foil."""
    require_name(
        parts,
        get_args(AnswerParts),
        "parts",
        "Pass one of these for the answer; how documents are cut is `document_parts`.",
    )
    require(
        context.contrast is None,
        "parts",
        got="an answer with a foil",
        expected="an answer alone",
        cure="Leave the foil out.",
    )
    query_positions = np.flatnonzero(context.weights)
    texts = texts_of_ids(context.window[query_positions + 1], tokenizer)
    return _segments("answer", query_positions, texts, parts)


def whole_answer(context: Context, text: str = "") -> Segment:
    """Return an answer as one part: its text, where it is known, and the positions that ask."""
    return Segment("answer", (text,), np.flatnonzero(context.weights))


def context_segments(context: Context, parts: str = "documents") -> list[Segment]:
    """Return all parts of a context: those of documents, other named ones, and the rest."""
    others = [
        _segment(context, name, positions)
        for (name, kind), positions in iterate_parts(context)
        if not is_document(name, kind) and positions.size
    ]
    return [*document_segments(context, parts), *others]


def _segment(context: Context, within: str, positions: Int[np.ndarray, " tokens"]) -> Segment:
    """Return some tokens of a context as one segment."""
    texts_by_position = dict(enumerate(context.tokens)) | context.part_texts.get(within, {})
    texts = tuple(texts_by_position[position] for position in positions.tolist())
    return Segment(within, texts, positions)


def document_segments(context: Context, parts: str = "sentences") -> list[Segment]:
    """Cut a context's documents into parts: every span but the question and messages.

    A title that stands above its document is a part of the sentences, whatever it says.
    """
    require_name(
        parts,
        get_args(DocumentParts),
        "document_parts",
        "Pass one of these; pass `parts` for how the answer is cut.",
    )
    if parts == "documents":
        return [_segment(context, *document) for document in document_positions(context).items()]
    part_texts = context.part_texts
    return [
        segment
        for name, positions in document_positions(context).items()
        for segment in _cut_document(name, positions, part_texts[name], parts)
    ]


def _cut_document(
    name: str,
    positions: Int[np.ndarray, " tokens"],
    texts_by_position: Mapping[int, str],
    parts: str,
) -> list[Segment]:
    """Cut each run of a document's adjacent tokens into parts; the first may be its title alone."""
    stretches = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    segments = []
    for number, stretch in enumerate(stretches):
        texts = [texts_by_position[place] for place in stretch.tolist()]
        text = "".join(texts)
        title = 0
        if number == 0:
            apart = len(stretches) > 1  # a template may put a title elsewhere than the text
            text_below = f"{text}\n" if apart else text
            title = min(len(text), title_size(name, text_below))
        segments += _segments(name, stretch, texts, parts, title)
    return segments


def document_positions(context: Context) -> dict[str, Int[np.ndarray, " tokens"]]:
    """Return the positions of each document's tokens."""
    named = positions_by_name(context.spans).items()
    return {name: at for name, at in named if is_document(name, "part") and at.size}


def document_numbers(context: Context) -> Int[np.ndarray, " length"]:
    """Number the document of each token, -1 for none; a document's token at place 0 has `SINK`."""
    numbers = np.full(context.length, -1, np.int32)
    for number, positions in enumerate(document_positions(context).values()):
        numbers[positions] = number
    numbers[0] = -1 if numbers[0] < 0 else SINK
    return numbers


def _segments(
    within: str, positions: Int[np.ndarray, " tokens"], texts: Texts, parts: str, title: int = 0
) -> list[Segment]:
    """Cut tokens into parts; for sentences their first `title` characters are a part."""
    text = "".join(texts)
    if parts == "answer" or not text:  # there is no text where an answer ends within a character
        cut = [(list(range(len(texts))), tuple(texts))]
    elif parts in ("token", "tokens"):  # as `AnswerParts` and `DocumentParts` call them
        groups = [group for _, group in group_tokens(texts)]
        cut = [(group, tuple(texts[number] for number in group)) for group in groups]
    elif parts == "paragraphs":
        cut = cut_tokens(texts, paragraphs(text))
    else:
        after = [(title + start, title + end) for start, end in sentences(text[title:])]
        cut = cut_tokens(texts, [(0, title), *after] if title else after)
    segments = [
        Segment(within, segment_texts, positions[numbers]) for numbers, segment_texts in cut
    ]
    if parts == "sentences" and title and len(segments[0].text) == title:
        segments[0] = segments[0]._replace(is_title=True)
    return segments
