"""Tests compile quickly: XLA's flags for it, joined to those that a user gives."""

import os
import subprocess
import sys

# Passes that take a tenth of what is left and make these programs no smaller; and another tenth,
# XLA's looks at what its passes made.
DEAR_PASSES = (
    "batch-dot-simplification",
    "dynamic-dimension-simplifier",
    "tree_reduction_rewriter",
    "simplify-while-loops",
    "while-loop-invariant-code-motion",
    "while-loop-trip-count-annotator",
    "hlo-verifier",
)
QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    f"--xla_disable_hlo_passes={','.join(DEAR_PASSES)}"
)


def understood(flags: str) -> bool:
    """Whether the installed XLA knows the flags: it aborts on those that it does not."""
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    environment = os.environ | {"XLA_FLAGS": flags}
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0


def compile_quickly() -> None:
    """Put the quick flags before those that XLA_FLAGS holds, where XLA knows them all.

    One that is set and empty stays so, and one that holds them already, as a worker's does.
    """
    given = os.environ.get("XLA_FLAGS")
    if given == "" or QUICK in (given or ""):
        return
    flags = f"{QUICK} {given or ''}".strip()
    if understood(flags):
        os.environ["XLA_FLAGS"] = flags


def given_flags() -> str:
    """The flags that a user gave, without the quick ones."""
    return os.environ.get("XLA_FLAGS", "").replace(QUICK, "").strip()
