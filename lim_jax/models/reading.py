"""What families of networks have in common: tensors by name, options, and what is known of them."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from lim_jax._checks import ARRAYS, counted, described, require
from lim_jax.models.checkpoint import Checkpoint, unfilled
from lim_jax.models.gguf_file import GGUFCheckpoint
from lim_jax.network.field import TransformerField
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.norms import Norm
from lim_jax.network.positions import (
    Frequencies,
    linear_scaling,
    llama3_scaling,
    rotary_frequencies,
)

Source = Checkpoint | GGUFCheckpoint


def tanh_gelu(x: Array) -> Array:
    """GELU by its hyperbolic tangent, as GPT-2 has it."""
    return jax.nn.gelu(x, approximate=True)


def exact_gelu(x: Array) -> Array:
    """GELU by the error function."""
    return jax.nn.gelu(x, approximate=False)


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu_new": tanh_gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "gelu": exact_gelu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


class Weights(NamedTuple):
    """What a family's files hold, by the names of `causal.CausalLM`, and the tensors it knows."""

    embedding: Array
    positions: Array | None
    flow: ResidualFlow
    norm: Norm
    head: Array | None
    known: frozenset[str]


class Sizes(NamedTuple):
    """What a layer is made of, by its family's configuration."""

    width: int
    heads: int
    hidden: int
    eta: float
    activation: Callable[[Array], Array]
    groups: int = 0
    size: int = 0


class Reader:
    """Reads tensors by name and shape, and remembers which."""

    def __init__(self, checkpoint: Source, dtype: str, prefix: str = ""):
        self.checkpoint, self.dtype = checkpoint, dtype
        # Base models name their weights without the prefix that models with a head put first.
        prefixed = any(name.startswith(prefix) for name in checkpoint.files)
        self.prefix, self.known = prefix if prefixed else "", set()

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
    fits = isinstance(matrix, ARRAYS) and matrix.ndim == 2 and matrix.shape[1] % heads == 0
    expected = f"a matrix whose columns {heads} heads share"
    cure = "All heads stand side by side."
    require(fits, "matrix", got=described(matrix), expected=expected, cure=cure)
    return matrix.reshape(len(matrix), heads, -1).transpose(1, 0, 2)


def whole(config: Mapping[str, Any], name: str) -> int:
    """A positive whole number of the configuration."""
    found = config.get(name)
    require(
        isinstance(found, int) and not isinstance(found, bool) and found > 0,
        "config.json",
        got=f"{name} = {described(found)}",
        expected="a positive whole number",
        cure="Download it again.",
    )
    assert isinstance(found, int)
    return found


def positive(config: Mapping[str, Any], name: str) -> float:
    """A positive number of the configuration."""
    found = config.get(name)
    require(
        isinstance(found, int | float) and 0 < float(found) < math.inf,
        "config.json",
        got=f"{name} = {described(found)}",
        expected="a positive number",
        cure="Download it again.",
    )
    return float(found or 0)


def number(config: Mapping[str, Any], name: str, default: float) -> float:
    """A small positive number of the configuration."""
    found = config.get(name, default)
    require(
        isinstance(found, int | float) and 0 < float(found) < 1,
        "config.json",
        got=f"{name} = {described(found)}",
        expected="a small positive number",
        cure="Download it again.",
    )
    return float(found)


def chosen(config: Mapping[str, Any], name: str, known: Mapping[str, Any], default: str) -> Any:
    """One of the choices that are known here."""
    found = config.get(name, default)
    require(
        isinstance(found, str) and found in known,
        "config.json",
        got=f"{name} = {described(found)}",
        expected=" or ".join(known),
        cure="Another one is another network.",
    )
    return known[found]


def refuse_options(config: Mapping[str, Any], **meant: Any) -> None:
    """Refuse options of another value than the one that is meant here, the family's default."""
    for name, value in meant.items():
        found = config.get(name, value)
        require(
            found == value,
            "config.json",
            got=f"{name} = {described(found)}",
            expected=f"{value}",
            cure="The family's networks with this option are not known here.",
        )


def require_heads_divide(width: int, heads: int) -> None:
    """Refuse heads that do not share the width."""
    require(
        width % heads == 0,
        "config.json",
        got=f"{heads} heads at width {width}",
        expected="a number of heads that divides the width",
        cure="Download it again.",
    )


def frequencies_of(config: Mapping[str, Any], turning: int, base: str) -> Frequencies:
    """Rotary frequencies by a configuration's base and scaling, spelt in either of two ways.

    Raises
    ------
    ValueError
        Where the scaling is not none, linear or Llama 3's.
    """
    rope = rope_options(config)
    theta = rope.get("rope_theta", config.get(base, 10_000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    require(
        kind in ("default", "linear", "llama3"),
        "config.json",
        got=f"rope_type = {kind!r}",
        expected="default, linear or llama3",
        cure="Other scalings of rotary positions are not known here.",
    )
    frequencies = rotary_frequencies(turning, theta)
    if kind == "linear":
        return linear_scaling(frequencies, positive(rope, "factor"))
    if kind == "llama3":
        names = (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        )
        factor, low, high, trained = (positive(rope, name) for name in names)
        return llama3_scaling(frequencies, factor=factor, low=low, high=high, trained=trained)
    return frequencies


def rope_options(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a configuration says of rotary positions, in newer or older spelling."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}
