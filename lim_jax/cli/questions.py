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
    parts_of_answer,
    question_line,
    scores_of_answer,
)
from lim_jax.attribution.files import write_answer
from lim_jax.attribution.matrix import PartScores
from lim_jax.attribution.measuring import Measured, measure
from lim_jax.attribution.methods import METHODS, Scored, scored_by_tokens
from lim_jax.attribution.segments import AnswerParts, DocumentParts, answer_segments
from lim_jax.attribution.time_budget import described_contexts
from lim_jax.cli.answers import answer_notes
from lim_jax.cli.arguments import Compute, Download, Memory, Method, Model, Named, Out, Overwrite
from lim_jax.cli.networks import foretold, network_within, open_model, placed_bar
from lim_jax.cli.profiling import write_profile, write_profile_page
from lim_jax.models.losses import LossName
from lim_jax.prompts.contexts import Context, PromptOnly
from lim_jax.prompts.reading import context_of_line
from lim_jax.report.page import require_page_packages
from lim_jax.report.sources import answer_page
from lim_jax.results.run_folder import UNFINISHED, finished_before, run_folder

NO_ERROR = (
    "One context has no error. For one, ask by lim-jax profile: of several lines, or with "
    "--shuffle N of the documents in several orders."
)
SENTENCE = 16  # tokens of one, so far as it is not known yet


def ask(
    model: tyro.conf.Positional[Model],
    question: tyro.conf.Positional[str],
    documents: Named,
    method: Method = "mask-gradient",
    parts: AnswerParts | None = None,
    document_parts: DocumentParts = "sentences",
    chat: bool = True,
    answer: str | None = None,
    answer_tokens: int = 32,
    foil: str = "",
    max_length: int = 4096,
    delta: float = 0.2,
    html: bool = True,
    download: Download = False,
    memory: Memory = None,
    compute: Compute = None,
    out: Out = Path("answer"),
    overwrite: Overwrite = False,
) -> int:
    """Ask a model a question about documents, and say which of them its answer comes from.

    Prints first which document gave most to the answer, then the answer, and what each document,
    the question and the rest gave. Writes answer.json, with scores.csv where tokens have scores;
    of the mask gradient and path also matrix.csv, of parts of the answer by parts of the documents,
    and answer.html, where a click on a part of the answer shades what it came from; of influence
    also what profile does of this one context, with its page.

    Args:
        question: As the model is asked.
        documents: A folder of texts, one document each; or a file of JSON lines, each with "text"
            and maybe "title"; or one text.
        parts: Parts of the answer that the mask gradient and path score, each by a backward pass
            for each gradient: the whole answer, alone with a foil; every sentence; or every token.
        document_parts: Parts of the documents in matrix.csv.
        chat: Lay question and documents out by the model's own chat template, where it has one, as
            models that were instructed expect. Without, they stand one after another.
        answer: What is explained; by default what the model answers itself.
        answer_tokens: The most tokens of an answer that the model gives itself.
        foil: What might have been answered instead. What is explained is then why the answer and
            not the foil, else the log odds of the answer's tokens.
        max_length: The most tokens of question and documents; more are refused.
        delta: The width of each boundary region.
        html: Write the page: of the mask gradient and path answer.html, of influence profile.html,
            with every token shaded, which there is not of a foil; there is none of other methods.
    """
    model, documents = as_path(model, "model"), as_path(documents, "documents")
    loss: LossName = "contrast" if foil else "margin"
    parts = parts_of_answer(method, foil, parts)
    html = html and (parts is not None or (method == "influence" and not foil))
    arguments = {
        "model": model, "question": question, "documents": documents, "method": method,
        "parts": parts, "document_parts": document_parts, "chat": chat, "answer": answer,
        "answer_tokens": answer_tokens, "foil": foil, "max_length": max_length, "delta": delta,
        "html": html, "compute": compute,
    }  # fmt: skip
    if finished_before(out, "ask", arguments, overwrite=overwrite):
        return 0
    with run_folder(out, "ask", arguments, overwrite=overwrite) as folder:
        as_int(max_length, "max_length")  # before a long computation
        as_int(answer_tokens, "answer_tokens")
        if html:
            require_page_packages()
        opened = open_model(model, download, compute)
        line = question_line(opened, question, documents, answer=answer, foil=foil, chat=chat)
        read = context_of_line(line, opened.tokenizer, loss, max_length)
        at_once = max(read.length + answer_tokens, models.ids.TOKENS_AT_ONCE)
        opened = network_within(opened, memory, at_once, folder / UNFINISHED)
        cost = METHODS[method].cost(len(line.documents) + 2)  # the question and the rest too
        cost = cost.times(_parts(opened, read, parts, answer_tokens))
        _announce(opened.network, read, html and parts is None, f"{method}, {cost}", cost.total)
        context = answered_context(opened, read, loss, answer_tokens, tqdm)
        scored, measured, by_part = _scored(opened, context, loss, arguments, folder / UNFINISHED)
        answered = answer_of(line, context, scored, opened, method, question)
        answered = answered._replace(by_part=by_part)
        _print(answered, answer_notes([context], opened))
        write_answer(answered, folder)
        if measured is not None:
            title = f"{opened.name}, {loss}, {described_contexts([context.length])}"
            write_profile(measured, title, folder)
        written = ["answer.json", *["tables, figures"] * (measured is not None)]
        if html:
            written.append(_write_page(answered, measured, opened, folder))
        print(f"Wrote {', '.join(written)} to {folder}.")
    return 0


