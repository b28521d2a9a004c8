"""Does any document support an answer? Statistics of one answer, over answers of both kinds.

``python -m benchmarks.validation.support MODEL [--draws N] [--out FOLDER]`` asks a model questions
about small documents: with the evidence there, without it, with evidence about another person in
its place, and beside a document that contradicts it; for its own answer, the right one and a wrong
one. It writes ``support.csv``, a row for each answer, with the statistics that a verdict may rest
on; ``python -m benchmarks.validation.support --judge FOLDER`` prints how well each tells answers
that some document states from those that none does.
"""

import argparse
import csv
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from tqdm import tqdm

import lim_jax as lim
from benchmarks.validation.facts import FACTS, NAMES
from benchmarks.validation.prose import sentences_of
from lim_jax._resuming import each_once
from lim_jax.models import CausalLM, LanguageModel
from lim_jax.models.ids import losses_of_ids
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
    ('Which metal did Frank buy?', 'Frank bought the copper.', 'Frank bought the silver.')
    """
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    place = seed % (DOCUMENTS - 1)
    if kind == "keys":
        places = rng.permutation(PLACES).tolist()
        codes = [f"{code}" for code in rng.choice(np.arange(1000, 10_000), 12, replace=False)]
        says = "The code of {} is {}.".format
        rest = [(f"Record {n + 1}", says(places[n], codes[n])) for n in range(DOCUMENTS - 1)]
        asked, another = places[DOCUMENTS - 1], places[DOCUMENTS]
        question, right, wrong = f"What is the code of {asked}?", codes[-1], codes[-2]
        statements = says(asked, right), says(another, codes[-3]), says(asked, wrong)
        return Question(question, tuple(rest), place, *statements, right, wrong)
    names = rng.permutation(NAMES).tolist()
    facts = [FACTS[number] for number in rng.permutation(len(FACTS))[:DOCUMENTS]]
    drawn = [rng.permutation(things.split()).tolist() for _, _, things in facts]
    says, asks, _ = facts[0]
    right, wrong, third = drawn[0][:3]

    def states(name: str, thing: str) -> str:
        return f"{name} {says.format(thing)}"

    rest = [
        (name, f"{name} {fact[0].format(things[0])}")
        for name, fact, things in zip(names[2:], facts[1:], drawn[1:], strict=False)
    ]
    if kind == "prose":
        long = [topic for topic in topics if len(sentences_of(topic)) >= SENTENCES]
        chosen = rng.choice(long, DOCUMENTS - 1, replace=False).tolist()
        rest = [(topic.capitalize(), _some_sentences(topic, rng)) for topic in chosen]
    statements = states(names[0], right), states(names[1], third), states(names[0], wrong)
    return Question(asks.format(names[0]), tuple(rest), place, *statements, right, wrong)


def _some_sentences(topic: str, rng: np.random.Generator) -> str:
    sentences = sentences_of(topic)
    start = int(rng.integers(len(sentences) - SENTENCES + 1))
    return " ".join(sentences[start : start + SENTENCES])


def documents_of(question: Question, statements: Sequence[str], prose: bool) -> list[Document]:
    """The documents with statements added: into one of prose, or as documents of their own."""
    documents = [Document(title, text) for title, text in question.documents]
    for number, name in enumerate(statements):
        said, at = getattr(question, name), (question.place + 2 * number) % len(documents)
        if prose:
            before = documents[at]
            documents[at] = Document(before.title, f"{before.text} {said}")
        else:
            documents.insert(at, Document(f"Note {number + 1}", said))
    return documents


def states(answer: str, thing: str) -> bool:
    """Whether an answer states a thing, as a word of its own."""
    return re.search(rf"(?i)\b{re.escape(thing)}\b", answer) is not None


def row_of(
    model: LanguageModel, kind: str, seed: int, condition: str, asked: str
) -> dict[str, Any]:
    """Ask for one answer, and return its statistics; ``supported``: whether a document states it."""
    question = drawn_question(kind, seed)
    statements, _ = CONDITIONS[condition]
    documents = documents_of(question, statements, kind == "prose")
    forced = None if asked == "own" else f"{getattr(question, asked)}"
    answered = lim.ask(
        model, question.text, documents, answer=forced, answer_tokens=TOKENS, parts="answer"
    )
    scores = sorted(
        (part.score for part in answered.parts if part.kind == "document"), reverse=True
    )
    context = answered.context
    loss = losses_of_ids(
        model.network, [context.window], ask=[context.asked], loss=CausalLM.margin_loss
    )
    supported = ("evidence" in statements and states(answered.text, question.right)) or (
        "contradiction" in statements and states(answered.text, question.wrong)
    )
    given = float(answered.given or 0.0)
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
        "log odds": -float(loss[0]),
        "without documents": -float(loss[0]) - given,
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
    return list(each_once(rows, folder / "unfinished.json", {"function": "support"}, bar).values())


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


def judged(rows: list[dict[str, Any]], name: str) -> dict[str, float]:
    """AUROC of a statistic with its interval, and the threshold of one half judged on the other."""
    value = np.array([float(row[name]) for row in rows])
    supported = np.array([int(row["supported"]) == 1 for row in rows])
    seeds = np.array([int(row["seed"]) for row in rows])
    rng = np.random.default_rng(0)

    def of(chosen: Any) -> float:
        return auroc(value[chosen & supported], value[chosen & ~supported])

    def drawn() -> float:
        """Of seeds drawn anew with replacement, whole, since answers of one seed are alike."""
        again = np.concatenate(
            [
                np.flatnonzero(seeds == seed)
                for seed in rng.choice(np.unique(seeds), len(set(seeds)))
            ]
        )
        of_again = supported[again]
        return auroc(value[again][of_again], value[again][~of_again])

    spread = [drawn() for _ in range(200)]
    chosen: Bool[np.ndarray, " rows"] = seeds % 2 == 0
    at = threshold(value[chosen & ~supported])
    return {
        "auroc": of(np.full(len(rows), True)),
        "low": float(np.quantile(spread, 0.025)),
        "high": float(np.quantile(spread, 0.975)),
        "threshold": at,
        "unsupported that pass": float(np.mean(value[~chosen & ~supported] > at)),
        "supported that fail": float(np.mean(value[~chosen & supported] <= at)),
    }


STATISTICS = (
    "given", "largest", "beside the rest", "log odds", "without documents", "of the question",
)  # fmt: skip


def main() -> None:
    """Ask, or judge what was asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="a folder, a GGUF file or a name")
    parser.add_argument("--draws", type=int, default=16, help="of each kind of question")
    parser.add_argument("--out", type=Path, default=Path("support"))
    parser.add_argument("--judge", type=Path, help="a folder with support.csv")
    options = parser.parse_args()
    if options.judge is None:
        options.out.mkdir(parents=True, exist_ok=True)
        model = LanguageModel.from_pretrained(options.model)
        rows = ask_all(model, options.draws, options.out)
        with (options.out / "support.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    with ((options.judge or options.out) / "support.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    print(json.dumps({name: judged(rows, name) for name in STATISTICS}, indent=1))


if __name__ == "__main__":
    main()
