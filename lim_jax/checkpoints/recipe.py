"""Recipes of decoders: their sizes, where their tensors stand, and how they differ from Llama."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from lim_jax.checkpoints.options import Configuration, require_config
from lim_jax.checkpoints.tensor_reader import Reader, Tensor
from lim_jax.network.masks import AttentionMask, SwitchedMask
from lim_jax.network.norms import HeadNorm, Norm
from lim_jax.network.slots import Field
from lim_jax.network.steps import split


class Sizes(NamedTuple):
    """The sizes of a decoder and the epsilon of its norms.

    Attributes
    ----------
    width, depth, heads
        The width of a state, the number of layers, and the attention heads of each.
    intermediate_size
        How many hidden features the tokenwise network has.
    vocabulary
        How many words there are.
    norm_eps
        The epsilon of the norms.
    num_kv_heads
        How many heads have keys and values; the others share them.
    head_dim
        The size of a head's queries and keys.
    """

    width: int
    depth: int
    heads: int
    intermediate_size: int
    vocabulary: int
    norm_eps: float
    num_kv_heads: int
    head_dim: int


class SizeNames(NamedTuple):
    """The options of a configuration that state the sizes."""

    width: str = "hidden_size"
    depth: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    intermediate_size: str | None = "intermediate_size"
    norm_eps: str = "rms_norm_eps"
    num_kv_heads: str = "num_key_value_heads"
    head_dim: str = "head_dim"


LLAMA_NAMES = SizeNames()


def sizes_of(
    config: Configuration,
    names: SizeNames = LLAMA_NAMES,
    *,
    norm_eps: float = 1e-6,
    head_dim: int | None = None,
) -> Sizes:
    """Read the sizes of a decoder from the options of its ``config.json``.

    Parameters
    ----------
    config
        The options.
    names
        The names of the options that state the sizes; by default Llama's, which also serve where a
        family's own name of the width, the depth or the heads is not stated.
    norm_eps
        The epsilon of the norms, for configurations that state none.
    head_dim
        The size of a head, for configurations that state none; None if the heads share the width.

    Returns
    -------
    Sizes
        The sizes and the epsilon. By default there are as many key heads as heads, and the hidden
        layer of the tokenwise network is four times the width.

    Raises
    ------
    ValueError
        If a size is no positive whole number, the epsilon is not between 0 and 1, or heads that
        share the width do not divide it.
    """
    width = config.get_int(_stated_name(config, names.width, LLAMA_NAMES.width))
    depth = config.get_int(_stated_name(config, names.depth, LLAMA_NAMES.depth))
    heads = config.get_int(_stated_name(config, names.heads, LLAMA_NAMES.heads))
    inner = names.intermediate_size
    intermediate_size = 4 * width if inner is None else config.get_int_or(inner, 4 * width)
    num_kv_heads = config.get_int_or(names.num_kv_heads, heads)
    if config.get(names.head_dim, head_dim) is None:
        require_config(
            width % heads == 0,
            f"{heads} heads at width {width}",
            "a number of heads that divides the width",
        )
        head_dim = width // heads
    else:
        head_dim = config.get_int(names.head_dim, head_dim)
    vocabulary = config.get_int("vocab_size")
    norm_eps = config.get_positive(names.norm_eps, norm_eps, below=1.0)
    return Sizes(
        width, depth, heads, intermediate_size, vocabulary, norm_eps, num_kv_heads, head_dim
    )


def _stated_name(config: Configuration, family_name: str, usual: str) -> str:
    """Return the family's name of a size, or Llama's if only that one is stated."""
    is_stated = config.get(family_name) is not None or config.get(usual) is None
    return family_name if is_stated else usual


class Names(NamedTuple):
    """The names of a decoder's tensors, without their endings ``.weight`` and ``.bias``.

    Attributes
    ----------
    prefix
        Stands before the names of all tensors but the head's; files of base models may lack it.
    embedding, embedding_norm
        The embedding of words, and a norm of its rows, or None.
    positions
        The embedding of learned positions, or None.
    layer
        Stands before a layer's number, which stands before the names of its tensors.
    query, key, value, fused_qkv
        The projections of attention: three matrices, or the one that holds all three.
    output
        The projection behind attention.
    sinks
        The numbers of the heads' sinks, with the name's ending, or None.
    output_gate
        The matrix of the gate of what heads read, or None.
    query_norm, key_norm
        The norms of heads' queries and keys, which a recipe with a `head_norm` reads.
    network
        Stands before the names of the tokenwise network's matrices; empty for none.
    gate, up, down
        The matrices of the tokenwise network; without a gate `up` and `down` alone.
    before_attention, after_attention
        A layer's norms before attention and behind it, or None each.
    before_network, after_network
        A layer's norms before the tokenwise network and behind it, or None each.
    last
        The norm behind the last layer.
    head
        The matrix that gives logits, without `prefix`.
    ignored
        Tensors of a layer that hold no weights, with their endings.
    mtp_prefix
        The beginning of the whole names of tensors of layers that predict further tokens, or None.
    """

    prefix: str = "model."
    embedding: str = "embed_tokens"
    embedding_norm: str | None = None
    positions: str | None = None
    layer: str = "layers"
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    fused_qkv: str = "self_attn.qkv_proj"
    output: str = "self_attn.o_proj"
    sinks: str | None = None
    output_gate: str | None = None
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    network: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_network: str | None = "post_attention_layernorm"
    after_network: str | None = None
    last: str = "norm"
    head: str = "lm_head"
    ignored: tuple[str, ...] = ("self_attn.rotary_emb.inv_freq",)
    mtp_prefix: str | None = None


class Biases(NamedTuple):
    """Which matrices have a bias."""

    qkv: bool = False
    attention_output: bool = False
    mlp: bool = False
    head: bool = False


class Recipe(NamedTuple):
    """A decoder: its sizes, and how it differs from Llama; `sublayers` has readers of its parts."""

    sizes: Sizes
    masks: tuple[AttentionMask, ...]  # of every layer
    norm: Callable[[Reader, str, int, float], Norm]  # by its name, its width and epsilon
    projections: Callable[[Reader, str, "Recipe"], dict[str, Tensor]]  # with their biases
    # The sublayers; None for what a layer does not have.
    network: Callable[[Reader, str, "Recipe", Norm, Norm | None], Field] | None
    attention: Callable[[Reader, str, "Recipe", AttentionMask | SwitchedMask], Field] | None
    activation: Callable[..., Array] = jax.nn.silu
    names: Names = Names()
    biases: Biases = Biases()
    # Of queries and keys, by its name and the number of heads.
    head_norm: Callable[[Reader, str, int, "Recipe"], HeadNorm] | None = None
    value_norm: Callable[..., HeadNorm] | None = None  # likewise, of values, without a name
    num_positions: int = 0  # learned ones
    offset: int = 0  # rows of the learned positions that stand before the first
    transposed: bool = False  # whether files hold matrices of shape (inputs, outputs)
    rope_interleaved: bool = False  # whether neighbouring features are rotated together
    step: Callable[..., Any] = split
    increment: float = 1.0  # by which what a layer adds is multiplied
    scale: float | None = None  # of the scores
    cap: float | None = None  # of the scores
    rope_before_qk_norm: bool = False
    tied: bool = False  # whether the head is the embedding, if the file has no head
    num_mtp_layers: int = 0  # layers behind the last that predict further tokens
    longest: tuple[int, str] | None = None  # of `causal.CausalLM`
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None
    layers: tuple["Recipe", ...] = ()  # the recipe of every layer, where they differ
