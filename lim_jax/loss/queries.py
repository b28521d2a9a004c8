"""Query weights: which positions are asked, and with what weight, of sum one."""

import jax
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import as_int


def teacher_forcing(size: int, *, continuation: bool = True) -> Float[Array, " length"]:
    r"""Query weights of teacher forcing.

    With a `continuation` target :math:`Y_{L+1}` all L queries are scored, :math:`\alpha_i = 1/L`.
    Without one the last query has no target: :math:`\alpha_L = 0` and the others
    :math:`1/(L-1)`. Both conventions stand below `eq:autoregressive-terminal-loss`.

    Examples
    --------
    >>> teacher_forcing(4).tolist(), teacher_forcing(3, continuation=False).tolist()
    ([0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0])
    """
    size = as_int(size, "size", least=1 if continuation else 2)
    return _equal_weights(size, slice(size if continuation else size - 1))


def last_token(size: int) -> Float[Array, " length"]:
    r"""Query weights of last-token prompt evaluation: :math:`\alpha_L = 1`.

    As a density it is :math:`L` on the last cell: the influence density has no limit as the grid
    is refined, so report L with it.

    Examples
    --------
    >>> last_token(3).tolist()
    [0.0, 0.0, 1.0]
    """
    size = as_int(size, "size")
    return _equal_weights(size, slice(size - 1, size))


def _equal_weights(size: int, asked: slice) -> Float[Array, " length"]:
    # On the host: a length that was not seen before compiles nothing.
    weights = np.zeros(size, jax.dtypes.canonicalize_dtype(float))
    weights[asked] = 1 / weights[asked].size
    return jax.device_put(weights)
