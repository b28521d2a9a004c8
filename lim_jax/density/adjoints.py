r"""The input adjoints of any pure loss, one for each example.

For a loss ``loss(params, x, y)`` of one example, whatever the model behind it, the input adjoint
is the density :math:`P_0(p_i) = \partial_{x_i}\mathrm{loss}/\Delta p_i`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from lim_jax._checks import (
    ARRAYS,
    all_finite,
    described,
    error_if_first,
    require,
    require_auto,
    require_callable,
    require_floating,
)
from lim_jax._precision import promote
from lim_jax.grid.measure import Grid, Scalar, require_grid

Tree = TypeVar("Tree")
Loss = Callable[[Any, Float[Array, "length width"], Any], Scalar]
Ids = Int[Array, "examples length"]
Batch = tuple[Float[Array, "examples length width"] | Ids, PyTree]


class LossOfIds(eqx.Module):
    """A loss of token ids: influence is that of their states, and training moves the embedding.

    Every function of a loss and a batch takes it, with batches ``(ids, y)``, the ids whole numbers
    of shape ``(examples, length)``. Adjoints are gradients in the embedded states, and derivatives
    in the parameters pass through the embedding: a batch embedded outside of them freezes it.

    Attributes
    ----------
    embed
        ``embed(params, ids, y) -> x`` of one example, from ids of shape ``(length,)`` to states of
        shape ``(length, width)``.
    loss
        ``loss(params, x, y) -> scalar`` of the states of one example.

    Examples
    --------
    >>> loss = LossOfIds(lambda table, ids, y: table[ids], lambda table, x, y: jnp.sum(x**2) / 2)
    >>> table, batch = jnp.array([[1.0], [2.0]]), (jnp.array([[0, 1]]), None)
    >>> measured = lambda table: lim.influence(loss, table, batch, lim.token_grid(2))
    >>> measured(table).energy.tolist()  # the states' squares over 1/4
    [4.0, 16.0]
    >>> jax.grad(lambda table: measured(table).total)(table).tolist()
    [[4.0], [8.0]]
    """

    embed: Callable[[Any, Int[Array, " length"], Any], Float[Array, "length width"]]
    loss: Loss

    def __check_init__(self):
        """Raise ValueError unless both fields can be called."""
        require_callable(self.embed, "embed", "embed(params, ids, y) of one example")
        require_callable(self.loss, "loss", "loss(params, x, y) of one example")

    def __call__(self, params: PyTree, ids: Int[Array, " length"], y: PyTree) -> Scalar:
        """Return the loss of one example."""
        return self.loss(params, self.embed(params, ids, y), y)


def embedded(loss: Loss, params: PyTree, batch: Batch) -> tuple[Loss, Batch]:
    """Return a loss and its batch of states; embed ids of `LossOfIds`, so that params move them."""
    require_callable(loss, "loss", "loss(params, x, y) of one example")
    x, y = require_pair(loss, batch)
    if not isinstance(loss, LossOfIds):
        return loss, (x, y)
    return loss.loss, (jax.vmap(loss.embed, in_axes=(None, 0, 0))(params, x, y), y)


def losses_and_adjoints(
    loss: Loss, params: PyTree, batch: Batch, grid: Grid
) -> tuple[Float[Array, " examples"], Float[Array, "examples length width"]]:
    """Compute every example's loss and input adjoint :math:`P_0`, a density, by one gradient.

    Adjoints are float32 at least: a weight of few bits would be off by one factor on equal cells.
    """
    loss, (x, y) = embedded(loss, params, batch)
    value_and_gradient = jax.value_and_grad(scalar_loss(loss), argnums=1)
    losses, gradients = jax.vmap(value_and_gradient, in_axes=(None, 0, 0))(params, x, y)
    return losses, promote(gradients) / grid.in_single_precision.weights[None, :, None]


def adjoint_energies(
    loss: Loss, params: PyTree, batch: Batch, grid: Grid
) -> Float[Array, "examples length"]:
    r"""Compute the energies :math:`\|P_0(p_i)\|^2` of every example, by one gradient each.

    Differentiable to any order in `params` and in the batch.

    Squares of adjoints below the range of a precision are zero, in float32 those of adjoints below
    1e-19, as of an answer of which a network is certain. Where all energies are near 1e-38, so that
    some are zero and others are not, multiply the loss by a number: densities do not change.

    Parameters
    ----------
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `density.LossOfIds`, whose batches hold token ids in place of x.
    params
        The parameters, any pytree.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None where there are no labels.
    grid
        The positions, one for each row of an example.

    Returns
    -------
    Array
        The energies, of shape ``(examples, length)``. The adjoints :math:`P_0` are densities:
        energies are squared Euclidean gradients over :math:`\Delta p_i^2`.

    Raises
    ------
    ValueError
        If the batch is no pair, is empty or does not fit the grid, or the loss returns no scalar.
    EquinoxRuntimeError
        If the batch, the losses or the energies are NaN or infinite.

    Examples
    --------
    >>> loss = lambda weight, x, y: weight * (x[0, 0] + 3 * x[1, 0]) / 2
    >>> adjoint_energies(loss, 1.0, (jnp.zeros((1, 2, 1)), None), lim.token_grid(2)).tolist()
    [[1.0, 9.0]]
    """
    loss, batch = embedded_on(grid, loss, params, batch)
    losses, adjoints = losses_and_adjoints(loss, params, batch, grid)
    energies = jnp.sum(promote(adjoints) ** 2, axis=2)
    return check_finite(energies, batch, losses, energies)


def check_finite(
    result: Tree,
    batch: PyTree,
    losses: Float[Array, " examples"] | None,
    energies: Array | None = None,
) -> Tree:
    """Return a batch's result; its use raises where batch, losses or energies are not finite."""
    cures = {
        "batch": (batch, "Drop or repair the examples that hold them."),
        "loss": (losses, "Check it at this batch: gradients may be finite where a loss is not."),
        "adjoint energies": (energies, "Check the parameters and the loss at this batch."),
    }
    checks = [
        (~all_finite(values), f"{name}: got NaN or infinite values, expected finite ones. {cure}")
        for name, (values, cure) in cures.items()
        if values is not None
    ]
    return error_if_first(result, *checks)


