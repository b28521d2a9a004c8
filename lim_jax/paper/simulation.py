"""The flow that section 4 of the paper simulates: its gates, influence and Gramians.

Its only layer is causal attention with zero queries; trainable gates scale the input, and the loss
is linear in the terminal state. The paper's digits need float64.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import eval_context
from jaxtyping import Array, Float

from lim_jax._checks import error_if_not_finite
from lim_jax._jit import cached_jit
from lim_jax.density.measurement import influence
from lim_jax.density.statistics import Influence
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Scalar, require_on_grid
from lim_jax.grid.partition import boundary_regions
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.multihead import CausalAttention
from lim_jax.observability.gramian import ObservedTokens, gramian_traces, observability_gramians
from lim_jax.training.discrepancy import influence_discrepancy

LENGTH = 48
WIDTH = 4
DEPTH = 12
DELTA = 0.2
GRID = token_grid(LENGTH)

PerPosition = Float[Array, " length"]
State = Float[Array, "length width"]


def _profile(time: Scalar) -> Scalar:
    r"""Return :math:`\alpha = 2` of `eq:simulation-residual-propagator`, as :math:`\zeta`."""
    return jnp.full_like(time, 2.0)


def cesaro_flow() -> ResidualFlow:
    r"""Return the linear flow :math:`B^M`, :math:`B = I + \varepsilon\alpha\,(C\otimes S)`.

    `eq:simulation-residual-propagator`. Zero queries make attention the Cesàro average C of
    `eq:simulation-causal-matrix`; its value matrix is S of `eq:simulation-feature-mixing`.

    Returns
    -------
    ResidualFlow
        The flow of 12 layers and width 4, with T = 1 and :math:`\zeta = \alpha = 2`.

    Examples
    --------
    >>> cesaro_flow().depth
    12
    """
    mixing = jnp.array(
        [[1, 0.25, 0, 0], [0.15, 0.8, 0.2, 0], [0, 0.15, 0.6, 0.2], [0, 0, 0.2, 0.45]]
    )
    zeros = jnp.zeros((1, 1, WIDTH))
    layer = CausalAttention(eqx.nn.Identity(), zeros, zeros, mixing[None], jnp.eye(WIDTH)[None])
    layers = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (DEPTH, *leaf.shape)), layer)
    return ResidualFlow(layers, horizon=1.0, profile=_profile)


def gated(gates: PerPosition, x: State) -> State:
    r"""Apply the input gates :math:`D(u)` of `eq:simulation-input-gate`."""
    return jnp.exp(gates)[:, None] * x


def terminal_covector(weights: PerPosition) -> State:
    """Return r of `eq:simulation-terminal-covector`; `weights` multiply the even part."""
    final_share = 0.85
    queries = (1 - final_share) / LENGTH * weights
    return jnp.outer(queries.at[-1].add(final_share), jnp.array([1, 0.5, -0.3, 0.2]))


def _loss(params: tuple[PerPosition, PerPosition], x: State, y: None) -> Scalar:
    """Return the loss with input gradient :math:`p_0` (`eq:simulation-influence-profile`)."""
    gates, weights = params
    return jnp.vdot(terminal_covector(weights), cesaro_flow()(gated(gates, x), GRID))


def _finite_on_grid(values: PerPosition, name: str) -> PerPosition:
    """Return a finite number for each position; raise ValueError at others."""
    require_on_grid(values, GRID, name, "length")
    # A gate of minus infinity would cut its position off without a word.
    return error_if_not_finite(values, name)


@cached_jit
def gate_influence(gates: PerPosition, weights: PerPosition | None = None) -> Influence:
    """Return the positional influence of the gated flow: one example, since its loss is linear."""
    gates = _finite_on_grid(gates, "gates")
    weights = jnp.ones_like(gates) if weights is None else _finite_on_grid(weights, "weights")
    batch = jnp.zeros((1, LENGTH, WIDTH)), None
    return influence(_loss, (gates, weights), batch, GRID, boundary_regions(GRID, DELTA))


def influence_imbalance(density: PerPosition) -> Scalar:
    r"""Compute :math:`\mathcal E_{inf} = \int (m - 1)^2` of `eq:simulation-imbalance-metrics`."""
    return 2 * influence_discrepancy(density, 1.0, GRID)


def gate_gramians(gates: PerPosition) -> Float[Array, "length width width"]:
    """Return the Gramians of `eq:simulation-observability-gramian`, observed at the final token."""
    return _gate_gramians(_finite_on_grid(gates, "gates"))


@jax.jit
def _gate_gramians(gates: PerPosition) -> Float[Array, "length width width"]:
    """Multiply the Gramians without gates by the squares of the gates."""
    with eval_context():  # once, not at every step of an optimiser of the gates
        ungated = _ungated_gramians()
    return jnp.exp(2 * gates)[:, None, None] * ungated


def _ungated_gramians() -> Float[Array, "length width width"]:
    """Compute the Gramians of the final token's states without gates."""
    final_token = ObservedTokens(cesaro_flow(), GRID, jnp.array([LENGTH - 1]))
    return observability_gramians(final_token, jnp.zeros((LENGTH, WIDTH)), 1.0 / DEPTH)


def trace_density(gates: PerPosition) -> PerPosition:
    """Return the normalised traces of `eq:simulation-normalized-observability`, as a density."""
    traces = gramian_traces(gate_gramians(gates))
    return traces / (GRID.weights @ traces)
