r"""Tokens times a matrix, and the two products that are its gradients.

.. math:: x W^\top, \qquad \text{input gradient } g W, \qquad \text{weight gradient } g^\top x,

of tokens x and covectors g in rows. Each is linear in both operands and has the other two as its
transposes. JAX's own derivatives give the same numbers; but for a weight gradient a CPU transposes
one operand, and here it is the narrower one.

Where `jax.default_matmul_precision` asks for bfloat16, operands in float32 are rounded to it and
sums are taken in float32 (`product`), in derivatives of all orders and on every platform. Over
meshes of type Explicit the derivatives are JAX's own, which round their operands otherwise.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jax.sharding import AxisType
from jaxtyping import Array, Float

from lim_jax._linear import RUNS, bind_at_precision, in_its_precision, lower_on, primitive_of
from lim_jax._precision import accumulator, rounds
from lim_jax._sharded_axes import varying_as

Axes = tuple[int, ...]  # a number for each axis, as in `jax.numpy.einsum`


def linear(
    matrix: Float[Array, "out width"], tokens: Float[Array, "*tokens width"]
) -> Float[Array, "*tokens out"]:
    r"""Compute :math:`x W^\top` for every token x."""
    operands = matrix, tokens
    if not rounds(*operands):
        dtype = jnp.result_type(matrix, tokens)
        operands = matrix.astype(dtype), tokens.astype(dtype)
    # Where types tell how arrays are spread, JAX's own product tells it of its derivatives.
    if _is_explicit(*operands):
        return _run_linear(*operands)
    return bind_at_precision(_linear, *varying_as(operands, operands))


def matmul(left: Array, right: Array) -> Array:
    """Multiply matrices, with sums in the dtype of `accumulator`."""
    if not rounds(left, right):
        sums = accumulator(jnp.result_type(left, right))
        return jnp.matmul(left, right, preferred_element_type=sums)
    batch = jnp.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left = jnp.broadcast_to(left, (*batch, *left.shape[-2:]))
    right = jnp.broadcast_to(right, (*batch, *right.shape[-2:]))
    numbers = tuple(range(3, 3 + len(batch)))
    return product(left, right, ((*numbers, 0, 1), (*numbers, 1, 2), (*numbers, 0, 2)))


def product(left: Array, right: Array, axes: tuple[Axes, Axes, Axes]) -> Float[Array, "..."]:
    """Compute ``jnp.einsum(left, axes[0], right, axes[1], axes[2])``, in bfloat16 where asked."""
    if not rounds(left, right):
        return _einsum(left, right, axes)
    if _is_explicit(left, right):
        return _run_product(left, right, axes=axes)
    return bind_at_precision(_product, *varying_as((left, right), (left, right)), axes=axes)


def _is_explicit(*operands: Array) -> bool:
    """Tell whether any operand's mesh has axes of type Explicit."""
    meshes = (jax.typeof(operand).sharding.mesh for operand in operands)
    return any(AxisType.Explicit in mesh.axis_types for mesh in meshes)


def is_linear(primitive: Primitive, *_: Any, **__: Any) -> bool:
    """Tell whether a primitive is `linear`, as a policy of `jax.checkpoint` for what to save."""
    return primitive is _linear


def _run_linear(matrix: Array, tokens: Array) -> Array:
    """Compute `linear`: every token times the transposed matrix."""
    return _contract(tokens, matrix, (tokens.ndim - 1,), (1,))


def _run_input_gradient(matrix: Array, covectors: Array) -> Array:
    """Compute the gradient of `linear` in the tokens."""
    return _contract(covectors, matrix, (covectors.ndim - 1,), (0,))


def _run_weight_gradient(covectors: Array, tokens: Array) -> Array:
    """Compute the gradient of `linear` in the matrix, summed over tokens."""
    summed = tuple(range(tokens.ndim - 1))
    return _contract(covectors, tokens, summed, summed)


def _run_weight_gradient_on_cpu(covectors: Array, tokens: Array) -> Array:
    """Compute the matrix's gradient with the narrower operand first, which the CPU transposes."""
    if rounds(covectors, tokens) or covectors.shape[-1] < tokens.shape[-1]:
        return _run_weight_gradient(covectors, tokens)
    # The barrier keeps XLA from transposing the operands instead of the matrix that comes out.
    return jax.lax.optimization_barrier(_run_weight_gradient(tokens, covectors)).T


def _contract(left: Array, right: Array, left_axes: Axes, right_axes: Axes) -> Array:
    """Multiply two arrays summed over axes of both; the left one's other axes come first."""
    if not rounds(left, right):
        return jax.lax.dot_general(left, right, ((left_axes, right_axes), ((), ())))
    ours = tuple(range(left.ndim))
    shared = dict(zip(right_axes, left_axes, strict=True))
    theirs = tuple(shared.get(axis, left.ndim + axis) for axis in range(right.ndim))
    summed = set(left_axes)
    remaining = tuple(axis for axis in ours + theirs if axis not in summed)
    return product(left, right, (ours, theirs, remaining))


def _run_product(left: Array, right: Array, *, axes: tuple[Axes, Axes, Axes]) -> Array:
    """Compute `product` with operands rounded to bfloat16 and sums in float32."""
    halves = left.astype(jnp.bfloat16), right.astype(jnp.bfloat16)
    return _einsum(*halves, axes, preferred_element_type=jnp.float32)


def _einsum(left: Array, right: Array, axes: Any, **options: Any) -> Array:
    """Call `jax.numpy.einsum` with axes given as numbers."""
    terms: Any = left, axes[0], right, *axes[1:]
    return jnp.einsum(*terms, **options)


