"""Small networks of every family: each option that changes a number stands in one of them.

Sizes are odd (one group of heads, heads that do not share the width, a vocabulary of 37), and 14
tokens are more than every window and than what a scaled rotary was trained on.
"""

from typing import Any

from transformers import AutoConfig, PretrainedConfig

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9, 7, 30]
SIZES = {
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
NO_WORDS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
GPT = {"vocab_size": 37, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64, "n_inner": 40}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
DIFFERING = {"sliding_window": 4, "layer_types": LAYERS}
BIASED = {"attention_bias": True, "mlp_bias": True}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}
ALPHA = {"rope_type": "dynamic", "rope_theta": 1000.0, "alpha": 50.0, "factor": 1.0}
LONG = {
    "rope_type": "longrope", "rope_theta": 1000.0, "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.0, 3.0, 5.0], "original_max_position_embeddings": 8,
}  # fmt: skip
GRANITES = {
    "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.3,
    "attention_multiplier": 0.2,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6,
    "v_head_dim": 5, "moe_intermediate_size": 9, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "num_key_value_heads": 4, "first_k_dense_replace": 1,
}  # fmt: skip
GROUPED_EXPERTS = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 3.0}


def like_llama(family: str, **options: Any) -> PretrainedConfig:
    """A configuration of these sizes, four heads in two groups where nothing else is said."""
    return of_sizes(family, **({"num_key_value_heads": 2} | options))


def of_sizes(family: str, **options: Any) -> PretrainedConfig:
    """The same where every head is its own."""
    return AutoConfig.for_model(family, **(SIZES | NO_WORDS | options))


def like_gpt(family: str, **options: Any) -> PretrainedConfig:
    """A configuration whose sizes have GPT-2's names."""
    return AutoConfig.for_model(family, **(GPT | NO_WORDS | options))


