"""What options of other families say of a network, by its recipe.

A file may keep options of the family from which its own came: one that says what the network does
anyway is accepted, with any other value refused.
"""

from collections.abc import Mapping
from typing import Any

from lim_jax.checkpoints import sublayers
from lim_jax.checkpoints.activations import ACTIVATIONS
from lim_jax.checkpoints.expert_sublayers import Mixture
from lim_jax.checkpoints.options import Configuration
from lim_jax.checkpoints.recipe import Recipe
from lim_jax.checkpoints.rope_config import CHUNKED, FULL, SLIDING
from lim_jax.network.experts import Routing
from lim_jax.network.masks import AttentionMask
from lim_jax.network.positions import Alibi, Tempered
from lim_jax.network.steps import euler

Values = Mapping[str, tuple[Any, ...]]
# The families' names of each size of `recipe.Sizes`.
SIZES = {
    "width": ("hidden_size", "n_embd", "n_embed", "word_embed_proj_dim", "d_model"),
    "depth": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "num_query_groups"),
    "norm_eps": (
        "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps",
        "norm_epsilon",
    ),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
}  # fmt: skip
GATED = sublayers.gated_mlp, sublayers.fused_gated_mlp
ACTS = "hidden_act", "hidden_activation", "activation", "activation_function", "mlp_hidden_act"
# What every family does that has no option for it.
USUAL = {
    "_remove_final_layer_norm": False, "apply_residual_connection_post_layernorm": False,
    "attention_k_eq_v": False, "attention_value_scale": 1, "enable_moe_block": False, "ep_size": 1,
    "full_attn_mod": 1, "hidden_size_per_layer_input": 0, "interpolate_factor": 1,
    "layer_norm_elementwise_affine": True, "new_decoder_architecture": False,
    "num_kv_shared_layers": 0, "position_embedding_xdrope": False,
    "scale_attn_by_inverse_layer_idx": False, "use_bidirectional_attention": False,
    "use_cla": False, "use_double_wide_mlp": False, "use_mrope": False,
}  # fmt: skip
COUNTS = "num_experts", "num_local_experts", "n_routed_experts"
SHARED_COUNTS = "n_shared_experts", "num_shared_experts"
SHARED_SIZES = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
TOPS = "num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_topk"
# Options of a router, which say nothing where a network has no experts.
ROUTER_OPTIONS = (
    "decoder_sparse_step", "first_k_dense_replace", "mlp_only_layers", "moe_intermediate_size",
    "moe_layer_freq", "n_group", "norm_topk_prob", "num_dense_layers", "route_norm", "route_scale",
    "routed_scaling_factor", "score_func", "scoring_func", "topk_group", "topk_method",
    "use_routing_bias",
)  # fmt: skip


def implied_options(config: Configuration, recipe: Recipe) -> Values:
    """Return the values with which options would describe what a recipe's network does."""
    sizes = recipe.sizes
    network = recipe.network
    described: dict[str, Any] = dict(USUAL)
    described |= {name: getattr(sizes, size) for size, names in SIZES.items() for name in names}
    described |= _attention_options(recipe) | _residual_options(recipe)
    if isinstance(network, Mixture):
        described |= _mixture_options(network)
    else:
        described |= _dense_options(config)
    implied: dict[str, tuple[Any, ...]] = {name: (value,) for name, value in described.items()}
    acts = tuple(name for name, act in ACTIVATIONS.items() if act is recipe.activation)
    if "silu" in acts and network in GATED:
        acts += ("swiglu",)
    return {**implied, **dict.fromkeys(ACTS, acts), **_window_options(config, recipe.masks)}


def _attention_options(recipe: Recipe) -> dict[str, Any]:
    """Return the values of options that describe attention: biases, norms, positions, caps."""
    biases = recipe.biases
    sizes = recipe.sizes
    names = recipe.names
    rotary_dim = max(mask.rotary_dim for mask in recipe.masks)
    positions = [mask.positions for mask in recipe.masks]
    linear = any(isinstance(layer_positions, Alibi) for layer_positions in positions)
    normed = recipe.head_norm is not None
    gated = names.output_gate is not None
    if rotary_dim:
        kind = "rope"
    elif linear:
        kind = "alibi"
    elif names.positions:
        kind = "absolute"
    else:
        kind = "nope"
    implied = {
        "alibi": linear, "attention_bias": biases.qkv, "qkv_bias": biases.qkv,
        "use_qkv_bias": biases.qkv, "attention_out_bias": biases.attention_output,
        "mlp_bias": biases.mlp, "lm_head_bias": biases.head, "qk_layernorm": normed,
        "use_qk_norm": normed, "multi_query": sizes.num_kv_heads == 1, "rotary": rotary_dim > 0,
        "use_rotary_pos_emb": rotary_dim > 0, "rotary_dim": rotary_dim,
        "partial_rotary_factor": rotary_dim / sizes.head_dim,
        "rotary_pct": rotary_dim / sizes.head_dim, "rope_interleave": recipe.rope_interleaved,
        "rope_interleaved": recipe.rope_interleaved,
        "position_embedding_type": kind,
        "attn_temperature_tuning": any(isinstance(p, Tempered) for p in positions),
        "attn_output_gate": gated, "attention_output_gate": gated,
        "add_full_attention_sink_bias": names.sinks is not None,
        "add_swa_attention_sink_bias": names.sinks is not None,
        "attn_logit_softcapping": recipe.cap,
    }  # fmt: skip
    if len({biases.qkv, biases.attention_output, biases.mlp}) == 1:
        implied |= dict.fromkeys(("use_bias", "bias", "enable_bias"), biases.mlp)
    if recipe.attention is sublayers.read_attention:
        scale = sizes.head_dim**-0.5 if recipe.scale is None else recipe.scale
        implied |= {"attention_multiplier": scale, "query_pre_attn_scalar": scale**-2}
        implied |= {"v_head_dim": sizes.head_dim, "scale_attn_weights": recipe.scale is None}
    return implied


