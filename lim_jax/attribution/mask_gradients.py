"""Derivatives of an answer's loss in an additive attention mask: how much it reads of each token.

The loss of an answer is a sum over its tokens, so the mask gradients of its parts sum to its own.
They take one pass forward and one back each, together: a layer is fetched once for all of them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax.attribution.gradients import Tokens
from lim_jax.attribution.scores import Run, of_context, require_whole
from lim_jax.attribution.segments import FIRST, Segment, document_numbers
from lim_jax.density.adjoints import Loss, LossOfIds
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Grid
from lim_jax.loss.losses import Slices
from lim_jax.loss.readouts import Logits
from lim_jax.models.causal import CausalLM, LossOfLogits, Targets
from lim_jax.models.foils import Contrast
from lim_jax.models.ids import scores_of_ids
from lim_jax.network.slots import State
from lim_jax.prompts.contexts import Context

ROWS = 16  # parts of an answer whose covectors are in memory together
AT_ONCE = 2  # of these that go through a layer together
LEAST = 1e-3  # what all documents weigh where they are next to nothing
# At which log weights of all documents gradients are taken, and the share of each in their sum.
Rule = Float[np.ndarray, "2 nodes"]


def mask_gradients(
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    loss: Loss,
    rule: Rule,
    run: Run,
) -> Float[np.ndarray, "answer length"]:
    """Return minus the derivatives in every token's log weight, summed by the rule's shares.

    Every document reads itself as before. The context's first token has no score where it is a
    document's: many heads rest on it, whatever it says.
    """
    numbers = document_numbers(context)
    nodes = jax.device_put(rule.T.astype(model.embedding.dtype))
    if context.contrast is None and isinstance(loss, LossOfLogits):
        batches = jax.device_put(_in_batches(answer_weights(model, context, answer)))
        scores = jax.tree_util.Partial(_of_parts, batches, nodes)
    else:
        require_whole(answer, "as this loss is of all of it")
        scores = jax.tree_util.Partial(_of_the_whole, nodes)
    (columns,) = scores_of_ids(
        scores, model, [context.window], ask=[context.asked], loss=loss, parts=[numbers],
        **of_context("mask gradient", run),
    )  # fmt: skip
    return np.where(numbers != FIRST, columns.T[: len(answer)], 0)


def answer_weights(
    model: CausalLM, context: Context, answer: Sequence[Segment]
) -> Float[np.ndarray, "answer queries"]:
    """Return the weights of the loss of each part of the answer, at the places that ask."""
    weights = np.zeros((len(answer), context.length))
    for row, segment in zip(weights, answer, strict=True):
        row[segment.places] = context.weights[segment.places]
    return weights[:, np.flatnonzero(context.weights)].astype(model.embedding.dtype)


def losses_of_rows(
    ask: LossOfLogits, logits: Logits | Slices, y: Targets, rows: Float[Array, "rows _"]
) -> Float[Array, " rows"]:
    """Return the losses by other query weights, from the same logits."""

    def of_row(row: Float[Array, " queries"]) -> Float[Array, ""]:
        whole, of_row = of_query_weights(y, row)
        return whole * ask.of_logits(logits, of_row)

    return jax.lax.map(of_row, padded_rows(rows, y))


def padded_rows(rows: Float[Array, "rows _"], y: Targets) -> Float[Array, "rows queries"]:
    """Return query weights filled up with zeros, as the targets of a padded context are."""
    return jnp.pad(rows, [(0, 0), (0, y.weights.shape[0] - rows.shape[1])])


def of_query_weights(y: Targets, row: Float[Array, " queries"]) -> tuple[Float[Array, ""], Targets]:
    """Return the sum of other query weights, and targets that have these over their sum.

    A loss is linear in the weights, but takes those of sum one.
    """
    whole = row.sum()
    weights = jnp.where(whole > 0, row / jnp.where(whole > 0, whole, 1), y.weights)
    return whole, y._replace(weights=weights)


def effects_of_documents(
    model: CausalLM, context: Context, answer: Sequence[Segment], loss: Loss, run: Run
) -> Float[np.ndarray, " answer"]:
    """Return by how much each part's loss falls as all documents come in from next to nothing."""
    if context.contrast is None and isinstance(loss, LossOfLogits):
        rows = jax.device_put(answer_weights(model, context, answer))
        scores = jax.tree_util.Partial(_ends_of_parts, rows)
    else:
        require_whole(answer, "as this loss is of all of it")
        scores = _ends
    (ends,) = scores_of_ids(
        scores, model, [context.window], ask=[context.asked], loss=loss,
        parts=[document_numbers(context)], **of_context("all documents", run),
    )  # fmt: skip
    return ends[0] - ends[1]


