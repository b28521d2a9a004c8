"""What is said about a version is said of the same one everywhere."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import lim_jax as lim

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_there_is_one_version():
    cited = re.search(
        r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert cited is not None
    assert lim.__version__ == version("lim_jax") == PROJECT["version"] == cited[1]


def test_the_changelog_begins_with_what_is_not_released():
    titles = re.findall(
        r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert titles[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", title) for title in titles[1:])


def test_the_paper_that_is_cited_is_the_readmes():
    cited = re.search(
        r'^  title: "(.+)"$', (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE
    )
    readme = re.sub(r"\s+", " ", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert cited is not None and f"*{cited[1]}*" in readme


def test_the_oldest_python_is_the_first_that_is_named():
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={named[0]}" and named == sorted(named)


def test_the_oldest_dependencies_are_those_that_are_allowed():
    """Of every extra but those with which networks and methods of others are compared."""
    extras = PROJECT["optional-dependencies"]
    tested = [extras[name] for name in extras if name not in ("parity", "prices")]
    needs = [*PROJECT["dependencies"], *sum(tested, [])]
    bounds = [re.match(r"([\w-]+)>=([\d.]+)", need) for need in needs if "lim_jax" not in need]
    pinned = (ROOT / ".ci" / "oldest.txt").read_text(encoding="utf-8").splitlines()[1:]
    assert sorted({f"{bound[1]}=={bound[2]}" for bound in bounds if bound}) == pinned
