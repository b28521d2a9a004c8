"""Seconds that compiled programs take: of an accelerator's clock, or of a CPU's cores."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


class Stopwatch:
    """Runs programs, and counts the seconds of those that were compiled before.

    A CPU's seconds are those of all its cores, for others may use the machine.

    Attributes
    ----------
    found
        By name, seconds and how many things these were for.

    Examples
    --------
    >>> watch = Stopwatch()
    >>> for _ in range(3):
    ...     _ = watch("rows", 4, jax.numpy.sin, jax.numpy.ones(4))
    >>> watch.totals["rows"][1], watch.totals["rows"][0] > 0  # the first call compiles
    (8, True)
    """

    def __init__(self):
        self.totals: dict[str, list[float]] = {}
        self._compiled: set[Any] = set()

    def __call__(
        self,
        name: str,
        count: int,
        program: Callable[..., Any],
        *arguments: Any,
        compiled_for: tuple[int, ...] | None = None,
    ) -> Any:
        """Return what a program gives, on the host; `count` things have a name in common.

        A program that pads its arguments itself says by `compiled_for` for which sizes it was
        compiled; else it was for the shapes of its arguments.
        """
        shapes = compiled_for or tuple(np.shape(leaf) for leaf in jax.tree.leaves(arguments))
        compiled = (program, shapes) in self._compiled
        clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
        start = clock()
        made = jax.tree.map(np.asarray, program(*arguments))
        if compiled:
            seconds, before = self.totals.get(name, (0.0, 0))
            self.totals[name] = [seconds + clock() - start, before + count]
        self._compiled.add((program, shapes))
        return made
