"""Questions about documents that state the same or need each other, and what is right to say."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.validation.facts import FACTS, NAMES
from lim_jax.attribution.together import DocumentGroup
from lim_jax.prompts import Document

OTHERS = 4  # documents that say nothing of the answer
SUFFICES = "one suffices"
NEEDED = "needed together"
NOTHING = "nothing"
OTHER = "other"
# What is right of each kind of documents.
KINDS = {"copy": SUFFICES, "halves": NEEDED, "one": NOTHING}


class Drawn(NamedTuple):
    """A question with documents, of which those named in `evidence` state its answer."""

    question: str
    documents: list[Document]
    answer: str
    evidence: tuple[str, ...]


def drawn_question(kind: str, seed: int) -> Drawn:
    """Draw a question: of a copied fact, of a fact in two halves, or of a fact in one document.

    >>> drawn = drawn_question("halves", 1)
    >>> [document.text for document in drawn.documents if document.title in drawn.evidence]
    ['David brought the apples.', "Omar's neighbour is David."]
    >>> drawn.question, drawn.answer
    ("Which food did Omar's neighbour bring?", 'apples')
    """
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    person, neighbour, *others = rng.permutation(NAMES).tolist()
    says, asks, things = FACTS[int(rng.integers(len(FACTS)))]
    answer, *wrong = rng.permutation(things.split()).tolist()
    fact = f"{person} {says.format(answer)}"
    question = asks.format(person)
    evidence = {
        "one": [fact],
        "copy": [fact, copy_of(fact)],
        "halves": [f"{person}'s neighbour is {neighbour}.", f"{neighbour} {says.format(answer)}"],
    }[kind]
    if kind == "halves":
        question = asks.format(f"{person}'s neighbour")
    texts = [f"{name} {says.format(thing)}" for name, thing in zip(others, wrong, strict=False)]
    return with_evidence(question, answer, evidence, texts[:OTHERS], rng)


def copy_of(text: str) -> str:
    """Say the same in other words."""
    return f"As everybody here knows, {text}"


def with_evidence(
    question: str,
    answer: str,
    evidence: Sequence[str],
    others: Sequence[str],
    rng: np.random.Generator,
) -> Drawn:
    """Put the evidence and other texts into documents, in an order that is drawn."""
    texts = [*evidence, *others]
    numbered = [texts[number] for number in rng.permutation(len(texts)).tolist()]
    documents = [Document(f"Note {n + 1}", text) for n, text in enumerate(numbered)]
    named = tuple(document.title for document in documents if document.text in evidence)
    return Drawn(question, documents, answer, named)


def said_of(groups: Sequence[DocumentGroup], evidence: Sequence[str]) -> str:
    """Return what groups say of the evidence alone; "other" where they say more, or of others.

    >>> said_of([DocumentGroup(("a", "b"), "one suffices", 0.1, 3.0)], ["b", "a"])
    'one suffices'
    """
    if not groups:
        return NOTHING
    alone = len(groups) == 1 and {*groups[0].names} == {*evidence}
    return groups[0].relation if alone else OTHER
