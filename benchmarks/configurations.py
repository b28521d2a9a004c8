"""Small networks of every family: each option that changes a number stands in one of them.

Sizes are odd (one group of heads, heads that do not share the width, a vocabulary of 37), and 14
tokens are more than every window and than what a scaled rotary was trained on.
"""

from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9, 7, 30]
LONG_IDS = 5 * IDS  # longer than the chunks in which recurrent layers are computed
# Under every name by which one of the families calls it.
SIZES = {
    "vocab_size": 37,
    **dict.fromkeys(("hidden_size", "n_embd", "word_embed_proj_dim"), 24),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim"), 40),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), 3),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    "num_key_value_heads": 2,
}
NO_WORDS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
DIFFERING = {"sliding_window": 4, "layer_types": LAYERS}
BIASED = {"attention_bias": True, "mlp_bias": True}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
}
GROWING = YARN | {"llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 4}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}
ALPHA = {"rope_type": "dynamic", "rope_theta": 1000.0, "alpha": 50.0, "factor": 1.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.0, 3.0, 5.0],
    "original_max_position_embeddings": 8,
}
LONG_OF_TWO = LONG | {"short_factor": [1.0, 1.5], "long_factor": [1.0, 3.0]}
GRANITES = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.2,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6,
    "v_head_dim": 5, "moe_intermediate_size": 9, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "num_key_value_heads": 4, "first_k_dense_replace": 1,
}  # fmt: skip
GATED_DELTA = {
    "max_position_embeddings": 96,
    "linear_key_head_dim": 10, "linear_value_head_dim": 9, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
SHARED_EXPERT = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 9,
    "shared_expert_intermediate_size": 7,
}
MAMBA2 = {
    "max_position_embeddings": 96,
    "mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 5, "mamba_d_head": 8,
    "time_step_limit": [0.1, 0.5],
}  # fmt: skip
FALCON_H1 = {
    "max_position_embeddings": 96,
    "head_dim": 8, "mamba_d_ssm": 20, "mamba_n_heads": 4, "mamba_d_head": 5, "mamba_n_groups": 2,
    "mamba_d_state": 6, "lm_head_multiplier": 0.3, "embedding_multiplier": 2.0,
    "mlp_multipliers": [0.7, 1.3], "key_multiplier": 0.4, "attention_out_multiplier": 0.9,
    "attention_in_multiplier": 1.1, "ssm_multipliers": [0.35, 0.25, 0.36, 0.5, 0.37],
    "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.23,
}  # fmt: skip
NEMOTRON_H = {
    "max_position_embeddings": 96,
    "head_dim": 8, "ssm_state_size": 6, "mamba_num_heads": 4, "mamba_head_dim": 5, "n_groups": 2,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 9,
    "moe_shared_expert_intermediate_size": 7,
}  # fmt: skip
CONVOLVED = {"max_position_embeddings": 96, "layer_types": ["conv", "full_attention", "conv"]}
EXPERTS_OF_LFM = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 9}
DENSE_LATENT = {name: LATENT[name] for name in LATENT if "rank" in name or "head" in name}
DELTA_OF_KIMI = DENSE_LATENT | {
    "num_experts": 8,
    "num_experts_per_token": 3,
    "moe_intermediate_size": 9,
    "max_position_embeddings": 96,
}
LIGHTNING = EXPERTS | {
    "max_position_embeddings": 96,
    "block_size": 32,
    "layer_types": GATED_DELTA["layer_types"],
}
NORMED_PATH = {
    "full_attn_alpha_factor": 1.7, "full_attn_beta_factor": 0.8, "linear_attn_alpha_factor": 2.3,
    "linear_attn_beta_factor": 0.6, "mlp_alpha_factor": 1.4, "mlp_beta_factor": 1.2,
}  # fmt: skip
INDEX = {"index_topk": 14, "index_head_dim": 6, "index_n_heads": 3}
SIGMOIDS = {
    "moe_intermediate_size": 9, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
    "topk_group": 1, "routed_scaling_factor": 1.7,
}  # fmt: skip
GROUPED_EXPERTS = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 3.0}

OF_GEMMA4 = {
    "head_dim": 6,
    "global_head_dim": 8,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
}
OF_DEEPSEEK = (
    LATENT
    | GROUPED_EXPERTS
    | {
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
        "rms_norm_eps": 1e-6,
    }
)


