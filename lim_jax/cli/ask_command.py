"""A question asked of a model and of documents: which of them its answer comes from."""

from collections.abc import Sequence
from pathlib import Path

import tyro
from tqdm import tqdm

from lim_jax import models
from lim_jax._checks import as_path, require_extra
from lim_jax.attribution.answer import Answer
from lim_jax.attribution.files import write_answer
from lim_jax.attribution.method import Run
from lim_jax.attribution.questions import (
    Question,
    ReadQuestion,
    answer_question,
    choose_method,
    read_question,
)
from lim_jax.attribution.segments import AnswerParts, DocumentParts
from lim_jax.cli.answers import answer_notes
from lim_jax.cli.arguments import (
    AnswerText,
    Compute,
    Count,
    CountOrNone,
    Documents,
    Download,
    FoilText,
    Memory,
    Method,
    Model,
    Out,
    Overwrite,
    QuestionText,
)
from lim_jax.cli.networks import estimated_time, network_within, open_model, placement_bar
from lim_jax.prompts.contexts import PromptOnly
from lim_jax.prompts.prompt_files import read_documents
from lim_jax.report.sources import answer_page
from lim_jax.results.run_folder import UNFINISHED, finished_before, run_folder


def ask(
    model: tyro.conf.Positional[Model],
    question: tyro.conf.Positional[QuestionText],
    documents: Documents,
    method: Method = None,
    passes: CountOrNone = None,
    parts: AnswerParts | None = None,
    document_parts: DocumentParts | None = None,
    chat: bool = True,
    answer: AnswerText = None,
    answer_tokens: Count = 32,
    foil: FoilText = "",
    max_length: Count = 4096,
    html: bool = True,
    download: Download = False,
    memory: Memory = None,
    compute: Compute = None,
    out: Out = Path("answer"),
    overwrite: Overwrite = False,
) -> int:
    """Ask a model a question about documents, and say which of them its answer comes from.

    Prints first which document gave most to the answer, and whether it supports it: what the answer
    loses where that document is taken out of the text, and what the model then answers. Then prints
    the answer, and what each document, the question and the rest gave.

    Writes answer.json; matrix.csv, of parts of the answer by parts of the documents; scores.csv
    where the method scores tokens; and answer.html, where a click on a part of the answer shades
    the documents by what it came from. For standard errors use lim-jax profile, on several
    questions or with the documents in several orders.

    Args:
        question: As the model is asked.
        documents: A folder of texts, PDFs or .docx, one document each; or one of these; or JSON
            lines (a file named .jsonl), each with "text" and maybe "title".
        passes: About how many times the method informed, which is then the default, may read the
            whole context: by default 24. The more, the smaller are the errors of its scores; from
            20 on, and two more for each further part of the answer, it also says which documents
            suffice alone, and which are needed together.
        parts: Parts of the answer: the whole, alone with a foil; every sentence; or every token. Of
            the mask gradient and path each takes a backward pass for each gradient; influence,
            rollout and gradients in the words score the whole alone.
        document_parts: Parts of the documents in matrix.csv and on the page. By default sentences,
            or documents where each part that is left out takes a text of its own to read.
        chat: Lay question and documents out by the model's own chat template, where it has one, as
            models that were instructed expect. Without, they stand one after another.
        answer: What is explained; by default what the model answers itself.
        answer_tokens: The most tokens of an answer that the model gives itself.
        foil: What might have been answered instead. What is explained is then why the answer and
            not the foil, else the log odds of the answer's tokens.
        max_length: The most tokens of question and documents; more are refused.
        html: Write the page, answer.html.
    """
    model = as_path(model, "model")
    documents = as_path(documents, "documents")
    request = Question(
        question,
        documents,
        method=method,
        passes=passes,
        parts=parts,
        document_parts=document_parts,
        chat=chat,
        answer=answer,
        answer_tokens=answer_tokens,
        foil=foil,
        max_length=max_length,
    )
    arguments = {"model": model, **request._asdict(), "html": html, "compute": compute}
    if finished_before(out, "ask", arguments, overwrite=overwrite):
        return 0
    choose_method(request)  # refuses options that do not go together, before the folder
    if html:
        require_extra("jinja2", "report")
    request = request._replace(documents=read_documents(documents))  # before a model is opened
    with run_folder(out, "ask", arguments, overwrite=overwrite) as folder:
        opened = open_model(model, download, compute)
        prompt = read_question(opened, request)
        unfinished = folder / UNFINISHED
        at_once = max(prompt.read.length + answer_tokens, models.ids.TOKENS_AT_ONCE)
        opened = network_within(opened, memory, at_once, unfinished)
        _announce(opened, prompt)
        run = Run(unfinished, placement_bar(opened.network, unfinished))
        answered = answer_question(opened, prompt, run)
        _print(answered, answer_notes([answered.context], opened))
        write_answer(answered, folder)
        written = "answer.json and tables"
        if html:
            about = {"model": opened.name, "method": answered.method}
            page = answer_page(answered, about).save(folder / "answer.html")
            written = f"answer.json, tables and {page.name}"
        print(f"Wrote {written} to {folder}.")
    return 0


def _print(answered: Answer, notes: Sequence[str]) -> None:
    """Print the finding, the question, the answer, notes and the table of parts."""
    print(f"{answered.finding}\n\nQuestion: {answered.question}")
    print(f"Answer: {answered.shown}", *notes, answered.table, sep="\n")


def _announce(model: models.LanguageModel, prompt: ReadQuestion) -> None:
    """Say what will be measured and by which method, and how long it is likely to take."""
    answers_itself = isinstance(prompt.read, PromptOnly)
    work = "Answering and measuring" if answers_itself else "Measuring"
    cost = prompt.cost(model)
    takes = estimated_time(model.network, [prompt.read.length], 0, int(answers_itself), cost.total)
    tqdm.write(f"{work} {prompt.read.length} tokens by {prompt.method_name}, {cost}: {takes}")
