"""Weights of eight or four bits with a scale for each block, as publishers store them.

Only the weights are read so; what a publisher's own kernels round besides, such as the inputs of a
product, stays in full precision.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from lim_jax._checks import described
from lim_jax.models.options import Options, require_config

SCALE, BLOCKS, SCALES = "_scale_inv", "_blocks", "_scales"
POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FOUR_BITS = np.array([*POSITIVE, *(-number for number in POSITIVE)])
BIAS, NAN = 127, 255  # of the exponents that are mxfp4's scales
PAIRS = 16  # bytes of two numbers each, in a block of one scale
# The options of each scheme, and their known values.
SUPPORTED: Mapping[str, Mapping[str, Any]] = {
    "fp8": {
        "fmt": ("e4m3",), "activation_scheme": ("dynamic",), "scale_fmt": ("float", "ue8m0"),
        "dequantize": (False, True),
    },
    "mxfp4": {"dequantize": (False, True)},
}  # fmt: skip
# The files themselves tell which tensors are not quantised.
IGNORED = ("quant_method", "modules_to_not_convert", "ignored_layers")
HALF_PRECISION = "Take the publisher's weights in half precision."


class Quantisation(NamedTuple):
    """How weights are stored: ``"fp8"`` in blocks of a matrix, or ``"mxfp4"``."""

    scheme: str
    block: tuple[int, int] = (1, 2 * PAIRS)  # rows and columns; of mxfp4 for each expert


def quantisation_of(config: Options) -> Quantisation | None:
    """Return how a configuration says that weights are stored; None if they are not quantised."""
    stated = config.get("quantization_config")
    if stated is None:
        return None
    scheme = stated.get("quant_method") if isinstance(stated, Mapping) else None
    got = f"quantization_config of quant_method = {described(scheme)}"
    require_config(scheme in SUPPORTED, got, " or ".join(SUPPORTED), HALF_PRECISION)
    supported = dict(SUPPORTED[str(scheme)])
    if scheme == "fp8":
        supported["weight_block_size"] = (stated.get("weight_block_size"),)
    for name, value in stated.items():
        known = name in IGNORED or value is None or value in supported.get(name, ())
        got = f"{name} = {described(value)} in quantization_config"
        require_config(known, got, f"options of {scheme} that are known here", HALF_PRECISION)
    if scheme == "mxfp4":
        return Quantisation("mxfp4")
    sizes: Any = stated.get("weight_block_size")
    fits = isinstance(sizes, list) and len(sizes) == 2
    fits = fits and all(isinstance(size, int) and size > 0 for size in sizes)
    got = f"weight_block_size = {described(sizes)}"
    require_config(fits, got, "rows and columns of a block", HALF_PRECISION)
    return Quantisation("fp8", (sizes[0], sizes[1]))


def unquantised_names(
    stored: Mapping[str, Any], quantisation: Quantisation | None
) -> dict[str, Any]:
    """Return tensors by the names that they have unquantised, without those of scales."""
    scheme = None if quantisation is None else quantisation.scheme
    tensors = {}
    for name, place in stored.items():
        stem = name.removesuffix(BLOCKS)
        if scheme == "fp8" and name.endswith(SCALE) and name.removesuffix(SCALE) in stored:
            continue
        if scheme == "mxfp4" and name.removesuffix(SCALES) + BLOCKS in stored:
            continue
        tensors[stem if scheme == "mxfp4" and stem + SCALES in stored else name] = place
    return tensors


def dequantise_fp8(
    stored: np.ndarray, scales: np.ndarray, first: int, block: tuple[int, int]
) -> np.ndarray:
    """Multiply rows from the `first` of a matrix by the scales of their blocks."""
    rows = (first + np.arange(stored.shape[0])) // block[0]
    columns = np.arange(stored.shape[1]) // block[1]
    return stored.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * scales[rows][:, columns]


def dequantise_mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Multiply every expert's rows by powers of two, and transpose its matrix."""
    # A byte's lower half is its first number.
    numbers = FOUR_BITS[np.stack([blocks & 0x0F, blocks >> 4], axis=-1)]
    powers = np.where(scales == NAN, np.nan, np.exp2(scales.astype(float) - BIAS))
    scaled = numbers.reshape(*scales.shape, -1) * powers[..., None]
    return scaled.reshape(*scales.shape[:2], -1).swapaxes(1, 2)
