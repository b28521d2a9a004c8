"""Each job beside PyTorch on the same device, in the same minutes: on a card, or on a processor.

``python benchmarks/same_device.py`` (the extra ``parity`` brings torch and transformers) takes a
CUDA card where PyTorch finds one, and else the processor, on the cores that it may run on: pin it
to one, as by ``taskset -c 1``, for figures beside those of `speed`. Sizes small, a, b and long are
the networks of `jobs`, in float32 of the highest precision; 1b is a random Llama of 1.24 billion
weights, as it is published, in bfloat16: its jobs are those of `language_jobs` at each of
``--tokens``.

The sides are ours as the library compiles it, eager PyTorch with its fused attention, and
``torch.compile`` where it knows the job: at first order. Influence at size 1b runs once more by a
flow that keeps its products (``remat="save_matmuls"``). Each is a process of its own, which reads
the network once. All numbers are compared with ours before any side is timed, relative to the
largest of each array (`BOUNDS`); of generated tokens the share that differs is kept and not
bounded, because a random network's logits are close to one another, and all after the first that
differs do. Then the sides take turns, and all hold their memory meanwhile. A side that ends before,
as without enough memory, says why and has no row.

Times are the clock's seconds of a warm call, with the wait for its numbers, as the median of the
turns; the first call, which compiles, stands apart. The processor's own seconds stand beside, which
others' work on it hardly lengthens. Memory is on a card the most that the device held for the side,
as JAX and PyTorch count it: weights, compiling and calls. On a processor it is what a warm call
needs beyond what the process holds before.

Rows, one for each side, go into ``results/same_device-cuda.json`` or ``-cpu.json``, where they
replace older ones of the same device, size, tokens, job and side. ``python docs/accelerators.py``
writes the table of docs/accelerators.md.
"""

import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import jax
import language_jobs
import numpy as np
import peer_llama
import peer_torch
import record
import sizes as published
import torch
import transformers
import tyro
from jobs import (
    KEEPING,
    OURS,
    SIZES,
    STRENGTH,
    VOCABULARY,
    Size,
    arrays_by_name,
    network,
    our_jobs,
    weights,
)
from sides import EndedError, Job, Numbers, Side, await_turns, difference, turns

from lim_jax._jit import filter_jit

EAGER = "torch"
COMPILED = "torch.compile"
COMPILABLE = ("influence", "gradient", "mask gradient", "mask path")
JOBS = ("influence", "gradient", "algorithm 1", "mdot", "mask gradient")  # of a size of `jobs`
LANGUAGE = "1b"
GENERATED = "ten greedy tokens"
# bfloat16 has three digits, which sums over layers and heads that nearly cancel have to a half.
BOUNDS = {"float32": 2e-3, "bfloat16": 0.25}
Platform = Literal["cuda", "cpu"]
SizeName = Literal["small", "a", "b", "long", "1b"]


def cases(
    sizes: tuple[SizeName, ...], tokens: tuple[int, ...], jobs: tuple[str, ...]
) -> Iterator[tuple[str, int, str]]:
    """Yield each size with each of its lengths and of its jobs."""
    for size in sizes:
        of_size = language_jobs.JOBS if size == LANGUAGE else JOBS
        lengths = tokens if size == LANGUAGE else (SIZES[size].length,)
        names = [name for name in jobs if name in of_size]
        yield from ((size, length, name) for length in lengths for name in names)


def precision_of(size: str) -> str:
    """Return the precision of both sides' states and weights."""
    return "bfloat16" if size == LANGUAGE else "float32"


def job_of(
    side: str, size: SizeName, name: str, tokens: int, platform: Platform, folder: Path | None
) -> Job:
    """Return a side's job."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if size == LANGUAGE:
        assert folder is not None
        return language_job(side, name, tokens, platform, folder)
    if side == OURS:
        return our_job(SIZES[size], name)
    return peer_job(SIZES[size], name, platform, compiled=side == COMPILED)


def our_job(size: Size, name: str) -> Job:
    """Make our job on arrays that are drawn by the processor whatever the device."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        model, x, labels = network(size)
        arrays = model, (x, jax.nn.one_hot(labels, VOCABULARY))
    arrays = jax.device_put(arrays, jax.local_devices()[0])
    job = filter_jit(our_jobs(size.length)[name])
    return lambda: arrays_by_name(job(*arrays))


def peer_job(size: Size, name: str, platform: Platform, *, compiled: bool) -> Job:
    """Make PyTorch's job on the same numbers."""
    model, x, labels = network(size)
    arrays = weights(model), x, labels, size.heads
    return peer_torch.TorchJobs(*arrays, STRENGTH, compiled, platform).jobs()[name]


def language_job(side: str, name: str, tokens: int, platform: Platform, folder: Path) -> Job:
    """Return a side's job of the published network."""
    vocabulary = published.config(LANGUAGE)["vocab_size"]
    (window,) = published.windows(vocabulary, tokens, 1)
    if side in (OURS, KEEPING):
        remat = "save_matmuls" if side == KEEPING else "full"
        return language_jobs.our_jobs(folder, window, remat)[name]
    return peer_llama.jobs(folder, window, platform, side == COMPILED)[name]


