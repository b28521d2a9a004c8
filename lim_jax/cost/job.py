"""What a job will cost before it runs: operations, memory, and whether it fits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import PyTree

from lim_jax._checks import require, require_callable, require_kind, require_positive
from lim_jax.cost.counting import operations

BYTES = "Pass bytes: a gibibyte is 2**30 of them."


class Cost(NamedTuple):
    """What one call of a compiled job takes: operations of all matrix products, and bytes.

    Attributes
    ----------
    operations
        Floating-point operations of all matrix products, two for each multiplication and sum.
    temporary
        Bytes of what is neither an argument nor an output.
    arguments
        Bytes of the arguments.
    outputs
        Bytes of the outputs.
    """

    operations: int
    temporary: int
    arguments: int
    outputs: int

    @property
    def memory(self) -> int:
        """The bytes of temporary arrays, arguments and outputs together."""
        return self.temporary + self.arguments + self.outputs


def job_cost(job: Callable[..., Any], *arguments: PyTree) -> Cost:
    """Compile a job for the shapes of its arguments, and count what a call costs.

    Runs nothing, and allocates none of it. Not for use inside a transformation.

    Parameters
    ----------
    job
        A function of the arguments, which are pytrees of arrays; it is compiled by `jax.jit` for
        JAX's default device.
    *arguments
        What the job is called with, or ``jax.ShapeDtypeStruct`` in place of arrays (from
        ``jax.eval_shape``). Leaves that have no shape are static.

    Returns
    -------
    Cost
        The operations of all matrix products, and the bytes of temporaries, arguments and outputs;
        ``memory`` is the sum of the bytes.

    Raises
    ------
    ValueError
        If `job` cannot be called.
    RuntimeError
        If the compiler of this platform gives no account of memory.

    Examples
    --------
    >>> matrix = jax.ShapeDtypeStruct((100, 100), "float32")
    >>> cost = job_cost(lambda a, b: a @ b, matrix, matrix)
    >>> cost.operations, cost.arguments, cost.outputs
    (2000000, 80000, 40000)
    """
    require_callable(job, "job", "of the arguments that follow it")
    leaves = jax.tree.map(_shape, arguments)
    shapes, static = eqx.partition(leaves, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def arrays_of_job(shapes: PyTree) -> PyTree:
        """Run the job and keep the arrays of what it returns."""
        return eqx.filter(job(*eqx.combine(shapes, static)), eqx.is_array)

    traced = jax.jit(arrays_of_job).trace(shapes)
    analysis = traced.lower().compile().memory_analysis()
    if analysis is None:
        raise RuntimeError(
            f"job: got no account of memory from the compiler of {jax.default_backend()}, expected "
            "one. Count on a CPU: set JAX_PLATFORMS=cpu, as no job is run."
        )
    return Cost(
        operations(traced.jaxpr),
        analysis.temp_size_in_bytes,
        analysis.argument_size_in_bytes,
        analysis.output_size_in_bytes,
    )


def require_fits(cost: Cost, available: int) -> None:
    """Raise ValueError where a job needs more memory than there is.

    Parameters
    ----------
    cost
        What a call of the job takes, from `job_cost`.
    available
        How much memory there is, in bytes: a positive number. A gibibyte is ``2**30``.

    Returns
    -------
    None
        Nothing, where the job fits.

    Raises
    ------
    ValueError
        If the job needs more memory, `cost` is no `Cost`, or `available` is not positive.

    Examples
    --------
    >>> require_fits(Cost(0, temporary=10, arguments=5, outputs=1), available=16)
    """
    require_kind(cost, Cost, "cost", "Take it from job_cost.")
    require_positive(available, "available", expected="a positive number of bytes", cure=BYTES)
    require(
        cost.memory <= available,
        "job",
        got=f"{cost.memory / 2**20:.1f} MiB, {cost.temporary / 2**20:.1f} of them temporary",
        expected=f"at most {available / 2**20:.1f} MiB",
        cure="Take fewer examples at a time: influence_stream merges them to the same result.",
    )


def _shape(leaf: Any) -> Any:
    """Replace an array by its shape and type; return others unchanged."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if hasattr(leaf, "shape") else leaf
