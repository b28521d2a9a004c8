"""Llama and its relatives: RMS norms, rotary positions, gates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from jaxtyping import Array

from lim_jax.checkpoints import sublayers
from lim_jax.checkpoints.activations import ACTIVATIONS, xielu
from lim_jax.checkpoints.options import Configuration, require_config
from lim_jax.checkpoints.recipe import Biases, Names, Recipe, Sizes, sizes_of
from lim_jax.checkpoints.rope_config import (
    FULL,
    SLIDING,
    TEMPERED,
    TRAINED,
    WINDOW,
    full_every,
    layer_kinds,
    masks_of,
    require_pairs,
    rope_options,
    rotary_base,
    rotary_of,
    scaling_kind,
    slide_if_stated,
    usual_base,
)
from lim_jax.network.frequencies import rotary_frequencies
from lim_jax.network.masks import AttentionMask
from lim_jax.network.positions import Rotary, Tempered, TemperedRotary

AFTER = {"before_attention": None, "after_attention": "post_attention_layernorm"}
AFTER |= {"before_network": None, "after_network": "post_feedforward_layernorm"}

OF_CWM = {
    "rope_type": "llama3",
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    TRAINED: 8192,
}
OF_APERTUS = OF_CWM | {"factor": 8.0}
# Ministral 3's rotary positions where none are stated.
OF_MINISTRAL = {
    "rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, TRAINED: 16384,
    "mscale": 1.0, "mscale_all_dim": 1.0, TEMPERED: 0.1,
}  # fmt: skip
OF_NANOCHAT = Names(embedding_norm="norm", up="fc1", down="fc2")
# Options of Hunyuan's files about heads that are not there, images, and layers that share.
OF_HUNYUAN = (
    "add_classification_head", "class_num", "cla_share_factor", "dense_list", "enc_head_dim",
    "im_end_id", "im_newline_id", "im_start_id", "mask_init_id", "mask_token_id", "org_vocab_size",
    "pad_id", "pool_type", "routed_scaling_factor", "text_end_id", "text_start_id",
)  # fmt: skip


def llama_like(
    config: Configuration,
    sizes: Sizes,
    masks: tuple[AttentionMask, ...] | None = None,
    *,
    act: str = "hidden_act",
    activation: str | Callable[..., Array] = "silu",
    tied: bool = False,
    **options: Any,
) -> Recipe:
    """Return the recipe of a decoder with RMS norms and gated MLPs; `options` change fields of it.

    Parameters
    ----------
    config
        The options of ``config.json``: the activation, the biases (``attention_bias`` and
        ``mlp_bias``) and ``tie_word_embeddings`` are read of them.
    sizes
        The sizes, of `sizes_of`.
    masks
        What each layer sees, one `AttentionMask` for each; by default everything, with the rotary
        positions that the configuration states.
    act
        The name of the option of the activation.
    activation
        The activation's name where the configuration states none; or the activation itself, and
        then the option is not read.
    tied
        Whether the head is the embedding, if the configuration does not say.
    **options
        Further attributes of `Recipe`, which go before those of Llama: often `names`, `biases`,
        `network`, `projections`, `attention`, `norm` and `head_norm`.

    Returns
    -------
    Recipe
        The recipe, as `read_decoder` reads a checkpoint by it.

    Raises
    ------
    ValueError
        If an option that is read has a value that is not known.
    """
    if isinstance(activation, str):
        activation = ACTIVATIONS[config.get_choice(act, ACTIVATIONS, activation)]
    usual = {
        "norm": sublayers.rms_norm,
        "projections": sublayers.separate_qkv,
        "network": sublayers.gated_mlp,
        "attention": sublayers.read_attention,
        "activation": activation,
        "tied": config.get_flag("tie_word_embeddings", tied),
    }
    if "biases" not in options:
        usual["biases"] = biases_of(config)
    masks = rotary_masks(config, sizes) if masks is None else masks
    return Recipe(sizes, masks, **(usual | options))


def rotary_masks(config: Configuration, sizes: Sizes, **rope: Any) -> tuple[AttentionMask, ...]:
    """Return masks of layers that all see everything with the rotary positions of `rotary_of`."""
    return sizes.depth * (AttentionMask(positions=rotary_of(config, sizes.head_dim, **rope)),)


def biases_of(config: Configuration, default: bool = False) -> Biases:
    """Read which matrices have biases; `default` is the value of an absent ``attention_bias``."""
    attention = config.get_flag("attention_bias", default)
    return Biases(attention, attention, config.get_flag("mlp_bias"))


def llama(config: Configuration) -> Recipe:
    """Llama: RMS norms, rotary positions, grouped queries, gated networks."""
    return llama_like(config, sizes_of(config))


def mistral(config: Configuration) -> Recipe:
    """Mistral: Llama without biases; a sliding window of 4,096 tokens, or none where it is null."""
    sizes = sizes_of(config)
    usual = slide_if_stated(config, sizes.depth, WINDOW)
    return llama_like(config, sizes, masks_by_kind(config, sizes, usual), biases=Biases())


def ministral(config: Configuration) -> Recipe:
    """Ministral: Mistral whose layers may differ."""
    return mistral(config)


def ministral3(config: Configuration) -> Recipe:
    """Ministral 3: Mistral whose queries grow beyond the length of training; usually no window."""
    sizes = sizes_of(config, norm_eps=1e-5, head_dim=128)
    rope = Configuration(rope_options(config) or OF_MINISTRAL)
    rope_parameters = {
        name: rope[name] for name in rope if name not in (TEMPERED, "max_position_embeddings")
    }
    config.ignore("rope_theta")  # which is read here, without the rest being taken for read
    stated = {**config.options, "rope_parameters": rope_parameters, "rope_scaling": None}
    rotary = rotary_of(Configuration(stated), sizes.head_dim)
    if rope.get(TEMPERED) != 0:  # each token's factor counts from the first, which is 0
        growth = rope.get_positive(TEMPERED)
        tempered = Tempered(growth, rope.get_int(TRAINED), from_zero=True)
        rotary = TemperedRotary(
            rotary.frequencies, rotary.tokens, rotary.amplitude, tempered=tempered
        )
    seen = masks_of(config, slide_if_stated(config, sizes.depth), rotary)
    return llama_like(config, sizes, seen, biases=Biases())


def qwen2(config: Configuration) -> Recipe:
    """Qwen 2: Llama with biases of queries, keys and values."""
    sizes = sizes_of(config)
    return llama_like(config, sizes, _qwens(config, sizes), biases=Biases(qkv=True))


def qwen2_vl_text(config: Configuration) -> Recipe:
    """The text of Qwen 2 VL, which is Qwen 2."""
    usual = {"rms_norm_eps": 1e-5, "max_window_layers": 80}
    return qwen2(config.with_defaults(**usual, **usual_base(config, 1_000_000.0)))


def qwen2_5_vl_text(config: Configuration) -> Recipe:
    """The text of Qwen 2.5 VL, which is Qwen 2."""
    return qwen2_vl_text(config)


def mimo(config: Configuration) -> Recipe:
    """MiMo: Qwen 2 beside layers that predict further tokens, which are passed over."""
    config.ignore("num_nextn_predict_layers")
    return qwen2(config)._replace(names=Names(mtp_prefix="model.mtp_layers."))


def qwen3(config: Configuration) -> Recipe:
    """Qwen 3: Llama with norms of every head's queries and keys."""
    sizes = sizes_of(config, head_dim=128)
    return llama_like(config, sizes, _qwens(config, sizes), head_norm=sublayers.shared_head_norm)


