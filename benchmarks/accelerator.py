"""Every job on a GPU or a TPU: its numbers beside the processor's, times, and memory.

``python benchmarks/accelerator.py`` takes a quarter of an hour on a card, whose JAX is installed by
``pip install "jax[cuda13]"`` or ``"jax[tpu]"`` beside ``lim_jax[models]``; it needs nothing else.
``--sizes small --platform cpu`` tries it without one, in four minutes.

Each job of `jobs` runs once on the machine's own processor in float32, then on the device in
float32, in float32 with products in bfloat16 (``compute="bfloat16"``), and all in bfloat16. The
largest difference of its numbers, relative to the largest of each array, is held against a bound
(`BOUNDS`). A profile of a random published network of 0.1 billion weights is one job more: of
weights in float32, and of weights kept in bfloat16 on the device and on the host, with products in
float32 and in bfloat16. float32 is float32 here: products are of the highest precision, not of TF32
or bfloat16.

Times are medians of the clock's seconds of one call, with the wait for its numbers. Checks of
values are on, as a user has them; ``EQX_ON_ERROR=off python benchmarks/accelerator.py`` leaves them
out, and its rows stand beside the others. Temporary memory is what the compiler plans for a call;
peak is the most that the device held so far, where it says so. "Fused" counts the calls of cuDNN's
attention in the compiled program: some in bfloat16 on an NVIDIA GPU, at first order.

Rows go into ``results/accelerator.json``, where they replace older ones of the same device, size,
job, precision and checks.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import record
import sizes as published
import tyro
from jobs import JOBS, SIZES, VOCABULARY, Size, network, our_jobs
from tqdm import tqdm

Precision = Literal["float32", "bfloat16 products", "bfloat16"]
Device = Any  # jax.Device, which JAX does not declare as a type
# Relative to the largest number of each array. bfloat16 has three digits, which a difference of
# gradients, and the square of one, has to a half.
BOUNDS: dict[Precision, float] = {"float32": 2e-3, "bfloat16 products": 0.25, "bfloat16": 0.25}
# Of the profile.
TOKENS = 512
CONTEXTS = 2
# Of the profile: the name of a row, its precision, and how `sizes` holds the weights.
PROFILES: tuple[tuple[str, Precision, str], ...] = (
    ("profile", "float32", "load"),
    ("profile", "bfloat16 products", "load products"),
    ("profile, kept", "float32", "bfloat16"),
    ("profile, kept", "bfloat16 products", "bfloat16 products"),
    ("profile, kept on the host", "float32", "bfloat16 host"),
)
COLUMNS = ("size", "job", "precision", "difference", "compilation", "seconds", "temporary MiB",
           "peak MiB", "fused")  # fmt: skip


class CompiledJob(NamedTuple):
    """A job that is compiled for a device."""

    run: Callable[[], Any]
    compilation: float
    temporary: int | None = None  # bytes
    fused: int | None = None


def prepare(size: Size, name: str, precision: Precision, device: Device) -> CompiledJob:
    """Prepare a job of `jobs`, on arrays that are drawn by the processor whatever the device."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        model, x, labels = network(size)
        arrays = model, (x, jax.nn.one_hot(labels, VOCABULARY))
        dtype = jnp.dtype("bfloat16" if precision == "bfloat16" else "float32")
        arrays = jax.tree.map(lambda leaf: np.asarray(leaf).astype(dtype), arrays)
    arrays = jax.device_put(arrays, device)
    start = time.perf_counter()
    job = jax.jit(our_jobs(size.length, dtype)[name])
    # As by `compute`, which a layer by itself, as of the cone mass, does not have.
    products = "bfloat16" if precision == "bfloat16 products" else "highest"
    with jax.default_device(device), jax.default_matmul_precision(products):
        compiled = job.lower(*arrays).compile()
    memory = compiled.memory_analysis()
    return CompiledJob(
        lambda: compiled(*arrays),
        time.perf_counter() - start,
        None if memory is None else memory.temp_size_in_bytes,
        (compiled.as_text() or "").count("__cudnn$fmha"),
    )


def prepare_profile(folder: Path, holding: str, device: Device) -> CompiledJob:
    """Prepare the energies of contexts of a network that is read; the first call compiles."""
    with jax.default_device(device):
        model = published.load(folder, holding)

    def run() -> Any:
        """Measure the contexts once."""
        with jax.default_device(device):
            return published.profile(model, holding, TOKENS, CONTEXTS)

    start = time.perf_counter()
    run()
    return CompiledJob(run, time.perf_counter() - start)


