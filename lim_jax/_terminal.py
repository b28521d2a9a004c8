"""Text as a terminal shows it: marks in place of what it would obey, and of what no one sees."""

import re

OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters
    "\u2028\u2029"  # Unicode's own ends of lines
    # Embeddings, overrides, isolates and marks of direction: what follows in a row, numbers too,
    # changes its place.
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    # What no one sees and the model reads: zero-width spaces, soft hyphens, invisible operators,
    # and tags, which can hold whole sentences. Joiners (U+200C, U+200D) stay: letters and emoji
    # have another shape by them.
    "\u00ad\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
    # Halves of pairs, which no encoding has, and names of files that are not in UTF-8.
    "\ud800-\udfff]"
)
MARKS = {"\n": "⏎", "\t": "⇥", "\r": "␍"}


def in_one_line(text: str) -> str:
    r"""Return a text with a mark for each character that a terminal obeys, ends of lines too.

    >>> in_one_line("owl\x1b[31m\nred")
    'owl⟨1b⟩[31m⏎red'
    """
    return OBEYED.sub(_mark, text)


def in_lines(text: str) -> str:
    r"""Return lines with a mark for each other character that a terminal obeys.

    >>> in_lines("owl\x1b[31m\nred")
    'owl⟨1b⟩[31m\nred'
    """
    return "\n".join(map(in_one_line, text.split("\n")))


def _mark(match: re.Match[str]) -> str:
    """Return a visible mark for a matched character."""
    letter = match[0]
    return MARKS.get(letter) or f"⟨{ord(letter):02x}⟩"
