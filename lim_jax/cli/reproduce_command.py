"""The paper's own figures and counterexamples, from a terminal."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from lim_jax import paper, plots
from lim_jax.cli.arguments import Out, Overwrite, Unnamed
from lim_jax.paper.outcomes import Section4, summary
from lim_jax.paper.printed_figures import (
    Comparison,
    beyond_the_paper,
    compare_with_printed,
    comparison_table,
)
from lim_jax.results.run_folder import run_folder
from lim_jax.results.tables import write_json, write_table


def reproduce(out: Out = Path("section4"), overwrite: Overwrite = False) -> int:
    """Compute section 4 of the paper in float64 and hold it against every figure it prints.

    Prints ours beside the paper's figures with the difference, and writes section4.json,
    section4.csv (ours beside the paper's) and the four figures of the section, as PNG and SVG. The
    exit status is 1 where a figure differs in a printed digit.

    Args:
    """
    with run_folder(out, "reproduce", {}, overwrite=overwrite) as folder:
        with jax.enable_x64(True):
            results = paper.section4(partial(tqdm, desc="section 4", unit="stage"))
            numbers = summary(results)
        return _report_section4(results, numbers, folder)


def _report_section4(results: Section4, numbers: dict[str, Any], out: Path) -> int:
    """Write, draw and print section 4; return 1 if a printed figure is not met, else 0."""
    write_json(out / "section4.json", numbers)
    for draw in (
        plots.simulation_influence_profiles,
        plots.simulation_observability_profiles,
        plots.simulation_convergence,
        plots.simulation_probe_errors,
    ):
        plots.figure_style.save_figure(draw(results), out, draw.__name__)
    comparisons = compare_with_printed(numbers)
    write_table(out / "section4.csv", Comparison._fields, comparisons)
    print(comparison_table(comparisons))
    print(beyond_the_paper(numbers))
    missed = [comparison.name for comparison in comparisons if not comparison.agrees]
    print(f"{len(comparisons) - len(missed)} of {len(comparisons)} printed figures agree.")
    print(f"Wrote section4.json, section4.csv and four figures to {out}.")
    return 1 if missed else 0


def counterexamples(out: Unnamed = None, overwrite: Overwrite = False) -> int:
    """Run the paper's four counterexamples to unconditional claims about shape.

    Prints each claim, why it is false, and the numbers that show it.

    Args:
        out: A folder for counterexamples.json, if the numbers are to be kept.
    """
    output = run_folder(out, "counterexamples", {}, overwrite=overwrite) if out else nullcontext()
    with output as folder:
        with jax.enable_x64(True):
            examples = [example._asdict() for example in paper.counterexamples()]
        for example in examples:
            values = {name: numbers.tolist() for name, numbers in example["numbers"].items()}
            print(f'"{example["slogan"]}"  No: {example["because"]}')
            for name, numbers in values.items():
                print(f"    {name}: {'  '.join(f'{number:.4g}' for number in numbers)}")
            example["numbers"] = values
        if folder is not None:
            write_json(folder / "counterexamples.json", examples)
            print(f"Wrote counterexamples.json to {folder}.")
    return 0
