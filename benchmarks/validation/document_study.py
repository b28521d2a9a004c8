"""Questions over several documents, one of which holds the answer."""

from typing import NamedTuple

from lim_jax.tasks.prompts import Prompt, join_pieces, move_record

TASK = "Answer the question by the documents below. Only some of them are about it.\n"


class Question(NamedTuple):
    """A question, and documents to answer it by.

    Attributes
    ----------
    question
        As it is asked.
    answers
        Any of them is right.
    documents
        Each a title and a text.
    gold
        The number of the document that holds the answer.
    """

    question: str
    answers: tuple[str, ...]
    documents: tuple[tuple[str, str], ...]
    gold: int


def question_prompt(data: Question, place: int | None = None) -> Prompt:
    """Lay out numbered documents and then the question, with the gold document at a place.

    Lost-in-the-middle's task; the words are our own. A record is a document from its number on.
    The prompt's answer is the first of the question's answers.

    Parameters
    ----------
    data
        Such as `read_questions` finds.
    place
        From 0; the other documents stay in their order. None: where it is.

    Examples
    --------
    >>> ours = (("Rowan", "A tree."), ("Wren", "A bird."))
    >>> prompt = question_prompt(Question("what is a wren", ("bird",), ours, 1), place=0)
    >>> print(prompt.text + prompt.answer)
    Answer the question by the documents below. Only some of them are about it.
    <BLANKLINE>
    [1] Wren: A bird.
    [2] Rowan: A tree.
    <BLANKLINE>
    Question: what is a wren
    Answer: bird
    >>> prompt.text[slice(*prompt.spans[1])], prompt.gold
    ('[2] Rowan: A tree.', (0,))
    """
    place = data.gold if place is None else place
    pieces = [(TASK, False)]
    for number, (title, text) in enumerate(move_record(data.documents, data.gold, place), 1):
        pieces += [("\n", False), (f"[{number}] {title}: {text}", True)]
    pieces.append((f"\n\nQuestion: {data.question}\nAnswer:", False))
    return join_pieces(pieces, f" {data.answers[0]}", [place])
