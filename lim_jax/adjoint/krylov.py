r"""Bounds on the norm of an operator that is known by its action alone.

Let :math:`v_1` be uniform on the unit sphere of :math:`\mathbb R^n`, and :math:`\hat\sigma` the
largest :math:`\|Bv\|/\|v\|` over the Krylov space of :math:`B^*B v_1, \dots`, of dimension k. With
Chebyshev's :math:`T_{2k-1}` in :math:`(\lambda_1 - \lambda)\,p(\lambda)^2` it falls below
:math:`\sqrt{1-\epsilon}\,\|B\|` only where the leading component of :math:`v_1` is less than
:math:`1/\cosh((2k-1)\,\mathrm{artanh}\sqrt\epsilon)`. A component is less than t with probability
at most :math:`t\sqrt{2n/\pi}`. So, except with probability :math:`\pi_0`,

.. math:: \hat\sigma \le \|B\| \le \hat\sigma\,
          \cosh\frac{\mathrm{arcosh}(\sqrt{2n/\pi}/\pi_0)}{2k-1},

whatever the singular values are (the argument of Kuczyński and Woźniakowski 1992).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import as_int, no_derivative, require, require_positive
from lim_jax._precision import norm, normalise, promote, unit_of

Vector = Float[Array, "..."]
Push = Callable[[Vector], Vector]

TWICE = "Norms of operators are differentiated once: their leading vectors are held still."


class NormBounds(NamedTuple):
    r"""A ratio that a vector attains, never above the norm, and a probable upper bound.

    Attributes
    ----------
    attained
        The largest :math:`\|Bv\|/\|v\|` that was found, a number for each operator.
    upper
        The upper bound, which is below the norm with the probability of failure that was asked for.
    """

    attained: Float[Array, "*operators"]
    upper: Float[Array, "*operators"]


def norm_bounds(
    operator: Callable[[PyTree], Push],
    arguments: PyTree,
    start: Vector,
    *,
    steps: int,
    failure: float,
) -> NormBounds:
    r"""Bound :math:`\|B\|_2` of ``operator(arguments)`` in `steps` products from a normal start."""
    dimension = math.prod(start.shape)
    attained = _attained_norm(operator, steps, arguments, start)
    if steps >= dimension:
        return NormBounds(attained, attained)
    reach = math.acosh(math.sqrt(2 * dimension / math.pi) / failure)
    return NormBounds(attained, math.cosh(reach / (2 * steps - 1)) * attained)


def checked_steps(steps: Any, failure: Any) -> int:
    """Return the number of steps; raise ValueError unless it and `failure` are valid."""
    expected = "a probability between 0 and 1/2, known before tracing"
    cure = "Take 1e-9: it costs little more than 1e-3, as only its logarithm enters."
    require_positive(failure, "failure", expected=expected, cure=cure)
    require(failure < 0.5, "failure", got=f"{failure}", expected=expected, cure=cure)
    return as_int(steps, "steps")


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _attained_norm(
    operator: Callable[[PyTree], Push], steps: int, arguments: PyTree, start: Vector
) -> Float[Array, ""]:
    r"""Return :math:`\|Bv\|` at the unit vector v of the Krylov space where it is largest."""
    return norm(operator(arguments)(_leading_vector(operator(arguments), start, steps)))


@_attained_norm.defjvp
def _attained_jvp(operator, steps, primals, tangents):
    """Differentiate the attained norm in the arguments, with the vector held fixed."""
    arguments, start = no_derivative(primals, TWICE)
    vector = _leading_vector(operator(arguments), start, steps)
    return jax.jvp(lambda arguments: norm(operator(arguments)(vector)), primals[:1], tangents[:1])


def _leading_vector(push: Push, start: Vector, steps: int) -> Vector:
    r"""Return the unit vector of the Krylov space at which :math:`\|Bv\|` is largest."""
    # The basis is reorthogonalised twice a step. Zeros follow where only rounding remains.
    transpose = jax.linear_transpose(push, start)
    steps = min(steps, math.prod(start.shape))
    basis = jnp.zeros((steps, *start.shape), start.dtype)

    def grow(carry, index):
        """Add a vector to the basis; return the next orthogonal one, and the vector's image."""
        basis, vector = carry
        basis = basis.at[index].set(vector)
        image = push(vector)
        (vector,) = transpose(image)
        rounding = 1000 * jnp.finfo(start.dtype).eps * norm(vector)
        for _ in range(2):
            shares = jnp.tensordot(basis, vector, vector.ndim)
            vector = vector - jnp.tensordot(shares, basis, 1)
        return (basis, jnp.where(norm(vector) <= rounding, 0, normalise(vector))), image

    (basis, _), images = jax.lax.scan(grow, (basis, normalise(start)), jnp.arange(steps))
    images = images.reshape(steps, -1)
    images = images / unit_of(images)
    _, ritz = jnp.linalg.eigh(promote(images @ images.T))
    return normalise(jnp.tensordot(ritz[:, -1].astype(basis.dtype), basis, 1))
