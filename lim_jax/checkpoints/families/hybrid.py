"""Decoders of which only some layers, or parts of layers, are softmax attention."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax

from lim_jax.checkpoints import expert_sublayers, recurrent_sublayers, sublayers
from lim_jax.checkpoints.activations import ACTIVATIONS
from lim_jax.checkpoints.families.deepseek import by_sigmoids
from lim_jax.checkpoints.families.llama import AFTER, llama_like, multipliers, rotary_masks
from lim_jax.checkpoints.families.mixture import OF_GRANITE, granite_experts
from lim_jax.checkpoints.options import Configuration, require_config
from lim_jax.checkpoints.recipe import Biases, Names, Recipe, SizeNames, Sizes, sizes_of
from lim_jax.checkpoints.rope_config import FULL, PART, full_every, rope_options
from lim_jax.checkpoints.tensor_reader import Reader
from lim_jax.network.experts import Routing
from lim_jax.network.field import SumOfFields
from lim_jax.network.masks import AttentionMask
from lim_jax.network.norms import Norm, Scaled
from lim_jax.network.slots import Field

LINEAR = "linear_attention"
CONV = "conv"
MLP = "mlp"
MOE = "moe"
OLDER_KINDS = {"mamba": LINEAR, "attention": FULL}
PATTERN = {"M": LINEAR, "*": FULL, "-": MLP, "E": MOE}
# Options of training, of kernels and of generation.
UNUSED = (
    "chunk_size", "expand", "mamba_chunk_size", "mamba_expand", "mamba_ssm_cache_dtype",
    "mamba_ssm_dtype", "time_step_floor", "time_step_max", "time_step_min",
    "time_step_rank", "use_mamba_kernels", "z_loss_coefficient",
)  # fmt: skip
MTP_PREFIX = "mtp."  # begins the names of layers that predict further tokens
OF_FALCON = Names(network="feed_forward", before_network="pre_ff_layernorm", last="final_layernorm")
OF_LFM = Names(
    before_attention="operator_norm",
    query_norm="self_attn.q_layernorm",
    key_norm="self_attn.k_layernorm",
    output="self_attn.out_proj",
    before_network="ffn_norm",
    network="feed_forward",
    gate="w1",
    up="w3",
    down="w2",
    last="embedding_norm",
)
OF_NEMOTRON = Names(
    prefix="backbone.",
    embedding="embeddings",
    before_attention="norm",
    query="mixer.q_proj",
    key="mixer.k_proj",
    value="mixer.v_proj",
    output="mixer.o_proj",
    before_network="norm",
    network="mixer",
    last="norm_f",
    mtp_prefix=MTP_PREFIX,
)
OF_NEMOTRON_MAMBA = recurrent_sublayers.MambaNames(
    heads="mamba_num_heads",
    features="mamba_head_dim",
    groups="n_groups",
    size="ssm_state_size",
    taps="conv_kernel",
    input_bias="use_bias",
    output_bias="use_bias",
    tap_bias="use_conv_bias",
)


def mix_kinds(recipes: Mapping[str, Recipe], kinds: Sequence[str], depth: int) -> Recipe:
    """Return a recipe whose layers are of several kinds, each by the recipe of its kind."""
    named = [OLDER_KINDS.get(kind, kind) for kind in kinds]
    require_config(
        len(named) == depth and set(named) <= set(recipes),
        f"{len(named)} layers of {sorted(set(named))}",
        f"{depth} of {' or '.join(recipes)}",
        "Other kinds are not known.",
    )
    layers = tuple(recipes[kind] for kind in named)
    return layers[0]._replace(layers=layers)


def _dense_in(recipe: Recipe, numbers: Collection[int]) -> Recipe:
    """Return a recipe in which the layers of these indices have a dense MLP."""
    layers = tuple(
        layer._replace(network=sublayers.gated_mlp) if k in numbers else layer
        for k, layer in enumerate(recipe.layers)
    )
    return layers[0]._replace(layers=layers)


def qwen3_next(config: Configuration) -> Recipe:
    """Qwen3-Next: gated delta rules, every fourth layer gated attention; experts in most layers."""
    step = config.get_int("decoder_sparse_step", 1)
    normalised = config.get_flag("norm_topk_prob", True)
    mixture = _shared_mixture(config, count=512, top=10, normalised=normalised)
    recipe = _qwen(config, mixture, recurrent_sublayers.qwen3_next_matrices)
    depth = recipe.sizes.depth
    only = config.get_layers("mlp_only_layers", depth)
    return _dense_in(recipe, {k for k in range(depth) if k in only or (k + 1) % step})


def qwen3_5_text(config: Configuration) -> Recipe:
    """Qwen 3.5 and 3.6: gated delta rules, and every fourth layer gated attention."""
    return _qwen(config, sublayers.gated_mlp, recurrent_sublayers.qwen3_5_matrices)


def qwen3_5_moe_text(config: Configuration) -> Recipe:
    """Qwen 3.5 and 3.6 with experts beside a shared one, which has a gate."""
    config.refuse(norm_topk_prob=True, mlp_only_layers=[], decoder_sparse_step=1)
    mixture = _shared_mixture(config, count=256, top=8, normalised=True)
    return _qwen(config, mixture, recurrent_sublayers.qwen3_5_matrices)


def _qwen(config: Configuration, network: Callable[..., Any], matrices: Callable) -> Recipe:
    """Return the recipe of a Qwen with gated delta rules and, in some layers, gated attention."""
    config.refuse(
        attention_bias=False,
        attn_output_gate=True,
        output_gate_type="swish",
        use_sliding_window=False,
    )
    config.ignore(*UNUSED, "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
    sizes = sizes_of(config, head_dim=256)
    attention = llama_like(
        config,
        sizes,
        rotary_masks(config, sizes, default_part=0.25),
        network=network,
        norm=sublayers.unit_offset_rms_norm,
        head_norm=sublayers.shared_head_norm,
        projections=sublayers.gated_queries,
        biases=Biases(),
        names=Names(mtp_prefix=MTP_PREFIX),
    )
    delta = recurrent_sublayers.gated_delta(
        recurrent_sublayers.delta_sizes(config, (16, 32, 128, 128)), matrices
    )
    usual = full_every(config.get_int("full_attention_interval", 4), sizes.depth, LINEAR)
    recipes = {FULL: attention, LINEAR: attention._replace(attention=delta)}
    return mix_kinds(recipes, config.get_texts("layer_types") or usual, sizes.depth)


def _shared_mixture(
    config: Configuration, *, count: int, top: int, normalised: bool
) -> expert_sublayers.Mixture:
    """Return Qwen's experts beside a shared one behind a gate, by options with these defaults."""
    config.ignore("num_local_experts")
    count = config.get_int("num_experts", count)
    return expert_sublayers.Mixture(
        count,
        config.get_int("moe_intermediate_size", 512),
        Routing(expert_sublayers.read_top(config, count, top), normalised=normalised),
        expert_sublayers.fused_or_separate,
        shared=("shared_expert", config.get_int("shared_expert_intermediate_size", 512)),
        shared_gate="shared_expert_gate",
    )


