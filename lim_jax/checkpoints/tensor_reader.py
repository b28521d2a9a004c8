"""Reading of tensors by name and shape."""

from typing import Any, NamedTuple

import jax
import numpy as np

from lim_jax.checkpoints.checkpoint import Checkpoint, require_finite
from lim_jax.checkpoints.gguf_checkpoint import GGUFCheckpoint
from lim_jax.checkpoints.integers import ReadRows

Source = Checkpoint | GGUFCheckpoint
Tensor = Any  # of NumPy; the type checker takes the arrays of modules for JAX's


class Weights(NamedTuple):
    """The arguments of `causal.CausalLM`, and the names of the tensors that were accounted for."""

    parts: dict[str, Any]
    read_names: frozenset[str]


class Reader:
    """Reader of tensors by name and shape, which keeps the names of those that it read."""

    def __init__(self, checkpoint: Source, dtype: str, prefix: str = "", half: str | None = None):
        """Keep the checkpoint and precisions; drop from the prefix what no name begins with."""
        self.checkpoint = checkpoint
        # Without JAX's double precision no array of it leaves this reader.
        self.dtype = str(jax.dtypes.canonicalize_dtype(dtype))
        self.matrix_dtype = half or self.dtype
        # Base models name their weights without the prefix that models with a head put first, or
        # without its beginning, as OPT's without "model." of "model.decoder.".
        while prefix and not any(name.startswith(prefix) for name in checkpoint.files):
            prefix = prefix.partition(".")[2]
        self.prefix = prefix
        self.read_names = set()

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Read a tensor of the base model, whose name is put behind the prefix."""
        return self.read_named(self.prefix + name, *shape)

    def matrix(self, name: str, *shape: int) -> Tensor:
        """Read a matrix of the base model, in half precision if it is kept in that."""
        return self.read_named(self.prefix + name, *shape, dtype=self.matrix_dtype)

    def read_named(self, name: str, *shape: int, dtype: str | None = None) -> Tensor:
        """Read a tensor by its full name."""
        self.read_names.add(name)
        return self.checkpoint.read(name, shape, dtype or self.dtype)

    def has(self, name: str) -> bool:
        """Tell whether the base model has a tensor of this name."""
        return self.prefix + name in self.checkpoint.files

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor of the base model, as its file holds it."""
        return self.checkpoint.shape(self.prefix + name)

    def rows(self, name: str, *shape: int) -> ReadRows:
        """Return a function that reads and checks some rows of a tensor, by its full name."""
        self.read_names.add(name)
        rows = self.checkpoint.rows(name, shape)

        def read_rows(part: slice) -> np.ndarray:
            """Read some rows, converted and checked to be finite."""
            values = rows(part).astype(self.dtype, copy=False)
            require_finite(name, values)
            return values

        return read_rows

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros in place of a tensor that a layer lacks."""
        return np.zeros(shape, self.dtype)

    def ignore(self, *names: str) -> None:
        """Mark tensors of the base model as read, since they hold no weights."""
        self.read_names.update(self.prefix + name for name in names)


def split_heads(matrix: Tensor, heads: int) -> Tensor:
    """Split a matrix whose columns are those of all heads into one block for each head."""
    return matrix.reshape(len(matrix), heads, -1).transpose(1, 0, 2)
