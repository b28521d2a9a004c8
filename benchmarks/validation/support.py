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
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from tqdm import tqdm

import lim_jax as lim
from benchmarks.report import data_file
from benchmarks.validation.facts import FACTS, NAMES
from benchmarks.validation.intervals import Interval
from benchmarks.validation.prose import sentences_of
from lim_jax._digest import digest
from lim_jax._partial_runs import each_once
from lim_jax.attribution.support import LITTLE, SUPPORTED, UNLIKELY, UNSUPPORTED, Support
from lim_jax.models import LanguageModel
from lim_jax.prompts import Document

SHORT = ("facts", "keys")  # kinds of documents of one sentence
PROSE = "prose"
KINDS = (*SHORT, PROSE)
SEEN = 4  # draws of each kind by whose answers thresholds were chosen
DOCUMENTS = 5
TOKENS = 12  # of an own answer, at most
SENTENCES = 4  # of a document of prose
COMMON = {"a", "an", "answer", "correct", "i", "in", "is", "of", "s", "that", "the", "to", "was"}
Row = Mapping[str, Any]  # of the table: an answer and its statistics
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
        else _facts_question(rng, place, kind == PROSE)
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
    """Add statements to the documents: to one of prose, or as documents of their own."""
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
    """Tell whether an answer states a thing, as a word of its own."""
    return re.search(rf"(?i)\b{re.escape(thing)}\b", answer) is not None


def holds(texts: str, answer: str, question: str) -> bool:
    """Tell whether texts hold more than half of an answer's words that its question does not have.

    >>> holds("Ann plays the harp.", "Ben plays the harp.", "Which instrument does Ben play?")
    True
    """
    words = {word.lower() for word in re.findall(r"\w+", answer)}
    own = words - {word.lower() for word in re.findall(r"\w+", question)} - COMMON
    return 2 * sum(states(texts, word) for word in own) > len(own)


def row_of(
    model: LanguageModel, kind: str, seed: int, condition: str, asked: str
) -> dict[str, Any]:
    """Ask for an answer, and return its statistics; ``supported``: whether a document states it."""
    question = drawn_question(kind, seed)
    statements, _ = CONDITIONS[condition]
    documents = documents_of(question, statements, kind == PROSE)
    forced = None if asked == "own" else getattr(question, asked)
    answered = lim.ask(
        model, question.text, documents, answer=forced, answer_tokens=TOKENS, parts="answer"
    )
    scores = sorted(
        (part.score for part in answered.parts if part.kind == "document"), reverse=True
    )
    supported = ("evidence" in statements and states(answered.text, question.right)) or (
        "contradiction" in statements and states(answered.text, question.wrong)
    )
    given = answered.total_effect
    support = answered.support
    assert given is not None and support is not None  # mask gradients say it, of no foil
    texts = " ".join(document.text for document in documents)
    return {
        "kind": kind,
        "seed": seed,
        "documents": condition,
        "answer": asked,
        "text": answered.text,
        "supported": int(supported),
        "held": int(supported or holds(texts, answered.text, question.text)),
        "tokens": int(np.count_nonzero(answered.context.weights)),
        "lost": support.loss,
        "given": given,
        "largest": scores[0],
        "beside the rest": scores[0] - scores[1],
        "least": scores[-1],
        "log odds": support.log_odds,
        "without documents": support.log_odds - given,
        "given without": int(bool(support.given_without)),
    }


def ask_all(model: LanguageModel, draws: Mapping[str, int], folder: Path) -> list[dict[str, Any]]:
    """Ask for so many draws of each kind of answer, by name; an interrupted run goes on."""
    rows = {
        f"{kind} {seed} {condition} {asked}": partial(row_of, model, kind, seed, condition, asked)
        for kind, count in draws.items()
        for seed in range(count)
        for condition, (_, answers) in CONDITIONS.items()
        for asked in answers
    }
    bar = partial(tqdm, desc="asking", unit="answer")
    run = {"function": "ask_all", "model": digest(model.network)}
    return list(each_once(rows, folder / "unfinished.json", run, bar).values())


