"""Query weights: which positions are asked, and with what weight, of sum one."""

import jax
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import as_int


def teacher_forcing(size: int, *, continuation: bool = True) -> Float[Array, " length"]:
    r"""Return the query weights of teacher forcing.

    Both conventions stand below `eq:autoregressive-terminal-loss`.

    Parameters
    ----------
    size
        L, the number of positions: at least 1, without a continuation at least 2.
    continuation
        Whether there is a target :math:`Y_{L+1}` for the last query. If so, the default, all L
        queries are scored, :math:`\alpha_i = 1/L`; if not, :math:`\alpha_L = 0` and the others are
        :math:`1/(L-1)`.

    Returns
    -------
    Array
        :math:`\alpha`, a weight for each query, of sum one, in JAX's default float.

    Raises
    ------
    ValueError
        If `size` is no whole number that large, known before tracing.

    Examples
    --------
    >>> teacher_forcing(4).tolist(), teacher_forcing(3, continuation=False).tolist()
    ([0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0])
    """
    size = as_int(size, "size", least=1 if continuation else 2)
    return _equal_weights(size, slice(size if continuation else size - 1))


def last_token(size: int) -> Float[Array, " length"]:
    r"""Return the query weights of last-token prompt evaluation: :math:`\alpha_L = 1`.

    As a density it is :math:`L` on the last cell: the influence density has no limit as the grid is
    refined, so report L with it.

    Parameters
    ----------
    size
        L, the number of positions, at least 1.

    Returns
    -------
    Array
        :math:`\alpha`, a weight for each query, zero but for the last, in JAX's default float.

    Raises
    ------
    ValueError
        If `size` is no whole number of at least 1, known before tracing.

    Examples
    --------
    >>> last_token(3).tolist()
    [0.0, 0.0, 1.0]
    """
    size = as_int(size, "size")
    return _equal_weights(size, slice(size - 1, size))


def _equal_weights(size: int, queries: slice) -> Float[Array, " length"]:
    """Return weights of sum one, equal at the queries and zero elsewhere."""
    # On the host: a length that was not seen before compiles nothing.
    weights = np.zeros(size, jax.dtypes.canonicalize_dtype(float))
    weights[queries] = 1 / weights[queries].size
    return jax.device_put(weights)
