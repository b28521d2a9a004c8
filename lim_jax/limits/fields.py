"""The fields that limits are measured on: of position, and matrices from fixed seeds."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax.grid.integrals import inner
from lim_jax.grid.measure import Grid
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.norms import LayerNorm
from lim_jax.network.slots import State

WIDTH = 3


def smooth_states(p: Float[Array, " points"]) -> Float[Array, "points 3"]:
    """Return the states of a smooth test field at positions p."""
    return jnp.stack([jnp.sin(3 * p) + 0.3, jnp.cos(5 * p), p**2 - 0.4 * jnp.sin(7 * p)], axis=1)


def right_biased(p: Float[Array, " points"]) -> Float[Array, " points"]:
    """Return a query density of integral one that grows to the right."""
    return 0.4 + 1.8 * p**2


def smooth_labels(p: Float[Array, " points"]) -> Float[Array, "points 3"]:
    """Return three probabilities that vary with position."""
    return jnp.stack([0.2 + 0.3 * p, 0.5 - 0.2 * p**2, 0.3 - 0.3 * p + 0.2 * p**2], axis=1)


def gaussian_attention(seed: int, layers: int = 1) -> CausalAttention:
    """Make stacked attention layers of Gaussian queries, keys and values, and identity outputs."""
    generator = np.random.default_rng(seed)

    def normal() -> Array:
        """Draw a matrix of standard normal numbers."""
        return jnp.asarray(generator.standard_normal((1, WIDTH, WIDTH)))

    def layer() -> CausalAttention:
        """Draw one attention layer."""
        norm = LayerNorm(jnp.ones(WIDTH), jnp.zeros(WIDTH), 0.1)
        return CausalAttention(norm, normal(), normal(), normal(), jnp.eye(WIDTH)[None])

    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[layer() for _ in range(layers)])


def averaging_attention() -> CausalAttention:
    """Return causal averaging of one feature: no norm, no scores.

    Returns
    -------
    CausalAttention
        One head of width 1 whose query and key are zero and whose value and output are one, so that
        a row of its output is the mean of the rows up to its own.

    Examples
    --------
    >>> x = jnp.array([[1.0], [3.0], [5.0]])
    >>> averaging_attention()(x, x, lim.token_grid(3)).tolist()
    [[1.0], [2.0], [3.0]]
    """
    matrix = jnp.ones((1, 1, 1))
    return CausalAttention(eqx.nn.Identity(), 0 * matrix, 0 * matrix, matrix, matrix)


def terminal_loss(x: State, grid: Grid) -> Float[Array, ""]:
    """Return the inner product of the state and a smooth covector, which is P_T."""
    p = grid.nodes
    covector = jnp.stack([jnp.cos(3 * p) + 1, jnp.sin(2 * p) + 0.5, p], axis=1)
    return inner(covector, x, grid)