def auroc(positive: Float[np.ndarray, " n"], negative: Float[np.ndarray, " m"]) -> float:
    """Return how often one of the positive is above one of the negative; ties count half.

    >>> auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    above = positive[:, None] > negative[None, :]
    same = positive[:, None] == negative[None, :]
    return float(np.mean(above + 0.5 * same))


def group_of(row: Row) -> str:
    """Tell which group of answers a row is of: "stated", "elsewhere" or "absent"."""
    if int(row["supported"]):
        return "stated"
    return "elsewhere" if int(row["held"]) else "absent"


def over_questions(rows: Sequence[Row], measure: Callable[[Sequence[Row]], float]) -> Interval:
    """Measure rows, with 95 % over questions drawn anew, each with all of its answers."""
    by_question: dict[str, list[Row]] = {}
    for row in rows:
        by_question.setdefault(f"{row['kind']} {row['seed']}", []).append(row)
    questions = [by_question[name] for name in sorted(by_question)]
    rng = np.random.default_rng(0)
    draws = [
        measure(
            [row for n in rng.integers(len(questions), size=len(questions)) for row in questions[n]]
        )
        for _ in range(400)
    ]
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return Interval(np.array(measure(rows)), low, high)


def auroc_of_statistic(rows: Sequence[Row], name: str, below: Collection[str]) -> float:
    """Return how often a stated answer's statistic is above that of one of the groups `below`."""
    by_group = {group: [] for group in GROUPS}
    for row in rows:
        by_group[group_of(row)].append(float(row[name]))
    others = [value for group in below for value in by_group[group]]
    return auroc(np.array(by_group["stated"]), np.array(others))


def judge_statistic(rows: Sequence[Row], name: str, below: Collection[str]) -> Interval:
    """Return `auroc_of_statistic`, with 95 % over questions drawn anew."""
    return over_questions(rows, lambda drawn: auroc_of_statistic(drawn, name, below))


def verdict_of(row: Row) -> str:
    """Return what `lim.ask` says of the answer of a row."""
    log_odds, loss, given = (float(row[name]) for name in ("log odds", "lost", "given"))
    is_given = bool(int(row["given without"]))
    return Support("", log_odds, loss, given, given_without=is_given).verdict


def verdicts_by_group(rows: Sequence[Row]) -> dict[str, Counter[str]]:
    """Count what is said of the answers of each group."""
    return {
        group: Counter(verdict_of(row) for row in rows if group_of(row) == group)
        for group in GROUPS
    }


# What each statistic is, by its column.
STATISTICS = {
    "lost": "what the answer loses where the document of the largest score is taken out",
    "given": "what all documents give",
    "beside the rest": "the largest document's score less the second's",
    "largest": "the largest document's score",
    "log odds": "the answer's log odds with all documents",
    "without documents": "the same with next to nothing of the documents",
}
GROUPS = {
    "stated": "a document states it",
    "elsewhere": "a document has its words, of something else",
    "absent": "no document has its words",
}
VERDICTS = ("supported", "unclear", "unsupported")
PAGE = """\
# Does a document support the answer?

{finding}

`python -m benchmarks.validation.support MODEL` asked {model} {rows} times: {draws} questions
of a fact of a person in a sentence, as many of a code of a place, and {prose} of a fact at the end
of four sentences of prose, with the evidence there, without it, with evidence about another
instead, and beside a document that contradicts it; for its own answer, the right one and a wrong
one. Scores are the default of `lim-jax ask`, in log odds on average over the answer's tokens.

What `lim-jax ask` says, by what the documents hold. Its thresholds were chosen with the answers to
the first {seen} questions of each kind in sight. These are the answers to the others:

| documents | the answer | answers | supported | not clear | no document |
|---|---|---|---|---|---|
{verdicts}

{own}

How often a statistic of an answer that a document states is above that of one that no document
states, with 95 % over questions drawn anew:

| statistic | one sentence: where no document has its words | where none states it | prose |
|---|---|---|---|
{statistics}

Of prose this small model takes little notice: an answer that it is made to give then often does not
come from the document that states it. A model that copies another code out
of the documents owes it to them as much as a right one: that a document supports an answer does not
say that the answer is right. Every answer is a row of [support.csv](support.csv). Small networks
that are trained for such questions are [asked the same](trained_support.md).
"""
FINDING = """\
**Of answers whose words no document has, {wrong:.0%} are said to be supported by one; of answers
that a document of one sentence states, {missed:.0%} are said to have none, and {right:.0%} to
have one** ({count} answers by a small model). `lim-jax ask` takes the document that scores most
out of the text. Where the answer then loses {supported} of log odds or more, on average over its
tokens, the document is said to support it; where it loses less than {unsupported}, and all
documents together give it less than {little}, no document is. An answer whose log odds are below
{unlikely} with all documents, so that the model would hardly give it, is not said to be supported
by one; nor is one that it gives without the document too, and to which all documents together
give less than {little}."""
BY_ITSELF = """\
Of the answers that {who} gave, which are what `lim-jax ask` explains unless it is told another,
{wrong} of {absent} that no document has are said to be supported, and {right} of {stated} that a
document states."""


