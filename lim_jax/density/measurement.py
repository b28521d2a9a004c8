"""The positional influence density of any pure loss, over a batch or a stream of batches."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from lim_jax._argument_error import Refusal
from lim_jax._checks import AnyPath, in_a_line, require_text
from lim_jax._digest import digest
from lim_jax._jit import filter_jit
from lim_jax._partial_runs import reduced
from lim_jax.density.adjoints import Batch, Loss, adjoint_energies, require_pair
from lim_jax.density.statistics import Influence
from lim_jax.grid.measure import Grid, require_grid
from lim_jax.grid.partition import Regions, boundary_regions, require_regions


def influence(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    regions: Regions | None = None,
    *,
    keep_examples: bool = False,
) -> Influence:
    r"""Measure the positional influence density of a loss over a batch of examples.

    `def:influence`, over the empirical law, of any pure loss: our flows, an Equinox module, a bare
    function. Differentiable to any order in `params` and in the batch.

    Values are checked by callbacks to the host, which `jax.export` refuses ("serialization of
    host_callbacks"). Started with ``EQX_ON_ERROR=off`` in its environment Python exports this and
    every other measurement, of a symbolic number of examples too, without the checks.

    Parameters
    ----------
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `LossOfIds`, whose batches hold token ids in place of x.
    params
        The parameters, any pytree.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None where there are no labels.
    grid
        The positions, one for each row of an example.
    regions
        Where to average; by default the boundary regions of the paper's simulations,
        :math:`\delta = 0.2`. Those that leave positions out give the influence of the others.
    keep_examples
        Whether the result keeps every example's energies, an array of shape ``(examples, length)``;
        it does not by default.

    Returns
    -------
    Influence
        The energies' mean over examples and its scatter; the density, total and indices with their
        standard errors are properties. The adjoints are densities: energies are squared Euclidean
        gradients over :math:`\Delta p_i^2`.

    Raises
    ------
    ValueError
        If the batch is no pair, is empty or does not fit the grid, the loss returns no scalar, or
        the regions are of another grid.
    EquinoxRuntimeError
        If the batch, the losses or the gradients hold a NaN or an infinity.

    Examples
    --------
    >>> loss = lambda weight, x, y: weight * (x[0, 0] + 3 * x[1, 0])
    >>> result = influence(loss, 1.0, (jnp.zeros((4, 2, 1)), None), lim.token_grid(2))
    >>> result.density.tolist(), float(result.total)
    ([0.2, 1.8], 20.0)
    """
    return _influence(loss, params, batch, None, _regions_on(grid, regions), keep_examples)


def influence_stream(
    loss: Loss,
    params: PyTree,
    batches: Iterable[tuple[Float[Array, "_ length width"] | Int[Array, "_ length"], PyTree]],
    grid: Grid,
    regions: Regions | None = None,
    *,
    keep_examples: bool = False,
    checkpoint: AnyPath | None = None,
    run: str = "",
    progress: Callable[[Iterable], Iterable] = iter,
) -> Influence:
    r"""Measure influence over a data set larger than memory: the same result, batch by batch.

    With a checkpoint a stream may be interrupted at any moment: called again with the same
    arguments, or with more batches after the same ones, it gives the same numbers, bit for bit, as
    one that was not.

    Parameters
    ----------
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `LossOfIds`, whose batches hold token ids in place of x.
    params
        The parameters, any pytree.
    batches
        Any iterable of batches ``(x, y)``: x of shape ``(examples, length, width)``, and y any
        pytree with the same leading axis, or None. Those smaller than the first, such as a ragged
        last one, are filled up and what fills them is left out again, so that nothing compiles
        twice. To go on from a checkpoint the iterable must give the same batches again, in the same
        order: those already counted are drawn and compared, and nothing of them is computed.
    grid
        The positions, one for each row of an example.
    regions
        Where to average; by default the boundary regions of the paper's simulations,
        :math:`\delta = 0.2`. Those that leave positions out give the influence of the others.
    keep_examples
        Whether the result keeps every example's energies, an array of shape ``(examples, length)``;
        it does not by default.
    checkpoint
        A file to read, if it exists, and to write after each batch, whole or not at all: some
        :math:`5L` numbers. None by default. The arrays, static fields and plain values of all other
        arguments are compared with those that it was written with.
    run
        A name for what functions and classes of your own compute, such as most losses: the
        checkpoint compares this name and none of their code, so it needs one beside them, and
        another when they change. Empty by default.
    progress
        Wraps the batches, for example ``tqdm.tqdm``; by default it shows nothing.

    Returns
    -------
    Influence
        The influence over all batches, as `influence` returns it for one.

    Raises
    ------
    ValueError
        If there is no batch, one is no pair, is empty or does not fit the grid, the loss returns no
        scalar, the regions are of another grid, or the checkpoint is of another run or damaged.
    EquinoxRuntimeError
        If a batch, its losses or its gradients hold a NaN or an infinity.

    Examples
    --------
    >>> loss = lambda params, x, y: jnp.sum(x**2)
    >>> batches = ((jnp.full((2, 4, 1), size), None) for size in (1.0, 2.0))
    >>> float(influence_stream(loss, None, batches, lim.token_grid(4)).count)
    4.0
    """
    require_text(run, "run")
    regions = _regions_on(grid, regions)
    remaining = iter(progress(batches))
    try:
        first = next(remaining)
    except StopIteration:
        raise Refusal(
            "batches: got none, expected at least one batch. "
            "Make the iterator anew: one that was read before is empty."
        ) from None
    size = require_pair(loss, first)[0].shape[0]

    def measure(batch: Batch) -> Influence:
        """Measure one batch, filled up to the common size, and drop what fills it."""
        filled, counts = _fill_batch(loss, batch, size)
        result = _influence(loss, params, filled, counts, regions, keep_examples)
        energies = result.example_energies
        energies = None if energies is None else energies[: len(batch[0])]
        return replace(result, example_energies=energies)

    all_batches = chain([first], remaining)
    if checkpoint is None:
        return reduce(Influence.merge, map(measure, all_batches))
    named = run != ""
    about = {
        "function": "influence_stream",
        "run": run,
        "regions": in_a_line(regions),
        "keep_examples": str(keep_examples),
        "parameters": digest((loss, params, regions), named=named),
    }
    return reduced(
        measure,
        Influence.merge,
        all_batches,
        checkpoint,
        about,
        lambda saved: Influence(regions, *saved),
        named=named,
    )


def _regions_on(grid: Grid, regions: Regions | None) -> Regions:
    """Return the regions, by default of delta 0.2; raise ValueError if they have another grid."""
    require_grid(grid)
    regions = boundary_regions(grid, 0.2) if regions is None else regions
    require_regions(regions, grid)
    return regions


def _fill_batch(loss: Loss, batch: Batch, size: int) -> tuple[PyTree, Bool[np.ndarray, " filled"]]:
    """Repeat the last example up to a size, and mark the examples that count."""
    require_pair(loss, batch)
    count = batch[0].shape[0]
    missing = size - count
    if count == 0 or missing <= 0:
        return batch, np.ones(count, bool)
    filled = jax.tree.map(
        lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, axis=0)]), batch
    )
    return filled, np.arange(size) < count


@filter_jit
def _influence(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    counts: Bool[Array | np.ndarray, " examples"] | None,
    regions: Regions,
    keep_examples: bool,
) -> Influence:
    """Compute the influence over the examples that count, by one gradient each."""
    energies = adjoint_energies(loss, params, batch, regions.grid)
    counts = jnp.ones(energies.shape[0], bool) if counts is None else jnp.asarray(counts)
    return Influence._from_energies(energies, counts, regions, keep_examples)
