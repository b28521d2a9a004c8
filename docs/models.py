"""Write the list of families in docs/models.md, and the file of differences beside it.

``python docs/models.py``, after ``python benchmarks/parity.py`` wrote
benchmarks/results/parity.json. What a family is, its recipe's first line says.
"""

import csv
import io
import json
import textwrap
from pathlib import Path

from lim_jax.checkpoints.families.family_table import FAMILIES

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results" / "parity.json"
PAGE = HERE / "models.md"
FILE = HERE / "models" / "parity.csv"
MARK = "<!-- parity -->"
SECTION = """
## Every family

These are the values of `model_type` in `config.json`:
{names}.

<details markdown="1">
<summary>What each family is, and in which variants it was compared</summary>

{table}

</details>
"""
Gaps = dict[str, float]


def results() -> dict[tuple[str, str], Gaps]:
    """Return the differences of every quantity, by configuration and precision."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    return {(row.pop("configuration"), row.pop("precision")): row for row in rows}


def table() -> str:
    """Return every family: what it is, and in which variants beside the first it was compared."""
    lines = ["| `model_type` | what it is | also compared |", "|---|---|---|"]
    compared = [name for name, precision in results() if precision == "float32"]
    for family, recipe in sorted(FAMILIES.items()):
        what = (recipe.__doc__ or "").partition("\n")[0].rstrip(".")
        more = [name.partition(", ")[2] for name in compared if name.startswith(f"{family},")]
        lines.append(f"| `{family}` | {what} | {'; '.join(more)} |")
    return "\n".join(lines)


def data_file() -> str:
    """Return the difference of every quantity for each network and precision, comma-separated."""
    differences = results()
    quantities = list(dict.fromkeys(name for gaps in differences.values() for name in gaps))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["family", "variant", "precision", *quantities])
    for (name, precision), gaps in sorted(differences.items()):
        family, _, variant = name.partition(", ")
        figures = [f"{gaps[one]:.1e}" if one in gaps else "" for one in quantities]
        writer.writerow([family, variant, precision, *figures])
    return text.getvalue()


def page_with_families() -> str:
    """Return the page with the families in their place, which is the end."""
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    names = textwrap.fill(", ".join(f"`{family}`" for family in sorted(FAMILIES)), 116)
    return f"{head}{MARK}\n{SECTION.format(names=names, table=table())}"


if __name__ == "__main__":
    PAGE.write_text(page_with_families(), encoding="utf-8")
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(data_file(), encoding="utf-8")
