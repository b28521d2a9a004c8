"""Architectures of llama.cpp: their options by their publishers' names."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lim_jax._checks import described
from lim_jax.checkpoints.options import (
    CONVERT,
    GGUF,
    OTHER_NETWORK,
    Configuration,
    Options,
    require_in,
)
from lim_jax.checkpoints.rope_config import CHUNK, FULL, SLIDING, TRAINED, full_every

Tensors = frozenset[str]  # their names
Reading = Callable[[Configuration, Options, Tensors], dict[str, Any]]
Factors = Mapping[str, list[float]]
# The tensors that rotary frequencies are divided by: Llama 3's scaling, done; and of long contexts.
FREQUENCIES = "rope_freqs"
LONG = "rope_factors_long"
SHORT = "rope_factors_short"
# Options that change no number of the network, and the supported values of others.
HARMLESS = ("rope.scaling.finetuned", "rope.scaling.original_context_length")
SUPPORTED = {
    "attention.causal": (True,), "attention.sliding_window": (0,), "expert_count": (0,),
    "expert_used_count": (0,), "expert_group_count": (1,), "expert_group_used_count": (1,),
    "pooling_type": (0,), "rope.scaling.attn_factor": (1.0,),
    "tensor_data_layout": ("Meta AI original pth",),
}  # fmt: skip
# Of llama.cpp's functions of a router.
SOFTMAX = 1
SIGMOID = 2
STILL = 1e30  # by which the frequencies of pairs that do not turn are divided


def _bias_options(_: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return options that say which matrices have biases, judged by the stored tensors."""
    named = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    return {option: True for option, tensor in named.items() if tensor in tensors}


