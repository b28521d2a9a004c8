"""Programs that the library compiles itself: wide vectors, and checks that may be values."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
from jax.experimental import checkify
from jax.extend.core import get_opaque_trace_state

from lim_jax._errors import translate_errors

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")
# Whether checks are values of the program that is traced: JAX's caches of what was traced know it.
CHECKS_ARE_VALUES = jax.make_user_context(default_value=False)
# Asked in a thread of its own, in which nothing traces: this file may be imported within a trace.
with ThreadPoolExecutor() as thread:
    NOT_TRACING = thread.submit(get_opaque_trace_state).result()
# XLA's CPU by itself takes vectors of 256 bits where the processor has wider ones, too.
WIDE_VECTORS = {"xla_cpu_prefer_vector_width": 512}


@cache
def _compiler_options() -> dict[str, int] | None:
    """Return compiler options for the widest vectors, or None if this XLA does not know them."""
    try:
        jax.jit(lambda: 0.0, compiler_options=WIDE_VECTORS).lower().compile()
    except jax.errors.JaxRuntimeError:  # this XLA has no such option
        return None
    return WIDE_VECTORS


def jit_is_off() -> bool:
    """Tell whether `jax.disable_jit` holds here, under which everything runs step by step."""
    config: Any = jax.config
    return config.jax_disable_jit


def _is_outermost() -> bool:
    """Tell whether a call compiles a program of its own, the only kind to take compiler options."""
    return not jit_is_off() and get_opaque_trace_state() == NOT_TRACING


def filter_jit(function: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
    """Wrap a function by `equinox.filter_jit`, with the widest vectors and errors in our words."""
    inner: Any = eqx.filter_jit(function)

    @cache
    def outermost() -> Any:
        """Return the compiled function with compiler options, for calls outside of any trace."""
        jitted: Any = eqx.filter_jit
        return jitted(function, compiler_options=_compiler_options())

    @wraps(function)
    def call(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Output:
        """Call the function compiled with options if nothing is tracing, and else without."""
        with translate_errors():
            return (outermost() if _is_outermost() else inner)(*args, **kwargs)

    return call


def cached_jit(function: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
    """Wrap a function by `filter_jit` so that JAX's compilation cache can keep its program.

    The cache keeps no program with a callback, as Equinox's checks of values are. So the program
    returns, beside its results, whether a check failed, and the host raises. The results are
    arrays; a check of ours within an operator of lineax is not found, and JAX raises.
    """
    inner = filter_jit(function)

    @filter_jit
    @wraps(function)
    def program(*args: Any, **kwargs: Any) -> Any:
        """Return the failed checks as a value beside the results: no callbacks are cached."""
        return checkify.checkify(function, errors=checkify.user_checks)(*args, **kwargs)

    @wraps(function)
    def call(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Output:
        """Call the compiled program, and raise the first of its checks that failed."""
        if not _is_outermost():
            return inner(*args, **kwargs)
        with CHECKS_ARE_VALUES(True):
            error, results = program(*args, **kwargs)
        message = error.get()
        if message:
            with translate_errors():
                raise eqx.EquinoxRuntimeError(message.removesuffix(" (`check` failed)"))
        return results

    return call
