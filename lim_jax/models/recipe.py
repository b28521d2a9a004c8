"""What a decoder is made of: where its tensors stand, and in what it differs from Llama."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from lim_jax._checks import require
from lim_jax.models.options import number, whole
from lim_jax.models.reading import Reader
from lim_jax.network.flow import split
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.norms import HeadNorm, Norm
from lim_jax.network.slots import Field
from lim_jax.network.span import Span, Spans


class Sizes(NamedTuple):
    """The sizes of a decoder and the small number of its norms, by its configuration."""

    width: int
    depth: int
    heads: int
    hidden: int
    vocabulary: int
    eta: float
    groups: int
    size: int


class Options(NamedTuple):
    """Under which names a configuration says the sizes; `Sizes` says what they are."""

    width: str = "hidden_size"
    depth: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    hidden: str | None = "intermediate_size"
    eta: str = "rms_norm_eps"
    groups: str = "num_key_value_heads"
    size: str = "head_dim"


USUAL = Options()


def sizes_of(
    config: Mapping[str, Any],
    options: Options = USUAL,
    *,
    eta: float = 1e-6,
    size: int | None = None,
) -> Sizes:
    """Read the sizes; `eta` and a head's `size` are the family's own where nothing is said.

    Without a number of groups every head is one, without a size, or where that is null, the heads
    share the width, and without a hidden size it is four widths.

    Raises
    ------
    ValueError
        Where a size is missing or no positive whole number, or the heads do not divide the width.
    """
    width, depth, heads = (
        whole(config, name) for name in (options.width, options.depth, options.heads)
    )
    said = options.hidden is not None and config.get(options.hidden) is not None
    hidden = whole(config, options.hidden) if said and options.hidden else 4 * width
    groups = heads if config.get(options.groups) is None else whole(config, options.groups)
    if config.get(options.size, size) is None:
        require_heads_divide(width, heads)
        size = width // heads
    else:
        size = whole(config, options.size, size)
    vocabulary, eta = whole(config, "vocab_size"), number(config, options.eta, eta)
    return Sizes(width, depth, heads, hidden, vocabulary, eta, groups, size)


def require_heads_divide(width: int, heads: int) -> None:
    """Refuse heads that do not share the width."""
    require(
        width % heads == 0,
        "config.json",
        got=f"{heads} heads at width {width}",
        expected="a number of heads that divides the width",
        cure="Download it again.",
    )


class Names(NamedTuple):
    """Where a decoder's tensors stand, after its prefix; what it has not is None."""

    prefix: str = "model."
    embedding: str = "embed_tokens"
    embedding_norm: str | None = None
    positions: str | None = None
    layer: str = "layers"
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    joined: str = "self_attn.qkv_proj"
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
    passed_over: tuple[str, ...] = ("self_attn.rotary_emb.inv_freq",)


class Biases(NamedTuple):
    """Which matrices have one."""

    projected: bool = False
    mixed: bool = False
    tokenwise: bool = False
    head: bool = False


class Recipe(NamedTuple):
    """A decoder: its sizes, and in what it differs from Llama.

    Attributes
    ----------
    sizes, spans
        Of all its layers; what each layer sees.
    names, biases
        Where tensors stand, and which have a bias.
    norm
        Reads the norm of that name over as many features: `parts.rms_norm` and its like.
    head_norm
        Reads the norm of queries or keys from that name, for that many heads; None for none.
    projections
        Reads queries, keys and values of a layer, with their biases: `parts.apart` and its like.
    network
        Reads a layer's tokenwise network, given its norms: `parts.gated` and its like.
    attention
        Reads a layer's attention: `parts.of_matrices` and its like.
    activation
        That of the tokenwise network.
    places, offset
        How many learned places there are, where there are any, and how many rows stand before.
    transposed
        Whether matrices stand from the input to the output side in the files.
    paired
        Whether neighbouring features turn together in the files, not a head's two halves.
    step, increment
        How a layer is stepped, and by how much: what it adds is multiplied by it.
    scale, cap
        Of the scores.
    turn_first
        Whether queries and keys turn before their norms.
    further
        How many layers the files hold beyond the last, which guess further words.
    tied
        Whether the head is the embedding, where the file has none of its own.
    embedding_scale, logit_scale, logit_cap
        Of `causal.CausalLM`.
    """

    sizes: Sizes
    spans: tuple[Span, ...]
    norm: Callable[[Reader, str, int, float], Norm]
    projections: Callable[[Reader, str, "Recipe"], dict[str, Array | None]]
    network: Callable[[Reader, str, "Recipe", Norm, Norm | None], Field]
    attention: Callable[[Reader, str, "Recipe", Span | Spans], CausalAttention]
    activation: Callable[[Array], Array] = jax.nn.silu
    names: Names = Names()
    biases: Biases = Biases()
    head_norm: Callable[[Reader, str, int, "Recipe"], HeadNorm] | None = None
    places: int = 0
    offset: int = 0
    transposed: bool = False
    paired: bool = False
    step: Callable[..., Any] = split
    increment: float = 1.0
    scale: float | None = None
    cap: float | None = None
    turn_first: bool = False
    tied: bool = False
    further: int = 0
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None
