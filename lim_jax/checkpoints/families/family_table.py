"""The families of networks that are supported, by ``model_type``, and why others are not."""

from collections.abc import Callable, Mapping
from typing import Any

from lim_jax.checkpoints.families import deepseek, gemma, hybrid, layer_norm, linear, llama, mixture
from lim_jax.checkpoints.options import Configuration, Options, require_config
from lim_jax.checkpoints.recipe import Recipe

# What makes a recipe of a configuration, by its ``model_type``. The first line of each docstring
# says what the family is: docs/models.py prints it as the family's row.
FAMILIES: dict[str, Callable[[Configuration], Recipe]] = {
    "afmoe": mixture.afmoe,
    "apertus": llama.apertus,
    "arcee": llama.arcee,
    "bailing_hybrid": linear.bailing_hybrid,
    "bamba": hybrid.bamba,
    "bloom": layer_norm.bloom,
    "cohere": layer_norm.cohere,
    "cohere2": layer_norm.cohere2,
    "cohere2_moe": mixture.cohere2_moe,
    "cwm": llama.cwm,
    "deepseek_v2": deepseek.deepseek_v2,
    "deepseek_v3": deepseek.deepseek_v3,
    "deepseek_v32": deepseek.deepseek_v32,
    "dots1": deepseek.dots1,
    "ernie4_5": llama.ernie4_5,
    "ernie4_5_moe": mixture.ernie4_5_moe,
    "exaone4": llama.exaone4,
    "exaone_moe": deepseek.exaone_moe,
    "falcon": layer_norm.falcon,
    "falcon_h1": hybrid.falcon_h1,
    "flex_olmo": mixture.flex_olmo,
    "gemma": gemma.gemma,
    "gemma2": gemma.gemma2,
    "gemma3_text": gemma.gemma3_text,
    "gemma4_text": gemma.gemma4_text,
    "glm": llama.glm,
    "glm4": llama.glm4,
    "glm4_moe": deepseek.glm4_moe,
    "glm4_moe_lite": deepseek.glm4_moe_lite,
    "glm_moe_dsa": deepseek.glm_moe_dsa,
    "gpt2": layer_norm.gpt2,
    "gpt_bigcode": layer_norm.gpt_bigcode,
    "gpt_neo": layer_norm.gpt_neo,
    "gpt_neox": layer_norm.gpt_neox,
    "gpt_oss": mixture.gpt_oss,
    "gptj": layer_norm.gptj,
    "granite": llama.granite,
    "granite_swa": llama.granite_swa,
    "granitemoe": mixture.granitemoe,
    "granitemoehybrid": hybrid.granitemoehybrid,
    "granitemoeshared": mixture.granitemoeshared,
    "helium": llama.helium,
    "hunyuan_v1_dense": llama.hunyuan_v1_dense,
    "hunyuan_v1_moe": mixture.hunyuan_v1_moe,
    "hy_v3": deepseek.hy_v3,
    "hyperclovax": llama.hyperclovax,
    "internlm3": llama.internlm3,
    "iquestcoder": llama.iquestcoder,
    "jais2": layer_norm.jais2,
    "kimi_k2": deepseek.kimi_k2,
    "kimi_linear": linear.kimi_linear,
    "lfm2": hybrid.lfm2,
    "lfm2_moe": hybrid.lfm2_moe,
    "llama": llama.llama,
    "llama4_text": mixture.llama4_text,
    "mimo": llama.mimo,
    "minicpm3": deepseek.minicpm3,
    "minimax": linear.minimax,
    "minimax_m1": linear.minimax,
    "minimax_m2": mixture.minimax_m2,
    "minimax_text_01": linear.minimax,
    "ministral": llama.ministral,
    "ministral3": llama.ministral3,
    "mistral": llama.mistral,
    "mixtral": mixture.mixtral,
    "mpt": layer_norm.mpt,
    "nanochat": llama.nanochat,
    "nemotron": layer_norm.nemotron,
    "nemotron_h": hybrid.nemotron_h,
    "olmo": layer_norm.olmo,
    "olmo2": llama.olmo2,
    "olmo3": llama.olmo3,
    "olmo_hybrid": hybrid.olmo_hybrid,
    "olmoe": mixture.olmoe,
    "opt": layer_norm.opt,
    "phi": layer_norm.phi,
    "phi3": llama.phi3,
    "phimoe": mixture.phimoe,
    "qwen2": llama.qwen2,
    "qwen2_5_vl_text": llama.qwen2_5_vl_text,
    "qwen2_moe": mixture.qwen2_moe,
    "qwen2_vl_text": llama.qwen2_vl_text,
    "qwen3": llama.qwen3,
    "qwen3_5_moe_text": hybrid.qwen3_5_moe_text,
    "qwen3_5_text": hybrid.qwen3_5_text,
    "qwen3_moe": mixture.qwen3_moe,
    "qwen3_next": hybrid.qwen3_next,
    "qwen3_vl_moe_text": mixture.qwen3_vl_moe_text,
    "qwen3_vl_text": llama.qwen3_vl_text,
    "sarvam_moe": deepseek.sarvam_moe,
    "seed_oss": llama.seed_oss,
    "smollm3": llama.smollm3,
    "solar_open": deepseek.solar_open,
    "stablelm": layer_norm.stablelm,
    "starcoder2": layer_norm.starcoder2,
    "vaultgemma": gemma.vaultgemma,
    "youtu": deepseek.youtu,
}
# Families with layers that are no attention, by what these layers are.
OTHER_LAYERS = {
    "Mamba": ("falcon_mamba", "jamba", "mamba", "mamba2", "zamba", "zamba2"),
    "linear attention": ("rwkv",),
    "recurrent": ("recurrent_gemma", "xlstm"),
}
# Families whose layers are no flow on one state, or differ in shape, by what they have.
OTHER_FLOWS = {
    "attention to compressed tokens, and several residual streams": ("deepseek_v4",),
    "experts whose output goes around the sublayers that follow them": ("longcat_flash",),
    "layers that read what blocks of earlier layers gave": ("kimi_k3",),
    "layers that use earlier layers' keys and values": ("gemma3n", "gemma3n_text"),
    "attention to blocks of tokens that an index chooses": ("minimax_m3", "minimax_m3_vl"),
    "layers that differ in their numbers of key heads": ("mimo_v2", "mimo_v2_flash"),
    "layers that differ in their numbers of heads": ("step3p5", "step3p7"),
    "layers that differ in their sizes, some without attention": ("nemotron-nas",),
}
# How options begin, and layers are called, where a family that is not known has other layers.
TELLING = {
    "Mamba": ("mamba", "ssm_"),
    "linear attention": ("linear_attention", "linear_attn", "linear_conv", "lightning", "kda_"),
    "short convolution": ("conv", "short_conv"),
    "cross-attention": ("cross_attention",),
    "indexed attention": ("index", "sparse_attention", "compress", "deepseek_sparse"),
}
WRITE = "Write the network's field, and give influence a loss of your own."


