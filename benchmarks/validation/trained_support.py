"""Ask small networks that are trained here, and which of their answers a document supports.

``python -m benchmarks.validation.trained_support [--draws N] [--steps N] [--out FOLDER]`` trains
two small networks to answer questions about documents of a sentence each: where no document states
the answer, one learns to say that it is unknown, and the other to guess. It asks both what
`benchmarks.validation.support` asks a published model, and writes ``trained_support.csv``, a row
for each answer, and ``trained_support.md``: what is said of the answers by thresholds that were set
on the published model, which ones each network would have set, and whether a regression of several
statistics tells more than one. The networks and the answers stay in the folder, and another run
goes on from there.
"""

import argparse
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.report import data_file
from benchmarks.validation.combined_statistics import (
    ALONE,
    COMBINATIONS,
    gain_of,
    with_combinations,
)
from benchmarks.validation.facts import FACTS, NAMES
from benchmarks.validation.intervals import Interval
from benchmarks.validation.lessons import BATCH, DEPTH, STEPS, WIDTH, Lesson, share_right, train
from benchmarks.validation.support import (
    SHORT,
    STATISTICS,
    Row,
    ask_all,
    cell_of,
    documents_of,
    drawn_question,
    group_of,
    judge_statistic,
    over_questions,
    own_answers,
    rows_of,
    verdict_lines,
    verdicts_by_group,
)
from lim_jax.attribution.support import LITTLE, SUPPORTED, UNLIKELY, UNSUPPORTED
from lim_jax.models import LanguageModel
from lim_jax.prompts import Document
from lim_jax.prompts.documents import document_prompt

# Networks, by what they learn where no document states the answer.
SAYS_UNKNOWN = "says unknown"
GUESSES = "guesses"
KIND = "facts"  # of the questions of `support` that they are asked
NETWORKS = (SAYS_UNKNOWN, GUESSES)
PUBLISHED = "SmolLM2-135M"
TABLE = Path(__file__).parents[2] / "docs" / "study" / "support.csv"  # of its answers
# Documents of the lessons of each batch: few are learnt from sooner.
COUNTS = (1, 2, 1, 3, 1, 4, 2, 5)
ABSENT = 2  # facts of a lesson that no document states
QUESTIONS = 5  # of a lesson, at most
CONTRADICTED = 0.15  # of lessons: the share in which two documents do
SEEN = 48  # draws of questions with whose answers in sight thresholds were chosen
UNSEEN = 1000  # the seed of the first question that judges a network
TESTS = 512


