"""Weights on the device in half precision, on the host or on a disk, until a program needs them.

The program fetches each layer once on its way ahead and once on its way back, beside the next one,
which is being read. Derivatives in such weights raise `NotImplementedError`.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, UInt16

from lim_jax._checks import no_derivative
from lim_jax._precision import HALF, accumulator, precision_asked, promote

HELD = (
    "weights: got a derivative in weights that are fetched as they are needed. They do not train: "
    "load the network whole by models.load."
)
Fingerprint = Float[Array, " numbers"]
ReadLayer = Callable[[int], PyTree]
if TYPE_CHECKING:
    Weight = Array
else:  # layers are read into NumPy's arrays, and put on a device when all are read
    Weight = Array | np.ndarray


class LayerSource:
    """Reads layers by number; a thread reads the next one while this one is computed with.

    ``read(index)`` gives a layer's arrays, always of the same shapes, and computes nothing by JAX.
    """

    def __init__(self, read: ReadLayer, depth: int):
        assert depth > 0
        self.depth = depth
        self._read, self._last, self._lock = read, 0, Lock()
        self._thread = ThreadPoolExecutor(1, "layers")
        first = self._read(0)
        self.like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), first)
        self._ahead: tuple[int, Future] = 0, self._thread.submit(lambda: jax.tree.leaves(first))

    def fetch(self, index: Int[Array | np.ndarray, ""]) -> list[np.ndarray]:
        """The arrays of one layer, in the order of its leaves."""
        with self._lock:
            number = int(index)
            at, ahead = self._ahead
            # If this read fails, the layer is read anew when it is asked for again.
            self._ahead = -1, ahead
            layer = (ahead if at == number else self._submit(number)).result()
            following = number + self._direction(number)
            # A pass ends where the next one begins: the layer at the end is needed twice.
            if following not in range(self.depth):
                self._ahead = number, self._thread.submit(lambda: layer)
            else:
                self._ahead = following, self._submit(following)
            self._last = number
            return [np.asarray(leaf) for leaf in layer]

    def _identity(self) -> tuple[int, PyTree]:
        """What a digest reads in place of this object; a fingerprint says whose weights."""
        return self.depth, self.like

    def _direction(self, number: int) -> int:
        if number == self._last:
            return 1 if number == 0 else -1
        return 1 if number > self._last else -1

    def _submit(self, number: int) -> Future:
        return self._thread.submit(lambda: jax.tree.leaves(self._read(number)))


class FetchedLayers(eqx.Module):
    """Layers that a source hands out one at a time, in place of `ResidualFlow.layers`.

    The numbers of `fingerprint` tell these weights from others wherever runs are compared.
    """

    fingerprint: Fingerprint
    source: LayerSource = eqx.field(static=True)

    @property
    def depth(self) -> int:
        """The number of layers."""
        return self.source.depth

    def layer(self, index: Int[Array, ""]) -> PyTree:
        """One layer, half precision widened."""
        like, tree = jax.tree.flatten(self.source.like)
        leaves = jax.pure_callback(self.source.fetch, like, index, vmap_method="sequential")
        _, leaves = no_derivative((self.fingerprint, leaves), HELD)
        return jax.tree.unflatten(tree, promote(leaves))

    def parts(self, part: Callable[[PyTree], PyTree]) -> "FetchedParts":
        """One part of every layer, along a leading axis as in a stack of layers."""
        fingerprints = jnp.broadcast_to(self.fingerprint, (self.depth, *self.fingerprint.shape))
        return FetchedParts(fingerprints, jnp.arange(self.depth), self.source, part)


class FetchedParts(eqx.Module):
    """One part of several layers, or of one, that is fetched where it is computed with."""

    fingerprint: Float[Array, "*layers numbers"]
    number: Int[Array, "*layers"]
    source: LayerSource = eqx.field(static=True)
    part: Callable[[PyTree], PyTree] = eqx.field(static=True)

    @property
    def like(self) -> PyTree:
        """A layer's part, of shapes alone."""
        return self.part(self.source.like)


class HalfLayers(eqx.Module):
    """Layers or parts of them whose matrices are on the device in half precision.

    They are held as bits, which XLA slices as they are. Conversions it exchanges with the slice of
    one layer, and moves out of the loop over layers; and on a CPU it slices no bfloat16, but the
    whole stack in float32.
    """

    layers: PyTree  # as in `ResidualFlow.layers`, with numbers of 16 bits in place of halves
    precision: str = eqx.field(static=True)

    def widened(self) -> PyTree:
        """The same in float32."""

        def wide(leaf: Any) -> Any:
            held = eqx.is_array(leaf) and leaf.dtype == jnp.uint16
            return _from_bits(leaf, self.precision) if held else leaf

        return jax.tree.map(wide, no_derivative(self.layers, HELD))


