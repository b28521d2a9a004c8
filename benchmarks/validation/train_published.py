"""Training a published model further, from a terminal."""

from functools import partial
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.validation.figures import tuned_course, tuned_places
from benchmarks.validation.findings_page import write_findings
from benchmarks.validation.tuned import Tuning, tune
from benchmarks.validation.tuning_page import tuning_page
from lim_jax._checks import AnyPath, as_path
from lim_jax.models import LanguageModel
from lim_jax.results.run_folder import UNFINISHED


def train_published(model: AnyPath, seed: int, folder: AnyPath) -> None:
    """Train a published model further by every arm, and write what came of it.

    Parameters
    ----------
    model
        A folder of weights, or a GGUF file.
    seed
        Of the first run.
    folder
        To write to: tuning.json, tuning.md and figures.
    """
    folder = as_path(folder, "folder")
    language_model = LanguageModel.from_pretrained(model)
    results = tune(
        language_model.network,
        language_model.tokenizer,
        Tuning(),
        seed=seed,
        folder=folder / UNFINISHED,
        progress=partial(tqdm, desc="training", unit="run"),
    )
    figures = tuning_figures(results, language_model.name)
    page = tuning_page(results, language_model.name, [f"{name}.png" for name in figures])
    write_findings(folder, "tuning", results, figures, page)


def tuning_figures(results: dict[str, Any], name: str) -> dict[str, Figure]:
    """Return the figures of what `tune` gives, by the names of their files."""
    return {
        "tuning_by_place": tuned_places(results, name),
        "tuning_by_time": tuned_course(results, name),
    }
