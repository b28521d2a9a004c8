"""A question asked of a model and of documents: which of them its answer comes from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro
from tqdm import tqdm

from lim_jax import models
from lim_jax._checks import as_int, as_path
from lim_jax._tables import text_table
from lim_jax.attribution.answers import answer_text
from lim_jax.attribution.measuring import Measured, measure, require_fitting
from lim_jax.attribution.parts import REST, Record
from lim_jax.attribution.time_budget import described_contexts, duration, measuring_seconds
from lim_jax.cli.answers import DOTS, answer_notes, answered
from lim_jax.cli.folder import UNFINISHED, Named, finished_before, run_folder
from lim_jax.cli.networks import network_within, open_model, placed_bar
from lim_jax.cli.profiling import require_page, write_profile, write_profile_page
from lim_jax.models.losses import LossName
from lim_jax.models.text import ChatTemplate
from lim_jax.prompts import Line
from lim_jax.prompts.contexts import Context, PromptOnly
from lim_jax.prompts.documents import QUESTION, require_question
from lim_jax.prompts.reading import context_of_line, read_documents, spaced
from lim_jax.report.sentences import part_words
from lim_jax.results.measured import percent
from lim_jax.results.tables import FILES, write_json

NO_ERROR = (
    "One context has no error. For one, ask by lim-jax profile: of several lines, or with "
    "--shuffle N of the documents in several orders."
)
HEAD = ("part", "  share", " of documents", " tokens", "most in")


def ask(
    model: tyro.conf.Positional[Named],
    question: tyro.conf.Positional[str],
    documents: Named,
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

    Prints first which document holds most of the influence on the answer, then the answer, and
    what each document, the question and the rest hold. Writes answer.json, and what profile does
    of this one context, with its page.

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
    loss, html = ("contrast", False) if foil else ("margin", html)
    arguments = {
        "model": model, "question": question, "documents": documents, "chat": chat,
        "answer": answer, "answer_tokens": answer_tokens, "foil": foil, "max_length": max_length,
        "delta": delta, "html": html,
    }  # fmt: skip
    if finished_before(out, "ask", arguments, overwrite=overwrite):
        return 0
    with run_folder(out, "ask", arguments, overwrite=overwrite) as folder:
        _require_options(arguments, loss)
        opened = open_model(model, download)
        line = _line(arguments, opened.chat_template if chat else None)
        read = context_of_line(line, opened.tokenizer, loss, max_length)
        unfinished = folder / UNFINISHED
        at_once = max(read.length + answer_tokens, models.ids.TOKENS_AT_ONCE)
        opened = network_within(opened, memory, at_once, unfinished)
        network = opened.network
        _announce(network, read, html)
        contexts = answered([read], opened, loss, answer_tokens)
        require_fitting(network, contexts)
        result = measure(
            network, contexts, loss, delta=delta, shown=int(html), checkpoint=unfinished,
            bar=placed_bar(network, unfinished),
        )  # fmt: skip
        said, cut = answer_text(contexts[0], opened.tokenizer), contexts[0].cut
        parts = _parts(result, [document.name for document in line.documents])
        shown = said + DOTS * cut
        finding = finding_of(parts, shown, foil)
        print(f"{finding}\n{NO_ERROR}\n\nQuestion: {question}\nAnswer: {shown}")
        print(*answer_notes(contexts, opened), _table(parts), sep="\n")
        document = {
            "question": question, "answer": said, "cut": cut, "foil": foil, "finding": finding,
            "parts": _written(parts),
        }  # fmt: skip
        write_json(folder / "answer.json", document)
        title = f"{opened.name}, {loss}, {described_contexts([contexts[0].length])}"
        write_profile(result, title, folder)
        if html:
            said = {"answer": shown, "findings": [finding, NO_ERROR]}
            write_profile_page(result, opened, loss, question, folder, **said)
        print(f"Wrote answer.json, tables, figures{' and profile.html' * html} to {folder}.")
    return 0


def _require_options(arguments: dict[str, Any], loss: LossName) -> None:
    """Raise before a long computation at options that could not be followed."""
    as_int(arguments["max_length"], "max_length")
    as_int(arguments["answer_tokens"], "answer_tokens")
    require_page(arguments["html"], loss)


def _announce(network: models.CausalLM, read: Context | PromptOnly, html: bool) -> None:
    """Say what will be done, and how long it is likely to take."""
    own, page = isinstance(read, PromptOnly), ", with a page" * html
    seconds = measuring_seconds(network, [read.length], int(html), int(own))
    work = "Answering and measuring" if own else "Measuring"
    tqdm.write(f"{work} {read.length} tokens{page}: about {duration(seconds)}.")


def _line(arguments: dict, template: ChatTemplate | None) -> Line:
    """The question as a line of a file would ask it."""
    require_question(arguments["question"])
    documents, answer, foil = (arguments[name] for name in ("documents", "answer", "foil"))
    line = Line("question", documents=read_documents(documents), answer=answer, foil=foil)
    if template is not None:
        message = {"role": "user", "content": arguments["question"]}
        return line._replace(messages=(message,), template=template)
    answer, foil = (text and spaced(text) for text in (answer, foil))
    return line._replace(question=arguments["question"], answer=answer, foil=foil)


def _parts(result: Measured, documents: Sequence[str]) -> list[Record]:
    """The records by kind: documents, the largest share first, other parts, and the rest."""
    kinds = {**dict.fromkeys(documents, "document"), QUESTION: "question"}
    parts = [
        part if part.kind == REST else part._replace(kind=kinds.get(part.name, "message"))
        for part in result.records
    ]
    return sorted(parts, key=lambda part: (part.kind == REST, part.kind != "document", -part.share))


def _of_documents(part: Record, parts: Sequence[Record]) -> float | None:
    """A document's share of what all documents hold."""
    whole = sum(other.share for other in parts if other.kind == "document") or 1
    return part.share / whole if part.kind == "document" else None