def qwen3_vl_text(config: Configuration) -> Recipe:
    """The text of Qwen 3 VL: Qwen 3 without windows."""
    sizes = sizes_of(config, head_dim=128)
    masks = rotary_masks(config, sizes, default=500_000.0)
    return llama_like(config, sizes, masks, head_norm=sublayers.shared_head_norm)


def seed_oss(config: Configuration) -> Recipe:
    """Seed-OSS: Llama with biases of queries, keys and values, and optionally of the output."""
    output = config.get_flag("attention_out_bias")
    biases = biases_of(config, default=True)._replace(attention_output=output)
    return llama_like(config, sizes_of(config, head_dim=128), biases=biases)


def ernie4_5(config: Configuration) -> Recipe:
    """ERNIE 4.5: Llama with interleaved rotary features."""
    biased = config.get_flag("use_bias")
    biases = Biases(biased, biased, biased)
    sizes = sizes_of(config, norm_eps=1e-5, head_dim=128)
    masks = rotary_masks(config, sizes, default=500_000.0)
    return llama_like(config, sizes, masks, biases=biases, rope_interleaved=True, tied=True)


def hunyuan_v1_dense(config: Configuration) -> Recipe:
    """Hunyuan dense: Llama with norms of heads after the rotation."""
    sizes = sizes_of(config, norm_eps=1e-5)
    rope = rope_options(config)
    config.refuse(
        use_qk_norm=True,
        use_rotary_pos_emb=True,
        use_cla=False,
        position_embedding_xdrope=False,
        attention_head_dim=sizes.head_dim,
    )
    config.get_choice("norm_type", ("rms", "hf_rms"), "rms")
    image_options = (name for name in config if name.startswith(("anyres_", "video_", "vit_")))
    config.ignore(*OF_HUNYUAN, *image_options)
    if rope.get("alpha") and scaling_kind(rope) == "dynamic":
        # Here the publisher's reader scales the base once, for contexts of every length.
        require_pairs(sizes.head_dim, sizes.head_dim, least=4)
        base = rotary_base(config, rope) * rope.get_positive("alpha") ** (
            sizes.head_dim / (sizes.head_dim - 2)
        )
        rotary = Rotary(rotary_frequencies(sizes.head_dim, base))
    else:
        rotary = rotary_of(config, sizes.head_dim)
    names = Names(query_norm="self_attn.query_layernorm", key_norm="self_attn.key_layernorm")
    mask = AttentionMask(positions=replace(rotary, from_zero=True))
    return llama_like(
        config,
        sizes,
        sizes.depth * (mask,),
        names=names,
        head_norm=sublayers.shared_head_norm,
        rope_before_qk_norm=True,
    )


