"""Architectures of llama.cpp: their options and tensors by their publishers' names."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lim_jax._checks import described
from lim_jax.models.options import (
    CONVERT,
    GGUF,
    OTHER_NETWORK,
    Configuration,
    Options,
    get_int,
    get_positive,
    require_in,
    require_option,
)
from lim_jax.models.rope_config import FULL, SLIDING, TRAINED, full_every

Factors = Mapping[str, list[float]]
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
BOTH_SIDES = AFTER | {"ffn_norm": "pre_feedforward_layernorm"}
# The tensors that rotary frequencies are divided by: Llama 3's scaling, done; and of long contexts.
FREQUENCIES, LONG, SHORT = "rope_freqs", "rope_factors_long", "rope_factors_short"
# Options that change no number of the network, and the supported values of others.
HARMLESS = ("rope.scaling.finetuned", "rope.scaling.original_context_length")
SUPPORTED = {
    "attention.causal": (True,), "attention.sliding_window": (0,), "expert_count": (0,),
    "expert_used_count": (0,), "pooling_type": (0,), "rope.scaling.attn_factor": (1.0,),
    "tensor_data_layout": ("Meta AI original pth",),
}  # fmt: skip


class Architecture(NamedTuple):
    """An architecture of llama.cpp."""

    family: str  # its publisher's name
    layer: Mapping[str, str]  # the publisher's names of a layer's tensors
    # The publisher's options beyond the sizes, by the file's options, sizes and tensors.
    options: Callable[[Options, Options, frozenset[str]], dict[str, Any]] = lambda *_: {}
    interleaved: bool = False  # whether rows of queries and keys are interleaved for rotation
    unit_offset: bool = False  # whether llama.cpp added one to the publisher's scales of norms
    experts: Mapping[str, str] = {}  # the publisher's names of experts' matrices, by their number
    # The publisher's names of the tensors of all experts, of gates and ups and of downs, by
    # "weight" and "bias"; and whether gates and ups take turns in matrices of inputs by outputs.
    fused_experts: Mapping[str, tuple[str, str]] = {}
    interleaved_experts: bool = False
    partial_rotary: bool = False  # whether a part of each head may be rotated


def _biased(_: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    named = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    return {option: True for option, tensor in named.items() if tensor in stored}


def _granite(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    rotated = options.get("rope.scaling.finetuned", True)  # Granite's word for rotary positions
    cure = "Networks without positions are not known here."
    require_option(options, "rope.scaling.finetuned", rotated, rotated is True, "True", cure)
    return _biased(options, sizes, stored) | {
        "embedding_multiplier": get_positive(options, "embedding_scale", 1.0),
        "residual_multiplier": get_positive(options, "residual_scale", 1.0),
        "attention_multiplier": get_positive(options, "attention.scale", sizes["head_dim"] ** -0.5),
        "logits_scaling": get_positive(options, "logit_scale", 1.0),
    }


def _experts(options: Options, *_: Any) -> dict[str, Any]:
    return {
        "num_local_experts": get_int(options, "expert_count"),
        "num_experts_per_tok": get_int(options, "expert_used_count"),
    }


def _granitemoe(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    return _granite(options, sizes, stored) | _experts(options)


def _gemma2(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": _scalar(sizes, 46),
        "sliding_window": get_int(options, "attention.sliding_window", 4096),
        "layer_types": _kinds(options, sizes, 2),
        "attn_logit_softcapping": get_positive(options, "attn_logit_softcapping", 50.0),
        "final_logit_softcapping": get_positive(options, "final_logit_softcapping", 30.0),
    }


def _gemma3(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    cap = "final_logit_softcapping"
    return {
        "query_pre_attn_scalar": _scalar(sizes, 62),
        "sliding_window": get_int(options, "attention.sliding_window"),
        "layer_types": _kinds(options, sizes, 6),
        "final_logit_softcapping": None if options.get(cap) is None else get_positive(options, cap),
        "rope_local_base_freq": get_positive(options, "rope.freq_base_swa", 10_000.0),
    }


def _scalar(sizes: Options, layers: int) -> Any:
    """Return what scores are divided by the root of: `head_dim`, but in the largest Gemma."""
    largest = sizes["num_hidden_layers"] == layers
    return sizes["hidden_size"] // sizes["num_attention_heads"] if largest else sizes["head_dim"]


def _kinds(options: Options, sizes: Options, period: int) -> list[str]:
    """Return the kinds of layers: all but every `period`-th slide, or as a list of flags says."""
    name, depth = "attention.sliding_window_pattern", sizes["num_hidden_layers"]
    pattern = options.get(name)
    if not isinstance(pattern, list):
        return list(full_every(get_int(options, name, period), depth))
    flags = len(pattern) == depth and all(isinstance(flag, bool) for flag in pattern)
    expected = f"{depth} of True, where a layer slides, or False"
    require_in(GGUF, flags, f"{name} = {pattern}", expected)
    return [SLIDING if slides else FULL for slides in pattern]


def _phi3(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    window = "attention.sliding_window"
    return {
        # Zero says that no layer slides; files without it are older than the option.
        "sliding_window": None if options.get(window) == 0 else get_int(options, window),
        TRAINED: _trained(options),
    }


def _qwen3moe(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    hidden = get_int(options, "expert_feed_forward_length")
    return _experts(options) | {"moe_intermediate_size": hidden, "norm_topk_prob": True}


def _gpt_oss(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    return _experts(options) | {
        "intermediate_size": get_int(options, "expert_feed_forward_length"),
        "sliding_window": get_int(options, "attention.sliding_window"),
        "layer_types": _kinds(options, sizes, 2),
    }


QWEN_EXPERTS = {
    f"ffn_{part}_exps": f"mlp.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")
}
GPT_OSS_EXPERTS = {
    kind: (f"mlp.experts.gate_up_proj{end}", f"mlp.experts.down_proj{end}")
    for kind, end in (("weight", ""), ("bias", "_bias"))
}
OF_MIXTRAL, OF_GRANITE = "block_sparse_moe.experts.{}.", "block_sparse_moe."
MIXTRAL = Architecture(
    "mixtral", LAYER | {"ffn_gate_inp": "block_sparse_moe.gate"}, _experts, interleaved=True,
    experts={
        "ffn_gate_exps": f"{OF_MIXTRAL}w1", "ffn_up_exps": f"{OF_MIXTRAL}w3",
        "ffn_down_exps": f"{OF_MIXTRAL}w2",
    },
)  # fmt: skip
ARCHITECTURES: Mapping[str, Architecture] = {
    "gemma2": Architecture("gemma2", LAYER | BOTH_SIDES, _gemma2, unit_offset=True),
    "gemma3": Architecture(
        "gemma3_text", LAYER | BOTH_SIDES | HEAD_NORMS, _gemma3, unit_offset=True
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        LAYER | AFTER | {"attn_sinks": "self_attn.sinks", "ffn_gate_inp": "mlp.router"},
        _gpt_oss, fused_experts=GPT_OSS_EXPERTS, interleaved_experts=True,
    ),
    "granite": Architecture("granite", LAYER, _granite, interleaved=True),
    "granitemoe": Architecture(
        "granitemoe", LAYER | {"ffn_gate_inp": f"{OF_GRANITE}router.layer"}, _granitemoe,
        interleaved=True,
        fused_experts={
            "weight": (f"{OF_GRANITE}input_linear.weight", f"{OF_GRANITE}output_linear.weight"),
        },
    ),
    "llama": Architecture("llama", LAYER, _biased, interleaved=True),
    "olmo2": Architecture("olmo2", LAYER | AFTER | HEAD_NORMS),
    "phi3": Architecture(
        "phi3", LAYER | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}, _phi3,
        partial_rotary=True,
    ),
    "qwen2": Architecture("qwen2", LAYER),
    "qwen3": Architecture("qwen3", LAYER | HEAD_NORMS),
    "qwen3moe": Architecture(
        "qwen3_moe", LAYER | HEAD_NORMS | {"ffn_gate_inp": "mlp.gate"}, _qwen3moe,
        experts=QWEN_EXPERTS,
    ),
}  # fmt: skip


def architecture_of(name: str, options: Options) -> Architecture:
    """Return an architecture by its name; llama with experts is Mixtral."""
    has_experts = name == "llama" and options.get("expert_count")
    return MIXTRAL if has_experts else ARCHITECTURES[name]


def published_config(
    name: str, options: Options, vocabulary: int, stored: frozenset[str], factors: Factors
) -> dict[str, Any]:
    """Return the publisher's configuration of a file's options without the architecture's name."""
    file, architecture = Configuration(options, GGUF), architecture_of(name, options)
    width, heads = get_int(file, "embedding_length"), get_int(file, "attention.head_count")
    head_dim = get_int(file, "attention.key_length", width // heads)
    sizes = {
        "hidden_size": width, "num_hidden_layers": get_int(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get_int(file, "attention.head_count_kv", heads),
        "head_dim": head_dim, "intermediate_size": get_int(file, "feed_forward_length"),
        "vocab_size": get_int(file, "vocab_size", vocabulary),
        "rms_norm_eps": get_positive(file, "attention.layer_norm_rms_epsilon", below=1.0),
        "max_position_embeddings": get_int(file, "context_length"),
    }  # fmt: skip
    _require_same(file, "attention.value_length", head_dim)
    config = sizes | architecture.options(file, sizes, stored)
    config["model_type"] = architecture.family
    config["tie_word_embeddings"] = "output.weight" not in stored
    config["rope_theta"] = get_positive(file, "rope.freq_base", 10_000.0)
    rotary_dim = _rotary_dim(file, head_dim, architecture)
    _require_factors(factors, rotary_dim // 2)
    config["rope_scaling"] = _scaling(file, architecture, factors)
    if rotary_dim != head_dim:  # half a feature more, so that no rounding takes one away
        config["rope_scaling"]["partial_rotary_factor"] = (rotary_dim + 0.5) / head_dim
    for option, value in options.items():
        known = option in file.asked or option in HARMLESS or value in SUPPORTED.get(option, ())
        require_option(file, option, value, known, "options of the architecture", OTHER_NETWORK)
    return {name: value for name, value in config.items() if value is not None}


def _scaling(options: Options, architecture: Architecture, factors: Factors) -> dict[str, Any]:
    """Return the scaling of rotary positions, by the names of ``rope_scaling``."""
    factor = options.get("rope.scaling.factor", options.get("rope.scale_linear"))
    # llama.cpp scales linearly if a file has a factor and no kind.
    kind = options.get("rope.scaling.type") or ("linear" if factor else "none")
    known = ("longrope",) if LONG in factors else ("none", "linear", "yarn")
    kind = "longrope" if kind == "none" and LONG in factors else kind
    known = ("none",) if FREQUENCIES in factors else known
    cure = "Other scalings of rotary positions are not known here."
    require_in(GGUF, kind in known, f"rope.scaling.type = {kind}", " or ".join(known), cure)
    if FREQUENCIES in factors:
        return {"rope_type": "factors", "factors": factors[FREQUENCIES]}
    if kind == "longrope":
        require_in(GGUF, SHORT in factors, f"{LONG}.weight, and no {SHORT}.weight", "both")
        return {
            "rope_type": "longrope", "long_factor": factors[LONG], "short_factor": factors[SHORT],
            "attention_factor": get_positive(options, "rope.scaling.attn_factor", 1.0),
            TRAINED: _trained(options),
        }  # fmt: skip
    if kind == "yarn":
        return _yarn(options, architecture)
    if kind == "linear" and factor:
        name = "rope.scaling.factor" if "rope.scaling.factor" in options else "rope.scale_linear"
        return {"rope_type": "linear", "factor": get_positive(options, name)}
    return {"rope_type": "default"}


def _yarn(options: Options, architecture: Architecture) -> dict[str, Any]:
    expected, cure = "none, by which it is YaRN's own", "Readers disagree whether it stands for "
    cure += "YaRN's own or multiplies that. Take the publisher's folder with safetensors."
    for name in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"):
        got = f"{name} = {described(options.get(name))} of a yarn scaling"
        require_in(GGUF, options.get(name) is None, got, expected, cure)
    scaling = {
        "rope_type": "yarn", "factor": get_positive(options, "rope.scaling.factor"),
        TRAINED: _trained(options),
        "beta_fast": get_positive(options, "rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": get_positive(options, "rope.scaling.yarn_beta_slow", 1.0),
    }  # fmt: skip
    # gpt-oss's publisher rounds no bounds; the file does not say it.
    return scaling | ({"truncate": False} if architecture.family == "gpt_oss" else {})


def _rotary_dim(options: Options, head_dim: int, architecture: Architecture) -> int:
    """Return how many features of a head are rotated."""
    name = "rope.dimension_count"
    if not architecture.partial_rotary:
        _require_same(options, name, head_dim)
    value = get_int(options, name, head_dim)
    expected = f"an even number up to {head_dim}, the size of a head"
    return require_option(options, name, value, value <= head_dim and value % 2 == 0, expected)


def _require_factors(factors: Factors, count: int) -> None:
    for name, numbers in factors.items():
        fits = len(numbers) == count and all(0 < factor < math.inf for factor in numbers)
        got = f"{len(numbers)} numbers, of which the least is {min(numbers, default=None)}"
        expected = f"{count} positive ones, one for each frequency"
        require_in(f"{name}.weight", fits, got, expected, CONVERT)


def _trained(options: Options) -> int:
    length = get_int(options, "context_length")
    return get_int(options, "rope.scaling.original_context_length", length)


def _require_same(options: Options, name: str, head_dim: int) -> None:
    value, cure = options.get(name, head_dim), "Heads of several sizes are not known here."
    expected = f"{head_dim}, as attention.key_length"
    require_option(options, name, value, value == head_dim, expected, cure)
