"""Text as a terminal shows it: marks in place of what a terminal would obey."""

import re

OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters
    "\u2028\u2029"  # Unicode's own ends of lines
    # Embeddings and overrides, which turn what follows round, even letters of another direction.
    # Marks and isolates (U+200F, U+2068) stay: right-to-left writing has them, and they turn no
    # letters.
    "\u202a-\u202e"
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
