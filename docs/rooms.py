"""The page of each room, from the table of the rooms and what each door hands out."""

import ast
import tomllib
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "lim_jax"

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


def public(room: str) -> dict[str, list[str]]:
    """A room's modules in their order, each with its public functions and classes in theirs."""
    files = rooms()[room].get("files")
    modules = [f"{room}.{file}" for file in files] if files else [room]
    return {f"lim_jax.{module}": _defined(module) for module in modules}


def front_door() -> dict[str, str]:
    """The names that the package itself hands out, rooms apart, with where each stands."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    return {
        alias.name: f"lim_jax.{node.module}.{alias.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if not alias.name.startswith("_")
    }


def places() -> dict[str, str]:
    """Where each way to write a public name in programs leads: `lim.room.name`, and by module."""
    found = {f"lim.{room}": f"lim_jax.{room}" for room in rooms()}
    for room in rooms():
        for module, names in public(room).items():
            of_module = module.replace("lim_jax", "lim", 1)
            found[of_module] = module
            for name in names:
                found |= dict.fromkeys(
                    (f"lim.{room}.{name}", f"{of_module}.{name}"), f"{module}.{name}"
                )
    return found | {f"lim.{name}": place for name, place in front_door().items()}


def pages() -> dict[str, str]:
    """Each page by the name of its file: one of all rooms, and one for each."""
    return {"index.md": _front(), **{f"{room}.md": _page(room) for room in rooms()}}


@cache
def _defined(module: str) -> list[str]:
    source = (PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = [node.name for node in ast.parse(source).body if isinstance(node, kinds)]
    return [name for name in names if not name.startswith("_")]


def _front() -> str:
    table = [f"| [`{name}`]({name}.md) | {room['question']} |" for name, room in rooms().items()]
    names = [
        f"| [](){{#lim_jax.{name}}}`lim.{name}` | {_link(place)} of `{place.rpartition('.')[0]}` |"
        for name, place in front_door().items()
    ]
    return FRONT.format(rooms="\n".join(table), names="\n".join(names))


def _page(room: str) -> str:
    """The question, the room's own words, its modules with their names, and each module whole."""
    modules = public(room)
    parts = [f"# {room} {{#lim_jax.{room}}}", f"*{rooms()[room]['question']}*"]
    if "files" in rooms()[room]:
        parts += [_shown(f"lim_jax.{room}", [], heading=False), _contents(modules)]
    parts += [_shown(module, names, heading=True) for module, names in modules.items()]
    return "\n\n".join(parts) + "\n"


def _contents(modules: dict[str, list[str]]) -> str:
    rows = [
        f"| {_link(module)} | {', '.join(_link(f'{module}.{name}') for name in names)} |"
        for module, names in modules.items()
    ]
    return "\n".join(["| module | what it hands out |", "|---|---|", *rows])


def _link(path: str) -> str:
    return f"[`{path.rpartition('.')[2]}`][{path}]"


def _shown(module: str, names: list[str], *, heading: bool) -> str:
    """What mkdocstrings is asked for: a module's text and these of its names."""
    members = "".join(f"\n        - {name}" for name in names) or " false"
    shown = "true" if heading else "false"
    return f"""\
::: {module}
    options:
      show_root_heading: {shown}
      show_root_toc_entry: {shown}
      members:{members}"""
