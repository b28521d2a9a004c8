"""Derivatives of an answer's loss in an additive attention mask: how much it reads of each token.

The loss of an answer is a sum over its tokens, so the mask gradients of its parts sum to its own.
They take one pass forward and one back each, together: a layer is fetched once for all of them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax.attribution.answer_losses import (
    answer_rows,
    cut_rows,
    losses_of_rows,
    losses_of_state,
    with_query_weights,
)
from lim_jax.attribution.gradients import Tokens
from lim_jax.attribution.method import Run, run_options
from lim_jax.attribution.segments import SINK, Segment, document_numbers
from lim_jax.density.adjoints import Loss, LossOfIds
from lim_jax.grid.cells import CellGrid, token_grid
from lim_jax.models.causal import CausalLM, LossOfLogits, Targets
from lim_jax.models.foils import Contrast
from lim_jax.models.ids import scores_of_ids
from lim_jax.models.shared_prefix import (
    ReadPrefix,
    log_weights_of_parts,
    pass_rest,
    weigh_parts,
)
from lim_jax.network.kv_cache import Caches
from lim_jax.network.slots import State
from lim_jax.prompts.contexts import Context

ROWS = 16  # parts of an answer whose covectors are in memory together
AT_ONCE = 2  # of these that go through a layer together
LEAST = 1e-3  # what all documents weigh where they are next to nothing


def mask_gradients(
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    loss: Loss,
    log_weights: Float[np.ndarray, " nodes"],
    run: Run,
) -> Float[np.ndarray, "nodes answer length"]:
    """Return minus the loss's derivatives in each token's log weight, at log weights of documents.

    Every document reads itself as before. The context's first token has no score where it is a
    document's: many heads rest on it, whatever it says.
    """
    numbers = document_numbers(context)
    rows = answer_rows(model, context, answer, loss)
    batches = None if rows is None else jax.device_put(_in_batches(rows))
    nodes = log_weights.astype(model.embedding.dtype)
    prefix = None if rows is None else run.prefix(tuple(log_weights.tolist()), keep_states=True)
    if prefix is not None:
        run = run._replace(padding=lambda _: prefix.size)

    def gradients_at(node: int) -> Float[np.ndarray, "length _"]:
        """Compute them at one of the log weights: one program serves all, and finer rules too."""
        program = jax.tree_util.Partial(_gradients_at, batches, jax.device_put(nodes[node]))
        if prefix is not None:
            program = jax.tree_util.Partial(_gradients_after, batches, prefix, jax.device_put(node))
        (by_token,) = scores_of_ids(
            program,
            model,
            [context.window],
            ask=[context.ask],
            loss=loss,
            parts=[numbers],
            checkpoint=run.within(f"{node}").checkpoint,
            padding=run.padding,
        )
        return by_token

    bar = run.bar(range(len(nodes)), desc="mask gradients", unit="gradient")
    by_node = np.stack([gradients_at(node) for node in bar])
    gradients = np.moveaxis(by_node, 1, -1)[:, : len(answer)]
    return np.where(numbers != SINK, gradients, 0)


def losses_at_ends(
    model: CausalLM, context: Context, answer: Sequence[Segment], loss: Loss, run: Run
) -> Float[np.ndarray, "2 answer"]:
    """Return each part's loss with next to nothing of all documents, and with the whole of them."""
    rows = jax.device_put(answer_rows(model, context, answer, loss))
    program = jax.tree_util.Partial(_losses_at_ends, rows)
    prefix = None if rows is None else run.prefix((math.log(LEAST), 0.0))
    if prefix is not None:
        program = jax.tree_util.Partial(_losses_after, rows, prefix)
        run = run._replace(padding=lambda _: prefix.size)
    (ends,) = scores_of_ids(
        program,
        model,
        [context.window],
        ask=[context.ask],
        loss=loss,
        parts=[document_numbers(context)],
        **run_options("all documents", run),
    )
    return ends.T


def with_documents_at(
    log_weight: Float[Array, ""] | float,
    x: State,
    y: Targets | Contrast,
    parts: Int[Array, " length"],
) -> Targets | Contrast:
    """Return targets with one log weight for all documents, each of which reads itself as before.

    `parts` has the number of each token's document, and below zero for none, which keeps its
    weight.
    """
    return y._replace(log_weights=log_weights_of_parts(log_weight, parts, x.dtype), parts=parts)


def answer_mask_gradient(loss: Loss, model: CausalLM, x: State, y: Targets | Contrast) -> Tokens:
    """Return the derivative of the whole answer's loss in the log weights that `y` has."""
    return jax.grad(lambda u: loss(model, x, y._replace(log_weights=u)))(y.log_weights)


def _losses_at_ends(
    rows: Float[Array, "rows queries"] | None,
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets | Contrast,
    parts: Int[Array, " length"],
) -> Float[Array, "rows 2"]:
    """Compute each row's loss with all documents at the weight `LEAST`, and at one.

    Rows stand first: they are no more than the context's tokens, to which results are cut.
    """
    x = loss.embed(model, ids, y)

    def at(log_weight: Float[Array, ""]) -> Float[Array, " rows"]:
        """Compute the rows' losses with a log weight on the documents."""
        return losses_of_rows(rows, loss, model, x, with_documents_at(log_weight, x, y, parts))

    return jax.lax.map(at, jnp.asarray([math.log(LEAST), 0], x.dtype)).T


