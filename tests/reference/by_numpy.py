"""A traced program run by NumPy, operation by operation: to compile what runs once takes longer.

What JAX traced is run; JAX runs what stands in no table here, such as gathers, each by itself.
"""

import equinox as eqx
import jax
import numpy as np
from scipy.special import erf, erfc, expit

from lim_jax._linear import RUNS, written_out


def run(function, *arguments):
    """``function(*arguments)``, as by `equinox.filter_jit`, of a tree of arrays."""
    arrays, static = eqx.partition(arguments, eqx.is_array)
    traced = jax.jit(lambda arrays: function(*eqx.combine(arrays, static))).trace(arrays)
    results = _run(traced.jaxpr, jax.tree.leaves(arrays))
    return jax.tree.unflatten(jax.tree.structure(traced.out_info), results)


def _run(program, arguments):
    """The results of a program of JAX, which may be closed or have no constants."""
    program, consts = getattr(program, "jaxpr", program), getattr(program, "consts", ())
    values = dict(zip((*program.constvars, *program.invars), (*consts, *arguments), strict=True))

    def read(atoms):
        return [np.asarray(atom.val if hasattr(atom, "val") else values[atom]) for atom in atoms]

    for equation in program.eqns:
        found = _results(equation, *read(equation.invars))
        values |= zip(equation.outvars, found, strict=True)
    return read(program.outvars)


def _results(equation, *operands):
    primitive, params = equation.primitive, equation.params
    name = primitive.name
    if name in ELEMENTWISE:
        return [ELEMENTWISE[name](*operands)]
    if name in RESULT:
        return [RESULT[name](*operands, **params)]
    if name in RESULTS:
        return RESULTS[name](*operands, **params)
    if name == "scan":
        return _scan(equation, *operands)
    if name in INNER:
        return _run(params[INNER[name]], operands)
    if primitive in RUNS:
        return _run(_own(equation), operands)
    found = primitive.bind(*operands, **primitive.get_bind_params(params))
    return found if primitive.multiple_results else [found]


def _own(equation, known={}):  # noqa: B006
    """The program of an operation of the library, traced once for each type of its operands."""
    key = equation.primitive, *equation.params.items(), *(atom.aval for atom in equation.invars)
    if key not in known:
        known[key] = written_out(equation)
    return known[key]


def _scan(equation, *operands):
    body, length, reverse = (equation.params[name] for name in ("jaxpr", "length", "reverse"))
    program = getattr(body, "jaxpr", body)

    def sliced(stacked, slices):  # whose numbers JAX's versions name differently
        pairs = zip(stacked, slices, strict=True)
        return sum(len(whole.aval.shape) > len(part.aval.shape) for whole, part in pairs)

    carried = len(equation.outvars) - sliced(equation.outvars, program.outvars)
    cut = len(operands) - sliced(equation.invars, program.invars)
    consts, carry, rows = operands[: cut - carried], operands[cut - carried : cut], operands[cut:]
    stacked = []
    for i in reversed(range(length)) if reverse else range(length):
        found = _run(body, [*consts, *carry, *(row[i] for row in rows)])
        carry = found[:carried]
        stacked.append(found[carried:])
    stacked = stacked[::-1] if reverse else stacked
    return [*carry, *map(np.stack, zip(*stacked, strict=True))]


def _while(*operands, cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts):
    first, carry = operands[:cond_nconsts], operands[cond_nconsts + body_nconsts :]
    consts = operands[cond_nconsts : cond_nconsts + body_nconsts]
    while _run(cond_jaxpr, [*first, *carry])[0]:
        carry = _run(body_jaxpr, [*consts, *carry])
    return carry


def _broadcast(x, shape, broadcast_dimensions, **_):
    aligned = [1] * len(shape)
    for size, axis in zip(x.shape, broadcast_dimensions, strict=True):
        aligned[axis] = size
    return np.broadcast_to(x.reshape(aligned), shape)


