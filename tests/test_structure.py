"""The house: imports run one way, and the package's front door stays small."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lim_jax"
# A file imports only from those before it.
ORDER = (
    "_checks",
    "_random",
    "operations",
    "cost",
    "grid",
    "blocked",
    "fused",
    "attention",
    "field",
    "flow",
    "loss",
    "tangent",
    "adjoint",
    "probes",
    "channels",
    "residual",
    "influence",
    "block_norms",
    "kernel",
    "gramian",
    "trace_estimates",
    "training",
    "gradient_flow",
    "penalties",
    "criteria",
    "remedies",
    "rates",
    "position_rates",
    "depth_rates",
    "convergence",
    "paper",
    "gallery",
    "language",
    "explain",
    "plots",
    "cli",
    "__main__",
)
FILES = sorted(PACKAGE.rglob("*.py"))


def package_imports(tree: ast.AST) -> set[str]:
    """The package's modules that are imported anywhere in a file, inside functions too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "lim_jax":
                found |= {alias.name for alias in node.names}
            elif node.module and node.module.startswith("lim_jax."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("lim_jax")]
            found |= {name.partition(".")[2] for name in names}
    return found


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_imports_run_one_way(file):
    if file.stem == "__init__":
        return
    assert file.stem in ORDER, "give every new file its place in the order"
    allowed = set(ORDER[: ORDER.index(file.stem)])
    assert package_imports(parsed(file)) <= allowed


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_nothing_is_imported_inside_functions(file):
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    inside = [
        node.lineno
        for function in ast.walk(parsed(file))
        if isinstance(function, functions)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert inside == []


def test_the_front_door_only_re_exports_core_names():
    body = parsed(PACKAGE / "__init__.py").body
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(body) - 1, "a docstring and imports, nothing defined"
    names = [alias for node in imports for alias in node.names]
    assert all(alias.asname == alias.name for alias in names)
    assert len(names) <= 30


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_functions_fit_on_a_screen(file):
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.FunctionDef):
            documentation = ast.get_docstring(node) or ""
            length = (node.end_lineno or 0) - node.lineno + 1 - len(documentation.splitlines())
            assert length <= 60, f"{file.name}: {node.name} has {length} lines of code"


def test_importing_does_not_change_the_precision():
    sources = [file.read_text() for file in FILES]
    assert not any("jax_enable_x64" in source for source in sources)
