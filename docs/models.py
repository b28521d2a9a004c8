"""Write the table of docs/models.md of benchmarks/results/parity.json: ``python docs/models.py``.

`benchmarks/parity.py` writes those results. What a family is, its recipe's first line says.
"""

import json
from pathlib import Path

from lim_jax.checkpoints.families.family_table import FAMILIES

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results" / "parity.json"
PAGE = HERE / "models.md"
MARK = "<!-- parity -->"
Gaps = dict[str, float]


def results() -> dict[tuple[str, str], Gaps]:
    """The differences of every quantity, by configuration and precision."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    return {(row.pop("configuration"), row.pop("precision")): row for row in rows}


def worst(family: str, precision: str) -> Gaps:
    """The largest difference of logits, and of all derivatives, among a family's networks."""
    rows = [
        row
        for (name, at), row in results().items()
        if at == precision and name.partition(",")[0] == family
    ]
    rest = [gap for row in rows for name, gap in row.items() if name not in ("logits", "loss")]
    return {"logits": max(row["logits"] for row in rows), "derivatives": max(rest)}


def table() -> str:
    """Every family: what it is, in which variants it was tried, and how far apart the two are."""
    lines = [
        "| `model_type` | what it is | also tried "
        "| logits, float32 | derivatives | logits, float64 | derivatives |",
        "|---|---|---|---|---|---|---|",
    ]
    tried = [name for name, precision in results() if precision == "float32"]
    for family, recipe in sorted(FAMILIES.items()):
        what = (recipe.__doc__ or "").partition("\n")[0].rstrip(".")
        more = [name.partition(", ")[2] for name in tried if name.startswith(f"{family},")]
        gaps = [*worst(family, "float32").values(), *worst(family, "float64").values()]
        figures = " | ".join(f"{gap:.0e}" for gap in gaps)
        lines.append(f"| `{family}` | {what} | {'; '.join(more)} | {figures} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """The page with the table in its place, which is the end."""
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    return f"{head}{MARK}\n\n{table()}"


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
