"""The command study: what it writes is what was found, and its arguments are looked at first."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from reference.made_study import made_results

from lim_jax import cli, models, validation
from lim_jax.validation.prompted import Answers


@pytest.fixture(autouse=True)
def touched(monkeypatch):
    """Figures are tested by themselves, and take long to write."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: Path(path).touch())


def test_a_study_writes_its_numbers_a_page_and_figures(monkeypatch, tmp_path, capsys):
    asked = []

    def validate(preset, *, seed, folder, progress):
        asked.append((preset, seed, folder, list(progress(["one"]))))
        return made_results()

    monkeypatch.setattr(validation, "validate", validate)
    out = tmp_path / "study"
    assert cli.main(["study", "--full", "--seed", "3", "--out", str(out)]) == 0
    ((preset, seed, folder, _),) = asked
    assert (preset, seed) == (validation.presets()["full"], 3) and folder.parent == out
    assert json.loads((out / "study.json").read_text())["arms"] == made_results()["arms"]
    page = (out / "study.md").read_text()
    figures = [line[2:].partition("]")[0] for line in page.splitlines() if line.startswith("![")]
    assert len(figures) == 7 and all((out / name).exists() for name in figures)
    printed = capsys.readouterr().out
    assert "**" not in printed and "At equal steps 1 of 1 remedies lifts the middle" in printed
    assert "At equal steps 1 of 1 remedies lifts the middle" in page
    assert cli.main(["study", "--overwrite", "--out", str(out)]) == 0
    assert asked[1][0] == validation.presets()["quick"]


def test_a_published_model_is_asked_in_text(monkeypatch, tmp_path):
    rng, asked = np.random.default_rng(0), []

    def ask_prompts(model, tokenizer, setting, *, checkpoint, progress):
        asked.append((model, tokenizer, setting, checkpoint.parent.parent))
        count, records = setting.prompts, setting.records
        return Answers(
            rng.uniform(size=count) < 0.5, *rng.uniform(1, 2, (2, count)),
            *rng.uniform(1, 2, (2, count, 2, records)),
        )  # fmt: skip

    monkeypatch.setattr(validation, "ask_prompts", ask_prompts)
    monkeypatch.setattr(models, "load", lambda path: "network")
    monkeypatch.setattr(models, "read_tokenizer", lambda path: "tokenizer")
    (tmp_path / "small.gguf").touch()
    out = tmp_path / "asked"
    arguments = ["--model", str(tmp_path / "small.gguf"), "--prompts", "12", "--records", "3", "4"]
    assert cli.main(["study", *arguments, "--out", str(out)]) == 0
    assert [(setting.records, setting.prompts) for _, _, setting, _ in asked] == [(3, 12), (4, 12)]
    assert {one[:2] for one in asked} == {("network", "tokenizer")}
    found = json.loads((out / "prompted.json").read_text())
    assert list(found) == ["3 records", "4 records"] and found["3 records"]["prompts"] == 12
    page = (out / "prompted.md").read_text()
    accuracy = found["4 records"]["scores"]["accuracy"]["value"]
    row = [line for line in page.splitlines() if line.startswith("| accuracy |")][1]
    assert [float(cell.split(" ")[1]) for cell in row.split("|")[2:-1]] == pytest.approx(
        accuracy, abs=5e-3
    )
    assert (out / "prompted_3.png").exists() and (out / "prompted_4.svg").exists()


def test_one_study_at_a_time(tmp_path):
    with pytest.raises(ValueError, match="quick, full and model: got more than one"):
        cli.main(["study", "--full", "--quick", "--out", str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()