def _written(parts: Sequence[Record]) -> list[dict[str, Any]]:
    """What answer.json says of each part."""
    return [
        {name: getattr(part, name, None) for name in FILES["answer.json, parts"]}
        | {"of_documents": _of_documents(part, parts), "tokens": round(part.tokens)}
        for part in parts
    ]


def finding_of(parts: Sequence[Record], answer: str, foil: str = "") -> str:
    """Which document holds most, in a sentence.

    >>> parts = [Record("a", "document", 0.3, float("inf"), 40.0, 0.4, 1, 1),
    ...          Record("b", "document", 0.1, float("inf"), 60.0, 0.6, 1, 1)]
    >>> print(finding_of(parts, "Wren"))
    The answer “Wren” comes from “a” most of all: it holds 75 % of what the 2 documents hold, with \
40 of their 100 tokens. They hold 40 % of the whole influence.
    """
    documents = [part for part in parts if part.kind == "document"]
    whole = sum(part.share for part in documents)
    top = max(documents, key=lambda part: part.share)
    tokens = sum(part.tokens for part in documents)
    answer = " ".join(answer.split())  # in one line
    asked = f"The answer “{answer}” comes from “{top.name}” most of all"
    if foil:
        asked = f"“{top.name}” decides most between “{answer}” and “{foil.strip()}”"
    several = f"the {len(documents)} documents hold" if len(documents) > 1 else "the document holds"
    return (
        f"{asked}: it holds {percent(_of_documents(top, parts))} of what {several}, with "
        f"{top.tokens:.0f} of their {tokens:.0f} tokens. They hold {percent(whole)} of the whole "
        "influence."
    )


def _table(parts: Sequence[Record]) -> str:
    """Whole names in quotation marks, which the rest has not, so that no two look alike."""
    rows: list[Sequence[str]] = [HEAD]
    for part in parts:
        of = _of_documents(part, parts)
        share, of_documents = f"{part.share:.1%}", "" if of is None else f"{of:.1%}"
        rows.append((part_words(part), share, of_documents, f"{part.tokens:.0f}", part.most))
    return text_table(rows, left=(0, 4))
