"""What a first call costs: whole processes from a cold start, most of whose time is compiling.

``python benchmarks/cold.py`` prints the medians of a few runs each, seconds of CPU and of wall
clock: importing JAX and the package, a first profile (docs/start.md), an influence and Algorithm
1's gradient at the size (a) of docs/speed.md. Then commands, each twice with one cache of compiled
programs: CPU and wall clock, how many programs were compiled, and the CPU of each phase
(`phases.py`). ``ask``, ``profile`` and ``explain`` are of the model that ``--model`` names.
"""

import argparse
import json
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
SIZE_A = """
import jax, lim_jax as lim, numpy as np
keys, rng = jax.random.split(jax.random.key(0)), np.random.default_rng(0)
layers = jax.vmap(lambda key: lim.TransformerField.init(64, heads=4, key=key))(
    jax.random.split(keys[0], 12)
)
flow = lim.ResidualFlow(layers, horizon=12.0, step=lim.split)
model = flow, lim.LinearReadout.init(64, 32, key=keys[1])
x, y = rng.standard_normal((8, 256, 64), np.float32), rng.integers(32, size=(8, 256))
batch, grid = jax.device_put((x, y)), lim.token_grid(256)
def loss(model, x, y):
    return lim.cross_entropy(model[1](model[0](x, grid), grid), y, grid)
def penalised(model):
    return lim.training.balanced_objective(loss, model, batch, grid, strength=0.1)
"""
INFLUENCE = "jax.block_until_ready(lim.influence(loss, model, batch, grid).energy)"
GRADIENT = "jax.block_until_ready(jax.jit(jax.grad(penalised))(model))"
PHASES = ROOT / "benchmarks" / "phases.py"
QUESTION = "Who founded the observatory?"
DOCUMENTS = ROOT / "docs" / "town"
COMMANDS = {
    "reproduce": (),
    "rates": ("--quick",),
}
JOBS = {
    "import jax": ("-c", "import jax"),
    "import lim_jax": ("-c", "import jax, lim_jax"),
    "a first profile": ("-c", EXAMPLE),
    "a network and a batch": ("-c", SIZE_A),
    "and their influence": ("-c", SIZE_A + INFLUENCE),
    "or Algorithm 1's gradient": ("-c", SIZE_A + GRADIENT),
}


def time_process(arguments: tuple[str, ...], cache: str = "") -> tuple[float, float, str]:
    """Run a process in its own folder; return seconds of CPU and of the clock, and its output."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "MPLBACKEND": "agg",
        "JAX_ENABLE_COMPILATION_CACHE": "1" if cache else "0",
    }
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, done.stdout


def model_arguments(model: str, folder: Path) -> dict[str, tuple[str, ...]]:
    """Return arguments of a question of five documents; of its profile with an answer, and why."""
    documents = [{"text": file.read_text("utf-8")} for file in sorted(DOCUMENTS.iterdir())]
    line = {"documents": documents, "question": QUESTION, "answer": "Mira Castellan"}
    (folder / "line.jsonl").write_text(json.dumps(line), "utf-8")
    data = ("--data", str(folder / "line.jsonl"), "--loss", "answer")
    return {
        "ask": (model, QUESTION, "--documents", str(DOCUMENTS)),
        "profile": (model, *data, "--html"),
        "explain": (model, *data),
    }


def print_commands(model: str | None) -> None:
    """Print two rows for each command: with an empty cache, and with what that one kept."""
    with tempfile.TemporaryDirectory() as folder:
        commands = COMMANDS | (
            model_arguments(str(Path(model).absolute()), Path(folder)) if model else {}
        )
        for name, arguments in commands.items():
            cache = str(Path(folder) / name)
            for run in ("first", "second"):
                line = str(PHASES), "--cache", cache, name, *arguments
                cpu, wall, printed = time_process(line, cache)
                phases = json.loads(printed.splitlines()[-1])
                compiled = phases.pop("compiled")
                _ = phases.pop("status")
                parts = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in phases.items())
                print(f"{name + ', ' + run:30s} {cpu:6.2f} s {wall:6.2f} s   {compiled} compiled")
                print(f"{'':30s} {parts}", flush=True)


def main() -> None:
    """Print a row for each job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each job")
    parser.add_argument("--model", help="a GGUF file or a folder, for ask, profile and explain")
    arguments = parser.parse_args()
    repeats = arguments.repeats
    print(f"{'job':30s} {'CPU':>8s} {'wall':>8s}   medians of {repeats}")
    for name, job in JOBS.items():
        runs = [time_process(job)[:2] for _ in range(repeats)]
        cpu, wall = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{name:30s} {cpu:6.2f} s {wall:6.2f} s", flush=True)
    print_commands(arguments.model)


if __name__ == "__main__":
    main()
