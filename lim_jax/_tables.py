"""Tables in lines of text."""

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Lay out rows of equally many cells; columns are flush right but for those in `left`.

    >>> print(text_table([["", "a", "b"], ["sum", "1.5", "10"]]))
           a   b
    sum  1.5  10
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{{:{'<' if at in left else '>'}{width}s}}" for at, width in enumerate(widths)]
    line = "  ".join(forms)
    return "\n".join(line.format(*row).rstrip() for row in rows)
