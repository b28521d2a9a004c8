r"""A Griffe extension: the package's docstrings as Markdown, for the pages of its rooms.

Formulas (:math:`x`, and ``.. math::`` blocks) become what MathJax reads; the paper's labels and the
package's own names, in backquotes, become links; a class of fields gets the signature that it has.
"""

import re
import tomllib
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import griffe

HERE = Path(__file__).parent
LABELS = tomllib.loads((HERE / "labels.toml").read_text(encoding="utf-8"))

BLOCK = re.compile(r"^( *)\.\. math::(.*(?:\n(?:\1 +.*| *(?=\n\1 )))*)", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]+)`")
QUOTED = re.compile(r"(?<!`)`([\w.:-]+)`(?!`)")
DASH = re.compile(r"(?<=\w)--(?=\w)")
EXAMPLES = re.compile(r"^Examples\n-+$", re.MULTILINE)
FIELDS = {"Module", "NamedTuple"}  # bases whose annotated attributes are a class's arguments


class Docstrings(griffe.Extension):
    """Rewrites every docstring of the package once it is loaded."""

    def on_package(self, *, pkg: griffe.Module, loader: Any, **kwargs: Any) -> None:
        """Find the names first, then write: a docstring may name what stands in a later file."""
        places = _public(pkg)
        for obj in _objects(pkg):
            if obj.docstring is not None:
                obj.docstring.value = markdown(obj.docstring.value, obj, places)
            if isinstance(obj, griffe.Class):
                _sign(obj)


def markdown(text: str, obj: griffe.Object, places: dict[str, list[str]]) -> str:
    """A docstring of the package as Markdown; its examples are left as they are."""
    parts = EXAMPLES.split(text, maxsplit=1)
    head = BLOCK.sub(_display, parts[0])
    head = INLINE.sub(lambda found: rf"\({found[1]}\)", head)
    head = DASH.sub("–", QUOTED.sub(lambda found: _link(found[1], obj, places), head))
    return head + text[len(parts[0]) :]


def _display(found: re.Match) -> str:
    """A block of its own: on the lines of the directive or below it, as deep as it stands."""
    first, _, rest = found[2].partition("\n")
    body = "\n".join(line for line in (first.strip(), dedent(rest)) if line.strip())
    return indent(f"\n\\[\n{body.strip()}\n\\]\n", found[1])


def _link(name: str, obj: griffe.Object, places: dict[str, list[str]]) -> str:
    """The label's row, or the one public object that a name means here, or the name alone."""
    if name in LABELS:
        return f"[`{name}`][{name}]"
    links = [] if name in _arguments(obj) else places.get(name, [])
    near = [place for place in links if place.rpartition(".")[0] in (obj.path, obj.module.path)]
    chosen = near or links
    itself = len(chosen) == 1 and chosen[0] == obj.path
    return f"[`{name}`][{chosen[0]}]" if len(chosen) == 1 and not itself else f"`{name}`"


def _public(package: griffe.Module) -> dict[str, list[str]]:
    """The paths of modules, functions, classes and their methods, by each way to write them.

    Of those that have a page: the rooms' files with public names, and these names.
    """
    places: dict[str, list[str]] = {}
    handed_out = _public_paths()
    modules = {path.rpartition(".")[0] for path in handed_out}
    for obj in _objects(package):
        words = obj.path.split(".")
        if any(word.startswith("_") for word in words) or isinstance(obj, griffe.Attribute):
            continue
        in_file = len(words) > 2 and (HERE.parent / "lim_jax" / words[1]).is_dir()
        if in_file and not (obj.path in modules or ".".join(words[:4]) in handed_out):
            continue
        shortest = len(words) - 1 if obj.is_module else len(words)  # a module in two words
        ways = [words[start:] for start in range(shortest)]
        if not obj.is_module and obj.module.path.count(".") == 2:  # by its room, without the file
            ways.append([words[1], *words[3:]])
        for way in ways:
            places.setdefault(".".join(way), []).append(obj.path)
    return places


def _public_paths() -> set[str]:
    """The paths of what the rooms' doors hand out."""
    return {
        f"lim_jax.{stub.parent.name}.{file}.{name}"
        for stub in (HERE.parent / "lim_jax").glob("*/__init__.pyi")
        for file, name in re.findall(
            r"^from \.(\w+) import (\w+) as", stub.read_text(encoding="utf-8"), re.MULTILINE
        )
    }


def _arguments(obj: griffe.Object) -> set[str]:
    """What a function is given or a class holds: a name of these means no other."""
    if isinstance(obj, griffe.Function):
        return {one.name for one in obj.parameters}
    return {name for name, member in obj.members.items() if isinstance(member, griffe.Attribute)}


def _objects(parent: griffe.Object) -> list[griffe.Object]:
    """The object, and all that is defined in it."""
    members = [member for member in parent.members.values() if not member.is_alias]
    return [parent, *(obj for member in members for obj in _objects(member))]  # pyright: ignore


def _sign(cls: griffe.Class) -> None:
    """Give a class of fields the constructor that its base makes for it."""
    bases = {str(base).rpartition(".")[2] for base in cls.bases}
    if "__init__" in cls.members or not bases & FIELDS:
        return
    fields = [
        griffe.Parameter(
            field.name,
            annotation=field.annotation,
            kind=griffe.ParameterKind.positional_or_keyword,
            default=_default(field),
        )
        for field in cls.members.values()
        if isinstance(field, griffe.Attribute) and "instance-attribute" in field.labels
    ]
    cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*fields)))


def _default(field: griffe.Attribute) -> str | griffe.Expr | None:
    """A field's default, also where `equinox.field` says it."""
    value = field.value
    if not isinstance(value, griffe.ExprCall) or not str(value.function).endswith("field"):
        return value
    values = {one.name: one.value for one in value.arguments if isinstance(one, griffe.ExprKeyword)}
    return values.get("default")
