"""Tokens as people read them: whole characters, marks for what cannot be seen, what they hold."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float

from lim_jax.results.measured import percent

MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # of a token that makes no character by itself
MOST = 3  # tokens of a part that are named


def joined_tokens(texts: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Tokens as they are shown: those that make one character together are one, with their numbers.

    Of a character of several tokens the last has its text, and the others are empty.

    >>> joined_tokens(["n", "", "é", "!", ""])
    [('n', [0]), ('é', [1, 2]), ('!', [3]), ('�', [4])]
    """
    groups, begun = [], 0
    for at, text in enumerate(texts):
        if text:
            groups.append((text, list(range(begun, at + 1))))
            begun = at + 1
    rest = list(range(begun, len(texts)))  # of a character that ends after the context
    return [*groups, (UNKNOWN, rest)] if rest else groups


def held_by_text(
    texts: Sequence[str], energies: Sequence[float] | Float[Any, " tokens"], places: Sequence[int]
) -> dict[str, float]:
    """What tokens of one text hold together, of some places, as `joined_tokens` shows them.

    >>> held_by_text(["a", "", "é", "a"], [1.0, 2.0, 3.0, 4.0], [0, 1, 2, 3])
    {'a': 5.0, 'é': 5.0}
    """
    chosen, by_text = set(places), {}
    for text, group in joined_tokens(texts):
        inside = [at for at in group if at in chosen]
        if inside:
            by_text[text] = by_text.get(text, 0.0) + sum(float(energies[at]) for at in inside)
    return by_text


def most_in_words(held: Mapping[str, float]) -> str:
    r"""The tokens that hold most, each with its part of what all hold.

    >>> most_in_words({" the": 1.0, "Wren": 6.0, "\n": 0.5, ".": 0.5})
    '“Wren” 75 %, “ the” 12 %, “⏎” 6 %'
    """
    whole = sum(held.values()) or 1
    most = sorted(held.items(), key=lambda pair: -pair[1])[:MOST]
    shown = [(in_text(text).replace("\n", ""), percent(part / whole)) for text, part in most]
    return ", ".join(f"“{text}” {part}" for text, part in shown)


def in_text(token: str) -> str:
    r"""A token as it stands in the text: what cannot be seen gets a mark, and lines still break.

    Spaces beside letters stay, since the shade shows them.

    >>> in_text(" the"), in_text("  "), in_text(".\n"), in_text("\x00"), in_text("")
    (' the', '··', '.⏎\n', '⟨00⟩', '�')
    """
    blank = not token.strip(" \n")
    letters = {"\n": MARKS["\n"] + "\n", " ": "·" if blank else " "}
    return "".join(letters.get(letter) or visible(letter) for letter in token) or UNKNOWN


def visible(letter: str) -> str:
    """A letter, or a mark in its place where it cannot be seen."""
    return MARKS.get(letter) or (letter if letter.isprintable() else f"⟨{ord(letter):02x}⟩")
