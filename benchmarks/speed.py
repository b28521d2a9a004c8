"""Each job beside stock PyTorch: same weights, numbers compared first, alternated repeats.

Pin one thread for both, for example ``taskset -c 1 python benchmarks/speed.py``; PyTorch comes by
``pip install torch==2.13.0``. It runs eagerly and, where that knows the job, by ``torch.compile``,
which needs a C++ compiler and takes minutes at the first call. Times are medians in one run,
compilation apart. Memory is what a process of its own needs beyond what it holds before the job.
Rows go into a JSON file, where they replace older ones of the same size, job and precision;
``report.py`` prints the README's table.
"""

import os

# Before JAX starts: one thread, as for the peer.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

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
import record
import report
import torch
import tyro
from tqdm import tqdm

import lim_jax as lim
from lim_jax.adjoint.cone import cone_mass
from lim_jax.cost.counting import operations
from lim_jax.observability.gramian import ObservedTokens, observability_gramians
from lim_jax.training.balancing import balanced_objective
from lim_jax.training.dynamics import density_dynamics, risk

RESULTS = record.RESULTS / "speed.json"
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
JOBS = ("influence", "gradient", "algorithm 1", "mdot", "cone mass", "gramians")
COMPILED = ("influence", "gradient")  # what torch.compile knows
Job = Callable[[], np.ndarray]
Precision = Literal["float32", "float64"]


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


def our_jobs(length: int) -> dict[str, Callable]:
    """Each job as a function of the model and a batch."""
    grid, last = lim.token_grid(length), jax.numpy.array([length - 1])

    def loss(model, x, y):
        return lim.cross_entropy(model[1](model[0](x, grid), grid), y, grid)

    def objective(model, batch):
        return balanced_objective(loss, model, batch, grid, strength=STRENGTH, epsilon=0.0)

    return {
        "influence": lambda model, batch: lim.influence(loss, model, batch, grid).energy,
        "gradient": jax.grad(lambda model, batch: risk(loss, model, batch)),
        "algorithm 1": jax.grad(objective),
        "mdot": lambda model, batch: density_dynamics(loss, model, batch, grid).rate,
        "cone mass": lambda model, batch: cone_mass(first_attention(model), batch[0][0], grid),
        "gramians": lambda model, batch: observability_gramians(
            ObservedTokens(model[0], grid, last), batch[0][0], 1.0
        ),
    }


def first_attention(model: tuple) -> lim.CausalAttention:
    """The attention sublayer of the first layer."""
    return jax.tree.map(lambda leaf: leaf[0], model[0].layers.attention)


def prepared(size: Size, name: str) -> tuple[Job, float]:
    """Our compiled job, and the seconds its compilation took."""
    model, x, labels = network(size)
    batch = jax.numpy.asarray(x), jax.nn.one_hot(labels, VOCABULARY)
    start = time.perf_counter()
    compiled = eqx.filter_jit(our_jobs(size.length)[name]).lower(model, batch).compile()
    compilation = time.perf_counter() - start

    def run() -> np.ndarray:
        found = jax.block_until_ready(compiled(model, batch))
        return np.asarray(found if isinstance(found, jax.Array) else found[1].weight)

    return run, compilation


def share_of_gemm(size: Size, name: str, precision: Precision, seconds: float) -> float | None:
    """Our operations per second, in units of the machine's in one large product.

    None for cone mass, whose number of steps is known only when it runs.
    """
    if name == "cone mass":
        return None
    model, x, labels = network(size)
    batch = jax.numpy.asarray(x), jax.nn.one_hot(labels, VOCABULARY)
    program = eqx.filter_make_jaxpr(our_jobs(size.length)[name])(model, batch)[0]
    return operations(program) / seconds / record.gemm_rate(precision) / 1e9


def peer(size: Size, name: str, compiled: bool = False) -> Job:
    """PyTorch's job on the same numbers."""
    torch.set_num_threads(1)
    model, x, labels = network(size)
    return peer_torch.jobs(weights(model), x, labels, size.heads, STRENGTH, compiled)[name]


def peak_memory(size: str, side: str, name: str, precision: Precision) -> float:
    """MiB of a process of its own, beyond what it held before it ran the job once."""
    command = [sys.executable, __file__, "--sizes", size, "--jobs", name, "--alone", side]
    command += ["--precision", precision]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def run_alone(size: Size, side: str, name: str) -> float:
    """What `peak_memory` asks of its process."""
    job = peer(size, name) if side == "torch" else prepared(size, name)[0]
    return record.own_peak(job)


def compare(label: str, name: str, precision: Precision, repeats: int) -> dict:
    """A row of the table: the numbers agree, then both sides take turns."""
    ours, compilation = prepared(SIZES[label], name)
    jobs = {"lim_jax": ours, "torch": peer(SIZES[label], name)}
    if name in COMPILED:
        jobs["torch.compile"] = peer(SIZES[label], name, compiled=True)
    found, *others = (job() for job in jobs.values())
    tolerance = 2e-3 if precision == "float32" else 1e-9
    for other in others:
        np.testing.assert_allclose(found, other, rtol=0, atol=tolerance * np.abs(other).max())
    times = {side: [] for side in jobs}
    for _ in tqdm(range(repeats), desc=f"{label} {name}", leave=False):
        for side, job in jobs.items():
            times[side].append(record.seconds(job))
    fastest = np.min([times[side] for side in jobs if side != "lim_jax"], axis=0)
    medians = {side: float(np.median(values)) for side, values in times.items()}
    return {
        "size": label,
        "job": name,
        "precision": precision,
        "repeats": repeats,
        "seconds": medians,
        "share of GEMM": share_of_gemm(SIZES[label], name, precision, medians["lim_jax"]),
        "ratio": float(np.median(np.divide(fastest, times["lim_jax"]))),
        "compilation": compilation,
        "MiB": {side: peak_memory(label, side, name, precision) for side in ("lim_jax", "torch")},
    }


def main(
    sizes: tuple[Literal["small", "a", "b", "long"], ...] = ("a",),
    jobs: tuple[str, ...] = JOBS,
    precision: Precision = "float32",
    repeats: int = 5,
    out: Path = RESULTS,
    alone: Literal["lim_jax", "torch"] | None = None,
) -> None:
    """Compare with PyTorch, and print and keep a table.

    Args:
        sizes: Models and batches, by name.
        jobs: What to run.
        precision: Of both sides.
        repeats: Alternated repeats.
        out: A JSON file for the results.
        alone: Run one job on one side and print its memory (used by the memory column).
    """
    jax.config.update("jax_enable_x64", precision == "float64")
    if alone is not None:
        print(run_alone(SIZES[sizes[0]], alone, jobs[0]))
        return
    print(report.SPEED_HEADER)
    for label in sizes:
        for name in jobs:
            row = compare(label, name, precision, repeats)
            print(report.speed_line(row), flush=True)
            record.keep(out, [row], ("size", "job", "precision"), torch=torch.__version__)


if __name__ == "__main__":
    tyro.cli(main)
