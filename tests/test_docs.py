"""The site of the documentation: it builds, nothing in it is broken, and what it says runs."""

import os
import re
import runpy
import subprocess
import sys
import tomllib
from html import escape
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import jax
import matplotlib.pyplot as plt
import pytest
from picture_numbers import carry_numbers
from reference.browser import PROGRAM, browser
from reference.drawn import require_as_drawn

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
ROOMS = runpy.run_path(str(DOCS / "rooms.py"))
PAGES = runpy.run_path(str(DOCS / "pages.py"))
RUNNING = [
    DOCS / f"{name}.md"
    for name in ("start", "questions", "faq", "extending", "gallery", "training")
]
NOTEBOOKS = {
    file: DOCS / "notebooks" / f"{file.stem}.md" for file in (ROOT / "notebooks").glob("*.py")
}
HANDLED = find_spec("zensical") and find_spec("mkdocstrings_handlers") and find_spec("mathjax")
RAW = {":math:", ".. math::", "``", r"\(", r"\[", "][", "::: "}  # what a page must not show
LISTED = re.compile(r"\[.*?\]\((.*?)\)")
VERBATIM = {"code", "pre", "script", "style"}


class Page(HTMLParser):
    """What a page of the site holds: anchors, links, files that it loads, prose and formulas."""

    def __init__(self, file, *, whole=True):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), set(), set()
        self.prose, self.formulas = "", []
        self._verbatim = []
        text = file.read_text(encoding="utf-8")
        self.feed(text if whole else text[text.index("<article") :])

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        if tag == "a" and attributes.get("href"):
            self.links.add(attributes["href"])
        elif attributes.get("href") or attributes.get("src"):
            self.loaded.add(attributes.get("href") or attributes["src"])
        if "arithmatex" in (attributes.get("class") or ""):
            self.formulas.append("")
            self._verbatim.append(f"formula in {tag}")
        elif tag in VERBATIM:
            self._verbatim.append(tag)

    def handle_endtag(self, tag):
        if self._verbatim and tag == self._verbatim[-1].removeprefix("formula in "):
            self._verbatim.pop()

    def handle_data(self, data):
        if not self._verbatim:
            self.prose += data
        elif self._verbatim[-1].startswith("formula"):
            self.formulas[-1] += data


def listed(nav):
    """The pages of a table of contents, in order; the rooms', in theirs."""
    for entry in nav:
        for below in entry.values():
            if isinstance(below, list):
                yield from listed(below)
            elif below == "rooms/":
                yield from (f"rooms/{page}" for page in re.findall(LISTED, ROOMS["contents"]()))
            else:
                yield below


