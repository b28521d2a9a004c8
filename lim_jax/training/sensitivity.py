r"""How strongly input adjoints answer the parameters, which the continuum's squared penalty asks.

`prop:influence-l2-differentiability` supposes that :math:`\vartheta \mapsto P_0` is differentiable
into :math:`L^4` over the data and position, with a bounded derivative: these are the numbers that
must stay bounded as the context grows (`rem:l4-sensitivity-practice`).
"""

import math
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from lim_jax._checks import (
    ARRAYS,
    as_int,
    described,
    error_if,
    error_if_not_finite,
    is_real,
    require,
    require_key,
)
from lim_jax._jit import filter_jit
from lim_jax._precision import norm, normalise, promote, unit_of
from lim_jax._random import gaussian
from lim_jax.adjoint.certificate import Premise
from lim_jax.density.adjoints import (
    Batch,
    Loss,
    check_finite,
    embedded,
    embedded_on,
    losses_and_adjoints,
)
from lim_jax.grid.measure import Grid, Scalar
from lim_jax.probes import Estimate, sample_mean, tail_index

Losses = Float[Array, " examples"]
Vectors = Float[Array, "examples length width"]
Energies = Float[Array, "examples length"]


class FourthMoments(NamedTuple):
    r"""What the continuum's squared penalty asks of the data (`rem:l4-sensitivity-practice`).

    `fourth_moments` returns it; `sensitivity_norm` looks for the direction in which the second one
    is largest.

    Attributes
    ----------
    adjoint
        :math:`\mathbb E\int\|P_0\|^4`, an `Estimate`: the mean over examples and its standard
        error.
    sensitivity
        :math:`\mathbb E\int\|D_\vartheta P_0[\eta]\|^4` over :math:`\|\eta\|^4`, along one
        direction, an `Estimate` too.
    """

    adjoint: Estimate
    sensitivity: Estimate


@filter_jit
def fourth_moments(
    loss: Loss, params: PyTree, batch: Batch, grid: Grid, direction: PyTree
) -> FourthMoments:
    r"""Estimate the fourth moments behind `prop:influence-l2-differentiability`.

    Where they grow with the context (`limits.fourth_moment_studies`), or have a heavy tail
    (`probes.tail_index`), the squared penalty is to be read at finite length only.

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
    direction
        :math:`\eta`, a pytree of the shapes and dtypes of the parameters' floating-point arrays,
        such as the gradient of the risk. It is scaled to Euclidean norm one.

    Returns
    -------
    FourthMoments
        Those of the adjoints :math:`P_0`, which are densities, and of their derivative along the
        unit direction.

    Raises
    ------
    ValueError
        If the batch is no pair, is empty or does not fit the grid, the loss returns no scalar, or
        `direction` does not fit the parameters.
    EquinoxRuntimeError
        If the batch, its losses, their adjoints or `direction` are NaN or infinite, or
        `direction` is zero.

    Examples
    --------
    >>> loss = lambda weight, x, y: weight * x.sum() / 2
    >>> batch = jnp.zeros((2, 2, 1)), None
    >>> moments = fourth_moments(loss, jnp.array(2.0), batch, lim.token_grid(2), jnp.array(3.0))
    >>> float(moments.adjoint.value), float(moments.sensitivity.value)
    (16.0, 1.0)
    """

    def moment(vectors: Vectors) -> Estimate:
        """Estimate the mean of the vectors' fourth power, integrated over positions."""
        fourth_powers = (promote(vectors) ** 2).sum(axis=2) ** 2
        return sample_mean(fourth_powers @ promote(grid.weights))

    adjoints, slopes, losses = _adjoints_and_slopes(loss, params, batch, grid, direction)
    adjoints, slopes = check_finite((adjoints, slopes), batch, losses, adjoints)
    return FourthMoments(moment(adjoints), moment(slopes))


