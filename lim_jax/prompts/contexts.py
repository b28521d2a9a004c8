"""Contexts of ids: what a model reads, what is asked of it, and the parts that have names."""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import lazy_loader
import numpy as np
from jaxtyping import Float, Int

from lim_jax._checks import require, require_indices, require_kind, require_text
from lim_jax._terminal import in_one_line
from lim_jax.checkpoints import texts_of_ids
from lim_jax.models.foils import Contrast, contrast
from lim_jax.models.loss_kinds import LossKind, LossName, loss_kind
from lim_jax.prompts.documents import RenderedPrompt
from lim_jax.tasks import encode_text
from lim_jax.tasks.prompts import EncodedText

tokenizers: Any = lazy_loader.load("tokenizers")  # of the extra; bytes do without
SHOWN_OF_PROMPT = 60  # characters before an answer that is empty
IN_BRACKETS = re.compile(r"[<\[].+[>\]]")  # as publishers spell tokens of control


class Span(NamedTuple):
    """A named part of a context, such as a record, and its tokens; one name may have several."""

    name: str
    positions: Int[np.ndarray, " tokens"]
    # What each token shows of the part: joined they are its text, of which a token at its edges may
    # hold less or more. Empty where nothing says so: then tokens show their own texts.
    texts: tuple[str, ...] = ()


def positions_by_name(spans: Sequence[Any]) -> dict[str, Int[np.ndarray, " tokens"]]:
    """Return the positions of each name's tokens in order, each once; names as they first come."""
    by_name: dict[str, list[Any]] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span.positions)
    return {name: np.unique(np.concatenate(positions)) for name, positions in by_name.items()}


class Context(NamedTuple):
    """A context with the id after it, and what is asked of it."""

    window: Int[np.ndarray, " tokens"]  # the ids; the last is a target only
    weights: Float[np.ndarray, " length"]  # of the loss, one for each place
    tokens: tuple[str, ...]  # what each shows: one after another they are the text
    spans: tuple[Span, ...] = ()
    # The answer and the foil that follow, where their odds are asked: then the context is the
    # prompt alone, whose last place asks.
    contrast: Contrast | None = None
    id: str = ""  # pairs it with a context of another result; where it is empty, its text does
    chat: bool = False  # whether a chat template laid it out
    cut: bool = False  # whether the model's own answer did not end within its tokens

    @property
    def ask(self) -> Float[np.ndarray, " length"] | Contrast:
        """What the loss asks, as `models.energies_of_ids` takes it."""
        return self.weights if self.contrast is None else self.contrast

    @property
    def length(self) -> int:
        """The number of tokens l that are read."""
        return len(self.weights)

    @property
    def first_query(self) -> int:
        """The first place that asks."""
        return int(np.flatnonzero(self.weights)[0])

    @property
    def part_texts(self) -> dict[str, dict[int, str]]:
        """What tokens show of each named part, by their positions and in order."""
        by_name: dict[str, dict[int, str]] = {}
        for name, positions, texts in self.spans:
            token_texts = texts or [self.tokens[position] for position in positions.tolist()]
            part_texts = by_name.setdefault(name, {})
            for position, text in zip(positions.tolist(), token_texts, strict=True):
                part_texts.setdefault(position, text)
        return {name: dict(sorted(part_texts.items())) for name, part_texts in by_name.items()}


class PromptOnly(NamedTuple):
    """A prompt and its tokens, whose answer the model is to give itself."""

    prompt: RenderedPrompt
    encoded: EncodedText
    foil: str = ""  # what might be said instead; empty where that is not asked
    id: str = ""

    @property
    def length(self) -> int:
        """The number of tokens of the prompt."""
        return len(self.encoded.ids)

    def with_answer(
        self, answer: Int[np.ndarray, " answer"], tokenizer: Any = None, loss: LossName = "answer"
    ) -> Context:
        """Return the context with an answer in ids, such as `models.answer` finds.

        Parameters
        ----------
        answer
            The answer's ids, at least one, without those that end it.
        tokenizer
            The model's own (`LanguageModel.tokenizer`); None where ids are bytes of UTF-8.
        loss
            The name of the loss that asks, of `models.loss_kinds.LOSSES`.

        Returns
        -------
        Context
            The prompt and its answer, with the weights of the loss.

        Raises
        ------
        ValueError
            If there are no ids, there is a foil that the loss does not read, or none that it does.
        """
        require(
            np.size(answer) > 0,
            "answer",
            got=f"no ids after {self.prompt.text[-SHOWN_OF_PROMPT:]!r}",
            expected="at least one",
            cure="Give an answer: the model ended at once.",
        )
        require_indices(answer, "answer")
        ids = answer.astype(self.encoded.ids.dtype)
        texts = texts_of_ids(ids, tokenizer)
        ends = len(self.prompt.text) + np.cumsum([max(1, len(text)) for text in texts]) - 1
        encoded = EncodedText(
            np.concatenate([self.encoded.ids, ids]),
            (*self.encoded.tokens, *texts),
            np.concatenate([self.encoded.last, ends]),
        )
        kind = loss_kind(loss)
        require_foil_read(self.foil, kind, "foil")
        if kind.needs_foil:
            context = _contrast(encoded, self.prompt, kind, self.foil, tokenizer, "foil")
        else:
            context = _context(encoded, self.prompt, kind, int(ends[-1]) + 1, "answer")
        return context._replace(id=self.id, chat=self.prompt.marked)


