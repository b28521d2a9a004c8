"""The command ``lim-jax``: which subcommands there are."""

import sys
from collections.abc import Sequence
from importlib.metadata import version

import tyro

from lim_jax.cli.comparing import compare
from lim_jax.cli.explaining import explain
from lim_jax.cli.orders import rates
from lim_jax.cli.profiling import profile
from lim_jax.cli.questions import ask
from lim_jax.cli.reproduction import counterexamples, reproduce
from lim_jax.cli.studying import study


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments`, by default the process's own; returns its status.

    Interrupted from the keyboard it says so in a line, and the status is 130, as shells have it.
    """
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print("\nInterrupted. Run it again to go on from what is finished.", file=sys.stderr)
        return 130


def _run(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--version"]:
        print(f"lim-jax {version('lim_jax')}")
        return 0
    return tyro.extras.subcommand_cli_from_dict(
        {
            "ask": ask,
            "profile": profile,
            "compare": compare,
            "explain": explain,
            "rates": rates,
            "study": study,
            "reproduce": reproduce,
            "counterexamples": counterexamples,
        },
        prog="lim-jax",
        description="Which positions of a long context a causal Transformer really uses. "
        "Each command says more by its own --help; lim-jax --version says which version this is. "
        "Compiled programs are kept in the user's cache folder for the next time; --cache PATH "
        "before the command keeps them elsewhere, --no-cache nowhere.",
        args=arguments or ["--help"],
    )