def helium(config: Configuration) -> Recipe:
    """Helium: Llama with interleaved rotary features."""
    sizes = sizes_of(config, norm_eps=1e-8, head_dim=128)
    masks = rotary_masks(config, sizes, default=100_000.0)
    biases = biases_of(config)._replace(attention_output=False)
    return llama_like(config, sizes, masks, biases=biases, rope_interleaved=True)


def smollm3(config: Configuration) -> Recipe:
    """SmolLM3: Llama without positions in every fourth layer."""
    sizes = sizes_of(config)
    rotary = rotary_of(config, sizes.head_dim, default=2_000_000.0)
    slides = config.get_flag("use_sliding_window")
    config.ignore("max_window_layers")  # of Qwen's files; the publisher's reader ignores it too
    rotated = rotated_layers(config, sizes.depth)
    usual = [SLIDING if slides and not rotates else FULL for rotates in rotated]
    kinds = layer_kinds(config, sizes.depth, *usual)
    if not slides:
        kinds = sizes.depth * (FULL,)
    seen = masks_of(config, kinds, rotary, None)
    masks = tuple(
        mask if rotates else AttentionMask(mask.window)
        for mask, rotates in zip(seen, rotated, strict=True)
    )
    return llama_like(config, sizes, masks, tied=True)


def rotated_layers(config: Configuration, depth: int) -> Sequence[int]:
    """Return for each layer 1 if it has rotary positions, else 0; by default every fourth has none.

    So says ``no_rope_layers`` too, despite its name.
    """
    config.ignore("no_rope_layer_interval")  # beside no_rope_layers
    stated = config.get_list("no_rope_layers")
    if stated:
        return config.require(
            "no_rope_layers",
            stated,
            len(stated) == depth and all(layer in (0, 1) for layer in stated),
            f"{depth} of 0 or 1",
        )
    period = config.get_int("no_rope_layer_interval", 4)
    return [int((k + 1) % period != 0) for k in range(depth)]