# Of what reads images, by the names of its families.
IMAGES = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 8, "num_heads": 2, "patch_size": 2,
    "out_hidden_size": 24, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
    "num_attention_heads": 2, "num_hidden_layers": 1, "embed_dim": 16, "mlp_ratio": 1,
    "pos_emb_height": 2, "pos_emb_width": 2, "fullatt_block_indexes": [0],
}  # fmt: skip
PIXELS = {
    "model_type": "pixtral", "hidden_size": 16, "intermediate_size": 8, "head_dim": 8,
    "num_attention_heads": 2, "num_hidden_layers": 1, "patch_size": 2, "image_size": 8,
}  # fmt: skip
OF_MINIMAX = {
    "architectures": None, "layer_types": None, "attn_type_list": [0, 1, 0], "postnorm": True,
    "rotary_dim": 6, "shared_intermediate_size": 0, "shared_moe_mode": "sigmoid",
    **dict.fromkeys(NORMED_PATH),
    "layernorm_full_attention_alpha": 1.7, "layernorm_full_attention_beta": 0.8,
    "layernorm_linear_attention_alpha": 2.3, "layernorm_linear_attention_beta": 0.6,
    "layernorm_mlp_alpha": 1.4, "layernorm_mlp_beta": 1.2,
}  # fmt: skip
# What published files say otherwise than transformers saves it: names, and options of others.
PUBLISHED = {
    "kimi_k2": {"model_type": "kimi_k2"},
    "llama": {"internal_version": "7b-alpha", "use_sliding_window": False, "max_window_layers": 3},
    "mimo": {
        "model_type": "mimo", "architectures": ["MiMoForCausalLM"], "attention_bias": True,
        "num_nextn_predict_layers": 1, "use_mrope": False,
    },
    "minimax_m1": OF_MINIMAX | {"model_type": "minimax_m1"},
    "minimax_text_01": OF_MINIMAX | {"model_type": "minimax_text_01"},
    "phi": {"attention_bias": False, "rotary_dim": 4},
    "qwen3_moe, normalised": {
        "qkv_bias": False, "use_qk_norm": True, "shared_expert_intermediate_size": 0,
    },
}  # fmt: skip


