"""One page on an answer: a click on a part of it shades the documents by what that came from."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from lim_jax._checks import require_extra
from lim_jax._terminal import in_one_line
from lim_jax.attribution.answer import Answer
from lim_jax.attribution.answer_comparison import dots_after
from lim_jax.attribution.method import Scores, sum_by_part
from lim_jax.attribution.methods.method_table import METHODS
from lim_jax.attribution.segments import Segment, cut_tokens, document_segments
from lim_jax.attribution.together import DocumentGroup
from lim_jax.attribution.token_text import UNKNOWN, group_tokens, in_text, readable
from lim_jax.prompts import sentence_spans
from lim_jax.prompts.contexts import Context
from lim_jax.prompts.documents import title_size
from lim_jax.report.html_page import Page
from lim_jax.report.page import HERE, template
from lim_jax.results.percentages import percent

MANY = 5  # documents stand in their own order up to so many
STEPS = 127
EDGES = (0.02, 0.06, 0.2, 0.6, 2)  # of a token's score, from which on it has one shade more
DIGITS = 4
UNIT = "in log odds, on average over the answer's tokens"
OVER_FOIL = "in log odds, of the answer over the foil"


class _Shown(NamedTuple):
    """A part of a document, with its tokens as they are shown, or what is in none."""

    number: int
    tokens: Sequence[tuple[str, list[int]]]


class _ShownDocument(NamedTuple):
    """A document: its name, and its title, if that is a part of its own, and its other parts."""

    name: str
    title: list[_Shown]
    parts: list[_Shown]
    number: str  # what the name has after the title, such as where others have that title


def answer_page(answered: Answer, about: Mapping[str, str] | None = None) -> Page:
    """Make the page of an answer, which shades documents by their scores.

    A notebook shows it, and ``.save("answer.html")`` writes it. Needs the extra ``report``.

    Parameters
    ----------
    answered
        The answer with its scores, by `attribution.ask`.
    about
        Facts that the page shows, by name, such as the model's. By default it shows none.

    Returns
    -------
    Page
        The page: a click on a part of the answer shades the documents by what that came from.

    Raises
    ------
    ModuleNotFoundError
        Without the package jinja2, of the extra ``report``.
    """
    method = METHODS[answered.method]
    unit = OVER_FOIL if answered.foil else UNIT
    return Page(
        sources_page(
            answered.scores,
            answered.context,
            question=answered.question,
            how=method.how,
            unit=unit if method.signed else f"shares of {method.whole}",
            signed=method.signed,
            findings=[answered.finding],
            groups=[] if answered.together is None else answered.together.groups,
            about=about,
        )
    )


def sources_page(
    scores: Scores,
    context: Context,
    *,
    question: str,
    how: str,
    unit: str = UNIT,
    signed: bool = True,
    findings: Sequence[str] = (),
    groups: Sequence[DocumentGroup] = (),
    about: Mapping[str, str] | None = None,
) -> str:
    """Return the HTML of a page of scores: by token and sentence, where tokens have scores.

    Scores that are not `signed` are shares, which the page writes in per cent.
    """
    require_extra("jinja2", "report")
    scores = _shown_scores(scores, context)
    documents = _documents(scores.parts, scores.by_part)
    others = np.setdiff1d(np.arange(context.length), _positions(scores.parts))
    rest = _tokens([context.tokens[place] for place in others.tolist()], others)
    shown = [part for document in documents for part in (*document.title, *document.parts)]
    tokens = [token for part in [*shown, _Shown(-1, rest)] for token in part.tokens]
    order = [part.number for part in shown]
    return template("sources").render(
        question=readable(question),
        answer=_answer([part.text for part in scores.answer]),
        dots=dots_after(scores.answer[-1].text) if context.cut else "",
        count=len(scores.answer),
        findings=findings,
        facts=about or {},
        how=how,
        unit=unit,
        signed=signed,
        percents=[percent(edge) for edge in EDGES if edge < 1],
        documents=documents,
        groups=groups,
        rest=rest,
        data=_quantise(scores, [positions for _, positions in tokens])
        | {
            "parts": _round(scores.by_part[:, order]),
            **_errors(scores, order),
            "edges": EDGES,
            "signed": signed,
        },
        style="".join((HERE / name).read_text("utf-8") for name in ("page.css", "sources.css")),
        script=(HERE / "sources.js").read_text("utf-8"),
    )


def _shown_scores(scores: Scores, context: Context) -> Scores:
    """Return scores by sentence and token; those of parts alone spread evenly over their tokens.

    What is within two errors of zero has no shade. Errors are of the parts that were scored: a page
    of sentences has them where these are the same, or where tokens have changes, which add up.
    """
    parts = [scores.parts[column] for column in scores.documents.tolist()]
    errors = None if scores.errors is None else scores.errors[:, scores.documents]
    if scores.by_token is None:
        by_part = scores.by_part[:, scores.documents]
        by_token = np.zeros((len(scores.answer), context.length))
        for part, column in zip(parts, by_part.T, strict=True):
            by_token[:, part.positions] += column[:, None] / part.positions.size
    else:
        by_token = scores.by_token.copy()
        sentences = document_segments(context)
        by_part = sum_by_part(by_token, sentences)
        if scores.changes is not None:
            errors = np.abs(sum_by_part(scores.changes, sentences))
        elif [p.positions.tolist() for p in parts] != [s.positions.tolist() for s in sentences]:
            errors = None
        parts = sentences
    if errors is not None:
        unsure = ~(np.abs(by_part) > 2 * errors)
        for part, rows in zip(parts, unsure.T, strict=True):
            by_token[np.ix_(rows, part.positions)] = 0
    return Scores(scores.answer, parts, by_part, by_token, errors=errors, changes=scores.changes)


def _errors(scores: Scores, order: Sequence[int]) -> dict[str, Any]:
    """Return the errors of shown parts, or their signed changes in place of errors."""
    changes = None if scores.changes is None else sum_by_part(scores.changes, scores.parts)
    errors = scores.errors if changes is None else None
    return {
        name: None if by_part is None else _round(by_part[:, order])
        for name, by_part in (("errors", errors), ("changes", changes))
    }


def _positions(segments: Sequence[Segment]) -> np.ndarray:
    """Return the positions of all segments, one after another."""
    return np.concatenate([np.zeros(0, int), *(segment.positions for segment in segments)])


def _documents(
    parts: Sequence[Segment], scores: Float[np.ndarray, "answer parts"]
) -> list[_ShownDocument]:
    """Return each document with its parts; over `MANY` stand as in the table, by their scores."""
    documents: dict[str, _ShownDocument] = {}
    gave: dict[str, float] = {}
    for number, (part, score) in enumerate(zip(parts, scores.sum(axis=0), strict=True)):
        name = part.within
        # Its name stands above the document already.
        title = 0 if part.is_title or name in documents else _title_tokens(part)
        shown_part = _Shown(number, _tokens(part.texts[title:], part.positions[title:]))
        document = documents.setdefault(name, _ShownDocument(name, [], [], _number(part)))
        (document.title if part.is_title else document.parts).append(shown_part)
        gave[name] = gave.get(name, 0.0) + float(score)
    shown = list(documents.values())
    if len(shown) > MANY:
        shown.sort(key=lambda document: -gave[document.name])
    return shown


def _number(part: Segment) -> str:
    """Return what a document's name has after its title, where `part` is the line of that."""
    if not part.is_title:
        return ""
    title = in_one_line(part.text.removesuffix("\n"))  # as names have it
    return part.within.removeprefix(title).strip()


