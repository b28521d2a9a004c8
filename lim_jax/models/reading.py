"""What families of networks have in common: tensors by name, options, and what is known of them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lim_jax._checks import counted, described, require, require_floating
from lim_jax.models.checkpoint import Checkpoint, unfilled
from lim_jax.models.gguf_file import GGUFCheckpoint
from lim_jax.models.multimodal import TextPart
from lim_jax.models.options import refuse_unknown
from lim_jax.network.field import TransformerField

Source = Checkpoint | GGUFCheckpoint | TextPart


def tanh_gelu(x: Array) -> Array:
    """GELU by its hyperbolic tangent, as GPT-2 has it."""
    return jax.nn.gelu(x, approximate=True)


def bloom_gelu(x: Array) -> Array:
    """The same with the root of two over pi in eight digits, as BLOOM has it."""
    return 0.5 * x * (1 + jnp.tanh(0.79788456 * x * (1 + 0.044715 * x**2)))


def exact_gelu(x: Array) -> Array:
    """GELU by the error function."""
    return jax.nn.gelu(x, approximate=False)


def squared_relu(x: Array) -> Array:
    """The square of what is positive."""
    return jax.nn.relu(x) ** 2


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu_new": tanh_gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "gelu_fast": tanh_gelu,
    "gelu": exact_gelu,
    "relu": jax.nn.relu,
    "relu2": squared_relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
}


class Weights(NamedTuple):
    """What a family's files hold, by the names of `causal.CausalLM`, and the tensors it knows."""

    parts: dict[str, Any]
    known: frozenset[str]


class Reader:
    """Reads tensors by name and shape, and remembers which; made where all options are asked."""

    def __init__(self, checkpoint: Source, dtype: str, prefix: str = ""):
        self.checkpoint, self.dtype = checkpoint, dtype
        # Base models name their weights without the prefix that models with a head put first.
        prefixed = any(name.startswith(prefix) for name in checkpoint.files)
        self.prefix, self.known = prefix if prefixed else "", set()
        refuse_unknown(checkpoint.config)

    def __call__(self, name: str, *shape: int) -> np.ndarray:
        """Read one tensor."""
        self.known.add(self.prefix + name)
        return self.checkpoint.read(self.prefix + name, shape, self.dtype)

    def whole(self, name: str, *shape: int) -> np.ndarray:
        """Read a tensor that stands outside the base model, without prefix."""
        self.known.add(name)
        return self.checkpoint.read(name, shape, self.dtype)

    def passed_over(self, *names: str) -> None:
        """Know of tensors that hold no weights."""
        self.known.update(self.prefix + name for name in names)


def put(*arrays: np.ndarray) -> list[Array]:
    """Arrays on the device."""
    return [jax.device_put(np.ascontiguousarray(array)) for array in arrays]


def stacked(layer: Callable[[int], TransformerField], depth: int) -> TransformerField:
    """Join layers along a leading axis as they are read, so that one at most stands twice."""
    leaves, tree = jax.tree.flatten(layer(0))  # for their shapes
    joined = [unfilled((depth, *leaf.shape), leaf.dtype) for leaf in leaves]
    for index in range(depth):
        for rows, leaf in zip(joined, jax.tree.leaves(layer(index)), strict=True):
            rows[index] = leaf
    return jax.tree.unflatten(tree, put(*joined))


def by_head(matrix: np.ndarray, heads: int) -> np.ndarray:
    """A matrix from all heads side by side, cut into one block for each."""
    heads = counted(heads, "heads")
    cure = "All heads stand side by side."
    require_floating(matrix, "matrix", cure)
    fits = matrix.ndim == 2 and matrix.shape[1] % heads == 0
    expected = f"a matrix whose columns {heads} heads share"
    require(fits, "matrix", got=described(matrix), expected=expected, cure=cure)
    return matrix.reshape(len(matrix), heads, -1).transpose(1, 0, 2)


def head_of(read: Reader, name: str, tied: bool, embedding: Array, *shape: int) -> Array | None:
    """The head's own matrix; None where it is the embedding, which a file may hold once more.

    A matrix of its own goes first even where the options say that the two are one, as the
    publishers' own readers have it.
    """
    if tied and name not in read.checkpoint.files:
        return None
    (head,) = put(read.whole(name, *shape))
    return None if tied and np.array_equal(head, embedding) else head