def _from_bits(bits: UInt16[Array, "..."], precision: str) -> Float[Array, "..."]:
    if precision_asked() in HALF:  # where a product rounds again, and the two conversions cancel
        return jax.lax.bitcast_convert_type(bits, jnp.dtype(precision)).astype(jnp.float32)
    bits = bits.astype(jnp.uint32)
    if precision == "bfloat16":
        return jax.lax.bitcast_convert_type(bits << 16, jnp.float32)
    rest = bits & 0x7FFF  # of float16, without the sign
    normal = jax.lax.bitcast_convert_type((rest << 13) + (112 << 23), jnp.float32)
    size = jnp.where(rest < 1 << 10, rest.astype(jnp.float32) * 2.0**-24, normal)
    return jnp.where(bits > rest, -size, size)


def like_of(layers: PyTree) -> PyTree:
    """Layers of one kind, or a part of them, of shapes alone if they are fetched."""
    if isinstance(layers, HalfLayers):
        return layers.layers
    if isinstance(layers, FetchedParts):
        return layers.like
    return layers.source.like if isinstance(layers, FetchedLayers) else layers


def in_memory(part: PyTree) -> PyTree:
    """The part of one layer, fetched or widened now if it is a `FetchedParts` or `HalfLayers`."""
    if isinstance(part, HalfLayers):
        return part.widened()
    if not isinstance(part, FetchedParts):
        return part
    return part.part(FetchedLayers(part.fingerprint, part.source).layer(part.number))


class RowSource:
    """Reads rows of one matrix by ``read(slice(start, stop))``, which computes nothing by JAX."""

    def __init__(self, read: Callable[[slice], np.ndarray], shape: tuple[int, int], dtype: Any):
        self.shape, self.dtype, self._read = shape, jnp.dtype(dtype), read

    def _identity(self) -> tuple[tuple[int, int], jnp.dtype]:
        return self.shape, self.dtype

    def gather(self, numbers: Int[Array, "..."]) -> np.ndarray:
        """The rows of some numbers; each is read once."""
        distinct, where = np.unique(np.asarray(numbers), return_inverse=True)
        rows = np.concatenate([self._read(slice(int(row), int(row) + 1)) for row in distinct])
        return rows[where.reshape(numbers.shape)].astype(self.dtype, copy=False)

    def slice_rows(self, start: Int[Array, ""], size: int) -> np.ndarray:
        """Neighbouring rows."""
        return self._read(slice(int(start), int(start) + size)).astype(self.dtype, copy=False)


class FetchedRows(eqx.Module):
    """A matrix of which a source hands out the rows that an embedding or a head needs."""

    fingerprint: Fingerprint
    source: RowSource = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the whole matrix."""
        return self.source.shape

    @property
    def dtype(self) -> jnp.dtype:
        """The precision of rows that are handed out."""
        return accumulator(self.source.dtype)

    def fetch(self, read: Callable[..., np.ndarray], shape: tuple[int, ...], at: Array) -> Array:
        """What `read` gives on the host for one number or several, half precision widened."""
        like = jax.ShapeDtypeStruct(shape, self.source.dtype)
        rows = jax.pure_callback(read, like, at, vmap_method="expand_dims")
        return promote(no_derivative((self.fingerprint, rows), HELD)[1])


class HalfRows(eqx.Module):
    """A matrix on the device in half precision; rows are widened as they are taken."""

    bits: UInt16[Array, "rows width"]
    precision: str = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole matrix."""
        return self.bits.shape

    @property
    def dtype(self) -> jnp.dtype:
        """The precision of rows that are taken."""
        return jnp.dtype("float32")


Rows = Float[Array, "rows width"] | HalfRows | FetchedRows


def gather_rows(rows: Rows, numbers: Int[Array, " some"]) -> Float[Array, "some width"]:
    """Rows of a matrix by their numbers."""
    if isinstance(rows, HalfRows):
        return _from_bits(rows.bits[numbers], rows.precision)
    if not isinstance(rows, FetchedRows):
        return rows[numbers]
    # As in JAX's own indexing, a number outside the matrix means the row at its end.
    known = jnp.clip(numbers, 0, rows.shape[0] - 1)
    return rows.fetch(rows.source.gather, (*numbers.shape, rows.shape[1]), known)


def slice_rows(rows: Rows, start: Int[Array, ""], size: int) -> Float[Array, "size width"]:
    """Neighbouring rows of a matrix."""
    if isinstance(rows, HalfRows):
        bits = jax.lax.dynamic_slice_in_dim(rows.bits, start, size)
        return _from_bits(bits, rows.precision)
    if not isinstance(rows, FetchedRows):
        return jax.lax.dynamic_slice_in_dim(rows, start, size)
    return rows.fetch(partial(rows.source.slice_rows, size=size), (size, rows.shape[1]), start)
