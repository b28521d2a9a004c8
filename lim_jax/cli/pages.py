"""What a page shows of the contexts that a command read: the first few, each taken apart."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from tqdm import tqdm

from lim_jax import explanations, models
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
) -> tuple[list[explanations.TokenAccount], list[list[str]]]:
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
    shown = [jax.device_put(window) for window in windows[:SHOWN]]
    asked = [jax.device_put(one.astype(network.embedding.dtype)) for one in query_weights[:SHOWN]]
    accounts = [
        explanations.account_of_context(network, window, weights, depth, terminal_loss)
        for window, weights in tqdm(
            list(zip(shown, asked, strict=True)), desc="page", unit="context"
        )
    ]
    return accounts, [models.texts_of_ids(window, tokenizer) for window in shown]
