"""Decoders whose tokenwise networks are mixtures of experts."""

import math
from dataclasses import replace
from typing import Any

from lim_jax.checkpoints import expert_sublayers, sublayers
from lim_jax.checkpoints.families.layer_norm import cohere_like, refuse_other_commands
from lim_jax.checkpoints.families.llama import (
    AFTER,
    biases_of,
    hunyuan_v1_dense,
    llama_like,
    masks_by_kind,
    multipliers,
    rotary_masks,
    rotated_layers,
    windows_if_used,
)
from lim_jax.checkpoints.options import Configuration, require_config
from lim_jax.checkpoints.recipe import Biases, Names, Recipe, SizeNames, Sizes, sizes_of
from lim_jax.checkpoints.rope_config import (
    CHUNKED,
    FULL,
    SLIDING,
    TRAINED,
    full_every,
    layer_kinds,
    masks_of,
    rope_options,
    rotary_base,
    rotary_of,
    scaling_kind,
    slide_if_stated,
    usual_base,
)
from lim_jax.network.experts import ClampedGate, Routing, SparseMixer
from lim_jax.network.frequencies import LongFrequencies
from lim_jax.network.masks import AttentionMask
from lim_jax.network.positions import Rotary, Tempered, UnitRotary

OF_GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "truncate": False, TRAINED: 4096}
# Options of Hunyuan's files about other routing, attention that is not there, and images.
OF_HUNYUAN_MOE = (
    "capacity_factor", "kv_lora_rank", "moe_drop_tokens", "moe_random_routing_dropped_token",
    "n_group", "num_media_embeds", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "skip_cls_token", "topk_group", "unused_tokens", "use_mixed_mlp_moe", "v_head_dim",
)  # fmt: skip
OF_TRINITY = Names(
    output_gate="self_attn.gate_proj",
    after_attention="post_attention_layernorm",
    before_network="pre_mlp_layernorm",
    after_network="post_mlp_layernorm",
)
OF_GRANITE = Names(network="", up="input_linear", down="output_linear")
BLOCK = Names(network="block_sparse_moe")
OF_MIXTRAL = expert_sublayers.ByExpert("w1", "w3", "w2")
# Options that repeat what others say.
REPEATED = (
    "num_experts",
    "num_local_experts",
    "experts_per_token",
    "initial_context_length",
)
SCALES_OF_MINIMAX = tuple(
    f"layernorm_{of}_{which}"
    for of in ("full_attention", "linear_attention", "mlp")
    for which in ("alpha", "beta")
)


def afmoe(config: Configuration) -> Recipe:
    """Trinity: gated attention; norms on both sides of sublayers; positions in windows alone."""
    config.refuse(
        n_group=1,
        topk_group=1,
        num_expert_groups=1,
        num_limited_groups=1,
        score_func="sigmoid",
        route_norm=True,
    )
    config.ignore("load_balance_coeff", "use_grouped_mm")  # they concern training
    sizes = sizes_of(config, norm_eps=1e-5, head_dim=128)
    period = config.get_int("global_attn_every_n_layers", 4)
    kinds = layer_kinds(config, sizes.depth, *full_every(period, sizes.depth))
    positions = {SLIDING: rotary_of(config, sizes.head_dim), FULL: None}
    count = config.get_int("num_experts", 64)
    hidden = config.get_int("moe_intermediate_size", 1408)
    routing = Routing(
        expert_sublayers.read_top(config, count, 6),
        "sigmoid",
        factor=config.get_positive("route_scale", 1.0),
    )
    mixture = expert_sublayers.Mixture(
        count,
        hidden,
        routing,
        expert_sublayers.PROJECTIONS,
        router="router.gate",
        preference="expert_bias",
        shared=("shared_experts", hidden * config.get_int("num_shared_experts", 2)),
        dense_layers=frozenset(range(config.get_int("num_dense_layers", 1, least=0))),
    )
    return llama_like(
        config,
        sizes,
        masks_of(config, kinds, positions, 1024),
        names=OF_TRINITY,
        biases=_attention_biases(config),
        head_norm=sublayers.shared_head_norm,
        network=mixture,
        embedding_scale=math.sqrt(sizes.width) if config.get_flag("mup_enabled") else 1.0,
    )


