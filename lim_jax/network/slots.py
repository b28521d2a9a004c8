r"""The two slots of a field.

A field is evaluated as ``field(x, context, grid)``: queries and everything tokenwise come from
`x`, keys and values from `context`. The vector field of the depth flow is its diagonal
``field(x, x, grid)``; the two partial derivatives are the local operator and the Volterra kernel.

States are arrays of shape ``(length, width)``, one example at a time; `vmap` for a batch.
"""

from collections.abc import Callable

from jaxtyping import Array, Float

from lim_jax.grid.measure import Grid, require_on_grid

State = Float[Array, "length width"]
Field = Callable[[State, State, Grid], State]
EMBED = "Embed the input in the layers' width, or build the layers with the input's."


def require_pair(x: State, context: State, grid: Grid, width: int) -> None:
    """Raise ValueError where queries' or keys' states fit neither the grid nor the layer."""
    require_on_grid(x, grid, "x", "length width", EMBED, width=width)
    require_on_grid(context, grid, "context", "length width", EMBED, width=width)