def mask_gradient_at(
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets | Contrast,
    parts: Int[Array, " length"],
    log_weight: Float[Array, ""] | float,
) -> Tokens:
    """Return minus the loss's derivative in the log weights, where all documents have the same."""
    x = loss.embed(model, ids, y)
    chosen = jnp.where(parts >= 0, log_weight, 0).astype(x.dtype)
    y = y._replace(parts=parts)  # a part reads itself as before
    return -jax.grad(lambda u: loss.loss(model, x, y._replace(log_weights=u)))(chosen)


def _ends(
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets | Contrast,
    parts: Int[Array, " length"],
) -> Float[Array, "2 1"]:
    """Return the loss where all documents weigh next to nothing, and the whole context's."""
    x = loss.embed(model, ids, y)

    def at(log_weight: Float[Array, ""]) -> Float[Array, ""]:
        chosen = jnp.where(parts >= 0, log_weight, 0)
        return loss.loss(model, x, y._replace(log_weights=chosen, parts=parts))

    return jax.lax.map(at, jnp.asarray([math.log(LEAST), 0], x.dtype))[:, None]


def _ends_of_parts(
    rows: Float[Array, "rows queries"],
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets,
    parts: Int[Array, " length"],
) -> Float[Array, "2 rows"]:
    """Return the same for each part of the answer."""
    x, ask = loss.embed(model, ids, y), loss.loss
    assert isinstance(ask, LossOfLogits)

    def at(log_weight: Float[Array, ""]) -> Float[Array, " rows"]:
        log_weights = jnp.where(parts >= 0, log_weight, 0)
        end = model.flow(x, token_grid(x.shape[0], x.dtype).weighted(log_weights, parts))
        logits = model.logits_of_queries(end, y)
        return losses_of_rows(ask, logits, y, rows)

    return jax.lax.map(at, jnp.asarray([math.log(LEAST), 0], x.dtype))


def _of_the_whole(
    nodes: Float[Array, "nodes 2"],
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets | Contrast,
    parts: Int[Array, " length"],
) -> Float[Array, "length 1"]:
    def at(node: Float[Array, "2"]) -> Tokens:
        return node[1] * mask_gradient_at(loss, model, ids, y, parts, node[0])

    return jax.lax.map(at, nodes).sum(axis=0)[:, None]


def _of_parts(
    batches: Float[Array, "batches rows queries"],
    nodes: Float[Array, "nodes 2"],
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets,
    parts: Int[Array, " length"],
) -> Float[Array, "length _"]:
    x, ask = loss.embed(model, ids, y), loss.loss
    assert isinstance(ask, LossOfLogits)

    def at(node: Float[Array, "2"]) -> Float[Array, "_ length"]:
        log_weights = jnp.where(parts >= 0, node[0], 0)
        grid = token_grid(x.shape[0], x.dtype).weighted(log_weights, parts)
        return node[1] * _gradients(batches, ask, model, x, y, grid)

    return -jax.lax.map(at, nodes).sum(axis=0).T


def _in_batches(rows: Float[np.ndarray, "rows queries"]) -> Float[np.ndarray, "batches b queries"]:
    """Return rows in batches of one size, filled up with zeros to a multiple of `AT_ONCE`."""
    batches = -(-len(rows) // ROWS)
    size = -(-len(rows) // batches)
    size += -size % AT_ONCE if size > 1 else 0
    filled = np.pad(rows, [(0, batches * size - len(rows)), (0, 0)])
    return filled.reshape(batches, size, -1)


def _gradients(
    batches: Float[Array, "batches rows queries"],
    ask: LossOfLogits,
    model: CausalLM,
    x: State,
    y: Targets,
    grid: Grid,
) -> Float[Array, "_ length"]:
    """Return the derivatives in the grid's log weights, of losses with other query weights."""
    flow, log_weights = model.flow, grid.log_weights
    states = flow.trajectory(x, grid).states

    def terminal(row):
        whole, of_row = of_query_weights(y, row)
        return whole * jax.grad(ask.terminal, argnums=1)(model, states[-1], of_row)

    def backward(carried, layer, state):
        def transition(state, log_weights):
            return flow.transition(layer, state, replace(grid, log_weights=log_weights))

        covectors, gradients = carried
        pull = jax.vjp(transition, state, log_weights)[1]
        covectors, of_layer = jax.lax.map(pull, covectors, batch_size=min(AT_ONCE, len(covectors)))
        return (covectors, gradients + of_layer), None

    def of_batch(rows):
        rows = padded_rows(rows, y)
        start = jax.lax.map(terminal, rows), jnp.zeros((rows.shape[0], x.shape[0]), x.dtype)
        return flow.scan(backward, start, states[:-1], reverse=True)[0][1]

    return jax.lax.map(of_batch, batches).reshape(-1, x.shape[0])
