"""Decoders whose tokenwise networks are mixtures of experts."""

import math

from lim_jax._checks import require
from lim_jax.models import parts
from lim_jax.models.experts import (
    Mixture,
    by_expert,
    mixed,
    through_latents,
    together,
    together_by_turns,
    together_by_width,
)
from lim_jax.models.llama_family import Config, biases_of, llama_like, multipliers, sliding
from lim_jax.models.options import positive, refuse_options, whole
from lim_jax.models.places import (
    CHUNKED,
    FULL,
    SLIDING,
    TRAINED,
    every,
    layer_kinds,
    rope_options,
    rotary_of,
    spans,
    yarn_weights,
)
from lim_jax.models.recipe import Biases, Names, Options, Recipe, sizes_of
from lim_jax.network.experts import ClampedGate, Routing
from lim_jax.network.frequencies import yarn_amplitude
from lim_jax.network.positions import Rotary, Tempered, UnitRotary
from lim_jax.network.span import Span

OF_GPT_OSS = {
    "rope_type": "yarn", "factor": 32.0, "truncate": False, TRAINED: 4096,
}  # fmt: skip

OF_TRINITY = Names(
    output_gate="self_attn.gate_proj",
    after_attention="post_attention_layernorm",
    before_network="pre_mlp_layernorm",
    after_network="post_mlp_layernorm",
)


def afmoe(config: Config) -> Recipe:
    """Trinity: attention's output is gated; norms on both sides of sublayers; only windows turn."""
    refuse_options(
        config, n_group=1, topk_group=1, num_expert_groups=1, num_limited_groups=1,
        score_func="sigmoid", route_norm=True,
    )  # fmt: skip
    for training in ("load_balance_coeff", "use_grouped_mm"):
        config.get(training)
    sizes, biased = sizes_of(config, eta=1e-5, size=128), bool(config.get("attention_bias", False))
    period = whole(config, "global_attn_every_n_layers", 4)
    kinds = layer_kinds(config, sizes.depth, *every(period, sizes.depth))
    turning = rotary_of(config, sizes.size)

    def places(kind: str) -> Rotary | None:
        return turning if kind == SLIDING else None

    count, hidden = whole(config, "num_experts", 64), whole(config, "moe_intermediate_size", 1408)
    routing = Routing(_top(config, 6), "sigmoid", factor=positive(config, "route_scale", 1.0))
    _require_open(routing, count)
    experts = Mixture(
        count, hidden, routing, by_expert("gate_proj", "up_proj", "down_proj"),
        router="router.gate", preference="expert_bias",
        shared=("shared_experts", hidden * whole(config, "num_shared_experts", 2)),
        dense=frozenset(range(whole(config, "num_dense_layers", 1, least=0))),
    )  # fmt: skip
    return llama_like(
        config, sizes, spans(config, kinds, places, 1024), names=OF_TRINITY,
        biases=Biases(projected=biased, mixed=biased), head_norm=parts.one_for_all_heads,
        network=mixed(experts),
        embedding_scale=math.sqrt(sizes.width) if config.get("mup_enabled", False) else 1.0,
    )  # fmt: skip


def mixtral(config: Config) -> Recipe:
    """Mixtral: Mistral with experts in place of its network."""
    sizes = sizes_of(config, eta=1e-5)
    slides = config.get("sliding_window") is not None
    seen = sliding(config, sizes, sizes.depth * (SLIDING if slides else FULL,), default=1e6)
    experts = Mixture(
        size=whole(config, "num_local_experts", 8), hidden=sizes.hidden,
        routing=Routing(_top(config, 2)), read=by_expert("w1", "w3", "w2"),
    )  # fmt: skip
    _passed_over(config)
    names = Names(network="block_sparse_moe")
    return llama_like(config, sizes, seen, names=names, network=mixed(experts))


