r"""The paper's counterexamples to unconditional shape claims, to run (`subsec:counterexamples`)."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._random import gaussian
from lim_jax.adjoint.ledger import CONE, RESIDUAL, regional_channels
from lim_jax.density.measurement import influence
from lim_jax.grid.cells import token_grid
from lim_jax.grid.integrals import inner, integral
from lim_jax.grid.measure import Grid
from lim_jax.grid.partition import boundary_regions
from lim_jax.loss.losses import cross_entropy
from lim_jax.loss.readouts import LinearReadout
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.slots import State
from lim_jax.observability.gramian import observability_gramians


class Counterexample(NamedTuple):
    """A slogan, what refutes it, and the values that show this, by position or region."""

    slogan: str
    because: str
    numbers: dict[str, Float[Array, " values"]]


def masking_without_primacy() -> Counterexample:
    """Return causal attention whose values are zero: the mask is there, its derivative is not."""
    keys = jax.random.split(jax.random.key(0), 4)
    attention = jax.vmap(lambda key: CausalAttention.init(3, key=key))(keys)
    silent = eqx.tree_at(lambda a: a.value, attention, replace_fn=jnp.zeros_like)
    states = gaussian(jax.random.key(1), (6, 8, 3))
    grid = token_grid(8)
    covector = jnp.array([1.0, -2.0, 0.5])

    def loss(flow: ResidualFlow, x: State, y: None) -> Float[Array, ""]:
        """Integrate the last states against one covector."""
        return integral(flow(x, grid) @ covector, grid)

    def density(layers: CausalAttention) -> Float[Array, " length"]:
        """Compute the influence density of a flow of these layers."""
        return _density(loss, ResidualFlow(layers, horizon=4.0), states, grid)

    return Counterexample(
        "A causal mask makes primacy.",
        "With W_V = 0 attention has no derivative, and a uniform terminal covector stays uniform.",
        {"influence density": density(silent), "influence density with values": density(attention)},
    )


def residual_without_recency() -> Counterexample:
    """Return the identity network under uniform teacher forcing: nothing prefers the right."""
    grid = token_grid(4)
    readout = LinearReadout(jnp.eye(2))
    labels = jnp.broadcast_to(jnp.array([[1.0, 0.0]]), (4, 2))

    def loss(flow: ResidualFlow, x: State, y: None) -> Float[Array, ""]:
        """Compute the cross-entropy of the readout."""
        return cross_entropy(readout(flow(x, grid), grid), labels, grid)

    density = _density(loss, _identity(width=2, depth=3), jnp.zeros((1, 4, 2)), grid)
    return Counterexample(
        "Residual connections make recency.",
        "They transmit the terminal covector: even, where queries and residual energies are.",
        {"influence density": density},
    )


def observability_without_influence() -> Counterexample:
    """Return two positions that are equally observed and do not matter equally."""
    grid = token_grid(2)
    flow = _identity(width=2, depth=4)
    covectors = jnp.array([[2.0, 0.0], [1.0, 0.0]])

    def observations(x: State) -> Float[Array, "depth observed"]:
        """Return the states before every layer, each as one vector."""
        return flow.trajectory(x, grid).states[:-1].reshape(4, -1)

    gramians = observability_gramians(observations, jnp.ones((2, 2)), 1 / 4)
    result = influence(
        lambda flow, x, y: inner(covectors, flow(x, grid), grid),
        flow,
        (jnp.ones((1, 2, 2)), None),
        grid,
        boundary_regions(grid, 0.4),
    )
    return Counterexample(
        "Equal observability means equal influence.",
        "Observability is of the dynamics; influence is of the task's covector too.",
        {
            "traces of the Gramians": jnp.trace(gramians, axis1=1, axis2=2),
            "influence energies": result.energy,
        },
    )


def cross_terms_against_a_u_shape() -> Counterexample:
    """Return two U-shaped channels whose sum is the opposite of a U."""
    channels = jnp.array([[1.0, 0.5, 1.0], [-1.0, 0.5, -1.0], [0.0, 0.0, 0.0]])
    regions = boundary_regions(token_grid(3), "1/3")
    by_region = regional_channels(channels[None, :, :, None], regions)
    return Counterexample(
        "U-shaped channels make a U-shaped influence.",
        "Boundary anti-correlation undoes it: the cross terms cannot be left out.",
        {
            "residual energies by region": by_region.energies[:, RESIDUAL],
            "cone energies by region": by_region.energies[:, CONE],
            "influence by region": by_region.totals,
        },
    )


def counterexamples() -> list[Counterexample]:
    """Compute all four counterexamples of `subsec:counterexamples`, in the paper's order.

    Returns
    -------
    list[Counterexample]
        Each a slogan, what refutes it, and by name the numbers that show this.
    """
    return [
        masking_without_primacy(),
        residual_without_recency(),
        observability_without_influence(),
        cross_terms_against_a_u_shape(),
    ]


def _identity(width: int, depth: int) -> ResidualFlow:
    """Return the network whose field is zero."""
    return ResidualFlow(jnp.zeros((depth, width)), step=lambda layer, x, grid, increment: x)


def _density(
    loss: Callable[[ResidualFlow, State, None], Float[Array, ""]],
    flow: ResidualFlow,
    states: Float[Array, "examples length width"],
    grid: Grid,
) -> Float[Array, " length"]:
    """Return the influence density of a loss without labels."""
    return influence(loss, flow, (states, None), grid, boundary_regions(grid, 0.25)).density