def memory_of_call(job: Job, side: str, platform: Platform) -> float:
    """Return MiB: on a card the most that was held for this process, else a warm call's."""
    if platform == "cpu":
        ctypes.CDLL(None).malloc_trim(0)  # what earlier calls freed is not held before this one
        return record.peak_memory(job)
    if side in (OURS, KEEPING):
        return jax.local_devices()[0].memory_stats()["peak_bytes_in_use"] / 2**20
    return torch.cuda.max_memory_allocated() / 2**20


def serve(job: Job, side: str, platform: Platform, file: Path) -> None:
    """Be one side: run the job for its numbers, for its memory, and then whenever told to."""
    start = time.perf_counter()
    numbers = job()
    told = {"first call": time.perf_counter() - start}
    await_turns(job, numbers, file, told | {"MiB": memory_of_call(job, side, platform)})


def sides_of(size: str, name: str) -> list[str]:
    """Return who runs a job: ours comes first, and keeps the products of wide layers once more."""
    sides = [OURS]
    if size == LANGUAGE and name == "influence":
        sides.append(KEEPING)
    sides.append(EAGER)
    if name in COMPILABLE:
        sides.append(COMPILED)
    return sides


def start_sides(arguments: list[str], sides: list[str], stack: ExitStack) -> dict[str, Side]:
    """Start each side's process; return them without those that ended before they answered."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    # XLA takes of a card's memory what it needs, and PyTorch keeps nothing that it compiled.
    environment = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }
    processes = {}
    for side in sides:
        file = folder / f"{side}.npz"
        command = [__file__, *arguments, "--serve-as", side, "--out", str(file)]
        try:
            processes[side] = stack.enter_context(Side(command, file, environment))
        except EndedError as error:
            print(error, file=sys.stderr)
    return processes


def distance(name: str, numbers: Numbers, expected: Numbers) -> float:
    """Return the largest relative difference, or of generated tokens the share that differs."""
    if name != GENERATED:
        return difference(numbers, expected)
    (ids,), (others,) = numbers.values(), expected.values()
    return float(np.mean(ids != others))


def rows(arguments: list[str], size: str, name: str, repeats: int) -> list[dict[str, Any]]:
    """Time a row for each side of a job: the numbers agree, then all sides take turns."""
    precision = precision_of(size)
    with ExitStack() as stack:
        processes = start_sides(arguments, sides_of(size, name), stack)
        numbers = [process.numbers for process in processes.values()]
        differences = {
            side: distance(name, process.numbers, numbers[0]) for side, process in processes.items()
        }
        bound = 1.0 if name == GENERATED else BOUNDS[precision]
        assert all(value <= bound for value in differences.values()), differences
        times = turns(processes, repeats, name)
    return [
        {
            "side": side,
            "precision": precision,
            "difference": differences[side],
            "first call": process.first["first call"],
            "seconds": float(np.median(times[side][:, 0])),
            "least": float(times[side][:, 0].min()),
            "most": float(times[side][:, 0].max()),
            "CPU seconds": float(np.median(times[side][:, 1])),
            "repeats": repeats,
            "MiB": process.first["MiB"],
        }
        for side, process in processes.items()
    ]


def main(
    platform: Platform | None = None,
    sizes: tuple[SizeName, ...] = ("a", "b", "long", "1b"),
    jobs: tuple[str, ...] = (*JOBS, "mask path", GENERATED),
    tokens: tuple[int, ...] = (512, 4096, 32_768),
    repeats: int = 5,
    out: Path | None = None,
    folder: Path | None = None,
    serve_as: str | None = None,
) -> None:
    """Compare with PyTorch on one device, and print and keep the rows.

    Args:
        platform: Of the device; by default cuda where PyTorch finds a card.
        sizes: Networks, by name.
        jobs: What to run, of what a size has.
        tokens: Lengths of the contexts of size 1b.
        repeats: Alternated warm calls.
        out: A JSON file for the results, by default one of the platform.
        folder: Where the weights of size 1b lie, or are put and left; by default they are not left.
        serve_as: Be one side of a comparison (used by the others).
    """
    platform = platform or ("cuda" if torch.cuda.is_available() else "cpu")
    # JAX takes a card for our side alone.
    on_card = platform == "cuda" and serve_as in (OURS, KEEPING)
    jax.config.update("jax_platforms", "cuda,cpu" if on_card else "cpu")
    jax.config.update("jax_default_matmul_precision", "highest")
    if serve_as is not None:
        assert out is not None
        job = job_of(serve_as, sizes[0], jobs[0], tokens[0], platform, folder)
        serve(job, serve_as, platform, out)
        return
    out = out or record.RESULTS / f"same_device-{platform}.json"
    device = torch.cuda.get_device_name() if platform == "cuda" else record.processor()
    with tempfile.TemporaryDirectory() as temporary:
        folder = folder or Path(temporary) / "weights"
        if LANGUAGE in sizes and not folder.exists():
            published.write_network(folder, LANGUAGE)
        for size, length, name in cases(sizes, tokens, jobs):
            arguments = ["--platform", platform, "--folder", str(folder)]
            arguments += ["--sizes", size, "--tokens", str(length), "--jobs", name]
            about = {"device": device, "size": size, "tokens": length, "job": name}
            measured = [about | row for row in rows(arguments, size, name, repeats)]
            print(*measured, sep="\n", flush=True)
            versions = {"torch": torch.__version__, "transformers": transformers.__version__}
            record.keep(out, measured, (*about, "side"), **versions)


if __name__ == "__main__":
    tyro.cli(main)
