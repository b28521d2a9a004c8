"""What a first call costs: whole processes from a cold start, most of whose time is compiling.

``python benchmarks/cold.py`` prints the medians of a few runs each, seconds of CPU and of wall
clock: importing JAX and the package, a first profile (docs/start.md), an influence and Algorithm
1's gradient at the size (a) of docs/speed.md, ``lim-jax explain`` on little, ``lim-jax reproduce``.
"""

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
EXAMPLE = "".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[:2])
SIZE_A = """
import jax, lim_jax as lim, numpy as np
keys, rng = jax.random.split(jax.random.key(0)), np.random.default_rng(0)
layers = jax.vmap(lambda key: lim.TransformerField.init(64, heads=4, key=key))(
    jax.random.split(keys[0], 12)
)
flow = lim.ResidualFlow(layers, horizon=12.0, step=lim.split)
model = flow, lim.LinearReadout.init(64, 32, key=keys[1])
x, y = rng.standard_normal((8, 256, 64), np.float32), rng.integers(32, size=(8, 256))
batch, grid = jax.device_put((x, y)), lim.token_grid(256)
def loss(model, x, y):
    return lim.cross_entropy(model[1](model[0](x, grid), grid), y, grid)
def penalised(model):
    return lim.training.balanced_objective(loss, model, batch, grid, strength=0.1)
"""
INFLUENCE = "jax.block_until_ready(lim.influence(loss, model, batch, grid).energy)"
GRADIENT = "jax.block_until_ready(jax.jit(jax.grad(penalised))(model))"
DEMO = ("explain", "--contexts", "8")
JOBS = {
    "import jax": ("-c", "import jax"),
    "import lim_jax": ("-c", "import jax, lim_jax"),
    "a first profile": ("-c", EXAMPLE),
    "a network and a batch": ("-c", SIZE_A),
    "and their influence": ("-c", SIZE_A + INFLUENCE),
    "or Algorithm 1's gradient": ("-c", SIZE_A + GRADIENT),
    "lim-jax explain, the demo": ("-m", "lim_jax", *DEMO),
    "lim-jax reproduce": ("-m", "lim_jax", "reproduce"),
}


def spent(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Seconds of CPU and of wall clock of one process, in a folder of its own."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "MPLBACKEND": "agg",
        "JAX_ENABLE_COMPILATION_CACHE": "0",
    }
    with tempfile.TemporaryDirectory() as folder:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
        )
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    """Print a row for each job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each job")
    repeats = parser.parse_args().repeats
    print(f"{'job':30s} {'CPU':>8s} {'wall':>8s}   medians of {repeats}")
    for name, arguments in JOBS.items():
        runs = [spent(arguments) for _ in range(repeats)]
        cpu, wall = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{name:30s} {cpu:6.2f} s {wall:6.2f} s", flush=True)


if __name__ == "__main__":
    main()
