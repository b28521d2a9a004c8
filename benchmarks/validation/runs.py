"""The study of influence, retrieval and the remedies, from a terminal."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.validation.figures import (
    accuracy_by_place,
    gain_against_cost,
    gains_of_arms,
    influence_by_record,
    middle_against_time,
    prompted_records,
    rank_correlations,
    shifted_records,
)
from benchmarks.validation.findings_page import findings_page, prompted_page, write_findings
from benchmarks.validation.gains import compare_arms, gains_on_base
from benchmarks.validation.judge_attributions import judge_attributions
from benchmarks.validation.prompted import ask_prompts, prompted_study
from benchmarks.validation.study import presets, validate
from benchmarks.validation.texts import PromptSetting
from benchmarks.validation.train_published import train_published
from lim_jax._checks import AnyPath, as_path, require
from lim_jax.cli.arguments import Out, Unnamed
from lim_jax.models import LanguageModel
from lim_jax.plots.figure_style import save_figure
from lim_jax.results.run_folder import UNFINISHED, finished_before, run_folder
from lim_jax.results.tables import write_json


def study(
    quick: bool = False,
    full: bool = False,
    model: Unnamed = None,
    train: bool = False,
    faithfulness: bool = False,
    prompts: int | None = None,
    records: tuple[int, ...] | None = None,
    seed: int = 0,
    out: Out = Path("study"),
    overwrite: bool = False,
) -> int:
    """Ask whether influence matters: networks that retrieve, and what the remedies do to them.

    Trains small networks on keys and values whose gold places are seldom in the middle, then
    trains them further by each remedy, from the same weights on the same batches, and compares
    accuracy by place at equal steps, operations and time. Writes study.json, study.md (a page with
    all tables) and figures as PNG and SVG. Interrupted and run again it goes on from what is
    finished.

    Args:
        quick: One network of 8 records, 3 seeds and 3 arms: some two minutes on two cores. This
            is what is run without a choice.
        full: Five networks, 5 seeds, all arms, ablations, channels, certificates and longer
            contexts, and many questions in one: some 80 minutes of one core.
        model: A folder of weights as published, or a GGUF file: asks it for values of keys in
            text, and nothing is trained. Writes prompted.json, prompted.md and figures.
        train: With model: trains it further, on answers of records at the edges and towards where
            the evidence stands, and asks it by place. SmolLM2-135M takes half an hour of one core.
            Writes tuning.json, tuning.md and figures.
        faithfulness: With model: asks which record its answers come from. Attributions of its own
            answers are judged by taking records or sentences out of the text. Writes
            faithfulness.json, faithfulness.md and a figure; minutes on an accelerator, a day on
            one core, and with quick, of few small prompts, a quarter of an hour.
        prompts: How many the model is asked for each number of records, a multiple of them: 500.
        records: Key-value pairs in a prompt: 10, and 20.
        seed: Of the first network, or of the first run that trains the model.
        out: The folder to write to.
        overwrite: Write over what is in the folder. Without, it must be empty, or of this run.
    """
    require(
        sum((quick and not faithfulness, full, model is not None)) <= 1,
        "quick, full and model",
        got="more than one",
        expected="one of them, or none",
        cure="Run each study by itself, in a folder of its own.",
    )
    _require_model(model, train, faithfulness, prompts, records)
    if model is not None:
        return _run_model_study(
            as_path(model, "model"),
            train,
            faithfulness,
            quick,
            prompts,
            records,
            seed,
            out,
            overwrite,
        )
    arguments = {"full": full, "seed": seed}
    if finished_before(out, "study", arguments, overwrite=overwrite):
        return 0
    with run_folder(out, "study", arguments, overwrite=overwrite) as folder:
        results = validate(
            presets()["full" if full else "quick"],
            seed=seed,
            folder=folder / UNFINISHED,
            progress=partial(tqdm, desc="study", unit="run"),
        )
        figures = study_figures(results)
        page = findings_page(results, [f"{name}.png" for name in figures])
        write_findings(folder, "study", results, figures, page)
    return 0


def _require_model(
    model: object, train: bool, faithfulness: bool, prompts: object, records: object
) -> None:
    """Refuse a study of a published model without one, and options that it does not read."""
    for name, is_asked in (("train", train), ("faithfulness", faithfulness)):
        require(
            model is not None or not is_asked,
            name,
            got="no model",
            expected="a published model",
            cure=f"Name its weights: --model MODEL --{name}.",
        )
    require(
        not (train and faithfulness),
        "train and faithfulness",
        got="both",
        expected="one of them",
        cure="Run each study by itself, in a folder of its own.",
    )
    for name, value in (("prompts", prompts), ("records", records)):
        require(
            not ((train or faithfulness) and value),
            name,
            got=f"{value}",
            expected=f"none with --{'train' if train else 'faithfulness'}",
            cure="Leave it out: the prompts of this study are always the same.",
        )


def _run_model_study(
    model: Path,
    train: bool,
    faithfulness: bool,
    quick: bool,
    prompts: int | None,
    records: Sequence[int] | None,
    seed: int,
    out: AnyPath,
    overwrite: bool,
) -> int:
    """Run one of the three studies of a published model, in its folder."""
    if train:
        arguments = {"model": model, "train": True, "seed": seed}
        run = partial(train_published, model, seed)
    elif faithfulness:
        arguments = {"model": model, "faithfulness": True, "quick": quick}
        run = partial(judge_attributions, model, quick=quick)
    else:
        count = 500 if prompts is None else prompts
        records = records or (10, 20)
        arguments = {"model": model, "prompts": count, "records": records}
        run = partial(_ask, model, count, records)
    if finished_before(out, "study", arguments, overwrite=overwrite):
        return 0
    with run_folder(out, "study", arguments, overwrite=overwrite) as folder:
        run(folder)
    return 0


def _ask(model: Path, prompts: int, records: Sequence[int], folder: Path) -> None:
    """Ask a published model for values of keys."""
    settings = {
        f"{count} records": PromptSetting(records=count, prompts=prompts) for count in records
    }
    language_model = LanguageModel.from_pretrained(model)
    results = {}
    names = []
    for name, setting in settings.items():
        answers = ask_prompts(
            language_model.network,
            language_model.tokenizer,
            setting,
            checkpoint=folder / UNFINISHED / f"{setting.records}.jsonl",
            progress=partial(tqdm, desc=name, unit="prompt"),
        )
        result = prompted_study(answers)
        results[name] = {"prompts": prompts, **result.record()}
        names.append(f"prompted_{setting.records}")
        title = f"{language_model.name}, {name}, n = {prompts}"
        save_figure(prompted_records(result, title), folder, names[-1])
    write_json(folder / "prompted.json", results)
    page = prompted_page(results, language_model.name, [f"{name}.png" for name in names])
    (folder / "prompted.md").write_text(page, encoding="utf-8")
    print(page)
    print(f"Wrote prompted.json, prompted.md and {len(names)} figures to {folder}.")


def study_figures(results: dict[str, Any]) -> dict[str, Figure]:
    """Draw the figures of a study's results; return them by the names of their files."""
    arms = results["arms"]
    gains = compare_arms(results)
    name = next(iter(results["settings"]))
    figures = {
        "accuracy_by_place": accuracy_by_place(arms, name),
        "influence_by_record": influence_by_record(results["settings"], "before the arms"),
        "rank_correlations": rank_correlations(results["predictions"], "Before the arms"),
        "gains": gains_of_arms(gains, f"Remedies and ablations, {name}"),
        "middle_against_time": middle_against_time(arms, name),
    }
    if results["variants"]:
        title = f"What remedies gain and cost, {name}"
        on_base = gains_on_base(results)
        figures["gain_against_cost"] = gain_against_cost(on_base, title)
    if results["shifts"]:
        figures["position_shift"] = shifted_records(results["shifts"], "Position shift")
    return figures
