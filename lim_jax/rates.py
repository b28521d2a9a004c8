r"""Refinement studies: the paper's limits, measured against the limit itself.

Each study computes a quantity at several refinements and its continuum value by another scheme
(Gauss--Legendre panels for position, a tight high-order solver for depth), and fits the order of
the error. A reference states its own error, from two resolutions. Fields of position are given as
functions, so that every grid samples the same one. Use float64.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import require
from lim_jax.adjoint import terminal_adjoint
from lim_jax.field import CausalAttention, State
from lim_jax.flow import ContinuousFlow, ResidualFlow, euler, split
from lim_jax.grid import (
    Grid,
    cell_embedding,
    gauss_grid,
    inner,
    integral,
    token_grid,
)
from lim_jax.loss import LinearReadout, cross_entropy, logit_residual

PositionField = Callable[[Float[Array, " points"]], Float[Array, "points features"]]


class Order(NamedTuple):
    """A fitted convergence order: errors behave like ``constant / refinement**value``.

    Attributes
    ----------
    value
        The slope of log error against log refinement, with its sign turned.
    half_width
        Two standard errors of the slope.
    constant
        The fitted constant.
    """

    value: float
    half_width: float
    constant: float


def fit_order(refinements: Sequence[float | int], errors: Sequence[float]) -> Order:
    """Fit a convergence order by least squares on logarithms.

    Raises
    ------
    ValueError
        Where there are fewer than four refinements, or an error is not positive.

    Examples
    --------
    >>> order = fit_order([10, 20, 40, 80], [0.3 / n**2 for n in (10, 20, 40, 80)])
    >>> round(order.value, 9), round(order.constant, 9)
    (2.0, 0.3)
    """
    require(
        len(refinements) == len(errors) >= 4 and min(errors) > 0,
        "errors",
        got=f"{list(errors)} at {list(refinements)}",
        expected="at least four positive errors, one for each refinement",
        cure="A slope through fewer points says nothing; an error of zero has no logarithm.",
    )
    x, y = np.log(np.asarray(refinements, float)), -np.log(np.asarray(errors, float))
    design = np.stack([x, np.ones_like(x)], axis=1)
    (slope, intercept), *_ = np.linalg.lstsq(design, y, rcond=None)
    residual = y - design @ (slope, intercept)
    variance = residual @ residual / (len(x) - 2) / np.sum((x - x.mean()) ** 2)
    return Order(float(slope), float(2 * np.sqrt(variance)), float(np.exp(-intercept)))


class Study(NamedTuple):
    """Errors of one quantity under refinement.

    Attributes
    ----------
    source
        The paper's label.
    claimed
        The order that it states.
    refinements, errors
        Numbers of tokens or layers, and the error at each.
    bounds
        The stated bound at each refinement, or None where its constant is not explicit.
    reference_error
        How far the reference is from itself at another resolution.
    """

    source: str
    claimed: float
    refinements: tuple[float, ...]
    errors: tuple[float, ...]
    bounds: tuple[float, ...] | None
    reference_error: float

    @property
    def order(self) -> Order:
        """The order fitted to the errors."""
        return fit_order(self.refinements, self.errors)

    @property
    def holds(self) -> bool | None:
        """Whether every error respects the stated bound; None where none is explicit."""
        if self.bounds is None:
            return None
        return all(e <= b for e, b in zip(self.errors, self.bounds, strict=True))


def attention_study(
    attention: CausalAttention,
    states: PositionField,
    sizes: Sequence[int],
    make_grid: Callable[[int], Grid] = token_grid,
    *,
    inside: float = 0.0,
) -> Study:
    r"""Finite attention against the Volterra operator (`thm:attention-continuum-error`).

    The largest error over the cells with :math:`p_i \ge` `inside`. The theorem states order 1 for
    `inside` > 0 (`eq:attention-continuum-pointwise-error`) and :math:`C_R/i` for every cell; for
    smooth fields the measured order on tokens is 1 at every cell, the first included. A small
    `eta` in the norm makes fields of few features nearly jump; `reference_error` then shows it.

    Examples
    --------
    >>> attention = CausalAttention.init(2, eta=0.1, key=jax.random.key(0))
    >>> states = lambda p: jnp.stack([jnp.cos(3 * p), p], axis=1)
    >>> study = attention_study(attention, states, (40, 80, 160, 320))
    >>> abs(study.order.value - 1) < 0.15
    True
    """

    @eqx.filter_jit
    def attended(grid: Grid) -> State:
        x = states(grid.nodes)
        return attention(x, x, grid)

    references = [(grid, attended(grid)) for grid in (gauss_grid(64), gauss_grid(96))]

    def error(size: int) -> float:
        grid = make_grid(size)
        expected = references[-1][0].interpolate(references[-1][1], grid.nodes)
        cells = (grid.nodes >= inside)[:, None]
        return _largest(jnp.where(cells, attended(grid) - expected, 0))

    (coarse, values), (fine, expected) = references
    own = _largest(coarse.interpolate(values, fine.nodes) - expected)
    return _study("thm:attention-continuum-error", 1.0, sizes, error, None, own)


def depth_study(
    control: Callable[[Array], Any],
    x: State,
    grid: Grid,
    depths: Sequence[int],
    *,
    horizon: float = 1.0,
    step: Callable[..., State] = euler,
) -> Study:
    r"""Residual recursions against the depth flow (`thm:resnet-ode`).

    Layers are the control at :math:`t_k`, so :math:`\|\theta^\varepsilon-\theta\|_{L^1} =
    O(\varepsilon)`; the error is the largest over layers of the grid's :math:`L^2` norm
    (`eq:resnet-ode-convergent-control-bound`), of order 1 for `euler` and `split` alike.

    Examples
    --------
    >>> from lim_jax.field import FeedForward
    >>> field = FeedForward.init(2, key=jax.random.key(0))
    >>> study = depth_study(lambda time: field, jnp.ones((3, 2)), token_grid(3), (8, 16, 32, 64))
    >>> study.claimed
    1.0
    """
    flow = ContinuousFlow(
        control,
        horizon=horizon,
        solver=diffrax.Dopri8(),
        stepsize_controller=diffrax.PIDController(rtol=1e-10, atol=1e-10),
    )
    other = eqx.tree_at(lambda f: f.solver, flow, diffrax.Tsit5())

    def error(depth: int) -> float:
        times = jnp.linspace(0.0, horizon, depth + 1)
        layers = eqx.filter_vmap(control)(times[:-1])
        recursion = ResidualFlow(layers, horizon=horizon, step=step)
        gap = recursion.trajectory(x, grid).states - flow.trajectory(x, grid, times).states
        return float(jnp.sqrt(jax.vmap(lambda u: inner(u, u, grid))(gap)).max())

    own = _largest(flow(x, grid) - other(x, grid))
    return _study("thm:resnet-ode", 1.0, depths, error, None, own)


def split_defect_study(field: Any, x: State, grid: Grid, depths: Sequence[int]) -> Study:
    r"""The defect of one split layer against one Euler step, at :math:`\varepsilon = 1/M`.

    :math:`\|d_k\| \le C_{split}\,\varepsilon^2` (`eq:discrete-residual-with-defect`). Both sides
    are exact, so there is no reference error.
    """

    def error(depth: int) -> float:
        defect = split(field, x, grid, 1 / depth) - euler(field, x, grid, 1 / depth)
        return float(jnp.sqrt(inner(defect, defect, grid)))

    return _study("eq:discrete-residual-with-defect", 2.0, depths, error, None, 0.0)


def loss_study(
    logits: PositionField,
    labels: PositionField,
    sizes: Sequence[int],
    make_grid: Callable[[int], Grid] = token_grid,
) -> Study:
    r"""The token-averaged against the continuum cross-entropy (`thm:loss-adjoint-continuum-error`).

    With its bound :math:`L_g/L` (`eq:cross-entropy-discrete-continuum-error`), where :math:`L_g`
    is the largest slope of the loss density g on a fine grid.

    Examples
    --------
    >>> logits = lambda p: jnp.stack([jnp.sin(3 * p), p], axis=1)
    >>> labels = lambda p: jnp.stack([p, 1 - p], axis=1)
    >>> study = loss_study(logits, labels, (10, 20, 40, 80))
    >>> study.holds, abs(study.order.value - 1) < 0.15
    (True, True)
    """

    def loss(grid: Grid) -> float:
        return float(cross_entropy(logits(grid.nodes), labels(grid.nodes), grid))

    def density(p: Float[Array, ""]) -> Float[Array, ""]:
        return -jnp.vdot(labels(p[None]), jax.nn.log_softmax(logits(p[None])))

    expected = loss(gauss_grid(96))
    lipschitz = _largest(jax.vmap(jax.grad(density))(jnp.linspace(0.0, 1.0, 2001)))
    return _study(
        "thm:loss-adjoint-continuum-error",
        1.0,
        sizes,
        lambda size: abs(loss(make_grid(size)) - expected),
        lambda size: lipschitz / size,
        abs(loss(gauss_grid(64)) - expected),
    )


def terminal_adjoint_study(
    readout: LinearReadout, states: PositionField, labels: PositionField, sizes: Sequence[int]
) -> Study:
    r"""The embedded terminal adjoint of tokens against the continuum's, in :math:`L^2`.

    With the bound :math:`\|W_{out}\|\,\mathrm{Lip}(\Delta)/L` of
    `eq:linear-readout-first-order-bound` for a linear readout.
    """
    weight = readout.weight

    def residual(p: Float[Array, ""]) -> Float[Array, " vocabulary"]:
        return logit_residual(states(p[None]) @ weight, labels(p[None]))[0]

    def adjoint(grid: Grid) -> State:
        y = labels(grid.nodes)
        return terminal_adjoint(
            lambda x: cross_entropy(readout(x, grid), y, grid), states(grid.nodes), grid
        )

    fine = gauss_grid(12, panels=1)
    quadrature = _composite(fine, 400)
    slopes = jax.vmap(jax.jacfwd(residual))(jnp.linspace(0.0, 1.0, 2001))
    lipschitz = float(jnp.linalg.norm(slopes, axis=1).max() * jnp.linalg.norm(weight, 2))
    reference = gauss_grid(96)
    expected = reference.interpolate(adjoint(reference), quadrature)

    def error(size: int) -> float:
        grid = token_grid(size)
        gap = cell_embedding(adjoint(grid), grid, quadrature) - expected
        squares = (gap**2).sum(axis=1).reshape(400, fine.size)
        return float(jnp.sqrt(jax.vmap(lambda s: integral(s, fine))(squares).mean()))

    own = _largest(gauss_grid(64).interpolate(adjoint(gauss_grid(64)), quadrature) - expected)
    return _study(
        "eq:terminal-adjoint-discrete-continuum-error",
        1.0,
        sizes,
        error,
        lambda size: lipschitz / size,
        own,
    )


def _study(
    source: str,
    claimed: float,
    refinements: Sequence[int],
    error: Callable[[int], float],
    bound: Callable[[int], float] | None,
    reference_error: float,
) -> Study:
    return Study(
        source,
        claimed,
        tuple(float(n) for n in refinements),
        tuple(error(n) for n in refinements),
        None if bound is None else tuple(bound(n) for n in refinements),
        reference_error,
    )


def _composite(rule: Grid, pieces: int) -> Float[Array, " points"]:
    """The nodes of a rule repeated on equal pieces of [0, 1]."""
    starts = jnp.arange(pieces, dtype=rule.nodes.dtype)
    return ((starts[:, None] + rule.nodes[None, :]) / pieces).ravel()


def _largest(values: Float[Array, "..."]) -> float:
    return float(jnp.abs(values).max())
