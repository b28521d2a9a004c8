"""Moments that a law may not have: how a sample's grow with the context."""

from collections.abc import Callable, Sequence

from jaxtyping import PyTree

from lim_jax.density.adjoints import Batch, Loss
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Grid
from lim_jax.limits.attention import MakeGrid
from lim_jax.limits.refinement import Study, refine
from lim_jax.training.sensitivity import fourth_moments


def fourth_moment_studies(
    make_loss: Callable[[Grid], Loss],
    params: PyTree,
    make_batch: Callable[[Grid], Batch],
    direction: PyTree,
    sizes: Sequence[int],
    make_grid: MakeGrid = token_grid,
) -> dict[str, Study]:
    r"""How the fourth moments of `fourth_moments` grow with the context.

    `rem:l4-sensitivity-practice`: where they do, the squared penalty is to be read at each finite
    length only. No errors but the moments themselves, :math:`\mathbb E\int\|P_0\|^4` as
    ``"adjoint"`` and that of the response to the parameters as ``"sensitivity"``: an order of zero
    is that of a limit in :math:`L^4`, one of -k a growth like :math:`L^k`. The reference's error is
    the largest standard error: moments that are not `resolved` are a few examples' alone, as where
    a tail is heavy (`probes.tail_index`).

    Parameters
    ----------
    make_loss, make_batch
        From a grid to the loss ``loss(params, x, y)`` of its examples, and to these: two at least.
    params, direction
        As in `fourth_moments`.
    sizes
        Four numbers of positions or more.
    make_grid
        The grid of each.

    Examples
    --------
    The last token's loss has the adjoint 0, ..., 0, w L:

    >>> import jax.numpy as jnp
    >>> found = fourth_moment_studies(
    ...     lambda grid: lambda weight, x, y: weight * x[-1, 0],
    ...     jnp.array(2.0),
    ...     lambda grid: (jnp.zeros((2, grid.size, 1)), None),
    ...     jnp.array(1.0),
    ...     (4, 8, 16, 32),
    ... )
    >>> round(found["adjoint"].order.value, 6), found["adjoint"].errors[0]  # 2^4 4^3
    (-3.0, 1024.0)
    """
    grids = {size: make_grid(size) for size in sizes}
    found = {
        size: fourth_moments(make_loss(grid), params, make_batch(grid), grid, direction)
        for size, grid in grids.items()
    }

    def study(name: str) -> Study:
        moments = {size: getattr(of, name) for size, of in found.items()}
        return refine(
            "rem:l4-sensitivity-practice",
            None,
            sizes,
            lambda size: float(moments[size].value),
            max(float(moment.error) for moment in moments.values()),
        )

    return {name: study(name) for name in ("adjoint", "sensitivity")}
