"""Tokens as people read them: whole characters, marks for what cannot be seen, what they hold."""

from collections.abc import Mapping, Sequence
from typing import Any
from unicodedata import category

from jaxtyping import Float

from lim_jax._terminal import MARKS as OBEYED_MARKS
from lim_jax._terminal import in_one_line
from lim_jax.results.percentages import percent

MARKS = {" ": "␣", **OBEYED_MARKS}
UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # of a token that makes no character by itself
JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
LAYOUT = "\n\t\N{LINE SEPARATOR}\N{PARAGRAPH SEPARATOR}"  # which a page may show
MOST = 3  # tokens of a part that are named


def group_tokens(texts: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Group the tokens of one character, and return each group's text with its tokens' numbers."""
    groups = []
    begun = 0
    for at, text in enumerate(texts):
        if text:
            groups.append((text, list(range(begun, at + 1))))
            begun = at + 1
    rest = list(range(begun, len(texts)))  # of a character that ends after the context
    return [*groups, (UNKNOWN, rest)] if rest else groups


def sum_by_text(
    texts: Sequence[str],
    energies: Sequence[float] | Float[Any, " tokens"],
    positions: Sequence[int],
) -> dict[str, float]:
    """Sum the energies of the tokens at some positions by the text that they show."""
    chosen = set(positions)
    by_text = {}
    for text, group in group_tokens(texts):
        inside = [at for at in group if at in chosen]
        if inside:
            by_text[text] = by_text.get(text, 0.0) + sum(float(energies[at]) for at in inside)
    return by_text


def most_in_words(values_by_text: Mapping[str, float]) -> str:
    """Name the tokens that hold most, each with its share of what all hold; none that hold none."""
    total = sum(values_by_text.values()) or 1
    holding = [pair for pair in values_by_text.items() if pair[1] > 0]
    most = sorted(holding, key=lambda pair: -pair[1])[:MOST]
    texts_and_shares = [
        (in_text(text).replace("\n", ""), percent(part / total)) for text, part in most
    ]
    return ", ".join(f"“{text}” {part}" for text, part in texts_and_shares)


def in_text(token: str) -> str:
    """Return a token as a page shows it in the text, with a mark for what cannot be seen.

    Lines still break. Spaces of any width and joiners of letters stay what they are beside what can
    be seen.
    """
    blank = not any(map(str.isprintable, token.replace(" ", "")))
    return "".join(_in_text(letter, blank) for letter in token) or UNKNOWN


def _in_text(letter: str, blank: bool) -> str:
    """Return a letter or its mark; `blank` says that nothing of the token can be seen."""
    if letter == "\n":
        return MARKS[letter] + letter
    if category(letter) == "Zs":
        return "·" if blank else letter
    return letter if letter in JOINERS and not blank else visible(letter)


def visible(letter: str) -> str:
    """Return a letter, or a mark in its place where it cannot be seen."""
    return MARKS.get(letter) or (letter if letter.isprintable() else f"⟨{ord(letter):02x}⟩")


def readable(text: str) -> str:
    """Put a mark in place of what a terminal would obey; ends of lines and tabs stay."""
    return "".join(letter if letter in LAYOUT else in_one_line(letter) for letter in text)
