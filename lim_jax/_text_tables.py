"""Tables in lines of text."""

from collections.abc import Sequence
from unicodedata import category, east_asian_width, normalize

SKINS = "".join(map(chr, range(0x1F3FB, 0x1F400)))  # that colour the emoji before
JOINER = "\N{ZERO WIDTH JOINER}"
AS_EMOJI = "\N{VARIATION SELECTOR-16}"


def text_table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Lay out rows of equally many cells; columns are flush right but for those in `left`.

    Columns are as wide as a terminal shows them.

    >>> print(text_table([["", "a", "b"], ["sum", "1.5", "10"]]))
           a   b
    sum  1.5  10
    """
    widths = [max(map(shown_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        blanks = [
            " " * (width - shown_width(cell)) for width, cell in zip(widths, row, strict=True)
        ]
        cells = [
            cell + blank if at in left else blank + cell
            for at, (cell, blank) in enumerate(zip(row, blanks, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def shown_width(text: str) -> int:
    """Return how many columns of a terminal a text takes.

    Letters of East Asia and most emoji take two, marks on a letter and what cannot be seen none;
    several emoji that are joined are as wide as one.

    >>> [shown_width(text) for text in ("café", "市場", "שָׁלוֹם", "👨‍👩‍👧")]
    [4, 4, 4, 2]
    """
    width = 0
    before = ""
    for letter in normalize("NFC", text):
        if letter == AS_EMOJI and before:
            width += 2 - _width(before)
        elif before != JOINER or category(letter) != "So":
            width += _width(letter)
        before = letter
    return width


def _width(letter: str) -> int:
    """Return the columns that one character takes: none, one or two."""
    if category(letter) in ("Mn", "Me", "Cf", "Cc") or letter in SKINS:
        return 0
    return 2 if east_asian_width(letter) in "WF" else 1
