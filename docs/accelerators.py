"""Write the tables in docs/accelerators.md, and the files of all rows beside the page.

``python docs/accelerators.py``, after ``python benchmarks/accelerator.py`` wrote
benchmarks/results/accelerator.json, or ``python benchmarks/same_device.py --platform cpu`` wrote
benchmarks/results/same_device-cpu.json.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"
PAGE = HERE / "accelerators.md"
FILE = HERE / "accelerators" / "jobs.csv"
BESIDE_FILE = HERE / "accelerators" / "same_device-cpu.csv"
DEVICE = "NVIDIA H200"
EPYC = "AMD EPYC"
XEON = "Intel(R) Xeon(R) Processor"
SIDES = ("lim_jax", "torch", "torch.compile")
PRECISIONS = ("float32", "bfloat16 products", "bfloat16")
NAMES = {
    "influence": "influence",
    "gradient": "gradient",
    "algorithm 1": "Algorithm 1's gradient",
    "mdot": "the density's rate",
    "cone mass": "cone mass",
    "gramians": "Gramians",
    "mask gradient": "mask gradient",
    "mask path": "mask path",
    "ten greedy tokens": "ten greedy tokens",
    "profile": "profile",
    "profile, kept": "profile, weights kept in bfloat16",
    "profile, kept on the host": "profile, weights kept in bfloat16 on the host",
}
COLUMNS = {
    "size": "size", "job": "job", "precision": "precision",
    "difference": "difference from the processor", "compilation": "compiling, s",
    "milliseconds": "a call, ms", "temporary MiB": "temporary MiB", "fused": "fused kernels",
}  # fmt: skip


BESIDE_COLUMNS = {
    "device": "device",
    "size": "size", "tokens": "tokens", "job": "job", "side": "side", "precision": "precision",
    "difference": "difference", "first call": "first call, s", "seconds": "a call, s",
    "least": "least", "most": "most", "CPU seconds": "a call, s of the processor",
    "repeats": "repeats", "MiB": "MiB",
}  # fmt: skip


def rows_of(name: str) -> list[dict[str, Any]]:
    """Return the rows that a benchmark keeps in a file of this name."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def results() -> list[dict[str, Any]]:
    """Return the rows of the device with checks of values, and a call's time in milliseconds.

    Without these checks, by ``EQX_ON_ERROR=off``, a job is another one of the same name.
    """
    return [
        row | {"milliseconds": 1000 * row["seconds"]}
        for row in rows_of("accelerator")
        if row["device"] == DEVICE and row["checks"] == "raise"
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
        lines.append(f"| {' | '.join([_label(size), NAMES[job], *calls, *compiling])} |")
    return "\n".join(lines)


def beside_table(device: str) -> str:
    """Return what a call of each side takes of a processor's seconds, a job in each row."""
    by_side = {
        (row["size"], row["tokens"], row["job"], row["side"]): row
        for row in rows_of("same_device-cpu")
        if row["device"] == device
    }
    lines = [
        "| size | job | a call, ms: `lim_jax` | PyTorch | `torch.compile` "
        "| PyTorch's fastest over ours | MiB: `lim_jax` | PyTorch "
        "| first call, s: `lim_jax` | `torch.compile` |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for size, tokens, job in dict.fromkeys(key[:3] for key in by_side):
        sides = [by_side.get((size, tokens, job, side)) for side in SIDES]
        calls = [_two_digits(1000 * side["CPU seconds"]) if side else "" for side in sides]
        ours, *peers = (side["CPU seconds"] for side in sides if side)
        memory = [_two_digits(side["MiB"]) for side in sides[:2] if side]
        first = [_two_digits(side["first call"]) if side else "" for side in sides[::2]]
        label = _label(size) if size != "1b" else f"1b, {tokens:,} tokens"
        cells = [label, NAMES[job], *calls, f"{min(peers) / ours:.2f}", *memory, *first]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _label(size: str) -> str:
    """Return a size's name on the page."""
    return f"({size})" if size in ("a", "b") else size


def _two_digits(value: float) -> str:
    """Return a number with two digits, and without an exponent."""
    rounded = float(f"{value:.1e}")
    return f"{rounded:.0f}" if rounded >= 10 else f"{rounded:#.2g}"


def data_file() -> str:
    """Return every row of the device, with all that was measured."""
    return _comma_separated(results(), COLUMNS)


def beside_file() -> str:
    """Return every row of a side on a processor, with all that was measured."""
    return _comma_separated(rows_of("same_device-cpu"), BESIDE_COLUMNS)


def _comma_separated(rows: list[dict[str, Any]], columns: dict[str, str]) -> str:
    """Return rows as comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns.values())
    for row in rows:
        cells = [row[name] for name in columns]
        writer.writerow([f"{cell:.4g}" if isinstance(cell, float) else cell for cell in cells])
    return text.getvalue()


def page_with_tables() -> str:
    """Return the page with the tables in their places."""
    text = PAGE.read_text(encoding="utf-8")
    tables = {
        "jobs": table(),
        "same device": beside_table(EPYC),
        "same device, Xeon": beside_table(XEON),
    }
    for mark, lines in tables.items():
        head, tail = text.split(f"<!-- {mark} -->")[0], text.split(f"<!-- end of {mark} -->")[1]
        text = f"{head}<!-- {mark} -->\n\n{lines}\n\n<!-- end of {mark} -->{tail}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(), encoding="utf-8")
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(data_file(), encoding="utf-8")
    BESIDE_FILE.write_text(beside_file(), encoding="utf-8")
