"""Files of llama.cpp of the networks that transformers recorded.

Configurations and shapes of tensors are transformers' own, names in files those of llama.cpp's
table in the gguf package; what its conversion does besides is done here apart. All numbers are such
that single precision holds them and their sums with one.
"""

import json
import re

import gguf
import numpy as np
from reference.as_users import ROOT
from reference.llama_cpp import neighbours

FILE = ROOT / "tests" / "checkpoints" / "recorded.json"
RECORD = json.loads(FILE.read_text(encoding="utf-8"))["networks"]
FULL = "full_attention"
SLIDING = "sliding_attention"
ETA = 2.0**-10
WINDOWS = {
    "attention.sliding_window": 4,
    "attention.sliding_window_pattern": [True, False, True],
}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 8,
}
MINISTRAL = {
    "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.25,
}  # fmt: skip
FACTORS = {"rope_type": "factors", "rope_theta": 64.0, "factors": [2.0, 1.0, 4.0]}
IMAGES = {"rope.dimension_sections": [2, 2, 1, 0], "n_deepstack_layers": 3}
PROPORTIONAL = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e6},
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
}
OF_GEMMA4 = {
    "attention.key_length": 8, "attention.value_length": 8, "rope.dimension_count": 8,
    "attention.key_length_swa": 6, "attention.value_length_swa": 6, "rope.dimension_count_swa": 6,
    "rope.freq_base_swa": 10000.0, "attention.shared_kv_layers": 0, "attention.sliding_window": 4,
    "attention.sliding_window_pattern": [True, False, False], "embedding_length_per_layer_input": 0,
}  # fmt: skip
MIXTURE = {"expert_feed_forward_length": 9, "expert_used_count": 3, "expert_count": 8}
LATENT = {"leading_dense_block_count": 1, "attention.kv_lora_rank": 8, "rope.dimension_count": 4}
ABSORBED = {
    "attention.key_length": 12,
    "attention.value_length": 8,
    "attention.key_length_mla": 10,
    "attention.value_length_mla": 5,
    "attention.head_count_kv": 1,
}
# By case: the network's name in the record, llama.cpp's name of its architecture, what else its
# configuration says, and llama.cpp's options besides the sizes.
CASES = {
    "afmoe": (
        "afmoe", "afmoe", {"route_scale": 2.5},
        WINDOWS | MIXTURE | {
            "leading_dense_block_count": 1, "expert_shared_count": 2, "expert_weights_norm": True,
            "expert_weights_scale": 2.5, "expert_gating_func": 2,
        },
    ),
    "arcee": (
        "arcee", "arcee", {}, {"rope.dimension_count": 10},
    ),
    "cohere2": ("cohere2", "cohere2", {}, WINDOWS | {"logit_scale": 0.0625}),
    "deepseek2, softmax": (
        "deepseek_v2", "deepseek2", {},
        MIXTURE | LATENT | {
            "attention.q_lora_rank": 8, "attention.key_length": 10, "attention.value_length": 5,
            "expert_shared_count": 2, "expert_group_count": 1, "expert_group_used_count": 1,
            "expert_weights_scale": 1.0, "expert_gating_func": 1,
        },
    ),
    "deepseek2, groups": (
        "deepseek_v2, groups", "deepseek2", {},
        MIXTURE | LATENT | ABSORBED | {
            "expert_shared_count": 2, "expert_group_count": 4, "expert_group_used_count": 2,
            "expert_weights_scale": 3.0,
        },
    ),
    "deepseek2, sigmoid": (
        "deepseek_v3", "deepseek2",
        {
            "num_nextn_predict_layers": 0,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "mscale": 0.7,
                "mscale_all_dim": 0.7, "original_max_position_embeddings": 8,
            },
        },
        MIXTURE | LATENT | ABSORBED | YARN | {
            "attention.q_lora_rank": 8, "expert_shared_count": 1, "expert_group_count": 4,
            "expert_group_used_count": 2, "expert_weights_scale": 3.0, "expert_weights_norm": True,
            "expert_gating_func": 2, "rope.scaling.yarn_log_multiplier": 0.07,
        },
    ),
    "exaone4": ("exaone4", "exaone4", {}, WINDOWS),
    "exaone4, full": ("exaone4, full", "exaone4", {"rope_parameters": FACTORS}, {}),
    "gemma": ("gemma", "gemma", {}, {}),
    "gemma4": (
        "gemma4_text", "gemma4", {},
        OF_GEMMA4 | {
            "attention.head_count_kv": [2, 1, 1], "expert_count": 4, "expert_used_count": 2,
            "expert_feed_forward_length": 9, "final_logit_softcapping": 5.0,
        },
    ),
    "gemma4, dense": (
        "gemma4_text, dense", "gemma4",
        {"attention_bias": False, "rope_parameters": PROPORTIONAL}, OF_GEMMA4,
    ),
    "glm4": ("glm4", "glm4", {}, {"rope.dimension_count": 4}),
    "glm4, unbiased": (
        "glm4", "glm4", {"attention_bias": False}, {"rope.dimension_count": 4},
    ),
    "gpt2": ("gpt2", "gpt2", {}, {}),
    "gptneox": ("gpt_neox", "gptneox", {}, {"rope.dimension_count": 2}),
    "gptneox, serial": ("gpt_neox, serial", "gptneox", {}, {"use_parallel_residual": False}),
    "llama4": (
        "llama4_text", "llama4",
        {
            "attention_chunk_size": 8192, "floor_scale": 8192, "no_rope_layers": [1, 1, 1],
            "layer_types": 3 * ["chunked_attention"],
        },
        {
            "expert_count": 3, "expert_used_count": 1, "expert_feed_forward_length": 40,
            "feed_forward_length": 20, "interleave_moe_layer_step": 2,
        },
    ),
    "llama4, full": (
        "llama4_text", "llama4",
        {
            "no_rope_layers": [1, 1, 1], "layer_types": 3 * [FULL], "attention_chunk_size": None,
        },
        {
            "expert_count": 3, "expert_used_count": 1, "expert_feed_forward_length": 40,
            "feed_forward_length": 20, "interleave_moe_layer_step": 2,
            "attention.sliding_window": 0,
        },
    ),
    "mistral3": (
        "ministral3", "mistral3", {"rope_parameters": MINISTRAL},
        YARN | {
            "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.25,
            "rope.dimension_count": 10,
        },
    ),
    "mistral3, of older options": (
        "mistral", "mistral3", {"sliding_window": None, "layer_types": None}, {},
    ),
    "olmo2, windows": ("olmo3", "olmo2", {}, WINDOWS | YARN),
    "qwen3vl": ("qwen3", "qwen3vl", {}, IMAGES),
    "qwen3vlmoe": (
        "qwen3_moe, normalised", "qwen3vlmoe", {},
        IMAGES
        | {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 10},
    ),
    "seed_oss": ("seed_oss", "seed_oss", {}, {}),
    "smollm3": ("smollm3", "smollm3", {"no_rope_layers": [1, 1, 1]}, {"rope.dimension_count": 6}),
    "starcoder2": ("starcoder2", "starcoder2", {}, {}),
}  # fmt: skip


