"""Errors of compiled programs in our words: without what wraps them, and with a cure."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import equinox as eqx

from lim_jax._argument_error import Refusal, refusal

# JAX's words, and Equinox's, of derivatives that a loop or a custom_vjp does not have.
UNDIFFERENTIABLE = re.compile(
    r"to a custom_vjp function|`filter_custom_vjp` cannot be autodifferentiated"
    r"|Reverse-mode differentiation does not work for lax.while_loop"
)


class RefusedValue(Refusal, eqx.EquinoxRuntimeError):
    """A value that a check of a compiled program refuses, in our words alone."""

    def __reduce__(self) -> tuple:
        """Pickle the error by a function, as its class is not found under its module's name."""
        return _refuse_value, self.args


def _refuse_value(words: str) -> RefusedValue:
    """Make a `RefusedValue` again when it is unpickled."""
    return RefusedValue(words)


RefusedValue.__module__ = "builtins"  # as of Refusal


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise refusals without what wraps them, and name a cure where JAX has no derivative."""
    try:
        yield
    except (eqx.EquinoxRuntimeError, eqx.EquinoxTracetimeError) as error:
        words = refusal(error)
        if words is None:
            raise
        raise RefusedValue(words) from None
    except (TypeError, ValueError, RuntimeError) as error:
        if refusal(error) or not UNDIFFERENTIABLE.search(str(error)):
            raise
        message = str(error).splitlines()[0]
        raise Refusal(
            f'derivative: got "{message}", expected a function that has it in every mode. Take '
            "adjoint=diffrax.DirectAdjoint() for a ContinuousFlow, and as few max_steps as "
            "suffice; write a while_loop or a custom_vjp of your own as a scan or a custom_jvp."
        ) from error
