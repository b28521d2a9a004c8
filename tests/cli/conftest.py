"""What holds for all commands."""

import equinox as eqx
import pytest

from lim_jax.cli import commands


@pytest.fixture(autouse=True)
def no_check_is_a_callback(monkeypatch):
    """JAX keeps no program that has a callback: a command would compile it in every run."""
    run, check, running = commands._run, eqx.branched_error_if, []

    def run_command(arguments):
        running.append(arguments)
        try:
            return run(arguments)
        finally:
            running.pop()

    def refuse(*arguments):
        assert not running, "a check of values is a callback: compile it by _errors.filter_jit"
        return check(*arguments)

    monkeypatch.setattr(commands, "_run", run_command)
    monkeypatch.setattr(eqx, "branched_error_if", refuse)