def numbers(tree: Any) -> list[np.ndarray]:
    """Return all arrays, in double precision."""
    return [np.asarray(leaf).astype(float) for leaf in jax.tree.leaves(tree)]


def largest_difference(tree: Any, expected: list[np.ndarray]) -> float:
    """Return the largest difference, relative to the largest number of each array."""
    pairs = zip(numbers(tree), expected, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def measure(job: CompiledJob, expected: list[np.ndarray], repeats: int, device: Device) -> dict:
    """Return what a row says of a job: first its numbers, then medians."""
    difference = largest_difference(job.run(), expected)
    times = [record.seconds(lambda: jax.block_until_ready(job.run())) for _ in range(repeats)]
    stats = device.memory_stats() or {}
    peak = stats.get("peak_bytes_in_use")
    return {
        "difference": difference,
        "compilation": job.compilation,
        "seconds": float(np.median(times)),
        "temporary MiB": None if job.temporary is None else job.temporary / 2**20,
        "peak MiB": None if peak is None else peak / 2**20,
        "fused": job.fused,
    }


def table_row(row: dict) -> str:
    """Return a row of the table."""

    def cell(name: str) -> str:
        """Write one entry, empty where nothing was measured."""
        value = row[name]
        return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)

    return "| " + " | ".join(map(cell, COLUMNS)) + " |"


def describe(device: Device) -> dict[str, str]:
    """Return the device, and the versions of what runs it."""
    return {
        "device": device.device_kind,
        "platform version": device.client.platform_version.splitlines()[0],
        "jaxlib": version("jaxlib"),
        "equinox": eqx.__version__,
    }


def rows(
    label: str, names: tuple[str, ...], repeats: int, device: Device
) -> Iterator[dict[str, Any]]:
    """Yield a row for each job of a size, beside the processor in float32."""
    processor = jax.local_devices(backend="cpu")[0]
    for name in tqdm(names, desc=label, leave=False):
        expected = numbers(prepare(SIZES[label], name, "float32", processor).run())
        for precision in BOUNDS:
            job = prepare(SIZES[label], name, precision, device)
            timings = measure(job, expected, repeats, device)
            yield {"size": label, "job": name, "precision": precision} | timings


def rows_of_profile(repeats: int, device: Device) -> Iterator[dict[str, Any]]:
    """Yield a published network's rows, for each way of holding and multiplying its weights."""
    processor = jax.local_devices(backend="cpu")[0]
    with tempfile.TemporaryDirectory() as folder:
        path = published.write_network(Path(folder) / "network", "0.1b")
        expected = numbers(prepare_profile(path, "load", processor).run())
        for name, precision, holding in PROFILES:
            timings = measure(prepare_profile(path, holding, device), expected, repeats, device)
            yield {"size": "0.1b", "job": name, "precision": precision} | timings


def main(
    sizes: tuple[Literal["small", "a", "b", "long"], ...] = ("small", "a"),
    jobs: tuple[str, ...] = JOBS,
    platform: str | None = None,
    repeats: int = 5,
    out: Path = record.RESULTS / "accelerator.json",
) -> None:
    """Compare a device with the processor, and print and keep a table.

    Args:
        sizes: Models and batches, by name.
        jobs: What to run beside the profile.
        platform: Of the device, such as cuda or cpu; by default JAX's own.
        repeats: Runs of which the median is taken.
        out: A JSON file for the results.
    """
    jax.config.update("jax_default_matmul_precision", "highest")
    device = jax.local_devices(backend=platform)[0]
    checks = os.environ.get("EQX_ON_ERROR", "raise")
    about = describe(device)
    print(*(f"{name}: {value}" for name, value in about.items()), f"checks: {checks}", sep="; ")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    beyond = []
    rows_by_size = [rows(label, jobs, repeats, device) for label in sizes]
    for rows_of_size in (*rows_by_size, rows_of_profile(repeats, device)):
        for row in rows_of_size:
            row |= {"device": device.device_kind, "checks": checks}
            print(table_row(row), flush=True)
            key = ("device", "size", "job", "precision", "checks")
            record.keep(out, [row], key, **about)
            if not row["difference"] < BOUNDS[row["precision"]]:
                beyond.append(table_row(row))
    assert not beyond, "further from the processor than bounded:\n" + "\n".join(beyond)


if __name__ == "__main__":
    tyro.cli(main)
