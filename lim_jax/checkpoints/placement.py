"""Where a network's weights are: on the device, on the host in half precision, or in files."""

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lim_jax.checkpoints.checkpoint import unfilled
from lim_jax.checkpoints.tensor_reader import Reader, Source
from lim_jax.network.layer_kinds import LayersByKind
from lim_jax.weights import (
    FetchedLayers,
    FetchedRows,
    HalfLayers,
    HalfRows,
    LayerSource,
    Rows,
    RowSource,
)

Layer = Callable[[int], Any]
ROWS_AT_ONCE = 1024
HALVES = {"BF16": "bfloat16", "F16": "float16"}
MIXED = "mixed"
# The fields of layers that hold matrices, which half precision is for. All else stays whole: norms
# of any class, biases, and taps and rates, which are few and into which multipliers are put.
# fmt: off
MATRICES = frozenset((
    "query", "key", "value", "output",  # of attention, and of what reads a state
    "query_down", "rope_key",  # of latent attention
    "inner", "outer", "gate", "up", "down", "inward", "outward",  # of each token
    "router", "shared_gate",  # of mixtures of experts
    "gate_down", "rate_down", "read", "write",  # of states
))
# fmt: on


class WeightPlacement(NamedTuple):
    """Where layers, and matrices of a row for each word, are put as they are read.

    `each_layer` says whether all layers are read at once; matrices are kept in a half `precision`.
    """

    layers: Callable[[Layer, int], PyTree]
    rows: Callable[[Reader, str, tuple[int, int]], Rows]
    each_layer: bool = True
    precision: str | None = None


def place_by_kind(placement: WeightPlacement, layer: Layer, order: Sequence[int]) -> LayersByKind:
    """Place layers of several kinds; `order` has the number of each layer's kind."""

    def place_kind(kind: int) -> PyTree:
        """Place all layers of one kind."""
        numbers = [number for number, layer_kind in enumerate(order) if layer_kind == kind]
        return placement.layers(lambda position: layer(numbers[position]), len(numbers))

    return LayersByKind(tuple(place_kind(kind) for kind in range(max(order) + 1)), tuple(order))


def on_device(precision: str | None = None) -> WeightPlacement:
    """Return a placement on the default device; `precision` is a half precision of matrices."""

    def layers(layer: Layer, depth: int) -> Any:
        """Read all layers into arrays with a layer axis, and put these on the device."""
        leaves, tree = _join(lambda index: in_bits(layer(index), precision), depth)
        layers = jax.tree.unflatten(tree, jax.device_put(leaves))
        return layers if precision is None else HalfLayers(layers, precision)

    def rows(read: Reader, name: str, shape: tuple[int, int]) -> Rows:
        """Read a matrix, and put it on the device."""
        if precision is None:
            return jax.device_put(_table(read, name, shape, read.dtype))
        table = _table(read, name, shape, precision)
        return HalfRows(jax.device_put(table.view(np.uint16)), precision)

    return WeightPlacement(layers, rows, precision=precision)


ON_DEVICE = on_device()


def host_memory(checkpoint: Source, precision: str) -> WeightPlacement:
    """Return a placement in host memory: matrices in half precision, norms and vectors in full."""
    identity = fingerprint(checkpoint, precision)

    def layers(layer: Layer, depth: int) -> FetchedLayers:
        """Read all layers into host memory, from which each is fetched as it is used."""
        leaves, tree = _join(lambda index: halve(layer(index), precision), depth)

        def read(index: int) -> Any:
            """Return one layer of those in memory."""
            return jax.tree.unflatten(tree, [leaf[index] for leaf in leaves])

        return FetchedLayers(identity, LayerSource(read, depth))

    def rows(read: Reader, name: str, shape: tuple[int, int]) -> FetchedRows:
        """Read a matrix into host memory, from which rows are fetched."""
        table = _table(read, name, shape, precision)
        return FetchedRows(identity, RowSource(table.__getitem__, shape, precision))

    return WeightPlacement(layers, rows, precision=precision)


def _table(read: Reader, name: str, shape: tuple[int, int], precision: str) -> np.ndarray:
    """Read a whole matrix in blocks of rows."""
    table = unfilled(shape, precision)
    for part, some in row_blocks(read, name, shape):
        table[part] = some
    return table


def row_blocks(
    read: Reader, name: str, shape: tuple[int, int]
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the rows of a matrix in blocks, each with its slice."""
    rows = read.rows(name, *shape)
    for start in range(0, shape[0], ROWS_AT_ONCE):
        part = slice(start, min(start + ROWS_AT_ONCE, shape[0]))
        yield part, rows(part)


def published_precision(checkpoint: Source) -> str | None:
    """Return the precision of all matrices: None if it is full, ``"mixed"`` if they differ."""
    precisions = checkpoint.precisions
    if precisions <= {"F64", "F32"}:
        return None
    halves = {HALVES.get(precision, MIXED) for precision in precisions}
    return halves.pop() if len(halves) == 1 else MIXED


def offloaded(checkpoint: Source, dtype: str) -> WeightPlacement:
    """Return a placement that leaves weights in their files, from which each layer is fetched."""
    identity = fingerprint(checkpoint, dtype)

    def rows(read: Reader, name: str, shape: tuple[int, int]) -> FetchedRows:
        """Return a matrix whose rows are read from the file as they are used."""
        return FetchedRows(identity, RowSource(read.rows(name, *shape), shape, read.dtype))

    def layers(layer: Layer, depth: int) -> FetchedLayers:
        """Return layers that are read from the files as they are used."""

        def read(index: int) -> Any:
            """Read one layer in row-major order, in the thread that reads ahead."""
            return jax.tree.map(lambda leaf: np.asarray(leaf, order="C"), layer(index))

        return FetchedLayers(identity, LayerSource(read, depth))

    return WeightPlacement(layers, rows, each_layer=False)


def fingerprint(checkpoint: Source, precision: str) -> Float[Array, " numbers"]:
    """Return a hash of the files' names, sizes and times and of their options, as an array."""
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in checkpoint.paths]
    told = sha256(f"{stats} {dict(checkpoint.config)} {precision}".encode()).digest()
    return jnp.asarray(np.frombuffer(told, np.uint8), float)


def in_bits(layer: Any, precision: str | None) -> Any:
    """Return a layer whose matrices are halved and in 16-bit integers; None leaves it unchanged."""
    if precision is None:
        return layer

    def bits(leaf: Any) -> Any:
        """View an array of half precision as integers; return others unchanged."""
        return leaf.view(np.uint16) if leaf.dtype == precision else leaf

    return jax.tree.map(bits, halve(layer, precision))


def halve(layer: Any, precision: str) -> Any:
    """Return a layer with its `MATRICES` in half precision, and the rest unchanged."""

    def half(path: tuple, leaf: Any) -> Any:
        """Convert one leaf to half precision if its field is one of `MATRICES`."""
        field = getattr(path[-1], "name", "")  # an entry of a tuple has none
        return leaf.astype(precision, copy=False) if field in MATRICES else leaf

    return jax.tree.map_with_path(half, layer)


def _join(layer: Layer, depth: int) -> tuple[list[np.ndarray], Any]:
    """Stack all layers along a leading axis as they are read; at most one is in memory twice."""
    joined = []
    tree = None
    for index in range(depth):
        leaves, tree = jax.tree.flatten(layer(index))
        joined = joined or [unfilled((depth, *leaf.shape), leaf.dtype) for leaf in leaves]
        for rows, leaf in zip(joined, leaves, strict=True):
            rows[index] = leaf
        del leaves  # before the next layer is read
    return joined, tree