def tokenize_context(
    prompt: RenderedPrompt,
    answer: str = "",
    tokenizer: Any = None,
    *,
    loss: LossName = "answer",
    foil: str = "",
    where: str = "context",
) -> Context:
    """Encode a text and its answer together, with what is asked of them.

    A token belongs to the part in which its last visible character lies.

    Parameters
    ----------
    prompt
        The text before the answer and its named parts, such as `document_prompt` makes; its spans
        may reach into the answer.
    answer
        The answer as it follows the text, with the space before it where there is one; empty for
        none.
    tokenizer
        The model's own (`LanguageModel.tokenizer`); None where ids are bytes of UTF-8.
    loss
        The name of the loss that asks, of `models.loss_kinds.LOSSES`, which says which positions
        ask: "answer", the default, "margin" and "contrast" need an answer, "contrast" a foil too;
        "next-token", "last-token" and "own-margin" need none.
    foil
        What might have followed instead of the answer, with the space before it, for "contrast"
        alone. Empty for none.
    where
        What errors call the context, such as a file and its line.

    Returns
    -------
    Context
        The ids, the weights of the loss, and the tokens of each part. For "contrast"
        the context is the prompt alone, whose last place asks.

    Raises
    ------
    ValueError
        If the answer or foil that the loss needs is empty, the loss reads no foil and there is one,
        the prompt is empty, a span does not lie in the text, or the letters of a token of control
        cannot be read as text.

    Examples
    --------
    >>> prompt = RenderedPrompt("a=1 b=2 a=", ((0, 3, "first"), (4, 7, "second")))
    >>> context = tokenize_context(prompt, "1")
    >>> bytes(context.window.tolist()), context.weights.nonzero()[0].tolist()
    (b'a=1 b=2 a=1', [9])
    >>> {span.name: span.positions.tolist() for span in context.spans}
    {'first': [0, 1, 2], 'second': [4, 5, 6]}
    """
    require_kind(prompt, RenderedPrompt, "prompt", "Make it by document_prompt or chat_prompt.")
    require_text(answer, "answer")
    require_text(foil, "foil")
    kind = loss_kind(loss)
    require_foil_read(foil, kind, where)
    encoded = _encode(prompt, answer, tokenizer, where)
    if kind.needs_foil:
        context = _contrast(encoded, prompt, kind, foil, tokenizer, where)
    else:
        context = _context(encoded, prompt, kind, len(prompt.text + answer), where)
    return context._replace(chat=prompt.marked)


def tokenize_prompt(prompt: RenderedPrompt, tokenizer: Any = None, foil: str = "") -> PromptOnly:
    """Encode a text whose answer the model is to give, without marks of an end after it.

    Parameters
    ----------
    prompt
        The text and its named parts, such as `document_prompt` or `chat_prompt` makes.
    tokenizer
        The model's own (`LanguageModel.tokenizer`); None where ids are bytes of UTF-8.
    foil
        What might be said instead of the answer; empty where that is not asked.

    Returns
    -------
    PromptOnly
        The prompt's tokens, whose ``with_answer(ids)`` is the context with an answer.

    Raises
    ------
    ValueError
        If the text has no tokens, or the letters of a token of control cannot be read as text.

    Examples
    --------
    >>> context = tokenize_prompt(RenderedPrompt("2+2=")).with_answer(np.array([52]))
    >>> context.window.tolist(), context.weights.tolist(), context.tokens
    ([50, 43, 50, 61, 52], [0.0, 0.0, 0.0, 1.0], ('2', '+', '2', '='))
    """
    require_kind(prompt, RenderedPrompt, "prompt", "Make it by document_prompt or chat_prompt.")
    require_text(foil, "foil")
    ids, tokens, last = _encode(prompt, "", tokenizer, "prompt")
    spelt = np.flatnonzero(last >= 0)
    require(
        spelt.size > 0,
        "prompt",
        got="no tokens",
        expected="at least one",
        cure="Pass a text that is not empty.",
    )
    end = int(spelt[-1]) + 1
    return PromptOnly(prompt, EncodedText(ids[:end], tokens[:end], last[:end]), foil)


