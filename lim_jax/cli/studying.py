"""The study of the remedies on networks that retrieve, from a terminal."""

import shutil
from functools import partial
from pathlib import Path

from tqdm import tqdm

from lim_jax import plots, report, studies
from lim_jax._checks import require
from lim_jax.cli.folder import UNFINISHED, run_folder, save_figure, write_json


def study(
    quick: bool = False,
    full: bool = False,
    seed: int = 0,
    out: Path = Path("study"),
    overwrite: bool = False,
) -> int:
    """Ask whether influence matters: networks that retrieve, and what the remedies do to them.

    Trains small networks on keys and values whose gold places are seldom in the middle, then
    trains them further by each remedy, from the same weights on the same batches, and compares
    accuracy by place at equal steps and at equal time. Writes study.json, study.md (a page with
    all tables) and figures as PNG and SVG. Interrupted and run again it goes on from what is
    finished.

    Args:
        quick: One network of 8 records, 3 seeds and 3 arms: some three minutes on two cores.
            This is what is run without a choice.
        full: Five networks, 5 seeds, all arms, ablations, channels and certificates: less than an
            hour on two cores.
        seed: Of the first network.
        out: The folder to write to.
        overwrite: Write over what is in the folder. Without, it must be empty, or of this run.
    """
    require(
        not (quick and full),
        "quick and full",
        got="both",
        expected="one of them, or neither",
        cure="--full runs more of the same.",
    )
    arguments = {"full": full, "seed": seed}
    with run_folder(out, "study", arguments, overwrite=overwrite) as folder:
        unfinished = folder / UNFINISHED
        results = studies.validate(
            studies.presets()["full" if full else "quick"],
            seed=seed,
            folder=unfinished,
            progress=partial(tqdm, desc="study", unit="run"),
        )
        write_json(folder / "study.json", results)
        names = _draw(results, folder)
        page = report.findings_page(results, [f"{name}.png" for name in names])
        (folder / "study.md").write_text(page, encoding="utf-8")
        print(page.split("\n\n")[1].strip("*"))
        print(f"Wrote study.json, study.md and {len(names)} figures to {folder}.")
        shutil.rmtree(unfinished, ignore_errors=True)
    return 0


def _draw(results: dict, folder: Path) -> list[str]:
    arms, gains = results["arms"], studies.compare_arms(results)
    name = next(iter(results["settings"]))
    figures = {
        "accuracy_by_place": plots.accuracy_by_place(arms, name),
        "influence_by_record": plots.influence_by_record(results["settings"], "before the arms"),
        "gains": plots.gains_of_arms(gains, f"Remedies and ablations, {name}"),
        "middle_against_time": plots.middle_against_time(arms, name),
    }
    for stem, figure in figures.items():
        save_figure(figure, folder, stem)
    return list(figures)
