"""Families of networks: how each names its weights, and which of its options are known."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from lim_jax._checks import described, require
from lim_jax.models.checkpoint import Checkpoint
from lim_jax.network.field import (
    CausalAttention,
    FeedForward,
    GatedFeedForward,
    TransformerField,
)
from lim_jax.network.flow import ResidualFlow, euler, split
from lim_jax.network.norms import LayerNorm, Norm, RMSNorm
from lim_jax.network.positions import (
    Frequencies,
    Rotary,
    linear_scaling,
    llama3_scaling,
    rotary_frequencies,
)


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

    def whole(self, name: str, *shape: int) -> np.ndarray:
        """Read a tensor that stands outside the base model, without prefix."""
        self.known.add(name)
        return self.checkpoint.read(name, shape, self.dtype)

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
    groups: int = 0
    size: int = 0


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


def gpt_neox(checkpoint: Checkpoint, dtype: str) -> Weights:
    """GPT-NeoX and Pythia: rotary positions on a part of each head, an own head of words.

    Its parallel blocks are exactly the paper's one-field recursion (`eq:discrete-residual`) at unit
    increment; where ``use_parallel_residual`` is false, layers are split.
    """
    config = checkpoint.config
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    width, depth, heads, hidden = (whole(config, name) for name in names)
    vocabulary = whole(config, "vocab_size")
    require_heads_divide(width, heads)
    refuse_options(config, attention_bias=True, tie_word_embeddings=False)
    eta = number(config, "layer_norm_eps", 1e-5)
    activation = chosen(config, "hidden_act", ACTIVATIONS, "gelu")
    sizes = Sizes(width, heads, hidden, eta, activation)
    part = _rope(config).get("partial_rotary_factor", config.get("rotary_pct", 0.25))
    rotary = Rotary(frequencies_of(config, int(width // heads * part), "rotary_emb_base"))
    read = Reader(checkpoint, dtype, "gpt_neox.")
    (embedding,) = put(read("embed_in.weight", vocabulary, width))
    layers = stacked(
        _gpt_neox_layer(read, f"layers.{index}", sizes, rotary) for index in range(depth)
    )
    step = euler if config.get("use_parallel_residual", True) else split
    flow = ResidualFlow(layers, horizon=float(depth), step=step)
    last = _layer_norm(read, "final_layer_norm", sizes)
    (head,) = put(read.whole("embed_out.weight", vocabulary, width))
    return Weights(embedding, None, flow, last, head, frozenset(read.known))


def _gpt_neox_layer(read: Reader, at: str, sizes: Sizes, rotary: Rotary) -> TransformerField:
    width, heads, hidden = sizes.width, sizes.heads, sizes.hidden
    size, attention = width // heads, f"{at}.attention"
    # Head by head, each with its query, key and value.
    joined = read(f"{attention}.query_key_value.weight", 3 * width, width)
    projections = joined.reshape(heads, 3, size, width).transpose(1, 0, 2, 3)
    biases = read(f"{attention}.query_key_value.bias", 3 * width).reshape(heads, 3, size)
    query, key, value, *added = put(*projections, *biases.transpose(1, 0, 2))
    output, output_bias = put(
        _by_head(read(f"{attention}.dense.weight", width, width), heads),
        read(f"{attention}.dense.bias", width),
    )
    read.passed_over(
        *(f"{attention}.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq"))
    )
    inner, inner_bias, outer, outer_bias = put(
        read(f"{at}.mlp.dense_h_to_4h.weight", hidden, width),
        read(f"{at}.mlp.dense_h_to_4h.bias", hidden),
        read(f"{at}.mlp.dense_4h_to_h.weight", width, hidden),
        read(f"{at}.mlp.dense_4h_to_h.bias", width),
    )
    first, second = (
        _layer_norm(read, f"{at}.{name}", sizes)
        for name in ("input_layernorm", "post_attention_layernorm")
    )
    query_bias, key_bias, value_bias = added
    return TransformerField(
        CausalAttention(
            first,
            query,
            key,
            value,
            output,
            query_bias,
            key_bias,
            value_bias,
            output_bias,
            rotary=rotary,
        ),
        FeedForward(second, inner, inner_bias, outer, outer_bias, sizes.activation),
    )


class Options(NamedTuple):
    """In what Llama's relatives differ.

    Attributes
    ----------
    projected, mixed
        Whether queries, keys and values have biases; whether the output has.
    tokenwise
        Whether the gated network has.
    normed
        Whether every head's queries and keys are normalised.
    """

    projected: bool
    mixed: bool
    tokenwise: bool
    normed: bool


def llama(checkpoint: Checkpoint, dtype: str) -> Weights:
    """Llama: RMS norms, rotary positions, grouped queries, gated networks."""
    config = checkpoint.config
    refuse_options(config, pretraining_tp=1)
    biased = bool(config.get("attention_bias", False))
    return _llama(
        checkpoint, dtype, Options(biased, biased, bool(config.get("mlp_bias", False)), False)
    )


def mistral(checkpoint: Checkpoint, dtype: str) -> Weights:
    """Mistral: Llama without biases; sliding windows are not known here."""
    refuse_options(checkpoint.config, sliding_window=None)
    return _llama(checkpoint, dtype, Options(False, False, False, False))


def qwen2(checkpoint: Checkpoint, dtype: str) -> Weights:
    """Qwen 2: Llama with biases of queries, keys and values."""
    _refuse_windows(checkpoint.config)
    return _llama(checkpoint, dtype, Options(True, False, False, False))


def qwen3(checkpoint: Checkpoint, dtype: str) -> Weights:
    """Qwen 3: Llama with norms of every head's queries and keys."""
    _refuse_windows(checkpoint.config)
    biased = bool(checkpoint.config.get("attention_bias", False))
    return _llama(checkpoint, dtype, Options(biased, biased, False, True))