def _run_product_on_cpu(left: Array, right: Array, *, axes: Any) -> Array:
    """Compute `product` on a CPU as batches of matrix products, of rows by columns or by rows.

    XLA's CPU decides early which products of bfloat16 are fast and leaves them as they are; one
    that a later pass transposes fails when it is run. None does between these barriers.
    """
    ours, theirs, result = axes
    sizes = dict(zip(ours + theirs, left.shape + right.shape, strict=True))
    batch = [axis for axis in ours if axis in theirs and axis in result]
    summed = [axis for axis in ours if axis in theirs and axis not in result]
    rows = [axis for axis in ours if axis not in theirs]
    columns = [axis for axis in theirs if axis not in ours]

    def laid_out(x: Array, axes_of_operand: Axes, *groups: list[int]) -> Array:
        """Round to bfloat16, and reshape to one axis for each of three groups of axes."""
        first, second, last = ([1 + axes_of_operand.index(n) for n in group] for group in groups)
        # The axis of one before the last keeps XLA from taking this for a matrix that lies turned.
        x = jnp.transpose(x.astype(jnp.bfloat16)[None], [*first, *second, 0, *last])
        return x.reshape([math.prod(sizes[n] for n in group) for group in groups])

    by_rows = theirs[-1] in summed
    right_order = (columns, summed) if by_rows else (summed, columns)
    left, right = jax.lax.optimization_barrier(
        (laid_out(left, ours, batch, rows, summed), laid_out(right, theirs, batch, *right_order))
    )
    dimensions = ((2,), (2 if by_rows else 1,)), ((0,), (0,))
    single = jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)
    single = jax.lax.optimization_barrier(single)
    order = [*batch, *rows, *columns]
    return single.reshape([sizes[n] for n in order]).transpose([order.index(n) for n in result])


def _batch_product(operands: Any, at: Any, *, axes: Any, precision: Any) -> tuple[Array, int]:
    """Batch `product`: give the mapped axis a new number, which the result has first."""
    new = 1 + max(number for each in axes for number in each)
    new_axes = [
        operand_axes if axis is None else (*operand_axes[:axis], new, *operand_axes[axis:])
        for operand_axes, axis in zip(axes[:2], at, strict=True)
    ]
    new_axes = *new_axes, (new, *axes[2])
    return _product.bind(*operands, axes=new_axes, precision=precision), 0


def _batch_linear(
    primitive: Primitive, operands: Any, axes: Any, **settings: Any
) -> tuple[Array, int]:
    """Batch `linear`: count examples that share a matrix as more tokens, and else use `vmap`."""
    first, second = operands
    first_axis, second_axis = axes
    if first_axis is None and primitive is not _weight_gradient:
        return primitive.bind(first, jnp.moveaxis(second, second_axis, 0), **settings), 0
    return jax.vmap(partial(RUNS[primitive], **settings), axes)(*operands), 0


def _bilinear(primitive: Primitive, first_derivative: Any, second_derivative: Any) -> None:
    """Give a bilinear primitive its derivatives, each in the dtype of the operand it belongs to."""

    def pull_to_first(covectors: Any, first: Any, second: Any, **settings: Any) -> Any:
        """Return what covectors of the result give to the first operand."""
        return first_derivative(covectors, second, **settings).astype(first.aval.dtype)

    def pull_to_second(covectors: Any, first: Any, second: Any, **settings: Any) -> Any:
        """Return what covectors of the result give to the second operand."""
        return second_derivative(covectors, first, **settings).astype(second.aval.dtype)

    ad.defbilinear(primitive, pull_to_first, pull_to_second)


def _pull_to_left(
    covectors: Any, right: Any, axes: tuple[Axes, Axes, Axes], **settings: Any
) -> Any:
    """Return what covectors of a `product` give to its left operand."""
    left_axes, right_axes, result_axes = axes
    return _product.bind(covectors, right, axes=(result_axes, right_axes, left_axes), **settings)


def _pull_to_right(
    covectors: Any, left: Any, axes: tuple[Axes, Axes, Axes], **settings: Any
) -> Any:
    """Return what covectors of a `product` give to its right operand."""
    left_axes, right_axes, result_axes = axes
    return _product.bind(left, covectors, axes=(left_axes, result_axes, right_axes), **settings)


def _swap_operands(primitive: Primitive) -> Any:
    """Return a function that binds a primitive to its operands in the other order."""
    return lambda second, first, **settings: primitive.bind(first, second, **settings)


_product = primitive_of("product", _run_product, many_results=False, static=("axes",))
batching.primitive_batchers[_product] = _batch_product
lower_on("cpu", _product, in_its_precision(_run_product_on_cpu))
_linear = primitive_of("linear", _run_linear, many_results=False)
_input_gradient = primitive_of("input_gradient", _run_input_gradient, many_results=False)
_weight_gradient = primitive_of("weight_gradient", _run_weight_gradient, many_results=False)
for _primitive in (_linear, _input_gradient, _weight_gradient):
    batching.primitive_batchers[_primitive] = partial(_batch_linear, _primitive)
lower_on("cpu", _weight_gradient, in_its_precision(_run_weight_gradient_on_cpu))
# What an operand receives is a product of the result's covector with the other operand.
_bilinear(_product, _pull_to_left, _pull_to_right)
_bilinear(_linear, _weight_gradient.bind, _swap_operands(_input_gradient))
_bilinear(_input_gradient, _swap_operands(_weight_gradient), _swap_operands(_linear))
_bilinear(_weight_gradient, _linear.bind, _input_gradient.bind)
