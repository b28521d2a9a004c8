"""Gemma: norms counted from one, embeddings scaled by the root of the width, caps."""

import math
from typing import Any

from lim_jax.models import parts
from lim_jax.models.llama_family import Config, biases_of, llama_like
from lim_jax.models.options import positive, refuse_options, whole
from lim_jax.models.places import SLIDING, WINDOW, every, layer_kinds, rotary_of, spans
from lim_jax.models.reading import tanh_gelu
from lim_jax.models.recipe import Names, Recipe, Sizes, sizes_of
from lim_jax.network.positions import Rotary
from lim_jax.network.span import Span

BOTH_SIDES = Names(
    after_attention="post_attention_layernorm",
    before_network="pre_feedforward_layernorm",
    after_network="post_feedforward_layernorm",
)


def gemma(config: Config) -> Recipe:
    """Gemma: Llama with norms counted from one and scaled embeddings."""
    if config.get("hidden_activation") is not None:
        refuse_options(config, hidden_activation="gelu_pytorch_tanh")
    recipe = _gemma(config, sizes_of(config, size=256), "hidden_act")
    # The publisher's files say gelu and mean its hyperbolic tangent.
    legacy = config.get("hidden_act") == "gelu"
    return recipe._replace(activation=tanh_gelu) if legacy else recipe


def gemma2(config: Config) -> Recipe:
    """Gemma 2: norms on both sides of sublayers, capped scores and logits, every other window."""
    sizes = sizes_of(config, size=256)
    refuse_options(config, sliding_window_size=config.get("sliding_window", WINDOW))
    kinds = layer_kinds(config, sizes.depth, *every(2, sizes.depth))
    places = rotary_of(config, sizes.size)
    return _gemma(
        config, sizes, "hidden_activation", spans(config, kinds, lambda kind: places),
        names=BOTH_SIDES, scale=_scale(config),
        cap=config.get("attn_logit_softcapping", 50.0),
        logit_cap=config.get("final_logit_softcapping", 30.0),
    )  # fmt: skip


def gemma3_text(config: Config) -> Recipe:
    """Gemma 3: norms of heads, five windows to one whole layer, a base of its own for each kind."""
    # The publisher's own reader knows the cap of scores, and passes it over.
    refuse_options(config, attn_logit_softcapping=None)
    sizes = sizes_of(config, size=256)
    period = whole(config, "sliding_window_pattern", 6)
    config.get("_sliding_window_pattern")  # beside layer_types, which say it
    kinds = layer_kinds(config, sizes.depth, *every(period, sizes.depth))

    def places(kind: str) -> Rotary:
        base, default = ("rope_theta", 1_000_000.0)
        if kind == SLIDING:
            base, default = ("rope_local_base_freq", 10_000.0)
        return rotary_of(config, sizes.size, base, default=default, kind=kind)

    return _gemma(
        config, sizes, "hidden_activation", spans(config, kinds, places), names=BOTH_SIDES,
        scale=_scale(config), head_norm=parts.one_for_all_heads,
        logit_cap=config.get("final_logit_softcapping"),
    )  # fmt: skip


def _gemma(
    config: Config, sizes: Sizes, act: str, of_layers: tuple[Span, ...] | None = None, **more: Any
) -> Recipe:
    refuse_options(config, use_bidirectional_attention=False)
    config.get("hidden_act")  # what later members of the family say too, and do not read
    return llama_like(
        config, sizes, of_layers, act=act, activation="gelu_pytorch_tanh", tied=True,
        norm=parts.rms_norm_from_one, embedding_scale=math.sqrt(sizes.width),
        biases=biases_of(config), **more,
    )  # fmt: skip


def _scale(config: Config) -> float:
    return positive(config, "query_pre_attn_scalar", 256) ** -0.5