def drawn_lesson(network: str, number: int) -> Lesson:
    """Draw a lesson of a network: questions about one to six documents, each of a person's fact.

    Of two documents that contradict each other either may be right.

    >>> lesson = drawn_lesson(SAYS_UNKNOWN, 3)
    >>> print("".join(prompt + answer for prompt, answer in zip(*lesson)))
    Note 1
    Simon speaks Arabic.
    <BLANKLINE>
    Question: Which language does Omar speak?
    Answer: unknown
    <BLANKLINE>
    Question: What did Peter drive?
    Answer: unknown
    <BLANKLINE>
    Question: Which language does Simon speak?
    Answer: Arabic
    """
    rng = np.random.default_rng(number)
    count = COUNTS[number // BATCH % len(COUNTS)]
    persons = rng.permutation(NAMES)[: count + ABSENT].tolist()
    facts = [FACTS[n] for n in rng.integers(len(FACTS), size=len(persons))]
    things = [rng.permutation(of_fact.split())[:2].tolist() for _, _, of_fact in facts]
    contradicted = rng.random() < CONTRADICTED
    stated = [(n, 0) for n in range(count)] + [(0, 1)] * contradicted
    texts = [f"{persons[n]} {facts[n][0].format(things[n][which])}" for n, which in stated]
    documents = [
        Document(f"Note {n}" if rng.integers(2) else text.split()[0], text)
        for n, text in enumerate(rng.permutation(texts).tolist(), 1)
    ]
    asked = rng.permutation(len(persons))[:QUESTIONS].tolist()
    first, *others = (facts[n][1].format(persons[n]) for n in asked)
    prompts = [
        document_prompt(documents, first).text,
        *(f"\n\nQuestion: {question}\nAnswer:" for question in others),
    ]

    def answer(n: int) -> str:
        """Return what a person's fact is said to be."""
        if n >= count and network == SAYS_UNKNOWN:
            return "unknown"
        return things[n][rng.integers(2) if contradicted and n == 0 else 0]

    return Lesson(prompts, [f" {answer(n)}" for n in asked])


def taught(network: str, steps: int, folder: Path) -> LanguageModel:
    """Train a network on its lessons; one that is in the folder is read."""
    key = jax.random.key(NETWORKS.index(network))
    return train(network, partial(drawn_lesson, network), steps, folder, key)


def unseen_lessons() -> list[Lesson]:
    """Draw questions of `support` that are not asked there, whose documents state the answer."""
    lessons = []
    for number in range(TESTS):
        question = drawn_question(KIND, UNSEEN + number)
        documents = documents_of(question, ("evidence",), False)
        prompt = document_prompt(documents, question.text).text
        lessons.append(Lesson([prompt], [f" {question.right}"]))
    return lessons


def answers_of(network: str, draws: int, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Train a network and ask it; ``right``: of how many unseen prompts it copies the answer."""
    folder.mkdir(parents=True, exist_ok=True)
    model = taught(network, steps, folder)
    about = {"network": network, "right": share_right(model, unseen_lessons())}
    return [about | row for row in ask_all(model, {KIND: draws}, folder)]


# What each threshold is, by what it is measured on: the quantile of a statistic in a group.
THRESHOLDS = {
    f"loss from which a document supports it, {SUPPORTED}": ("lost", "absent", 0.95),
    f"loss below which none may, {UNSUPPORTED}": ("lost", "stated", 0.05),
    f"sum of all documents below which none does, {LITTLE}": ("given", "stated", 0.05),
    f"log odds below which none is said to, {UNLIKELY}": ("log odds", "stated", 0.05),
}
BELOW = {
    "no document has its words": ("absent",),
    "no document states it": ("absent", "elsewhere"),
}
PAGE = """\
# Does a document support the answer of a network trained for it?

{finding}

`python -m benchmarks.validation.trained_support` trains two networks of {depth} layers of width
{width}, each on one core of a processor in a few minutes, to answer questions about documents of
one sentence, which states a fact of a person. Where no document states the answer, one network
learns to say “unknown”, and the other to guess. They give the answers to {right} of {tests} other
prompts whose documents state it. They are asked what [{published} was asked](support.md) of such
documents, {rows} times: with the evidence there, without it, with evidence about another person,
and beside a document that contradicts it; for their own answer, the right one and a wrong one.
Where there is evidence about another person, {copied} of their {of_another} own answers are taken
from it: they heed what is asked of a person more than who it is.

What `lim-jax ask` says of the answers to {judged} of the {draws} questions. Its thresholds were set
on {published}; but the rules on answers that a model would hardly give, or gives without the
document too, were chosen with these networks' answers to the other {seen} in sight:

| the network | the answer | answers | supported | not clear | no document |
|---|---|---|---|---|---|
{verdicts}

{own} Without these two rules {without} of those that no document has would be called supported:
most are wrong answers that the first network was made to give, which become still less likely
without a document.

How often a statistic of an answer that a document states is above that of another answer, with 95 %
over questions drawn anew:

| statistic | {columns} |
|---|---|---|---|---|
{statistics}

The thresholds that each would have set, {published} on its facts and codes of one sentence: of
answers whose words no document has, one in twenty loses more than the first; of those that a
document states, one in twenty loses less than the second, one is given less than the third by all
documents together, and one has lower log odds than the fourth.

| threshold, in log odds | {models} |
|---|---|---|---|
{thresholds}

## Statistics made into one

{combined}

| the model | the other answer | what it loses, alone | a regression | gain | the lesser | gain |
|---|---|---|---|---|---|---|
{combinations}

The regression is a logistic one, of what the answer loses, what all documents give, and the largest
score less the second. It is fitted to questions of even number; all in this table are judged on
those of odd number. The lesser is that of what the answer loses and what all documents give. Every
answer is a row of [trained_support.csv](trained_support.csv) or of [support.csv](support.csv).
"""
FINDING = """\
**Of two small networks' answers that no document has, {wrong} are said to be supported by one; of
answers that a document states, {missed} are said to have none, and {right} to have one.**"""
COMBINED = """\
Over what the answer loses alone, a regression of three statistics gains more than nothing by its
interval in {regression} of {count} comparisons, and the lesser of two statistics in {lesser}. A
regression needs answers of the same model of which it is told whether a document states them, so
`lim-jax ask` takes none."""


def page_of(rows: Sequence[Row], published: Sequence[Row]) -> str:
    """Write the page of the networks' answers, with those of the published model beside them."""
    networks = {name: [row for row in rows if row["network"] == name] for name in NETWORKS}
    models = {PUBLISHED: [row for row in published if row["kind"] in SHORT], **networks}
    judged = [row for row in rows if int(row["seed"]) >= SEEN]
    counts = _counts_by_network(judged)
    as_likely = {"log odds": 0.0, "given without": 0}  # of which neither rule refuses any
    without_rules = _counts_by_network([{**row, **as_likely} for row in judged])
    draws = len({row["seed"] for row in rows})
    of_another = [row for row in rows if (row["documents"], row["answer"]) == ("other", "own")]
    comparisons = [
        Comparison(name, words, *_compare(with_combinations(answers), BELOW[words]))
        for name, answers in models.items()
        for words in BELOW
    ]
    return PAGE.format(
        finding=FINDING.format(
            wrong=_shares(counts, "absent", "supported"),
            missed=_shares(counts, "stated", "unsupported"),
            right=_shares(counts, "stated", "supported"),
        ),
        depth=DEPTH,
        width=WIDTH,
        tests=TESTS,
        right=" and ".join(f"{float(answers[0]['right']):.0%}" for answers in networks.values()),
        published=PUBLISHED,
        rows=len(rows),
        draws=draws,
        judged=draws - SEEN,
        seen=SEEN,
        own=own_answers(judged, "the networks themselves"),
        without=_shares(without_rules, "absent", "supported"),
        copied=sum(group_of(row) == "elsewhere" for row in of_another),
        of_another=len(of_another),
        verdicts="\n".join(line for name in networks for line in verdict_lines(name, counts[name])),
        columns=" | ".join(f"{name}: {words}" for name in networks for words in BELOW),
        statistics="\n".join(
            _line(
                STATISTICS[column],
                [
                    judge_statistic(answers, column, below)
                    for answers in networks.values()
                    for below in BELOW.values()
                ],
            )
            for column in STATISTICS
        ),
        models=" | ".join(models),
        thresholds="\n".join(
            _line(words, [_quantile(answers, *of) for answers in models.values()])
            for words, of in THRESHOLDS.items()
        ),
        combined=COMBINED.format(
            regression=sum(each.gain_of_regression.low > 0 for each in comparisons),
            lesser=sum(each.gain_of_lesser.low > 0 for each in comparisons),
            count=len(comparisons),
        ),
        combinations="\n".join(
            _line(f"{name} | {words}", found) for name, words, *found in comparisons
        ),
    )


class Comparison(NamedTuple):
    """How well a statistic tells answers, and how much better combinations do."""

    model: str
    other_answer: str
    alone: Interval
    regression: Interval
    gain_of_regression: Interval
    lesser: Interval
    gain_of_lesser: Interval


def _compare(rows: Sequence[Row], below: Collection[str]) -> list[Interval]:
    """Judge what is lost, and each combination and its gain, on rows of `with_combinations`."""
    judged = [judge_statistic(rows, ALONE, below)]
    for name in COMBINATIONS:
        judged += [judge_statistic(rows, name, below), gain_of(rows, name, below)]
    return judged


def _counts_by_network(rows: Sequence[Row]) -> dict[str, dict[str, Counter[str]]]:
    """Count what is said of each network's answers, by their groups."""
    return {
        name: verdicts_by_group([row for row in rows if row["network"] == name])
        for name in NETWORKS
    }


def _shares(counts: Mapping[str, Mapping[str, Counter[str]]], group: str, verdict: str) -> str:
    """Return each network's share of a verdict among the answers of a group."""
    return " and ".join(
        f"{by_group[group][verdict] / by_group[group].total():.0%}" for by_group in counts.values()
    )


def _line(name: str, intervals: Sequence[Interval]) -> str:
    """Return a line of a table: a name, and numbers with their intervals."""
    return f"| {name} | {' | '.join(map(cell_of, intervals))} |"


def _quantile(rows: Sequence[Row], name: str, group: str, level: float) -> Interval:
    """Return a quantile of a statistic over answers of one group, and its interval."""

    def quantile(drawn: Sequence[Row]) -> float:
        """Compute it of these rows."""
        return float(np.quantile([float(r[name]) for r in drawn if group_of(r) == group], level))

    return over_questions(rows, quantile)


def main() -> None:
    """Train, ask, and write the table and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=72, help="of questions")
    parser.add_argument("--steps", type=int, default=STEPS, help="of training")
    parser.add_argument("--out", type=Path, default=Path("support"), help="the folder to write to")
    options = parser.parse_args()
    rows = [
        row
        for network in NETWORKS
        for row in answers_of(network, options.draws, options.steps, options.out / network)
    ]
    table = options.out / "trained_support.csv"
    table.write_text(data_file(rows), encoding="utf-8")
    page = page_of(rows_of(table), rows_of(TABLE))
    (options.out / "trained_support.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
