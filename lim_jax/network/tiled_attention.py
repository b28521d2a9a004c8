r"""Causal attention tile by tile: the dense formula's numbers in memory linear in the length.

On a `CellGrid` prefix weights are known without a matrix. Rows are normalised as they grow (the
running maximum and sum of Milakov and Gimelshein, 2018), and their log-sum-exp is kept:

.. math:: \ell_i = \log\sum_j W_{ij}\,e^{s_{ij}}, \qquad A_{ij} = W_{ij}\,e^{s_{ij} - \ell_i},
          \qquad o_i = \sum_j A_{ij} v_j.

The derivative is made of the same tiles, by two linear maps at the point
:math:`(q, k, v, o, \ell)`. The *push* takes tangents to those of outputs and log-sum-exps,

.. math:: \dot\ell_i = \sum_j A_{ij}\,\dot s_{ij}, \qquad
          \dot o_i = \sum_j A_{ij}(\dot s_{ij}\,v_j + \dot v_j) - \dot\ell_i\,o_i.

The *pull*, its transpose, takes the covectors :math:`\bar o_i` and :math:`\bar\ell_i` of these to

.. math:: h_i = \bar\ell_i - \langle\bar o_i, o_i\rangle, \qquad
          e_{ij} = A_{ij}(\langle\bar o_i, v_j\rangle + h_i), \\ \bar q_i = \sum_j e_{ij} k_j, \quad
          \bar k_j = \sum_i e_{ij} q_i, \quad \bar v_j = \sum_i A_{ij} \bar o_i.

Where keys have log weights (`Grid.weighted`) :math:`u_j` is added to :math:`s_{ij}`, after any cap,
and its covector is :math:`\bar u_j = \sum_i e_{ij}`.

Only :math:`o` and :math:`\ell` are kept for either; JAX differentiates both again. On an NVIDIA GPU
the outputs and the pull may be those of a fused kernel (`cudnn_attention`).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Shaped

from lim_jax._checks import require_floats
from lim_jax._linear import (
    batched_primitive,
    bind_at,
    change_setting_on,
    define_jvp,
    replace_on,
    transpose_pair,
)
from lim_jax._precision import accumulator
from lim_jax._products import matmul
from lim_jax.grid.cells import CellGrid
from lim_jax.grid.measure import Grid, require_on_grid
from lim_jax.network.caps_and_sinks import PLAIN, Shaping, capped
from lim_jax.network.cudnn_attention import outputs_or, pulled_or
from lim_jax.network.tiles import (
    Place,
    PositionArrays,
    Tiling,
    each_vector,
    in_groups,
    over_tiles,
    position_arrays,
    tiling,
)

ATTENTION_OUTPUTS = "attention outputs"


def blocked_attention(
    query: Float[Array, "length size"],
    key: Float[Array, "length size"],
    value: Float[Array, "length features"],
    grid: CellGrid,
    shaping: Shaping = PLAIN,
) -> Float[Array, "length features"]:
    """Compute one head of causal attention tile by tile: `attention.causal_attention` at length."""
    arrays = jax.tree.leaves(position_arrays(grid))
    return tiled_attention(query, key, value, *arrays, tiling=tiling(grid), shaping=shaping)


def tiled_attention(
    query: Float[Array, "here size"],
    key: Float[Array, "here size"],
    value: Float[Array, "here features"],
    *beside: Shaped[Array, " here"],
    tiling: Tiling,
    shaping: Shaping = PLAIN,
) -> Float[Array, "here features"]:
    """Compute `blocked_attention` of all positions, or of one device's in a ring."""
    scaled = query / math.sqrt(query.shape[1])
    tiling = tiling._replace(cap=shaping.cap)
    features, log_total = bind_at(_attention, [scaled, key, value, *beside], [], tiling)
    if shaping.sink is not None:
        features *= shaping.share_left(log_total[:, None], tiling.grid)
    return features.astype(value.dtype)


def require_heads(query: Array, key: Array, grid: Grid, *value: Array) -> None:
    """Raise ValueError where queries, keys and values fit neither the grid nor one another."""
    require_on_grid(query, grid, "query", "length size")
    require_floats(key, "key", "length size", length=grid.size, size=query.shape[1])
    for array in value:
        require_on_grid(array, grid, "value", "length features")


class Row(NamedTuple):
    """The unnormalised outputs of a row block so far, their sums, and the highest scores."""

    features: Float[Array, "group *blocks tile features"]
    total: Float[Array, "group *blocks tile"]
    highest: Float[Array, "group *blocks tile"]


class KeyWeights(NamedTuple):
    r"""The log weights :math:`\log\Delta p_j + u_j`; the second do not count within a part."""

    log_weight: Float[Array, "group *blocks tile"]
    mask: Float[Array, "group *blocks tile"] | None
    parts: Int[Array, "group *blocks tile"] | None

    def counted(self, tile: Float[Array, "group rows tile"], place: Place) -> Array:
        """Return a tile, or one row for all, with zeros where rows see keys of their own part."""
        if self.parts is None:
            return tile
        assert place.parts is not None
        same_part = place.parts[:, :, None] == self.parts[:, None, :]
        return jnp.where(same_part & (self.parts >= 0)[:, None, :], 0, tile)