def page_of(rows: Sequence[Row], model: str) -> str:
    """Write the page: what is said of answers of each group, and how well statistics tell them."""
    judged = [row for row in rows if int(row["seed"]) >= SEEN]
    short = verdicts_by_group([row for row in judged if row["kind"] in SHORT])
    prose = verdicts_by_group([row for row in judged if row["kind"] == PROSE])
    stated = short["stated"]
    absent = short["absent"] + prose["absent"]
    return PAGE.format(
        finding=FINDING.format(
            wrong=absent["supported"] / absent.total(),
            missed=stated["unsupported"] / stated.total(),
            right=stated["supported"] / stated.total(),
            count=len(judged),
            supported=SUPPORTED,
            unsupported=UNSUPPORTED,
            little=LITTLE,
            unlikely=UNLIKELY,
        ),
        model=model,
        seen=SEEN,
        own=own_answers(judged, "the model itself"),
        rows=len(rows),
        draws=len({row["seed"] for row in rows if row["kind"] in SHORT}),
        prose=len({row["seed"] for row in rows if row["kind"] == PROSE}),
        verdicts="\n".join([*verdict_lines("one sentence", short), *verdict_lines("prose", prose)]),
        statistics="\n".join(_row_of_statistic(rows, name) for name in STATISTICS),
    )


def own_answers(rows: Sequence[Row], who: str) -> str:
    """Say what is said of the answers that a model gave itself."""
    counts = verdicts_by_group([row for row in rows if row["answer"] == "own"])
    return BY_ITSELF.format(
        who=who,
        wrong=counts["absent"]["supported"],
        absent=counts["absent"].total(),
        right=counts["stated"]["supported"],
        stated=counts["stated"].total(),
    )


def verdict_lines(documents: str, counts: Mapping[str, Counter[str]]) -> list[str]:
    """Return a line of a page's table for each group of answers, of the verdicts counted."""
    return [
        f"| {documents} | {GROUPS[group]} | {counted.total()} "
        f"| {' | '.join(str(counted[verdict]) for verdict in VERDICTS)} |"
        for group, counted in counts.items()
    ]


def cell_of(interval: Interval) -> str:
    """Return a number with its interval, as a page's table shows it."""
    return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"


def _row_of_statistic(rows: Sequence[Row], name: str) -> str:
    """Return a statistic's row of the page: its words, and three times how well it tells."""
    short = [row for row in rows if row["kind"] in SHORT]
    prose = [row for row in rows if row["kind"] == PROSE]
    found = [
        judge_statistic(short, name, ("absent",)),
        judge_statistic(short, name, ("absent", "elsewhere")),
        judge_statistic(prose, name, ("absent",)),
    ]
    return f"| {STATISTICS[name]} | {' | '.join(map(cell_of, found))} |"


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Read the rows of a table that was written."""
    with file.open(newline="", encoding="utf-8") as table:
        return list(csv.DictReader(table))


def main() -> None:
    """Ask, and write the table and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="a folder, a GGUF file or a name")
    parser.add_argument("--draws", type=int, default=12, help="of facts, and of keys")
    parser.add_argument("--prose", type=int, default=6, help="draws of prose, which takes longer")
    parser.add_argument("--out", type=Path, default=Path("support"), help="the folder to write to")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = LanguageModel.from_pretrained(options.model)
    draws = {**dict.fromkeys(SHORT, options.draws), PROSE: options.prose}
    rows = ask_all(model, draws, options.out)
    (options.out / "support.csv").write_text(data_file(rows), encoding="utf-8")
    page = page_of(rows_of(options.out / "support.csv"), model.name)
    (options.out / "support.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
