"""What XLA compiles, counted."""

from contextlib import contextmanager

import jax

from lim_jax._jit import _compiler_options


@contextmanager
def compilations():
    """Count what XLA compiles inside."""
    _compiler_options()  # each process compiles once to learn which options there are
    seconds = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del kwargs
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
