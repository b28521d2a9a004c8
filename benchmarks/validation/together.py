"""Which documents suffice alone, or are needed together: how often `lim_jax.ask` says it rightly.

``python -m benchmarks.validation.together MODEL [--draws N] [--out FOLDER]`` asks a model questions
about six documents: of which two state the evidence, of which each holds one half of it, and of
which one states it. It writes ``together.csv``, a row for each answer, and ``together.md``.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

import lim_jax as lim
from benchmarks.report import data_file
from benchmarks.validation.facts import FACTS, NAMES
from benchmarks.validation.intervals import bootstrap_interval
from lim_jax._digest import digest
from lim_jax._partial_runs import each_once
from lim_jax.attribution.together import LEAST
from lim_jax.models import LanguageModel
from lim_jax.prompts import Document

OTHERS = 4  # documents that say nothing of the answer
SUFFICES = "one suffices"
NEEDED = "both are needed"
NOTHING = "nothing"
# What is right of each kind of documents.
KINDS = {"copy": SUFFICES, "halves": NEEDED, "one": NOTHING}


class Drawn(NamedTuple):
    """A question with documents, of which those named in `evidence` state its answer."""

    question: str
    documents: list[Document]
    answer: str
    evidence: tuple[str, ...]


def drawn_question(kind: str, seed: int) -> Drawn:
    """Draw a question: of a copied fact, of a fact in two halves, or of a fact in one document.

    >>> drawn = drawn_question("halves", 1)
    >>> [document.text for document in drawn.documents if document.title in drawn.evidence]
    ["Sam's neighbour is Leo.", 'Leo lives in Moscow.']
    >>> drawn.question, drawn.answer
    ("In which city does Sam's neighbour live?", 'Moscow')
    """
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    person, neighbour, *others = rng.permutation(NAMES).tolist()
    says, asks, things = FACTS[int(rng.integers(len(FACTS)))]
    answer, *wrong = rng.permutation(things.split()).tolist()
    fact = f"{person} {says.format(answer)}"
    question = asks.format(person)
    evidence = {
        "one": [fact],
        "copy": [fact, f"As everybody here knows, {fact}"],
        "halves": [f"{person}'s neighbour is {neighbour}.", f"{neighbour} {says.format(answer)}"],
    }[kind]
    if kind == "halves":
        question = asks.format(f"{person}'s neighbour")
    texts = [f"{name} {says.format(thing)}" for name, thing in zip(others, wrong, strict=False)]
    order = rng.permutation(OTHERS + len(evidence)).tolist()
    numbered = [[*evidence, *texts[:OTHERS]][number] for number in order]
    documents = [Document(f"Note {n + 1}", text) for n, text in enumerate(numbered)]
    named = tuple(document.title for document in documents if document.text in evidence)
    return Drawn(question, documents, answer, named)


def said_of(finding: str, evidence: Sequence[str]) -> str:
    """Return what a finding says of two documents; of more or of others it is "other"."""
    if not finding:
        return NOTHING
    for first, second in (evidence, evidence[::-1]):
        names = f"“{first}” and “{second}”"
        if finding.startswith(f"One of {names} suffices"):
            return SUFFICES
        if finding.startswith(f"{names} are needed together"):
            return NEEDED
    return "other"


def row_of(model: LanguageModel, kind: str, seed: int) -> dict[str, Any]:
    """Explain the right answer by informed ablations, and return what is said of its documents."""
    drawn = drawn_question(kind, seed)
    explained = lim.ask(
        model, drawn.question, drawn.documents, answer=drawn.answer, method="informed"
    )
    together = explained.together
    assert together is not None  # the default budget is enough
    losses = {frozenset(names): loss for names, loss in together.losses_by_set().items()}
    pair = (drawn.evidence * 2)[:2]  # of one document it is twice this
    return {
        "kind": kind,
        "seed": seed,
        "question": drawn.question,
        "answer": drawn.answer,
        "given": explained.total_effect,
        "among the first": len({*together.names} & {*drawn.evidence}),
        "without the first": losses.get(frozenset(pair[:1])),
        "without the second": losses.get(frozenset(pair[1:])),
        "without both": losses.get(frozenset(pair)),
        "said": said_of(together.finding, pair),
        "right": KINDS[kind],
    }


def ask_all(model: LanguageModel, draws: int, folder: Path) -> list[dict[str, Any]]:
    """Explain so many answers of each kind; an interrupted run goes on."""
    rows = {
        f"{kind} {seed}": partial(row_of, model, kind, seed)
        for seed in range(draws)
        for kind in KINDS
    }
    bar = partial(tqdm, desc="explaining", unit="answer")
    run = {"function": "together", "model": digest(model.network)}
    return list(each_once(rows, folder / "unfinished.json", run, bar).values())


PAGE = """\
# Which documents suffice alone, and which are needed together?

{finding}

`python -m benchmarks.validation.together MODEL` asked {model} {rows} questions about five or six
documents of a sentence each: of a kind two documents state the evidence, one in other words; of the
next each holds one half of it (who somebody's neighbour is, and what that neighbour does); of the
last one document states it. Explained is the right answer, by informed ablations. Brackets have
95 % over questions drawn anew.

| documents | answers | it is said that one suffices | that both are needed | nothing | of others |
|---|---|---|---|---|---|
{table}

That one of two suffices is said where the answer loses {least} of log odds or more without both,
and less than a quarter of that without either; that both are needed, where it loses more than three
quarters of it without either. Every answer is a row of [together.csv](together.csv).
"""
FINDING = """\
**Where two documents state the evidence, it is said in {copy} of cases that one suffices;
where each holds a half, in {halves} that both are needed;
where one states it, rightly nothing in {one}.**
A small model that guesses the one half needs only the other."""
KIND_WORDS = {"copy": "two state it", "halves": "each holds a half", "one": "one states it"}


def page_of(rows: Sequence[dict[str, Any]], model: str) -> str:
    """Write the page: how often it is said rightly, and what is said of each kind."""
    lines = []
    rights = {}
    for kind, words in KIND_WORDS.items():
        said = [row["said"] for row in rows if row["kind"] == kind]
        counts = [said.count(name) for name in (SUFFICES, NEEDED, NOTHING, "other")]
        right = bootstrap_interval(np.array([name == KINDS[kind] for name in said], float))
        rights[kind] = f"{right.value:.0%} ({right.low:.0%} to {right.high:.0%})"
        lines.append(f"| {words} | {len(said)} | {' | '.join(map(str, counts))} |")
    return PAGE.format(
        finding=FINDING.format(**rights),
        model=model,
        rows=len(rows),
        table="\n".join(lines),
        least=LEAST,
    )


def main() -> None:
    """Ask, and write the table and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="a folder, a GGUF file or a name")
    parser.add_argument("--draws", type=int, default=16, help="of each kind of documents")
    parser.add_argument("--out", type=Path, default=Path("together"), help="the folder to write to")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = LanguageModel.from_pretrained(options.model)
    rows = ask_all(model, options.draws, options.out)
    (options.out / "together.csv").write_text(data_file(rows), encoding="utf-8")
    page = page_of(rows, model.name)
    (options.out / "together.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
