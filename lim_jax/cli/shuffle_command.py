"""The documents of each line in several orders: laid out, averaged, and told apart by place."""

from collections.abc import Sequence
from pathlib import Path

from lim_jax import plots
from lim_jax._checks import require
from lim_jax.attribution.files import plain_estimate, write_orders
from lim_jax.attribution.orders import ShuffledShares
from lim_jax.models import LanguageModel
from lim_jax.models.loss_kinds import LossName
from lim_jax.prompts import cyclic_orders, shuffle_documents
from lim_jax.prompts.document_orders import ShuffledContexts
from lim_jax.prompts.prompt_files import read_lines
from lim_jax.results.tables import write_json
from lim_jax.results.two_way import two_way_in_words, two_way_table

SHOWN = 8  # documents of a table that is printed


def shuffled_lines(
    data: Path, model: LanguageModel, loss: LossName, max_length: int, orders: int, foil: str = ""
) -> list[ShuffledContexts]:
    """Read the lines of a file, and lay each out in its own orders, the same at every run."""
    tokenizer = model.tokenizer
    lines = read_lines(data, model.chat_template, foil)
    require(
        len(lines[0].documents) > 1,
        lines[0].where,
        got=f"{len(lines[0].documents)} documents with --shuffle",
        expected="at least two",
        cure="Give each line several documents, or leave --shuffle out.",
    )
    first = len(lines[0].documents)
    return [
        shuffle_documents(
            line, cyclic_orders(first, orders, (0, number)), tokenizer, loss, max_length
        )
        for number, line in enumerate(lines)
    ]


def shuffled_findings(result: ShuffledShares) -> list[str]:
    """Say what is due to documents and to places, and over what the errors are."""
    contexts = result.effects.contexts
    orders = result.effects.orders
    on_errors = f"Errors are over {contexts} lines, each of them averaged over {orders} orders."
    if contexts == 1:
        on_errors = (
            f"Errors are over {orders} orders of one line, and say nothing about others: "
            "they take for noise what place and document do together."
        )
    others = (
        []
        if result.same
        else [
            f"Lines have documents of their own: “{result.names[0]}” is a name in each line, and "
            "not one document."
        ]
    )
    return [*others, *two_way_in_words(result.effects, result.names).splitlines(), on_errors]


def shuffled_table(result: ShuffledShares) -> str:
    """Return the table by document and place; an empty text for over `SHOWN` documents."""
    return two_way_table(result.effects, result.names) if len(result.names) <= SHOWN else ""


def write_shuffled(result: ShuffledShares, ids: Sequence[str], title: str, folder: Path) -> None:
    """Write shuffle.json, tables by place, by document and of both, the orders, and a figure."""
    effects = result.effects
    names = list(result.names)
    write_orders(result, ids, folder)
    parts = {"by_place": effects.by_place, "by_document": effects.by_document, "gap": effects.gap}
    document = {
        "finding": two_way_in_words(effects, names),
        "contexts": effects.contexts,
        "orders": effects.orders,
        "documents": names,
        "same_documents": result.same,
        **{name: part and plain_estimate(part) for name, part in parts.items()},
        "table": plain_estimate(effects.table),
    }
    write_json(folder / "shuffle.json", document)
    plots.figure_style.save_figure(
        plots.profile.shares_by_place(effects, names, title), folder, "shuffle"
    )
