"""Write the table of docs/limits.md, and draw its figures, of benchmarks/results/rates.json.

``python docs/limits.py``, with the extra `plot`, after ``lim-jax rates --out FOLDER`` and a copy of
its rates.json.
"""

import json
from pathlib import Path
from typing import Any

from picture_numbers import numbered

from lim_jax.limits.refinement import Study
from lim_jax.limits.rows import Curve, Row
from lim_jax.plots import convergence_rates, error_against_cost

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results" / "rates.json"
PAGE = HERE / "limits.md"
MARK = "<!-- rates -->"
SHOWN = ("attention", "P_0", "trajectory")
COSTS = {"depth": "evaluations of the field", "position": "positions"}


def results() -> dict[str, Any]:
    """What the command wrote."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def table() -> str:
    """Every limit with its order, whether its bound held, and why it is not the printed one."""
    lines = ["| limit | order expected | measured | bound | why |", "|---|---|---|---|---|"]
    for row in results()["rates"]:
        order = row["order"]
        bound = {"no bound": ""}.get(row["verdict"], row["verdict"])
        measured = f"{order['value']:.2f} ± {order['half_width'] / 2:.2f}"
        lines.append(
            f"| {row['name']} | {row['expected']} | {measured} | {bound} | {row['reason']} |"
        )
    return "\n".join(lines) + "\n"


def written() -> str:
    """The page with the table in its place, which is the end."""
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    return f"{head}{MARK}\n\n{table()}"


def draw(folder: Path) -> None:
    """The figures of some topics, and of error against cost."""
    found = results()
    fields = set(Study._fields)
    rows = [
        Row(one["name"], Study(**{k: v for k, v in one.items() if k in fields}), one["expected"])
        for one in found["rates"]
    ]
    figures = {
        topic: convergence_rates([row for row in rows if row.topic == topic], topic)
        for topic in SHOWN
    }
    for name, curves in found["costs"].items():
        made = [Curve(**curve) for curve in curves]
        figures[f"cost_{name}"] = error_against_cost(made, COSTS[name])
    folder.mkdir(exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=80)


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
    with numbered():
        draw(HERE / "limits")
