"""Sides of a comparison: each a process of its own, which runs one job whenever it is told to."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

Numbers = Mapping[str, np.ndarray]
Job = Callable[[], Numbers]


class EndedError(RuntimeError):
    """A side's process ended before it answered, as it does without enough memory."""


def await_turns(job: Job, numbers: Numbers, file: Path, told: Mapping[str, Any]) -> None:
    """Save the job's numbers, tell of its first calls, and run it for each line that comes in."""
    arrays: dict[str, Any] = {f"of {key}": value for key, value in numbers.items()}
    np.savez(file, **arrays)
    print(json.dumps(told), flush=True)
    for _ in sys.stdin:
        begun = time.perf_counter(), time.process_time()
        job()
        ended = time.perf_counter(), time.process_time()
        print(
            json.dumps([end - start for start, end in zip(begun, ended, strict=True)]), flush=True
        )


class Side:
    """The process of one side, of a script and its arguments that lead to `await_turns`."""

    def __init__(self, arguments: list[str], file: Path, environment: Mapping[str, str]):
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        self.first = self.next_line()
        self.numbers = dict(np.load(file))

    def next_line(self):
        """Return the next line of what it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EndedError(f"{self.process.args} ended before it answered")
        return json.loads(line)

    def turn(self) -> tuple[float, float]:
        """Let it run once: the clock's seconds, and the processor's."""
        assert self.process.stdin is not None
        print("again", file=self.process.stdin, flush=True)
        return tuple(self.next_line())

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def turns(sides: Mapping[str, Side], repeats: int, label: str) -> dict[str, np.ndarray]:
    """Return what each turn took each side, which alternate: a row of two times for each repeat."""
    times: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in tqdm(range(repeats), desc=label, leave=False):
        for side, process in sides.items():
            times[side].append(process.turn())
    return {side: np.array(measurements) for side, measurements in times.items()}


def difference(numbers: Numbers, expected: Numbers) -> float:
    """Return the largest difference, relative to the largest number of each array."""
    assert numbers.keys() == expected.keys()
    return max(
        float(np.abs(numbers[key] - values).max() / np.abs(values).max())
        for key, values in expected.items()
    )
