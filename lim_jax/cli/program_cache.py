"""Compiled programs, kept from one command to the next by the process of the command line alone."""

import os
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import platformdirs

from lim_jax._argument_error import Refusal
from lim_jax.cli.commands import COMMANDS

MOST = 2**30  # bytes that a command begins with; those that were not used for longest went first
PROGRAM = re.compile(r"-[0-9a-f]{64}-cache$")  # how JAX names the file of a program


def keep_programs(arguments: Sequence[str]) -> list[str]:
    """Tell JAX where to keep compiled programs, and return the arguments that are left.

    By the environment, which JAX reads as it is imported: in the user's cache folder, or where
    ``JAX_COMPILATION_CACHE_DIR`` says; in that of a leading ``--cache PATH``; after ``--no-cache``
    nowhere.
    """
    match list(arguments):
        case ["--no-cache", *rest]:
            os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
            return rest
        case ["--cache"]:
            raise Refusal("--cache: got no folder, expected one. Pass --cache PATH COMMAND.")
        case ["--cache", path, *rest]:
            _keep_in(_as_folder(path))
            return rest
        case [flag, *rest] if flag.startswith("--cache="):
            _keep_in(_as_folder(flag.removeprefix("--cache=")))
            return rest
        case rest:
            if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
                _keep_in(platformdirs.user_cache_path("lim_jax"))
            return rest


def _as_folder(path: str) -> Path:
    """Return the path of a folder of programs; raise ValueError if it is empty or a command."""
    if path == "" or path in COMMANDS:
        got = f"{path!r}, which is a command" if path else f"{path!r}"
        raise Refusal(
            f"--cache: got {got}, expected a folder. Pass --cache PATH COMMAND, with ./ before a "
            "folder that is called as a command."
        )
    return Path(path)


def _keep_in(folder: Path) -> None:
    """Have JAX keep compiled programs in a folder; warn and keep none if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:  # of which JAX would warn at every program
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        warnings.warn(
            f"compiled programs are not kept: {folder} cannot be written to ({error.strerror}). "
            "Before the command --cache PATH keeps them elsewhere, and --no-cache nowhere.",
            stacklevel=2,
        )
        return
    # JAX's own bound has it look at all files for every program that it keeps.
    _make_room(folder)
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        # Small ones too: a command compiles hundreds.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        # Of every program that it finds again XLA logs, on the very processor that compiled it,
        # that tuning flags such as prefer-no-gather are none of the processor's features.
        "JAX_LOGGING_LEVEL": "CRITICAL",
    }


def _make_room(folder: Path) -> None:
    """Remove the programs that were used longest ago until the others take at most `MOST` bytes."""
    kept_bytes = 0
    with suppress(FileNotFoundError):  # another command makes room too
        programs = [path for path in folder.iterdir() if PROGRAM.search(path.name)]
        files = [(path.stat(), path) for path in programs if path.is_file()]
        for file, path in sorted(files, key=lambda pair: -max(pair[0].st_atime, pair[0].st_mtime)):
            kept_bytes += file.st_size
            if kept_bytes > MOST:
                path.unlink()