def _scored(
    model: models.LanguageModel,
    context: Context,
    loss: LossName,
    arguments: dict[str, Any],
    unfinished: Path,
) -> tuple[Scored, Measured | None, PartScores | None]:
    """The scores by the method, with all that profile measures, or with those by part."""
    run = {"checkpoint": unfinished, "bar": placed_bar(model.network, unfinished)}
    method = arguments["method"]
    if method == "influence":
        about = {"delta": arguments["delta"], "shown": int(arguments["html"])}
        measured = measure(model.network, [context], loss, **about, **run)
        (energy,) = measured.energies
        return scored_by_tokens(context, energy / (energy.sum() or 1)), measured, None
    cuts = arguments["parts"], arguments["document_parts"]
    scored, by_part = scores_of_answer(model, context, loss, method, cuts, **run)
    return scored, None, by_part


def _print(answered: Answer, notes: Sequence[str]) -> None:
    print(f"{answered.finding}\n{NO_ERROR}\n\nQuestion: {answered.question}")
    print(f"Answer: {answered.shown}", *notes, answered.table, sep="\n")


def _write_page(
    answered: Answer, measured: Measured | None, model: models.LanguageModel, folder: Path
) -> str:
    if measured is None:
        about = {"model": model.name, "method": answered.method}
        return answer_page(answered, about).save(folder / "answer.html").name
    said = {"answer": answered.shown, "findings": [answered.finding, NO_ERROR]}
    write_profile_page(measured, model, "margin", answered.question, folder, **said)
    return "profile.html"


def _parts(
    model: models.LanguageModel, read: Context | PromptOnly, parts: AnswerParts | None, tokens: int
) -> int:
    """How many parts the answer has; one that is not known yet, about so many."""
    if parts is None or parts == "answer":
        return 1
    if isinstance(read, Context):
        return len(answer_segments(read, model.tokenizer, parts))
    return tokens if parts == "token" else max(1, tokens // SENTENCE)


def _announce(
    network: models.CausalLM, read: Context | PromptOnly, html: bool, by: str, cost: int
) -> None:
    own, page = isinstance(read, PromptOnly), ", with a page" * html
    takes = foretold(network, [read.length], int(html), int(own), cost)
    work = "Answering and measuring" if own else "Measuring"
    tqdm.write(f"{work} {read.length} tokens by {by}{page}: {takes}")
