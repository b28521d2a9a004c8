r"""Algorithm 1: objectives that balance the influence density against a target, or within a limit.

They converge as the grid is refined, and as functions of input adjoints `jax.grad` of them takes
the rule of `mixed_derivative` by itself.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import (
    as_finite,
    as_finite_nonnegative,
    error_if,
    error_if_not_finite,
    require,
    require_callable,
    require_floating,
    require_floats,
    require_kind,
    require_scalar,
)
from lim_jax._precision import promote
from lim_jax.density.adjoints import Batch, Loss
from lim_jax.grid.measure import Grid, Scalar, require_grid
from lim_jax.training.discrepancy import Discrepancy, squared_discrepancy
from lim_jax.training.estimators import (
    Energies,
    Estimator,
    Places,
    Pools,
    Statistic,
    as_memory,
    balanced_density,
    pooled_energies,
)
from lim_jax.training.mixed_derivative import (
    Adjoints,
    Functional,
    Losses,
    RiskAndPenalty,
    functional_of_adjoints,
    separate_gradients,
)

Target = Float[Array, "examples places"] | Places | Scalar | float


class Penalty(eqx.Module):
    r"""The discrepancy :math:`\Phi_\nu` of a batch's influence density from a target density.

    Pooled, the density is that of the pools' average energies, and the penalty what one means who
    asks for balance between records or regions:

    .. math:: e_r = \frac1{|W_r|}\sum_i W_{ri}\,I(p_i),\quad w_r = \frac{|W_r|}{\sum_s|W_s|},\quad
              m_r = \frac{e_r}{\sum_s w_s e_s},\quad \Phi_\nu = \frac12\sum_r w_r(m_r-\nu_r)^2

    With ``Regions.weights`` these are the averages that LIM compares. The unpooled penalty looks,
    under a last-token loss, at little else than that token (``notebooks/remedies.py``). What makes
    it differentiable beyond one length is in `prop:influence-l2-differentiability`, and
    `penalty_premises` reports of a batch whether it is there.

    Attributes
    ----------
    target
        :math:`\nu`, of integral one: a number for each position, or for each pool; 1, the default,
        is uniform. With a leading axis of examples the density is each example's own, and the
        penalty the mean of their discrepancies. So one asks a network to look *where the evidence
        is*.
    discrepancy
        How far a density is from the target: by default `squared_discrepancy`, the formula above;
        or `cross_entropy_discrepancy`, or a function ``discrepancy(density, target, weights)`` of
        your own.
    estimate
        How a batch's energies become a density: by default `balanced_density`; or `crossed_density`
        with its independent denominators, or an `Estimator` of your own.
    pools
        :math:`W_{ri}`, the weights of the integral over each pool, of shape ``(pools, length)``, as
        ``Regions.weights`` and rows of `grid.interval_weights`: nowhere negative, no row of zeros.
        None, the default, takes every position by itself.
    epsilon
        :math:`\epsilon_{inf}`, added to the total energy so that it does not vanish, 1e-8 by
        default; 0 for `eq:influence-discrepancy-functional` itself.

    Examples
    --------
    >>> between_regions = Penalty(pools=lim.boundary_regions(lim.token_grid(8), 0.25).weights)
    >>> between_regions.pools.shape
    (3, 8)
    """

    target: Target = 1.0
    discrepancy: Discrepancy = eqx.field(static=True, default=squared_discrepancy)
    estimate: Estimator = eqx.field(static=True, default=balanced_density)
    pools: Pools | None = None
    epsilon: Scalar | float = 1e-8

    def __check_init__(self):
        """Raise ValueError unless `estimate` is an `Estimator` and `discrepancy` can be called."""
        require_kind(
            self.estimate,
            Estimator,
            "estimate",
            "Take balanced_density, or make one: Estimator(statistic, density).",
        )
        require_callable(self.discrepancy, "discrepancy", "discrepancy(density, target, weights)")

    def _checked(self, grid: Grid) -> "Penalty":
        """Return the same penalty; raise unless its numbers are finite and fit the grid."""
        require_grid(grid)
        axis_sizes = {"length": grid.size}
        if self.pools is not None:
            require_floats(
                self.pools,
                "pools",
                "pools length",
                "Pass one row of integral weights for each pool, as Regions.weights has them.",
                **axis_sizes,
            )
            axis_sizes = {"pools": len(self.pools)}
        if getattr(self.target, "shape", ()) == ():
            require_scalar(self.target, "target")
        else:
            (axis,) = axis_sizes
            axes = f"examples {axis}" if jnp.ndim(self.target) == 2 else axis
            require_floats(
                self.target,
                "target",
                axes,
                "Pass one number for each position or pool, or a row of them for each example.",
                **axis_sizes,
            )
        epsilon = as_finite_nonnegative(self.epsilon, "epsilon")
        return error_if_not_finite(replace(self, epsilon=epsilon), "target, pools")

    def _batch_discrepancy(
        self, energies: Energies, weights: Places, average: tuple[Statistic, Scalar] | None
    ) -> tuple[Scalar, Statistic]:
        """Return a batch's discrepancy, and the statistic that its density is made from.

        `average` is the previous average of the statistic, and its share in the new one.
        """
        if jnp.ndim(self.target) == 2:
            return self._example_discrepancies(energies, weights)
        statistic = self.estimate.statistic(energies, weights, self.epsilon)
        if average is not None:
            statistic = self.estimate.averaged(statistic, *average)
        density = self.estimate.density(statistic, weights, self.epsilon)
        return self.discrepancy(density, self.target, weights), statistic

    def _example_discrepancies(
        self, energies: Energies, weights: Places
    ) -> tuple[Scalar, Statistic]:
        """Return the examples' mean discrepancy, each from its own target, and their statistics."""
        targets: Any = self.target
        require(
            len(targets) == len(energies),
            "target",
            got=f"densities of {len(targets)} examples",
            expected=f"of {len(energies)}, the batch's",
            cure="Pass one row for each example.",
        )

        def example_discrepancy(energy: Places, target: Places) -> tuple[Scalar, Statistic]:
            """Compute the discrepancy of one example from its own target."""
            return replace(self, target=target)._batch_discrepancy(energy[None], weights, None)

        penalties, statistics = jax.vmap(example_discrepancy)(energies, targets)
        return penalties.mean(), statistics


