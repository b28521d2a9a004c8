r"""A step that trains a published model further: on answers, and towards where evidence stands.

What trains are the norms' scales, and the queries' and keys' matrices, of the last layers. Layers
are rows of stacked leaves: those that train are taken out, and put back behind the others before
each pass, so that only they have gradients and moments.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PyTree

from benchmarks.validation.remedies import UNTIL
from benchmarks.validation.retrievers import PlaceScores
from benchmarks.validation.texts import TextBatch
from lim_jax._checks import (
    require,
)
from lim_jax._jit import filter_jit
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Scalar
from lim_jax.loss.losses import autoregressive_cross_entropy, margin_loss
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.tasks.accuracy import decodes_greedily
from lim_jax.training.density_objectives import Penalty, influence_penalty
from lim_jax.training.discrepancy import cross_entropy_discrepancy
from lim_jax.weights import FetchedLayers

OF_ATTENTION = [["attention", name] for name in ("query", "key", "query_bias", "key_bias")]


def trainable(model: CausalLM) -> PyTree[bool]:
    """Tell which leaves train: in the layers the norms' scales, and what makes queries and keys.

    A filter as `equinox.partition` takes it.

    Parameters
    ----------
    model
        Whole, from `models.load`.

    Examples
    --------
    >>> from lim_jax.models import byte_model
    >>> model = byte_model(8, width=4, heads=1, depth=2, key=jax.random.key(0))
    >>> [leaf.shape for leaf in jax.tree.leaves(eqx.filter(model, trainable(model)))]
    [(2, 4), (2, 1, 4, 4), (2, 1, 4, 4), (2, 4)]
    """
    require(
        not isinstance(model.flow.layers, FetchedLayers),
        "model",
        got="layers that are read from their files when needed",
        expected="arrays, which can be trained",
        cure="Load it whole: models.load(path).",
    )

    def trains(path: tuple, leaf: Any) -> bool:
        """Tell whether a leaf is trained: norms' scales, and matrices of attention."""
        names = [entry.name for entry in path if isinstance(entry, jax.tree_util.GetAttrKey)]
        inside = eqx.is_inexact_array(leaf) and names[:2] == ["flow", "layers"]
        return inside and (names[-1] == "scale" or names[-2:-1] + names[-1:] in OF_ATTENTION)

    leaves = jax.tree_util.tree_map_with_path(trains, model)
    require(
        any(jax.tree.leaves(leaves)),
        "model",
        got="layers without norms' scales, queries' or keys' matrices",
        expected="layers with one of these",
        cure="Pass a model with one of them: they are what is trained.",
    )
    return leaves


def trained_rows(model: CausalLM, last: int | None = None) -> PyTree:
    """Return what trains of a model: the last layers' rows of each `trainable` leaf, else None.

    Parameters
    ----------
    model
        Whole, from `models.load`.
    last
        How many layers; None for all.
    """
    part = eqx.filter(model, trainable(model))
    depth = len(jax.tree.leaves(part)[0])
    last = depth if last is None else last
    return jax.tree.map(lambda leaf: leaf[depth - last :], part)


def with_rows(model: CausalLM, rows: PyTree) -> CausalLM:
    """Put `trained_rows` back, behind those of the layers before.

    Examples
    --------
    >>> from lim_jax.models import byte_model
    >>> model = byte_model(8, width=4, heads=1, depth=2, key=jax.random.key(0))
    >>> doubled = jax.tree.map(lambda leaf: 2 * leaf, trained_rows(model, last=1))
    >>> with_rows(model, doubled).flow.layers.attention.norm.scale.tolist()
    [[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]]
    """
    leaves = eqx.filter(model, trainable(model))
    stacked = jax.tree.map(
        lambda leaf, rows_of_leaf: jnp.concatenate(
            [leaf[: len(leaf) - len(rows_of_leaf)], rows_of_leaf]
        ),
        leaves,
        rows,
    )
    return eqx.combine(stacked, model)


