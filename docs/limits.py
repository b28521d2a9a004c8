"""Write the table of docs/limits.md, its file and its figures, of benchmarks/results/rates.json.

``python docs/limits.py``, with the extra `plot`, after ``lim-jax rates --out FOLDER`` and a copy of
its rates.json.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

from picture_numbers import carry_numbers

from lim_jax.limits.refinement import Study
from lim_jax.limits.rows import Curve, Row
from lim_jax.plots import convergence_rates, error_against_cost

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results" / "rates.json"
PAGE = HERE / "limits.md"
FILE = HERE / "limits" / "rates.csv"
MARK = "<!-- rates -->"
END = "<!-- end of rates -->"
GRIDS = ("tokens", "midpoints", "graded")
QUANTITIES = (
    "attention, every cell", "attention, mean square", "loss", "P_0, inside, 2 layers",
    "P_0, global, 2 layers", "influence, density, 2 layers",
    "influence, regional averages, 2 layers", "cone mass, at 1/4 1/2 3/4",
)  # fmt: skip
SHOWN = ("attention", "P_0", "trajectory")
COSTS = {"depth": "evaluations of the field", "position": "positions"}


def results() -> dict[str, Any]:
    """What the command wrote."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def table() -> str:
    """Return the orders of what is measured on three grids, a quantity in each row."""
    measured = {row["name"]: row["order"]["value"] for row in results()["rates"]}
    lines = [f"| error of | {' | '.join(GRIDS)} |", "|---|---|---|---|"]
    for name in QUANTITIES:
        cells = (measured.get(f"{name}, {grid}") for grid in GRIDS)
        text = " | ".join("" if order is None else f"{order:.2f}" for order in cells)
        lines.append(f"| {name} | {text} |")
    return "\n".join(lines)


def data_file() -> str:
    """Return every limit with its order, whether its bound held, and why it is not the printed one.

    They are comma-separated values.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["limit", "order expected", "measured", "standard error", "bound", "why"])
    for row in results()["rates"]:
        order = row["order"]
        bound = {"no bound": ""}.get(row["verdict"], row["verdict"])
        measured = f"{order['value']:.2f}", f"{order['half_width'] / 2:.2f}"
        writer.writerow([row["name"], row["expected"], *measured, bound, row["reason"]])
    return text.getvalue()


def page_with_table() -> str:
    """Return the page with the table in its place."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(MARK)
    return f"{head}{MARK}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


def draw(folder: Path) -> None:
    """The figures of some topics, and of error against cost."""
    results_by_name = results()
    fields = set(Study._fields)
    rows = [
        Row(one["name"], Study(**{k: v for k, v in one.items() if k in fields}), one["expected"])
        for one in results_by_name["rates"]
    ]
    figures = {
        topic: convergence_rates([row for row in rows if row.topic == topic], topic)
        for topic in SHOWN
    }
    for name, curves in results_by_name["costs"].items():
        made = [Curve(**curve) for curve in curves]
        figures[f"cost_{name}"] = error_against_cost(made, COSTS[name])
    folder.mkdir(exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=80)


if __name__ == "__main__":
    PAGE.write_text(page_with_table(), encoding="utf-8")
    FILE.write_text(data_file(), encoding="utf-8")
    with carry_numbers():
        draw(HERE / "limits")