def mixtral(config: Configuration) -> Recipe:
    """Mixtral: Mistral with experts."""
    sizes = sizes_of(config, norm_eps=1e-5)
    rotary = rotary_of(config, sizes.head_dim, default=1e6)
    count = config.get_int("num_local_experts", 8)
    mixture = expert_sublayers.Mixture(
        count,
        sizes.intermediate_size,
        Routing(expert_sublayers.read_top(config, count, 2)),
        OF_MIXTRAL,
    )
    config.ignore(*REPEATED)
    return llama_like(
        config,
        sizes,
        masks_of(config, slide_if_stated(config, sizes.depth), rotary),
        names=BLOCK,
        biases=Biases(),
        network=mixture,
    )


def qwen3_moe(config: Configuration) -> Recipe:
    """Qwen 3 with experts, in all layers but those that the configuration names."""
    sizes = sizes_of(config)
    config.ignore("max_window_layers")  # all layers slide, or none
    kinds = sizes.depth * (SLIDING if config.get_flag("use_sliding_window") else FULL,)
    return llama_like(
        config,
        sizes,
        masks_of(config, kinds, rotary_of(config, sizes.head_dim)),
        head_norm=sublayers.shared_head_norm,
        network=_qwen_mixture(config, sizes.depth, (128, 8, None)),
    )


def _qwen_mixture(
    config: Configuration, depth: int, default: tuple[int, int, int | None]
) -> expert_sublayers.Mixture:
    """Return a reader of Qwen's experts; `default` has number, number per token, hidden size."""
    only = config.get_layers("mlp_only_layers", depth)
    step = config.get_int("decoder_sparse_step", 1, least=0)
    dense = {k for k in range(depth) if k in only or step < 1 or (k + 1) % step}
    name = "num_experts" if config.get("num_experts") is not None else "num_local_experts"
    usual_count, top, hidden = default
    count = config.get_int(name, usual_count)
    routing = Routing(
        expert_sublayers.read_top(config, count, top), normalised=config.get_flag("norm_topk_prob")
    )
    config.ignore(*REPEATED)
    return expert_sublayers.Mixture(
        count,
        config.get_int("moe_intermediate_size", hidden),
        routing,
        expert_sublayers.PROJECTIONS,
        dense_layers=frozenset(dense),
    )


def qwen3_vl_moe_text(config: Configuration) -> Recipe:
    """The text of Qwen 3 VL with experts, whose weights are always normalised."""
    config.refuse(norm_topk_prob=True)
    usual = {"num_experts_per_tok": 4, "head_dim": 128, "norm_topk_prob": True}
    usual |= usual_base(config, 500_000.0)
    if config.get("num_local_experts") is None:
        usual["num_experts"] = 60
    recipe = qwen3_moe(config.with_defaults(**usual))
    assert isinstance(recipe.network, expert_sublayers.Mixture)
    return recipe._replace(
        network=recipe.network._replace(read=expert_sublayers.stacked_either_way)
    )


def qwen2_moe(config: Configuration) -> Recipe:
    """Qwen 2 with experts, beside a shared one behind a gate."""
    sizes = sizes_of(config)
    slides = config.get_flag("use_sliding_window")
    first = config.get_int("max_window_layers", 28, least=0)
    usual = (SLIDING if slides and k % 2 == 0 and k < first else FULL for k in range(sizes.depth))
    hidden = config.get_int("shared_expert_intermediate_size", 5632)
    mixture = _qwen_mixture(config, sizes.depth, (60, 4, 1408))._replace(
        shared=("shared_expert", hidden), shared_gate="shared_expert_gate"
    )
    return llama_like(
        config,
        sizes,
        windows_if_used(config, sizes, usual),
        network=mixture,
        biases=Biases(qkv=config.get_flag("qkv_bias", True)),
    )


