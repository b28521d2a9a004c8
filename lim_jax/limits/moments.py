"""Fourth moments that may not exist in the limit: how a sample's grow with the context."""

from collections.abc import Callable, Sequence

from jaxtyping import PyTree

from lim_jax.density.adjoints import Batch, Loss
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Grid
from lim_jax.limits.attention_error import MakeGrid
from lim_jax.limits.refinement import Study, refine, require_rising
from lim_jax.training.sensitivity import fourth_moments


def fourth_moment_studies(
    make_loss: Callable[[Grid], Loss],
    params: PyTree,
    make_batch: Callable[[Grid], Batch],
    direction: PyTree,
    sizes: Sequence[int],
    make_grid: MakeGrid = token_grid,
) -> dict[str, Study]:
    r"""Measure how the moments of `fourth_moments` grow with the context.

    `rem:l4-sensitivity-practice`: where they grow, the squared penalty is meaningful at each finite
    length only. The studies' errors are the moments themselves: order zero means a limit in
    :math:`L^4`, order -k a growth like :math:`L^k`. The reference's error is the largest standard
    error: if a study is not `resolved`, a few examples dominate its moments.

    Parameters
    ----------
    make_loss
        From a grid to the loss ``loss(params, x, y)`` of one example: its input, (length, width),
        and its label.
    params
        The parameters :math:`\vartheta`, a pytree.
    make_batch
        From a grid to a batch: inputs, (examples, length, width), and labels with as many rows, or
        None. Two examples at least.
    direction
        The direction :math:`\eta` in which the adjoints are differentiated, of the structure of the
        parameters' floating-point arrays. It is scaled to length one.
    sizes
        The refinements: numbers of positions, for which `make_grid` makes the grids. A fitted order
        takes four or more.
    make_grid
        From a size to its grid; by default `token_grid`.

    Returns
    -------
    dict[str, Study]
        ``"adjoint"``, of :math:`\mathbb E\int\|P_0\|^4`, and ``"sensitivity"``, that of the
        response of :math:`P_0` to the parameters.

    Raises
    ------
    ValueError
        If sizes are not whole numbers that rise, or the loss, the batch or the direction does not
        fit the parameters or the grid.

    Examples
    --------
    The last token's loss has the adjoint 0, ..., 0, w L:

    >>> import jax.numpy as jnp
    >>> studies = fourth_moment_studies(
    ...     lambda grid: lambda weight, x, y: weight * x[-1, 0],
    ...     jnp.array(2.0),
    ...     lambda grid: (jnp.zeros((2, grid.size, 1)), None),
    ...     jnp.array(1.0),
    ...     (4, 8, 16, 32),
    ... )
    >>> round(studies["adjoint"].order.value, 6), studies["adjoint"].errors[0]  # 2^4 4^3
    (-3.0, 1024.0)
    """
    require_rising(sizes, "sizes")
    by_size = [
        fourth_moments(make_loss(grid), params, make_batch(grid), grid, direction)
        for grid in map(make_grid, sizes)
    ]

    def growth(name: str) -> Study:
        """Study how one of the two moments grows with the size."""
        moments = [getattr(both, name) for both in by_size]
        error = max(float(moment.error) for moment in moments)
        values = [moment.value for moment in moments]
        study = refine("rem:l4-sensitivity-practice", None, sizes, values, error)
        return study._replace(ylabel="fourth moment (in the quantity's unit)")

    return {name: growth(name) for name in ("adjoint", "sensitivity")}
