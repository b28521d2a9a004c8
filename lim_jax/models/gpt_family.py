"""GPT-2 and GPT-NeoX: layer norms, biases everywhere."""

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
    stacked,
    whole,
)
from lim_jax.network.field import TransformerField
from lim_jax.network.flow import ResidualFlow, euler, split
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.norms import LayerNorm
from lim_jax.network.positions import Rotary
from lim_jax.network.span import Span
from lim_jax.network.tokenwise import FeedForward


def gpt2(checkpoint: Source, dtype: str) -> Weights:
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
    )
    tied = config.get("tie_word_embeddings", True)
    require_heads_divide(width, heads)
    sizes = Sizes(width, heads, hidden, eta, activation)
    read = Reader(checkpoint, dtype, "transformer.")
    embedding, positions = put(
        read("wte.weight", vocabulary, width), read("wpe.weight", places, width)
    )
    layers = stacked(lambda index: _gpt2_layer(read, f"h.{index}", sizes), depth)
    flow = ResidualFlow(layers, horizon=float(depth), step=split)
    last = _layer_norm(read, "ln_f", sizes)
    read.known.add("lm_head.weight")
    head = head_of(read, "lm_head.weight", tied, embedding, vocabulary, width)
    return Weights(embedding, positions, flow, last, head, frozenset(read.known))


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


def gpt_neox(checkpoint: Source, dtype: str) -> Weights:
    """GPT-NeoX and Pythia: rotary positions on a part of each head, an own head of words.

    Its parallel blocks are exactly the paper's one-field recursion (`eq:discrete-residual`) at unit
    increment; where ``use_parallel_residual`` is false, layers are split.
    """
    config = checkpoint.config
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    width, depth, heads, hidden = (whole(config, name) for name in names)
    vocabulary = whole(config, "vocab_size")
    require_heads_divide(width, heads)
    refuse_options(config, attention_bias=True)
    tied = config.get("tie_word_embeddings", False)
    eta = number(config, "layer_norm_eps", 1e-5)
    activation = chosen(config, "hidden_act", ACTIVATIONS, "gelu")
    sizes = Sizes(width, heads, hidden, eta, activation)
    part = config.get("rotary_pct", 0.25)
    rotary = Rotary(frequencies_of(config, width // heads, "rotary_emb_base", part))
    step = euler if config.get("use_parallel_residual", True) else split
    read = Reader(checkpoint, dtype, "gpt_neox.")
    (embedding,) = put(read("embed_in.weight", vocabulary, width))
    layers = stacked(lambda index: _gpt_neox_layer(read, f"layers.{index}", sizes, rotary), depth)
    flow = ResidualFlow(layers, horizon=float(depth), step=step)
    last = _layer_norm(read, "final_layer_norm", sizes)
    head = head_of(read, "embed_out.weight", tied, embedding, vocabulary, width)
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
        by_head(read(f"{attention}.dense.weight", width, width), heads),
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
            span=Span(places=rotary),
        ),
        FeedForward(second, inner, inner_bias, outer, outer_bias, sizes.activation),
    )
