"""Layers of several kinds in one network: in any order, and in one scan."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from lim_jax._checks import require
from lim_jax.weights import FetchedLayers, HalfLayers, in_memory

Result = TypeVar("Result")
LayerIndex = Int[Array, "*layers"]


class LayersByKind(eqx.Module):
    """Layers that differ in kind, in place of `ResidualFlow.layers`.

    A kind's program is compiled once, whatever the depth.

    Attributes
    ----------
    kinds
        For each kind its layers, as `ResidualFlow.layers` holds layers of one kind.
    order
        The kind of every layer, from the first to the last, as an index into `kinds`.
    """

    kinds: tuple[PyTree, ...]
    order: tuple[int, ...] = eqx.field(static=True, converter=tuple)

    def __check_init__(self):
        """Raise ValueError unless `order` counts the layers of each kind."""
        counts = [self.order.count(number) for number in range(len(self.kinds))]
        layers = [_depth(kind) for kind in self.kinds]
        agree = all(
            depth is None or depth == count for depth, count in zip(layers, counts, strict=True)
        )
        require(
            agree and sum(counts) == len(self.order) > 0,
            "order",
            got=f"{counts} of each kind",
            expected=f"{layers}, the layers that kinds has",
            cure="Name the kind of every layer by its place in kinds.",
        )

    @property
    def entries(self) -> tuple[Int[Array, " depth"], Int[Array, " depth"]]:
        """For every layer its kind, and its index among the layers of that kind."""
        order = np.array(self.order)
        position = [np.sum(order[:number] == kind) for number, kind in enumerate(order)]
        return jnp.asarray(order), jnp.asarray(np.array(position))

    def call(
        self, function: Callable[[Any], Result], entry: tuple[LayerIndex, LayerIndex]
    ) -> Result:
        """Call a function with one layer; `entry` is that layer's of `entries`."""
        kind, position = entry

        def branch(layers: PyTree) -> Callable[[LayerIndex], Result]:
            """Return a function of a layer's index among those of this kind."""
            return lambda position: function(layer_of(layers, position))

        return jax.lax.switch(kind, [branch(layers) for layers in self.kinds], position)


def layer_of(layers: PyTree, position: LayerIndex) -> Any:
    """Return one of several layers of one kind, in memory."""
    if isinstance(layers, FetchedLayers):
        return layers.layer(position)
    arrays, static = eqx.partition(layers, eqx.is_array)
    return in_memory(eqx.combine(jax.tree.map(lambda leaf: leaf[position], arrays), static))


def select_part(layers: PyTree, part: Callable[[PyTree], PyTree]) -> PyTree:
    """Return one part of several layers, of one kind or of several."""
    if isinstance(layers, LayersByKind):
        parts = tuple(select_part(kind, part) for kind in layers.kinds)
        return LayersByKind(parts, layers.order)
    if isinstance(layers, HalfLayers):
        return HalfLayers(part(layers.layers), layers.precision)
    return layers.parts(part) if isinstance(layers, FetchedLayers) else part(layers)


def kinds_of(layers: PyTree) -> tuple[PyTree, ...]:
    """Return the layers of each kind as a tuple, which has one entry unless kinds differ."""
    return layers.kinds if isinstance(layers, LayersByKind) else (layers,)


def _depth(layers: PyTree) -> int | None:
    """Return the number of layers of one kind, or None if their arrays disagree."""
    if isinstance(layers, FetchedLayers):
        return layers.depth
    depths = {leaf.shape[0] for leaf in jax.tree.leaves(eqx.filter(layers, eqx.is_array))}
    return depths.pop() if len(depths) == 1 else None
