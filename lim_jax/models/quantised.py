"""Weights of eight or four bits with a scale for each block, as publishers store them.

Only the weights are read so; what a publisher's own kernels round besides, such as the inputs of a
product, stays in full precision.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from lim_jax._checks import described, require

SCALE, BLOCKS, SCALES = "_scale_inv", "_blocks", "_scales"
SIGNLESS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FOUR_BITS = np.array([*SIGNLESS, *(-number for number in SIGNLESS)])
EXPONENT, NO_EXPONENT = 127, 255  # of a scale that is a power of two: its zero, and what is none
PAIRS = 16  # bytes of two numbers each, in a block of one scale
# What a scheme may be told besides; lists of what is stored whole are told by the files themselves.
MEANT: Mapping[str, Mapping[str, Any]] = {
    "fp8": {
        "fmt": ("e4m3",), "activation_scheme": ("dynamic",), "scale_fmt": ("float", "ue8m0"),
        "dequantize": (False, True),
    },
    "mxfp4": {"dequantize": (False, True)},
}  # fmt: skip
PASSED_OVER = ("quant_method", "modules_to_not_convert", "ignored_layers")


class Quantisation(NamedTuple):
    """How weights are stored.

    Attributes
    ----------
    scheme
        ``"fp8"`` (numbers of eight bits by blocks of a matrix) or ``"mxfp4"`` (of four bits, by 32
        neighbours of a row of every expert).
    block
        Rows and columns of a block of the former.
    """

    scheme: str
    block: tuple[int, int] = (1, 2 * PAIRS)


def quantisation_of(config: Mapping[str, Any]) -> Quantisation | None:
    """How a configuration says that weights are stored; None for whole.

    Examples
    --------
    >>> stated = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    >>> quantisation_of({"quantization_config": stated}).block
    (128, 128)

    Raises
    ------
    ValueError
        Where the scheme, or an option of it, is not known.
    """
    stated = config.get("quantization_config")
    if stated is None:
        return None
    scheme = stated.get("quant_method") if isinstance(stated, Mapping) else None
    require(
        scheme in MEANT,
        "config.json",
        got=f"quantization_config of quant_method = {described(scheme)}",
        expected=" or ".join(MEANT),
        cure="Take the publisher's weights in half precision.",
    )
    meant = dict(MEANT[str(scheme)])
    if scheme == "fp8":
        meant["weight_block_size"] = (stated.get("weight_block_size"),)
    for name, value in stated.items():
        require(
            name in PASSED_OVER or value is None or value in meant.get(name, ()),
            "config.json",
            got=f"{name} = {described(value)} in quantization_config",
            expected=f"options of {scheme} that are known here",
            cure="Take the publisher's weights in half precision.",
        )
    return Quantisation("fp8", _block(stated)) if scheme == "fp8" else Quantisation("mxfp4")


def _block(stated: Mapping[str, Any]) -> tuple[int, int]:
    sizes = stated.get("weight_block_size")
    fits = isinstance(sizes, list) and len(sizes) == 2
    require(
        fits and all(isinstance(size, int) and size > 0 for size in sizes or ()),
        "config.json",
        got=f"weight_block_size = {described(sizes)}",
        expected="rows and columns of a block",
        cure="Take the publisher's weights in half precision.",
    )
    rows, columns = sizes or (1, 1)
    return rows, columns


def published_names(stored: Mapping[str, Any], quantisation: Quantisation | None) -> dict[str, Any]:
    """Tensors by the names that they have when they are stored whole, without those of scales.

    Examples
    --------
    >>> stored = {"a": 1, "a_scale_inv": 2, "b_scale_inv": 3}
    >>> published_names(stored, Quantisation("fp8"))
    {'a': 1, 'b_scale_inv': 3}
    """
    scheme = None if quantisation is None else quantisation.scheme
    found = {}
    for name, place in stored.items():
        stem = name.removesuffix(BLOCKS)
        if scheme == "fp8" and name.endswith(SCALE) and name.removesuffix(SCALE) in stored:
            continue
        if scheme == "mxfp4" and name.removesuffix(SCALES) + BLOCKS in stored:
            continue
        found[stem if scheme == "mxfp4" and stem + SCALES in stored else name] = place
    return found


def of_eight_bits(
    stored: np.ndarray, scales: np.ndarray, first: int, block: tuple[int, int]
) -> np.ndarray:
    """Rows from the `first` of a matrix: each number times the scale of its block.

    Examples
    --------
    >>> one = np.array([[0x38, 0x38, 0xB8]], np.uint8)  # 1, 1, -1
    >>> of_eight_bits(one, np.array([[2.0, 3.0], [5.0, 7.0]]), 2, (2, 2))
    array([[ 5.,  5., -7.]])
    """
    rows, columns = ((start + np.arange(n)) // size for start, n, size in zip(
        (first, 0), stored.shape, block, strict=True
    ))  # fmt: skip
    return stored.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * scales[rows][:, columns]


def of_four_bits(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Rows of every expert, a byte's lower half first, by powers of two; turned as they are used.

    Examples
    --------
    >>> of_four_bits(np.array([[[[0x21]]]], np.uint8), np.array([[[128]]], np.uint8))[0, :, 0]
    array([1., 2.])
    """
    numbers = FOUR_BITS[np.stack([blocks & 0x0F, blocks >> 4], axis=-1)]
    powers = np.where(scales == NO_EXPONENT, np.nan, np.exp2(scales.astype(float) - EXPONENT))
    scaled = numbers.reshape(*scales.shape, -1) * powers[..., None]
    return scaled.reshape(*scales.shape[:2], -1).swapaxes(1, 2)