def granite(config: Configuration) -> Recipe:
    """Granite: Llama with multipliers of embeddings, of what layers add, of scores and logits."""
    return llama_like(config, sizes_of(config), **multipliers(config))


def multipliers(config: Configuration) -> dict[str, Any]:
    """Read Granite's multipliers, as keyword arguments of a recipe."""
    return {
        "embedding_scale": config.get_positive("embedding_multiplier", 1.0),
        "increment": config.get_positive("residual_multiplier", 1.0),
        "scale": config.get_positive("attention_multiplier", 1.0),
        "logit_scale": 1 / config.get_positive("logits_scaling", 1.0),
    }


def granite_swa(config: Configuration) -> Recipe:
    """Granite with sinks, and windows in all but every fourth layer from the first."""
    sizes = sizes_of(config, norm_eps=1e-5)
    usual = (SLIDING if k % 4 else FULL for k in range(sizes.depth))
    kinds = layer_kinds(config, sizes.depth, *usual)
    bases = config.get("layer_rope_theta")
    if bases is None:
        masks = masks_of(config, kinds, rotary_of(config, sizes.head_dim), 128)
    else:
        masks = _by_bases(config, sizes, kinds, bases)
    names = Names(sinks="self_attn.sinks")
    return llama_like(config, sizes, masks, names=names, tied=True, **multipliers(config))


def _by_bases(
    config: Configuration, sizes: Sizes, kinds: tuple[str, ...], bases: Any
) -> tuple[AttentionMask, ...]:
    """Return one mask for each layer, with the layer's own rotary base; zero is no positions."""
    config.require(
        "layer_rope_theta",
        bases,
        isinstance(bases, list) and len(bases) == sizes.depth,
        f"{sizes.depth} numbers, one for each layer",
    )
    config.ignore("rope_theta")  # which says nothing beside those of layers
    rope = {name: value for name, value in rope_options(config).items() if name != "rope_theta"}

    def rotary(base: Any) -> Rotary | None:
        """Return rotary positions with this base, or None for zero."""
        if base == 0:
            return None
        theta = Configuration({"layer_rope_theta": base}).get_positive("layer_rope_theta")
        stated = config.replace(
            rope_parameters={**rope, "rope_theta": theta}, rope_scaling=None, rope_theta=None
        )
        return rotary_of(stated, sizes.head_dim)

    mask_of_kind = {kind: masks_of(config, (kind,), None, 128)[0] for kind in {*kinds}}
    pairs = zip(kinds, bases, strict=True)
    return tuple(replace(mask_of_kind[kind], positions=rotary(base)) for kind, base in pairs)


def nanochat(config: Configuration) -> Recipe:
    """nanochat: norms without weights, of embeddings too and after a rotation that is backwards."""
    biased = config.get_flag("attention_bias")
    return llama_like(
        config,
        sizes_of(config),
        names=OF_NANOCHAT,
        biases=Biases(biased, biased),
        activation="relu2",
        network=sublayers.plain_mlp,
        projections=sublayers.rotate_backwards,
        norm=sublayers.rms_norm_without_weights,
        head_norm=sublayers.shared_head_norm,
        rope_before_qk_norm=True,
        logit_cap=config.get("final_logit_softcapping", 15.0),
    )


def phi3(config: Configuration) -> Recipe:
    """Phi-3, 3.5 and 4: Llama with one fused matrix of projections, and one of gates."""
    config.refuse(
        attention_bias=False,
        mlp_bias=False,
        lm_head_bias=False,
        full_attn_mod=1,
        interpolate_factor=1,
    )
    sizes = sizes_of(config, norm_eps=1e-5)
    if config.get(TRAINED) is None and "short_factor" in rope_options(config):
        config.get_int(TRAINED)  # the publisher's reader needs it beside the scaling
    rotary = rotary_of(config, sizes.head_dim, default_part=1.0)
    return llama_like(
        config,
        sizes,
        masks_of(config, slide_if_stated(config, sizes.depth), rotary),
        projections=sublayers.fused_qkv,
        network=sublayers.fused_gated_mlp,
        names=Names(up="gate_up_proj"),
    )


