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
from lim_jax.models.options import refuse_unknown
from lim_jax.network.field import TransformerField
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.frequencies import (
    Frequencies,
    linear_scaling,
    llama3_scaling,
    rotary_frequencies,
)
from lim_jax.network.norms import Norm

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
    "gelu_fast": tanh_gelu,
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


def require_heads_divide(width: int, heads: int) -> None:
    """Refuse heads that do not share the width."""
    require(
        width % heads == 0,
        "config.json",
        got=f"{heads} heads at width {width}",
        expected="a number of heads that divides the width",
        cure="Download it again.",
    )


def head_of(read: Reader, name: str, tied: bool, embedding: Array, *shape: int) -> Array | None:
    """The head's own matrix; None where it is the embedding, which a file may hold once more.

    A matrix of its own goes first even where the options say that the two are one, as the
    publishers' own readers have it.
    """
    if tied and name not in read.checkpoint.files:
        return None
    (head,) = put(read.whole(name, *shape))
    return None if tied and np.array_equal(head, embedding) else head


# What each scaling of rotary positions is told.
SCALINGS = {
    "default": (),
    "linear": ("factor",),
    "factors": ("factors",),  # of llama.cpp, one for each frequency
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def frequencies_of(
    config: Mapping[str, Any], size: int, base: str, default_part: float = 1.0
) -> Frequencies:
    """Rotary frequencies by a configuration's base and scaling, spelt in either of two ways.

    `default_part` is the share of a head of `size` features that turns where nothing is said.

    Raises
    ------
    ValueError
        Where the scaling is not none, linear or Llama 3's, or is told what it does not take.
    """
    rope, default = rope_options(config), config.get(base) or 10_000.0
    theta, kind = (
        rope.get("rope_theta", default),
        rope.get("rope_type", rope.get("type", "default")),
    )
    require(
        kind in SCALINGS,
        "config.json",
        got=f"rope_type = {kind!r}",
        expected=" or ".join(SCALINGS),
        cure="Other scalings of rotary positions are not known here.",
    )
    told = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *SCALINGS[kind]}
    odd = sorted(name for name, value in rope.items() if value is not None and name not in told)
    require(
        not odd,
        "config.json",
        got=f"{odd[0]} = {described(rope[odd[0]])} of a {kind} scaling" if odd else "",
        expected=" and ".join(SCALINGS[kind]) or "no such number",
        cure="Say rope_type too; what a scaling does not take would be passed over.",
    )
    part = rope.get("partial_rotary_factor", default_part)
    frequencies = rotary_frequencies(int(size * part), theta)
    if kind == "linear":
        return linear_scaling(frequencies, positive(rope, "factor"))
    if kind == "factors":
        return tuple(turn / f for turn, f in zip(frequencies, rope["factors"], strict=True))
    if kind == "llama3":
        factor, low, high, trained = (positive(rope, name) for name in SCALINGS[kind])
        return llama3_scaling(frequencies, factor=factor, low=low, high=high, trained=trained)
    return frequencies


def rope_options(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a configuration says of rotary positions; the older spelling goes first, where both are.

    So it does with the publishers' own reader, which then knows no base but the older one.
    """
    newer, older = config.get("rope_parameters"), config.get("rope_scaling")
    for name, found in (("rope_parameters", newer), ("rope_scaling", older)):
        require(
            found is None or isinstance(found, Mapping),
            "config.json",
            got=f"{name} = {described(found)}",
            expected="an object of names and values",
            cure="Download it again.",
        )
    if newer and older:
        bases = newer.get("rope_theta"), older.get("rope_theta", config.get("rope_theta"))
        require(
            bases[0] in (None, bases[1]),
            "config.json",
            got=f"rope_theta = {bases[0]} in rope_parameters, {bases[1]} with rope_scaling",
            expected="the same in both",
            cure="Put the scaling into rope_parameters itself.",
        )
    return older or newer or {}
