"""Each job beside stock PyTorch: same weights, numbers compared first, alternated repeats.

Pin one thread for both, for example ``taskset -c 1 python benchmarks/speed.py``; PyTorch comes by
``pip install torch==2.13.0``. Times are medians in one run, compilation apart. Memory is what a
process of its own needs beyond what it holds before the job.
"""

import os

# Before JAX starts: one thread, as for the peer.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import numpy as np
import peer_torch
import torch
import tyro
from tqdm import tqdm

import lim_jax as lim
from lim_jax.gradient_flow import density_dynamics, risk
from lim_jax.penalties import balanced_objective

STRENGTH = 0.1
VOCABULARY = 32


class Size(NamedTuple):
    """A model and a batch."""

    length: int
    width: int
    heads: int
    depth: int
    batch: int


SIZES = {
    "small": Size(32, 16, 2, 2, 2),
    "a": Size(256, 64, 4, 12, 8),
    "b": Size(1024, 128, 8, 12, 2),
    "long": Size(8192, 64, 4, 8, 1),
}
Job = Callable[[], np.ndarray]


def network(size: Size) -> tuple[tuple, np.ndarray, np.ndarray]:
    """A random pre-norm network with its readout, inputs and labels."""
    keys = jax.random.split(jax.random.key(0), size.depth + 3)
    make = jax.vmap(lambda k: lim.TransformerField.init(size.width, heads=size.heads, key=k))
    flow = lim.ResidualFlow(make(keys[:-3]), horizon=float(size.depth), step=lim.split)
    readout = lim.LinearReadout.init(size.width, VOCABULARY, key=keys[-3])
    x = jax.random.normal(keys[-2], (size.batch, size.length, size.width))
    labels = jax.random.randint(keys[-1], (size.batch, size.length), 0, VOCABULARY)
    return (flow, readout), np.asarray(x), np.asarray(labels, np.int64)


def weights(model: tuple) -> dict[str, np.ndarray]:
    """The network's arrays by name."""
    attention, feed_forward = model[0].layers.attention, model[0].layers.feed_forward
    found = {name: getattr(attention, name) for name in ("query", "key", "value", "output")}
    inner = ("inner", "inner_bias", "outer", "outer_bias")
    found.update({name: getattr(feed_forward, name) for name in inner})
    for index, norm in (("1", attention.norm), ("2", feed_forward.norm)):
        found.update({f"scale{index}": norm.scale, f"shift{index}": norm.shift})
    found["readout"] = model[1].weight
    return {name: np.asarray(value) for name, value in found.items()}


def our_jobs(model: tuple, x: np.ndarray, labels: np.ndarray) -> dict[str, Callable]:
    """Each job as a function of the model."""
    grid = lim.token_grid(x.shape[1])
    batch = jax.numpy.asarray(x), jax.nn.one_hot(labels, VOCABULARY)

    def loss(model, x, y):
        return lim.cross_entropy(model[1](model[0](x, grid), grid), y, grid)

    def objective(model):
        return balanced_objective(loss, model, batch, grid, strength=STRENGTH, epsilon=0.0)

    return {
        "influence": lambda model: lim.influence(loss, model, batch, grid).energy,
        "gradient": jax.grad(lambda model: risk(loss, model, batch)),
        "algorithm 1": jax.grad(objective),
        "mdot": lambda model: density_dynamics(loss, model, batch, grid).rate,
    }


def prepared(size: Size, names: tuple[str, ...]) -> tuple[dict[str, Job], dict[str, float]]:
    """Our compiled jobs, and the seconds their compilation took."""
    model, x, labels = network(size)
    ready, seconds = {}, {}
    for name, job in our_jobs(model, x, labels).items():
        if name in names:
            start = time.perf_counter()
            compiled = eqx.filter_jit(job).lower(model).compile()
            seconds[name] = time.perf_counter() - start

            def run(compiled=compiled) -> np.ndarray:
                found = jax.block_until_ready(compiled(model))
                return np.asarray(found if isinstance(found, jax.Array) else found[1].weight)

            ready[name] = run
    return ready, seconds


