"""Decoders with layer norms: older ones with biases everywhere, and newer ones with gates."""

from functools import partial
from typing import Any

from lim_jax._checks import described
from lim_jax.checkpoints import sublayers
from lim_jax.checkpoints.activations import bloom_gelu, exact_gelu
from lim_jax.checkpoints.families.llama import biases_of, llama_like, masks_by_kind, rotary_masks
from lim_jax.checkpoints.options import (
    OTHER_OPTION,
    Configuration,
    refuse_unknown,
    require_config,
)
from lim_jax.checkpoints.recipe import Biases, Names, Recipe, SizeNames, Sizes, sizes_of
from lim_jax.checkpoints.rope_config import (
    FULL,
    SLIDING,
    full_every,
    layer_kinds,
    masks_of,
    rotary_of,
    slide_if_stated,
)
from lim_jax.network.masks import AttentionMask
from lim_jax.network.positions import Alibi
from lim_jax.network.steps import euler, split

EVERYWHERE = Biases(qkv=True, attention_output=True, mlp=True)
MASKS = ("bias", "masked_bias", "rotary_emb.inv_freq")
# Decoders of layer norms and plain networks, with biases everywhere.
biased = partial(
    llama_like,
    act="activation_function",
    activation="gelu_new",
    tied=True,
    norm=sublayers.layer_norm,
    network=sublayers.plain_mlp,
    biases=EVERYWHERE,
)
OF_GPT2 = SizeNames("n_embd", "n_layer", "n_head", "n_inner", "layer_norm_epsilon")
OF_BLOOM = SizeNames("hidden_size", "n_layer", "n_head", None, "layer_norm_epsilon")
OF_FALCON = SizeNames(
    intermediate_size="ffn_hidden_size", norm_eps="layer_norm_epsilon", num_kv_heads="num_kv_heads"
)
OF_MPT_SIZES = SizeNames("d_model", "n_layers", "n_heads", None, "layer_norm_epsilon")
LAYER_NORM_EPS = SizeNames(norm_eps="layer_norm_eps")
GPT_NAMES = Names(
    prefix="transformer.",
    embedding="wte",
    positions="wpe",
    layer="h",
    up="c_fc",
    down="c_proj",
    before_attention="ln_1",
    before_network="ln_2",
    last="ln_f",
)
FALCON_NAMES = Names(
    prefix="transformer.",
    embedding="word_embeddings",
    layer="h",
    last="ln_f",
    fused_qkv="self_attention.query_key_value",
    output="self_attention.dense",
    up="dense_h_to_4h",
    down="dense_4h_to_h",
)
MPT_NAMES = Names(
    prefix="transformer.",
    embedding="wte",
    layer="blocks",
    fused_qkv="attn.Wqkv",
    output="attn.out_proj",
    network="ffn",
    before_attention="norm_1",
    before_network="norm_2",
    last="norm_f",
)
# Options of other programs that compute the network.
OF_BIGCODE = (
    "inference_runner", "max_batch_size", "pad_key_length", "pre_allocate_kv_cache",
    "runner_max_sequence_length", "validate_runner_input",
)  # fmt: skip
OF_MPT = "init_config", "init_device", "max_seq_len", "tokenizer_name", "verbose"


