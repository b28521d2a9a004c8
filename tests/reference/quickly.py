"""Tests compile quickly: XLA's flags for it, joined to those that a user gives."""

import os
from importlib.metadata import version

# The last one: one function of LLVM for each program.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
)
if version("jaxlib").startswith("0.10."):  # XLA aborts on flags that it does not know
    QUICK += " --xla_cpu_use_fusion_emitters=false"  # emitters of fusions take long to start


def compile_quickly() -> None:
    """Put the quick flags before those that XLA_FLAGS holds.

    One that is set and empty stays so, and one that holds them already, as a worker's does.
    """
    flags = os.environ.get("XLA_FLAGS")
    if flags == "" or QUICK in (flags or ""):
        return
    os.environ["XLA_FLAGS"] = f"{QUICK} {flags or ''}".strip()


def given_flags() -> str:
    """Return the flags that a user gave, without the quick ones."""
    return os.environ.get("XLA_FLAGS", "").replace(QUICK, "").strip()
