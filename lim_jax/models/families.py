"""The families of networks that are supported, by ``model_type``, and why others are not."""

from collections.abc import Callable, Mapping
from typing import Any

from lim_jax.models import deepseek_family as deepseeks
from lim_jax.models import gemma_family as gemmas
from lim_jax.models import hybrid_family as hybrids
from lim_jax.models import layer_norm_family as layer_norms
from lim_jax.models import llama_family as llamas
from lim_jax.models import mixture_family as mixtures
from lim_jax.models.options import Configuration, Options, require_config
from lim_jax.models.recipe import Recipe

FAMILIES: Mapping[str, Callable[[Configuration], Recipe]] = {
    family.__name__: family
    for family in (
        mixtures.afmoe, llamas.apertus, llamas.arcee, layer_norms.bloom, layer_norms.cohere,
        layer_norms.cohere2, llamas.cwm, deepseeks.deepseek_v2, deepseeks.deepseek_v3,
        deepseeks.deepseek_v32, deepseeks.dots1, llamas.ernie4_5, mixtures.ernie4_5_moe,
        llamas.exaone4, layer_norms.falcon, gemmas.gemma, gemmas.gemma2, gemmas.gemma3_text,
        gemmas.gemma4_text,
        llamas.glm, llamas.glm4, deepseeks.glm4_moe, deepseeks.glm4_moe_lite, deepseeks.glm_moe_dsa,
        layer_norms.gpt2, layer_norms.gpt_neo, layer_norms.gpt_neox, mixtures.gpt_oss,
        layer_norms.gptj, llamas.granite, mixtures.granitemoe, llamas.helium,
        llamas.hunyuan_v1_dense, mixtures.hunyuan_v1_moe, llamas.hyperclovax, llamas.internlm3,
        llamas.iquestcoder, layer_norms.jais2, llamas.llama, mixtures.llama4_text,
        mixtures.minimax_m2, llamas.ministral, llamas.mistral, mixtures.mixtral,
        layer_norms.nemotron, layer_norms.olmo, llamas.olmo2, llamas.olmo3, mixtures.olmoe,
        layer_norms.opt, layer_norms.phi, llamas.phi3, mixtures.phimoe, llamas.qwen2,
        mixtures.qwen2_moe, llamas.qwen3, mixtures.qwen3_moe, llamas.seed_oss, llamas.smollm3,
        deepseeks.solar_open, layer_norms.stablelm, layer_norms.starcoder2, gemmas.vaultgemma,
        deepseeks.youtu,
        hybrids.bamba, hybrids.falcon_h1, hybrids.granitemoehybrid, hybrids.lfm2, hybrids.lfm2_moe,
        hybrids.nemotron_h, hybrids.olmo_hybrid, hybrids.qwen3_5_moe_text, hybrids.qwen3_5_text,
        hybrids.qwen3_next,
        deepseeks.kimi_k2, llamas.mimo, llamas.ministral3, llamas.qwen2_5_vl_text,
        llamas.qwen2_vl_text, mixtures.qwen3_vl_moe_text, llamas.qwen3_vl_text,
    )
}  # fmt: skip
# Families with layers that are no attention, by what these layers are.
OTHER_LAYERS = {
    "Mamba": ("falcon_mamba", "jamba", "mamba", "mamba2", "zamba", "zamba2"),
    "linear attention": ("kimi_linear", "minimax", "rwkv"),
    "recurrent": ("recurrent_gemma", "xlstm"),
}  # fmt: skip

# Families whose layers are no flow on one state, or differ in shape, by what they have.
OTHER_FLOWS = {
    "attention to compressed tokens, and several residual streams": ("deepseek_v4",),
    "layers that read what blocks of earlier layers gave": ("kimi_k3",),
    "layers that use earlier layers' keys and values": ("gemma3n", "gemma3n_text"),
    "attention to blocks of tokens that an index chooses": ("minimax_m3", "minimax_m3_vl"),
    "layers that differ in their numbers of key heads": ("mimo_v2", "mimo_v2_flash"),
    "layers that differ in their numbers of heads": ("step3p5", "step3p7"),
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
    """Return the recipe of a configuration's family, or raise ValueError if it is not supported."""
    refuse_unsupported(config)
    family = config.get("model_type")
    if family not in FAMILIES:
        _require_attention(family, _other_kind(config))
    require_config(family in FAMILIES, f"model_type = {family!r}", " or ".join(FAMILIES), WRITE)
    return FAMILIES[str(family)](config)


def refuse_unsupported(config: Options) -> None:
    """Raise ValueError, with the reason, if the parts here do not make a network or its text."""
    text = config.get("text_config")
    for options in (config, text if isinstance(text, Mapping) else {}):
        family = options.get("model_type")
        for kind, families in OTHER_LAYERS.items():
            _require_attention(family, kind if family in families else None)
        for what, families in OTHER_FLOWS.items():
            got = f"model_type = {family!r} with {what}"
            expected = "layers of one shape, which read the state before them and no other"
            require_config(family not in families, got, expected, WRITE)


def _require_attention(family: Any, kind: str | None) -> None:
    got = f"model_type = {family!r} with {kind} layers"
    known = "attention, gated delta rules, Mamba-2 or short convolutions"
    require_config(kind is None, got, f"a known family, with {known}", WRITE)


def _other_kind(config: Options) -> str | None:
    """Return what layers of an unknown family seem to be, by its options; None if attention."""
    names = [name for name, value in config.items() if value]
    names += [str(kind) for name in names if "layer" in name and isinstance(config[name], list)
              for kind in config[name]]  # fmt: skip
    told = (kind for kind, starts in TELLING.items() if any(n.startswith(starts) for n in names))
    return next(told, None)
