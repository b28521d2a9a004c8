r"""Algorithm 2: loss weights that answer measured influence, over any training stage."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import (
    AnyPath,
    as_finite,
    as_int,
    error_if,
    error_if_got,
    error_if_not_finite,
    require,
    require_callable,
    require_kind,
)
from lim_jax._errors import translate_errors
from lim_jax._precision import norm
from lim_jax.density.adjoints import Batch, Loss
from lim_jax.density.measurement import influence
from lim_jax.density.statistics import indices
from lim_jax.grid.integrals import guarded_density, integral, require_profile
from lim_jax.grid.measure import Grid, Scalar, require_grid, require_on_grid
from lim_jax.grid.partition import Regions, regional_averages, require_regions
from lim_jax.training.dynamics import risk
from lim_jax.training.loop import Progress, resumable

PerPosition = Float[Array, " length"]
WeightedLoss = Callable[[PerPosition], Loss]


def reweight_positions(
    weights: PerPosition,
    density: PerPosition,
    target: PerPosition | float,
    grid: Grid,
    *,
    rate: Scalar | float,
    smallest: float,
    largest: float,
) -> PerPosition:
    r"""Update Algorithm 2's loss weights once, by a damped multiplicative step.

    :math:`\tilde w_i = \mathrm{clip}(w_i\,e^{\eta_w(\nu_i - m_i)})`, then division by
    :math:`\sum_j \Delta p_j \tilde w_j` (`eq:mask-aware-weight-update`). Clipping comes first, so
    the weights returned have unit mean and may leave the interval.

    Parameters
    ----------
    weights
        :math:`w`, a number for each position, nowhere negative.
    density
        :math:`m`, the measured influence density at each position, of integral one.
    target
        :math:`\nu`, of integral one: a number for each position, or one for all.
    grid
        The positions.
    rate
        :math:`\eta_w`, a finite number.
    smallest, largest
        The interval to which weights are clipped: ``0 <= smallest <= largest``, and
        ``largest > 0``.

    Returns
    -------
    Array
        The next weights, a number for each position, of integral one.

    Raises
    ------
    ValueError
        If `weights` or `density` has not a floating-point number for each position, `target`
        neither that nor one number, or the rate or an end of the interval is no finite number.
    EquinoxRuntimeError
        If a profile or the rate is NaN or infinite, a weight is negative, the interval is empty,
        reaches below zero or is zero alone, or the step leaves no weight above zero.

    Examples
    --------
    >>> density = jnp.array([2.0, 0.0])
    >>> options = dict(rate=0.5, smallest=0.1, largest=8.0)
    >>> weights = reweight_positions(jnp.ones(2), density, 1.0, lim.token_grid(2), **options)
    >>> bool(weights[0] < 1 < weights[1]), round(float(weights.sum()), 12)
    (True, 2.0)
    """
    _require_profiles(weights, density, target, grid)
    options = jnp.asarray(target), as_finite(rate, "rate")
    weights, density, (target, rate) = error_if_not_finite(
        (weights, density, options), "reweighting"
    )
    smallest = as_finite(smallest, "smallest")
    largest = as_finite(largest, "largest")
    weights = error_if_got(
        weights,
        "weights, smallest, largest",
        got={
            "a weight below zero": weights < 0,
            "a smallest below zero": smallest < 0,
            "a largest of zero or below": largest <= 0,
            "a smallest above the largest": smallest > largest,
        },
        expected="weights nowhere negative, 0 <= smallest <= largest and largest > 0",
        cure="Clip the weights, and order the two limits.",
    )
    exponents = rate * (target - density)
    # So that no growth is infinite: a weight of zero, times it, stays zero.
    exponents = jnp.minimum(exponents, math.floor(math.log(jnp.finfo(exponents.dtype).max)))
    raised = jnp.clip(weights * jnp.exp(exponents), smallest, largest)
    total = integral(raised, grid)
    total = error_if_got(
        total,
        "weights",
        got={"none above zero after the step": total <= 0},
        expected="some",
        cure="Take a smallest above zero, or a lower rate.",
    )
    return raised / total


def first_order_step(
    weights: PerPosition,
    density: PerPosition,
    target: PerPosition | float,
    grid: Grid,
    *,
    rate: Scalar | float,
) -> PerPosition:
    r"""Compute Algorithm 2's change of weights of unit mean, to first order in its rate.

    .. math:: \eta_w\,w_i\Bigl(d_i - \sum_j \Delta p_j w_j d_j\Bigr), \qquad d = \nu - m

    `eq:normalized-multiplicative-first-order-step`: the change that `reweight_positions` makes of
    weights with :math:`\sum_j \Delta p_j w_j = 1` where nothing is clipped, up to
    :math:`O(\eta_w^2)`.

    Parameters
    ----------
    weights
        :math:`w`, a number for each position, of integral one; for weights of another integral the
        formula is that of no step.
    density
        :math:`m`, the measured influence density at each position, of integral one.
    target
        :math:`\nu`, of integral one: a number for each position, or one for all.
    grid
        The positions.
    rate
        :math:`\eta_w`, a finite number, to which the change is proportional.

    Returns
    -------
    Array
        The change of each position's weight. Its integral is zero.

    Raises
    ------
    ValueError
        If `weights` or `density` has not a floating-point number for each position, `target`
        neither that nor one number, or the rate is no finite number.
    EquinoxRuntimeError
        If a profile or a traced rate is NaN or infinite.

    Examples
    --------
    >>> density = jnp.array([2.0, 0.0])
    >>> first_order_step(jnp.ones(2), density, 1.0, lim.token_grid(2), rate=0.5).tolist()
    [-0.5, 0.5]
    """
    _require_profiles(weights, density, target, grid)
    rate = as_finite(rate, "rate")
    profiles = weights, density, jnp.asarray(target)
    weights, density, _ = error_if_not_finite(profiles, "weights, density, target")
    missing = target - density
    return rate * weights * (missing - integral(weights * missing, grid))


def _require_profiles(weights: Any, density: Any, target: Any, grid: Any) -> None:
    """Raise ValueError unless weights, density and target fit the grid."""
    require_on_grid(weights, grid, "weights", "length")
    require_on_grid(density, grid, "density", "length")
    require_profile(target, grid, "target")


class Reweighting(NamedTuple):
    r"""Where a run of Algorithm 2 ended, and what it measured on the way.

    Attributes
    ----------
    state
        What the last stage returned.
    weights
        The loss weights :math:`w^{(n)}` that each stage trained under, a row for each, of unit mean
        (`eq:mask-aware-weight-update`). The last row is where a longer run goes on.
    densities
        The influence densities :math:`\hat m^{(n)}` measured before the stages, a row for each.
    records
        What the stages recorded, with a leading axis of stages.
    """

    state: PyTree
    weights: Float[Array, "updates length"]
    densities: Float[Array, "updates length"]
    records: PyTree


def reweighting_run(
    stage: Callable[[Any, PerPosition, int], tuple[Any, PyTree]],
    measure: Callable[[Any, int], PerPosition],
    state: Any,
    grid: Grid,
    updates: int,
    *,
    target: PerPosition | float = 1.0,
    rate: Scalar | float,
    smallest: float,
    largest: float,
    weights: PerPosition | None = None,
    run: PyTree = None,
    checkpoint: AnyPath | None = None,
    every: int = 1,
    progress: Progress = iter,
) -> Reweighting:
    r"""Run Algorithm 2: measure the influence, reweight the loss, train a stage, and again.

    .. math:: \hat m^{(n)} = \mathtt{measure}(\vartheta^{(n)}),\qquad
              w^{(n+1)} \leftarrow (w^{(n)}, \hat m^{(n)}),\qquad
              \vartheta^{(n+1)} = \mathtt{stage}(\vartheta^{(n)}, w^{(n+1)})

    with `reweight_positions` in the middle (`eq:mask-aware-weight-update`). A heuristic: no
    decrease of LIM follows from it, and `response` says whether one is to be expected. It changes
    what is minimised, so let each stage record the unweighted risk of validation data too.

    A run that was interrupted and is called again with the same arguments gives the same numbers,
    bit for bit, as one that was not: see `resumable`. `stage` and `measure` are ordinary Python:
    jit what is inside. Without a `checkpoint` the run itself works under jit, vmap, grad and jvp
    where they do, unrolled; with one it does not.

    Parameters
    ----------
    stage
        ``stage(state, weights, index) -> (state, record)``: trains an epoch under these loss
        weights, the integrand's factor of `cross_entropy` (`eq:discrete-weighted-cross-entropy`),
        and returns what is to be recorded, a pytree of arrays. What it draws at random belongs to
        the index, which counts from zero.
    measure
        ``measure(state, index) -> density``: the influence density, of integral one, of the loss
        under *even* weights.
    state
        The parameters, the optimiser's state, and what else a stage needs; any pytree.
    grid
        The positions.
    updates
        How many times to measure, reweight and train, those before an interruption included.
    target
        :math:`\nu`, of integral one: a number for each position, or one for all; 1 by default.
    rate
        :math:`\eta_w`, the rate of each update.
    smallest, largest
        The interval to which weights are clipped before they are brought to unit mean.
    weights
        :math:`w^{(0)}`, a number for each position, nowhere negative; 1 everywhere by default.
    run
        What `stage` and `measure` compute with besides, such as an optimiser's rate, or a name of
        yours: a checkpoint of another `run`, `state` or update is refused. None by default, which a
        `checkpoint` refuses.
    checkpoint
        A file to go on from, if it is there, and to write; none by default.
    every
        How many updates stand between two checkpoints, 1 by default.
    progress
        Wraps the range of updates that are left, for example ``tqdm.tqdm``; by default it shows
        nothing.

    Returns
    -------
    Reweighting
        The last state, and the weights, densities and records of all stages.

    Raises
    ------
    ValueError
        If an argument is not of its kind, a density not on the grid, a `checkpoint` comes without a
        `run`, or the checkpoint is of another run, of more updates, or cut short.
    EquinoxRuntimeError
        If a density, the target or the rate is not finite, a weight negative, or the interval
        empty.

    Examples
    --------
    >>> def stage(gates, weights, index):  # influence that follows the weights by half
    ...     return jnp.array([1.5, 0.5]) * jnp.sqrt(weights), gates[0] - gates[1]
    >>> measure = lambda gates, index: gates / gates.mean()
    >>> start, options = jnp.array([1.5, 0.5]), dict(rate=0.5, smallest=0.1, largest=8.0)
    >>> done = reweighting_run(stage, measure, start, lim.token_grid(2), 40, **options)
    >>> done.densities[0].tolist(), done.densities[-1].round(3).tolist()
    ([1.5, 0.5], [1.0, 1.0])
    """
    require_callable(stage, "stage", "stage(state, weights, index)")
    require_callable(measure, "measure", "measure(state, index)")
    require_grid(grid)
    start = jnp.ones_like(grid.weights) if weights is None else weights
    require_on_grid(start, grid, "weights", "length")
    update = {"target": target, "rate": rate, "smallest": smallest, "largest": largest}

    def step(carried: tuple[Any, PerPosition], index: int) -> tuple[tuple[Any, PerPosition], Any]:
        """Measure, reweight and train once."""
        state, weights = carried
        density = measure(state, index)
        weights = reweight_positions(weights, density, grid=grid, **update)
        state, record = stage(state, weights, index)
        return (state, weights), (weights, density, record)

    (state, _), (trained_under, densities, records) = resumable(
        step,
        (state, start),
        updates,
        run=None if run is None else (grid, update, run),
        checkpoint=checkpoint,
        every=every,
        progress=progress,
    )
    return Reweighting(state, trained_under, densities, records)


def _train(
    loss: Loss, params: PyTree, batch: Batch, optimiser: optax.GradientTransformation, steps: int
) -> PyTree:
    """Return the parameters after some steps of the optimiser on the risk."""
    arrays, static = eqx.partition(params, eqx.is_inexact_array)

    def step(carried: tuple[PyTree, PyTree], _: None) -> tuple[tuple[PyTree, PyTree], None]:
        """Take one step of the optimiser on the risk."""
        arrays, state = carried
        slope = jax.grad(lambda arrays: risk(loss, eqx.combine(arrays, static), batch))(arrays)
        change, state = optimiser.update(slope, state, arrays)
        return (optax.apply_updates(arrays, change), state), None

    (arrays, _), _ = jax.lax.scan(step, (arrays, optimiser.init(arrays)), length=steps)
    return eqx.combine(arrays, static)


def response_map(
    weighted_loss: WeightedLoss,
    params: PyTree,
    weights: PerPosition,
    batch: Batch,
    grid: Grid,
    *,
    optimiser: optax.GradientTransformation,
    steps: int,
) -> PerPosition:
    r"""Compute the influence density after a stage of training, as a function of the loss weights.

    .. math:: \mathcal M(w) = m_{\vartheta^+(w)}

    `eq:influence-response-map`: the density is that of the loss under even weights, so that w moves
    it through the parameters only. The stage is unrolled, and derivatives pass through all of it:
    those of ``jax.grad`` keep the states of all steps, those of ``jax.jvp`` none. Fix all other
    arguments to make the function of w that `response` takes.

    Parameters
    ----------
    weighted_loss
        ``weighted_loss(weights)`` returns a loss ``loss(params, x, y)`` of one example, for example
        `loss.cross_entropy` with these `position_weights`.
    params
        Where the stage begins, any pytree; its floating-point arrays are trained, other leaves
        stay.
    weights
        :math:`w`, a number for each position.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None where there are no labels.
    grid
        The positions, one for each row of an example.
    optimiser
        An optimiser of optax, which begins anew. Where a gradient is exactly zero, Adam has no
        derivative unless it has an ``eps_root``.
    steps
        How many steps to take, at least 1, all on the same batch.

    Returns
    -------
    Array
        The influence density at each position after the stage, of integral one; zero where the
        influence vanishes.

    Raises
    ------
    ValueError
        If `weighted_loss` cannot be called, `weights` has not a number for each position,
        `optimiser` is not of optax, `steps` is no whole number of at least 1, or the batch does not
        fit the grid.
    EquinoxRuntimeError
        If the batch is NaN or infinite, or training leaves parameters whose losses or gradients are
        so.

    Examples
    --------
    >>> weighted = lambda w: lambda params, x, y: w @ (params * x[:, 0] - 1) ** 2 / 2
    >>> batch, grid = (jnp.ones((1, 4, 1)), None), lim.token_grid(4)
    >>> stage = lambda w: response_map(
    ...     weighted, jnp.full(4, 0.1), w, batch, grid, optimiser=optax.sgd(0.2), steps=3
    ... )
    >>> answer = response(stage, jnp.ones(4), jnp.eye(4)[1], lim.boundary_regions(grid, 0.25))
    >>> round(float(stage(jnp.ones(4)).mean()), 6), bool(answer.change != 0)
    (1.0, True)
    """
    require_callable(weighted_loss, "weighted_loss", "from loss weights to a loss")
    require_on_grid(weights, grid, "weights", "length")
    require_kind(optimiser, optax.GradientTransformation, "optimiser", "Try optax.sgd(0.1).")
    steps = as_int(steps, "steps")
    after = _train(weighted_loss(weights), params, batch, optimiser, steps)
    return influence(weighted_loss(jnp.ones_like(weights)), after, batch, grid).density


class Response(NamedTuple):
    r"""How the next training stage's influence answers a change of the loss weights.

    `response` returns it.

    Attributes
    ----------
    lim
        :math:`\mathcal L_\delta(w)`, LIM after the stage (`eq:influence-response-map`).
    change
        :math:`\nabla_w\mathcal L_\delta\cdot\Delta w`, the first-order change of LIM
        (`eq:lim-outer-loop-first-order-change`).
    alignment
        The largest c of `eq:lim-response-alignment-condition`,
        :math:`-\mathrm{change}/\|\Delta w\|^2` in the Euclidean norm, and zero for no change; the
        condition holds where it is positive.
    """

    lim: Scalar
    change: Scalar
    alignment: Scalar


@translate_errors()
def response(
    stage: Callable[[PerPosition], PerPosition],
    weights: PerPosition,
    change: PerPosition,
    regions: Regions,
) -> Response:
    r"""Differentiate LIM through a training stage, along a change of its loss weights.

    Neither a decrease of LIM nor alignment follows from Algorithm 2's update: this says whether
    they are there.

    Parameters
    ----------
    stage
        The response map :math:`\mathcal M`, ``stage(weights) -> density``: from loss weights to the
        influence density after the next stage, differentiable, such as `response_map` of the other
        arguments.
    weights
        :math:`w`, a number for each position.
    change
        :math:`\Delta w`, a number for each position, in the precision of the weights; for example
        what `reweight_positions` changes.
    regions
        The regions left, middle and right whose averages LIM compares; they hold the grid.

    Returns
    -------
    Response
        LIM after the stage, its first-order change, and the alignment.

    Raises
    ------
    ValueError
        If `stage` cannot be called, `regions` is no `Regions`, or `weights` and `change` have not a
        number for each position in one precision.

    Examples
    --------
    >>> regions = lim.boundary_regions(lim.token_grid(4), 0.25)
    >>> weights, change = jnp.array([2.0, 0.5, 0.5, 1.0]), jnp.eye(4)[1]
    >>> answer = response(lambda w: w, weights, change, regions)
    >>> bool(answer.change < 0), bool(answer.alignment > 0)  # weight in the middle lessens LIM
    (True, True)
    """
    require_callable(stage, "stage", "from loss weights to a density")
    require_regions(regions)
    for profile, name in ((weights, "weights"), (change, "change")):
        require_on_grid(profile, regions.grid, name, "length")
    require(
        change.dtype == weights.dtype,
        "change",
        got=f"{change.dtype}",
        expected=f"{weights.dtype}, as the weights are",
        cure="Cast one of them to the other's precision.",
    )

    def index(weights: PerPosition) -> Scalar:
        """Return LIM of the density after a stage under these weights."""
        return indices(regional_averages(stage(weights), regions)).lim

    lim, slope = jax.jvp(index, (weights,), (change,))
    size = norm(change)
    size = jnp.where(size > 0, size, 1)
    return Response(lim, slope, -slope / size / size)  # the square may be beyond the precision


def importance_weights(deployed: PerPosition, trained: PerPosition, grid: Grid) -> PerPosition:
    r"""Compute the weights :math:`w = \tau/\pi` that make a training risk the deployment risk.

    `eq:positional-importance-weight`: the risk under these weights on positions of density
    :math:`\pi` is the risk on positions of density :math:`\tau`, and :math:`\int w\,\pi = 1`.

    Parameters
    ----------
    deployed
        :math:`\tau`, the density of positions in deployment, nowhere negative; it is divided by its
        integral.
    trained
        :math:`\pi`, the density of positions in training, positive wherever `deployed` is; it is
        divided by its integral.
    grid
        The positions.

    Returns
    -------
    Array
        The weight of each position, zero where nothing is deployed.

    Raises
    ------
    ValueError
        If `deployed` or `trained` has not a floating-point number for each position.
    EquinoxRuntimeError
        If one of them is negative, NaN or infinite somewhere, or zero everywhere, or if positions
        are deployed that are never trained on.

    Examples
    --------
    >>> importance_weights(jnp.array([0.5, 1.5]), jnp.ones(2), lim.token_grid(2)).tolist()
    [0.5, 1.5]
    """
    deployed = guarded_density(deployed, grid, "deployed")
    trained = guarded_density(trained, grid, "trained")
    deployed = deployed / integral(deployed, grid)
    trained = trained / integral(trained, grid)
    message = (
        "trained: got zero, expected a positive density wherever `deployed` is positive. "
        "Train on these positions too: no weight makes up for positions that are never seen."
    )
    deployed = error_if(deployed, jnp.any((trained <= 0) & (deployed > 0)), message)
    return jnp.where(trained > 0, deployed / jnp.where(trained > 0, trained, 1), 0)
