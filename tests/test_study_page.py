"""The page of the study in the documentation is made of the results beside it."""

import json
import runpy
import shutil
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from reference.drawn import require_as_drawn

from lim_jax import report, validation

FOLDER = Path(__file__).parents[1] / "docs" / "study"
PUBLISHED = "SmolLM2-135M-Instruct.Q4_1"
PICTURES = runpy.run_path(str(FOLDER.parent / "pictures.py"))


def written(study):
    """Results, the page beside them, and the figures that it shows."""
    page = (FOLDER / f"{study}.md").read_text(encoding="utf-8")
    figures = [line[2:].partition("]")[0] for line in page.splitlines() if line.startswith("![")]
    assert figures and all((FOLDER / name).is_file() for name in figures)
    return json.loads((FOLDER / f"{study}.json").read_text(encoding="utf-8")), page, figures


def test_the_page_says_what_the_results_say():
    results, page, figures = written("study")
    assert report.findings_page(results, figures) == page


def test_the_results_are_those_of_the_full_preset():
    """Every network, arm and variant, of every seed."""
    results = json.loads((FOLDER / "study.json").read_text(encoding="utf-8"))
    full = validation.presets()["full"]
    assert list(results["settings"]) == list(results["predictions"]) == list(full.settings)
    assert set(full.arms) < set(results["arms"])
    assert set(full.variants) <= set(results["variants"])
    assert set(results["recalls"]) == set(validation.recalled.RECALLED)
    for record in (*results["arms"].values(), *results["variants"].values()):
        assert len(record["answer_lim"]) == full.seeds


def test_the_page_of_a_published_model_says_what_its_results_say():
    found, page, figures = written("prompted")
    assert report.prompted_page(found, PUBLISHED, figures) == page
    assert [one["prompts"] for one in found.values()] == [500, 500]


def test_the_page_of_training_further_says_what_its_results_say():
    found, page, figures = written("tuning")
    assert report.tuning_page(found, PUBLISHED, figures) == page
    assert set(found["arms"]) == set(validation.tuned.TUNED)
    expected = json.loads(json.dumps(validation.Tuning()._asdict()))
    shapes = {name: getattr(validation.Tuning(), name)._asdict() for name in ("short", "longer")}
    assert found["tuning"] == expected | shapes
    for arm in found["arms"].values():
        assert np.shape(arm["short"]["accuracy"])[1:] == (validation.Tuning().seeds, 10)


def test_the_page_of_faithfulness_says_what_its_results_say():
    found, page, figures = written("faithfulness")
    assert report.faithfulness_page(found, PUBLISHED, figures) == page
    assert [one["prompts"] for one in found["kinds"].values()] == [100, 100]
    setting = json.loads(json.dumps(validation.FaithfulnessSetting()._asdict()))
    assert found["setting"] == setting


def test_the_studys_pictures_are_those_of_its_results(tmp_path):
    PICTURES["draw_study"](tmp_path)
    plt.close("all")
    committed = tmp_path / "committed"
    committed.mkdir()
    for file in tmp_path.glob("*.png"):
        shutil.copy(FOLDER / file.name, committed)
    require_as_drawn(committed, tmp_path)
    assert len(list(committed.iterdir())) == 10
