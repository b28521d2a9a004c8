"""Every cure of an error is something to do: the last sentence of a message begins with a verb."""

import ast
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = [file for room in ("lim_jax", "benchmarks") for file in sorted((ROOT / room).rglob("*.py"))]
VERBS = set(
    """Add Ask Average Build Call Cast Check Choose Clip Convert Copy Count Cut Divide Do Download
    Draw Drop Embed Enlarge Explain Export Find Give Install Leave Let Load Look Make Measure Merge
    Minimise Move Name Number Pad Pass Put Raise Read Remove Rename Run Save Sort State
    Take Train Try Use Widen Write""".split()
)
SENTENCE = re.compile(r"(?<=[^.]\.) (?=[A-Z{])")  # where one ends, and the next begins
MESSAGE = re.compile(r"(: |^)(got|expected) ")  # what only an error says

Scope = dict[str, list[ast.expr]]


def texts(node: ast.expr | None, scope: Scope) -> Iterator[str]:
    """Yield what an expression may say, with {} for what is filled in when it is raised."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield from map(
                "".join, product(*(list(texts(part, scope)) or ["{}"] for part in parts))
            )
        case ast.FormattedValue(value=value):
            yield from texts(value, scope)
        case ast.BinOp(left=left, right=right):
            yield from (a + b for a in texts(left, scope) for b in texts(right, scope))
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*texts(body, scope), *texts(orelse, scope))
        case ast.BoolOp(values=values):
            yield from (text for value in values for text in texts(value, scope))
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield from (text for value in scope.get(name, []) for text in texts(value, {}))


def assigned(tree: ast.Module | ast.FunctionDef) -> Scope:
    """Return what is assigned to each name in a file or in a function."""
    scope: Scope = {}
    inside = tree.body if isinstance(tree, ast.Module) else ast.walk(tree)
    for node in inside:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    scope.setdefault(target.id, []).append(node.value)
    return scope


TREES = {file: ast.parse(file.read_text(encoding="utf-8")) for file in FILES}
CONSTANTS: Scope = {}
PLACES: dict[str, set[int]] = {}  # where the functions that take a cure have it
for tree in TREES.values():
    for name, values in assigned(tree).items():
        CONSTANTS.setdefault(name, []).extend(values)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [arg.arg for arg in node.args.args if arg.arg != "self"]
            if "cure" in names:
                PLACES.setdefault(node.name, set()).add(names.index("cure"))


def cures(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every cure that a file passes to a check or has by default."""
    tree = TREES[file]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for owner in (tree, *functions):
        scope = CONSTANTS | assigned(tree) | (assigned(owner) if owner is not tree else {})
        for node in ast.walk(owner):
            found: list[ast.expr] = []
            if isinstance(node, ast.Call):
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                found += [node.args[at] for at in PLACES.get(called, ()) if at < len(node.args)]
                found += [word.value for word in node.keywords if word.arg == "cure"]
            elif isinstance(node, ast.arguments):
                named = [*node.args[len(node.args) - len(node.defaults) :], *node.kwonlyargs]
                defaults = [*node.defaults, *node.kw_defaults]
                pairs = zip(named, defaults, strict=True)
                found += [value for name, value in pairs if name.arg == "cure" and value]
            # The names of a function are found there alone; those of the file anywhere.
            if owner is tree:
                found = [value for value in found if not isinstance(value, ast.Name)]
            for value in found:
                yield from ((value.lineno, text) for text in texts(value, scope))


def messages(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the last sentence of every whole message of an error in a file."""
    tree = TREES[file]
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {part for node in formatted for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node not in parts:
            for text in texts(node, assigned(tree)):
                if "\n" not in text and MESSAGE.search(text) and "expected" in text:
                    _, *rest = SENTENCE.split(text)
                    yield node.lineno, " ".join(rest) or "(no cure)"


def is_action(text: str) -> bool:
    """Tell whether a cure is left out, filled in later, or begins with what to do."""
    return not text or text.startswith("{}") or re.split(r"\W", text)[0] in VERBS


@pytest.mark.parametrize("kind", [cures, messages])
def test_every_cure_begins_with_what_to_do(kind):
    """A cure that explains alone leaves its reader where the error found them."""
    found = [(file, *one) for file in FILES for one in kind(file)]
    assert len(found) > 20, "The walk finds the cures no more: do checks take them by another name?"
    odd = {
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file, line, text in found
        if not is_action(text)
    }
    assert not odd, "These cures begin with no verb of VERBS, such as Pass or Take:\n" + "\n".join(
        sorted(odd)
    )


@pytest.mark.parametrize("kind", [cures, messages])
def test_cures_of_python_callers_name_arguments_and_no_flags(kind):
    """Who calls a function has no --flag; the command line makes flags of names in backquotes."""
    commands = ROOT / "lim_jax" / "cli"
    rooms = [file for file in FILES if ROOT / "lim_jax" in file.parents]
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in rooms
        if commands not in file.parents
        for line, text in kind(file)
        if re.search(r"(^|[ (])--[a-z]", text)
    ]
    assert not found, "These cures name flags outside of lim_jax/cli:\n" + "\n".join(found)
