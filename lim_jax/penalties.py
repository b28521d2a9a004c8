r"""Penalties on positional profiles, and how to differentiate them through a model.

All are densities' integrals over position: they converge as the grid is refined. A function of
input adjoints, differentiated in the parameters, is a mixed derivative. With :math:`c` the
derivative of a functional F in the adjoints,

.. math:: D_\vartheta F(P_0)[\eta] = \langle c, D_\vartheta P_0[\eta]\rangle
          = D_\vartheta\bigl(D_x \mathrm{loss}\cdot c\bigr)[\eta], \qquad c\ \text{held fixed},

so the gradient of F is one forward derivative, along c in the input, of the plain gradient of the
loss: forward over reverse gives what a gradient of a gradient gives. `functional_of_adjoints` has
that rule, in a form that forward mode and further derivatives pass through, so that `jax.grad` of
an objective takes it by itself.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import require
from lim_jax.gramian import Positions, Steps, layer_steps
from lim_jax.grid import Grid, integral
from lim_jax.influence import Batch, Loss, losses_and_adjoints, require_batch
from lim_jax.probes import Probes
from lim_jax.trace_estimates import probed_observability

Scalar = Float[Array, ""]
Profile = Float[Array, " length"]
Losses = Float[Array, " examples"]
Adjoints = Float[Array, "examples length width"]
Functional = Callable[[Losses, Adjoints, Any], Any]
Estimator = Callable[..., Profile]


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
    functional: Functional,
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    options: PyTree,
    *,
    has_aux: bool = False,
) -> Any:
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
    has_aux
        Whether the functional returns a pair, as `jax.grad` means it: the scalar, and a pytree of
        arrays that is handed out without derivatives.

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

    def paired(losses: Losses, adjoints: Adjoints, options: Any) -> tuple[Scalar, Any]:
        found = functional(losses, adjoints, options)
        return found if has_aux else (found, None)

    value, aux = _functional(params, batch, options, functional=paired, loss=loss, grid=grid)
    return (value, aux) if has_aux else value


@eqx.filter_custom_jvp
def _functional(params, batch, options, *, functional, loss, grid):
    value, aux = functional(*losses_and_adjoints(loss, params, batch, grid), options)
    return value, jax.lax.stop_gradient(aux)


@_functional.def_jvp
def _functional_jvp(primals, tangents, *, functional, loss, grid):
    params, batch, options = primals
    losses, adjoints = losses_and_adjoints(loss, params, batch, grid)
    (value, aux), (a, c) = jax.value_and_grad(functional, argnums=(0, 1), has_aux=True)(
        losses, adjoints, options
    )
    # <c, P_0> = D_x loss[c / weights]: the adjoints are densities.
    direction = (c / grid.weights[None, :, None]).astype(batch[0].dtype)
    slopes = _mixed_gradient(loss, (params, batch), tangents[:2], direction, a)
    _, tangent = eqx.filter_jvp(
        lambda options: functional(losses, adjoints, options)[0], (options,), tangents[2:]
    )
    tangent = jnp.zeros_like(value) if tangent is None else tangent
    for slope, change in zip(jax.tree.leaves(slopes), jax.tree.leaves(tangents[:2]), strict=True):
        tangent = tangent + jnp.vdot(slope, change).astype(value.dtype)
    return (value, aux), (tangent, jax.tree.map(jnp.zeros_like, aux))


def _mixed_gradient(
    loss: Loss, primals: PyTree, tangents: PyTree, direction: Adjoints, weights: Losses
) -> PyTree:
    r"""The gradient of :math:`\sum_b a_b\,\mathrm{loss}_b + D_x\mathrm{loss}_b\cdot c_b`.

    In those parameters and inputs that have a tangent. With a factor :math:`\sigma_b` on each loss
    it is the derivative, at :math:`\sigma = 1` and along (c, a), of the plain gradient in those,
    as a function of x and :math:`\sigma`.
    """
    has_tangent = jax.tree.map(lambda t: t is not None, tangents, is_leaf=lambda t: t is None)
    moving, still = eqx.partition(primals, has_tangent)

    def gradient(shift: Adjoints, factors: Losses) -> PyTree:
        def total(moving: PyTree) -> Scalar:
            params, (x, y) = eqx.combine(moving, still)
            return factors @ jax.vmap(loss, in_axes=(None, 0, 0))(params, x + shift, y)

        return jax.grad(total)(moving)

    at = jnp.zeros_like(direction), jnp.ones_like(weights)
    return jax.jvp(gradient, at, (direction, weights))[1]


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
    energies = _energies(adjoints)
    require(
        len(energies) > 1,
        "adjoints",
        got=f"{len(energies)} example",
        expected="at least two",
        cure="Enlarge the batch, or take balanced_density.",
    )
    first, second = (half.mean(axis=0) for half in jnp.split(energies, [len(energies) // 2]))
    crossed = first / (integral(second, grid) + epsilon) + second / (
        integral(first, grid) + epsilon
    )
    return crossed / 2


def _energies(adjoints: Adjoints) -> Float[Array, "examples length"]:
    return (adjoints**2).sum(axis=2)


def _normalised(energy: Profile, grid: Grid, epsilon: Scalar | float) -> Profile:
    return energy / (integral(energy, grid) + epsilon)


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
    return _balance(loss, params, batch, grid, estimate, (0.0, 1.0, target, epsilon))


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
    return _balance(loss, params, batch, grid, estimate, (1.0, strength, target, epsilon))


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
    options = (strength, target, epsilon, previous, memory)
    options = jax.tree.map(lambda leaf: jnp.asarray(leaf, batch[0].dtype), options)
    averaged = _AveragedBalance(grid)
    return functional_of_adjoints(averaged, loss, params, batch, grid, options, has_aux=True)


class _AveragedBalance(eqx.Module):
    """Strength, target, epsilon, previous energy and memory to the objective and the energy."""

    grid: Grid

    def __call__(self, losses: Losses, adjoints: Adjoints, options: Any) -> tuple[Scalar, Profile]:
        strength, target, epsilon, previous, memory = options
        energy = memory * previous + (1 - memory) * _energies(adjoints).mean(axis=0)
        density = _normalised(energy, self.grid, epsilon)
        return losses.mean() + strength * influence_discrepancy(density, target, self.grid), energy


def _balance(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    estimate: Estimator,
    options: tuple[Any, ...],
) -> Scalar:
    options = jax.tree.map(lambda leaf: jnp.asarray(leaf, batch[0].dtype), options)
    functional = _Balance(grid, estimate)
    return functional_of_adjoints(functional, loss, params, batch, grid, options)


class _Balance(eqx.Module):
    """Share of the risk, strength of the discrepancy, target and epsilon to their sum."""

    grid: Grid
    estimate: Estimator = eqx.field(static=True)

    def __call__(self, losses: Losses, adjoints: Adjoints, options: Any) -> Scalar:
        share, strength, target, epsilon = options
        density = self.estimate(adjoints, self.grid, epsilon=epsilon)
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
    positions: Positions | None = None,
    weights: Float[Array, " positions"] | None = None,
    previous: Float[Array, " positions"] | None = None,
    memory: Scalar | float = 0.0,
) -> tuple[Scalar, Float[Array, " positions"]]:
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
        As in `gramian.observability_gramians`; layers are subsampled by it.
    positions, weights
        The monitored positions, all by default, and what each stands for: the grid's weights, or
        those that `trace_estimates.Sample.corrected` makes of them.
    previous, memory
        Traces of earlier steps at these positions, and their share in the average with this
        step's, for temporal averaging. Only this step's share has a gradient.

    Returns
    -------
    tuple
        The objective, and the averaged traces :math:`\hat g`.
    """
    x, y = batch

    def traces_of(example: Float[Array, "length width"]) -> Float[Array, " positions"]:
        samples = probed_observability(
            lambda x: observations(params, x), example, step, probes, positions
        )
        return samples.mean(axis=0)

    traces = jax.vmap(traces_of)(x).mean(axis=0)
    if previous is not None:
        traces = memory * jax.lax.stop_gradient(previous) + (1 - memory) * traces
    risk = jax.vmap(loss, in_axes=(None, 0, 0))(params, x, y).mean()
    if weights is None:
        weights = grid.weights if positions is None else grid.weights[positions]
    return risk + strength / 2 * sampled_trace_penalty(traces, weights), traces


