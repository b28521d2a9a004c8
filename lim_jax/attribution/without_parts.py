"""Parts of a context taken out of its text, and what its answer loses: what is left closes up."""

from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lim_jax._checks import require
from lim_jax.attribution.answer_losses import answer_rows, losses_of_rows, losses_of_state
from lim_jax.attribution.method import Run
from lim_jax.attribution.parts import windows_and_ask
from lim_jax.attribution.segments import Segment
from lim_jax.density.adjoints import Loss, LossOfIds
from lim_jax.grid.cells import token_grid
from lim_jax.models.causal import CausalLM, LossOfLogits, Targets
from lim_jax.models.foils import Contrast
from lim_jax.models.ids import scores_of_ids
from lim_jax.models.shared_prefix import ReadPrefix, pass_rest
from lim_jax.prompts.contexts import Context, Span

Masks = Bool[np.ndarray, "texts parts"]


def without_parts(
    context: Context, parts: Sequence[Segment], mask: Bool[np.ndarray, " parts"]
) -> Context:
    """Return a context without the parts that are not kept; all from its first query on stays.

    What is left closes up, and named parts are those of what is left.
    """
    stays = _places_kept(context, parts, mask)
    moved = np.cumsum(stays) - 1
    spans = []
    for span in context.spans:
        left = stays[span.positions]
        texts = tuple(text for text, stay in zip(span.texts, left, strict=False) if stay)
        spans.append(Span(span.name, moved[span.positions[left]], texts))
    contrast = context.contrast
    if contrast is not None:
        contrast = contrast._replace(length=np.array(stays.sum(), np.int32))
    return context._replace(
        window=context.window[np.append(stays, True)],
        weights=context.weights[stays],
        tokens=tuple(token for token, stay in zip(context.tokens, stays, strict=True) if stay),
        spans=tuple(span for span in spans if span.positions.size),
        contrast=contrast,
    )


def _places_kept(
    context: Context, parts: Sequence[Segment], mask: Bool[np.ndarray, " parts"]
) -> Bool[np.ndarray, " length"]:
    """Tell which places of a context stay without the parts that are not kept."""
    stays = np.ones(context.length, bool)
    for number in np.flatnonzero(~mask).tolist():
        stays[parts[number].positions] = False
    stays[context.first_query :] = True
    return stays


def losses_without(
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    parts: Sequence[Segment],
    masks: Masks,
    loss: Loss,
    run: Run,
) -> Float[np.ndarray, "texts answer"]:
    """Compute the loss of each part of the answer, on the text that each of `masks` leaves."""
    require(
        context.first_query > 0,
        "loss",
        got="one that asks at every position",
        expected="one that asks for an answer after its prompt",
        cure="Take the loss answer or margin: their prompt can be left out without what is asked.",
    )
    windows, ask = windows_and_ask([without_parts(context, parts, mask) for mask in masks])
    options = {
        "ask": ask,
        "loss": loss,
        "checkpoint": run.checkpoint,
        "padding": run.padding,
        "progress": partial(run.bar, desc="texts", unit="text", leave=False),
    }
    # Where a text was cut the answer asks as before, so that all texts have one program.
    rows = jax.device_put(answer_rows(model, context, answer, loss))
    program = jax.tree_util.Partial(_text_losses, rows)
    prefixes = None
    if rows is not None:
        prefixes = run.texts(np.stack([_places_kept(context, parts, mask) for mask in masks]))
    if prefixes is not None:
        program = jax.tree_util.Partial(_text_losses_after, rows, prefixes)
        numbers = [np.full(len(window) - 1, text, np.int32) for text, window in enumerate(windows)]
        options |= {"parts": numbers, "padding": lambda _: prefixes.size}
    return np.stack(scores_of_ids(program, model, windows, **options))


def _text_losses(
    rows: Float[Array, "answer queries"] | None,
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets | Contrast,
    _: Int[Array, " length"],
) -> Float[Array, " answer"]:
    """Compute the loss of each part of the answer on one text."""
    return losses_of_rows(rows, loss, model, loss.embed(model, ids, y), y)


def _text_losses_after(
    rows: Float[Array, "answer queries"],
    prefixes: ReadPrefix,
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets,
    numbers: Int[Array, " length"],
) -> Float[Array, " answer"]:
    """Compute the loss of each part of the answer on one text, whose prefix was read.

    `prefixes` has what each text keeps of the prefix, and `numbers` the text's own number at each
    of its places.
    """
    assert isinstance(loss.loss, LossOfLogits)
    prefix = jax.tree.map(lambda leaf: leaf[numbers[0]], prefixes)
    grid = token_grid(len(ids), model.embedding.dtype)
    state = pass_rest(model, prefix, prefix.caches, ids, grid).state
    return losses_of_state(rows, loss.loss, model, state, prefix.targets_of_rest(y))
