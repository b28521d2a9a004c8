"""The families of networks whose checkpoints are known, by the name in their configuration."""

from collections.abc import Callable, Mapping
from typing import Any

from lim_jax._checks import require
from lim_jax.models import gemma_family, layer_norm_family, llama_family, mixture_family
from lim_jax.models.recipe import Recipe

FAMILIES: Mapping[str, Callable[[Mapping[str, Any]], Recipe]] = {
    family.__name__: family
    for family in (
        mixture_family.afmoe,
        llama_family.arcee,
        layer_norm_family.bloom,
        layer_norm_family.cohere,
        layer_norm_family.cohere2,
        mixture_family.deepseek_v2,
        mixture_family.deepseek_v3,
        llama_family.ernie4_5,
        llama_family.exaone4,
        layer_norm_family.falcon,
        gemma_family.gemma,
        gemma_family.gemma2,
        gemma_family.gemma3_text,
        llama_family.glm,
        llama_family.glm4,
        layer_norm_family.gpt2,
        layer_norm_family.gpt_neo,
        layer_norm_family.gpt_neox,
        mixture_family.gpt_oss,
        layer_norm_family.gptj,
        llama_family.granite,
        mixture_family.granitemoe,
        llama_family.helium,
        llama_family.hunyuan_v1_dense,
        llama_family.llama,
        mixture_family.llama4_text,
        llama_family.ministral,
        llama_family.mistral,
        mixture_family.mixtral,
        layer_norm_family.nemotron,
        llama_family.olmo2,
        llama_family.olmo3,
        layer_norm_family.opt,
        layer_norm_family.phi,
        llama_family.phi3,
        llama_family.qwen2,
        llama_family.qwen3,
        mixture_family.qwen3_moe,
        llama_family.seed_oss,
        llama_family.smollm3,
        layer_norm_family.stablelm,
        layer_norm_family.starcoder2,
    )
}
# Families of which some layers or all are no attention, by what these layers are.
OTHER_LAYERS = {
    "state-space": (
        "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "mamba", "mamba2",
        "nemotron_h", "zamba", "zamba2",
    ),
    "linear attention": (
        "kimi_linear", "minimax", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
        "rwkv",
    ),
    "short convolution": ("lfm2", "lfm2_moe"),
    "recurrent": ("recurrent_gemma", "xlstm"),
}  # fmt: skip


def recipe_of(config: Mapping[str, Any]) -> Recipe:
    """The recipe of a configuration's family.

    Raises
    ------
    ValueError
        Where the family is not known, or an option of it; where its layers are no attention the
        message says so.
    """
    family = config.get("model_type")
    layers = [kind for kind, families in OTHER_LAYERS.items() if family in families]
    require(
        not layers,
        "config.json",
        got=f"model_type = {family!r} with {layers[0]} layers" if layers else "",
        expected="causal attention in every layer",
        cure="Other layers have no causal attention kernel: write the network's field, and give "
        "influence a loss of your own.",
    )
    require(
        family in FAMILIES,
        "config.json",
        got=f"model_type = {family!r}",
        expected=" or ".join(FAMILIES),
        cure="For other architectures write their field, and give influence a loss of your own.",
    )
    return FAMILIES[str(family)](config)