def penalty_premises(
    loss: Loss, params: PyTree, batch: Batch, grid: Grid, direction: PyTree
) -> tuple[Premise, ...]:
    r"""Check in a batch what the propositions behind the penalties suppose.

    Four premises, as certificates report theirs:

    - the data's fourth moments are finite, :math:`\mathbb E[\|X_0\|^4 + \|Y\|^4] < \infty`
      (`eq:data-fourth-moment`, of `prop:influence-differentiability`);
    - so are those of the adjoints, and of their response to the parameters along one direction
      (`eq:adjoint-l4-sensitivity-assumption`, of `prop:influence-l2-differentiability`);
    - :math:`Z \ge z_0 > 0` (`eq:influence-normalization-away-from-zero`).

    A sample's moments are always finite, so the first three are at best not refuted: their value is
    the tail index of the sizes (`probes.tail_index` of their fourth powers, four times), and they
    hold where it is above 4 by two of its standard errors and no example carries half of the sum.
    That is never so of fewer than 25 examples, and Gaussian ones take some 1,000. With 10,000 of
    Pareto tails of 3.5, 3 or 2.5, which have no fourth moment, none of 200 samples passed, and 2 in
    100 with tails of 4. :math:`Z` holds where its mean is more than two standard errors above zero.
    Where a premise does not hold, read the squared penalty at this length and on these data only.

    Works on known numbers: not under jit.

    Parameters
    ----------
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `density.LossOfIds`, whose batches hold token ids in place of x.
    params
        The parameters, any pytree.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None. Labels count where they are floating point: their integral over position if
        they have one value for each, else their sum.
    grid
        The positions, one for each row of an example.
    direction
        :math:`\eta`, a pytree of the shapes and dtypes of the parameters' floating-point arrays,
        such as the gradient of the risk. It is scaled to Euclidean norm one.

    Returns
    -------
    tuple of Premise
        The four premises, each with its ``statement``, its ``value``, and whether it ``holds``: of
        the data, the adjoints, their response, and :math:`Z`.

    Raises
    ------
    ValueError
        If the batch is no pair, is empty or does not fit the grid, the loss returns no scalar, or
        `direction` does not fit the parameters.
    EquinoxRuntimeError
        If the batch, its losses, their adjoints or `direction` are NaN or infinite, or
        `direction` is zero.

    Examples
    --------
    >>> loss = lambda weight, x, y: weight * y * x.sum() / 2
    >>> batch = jnp.ones((3, 2, 1)), jnp.array([1.0, 1.0, 10.0])
    >>> premises = penalty_premises(loss, jnp.array(2.0), batch, lim.token_grid(2), jnp.array(1.0))
    >>> [premise.holds for premise in premises]
    [False, False, False, False]
    """
    squares = _squared_sizes(loss, params, batch, grid, direction)
    data, adjoints, slopes, weights = (np.asarray(each, float) for each in (*squares, grid.weights))
    total = sample_mean(jnp.asarray(adjoints @ weights))
    fourths = {
        "E(|X_0|^4 + |Y|^4) is finite": (data**2).sum(axis=1),
        "E int |P_0|^4 is finite": adjoints**2 @ weights,
        "E int |D P_0|^4 is finite along the direction": slopes**2 @ weights,
    }
    finite = [_moment_premise(name, each) for name, each in fourths.items()]
    away = bool(total.value > 2 * total.error)
    return (*finite, Premise("Z > 0, beyond two standard errors", float(total.value), away))


def _moment_premise(name: str, fourths: Float[np.ndarray, " examples"]) -> Premise:
    """Judge by tail index and largest share whether fourth powers may have a finite mean."""
    # Over their sum, so that float32 can hold them.
    shares = fourths / max(fourths.sum(), np.finfo(float).tiny)
    # A size's tail index is four times that of its fourth power.
    index = 4 * float(tail_index(jnp.asarray(shares)).value)
    num_largest = math.isqrt(shares.size)  # as `tail_index` takes; its error is index/sqrt of it
    least_index = index * (1 - 2 / math.sqrt(num_largest))  # not above 4 for few examples
    one_holds_half = float(shares.max()) >= 0.5
    return Premise(
        f"{name}: not refuted, by a tail index (Hill, {num_largest} largest) two standard errors "
        "above 4 and no example that carries half of it",
        index,
        least_index > 4 and not one_holds_half,
    )