def olmoe(config: Configuration) -> Recipe:
    """OLMoE: Llama with norms of all heads together, and experts."""
    config.refuse(clip_qkv=None)
    sizes = sizes_of(config, norm_eps=1e-5)
    count = config.get_int("num_experts", 64)
    routing = Routing(
        expert_sublayers.read_top(config, count, 8), normalised=config.get_flag("norm_topk_prob")
    )
    mixture = expert_sublayers.Mixture(
        count, sizes.intermediate_size, routing, expert_sublayers.PROJECTIONS
    )
    return llama_like(config, sizes, head_norm=sublayers.across_heads, network=mixture)


def flex_olmo(config: Configuration) -> Recipe:
    """FlexOlmo: OLMo 2 with experts."""
    sizes = sizes_of(config)
    count = config.get_int("num_experts", 7)
    routing = Routing(
        expert_sublayers.read_top(config, count, 5), normalised=config.get_flag("norm_topk_prob")
    )
    mixture = expert_sublayers.Mixture(
        count, sizes.intermediate_size, routing, expert_sublayers.PROJECTIONS
    )
    return llama_like(
        config,
        sizes,
        rotary_masks(config, sizes, default=500_000.0),
        names=Names(**AFTER),
        head_norm=sublayers.across_heads,
        network=mixture,
        biases=_attention_biases(config),
    )


def cohere2_moe(config: Configuration) -> Recipe:
    """Command A+: Command R7B with experts beside shared ones, in all layers but the first."""
    names = SizeNames(norm_eps="layer_norm_eps")
    norm = sublayers.layer_norm_without_shift
    if config.get("rms_norm_eps") is not None:
        config.ignore("layer_norm_eps")
        names = SizeNames()
        norm = sublayers.rms_norm
    sizes = sizes_of(config, names, norm_eps=1e-5, head_dim=128)
    depth = sizes.depth
    first = config.get_int("first_k_dense_replace", 0, least=0)
    period, prefix = (
        config.get_int(f"{name}sliding_window_pattern", usual)
        for name, usual in (("", 4), ("prefix_dense_", 1))
    )
    usual = full_every(prefix, first) + full_every(period, max(0, depth - first))
    kinds = layer_kinds(config, depth, *usual)
    refuse_other_commands(config, period)
    mixture = _cohere_mixture(
        config, sizes, expert_sublayers.read_dense_layers(config, depth, first)
    )
    rotary = rotary_of(config, sizes.head_dim)
    seen = masks_of(config, kinds, {SLIDING: rotary, FULL: None})
    if prefix == 1:  # dense layers know positions though they see everything
        dense = mixture.dense_layers
        seen = tuple(replace(m, positions=rotary) if k in dense else m for k, m in enumerate(seen))
    biases = _attention_biases(config)
    return cohere_like(config, sizes, seen, norm=norm, network=mixture, biases=biases)


def _cohere_mixture(
    config: Configuration, sizes: Sizes, dense: frozenset[int]
) -> expert_sublayers.Mixture:
    """Return a reader of Command A+'s experts, beside shared ones if there are any."""
    hidden = sizes.intermediate_size
    shared = config.get_int("num_shared_experts", 0, least=0)
    scores: Any = config.get_choice("expert_selection_fn", ("softmax", "sigmoid"), "softmax")
    # A softmax of the chosen experts' logits is that of all, normalised.
    normalised = config.get_flag("norm_topk_prob", True) or scores == "softmax"
    combined = config.get_choice(
        "shared_expert_combination_strategy", ("average", "sum"), "average"
    )
    half = 0.5 if shared and combined == "average" else 1.0
    count = config.get_int("num_experts", 8)
    routing = Routing(expert_sublayers.read_top(config, count, 2), scores, normalised, half)
    return expert_sublayers.Mixture(
        count,
        hidden,
        routing,
        expert_sublayers.PROJECTIONS,
        shared_scale=half,
        shared=("shared_experts", hidden * shared) if shared else None,
        dense_layers=dense,
        dense_intermediate_size=config.get_int_or("prefix_dense_intermediate_size", hidden),
    )


