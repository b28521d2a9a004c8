"""The pages of the rooms and of their files, from the table of the rooms and the docstrings."""

import ast
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
MATH = re.compile(r":math:`([^`]+)`")

FRONT = """\
# The rooms

`import lim_jax as lim` opens every room, and loads what is used. A file imports only from rooms
above its own and, inside its room, from files before it.

![The rooms of lim_jax](../house.svg)

| room | the question that it answers |
|---|---|
{rooms}

## The front door

The names that most programs need are handed out at the top, as `lim.influence`.

| name | where it stands |
|---|---|
{names}
"""


@cache
def rooms() -> dict[str, dict]:
    """The public rooms in their order, each with its question and maybe its files."""
    table = tomllib.loads((HERE / "house.toml").read_text(encoding="utf-8"))
    return {name: room for name, room in table.items() if not name.startswith("_")}


@cache
def public(room: str) -> dict[str, dict[str, str]]:
    """A room's modules in their order, each with its public names and the line that each has.

    Public is what the room's door hands out; modules without any are left out.
    """
    files = rooms()[room].get("files")
    if not files:
        return {f"lim_jax.{room}": _lines(f"lim_jax.{room}")[1]}
    stub = (ROOT / "lim_jax" / room / "__init__.pyi").read_text(encoding="utf-8")
    handed_out = set(re.findall(r"^from \.[\w.]+ import (\w+) as", stub, re.MULTILINE))
    modules = {f"lim_jax.{room}.{file}": _lines(f"lim_jax.{room}.{file}")[1] for file in files}
    chosen = {
        module: {name: line for name, line in names.items() if name in handed_out}
        for module, names in modules.items()
    }
    return {module: names for module, names in chosen.items() if names}


def front_door() -> dict[str, str]:
    """The names that the package itself hands out, rooms apart, with where each stands."""
    stub = ast.parse((ROOT / "lim_jax" / "__init__.pyi").read_text(encoding="utf-8"))
    return {
        alias.name: f"lim_jax.{node.module}.{alias.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if not alias.name.startswith("_")
    }


@cache
def places() -> dict[str, str]:
    """Where each way to write a public name in programs leads: `lim.room.name`, and by module."""
    modules = {f"lim.{room}": f"lim_jax.{room}" for room in rooms()}
    for room in rooms():
        for module, names in public(room).items():
            of_module = module.replace("lim_jax", "lim", 1)
            modules[of_module] = module
            for name in names:
                modules |= dict.fromkeys(
                    (f"lim.{room}.{name}", f"{of_module}.{name}"), f"{module}.{name}"
                )
    return modules | {f"lim.{name}": place for name, place in front_door().items()}


def pages() -> dict[str, str]:
    """Each page by its path below rooms/: one of all rooms, one of each, and one of each file.

    A page lies as its source does: that of `lim_jax.grid` in grid/index.md, that of
    `lim_jax.grid.cells` in grid/cells.md, and that of `lim_jax.probes` in probes.md.
    """
    pages_by_file = {"index.md": _front()}
    for room in rooms():
        pages_by_file |= {
            page_of(module): _file(module, names) for module, names in public(room).items()
        }
        if "files" in rooms()[room]:
            pages_by_file[page_of(f"lim_jax.{room}")] = _room(room)
    return pages_by_file


def page_of(module: str) -> str:
    """The page of a module, below rooms/."""
    path = module.removeprefix("lim_jax.").replace(".", "/")
    return f"{path}/index.md" if "files" in rooms().get(path, {}) else f"{path}.md"


def contents() -> str:
    """The pages in their order, as Zensical reads it from rooms/SUMMARY.md."""
    lines = ["- [All rooms](index.md)"]
    for name, room in rooms().items():
        page = page_of(f"lim_jax.{name}")
        if "files" not in room:
            lines.append(f"- [{name}]({page})")
            continue
        lines += [f"- {name}", f"    - [{name}]({page})"]
        modules = [module.removeprefix(f"lim_jax.{name}.") for module in public(name)]
        lines += [f"    - [{file}]({page_of(f'lim_jax.{name}.{file}')})" for file in modules]
    return "\n".join(lines) + "\n"


@cache
def _lines(module: str) -> tuple[str, dict[str, str]]:
    """A module's line, and those of its public functions and classes in their order."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    nodes = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return _line(tree), {node.name: _line(node) for node in nodes if not node.name.startswith("_")}


def _line(node: ast.Module | ast.FunctionDef | ast.ClassDef) -> str:
    """The first line of a docstring, as Markdown."""
    line = (ast.get_docstring(node) or "").partition("\n")[0]
    return MATH.sub(r"\\(\1\\)", line)


def _front() -> str:
    table = [
        f"| [`{name}`]({page_of(f'lim_jax.{name}')}) | {room['question']} |"
        for name, room in rooms().items()
    ]
    names = [
        f"| [](){{#lim_jax.{name}}}`lim.{name}` | {_link(place)} of `{place.rpartition('.')[0]}` |"
        for name, place in front_door().items()
    ]
    return FRONT.format(rooms="\n".join(table), names="\n".join(names))


def _room(room: str) -> str:
    """The question, the room's own words, and its files, each with its names and their lines."""
    parts = [
        f"# {room} {{#lim_jax.{room}}}",
        f"*{rooms()[room]['question']}*",
        _directive(f"lim_jax.{room}", []),
        f"Programs write `lim.{room}.NAME` for a name of any of these files.",
    ]
    for module, names in public(room).items():
        file = module.removeprefix(f"lim_jax.{room}.")
        page = page_of(module).removeprefix(f"{room}/")
        lines = [f"- {_link(f'{module}.{name}')}: {line}" for name, line in names.items()]
        parts += [f"## [{file}]({page})", _lines(module)[0], "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _file(module: str, names: Iterable[str]) -> str:
    """Which room it is of, and the module whole."""
    room, _, file = module.removeprefix("lim_jax.").partition(".")
    title = f"{room}.{file}" if file else room
    question = rooms()[room]["question"]
    room_page = "../" * file.count(".") + "index.md"
    of = f"A file of [{room}]({room_page}): *{question}*" if file else f"*{question}*"
    heading = f"# {title} {{#{module}}}"
    return "\n\n".join([f"---\ntitle: {title}\n---", heading, of, _directive(module, names)]) + "\n"


def _link(path: str) -> str:
    return f"[`{path.rpartition('.')[2]}`][{path}]"


def _directive(module: str, names: Iterable[str]) -> str:
    """What mkdocstrings is asked for: a module's text and these of its names."""
    members = "".join(f"\n        - {name}" for name in names) or " false"
    return f"""\
::: {module}
    options:
      show_root_heading: false
      show_root_toc_entry: false
      members:{members}"""
