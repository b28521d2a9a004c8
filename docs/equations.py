"""Write docs/equations.md, what computes each label of the paper: ``python docs/equations.py``."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
TABLE, BREAKS, PAGE = HERE / "labels.toml", HERE / "breaks.toml", HERE / "equations.md"
WENT_RED = HERE / "went_red.toml"

Definition = ast.FunctionDef | ast.ClassDef
KINDS = "app|ass|cor|def|eq|fig|prop|rem|sec|subsec|tab|thm"
LABEL = rf"(?:{KINDS}):[\w-]*\w"
HEAD = """\
# From the paper's labels to the code

What computes each label of the paper, and the tests that name it, in the paper's order. A label
without either states nothing to compute, for the reason given. Each was made false on purpose, in
two ways (`docs/breaks.toml`: a factor, a sign, or what else it has); behind a test stand the breaks
at which it went red, as `docs/breaks.py` saw them. Written by `docs/equations.py` from the
docstrings of `lim_jax`, the tests and that record; `tests/test_labels.py` holds it to them.

| label | computed by | held by |
|---|---|---|
"""


def labels() -> dict[str, str]:
    """The paper's labels in its order, each with the reason why nothing computes it, or empty."""
    return tomllib.loads(TABLE.read_text())


def named(text: str) -> list[str]:
    """The labels in backticks."""
    return re.findall(rf"`({LABEL})`", text)


def definitions(node: ast.AST, inside: str = "") -> Iterator[tuple[str, Definition]]:
    """All functions and classes with their qualified names, each after what it stands in."""
    for child in ast.iter_child_nodes(node):
        name = inside
        if isinstance(child, Definition):
            name = f"{inside}.{child.name}".lstrip(".")
            yield name, child
        yield from definitions(child, name)


def computed() -> dict[str, list[tuple[Path, str]]]:
    """Where the package names each label: in the docstrings of these functions and classes."""
    found: dict[str, list[tuple[Path, str]]] = {}
    for file in sorted((ROOT / "lim_jax").rglob("*.py")):
        for name, node in definitions(ast.parse(file.read_text())):
            for label in dict.fromkeys(named(ast.get_docstring(node) or "")):
                found.setdefault(label, []).append((file, name))
    return found


def held() -> dict[str, list[tuple[Path, str]]]:
    """Where tests name each label: in the docstrings and comments of these functions.

    A file that imports nothing of the library is of the paper alone, and holds no code to it.
    """
    found: dict[str, list[tuple[Path, str]]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        source = file.read_text()
        if not re.search(r"^(import|from) lim_jax", source, re.MULTILINE):
            continue
        lines = source.splitlines()
        for name, node in definitions(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and name.startswith("test_"):
                text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                for label in dict.fromkeys(named(text)):
                    found.setdefault(label, []).append((file, name))
    return found


def breaks() -> dict[str, dict[str, list[str]]]:
    """What is broken on purpose for each label: a file, a text in it, and its replacement."""
    return tomllib.loads(BREAKS.read_text())


def went_red() -> dict[str, dict[str, list[str]]]:
    """The tests of each label that failed at each of its breaks, as docs/breaks.py saw them."""
    return tomllib.loads(WENT_RED.read_text()) if WENT_RED.is_file() else {}


def written() -> str:
    """The page: a row for each label."""
    functions, tests, record = computed(), held(), went_red()
    rows = []
    for label, reason in labels().items():
        left = _links(functions.get(label, [])) or f"*{reason}*"
        red = record.get(label, {})
        right = "<br>".join(_link(*test) + _seen(*test, red) for test in tests.get(label, []))
        rows.append(f"| `{label}` | {left} | {right} |\n")
    return HEAD + "".join(rows)


def name_of(file: Path, test: str) -> str:
    """A test as the record names it."""
    return f"{file.relative_to(ROOT / 'tests').as_posix()}::{test}"


def _seen(file: Path, test: str, red: dict[str, list[str]]) -> str:
    kinds = [kind for kind, names in red.items() if name_of(file, test) in names]
    return f" ({', '.join(kinds)})" if kinds else ""


def _links(places: list[tuple[Path, str]]) -> str:
    return "<br>".join(_link(file, name) for file, name in places)


def _link(file: Path, name: str) -> str:
    file = file.relative_to(ROOT)
    if file.parts[0] == "tests":
        return f"[`{file.name}::{name}`](../{file.as_posix()})"
    module = ".".join(file.with_suffix("").parts[1:])
    return f"[`{module}.{name}`](../{file.as_posix()})"


if __name__ == "__main__":
    PAGE.write_text(written())
