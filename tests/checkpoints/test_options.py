"""What configurations say of every family: the publishers' defaults, and what is refused."""

import math
from typing import Any

import jax
import numpy as np
import pytest

from lim_jax.checkpoints import sublayers
from lim_jax.checkpoints.activations import (
    bloom_gelu,
    exact_gelu,
    squared_relu,
    tanh_gelu,
    xielu,
)
from lim_jax.checkpoints.families.family_table import FAMILIES, recipe_of
from lim_jax.checkpoints.implied_options import implied_options
from lim_jax.checkpoints.options import HARMLESS, Configuration, refuse_other_architectures
from lim_jax.checkpoints.options import refuse_unknown as refuse_unknown_beside
from lim_jax.checkpoints.rope_config import TRAINED, trained_length
from lim_jax.checkpoints.tensor_reader import Reader
from lim_jax.network.frequencies import rotary_frequencies
from lim_jax.network.norms import RMSNorm
from lim_jax.network.positions import Alibi, Rotary, Tempered, UnitRotary
from lim_jax.network.steps import euler, split

SIZES = {
    "vocab_size": 11, "hidden_size": 64, "intermediate_size": 40, "num_hidden_layers": 6,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
OLD = {"vocab_size": 11, "n_embd": 64, "n_layer": 6, "n_head": 4, "n_positions": 64}
LATENT = {
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 6, "v_head_dim": 5, "kv_lora_rank": 4,
    "n_routed_experts": 16, "moe_intermediate_size": 9, "num_experts_per_tok": 2,
}  # fmt: skip
LATENTS = (
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "kimi_k2",
    "youtu", "kimi_linear", "bailing_hybrid",
)  # fmt: skip
WITHOUT = {name: size for name, size in SIZES.items() if name != "intermediate_size"}
# The least that a configuration says, where that is not the sizes alone.
LEAST = {
    "bloom": {"vocab_size": 11, "hidden_size": 64, "n_layer": 6, "n_head": 4},
    **dict.fromkeys(LATENTS, SIZES | LATENT),
    "dots1": SIZES | {
        "n_routed_experts": 16, "n_shared_experts": 1, "moe_intermediate_size": 9,
        "num_experts_per_tok": 2,
    },
    "falcon": WITHOUT, "gpt2": OLD, "gpt_bigcode": OLD,
    "mpt": {"vocab_size": 11, "d_model": 64, "n_layers": 6, "n_heads": 4},
    "gemma4_text": SIZES | {"hidden_size_per_layer_input": 0},
    "gptj": OLD | {"n_embd": 256},
    "gpt_neo": SIZES | {"num_layers": 6, "num_heads": 4, "attention_types": [[["local"], 6]]},
    "opt": WITHOUT | {"ffn_dim": 40}, "qwen3_moe": SIZES | {"moe_intermediate_size": 9},
    "lfm2_moe": SIZES | {"layer_types": 6 * ["conv"]},
    "nemotron_h": SIZES | {"hybrid_override_pattern": "ME*-ME"},
    "youtu": SIZES | {name: LATENT[name] for name in LATENT if "rank" in name or "head" in name},
    "qwen3_vl_moe_text": SIZES | {"moe_intermediate_size": 9},
}  # fmt: skip
MINIMAX = "minimax", "minimax_m1", "minimax_text_01"
SILU = jax.nn.silu
WIDE = 4096  # the publishers' usual window


def refuse_unknown(config):
    """As a checkpoint's options are refused, beside what says the same in other families' words."""
    refuse_unknown_beside(config, implied_options(config, recipe_of(config)))


def least(family, **more):
    """A configuration of the family's sizes and no more."""
    return Configuration(LEAST.get(family, SIZES) | {"model_type": family} | more)


def full_of(period):
    """Which of six layers see all, where it is every so many."""
    return tuple((k + 1) % period == 0 for k in range(6))


# By the publishers' classes: the norms' epsilon, a head's size, how much of it turns, the base of
# turning, whether the head is the embedding, the activation, and which matrices have a bias.
DEFAULTS = {
    "afmoe": (1e-5, 128, 128, 1e4, False, SILU, ""),
    "apertus": (1e-5, 16, 16, 12e6, False, xielu, ""),
    "arcee": (1e-5, 16, 16, 1e4, False, squared_relu, ""),
    "bailing_hybrid": (1e-6, 8, 8, 6e6, False, SILU, ""),
    "bamba": (1e-5, 16, 8, 1e4, False, SILU, ""),
    "bloom": (1e-5, 16, 0, None, True, bloom_gelu, "pmt"),
    "cohere": (1e-5, 16, 16, 5e5, True, SILU, ""),
    "cohere2": (1e-5, 16, 16, 1e4, True, SILU, ""),
    "cohere2_moe": (1e-5, 128, 128, 1e4, True, SILU, ""),
    "cwm": (1e-5, 128, 128, 1e6, False, SILU, ""),
    "deepseek_v2": (1e-6, 8, 8, 1e4, False, SILU, ""),
    "deepseek_v3": (1e-6, 8, 8, 1e4, False, SILU, ""),
    "deepseek_v32": (1e-6, 8, 8, 1e4, False, SILU, ""),
    "dots1": (1e-6, 16, 16, 1e4, False, SILU, ""),
    "ernie4_5": (1e-5, 128, 128, 5e5, True, SILU, ""),
    "ernie4_5_moe": (1e-5, 16, 16, 5e5, True, SILU, ""),
    "exaone4": (1e-5, 16, 16, 1e4, False, SILU, ""),
    "exaone_moe": (1e-5, 16, 16, 1e4, False, SILU, ""),
    "falcon": (1e-5, 16, 16, 1e4, True, exact_gelu, ""),
    "falcon_h1": (1e-5, 16, 16, 1e4, False, SILU, ""),
    "flex_olmo": (1e-6, 16, 16, 5e5, False, SILU, ""),
    "gemma": (1e-6, 256, 256, 1e4, True, tanh_gelu, ""),
    "gemma2": (1e-6, 256, 256, 1e4, True, tanh_gelu, ""),
    "gemma3_text": (1e-6, 256, 256, 1e4, True, tanh_gelu, ""),
    "gemma4_text": (1e-6, 256, 256, 1e4, True, tanh_gelu, ""),
    "glm": (1.5625e-7, 128, 64, 1e4, False, SILU, "p"),
    "glm4": (1.5625e-7, 128, 64, 1e4, False, SILU, "p"),
    "glm4_moe": (1e-5, 16, 8, 1e4, False, SILU, ""),
    "glm4_moe_lite": (1e-5, 8, 8, 1e4, False, SILU, ""),
    "glm_moe_dsa": (1e-5, 8, 8, 1e4, False, SILU, ""),
    "gpt2": (1e-5, 16, 0, None, True, tanh_gelu, "pmt"),
    "gpt_bigcode": (1e-5, 16, 0, None, True, tanh_gelu, "pmt"),
    "gpt_neo": (1e-5, 16, 0, None, True, tanh_gelu, "mt"),
    "gpt_neox": (1e-5, 16, 4, 1e4, False, exact_gelu, "pmt"),
    "gpt_oss": (1e-5, 64, 64, 150_000.0, False, SILU, "pm"),
    "gptj": (1e-5, 64, 64, 1e4, False, tanh_gelu, "th"),
    "granite": (1e-6, 16, 16, 1e4, False, SILU, ""),
    "granite_swa": (1e-5, 16, 16, 1e4, True, SILU, ""),
    "granitemoe": (1e-6, 16, 16, 1e4, False, SILU, ""),
    "granitemoeshared": (1e-6, 16, 16, 1e4, False, SILU, ""),
    "granitemoehybrid": (1e-6, 16, 0, None, False, SILU, ""),
    "helium": (1e-8, 128, 128, 1e5, False, SILU, ""),
    "hunyuan_v1_dense": (1e-5, 16, 16, 1e4, False, SILU, ""),
    "lfm2": (1e-5, 16, 16, 1e6, True, SILU, ""),
    "lfm2_moe": (1e-5, 16, 16, 1e6, True, SILU, ""),
    "hunyuan_v1_moe": (1e-5, 16, 16, 1e4, False, SILU, ""),
    "hy_v3": (1e-5, 128, 128, 11_158_840.0, False, SILU, ""),
    "hyperclovax": (1e-6, 16, 16, 1e4, False, SILU, ""),
    "internlm3": (1e-5, 128, 128, 1e4, False, SILU, ""),
    "iquestcoder": (1e-5, 128, 128, 1e4, False, SILU, ""),
    "jais2": (1e-5, 16, 16, 1e4, False, squared_relu, "pmt"),
    "llama": (1e-6, 16, 16, 1e4, False, SILU, ""),
    "llama4_text": (1e-5, 128, 128, 5e5, False, SILU, ""),
    "minimax_m2": (1e-6, 128, 128, 5e6, False, SILU, ""),
    "kimi_k2": (1e-6, 8, 8, 1e4, False, SILU, ""),
    "kimi_linear": (1e-5, 8, 0, None, False, SILU, ""),
    **dict.fromkeys(MINIMAX, (1e-5, 16, 16, 1e6, False, SILU, "")),
    "mimo": (1e-6, 16, 16, 1e4, False, SILU, "p"),
    "ministral": (1e-6, 16, 16, 1e4, False, SILU, ""),
    "ministral3": (1e-5, 128, 128, 1e6, False, SILU, ""),
    "mistral": (1e-6, 16, 16, 1e4, False, SILU, ""),
    "mixtral": (1e-5, 16, 16, 1e6, False, SILU, ""),
    "minicpm3": (1e-5, 32, 32, 1e4, True, SILU, ""),
    "mpt": (1e-5, 16, 0, None, True, exact_gelu, ""),
    "nanochat": (1e-6, 16, 16, 1e4, False, squared_relu, ""),
    "nemotron": (1e-5, 16, 8, 1e4, False, squared_relu, ""),
    "nemotron_h": (1e-5, 128, 0, None, False, squared_relu, ""),
    "olmo_hybrid": (1e-6, 16, 16, 1e4, False, SILU, ""),
    "olmo": (1e-5, 16, 16, 1e4, False, SILU, ""),
    "olmo2": (1e-5, 16, 16, 1e4, False, SILU, ""),
    "olmo3": (1e-5, 16, 16, 5e5, False, SILU, ""),
    "olmoe": (1e-5, 16, 16, 1e4, False, SILU, ""),
    "opt": (1e-5, 16, 0, None, True, jax.nn.relu, "pmt"),
    "phi": (1e-5, 16, 8, 1e4, False, tanh_gelu, "pmth"),
    "phi3": (1e-5, 16, 16, 1e4, False, SILU, ""),
    "phimoe": (1e-5, 16, 16, 1e6, False, SILU, ""),
    "qwen2": (1e-6, 16, 16, 1e4, False, SILU, "p"),
    "qwen2_moe": (1e-6, 16, 16, 1e4, False, SILU, "p"),
    "qwen2_5_vl_text": (1e-5, 16, 16, 1e6, False, SILU, "p"),
    "qwen2_vl_text": (1e-5, 16, 16, 1e6, False, SILU, "p"),
    "qwen3": (1e-6, 128, 128, 1e4, False, SILU, ""),
    "qwen3_5_moe_text": (1e-6, 256, 64, 1e4, False, SILU, ""),
    "qwen3_5_text": (1e-6, 256, 64, 1e4, False, SILU, ""),
    "qwen3_moe": (1e-6, 16, 16, 1e4, False, SILU, ""),
    "qwen3_next": (1e-6, 256, 64, 1e4, False, SILU, ""),
    "qwen3_vl_moe_text": (1e-6, 128, 128, 5e5, False, SILU, ""),
    "qwen3_vl_text": (1e-6, 128, 128, 5e5, False, SILU, ""),
    "sarvam_moe": (1e-6, 64, 64, 8e6, False, SILU, ""),
    "seed_oss": (1e-6, 128, 128, 1e4, False, SILU, "p"),
    "smollm3": (1e-6, 16, 16, 2e6, True, SILU, ""),
    "solar_open": (1e-5, 128, 128, 1e6, False, SILU, ""),
    "stablelm": (1e-5, 16, 4, 1e4, False, SILU, ""),
    "starcoder2": (1e-5, 16, 16, 1e4, True, tanh_gelu, "pmt"),
    "vaultgemma": (1e-6, 256, 256, 1e4, True, tanh_gelu, ""),
    "youtu": (1e-6, 8, 8, 1e4, True, SILU, ""),
}


def base_of(turning, frequencies):
    """From the second frequency, of a whole head or of the part that turns."""
    return frequencies[1] ** (-turning / 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_options_that_are_left_out_are_the_publishers(family):
    norm_eps, size, turning, base, tied, activation, biases = DEFAULTS[family]
    recipe = recipe_of(least(family))
    first: Any = recipe.masks[0].positions
    assert (recipe.sizes.norm_eps, recipe.sizes.head_dim) == (norm_eps, size)
    assert (first.rotary_dim if isinstance(first, Rotary) else 0) == turning
    if base is not None and family not in ("gpt_oss", "ministral3"):  # scaled: cases of their own
        np.testing.assert_allclose(base_of(turning, first.frequencies), base)
    assert recipe.tied is tied and recipe.activation is activation
    letters = zip("pmth", recipe.biases, strict=True)
    assert "".join(letter for letter, there in letters if there) == biases


# Where layers see a window, stretches or all; and which know places.
LAYERS = {
    "afmoe": ((1024, None), full_of(4), "windows"),
    "cohere2": ((WIDE, None), full_of(4), "windows"),
    "cohere2_moe": ((WIDE, None), full_of(4), "windows"),
    "cwm": ((8192, None), (True, False, False, False, True, False), "all"),
    "exaone4": ((WIDE, None), full_of(4), "windows"),
    "exaone_moe": ((WIDE, None), full_of(4), "windows"),
    "gemma2": ((WIDE, None), full_of(2), "all"),
    "gemma3_text": ((WIDE, None), full_of(6), "all"),
    "gemma4_text": ((512, None), full_of(6), "all"),
    "gpt_neo": ((256, None), full_of(9), "none"),
    "gpt_oss": ((128, None), full_of(2), "all"),
    "granite_swa": ((128, None), (True, False, False, False, True, False), "all"),
    "llama4_text": ((None, 8192), full_of(4), "all"),
    "ministral": ((WIDE, None), full_of(9), "all"),
    "mistral": ((WIDE, None), full_of(9), "all"),
    "olmo3": ((WIDE, None), full_of(4), "all"),
    "smollm3": ((None, None), full_of(4), "windows"),
    "vaultgemma": ((WIDE, None), full_of(2), "all"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_see_what_the_publishers_let_them_see(family):
    usual = ((None, None), full_of(1), "all" if DEFAULTS[family][2] else "none")
    if family in ("bloom", "mpt"):  # by linear biases
        usual = ((None, None), full_of(1), "all")
    narrow, whole, places_known = LAYERS.get(family, usual)
    masks = recipe_of(least(family)).masks
    seen = [(mask.window, mask.chunk) for mask in masks]
    assert seen == [(None, None) if full else narrow for full in whole]
    known = {"all": 6 * [True], "none": 6 * [False], "windows": [not full for full in whole]}
    assert [mask.positions is not None for mask in masks] == known[places_known]


OF_GEMMA2 = {"embedding_scale": 8.0, "scale": 1 / 16, "cap": 50.0, "logit_cap": 30.0}
INDEXED = 2048, "index_topk: of longer ones an index chooses so many tokens that attention sees"
OTHERS = {
    "cohere": {"logit_scale": 0.0625, "step": euler, "rope_interleaved": True},
    "cohere2": {"logit_scale": 0.0625, "step": euler, "rope_interleaved": True},
    "cohere2_moe": {"logit_scale": 0.0625, "step": euler, "rope_interleaved": True},
    "deepseek_v32": {"longest": INDEXED}, "ernie4_5": {"rope_interleaved": True},
    "ernie4_5_moe": {"rope_interleaved": True}, "falcon": {"step": euler},
    "falcon_h1": {"scale": 0.25},
    "gemma": {"embedding_scale": 8.0}, "gemma2": OF_GEMMA2,
    "gemma3_text": {"embedding_scale": 8.0, "scale": 1 / 16},
    "gemma4_text": {
        "embedding_scale": 8.0, "scale": 1.0, "value_norm": sublayers.unscaled_head_norm,
    },
    "glm": {"rope_interleaved": True}, "glm4": {"rope_interleaved": True},
    "glm_moe_dsa": {"longest": INDEXED},
    "gpt2": {"transposed": True, "num_positions": 64},
    "gpt_neo": {"scale": 1.0, "num_positions": 64}, "gpt_neox": {"step": euler},
    "gptj": {"step": euler, "rope_interleaved": True}, "granite": {"scale": 1.0},
    "granitemoe": {"scale": 1.0}, "granitemoehybrid": {"scale": 1.0},
    "granite_swa": {"scale": 1.0}, "granitemoeshared": {"scale": 1.0},
    "gpt_bigcode": {"num_positions": 64},
    "helium": {"rope_interleaved": True},
    "hunyuan_v1_dense": {"rope_before_qk_norm": True},
    "hunyuan_v1_moe": {"rope_before_qk_norm": True},
    "minicpm3": {"embedding_scale": 12.0, "increment": 1.4 / math.sqrt(6), "logit_scale": 4.0},
    "nanochat": {"rope_before_qk_norm": True, "logit_cap": 15.0},
    "llama4_text": {"rope_interleaved": True}, "opt": {"num_positions": 64, "offset": 2},
    "phi": {"step": euler}, "vaultgemma": OF_GEMMA2,
}  # fmt: skip
PLAIN = {
    "embedding_scale": 1.0, "logit_scale": 1.0, "logit_cap": None, "scale": None, "cap": None,
    "step": split, "increment": 1.0, "rope_interleaved": False, "transposed": False,
    "num_positions": 0, "offset": 0, "rope_before_qk_norm": False, "num_mtp_layers": 0,
    "longest": None, "value_norm": None,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_multipliers_caps_and_steps_that_are_left_out_are_the_publishers(family):
    recipe = recipe_of(least(family))
    for name, value in (PLAIN | OTHERS.get(family, {})).items():
        assert getattr(recipe, name) == value, name


# The number of experts, how many a token has, by which scores, normalised, the factor, groups and
# the open ones, by how many a group is judged; dense layers; and what else there is.
MIXTURES = {
    "afmoe": (64, 6, "sigmoid", True, 1.0, 1, 1, 1, {0}, ("shared_experts", 2816)),
    "deepseek_v2": (16, 2, "softmax", False, 1.0, 1, 1, 1, set(), ("shared_experts", 18)),
    "bailing_hybrid": (16, 2, "sigmoid", True, 2.5, 8, 4, 2, {0, 1}, ("shared_experts", 9)),
    "kimi_linear": (16, 2, "sigmoid", True, 2.446, 1, 1, 2, {0}, ("shared_experts", 9)),
    **dict.fromkeys(MINIMAX, (8, 2, "softmax", True, 1.0, 1, 1, 1, set(), None)),
    "deepseek_v3": (16, 2, "sigmoid", True, 2.5, 8, 4, 2, {0, 1, 2}, ("shared_experts", 9)),
    "deepseek_v32": (16, 2, "sigmoid", True, 2.5, 8, 4, 2, {0, 1, 2}, ("shared_experts", 9)),
    "dots1": (16, 2, "sigmoid", False, 1.0, 1, 1, 2, set(), ("shared_experts", 9)),
    "ernie4_5_moe": (64, 6, "softmax", True, 1.0, 1, 1, 1, {0}, ("shared_experts", 3072)),
    "cohere2_moe": (8, 2, "softmax", True, 1.0, 1, 1, 1, set(), None),
    "exaone_moe": (64, 8, "sigmoid", True, 2.5, 1, 1, 2, {0}, ("shared_experts", 1024)),
    "flex_olmo": (7, 5, "softmax", False, 1.0, 1, 1, 1, set(), None),
    "hy_v3": (192, 8, "sigmoid", True, 2.826, 1, 1, 2, {0}, ("shared_mlp", 1536)),
    "sarvam_moe": (128, 6, "sigmoid", True, 2.5, 1, 1, 2, {0}, ("shared_experts", 1024)),
    "glm4_moe": (128, 8, "sigmoid", True, 1.0, 1, 1, 2, {0}, ("shared_experts", 1408)),
    "glm4_moe_lite": (16, 2, "sigmoid", True, 1.8, 1, 1, 2, {0}, ("shared_experts", 9)),
    "glm_moe_dsa": (16, 2, "sigmoid", True, 2.5, 1, 1, 2, {0, 1, 2}, ("shared_experts", 9)),
    "kimi_k2": (16, 2, "sigmoid", True, 2.5, 8, 4, 2, {0, 1, 2}, ("shared_experts", 9)),
    "gpt_oss": (128, 4, "softmax", True, 1.0, 1, 1, 1, set(), None),
    "granitemoe": (8, 2, "softmax", True, 1.0, 1, 1, 1, set(), None),
    "granitemoeshared": (8, 2, "softmax", True, 1.0, 1, 1, 1, set(), None),
    "granitemoehybrid": (8, 2, "softmax", True, 1.0, 1, 1, 1, set(), ("shared_mlp", 1024)),
    "lfm2_moe": (32, 4, "sigmoid", True, 1.0, 1, 1, 1, set(), None),
    "hunyuan_v1_moe": (1, 1, "softmax", True, 1.0, 1, 1, 1, set(), ("shared_mlp", 40)),
    "llama4_text": (16, 1, "sigmoid", False, 1.0, 1, 1, 1, set(), ("shared_expert", 40)),
    "minimax_m2": (256, 8, "sigmoid", True, 1.0, 1, 1, 1, set(), None),
    "mixtral": (8, 2, "softmax", True, 1.0, 1, 1, 1, set(), None),
    "nemotron_h": (8, 2, "sigmoid", True, 1.0, 1, 1, 2, set(), ("shared_experts", 7688)),
    "qwen3_5_moe_text": (256, 8, "softmax", True, 1.0, 1, 1, 1, set(), ("shared_expert", 512)),
    "qwen3_moe": (128, 8, "softmax", False, 1.0, 1, 1, 1, set(), None),
    "qwen3_next": (512, 10, "softmax", True, 1.0, 1, 1, 1, set(), ("shared_expert", 512)),
    "olmoe": (64, 8, "softmax", False, 1.0, 1, 1, 1, set(), None),
    "phimoe": (16, 0.01, set(), None),
    "qwen2_moe": (60, 4, "softmax", False, 1.0, 1, 1, 1, set(), ("shared_expert", 5632)),
    "solar_open": (128, 8, "sigmoid", True, 1.0, 1, 1, 2, set(), ("shared_experts", 1280)),
    "qwen3_vl_moe_text": (60, 4, "softmax", True, 1.0, 1, 1, 1, set(), None),
}


@pytest.mark.parametrize("family", MIXTURES)
def test_routers_that_nothing_is_said_of_are_the_publishers(family):
    recipe: Any = recipe_of(least(family))
    mixture = (recipe.layers[-1] if recipe.layers else recipe).network
    mixture = getattr(mixture, "sublayer", mixture)  # of MiniMax, beside a norm
    router = (mixture.num_experts, *mixture.routing[:7], set(mixture.dense_layers), mixture.shared)
    assert router == MIXTURES[family]


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_moe"])
def test_experts_are_in_every_so_many_layers_but_those_that_have_none(family):
    """Layers are counted from one for the step, and from zero in the list of dense ones."""
    config = least(family, num_hidden_layers=7, decoder_sparse_step=2, mlp_only_layers=[3])
    recipe: Any = recipe_of(config)
    layers = recipe.layers or 7 * [recipe]
    dense = [
        k
        for k, layer in enumerate(layers)
        if layer.network is sublayers.gated_mlp or k in layer.network.dense_layers
    ]
    assert dense == [0, 2, 3, 4, 6]


def test_trinity_scales_embeddings_where_it_says_so_and_has_biases_of_attention():
    scaled = recipe_of(least("afmoe", mup_enabled=True, attention_bias=True))
    assert scaled.embedding_scale == 8.0  # the root of the width
    assert scaled.biases == (True, True, False, False)


def test_deepseek_v3_takes_eight_experts_where_nothing_is_said():
    config = {name: value for name, value in least("deepseek_v3").items() if "per_tok" not in name}
    recipe: Any = recipe_of(Configuration(config))
    assert recipe.network.routing.top == 8


def test_kinds_of_layers_have_bases_of_their_own():
    """Gemma 3's; OLMo 3's are one; gpt-oss is scaled even where nothing is said."""
    rotaries: list[Any] = [mask.positions for mask in recipe_of(least("gemma3_text")).masks]
    bases = [base_of(256, rotary.frequencies) for rotary in rotaries]
    np.testing.assert_allclose(bases, [1e4] * 5 + [1e6])
    gpt_oss: Any = recipe_of(least("gpt_oss")).masks[0].positions
    unscaled: Any = recipe_of(least("gpt_oss", rope_parameters={})).masks[0].positions
    assert recipe_of(least("gpt_oss", rope_scaling={})).masks[0].positions == gpt_oss
    assert unscaled.amplitude == 1 and unscaled.frequencies[1] == 150_000 ** (-1 / 32)
    assert gpt_oss.amplitude == 1 + 0.1 * math.log(32)
    first, last = (32 * math.log(4096 / (c * 2 * math.pi)) / math.log(150_000) for c in (32, 1))
    share = (12 - first) / (last - first)  # of pair 12, between ends that are not rounded
    slowed = {12: 1 - share + share / 32, 31: 1 / 32}
    for pair, by in slowed.items():
        np.testing.assert_allclose(gpt_oss.frequencies[pair], by * 150_000 ** (-pair / 32))


def test_llama_4_tempers_layers_that_do_not_turn():
    turned, still = (mask.positions for mask in recipe_of(least("llama4_text")).masks[2:4])
    assert isinstance(turned, UnitRotary) and isinstance(still, Tempered)
    assert (still.scale, still.floor) == (0.1, 8192)
    assert isinstance(recipe_of(least("bloom")).masks[0].positions, Alibi)


ROTARY = {"rope_theta": 9.0}
TEMPERED = {"rope_type": "linear", "llama_4_scaling_beta": 0.5, "factor": 2.0}
LLAMA3 = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SU = {"type": "su", "short_factor": [1.0], "long_factor": [1.0]}
# What is refused: of a family these options, in these words.
REFUSED = [
    ("afmoe", {"num_experts": 5}, "num_experts_per_tok = 6, expected at most the 5 experts that"),
    ("afmoe", {"num_shared_experts": 0}, "num_shared_experts = 0, expected a positive whole"),
    ("afmoe", {"num_dense_layers": None}, "num_dense_layers = None, expected a whole number"),
    ("afmoe", {"global_attn_every_n_layers": 0}, "global_attn_every_n_layers = 0, expected a po"),
    ("afmoe", {"sliding_window": None}, "sliding_window = None, expected a positive whole number"),
    ("afmoe", {"route_scale": None}, "route_scale = None, expected a positive number"),
    ("afmoe", {"mlp_bias": True}, "mlp_bias = True, expected False"),
    ("cohere2", {"layer_types": ["chunked_attention"]}, "layer_types = 1 of .'chunked_attention'"),
    ("gpt_oss", {"swiglu_alpha": None}, "swiglu_alpha = None, expected a positive number"),
    ("gpt_oss", {"swiglu_limit": 0}, "swiglu_limit = 0, expected a positive number"),
    ("gpt_neox", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5, expected 0.25"),
    ("cohere2", {"sliding_window_pattern": "LLG"}, "sliding_window_pattern = 'LLG', expected a po"),
    ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern = 0, expected a posi"),
    ("gemma3_text", {"attn_logit_softcapping": 0.5}, "attn_logit_softcapping = 0.5, expected No"),
    ("gemma3_text", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "type = 'linear' in rope"),
    ("gemma3_text", {"rope_parameters": ROTARY}, "rope_theta in rope_parameters, expected an ent"),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    ("gemma", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5, "),
    ("ernie4_5", {"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5, expected 1.0"),
    ("llama", {"embed_scale": 2.0}, "embed_scale = 2.0, expected options of the family"),
    ("llama", {"use_sliding_window": True, "sliding_window": 4}, "use_sliding_window = True, exp"),
    ("llama", {"num_experts": 2, "num_experts_per_tok": 2}, "num_experts = 2, expected 0"),
    ("llama", {"layer_types": 6 * ["linear_attention"]}, "layer_types = list, expected .'full_"),
    ("phi", {"partial_rotary_factor": 0}, "partial_rotary_factor = 0, expected a positive number"),
    ("phi", {"qk_layernorm": True}, "qk_layernorm = True, expected False"),
    ("llama", {"rope_scaling": LLAMA3 | {TRAINED: 8}, TRAINED: 9}, f"{TRAINED} = 8 of a scaling, "),
    ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, f"{TRAINED} = None"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "finetuned": True}}, "finetuned = True of a"),
    ("llama", {"rope_theta": 9.0, "rope_parameters": {"rope_theta": 8.0}}, "rope_theta = 9.0 besi"),
    ("phi3", {"rope_scaling": SU, TRAINED: 8}, "short_factor = list, exp"),
    ("llama", {"is_causal": None}, "is_causal = None, expected True"),
    ("llama", {"add_cross_attention": True}, "add_cross_attention = True, expected False"),
    ("llama", {"hidden_act": "mish"}, "hidden_act = 'mish', expected gelu_new or"),
    ("llama", {"hidden_act": None}, "hidden_act = None, expected gelu_new or"),
    ("llama", {"rms_norm_eps": 2.0}, "rms_norm_eps = 2.0, expected a positive number below 1.0"),
    ("llama", {"head_dim": 0}, "head_dim = 0, expected a positive whole number"),
    ("llama", {"num_attention_heads": 5}, "5 heads at width 64"),
    ("llama", {"vocab_size": True}, "vocab_size = True, expected a positive whole number"),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": None}, "max_window_layers = None"),
    *((family, {"use_sliding_window": False, "layer_types": 6 * ["sliding_attention"]},
       "layer_types that slide with use_sliding_window = False, expected windows in both or in ne")
      for family in ("qwen2", "qwen2_moe", "qwen3")),
    ("smollm3", {"no_rope_layer_interval": None}, "no_rope_layer_interval = None, expected a pos"),
    ("olmo3", {"rope_theta": 9.0}, "rope_theta = 9.0, expected 500000.0"),
    ("llama", {"rope_theta": 0}, "rope_theta = 0, expected a positive number"),
    ("llama", {"rope_theta": "10000"}, "rope_theta = '10000', expected a positive number"),
    ("llama", {"rope_parameters": {"rope_theta": 0}}, "rope_theta = 0, expected a positive number"),
    ("qwen3_vl_text", {"rope_parameters": {"rope_theta": 0}}, "rope_theta = 0, expected a posit"),
    ("gpt_neox", {"rotary_emb_base": -1}, "rotary_emb_base = -1, expected a positive number"),
    ("hunyuan_v1_dense", {"rope_theta": 0, "rope_scaling": {"type": "dynamic", "alpha": 2.0}},
     "rope_theta = 0, expected a positive number"),
    *(("llama", {"rope_scaling": {"factor": 2.0, **kinds}},
       "rope_type and type = .*, expected one kind of scaling. Remove type")
      for kinds in ({"rope_type": "linear", "type": "yarn"},
                    {"rope_type": "default", "type": "linear"})),
    ("llama", {"rope_scaling": {"rope_type": ["linear"]}}, "rope_type = list, expected a text"),
    *((family, {name: value}, f"{name} = .*, expected a list of texts")
      for value in ("full_attention", 3, 6 * [["full_attention"]])
      for family, name in (("cohere2", "layer_types"), ("qwen3_5_text", "layer_types"),
                           ("kimi_linear", "layer_types"), ("bailing_hybrid", "layer_types"),
                           ("nemotron_h", "layers_block_type"), ("dots1", "mlp_layer_types"))),
    *((family, {name: 3}, f"{name} = 3, expected {kind}")
      for kind, pairs in (
          ("a list", (("qwen3_moe", "mlp_only_layers"), ("qwen3_next", "mlp_only_layers"),
                      ("bamba", "attn_layer_indices"), ("lfm2", "full_attn_idxs"),
                      ("gpt_neo", "attention_types"), ("llama4_text", "moe_layers"),
                      ("minimax", "attn_type_list"))),
          ("an object of names", (("llama", "rope_scaling"), ("llama", "rope_parameters"),
                                  ("kimi_linear", "linear_attn_config"),
                                  ("gemma4_text", "per_layer_config"))),
          ("a text", (("llama", "model_type"),)))
      for family, name in pairs),
    ("llama", {"model_type": ["llama"]}, "model_type = list, expected a text"),
    ("gpt_neo", {"attention_types": ["global"]}, "attention_types = list, expected 6 layers, glo"),
    ("gpt_neo", {"attention_types": [[[["global"]], 6]]}, "attention_types = list, expected 6 la"),
    ("gemma3_text", {"rope_parameters": {"full_attention": 3}}, "full_attention = 3, expected an "),
    *(("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, name: "x"}},
       f"{name} = 'x', expected a positive number")
      for name in ("factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow",
                   "attention_factor")),
    *((family, {"no_rope_layers": layers}, f"no_rope_layers = {got}, expected {words}")
      for layers, got, words in ((5, 5, "a list"), ([1, 0], "list", "6 of 0 or 1"),
                                 (7 * [1], "list", "6 of 0 or 1"), (6 * ["0"], "list", "6 of 0"))
      for family in ("smollm3", "llama4_text")),
    ("llama4_text", {"no_rope_layer_interval": 0}, "no_rope_layer_interval = 0, expected a posit"),
    *(("llama", {"rope_scaling": {"rope_type": "factors", "factors": factors}},
       f"factors = {got}, expected {words}")
      for factors, got, words in (([1.0], "list", "8 positive numbers, one"),
                                  (8 * [0], "list", "8 positive numbers, one"), (3, 3, "a list"))),
    ("llama", {"rope_scaling": {"rope_type": "ntk"}},
     "rope_type = 'ntk', expected default or linear or llama3 or yarn"),
    ("llama", {"head_dim": 1}, "1 rotated features in heads of 1, expected an even number of them"),
    ("llama", {"head_dim": 5}, "5 rotated features in heads of 5, expected an even number of them"),
    ("gpt_neox", {"rotary_pct": 0.2}, "3 rotated features in heads of 16, expected an even number"),
    ("gptj", {"rotary_dim": 1}, "1 rotated features in heads of 64, expected an even number"),
    ("hunyuan_v1_dense", {"head_dim": 5, "rope_scaling": {"type": "dynamic", "alpha": 2.0}},
     "5 rotated features in heads of 5, expected an even number"),
    ("llama", {"head_dim": 2, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
     "2 rotated features in heads of 2, expected an even number of them, at least 4"),
    *((family, {name: 9, "num_local_experts": 4, "num_experts": 4},
       f"{name} = 9, expected at most the 4 experts that there are")
      for family, name in (
          ("mixtral", "num_experts_per_tok"), ("qwen3_moe", "num_experts_per_tok"),
          ("olmoe", "num_experts_per_tok"), ("flex_olmo", "num_experts_per_tok"),
          ("cohere2_moe", "num_experts_per_tok"), ("granitemoe", "num_experts_per_tok"),
          ("gpt_oss", "num_experts_per_tok"), ("llama4_text", "num_experts_per_tok"),
          ("minimax_m2", "num_experts_per_tok"), ("qwen3_next", "num_experts_per_tok"),
          ("lfm2_moe", "num_experts_per_tok"), ("hunyuan_v1_moe", "moe_topk"))),
    ("ernie4_5_moe", {"moe_k": 9, "moe_num_experts": 4}, "moe_k = 9, expected at most the 4 exp"),
    ("gemma4_text", {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 9,
                     "moe_intermediate_size": 8}, "top_k_experts = 9, expected at most the 4 e"),
    ("granite", {"residual_multiplier": 0.0}, "residual_multiplier = 0.0, expected a positive nu"),
    ("granite", {"logits_scaling": True}, "logits_scaling = True, expected a positive number"),
    ("mistral", {"attention_bias": True}, "attention_bias = True, expected False"),
    ("mistral", {"rope_scaling": TEMPERED}, "llama_4_scaling_beta = 0.5 of a"),
    ("ministral3", {"rope_parameters": {"rope_theta": 9.0}}, "llama_4_scaling_beta = None, expect"),
    ("ministral3", {"rope_parameters": TEMPERED}, f"{TRAINED} = None, expected a positive whole"),
    ("ministral3", {"layer_types": 6 * ["sliding_attention"]}, "layer_types = list, expected .'f"),
    ("mimo", {"attention_bias": False}, "attention_bias = False, expected True"),
    ("qwen3_vl_moe_text", {"norm_topk_prob": False}, "norm_topk_prob = False, expected True"),
    ("qwen3_moe", {"qkv_bias": True}, "qkv_bias = True, expected False"),
    ("qwen3_moe", {"use_qk_norm": False}, "use_qk_norm = False, expected True"),
    ("qwen3_moe", {"shared_expert_intermediate_size": 9}, "shared_expert_intermediate_size = 9, "),
    ("mixtral", {"norm_topk_prob": False}, "norm_topk_prob = False, expected True"),
    ("phi", {"rotary_dim": 4}, "rotary_dim = 4, expected 8"),
    ("phi", {"partial_rotary_factor": 1.5}, "24 rotated features in heads of 16, expected no more"),
    ("gpt_neox", {"rotary_pct": 2.0}, "32 rotated features in heads of 16, expected no more"),
    ("gptj", {"rotary_dim": 66}, "66 rotated features in heads of 64, expected no more"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights = False, expected True"),
    ("gptj", {"rotary_dim": None}, "rotary_dim = None, expected a positive whole number"),
    ("gpt_neo", {"attention_types": [[["local"], 5]]}, "attention_types = list, expected 6 layer"),
    ("gpt_neo", {"window_size": None}, "window_size = None, expected a positive whole number"),
    ("gpt_neox", {"attention_bias": None}, "attention_bias = None, expected True"),
    ("opt", {"word_embed_proj_dim": 16}, "word_embed_proj_dim = 16, expected 64"),
    ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before = False, expected True"),
    ("opt", {"enable_bias": False}, "enable_bias = False, expected True"),
    ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine = False"),
    ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm = True, expected False"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_"),
    ("falcon", {"alibi": True}, "alibi = True, expected False"),
    ("falcon", {"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn = False"),
    ("deepseek_v2", {"n_shared_experts": 0}, "n_shared_experts = 0, expected a positive whole nu"),
    ("deepseek_v2", {"first_k_dense_replace": None}, "first_k_dense_replace = None, expected a wh"),
    ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method = 'noaux_tc', expected greedy or g"),
    ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob = True, expected False"),
    ("deepseek_v2", {"scoring_func": "sigmoid"}, "scoring_func = 'sigmoid', expected softmax"),
    ("deepseek_v2", {"moe_layer_freq": 2}, "moe_layer_freq = 2, expected 1"),
    ("deepseek_v2", {"ep_size": 2}, "ep_size = 2, expected 1"),
    ("deepseek_v2", {"routed_scaling_factor": None}, "routed_scaling_factor = None, expected a po"),
    ("deepseek_v3", {"rope_interleave": None}, "rope_interleave = None, expected True"),
    ("deepseek_v3", {"topk_group": 1, "num_experts_per_tok": 3}, "3 of 16 experts in 1 of 8"),
    ("deepseek_v3", {"n_group": 5}, "2 of 16 experts in 4 of 5 groups"),
    (
        "deepseek_v3", {"n_group": 16},
        "16 groups of 1 of 16 experts, expected at least 2 in each, by whose scores",
    ),
    ("deepseek_v3", {"attention_bias": True}, "attention_bias = True, expected False"),
    ("qwen3_moe", {"decoder_sparse_step": None}, "decoder_sparse_step = None, expected a whole"),
    ("llama4_text", {"interleave_moe_layer_step": 0}, "interleave_moe_layer_step = 0, expected a"),
    ("llama4_text", {"attention_chunk_size": 0}, "attention_chunk_size = 0, expected a positive"),
    ("qwen3_5_text", {"layer_types": ["conv"]}, "1 layers of .'conv'., expected 6 of full_atten"),
    ("qwen3_5_text", {"linear_num_value_heads": 3}, "3 heads of values and 16 of keys, expected"),
    ("qwen3_5_text", {"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim = 0, expected a posi"),
    ("qwen3_5_text", {"linear_key_head_dim": 0}, "linear_key_head_dim = 0, expected a positive"),
    ("qwen3_5_text", {"full_attention_interval": 0}, "full_attention_interval = 0, expected a po"),
    ("qwen3_5_text", {"attention_bias": True}, "attention_bias = True, expected False"),
    ("qwen3_5_moe_text", {"norm_topk_prob": False}, "norm_topk_prob = False, expected True"),
    ("qwen3_next", {"decoder_sparse_step": 0}, "decoder_sparse_step = 0, expected a positive"),
    ("bamba", {"mamba_n_groups": 3}, "128 heads in 3 groups, expected as many heads"),
    ("bamba", {"mamba_d_head": 3}, "128 heads of 3, expected the width 128 together"),
    ("bamba", {"mamba_n_heads": 96}, "96 heads of width 128, expected heads of one width"),
    ("bamba", {"mamba_n_heads": None}, "mamba_n_heads = None, expected a positive whole number"),
    ("bamba", {"time_step_limit": [0.2, 0.1]}, "time_step_limit = list, expected two numbers"),
    ("bamba", {"time_step_limit": 0.1}, "time_step_limit = 0.1, expected two numbers"),
    ("bamba", {"partial_rotary_factor": 1.0}, "partial_rotary_factor = 1.0, expected 0.5"),
    ("granitemoehybrid", {"position_embedding_type": "alibi"}, "position_embedding_type = 'alibi'"),
    ("granitemoehybrid", {"num_local_experts": -1}, "num_local_experts = -1, expected a whole"),
    ("falcon_h1", {"ssm_multipliers": [1.0]}, "ssm_multipliers = list, expected 5 positive numb"),
    ("qwen3_next", {"linear_num_value_heads": 4, "linear_num_key_heads": 3},
     "4 heads of values and 3 of keys, expected as many values for each key"),
    ("falcon_h1", {"mamba_d_head": 1}, "128 heads of 1, expected the width 1024 together"),
    ("falcon_h1", {"mlp_multipliers": [0, 1]}, "mlp_multipliers = 0, expected a positive number"),
    ("nemotron_h", {"hybrid_override_pattern": "M+"}, "hybrid_override_pattern = 'M.', expected"),
    ("nemotron_h", {"hybrid_override_pattern": "ME"}, "num_hidden_layers = 6, expected 2"),
    ("nemotron_h", {"hybrid_override_pattern": None}, "hybrid_override_pattern = None, expected"),
    ("nemotron_h", {"moe_latent_size": 4, "mlp_bias": True}, "mlp_bias = True, expected False"),
    ("nemotron_h", {"num_experts_per_tok": 9}, "9 of 8 experts in 1 of 1 groups"),
    ("nemotron_h", {"time_step_min": 0}, "time_step_min = 0, expected a positive number"),
    ("nemotron_h", {"time_step_limit": [0.0, 0.1]}, "time_step_limit from 0.0 to 0.1, expected"),
    ("nemotron_h", {"sliding_window": 8}, "sliding_window = 8, expected None"),
    ("lfm2", {"conv_dim": 8}, "conv_dim = 8, expected 64"),
    ("lfm2", {"block_multiple_of": 0}, "block_multiple_of = 0, expected a positive whole"),
    ("lfm2_moe", {"layer_types": None}, "0 layers of .., expected 6 of full_attention or conv"),
    ("olmo_hybrid", {"layer_types": 6 * ["mamba2"]}, "6 layers of .'mamba2'., expected 6 of"),
    ("deepseek_v32", {"index_topk": 0}, "index_topk = 0, expected a positive whole number"),
    ("glm_moe_dsa", {"layer_types": 6 * ["full_attention"]}, "layer_types = 'full_attention', exp"),
    ("glm_moe_dsa", {"mlp_layer_types": ["dense"]}, r"mlp_layer_types = \['dense'\], expected 6"),
    ("glm_moe_dsa", {"num_experts": 3}, "num_experts = 3, expected 16"),
    ("glm4_moe_lite", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5, expected 1.0"),
    ("solar_open", {"use_qk_norm": True}, "use_qk_norm = True, expected False"),
    ("solar_open", {"first_k_dense_replace": 1}, "first_k_dense_replace = 1, expected 0"),
    ("dots1", {"scoring_func": "softmax"}, "scoring_func = 'softmax', expected sigmoid"),
    ("dots1", {"topk_method": "greedy"}, "topk_method = 'greedy', expected noaux_tc"),
    ("bailing_hybrid", {"layer_group_size": 4}, "6 layers in groups of 4, expected groups of one"),
    ("bailing_hybrid", {"kda_lower_bound": 5}, "kda_lower_bound = 5, expected a negative number"),
    ("kimi_linear", {"linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2]}},
     "kda_layers, expected all layers that are not in full_attn_layers"),
    ("kimi_linear", {"linear_attn_config": {"gate_lower_bound": -5.0}}, "gate_lower_bound = -5.0"),
    ("minimax", {"attn_type_list": [0, 1, 0, 1, 2, 1]}, r"6 layers of \['2', 'full_attention'"),
    ("minimax_m2", {"attn_type_list": [1, 0]}, "attn_type_list = list, expected the same in ev"),
    ("minimax_m2", {"attn_type_list": 6 * [0]}, "attn_type_list = 0, expected 1"),
    ("cwm", {"attention_bias": True}, "attention_bias = True, expected False"),
    ("iquestcoder", {"clip_qkv": 8.0}, "clip_qkv = 8.0, expected None"),
    ("iquestcoder", {"use_sliding_window": True}, "use_sliding_window = True, expected False"),
    ("internlm3", {"qkv_bias": True}, "bias = False, expected True"),
    ("apertus", {"hidden_act": "silu"}, "hidden_act = 'silu', expected xielu"),
    ("apertus", {"qk_norm": False}, "qk_norm = False, expected True"),
    ("olmo", {"clip_qkv": -1.0}, "clip_qkv = -1.0, expected a positive number"),
    ("olmo", {"rms_norm_eps": 1e-6}, "rms_norm_eps = 1e-06, expected 1e-05"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv = 8.0, expected None"),
    ("phimoe", {"num_experts_per_tok": 1}, "num_experts_per_tok = 1, expected 2"),
    ("phimoe", {"rope_scaling": {"type": "linear", "factor": 2.0, "short_mscale": 1.0}},
     "rope_type = 'linear', expected longrope"),
    ("qwen2_moe", {"attention_bias": False}, "attention_bias = False, expected True"),
    ("ernie4_5_moe", {"use_bias": True}, "use_bias = True, expected False"),
    ("ernie4_5_moe", {"moe_norm_min": 0.1}, "moe_norm_min = 0.1, expected 1e-12"),
    ("hunyuan_v1_moe", {"moe_topk": [1, 2]}, "moe_topk = list, expected the same in every layer"),
    ("vaultgemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True, ex"),
    ("gemma4_text", {"num_kv_shared_layers": 2}, "num_kv_shared_layers = 2, expected no layers"),
    ("gemma4_text", {"hidden_size_per_layer_input": None, "use_bidirectional_attention": "all"},
     "use_bidirectional_attention = 'all', expected None"),
    ("gemma4_text", {"hidden_size_per_layer_input": 8}, "hidden_size_per_layer_input = 8, expec"),
    ("gemma4_text", {"per_layer_config": {"0": {"head_dim": 8}}}, "per_layer_config = {'0': "),
    ("gemma4_text", {"enable_moe_block": True}, "num_experts = None, expected a positive whole"),
    ("youtu", {"attention_bias": True}, "attention_bias = True, expected False"),
    ("cohere2_moe", {"expert_selection_fn": "max"}, "expert_selection_fn = 'max', expected soft"),
    ("cohere2_moe", {"shared_expert_combination_strategy": "max"}, "shared_expert_combination_str"),
    ("cohere2_moe", {"mlp_layer_types": ["dense"]}, r"mlp_layer_types = \['dense'\], expected 6"),
    ("cohere2_moe", {"mlp_bias": True}, "mlp_bias = True, expected False"),
    ("exaone_moe", {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern = 'LLLG', expected"),
    ("exaone4", {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern = 'LLLG', expected a"),
    ("exaone_moe", {"num_experts": 8, "n_routed_experts": 16}, "num_experts = 8, expected 16"),
    ("flex_olmo", {"mlp_bias": True}, "mlp_bias = True, expected False"),
    ("gpt_bigcode", {"scale_attn_weights": False}, "scale_attn_weights = False, expected True"),
    ("granite_swa", {"layer_rope_theta": [1.0]}, "layer_rope_theta = list, expected 6 numbers, o"),
    ("granite_swa", {"layer_rope_theta": 6 * [-1]}, "layer_rope_theta = -1, expected a positive"),
    ("hy_v3", {"mlp_bias": True}, "mlp_bias = True, expected False"),
    ("minicpm3", {"rope_interleave": True}, "rope_interleave = True, expected False"),
    ("minicpm3", {"scale_depth": 0}, "scale_depth = 0, expected a positive number"),
    ("mpt", {"attn_config": {"alibi": False}}, "alibi = False, expected True"),
    ("mpt", {"attn_config": {"alibi_bias_max": 16}}, "alibi_bias_max = 16, expected 8"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln = True, expected False"),
    ("mpt", {"attn_config": {"gate": 1}}, "gate = 1, expected options of the family"),
    ("mpt", {"attn_config": 8}, "attn_config = 8, expected an object of names and values"),
    ("mpt", {"logit_scale": 0.1}, "logit_scale = 0.1, expected None"),
    ("nanochat", {"mlp_bias": True}, "mlp_bias = True, expected False"),
    *((family, options | {name: "2"}, f"{name} = '2', expected a {kind}")
      for family, name, kind, options in (
          ("deepseek_v2", "n_group", "positive whole", {"topk_method": "group_limited_greedy"}),
          ("deepseek_v2", "topk_group", "positive whole", {"topk_method": "group_limited_greedy"}),
          ("deepseek_v3", "num_nextn_predict_layers", "whole number from zero", {}),
          ("minimax_m2", "num_mtp_modules", "whole number from zero", {}),
          ("minimax_m2", "mtp_transformer_layers", "whole number from zero", {}),
          ("lfm2", "block_ff_dim", "positive whole", {}),
          ("lfm2", "block_ffn_dim_multiplier", "positive number", {}),
          ("falcon_h1", "mamba_d_ssm", "positive whole", {}),
          ("olmo_hybrid", "linear_key_head_dim", "positive whole", {}),
          ("olmo_hybrid", "linear_num_key_heads", "positive whole", {}))),
    *(("phi3", {"rope_scaling": SU | {"short_factor": 8 * [factor]}, TRAINED: 8},
       "short_factor = list, expected 8 positive numbers")
      for factor in (True, float("inf"), float("nan"), "2")),
    *((family, {name: layers}, f"{name} = list, expected a list of layers, each from 0 to 5")
      for layers in ([1, 99], ["1"], [-1], [True])
      for family, name in (("bamba", "attn_layer_indices"), ("lfm2", "full_attn_idxs"),
                           ("qwen3_moe", "mlp_only_layers"), ("qwen3_next", "mlp_only_layers"),
                           ("llama4_text", "moe_layers"))),
]  # fmt: skip


@pytest.mark.parametrize("family, options, words", REFUSED)
def test_options_of_other_networks_are_refused(family, options, words):
    config = least(family, **options)
    with pytest.raises(ValueError, match=f"^config.json: got {words}"):
        recipe_of(config)
        refuse_unknown(config)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize("family", FAMILIES)
def test_an_option_of_another_type_is_refused_in_words(family):
    """Of every option that the family reads: what means nothing there fails nowhere else."""
    usual = least(family)
    recipe_of(usual)
    for name in sorted(usual.read_names):
        for value in ("1", True, [1], {"a": 1}):
            try:
                recipe_of(least(family, **{name: value}))
            except ValueError as refused:
                assert ", expected " in str(refused), (name, value)


@pytest.mark.parametrize("stated", ["LlamaForCausalLM", 3, [["LlamaForCausalLM"]]])
def test_architectures_are_a_list_of_names(stated):
    """A name by itself was read letter by letter."""
    with pytest.raises(
        ValueError, match="^config.json: got architectures = .*, expected a list of"
    ):
        refuse_other_architectures(least("llama", architectures=stated), "llama")
    refuse_other_architectures(least("llama", architectures=None), "llama")
    refuse_other_architectures(least("llama", architectures=["LlamaForCausalLM"]), "llama")


TOLD = {
    "Mamba": {"mamba_n_heads": 3},
    "linear attention": {"layer_types": ["linear_attention"]},
    "cross-attention": {"cross_attention_layers": [3]},
    "short convolution": {"conv_L_cache": 3},
    "indexed attention": {"index_topk": 9},
}
STEP = {"model_type": "step3p7"}


@pytest.mark.parametrize(
    "family, layers",
    [
        ("mamba", "Mamba"),
        ("jamba", "Mamba"),
        ("rwkv", "linear attention"),
        ("recurrent_gemma", "recurrent"),
    ],
)
def test_networks_of_other_layers_are_refused_by_name(family, layers):
    """As are those that differ otherwise; those that nobody knows by what their options tell."""
    with pytest.raises(
        ValueError, match=f"'{family}' with {layers} layers, expected a known family, w"
    ):
        recipe_of(Configuration({"model_type": family}))
    with pytest.raises(ValueError, match="model_type = 'bert', expected one of the"):
        recipe_of(Configuration({"model_type": "bert"}))
    for kind, more in TOLD.items():
        with pytest.raises(ValueError, match=f"'new' with {kind} layers, expected a known family"):
            recipe_of(least("llama", **more, model_type="new"))
    with pytest.raises(
        ValueError, match="'step3p7' with layers that differ in their numbers of he"
    ):
        recipe_of(Configuration({"model_type": "multimodal", "text_config": STEP}))
    with pytest.raises(ValueError, match="'longcat_flash' with experts whose output goes around"):
        recipe_of(Configuration({"model_type": "longcat_flash", "zero_expert_num": 256}))
    with pytest.raises(ValueError, match="'nemotron-nas' with layers that differ in their sizes"):
        recipe_of(Configuration({"model_type": "nemotron-nas", "intermediate_size": None}))


@pytest.mark.parametrize(
    "family, more, slides",
    [
        ("qwen2_moe", {"use_sliding_window": True, "max_window_layers": 4}, {0, 2}),
        ("dots1", {"max_window_layers": 4}, {4, 5}),
        ("dots1", {"max_window_layers": 4, "sliding_window": None}, set()),
    ],
)
def test_layers_slide_where_nothing_is_said_of_each(family, more, slides):
    masks = recipe_of(least(family, **more)).masks
    assert {k for k, mask in enumerate(masks) if mask.window is not None} == slides


@pytest.mark.parametrize(
    "more, dense",
    [
        ({"moe_layer_end_index": 3, "moe_layer_interval": 2}, {0, 2, 4, 5}),
        ({"moe_layer_start_index": 0, "moe_layer_end_index": None}, set()),
        ({"moe_layer_start_index": 4, "moe_num_shared_experts": 0}, {0, 1, 2, 3}),
    ],
)
def test_layers_of_ernie_have_experts_from_one_to_another(more, dense):
    recipe: Any = recipe_of(least("ernie4_5_moe", **more))
    mixture = recipe.network
    assert mixture.dense_layers == dense
    assert (mixture.shared is None) == ("moe_num_shared_experts" in more)


def test_full_layers_of_gemma_4_have_sizes_of_their_own_and_the_last_is_one_of_them():
    sliding = 6 * ["sliding_attention"]
    own: Any = {"attention_k_eq_v": True, "num_global_key_value_heads": 2}
    for more, full in (
        (own, (512, 2)),
        ({"num_global_key_value_heads": 2, "global_head_dim": 10}, (10, 4)),
        ({"per_layer_config": {"5": {"num_key_value_heads": 1}}}, (256, 1)),
    ):
        recipe = recipe_of(least("gemma4_text", layer_types=sliding, **more))
        sizes = [(layer.sizes.head_dim, layer.sizes.num_kv_heads) for layer in recipe.layers]
        assert sizes == 5 * [(256, 4)] + [full]
        assert recipe.masks[-1].window is None


def test_phi_3_may_say_a_length_that_no_scaling_goes_by():
    config = least("phi3", **{TRAINED: 4096})
    assert recipe_of(config).masks[0].positions == Rotary(rotary_frequencies(16))
    refuse_unknown(config)


def test_layers_of_linear_attention_are_those_that_files_list():
    own = {"full_attn_layers": [4, 6], "kda_layers": [1, 2, 3, 5]}  # counted from 1
    for family, more, full in (
        ("kimi_linear", {"linear_attn_config": own}, {3, 5}),
        ("kimi_linear", {}, {4}),
        ("bailing_hybrid", {"layer_group_size": 3}, {2, 5}),
        ("minimax", {}, {0, 2, 4}),
        ("minimax_m1", {"attn_type_list": [0, 0, 1, 0, 0, 1], "rotary_dim": 4}, {2, 5}),
    ):
        config = least(family, **more)
        recipe = recipe_of(config)
        refuse_unknown(config)
        last = recipe.layers[max(full)]
        assert {k for k, own in enumerate(recipe.layers) if own == last} == full
        assert last.masks[0].rotary_dim == more.get("rotary_dim", last.masks[0].rotary_dim)


@pytest.mark.parametrize(
    "family, more, full",
    [
        ("lfm2", {}, {0, 1, 2, 3, 4, 5}),
        ("lfm2", {"full_attn_idxs": [2, 4]}, {2, 4}),
        ("bamba", {}, set()),
        ("bamba", {"attn_layer_indices": [1, 5]}, {1, 5}),
        ("granitemoehybrid", {}, set()),
        ("qwen3_next", {}, {3}),
        ("qwen3_5_text", {"full_attention_interval": 3}, {2, 5}),
        ("olmo_hybrid", {}, {3}),
        ("nemotron_h", {}, {2}),
    ],
)
def test_layers_of_attention_among_others_are_the_publishers(family, more, full):
    recipe = recipe_of(least(family, **more))
    layers = {
        k for k, layer in enumerate(recipe.layers) if layer.attention is sublayers.read_attention
    }
    assert layers == full


def test_the_first_layers_of_lfm2_are_dense_two_where_nothing_is_said():
    for more, dense in (({}, [0, 1]), ({"num_dense_layers": 3}, [0, 1, 2])):
        layers = recipe_of(least("lfm2_moe", **more)).layers
        assert [k for k, one in enumerate(layers) if one.network is sublayers.gated_mlp] == dense


def test_null_is_as_good_as_false():
    config = least("llama", add_cross_attention=None, pruned_heads=None, attention_bias=None)
    assert recipe_of(config).biases == (False, False, False, False)
    refuse_unknown(config)


@pytest.mark.parametrize(
    "family, name",
    [
        ("afmoe", "mup_enabled"),
        ("bailing_hybrid", "kda_safe_gate"),
        ("cohere", "use_qk_norm"),
        ("falcon", "bias"),
        ("gemma4_text", "enable_moe_block"),
        ("glm4_moe", "use_qk_norm"),
        ("gpt_neox", "use_parallel_residual"),
        ("hyperclovax", "use_post_norm"),
        ("internlm3", "bias"),
        ("internlm3", "qkv_bias"),
        ("lfm2", "block_auto_adjust_ff_dim"),
        ("lfm2", "tie_embedding"),
        ("lfm2_moe", "use_expert_bias"),
        ("llama", "attention_bias"),
        ("llama", "tie_word_embeddings"),
        ("llama4_text", "attn_temperature_tuning"),
        ("llama4_text", "use_qk_norm"),
        ("olmo_hybrid", "linear_allow_neg_eigval"),
        ("qwen2", "use_sliding_window"),
        ("qwen2_moe", "use_sliding_window"),
        ("qwen3_moe", "norm_topk_prob"),
        ("qwen3_moe", "use_sliding_window"),
        ("sarvam_moe", "use_qk_norm"),
        ("smollm3", "use_sliding_window"),
        ("stablelm", "qk_layernorm"),
        ("starcoder2", "use_bias"),
    ],
)
@pytest.mark.parametrize("value", ["false", 2, [False]])
def test_a_flag_is_true_or_false_and_no_text(family, name, value):
    """A text is true in Python, also if it says false."""
    with pytest.raises(ValueError, match=f"got {name} = .*, expected true or false. Download"):
        recipe_of(least(family, **{name: value}))


def test_zero_and_one_are_as_good_as_false_and_true():
    for value in (0, 1):
        assert recipe_of(least("llama", attention_bias=value)).biases.qkv is bool(value)


@pytest.mark.parametrize("family", ["smollm3", "llama4_text"])
def test_no_rope_layers_says_which_layers_have_rotary_positions(family):
    """Despite its name; an empty list says nothing."""
    stated = [1, 0, 0, 1, 1, 0]
    masks = recipe_of(least(family, no_rope_layers=stated, no_rope_layer_interval=None)).masks
    assert [int(mask.rotary_dim > 0) for mask in masks] == stated
    assert recipe_of(least(family, no_rope_layers=[])).masks == recipe_of(least(family)).masks


def test_llama_4s_first_files_say_four_for_true():
    masks = recipe_of(least("llama4_text", attn_temperature_tuning=4)).masks
    assert masks == recipe_of(least("llama4_text")).masks


def test_a_head_size_of_null_shares_the_width():
    assert recipe_of(least("qwen3", head_dim=None)).sizes.head_dim == 16


YARN = {"rope_type": "yarn", "factor": 4.0, TRAINED: 32}
LINEAR = {"rope_type": "linear", "factor": 8.0}
GEMMA3 = {"model_type": "gemma3_text", "max_position_embeddings": 40}


@pytest.mark.parametrize(
    "config, trained",
    [
        ({}, None),
        ({"max_position_embeddings": 40}, 40),
        ({"n_positions": 30}, 30),
        ({"max_position_embeddings": 40, "rope_scaling": YARN}, 128),
        ({"max_position_embeddings": 200, "rope_parameters": YARN}, 200),
        ({"max_position_embeddings": 40, "rope_scaling": {"factor": 2.0}}, 80),
        ({"max_position_embeddings": 40, "rope_parameters": {"full_attention": YARN}}, 128),
        ({"max_position_embeddings": 40, TRAINED: 16, "rope_parameters": {"factor": 5.0}}, 80),
        ({"max_position_embeddings": 40, "rope_scaling": LINEAR}, 320),
        (GEMMA3 | {"rope_scaling": LINEAR}, 40),
        (GEMMA3 | {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": {}}}, 40),
        (GEMMA3 | {"rope_parameters": {"full_attention": YARN}}, 128),
    ],
)
def test_how_many_tokens_a_network_was_made_for(config, trained):
    assert trained_length(Configuration(config)) == trained


# What published files say besides, which changes no number as long as it says this.
SAID = {
    "afmoe": {
        "n_group": 1, "num_expert_groups": 1, "num_limited_groups": 1, "route_norm": True,
        "score_func": "sigmoid", "topk_group": 1,
    },
    "cohere2": {
        "layer_switch": 4, "order_of_interleaved_layers": "local_attn_first", "rotary_pct": 1.0,
        "position_embedding_type": "rope_gptj", "use_embedding_sharing": True,
        "use_gated_activation": True, "use_parallel_block": True,
    },
    "cohere2_moe": {"layer_switch": 4, "use_parallel_block": True},
    "mpt": {"expansion_ratio": 4, "no_bias": True},
    "sarvam_moe": {
        "moe_router_enable_expert_bias": True, "score_function": "sigmoid", "use_bias": False,
    },
    "falcon": {"apply_residual_connection_post_layernorm": False, "ff_factor": 4},
    "gemma": {"hidden_activation": "gelu_pytorch_tanh"},
    "gemma2": {"sliding_window_size": WIDE},
    "glm4_moe_lite": {
        "ep_size": 1, "moe_layer_freq": 1, "moe_router_dtype": "float32", "num_experts": 16,
        "partial_rotary_factor": 1.0, "rope_interleave": True, "topk_method": "noaux_tc",
    },
    "gptj": {"rotary": True, "scale_attn_weights": True},
    "granitemoehybrid": {"normalization_function": "rmsnorm"},
    "hunyuan_v1_dense": {
        "attention_head_dim": 16, "norm_type": "hf_rms", "position_embedding_xdrope": False,
        "use_cla": False, "use_qk_norm": True, "use_rotary_pos_emb": True,
    },
    "lfm2": {
        "block_dim": 64, "block_norm_eps": 1e-5, "block_use_swiglu": True, "conv_dim": 64,
        "conv_dim_out": 64, "num_heads": 4, "use_pos_enc": True,
    },
    "hunyuan_v1_moe": {
        "group_limited_greedy": False, "moe_intermediate_size": 40, "moe_layer_num_skipped": 0,
        "norm_topk_prob": True, "num_shared_expert": 1, "use_mla": False,
    },
    "minimax_m2": {
        "attn_type_list": 1, "layernorm_full_attention_beta": 1.0, "layernorm_mlp_alpha": 1.0,
        "qk_norm_type": "per_layer", "scoring_func": "sigmoid", "shared_intermediate_size": 0,
        "use_qk_norm": True, "use_routing_bias": True,
    },
    "bailing_hybrid": {
        "gated_attention_proj_granularity_type": "head_wise", "group_norm_size": 1,
        "linear_silu": True, "no_kda_lora": True, "score_function": "sigmoid", "use_nGPT": False,
        "use_mla_nope": False, "use_qk_norm": True, "value_norm": False,
    },
    "kimi_linear": {"mla_use_nope": True, "moe_layer_freq": 1, "use_grouped_topk": True},
    "minimax": {"postnorm": True, "shared_intermediate_size": 0},
    "nemotron": {"kv_channels": 16, "layer_norm_eps": 1e-5},
    "nemotron_h": {"n_shared_experts": 1, "norm_eps": 1e-5, "mamba_proj_bias": False},
    "phi3": {
        "attention_bias": False, "full_attn_mod": 1, "interpolate_factor": 1,
        "lm_head_bias": False, "mlp_bias": False,
    },
    "qwen3_5_text": {"attn_output_gate": True, "output_gate_type": "swish"},
    "starcoder2": {
        "layer_norm_epsilon": 1e-5, "mlp_type": "default", "norm_type": "layer_norm",
        "scale_attn_weights": True,
    },
}  # fmt: skip
# And what changes none, whatever it says.
IDLE = {
    "afmoe": ("auto_map", "load_balance_coeff", "use_grouped_mm"),
    "apertus": ("post_norm",),
    "bloom": ("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion",
              "offset_alibi", "seq_length", "skip_bias_add", "skip_bias_add_qkv"),
    "cohere2": ("cache_implementation", "use_parallel_embedding"),
    "deepseek_v3": ("auto_map",), "gemma2": ("cache_implementation",),
    "exaone4": ("_num_mtp_layers", "mtp_share_layers", "num_nextn_predict_layers"),
    "glm_moe_dsa": ("head_dim", "index_n_heads", "index_topk_freq", "indexer_types", "qk_head_dim"),
    "hunyuan_v1_dense": ("class_num", "cla_share_factor", "anyres_pooling_size",
                         "vit_token", "dense_list", "enc_head_dim", "pad_id", "im_end_id",
                         "mask_init_id", "org_vocab_size", "pool_type",
                         "routed_scaling_factor", "text_end_id"),
    "hunyuan_v1_moe": ("dense_list", "kv_lora_rank", "moe_drop_tokens", "num_media_embeds"),
    "iquestcoder": ("max_window_layers", "sliding_window"),
    "llama": ("_flash_attn_2_enabled", "max_length", "num_beams", "repetition_penalty", "typical_p",
              "suppress_tokens", "unsloth_fixed", "unsloth_version"),
    "minimax_m2": ("mlp_intermediate_size", "shared_moe_mode", "use_mtp"),
    "bailing_hybrid": ("mtp_use_kda", "partial_rotary_factor", "router_dtype"),
    "kimi_linear": ("rope_theta",), "minimax": ("block_size", "shared_moe_mode"),
    "opt": ("activation_dropout", "prefix"), "phi3": ("auto_map",),
    "falcon_h1": ("mamba_chunk_size", "mlp_expansion_factor", "time_step_max"),
    "granitemoehybrid": ("init_method", "rope_theta"),
    "lfm2": ("block_out_init_scale", "conv_use_xavier_init"),
    "nemotron_h": ("mtp_layers_block_type", "rescale_prenorm_residual", "rope_theta"),
    "qwen3_5_text": ("mamba_ssm_dtype", "mtp_num_hidden_layers"),
    "smollm3": ("max_window_layers",),
    "starcoder2": (
        "activation_function", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"
    ),
    "phimoe": ("expert_dropout", "router_dropout_prob", "expert_pdrop"),
    "gpt_bigcode": ("inference_runner", "pad_key_length", "pre_allocate_kv_cache"),
    "hy_v3": ("enable_moe_fp32_combine",), "exaone_moe": ("num_nextn_predict_layers",),
    "mpt": ("emb_pdrop", "embedding_fraction", "init_config", "learned_pos_emb", "max_seq_len"),
    "youtu": ("embedding_initializer_range", "head_dim"),
}  # fmt: skip


@pytest.mark.parametrize("family", sorted(SAID | IDLE))
def test_what_published_files_say_besides_is_taken(family):
    config = least(family, **SAID.get(family, {}), **dict.fromkeys(IDLE.get(family, ()), 3))
    recipe = recipe_of(config)
    expected = recipe_of(least(family))
    refuse_unknown(config)
    closures = family in {*MIXTURES, *LATENTS, "falcon_h1"} or bool(recipe.layers)
    made_anew: dict[str, Any] = (
        {"network": None, "attention": None, "layers": ()} if closures else {}
    )
    assert recipe._replace(**made_anew) == expected._replace(**made_anew)
    for name, value in SAID.get(family, {}).items():
        other = "other" if isinstance(value, str) else 2 * value + 1
        with pytest.raises(ValueError, match=f"got {name} = {other}|got {name} = 'other'"):
            recipe_of(least(family, **{name: other}))


# What other families' options say of a network that does so anyway.
SAME = [
    ("qwen3_moe", {"qkv_bias": False, "use_qk_norm": True, "shared_expert_intermediate_size": 0}),
    ("phi", {"attention_bias": False, "rotary_dim": 8}),
    ("llama", {"rope_theta": 10_000, "rope_parameters": {"rope_theta": 1e4}}),
    ("llama", {"image_token_id": 9, "internal_version": "7b", "rope_interleaved": False}),
    ("llama", {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 28}),
    ("llama", {"num_local_experts": 0, "num_experts_per_tok": 2, "norm_topk_prob": False}),
    ("qwen3", {"mlp_only_layers": [], "decoder_sparse_step": 1, "norm_topk_prob": True}),
    ("llama", {"activation": "swiglu", "num_query_groups": 4}),
    ("bloom", {"n_head": None, "num_attention_heads": 4, "n_layer": None, "num_hidden_layers": 6}),
    ("gpt2", {"n_embd": None, "hidden_size": 64, "num_hidden_layers": 6, "_num_labels": 1}),
    ("phimoe", {"original_max_position_embeddings": 32}),  # beside no scaling
    ("llama", {"attn_implementation": "eager", "neftune_noise_alpha": 5, "num_logits_to_keep": 1}),
    ("minimax_m2", {"layernorm_linear_attention_beta": 1.0}),
    ("llama", {"layer_types": 6 * ["full_attention"], "head_dim": 16, "partial_rotary_factor": 1}),
    ("llama", {"attention_multiplier": 0.25, "logits_scaling": 1, "hidden_activation": "swish"}),
    ("mimo", {"attention_bias": True, "num_nextn_predict_layers": 1, "use_mrope": False}),
    ("mixtral", {"scoring_func": "softmax", "n_group": 1, "n_shared_experts": 0, "use_mtp": False}),
    ("gpt_neox", {"rotary_dim": 4, "parallel_attn": True, "use_bias": True, "n_embd": 64}),
    ("gemma2", {"use_gemma_norm": True, "attention_multiplier": 1 / 16, "alibi": False}),
]  # fmt: skip


@pytest.mark.parametrize("family, options", SAME)
def test_options_of_other_families_may_say_what_a_network_does_anyway(family, options):
    config = least(family, **options)
    plain = least(family)
    recipe = recipe_of(config)
    expected = recipe_of(plain)
    refuse_unknown(config)
    assert recipe._replace(network=None, names=None) == expected._replace(network=None, names=None)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_options_of_other_families_may_say_what_a_network_does(family):
    config = least(family)
    implied = implied_options(config, recipe_of(config))
    said = {name: values[0] for name, values in implied.items() if values}
    unread = {name: value for name, value in said.items() if name not in config.read_names}
    stated = Configuration(unread | dict(config.options))
    refuse_unknown(stated)
    recipe = recipe_of(stated)
    expected = recipe_of(config)
    assert unread and recipe.sizes == expected.sizes and recipe.masks == expected.masks


def test_what_options_of_other_families_say_otherwise_is_refused_by_name():
    config = least("qwen3_moe")
    implied = implied_options(config, recipe_of(config))
    names = implied.keys() - config.read_names - HARMLESS
    assert len(names) > 90
    for name in names:
        said = Configuration({name: "other"})
        with pytest.raises(ValueError, match=f"config.json: got {name} = 'other', expected"):
            refuse_unknown_beside(said, implied)


def test_the_base_of_layers_that_are_not_there_says_nothing():
    windows = {"num_hidden_layers": 4, "layer_types": 4 * ["sliding_attention"]}
    config = least("gemma3_text", rope_theta=5e4, **windows)
    refuse_unknown(config)
    assert recipe_of(config) == recipe_of(least("gemma3_text", **windows))


def test_ministral_3_grows_queries_from_its_length_of_training_on():
    rotary: Any = recipe_of(least("ministral3")).masks[0].positions
    tempered = rotary.tempered
    assert (tempered.scale, tempered.floor, tempered.from_zero) == (0.1, 16384, True)
    assert rotary.amplitude == 1 and rotary.rotary_dim == 128
    np.testing.assert_allclose(rotary.frequencies[-1], 1e6 ** (-63 / 64) / 16)  # YaRN's factor
    plain = least("ministral3", rope_parameters=TEMPERED | {"llama_4_scaling_beta": 0.0})
    assert type(recipe_of(plain).masks[0].positions) is Rotary
    slides = recipe_of(least("ministral3", sliding_window=4)).masks
    assert {mask.window for mask in slides} == {4}


def test_sections_of_rotary_positions_play_no_part_in_text():
    plain = rotary_frequencies(16)
    sections = {"mrope_section": [4, 2, 2]}
    for rope in ({"type": "mrope"}, {"rope_type": "default", "mrope_interleaved": True}):
        config = least("qwen2_vl_text", rope_theta=1e4, rope_scaling=rope | sections)
        assert recipe_of(config).masks[0].positions == Rotary(plain)


@pytest.mark.parametrize(
    "kinds", [{"type": "linear"}, {"rope_type": None}, {"rope_type": "linear", "type": "linear"}]
)
def test_a_kind_of_scaling_may_be_said_by_its_older_name_too(kinds):
    scaled = recipe_of(least("llama", rope_scaling={"type": "linear", "factor": 2.0} | kinds))
    slower = tuple(frequency / 2 for frequency in rotary_frequencies(16))
    assert scaled.masks[0].positions == Rotary(slower)
    mrope = {"rope_type": "default", "type": "mrope", "mrope_section": [4, 2, 2]}  # as published
    plain = recipe_of(least("qwen2_vl_text", rope_theta=1e4, rope_scaling=mrope))
    assert plain.masks[0].positions == Rotary(rotary_frequencies(16))


def test_gemma_may_say_no_activation_of_the_newer_name():
    config = least("gemma", hidden_act="gelu", hidden_activation=None)
    assert recipe_of(config).activation is tanh_gelu


class NamesOnly(Reader):
    """A reader of tensors of zeros, which keeps their names."""

    def __init__(self):
        self.names = []

    def __call__(self, name, *shape):
        self.names.append(name)
        return np.zeros(shape)

    def matrix(self, name, *shape):
        return self(name, *shape)


@pytest.mark.parametrize("network", ["", "mlp"])
@pytest.mark.parametrize(
    "read",
    [sublayers.gated_mlp, sublayers.fused_gated_mlp, sublayers.plain_mlp, sublayers.xielu_mlp],
)
def test_a_network_without_a_name_of_its_own_stands_in_its_layer(read, network):
    reader = NamesOnly()
    recipe = recipe_of(least("llama"))
    recipe = recipe._replace(names=recipe.names._replace(network=network))
    read(reader, "layers.0", recipe, RMSNorm(jax.device_put(np.ones(64)), 0.1), None)
    before = f"layers.0.{network}." if network else "layers.0."
    inside = [name.removeprefix(before) for name in reader.names]
    assert {"up_proj.weight", "down_proj.weight"} <= set(inside)
    parts = {name.split(".")[0] for name in inside}
    assert parts <= {"gate_proj", "up_proj", "down_proj", "act_fn"}
