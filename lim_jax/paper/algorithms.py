"""The paper's three algorithms on the gated flow: objectives, optimisers, and where they stop."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from jaxtyping import Array, Float

from lim_jax._jit import cached_jit
from lim_jax.grid.measure import Scalar
from lim_jax.paper.simulation import (
    GRID,
    LENGTH,
    PerPosition,
    gate_influence,
    influence_imbalance,
    trace_density,
)
from lim_jax.training.gramian_penalties import trace_penalty
from lim_jax.training.reweighting import reweight_positions

Objective = Callable[[PerPosition], tuple[Scalar, Scalar]]


def algorithm1_objective(gates: PerPosition) -> tuple[Scalar, Scalar]:
    """Return :math:`J_1` of `eq:simulation-algorithm1-objective`, and the imbalance in it."""
    imbalance = influence_imbalance(gate_influence(gates).density)
    return 0.12 / (2 * LENGTH) * jnp.sum(gates**2) + 15 / 2 * imbalance, imbalance


def algorithm3_objective(gates: PerPosition) -> tuple[Scalar, Scalar]:
    """Return `eq:simulation-algorithm3-objective`, and the imbalance of traces in it.

    `eq:simulation-imbalance-metrics`.
    """
    imbalance = trace_penalty(trace_density(gates), GRID)
    return 1.0 / (2 * LENGTH) * jnp.sum(gates**2) + 0.5 / 2 * imbalance, imbalance


class GateRun(NamedTuple):
    """Where an optimiser of the gates stopped."""

    gates: PerPosition  # or Algorithm 2's loss weights
    objective: Scalar
    history: Float[Array, " steps"]  # of what it controls, before the first step and after each


@cached_jit
def _slope(objective: Objective, gates: PerPosition) -> tuple[tuple[Scalar, Scalar], PerPosition]:
    """Return the objective and the imbalance in it, and the gradient in the gates."""
    return jax.value_and_grad(objective, has_aux=True)(gates)


def adam_run(objective: Objective, learning_rate: float) -> GateRun:
    """Take 400 Adam steps from u = 0, and evaluate after the last, as the paper does."""
    optimiser = optax.adam(learning_rate)

    @jax.jit
    def move(gates, state, gradient):
        """Take one step of the optimiser."""
        updates, state = optimiser.update(gradient, state)
        return gates + updates, state

    gates = jnp.zeros(LENGTH)
    state = optimiser.init(gates)
    history = []
    for _ in range(400):
        (_, imbalance), gradient = _slope(objective, gates)
        gates, state = move(gates, state, gradient)
        history.append(imbalance)
    (value, imbalance), _ = _slope(objective, gates)
    return GateRun(gates, value, jax.device_put(np.stack([*history, imbalance])))


@cached_jit
def _curvature(objective: Objective, gates: PerPosition) -> Float[Array, "length length"]:
    """Compute the Hessian of the objective in the gates."""
    return jax.hessian(lambda gates: objective(gates)[0])(gates)


def minimiser(objective: Objective, start: PerPosition) -> GateRun:
    """Descend from `start` by L-BFGS, and go on to a stationary point by Newton's steps.

    Raises
    ------
    RuntimeError
        If Newton's steps end where the gradient is not zero up to a tenth of the root of the
        precision's unit.
    """
    tolerance = math.sqrt(jnp.finfo(start.dtype).eps) / 10

    def value_and_slope(gates: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the objective and its gradient in SciPy's types."""
        (value, _), gradient = _slope(objective, jnp.asarray(gates, start.dtype))
        return float(value), np.asarray(gradient, float)

    def curvature(gates: np.ndarray) -> np.ndarray:
        """Return the Hessian in SciPy's types."""
        return np.asarray(_curvature(objective, jnp.asarray(gates, start.dtype)), float)

    descent = scipy.optimize.minimize(
        value_and_slope, np.asarray(start, float), jac=True, method="L-BFGS-B"
    )
    # A descent ends where values differ by their rounding alone; slopes still tell the way there.
    root = scipy.optimize.root(
        lambda gates: value_and_slope(gates)[1], descent.x, jac=curvature, method="hybr"
    )
    gates = jnp.asarray(root.x, start.dtype)
    (value, imbalance), gradient = _slope(objective, gates)
    if not np.linalg.norm(gradient) <= tolerance:
        message = " ".join(root.message.split())
        raise RuntimeError(
            f"minimiser: Newton's steps did not converge ({message}); start elsewhere."
        )
    return GateRun(gates, value, imbalance[None])


@cached_jit
def algorithm2_run() -> GateRun:
    """Take 160 outer updates of the loss weights, and evaluate after the last."""
    options = {"target": 1.0, "grid": GRID, "rate": 0.5, "smallest": 0.15, "largest": 8.0}

    def update(weights: PerPosition, _: None) -> tuple[PerPosition, Scalar]:
        """Reweight the positions once by their density."""
        density = gate_influence(jnp.zeros(LENGTH), weights).density
        return reweight_positions(weights, density, **options), influence_imbalance(density)

    weights, history = jax.lax.scan(update, jnp.ones(LENGTH), length=160)
    final = influence_imbalance(gate_influence(jnp.zeros(LENGTH), weights).density)
    return GateRun(weights, final, jnp.append(history, final))
