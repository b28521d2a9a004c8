"""The study of influence, retrieval and the remedies, from a terminal."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm

from lim_jax import models, plots, report, validation
from lim_jax._checks import as_path, require
from lim_jax.cli.folder import UNFINISHED, Named, Unnamed, run_folder, save_figure, write_json


def study(
    quick: bool = False,
    full: bool = False,
    model: Unnamed = None,
    prompts: int = 500,
    records: tuple[int, ...] = (10, 20),
    seed: int = 0,
    out: Named = Path("study"),
    overwrite: bool = False,
) -> int:
    """Ask whether influence matters: networks that retrieve, and what the remedies do to them.

    Trains small networks on keys and values whose gold places are seldom in the middle, then
    trains them further by each remedy, from the same weights on the same batches, and compares
    accuracy by place at equal steps and at equal time. Writes study.json, study.md (a page with
    all tables) and figures as PNG and SVG. Interrupted and run again it goes on from what is
    finished.

    Args:
        quick: One network of 8 records, 3 seeds and 3 arms: some three minutes on two cores. This
            is what is run without a choice.
        full: Seven networks, 5 seeds, all arms, ablations, channels, certificates and longer
            contexts: an hour and a half on two cores, of which it keeps little more than one busy.
        model: A folder of weights as published, or a GGUF file: asks it for values of keys in
            text, and nothing is trained. Writes prompted.json, prompted.md and figures.
        prompts: How many the model is asked for each number of records, a multiple of them.
        records: Key-value pairs in a prompt.
        seed: Of the first network.
        out: The folder to write to.
        overwrite: Write over what is in the folder. Without, it must be empty, or of this run.
    """
    require(
        sum((quick, full, model is not None)) <= 1,
        "quick, full and model",
        got="more than one",
        expected="one of them, or none",
        cure="Each is a study of its own: take two folders.",
    )
    if model is not None:
        model = as_path(model, "model")
        arguments = {"model": model, "prompts": prompts, "records": records}
        with run_folder(out, "study", arguments, overwrite=overwrite) as folder:
            _of_model(model, prompts, records, folder)
        return 0
    with run_folder(out, "study", {"full": full, "seed": seed}, overwrite=overwrite) as folder:
        results = validation.validate(
            validation.presets()["full" if full else "quick"],
            seed=seed,
            folder=folder / UNFINISHED,
            progress=partial(tqdm, desc="study", unit="run"),
        )
        write_json(folder / "study.json", results)
        figures = study_figures(results)
        for stem, figure in figures.items():
            save_figure(figure, folder, stem)
        page = report.findings_page(results, [f"{name}.png" for name in figures])
        (folder / "study.md").write_text(page, encoding="utf-8")
        print(page.split("\n\n")[1].replace("**", ""))
        print(f"Wrote study.json, study.md and {len(figures)} figures to {folder}.")
    return 0


def _of_model(model: Path, prompts: int, records: Sequence[int], folder: Path) -> None:
    """Ask a published model."""
    settings = {
        f"{count} records": validation.PromptSetting(records=count, prompts=prompts)
        for count in records
    }
    network, tokenizer = models.load(model), models.read_tokenizer(model)
    found, names = {}, []
    for name, setting in settings.items():
        answers = validation.ask_prompts(
            network,
            tokenizer,
            setting,
            checkpoint=folder / UNFINISHED / f"{setting.records}.jsonl",
            progress=partial(tqdm, desc=name, unit="prompt"),
        )
        result = validation.prompted_study(answers)
        found[name] = {"prompts": prompts, **result.record()}
        names.append(f"prompted_{setting.records}")
        title = f"{model.stem}, {name}, n = {prompts}"
        save_figure(plots.prompted_records(result, title), folder, names[-1])
    write_json(folder / "prompted.json", found)
    page = report.prompted_page(found, model.stem, [f"{name}.png" for name in names])
    (folder / "prompted.md").write_text(page, encoding="utf-8")
    print(page)
    print(f"Wrote prompted.json, prompted.md and {len(names)} figures to {folder}.")


def study_figures(results: dict[str, Any]) -> dict[str, Figure]:
    """The figures of a study's results, by the names of their files."""
    arms, gains = results["arms"], validation.compare_arms(results)
    name = next(iter(results["settings"]))
    figures = {
        "accuracy_by_place": plots.accuracy_by_place(arms, name),
        "influence_by_record": plots.influence_by_record(results["settings"], "before the arms"),
        "rank_correlations": plots.rank_correlations(results["predictions"], "Before the arms"),
        "gains": plots.gains_of_arms(gains, f"Remedies and ablations, {name}"),
        "middle_against_time": plots.middle_against_time(arms, name),
    }
    if results["variants"]:
        title = f"What Algorithm 1 on probes gains and costs, {name}"
        balanced = validation.gains_on_probes(results)
        figures["gain_against_cost"] = plots.gain_against_cost(balanced, title)
    if results["shifts"]:
        figures["position_shift"] = plots.shifted_records(results["shifts"], "Position shift")
    return figures
