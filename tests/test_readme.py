"""The README's promises: its example runs, is short, and it names what exists."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from reference import publishers
from reference.as_users import run_python
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def write_small_network(folder):
    """What the README's example reads, random, and prompts of its words."""
    network = folder / "HuggingFaceTB" / "SmolLM2-135M-Instruct"
    network.mkdir(parents=True)
    publishers.write(network, publishers.CONFIGS["llama"])
    words = {f"w{index}": index for index in range(publishers.WORDS)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(network / "tokenizer.json"))
    (folder / "prompts.txt").write_text("w3 w1 w4 w1 w5 w9\nw2 w7 w1 w8 w2 w8\n", encoding="utf-8")


@pytest.mark.slow
def test_the_example_is_short_and_runs(tmp_path):
    """In a process of its own, as users run it: in float32, compiled with XLA's defaults."""
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in example.splitlines() if line]) <= 10
    write_small_network(tmp_path)
    done = run_python("-c", example, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "network.png").stat().st_size > 10_000


def test_the_commands_install_extras_that_exist():
    commands = re.findall(r"```console\n(.*?)\n```", README, flags=re.DOTALL)
    assert commands == [
        'python -m pip install ".[plot,cli]" && lim-jax reproduce',
        'python -m pip install ".[test]" && python -m pytest',
    ]
    assert {"plot", "cli", "test", "dev"} <= set(PROJECT["optional-dependencies"])
    assert set(PROJECT["scripts"]) == {"lim-jax"}


def test_every_dependency_has_a_lower_bound_and_one_version_is_excluded():
    """What only builds the site or reviews the project may be pinned instead."""
    groups = PROJECT["optional-dependencies"].items()
    extras = [
        r for name, group in groups for r in group if name not in ("docs", "dev") or "==" not in r
    ]
    requirements = [r for r in PROJECT["dependencies"] + extras if not r.startswith("lim_jax[")]
    assert all(">=" in requirement for requirement in requirements)
    excluded = [requirement for requirement in requirements if "!=" in requirement]
    assert excluded == ["jax>=0.10.1,!=0.10.2", "jaxlib>=0.10.1,!=0.10.2"]


def test_figures_and_files_that_it_names_are_there():
    images = re.findall(r"!\[.*?\]\((.*?)\)", README)
    named = re.findall(r"`((?:tests|docs|benchmarks|notebooks)/[\w/.]+)`", README)
    linked = re.findall(r"[^!]\[.*?\]\((.*?)\)", README, flags=re.DOTALL)
    assert len(images) == 2 and len(named) > 1 and len(linked) > 15
    for path in (*images, *named, *linked):
        assert (ROOT / path).exists(), path


def test_the_measured_tables_and_files_are_those_of_the_results():
    path = ROOT / "benchmarks" / "report.py"
    specification = importlib.util.spec_from_file_location("report", path)
    assert specification is not None and specification.loader is not None
    report = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(report)
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    tables = report.tables()
    assert set(tables) == {"speed-page", "speed-narrow", "speed-summary"}
    for name, table in tables.items():
        assert len(table.splitlines()) > 4 and table in (README if "summary" in name else page)
        assert len({line.count("|") for line in table.splitlines()}) == 1  # as many cells in all
    files = ROOT / "docs" / "speed"
    assert {file.stem for file in files.iterdir()} == {*report.FILES.split()}
    for file in files.iterdir():
        assert file.read_text(encoding="utf-8") == report.data_file(report.results(file.stem)), (
            file.name
        )
        assert f"(speed/{file.name})" in page