def tuning_gradient(
    model: CausalLM,
    rows: PyTree,
    training: TextBatch | None,
    probes: TextBatch | None,
    *,
    strength: Scalar | float = 1.0,
) -> PyTree:
    r"""Compute the gradient of a step, in what trains.

    Of the answers' cross-entropy, and :math:`\beta` times that of the mean over probes of
    :math:`-\log m`, no longer than `remedies.UNTIL`. Here m is the gold record's density of the
    influence on the margin of what the model itself finds the answer's likeliest first word
    (`training.cross_entropy_discrepancy`, `loss.own_margin_loss`): no word of a probe's answer is
    told.

    Parameters
    ----------
    model, rows
        A model, and `trained_rows` in the place of its own.
    training, probes
        Of `text_batch`; None where nothing is learnt of them.
    strength
        :math:`\beta`.
    """
    parts = []
    if training is not None:
        parts.append(jax.grad(_risk)(rows, model, training))
    if probes is not None:
        slope = jax.grad(_penalty)(rows, model, probes)
        scaled = jax.tree.map(lambda leaf: strength * leaf, slope)
        parts.append(optax.clip_by_global_norm(UNTIL).update(scaled, optax.EmptyState())[0])
    return jax.tree.map(lambda *leaves: sum(leaves), *parts)


def _risk(rows: PyTree, model: CausalLM, batch: TextBatch) -> Scalar:
    """Compute the answers' cross-entropy."""
    whole = with_rows(model, rows)
    return jax.vmap(lambda ids, y: whole.loss(whole.embed(ids), y))(batch.ids, batch.y).mean()


def _penalty(rows: PyTree, model: CausalLM, probes: TextBatch) -> Scalar:
    """Compute the mean of minus the logarithm of the gold records' densities, each of its pools."""
    whole = with_rows(model, rows)
    grid = token_grid(probes.ids.shape[1], whole.embedding.dtype)

    def penalty_of_probe(probe: TextBatch) -> Scalar:
        """Compute one probe's distance from its evidence."""
        assert probe.y.positions is not None  # text_batch names them
        targets, places = (part[None, :1] for part in (probe.y.targets, probe.y.positions))
        first = Targets(targets, jnp.ones_like(probe.y.weights)[None, :1], places)
        sizes = probe.pools.sum(axis=1) / probe.pools.sum()
        target = jnp.where(
            jnp.arange(len(sizes), dtype=probe.gold.dtype) == probe.gold, 1 / sizes, 0
        )
        towards_evidence = Penalty(target[None], cross_entropy_discrepancy, pools=probe.pools)
        batch = whole.embed(probe.ids)[None], first
        return influence_penalty(CausalLM.own_margin_loss, whole, batch, grid, towards_evidence)

    return jax.vmap(penalty_of_probe)(probes).mean()


def judge(model: CausalLM, rows: PyTree, rounds: Sequence[TextBatch]) -> PlaceScores:
    """Judge how well a model answers, by gold place.

    Parameters
    ----------
    model, rows
        As in `tuning_gradient`.
    rounds
        Batches of one shape, each of which asks for every record once, in order.
    """
    scores = [_judge_batch(model, rows, batch) for batch in rounds]
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *scores)


@filter_jit
def _judge_batch(model: CausalLM, rows: PyTree, batch: TextBatch) -> PlaceScores:
    whole = with_rows(model, rows)

    def judge_example(ids: Int[Array, " length"], y: Targets) -> PlaceScores:
        """Tell whether a text is answered right, and by what margin and log probability."""
        x = whole.embed(ids)
        grid = token_grid(len(ids), x.dtype)
        logits = whole.readout(whole.flow(x, grid)[y.positions], grid)
        return PlaceScores(
            decodes_greedily(logits, y.targets, y.weights).astype(x.dtype),
            -margin_loss(logits, y.targets, y.weights),
            autoregressive_cross_entropy(logits, y.targets, y.weights),
        )

    return jax.vmap(judge_example)(batch.ids, batch.y)
