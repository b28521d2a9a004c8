"""By which layers and heads the evidence of named parts came: their mask gradients, by head."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._text_tables import text_table
from lim_jax.adjoint.masking import mask_gradient
from lim_jax.attribution.explanation_run import ContextBatch
from lim_jax.attribution.methods.mask_gradient import LENGTH, WEIGHT
from lim_jax.attribution.parts import UNNAMED, iterate_parts
from lim_jax.attribution.profile_run import Bar, no_bar
from lim_jax.attribution.segments import SINK, document_numbers
from lim_jax.attribution.time_budget import HEADS, NetworkAndLoss
from lim_jax.density.adjoints import LossOfIds
from lim_jax.grid.cells import token_grid
from lim_jax.models.causal import CausalLM, as_loss_of_logits
from lim_jax.models.ids import scores_of_ids
from lim_jax.probes import sample_mean
from lim_jax.prompts.own_answers import ask_for_own_word

STRONGEST = 5  # heads of each part
HEAD = ("part", "layer", "head", "   score", "   error", "contexts")


class HeadOfPart(NamedTuple):
    """What a head gave of a part's score by mask-gradient, over the contexts that have the part."""

    name: str
    layer: int
    head: int
    score: float
    error: float
    contexts: int


def strongest_heads(
    network_and_loss: NetworkAndLoss, batch: ContextBatch, bar: Bar = no_bar
) -> list[HeadOfPart]:
    """Return the strongest heads of each named part, by a gradient of each of some contexts."""
    chosen = np.flatnonzero(batch.named)[:HEADS].tolist()
    if not chosen:
        return []
    network = network_and_loss.network
    loss = network_and_loss.loss
    contexts = [batch.contexts[number] for number in chosen]
    if loss is CausalLM.own_margin_loss:
        contexts = [ask_for_own_word(network, context) for context in contexts]
        loss = CausalLM.margin_loss
    gains = scores_of_ids(
        _by_head,
        network,
        [context.window for context in contexts],
        ask=[np.asarray(network_and_loss.weights[number]) for number in chosen],
        loss=loss,
        parts=list(map(document_numbers, contexts)),
        progress=partial(bar, desc="heads", unit="context"),
    )
    by_part: dict[str, list[np.ndarray]] = {}
    for context, gains_by_token in zip(contexts, gains, strict=True):
        for (part, kind), positions in iterate_parts(context):
            if kind != UNNAMED:
                by_part.setdefault(part, []).append(gains_by_token[positions].sum(axis=0))
    strongest = []
    for part, rows in by_part.items():
        mean, error = map(np.asarray, sample_mean(jax.device_put(np.stack(rows))))
        for flat in np.argsort(-abs(mean), axis=None, kind="stable")[:STRONGEST]:
            at = np.unravel_index(flat, mean.shape)
            numbers = float(mean[at]), float(error[at]), len(rows)
            strongest.append(HeadOfPart(part, int(at[0]), int(at[1]), *numbers))
    return strongest


def _by_head(
    loss: LossOfIds, model: CausalLM, ids: Any, y: Any, parts: Any
) -> Float[Array, "length layers heads"]:
    """Return the scores of the method mask-gradient by token, layer and head."""
    x = loss.embed(model, ids, y)
    log_weights = jnp.where(parts >= 0, math.log(WEIGHT), 0).astype(x.dtype)
    grid = token_grid(x.shape[0], x.dtype).weighted(log_weights, parts)
    terminal = jax.tree_util.Partial(as_loss_of_logits(loss.loss).terminal, model)
    weights = jnp.where(parts == SINK, 0, grid.weights)
    by_head = mask_gradient(model.flow, terminal, (x, y), grid).by_head
    return jnp.moveaxis(-LENGTH * weights[None, None, :] * by_head, -1, 0)


def heads_table(heads: Sequence[HeadOfPart]) -> str:
    """Lay out a table with a line for each head, below one that says what scores are."""
    meaning = "What heads give to each part by mask-gradient, positive where it lowers the loss:"
    rows = [
        (
            f"“{head.name}”",
            f"{head.layer}",
            f"{head.head}",
            f"{head.score:+.4f}",
            f"{head.error:.4f}" if np.isfinite(head.error) else "-",
            f"{head.contexts}",
        )
        for head in heads
    ]
    return f"{meaning}\n{text_table([HEAD, *rows])}"
