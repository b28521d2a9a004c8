"""Weights of eight and four bits, against tables of numbers written apart."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from reference import publishers
from reference.publishers import CONFIGS
from safetensors.numpy import save_file

from lim_jax import models
from lim_jax.models import checkpoint
from lim_jax.models.checkpoint import WHOLE, open_checkpoint

FP8 = {
    "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
    "weight_block_size": [3, 2], "modules_to_not_convert": ["lm_head"], "scale_fmt": "ue8m0",
}  # fmt: skip
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]}


def write(folder, arrays, stated, config=None):
    config = {"model_type": "qwen3"} | (config or {}) | {"quantization_config": stated}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(arrays, folder / WHOLE)
    return folder


def eight_bits(byte):
    """One of a sign, four of an exponent from -7 (or -6 without a leading one), three of digits."""
    sign, power, digits = -1 if byte & 128 else 1, byte >> 3 & 15, byte & 7
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
    found = open_checkpoint(write(tmp_path, arrays, FP8))
    assert sorted(found.files) == ["a", "w.weight"]
    expected = whole(numbers, scales.astype(kind))
    np.testing.assert_array_equal(found.read("w.weight", (61, 5), "float64"), expected)
    np.testing.assert_array_equal(found.read("w.weight", (61, 5)), expected.astype(np.float32))
    np.testing.assert_array_equal(found.read("a", (3,)), np.ones(3))


def test_a_network_of_eight_bits_is_that_of_its_products(tmp_path):
    config, stored = CONFIGS["qwen3"], {}
    arrays: dict[str, np.ndarray] = {}
    for seed, (name, array) in enumerate(publishers.tensors(config).items()):
        stored[name] = arrays[name] = array
        if "_proj" in name:
            numbers, scales = matrix(array.shape[0], array.shape[1], seed)
            stored[name] = numbers.view(ml_dtypes.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = scales
            arrays[name] = whole(numbers, scales)
    (tmp_path / "apart").mkdir()
    apart = models.load(publishers.write(tmp_path / "apart", config, arrays), dtype="float64")
    found = models.load(write(tmp_path, stored, FP8, config), dtype="float64")
    jax.tree.map(np.testing.assert_array_equal, found, apart)


# Of four bits: a sign, and eight numbers.
FOURS = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def four_bits(blocks, scales):
    """By expert, then from the input to the output side; the lower half of a byte is first."""
    experts, rows, groups, _ = blocks.shape
    found = np.zeros((experts, 32 * groups, rows))
    for e, r, g, b in np.ndindex(*blocks.shape):
        for half, bits in enumerate((int(blocks[e, r, g, b]) % 16, int(blocks[e, r, g, b]) // 16)):
            number = FOURS[bits % 8] * (-1 if bits >= 8 else 1)
            power = int(scales[e, r, g]) - 127
            found[e, 32 * g + 2 * b + half, r] = number * 2.0**power
    return found


def experts(count, rows, columns, seed=0):
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (count, rows, columns // 32, 16), np.uint8)
    return blocks, generator.integers(120, 130, blocks.shape[:3], np.uint8)


def test_numbers_of_four_bits_are_multiplied_by_powers_of_two(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "NUMBERS_AT_ONCE", 2 * 64 * 5)
    blocks, scales = experts(3, 5, 64)
    arrays = {"w_blocks": blocks, "w_scales": scales, "b": np.ones(2, np.float32)}
    found = open_checkpoint(write(tmp_path, arrays, MXFP4))
    assert sorted(found.files) == ["b", "w"]
    expected = four_bits(blocks, scales)
    np.testing.assert_array_equal(found.read("w", (3, 64, 5)), expected)


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
    found = models.load(write(tmp_path, stored, MXFP4, config), dtype="float64")
    jax.tree.map(np.testing.assert_array_equal, found, apart)


REFUSED = {
    "int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "quant_method = 'bitsandb"),
    "GPTQ": ({"quant_method": "gptq", "bits": 4}, "quant_method = 'gptq'"),
    "AWQ": ({"quant_method": "awq", "bits": 4}, "quant_method = 'awq'"),
    "no scheme": ({"bits": 4}, "quant_method = None"),
    "no object": ("fp8", "quant_method = None"),
    "other bits": (FP8 | {"fmt": "e5m2"}, "got fmt = 'e5m2' in quantization_config"),
    "scaled inputs": (FP8 | {"activation_scheme": "static"}, "activation_scheme = 'static'"),
    "an option that is not known": (FP8 | {"expert_dtype": "fp4"}, "got expert_dtype = 'fp4'"),
    "no blocks": ({"quant_method": "fp8"}, "weight_block_size = None"),
    "blocks of no size": (FP8 | {"weight_block_size": [0, 128]}, "weight_block_size = "),
    "blocks of three sides": (FP8 | {"weight_block_size": [1, 2, 3]}, "weight_block_size = "),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_other_schemes_are_refused_by_name(tmp_path, case):
    stated, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        models.load(write(tmp_path, {"a": np.ones(1, np.float32)}, stated))


def test_adapters_are_refused_by_name(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="an adapter .*Merge it"):
        models.load(tmp_path)


def eight(numbers, scales, **more):
    return {"w": numbers.view(ml_dtypes.float8_e4m3fn), "w_scale_inv": scales} | more


NUMBERS, BY_BLOCK = matrix()
BLOCKS, POWERS = experts(3, 5, 64)
NO_NUMBER, NO_POWER = NUMBERS.copy(), POWERS.copy()
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
    "powers that are whole numbers": (
        MXFP4, {"w_blocks": BLOCKS, "w_scales": POWERS.astype(np.float32)}, (3, 64, 5),
        "w_scales: got the precision F32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_refused_by_name(tmp_path, case):
    stated, arrays, shape, message = BROKEN[case]
    with pytest.raises(ValueError, match=message):
        open_checkpoint(write(tmp_path, arrays, stated)).read("w", shape)


def test_scales_of_nothing_are_surplus(tmp_path):
    arrays = publishers.tensors(CONFIGS["qwen3"]) | {"b_scale_inv": np.ones((1, 1), np.float32)}
    with pytest.raises(ValueError, match="got b_scale_inv, which"):
        models.load(write(tmp_path, arrays, FP8, CONFIGS["qwen3"]))
