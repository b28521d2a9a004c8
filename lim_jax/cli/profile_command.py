"""Which positions a model of your own uses on data of your own, from a terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tyro
from tqdm import tqdm

from lim_jax import checkpoints, models, plots, report
from lim_jax._checks import as_path, require
from lim_jax.attribution.files import write_measured, write_scores
from lim_jax.attribution.mean_scores import cost_of_contexts, score_contexts, scores_finding
from lim_jax.attribution.method import Cost, Run
from lim_jax.attribution.methods.method_table import MethodName, method_named
from lim_jax.attribution.parts import context_names
from lim_jax.attribution.profile_run import SHOWN, Measured, measure, require_fitting
from lim_jax.attribution.signed_profile import SignedProfile, signed_profile
from lim_jax.cli.answers import answer_contexts, own_answer_lines
from lim_jax.cli.arguments import (
    Compute,
    Count,
    CountOrZero,
    Data,
    Download,
    FoilText,
    Loss,
    Memory,
    Model,
    Out,
    Overwrite,
    PartsMethod,
)
from lim_jax.cli.networks import estimated_time, network_within, open_model, placement_bar
from lim_jax.cli.run_in_words import describe_contexts
from lim_jax.cli.shuffle_command import (
    shuffled_findings,
    shuffled_lines,
    shuffled_table,
    write_shuffled,
)
from lim_jax.density.common_grid import CELLS
from lim_jax.explanations.influence_table import influence_table
from lim_jax.grid.cells import token_grid
from lim_jax.grid.partition import boundary_regions
from lim_jax.models import CausalLM, LanguageModel
from lim_jax.models.loss_kinds import LOSSES, LossName, loss_kind
from lim_jax.prompts.contexts import Context
from lim_jax.prompts.document_orders import ShuffledContexts
from lim_jax.prompts.prompt_files import read_prompts, require_data
from lim_jax.report.page import require_page_packages
from lim_jax.report.sentences import influence_finding, record_lines, records_finding, score_lines
from lim_jax.results.run_folder import UNFINISHED, finished_before, run_folder
from lim_jax.results.two_way import two_way_cells

NO_DENSITY = "Leave --method out for densities, indices, figures, orders and pages."
GRADIENT = Cost(1, 1)  # of a context's influence


def profile(
    model: tyro.conf.Positional[Model],
    data: Data,
    loss: Loss = "next-token",
    method: PartsMethod = None,
    delta: float = 0.2,
    max_length: Count = 512,
    shuffle: CountOrZero = 0,
    signed: bool = False,
    answer_tokens: Count = 32,
    foil: FoilText = "",
    html: bool = False,
    download: Download = False,
    memory: Memory = None,
    compute: Compute = None,
    out: Out = Path("profile"),
    overwrite: Overwrite = False,
) -> int:
    """Say which positions of your data a model uses: densities with errors, tokens and records.

    Prints what was found in a sentence, the share of each named record, then the density over the
    left, the middle and the right and its indices. Writes profile.json, profile.csv (position,
    density, error), tokens.csv, records.csv, contexts.csv and records_by_context.csv, contexts.npz
    for lim-jax compare, and figures as PNG and SVG. With a method it scores named parts instead:
    profile.json, records.csv, records_by_context.csv and scores.csv. Interrupted and run again it
    goes on after the last context that was answered or measured.

    Args:
        data: A text, PDF or .docx; or JSON lines (a file named .jsonl), each with "text"; "prompt";
            "documents" and "question"; or "messages" of a chat; all but a text with "answer" and
            maybe "foil". Text and prompt may have "spans": [[start, end, "name"], ...] in
            characters.
        delta: The width of each boundary region.
        max_length: The most tokens of a context: a text is cut, a longer line is refused.
        shuffle: Lay the documents of each line out in so many orders, and say what is due to the
            place and what to the document; as many orders as documents give every document every
            place once. Writes shuffle.json, two_way.csv, by_place.csv, by_document.csv, orders.csv.
        signed: Measure the signed profile too: by how much the loss falls as attention reads more
            of each position, as columns of profile.csv and a figure, signed.
        answer_tokens: The most tokens of an answer that the model gives itself.
        foil: For --loss contrast, what might have been answered instead, of lines without "foil".
        html: Write profile.html too, a page of the first five contexts with every token shaded,
            which takes a longer look at each: by channel, hops, layer and head.
    """
    model = as_path(model, "model")
    data = as_path(data, "data")
    arguments = {
        "model": model, "data": data, "loss": loss, "method": method, "delta": delta,
        "max_length": max_length, "shuffle": shuffle, "signed": signed,
        "answer_tokens": answer_tokens, "foil": foil, "html": html, "compute": compute,
    }  # fmt: skip
    if finished_before(out, "profile", arguments, overwrite=overwrite):
        return 0
    require(
        shuffle != 1,
        "shuffle",
        got="1",
        expected="0 for none, or at least 2",
        cure="Take more: one order does not tell places from documents.",
    )
    boundary_regions(token_grid(CELLS), delta)
    _require_options(loss, method, foil, html=html, shuffle=shuffle > 0, signed=signed)
    require_data(data, loss, foil)
    with run_folder(out, "profile", arguments, overwrite=overwrite) as folder:
        opened = open_model(model, download, compute)
        lines = shuffled_lines(data, opened, loss, max_length, shuffle, foil) if shuffle else []
        shuffled = [context for line in lines for context in line.contexts]
        prompts = shuffled or read_prompts(data, opened, loss, max_length, foil)
        unfinished = folder / UNFINISHED
        at_once = max(models.ids.TOKENS_AT_ONCE, *(prompt.length for prompt in prompts))
        opened = network_within(opened, memory, at_once, unfinished)
        contexts = answer_contexts(prompts, opened, loss, answer_tokens, unfinished)
        require_fitting(opened.network, contexts)
        described = describe_contexts([context.length for context in contexts], shuffle)
        contexts_on_page = min(SHOWN, len(contexts)) if html else 0
        _announce(opened.network, contexts, method, contexts_on_page, described, signed)
        task = ProfileTask(opened, data, contexts, lines, loss, described)
        heading = f"== {model} on {data}: {described}, loss {loss} =="
        print(heading, *own_answer_lines(prompts, contexts, opened), sep="\n")
        run = Run(unfinished, placement_bar(opened.network, unfinished))
        if method is None:
            profile_densities(
                task, run, folder, delta=delta, signed=signed, contexts_on_page=contexts_on_page
            )
        else:
            profile_parts(task, run, folder, method)
    return 0


class ProfileTask(NamedTuple):
    """What is profiled: a model, contexts of a file, and what is asked of them.

    Of lines whose documents are shuffled `orders` has each one's contexts, which are among
    `contexts`; `described` says of how many contexts and tokens these are.
    """

    model: LanguageModel
    data: Path
    contexts: Sequence[Context]
    orders: Sequence[ShuffledContexts]
    loss: LossName
    described: str


def profile_densities(
    task: ProfileTask, run: Run, folder: Path, *, delta: float, signed: bool, contexts_on_page: int
) -> None:
    """Measure densities, print what was found and write it, `contexts_on_page` on a page too."""
    network = task.model.network
    result = measure(
        network,
        task.contexts,
        task.loss,
        delta=delta,
        orders=task.orders,
        contexts_on_page=contexts_on_page,
        checkpoint=run.checkpoint,
        bar=run.bar,
    )
    by_sign = None
    if signed:
        by_sign = signed_profile(
            network,
            task.contexts,
            task.loss,
            delta=delta,
            orders=task.orders,
            checkpoint=run.checkpoint,
            bar=run.bar,
        )
    print(_words(result))
    if by_sign is not None:
        print(by_sign)
    title = f"{task.model.name}, {task.loss}, {task.described}"
    write_profile(result, title, folder, by_sign)
    if contexts_on_page:
        title = f"What does {task.model.name} use of {task.data.name}?"
        write_profile_page(result, task.model, task.loss, title, folder)
    print(f"Wrote profile.json, tables and figures to {folder}.")


def profile_parts(task: ProfileTask, run: Run, folder: Path, method: MethodName) -> None:
    """Score the named parts by a method, print what was found, and write it."""
    result = score_contexts(task.model.network, task.contexts, task.loss, method, run)
    print(scores_finding(result), *score_lines(result.records), sep="\n")
    write_scores(result, task.loss, folder)
    print(f"Wrote profile.json and tables to {folder}. {NO_DENSITY}")


def _announce(
    network: CausalLM,
    contexts: Sequence[Context],
    method: MethodName | None,
    contexts_on_page: int,
    words: str,
    signed: bool,
) -> None:
    """Say what will be measured, and how long it is likely to take."""
    cost = GRADIENT if method is None else cost_of_contexts(contexts, method)
    passes = cost.total
    if signed:
        passes += GRADIENT.total  # a signed profile is another gradient
    sign = ", and signed" if signed else ""
    page = f", with a page of the first {contexts_on_page}" if contexts_on_page else ""
    lengths = [context.length for context in contexts]
    takes = estimated_time(network, lengths, contexts_on_page, cost=passes)
    tqdm.write(
        f"Measuring {words} by {method or 'influence'}, {cost} each{sign}{page}: {takes} "
        "The bar shows the time that is left."
    )


def _require_options(
    loss: LossName, method: str | None, foil: str, *, html: bool, shuffle: bool, signed: bool
) -> None:
    """Raise unless the options go together, and the packages of a page are installed."""
    kind = loss_kind(loss)
    if html:
        require_page_packages()
        require(
            kind.one_pass,
            "html",
            got=f"a page of --loss {loss}",
            expected="a loss of one pass",
            cure=(
                "Pass --no-html: a page explains a single forward pass, and this loss has several."
            ),
        )
    for name, option in (("html", html), ("shuffle", shuffle), ("signed", signed)):
        require(
            not option or method is None,
            name,
            got=f"--{name} with --method {method}",
            expected="one of the two",
            cure=NO_DENSITY,
        )
    if method is not None:
        method_named(method, foil=kind.needs_foil)  # refuses a foil of which it says nothing
    takes = " or ".join(f"--loss {name}" for name, kind in LOSSES.items() if kind.needs_foil)
    require(
        not foil or kind.needs_foil,
        "foil",
        got=f"{foil!r} with --loss {loss}",
        expected=takes,
        cure="Leave --foil out, or take that loss: no other reads a foil.",
    )


def _findings(result: Measured) -> list[str]:
    """Return the sentences on shuffled documents, on named parts and on positions."""
    shuffled = [] if result.shuffled is None else shuffled_findings(result.shuffled)
    positions = influence_finding(result.influence, result.without_queries)
    return [line for line in (*shuffled, records_finding(result.records), positions) if line]


def _words(result: Measured) -> str:
    """Return the findings and the tables as text."""
    lines = [
        *_findings(result),
        "" if result.shuffled is None else shuffled_table(result.shuffled),
        *record_lines(result.records),
        influence_table(result.influence, result.without_queries),
    ]
    return "\n".join(line for line in lines if line)


def write_profile(
    result: Measured, title: str, folder: Path, signed: SignedProfile | None = None
) -> None:
    """Write profile.json, tables and figures."""
    write_measured(result, signed, folder)
    if result.shuffled is not None:
        write_shuffled(result.shuffled, result.by_id.names, title, folder)
    for name, influence in result.influences.items():
        plots.figure_style.save_figure(plots.influence_profile(influence, title), folder, name)
    if signed is not None:
        figure = plots.profile.signed_density(
            signed.density, signed.regions, signed.contexts, title
        )
        plots.figure_style.save_figure(figure, folder, "signed")


def write_profile_page(
    result: Measured,
    model: LanguageModel,
    loss: LossName,
    title: str,
    folder: Path,
) -> None:
    """Write profile.html of the first contexts, under the findings of `profile`."""
    accounts = result.accounts
    shuffled = result.shuffled
    contexts = result.contexts[: len(accounts)]
    # As the text was read, which the tables have too; of the id after it there are no letters.
    texts = [
        [*context.tokens, checkpoints.texts_of_ids(context.window, model.tokenizer)[-1]]
        for context in contexts
    ]
    page = report.influence_page(
        result.influence,
        accounts,
        texts,
        title=title,
        findings=_findings(result),
        without_queries=result.without_queries,
        about={"model": model.name, "loss": loss_kind(loss).words},
        records=result.records,
        names=context_names(contexts, 1 if shuffled is None else shuffled.effects.orders),
        measured=len(result.contexts),
        spans=[context.spans for context in contexts],
        by_place=[] if shuffled is None else two_way_cells(shuffled.effects, shuffled.names),
    )
    page.save(folder / "profile.html")
