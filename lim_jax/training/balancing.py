r"""Algorithm 1: objectives that balance the influence density against a target.

All are densities' integrals over position: they converge as the grid is refined. They are
functions of input adjoints, so `jax.grad` of them takes the rule of `mixed` by itself. What is
balanced, and from which of a batch's moments, says an estimator (`estimators`).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import (
    described,
    finite_scalar,
    guarded,
    guarded_finite,
    not_negative,
    require,
    require_callable,
    require_floating,
    require_floats,
    require_scalar,
)
from lim_jax.density.adjoints import Batch, Loss, embedded, require_pair
from lim_jax.grid.measure import Grid, require_on_grid
from lim_jax.training.discrepancy import Discrepancy, squared_discrepancy
from lim_jax.training.estimators import (
    Energies,
    Estimator,
    Places,
    Pools,
    Statistic,
    balanced_density,
    pooled_energies,
)
from lim_jax.training.mixed import (
    Adjoints,
    Losses,
    RiskAndPenalty,
    Scalar,
    functional_of_adjoints,
    gradients_apart,
)

Target = Float[Array, "examples places"] | Places | Scalar | float


def influence_penalty(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    target: Target = 1.0,
    discrepancy: Discrepancy = squared_discrepancy,
    epsilon: float = 1e-8,
    estimate: Estimator = balanced_density,
    pools: Pools | None = None,
) -> Scalar:
    r"""The discrepancy :math:`\Phi_\nu` of a batch's influence from a target density.

    Penalties and objectives refuse what does not fit the grid (`ValueError`), and a batch or a
    number that is NaN or infinite (`EquinoxRuntimeError`); so do all that follow.

    Pooled, the density is that of the pools' average energies, and the penalty what one means who
    asks for balance between records or regions:

    .. math:: e_r = \frac1{|W_r|}\sum_i W_{ri}\,I(p_i),\quad w_r = \frac{|W_r|}{\sum_s|W_s|},\quad
              m_r = \frac{e_r}{\sum_s w_s e_s},\quad \Phi_\nu = \frac12\sum_r w_r(m_r-\nu_r)^2

    With ``Regions.weights`` these are the averages that LIM compares. The unpooled penalty looks at
    every position, so that under a last-token loss, which puts nearly all influence on that token,
    it looks at little else: in ``notebooks/remedies.py`` training lowers :math:`2\Phi` from 25.0 to
    3.0 by it, and LIM rises from 0.21 to 0.65; pooled by regions without that token, LIM falls to
    -0.03.

    What makes the penalty differentiable beyond one length, and what `penalty_premises` reports of
    a batch, is in `prop:influence-l2-differentiability`.

    Parameters
    ----------
    loss, params, batch, grid
        As in `influence`.
    target
        :math:`\nu`, of integral one: a number for each position, or for each pool; 1 is uniform.
        With a leading axis of examples it is a density for each: then the density is each
        example's own, that of `estimate` of it alone, and the penalty the mean of their
        discrepancies. So one asks a network to look *where the evidence is*.
    discrepancy
        `squared_discrepancy`, the formula above, `cross_entropy_discrepancy`, or a function
        ``discrepancy(density, target, weights)`` of your own.
    epsilon
        :math:`\epsilon_{inf}`, against a vanishing total; 0 for
        `eq:influence-discrepancy-functional` itself.
    estimate
        `balanced_density`, `crossed_density`, `example_density`, or an `Estimator` of your own.
    pools
        :math:`W_{ri}`, the weights of the integral over each pool: nowhere negative, no row of
        zeros. ``Regions.weights`` is of this form, so are rows of `grid.interval_weights`. A
        position in no pool does not count. None for every position by itself.
    """
    return _penalised(
        _penalty_alone, (estimate, discrepancy, pools), loss, params, batch, grid,
        target=target, epsilon=epsilon,
    )[0]  # fmt: skip


def balanced_objective(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    strength: Scalar | float,
    target: Target = 1.0,
    discrepancy: Discrepancy = squared_discrepancy,
    epsilon: float = 1e-8,
    estimate: Estimator = balanced_density,
    pools: Pools | None = None,
) -> Scalar:
    r"""Algorithm 1's objective, the risk and :math:`\beta` times the influence's discrepancy.

    .. math:: \hat R_{bal} = \frac1{|\mathcal B|}\sum_b \mathrm{loss}_b
              + \frac\beta2\sum_i \Delta p_i\,(\hat m_i - \nu_i)^2

    (`eq:discrete-target-influence-penalty`; with a fine grid and `epsilon` 0
    `eq:gd-target-penalty`). `jax.value_and_grad` of it in the parameters costs some three task
    gradients; `balanced_gradients` gives its two parts for no more. A strength that changes with
    the step is any optax schedule.

    Parameters
    ----------
    loss, params, batch, grid, target, discrepancy, epsilon, estimate, pools
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
        _weighted_sum, (estimate, discrepancy, pools), loss, params, batch, grid,
        strength=strength, target=target, epsilon=epsilon,
    )[0]  # fmt: skip


