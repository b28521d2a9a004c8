r"""What penalties cost: how far they move a minimiser, and how far off a batch's density is."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import lineax
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import (
    as_finite,
    as_finite_nonnegative,
    as_nonnegative,
    described,
    error_if,
    error_if_got,
    error_if_not_finite,
    is_real,
    require,
    require_callable,
    require_scalar,
)
from lim_jax._errors import translate_errors
from lim_jax._jit import filter_jit
from lim_jax._precision import norm, promote
from lim_jax.grid.measure import Grid, Scalar, require_on_grid

PerPosition = Float[Array, " length"]


@filter_jit
def ratio_bias(
    energies: Float[Array, "examples length"], grid: Grid, *, epsilon: Scalar | float = 0.0
) -> PerPosition:
    r"""Estimate by the jackknife how far off a batch's density is on average.

    The density of a batch is a ratio of means, whose mean over batches is not the ratio of the
    means: the paper's remark after Algorithm 1,

    .. math:: \mathbb E\Bigl[\frac{\hat I}{\hat Z + \epsilon_{inf}}\Bigr]
              \ne \frac{I}{Z + \epsilon_{inf}}

    With the density :math:`\hat m` of all B examples and :math:`\hat m_{-b}` of all but one, the
    difference of the two sides is on average, up to :math:`O(B^{-2})`,

    .. math:: (B - 1)\Bigl(\frac1B\sum_b \hat m_{-b} - \hat m\Bigr)

    Compare it with what a penalty is to tell apart, to see whether batches are large enough, or
    subtract it from the density. It is the bias of `balanced_density`, not of other estimators.
    Works under jit, vmap, grad and jvp.

    Parameters
    ----------
    energies
        Every example's energy at every position, of shape ``(examples, length)``, as
        `density.adjoint_energies` returns them; at least two examples.
    grid
        Their positions.
    epsilon
        :math:`\epsilon_{inf}`, which a `Penalty` has as 1e-8.

    Returns
    -------
    Array
        The estimated bias at each position, of shape ``(length,)``. Its integral is zero where
        `epsilon` is.

    Raises
    ------
    ValueError
        If there are fewer than two examples, or not one column for each position.
    EquinoxRuntimeError
        If an energy is negative, infinite or NaN, or `epsilon` is zero and all examples but one
        have no energy: a density without that one is unknown.

    Examples
    --------
    >>> ratio_bias(jnp.array([[1.0, 3.0], [1.0, 3.0]]), lim.token_grid(2)).tolist()  # all alike
    [0.0, 0.0]
    >>> ratio_bias(jnp.array([[1.0, 1.0], [0.0, 4.0]]), lim.token_grid(2)).round(3).tolist()
    [0.167, -0.167]
    """
    require_on_grid(energies, grid, "energies", "examples length")
    require(
        len(energies) > 1,
        "energies",
        got="one example",
        expected="at least two",
        cure="Enlarge the batch: the jackknife leaves one example out at a time.",
    )
    epsilon = as_finite_nonnegative(epsilon, "epsilon")
    energies = as_nonnegative(
        energies, "energies", "Pass squares of adjoints, such as Influence.example_energies."
    )
    energies = promote(error_if_not_finite(energies, "energies"))

    count = len(energies)
    totals = energies @ grid.in_single_precision.weights + epsilon
    others = jnp.where(jnp.eye(count, dtype=bool), 0, totals[None, :]).sum(axis=1)
    others = error_if(
        others,
        others <= 0,
        "energies: got only one example with some above zero, expected two at least. Enlarge the "
        "batch, or take an epsilon above zero: the jackknife leaves out each in turn.",
    )
    density = energies.sum(axis=0) / totals.sum()
    # What leaving b out changes is (density * totals_b - energies_b) / others_b, and these
    # numerators add up to zero: so no densities that differ by 1/B are subtracted.
    excess = totals[:, None] * density[None, :] - energies
    return (count - 1) / count * (totals / others) @ excess / totals.sum()


@translate_errors()
def parameter_shift(
    risk: Callable[[PyTree], Scalar],
    penalty: Callable[[PyTree], Scalar],
    params: PyTree,
    strength: Scalar | float,
    tolerance: float = 1e-10,
) -> PyTree:
    r"""Compute to first order how far a penalty moves the minimiser of a risk.

    It moves by :math:`-\beta H^{-1}\nabla\Phi` (`eq:influence-regularization-bias-expansion`), with
    the Hessian H of the risk, found by conjugate gradients on Hessian-vector products. With half
    the strength of a trace penalty it is `eq:algorithm3-objective-bias-expansion`.

    Parameters
    ----------
    risk
        R, a function of the parameters that returns a scalar.
    penalty
        :math:`\Phi`, a function of the parameters that returns a scalar.
    params
        Where the risk is least and its Hessian positive definite: a pytree of floating-point
        arrays.
    strength
        :math:`\beta`, a finite number, to which the shift is proportional.
    tolerance
        The relative tolerance of the conjugate gradients, between 0 and 1, by Euclidean norms of
        all parameters; 1e-10 by default. Where it is below 1000 roundings of the parameters'
        precision, which are 1e-4 in float32, it is that many: of a Hessian of large condition no
        residual is smaller.

    Returns
    -------
    PyTree
        The shift, a pytree like `params`: add it to them for the minimiser of
        :math:`R + \beta\Phi`, up to :math:`O(\beta^2)`.

    Raises
    ------
    ValueError
        If `risk` or `penalty` cannot be called, `strength` is no finite number, or `tolerance` is
        not between 0 and 1.
    EquinoxRuntimeError
        If the parameters or the penalty's slope are NaN or infinite; if the risk's slope at
        `params` is half as large as the penalty's times the strength, or larger; if the risk's
        curvature along the shift is not positive; or if the conjugate gradients do not converge.

    Examples
    --------
    >>> risk, penalty = lambda p: 2 * p**2, lambda p: (p - 1) ** 2
    >>> float(parameter_shift(risk, penalty, jnp.array(0.0), strength=0.1))  # 0.1 * 2 / 4
    0.05
    """
    require_callable(risk, "risk", "of the parameters")
    require_callable(penalty, "penalty", "of the parameters")
    strength = as_finite(strength, "strength")
    require(
        is_real(tolerance) and 0 < tolerance < 1,
        "tolerance",
        got=described(tolerance),
        expected="a number above 0 and below 1, as it is relative",
        cure="Try 1e-10.",
    )
    dtypes = jax.tree.map(lambda leaf: jnp.asarray(leaf).dtype, params)
    params = promote(error_if_not_finite(params, "params"))

    def hessian_product(direction: PyTree) -> PyTree:
        """Multiply the risk's Hessian by a direction of the parameters."""
        return jax.jvp(jax.grad(risk), (params,), (direction,))[1]

    slope = error_if_not_finite(jax.grad(penalty)(params), "penalty's slope")
    penalty_size = abs(strength) * norm(slope)
    risk_size = norm(jax.grad(risk)(params))
    # Where both balance, the penalty has moved the minimiser already.
    slope = error_if(
        slope,
        (penalty_size > 0) & (2 * risk_size >= penalty_size),
        "params: got some where the risk's slope is half of the penalty's times the strength, or "
        "more, expected those at which the risk is least. Minimise the risk further, or take a "
        "larger strength: the shift is proportional to it.",
    )
    # The solver's tolerances are absolute too, so slope and Hessian are given to it in units, on
    # which the shift does not depend.
    slope_unit = jax.lax.stop_gradient(_or_one(norm(slope)))
    unit_slope = jax.tree.map(lambda leaf: leaf / slope_unit, slope)
    curvature = _product(unit_slope, hessian_product(unit_slope))
    curvature_unit = jax.lax.stop_gradient(_or_one(jnp.abs(curvature)))

    def unit_product(direction: PyTree) -> PyTree:
        """Multiply the Hessian by a direction, in units of its curvature along the slope."""
        return jax.tree.map(lambda leaf: leaf / curvature_unit, hessian_product(direction))

    solution = _solve_positive(unit_product, unit_slope, tolerance)
    scale = -strength * (slope_unit / curvature_unit)
    return jax.tree.map(lambda leaf, dtype: (scale * leaf).astype(dtype), solution, dtypes)