def phimoe(config: Configuration) -> Recipe:
    """Phi-3.5-MoE: layer norms, biases, and experts by SparseMixer."""
    sizes = sizes_of(config, norm_eps=1e-5)
    config.refuse(num_experts_per_tok=2)
    kinds = slide_if_stated(config, sizes.depth)
    rotary, longest = _phimoe_rotary(config, sizes.head_dim)
    mixture = expert_sublayers.Mixture(
        config.get_int("num_local_experts", 16),
        sizes.intermediate_size,
        SparseMixer(config.get_positive("router_jitter_noise", 0.01)),
        OF_MIXTRAL,
    )
    biases = _attention_biases(config)._replace(head=config.get_flag("lm_head_bias"))
    return llama_like(
        config,
        sizes,
        masks_of(config, kinds, rotary),
        norm=sublayers.layer_norm,
        names=BLOCK,
        biases=biases,
        network=mixture,
        longest=longest,
    )


def _phimoe_rotary(config: Configuration, head_dim: int) -> tuple[Rotary, tuple[int, str] | None]:
    """Return Phi-3.5-MoE's rotary positions, and the longest context with the reason for it."""
    rope = rope_options(config)
    kind = scaling_kind(rope)
    if kind == "default":
        return rotary_of(config, head_dim, default=1e6), None
    require_config(kind == "longrope", f"rope_type = {kind!r}", "longrope")
    theta = rotary_base(config, rope, default=1e6)
    scaling = {name: value for name, value in rope.items() if not name.endswith("_mscale")}
    scaling |= {"attention_factor": rope.get_positive("short_mscale"), "rope_theta": theta}
    options = {**config.options, "rope_scaling": None, "rope_parameters": scaling}
    rotary = rotary_of(Configuration(options), head_dim)
    assert isinstance(rotary.frequencies, LongFrequencies)
    why = "since readers scale longer ones in different ways"
    return rotary, (rotary.frequencies.trained, why)


def ernie4_5_moe(config: Configuration) -> Recipe:
    """ERNIE 4.5 with experts beside shared ones, in all layers but some."""
    config.refuse(use_bias=False, moe_norm_min=1e-12)
    config.ignore("moe_capacity", "moe_gate", "moe_use_aux_free", "num_nextn_predict_layers")
    sizes = sizes_of(config, norm_eps=1e-5)
    end = config.get("moe_layer_end_index")
    start, step = (
        config.get_int(f"moe_layer_{name}", 1, least=0) for name in ("start_index", "interval")
    )
    end = sizes.depth - 1 if end in (None, -1) else config.get_int("moe_layer_end_index", least=0)
    sparse = {k for k in range(start, end + 1) if (k + 1) % step == 0}
    hidden = config.get_int("moe_intermediate_size", 1536)
    shared = config.get_int("moe_num_shared_experts", 2, least=0)
    count = config.get_int("moe_num_experts", 64)
    mixture = expert_sublayers.Mixture(
        count,
        hidden,
        Routing(expert_sublayers.read_top(config, count, 6, "moe_k")),
        expert_sublayers.PROJECTIONS,
        preference="moe_statics.e_score_correction_bias",
        preference_axes=(1,),
        shared=("shared_experts", hidden * shared) if shared else None,
        dense_layers=frozenset({*range(sizes.depth)} - sparse),
    )
    return llama_like(
        config,
        sizes,
        rotary_masks(config, sizes, default=500_000.0),
        rope_interleaved=True,
        tied=True,
        biases=Biases(),
        network=mixture,
        names=Names(mtp_prefix="model.mtp_"),
    )