EVEN = Penalty()


def influence_penalty(
    loss: Loss, params: PyTree, batch: Batch, grid: Grid, penalty: Penalty = EVEN
) -> Scalar:
    r"""Compute the discrepancy :math:`\Phi_\nu` of a batch's influence density from a target.

    `eq:influence-discrepancy-functional`, for the batch's empirical law; by default the target is
    even influence. Works under jit, vmap, grad and jvp, in the parameters, the batch and the
    penalty's numbers.

    Parameters
    ----------
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `density.LossOfIds`, whose batches hold token ids in place of x.
    params
        The parameters, any pytree.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None where there are no labels.
    grid
        The positions, one for each row of an example.
    penalty
        The target density :math:`\nu`, and how a density is estimated and compared with it, a
        `Penalty`. By default half the integrated squared distance of Algorithm 1's estimate from 1.

    Returns
    -------
    Array
        The discrepancy, a scalar.

    Raises
    ------
    ValueError
        If the batch is no pair, is empty or does not fit the grid; if the loss returns no scalar,
        or closes over traced values; or if `penalty` is no `Penalty`, or its target or pools do not
        fit the grid or the batch.
    EquinoxRuntimeError
        If the batch, a loss, an adjoint energy or a number of the penalty is NaN or infinite, or a
        pool has a negative weight or none.
    """
    # No share of the risk: yet a batch of NaN is refused where no gradient depends on it.
    options = _penalty_options(penalty, grid, share=0.0, strength=1.0)
    return _evaluate(_WeightedSum(grid), loss, params, batch, grid, options)


def balanced_objective(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    penalty: Penalty = EVEN,
    *,
    strength: Scalar | float,
) -> Scalar:
    r"""Compute Algorithm 1's objective: the risk plus :math:`\beta` times the discrepancy.

    .. math:: \hat R_{bal} = \frac1{|\mathcal B|}\sum_b \mathrm{loss}_b
              + \frac\beta2\sum_i \Delta p_i\,(\hat m_i - \nu_i)^2

    (`eq:discrete-target-influence-penalty`; with a fine grid and the penalty's `epsilon` 0
    `eq:gd-target-penalty`). `jax.value_and_grad` of it in the parameters costs some three task
    gradients; `risk_and_penalty` gives its two parts for no more.

    Parameters
    ----------
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `density.LossOfIds`, whose batches hold token ids in place of x.
    params
        The parameters, any pytree.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None where there are no labels.
    grid
        The positions, one for each row of an example.
    penalty
        What :math:`\Phi_\nu` is, a `Penalty`: by default half the integrated squared distance of
        the batch's influence density from 1, as the formula has it with :math:`\nu = 1`.
    strength
        :math:`\beta`, a finite number, which may follow any optax schedule.

    Returns
    -------
    Array
        The objective, a scalar in the units of the loss.

    Raises
    ------
    ValueError
        If the batch is no pair, is empty or does not fit the grid; if the loss returns no scalar,
        or closes over traced values; if the penalty's target or pools do not fit the grid or the
        batch; or if `strength` is no finite number.
    EquinoxRuntimeError
        If the batch, a loss, an adjoint energy, a number of the penalty or a traced strength is NaN
        or infinite.

    Examples
    --------
    >>> loss = lambda weight, x, y: jnp.vdot(weight, x[:, 0])
    >>> batch, weight = (jnp.ones((1, 2, 1)), None), jnp.array([1.0, 2.0])
    >>> objective = lambda w: balanced_objective(loss, w, batch, lim.token_grid(2), strength=1.0)
    >>> bool(jnp.allclose(objective(weight), 3 + 0.36 / 2))  # m = (0.4, 1.6)
    True
    """
    options = _penalty_options(penalty, grid, share=1.0, strength=as_finite(strength, "strength"))
    return _evaluate(_WeightedSum(grid), loss, params, batch, grid, options)


