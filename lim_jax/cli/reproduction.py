"""The paper's own figures and counterexamples, from a terminal."""

import json
from functools import partial
from pathlib import Path

import jax
from tqdm import tqdm

from lim_jax import plots, studies


def reproduce(out: Path = Path("section4")) -> int:
    """Compute section 4 of the paper in float64 and hold it against every figure it prints.

    Prints ours beside the paper's figures with the difference, and writes section4.json and the
    four figures of the section. The exit status is 1 where a figure differs in a printed digit.

    Args:
        out: The folder to write to; it is made where it is missing.
    """
    out.mkdir(parents=True, exist_ok=True)
    with jax.enable_x64(True):
        results = studies.section4(partial(tqdm, desc="section 4", unit="stage"))
        numbers = studies.summary(results)
    (out / "section4.json").write_text(json.dumps(numbers, indent=2) + "\n")
    for draw in (
        plots.simulation_influence_profiles,
        plots.simulation_observability_profiles,
        plots.simulation_convergence,
        plots.simulation_probe_errors,
    ):
        draw(results).savefig(out / f"{draw.__name__}.png")
    comparisons = studies.compare(numbers)
    print(studies.comparison_table(comparisons))
    print(studies.beyond_the_paper(numbers))
    missed = [comparison.name for comparison in comparisons if not comparison.agrees]
    print(f"{len(comparisons) - len(missed)} of {len(comparisons)} printed figures agree.")
    print(f"Wrote section4.json and four figures to {out}.")
    return 1 if missed else 0


def counterexamples() -> int:
    """Run the paper's four counterexamples to unconditional claims about shape."""
    with jax.enable_x64(True):
        found = studies.counterexamples()
    for example in found:
        print(f'"{example.slogan}"  No: {example.because}')
        for name, values in example.numbers.items():
            print(f"    {name}: {'  '.join(f'{value:.4g}' for value in values.tolist())}")
    return 0