def hunyuan_v1_moe(config: Configuration) -> Recipe:
    """Hunyuan with experts beside a shared one."""
    recipe = hunyuan_v1_dense(config)
    hidden = recipe.sizes.intermediate_size
    only = {"moe_intermediate_size": hidden, "num_shared_expert": 1}
    stated = {name: config.get_alike(name, value) for name, value in only.items()}
    Configuration(stated).refuse(**only)
    config.refuse(
        norm_topk_prob=True,
        moe_layer_num_skipped=0,
        use_mla=False,
        group_limited_greedy=False,
    )
    config.ignore(*OF_HUNYUAN_MOE)
    alike = Configuration({name: config.get_alike(name, 1) for name in ("num_experts", "moe_topk")})
    count = alike.get_int("num_experts")
    mixture = expert_sublayers.Mixture(
        count,
        hidden,
        Routing(expert_sublayers.read_top(alike, count, None, "moe_topk")),
        expert_sublayers.PROJECTIONS,
        router="gate.wg",
        shared=("shared_mlp", hidden),
    )
    return recipe._replace(network=mixture)


def granitemoe(config: Configuration) -> Recipe:
    """Granite with experts."""
    return _granite(config, 0)


def granitemoeshared(config: Configuration) -> Recipe:
    """Granite with experts beside a shared MLP, or without one."""
    return _granite(config, config.get_int("shared_intermediate_size", 0, least=0))


def _granite(config: Configuration, shared: int) -> Recipe:
    """Return the recipe of a Granite with experts, beside a shared MLP unless its size is zero."""
    sizes = sizes_of(config)
    mixture = granite_experts(config, sizes, shared)
    return llama_like(config, sizes, names=OF_GRANITE, network=mixture, **multipliers(config))


def granite_experts(config: Configuration, sizes: Sizes, shared: int) -> expert_sublayers.Mixture:
    """Return a reader of Granite's experts; `shared` is a shared MLP's hidden size, or zero."""
    at = "block_sparse_moe"
    config.ignore(*REPEATED)
    count = config.get_int("num_local_experts", 8)
    return expert_sublayers.Mixture(
        count,
        sizes.intermediate_size,
        Routing(expert_sublayers.read_top(config, count, 2)),
        expert_sublayers.Stacked(f"{at}.input_linear.weight", f"{at}.output_linear.weight"),
        router=f"{at}.router.layer",
        shared=("shared_mlp", shared) if shared else None,
        read_shared=sublayers.fused_gated_mlp,
    )


def gpt_oss(config: Configuration) -> Recipe:
    """gpt-oss: sinks, every other layer in a window, experts with clamped gates."""
    sizes = sizes_of(config, norm_eps=1e-5, head_dim=64)
    usual = full_every(2, sizes.depth)
    rope = {"default": 150_000.0, "default_scaling": OF_GPT_OSS}
    count = config.get_int("num_local_experts", 128)
    mixture = expert_sublayers.Mixture(
        count,
        sizes.intermediate_size,
        Routing(expert_sublayers.read_top(config, count, 4)),
        expert_sublayers.Stacked(transposed=True, interleaved=True),
        router="router",
        router_bias=True,
        combine=ClampedGate(
            config.get_positive("swiglu_alpha", 1.702), config.get_positive("swiglu_limit", 7.0)
        ),
    )
    config.ignore(*REPEATED)
    return llama_like(
        config,
        sizes,
        masks_by_kind(config, sizes, usual, 128, **rope),
        network=mixture,
        names=Names(sinks="self_attn.sinks"),
        biases=biases_of(config, default=True),
    )


