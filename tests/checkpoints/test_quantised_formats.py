"""Weights of eight and four bits, against tables of numbers written apart."""

import json
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from reference import publishers
from reference.publishers import CONFIGS
from safetensors.numpy import save_file

from lim_jax import models
from lim_jax.checkpoints import checkpoint
from lim_jax.checkpoints.checkpoint import WHOLE, open_checkpoint
from lim_jax.checkpoints.multimodal import text_part
from lim_jax.checkpoints.quantised_formats import quantisation_of

FP8 = {
    "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
    "weight_block_size": [3, 2], "modules_to_not_convert": ["lm_head"], "scale_fmt": "ue8m0",
}  # fmt: skip
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]}


def write(folder, arrays, stated, config=None):
    config = {"model_type": "qwen3"} | (config or {}) | {"quantization_config": stated}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(arrays, folder / WHOLE)
    return folder


def eight_bits(byte):
    """One of a sign, four of an exponent from -7 (or -6 without a leading one), three of digits."""
    sign = -1 if byte & 128 else 1
    power = byte >> 3 & 15
    digits = byte & 7
    whole = digits / 8 * 2.0**-6 if power == 0 else (1 + digits / 8) * 2.0 ** (power - 7)
    return sign * whole


def matrix(rows=7, columns=5, seed=0):
    """Bytes of any number, and scales of blocks of three rows and two columns, some cut off."""
    generator = np.random.default_rng(seed)
    numbers = generator.integers(0, 256, (rows, columns), np.uint8)
    numbers[numbers & 127 == 127] = 0x38  # not the two that are none
    scales = generator.uniform(0.5, 2, (-(-rows // 3), -(-columns // 2))).astype(np.float32)
    return numbers, scales


def whole(numbers, scales) -> np.ndarray:
    return np.array(
        [
            [eight_bits(int(byte)) * float(scales[i // 3, j // 2]) for j, byte in enumerate(row)]
            for i, row in enumerate(numbers)
        ]
    )


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
def test_numbers_of_eight_bits_are_multiplied_by_their_blocks_scale(tmp_path, monkeypatch, kind):
    """Every byte but two, some rows at a time, behind other tensors; scales in half precision."""
    monkeypatch.setattr(checkpoint, "NUMBERS_AT_ONCE", 5 * 4)
    numbers, scales = matrix(rows=61)
    assert len(np.unique(numbers)) > 150
    arrays = {"w.weight": numbers.view(ml_dtypes.float8_e4m3fn), "a": np.ones(3, np.float32)}
    arrays |= {"w.weight_scale_inv": scales.astype(kind)}
    opened = open_checkpoint(write(tmp_path, arrays, FP8))
    assert sorted(opened.files) == ["a", "w.weight"]
    expected = whole(numbers, scales.astype(kind))
    np.testing.assert_array_equal(opened.read("w.weight", (61, 5), "float64"), expected)
    np.testing.assert_array_equal(opened.read("w.weight", (61, 5)), expected.astype(np.float32))
    np.testing.assert_array_equal(opened.read("a", (3,)), np.ones(3))


# Of four bits: a sign, and eight numbers.
FOURS = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def four_bits(blocks, scales):
    """By expert, then from the input to the output side; the lower half of a byte is first."""
    experts, rows, groups, _ = blocks.shape
    numbers = np.zeros((experts, 32 * groups, rows))
    for e, r, g, b in np.ndindex(*blocks.shape):
        for half, bits in enumerate((int(blocks[e, r, g, b]) % 16, int(blocks[e, r, g, b]) // 16)):
            number = FOURS[bits % 8] * (-1 if bits >= 8 else 1)
            power = int(scales[e, r, g]) - 127
            numbers[e, 32 * g + 2 * b + half, r] = number * 2.0**power
    return numbers


def experts(count, rows, columns, seed=0):
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (count, rows, columns // 32, 16), np.uint8)
    return blocks, generator.integers(120, 130, blocks.shape[:3], np.uint8)


def test_numbers_of_four_bits_are_multiplied_by_powers_of_two(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "NUMBERS_AT_ONCE", 2 * 64 * 5)
    blocks, scales = experts(3, 5, 64)
    arrays = {"w_blocks": blocks, "w_scales": scales, "b": np.ones(2, np.float32)}
    opened = open_checkpoint(write(tmp_path, arrays, MXFP4))
    assert sorted(opened.files) == ["b", "w"]
    expected = four_bits(blocks, scales)
    np.testing.assert_array_equal(opened.read("w", (3, 64, 5)), expected)


def test_a_network_of_four_bits_is_that_of_its_products(tmp_path):
    """Of gpt-oss, whose other tensors are whole."""
    config = {
        "model_type": "gpt_oss", "vocab_size": 11, "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        "num_local_experts": 3, "num_experts_per_tok": 2,
    }  # fmt: skip
    shapes = {"model.embed_tokens.weight": (11, 32), "lm_head.weight": (11, 32)}
    shapes |= {"model.norm.weight": (32,)}
    layer = {
        "input_layernorm.weight": (32,), "post_attention_layernorm.weight": (32,),
        "self_attn.q_proj.weight": (8, 32), "self_attn.q_proj.bias": (8,),
        "self_attn.k_proj.weight": (4, 32), "self_attn.k_proj.bias": (4,),
        "self_attn.v_proj.weight": (4, 32), "self_attn.v_proj.bias": (4,),
        "self_attn.o_proj.weight": (32, 8), "self_attn.o_proj.bias": (32,),
        "self_attn.sinks": (2,), "mlp.router.weight": (3, 32), "mlp.router.bias": (3,),
        "mlp.experts.gate_up_proj_bias": (3, 64), "mlp.experts.down_proj_bias": (3, 32),
    }  # fmt: skip
    generator = np.random.default_rng(0)
    for k in range(2):
        shapes |= {f"model.layers.{k}.{name}": shape for name, shape in layer.items()}
    arrays: dict[str, np.ndarray] = {
        name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    stored = dict(arrays)
    for k in range(2):
        for name, rows in (("gate_up_proj", 64), ("down_proj", 32)):
            at = f"model.layers.{k}.mlp.experts.{name}"
            stored[f"{at}_blocks"], stored[f"{at}_scales"] = experts(3, rows, 32, seed=k)
            arrays[at] = four_bits(stored[f"{at}_blocks"], stored[f"{at}_scales"])
    (tmp_path / "apart").mkdir()
    apart = models.load(publishers.write(tmp_path / "apart", config, arrays), dtype="float64")
    network = models.load(write(tmp_path, stored, MXFP4, config), dtype="float64")
    jax.tree.map(np.testing.assert_array_equal, network, apart)


# Of modelopt: a row's groups of 16, each with a scale of eight bits, and one number for the matrix.
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8}}
ONE_SCALE = {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}
BOTH = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "ignore": ["mtp*"],
    "quantized_layers": {
        "w": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        "x": {"quant_algo": "FP8"},
    },
}
STATIC = {
    "quant_method": "fp8",
    "activation_scheme": "static",
    "weight_block_size": None,
    "dequantize": False,
    "fmt": "float8_e4m3fn",
}


def packed(**weights):
    """As compressed-tensors says it."""
    group = {"weights": {"type": "float", "actorder": None} | weights, "targets": ["Linear"]}
    return {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "sparsity_config": {},
        "config_groups": {"group_0": group},
        "quantization_status": "compressed",
    }


def groups(rows, columns, seed=0):
    """Pairs of numbers of four bits, one group of zeros, and the groups' scales."""
    generator = np.random.default_rng(seed)
    pairs = generator.integers(0, 256, (rows, columns // 2), np.uint8)
    scales = generator.integers(0, 127, (rows, columns // 16), np.uint8)
    pairs[-1, :8] = 0
    return pairs, scales


def of_groups(pairs, scales, factor) -> np.ndarray:
    """One after another: the lower half of a byte, and then the upper."""
    values = np.zeros((len(pairs), 2 * pairs.shape[1]))
    for i, j in np.ndindex(*values.shape):
        bits = int(pairs[i, j // 2]) >> 4 * (j % 2) & 15
        number = FOURS[bits % 8] * (-1 if bits >= 8 else 1)
        values[i, j] = number * eight_bits(int(scales[i, j // 16])) * factor
    return values


def word(numbers, bits):
    """The first number in the lowest bits, and so on: a whole number with a sign."""
    total = sum(int(number) << bits * place for place, number in enumerate(numbers))
    return total - 2**32 if total >= 2**31 else total


def words(numbers, bits):
    """Of the numbers of every row."""
    step = 32 // bits
    return np.array(
        [[word(row[j : j + step], bits) for j in range(0, len(row), step)] for row in numbers],
        np.int32,
    )


def integers(bits, group, rows=16, columns=48, seed=0):
    """Whole numbers, a zero and a scale for each group of a row, and what they stand for."""
    generator = np.random.default_rng(seed)
    most = 2**bits
    numbers = generator.integers(0, most, (rows, columns))
    zeros = generator.integers(1, most, (rows, columns // group))
    scales = generator.uniform(0.5, 2, zeros.shape).astype(np.float16)
    return numbers, zeros, scales


def of_integers(numbers, zeros, scales, group_of):
    values = np.zeros(numbers.shape)
    for i, j in np.ndindex(*numbers.shape):
        group = group_of[j]
        values[i, j] = float(scales[i, group]) * (int(numbers[i, j]) - int(zeros[i, group]))
    return values


IN_ORDER = np.arange(48) // 16
MIXED_UP = np.arange(48) % 3
INTEGERS = {bits: integers(bits, 16) for bits in (4, 8)}
ONE_GROUP = integers(8, 48)
HALVED = np.full((16, 1), 128)  # zeros that are half of what eight bits may be
AWQS = [0, 2, 4, 6, 1, 3, 5, 7]  # which of eight outputs stand in a word, the lowest bits first


def as_compressed(case, group_of, **weights):
    numbers, zeros, scales = case
    bits = weights["num_bits"]
    stated = packed(type="int", **weights) | {"format": "pack-quantized"}
    arrays = {
        "w.weight_packed": words(numbers, bits),
        "w.weight_scale": scales,
        "w.weight_shape": np.array(numbers.shape),
    }
    if not weights["symmetric"]:
        arrays["w.weight_zero_point"] = words(zeros.T, bits).T.copy()
    return stated, arrays, of_integers(numbers, zeros, scales, group_of)


def as_gptq(case, group_of, bits, less, **options):
    numbers, zeros, scales = case
    arrays = {
        "w.qweight": words(numbers, bits).T.copy(),
        "w.scales": scales.T.copy(),
        "w.qzeros": words(zeros.T - less, bits),
    }
    if options.get("desc_act"):
        arrays["w.g_idx"] = group_of.astype(np.int32)
    stated = {"quant_method": "gptq", "bits": bits, "sym": False} | options
    return stated, arrays, of_integers(numbers, zeros, scales, group_of)


def as_awq(case, group_of):
    numbers, zeros, scales = case
    rows = [8 * word + place for word in range(len(numbers) // 8) for place in AWQS]
    arrays = {
        "w.qweight": words(numbers[rows].T, 4),
        "w.scales": scales.T.copy(),
        "w.qzeros": words(zeros[rows].T, 4),
    }
    stated = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}
    return stated | {"zero_point": True}, arrays, of_integers(numbers, zeros, scales, group_of)


def as_mlx(case, group_of, bits, **options):
    numbers, zeros, scales = case
    biases = (scales * zeros).astype(np.float16)
    arrays = {
        "w.weight": words(numbers, bits).view(np.uint32),
        "w.scales": scales,
        "w.biases": biases,
    }
    values = scales.astype(float)[:, group_of] * numbers + biases.astype(float)[:, group_of]
    return {"group_size": 16, "bits": 4} | options, arrays, values


def as_bits(numbers):
    return numbers.view(ml_dtypes.float8_e4m3fn)


PAIRS, OF_GROUPS = groups(7, 48)
FACTOR = np.array(0.3, np.float32)
NUMBERS_8 = matrix(7, 48)[0]
EVERYWHERE = np.full((3, 24), 1.0)
HALVES = np.array(0.25, ml_dtypes.bfloat16)
ROWS = np.linspace(0.5, 2, 7, dtype=np.float32)[:, None]
OF_INPUTS = dict.fromkeys(("w.input_scale", "w.k_scale", "a.k_proj.v_scale", "a.kv_scale"), FACTOR)
FOUR_BITS = {"w.weight": PAIRS, "w.weight_scale": as_bits(OF_GROUPS)}
# By case: what is stated, what files hold, and the numbers that it stands for.
STORED: dict[str, Any] = {
    "NVFP4": (
        NVFP4, FOUR_BITS | {"w.weight_scale_2": FACTOR} | OF_INPUTS,
        of_groups(PAIRS, OF_GROUPS, float(FACTOR)),
    ),
    "NVFP4 among others": (
        BOTH, FOUR_BITS | {"w.weight_scale_2": FACTOR}, of_groups(PAIRS, OF_GROUPS, float(FACTOR)),
    ),
    "one scale among others": (
        BOTH, {"w.weight": as_bits(NUMBERS_8), "w.weight_scale": FACTOR},
        whole(NUMBERS_8, float(FACTOR) * EVERYWHERE),
    ),
    "one scale": (
        ONE_SCALE, {"w.weight": as_bits(NUMBERS_8), "w.weight_scale": FACTOR[None]} | OF_INPUTS,
        whole(NUMBERS_8, float(FACTOR) * EVERYWHERE),
    ),
    "one scale, of a known maker": (
        {"quant_algo": "FP8", "producer": {"name": "modelopt", "version": "0.31.0"}},
        {"w.weight": as_bits(NUMBERS_8), "w.weight_scale": FACTOR},
        whole(NUMBERS_8, float(FACTOR) * EVERYWHERE),
    ),
    "one scale in half precision": (
        STATIC,
        {
            "w.weight": as_bits(NUMBERS_8), "w.weight_scale_inv": HALVES,
            "w.activation_scale": HALVES,
        },
        whole(NUMBERS_8, 0.25 * EVERYWHERE),
    ),
    "a scale for each row": (
        packed(num_bits=8, strategy="channel"),
        {"w.weight": as_bits(NUMBERS_8), "w.weight_scale": ROWS},
        whole(NUMBERS_8, EVERYWHERE) * ROWS.astype(float),
    ),
    "one scale for each block": (
        packed(num_bits=8, strategy="block", block_structure=[3, 2]),
        {"w.weight": as_bits(matrix()[0]), "w.weight_scale": matrix()[1]}, whole(*matrix()),
    ),
    "groups of compressed tensors": (
        packed(num_bits=4, strategy="tensor_group", group_size=16),
        {
            "w.weight_packed": PAIRS, "w.weight_scale": as_bits(OF_GROUPS),
            "w.weight_global_scale": np.array([4.0], np.float32), "w.input_global_scale": FACTOR,
        },
        of_groups(PAIRS, OF_GROUPS, 0.25),
    ),
    "packed whole numbers of groups": as_compressed(
        INTEGERS[4], IN_ORDER, num_bits=4, strategy="group", group_size=16, symmetric=False,
    ),
    "packed whole numbers of rows": as_compressed(
        (ONE_GROUP[0], HALVED, ONE_GROUP[2]), np.zeros(48, int), num_bits=8, strategy="channel",
        symmetric=True,
    ),
    "GPTQ": as_gptq(INTEGERS[4], IN_ORDER, 4, 1, group_size=16),
    "GPTQ, in another order": as_gptq(
        INTEGERS[4], MIXED_UP, 4, 1, group_size=16, desc_act=True
    ),
    "GPTQ, its second format": as_gptq(
        ONE_GROUP, np.zeros(48, int), 8, 0, group_size=-1, checkpoint_format="gptq_v2",
    ),
    "AWQ": as_awq(INTEGERS[4], IN_ORDER),
    "MLX": as_mlx(INTEGERS[4], IN_ORDER, 4),
    "MLX, a layer of more bits": as_mlx(
        INTEGERS[8], IN_ORDER, 8, w={"bits": 8, "group_size": 16}, v=False
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STORED)
def test_numbers_are_what_a_publishers_scales_make_of_them(tmp_path, monkeypatch, case):
    """Some rows at a time; scales of inputs and of caches are left out by their names."""
    monkeypatch.setattr(checkpoint, "NUMBERS_AT_ONCE", 2 * 48)
    stated, arrays, expected = STORED[case]
    opened = open_checkpoint(write(tmp_path, arrays, stated))
    assert list(opened.files) == ["w.weight"]
    np.testing.assert_array_equal(opened.read("w.weight", expected.shape, "float64"), expected)
    half = opened.rows("w.weight", expected.shape)(slice(2, 5))
    np.testing.assert_array_equal(half, expected[2:5])


def test_mlx_says_it_under_a_name_of_its_own(tmp_path):
    stated, arrays, expected = STORED["MLX"]
    (tmp_path / "config.json").write_text(json.dumps({"quantization": stated}), encoding="utf-8")
    save_file(arrays, tmp_path / WHOLE)
    tensor = open_checkpoint(tmp_path).read("w.weight", expected.shape, "float64")
    np.testing.assert_array_equal(tensor, expected)


def test_a_network_of_whole_numbers_is_that_of_its_products(tmp_path):
    """Of MLX, where the embedding is quantised too."""
    config = CONFIGS["qwen3"] | {"intermediate_size": 16}
    stored = {}
    arrays: dict[str, np.ndarray] = {}
    for seed, (name, array) in enumerate(publishers.tensors(CONFIGS["qwen3"]).items()):
        array = np.resize(array, [16 if n == publishers.HIDDEN else n for n in array.shape])
        stored[name] = arrays[name] = array
        if array.ndim == 2:
            case = integers(4, 8, *array.shape, seed=seed)
            _, own, arrays[name] = as_mlx(case, np.arange(array.shape[1]) // 8, 4)
            at = name.removesuffix("weight")
            stored |= {key.replace("w.", at, 1): value for key, value in own.items()}
    (tmp_path / "apart").mkdir()
    apart = publishers.write(tmp_path / "apart", config, arrays)
    folder = write(tmp_path, stored, {"group_size": 8, "bits": 4}, config)
    network, expected = (models.load(at, dtype="float64") for at in (folder, apart))
    jax.tree.map(np.testing.assert_array_equal, network, expected)
    fetched = models.open(folder, dtype="float64").flow.layers.source.fetch(np.array(1))
    for leaf, like in zip(fetched, jax.tree.leaves(expected.flow.layers), strict=True):
        np.testing.assert_array_equal(leaf, like[1])


def test_modelopts_own_file_says_it_too(tmp_path):
    stated, arrays, expected = STORED["NVFP4"]
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    save_file(arrays, tmp_path / WHOLE)
    said = {"producer": {}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said), encoding="utf-8")
    tensor = open_checkpoint(tmp_path).read("w.weight", expected.shape, "float64")
    np.testing.assert_array_equal(tensor, expected)


@pytest.mark.parametrize(
    "said, message",
    [
        (None, "got quant_algo = None of groups of 16 in quantization_config, expected FP8 or"),
        (3, "hf_quant_config.json: got quantization = 3, expected an object of names and values"),
        ("NVFP4", "hf_quant_config.json: got quantization = 'NVFP4', expected an object of names"),
    ],
)
def test_modelopts_own_file_says_it_in_an_object(tmp_path, said, message):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    save_file(STORED["NVFP4"][1], tmp_path / WHOLE)
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": said}), encoding="utf-8"
    )
    with pytest.raises(ValueError, match=message):
        open_checkpoint(tmp_path)


# Of published configurations with quantised weights, those that are refused, and by which words.
UNREAD = {
    "moonshotai/Kimi-K3": "format = 'mxfp4-pack-quantized'",
    "nvidia/DeepSeek-V4-Pro-NVFP4": "group_size = 16 in quantization_config",
    "nvidia/MiniMax-M3-NVFP4": "quant_algo = 'MXFP8'",
}


def test_published_schemes_are_read_or_refused_by_name():
    schemes = set()
    for name, config in json.loads(
        (Path(__file__).parent / "published.json").read_text(encoding="utf-8")
    ).items():
        stated = {**config, **config.get("text_config", {})}.get("quantization_config")
        stated = config.get("quantization_config", stated)
        if name in UNREAD:
            with pytest.raises(ValueError, match=UNREAD[name]):
                quantisation_of(stated)
        elif stated is not None:
            quantisation = quantisation_of(stated)
            assert quantisation is not None
            schemes.add((quantisation.schemes, quantisation.block))
    one = (None, None)
    blocks = (128, 128)  # where FP8 is mixed in, the two layers kept have it
    assert schemes == {(("fp8",), one), (("fp8",), blocks), (("mxfp4",), one), (("nvfp4",), one)}


@pytest.mark.parametrize("case", ["NVFP4", "GPTQ", "MLX"])
def test_a_text_inside_a_multimodal_folder_may_be_quantised_in_its_own_options(tmp_path, case):
    stated, arrays, expected = STORED[case]
    inside = {name.replace("w.", "language_model.model.w."): a for name, a in arrays.items()}
    config = {"model_type": "mistral3", "text_config": {"quantization_config": stated}}
    text = text_part(open_checkpoint(write(tmp_path, inside, None, config)))
    assert list(text.files) == ["model.w.weight"]
    read = text.read("model.w.weight", expected.shape, "float64")
    np.testing.assert_array_equal(read, expected)


def test_a_network_of_both_is_that_of_its_products_in_memory_and_in_its_files(tmp_path):
    """The network of tokens has four bits, attention one scale for each matrix, the rest all."""
    config = CONFIGS["qwen3"] | {"intermediate_size": 16}
    stored = {}
    arrays: dict[str, np.ndarray] = {}
    for seed, (name, array) in enumerate(publishers.tensors(CONFIGS["qwen3"]).items()):
        array = np.resize(array, [16 if n == publishers.HIDDEN else n for n in array.shape])
        stored[name] = arrays[name] = array
        if "mlp" in name:
            pairs, scales = groups(array.shape[0], array.shape[1], seed)
            scales = scales % 64  # of small numbers
            stored |= {name: pairs, f"{name}_scale": as_bits(scales), f"{name}_scale_2": FACTOR}
            arrays[name] = of_groups(pairs, scales, float(FACTOR))
        elif "_proj" in name:
            numbers, _ = matrix(array.shape[0], array.shape[1], seed)
            stored |= {name: as_bits(numbers), f"{name}_scale": FACTOR}
            arrays[name] = whole(numbers, np.full((99, 99), float(FACTOR)))
    (tmp_path / "apart").mkdir()
    apart = publishers.write(tmp_path / "apart", config, arrays)
    folder = write(tmp_path, stored, BOTH, config)
    network, expected = (models.load(at, dtype="float64") for at in (folder, apart))
    jax.tree.map(np.testing.assert_array_equal, network, expected)
    half, apart_half = (
        models.load(at, storage_dtype="bfloat16").flow.layers for at in (folder, apart)
    )
    jax.tree.map(np.testing.assert_array_equal, half.upcast(), apart_half.upcast())
    fetched = models.open(folder, dtype="float64").flow.layers.source.fetch(np.array(1))
    for leaf, like in zip(fetched, jax.tree.leaves(expected.flow.layers), strict=True):
        np.testing.assert_array_equal(leaf, like[1])


REFUSED = {
    "int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "quant_method = 'bitsandb"),
    "GPTQ of three bits": (
        {"quant_method": "gptq", "bits": 3, "group_size": 128}, "got bits = 3 in quantization_c",
    ),
    "groups of no size": (
        {"quant_method": "gptq", "bits": 4, "group_size": True}, "got group_size = True, expected",
    ),
    "GPTQ of no groups": ({"quant_method": "gptq", "bits": 4}, "got group_size = None, expected"),
    "GPTQ of layers that differ": (
        STORED["GPTQ"][0] | {"dynamic": {"a": {"bits": 8}}}, "got dynamic = ",
    ),
    "AWQ of other words": (STORED["AWQ"][0] | {"version": "gemv"}, "got version = 'gemv' in quan"),
    "AWQ without zeros": (STORED["AWQ"][0] | {"zero_point": False}, "got zero_point = False in q"),
    "MLX of other numbers": (STORED["MLX"][0] | {"mode": "mxfp4"}, "got mode = 'mxfp4' in quanti"),
    "MLX of layers in other groups": (
        STORED["MLX"][0] | {"a": {"bits": 4, "group_size": 32}}, "got a = ",
    ),
    "no scheme": ({"bits": 4}, "quant_method = None"),
    "no object": ("fp8", "quant_method = None"),
    "other bits": (FP8 | {"fmt": "e5m2"}, "got fmt = 'e5m2' in quantization_config"),
    "other inputs": (FP8 | {"activation_scheme": "x"}, "activation_scheme = 'x'"),
    "an option that is not known": (FP8 | {"expert_dtype": "fp4"}, "got expert_dtype = 'fp4'"),
    "blocks of no size": (FP8 | {"weight_block_size": [0, 128]}, "weight_block_size = "),
    "blocks of three sides": (FP8 | {"weight_block_size": [1, 2, 3]}, "weight_block_size = "),
    "scaled inputs": (NVFP4 | {"quant_algo": "NVFP4_AWQ"}, "quant_algo = 'NVFP4_AWQ'"),
    "inputs that were scaled before": (NVFP4 | {"pre_quant_scale": True}, "pre_quant_scale = True"),
    "groups of 32": (NVFP4 | {"group_size": 32}, "got group_size = 32"),
    "no algorithm": ({"quant_method": "modelopt"}, "quant_algo = None of groups of 16"),
    "a layer of another algorithm": (
        BOTH | {"quantized_layers": {"a.b": {"quant_algo": "MXFP8"}}},
        "quant_algo = 'MXFP8' of groups of 16 in a.b, expected FP8 or NVFP4",
    ),
    "no layers": (BOTH | {"quantized_layers": None}, "no quantized_layers of MIXED_PRECISION"),
    "whole numbers of one scale": (
        packed(type="int", num_bits=4, strategy="tensor"),
        r"whole numbers of bits, strategy and group \(4, 'tensor', None\)",
    ),
    "whole numbers of two kinds": (
        packed() | {"config_groups": {
            str(bits): {"weights": {"type": "int", "num_bits": bits, "strategy": "channel"}}
            for bits in (4, 8)
        }},
        "whole numbers in 2 ways",
    ),
    "whole numbers that are not packed": (
        packed(type="int", num_bits=8, strategy="channel") | {"format": "int-quantized"},
        "got format = 'int-quantized'",
    ),
    "rotated weights": (
        packed(num_bits=8, strategy="tensor") | {"transform_config": {"r": 1}}, "transform_config",
    ),
    "no groups": ({"quant_method": "compressed-tensors"}, "weights in 0 ways"),
    "a list of methods": ({"quant_method": ["fp8"]}, "quant_method = list, expected fp8 or"),
    "a list of groups": (packed() | {"config_groups": [1]}, "config_groups = list, expected an"),
    "a group that is a text": (packed() | {"config_groups": {"g": "x"}}, "got g = 'x', exp"),
    "weights that are a text": (
        packed() | {"config_groups": {"g": {"weights": "x"}}}, "got weights = 'x', expected an",
    ),
    "a list of layers": (BOTH | {"quantized_layers": ["a"]}, "quantized_layers = list, exp"),
    "a layer that is a number": (BOTH | {"quantized_layers": {"a": 3}}, "got a = 3, expected"),
    "a list of algorithms": (NVFP4 | {"quant_algo": ["FP8"]}, "got quant_algo = list"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_other_schemes_are_refused_by_name(tmp_path, case):
    stated, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        models.load(write(tmp_path, {"a": np.ones(1, np.float32)}, stated))


def test_adapters_are_refused_by_name(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    for door in (models.load, models.LanguageModel.from_pretrained):
        with pytest.raises(ValueError, match="an adapter .*Merge it"):
            door(tmp_path)


def eight(numbers, scales, **more):
    return {"w": numbers.view(ml_dtypes.float8_e4m3fn), "w_scale_inv": scales} | more


NUMBERS, BY_BLOCK = matrix()
BLOCKS, POWERS = experts(3, 5, 64)
NO_NUMBER = NUMBERS.copy()
NO_POWER = POWERS.copy()
NO_NUMBER[6, 4] = NO_POWER[2, 4, 1] = 255
NO_NUMBER[6, 4] = 127
BROKEN = {
    "no scales": (FP8, {"w": eight(NUMBERS, BY_BLOCK)["w"]}, (7, 5), "got no w_scale_inv"),
    "scales of other blocks": (
        FP8, eight(NUMBERS, BY_BLOCK[:2]), (7, 5), r"w_scale_inv: got shape \(2, 3\)",
    ),
    "scales that are NaN": (FP8, eight(NUMBERS, np.nan * BY_BLOCK), (7, 5), "w: got NaN"),
    "a number that is none": (FP8, eight(NO_NUMBER, BY_BLOCK), (7, 5), "w: got NaN"),
    "another shape": (FP8, eight(NUMBERS, BY_BLOCK), (5, 7), r"w: got shape \(7, 5\)"),
    "no matrix": (FP8, eight(NUMBERS[0], BY_BLOCK), (5,), "w: got the precision F8_E4M3"),
    "eight bits that are not stated": (
        MXFP4, {"w": NUMBERS.view(ml_dtypes.float8_e4m3fn)}, (7, 5), "w: got the precision F8",
    ),
    "a scale that is none": (
        MXFP4, {"w_blocks": BLOCKS, "w_scales": NO_POWER}, (3, 64, 5), "w: got NaN",
    ),
    "no factor of groups": (NVFP4, FOUR_BITS, (7, 48), "got no w.weight_scale_2"),
    "two factors": (
        NVFP4, FOUR_BITS | {"w.weight_scale_2": ROWS[:2]}, (7, 48),
        r"w.weight_scale_2: got shape \(2, 1\)",
    ),
    "a divisor of zero": (
        packed(num_bits=4, strategy="tensor_group", group_size=16),
        {
            "w.weight_packed": PAIRS, "w.weight_scale": as_bits(OF_GROUPS),
            "w.weight_global_scale": np.array([0], np.float32),
        },
        (7, 48), "w.weight_global_scale: got 0",
    ),
    "groups of another length": (
        NVFP4, FOUR_BITS | {"w.weight_scale": as_bits(OF_GROUPS[:, :2])}, (7, 48),
        r"w.weight_scale: got shape \(7, 2\)",
    ),
    "rows that groups do not fill": (NVFP4, FOUR_BITS, (7, 40), "got numbers of four bits"),
    "scales of groups that are no numbers": (
        NVFP4, FOUR_BITS | {"w.weight_scale": as_bits(OF_GROUPS | 127), "w.weight_scale_2": FACTOR},
        (7, 48), "w.weight: got NaN",
    ),
    "four bits that are not stated": (ONE_SCALE, FOUR_BITS, (7, 48), "got the precision U8"),
    "blocks where one scale is stated": (
        STATIC, eight(NUMBERS, BY_BLOCK), (7, 5), r"w_scale_inv: got shape \(3, 3\)",
    ),
    "scales in eight bits": (
        ONE_SCALE, {"w.weight": as_bits(NUMBERS_8), "w.weight_scale": as_bits(OF_GROUPS)}, (7, 48),
        "w.weight_scale: got the precision F8_E4M3",
    ),
    "no powers": (MXFP4, {"w_blocks": BLOCKS}, (3, 64, 5), "got no w,"),
    "powers of other blocks": (
        MXFP4, {"w_blocks": BLOCKS, "w_scales": POWERS[:, 1:]}, (3, 64, 5), "w_scales: got shape",
    ),
    "four bits of another shape": (
        MXFP4, {"w_blocks": BLOCKS, "w_scales": POWERS}, (3, 5, 64), "got numbers of four bits",
    ),
    "four bits of a matrix": (
        MXFP4, {"w_blocks": BLOCKS, "w_scales": POWERS}, (5, 64), "got numbers of four bits",
    ),
    "a zero that readers take in two ways": (
        STORED["GPTQ"][0], STORED["GPTQ"][1] | {"w.qzeros": np.full((3, 2), -1, np.int32)},
        (16, 48), "w.qzeros: got a zero of 15 and one",
    ),
    "groups that there are not": (
        STORED["GPTQ"][0], STORED["GPTQ"][1] | {"w.g_idx": IN_ORDER.astype(np.int32) + 1},
        (16, 48), "w.g_idx: got groups that there are not, expected from 0 to 2",
    ),
    "rows that groups of whole numbers do not fill": (
        STORED["AWQ"][0], STORED["AWQ"][1], (16, 40), "w.weight: got numbers in groups of 16, exp",
    ),
    "whole numbers of another shape": (
        STORED["AWQ"][0], STORED["AWQ"][1], (48, 16), r"w.qweight: got shape \(48, 2\)",
    ),
    "words of six bits a number": (
        STORED["MLX"][0], STORED["MLX"][1] | {"w.weight": np.zeros((16, 9), np.uint32)}, (16, 48),
        "w.weight: got 9 words for 48 numbers",
    ),
    "no zeros": (
        STORED["GPTQ"][0], {n: a for n, a in STORED["GPTQ"][1].items() if n != "w.qzeros"},
        (16, 48), "got no w.qzeros",
    ),
    "powers that are whole numbers": (
        MXFP4, {"w_blocks": BLOCKS, "w_scales": POWERS.astype(np.float32)}, (3, 64, 5),
        "w_scales: got the precision F32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_quantised_tensors_are_refused(tmp_path, case):
    stated, arrays, shape, message = BROKEN[case]
    with pytest.raises(ValueError, match=message):
        name = "w.weight" if any(name.startswith("w.") for name in arrays) else "w"
        open_checkpoint(write(tmp_path, arrays, stated)).read(name, shape)


def test_scales_of_nothing_are_surplus(tmp_path):
    arrays = publishers.tensors(CONFIGS["qwen3"]) | {"b_scale_inv": np.ones((1, 1), np.float32)}
    with pytest.raises(ValueError, match="got b_scale_inv, which"):
        models.load(write(tmp_path, arrays, FP8, CONFIGS["qwen3"]))
