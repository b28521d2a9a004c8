"""Weights on the device in half precision, on the host or on a disk, until a program needs them.

The program fetches each layer once on its way ahead and once on its way back, beside the next one,
which is being read. Derivatives in weights that are fetched, and in layers held in half precision,
raise `NotImplementedError`; `HalfRows` are whole numbers, which have none (`equinox.filter_grad`
gives None for them).
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
    "weights: got a derivative in weights that are read from their files when needed, expected "
    "arrays in memory. Load the network whole by models.load."
)
HALVED = (
    "weights: got a derivative in layers that are held in half precision, expected layers in the "
    "precision in which they compute. Load the network without storage_dtype."
)
Fingerprint = Float[Array, " numbers"]
ReadLayer = Callable[[int], PyTree]
if TYPE_CHECKING:
    Weight = Array
else:  # layers are read into NumPy's arrays, and put on a device when all are read
    Weight = Array | np.ndarray


class LayerSource:
    """A reader of layers by number, which reads the next one while this one is computed with.

    Parameters
    ----------
    read
        A function ``read(index)`` that returns a layer's arrays, a pytree always of the same
        shapes. It is called in a thread and computes nothing by JAX.
    depth
        The number of layers, at least one.
    """

    def __init__(self, read: ReadLayer, depth: int):
        """Read the first layer, for the shapes and for the first fetch."""
        assert depth > 0
        self.depth = depth
        self._read = read
        self._last = 0
        self._lock = Lock()
        self._thread = ThreadPoolExecutor(1, "layers")
        first = self._read(0)
        self.like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), first)
        self._ahead: tuple[int, Future] = 0, self._thread.submit(lambda: jax.tree.leaves(first))

    def fetch(self, index: Int[Array | np.ndarray, ""]) -> list[np.ndarray]:
        """Return the arrays of one layer, in the order of its leaves.

        Parameters
        ----------
        index
            The layer's number, from 0 to ``depth - 1``.

        Returns
        -------
        list
            NumPy arrays.
        """
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
        """Return what a digest reads in place of this object; a fingerprint says whose weights."""
        return self.depth, self.like

    def _direction(self, number: int) -> int:
        """Guess whether layers are being read forwards (1) or backwards (-1)."""
        if number == self._last:
            return 1 if number == 0 else -1
        return 1 if number > self._last else -1

    def _submit(self, number: int) -> Future:
        """Start to read a layer in the other thread."""
        return self._thread.submit(lambda: jax.tree.leaves(self._read(number)))


class FetchedLayers(eqx.Module):
    """Layers that a source hands out one at a time, in place of `ResidualFlow.layers`.

    Attributes
    ----------
    fingerprint
        Some numbers that tell these weights from others wherever runs are compared.
    source
        The `LayerSource` that reads them.
    """

    fingerprint: Fingerprint
    source: LayerSource = eqx.field(static=True)

    @property
    def depth(self) -> int:
        """The number of layers."""
        return self.source.depth

    def layer(self, index: Int[Array, ""]) -> PyTree:
        """Return one layer, with half precision upcast to float32.

        Parameters
        ----------
        index
            The layer's number, which may be traced.

        Returns
        -------
        PyTree
            The layer. A derivative in its weights raises NotImplementedError.
        """
        like, tree = jax.tree.flatten(self.source.like)
        leaves = jax.pure_callback(self.source.fetch, like, index, vmap_method="sequential")
        _, leaves = no_derivative((self.fingerprint, leaves), HELD)
        return jax.tree.unflatten(tree, promote(leaves))

    def parts(self, part: Callable[[PyTree], PyTree]) -> "FetchedParts":
        """Return one part of every layer, along a leading axis as in a stack of layers.

        Parameters
        ----------
        part
            The function from a layer to the part.

        Returns
        -------
        FetchedParts
            The parts, which are read where they are computed with.
        """
        fingerprints = jnp.broadcast_to(self.fingerprint, (self.depth, *self.fingerprint.shape))
        return FetchedParts(fingerprints, jnp.arange(self.depth), self.source, part)


class FetchedParts(eqx.Module):
    """One part of several layers, or of one, that is fetched where it is computed with.

    Attributes
    ----------
    fingerprint
        Some numbers that tell these weights from others, for each layer.
    number
        The layers' numbers.
    source
        The `LayerSource` that reads them.
    part
        The function from a layer to the part.
    """

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

    Attributes
    ----------
    layers
        Layers as in `ResidualFlow.layers`, with whole numbers of 16 bits in place of half
        precision.
    precision
        The precision that these bits are in: ``"bfloat16"`` or ``"float16"``.
    """

    layers: PyTree
    precision: str = eqx.field(static=True)

    def upcast(self) -> PyTree:
        """Return the same layers in float32; a derivative in them raises NotImplementedError."""

        def wide(leaf: Any) -> Any:
            """Upcast a leaf of 16-bit integers that stand for half precision."""
            is_bits = eqx.is_array(leaf) and leaf.dtype == jnp.uint16
            return _from_bits(leaf, self.precision) if is_bits else leaf

        return jax.tree.map(wide, no_derivative(self.layers, HALVED))


