r"""Training time: gradient flow of a risk, and the exact law by which it moves influence.

.. math:: \dot\vartheta_s = -\nabla R(\vartheta_s), \qquad
          \partial_s m = \frac{\partial_s I}{Z} - \frac mZ\int_0^1 \partial_s I

(`eq:gd-flow`, `eq:gd-mdot`), for any pure loss, by one Jacobian-vector product.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import (
    AnyPath,
    as_numbers,
    described,
    error_if_not_finite,
    require,
    require_optional,
    require_text,
)
from lim_jax._digest import digest
from lim_jax._jit import filter_jit
from lim_jax.density.adjoints import (
    Batch,
    Loss,
    adjoint_energies,
    embedded,
    embedded_on,
    scalar_loss,
)
from lim_jax.density.statistics import Indices, indices
from lim_jax.grid.integrals import integral, require_profile
from lim_jax.grid.measure import Grid, Scalar
from lim_jax.grid.partition import Regions, regional_averages, require_regions
from lim_jax.training.loop import Progress, resumable
from lim_jax.training.sensitivity import as_direction

PerPosition = Float[Array, " length"]


def risk(loss: Loss, params: PyTree, batch: Batch) -> Scalar:
    """Compute the mean loss of a batch (`eq:gd-risk`, over the empirical law).

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

    Returns
    -------
    Array
        The mean of the examples' losses, a scalar.

    Raises
    ------
    ValueError
        If `loss` cannot be called or returns no scalar, or the batch is no pair ``(x, y)`` with
        floating-point x (ids for `density.LossOfIds`), or is empty.

    Examples
    --------
    >>> float(risk(lambda weight, x, y: weight * x.sum(), 2.0, (jnp.ones((3, 1, 1)), None)))
    2.0
    """
    loss, (x, y) = embedded(loss, params, batch)
    require(
        x.shape[0] > 0,
        "batch",
        got="no example",
        expected="at least one",
        cure="Leave empty batches out.",
    )
    return jax.vmap(scalar_loss(loss), in_axes=(None, 0, 0))(params, x, y).mean()


class DensityDynamics(eqx.Module):
    r"""The energy I of the influence, and its derivative along a direction of parameters.

    `density_dynamics` returns it.

    Attributes
    ----------
    grid
        The positions.
    energy
        :math:`I(p_i)`, the mean over examples of :math:`\|P_0(p_i)\|^2`, of shape ``(length,)``;
        the adjoints :math:`P_0` are densities.
    energy_rate
        :math:`D_\vartheta I[\eta]` at each position (`eq:influence-parameter-gradient`).
    """

    grid: Grid
    energy: PerPosition
    energy_rate: PerPosition

    @property
    @filter_jit
    def total(self) -> Scalar:
        r""":math:`Z = \int_0^1 I`."""
        return integral(self.energy, self.grid)

    @property
    @filter_jit
    def density(self) -> PerPosition:
        """The influence density m; zero where Z is zero."""
        return self.energy / self._safe_total

    @property
    @filter_jit
    def rate(self) -> PerPosition:
        r""":math:`\partial_s m` by the quotient rule (`eq:gd-mdot`); its integral is zero."""
        change = integral(self.energy_rate, self.grid)
        return (self.energy_rate - self.density * change) / self._safe_total

    @property
    @filter_jit
    def decay(self) -> PerPosition:
        r"""The relative decay rate :math:`r = -\partial_s I/I`; zero where I is zero."""
        positive = self.energy > 0
        return jnp.where(positive, -self.energy_rate / jnp.where(positive, self.energy, 1), 0)

    @property
    @filter_jit
    def mean_decay(self) -> Scalar:
        r""":math:`\bar r = \int m\,r`: mass grows where the decay is below it."""
        return integral(self.density * self.decay, self.grid)

    @property
    @filter_jit
    def replicator_rate(self) -> PerPosition:
        r""":math:`m\,(\bar r - r)`, which is `rate` wherever I is not zero."""
        return self.density * (self.mean_decay - self.decay)

    @filter_jit
    def discrepancy_rate(self, target: PerPosition | Scalar | float) -> Scalar:
        r"""Compute how the discrepancy from a target moves along the direction.

        .. math:: D\Phi_\nu[\eta] = \langle m - \nu, Dm[\eta]\rangle

        `eq:l2-influence-discrepancy-derivative`, of `discrepancy.influence_discrepancy`.

        Parameters
        ----------
        target
            :math:`\nu`, of integral one: a number for each position, or one for all.

        Returns
        -------
        Array
            The derivative of the discrepancy along the direction, a scalar.

        Raises
        ------
        ValueError
            If `target` is neither one number nor has a floating-point number for each position.
        EquinoxRuntimeError
            If the target is NaN or infinite.
        """
        require_profile(target, self.grid, "target")
        target = error_if_not_finite(jnp.asarray(target), "target")
        return integral((self.density - target) * self.rate, self.grid)

    @property
    def _safe_total(self) -> Scalar:
        """Return the total to divide by: one where it is zero."""
        return jnp.where(self.total == 0, 1, self.total)


@filter_jit
def density_dynamics(
    loss: Loss, params: PyTree, batch: Batch, grid: Grid, direction: PyTree | None = None
) -> DensityDynamics:
    r"""Differentiate the influence along a direction of parameters, by one product.

    The derivative of `prop:influence-differentiability`, at finite length.

    Parameters
    ----------
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `density.LossOfIds`, whose batches hold token ids in place of x.
    params
        The parameters, any pytree; leaves that are not floating-point arrays stay as they are.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None where there are no labels.
    grid
        The positions, one for each row of an example.
    direction
        :math:`\eta`, a pytree of the structure, shapes and dtypes of the parameters' floating-point
        arrays. None, the default, takes :math:`-\nabla R` of the same batch, the law of gradient
        flow. Rates are proportional to it: it is not normalised.

    Returns
    -------
    DensityDynamics
        The energy at each position and its derivative, of which the rates of the density, of its
        decay and of a discrepancy are properties.

    Raises
    ------
    ValueError
        If the batch is no pair, is empty or does not fit the grid, the loss returns no scalar, or
        `direction` does not fit the parameters.
    EquinoxRuntimeError
        If the batch, the losses, the energies or `direction` are NaN or infinite.

    Examples
    --------
    >>> loss = lambda weight, x, y: jnp.vdot(weight, x[:, 0]) / 2
    >>> batch, weight = (jnp.zeros((1, 2, 1)), None), jnp.array([1.0, 1.0])
    >>> direction = jnp.array([0.0, 1.0])  # only the second position gains
    >>> moved = density_dynamics(loss, weight, batch, lim.token_grid(2), direction)
    >>> moved.energy.tolist(), moved.energy_rate.tolist(), moved.rate.tolist()
    ([1.0, 1.0], [0.0, 2.0], [-1.0, 1.0])
    """
    embedded_on(grid, loss, params, batch)
    arrays, static = eqx.partition(params, eqx.is_inexact_array)
    if direction is None:
        slope = eqx.filter_grad(lambda params: risk(loss, params, batch))(params)
        direction = jax.tree.map(jnp.negative, slope)
    direction = as_direction(direction, arrays)

    def energies(arrays: PyTree) -> PerPosition:
        """Compute the batch's mean energies as a function of the parameters' arrays."""
        return adjoint_energies(loss, eqx.combine(arrays, static), batch, grid).mean(axis=0)

    energy, energy_rate = jax.jvp(energies, (arrays,), (direction,))
    return DensityDynamics(grid, energy, energy_rate)


class TrainingPath(NamedTuple):
    """A gradient flow at saved training times s, from `gradient_flow`.

    Attributes
    ----------
    grid
        The positions.
    times
        The saved times s, increasing.
    params
        The parameters' floating-point arrays, each with a leading axis of times; None in place of
        other leaves.
    risk
        R, the mean loss of the batch at each time.
    energy
        The influence's energy :math:`I(p_i)` on the batch at each time, a mean of squared
        densities.
    """

    grid: Grid
    times: Float[Array, " times"]
    params: PyTree
    risk: Float[Array, " times"]
    energy: Float[Array, "times length"]

    @property
    def total(self) -> Float[Array, " times"]:
        r""":math:`Z_s`; the least of them is the path's :math:`z_0`.

        `eq:influence-normalization-away-from-zero` asks that it be positive.
        """
        return self.energy @ self.grid.in_single_precision.weights

    @property
    def density(self) -> Float[Array, "times length"]:
        """The influence density :math:`m_s` (`eq:gd-influence-density`); zero where Z is zero."""
        total = self.total[:, None]
        return self.energy / jnp.where(total == 0, 1, total)

    def indices(self, regions: Regions, epsilon: Scalar | float = 1e-8) -> Indices:
        r"""Compute the regional averages, gap, LIM and contrast of :math:`m_s` at every time s.

        `eq:gd-left-average` to `eq:gd-lim-symmetric-contrast`. Where regions leave positions out,
        they are those of the density of the others.

        Parameters
        ----------
        regions
            The regions left, middle and right, on the path's grid.
        epsilon
            :math:`\varepsilon_0 \ge 0`, added to the denominators; 1e-8 by default.

        Returns
        -------
        Indices
            The indices, each an array with a number for each saved time.

        Raises
        ------
        ValueError
            If the regions are of another grid.
        """
        require_regions(regions, self.grid)
        total = (self.energy @ regions.in_single_precision.kept_weights)[None]
        averages = regional_averages(self.energy.T, regions) / jnp.where(total == 0, 1, total)
        return jax.vmap(indices, in_axes=(1, None))(averages, epsilon)


def gradient_flow(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    times: Sequence[float],
    *,
    solver: diffrax.AbstractSolver | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    first_step: float | None = None,
    checkpoint: AnyPath | None = None,
    run: str = "",
    progress: Progress = iter,
) -> TrainingPath:
    r"""Solve :math:`\dot\vartheta = -\nabla R` over training time, and measure influence on it.

    `eq:gd-flow`. An interrupted flow resumes at the last saved time with the same numbers. With
    ``diffrax.Euler()``, ``diffrax.ConstantStepSize()`` and `first_step` it is gradient descent at
    that rate. Not for use inside `jax.jit`.

    Parameters
    ----------
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `density.LossOfIds`, whose batches hold token ids in place of x.
    params
        Where the flow starts, any pytree; its floating-point arrays move, other leaves stay.
    batch
        ``(x, y)``, of which R is the mean loss at every time: x of shape
        ``(examples, length, width)``, and y any pytree with the same leading axis, or None where
        there are no labels.
    grid
        The positions, one for each row of an example.
    times
        The training times to save at, finite and increasing, at least one. At the first of them the
        parameters are `params`.
    solver
        A solver of diffrax; by default ``diffrax.Tsit5()``, Tsitouras' method.
    stepsize_controller
        A step size controller of diffrax; by default ``diffrax.PIDController(1e-6, 1e-6)``.
    first_step
        The first step in training time, a positive number, with a constant step size every step.
        None, the default, lets the controller choose.
    checkpoint
        A file to go on from, if it exists, and to write at each saved time; none by default.
    run
        A name for what functions and classes of your own compute, such as the loss: the checkpoint
        compares this name and the numbers, and no code, so change it when they change. A checkpoint
        of a flow with such functions needs one. Empty by default.
    progress
        Wraps the range of saved times that are left, for example ``tqdm.tqdm``; by default it shows
        nothing.

    Returns
    -------
    TrainingPath
        The parameters, the risk and the influence's energy at each time.

    Raises
    ------
    ValueError
        If the batch does not fit the grid, `params` has no floating-point arrays, the times do not
        increase, `first_step` is not positive, or the checkpoint is of another run, of other times
        or cut short.
    EquinoxRuntimeError
        If the solver does not reach a saved time within 100,000 steps from the one before, or the
        batch, the losses or the energies are NaN or infinite.

    Examples
    --------
    >>> loss = lambda weight, x, y: weight**2 / 2 + 0 * x.sum()
    >>> batch = jnp.zeros((1, 2, 1)), None
    >>> path = gradient_flow(loss, jnp.array(1.0), batch, lim.token_grid(2), [0.0, 1.0])
    >>> bool(jnp.allclose(path.params, jnp.exp(-path.times), atol=1e-5))
    True
    """
    embedded_on(grid, loss, params, batch)
    require_text(run, "run")
    arrays, static = eqx.partition(params, eqx.is_inexact_array)
    require(
        len(jax.tree.leaves(arrays)) > 0,
        "params",
        got=described(params),
        expected="some arrays of floats",
        cure="Pass at least one array of floats: the training flow moves them.",
    )
    expected = "finite training times that increase, at least one"
    cure = "Pass a list such as [0.0, 0.5, 1.0]."
    values = as_numbers(times, "times", expected=expected, cure=cure)
    # Two times that are one in the precision of the parameters do not increase.
    saved = jnp.asarray(values, jax.tree.leaves(arrays)[0].dtype)
    known = np.asarray(saved, float)
    rising = bool(np.isfinite(known).all() and (np.diff(known) > 0).all())
    require(rising, "times", got=f"{values.tolist()}", expected=expected, cure=cure)
    require_optional(first_step, "first_step", "Pass None to let the controller choose.")
    controller = stepsize_controller or diffrax.PIDController(1e-6, 1e-6)
    flow = _GradientFlow(loss, static, solver or diffrax.Tsit5(), controller, first_step)

    def step(state: tuple[PyTree, Scalar], index: int) -> tuple[tuple[PyTree, Scalar], tuple]:
        """Advance the parameters to the next time that is saved, and observe them there."""
        arrays, time = state
        if index > 0:
            _require_same_times(time, saved[index - 1])
            arrays = flow.advance(arrays, batch, time, saved[index])
        return (arrays, saved[index]), (saved[index], arrays, *flow.observe(arrays, batch, grid))

    about = None
    if checkpoint is not None:
        about = (run, digest((flow, batch, grid), named=run != ""))
    _, (stored_times, *records) = resumable(
        step,
        (arrays, saved[0]),
        len(saved),
        run=about,
        checkpoint=checkpoint,
        progress=progress,
    )
    _require_same_times(stored_times, saved)
    return TrainingPath(grid, saved, *records)


def _require_same_times(stored_times: Array, times: Array) -> None:
    """Raise ValueError unless the times are those that the checkpoint has stored."""
    require(
        np.array_equal(stored_times, times),
        "times",
        got=f"{np.asarray(times).tolist()}",
        expected=f"{np.asarray(stored_times).tolist()}, those of the checkpoint",
        cure="Give these, and more after them, or name another checkpoint.",
    )


class _GradientFlow(eqx.Module):
    """The flow's equation and solver, one value: a second flow of a loss compiles nothing."""

    loss: Loss
    static: PyTree  # what of the parameters does not move
    solver: diffrax.AbstractSolver
    stepsize_controller: diffrax.AbstractStepSizeController
    first_step: float | None = eqx.field(static=True)

    @filter_jit
    def advance(self, arrays: PyTree, batch: Batch, start: Scalar, end: Scalar) -> PyTree:
        """Follow the flow from one training time to another."""
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(self.slope),
            self.solver,
            t0=start,
            t1=end,
            dt0=self.first_step,
            y0=arrays,
            args=batch,
            stepsize_controller=self.stepsize_controller,
            max_steps=100_000,
        )
        assert solution.ys is not None
        return jax.tree.map(lambda leaf: leaf[-1], solution.ys)

    def slope(self, time: Any, arrays: PyTree, batch: Batch) -> PyTree:
        """Return minus the gradient of the risk, whatever the time."""
        gradient = jax.grad(lambda a: risk(self.loss, eqx.combine(a, self.static), batch))(arrays)
        return jax.tree.map(jnp.negative, gradient)

    @filter_jit
    def observe(self, arrays: PyTree, batch: Batch, grid: Grid) -> tuple[Scalar, PerPosition]:
        """Return the risk and the influence's energy on the batch."""
        params = eqx.combine(arrays, self.static)
        energy = adjoint_energies(self.loss, params, batch, grid).mean(axis=0)
        return risk(self.loss, params, batch), energy