def embedded_on(grid: Grid, loss: Loss, params: PyTree, batch: Batch) -> tuple[Loss, Batch]:
    """Return a loss and its batch of embedded states; raise ValueError unless they fit the grid."""
    require_grid(grid)
    loss, (x, y) = embedded(loss, params, batch)
    require(
        x.ndim == 3 and x.shape[1] == grid.size,
        "batch",
        got=f"x of shape {x.shape}",
        expected=f"(examples, {grid.size}, width), with a row for each position of the grid",
        cure="Give a single example a leading axis: x[None].",
    )
    lengths = {getattr(leaf, "shape", ())[:1] for leaf in jax.tree.leaves((x, y))}
    require(
        lengths == {x.shape[:1]} and x.shape[0] > 0,
        "batch",
        got=f"leading axes {sorted(lengths)}",
        expected="at least one example, the same number in x and in every leaf of y",
        cure="Give each example its own labels, and leave empty batches out.",
    )
    return loss, (x, y)


def scalar_loss(loss: Callable[..., Scalar], name: str = "loss") -> Callable[..., Scalar]:
    """Return the same loss, which raises ValueError while it is traced unless it gives a scalar."""

    def checked(*arguments: Any) -> Scalar:
        """Return the loss; raise ValueError unless it is a scalar."""
        value = loss(*arguments)
        require(
            getattr(value, "shape", None) == (),
            name,
            got=described(value),
            expected="a scalar",
            cure="Average or sum the loss of one example over its positions.",
        )
        return value

    return checked


def require_pair(loss: Loss, batch: Any) -> Batch:
    """Return (x, y), x floats or the ids of `LossOfIds`; raise ValueError otherwise."""
    require(
        isinstance(batch, tuple | list) and len(batch) == 2,
        "batch",
        got=described(batch),
        expected="a pair (x, y)",
        cure="Pass (x, None) where there are no labels.",
    )
    x, y = batch
    array: Any = x
    require_auto(batch, "batch")
    if isinstance(loss, LossOfIds):
        integers = isinstance(array, ARRAYS) and jnp.issubdtype(array.dtype, jnp.integer)
        require(
            integers and array.ndim == 2,
            "batch",
            got=described(x),
            expected="ids, whole numbers of shape (examples, length)",
            cure="Pass embedded states to the loss of states, which LossOfIds holds.",
        )
        return x, y
    require_floating(
        x,
        "batch",
        "Embed ids by density.LossOfIds(embed, loss): influence is a gradient in states.",
    )
    require(
        x.ndim > 0,
        "batch",
        got="x of shape ()",
        expected="(examples, length, width)",
        cure="Put a single example in an array of one: x[None].",
    )
    return x, y
