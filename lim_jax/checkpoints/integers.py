r"""Weights of whole numbers, several of which are packed into a word of 32 bits.

Every number q of a matrix stands for :math:`s\,(q - z)`, or for :math:`s\,q + b` (MLX), with the
scale s and the zero z, or the bias b, of its group: some neighbouring inputs of one output.
"""

from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

import numpy as np

from lim_jax.checkpoints.options import require_in

WORD = 32
BITS = 2, 4, 8  # of which a word holds several
REAL = ("F32", "F16", "BF16")
WORDS = ("I32", "U32")
PLACES = ("I32", "I64")
# Which of a word's eight numbers AWQ's kernels put into each place of it.
AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
UNQUANTISED = (
    "Take weights that are not quantised, if any are published, or convert these by the program "
    "that made them."
)
WHOLE = slice(None)  # of a tensor
# Checks a tensor's name, shape and precision, and returns a function that reads a part of it.
Tensors = Callable[[str, tuple[int, ...], tuple[str, ...]], Callable[..., np.ndarray]]
ReadRows = Callable[[slice], np.ndarray]  # of a tensor


class Packing(NamedTuple):
    """How whole numbers are packed: by whom, of how many bits, and how many share a scale."""

    scheme: str  # a name of `TENSORS`
    bits: int = 4
    group: int | None = None  # inputs, None for all of them
    has_zeros: bool = True  # or all zeros are half of what numbers may be
    zero_offset: int = 0  # added to the zeros that files hold


# By scheme: the tensor that holds the numbers of ``weight``, and those that belong to it.
TENSORS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "pack-quantized": (
        "weight_packed", ("weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
    ),
    "gptq": ("qweight", ("qzeros", "scales", "g_idx")),
    "awq": ("qweight", ("qzeros", "scales")),
    "mlx": ("weight", ("scales", "biases")),
}  # fmt: skip


def is_packed(packing: Packing, name: str, names: Container[str]) -> bool:
    """Tell whether the files hold a matrix as packed integers."""
    numbers, others = TENSORS[packing.scheme]
    at = name.removesuffix("weight")
    return at != name and at + numbers in names and any(at + other in names for other in others)


def unpacked_names(packing: Packing, files: Mapping[str, Any]) -> dict[str, Any]:
    """Return tensors by their unquantised names, without scales and zeros."""
    numbers, others = TENSORS[packing.scheme]
    tensors = {}
    for name, place in files.items():
        at, dot, last = name.rpartition(".")
        if last not in others or at + dot + numbers not in files:
            tensors[f"{at}{dot}weight" if last == numbers else name] = place
    return tensors