def require_foil_read(foil: str, kind: LossKind, where: str) -> None:
    """Raise ValueError at a foil that the loss would not read."""
    require(
        kind.needs_foil or not foil,
        where,
        got=f"the foil {foil!r}",
        expected="none, since this loss reads no foil",
        cure='Leave the foil out, or ask by the loss "contrast".',
    )


def _contrast(
    encoded_answer: EncodedText,
    prompt: RenderedPrompt,
    kind: LossKind,
    foil: str,
    tokenizer: Any,
    where: str,
) -> Context:
    """Return the prompt as a context that asks for the odds of the answer over the foil.

    Raise ValueError unless both leave the prompt's tokens as they are.
    """
    require(
        bool(foil),
        where,
        got="no foil",
        expected="the foil, a text that might have followed instead of the answer",
        cure="Pass `foil`, or write one beside the answer in the data.",
    )
    encoded_foil = _encode(prompt, foil, tokenizer, where)
    follows = [encoded.last >= len(prompt.text) for encoded in (encoded_answer, encoded_foil)]
    prompts = [
        encoded.ids[np.cumsum(after) == 0]
        for encoded, after in zip((encoded_answer, encoded_foil), follows, strict=True)
    ]
    require(
        all(after.any() for after in follows) and prompts[0].size > 0,
        where,
        got="no tokens of prompt, answer or foil",
        expected="at least one token of each",
        cure="Pass texts that are not empty.",
    )
    require(
        np.array_equal(prompts[0], prompts[1]),
        where,
        got="a prompt whose last token differs before the answer and before the foil",
        expected="the same tokens of the prompt before both",
        cure="Write answer and foil both with a space before them, or both without.",
    )
    prompt_ids = prompts[0]
    answer = encoded_answer.ids[follows[0]]
    odds = contrast(prompt_ids, answer, encoded_foil.ids[follows[1]])
    size = len(prompt_ids)
    weights = kind.weights(np.arange(size) == size - 1)
    spans = _spans(prompt.spans, encoded_answer, len(prompt.text), where, size)
    return Context(
        np.append(prompt_ids, answer[0]), weights, encoded_answer.tokens[:size], spans, odds
    )


def _context(
    encoded: EncodedText, prompt: RenderedPrompt, kind: LossKind, end: int, where: str
) -> Context:
    """Return the context of a text's tokens, whose answer follows the prompt up to `end`."""
    length = len(encoded.ids) - 1
    require(
        length > 0,
        where,
        got=f"{length + 1} tokens",
        expected="at least two",
        cure="Pass a longer text: the last token is only a target.",
    )
    in_answer = encoded.within(len(prompt.text), end)
    require(
        not kind.needs_answer or bool(in_answer.any() and not in_answer[0]),
        where,
        got=f"an answer of {in_answer.sum()} tokens after the prompt {prompt.text[-40:]!r}",
        expected="a prompt and an answer of some tokens each",
        cure=(
            "Give the prompt and the answer text of their own, or take the loss next-token, which "
            "takes any text."
        ),
    )
    spans = _spans(prompt.spans, encoded, end, where, length)
    return Context(encoded.ids, kind.weights(in_answer[1:]), encoded.tokens[:length], spans)


def _spans(
    spans: Sequence[tuple[int, int, str]], encoded: EncodedText, most: int, where: str, length: int
) -> tuple[Span, ...]:
    """Return each span with those of the first `length` tokens that belong to its characters."""
    token_texts = [
        token if last >= 0 else ""
        for token, last in zip(encoded.tokens, encoded.last.tolist(), strict=True)
    ]
    text = "".join(token_texts)
    ends = np.cumsum([len(token) for token in token_texts])
    named_spans = []
    for span in spans:
        parts: Any = list(span) if isinstance(span, Sequence) else [span]
        require(
            list(map(type, parts)) == [int, int, str] and 0 <= parts[0] < parts[1] <= most,
            where,
            got=f"the span {parts}",
            expected=f'[start, end, "name"] with 0 <= start < end <= {most}, the characters',
            cure="Count characters from 0, with the end left out as in a Python slice.",
        )
        start, end, name = span
        positions = np.flatnonzero(encoded.within(start, end)[:length])
        # A part may go on in the answer, of which the last token is a target only.
        stop = min(end, int(ends[length - 1]))
        pieces = cut_text(
            text, (start, stop), [(token_texts[at], int(ends[at])) for at in positions.tolist()]
        )
        named_spans.append(Span(in_one_line(name), positions, pieces))
    return tuple(named_spans)


