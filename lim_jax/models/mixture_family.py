"""Decoders whose tokenwise networks are mixtures of experts."""

import math

from lim_jax.models import experts, parts
from lim_jax.models.llama_family import (
    biases_of,
    llama_like,
    masks_by_kind,
    multipliers,
    rotary_masks,
)
from lim_jax.models.options import (
    Configuration,
    Options,
    get_int,
    get_positive,
    refuse_options,
)
from lim_jax.models.recipe import Biases, Names, Recipe, SizeNames, sizes_of
from lim_jax.models.rope_config import (
    CHUNKED,
    FULL,
    SLIDING,
    TRAINED,
    full_every,
    layer_kinds,
    masks_of,
    rope_options,
    rotary_of,
    yarn_weights,
)
from lim_jax.network.experts import ClampedGate, Routing
from lim_jax.network.frequencies import yarn_amplitude
from lim_jax.network.masks import AttentionMask
from lim_jax.network.positions import Tempered, UnitRotary

OF_GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "truncate": False, TRAINED: 4096}
OF_TRINITY = Names(
    output_gate="self_attn.gate_proj",
    after_attention="post_attention_layernorm",
    before_network="pre_mlp_layernorm",
    after_network="post_mlp_layernorm",
)
PROJECTIONS = experts.by_expert("gate_proj", "up_proj", "down_proj")
# Options that repeat what others say.
REPEATED = (
    "num_experts", "num_local_experts", "experts_per_token", "initial_context_length",
)  # fmt: skip


def afmoe(config: Configuration) -> Recipe:
    """Trinity: gated attention; norms on both sides of sublayers; positions in windows alone."""
    refuse_options(
        config, n_group=1, topk_group=1, num_expert_groups=1, num_limited_groups=1,
        score_func="sigmoid", route_norm=True,
    )  # fmt: skip
    config.ignore("load_balance_coeff", "use_grouped_mm")  # they concern training
    sizes = sizes_of(config, norm_eps=1e-5, head_dim=128)
    biased = bool(config.get("attention_bias", False))
    period = get_int(config, "global_attn_every_n_layers", 4)
    kinds = layer_kinds(config, sizes.depth, *full_every(period, sizes.depth))
    positions = {SLIDING: rotary_of(config, sizes.head_dim), FULL: None}
    count = get_int(config, "num_experts", 64)
    hidden = get_int(config, "moe_intermediate_size", 1408)
    routing = Routing(_top(config, 6), "sigmoid", factor=get_positive(config, "route_scale", 1.0))
    experts.require_open(routing, count)
    mixture = experts.Mixture(
        count, hidden, routing, PROJECTIONS, router="router.gate", preference="expert_bias",
        shared=("shared_experts", hidden * get_int(config, "num_shared_experts", 2)),
        dense_layers=frozenset(range(get_int(config, "num_dense_layers", 1, least=0))),
    )  # fmt: skip
    return llama_like(
        config, sizes, masks_of(config, kinds, positions.get, 1024), names=OF_TRINITY,
        biases=Biases(biased, biased), head_norm=parts.shared_head_norm,
        network=experts.moe_mlp(mixture),
        embedding_scale=math.sqrt(sizes.width) if config.get("mup_enabled", False) else 1.0,
    )  # fmt: skip


def mixtral(config: Configuration) -> Recipe:
    """Mixtral: Mistral with experts."""
    sizes = sizes_of(config, norm_eps=1e-5)
    slides = config.get("sliding_window") is not None
    seen = masks_by_kind(config, sizes, sizes.depth * (SLIDING if slides else FULL,), default=1e6)
    mixture = experts.Mixture(
        get_int(config, "num_local_experts", 8), sizes.intermediate_size,
        Routing(_top(config, 2)), experts.by_expert("w1", "w3", "w2"),
    )  # fmt: skip
    config.ignore(*REPEATED)
    names = Names(network="block_sparse_moe")
    return llama_like(config, sizes, seen, names=names, network=experts.moe_mlp(mixture))


