"""Gemma: unit-offset norms, embeddings scaled by the root of the width, caps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lim_jax._checks import described
from lim_jax.checkpoints import expert_sublayers, sublayers
from lim_jax.checkpoints.activations import tanh_gelu
from lim_jax.checkpoints.families.llama import llama_like, masks_by_kind
from lim_jax.checkpoints.options import Configuration, require_config
from lim_jax.checkpoints.recipe import Biases, Names, Recipe, Sizes, sizes_of
from lim_jax.checkpoints.rope_config import (
    FULL,
    PART,
    SLIDING,
    WINDOW,
    full_every,
    layer_kinds,
    masks_of,
    rotary_of,
)
from lim_jax.checkpoints.tensor_reader import Reader
from lim_jax.network.experts import Routing
from lim_jax.network.masks import AttentionMask
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.norms import Norm, RMSNorm
from lim_jax.network.tokenwise import SideBySide

BOTH_SIDES = Names(
    after_attention="post_attention_layernorm",
    before_network="pre_feedforward_layernorm",
    after_network="post_feedforward_layernorm",
)

OF_GEMMA4 = {"rope_type": "proportional", PART: 0.25}


def gemma(config: Configuration) -> Recipe:
    """Gemma: Llama with unit-offset norms and scaled embeddings."""
    if config.get("hidden_activation") is not None:
        config.refuse(hidden_activation="gelu_pytorch_tanh")
    recipe = _gemma(config, sizes_of(config, head_dim=256), "hidden_act")
    # The publisher's files say gelu and mean its hyperbolic tangent.
    legacy = config.get("hidden_act") == "gelu"
    return recipe._replace(activation=tanh_gelu) if legacy else recipe


def vaultgemma(config: Configuration) -> Recipe:
    """VaultGemma: Gemma 2 with norms before sublayers alone."""
    return gemma2(config)._replace(names=Names(before_network="pre_feedforward_layernorm"))


def gemma2(config: Configuration) -> Recipe:
    """Gemma 2: norms on both sides of sublayers, capped scores and logits, every other window."""
    sizes = sizes_of(config, head_dim=256)
    config.refuse(sliding_window_size=config.get("sliding_window", WINDOW))
    seen = masks_by_kind(config, sizes, full_every(2, sizes.depth))
    return _gemma(
        config,
        sizes,
        "hidden_activation",
        seen,
        names=BOTH_SIDES,
        scale=_scale(config),
        cap=config.get("attn_logit_softcapping", 50.0),
        logit_cap=config.get("final_logit_softcapping", 30.0),
    )


def gemma3_text(config: Configuration) -> Recipe:
    """Gemma 3: norms of heads, five windows to one full layer, a rotary base for each kind."""
    # The publisher's own reader knows the cap of scores, and ignores it.
    config.refuse(attn_logit_softcapping=None)
    sizes = sizes_of(config, head_dim=256)
    period = config.get_int("sliding_window_pattern", 6)
    config.ignore("_sliding_window_pattern")  # it repeats layer_types
    kinds = layer_kinds(config, sizes.depth, *full_every(period, sizes.depth))

    usual = {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)}
    rotary = {
        kind: rotary_of(config, sizes.head_dim, base, default=default, kind=kind)
        for kind, (base, default) in usual.items()
    }
    return _gemma(
        config,
        sizes,
        "hidden_activation",
        masks_of(config, kinds, rotary),
        names=BOTH_SIDES,
        scale=_scale(config),
        head_norm=sublayers.shared_head_norm,
        logit_cap=config.get("final_logit_softcapping"),
    )


def gemma4_text(config: Configuration) -> Recipe:
    """Gemma 4: norms of values, heads of two sizes, a scale of each layer's state; experts."""
    _refuse_layers_of_more_states(config)
    sizes = sizes_of(config, head_dim=256)
    kinds = layer_kinds(config, sizes.depth, *full_every(6, sizes.depth))
    kinds = (*kinds[:-1], FULL)  # whatever is stated, as in transformers
    same = config.get_flag("attention_k_eq_v")
    full = _sizes_of_full_layers(config, sizes, kinds, same)
    size_of = {SLIDING: sizes.head_dim, FULL: full.head_dim}
    usual = {SLIDING: (1e4, {}), FULL: (1e6, OF_GEMMA4)}
    rotary = {
        kind: rotary_of(config, size_of[kind], kind=kind, default=base, default_scaling=scaling)
        for kind, (base, scaling) in usual.items()
    }
    masks = masks_of(config, kinds, rotary, 512)
    biased = config.get_flag("attention_bias")
    recipe = llama_like(
        config,
        sizes,
        masks,
        act="hidden_activation",
        activation="gelu_pytorch_tanh",
        tied=True,
        names=BOTH_SIDES,
        biases=Biases(biased, biased),
        head_norm=sublayers.shared_head_norm,
        value_norm=sublayers.unscaled_head_norm,
        scale=1.0,
        embedding_scale=math.sqrt(sizes.width),
        logit_cap=config.get("final_logit_softcapping"),
        network=_side_by_side(config),
    )
    seen = dict(zip(kinds, masks, strict=True))
    recipes = {kind: recipe._replace(attention=_attention(mask)) for kind, mask in seen.items()}
    projections = sublayers.keys_as_values if same else sublayers.separate_qkv
    recipes[FULL] = recipes[FULL]._replace(sizes=full, projections=projections)
    return recipe._replace(layers=tuple(recipes[kind] for kind in kinds))


