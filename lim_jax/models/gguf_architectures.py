"""Architectures of llama.cpp: their options and tensors by their publishers' names."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lim_jax._checks import described
from lim_jax.models.gguf_options import further_options, require_one_state, require_same, trained
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
from lim_jax.models.rope_config import TRAINED

Factors = Mapping[str, list[float]]
Whole = Callable[..., np.ndarray]  # of a tensor's rows and the publisher's sizes
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
LATENT = {
    "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm", "attn_kv_b": "self_attn.kv_b_proj",
}  # fmt: skip
# The tensors that rotary frequencies are divided by: Llama 3's scaling, done; and of long contexts.
FREQUENCIES, LONG, SHORT = "rope_freqs", "rope_factors_long", "rope_factors_short"
# Options that change no number of the network, and the supported values of others.
HARMLESS = ("rope.scaling.finetuned", "rope.scaling.original_context_length")
SUPPORTED = {
    "attention.causal": (True,), "attention.sliding_window": (0,), "expert_count": (0,),
    "expert_used_count": (0,), "expert_group_count": (1,), "expert_group_used_count": (1,),
    "pooling_type": (0,), "rope.scaling.attn_factor": (1.0,),
    "tensor_data_layout": ("Meta AI original pth",),
}  # fmt: skip


def _deinterleaved(rows: np.ndarray, sizes: Options, heads: str) -> np.ndarray:
    """Reorder rows of interleaved features so that a head's halves are rotated together."""
    pairs = rows.reshape(sizes[heads], -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _by_group(rows: np.ndarray, sizes: Options) -> np.ndarray:
    """Reorder all queries, keys and values by heads, each with its three."""
    parts = rows.reshape(3, sizes["num_attention_heads"], -1, *rows.shape[1:])
    return parts.swapaxes(0, 1).reshape(rows.shape)


def _transposed(rows: np.ndarray, sizes: Options) -> np.ndarray:
    return rows.T


INTERLEAVED: Mapping[str, Whole] = {
    "attn_q": partial(_deinterleaved, heads="num_attention_heads"),
    "attn_k": partial(_deinterleaved, heads="num_key_value_heads"),
}


class Architecture(NamedTuple):
    """An architecture of llama.cpp."""

    family: str  # its publisher's name
    # The publisher's names of a layer's tensors, without "weight" and "bias"; with them of those
    # whose publishers' names have neither.
    layer: Mapping[str, str]
    whole: Mapping[str, Whole] = {}  # makes the publisher's tensors of the file's, by its names
    unit_offset: bool = False  # whether llama.cpp added one to the publisher's scales of norms
    experts: Mapping[str, str] = {}  # the publisher's names of experts' matrices, by their number
    # The publisher's names of the tensors of all experts, of gates and ups and of downs, by
    # "weight" and "bias"; whether gates and ups take turns; and whether matrices are of inputs by
    # outputs.
    fused_experts: Mapping[str, tuple[str, str]] = {}
    interleaved_experts: bool = False
    transposed_experts: bool = False
    partial_rotary: bool = False  # whether a part of each head may be rotated
    layer_norm_eps: str | None = None  # the publisher's name of it; else norms are RMS norms
    outside: Mapping[str, str] = OUTSIDE  # the publisher's names of tensors of no layer
    layers: str = "model.layers"
    names: Mapping[str, str] = {}  # the publisher's names of options, where they are not Llama's


QWEN_EXPERTS = {
    f"ffn_{part}_exps": f"mlp.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")
}
GPT_OSS_EXPERTS = {
    kind: (f"mlp.experts.gate_up_proj{end}", f"mlp.experts.down_proj{end}")
    for kind, end in (("weight", ""), ("bias", "_bias"))
}
SHARED = {f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")}
PLAIN = {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
GPT2 = PLAIN | {
    "attn_norm": "ln_1", "ffn_norm": "ln_2", "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
}  # fmt: skip
NEOX = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_qkv": "attention.query_key_value", "attn_output": "attention.dense",
    "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h",
}  # fmt: skip
OF_LLAMA4 = {name: own.replace("mlp.", "feed_forward.") for name, own in LAYER.items()} | {
    f"ffn_{part}_shexp": f"feed_forward.shared_expert.{part}_proj"
    for part in ("gate", "up", "down")
}
OF_MIXTRAL, OF_GRANITE = "block_sparse_moe.experts.{}.", "block_sparse_moe."
MIXTRAL = Architecture(
    "mixtral", LAYER | {"ffn_gate_inp": "block_sparse_moe.gate"}, INTERLEAVED,
    experts={
        "ffn_gate_exps": f"{OF_MIXTRAL}w1", "ffn_up_exps": f"{OF_MIXTRAL}w3",
        "ffn_down_exps": f"{OF_MIXTRAL}w2",
    },
)  # fmt: skip
ARCHITECTURES: Mapping[str, Architecture] = {
    "afmoe": Architecture(
        "afmoe",
        LAYER | HEAD_NORMS | SHARED | {
            "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_mlp_layernorm",
            "post_ffw_norm": "post_mlp_layernorm", "attn_gate": "self_attn.gate_proj",
            "ffn_gate_inp": "mlp.router.gate", "exp_probs_b.bias": "mlp.expert_bias",
        },
        experts=QWEN_EXPERTS,
    ),
    "arcee": Architecture("arcee", LAYER, INTERLEAVED),
    "cohere2": Architecture("cohere2", LAYER, layer_norm_eps="layer_norm_eps"),
    "deepseek2": Architecture(
        "deepseek_v2",
        LAYER | LATENT | SHARED | {
            "ffn_gate_inp": "mlp.gate", "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
        },
        experts=QWEN_EXPERTS,
    ),
    "exaone4": Architecture("exaone4", LAYER | AFTER | HEAD_NORMS),
    "gemma": Architecture("gemma", LAYER, unit_offset=True),
    "gemma2": Architecture("gemma2", LAYER | BOTH_SIDES, unit_offset=True),
    "gemma3": Architecture("gemma3_text", LAYER | BOTH_SIDES | HEAD_NORMS, unit_offset=True),
    "gemma4": Architecture(
        "gemma4_text",
        LAYER | BOTH_SIDES | HEAD_NORMS | {
            "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
            "post_ffw_norm_1": "post_feedforward_layernorm_1",
            "post_ffw_norm_2": "post_feedforward_layernorm_2",
            "layer_output_scale.weight": "layer_scalar", "ffn_gate_inp": "router.proj",
            "ffn_gate_inp.scale": "router.scale",
            "ffn_down_exps.scale": "router.per_expert_scale",
            "ffn_gate_up_exps.weight": "experts.gate_up_proj",
        },
        fused_experts={"weight": ("experts.gate_up_proj", "experts.down_proj")},
    ),
    "glm4": Architecture(
        "glm4",
        LAYER | {
            "ffn_up": "mlp.gate_up_proj", "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
        partial_rotary=True,
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        LAYER | AFTER | {"attn_sinks.weight": "self_attn.sinks", "ffn_gate_inp": "mlp.router"},
        fused_experts=GPT_OSS_EXPERTS, interleaved_experts=True, transposed_experts=True,
    ),
    "gpt2": Architecture(
        "gpt2", GPT2, dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), _transposed),
        layer_norm_eps="layer_norm_epsilon", layers="transformer.h",
        outside={
            "token_embd": "transformer.wte", "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f", "output": "lm_head",
        },
        names={
            "hidden_size": "n_embd", "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head", "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
        },
    ),
    "gptneox": Architecture(
        "gpt_neox", NEOX, {"attn_qkv": _by_group}, partial_rotary=True,
        layer_norm_eps="layer_norm_eps", layers="gpt_neox.layers",
        outside={
            "token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
    ),
    "granite": Architecture("granite", LAYER, INTERLEAVED),
    "granitemoe": Architecture(
        "granitemoe", LAYER | {"ffn_gate_inp": f"{OF_GRANITE}router.layer"}, INTERLEAVED,
        fused_experts={
            "weight": (f"{OF_GRANITE}input_linear.weight", f"{OF_GRANITE}output_linear.weight"),
        },
    ),
    "llama": Architecture("llama", LAYER, INTERLEAVED),
    "llama4": Architecture(
        "llama4_text", OF_LLAMA4 | {"ffn_gate_inp": "feed_forward.router"},
        fused_experts={
            "weight": ("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"),
        },
        transposed_experts=True,
    ),
    "mistral3": Architecture("ministral3", LAYER, INTERLEAVED),
    "olmo2": Architecture("olmo2", LAYER | AFTER | HEAD_NORMS),
    "phi3": Architecture(
        "phi3", LAYER | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        partial_rotary=True,
    ),
    "qwen2": Architecture("qwen2", LAYER),
    "qwen3": Architecture("qwen3", LAYER | HEAD_NORMS),
    "qwen3moe": Architecture(
        "qwen3_moe", LAYER | HEAD_NORMS | {"ffn_gate_inp": "mlp.gate"}, experts=QWEN_EXPERTS
    ),
    "qwen3vl": Architecture("qwen3", LAYER | HEAD_NORMS),
    "qwen3vlmoe": Architecture(
        "qwen3_moe", LAYER | HEAD_NORMS | {"ffn_gate_inp": "mlp.gate"}, experts=QWEN_EXPERTS
    ),
    "seed_oss": Architecture(
        "seed_oss", LAYER | {"post_attention_norm": "post_attention_layernorm"}
    ),
    "smollm3": Architecture("smollm3", LAYER, INTERLEAVED),
    "starcoder2": Architecture("starcoder2", LAYER | PLAIN, layer_norm_eps="norm_epsilon"),
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
    if architecture.family == "deepseek_v2":  # whose heads have parts of several sizes
        head_dim = get_int(file, "rope.dimension_count")
    else:
        head_dim = get_int(file, "attention.key_length", width // heads)
        require_same(file, "attention.value_length", head_dim, "attention.key_length")
    require_one_state(file)
    groups = heads if name == "gemma4" else get_int(file, "attention.head_count_kv", heads)
    layer_norm = architecture.layer_norm_eps
    norm_eps = f"attention.layer_norm_{'rms_' if layer_norm is None else ''}epsilon"
    sizes = {
        "model_type": architecture.family, "hidden_size": width,
        "num_hidden_layers": get_int(file, "block_count"), "num_attention_heads": heads,
        "num_key_value_heads": groups, "head_dim": head_dim,
        "intermediate_size": get_int(file, "feed_forward_length"),
        "vocab_size": get_int(file, "vocab_size", vocabulary),
        layer_norm or "rms_norm_eps": get_positive(file, norm_eps, below=1.0),
        "max_position_embeddings": get_int(file, "context_length"),
        "tie_word_embeddings": "output.weight" not in stored,
    }  # fmt: skip
    rotary_dim = _rotary_dim(file, head_dim, architecture)
    _require_factors(factors, rotary_dim // 2)
    rope = _scaling(file, architecture, factors)
    rope["rope_theta"] = get_positive(file, "rope.freq_base", 10_000.0)
    if architecture.partial_rotary:  # half a feature more, so that no rounding takes one away
        rope["partial_rotary_factor"] = min(1.0, (rotary_dim + 0.5) / head_dim)
    sizes["rope_parameters"] = rope
    config = sizes | further_options(name, file, sizes, stored)
    for option, value in options.items():
        known = option in file.asked or option in HARMLESS or value in SUPPORTED.get(option, ())
        require_option(file, option, value, known, "options of the architecture", OTHER_NETWORK)
    return {architecture.names.get(name, name): value for name, value in config.items()}


def _scaling(options: Options, architecture: Architecture, factors: Factors) -> dict[str, Any]:
    """Return the scaling of rotary positions, by the names of ``rope_parameters``."""
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
            TRAINED: trained(options),
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
        TRAINED: trained(options),
        "beta_fast": get_positive(options, "rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": get_positive(options, "rope.scaling.yarn_beta_slow", 1.0),
    }  # fmt: skip
    if (multiplier := options.get("rope.scaling.yarn_log_multiplier")) is not None:
        times = {"deepseek_v2": 10, "ministral3": 1}.get(architecture.family, 0)  # as llama.cpp's
        got = f"rope.scaling.yarn_log_multiplier = {multiplier}"
        require_in(GGUF, times > 0, got, "none")
        weight = round(times * get_positive(options, "rope.scaling.yarn_log_multiplier"), 6)
        scaling |= {"mscale": weight, "mscale_all_dim": weight}  # llama.cpp takes both for one
    # gpt-oss's publisher rounds no bounds; the file does not say it.
    return scaling | ({"truncate": False} if architecture.family == "gpt_oss" else {})


def _rotary_dim(options: Options, head_dim: int, architecture: Architecture) -> int:
    """Return how many features of a head are rotated."""
    name = "rope.dimension_count"
    if not architecture.partial_rotary:
        require_same(options, name, head_dim, "attention.key_length")
    value = get_int(options, name, head_dim)
    expected = f"an even number up to {head_dim}, the size of a head"
    return require_option(options, name, value, value <= head_dim and value % 2 == 0, expected)


def _require_factors(factors: Factors, count: int) -> None:
    for name, numbers in factors.items():
        fits = len(numbers) == count and all(0 < factor < math.inf for factor in numbers)
        got = f"{len(numbers)} numbers, of which the least is {min(numbers, default=None)}"
        expected = f"{count} positive ones, one for each frequency"
        require_in(f"{name}.weight", fits, got, expected, CONVERT)
