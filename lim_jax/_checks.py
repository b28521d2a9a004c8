"""Errors that say what was passed, what is accepted, and how to fix it.

Shapes and static values are checked before tracing and raise `Refusal`; values that may be traced
are checked by `error_if`, whose result must be used.
"""

import math
import operator
import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from numbers import Number, Real
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental import checkify
from jaxtyping import Array, Bool, PyTree

from lim_jax._argument_error import MARK, MissingPackage, Refusal
from lim_jax._errors import translate_errors
from lim_jax._jit import CHECKS_ARE_VALUES
from lim_jax._sharded_axes import varying_as, varying_axes

Tree = TypeVar("Tree")
AnyPath = Path | str
Flags = Bool[Array | np.ndarray, "..."] | np.bool_ | bool
ARRAYS = (jax.Array, np.ndarray)
KINDS = (jnp.integer, jnp.floating)  # of real numbers


def require(holds: bool, name: str, *, got: object, expected: str, cure: str) -> None:
    """Raise a `Refusal` that names the argument, unless `holds`."""
    if not holds:
        raise Refusal(f"{name}: got {got}, expected {expected}. {cure}".rstrip())


def described(value: object) -> str:
    """Say in a few words what an argument is."""
    if isinstance(value, ARRAYS):
        return f"an array of {value.dtype} with shape {value.shape}"
    spelt = value is None or isinstance(value, Number | str | np.generic)
    return repr(value) if spelt else type(value).__name__


def in_a_line(value: object) -> str:
    """Return ``str(value)`` with each run of white space replaced by one space."""
    return " ".join(str(value).split())


def require_extra(package: str, extra: str) -> None:
    """Raise MissingPackage unless a package of one of our extras is installed."""
    # A package that waits to be loaded until it is used would be loaded by find_spec.
    if sys.modules.get(package) is None and find_spec(package) is None:
        raise MissingPackage(
            f"{package}: got no such package, expected it installed. Install it: "
            f'python -m pip install "lim_jax[{extra}]".',
            name=package,
        )


def require_floating(array: object, name: str, cure: str = "Pass an array of floats.") -> None:
    """Raise ValueError unless this is an array of floating-point numbers."""
    require(
        isinstance(array, ARRAYS) and jnp.issubdtype(array.dtype, jnp.floating),
        name,
        got=described(array),
        expected="a floating-point array",
        cure=cure,
    )


def require_floats(array: Any, name: str, axes: str, cure: str = "", **sizes: int) -> None:
    """Raise ValueError unless this is a floating-point array with these axes.

    An axis has the size that `sizes` gives its name, else any but zero, the same wherever its name
    stands; further axes are allowed where the last name begins with a star.
    """
    require_floating(array, name, cure or "Pass an array of floats.")
    names = [axis for axis in axes.split() if axis[0] != "*"]
    fits = array.ndim == len(names) or ("*" in axes and array.ndim > len(names))
    sizes_by_axis = dict(sizes)
    for axis, size in zip(names, array.shape, strict=False):
        expected_size = sizes_by_axis.setdefault(axis, size)
        if size == 0 or size != expected_size:
            fits = False
    spelt = [str(sizes.get(axis, axis)) for axis in names]
    if "*" in axes:
        spelt.append("...")
    expected = f"({spelt[0]},)" if len(spelt) == 1 else f"({', '.join(spelt)})"
    if 0 in array.shape:
        expected += " with no axis empty"
    require(
        fits,
        name,
        got=f"shape {array.shape}",
        expected=expected,
        cure=cure or "Pass an array of this shape.",
    )


def require_indices(indices: Any, name: str) -> None:
    """Raise ValueError unless this is a non-empty array of integers along one axis."""
    integers = isinstance(indices, ARRAYS) and jnp.issubdtype(indices.dtype, jnp.integer)
    require(
        integers and indices.ndim == 1 and indices.size > 0,
        name,
        got="none" if integers and indices.size == 0 else described(indices),
        expected="at least one whole number, in an array of one axis",
        cure="Pass for example jnp.array([0, 3]).",
    )


def widen_integers(numbers: Any) -> Any:
    """Return integers of 32 bits at least, with which a count that is larger than theirs compares.

    >>> widen_integers(jnp.array([44], jnp.uint8)).dtype.name
    'int32'
    """
    return numbers.astype(np.int32) if jnp.iinfo(numbers.dtype).bits < 32 else numbers