def balanced_gradients(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    target: Target = 1.0,
    discrepancy: Discrepancy = squared_discrepancy,
    epsilon: float = 1e-8,
    estimate: Estimator = balanced_density,
    pools: Pools | None = None,
) -> tuple[RiskAndPenalty, RiskAndPenalty]:
    r"""The values and the gradients of Algorithm 1's risk and penalty, apart, from one pass.

    :math:`\nabla R + \beta\nabla\Phi` is the gradient of `balanced_objective`, which takes the same
    pass and costs as much. Apart, one can clip the penalty's gradient alone
    (``optax.clip_by_global_norm``), or scale it to the norm of the risk's.

    Parameters
    ----------
    loss, params, batch, grid, target, discrepancy, epsilon, estimate, pools
        As in `influence_penalty`.

    Returns
    -------
    tuple
        The values :math:`(R, \Phi_\nu)`, and the gradients in the parameters' floating-point
        arrays, with None in place of other leaves.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> loss = lambda weight, x, y: jnp.vdot(weight, x[:, 0])
    >>> batch, weight = (jnp.ones((1, 2, 1)), None), jnp.array([1.0, 2.0])
    >>> values, gradients = balanced_gradients(loss, weight, batch, token_grid(2), epsilon=0.0)
    >>> [round(float(value), 6) for value in values]
    [3.0, 0.18]
    >>> gradients.risk.tolist(), gradients.penalty.round(3).tolist()
    ([1.0, 1.0], [-0.384, 0.192])
    """
    values, gradients, _ = _apart(
        (estimate, discrepancy, pools), loss, params, batch, grid, target=target, epsilon=epsilon
    )
    return values, gradients


def constrained_objective(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    limit: Scalar | float,
    multiplier: Scalar | float,
    stiffness: Scalar | float,
    target: Target = 1.0,
    discrepancy: Discrepancy = squared_discrepancy,
    epsilon: float = 1e-8,
    pools: Pools | None = None,
) -> Scalar:
    r"""The risk under the constraint :math:`\Phi_\nu \le \tau`, as an augmented Lagrangian.

    .. math:: R + \frac1{2\rho}\bigl(\max(0, \lambda + \rho(\Phi_\nu - \tau))^2
              - \lambda^2\bigr)

    Minimise it, take `raised_multiplier`, and repeat: the constraint holds in the limit at finite
    stiffness, and costs nothing where it is slack.

    Parameters
    ----------
    loss, params, batch, grid, target, discrepancy, epsilon, pools
        As in `influence_penalty`.
    limit
        :math:`\tau`.
    multiplier, stiffness
        :math:`\lambda \ge 0` and :math:`\rho > 0`.
    """
    return _penalised(
        _lagrangian, (balanced_density, discrepancy, pools), loss, params, batch, grid,
        limit=limit, multiplier=multiplier, stiffness=stiffness, target=target, epsilon=epsilon,
    )[0]  # fmt: skip


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


