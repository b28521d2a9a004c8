"""Which positions a language model uses, and why, from a terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import tyro
from tqdm import tqdm

from lim_jax._checks import as_path, require
from lim_jax.attribution.explanation_run import (
    ContextBatch,
    batch_contexts,
    count_recorded_contexts,
    explain_contexts,
    pair_with_loss,
)
from lim_jax.attribution.heads import HeadOfPart, strongest_heads
from lim_jax.attribution.profile_run import require_fitting
from lim_jax.attribution.time_budget import (
    FIRST_LOOK,
    NetworkAndLoss,
    TimeBudget,
    choose_contexts,
)
from lim_jax.cli.answers import answer_contexts, own_answer_lines
from lim_jax.cli.arguments import (
    Compute,
    Count,
    CountOrNone,
    CountOrZero,
    Data,
    Download,
    ExplainedLoss,
    Memory,
    Model,
    Out,
    Overwrite,
    Seed,
)
from lim_jax.cli.explain_output import report_explanation, write_explained_page
from lim_jax.cli.networks import network_within, open_model
from lim_jax.cli.run_in_words import describe_contexts, duration
from lim_jax.density.common_grid import CELLS, common_regions
from lim_jax.explanations import Explanation
from lim_jax.explanations.certificates import Judged
from lim_jax.grid.cells import token_grid
from lim_jax.grid.partition import Regions, boundary_regions
from lim_jax.models import CausalLM, LanguageModel
from lim_jax.models.loss_kinds import LossName
from lim_jax.probes import Estimate
from lim_jax.prompts.contexts import Context, PromptOnly
from lim_jax.prompts.prompt_files import read_prompts, require_data
from lim_jax.report.page import require_page_packages
from lim_jax.results.run_folder import UNFINISHED, finished_before, run_folder

MOST = 1024  # contexts that are read at most
ANSWER = 32  # the most tokens of an answer that the model gives itself


def explain(
    model: tyro.conf.Positional[Model],
    data: Data,
    loss: ExplainedLoss = "next-token",
    max_length: Count = 512,
    contexts: CountOrNone = None,
    delta: float = 0.2,
    depth: CountOrZero = 0,
    certificates: Judged = "deciding",
    seed: Seed = 0,
    html: bool = False,
    download: Download = False,
    memory: Memory = None,
    compute: Compute = None,
    out: Out = Path("explanation"),
    overwrite: Overwrite = False,
) -> int:
    """Say which positions a language model uses, and why: density, channels, hops, certificates.

    Says first what it will take. Prints what was found, and writes explanation.json,
    explanation.csv by position, and figures as PNG and SVG. A contrast takes two passes and is not
    explained. Interrupted and run again it goes on from what is finished.

    Args:
        data: A text, PDF or .docx, cut into contexts; or JSON lines (a file named .jsonl), each
            with "text", "prompt", "documents" and "question", or "messages" of a chat, each a
            context, whole. Of a line without "answer" the model's own is explained, unless the loss
            asks for none.
        max_length: The most tokens of a context: a text is cut, a longer line is refused.
        contexts: How many contexts to average over. By default as many as make two standard errors
            of LIM less than 0.1, or as are explained in a minute or so; at least two, if there
            are.
        delta: The width of each boundary region.
        depth: The depth of the states that are judged: 0 is the input, k that after k layers.
        certificates: deciding stops where a criterion of the paper is seen to be vacuous; all
            computes its numbers all the same, and cone masses, which takes many times as long.
        seed: For the choice of contexts.
        html: Write explanation.html too, a page of the first five contexts with every token
            shaded, which takes a longer look at each.
    """
    model = as_path(model, "model")
    data = as_path(data, "data")
    arguments = {
        "model": model,
        "data": data,
        "loss": loss,
        "max_length": max_length,
        "contexts": contexts,
        "delta": delta,
        "depth": depth,
        "certificates": certificates,
        "seed": seed,
        "html": html,
        "compute": compute,
    }
    if finished_before(out, "explain", arguments, overwrite=overwrite):
        return 0
    _require_options(delta, html)
    require_data(data, loss)
    choice_key, explanation_key = jax.random.split(jax.random.key(seed))
    with run_folder(out, "explain", arguments, overwrite=overwrite) as folder, jax.enable_x64(True):
        most = MOST if contexts is None else contexts
        unfinished = folder / UNFINISHED
        opened = open_model(model, download, compute)
        lines = read_prompts(data, opened, loss, max_length)
        _require_within(opened.network, len(lines), contexts, depth)
        order = jax.random.permutation(choice_key, len(lines))[:most].tolist()
        chosen = [lines[number] for number in order]
        opened = _place_weights(opened, chosen, memory, unfinished)
        answers = answer_contexts(chosen, opened, loss, ANSWER, unfinished)
        print("".join(f"{line}\n" for line in own_answer_lines(chosen, answers, opened)), end="")
        require_fitting(opened.network, answers)
        batch = batch_contexts(answers)
        # The clock may choose another number when the run is taken up: the first one holds.
        count = contexts or count_recorded_contexts(unfinished)
        task, budget = _choose_task(opened, batch, loss, delta, count)
        print(announcement(task.title, task.batch.lengths, budget, certificates), flush=True)
        result, mass = explain_contexts(
            task.network_and_loss,
            task.batch.windows,
            task.regions,
            explanation_key,
            depth,
            certificates,
            unfinished,
            tqdm,
        )
        heads = strongest_heads(task.network_and_loss, task.batch, tqdm)
        described = describe_contexts(task.batch.lengths)
        print(f"\n== {model} on {data}: {described}, loss {loss} ==")
        _write_explanation(task, result, mass, heads, folder, html=html)
    return 0


class ExplainTask(NamedTuple):
    """What is explained: a model under a loss, on the contexts that were chosen."""

    opened: LanguageModel
    loss: LossName
    network_and_loss: NetworkAndLoss
    batch: ContextBatch
    regions: Regions

    @property
    def title(self) -> str:
        """The model's name and the loss, which stand over figures."""
        return f"{self.opened.name}, {self.loss}"


