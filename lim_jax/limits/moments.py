"""Moments that a law may not have: how a sample's grow with the context, and with the sample."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import require, require_floats
from lim_jax.density.adjoints import Batch, Loss
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Grid
from lim_jax.limits.attention import MakeGrid
from lim_jax.limits.refinement import Study, refine
from lim_jax.training.sensitivity import fourth_moments

BLOCKS = 16  # so many means at least stand behind each median


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
    a tail is heavy (`block_mean_study`).

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


def block_mean_study(values: Float[Array, " examples"], source: str = "") -> Study:
    r"""How the mean of a sample grows with the sample's size.

    A sample's mean is finite whatever its law's is: no sample refutes that a moment is finite, such
    as `eq:recency-moment-condition` of :math:`(2c + c^2)\|P_T\|^2`, or `eq:data-fourth-moment`. But
    of a law with a tail like :math:`x^{-\alpha}`, :math:`\alpha < 1`, which has no mean, means of
    n examples grow like :math:`n^{1/\alpha - 1}`. No errors but the median, over blocks of n
    examples, of the block's mean: an order near zero is that of a law with a mean, one of -k a
    growth like :math:`n^k`. The reference's error is that of the last median, from two halves.

    Parameters
    ----------
    values
        One of each example, in no order; 128 at least.
    source
        What they are of.

    Raises
    ------
    ValueError
        Where they are fewer, negative or not finite.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> study = block_mean_study(jnp.ones(128))
    >>> study.refinements, study.errors
    ((1.0, 2.0, 4.0, 8.0), (1.0, 1.0, 1.0, 1.0))
    """
    require_floats(values, "values", "examples")
    known = np.asarray(values, float)
    require(
        known.size >= 8 * BLOCKS and bool(np.all((known >= 0) & (known < np.inf))),
        "values",
        got=f"{known.size} of them, from {known.min():g} to {known.max():g}",
        expected=f"{8 * BLOCKS} or more, finite and not negative",
        cure="A slope needs four sizes of blocks, and each some blocks to take a median of.",
    )

    def median(sample: np.ndarray, size: int) -> float:
        blocks = sample[: len(sample) // size * size].reshape(-1, size)
        return float(np.median(blocks.mean(axis=1)))

    sizes = [2**power for power in range(int(np.log2(known.size / BLOCKS)) + 1)]
    halves = known[: known.size // 2], known[known.size // 2 :]
    first, second = (median(half, sizes[-1]) for half in halves)
    return refine(source, None, sizes, lambda size: median(known, size), abs(first - second))
