r"""Tokens times a matrix, and the two products that are its gradients.

.. math:: x W^\top, \qquad \text{input gradient } g W, \qquad \text{weight gradient } g^\top x,

of tokens x and covectors g in rows. Each is linear in both operands and has the other two as its
transposes. JAX's own derivatives give the same numbers; but for a weight gradient a CPU transposes
one operand, and here it is the narrower one.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType
from jaxtyping import Array, Float

from lim_jax._linear import RUNS, primitive_of
from lim_jax._varying import varying_as


def linear(
    matrix: Float[Array, "out width"], tokens: Float[Array, "*tokens width"]
) -> Float[Array, "*tokens out"]:
    r""":math:`x W^\top` for every token x."""
    dtype = jnp.result_type(matrix, tokens)
    operands = matrix.astype(dtype), tokens.astype(dtype)
    meshes = (jax.typeof(operand).sharding.mesh for operand in operands)
    if any(AxisType.Explicit in mesh.axis_types for mesh in meshes):
        # Where types tell how arrays are spread, JAX's own product tells it of its derivatives.
        return _run_linear(*operands)
    return _linear.bind(*varying_as(operands, operands))


def is_linear(primitive: Primitive, *_: Any, **__: Any) -> bool:
    """Whether an operation is `linear`: a policy of what `jax.checkpoint` keeps."""
    return primitive is _linear


def _run_linear(matrix: Array, tokens: Array) -> Array:
    return jax.lax.dot_general(tokens, matrix, (((tokens.ndim - 1,), (1,)), ((), ())))


def _run_input_gradient(matrix: Array, covectors: Array) -> Array:
    return jax.lax.dot_general(covectors, matrix, (((covectors.ndim - 1,), (0,)), ((), ())))


def _run_weight_gradient(covectors: Array, tokens: Array) -> Array:
    summed = tuple(range(tokens.ndim - 1))
    return jax.lax.dot_general(covectors, tokens, ((summed, summed), ((), ())))


def _run_weight_gradient_on_cpu(covectors: Array, tokens: Array) -> Array:
    """With the narrower operand first, which the CPU transposes for the product."""
    if covectors.shape[-1] < tokens.shape[-1]:
        return _run_weight_gradient(covectors, tokens)
    # The barrier keeps XLA from transposing the operands instead of the matrix that comes out.
    return jax.lax.optimization_barrier(_run_weight_gradient(tokens, covectors)).T


def _mapped(primitive: Primitive, operands: Any, axes: Any) -> tuple[Array, int]:
    """Examples that share a matrix are more tokens; else the product is one of JAX's own."""
    (first, second), (of_first, of_second) = operands, axes
    if of_first is None and primitive is not _weight_gradient:
        return primitive.bind(first, jnp.moveaxis(second, of_second, 0)), 0
    return jax.vmap(RUNS[primitive], axes)(*operands), 0


_linear = primitive_of("linear", _run_linear, many_results=False)
_input_gradient = primitive_of("input_gradient", _run_input_gradient, many_results=False)
_weight_gradient = primitive_of("weight_gradient", _run_weight_gradient, many_results=False)
for _primitive in (_linear, _input_gradient, _weight_gradient):
    batching.primitive_batchers[_primitive] = partial(_mapped, _primitive)
mlir.register_lowering(
    _weight_gradient, mlir.lower_fun(_run_weight_gradient_on_cpu, multiple_results=False), "cpu"
)
# What an operand receives is a product of the result's covector with the other operand.
ad.defbilinear(
    _linear,
    lambda covectors, matrix, tokens: _weight_gradient.bind(covectors, tokens),
    lambda covectors, matrix, tokens: _input_gradient.bind(matrix, covectors),
)
ad.defbilinear(
    _input_gradient,
    lambda tokens, matrix, covectors: _weight_gradient.bind(covectors, tokens),
    lambda tokens, matrix, covectors: _linear.bind(matrix, tokens),
)
ad.defbilinear(
    _weight_gradient,
    lambda matrix, covectors, tokens: _linear.bind(matrix, tokens),
    lambda matrix, covectors, tokens: _input_gradient.bind(matrix, covectors),
)
