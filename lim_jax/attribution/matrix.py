"""What each part of an answer came from: scores of its parts by the context's positions.

The loss of an answer is a sum over its tokens, so the mask gradients of its parts sum to its own.
They take one pass forward and one back each, together: a layer is fetched once for all of them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import require
from lim_jax.attribution.methods import LEAST, METHODS, MOST_NODES, mask_rules, unresolved
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
    """Scores of parts of an answer by position, positive where it speaks for the part.

    `given` is what all documents gave each, to which the scores of a path should add up.
    """

    answer: Sequence[Segment]
    documents: Sequence[Segment]
    by_position: Float[np.ndarray, "answer length"]
    given: Float[np.ndarray, " answer"] | None = None

    @property
    def scores(self) -> Float[np.ndarray, "answer documents"]:
        """The sums over the places of each part of the documents."""
        columns = [self.by_position[:, part.places].sum(axis=1) for part in self.documents]
        return np.stack(columns, axis=1) if columns else self.by_position[:, :0]

    @property
    def missed(self) -> str:
        """By how much a path's scores do not add up after the most gradients, in a sentence."""
        if self.given is None:
            return ""
        sums = self.by_position.sum(axis=1)
        far = unresolved(sums, self.given)
        if not far.any():
            return ""
        most = np.abs(sums - self.given)[far].max()
        return (
            f" For {far.sum()} of {far.size} parts of the answer, after {MOST_NODES} gradients, "
            f"scores add up to something else than documents gave, by {most:.2f} at most."
        )


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
    numbers, adds_up = document_numbers(context), METHODS[method].adds_up
    checkpoint, about = run.pop("checkpoint", None), {"parts": [numbers], "loss": loss, **run}
    window, asked = [context.window], [context.asked]

    def measured(name: str, function: Callable[..., Array], *arrays: np.ndarray) -> np.ndarray:
        scores = jax.tree_util.Partial(function, *jax.device_put(arrays))
        kept = checkpoint / name if checkpoint and name else checkpoint
        (columns,) = scores_of_ids(scores, model, window, ask=asked, checkpoint=kept, **about)
        return columns.T

    # On a path come in the documents alone; a derivative has every position but the first.
    scored = numbers >= 0 if adds_up else numbers != FIRST
    by_position, given = np.zeros((len(rows), context.length)), None
    left = np.arange(len(rows))
    for number, rule in enumerate(mask_rules(method)):
        name = f"{rule.shape[1]} gradients" if number else ""
        chosen = _in_batches(rows[left]), rule.T.astype(rows.dtype)
        found = measured(name, _mask_gradients, *chosen)[: len(left)]
        by_position[left] = np.where(scored, found, 0)
        if not adds_up:
            break
        if given is None:
            ends = measured("given", _path_ends, rows)
            given = ends[:, 0] - ends[:, 1]
        left = left[unresolved(by_position[left].sum(axis=1), given[left])]
        if not left.size:
            break
    return PartScores(answer, documents, by_position, given)


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


def _path_ends(
    rows: Float[Array, "rows queries"],
    loss: LossOfIds,
    model: CausalLM,
    ids: Any,
    y: Any,
    parts: Any,
) -> Float[Array, "2 rows"]:
    """Every row's loss where the documents weigh next to nothing, and in the whole context."""
    x, ask = loss.embed(model, ids, y), as_loss_of_logits(loss.loss)

    def at(log_weight):
        log_weights = jnp.where(parts >= 0, log_weight, 0)
        end = model.flow(x, token_grid(x.shape[0], x.dtype).weighted(log_weights, parts))
        return jax.lax.map(lambda row: _loss_of_row(ask, model, end, row, y), _padded(rows, y))

    return jax.lax.map(at, jnp.asarray([math.log(LEAST), 0], x.dtype))


def _padded(rows: Float[Array, "rows _"], y: Any) -> Float[Array, "rows queries"]:
    return jnp.pad(rows, [(0, 0), (0, y.weights.shape[0] - rows.shape[1])])


def _loss_of_row(
    ask: LossOfLogits, model: CausalLM, end: State, row: Float[Array, " queries"], y: Any
) -> Float[Array, ""]:
    """The loss by a row's weights, in which it is linear, though it takes those of sum one."""
    whole = row.sum()
    some = jnp.where(whole > 0, row / jnp.where(whole > 0, whole, 1), y.weights)
    return whole * ask.terminal(model, end, y._replace(weights=some))


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
        return jax.grad(_loss_of_row, argnums=2)(ask, model, states[-1], row, y)

    def backward(carried, layer, state):
        def transition(state, log_weights):
            return flow.transition(layer, state, replace(grid, log_weights=log_weights))

        covectors, gradients = carried
        pull = jax.vjp(transition, state, log_weights)[1]
        covectors, of_layer = jax.lax.map(pull, covectors, batch_size=min(AT_ONCE, len(covectors)))
        return (covectors, gradients + of_layer), None

    def of_batch(rows):
        rows = _padded(rows, y)
        start = jax.lax.map(terminal, rows), jnp.zeros((rows.shape[0], x.shape[0]), x.dtype)
        return flow.scan(backward, start, states[:-1], reverse=True)[0][1]

    return jax.lax.map(of_batch, batches).reshape(-1, x.shape[0])
