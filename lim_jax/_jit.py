"""Programs that the library compiles itself: checks are values in them, and vectors are wide."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
from jax.core import Tracer
from jax.experimental import checkify
from jax.extend.core import get_opaque_trace_state, jaxpr_as_fun
from jaxtyping import PyTree

from lim_jax._errors import in_our_words

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")
# Whether checks are values of the program that is traced: JAX's caches of what was traced know it.
CHECKS_ARE_VALUES = jax.make_user_context(default_value=False)
NOT_TRACING = get_opaque_trace_state()
# XLA's CPU by itself takes vectors of 256 bits where the processor has wider ones, too.
WIDE_VECTORS = {"xla_cpu_prefer_vector_width": 512}


@cache
def _options() -> dict[str, int] | None:
    try:
        jax.jit(lambda: 0.0, compiler_options=WIDE_VECTORS).lower().compile()
    except jax.errors.JaxRuntimeError:  # this XLA has no such option
        return None
    return WIDE_VECTORS


def jit_is_off() -> bool:
    """Whether `jax.disable_jit` holds here, under which everything runs step by step."""
    config: Any = jax.config
    return config.jax_disable_jit


def filter_jit(function: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
    """Equinox's, with errors in our words, and checks as values where nothing traces the call.

    A program with a callback, as Equinox's checks of values have, is never kept in JAX's
    compilation cache, and on an accelerator it waits for the host. So what we compile ourselves
    returns whether a check failed, and the host raises. Within another's trace checks raise from
    within the program.
    """
    traced = eqx.filter_jit(function)

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

    @cache
    def compiled() -> Callable[..., tuple[checkify.Error | None, Any]]:
        jitted: Any = eqx.filter_jit
        return jitted(program, compiler_options=_options())

    @wraps(function)
    def call(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Output:
        with in_our_words():
            if jit_is_off() or get_opaque_trace_state() != NOT_TRACING:
                return traced(*args, **kwargs)
            try:
                with CHECKS_ARE_VALUES(True):
                    failed, results = compiled()(*args, **kwargs)
            except eqx.EquinoxRuntimeError:
                # A check of another library, such as diffrax's, stopped it before ours were read:
                # with callbacks the first of all raises.
                return traced(*args, **kwargs)
            except ValueError as error:
                # Nor does checkify open the operators of some libraries, such as lineax's; and in
                # the trace in which this module was imported, at first use, XLA takes no options.
                if not any(words in str(error) for words in ("not functionalized", "top-level")):
                    raise
                return traced(*args, **kwargs)
            if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((failed, results))):
                return traced(*args, **kwargs)  # in that trace, where there are no options
            said = failed and failed.get()
            if said:
                raise eqx.EquinoxRuntimeError(said.removesuffix(" (`check` failed)"))
            return results

    return call
