"""Questions over documents of real prose in sentences: Python's own documentation, and a fact."""

import re
from functools import cache
from pydoc_data.topics import topics

import numpy as np

from benchmarks.validation.document_study import TASK
from benchmarks.validation.facts import draw_facts
from lim_jax.tasks.prompts import Prompt, join_pieces, move_record

DOCUMENTS = 5
# Of a sentence, in characters.
LONGEST = 150
SHORTEST = 20


def prose_prompt(seed: int, place: int, sentences: tuple[int, int] = (10, 20)) -> Prompt:
    """Lay out documents of sentences that follow one another; in each one more says a fact.

    A part is a sentence, or a document's title. Sources are topics of Python's help, which every
    Python brings; texts are those of the version that runs.

    Parameters
    ----------
    seed
        For `numpy.random.default_rng`.
    place
        The number of the document that holds what is asked.
    sentences
        The fewest and the most of a document, beside the fact.

    Examples
    --------
    >>> prompt = prose_prompt(0, 3, (2, 2))
    >>> len(prompt.spans)  # a title, two sentences and a fact in each of five
    20
    >>> prompt.text[slice(*prompt.spans[prompt.gold[0]])], prompt.answer
    ('Simon wears a ring.', ' ring')
    """
    rng = np.random.default_rng([seed, 2])
    facts = draw_facts(DOCUMENTS, seed)
    fewest, most = sentences
    names = [name for name in topics if len(sentences_of(name)) >= fewest]
    pieces = [(TASK, False)]
    gold = 0
    part = 0
    documents = move_record(facts.documents, facts.gold, place)
    for number, name in enumerate(rng.choice(names, DOCUMENTS, replace=False).tolist()):
        there = sentences_of(name)
        count = int(rng.integers(fewest, min(most, len(there)) + 1))
        start = int(rng.integers(len(there) - count + 1))
        document = list(there[start : start + count])
        at = int(rng.integers(count + 1))
        document.insert(at, " ".join(documents[number]))
        gold = part + 1 + at if number == place else gold
        part += 1 + len(document)
        pieces += [("\n", False), (f"[{number + 1}] {_title(name)}:", True)]
        for sentence in document:
            pieces += [(" ", False), (sentence, True)]
    pieces.append((f"\n\nQuestion: {facts.question}\nAnswer:", False))
    return join_pieces(pieces, f" {facts.answers[0]}", [gold])


def _title(name: str) -> str:
    """Return a topic's heading."""
    return topics[name].lstrip().partition("\n")[0].replace('"', "")


@cache
def sentences_of(name: str) -> tuple[str, ...]:
    """Return a topic's sentences, paragraphs in order: no code, no lists, none long or short."""
    sentences: list[str] = []
    for paragraph in re.split(r"\n\s*\n", topics[name])[1:]:
        # Prose is not indented, begins with a capital letter and ends with a full stop.
        if re.match(r"[A-Z]", paragraph) and paragraph.rstrip().endswith("."):
            sentences += re.split(r"(?<=[a-z)]\.)\s+(?=[A-Z])", " ".join(paragraph.split()))
    return tuple(
        sentence for sentence in dict.fromkeys(sentences) if SHORTEST <= len(sentence) <= LONGEST
    )
