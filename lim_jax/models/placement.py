"""How a network's weights are held: in memory, in half precision, or left in their files."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lim_jax.models.checkpoint import unfilled
from lim_jax.models.reading import Reader, Source, put
from lim_jax.network.field import TransformerField
from lim_jax.network.norms import AcrossHeads, EachHead, LayerNorm, RMSNorm
from lim_jax.weights import FetchedLayers, FetchedRows, LayerSource, Rows, RowSource

Layer = Callable[[int], TransformerField]
ROWS_AT_ONCE = 4096
HALVES = {"BF16": "bfloat16", "F16": "float16"}
NORMS = AcrossHeads | EachHead | LayerNorm | RMSNorm


class WeightPlacement(NamedTuple):
    """Where layers, and matrices of a row for each word, are put as they are read.

    Attributes
    ----------
    layers
        ``layers(layer, depth)``: what `ResidualFlow.layers` are, of a function that reads one.
    rows
        ``rows(read, name, shape)``: an embedding or a head.
    each_layer
        Whether every layer is read as the network is made.
    """

    layers: Callable[[Layer, int], PyTree]
    rows: Callable[[Reader, str, tuple[int, int]], Rows]
    each_layer: bool = True


def stacked(layer: Layer, depth: int) -> TransformerField:
    """Join layers along a leading axis as they are read, so that one at most stands twice."""
    joined, tree = _joined(layer, depth)
    return jax.tree.unflatten(tree, put(*joined))


def whole_rows(read: Reader, name: str, shape: tuple[int, int]) -> Array:
    """All rows of a matrix, in memory."""
    return put(read.whole(name, *shape))[0]


ON_DEVICE = WeightPlacement(stacked, whole_rows)


def on_host(checkpoint: Source, precision: str) -> WeightPlacement:
    """All weights in the host's memory, matrices in half precision, norms and vectors in full.

    Biases are vectors, also where they stand by heads or by experts.
    """
    told = fingerprint(checkpoint, precision)

    def layers(layer: Layer, depth: int) -> FetchedLayers:
        joined, tree = _joined(lambda index: _halved(layer(index), precision), depth)

        def one(index: int) -> TransformerField:
            return jax.tree.unflatten(tree, [leaf[index] for leaf in joined])

        return FetchedLayers(told, LayerSource(one, depth))

    def rows(read: Reader, name: str, shape: tuple[int, int]) -> FetchedRows:
        some, table = read.rows(name, *shape), unfilled(shape, precision)
        for start in range(0, shape[0], ROWS_AT_ONCE):
            part = slice(start, min(start + ROWS_AT_ONCE, shape[0]))
            table[part] = some(part)
        return FetchedRows(told, RowSource(table.__getitem__, shape, precision))

    return WeightPlacement(layers, rows)


def as_published(checkpoint: Source, dtype: str) -> WeightPlacement:
    """In memory where all matrices are of one precision, full or half; others in their files."""
    found = checkpoint.precisions
    if found <= {"F64", "F32"}:
        return ON_DEVICE
    half = HALVES.get(*found) if len(found) == 1 else None
    return offloaded(checkpoint, dtype) if half is None else on_host(checkpoint, half)


def offloaded(checkpoint: Source, dtype: str) -> WeightPlacement:
    """All weights in their files, but for those of the layer that is computed with."""
    told = fingerprint(checkpoint, dtype)

    def rows(read: Reader, name: str, shape: tuple[int, int]) -> FetchedRows:
        return FetchedRows(told, RowSource(read.rows(name, *shape), shape, dtype))

    def layers(layer: Layer, depth: int) -> FetchedLayers:
        return FetchedLayers(told, LayerSource(layer, depth))

    return WeightPlacement(layers, rows, each_layer=False)


def fingerprint(checkpoint: Source, precision: str) -> Float[Array, " numbers"]:
    """Numbers that tell files from others, by their names, sizes and times, and their options."""
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in checkpoint.paths]
    told = sha256(f"{stats} {dict(checkpoint.config)} {precision}".encode()).digest()
    return jnp.asarray(np.frombuffer(told, np.uint8), float)


def _halved(layer: TransformerField, precision: str) -> Any:
    def is_norm(node: Any) -> bool:
        return isinstance(node, NORMS)

    def half(path: tuple, node: Any) -> Any:
        # A head's bias is a row of two axes: names alone tell it from a matrix.
        if is_norm(node) or node.ndim < 2 or str(path[-1]).endswith("bias"):
            return node
        return np.asarray(node).astype(precision)

    return jax.tree.map_with_path(half, layer, is_leaf=is_norm)


def _joined(layer: Layer, depth: int) -> tuple[list[np.ndarray], Any]:
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), layer(0))
    leaves, tree = jax.tree.flatten(like)
    joined = [unfilled((depth, *leaf.shape), leaf.dtype) for leaf in leaves]
    for index in range(depth):
        for rows, leaf in zip(joined, jax.tree.leaves(layer(index)), strict=True):
            rows[index] = leaf
    return joined, tree