def _from_bits(bits: UInt16[Array, "..."], precision: str) -> Float[Array, "..."]:
    """Return float32 numbers from the bits of half precision."""
    if precision_asked() in HALF:  # where a product rounds again, and the two conversions cancel
        return jax.lax.bitcast_convert_type(bits, jnp.dtype(precision)).astype(jnp.float32)
    bits = bits.astype(jnp.uint32)
    if precision == "bfloat16":
        return jax.lax.bitcast_convert_type(bits << 16, jnp.float32)
    magnitude = bits & 0x7FFF  # of float16, without the sign
    # The two exponents' origins differ by 112; those of infinity and NaN, 31 and 255, by 224.
    raised = jnp.where(magnitude < 0x7C00, 112 << 23, 224 << 23).astype(jnp.uint32)
    normal = jax.lax.bitcast_convert_type((magnitude << 13) + raised, jnp.float32)
    size = jnp.where(magnitude < 1 << 10, magnitude.astype(jnp.float32) * 2.0**-24, normal)
    return jnp.where(bits > magnitude, -size, size)


def like_of(layers: PyTree) -> PyTree:
    """Return layers of one kind, or a part of them; fetched ones as shapes and dtypes alone.

    Parameters
    ----------
    layers
        Layers as in `ResidualFlow.layers`, or parts of them.

    Returns
    -------
    PyTree
        The layers themselves if they are in memory (those in half precision as bits); else a tree
        of `jax.ShapeDtypeStruct`, that of one layer without a leading axis.
    """
    if isinstance(layers, HalfLayers):
        return layers.layers
    if isinstance(layers, FetchedParts):
        return layers.like
    return layers.source.like if isinstance(layers, FetchedLayers) else layers


def in_memory(part: PyTree) -> PyTree:
    """Return a layer's part in memory: `FetchedParts` are fetched, and `HalfLayers` upcast.

    Parameters
    ----------
    part
        The part of one layer, in memory, fetched or in half precision.

    Returns
    -------
    PyTree
        The part in memory, half precision widened to float32.
    """
    if isinstance(part, HalfLayers):
        return part.upcast()
    if not isinstance(part, FetchedParts):
        return part
    return part.part(FetchedLayers(part.fingerprint, part.source).layer(part.number))


class RowSource:
    """A reader of rows of one matrix.

    Parameters
    ----------
    read
        A function ``read(slice(start, stop))`` that returns these rows as a NumPy array. It
        computes nothing by JAX.
    shape
        The rows and columns of the whole matrix.
    dtype
        The precision in which rows are handed out.
    """

    def __init__(self, read: Callable[[slice], np.ndarray], shape: tuple[int, int], dtype: Any):
        self.shape = shape
        self.dtype = jnp.dtype(dtype)
        self._read = read

    def _identity(self) -> tuple[tuple[int, int], jnp.dtype]:
        """Return what a digest reads in place of this object: shape and dtype."""
        return self.shape, self.dtype

    def gather(self, numbers: Int[Array, "..."]) -> np.ndarray:
        """Return the rows with these numbers; each is read once.

        Parameters
        ----------
        numbers
            Row numbers inside the matrix, of any shape.

        Returns
        -------
        ndarray
            The rows, along the last axis, after the axes of `numbers`.
        """
        distinct, where = np.unique(np.asarray(numbers), return_inverse=True)
        rows = np.concatenate([self._read(slice(int(row), int(row) + 1)) for row in distinct])
        return rows[where.reshape(numbers.shape)].astype(self.dtype, copy=False)

    def slice_rows(self, start: Int[Array, ""], size: int) -> np.ndarray:
        """Return `size` neighbouring rows from `start` on.

        Parameters
        ----------
        start
            The first row's number.
        size
            The number of rows.

        Returns
        -------
        ndarray
            The rows, of shape ``(size, width)``.
        """
        return self._read(slice(int(start), int(start) + size)).astype(self.dtype, copy=False)


