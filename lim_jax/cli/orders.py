"""The paper's limits, measured from a terminal."""

import json
from functools import partial
from pathlib import Path

import jax
from tqdm import tqdm

from lim_jax import limits, plots


def rates(quick: bool = False, out: Path = Path("rates")) -> int:
    """Measure the paper's limits: tokens to Volterra, layers to the depth flow.

    Prints claimed and measured orders with two standard errors, whether each explicit bound held,
    and why an order differs from the printed one; writes rates.json and log-log figures. The exit
    status is 1 where an order is not the expected one to 0.15, or a bound is broken.

    Args:
        quick: Fewer refinements and the main theorems only.
        out: The folder to write to; it is made where it is missing.
    """
    out.mkdir(parents=True, exist_ok=True)
    with jax.enable_x64(True):
        rows, curves = limits.convergence.measure(
            quick=quick, progress=partial(tqdm, desc="rates", unit="group")
        )
        records = [row.record() for row in rows]
    costs = {name: [curve._asdict() for curve in found] for name, found in curves.items()}
    (out / "rates.json").write_text(json.dumps({"rates": records, "costs": costs}, indent=2) + "\n")
    for topic in dict.fromkeys(row.topic for row in rows):
        chosen = [row for row in rows if row.topic == topic]
        name = topic.replace(" ", "_")
        plots.convergence_rates(chosen, topic).savefig(out / f"{name}.png", bbox_inches="tight")
    for name, found in curves.items():
        cost = {"depth": "evaluations of the field", "position": "positions"}[name]
        plots.error_against_cost(found, cost).savefig(out / f"cost_{name}.png")
    print(limits.rates_table(rows))
    missed = [row.name for row in rows if not row.agrees]
    print(f"{len(rows) - len(missed)} of {len(rows)} orders and bounds are as expected.")
    print(f"Wrote rates.json and figures to {out}.")
    return 1 if missed else 0
