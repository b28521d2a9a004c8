"""Documents and a question, laid out as one text whose parts have names."""

import re
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple

from lim_jax._checks import described, require, require_several
from lim_jax._terminal import in_one_line

# The names that we give: of the question's part and the answer's, and of what is in no part. A
# message's part is called by its role, where that is one of these, and its number.
QUESTION = "question"
ANSWER = "answer"
REST = "the rest"
MOST_LETTERS = 2**22  # of all that is asked in one question: more than any model reads
RESERVED_NAMES = frozenset({QUESTION, ANSWER, REST})
ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGES = re.compile(rf"({'|'.join(ROLES)}|message) \d+")
NUMBER = re.compile(r" \(document \d+\)$")


class Document(NamedTuple):
    """A document: its title and its text.

    Attributes
    ----------
    title
        Stands above the text, on a line of its own; empty for none.
    text
        The document's text, which is not empty.
    name
        The name of its part of the context; where it is empty, `named_documents` finds one.
    """

    title: str
    text: str
    name: str = ""


class RenderedPrompt(NamedTuple):
    """A text that was laid out, and its named parts: the start, the end and the name of each."""

    text: str  # all that stands before the answer
    spans: tuple[tuple[int, int, str], ...] = ()  # in characters; the end is not of the part
    # Whether the text spells the marks of its beginning itself, as a chat's does: then the
    # tokenizer adds none.
    marked: bool = False
    # The parts in which a token of control such as <|im_end|> may stand: what a template wrote.
    # Elsewhere, and in the answer, its letters are read as text. None where one may stand anywhere,
    # as in a prompt that was laid out by hand.
    control: tuple[tuple[int, int], ...] | None = None


def named_documents(documents: Sequence[Document]) -> tuple[Document, ...]:
    """Return the same documents, each with a name of its own.

    That is the one that it has, else its title, else its number from 1, with marks for control
    characters. Where several would be called alike, or one as a part that is no document
    (`RESERVED_NAMES`, a role and a number), the number follows.

    Parameters
    ----------
    documents
        The documents, at least one and each with a text that is not empty.

    Returns
    -------
    tuple of Document
        The documents in their order, with their names.

    Raises
    ------
    ValueError
        If there are none, or one has no text.

    Examples
    --------
    >>> documents = Document("Wren", "A bird."), Document("", "A tree."), Document("Wren", "Sir.")
    >>> [document.name for document in named_documents(documents)]
    ['Wren (document 1)', 'document 2', 'Wren (document 3)']
    """
    require_several(documents, Document, "documents", "Make each by Document(title, text).")
    for number, document in enumerate(documents, 1):
        require(
            all(isinstance(part, str) for part in document) and bool(document.text.strip()),
            f"documents, document {number}",
            got=f"{tuple(document)!r}"[:60],
            expected="a title and a text, the text not empty",
            cure="Leave a document without a text out.",
        )
    names = [
        in_one_line(document.name or document.title or f"document {number}")
        for number, document in enumerate(documents, 1)
    ]
    shared = _shared_names(names)
    while shared:
        names = [
            f"{name} (document {number})" if name in shared else name
            for number, name in enumerate(names, 1)
        ]
        shared = _shared_names(names)
    pairs = zip(documents, names, strict=True)
    return tuple(document._replace(name=name) for document, name in pairs)


def _shared_names(names: Sequence[str]) -> set[str]:
    """Return the names that several documents have, or that are of a part that is no document."""
    return {name for name, count in Counter(names).items() if count > 1 or is_reserved(name)}


def text_digest(document: Document) -> str:
    """Return what tells a document's text, without white space at its ends, from other texts."""
    return sha256(document.text.strip().encode()).hexdigest()[:16]


def title_size(name: str, text: str) -> int:
    r"""Return how many characters of a document's text its title has, with the end of its line.

    `text` is as the document was laid out: its title stands above it if it says the document's
    `name`, or that without the number that `named_documents` added.

    Examples
    --------
    >>> title_size("Wren (document 1)", "Wren\nA bird."), title_size("Wren", "Wrens sing.")
    (5, 0)
    """
    while not (size := _size_of_lines(name, text)):
        name, numbered = NUMBER.subn("", name)
        if not numbered:
            return 0
    return size


def _size_of_lines(name: str, text: str) -> int:
    """Return how many characters the first lines have that are shown as a name; 0 if none are."""
    ends = [match.end() for match in re.finditer("\n", text[: len(name) + 1])]
    return next((end for end in ends if in_one_line(text[: end - 1]) == name), 0)


def is_reserved(name: str) -> bool:
    """Tell whether a name is that of the question, the answer, a message or what is in no part."""
    return name in RESERVED_NAMES or MESSAGES.fullmatch(name) is not None


def document_prompt(documents: Sequence[Document], question: str) -> RenderedPrompt:
    r"""Lay out documents one after another, each its title and its text, and then the question.

    An answer follows after a space.

    Parameters
    ----------
    documents
        The documents, at least one; each is a part under its name (`named_documents`).
    question
        The question, which is not empty; the part ``question``.

    Returns
    -------
    RenderedPrompt
        The text that stands before the answer, and its named parts.

    Raises
    ------
    ValueError
        If there are no documents, one has no text, or the question is empty.

    Examples
    --------
    >>> ours = Document("Rowan", "A tree."), Document("", "A wren is a bird.")
    >>> prompt = document_prompt(ours, "what is a wren")
    >>> print(prompt.text)
    Rowan
    A tree.
    <BLANKLINE>
    A wren is a bird.
    <BLANKLINE>
    Question: what is a wren
    Answer:
    >>> {name: prompt.text[start:end] for start, end, name in prompt.spans}
    {'Rowan': 'Rowan\nA tree.', 'document 2': 'A wren is a bird.', 'question': 'what is a wren'}
    """
    require_question(question)
    pieces = document_pieces(named_documents(documents))
    pieces += [("Question: ", ""), (question, QUESTION), ("\nAnswer:", "")]
    ends = accumulate(len(text) for text, _ in pieces)
    spans = [
        (end - len(text), end, name) for (text, name), end in zip(pieces, ends, strict=True) if name
    ]
    return RenderedPrompt("".join(text for text, _ in pieces), tuple(spans), control=())


def document_pieces(named: Sequence[Document]) -> list[tuple[str, str]]:
    """Return each document's title and text under its name, and blank lines, which have none."""
    pieces = []
    for document in named:
        text = "\n".join(filter(None, (document.title, document.text)))
        pieces += [(text, document.name), ("\n\n", "")]
    return pieces


def require_question(question: object) -> None:
    """Raise ValueError unless the question is a text that is not empty."""
    asks = isinstance(question, str) and bool(question.strip())
    require(
        asks,
        QUESTION,
        got=described(question),
        expected="a text that is not empty",
        cure="Pass what you want to know, such as 'Who sings?'.",
    )
