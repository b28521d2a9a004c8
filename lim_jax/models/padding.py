"""To which lengths contexts of ids are padded, so that few programs serve all, and their padding.

Padding stands on the right, where a causal network's adjoint is zero.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._checks import as_int, as_numbers, require, require_callable
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.foils import Contrast

PerPosition = Float[Array | np.ndarray, " _"]
Padding = Callable[[int], int]  # from a context's length to that to which it is padded
# A context as a program takes it, on the host: its ids, targets, the scale of its energies, and
# the part of each of its tokens, -1 for none.
Padded = tuple[Array | np.ndarray, Targets | Contrast, Array | np.ndarray, Array | np.ndarray]
SHORTEST = 16
LONG = 1024
QUERIES = 32  # to so many at least places that are asked are padded: most answers share programs
ASK = "Take loss.teacher_forcing, loss.last_token, or another function of the length."


def padded_length(length: int) -> int:
    """Return the padded length of a context: 16, 24, 32, 48, 64, 96, ..., and then finer steps.

    >>> [padded_length(length) for length in (5, 17, 24, 25, 1000, 1025, 3745)]
    [16, 24, 24, 32, 1024, 1152, 3840]
    """
    if length > LONG:  # to run a program takes longer than to compile it: an eighth more at most
        step = 1 << ((length - 1).bit_length() - 4)
        return -(-length // step) * step
    double = max(SHORTEST, 1 << (length - 1).bit_length())
    return double if length > 3 * double // 4 or double == SHORTEST else 3 * double // 4


def fitted_padding(lengths: Iterable[int]) -> Padding:
    """Return a shorter padding for contexts of these lengths, in no more programs.

    Where two or more have one `padded_length`, it is the longest of them in multiples of 16. Others
    keep theirs, for which another run may have compiled a program.

    >>> padding = fitted_padding([392, 411, 402, 700])
    >>> [padding(length) for length in (392, 411, 412, 700)]
    [416, 416, 512, 768]
    """
    longest: dict[int, int] = {}
    shared = set()
    for length in lengths:
        size = padded_length(length)
        if size in longest:
            shared.add(size)
        longest[size] = max(length, longest.get(size, 0))

    def padded(length: int) -> int:
        """Return the padded length of a context."""
        size = padded_length(length)
        if size not in shared or length > longest[size]:
            return size
        return min(size, -(-longest[size] // SHORTEST) * SHORTEST)

    return padded


def padded_queries(queries: int) -> int:
    """Return the number to which places that are asked are padded, at least `QUERIES`."""
    return padded_length(max(QUERIES, queries))


def padded_size(model: CausalLM, length: int, padding: Padding | None = None) -> int:
    """Return the length to which a model's contexts are padded: that of `padding` or less."""
    padding = padded_length if padding is None else padding
    require_callable(padding, "padding", "from a length to the padded one")
    # Not longer at all if the rotary frequencies depend on the length.
    size = max(length, min(as_int(padding(length), "padding"), known_length(model)))
    return size if model.same_rope(size, length) else length


def known_length(model: CausalLM) -> int:
    """Return the most places that a model knows or was trained on; of others a great number."""
    limit = None if model.limit is None else model.limit[0]
    return min((most for most in (limit, model.trained) if most is not None), default=sys.maxsize)


def pad_context(
    model: CausalLM,
    window: Any,
    ask: PerPosition | Contrast,
    parts: Int[np.ndarray, " _"],
    padding: Padding | None,
) -> Padded:
    """Pad a context's ids, its parts, and what is asked of it."""
    row = np.asarray(window)
    length = len(row) - 1
    size = padded_size(model, length, padding)
    dtype = model.embedding.dtype
    y: Targets | Contrast
    if isinstance(ask, Contrast):
        size, continuation_sizes = _contrast_sizes(model, ask, length, size)
        y = _pad_contrast(ask, length, size, continuation_sizes, dtype)
    else:
        y = _pad_targets(row[1:], ask, size, dtype)
    # Energies are densities, and the padded grid's cells are narrower than the context's own.
    scale: Any = np.asarray((length / size) ** 2, dtype)
    return fill(row[:-1], size), y, scale, fill(np.asarray(parts) + 1, size) - 1


def _pad_targets(targets: np.ndarray, ask: PerPosition, size: int, dtype: Any) -> Targets:
    """Pad the queries of a context: the positions whose weights are not zero, all that are read.

    Queries that fill up the arrays are at the first position, with weight zero.
    """
    length = len(targets)
    expected = f"weights of shape {(length,)}, one for each place of the context"
    weights = as_numbers(ask, "ask", expected=expected, cure=ASK).astype(dtype)
    require(
        weights.shape == (length,),
        "ask",
        got=f"weights of shape {weights.shape}",
        expected=expected,
        cure=ASK,
    )
    positions = np.flatnonzero(weights)
    queries = min(size, padded_queries(len(positions)))
    arrays = targets[positions], weights[positions], positions
    return Targets(*(fill(array, queries) for array in arrays))


def _contrast_sizes(
    model: CausalLM, ask: Contrast, length: int, size: int
) -> tuple[int, tuple[int, int]]:
    """Return the sizes of a prompt's row and of both continuations: powers of two, or their own.

    They are their own where padding would change rotary frequencies or end behind the last place.
    """
    counts = len(ask.answer), len(ask.foil)
    answer, foil = (1 << (count - 1).bit_length() for count in counts)
    most = known_length(model)
    # A continuation stands right after the prompt, in a row that has room for both arrays.
    fits = all(
        length + more - 1 <= most and model.same_rope(length + count - 1, size + more - 1)
        for count, more in zip(counts, (answer, foil), strict=True)
    )
    return (size, (answer, foil)) if fits else (length, counts)


def _pad_contrast(
    ask: Contrast, length: int, size: int, continuation_sizes: tuple[int, int], dtype: Any
) -> Contrast:
    """Pad the answer and the foil to their sizes with weight zero, and the prompt's mask to its."""
    require(
        int(ask.length) == length,
        "ask",
        got=f"a contrast after {int(ask.length)} ids",
        expected=f"after {length}",
        cure="Make the window of the prompt and any id after it.",
    )
    answer_size, foil_size = continuation_sizes
    log_weights = _pad_places(ask.log_weights, length, size, 0)
    if log_weights is not None:
        log_weights = log_weights.astype(dtype)
    return Contrast(
        answer=fill(np.asarray(ask.answer), answer_size),
        foil=fill(np.asarray(ask.foil), foil_size),
        answer_weights=fill(np.asarray(ask.answer_weights), answer_size).astype(dtype),
        foil_weights=fill(np.asarray(ask.foil_weights), foil_size).astype(dtype),
        length=np.asarray(ask.length),
        log_weights=log_weights,
        parts=_pad_places(ask.parts, length, size, -1),
    )


def _pad_places(places: Any, length: int, size: int, padding: int) -> Any:
    """Pad a contrast's numbers of each place of the prompt, if it has any."""
    if places is None:
        return None
    require(
        places.shape == (length,),
        "ask",
        got=f"a contrast with a mask of shape {places.shape}",
        expected=f"{(length,)}, one number for each id of the prompt",
        cure="Pass log_weights and parts of the prompt's own length.",
    )
    return np.pad(np.asarray(places), (0, size - length), constant_values=padding)


def fill(values: np.ndarray, size: int) -> Any:
    """Pad the last axis with zeros to a size."""
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, size - values.shape[-1])])
