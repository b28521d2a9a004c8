"""The tables of docs/speed.md and of the README, from the results that the benchmarks keep.

``python benchmarks/report.py`` writes them there between their marks.
"""

import json
import re
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
PAGES = HERE.parent / "docs" / "speed.md", HERE.parent / "README.md"
SPEED_HEADER = (
    "| size | precision | job | lim_jax | products kept | 512 bits | PyTorch | by torch.compile "
    "| with AVX-512 | both | ratio to stock | to the best | of kept | of 512 bits | of GEMM "
    "| compilation | MiB | kept | PyTorch's |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)
SUMMARY_HEADER = (
    "| job | AMD EPYC, PyTorch as it comes | at its fastest | as we compile | Intel Xeon "
    "| as we compile |\n|---|---|---|---|---|---|"
)
JOBS = {
    "influence": "influence",
    "gradient": "gradient",
    "algorithm 1": "Algorithm 1's gradient",
    "mdot": "the density's rate",
    "gramians": "Gramians",
    "cone mass": "cone mass",
}
THUNKS = ("tokens", "matrices", "tiles", "exponentials", "activation", "moves", "rest")
THUNKS_HEADER = (
    "| size | job | products of tokens | gradients of matrices | products of tiles | exponentials "
    "| gelu | copies and slices | the rest |\n|---|---|---|---|---|---|---|---|---|"
)
SCALING_HEADER = "| job | L | time | MiB |\n|---|---|---|---|"


def speed_line(row: dict) -> str:
    """A row of `speed.py`."""
    kept = "lim_jax, products kept"
    wide = "lim_jax, 512 bits"
    allowed = "torch, AVX-512"
    sides = ("lim_jax", kept, wide, "torch", "compiled torch", allowed, f"compiled {allowed}")
    cells = [row["size"], row["precision"], row["job"], *(_median(row, side) for side in sides)]
    ratios = [row["ratio to stock"], row["ratio"], *map(row.get, ("ratio kept", "ratio wide"))]
    cells += ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
    share = row.get("share of GEMM")
    cells += ["" if share is None else f"{100 * share:.0f} %", f"{row['compilation']:.1f} s"]
    memory = [row["MiB"].get(side) for side in ("lim_jax", kept, "torch")]
    return _row(cells + ["" if peak is None else f"{peak:.0f}" for peak in memory])


def _median(row: dict, side: str) -> str:
    """Seconds, and half of the range of the repeats."""
    duration = _duration(row["seconds"].get(side))
    if not duration or "range" not in row:
        return duration
    number, unit = duration.split()
    low, high = row["range"][side]
    half = f"{500 * (high - low):.0f}" if unit == "ms" else f"{(high - low) / 2:.1f}"
    return f"{number} ± {half} {unit}"


def thunks_line(row: dict) -> str:
    """A row of `thunks.py`: shares, and how fast products were, in Gflop/s."""
    total = sum(row["seconds"].values())
    cells = []
    for kind in THUNKS:
        share = row["seconds"].get(kind, 0) / total
        rate = row["Gflop/s"].get(kind)
        cells.append(f"{100 * share:.0f} %" + ("" if rate is None else f" at {rate:.0f}"))
    return _row([row["size"], row["job"], *cells])


def scaling_line(row: dict) -> str:
    """A row of `scaling.py`."""
    return _row([row["job"], f"{row['length']:,}", _duration(row["seconds"]), f"{row['MiB']:.0f}"])


def tables() -> dict[str, str]:
    """Each table by the name of its marks, which is that of its results."""
    speed = (SPEED_HEADER, speed_line)
    scaling = (SCALING_HEADER, scaling_line)
    makers = {"speed-amd": speed, "speed-intel": speed}
    makers |= {"scaling-amd": scaling, "scaling-intel": scaling}
    thunks = THUNKS_HEADER, thunks_line
    makers |= {"thunks-amd": thunks, "thunks-intel": thunks}
    found = {}
    for name, (header, line) in makers.items():
        path = HERE / "results" / f"{name}.json"
        if path.exists():
            rows = [*filter(_is_shown, json.loads(path.read_text())["rows"])]
            ordered = sorted(rows, key=partial(_place, rows=rows))
            found[name] = _without_empty([header, *map(line, ordered)])
    return found | {"speed-summary": summary()}


def _without_empty(lines: list[str]) -> str:
    """A table, but for the columns in which no row says anything."""
    cells = [row[1:-1].split("|") for row in "\n".join(lines).splitlines()]
    columns = [column for column in zip(*cells, strict=True) if any(map(str.strip, column[2:]))]
    return "\n".join(f"|{'|'.join(row)}|" for row in zip(*columns, strict=True))


def summary() -> str:
    """How many times as fast as PyTorch each job is, at its worst and its best."""
    amd, intel = (
        json.loads((HERE / "results" / f"speed-{name}.json").read_text())["rows"]
        for name in ("amd", "intel")
    )
    fastest = "ratio"
    wide = "ratio wide"
    columns = (amd, "ratio to stock"), (amd, fastest), (amd, wide), (intel, fastest), (intel, wide)
    lines = [
        _row([name, *(_range(rows, job, ratio) for rows, ratio in columns)])
        for job, name in JOBS.items()
    ]
    return "\n".join([SUMMARY_HEADER, *lines])


def _range(rows: list[dict], job: str, ratio: str) -> str:
    found = [row[ratio] for row in rows if row["job"] == job]
    worst, best = (
        f"{value:.3g}" if value >= 10 else f"{value:.2f}" for value in (min(found), max(found))
    )
    return worst if worst == best else f"{worst} to {best}"


def with_tables(text: str) -> str:
    """The page's text with every table renewed."""
    for name, table in tables().items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text = marked.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", text)
    return text


def _is_shown(row: dict) -> bool:
    """Of the scaling study only the context lengths, at 64 features, 8 layers and one example."""
    return "length" not in row or (row["width"], row["depth"], row["batch"]) == (64, 8, 1)


def _place(row: dict, rows: list[dict]) -> tuple:
    """Rows in the order in which sizes, precisions and jobs first appear, then by length."""
    names = ("size", "precision", "job")
    first = (next(i for i, r in enumerate(rows) if r.get(n) == row.get(n)) for n in names)
    return *first, row.get("length", 0)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{1e3 * seconds:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
