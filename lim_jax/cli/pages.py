"""What a page shows of the contexts that a command read: accounts of the first few."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from lim_jax import explanations
from lim_jax._digest import digest
from lim_jax._resuming import store, stored
from lim_jax.explanations.account import TokenAccount
from lim_jax.models import CausalLM
from lim_jax.models.ids import Profile, Windows

SHOWN = 5  # contexts of a page


def first_accounts(
    network: CausalLM,
    windows: Windows,
    query_weights: Sequence[Profile],
    *,
    depth: int = 0,
    terminal_loss: Callable[..., jax.Array] = CausalLM.terminal_loss,
    checkpoint: Path | None = None,
) -> list[TokenAccount]:
    """The accounts of the first contexts, with a bar of these and of the layers of each.

    `checkpoint` is a folder with a file for each account, which a run that is taken up reads.
    """
    shown = [jax.device_put(np.asarray(window)) for window in windows[:SHOWN]]
    dtype = network.embedding.dtype
    asked = [jax.device_put(weights.astype(dtype)) for weights in query_weights[:SHOWN]]
    layers = partial(tqdm, desc="its layers, both ways", unit="layer", leave=False)

    def account(number: int) -> TokenAccount:
        of = network, shown[number], asked[number], depth, terminal_loss
        return explanations.account_of_context(*of, progress=layers)

    if checkpoint is not None:
        run = digest((network, shown, asked, depth, terminal_loss))
        account = partial(_read_or_measured, checkpoint, run, account)
    return [account(number) for number in tqdm(range(len(shown)), desc="page", unit="context")]


def _read_or_measured(
    folder: Path, run: str, measure: Callable[[int], TokenAccount], number: int
) -> TokenAccount:
    """An account from its file, or measured and written there."""
    file, about = folder / f"{number}", {"function": "account_of_context", "account": run}
    if not file.exists():
        account = measure(number)
        store(file, about, {"shapes": [[leaf.shape, leaf.dtype.name] for leaf in account]}, account)
        return account

    def like(header: dict) -> Any:
        shapes = header["shapes"]
        return TokenAccount._make(jax.ShapeDtypeStruct(tuple(size), kind) for size, kind in shapes)

    return stored(file, about, like)[1]
