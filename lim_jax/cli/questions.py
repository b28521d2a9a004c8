"""A question asked of a model and of documents: which of them its answer comes from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro
from tqdm import tqdm

from lim_jax import models
from lim_jax._checks import as_int, as_path
from lim_jax.attribution.asking import (
    Answer,
    answer_of,
    answered_context,
    question_line,
    with_given,
)
from lim_jax.attribution.files import write_answer
from lim_jax.attribution.measuring import measure
from lim_jax.attribution.methods import METHODS, scored_by_tokens, scores_of_parts
from lim_jax.attribution.time_budget import described_contexts, duration, measuring_seconds
from lim_jax.cli.answers import answer_notes
from lim_jax.cli.arguments import Method, Named
from lim_jax.cli.networks import network_within, open_model, placed_bar
from lim_jax.cli.profiling import require_page, write_profile, write_profile_page
from lim_jax.models.losses import LossName, loss_kind
from lim_jax.prompts.contexts import Context, PromptOnly
from lim_jax.prompts.reading import context_of_line
from lim_jax.results.run_folder import UNFINISHED, finished_before, run_folder

NO_ERROR = (
    "One context has no error. For one, ask by lim-jax profile: of several lines, or with "
    "--shuffle N of the documents in several orders."
)


def ask(
    model: tyro.conf.Positional[Named],
    question: tyro.conf.Positional[str],
    documents: Named,
    method: Method = "mask-gradient",
    chat: bool = True,
    answer: str | None = None,
    answer_tokens: int = 32,
    foil: str = "",
    max_length: int = 4096,
    delta: float = 0.2,
    html: bool = True,
    download: bool = False,
    memory: float | None = None,
    out: Named = Path("answer"),
    overwrite: bool = False,
) -> int:
    """Ask a model a question about documents, and say which of them its answer comes from.

    Prints first which document gave most to the answer, then the answer, and what each document,
    the question and the rest gave. Writes answer.json, with scores.csv where tokens have scores;
    of influence also what profile does of this one context, with its page.

    Args:
        model: A folder of weights as published, a GGUF file, or a public name such as
            HuggingFaceTB/SmolLM2-135M-Instruct; with its tokenizer.
        question: As the model is asked.
        documents: A folder of texts, one document each; or a file of JSON lines, each with "text"
            and maybe "title"; or one text.
        chat: Lay question and documents out by the model's own chat template, where it has one, as
            models that were instructed expect. Without, they stand one after another.
        answer: What is explained; by default what the model answers itself.
        answer_tokens: The most tokens of an answer that the model gives itself.
        foil: What might have been answered instead. What is explained is then why the answer and
            not the foil, else the log odds of the answer's tokens.
        max_length: The most tokens of question and documents; more are refused.
        delta: The width of each boundary region.
        html: Write profile.html, a page with every token shaded; there is none of a foil.
        download: Download the model where a public name is not in the cache. Without, a terminal
            is asked, and anything else refused.
        memory: How many GiB may be used, by default all that is free.
        out: The folder to write to.
        overwrite: Write over what is in the folder. Without, it must be empty, or of this run.
    """
    model, documents = as_path(model, "model"), as_path(documents, "documents")
    loss: LossName = "contrast" if foil else "margin"
    html = html and not foil and method == "influence"
    arguments = {
        "model": model, "question": question, "documents": documents, "method": method,
        "chat": chat, "answer": answer, "answer_tokens": answer_tokens, "foil": foil,
        "max_length": max_length, "delta": delta, "html": html,
    }  # fmt: skip
    if finished_before(out, "ask", arguments, overwrite=overwrite):
        return 0
    with run_folder(out, "ask", arguments, overwrite=overwrite) as folder:
        _require_options(arguments, loss)
        opened = open_model(model, download)
        line = question_line(opened, question, documents, answer=answer, foil=foil, chat=chat)
        read = context_of_line(line, opened.tokenizer, loss, max_length)
        unfinished = folder / UNFINISHED
        at_once = max(read.length + answer_tokens, models.ids.TOKENS_AT_ONCE)
        opened = network_within(opened, memory, at_once, unfinished)
        cost = METHODS[method].cost(len(line.documents) + 2)  # the question and the rest too
        _announce(opened.network, read, html, f"{method}, {cost}", cost.total)
        context = answered_context(opened, read, loss, answer_tokens, tqdm)
        run = {"checkpoint": unfinished, "bar": placed_bar(opened.network, unfinished)}
        measured, asked = None, (opened.network, [context])
        if method == "influence":
            measured = measure(*asked, loss, delta=delta, shown=int(html), **run)
            (energy,) = measured.energies
            scored = scored_by_tokens(context, energy / (energy.sum() or 1))
        else:
            (scored,) = scores_of_parts(*asked, loss_kind(loss).loss, method, **run)
        answered = answer_of(line, context, scored, opened, method, question)
        answered = with_given(answered, opened, loss)
        _print(answered, answer_notes([context], opened))
        write_answer(answered, folder)
        if measured is not None:
            title = f"{opened.name}, {loss}, {described_contexts([context.length])}"
            write_profile(measured, title, folder)
            if html:
                said = {"answer": answered.shown, "findings": [answered.finding, NO_ERROR]}
                write_profile_page(measured, opened, loss, question, folder, **said)
        more = ", tables, figures" * (measured is not None) + " and profile.html" * html
        print(f"Wrote answer.json{more} to {folder}.")
    return 0


def _print(answered: Answer, notes: Sequence[str]) -> None:
    """The finding first, then the answer with notes on it, and the parts."""
    print(f"{answered.finding}\n{NO_ERROR}\n\nQuestion: {answered.question}")
    print(f"Answer: {answered.shown}", *notes, answered.table, sep="\n")


def _require_options(arguments: dict[str, Any], loss: LossName) -> None:
    """Raise before a long computation at options that could not be followed."""
    as_int(arguments["max_length"], "max_length")
    as_int(arguments["answer_tokens"], "answer_tokens")
    require_page(arguments["html"], loss)


def _announce(
    network: models.CausalLM, read: Context | PromptOnly, html: bool, by: str, cost: int
) -> None:
    """Say what will be done, and how long it is likely to take."""
    own, page = isinstance(read, PromptOnly), ", with a page" * html
    seconds = measuring_seconds(network, [read.length], int(html), int(own), cost)
    work = "Answering and measuring" if own else "Measuring"
    tqdm.write(f"{work} {read.length} tokens by {by}{page}: about {duration(seconds)}.")
