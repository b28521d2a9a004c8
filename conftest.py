"""Tests run in float64 with strict promotion, and compile quickly; what does otherwise says so.

Nearly all of a test's time would be spent optimising programs that run once on some hundred
numbers, so XLA is told to compile quickly. Flags that ``XLA_FLAGS`` holds stand behind these, as in
``XLA_FLAGS=--xla_cpu_max_isa=AVX2 python -m pytest``; only where it is set and empty, by
``XLA_FLAGS= python -m pytest``, everything compiles as users' programs do. These compile so always,
by `tests/reference/as_users.py`: the compiler's own regression (`test_compiler`), bounds on memory
as far as memory is decided (`temporary_bytes`) and the README's example in float32 (`test_readme`),
end to end in a process of its own; section 4 in float64 does in `.ci/run`.
"""

import ctypes
import gc
import os
import resource
import sys
from importlib import import_module
from pathlib import Path

from reference.quickly import compile_quickly

compile_quickly()  # before jax reads XLA_FLAGS; workers inherit it
# Threads of BLAS wait for each other by spinning: ten times the work on matrices as small as these.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The command line keeps compiled programs in the user's folder: run in a test it must not.
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "0")

import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

GIB = 2**30
# What a worker may hold after a test; the dearest adds a half. To forget takes a second or two, and
# more where the next tests compile the same again.
HELD = 2.0 * GIB
STATM = Path("/proc/self/statm")


@pytest.fixture(autouse=True, scope="session")
def examples_know_the_library(doctest_namespace):
    """Give examples ``lim``: as on every page, ``import lim_jax as lim`` stands before.

    Not imported above: older versions of jaxtyping check what is imported after this file.
    """
    doctest_namespace["lim"] = import_module("lim_jax")


@pytest.fixture(autouse=True)
def forget_compiled_programs():
    """Forget programs, which with what was traced are most of a worker's memory."""
    yield
    if STATM.exists() and int(STATM.read_bytes().split()[1]) * resource.getpagesize() > HELD:
        jax.clear_caches()
        gc.collect()
        give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if give_back is not None:
            give_back(0)


SPENT = pytest.StashKey[dict[str, tuple[float, float]]]()


def memory_and_minutes() -> tuple[float, float]:
    """Return this process's peak of memory in GiB, and minutes of CPU with its children's."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB
    return peak, sum(os.times()[:4]) / 60


def pytest_sessionfinish(session):
    """Let a worker say what it took."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["spent"] = memory_and_minutes()


def pytest_testnodedown(node):
    """Keep what a worker said, if it came so far."""
    said = getattr(node, "workeroutput", {})
    if "spent" in said:
        node.config.stash.setdefault(SPENT, {})[node.gateway.id] = said["spent"]


def pytest_terminal_summary(terminalreporter, config):
    """Print what each worker took; the slowest tests stand below, by ``--durations``."""
    terminalreporter.section("memory and CPU")
    for worker, (peak, minutes) in config.stash.get(SPENT, {"alone": memory_and_minutes()}).items():
        terminalreporter.line(f"{worker}: {peak:.2f} GiB at most, {minutes:.1f} minutes of CPU")


@pytest.fixture
def as_users_run():
    """Switch the shape checker off, so that our own errors are seen."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