@pytest.fixture(scope="module")
def site():
    """The site, made anew, and each of its pages; what pages of a folder share, of the first."""
    if not HANDLED:
        pytest.skip('the site is built with the extra: pip install ".[docs]"')
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(DOCS / "website.py")],
        env=os.environ | {"PYTHONPATH": paths, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = ROOT / "build" / "site"
    files = sorted(set(folder.rglob("*.html")) - {folder / "404.html"})  # a server's, from its root
    first = {file.parent: file for file in reversed(files)}
    return folder, {file: Page(file, whole=first[file.parent] == file) for file in files}


@pytest.mark.slow
def test_every_link_and_anchor_of_the_site_resolves(site):
    folder, pages = site
    assert len(pages) > 140
    links = {
        (file if link.startswith("#") else file.parent, link)
        for file, page in pages.items()
        for link in page.links | page.loaded
        if not re.match(r"[a-z]+:", link)
    }
    broken = []
    for place, link in links:
        path, _, anchor = link.partition("#")
        to = (place / unquote(path)).resolve() if path else place
        there = to.is_relative_to(folder) and to.is_file()
        if not there or (anchor and to in pages and unquote(anchor) not in pages[to].anchors):
            broken.append((place, link))
    assert broken == []


@pytest.mark.slow
def test_the_site_reads_offline(site):
    """What a page loads lies beside it; only links that a reader follows lead elsewhere."""
    folder, pages = site
    assert [(f.name, u) for f, page in pages.items() for u in page.loaded if "//" in u] == []
    assert (folder / "mathjax" / "tex-chtml.js").stat().st_size > 1_000_000
    fonts = list((folder / "mathjax" / "output" / "chtml" / "fonts" / "woff-v2").glob("*.woff"))
    assert len(fonts) > 15


@pytest.mark.slow
def test_every_public_name_has_its_anchor_on_its_files_page_and_a_link_on_its_rooms(site):
    folder, pages = site

    def shown(module):
        path = Path(ROOMS["page_of"](module)).with_suffix(".html")
        return path, pages[folder / "rooms" / path]

    for room in ROOMS["rooms"]():
        place, of_room = shown(f"lim_jax.{room}")
        assert f"lim_jax.{room}" in of_room.anchors
        for module, names in ROOMS["public"](room).items():
            file, of_file = shown(module)
            expected = {f"{module}.{name}" for name in names}
            assert {module, *expected} <= of_file.anchors, module
            if file != place:
                page = file.relative_to(place.parent)
                assert {f"{page}#{name}" for name in expected} <= of_room.links, module
    front = {f"lim_jax.{name}" for name in ROOMS["front_door"]()}
    assert front <= pages[folder / "rooms" / "index.html"].anchors


@pytest.mark.slow
def test_every_label_of_the_paper_has_its_row(site):
    folder, pages = site
    labels = tomllib.loads((DOCS / "labels.toml").read_text(encoding="utf-8"))
    assert labels.keys() <= pages[folder / "equations.html"].anchors


@pytest.mark.slow
def test_no_markup_is_left_in_the_prose(site):
    left = [(file.name, raw) for file, page in site[1].items() for raw in RAW if raw in page.prose]
    assert left == []
    assert sum(len(page.formulas) for page in site[1].values()) > 700


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")
def test_every_formula_is_set(site):
    """All on one page, by the MathJax of the site."""
    folder, pages = site
    formulas = sorted({formula for page in pages.values() for formula in page.formulas})
    spans = "".join(f'<p class="arithmatex">{escape(formula)}</p>' for formula in formulas)
    scripts = ("mathjax.js", "mathjax/tex-chtml.js")
    head = "".join(f'<script src="{script}"></script>' for script in scripts)
    page = folder / "formulas.html"
    page.write_text(f'<!doctype html><meta charset="utf-8">{head}<body>{spans}', encoding="utf-8")
    with browser() as tab:
        tab.open(page, 1000, 1000)
        tab.value("MathJax.startup.promise")
        assert tab.value("document.querySelectorAll('mjx-container').length") == len(formulas)
        wrong = "[...document.querySelectorAll('mjx-merror')].map(node => node.title)"
        assert tab.value(wrong) == []
    page.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run_and_print_what_it_says(page, tmp_path, monkeypatch):
    """As users run them, in float32 and with JAX's own promotions."""
    monkeypatch.chdir(tmp_path)
    promotion = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with jax.enable_x64(False), promotion[0], promotion[1]:
        done = PAGES["run"](page)
    plt.close("all")
    for program, printed in done:
        assert program.prints in (None, printed), program.source
    require_as_drawn(DOCS / page.stem, tmp_path)


def test_the_rooms_pages_hold_what_the_doors_hand_out():
    """`test_structure` holds the stubs to the pages: so are these, by their names."""
    pages = ROOMS["pages"]()
    for room, table in ROOMS["rooms"]().items():
        modules = ROOMS["public"](room)
        names = {name for inside in modules.values() for name in inside}
        door = ROOT / "lim_jax" / room / "__init__.pyi"
        if door.exists():
            handed = set(re.findall(r"import (\w+) as", door.read_text(encoding="utf-8")))
            files = {file.partition(".")[0] for file in table["files"]}
            assert handed - files == names
        for module, inside in modules.items():
            assert f"::: {module}\n" in pages[ROOMS["page_of"](module)]
            assert all(inside.values()), (module, inside)  # the line that each name has


def test_every_page_is_in_the_table_of_contents():
    pages = {file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md")}
    pages |= {"contributing.md", "changelog.md"} | {f"rooms/{name}" for name in ROOMS["pages"]()}
    assert sorted(listed(CONFIG["nav"])) == sorted(pages)


def test_every_page_with_programs_is_run():
    """Here or by `test_notebooks`; `test_devices` has the numbers of several devices."""
    with_programs = {page for page in DOCS.rglob("*.md") if PAGES["programs"](page)}
    assert with_programs == {*RUNNING, *NOTEBOOKS.values(), DOCS / "several_devices.md"}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_page_of_a_notebook_is_of_what_stands_in_it(notebook):
    """Its prose and its programs, word for word; what those print is compared by nothing.

    It is of the last run of `docs/notebooks.py`, and its last digits are of one machine.
    """
    page = NOTEBOOKS[notebook].read_text(encoding="utf-8")
    cells = re.split(r"^# (%%.*)$", notebook.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for kind, cell in zip(cells[1::2], cells[2::2], strict=True):
        prose = re.sub("^# ?", "", cell, flags=re.MULTILINE) if "markdown" in kind else cell
        assert prose.strip() in page, (notebook.name, cell)


def test_every_name_that_a_page_mentions_is_there():
    """As `lim.room.name` in backquotes; programs are run."""
    there = ROOMS["places"]()
    mentioned = {
        name: page.name
        for page in [*DOCS.rglob("*.md"), ROOT / "CONTRIBUTING.md"]
        for name in re.findall(r"`(lim(?:\.[A-Za-z]\w*)+)", page.read_text(encoding="utf-8"))
    }
    assert len(mentioned) > 50
    assert {name: page for name, page in mentioned.items() if name not in there} == {}


def test_files_and_pictures_that_a_page_names_are_there():
    files = r"`(?:python )?((?:tests|docs|benchmarks|notebooks|lim_jax)/[\w/.]+)[` ]"
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for named in re.findall(files, text):
            assert (ROOT / named).exists(), (page.name, named)
        for picture in re.findall(r"!\[.*?\]\((.*?)\)", text, re.DOTALL):
            assert (page.parent / picture).exists(), (page.name, picture)


@pytest.mark.slow
def test_the_table_of_limits_and_its_pictures_are_those_of_the_results(tmp_path):
    limits = runpy.run_path(str(DOCS / "limits.py"))
    assert limits["PAGE"].read_text(encoding="utf-8") == limits["page_with_table"]()
    assert limits["FILE"].read_text(encoding="utf-8") == limits["data_file"]()
    rows = limits["results"]()["rates"]
    assert all(row["agrees"] for row in rows)
    text = limits["PAGE"].read_text(encoding="utf-8")
    assert f"Of {len(rows)} limits\n{len(rows)} have the expected order;" in text
    verdicts = [row["verdict"] for row in rows]
    assert {*verdicts} == {"measured", "no bound"}
    assert f"constants of the {verdicts.count('measured')} that have one are samples" in text
    with carry_numbers():
        limits["draw"](tmp_path)
    plt.close("all")
    require_as_drawn(DOCS / "limits", tmp_path)


def test_rows_without_checks_of_values_are_in_no_table_of_accelerators(monkeypatch):
    accelerators = runpy.run_path(str(DOCS / "accelerators.py"))
    table = accelerators["table"]()
    rows = accelerators["rows_of"]("accelerator")
    unchecked = [row | {"checks": "off", "seconds": row["seconds"] / 2} for row in rows]
    names = accelerators["results"].__globals__
    monkeypatch.setitem(names, "rows_of", lambda name: [*rows, *unchecked])
    assert accelerators["table"]() == table


def test_the_tables_of_accelerators_and_their_files_are_of_the_results():
    """Where every job agrees with the processor as nearly as the page says."""
    accelerators = runpy.run_path(str(DOCS / "accelerators.py"))
    assert accelerators["PAGE"].read_text(encoding="utf-8") == accelerators["page_with_tables"]()
    assert accelerators["FILE"].read_text(encoding="utf-8") == accelerators["data_file"]()
    assert accelerators["BESIDE_FILE"].read_text(encoding="utf-8") == accelerators["beside_file"]()
    largest = {"float32": 1.1e-6, "bfloat16 products": 0.02, "bfloat16": 0.02}
    for row in accelerators["results"]():
        assert row["difference"] < largest[row["precision"]], row


def test_the_families_of_models_and_their_file_are_of_the_results_and_all_agree():
    """Within 3e-6 in float32 and 3e-14 in float64, but for what the page says."""
    models = runpy.run_path(str(DOCS / "models.py"))
    assert models["PAGE"].read_text(encoding="utf-8") == models["page_with_families"]()
    assert models["FILE"].read_text(encoding="utf-8") == models["data_file"]()
    results = models["results"]()
    assert {name.partition(",")[0] for name, _ in results} == {*models["FAMILIES"]}
    bounds = {"float32": 3e-6, "float64": 3e-14}
    for name, precision in results:
        # Falcon-H1's attention is half of a sublayer: no kernel is compared.
        quantities = 6 if name.startswith("falcon_h1") else 10
        assert len(results[name, precision]) == quantities
        assert {(name, one) for one in bounds} <= set(results)
    for name in ("bloom", "bloom, three heads"):
        assert (
            max(results.pop((name, "float64")).values()) < 1e-12
        )  # of derivatives, as the page says
    assert results["qwen2, yarn", "float32"].pop("cone") < 1e-3  # one block's second singular value
    for quantity in ("gradient", "channels", "hops"):
        assert results["mixtral, window", "float32"].pop(quantity) < 1e-5  # float64: 6e-15
    # Whose heads of small numbers are normed, as the page says.
    delta = "qwen3_5", "qwen3_next", "olmo_hybrid", "kimi_linear", "bailing_hybrid"
    for (name, precision), gaps in results.items():
        normed = name.startswith(delta)
        bound = (
            (30 if precision == "float32" else 3) * bounds[precision]
            if normed
            else bounds[precision]
        )
        assert max(gaps.values()) < bound, (name, precision, gaps)