def published(case):
    name, _, changes, _ = CASES[case]
    config = RECORD[name]["config"] | changes
    eps = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
    config |= {key: ETA for key in eps if key in config}
    generator = np.random.default_rng(0)
    arrays = {
        name: (generator.integers(-63, 64, shape) / 64).astype(np.float32)
        for name, shape in RECORD[name]["shapes"].items()
        if not (changes.get("attention_bias") is False and name.endswith(".bias"))
    }
    return config, arrays


def stated(case):
    """What llama.cpp's conversion of every network says, and what it says of this one."""
    _, _, _, options = CASES[case]
    config, _ = published(case)

    def get(*names):
        return next(config[name] for name in names if config.get(name) is not None)

    rope = config.get("rope_parameters", {})
    kind = "layer_norm_epsilon" if "rms_norm_eps" not in config else "layer_norm_rms_epsilon"
    file_options = {
        "embedding_length": get("hidden_size", "n_embd"), f"attention.{kind}": ETA,
        "block_count": get("num_hidden_layers", "n_layer"), "vocab_size": config["vocab_size"],
        "attention.head_count": get("num_attention_heads", "n_head"),
        "feed_forward_length": get("intermediate_size", "n_inner"),
        "context_length": get("max_position_embeddings", "n_positions"),
    }  # fmt: skip
    if "num_key_value_heads" in config:
        file_options["attention.head_count_kv"] = config["num_key_value_heads"]
    if "head_dim" in config:
        file_options |= dict.fromkeys(
            ("attention.key_length", "attention.value_length"), config["head_dim"]
        )
    if rope:
        file_options["rope.freq_base"] = rope.get(FULL, rope)["rope_theta"]
    return file_options | options