def injected_objective(
    loss: Loss,
    observations: Callable[[PyTree, Any], Float[Array, "depth observed"]],
    params: PyTree,
    batch: Batch,
    grid: Grid,
    injected: Float[Array, "examples draws depth observed"],
    *,
    strength: Scalar | float,
    step: Steps,
    previous: Profile | None = None,
    memory: Scalar | float = 0.0,
) -> tuple[Scalar, Profile]:
    r"""Algorithm 3's objective with the traces of all positions from noise injected at every layer.

    As `observability_objective`, with the estimate of `trace_estimates.layer_injected_traces`. Its
    noise :math:`z` makes :math:`\langle\sqrt\varepsilon z, C(x)\rangle` a random loss whose input
    gradient is the sample :math:`w`, so the penalty is a function of input adjoints and has their
    rule: its gradient takes a few plain gradients of the observations, whatever the length.

    Parameters
    ----------
    loss, observations, params, batch, grid, strength, step
        As in `observability_objective`; the observations close over no tracers.
    injected
        Independent isotropic entries, drawn anew at each step. Those of different examples should
        be independent too: averaging over the batch then averages their noise.
    previous, memory
        As in `observability_objective`, of all positions.

    Returns
    -------
    tuple
        The objective, and the averaged traces :math:`\hat g`.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> loss = lambda weight, x, y: weight
    >>> see = lambda weight, x: weight * jnp.array([[1.0, 2.0]]) * x.T  # traces w^2 and 4 w^2
    >>> noise, batch = jnp.ones((1, 1, 1, 2)), (jnp.ones((1, 2, 1)), None)
    >>> value, traces = injected_objective(
    ...     loss, see, jnp.array(1.0), batch, token_grid(2), noise, strength=2.0, step=1.0
    ... )
    >>> value.item(), traces.tolist()  # 1 + 1.5^2
    (3.25, [1.0, 4.0])
    """
    x, y = batch
    depth, observed = injected.shape[2:]
    scale = jnp.sqrt(layer_steps(step, injected[0, 0]))

    def projected(params: PyTree, x: Any, noise: Float[Array, "depth observed"]) -> Scalar:
        return jnp.vdot(noise, observations(params, x))

    drawn = injected.shape[1]
    noise = (scale[None, None, :, None] * injected).reshape(-1, depth, observed)
    options = (strength, *((0.0, 0.0) if previous is None else (previous, memory)))
    options = jax.tree.map(lambda leaf: jnp.asarray(leaf, x.dtype), options)
    penalty, traces = functional_of_adjoints(
        _TraceBalance(grid), projected, params, (jnp.repeat(x, drawn, axis=0), noise), grid,
        options, has_aux=True,
    )  # fmt: skip
    return jax.vmap(loss, in_axes=(None, 0, 0))(params, x, y).mean() + penalty, traces


class _TraceBalance(eqx.Module):
    """Strength, previous traces and memory to the penalty and the traces."""

    grid: Grid

    def __call__(self, losses: Losses, adjoints: Adjoints, options: Any) -> tuple[Scalar, Profile]:
        del losses
        strength, previous, memory = options
        # The samples are Euclidean, the adjoints densities.
        traces = self.grid.weights**2 * _energies(adjoints).mean(axis=0)
        traces = memory * previous + (1 - memory) * traces
        return strength / 2 * trace_penalty(traces, self.grid), traces
