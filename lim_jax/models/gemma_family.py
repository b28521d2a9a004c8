"""Gemma: unit-offset norms, embeddings scaled by the root of the width, caps."""

import math
from typing import Any

from lim_jax.models import parts
from lim_jax.models.llama_family import biases_of, llama_like, masks_by_kind
from lim_jax.models.options import Configuration, get_int, get_positive, refuse_options
from lim_jax.models.reading import tanh_gelu
from lim_jax.models.recipe import Names, Recipe, Sizes, sizes_of
from lim_jax.models.rope_config import SLIDING, WINDOW, full_every, layer_kinds, masks_of, rotary_of
from lim_jax.network.masks import AttentionMask
from lim_jax.network.positions import Rotary

BOTH_SIDES = Names(
    after_attention="post_attention_layernorm",
    before_network="pre_feedforward_layernorm",
    after_network="post_feedforward_layernorm",
)


def gemma(config: Configuration) -> Recipe:
    """Gemma: Llama with unit-offset norms and scaled embeddings."""
    if config.get("hidden_activation") is not None:
        refuse_options(config, hidden_activation="gelu_pytorch_tanh")
    recipe = _gemma(config, sizes_of(config, head_dim=256), "hidden_act")
    # The publisher's files say gelu and mean its hyperbolic tangent.
    legacy = config.get("hidden_act") == "gelu"
    return recipe._replace(activation=tanh_gelu) if legacy else recipe


def gemma2(config: Configuration) -> Recipe:
    """Gemma 2: norms on both sides of sublayers, capped scores and logits, every other window."""
    sizes = sizes_of(config, head_dim=256)
    refuse_options(config, sliding_window_size=config.get("sliding_window", WINDOW))
    kinds = layer_kinds(config, sizes.depth, *full_every(2, sizes.depth))
    return _gemma(
        config, sizes, "hidden_activation", masks_by_kind(config, sizes, kinds),
        names=BOTH_SIDES, scale=_scale(config),
        cap=config.get("attn_logit_softcapping", 50.0),
        logit_cap=config.get("final_logit_softcapping", 30.0),
    )  # fmt: skip


def gemma3_text(config: Configuration) -> Recipe:
    """Gemma 3: norms of heads, five windows to one full layer, a rotary base for each kind."""
    # The publisher's own reader knows the cap of scores, and ignores it.
    refuse_options(config, attn_logit_softcapping=None)
    sizes = sizes_of(config, head_dim=256)
    period = get_int(config, "sliding_window_pattern", 6)
    config.ignore("_sliding_window_pattern")  # it repeats layer_types
    kinds = layer_kinds(config, sizes.depth, *full_every(period, sizes.depth))

    def positions(kind: str) -> Rotary:
        base, default = ("rope_theta", 1_000_000.0)
        if kind == SLIDING:
            base, default = ("rope_local_base_freq", 10_000.0)
        return rotary_of(config, sizes.head_dim, base, default=default, kind=kind)

    return _gemma(
        config, sizes, "hidden_activation", masks_of(config, kinds, positions), names=BOTH_SIDES,
        scale=_scale(config), head_norm=parts.shared_head_norm,
        logit_cap=config.get("final_logit_softcapping"),
    )  # fmt: skip


def _gemma(
    config: Configuration,
    sizes: Sizes,
    act: str,
    of_layers: tuple[AttentionMask, ...] | None = None,
    **more: Any,
) -> Recipe:
    refuse_options(config, use_bidirectional_attention=False)
    config.ignore("hidden_act")  # later members of the family state it, and do not read it
    return llama_like(
        config, sizes, of_layers, act=act, activation="gelu_pytorch_tanh", tied=True,
        norm=parts.unit_offset_rms_norm, embedding_scale=math.sqrt(sizes.width),
        biases=biases_of(config), **more,
    )  # fmt: skip


def _scale(config: Configuration) -> float:
    return get_positive(config, "query_pre_attn_scalar", 256) ** -0.5
