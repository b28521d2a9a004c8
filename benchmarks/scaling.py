"""Time and memory of a job against length, width, depth and batch, with fitted exponents.

Every row runs in a process of its own, which says what it needed beyond its baseline. Rows that
the results already hold are not measured again. Pin one thread for steady numbers, for example
``taskset -c 1 python benchmarks/scaling.py``.
"""

import os

# Before JAX starts: one thread.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import jax
import matplotlib.pyplot as plt
import numpy as np
import record
import tyro
from tqdm import tqdm

import lim_jax as lim
from lim_jax.adjoint.cone import cone_mass
from lim_jax.observability.gramian import ObservedTokens, observability_gramians
from lim_jax.training.density_objectives import balanced_objective

RESULTS = record.file_of_processor("scaling")
Axis = Literal["length", "width", "depth", "batch"]
BASE = {"length": 1024, "width": 64, "depth": 8, "batch": 1}
AXES: dict[str, tuple[int, ...]] = {
    "length": (1024, 2048, 4096, 8192, 16384),
    "width": (32, 64, 128, 256),
    "depth": (4, 8, 16, 32),
    "batch": (1, 2, 4, 8),
}
JOBS = ("influence", "algorithm 1")
Job = Literal["influence", "algorithm 1", "cone mass", "frobenius cone mass", "gramians"]
KEY = ("job", "length", "width", "depth", "batch")


def job_of(name: str, size: dict[str, int]) -> tuple[Callable, tuple]:
    """Return a compiled job on a random pre-norm network with four heads, and its model."""
    grid = lim.token_grid(size["length"])
    keys = jax.random.split(jax.random.key(0), 4)
    make = jax.vmap(lambda key: lim.TransformerField.init(size["width"], heads=4, key=key))
    layers = make(jax.random.split(keys[0], size["depth"]))
    flow = lim.ResidualFlow(layers, horizon=float(size["depth"]), step=lim.split)
    model = flow, lim.LinearReadout.init(size["width"], 32, key=keys[1])
    shape = size["batch"], size["length"]
    labels = jax.nn.one_hot(jax.random.randint(keys[2], shape, 0, 32), 32)
    batch = jax.random.normal(keys[3], (*shape, size["width"])), labels

    def loss(model, x, y):
        """Compute one example's cross-entropy."""
        return lim.cross_entropy(model[1](model[0](x, grid), grid), y, grid)

    def first_cone_mass(model, batch, norm):
        """Compute the cone mass of the first layer's attention, at the first example."""
        first = jax.tree.map(lambda leaf: leaf[0], model[0].layers.attention)
        return cone_mass(first, batch[0][0], grid, norm)

    jobs = {
        "influence": lambda model, batch: lim.influence(loss, model, batch, grid).energy,
        "algorithm 1": lambda model, batch: jax.grad(
            lambda model: balanced_objective(loss, model, batch, grid, strength=0.1)
        )(model),
        "cone mass": lambda model, batch: first_cone_mass(model, batch, "operator"),
        "frobenius cone mass": lambda model, batch: first_cone_mass(model, batch, "frobenius"),
        "gramians": lambda model, batch: observability_gramians(
            ObservedTokens(model[0], grid, jax.numpy.array([size["length"] - 1])), batch[0][0], 1.0
        ),
    }
    return record.compile_job(jobs[name], model, batch), (model, batch)


def measure(name: str, size: dict[str, int]) -> dict:
    """Measure one row: seconds of a call, and MiB beyond the process's baseline."""
    job, arguments = job_of(name, size)
    times = []

    def call() -> None:
        """Run the job once, and keep its time."""
        times.append(record.seconds(lambda: jax.block_until_ready(job(*arguments))))

    peak = record.peak_memory(call)
    for _ in range(4 if times[0] < 5 else 0):
        call()
    return {"job": name, **size, "seconds": float(np.median(times[-3:])), "MiB": peak}