def olmo_hybrid(config: Configuration) -> Recipe:
    """OLMo Hybrid: gated delta rules, and every fourth layer attention as in OLMo 2."""
    training_options = "a_log_min", "a_log_max", "dt_min", "dt_max", "dt_init_floor"
    config.ignore(*(f"linear_{name}" for name in training_options))
    sizes = sizes_of(config, norm_eps=1e-6)
    rope = rope_options(config)
    rotates = "rope_theta" not in rope or rope["rope_theta"] is not None
    masks = rotary_masks(config, sizes) if rotates else sizes.depth * (AttentionMask(),)
    attention = llama_like(
        config,
        sizes,
        masks,
        names=Names(**AFTER),
        norm=_renamed_rms_norm,
        head_norm=sublayers.across_heads,
    )
    heads = sizes.heads
    usual_size = int(0.75 * sizes.width / config.get_int_or("linear_num_key_heads", heads))
    size = config.get_int_or("linear_key_head_dim", usual_size)
    twice = 2.0 if config.get_flag("linear_allow_neg_eigval", True) else 1.0
    delta = recurrent_sublayers.gated_delta(
        recurrent_sublayers.delta_sizes(config, (heads, heads, size, 2 * size)),
        recurrent_sublayers.olmo_matrices,
        norm="o_norm",
        norm_eps=1e-5,
        output="o_proj",
        largest_write=twice,
    )
    usual = full_every(min(4, sizes.depth), sizes.depth, LINEAR)  # one at least
    recipes = {FULL: attention, LINEAR: attention._replace(attention=delta, names=Names())}
    return mix_kinds(recipes, config.get_texts("layer_types") or usual, sizes.depth)


