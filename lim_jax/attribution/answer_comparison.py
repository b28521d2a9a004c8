"""Two answers beside each other: what each part of the context gave to the one and to the other."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

from lim_jax._checks import require
from lim_jax._terminal import in_one_line
from lim_jax._text_tables import text_table
from lim_jax.attribution.methods.method_table import METHODS
from lim_jax.attribution.parts import IN_NO_PART, UNNAMED

ANSWER = "answer.json"
NUMBERED = re.compile(r"(.* \()?document \d+\)?")  # as `named_documents` numbers them
DOTS = "..."  # behind an answer that was cut
ENTRIES = {"question", "answer", "cut", "foil", "method", "given", "parts"}
AnswerRecord = Mapping[str, Any]  # what answer.json holds
Part = Mapping[str, Any]  # one of its parts
Pair = tuple[Part | None, Part | None]  # the same part of two answers; None where one has it not


class ComparedPart(NamedTuple):
    """A part's scores in both answers, and the second less the first; NaN where one has it not."""

    name: str  # the first answer's, where that has the part
    kind: str
    first: float
    second: float
    difference: float
    second_name: str = ""  # where the second answer has another


class ComparedAnswers(NamedTuple):
    """Two answers by one method, as `compare_answers` gives them."""

    names: tuple[str, str]
    answers: tuple[AnswerRecord, AnswerRecord]
    parts: list[ComparedPart]

    @property
    def finding(self) -> str:
        """Questions or foils that differ, answers, the largest change, and what one alone has."""
        texts = [shown_answer(answer["answer"], answer["cut"]) for answer in self.answers]
        lines = [f"{name}: “{text}”" for name, text in zip(self.names, texts, strict=True)]
        first, second = (shown_answer(answer["question"], False) for answer in self.answers)
        foils = [shown_answer(answer["foil"], cut=False) for answer in self.answers]
        if foils[0] != foils[1]:
            lines.insert(
                0, f"They are compared with different foils: “{foils[0]}” and “{foils[1]}”."
            )
        if first != second:
            lines.insert(0, f"They answer different questions: “{first}” and “{second}”.")
        documents = [part for part in self.parts if part.kind == "document"]
        both = [part for part in documents if not isnan(part.difference)]
        lines.append(f"Of the documents of both {self._largest_change(both)}.")
        only_first = [(part.name, part.first) for part in documents if isnan(part.second)]
        only_second = [(part.name, part.second) for part in documents if isnan(part.first)]
        for name, alone in zip(self.names, (only_first, only_second), strict=True):
            scores_alone = [f"“{document}” ({self._spelt(score)})" for document, score in alone]
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
        names = [IN_NO_PART if p.kind == UNNAMED else self._quoted(p) for p in self.parts]
        scores = [(part.first, part.second, part.difference) for part in self.parts]
        numbers = [list(map(self._spelt, row)) for row in scores]
        cells = [[name, *row] for name, row in zip(names, numbers, strict=True)]
        return [["score", *self.names, "difference"], *cells]

    def __str__(self) -> str:
        """Return the finding and the table."""
        return f"{self.finding}\n\n{text_table(self.rows)}"

    def _largest_change(self, parts: Sequence[ComparedPart]) -> str:
        """Say which part changed most and how, or that none did in the digits that are shown."""
        changed = [p for p in parts if self._spelt(p.first) != self._spelt(p.second)]
        if not changed:
            return "none changed"
        most = max(changed, key=lambda part: abs(part.difference))
        scores = f"{self._spelt(most.first)} to {self._spelt(most.second)}"
        return f"{self._quoted(most)} changed most, from {scores}"

    def _quoted(self, part: ComparedPart) -> str:
        """Return a part's name, with the second answer's beside it where that is another."""
        other = f" (in {self.names[1]} “{part.second_name}”)" if part.second_name else ""
        return f"“{part.name}”{other}"

    def _spelt(self, score: float) -> str:
        """Write a score with its sign, a share in per cent, and nothing for NaN."""
        if isnan(score):
            return ""
        signed = METHODS[self.answers[0]["method"]].signed
        return f"{score:+z.3f}" if signed else f"{score:.1%}"