def exaone4(config: Configuration) -> Recipe:
    """EXAONE 4: norms after sublayers and of heads; with windows, positions there alone."""
    return exaone_like(config, sizes_of(config, norm_eps=1e-5), names=Names(**AFTER))


def exaone_like(config: Configuration, sizes: Sizes, *, names: Names, **more: Any) -> Recipe:
    """Return the recipe of an EXAONE; with windows, its full layers have no positions."""
    window = config.get("sliding_window", WINDOW)
    config.ignore("sliding_window_pattern")  # beside layer_types, which say it
    usual = sizes.depth * (FULL,)
    if window is not None and config.get("layer_types") is None:
        usual = full_every(config.get_int("sliding_window_pattern", 4), sizes.depth)
    kinds = layer_kinds(config, sizes.depth, *usual)
    rotary = rotary_of(config, sizes.head_dim)
    positions = {SLIDING: rotary, FULL: rotary if window is None else None}
    config.ignore(*(name for name in config if "mtp" in name), "num_nextn_predict_layers")
    return llama_like(
        config,
        sizes,
        masks_of(config, kinds, positions),
        names=names._replace(mtp_prefix="mtp."),
        biases=Biases(),
        head_norm=sublayers.shared_head_norm,
        **more,
    )


def olmo2(config: Configuration) -> Recipe:
    """OLMo 2: norms after sublayers, and of all heads together."""
    sizes = sizes_of(config, norm_eps=1e-5)
    return llama_like(config, sizes, names=Names(**AFTER), head_norm=sublayers.across_heads)


def olmo3(config: Configuration) -> Recipe:
    """OLMo 3: OLMo 2 with a window in all but every fourth layer; only the full ones are scaled."""
    sizes = sizes_of(config, norm_eps=1e-5)
    kinds = layer_kinds(config, sizes.depth, *full_every(4, sizes.depth))
    # Readers disagree about another base beside rope_scaling.
    config.refuse(rope_theta=500_000.0)
    rotary = {
        kind: rotary_of(config, sizes.head_dim, default=500_000.0, kind=kind) for kind in {*kinds}
    }
    return llama_like(
        config,
        sizes,
        masks_of(config, kinds, rotary),
        names=Names(**AFTER),
        head_norm=sublayers.across_heads,
    )


def glm(config: Configuration) -> Recipe:
    """GLM: half of each head is rotated, interleaved; a fused matrix of gates."""
    sizes = sizes_of(config, norm_eps=1.5625e-7, head_dim=128)
    masks = rotary_masks(config, sizes, default_part=0.5)
    biases = Biases(qkv=config.get_flag("attention_bias", True))
    return llama_like(
        config,
        sizes,
        masks,
        biases=biases,
        rope_interleaved=True,
        network=sublayers.fused_gated_mlp,
        names=Names(up="gate_up_proj"),
    )


def glm4(config: Configuration) -> Recipe:
    """GLM-4: GLM with further norms after sublayers."""
    after = {"after_attention": "post_self_attn_layernorm", "after_network": "post_mlp_layernorm"}
    recipe = glm(config)
    return recipe._replace(names=recipe.names._replace(**after))


def arcee(config: Configuration) -> Recipe:
    """Arcee: Llama whose networks have no gate."""
    sizes = sizes_of(config, norm_eps=1e-5)
    return llama_like(config, sizes, activation="relu2", network=sublayers.plain_mlp)


