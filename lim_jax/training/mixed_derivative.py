r"""Functions of input adjoints, and how to differentiate them through a model.

A function of input adjoints, differentiated in the parameters, is a mixed derivative. With
:math:`c` the derivative of a functional F in the adjoints,

.. math:: D_\vartheta F(P_0)[\eta] = \langle c, D_\vartheta P_0[\eta]\rangle
          = D_\vartheta\bigl(D_x \mathrm{loss}\cdot c\bigr)[\eta], \qquad c\ \text{held fixed},

so the gradient of F is one forward derivative, along c in the input, of the plain gradient of the
loss. `functional_of_adjoints` has that rule, in a form that forward mode and further derivatives
pass through; `separate_gradients` hands out the loss's own gradient too, of the same pass.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lim_jax._argument_error import Refusal
from lim_jax._checks import require_callable
from lim_jax._errors import translate_errors
from lim_jax._precision import promote
from lim_jax._sharded_axes import varying_as
from lim_jax.density.adjoints import (
    Batch,
    Loss,
    check_finite,
    embedded,
    embedded_on,
    losses_and_adjoints,
)
from lim_jax.grid.measure import Grid

Losses = Float[Array, " examples"]
Adjoints = Float[Array, "examples length width"]
Functional = Callable[[Losses, Adjoints, Any], Any]
CLOSURE = (
    "loss: got a function that closes over what is differentiated, itself or by a function in the "
    "parameters, such as a readout's, expected all of that among the parameters or the batch. "
    "Pass it through params: LinearReadout, or TokenwiseReadout of an Equinox module."
)


@translate_errors()
def functional_of_adjoints(
    functional: Functional,
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    options: PyTree,
    *,
    has_aux: bool = False,
) -> Any:
    r"""Compute a function of losses and input adjoints, to differentiate in the parameters.

    Its value is ``functional(losses, adjoints, options)``. All derivatives are exact: in the
    parameters, the batch and the options, forward, reverse, and nested.

    Parameters
    ----------
    functional
        ``functional(losses, adjoints, options)``, a pure function, which returns a scalar: of
        losses of shape ``(examples,)`` and of adjoints of shape ``(examples, length, width)``,
        which are densities :math:`P_0(p_i) = \partial_{x_i}\mathrm{loss}/\Delta p_i`. What it needs
        and is traced or differentiated comes through `options`.
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``, which
        closes over nothing that is differentiated; or a `density.LossOfIds`, whose batches hold
        token ids in place of x.
    params
        The parameters, any pytree.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None where there are no labels.
    grid
        The positions, one for each row of an example.
    options
        Any pytree, handed on to the functional; None where it needs nothing.
    has_aux
        Whether the functional returns a pair, as `jax.grad` means it: the scalar, and a pytree of
        arrays that is handed out without derivatives. False by default.

    Returns
    -------
    Array or tuple
        The functional's scalar; with `has_aux` the pair of it and what the functional handed out.

    Raises
    ------
    ValueError
        If the functional cannot be called, the batch is no pair, is empty or does not fit the grid,
        the loss returns no scalar, or closes over traced values.
    EquinoxRuntimeError
        If the batch, its losses or the adjoints' energies are NaN or infinite.

    Examples
    --------
    >>> loss = lambda weight, x, y: weight**2 * x.sum()  # P_0 = weight^2 / (1/2)
    >>> energy = lambda losses, adjoints, options: (adjoints**2).mean()
    >>> batch, grid = (jnp.ones((1, 2, 1)), None), lim.token_grid(2)
    >>> jax.grad(lambda w: functional_of_adjoints(energy, loss, w, batch, grid, None))(1.0).item()
    16.0
    """
    require_callable(functional, "functional", "functional(losses, adjoints, options)")
    # Ids are embedded out here, so that the rule sees states that move with the parameters.
    loss, batch = embedded_on(grid, loss, params, batch)

    with_aux = functional if has_aux else lambda *arguments: (functional(*arguments), None)
    try:
        value, aux = _value_and_aux(
            params, batch, options, functional=with_aux, loss=loss, grid=grid
        )
    except jax.errors.UnexpectedTracerError as error:
        raise Refusal(CLOSURE) from error
    return (value, aux) if has_aux else value


@eqx.filter_custom_jvp
def _value_and_aux(params, batch, options, *, functional, loss, grid):
    """Return the functional's value and its auxiliary result, which has no derivative."""
    losses, adjoints = losses_and_adjoints(loss, params, batch, grid)
    result = functional(losses, adjoints, options)
    value, aux = check_finite(result, batch, losses, _energies(adjoints))
    return value, jax.lax.stop_gradient(aux)


@_value_and_aux.def_jvp
@translate_errors()
def _value_and_aux_jvp(primals, tangents, *, functional, loss, grid):
    """Differentiate the functional in parameters, batch and options, by one mixed gradient."""
    params, batch, options = primals
    losses, adjoints = losses_and_adjoints(loss, params, batch, grid)
    value_and_slopes = jax.value_and_grad(functional, argnums=(0, 1), has_aux=True)
    result = value_and_slopes(losses, adjoints, options)
    (value, aux), (a, c) = check_finite(result, batch, losses, _energies(adjoints))
    direction = _direction(c, batch, grid)
    has_tangent = jax.tree.map(lambda t: t is not None, tangents[:2], is_leaf=lambda t: t is None)
    moving, still = eqx.partition((params, batch), has_tangent)

    def losses_at(moving: PyTree, shift: Adjoints) -> Losses:
        """Compute the examples' losses at states that are shifted."""
        params, (x, y) = eqx.combine(moving, still)
        return jax.vmap(loss, in_axes=(None, 0, 0))(params, x + shift, y)

    _, slopes = _mixed_gradient(losses_at, moving, direction, a)
    _, tangent = eqx.filter_jvp(
        lambda options: functional(losses, adjoints, options)[0], (options,), tangents[2:]
    )
    tangent = jnp.zeros_like(value) if tangent is None else tangent
    for slope, change in zip(jax.tree.leaves(slopes), jax.tree.leaves(tangents[:2]), strict=True):
        tangent = tangent + jnp.vdot(slope, change).astype(value.dtype)
    return (value, aux), (tangent, jax.tree.map(jnp.zeros_like, aux))


