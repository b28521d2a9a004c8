"""Losses of the parts of an answer, of one pass: an answer's loss is a sum over its tokens."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax.attribution.method import require_uncut
from lim_jax.attribution.segments import Segment
from lim_jax.density.adjoints import Loss, LossOfIds
from lim_jax.models.causal import CausalLM, LossOfLogits, Targets
from lim_jax.models.foils import Contrast
from lim_jax.models.padding import padded_queries
from lim_jax.network.slots import State
from lim_jax.prompts.contexts import Context


def answer_rows(
    model: CausalLM, context: Context, answer: Sequence[Segment], loss: Loss
) -> Float[np.ndarray, "answer queries"] | None:
    """Return the query weights of each part of the answer: a row for each, over the queries.

    Rows are padded with zeros as the queries of a context are, so that one program serves answers
    of several lengths. None for a loss that is no sum over the answer's tokens, as of a foil: it is
    of the whole answer alone, and ValueError is raised for parts of it.
    """
    if context.contrast is not None or not isinstance(loss, LossOfLogits):
        require_uncut(answer, "as this loss is of all of it")
        return None
    rows = np.zeros((len(answer), context.length))
    for row, segment in zip(rows, answer, strict=True):
        row[segment.positions] = context.weights[segment.positions]
    queries = np.flatnonzero(context.weights)
    padding = padded_queries(queries.size) - queries.size
    return np.pad(rows[:, queries], [(0, 0), (0, padding)]).astype(model.embedding.dtype)


def losses_of_rows(
    rows: Float[Array, "rows _"] | None,
    loss: LossOfIds,
    model: CausalLM,
    x: State,
    y: Targets | Contrast,
) -> Float[Array, " rows"]:
    """Compute the loss of each part of an answer to an embedded context in one forward pass."""
    if rows is None:
        return loss.loss(model, x, y)[None]
    assert isinstance(loss.loss, LossOfLogits) and isinstance(y, Targets)
    return losses_of_state(rows, loss.loss, model, model.last_state(x, y), y)


def losses_of_state(
    rows: Float[Array, "rows _"], loss: LossOfLogits, model: CausalLM, state: State, y: Targets
) -> Float[Array, " rows"]:
    """Compute the loss of each part of an answer, of the last states with the queries."""
    logits = model.logits_of_queries(state, y)

    def row_loss(row: Float[Array, " queries"]) -> Float[Array, ""]:
        """Compute the loss of one row of query weights, times the row's total weight."""
        total_weight, targets = with_query_weights(y, row)
        return total_weight * loss.from_logits(logits, targets)

    return jax.lax.map(row_loss, cut_rows(rows, y))


def cut_rows(rows: Float[Array, "rows _"], y: Targets) -> Float[Array, "rows queries"]:
    """Cut padded query weights to as many as the targets have, which a short context limits."""
    return rows[:, : y.weights.shape[0]]


def with_query_weights(
    y: Targets, row: Float[Array, " queries"]
) -> tuple[Float[Array, ""], Targets]:
    """Return the sum of a row of query weights, and targets with these weights over that sum.

    A loss is linear in the weights, but takes those of sum one.
    """
    total_weight = row.sum()
    weights = jnp.where(
        total_weight > 0, row / jnp.where(total_weight > 0, total_weight, 1), y.weights
    )
    return total_weight, y._replace(weights=weights)
