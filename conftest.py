"""Tests run in float64 with strict promotion, and compile quickly; what does otherwise says so.

Nearly all of a test's time would be spent optimising programs that run once on some hundred
numbers, so XLA is told to compile quickly, unless XLA_FLAGS says something else: with
``XLA_FLAGS= python -m pytest`` everything compiles as users' programs do. These compile so always,
by `tests/reference/as_users.py`: the compiler's own regression (`test_compiler`), bounds on memory
(`test_blocked`, `test_cone`), the README's example in float32 (`test_readme`) and section 4 in
float64 (`test_reproduction`), both end to end in processes of their own.
"""

import gc
import os
import subprocess
import sys
from pathlib import Path

QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)


def understood(flags: str) -> bool:
    """Whether the installed XLA knows the flags: it aborts on those that it does not."""
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    environment = os.environ | {"XLA_FLAGS": flags}
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0


if "XLA_FLAGS" not in os.environ and understood(QUICK):
    os.environ["XLA_FLAGS"] = QUICK  # before jax reads it; workers inherit it
# Where in the source an instruction comes from takes a sixth of the time, and nobody reads it.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# The command line keeps compiled programs in the user's folder: run in a test it must not.
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "0")

import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Tracing makes many objects and few cycles: collecting at the usual pace takes a fifth of the time.
gc.set_threshold(200_000, 20, 100)

# The dearest files, first: no worker is left alone with one at the end.
DEAREST = (
    "test_rates", "test_transformations", "test_objectives", "test_continuous", "test_reproduction",
    "test_gramian", "test_devices", "test_readme", "test_criteria", "test_notebooks", "test_cli",
    "test_blocked", "test_docs",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """Put the dearest files first; the others stay in their order."""
    place = {name: index for index, name in enumerate(DEAREST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(DEAREST)))


MEMORY_MAPS, HELD = Path("/proc/self/maps"), 50_000


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Each holds some of the process's memory maps, of which Linux allows 65,530."""
    yield
    if MEMORY_MAPS.exists() and MEMORY_MAPS.read_bytes().count(b"\n") > HELD:
        jax.clear_caches()


@pytest.fixture
def as_users_run():
    """Switch the shape checker off, so that our own errors are seen."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
