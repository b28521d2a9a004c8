"""Files of llama.cpp beside their publishers' folders: the same network, number by number.

Names are those of llama.cpp's own table in the gguf package; what its conversion does besides is
done here apart. All numbers are such that half precision holds them.
"""

import re

import gguf
import jax
import numpy as np
import pytest
from reference import gguf_recorded, publishers

from lim_jax import models
from lim_jax.checkpoints import gguf_file
from lim_jax.checkpoints.families.family_table import recipe_of
from lim_jax.checkpoints.gguf_architectures import ARCHITECTURES, published_config
from lim_jax.checkpoints.options import Configuration

WIDTH = 16
HEADS = 4
GROUPS = 2
WORDS = 11
HIDDEN = 10
EXPERTS = 3
GATED = "gate_proj", "up_proj", "down_proj"
ETA = 2.0**-10
SIZES = {
    "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
    "intermediate_size": HIDDEN, "vocab_size": WORDS, "num_hidden_layers": 2, "rms_norm_eps": ETA,
    "rope_theta": 128.0, "max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
YARNS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 8,
}
LONG = {
    "rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0],
    "original_max_position_embeddings": 8, "attention_factor": 1.25, "partial_rotary_factor": 0.5,
}  # fmt: skip
FULL = "full_attention"
SLIDING = "sliding_attention"
MIXED = {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": 5}
# By architecture: its publisher's configuration, and llama.cpp's options besides the sizes.
CASES = {
    "llama": ({"model_type": "llama", "attention_bias": True, "mlp_bias": True}, {}),
    "llama, experts": (
        {
            "model_type": "mixtral", "num_local_experts": EXPERTS, "num_experts_per_tok": 2,
        },
        {"expert_count": EXPERTS, "expert_used_count": 2},
    ),
    "llama, wide heads": ({"model_type": "llama", "head_dim": 6}, {"rope.dimension_count": 6}),
    "qwen2": (
        {"model_type": "qwen2", "tie_word_embeddings": True, "rope_scaling": YARN}, YARNS,
    ),
    "qwen3": (
        {
            "model_type": "qwen3", "head_dim": 6,
            "rope_scaling": YARN | {"beta_fast": 2.0, "beta_slow": 0.5},
        },
        YARNS | {"rope.scaling.yarn_beta_fast": 2.0, "rope.scaling.yarn_beta_slow": 0.5},
    ),
    "qwen3moe": (
        {
            "model_type": "qwen3_moe", "head_dim": 6, "num_experts": EXPERTS,
            "num_experts_per_tok": 2, "moe_intermediate_size": 5, "norm_topk_prob": True,
            "rope_scaling": YARN | {"original_max_position_embeddings": 64},
        },
        MIXED | {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
    ),
    "gemma2": (
        {
            "model_type": "gemma2", "head_dim": 6, "sliding_window": 3, "query_pre_attn_scalar": 6,
            "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
            "tie_word_embeddings": True,
        },
        {
            "attention.sliding_window": 3, "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        {
            "model_type": "gemma3_text", "head_dim": 6, "sliding_window": 3,
            "query_pre_attn_scalar": 6, "tie_word_embeddings": True, "num_hidden_layers": 6,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "attention.sliding_window": 3, "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "gemma2, every third": (
        {
            "model_type": "gemma2", "head_dim": 6, "sliding_window": 3, "query_pre_attn_scalar": 6,
            "tie_word_embeddings": True, "num_hidden_layers": 4,
            "layer_types": [SLIDING, SLIDING, FULL, SLIDING],
        },
        {"attention.sliding_window": 3, "attention.sliding_window_pattern": 3},
    ),
    "gemma3, one by one": (
        {
            "model_type": "gemma3_text", "head_dim": 6, "sliding_window": 3,
            "query_pre_attn_scalar": 6, "tie_word_embeddings": True, "num_hidden_layers": 3,
            "layer_types": [FULL, SLIDING, FULL],
        },
        {
            "attention.sliding_window": 3,
            "attention.sliding_window_pattern": [False, True, False],
        },
    ),
    "phi3": (
        {
            "model_type": "phi3", "head_dim": 8, "sliding_window": 5, "rope_scaling": LONG,
            "original_max_position_embeddings": 8,
        },
        {
            "attention.sliding_window": 5, "rope.dimension_count": 4,
            "rope.scaling.attn_factor": 1.25, "rope.scaling.original_context_length": 8,
        },
    ),
    "phi3, whole": ({"model_type": "phi3"}, {"attention.sliding_window": 0}),
    "granite": (
        {
            "model_type": "granite", "embedding_multiplier": 3.0, "residual_multiplier": 0.25,
            "attention_multiplier": 0.125, "logits_scaling": 5.0,
        },
        {
            "embedding_scale": 3.0, "residual_scale": 0.25, "attention.scale": 0.125,
            "logit_scale": 5.0, "rope.scaling.finetuned": True,
        },
    ),
    "granitemoe": (
        {
            "model_type": "granitemoe", "num_local_experts": EXPERTS, "num_experts_per_tok": 2,
            "embedding_multiplier": 3.0, "residual_multiplier": 0.25,
            "attention_multiplier": 0.125, "logits_scaling": 5.0, "tie_word_embeddings": True,
        },
        {
            "expert_count": EXPERTS, "expert_used_count": 2, "embedding_scale": 3.0,
            "residual_scale": 0.25, "attention.scale": 0.125, "logit_scale": 5.0,
        },
    ),
    "granite, unsaid": ({"model_type": "granite", "attention_multiplier": 0.5}, {}),
    "olmo2": ({"model_type": "olmo2", "rope_scaling": YARN}, YARNS),
    "gpt-oss": (
        {
            "model_type": "gpt_oss", "head_dim": 16, "sliding_window": 3,
            "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": 5,
            "rope_scaling": YARN | {"original_max_position_embeddings": 64, "truncate": False},
        },
        MIXED | YARNS
        | {"attention.sliding_window": 3, "rope.scaling.original_context_length": 64},
    ),
    "gpt-oss, unscaled": (
        {
            "model_type": "gpt_oss", "head_dim": 6, "sliding_window": 3, "rope_parameters": {},
            "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": 5,
        },
        MIXED | {"attention.sliding_window": 3},
    ),
}  # fmt: skip


def norm_shapes(config):
    family = config["model_type"]
    names = ["post_attention_layernorm"]
    if family != "olmo2":
        names.append("input_layernorm")
    if family.startswith("gemma"):
        names.append("pre_feedforward_layernorm")
    if family.startswith("gemma") or family == "olmo2":
        names.append("post_feedforward_layernorm")
    return {f"{name}.weight": (config["hidden_size"],) for name in names}


def attention_shapes(config):
    found: dict[str, tuple[int, ...]] = {}
    family = config["model_type"]
    d = config["hidden_size"]
    size = config.get("head_dim", WIDTH // HEADS)
    q = HEADS * size
    kv = GROUPS * size
    if family == "phi3":
        return {"self_attn.qkv_proj.weight": (q + 2 * kv, d), "self_attn.o_proj.weight": (d, q)}
    for name, shape in {"q": (q, d), "k": (kv, d), "v": (kv, d), "o": (d, q)}.items():
        found[f"self_attn.{name}_proj.weight"] = shape
        biased = config.get("attention_bias") or family == "gpt_oss"
        if biased or (family == "qwen2" and name != "o"):
            found[f"self_attn.{name}_proj.bias"] = shape[:1]
    if family in ("qwen3", "qwen3_moe", "gemma3_text", "olmo2"):
        whole = family == "olmo2"
        found["self_attn.q_norm.weight"] = (q if whole else size,)
        found["self_attn.k_norm.weight"] = (kv if whole else size,)
    if family == "gpt_oss":
        found["self_attn.sinks"] = (HEADS,)
    return found


def gated_shapes(width, hidden, names):
    shapes = (hidden, width), (hidden, width), (width, hidden)
    return {f"{name}.weight": shape for name, shape in zip(names, shapes, strict=True)}


def stacked_expert_shapes(config):
    """Of publishers whose experts are one tensor each of several axes."""
    d = config["hidden_size"]
    h = config["intermediate_size"]
    return {
        "gpt_oss": {
            "mlp.router.weight": (EXPERTS, d),
            "mlp.router.bias": (EXPERTS,),
            "mlp.experts.gate_up_proj": (EXPERTS, d, 2 * h),
            "mlp.experts.gate_up_proj_bias": (EXPERTS, 2 * h),
            "mlp.experts.down_proj": (EXPERTS, h, d),
            "mlp.experts.down_proj_bias": (EXPERTS, d),
        },
        "granitemoe": {
            "block_sparse_moe.router.layer.weight": (EXPERTS, d),
            "block_sparse_moe.input_linear.weight": (EXPERTS, 2 * h, d),
            "block_sparse_moe.output_linear.weight": (EXPERTS, d, h),
        },
    }[config["model_type"]]


def separate_expert_shapes(config):
    """Of publishers whose experts are tensors of their own."""
    d = config["hidden_size"]
    if config["model_type"] == "mixtral":
        stem = "block_sparse_moe"
        shapes = gated_shapes(d, config["intermediate_size"], ("w1", "w3", "w2"))
    else:
        stem = "mlp"
        shapes = gated_shapes(d, config["moe_intermediate_size"], GATED)
    experts = {
        f"{stem}.experts.{number}.{name}": shape
        for number in range(EXPERTS)
        for name, shape in shapes.items()
    }
    return {f"{stem}.gate.weight": (EXPERTS, d)} | experts


def dense_shapes(config):
    d = config["hidden_size"]
    h = config["intermediate_size"]
    if config["model_type"] == "phi3":
        return {"mlp.gate_up_proj.weight": (2 * h, d), "mlp.down_proj.weight": (d, h)}
    shapes = {f"mlp.{name}": shape for name, shape in gated_shapes(d, h, GATED).items()}
    if config.get("mlp_bias"):
        sizes = {"gate": h, "up": h, "down": d}
        shapes |= {f"mlp.{name}_proj.bias": (size,) for name, size in sizes.items()}
    return shapes


FEED_FORWARDS = {
    "gpt_oss": stacked_expert_shapes,
    "granitemoe": stacked_expert_shapes,
    "mixtral": separate_expert_shapes,
    "qwen3_moe": separate_expert_shapes,
}


def shapes(config):
    """The publisher's tensors of a layer."""
    feed_forward = FEED_FORWARDS.get(config["model_type"], dense_shapes)
    return norm_shapes(config) | attention_shapes(config) | feed_forward(config)


def tensors(config):
    names_and_shapes = {"model.embed_tokens.weight": (WORDS, WIDTH), "model.norm.weight": (WIDTH,)}
    if not config.get("tie_word_embeddings"):
        names_and_shapes["lm_head.weight"] = (WORDS, WIDTH)
    for k in range(config["num_hidden_layers"]):
        names_and_shapes |= {
            f"model.layers.{k}.{name}": shape for name, shape in shapes(config).items()
        }
    generator = np.random.default_rng(0)
    return {
        name: (generator.integers(-63, 64, shape) / 64).astype(np.float32)
        for name, shape in names_and_shapes.items()
    }


def neighbours(rows, heads):
    """Feature m of a head beside feature m + size / 2."""
    size = len(rows) // heads
    return rows[
        [
            h * size + m + half * size // 2
            for h in range(heads)
            for m in range(size // 2)
            for half in (0, 1)
        ]
    ]


def converted(architecture, arrays):
    """The publisher's tensors as llama.cpp's conversion writes them, by its own names."""
    kind = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    table = gguf.get_tensor_name_map(kind, 80)
    by_name = {}
    stacks = {}

    def put(name, array):
        name = name.replace("_bias", ".bias") if "experts" in name else name
        name = name if name.endswith((".weight", ".bias")) else f"{name}.weight"
        known = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert known is not None, name
        by_name[known] = array

    for name, array in arrays.items():
        if architecture in ("llama", "granite", "granitemoe") and (
            "q_proj" in name or "k_proj" in name
        ):
            array = neighbours(array, HEADS if "q_proj" in name else GROUPS)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            array = array + 1
        if architecture == "gpt-oss" and "experts" in name:
            array = array if "bias" in name else array.transpose(0, 2, 1)
            if "gate_up" in name:
                put(name.replace("gate_up", "gate"), array[:, ::2])
                put(name.replace("gate_up", "up"), array[:, 1::2])
                continue
        if name.endswith("input_linear.weight"):
            half = array.shape[1] // 2
            put(re.sub(r"\.block.*", ".mlp.experts.gate_proj", name), array[:, :half])
            put(re.sub(r"\.block.*", ".mlp.experts.up_proj", name), array[:, half:])
            continue
        if ".experts." in name and architecture in ("qwen3moe", "llama"):
            before, _, end = name.split(".experts.")[0], *name.split(".experts.")[1].split(".", 1)
            stacks.setdefault(f"{before}.experts.{end}", []).append(array)
            continue
        put(name, array)
    for name, stack in stacks.items():
        put(name, np.stack(stack))
    return by_name


def own_options(config):
    file_options = {
        "embedding_length": WIDTH, "block_count": config["num_hidden_layers"],
        "attention.head_count": HEADS, "attention.head_count_kv": GROUPS,
        "feed_forward_length": config["intermediate_size"], "vocab_size": WORDS,
        "attention.layer_norm_rms_epsilon": ETA, "rope.freq_base": 128.0, "context_length": 64,
    }  # fmt: skip
    if "head_dim" in config:
        file_options |= dict.fromkeys(
            ("attention.key_length", "attention.value_length"), config["head_dim"]
        )
    return file_options


def write(file, architecture, config, options, arrays, half=False, without=(), more=None):
    writer = gguf.GGUFWriter(file, architecture)
    for name, value in (own_options(config) | options).items():
        if name in without:
            continue
        kind = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
        getattr(writer, f"add_{kind[type(value)]}")(f"{architecture}.{name}", value)
    for name, array in (converted(architecture, arrays) | (more or {})).items():
        if name not in without:
            kind = np.float16 if half and array.ndim > 1 else np.float32
            writer.add_tensor(name, np.ascontiguousarray(array, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def case_of(name):
    config, options = CASES[name]
    return name.split(",")[0], SIZES | config, options


def factors_of(config):
    rope = config.get("rope_scaling") or {}
    return {
        f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"])
        for kind in ("long", "short")
        if f"{kind}_factor" in rope
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_file_is_the_network_of_its_publishers_folder(tmp_path, case):
    architecture, config, options = case_of(case)
    arrays = tensors(config)
    half = architecture == "qwen2"
    more = factors_of(config)
    file = write(tmp_path / "model.gguf", architecture, config, options, arrays, half, more=more)
    network = models.load(file, dtype="float64")
    expected = models.load(publishers.write(tmp_path, config, arrays), dtype="float64")
    jax.tree.map(np.testing.assert_array_equal, network, expected)


@pytest.mark.slow
@pytest.mark.parametrize("case", gguf_recorded.CASES)
def test_a_file_is_the_network_that_transformers_recorded(tmp_path, case):
    network = models.load(gguf_recorded.write(tmp_path / "model.gguf", case))
    expected = models.load(publishers.write(tmp_path, *gguf_recorded.published(case)))
    jax.tree.map(np.testing.assert_array_equal, network, expected)


LARGEST = {
    "gemma2": (
        46, {},
        {
            "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        },
    ),
    "gemma3": (
        62,
        {
            "attention.sliding_window": 3, "rope.freq_base_swa": 32.0,
            "final_logit_softcapping": 2.0,
        },
        {"sliding_window": 3, "rope_local_base_freq": 32.0, "final_logit_softcapping": 2.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_gemmas_divide_scores_by_the_root_of_the_heads_share(name):
    """Of the width; all others by that of a head's size. Caps, windows, bases: as llama.cpp's."""
    largest, options, expected = LARGEST[name]
    sizes = {
        "embedding_length": WIDTH, "attention.head_count": HEADS, "attention.key_length": 6,
        "feed_forward_length": HIDDEN, "context_length": 64,
        "attention.layer_norm_rms_epsilon": ETA,
    }  # fmt: skip
    for depth, scalar in ((largest, WIDTH // HEADS), (largest - 1, 6)):
        said = sizes | options | {"block_count": depth}
        config = published_config(name, said, WORDS, frozenset(), {})
        assert config["query_pre_attn_scalar"] == scalar
        assert config | expected == config


def test_every_architecture_has_its_case():
    recorded = {architecture for _, architecture, _, _ in gguf_recorded.CASES.values()}
    assert {name.split(",")[0] for name in CASES} | recorded == set(ARCHITECTURES)


@pytest.mark.parametrize("kind", ["Q8_0", "MXFP4"])
def test_experts_are_cut_out_of_what_is_quantised(tmp_path, kind):
    """Rows of 32 numbers, of which each expert's begin behind those of the others."""
    kind = gguf.GGMLQuantizationType[kind]
    stacked = np.random.default_rng(0).standard_normal((EXPERTS, 5, 32)).astype(np.float32)
    stored = gguf.quantize(stacked, kind)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "qwen3moe")
    for name, value in {
        "embedding_length": 32,
        "block_count": 1,
        "attention.head_count": 4,
        "vocab_size": 9,
        "feed_forward_length": 5,
        "context_length": 64,
        **MIXED,
    }.items():
        writer.add_uint32(f"qwen3moe.{name}", value)
    writer.add_layer_norm_rms_eps(ETA)
    writer.add_tensor("output.weight", np.zeros((9, 32), np.float32))
    writer.add_tensor("blk.0.ffn_up_exps.weight", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = gguf_file.open_gguf(tmp_path / "model.gguf")
    expected = gguf.dequantize(stored, kind)
    for e in range(EXPERTS):
        tensor = file.read(f"model.layers.0.mlp.experts.{e}.up_proj.weight", (5, 32))
        np.testing.assert_array_equal(tensor, expected[e])


REFUSED = {
    "an option that is not known": (
        "llama", {"options": {"logit_scale": 2.0}}, "got logit_scale = 2.0",
    ),
    "experts of which none is used": (
        "llama", {"options": {"expert_count": 4}}, "got expert_used_count = None",
    ),
    "experts of qwen2": ("qwen2", {"options": {"expert_count": 4}}, "got expert_count = 4"),
    "experts that are not stacked": (
        "llama, experts", {"without": ["blk.0.ffn_up_exps.weight"]}, "no model.*experts.0.w3.weight"
    ),
    "experts that every token has": (
        "granitemoe", {"options": {"expert_shared_feed_forward_length": 4}},
        "got expert_shared_feed_forward_length = 4",
    ),
    "layers that slide by a list of another length": (
        "gemma3", {"options": {"attention.sliding_window_pattern": [True, False]}},
        r"attention.sliding_window_pattern = \[True, False\], expected 6 of True",
    ),
    "layers that slide by numbers": (
        "gpt-oss", {"options": {"attention.sliding_window_pattern": [2, 3]}},
        r"attention.sliding_window_pattern = \[2, 3\], expected 2 of True",
    ),
    "no layer of which all are seen": (
        "gemma2", {"options": {"attention.sliding_window_pattern": 0}},
        "attention.sliding_window_pattern = 0, expected a positive whole number",
    ),
    "a window of phi3 that is not told": (
        "phi3", {"without": ["attention.sliding_window"]}, "attention.sliding_window = None",
    ),
    "more turning features than a head has": (
        "phi3", {"options": {"rope.dimension_count": 10}}, "rope.dimension_count = 10, expected an",
    ),
    "an odd number of turning features": (
        "phi3", {"options": {"rope.dimension_count": 5}}, "rope.dimension_count = 5, expected an e",
    ),
    "yarn without a factor": (
        "qwen3", {"without": ["rope.scaling.factor"]}, "rope.scaling.factor = None, expected a pos",
    ),
    "yarn's amplitude by another key": (
        "qwen2", {"options": {"rope.scaling.yarn_attn_factor": 1.25}},
        "rope.scaling.yarn_attn_factor = 1.25 of a yarn scaling, expected none",
    ),
    "factors for another number of frequencies": (
        "llama", {"more": {"rope_freqs.weight": np.ones(3)}},
        "rope_freqs.weight: got 3 numbers, of which the least is 1.0, expected 2 positive ones",
    ),
    "factors that are not positive": (
        "phi3, whole", {"more": {"rope_factors_long.weight": np.array([1.0, 0.0])}},
        "rope_factors_long.weight: got 2 numbers, of which the least is 0.0",
    ),
    "a window of llama": (
        "llama", {"options": {"attention.sliding_window": 4}}, "attention.sliding_window = 4",
    ),
    "a window of qwen2": (
        "qwen2", {"options": {"attention.sliding_window": 4}}, "attention.sliding_window = 4",
    ),
    "windows of olmo": (
        "olmo2", {"options": {"attention.sliding_window_pattern": [True, False]}},
        "attention.sliding_window_pattern = list",
    ),
    "no causal mask": ("qwen3", {"options": {"attention.causal": False}}, "causal = False"),
    "granite without turns": (
        "granite", {"options": {"rope.scaling.finetuned": False}}, "finetuned = False",
    ),
    "another amplitude": (
        "llama", {"options": {"rope.scaling.attn_factor": 1.5}}, "attn_factor = 1.5, expected opt",
    ),
    "yarn's amplitude": (
        "olmo2", {"options": {"rope.scaling.attn_factor": 1.0}},
        "rope.scaling.attn_factor = 1.0 of a yarn scaling, expected none",
    ),
    "another multiplier of yarn": (
        "qwen2", {"options": {"rope.scaling.yarn_log_multiplier": 0.5}}, "yarn_log_multiplier",
    ),
    "another scaling": (
        "qwen3", {"options": {"rope.scaling.type": "longrope"}}, "type = longrope, expected none",
    ),
    "two scalings": (
        "llama",
        {
            "options": {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0},
            "more": {"rope_freqs.weight": np.ones(2)},
        },
        "type = yarn, expected none",
    ),
    "heads of which a part turns": (
        "qwen3", {"options": {"rope.dimension_count": 4}}, "rope.dimension_count = 4",
    ),
    "values of another size": (
        "qwen3", {"options": {"attention.value_length": 4}}, "attention.value_length = 4",
    ),
    "heads that differ": (
        "llama", {"options": {"attention.head_count_kv": [2, 1]}}, "head_count_kv = list",
    ),
    "no window of gemma3": (
        "gemma3", {"without": ["attention.sliding_window"]}, "attention.sliding_window = None",
    ),
    "no width": ("qwen3", {"without": ["embedding_length"]}, "embedding_length = None"),
    "no short factors": (
        "phi3", {"more": {"rope_factors_long.weight": np.ones(2)}},
        "rope_factors_long.weight, and no rope_factors_short.weight",
    ),
    "a tensor that nobody knows": (
        "qwen3", {"more": {"blk.0.attn_sub_norm.weight": np.ones(3)}}, "blk.0.attn_sub_norm.weight",
    ),
    "a tensor outside that nobody knows": (
        "qwen3", {"more": {"output_scale": np.ones(3)}}, "output_scale, which",
    ),
    "a missing tensor": ("qwen3", {"without": ["blk.1.ffn_up.weight"]}, "layers.1.mlp.up_proj"),
    "no norm": (
        "gpt-oss", {"without": ["blk.1.attn_norm.weight"]},
        "no model.layers.1.input_layernorm.weight, expected all .* Take another conversion of the",
    ),
    "no gates": (
        "gpt-oss", {"without": ["blk.1.ffn_gate_exps.weight"]},
        "no blk.1.ffn_gate_exps.weight, expected all of the network's weights. Take another conv",
    ),
    "nothing that gates let through": (
        "gpt-oss", {"without": ["blk.1.ffn_up_exps.bias"]}, "no blk.1.ffn_up_exps.bias",
    ),
    "other gates": (
        "gpt-oss", {"more": {"blk.1.ffn_up_exps.bias": np.ones((3, 4))}}, r"shape \(3, 4\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_gguf_files_that_are_not_known_are_refused(tmp_path, case):
    name, changed, message = REFUSED[case]
    architecture, config, options = case_of(name)
    options = options | changed.get("options", {})
    rest = {key: value for key, value in changed.items() if key != "options"}
    file = tmp_path / "model.gguf"
    arrays = tensors(config)
    with pytest.raises(ValueError, match=message):
        models.load(write(file, architecture, config, options, arrays, **rest))


# What no option may be, beside being left out.
ODD = (-1, 0, 0.5, "x", [1, 2], True, float("nan"))


# Cases whose options are among those of others.
SUBSETS = {"llama, wide heads", "gemma2, every third", "phi3, whole", "granite, unsaid"}
SUBSETS |= {"gpt-oss, unscaled"}


@pytest.mark.parametrize("case", [case for case in CASES if case not in SUBSETS])
def test_options_are_refused_by_the_files_own_names(case):
    """Left out or odd, one at a time: what loads has its default, and no other file is blamed."""
    architecture, config, options = case_of(case)
    file_options = own_options(config) | options
    factors = {name.removesuffix(".weight"): a.tolist() for name, a in factors_of(config).items()}
    refused = set()
    for name in file_options:
        left_out = {other: value for other, value in file_options.items() if other != name}
        for changed in (left_out, *(file_options | {name: odd} for odd in ODD)):
            try:
                recipe_of(Configuration(read_config(architecture, changed, factors)))
            except ValueError as error:
                named = "|".join(re.escape(known) for known in file_options)
                assert re.match(
                    rf"GGUF: got ({named}) = |rope_factors_long.weight: got ", str(error)
                )
                refused.add(name)
    assert refused >= set(file_options) - {"rope.scaling.type", "attention.sliding_window"}


@pytest.mark.parametrize("case", gguf_recorded.CASES)
def test_further_options_are_refused_by_the_files_own_names(case):
    _, architecture, _, further = gguf_recorded.CASES[case]
    file_options = gguf_recorded.stated(case)
    refused = set()
    for name in further:
        left_out = {other: value for other, value in file_options.items() if other != name}
        for changed in (left_out, *(file_options | {name: odd} for odd in ODD[:4])):
            try:
                recipe_of(Configuration(read_config(architecture, changed, {})))
            except ValueError as error:
                assert str(error).startswith("GGUF: got "), error
                refused.add(name)
    assert refused >= set(further) - {"rope.scaling.type", *gguf_recorded.IMAGES}


ELSEWHERE = {"attention.shared_kv_layers": 20, "embedding_length_per_layer_input": 256}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_layers_of_more_than_one_state_are_refused_with_the_reason(name):
    file_options = gguf_recorded.stated("gemma4") | {name: ELSEWHERE[name]}
    with pytest.raises(ValueError, match=f"{name} = {ELSEWHERE[name]}, .*a map of one state"):
        read_config("gemma4", file_options | {"feed_forward_length": [8, 16, 16]}, {})


def test_pairs_that_turn_elsewhere_are_refused():
    for factors in (4 * [2.0], [1.0, 1e30, 1.0, 1e30]):
        with pytest.raises(ValueError, match="rope_freqs.weight: got factors .*, expected ones"):
            read_config("gemma4", gguf_recorded.stated("gemma4"), {"rope_freqs": factors})


def read_config(architecture, options, factors):
    return published_config(architecture, options, 0, frozenset(), factors)


def test_what_is_no_whole_model_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_string("general.type", "adapter")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="^model.gguf: got general.type = adapter, expected"):
        models.load(tmp_path / "model.gguf")
