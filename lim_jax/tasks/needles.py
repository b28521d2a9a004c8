"""Needles in a haystack: sentences that are put into a long text, and asked for."""

import re
from collections.abc import Sequence
from itertools import accumulate
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import numpy as np

from lim_jax._checks import counted, described, is_real, require, require_kind
from lim_jax.tasks.prompts import Prompt, laid_out

Pieces = list[tuple[str, bool]]
Depth = float | int
Depths = Sequence[Depth]
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"(])")
COLOURS = (
    "amber", "azure", "black", "blue", "bronze", "brown", "copper", "coral", "crimson", "golden",
    "green", "grey", "ivory", "olive", "orange", "pink", "purple", "red", "silver", "white",
)  # fmt: skip
THINGS = (
    "anchor", "basket", "bridge", "candle", "castle", "falcon", "forest", "garden", "hammer",
    "harbour", "island", "kettle", "ladder", "lantern", "meadow", "mirror", "mountain", "orchard",
    "pebble", "pillow", "river", "saddle", "tower", "violin", "window",
)  # fmt: skip
NAMES = [f"{colour} {thing}" for colour in COLOURS for thing in THINGS]
SMALLEST, LARGEST = 10**6, 10**7 - 1  # of the hidden numbers: seven digits


class NeedleQuestion(NamedTuple):
    """A needle, and a question that it answers.

    Attributes
    ----------
    name
        Of the test.
    needle
        What is put into a haystack.
    question
        As it is asked.
    answers
        Any of them is right; of those of ``{CHAR}``, the one that is drawn.
    """

    name: str
    needle: str
    question: str
    answers: tuple[str, ...]


def python_sentences() -> list[str]:
    """A haystack in reach: the sentences of Python's own help on its language, in order of topic.

    They are read from the Python that runs (`pydoc_data.topics`), and differ between its versions;
    none of them is shipped. Headings, grammar, lists and examples are left out, as is what ends as
    no sentence does. White space is single. Python 3.11 has some 178,000 characters of them.

    Examples
    --------
    >>> found = python_sentences()
    >>> len(found) > 1000, all(sentence[-1] in ".!?" for sentence in found)
    (True, True)
    """
    paragraphs = [part for name in sorted(topics) for part in topics[name].split("\n\n")]
    prose = [part for part in paragraphs if part[:1].isalpha()]
    sentences = [
        sentence for part in prose for sentence in SENTENCE_END.split(" ".join(part.split()))
    ]
    return [sentence for sentence in sentences if sentence.endswith((".", "!", "?"))]


def cut_haystack(sentences: Sequence[str], size: int, seed: int) -> list[str]:
    """As many sentences as fit in `size` characters, from a drawn one on.

    The first follows the last, and one space stands between two.

    Raises
    ------
    ValueError
        Where the sentence that is drawn is longer, or all of them together are shorter.

    Examples
    --------
    >>> cut_haystack(["One.", "Two.", "Three."], 11, seed=0)
    ['Three.', 'One.']
    """
    _require_sentences(sentences)
    size, seed = counted(size, "size"), counted(seed, "seed", least=0)
    start = int(np.random.default_rng(seed).integers(max(1, len(sentences))))
    turned = [*sentences[start:], *sentences[:start]]
    ends = _ends(turned)
    count = int(np.searchsorted(ends, size, side="right"))
    require(
        count > 0 and size <= int(ends[-1]),
        "size",
        got=f"{size} characters",
        expected=f"from {ends[0]} to {ends[-1]}, those of the first sentence and of all"
        if len(ends)
        else "sentences to cut from",
        cure="Pass more sentences, or ask for less.",
    )
    return turned[:count]