def measure_alone(name: str, size: dict[str, int]) -> dict:
    """Return a row of `measure` in a process of its own."""
    command = [sys.executable, __file__, "--alone", json.dumps([name, size])]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(process.stdout)


def exponents(rows: list[dict], axis: str) -> tuple[float, float]:
    """Fit slopes of log time, and of log increments of memory, against the log of an axis.

    Of time over the upper four sizes. Memory has a fixed part, which its increments from one
    doubling to the next have not.
    """
    rows = sorted(rows, key=lambda row: row[axis])
    sizes = np.log([row[axis] for row in rows])
    times, memory = (np.array([row[of] for row in rows]) for of in ("seconds", "MiB"))
    time = np.polyfit(sizes[-4:], np.log(times[-4:]), 1)[0]
    return float(time), float(np.polyfit(sizes[:-1], np.log(np.diff(memory)), 1)[0])


def series_of(rows: list[dict]) -> dict[tuple[str, str], list[dict]]:
    """Return rows by job and by the axis along which they leave the base size, which is in each."""
    series = {}
    for axis in AXES:
        others = [name for name in AXES if name != axis]
        along = [row for row in rows if all(row[name] == BASE[name] for name in others)]
        for job in {row["job"]: None for row in along}:
            series[job, axis] = [row for row in along if row["job"] == job]
    return {key: rows for key, rows in series.items() if len(rows) > 1}


def figure(series: dict[tuple[str, str], list[dict]], path: Path) -> None:
    """Draw time and memory against every axis."""
    picture, axes = plt.subplots(2, len(AXES), figsize=(12, 6), sharey="row", layout="constrained")
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(name for name, _ in series))}
    lines = {}
    for (name, axis), rows in series.items():
        rows = sorted(rows, key=lambda row: row[axis])
        for panels, of in zip(axes, ("seconds", "MiB"), strict=True):
            panel = panels[list(AXES).index(axis)]
            points = [row[axis] for row in rows], [row[of] for row in rows]
            (lines[name],) = panel.loglog(*points, "o-", color=colours[name])
            panel.set_xscale("log", base=2)
            panel.set(xlabel=axis, ylabel=of if axis == "length" else "")
    picture.legend(lines.values(), lines, loc="outside upper center", ncols=len(lines))
    picture.savefig(path)


def main(
    axes: tuple[Axis, ...] = ("length", "width", "depth", "batch"),
    jobs: tuple[Job, ...] = JOBS,
    lengths: tuple[int, ...] = AXES["length"],
    out: Path = RESULTS,
    alone: str | None = None,
) -> None:
    """Measure, keep, fit and draw.

    Args:
        axes: What to vary; the rest stays at L = 1,024, d = 64, 8 layers and one example.
        jobs: What to run.
        lengths: The context lengths.
        out: A JSON file for the results; the figure goes beside it.
        alone: One row, as JSON (used by the processes that measure).
    """
    if alone is not None:
        print(json.dumps(measure(*json.loads(alone))))
        return
    sizes_of_series = {
        (name, axis): [BASE | {axis: value} for value in (AXES | {"length": lengths})[axis]]
        for axis in axes
        for name in jobs
    }
    old_rows = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else []
    by_key = {tuple(row[k] for k in KEY): row for row in old_rows}
    for (name, axis), sizes in sizes_of_series.items():
        for size in tqdm(sizes, desc=f"{name} against {axis}", leave=False):
            key = (name, *size.values())
            if key not in by_key:
                by_key[key] = measure_alone(name, size)
                record.keep(out, [by_key[key]], KEY)
        time, memory = exponents([by_key[(name, *size.values())] for size in sizes], axis)
        print(f"{name} against {axis}: time ~ {axis}^{time:.2f}, memory ~ {axis}^{memory:.2f}")
    figure(series_of([*by_key.values()]), out.with_suffix(".png"))


if __name__ == "__main__":
    tyro.cli(main)
