r"""Penalties on positional profiles: plain functions to differentiate.

All are densities' integrals over position: they converge as the grid is refined.
"""

from jaxtyping import Array, Float

from lim_jax.grid import Grid, integral

Scalar = Float[Array, ""]
Profile = Float[Array, " length"]


def influence_discrepancy(density: Profile, target: Profile | float, grid: Grid) -> Scalar:
    r""":math:`\Phi_\nu = \frac12\sum_i \Delta p_i\,(m_i - \nu_i)^2`.

    `eq:influence-discrepancy-functional`; the penalty of `eq:discrete-target-influence-penalty`
    without its :math:`\beta`. For :math:`\nu = 1` it is half the imbalance
    :math:`\mathcal E_{inf}` of `eq:simulation-imbalance-metrics`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from lim_jax.grid import token_grid
    >>> float(influence_discrepancy(jnp.array([0.0, 2.0]), 1.0, token_grid(2)))
    0.5
    """
    return integral((density - target) ** 2, grid) / 2


def trace_penalty(traces: Profile, grid: Grid) -> Scalar:
    r""":math:`\Omega_{obs}^{tr} = \sum_i \Delta p_i\,(g_i - \bar g)^2`.

    `eq:true-trace-observability-penalty` for exact traces; for estimated ones
    `eq:discrete-observability-penalty`, which is biased upwards.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from lim_jax.grid import token_grid
    >>> float(trace_penalty(jnp.array([1.0, 3.0]), token_grid(2)))
    1.0
    """
    return integral((traces - integral(traces, grid)) ** 2, grid)
