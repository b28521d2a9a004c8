"""Published configurations made tiny: sizes are reduced, every other option is kept."""

from collections.abc import Mapping
from typing import Any

Options = Mapping[str, Any]
SIZES = {
    "vocab_size": 37, "hidden_size": 64, "intermediate_size": 40, "moe_intermediate_size": 9,
    "intermediate_size_mlp": 20, "dense_intermediate_size": 20, "head_dim": 16,
    "global_head_dim": 32, "v_head_dim": 5, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "qk_head_dim": 10, "q_lora_rank": 8, "kv_lora_rank": 7, "moe_latent_size": 10,
    "shared_expert_intermediate_size": 12, "shared_intermediate_size": 12, "share_expert_dim": 12,
    "moe_shared_expert_intermediate_size": 18, "linear_key_head_dim": 8,
    "linear_value_head_dim": 6, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "mamba_num_heads": 4, "mamba_head_dim": 6, "n_groups": 2, "ssm_state_size": 5,
    "index_head_dim": 8, "index_n_heads": 2, "num_attention_heads": 4, "num_experts": 16,
    "num_local_experts": 16, "n_routed_experts": 16, "num_experts_per_tok": 3,
    "experts_per_token": 3, "top_k_experts": 3, "vocab_size_per_layer_input": 37,
    "num_global_key_value_heads": 1,
}  # fmt: skip
# Of what reads images: as small as it may be.
IMAGES = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 64,
    "num_position_embeddings": 16, "patch_size": 2, "num_hidden_layers": 1,
    "num_attention_heads": 2, "head_dim": 8, "global_head_dim": 8, "position_embedding_size": 8,
    "num_key_value_heads": 2, "vt_num_hidden_layers": 1, "vt_hidden_size": 16,
    "vt_intermediate_size": 8, "vt_num_attention_heads": 2, "mm_hidden_size": 16,
    "text_hidden_size": 64, "init_pos_emb_height": 4, "init_pos_emb_width": 4,
}  # fmt: skip


def tiny(config: Options) -> dict[str, Any]:
    """Return the same options with small sizes, and as many layers as show each kind."""
    small = dict(config)
    if isinstance(inner := config.get("text_config"), dict):
        small["text_config"] = tiny(inner)
    if isinstance(images := config.get("vision_config"), dict):
        small["vision_config"] = images | {n: IMAGES[n] for n in IMAGES if images.get(n)}
        if images.get("deepstack_visual_indexes"):
            small["vision_config"]["deepstack_visual_indexes"] = [0]
    small |= {name: size for name, size in SIZES.items() if config.get(name)}
    heads = config.get("num_attention_heads")
    groups = config.get("num_key_value_heads")
    if groups:
        small["num_key_value_heads"] = 4 if groups == heads else min(groups, 2)
    _with_rotated_features(config, small)
    lists = {name: value for name, value in config.items() if _is_of_layers(config, value)}
    depth = max(4, int(config.get("first_k_dense_replace") or 0) + 1, *map(_shown, lists.values()))
    small |= {name: value[:depth] for name, value in lists.items()}
    if config.get("num_hidden_layers"):
        small["num_hidden_layers"] = depth
    return small


def _with_rotated_features(config: Options, small: dict[str, Any]) -> None:
    """Rotate the same part of smaller heads, and give images' sections as many pairs."""
    head_size = config.get("head_dim") or config.get("hidden_size", 0) // max(
        config.get("num_attention_heads", 1), 1
    )
    if config.get("head_dim") and config.get("qk_rope_head_dim"):  # a name of one of its parts
        for name in ("qk_rope_head_dim", "qk_nope_head_dim"):
            if config.get(name) == config["head_dim"]:
                small["head_dim"] = SIZES[name]
    if config.get("rotary_dim"):
        small["rotary_dim"] = 16 * config["rotary_dim"] // head_size
    for name in ("rope_scaling", "rope_parameters"):
        rope = config.get(name)
        if isinstance(rope, dict) and rope.get("mrope_section"):
            part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
            pairs = int(16 * part) // 2
            third = pairs // 3
            small[name] = {**rope, "mrope_section": [pairs - 2 * third, third, third]}


def _depth(config: Options) -> int:
    listed = config.get("layers_block_type") or ()
    return config.get("num_hidden_layers") or len(listed)


def _is_of_layers(config: Options, value: Any) -> bool:
    """Tell whether an entry for each layer stands there, and perhaps some for further tokens."""
    depth = _depth(config)
    listed = isinstance(value, list) or (isinstance(value, str) and set(value) <= set("ME*-"))
    return listed and depth > 8 and 0 <= len(value) - depth <= 4


def _shown(kinds: Any) -> int:
    """Count how many of the first layers show each kind."""
    return max(kinds.index(kind) for kind in set(kinds)) + 1
