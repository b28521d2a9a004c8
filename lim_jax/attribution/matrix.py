"""What each part of an answer came from: scores of its parts by the context's positions.

The loss of an answer is a sum over its tokens, so the mask gradients of its parts sum to its own.
They take one pass forward and one back each, together: a layer is fetched once for all of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import require
from lim_jax.attribution.methods import METHODS, mask_rule
from lim_jax.attribution.segments import FIRST, Segment, document_numbers
from lim_jax.density.adjoints import LossOfIds
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Grid
from lim_jax.models.causal import CausalLM, LossOfLogits, as_loss_of_logits
from lim_jax.models.ids import scores_of_ids
from lim_jax.network.slots import State
from lim_jax.prompts.contexts import Context
from lim_jax.results.tables import FILES, write_table

ROWS = 16  # parts of an answer whose covectors are in memory together
AT_ONCE = 2  # of these that go through a layer together


class PartScores(NamedTuple):
    """Scores of parts of an answer by position, positive where it speaks for the part."""

    answer: Sequence[Segment]
    documents: Sequence[Segment]
    by_position: Float[np.ndarray, "answer length"]

    @property
    def scores(self) -> Float[np.ndarray, "answer documents"]:
        """The sums over the places of each part of the documents."""
        columns = [self.by_position[:, part.places].sum(axis=1) for part in self.documents]
        return np.stack(columns, axis=1) if columns else self.by_position[:, :0]


def part_scores(
    model: CausalLM,
    context: Context,
    answer: Sequence[Segment],
    documents: Sequence[Segment],
    loss: LossOfLogits = CausalLM.margin_loss,
    method: str = "mask-gradient",
    **run: Any,
) -> PartScores:
    """The mask gradients of parts of an answer, as `methods.mask_gradient`, or their paths.

    Parts are of `segments`; `run` are checkpoint and progress of `models.ids.scores_of_ids`.
    """
    require(len(answer) > 0, "answer", got="no parts", expected="at least one",
            cure="Cut it by answer_segments.")  # fmt: skip
    weights = np.zeros((len(answer), context.length))
    for row, segment in zip(weights, answer, strict=True):
        row[segment.places] = context.weights[segment.places]
    rows = weights[:, np.flatnonzero(context.weights)].astype(model.embedding.dtype)
    chosen = _in_batches(rows), mask_rule(method).T.astype(rows.dtype)
    scores = jax.tree_util.Partial(_mask_gradients, *jax.device_put(chosen))
    numbers, window, asked = document_numbers(context), [context.window], [context.asked]
    (columns,) = scores_of_ids(scores, model, window, ask=asked, loss=loss, parts=[numbers], **run)
    # On a path come in the documents alone; a derivative has every position but the first.
    scored = numbers >= 0 if METHODS[method].adds_up else numbers != FIRST
    return PartScores(answer, documents, np.where(scored, columns.T[: len(answer)], 0))


def write_matrix(scores: PartScores, path: Path) -> None:
    """Write a row for each part of the answer and each of the documents."""
    rows = [
        (row, answer.text, column, part.within, part.text, part.places.size, score)
        for row, answer in enumerate(scores.answer)
        for column, (part, score) in enumerate(
            zip(scores.documents, scores.scores[row].tolist(), strict=True)
        )
    ]
    write_table(path, FILES["matrix.csv"], rows)


def _in_batches(rows: Float[np.ndarray, "rows queries"]) -> Float[np.ndarray, "batches b queries"]:
    """Rows in batches of one size, filled up with zeros to a multiple of `AT_ONCE`, but for one."""
    batches = -(-len(rows) // ROWS)
    size = -(-len(rows) // batches)
    size += -size % AT_ONCE if size > 1 else 0
    filled = np.pad(rows, [(0, batches * size - len(rows)), (0, 0)])
    return filled.reshape(batches, size, -1)


def _mask_gradients(
    batches: Float[Array, "batches rows queries"],
    nodes: Float[Array, "nodes 2"],
    loss: LossOfIds,
    model: CausalLM,
    ids: Any,
    y: Any,
    parts: Any,
) -> Float[Array, "length _"]:
    """Minus the derivatives at the log weight of each node, summed by the nodes' shares."""
    x, ask = loss.embed(model, ids, y), as_loss_of_logits(loss.loss)

    def at(node):
        log_weights = jnp.where(parts >= 0, node[0], 0)
        grid = token_grid(x.shape[0], x.dtype).weighted(log_weights, parts)
        return node[1] * _gradients(batches, ask, model, x, y, grid)

    return -jax.lax.map(at, nodes).sum(axis=0).T


def _gradients(
    batches: Float[Array, "batches rows queries"],
    ask: LossOfLogits,
    model: CausalLM,
    x: State,
    y: Any,
    grid: Grid,
) -> Float[Array, "_ length"]:
    """The derivatives in the grid's log weights, of losses with other weights of the queries."""
    flow, log_weights = model.flow, grid.log_weights
    states = flow.trajectory(x, grid).states

    def terminal(row):
        # The loss is linear in the weights, but takes those of sum one.
        whole = row.sum()
        some = jnp.where(whole > 0, row / jnp.where(whole > 0, whole, 1), y.weights)
        of_some = y._replace(weights=some)
        return whole * jax.grad(ask.terminal, argnums=1)(model, states[-1], of_some)

    def backward(carried, layer, state):
        def transition(state, log_weights):
            return flow.transition(layer, state, replace(grid, log_weights=log_weights))

        covectors, gradients = carried
        pull = jax.vjp(transition, state, log_weights)[1]
        covectors, of_layer = jax.lax.map(pull, covectors, batch_size=min(AT_ONCE, len(covectors)))
        return (covectors, gradients + of_layer), None

    def of_batch(rows):
        rows = jnp.pad(rows, [(0, 0), (0, y.weights.shape[0] - rows.shape[1])])
        start = jax.lax.map(terminal, rows), jnp.zeros((rows.shape[0], x.shape[0]), x.dtype)
        return flow.scan(backward, start, states[:-1], reverse=True)[0][1]

    return jax.lax.map(of_batch, batches).reshape(-1, x.shape[0])