def _dot(left, right, dimension_numbers, preferred_element_type, **_):
    (of_left, of_right), (batch, of_batch) = dimension_numbers
    names, others = list(range(left.ndim)), [left.ndim + axis for axis in range(right.ndim)]
    for mine, theirs in zip((*of_left, *batch), (*of_right, *of_batch), strict=True):
        others[theirs] = names[mine]
    shared, summed = [names[axis] for axis in batch], [names[axis] for axis in of_left]
    free = [name for name in (*names, *others) if name not in (*shared, *summed)]
    return np.einsum(left, names, right, others, [*shared, *free]).astype(preferred_element_type)


def _iota(dtype, shape, dimension, **_):
    aligned = [-1 if axis == dimension else 1 for axis in range(len(shape))]
    return np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(aligned), shape)


def _slice(x, start_indices, limit_indices, strides):
    strides = strides or (1,) * x.ndim
    return x[tuple(map(slice, start_indices, limit_indices, strides))]


def _dynamic_slice(x, *starts, slice_sizes):
    limits = np.subtract(x.shape, slice_sizes)
    starts = np.clip(starts, 0, limits)
    return x[tuple(map(slice, starts, starts + slice_sizes))]


INNER = {
    "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr", "jit": "jaxpr",
    "remat2": "jaxpr",
}  # fmt: skip
RESULTS = {
    "cond": lambda index, *operands, branches: _run(branches[int(index)], operands),
    "split": lambda x, sizes, axis: np.split(x, np.cumsum(sizes)[:-1], axis),
    "while": _while,
}
RESULT = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda *parts, dimension: np.concatenate(parts, dimension),
    "convert_element_type": lambda x, new_dtype, **_: x.astype(new_dtype),
    "cos": lambda x, **_: np.cos(x),
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "erf": lambda x, **_: erf(x),
    "erfc": lambda x, **_: erfc(x),
    "exp": lambda x, **_: np.exp(x),
    "integer_pow": lambda x, y: x**y,
    "iota": _iota,
    "log": lambda x, **_: np.log(x),
    "log1p": lambda x, **_: np.log1p(x),
    "logistic": lambda x, **_: expit(x),
    "reduce_and": lambda x, axes, **_: x.all(axes),
    "reduce_max": lambda x, axes, **_: x.max(axes),
    "reduce_min": lambda x, axes, **_: x.min(axes),
    "reduce_or": lambda x, axes, **_: x.any(axes),
    "reduce_sum": lambda x, axes, **_: x.sum(axes),
    "reshape": lambda x, new_sizes, **_: x.reshape(new_sizes),
    "rsqrt": lambda x, **_: 1 / np.sqrt(x),
    "sin": lambda x, **_: np.sin(x),
    "slice": _slice,
    "squeeze": lambda x, dimensions: np.squeeze(x, dimensions),
    "sqrt": lambda x, **_: np.sqrt(x),
    "stack": lambda *parts, axis: np.stack(parts, axis),
    "tanh": lambda x, **_: np.tanh(x),
    "transpose": lambda x, permutation: x.transpose(permutation),
}  # fmt: skip
ELEMENTWISE = {
    "abs": np.abs, "add": np.add, "add_any": np.add, "and": np.bitwise_and,
    "clamp": lambda low, x, high: np.clip(x, low, high), "copy": np.copy,
    "div": lambda x, y: x / y if x.dtype.kind == "f" else np.trunc(x / y).astype(x.dtype),
    "eq": np.equal, "floor": np.floor, "ge": np.greater_equal, "gt": np.greater,
    "is_finite": np.isfinite, "le": np.less_equal, "lt": np.less, "max": np.maximum,
    "min": np.minimum, "mul": np.multiply, "linear": lambda matrix, tokens: tokens @ matrix.T,
    "ne": np.not_equal, "neg": np.negative, "not": np.bitwise_not, "or": np.bitwise_or,
    "rem": np.fmod,
    "select_n": lambda which, *cases: np.choose(which, cases) if which.ndim else cases[int(which)],
    "sign": np.sign, "stop_gradient": np.asarray, "sub": np.subtract,
}  # fmt: skip
