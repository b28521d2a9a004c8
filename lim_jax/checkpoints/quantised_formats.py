"""Weights of eight or four bits with scales, as publishers store them.

Only the weights are read so; what a publisher's own kernels round besides, such as the inputs of a
product or a cache of keys and values, stays in full precision.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from lim_jax._checks import described
from lim_jax.checkpoints.integers import BITS, UNQUANTISED, Packing, unpacked_names
from lim_jax.checkpoints.options import Configuration, Options, require_config

# Of mxfp4.
BLOCKS = "_blocks"
SCALES = "_scales"
# Of nvfp4.
PACKED = "_packed"
FACTOR = "_scale_2"
DIVISOR = "_global_scale"
SCALE = ("_scale_inv", "_scale")  # publishers' names of what fp8 is multiplied by
POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FOUR_BITS = np.array([*POSITIVE, *(-number for number in POSITIVE)])
# Of the exponents that are mxfp4's scales.
BIAS = 127
NAN = 255
PAIRS = 16  # bytes of two numbers each, in a block of one scale of mxfp4
GROUP = 16  # numbers in a block of one scale of nvfp4
# Which schemes modelopt's names stand for.
MODELOPT_SCHEMES = {"FP8": ("fp8",), "NVFP4": ("nvfp4",), "W4A16_NVFP4": ("nvfp4",)}
MIXED = "MIXED_PRECISION"
PACKINGS = (
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "pack-quantized",
    "mixed-precision",
)
# The options of each method, and their known values.
SUPPORTED: Mapping[str, Mapping[str, Any]] = {
    "fp8": {
        "fmt": ("e4m3", "float8_e4m3fn"), "activation_scheme": ("dynamic", "static"),
        "scale_fmt": ("float", "ue8m0"), "dequantize": (False, True),
    },
    "mxfp4": {"dequantize": (False, True)},
    "modelopt": {
        "quant_algo": (*MODELOPT_SCHEMES, MIXED), "group_size": (GROUP,),
        "has_zero_point": (False,), "pre_quant_scale": (False,),
    },
    "compressed-tensors": {
        "format": PACKINGS, "quantization_status": ("compressed",), "sparsity_config": ({},),
        "transform_config": ({},),
    },
    "gptq": {
        "bits": (4, 8), "checkpoint_format": ("gptq", "gptq_v2"), "dynamic": ({},),
        "lm_head": (False, True), "pack_dtype": ("int32",), "is_marlin_format": (False,),
    },
    "awq": {"bits": (4,), "version": ("gemm",), "zero_point": (True,)},
    "mlx": {"mode": ("affine",), "bits": BITS},
}  # fmt: skip
PACKED_BY = "gptq", "awq", "mlx"
# Options of how GPTQ and AWQ found the numbers, and of other programs that compute with them.
OF_QUANTISERS = (
    "group_size", "desc_act", "sym", "damp_percent", "damp_auto_increment", "static_groups",
    "true_sequential", "mse", "meta", "quantizer", "dataset", "tokenizer", "model_seqlen",
    "model_name_or_path", "model_file_base_name", "backend", "use_exllama", "exllama_config",
    "disable_exllama", "use_cuda_fp16", "max_input_length", "cache_block_outputs", "batch_size",
    "block_name_to_quantize", "modules_in_block_to_quantize", "module_name_preceding_first_block",
    "pad_token_id", "do_fuse", "fuse_max_seq_len", "modules_to_fuse",
)  # fmt: skip
# The files themselves tell which tensors are not quantised; inputs and caches are not rounded here.
IGNORED = (
    "quant_method", "modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules",
    "config_groups", "quantized_layers", "producer", "version", "kv_cache_scheme",
    "kv_cache_quant_algo", "global_compression_ratio",
)  # fmt: skip
OF_INPUTS = re.compile(r"(.+\.)(?:input_scale|input_global_scale|activation_scale)")
OF_CACHES = re.compile(r".+\.(?:[qkv]|kv)_scale")
Block = tuple[int | None, int | None]  # rows and columns, None for all


class Quantisation(NamedTuple):
    """The ways in which weights may be stored: schemes with scales, or packed integers."""

    schemes: tuple[str, ...]
    block: Block = (None, None)  # of one scale of fp8
    packing: Packing | None = None  # of whole numbers


def quantisation_of(stated: Any) -> Quantisation | None:
    """Read ``quantization_config``; return None if weights are not quantised."""
    if stated is None:
        return None
    options = stated if isinstance(stated, Mapping) else {}
    method = options.get("quant_method", _unnamed_method(options))
    require_config(
        str(method) in SUPPORTED,
        f"quantization_config of quant_method = {described(method)}",
        " or ".join(SUPPORTED),
        UNQUANTISED,
    )
    supported = dict(SUPPORTED[str(method)])
    if method == "fp8":
        supported["weight_block_size"] = (stated.get("weight_block_size"),)
    for name, value in stated.items():
        require_config(
            _is_known_option(name, value, str(method), supported, stated),
            f"{name} = {described(value)} in quantization_config",
            f"options of {method} that are known here",
            UNQUANTISED,
        )
    if method == "modelopt":
        return Quantisation(_modelopt_schemes(stated))
    if method == "compressed-tensors":
        return _read_compressed(stated)
    if method in PACKED_BY:
        return Quantisation((), packing=_packing(str(method), stated))
    return Quantisation((str(method),), _block("weight_block_size", stated))


def _unnamed_method(options: Options) -> str | None:
    """Return the method that is meant if none is named, by words of MLX or modelopt; or None."""
    if {"bits", "group_size"} <= options.keys():
        return "mlx"
    if "quant_algo" in options:
        return "modelopt"
    return None


def _is_known_option(
    name: str, value: Any, method: str, supported: Mapping[str, Any], stated: Options
) -> bool:
    """Tell whether an option of a method is read, or changes no number of the network."""
    if value is None:
        return True
    if name in supported:
        return value in supported[name]
    if name in IGNORED or (method in PACKED_BY and name in OF_QUANTISERS):
        return True
    return method == "mlx" and _is_layer_option(value, stated)


def _block(name: str, stated: Options) -> Block:
    """Return the rows and columns that share a scale; None stands for all of a matrix."""
    sizes: Any = stated.get(name)
    if sizes is None:
        return None, None
    is_pair = isinstance(sizes, list) and len(sizes) == 2
    fits = is_pair and all(isinstance(size, int) and size > 0 for size in sizes)
    require_config(fits, f"{name} = {described(sizes)}", "rows and columns of a block", UNQUANTISED)
    return sizes[0], sizes[1]


def _packing(method: str, stated: Options) -> Packing:
    """Return how GPTQ, AWQ or MLX packed the integers."""
    for name in ("bits", "group_size"):
        value: Any = stated.get(name)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        fits = is_whole and (value > 0 or (name == "group_size" and value == -1))
        require_config(fits, f"{name} = {described(value)}", "a whole number", UNQUANTISED)
    group = None if stated["group_size"] == -1 else stated["group_size"]
    zeros_less_one = method == "gptq" and stated.get("checkpoint_format") != "gptq_v2"
    return Packing(method, stated["bits"], group, zero_offset=int(zeros_less_one))


def _is_layer_option(value: Any, stated: Options) -> bool:
    """Tell whether an entry of MLX's options is about a layer that is supported.

    It says whether the layer is quantised, or with how many bits; the rest must be as elsewhere.
    """
    if not isinstance(value, Mapping):
        return isinstance(value, bool)
    same = value.get("group_size") == stated.get("group_size") and value.get("bits") in BITS
    return same and value.get("mode", "affine") == "affine"


def _modelopt_schemes(stated: Options) -> tuple[str, ...]:
    """Return the schemes of modelopt's algorithms; raise ValueError at unknown ones."""
    algorithms = Configuration({"quantization_config": stated})
    if stated.get("quant_algo") == MIXED:
        algorithms = Configuration(Configuration(stated).get_object("quantized_layers"))
    schemes = set()
    for layer in algorithms:
        layer_options = algorithms.get_object(layer)
        algorithm = layer_options.get("quant_algo")
        group = layer_options.get("group_size", GROUP)
        is_supported = str(algorithm) in MODELOPT_SCHEMES and group in (GROUP, None)
        require_config(
            is_supported,
            f"quant_algo = {described(algorithm)} of groups of {described(group)} in {layer}",
            f"{' or '.join(MODELOPT_SCHEMES)}, of {GROUP}",
            UNQUANTISED,
        )
        schemes.update(MODELOPT_SCHEMES[str(algorithm)])
    require_config(bool(schemes), f"no quantized_layers of {MIXED}", "one or more", UNQUANTISED)
    return tuple(sorted(schemes))


