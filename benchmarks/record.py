"""What every benchmark keeps: the machine, its results as JSON, and a process's peak memory."""

import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

RESULTS = Path(__file__).parent / "results"
VECTORS = ("avx", "avx2", "avx512f", "avx512_bf16", "amx_tile", "neon", "sve")


def machine() -> dict:
    """Describe what the figures were measured on."""
    return {
        "processor": processor(),
        "instruction sets": instruction_sets(),
        "devices": sorted({device.device_kind for device in jax.devices()}),
        "GEMM Gflop/s": round(gemm_rate(), 1),
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def processor() -> str:
    """Return the processor's own name, where Linux tells it."""
    return _cpu_field("model name") or platform.machine()


def instruction_sets() -> list[str]:
    """Return the processor's vector sets. XLA takes the widest; MKL on AMD only AVX2."""
    return sorted(flag for flag in _cpu_field("flags").split() if flag in VECTORS)


def _cpu_field(field: str) -> str:
    """Return what Linux says of the first processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    values = [line.partition(":")[2].strip() for line in lines if line.startswith(field)]
    return values[0] if values else ""


def file_of_processor(name: str) -> Path:
    """Return where a benchmark's results of this processor are kept."""
    maker = next((m for m in ("AMD", "Intel") if m in processor()), platform.machine())
    narrow = "" if maker != "AMD" or "avx512f" in instruction_sets() else "-avx2"
    return RESULTS / f"{name}-{maker.lower()}{narrow}.json"


def gemm_rate(
    precision: str = "float32", product: tuple[int, int, int] = (1024, 1024, 1024)
) -> float:
    """Measure Gflop/s of one product of matrices of these sizes by XLA."""
    rows, inner, columns = product
    matrices = jax.numpy.ones((rows, inner), precision), jax.numpy.ones((inner, columns), precision)
    multiply = jax.jit(lambda a, b: a @ b)
    times = [seconds(lambda: jax.block_until_ready(multiply(*matrices))) for _ in range(8)]
    return 2 * rows * inner * columns / float(np.median(times[1:])) / 1e9


def compile_job(job: Callable, *arguments: Any, **options: Any) -> Any:
    """Compile a job for arguments of these shapes; `options` are those of `jax.jit`."""
    filter_jit: Any = eqx.filter_jit  # whose types know neither these options nor `lower`
    return filter_jit(job, **options).lower(*arguments).compile()


def seconds(job: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def peak_memory(job: Callable[[], object]) -> float:
    """Measure the MiB that one call needs, beyond what the process holds before (Linux)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forget the peak so far
    before = _memory_status("VmRSS")
    job()
    return (_memory_status("VmHWM") - before) / 1024


def _memory_status(field: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split(f"{field}:")[1].split()[0])


def build_allowing_library() -> Path:
    """Build a library whose one function tells MKL that it may use what the processor has."""
    folder = Path(tempfile.gettempdir())
    library = folder / "mkl_allows.so"
    source = folder / "mkl_allows.c"
    if not library.exists():
        source.write_text("int mkl_serv_intel_cpu_true(void) { return 1; }\n", encoding="utf-8")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def keep(path: Path, rows: Iterable[dict], key: tuple[str, ...], **versions: str) -> None:
    """Add rows to a file of results; they replace those that agree with them in the key."""
    old = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    by_key = {tuple(row[name] for name in key): row for row in (*old, *rows)}
    document = {"machine": machine() | versions, "rows": list(by_key.values())}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)
