r"""The linearised field: the one place where the local operator and the kernel are told apart.

The derivative of a field at x in its first slot is the local operator B (the query path and the
tokenwise network), that in its second slot the Volterra kernel K, diagonal block included:
:math:`D\mathscr F(X) = K + B` (`eq:attention-linearization-exact`). Adjoints are taken in the
grid's pairing, so covectors stay densities.
"""

from typing import NamedTuple

import jax

from lim_jax.field import Field, State
from lim_jax.grid import Grid


class PullBack(NamedTuple):
    r"""The two parts of :math:`D\mathscr F(X)^* P`.

    Attributes
    ----------
    local
        :math:`B^* P`.
    kernel
        :math:`K^* P` (`eq:volterra-adjoint`).
    """

    local: State
    kernel: State


def pull_back(field: Field, x: State, covector: State, grid: Grid) -> PullBack:
    r"""Carry a covector back through the linearised field, local and kernel parts apart.

    One vector-Jacobian product in both slots.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from lim_jax.grid import token_grid
    >>> field = lambda x, context, grid: 2 * x + 3 * context
    >>> parts = pull_back(field, jnp.ones((2, 1)), jnp.ones((2, 1)), token_grid(2))
    >>> parts.local.tolist(), parts.kernel.tolist()
    ([[2.0], [2.0]], [[3.0], [3.0]])
    """
    weights = grid.weights[:, None]
    _, transposed = jax.vjp(lambda x, context: field(x, context, grid), x, x)
    local, kernel = transposed(weights * covector)
    return PullBack(local / weights, kernel / weights)
