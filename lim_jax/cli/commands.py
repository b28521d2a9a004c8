"""The command ``lim-jax``: which subcommands there are."""

import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version

import tyro

ARGUMENT = re.compile(r"(?<![^\s(])`(\w+)(?:=([^`]*))?`")
QUOTES = "'\""
STOPPED = "Interrupted. Run it again to go on from what is finished."
# The file of each command, and its docstring's first line: a file is loaded when its command is
# run, and none where only the list is shown.
COMMANDS = {
    "ask": (
        "ask_command",
        "Ask a model a question about documents, and say which of them its answer comes from.",
    ),
    "profile": (
        "profile_command",
        "Say which positions of your data a model uses: densities with errors, tokens and records.",
    ),
    "compare": (
        "compare_command",
        "Say what changed from one profile or answer to another: two models, two prompts, two "
        "orders.",
    ),
    "explain": (
        "explain_command",
        "Say which positions a language model uses, and why: density, channels, hops, "
        "certificates.",
    ),
    "rates": (
        "rates_command",
        "Measure the paper's limits: tokens to Volterra, layers to the depth flow.",
    ),
    "reproduce": (
        "reproduce_command",
        "Compute section 4 of the paper in float64 and hold it against every figure it prints.",
    ),
    "counterexamples": (
        "reproduce_command",
        "Run the paper's four counterexamples to unconditional claims about shape.",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments`, by default the process's own; returns its status.

    Interrupted from the keyboard it says so in a line, and the status is 130, as shells have it.
    """
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print(f"\n{STOPPED}", file=sys.stderr)
        return 130


def as_flags(words: str) -> str:
    """Say arguments in an error as the command has them: of `max_length` that is --max-length.

    >>> as_flags("Raise `max_length`, take `loss='answer'` or `html=False`.")
    'Raise --max-length, take --loss answer or --no-html.'
    """
    return ARGUMENT.sub(_flag, words)


def _flag(argument: re.Match[str]) -> str:
    name = argument[1].replace("_", "-")
    value = argument[2]
    if value == "False":
        return f"--no-{name}"
    return f"--{name}" if value in (None, "True") else f"--{name} {value.strip(QUOTES)}"


def _run(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--version"]:
        print(f"lim-jax {version('lim_jax')}")
        return 0
    return tyro.extras.subcommand_cli_from_dict(
        {name: _command(name, loaded=name in arguments[:1]) for name in COMMANDS},
        prog="lim-jax",
        description="Which positions of a long context a causal Transformer really uses. "
        "Each command says more by its own --help; lim-jax --version says which version this is. "
        "Compiled programs are kept in the user's cache folder for the next time; --cache PATH "
        "before the command keeps them elsewhere, --no-cache nowhere.",
        args=arguments or ["--help"],
    )


def _command(name: str, loaded: bool) -> Callable[..., int]:
    """A command; or where another one is run, what only stands for it in the list."""
    file, summary = COMMANDS[name]
    if loaded:
        return getattr(import_module(f"lim_jax.cli.{file}"), name)

    def listed() -> int:
        raise AssertionError(f"{name} is not loaded")

    listed.__doc__ = summary
    return listed
