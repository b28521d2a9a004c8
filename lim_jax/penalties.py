r"""Penalties on positional profiles, and how to differentiate them through a model.

All are densities' integrals over position: they converge as the grid is refined. A function of
input adjoints, differentiated in the parameters, is a mixed derivative. With :math:`c` the
derivative of a functional F in the adjoints,

.. math:: D_\vartheta F(P_0)[\eta] = \langle c, D_\vartheta P_0[\eta]\rangle
          = D_\vartheta\bigl(D_x \mathrm{loss}\cdot c\bigr)[\eta], \qquad c\ \text{held fixed},

so one forward derivative of the loss along c, differentiated once in reverse, gives what a
gradient of a gradient gives. `functional_of_adjoints` has that rule, in a form that forward mode
and further derivatives pass through, so that `jax.grad` of an objective takes it by itself.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lim_jax.gramian import Steps, probed_observability
from lim_jax.grid import Grid, integral
from lim_jax.influence import Batch, Loss, losses_and_adjoints, require_batch
from lim_jax.probes import Probes

Scalar = Float[Array, ""]
Profile = Float[Array, " length"]
Losses = Float[Array, " examples"]
Adjoints = Float[Array, "examples length width"]
Functional = Callable[[Losses, Adjoints, Any], Scalar]


def influence_discrepancy(density: Profile, target: Profile | Scalar | float, grid: Grid) -> Scalar:
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


def functional_of_adjoints(
    functional: Functional, loss: Loss, params: PyTree, batch: Batch, grid: Grid, options: PyTree
) -> Scalar:
    r"""A function of a batch's losses and input adjoints, to differentiate in the parameters.

    Its value is ``functional(losses, adjoints, options)``. All derivatives are exact: in the
    parameters, the batch and the options, forward, reverse, and nested. The first, in the
    parameters, is the mixed derivative above, together with that of the losses themselves.

    Parameters
    ----------
    functional
        A pure function. What it needs and is traced or differentiated comes through `options`: it
        may close over numbers known before tracing only.
    loss
        ``loss(params, x, y)`` of one example, a pure function that closes over no tracers.
    params, batch, grid
        As in `influence`.
    options
        A pytree.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> loss = lambda weight, x, y: weight**2 * x.sum()  # P_0 = weight^2 / (1/2)
    >>> energy = lambda losses, adjoints, options: (adjoints**2).mean()
    >>> batch, grid = (jnp.ones((1, 2, 1)), None), token_grid(2)
    >>> jax.grad(lambda w: functional_of_adjoints(energy, loss, w, batch, grid, None))(1.0).item()
    16.0
    """
    require_batch(loss, params, batch, grid)
    return _functional(params, batch, options, functional=functional, loss=loss, grid=grid)


@eqx.filter_custom_jvp
def _functional(params, batch, options, *, functional, loss, grid):
    return functional(*losses_and_adjoints(loss, params, batch, grid), options)


@_functional.def_jvp
def _functional_jvp(primals, tangents, *, functional, loss, grid):
    params, batch, options = primals
    losses, adjoints = losses_and_adjoints(loss, params, batch, grid)
    value, (a, c) = jax.value_and_grad(functional, argnums=(0, 1))(losses, adjoints, options)

    def along(params, batch, options):
        x, y = batch

        def batch_losses(x):
            return jax.vmap(loss, in_axes=(None, 0, 0))(params, x, y)

        # <c, P_0> = D_x loss[c / weights]: the adjoints are densities.
        direction = (c / grid.weights[None, :, None]).astype(x.dtype)
        again, slopes = jax.jvp(batch_losses, (x,), (direction,))
        return a @ again + slopes.sum() + functional(losses, adjoints, options)

    _, tangent = eqx.filter_jvp(along, primals, tangents)
    return value, tangent


def balanced_density(
    adjoints: Adjoints, grid: Grid, *, epsilon: Scalar | float, total: Scalar | None = None
) -> Profile:
    r"""Algorithm 1's estimate :math:`\hat m = \hat I/(\hat Z + \epsilon_{inf})` from a batch.

    A given `total` replaces :math:`\hat Z`: a moving average, or the estimate of another batch,
    lessens the bias of the ratio.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> adjoints = jnp.array([[[1.0], [3.0]]])
    >>> balanced_density(adjoints, token_grid(2), epsilon=0.0).round(3).tolist()
    [0.2, 1.8]
    """
    energy = (adjoints**2).sum(axis=2).mean(axis=0)
    return energy / ((integral(energy, grid) if total is None else total) + epsilon)


def influence_penalty(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    target: Profile | Scalar | float = 1.0,
    epsilon: float = 1e-8,
    total: Scalar | None = None,
) -> Scalar:
    r"""The discrepancy :math:`\Phi_\nu` of a batch's influence from a target density.

    Parameters
    ----------
    loss, params, batch, grid
        As in `influence`.
    target
        :math:`\nu`, of integral one; 1 is uniform.
    epsilon
        :math:`\epsilon_{inf}`, against a vanishing total; 0 for
        `eq:influence-discrepancy-functional` itself.
    total
        As in `balanced_density`.
    """
    return _balance(loss, params, batch, grid, (0.0, 1.0, target, epsilon, total))


def balanced_objective(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    strength: Scalar | float,
    target: Profile | Scalar | float = 1.0,
    epsilon: float = 1e-8,
    total: Scalar | None = None,
) -> Scalar:
    r"""Algorithm 1's objective, the risk and :math:`\beta` times the influence's discrepancy.

    .. math:: \hat R_{bal} = \frac1{|\mathcal B|}\sum_b \mathrm{loss}_b
              + \frac\beta2\sum_i \Delta p_i\,(\hat m_i - \nu_i)^2

    (`eq:discrete-target-influence-penalty`; with a fine grid and `epsilon` 0
    `eq:gd-target-penalty`). `jax.value_and_grad` of it in the parameters costs some three task
    gradients. A strength that changes with the step is any optax schedule.

    Parameters
    ----------
    loss, params, batch, grid, target, epsilon, total
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
    return _balance(loss, params, batch, grid, (1.0, strength, target, epsilon, total))


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
    options = (limit, multiplier, stiffness, target, epsilon)
    options = jax.tree.map(lambda leaf: jnp.asarray(leaf, batch[0].dtype), options)
    return functional_of_adjoints(_Constraint(grid), loss, params, batch, grid, options)


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
    return jnp.maximum(0.0, multiplier + stiffness * (penalty - limit))


