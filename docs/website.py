"""Build the site of these pages in build/site: ``python docs/website.py`` (the extra `docs`).

The sources are copied to build/docs first, where the rooms' pages, MathJax and the anchors of the
paper's labels are added, and where links to files of the repository become links to pages.
"""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import rooms

HERE = Path(__file__).parent
ROOT = HERE.parent
SOURCES = ROOT / "build" / "docs"  # as zensical.toml has it
SHOWN = {".md", ".png", ".svg", ".js", ".css", ".csv"}
LABEL_ROW = re.compile(r"^\| `([\w:-]+)` \|", re.MULTILINE)
CODE_LINK = re.compile(r"\[`([\w.:]+)`\]\(\.\./([\w/.]+)\)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?<!\[)`(lim\.[\w.]+)`")
MATHJAX = ("tex-chtml.js", "output/chtml/fonts/woff-v2")


def stage_sources() -> Path:
    """The folder of all that is shown, made anew."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    for file in sorted(HERE.rglob("*")):
        if file.suffix in SHOWN:
            _copy(file, SOURCES / file.relative_to(HERE))
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        _copy(ROOT / name, SOURCES / name.lower())
    for page in sorted(SOURCES.rglob("*.md")):
        change = _equations if page.stem == "equations" else _with_links
        page.write_text(change(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name, text in (rooms.pages() | {"SUMMARY.md": rooms.contents()}).items():
        page = SOURCES / "rooms" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    _copy_mathjax()
    return SOURCES


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to)


def _equations(page: str) -> str:
    """The table with an anchor for each label, and links to functions instead of files."""
    page = LABEL_ROW.sub(r"| [](){#\1}`\1` |", page)
    return CODE_LINK.sub(_to_its_room, page)


def _with_links(page: str) -> str:
    """A page whose mentions of public names, outside its programs, lead to them."""
    places = rooms.places()
    prose = FENCED.split(page)
    prose[::2] = [NAMED.sub(lambda found: _link(found[1], places), part) for part in prose[::2]]
    return "".join(prose)


def _link(name: str, places: dict[str, str]) -> str:
    return f"[`{name}`][{places[name]}]" if name in places else f"`{name}`"


def _to_its_room(match: re.Match) -> str:
    name, file = match.groups()
    is_public = file.startswith("lim_jax/") and not name.rpartition(".")[2].startswith("_")
    module = file.removesuffix(".py").replace("/", ".")
    of_module = f"lim_jax.{name}".removeprefix(f"{module}.").partition(".")[0]
    if not is_public or f"{module}.{of_module}" not in rooms.places().values():
        return f"`{name}`"
    return f"[`{name}`][lim_jax.{name}]"


def _copy_mathjax() -> None:
    """From the wheel that the extra pins: what sets TeX, and its fonts."""
    spec = find_spec("mathjax")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit('got no MathJax, expected that of the extra: pip install ".[docs]"')
    package = Path(spec.submodule_search_locations[0])
    for name in MATHJAX:
        origin = package / "static/mathjax/es5" / name
        to = SOURCES / "mathjax" / name
        shutil.copytree(origin, to) if origin.is_dir() else _copy(origin, to)


def build() -> Path:
    """The site's folder; what Zensical finds wrong ends the process."""
    stage_sources()
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    subprocess.run(command, cwd=ROOT, check=True)
    return ROOT / "build" / "site"


if __name__ == "__main__":
    build()
