"""Families of networks: how each names its weights, and which of its options are known."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from lim_jax._checks import described, require
from lim_jax.models.checkpoint import Checkpoint
from lim_jax.network.field import CausalAttention, FeedForward, TransformerField
from lim_jax.network.flow import ResidualFlow, split
from lim_jax.network.norms import LayerNorm


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
    norm: LayerNorm
    head: Array | None
    known: frozenset[str]


class Reader:
    """Reads tensors by name and shape, and remembers which."""

    def __init__(self, checkpoint: Checkpoint, dtype: str, prefix: str = ""):
        self.checkpoint, self.dtype = checkpoint, dtype
        # Base models name their weights without the prefix that models with a head put first.
        prefixed = any(name.startswith(prefix) for name in checkpoint.files)
        self.prefix, self.known = prefix if prefixed else "", set()

    def __call__(self, name: str, *shape: int) -> np.ndarray:
        """Read one tensor."""
        self.known.add(self.prefix + name)
        return self.checkpoint.read(self.prefix + name, shape, self.dtype)

    def passed_over(self, *names: str) -> None:
        """Know of tensors that hold no weights."""
        self.known.update(self.prefix + name for name in names)


class Sizes(NamedTuple):
    """What a layer is made of, by its family's configuration."""

    width: int
    heads: int
    hidden: int
    eta: float
    activation: Callable[[Array], Array]


def gpt2(checkpoint: Checkpoint, dtype: str) -> Weights:
    """GPT-2: learned places, layer norms with biases everywhere, the split step at unit increment.

    Its files store matrices from the input to the output side, all heads and the three projections
    side by side.
    """
    config = checkpoint.config
    width, depth, heads = (whole(config, name) for name in ("n_embd", "n_layer", "n_head"))
    vocabulary, places = whole(config, "vocab_size"), whole(config, "n_positions")
    hidden = 4 * width if config.get("n_inner") is None else whole(config, "n_inner")
    eta = number(config, "layer_norm_epsilon", 1e-5)
    activation = chosen(config, "activation_function", ACTIVATIONS, "gelu_new")
    refuse_options(
        config,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    require_heads_divide(width, heads)
    sizes = Sizes(width, heads, hidden, eta, activation)
    read = Reader(checkpoint, dtype, "transformer.")
    embedding, positions = put(
        read("wte.weight", vocabulary, width), read("wpe.weight", places, width)
    )
    layers = stacked(_gpt2_layer(read, f"h.{index}", sizes) for index in range(depth))
    flow = ResidualFlow(layers, horizon=float(depth), step=split)
    last = _layer_norm(read, "ln_f", sizes)
    read.known.add("lm_head.weight")  # the embedding again, in some files
    return Weights(embedding, positions, flow, last, None, frozenset(read.known))


def _gpt2_layer(read: Reader, at: str, sizes: Sizes) -> TransformerField:
    width, heads, hidden = sizes.width, sizes.heads, sizes.hidden
    size = width // heads
    joined = read(f"{at}.attn.c_attn.weight", width, 3 * width)
    projections = joined.reshape(width, 3, heads, size).transpose(1, 2, 3, 0)
    biases = read(f"{at}.attn.c_attn.bias", 3 * width).reshape(3, heads, size)
    output = read(f"{at}.attn.c_proj.weight", width, width).reshape(heads, size, width)
    query, key, value, mixed = put(*projections, output.transpose(0, 2, 1))
    query_bias, key_bias, value_bias, mixed_bias = put(
        *biases, read(f"{at}.attn.c_proj.bias", width)
    )
    read.passed_over(f"{at}.attn.bias", f"{at}.attn.masked_bias")  # masks, in old files
    attention = CausalAttention(
        _layer_norm(read, f"{at}.ln_1", sizes),
        query=query,
        key=key,
        value=value,
        output=mixed,
        query_bias=query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
        output_bias=mixed_bias,
    )
    tokenwise = put(
        read(f"{at}.mlp.c_fc.weight", width, hidden).T,
        read(f"{at}.mlp.c_fc.bias", hidden),
        read(f"{at}.mlp.c_proj.weight", hidden, width).T,
        read(f"{at}.mlp.c_proj.bias", width),
    )
    norm = _layer_norm(read, f"{at}.ln_2", sizes)
    return TransformerField(attention, FeedForward(norm, *tokenwise, activation=sizes.activation))


def _layer_norm(read: Reader, name: str, sizes: Sizes) -> LayerNorm:
    scale, shift = put(read(f"{name}.weight", sizes.width), read(f"{name}.bias", sizes.width))
    return LayerNorm(scale, shift, sizes.eta)


FAMILIES: Mapping[str, Callable[[Checkpoint, str], Weights]] = {"gpt2": gpt2}


def put(*arrays: np.ndarray) -> list[Array]:
    """Arrays on the device."""
    return [jax.device_put(np.ascontiguousarray(array)) for array in arrays]


def stacked(layers: Iterator[TransformerField]) -> TransformerField:
    """Join layers along a leading axis, leaf by leaf, so that one leaf at most stands twice."""
    found = [jax.tree.flatten(layer) for layer in layers]
    tree, joined = found[0][1], []
    for position in range(len(found[0][0])):
        joined.append(jax.device_put(np.stack([leaves[position] for leaves, _ in found])))
        for leaves, _ in found:
            leaves[position] = None
    return jax.tree.unflatten(tree, joined)


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


def number(config: Mapping[str, Any], name: str, default: float) -> float:
    """A positive number of the configuration."""
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