class _Constraint(eqx.Module):
    """Limit, multiplier, stiffness, target and epsilon to the augmented Lagrangian."""

    grid: Grid

    def __call__(self, losses: Losses, adjoints: Adjoints, options: Any) -> Scalar:
        limit, multiplier, stiffness, target, epsilon = options
        density = balanced_density(adjoints, self.grid, epsilon=epsilon)
        penalty = influence_discrepancy(density, target, self.grid)
        raised = raised_multiplier(multiplier, penalty, limit=limit, stiffness=stiffness)
        return losses.mean() + (raised**2 - multiplier**2) / (2 * stiffness)


def ratio_bias(energies: Float[Array, "examples length"], grid: Grid) -> Profile:
    r"""Estimate the bias of a batch's density, a ratio of means, by the jackknife.

    :math:`(B-1)(\bar m_{(\cdot)} - \hat m)` over the leave-one-out densities: what a batch of B
    examples is off by on average, to first order in 1/B.

    Parameters
    ----------
    energies
        From `influence.adjoint_energies`; at least two examples.
    grid
        Their positions.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> same = jnp.array([[1.0, 3.0], [1.0, 3.0]])
    >>> ratio_bias(same, token_grid(2)).tolist()
    [0.0, 0.0]
    """
    count, total = energies.shape[0], energies.sum(axis=0)

    def density(energy: Profile) -> Profile:
        return energy / integral(energy, grid)

    left_out = jax.vmap(lambda energy: density(total - energy))(energies)
    return (count - 1) * (left_out.mean(axis=0) - density(total))


def _balance(
    loss: Loss, params: PyTree, batch: Batch, grid: Grid, options: tuple[Any, ...]
) -> Scalar:
    dtype = batch[0].dtype
    options = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), options)
    functional = _Balance(grid)
    return functional_of_adjoints(functional, loss, params, batch, grid, options)