def _granite(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return Granite's multipliers and biases; raise ValueError at one without positions."""
    rotated = options.get("rope.scaling.finetuned", True)  # Granite's word for rotary positions
    options.require(
        "rope.scaling.finetuned",
        rotated,
        rotated is True,
        "True",
        "Take another model: networks without positions are not known here.",
    )
    return _bias_options(options, sizes, tensors) | {
        "embedding_multiplier": options.get_positive("embedding_scale", 1.0),
        "residual_multiplier": options.get_positive("residual_scale", 1.0),
        "attention_multiplier": options.get_positive("attention.scale", sizes["head_dim"] ** -0.5),
        "logits_scaling": options.get_positive("logit_scale", 1.0),
    }


def _ints(options: Configuration, **names: str) -> dict[str, Any]:
    """Read integer options, and return them by other names."""
    return {published_name: options.get_int(name) for published_name, name in names.items()}


def _expert_counts(options: Configuration) -> dict[str, Any]:
    """Return the number of experts and of those per token, by the publisher's names."""
    counts = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
    return _ints(options, **counts)


def _gemma4(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return Gemma 4's options: full layers have head sizes of their own, and perhaps no values."""
    kinds = _kinds(options, sizes, 6)
    small = options.get_int("attention.key_length_swa")
    for other in ("attention.value_length_swa", "rope.dimension_count_swa"):
        _require_same(options, other, small, "attention.key_length_swa")
    kv_heads = _kv_heads_by_kind(options, sizes, kinds)
    rope = sizes["rope_parameters"]
    full_sizes = {"head_dim": sizes["head_dim"], "num_key_value_heads": kv_heads[FULL]}
    config = {
        "head_dim": small, "num_key_value_heads": kv_heads[SLIDING], "layer_types": kinds,
        "per_layer_config": {f"{k}": full_sizes for k, kind in enumerate(kinds) if kind == FULL},
        "attention_k_eq_v": f"blk.{kinds.index(FULL)}.attn_v.weight" not in tensors,
        "sliding_window": options.get_int("attention.sliding_window"),
        "rope_parameters": {
            FULL: _proportional(rope, sizes["head_dim"]),
            SLIDING: {"rope_theta": options.get_positive("rope.freq_base_swa", 10_000.0)},
        },
        **_caps(options, final_logit_softcapping=None), "hidden_size_per_layer_input": 0,
    }  # fmt: skip
    if not options.get("expert_count"):
        return config
    return (
        config
        | {"enable_moe_block": True}
        | _ints(
            options,
            num_experts="expert_count",
            top_k_experts="expert_used_count",
            moe_intermediate_size="expert_feed_forward_length",
        )
    )


def _kv_heads_by_kind(options: Configuration, sizes: Options, kinds: list[str]) -> dict[str, int]:
    """Return the key heads of sliding and of full layers; raise ValueError if either differ."""
    name = "attention.head_count_kv"
    depth = sizes["num_hidden_layers"]
    stated = options.get(name, sizes["num_attention_heads"])
    by_layer = stated if isinstance(stated, list) else depth * [stated]
    counts = {SLIDING: set(), FULL: set()}
    for count, kind in zip(by_layer, kinds, strict=False):
        counts[kind].add(count)
    is_positive = all(type(count) is int and count > 0 for count in by_layer)
    is_alike = len(by_layer) == depth and all(len(some) == 1 for some in counts.values())
    options.require(name, by_layer, is_positive and is_alike, "one number for each kind of layers")
    return {kind: some.pop() for kind, some in counts.items()}


def _proportional(rope: Options, head_dim: int) -> Options:
    """Rewrite factors that keep a head's later pairs unrotated as a proportional scaling."""
    if rope["rope_type"] != "factors":
        return rope
    turned = sum(factor == 1 for factor in rope["factors"])
    require_in(
        "rope_freqs.weight",
        all(factor >= STILL for factor in rope["factors"][turned:]),
        f"factors {rope['factors']}",
        f"ones, and then no less than {STILL}",
    )
    part = 2 * turned / head_dim
    base = rope["rope_theta"]
    return {"rope_type": "proportional", "partial_rotary_factor": part, "rope_theta": base}


def _windows(options: Configuration, sizes: Options, period: int) -> dict[str, Any]:
    """Return the window and each layer's kind, by the publisher's names."""
    return {
        "sliding_window": options.get_int("attention.sliding_window"),
        "layer_types": _kinds(options, sizes, period),
    }


def _caps(options: Configuration, **usual: float | None) -> dict[str, Any]:
    """Read caps of scores or logits, None where a file has none and no default is given."""
    return {
        name: cap if cap is None and options.get(name) is None else options.get_positive(name, cap)
        for name, cap in usual.items()
    }


def _mistral3(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return the options of Mistral 3.1 and 3.2, or of Ministral 3 with growing queries."""
    name = "attention.temperature_scale"
    if options.get(name) is None:  # Mistral 3.1 and 3.2
        return {"model_type": "mistral", "sliding_window": None}
    growth = {"llama_4_scaling_beta": options.get_positive(name)}
    return {"rope_parameters": sizes["rope_parameters"] | growth}


def _olmo2(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return the options of OLMo 3 if the file has a window, and else none beyond OLMo 2's."""
    if options.get("attention.sliding_window", 0) == 0:
        return {}
    rope = sizes["rope_parameters"]
    by_kind = {FULL: rope, SLIDING: {"rope_theta": rope["rope_theta"]}}  # only full ones scale
    return _windows(options, sizes, 4) | {"model_type": "olmo3", "rope_parameters": by_kind}


def _qwen3vl(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return the options of Qwen 3 VL's text, of which those about images are ignored."""
    # The axes of images, and layers to which images are added: text has one axis and no image.
    options.ignore("rope.dimension_sections", "n_deepstack_layers")
    return _qwen3moe(options, sizes, tensors) if "expert_count" in options else {}


def _qwen3moe(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return the options of Qwen 3's experts."""
    hidden = options.get_int("expert_feed_forward_length")
    return _expert_counts(options) | {"moe_intermediate_size": hidden, "norm_topk_prob": True}


def _llama4(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return the options of Llama 4's experts, norms and layers."""
    experts = options.get_int("expert_count")
    config = _expert_counts(options) | {
        "intermediate_size": options.get_int("expert_feed_forward_length"),
        "intermediate_size_mlp": sizes["intermediate_size"],
        "interleave_moe_layer_step": options.get_int("interleave_moe_layer_step"),
        "use_qk_norm": experts != 128,  # as llama.cpp tells Maverick from Scout
    }
    window = options.get_int("attention.sliding_window", CHUNK, least=0)
    options.require(
        "attention.sliding_window",
        window,
        window in (0, CHUNK),
        f"{CHUNK}, or 0 if all layers are full",
    )
    if window == 0:  # all layers have positions
        depth = sizes["num_hidden_layers"]
        config |= {"no_rope_layers": depth * [1], "layer_types": depth * [FULL]}
    return config


def _routing_options(options: Configuration, *, dense: str, shared: str) -> dict[str, Any]:
    """Return options of experts beside shared ones; `dense` and `shared` are two options' names."""
    return {
        "num_experts_per_tok": options.get_int("expert_used_count"),
        "moe_intermediate_size": options.get_int("expert_feed_forward_length"),
        dense: options.get_int("leading_dense_block_count", 0, least=0),
        shared: options.get_int("expert_shared_count"),
    }


def _afmoe(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return Trinity's windows, routing and scales."""
    _require_only(options, "expert_gating_func", SIGMOID, default=SIGMOID)
    _require_only(options, "expert_weights_norm", True, default=False)
    routed = _routing_options(options, dense="num_dense_layers", shared="num_shared_experts")
    return (
        _windows(options, sizes, 4)
        | routed
        | {
            "num_experts": options.get_int("expert_count"),
            "mup_enabled": True,
            "route_scale": options.get_positive("expert_weights_scale", 1.0),
        }
    )


def _deepseek2(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return the options of DeepSeek V2 or V3: its experts, and the sizes of latent attention."""
    return _deepseek_experts(options) | _latent_sizes(options, sizes)


def _deepseek_experts(options: Configuration) -> dict[str, Any]:
    """Return how experts are chosen, and by that which family it is: DeepSeek V2 or V3."""
    gating = options.get_int("expert_gating_func", SOFTMAX)
    options.require(
        "expert_gating_func",
        gating,
        gating in (SOFTMAX, SIGMOID),
        f"{SOFTMAX}, a softmax, or {SIGMOID}, sigmoids",
    )
    groups = options.get_int("expert_group_count")
    routing = _routing_options(options, dense="first_k_dense_replace", shared="n_shared_experts")
    routing |= {
        "n_routed_experts": options.get_int("expert_count"),
        "n_group": groups,
        "topk_group": options.get_int("expert_group_used_count"),
        "norm_topk_prob": _flag(options, "expert_weights_norm", False),
        "routed_scaling_factor": options.get_positive("expert_weights_scale", 1.0),
    }
    if gating == SIGMOID:
        return routing | {"model_type": "deepseek_v3"}
    _require_only(options, "expert_weights_norm", False, default=False)
    method = "group_limited_greedy" if groups > 1 else "greedy"
    return routing | {"model_type": "deepseek_v2", "topk_method": method}


def _latent_sizes(options: Configuration, sizes: Options) -> dict[str, Any]:
    """Return the sizes of DeepSeek's latent attention."""
    rank = options.get_int("attention.kv_lora_rank")
    rotary = sizes["head_dim"]
    key = "attention.key_length"
    value = "attention.value_length"
    # Newer files state by these names the sizes of keys and values that are latent vectors, and
    # those of a head by names of their own.
    if options.get(f"{key}_mla") is not None:
        _require_same(options, key, rank + rotary, "latent and rotated features")
        _require_same(options, value, rank, "attention.kv_lora_rank")
        key += "_mla"
        value += "_mla"
    head_dim = options.get_int(key)
    options.require(key, head_dim, head_dim > rotary, f"more than rope.dimension_count, {rotary}")
    query = "attention.q_lora_rank"
    return {
        "num_key_value_heads": sizes["num_attention_heads"],
        "kv_lora_rank": rank,
        "q_lora_rank": options.get_int(query) if query in options else None,
        "qk_rope_head_dim": rotary,
        "qk_nope_head_dim": head_dim - rotary,
        "v_head_dim": options.get_int(value),
    }


def _flag(options: Configuration, name: str, default: bool) -> bool:
    """Return a boolean option; raise ValueError at another type."""
    value = options.get(name, default)
    return options.require(name, value, isinstance(value, bool), "True or False")


def _require_only(options: Configuration, name: str, only: Any, default: Any) -> None:
    """Raise ValueError unless an option has the only supported value."""
    value = options.get(name, default)
    options.require(
        name,
        value,
        type(value) is type(only) and value == only,
        f"{only}",
        "Take another model: other experts are not known here.",
    )


def _scalar(sizes: Options, layers: int) -> Any:
    """Return the number whose root scores are divided by: `head_dim`, but in the largest Gemma."""
    largest = sizes["num_hidden_layers"] == layers
    return sizes["hidden_size"] // sizes["num_attention_heads"] if largest else sizes["head_dim"]


def _kinds(options: Configuration, sizes: Options, period: int) -> list[str]:
    """Return each layer's kind, by a list of flags or by the period of full layers."""
    name = "attention.sliding_window_pattern"
    depth = sizes["num_hidden_layers"]
    pattern = options.get(name)
    if not isinstance(pattern, list):
        return list(full_every(options.get_int(name, period), depth))
    flags = len(pattern) == depth and all(isinstance(flag, bool) for flag in pattern)
    require_in(
        GGUF, flags, f"{name} = {pattern}", f"{depth} of True, where a layer slides, or False"
    )
    return [SLIDING if slides else FULL for slides in pattern]


def _require_one_state(options: Configuration) -> None:
    """Raise ValueError at layers that read other layers' states or inputs of their own."""
    cure = (
        "Take another model: a layer must be a map of one state, and no flow passes these on "
        "(Gemma 4 E2B and E4B)."
    )
    for name in ("attention.shared_kv_layers", "embedding_length_per_layer_input"):
        value = options.get(name, 0)
        options.require(name, value, value == 0 and value is not False, "0", cure)


def _trained_length(options: Configuration) -> int:
    """Return the context length of the training before rotary positions were scaled."""
    length = options.get_int("context_length")
    return options.get_int("rope.scaling.original_context_length", length)


def _require_same(options: Configuration, name: str, size: int, of: str) -> None:
    """Raise ValueError unless an option that states a size again agrees with it."""
    value = options.get(name, size)
    options.require(
        name,
        value,
        value == size,
        f"{size}, as {of}",
        "Take another model: heads of several sizes are not known here.",
    )


def _gemma2(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return Gemma 2's scale, layer kinds, window and caps."""
    return {
        "query_pre_attn_scalar": _scalar(sizes, 46),
        "layer_types": _kinds(options, sizes, 2),
        "sliding_window": options.get_int("attention.sliding_window", 4096),
        **_caps(options, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    }


def _gemma3(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return Gemma 3's scale, windows, rotary bases and cap."""
    return {
        "query_pre_attn_scalar": _scalar(sizes, 62),
        **_windows(options, sizes, 6),
        "rope_parameters": {FULL: sizes["rope_parameters"]},
        "rope_local_base_freq": options.get_positive("rope.freq_base_swa", 10_000.0),
        **_caps(options, final_logit_softcapping=None),
    }


def _phi3(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return Phi-3's window, None if no layer slides, and the trained context length."""
    # Zero says that no layer slides; files without it are older than the option.
    slides = options.get("attention.sliding_window") != 0
    window = options.get_int("attention.sliding_window") if slides else None
    return {"sliding_window": window, TRAINED: _trained_length(options)}


def _cohere2(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return Command R7B's windows and scale of logits."""
    scale = options.get_positive("logit_scale")
    return _windows(options, sizes, 4) | {"logit_scale": scale}


def _exaone4(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return EXAONE 4's windows, if it has any."""
    slides = options.get("attention.sliding_window") is not None
    return _windows(options, sizes, 4) if slides else {"sliding_window": None}


def _gpt_oss(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return gpt-oss's experts, windows and hidden size."""
    hidden = options.get_int("expert_feed_forward_length")
    published = _expert_counts(options) | _windows(options, sizes, 2)
    return published | {"intermediate_size": hidden}


def _llama(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return Mixtral's options if the file has experts, and else which matrices have biases."""
    if options.get("expert_count"):
        return {"model_type": "mixtral"} | _expert_counts(options)
    return _bias_options(options, sizes, tensors)


def _granitemoe(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return Granite's options and the counts of its experts."""
    return _granite(options, sizes, tensors) | _expert_counts(options)


def _gpt2(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return GPT-2's positions, which are learned and not rotary."""
    return {"rope_parameters": None}


def _gptneox(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return whether GPT-NeoX's sublayers read the same state."""
    return {"use_parallel_residual": _flag(options, "use_parallel_residual", True)}


def _seed_oss(options: Configuration, sizes: Options, tensors: Tensors) -> dict[str, Any]:
    """Return which of Seed-OSS's matrices have biases."""
    return {
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "attention_out_bias": "blk.0.attn_output.bias" in tensors,
    }


def _with_biases(option: str) -> Reading:
    """Return a reader that sets `option` to whether the queries have a bias."""
    return lambda options, sizes, tensors: {option: "blk.0.attn_q.bias" in tensors}


class Architecture(NamedTuple):
    """An architecture of llama.cpp."""

    family: str  # its publisher's name
    # The publisher's options beyond the sizes, by the file's, by these sizes and by its tensors.
    further: Reading = lambda options, sizes, tensors: {}
    permuted: bool = False  # whether llama.cpp interleaved the rows of queries and keys
    partial_rotary: bool = False  # whether a part of each head may be rotated
    layer_norm_eps: str | None = None  # the publisher's name of it; else norms are RMS norms
    names: Mapping[str, str] = {}  # the publisher's names of options, where they are not Llama's


ARCHITECTURES: Mapping[str, Architecture] = {
    "afmoe": Architecture("afmoe", _afmoe),
    "arcee": Architecture("arcee", _bias_options, permuted=True),
    "cohere2": Architecture("cohere2", _cohere2, layer_norm_eps="layer_norm_eps"),
    "deepseek2": Architecture("deepseek_v2", _deepseek2),
    "exaone4": Architecture("exaone4", _exaone4),
    "gemma": Architecture("gemma"),
    "gemma2": Architecture("gemma2", _gemma2),
    "gemma3": Architecture("gemma3_text", _gemma3),
    "gemma4": Architecture("gemma4_text", _gemma4),
    "glm4": Architecture("glm4", _with_biases("attention_bias"), partial_rotary=True),
    "gpt-oss": Architecture("gpt_oss", _gpt_oss),
    "gpt2": Architecture(
        "gpt2", _gpt2, layer_norm_eps="layer_norm_epsilon",
        names={
            "hidden_size": "n_embd", "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head", "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
        },
    ),
    "gptneox": Architecture(
        "gpt_neox", _gptneox, partial_rotary=True, layer_norm_eps="layer_norm_eps"
    ),
    "granite": Architecture("granite", _granite, permuted=True),
    "granitemoe": Architecture("granitemoe", _granitemoe, permuted=True),
    "llama": Architecture("llama", _llama, permuted=True),
    "llama4": Architecture("llama4_text", _llama4),
    "mistral3": Architecture("ministral3", _mistral3, permuted=True),
    "olmo2": Architecture("olmo2", _olmo2),
    "phi3": Architecture("phi3", _phi3, partial_rotary=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen3moe": Architecture("qwen3_moe", _qwen3moe),
    "qwen3vl": Architecture("qwen3", _qwen3vl),
    "qwen3vlmoe": Architecture("qwen3_moe", _qwen3vl),
    "seed_oss": Architecture("seed_oss", _seed_oss),
    "smollm3": Architecture("smollm3", _bias_options, permuted=True),
    "starcoder2": Architecture(
        "starcoder2", _with_biases("use_bias"), layer_norm_eps="norm_epsilon"
    ),
}  # fmt: skip


def published_config(
    name: str, options: Options, vocabulary: int, tensors: frozenset[str], factors: Factors
) -> dict[str, Any]:
    """Return the publisher's configuration for options whose names have no architecture prefix."""
    file = Configuration(options, GGUF)
    architecture = ARCHITECTURES[name]
    width = file.get_int("embedding_length")
    heads = file.get_int("attention.head_count")
    if architecture.family == "deepseek_v2":  # whose heads have parts of several sizes
        head_dim = file.get_int("rope.dimension_count")
    else:
        head_dim = file.get_int("attention.key_length", width // heads)
        _require_same(file, "attention.value_length", head_dim, "attention.key_length")
    _require_one_state(file)
    groups = heads if name == "gemma4" else file.get_int("attention.head_count_kv", heads)
    layer_norm = architecture.layer_norm_eps
    norm_eps = f"attention.layer_norm_{'rms_' if layer_norm is None else ''}epsilon"
    sizes = {
        "model_type": architecture.family, "hidden_size": width,
        "num_hidden_layers": file.get_int("block_count"), "num_attention_heads": heads,
        "num_key_value_heads": groups, "head_dim": head_dim,
        "intermediate_size": file.get_int("feed_forward_length"),
        "vocab_size": file.get_int("vocab_size", vocabulary),
        layer_norm or "rms_norm_eps": file.get_positive(norm_eps, below=1.0),
        "max_position_embeddings": file.get_int("context_length"),
        "tie_word_embeddings": "output.weight" not in tensors,
    }  # fmt: skip
    rotary_dim = _rotary_dim(file, head_dim, architecture)
    _require_factors(factors, rotary_dim // 2)
    rope = _scaling_options(file, architecture, factors)
    rope["rope_theta"] = file.get_positive("rope.freq_base", 10_000.0)
    if architecture.partial_rotary:  # half a feature more, so that no rounding takes one away
        rope["partial_rotary_factor"] = min(1.0, (rotary_dim + 0.5) / head_dim)
    sizes["rope_parameters"] = rope
    config = sizes | architecture.further(file, sizes, tensors)
    for option, value in options.items():
        is_read = option in file.read_names
        is_supported = is_read or option in HARMLESS or value in SUPPORTED.get(option, ())
        file.require(option, value, is_supported, "options of the architecture", OTHER_NETWORK)
    return {architecture.names.get(name, name): value for name, value in config.items()}


def _scaling_options(
    options: Configuration, architecture: Architecture, factors: Factors
) -> dict[str, Any]:
    """Return the scaling of rotary positions; raise ValueError at kinds that are not supported."""
    factor = options.get("rope.scaling.factor", options.get("rope.scale_linear"))
    # llama.cpp scales linearly if a file has a factor and no kind.
    stated = options.get("rope.scaling.type") or ("linear" if factor else "none")
    kind = "longrope" if stated == "none" and LONG in factors else stated
    if FREQUENCIES in factors:
        kinds = ("none",)
    elif LONG in factors:
        kinds = ("longrope",)
    else:
        kinds = ("none", "linear", "yarn")
    require_in(
        GGUF,
        kind in kinds,
        f"rope.scaling.type = {kind}",
        " or ".join(kinds),
        "Take another model: other scalings of rotary positions are not known here.",
    )
    if FREQUENCIES in factors:
        return {"rope_type": "factors", "factors": factors[FREQUENCIES]}
    if kind == "longrope":
        require_in(GGUF, SHORT in factors, f"{LONG}.weight, and no {SHORT}.weight", "both")
        return {
            "rope_type": "longrope",
            "long_factor": factors[LONG],
            "short_factor": factors[SHORT],
            "attention_factor": options.get_positive("rope.scaling.attn_factor", 1.0),
            TRAINED: _trained_length(options),
        }
    if kind == "yarn":
        return _yarn(options, architecture)
    if kind == "linear" and factor:
        name = "rope.scaling.factor" if "rope.scaling.factor" in options else "rope.scale_linear"
        return {"rope_type": "linear", "factor": options.get_positive(name)}
    return {"rope_type": "default"}


def _yarn(options: Configuration, architecture: Architecture) -> dict[str, Any]:
    """Return a YaRN scaling by the publisher's names."""
    expected = "none, by which it is YaRN's own"
    cure = (
        "Take the publisher's folder with safetensors: readers disagree whether this factor stands "
        "for YaRN's own or multiplies that."
    )
    for name in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"):
        require_in(
            GGUF,
            options.get(name) is None,
            f"{name} = {described(options.get(name))} of a yarn scaling",
            expected,
            cure,
        )
    scaling = {
        "rope_type": "yarn",
        "factor": options.get_positive("rope.scaling.factor"),
        TRAINED: _trained_length(options),
        "beta_fast": options.get_positive("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": options.get_positive("rope.scaling.yarn_beta_slow", 1.0),
    }
    if (multiplier := options.get("rope.scaling.yarn_log_multiplier")) is not None:
        times = {"deepseek_v2": 10, "ministral3": 1}.get(architecture.family, 0)  # as llama.cpp's
        require_in(GGUF, times > 0, f"rope.scaling.yarn_log_multiplier = {multiplier}", "none")
        weight = round(times * options.get_positive("rope.scaling.yarn_log_multiplier"), 6)
        scaling |= {"mscale": weight, "mscale_all_dim": weight}  # llama.cpp takes both for one
    if architecture.family == "gpt_oss":  # whose publisher rounds no bounds; no file says it
        scaling["truncate"] = False
    return scaling


def _rotary_dim(options: Configuration, head_dim: int, architecture: Architecture) -> int:
    """Return the size of a head's rotated part, in most families the whole head."""
    name = "rope.dimension_count"
    if not architecture.partial_rotary:
        _require_same(options, name, head_dim, "attention.key_length")
    value = options.get_int(name, head_dim)
    return options.require(
        name,
        value,
        value <= head_dim and value % 2 == 0,
        f"an even number up to {head_dim}, the size of a head",
    )


def _require_factors(factors: Factors, count: int) -> None:
    """Raise ValueError unless each tensor of factors has `count` positive finite numbers."""
    for name, numbers in factors.items():
        require_in(
            f"{name}.weight",
            len(numbers) == count and all(0 < factor < math.inf for factor in numbers),
            f"{len(numbers)} numbers, of which the least is {min(numbers, default=None)}",
            f"{count} positive ones, one for each frequency",
            CONVERT,
        )
