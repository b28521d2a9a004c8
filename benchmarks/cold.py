"""What a first call costs: whole processes from a cold start, most of whose time is compiling.

``python benchmarks/cold.py`` prints the medians of a few runs each, seconds of CPU and of wall
clock: importing JAX and the package, a first profile (docs/start.md), ``lim-jax reproduce``.
"""

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
EXAMPLE = "".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[:2])
JOBS = {
    "import jax": ("-c", "import jax"),
    "import lim_jax": ("-c", "import jax, lim_jax"),
    "a first profile": ("-c", EXAMPLE),
    "lim-jax reproduce": ("-m", "lim_jax", "reproduce"),
}


def spent(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Seconds of CPU and of wall clock of one process, in a folder of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    with tempfile.TemporaryDirectory() as folder:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
        )
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    """Print a row for each job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each job")
    repeats = parser.parse_args().repeats
    print(f"{'job':30s} {'CPU':>8s} {'wall':>8s}   medians of {repeats}")
    for name, arguments in JOBS.items():
        runs = [spent(arguments) for _ in range(repeats)]
        cpu, wall = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{name:30s} {cpu:6.2f} s {wall:6.2f} s", flush=True)


if __name__ == "__main__":
    main()