def peers(size: Size, names: tuple[str, ...]) -> dict[str, Job]:
    """PyTorch's jobs on the same numbers."""
    torch.set_num_threads(1)
    model, x, labels = network(size)
    found = peer_torch.jobs(weights(model), x, labels, size.heads, STRENGTH)
    return {name: found[name] for name in names}


def peak_memory(size: str, side: str, name: str) -> float:
    """MiB of a process of its own, beyond what it held before it ran the job once."""
    command = [sys.executable, __file__, "--sizes", size, "--jobs", name, "--alone", side]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def run_alone(size: Size, side: str, name: str) -> float:
    """What `peak_memory` asks of its process."""
    job = (peers(size, (name,)) if side == "torch" else prepared(size, (name,))[0])[name]
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
    before = memory_status("VmRSS")
    job()
    return (memory_status("VmHWM") - before) / 1024


def memory_status(field: str) -> int:
    """A field of this process's status, in KiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0])


def gemm_rate() -> float:
    """Gflop/s of one large float32 product by XLA."""
    matrix, times = jax.numpy.ones((1024, 1024)), []
    product = jax.jit(lambda a: a @ a)
    for _ in range(8):
        start = time.perf_counter()
        jax.block_until_ready(product(matrix))
        times.append(time.perf_counter() - start)
    return 2 * 1024**3 / float(np.median(times[1:])) / 1e9


def compare(label: str, names: tuple[str, ...], repeats: int, memory: bool) -> list[dict]:
    """Rows of the table for one size: the numbers agree, then both sides take turns."""
    ours, seconds = prepared(SIZES[label], names)
    theirs = peers(SIZES[label], names)
    rows = []
    for name in names:
        found, expected = ours[name](), theirs[name]()
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3 * scale)
        times = {"lim_jax": [], "torch": []}
        for _ in tqdm(range(repeats), desc=f"{label} {name}", leave=False):
            for side, job in (("lim_jax", ours[name]), ("torch", theirs[name])):
                start = time.perf_counter()
                job()
                times[side].append(time.perf_counter() - start)
        medians = {side: float(np.median(values)) for side, values in times.items()}
        row = {"size": label, "job": name, "seconds": medians, "compilation": seconds[name]}
        row["ratio"] = float(np.median(np.divide(times["torch"], times["lim_jax"])))
        if memory:
            row["MiB"] = {s: peak_memory(label, s, name) for s in ("lim_jax", "torch")}
        rows.append(row)
        print(line(row), flush=True)
    return rows


def line(row: dict) -> str:
    """A row of the Markdown table."""
    ours, theirs = row["seconds"]["lim_jax"], row["seconds"]["torch"]
    cells = [row["size"], row["job"], f"{1e3 * ours:.0f} ms", f"{1e3 * theirs:.0f} ms"]
    cells += [f"{row['ratio']:.2f}", f"{row['compilation']:.1f} s"]
    cells += [f"{row['MiB'][side]:.0f}" for side in ("lim_jax", "torch")] if "MiB" in row else []
    return "| " + " | ".join(cells) + " |"


def main(
    sizes: tuple[Literal["small", "a", "b", "long"], ...] = ("a", "b"),
    jobs: tuple[str, ...] = ("influence", "gradient", "algorithm 1", "mdot"),
    repeats: int = 5,
    memory: bool = True,
    out: Path | None = None,
    alone: Literal["lim_jax", "torch"] | None = None,
) -> None:
    """Compare with PyTorch and print a table.

    Args:
        sizes: Models and batches, by name.
        jobs: What to run.
        repeats: Alternated repeats.
        memory: Measure peak memory too, in processes of their own.
        out: A JSON file for the results.
        alone: Run one job on one side and print its memory (used by the memory column).
    """
    if alone is not None:
        print(run_alone(SIZES[sizes[0]], alone, jobs[0]))
        return
    print("| size | job | lim_jax | PyTorch | ratio | compilation | MiB | PyTorch's |")
    print("|---|---|---|---|---|---|---|---|")
    rows = [row for label in sizes for row in compare(label, jobs, repeats, memory)]
    if out is not None:
        machine = {"processor": platform.processor() or platform.machine(), "GEMM": gemm_rate()}
        machine |= {"jax": jax.__version__, "torch": torch.__version__}
        out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
