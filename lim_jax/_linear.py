r"""Linear maps at a point that know their transposes, of many points and vectors at once.

JAX transposes a loop into the same loop backwards. Where the transpose is better written by hand,
two maps :math:`\langle g,\, T_x t\rangle = \langle T_x^* g,\, t\rangle` are each the other's
transpose, and their derivatives in the point :math:`x` are JAX's own.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike
from jaxtyping import Array, Shaped

from lim_jax._jit import jit_is_off
from lim_jax._precision import precision_asked
from lim_jax._sharded_axes import varying_as

try:  # Kernels of a platform may be cut up among devices; no public name says that of a primitive.
    from jax._src.dispatch import prim_requires_devices_during_lowering as asks_for_devices
except ImportError:
    asks_for_devices = None

Points = Sequence[Shaped[Array, "points ..."]]
Vectors = Sequence[Shaped[Array, "points vectors ..."]]
# ``program(points, vectors, setting)``; the setting is known before tracing.
Program = Callable[[Points, Vectors, Any], Sequence[Array]]
# ``program(points, vectors, setting, zero)``, told of each vector whether it is known to be zero.
PlatformProgram = Callable[[Points, Vectors, Any, tuple[bool, ...]], Sequence[Array]]
# What a primitive of many is bound with: `count`, how many of the operands, the first ones, are the
# point's arrays, the others being vectors; `many`, how many leading axes of all operands number
# points; `sharing`, how many axes of vectors come next, whose entries share one point; `setting`,
# the program's own; `zero`, of each vector, whether it is known to be zero.
STATIC = "count", "many", "sharing", "setting", "zero"
RUNS: dict[Primitive, Callable[..., Any]] = {}  # what a primitive does, by operations of JAX


def primitive_of(
    name: str, run: Callable[..., Any], *, many_results: bool, static: Sequence[str] = ()
) -> Primitive:
    """Make a primitive of a function of JAX operations; it has no derivatives yet.

    It is bound by `bind_at_precision`, and keeps the precision of products that was asked for
    there, whenever it is lowered or differentiated.
    """
    primitive = Primitive(name)
    primitive.multiple_results = many_results
    run = in_its_precision(run)
    RUNS[primitive] = run

    @cache  # tracing asks for the same types again and again
    def result_types(*types: Any, **settings: Any) -> Any:
        """Return the types of the results for operands of these types."""
        results = jax.make_jaxpr(partial(run, **settings))(*types).out_avals
        return results if many_results else results[0]

    compiled = jax.jit(primitive.bind, static_argnames={*static, "precision"})

    def apply(*operands: Any, **settings: Any) -> Any:
        """Run the primitive on concrete arrays: compiled, or step by step where jit is off."""
        # Without jit, and where JAX repeats a program to find its NaN, bind comes back to here.
        if jit_is_off() or nan_is_sought():
            return run(*map(jnp.asarray, operands), **settings)  # literals are no arrays
        return compiled(*operands, **settings)

    primitive.def_impl(apply)
    primitive.def_abstract_eval(result_types)
    lower_on(None, primitive, run)
    return primitive


def nan_is_sought() -> bool:
    """Tell whether `jax.debug_nans` or `jax.debug_infs` holds here."""
    config: Any = jax.config
    return config.jax_debug_nans or config.jax_debug_infs


def bind_at_precision(primitive: Primitive, *operands: Any, **static: Any) -> Any:
    """Bind a primitive at the matmul precision in force here."""
    return primitive.bind(*operands, precision=precision_asked(), **static)


def lower_on(platform: str | None, primitive: Primitive, run: Callable[..., Any]) -> None:
    """Register a function as a primitive's lowering on a platform, or for None on all others."""
    rule = mlir.lower_fun(run, multiple_results=primitive.multiple_results)
    mlir.register_lowering(primitive, rule, platform=platform)


def in_its_precision(run: Callable[..., Any]) -> Callable[..., Any]:
    """Make a primitive's function run at the matmul precision that the primitive was bound with."""

    def program(*operands: Any, precision: str | None, **settings: Any) -> Any:
        """Run the function at this matmul precision."""
        with jax.default_matmul_precision(precision):
            return run(*operands, **settings)

    return program


def batched_primitive(name: str, program: Program) -> Primitive:
    """Make a primitive of one point and one vector (or none) from a program of many."""

    @partial(jax.jit, static_argnames=STATIC)
    def run(*operands: Array, zero: tuple[bool, ...], **static: Any) -> list[Array]:
        """Run the program on operands with any number of batched axes."""
        return _run_merged(program, *operands, **static)

    def batch(operands, axes, *, count, many, sharing, **static):
        """Batch the primitive: add an axis of points if one is mapped, and else of vectors."""
        sizes = (x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None)
        size = next(sizes)
        if any(axis is not None for axis in axes[:count]):
            first = 0
            kept = 0  # how many operands keep their axes: points of which none is mapped
            many += 1
        else:
            first = many
            kept = count
            sharing += 1

        def to_front(operand: ArrayLike, axis: int | None) -> Array:
            """Move an operand's mapped axis to the position `first`; repeat an unmapped one."""
            if axis is None:
                operand = jnp.broadcast_to(operand, (size, *jnp.shape(operand)))
                axis = 0
            return jnp.moveaxis(operand, axis, first)

        operands = *operands[:kept], *map(to_front, operands[kept:], axes[kept:])
        static |= {"count": count, "many": many, "sharing": sharing}
        results = primitive.bind(*operands, **static)
        return results, [first] * len(results)

    primitive = primitive_of(name, run, many_results=True, static=STATIC)
    batching.primitive_batchers[primitive] = batch
    return primitive


