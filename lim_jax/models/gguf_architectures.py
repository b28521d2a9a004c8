"""The architectures of llama.cpp: their options and tensors by their publishers' names."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lim_jax._checks import described, require
from lim_jax.models.options import Configuration

Options = Mapping[str, Any]
Factors = Mapping[str, list[float]]
OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
BOTH_SIDES = AFTER | {"ffn_norm": "pre_feedforward_layernorm"}
# What each rotary frequency is divided by: Llama 3's scaling, done; and of long contexts.
FREQUENCIES, LONG, SHORT = "rope_freqs", "rope_factors_long", "rope_factors_short"
# Options that change no number of the network, and what others may say.
HARMLESS = ("rope.scaling.finetuned", "rope.scaling.original_context_length")
MEANT = {
    "attention.causal": (True,), "attention.sliding_window": (0,), "expert_count": (0,),
    "expert_used_count": (0,), "pooling_type": (0,), "rope.scaling.attn_factor": (1.0,),
    "tensor_data_layout": ("Meta AI original pth",),
}  # fmt: skip


class Architecture(NamedTuple):
    """An architecture of llama.cpp.

    Attributes
    ----------
    family
        Its publisher's name.
    layer
        The publisher's names of a layer's tensors.
    options
        What its configuration says beyond the sizes, given options, sizes, and what files hold.
    neighbours
        Whether rows of queries and keys stand so that neighbouring features turn together.
    from_one
        Whether the publisher counts norms' scales from one, which llama.cpp adds to them.
    experts
        The publisher's names of experts' matrices, by the expert's number.
    by_turns
        Whether gates and what they let through are by turns in one tensor of the publisher's.
    part_turns
        Whether some features of a head may not turn.
    """

    family: str
    layer: Mapping[str, str]
    options: Callable[[Options, Options, frozenset[str]], dict[str, Any]] = lambda *_: {}
    neighbours: bool = False
    from_one: bool = False
    experts: Mapping[str, str] = {}
    by_turns: bool = False
    part_turns: bool = False


def _biased(_: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    named = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    return {option: True for option, tensor in named.items() if tensor in stored}


def _granite(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    require(
        options.get("rope.scaling.finetuned", True),
        "options",
        got="rope.scaling.finetuned = False",
        expected="True, by which Granite says that it turns",
        cure="Networks without positions are not known here.",
    )
    usual = {"attention.scale": sizes["head_dim"] ** -0.5}
    return _biased(options, sizes, stored) | {
        name: options.get(spelt, usual.get(spelt, 1.0))
        for name, spelt in {
            "embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
            "attention_multiplier": "attention.scale", "logits_scaling": "logit_scale",
        }.items()
    }  # fmt: skip


def _gemma2(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": _scalar(sizes, 46),
        "sliding_window": options.get("attention.sliding_window", 4096),
        "attn_logit_softcapping": options.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": options.get("final_logit_softcapping", 30.0),
    }


def _gemma3(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": _scalar(sizes, 62),
        "sliding_window": _whole(options, "attention.sliding_window"),
        "final_logit_softcapping": options.get("final_logit_softcapping"),
        "rope_local_base_freq": options.get("rope.freq_base_swa", 10_000.0),
    }


def _scalar(sizes: Options, layers: int) -> Any:
    """What scores are divided by the root of: a head's size, but in the largest of the family."""
    largest = sizes["num_hidden_layers"] == layers
    return sizes["hidden_size"] // sizes["num_attention_heads"] if largest else sizes["head_dim"]


