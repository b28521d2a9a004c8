"""DeepSeek and those with its experts, beside shared ones, or with its latent attention."""

import math
from typing import Any

from lim_jax.checkpoints import expert_sublayers, latent_sublayer, sublayers
from lim_jax.checkpoints.families.llama import exaone_like, llama_like, masks_by_kind, rotary_masks
from lim_jax.checkpoints.options import Configuration
from lim_jax.checkpoints.recipe import Biases, Names, Recipe, SizeNames, Sizes, sizes_of
from lim_jax.checkpoints.rope_config import (
    FULL,
    SLIDING,
    WINDOW,
    rope_options,
    scaling_kind,
    yarn_weights,
)
from lim_jax.network.experts import Routing
from lim_jax.network.frequencies import yarn_amplitude
from lim_jax.network.masks import AttentionMask

# Of MiniCPM 3's files, what is usual.
OF_MINICPM3 = {
    "kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256,
}  # fmt: skip
OF_SARVAM = Names(
    embedding="word_embeddings",
    fused_qkv="attention.query_key_value",
    output="attention.dense",
    query_norm="attention.query_layernorm",
    key_norm="attention.key_layernorm",
)
# Options of an index of tokens.
OF_INDEX = (
    "index_head_dim", "index_n_heads", "index_share_for_mtp_iteration", "index_skip_topk_offset",
    "index_topk_freq", "index_topk_pattern", "indexer_rope_interleave", "indexer_types",
)  # fmt: skip


def deepseek_v2(config: Configuration) -> Recipe:
    """DeepSeek V2: latent attention; experts beside shared ones, chosen by a softmax."""
    methods = "greedy", "group_limited_greedy"
    limited = config.get_choice("topk_method", methods, methods[0]) == methods[1]
    config.refuse(norm_topk_prob=False, scoring_func="softmax")
    routing = Routing(
        config.get_int("num_experts_per_tok"),
        normalised=False,
        factor=config.get_positive("routed_scaling_factor", 1.0),
        groups=config.get_int_or("n_group", 1) if limited else 1,
        topk_group=config.get_int_or("topk_group", 1) if limited else 1,
    )
    config.ignore("n_group", "topk_group")
    return _deepseek(config, routing=routing, dense=0, shared=2)


def deepseek_v3(config: Configuration) -> Recipe:
    """DeepSeek V3: latent attention; experts beside a shared one, chosen by sigmoids in groups."""
    return _deepseek(config, dense=3, groups=(8, 4))


def kimi_k2(config: Configuration) -> Recipe:
    """Kimi K2: DeepSeek V3."""
    return deepseek_v3(config)


def deepseek_v32(config: Configuration) -> Recipe:
    """DeepSeek V3.2: V3, in contexts of which its index of tokens chooses all."""
    return _indexed(config, deepseek_v3(config))


def glm4_moe_lite(config: Configuration) -> Recipe:
    """GLM-4.7 Flash: DeepSeek V3 without groups."""
    config.refuse(partial_rotary_factor=1.0)
    return _deepseek(config, 1e-5, dense=1, count=64, top=4, factor=1.8)


def glm_moe_dsa(config: Configuration) -> Recipe:
    """GLM-5: DeepSeek V3.2 without groups."""
    return _indexed(config, _deepseek(config, 1e-5, dense=3))


def youtu(config: Configuration) -> Recipe:
    """Youtu-LLM: DeepSeek V3 without experts."""
    config.ignore("embedding_initializer_range")
    return latent_like(config, 1e-6, tied=True)