def _read_compressed(stated: Options) -> Quantisation:
    """Return how compressed-tensors' groups are quantised; raise ValueError at unknown ways."""
    schemes = set()
    kinds = set()
    groups = Configuration(Configuration(stated).get_object("config_groups"))
    weights_of_groups = [Configuration(groups.get_object(n)).get_object("weights") for n in groups]
    if weights_of_groups and all(weights.get("type") == "int" for weights in weights_of_groups):
        return Quantisation((), packing=_compressed_integers(weights_of_groups))
    for weights in weights_of_groups:
        kind = tuple(weights.get(name) for name in ("type", "num_bits", "strategy", "group_size"))
        block = {
            ("float", 8, "tensor", None): (None, None),
            ("float", 8, "channel", None): (1, None),
            ("float", 8, "block", None): _block("block_structure", weights),
            ("float", 4, "tensor_group", GROUP): (None, None),
        }.get(kind)
        require_config(
            block is not None and not weights.get("actorder"),
            f"weights of type, bits, strategy and group {kind}",
            "float weights of 8 bits, or of 4 in groups of 16",
            UNQUANTISED,
        )
        scheme = "nvfp4" if kind[1] == 4 else "fp8"
        schemes.add(scheme)
        kinds.add((scheme, block))
    blocks = [block for scheme, block in kinds if scheme == "fp8"]
    require_config(
        bool(kinds) and len(blocks) <= 1,
        f"weights in {len(kinds)} ways",
        "one of each precision",
        UNQUANTISED,
    )
    return Quantisation(tuple(sorted(schemes)), blocks[0] if blocks else (None, None))


