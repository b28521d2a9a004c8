"""What users run: programs in processes of their own, and XLA's defaults inside ours.

`DEFAULTS` undo the quick compilation of `conftest.py` for one program:
``jax.jit(function, compiler_options=DEFAULTS)`` or ``lowered.compile(DEFAULTS)``.
"""

import os
import subprocess
import sys
from pathlib import Path

from reference.quickly import QUICK, given_flags

ROOT = Path(__file__).parents[2]
IS_QUICK = QUICK in os.environ.get("XLA_FLAGS", "")
OF_XLA = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_use_fusion_emitters": True,
    "xla_cpu_parallel_codegen_split_count": 32,
}
DEFAULTS = {name: value for name, value in OF_XLA.items() if IS_QUICK and name in QUICK}


def temporary_bytes(traced):
    """The temporary memory of a traced program as it is compiled for users."""
    analysis = traced.lower().compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def run_python(*arguments, folder, flags=""):
    """Run Python in a folder, with the package and all defaults, float32 too; warnings fail.

    But for the cache of compiled programs: nothing is kept in the user's folder; and XLA's flags,
    which stand behind those that this run of the tests was given.
    """
    return subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        cwd=folder,
        env=os.environ
        | {
            "XLA_FLAGS": f"{given_flags()} {flags}".strip(),
            "PYTHONPATH": str(ROOT),
            "JAX_ENABLE_X64": "0",
        }
        | {"JAX_ENABLE_COMPILATION_CACHE": "0"},
        capture_output=True,
        text=True,
    )