def queries_keys_values(array, heads):
    """All heads' queries, then keys, then values, of rows that go head by head."""
    by_head = array.reshape(heads, 3, -1, *array.shape[1:])
    return np.swapaxes(by_head, 0, 1).reshape(array.shape)


def keys_and_values(name, array, config):
    """The expansion of latents as two tensors of all heads: keys transposed, then values."""
    still = config["qk_nope_head_dim"]
    by_head = array.reshape(-1, still + config["v_head_dim"], array.shape[1])
    return {
        name.replace("kv_b", "k_b"): by_head[:, :still].swapaxes(1, 2),
        name.replace("kv_b", "v_b"): by_head[:, still:],
    }


def converted_tensor(architecture, config, name, array, absorbed):
    """One of the publisher's tensors as its conversion leaves it, by the publisher's names."""
    heads = config.get("num_attention_heads", config.get("n_head"))
    if architecture in ("arcee", "mistral3", "smollm3") and re.search("[qk]_proj", name):
        count = heads if "q_proj" in name else config["num_key_value_heads"]
        return {name: neighbours(array, count)}
    if architecture == "gpt2" and re.search(r"c_\w+\.weight", name):
        return {name: array.T}
    if architecture == "gemma" and name.endswith("norm.weight"):
        return {name: array + 1}
    if "query_key_value" in name:
        return {name: queries_keys_values(array, heads)}
    if "kv_b_proj" in name and absorbed:
        return keys_and_values(name, array, config)
    if architecture != "gemma4" and "experts.gate_up_proj" in name:
        gates, ups = np.split(array.transpose(0, 2, 1), 2, axis=1)
        stem = name.removesuffix("gate_up_proj")
        return {f"{stem}gate_proj": gates, f"{stem}up_proj": ups}
    if architecture != "gemma4" and name.endswith("experts.down_proj"):
        return {name: array.transpose(0, 2, 1)}
    return {name: array}


def stacked_experts(arrays):
    """Tensors of one expert each as one tensor of all, whatever their order."""
    stacked = {}
    stacks = {}
    for name, array in arrays.items():
        if match := re.fullmatch(r"(.+\.experts)\.(\d+)\.(.+)", name):
            stacks.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = array
        else:
            stacked[name] = array
    return stacked | {
        name: np.stack([stack[number] for number in range(len(stack))])
        for name, stack in stacks.items()
    }


def name_in_file(table, name):
    """By llama.cpp's own table, which has no names of the scales beside experts."""
    if name.endswith((".router.scale", ".per_expert_scale")):
        stem = "ffn_gate_inp" if "router.scale" in name else "ffn_down_exps"
        return f"blk.{name.split('.')[2]}.{stem}.scale"
    name = name.replace("correction_bias", "correction.bias")
    name = name.replace(".expert_bias", ".expert_bias.bias")
    name = name if name.endswith((".weight", ".bias")) else f"{name}.weight"
    known = table.get_name(name, try_suffixes=(".weight", ".bias"))
    assert known is not None, name
    return known


def converted(architecture, config, arrays, absorbed):
    """The publisher's tensors as llama.cpp's conversion writes them, by its own names."""
    kind = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    table = gguf.get_tensor_name_map(kind, 8)
    return {
        name_in_file(table, part): value
        for name, array in stacked_experts(arrays).items()
        for part, value in converted_tensor(architecture, config, name, array, absorbed).items()
    }


def write(file, case):
    architecture = CASES[case][1]
    config, arrays = published(case)
    options = stated(case)
    writer = gguf.GGUFWriter(file, architecture)
    for name, value in options.items():
        kind = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
        getattr(writer, f"add_{kind[type(value)]}")(f"{architecture}.{name}", value)
    rope = config.get("rope_parameters", {})
    factors = rope.get("factors")
    if architecture == "gemma4":
        turned = int(8 * rope[FULL]["partial_rotary_factor"] / 2)
        factors = turned * [1.0] + (4 - turned) * [1e30]
    more = {} if factors is None else {"rope_freqs.weight": np.array(factors)}
    absorbed = "attention.key_length_mla" in options
    for name, array in (converted(architecture, config, arrays, absorbed) | more).items():
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
