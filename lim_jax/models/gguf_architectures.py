"""Architectures of llama.cpp: their options by their publishers' names."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

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


class Architecture(NamedTuple):
    """An architecture of llama.cpp."""

    family: str  # its publisher's name
    permuted: bool = False  # whether llama.cpp interleaved the rows of queries and keys
    partial_rotary: bool = False  # whether a part of each head may be rotated
    layer_norm_eps: str | None = None  # the publisher's name of it; else norms are RMS norms
    names: Mapping[str, str] = {}  # the publisher's names of options, where they are not Llama's


ARCHITECTURES: Mapping[str, Architecture] = {
    "afmoe": Architecture("afmoe"),
    "arcee": Architecture("arcee", permuted=True),
    "cohere2": Architecture("cohere2", layer_norm_eps="layer_norm_eps"),
    "deepseek2": Architecture("deepseek_v2"),
    "exaone4": Architecture("exaone4"),
    "gemma": Architecture("gemma"),
    "gemma2": Architecture("gemma2"),
    "gemma3": Architecture("gemma3_text"),
    "gemma4": Architecture("gemma4_text"),
    "glm4": Architecture("glm4", partial_rotary=True),
    "gpt-oss": Architecture("gpt_oss"),
    "gpt2": Architecture(
        "gpt2", layer_norm_eps="layer_norm_epsilon",
        names={
            "hidden_size": "n_embd", "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head", "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
        },
    ),
    "gptneox": Architecture("gpt_neox", partial_rotary=True, layer_norm_eps="layer_norm_eps"),
    "granite": Architecture("granite", permuted=True),
    "granitemoe": Architecture("granitemoe", permuted=True),
    "llama": Architecture("llama", permuted=True),
    "llama4": Architecture("llama4_text"),
    "mistral3": Architecture("ministral3", permuted=True),
    "olmo2": Architecture("olmo2"),
    "phi3": Architecture("phi3", partial_rotary=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen3moe": Architecture("qwen3_moe"),
    "qwen3vl": Architecture("qwen3"),
    "qwen3vlmoe": Architecture("qwen3_moe"),
    "seed_oss": Architecture("seed_oss"),
    "smollm3": Architecture("smollm3", permuted=True),
    "starcoder2": Architecture("starcoder2", layer_norm_eps="norm_epsilon"),
}  # fmt: skip


def published_config(
    name: str, options: Options, vocabulary: int, stored: frozenset[str], factors: Factors
) -> dict[str, Any]:
    """Return the publisher's configuration of a file's options without the architecture's name."""
    file, architecture = Configuration(options, GGUF), ARCHITECTURES[name]
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
