"""What named parts of contexts hold of the influence: averages, and the tokens that hold it."""

from collections.abc import Sequence

import numpy as np

from lim_jax._tables import text_table
from lim_jax.attribution.parts import REST, Record
from lim_jax.report.sentences import part_words

HEAD = ("part", "   share", "   error", "  tokens", " of tokens", "contexts", "most in")


def record_lines(records: Sequence[Record]) -> list[str]:
    """A line for each part under a line of names: the largest share first, and the rest last."""
    rows: list[Sequence[str]] = [HEAD]
    for part in sorted(records, key=lambda part: (part.kind == REST, -part.share)):
        error = f"{part.error:.1%}" if np.isfinite(part.error) else "-"
        tokens = f"{part.tokens:.0f}" if part.tokens.is_integer() else f"{part.tokens:.1f}"
        of_tokens, contexts = f"{part.of_tokens:.1%}", f"{part.contexts}"
        rows.append(
            (part_words(part), f"{part.share:.1%}", error, tokens, of_tokens, contexts, part.most)
        )
    return text_table(rows, left=(0, 6)).splitlines() if records else []