def _renamed_rms_norm(read: Reader, name: str, width: int, norm_eps: float) -> Norm:
    """Read an RMS norm by its newer name in OLMo Hybrid's files, or else by the usual one."""
    renamed = name.replace("input_layernorm", "attention_layer_norm")
    renamed = renamed.replace("post_attention_layernorm", "feedforward_layer_norm")
    there = read.has(f"{renamed}.weight")
    return sublayers.rms_norm(read, renamed if there else name, width, norm_eps)


def nemotron_h(config: Configuration) -> Recipe:
    """Nemotron 3 and Nemotron-H: each layer is Mamba-2, attention, an MLP or experts."""
    kinds = config.get_texts("layers_block_type") or config.get_texts("layer_types")
    pattern = config.get("hybrid_override_pattern")
    if not kinds:
        is_supported = isinstance(pattern, str) and set(pattern) <= set(PATTERN)
        config.require("hybrid_override_pattern", pattern, is_supported, "of M, E, *, -")
        kinds = [PATTERN[letter] for letter in str(pattern)]
    config.refuse(
        num_hidden_layers=len(kinds),
        mamba_proj_bias=False,
        sliding_window=None,
        attention_bias=False,
        n_shared_experts=1,
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
    )
    config.ignore(
        *UNUSED,
        PART,
        "rope_theta",
        "mtp_hybrid_override_pattern",
        "mtp_layers_block_type",
        "num_nextn_predict_layers",
        "num_local_experts",
        "moe_shared_expert_overlap",
        "rescale_prenorm_residual",
        "residual_in_fp32",
    )
    stated = config.with_defaults(num_hidden_layers=len(kinds))
    sizes = sizes_of(stated, SizeNames(norm_eps="layer_norm_epsilon"), norm_eps=1e-5, head_dim=128)
    attention = llama_like(
        config,
        sizes,
        sizes.depth * (AttentionMask(),),
        act="mlp_hidden_act",
        activation="relu2",
        names=OF_NEMOTRON,
        network=None,
        biases=Biases(mlp=config.get_flag("mlp_bias")),
    )
    mamba = recurrent_sublayers.mamba_sizes(
        config, None, OF_NEMOTRON_MAMBA, features=64, groups=8, size=128
    )
    # As in transformers, which reads no other limits, the least step is that of initialisation.
    lowest, highest = recurrent_sublayers.read_rate_limits(config)
    # Some files write 1e308 for infinity.
    unlimited = lowest == 0 and highest > 1e300
    require_config(unlimited, f"time_step_limit from {lowest} to {highest}", "from 0 to infinity")
    limits = config.get_positive("time_step_min", 0.001), math.inf
    activation = ACTIVATIONS[config.get_choice("mamba_hidden_act", ACTIVATIONS, "silu")]
    mixer = recurrent_sublayers.mamba2(mamba, "mixer", limits, activation)
    network = attention._replace(attention=None, network=sublayers.plain_mlp)
    recipes = {FULL: attention, MLP: network, LINEAR: attention._replace(attention=mixer)}
    if MOE in kinds:
        recipes[MOE] = network._replace(network=_nemotron_experts(config, attention))
    return mix_kinds(recipes, kinds, sizes.depth)


def _nemotron_experts(config: Configuration, recipe: Recipe) -> expert_sublayers.Mixture:
    """Return Nemotron's experts, in a latent space if ``moe_latent_size`` says so."""
    latent = config.get("moe_latent_size")
    if latent is not None:
        config.refuse(mlp_bias=False)
        latent = "fc1_latent_proj", "fc2_latent_proj", config.get_int("moe_latent_size")
    routing = by_sigmoids(config, top=2, factor=1.0)
    count = config.get_int("n_routed_experts", 8)
    expert_sublayers.require_open(routing, count)
    shared = "shared_experts", config.get_int("moe_shared_expert_intermediate_size", 7688)
    return expert_sublayers.Mixture(
        count,
        config.get_int("moe_intermediate_size", 7688),
        routing,
        expert_sublayers.ByExpert(None, "up_proj", "down_proj"),
        latent=latent,
        shared=shared,
        preference="gate.e_score_correction_bias",
        combine=recipe.activation,
        read_shared=sublayers.plain_mlp,
    )


