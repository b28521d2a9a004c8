"""Where the time of a job goes on a processor: the parts of its program by XLA's own profile.

``taskset -c 1 python benchmarks/thunks.py --sizes a b long`` runs each job under JAX's profiler,
one thread, and adds up what every instruction took, by what it does: products of all tokens with a
matrix, gradients of matrices, products of attention's tiles, the fusions that hold an exponential
or a hyperbolic tangent, what only moves numbers, and the rest (norms, masks, sums). Shares and the
rate of each kind of product go into a JSON file of the processor; ``report.py`` writes a file
beside docs/speed.md.
"""

import os

# Before JAX starts: one thread, as in `speed`.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import jax
import record
import report
import tyro
from jobs import SIZES, VOCABULARY, Size, network, our_jobs

REPEATS = 3
MOVING = ("copy", "transpose", "dynamic-slice", "dynamic-update-slice", "broadcast", "bitcast")
DEFINITION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*)")
CALLED = re.compile(r"calls=%([\w.\-]+)")
PRODUCT = re.compile(r"= \w+\[([\d,]*)\]\S* dot\(%([\w.\-]+), .*lhs_contracting_dims=\{(\d+)\}")


def bodies(text: str) -> dict[str, list[str]]:
    """Return the lines of each computation of a compiled program."""
    lines_by_name = {}
    name = ""
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            lines_by_name[name] = []
        elif name:
            lines_by_name[name].append(line)
    return lines_by_name


def instructions(text: str) -> dict[str, list[str]]:
    """Return what each instruction runs, by its name: its own line, or those of what it calls."""
    computations = bodies(text)
    lines_by_name = {}
    for lines in computations.values():
        for line in lines:
            if match := DEFINITION.match(line):
                called = CALLED.search(line)
                lines_by_name[match[1]] = computations[called[1]] if called else [line]
    return lines_by_name


def kind(name: str, lines: list[str], size: Size) -> str:
    """Return what an instruction does."""
    if product := next(filter(None, map(PRODUCT.search, lines)), None):
        shape = [int(n) for n in product[1].split(",") if n]
        if size.batch * size.length in shape or size.length in shape[:-1]:
            return "tokens"
        weights = {size.width, 4 * size.width, VOCABULARY}
        return "matrices" if len(shape) == 2 and set(shape) <= weights else "tiles"
    text = "\n".join(lines)
    if " exponential(" in text:
        return "exponentials"
    if " tanh(" in text:
        return "activation"
    return "moves" if name.startswith(MOVING) or "_copy" in name or "slice" in name else "rest"


def shapes(text: str) -> dict[str, list[int]]:
    """Return the sizes of every array that a compiled program names."""
    matches = re.findall(r"%([\w.\-]+) = \w+\[([\d,]*)\]", text)
    return {name: [int(n) for n in sizes.split(",") if n] for name, sizes in matches}


def operations(lines: list[str], sizes_by_name: dict[str, list[int]]) -> int:
    """Count the operations of an instruction's product; 0 where it has none."""
    if (product := next(filter(None, map(PRODUCT.search, lines)), None)) is None:
        return 0
    contracted = sizes_by_name[product[2]][int(product[3])]
    return 2 * contracted * math.prod(int(n) for n in product[1].split(",") if n)


def events(folder: str) -> Iterator[tuple[str, float]]:
    """Yield every instruction that ran, and its seconds less those of what ran within it."""
    (file,) = Path(folder).glob("**/*.xplane.pb")
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            spans = [(e.start_ns, e.start_ns + e.duration_ns, e.name) for e in line.events]
            open_spans: list[tuple[float, str]] = []
            for start, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
                while open_spans and open_spans[-1][0] <= start:
                    open_spans.pop()
                if open_spans:
                    yield open_spans[-1][1], -(end - start) / 1e9
                yield name, (end - start) / 1e9
                open_spans.append((end, name))


def profile(run: Callable[[], object], text: str, size: Size) -> dict:
    """Return the seconds of each kind in one run, and the rates of products."""
    lines_by_name = instructions(text)
    sizes = shapes(text)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(REPEATS):
                run()
        spent = defaultdict(float)
        made = defaultdict(float)
        for name, seconds in events(folder):
            if name in lines_by_name:
                of = kind(name, lines_by_name[name], size)
                spent[of] += seconds / REPEATS
                made[of] += operations(lines_by_name[name], sizes) / REPEATS if seconds > 0 else 0
    rates = {of: made[of] / spent[of] / 1e9 for of in spent if made[of]}
    return {"seconds": dict(spent), "Gflop/s": rates}


def measure(label: str, name: str) -> dict:
    """Measure a row: one job at one size."""
    size = SIZES[label]
    model, x, labels = network(size)
    batch = jax.numpy.asarray(x), jax.nn.one_hot(labels, VOCABULARY)
    compiled = record.compile_job(our_jobs(size.length)[name], model, batch)

    def run() -> object:
        """Run the job once."""
        return jax.block_until_ready(compiled(model, batch))

    run()
    return {"size": label, "job": name} | profile(run, compiled.compiled.as_text(), size)


def main(
    sizes: tuple[Literal["small", "a", "b", "long"], ...] = ("a",),
    jobs: tuple[str, ...] = ("influence", "gradient"),
    out: Path | None = None,
) -> None:
    """Print and keep where the time goes.

    Args:
        sizes: Models and batches, by name.
        jobs: What to run.
        out: A JSON file for the results, by default one of the processor.
    """
    for label in sizes:
        for name in jobs:
            row = measure(label, name)
            print(report.lines(row), flush=True)
            record.keep(out or record.file_of_processor("thunks"), [row], ("size", "job"))


if __name__ == "__main__":
    tyro.cli(main)
