r"""Algorithm 3: penalties on observability Gramians, and objectives that balance their traces."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import (
    as_finite,
    error_if_got,
    error_if_not_finite,
    require,
    require_callable,
    require_floats,
    require_indices,
)
from lim_jax._precision import accumulator, promote
from lim_jax.density.adjoints import Batch, Loss, check_finite, embedded_on, scalar_loss
from lim_jax.grid.integrals import integral, less_their_mean
from lim_jax.grid.measure import Grid, Scalar, require_on_grid
from lim_jax.observability.gramian import Positions, Steps, layer_steps
from lim_jax.observability.trace_estimates import probed_observability
from lim_jax.probes import Probes
from lim_jax.training.estimators import as_memory, moving_average
from lim_jax.training.mixed_derivative import Adjoints, Losses, functional_of_adjoints

PerPosition = Float[Array, " length"]


def trace_penalty(traces: PerPosition, grid: Grid) -> Scalar:
    r"""Compute how uneven the traces of observability Gramians are over the positions.

    .. math:: \Omega_{obs}^{tr} = \sum_i \Delta p_i\,(g_i - \bar g)^2

    `eq:true-trace-observability-penalty` for exact traces; for estimated ones
    `eq:discrete-observability-penalty`, which is biased upwards.

    Parameters
    ----------
    traces
        :math:`g_i`, the trace of each position's observability Gramian, which is Euclidean.
    grid
        The positions; :math:`\bar g` is the mean of the traces by their weights.

    Returns
    -------
    Array
        The penalty, a scalar that is nowhere negative.

    Raises
    ------
    ValueError
        If `traces` has not a floating-point number for each position.
    EquinoxRuntimeError
        If a trace is NaN or infinite.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> float(trace_penalty(jnp.array([1.0, 3.0]), lim.token_grid(2)))
    1.0
    """
    require_on_grid(traces, grid, "traces", "length")
    return _trace_variance(error_if_not_finite(traces, "traces"), grid)


def _trace_variance(traces: PerPosition, grid: Grid) -> Scalar:
    """Compute the variance of the traces over the grid."""
    return integral(less_their_mean(traces, grid) ** 2, grid)


def gramian_penalty(gramians: Float[Array, "length width width"], grid: Grid) -> Scalar:
    r"""Compute how uneven observability Gramians are over the positions.

    .. math:: \Omega_{obs} = \sum_i \Delta p_i\,\|G_i - \bar G\|_{HS}^2

    `eq:gd-observability-penalty`. Unlike `trace_penalty` it sees directions.

    Parameters
    ----------
    gramians
        :math:`G_i`, the observability Gramian of each position, Euclidean, as
        `observability.observability_gramians` returns them.
    grid
        The positions; :math:`\bar G` is the mean of the Gramians by their weights.

    Returns
    -------
    Array
        The penalty, a scalar that is nowhere negative.

    Raises
    ------
    ValueError
        If `gramians` is no floating-point array of shape ``(length, width, width)``.
    EquinoxRuntimeError
        If a Gramian is NaN or infinite.

    Examples
    --------
    >>> gramians = jnp.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]])
    >>> float(gramian_penalty(gramians, lim.token_grid(2)))
    0.5
    """
    require_on_grid(gramians, grid, "gramians", "length width width")
    gramians = error_if_not_finite(gramians, "gramians")
    return integral((less_their_mean(gramians, grid) ** 2).sum(axis=(1, 2)), grid)


def crossfit_penalty(first: PerPosition, second: PerPosition, grid: Grid) -> Scalar:
    r"""Compute the trace penalty without bias, from two independent estimates of the traces.

    .. math:: \tilde\Omega_{obs}^{tr} = (\hat g^{(a)})^\top Q\,\hat g^{(b)}

    `eq:algorithm3-crossfit-unbiased-penalty`; one estimate alone gives a biased penalty
    (`rem:algorithm3-bias`). It may be negative, and is never clipped: that would bias it.

    Parameters
    ----------
    first
        :math:`\hat g^{(a)}`, an unbiased estimate of each position's trace.
    second
        :math:`\hat g^{(b)}`, another one, independent of the first.
    grid
        The positions, whose weights :math:`d_i = \Delta p_i` give
        :math:`Q = \mathrm{diag}(d) - dd^\top/\sum_i d_i`; their sum is one but for graded grids.

    Returns
    -------
    Array
        The penalty, a scalar, whose expectation is the `trace_penalty` of the exact traces.

    Raises
    ------
    ValueError
        If `first` or `second` has not a floating-point number for each position.
    EquinoxRuntimeError
        If an estimate is NaN or infinite.

    Examples
    --------
    >>> float(crossfit_penalty(jnp.array([1.0, 3.0]), jnp.array([3.0, 1.0]), lim.token_grid(2)))
    -1.0
    """
    require_on_grid(first, grid, "first", "length")
    require_on_grid(second, grid, "second", "length")
    first = error_if_not_finite(first, "first")
    second = error_if_not_finite(second, "second")
    return integral(less_their_mean(first, grid) * less_their_mean(second, grid), grid)


def sampled_trace_penalty(
    traces: Float[Array, " positions"], weights: Float[Array, " positions"]
) -> Scalar:
    """Return the trace penalty over some positions, each weighted for those that it stands for."""
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
    r"""Compute Algorithm 3's objective and its traces, by forward probes.

    :math:`\mathcal L_{\mathcal B} + \frac{\lambda_{obs}}2\hat\Omega_{obs}^{tr}`
    (`eq:observability-balanced-training-objective`), for ``jax.value_and_grad(..., has_aux=True)``.
    The penalty is biased upwards by the noise of the traces, by what `penalty_bias` says; averaging
    over steps lessens it.

    Parameters
    ----------
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `density.LossOfIds`, whose batches hold token ids in place of x.
    observations
        ``observations(params, x)``, what is seen of one example, of shape ``(depth, observed)``: a
        row of numbers for each layer.
    params
        The parameters, any pytree.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None where there are no labels.
    grid
        The positions, one for each row of an example.
    probes
        Random vectors of shape ``(probes, width)``, with independent entries of mean 0 and variance
        1, drawn anew at each step and common to all positions. Signs rather than Gaussian entries,
        of which one has a bias of 50 % in place of 0.05 % on section 4's Gramians.
    strength
        :math:`\lambda_{obs}`, a finite number.
    step
        :math:`\varepsilon`, a number not below zero, or one such weight for each layer: zero for a
        layer that is left out, :math:`\varepsilon/\pi_k` for one that is kept with probability
        :math:`\pi_k`.
    positions
        The numbers of the monitored positions, all by default.
    weights
        What each monitored position stands for: by default the grid's weights; of positions drawn
        at random those over the probability with which each is drawn.
    previous
        Traces of earlier steps at these positions, to average this step's with; None, the default,
        averages nothing. Only this step's share of the average has a gradient in the parameters.
    memory
        The share of `previous` in the average, in [0, 1); 0 by default, and without `previous`.

    Returns
    -------
    objective : Array
        A scalar in the units of the loss.
    traces : Array
        :math:`\hat g`, the Euclidean traces at the monitored positions, averaged over probes and
        examples, and with `previous` over steps.

    Raises
    ------
    ValueError
        If the batch is no pair, is empty or does not fit the grid; if the loss returns no scalar;
        if the probes, positions, weights or previous traces have not the shapes above; or if
        `strength` is no finite number, or `memory` outside [0, 1) or given without `previous`.
    EquinoxRuntimeError
        If the batch, a loss, a trace or `previous` is NaN or infinite, a position is not on the
        grid, `weights` are below zero, NaN, infinite or all zero, or a weight in an array `step` is
        below zero, NaN or infinite.
    """
    loss, batch = embedded_on(grid, loss, params, batch)
    strength, memory = _checked_options(observations, strength, memory, previous)
    require_floats(probes, "probes", "probes width", width=batch[0].shape[2])
    if positions is not None:
        require_indices(positions, "positions")
    size = grid.size if positions is None else positions.shape[0]
    for values, name in ((weights, "weights"), (previous, "previous")):
        if values is not None:
            require_floats(
                values, name, "positions", "Pass one number for each position.", positions=size
            )
    x, _ = batch

    def traces_of(example: Float[Array, "length width"]) -> Float[Array, " positions"]:
        """Estimate one example's traces by the mean over the probes."""
        samples = probed_observability(
            lambda x: observations(params, x), example, step, probes, positions
        )
        return samples.mean(axis=0)

    traces = jax.vmap(traces_of)(x).mean(axis=0)
    if previous is not None:
        previous = error_if_not_finite(jax.lax.stop_gradient(previous), "previous")
        traces = moving_average(previous, traces, memory)
    risk = _finite_risk(loss, params, batch)
    traces = error_if_not_finite(traces, "traces")
    if positions is None and weights is None:
        penalty = _trace_variance(traces, grid)
    else:
        weights = grid.weights[positions] if weights is None else _as_weights(weights)
        penalty = sampled_trace_penalty(traces, weights)
    return risk + strength / 2 * penalty, traces


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
    previous: PerPosition | None = None,
    memory: Scalar | float = 0.0,
) -> tuple[Scalar, PerPosition]:
    r"""Compute Algorithm 3's objective and all traces, by noise injected at every layer.

    :math:`\mathcal L_{\mathcal B} + \frac{\lambda_{obs}}2\hat\Omega_{obs}^{tr}`, for
    ``jax.value_and_grad(..., has_aux=True)``: the objective of `observability_objective`, with the
    traces of all positions estimated as `layer_injected_traces` does. Its noise :math:`z` makes
    :math:`\langle\sqrt\varepsilon z, C(x)\rangle` a random loss whose input gradient is the sample
    :math:`w`, so the penalty's gradient takes a few plain gradients of the observations, whatever
    the length.

    Parameters
    ----------
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `density.LossOfIds`, whose batches hold token ids in place of x.
    observations
        ``observations(params, x)``, what is seen of one example, of shape ``(depth, observed)``: a
        row of numbers for each layer. A function that closes over no tracers.
    params
        The parameters, any pytree.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None where there are no labels.
    grid
        The positions, one for each row of an example.
    injected
        Independent entries of mean 0 and variance 1, best signs, of shape
        ``(examples, draws, depth, observed)``, drawn anew at each step, and best independent
        between examples too.
    strength
        :math:`\lambda_{obs}`, a finite number.
    step
        :math:`\varepsilon`, a number not below zero, or one such weight for each layer: zero for a
        layer that is left out, :math:`\varepsilon/\pi_k` for one that is kept with probability
        :math:`\pi_k`.
    previous
        Traces of earlier steps at all positions, to average this step's with; None, the default,
        averages nothing. Only this step's share of the average has a gradient in the parameters.
    memory
        The share of `previous` in the average, in [0, 1); 0 by default, and without `previous`.

    Returns
    -------
    objective : Array
        A scalar in the units of the loss.
    traces : Array
        :math:`\hat g`, the Euclidean trace of every position, averaged over draws and examples, and
        with `previous` over steps.

    Raises
    ------
    ValueError
        If the batch is no pair, is empty or does not fit the grid; if the loss returns no scalar;
        if `injected` has not one entry for each number that is observed, or `previous` one for each
        position; if the observations close over traced values; or if `strength` is no finite
        number, or `memory` outside [0, 1) or given without `previous`.
    EquinoxRuntimeError
        If the batch, a loss, the noise, the observations, their gradients or `previous` are NaN or
        infinite, or a weight in an array `step` is below zero, NaN or infinite.

    Examples
    --------
    >>> loss = lambda weight, x, y: weight
    >>> see = lambda weight, x: weight * jnp.array([[1.0, 2.0]]) * x.T  # traces w^2 and 4 w^2
    >>> noise, batch = jnp.ones((1, 1, 1, 2)), (jnp.ones((1, 2, 1)), None)
    >>> value, traces = injected_objective(
    ...     loss, see, jnp.array(1.0), batch, lim.token_grid(2), noise, strength=2.0, step=1.0
    ... )
    >>> value.item(), traces.tolist()  # 1 + 1.5^2
    (3.25, [1.0, 4.0])
    """
    loss, batch = embedded_on(grid, loss, params, batch)
    strength, memory = _checked_options(observations, strength, memory, previous)
    require_floats(injected, "injected", "examples draws depth observed", examples=len(batch[0]))
    if previous is not None:
        require_on_grid(previous, grid, "previous", "length")
        previous = error_if_not_finite(previous, "previous")
    x, _ = batch
    depth, observed = injected.shape[2:]
    scale = jnp.sqrt(layer_steps(step, injected[0, 0]))

    def projection(params: PyTree, x: Any, noise: Float[Array, "depth observed"]) -> Scalar:
        """Compute the inner product of one example's observations with its noise."""
        values = observations(params, x)
        require_floats(values, "observations", "depth observed")
        require(
            noise.shape == values.shape,
            "injected",
            got=f"entries of shape {noise.shape}",
            expected=f"{values.shape}, as observed",
            cure="Draw one entry for each number that is observed.",
        )
        return jnp.vdot(noise, values)

    draws = injected.shape[1]
    noise = (scale[None, None, :, None] * promote(injected)).astype(injected.dtype)
    noise = noise.reshape(-1, depth, observed)
    options = (strength, 0.0 if previous is None else previous, memory)
    options = jax.tree.map(lambda leaf: jnp.asarray(leaf, accumulator(x.dtype)), options)
    penalty, traces = functional_of_adjoints(
        _TraceBalance(grid),
        projection,
        params,
        (jnp.repeat(x, draws, axis=0), noise),
        grid,
        options,
        has_aux=True,
    )
    return _finite_risk(loss, params, batch) + penalty, traces


