"""Llama and its relatives: RMS norms, rotary positions, gates."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lim_jax.models import parts
from lim_jax.models.options import chosen, positive, refuse_options, whole
from lim_jax.models.places import (
    FULL,
    SLIDING,
    TRAINED,
    WINDOW,
    every,
    layer_kinds,
    rope_options,
    rotary_of,
    spans,
)
from lim_jax.models.reading import ACTIVATIONS
from lim_jax.models.recipe import Biases, Names, Recipe, Sizes, sizes_of
from lim_jax.network.frequencies import rotary_frequencies
from lim_jax.network.positions import Rotary
from lim_jax.network.span import Span

Config = Mapping[str, Any]
AFTER = {"before_attention": None, "after_attention": "post_attention_layernorm"}
AFTER |= {"before_network": None, "after_network": "post_feedforward_layernorm"}

# What Hunyuan's files say of heads that are not there, of images, and of layers that share.
OF_HUNYUAN = (
    "add_classification_head", "class_num", "cla_share_factor", "dense_list", "enc_head_dim",
    "im_end_id", "im_newline_id", "im_start_id", "mask_init_id", "mask_token_id", "org_vocab_size",
    "pad_id", "pool_type", "routed_scaling_factor", "text_end_id", "text_start_id",
)  # fmt: skip


def llama_like(
    config: Config,
    sizes: Sizes,
    of_layers: tuple[Span, ...] | None = None,
    *,
    act: str = "hidden_act",
    activation: str = "silu",
    tied: bool = False,
    **options: Any,
) -> Recipe:
    """A decoder of RMS norms and gates, and the options in which it differs.

    `activation` and `tied` are what is meant where the configuration says nothing.
    """
    if of_layers is None:
        of_layers = sizes.depth * (Span(places=rotary_of(config, sizes.size)),)
    usual = {
        "norm": parts.rms_norm,
        "projections": parts.apart,
        "network": parts.gated,
        "attention": parts.of_matrices,
        "activation": chosen(config, act, ACTIVATIONS, activation),
        "tied": bool(config.get("tie_word_embeddings", tied)),
    }
    return Recipe(sizes, of_layers, **(usual | options))


def biases_of(config: Config, *, mixed: str | None = "attention_bias", default: bool = False):
    """Biases by the configuration's own words."""
    projected = bool(config.get("attention_bias", default))
    return Biases(
        projected,
        projected if mixed == "attention_bias" else bool(mixed and config.get(mixed, False)),
        bool(config.get("mlp_bias", False)),
    )


def llama(config: Config) -> Recipe:
    """Llama: RMS norms, rotary positions, grouped queries, gated networks."""
    return llama_like(config, sizes_of(config), biases=biases_of(config))


def mistral(config: Config) -> Recipe:
    """Mistral: Llama without biases; a sliding window of 4,096 tokens, or where it is null none."""
    sizes = sizes_of(config)
    slides = config.get("sliding_window", WINDOW) is not None
    kinds = layer_kinds(config, sizes.depth, *sizes.depth * [SLIDING if slides else FULL])
    return llama_like(config, sizes, sliding(config, sizes, kinds))


def ministral(config: Config) -> Recipe:
    """Ministral: Mistral whose layers may differ."""
    return mistral(config)


def qwen2(config: Config) -> Recipe:
    """Qwen 2: Llama with biases of queries, keys and values."""
    sizes = sizes_of(config)
    return llama_like(config, sizes, _qwens(config, sizes), biases=Biases(projected=True))


def qwen3(config: Config) -> Recipe:
    """Qwen 3: Llama with norms of every head's queries and keys."""
    sizes = sizes_of(config, size=128)
    return llama_like(
        config, sizes, _qwens(config, sizes),
        biases=biases_of(config), head_norm=parts.one_for_all_heads,
    )  # fmt: skip


def seed_oss(config: Config) -> Recipe:
    """Seed-OSS: Llama with biases of queries, keys and values, and of the output where it says."""
    sizes = sizes_of(config, size=128)
    biases = biases_of(config, mixed="attention_out_bias", default=True)
    return llama_like(config, sizes, biases=biases)