class FetchedRows(eqx.Module):
    """A matrix of which a source hands out the rows that an embedding or a head needs.

    Attributes
    ----------
    fingerprint
        Some numbers that tell this matrix from others wherever runs are compared.
    source
        The `RowSource` that reads the rows.
    """

    fingerprint: Fingerprint
    source: RowSource = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the whole matrix."""
        return self.source.shape

    @property
    def dtype(self) -> jnp.dtype:
        """The precision of rows that are handed out."""
        return accumulator(self.source.dtype)

    def fetch(self, read: Callable[..., np.ndarray], shape: tuple[int, ...], at: Array) -> Array:
        """Call `read` on the host, and return its rows with half precision upcast."""
        like = jax.ShapeDtypeStruct(shape, self.source.dtype)
        rows = jax.pure_callback(read, like, at, vmap_method="expand_dims")
        return promote(no_derivative((self.fingerprint, rows), HELD)[1])


class HalfRows(eqx.Module):
    """A matrix on the device in half precision; rows are widened as they are taken.

    It is held as whole numbers, in which nothing is differentiated.

    Attributes
    ----------
    bits
        The matrix as whole numbers of 16 bits, of shape ``(rows, width)``.
    precision
        The precision that these bits are in: ``"bfloat16"`` or ``"float16"``.
    """

    bits: UInt16[Array, "rows width"]
    precision: str = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole matrix."""
        return self.bits.shape

    @property
    def dtype(self) -> jnp.dtype:
        """The precision of rows that are taken."""
        return jnp.dtype("float32")


Rows = Float[Array, "rows width"] | HalfRows | FetchedRows


def gather_rows(rows: Rows, numbers: Int[Array, " some"]) -> Float[Array, "some width"]:
    """Return rows of a matrix by their numbers.

    Parameters
    ----------
    rows
        The matrix: an array, `HalfRows` or `FetchedRows`.
    numbers
        Row numbers along one axis. As in JAX's own indexing, those below zero count from the last
        row, and one outside the matrix means the row at its end.

    Returns
    -------
    Array
        The rows, of shape ``(numbers, width)``, half precision widened to float32.
    """
    if isinstance(rows, HalfRows):
        return _from_bits(rows.bits[numbers], rows.precision)
    if not isinstance(rows, FetchedRows):
        return rows[numbers]
    # As in JAX's own indexing.
    size = rows.shape[0]
    indices = jnp.clip(jnp.where(numbers < 0, numbers + size, numbers), 0, size - 1)
    return rows.fetch(rows.source.gather, (*numbers.shape, rows.shape[1]), indices)


def slice_rows(rows: Rows, start: Int[Array, ""], size: int) -> Float[Array, "size width"]:
    """Return neighbouring rows of a matrix.

    Parameters
    ----------
    rows
        The matrix: an array, `HalfRows` or `FetchedRows`.
    start
        The first row's number, which may be traced.
    size
        The number of rows, known before tracing.

    Returns
    -------
    Array
        The rows, of shape ``(size, width)``, half precision widened to float32.
    """
    if isinstance(rows, HalfRows):
        bits = jax.lax.dynamic_slice_in_dim(rows.bits, start, size)
        return _from_bits(bits, rows.precision)
    if not isinstance(rows, FetchedRows):
        return jax.lax.dynamic_slice_in_dim(rows, start, size)
    return rows.fetch(partial(rows.source.slice_rows, size=size), (size, rows.shape[1]), start)
