r"""Algorithm 1: objectives that balance the influence density against a target.

All are densities' integrals over position: they converge as the grid is refined. They are
functions of input adjoints, so `jax.grad` of them takes the rule of `mixed` by itself.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import (
    finite_scalar,
    guarded,
    guarded_finite,
    require,
    require_callable,
    require_scalar,
)
from lim_jax.density import Batch, Loss, embedded, require_pair
from lim_jax.grid import Grid, integral, require_on_grid, require_profile
from lim_jax.training.mixed import (
    Adjoints,
    Functional,
    Losses,
    Scalar,
    functional_of_adjoints,
)

Profile = Float[Array, " length"]
Estimator = Callable[..., Profile]


def influence_discrepancy(density: Profile, target: Profile | Scalar | float, grid: Grid) -> Scalar:
    r""":math:`\Phi_\nu = \frac12\sum_i \Delta p_i\,(m_i - \nu_i)^2`.

    `eq:influence-discrepancy-functional`, `eq:l2-influence-discrepancy`;
    the penalty of `eq:discrete-target-influence-penalty`
    without its :math:`\beta`. For :math:`\nu = 1` it is half the imbalance
    :math:`\mathcal E_{inf}` of `eq:simulation-imbalance-metrics`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from lim_jax.grid import token_grid
    >>> float(influence_discrepancy(jnp.array([0.0, 2.0]), 1.0, token_grid(2)))
    0.5
    """
    require_on_grid(density, grid, "density", "length")
    require_profile(target, grid, "target")
    return integral((density - target) ** 2, grid) / 2


def balanced_density(adjoints: Adjoints, grid: Grid, *, epsilon: Scalar | float) -> Profile:
    r"""Algorithm 1's estimate :math:`\hat m = \hat I/(\hat Z + \epsilon_{inf})` from a batch.

    A ratio of means, whose bias is
    :math:`[m\,\mathrm{Var}\hat Z - \mathrm{Cov}(\hat I, \hat Z)]/Z^2` to first order;
    `ratio_bias` estimates it.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> adjoints = jnp.array([[[1.0], [3.0]]])
    >>> balanced_density(adjoints, token_grid(2), epsilon=0.0).round(3).tolist()
    [0.2, 1.8]
    """
    require_on_grid(adjoints, grid, "adjoints", "examples length width")
    return _normalised(_energies(adjoints).mean(axis=0), grid, epsilon)


def crossed_density(adjoints: Adjoints, grid: Grid, *, epsilon: Scalar | float) -> Profile:
    r"""Estimate the density with independent denominators: each half over the other's total.

    What is left of the ratio's bias is :math:`m\,\mathrm{Var}\hat Z/Z^2` of half a batch, the
    same factor at every position. That is less than `balanced_density` has where the totals vary
    little and the profiles much, and more where only the totals vary: `ratio_bias` tells.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> adjoints = jnp.array([[[1.0], [1.0]], [[0.0], [2.0]]])  # totals 1 and 2
    >>> crossed_density(adjoints, token_grid(2), epsilon=0.0).tolist()
    [0.25, 2.25]
    """
    require_on_grid(adjoints, grid, "adjoints", "examples length width")
    energies = _energies(adjoints)
    require(
        len(energies) > 1,
        "adjoints",
        got=f"{len(energies)} example",
        expected="at least two",
        cure="Enlarge the batch, or take balanced_density.",
    )
    first, second = (half.mean(axis=0) for half in jnp.split(energies, [len(energies) // 2]))
    first_total, second_total = integral(first, grid), integral(second, grid)
    return (_over(first, second_total, epsilon) + _over(second, first_total, epsilon)) / 2


def _energies(adjoints: Adjoints) -> Float[Array, "examples length"]:
    return (adjoints**2).sum(axis=2)


def _normalised(energy: Profile, grid: Grid, epsilon: Scalar | float) -> Profile:
    return _over(energy, integral(energy, grid), epsilon)


def _over(energy: Profile, total: Scalar, epsilon: Scalar | float) -> Profile:
    """Divide by a total; an infinite epsilon gives NaN, not a density of zero."""
    require_scalar(epsilon, "epsilon")
    return jnp.where(jnp.isfinite(epsilon), energy / (total + epsilon), jnp.nan)


def influence_penalty(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    target: Profile | Scalar | float = 1.0,
    epsilon: float = 1e-8,
    estimate: Estimator = balanced_density,
) -> Scalar:
    r"""The discrepancy :math:`\Phi_\nu` of a batch's influence from a target density.

    Penalties and objectives refuse what does not fit the grid (`ValueError`), and a batch or a
    number that is NaN or infinite (`EquinoxRuntimeError`); so do all that follow.

    Parameters
    ----------
    loss, params, batch, grid
        As in `influence`.
    target
        :math:`\nu`, of integral one; 1 is uniform.
    epsilon
        :math:`\epsilon_{inf}`, against a vanishing total; 0 for
        `eq:influence-discrepancy-functional` itself.
    estimate
        `balanced_density` or `crossed_density`.
    """
    return _penalised(
        _Balance(grid, estimate), loss, params, batch, grid,
        share=0.0, strength=1.0, target=target, epsilon=epsilon,
    )  # fmt: skip


def balanced_objective(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    strength: Scalar | float,
    target: Profile | Scalar | float = 1.0,
    epsilon: float = 1e-8,
    estimate: Estimator = balanced_density,
) -> Scalar:
    r"""Algorithm 1's objective, the risk and :math:`\beta` times the influence's discrepancy.

    .. math:: \hat R_{bal} = \frac1{|\mathcal B|}\sum_b \mathrm{loss}_b
              + \frac\beta2\sum_i \Delta p_i\,(\hat m_i - \nu_i)^2

    (`eq:discrete-target-influence-penalty`; with a fine grid and `epsilon` 0
    `eq:gd-target-penalty`). `jax.value_and_grad` of it in the parameters costs some three task
    gradients. A strength that changes with the step is any optax schedule.

    Parameters
    ----------
    loss, params, batch, grid, target, epsilon, estimate
        As in `influence_penalty`.
    strength
        :math:`\beta`.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> loss = lambda weight, x, y: jnp.vdot(weight, x[:, 0])
    >>> batch, weight = (jnp.ones((1, 2, 1)), None), jnp.array([1.0, 2.0])
    >>> objective = lambda w: balanced_objective(loss, w, batch, token_grid(2), strength=1.0)
    >>> bool(jnp.allclose(objective(weight), 3 + 0.36 / 2))  # m = (0.4, 1.6)
    True
    """
    return _penalised(
        _Balance(grid, estimate), loss, params, batch, grid,
        share=1.0, strength=strength, target=target, epsilon=epsilon,
    )  # fmt: skip


def constrained_objective(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    limit: Scalar | float,
    multiplier: Scalar | float,
    stiffness: Scalar | float,
    target: Profile | Scalar | float = 1.0,
    epsilon: float = 1e-8,
) -> Scalar:
    r"""The risk under the constraint :math:`\Phi_\nu \le \tau`, as an augmented Lagrangian.

    .. math:: R + \frac1{2\rho}\bigl(\max(0, \lambda + \rho(\Phi_\nu - \tau))^2
              - \lambda^2\bigr)

    Minimise it, take `raised_multiplier`, and repeat: the constraint holds in the limit at finite
    stiffness, and costs nothing where it is slack.

    Parameters
    ----------
    loss, params, batch, grid, target, epsilon
        As in `influence_penalty`.
    limit
        :math:`\tau`.
    multiplier, stiffness
        :math:`\lambda \ge 0` and :math:`\rho > 0`.
    """
    return _penalised(
        _Constraint(grid), loss, params, batch, grid,
        limit=limit, multiplier=multiplier, stiffness=stiffness, target=target, epsilon=epsilon,
    )  # fmt: skip


def raised_multiplier(
    multiplier: Scalar | float,
    penalty: Scalar | float,
    *,
    limit: Scalar | float,
    stiffness: Scalar | float,
) -> Scalar:
    r"""The next multiplier, :math:`\max(0, \lambda + \rho(\Phi_\nu - \tau))`.

    Examples
    --------
    >>> float(raised_multiplier(1.0, 0.5, limit=0.25, stiffness=4.0))
    2.0
    """
    multiplier, penalty = finite_scalar(multiplier, "multiplier"), finite_scalar(penalty, "penalty")
    limit, stiffness = finite_scalar(limit, "limit"), finite_scalar(stiffness, "stiffness")
    return _raised(multiplier, penalty, limit, stiffness)


def _raised(multiplier: Any, penalty: Any, limit: Any, stiffness: Any) -> Scalar:
    return jnp.maximum(0.0, multiplier + stiffness * (penalty - limit))


class _Constraint(eqx.Module):
    """Limit, multiplier, stiffness, target and epsilon to the augmented Lagrangian."""

    grid: Grid

    def __call__(self, losses: Losses, adjoints: Adjoints, options: Any) -> Scalar:
        limit, multiplier, stiffness, target, epsilon = options
        stiffness = guarded(stiffness, ~(stiffness > 0), "stiffness: expected a positive number.")
        density = balanced_density(adjoints, self.grid, epsilon=epsilon)
        penalty = influence_discrepancy(density, target, self.grid)
        raised = _raised(multiplier, penalty, limit, stiffness)
        return losses.mean() + (raised**2 - multiplier**2) / (2 * stiffness)


def averaged_objective(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    strength: Scalar | float,
    previous: Profile,
    memory: Scalar | float,
    target: Profile | Scalar | float = 1.0,
    epsilon: float = 1e-8,
) -> tuple[Scalar, Profile]:
    r"""Algorithm 1's objective of a moving average of the energies, which it returns too.

    For ``jax.value_and_grad(..., has_aux=True)``. The average
    :math:`\mu\,I_{prev} + (1-\mu)\,\hat I` takes the place of :math:`\hat I` before it is
    normalised: over some :math:`1/(1-\mu)` steps it is as good as so many batches, so that the
    ratio's bias falls by that factor. Only this step's share has a gradient, so :math:`\beta` is in
    effect :math:`(1-\mu)` times as strong.

    Parameters
    ----------
    loss, params, batch, grid, strength, target, epsilon
        As in `balanced_objective`.
    previous
        The average that the step before returned; anything, with memory 0, at the first.
    memory
        :math:`\mu` in [0, 1).
    """
    return _penalised(
        _AveragedBalance(grid), loss, params, batch, grid, has_aux=True,
        strength=strength, target=target, epsilon=epsilon, previous=previous, memory=memory,
    )  # fmt: skip


class _AveragedBalance(eqx.Module):
    """Strength, target, epsilon, previous energy and memory to the objective and the energy."""

    grid: Grid

    def __call__(self, losses: Losses, adjoints: Adjoints, options: Any) -> tuple[Scalar, Profile]:
        strength, target, epsilon, previous, memory = options
        energy = memory * previous + (1 - memory) * _energies(adjoints).mean(axis=0)
        density = _normalised(energy, self.grid, epsilon)
        return losses.mean() + strength * influence_discrepancy(density, target, self.grid), energy


class _Balance(eqx.Module):
    """Share of the risk, strength of the discrepancy, target and epsilon to their sum."""

    grid: Grid
    estimate: Estimator = eqx.field(static=True)

    def __check_init__(self):
        require_callable(self.estimate, "estimate", "estimate(adjoints, grid, epsilon=)")

    def __call__(self, losses: Losses, adjoints: Adjoints, options: Any) -> Scalar:
        share, strength, target, epsilon = options
        density = self.estimate(adjoints, self.grid, epsilon=epsilon)
        return share * losses.mean() + strength * influence_discrepancy(density, target, self.grid)


def _penalised(
    functional: Functional,
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    has_aux: bool = False,
    **options: Profile | Scalar | float,
) -> Any:
    """A functional whose options, finite numbers and profiles, have the states' precision."""
    loss, batch = embedded(loss, params, batch)
    x, _ = require_pair(loss, batch)
    for name, option in options.items():
        require_profile(option, grid, name)
    arrays = tuple(jnp.asarray(option, x.dtype) for option in options.values())
    arrays = guarded_finite(arrays, ", ".join(options))
    return functional_of_adjoints(functional, loss, params, batch, grid, arrays, has_aux=has_aux)