CONFIGURATIONS = {
    "arcee": like_llama("arcee", num_key_value_heads=1, head_dim=10),
    "bloom": like_gpt("bloom", n_inner=None),
    "bloom, three heads": like_gpt("bloom", n_head=3),
    "cohere": like_llama("cohere"),
    "cohere, normed heads": like_llama("cohere", use_qk_norm=True, logit_scale=0.3),
    "cohere2": like_llama("cohere2", head_dim=10, **DIFFERING),
    "deepseek_v2": of_sizes("deepseek_v2", **LATENT),
    "deepseek_v2, groups": of_sizes(
        "deepseek_v2", topk_method="group_limited_greedy", **LATENT | {"q_lora_rank": None},
        **GROUPED_EXPERTS,
    ),
    "deepseek_v3": of_sizes(
        "deepseek_v3", rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}, **LATENT,
        **GROUPED_EXPERTS,
    ),
    "ernie4_5": like_llama("ernie4_5", head_dim=8, use_bias=True),
    "exaone4": like_llama("exaone4", sliding_window=4, sliding_window_pattern=2),
    "exaone4, full": like_llama(
        "exaone4", sliding_window=None, layer_types=3 * ["full_attention"]
    ),
    "falcon": of_sizes("falcon"),
    "falcon, groups": of_sizes("falcon", new_decoder_architecture=True, num_kv_heads=2),
    "falcon, one norm": of_sizes(
        "falcon", new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1
    ),
    "falcon, serial": of_sizes("falcon", multi_query=False, parallel_attn=False, bias=True),
    "gemma": like_llama("gemma", num_key_value_heads=1, head_dim=10),
    "gemma2": like_llama(
        "gemma2", head_dim=8, sliding_window=4, query_pre_attn_scalar=16,
        attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
    ),
    "gemma3_text": like_llama(
        "gemma3_text", head_dim=10, query_pre_attn_scalar=16, **DIFFERING,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": LINEAR,
        },
    ),
    "glm": like_llama("glm", head_dim=8),
    "glm4": like_llama("glm4", num_key_value_heads=1, head_dim=8),
    "gpt2": like_gpt("gpt2"),
    "gpt_neo": of_sizes(
        "gpt_neo", num_layers=3, num_heads=4, window_size=4,
        attention_types=[[["global", "local"], 1], [["local"], 1]],
    ),
    "gpt_neox": of_sizes("gpt_neox", rotary_pct=0.34),
    "gpt_neox, serial": of_sizes("gpt_neox", use_parallel_residual=False, rotary_pct=1.0),
    "gpt_oss": like_llama(
        "gpt_oss", head_dim=8, sliding_window=4, **EXPERTS,
        rope_parameters=YARN | {"truncate": False},
    ),
    "gptj": like_gpt("gptj", rotary_dim=4),
    "granite": like_llama("granite", **GRANITES),
    "granitemoe": like_llama("granitemoe", num_key_value_heads=1, **EXPERTS, **GRANITES),
    "helium": like_llama("helium", head_dim=10),
    "hunyuan_v1_dense": like_llama("hunyuan_v1_dense", num_key_value_heads=1, head_dim=10),
    "hunyuan_v1_dense, one base": like_llama(
        "hunyuan_v1_dense", head_dim=10, rope_parameters=ALPHA
    ),
    "llama": like_llama("llama"),
    "llama, tied": like_llama("llama", tie_word_embeddings=True),
    "llama, biased": like_llama("llama", **BIASED, num_key_value_heads=1, head_dim=8),
    "llama, 3": like_llama("llama", rope_parameters=LLAMA3),
    "llama, linear": of_sizes("llama", rope_parameters=LINEAR),
    "llama, yarn": like_llama("llama", head_dim=10, rope_parameters=YARN),
    "llama, dynamic": like_llama(
        "llama", max_position_embeddings=8, rope_parameters=DYNAMIC
    ),
    "llama4_text": like_llama(
        "llama4_text", num_local_experts=3, num_experts_per_tok=1, intermediate_size_mlp=20,
        attention_chunk_size=5, head_dim=10, floor_scale=4, no_rope_layers=[1, 0, 1],
        interleave_moe_layer_step=2,
    ),
    "ministral": like_llama("ministral", head_dim=6, **DIFFERING),
    "mistral": like_llama("mistral", sliding_window=None),
    "mistral, window": like_llama("mistral", num_key_value_heads=1, sliding_window=4, head_dim=10),
    "mixtral": like_llama("mixtral", **EXPERTS),
    "mixtral, window": like_llama("mixtral", num_key_value_heads=1, sliding_window=4, **EXPERTS),
    "nemotron": like_llama("nemotron", head_dim=8, num_key_value_heads=1),
    "olmo2": like_llama("olmo2"),
    "olmo3": like_llama(
        "olmo3", **DIFFERING,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 500_000.0},
            "full_attention": YARN | {"rope_theta": 500_000.0},
        },
    ),
    "opt": of_sizes("opt", ffn_dim=40, word_embed_proj_dim=24),
    "phi": like_llama("phi", hidden_size=32),
    "phi3": like_llama("phi3"),
    "phi3, long": like_llama(
        "phi3", rope_parameters=LONG, original_max_position_embeddings=8, sliding_window=5
    ),
    "phi3, short": like_llama(
        "phi3", rope_parameters=LONG | {"original_max_position_embeddings": 32},
        original_max_position_embeddings=32,
    ),
    "qwen2": like_llama("qwen2"),
    "qwen2, window": like_llama(
        "qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=1
    ),
    "qwen2, yarn": like_llama("qwen2", num_key_value_heads=1, rope_parameters=YARN),
    "qwen3": like_llama("qwen3", num_key_value_heads=1, head_dim=10),
    "qwen3_moe": like_llama(
        "qwen3_moe", num_experts=8, num_experts_per_tok=3, moe_intermediate_size=10, head_dim=6,
        mlp_only_layers=[1], norm_topk_prob=False,
    ),
    "qwen3_moe, normalised": like_llama(
        "qwen3_moe", num_experts=5, num_experts_per_tok=2, moe_intermediate_size=10, head_dim=6,
        norm_topk_prob=True,
    ),
    "seed_oss": like_llama("seed_oss", num_key_value_heads=1, head_dim=10),
    "smollm3": like_llama("smollm3", no_rope_layers=[1, 0, 1]),
    "smollm3, window": like_llama(
        "smollm3", no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=4,
        num_key_value_heads=1,
    ),
    "stablelm": like_llama("stablelm", hidden_size=32),
    "stablelm, parallel": like_llama(
        "stablelm", hidden_size=32, qk_layernorm=True, use_parallel_residual=True,
        use_qkv_bias=True,
    ),
    "starcoder2": like_llama("starcoder2", num_key_value_heads=1),
    "starcoder2, window": like_llama("starcoder2", sliding_window=4),
}  # fmt: skip


def chosen(asked: list[str]) -> list[str]:
    """The configurations of these families or names; all where none is asked for."""
    if not asked:
        return [*CONFIGURATIONS]
    known = {name.partition(",")[0] for name in CONFIGURATIONS} | CONFIGURATIONS.keys()
    for name in asked:
        if name not in known:
            raise SystemExit(f"got {name!r}, expected {' or '.join(sorted(known))}")
    return [n for n in CONFIGURATIONS if n in asked or n.partition(",")[0] in asked]