def recipe_of(config: Configuration) -> Recipe:
    """Return the recipe of a configuration's family; raise ValueError if it is not supported."""
    family = config.get_text("model_type")
    refuse_unsupported(config)
    if family not in FAMILIES:
        _require_attention(family, _other_kind(config))
    require_config(
        family in FAMILIES,
        f"model_type = {family!r}",
        f"one of the {len(FAMILIES)} families in checkpoints.families.family_table.FAMILIES",
        WRITE,
    )
    return FAMILIES[str(family)](config)


def refuse_unsupported(config: Options) -> None:
    """Raise ValueError, with the reason, at families that the layers here cannot express."""
    text = config.get("text_config")
    for options in (config, text if isinstance(text, Mapping) else {}):
        family = options.get("model_type")
        for kind, families in OTHER_LAYERS.items():
            _require_attention(family, kind if family in families else None)
        for what, families in OTHER_FLOWS.items():
            require_config(
                family not in families,
                f"model_type = {family!r} with {what}",
                "layers of one shape, which read the state before them and no other",
                WRITE,
            )


def _require_attention(family: Any, kind: str | None) -> None:
    """Raise ValueError if `kind` names layers that are not supported."""
    layer_types = "attention, delta rules, Mamba-2, lightning attention or short convolutions"
    require_config(
        kind is None,
        f"model_type = {family!r} with {kind} layers",
        f"a known family, with {layer_types}",
        WRITE,
    )


def _other_kind(config: Options) -> str | None:
    """Return the kind of unsupported layers that an unknown family's options hint at, or None."""
    names = [name for name, value in config.items() if value]
    names += [
        str(kind)
        for name in names
        if "layer" in name and isinstance(config[name], list)
        for kind in config[name]
    ]
    told = (kind for kind, starts in TELLING.items() if any(n.startswith(starts) for n in names))
    return next(told, None)