def constrained_objective(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    penalty: Penalty = EVEN,
    *,
    limit: Scalar | float,
    multiplier: Scalar | float,
    stiffness: Scalar | float,
) -> Scalar:
    r"""Compute the risk under the constraint :math:`\Phi_\nu \le \tau`: an augmented Lagrangian.

    .. math:: R + \frac1{2\rho}\Bigl(\max\bigl(0,\,\lambda + \rho\,(\Phi_\nu - \tau)\bigr)^2
              - \lambda^2\Bigr)

    The constrained formulation that the paper's remark after Algorithm 1 names in place of a
    strength: it asks how much imbalance is tolerable, not what balance may cost. Minimise it in the
    parameters, put `raised_multiplier` of the discrepancy found there in place of `multiplier`, and
    repeat. What this tends to is a point where :math:`\nabla R + \lambda\nabla\Phi_\nu = 0`,
    :math:`\Phi_\nu \le \tau`, :math:`\lambda \ge 0` and :math:`\lambda(\Phi_\nu - \tau) = 0`
    (Karush, Kuhn and Tucker), at any `stiffness` that is large enough, and a minimiser of the risk
    itself where that keeps to the limit. Its gradient is :math:`\nabla R + \lambda'\nabla\Phi_\nu`
    with :math:`\lambda'` the raised multiplier, so the gradients that `risk_and_penalty` returns
    apart serve too. It works under jit, vmap, grad and jvp, in the parameters, the batch, the
    penalty's numbers and the three numbers of the constraint.

    Parameters
    ----------
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `density.LossOfIds`, whose batches hold token ids in place of x.
    params
        The parameters, any pytree.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None where there are no labels.
    grid
        The positions, one for each row of an example.
    penalty
        What :math:`\Phi_\nu` is, a `Penalty`: by default the distance from even influence.
    limit
        :math:`\tau`, the largest discrepancy that is tolerable.
    multiplier
        :math:`\lambda \ge 0`; 0 to begin with.
    stiffness
        :math:`\rho > 0`. The larger, the fewer times the multiplier is raised, and the worse
        conditioned each minimisation.

    Returns
    -------
    Array
        The objective, a scalar in the units of the loss.

    Raises
    ------
    ValueError
        If an argument is not of its kind or its shape.
    EquinoxRuntimeError
        If a number of the batch or of the constraint, a loss or an adjoint energy is not finite,
        the multiplier negative, or the stiffness not positive.

    Examples
    --------
    >>> loss = lambda weight, x, y: jnp.vdot(weight, x[:, 0])
    >>> batch, weight = (jnp.ones((1, 2, 1)), None), jnp.array([1.0, 2.0])
    >>> problem = loss, weight, batch, lim.token_grid(2), Penalty(epsilon=0.0)  # R = 3, Phi = 0.18
    >>> constraint = dict(limit=0.08, multiplier=0.0, stiffness=10.0)
    >>> round(float(constrained_objective(*problem, **constraint)), 6)  # 3 + 1^2 / 20
    3.05
    """
    stiffness = _as_stiffness(stiffness)
    multiplier = as_finite_nonnegative(multiplier, "multiplier")
    constraint = {"limit": as_finite(limit, "limit"), "multiplier": multiplier}
    options = _penalty_options(penalty, grid, stiffness=stiffness, **constraint)
    return _evaluate(_AugmentedLagrangian(grid), loss, params, batch, grid, options)


