"""What Algorithm 1 and the density's rate cost, in plain gradients of the same model and batch.

Ratios of medians over alternated repeats in one run, compilation apart; memory is XLA's own
account of the compiled programs' temporary buffers.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import tyro
from record import compile_job

import lim_jax as lim
from lim_jax.training.density_objectives import balanced_objective
from lim_jax.training.discrepancy import influence_discrepancy
from lim_jax.training.dynamics import density_dynamics, risk


def jobs_of(
    length: int, width: int, heads: int, depth: int, batch: int
) -> tuple[dict[str, Callable], tuple]:
    """Return each job as a function of a random network, and the network."""
    grid = lim.token_grid(length)
    keys = jax.random.split(jax.random.key(0), depth + 3)
    layers = jax.vmap(lambda key: lim.TransformerField.init(width, heads=heads, key=key))(
        keys[:depth]
    )
    model = (
        lim.ResidualFlow(layers, horizon=float(depth), step=lim.split),
        lim.LinearReadout.init(width, 32, key=keys[-3]),
    )
    x = jax.random.normal(keys[-2], (batch, length, width))
    y = jax.nn.one_hot(jax.random.randint(keys[-1], (batch, length), 0, 32), 32)

    def loss(model, x, y):
        """Compute one example's cross-entropy."""
        return lim.cross_entropy(model[1](model[0](x, grid), grid), y, grid)

    def mean_loss(model):
        """Compute the risk alone."""
        return risk(loss, model, (x, y))

    def balanced(model):
        """Compute risk and penalty as the library does, in one mixed derivative."""
        return balanced_objective(loss, model, (x, y), grid, strength=1.0)

    def balanced_through_density(model):
        """Compute the same by a density whose gradient is a gradient of a gradient."""
        density = lim.influence(loss, model, (x, y), grid).density
        return mean_loss(model) + influence_discrepancy(density, 1.0, grid)

    jobs = {
        "plain gradient": jax.value_and_grad(mean_loss),
        "Algorithm 1": jax.value_and_grad(balanced),
        "Algorithm 1, gradient of gradient": jax.value_and_grad(balanced_through_density),
        "mdot": lambda model: density_dynamics(loss, model, (x, y), grid).rate,
    }
    return jobs, model


def median_seconds(programs: dict[str, Callable], model: tuple, repeats: int) -> dict[str, float]:
    """Time compiled jobs by turns; return the medians."""
    times = {name: [] for name in programs}
    for _ in range(repeats):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(model))
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in times.items()}


def main(
    length: int = 256,
    width: int = 64,
    heads: int = 4,
    depth: int = 12,
    batch: int = 8,
    repeats: int = 7,
    out: Path | None = None,
) -> None:
    """Time plain gradients, Algorithm 1 two ways, and mdot, on one thread if you pin one.

    Args:
        length: The context length L.
        width: Features.
        heads: Attention heads.
        depth: Layers.
        batch: Examples.
        repeats: Alternated repeats.
        out: A JSON file for the results.
    """
    jobs, model = jobs_of(length, width, heads, depth, batch)
    compiled = {}
    memory = {}
    for name, job in jobs.items():
        start = time.perf_counter()
        compiled[name] = compile_job(job, model)
        jax.block_until_ready(compiled[name](model))
        analysis = compiled[name].compiled.memory_analysis()
        memory[name] = analysis.temp_size_in_bytes / 2**20
        print(f"{name}: compiled and warm in {time.perf_counter() - start:.1f} s")
    medians = median_seconds(compiled, model, repeats)
    unit = medians["plain gradient"], memory["plain gradient"]
    for name in jobs:
        print(
            f"{name:36s} {1e3 * medians[name]:9.1f} ms  {medians[name] / unit[0]:5.2f}x   "
            f"{memory[name]:8.1f} MiB  {memory[name] / unit[1]:5.2f}x"
        )
    if out is not None:
        out.write_text(
            json.dumps({"seconds": medians, "MiB": memory}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    tyro.cli(main)
