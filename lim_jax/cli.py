"""The command line: parse, call, print."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import tyro
from tqdm import tqdm

from lim_jax import paper, plots


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
        {"reproduce": reproduce},
        prog="lim-jax",
        description="Which positions of a long context a causal Transformer really uses.",
        args=arguments,
    )