def averaged_objective(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    strength: Scalar | float,
    previous: Statistic,
    memory: Scalar | float,
    target: Target = 1.0,
    discrepancy: Discrepancy = squared_discrepancy,
    epsilon: float = 1e-8,
    estimate: Estimator = balanced_density,
    pools: Pools | None = None,
) -> tuple[Scalar, Statistic]:
    r"""Algorithm 1's objective of a moving average of the energies, which it returns too.

    For ``jax.value_and_grad(..., has_aux=True)``. The average
    :math:`\mu\,I_{prev} + (1-\mu)\,\hat I` takes the place of :math:`\hat I` before it is
    normalised: over some :math:`1/(1-\mu)` steps it is as good as so many batches, so that the
    ratio's bias falls by that factor. Only this step's share has a gradient, so :math:`\beta` is in
    effect :math:`(1-\mu)` times as strong. Of other estimators the average is that of their
    statistic.

    Parameters
    ----------
    loss, params, batch, grid, strength, target, discrepancy, epsilon, estimate, pools
        As in `balanced_objective`.
    previous
        The average that the step before returned; at the first, with memory 0, anything of its
        shape, that of the estimator's statistic: ``(places,)``, of `crossed_density`
        ``(2, places)``, where places are positions or pools.
    memory
        :math:`\mu` in [0, 1).
    """
    return _penalised(
        _weighted_sum, (estimate, discrepancy, pools), loss, params, batch, grid,
        strength=strength, target=target, epsilon=epsilon, previous=previous, memory=memory,
    )  # fmt: skip


def averaged_gradients(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    previous: Statistic,
    memory: Scalar | float,
    target: Target = 1.0,
    discrepancy: Discrepancy = squared_discrepancy,
    epsilon: float = 1e-8,
    estimate: Estimator = balanced_density,
    pools: Pools | None = None,
) -> tuple[RiskAndPenalty, RiskAndPenalty, Statistic]:
    r"""`balanced_gradients` of a moving average of the energies, which it returns too.

    :math:`\nabla R + \beta\nabla\Phi` is the gradient of `averaged_objective`; apart, the
    penalty's can be clipped alone.

    Parameters
    ----------
    loss, params, batch, grid, previous, memory, target, discrepancy, epsilon, estimate, pools
        As in `averaged_objective`.

    Returns
    -------
    tuple
        The values and the gradients of `balanced_gradients`, and the average for the next step.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> loss = lambda weight, x, y: jnp.vdot(weight, x[:, 0])
    >>> batch, weight = (jnp.ones((1, 2, 1)), None), jnp.array([1.0, 2.0])
    >>> options = {"previous": jnp.array([12.0, 0.0]), "memory": 0.5, "epsilon": 0.0}
    >>> values, _, average = averaged_gradients(loss, weight, batch, token_grid(2), **options)
    >>> average.tolist(), float(values.penalty)  # of this batch (4, 16): the average is uniform
    ([8.0, 8.0], 0.0)
    """
    return _apart(
        (estimate, discrepancy, pools), loss, params, batch, grid,
        target=target, epsilon=epsilon, previous=previous, memory=memory,
    )  # fmt: skip


Options = dict[str, Any]
How = tuple[Estimator, Discrepancy, Pools | None]


def _penalty_alone(risk: Scalar, penalty: Scalar, options: Options) -> Scalar:
    return penalty + 0 * risk  # a batch of NaN is refused where no gradient depends on it too


def _weighted_sum(risk: Scalar, penalty: Scalar, options: Options) -> Scalar:
    return risk + options["strength"] * penalty


def _lagrangian(risk: Scalar, penalty: Scalar, options: Options) -> Scalar:
    limit, multiplier, stiffness = (options[n] for n in ("limit", "multiplier", "stiffness"))
    stiffness = guarded(stiffness, ~(stiffness > 0), "stiffness: expected a positive number.")
    raised = _raised(multiplier, penalty, limit, stiffness)
    return risk + (raised**2 - multiplier**2) / (2 * stiffness)