def minicpm3(config: Configuration) -> Recipe:
    """MiniCPM 3: dense latent attention, whose features are not interleaved; multipliers."""
    config = config.with_defaults(**OF_MINICPM3)
    width = config.get_int("hidden_size")
    heads = config.get_int("num_attention_heads")
    if config.get("v_head_dim") is None:
        config = config.replace(v_head_dim=width // heads)
    recipe = latent_like(
        config,
        1e-5,
        rope_interleaved=False,
        tied=True,
        embedding_scale=config.get_positive("scale_emb"),
        logit_scale=config.get_int_or("dim_model_base", width) / width,
    )
    if config.get("scale_depth") is None:
        return recipe
    return recipe._replace(
        increment=config.get_positive("scale_depth") / math.sqrt(recipe.sizes.depth)
    )


def exaone_moe(config: Configuration) -> Recipe:
    """K-EXAONE: EXAONE 4 with norms before sublayers; experts beside a shared one, by sigmoids."""
    sizes = sizes_of(config, norm_eps=1e-5)
    named = _by_names(config, n_routed_experts="num_experts", n_shared_experts="num_shared_experts")
    mixture = beside_shared(named, sizes.depth, dense=1, count=64, hidden=1024)
    mixture = mixture._replace(preference="e_score_correction_bias")
    return exaone_like(config, sizes, names=Names(), network=mixture)


def hy_v3(config: Configuration) -> Recipe:
    """Hunyuan 3: norms of heads; experts beside a shared one, chosen by sigmoids."""
    config.refuse(mlp_bias=False)
    config.ignore("enable_moe_fp32_combine")
    sizes = sizes_of(config, norm_eps=1e-5, head_dim=128)
    named = _by_names(
        config,
        n_routed_experts="num_experts",
        n_shared_experts="num_shared_experts",
        routed_scaling_factor="router_scaling_factor",
    )
    mixture = beside_shared(named, sizes.depth, dense=1, count=192, hidden=1536, factor=2.826)
    assert mixture.shared is not None
    mixture = mixture._replace(
        router="router.gate", preference="expert_bias", shared=("shared_mlp", mixture.shared[1])
    )
    return llama_like(
        config,
        sizes,
        rotary_masks(config, sizes, default=11_158_840.0),
        network=mixture,
        head_norm=sublayers.shared_head_norm,
        num_mtp_layers=count_mtp_layers(config),
    )


def sarvam_moe(config: Configuration) -> Recipe:
    """Sarvam: GLM-4.5 with whole heads rotated and their norms, and one matrix of projections."""
    config.refuse(
        moe_router_enable_expert_bias=True,
        score_function="sigmoid",
        use_bias=False,
    )
    config.ignore("router_dtype")
    named = _by_names(
        config,
        n_routed_experts="num_experts",
        n_shared_experts="num_shared_experts",
        attention_bias="use_qkv_bias",
    )
    sizes = sizes_of(config, head_dim=64)
    normed = sublayers.shared_head_norm if config.get_flag("use_qk_norm", True) else None
    recipe = _glm4_moe(
        named, sizes, 1.0, 8e6, head_norm=normed, dense=1, hidden=1024, top=6, factor=2.5
    )
    assert isinstance(recipe.network, expert_sublayers.Mixture)
    mixture = recipe.network._replace(preference="gate.expert_bias")
    return recipe._replace(network=mixture, projections=sublayers.fused_qkv, names=OF_SARVAM)


def _by_names(config: Configuration, **others: str) -> Configuration:
    """Return a configuration with options that a family names otherwise under usual names."""
    stated = {name: config[other] for name, other in others.items() if other in config}
    return config.with_defaults(**stated)


def glm4_moe(config: Configuration) -> Recipe:
    """GLM-4.5 to 4.7: half of each head is rotated; experts beside a shared one, by sigmoids."""
    sizes = sizes_of(config, norm_eps=1e-5)
    normed = sublayers.shared_head_norm if config.get_flag("use_qk_norm") else None
    return _glm4_moe(config, sizes, 0.5, head_norm=normed, dense=1, hidden=1408)


def solar_open(config: Configuration) -> Recipe:
    """Solar Open: GLM-4.5 with whole heads rotated, and experts in every layer."""
    config.refuse(first_k_dense_replace=0, use_qk_norm=False)
    sizes = sizes_of(config, norm_eps=1e-5, head_dim=128)
    return _glm4_moe(config, sizes, 1.0, 1e6, dense=0, hidden=1280)


def _glm4_moe(
    config: Configuration,
    sizes: Sizes,
    part: float,
    theta: float = 10_000.0,
    head_norm: Any = None,
    **mixture: Any,
) -> Recipe:
    """Return the recipe of a GLM-4 MoE, of which heads are rotated in `part`."""
    return llama_like(
        config,
        sizes,
        rotary_masks(config, sizes, default=theta, default_part=part),
        biases=Biases(qkv=config.get_flag("attention_bias")),
        head_norm=head_norm,
        network=beside_shared(config, sizes.depth, **({"count": 128, "factor": 1.0} | mixture)),
        num_mtp_layers=count_mtp_layers(config),
    )


def dots1(config: Configuration) -> Recipe:
    """dots.llm1: Qwen 3 with experts beside shared ones, chosen by sigmoids."""
    sizes = sizes_of(config)
    first = config.get_int("max_window_layers", 62, least=0)
    first = sizes.depth if config.get("sliding_window", WINDOW) is None else first
    usual = (FULL if k < first else SLIDING for k in range(sizes.depth))
    network = beside_shared(
        config, sizes.depth, dense=0, shared=None, top=None, factor=1.0, normalised=False
    )
    return llama_like(
        config,
        sizes,
        masks_by_kind(config, sizes, usual),
        head_norm=sublayers.shared_head_norm,
        network=network,
    )


def _deepseek(config: Configuration, norm_eps: float = 1e-6, **mixture: Any) -> Recipe:
    """Return the recipe of a DeepSeek: latent attention, and experts beside shared ones."""
    recipe = latent_like(config, norm_eps)
    network = beside_shared(config, recipe.sizes.depth, **mixture)
    return recipe._replace(network=network, num_mtp_layers=count_mtp_layers(config))


def latent_like(
    config: Configuration,
    norm_eps: float,
    theta: float | None = 10_000.0,
    rope_interleaved: bool = True,
    **more: Any,
) -> Recipe:
    """Return the recipe of a decoder with latent attention, whose MLPs are dense by default.

    `theta` is the base of rotary positions where none is stated; None is for no positions.
    """
    config.refuse(attention_bias=False, mlp_bias=False, rope_interleave=rope_interleaved)
    config.ignore("head_dim", "qk_head_dim")  # they repeat the sizes of latent attention
    sizes = sizes_of(config, SizeNames(head_dim="qk_rope_head_dim"), norm_eps=norm_eps)
    scale = None
    masks = sizes.depth * (AttentionMask(),)
    if theta is not None:
        size = sizes.head_dim + config.get_int("qk_nope_head_dim")
        scale = _yarn_scale(size, rope_options(config))
        masks = rotary_masks(config, sizes, default=theta)
    attention = latent_sublayer.read_mla(config, rope_interleaved)
    return llama_like(config, sizes, masks, attention=attention, scale=scale, **more)


def beside_shared(
    config: Configuration,
    depth: int,
    *,
    dense: int,
    count: int | None = None,
    hidden: int | None = None,
    shared: int | None = 1,
    routing: Routing | None = None,
    **sigmoids: Any,
) -> expert_sublayers.Mixture:
    """Return a reader of experts beside shared ones; keyword arguments are options' defaults."""
    config.refuse(moe_layer_freq=1, ep_size=1, moe_router_dtype="float32")
    preference = "gate.e_score_correction_bias" if routing is None else None
    routing = routing or by_sigmoids(config, **sigmoids)
    name = "n_routed_experts" if config.get("n_routed_experts") is not None else "num_local_experts"
    count = config.get_int(name, count)
    hidden = config.get_int("moe_intermediate_size", hidden)
    config.refuse(num_experts=count, num_local_experts=count)  # further names of the same number
    expert_sublayers.require_open(routing, count)
    first = config.get_int("first_k_dense_replace", dense, least=0)
    return expert_sublayers.Mixture(
        count,
        hidden,
        routing,
        expert_sublayers.PROJECTIONS,
        preference=preference,
        shared=("shared_experts", hidden * config.get_int("n_shared_experts", shared)),
        dense_layers=expert_sublayers.read_dense_layers(config, depth, first),
    )


def by_sigmoids(
    config: Configuration,
    *,
    top: int | None = 8,
    factor: float = 2.5,
    groups: tuple[int, int] = (1, 1),
    normalised: bool = True,
) -> Routing:
    """Return a routing by sigmoids; keyword arguments are defaults of the options."""
    config.refuse(topk_method="noaux_tc")
    config.get_choice("scoring_func", ("sigmoid", "noaux_tc"), "sigmoid")
    stated = config.get_int_or("n_group", groups[0]), config.get_int_or("topk_group", groups[1])
    return Routing(
        config.get_int("num_experts_per_tok", top),
        "sigmoid",
        config.get_flag("norm_topk_prob", normalised),
        config.get_positive("routed_scaling_factor", factor),
        *stated,
        best=2,
    )


def _indexed(config: Configuration, recipe: Recipe) -> Recipe:
    """Return the recipe without its index of tokens, for contexts of which that chooses all."""
    config.ignore(*OF_INDEX)
    kinds = "indexed_attention", "deepseek_sparse_attention"
    kind = Configuration({"layer_types": config.get_alike("layer_types", kinds[0])})
    kind.get_choice("layer_types", kinds, kinds[0])
    tensors = ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight")
    ignored = recipe.names.ignored + tuple(f"self_attn.indexer.{name}" for name in tensors)
    why = "index_topk: of longer ones an index chooses so many tokens that attention sees"
    return recipe._replace(
        names=recipe.names._replace(ignored=ignored),
        longest=(config.get_int("index_topk", 2048), why),
    )


def count_mtp_layers(config: Configuration) -> int:
    """Return how many layers after the last one predict further tokens."""
    counts = [
        config.get_int_or(name, 0, least=0)
        for name in ("num_nextn_predict_layers", "num_mtp_layers")
    ]
    return counts[0] or counts[1]


def _yarn_scale(size: int, rope: Configuration) -> float | None:
    """Return the scale of scores times YaRN's squared amplitude, or None without such a factor."""
    _, weight = yarn_weights(rope)
    if not weight or scaling_kind(rope) == "default":
        return None
    return size**-0.5 * yarn_amplitude(rope.get_positive("factor"), weight) ** 2