def _phi3(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    return {
        "sliding_window": options.get("attention.sliding_window") or None,
        "original_max_position_embeddings": _trained(options),
    }


def _qwen3moe(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    return {
        "num_experts": _whole(options, "expert_count"),
        "num_experts_per_tok": _whole(options, "expert_used_count"),
        "moe_intermediate_size": _whole(options, "expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _gpt_oss(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    return {
        "num_local_experts": _whole(options, "expert_count"),
        "num_experts_per_tok": _whole(options, "expert_used_count"),
        "intermediate_size": _whole(options, "expert_feed_forward_length"),
        "sliding_window": _whole(options, "attention.sliding_window"),
    }


def _whole(options: Options, name: str, default: int | None = None) -> int:
    """An option that is a positive whole number, of all layers alike."""
    found = options.get(name, default)
    require(
        isinstance(found, int) and not isinstance(found, bool) and found > 0,
        "options",
        got=f"{name} = {described(found)}",
        expected="a positive whole number",
        cure="Convert the publisher's folder again.",
    )
    assert isinstance(found, int)
    return found


QWEN_EXPERTS = {
    f"ffn_{part}_exps": f"mlp.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")
}
ARCHITECTURES: Mapping[str, Architecture] = {
    "gemma2": Architecture("gemma2", LAYER | BOTH_SIDES, _gemma2, from_one=True),
    "gemma3": Architecture(
        "gemma3_text", LAYER | BOTH_SIDES | HEAD_NORMS, _gemma3, from_one=True
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        LAYER | AFTER | {"attn_sinks": "self_attn.sinks", "ffn_gate_inp": "mlp.router"},
        _gpt_oss, by_turns=True,
    ),
    "granite": Architecture("granite", LAYER, _granite, neighbours=True),
    "llama": Architecture("llama", LAYER, _biased, neighbours=True),
    "olmo2": Architecture("olmo2", LAYER | AFTER | HEAD_NORMS),
    "phi3": Architecture(
        "phi3", LAYER | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}, _phi3,
        part_turns=True,
    ),
    "qwen2": Architecture("qwen2", LAYER),
    "qwen3": Architecture("qwen3", LAYER | HEAD_NORMS),
    "qwen3moe": Architecture(
        "qwen3_moe", LAYER | HEAD_NORMS | {"ffn_gate_inp": "mlp.gate"}, _qwen3moe,
        experts=QWEN_EXPERTS,
    ),
}  # fmt: skip


def published_config(
    name: str, options: Options, words: int, stored: frozenset[str], factors: Factors
) -> dict[str, Any]:
    """The configuration that an architecture's publisher gives it.

    Parameters
    ----------
    name
        The architecture's.
    options
        Those of the file, without the architecture's name.
    words
        How many the tokenizer has.
    stored
        The tensors of the file.
    factors
        What it holds of rotary frequencies.

    Raises
    ------
    ValueError
        Where an option is not known.
    """
    asked, architecture = Configuration(options), ARCHITECTURES[name]
    width, heads = _whole(asked, "embedding_length"), _whole(asked, "attention.head_count")
    size = _whole(asked, "attention.key_length", width // heads)
    sizes = {
        "hidden_size": width, "num_hidden_layers": _whole(asked, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _whole(asked, "attention.head_count_kv", heads),
        "head_dim": size, "intermediate_size": _whole(asked, "feed_forward_length"),
        "vocab_size": _whole(asked, "vocab_size", words),
        "rms_norm_eps": asked.get("attention.layer_norm_rms_epsilon", 1e-6),
    }  # fmt: skip
    _require_same(asked, "attention.value_length", size)
    config = sizes | architecture.options(asked, sizes, stored)
    config["model_type"] = architecture.family
    config["max_position_embeddings"] = asked.get("context_length")
    config["tie_word_embeddings"] = "output.weight" not in stored
    config["rope_theta"] = asked.get("rope.freq_base", 10_000.0)
    config["rope_scaling"] = _scaling(asked, size, architecture, factors)
    _refuse_unknown(asked)
    return {name: value for name, value in config.items() if value is not None}


def _scaling(
    options: Options, size: int, architecture: Architecture, factors: Factors
) -> dict[str, Any] | None:
    """How rotary positions are scaled, by the names of ``rope_scaling``."""
    factor = options.get("rope.scaling.factor", options.get("rope.scale_linear"))
    # llama.cpp scales linearly where it is told a factor and no kind.
    kind = options.get("rope.scaling.type") or ("linear" if factor else "none")
    known = ("longrope",) if LONG in factors else ("none", "linear", "yarn")
    kind = "longrope" if kind == "none" and LONG in factors else kind
    known = ("none",) if FREQUENCIES in factors else known
    require(
        kind in known,
        "options",
        got=f"rope.scaling.type = {kind}",
        expected=" or ".join(known),
        cure="Other scalings of rotary positions are not known here.",
    )
    found: dict[str, Any] = {}
    if FREQUENCIES in factors:
        found = {"rope_type": "factors", "factors": factors[FREQUENCIES]}
    elif kind == "longrope":
        found = {
            "rope_type": "longrope", "long_factor": factors[LONG],
            "short_factor": factors.get(SHORT),
            "attention_factor": options.get("rope.scaling.attn_factor", 1.0),
            "original_max_position_embeddings": _trained(options),
        }  # fmt: skip
    elif kind == "yarn":
        found = {
            "rope_type": "yarn", "factor": factor,
            "original_max_position_embeddings": _trained(options),
            "beta_fast": options.get("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": options.get("rope.scaling.yarn_beta_slow", 1.0),
        }  # fmt: skip
        # gpt-oss's publisher rounds no bounds; the file does not say it.
        found |= {"truncate": False} if architecture.family == "gpt_oss" else {}
    elif kind == "linear" and factor:
        found = {"rope_type": "linear", "factor": factor}
    if architecture.part_turns:
        turning = options.get("rope.dimension_count", size)
        found |= {"partial_rotary_factor": turning / size} if turning != size else {}
    else:
        _require_same(options, "rope.dimension_count", size)
    return found or None


def _trained(options: Options) -> Any:
    return options.get("rope.scaling.original_context_length", options.get("context_length"))


def _require_same(options: Options, name: str, size: Any) -> None:
    require(
        options.get(name, size) == size,
        "options",
        got=f"{name} = {described(options.get(name))}",
        expected=f"{size}, as attention.key_length",
        cure="Heads of several sizes are not known here.",
    )


def _refuse_unknown(options: Configuration) -> None:
    for name, value in options.options.items():
        require(
            name in options.asked or name in HARMLESS or value in MEANT.get(name, ()),
            "options",
            got=f"{name} = {described(value)}",
            expected="options of the architecture",
            cure="It may change the network, whose numbers would be others than the publisher's.",
        )
