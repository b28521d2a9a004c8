"""The same documents in several orders, so that a place and a document come apart."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from lim_jax._argument_error import Refusal
from lim_jax._checks import (
    as_int,
    as_nonnegative,
    described,
    error_if_not_finite,
    require,
    require_kind,
)
from lim_jax.models.loss_kinds import LossName
from lim_jax.prompts.contexts import Context, PromptOnly, positions_by_name
from lim_jax.prompts.prompt_files import Line, context_of_line

MEASURE = "Measure the windows of contexts."
Orders = Int[np.ndarray, "orders places"]


class ShuffledContexts(NamedTuple):
    """A question about the same documents, laid out in several orders.

    Attributes
    ----------
    names
        The names of the documents, in the order of the line.
    orders
        The number of the document at each place, a row for each order.
    contexts
        One context for each order.
    """

    names: tuple[str, ...]
    orders: Orders
    contexts: tuple[Context, ...]

    def shares(self, energies: Sequence[Any]) -> Float[np.ndarray, "orders places"]:
        """Return the share of Z that the document at each place holds, in each order.

        All shares are zero where Z is. Raise ValueError unless there is an energy for each token,
        none of them below zero.
        """
        several = isinstance(energies, Sequence | np.ndarray)
        shapes = [np.shape(energy) for energy in energies] if several else []
        lengths = [(context.length,) for context in self.contexts]
        require(
            shapes == lengths,
            "energies",
            got=f"shapes {_listed(shapes)}",
            expected=f"{_listed(lengths)}, a number for each token",
            cure=MEASURE,
        )
        rows = []
        for energy, context, order in zip(energies, self.contexts, self.orders, strict=True):
            energy = error_if_not_finite(np.asarray(energy, float), "energies")
            energy = as_nonnegative(energy, "energies", MEASURE)
            positions = positions_by_name(context.spans)
            names = [self.names[document] for document in order]
            rows.append([energy[positions[name]].sum() / (energy.sum() or 1) for name in names])
        return np.array(rows)


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    """Return shapes in words, as an error has them."""
    return " and ".join(map(str, shapes)) or "none"


def cyclic_orders(documents: int, orders: int, seed: int | Sequence[int] = 0) -> Orders:
    r"""Return orders of documents in which each has each place equally often, as far as may be.

    The first k orders of k documents are the cyclic shifts of a random permutation: order o has
    document :math:`\pi((p + o) \bmod k)` at place p, a Latin square, in which documents average out
    of a place and places out of a document. Further orders are those of another permutation. With
    fewer than k, two tell places from documents if these add up; what does not is wrong by chance
    and not by design.

    Parameters
    ----------
    documents
        How many documents there are, k, at least 2.
    orders
        How many orders to return, at least 2.
    seed
        The seed of the permutations: a whole number from 0, or several.

    Returns
    -------
    Int[np.ndarray, "orders places"]
        A row for each order: the number of the document, from 0, at each place.

    Raises
    ------
    ValueError
        If there are fewer than two documents or orders, or the seed is no whole number from 0.

    Examples
    --------
    >>> orders = cyclic_orders(4, 4)
    >>> sorted(orders[0].tolist()), sorted(orders[:, 2].tolist())
    ([0, 1, 2, 3], [0, 1, 2, 3])
    """
    documents = as_int(documents, "documents", least=2)
    orders = as_int(orders, "orders", least=2)
    numbers = [seed] if isinstance(seed, str) or not isinstance(seed, Sequence) else [*seed]
    for number in numbers or [None]:
        as_int(number, "seed", least=0)
    generator = np.random.default_rng(seed)
    shifts = np.add.outer(np.arange(documents), np.arange(documents)) % documents
    squares = [generator.permutation(documents)[shifts] for _ in range(-(-orders // documents))]
    return np.concatenate(squares)[:orders]


def shuffle_documents(
    line: Line, orders: Orders, tokenizer: Any, loss: LossName, max_length: int
) -> ShuffledContexts:
    """Lay out a line's documents in several orders, and return the context of each.

    Parameters
    ----------
    line
        A question about documents, as many as the orders have places, with an answer where the loss
        asks one.
    orders
        A row for each order: the number of the document, from 0, at each place, such as
        `cyclic_orders` gives.
    tokenizer
        The model's own (`LanguageModel.tokenizer`); None where ids are bytes of UTF-8.
    loss
        The name of the loss that asks, of `models.loss_kinds.LOSSES`, such as "answer" or "margin".
    max_length
        The most tokens of a context.

    Returns
    -------
    ShuffledContexts
        The names of the documents, the orders, and a context for each.

    Raises
    ------
    ValueError
        If the orders are no permutations of the line's documents, the line lacks an answer that is
        asked, or a context is too long or leaves a document out.

    Examples
    --------
    >>> from lim_jax.prompts.documents import Document, named_documents
    >>> documents = named_documents([Document("", "Wrens sing."), Document("", "Rowans grow.")])
    >>> line = Line("here", documents=documents, question="Who sings?", answer=" wrens")
    >>> orders = shuffle_documents(line, cyclic_orders(2, 2), None, "answer", 80)
    >>> sorted("".join(context.tokens)[:11] for context in orders.contexts)
    ['Rowans grow', 'Wrens sing.']
    """
    require_kind(line, Line, "line", "Take one of read_lines.")
    _require_orders(orders)
    require(
        len(line.documents) == orders.shape[1],
        line.where,
        got=f"{len(line.documents)} documents",
        expected=f"{orders.shape[1]}, as in the orders",
        cure="Give each line as many documents as the others.",
    )
    names = tuple(document.name for document in line.documents)
    contexts = []
    for order in orders:
        documents = tuple(line.documents[number] for number in order)
        shuffled_line = line._replace(documents=documents)
        context = context_of_line(shuffled_line, tokenizer, loss, max_length)
        contexts.append(_require_all(context, names, line.where))
    return ShuffledContexts(names, orders, tuple(contexts))


def _require_orders(orders: Any) -> None:
    """Raise ValueError unless each row of an array holds the numbers 0 to k - 1 once."""
    rows = orders.tolist() if isinstance(orders, np.ndarray) and orders.ndim == 2 else []
    integers = bool(rows) and orders.dtype.kind in "iu"
    wrong = [row for row in rows if sorted(row) != list(range(len(row)))]
    require(
        integers and not wrong,
        "orders",
        got=f"{wrong[0]}" if wrong else described(orders),
        expected="a NumPy array whose rows each hold 0 to k - 1 once",
        cure="Take them from cyclic_orders.",
    )


def _require_all(context: Context | PromptOnly, names: Sequence[str], where: str) -> Context:
    """Return the context; raise ValueError unless it has an answer and all documents."""
    if isinstance(context, PromptOnly):
        raise Refusal(
            f"{where}: got no answer, expected one, which all orders are asked. Give the line an "
            "answer."
        )
    missing = set(names) - {span.name for span in context.spans}
    require(
        not missing,
        where,
        got=f"a context without {sorted(missing)}",
        expected="all documents",
        cure="Ask without messages: the chat template leaves documents out.",
    )
    return context