def granitemoehybrid(config: Configuration) -> Recipe:
    """Granite 4: Granite whose layers may be Mamba-2, with experts beside a shared MLP or none."""
    config.refuse(normalization_function="rmsnorm")
    config.ignore(*UNUSED, "init_method")
    sizes = sizes_of(config)
    kind = config.get("position_embedding_type")
    kinds = (None, "nope", "rope")
    config.require("position_embedding_type", kind, kind in kinds, "nope or rope")
    config.ignore("rope_theta", "rope_scaling", "rope_parameters")  # beside nope
    masks = sizes.depth * (AttentionMask(),) if kind != "rope" else rotary_masks(config, sizes)
    shared = config.get_int("shared_intermediate_size", 1024)
    names = OF_GRANITE
    count = config.get_int("num_local_experts", 8, least=0)
    if count:
        network = granite_experts(config, sizes, shared)
    else:
        network = sublayers.fused_gated_mlp
        names = names._replace(network="shared_mlp")
        sizes = sizes._replace(intermediate_size=shared)
    attention = llama_like(
        config, sizes, masks, names=names, network=network, **multipliers(config)
    )
    kinds = config.get_texts("layer_types") or sizes.depth * [LINEAR]
    return mix_kinds(_with_mamba(config, attention), kinds, sizes.depth)


