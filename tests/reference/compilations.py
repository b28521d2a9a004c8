"""What XLA compiles, counted."""

from contextlib import contextmanager

import jax


@contextmanager
def compilations():
    """Count what XLA compiles inside."""
    found = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del kwargs
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