def ernie4_5(config: Config) -> Recipe:
    """ERNIE 4.5: Llama whose neighbouring features turn together."""
    biased = bool(config.get("use_bias", False))
    biases, sizes = Biases(biased, biased, biased), sizes_of(config, eta=1e-5, size=128)
    whole = rotary_of(config, sizes.size, default=500_000.0)
    return llama_like(
        config, sizes, sizes.depth * (Span(places=whole),), biases=biases, paired=True, tied=True
    )


def hunyuan_v1_dense(config: Config) -> Recipe:
    """Hunyuan dense: Llama with norms of heads after these have turned."""
    sizes, rope = sizes_of(config, eta=1e-5), rope_options(config)
    refuse_options(
        config, use_qk_norm=True, use_rotary_pos_emb=True, use_cla=False,
        position_embedding_xdrope=False, attention_head_dim=sizes.size,
    )  # fmt: skip
    chosen(config, "norm_type", dict.fromkeys(("rms", "hf_rms")), "rms")
    for name in OF_HUNYUAN:
        config.get(name)
    if rope.get("alpha") and rope.get("rope_type", rope.get("type")) == "dynamic":
        # By this word the publisher means one base for all contexts.
        theta = rope.get("rope_theta") or config.get("rope_theta") or 10_000.0
        grown = positive(rope, "alpha") ** (sizes.size / (sizes.size - 2))
        turning = Rotary(rotary_frequencies(sizes.size, theta * grown))
    else:
        turning = rotary_of(config, sizes.size)
    names = Names(query_norm="self_attn.query_layernorm", key_norm="self_attn.key_layernorm")
    span = Span(places=replace(turning, from_zero=True))
    return llama_like(
        config, sizes, sizes.depth * (span,), names=names, biases=biases_of(config),
        head_norm=parts.one_for_all_heads, turn_first=True,
    )  # fmt: skip


def helium(config: Config) -> Recipe:
    """Helium: Llama whose neighbouring features turn together."""
    sizes = sizes_of(config, eta=1e-8, size=128)
    places = rotary_of(config, sizes.size, default=100_000.0)
    return llama_like(
        config, sizes, sizes.depth * (Span(places=places),), biases=biases_of(config, mixed=None),
        paired=True,
    )  # fmt: skip


def smollm3(config: Config) -> Recipe:
    """SmolLM3: Llama of which every fourth layer knows no places."""
    sizes = sizes_of(config)
    turning = rotary_of(config, sizes.size, default=2_000_000.0)
    slides = config.get("use_sliding_window", False)
    config.get("max_window_layers")  # of Qwen's files, which the publisher's reader passes over
    turns = config.get("no_rope_layers")
    period = whole(config, "no_rope_layer_interval", 4)
    turns = [int((k + 1) % period != 0) for k in range(sizes.depth)] if turns is None else turns
    assert turns is not None
    usual = [SLIDING if slides and not turn else FULL for turn in turns[: sizes.depth]]
    kinds = layer_kinds(config, sizes.depth, *usual)
    if not slides:
        kinds = sizes.depth * (FULL,)
    seen = spans(config, kinds, lambda kind: turning, None)
    of_layers = tuple(
        span if turn else Span(span.window) for span, turn in zip(seen, turns, strict=False)
    )
    return llama_like(config, sizes, of_layers, biases=biases_of(config), tied=True)


def granite(config: Config) -> Recipe:
    """Granite: Llama with multipliers of embeddings, of what layers add, of scores and logits."""
    return llama_like(config, sizes_of(config), biases=biases_of(config), **multipliers(config))


def multipliers(config: Config) -> dict[str, Any]:
    """Granite's, by the recipe's names: a layer's step is what it adds multiplied."""
    ones = {
        name: positive(config, name, 1.0)
        for name in (
            "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
        )
    }  # fmt: skip
    return {
        "embedding_scale": ones["embedding_multiplier"],
        "increment": ones["residual_multiplier"],
        "scale": ones["attention_multiplier"],
        "logit_scale": 1 / ones["logits_scaling"],
    }


