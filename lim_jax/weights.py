"""Weights that stay where they are kept, on a disk or in the host's memory, until they are needed.

A compiled program asks the host for them as it comes to each layer: once on its way ahead and once
on its way back. All that goes through `network.ResidualFlow.scan` works so, unchanged, and holds
one layer, beside the next one that is being read. Derivatives in such weights raise
`NotImplementedError`.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from lim_jax._checks import counted, require_callable, undifferentiated
from lim_jax._precision import accumulator, widened

HELD = (
    "weights: got a derivative in weights that are fetched as they are needed. They do not train: "
    "load the network whole by models.load."
)
Fingerprint = Float[Array, " numbers"]
Fetch = Callable[[int], PyTree]


class LayerSource:
    """Reads layers by their number, the next one in a thread while this one is computed with.

    Parameters
    ----------
    read
        ``read(index)``: a layer's arrays, always of the same structure and shapes. It runs in a
        thread, so it computes nothing by JAX.
    depth
        The number of layers.
    """

    def __init__(self, read: Fetch, depth: int):
        require_callable(read, "read", "read(index) of a layer's number")
        self.depth = counted(depth, "depth")
        self._read, self._last, self._lock = _as_here(read), 0, Lock()
        self._thread = ThreadPoolExecutor(1, "layers")
        first = self._read(0)
        self.like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), first)
        self._ahead: tuple[int, Future] = 0, self._thread.submit(lambda: jax.tree.leaves(first))

    def fetch(self, index: Int[Array | np.ndarray, ""]) -> list[np.ndarray]:
        """The arrays of one layer, in the order of its leaves."""
        with self._lock:
            number = int(index)
            at, ahead = self._ahead
            # What fails once is tried again when it is asked for again.
            self._ahead = -1, ahead
            layer = (ahead if at == number else self._submitted(number)).result()
            following = number + self._direction(number)
            # A way ends where the next one begins: the last layer is needed twice.
            if following not in range(self.depth):
                self._ahead = number, self._thread.submit(lambda: layer)
            else:
                self._ahead = following, self._submitted(following)
            self._last = number
            return [np.asarray(leaf) for leaf in layer]

    def _identity(self) -> tuple[int, PyTree]:
        """What tells it from others, where a digest is taken: whose weights, says a fingerprint."""
        return self.depth, self.like

    def _direction(self, number: int) -> int:
        if number == self._last:
            return 1 if number == 0 else -1
        return 1 if number > self._last else -1

    def _submitted(self, number: int) -> Future:
        return self._thread.submit(lambda: jax.tree.leaves(self._read(number)))


def _as_here(read: Fetch) -> Fetch:
    """The same in another thread: in this one's precision, and on the host."""
    precise = jax.dtypes.canonicalize_dtype("float64") == "float64"
    host = jax.local_devices(backend="cpu")[0]

    def reading(index: int) -> PyTree:
        with jax.enable_x64(precise), jax.default_device(host):
            return read(index)

    return reading


class FetchedLayers(eqx.Module):
    """Layers that a source hands out one at a time, in the place of `ResidualFlow.layers`.

    Attributes
    ----------
    fingerprint
        Numbers that tell these weights from others, wherever runs are compared.
    source
        Where they come from.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> from lim_jax.network.flow import ResidualFlow
    >>> class Scaled(eqx.Module):
    ...     by: Array
    ...
    ...     def __call__(self, x, context, grid):
    ...         return self.by * x
    >>> source = LayerSource(lambda index: Scaled(jax.device_put(np.ones((1, 1)) + index)), 3)
    >>> flow = ResidualFlow(FetchedLayers(jnp.zeros(1), source), horizon=3.0)
    >>> flow(jnp.ones((1, 1)), token_grid(1)).tolist()  # (1 + 1) (1 + 2) (1 + 3)
    [[24.0]]
    """

    fingerprint: Fingerprint
    source: LayerSource = eqx.field(static=True)

    @property
    def depth(self) -> int:
        """The number of layers."""
        return self.source.depth

    def layer(self, index: Int[Array, ""]) -> PyTree:
        """One layer, half precision widened."""
        leaves, tree = jax.tree.flatten(self.source.like)
        found = jax.pure_callback(self.source.fetch, leaves, index, vmap_method="sequential")
        _, found = undifferentiated((self.fingerprint, found), HELD)
        return jax.tree.unflatten(tree, widened(found))

    def parts(self, part: Callable[[PyTree], PyTree]) -> "FetchedParts":
        """Some part of every layer, to be mapped over as a stack of layers is."""
        several = jnp.broadcast_to(self.fingerprint, (self.depth, *self.fingerprint.shape))
        return FetchedParts(several, jnp.arange(self.depth), self.source, part)


