"""By which layers and heads the evidence of named parts came: their mask gradients, by head."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._errors import filter_jit
from lim_jax._tables import text_table
from lim_jax.adjoint.masking import mask_gradient
from lim_jax.attribution.explaining import ReadContexts
from lim_jax.attribution.measuring import Bar, no_bar
from lim_jax.attribution.methods import WEIGHT
from lim_jax.attribution.parts import REST, parts_of
from lim_jax.attribution.segments import FIRST, document_numbers
from lim_jax.attribution.time_budget import HEADS, Case
from lim_jax.explanations.account import asked_of_windows
from lim_jax.grid.cells import token_grid
from lim_jax.models.causal import CausalLM, LossOfLogits, Targets, as_loss_of_logits
from lim_jax.models.ids import padded_size
from lim_jax.probes import sample_mean
from lim_jax.prompts.contexts import Context

STRONGEST = 5  # heads of each part
HEAD = ("part", "layer", "head", "   score", "   error", "contexts")
ByHead = Float[np.ndarray, "layers heads"]


class HeadOfPart(NamedTuple):
    """What a head gave of a part's score by mask-gradient, over the contexts that have the part."""

    name: str
    layer: int
    head: int
    score: float
    error: float
    contexts: int


def heads_of_cases(
    cases: Mapping[str, Case], read: ReadContexts, bar: Bar = no_bar
) -> dict[str, list[HeadOfPart]]:
    """The strongest heads of each named part, by case; one gradient of each of some contexts."""
    some = np.flatnonzero(read.named)[:HEADS].tolist()
    return {
        name: _strongest(case, read, bar(some, desc=f"heads, {name}", unit="context"))
        for name, case in cases.items()
        if some
    }


def _strongest(case: Case, read: ReadContexts, chosen: Iterable[int]) -> list[HeadOfPart]:
    by_part: dict[str, list[ByHead]] = {}
    for number in chosen:
        context = read.contexts[number]
        gains = _gains(case, context, np.asarray(case.weights[number]))
        for (name, kind), places in parts_of(context):
            if kind != REST:
                by_part.setdefault(name, []).append(gains[:, :, places].sum(axis=2))
    strongest = []
    for name, rows in by_part.items():
        mean, error = map(np.asarray, sample_mean(jax.device_put(np.stack(rows))))
        for flat in np.argsort(-abs(mean), axis=None, kind="stable")[:STRONGEST]:
            at = np.unravel_index(flat, mean.shape)
            numbers = float(mean[at]), float(error[at]), len(rows)
            strongest.append(HeadOfPart(name, int(at[0]), int(at[1]), *numbers))
    return strongest


def _gains(
    case: Case, context: Context, weights: Float[np.ndarray, " length"]
) -> Float[np.ndarray, "layers heads length"]:
    """Minus the mask gradient where documents weigh as by the method; padded, for one program."""
    model, length = case.network, context.length
    size = padded_size(model, length)
    parts = np.pad(document_numbers(context), (0, size - length), constant_values=-1)
    log_weights = np.where(parts >= 0, np.log(WEIGHT), 0).astype(model.embedding.dtype)
    several = asked_of_windows(model, context.window[None], weights, size)
    asked = jax.tree.map(lambda leaf: leaf[0], several)
    ids = jax.device_put(np.pad(context.window[:-1], (0, size - length)))
    chosen = jax.device_put((log_weights, parts))
    by_head = _by_head(model, as_loss_of_logits(case.loss), ids, chosen, asked)
    return -np.where(parts == FIRST, 0, np.asarray(by_head))[..., :length]


@filter_jit
def _by_head(
    model: CausalLM,
    loss: LossOfLogits,
    ids: Int[Array, " length"],
    chosen: tuple[Float[Array, " length"], Int[Array, " length"]],
    asked: Targets,
) -> Float[Array, "layers heads length"]:
    grid = token_grid(ids.shape[0], model.embedding.dtype).weighted(*chosen)
    of = jax.tree_util.Partial(loss.terminal, model)
    gradient = mask_gradient(model.flow, of, (model.embed(ids), asked), grid)
    return grid.weights[None, None] * gradient.by_head


def heads_table(heads: Sequence[HeadOfPart]) -> str:
    """A line for each head."""
    rows = [
        (f"“{head.name}”", f"{head.layer}", f"{head.head}", f"{head.score:+.4f}",
         f"{head.error:.4f}" if np.isfinite(head.error) else "-", f"{head.contexts}")
        for head in heads
    ]  # fmt: skip
    return text_table([HEAD, *rows])