def as_int(
    number: Any,
    name: str,
    *,
    least: int = 1,
    most: int | None = None,
    expected: str = "",
    cure: str = "Pass a Python int.",
) -> int:
    """Return an integer known before tracing as an `int`; raise ValueError at anything else."""
    try:
        value = least - 1 if isinstance(number, bool | np.bool_) else operator.index(number)
    except TypeError:
        value = least - 1
    bounds = f"at least {least}" if most is None else f"from {least} to {most}"
    expected = expected or f"a whole number known before tracing, {bounds}"
    require(
        least <= value <= (value if most is None else most),
        name,
        got=described(number),
        expected=expected,
        cure=cure,
    )
    return value


def is_real(number: Any) -> TypeGuard[float]:
    """Tell whether this is a real number known before tracing, and no boolean."""
    return isinstance(number, Real) and not isinstance(number, bool)


def require_positive(number: Any, name: str, *, expected: str, cure: str) -> None:
    """Raise ValueError unless this is a positive finite number known before tracing."""
    require(
        is_real(number) and 0 < float(number) < math.inf,
        name,
        got=described(number),
        expected=expected,
        cure=cure,
    )


def require_optional(number: Any, name: str, cure: str) -> None:
    """Raise ValueError unless this is None or a positive finite number known before tracing."""
    if number is not None:
        require_positive(number, name, expected="None or a positive finite number", cure=cure)


def as_numbers(values: Any, name: str, *, expected: str, cure: str) -> np.ndarray:
    """Return a non-empty list or array of real numbers as a NumPy array of one axis."""
    several = isinstance(values, (Sequence, *ARRAYS)) and not isinstance(values, str)
    try:
        numbers = np.asarray(values) if several else np.zeros(())
    except ValueError:  # of lists of several lengths
        numbers = np.zeros(())
    real = any(jnp.issubdtype(numbers.dtype, kind) for kind in KINDS)
    require(
        numbers.ndim == 1 and numbers.size > 0 and real,
        name,
        got="none" if numbers.shape == (0,) else described(values),
        expected=expected,
        cure=cure,
    )
    return numbers.astype(float)


def require_scalar(number: Any, name: str) -> None:
    """Raise ValueError unless this is a real number or an array of shape (), traced or known."""
    scalar = isinstance(number, ARRAYS) and number.shape == ()
    require(
        is_real(number) or (scalar and any(jnp.issubdtype(number.dtype, kind) for kind in KINDS)),
        name,
        got=described(number),
        expected="a real number",
        cure="Pass a float, or an array of shape ().",
    )


def as_path(path: Any, name: str = "path") -> Path:
    """Return a `Path` from a non-empty string or `Path`; raise ValueError at anything else."""
    require(
        isinstance(path, str | Path) and path != "",
        name,
        got=described(path),
        expected="the path of a file or a folder",
        cure="Pass a string or a pathlib.Path.",
    )
    return Path(path)


def require_kind(value: object, kind: type, name: str, cure: str) -> None:
    """Raise ValueError unless this is an instance of a type."""
    require(
        isinstance(value, kind),
        name,
        got=f"the type {value.__name__} itself" if isinstance(value, type) else described(value),
        expected="a text" if kind is str else f"an instance of {kind.__name__}",
        cure=cure,
    )


def require_several(values: object, kind: type, name: str, cure: str) -> None:
    """Raise ValueError unless this is a non-empty list of instances of a type, no string."""
    listed = values if isinstance(values, Sequence) and not isinstance(values, str) else ()
    others = [at for at, value in enumerate(listed) if not isinstance(value, kind)]
    if others:
        got = f"{described(listed[others[0]])} at index {others[0]}"
    elif isinstance(values, Sequence) and not values:
        got = "none"
    else:
        got = described(values)
    require(
        len(listed) > 0 and not others,
        name,
        got=got,
        expected=f"a list of {_spelt(kind)}, at least one",
        cure=cure,
    )


def _spelt(kind: type) -> str:
    """Return a type's name as an error says it in the plural."""
    return "texts" if kind is str else kind.__name__


def require_text(text: object, name: str) -> None:
    """Raise ValueError unless this is a string."""
    require_kind(text, str, name, "Pass a string.")


def require_name(value: object, options: Iterable[str], name: str, cure: str) -> None:
    """Raise ValueError unless this is one of the names that are options."""
    choices = list(options)
    require(
        isinstance(value, str) and value in choices,
        name,
        got=described(value),
        expected=" or ".join(f'"{choice}"' for choice in choices),
        cure=cure,
    )


