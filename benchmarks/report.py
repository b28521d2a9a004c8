"""The tables of docs/speed.md and of the README, from the results that the benchmarks keep.

``python benchmarks/report.py`` writes them there between their marks, and the results as files of
numbers beside the page, in docs/speed.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGES = DOCS / "speed.md", HERE.parent / "README.md"
FILES = (
    "speed-amd speed-amd-avx2 speed-intel thunks-amd thunks-intel scaling-amd scaling-intel "
    "real_peer sizes questions questions-different"
)
JOBS = {
    "influence": "influence",
    "gradient": "gradient",
    "algorithm 1": "Algorithm 1's gradient",
    "mdot": "the density's rate",
    "gramians": "Gramians",
    "cone mass": "cone mass",
}
SUMMARY_HEADER = (
    "| job | AMD EPYC, PyTorch as it comes | at its fastest | as we compile | Intel Xeon "
    "| as we compile |\n|---|---|---|---|---|---|"
)
PAGE_HEADER = (
    "| job | time at size (a) | memory, MiB | PyTorch's memory, MiB "
    "| AMD EPYC, PyTorch as it comes | AMD EPYC, PyTorch at its fastest "
    "| Intel Xeon, PyTorch at its fastest |\n"
    "|---|---|---|---|---|---|---|"
)
NARROW_HEADER = (
    "| job | time at (a) | at (b) | PyTorch as it comes, (a) | (b) | PyTorch at its fastest, (a) "
    "| (b) |\n|---|---|---|---|---|---|---|"
)


def results(name: str) -> list[dict[str, Any]]:
    """Return the rows that a benchmark keeps in a file of this name."""
    return json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def tables() -> dict[str, str]:
    """Return each table by the name of its marks."""
    return {
        "speed-page": page_table(),
        "speed-narrow": narrow_table(),
        "speed-summary": summary(),
    }


def page_table() -> str:
    """Return what each job takes, and how many times as fast as PyTorch it is as we compile it."""
    amd = results("speed-amd")
    intel = results("speed-intel")
    small = {row["job"]: row for row in amd if (row["size"], row["precision"]) == ("a", "float32")}
    lines = [
        _row(
            [
                name,
                _duration(small[job]["seconds"]["lim_jax, 512 bits"]),
                f"{small[job]['MiB']['lim_jax']:.0f}",
                f"{small[job]['MiB']['torch']:.0f}",
                _range(amd, job, "ratio to stock"),
                _range(amd, job, "ratio wide"),
                _range(intel, job, "ratio wide"),
            ]
        )
        for job, name in JOBS.items()
    ]
    return "\n".join([PAGE_HEADER, *lines])


def narrow_table() -> str:
    """Return the same of a processor without AVX-512, at both sizes."""
    by_size = {(row["job"], row["size"]): row for row in results("speed-amd-avx2")}
    lines = []
    for job, name in JOBS.items():
        rows = [by_size[job, size] for size in "ab" if (job, size) in by_size]
        if rows:
            cells = [_duration(row["seconds"]["lim_jax"]) for row in rows]
            cells += [f"{row[ratio]:.2f}" for ratio in ("ratio to stock", "ratio") for row in rows]
            lines.append(_row([name, *cells]))
    return "\n".join([NARROW_HEADER, *lines])


def summary() -> str:
    """Return how many times as fast as PyTorch each job is, at its worst and its best."""
    amd = results("speed-amd")
    intel = results("speed-intel")
    fastest = "ratio"
    wide = "ratio wide"
    columns = (amd, "ratio to stock"), (amd, fastest), (amd, wide), (intel, fastest), (intel, wide)
    lines = [
        _row([name, *(_range(rows, job, ratio) for rows, ratio in columns)])
        for job, name in JOBS.items()
    ]
    return "\n".join([SUMMARY_HEADER, *lines])


def _range(rows: list[dict], job: str, ratio: str) -> str:
    ratios = [row[ratio] for row in rows if row["job"] == job]
    worst, best = (
        f"{value:.3g}" if value >= 10 else f"{value:.2f}" for value in (min(ratios), max(ratios))
    )
    return worst if worst == best else f"{worst} to {best}"


def data_file(rows: list[dict[str, Any]]) -> str:
    """Return rows as comma-separated values, a column for each number in them.

    >>> print(data_file([{"job": "one", "seconds": {"ours": 0.25}}, {"job": "two"}]), end="")
    job,"seconds, ours"
    one,0.25
    two,
    """
    flat = [dict(_cells(row)) for row in rows]
    columns = dict.fromkeys(name for row in flat for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def lines(row: dict[str, Any]) -> str:
    """Return a row for a terminal, a number in each line."""
    return "".join(f"{name}: {value}\n" for name, value in _cells(row))


def _cells(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each cell; the least and the most of a range are two."""
    for name, value in row.items():
        column = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _cells(value, f"{column}, ")
        elif isinstance(value, list):
            yield from _cells(dict(zip(("least", "most"), value, strict=True)), f"{column}, ")
        else:
            yield column, f"{value:.6g}" if isinstance(value, float) else value


def with_tables(text: str) -> str:
    """Return a page's text with every table renewed."""
    for name, table in tables().items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text = marked.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", text)
    return text


def _duration(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name in FILES.split():
        (DOCS / "speed" / f"{name}.csv").write_text(data_file(results(name)), encoding="utf-8")