def _run_merged(
    program: Program, *operands: Array, count: int, many: int, sharing: int, setting: Hashable
) -> list[Array]:
    """Run a program on operands whose axes of points, and of vectors, are merged into one."""
    front = operands[-1].shape[: many + sharing]
    merged = math.prod(front[:many]), math.prod(front[many:])
    points = [x.reshape(merged[0], *x.shape[many:]) for x in operands[:count]]
    vectors = [x.reshape(*merged, *x.shape[many + sharing :]) for x in operands[count:]]
    results = program(points, vectors, setting)
    return [x.reshape(*front, *x.shape[2 if vectors else 1 :]) for x in results]


def change_setting_on(
    platform: str | None, primitive: Primitive, change: Callable[[Any], Any]
) -> None:
    """Let a platform, or for None all others, run a primitive's program in a changed setting."""

    def run(*operands: Array, setting: Any, **static: Any) -> list[Array]:
        """Run the primitive's own program in the changed setting."""
        return RUNS[primitive](*operands, setting=change(setting), **static)

    lower_on(platform, primitive, run)


def replace_on(platform: str, primitive: Primitive, program: PlatformProgram) -> None:
    """Let a platform run another program that gives the same numbers; derivatives ignore it."""

    def run(*operands: Array, zero: tuple[bool, ...], **static: Any) -> list[Array]:
        """Run the platform's program, and tell it which vectors are known to be zero."""

        def with_zeros(points: Points, vectors: Vectors, setting: Any) -> Sequence[Array]:
            """Run the platform's program with the flags of the zero vectors."""
            return program(points, vectors, setting, zero)

        return _run_merged(with_zeros, *operands, **static)

    if asks_for_devices is not None:
        asks_for_devices.add(primitive)
        lower_on(platform, primitive, in_its_precision(run))


def transpose_pair(
    there: tuple[str, Program], back: tuple[str, Program]
) -> tuple[Primitive, Primitive]:
    """Make two primitives, each the other's transpose, of programs linear in their vectors."""
    pair = batched_primitive(*there), batched_primitive(*back)
    for primitive, other in (pair, pair[::-1]):
        ad.primitive_jvps[primitive] = partial(_derivative, primitive)
        ad.primitive_transposes[primitive] = partial(_transpose, other)
    return pair


def define_jvp(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Give a primitive its JVP rule, ``rule(points, tangents, apply)``."""

    def derivative(primals, tangents, *, count, zero, **static):
        """Compute the JVP by the rule, with tangents that are known to be zero written out."""

        def apply(primitive: Primitive, points: Sequence[Array], vectors: Sequence[Array]):
            """Bind a primitive with the settings of the one that is differentiated."""
            return _bind_marking_zeros(primitive, points, vectors, **static)

        return rule(primals, [*map(ad.instantiate_zeros, tangents)], apply)

    ad.primitive_jvps[primitive] = derivative


def bind_at(
    primitive: Primitive, point: Sequence[ArrayLike], vector: Sequence[ArrayLike], setting: Hashable
) -> list[Array]:
    """Apply a primitive at one point to one vector, each given as several arrays."""
    operands = [*map(jnp.asarray, (*point, *vector))]
    operands = varying_as(operands, operands)
    points = operands[: len(point)]
    vectors = operands[len(point) :]
    static = {"many": 0, "sharing": 0, "setting": setting, "precision": precision_asked()}
    return _bind_marking_zeros(primitive, points, vectors, **static)


def written_out(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the jaxpr of an equation's primitive if it is made in this file, or None."""
    run = RUNS.get(equation.primitive)
    types = [atom.aval for atom in equation.invars]
    return None if run is None else jax.make_jaxpr(partial(run, **equation.params))(*types)


def _bind_marking_zeros(
    primitive: Primitive, points: Sequence[Array], vectors: Sequence[Any], **static: Any
):
    """Bind a primitive to vectors, and record which of them are known to be zero."""
    zero = tuple(type(vector) is ad.Zero for vector in vectors)
    vectors = [*map(ad.instantiate_zeros, vectors)]
    return primitive.bind(*points, *vectors, count=len(points), zero=zero, **static)


def _derivative(primitive, primals, tangents, *, count, zero, **static):
    """Compute a primitive's JVP, by the primitive itself where its points are constant."""
    if all(type(tangent) is ad.Zero for tangent in tangents[:count]):
        value = primitive.bind(*primals, count=count, zero=zero, **static)
        return value, _bind_marking_zeros(primitive, primals[:count], tangents[count:], **static)
    run = partial(RUNS[primitive], count=count, zero=zero, **static)
    return jax.jvp(run, primals, tuple(map(ad.instantiate_zeros, tangents)))


def _transpose(other, covectors, *operands, count, zero, **static):
    """Transpose a linear primitive: apply the other of the pair to the covectors."""
    results = _bind_marking_zeros(other, operands[:count], covectors, **static)
    is_wanted = map(ad.is_undefined_primal, operands[count:])
    gradients = [x if needed else None for x, needed in zip(results, is_wanted, strict=True)]
    return [None] * count + gradients
