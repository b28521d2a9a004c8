"""The README's tables of measured figures, from the results that the benchmarks keep.

``python benchmarks/report.py`` writes them between their marks in the README.
"""

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
SPEED_HEADER = (
    "| size | precision | job | lim_jax | PyTorch | ratio | compilation | MiB | PyTorch's |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
SCALING_HEADER = "| job | L | d | layers | batch | time | MiB |\n|---|---|---|---|---|---|---|"


def speed_line(row: dict) -> str:
    """A row of `speed.py`."""
    cells = [row["size"], row["precision"], row["job"]]
    cells += [_duration(row["seconds"][side]) for side in ("lim_jax", "torch")]
    cells += [f"{row['ratio']:.2f}", f"{row['compilation']:.1f} s"]
    cells += [f"{row['MiB'][side]:.0f}" for side in ("lim_jax", "torch")]
    return _row(cells)


def scaling_line(row: dict) -> str:
    """A row of `scaling.py`."""
    cells = [row["job"], f"{row['length']:,}", str(row["width"]), str(row["depth"])]
    cells += [str(row["batch"]), _duration(row["seconds"]), f"{row['MiB']:.0f}"]
    return _row(cells)


def tables() -> dict[str, str]:
    """Each table by the name of its marks."""
    makers = {"speed": (SPEED_HEADER, speed_line), "scaling": (SCALING_HEADER, scaling_line)}
    found = {}
    for name, (header, line) in makers.items():
        path = HERE / "results" / f"{name}.json"
        if path.exists():
            document = json.loads(path.read_text())
            found[name] = "\n".join([header, *map(line, document["rows"])])
    return found


def with_tables(text: str) -> str:
    """The README's text with every table renewed."""
    for name, table in tables().items():
        marked = re.compile(rf"(<!-- {name} -->\n\n).*?(\n\n<!-- end of {name} -->)", re.DOTALL)
        text = marked.sub(lambda match, table=table: match[1] + table + match[2], text)
    return text


def _duration(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
