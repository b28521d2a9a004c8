"""Two answers beside each other: what each part of the context gave to the one and to the other."""

import json
import os
from collections.abc import Mapping
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

from lim_jax._checks import require
from lim_jax._terminal import in_one_line
from lim_jax._text_tables import text_table
from lim_jax.attribution.methods.method_table import METHODS
from lim_jax.attribution.parts import IN_NO_PART, UNNAMED

ANSWER = "answer.json"
DOTS = "..."  # behind an answer that was cut
ENTRIES = {"question", "answer", "cut", "foil", "method", "given", "parts"}
AnswerRecord = Mapping[str, Any]  # what answer.json holds


class ComparedPart(NamedTuple):
    """A part's scores in both answers, and the second less the first; NaN where one has it not."""

    name: str
    kind: str
    first: float
    second: float
    difference: float


class ComparedAnswers(NamedTuple):
    """Two answers by one method, as `compare_answers` gives them."""

    names: tuple[str, str]
    answers: tuple[AnswerRecord, AnswerRecord]
    parts: list[ComparedPart]

    @property
    def finding(self) -> str:
        """Questions that differ, both answers, the largest change, and what one alone has."""
        texts = [shown_answer(answer["answer"], answer["cut"]) for answer in self.answers]
        lines = [f"{name}: “{text}”" for name, text in zip(self.names, texts, strict=True)]
        first, second = (shown_answer(answer["question"], False) for answer in self.answers)
        if first != second:
            lines.insert(0, f"They answer different questions: “{first}” and “{second}”.")
        documents = [part for part in self.parts if part.kind == "document"]
        both = [part for part in documents if not isnan(part.difference)]
        most = max(both, key=lambda part: abs(part.difference))
        scores = f"{self._spelt(most.first)} to {self._spelt(most.second)}"
        lines.append(f"Of the documents of both “{most.name}” changed most, from {scores}.")
        for name, column in zip(self.names, ("second", "first"), strict=True):
            alone = [part for part in documents if isnan(getattr(part, column))]
            scores_alone = [
                f"“{p.name}” ({self._spelt(p.first)}{self._spelt(p.second)})" for p in alone
            ]
            if scores_alone:
                lines.append(f"Only in {name}: {', '.join(scores_alone)}.")
        total_effects = [answer["given"] for answer in self.answers]
        if None not in total_effects:
            both_give = "All documents together give {:+.2f} and {:+.2f} of log odds."
            lines.append(both_give.format(*total_effects))
        return "\n".join(lines)

    @property
    def rows(self) -> list[list[str]]:
        """The rows of the table; the first names the columns."""
        names = [IN_NO_PART if p.kind == UNNAMED else f"“{p.name}”" for p in self.parts]
        numbers = [list(map(self._spelt, part[2:])) for part in self.parts]
        cells = [[name, *row] for name, row in zip(names, numbers, strict=True)]
        return [["score", *self.names, "difference"], *cells]

    def __str__(self) -> str:
        """Return the finding and the table."""
        return f"{self.finding}\n\n{text_table(self.rows)}"

    def _spelt(self, score: float) -> str:
        """Write a score with its sign, a share in per cent, and nothing for NaN."""
        if isnan(score):
            return ""
        signed = METHODS[self.answers[0]["method"]].signed
        return f"{score:+.3f}" if signed else f"{score:.1%}"


def compare_answers(
    first: AnswerRecord, second: AnswerRecord, names: tuple[str, str] = ("first", "second")
) -> ComparedAnswers:
    """Put the scores that two answers by one method give each part beside each other.

    The questions may differ; the finding says so.
    """
    kinds = [_kind_of_scores(answer) for answer in (first, second)]
    require(
        kinds[0] == kinds[1],
        "second",
        got=f"scores {kinds[1]}",
        expected=f"{kinds[0]}, as the first's",
        cure="Ask both by one method, and both with a foil or both without.",
    )
    scores = [
        {(p["name"], p["kind"]): p["score"] for p in answer["parts"] if p["score"] is not None}
        for answer in (first, second)
    ]
    shared = [kind for _, kind in scores[0].keys() & scores[1].keys()]
    require(
        "document" in shared,
        "second",
        got="an answer from other documents",
        expected="at least one document of the first's",
        cure="Give the documents the same names in both: they are compared by name.",
    )
    labels = sorted({**scores[0], **scores[1]}, key=lambda p: (p[1] == UNNAMED, p[1] != "document"))
    parts = []
    for name, kind in labels:
        first_score, second_score = (by_part.get((name, kind), nan) for by_part in scores)
        parts.append(
            ComparedPart(name, kind, first_score, second_score, second_score - first_score)
        )
    return ComparedAnswers(names, (first, second), parts)


def shown_answer(text: str, cut: bool) -> str:
    """Return an answer in one line, with dots where it was cut."""
    line = in_one_line(" ".join(text.split()))
    return line + dots_after(line) if cut else line


def dots_after(text: str) -> str:
    """Return the dots that an answer that was cut lacks to end with three."""
    text = text.rstrip().replace("…", DOTS)
    return DOTS[len(text) - len(text.rstrip(".")) :]


def _kind_of_scores(answer: AnswerRecord) -> str:
    """Say by which method an answer was scored, and whether against a foil."""
    by = f"by {answer['method']}"
    return f"{by}, against a foil" if answer["foil"] else by


def read_answers(first: Path, second: Path) -> list[AnswerRecord]:
    """Read the answers that `ask` wrote to two folders; return none where neither has one.

    Raise ValueError where one of them alone has an answer.
    """
    files = {"first": first / ANSWER, "second": second / ANSWER}
    without = [name for name, file in files.items() if not os.path.isfile(file)]
    for name in without:
        require(
            len(without) == 2,
            name,
            got=f"{files[name].parent}, which has no {ANSWER}, as the other folder has",
            expected="two folders of lim-jax ask, or two of lim-jax profile",
            cure="Pass two folders of one command.",
        )
    return [] if without else [_read(file, name) for name, file in files.items()]


def _read(file: Path, name: str) -> AnswerRecord:
    """Read an answer.json; raise ValueError unless it has all entries."""
    try:
        record = json.loads(file.read_text("utf-8"))
    except ValueError:
        record = {}
    complete = isinstance(record, dict) and ENTRIES <= record.keys()
    require(
        complete,
        name,
        got=f"{file}, which is damaged or of another version",
        expected="what lim-jax ask writes",
        cure="Ask anew with `overwrite`.",
    )
    return record
