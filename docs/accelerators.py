"""Write the table in docs/accelerators.md, and the file of all rows beside the page.

``python docs/accelerators.py``, after ``python benchmarks/accelerator.py`` wrote
benchmarks/results/accelerator.json.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results" / "accelerator.json"
PAGE = HERE / "accelerators.md"
FILE = HERE / "accelerators" / "jobs.csv"
MARK = "<!-- jobs -->"
END = "<!-- end of jobs -->"
DEVICE = "NVIDIA H200"
PRECISIONS = ("float32", "bfloat16 products", "bfloat16")
NAMES = {
    "influence": "influence",
    "gradient": "gradient",
    "algorithm 1": "Algorithm 1's gradient",
    "mdot": "the density's rate",
    "cone mass": "cone mass",
    "gramians": "Gramians",
    "profile": "profile",
    "profile, kept": "profile, weights kept in bfloat16",
    "profile, kept on the host": "profile, weights kept in bfloat16 on the host",
}
COLUMNS = {
    "size": "size", "job": "job", "precision": "precision",
    "difference": "difference from the processor", "compilation": "compiling, s",
    "milliseconds": "a call, ms", "temporary MiB": "temporary MiB", "fused": "fused kernels",
}  # fmt: skip


def results() -> list[dict[str, Any]]:
    """Return the rows of the device, with the time of a call in milliseconds."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    return [
        row | {"milliseconds": 1000 * row["seconds"]} for row in rows if row["device"] == DEVICE
    ]


def table() -> str:
    """Return the times of a call and of compiling, a job in each row."""
    times = {(row["size"], row["job"], row["precision"]): row for row in results()}
    lines = [
        "| size | job | a call, ms: float32 | products | bfloat16 "
        "| compiling, s: float32 | products | bfloat16 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for size, job in dict.fromkeys((size, job) for size, job, _ in times):
        rows = [times.get((size, job, precision)) for precision in PRECISIONS]
        calls = [_two_digits(row["milliseconds"]) if row else "" for row in rows]
        compiling = [f"{row['compilation']:.1f}" if row else "" for row in rows]
        label = f"({size})" if size == "a" else size
        lines.append(f"| {' | '.join([label, NAMES[job], *calls, *compiling])} |")
    return "\n".join(lines)


def _two_digits(value: float) -> str:
    """Return a number with two digits, and without an exponent."""
    rounded = float(f"{value:.1e}")
    return f"{rounded:.0f}" if rounded >= 10 else f"{rounded:#.2g}"


def data_file() -> str:
    """Return every row with all that was measured, as comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS.values())
    for row in results():
        cells = [row[name] for name in COLUMNS]
        writer.writerow([f"{cell:.4g}" if isinstance(cell, float) else cell for cell in cells])
    return text.getvalue()


def written() -> str:
    """Return the page with the table in its place."""
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text.partition(MARK)[0], text.partition(END)[2]
    return f"{head}{MARK}\n\n{table()}\n\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(data_file(), encoding="utf-8")