def llama4_text(config: Configuration) -> Recipe:
    """Llama 4: rotary layers in chunks of 8,192 tokens, and full layers without positions."""
    sizes = sizes_of(config, norm_eps=1e-5, head_dim=128)
    rotated = rotated_layers(config, sizes.depth)
    usual = [CHUNKED if rotates else FULL for rotates in rotated]
    kinds = layer_kinds(config, sizes.depth, *usual)
    rotary = rotary_of(config, sizes.head_dim, default=500_000.0)
    if config.get_flag("use_qk_norm", True):
        rotary = UnitRotary(
            rotary.frequencies, rotary.tokens, rotary.amplitude, norm_eps=sizes.norm_eps
        )
    scale = config.get_positive("attn_scale", 0.1)
    floor = config.get_positive("floor_scale", 8192)
    # The publisher's first files say 4, which its reader took for true.
    tempers = config.get("attn_temperature_tuning", True)
    config.require("attn_temperature_tuning", tempers, tempers in (None, 0, 1, 4), "true or false")
    tempered = Tempered(scale, floor) if tempers else None
    seen = masks_of(config, kinds, rotary)
    masks = tuple(
        mask if rotates else AttentionMask(mask.window, mask.chunk, tempered)
        for mask, rotates in zip(seen, rotated, strict=True)
    )
    step = config.get_int("interleave_moe_layer_step", 1)
    usual = range(step - 1, sizes.depth, step)
    sparse = config.get_layers("moe_layers", sizes.depth, usual)
    count = config.get_int("num_local_experts", 16)
    mixture = expert_sublayers.Mixture(
        count,
        sizes.intermediate_size,
        Routing(expert_sublayers.read_top(config, count, 1), "sigmoid", normalised=False),
        expert_sublayers.Stacked(transposed=True),
        router="router",
        shared=("shared_expert", sizes.intermediate_size),
        weighs_input=True,
        dense_layers=frozenset(range(sizes.depth)) - set(sparse),
        dense_intermediate_size=config.get_int("intermediate_size_mlp", 16384),
    )
    config.ignore(*REPEATED)
    return llama_like(
        config,
        sizes,
        masks,
        names=Names(network="feed_forward"),
        rope_interleaved=True,
        network=mixture,
    )


def minimax_m2(config: Configuration) -> Recipe:
    """MiniMax M2: norms of all heads, a part of each rotated; experts are chosen by sigmoids."""
    config.refuse(
        use_qk_norm=True,
        qk_norm_type="per_layer",
        use_routing_bias=True,
        scoring_func="sigmoid",
        shared_intermediate_size=0,
        sliding_window=None,
        **dict.fromkeys(SCALES_OF_MINIMAX, 1.0),
    )
    config.ignore("shared_moe_mode", "mlp_intermediate_size", "use_mtp")
    sizes = sizes_of(config, head_dim=128)
    count = config.get_int("num_local_experts", 256)
    kind = {"attn_type_list": config.get_alike("attn_type_list", 1)}
    Configuration(kind).refuse(attn_type_list=1)  # others are no softmax attention
    part = config.get_int("rotary_dim", sizes.head_dim) / sizes.head_dim
    mixture = expert_sublayers.Mixture(
        count,
        sizes.intermediate_size,
        Routing(expert_sublayers.read_top(config, count, 8), "sigmoid"),
        OF_MIXTRAL,
        preference="e_score_correction_bias",
    )
    config.ignore(*REPEATED)
    mtp_modules = config.get_int_or("num_mtp_modules", 0, least=0)
    layers_of_module = config.get_int_or("mtp_transformer_layers", 1, least=0)
    return llama_like(
        config,
        sizes,
        rotary_masks(config, sizes, default=5e6, default_part=part),
        names=BLOCK,
        biases=Biases(),
        head_norm=sublayers.across_heads,
        network=mixture,
        num_mtp_layers=mtp_modules * layers_of_module,
    )


def _attention_biases(config: Configuration) -> Biases:
    """Read whether attention's matrices have biases."""
    biased = config.get_flag("attention_bias")
    return Biases(biased, biased)
