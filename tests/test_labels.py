"""Two hops for any equation: the paper's labels stand at what computes them and at what tests it.

Files are read as text and trees: nothing of the package runs.
"""

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EQUATIONS = runpy.run_path(str(ROOT / "docs" / "equations.py"))
LABELS = EQUATIONS["labels"]()
SOURCES = sorted(file for room in ("lim_jax", "tests") for file in (ROOT / room).rglob("*.py"))


@pytest.fixture(scope="module")
def computed():
    """Not as the file is imported: every worker imports it, and one runs its tests."""
    return EQUATIONS["functions_by_label"]()


@pytest.fixture(scope="module")
def held():
    return EQUATIONS["tests_by_label"]()


def test_every_label_is_computed_or_has_a_reason(computed):
    missing = [label for label, reason in LABELS.items() if not reason and label not in computed]
    assert missing == [], "name each in the docstring of the function or class that computes it"


def test_every_label_is_held_by_a_test_or_has_a_reason(held):
    missing = [label for label, reason in LABELS.items() if not reason and label not in held]
    assert missing == [], "name each in a docstring or comment of the test that holds it"


def slow(tree):
    """The tests of a file that the quick run leaves out, and whether all of them are."""
    whole = any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "pytestmark"
        and "pytest.mark.slow" in ast.unparse(node.value)
        for node in tree.body
    )
    marked = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and "pytest.mark.slow" in map(ast.unparse, node.decorator_list)
    }
    return marked, whole


def test_every_label_is_held_by_a_quick_test(held):
    """`python -m pytest`, which leaves slow tests out, looks at all of the paper."""
    files = {file for tests in held.values() for file, _ in tests}
    left_out = {file: slow(ast.parse(file.read_text(encoding="utf-8"))) for file in files}

    def is_quick(file, name):
        marked, whole = left_out[file]
        return not whole and name not in marked

    missing = [label for label, tests in held.items() if not any(is_quick(*test) for test in tests)]
    assert missing == [], "name each in a test without the mark slow, or take the mark from one"


def test_a_label_that_is_computed_has_no_reason_not_to_be(computed):
    assert [label for label, reason in LABELS.items() if reason and label in computed] == []


def test_no_label_is_misspelt():
    """In backticks anywhere, the errata too; in the package's strings; and in the reasons."""
    unknown = [
        (file.relative_to(ROOT).as_posix(), label)
        for file in [*SOURCES, ROOT / "docs" / "errata.md"]
        for label in EQUATIONS["labels_in"](file.read_text(encoding="utf-8"))
        if label not in LABELS
    ]
    assert unknown == []
    label = re.compile(EQUATIONS["LABEL"])
    strings = [
        node.value
        for file in SOURCES
        if file.is_relative_to(ROOT / "lim_jax")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert {s for s in strings if label.fullmatch(s)} <= LABELS.keys()
    assert {name for reason in LABELS.values() for name in label.findall(reason)} <= LABELS.keys()


def test_the_list_holds_the_papers_219_labels():
    names = list(LABELS)
    assert len(names) == 219 and names[0] == "thm:main-concise"
    assert names[-1] == "eq:convergent-control-grid-bound"


@pytest.mark.slow
def test_the_page_is_what_its_script_writes():
    assert EQUATIONS["PAGE"].read_text(encoding="utf-8") == EQUATIONS["page"]()
    assert "docs/equations.md" in (ROOT / "README.md").read_text(encoding="utf-8")
