"""What a model answers without the document that scored most, where documents contradict or not.

``python -m benchmarks.validation.answers_without MODEL [--draws N] [--out FOLDER]`` asks a model
the questions of `benchmarks.validation.support`, beside a document that contradicts the evidence
and without it. It writes ``answers_without.csv``, a row for each question, and
``answers_without.md``. An interrupted run goes on.
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

import lim_jax as lim
from benchmarks.report import data_file
from benchmarks.validation.support import (
    KINDS,
    TOKENS,
    documents_of,
    drawn_question,
    rows_of,
    states,
)
from lim_jax._digest import digest
from lim_jax._partial_runs import each_once
from lim_jax.models import LanguageModel

# Which statements are among the documents, and what a page calls that.
CONDITIONS = {
    "contradicted": (("evidence", "contradiction"), "two say different things"),
    "evidence": (("evidence",), "one says it"),
}
OUTCOMES = ("other", "same", "else")


def row_of(model: LanguageModel, kind: str, seed: int, condition: str) -> dict[str, Any]:
    """Ask a question, and return what is answered to all documents, and without the one."""
    question = drawn_question(kind, seed)
    statements, _ = CONDITIONS[condition]
    documents = documents_of(question, statements, kind == "prose")
    answered = lim.ask(
        model,
        question.text,
        documents,
        answer_tokens=TOKENS,
        parts="answer",
        method="mask-gradient",
    )
    support = answered.support
    assert support is not None and support.answer_without is not None  # it is the model's own
    return {
        "kind": kind,
        "seed": seed,
        "documents": condition,
        "right": question.right,
        "wrong": question.wrong,
        "answer": answered.shown,
        "taken out": support.name,
        "without": support.answer_without,
    }


def outcome_of(row: Mapping[str, Any]) -> str | None:
    """Tell what is answered without the document: "other", "same" or "else".

    None where the answer to all documents states neither of the two things, or both, or one that
    no document says.

    >>> row = {"documents": "contradicted", "right": "harp", "wrong": "horn"}
    >>> outcome_of(row | {"answer": "A harp.", "without": "The horn"})
    'other'
    """
    things = [row["right"], row["wrong"]]
    stated = [thing for thing in things if states(row["answer"], thing)]
    if len(stated) != 1 or (row["documents"] == "evidence" and stated == [row["wrong"]]):
        return None
    (other,) = (thing for thing in things if thing not in stated)
    if states(row["without"], stated[0]):
        return "same"
    return "other" if states(row["without"], other) else "else"


def ask_all(model: LanguageModel, draws: int, folder: Path) -> list[dict[str, Any]]:
    """Ask so many questions of each kind under each condition; an interrupted run goes on."""
    rows = {
        f"{kind} {seed} {condition}": partial(row_of, model, kind, seed, condition)
        for seed in range(draws)
        for kind in KINDS
        for condition in CONDITIONS
    }
    run = {"function": "answers_without", "model": digest(model.network)}
    bar = partial(tqdm, desc="asking", unit="question")
    return list(each_once(rows, folder / "unfinished.json", run, bar).values())


PAGE = """\
# What does a model answer without the document?

**Where two documents say different things, and the model's answer is what one of them says, it
answers in {other} of {of_two} cases what the other says once the document that scores most is taken
out; where one document says it, the answer stays the same in {same} of {of_one}.**

`python -m benchmarks.validation.answers_without MODEL` asked {model} {questions} questions of
[the study of support](support.md) twice: with a document that states the answer, and beside another
that contradicts it. A third are of facts of persons, a third of codes of places ("keys"), and a
third of facts within prose. `lim-jax ask` takes the document that
scores most out of the text, here by the mask gradient, lets the model answer again, and says what.
Counted are answers that state one of the two things, or what the document says.

| kind | documents | answers | without it: what the other says | the same | something else |
|---|---|---|---|---|---|
{lines}

So an answer that turns into what another document says tells of documents that disagree; one that
turns into something else does not say that they agree. This small model makes much up. Every
question is a row of [answers_without.csv](answers_without.csv).
"""


def page_of(rows: Sequence[Mapping[str, Any]], model: str) -> str:
    """Write the page: how often the answer changes to what another document says."""
    counts = {
        (kind, condition): Counter(
            outcome
            for row in rows
            if (row["kind"], row["documents"]) == (kind, condition)
            and (outcome := outcome_of(row)) is not None
        )
        for kind in KINDS
        for condition in CONDITIONS
    }
    in_all = {
        condition: sum((counts[kind, condition] for kind in KINDS), Counter())
        for condition in CONDITIONS
    }
    lines = [
        f"| {kind} | {CONDITIONS[condition][1]} | {counted.total()} "
        f"| {' | '.join(f'{counted[outcome]}' for outcome in OUTCOMES)} |"
        for (kind, condition), counted in counts.items()
    ]
    return PAGE.format(
        other=in_all["contradicted"]["other"],
        of_two=in_all["contradicted"].total(),
        same=in_all["evidence"]["same"],
        of_one=in_all["evidence"].total(),
        model=model,
        questions=len({(row["kind"], row["seed"]) for row in rows}),
        lines="\n".join(lines),
    )


def main() -> None:
    """Ask, and write the table and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="a folder, a GGUF file or a name")
    parser.add_argument("--draws", type=int, default=12, help="of each kind of question")
    parser.add_argument(
        "--out", type=Path, default=Path("answers_without"), help="the folder to write to"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = LanguageModel.from_pretrained(options.model)
    table = options.out / "answers_without.csv"
    table.write_text(data_file(ask_all(model, options.draws, options.out)), encoding="utf-8")
    page = page_of(rows_of(table), model.name)
    (options.out / "answers_without.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
