"""The house: imports run one way, and every door opens on what is there."""

import ast
import re
import runpy
import tomllib
from collections import Counter
from pathlib import Path
from pydoc import locate

import jax
import jaxtyping
import numpy as np
import pytest
from numpydoc.validate import validate
from reference.as_users import run_python

import lim_jax as lim
from lim_jax._checks import require
from lim_jax._precision import beyond_rounding

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lim_jax"
ROOMS = tomllib.loads((ROOT / "docs" / "house.toml").read_text(encoding="utf-8"))
# Every module in the order of the table: a file imports only from those before it.
ORDER = [
    module
    for name, room in ROOMS.items()
    for module in ([f"{name}.{file}" for file in room["files"]] if "files" in room else [name])
]
# A folder inside a room, such as that of the methods, has no door of its own.
DOORS = [file for file in sorted(PACKAGE.rglob("__init__.py")) if file.with_suffix(".pyi").exists()]
FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if file.name != "__init__.py"]


def module_of(file: Path) -> str:
    """A file's module, without the package."""
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts)


def package_imports(tree: ast.AST) -> set[str]:
    """The package's modules that are imported anywhere in a file, inside functions too."""
    imports = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            package, _, module = (node.module or "").partition(".")
            assert package != "benchmarks", "experiments stand on the library, not in it"
            if package == "lim_jax":
                imports |= {_imported(module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("lim_jax") for alias in node.names)
    return imports


def _imported(module: str, name: str) -> str:
    """What ``from lim_jax.module import name`` loads: a file, or a whole room."""
    inner = f"{module}.{name}".lstrip(".")
    return inner if inner in ORDER or inner in ROOMS else module


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def test_the_table_lists_every_file_once():
    files = set(map(module_of, FILES))
    assert files - set(ORDER) == set(), "docs/house.toml has no place for these files"
    assert sorted(ORDER) == sorted(files), "docs/house.toml has files that are not there, or twice"


def test_no_two_files_have_one_name():
    """Doors and `__main__` apart: a reader who knows a file's name knows the file."""
    names = Counter(file.stem for file in FILES if not file.stem.startswith("__"))
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_imports_run_one_way_and_none_stands_inside_a_function(file):
    tree = parsed(file)
    at = ORDER.index(module_of(file))
    whole = ROOMS.keys() - {module.partition(".")[0] for module in ORDER[at:]}
    assert package_imports(tree) <= {*ORDER[:at], *whole}
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = [node.lineno for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    inside = [n for n in lines if any(f.lineno <= n <= (f.end_lineno or n) for f in functions)]
    assert inside == []


def doors_names(door: Path) -> dict[str, str]:
    """What a door's stub hands out: each name, and the module beside it that has it."""
    stub = ast.parse(door.with_suffix(".pyi").read_text(encoding="utf-8"))
    names_of_doors = {}
    for node in stub.body:
        assert isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names:
            assert alias.asname == alias.name, "re-exported"
            assert alias.name not in names_of_doors, "handed out once"
            names_of_doors[alias.name] = node.module or ""
    return names_of_doors


def functions_and_classes(file: Path) -> dict[str, ast.AST]:
    """What a file defines at its top, by name."""
    defined = (ast.FunctionDef, ast.ClassDef)
    return {node.name: node for node in parsed(file).body if isinstance(node, defined)}


def written_pages() -> str:
    """What people read: not the page of equations, which is generated, nor that of changes."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "equations.md"]
    sources = [ROOT / "README.md", *pages, *(ROOT / "notebooks").glob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in sources)


def names_on_pages(room: str, pages: str) -> set[str]:
    """The names of a room that pages use: as ``lim.room.name``, or imported from it."""
    used = set(re.findall(rf"(?<!\w)(?:lim\.|lim_jax\.)?{room}\.(\w+)", pages))
    imports = re.findall(rf"from lim_jax\.{room}(?:\.\w+)? import (\([^)]*\)|[^\n]*)", pages)
    return used | {name for names in imports for name in re.findall(r"\w+", names)}


def computes_a_label(node: ast.AST) -> bool:
    """Whether its docstring, or one inside it, cites an equation of the paper."""
    inner = [one for one in ast.walk(node) if isinstance(one, ast.FunctionDef | ast.ClassDef)]
    labels = r"`(app|ass|cor|def|eq|fig|prop|rem|sec|subsec|tab|thm):"
    return any(re.search(labels, ast.get_docstring(one) or "") for one in inner)


def test_what_is_public_stands_on_a_page_or_computes_an_equation_and_no_more():
    """What a page uses is public, and so is what the front door hands out."""
    pages = written_pages()
    at_the_front = doors_names(DOORS[0])
    for door in DOORS[1:]:
        room = door.parent.name
        names = doors_names(door)
        inside = [file for file in FILES if file.is_relative_to(door.parent)]
        files = {
            ".".join(file.relative_to(door.parent).with_suffix("").parts): functions_and_classes(
                file
            )
            for file in inside
        }
        at_the_door = {file.partition(".")[0] for file in files}
        named = {name for name, module in names.items() if not module}
        assert named == at_the_door, f"{door.with_suffix('.pyi')} names the room's files"
        public = {name: module for name, module in names.items() if module}
        front = {name for name, module in at_the_front.items() if module.startswith(f"{room}.")}
        assert front <= public.keys()
        on_pages = names_on_pages(room, pages) | front
        untaught = [
            name
            for name, module in public.items()
            if name not in on_pages and not computes_a_label(files[module][name])
        ]
        assert untaught == [], f"{room}: no page teaches them, and no equation needs them"
        hidden = on_pages & {name for defined in files.values() for name in defined} - public.keys()
        assert hidden == set(), f"{room}: a page uses them"


def test_the_front_door_hands_out_rooms_and_at_most_thirty_names():
    names = doors_names(DOORS[0])
    assert names.pop("__version__") == "_version"
    rooms = {name for name, module in names.items() if not module}
    assert rooms == {room for room in ROOMS if not room.startswith("_")}
    assert len(names) - len(rooms) <= 30
    for name, module in names.items():
        found = getattr(lim, name)
        assert found.__name__ == (f"lim_jax.{name}" if name in rooms else name)
        assert name in rooms or found.__module__ == f"lim_jax.{module}"


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.parent.name)
def test_doors_define_nothing(door):
    kinds = [type(node) for node in parsed(door).body]
    assert set(kinds) <= {ast.Expr, ast.Import, ast.ImportFrom, ast.Assign}
    assert kinds.count(ast.Expr) == kinds.count(ast.Assign) == 1, "a docstring, and the names"


def test_the_picture_is_that_of_the_table():
    house = runpy.run_path(str(ROOT / "docs" / "house.py"))
    picture = house["picture"]()
    assert house["PICTURE"].read_text(encoding="utf-8") == picture, (
        "draw it anew: python docs/house.py"
    )
    boxes = re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', picture)
    width = re.search(r'<svg .*? width="(\d+)"', picture)
    assert width is not None
    assert max(float(x) + float(size) for x, size in boxes) <= int(width[1])
    assert "house.svg" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_density_does_not_load_what_it_does_not_need():
    program = """
import sys
import lim_jax as lim
assert not {"jax", "numpy"} & set(sys.modules)
from lim_jax.plots import influence_profile
lim.influence, lim.ResidualFlow, lim.split, lim.TransformerField
print(*{"diffrax", "lineax", "optax"} & set(sys.modules))
lim.report.influence_page
assert "scipy.stats" not in sys.modules
"""
    done = run_python("-c", program, folder=ROOT)
    assert done.stderr == "" and done.stdout.split() == []


def test_studies_of_limits_compile_where_checks_are_values():
    """JAX keeps no program with a callback, and wraps what such a one raises."""
    lines = [
        line.strip()
        for file in (PACKAGE / "limits").glob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.search(r"jax\.jit|eqx\.filter_jit", line)
    ]
    assert lines == []


def test_tests_stand_in_the_rooms_of_what_they_test():
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders <= {*ROOMS, "validation"}, "rooms, and the study in benchmarks/"


def test_types_and_shapes_of_what_is_called_here_are_checked():
    """And not where `as_users_run` says so, with which our own errors are tested."""
    ones = jax.device_put(np.ones(2))
    with pytest.raises(jaxtyping.TypeCheckError):
        beyond_rounding(1.0, ones)  # pyright: ignore[reportArgumentType]
    with pytest.raises(jaxtyping.TypeCheckError):
        require("yes", "x", got=1, expected="2", cure="")  # pyright: ignore[reportArgumentType]


def test_importing_does_not_change_the_precision():
    sources = [file.read_text(encoding="utf-8") for file in FILES]
    assert not any("jax_enable_x64" in source for source in sources)


PUBLIC = [
    f"lim_jax.{door.parent.name}.{module}.{name}"
    for door in DOORS[1:]
    for name, module in doors_names(door).items()
    if module
]


# numpydoc's: no docstring; no first line that ends in a full stop, or one that begins with a
# participle; a parameter that is named nowhere, or is none; nothing of what is returned.
EVERYWHERE = {"GL08", "SS03", "SS05"}
OF_FUNCTIONS = EVERYWHERE | {"PR01", "PR02", "RT01"}


@pytest.mark.parametrize("path", PUBLIC)
def test_a_public_docstring_says_what_goes_in_and_what_comes_out(path):
    asked = EVERYWHERE if isinstance(locate(path), type) else OF_FUNCTIONS
    errors = [error for error in validate(path)["errors"] if error[0] in asked]
    assert errors == []


def test_a_public_docstring_sends_its_reader_to_no_other_function():
    """Each names its own arguments; a link to a class that holds a shared description is fine."""
    public = {path: locate(path) for path in PUBLIC}
    functions = {path.split(".")[-1] for path, one in public.items() if not isinstance(one, type)}
    for path, one in public.items():
        sent = re.findall(r"\b[Aa]s in `?(?:\w+\.)*(\w+)`?", one.__doc__ or "")
        assert functions.isdisjoint(sent), path
