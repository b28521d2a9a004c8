r"""How far penalties move a minimiser."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import lineax
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import (
    as_finite,
    as_nonnegative,
    error_if,
    error_if_not_finite,
    require_callable,
    require_positive,
    require_scalar,
)
from lim_jax._errors import in_our_words

Scalar = Float[Array, ""]


@in_our_words()
def parameter_shift(
    risk: Callable[[PyTree], Scalar],
    penalty: Callable[[PyTree], Scalar],
    params: PyTree,
    strength: Scalar | float,
    tolerance: float = 1e-10,
) -> PyTree:
    r"""How a penalty moves the minimiser of a risk, to first order.

    By :math:`-\beta H^{-1}\nabla\Phi` (`eq:influence-regularization-bias-expansion`), found by
    conjugate gradients to a relative `tolerance`, of the `strength` :math:`\beta`. With half that
    of a trace penalty it is `eq:algorithm3-objective-bias-expansion`. `risk` and `penalty` are
    functions of the parameters, at which the risk is least and its Hessian positive definite: a
    risk half as steep there as the penalty times its strength, or whose curvature along the shift
    is not positive, raises EquinoxRuntimeError.

    Examples
    --------
    >>> risk, penalty = lambda p: 2 * p**2, lambda p: (p - 1) ** 2
    >>> float(parameter_shift(risk, penalty, jnp.array(0.0), strength=0.1))  # 0.1 * 2 / 4
    0.05
    """
    require_callable(risk, "risk", "of the parameters")
    require_callable(penalty, "penalty", "of the parameters")
    strength = as_finite(strength, "strength")
    require_positive(tolerance, "tolerance", expected="a positive finite number", cure="Try 1e-10.")
    params = error_if_not_finite(params, "params")

    def hessian_product(direction: PyTree) -> PyTree:
        return jax.jvp(jax.grad(risk), (params,), (direction,))[1]

    slope = error_if_not_finite(jax.grad(penalty)(params), "penalty's slope")
    pushed, rest = abs(strength) * _size(slope), _size(jax.grad(risk)(params))
    # Where both balance, the penalty has moved the minimiser already.
    slope = error_if(
        slope,
        (pushed > 0) & (2 * rest >= pushed),
        "params: expected those at which the risk is least, got some where its slope is half of "
        "the penalty's times the strength, or more. Minimise the risk further, or take a larger "
        "strength: the shift is proportional to it.",
    )
    operator = lineax.FunctionLinearOperator(
        hessian_product, jax.eval_shape(lambda: slope), lineax.positive_semidefinite_tag
    )
    solver = lineax.CG(rtol=tolerance, atol=tolerance)
    solution = lineax.linear_solve(operator, slope, solver).value
    curvature = sum(jax.tree.leaves(jax.tree.map(lambda s, x: jnp.sum(s * x), slope, solution)))
    solution = error_if(
        solution,
        (_size(slope) > 0) & (curvature <= 0),
        "risk: expected a positive definite Hessian at params, got one that is not. No minimum of "
        "the risk is there, or a flat one: no shift is known.",
    )
    return jax.tree.map(lambda leaf: -strength * leaf, solution)


def _size(tree: PyTree) -> Scalar:
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def shift_bound(
    strength: Scalar | float, slope: Scalar | float, convexity: Scalar | float
) -> Scalar:
    r"""Bound how far a penalty can move the minimiser: :math:`\beta G/\mu`.

    `eq:influence-regularization-parameter-shift-bound`; unlike `parameter_shift` it holds at any
    `strength` :math:`\beta`. The `slope` G is no less than :math:`\|\nabla\Phi\|` between the two
    minimisers, the `convexity` :math:`\mu` no more than the smallest curvature of the risk there.

    Examples
    --------
    >>> float(shift_bound(0.5, slope=2.0, convexity=4.0))
    0.25
    """
    for number, name in ((strength, "strength"), (slope, "slope"), (convexity, "convexity")):
        require_scalar(number, name)
    strength, slope = as_nonnegative(strength, "strength"), as_nonnegative(slope, "slope")
    return error_if(
        jnp.asarray(strength * slope) / convexity,
        ~((jnp.asarray(convexity) > 0) & (jnp.asarray(convexity) < jnp.inf)),
        "convexity: expected a positive finite number. "
        "Without strong convexity no bound holds; parameter_shift is still the first order.",
    )