def gpt2(config: Configuration) -> Recipe:
    """GPT-2: learned positions, layer norms, transposed matrices."""
    config.refuse(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    sizes = sizes_of(config, OF_GPT2, norm_eps=1e-5)
    names = GPT_NAMES._replace(
        fused_qkv="attn.c_attn", output="attn.c_proj", ignored=("attn.bias", "attn.masked_bias")
    )
    return biased(
        config,
        sizes,
        sizes.depth * (AttentionMask(),),
        names=names,
        projections=sublayers.fused_qkv,
        transposed=True,
        num_positions=config.get_int("n_positions"),
    )


def gpt_neox(config: Configuration) -> Recipe:
    """GPT-NeoX and Pythia: rotary positions on a part of each head, an untied head.

    Its parallel blocks are exactly the paper's one-field recursion (`eq:discrete-residual`) at unit
    increment; where ``use_parallel_residual`` is false, layers are split.
    """
    config.refuse(attention_bias=True)
    sizes = sizes_of(config, LAYER_NORM_EPS, norm_eps=1e-5)
    part = config.get("rotary_pct", 0.25)
    config.refuse(partial_rotary_factor=part)  # the publisher's reader ignores it
    masks = rotary_masks(config, sizes, base="rotary_emb_base", default_part=part)
    names = Names(
        prefix="gpt_neox.",
        embedding="embed_in",
        fused_qkv="attention.query_key_value",
        output="attention.dense",
        up="dense_h_to_4h",
        down="dense_4h_to_h",
        last="final_layer_norm",
        head="embed_out",
        ignored=tuple(f"attention.{name}" for name in MASKS),
    )
    return biased(
        config,
        sizes,
        masks,
        names=names,
        projections=sublayers.fused_qkv_by_group,
        act="hidden_act",
        activation="gelu",
        tied=False,
        step=euler if config.get_flag("use_parallel_residual", True) else split,
    )


def gpt_bigcode(config: Configuration) -> Recipe:
    """SantaCoder and StarCoder: GPT-2 with one key head, and matrices that are not transposed."""
    config.refuse(scale_attn_weights=True)
    config.ignore(*OF_BIGCODE)
    sizes = sizes_of(config, OF_GPT2, norm_eps=1e-5)
    multi_query = config.get_flag("multi_query", True)
    sizes = sizes._replace(num_kv_heads=1 if multi_query else sizes.heads)
    names = GPT_NAMES._replace(
        fused_qkv="attn.c_attn", output="attn.c_proj", ignored=("attn.bias", "attn.masked_bias")
    )
    return biased(
        config,
        sizes,
        sizes.depth * (AttentionMask(),),
        names=names,
        projections=sublayers.fused_qkv if multi_query else sublayers.fused_qkv_by_group,
        activation="gelu_pytorch_tanh",
        num_positions=config.get_int("n_positions"),
    )


def gptj(config: Configuration) -> Recipe:
    """GPT-J: parallel blocks behind one norm, interleaved rotary features."""
    config.refuse(rotary=True, scale_attn_weights=True)
    sizes = sizes_of(config, OF_GPT2, norm_eps=1e-5)
    part = (config.get_int("rotary_dim", 64) + 0.5) / sizes.head_dim  # no rounding takes one away
    rotary = rotary_of(Configuration({}), sizes.head_dim, default_part=part)
    names = GPT_NAMES._replace(
        positions=None,
        query="attn.q_proj",
        key="attn.k_proj",
        value="attn.v_proj",
        output="attn.out_proj",
        up="fc_in",
        down="fc_out",
        before_network="ln_1",
        ignored=("attn.bias", "attn.masked_bias", "attn.embed_positions"),
    )
    return biased(
        config,
        sizes,
        sizes.depth * (AttentionMask(positions=rotary),),
        names=names,
        step=euler,
        rope_interleaved=True,
        biases=Biases(mlp=True, head=True),
        tied=False,
    )


def gpt_neo(config: Configuration) -> Recipe:
    """GPT-Neo: learned positions, unscaled scores, every other layer in a window."""
    names = SizeNames(depth="num_layers", heads="num_heads", norm_eps="layer_norm_epsilon")
    sizes = sizes_of(config, names, norm_eps=1e-5)
    types = config.get_list("attention_types") or [[["global", "local"], 12]]
    kinds = config.get_texts("attention_layers")
    if not kinds and all(_is_pattern(each) for each in types):
        kinds = [kind for pattern, times in types for kind in times * pattern]
    require_config(
        len(kinds) == sizes.depth and all(kind in ("global", "local") for kind in kinds),
        f"attention_types = {described(config.get('attention_types'))}",
        f"{sizes.depth} layers, global or local",
    )
    window = config.get_int("window_size", 256)
    masks = tuple(AttentionMask(window if kind == "local" else None) for kind in kinds)
    at = "attn.attention"
    names = GPT_NAMES._replace(
        query=f"{at}.q_proj",
        key=f"{at}.k_proj",
        value=f"{at}.v_proj",
        output=f"{at}.out_proj",
        ignored=(f"{at}.bias", f"{at}.masked_bias"),
    )
    return biased(
        config,
        sizes,
        masks,
        names=names,
        scale=1.0,
        biases=Biases(attention_output=True, mlp=True),
        num_positions=config.get_int("max_position_embeddings"),
    )


def _is_pattern(value: Any) -> bool:
    """Tell whether this is a list of kinds of layers, and how often they stand in this order."""
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    return is_pair and isinstance(value[0], list) and isinstance(value[1], int)


def opt(config: Configuration) -> Recipe:
    """OPT: learned positions, of which the first two are unused."""
    sizes = sizes_of(config, SizeNames(intermediate_size="ffn_dim"))._replace(norm_eps=1e-5)
    config.refuse(
        do_layer_norm_before=True,
        _remove_final_layer_norm=False,
        enable_bias=True,
        layer_norm_elementwise_affine=True,
        word_embed_proj_dim=sizes.width,
    )
    names = Names(
        prefix="model.decoder.",
        positions="embed_positions",
        output="self_attn.out_proj",
        network="",
        up="fc1",
        down="fc2",
        before_attention="self_attn_layer_norm",
        before_network="final_layer_norm",
        last="final_layer_norm",
    )
    return biased(
        config,
        sizes,
        sizes.depth * (AttentionMask(),),
        names=names,
        offset=2,
        num_positions=config.get_int("max_position_embeddings"),
        activation="relu",
    )


def bloom(config: Configuration) -> Recipe:
    """BLOOM: ALiBi, normalised embeddings."""
    config.refuse(apply_residual_connection_post_layernorm=False)
    width = "hidden_size" if config.get("n_embed") is None else "n_embed"
    sizes = sizes_of(config, OF_BLOOM._replace(width=width), norm_eps=1e-5)
    names = FALCON_NAMES._replace(embedding_norm="word_embeddings_layernorm")
    alibi = AttentionMask(positions=Alibi(sublayers.alibi_slopes(sizes.heads)))
    return biased(
        config,
        sizes,
        sizes.depth * (alibi,),
        names=names,
        projections=sublayers.fused_qkv_by_group,
        activation=bloom_gelu,
    )


def mpt(config: Configuration) -> Recipe:
    """MPT: ALiBi, layer norms without shift, and projections that may be clipped."""
    config.refuse(no_bias=True, expansion_ratio=4)
    # With ALiBi there are no learned positions, whatever is said; the rest concerns training.
    config.ignore("learned_pos_emb", "embedding_fraction", "norm_type", *OF_MPT)
    config.refuse(logit_scale=None)
    attention = Configuration(config.get_object("attn_config"))
    attention.refuse(
        alibi=True,
        alibi_bias_max=8,
        attn_type="multihead_attention",
        prefix_lm=False,
        qk_ln=False,
    )
    attention.ignore("attn_impl", "attn_uses_sequence_id")
    clip = None
    scale = None
    if attention.get("clip_qkv"):
        clip = sublayers.clipped(attention.get_positive("clip_qkv"))
    if attention.get("softmax_scale") is not None:
        scale = attention.get_positive("softmax_scale")
    refuse_unknown(attention)
    sizes = sizes_of(config, OF_MPT_SIZES, norm_eps=1e-5)
    alibi = AttentionMask(positions=Alibi(sublayers.alibi_slopes(sizes.heads)))
    return biased(
        config,
        sizes,
        sizes.depth * (alibi,),
        names=MPT_NAMES,
        projections=sublayers.fused_qkv,
        norm=sublayers.layer_norm_without_shift,
        activation=exact_gelu,
        biases=Biases(),
        head_norm=clip,
        value_norm=clip,
        scale=scale,
    )


def falcon(config: Configuration) -> Recipe:
    """Falcon: parallel blocks behind one norm or two, one key head or several."""
    config.refuse(alibi=False, apply_residual_connection_post_layernorm=False)
    sizes = sizes_of(config, OF_FALCON, norm_eps=1e-5)
    config.refuse(ff_factor=sizes.intermediate_size / sizes.width)
    new = config.get_flag("new_decoder_architecture")
    parallel = config.get_flag("parallel_attn", True)
    multi_query = config.get_flag("multi_query", True) and not new
    if not new:
        sizes = sizes._replace(num_kv_heads=1 if multi_query else sizes.heads)
    norms = config.get("num_ln_in_parallel_attn")
    two = new and parallel and (2 if norms is None else norms) == 2
    before_attention = "input_layernorm"
    before_network = "input_layernorm"
    if two:
        before_attention = "ln_attn"
        before_network = "ln_mlp"
    elif not parallel:
        before_network = "post_attention_layernorm"
    config.require("parallel_attn", parallel, parallel or not new, "True", OTHER_OPTION)
    names = FALCON_NAMES._replace(before_attention=before_attention, before_network=before_network)
    biases = EVERYWHERE if config.get_flag("bias") else Biases()
    return biased(
        config,
        sizes,
        rotary_masks(config, sizes),
        names=names,
        projections=sublayers.fused_qkv if multi_query else sublayers.fused_qkv_by_group,
        step=euler if parallel else split,
        biases=biases,
        act="activation",
        activation="gelu",
    )


def phi(config: Configuration) -> Recipe:
    """Phi-1, 1.5 and 2: parallel blocks behind one norm, half of each head is rotated."""
    config.refuse(qk_layernorm=False)
    config.ignore("attention_bias")  # false in files of networks that have it all the same
    sizes = sizes_of(config, LAYER_NORM_EPS, norm_eps=1e-5)
    names = Names(
        output="self_attn.dense",
        up="fc1",
        down="fc2",
        before_network="input_layernorm",
        last="final_layernorm",
    )
    return biased(
        config,
        sizes,
        rotary_masks(config, sizes, default_part=0.5),
        names=names,
        step=euler,
        biases=EVERYWHERE._replace(head=True),
        tied=False,
        act="hidden_act",
    )


def starcoder2(config: Configuration) -> Recipe:
    """StarCoder 2: rotary positions, grouped queries, a window where the configuration says."""
    sizes = sizes_of(config, SizeNames(norm_eps="norm_epsilon"), norm_eps=1e-5)
    config.refuse(
        mlp_type="default",
        norm_type="layer_norm",
        scale_attn_weights=True,
        layer_norm_epsilon=sizes.norm_eps,
    )
    config.ignore("activation_function")  # beside hidden_act; the publisher's reader ignores it too
    seen = masks_by_kind(config, sizes, slide_if_stated(config, sizes.depth))
    return biased(
        config,
        sizes,
        seen,
        names=Names(up="c_fc", down="c_proj"),
        biases=EVERYWHERE if config.get_flag("use_bias", True) else Biases(),
        act="hidden_act",
        activation="gelu_pytorch_tanh",
    )


def stablelm(config: Configuration) -> Recipe:
    """StableLM: Llama with layer norms, and a quarter of each head is rotated."""
    sizes = sizes_of(config, LAYER_NORM_EPS, norm_eps=1e-5)
    names = Names(query_norm="self_attn.q_layernorm", key_norm="self_attn.k_layernorm")
    parallel = config.get_flag("use_parallel_residual")
    if parallel:
        names = names._replace(before_network="input_layernorm")
    return llama_like(
        config,
        sizes,
        rotary_masks(config, sizes, default_part=0.25),
        names=names,
        norm=sublayers.layer_norm,
        biases=Biases(qkv=config.get_flag("use_qkv_bias")),
        step=euler if parallel else split,
        head_norm=sublayers.separate_head_norms if config.get_flag("qk_layernorm") else None,
    )


def nemotron(config: Configuration) -> Recipe:
    """Nemotron: unit-offset layer norms, squared ReLU without gates, half of each head rotated."""
    sizes = sizes_of(config, SizeNames(norm_eps="norm_eps"), norm_eps=1e-5)
    config.refuse(kv_channels=sizes.head_dim, layer_norm_eps=sizes.norm_eps)
    return llama_like(
        config,
        sizes,
        rotary_masks(config, sizes, default_part=0.5),
        activation="relu2",
        network=sublayers.plain_mlp,
        norm=sublayers.unit_offset_layer_norm,
    )


def jais2(config: Configuration) -> Recipe:
    """Jais 2: Llama with layer norms, biases, and squared ReLU without gates."""
    sizes = sizes_of(config, LAYER_NORM_EPS, norm_eps=1e-5)
    biases = biases_of(config, default=True)._replace(mlp=config.get_flag("mlp_bias", True))
    return llama_like(
        config,
        sizes,
        activation="relu2",
        network=sublayers.plain_mlp,
        norm=sublayers.layer_norm,
        biases=biases,
    )


def olmo(config: Configuration) -> Recipe:
    """OLMo: Llama with layer norms that have no weights; projections may be clipped."""
    config.refuse(rms_norm_eps=1e-5)
    clip = None
    if config.get("clip_qkv") is not None:
        clip = sublayers.clipped(config.get_positive("clip_qkv"))
    return llama_like(
        config,
        sizes_of(config, norm_eps=1e-5),
        norm=sublayers.layer_norm_without_weights,
        head_norm=clip,
        value_norm=clip,
    )


def cohere(config: Configuration) -> Recipe:
    """Command R: parallel blocks behind one norm without shift, scaled logits."""
    sizes = sizes_of(config, LAYER_NORM_EPS, norm_eps=1e-5)
    masks = rotary_masks(config, sizes, default=500_000.0)
    normed = sublayers.per_head_norm if config.get_flag("use_qk_norm") else None
    return cohere_like(config, sizes, masks, head_norm=normed)


def cohere2(config: Configuration) -> Recipe:
    """Command R7B: windows in all but every fourth layer, which is full and without positions."""
    sizes = sizes_of(config, LAYER_NORM_EPS, norm_eps=1e-5)
    period = config.get_int("sliding_window_pattern", 4)
    refuse_other_commands(config, period)
    kinds = layer_kinds(config, sizes.depth, *full_every(period, sizes.depth))
    positions = {SLIDING: rotary_of(config, sizes.head_dim), FULL: None}
    return cohere_like(config, sizes, masks_of(config, kinds, positions))


def refuse_other_commands(config: Configuration, period: int) -> None:
    """Raise ValueError at options of a Command model that name a network other than these."""
    config.ignore("_sliding_window_pattern")  # it repeats layer_types
    config.refuse(
        layer_switch=period,
        order_of_interleaved_layers="local_attn_first",
        position_embedding_type="rope_gptj",
        rotary_pct=1.0,
        use_embedding_sharing=True,
        use_gated_activation=True,
        use_parallel_block=True,
    )


def cohere_like(
    config: Configuration, sizes: Sizes, masks: tuple[AttentionMask, ...], **more: Any
) -> Recipe:
    """Return the recipe of a Command model: parallel blocks and scaled logits."""
    usual: dict[str, Any] = {"norm": sublayers.layer_norm_without_shift}
    return llama_like(
        config,
        sizes,
        masks,
        tied=True,
        step=euler,
        names=Names(before_network="input_layernorm"),
        **(usual | more),
        rope_interleaved=True,
        logit_scale=config.get_positive("logit_scale", 0.0625),
    )
