"""One page on an answer: a click on a part of it shades the documents by what that came from."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from lim_jax._checks import require_extra
from lim_jax.attribution.answer import Answer
from lim_jax.attribution.methods.table import METHODS
from lim_jax.attribution.scores import Scores, scores_by_token
from lim_jax.attribution.segments import CUTS, Segment, document_segments
from lim_jax.attribution.tokens import UNKNOWN, in_text, joined_tokens, visible
from lim_jax.prompts.contexts import Context
from lim_jax.report.page import HERE, template
from lim_jax.report.showing import Page

MANY = 5  # documents stand in their own order up to so many
STEPS = 127
DIGITS = 4
UNIT = "in log odds, on average over the answer's tokens"
OVER_FOIL = "in log odds, of the answer over the foil"
SHARE = "shares of what the whole context gives"


class _Shown(NamedTuple):
    """A sentence of a document, with its tokens as they are shown, or what is in none."""

    number: int
    tokens: Sequence[tuple[str, list[int]]]


def answer_page(answered: Answer, about: Mapping[str, str] | None = None) -> Page:
    """Make the page of an answer, which shades documents by their scores.

    A notebook shows it, and ``.save("answer.html")`` writes it. Needs the extra ``report``.

    Parameters
    ----------
    answered
        What `attribution.ask` returns.
    about
        Facts that the page shows, by name, such as the model's.
    """
    method = METHODS[answered.method]
    unit = OVER_FOIL if answered.foil else UNIT
    return Page(
        sources_page(
            answered.scores,
            answered.context,
            question=answered.question,
            how=method.how,
            unit=unit if method.signed else SHARE,
            findings=[answered.finding],
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
    findings: Sequence[str] = (),
    about: Mapping[str, str] | None = None,
) -> str:
    """Return the text of the page of scores: by token and sentence, where tokens have scores."""
    require_extra("jinja2", "report")
    scores = _shown_scores(scores, context)
    documents = _documents(context, scores.parts, scores.by_part)
    rest = _tokens(context, np.setdiff1d(np.arange(context.length), _places(scores.parts)))
    shown = [part for _, parts in documents for part in parts]
    tokens = [token for part in [*shown, _Shown(-1, rest)] for token in part.tokens]
    order = [part.number for part in shown]
    return template("sources").render(
        question=question,
        answer=_answer([part.text for part in scores.answer]),
        count=len(scores.answer),
        findings=findings,
        facts=about or {},
        how=how,
        unit=unit,
        documents=documents,
        rest=rest,
        data=_quantised(scores, [places for _, places in tokens])
        | {"parts": _rounded(scores.by_part[:, order])},
        style="".join((HERE / name).read_text("utf-8") for name in ("page.css", "sources.css")),
        script=(HERE / "sources.js").read_text("utf-8"),
    )


def _shown_scores(scores: Scores, context: Context) -> Scores:
    """Return scores of sentences by token; else of the parts that have some, spread evenly."""
    if scores.by_token is not None:
        return scores_by_token(scores.answer, document_segments(context), scores.by_token)
    parts = [scores.parts[column] for column in scores.documents.tolist()]
    by_part = scores.by_part[:, scores.documents]
    by_token = np.zeros((len(scores.answer), context.length))
    for part, column in zip(parts, by_part.T, strict=True):
        by_token[:, part.places] += column[:, None] / part.places.size
    return Scores(scores.answer, parts, by_part, by_token)


def _places(segments: Sequence[Segment]) -> np.ndarray:
    return np.concatenate([np.zeros(0, int), *(segment.places for segment in segments)])


def _documents(
    context: Context, sentences: Sequence[Segment], scores: Float[np.ndarray, "answer sentences"]
) -> list[tuple[str, list[_Shown]]]:
    """Each document's name and sentences; of many first those that gave most of the answer."""
    documents: dict[str, list[_Shown]] = {}
    gave: dict[str, float] = {}
    for number, (sentence, score) in enumerate(zip(sentences, scores.sum(axis=0), strict=True)):
        part = _Shown(number, _tokens(context, sentence.places))
        documents.setdefault(sentence.within, []).append(part)
        gave[sentence.within] = gave.get(sentence.within, 0.0) + float(score)
    names = list(documents)
    if len(names) > MANY:
        names.sort(key=lambda name: -abs(gave[name]))
    return [(name, documents[name]) for name in names]


def _tokens(context: Context, places: np.ndarray) -> list[tuple[str, list[int]]]:
    """Tokens as they are shown, each with its places in the context."""
    texts = [context.tokens[place] for place in places.tolist()]
    return [(_plain(text), places[group].tolist()) for text, group in joined_tokens(texts)]


def _plain(text: str) -> str:
    """A text to be read, in which only what cannot be seen at all has a mark."""
    return "".join(letter if letter in " \n\t" else visible(letter) for letter in text)


def _answer(texts: Sequence[str]) -> list[list[tuple[int, str]]]:
    """The parts of the answer by sentence: the number and the text of each."""
    sentences = CUTS["sentence"]([text or UNKNOWN for text in texts])
    shown = [_plain(text) if text.strip("\n") else in_text(text) for text in texts]
    return [[(row, shown[row]) for row in rows] for rows in sentences]


def _quantised(scores: Scores, tokens: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Scores of the shown tokens as bytes, a row for each part of the answer, with its scale."""
    assert scores.by_token is not None
    columns = [scores.by_token[:, places].sum(axis=1) for places in tokens]
    by_token = np.stack(columns, axis=1) if columns else scores.by_token[:, :0]
    scales = np.abs(by_token).max(axis=1, initial=0) / STEPS
    steps = by_token / np.where(scales > 0, scales, 1)[:, None]
    written = base64.b64encode(np.round(steps).astype(np.int8).tobytes()).decode()
    return {"steps": written, "scales": _rounded(scales)}


def _rounded(values: np.ndarray) -> list[Any]:
    written = [float(f"{value:.{DIGITS}g}") for value in values.ravel().tolist()]
    return np.array(written).reshape(values.shape).tolist()
