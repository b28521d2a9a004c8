"""Errors of compiled programs in our words: without what wraps them, and with a cure."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import equinox as eqx

from lim_jax._refusal import Refusal, refusal

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")
# JAX's words, and Equinox's, of derivatives that a loop or a custom_vjp does not have.
UNDIFFERENTIABLE = re.compile(
    r"to a custom_vjp function|`filter_custom_vjp` cannot be autodifferentiated"
    r"|Reverse-mode differentiation does not work for lax.while_loop"
)


@contextmanager
def in_our_words() -> Iterator[None]:
    """Raise refusals without what wraps them, and say the cure where JAX has no derivative.

    Examples
    --------
    >>> import jax
    >>> with in_our_words():
    ...     jax.grad(lambda x: jax.lax.while_loop(lambda x: x < 1, lambda x: 2 * x, x))(0.5)
    Traceback (most recent call last):
    Refusal: derivative: got "Reverse-mode differentiation does not work for lax.while_loop ...
    """
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
    """Equinox's, with errors in our words.

    Examples
    --------
    >>> import jax
    >>> def positive(x):
    ...     return eqx.error_if(x, x <= 0, "x: expected a positive number, got another.")
    >>> filter_jit(positive)(jax.numpy.array(-1.0))
    Traceback (most recent call last):
    EquinoxRuntimeError: x: expected a positive number, got another.
    """
    compiled = eqx.filter_jit(function)

    @wraps(function)
    def call(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Output:
        with in_our_words():
            return compiled(*args, **kwargs)

    return call