def needle_prompt(
    sentences: Sequence[str],
    seed: int,
    *,
    keys: int = 1,
    values: int = 1,
    queries: int = 1,
    depths: Depths | None = None,
) -> Prompt:
    """Numbers of some names in a haystack, and a question for those of one name or more.

    One needle at a depth is the test of the needle in a haystack. RULER's variants are several
    keys, of which one is asked for; several values of a key, which all are; and several queries,
    of as many keys. Without sentences the needles are the haystack. The words are our own.

    A record is a needle. The answer is every number that is asked for, in order of the question's
    names, and for one name in order of the text; ``prompt.answer.strip().split(", ")`` are what
    `share_found` looks for.

    Parameters
    ----------
    sentences
        The haystack, such as ``cut_haystack(python_sentences(), 4000, seed)``.
    seed
        For names, numbers, and depths where none are given.
    keys, values, queries
        How many names there are, how many numbers each has, and how many names are asked for.
    depths
        From 0 to 1, one for each needle: the names that are asked for come first, with one depth
        for each of their numbers. A needle stands behind the last sentence that ends within that
        share of the haystack's characters. None: uniform.

    Raises
    ------
    ValueError
        Where more names are asked for than there are, or there are none or too many, or depths
        are not as many as needles, or not from 0 to 1.

    Examples
    --------
    >>> prompt = needle_prompt(["It rains.", "It pours."], 0, depths=[0.5])
    >>> print(prompt.text + prompt.answer)
    Some numbers are hidden in this text.
    <BLANKLINE>
    It rains. The number of red anchor is 6732655. It pours.
    <BLANKLINE>
    What is the number of red anchor? It is 6732655
    """
    _require_sentences(sentences)
    seed, values = counted(seed, "seed", least=0), counted(values, "values")
    expected = f"a whole number from 1 to {len(NAMES)}, as there are names"
    keys = counted(keys, "keys", most=len(NAMES), expected=expected)
    expected = f"a whole number from 1 to {keys}, the number of keys"
    queries = counted(queries, "queries", most=keys, expected=expected)
    rng = np.random.default_rng(seed)
    names = [NAMES[i] for i in rng.choice(len(NAMES), keys, replace=False)]
    count = keys * values
    numbers = SMALLEST + rng.choice(LARGEST - SMALLEST + 1, count, replace=False)
    shares = rng.uniform(size=count).tolist() if depths is None else depths
    _require_depths(shares, count)
    order = np.argsort(shares, kind="stable").tolist()
    needles = [f"The number of {names[i // values]} is {numbers[i]}." for i in order]
    # Of each name that is asked for its needles, by their places in the text.
    gold = [p for name in range(queries) for p, i in enumerate(order) if i // values == name]
    answer = ", ".join(str(numbers[order[place]]) for place in gold)
    pieces = [("Some numbers are hidden in this text.\n\n", False)]
    pieces += _with_needles(sentences, needles, [shares[i] for i in order])
    pieces.append((_question(names[:queries], len(gold)), False))
    return laid_out(pieces, f" {answer}", gold)


def needle_question_prompt(
    data: NeedleQuestion, sentences: Sequence[str], depth: Depth, seed: int
) -> Prompt:
    """A needle of one's own at a depth of a haystack, and the question that it answers.

    NoLiMa's task; the words and the place are our own. Where the needle has a ``{CHAR}``, one of
    the answers is drawn for it; else the first of them is the prompt's.

    Parameters
    ----------
    data
        Such as `read_needle_set` finds.
    sentences, depth
        As in `needle_prompt`.
    seed
        For the answer.

    Examples
    --------
    >>> ours = NeedleQuestion("boat", "{CHAR} has a boat.", "Who can sail?", ("Ada", "Emmy"))
    >>> prompt = needle_question_prompt(ours, ["It rains.", "It pours."], 0.5, seed=0)
    >>> print(prompt.text + prompt.answer)
    A question about this text stands at its end.
    <BLANKLINE>
    It rains. Emmy has a boat. It pours.
    <BLANKLINE>
    Question: Who can sail?
    Answer: Emmy
    """
    require_kind(data, NeedleQuestion, "data", "Take one of read_needle_set's.")
    _require_sentences(sentences)
    seed = counted(seed, "seed", least=0)
    _require_depths([depth], 1)
    answer = data.answers[0]
    if "{CHAR}" in data.needle:
        answer = data.answers[int(np.random.default_rng(seed).integers(len(data.answers)))]
    needle, question = (part.replace("{CHAR}", answer) for part in (data.needle, data.question))
    pieces = [("A question about this text stands at its end.\n\n", False)]
    pieces += _with_needles(sentences, [needle], [depth])
    pieces.append((f"\n\nQuestion: {question}\nAnswer:", False))
    return laid_out(pieces, f" {answer}", [0])


def _with_needles(sentences: Sequence[str], needles: Sequence[str], depths: Depths) -> Pieces:
    """Sentences with a space between two, and needles, in order of their depths, among them."""
    ends = _ends(sentences)
    places = np.searchsorted(ends, np.multiply(depths, ends[-1] if len(ends) else 0), side="right")
    merged: Pieces = [(sentence, False) for sentence in sentences]
    for needle, place in reversed(list(zip(needles, places.tolist(), strict=True))):
        merged.insert(place, (needle, True))
    return [piece for one in merged for piece in ((" ", False), one)][1:]


def _ends(sentences: Sequence[str]) -> np.ndarray:
    """Where each ends, with a space between two."""
    return np.array(list(accumulate(len(sentence) + 1 for sentence in sentences)), int) - 1


def _question(names: Sequence[str], count: int) -> str:
    """What is asked, up to the answer, of so many numbers."""
    listed = " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
    if count == 1:
        return f"\n\nWhat is the number of {listed}? It is"
    return f"\n\nWhat are all the numbers of {listed}? They are"


def _require_sentences(sentences: Any) -> None:
    listed = isinstance(sentences, Sequence) and not isinstance(sentences, str)
    require(
        listed and all(isinstance(sentence, str) for sentence in sentences),
        "sentences",
        got=described(sentences),
        expected="a list of texts",
        cure="Take python_sentences(); without any the needles are the haystack.",
    )


def _require_depths(depths: Any, count: int) -> None:
    listed = isinstance(depths, Sequence) and not isinstance(depths, str)
    shares = listed and all(is_real(one) and 0 <= float(one) <= 1 for one in depths)
    require(
        shares and len(depths) == count,
        "depths",
        got=f"{list(depths)}" if listed else described(depths),
        expected=f"{count} from 0 to 1, one for each needle",
        cure="A depth is a share of the haystack, 0 its start and 1 its end.",
    )
