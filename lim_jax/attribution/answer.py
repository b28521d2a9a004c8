"""An answer, and what each part of its context gave it: in a sentence, a table and a record."""

import html
from collections.abc import Sequence
from math import isnan
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from lim_jax._terminal import in_lines
from lim_jax._text_tables import text_table
from lim_jax.attribution.answer_comparison import ComparedAnswers, compare_answers, shown_answer
from lim_jax.attribution.method import Scores
from lim_jax.attribution.methods.method_table import METHODS
from lim_jax.attribution.parts import IN_NO_PART, UNNAMED
from lim_jax.attribution.support import AGAINST, Support, Verdict
from lim_jax.attribution.together import Together
from lim_jax.prompts.contexts import Context
from lim_jax.results.percentages import percent
from lim_jax.results.tables import FILES


class AnswerPart(NamedTuple):
    """A part of a question's context, its score, and its share of all documents' scores."""

    name: str
    kind: str  # document, question, message or rest
    score: float  # NaN of parts that the method does not score
    of_documents: float | None
    tokens: int
    of_tokens: float
    most: str
    error: float | None = None  # of the score, of methods that say it
    digest: str | None = None  # of a document's text


class Answer(NamedTuple):
    """An answer, and what each part of the context gave it; a notebook shows it as a table.

    Attributes
    ----------
    question, text, foil
        The question; the answer, the model's own or the user's; and what might have been answered
        instead, empty where that was not asked.
    cut
        Whether the model's own answer did not end within its tokens.
    method
        A name of `attribution.methods.method_table`.
    parts
        The documents by their scores, then other parts, and what is in none.
    context
        What the model read.
    scores
        Scores of parts of the answer by parts of the context.
    support
        Whether a document supports the answer; None of an answer beside a foil.
    together
        What the answer loses without sets of the documents that score most; None where the method
        is not "informed", or its passes do not suffice.
    """

    question: str
    text: str
    foil: str
    cut: bool
    method: str
    parts: tuple[AnswerPart, ...]
    context: Context
    scores: Scores
    support: Support | None = None
    together: Together | None = None

    @property
    def tokens(self) -> Float[np.ndarray, " length"] | None:
        """The scores of every token; None of methods of parts alone."""
        return self.scores.tokens

    @property
    def total_effect(self) -> float | None:
        """How much all documents together add to the answer's log odds; None where unknown."""
        effects = self.scores.total_effect
        return None if effects is None else float(effects.sum())

    @property
    def shown(self) -> str:
        """The answer in one line, with dots where it was cut."""
        return shown_answer(self.text, self.cut)

    @property
    def finding(self) -> str:
        """Whether a document supports the answer, which gave most, and what all of them give."""
        method = METHODS[self.method]
        foil = shown_answer(self.foil, cut=False)
        verdict = None if self.support is None else self.support.verdict
        sentences = [
            answer_finding(
                self.parts,
                self.shown,
                foil,
                signed=method.signed,
                verdict=verdict,
                whole=method.whole,
            )
        ]
        if self.support is not None:
            sentences += [self.support.finding, self._answered_without]
        if self.total_effect is not None:
            sum_of_scores = sum(part.score for part in self.parts if part.kind == "document")
            sentences.append(
                f"All documents together give {self.total_effect:+.2f} of log odds; their scores "
                f"add up to {sum_of_scores:+.2f}."
            )
        together = self.together
        sentences += [self.scores.note, "" if together is None else together.finding]
        return " ".join(filter(None, sentences))

    def record(self) -> dict[str, Any]:
        """Return the answer as plain numbers and words, as they stand in answer.json."""
        names = FILES["answer.json, parts"]
        return {
            "question": self.question,
            "answer": self.text,
            "cut": self.cut,
            "foil": self.foil,
            "method": self.method,
            "finding": self.finding,
            "support": None if self.support is None else self.support.record(),
            "given": self.total_effect,
            "together": None if self.together is None else self.together.record(),
            "parts": [
                {name: _written(getattr(part, name)) for name in names} for part in self.parts
            ],
        }

    def compare(self, second: "Answer") -> ComparedAnswers:
        """Compare the scores of each part in this answer and in a second.

        Parameters
        ----------
        second
            The other answer, by the same method, such as one that lacks a document.

        Returns
        -------
        ComparedAnswers
            The scores of each part in both.

        Raises
        ------
        ValueError
            Where methods differ, one alone has a foil, or no document is in both.
        """
        return compare_answers(self.record(), second.record())

    @property
    def _answered_without(self) -> str:
        """What the model answers without the document that scores most; empty where unknown."""
        without = None if self.support is None else self.support.answer_without
        if self.support is None or without is None:
            return ""
        if self.support.given_without:
            alike = "begins its answer alike" if self.cut else "gives the same answer"
            return f"The model then {alike}."
        if not without:
            return "The model then says nothing."
        stop = "" if without.endswith((".", "!", "?")) else "."
        return f"The model then answers “{without}”{stop}"

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        """The rows of the table: the names of its columns, then a row for each part."""
        signed = METHODS[self.method].signed
        score = "  score" if signed else "  share"
        if self.scores.errors is None:
            head = ("part", score, " of documents", " tokens", "most in")
        else:
            head = ("part", score, "  error", " of documents", " tokens", "most in")
        has_errors = self.scores.errors is not None
        return [head, *(_row(part, signed, has_errors) for part in self.parts)]

    @property
    def table(self) -> str:
        """The table of parts as text, with names in quotation marks but for the unnamed rest."""
        rows = self._rows
        return text_table(rows, left=(0, len(rows[0]) - 1))

    def __str__(self) -> str:
        """Return the finding, the question, the answer and the table in lines of text."""
        question = in_lines(self.question)
        return f"{self.finding}\n\nQuestion: {question}\nAnswer: {self.shown}\n{self.table}"

    def _repr_html_(self) -> str:
        """Return the question, the answer, the finding and the table of parts in HTML."""
        lines = (self.question, self.shown, self.finding)
        question, shown, finding = map(html.escape, lines)
        head, *rows = ([html.escape(cell) for cell in row] for row in self._rows)
        columns = "".join(f'<th scope="col">{name.strip()}</th>' for name in head)
        body = "".join(
            f'<tr><th scope="row"><bdi>{name}</bdi></th>'
            + "".join(f"<td><bdi>{cell}</bdi></td>" for cell in cells)
            + "</tr>"
            for name, *cells in rows
        )
        table = f"<thead><tr>{columns}</tr></thead><tbody>{body}</tbody>"
        heading = f'<p><b dir="auto">{question}</b><br><span dir="auto">{shown}</span></p>'
        return f"{heading}<p>{finding}</p><table>{table}</table>"


