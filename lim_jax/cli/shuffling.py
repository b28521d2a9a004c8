"""The documents of each line in several orders: laid out, averaged, and told apart by place."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lim_jax import models
from lim_jax.cli.columns import FILES
from lim_jax.cli.contexts_io import Shares, part_text, record_shares
from lim_jax.cli.folder import save_figure, write_json, write_table
from lim_jax.grid.carrying import carrying_shares
from lim_jax.grid.cells import token_grid
from lim_jax.plots.profile import shares_by_place
from lim_jax.prompts import cyclic_orders, shuffled
from lim_jax.prompts.contexts import Context, LossKind, places_by_name
from lim_jax.prompts.reading import read_lines
from lim_jax.prompts.shuffling import ShuffledContexts
from lim_jax.results.two_way import TwoWayShares, two_way_in_words, two_way_shares, two_way_table

SHOWN = 8  # documents of a table that is printed


class ShuffledShares(NamedTuple):
    """The share and the number of the document at each place, by line and order.

    Documents have their own names where all lines have the same ones, else their numbers; `effects`
    are what is due to the document and what to the place; with `same` the documents of each name
    are of one text in all lines.
    """

    names: Sequence[str]
    shares: np.ndarray
    documents: np.ndarray
    effects: TwoWayShares
    same: bool


def shuffled_lines(
    data: Path, model: Path, asked: LossKind, max_length: int, orders: int, foil: str = ""
) -> list[ShuffledContexts]:
    """Read the lines of a file, each laid out in orders of its own, the same at every run."""
    tokenizer, lines = models.read_tokenizer(model), read_lines(data, model, foil)
    first = max(2, len(lines[0].documents))  # where there are fewer, `shuffled` raises
    return [
        shuffled(line, cyclic_orders(first, orders, (0, number)), tokenizer, asked, max_length)
        for number, line in enumerate(lines)
    ]


def averaged_orders(
    lines: Sequence[ShuffledContexts], energies: Sequence[np.ndarray]
) -> tuple[list[Context], list[np.ndarray], Shares]:
    """One context a line, with energies and shares of records that are averaged over its orders.

    On the tokens of its first order: in another a text may have some more or fewer.
    """
    averages = []
    for line, of_orders in zip(lines, _by_line(lines, energies), strict=True):
        grid = token_grid(line.contexts[0].length)
        carried = [carrying_shares(token_grid(row.size), grid) @ row for row in of_orders]
        averages.append(np.mean(carried, axis=0).astype(of_orders[0].dtype))
    every = [context for line in lines for context in line.contexts]
    names = list(dict.fromkeys(name for line in lines for name in line.names))
    by_line = [
        part._replace(held=part.held.reshape(len(lines), -1, 3).mean(axis=1))
        for part in record_shares(every, energies)
    ]
    # In the order in which the lines have them, not that of the first shuffle.
    by_line.sort(key=lambda part: names.index(part.name) if part.name in names else len(names))
    return [line.contexts[0] for line in lines], averages, by_line


def shuffled_shares(
    lines: Sequence[ShuffledContexts], energies: Sequence[np.ndarray]
) -> ShuffledShares:
    """What is due to the documents and what to their places, over all lines."""
    pairs = zip(lines, _by_line(lines, energies), strict=True)
    shares = np.array([line.shares(of_orders) for line, of_orders in pairs])
    names, places = lines[0].names, range(len(lines[0].names))
    alike = all(set(line.names) == set(names) for line in lines)
    if alike:
        numbers = [[names.index(name) for name in line.names] for line in lines]
    else:
        names = tuple(f"document {place + 1}" for place in places)
        numbers = [list(places) for _ in lines]
    documents = np.array(
        [np.array(of)[line.orders] for of, line in zip(numbers, lines, strict=True)]
    )
    effects = two_way_shares(shares, documents)
    return ShuffledShares(names, shares, documents, effects, alike and _of_one_text(lines))


def _of_one_text(lines: Sequence[ShuffledContexts]) -> bool:
    """Whether the documents of each name are of one text in all lines."""
    texts = {(name, part_text(context, places))
             for context in (line.contexts[0] for line in lines)
             for name, places in places_by_name(context.spans).items()
             if name in lines[0].names}  # fmt: skip
    return len(texts) == len(lines[0].names)


def _by_line(
    lines: Sequence[ShuffledContexts], energies: Sequence[np.ndarray]
) -> list[Sequence[np.ndarray]]:
    orders = len(energies) // len(lines)
    return [energies[start : start + orders] for start in range(0, len(energies), orders)]


def shuffled_findings(result: ShuffledShares) -> list[str]:
    """What is due to documents and to places, in sentences, and over what the errors are."""
    contexts, orders = result.effects.contexts, result.effects.orders
    of_errors = f"Errors are over {contexts} lines, each of them averaged over {orders} orders."
    if contexts == 1:
        of_errors = (
            f"Errors are over {orders} orders of one line, and say nothing about others: "
            "they take for noise what place and document do together."
        )
    others = [] if result.same else [
        f"Lines have documents of their own: “{result.names[0]}” is a name in each line, and not "
        "one document."
    ]  # fmt: skip
    return [*others, *two_way_in_words(result.effects, result.names).splitlines(), of_errors]


def shuffled_table(result: ShuffledShares) -> str:
    """The table by document and place, where a screen is wide enough."""
    return two_way_table(result.effects, result.names) if len(result.names) <= SHOWN else ""


def write_shuffled(result: ShuffledShares, ids: Sequence[str], title: str, folder: Path) -> None:
    """Write shuffle.json, tables by place, by document and of both, the orders, and a figure."""
    effects, names = result.effects, list(result.names)
    _write_tables(result, ids, folder)
    parts = {"by_place": effects.by_place, "by_document": effects.by_document, "gap": effects.gap}
    document = {
        "finding": two_way_in_words(effects, names),
        "contexts": effects.contexts,
        "orders": effects.orders,
        "documents": names,
        "same_documents": result.same,
        **{name: part and _plain(part) for name, part in parts.items()},
        "table": _plain(effects.table),
    }
    write_json(folder / "shuffle.json", document)
    save_figure(shares_by_place(effects, names, title), folder, "shuffle")


def _plain(part: Any) -> dict[str, Any]:
    return {"share": np.asarray(part.value).tolist(), "error": np.asarray(part.error).tolist()}


def _write_tables(result: ShuffledShares, ids: Sequence[str], folder: Path) -> None:
    effects, names = result.effects, result.names
    places = range(1, len(names) + 1)
    effect_of = {"place": (places, effects.by_place), "document": (names, effects.by_document)}
    for name, (labels, part) in effect_of.items():
        rows = zip(labels, part.value.tolist(), part.error.tolist(), strict=True)
        write_table(folder / f"by_{name}.csv", FILES[f"by_{name}.csv"], rows)
    value, error = (np.asarray(column).tolist() for column in effects.table)
    table = [
        (name, place, value[row][place - 1], error[row][place - 1])
        for row, name in enumerate(names)
        for place in places
    ]
    write_table(folder / "two_way.csv", FILES["two_way.csv"], table)
    write_table(folder / "orders.csv", FILES["orders.csv"], _by_order(result, ids))


def _by_order(result: ShuffledShares, ids: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """A row for each document of each order; contexts are numbered as in tokens.csv."""
    orders = result.shares.shape[1]
    for (line, order, place), share in np.ndenumerate(result.shares):
        name = result.names[int(result.documents[line, order, place])]
        yield line * orders + order, line, order, ids[line], place + 1, name, float(share)
