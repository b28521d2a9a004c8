"""The command ``lim-jax``: which subcommands there are."""

from collections.abc import Sequence

import tyro

from lim_jax.cli.explaining import explain
from lim_jax.cli.orders import rates
from lim_jax.cli.reproduction import counterexamples, reproduce


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments`, by default the process's own; returns its status."""
    return tyro.extras.subcommand_cli_from_dict(
        {
            "reproduce": reproduce,
            "rates": rates,
            "explain": explain,
            "counterexamples": counterexamples,
        },
        prog="lim-jax",
        description="Which positions of a long context a causal Transformer really uses.",
        args=arguments,
    )
