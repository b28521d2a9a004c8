"""Which record a published model's answers come from, from a terminal."""

from functools import partial
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.validation.faithful_figure import faithfulness_against_cost
from benchmarks.validation.faithfulness import (
    FaithfulnessSetting,
    explain_prompts,
    faithfulness_study,
)
from benchmarks.validation.faithfulness_page import faithfulness_page
from benchmarks.validation.findings_page import write_findings
from lim_jax._checks import AnyPath, as_path
from lim_jax.models import LanguageModel
from lim_jax.results.run_folder import UNFINISHED


def judge_attributions(model: AnyPath, prompts: int, folder: AnyPath) -> None:
    """Let a model answer prompts, and judge attributions of its answers by taking records out."""
    folder = as_path(folder, "folder")
    setting = FaithfulnessSetting(prompts=prompts)
    asked = LanguageModel.from_pretrained(model)
    found = explain_prompts(
        asked.network,
        asked.tokenizer,
        setting,
        end=asked.end_ids,
        checkpoint=folder / UNFINISHED / "faithfulness.jsonl",
        progress=partial(tqdm, desc="faithfulness", unit="prompt"),
    )
    kinds = {kind: one.record() for kind, one in faithfulness_study(found, setting).items()}
    results = {"setting": setting._asdict(), "kinds": kinds}
    figures = faithfulness_figures(results, asked.name)
    page = faithfulness_page(results, asked.name, [f"{name}.png" for name in figures])
    write_findings(folder, "faithfulness", results, figures, page)


def faithfulness_figures(results: dict[str, Any], name: str) -> dict[str, Figure]:
    """The figure of what `judge_attributions` writes as JSON, by the name of its file."""
    title = f"Attributions of {name}'s answers"
    return {"faithfulness_against_cost": faithfulness_against_cost(results["kinds"], title)}
