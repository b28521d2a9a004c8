"""Does any document support an answer? Statistics of one answer, over answers of both kinds.

``python -m benchmarks.validation.support MODEL [--draws N] [--out FOLDER]`` asks a model questions
about small documents: with the evidence there, without it, with evidence about another person in
its place, and beside a document that contradicts it; for its own answer, the right one and a wrong
one. It writes ``support.csv``, a row for each answer, with the statistics that a verdict may rest
on, and ``support.md``: how well each tells answers that some document states from those that none
does.
"""

import argparse
import csv
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Float
from tqdm import tqdm

import lim_jax as lim
from benchmarks.validation.facts import FACTS, NAMES
from benchmarks.validation.prose import sentences_of
from lim_jax._digest import digest
from lim_jax._partial_runs import each_once
from lim_jax.models import CausalLM, LanguageModel
from lim_jax.prompts import Document

KINDS = ("facts", "keys", "prose")
DOCUMENTS = 5
TOKENS = 12  # of an own answer, at most
SENTENCES = 4  # of a document of prose
PLACES = ("Athens", "Berlin", "Cairo", "Delhi", "Lima", "Oslo", "Paris", "Rome", "Tokyo")


class Question(NamedTuple):
    """A question whose answer one document may state.

    Attributes
    ----------
    text
        As it is asked.
    documents
        Titles and texts, without what answers the question.
    place
        The number of the document to which a statement is added.
    evidence, other, contradiction
        Sentences: that states the answer, that says it of somebody else, and that states another.
    right, wrong
        The answers of `evidence` and of `contradiction`.
    """

    text: str
    documents: tuple[tuple[str, str], ...]
    place: int
    evidence: str
    other: str
    contradiction: str
    right: str
    wrong: str


# Which statements a condition adds to the documents, and of which answers.
CONDITIONS = {
    "evidence": (("evidence",), ("own", "right", "wrong")),
    "none": ((), ("own", "right")),
    "other": (("other",), ("own", "right")),
    "contradicted": (("evidence", "contradiction"), ("right", "wrong")),
}


def drawn_question(kind: str, seed: int) -> Question:
    """Draw a question of one kind.

    ``facts``: documents of a sentence each, of one person each. ``keys``: codes of places. And
    ``prose``: documents of four sentences of Python's own documentation, to one of which a fact is
    added.

    >>> found = drawn_question("facts", 3)
    >>> found.text, found.evidence, found.contradiction
    ('Which instrument does Simon play?', 'Simon plays the drum.', 'Simon plays the horn.')
    """
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    place = seed % (DOCUMENTS - 1)
    return (
        _codes_question(rng, place)
        if kind == "keys"
        else _facts_question(rng, place, kind == "prose")
    )


def _codes_question(rng: np.random.Generator, place: int) -> Question:
    names = rng.permutation(PLACES).tolist()
    codes = [f"{code}" for code in rng.choice(np.arange(1000, 10_000), 12, replace=False)]
    says = "The code of {} is {}.".format
    place_of_question = names[DOCUMENTS - 1]
    another = names[DOCUMENTS]
    return Question(
        text=f"What is the code of {place_of_question}?",
        documents=tuple(
            (f"Record {n + 1}", says(names[n], codes[n])) for n in range(DOCUMENTS - 1)
        ),
        place=place,
        evidence=says(place_of_question, codes[-1]),
        other=says(another, codes[-3]),
        contradiction=says(place_of_question, codes[-2]),
        right=codes[-1],
        wrong=codes[-2],
    )


def _facts_question(rng: np.random.Generator, place: int, prose: bool) -> Question:
    person, another, *others = rng.permutation(NAMES).tolist()
    facts = [FACTS[number] for number in rng.permutation(len(FACTS))[:DOCUMENTS]]
    things_of_facts = [rng.permutation(things.split()).tolist() for _, _, things in facts]
    says, asks, _ = facts[0]
    right, wrong, third = things_of_facts[0][:3]
    documents = [
        (name, f"{name} {fact[0].format(things[0])}")
        for name, fact, things in zip(others, facts[1:], things_of_facts[1:], strict=False)
    ]
    if prose:
        long = [topic for topic in topics if len(sentences_of(topic)) >= SENTENCES]
        topics_of_documents = rng.choice(long, DOCUMENTS - 1, replace=False).tolist()
        documents = [
            (topic.capitalize(), _some_sentences(topic, rng)) for topic in topics_of_documents
        ]
    return Question(
        text=asks.format(person),
        documents=tuple(documents),
        place=place,
        evidence=f"{person} {says.format(right)}",
        other=f"{another} {says.format(third)}",
        contradiction=f"{person} {says.format(wrong)}",
        right=right,
        wrong=wrong,
    )


