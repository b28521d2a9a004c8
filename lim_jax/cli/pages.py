"""What a page shows of the contexts that a command read: the first few, each taken apart."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from lim_jax import explanations, models
from lim_jax._checks import AnyPath, as_path
from lim_jax._digest import digest
from lim_jax._resuming import store, stored
from lim_jax.explanations.account import TokenAccount
from lim_jax.models import CausalLM
from lim_jax.models.ids import Profile, Windows

SHOWN = 5  # contexts of a page


def first_contexts(
    network: CausalLM,
    windows: Windows,
    query_weights: Sequence[Profile],
    tokenizer: Any,
    *,
    depth: int = 0,
    terminal_loss: Callable[..., jax.Array] = CausalLM.terminal_loss,
) -> tuple[list[explanations.account.TokenAccount], list[list[str]]]:
    """The accounts and the texts of the first contexts, as `report.write_page` takes them.

    Parameters
    ----------
    network, depth, terminal_loss
        As in `explanations.account_of_context`.
    windows, query_weights
        Of every context its ids with the one after it, and where the loss asks.
    tokenizer
        As in `models.texts_of_ids`.
    """
    accounts = first_accounts(
        network, windows, query_weights, depth=depth, terminal_loss=terminal_loss
    )
    return accounts, [models.texts_of_ids(window, tokenizer) for window in windows[:SHOWN]]


def first_accounts(
    network: CausalLM,
    windows: Windows,
    query_weights: Sequence[Profile],
    *,
    depth: int = 0,
    terminal_loss: Callable[..., jax.Array] = CausalLM.terminal_loss,
    checkpoint: AnyPath | None = None,
) -> list[TokenAccount]:
    """The accounts of the first contexts, with a bar of these and of the layers of each.

    Parameters
    ----------
    network, windows, query_weights, depth, terminal_loss
        As in `first_contexts`.
    checkpoint
        A folder for a file of each, which a run that is taken up reads.
    """
    shown = [jax.device_put(np.asarray(window)) for window in windows[:SHOWN]]
    asked = [jax.device_put(one.astype(network.embedding.dtype)) for one in query_weights[:SHOWN]]
    layers = partial(tqdm, desc="its layers, both ways", unit="layer", leave=False)

    def account(number: int) -> TokenAccount:
        of = network, shown[number], asked[number], depth, terminal_loss
        return explanations.account_of_context(*of, progress=layers)

    if checkpoint is not None:
        of = digest((network, shown, asked, depth, terminal_loss))
        account = partial(_once, as_path(checkpoint, "checkpoint"), of, account)
    return [account(number) for number in tqdm(range(len(shown)), desc="page", unit="context")]


def _once(
    folder: Path, of: str, measure: Callable[[int], TokenAccount], number: int
) -> TokenAccount:
    """An account, unless a file holds it."""
    file, run = folder / f"{number}", {"function": "account_of_context", "account": of}
    if not file.exists():
        account = measure(number)
        store(file, run, {"shapes": [[leaf.shape, leaf.dtype.name] for leaf in account]}, account)
        return account

    def like(about: dict) -> Any:
        shapes = about["shapes"]
        return TokenAccount._make(jax.ShapeDtypeStruct(tuple(size), kind) for size, kind in shapes)

    return stored(file, run, like)[1]
