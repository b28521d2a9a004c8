"""What the pages of docs/ hold that runs: their programs, and what each is said to print."""

import contextlib
import io
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from picture_numbers import carry_numbers

PROGRAM = re.compile(
    r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)


class Program(NamedTuple):
    """A program of a page.

    Attributes
    ----------
    source
        Python, which goes on from the programs before it.
    prints
        What the page says that it prints, or None where it says nothing.
    """

    source: str
    prints: str | None


def programs(page: Path) -> list[Program]:
    """A page's programs, in order."""
    matches = PROGRAM.findall(page.read_text(encoding="utf-8"))
    return [Program(source, prints or None) for source, prints in matches]


def run(page: Path) -> list[tuple[Program, str]]:
    """Run a page's programs one after the other, in this folder; with what each has printed.

    Files of results that they name are put there; pictures carry what they draw.
    """
    text = page.read_text(encoding="utf-8")
    for kind in ("*.npz", "*.json"):
        for file in page.parent.rglob(kind):
            if f'"{file.name}"' in text:
                shutil.copyfile(file, file.name)
    names: dict[str, Any] = {"__name__": page.stem}
    printed = []
    for number, program in enumerate(programs(page)):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), carry_numbers():
            exec(compile(program.source, f"{page.name}, program {number + 1}", "exec"), names)
        printed.append((program, output.getvalue()))
    return printed