def compare_answers(
    first: AnswerRecord, second: AnswerRecord, names: tuple[str, str] = ("first", "second")
) -> ComparedAnswers:
    """Put the scores that two answers by one method give each part beside each other.

    Documents are paired by their texts, and where a text was changed by the title. Where an answer
    says nothing of texts they are paired by their names.
    Questions and foils may differ; the finding says so.
    """
    kinds = [_kind_of_scores(answer) for answer in (first, second)]
    require(
        kinds[0] == kinds[1],
        "second",
        got=f"scores {kinds[1]}",
        expected=f"{kinds[0]}, as the first's",
        cure="Ask both by one method, and both with a foil or both without.",
    )
    parts = [part for part in first["parts"] if part["score"] is not None]
    other_parts = [part for part in second["parts"] if part["score"] is not None]
    by_text = all(_has_digests(answer["parts"]) for answer in (first, second))
    pairs = _pair_parts(parts, other_parts, by_text)
    what = "texts and titles" if by_text else "names"
    require(
        any(one and other and one["kind"] == "document" for one, other in pairs),
        "second",
        got="an answer from other documents",
        expected="at least one document of the first's",
        cure=f"Give a document in both: they are compared by their {what}.",
    )
    compared = [_compare_pair(pair) for pair in pairs]
    compared.sort(key=lambda part: (part.kind == UNNAMED, part.kind != "document"))
    return ComparedAnswers(names, (first, second), compared)


def _has_digests(parts: Sequence[Part]) -> bool:
    """Tell whether the documents among these parts have digests, as earlier versions wrote none."""
    return all(part.get("digest") for part in parts if part["kind"] == "document")


def _pair_parts(first: Sequence[Part], second: Sequence[Part], by_text: bool) -> list[Pair]:
    """Pair the parts of two answers by name, but documents by text where answers have digests.

    A name with a document's number changes where another document is left out. By any other name a
    document whose text was changed is the same one.
    """
    if not by_text:
        return _pair_by(_name, first, second)
    pairs = _pair_by(_digest_or_name, first, second)
    in_both = [pair for pair in pairs if None not in pair]
    only_first = [part for part, other in pairs if part is not None and other is None]
    only_second = [other for part, other in pairs if other is not None and part is None]
    changed = _pair_by(_given_name_or_digest, only_first, only_second)
    places = {id(part): place for place, part in enumerate([*first, *second])}

    def place(pair: Pair) -> int:
        """Return the place of a pair among the parts of both answers, by its first part."""
        return places[id(pair[1] if pair[0] is None else pair[0])]

    return sorted(in_both + changed, key=place)


def _name(part: Part) -> str:
    """Return a part's name."""
    return part["name"]


def _digest_or_name(part: Part) -> str:
    """Return the digest of a document's text, or the name of another part."""
    return part["digest"] or part["name"]


def _given_name_or_digest(part: Part) -> str:
    """Return the name that a user gave a part; a document that was only numbered has a digest."""
    return part["digest"] if NUMBERED.fullmatch(part["name"]) else part["name"]


def _pair_by(
    key: Callable[[Part], str], first: Sequence[Part], second: Sequence[Part]
) -> list[Pair]:
    """Pair the parts of one kind for which a key is the same."""
    alike = defaultdict[tuple[str, str], tuple[list[Part], list[Part]]](lambda: ([], []))
    for side, parts in enumerate((first, second)):
        for part in parts:
            alike[part["kind"], key(part)][side].append(part)
    return [pair for both in alike.values() for pair in _pair_alike(*both)]


def _pair_alike(first: Sequence[Part], second: Sequence[Part]) -> list[Pair]:
    """Pair parts that are alike, such as documents of one text: those of one name together."""
    shared = {part["name"] for part in first} & {part["name"] for part in second}

    def shared_first(part: Part) -> tuple[bool, str]:
        """Return a key by which parts of names that both have come first."""
        return part["name"] not in shared, part["name"]

    return list(zip_longest(sorted(first, key=shared_first), sorted(second, key=shared_first)))


def _compare_pair(pair: Pair) -> ComparedPart:
    """Return the scores of a part that one answer has or both, under the first's name."""
    first, second = (nan if part is None else part["score"] for part in pair)
    known = [part for part in pair if part is not None]
    name = known[0]["name"]
    second_name = known[-1]["name"]
    if second_name == name:
        second_name = ""
    return ComparedPart(name, known[0]["kind"], first, second, second - first, second_name)


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
