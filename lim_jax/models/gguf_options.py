"""The publishers' options beyond the sizes of a network, by those of a file of llama.cpp."""

from collections.abc import Callable, Mapping
from typing import Any

from lim_jax.models.options import (
    GGUF,
    Configuration,
    Options,
    get_int,
    get_positive,
    require_in,
    require_option,
)
from lim_jax.models.rope_config import CHUNK, FULL, SLIDING, TRAINED, full_every

Tensors = frozenset[str]  # their names
SOFTMAX, SIGMOID = 1, 2  # of llama.cpp's functions of a router
STILL = 1e30  # by which the frequencies of pairs that do not turn are divided


def _biased(_: Options, sizes: Options, stored: Tensors) -> dict[str, Any]:
    named = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    return {option: True for option, tensor in named.items() if tensor in stored}


def _granite(options: Options, sizes: Options, stored: Tensors) -> dict[str, Any]:
    rotated = options.get("rope.scaling.finetuned", True)  # Granite's word for rotary positions
    cure = "Networks without positions are not known here."
    require_option(options, "rope.scaling.finetuned", rotated, rotated is True, "True", cure)
    return _biased(options, sizes, stored) | {
        "embedding_multiplier": get_positive(options, "embedding_scale", 1.0),
        "residual_multiplier": get_positive(options, "residual_scale", 1.0),
        "attention_multiplier": get_positive(options, "attention.scale", sizes["head_dim"] ** -0.5),
        "logits_scaling": get_positive(options, "logit_scale", 1.0),
    }


def _ints(options: Options, **names: str) -> dict[str, Any]:
    """Return whole numbers, by the publisher's names, of the file's."""
    return {own: get_int(options, name) for own, name in names.items()}


def _expert_counts(options: Options) -> dict[str, Any]:
    counts = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
    return _ints(options, **counts)


def _gemma4(options: Options, sizes: Options, stored: Tensors) -> dict[str, Any]:
    """Heads of full layers have sizes of their own, and values that may be their keys."""
    kinds, depth = _kinds(options, sizes, 6), sizes["num_hidden_layers"]
    small, name = get_int(options, "attention.key_length_swa"), "attention.head_count_kv"
    for other in ("attention.value_length_swa", "rope.dimension_count_swa"):
        require_same(options, other, small, "attention.key_length_swa")
    groups = options.get(name, sizes["num_attention_heads"])
    groups = groups if isinstance(groups, list) else depth * [groups]
    of_kind = {kind: {n for n, of in zip(groups, kinds, strict=False) if of == kind}
               for kind in (SLIDING, FULL)}  # fmt: skip
    same = len(groups) == depth and all(len(counts) == 1 for counts in of_kind.values())
    same = same and all(type(n) is int and n > 0 for n in groups)
    require_option(options, name, groups, same, "one number for each kind of layers")
    (sliding,), (full,) = of_kind.values()
    rope, own = sizes["rope_parameters"], {"head_dim": sizes["head_dim"]}
    own["num_key_value_heads"] = full
    config = {
        "head_dim": small, "num_key_value_heads": sliding, "layer_types": kinds,
        "per_layer_config": {f"{k}": own for k, kind in enumerate(kinds) if kind == FULL},
        "attention_k_eq_v": f"blk.{kinds.index(FULL)}.attn_v.weight" not in stored,
        "sliding_window": get_int(options, "attention.sliding_window"),
        "rope_parameters": {
            FULL: _proportional(rope, sizes["head_dim"]),
            SLIDING: {"rope_theta": get_positive(options, "rope.freq_base_swa", 10_000.0)},
        },
        **_caps(options, final_logit_softcapping=None), "hidden_size_per_layer_input": 0,
    }  # fmt: skip
    if not options.get("expert_count"):
        return config
    return config | {"enable_moe_block": True} | _ints(
        options, num_experts="expert_count", top_k_experts="expert_used_count",
        moe_intermediate_size="expert_feed_forward_length",
    )  # fmt: skip


def _proportional(rope: Options, head_dim: int) -> Options:
    """Return the scaling of which factors say that it turns a part of a head's pairs."""
    if rope["rope_type"] != "factors":
        return rope
    turned = sum(factor == 1 for factor in rope["factors"])
    holds = all(factor >= STILL for factor in rope["factors"][turned:])
    got, expected = f"factors {rope['factors']}", f"ones, and then no less than {STILL}"
    require_in("rope_freqs.weight", holds, got, expected)
    part, base = 2 * turned / head_dim, rope["rope_theta"]
    return {"rope_type": "proportional", "partial_rotary_factor": part, "rope_theta": base}


def _windows(options: Options, sizes: Options, period: int) -> dict[str, Any]:
    """Return which layers slide: all but every `period`-th, if the file does not list them."""
    return {
        "sliding_window": get_int(options, "attention.sliding_window"),
        "layer_types": _kinds(options, sizes, period),
    }


def _caps(options: Options, **usual: float | None) -> dict[str, Any]:
    """Return the caps of scores or logits, or those that are usual; None for none."""
    return {
        name: cap if cap is None and options.get(name) is None else get_positive(options, name, cap)
        for name, cap in usual.items()
    }


