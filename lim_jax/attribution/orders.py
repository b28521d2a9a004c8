"""Documents in several orders: influence averaged over them, and shares by document and place."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lim_jax.attribution.parts import PartsByContext, part_text, shares_by_context
from lim_jax.grid.cells import token_grid
from lim_jax.grid.interpolation import carrying_shares
from lim_jax.prompts.contexts import Context, positions_by_name
from lim_jax.prompts.document_orders import ShuffledContexts
from lim_jax.results.two_way import TwoWayShares, two_way_shares


class ShuffledShares(NamedTuple):
    """The share and the number of the document at each place, by line and order.

    Documents are numbered where lines have names of their own; with `same` those of one name are of
    one text in all lines.
    """

    names: Sequence[str]
    shares: np.ndarray
    documents: np.ndarray
    effects: TwoWayShares
    same: bool


def average_orders(
    lines: Sequence[ShuffledContexts], energies: Sequence[np.ndarray]
) -> tuple[list[Context], list[np.ndarray], PartsByContext]:
    """Return the first context of each line, with energies and shares averaged over its orders."""

    def average(by_context: np.ndarray) -> np.ndarray:
        """Average what all contexts have over the orders of each line."""
        return by_context.reshape(len(lines), -1).mean(axis=1)

    every = [context for line in lines for context in line.contexts]
    names = list(dict.fromkeys(name for line in lines for name in line.names))
    by_line = [
        part._replace(
            scores=average(part.scores),
            tokens=average(part.tokens),
            token_shares=average(part.token_shares),
        )
        for part in shares_by_context(every, energies)
    ]
    # In the order in which the lines have them, not that of the first shuffle.
    by_line.sort(key=lambda part: names.index(part.name) if part.name in names else len(names))
    return [line.contexts[0] for line in lines], averages_of_lines(lines, energies), by_line


def averages_of_lines(
    lines: Sequence[ShuffledContexts], densities: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Average the densities of each line over its orders, on the token grid of the first."""
    averages = []
    for line, by_order in zip(lines, _by_line(lines, densities), strict=True):
        grid = token_grid(line.contexts[0].length)
        densities_on_grid = [carrying_shares(token_grid(row.size), grid) @ row for row in by_order]
        averages.append(np.mean(densities_on_grid, axis=0).astype(by_order[0].dtype))
    return averages


def shuffled_shares(
    lines: Sequence[ShuffledContexts], energies: Sequence[np.ndarray]
) -> ShuffledShares:
    """Separate what is due to documents from what is due to their places, over all lines."""
    pairs = zip(lines, _by_line(lines, energies), strict=True)
    shares = np.array([line.shares(by_order) for line, by_order in pairs])
    names = lines[0].names
    places = range(len(lines[0].names))
    alike = all(set(line.names) == set(names) for line in lines)
    if alike:
        numbers = [[names.index(name) for name in line.names] for line in lines]
    else:
        names = tuple(f"document {place + 1}" for place in places)
        numbers = [list(places) for _ in lines]
    documents = np.array(
        [
            np.array(line_numbers)[line.orders]
            for line_numbers, line in zip(numbers, lines, strict=True)
        ]
    )
    effects = two_way_shares(shares, documents)
    return ShuffledShares(names, shares, documents, effects, alike and _have_one_text(lines))


def _have_one_text(lines: Sequence[ShuffledContexts]) -> bool:
    """Tell whether the documents of each name have one text in all lines."""
    texts = {
        (name, part_text(context, positions))
        for context in (line.contexts[0] for line in lines)
        for name, positions in positions_by_name(context.spans).items()
        if name in lines[0].names
    }
    return len(texts) == len(lines[0].names)


def _by_line(
    lines: Sequence[ShuffledContexts], energies: Sequence[np.ndarray]
) -> list[Sequence[np.ndarray]]:
    """Split what was measured of all contexts by line, with an entry for each of its orders."""
    orders = len(energies) // len(lines)
    return [energies[start : start + orders] for start in range(0, len(energies), orders)]