def require_callable(function: object, name: str, signature: str) -> None:
    """Raise ValueError unless this can be called."""
    require(
        callable(function),
        name,
        got=described(function),
        expected=f"a function {signature}",
        cure="Pass the function itself, not what it returns.",
    )


def require_example(example: object) -> None:
    """Raise ValueError unless this is a pair of a state and its labels."""
    several = isinstance(example, tuple)
    require(
        several and len(example) == 2,
        "example",
        got=f"a tuple of {len(example)}" if several else described(example),
        expected="a pair (x, y) of an input and its labels",
        cure="Pass (x, y), or (x, None) where the loss looks at no labels.",
    )


def require_auto(tree: PyTree, name: str) -> None:
    """Raise ValueError at arrays that are sharded over mesh axes of type Explicit."""
    for leaf in jax.tree.leaves(tree):
        typed = jax.typeof(leaf) if isinstance(leaf, jax.Array) else None
        require(
            typed is None or all(axis is None for axis in typed.sharding.spec),
            name,
            got=typed,
            expected="axes of type Auto",
            cure=(
                "Make the mesh with axis_types=(jax.sharding.AxisType.Auto, ...): then the "
                "compiler finds how what is computed is spread."
            ),
        )


def require_key(key: Any) -> None:
    """Raise ValueError unless this is a single random key."""
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    legacy = isinstance(key, ARRAYS) and key.dtype == jnp.uint32 and key.shape == (2,)
    require(
        (typed and key.shape == ()) or legacy,
        "key",
        got=described(key),
        expected="one random key",
        cure="Make it with jax.random.key(seed); vmap over several.",
    )


def require_known(tree: PyTree, name: str, expected: str = "numbers that are there") -> None:
    """Raise ValueError if any array of a pytree is traced."""
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))
    require(
        not traced,
        name,
        got="traced arrays",
        expected=expected,
        cure="Call it outside jax.jit, jax.vmap and jax.grad.",
    )


def error_if(tree: Tree, fails: Flags, message: str) -> Tree:
    """Return `tree`; where any of `fails` is true its use raises, also inside `jax.jit`."""
    return error_if_first(tree, (fails, message))


def error_if_got(
    tree: Tree, name: str, *, got: Mapping[str, Flags], expected: str, cure: str
) -> Tree:
    """Return `tree`; its use raises where one of the flags is true, and says what it got there."""
    checks = [
        (fails, f"{name}: got {violation}, expected {expected}. {cure}")
        for violation, fails in got.items()
    ]
    return error_if_first(tree, *checks)


def error_if_first(tree: Tree, *checks: tuple[Flags, str]) -> Tree:
    """Return `tree`; its use raises with the message of the first check that fails."""
    for fails, message in checks:
        if not isinstance(fails, Tracer) and np.any(fails):
            with translate_errors():
                return eqx.error_if(tree, True, MARK + message)
    traced = [
        (jnp.any(fails), MARK + message) for fails, message in checks if isinstance(fails, Tracer)
    ]
    if not traced:
        return tree  # known by now: nothing need be compiled
    if CHECKS_ARE_VALUES.value:
        for fails, message in traced:
            checkify.check(~fails, message.replace("{", "{{").replace("}", "}}"))
        return tree
    # The last check first: of several examples or devices the largest number counts.
    flags, messages = zip(*reversed(traced), strict=True)
    _require_sizes((tree, flags))
    first = jnp.asarray(0, jnp.int32)
    some = flags[0]
    for number, flag in enumerate(flags[1:], start=1):
        first = jnp.where(flag, number, first)
        some = some | flag
    with translate_errors():
        if varying_axes((tree, some)):
            return _error_if_on_any_device(tree, some, first, messages)
        return eqx.branched_error_if(tree, some, first, messages)


def _require_sizes(tree: PyTree) -> None:
    """Raise ValueError at symbolic sizes: `jax.export` takes no callbacks, as checks are."""
    sizes = [size for leaf in jax.tree.leaves(tree) for size in getattr(leaf, "shape", ())]
    symbolic = [size for size in sizes if not isinstance(size, int)]
    require(
        not symbolic or os.environ.get("EQX_ON_ERROR") == "off",
        "shape",
        got=f"a symbolic size, {symbolic[:1]}",
        expected="known sizes in a program that checks its values",
        cure="Export without checks: start Python with EQX_ON_ERROR=off in its environment.",
    )


