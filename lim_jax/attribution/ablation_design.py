"""Which parts of a context each of several texts keeps, so that parts are told apart."""

import itertools

import numpy as np
from jaxtyping import Bool, Int
from scipy.linalg import hadamard


def balanced_design(parts: int, texts: int) -> Bool[np.ndarray, "texts parts"]:
    """Choose which parts each of `texts` texts keeps, each part about half of the time.

    Columns are those of a Hadamard matrix, which are orthogonal: over as many texts as its order
    every pair of parts is both kept, both left out, and parted equally often. The complements of
    these texts follow, which take what two parts do together out of the effects of single parts;
    then both once more with other columns. Of so few parts that their sets are no more than the
    texts, each set comes once.
    """
    if texts >= 2**parts:
        return np.array([*itertools.product((False, True), repeat=parts)])
    rng = np.random.default_rng(0)
    order = 1 << parts.bit_length()  # the first power of two above the number of parts
    blocks = -(-texts // (2 * order))
    halves = [_orthogonal_rows(order, parts, rng) for _ in range(blocks)]
    rows = np.concatenate([sign * half for half in halves for sign in (1, -1)])
    return rows[:texts] > 0


def _orthogonal_rows(
    order: int, parts: int, rng: np.random.Generator
) -> Int[np.ndarray, "order parts"]:
    """Draw columns of a Hadamard matrix, their signs and the order of rows.

    The matrix's first column is left out: a part that it had would be kept in every text.
    """
    columns = 1 + rng.permutation(order - 1)[:parts]
    rows = rng.permutation(order)
    return hadamard(order)[np.ix_(rows, columns)] * rng.choice((-1, 1), parts)