def bamba(config: Configuration) -> Recipe:
    """Bamba: Mamba-2, in some layers attention with half of each head rotated."""
    config.refuse(partial_rotary_factor=0.5)
    config.ignore(*UNUSED)
    sizes = sizes_of(config, norm_eps=1e-5)
    config.refuse(attn_rotary_emb=sizes.head_dim // 2)
    masks = rotary_masks(config, sizes, default_part=0.5)
    attention = llama_like(config, sizes, masks, names=OF_FALCON)
    full = config.get_layers("attn_layer_indices", sizes.depth)
    kinds = [FULL if k in full else LINEAR for k in range(sizes.depth)]
    return mix_kinds(_with_mamba(config, attention), kinds, sizes.depth)


def _with_mamba(config: Configuration, attention: Recipe) -> dict[str, Recipe]:
    """Return the recipes of attention layers, and of layers with Mamba-2 in its place."""
    inner = config.get_int("mamba_expand", 2) * attention.sizes.width
    mamba = recurrent_sublayers.mamba2(
        recurrent_sublayers.mamba_sizes(config, inner),
        "mamba",
        recurrent_sublayers.read_rate_limits(config),
        attention.activation,
    )
    return {FULL: attention, LINEAR: attention._replace(attention=mamba)}


def falcon_h1(config: Configuration) -> Recipe:
    """Falcon-H1: attention and Mamba-2 side by side in every layer, with multipliers."""
    config.refuse(mamba_use_mlp=True, attn_layer_indices=None)
    config.ignore(*UNUSED, "mlp_expansion_factor")
    sizes = sizes_of(config, norm_eps=1e-5)

    def factor(name: str) -> float:
        """Read one multiplier, by default one."""
        return config.get_positive(f"{name}_multiplier", 1.0)

    gate, down = _factors(config, "mlp_multipliers", 2)
    recipe = llama_like(
        config,
        sizes,
        names=OF_FALCON,
        embedding_scale=factor("embedding"),
        logit_scale=factor("lm_head"),
        scale=factor("key") * sizes.head_dim**-0.5,
    )
    expanded = config.get_int("mamba_expand", 2) * sizes.width
    inner = config.with_defaults(mamba_d_ssm=1024).get_int_or("mamba_d_ssm", expanded)
    names = recurrent_sublayers.MambaNames(output_bias="projectors_bias")
    gate_z, value_x, key_b, query_c, rate_dt = _factors(config, "ssm_multipliers", 5)
    mamba = recurrent_sublayers.mamba2(
        recurrent_sublayers.mamba_sizes(config, inner, names),
        "mamba",
        recurrent_sublayers.read_rate_limits(config),
        recipe.activation,
        head_norm=config.get_flag("mamba_rms_norm"),
        norm_before_gate=config.get_flag("mamba_norm_before_gate", True),
        factors=recurrent_sublayers.MambaFactors(
            inside=factor("ssm_in"),
            gate=gate_z,
            value=value_x,
            key=key_b,
            query=query_c,
            rate=rate_dt,
            outside=factor("ssm_out"),
        ),
    )
    before = factor("attention_in")
    after = multiplied(factor("attention_out"))

    def both(read: Reader, at: str, recipe: Recipe, mask: Any) -> SumOfFields:
        """Read attention and Mamba-2 of one layer, whose outputs are added."""
        attention = sublayers.read_attention(read, at, recipe, mask)
        norm = jax.tree.map(lambda scale: before * scale, attention.norm)
        attention = replace(attention, norm=norm, output_norm=after)
        return SumOfFields((mamba(read, at, recipe, mask), attention))

    def network(read: Reader, at: str, recipe: Recipe, norm: Norm, _: Norm | None) -> Field:
        """Read a gated MLP whose output is multiplied."""
        return sublayers.gated_mlp(read, at, recipe, norm, multiplied(down))

    activation = recipe.activation if gate == 1 else Scaled(recipe.activation, gate)
    return recipe._replace(attention=both, network=network, activation=activation)


def multiplied(factor: float) -> Norm | None:
    """Return a map that multiplies a token's state by a factor, or None for the factor one."""
    return None if factor == 1 else Scaled(eqx.nn.Identity(), outside=factor)


def _factors(config: Configuration, name: str, count: int) -> list[float]:
    """Read a list of positive multipliers; return ones where the option is absent."""
    stated = config.get(name)
    if stated is None:
        return count * [1.0]
    config.require(
        name, stated, isinstance(stated, list) and len(stated) == count, f"{count} positive numbers"
    )
    return [Configuration({name: number}).get_positive(name) for number in stated]


def lfm2(config: Configuration) -> Recipe:
    """LFM2: short convolutions between two gates, in some layers attention."""
    sizes = sizes_of(config, SizeNames(norm_eps="norm_eps"), norm_eps=1e-5)
    config.refuse(
        num_heads=sizes.heads,
        block_dim=sizes.width,
        conv_dim=sizes.width,
        conv_dim_out=sizes.width,
        block_norm_eps=sizes.norm_eps,
        block_use_swiglu=True,
        use_pos_enc=True,
    )
    config.ignore(
        "block_mlp_init_scale",
        "block_out_init_scale",
        "block_use_xavier_init",
        "conv_use_xavier_init",
    )
    hidden = config.get_int_or("block_ff_dim", sizes.intermediate_size)
    if config.get_flag("block_auto_adjust_ff_dim", True):
        factor = config.get_positive_or("block_ffn_dim_multiplier", 1.0)
        hidden = int(factor * int(2 * hidden / 3))
        multiple = config.get_int("block_multiple_of", 256)
        hidden = -(-hidden // multiple) * multiple
    config.ignore("block_ffn_dim_multiplier", "block_multiple_of")
    sizes = sizes._replace(intermediate_size=hidden)
    full = config.get_layers("full_attn_idxs", sizes.depth, range(sizes.depth))
    usual = [FULL if k in full else CONV for k in range(sizes.depth)]
    recipes = _with_convolutions(config, sizes, sublayers.gated_mlp)
    return mix_kinds(recipes, config.get_texts("layer_types") or usual, sizes.depth)


def lfm2_moe(config: Configuration) -> Recipe:
    """LFM2 with experts in all layers but the first."""
    sizes = sizes_of(config, SizeNames(norm_eps="norm_eps"), norm_eps=1e-5)
    count = config.get_int("num_experts", 32)
    routing = Routing(
        expert_sublayers.read_top(config, count, 4),
        "sigmoid",
        config.get_flag("norm_topk_prob", True),
        config.get_positive("routed_scaling_factor", 1.0),
        epsilon=1e-6,
    )
    biased = config.get_flag("use_expert_bias", True)
    mixture = expert_sublayers.Mixture(
        count,
        config.get_int("moe_intermediate_size", 1792),
        routing,
        expert_sublayers.ByExpert("w1", "w3", "w2"),
        preference="expert_bias" if biased else None,
    )
    recipes = _with_convolutions(config, sizes, mixture)
    recipe = mix_kinds(recipes, config.get_texts("layer_types"), sizes.depth)
    return _dense_in(recipe, range(config.get_int("num_dense_layers", 2, least=0)))


def _with_convolutions(
    config: Configuration, sizes: Sizes, network: Callable[..., Any]
) -> dict[str, Recipe]:
    """Return the recipes of attention with norms of heads, and of a short convolution."""
    attention = llama_like(
        config,
        sizes,
        rotary_masks(config, sizes, default=1e6),
        names=OF_LFM,
        biases=Biases(),
        network=network,
        activation=jax.nn.silu,
        head_norm=sublayers.shared_head_norm,
    )
    tied = config.get_flag("tie_embedding", config.get_flag("tie_word_embeddings", True))
    attention = attention._replace(tied=tied)
    biased = config.get_flag("conv_bias")
    conv = recurrent_sublayers.short_convolution(config.get_int("conv_L_cache", 3), biased)
    return {FULL: attention, CONV: attention._replace(attention=conv)}