def _title_tokens(part: Segment) -> int:
    """Return with how many tokens a document's first part begins that show its title alone."""
    ends = np.cumsum([len(text) for text in part.texts])
    in_title = ends <= title_size(part.within, part.text)
    shows = np.array([text != "" for text in part.texts])  # of a character its last token does
    return int(np.max(np.flatnonzero(in_title & shows) + 1, initial=0))


def _tokens(texts: Sequence[str], positions: np.ndarray) -> list[tuple[str, list[int]]]:
    """Return tokens as they are shown, each with its positions in the context."""
    return [(readable(text), positions[group].tolist()) for text, group in group_tokens(texts)]


def _answer(texts: Sequence[str]) -> list[list[tuple[int, str]]]:
    """Return the parts of the answer by sentence: the number and the text of each."""
    texts = [text or UNKNOWN for text in texts]
    shown = [readable(text) if text.strip("\n") else in_text(text) for text in texts]
    sentences = cut_tokens(texts, sentence_spans.sentences("".join(texts)))
    return [[(row, shown[row]) for row in rows] for rows, _ in sentences]


def _quantise(scores: Scores, tokens: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the scores of shown tokens as bytes, a row and a scale for each part of the answer."""
    assert scores.by_token is not None
    columns = [scores.by_token[:, positions].sum(axis=1) for positions in tokens]
    by_token = np.stack(columns, axis=1) if columns else scores.by_token[:, :0]
    scales = np.abs(by_token).max(axis=1, initial=0) / STEPS
    steps = by_token / np.where(scales > 0, scales, 1)[:, None]
    written = base64.b64encode(np.round(steps).astype(np.int8).tobytes()).decode()
    return {"steps": written, "scales": _round(scales)}


def _round(values: np.ndarray) -> list[Any]:
    """Return an array as lists of numbers of `DIGITS` digits."""
    written = [float(f"{value:.{DIGITS}g}") for value in values.ravel().tolist()]
    return np.array(written).reshape(values.shape).tolist()
