"""Weights sharded over devices: which axis of which part, and each device's share as it is read."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from lim_jax._checks import require
from lim_jax.checkpoints.checkpoint import unfilled
from lim_jax.checkpoints.placement import Layer, WeightPlacement, in_bits, row_blocks
from lim_jax.checkpoints.tensor_reader import Reader
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.ring import RingAttention
from lim_jax.weights import HalfLayers, HalfRows, Rows

AXIS = "model"
CONTEXT = "context"

Index = tuple[slice, ...]


def shard(mesh: Mesh, precision: str | None = None) -> WeightPlacement:
    """Return a placement that shards weights along a mesh's axis ``model``; small ones are on all.

    By the `sharded_axes` of a layer's parts; embeddings and heads along their width, since rows are
    read by number. Each process reads all layers, and holds its own devices' part of them.
    """
    require(
        AXIS in mesh.axis_names,
        "mesh",
        got=f"the axes {mesh.axis_names}",
        expected=f"one named {AXIS!r}",
        cure=(
            "Name the axis over which the weights are sharded so; leave the others to examples and "
            "contexts."
        ),
    )

    def layers(layer: Layer, depth: int) -> PyTree:
        """Read all layers, each device's shares alone."""
        layer = _in_ring(layer, mesh) if CONTEXT in mesh.axis_names else layer
        parts = []
        tree = None
        for index in range(depth):
            read = in_bits(layer(index), precision)
            leaves, tree = jax.tree_util.tree_flatten_with_path(read)
            parts = parts or [
                _Parts(mesh, (depth, *leaf.shape), leaf.dtype, _axis(read, path))
                for path, leaf in leaves
            ]
            for part, (_, leaf) in zip(parts, leaves, strict=True):
                part.fill(slice(index, index + 1), leaf[None])
            del read, leaves  # before the next layer is read
        layers = jax.tree.unflatten(tree, [part.array() for part in parts])
        return layers if precision is None else HalfLayers(layers, precision)

    def rows(read: Reader, name: str, shape: tuple[int, int]) -> Rows:
        """Read a matrix, and share its columns among the devices."""
        table = _Parts(mesh, shape, read.dtype if precision is None else "uint16", -1)
        for part, some in row_blocks(read, name, shape):
            table.fill(part, some if precision is None else some.astype(precision).view(np.uint16))
        return table.array() if precision is None else HalfRows(table.array(), precision)

    return WeightPlacement(layers, rows, precision=precision)


def _in_ring(layer: Layer, mesh: Mesh) -> Layer:
    """Return a reader of the same layers, whose attention is a ring along the axis ``context``."""
    ring = RingAttention(mesh, CONTEXT)

    def attends(node: Any) -> bool:
        """Tell whether a node is a causal attention."""
        return isinstance(node, CausalAttention)

    def changed(node: Any) -> Any:
        """Replace the attention of a layer by the ring."""
        return dataclasses.replace(node, attend=ring) if attends(node) else node

    return lambda index: jax.tree.map(changed, layer(index), is_leaf=attends)


class _Parts:
    """What this process's devices hold of one array, to be filled along the first axis."""

    def __init__(self, mesh: Mesh, shape: tuple[int, ...], dtype: Any, axis: int | None):
        """Allocate each device's share of the array, or the whole where shares would be unequal."""
        # Where devices would hold unequal parts they hold all.
        even = axis is not None and shape[axis] % mesh.shape[AXIS] == 0
        names: list[str | None] = [None] * len(shape)
        if axis is not None and even:
            names[axis] = AXIS
        self.shape = shape
        self.sharding = NamedSharding(mesh, PartitionSpec(*names))
        self.of_devices = self.sharding.addressable_devices_indices_map(shape)
        self.buffers = {}
        for index in self.of_devices.values():
            assert index is not None
            if _key(index) not in self.buffers:
                sizes = [len(range(n)[part]) for n, part in zip(shape, index, strict=True)]
                self.buffers[_key(index)] = index, unfilled(tuple(sizes), dtype)

    def fill(self, part: slice, rows: np.ndarray) -> None:
        """Copy some rows into the shares of this process's devices."""
        for index, buffer in self.buffers.values():
            buffer[part] = rows[(slice(None), *index[1:])]

    def array(self) -> Array:
        """Return the whole array, made of each device's share."""
        pieces = [
            jax.device_put(self.buffers[_key(index or ())][1], device)
            for device, index in self.of_devices.items()
        ]
        return jax.make_array_from_single_device_arrays(self.shape, self.sharding, pieces)


def _key(index: Index) -> tuple[tuple[int | None, int | None], ...]:
    """Return a hashable form of the slices of a device's share."""
    return tuple((part.start, part.stop) for part in index)


def _axis(layer: Any, path: Iterable[Any]) -> int | None:
    """Return the axis, counted from the last, along which a part of a layer is sharded, or None."""
    *parents, last = path
    for key in parents:
        layer = getattr(layer, key.name) if hasattr(key, "name") else layer[key.idx]
    return getattr(layer, "sharded_axes", {}).get(last.name)