def packed_rows(
    packing: Packing,
    tensors: Tensors,
    names: Container[str],
    name: str,
    shape: tuple[int, ...],
    words: tuple[int, ...],
) -> ReadRows:
    """Return a function that unpacks some rows of a matrix, stored in an array of shape `words`."""
    size = packing.group or shape[-1]
    require_in(
        name,
        len(shape) == 2 and shape[1] % size == 0,
        f"numbers in groups of {size}",
        f"unquantised numbers of shape {shape}",
        UNQUANTISED,
    )
    rows, columns = shape
    at = name.removesuffix("weight")
    group_of = np.arange(columns) // size
    # Where columns were quantised in another order, files say to which group each belongs.
    for index in (at + "g_idx", at + "weight_g_idx"):
        if index in names:
            group_of = _stated_groups(tensors, index, columns, columns // size)
            break
    if packing.scheme == "mlx":
        return _mlx(packing, tensors, at, (rows, columns), group_of, words)
    readers = {"pack-quantized": _compressed_rows, "gptq": _gptq, "awq": _awq}
    return readers[packing.scheme](packing, tensors, at, (rows, columns), group_of)


def _stated_groups(tensors: Tensors, name: str, columns: int, groups: int) -> np.ndarray:
    """Read to which group each column belongs; raise ValueError at groups that there are not."""
    group_of = tensors(name, (columns,), PLACES)(WHOLE)
    require_in(
        name,
        bool(((group_of >= 0) & (group_of < groups)).all()),
        "groups that there are not",
        f"from 0 to {groups - 1}",
    )
    return group_of


def unpack(words: np.ndarray, bits: int) -> np.ndarray:
    """Unpack the integers from each 32-bit word along the last axis, the lowest bits first.

    Examples
    --------
    >>> unpack(np.array([[0x76543210]]), 4).tolist()
    [[0, 1, 2, 3, 4, 5, 6, 7]]
    """
    shifts = np.arange(0, WORD, bits, dtype=np.uint32)
    numbers = words.astype(np.uint32)[..., None] >> shifts & np.uint32(2**bits - 1)
    return numbers.reshape(*words.shape[:-1], -1).astype(np.int64)


def _compressed_rows(
    packing: Packing, tensors: Tensors, at: str, shape: tuple[int, int], group_of: Any
) -> ReadRows:
    """Return a reader of compressed-tensors rows: packed along inputs, zeros along outputs."""
    rows, columns = shape
    in_word = WORD // packing.bits
    groups = columns // (packing.group or columns)
    words = tensors(f"{at}weight_packed", (rows, -(-columns // in_word)), WORDS)
    scales = tensors(f"{at}weight_scale", (rows, groups), REAL)
    zeros = np.full((rows, groups), 2 ** (packing.bits - 1))
    if packing.has_zeros:
        packed = tensors(f"{at}weight_zero_point", (-(-rows // in_word), groups), WORDS)(WHOLE)
        zeros = unpack(packed.T, packing.bits).T[:rows]

    def read(part: slice) -> np.ndarray:
        """Unpack and scale some rows."""
        numbers = unpack(words(part), packing.bits)[:, :columns]
        scale = scales(part).astype(np.float64)
        return scale[:, group_of] * (numbers - zeros[part][:, group_of])

    return read


def _gptq(
    packing: Packing, tensors: Tensors, at: str, shape: tuple[int, int], group_of: Any
) -> ReadRows:
    """Return a reader of GPTQ rows: stored transposed, packed along inputs, zeros along outputs."""
    rows, columns = shape
    in_word = WORD // packing.bits
    groups = columns // (packing.group or columns)
    words = tensors(f"{at}qweight", (columns // in_word, rows), WORDS)
    scales = tensors(f"{at}scales", (groups, rows), REAL)
    packed = tensors(f"{at}qzeros", (groups, rows // in_word), WORDS)(WHOLE)
    zeros = unpack(packed, packing.bits) + packing.zero_offset
    most = 2**packing.bits - 1
    require_in(
        f"{at}qzeros",
        int(zeros.max()) <= most,
        f"a zero of {most} and one, which readers take in two ways",
        f"at most {most}",
        UNQUANTISED,
    )

    def read(part: slice) -> np.ndarray:
        """Unpack and scale some rows."""
        numbers = unpack(words((slice(None), part)).T, packing.bits)
        scale = scales((slice(None), part)).T.astype(np.float64)
        return scale[:, group_of] * (numbers - zeros.T[part][:, group_of])

    return read


def _awq(
    packing: Packing, tensors: Tensors, at: str, shape: tuple[int, int], group_of: Any
) -> ReadRows:
    """Return a reader of AWQ rows: stored transposed, packed along outputs in AWQ's order."""
    rows, columns = shape
    in_word = WORD // packing.bits
    groups = columns // (packing.group or columns)
    columns_in_order = np.argsort(AWQ_ORDER)

    def unpack_in_order(words: np.ndarray) -> np.ndarray:
        """Unpack integers, and put those of each word in order."""
        by_word = unpack(words, packing.bits).reshape(*words.shape, in_word)
        return by_word[..., columns_in_order].reshape(len(words), -1)

    words = tensors(f"{at}qweight", (columns, rows // in_word), WORDS)
    scales = tensors(f"{at}scales", (groups, rows), REAL)
    zeros = unpack_in_order(tensors(f"{at}qzeros", (groups, rows // in_word), WORDS)(WHOLE))

    def read(part: slice) -> np.ndarray:
        """Unpack and scale some rows, of which the first may lie within a word."""
        first = part.start // in_word
        last = -(-part.stop // in_word)
        numbers = unpack_in_order(words((slice(None), slice(first, last)))).T
        numbers = numbers[part.start - first * in_word :][: part.stop - part.start]
        scale = scales((slice(None), part)).T.astype(np.float64)
        return scale[:, group_of] * (numbers - zeros.T[part][:, group_of])

    return read


def _mlx(
    packing: Packing,
    tensors: Tensors,
    at: str,
    shape: tuple[int, int],
    group_of: Any,
    words_shape: tuple[int, ...],
) -> ReadRows:
    """Return a reader of MLX rows: packed along inputs, with bits that follow from the shape."""
    rows, columns = shape
    bits = WORD * words_shape[-1] // columns
    require_in(
        f"{at}weight",
        bits in BITS and words_shape[-1] * WORD == bits * columns,
        f"{words_shape[-1]} words for {columns} numbers",
        "words of 2, 4 or 8 bits a number",
    )
    groups = columns // (packing.group or columns)
    words = tensors(f"{at}weight", (rows, words_shape[-1]), WORDS)
    scales, biases = (tensors(f"{at}{name}", (rows, groups), REAL) for name in ("scales", "biases"))

    def read(part: slice) -> np.ndarray:
        """Unpack, scale and shift some rows."""
        scale, bias = (numbers(part).astype(np.float64) for numbers in (scales, biases))
        return scale[:, group_of] * unpack(words(part), bits) + bias[:, group_of]

    return read