def _refuse_windows(config: Mapping[str, Any]) -> None:
    refuse_options(config, use_sliding_window=False)
    kinds = config.get("layer_types") or ["full_attention"]
    require(
        set(kinds) == {"full_attention"},
        "config.json",
        got=f"layer_types = {sorted(set(kinds))}",
        expected="full_attention in every layer",
        cure="Sliding windows are not known here.",
    )


def _llama(checkpoint: Checkpoint, dtype: str, options: Options) -> Weights:
    config = checkpoint.config
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    width, depth, heads, hidden = (whole(config, name) for name in names)
    vocabulary = whole(config, "vocab_size")
    groups = (
        heads if config.get("num_key_value_heads") is None else whole(config, "num_key_value_heads")
    )
    if config.get("head_dim") is None:
        require_heads_divide(width, heads)
        size = width // heads
    else:
        size = whole(config, "head_dim")
    eta = number(config, "rms_norm_eps", 1e-6)
    activation = chosen(config, "hidden_act", ACTIVATIONS, "silu")
    sizes = Sizes(width, heads, hidden, eta, activation, groups, size)
    rotary = Rotary(frequencies_of(config, size, "rope_theta"))
    read = Reader(checkpoint, dtype, "model.")
    (embedding,) = put(read("embed_tokens.weight", vocabulary, width))
    layers = stacked(
        _llama_layer(read, f"layers.{index}", sizes, rotary, options) for index in range(depth)
    )
    flow = ResidualFlow(layers, horizon=float(depth), step=split)
    last = _rms_norm(read, "norm", width, eta)
    if config.get("tie_word_embeddings", False):
        read.known.add("lm_head.weight")
        head = None
    else:
        (head,) = put(read.whole("lm_head.weight", vocabulary, width))
    return Weights(embedding, None, flow, last, head, frozenset(read.known))


def _llama_layer(
    read: Reader, at: str, sizes: Sizes, rotary: Rotary, options: Options
) -> TransformerField:
    return TransformerField(
        _llama_attention(read, at, sizes, rotary, options), _llama_network(read, at, sizes, options)
    )


def _llama_attention(
    read: Reader, layer: str, sizes: Sizes, rotary: Rotary, options: Options
) -> CausalAttention:
    width, heads, groups, size = sizes.width, sizes.heads, sizes.groups, sizes.size
    at = f"{layer}.self_attn"

    def projection(letter: str, count: int) -> tuple[Array, Array | None]:
        rows = read(f"{at}.{letter}_proj.weight", count * size, width)
        (matrix,) = put(rows.reshape(count, size, width))
        bias = _bias(read, f"{at}.{letter}_proj", count, size) if options.projected else None
        return matrix, bias

    def of_heads(name: str) -> RMSNorm | None:
        return _rms_norm(read, f"{at}.{name}", size, sizes.eta) if options.normed else None

    query, query_bias = projection("q", heads)
    key, key_bias = projection("k", groups)
    value, value_bias = projection("v", groups)
    (output,) = put(_by_head(read(f"{at}.o_proj.weight", width, heads * size), heads))
    read.passed_over(f"{at}.rotary_emb.inv_freq")
    return CausalAttention(
        _rms_norm(read, f"{layer}.input_layernorm", width, sizes.eta),
        query,
        key,
        value,
        output,
        query_bias,
        key_bias,
        value_bias,
        _bias(read, f"{at}.o_proj", width) if options.mixed else None,
        query_norm=of_heads("q_norm"),
        key_norm=of_heads("k_norm"),
        rotary=rotary,
    )


def _llama_network(read: Reader, layer: str, sizes: Sizes, options: Options) -> GatedFeedForward:
    width, hidden, at = sizes.width, sizes.hidden, f"{layer}.mlp"
    gate, up, down = put(
        read(f"{at}.gate_proj.weight", hidden, width),
        read(f"{at}.up_proj.weight", hidden, width),
        read(f"{at}.down_proj.weight", width, hidden),
    )

    def bias(name: str, size: int) -> Array | None:
        return _bias(read, f"{at}.{name}_proj", size) if options.tokenwise else None

    return GatedFeedForward(
        _rms_norm(read, f"{layer}.post_attention_layernorm", width, sizes.eta),
        gate,
        up,
        down,
        bias("gate", hidden),
        bias("up", hidden),
        bias("down", width),
        sizes.activation,
    )


def _bias(read: Reader, name: str, *shape: int) -> Array:
    (found,) = put(read(f"{name}.bias", math.prod(shape)).reshape(shape))
    return found


def _rms_norm(read: Reader, name: str, width: int, eta: float) -> RMSNorm:
    (scale,) = put(read(f"{name}.weight", width))
    return RMSNorm(scale, eta)


def _by_head(matrix: np.ndarray, heads: int) -> np.ndarray:
    """A matrix from all heads side by side, cut into one block for each."""
    return matrix.reshape(len(matrix), heads, -1).transpose(1, 0, 2)


def frequencies_of(config: Mapping[str, Any], turning: int, base: str) -> Frequencies:
    """Rotary frequencies by a configuration's base and scaling, spelt in either of two ways.

    Raises
    ------
    ValueError
        Where the scaling is not none, linear or Llama 3's.
    """
    rope = _rope(config)
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


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


FAMILIES: Mapping[str, Callable[[Checkpoint, str], Weights]] = {
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
}


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