def _key_weights(beside: PositionArrays, tiling: Tiling, dtype: jnp.dtype) -> KeyWeights:
    """Return the log weights of keys, by the grid's cells and the mask."""
    mask = beside.log_weights
    mask = None if mask is None else mask.astype(dtype)
    return KeyWeights(tiling.log_weights(dtype), mask, beside.parts)


@in_groups
def _attend(points, _, tiling):
    r"""Compute outputs :math:`o` and log-sum-exps :math:`\ell`; queries come scaled."""
    query, key, value, *arrays = points
    beside = tiling.named(arrays)
    dtype = accumulator(query.dtype)

    def grow(row, _, query, column, place):
        """Add one tile to the outputs and sums of its rows, by an online softmax."""
        key, value, key_weights = column
        scores = _mask_scores(capped(matmul(query, key.mT), tiling.cap), key_weights, place, tiling)
        highest = jnp.maximum(row.highest, _highest(scores))
        mass = jnp.exp(scores - highest[..., None])
        shrunk = jnp.exp(row.highest - highest)
        grown = Row(
            row.features * shrunk[..., None] + matmul(mass.astype(value.dtype), value),
            row.total * shrunk + mass.sum(axis=-1),
            highest,
        )
        return grown, ()

    empty = Row(
        jnp.zeros(value.shape, dtype),
        jnp.zeros(value.shape[:-1], dtype),
        # Finite: a row that sees nothing of its first tiles must not take infinity from infinity.
        jnp.full(value.shape[:-1], jnp.finfo(dtype).min, dtype),
    )
    columns = key, value, _key_weights(beside, tiling, dtype)
    row, _ = over_tiles(grow, query, columns, empty, (), beside, tiling)
    return row.features / row.total[..., None], row.highest + jnp.log(row.total)


def _slope(points, tangents, apply):
    """Compute the derivative of attention by `_push`, from what the forward pass saved."""
    features, log_total = checkpoint_name(apply(_attention, points, []), ATTENTION_OUTPUTS)
    point = *points[:3], features, log_total, *points[3:]
    # Numbers of parts and starts are whole, and do not move.
    moving = [tangent for tangent in tangents if tangent.dtype != jax.dtypes.float0]
    return (features, log_total), tuple(apply(_push, point, moving))


@in_groups
def _pushed_sums(points, vectors, tiling):
    r"""Compute the sums :math:`\sum_j A_{ij}(\dot s_{ij}v_j + \dot v_j)` and :math:`\dot\ell_i`.

    :math:`\dot s_{ij}` is the sum of a query's and a key's part (`eq:head-score-variation`).
    """
    query, key, value, log_total, *arrays = points
    beside = tiling.named(arrays)
    dtype = log_total.dtype

    def add(row_sums, _, row, column, place):
        """Add one tile's terms to the sums of its rows."""
        query, log_total, query_slopes = row
        key, value, key_weights, *column_slopes = column
        weights, moving = _weights(query, key, key_weights, log_total, place, tiling)
        value_weights = weights.astype(value.dtype)

        def push(tangent):
            """Compute the terms of one tangent."""
            query_slope, key_slope, value_slope, *mask_slope = tangent
            score_slope = moving * (matmul(query_slope, key.mT) + matmul(query, key_slope.mT))
            for slope in mask_slope:  # not capped, as scores are
                score_slope += weights * key_weights.counted(slope.astype(dtype)[:, None, :], place)
            features = matmul(score_slope.astype(value.dtype), value) + matmul(
                value_weights, value_slope
            )
            return features, score_slope.sum(axis=-1)

        terms = each_vector(push, (query_slopes, *column_slopes))
        return jax.tree.map(jnp.add, row_sums, terms), ()

    query_slopes, *column_slopes = vectors
    shape = query_slopes.shape[:-1]
    empty = jnp.zeros((*shape, value.shape[-1]), dtype), jnp.zeros(shape, dtype)
    rows = query, log_total, query_slopes
    columns = key, value, _key_weights(beside, tiling, dtype), *column_slopes
    return over_tiles(add, rows, columns, empty, (), beside, tiling)[0]


def _push_forward(points, vectors, tiling):
    r"""Compute :math:`\dot o_i` (`eq:attention-first-variation-schematic`), :math:`\dot\ell_i`."""
    query, key, value, outputs, log_total, *arrays = points
    point = query, key, value, log_total, *arrays
    sums, log_slopes = _pushed_sums(point, vectors, tiling)
    return [sums - log_slopes[..., None] * outputs[:, None], log_slopes]