def _some_sentences(topic: str, rng: np.random.Generator) -> str:
    sentences = sentences_of(topic)
    start = int(rng.integers(len(sentences) - SENTENCES + 1))
    return " ".join(sentences[start : start + SENTENCES])


def documents_of(question: Question, statements: Sequence[str], prose: bool) -> list[Document]:
    """The documents with statements added: into one of prose, or as documents of their own."""
    documents = [Document(title, text) for title, text in question.documents]
    for number, name in enumerate(statements):
        statement = getattr(question, name)
        at = (question.place + 2 * number) % len(documents)
        if prose:
            before = documents[at]
            documents[at] = Document(before.title, f"{before.text} {statement}")
        else:
            documents.insert(at, Document(f"Note {number + 1}", statement))
    return documents


def states(answer: str, thing: str) -> bool:
    """Whether an answer states a thing, as a word of its own."""
    return re.search(rf"(?i)\b{re.escape(thing)}\b", answer) is not None


@eqx.filter_jit
def _loss(network: CausalLM, window: Any, weights: Any) -> Any:
    return CausalLM.margin_loss(network, *network.example(window, weights))


def row_of(
    model: LanguageModel, kind: str, seed: int, condition: str, asked: str
) -> dict[str, Any]:
    """Ask for an answer, and return its statistics; ``supported``: whether a document states it."""
    question = drawn_question(kind, seed)
    statements, _ = CONDITIONS[condition]
    documents = documents_of(question, statements, kind == "prose")
    forced = None if asked == "own" else getattr(question, asked)
    answered = lim.ask(
        model, question.text, documents, answer=forced, answer_tokens=TOKENS, parts="answer"
    )
    scores = sorted(
        (part.score for part in answered.parts if part.kind == "document"), reverse=True
    )
    context = answered.context
    log_odds = -float(_loss(model.network, *jax.device_put((context.window, context.weights))))
    supported = ("evidence" in statements and states(answered.text, question.right)) or (
        "contradiction" in statements and states(answered.text, question.wrong)
    )
    given = answered.total_effect
    assert given is not None  # the mask gradient says it
    return {
        "kind": kind,
        "seed": seed,
        "documents": condition,
        "answer": asked,
        "text": answered.text,
        "supported": int(supported),
        "tokens": int(np.count_nonzero(context.weights)),
        "given": given,
        "largest": scores[0],
        "beside the rest": scores[0] - scores[1],
        "least": scores[-1],
        "of the question": next(
            p.score for p in answered.parts if p.kind in ("question", "message")
        ),
        "log odds": log_odds,
        "without documents": log_odds - given,
    }


def ask_all(model: LanguageModel, draws: int, folder: Path) -> list[dict[str, Any]]:
    """Every answer of so many draws of each kind; an interrupted run goes on."""
    rows = {
        f"{kind} {seed} {condition} {asked}": partial(row_of, model, kind, seed, condition, asked)
        for seed in range(draws)
        for kind in KINDS
        for condition, (_, answers) in CONDITIONS.items()
        for asked in answers
    }
    bar = partial(tqdm, desc="asking", unit="answer")
    run = {"function": "ask_all", "model": digest(model.network)}
    return list(each_once(rows, folder / "unfinished.json", run, bar).values())


