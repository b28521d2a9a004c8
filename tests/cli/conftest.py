"""What holds for all commands."""

import pytest
from jax._src import compiler

from lim_jax.cli import commands


@pytest.fixture(autouse=True)
def no_check_is_a_callback(monkeypatch):
    """Refuse programs with callbacks, which JAX does not keep: every run would compile them."""
    run = commands._run
    compiled = compiler.compile_or_get_cached
    running = []

    def run_command(arguments):
        running.append(arguments)
        try:
            return run(arguments)
        finally:
            running.pop()

    def refuse(backend, module, devices, options, callbacks, *others, **named):
        fetches = any("--memory" in arguments for arguments in running)  # layers, from their files
        assert fetches or not (running and callbacks), "JAX keeps no program with a callback"
        return compiled(backend, module, devices, options, callbacks, *others, **named)

    monkeypatch.setattr(commands, "_run", run_command)
    monkeypatch.setattr(compiler, "compile_or_get_cached", refuse)