def _sizes_of_full_layers(
    config: Configuration, sizes: Sizes, kinds: Sequence[str], same: bool
) -> Sizes:
    """Return the sizes of full layers, from global options or, in newer files, per layer."""
    by_layer = config.get_object("per_layer_config")
    groups = config.get("num_global_key_value_heads")
    sizes_of_full = {"head_dim": config.get("global_head_dim", 512)}
    if same and groups is not None:
        sizes_of_full["num_key_value_heads"] = groups
    if by_layer:
        sizes_of_full = Configuration(by_layer).get_object(f"{len(kinds) - 1}")
        full = {f"{k}" for k, kind in enumerate(kinds) if kind == FULL}
        same_sizes = by_layer == dict.fromkeys(full, sizes_of_full)
        require_config(
            same_sizes and set(sizes_of_full) <= {"head_dim", "num_key_value_heads"},
            f"per_layer_config = {by_layer}",
            "the same head_dim and num_key_value_heads of all full layers",
        )
    stated = Configuration(sizes_of_full)
    return sizes._replace(
        head_dim=stated.get_int("head_dim", sizes.head_dim),
        num_kv_heads=stated.get_int("num_key_value_heads", sizes.num_kv_heads),
    )


def _refuse_layers_of_more_states(config: Configuration) -> None:
    """Raise ValueError at layers that read other layers' states or inputs of their own."""
    config.ignore("use_double_wide_mlp", "vocab_size_per_layer_input")  # of what is refused here
    cure = (
        "Take another model: a layer must be a map of one state, and no flow passes these on "
        "(Gemma 4 E2B and E4B)."
    )
    shared = config.get("num_kv_shared_layers") or 0
    inputs = "hidden_size_per_layer_input"
    require_config(
        shared == 0,
        f"num_kv_shared_layers = {described(shared)}",
        "no layers that read keys and values of earlier ones",
        cure,
    )
    layer_inputs = config.get(inputs, 256)
    require_config(
        layer_inputs in (None, 0),
        f"{inputs} = {described(layer_inputs)}",
        "no embedding of a token for each layer",
        cure,
    )
    if config.get("use_bidirectional_attention") != "vision":  # which is not of text
        config.refuse(use_bidirectional_attention=None)


def _attention(mask: AttentionMask) -> Callable[..., CausalAttention]:
    """Return a reader of attention with this mask in place of the layer's own."""
    return lambda read, at, recipe, _: sublayers.read_attention(read, at, recipe, mask)


def _side_by_side(config: Configuration) -> Callable[..., SideBySide]:
    """Return a reader of a gated MLP, beside experts if there are any, and of the layer's scale."""
    mixture = None
    if config.get_flag("enable_moe_block"):
        count = config.get_int("num_experts")
        top = expert_sublayers.read_top(config, count, None, "top_k_experts")
        hidden = config.get_int("moe_intermediate_size")
        mixture = expert_sublayers.Mixture(
            count, hidden, Routing(top), expert_sublayers.fused_or_separate, router="router.proj"
        )

    def network(read: Reader, at: str, recipe: Recipe, norm: Norm, output_norm: Norm) -> SideBySide:
        """Read the MLP, the experts if there are any, and the scale of one layer."""
        scale = read(f"{at}.layer_scalar", 1)
        if mixture is None:
            return SideBySide(
                (sublayers.gated_mlp(read, at, recipe, norm, None),), output_norm, scale
            )
        width = recipe.sizes.width
        eps = recipe.sizes.norm_eps
        after = "post_feedforward_layernorm"
        norms = [sublayers.read_norm(read, at, f"{after}_{k}", recipe) for k in (1, 2)]
        before = recipe.norm(read, f"{at}.pre_feedforward_layernorm_2", width, eps)
        bare = recipe._replace(names=recipe.names._replace(network=""))
        router = read(f"{at}.router.scale", width) * width**-0.5
        mixed = replace(
            mixture(read, at, bare, before, norms[1]),
            router_norm=RMSNorm(router, eps),
            expert_scale=read(f"{at}.router.per_expert_scale", mixture.num_experts),
        )
        dense = sublayers.gated_mlp(read, at, recipe, norm, norms[0])
        return SideBySide((dense, mixed), output_norm, scale)

    return network


def _gemma(
    config: Configuration,
    sizes: Sizes,
    act: str,
    masks: tuple[AttentionMask, ...] | None = None,
    **more: Any,
) -> Recipe:
    """Return the recipe of a Gemma: unit-offset norms, embeddings scaled by sqrt(width)."""
    config.refuse(use_bidirectional_attention=False)
    config.ignore("hidden_act")  # later members of the family state it, and do not read it
    return llama_like(
        config,
        sizes,
        masks,
        act=act,
        activation="gelu_pytorch_tanh",
        tied=True,
        norm=sublayers.unit_offset_rms_norm,
        embedding_scale=math.sqrt(sizes.width),
        **more,
    )


def _scale(config: Configuration) -> float:
    """Return the scale of scores, by ``query_pre_attn_scalar``."""
    return config.get_positive("query_pre_attn_scalar", 256) ** -0.5