def auroc(positive: Float[np.ndarray, " n"], negative: Float[np.ndarray, " m"]) -> float:
    """How often one of the positive is above one of the negative; ties count half.

    >>> auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    above = positive[:, None] > negative[None, :]
    same = positive[:, None] == negative[None, :]
    return float(np.mean(above + 0.5 * same))


def threshold(negative: Float[np.ndarray, " m"]) -> float:
    """The value that one in twenty unsupported answers exceeds."""
    return float(np.quantile(negative, 0.95))


def judge_statistic(rows: list[dict[str, Any]], name: str) -> dict[str, float]:
    """AUROC of a statistic with its interval, and the threshold of one half judged on the other."""
    value = np.array([float(row[name]) for row in rows])
    supported = np.array([int(row["supported"]) == 1 for row in rows])
    questions = np.array([f"{row['kind']} {row['seed']}" for row in rows])
    names = np.unique(questions)
    rng = np.random.default_rng(0)

    def resampled_auroc() -> float:
        """Of questions drawn anew with replacement, each whole: its answers are alike."""
        again = np.concatenate(
            [np.flatnonzero(questions == name) for name in rng.choice(names, names.size)]
        )
        supported_again = supported[again]
        return auroc(value[again][supported_again], value[again][~supported_again])

    spread = [resampled_auroc() for _ in range(200)]
    even: Bool[np.ndarray, " rows"] = np.array([int(row["seed"]) % 2 == 0 for row in rows])
    at = threshold(value[even & ~supported])
    return {
        "auroc": auroc(value[supported], value[~supported]),
        "low": float(np.quantile(spread, 0.025)),
        "high": float(np.quantile(spread, 0.975)),
        "threshold": at,
        "unsupported that pass": float(np.mean(value[~even & ~supported] > at)),
        "supported that fail": float(np.mean(value[~even & supported] <= at)),
    }


# What each statistic is, by its column.
STATISTICS = {
    "beside the rest": "the largest document's score less the second's",
    "largest": "the largest document's score",
    "given": "what all documents give",
    "of the question": "the question's score",
    "log odds": "the answer's log odds with all documents",
    "without documents": "the same with next to nothing of the documents",
}
PAGE = """\
# Does a document support the answer?

{finding}

`python -m benchmarks.validation.support MODEL` asked {model} {rows} times: {draws} questions of
each of three kinds (a fact of a person in a sentence, a code of a place, a fact at the end of four
sentences of prose), with the evidence there, without it, with evidence about another instead, and
beside a document that contradicts it; for its own answer, the right one and a wrong one. An answer
is supported where a document states it, as {supported} are. Scores are the mask gradient's, in log
odds on average over the answer's tokens. How often a supported answer has more of a statistic than
one that is not, with 95 % over questions drawn anew:

| statistic | AUROC | one in twenty unsupported answers exceeds | supported ones that do not |
|---|---|---|---|
{table}

The last two columns: the threshold is chosen on the draws of even numbers, and judged on the
others. Every answer is a row of [support.csv](support.csv).
"""
FINDING = """\
**No one number of a small model's tells it: the best, {best}, puts a supported answer above one
that is not in {auroc:.0%} of pairs ({low:.0%} to {high:.0%}).** A model that copies another code
out of the documents owes it to them as much as a right one; and of prose this one often takes no
notice, so that the evidence gives nothing. These are few questions of one model, and statistics of
whole answers alone: a direction, on which `lim-jax ask` rests no verdict."""


def page_of(rows: list[dict[str, Any]], model: str) -> str:
    """The page: the finding, and each statistic by how well it tells supported answers."""
    by_statistic = {name: judge_statistic(rows, name) for name in STATISTICS}
    best = max(by_statistic, key=lambda name: by_statistic[name]["auroc"])
    lines = [
        f"| {words} | {result['auroc']:.2f} ({result['low']:.2f} to {result['high']:.2f}) "
        f"| {result['threshold']:+.2f} | {result['supported that fail']:.0%} |"
        for (name, words), result in zip(STATISTICS.items(), by_statistic.values(), strict=True)
    ]
    return PAGE.format(
        finding=FINDING.format(best=STATISTICS[best], **by_statistic[best]),
        model=model,
        rows=len(rows),
        draws=len({row["seed"] for row in rows}),
        supported=sum(int(row["supported"]) for row in rows),
        table="\n".join(lines),
    )


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a table that was written."""
    with file.open(newline="", encoding="utf-8") as table:
        return list(csv.DictReader(table))


def main() -> None:
    """Ask, and write the table and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="a folder, a GGUF file or a name")
    parser.add_argument("--draws", type=int, default=16, help="of each kind of question")
    parser.add_argument("--out", type=Path, default=Path("support"), help="the folder to write to")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = LanguageModel.from_pretrained(options.model)
    rows = ask_all(model, options.draws, options.out)
    with (options.out / "support.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    page = page_of(rows_of(options.out / "support.csv"), model.name)
    (options.out / "support.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
