"""The command ``lim-jax``: which subcommands there are."""

import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.metadata import version
from inspect import cleandoc, signature

import tyro

from lim_jax._argument_error import Refusal
from lim_jax.cli.argument_check import as_arguments

ARGUMENT = re.compile(r"(?<![^\s(])`(\w+)(?:=([^`]*))?`")
QUOTES = "'\""
# An end of line within what a docstring says of an argument.
CONTINUED = re.compile(r"\n {8,}(?=\S)")
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
    """Run the command line on `arguments`, by default the process's own; return its status.

    Interrupted from the keyboard it says so in a line, and the status is 130, as shells have it.
    """
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print(f"\n{STOPPED}", file=sys.stderr)
        return 130


def option_names(arguments: Sequence[str]) -> frozenset[str]:
    """Return the arguments in Python of the command that words name; none without a command."""
    name = next(iter(arguments), "")
    return frozenset(signature(_command(name)).parameters if name in COMMANDS else ())


def as_flags(words: str, options: Collection[str]) -> str:
    """Write arguments in an error as the command takes them: `max_length` as --max-length.

    Other words in backquotes are somebody's own, such as a document's.

    >>> options = ("max_length", "loss", "html")
    >>> as_flags("Raise `max_length`, take `loss='answer'` or `html=False`; `foo`.", options)
    'Raise --max-length, take --loss answer or --no-html; `foo`.'
    """
    return ARGUMENT.sub(partial(_flag, options), words)


def _flag(options: Collection[str], argument: re.Match[str]) -> str:
    """Return the option for one argument in backquotes, or what stood there if it is none."""
    if argument[1] not in options:
        return argument[0]
    name = argument[1].replace("_", "-")
    value = argument[2]
    if value == "False":
        return f"--no-{name}"
    return f"--{name}" if value in (None, "True") else f"--{name} {value.strip(QUOTES)}"


def _run(arguments: Sequence[str]) -> int:
    """Run a command, or print the version or the help, and return the exit status."""
    match list(arguments):
        case [name, *given] if name in COMMANDS:
            command = _command(name)
            words = as_arguments(name, command, given)
            if os.environ.get("NO_COLOR"):  # of which tyro does not know
                tyro._experimental_options["ansi_codes"] = False
            return tyro.cli(command, prog=f"lim-jax {name}", args=words)
        case ["--version"]:
            print(f"lim-jax {version('lim_jax')}")
        case [] | ["-h" | "--help", *_]:
            print(_overview().format_help(), end="")  # argparse would swallow a closed pipe
        case [other, *_]:
            close = get_close_matches(other, [*COMMANDS, "--version", "--help"], n=1)
            cure = f"Did you mean {close[0]}?" if close else "lim-jax --help says what each does."
            raise Refusal(f"{other} is no command; the commands are {', '.join(COMMANDS)}. {cure}")
    return 0


def _overview() -> ArgumentParser:
    """Return the parser of lim-jax by itself, whose help lists commands and common options."""
    parser = ArgumentParser(
        prog="lim-jax",
        usage="lim-jax [--cache PATH | --no-cache] COMMAND ...",
        description="Which positions of a long context a causal Transformer really uses. "
        "lim-jax COMMAND --help says more of each command.",
    )
    listed = parser.add_subparsers(title="commands", metavar="")
    for name, (_, summary) in COMMANDS.items():
        listed.add_parser(name, help=summary)
    parser.add_argument(
        "--version", action="store_true", help="say which version this is, and exit"
    )
    cache = "keep compiled programs there, and not in the user's cache folder"
    parser.add_argument("--cache", metavar="PATH", help=cache)
    parser.add_argument("--no-cache", action="store_true", help="keep no compiled programs")
    return parser


def _command(name: str) -> Callable[..., int]:
    """Load the file of a command, and return its function."""
    command = getattr(import_module(f"lim_jax.cli.{COMMANDS[name][0]}"), name)
    # Its help is wrapped anew, in which tyro keeps the ends of lines.
    command.__doc__ = CONTINUED.sub(" ", cleandoc(command.__doc__ or ""))
    return command