def cut_text(
    text: str, part: tuple[int, int], tokens: Sequence[tuple[str, int]]
) -> tuple[str, ...]:
    r"""Cut a part of a text where its tokens end; the pieces joined are the part's own text.

    What a token reaches over the part's edges is left out; what belongs to none of its tokens goes
    with the one after it, or at the end with the last.

    Parameters
    ----------
    text
        The whole text.
    part
        The part's start and end in characters; the end is not of it.
    tokens
        The text of each of the part's tokens, and where it ends. One without a text is of a
        character that a later one shows.

    Examples
    --------
    >>> cut_text("It is.\n\nNo", (0, 6), [("It", 2), (" is", 5), (".\n\n", 8)])
    ('It', ' is', '.')
    """
    reached, end = part
    pieces = []
    for token, stop in tokens:
        stop = min(max(reached, stop), end) if token else reached
        pieces.append(text[reached:stop])
        reached = stop
    return (*pieces[:-1], pieces[-1] + text[reached:end]) if pieces else ()


class _Control(NamedTuple):
    """A token of control, where a text spells it."""

    start: int
    end: int
    id: int
    token: Any


def _encode(prompt: RenderedPrompt, after: str, tokenizer: Any, where: str) -> EncodedText:
    """Encode a text and what follows it, with no token of control made of what users wrote."""
    text = prompt.text + after
    marks = not prompt.marked
    encoded = encode_text(text, tokenizer, marks=marks)
    added = getattr(tokenizer, "get_added_tokens_decoder", dict)()
    if prompt.control is None or not added:
        return encoded
    controls = list(_find_controls(text, encoded, added))
    ours = [
        control
        for control in controls
        if any(start <= control.start and control.end <= end for start, end in prompt.control)
    ]
    # Some publishers do not call "<User>" special: it is one of control where a template writes it.
    written = {control.id for control in ours if IN_BRACKETS.fullmatch(control.token.content)}
    control_tokens = {n: token for n, token in added.items() if token.special or n in written}
    controls = [control for control in controls if control.id in control_tokens]
    ours = [control for control in ours if control.id in control_tokens]
    if len(ours) == len(controls):
        return encoded
    encoded = encode_text(text, _read_as_text(tokenizer, text, ours), marks=marks)
    starts = {control.start for control in ours}
    left = [
        control
        for control in _find_controls(text, encoded, control_tokens)
        if control.start not in starts
    ]
    require(
        not left,
        where,
        got=left and f"{left[0].token.content!r} at character {left[0].start}",
        expected="a text without what the tokenizer takes for a token of control",
        cure="Take these letters out of the text.",
    )
    return encoded


def _find_controls(text: str, encoded: EncodedText, added: Mapping[int, Any]) -> Iterator[_Control]:
    """Yield the added tokens that a text spells, and where; not those for unknown words."""
    reached = 0
    for number, last in zip(encoded.ids.tolist(), encoded.last.tolist(), strict=True):
        if number in added and last >= 0:
            content = added[number].content
            start = text.find(content, reached, last + 1)
            if start >= 0:
                yield _Control(start, start + len(content), number, added[number])
        reached = max(reached, last + 1)


def _read_as_text(tokenizer: Any, text: str, ours: Sequence[_Control]) -> Any:
    """Return an encoder that reads `ours` as tokens of control, and all others as text."""
    mark = next(letter for letter in map(chr, range(0xE000, 0xF8FF)) if letter not in text)
    names = {mark + control.token.content: control for control in ours}
    plain = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    plain.encode_special_tokens = True
    plain.add_special_tokens([control.token.content for control in ours])
    for name, (*_, token) in names.items():
        settings = {part: getattr(token, part) for part in ("lstrip", "rstrip", "single_word")}
        plain.add_tokens([tokenizers.AddedToken(name, normalized=token.normalized, **settings)])
    ids = {plain.token_to_id(name): control.id for name, control in names.items()}
    starts = [control.start for control in ours]
    marked = [start + number for number, start in enumerate(starts)]
    parts = [text[a:b] for a, b in zip([0, *starts], [*starts, len(text)], strict=True)]

    def encode(_: str, **options: Any) -> Any:
        """Encode the text with names for `ours`; return its own ids and offsets."""
        encoding = plain.encode(mark.join(parts), **options)
        offsets = np.asarray(encoding.offsets).reshape(-1, 2)
        offsets = offsets - np.searchsorted(marked, offsets)
        return SimpleNamespace(
            ids=[ids.get(number, number) for number in encoding.ids],
            tokens=encoding.tokens,
            offsets=offsets.tolist(),
        )

    return SimpleNamespace(encode=encode)
