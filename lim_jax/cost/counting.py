"""How many floating-point operations a traced program makes, counted without running it.

Matrix products count, two operations for each multiplication and sum: those of a loop as often as
it runs. Of a branch the one that is taken counts where integers of the program itself decide it,
else the dearest.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from lim_jax._linear import written_out

# An integer's values in all iterations of the loops around it, which come first; None: not known.
Known = np.ndarray | None
MOST_KNOWN = 2**22


def operations(program: ClosedJaxpr) -> int:
    """Count a program's operations; a `jax.lax.while_loop` counts as if it ran once."""
    return _count(program, [None] * len(program.in_avals), 1)[0]


def _count(
    program: ClosedJaxpr | Jaxpr, arguments: Sequence[Known], iterations: int
) -> tuple[int, list[Known]]:
    """Count a program's operations in all iterations; return them and the known results."""
    jaxpr = _jaxpr_of(program)
    values = dict(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Known:
        """Return the value of an input if it is known, in every iteration."""
        if isinstance(atom, Literal):
            return _in_all(atom.val, iterations) if _is_integer(atom.aval, iterations) else None
        return values.get(atom)

    total = 0
    for equation in jaxpr.eqns:
        count, results = _count_equation(equation, [*map(read, equation.invars)], iterations)
        values.update(zip(equation.outvars, results, strict=True))
        total += count
    return total, [*map(read, jaxpr.outvars)]


def _count_equation(
    equation: JaxprEqn, inputs: list[Known], iterations: int
) -> tuple[int, list[Known]]:
    """Count one equation's operations in all iterations; return them and the known results."""
    unknown: list[Known] = [None] * len(equation.outvars)
    name = equation.primitive.name
    params = equation.params
    if name == "dot_general":
        return iterations * _product_operations(equation), unknown
    if name == "scan":
        return _count_scan(equation, inputs, iterations)
    if name == "cond":
        return _count_branches(params["branches"], inputs, iterations), unknown
    if name == "custom_linear_solve":  # of its four programs this one is called
        return _count_unknown(params["jaxprs"].solve, iterations), unknown
    inside = [value for value in params.values() if isinstance(value, ClosedJaxpr | Jaxpr)]
    program = written_out(equation)
    if program is not None:
        inside = [program]
    if "callback" in name:  # a check of values, of the host's own Python
        return 0, unknown
    if not inside:
        return 0, _evaluate(equation, inputs, iterations)
    if len(inside) == 1 and _is_called(inside[0], equation):
        return _count(inside[0], inputs, iterations)
    return sum(_count_unknown(program, iterations) for program in inside), unknown


def _is_called(program: ClosedJaxpr | Jaxpr, equation: JaxprEqn) -> bool:
    """Tell whether a program takes an equation's own inputs; a reduction's takes two numbers."""
    return _shapes(_jaxpr_of(program).invars) == _shapes(equation.invars)


def _shapes(variables: Sequence[Any]) -> list[tuple]:
    """Return the shapes of a program's variables."""
    return [variable.aval.shape for variable in variables]


def _count_unknown(program: ClosedJaxpr | Jaxpr, iterations: int) -> int:
    """Count a program's operations where no input is known."""
    return _count(program, [None] * len(_jaxpr_of(program).invars), iterations)[0]


def _product_operations(equation: JaxprEqn) -> int:
    """Count the multiplications and additions of one matrix product."""
    (contracted, _), _ = equation.params["dimension_numbers"]
    first: Any = equation.invars[0].aval
    out: Any = equation.outvars[0].aval
    return 2 * out.size * math.prod(first.shape[axis] for axis in contracted)


def _count_scan(
    equation: JaxprEqn, inputs: list[Known], iterations: int
) -> tuple[int, list[Known]]:
    """Count a scan's operations, step by step if it scans known integers, else of equal steps."""
    body = equation.params["jaxpr"]
    length = equation.params["length"]
    # JAX's versions name differently how many inputs are of which kind: constants, then what is
    # carried, then what is scanned, of which alone a step takes slices.
    program = _jaxpr_of(body)
    num_carried = len(equation.outvars) - _count_sliced(equation.outvars, program.outvars)
    num_constants = len(inputs) - _count_sliced(equation.invars, program.invars) - num_carried
    constants = inputs[:num_constants]
    scan_inputs = inputs[num_constants + num_carried :]
    carry: list[Known] = [None] * num_carried
    if all(value is None for value in scan_inputs):  # all steps are alike
        steps, results = _count(body, [*constants, *carry, *scan_inputs], iterations)
        return length * steps, [None] * len(results)
    constants_by_step = [_repeat(value, length) for value in constants]
    slices = [v if v is None else v.reshape(-1, *v.shape[2:]) for v in scan_inputs]
    total, results = _count(body, [*constants_by_step, *carry, *slices], length * iterations)
    stacks = [
        v if v is None else v.reshape(-1, length, *v.shape[1:]) for v in results[num_carried:]
    ]
    return total, [*carry, *stacks]


def _count_sliced(stacked: Sequence[Any], slices: Sequence[Any]) -> int:
    """Count the arrays of which a scan's step takes slices: they have one axis more outside."""
    pairs = zip(_shapes(stacked), _shapes(slices), strict=True)
    return sum(len(stack) > len(slice_) for stack, slice_ in pairs)


def _count_branches(branches: Sequence[ClosedJaxpr], inputs: list[Known], iterations: int) -> int:
    """Count the branches that a known index takes; of an unknown index the costliest."""
    branch_index, *inputs = inputs
    if branch_index is None:
        return max(_count(branch, inputs, iterations)[0] for branch in branches)
    total = 0
    for index, branch in enumerate(branches):
        where = branch_index == index
        branch_inputs = [value if value is None else value[where] for value in inputs]
        total += _count(branch, branch_inputs, int(where.sum()))[0] if where.any() else 0
    return total


def _evaluate(equation: JaxprEqn, inputs: list[Known], iterations: int) -> list[Known]:
    """Compute integers from known ones; without inputs (a counter's `iota`) in all iterations."""
    operands = [value for value in inputs if value is not None]
    integers = all(_is_integer(variable.aval, iterations) for variable in equation.outvars)
    if len(operands) < len(inputs) or not integers:
        return [None] * len(equation.outvars)

    def once(*values: Any) -> list[Any]:
        """Run the equation on the values of one iteration."""
        results = equation.primitive.bind(*values, **equation.params)
        return results if equation.primitive.multiple_results else [results]

    if not inputs:
        return [_in_all(value, iterations) for value in once()]
    return [np.asarray(value) for value in jax.vmap(once)(*operands)]


def _is_integer(aval: Any, iterations: int) -> bool:
    """Tell whether a value is of integers or flags, few enough to keep for every iteration."""
    kind = getattr(getattr(aval, "dtype", None), "kind", "")
    return kind in ("b", "i", "u") and aval.size * iterations <= MOST_KNOWN


def _in_all(value: Any, iterations: int) -> np.ndarray:
    """Repeat a value for every iteration along a new leading axis."""
    return np.broadcast_to(np.asarray(value), (iterations, *np.shape(value)))


def _repeat(value: Known, times: int) -> Known:
    """Repeat a known value for every step of a scan; return None if it gets too large."""
    if value is None or value.size * times > MOST_KNOWN:
        return None
    return np.repeat(value, times, axis=0)


def _jaxpr_of(program: ClosedJaxpr | Jaxpr) -> Jaxpr:
    """Return a program without its constants."""
    return program.jaxpr if isinstance(program, ClosedJaxpr) else program