class _Penalised(eqx.Module):
    """Losses and adjoints to an objective of risk and discrepancy, and the statistic behind it."""

    grid: Grid
    estimate: Estimator = eqx.field(static=True)
    discrepancy: Discrepancy = eqx.field(static=True)
    objective: Callable[..., Scalar] = eqx.field(static=True)

    def __check_init__(self):
        require(
            isinstance(self.estimate, Estimator),
            "estimate",
            got=described(self.estimate),
            expected="an Estimator",
            cure="Take balanced_density, or make one: Estimator(statistic, density).",
        )
        require_callable(self.discrepancy, "discrepancy", "discrepancy(density, target, weights)")

    def __call__(
        self, losses: Losses, adjoints: Adjoints, options: Options
    ) -> tuple[Scalar, Statistic]:
        energies, weights = (adjoints**2).sum(axis=2), self.grid.weights
        if "pools" in options:
            energies, weights = pooled_energies(energies, options["pools"])
        if options["target"].ndim == 2:
            statistic, penalty = self._of_each(energies, weights, options)
        else:
            statistic, penalty = self._of_all(energies, weights, options)
        return self.objective(losses.mean(), penalty, options), statistic

    def _of_all(
        self, energies: Energies, weights: Places, options: Options
    ) -> tuple[Statistic, Scalar]:
        """The discrepancy of a batch's density from the target."""
        epsilon = options["epsilon"]
        statistic = self.estimate.statistic(energies, weights, epsilon)
        if "previous" in options:
            average = options["previous"], options["memory"]
            statistic = self.estimate.averaged(statistic, *average)
        density = self.estimate.density(statistic, weights, epsilon)
        return statistic, self.discrepancy(density, options["target"], weights)

    def _of_each(
        self, energies: Energies, weights: Places, options: Options
    ) -> tuple[Statistic, Scalar]:
        """The mean discrepancy of the examples: each is a batch of its own, with its own target."""
        targets, cure = options["target"], "Pass one row for each example."
        got, expected = f"densities of {len(targets)} examples", f"of {len(energies)}, the batch's"
        require(len(targets) == len(energies), "target", got=got, expected=expected, cure=cure)

        def of_one(energy: Places, target: Places) -> tuple[Statistic, Scalar]:
            return self._of_all(energy[None], weights, options | {"target": target})

        statistics, penalties = jax.vmap(of_one)(energies, targets)
        return statistics, penalties.mean()


def _penalised(
    objective: Callable[..., Scalar],
    how: How,
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    **options: Array | float,
) -> tuple[Scalar, Statistic]:
    """An objective of risk and penalty, and the statistic that the penalty is of."""
    loss, batch = embedded(loss, params, batch)
    x, _ = require_pair(loss, batch)
    functional, arrays = _functional(objective, how, x.dtype, grid, **options)
    return functional_of_adjoints(functional, loss, params, batch, grid, arrays, has_aux=True)


def _apart(
    how: How,
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    **options: Array | float,
) -> tuple[RiskAndPenalty, RiskAndPenalty, Statistic]:
    """Values and gradients of risk and penalty, and the statistic that the penalty is of."""
    x, _ = require_pair(*embedded(loss, params, batch))
    functional, arrays = _functional(_penalty_alone, how, x.dtype, grid, **options)
    return gradients_apart(functional, loss, params, batch, grid, arrays, has_aux=True)


def _functional(
    objective: Callable[..., Scalar],
    how: How,
    dtype: DTypeLike,
    grid: Grid,
    **options: Array | float,
) -> tuple[_Penalised, Options]:
    """A function of losses and adjoints, and its options: finite, in the states' precision."""
    estimate, discrepancy, pools = how
    if pools is not None:
        cure = "Pass one row of integral weights for each pool, as Regions.weights has them."
        require_on_grid(pools, grid, "pools", "pools length", cure)
    options["epsilon"] = not_negative(finite_scalar(options["epsilon"], "epsilon"), "epsilon")
    if "memory" in options:
        memory = finite_scalar(options["memory"], "memory")
        options["memory"] = not_negative(memory, "memory", below=1.0)
    for name, option in options.items():
        _require_option(option, name, grid, pools)
    require(
        "previous" not in options or getattr(options["target"], "ndim", 0) < 2,
        "target",
        got="one density for each example, which come and go",
        expected="one of the whole batch, for an average over steps",
        cure="Take balanced_objective or balanced_gradients.",
    )
    options |= {} if pools is None else {"pools": pools}
    arrays = {name: jnp.asarray(option, dtype) for name, option in options.items()}
    arrays = guarded_finite(arrays, ", ".join(arrays))
    return _Penalised(grid, estimate, discrepancy, objective), arrays


def _require_option(option: Any, name: str, grid: Grid, pools: Pools | None) -> None:
    """Refuse what is no number, and of target and statistic what is no array of them either."""
    if getattr(option, "shape", ()) == () or name not in ("target", "previous"):
        require_scalar(option, name)
    elif name == "previous":
        require_floating(option, name)  # what its shape must be the estimator knows
    else:
        of_each = "examples " if getattr(option, "ndim", 1) == 2 else ""
        cure = "Pass one number for each position or pool, or a row of them for each example."
        if pools is None:
            require_on_grid(option, grid, name, of_each + "length", cure)
        else:
            require_floats(option, name, of_each + "pools", cure, pools=len(pools))
