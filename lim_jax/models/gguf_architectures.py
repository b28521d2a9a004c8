"""The architectures of llama.cpp: their options and tensors by their publishers' names."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lim_jax._checks import described, require
from lim_jax.models.options import Configuration
from lim_jax.models.rope_config import FULL, SLIDING, every

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
FILE = "GGUF"  # whose options errors name
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
    together
        The publisher's names of the two tensors of all experts, of gates and what they let through
        and of what goes out, by ``weight`` and ``bias``.
    by_turns
        Whether in these gates and what they let through are by turns, and inputs' rows come first.
    part_turns
        Whether some features of a head may not turn.
    """

    family: str
    layer: Mapping[str, str]
    options: Callable[[Options, Options, frozenset[str]], dict[str, Any]] = lambda *_: {}
    neighbours: bool = False
    from_one: bool = False
    experts: Mapping[str, str] = {}
    together: Mapping[str, tuple[str, str]] = {}
    by_turns: bool = False
    part_turns: bool = False


def _biased(_: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    named = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    return {option: True for option, tensor in named.items() if tensor in stored}


def _granite(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    require(
        options.get("rope.scaling.finetuned", True) is True,
        FILE,
        got=f"rope.scaling.finetuned = {described(options.get('rope.scaling.finetuned'))}",
        expected="True, by which Granite says that it turns",
        cure="Networks without positions are not known here.",
    )
    usual = {"attention.scale": sizes["head_dim"] ** -0.5}
    return _biased(options, sizes, stored) | {
        name: _positive(options, spelt, usual.get(spelt, 1.0))
        for name, spelt in {
            "embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
            "attention_multiplier": "attention.scale", "logits_scaling": "logit_scale",
        }.items()
    }  # fmt: skip


def _granitemoe(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    return _granite(options, sizes, stored) | _experts(options, "num_local_experts")


def _gemma2(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": _scalar(sizes, 46),
        "sliding_window": _whole(options, "attention.sliding_window", 4096),
        "layer_types": _kinds(options, sizes, 2),
        "attn_logit_softcapping": _positive(options, "attn_logit_softcapping", 50.0),
        "final_logit_softcapping": _positive(options, "final_logit_softcapping", 30.0),
    }


def _gemma3(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    cap = "final_logit_softcapping"
    return {
        "query_pre_attn_scalar": _scalar(sizes, 62),
        "sliding_window": _whole(options, "attention.sliding_window"),
        "layer_types": _kinds(options, sizes, 6),
        "final_logit_softcapping": None if options.get(cap) is None else _positive(options, cap),
        "rope_local_base_freq": _positive(options, "rope.freq_base_swa", 10_000.0),
    }


def _scalar(sizes: Options, layers: int) -> Any:
    """What scores are divided by the root of: a head's size, but in the largest of the family."""
    largest = sizes["num_hidden_layers"] == layers
    return sizes["hidden_size"] // sizes["num_attention_heads"] if largest else sizes["head_dim"]


def _kinds(options: Options, sizes: Options, period: int) -> list[str]:
    """Which layers slide: all but every `period`-th, or another, or as is said one by one."""
    name, depth = "attention.sliding_window_pattern", sizes["num_hidden_layers"]
    found = options.get(name)
    if not isinstance(found, list):
        return list(every(_whole(options, name, period), depth))
    require(
        len(found) == depth and all(isinstance(one, bool) for one in found),
        FILE,
        got=f"{name} = {found}",
        expected=f"{depth} of True, where a layer slides, or False",
        cure="Convert the publisher's folder again.",
    )
    return [SLIDING if slides else FULL for slides in found]


def _phi3(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    window = "attention.sliding_window"
    return {
        # Zero says that no layer slides; files that say nothing are older than that word.
        "sliding_window": None if options.get(window) == 0 else _whole(options, window),
        "original_max_position_embeddings": _trained(options),
    }


def _mixtral(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    return _experts(options, "num_local_experts")


def _qwen3moe(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    hidden = _whole(options, "expert_feed_forward_length")
    experts = _experts(options, "num_experts")
    return experts | {"moe_intermediate_size": hidden, "norm_topk_prob": True}


def _gpt_oss(options: Options, sizes: Options, stored: frozenset[str]) -> dict[str, Any]:
    return _experts(options, "num_local_experts") | {
        "intermediate_size": _whole(options, "expert_feed_forward_length"),
        "sliding_window": _whole(options, "attention.sliding_window"),
        "layer_types": _kinds(options, sizes, 2),
    }


def _experts(options: Options, name: str) -> dict[str, Any]:
    """How many experts there are, by the publisher's `name`, and how many a token has."""
    return {
        name: _whole(options, "expert_count"),
        "num_experts_per_tok": _whole(options, "expert_used_count"),
    }


def _whole(options: Options, name: str, default: int | None = None) -> int:
    """An option that is a positive whole number, of all layers alike."""
    found = options.get(name, default)
    require(
        isinstance(found, int) and not isinstance(found, bool) and found > 0,
        FILE,
        got=f"{name} = {described(found)}",
        expected="a positive whole number",
        cure="Convert the publisher's folder again.",
    )
    assert isinstance(found, int)
    return found


def _positive(
    options: Options, name: str, default: float | None = None, below: float = math.inf
) -> float:
    """An option that is a positive number."""
    found = options.get(name, default)
    require(
        isinstance(found, int | float) and not isinstance(found, bool) and 0 < found < below,
        FILE,
        got=f"{name} = {described(found)}",
        expected="a positive number" if below == math.inf else f"a positive number below {below}",
        cure="Convert the publisher's folder again.",
    )
    assert isinstance(found, int | float)
    return found


QWEN_EXPERTS = {
    f"ffn_{part}_exps": f"mlp.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")
}
GPT_OSS_EXPERTS = {
    kind: (f"mlp.experts.gate_up_proj{end}", f"mlp.experts.down_proj{end}")
    for kind, end in (("weight", ""), ("bias", "_bias"))
}
OF_MIXTRAL, OF_GRANITE = "block_sparse_moe.experts.{}.", "block_sparse_moe."
MIXTRAL = Architecture(
    "mixtral", LAYER | {"ffn_gate_inp": "block_sparse_moe.gate"}, _mixtral, neighbours=True,
    experts={
        "ffn_gate_exps": f"{OF_MIXTRAL}w1", "ffn_up_exps": f"{OF_MIXTRAL}w3",
        "ffn_down_exps": f"{OF_MIXTRAL}w2",
    },
)  # fmt: skip
ARCHITECTURES: Mapping[str, Architecture] = {
    "gemma2": Architecture("gemma2", LAYER | BOTH_SIDES, _gemma2, from_one=True),
    "gemma3": Architecture(
        "gemma3_text", LAYER | BOTH_SIDES | HEAD_NORMS, _gemma3, from_one=True
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        LAYER | AFTER | {"attn_sinks": "self_attn.sinks", "ffn_gate_inp": "mlp.router"},
        _gpt_oss, together=GPT_OSS_EXPERTS, by_turns=True,
    ),
    "granite": Architecture("granite", LAYER, _granite, neighbours=True),
    "granitemoe": Architecture(
        "granitemoe", LAYER | {"ffn_gate_inp": f"{OF_GRANITE}router.layer"}, _granitemoe,
        neighbours=True,
        together={
            "weight": (f"{OF_GRANITE}input_linear.weight", f"{OF_GRANITE}output_linear.weight"),
        },
    ),
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


def architecture_of(name: str, options: Options) -> Architecture:
    """Of one of `ARCHITECTURES` by its name; llama with experts is Mixtral."""
    mixed = name == "llama" and options.get("expert_count")
    return MIXTRAL if mixed else ARCHITECTURES[name]


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
        Where an option is missing, of another kind, or not known.
    """
    asked, architecture = Configuration(options), architecture_of(name, options)
    width, heads = _whole(asked, "embedding_length"), _whole(asked, "attention.head_count")
    size = _whole(asked, "attention.key_length", width // heads)
    sizes = {
        "hidden_size": width, "num_hidden_layers": _whole(asked, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _whole(asked, "attention.head_count_kv", heads),
        "head_dim": size, "intermediate_size": _whole(asked, "feed_forward_length"),
        "vocab_size": _whole(asked, "vocab_size", words),
        "rms_norm_eps": _positive(asked, "attention.layer_norm_rms_epsilon", below=1.0),
        "max_position_embeddings": _whole(asked, "context_length"),
    }  # fmt: skip
    _require_same(asked, "attention.value_length", size)
    config = sizes | architecture.options(asked, sizes, stored)
    config["model_type"] = architecture.family
    config["tie_word_embeddings"] = "output.weight" not in stored
    config["rope_theta"] = _positive(asked, "rope.freq_base", 10_000.0)
    turning = _turning(asked, size, architecture)
    _require_factors(factors, turning // 2)
    config["rope_scaling"] = _scaling(asked, architecture, factors)
    if turning != size:  # half a feature more, so that no rounding takes one away
        config["rope_scaling"]["partial_rotary_factor"] = (turning + 0.5) / size
    _refuse_unknown(asked)
    return {name: value for name, value in config.items() if value is not None}


def _scaling(options: Options, architecture: Architecture, factors: Factors) -> dict[str, Any]:
    """How rotary positions are scaled, by the names of ``rope_scaling``."""
    factor = options.get("rope.scaling.factor", options.get("rope.scale_linear"))
    # llama.cpp scales linearly where it is told a factor and no kind.
    kind = options.get("rope.scaling.type") or ("linear" if factor else "none")
    known = ("longrope",) if LONG in factors else ("none", "linear", "yarn")
    kind = "longrope" if kind == "none" and LONG in factors else kind
    known = ("none",) if FREQUENCIES in factors else known
    require(
        kind in known,
        FILE,
        got=f"rope.scaling.type = {kind}",
        expected=" or ".join(known),
        cure="Other scalings of rotary positions are not known here.",
    )
    if FREQUENCIES in factors:
        return {"rope_type": "factors", "factors": factors[FREQUENCIES]}
    if kind == "longrope":
        return _longrope(options, factors)
    if kind == "yarn":
        return _yarn(options, architecture)
    if kind == "linear" and factor:
        name = "rope.scaling.factor" if "rope.scaling.factor" in options else "rope.scale_linear"
        return {"rope_type": "linear", "factor": _positive(options, name)}
    return {"rope_type": "default"}


def _longrope(options: Options, factors: Factors) -> dict[str, Any]:
    require(
        SHORT in factors,
        FILE,
        got=f"{LONG}.weight, and no {SHORT}.weight",
        expected="both",
        cure="Convert the publisher's folder again.",
    )
    return {
        "rope_type": "longrope", "long_factor": factors[LONG], "short_factor": factors[SHORT],
        "attention_factor": _positive(options, "rope.scaling.attn_factor", 1.0),
        "original_max_position_embeddings": _trained(options),
    }  # fmt: skip


def _yarn(options: Options, architecture: Architecture) -> dict[str, Any]:
    for name in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"):
        require(
            options.get(name) is None,
            FILE,
            got=f"{name} = {described(options.get(name))} of a yarn scaling",
            expected="none, by which it is YaRN's own",
            cure="Readers disagree whether it stands for YaRN's own or multiplies that: take the "
            "publisher's folder with safetensors.",
        )
    found = {
        "rope_type": "yarn", "factor": _positive(options, "rope.scaling.factor"),
        "original_max_position_embeddings": _trained(options),
        "beta_fast": _positive(options, "rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": _positive(options, "rope.scaling.yarn_beta_slow", 1.0),
    }  # fmt: skip
    # gpt-oss's publisher rounds no bounds; the file does not say it.
    return found | ({"truncate": False} if architecture.family == "gpt_oss" else {})


def _turning(options: Options, size: int, architecture: Architecture) -> int:
    """How many features of a head turn."""
    name = "rope.dimension_count"
    if not architecture.part_turns:
        _require_same(options, name, size)
    turning = _whole(options, name, size)
    require(
        turning <= size and turning % 2 == 0,
        FILE,
        got=f"{name} = {turning}",
        expected=f"an even number up to {size}, the size of a head",
        cure="Convert the publisher's folder again.",
    )
    return turning


def _require_factors(factors: Factors, count: int) -> None:
    """Refuse what frequencies cannot be divided by."""
    for name, found in factors.items():
        require(
            len(found) == count and all(0 < factor < math.inf for factor in found),
            f"{name}.weight",
            got=f"{len(found)} numbers, of which the least is {min(found, default=None)}",
            expected=f"{count} positive ones, one for each frequency",
            cure="Convert the publisher's folder again.",
        )


def _trained(options: Options) -> int:
    length = _whole(options, "context_length")
    return _whole(options, "rope.scaling.original_context_length", length)


def _require_same(options: Options, name: str, size: Any) -> None:
    require(
        options.get(name, size) == size,
        FILE,
        got=f"{name} = {described(options.get(name))}",
        expected=f"{size}, as attention.key_length",
        cure="Heads of several sizes are not known here.",
    )


def _refuse_unknown(options: Configuration) -> None:
    for name, value in options.options.items():
        require(
            name in options.asked or name in HARMLESS or value in MEANT.get(name, ()),
            FILE,
            got=f"{name} = {described(value)}",
            expected="options of the architecture",
            cure="It may change the network, whose numbers would be others than the publisher's.",
        )