def phi3(config: Config) -> Recipe:
    """Phi-3, 3.5 and 4: Llama whose projections, and whose gates, stand in one matrix each."""
    refuse_options(
        config, attention_bias=False, mlp_bias=False, lm_head_bias=False, full_attn_mod=1,
        interpolate_factor=1,
    )  # fmt: skip
    sizes = sizes_of(config, eta=1e-5)
    if config.get(TRAINED) is None and "short_factor" in rope_options(config):
        whole(config, TRAINED)  # by which the scaling goes, whatever it says itself
    slides = config.get("sliding_window") is not None
    kinds = sizes.depth * (SLIDING if slides else FULL,)
    return llama_like(
        config, sizes, sliding(config, sizes, kinds, default_part=1.0), projections=parts.joined,
        network=parts.jointly_gated, names=Names(up="gate_up_proj"),
    )  # fmt: skip


def exaone4(config: Config) -> Recipe:
    """EXAONE 4: norms after sublayers and of heads; where some slide, only these turn."""
    sizes = sizes_of(config, eta=1e-5)
    window = config.get("sliding_window", WINDOW)
    period = config.get("sliding_window_pattern", 4)
    usual = sizes.depth * (FULL,)
    if window is not None and isinstance(period, int) and period > 0:
        usual = every(period, sizes.depth)
    kinds = layer_kinds(config, sizes.depth, *usual)
    turning = rotary_of(config, sizes.size)

    def places(kind: str) -> Rotary | None:
        return turning if window is None or kind == SLIDING else None

    return llama_like(
        config, sizes, spans(config, kinds, places), names=Names(**AFTER),
        head_norm=parts.one_for_all_heads,
    )  # fmt: skip


def olmo2(config: Config) -> Recipe:
    """OLMo 2: norms after sublayers, and of all heads together."""
    return llama_like(
        config, sizes_of(config, eta=1e-5), names=Names(**AFTER), biases=biases_of(config),
        head_norm=parts.across_heads,
    )  # fmt: skip


def olmo3(config: Config) -> Recipe:
    """OLMo 3: OLMo 2 with a window in all but every fourth layer; only the full ones are scaled."""
    sizes = sizes_of(config, eta=1e-5)
    kinds = layer_kinds(config, sizes.depth, *every(4, sizes.depth))
    # Readers disagree about another base beside the older spelling.
    refuse_options(config, rope_theta=500_000.0)

    def places(kind: str) -> Rotary:
        return rotary_of(config, sizes.size, default=500_000.0, kind=kind)

    return llama_like(
        config, sizes, spans(config, kinds, places), names=Names(**AFTER),
        biases=biases_of(config), head_norm=parts.across_heads,
    )  # fmt: skip


def glm(config: Config) -> Recipe:
    """GLM: half of each head turns, by neighbouring features; gates stand in one matrix."""
    sizes = sizes_of(config, eta=1.5625e-7, size=128)
    places = rotary_of(config, sizes.size, default_part=0.5)
    biases = Biases(projected=bool(config.get("attention_bias", True)))
    return llama_like(
        config, sizes, sizes.depth * (Span(places=places),), biases=biases, paired=True,
        network=parts.jointly_gated, names=Names(up="gate_up_proj"),
    )  # fmt: skip


def glm4(config: Config) -> Recipe:
    """GLM-4: GLM with norms after sublayers besides."""
    after = {"after_attention": "post_self_attn_layernorm", "after_network": "post_mlp_layernorm"}
    recipe = glm(config)
    return recipe._replace(names=recipe.names._replace(**after))


def arcee(config: Config) -> Recipe:
    """Arcee: Llama whose networks have no gate."""
    return llama_like(
        config, sizes_of(config, eta=1e-5), activation="relu2", network=parts.plain,
        biases=biases_of(config),
    )  # fmt: skip


def sliding(config: Config, sizes: Sizes, kinds: tuple[str, ...], **turn: Any) -> tuple[Span, ...]:
    """What layers of these kinds see, which turn alike, as `rotary_of` says."""
    places = rotary_of(config, sizes.size, **turn)
    return spans(config, kinds, lambda kind: places)


def _qwens(config: Config, sizes: Sizes) -> tuple[Span, ...]:
    """Where nothing is said of layers they slide from `max_window_layers` on, if any do."""
    slides = config.get("use_sliding_window", False)
    first = whole(config, "max_window_layers", 28, least=0)
    first = first if slides and config.get("sliding_window", WINDOW) is not None else sizes.depth
    usual = (FULL if k < first else SLIDING for k in range(sizes.depth))
    return sliding(config, sizes, layer_kinds(config, sizes.depth, *usual))
