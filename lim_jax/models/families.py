"""The families of networks whose checkpoints are supported, by ``model_type``."""

from collections.abc import Callable, Mapping

from lim_jax.models import deepseek_family as deepseeks
from lim_jax.models import gemma_family as gemmas
from lim_jax.models import hybrid_family as hybrids
from lim_jax.models import layer_norm_family as layer_norms
from lim_jax.models import llama_family as llamas
from lim_jax.models import mixture_family as mixtures
from lim_jax.models.options import Configuration, require_config
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
    )
}  # fmt: skip
# Families with layers that are no attention, by what these layers are.
OTHER_LAYERS = {
    "Mamba": ("falcon_mamba", "jamba", "mamba", "mamba2", "zamba", "zamba2"),
    "linear attention": ("kimi_linear", "minimax", "rwkv"),
    "recurrent": ("recurrent_gemma", "xlstm"),
}  # fmt: skip


def recipe_of(config: Configuration) -> Recipe:
    """Return the recipe of a configuration's family, or raise ValueError if it is not supported."""
    family = config.get("model_type")
    cure = "Write the network's field, and give influence a loss of your own."
    for kind, families in OTHER_LAYERS.items():
        got = f"model_type = {family!r} with {kind} layers"
        no_kernel = "Other layers have no causal attention kernel. "
        expected = "causal attention in every layer"
        require_config(family not in families, got, expected, no_kernel + cure)
    require_config(family in FAMILIES, f"model_type = {family!r}", " or ".join(FAMILIES), cure)
    return FAMILIES[str(family)](config)
