"""Write docs/equations.md, what computes each label of the paper: ``python docs/equations.py``."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
TABLE = HERE / "labels.toml"
PAGE = HERE / "equations.md"

Definition = ast.FunctionDef | ast.ClassDef
KINDS = "app|ass|cor|def|eq|fig|prop|rem|sec|subsec|tab|thm"
LABEL = rf"(?:{KINDS}):[\w-]*\w"
HEAD = """\
# From the paper's labels to the code

What computes each label of the paper, and the tests that name it, in the paper's order. A label
without either states nothing to compute, for the reason given. Written by `docs/equations.py` from
the docstrings of `lim_jax` and the tests; `tests/test_labels.py` holds it to them.

| label | computed by | held by |
|---|---|---|
"""


def labels() -> dict[str, str]:
    """The paper's labels in its order, each with the reason why nothing computes it, or empty."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def labels_in(text: str) -> list[str]:
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


def functions_by_label() -> dict[str, list[tuple[Path, str]]]:
    """Where the package names each label: in the docstrings of these functions and classes."""
    found: dict[str, list[tuple[Path, str]]] = {}
    for file in sorted((ROOT / "lim_jax").rglob("*.py")):
        for name, node in definitions(ast.parse(file.read_text(encoding="utf-8"))):
            for label in dict.fromkeys(labels_in(ast.get_docstring(node) or "")):
                found.setdefault(label, []).append((file, name))
    return found


def tests_by_label() -> dict[str, list[tuple[Path, str]]]:
    """Where tests name each label: in the docstrings and comments of these functions.

    A file that imports nothing of the library is of the paper alone, and holds no code to it.
    """
    found: dict[str, list[tuple[Path, str]]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        source = file.read_text(encoding="utf-8")
        if not re.search(r"^(import|from) lim_jax", source, re.MULTILINE):
            continue
        lines = source.splitlines()
        for name, node in definitions(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and name.startswith("test_"):
                text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                for label in dict.fromkeys(labels_in(text)):
                    found.setdefault(label, []).append((file, name))
    return found


def page() -> str:
    """The page: a row for each label."""
    functions = functions_by_label()
    tests = tests_by_label()
    rows = []
    for label, reason in labels().items():
        left = _links(functions.get(label, [])) or f"*{reason}*"
        right = _links(tests.get(label, []))
        rows.append(f"| `{label}` | {left} | {right} |\n")
    return HEAD + "".join(rows)


def _links(places: list[tuple[Path, str]]) -> str:
    return "<br>".join(_link(file, name) for file, name in places)


def _link(file: Path, name: str) -> str:
    file = file.relative_to(ROOT)
    if file.parts[0] == "tests":
        return f"[`{file.name}::{name}`](../{file.as_posix()})"
    module = ".".join(file.with_suffix("").parts[1:])
    return f"[`{module}.{name}`](../{file.as_posix()})"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