def _residual_options(recipe: Recipe) -> dict[str, Any]:
    """Return the values of options that describe embeddings, the residual path and the head."""
    parallel = recipe.step is euler
    return {
        "parallel_attn": parallel,
        "use_parallel_block": parallel,
        "use_parallel_residual": parallel,
        "residual_multiplier": recipe.increment,
        "do_layer_norm_before": recipe.names.before_attention is not None,
        "embedding_multiplier": recipe.embedding_scale,
        "mup_enabled": recipe.embedding_scale != 1,
        "final_logit_softcapping": recipe.logit_cap,
        "logit_scale": recipe.logit_scale,
        "logits_scaling": 1 / recipe.logit_scale,
        "use_embedding_sharing": recipe.tied,
        "num_nextn_predict_layers": recipe.num_mtp_layers,
        "num_mtp_modules": recipe.num_mtp_layers,
        "mtp_num_hidden_layers": recipe.num_mtp_layers,
        "use_mtp": recipe.num_mtp_layers > 0,
        "use_gemma_norm": recipe.norm is sublayers.unit_offset_rms_norm,
    }


def _window_options(config: Configuration, masks: tuple[AttentionMask, ...]) -> Values:
    """Return the values of options about windows; some may have any if no layer slides."""
    kinds = list(map(_kind_of, masks))
    windows = {mask.window for mask in masks} - {None}
    rotated = [int(mask.rotary_dim > 0) for mask in masks]
    implied = {"use_sliding_window": (bool(windows),), "sliding_window": tuple(windows)}
    implied |= {"layer_types": (kinds,), "no_rope_layers": (rotated,)}
    if windows:
        return implied
    implied["max_window_layers"] = (config.options.get("max_window_layers"),)
    if config.options.get("use_sliding_window") is False:
        implied["sliding_window"] = (config.options.get("sliding_window"),)
    return implied


def _kind_of(mask: AttentionMask) -> str:
    """Return the kind of a layer, as ``layer_types`` names it, by its mask."""
    if mask.window is not None:
        return SLIDING
    return FULL if mask.chunk is None else CHUNKED


def _dense_options(config: Configuration) -> dict[str, Any]:
    """Return the values of options of a network without experts; a router's may have any value."""
    implied: dict[str, Any] = dict.fromkeys((*COUNTS, *SHARED_COUNTS, *SHARED_SIZES, *TOPS), 0)
    if not any(config.options.get(name) for name in COUNTS):
        implied |= {name: config.options.get(name) for name in (*TOPS, *ROUTER_OPTIONS)}
    return implied


def _mixture_options(mixture: Mixture) -> dict[str, Any]:
    """Return the values of options that describe experts and how they are chosen."""
    routing = mixture.routing
    dense = mixture.dense_layers
    _, shared = mixture.shared or ("", 0)
    first = dense == frozenset(range(len(dense)))  # the first layers are dense, or none
    count = shared // mixture.intermediate_size
    implied = {
        **dict.fromkeys(COUNTS, mixture.num_experts), **dict.fromkeys(TOPS, routing.top),
        **dict.fromkeys(SHARED_COUNTS, count), **dict.fromkeys(SHARED_SIZES, shared),
        "moe_intermediate_size": mixture.intermediate_size, "mlp_only_layers": sorted(dense),
        "n_group": routing.groups, "num_expert_groups": routing.groups,
        "topk_group": routing.topk_group, "num_limited_groups": routing.topk_group,
        "use_routing_bias": mixture.preference is not None,
        "first_k_dense_replace": len(dense) if first else None,
        "num_dense_layers": len(dense) if first else None,
        "decoder_sparse_step": 1, "moe_layer_freq": 1,
    }  # fmt: skip
    if isinstance(routing, Routing):
        implied |= dict.fromkeys(("norm_topk_prob", "route_norm"), routing.normalised)
        implied |= dict.fromkeys(("routed_scaling_factor", "route_scale"), routing.factor)
        implied |= dict.fromkeys(("scoring_func", "score_func"), routing.scores)
    return implied
