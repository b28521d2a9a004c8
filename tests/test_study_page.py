"""The page of the study in the documentation is made of the results beside it."""

import json
import runpy
import shutil
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from reference.drawn import require_as_drawn

from benchmarks.validation.faithfulness import SETTINGS
from benchmarks.validation.faithfulness_page import faithfulness_page
from benchmarks.validation.findings_page import findings_page, prompted_page
from benchmarks.validation.hybrids import SEEDS, TWIN, hybrid_table
from benchmarks.validation.recalled import RECALLED
from benchmarks.validation.study import presets
from benchmarks.validation.tuned import TUNED, Tuning
from benchmarks.validation.tuning_page import tuning_page

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
    assert findings_page(results, figures) == page


def test_the_results_are_those_of_the_full_preset():
    """Every network, arm and variant, of every seed."""
    results = json.loads((FOLDER / "study.json").read_text(encoding="utf-8"))
    full = presets()["full"]
    assert list(results["settings"]) == list(results["predictions"]) == list(full.settings)
    assert set(full.arms) < set(results["arms"])
    assert set(full.variants) <= set(results["variants"])
    assert set(results["recalls"]) == set(RECALLED)
    for record in (*results["arms"].values(), *results["variants"].values()):
        assert len(record["answer_lim"]) == full.seeds


def test_the_page_of_a_published_model_says_what_its_results_say():
    results, page, figures = written("prompted")
    assert prompted_page(results, PUBLISHED, figures) == page
    assert [result["prompts"] for result in results.values()] == [500, 500]


def test_the_page_of_training_further_says_what_its_results_say():
    results, page, figures = written("tuning")
    assert tuning_page(results, PUBLISHED, figures) == page
    assert set(results["arms"]) == set(TUNED)
    expected = json.loads(json.dumps(Tuning()._asdict()))
    shapes = {name: getattr(Tuning(), name)._asdict() for name in ("short", "longer")}
    assert results["tuning"] == expected | shapes
    for arm in results["arms"].values():
        assert np.shape(arm["short"]["accuracy"])[1:] == (Tuning().seeds, 10)


def test_the_page_of_faithfulness_says_what_its_results_say():
    results, page, figures = written("faithfulness")
    assert faithfulness_page(results, PUBLISHED, figures) == page
    settings = json.loads(json.dumps({name: one._asdict() for name, one in SETTINGS.items()}))
    assert results["settings"] == {name: settings[name] for name in results["settings"]}


def test_the_page_on_recurrent_layers_has_the_table_of_the_hybrid_and_its_twin():
    document = json.loads((FOLDER / "hybrids.json").read_text(encoding="utf-8"))
    page = (FOLDER.parent / "extending.md").read_text(encoding="utf-8")
    assert f"\n\n{hybrid_table(document)}\n\n" in page
    assert {np.shape(each["accuracy"]) for each in document.values()} == {
        (SEEDS, TWIN.task.records)
    }


@pytest.mark.slow
def test_the_studys_pictures_are_those_of_its_results(tmp_path):
    PICTURES["draw_study"](tmp_path)
    plt.close("all")
    committed = tmp_path / "committed"
    committed.mkdir()
    for file in tmp_path.glob("*.png"):
        shutil.copy(FOLDER / file.name, committed)
    require_as_drawn(committed, tmp_path)
    assert len(list(committed.iterdir())) == 11