def _checked_options(
    observations: Any, strength: Scalar | float, memory: Scalar | float, previous: Any
) -> tuple[Scalar | float, Scalar | float]:
    """Check the arguments that both objectives share; return the strength and the memory."""
    require_callable(observations, "observations", "observations(params, x)")
    return as_finite(strength, "strength"), as_memory(memory, previous)


def _finite_risk(loss: Loss, params: PyTree, batch: Batch) -> Scalar:
    """Return the mean loss, whose use raises if the batch or a loss is not finite."""
    x, y = batch
    losses = jax.vmap(scalar_loss(loss), in_axes=(None, 0, 0))(params, x, y)
    return check_finite(losses.mean(), batch, losses)


def _as_weights(weights: Float[Array, " positions"]) -> Float[Array, " positions"]:
    """Return weights, whose use raises unless they are finite, not negative and not all zero."""
    return error_if_got(
        weights,
        "weights",
        got={
            "NaN or infinity": ~jnp.isfinite(weights),
            "a number below zero": weights < 0,
            "zeros alone": ~jnp.any(weights),
        },
        expected="finite numbers, none below zero and not all zero",
        cure="Pass for example grid.weights.",
    )


class _TraceBalance(eqx.Module):
    """The trace penalty and the averaged traces as a function of losses and adjoints."""

    grid: Grid

    def __call__(
        self, losses: Losses, adjoints: Adjoints, options: Any
    ) -> tuple[Scalar, PerPosition]:
        """Return the weighted penalty of the averaged traces, and these traces."""
        del losses
        strength, previous, memory = options
        weights, adjoints = promote((self.grid.weights, adjoints))
        # The samples are Euclidean, the adjoints densities.
        traces = weights**2 * (adjoints**2).sum(axis=2).mean(axis=0)
        traces = moving_average(previous, traces, memory)
        return strength / 2 * _trace_variance(traces, self.grid), traces