def _error_if_on_any_device(
    tree: Tree, fails: Array, first: Array, messages: Sequence[str]
) -> Tree:
    """Return `tree`; its use raises on all devices of a `jax.shard_map` if one's check fails."""
    fails, first = varying_as((fails.astype(int), first), (fails, first))
    axes = tuple(varying_axes(fails))
    anywhere, first_anywhere = (
        jax.lax.pmax(number, axes) if axes else number for number in (fails, first)
    )
    never = eqx.branched_error_if(jnp.array(False), anywhere > 0, first_anywhere, messages)

    def depend_on_check(leaf: Any) -> Any:
        """Make an array wait for the check without changing its values."""
        return jnp.where(never, jnp.zeros_like(leaf), leaf) if eqx.is_array(leaf) else leaf

    return jax.tree.map(depend_on_check, tree)


def all_finite(tree: PyTree) -> Bool[Array | np.ndarray, ""]:
    """Tell whether all floating-point leaves are finite; known arrays compile nothing."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    if not any(isinstance(leaf, Tracer) or _elsewhere(leaf) for leaf in leaves):
        return np.array(all(np.isfinite(np.asarray(leaf)).all() for leaf in leaves))
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def _elsewhere(leaf: Array | np.ndarray) -> bool:
    """Tell whether a part of an array is on another process's devices."""
    return not getattr(leaf, "is_fully_addressable", True)


def error_if_not_finite(tree: Tree, name: str) -> Tree:
    """Return `tree`; its use raises where it holds a NaN or an infinity."""
    message = (
        f"{name}: got NaN or infinite values, expected finite ones. Drop or repair what holds them."
    )
    return error_if(tree, ~all_finite(tree), message)


def as_finite(number: Tree, name: str) -> Tree:
    """Return a finite real number; raise at others, at once if known and when used if traced."""
    require_scalar(number, name)
    if not isinstance(number, Real):
        return error_if_not_finite(number, name)
    finite = "Pass a number that is not NaN or infinite."
    require(math.isfinite(number), name, got=f"{number}", expected="a finite number", cure=finite)
    return number


def as_finite_nonnegative(number: Tree, name: str, below: float = math.inf) -> Tree:
    """Return a finite number from zero to less than `below`; raise at others."""
    return as_nonnegative(as_finite(number, name), name, below=below)


def as_nonnegative(
    values: Any, name: str, cure: str = "Take 0 for none.", below: float = math.inf
) -> Any:
    """Return numbers from zero to less than `below`, and NaN; raise at others."""
    if not isinstance(values, ARRAYS):
        require_scalar(values, name)
    capped = below < math.inf
    expected = f"from 0 to below {below:g}" if capped else "nothing below zero"
    if isinstance(values, Real):
        require(
            not (float(values) < 0 or (capped and float(values) >= below)),
            name,
            got=f"{values}",
            expected=expected,
            cure=cure,
        )
        return values
    is_concrete = not isinstance(values, Tracer) and not _elsewhere(values)
    numbers = np.asarray(values) if is_concrete else values
    got = {"a number below zero": numbers < 0}
    if capped:
        got[f"a number from {below:g} on"] = numbers >= below
    return error_if_got(values, name, got=got, expected=expected, cure=cure)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def no_derivative(tree: PyTree, message: str) -> Any:
    """Return `tree`; a derivative of it in any mode raises `NotImplementedError` with a message."""
    return tree


@no_derivative.defjvp
def _no_derivative_jvp(message, primals, tangents):
    """Raise NotImplementedError with the message, whatever the tangents."""
    raise NotImplementedError(message)


def warn_of_miscompiling_jaxlib(installed: str) -> None:
    """Warn if jaxlib is 0.10.2, whose CPU compiler computes vmapped VJPs of LayerNorm wrongly."""
    if installed == "0.10.2":
        warnings.warn(
            "jaxlib 0.10.2 miscompiles the vmapped VJP of layer normalisation on CPU: influence, "
            "Gramians and Jacobians can be wrong by tens of per cent without a sign. "
            "Install another version: python -m pip install 'jaxlib!=0.10.2' 'jax!=0.10.2'.",
            RuntimeWarning,
            stacklevel=2,
        )


warn_of_miscompiling_jaxlib(version("jaxlib"))