def answer_finding(
    parts: Sequence[AnswerPart],
    answer: str,
    foil: str = "",
    *,
    signed: bool = False,
    verdict: Verdict | None = None,
    whole: str = "the whole influence",
) -> str:
    """Say in a sentence which document gave most to the answer, if one supports it.

    `whole` says of what scores without a sign are shares.
    """
    documents = [part for part in parts if part.kind == "document"]
    top = _document_that_gave_most(documents)
    quoted = f"“{answer}”" if answer else "without visible letters"
    scores_most = f"the answer {quoted}; “{top.name}” scores most"
    if signed and top.score <= 0 and verdict in (None, "supported"):
        opening = f"No document speaks for the answer {quoted}; the least against it, “{top.name}”"
    elif foil:
        opening = f"“{top.name}” decides most between “{answer}” and “{foil}”"
    elif verdict == "unsupported":
        opening = f"No document supports {scores_most}"
    elif verdict == "unclear":
        opening = f"It is not clear whether a document supports {scores_most}"
    else:
        opening = f"The answer {quoted} comes from “{top.name}” most of all"
    if signed:
        return _finding_of_scores(opening, documents, 0.0 if foil else AGAINST)
    return _finding_of_shares(opening, documents, whole)


def _finding_of_shares(opening: str, documents: Sequence[AnswerPart], whole: str) -> str:
    """Say what the document that gave most holds, and what all hold, of methods without a sign."""
    top = _document_that_gave_most(documents)
    all_hold = f"{percent(sum(part.score for part in documents))} of {whole}"
    if len(documents) == 1:
        tokens = "1 token" if top.tokens == 1 else f"{top.tokens} tokens"
        return f"{opening}: it holds {all_hold}, with {tokens}."
    return (
        f"{opening}: it holds {percent(top.of_documents)} of what the {len(documents)} documents "
        f"hold, with {top.tokens} of their {_tokens_of(documents)} tokens. They hold {all_hold}."
    )


def _finding_of_scores(opening: str, documents: Sequence[AnswerPart], against: float) -> str:
    """Say what the document that gave most scores, and which speaks against the answer.

    One does whose score is negative, by `against` or more, and by twice its error.
    """
    top = _document_that_gave_most(documents)
    least = min(documents, key=lambda part: part.score)
    finding = (
        f"{opening}: {top.score:+.2f}, with {top.tokens} of {_tokens_of(documents)} tokens of "
        "documents."
    )
    least_against = max(against, 2 * (least.error or 0.0))
    if least.score <= -least_against and least.score < 0 < top.score:
        finding += f" Against it speaks “{least.name}” most: {least.score:+.2f}."
    return finding


def _document_that_gave_most(documents: Sequence[AnswerPart]) -> AnswerPart:
    """Return the document of the largest score; one that has no tokens gave nothing."""
    return max(documents, key=lambda part: (part.tokens > 0, part.score))


def _tokens_of(documents: Sequence[AnswerPart]) -> int:
    """Count the tokens of documents."""
    return sum(part.tokens for part in documents)


def _written(value: Any) -> Any:
    """Return a value as JSON has it: None in place of NaN."""
    return None if isinstance(value, float) and isnan(value) else value


def _error_words(part: AnswerPart) -> str:
    """Return the error of a part's score for the table; nothing where it is not known."""
    return "" if part.error is None else f"±{part.error:.3f}"


def _row(part: AnswerPart, signed: bool, has_errors: bool) -> tuple[str, ...]:
    """Return a part's row of the table: name, score, its error if the method says any, and more.

    These are the share of all documents' scores, the number of tokens, and the main tokens.
    """
    score_format = "+.3f" if signed else ".1%"
    share_format = "+.1%" if signed else ".1%"
    score = "" if isnan(part.score) else f"{part.score:{score_format}}"
    share = "" if part.of_documents is None else f"{part.of_documents:{share_format}}"
    name = IN_NO_PART if part.kind == UNNAMED else f"“{part.name}”"
    tokens = f"{part.tokens}"
    if has_errors:
        return name, score, _error_words(part), share, tokens, part.most
    return name, score, share, tokens, part.most