def qwen3_moe(config: Config) -> Recipe:
    """Qwen 3 with experts, in all layers but those that it names."""
    sizes = sizes_of(config)
    slides = config.get("use_sliding_window", False)
    config.get("max_window_layers")  # all layers slide, or none
    seen = sliding(config, sizes, sizes.depth * (SLIDING if slides else FULL,))
    only = config.get("mlp_only_layers") or ()
    step = whole(config, "decoder_sparse_step", 1, least=0)
    dense = {k for k in range(sizes.depth) if k in only or step < 1 or (k + 1) % step}
    name = "num_experts" if config.get("num_experts") is not None else "num_local_experts"
    routing = Routing(_top(config, 8), normalised=bool(config.get("norm_topk_prob", False)))
    experts = Mixture(
        whole(config, name, 128), whole(config, "moe_intermediate_size"), routing,
        by_expert("gate_proj", "up_proj", "down_proj"), dense=frozenset(dense),
    )  # fmt: skip
    _passed_over(config)
    return llama_like(
        config, sizes, seen, biases=biases_of(config), head_norm=parts.one_for_all_heads,
        network=mixed(experts),
    )  # fmt: skip


def granitemoe(config: Config) -> Recipe:
    """Granite with experts in place of its network."""
    sizes = sizes_of(config)
    experts = Mixture(
        whole(config, "num_local_experts", 8), sizes.hidden, Routing(_top(config, 2)),
        together("input_linear", "output_linear"), router="router.layer",
    )  # fmt: skip
    _passed_over(config)
    return llama_like(
        config, sizes, names=Names(network="block_sparse_moe"), biases=biases_of(config),
        network=mixed(experts), **multipliers(config),
    )  # fmt: skip


def gpt_oss(config: Config) -> Recipe:
    """gpt-oss: sinks, every other layer in a window, experts with clamped gates."""
    sizes = sizes_of(config, eta=1e-5, size=64)
    kinds = layer_kinds(config, sizes.depth, *every(2, sizes.depth))
    places = rotary_of(config, sizes.size, default=150_000.0, default_scaling=OF_GPT_OSS)
    sharpness, limit = (
        positive(config, "swiglu_alpha", 1.702),
        positive(config, "swiglu_limit", 7.0),
    )
    clamped = ClampedGate(sharpness, limit)
    experts = Mixture(
        whole(config, "num_local_experts", 128), sizes.hidden,
        Routing(_top(config, 4)), together_by_turns, router="router", router_bias=True,
        combine=clamped,
    )  # fmt: skip
    _passed_over(config)
    return llama_like(
        config, sizes, spans(config, kinds, lambda kind: places, 128),
        names=Names(sinks="self_attn.sinks"), biases=biases_of(config, default=True),
        network=mixed(experts),
    )  # fmt: skip


def llama4_text(config: Config) -> Recipe:
    """Llama 4: stretches of 8,192 tokens that turn, and layers that see all and know no places."""
    sizes = sizes_of(config, eta=1e-5, size=128)
    turns = config.get("no_rope_layers") or [
        int((k + 1) % config.get("no_rope_layer_interval", 4) != 0) for k in range(sizes.depth)
    ]
    config.get("no_rope_layer_interval")
    usual = [CHUNKED if turn else FULL for turn in turns[: sizes.depth]]
    kinds = layer_kinds(config, sizes.depth, *usual)
    turning = rotary_of(config, sizes.size, default=500_000.0)
    if config.get("use_qk_norm", True):
        turning = UnitRotary(turning.frequencies, turning.tokens, turning.amplitude, eta=sizes.eta)
    scale, floor = config.get("attn_scale", 0.1), config.get("floor_scale", 8192)
    still = Tempered(scale, floor) if config.get("attn_temperature_tuning", True) else None
    seen = spans(config, kinds, lambda kind: turning)
    of_layers = tuple(
        span if turn else Span(span.window, span.chunk, still)
        for span, turn in zip(seen, turns, strict=False)
    )
    step = whole(config, "interleave_moe_layer_step", 1)
    usually = list(range(step - 1, sizes.depth, step))
    layers = config.get("moe_layers")
    sparse = set(usually if layers is None else layers)
    wide = whole(config, "intermediate_size_mlp", 16384)
    experts = Mixture(
        whole(config, "num_local_experts", 16), sizes.hidden,
        Routing(_top(config, 1), "sigmoid", normalised=False), together_by_width,
        router="router", shared=("shared_expert", sizes.hidden), weighs_input=True,
        dense=frozenset(range(sizes.depth)) - sparse, wide=wide,
    )  # fmt: skip
    _passed_over(config)
    return llama_like(
        config, sizes, of_layers, names=Names(network="feed_forward"), paired=True,
        biases=biases_of(config), network=mixed(experts),
    )  # fmt: skip