def qwen3_moe(config: Configuration) -> Recipe:
    """Qwen 3 with experts, in all layers but those that the configuration names."""
    sizes = sizes_of(config)
    slides = config.get("use_sliding_window", False)
    config.ignore("max_window_layers")  # all layers slide, or none
    seen = masks_by_kind(config, sizes, sizes.depth * (SLIDING if slides else FULL,))
    only = config.get("mlp_only_layers") or ()
    step = get_int(config, "decoder_sparse_step", 1, least=0)
    dense = {k for k in range(sizes.depth) if k in only or step < 1 or (k + 1) % step}
    name = "num_experts" if config.get("num_experts") is not None else "num_local_experts"
    routing = Routing(_top(config, 8), normalised=bool(config.get("norm_topk_prob", False)))
    mixture = experts.Mixture(
        get_int(config, name, 128), get_int(config, "moe_intermediate_size"), routing, PROJECTIONS,
        dense_layers=frozenset(dense),
    )  # fmt: skip
    config.ignore(*REPEATED)
    return llama_like(
        config, sizes, seen, biases=biases_of(config), head_norm=parts.shared_head_norm,
        network=experts.moe_mlp(mixture),
    )  # fmt: skip


def granitemoe(config: Configuration) -> Recipe:
    """Granite with experts."""
    sizes = sizes_of(config)
    mixture = experts.Mixture(
        get_int(config, "num_local_experts", 8), sizes.intermediate_size, Routing(_top(config, 2)),
        experts.fused_gate_up("input_linear", "output_linear"), router="router.layer",
    )  # fmt: skip
    config.ignore(*REPEATED)
    return llama_like(
        config, sizes, names=Names(network="block_sparse_moe"), biases=biases_of(config),
        network=experts.moe_mlp(mixture), **multipliers(config),
    )  # fmt: skip


def gpt_oss(config: Configuration) -> Recipe:
    """gpt-oss: sinks, every other layer in a window, experts with clamped gates."""
    sizes = sizes_of(config, norm_eps=1e-5, head_dim=64)
    kinds = layer_kinds(config, sizes.depth, *full_every(2, sizes.depth))
    rotary = rotary_of(config, sizes.head_dim, default=150_000.0, default_scaling=OF_GPT_OSS)
    mixture = experts.Mixture(
        get_int(config, "num_local_experts", 128), sizes.intermediate_size,
        Routing(_top(config, 4)), experts.interleaved_gate_up, router="router", router_bias=True,
        combine=ClampedGate(
            get_positive(config, "swiglu_alpha", 1.702), get_positive(config, "swiglu_limit", 7.0)
        ),
    )  # fmt: skip
    config.ignore(*REPEATED)
    return llama_like(
        config, sizes, masks_of(config, kinds, lambda kind: rotary, 128),
        names=Names(sinks="self_attn.sinks"), biases=biases_of(config, default=True),
        network=experts.moe_mlp(mixture),
    )  # fmt: skip


def llama4_text(config: Configuration) -> Recipe:
    """Llama 4: rotary layers in chunks of 8,192 tokens, and full layers without positions."""
    sizes = sizes_of(config, norm_eps=1e-5, head_dim=128)
    rotated = config.get("no_rope_layers") or [
        int((k + 1) % config.get("no_rope_layer_interval", 4) != 0) for k in range(sizes.depth)
    ]
    config.ignore("no_rope_layer_interval")  # beside no_rope_layers
    usual = [CHUNKED if rotates else FULL for rotates in rotated[: sizes.depth]]
    kinds = layer_kinds(config, sizes.depth, *usual)
    rotary = rotary_of(config, sizes.head_dim, default=500_000.0)
    if config.get("use_qk_norm", True):
        rotary = UnitRotary(rotary.frequencies, rotary.tokens, rotary.amplitude, eta=sizes.norm_eps)
    scale, floor = config.get("attn_scale", 0.1), config.get("floor_scale", 8192)
    tempered = Tempered(scale, floor) if config.get("attn_temperature_tuning", True) else None
    seen = masks_of(config, kinds, lambda kind: rotary)
    of_layers = tuple(
        mask if rotates else AttentionMask(mask.window, mask.chunk, tempered)
        for mask, rotates in zip(seen, rotated, strict=False)
    )
    step, layers = get_int(config, "interleave_moe_layer_step", 1), config.get("moe_layers")
    sparse = range(step - 1, sizes.depth, step) if layers is None else layers
    mixture = experts.Mixture(
        get_int(config, "num_local_experts", 16), sizes.intermediate_size,
        Routing(_top(config, 1), "sigmoid", normalised=False), experts.transposed_gate_up,
        router="router", shared=("shared_expert", sizes.intermediate_size), weighs_input=True,
        dense_layers=frozenset(range(sizes.depth)) - set(sparse),
        dense_intermediate_size=get_int(config, "intermediate_size_mlp", 16384),
    )  # fmt: skip
    config.ignore(*REPEATED)
    return llama_like(
        config, sizes, of_layers, names=Names(network="feed_forward"), rope_interleaved=True,
        biases=biases_of(config), network=experts.moe_mlp(mixture),
    )  # fmt: skip


