r"""How far a batch's influence is from a target density: what Algorithm 1's penalty is made of.

A target is one density, that of the whole batch, or a density for each example. Its discrepancy is
a function of density, target and the places' weights: `squared_discrepancy`, the paper's,
`cross_entropy_discrepancy`, or one of your own.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from lim_jax._checks import as_nonnegative, error_if_not_finite, require_floats, require_scalar
from lim_jax.grid.integrals import require_profile
from lim_jax.grid.measure import Grid, Scalar, require_on_grid
from lim_jax.training.estimators import MEASURE, Places

PerPosition = Float[Array, " length"]
Discrepancy = Callable[[Places, Any, Places], Scalar]


def influence_discrepancy(
    density: PerPosition, target: PerPosition | Scalar | float, grid: Grid
) -> Scalar:
    r"""Compute the discrepancy of a density from a target, half their integrated squared distance.

    .. math:: \Phi_\nu = \frac12\sum_i \Delta p_i\,(m_i - \nu_i)^2

    `eq:influence-discrepancy-functional`, `eq:l2-influence-discrepancy`; the penalty of
    `eq:discrete-target-influence-penalty` without its :math:`\beta`. For :math:`\nu = 1` it is half
    the imbalance :math:`\mathcal E_{inf}` of `eq:simulation-imbalance-metrics`.

    Parameters
    ----------
    density
        :math:`m`, a number for each position, of integral one with respect to the grid's measure.
    target
        :math:`\nu`, a number for each position, or one for all; also of integral one.
    grid
        The positions.

    Returns
    -------
    Array
        The discrepancy, a scalar that is nowhere negative.

    Raises
    ------
    ValueError
        If `density` has not a floating-point number for each position, or `target` neither that nor
        one number.
    EquinoxRuntimeError
        If the density or the target is NaN or infinite.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> float(influence_discrepancy(jnp.array([0.0, 2.0]), 1.0, lim.token_grid(2)))
    0.5
    """
    require_on_grid(density, grid, "density", "length")
    require_profile(target, grid, "target")
    density, _ = error_if_not_finite((density, jnp.asarray(target)), "density, target")
    return squared_discrepancy(density, target, grid.in_single_precision.weights)


def squared_discrepancy(
    density: Places, target: Places | Scalar | float, weights: Places
) -> Scalar:
    r"""Compute the paper's discrepancy :math:`\frac12\sum_r w_r\,(m_r - \nu_r)^2`.

    `eq:gd-target-penalty`, over places: positions, or pools of them. The default of a `Penalty`.

    Parameters
    ----------
    density
        :math:`m`, a number for each place.
    target
        :math:`\nu`, a number for each place, or one for all.
    weights
        :math:`w`, the measure of each place, nowhere negative: ``grid.weights``, or the pools'
        shares.

    Returns
    -------
    Array
        The discrepancy, a scalar that is nowhere negative.

    Raises
    ------
    ValueError
        If `density` and `weights` have not one number for each place, or `target` neither that nor
        one number.
    EquinoxRuntimeError
        If a weight is negative, or a number that is known before tracing is NaN or infinite.

    Examples
    --------
    >>> halves = jnp.array([0.5, 0.5])
    >>> float(squared_discrepancy(jnp.array([0.5, 1.5]), 1.0, halves))
    0.125
    """
    weights = _checked_weights(density, target, weights)
    return weights @ (density - target) ** 2 / 2


FLOOR = 1e-6  # of an even density: below it no place's share is told from none


def cross_entropy_discrepancy(
    density: Places, target: Places | Scalar | float, weights: Places
) -> Scalar:
    r"""Compute :math:`-\sum_r w_r\,\nu_r\log(m_r + 10^{-6})`, for a target of a few places.

    For a target that has all its mass in one place it is minus the logarithm of that place's share
    of the influence, up to a constant. The squared one asks for the target's *values*, at every
    place alike; this one only for places where the target has mass, by a gradient that goes as one
    over their density. The floor :math:`10^{-6}`, a millionth of an even density, keeps a share of
    zero finite.

    Parameters
    ----------
    density
        :math:`m`, a number for each place: a position, or a pool.
    target
        :math:`\nu \ge 0`, a number for each place, or one for all.
    weights
        :math:`w`, the measure of each place, nowhere negative: ``grid.weights``, or the pools'
        shares.

    Returns
    -------
    Array
        The discrepancy, a scalar; least, for a target of integral one, where the density is the
        target but for the floor.

    Raises
    ------
    ValueError
        If `density` and `weights` have not one number for each place, or `target` neither that nor
        one number.
    EquinoxRuntimeError
        If the target or a weight is negative, or a number that is known before tracing is NaN or
        infinite, or such a density negative.

    Examples
    --------
    >>> halves, evidence = jnp.array([0.5, 0.5]), jnp.array([0.0, 2.0])  # all in the second
    >>> bool(jnp.allclose(cross_entropy_discrepancy(evidence, evidence, halves), -jnp.log(2.0)))
    True
    """
    weights = _checked_weights(density, target, weights)
    target = as_nonnegative(jnp.asarray(target, density.dtype), "target", "Pass a density.")
    if not isinstance(density, Tracer):
        density = as_nonnegative(
            density, "density", "Pass a density of energies: squares of adjoints over their total."
        )
    return -weights @ (target * jnp.log(density + FLOOR))


def _checked_weights(density: Any, target: Any, weights: Any) -> Places:
    """Return the weights; raise unless density, target and weights fit one another and are finite.

    Only the shapes of traced arrays are checked, as in a penalty's program.
    """
    cure = "Pass one number for each position or pool."
    require_floats(density, "density", "places", cure)
    require_floats(weights, "weights", "places", cure, places=len(density))
    if getattr(target, "shape", ()) == ():
        require_scalar(target, "target")
    else:
        require_floats(target, "target", "places", cure, places=len(density))
    values = {"density": density, "target": jnp.asarray(target), "weights": weights}
    for name, value in values.items():
        if not isinstance(value, Tracer):
            error_if_not_finite(value, name)  # raises at once: the value is known
    if isinstance(weights, Tracer):
        return weights  # the grid's, or shares that `pooled_energies` checks
    return as_nonnegative(weights, "weights", MEASURE)
