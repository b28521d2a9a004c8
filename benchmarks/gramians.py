"""Routes to observability Gramians: what each takes, and whether the cost model picks the faster.

Also all traces at once by noise injected at every layer, against forward probes of equal variance:
a draw has about the variance of one Gaussian probe, so a draw is set against a probe at every
position. Medians of alternated repeats, compilation apart; pin one thread for steadier numbers.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from record import compile_job
from tqdm import tqdm

import lim_jax as lim
from lim_jax.observability.gramian import (
    Mode,
    ObservedTokens,
    cheapest_mode,
    layer_products,
    observability_gramians,
)
from lim_jax.observability.trace_estimates import layer_injected_traces, probed_observability

# Length, width, heads, layers, tokens observed.
SIZES = (
    (16, 32, 2, 12, 1),
    (16, 32, 2, 12, 8),
    (32, 16, 2, 4, 1),
    (32, 16, 2, 4, 16),
    (32, 16, 2, 8, 32),
    (64, 32, 2, 6, 1),
    (64, 32, 2, 6, 16),
    (64, 16, 2, 12, 4),
    (48, 16, 1, 6, 2),
    (24, 24, 2, 6, 12),
)


def observed_network(length: int, width: int, heads: int, depth: int, num_observed: int):
    """Observe the last tokens of a random network."""
    keys = jax.random.split(jax.random.key(0), depth + 1)
    make = jax.vmap(lambda key: lim.TransformerField.init(width, heads=heads, key=key))
    flow = lim.ResidualFlow(make(keys[1:]), horizon=float(depth), step=lim.split)
    tokens = jnp.arange(length - num_observed, length)
    see = ObservedTokens(flow, lim.token_grid(length), tokens)
    return see, jax.random.normal(keys[0], (length, width))


def seconds(jobs: dict[str, Callable], *arguments, repeats: int) -> dict[str, float]:
    """Time jobs by turns after compilation; return the medians."""
    compiled = {name: compile_job(job, *arguments) for name, job in jobs.items()}
    times = {name: [] for name in jobs}
    for _ in range(repeats + 1):
        for name, job in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(job(*arguments))
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(values[1:])) for name, values in times.items()}


def route_row(size: tuple[int, ...], repeats: int) -> dict:
    """Time both exact routes at one size, and see which the cost model picks."""
    see, x = observed_network(*size)

    def job(mode: Mode) -> Callable:
        """Return a job that takes one of the routes."""
        return lambda see, x: observability_gramians(see, x, 1.0, mode)

    jobs = {"forward": job("forward"), "reverse": job("reverse")}
    times = seconds(jobs, see, x, repeats=repeats)
    cheapest = cheapest_mode(layer_products(see, x))
    faster = min(times, key=times.__getitem__)
    return {"size": size, "seconds": times, "chosen": cheapest, "right": cheapest == faster}


def traces_row(size: tuple[int, ...], repeats: int) -> dict:
    """Time one sweep for all positions against one forward probe for each."""
    see, x = observed_network(*size)
    observed = jax.eval_shape(see, x)
    noise = jax.random.normal(jax.random.key(1), (1, *observed.shape))
    probe = jax.random.normal(jax.random.key(2), (1, x.shape[1]))
    jobs = {
        "injected": lambda see, x: layer_injected_traces(see, x, 1.0, noise),
        "probes": lambda see, x: probed_observability(see, x, 1.0, probe),
    }
    times = seconds(jobs, see, x, repeats=repeats)
    return {"size": size, "seconds": times, "ratio": times["probes"] / times["injected"]}


def main(repeats: int = 5, out: Path | None = None) -> None:
    """Time the routes at ten sizes, and the two trace estimates at two.

    Args:
        repeats: Alternated repeats.
        out: A JSON file for the results.
    """
    print("| L, d, heads, layers, observed | forward | reverse | chosen | is the faster |")
    print("|---|---|---|---|---|")
    rows = []
    for size in tqdm(SIZES, desc="routes", leave=False):
        rows.append(row := route_row(size, repeats))
        times = " | ".join(f"{1e3 * row['seconds'][m]:.1f} ms" for m in ("forward", "reverse"))
        print(f"| {size} | {times} | {row['chosen']} | {row['right']} |", flush=True)
    traces = [traces_row(size, repeats) for size in ((64, 32, 2, 6, 1), (256, 64, 4, 12, 1))]
    for row in traces:
        print(f"{row['size']}: probes take {row['ratio']:.0f} times as long as injected noise")
    if out is not None:
        out.write_text(
            json.dumps({"routes": rows, "traces": traces}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    tyro.cli(main)