def _solve_positive(
    hessian_product: Callable[[PyTree], PyTree], slope: PyTree, tolerance: float
) -> PyTree:
    """Solve for the direction that a Hessian maps to a slope, by conjugate gradients.

    The solution's use raises EquinoxRuntimeError where the curvature along it is not positive.
    """
    operator = lineax.FunctionLinearOperator(
        hessian_product, jax.eval_shape(lambda: slope), lineax.positive_semidefinite_tag
    )
    attainable = [1000 * float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(slope)]
    tolerance = max(tolerance, *attainable)
    # By Euclidean norms, as the slope's is one: lineax's own norm is the largest entry, and of n
    # entries that are each within the tolerance the norm is root n times that at worst.
    solver = lineax.CG(rtol=tolerance, atol=tolerance, norm=norm)
    solution = lineax.linear_solve(operator, slope, solver).value
    return error_if(
        solution,
        (norm(slope) > 0) & (_product(slope, solution) <= 0),
        "risk: got a Hessian at params that is not, expected a positive definite one. Minimise the "
        "risk further, or add a regulariser to a flat one.",
    )


def _product(first: PyTree, second: PyTree) -> Scalar:
    """Compute the inner product of two pytrees."""
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), first, second)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)))


def _or_one(number: Scalar) -> Scalar:
    """Return a number to divide by, or one where it is zero."""
    return jnp.where(number == 0, 1, number)


def shift_bound(
    strength: Scalar | float, slope: Scalar | float, convexity: Scalar | float
) -> Scalar:
    r"""Bound how far a penalty can move the minimiser: :math:`\beta G/\mu`.

    `eq:influence-regularization-parameter-shift-bound`; unlike `parameter_shift` it holds at any
    strength.

    Parameters
    ----------
    strength
        :math:`\beta \ge 0`, finite.
    slope
        G, no less than :math:`\|\nabla\Phi\|` anywhere between the two minimisers; finite and not
        negative.
    convexity
        :math:`\mu > 0`, no more than the smallest curvature of the risk there; finite.

    Returns
    -------
    Array
        The largest Euclidean distance between the minimisers with and without the penalty, a
        scalar.

    Raises
    ------
    ValueError
        If an argument is no number, or a `strength` or `slope` known before tracing is negative or
        not finite.
    EquinoxRuntimeError
        If a traced one is so, or `convexity` is not positive or not finite.

    Examples
    --------
    >>> float(shift_bound(0.5, slope=2.0, convexity=4.0))
    0.25
    """
    strength = as_finite_nonnegative(strength, "strength")
    slope = as_finite_nonnegative(slope, "slope")
    require_scalar(convexity, "convexity")
    strength, slope, convexity = promote((strength, slope, convexity))
    return error_if_got(
        # In this order: products of small numbers vanish.
        strength * (jnp.asarray(slope) / convexity),
        "convexity",
        got={
            "zero, a number below, or NaN": ~(jnp.asarray(convexity) > 0),
            "infinity": jnp.isinf(convexity),
        },
        expected="a positive finite number",
        cure=(
            "Take parameter_shift where the risk is not strongly convex: without that no bound "
            "holds."
        ),
    )