def raised_multiplier(
    multiplier: Scalar | float,
    value: Scalar | float,
    *,
    limit: Scalar | float,
    stiffness: Scalar | float,
) -> Scalar:
    r"""Compute the multiplier for the next minimisation of `constrained_objective`.

    .. math:: \max\bigl(0,\, \lambda + \rho\,(\Phi_\nu - \tau)\bigr)

    It rises while the discrepancy is above its limit, falls while it is below, and is zero where
    the constraint costs nothing. Where batches are small, one of them is no minimisation: move the
    multiplier by a part of the way only. Works under jit, vmap, grad and jvp.

    Parameters
    ----------
    multiplier
        :math:`\lambda \ge 0`, what `constrained_objective` was minimised with.
    value
        :math:`\Phi_\nu` at the parameters that minimise it, from `influence_penalty` or
        `risk_and_penalty`.
    limit
        :math:`\tau`, the largest discrepancy that is tolerable, as passed to
        `constrained_objective`.
    stiffness
        :math:`\rho > 0`, as passed to `constrained_objective`.

    Returns
    -------
    Array
        The next multiplier, a scalar that is nowhere negative.

    Raises
    ------
    ValueError
        If an argument is no number, or one known before tracing is not finite or is negative.
    EquinoxRuntimeError
        If a traced number is so, or the stiffness is not positive.

    Examples
    --------
    >>> float(raised_multiplier(1.0, 0.5, limit=0.25, stiffness=4.0))
    2.0
    """
    multiplier = as_finite_nonnegative(multiplier, "multiplier")
    value = as_finite(value, "value")
    limit = as_finite(limit, "limit")
    return _raise_multiplier(multiplier, value, limit, _as_stiffness(stiffness))


def _raise_multiplier(
    multiplier: Scalar | float,
    value: Scalar | float,
    limit: Scalar | float,
    stiffness: Scalar | float,
) -> Scalar:
    """Return the multiplier plus the stiffness times the excess over the limit, at least zero."""
    return jnp.maximum(0.0, multiplier + stiffness * (value - limit))


def _as_stiffness(stiffness: Scalar | float) -> Scalar | float:
    """Return a stiffness, whose use raises unless it is positive."""
    stiffness = jnp.asarray(as_finite(stiffness, "stiffness"))
    message = "stiffness: got zero or a number below, expected a positive number. Try 10."
    return error_if(stiffness, stiffness <= 0, message)


def risk_and_penalty(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    penalty: Penalty = EVEN,
    *,
    previous: Statistic | None = None,
    memory: Scalar | float = 0.0,
) -> tuple[RiskAndPenalty, RiskAndPenalty, Statistic]:
    r"""Compute Algorithm 1's risk and penalty and the gradient of each, from one pass.

    :math:`\nabla R + \beta\nabla\Phi` is the gradient of `balanced_objective`, which takes the same
    pass. With the two apart, one can clip the penalty's gradient alone
    (``optax.clip_by_global_norm``), or scale it to the norm of the risk's.

    With `previous` and `memory` :math:`\mu` the average :math:`\mu\,I_{prev} + (1-\mu)\,\hat I` of
    the energies (of other estimators, of their statistic) takes the place of :math:`\hat I` before
    it is normalised: over some :math:`1/(1-\mu)` steps it is as good as so many batches, so that
    the ratio's bias falls by that factor. Only this step's share has a gradient, so :math:`\beta`
    is in effect :math:`(1-\mu)` times as strong.

    Parameters
    ----------
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `density.LossOfIds`, whose batches hold token ids in place of x.
    params
        The parameters, any pytree.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None where there are no labels.
    grid
        The positions, one for each row of an example.
    penalty
        What :math:`\Phi_\nu` is, a `Penalty`: by default half the integrated squared distance of
        the batch's influence density from 1.
    previous
        The average that the step before returned, of the shape of the estimator's statistic. None,
        the default, averages nothing; at the first step of a loop anything of that shape does, with
        `memory` 0. Not for a target with a row for each example.
    memory
        :math:`\mu` in [0, 1), the share of `previous` in the average; 0 by default, and without
        `previous`.

    Returns
    -------
    values : RiskAndPenalty
        The scalars :math:`(R, \Phi_\nu)`, as ``.risk`` and ``.penalty``.
    gradients : RiskAndPenalty
        Their gradients in the parameters' floating-point arrays, with None in place of other
        leaves.
    average : Array
        The average for the next step: energies of shape ``(places,)``, where places are positions
        or pools; for `crossed_density` ``(2, places)``.

    Raises
    ------
    ValueError
        If the batch is no pair, is empty or does not fit the grid; if the loss returns no scalar;
        if the penalty's target or pools or `previous` do not fit; or if `memory` is outside [0, 1)
        or given without `previous`.
    EquinoxRuntimeError
        If the batch, a loss, an adjoint energy, `previous` or a number of the penalty is NaN or
        infinite.

    Examples
    --------
    >>> loss = lambda weight, x, y: jnp.vdot(weight, x[:, 0])
    >>> batch, weight = (jnp.ones((1, 2, 1)), None), jnp.array([1.0, 2.0])
    >>> problem = loss, weight, batch, lim.token_grid(2), Penalty(epsilon=0.0)
    >>> values, gradients, energies = risk_and_penalty(*problem)
    >>> [round(float(value), 6) for value in values], energies.tolist()
    ([3.0, 0.18], [4.0, 16.0])
    >>> gradients.risk.tolist(), gradients.penalty.round(3).tolist()
    ([1.0, 1.0], [-0.384, 0.192])
    >>> values, _, average = risk_and_penalty(*problem, previous=jnp.array([12.0, 0.0]), memory=0.5)
    >>> average.tolist(), float(values.penalty)  # uniform
    ([8.0, 8.0], 0.0)
    """
    memory = as_memory(memory, previous)
    options = _penalty_options(penalty, grid, share=0.0, strength=1.0)
    if previous is not None:
        require_floating(previous, "previous")  # what its shape must be the estimator knows
        require(
            jnp.ndim(options["penalty"].target) < 2,
            "target",
            got="one density for each example of a batch",
            expected="one of the whole batch, since `previous` averages over steps",
            cure="Leave `previous` out.",
        )
        options["average"] = error_if_not_finite(previous, "previous"), memory
    return separate_gradients(_WeightedSum(grid), loss, params, batch, grid, options, has_aux=True)