def sections(*pairs: int) -> dict[str, Any]:
    """Return rotary positions of which so many pairs know times, rows and columns of images."""
    return {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": list(pairs)}


def small(family: str, **options: Any) -> PretrainedConfig:
    """Return a configuration of these sizes, as far as the family has them, and options."""
    kind: Any = CONFIG_MAPPING[family]
    sizes = {name: size for name, size in SIZES.items() if name in kind.__dataclass_fields__}
    return kind(**(sizes | NO_WORDS | options))


def with_images(family: str, images: dict[str, Any], text: PretrainedConfig) -> PretrainedConfig:
    """Return a text network beside a small one that reads images."""
    kind: Any = CONFIG_MAPPING[family]
    return kind(text_config=text.to_dict(), vision_config=images, tie_word_embeddings=False)


CONFIGURATIONS = {
    "afmoe": small(
        "afmoe", head_dim=10, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=9,
        num_dense_layers=1, num_shared_experts=2, route_scale=2.8, mup_enabled=True, **DIFFERING,
    ),
    "afmoe, biased": small(
        "afmoe", num_key_value_heads=1, head_dim=6, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=50, num_dense_layers=2, num_shared_experts=1, attention_bias=True,
        sliding_window=5, global_attn_every_n_layers=2, rope_parameters=YARN,
    ),
    "apertus": small(
        "apertus", num_key_value_heads=1, rope_parameters=LLAMA3
    ),
    "arcee": small("arcee", num_key_value_heads=1, head_dim=10),
    "bailing_hybrid": small(
        "bailing_hybrid", **DELTA_OF_KIMI, head_dim=7, first_k_dense_replace=1, **GROUPED_EXPERTS,
        num_mtp_layers=0, layer_group_size=2, rms_norm_eps=1e-6, tie_word_embeddings=True,
        layer_types=GATED_DELTA["layer_types"], rope_parameters=YARN | {"mscale_all_dim": 0.7},
        rope_theta=1000.0,
    ),
    "bailing_hybrid, softplus": small(
        "bailing_hybrid", **DELTA_OF_KIMI | {"q_lora_rank": None}, head_dim=6, kda_safe_gate=False,
        n_group=1, topk_group=1, moe_renormalize=False, num_shared_experts=2, num_mtp_layers=0,
        layer_types=GATED_DELTA["layer_types"], short_conv_kernel_size=3, rms_norm_eps=1e-6,
        first_k_dense_replace=0,
    ),
    "bamba": small(
        "bamba", hidden_size=32, attn_layer_indices=[1], **MAMBA2 | {"mamba_n_heads": 8}
    ),
    "bloom": small("bloom"),
    "bloom, three heads": small("bloom", n_head=3),
    "cohere": small("cohere"),
    "cohere, normed heads": small("cohere", use_qk_norm=True, logit_scale=0.3),
    "cohere2": small("cohere2", head_dim=10, **DIFFERING),
    "cohere2_moe": small(
        "cohere2_moe", head_dim=10, num_experts=5, num_experts_per_tok=2, num_shared_experts=2,
        first_k_dense_replace=1, prefix_dense_intermediate_size=50, sliding_window=4,
        sliding_window_pattern=2,
    ),
    "cohere2_moe, sigmoids": small(
        "cohere2_moe", num_key_value_heads=1, head_dim=6, num_experts=4, num_experts_per_tok=2,
        num_shared_experts=1, shared_expert_combination_strategy="sum", logit_scale=0.3,
        expert_selection_fn="sigmoid", norm_topk_prob=False, rms_norm_eps=1e-5,
        attention_bias=True, prefix_dense_sliding_window_pattern=2,
        mlp_layer_types=["sparse", "dense", "sparse"], **DIFFERING,
    ),
    "cwm": small("cwm", bos_token_id=1, head_dim=10, sliding_window=5),
    "cwm, given layers": small(
        "cwm", bos_token_id=1, head_dim=6, **DIFFERING, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    ),
    "deepseek_v2": small("deepseek_v2", **LATENT),
    "deepseek_v2, groups": small(
        "deepseek_v2", topk_method="group_limited_greedy", **LATENT | {"q_lora_rank": None},
        **GROUPED_EXPERTS,
    ),
    "deepseek_v3": small("deepseek_v3", **OF_DEEPSEEK),
    "deepseek_v32": small("deepseek_v32", **OF_DEEPSEEK, **INDEX),
    "dots1": small(
        "dots1", num_key_value_heads=1, head_dim=10, **SIGMOIDS, first_k_dense_replace=1,
        n_shared_experts=2, sliding_window=4, max_window_layers=1, attention_bias=True,
    ),
    "ernie4_5": small("ernie4_5", head_dim=8, use_bias=True),
    "ernie4_5_moe": small(
        "ernie4_5_moe", num_key_value_heads=1, moe_num_experts=4, moe_k=2,
        moe_intermediate_size=9, moe_num_shared_experts=2, moe_layer_interval=2,
    ),
    "exaone4": small("exaone4", sliding_window=4, sliding_window_pattern=2),
    "exaone4, full": small(
        "exaone4", sliding_window=None, layer_types=3 * ["full_attention"]
    ),
    "exaone_moe": small(
        "exaone_moe", num_experts=8, num_experts_per_tok=3, moe_intermediate_size=9,
        num_shared_experts=2, sliding_window=4, sliding_window_pattern=2, n_group=2, topk_group=1,
    ),
    "exaone_moe, full": small(
        "exaone_moe", num_key_value_heads=1, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=50, layer_types=3 * ["full_attention"],
        norm_topk_prob=False, routed_scaling_factor=1.7,
        mlp_layer_types=["sparse", "dense", "sparse"],
    ),
    "falcon": small("falcon"),
    "falcon, groups": small("falcon", new_decoder_architecture=True, num_kv_heads=2),
    "falcon, one norm": small(
        "falcon", new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1
    ),
    "falcon, serial": small("falcon", multi_query=False, parallel_attn=False, bias=True),
    "falcon_h1": small("falcon_h1", **FALCON_H1),
    "falcon_h1, normed": small(
        "falcon_h1", mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_proj_bias=True,
        projectors_bias=True, **BIASED, **FALCON_H1,
    ),
    "falcon_h1, normed before gates": small(
        "falcon_h1", mamba_rms_norm=True, mamba_conv_bias=False,
        **FALCON_H1 | {"mamba_d_ssm": None, "mamba_d_head": "auto"},
    ),
    "flex_olmo": small("flex_olmo", num_experts=4, num_experts_per_tok=2),
    "flex_olmo, normalised": small(
        "flex_olmo", num_key_value_heads=1, num_experts=5, num_experts_per_tok=3,
        norm_topk_prob=True, attention_bias=True, rope_parameters=YARN,
    ),
    "gemma": small("gemma", num_key_value_heads=1, head_dim=10),
    "gemma2": small(
        "gemma2", head_dim=8, sliding_window=4, query_pre_attn_scalar=16,
        attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
    ),
    "gemma3_text": small(
        "gemma3_text", head_dim=10, query_pre_attn_scalar=16, **DIFFERING,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": LINEAR,
        },
    ),
    "gemma4_text": small(
        "gemma4_text", **OF_GEMMA4, enable_moe_block=True, num_experts=4, top_k_experts=2,
        moe_intermediate_size=9, attention_k_eq_v=True, num_global_key_value_heads=1,
        final_logit_softcapping=5.0, use_bidirectional_attention="vision",
    ),
    "gemma4_text, dense": small(
        "gemma4_text", **OF_GEMMA4, attention_bias=True, num_global_key_value_heads=1,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": YARN,
        },
    ),
    "glm": small("glm", head_dim=8),
    "glm4": small("glm4", num_key_value_heads=1, head_dim=8),
    "glm4_moe": small(
        "glm4_moe", num_key_value_heads=1, head_dim=12, **SIGMOIDS, use_qk_norm=True,
        attention_bias=True, first_k_dense_replace=2, n_shared_experts=2,
    ),
    "glm4_moe_lite": small(
        "glm4_moe_lite", **OF_DEEPSEEK, mlp_layer_types=["sparse", "dense", "sparse"]
    ),
    "glm_moe_dsa": small("glm_moe_dsa", **OF_DEEPSEEK, **INDEX, index_topk_freq=2),
    "gpt2": small("gpt2"),
    "gpt_bigcode": small("gpt_bigcode"),
    "gpt_bigcode, many key heads": small("gpt_bigcode", multi_query=False),
    "gpt_neo": small(
        "gpt_neo", window_size=4,
        attention_types=[[["global", "local"], 1], [["local"], 1]],
    ),
    "gpt_neox": small("gpt_neox", rotary_pct=0.34),
    "gpt_neox, serial": small("gpt_neox", use_parallel_residual=False, rotary_pct=1.0),
    "gpt_oss": small(
        "gpt_oss", head_dim=8, sliding_window=4, **EXPERTS,
        rope_parameters=YARN | {"truncate": False},
    ),
    "gptj": small("gptj", rotary_dim=4),
    "granite": small("granite", **GRANITES),
    "granitemoe": small("granitemoe", num_key_value_heads=1, **EXPERTS, **GRANITES),
    "granite_swa": small("granite_swa", **DIFFERING, **GRANITES),
    "granite_swa, bases of layers": small(
        "granite_swa", num_key_value_heads=1, sliding_window=5, tie_word_embeddings=False,
        layer_rope_theta=[100.0, 0, 10_000.0], **BIASED,
    ),
    "granitemoehybrid": small(
        "granitemoehybrid", layer_types=GATED_DELTA["layer_types"], num_local_experts=4,
        shared_intermediate_size=11, **MAMBA2, **GRANITES,
    ),
    "granitemoehybrid, without experts": small(
        "granitemoehybrid", layer_types=GATED_DELTA["layer_types"], num_local_experts=0,
        shared_intermediate_size=11, position_embedding_type="rope", mamba_proj_bias=True,
        mamba_conv_bias=False, attention_bias=True, **MAMBA2,
    ),
    "granitemoehybrid, attention alone": small(
        "granitemoehybrid", layer_types=3 * ["full_attention"], num_local_experts=0,
        shared_intermediate_size=11, **MAMBA2, **GRANITES,
    ),
    "granitemoeshared": small(
        "granitemoeshared", num_key_value_heads=1, shared_intermediate_size=11, **EXPERTS,
        **GRANITES,
    ),
    "granitemoeshared, nothing shared": small("granitemoeshared", **EXPERTS, **GRANITES),
    "helium": small("helium", head_dim=6),
    "hunyuan_v1_dense": small("hunyuan_v1_dense", num_key_value_heads=1, head_dim=10),
    "hunyuan_v1_dense, one base": small(
        "hunyuan_v1_dense", head_dim=10, rope_parameters=ALPHA
    ),
    "lfm2": small(
        "lfm2", full_attn_idxs=[1], block_multiple_of=8, max_position_embeddings=96
    ),
    "lfm2, biased": small(
        "lfm2", conv_bias=True, block_auto_adjust_ff_dim=False, tie_word_embeddings=False,
        **CONVOLVED,
    ),
    "lfm2_moe": small("lfm2_moe", num_dense_layers=1, **CONVOLVED, **EXPERTS_OF_LFM),
    "lfm2_moe, scaled": small(
        "lfm2_moe", num_dense_layers=0, use_expert_bias=False, norm_topk_prob=False,
        routed_scaling_factor=1.5, conv_L_cache=4, **CONVOLVED, **EXPERTS_OF_LFM,
    ),
    "hunyuan_v1_moe": small(
        "hunyuan_v1_moe", num_key_value_heads=1, head_dim=10, num_experts=4, moe_topk=2,
        rope_parameters=ALPHA,
    ),
    "hy_v3": small(
        "hy_v3", head_dim=10, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=9,
    ),
    "hy_v3, biased": small(
        "hy_v3", num_key_value_heads=1, head_dim=6, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=50, num_shared_experts=2, router_scaling_factor=1.3,
        attention_bias=True, mlp_layer_types=["sparse", "dense", "sparse"], rope_parameters=YARN,
    ),
    "hyperclovax": small("hyperclovax", num_key_value_heads=1, head_dim=10, **GRANITES, **BIASED),
    "hyperclovax, no norms after": small(
        "hyperclovax", use_post_norm=False, **GRANITES | {"logits_scaling": 0.5}
    ),
    "internlm3": small(
        "internlm3", **BIASED, num_key_value_heads=1, head_dim=8, rms_norm_eps=1e-6
    ),
    "internlm3, dynamic": small(
        "internlm3", max_position_embeddings=8, head_dim=6, rope_parameters=DYNAMIC,
        rms_norm_eps=1e-6,
    ),
    "iquestcoder": small(
        "iquestcoder", **BIASED, num_key_value_heads=1, head_dim=8, rms_norm_eps=1e-6
    ),
    "jais2": small("jais2", num_key_value_heads=1),
    "kimi_k2": small(
        "deepseek_v3", rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}, **LATENT,
        **GROUPED_EXPERTS,
    ),
    "kimi_linear": small(
        "kimi_linear", **DELTA_OF_KIMI | {"q_lora_rank": None}, linear_num_heads=3,
        linear_head_dim=7, layer_types=GATED_DELTA["layer_types"],
    ),
    "kimi_linear, queries of low rank": small(
        "kimi_linear", **DELTA_OF_KIMI, linear_num_heads=2, linear_head_dim=6,
        linear_conv_kernel_dim=3, layer_types=GATED_DELTA["layer_types"], num_expert_group=4,
        topk_group=2, moe_renormalize=False, num_shared_experts=2, routed_scaling_factor=1.7,
    ),
    "llama": small("llama"),
    "llama, tied": small("llama", tie_word_embeddings=True),
    "llama, biased": small("llama", **BIASED, num_key_value_heads=1, head_dim=8),
    "llama, 3": small("llama", rope_parameters=LLAMA3),
    "llama, linear": small("llama", num_key_value_heads=4, rope_parameters=LINEAR),
    "llama, yarn": small("llama", head_dim=10, rope_parameters=YARN),
    "llama, dynamic": small(
        "llama", max_position_embeddings=8, rope_parameters=DYNAMIC
    ),
    "llama4_text": small(
        "llama4_text", num_local_experts=3, num_experts_per_tok=1, intermediate_size_mlp=20,
        attention_chunk_size=5, head_dim=10, floor_scale=4, no_rope_layers=[1, 0, 1],
        interleave_moe_layer_step=2,
    ),
    "mimo": small("qwen2"),
    "minimax": small("minimax", **LIGHTNING, **NORMED_PATH),
    "minimax, window": small(
        "minimax", **LIGHTNING, num_key_value_heads=1, head_dim=10, sliding_window=4,
        rope_parameters=YARN,
    ),
    "minimax_m1": small("minimax", **LIGHTNING, **NORMED_PATH),
    "minimax_text_01": small("minimax", **LIGHTNING, **NORMED_PATH),
    "minicpm3": small("minicpm3", **DENSE_LATENT, dim_model_base=8, scale_emb=3),
    "minicpm3, unscaled": small(
        "minicpm3", **DENSE_LATENT | {"q_lora_rank": None, "v_head_dim": None}, scale_depth=None,
        dim_model_base=None, scale_emb=1, tie_word_embeddings=False, rope_parameters=LONG_OF_TWO,
    ),
    "minimax_m2": small("minimax_m2", **EXPERTS, head_dim=10, rotary_dim=4),
    "ministral": small("ministral", head_dim=6, **DIFFERING),
    "ministral3": small("ministral3", head_dim=10, rope_parameters=GROWING),
    "ministral3, window": small(
        "ministral3", num_key_value_heads=1, head_dim=6, sliding_window=4,
        rope_parameters=GROWING | {"mscale": 1.0, "mscale_all_dim": 0.7},
    ),
    "ministral3, with images": with_images(
        "mistral3", PIXELS, small("ministral3", head_dim=10, rope_parameters=GROWING)
    ),
    "mistral": small("mistral", sliding_window=None),
    "mistral, with images": with_images(
        "llava", PIXELS, small("mistral", num_key_value_heads=1, sliding_window=None, head_dim=10)
    ),
    "mistral, window": small("mistral", num_key_value_heads=1, sliding_window=4, head_dim=10),
    "mixtral": small("mixtral", **EXPERTS),
    "mixtral, window": small("mixtral", num_key_value_heads=1, sliding_window=4, **EXPERTS),
    "mpt": small("mpt", d_model=24, n_heads=4, n_layers=3),
    "mpt, clipped": small(
        "mpt", d_model=24, n_heads=3, n_layers=3,
        attn_config={"clip_qkv": 0.4, "softmax_scale": 0.2},
    ),
    "nanochat": small("nanochat"),
    "nanochat, tied": small(
        "nanochat", num_key_value_heads=1, attention_bias=True, hidden_act="silu",
        tie_word_embeddings=True, final_logit_softcapping=None, rope_parameters=DYNAMIC,
        max_position_embeddings=8,
    ),
    "nemotron": small("nemotron", head_dim=8, num_key_value_heads=1),
    "nemotron_h": small(
        "nemotron_h", moe_latent_size=10,
        layers_block_type=["linear_attention", "full_attention", "moe", "linear_attention"],
        **NEMOTRON_H,
    ),
    "nemotron_h, biased": small(
        "nemotron_h", layers_block_type=["linear_attention", "full_attention", "mlp", "moe"],
        use_bias=True, mlp_bias=True, use_conv_bias=False, n_group=2, topk_group=1,
        norm_topk_prob=False, routed_scaling_factor=2.5, time_step_min=0.9, **NEMOTRON_H,
    ),
    "olmo": small("olmo", num_key_value_heads=1, clip_qkv=0.4, attention_bias=True),
    "olmo2": small("olmo2"),
    "olmo3": small(
        "olmo3", **DIFFERING,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 500_000.0},
            "full_attention": YARN | {"rope_theta": 500_000.0},
        },
    ),
    "olmo_hybrid": small("olmo_hybrid", **GATED_DELTA | {"linear_value_head_dim": 5}),
    "olmo_hybrid, without positions": small(
        "olmo_hybrid", linear_allow_neg_eigval=False, attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": None},
        **GATED_DELTA,
    ),
    "olmoe": small(
        "olmoe", num_experts=4, num_experts_per_tok=2, attention_bias=True
    ),
    "opt": small("opt"),
    "phi": small("phi", hidden_size=32),
    "phi3": small("phi3"),
    "phi3, long": small(
        "phi3", rope_parameters=LONG, original_max_position_embeddings=8, sliding_window=5
    ),
    "phi3, short": small(
        "phi3", rope_parameters=LONG | {"original_max_position_embeddings": 32},
        original_max_position_embeddings=32,
    ),
    "phimoe": small(
        "phimoe", num_local_experts=4, sliding_window=4, attention_bias=True, lm_head_bias=True,
        router_jitter_noise=0.3, rope_parameters=LONG | {
            "original_max_position_embeddings": 32, "short_mscale": 1.2, "long_mscale": 1.3,
        },
    ),
    "qwen2": small("qwen2"),
    "qwen2, window": small(
        "qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=1
    ),
    "qwen2, yarn": small("qwen2", num_key_value_heads=1, rope_parameters=YARN),
    "qwen2_moe": small(
        "qwen2_moe", num_key_value_heads=1, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=10, shared_expert_intermediate_size=50, decoder_sparse_step=2,
        norm_topk_prob=True, use_sliding_window=True, sliding_window=4,
    ),
    "qwen2_5_vl_text": with_images(
        "qwen2_5_vl", IMAGES,
        small("qwen2_5_vl_text", rms_norm_eps=1e-6, rope_parameters=sections(3, 0, 0)),
    ),
    "qwen2_vl_text": with_images(
        "qwen2_vl", IMAGES,
        small("qwen2_vl_text", rms_norm_eps=1e-6, rope_parameters=sections(1, 1, 1)),
    ),
    "qwen3": small("qwen3", num_key_value_heads=1, head_dim=10),
    "qwen3_5_moe_text": small("qwen3_5_moe_text", head_dim=8, **GATED_DELTA, **SHARED_EXPERT),
    "qwen3_5_text": small("qwen3_5_text", head_dim=8, **GATED_DELTA),
    "qwen3_moe": small(
        "qwen3_moe", num_experts=8, num_experts_per_tok=3, moe_intermediate_size=10, head_dim=6,
        mlp_only_layers=[1], norm_topk_prob=False,
    ),
    "qwen3_moe, normalised": small(
        "qwen3_moe", num_experts=5, num_experts_per_tok=2, moe_intermediate_size=10, head_dim=6,
        norm_topk_prob=True,
    ),
    "qwen3_next": small(
        "qwen3_next", head_dim=8, mlp_only_layers=[1], **GATED_DELTA, **SHARED_EXPERT
    ),
    "qwen3_vl_moe_text": with_images(
        "qwen3_vl_moe", IMAGES,
        small(
            "qwen3_vl_moe_text", num_experts=5, num_experts_per_tok=2, moe_intermediate_size=10,
            head_dim=6, rope_parameters=sections(1, 1, 1),
        ),
    ),
    "qwen3_vl_text": with_images(
        "qwen3_vl", IMAGES,
        small(
            "qwen3_vl_text", num_key_value_heads=1, head_dim=10, rope_parameters=sections(2, 2, 1)
        ),
    ),
    "sarvam_moe": small("sarvam_moe", head_dim=10, **SIGMOIDS),
    "sarvam_moe, biased": small(
        "sarvam_moe", num_key_value_heads=1, head_dim=6, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=50, use_qk_norm=False, attention_bias=True, norm_topk_prob=False,
        n_shared_experts=2, first_k_dense_replace=0, rope_parameters=YARN,
    ),
    "seed_oss": small("seed_oss", num_key_value_heads=1, head_dim=10),
    "smollm3": small("smollm3", no_rope_layers=[1, 0, 1]),
    "smollm3, window": small(
        "smollm3", no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=4,
        num_key_value_heads=1,
    ),
    "solar_open": small(
        "solar_open", num_key_value_heads=1, head_dim=10, **SIGMOIDS, attention_bias=True,
        rope_parameters=YARN, n_shared_experts=2,
    ),
    "stablelm": small("stablelm", hidden_size=32),
    "stablelm, parallel": small(
        "stablelm", hidden_size=32, qk_layernorm=True, use_parallel_residual=True,
        use_qkv_bias=True,
    ),
    "starcoder2": small("starcoder2", num_key_value_heads=1),
    "starcoder2, window": small("starcoder2", sliding_window=4),
    "vaultgemma": small(
        "vaultgemma", num_key_value_heads=1, head_dim=10, query_pre_attn_scalar=16, sliding_window=4
    ),
    "youtu": small(
        "youtu", **DENSE_LATENT | {"q_lora_rank": None}, rope_parameters=YARN | {"mscale": 0.7}
    ),
}  # fmt: skip


def ids_of(config: PretrainedConfig) -> list[int]:
    """Return the context of a network, long where it has recurrent layers."""
    recurrent = {"linear_attention", "conv", "hybrid"}
    return LONG_IDS if recurrent & set(getattr(config, "layer_types", None) or ()) else IDS


def chosen(names: list[str]) -> list[str]:
    """Return the configurations of these families or names; all where none is asked for."""
    if not names:
        return [*CONFIGURATIONS]
    known = {name.partition(",")[0] for name in CONFIGURATIONS} | CONFIGURATIONS.keys()
    for name in names:
        if name not in known:
            raise SystemExit(
                f"got {name!r}, expected {' or '.join(sorted(known))}. Name one of these, or none "
                "for all."
            )
    return [n for n in CONFIGURATIONS if n in names or n.partition(",")[0] in names]