def deepseek_v2(config: Config) -> Recipe:
    """DeepSeek V2: latent attention; experts beside shared ones, chosen by a softmax."""
    method = config.get("topk_method", "greedy")
    limited = method == "group_limited_greedy"
    refuse_options({"topk_method": "greedy" if limited else method}, topk_method="greedy")
    refuse_options(config, norm_topk_prob=False)
    routing = Routing(
        _top(config, None), normalised=False,
        factor=positive(config, "routed_scaling_factor", 1.0),
        groups=(config.get("n_group") or 1) if limited else 1,
        kept=(config.get("topk_group") or 1) if limited else 1,
    )  # fmt: skip
    _passed_over(config, "n_group", "topk_group")
    return _deepseek(config, routing, dense=0, shared=2, preference=False)


def deepseek_v3(config: Config) -> Recipe:
    """DeepSeek V3: latent attention; experts beside a shared one, chosen by sigmoids in groups."""
    refuse_options(config, topk_method="noaux_tc", scoring_func="sigmoid", rope_interleave=True)
    routing = Routing(
        _top(config, 8), "sigmoid", bool(config.get("norm_topk_prob", True)),
        positive(config, "routed_scaling_factor", 2.5),
        whole(config, "n_group", 8), whole(config, "topk_group", 4), best=2,
    )  # fmt: skip
    return _deepseek(config, routing, dense=3, shared=1, preference=True)


def _deepseek(
    config: Config, routing: Routing, *, dense: int, shared: int, preference: bool
) -> Recipe:
    refuse_options(config, attention_bias=False, mlp_bias=False, moe_layer_freq=1, ep_size=1)
    refuse_options(config, scoring_func="sigmoid" if preference else "softmax")
    for training in (
        "aux_loss_alpha",
        "seq_aux",
        "num_nextn_predict_layers",
        "head_dim",
        "qk_head_dim",
    ):
        config.get(training)
    sizes = sizes_of(config, Options(size="qk_rope_head_dim"))
    shared, hidden = (
        whole(config, "n_shared_experts", shared),
        whole(config, "moe_intermediate_size"),
    )
    first = whole(config, "first_k_dense_replace", dense, least=0)
    name = "n_routed_experts" if config.get("n_routed_experts") is not None else "num_local_experts"
    count = whole(config, name)
    _require_open(routing, count)
    experts = Mixture(
        count, hidden, routing, by_expert("gate_proj", "up_proj", "down_proj"),
        preference="gate.e_score_correction_bias" if preference else None,
        shared=("shared_experts", hidden * shared), dense=frozenset(range(first)),
    )  # fmt: skip
    places = rotary_of(config, sizes.size)
    size, rope = sizes.size + whole(config, "qk_nope_head_dim"), rope_options(config)
    return llama_like(
        config, sizes, sizes.depth * (Span(places=places),), network=mixed(experts),
        attention=through_latents(config), scale=_sharpened(size, rope),
        further=config.get("num_nextn_predict_layers") or 0,
    )  # fmt: skip


def _require_open(routing: Routing, count: int) -> None:
    """Refuse tokens that choose more experts than are open to them: which would be by chance."""
    fits = count % routing.groups == 0 and routing.kept <= routing.groups
    require(
        fits and routing.top <= count // routing.groups * routing.kept,
        "config.json",
        got=f"{routing.top} of {count} experts in {routing.kept} of {routing.groups} groups",
        expected="groups that share the experts, of which the open ones hold that many",
        cure="Download it again.",
    )


def _sharpened(size: int, rope: Config) -> float | None:
    """Scores' scale with YaRN's amplitude of all features, twice."""
    _, weight = yarn_weights(rope)
    if not weight or rope.get("rope_type", rope.get("type", "default")) == "default":
        return None
    return size**-0.5 * yarn_amplitude(positive(rope, "factor"), weight) ** 2


def _top(config: Config, default: int | None) -> int:
    return whole(config, "num_experts_per_tok", default)


def _passed_over(config: Config, *more: str) -> None:
    """Options that say again what the others say."""
    for name in (
        *more,
        "num_experts", "num_local_experts", "experts_per_token", "initial_context_length",
    ):  # fmt: skip
        config.get(name)
