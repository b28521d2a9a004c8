"""Which part a published model's answers come from, from a terminal.

``python -m benchmarks.validation.judge_attributions MODEL FOLDER`` does what ``python -m
benchmarks.validation --model MODEL --faithfulness`` does, in a folder that is taken as it is.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import tyro
from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.validation.faithful_figure import faithfulness_against_cost
from benchmarks.validation.faithfulness import AT2, QUICK, SETTINGS, explain_prompts
from benchmarks.validation.faithfulness_page import faithfulness_page
from benchmarks.validation.findings_page import write_findings
from benchmarks.validation.judged_faithfulness import Run, faithfulness_study
from benchmarks.validation.learnt_heads import learn_heads
from lim_jax.models import LanguageModel


def judge_attributions(
    model: tyro.conf.Positional[Path],
    folder: tyro.conf.Positional[Path],
    quick: bool = False,
    seconds: tuple[float, ...] = (),
) -> None:
    """Let a model answer prompts, and judge attributions of its answers by taking parts out.

    What was found of each prompt is stored in the folder, some prompts at a time: called again it
    goes on.

    Args:
        model: A folder of weights as published, or a GGUF file.
        folder: To write to.
        quick: Eight small prompts of each setting.
        seconds: After how many of each setting no more prompts are begun; all of them without.
    """
    language_model = LanguageModel.from_pretrained(model)
    runs = {}
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, setting) in enumerate((QUICK if quick else SETTINGS).items()):
        with jax.default_matmul_precision(setting.precision):
            prompts, took = explain_prompts(
                language_model.network,
                language_model.tokenizer,
                setting,
                end=language_model.end_ids,
                checkpoint=folder / f"faithfulness_of_{name.replace(' ', '_')}.jsonl",
                progress=_within(name, seconds[number] if seconds else float("inf")),
            )
        runs[name] = Run(setting, prompts, took)
    with jax.default_matmul_precision("highest"):
        runs, learnt = learn_heads(
            language_model.network,
            language_model.tokenizer,
            runs,
            folder=folder,
            end=language_model.end_ids,
            progress=partial(tqdm, desc=AT2, unit="chunk"),
        )
    results = faithfulness_study(runs) | {"learnt": learnt}
    figures = faithfulness_figures(results, language_model.name)
    page = faithfulness_page(results, language_model.name, [f"{name}.png" for name in figures])
    write_findings(folder, "faithfulness", results, figures, page)


def _within(name: str, seconds: float) -> Callable[[list], Iterable]:
    """Return a bar that gives chunks until the time is over, at least one."""

    def chunks(of: list) -> Iterator:
        """Yield chunks until the time is over, the first one always."""
        start = time.perf_counter()
        for chunk in tqdm(of, desc=name, unit="chunk"):
            if chunk != of[0] and time.perf_counter() - start > seconds:
                return
            yield chunk

    return chunks


def faithfulness_figures(results: dict[str, Any], name: str) -> dict[str, Figure]:
    """Return the figure of what `judge_attributions` writes as JSON, by the name of its file."""
    title = f"Attributions of {name}'s answers"
    return {"faithfulness_against_cost": faithfulness_against_cost(results["kinds"], title)}


if __name__ == "__main__":
    tyro.cli(judge_attributions)
