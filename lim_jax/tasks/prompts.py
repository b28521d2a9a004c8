"""A prompt of records, one of which holds what is asked, and its ids."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lim_jax._checks import (
    as_int,
    require,
    require_callable,
    require_floats,
    require_indices,
    require_kind,
    require_text,
    widen_integers,
)
from lim_jax._jit import filter_jit
from lim_jax.checkpoints import texts_of_ids

T = TypeVar("T")


class Prompt(NamedTuple):
    """A text of records, and the answer that it asks for.

    Attributes
    ----------
    text
        All that stands before the answer.
    answer
        The answer as it follows the text, with the space before it where there is one.
    spans
        The start and the end of each record, in characters and in order; the end is not of it.
    gold
        The numbers, from 0, of the records that hold what is asked.
    """

    text: str
    answer: str
    spans: tuple[tuple[int, int], ...]
    gold: tuple[int, ...]


class EncodedText(NamedTuple):
    """The tokens of a text.

    Attributes
    ----------
    ids
        The id of each token.
    tokens
        What each token shows: one after another they are the text.
    last
        Where each token's last character is that is no white space, if it has any; -1 for marks.
        Some tokenizers have a full stop and the blank line after it as one token.
    """

    ids: Int[np.ndarray, " tokens"]
    tokens: tuple[str, ...]
    last: Int[np.ndarray, " tokens"]

    def within(self, start: int, end: int) -> Bool[np.ndarray, " tokens"]:
        """Tell which tokens belong to a part of the text: those whose `last` lies in it."""
        return (self.last >= start) & (self.last < end)


class Example(NamedTuple):
    """A prompt and its answer in ids, with what is asked; with a leading axis, many of them.

    Attributes
    ----------
    window
        The ids of both; the last is a target only.
    weights
        The weights of the loss: equal on the answer's tokens, each at the place before it, of sum
        one, else zero.
    records
        The number of the record of each place, -1 for none.
    gold
        The numbers of the records that hold what is asked.
    """

    window: Int[Array | np.ndarray, "*examples tokens"]
    weights: Float[Array | np.ndarray, "*examples length"]
    records: Int[Array | np.ndarray, "*examples length"]
    gold: Int[Array | np.ndarray, "*examples golds"]


def join_pieces(pieces: Sequence[tuple[str, bool]], answer: str, gold: Sequence[int]) -> Prompt:
    """Join pieces of text into a prompt; each says whether it is a record."""
    text = ""
    spans = []
    for piece, is_record in pieces:
        spans += [(len(text), len(text) + len(piece))] if is_record else []
        text += piece
    return Prompt(text, answer, tuple(spans), tuple(gold))


def move_record(records: Sequence[T], number: int, place: int) -> tuple[T, ...]:
    """Put one record at a place, and leave the others in their order."""
    others = [*records[:number], *records[number + 1 :]]
    return (*others[:place], records[number], *others[place:])


def encode_text(text: str, tokenizer: Any = None, *, marks: bool = True) -> EncodedText:
    """Encode a text, with what each token shows and where it belongs.

    Parameters
    ----------
    text
        The text, of whole characters.
    tokenizer
        The model's own (`LanguageModel.tokenizer`); None where ids are bytes of UTF-8.
    marks
        Whether the tokenizer puts its own marks around the text, such as that of a beginning; not
        where the text spells them itself, as a chat's does.

    Returns
    -------
    EncodedText
        The ids, what each token shows, and where its last visible character is.

    Raises
    ------
    ValueError
        If the text is none, or holds half of a character, or the tokenizer has no ``encode``.

    Examples
    --------
    >>> encoded = encode_text("né!")
    >>> encoded.ids.tolist(), encoded.tokens, encoded.last.tolist()
    ([110, 195, 169, 33], ('n', '', 'é', '!'), [0, 1, 1, 2])
    """
    require_text(text, "text")
    half = re.search("[\ud800-\udfff]", text)
    require(
        half is None,
        "text",
        got=f"half of a character, {half and half[0]!r}",
        expected="whole characters",
        cure="Write it anew: no encoding has halves.",
    )
    if tokenizer is None:
        ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        sizes = [len(letter.encode()) for letter in text]
        tokens = tuple(texts_of_ids(ids)) if text else ()
        return EncodedText(ids, tokens, np.repeat(np.arange(len(text)), sizes))
    encode: Any = None if isinstance(tokenizer, str) else getattr(tokenizer, "encode", None)
    require_callable(encode, "tokenizer", "encode(text), as those of the package tokenizers have")
    encoding = encode(text) if marks else encode(text, add_special_tokens=False)
    tokens = []
    reached = 0
    offsets = encoding.offsets
    following = [*offsets, (0, 0)][1:]
    for name, (start, end), (begins, ends) in zip(encoding.tokens, offsets, following, strict=True):
        if end == start:
            tokens.append(name)
        elif begins < end and begins < ends:  # of a character of several tokens the last has it
            tokens.append("")
        else:  # what stands between two tokens, as a space may, is shown with the second
            tokens.append(text[reached:end])
            reached = end
    last = [last_visible(text, start, end) if end > start else -1 for start, end in offsets]
    return EncodedText(np.asarray(encoding.ids, np.int32), tuple(tokens), np.asarray(last, int))


def last_visible(text: str, start: int, end: int) -> int:
    r"""Return where the last character is, from start to end, that is no white space.

    Examples
    --------
    >>> last_visible("It is.\n\n", 5, 8), last_visible("It is.\n\n", 6, 8)
    (5, 7)
    """
    part = text[start:end]
    return start + len(part.rstrip() or part) - 1


def encode(prompt: Prompt, tokenizer: Any = None) -> Example:
    """Encode a prompt and its answer together, with the record of each place.

    A token belongs where its last visible character is: one of a space and a word, to the word's.
    What is asked are the answer's tokens, each at the place before it.

    Parameters
    ----------
    prompt
        The text of records and its answer.
    tokenizer
        The model's own (`LanguageModel.tokenizer`); None where ids are bytes of UTF-8.

    Returns
    -------
    Example
        The ids, the weights of the loss, and the record of each place.

    Raises
    ------
    ValueError
        If text or answer have no tokens of their own, records overlap or are not in order, or
        `gold` names none of them.

    Examples
    --------
    >>> example = encode(Prompt("a=1 b=2 a=", "1", ((0, 3), (4, 7)), (0,)))
    >>> bytes(example.window.tolist()), example.records.tolist(), example.gold.tolist()
    (b'a=1 b=2 a=1', [0, 0, 0, -1, 1, 1, 1, -1, -1, -1], [0])
    >>> example.weights.nonzero()[0].tolist()
    [9]
    """
    _require_records(prompt)
    text = prompt.text + prompt.answer
    encoded = encode_text(text, tokenizer)
    in_answer = encoded.within(len(prompt.text), len(text))
    require(
        bool(in_answer.any() and not in_answer[0]),
        "prompt",
        got=f"the answer {prompt.answer!r} after the text {prompt.text[-40:]!r}",
        expected="a text and an answer of some tokens each",
        cure=(
            "Write the answer after the text, with a space between: a token belongs where its "
            "last visible character is."
        ),
    )
    weights = (in_answer[1:] / in_answer[1:].sum()).astype(np.float32)
    records = np.full(len(encoded.ids) - 1, -1, np.int32)
    for number, (start, end) in enumerate(prompt.spans):
        records[encoded.within(start, end)[:-1]] = number
    return Example(encoded.ids, weights, records, np.asarray(prompt.gold, np.int32))


def _require_records(prompt: Prompt) -> None:
    """Raise ValueError unless records stand in order in the text, and `gold` numbers them."""
    require_kind(prompt, Prompt, "prompt", "Make it by a function of lim_jax.tasks.")
    reached = 0
    for start, end in prompt.spans:
        require(
            reached <= start < end <= len(prompt.text),
            "spans",
            got=f"({start}, {end})",
            expected=f"start and end in order, from {reached} to {len(prompt.text)}",
            cure="Pass the spans in the order of the text, without overlap.",
        )
        reached = end
    for number in prompt.gold:
        as_int(
            number,
            "gold",
            least=0,
            most=len(prompt.spans) - 1,
            expected=f"the number of one of the {len(prompt.spans)} records",
        )


@filter_jit
def record_weights(
    records: Int[Array | np.ndarray, " length"], cells: Float[Array, " length"], count: int
) -> Float[Array, "records length"]:
    r"""Compute the records' integral weights, :math:`W_{ri} = \Delta p_i\,\mathbf 1_{r(i) = r}`.

    ``record_weights(...) @ energy`` are the records' parts of the total Z, of an energy that is a
    density.

    Parameters
    ----------
    records
        The number of the record of each place, from 0, and -1 for none.
    cells
        The grid's weights :math:`\Delta p_i`.
    count
        How many records there are.

    Returns
    -------
    Float[Array, "records length"]
        A row for each record: the weights of its places, and zeros elsewhere.

    Raises
    ------
    ValueError
        If there is not a weight for each place, or `count` is no positive whole number.

    Examples
    --------
    >>> record_weights(jnp.array([0, 1, 1, -1]), jnp.full(4, 0.25), 2).tolist()
    [[0.25, 0.0, 0.0, 0.0], [0.0, 0.25, 0.25, 0.0]]
    """
    require_indices(records, "records")
    require_floats(
        cells, "cells", "length", "Pass the grid's weights: grid.weights.", length=records.size
    )
    records = widen_integers(records)
    numbers = jnp.arange(as_int(count, "count"), dtype=records.dtype)
    return jnp.where(records[None, :] == numbers[:, None], cells[None, :], 0)
