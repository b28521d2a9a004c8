"""The paper's limits, measured from a terminal."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

import jax
from tqdm import tqdm

from lim_jax import limits, plots
from lim_jax._checks import as_path
from lim_jax.cli.arguments import Counts, Out, Overwrite, Seed
from lim_jax.limits.rows import Curve, Row, rates_table
from lim_jax.results.run_folder import UNFINISHED, finished_before, run_folder
from lim_jax.results.tables import KEYS, write_json, write_table

COSTS = {"depth": "evaluations of the field", "position": "positions"}


def rates(
    quick: bool = False,
    only: tuple[str, ...] = (),
    sizes: Counts = (),
    seed: Seed = 0,
    out: Out = Path("rates"),
    overwrite: Overwrite = False,
) -> int:
    """Measure the paper's limits: tokens to Volterra, layers to the depth flow.

    Prints claimed and measured orders with two standard errors, whether each explicit bound held,
    and why an order differs from the printed one; writes rates.json, rates.csv (an error and a
    bound for each refinement) and log-log figures, as PNG and SVG. The exit status is 1 where an
    order is not the expected one to 0.15, or a bound is broken. Interrupted and run again it goes
    on after the last group of studies that was finished.

    Args:
        quick: Fewer refinements and the main theorems only.
        only: The studies to run, of depth, attention, adjoint-1-layer, adjoint-2-layers,
            adjoint-3-layers, adjoint-in-depth, loss, averaging, singularity, queries, cone,
            extrapolated, rough, controls and shadowing. Without, all are run.
        sizes: Refinements of the studies in --only: at least four numbers of tokens or layers.
        seed: Of the matrices. The orders expected are those seen at 0; others may show them later.
    """
    arguments = {"quick": quick, "only": only, "sizes": sizes, "seed": seed}
    if finished_before(out, "rates", arguments, overwrite=overwrite):
        written = (as_path(out, "out") / "rates.json").read_text("utf-8")
        return 0 if all(row["agrees"] for row in json.loads(written)["rates"]) else 1
    limits.paper_studies.require_choice(only, sizes)  # before the folder
    with run_folder(out, "rates", arguments, overwrite=overwrite) as folder:
        with jax.enable_x64(True):
            rows, curves = limits.paper_studies.measure(
                quick=quick,
                only=only,
                sizes=sizes,
                seed=seed,
                checkpoint=folder / UNFINISHED / "rates.json",
                progress=partial(tqdm, desc="rates", unit="group"),
            )
            return _report_rates(rows, curves, folder)


def _report_rates(rows: Sequence[Row], curves: Mapping[str, Sequence[Curve]], out: Path) -> int:
    """Write, draw and print the studies; return 1 if one is not as expected, else 0."""
    costs = {
        name: [curve._asdict() for curve in curves_of_cost]
        for name, curves_of_cost in curves.items()
    }
    write_json(out / "rates.json", {"rates": [row.record() for row in rows], "costs": costs})
    errors = (
        (row.name, *columns)
        for row in rows
        for columns in zip_longest(row.study.refinements, row.study.errors, row.study.bounds or ())
    )
    write_table(out / "rates.csv", tuple(KEYS["rates.csv"]), errors)
    for topic in dict.fromkeys(row.topic for row in rows):
        rows_of_topic = [row for row in rows if row.topic == topic]
        file = re.sub(r"[^\w-]+", "_", topic).strip("_")  # a topic may hold a formula
        plots.figure_style.save_figure(plots.convergence_rates(rows_of_topic, topic), out, file)
    for name, curves_of_cost in curves.items():
        plots.figure_style.save_figure(
            plots.error_against_cost(curves_of_cost, COSTS[name]), out, f"cost_{name}"
        )
    print(rates_table(list(rows)))
    missed = [row.name for row in rows if not row.agrees]
    right = f"{len(rows) - len(missed)} of {len(rows)} limits"
    print(f"{right} have the expected order, and break no bound.")
    print(f"Wrote rates.json, rates.csv and figures to {out}.")
    return 1 if missed else 0