def adjoint_growth(
    loss: Loss, params: PyTree, batch: Batch, grid: Grid, direction: PyTree
) -> Float[Array, " examples"]:
    r"""Measure the constant of `eq:adjoint-parameter-uniform-bound` at every example.

    .. math:: \frac{\|P_0\|^2 + \|D_\vartheta P_0[\eta]\|^2}{1 + \|X_0\|^2 + \|Y\|^2},
              \qquad \|\eta\| = 1

    No :math:`C_{U,T}` is smaller. Values that grow with the size of the data, with the context or
    along training say that there is none.

    Parameters
    ----------
    loss
        ``loss(params, x, y)``, a scalar for one example, with x of shape ``(length, width)``; or a
        `density.LossOfIds`, whose batches hold token ids in place of x.
    params
        The parameters, any pytree.
    batch
        ``(x, y)``: x of shape ``(examples, length, width)``, and y any pytree with the same leading
        axis, or None. Labels count where they are floating point: their integral over position if
        they have one value for each, else their sum.
    grid
        The positions, one for each row of an example.
    direction
        :math:`\eta`, a pytree of the shapes and dtypes of the parameters' floating-point arrays,
        such as the gradient of the risk. It is scaled to Euclidean norm one.

    Returns
    -------
    Array
        The ratio at each example, of shape ``(examples,)``. Norms over position are integrals.

    Raises
    ------
    ValueError
        If the batch is no pair, is empty or does not fit the grid, the loss returns no scalar, or
        `direction` does not fit the parameters.
    EquinoxRuntimeError
        If the batch, its losses, their adjoints or `direction` are NaN or infinite, or
        `direction` is zero.

    Examples
    --------
    >>> loss = lambda weight, x, y: weight * x.sum() / 2
    >>> batch = jnp.ones((1, 2, 1)), None
    >>> adjoint_growth(loss, jnp.array(3.0), batch, lim.token_grid(2), jnp.array(1.0)).tolist()
    [5.0]
    """
    data, adjoints, slopes = _squared_sizes(loss, params, batch, grid, direction)
    return (adjoints + slopes) @ promote(grid.weights) / (1 + data.sum(axis=1))


@filter_jit
def _squared_sizes(
    loss: Loss, params: PyTree, batch: Batch, grid: Grid, direction: PyTree
) -> tuple[Float[Array, "examples 2"], Energies, Energies]:
    """Compute the squared norms of inputs and labels, and of adjoints and slopes by position."""
    *vectors, losses = _adjoints_and_slopes(loss, params, batch, grid, direction)
    adjoints, slopes = promote(vectors)
    _, (x, y) = embedded(loss, params, batch)
    x, y = promote((x, y))
    labels = [
        _label_squares(leaf, grid) for leaf in jax.tree.leaves(y) if eqx.is_inexact_array(leaf)
    ]
    data = [(x**2).sum(axis=2) @ promote(grid.weights), sum(labels, jnp.zeros(len(x), x.dtype))]
    squares = jnp.stack(data, axis=1), (adjoints**2).sum(axis=2), (slopes**2).sum(axis=2)
    return check_finite(squares, batch, losses, adjoints)


def _label_squares(leaf: Float[Array, "examples ..."], grid: Grid) -> Float[Array, " examples"]:
    """Return every example's squared norm, an integral if the leaf has an axis of positions."""
    squares = (leaf**2).reshape(leaf.shape[0], -1)
    if leaf.ndim < 2 or leaf.shape[1] != grid.weights.size:
        return squares.sum(axis=1)
    return squares.reshape(*leaf.shape[:2], -1).sum(axis=2) @ promote(grid.weights)


class SensitivityNorm(NamedTuple):
    r"""The operator norm that `sensitivity_norm` found at each step, and where.

    Attributes
    ----------
    values
        :math:`\|D_\vartheta P_0[\eta]\|_{L^p}` at each step's unit direction.
    direction
        The unit direction of the last value, a pytree like the parameters' floating-point arrays.
    """

    values: Float[Array, " steps"]
    direction: PyTree