def _mistral3(options: Options, sizes: Options, stored: Tensors) -> dict[str, Any]:
    name = "attention.temperature_scale"
    if options.get(name) is None:  # Mistral 3.1 and 3.2
        return {"model_type": "mistral", "sliding_window": None}
    growth = {"llama_4_scaling_beta": get_positive(options, name)}
    return {"rope_parameters": sizes["rope_parameters"] | growth}


def _olmo2(options: Options, sizes: Options, stored: Tensors) -> dict[str, Any]:
    if options.get("attention.sliding_window", 0) == 0:
        return {}
    rope = sizes["rope_parameters"]
    of_kinds = {FULL: rope, SLIDING: {"rope_theta": rope["rope_theta"]}}  # only full ones scale
    return _windows(options, sizes, 4) | {"model_type": "olmo3", "rope_parameters": of_kinds}


def _qwen3vl(options: Configuration, sizes: Options, stored: Tensors) -> dict[str, Any]:
    # The axes of images, and layers to which images are added: text has one axis and no image.
    options.ignore("rope.dimension_sections", "n_deepstack_layers")
    return _qwens_experts(options) if "expert_count" in options else {}


def _qwens_experts(options: Options) -> dict[str, Any]:
    hidden = get_int(options, "expert_feed_forward_length")
    return _expert_counts(options) | {"moe_intermediate_size": hidden, "norm_topk_prob": True}


def _llama4(options: Options, sizes: Options, stored: Tensors) -> dict[str, Any]:
    experts = get_int(options, "expert_count")
    config = _expert_counts(options) | {
        "intermediate_size": get_int(options, "expert_feed_forward_length"),
        "intermediate_size_mlp": sizes["intermediate_size"],
        "interleave_moe_layer_step": get_int(options, "interleave_moe_layer_step"),
        "use_qk_norm": experts != 128,  # as llama.cpp tells Maverick from Scout
    }
    window = get_int(options, "attention.sliding_window", CHUNK, least=0)
    expected = f"{CHUNK}, or 0 if all layers are full"
    require_option(options, "attention.sliding_window", window, window in (0, CHUNK), expected)
    if window == 0:  # all layers have positions
        depth = sizes["num_hidden_layers"]
        config |= {"no_rope_layers": depth * [1], "layer_types": depth * [FULL]}
    return config


def _routed(options: Options, *, dense: str, shared: str) -> dict[str, Any]:
    """Experts beside shared ones behind dense layers, by the publisher's names of their numbers."""
    return {
        "num_experts_per_tok": get_int(options, "expert_used_count"),
        "moe_intermediate_size": get_int(options, "expert_feed_forward_length"),
        dense: get_int(options, "leading_dense_block_count", 0, least=0),
        shared: get_int(options, "expert_shared_count"),
    }


def _afmoe(options: Options, sizes: Options, stored: Tensors) -> dict[str, Any]:
    _require_only(options, "expert_gating_func", SIGMOID, default=SIGMOID)
    _require_only(options, "expert_weights_norm", True, default=False)
    routed = _routed(options, dense="num_dense_layers", shared="num_shared_experts")
    return _windows(options, sizes, 4) | routed | {
        "num_experts": get_int(options, "expert_count"), "mup_enabled": True,
        "route_scale": get_positive(options, "expert_weights_scale", 1.0),
    }  # fmt: skip


def _deepseek2(options: Options, sizes: Options, stored: Tensors) -> dict[str, Any]:
    gating = get_int(options, "expert_gating_func", SOFTMAX)
    expected = f"{SOFTMAX}, a softmax, or {SIGMOID}, sigmoids"
    require_option(options, "expert_gating_func", gating, gating in (SOFTMAX, SIGMOID), expected)
    groups = get_int(options, "expert_group_count")
    config = _routed(options, dense="first_k_dense_replace", shared="n_shared_experts") | {
        "model_type": "deepseek_v3" if gating == SIGMOID else "deepseek_v2",
        "n_routed_experts": get_int(options, "expert_count"), "n_group": groups,
        "topk_group": get_int(options, "expert_group_used_count"),
        "norm_topk_prob": _flag(options, "expert_weights_norm", False),
        "routed_scaling_factor": get_positive(options, "expert_weights_scale", 1.0),
    }  # fmt: skip
    if gating == SOFTMAX:
        _require_only(options, "expert_weights_norm", False, default=False)
        config["topk_method"] = "group_limited_greedy" if groups > 1 else "greedy"
    rank, rotary = get_int(options, "attention.kv_lora_rank"), sizes["head_dim"]
    # Newer files state the sizes of attention on latent vectors, and the heads' own as further.
    absorbed = options.get("attention.key_length_mla") is not None
    end, query = "_mla" if absorbed else "", "attention.q_lora_rank"
    if absorbed:
        require_same(options, "attention.key_length", rank + rotary, "latent and rotated features")
        require_same(options, "attention.value_length", rank, "attention.kv_lora_rank")
    key, size = f"attention.key_length{end}", get_int(options, f"attention.key_length{end}")
    require_option(options, key, size, size > rotary, f"more than rope.dimension_count, {rotary}")
    return config | {
        "num_key_value_heads": sizes["num_attention_heads"], "kv_lora_rank": rank,
        "q_lora_rank": get_int(options, query) if query in options else None,
        "qk_rope_head_dim": rotary, "qk_nope_head_dim": size - rotary,
        "v_head_dim": get_int(options, f"attention.value_length{end}"),
    }  # fmt: skip


