"""The run over contexts: what is asked is measured of each, averaged, and told by part."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lim_jax import explanations, models
from lim_jax._checks import require
from lim_jax._digest import digest
from lim_jax._partial_runs import once, within_checkpoint
from lim_jax.attribution.orders import ShuffledShares, average_orders, shuffled_shares
from lim_jax.attribution.parts import (
    Energy,
    MeanShare,
    PartsByContext,
    mean_shares,
    measured_contexts,
    shares_by_context,
    windows_and_ask,
)
from lim_jax.density.adjoints import Loss
from lim_jax.density.statistics import Influence
from lim_jax.explanations.account import TokenBreakdown
from lim_jax.models import CausalLM
from lim_jax.models.ids import Windows
from lim_jax.models.loss_kinds import LossName, loss_kind
from lim_jax.models.padding import PerPosition, fitted_padding
from lim_jax.prompts.contexts import Context
from lim_jax.prompts.document_orders import ShuffledContexts
from lim_jax.results.context_energies import MeasuredContexts, pooled_influences

SHOWN = 5  # contexts of a page
LAYERS = {"desc": "its layers, both ways", "unit": "layer", "leave": False}  # a bar of these
Bar = Callable[..., Iterable]  # of a list, with `desc`, `unit` and `leave` as tqdm takes them


def no_bar(items: Sequence[Any], **_: Any) -> Iterable[Any]:
    """Return the items, and show no progress."""
    return items


class Measured(NamedTuple):
    r"""What `measure` found: of each context on its own grid, and over contexts on a common one.

    Attributes
    ----------
    contexts, energies
        All contexts, and :math:`\|P_0(p_i)\|^2` of each on its token grid.
    influence, without_queries
        The influence over contexts, of all tokens and of those before each first query; the second
        is None if some context asks at its first token. Orders of one line are averaged first.
    records, shares
        What each named part holds on average, and in each context or line.
    by_id
        Energies and shares under the ids of contexts or lines, as contexts.npz keeps them.
    shuffled
        Shares by document and place; None without `orders`.
    accounts
        The breakdown by token of the contexts that a page shows.
    """

    contexts: Sequence[Context]
    energies: Sequence[Energy]
    influence: Influence
    without_queries: Influence | None
    records: Sequence[MeanShare]
    shares: PartsByContext
    by_id: MeasuredContexts
    shuffled: ShuffledShares | None
    accounts: Sequence[TokenBreakdown] = ()

    @property
    def influences(self) -> dict[str, Influence]:
        """The influences by the names of their files."""
        influences = {"influence": self.influence}
        if self.without_queries is not None:
            influences["influence_without_queries"] = self.without_queries
        return influences


def measure(
    network: CausalLM,
    contexts: Sequence[Context],
    loss_name: LossName,
    *,
    delta: float = 0.2,
    orders: Sequence[ShuffledContexts] = (),
    contexts_on_page: int = 0,
    checkpoint: Path | None = None,
    bar: Bar = no_bar,
) -> Measured:
    """Measure the influence of every token of contexts on what is asked of them.

    Of the first `contexts_on_page` there are accounts, which hold their energies: where weights are
    in memory these are not measured twice. Contexts of one of `orders`, lines whose documents are
    shuffled, are averaged: they are not independent. With a folder `checkpoint` an interrupted run
    goes on after the last context.
    """
    windows, queries = windows_and_ask(contexts)
    loss = loss_kind(loss_name).loss
    accounts = []
    if contexts_on_page:
        page = within_checkpoint(checkpoint, "page")
        accounts = accounts_of_contexts(
            network,
            windows[:contexts_on_page],
            queries[:contexts_on_page],
            loss=loss,
            checkpoint=page,
            bar=bar,
        )
    reused = 0 if network.flow.is_offloaded else len(accounts)
    energies = [np.asarray(account.energy) for account in accounts[:reused]]
    if reused < len(contexts):
        energies += models.energies_of_ids(
            network,
            windows[reused:],
            ask=queries[reused:],
            loss=loss,
            checkpoint=within_checkpoint(checkpoint, "other energies" if reused else "energies"),
            padding=fitted_padding(context.length for context in contexts[reused:]),
            progress=partial(bar, desc="profile", unit="context"),
            progress_of_layers=partial(bar, **LAYERS),
        )
    if orders:
        alone, averaged, shares = average_orders(orders, energies)
    else:
        alone = contexts
        averaged = energies
        shares = shares_by_context(contexts, energies)
    by_id = measured_contexts(alone, averaged, shares, delta)
    influence, without_queries = pooled_influences(averaged, by_id.asked, delta)
    return Measured(
        contexts,
        energies,
        influence,
        without_queries,
        records=mean_shares(shares, contexts, energies),
        shares=shares,
        by_id=by_id,
        shuffled=shuffled_shares(orders, energies) if orders else None,
        accounts=accounts,
    )


def accounts_of_contexts(
    network: CausalLM,
    windows: Windows,
    query_weights: Sequence[PerPosition],
    *,
    depth: int = 0,
    loss: Loss = CausalLM.loss,
    checkpoint: Path | None = None,
    bar: Bar = no_bar,
) -> list[TokenBreakdown]:
    """Account for every token of contexts; keep each account in a file of `checkpoint`."""
    layers = partial(bar, **LAYERS)

    def break_down(number: int) -> TokenBreakdown:
        """Break down the influence of one context by token."""
        return explanations.account_of_context(
            network, windows[number], query_weights[number], depth, loss, progress=layers
        )

    numbers = bar(range(len(windows)), desc="page", unit="context")
    if checkpoint is None:
        return [break_down(number) for number in numbers]
    fingerprint = digest((network, list(windows), list(query_weights), depth, loss))
    run = {"function": "account_of_context", "account": fingerprint}

    def read(leaves: list) -> TokenBreakdown:
        """Make an account again from its file's arrays."""
        return TokenBreakdown._make(jax.device_put(leaves))

    return [
        once(checkpoint / f"{number}", run, partial(break_down, number), read) for number in numbers
    ]


def require_fitting(network: CausalLM, contexts: Sequence[Context]) -> None:
    """Raise ValueError for contexts longer than the network knows, and for unknown ids."""
    longest = max(context.length for context in contexts)
    most, why = network.limit or (longest, "")
    require(
        longest <= most,
        "context",
        got=f"{longest} tokens",
        expected=f"at most {most}, {why}",
        cure="Take a smaller `max_length`, or shorter texts.",
    )
    largest = max(int(context.window.max()) for context in contexts)
    require(
        largest < network.vocabulary,
        "tokenizer",
        got=f"the id {largest}",
        expected=f"ids below {network.vocabulary}, the network's words",
        cure="Take the tokenizer and the weights of one model.",
    )
