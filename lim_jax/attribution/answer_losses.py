"""Losses of the parts of an answer, of one pass: an answer's loss is a sum over its tokens."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax.attribution.method import require_whole
from lim_jax.attribution.segments import Segment
from lim_jax.density.adjoints import Loss, LossOfIds
from lim_jax.models.causal import CausalLM, LossOfLogits, Targets
from lim_jax.models.foils import Contrast
from lim_jax.models.ids import padded_length
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
        require_whole(answer, "as this loss is of all of it")
        return None
    rows = np.zeros((len(answer), context.length))
    for row, segment in zip(rows, answer, strict=True):
        row[segment.places] = context.weights[segment.places]
    queries = np.flatnonzero(context.weights)
    padding = padded_length(queries.size) - queries.size
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
    of_logits = loss.loss
    assert isinstance(of_logits, LossOfLogits) and isinstance(y, Targets)
    logits = model.logits_of_queries(model.last_state(x, y), y)

    def of_row(row: Float[Array, " queries"]) -> Float[Array, ""]:
        whole, asked = of_query_weights(y, row)
        return whole * of_logits.of_logits(logits, asked)

    return jax.lax.map(of_row, rows_of_queries(rows, y))


def rows_of_queries(rows: Float[Array, "rows _"], y: Targets) -> Float[Array, "rows queries"]:
    """Cut padded query weights to as many as the targets have, which a short context limits."""
    return rows[:, : y.weights.shape[0]]


def of_query_weights(y: Targets, row: Float[Array, " queries"]) -> tuple[Float[Array, ""], Targets]:
    """Return the sum of a row of query weights, and targets with these weights over that sum.

    A loss is linear in the weights, but takes those of sum one.
    """
    whole = row.sum()
    weights = jnp.where(whole > 0, row / jnp.where(whole > 0, whole, 1), y.weights)
    return whole, y._replace(weights=weights)
