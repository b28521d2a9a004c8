r"""Tokens' images under a matrix, and the two products that derive from them.

.. math:: \mathrm{images}(W, x) = x W^\top, \qquad \mathrm{pullbacks}(W, g) = g W, \qquad
          \mathrm{slope}(g, x) = g^\top x,

of tokens, and covectors of their images, in rows. Each is linear in both operands, and the inner
product :math:`\langle g, x W^\top\rangle` pairs every one of them with what it lacks: so each has
the other two as its transposes, and derivatives of all orders are these three again. JAX's own
derivatives give the same numbers. But for a slope, which sums over tokens, a CPU turns one operand
round, and computes along columns whatever is fused into that copy: here it is the narrower operand.
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


def images(
    matrix: Float[Array, "out width"], tokens: Float[Array, "*tokens width"]
) -> Float[Array, "*tokens out"]:
    r"""Every token's image, :math:`x W^\top`.

    Examples
    --------
    >>> images(jnp.array([[3.0, 4.0], [0.0, 1.0]]), jnp.array([[1.0, 2.0]])).tolist()
    [[11.0, 2.0]]
    """
    dtype = jnp.result_type(matrix, tokens)
    operands = matrix.astype(dtype), tokens.astype(dtype)
    meshes = (jax.typeof(operand).sharding.mesh for operand in operands)
    if any(AxisType.Explicit in mesh.axis_types for mesh in meshes):
        # Where types tell how arrays are spread, JAX's own product tells it of its derivatives.
        return _made_images(*operands)
    return _images.bind(*varying_as(operands, operands))


def are_images(primitive: Primitive, *_: Any, **__: Any) -> bool:
    """Whether an operation is `images`: a policy of what `jax.checkpoint` keeps."""
    return primitive is _images


def _made_images(matrix: Array, tokens: Array) -> Array:
    return jax.lax.dot_general(tokens, matrix, (((tokens.ndim - 1,), (1,)), ((), ())))


def _made_pullbacks(matrix: Array, covectors: Array) -> Array:
    return jax.lax.dot_general(covectors, matrix, (((covectors.ndim - 1,), (0,)), ((), ())))


def _made_slope(covectors: Array, tokens: Array) -> Array:
    summed = tuple(range(tokens.ndim - 1))
    return jax.lax.dot_general(covectors, tokens, ((summed, summed), ((), ())))


def _made_slope_on_cpu(covectors: Array, tokens: Array) -> Array:
    """With the narrower operand first, since that one is turned round for the product.

    Of two as narrow it is the tokens, which several matrices may have in common.
    """
    if covectors.shape[-1] < tokens.shape[-1]:
        return _made_slope(covectors, tokens)
    # The barrier keeps XLA from turning the operands instead of the matrix that comes out.
    return jax.lax.optimization_barrier(_made_slope(tokens, covectors)).T


def _mapped(primitive: Primitive, operands: Any, axes: Any) -> tuple[Array, int]:
    """Examples that share a matrix are more tokens; else the product is one of JAX's own."""
    (first, second), (of_first, of_second) = operands, axes
    if of_first is None and primitive is not _slope:
        return primitive.bind(first, jnp.moveaxis(second, of_second, 0)), 0
    return jax.vmap(RUNS[primitive], axes)(*operands), 0


_images = primitive_of("images", _made_images, many_results=False)
_pullbacks = primitive_of("pullbacks", _made_pullbacks, many_results=False)
_slope = primitive_of("slope", _made_slope, many_results=False)
for _primitive in (_images, _pullbacks, _slope):
    batching.primitive_batchers[_primitive] = partial(_mapped, _primitive)
mlir.register_lowering(_slope, mlir.lower_fun(_made_slope_on_cpu, multiple_results=False), "cpu")
# What an operand receives is a product of the result's covector with the other operand.
ad.defbilinear(
    _images,
    lambda covectors, matrix, tokens: _slope.bind(covectors, tokens),
    lambda covectors, matrix, tokens: _pullbacks.bind(matrix, covectors),
)
ad.defbilinear(
    _pullbacks,
    lambda tokens, matrix, covectors: _slope.bind(covectors, tokens),
    lambda tokens, matrix, covectors: _images.bind(matrix, tokens),
)
ad.defbilinear(
    _slope,
    lambda matrix, covectors, tokens: _images.bind(matrix, tokens),
    lambda matrix, covectors, tokens: _pullbacks.bind(matrix, covectors),
)
