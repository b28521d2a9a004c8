"""Each job beside PyTorch: same weights, numbers compared first, alternated repeats.

Each side is a process of its own with one thread; pin both to a core, for example
``taskset -c 1 python benchmarks/speed.py``. PyTorch comes by ``pip install torch==2.13.0``. It runs
eagerly and, where that knows the job, by ``torch.compile``, which needs a C++ compiler and takes
minutes at the first call. On an AMD processor its MKL does not use AVX-512 by itself; there each of
these runs once more with that allowed, by a library of one function that answers for the processor.
XLA by itself takes vectors of 256 bits; where there are wider ones our job also runs with these.

Times are medians of the processor's seconds in one run, compilation apart; memory is what the first
call needs beyond what the process holds before. Rows go into a JSON file of the processor, where
they replace older ones of the same size, job and precision; ``report.py`` writes the
tables of docs/speed.md and the files beside it.
"""

import os

# Before JAX starts: one thread, as for the peer.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
import numpy as np
import peer_torch
import record
import report
import torch
import tyro
from jobs import (
    JOBS,
    KEEPING,
    OURS,
    SIZES,
    STRENGTH,
    VOCABULARY,
    WIDE,
    Size,
    arrays_by_name,
    network,
    our_jobs,
    weights,
)
from sides import Job, Numbers, Side, await_turns, difference, turns

from lim_jax.cost.counting import operations

STOCK = "torch"
ALLOWED = "torch, AVX-512"
MEASURED = OURS, KEEPING, STOCK  # whose memory is told
WIDER = {"xla_cpu_prefer_vector_width": 512}
COMPILER = "compiled "  # in front of the names of those by torch.compile
FIRST_ORDER = ("influence", "gradient")  # what torch.compile knows, and products are kept for
Precision = Literal["float32", "float64"]


def compile_job(size: Size, name: str, side: str) -> tuple[Job, float]:
    """Return our compiled job, and the seconds its compilation took."""
    model, x, labels = network(size, "save_matmuls" if side == KEEPING else "full")
    batch = jax.numpy.asarray(x), jax.nn.one_hot(labels, VOCABULARY)
    start = time.perf_counter()
    options = WIDER if side == WIDE else None
    compiled = record.compile_job(
        our_jobs(size.length)[name], model, batch, compiler_options=options
    )
    compilation = time.perf_counter() - start

    def run() -> Numbers:
        """Run the job, and return its arrays by name."""
        return arrays_by_name(jax.block_until_ready(compiled(model, batch)))

    return run, compilation


def share_of_gemm(size: Size, name: str, precision: Precision, seconds: float) -> float | None:
    """Return our operations per second, in units of the machine's in the network's own products.

    None for cone mass, whose number of steps is known only when it runs.
    """
    if name == "cone mass":
        return None
    model, x, labels = network(size)
    batch = jax.numpy.asarray(x), jax.nn.one_hot(labels, VOCABULARY)
    program = eqx.filter_make_jaxpr(our_jobs(size.length)[name])(model, batch)[0]
    tokens = size.batch * size.length
    width = size.width
    hidden = model[0].layers.feed_forward.inner.shape[1]
    products = (tokens, width, hidden), (tokens, hidden, width), (tokens, width, 3 * width)
    best = max(record.gemm_rate(precision, product) for product in products)
    return operations(program) / seconds / best / 1e9


def peer_job(size: Size, name: str, compiled: bool = False) -> Job:
    """Make PyTorch's job on the same numbers."""
    torch.set_num_threads(1)
    model, x, labels = network(size)
    arrays = weights(model), x, labels, size.heads
    return peer_torch.TorchJobs(*arrays, STRENGTH, compiled).jobs()[name]


def serve(size: Size, side: str, name: str, file: Path) -> None:
    """Be one side: run the job once, save its numbers, then once for each line that comes in."""
    if side in (OURS, KEEPING, WIDE):
        job, compilation = compile_job(size, name, side)
    else:
        job = peer_job(size, name, compiled=side.startswith(COMPILER))
        compilation = 0.0
    numbers: list[Numbers] = []
    peak = record.peak_memory(lambda: numbers.append(job()))
    await_turns(job, numbers[0], file, {"compilation": compilation, "MiB": peak})


