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
from lim_jax._resuming import store, stored
from lim_jax.attribution.orders import ShuffledShares, averaged_orders, shuffled_shares
from lim_jax.attribution.parts import (
    Energy,
    Record,
    Shares,
    averaged_records,
    measured_contexts,
    record_shares,
    windows_and_asked,
)
from lim_jax.density.adjoints import Loss
from lim_jax.density.statistics import Influence
from lim_jax.explanations.account import TokenAccount
from lim_jax.models import CausalLM
from lim_jax.models.ids import Profile, Windows
from lim_jax.models.losses import LossName, loss_kind
from lim_jax.prompts.contexts import Context
from lim_jax.prompts.shuffling import ShuffledContexts
from lim_jax.results.measured import MeasuredContexts, pooled_influences

SHOWN = 5  # contexts of a page
Bar = Callable[..., Iterable]  # of a list, with `desc`, `unit` and `leave` as tqdm takes them


def no_bar(items: Sequence[Any], **_: Any) -> Iterable[Any]:
    """Show no progress."""
    return items


class Measured(NamedTuple):
    """All that was measured: energies on each context's own grid, the influence on a common one.

    Without queries are the tokens before the first that is asked; None where that is a first one.
    """

    contexts: Sequence[Context]
    energies: Sequence[Energy]
    influence: Influence
    without_queries: Influence | None
    records: Sequence[Record]
    shares: Shares
    measured: MeasuredContexts
    shuffled: ShuffledShares | None
    accounts: Sequence[TokenAccount] = ()

    @property
    def influences(self) -> dict[str, Influence]:
        """The influences by the names of their files."""
        rest = self.without_queries
        return {"influence": self.influence} | (
            {} if rest is None else {"influence_without_queries": rest}
        )


def measure(
    network: CausalLM,
    contexts: Sequence[Context],
    asked: LossName,
    *,
    delta: float = 0.2,
    orders: Sequence[ShuffledContexts] = (),
    shown: int = 0,
    checkpoint: Path | None = None,
    bar: Bar = no_bar,
) -> Measured:
    """Measure the influence of every token of contexts on what is asked of them.

    The first `shown` are measured by their accounts where weights are in memory, not twice.
    Contexts of one of `orders`, lines whose documents are shuffled, are averaged: they are not
    independent. With a folder `checkpoint` an interrupted run goes on after the last context.
    """
    in_memory = not network.flow.fetched
    accounts = []
    if shown and in_memory:
        page = None if checkpoint is None else checkpoint / "page"
        accounts = accounts_of(network, contexts[:shown], asked, checkpoint=page, bar=bar)
    energies = [np.asarray(account.energy) for account in accounts]
    energies += _energies(network, contexts, len(accounts), asked, checkpoint, bar)
    if orders:
        alone, averaged, shares = averaged_orders(orders, energies)
    else:
        alone, averaged, shares = contexts, energies, record_shares(contexts, energies)
    measured = measured_contexts(alone, averaged, shares, delta)
    return Measured(
        contexts,
        energies,
        *pooled_influences(averaged, measured.asked, delta),
        averaged_records(shares, contexts, energies),
        shares,
        measured,
        shuffled_shares(orders, energies) if orders else None,
        accounts,
    )


def _energies(
    network: CausalLM,
    contexts: Sequence[Context],
    known: int,
    asked: LossName,
    checkpoint: Path | None,
    bar: Bar,
) -> list[Energy]:
    """The energies of contexts, but for the first, which are known."""
    windows, queries = windows_and_asked(contexts[known:])
    if not windows:
        return []
    return models.energies_of_ids(
        network,
        windows,
        ask=queries,
        loss=loss_kind(asked).loss,
        checkpoint=checkpoint and checkpoint / ("other energies" if known else "energies"),
        progress=partial(bar, desc="profile", unit="context"),
        progress_of_layers=partial(bar, desc="its layers, both ways", unit="layer", leave=False),
    )


def accounts_of(
    network: CausalLM,
    contexts: Sequence[Context],
    asked: LossName,
    *,
    checkpoint: Path | None = None,
    bar: Bar = no_bar,
) -> list[TokenAccount]:
    """The accounts of contexts, as a page shows them."""
    return first_accounts(
        network,
        [context.window for context in contexts],
        [context.weights for context in contexts],
        loss=loss_kind(asked).loss,
        checkpoint=checkpoint,
        bar=bar,
    )


def first_accounts(
    network: CausalLM,
    windows: Windows,
    query_weights: Sequence[Profile],
    *,
    depth: int = 0,
    loss: Loss = CausalLM.loss,
    checkpoint: Path | None = None,
    bar: Bar = no_bar,
) -> list[TokenAccount]:
    """The accounts of the first contexts, each kept in a file of the folder `checkpoint`."""
    shown = [jax.device_put(np.asarray(window)) for window in windows[:SHOWN]]
    dtype = network.embedding.dtype
    asked = [jax.device_put(weights.astype(dtype)) for weights in query_weights[:SHOWN]]
    layers = partial(bar, desc="its layers, both ways", unit="layer", leave=False)

    def account(number: int) -> TokenAccount:
        context = shown[number], asked[number]
        return explanations.account_of_context(network, *context, depth, loss, progress=layers)

    if checkpoint is not None:
        run = digest((network, shown, asked, depth, loss))
        account = partial(_read_or_measured, checkpoint, run, account)
    return [account(number) for number in bar(range(len(shown)), desc="page", unit="context")]


def _read_or_measured(
    folder: Path, run: str, measure: Callable[[int], TokenAccount], number: int
) -> TokenAccount:
    """An account from its file, or measured and written there."""
    file, about = folder / f"{number}", {"function": "account_of_context", "account": run}
    if not file.exists():
        account = measure(number)
        store(file, about, {}, account)
        return account
    return TokenAccount._make(jax.device_put(stored(file, about)[1]))


def require_fitting(network: CausalLM, contexts: Sequence[Context]) -> None:
    """Raise ValueError for contexts longer than the network knows, and for unknown ids."""
    longest = max(context.length for context in contexts)
    most, why = network.limit or (longest, "")
    require(longest <= most, "data", got=f"a context of {longest} tokens",
            expected=f"at most {most}, {why}",
            cure="Take a smaller --max-length, or shorter lines.")  # fmt: skip
    largest = max(int(context.window.max()) for context in contexts)
    require(largest < network.vocabulary, "tokenizer", got=f"the id {largest}",
            expected=f"ids below {network.vocabulary}, the network's words",
            cure="Tokenizer and weights must be of one model.")  # fmt: skip