@filter_jit
def sensitivity_norm(
    loss: Loss,
    params: PyTree,
    batch: Batch,
    grid: Grid,
    *,
    exponent: Literal[2, 4] = 4,
    steps: int = 50,
    key: Key[Array, ""],
) -> SensitivityNorm:
    r"""Look for :math:`\|D_\vartheta P_0\|` from parameters into :math:`L^p` of data and position.

    .. math:: \|Q\|_{L^p}^p = \mathbb E\int_0^1 \|Q(p)\|^p\,\mathrm dp, \qquad
              \eta \leftarrow S^*(\|S\eta\|^{p-2}S\eta)\ \text{over its size}, \quad
              S = D_\vartheta P_0

    The power method, which for p = 2 tends to the largest singular value. For p = 4
    (`eq:adjoint-l4-sensitivity-assumption`) values never fall, but may settle at a local maximum.
    Either way the value is a lower bound of the norm, of the batch's empirical law.

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
    exponent
        p, 2 or 4; 4 by default.
    steps
        How many steps to take, each a Jacobian-vector and a vector-Jacobian product; 50 by default.
    key
        A single random key, ``jax.random.key(seed)``, from which the first direction is drawn:
        another one is another start.

    Returns
    -------
    SensitivityNorm
        ``values``, the norm at each step's unit direction, of which the last is the answer, and its
        ``direction``, a pytree like the parameters' floating-point arrays.

    Raises
    ------
    ValueError
        If the batch is no pair, is empty or does not fit the grid, the loss returns no scalar,
        `exponent` is neither 2 nor 4, `steps` is no whole number of at least 1, or `key` is no key.
    EquinoxRuntimeError
        If the batch, its losses or their adjoints are NaN or infinite.

    Examples
    --------
    >>> loss = lambda weight, x, y: (jnp.array([3.0, 4.0]) @ weight) * x.sum() / 2
    >>> batch, key = (jnp.zeros((2, 2, 1)), None), jax.random.key(0)
    >>> norm = sensitivity_norm(loss, jnp.zeros(2), batch, lim.token_grid(2), steps=3, key=key)
    >>> round(float(norm.values[-1]), 5), (10 * jnp.abs(norm.direction)).round(4).tolist()
    (5.0, [6.0, 8.0])
    """
    accepted = is_real(exponent) and exponent in (2, 4)
    require(
        accepted,
        "exponent",
        got=described(exponent),
        expected="2 or 4",
        cure="Leave it out for 4, that of eq:adjoint-l4-sensitivity-assumption.",
    )
    require_key(key)
    steps = as_int(steps, "steps")
    arrays, adjoints = _adjoints_of_arrays(loss, params, batch, grid)
    initial_adjoints, push, losses = jax.linearize(adjoints, arrays, has_aux=True)
    _, pull, _ = jax.vjp(adjoints, arrays, has_aux=True)
    leaves, tree = jax.tree.flatten(arrays)
    keys = jax.random.split(key, len(leaves))
    weights = promote(grid.weights)
    start = [gaussian(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]

    def step(pair: tuple[PyTree, PyTree], _: None) -> tuple[tuple[PyTree, PyTree], Scalar]:
        """Take one step of the power iteration, and return the norm of the image."""
        direction, _ = pair
        image = push(direction)
        unit = unit_of(image)  # by which powers neither under- nor overflow
        relative = promote(image) / unit
        squares = (relative**2).sum(axis=2, keepdims=True)
        value = sample_mean(squares[..., 0] ** (exponent / 2) @ weights).value
        powers = squares ** (exponent / 2 - 1)
        cotangent = weights[None, :, None] * powers * relative
        (gradient,) = pull(cotangent.astype(image.dtype))
        return (normalise(gradient), direction), unit * value ** (1 / exponent)

    first = normalise(jax.tree.unflatten(tree, start))
    (_, direction), values = jax.lax.scan(step, (first, first), length=steps)
    return check_finite(SensitivityNorm(values, direction), batch, losses, initial_adjoints)


def _adjoints_of_arrays(loss: Loss, params: PyTree, batch: Batch, grid: Grid):
    """Return the parameters' arrays, and a function from these to adjoints and losses."""
    embedded_on(grid, loss, params, batch)
    arrays, static = eqx.partition(params, eqx.is_inexact_array)

    def adjoints(arrays: PyTree) -> tuple[Vectors, Losses]:
        """Compute the adjoints as a function of the parameters' arrays, and the losses."""
        losses, adjoints = losses_and_adjoints(loss, eqx.combine(arrays, static), batch, grid)
        return adjoints, losses

    return arrays, adjoints


def _adjoints_and_slopes(
    loss: Loss, params: PyTree, batch: Batch, grid: Grid, direction: PyTree
) -> tuple[Vectors, Vectors, Losses]:
    """Return the adjoints, their derivative along a unit direction, and the losses."""
    arrays, adjoints = _adjoints_of_arrays(loss, params, batch, grid)
    direction = as_direction(direction, arrays)
    direction = error_if(
        direction,
        norm(direction) == 0,
        "direction: got zeros, expected a direction, which is scaled to norm one. Pass one that is "
        "not zero, such as the risk's gradient.",
    )
    direction = normalise(direction)
    return jax.jvp(adjoints, (arrays,), (direction,), has_aux=True)


def as_direction(direction: Any, arrays: PyTree) -> PyTree:
    """Return a direction in parameters; raise at other shapes or dtypes, NaN and infinity."""
    pairs = zip(jax.tree.leaves(direction), jax.tree.leaves(arrays), strict=False)
    fits = jax.tree.structure(direction) == jax.tree.structure(arrays) and all(
        isinstance(leaf, ARRAYS) and leaf.shape == array.shape and leaf.dtype == array.dtype
        for leaf, array in pairs
    )
    require(
        fits,
        "direction",
        got=described(direction),
        expected="arrays with the shapes and dtypes of those of the parameters",
        cure="Pass a tree with an array for each of them, such as the risk's gradient.",
    )
    return error_if_not_finite(direction, "direction")