def start_side(side: str, label: str, name: str, precision: Precision, file: Path) -> Side:
    """Start the process of one side."""
    arguments = [__file__, "--serve-as", side, "--out", str(file)]
    arguments += ["--sizes", label, "--jobs", name, "--precision", precision]
    allowed = {"LD_PRELOAD": str(record.build_allowing_library())} if side.endswith(ALLOWED) else {}
    return Side(arguments, file, allowed)


def sides_of(name: str) -> list[str]:
    """Return the names of the sides that take part."""
    peers = [STOCK, ALLOWED] if "AMD" in record.processor() else [STOCK]
    wide = [WIDE] if "avx512f" in record.instruction_sets() else []
    if name not in FIRST_ORDER:
        return [OURS, *wide, *peers]
    return [OURS, KEEPING, *wide, *peers, *(COMPILER + peer for peer in peers)]


def time_sides(label: str, name: str, precision: Precision, repeats: int) -> dict:
    """Time a row of the table: the numbers agree, then all sides take turns."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "numbers.npz"
        sides = {
            side: stack.enter_context(start_side(side, label, name, precision, file))
            for side in sides_of(name)
        }
        tolerance = 2e-3 if precision == "float32" else 1e-9
        for side, process in sides.items():
            assert difference(process.numbers, sides[OURS].numbers) < tolerance, side
        times = turns(sides, repeats, f"{label} {name}")
    medians = {side: np.median(measurements, axis=0) for side, measurements in times.items()}
    seconds = {side: measurements[:, 1] for side, measurements in times.items()}
    peers = [side for side in seconds if side not in (OURS, KEEPING, WIDE)]

    def ratio(against: list[str], side: str = OURS) -> float:
        """Return the median of the fastest peer's time over a side's, turn by turn."""
        fastest = np.min([seconds[peer] for peer in against], axis=0)
        return float(np.median(fastest / seconds[side]))

    return {
        "size": label,
        "job": name,
        "precision": precision,
        "repeats": repeats,
        "seconds": {side: float(median[1]) for side, median in medians.items()},
        "range": {
            side: [measurements.min(), measurements.max()] for side, measurements in seconds.items()
        },
        "clock": {side: float(median[0]) for side, median in medians.items()},
        "share of GEMM": share_of_gemm(SIZES[label], name, precision, float(medians[OURS][1])),
        "ratio to stock": ratio([side for side in peers if not side.endswith(ALLOWED)]),
        "ratio": ratio(peers),
        "ratio kept": ratio(peers, KEEPING) if KEEPING in seconds else None,
        "ratio wide": ratio(peers, WIDE) if WIDE in seconds else None,
        "compilation": sides[OURS].first["compilation"],
        "MiB": {side: sides[side].first["MiB"] for side in MEASURED if side in sides},
    }


def main(
    sizes: tuple[Literal["small", "a", "b", "long"], ...] = ("a",),
    jobs: tuple[str, ...] = JOBS,
    precision: Precision = "float32",
    repeats: int = 5,
    out: Path | None = None,
    serve_as: str | None = None,
) -> None:
    """Compare with PyTorch, and print and keep the rows.

    Args:
        sizes: Models and batches, by name.
        jobs: What to run.
        precision: Of both sides.
        repeats: Alternated repeats.
        out: A JSON file for the results, by default one of the processor.
        serve_as: Be one side of a comparison (used by the others).
    """
    jax.config.update("jax_enable_x64", precision == "float64")
    if serve_as is not None:
        assert out is not None
        serve(SIZES[sizes[0]], serve_as, jobs[0], out)
        return
    out = out or record.file_of_processor("speed")
    for label in sizes:
        for name in jobs:
            row = time_sides(label, name, precision, repeats)
            print(report.lines(row), flush=True)
            record.keep(out, [row], ("size", "job", "precision"), torch=torch.__version__)


if __name__ == "__main__":
    tyro.cli(main)