@in_groups
def _pulled_sums(points, vectors, tiling):
    r"""Compute covectors :math:`\bar q_i, \bar k_j, \bar v_j`, given :math:`\bar o_i, h_i`."""
    query, key, value, log_total, *arrays = points
    beside = tiling.named(arrays)
    dtype = log_total.dtype
    masks = [] if beside.log_weights is None else [beside.log_weights]

    def add(row_sums, column_sums, row, column, place):
        """Add one tile's terms to the covectors of its rows and columns."""
        query, query_transposed, log_total, *row_covectors = row
        key, value, key_weights = column
        weights, moving = _weights(query, key, key_weights, log_total, place, tiling)
        value_weights = weights.astype(value.dtype)

        def pull(covector):
            """Compute the terms of one covector."""
            g, g_transposed, h = covector
            slopes = matmul(g, value.mT) + h[..., None]
            e = (moving * slopes).astype(key.dtype)
            row_sums = matmul(e, key)
            # Sums over rows into (size, tile): on a CPU three times as fast as into (tile, size).
            column_sums = matmul(query_transposed, e), matmul(g_transposed, value_weights)
            mask_sums = [key_weights.counted(weights * slopes, place).sum(axis=1) for _ in masks]
            return row_sums, (*column_sums, *mask_sums)

        return jax.tree.map(
            jnp.add, (row_sums, column_sums), each_vector(pull, tuple(row_covectors))
        )

    covectors = vectors[0].astype(value.dtype)
    slopes = vectors[1]
    *shape, tile = slopes.shape
    query_sums = jnp.zeros((*shape, tile, query.shape[-1]), dtype)
    key_sums = jnp.zeros((*shape, key.shape[-1], tile), dtype)
    value_sums = jnp.zeros((*shape, value.shape[-1], tile), dtype)
    mask_sums = [jnp.zeros((*shape, tile), dtype) for _ in masks]
    column_sums = (key_sums, value_sums, *mask_sums)
    # Transposed here once, not in every tile of a row.
    rows = query, query.mT, log_total, covectors, covectors.mT, slopes
    columns = key, value, _key_weights(beside, tiling, dtype)
    query_sums, column_sums = over_tiles(
        add, rows, columns, query_sums, column_sums, beside, tiling
    )
    key_sums, value_sums, *mask_sums = column_sums
    sums = query_sums, key_sums.mT, value_sums.mT, *mask_sums
    primals = query, key, value, *masks
    return tuple(x.astype(primal.dtype) for x, primal in zip(sums, primals, strict=True))


def _pull_back(points, vectors, tiling):
    r"""Compute covectors :math:`\bar q_i, \bar k_j, \bar v_j` from :math:`\bar o_i, \bar\ell_i`."""
    query, key, value, outputs, log_total, *arrays = points
    covectors, log_covectors = vectors
    slopes = log_covectors - jnp.sum(covectors * outputs[:, None], axis=-1)
    point = query, key, value, log_total, *arrays
    return _pulled_sums(point, (covectors, slopes), tiling)


_attention = batched_primitive("attention", _attend)
_push, _pull = transpose_pair(("attention_push", _push_forward), ("attention_pull", _pull_back))
define_jvp(_attention, _slope)
for _primitive in (_attention, _push, _pull):
    # Wide for an accelerator and narrow for a CPU, whatever the machine is that traced them.
    change_setting_on(None, _primitive, lambda tiling: tiling._replace(wide=True))
    change_setting_on("cpu", _primitive, lambda tiling: tiling._replace(wide=False))
replace_on("cuda", _attention, outputs_or(_attend))
replace_on("cuda", _pull, pulled_or(_pull_back))


def _weights(query, key, key_weights, log_total, place, tiling):
    """Return a tile's attention weights, plain and times the derivative of capped scores."""
    products = capped(matmul(query, key.mT), tiling.cap)
    scores = _mask_scores(products, key_weights, place, tiling)
    weights = jnp.exp(scores - log_total[..., None])
    if tiling.cap is None:
        return weights, weights
    return weights, weights * (1 - (products / tiling.cap) ** 2)


def _highest(scores):
    """Return the highest score of each row; NaN may be ignored, as the exponential returns it."""
    if scores.dtype != jnp.float64:
        return scores.max(axis=-1)
    # On a CPU XLA takes three times as long for maxima in float64 as for what compares.
    lowest = jnp.array(-jnp.inf, scores.dtype)
    return jax.lax.reduce(scores, lowest, lambda a, b: jnp.where(a > b, a, b), (2,))


def _mask_scores(scores, key_weights, place, tiling: Tiling):
    """Add log weights to the scores of a tile, and mask columns that its rows do not see."""
    scores = scores + key_weights.log_weight[:, None, :]
    if key_weights.mask is not None:
        scores += key_weights.counted(key_weights.mask[:, None, :], place)
    row = place.rows[None, :, None]
    column = place.columns[None, None, :]
    diagonal = scores + math.log(1 - tiling.grid.offset)
    scores = jnp.where(column < row, scores, jnp.where(column == row, diagonal, -jnp.inf))
    if place.starts is None:
        return scores
    return jnp.where(place.starts[:, :, None] <= column, scores, -jnp.inf)