def _losses_after(
    rows: Float[Array, "rows queries"],
    prefix: ReadPrefix,
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets,
    parts: Int[Array, " length"],
) -> Float[Array, "rows 2"]:
    """Compute each row's loss with documents at each weight at which a prefix was read.

    The prefix was read at the weight `LEAST`, and at one; the rest of the context is read here.
    """
    assert isinstance(loss.loss, LossOfLogits)
    loss_of_logits = loss.loss
    targets = prefix.targets_of_rest(y)

    def at(end: tuple[Float[Array, ""], Caches]) -> Float[Array, " rows"]:
        """Compute the rows' losses with a log weight on the documents."""
        log_weight, caches = end
        grid = weigh_parts(token_grid(len(ids), model.embedding.dtype), log_weight, parts)
        state = pass_rest(model, prefix, caches, ids, grid).state
        return losses_of_state(rows, loss_of_logits, model, state, targets)

    return jax.lax.map(at, (prefix.log_weights, prefix.caches)).T


def _gradients_at(
    batches: Float[Array, "batches rows queries"] | None,
    log_weight: Float[Array, ""],
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets | Contrast,
    parts: Int[Array, " length"],
) -> Float[Array, "length _"]:
    """Return minus the mask gradients at a log weight, of each row or the whole answer."""
    x = loss.embed(model, ids, y)
    if batches is None:
        targets = with_documents_at(log_weight, x, y, parts)
        return -answer_mask_gradient(loss.loss, model, x, targets)[:, None]
    assert isinstance(loss.loss, LossOfLogits) and isinstance(y, Targets)
    grid = weigh_parts(token_grid(len(ids), x.dtype), log_weight, parts)
    _, states = model.flow.trajectory(x, grid)
    forward = Forward(states[:-1], states[-1], grid)
    return -_gradients_of_rows(batches, loss.loss, model, forward, y).T


def _gradients_after(
    batches: Float[Array, "batches rows queries"],
    prefix: ReadPrefix,
    node: Int[Array, ""],
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets,
    parts: Int[Array, " length"],
) -> Float[Array, "length _"]:
    """Return minus the mask gradients of each row at one of the log weights of a prefix.

    The prefix was read with its states at each of them, of which `node` is the number; the rest of
    the context is read here.
    """
    assert isinstance(loss.loss, LossOfLogits) and prefix.states is not None
    log_weight, caches, states = jax.tree.map(
        lambda leaf: leaf[node], (prefix.log_weights, prefix.caches, prefix.states)
    )
    grid = weigh_parts(token_grid(len(ids), states.dtype), log_weight, parts)
    rest = pass_rest(model, prefix, caches, ids, grid)
    put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=prefix.length)
    # The loss reads the last states of the rest alone.
    last = put(jnp.zeros_like(states[0]), rest.state, axis=0)
    forward = Forward(put(states, rest.states, axis=1), last, grid)
    return -_gradients_of_rows(batches, loss.loss, model, forward, y).T


class Forward(NamedTuple):
    """A pass forward: the states before each layer, the last ones, and the weighted grid."""

    states: Float[Array, "depth length width"]
    last: State
    grid: CellGrid


def _in_batches(rows: Float[np.ndarray, "rows queries"]) -> Float[np.ndarray, "batches b queries"]:
    """Split rows into batches of one size, with rows of zeros up to a multiple of `AT_ONCE`."""
    batches = -(-len(rows) // ROWS)
    size = -(-len(rows) // batches)
    size += -size % AT_ONCE if size > 1 else 0
    filled = np.pad(rows, [(0, batches * size - len(rows)), (0, 0)])
    return filled.reshape(batches, size, -1)


def _gradients_of_rows(
    batches: Float[Array, "batches rows queries"],
    loss: LossOfLogits,
    model: CausalLM,
    forward: Forward,
    y: Targets,
) -> Float[Array, "_ length"]:
    """Differentiate each row's loss in the log weights of the grid, after one forward pass."""
    flow = model.flow
    states, last, grid = forward
    log_weights = grid.log_weights
    assert log_weights is not None

    def terminal(row):
        """Compute the gradient of one row's loss in the last states."""
        total_weight, targets = with_query_weights(y, row)
        return total_weight * jax.grad(loss.terminal, argnums=1)(model, last, targets)

    def backward(carry, layer, state):
        """Pull a batch's covectors back through one layer and add its gradients."""

        def transition(state, log_weights):
            """Apply the layer with these log weights."""
            return flow.transition(layer, state, replace(grid, log_weights=log_weights))

        covectors, gradients = carry
        pull = jax.vjp(transition, state, log_weights)[1]
        covectors, layer_gradients = jax.lax.map(
            pull, covectors, batch_size=min(AT_ONCE, len(covectors))
        )
        return (covectors, gradients + layer_gradients), None

    def batch_gradients(rows):
        """Compute the gradients of one batch of rows in the log weights."""
        rows = cut_rows(rows, y)
        start = jax.lax.map(terminal, rows), jnp.zeros((rows.shape[0], len(last)), last.dtype)
        return flow.scan(backward, start, states, reverse=True)[0][1]

    return jax.lax.map(batch_gradients, batches).reshape(-1, len(last))
