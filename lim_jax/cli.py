"""The command line: parse, call, print."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import tyro
from tqdm import tqdm

from lim_jax import convergence, paper, plots


def reproduce(out: Path = Path("section4")) -> int:
    """Compute section 4 of the paper in float64 and hold it against every figure it prints.

    Prints ours beside the paper's figures with the difference, and writes section4.json and the
    four figures of the section. The exit status is 1 where a figure differs in a printed digit.

    Args:
        out: The folder to write to; it is made where it is missing.
    """
    out.mkdir(parents=True, exist_ok=True)
    with jax.enable_x64(True):
        results = paper.section4(partial(tqdm, desc="section 4", unit="stage"))
        numbers = paper.summary(results)
    (out / "section4.json").write_text(json.dumps(numbers, indent=2) + "\n")
    for draw in (
        plots.simulation_influence_profiles,
        plots.simulation_observability_profiles,
        plots.simulation_convergence,
        plots.simulation_probe_errors,
    ):
        draw(results).savefig(out / f"{draw.__name__}.png")
    comparisons = paper.compare(numbers)
    print(_comparison_table(comparisons))
    print(_beyond_the_paper(numbers))
    missed = [comparison.name for comparison in comparisons if not comparison.agrees]
    print(f"{len(comparisons) - len(missed)} of {len(comparisons)} printed figures agree.")
    print(f"Wrote section4.json and four figures to {out}.")
    return 1 if missed else 0


def rates(quick: bool = False, out: Path = Path("rates")) -> int:
    """Measure every limit of the paper: tokens to Volterra, layers to the depth flow.

    Prints claimed and measured orders with two standard errors, whether each stated bound held,
    and why an order differs from the printed one; writes rates.json and log-log figures. The exit
    status is 1 where an order is not the expected one to 0.15, or a bound is broken.

    Args:
        quick: Fewer refinements and the main theorems only.
        out: The folder to write to; it is made where it is missing.
    """
    out.mkdir(parents=True, exist_ok=True)
    with jax.enable_x64(True):
        rows, curves = convergence.measure(
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
    print(_rates_table(rows))
    missed = [row.name for row in rows if not row.agrees]
    print(f"{len(rows) - len(missed)} of {len(rows)} orders and bounds are as expected.")
    print(f"Wrote rates.json and figures to {out}.")
    return 1 if missed else 0


def _rates_table(rows: list[convergence.Row]) -> str:
    lines = [
        f"{'limit':58s} {'claimed':>7s} {'expected':>8s} {'measured':>14s} {'bound':>6s} "
        f"{'constant':>9s} {'reference':>9s}"
    ]
    for row in rows:
        study, order = row.study, row.study.order
        bound = {True: "holds", False: "BROKEN", None: "-"}[study.holds]
        lines.append(
            f"{row.name:58s} {study.claimed:7.2f} {row.expected:8.2f} "
            f"{order.value:7.2f} ±{order.half_width:5.2f} {bound:>6s} {order.constant:9.2g} "
            f"{study.reference_error:9.1e}{'' if row.agrees else '   DIFFERS'}"
        )
    reasons = dict.fromkeys(row.reason for row in rows if row.reason)
    lines += ["", "Where the expected order is not the claimed one:"]
    for reason in reasons:
        names = [row.name for row in rows if row.reason == reason]
        lines.append(f"- {reason}: {'; '.join(names)}")
    return "\n".join(lines)


def _comparison_table(comparisons: list[paper.Comparison]) -> str:
    lines = [f"{'figure':44s} {'paper':>9s} {'ours':>12s} {'difference':>11s}"]
    for name, printed, ours, difference, agrees in comparisons:
        shown = f"{100 * ours:.4f}%" if printed.endswith("%") else f"{ours:.6f}"
        mark = "" if agrees else "   DIFFERS"
        lines.append(f"{name:44s} {printed:>9s} {shown:>12s} {difference:+11.1e}{mark}")
    return "\n".join(lines)


def _beyond_the_paper(numbers: dict) -> str:
    lines = ["", "Beyond the paper: the minima that 400 Adam steps do not reach"]
    for name, row in numbers["minimiser"].items():
        lines.append(
            f"  {name}: objective {row['objective']:.4f}, influence imbalance "
            f"{row['influence_imbalance']:.4f}, LIM {row['lim']:.4f}, Z {row['Z']:.4f}"
        )
    lines.append("and the probe study's exact values beside the sampled ones")
    for count, row in numbers["probe"].items():
        lines.append(
            f"  {count:>2s} probes: bias {row['bias']:7.2%} (exact {row['bias_exact']:7.3%}), "
            f"deviation {row['std']:7.1%} (exact {row['std_exact']:7.1%})"
        )
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments`, by default the process's own; returns its status."""
    return tyro.extras.subcommand_cli_from_dict(
        {"reproduce": reproduce, "rates": rates},
        prog="lim-jax",
        description="Which positions of a long context a causal Transformer really uses.",
        args=arguments,
    )
