r"""The two slots of a field.

A field is evaluated as ``field(x, context, grid)``, on states of one example: queries and
everything tokenwise come from `x`, keys and values from `context`. The vector field of the depth
flow is its diagonal; the two partial derivatives are the local operator and the Volterra kernel.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax.grid.measure import Grid, require_on_grid

State = Float[Array, "length width"]
Field = Callable[[State, State, Grid], State]
EMBED = "Embed the input in the layers' width, or build the layers with the input's."


def require_pair(x: State, context: State, grid: Grid, width: int) -> None:
    """Raise ValueError where either slot's states do not fit the grid or the layer's width."""
    require_on_grid(x, grid, "x", "length width", EMBED, width=width)
    require_on_grid(context, grid, "context", "length width", EMBED, width=width)


def log_weights_by_head(grid: Grid, heads: int) -> Float[Array, "heads length"] | None:
    """Return each head's log weights: the grid's first ones if it has more heads than the layer."""
    log_weights = grid.log_weights
    if log_weights is None:
        return None
    if log_weights.ndim == 2:
        # `SumOfFields` hands each field the rows from its own first head on.
        return log_weights[:heads]
    return jnp.broadcast_to(log_weights, (heads, grid.size))
