"""The paper's remedies, as steps that compose with optax and with any training stage."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax.grid import Grid, integral

Profile = Float[Array, " length"]


def reweight_positions(
    weights: Profile,
    density: Profile,
    target: Profile | float,
    grid: Grid,
    *,
    rate: float,
    smallest: float,
    largest: float,
) -> Profile:
    r"""One damped multiplicative update of Algorithm 2's loss weights.

    :math:`\tilde w_i = \mathrm{clip}(w_i\,e^{\eta_w(\nu_i - m_i)})`, then division by
    :math:`\sum_j \Delta p_j \tilde w_j` (`eq:mask-aware-weight-update`). Clipping comes first, so
    the weights returned have unit mean and may leave the clipping interval.

    Parameters
    ----------
    weights, density, target
        :math:`w`, the measured influence density :math:`m` and its target :math:`\nu`.
    grid
        Their positions.
    rate
        :math:`\eta_w`.
    smallest, largest
        The clipping interval.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> density = jnp.array([2.0, 0.0])
    >>> options = dict(rate=0.5, smallest=0.1, largest=8.0)
    >>> weights = reweight_positions(jnp.ones(2), density, 1.0, token_grid(2), **options)
    >>> bool(weights[0] < 1 < weights[1]), round(float(weights.sum()), 12)
    (True, 2.0)
    """
    raised = jnp.clip(weights * jnp.exp(rate * (target - density)), smallest, largest)
    return raised / integral(raised, grid)