def _compressed_integers(weights_of_groups: list[Options]) -> Packing:
    """Return how compressed-tensors packed integers, which must be alike in all layers."""
    kinds = set()
    for weights in weights_of_groups:
        names = "num_bits", "group_size", "strategy"
        kind: tuple[Any, ...] = tuple(weights.get(name) for name in names)
        bits, group, strategy = kind
        is_supported = bits in (4, 8) and (
            (strategy == "group" and isinstance(group, int) and group > 0)
            or (strategy == "channel" and group in (None, -1))
        )
        require_config(
            is_supported,
            f"whole numbers of bits, strategy and group {(bits, strategy, group)}",
            "4 or 8 bits with a scale for each row, or for each group of a row's numbers",
            UNQUANTISED,
        )
        size = group if strategy == "group" else None
        kinds.add(Packing("pack-quantized", bits, size, not weights.get("symmetric", True)))
    require_config(
        len(kinds) == 1,
        f"whole numbers in {len(kinds)} ways",
        "the same in every layer",
        UNQUANTISED,
    )
    return kinds.pop()


def unquantised_names(
    files: Mapping[str, Any], quantisation: Quantisation | None
) -> dict[str, Any]:
    """Return tensors by their unquantised names, without scales."""
    if quantisation is None:
        return dict(files)
    if quantisation.packing is not None:
        return unpacked_names(quantisation.packing, files)
    four_bits = "mxfp4" in quantisation.schemes
    tensors = {}
    for name, place in files.items():
        if _is_scale(name, files, four_bits):
            continue
        stem = name.removesuffix(PACKED)
        scale = "_scale"
        if four_bits:
            stem = name.removesuffix(BLOCKS)
            scale = SCALES
        tensors[stem if stem + scale in files else name] = place
    return tensors


def _is_scale(name: str, names: Mapping[str, Any], four_bits: bool) -> bool:
    """Tell whether a tensor holds scales, of a matrix, of inputs or of caches."""
    if four_bits:
        return name.removesuffix(SCALES) + BLOCKS in names
    match = OF_INPUTS.fullmatch(name)
    stems = [f"{match[1]}weight"] if match else []
    stems += [name.removesuffix(end) for end in (*SCALE, FACTOR, DIVISOR) if name.endswith(end)]
    has_matrix = any(stem in names or stem + PACKED in names for stem in stems)
    return has_matrix or OF_CACHES.fullmatch(name) is not None


def dequantise_fp8(
    matrix: np.ndarray, scales: np.ndarray, first: int, block: tuple[int, int]
) -> np.ndarray:
    """Dequantise FP8 rows: multiply them, from row `first` on, by the scales of their blocks."""
    rows = (first + np.arange(matrix.shape[0])) // block[0]
    columns = np.arange(matrix.shape[1]) // block[1]
    return eight_bits(matrix) * scales[rows][:, columns]


def eight_bits(matrix: np.ndarray) -> np.ndarray:
    """Return the numbers that FP8 bytes (e4m3) stand for."""
    return matrix.view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def _unpack(pairs: np.ndarray) -> np.ndarray:
    """Return the two 4-bit numbers of every byte, the lower half first."""
    return FOUR_BITS[np.stack([pairs & 0x0F, pairs >> 4], axis=-1)]


def dequantise_nvfp4(pairs: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Dequantise NVFP4: multiply every group of 16 numbers of a row by its scale."""
    numbers = _unpack(pairs).reshape(*scales.shape, GROUP)
    return (numbers * scales[..., None]).reshape(len(scales), -1)


def dequantise_mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Dequantise MXFP4: multiply blocks of experts' rows by powers of two, and transpose them."""
    powers = np.where(scales == NAN, np.nan, np.exp2(scales.astype(float) - BIAS))
    scaled = _unpack(blocks).reshape(*scales.shape, -1) * powers[..., None]
    return scaled.reshape(*scales.shape[:2], -1).swapaxes(1, 2)
