"""``python -m lim_jax`` and the command ``lim-jax``."""

import _thread
import errno
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from io import TextIOWrapper
from threading import Timer
from typing import Any

try:
    from lim_jax._argument_error import refusal
    from lim_jax._terminal import in_one_line
    from lim_jax.cli.commands import STOPPED, as_flags, option_names
    from lim_jax.cli.commands import main as run
    from lim_jax.cli.program_cache import keep_programs

    if find_spec("matplotlib") is None:  # rooms load it when they draw, after a long computation
        raise ModuleNotFoundError(name="matplotlib")
except ModuleNotFoundError as error:
    if error.name not in ("matplotlib", "platformdirs", "psutil", "tqdm", "tyro"):
        raise
    sys.exit(f"lim-jax needs {error.name}: python -m pip install 'lim_jax[plot,cli]'")

# As shells have them.
INTERRUPTED = 130
CLOSED = 141
FULL = 1
MOMENT = 0.01  # seconds
# Objects between two looks for garbage. JAX makes millions as it traces, of which nearly all stay:
# Python's own looks, at every 700, take a tenth of a short command.
UNCOLLECTED = 100_000
UNKEPT = "persistent compilation cache entry"


def main() -> int:
    """Run the command and return its exit status: 2, and one printed line, for an error of ours.

    Where nobody reads on what it prints, as in ``lim-jax rates | head``, it ends without a word,
    and the status is 141, that of other tools which a closed pipe ends. Where no space is left for
    what it prints or writes, it says so in a line, and the status is 1.
    """
    gc.set_threshold(UNCOLLECTED)
    for stream in (sys.stdout, sys.stderr):  # an encoding may lack letters of names and answers
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run_and_report()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _print_nowhere()
        return CLOSED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        told = "no space is left on the device. Free some, and run it again: it goes on."
        print(f"lim-jax: {told}", file=sys.stderr)
        _print_nowhere()
        return FULL


def _print_nowhere() -> None:
    """Drop what is still to be printed: else Python would tell of it as the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def _run_and_report() -> int:
    """Run the command with warnings in one line each; print an error of ours and return 2."""
    sys.unraisablehook = partial(_interrupt_again, sys.unraisablehook)
    pressed = _presses()
    arguments: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_print_once, set())
            arguments = keep_programs(sys.argv[1:])
            status = run(arguments)
    except KeyboardInterrupt:  # once more, while the first was told of
        status = INTERRUPTED
    except Exception as error:
        words = refusal(error)
        if pressed:  # what a library made of it that was in the middle of something
            print(f"\n{STOPPED}", file=sys.stderr)
            status = INTERRUPTED
        elif words is None:
            raise
        else:
            told = in_one_line(as_flags(words, option_names(arguments)))
            print(f"lim-jax: {told}", file=sys.stderr)
            return 2
    if status == INTERRUPTED:
        _leave()
    return status


def _presses() -> list[int]:
    """Return a list that grows by one with every Ctrl-C, unless Ctrl-C is ignored.

    A Ctrl-C still raises KeyboardInterrupt.
    """
    pressed: list[int] = []

    def press(number: int, frame: Any) -> None:
        """Count one Ctrl-C, and raise KeyboardInterrupt."""
        pressed.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, press)
    return pressed


def _print_once(printed: set[str], message: Warning | str, *_: Any) -> None:
    """Print a warning in one line, once, without the file and line that gave it."""
    words = in_one_line(str(message))
    # JAX warns at each program that it cannot keep, as on a disk that is full.
    about = UNKEPT if UNKEPT in words else words
    if about not in printed:
        printed.add(about)
        print(f"lim-jax: {words}", file=sys.stderr)


def _interrupt_again(otherwise: Callable[[Any], object], ignored: Any) -> None:
    """Interrupt the main thread a moment after a Ctrl-C that arrived where nothing can be raised.

    An example is JAX's callback of garbage collections.
    """
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        Timer(MOMENT, _thread.interrupt_main).start()
    else:
        otherwise(ignored)


def _leave() -> None:
    """End the process at once, with the status of an interrupted command.

    XLA compiles in threads that Python can neither end nor wait for: one that ended as usual would
    die of a segmentation fault. What is kept of a run is written as a whole or not at all.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
