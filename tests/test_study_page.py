"""The page of the study in the documentation is made of the results beside it."""

import json
import runpy
import shutil
from pathlib import Path

import matplotlib.pyplot as plt
from reference.drawn import require_as_drawn

from lim_jax import report, validation

FOLDER = Path(__file__).parents[1] / "docs" / "study"
PICTURES = runpy.run_path(str(FOLDER.parent / "pictures.py"))


def test_the_page_says_what_the_results_say():
    page = (FOLDER / "study.md").read_text(encoding="utf-8")
    figures = [line[2:].partition("]")[0] for line in page.splitlines() if line.startswith("![")]
    assert figures and all((FOLDER / name).is_file() for name in figures)
    results = json.loads((FOLDER / "study.json").read_text(encoding="utf-8"))
    assert report.findings_page(results, figures) == page


def test_the_results_are_those_of_the_full_preset():
    """Every network, arm and variant, of every seed."""
    results = json.loads((FOLDER / "study.json").read_text(encoding="utf-8"))
    full = validation.presets()["full"]
    assert list(results["settings"]) == list(results["predictions"]) == list(full.settings)
    assert set(full.arms) < set(results["arms"])
    assert set(full.variants) <= set(results["variants"])
    for record in (*results["arms"].values(), *results["variants"].values()):
        assert len(record["answer_lim"]) == full.seeds


def test_the_page_of_a_published_model_says_what_its_results_say():
    page = (FOLDER / "prompted.md").read_text(encoding="utf-8")
    figures = [line[2:].partition("]")[0] for line in page.splitlines() if line.startswith("![")]
    assert figures and all((FOLDER / name).is_file() for name in figures)
    found = json.loads((FOLDER / "prompted.json").read_text(encoding="utf-8"))
    assert report.prompted_page(found, "SmolLM2-135M-Instruct.Q4_1", figures) == page
    assert [one["prompts"] for one in found.values()] == [500, 500]


def test_the_studys_pictures_are_those_of_its_results(tmp_path):
    PICTURES["draw_study"](tmp_path)
    plt.close("all")
    committed = tmp_path / "committed"
    committed.mkdir()
    for file in tmp_path.glob("*.png"):
        shutil.copy(FOLDER / file.name, committed)
    require_as_drawn(committed, tmp_path)
    assert len(list(committed.iterdir())) == 7
