"""Errors of compiled programs in our words: without what wraps them, and with a cure."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
from jax.core import Tracer
from jax.experimental import checkify
from jax.extend.core import get_opaque_trace_state, jaxpr_as_fun
from jaxtyping import PyTree

from lim_jax._refusal import Refusal, refusal

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")
# Whether checks are values of the program that is traced: JAX's caches of what was traced know it.
CHECKS_ARE_VALUES = jax.make_user_context(default_value=False)
NOT_TRACING = get_opaque_trace_state()
# JAX's words, and Equinox's, of derivatives that a loop or a custom_vjp does not have.
UNDIFFERENTIABLE = re.compile(
    r"to a custom_vjp function|`filter_custom_vjp` cannot be autodifferentiated"
    r"|Reverse-mode differentiation does not work for lax.while_loop"
)


@contextmanager
def in_our_words() -> Iterator[None]:
    """Raise refusals without what wraps them, and say the cure where JAX has no derivative."""
    try:
        yield
    except (eqx.EquinoxRuntimeError, eqx.EquinoxTracetimeError) as error:
        words = refusal(error)
        if words is None:
            raise
        raise eqx.EquinoxRuntimeError(words) from None
    except (TypeError, ValueError, RuntimeError) as error:
        if refusal(error) or not UNDIFFERENTIABLE.search(str(error)):
            raise
        said = str(error).splitlines()[0]
        raise Refusal(
            f'derivative: got "{said}", expected a function that has it in every mode. Of a '
            "ContinuousFlow take adjoint=diffrax.DirectAdjoint() and as few max_steps as do; a "
            "while_loop or a custom_vjp of your own has to be a scan or a custom_jvp."
        ) from error


def filter_jit(function: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
    """Equinox's, with errors in our words, and checks as values where nothing traces the call.

    A program with a callback, as Equinox's checks of values have, is never kept in JAX's
    compilation cache, and on an accelerator it waits for the host. So what we compile ourselves
    returns whether a check failed, and the host raises. Within another's trace checks raise from
    within the program.
    """
    traced = eqx.filter_jit(function)

    @eqx.filter_jit
    @wraps(function)
    def program(*args: Any, **kwargs: Any) -> tuple[checkify.Error | None, Any]:
        arrays, static = eqx.partition((args, kwargs), eqx.is_array)
        others = []

        def of_arrays(arrays: PyTree) -> PyTree:
            args, kwargs = eqx.combine(arrays, static)
            results = function(*args, **kwargs)  # pyright: ignore[reportCallIssue]
            results, other = eqx.partition(results, eqx.is_array)
            others.append(other)
            return results

        opened, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(arrays)
        failed, of_leaves, leaves = None, jaxpr_as_fun(opened), jax.tree.leaves(arrays)
        if opened.effects:  # checks are among them; to look for some where none are takes a while
            checked = checkify.checkify(of_leaves, errors=checkify.user_checks)
            failed, leaves = checked(*leaves)
        else:
            leaves = of_leaves(*leaves)
        results = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
        return failed, eqx.combine(results, others[-1])

    @wraps(function)
    def call(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Output:
        with in_our_words():
            if get_opaque_trace_state() != NOT_TRACING:
                return traced(*args, **kwargs)
            try:
                with CHECKS_ARE_VALUES(True):
                    failed, results = program(*args, **kwargs)
            except eqx.EquinoxRuntimeError:
                # A check of another library, such as diffrax's, stopped it before ours were read:
                # with callbacks the first of all raises.
                return traced(*args, **kwargs)
            except ValueError as error:
                # Nor does checkify open the operators of some libraries, such as lineax's.
                if "not functionalized" not in str(error):
                    raise
                return traced(*args, **kwargs)
            if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((failed, results))):
                # Within a trace after all: that in which this module was imported, at first use.
                return traced(*args, **kwargs)
            said = failed and failed.get()
            if said:
                raise eqx.EquinoxRuntimeError(said.removesuffix(" (`check` failed)"))
            return results

    return call
