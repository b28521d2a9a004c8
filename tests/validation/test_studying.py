"""The command study: what it writes is what was found, and its arguments are looked at first."""

import json
from pathlib import Path

import numpy as np
import pytest
import tyro
from matplotlib.figure import Figure
from reference.made_study import made_results
from reference.made_tuning import made_tuning

from benchmarks.validation import judge_attributions as judge
from benchmarks.validation import runs, train_published
from benchmarks.validation.faithfulness import QUICK, SETTINGS, Explained, attributions
from benchmarks.validation.prompted import Answers
from benchmarks.validation.study import presets
from benchmarks.validation.tuned import Tuning
from lim_jax.models import LanguageModel

MODEL = ["--model", "small.gguf"]


def command(arguments):
    return tyro.cli(runs.study, args=arguments)


@pytest.fixture(autouse=True)
def touched(monkeypatch):
    """Figures are tested by themselves, and take long to write."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: Path(path).touch())


def given_by(monkeypatch, *parts):
    """What is read of small.gguf."""

    def from_pretrained(path):
        return LanguageModel(*parts)._replace(name=path.stem)

    monkeypatch.setattr(LanguageModel, "from_pretrained", from_pretrained)


def test_a_study_writes_its_numbers_a_page_and_figures(monkeypatch, tmp_path, capsys):
    calls = []

    def validate(preset, *, seed, folder, progress):
        calls.append((preset, seed, folder, list(progress(["one"]))))
        return made_results()

    monkeypatch.setattr(runs, "validate", validate)
    out = tmp_path / "study"
    assert command(["--full", "--seed", "3", "--out", str(out)]) == 0
    ((preset, seed, folder, _),) = calls
    assert (preset, seed) == (presets()["full"], 3) and folder.parent == out
    assert (
        json.loads((out / "study.json").read_text(encoding="utf-8"))["arms"]
        == made_results()["arms"]
    )
    page = (out / "study.md").read_text(encoding="utf-8")
    figures = [line[2:].partition("]")[0] for line in page.splitlines() if line.startswith("![")]
    assert len(figures) == 7 and all((out / name).exists() for name in figures)
    printed = capsys.readouterr().out
    finding = (
        "Of 1 remedy 1 raises accuracy in the middle of the context at equal steps (Algorithm 1"
    )
    assert "**" not in printed and finding in printed and finding in page
    assert command(["--overwrite", "--out", str(out)]) == 0
    assert calls[1][0] == presets()["quick"]


@pytest.mark.slow
def test_a_published_model_is_asked_in_text(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    calls = []

    def ask_prompts(model, tokenizer, setting, *, checkpoint, progress):
        calls.append((model, tokenizer, setting, checkpoint.parent.parent))
        count = setting.prompts
        records = setting.records
        return Answers(
            rng.uniform(size=count) < 0.5,
            *rng.uniform(1, 2, (2, count)),
            *rng.uniform(1, 2, (2, count, 2, records)),
        )

    monkeypatch.setattr(runs, "ask_prompts", ask_prompts)
    given_by(monkeypatch, "network", "tokenizer")
    (tmp_path / "small.gguf").touch()
    out = tmp_path / "asked"
    arguments = ["--model", str(tmp_path / "small.gguf"), "--prompts", "12", "--records", "3", "4"]
    assert command([*arguments, "--out", str(out)]) == 0
    assert [(setting.records, setting.prompts) for _, _, setting, _ in calls] == [(3, 12), (4, 12)]
    assert {call[:2] for call in calls} == {("network", "tokenizer")}
    document = json.loads((out / "prompted.json").read_text(encoding="utf-8"))
    assert list(document) == ["3 records", "4 records"] and document["3 records"]["prompts"] == 12
    page = (out / "prompted.md").read_text(encoding="utf-8")
    accuracy = document["4 records"]["scores"]["accuracy"]["value"]
    row = [line for line in page.splitlines() if line.startswith("| accuracy |")][1]
    assert [float(cell.split(" ")[1]) for cell in row.split("|")[2:-1]] == pytest.approx(
        accuracy, abs=5e-3
    )
    assert (out / "prompted_3.png").exists() and (out / "prompted_4.svg").exists()


def test_one_study_at_a_time(tmp_path):
    with pytest.raises(ValueError, match="quick, full and model: got more than one"):
        command(["--full", "--quick", "--out", str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()


def test_a_published_model_is_trained_further(monkeypatch, tmp_path, capsys):
    calls = []

    def tune(model, tokenizer, tuning, *, seed, folder, progress):
        calls.append((model, tokenizer, tuning, seed, folder, list(progress(["one"]))))
        return made_tuning()

    monkeypatch.setattr(train_published, "tune", tune)
    given_by(monkeypatch, "network", "tokenizer")
    (tmp_path / "small.gguf").touch()
    out = tmp_path / "trained"
    arguments = ["--model", str(tmp_path / "small.gguf"), "--train", "--seed", "3"]
    assert command([*arguments, "--out", str(out)]) == 0
    ((model, tokenizer, tuning, seed, folder, _),) = calls
    assert (model, tokenizer) == ("network", "tokenizer")
    assert (tuning, seed, folder) == (Tuning(), 3, out / "unfinished")
    assert (
        json.loads((out / "tuning.json").read_text(encoding="utf-8"))["arms"]
        == made_tuning()["arms"]
    )
    page = (out / "tuning.md").read_text(encoding="utf-8")
    assert page.startswith("# Does small learn more")
    figures = [line[2:].partition("]")[0] for line in page.splitlines() if line.startswith("![")]
    assert figures == ["tuning_by_place.png", "tuning_by_time.png"]
    assert all((out / name).exists() for name in (*figures, "tuning_by_time.svg"))
    printed = capsys.readouterr().out
    assert "**" not in printed and "On 8 records answers at the edges alone" in printed


def test_there_is_a_model_to_train(tmp_path):
    with pytest.raises(ValueError, match="train: got no model, expected a published model"):
        command(["--train", "--out", str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()


CHUNKS = ["one", "two", "three"]


@pytest.fixture
def explained_by(monkeypatch):
    """What prompts were explained with: of made scores, on a network that nobody reads."""
    calls = []

    def explain_prompts(model, tokenizer, setting, *, end, checkpoint, progress):
        rng = np.random.default_rng(0)
        names = attributions(setting)
        calls.append((model, tokenizer, setting, end, checkpoint.name, list(progress(CHUNKS))))

        def explained():
            kept = rng.uniform(size=(6, 10)) < 0.5
            shape = (len(names), len(setting.taken_out))
            scores = rng.standard_normal((len(names), 10))
            drops = rng.standard_normal(shape)
            return Explained(True, 1, 90, -1.5, scores, drops, kept, -rng.uniform(size=6))

        return [explained() for _ in range(4)], {"ablations": [1.0, 2]}

    monkeypatch.setattr(judge, "explain_prompts", explain_prompts)
    given_by(monkeypatch, "network", "tokenizer", None, (2,))
    return calls


@pytest.fixture
def learnt_in(monkeypatch):
    """Where weights of heads were learnt, which score as the first attribution does."""
    calls = []

    def learn_heads(model, tokenizer, runs, *, folder, end, progress):
        calls.append((model, tokenizer, folder.name, end))

        def with_ours(one):
            scores, drops = (np.vstack([rows, rows[0]]) for rows in (one.scores, one.drops))
            return one._replace(scores=scores, drops=drops)

        learnt = {"prompts": 8, "ablations": 48, "heads": 270, "strength": 1.0}
        judged = {
            name: run._replace(prompts=[with_ours(prompt) for prompt in run.prompts])
            for name, run in runs.items()
        }
        return judged, learnt

    monkeypatch.setattr(judge, "learn_heads", learn_heads)
    return calls


@pytest.fixture
def judged(tmp_path, explained_by, learnt_in, capsys):
    """The folder of a quick study of which part an answer came from; `capsys` has its words."""
    (tmp_path / "small.gguf").touch()
    arguments = ["--faithfulness", "--model", str(tmp_path / "small.gguf")]
    assert command([*arguments, "--quick", "--out", str(tmp_path / "asked")]) == 0
    return tmp_path / "asked"


@pytest.mark.slow
def test_prompts_are_explained_in_every_quick_setting(judged, explained_by, learnt_in):
    names = "10_records", "40_records", "sentences"
    assert explained_by == [
        ("network", "tokenizer", setting, (2,), f"faithfulness_of_{name}.jsonl", CHUNKS)
        for name, setting in zip(names, QUICK.values(), strict=True)
    ]
    assert set(learnt_in) == {("network", "tokenizer", "asked", (2,))}


@pytest.mark.slow
def test_faithfulness_is_written_by_kinds_with_its_settings(judged):
    document = json.loads((judged / "faithfulness.json").read_text(encoding="utf-8"))
    settings = {name: one._asdict() for name, one in QUICK.items()}
    assert document["settings"] == json.loads(json.dumps(settings))
    assert list(document["kinds"]) == [
        "keys and values, 10 records",
        "documents, 10 records",
        "keys and values, 40 records",
        "sentences",
    ]


@pytest.mark.slow
def test_the_page_of_faithfulness_has_its_numbers_and_a_figure(judged, capsys):
    kinds = json.loads((judged / "faithfulness.json").read_text(encoding="utf-8"))["kinds"].values()
    scores = [kind["measures"]["influence"]["datamodeling score"]["value"] for kind in kinds]
    page = (judged / "faithfulness.md").read_text(encoding="utf-8")
    for text in (page, capsys.readouterr().out):
        assert f"influence {min(scores):.2f} to {max(scores):.2f} for 3 passes" in text
    assert "The 270 weights were learnt here from 8 prompts" in page
    assert "![faithfulness_against_cost.png](faithfulness_against_cost.png)" in page
    assert (judged / "faithfulness_against_cost.svg").exists()


@pytest.mark.slow
def test_attributions_are_judged_for_a_time_which_begins_no_chunk_after_it_but_one(
    tmp_path, explained_by, learnt_in
):
    (tmp_path / "small.gguf").touch()
    judge.judge_attributions(tmp_path / "small.gguf", tmp_path / "more", seconds=(0, 1e9, 0))
    assert [chunks for *_, chunks in explained_by] == [["one"], CHUNKS, ["one"]]
    assert [setting for _, _, setting, *_ in explained_by] == list(SETTINGS.values())
    assert set(learnt_in) == {("network", "tokenizer", "more", (2,))}


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--faithfulness"], "faithfulness: got no model, expected a published model"),
        (["--train", "--faithfulness", *MODEL], "train and faithfulness: got both"),
        (["--faithfulness", "--records", "5", *MODEL], r"records: got \(5,\), expected none"),
        (["--train", "--prompts", "20", *MODEL], "prompts: got 20, expected none with --train"),
        (["--faithfulness", "--prompts", "20", *MODEL], "prompts: got 20, expected none with"),
    ],
)
def test_what_a_study_of_a_model_does_not_read_is_refused(arguments, said, tmp_path):
    out = tmp_path / "none"
    with pytest.raises(ValueError, match=said):
        command([*arguments, "--out", str(out)])
    assert not out.exists()
