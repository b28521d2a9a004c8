"""Llama and its relatives, Mistral, Qwen 2 and Qwen 3: RMS norms, rotary positions, gates."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxtyping import Array

from lim_jax._checks import require
from lim_jax.models.options import refuse_options
from lim_jax.models.reading import (
    ACTIVATIONS,
    Reader,
    Sizes,
    Source,
    Weights,
    by_head,
    chosen,
    frequencies_of,
    head_of,
    number,
    put,
    require_heads_divide,
    rope_options,
    stacked,
    whole,
)
from lim_jax.network.field import TransformerField
from lim_jax.network.flow import ResidualFlow, split
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.norms import RMSNorm
from lim_jax.network.positions import Rotary
from lim_jax.network.span import Span
from lim_jax.network.tokenwise import GatedFeedForward

WINDOW = 4096  # the publishers' own, where nothing is said


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
    window
        How many tokens a row of attention sees, or None for all before it.
    """

    projected: bool
    mixed: bool
    tokenwise: bool
    normed: bool
    window: int | None = None


def llama(checkpoint: Source, dtype: str) -> Weights:
    """Llama: RMS norms, rotary positions, grouped queries, gated networks."""
    config = checkpoint.config
    biased = bool(config.get("attention_bias", False))
    return _llama(
        checkpoint, dtype, Options(biased, biased, bool(config.get("mlp_bias", False)), False)
    )


def mistral(checkpoint: Source, dtype: str) -> Weights:
    """Mistral: Llama without biases; a sliding window of 4,096 tokens, or where it is null none."""
    config = checkpoint.config
    slides = config.get("sliding_window", WINDOW) is not None
    window = _window(config, "sliding_attention" if slides else "full_attention")
    return _llama(checkpoint, dtype, Options(False, False, False, False, window))


def qwen2(checkpoint: Source, dtype: str) -> Weights:
    """Qwen 2: Llama with biases of queries, keys and values."""
    window = _qwens_window(checkpoint.config)
    return _llama(checkpoint, dtype, Options(True, False, False, False, window))


def qwen3(checkpoint: Source, dtype: str) -> Weights:
    """Qwen 3: Llama with norms of every head's queries and keys."""
    config = checkpoint.config
    biased = bool(config.get("attention_bias", False))
    return _llama(checkpoint, dtype, Options(biased, biased, False, True, _qwens_window(config)))


def _qwens_window(config: Mapping[str, Any]) -> int | None:
    """Where nothing is said of layers they slide from `max_window_layers` on, if any do."""
    slides, first = config.get("use_sliding_window", False), config.get("max_window_layers", 28)
    depth = whole(config, "num_hidden_layers")
    first = first if slides else depth
    return _window(
        config, *("full_attention" if k < first else "sliding_attention" for k in range(depth))
    )


def _window(config: Mapping[str, Any], *spelt: str) -> int | None:
    """The sliding window, where all layers have one; `spelt` are their kinds if no list says."""
    kinds, window = config.get("layer_types") or spelt, config.get("sliding_window", WINDOW)
    require(
        len(set(kinds)) == 1 and kinds[0] in ("full_attention", "sliding_attention"),
        "config.json",
        got=f"layer_types = {sorted(set(map(str, kinds)))}",
        expected="full_attention in every layer, or sliding_attention in every layer",
        cure="Networks whose layers see differently are not known here.",
    )
    if kinds[0] == "full_attention":
        return None
    return whole({"sliding_window": window}, "sliding_window")


def _llama(checkpoint: Source, dtype: str, options: Options) -> Weights:
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
    refuse_options(rope_options(config), partial_rotary_factor=1.0)
    rotary = Rotary(frequencies_of(config, size, "rope_theta"))
    tied = config.get("tie_word_embeddings", False)
    read = Reader(checkpoint, dtype, "model.")
    (embedding,) = put(read("embed_tokens.weight", vocabulary, width))
    layers = stacked(
        lambda index: _llama_layer(read, f"layers.{index}", sizes, rotary, options), depth
    )
    flow = ResidualFlow(layers, horizon=float(depth), step=split)
    last = _rms_norm(read, "norm", width, eta)
    read.known.add("lm_head.weight")
    head = head_of(read, "lm_head.weight", tied, embedding, vocabulary, width)
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
    (output,) = put(by_head(read(f"{at}.o_proj.weight", width, heads * size), heads))
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
        span=Span(window=options.window, places=rotary),
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