class _Balance(eqx.Module):
    """Share of the risk, strength of the discrepancy, target, epsilon and total to their sum."""

    grid: Grid

    def __call__(self, losses: Losses, adjoints: Adjoints, options: Any) -> Scalar:
        share, strength, target, epsilon, total = options
        density = balanced_density(adjoints, self.grid, epsilon=epsilon, total=total)
        return share * losses.mean() + strength * influence_discrepancy(density, target, self.grid)


def gramian_penalty(gramians: Float[Array, "length width width"], grid: Grid) -> Scalar:
    r""":math:`\Omega_{obs} = \sum_i \Delta p_i\,\|G_i - \bar G\|_{HS}^2`.

    `eq:gd-observability-penalty`. Unlike `trace_penalty` it sees directions.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> gramians = jnp.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]])
    >>> float(gramian_penalty(gramians, token_grid(2)))
    0.5
    """
    deviations = gramians - integral(gramians, grid)[None]
    return integral((deviations**2).sum(axis=(1, 2)), grid)


def crossfit_penalty(first: Profile, second: Profile, grid: Grid) -> Scalar:
    r"""The unbiased :math:`\tilde\Omega_{obs}^{tr} = (\hat g^{(a)})^\top Q\,\hat g^{(b)}`.

    `eq:algorithm3-crossfit-unbiased-penalty`, of two independent estimates of the traces. It may be
    negative, and is never clipped: that would bias it.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> float(crossfit_penalty(jnp.array([1.0, 3.0]), jnp.array([3.0, 1.0]), token_grid(2)))
    -1.0
    """
    return integral((first - integral(first, grid)) * (second - integral(second, grid)), grid)


def sampled_trace_penalty(
    traces: Float[Array, " positions"], weights: Float[Array, " positions"]
) -> Scalar:
    r"""The trace penalty over some positions, each weighted for all that it stands for.

    With inclusion probabilities :math:`\pi_i` and weights :math:`\Delta p_i/\pi_i`, each sum of the
    penalty is estimated without bias, and its mean is normalised by the weights' own sum.

    Examples
    --------
    >>> float(sampled_trace_penalty(jnp.array([1.0, 3.0]), jnp.array([0.5, 0.5])))
    1.0
    """
    mean = weights @ traces / weights.sum()
    return weights @ (traces - mean) ** 2


def observability_objective(
    loss: Loss,
    observations: Callable[[PyTree, Any], Float[Array, "depth observed"]],
    params: PyTree,
    batch: Batch,
    grid: Grid,
    probes: Probes,
    *,
    strength: Scalar | float,
    step: Steps,
    previous: Profile | None = None,
    memory: Scalar | float = 0.0,
) -> tuple[Scalar, Profile]:
    r"""Algorithm 3's objective with its traces, for ``jax.value_and_grad(..., has_aux=True)``.

    :math:`\mathcal L_{\mathcal B} + \frac{\lambda_{obs}}2\hat\Omega_{obs}^{tr}`
    (`eq:observability-balanced-training-objective`), the traces averaged over probes and examples.
    The penalty is biased upwards by the noise of the traces
    (`eq:algorithm3-penalty-estimator-bias`); averaging over steps lessens it. Its gradient is
    reverse mode through the probes' forward mode.

    Parameters
    ----------
    loss, params, batch, grid
        As in `influence`.
    observations
        ``observations(params, x)``, as in `gramian.observability_gramians`.
    probes
        From `probes`, drawn anew at each step; common to all positions.
    strength
        :math:`\lambda_{obs}`.
    step
        As in `gramian.observability_gramians`.
    previous, memory
        Traces of earlier steps, and their share in the average with this step's, for temporal
        averaging. Only this step's share has a gradient.

    Returns
    -------
    tuple
        The objective, and the averaged traces :math:`\hat g`.
    """
    x, y = batch

    def traces_of(example: Float[Array, "length width"]) -> Profile:
        samples = probed_observability(lambda x: observations(params, x), example, step, probes)
        return samples.mean(axis=0)

    traces = jax.vmap(traces_of)(x).mean(axis=0)
    if previous is not None:
        traces = memory * jax.lax.stop_gradient(previous) + (1 - memory) * traces
    risk = jax.vmap(loss, in_axes=(None, 0, 0))(params, x, y).mean()
    return risk + strength / 2 * trace_penalty(traces, grid), traces