def _penalty_options(penalty: Penalty, grid: Grid, **weights: Scalar | float) -> dict[str, Any]:
    """Return the options of an objective with this penalty on the grid and these weights."""
    require_kind(penalty, Penalty, "penalty", "Make one: Penalty(target=1.0).")
    return {"penalty": penalty._checked(grid), "average": None} | weights


def _evaluate(
    functional: Functional,
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    options: dict[str, Any],
) -> Scalar:
    """Return the value of a functional of losses and adjoints, to be differentiated."""
    return functional_of_adjoints(functional, loss, params, batch, grid, options, has_aux=True)[0]


class _WeightedSum(eqx.Module):
    """The weighted sum of risk and discrepancy as a function of losses and adjoints."""

    grid: Grid

    def __call__(
        self, losses: Losses, adjoints: Adjoints, options: dict[str, Any]
    ) -> tuple[Scalar, Statistic]:
        """Return the weighted sum of risk and discrepancy, and the statistic."""
        losses, adjoints = promote((losses, adjoints))
        options = _cast(options, adjoints)
        value, statistic = _discrepancy(adjoints, self.grid, options)
        return options["share"] * losses.mean() + options["strength"] * value, statistic


class _AugmentedLagrangian(eqx.Module):
    """The augmented Lagrangian of a constraint as a function of losses and adjoints."""

    grid: Grid

    def __call__(
        self, losses: Losses, adjoints: Adjoints, options: dict[str, Any]
    ) -> tuple[Scalar, Statistic]:
        """Return the augmented Lagrangian of risk and discrepancy, and the statistic."""
        losses, adjoints = promote((losses, adjoints))
        options = _cast(options, adjoints)
        value, statistic = _discrepancy(adjoints, self.grid, options)
        multiplier = options["multiplier"]
        stiffness = options["stiffness"]
        raised = _raise_multiplier(multiplier, value, options["limit"], stiffness)
        return losses.mean() + (raised**2 - multiplier**2) / (2 * stiffness), statistic


def _cast(options: dict[str, Any], adjoints: Adjoints) -> dict[str, Any]:
    """Convert the options to the adjoints' type."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, adjoints.dtype), options)


def _discrepancy(
    adjoints: Adjoints, grid: Grid, options: dict[str, Any]
) -> tuple[Scalar, Statistic]:
    """Return the discrepancy of the adjoints' density, and the statistic that it is made from."""
    penalty = options["penalty"]
    weights = grid.in_single_precision.weights
    energies = (adjoints**2).sum(axis=2)
    if penalty.pools is not None:
        energies, weights = pooled_energies(energies, penalty.pools)
    return penalty._batch_discrepancy(energies, weights, options["average"])
