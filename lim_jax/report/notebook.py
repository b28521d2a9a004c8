"""The page from Python in one call: measured, and shown inline in a notebook."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from lim_jax._checks import require
from lim_jax.attribution.profile_run import accounts_of_contexts
from lim_jax.checkpoints.text import texts_of_ids
from lim_jax.density.adjoints import Loss
from lim_jax.loss.query_weights import teacher_forcing
from lim_jax.models.causal import CausalLM
from lim_jax.models.ids import Windows
from lim_jax.report.html_page import Page
from lim_jax.report.page import influence_page, require_page_packages
from lim_jax.results.context_energies import pooled_influences


def show(
    model: CausalLM,
    windows: Windows,
    tokenizer: Any = None,
    *,
    query_weights: Sequence[Float[Any, " _"]] | None = None,
    spans: Sequence[Sequence[Any]] = (),
    title: str = "Influence",
    depth: int = 0,
    delta: float = 0.2,
    loss: Loss = CausalLM.loss,
) -> Page:
    """Measure contexts, and show the influence of each token and each named part.

    In a notebook the last line of a cell shows the page; ``show(...).save("page.html")`` writes it.
    It takes some two gradients of each context, and the extra ``report``.

    Parameters
    ----------
    model
        The network, such as `LanguageModel.network`.
    windows
        Of each context an array of its ids with the id after it.
    tokenizer
        The model's own, of the package tokenizers, for the text of ids; None, the default, if ids
        are bytes of UTF-8.
    query_weights
        Of each context where the loss asks: a weight for each position, of sum one. By default
        every position has the same.
    spans
        Of each context its named parts, such as documents: each has a ``name`` and its
        ``positions``, counted from 0. By default there are none.
    title
        The heading of the page.
    depth
        The depth of the state whose tokens are judged: 0, the default, is the input, k that after k
        layers.
    delta
        The width of each boundary region, a part of the context below one half.
    loss
        `CausalLM.loss`, the default, or `CausalLM.margin_loss` or `CausalLM.own_margin_loss`.

    Returns
    -------
    Page
        The page, which a notebook shows in a frame.

    Raises
    ------
    ModuleNotFoundError
        Without the packages of the extra ``report``.
    ValueError
        If there is no window, or not as many weights or spans, or one does not fit its context.
    EquinoxRuntimeError
        If an id is outside the vocabulary, weights do not sum to one, or the loss or an energy is
        not finite.
    """
    require_page_packages()
    weights = query_weights
    if weights is None:
        weights = [teacher_forcing(len(window) - 1) for window in windows]
    require(
        len(windows) > 0 and len(weights) == len(windows) and len(spans) in (0, len(windows)),
        "windows",
        got=f"{len(windows)}, with weights of {len(weights)} and spans of {len(spans)}",
        expected="at least one, and weights and spans of each, or no spans",
        cure="Pass lists of one length.",
    )
    accounts = accounts_of_contexts(model, windows, weights, depth=depth, loss=loss)
    energies = [np.asarray(account.energy) for account in accounts]
    first = [int(np.flatnonzero(np.asarray(row))[0]) for row in weights]
    influence, rest = pooled_influences(energies, first, delta)
    texts = [texts_of_ids(window, tokenizer) for window in windows]
    return influence_page(
        influence, accounts, texts, title=title, spans=spans, without_queries=rest
    )