def deepseek_v2(config: Configuration) -> Recipe:
    """DeepSeek V2: latent attention; experts beside shared ones, chosen by a softmax."""
    method = config.get("topk_method", "greedy")
    limited = method == "group_limited_greedy"
    refuse_options({"topk_method": "greedy" if limited else method}, topk_method="greedy")
    refuse_options(config, norm_topk_prob=False)
    routing = Routing(
        _top(config, None), normalised=False,
        factor=get_positive(config, "routed_scaling_factor", 1.0),
        groups=(config.get("n_group") or 1) if limited else 1,
        kept=(config.get("topk_group") or 1) if limited else 1,
    )  # fmt: skip
    config.ignore(*REPEATED, "n_group", "topk_group")
    return _deepseek(config, routing, dense=0, shared=2, preference=False)


def deepseek_v3(config: Configuration) -> Recipe:
    """DeepSeek V3: latent attention; experts beside a shared one, chosen by sigmoids in groups."""
    refuse_options(config, topk_method="noaux_tc", scoring_func="sigmoid", rope_interleave=True)
    routing = Routing(
        _top(config, 8), "sigmoid", bool(config.get("norm_topk_prob", True)),
        get_positive(config, "routed_scaling_factor", 2.5),
        get_int(config, "n_group", 8), get_int(config, "topk_group", 4), best=2,
    )  # fmt: skip
    return _deepseek(config, routing, dense=3, shared=1, preference=True)


def _deepseek(
    config: Configuration, routing: Routing, *, dense: int, shared: int, preference: bool
) -> Recipe:
    refuse_options(config, attention_bias=False, mlp_bias=False, moe_layer_freq=1, ep_size=1)
    refuse_options(config, scoring_func="sigmoid" if preference else "softmax")
    config.ignore("head_dim", "qk_head_dim")  # they repeat the sizes of latent attention
    sizes = sizes_of(config, SizeNames(head_dim="qk_rope_head_dim"))
    shared = get_int(config, "n_shared_experts", shared)
    hidden = get_int(config, "moe_intermediate_size")
    first = get_int(config, "first_k_dense_replace", dense, least=0)
    name = "n_routed_experts" if config.get("n_routed_experts") is not None else "num_local_experts"
    count = get_int(config, name)
    experts.require_open(routing, count)
    mixture = experts.Mixture(
        count, hidden, routing, PROJECTIONS,
        preference="gate.e_score_correction_bias" if preference else None,
        shared=("shared_experts", hidden * shared), dense_layers=frozenset(range(first)),
    )  # fmt: skip
    size, rope = sizes.head_dim + get_int(config, "qk_nope_head_dim"), rope_options(config)
    return llama_like(
        config, sizes, rotary_masks(config, sizes), network=experts.moe_mlp(mixture),
        attention=experts.read_mla(config), scale=_yarn_scale(size, rope),
        num_mtp_layers=config.get("num_nextn_predict_layers") or 0,
    )  # fmt: skip


def _yarn_scale(size: int, rope: Options) -> float | None:
    """Return the scale of scores times the square of YaRN's amplitude of all features."""
    _, weight = yarn_weights(rope)
    if not weight or rope.get("rope_type", rope.get("type", "default")) == "default":
        return None
    return size**-0.5 * yarn_amplitude(get_positive(rope, "factor"), weight) ** 2


def _top(config: Configuration, default: int | None) -> int:
    return get_int(config, "num_experts_per_tok", default)