class FetchedParts(eqx.Module):
    """A part of several layers, or of one, that is fetched where one of them is computed with.

    Attributes
    ----------
    fingerprint, number
        As in `FetchedLayers`, and the layers' numbers, with the same leading axes.
    source
        As in `FetchedLayers`.
    part
        From a layer to its part.
    """

    fingerprint: Float[Array, "*layers numbers"]
    number: Int[Array, "*layers"]
    source: LayerSource = eqx.field(static=True)
    part: Callable[[PyTree], PyTree] = eqx.field(static=True)


def in_memory(part: PyTree) -> PyTree:
    """The part of one layer, fetched now where it was not.

    Examples
    --------
    >>> in_memory(3)
    3
    """
    if not isinstance(part, FetchedParts):
        return part
    return part.part(FetchedLayers(part.fingerprint, part.source).layer(part.number))


class RowSource:
    """Reads rows of one matrix.

    Parameters
    ----------
    read
        ``read(part)``: the rows of a slice from start to stop. It computes nothing by JAX.
    shape
        Of the matrix.
    dtype
        Of what is read.
    """

    def __init__(self, read: Callable[[slice], np.ndarray], shape: tuple[int, int], dtype: Any):
        require_callable(read, "read", "read(part) of a slice")
        self.shape, self.dtype, self._read = shape, jnp.dtype(dtype), read

    def _identity(self) -> tuple[tuple[int, int], jnp.dtype]:
        """As of a `LayerSource`."""
        return self.shape, self.dtype

    def gather(self, numbers: Int[Array, "..."]) -> np.ndarray:
        """The rows of some numbers; each is read once."""
        distinct, where = np.unique(np.asarray(numbers), return_inverse=True)
        rows = np.concatenate([self._read(slice(int(row), int(row) + 1)) for row in distinct])
        return rows[where.reshape(numbers.shape)].astype(self.dtype, copy=False)

    def slice_rows(self, start: Int[Array, ""], size: int) -> np.ndarray:
        """Neighbouring rows."""
        found = self._read(slice(int(start), int(start) + size))
        return found.astype(self.dtype, copy=False)


class FetchedRows(eqx.Module):
    """A matrix of which a source hands out some rows, as an embedding and a head need them.

    Attributes
    ----------
    fingerprint
        As in `FetchedLayers`.
    source
        Where the rows come from.

    Examples
    --------
    >>> squares = np.arange(6.0, dtype=np.float32).reshape(3, 2) ** 2
    >>> table = FetchedRows(jnp.zeros(1), RowSource(squares.__getitem__, (3, 2), "float32"))
    >>> gather_rows(table, jnp.array([2, 0])).tolist(), table.shape
    ([[16.0, 25.0], [0.0, 1.0]], (3, 2))
    """

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

    def of(self, fetch: Callable[..., np.ndarray], shape: tuple[int, ...], at: Array) -> Array:
        """What the host hands out for a number or several, half precision widened."""
        like = jax.ShapeDtypeStruct(shape, self.source.dtype)
        found = jax.pure_callback(fetch, like, at, vmap_method="expand_dims")
        return widened(undifferentiated((self.fingerprint, found), HELD)[1])


Rows = Float[Array, "rows width"] | FetchedRows


def gather_rows(rows: Rows, numbers: Int[Array, " some"]) -> Float[Array, "some width"]:
    """Rows of a matrix by their numbers.

    Examples
    --------
    >>> gather_rows(jnp.arange(3.0)[:, None], jnp.array([2, 2])).tolist()
    [[2.0], [2.0]]
    """
    if not isinstance(rows, FetchedRows):
        return rows[numbers]
    # As an array's own rows: numbers beyond it are those of its ends.
    known = jnp.clip(numbers, 0, rows.shape[0] - 1)
    return rows.of(rows.source.gather, (*numbers.shape, rows.shape[1]), known)


def slice_rows(rows: Rows, start: Int[Array, ""], size: int) -> Float[Array, "size width"]:
    """Neighbouring rows of a matrix.

    Examples
    --------
    >>> slice_rows(jnp.arange(4.0)[:, None], jnp.array(1), 2).tolist()
    [[1.0], [2.0]]
    """
    if not isinstance(rows, FetchedRows):
        return jax.lax.dynamic_slice_in_dim(rows, start, size)
    return rows.of(partial(rows.source.slice_rows, size=size), (size, rows.shape[1]), start)