def _flag(options: Options, name: str, default: bool) -> bool:
    value = options.get(name, default)
    return require_option(options, name, value, isinstance(value, bool), "True or False")


def _require_only(options: Options, name: str, only: Any, default: Any) -> None:
    value, cure = options.get(name, default), "Other experts are not known here."
    holds = type(value) is type(only) and value == only
    require_option(options, name, value, holds, f"{only}", cure)


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


def require_one_state(options: Options) -> None:
    """Raise ValueError at layers that read keys, values or embeddings of others."""
    cure = "A layer must be a map of one state: no flow passes these on (Gemma 4 E2B and E4B)."
    for name in ("attention.shared_kv_layers", "embedding_length_per_layer_input"):
        value = options.get(name, 0)
        require_option(options, name, value, value == 0 and value is not False, "0", cure)


def trained(options: Options) -> int:
    """Return the length of the contexts of training."""
    length = get_int(options, "context_length")
    return get_int(options, "rope.scaling.original_context_length", length)


def require_same(options: Options, name: str, size: int, of: str) -> None:
    """Raise ValueError at a size of heads that is another than the one beside it."""
    value, cure = options.get(name, size), "Heads of several sizes are not known here."
    require_option(options, name, value, value == size, f"{size}, as {of}", cure)


def _gemma2(options: Options, sizes: Options, stored: Tensors) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": _scalar(sizes, 46), "layer_types": _kinds(options, sizes, 2),
        "sliding_window": get_int(options, "attention.sliding_window", 4096),
        **_caps(options, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    }  # fmt: skip


def _gemma3(options: Options, sizes: Options, stored: Tensors) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": _scalar(sizes, 62), **_windows(options, sizes, 6),
        "rope_parameters": {FULL: sizes["rope_parameters"]},
        "rope_local_base_freq": get_positive(options, "rope.freq_base_swa", 10_000.0),
        **_caps(options, final_logit_softcapping=None),
    }  # fmt: skip


def _phi3(options: Options, sizes: Options, stored: Tensors) -> dict[str, Any]:
    # Zero says that no layer slides; files without it are older than the option.
    slides = options.get("attention.sliding_window") != 0
    window = get_int(options, "attention.sliding_window") if slides else None
    return {"sliding_window": window, TRAINED: trained(options)}


# What each architecture's options say, by the file's options, the sizes and names of its tensors.
OPTIONS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "afmoe": _afmoe, "arcee": _biased, "deepseek2": _deepseek2,
    "cohere2": lambda options, sizes, stored: {
        **_windows(options, sizes, 4), "logit_scale": get_positive(options, "logit_scale"),
    },
    "exaone4": lambda options, sizes, stored: (
        _windows(options, sizes, 4) if options.get("attention.sliding_window") is not None
        else {"sliding_window": None}
    ),
    "gemma2": _gemma2, "gemma3": _gemma3, "gemma4": _gemma4,
    "glm4": lambda options, sizes, stored: {"attention_bias": "blk.0.attn_q.bias" in stored},
    "gpt-oss": lambda options, sizes, stored: {
        **_expert_counts(options), **_windows(options, sizes, 2),
        "intermediate_size": get_int(options, "expert_feed_forward_length"),
    },
    "gpt2": lambda options, sizes, stored: {"rope_parameters": None},  # its positions are learned
    "gptneox": lambda options, sizes, stored: {
        "use_parallel_residual": _flag(options, "use_parallel_residual", True)
    },
    "granite": _granite,
    "granitemoe": lambda options, sizes, stored: {
        **_granite(options, sizes, stored), **_expert_counts(options),
    },
    "llama": lambda options, sizes, stored: (
        {"model_type": "mixtral", **_expert_counts(options)} if options.get("expert_count")
        else _biased(options, sizes, stored)
    ),
    "llama4": _llama4, "mistral3": _mistral3, "olmo2": _olmo2, "phi3": _phi3,
    "qwen3moe": lambda options, sizes, stored: _qwens_experts(options),
    "qwen3vl": _qwen3vl, "qwen3vlmoe": _qwen3vl,
    "seed_oss": lambda options, sizes, stored: {
        "attention_bias": "blk.0.attn_q.bias" in stored,
        "attention_out_bias": "blk.0.attn_output.bias" in stored,
    },
    "smollm3": _biased,
    "starcoder2": lambda options, sizes, stored: {"use_bias": "blk.0.attn_q.bias" in stored},
}  # fmt: skip


def further_options(name: str, options: Options, sizes: Options, stored: Tensors) -> dict[str, Any]:
    """Return an architecture's options beyond the sizes, by the file's own and its tensors."""
    return OPTIONS[name](options, sizes, stored) if name in OPTIONS else {}