def cwm(config: Configuration) -> Recipe:
    """CWM: Llama 3 with a window in all but every fourth layer from the first."""
    sizes = sizes_of(config, norm_eps=1e-5, head_dim=128)
    usual = (SLIDING if k % 4 else FULL for k in range(sizes.depth))
    config.refuse(mlp_bias=False)
    seen = masks_by_kind(config, sizes, usual, 8192, default=1e6, default_scaling=OF_CWM)
    return llama_like(config, sizes, seen, biases=Biases())


def iquestcoder(config: Configuration) -> Recipe:
    """IQuest-Coder: Llama."""
    config.refuse(clip_qkv=None, use_sliding_window=False)
    config.ignore("max_window_layers", "sliding_window")  # without windows
    return llama_like(config, sizes_of(config, norm_eps=1e-5, head_dim=128))


def internlm3(config: Configuration) -> Recipe:
    """InternLM 3: Llama, with other names for its biases."""
    sizes = sizes_of(config, norm_eps=1e-5, head_dim=128)
    biases = biases_of(config)
    qkv = config.get_flag("qkv_bias", biases.qkv)
    others = config.get_flag("bias", biases.mlp)
    Configuration({"bias": others}).refuse(bias=qkv)  # else the output's bias is not known
    return llama_like(config, sizes, biases=Biases(qkv, qkv, qkv))


def hyperclovax(config: Configuration) -> Recipe:
    """HyperCLOVA X SEED: Granite with further norms after sublayers, and logits multiplied."""
    sizes = sizes_of(config)
    names = Names()
    scales = multipliers(config)
    if config.get_flag("use_post_norm", True):
        names = Names(after_attention="post_norm1", after_network="post_norm2")
    scales["logit_scale"] = 1 / scales["logit_scale"]
    if config.get("attention_multiplier") is None:
        scales["scale"] = None
    return llama_like(config, sizes, names=names, **scales)


def apertus(config: Configuration) -> Recipe:
    """Apertus: norms of heads; networks have no gate, but an activation that was learned."""
    config.refuse(hidden_act="xielu", qk_norm=True, mlp_bias=False)
    config.ignore("post_norm")  # the publisher's reader ignores it
    sizes = sizes_of(config, norm_eps=1e-5)
    masks = rotary_masks(config, sizes, default=12e6, default_scaling=OF_APERTUS)
    names = Names(before_attention="attention_layernorm", before_network="feedforward_layernorm")
    return llama_like(
        config,
        sizes,
        masks,
        names=names,
        head_norm=sublayers.shared_head_norm,
        network=sublayers.xielu_mlp,
        activation=xielu,
    )


def masks_by_kind(
    config: Configuration, sizes: Sizes, usual: Iterable[str], window: int = WINDOW, **rope: Any
) -> tuple[AttentionMask, ...]:
    """Return the masks of layers, by stated or usual kinds, all with the same rotary positions."""
    kinds = layer_kinds(config, sizes.depth, *usual)
    return masks_of(config, kinds, rotary_of(config, sizes.head_dim, **rope), window)


def _qwens(config: Configuration, sizes: Sizes) -> tuple[AttentionMask, ...]:
    """Return the masks of Qwen's layers, which may slide from ``max_window_layers`` on."""
    slides = config.get_flag("use_sliding_window")
    first = config.get_int("max_window_layers", 28, least=0)
    first = first if slides and config.get("sliding_window", WINDOW) is not None else sizes.depth
    usual = (FULL if k < first else SLIDING for k in range(sizes.depth))
    return windows_if_used(config, sizes, usual)


def windows_if_used(
    config: Configuration, sizes: Sizes, usual: Iterable[str]
) -> tuple[AttentionMask, ...]:
    """Return the masks of Qwen's layers; raise ValueError at windows that are not to be used."""
    masks = masks_by_kind(config, sizes, usual)
    # Without use_sliding_window the publisher's reader has no window for the layers that slide.
    require_config(
        config.get_flag("use_sliding_window") or all(mask.window is None for mask in masks),
        "layer_types that slide with use_sliding_window = False",
        "windows in both or in neither",
        "State use_sliding_window as true, or every layer as full_attention.",
    )
    return masks
