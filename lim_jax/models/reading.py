"""What families of networks have in common: tensors by name, options, and what is known of them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lim_jax._checks import counted, described, require, require_floating
from lim_jax.models.checkpoint import Checkpoint, Rows, require_finite
from lim_jax.models.gguf_file import GGUFCheckpoint
from lim_jax.models.multimodal import TextPart
from lim_jax.models.options import refuse_unknown

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

    def rows(self, name: str, *shape: int) -> Rows:
        """What reads some rows of a tensor of this whole name, converted and checked."""
        self.known.add(name)
        rows = self.checkpoint.rows(name, shape)

        def converted(part: slice) -> np.ndarray:
            found = rows(part).astype(self.dtype, copy=False)
            require_finite(name, found)
            return found

        return converted

    def passed_over(self, *names: str) -> None:
        """Know of tensors that hold no weights."""
        self.known.update(self.prefix + name for name in names)


def put(*arrays: np.ndarray) -> list[Array]:
    """Arrays on the device."""
    return [jax.device_put(np.ascontiguousarray(array)) for array in arrays]


def by_head(matrix: np.ndarray, heads: int) -> np.ndarray:
    """A matrix from all heads side by side, cut into one block for each."""
    heads = counted(heads, "heads")
    cure = "All heads stand side by side."
    require_floating(matrix, "matrix", cure)
    fits = matrix.ndim == 2 and matrix.shape[1] % heads == 0
    expected = f"a matrix whose columns {heads} heads share"
    require(fits, "matrix", got=described(matrix), expected=expected, cure=cure)
    return matrix.reshape(len(matrix), heads, -1).transpose(1, 0, 2)