def _place_weights(
    opened: LanguageModel,
    lines: Sequence[Context | PromptOnly],
    memory: float | None,
    unfinished: Path,
) -> LanguageModel:
    """Read the model's weights where they fit beside the lines that are first looked at."""
    tokens = min(FIRST_LOOK, len(lines)) * max(line.length for line in lines)
    return network_within(opened, memory=memory, tokens=tokens, unfinished=unfinished)


def _choose_task(
    opened: LanguageModel, batch: ContextBatch, loss: LossName, delta: float, count: int | None
) -> tuple[ExplainTask, TimeBudget]:
    """Choose the first `count` contexts, or for None as many as the clock and the errors say."""
    regions = common_regions(batch.lengths, delta, opened.network.embedding.dtype)
    network_and_loss = pair_with_loss(opened.network, batch.contexts, loss)
    budget = choose_contexts(network_and_loss, batch.windows, regions, count, batch.named)
    chosen = slice(budget.contexts)
    task = ExplainTask(
        opened,
        loss,
        network_and_loss._replace(weights=network_and_loss.weights[chosen]),
        ContextBatch(batch.windows[chosen], batch.contexts[chosen]),
        regions,
    )
    return task, budget


def _write_explanation(
    task: ExplainTask,
    result: Explanation,
    mass: Estimate | None,
    heads: Sequence[HeadOfPart],
    folder: Path,
    *,
    html: bool,
) -> None:
    """Print what was found, and write its numbers, its figures and, with `html`, its page."""
    report_explanation(result, mass, heads, task.batch.contexts, task.title, folder)
    if html:
        write_explained_page(
            result, task.network_and_loss, task.batch, task.opened, task.loss, folder
        )


def _require_options(delta: float, html: bool) -> None:
    """Raise early unless the regions fit, and a page's packages exist."""
    boundary_regions(token_grid(CELLS), delta)
    if html:
        require_page_packages()


def _require_within(network: CausalLM, lines: int, contexts: int | None, depth: int) -> None:
    """Raise ValueError for more contexts than the data have, or a depth that is no layer's."""
    require(
        contexts is None or contexts <= lines,
        "contexts",
        got=f"{contexts}",
        expected=f"at most {lines}, those of the data",
        cure="Give more data, or leave --contexts out.",
    )
    last = network.flow.depth - 1
    require(
        depth <= last,
        "depth",
        got=f"{depth}",
        expected=f"a number of layers, from 0 to {last}",
        cure="Take one of these: 0 is the input, and k the states after k layers.",
    )


def announcement(
    title: str, lengths: Sequence[int], budget: TimeBudget, certificates: Judged
) -> str:
    """Say what will be done on contexts of these lengths, and how long it is likely to take."""
    what = "certificates that can decide"
    seconds = budget.seconds
    if certificates == "all":
        what = "all certificates and cone masses"
        seconds += budget.certificate_seconds
    lines = [
        f"Explaining {title}, on {describe_contexts(lengths)}: "
        f"density, channels, hops, heads, {what}: about {duration(seconds)}."
    ]
    if len(set(lengths)) > 1:
        lines.append("Certificates that compare two positions need contexts of one length.")
    if certificates != "all":
        more = duration(budget.certificate_seconds)
        lines.append(f"--certificates all would take about {more} more.")
    return " ".join(lines)