class RiskAndPenalty(NamedTuple):
    """The values, or the gradients, of the mean loss and of a function of the adjoints."""

    risk: Any
    penalty: Any


@translate_errors()
def separate_gradients(
    functional: Functional,
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    options: PyTree,
    *,
    has_aux: bool = False,
) -> tuple:
    r"""Compute the mean loss, a function of input adjoints, and both gradients, from one pass.

    It is the pass that gives the gradient of their sum.

    Parameters
    ----------
    functional
        ``functional(losses, adjoints, options)``, a pure function, which returns the penalty, a
        scalar: of losses of shape ``(examples,)`` and of adjoints of shape
        ``(examples, length, width)``, which are densities
        :math:`P_0(p_i) = \partial_{x_i}\mathrm{loss}/\Delta p_i`.
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `density.LossOfIds`, whose batches hold token ids in place of x.
    params
        The parameters, any pytree; gradients are in its floating-point arrays.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None where there are no labels.
    grid
        The positions, one for each row of an example.
    options
        Any pytree, handed on to the functional; None where it needs nothing.
    has_aux
        Whether the functional returns a pair, as `jax.grad` means it: the scalar, and a pytree of
        arrays that is handed out without derivatives. False by default.

    Returns
    -------
    values : RiskAndPenalty
        The mean loss and the functional's scalar, as ``.risk`` and ``.penalty``.
    gradients : RiskAndPenalty
        Their gradients in the floating-point arrays of `params`, with None in place of other
        leaves.
    aux : PyTree
        What the functional handed out; only with `has_aux`.

    Raises
    ------
    ValueError
        If the functional cannot be called, the batch is no pair, is empty or does not fit the grid,
        or the loss returns no scalar.
    EquinoxRuntimeError
        If the batch, its losses or the adjoints' energies are NaN or infinite.

    Examples
    --------
    >>> loss = lambda weight, x, y: weight**2 * x.sum()  # P_0 = weight^2 / (1/2)
    >>> energy = lambda losses, adjoints, options: (adjoints**2).mean()
    >>> batch, grid = (jnp.ones((1, 2, 1)), None), lim.token_grid(2)
    >>> values, gradients = separate_gradients(energy, loss, jnp.array(1.0), batch, grid, None)
    >>> [float(value) for value in (*values, *gradients)]
    [2.0, 4.0, 4.0, 16.0]
    """
    require_callable(functional, "functional", "functional(losses, adjoints, options)")
    loss_of_states, states = embedded_on(grid, loss, params, batch)
    losses, adjoints = losses_and_adjoints(loss_of_states, params, states, grid)
    with_aux = functional if has_aux else lambda *arguments: (functional(*arguments), None)
    slopes = jax.value_and_grad(with_aux, argnums=(0, 1), has_aux=True)
    result = losses, slopes(losses, adjoints, options)
    losses, ((penalty, aux), (a, c)) = check_finite(result, states, losses, _energies(adjoints))
    moving, still = eqx.partition(params, eqx.is_inexact_array)

    def losses_at(moving: PyTree, shift: Adjoints) -> Losses:
        """Compute the examples' losses at states, or embedded ids, that are shifted."""
        params = eqx.combine(moving, still)
        loss_of_states, (x, y) = embedded(loss, params, batch)
        return jax.vmap(loss_of_states, in_axes=(None, 0, 0))(params, x + shift, y)

    total, penalty_gradient = _mixed_gradient(losses_at, moving, _direction(c, states, grid), a)
    risk_gradient = jax.tree.map(lambda leaf: leaf / len(losses), total)
    values = RiskAndPenalty(losses.mean(), penalty)
    gradients = RiskAndPenalty(risk_gradient, penalty_gradient)
    return (values, gradients, aux) if has_aux else (values, gradients)


def _energies(adjoints: Adjoints) -> Float[Array, "examples length"]:
    """Compute the adjoints' squared norm at every position."""
    return (promote(adjoints) ** 2).sum(axis=2)


def _direction(slope: Adjoints, batch: Batch, grid: Grid) -> Adjoints:
    """Return the direction c / weights: <c, P_0> is the loss's derivative along it."""
    return (slope / grid.in_single_precision.weights[None, :, None]).astype(batch[0].dtype)


def _mixed_gradient(
    losses_at: Callable[[PyTree, Adjoints], Losses],
    moving: PyTree,
    direction: Adjoints,
    weights: Losses,
) -> tuple[PyTree, PyTree]:
    """Return the gradients of the losses' sum and of its slope along direction and weights."""
    # Inside `jax.shard_map` a gradient in what all devices hold would be the sum over them.
    moving = varying_as(moving, (direction, weights))

    def gradient(shift: Adjoints, factors: Losses) -> PyTree:
        """Compute the parameters' gradient of a weighted sum of losses at shifted states."""
        return jax.grad(lambda moving: factors @ losses_at(moving, shift))(moving)

    at = jnp.zeros_like(direction), jnp.ones_like(weights)
    return jax.jvp(gradient, at, (direction, weights))
