"""Where a command's time goes: ``python benchmarks/phases.py [--cache FOLDER] COMMAND ...``.

Runs ``lim-jax`` in this process, and prints as the last line how many programs were compiled and
the seconds of CPU of each phase, of all threads; what begins within another stands in its own.
"""

import importlib
import json
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any

from lim_jax.cli.program_cache import keep_programs

# What a file's functions are called for, and JAX's events by what they take.
OF_FILES = {
    "lim_jax.cli.networks": "reading",
    "lim_jax.plots.": "page, figures",
    "lim_jax.report.": "page, figures",
}
OF_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}
PHASES = ("imports", *dict.fromkeys((*OF_FILES.values(), *OF_EVENTS.values())), "running")
HIT = "/jax/compilation_cache/cache_hits"


class Clock:
    """Seconds of CPU by phase, and how many `programs` were compiled and not found again."""

    def __init__(self):
        self.spent = dict.fromkeys(PHASES, 0.0)
        self.programs = 0
        self.spent["imports"] = time.process_time()
        self.open = ["running"]
        self.since = time.process_time()

    def tick(self) -> None:
        """Book what was spent since the last time."""
        now = time.process_time()
        self.spent[self.open[-1]] += now - self.since
        self.since = now

    def begin(self, phase: str) -> None:
        """Stop what runs, and begin a phase."""
        self.tick()
        self.open.append(phase)

    def end(self) -> None:
        """End the phase, and go on with what ran before."""
        self.tick()
        self.open.pop()

    def within(self, phase: str, function: Callable) -> Callable:
        """Wrap a function, so that its time is of the phase."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            """Call the function within the phase."""
            if threading.current_thread() is not threading.main_thread():
                return function(*args, **kwargs)
            self.begin(phase)
            try:
                return function(*args, **kwargs)
            finally:
                self.end()

        return timed

    def follow_imports(self) -> None:
        """Time imports, and the functions of `OF_FILES` as their files are imported."""
        bootstrap = importlib._bootstrap  # pyright: ignore[reportAttributeAccessIssue]
        load = self.within("imports", bootstrap._find_and_load)

        def load_and_wrap(name: str, importing: Any) -> ModuleType:
            """Import a module, and wrap its functions if they are of a phase."""
            module = load(name, importing)
            for start, phase in OF_FILES.items():
                if name.startswith(start):
                    self.time_functions(module, name, phase)
            return module

        bootstrap._find_and_load = load_and_wrap

    def time_functions(self, module: ModuleType, name: str, phase: str) -> None:
        """Time a module's own functions, except those that are wrapped already."""
        for attribute, value in vars(module).items():
            is_own = type(value) is FunctionType and value.__module__ == name
            if is_own and not hasattr(value, "__wrapped__"):
                setattr(module, attribute, self.within(phase, value))

    def follow_jax(self) -> None:
        """Time what JAX tells of, and count programs."""
        from jax import monitoring
        from jax._src import monitoring as events  # where the beginning is told of

        def begin_phase(event: str, *_: Any, **__: Any) -> None:
            """Begin the phase of an event."""
            if event in OF_EVENTS:
                self.begin(OF_EVENTS[event])

        def end_phase(event: str, *_: Any, **__: Any) -> None:
            """End it, and count a program that was compiled."""
            if event in OF_EVENTS:
                self.end()
                self.programs += OF_EVENTS[event] == "compiling"

        def uncount_cache_hit(event: str, **_: Any) -> None:
            """Take back a program that was found in the cache."""
            self.programs -= event == HIT

        events.register_scalar_listener(begin_phase)
        monitoring.register_event_duration_secs_listener(end_phase)
        monitoring.register_event_listener(uncount_cache_hit)


def main() -> None:
    """Run the command of the process's arguments, and print its phases."""
    clock = Clock()
    clock.follow_imports()
    arguments = keep_programs(sys.argv[1:])
    clock.follow_jax()
    status = importlib.import_module("lim_jax.cli.commands").main(arguments)
    clock.tick()
    print(json.dumps({"status": status, "compiled": clock.programs, **clock.spent}))


if __name__ == "__main__":
    main()
