"""Break what computes each label of the paper, twice, and record which of its tests go red.

``python docs/breaks.py [LABEL ...]`` makes each replacement of docs/breaks.toml in a copy of the
tree, runs the tests that name the label, and writes those that failed to docs/went_red.toml.
Without labels it runs those that the record lacks. `docs/equations.py` prints the record.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import equations

SECONDS = 3600  # what the tests may take: of one label, and once of all


def main() -> None:
    """Run them, and keep the record after each."""
    table, record = equations.breaks(), equations.went_red()
    held = equations.held()
    chosen = sys.argv[1:] or [label for label in table if label not in record]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        _copy_tree(copy)
        every = {equations.name_of(*test): None for label in chosen for test in held[label]}
        if failed := _failed(copy, [*every]):
            raise SystemExit(f"These fail with nothing broken: {', '.join(failed)}.")
        for label in chosen:
            tests = [equations.name_of(*test) for test in held[label]]
            record[label] = {
                kind: _red(copy, replacement, tests) for kind, replacement in table[label].items()
            }
            print(label, {kind: len(red) for kind, red in record[label].items()}, flush=True)
            _write(record, [*table])


def _copy_tree(copy: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=equations.ROOT, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.split("\0"):
        if name and (equations.ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(equations.ROOT / name, copy / name)


def _red(copy: Path, replacement: list[str], tests: list[str]) -> list[str]:
    """Which of the tests fail with one text of a file replaced."""
    name, old, new = replacement
    file = copy / name
    source = file.read_text()
    if source.count(old) != 1:
        raise SystemExit(f"{name}: {old!r} stands there {source.count(old)} times, not once.")
    file.write_text(source.replace(old, new))
    try:
        return _failed(copy, tests)
    finally:
        file.write_text(source)


def _failed(copy: Path, tests: list[str]) -> list[str]:
    """Which of the tests fail in the tree as it is."""
    report = copy / "report.xml"
    report.unlink(missing_ok=True)
    # What a break does not touch is compiled once for all of them.
    kept = {
        "JAX_ENABLE_COMPILATION_CACHE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(copy.parent / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(copy),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "not slow"]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}"]
    command += [f"tests/{test}" for test in tests]
    run = subprocess.run(
        command, cwd=copy, env=os.environ | kept, capture_output=True, text=True, timeout=SECONDS
    )
    if not report.is_file():
        raise SystemExit(f"No test ran:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    cases = ElementTree.parse(report).iter("testcase")
    failed = {
        f"{case.attrib['classname'].removeprefix('tests.').replace('.', '/')}.py::"
        f"{case.attrib['name'].split('[')[0]}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    return [test for test in tests if test in failed]


def _write(record: dict[str, dict[str, list[str]]], order: list[str]) -> None:
    lines = ["# Written by docs/breaks.py: the tests of each label that went red at each break.\n"]
    for label in order:
        if label in record:
            lines.append(f'\n["{label}"]\n')
            for kind, red in record[label].items():
                tests = "".join(f'    "{test}",\n' for test in red)
                lines.append(f"{kind} = [\n{tests}]\n" if red else f"{kind} = []\n")
    equations.WENT_RED.write_text("".join(lines))


if __name__ == "__main__":
    main()
