"""A question asked of a model and of documents: which of them its answer comes from."""

import html
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from lim_jax._checks import (
    AnyPath,
    as_int,
    described,
    require,
    require_kind,
    require_name,
    require_text,
)
from lim_jax._tables import text_table
from lim_jax._terminal import in_lines
from lim_jax.attribution.comparing import ComparedAnswers, compare_answers, shown_answer
from lim_jax.attribution.matrix import PartScores, part_scores
from lim_jax.attribution.measuring import Bar, no_bar, require_fitting
from lim_jax.attribution.methods import (
    METHODS,
    MethodName,
    Scored,
    given_by_parts,
    scored_by_tokens,
    scores_of_parts,
)
from lim_jax.attribution.parts import IN_NO_PART, REST, parts_of
from lim_jax.attribution.segments import (
    AnswerParts,
    DocumentParts,
    Segment,
    answer_segments,
    document_segments,
)
from lim_jax.attribution.tokens import held_by_text, most_in_words
from lim_jax.models.language_model import LanguageModel
from lim_jax.models.losses import LossName, loss_kind
from lim_jax.models.text import texts_of_ids
from lim_jax.prompts.answering import self_answered
from lim_jax.prompts.contexts import Context, PromptOnly
from lim_jax.prompts.documents import QUESTION, Document, named_documents, require_question
from lim_jax.prompts.reading import Line, context_of_line, read_documents, spaced
from lim_jax.results.measured import percent
from lim_jax.results.tables import FILES


class AnswerPart(NamedTuple):
    """A part of a question's context, its score, and its share of all documents' scores."""

    name: str
    kind: str  # document, question, message or rest
    score: float
    of_documents: float | None
    tokens: int
    of_tokens: float
    most: str


class Answer(NamedTuple):
    """An answer, and what each part of the context gave it; a notebook shows it as a table."""

    question: str
    text: str  # as the model, or you, answered
    foil: str  # empty where none was asked
    cut: bool  # whether the model's own answer did not end within its tokens
    method: str  # one of `METHODS`
    parts: tuple[AnswerPart, ...]  # documents by their scores, then other parts, and the rest
    context: Context  # what the model read
    tokens: Float[np.ndarray, " length"] | None  # the scores; None of methods of parts alone
    # The log odds with all documents less those with next to nothing of them; None of methods that
    # do not say. And scores of parts of the answer by parts of documents, where there are such.
    given: float | None = None
    by_part: PartScores | None = None

    @property
    def shown(self) -> str:
        """The answer in one line, with dots where it was cut."""
        return shown_answer(self.text, self.cut)

    @property
    def finding(self) -> str:
        """Which document gave most, in a sentence."""
        signed = METHODS[self.method].signed
        foil = shown_answer(self.foil, cut=False)
        finding = finding_of(self.parts, self.shown, foil, signed=signed)
        if self.given is None:
            return finding
        finding += f" All documents together give {self.given:+.2f} of log odds"
        if METHODS[self.method].adds_up:
            # They differ by the quadrature's error alone.
            whole = sum(part.score for part in self.parts)
            finding += f"; their scores add up to {whole:+.2f}"
        missed = "" if self.by_part is None else self.by_part.missed
        return f"{finding}.{missed}"

    def record(self) -> dict[str, Any]:
        """Plain numbers and words, as answer.json has them."""
        parts = [
            {name: getattr(part, name) for name in FILES["answer.json, parts"]}
            for part in self.parts
        ]
        return {
            "question": self.question, "answer": self.text, "cut": self.cut, "foil": self.foil,
            "method": self.method, "finding": self.finding, "given": self.given, "parts": parts,
        }  # fmt: skip

    def compare(self, second: "Answer") -> ComparedAnswers:
        """The scores of each part in this answer and in a second, such as one without a document.

        Raise ValueError where methods differ, one alone has a foil, or no document is in both.
        """
        return compare_answers(self.record(), second.record())

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        signed = METHODS[self.method].signed
        score = "  score" if signed else "  share"
        head = ("part", score, " of documents", " tokens", "most in")
        return [head, *(_row(part, signed) for part in self.parts)]

    @property
    def table(self) -> str:
        """The parts, a line each: whole names in quotation marks, which the rest has not."""
        return text_table(self._rows, left=(0, 4))

    def __str__(self) -> str:
        """What a terminal shows."""
        question = in_lines(self.question)
        return f"{self.finding}\n\nQuestion: {question}\nAnswer: {self.shown}\n{self.table}"

    def _repr_html_(self) -> str:
        lines = (self.question, self.shown, self.finding)
        question, shown, finding = map(html.escape, lines)
        rows = ("</bdi></td><td><bdi>".join(map(html.escape, row)) for row in self._rows)
        table = "".join(f"<tr><td><bdi>{row}</bdi></td></tr>" for row in rows)
        asked = f'<p><b dir="auto">{question}</b><br><span dir="auto">{shown}</span></p>'
        return f"{asked}<p>{finding}</p><table>{table}</table>"


def ask(
    model: LanguageModel,
    question: str,
    documents: AnyPath | Sequence[str | Document],
    *,
    method: MethodName = "mask-gradient",
    parts: AnswerParts | None = None,
    document_parts: DocumentParts = "sentences",
    answer: str | None = None,
    foil: str = "",
    chat: bool = True,
    answer_tokens: int = 32,
    max_length: int = 4096,
    progress: Bar = no_bar,
) -> Answer:
    """Ask a model a question about documents, and say which of them its answer comes from.

    Raises ValueError where the question or all documents are empty, the model ends at once, or the
    method or its parts do not go together with the foil.

    Parameters
    ----------
    documents
        A folder of texts, a file of texts, or a list of texts or of `Document`.
    method
        How parts are scored: one of `attribution.methods.METHODS`.
    parts, document_parts
        Of the mask gradient and path: the answer's, each by a backward pass for each gradient,
        ``"answer"``, ``"sentence"`` (the default without a foil) or ``"token"``; and those of
        documents, ``"documents"``, ``"paragraphs"``, ``"sentences"`` or ``"tokens"``.
    answer
        What is explained; None for what the model answers itself, of `answer_tokens` at most.
    foil
        What might have been answered instead; then scores are of the odds of the two, else of the
        log odds of the answer's tokens, on average.
    chat
        Whether the model's chat template lays question and documents out, where it has one.
    max_length
        The most tokens of question and documents; more are refused.
    progress
        Such as ``tqdm.tqdm``.

    Examples
    --------
    >>> import jax
    >>> from lim_jax.models import byte_model
    >>> network = byte_model(96, width=8, heads=2, depth=1, key=jax.random.key(0))
    >>> answered = ask(LanguageModel(network), "Who?", ["Wren.", "Owl."], answer="She")
    >>> [part.kind for part in answered.parts], answered.shown
    (['document', 'document', 'question', 'rest'], 'She')
    """
    require_kind(model, LanguageModel, "model", "Take LanguageModel.from_pretrained(path).")
    as_int(max_length, "max_length")
    as_int(answer_tokens, "answer_tokens")
    require_name(method, METHODS, "method", "attribution.methods.METHODS says what each is.")
    line = question_line(model, question, documents, answer=answer, foil=foil, chat=chat)
    loss: LossName = "contrast" if foil else "margin"
    parts = parts_of_answer(method, foil, parts)
    read = context_of_line(line, model.tokenizer, loss, max_length)
    context = answered_context(model, read, loss, answer_tokens, progress)
    cuts = parts, document_parts
    scored, by_part = scores_of_answer(model, context, loss, method, cuts, bar=progress)
    return answer_of(line, context, scored, model, method, question)._replace(by_part=by_part)


def parts_of_answer(method: str, foil: str, parts: AnswerParts | None) -> AnswerParts | None:
    """Which parts of the answer are scored; None where the method has no such scores."""
    has_parts = METHODS[method].by_log_weights
    require(has_parts or parts is None, "parts", got=f"{parts!r} with the method {method!r}",
            expected="mask-gradient or mask-path",
            cure="Leave the parts out, or take one of these methods.")  # fmt: skip
    require(not foil or parts in (None, "answer"), "parts", got=f"{parts!r} with a foil",
            expected="the whole answer",
            cure="A foil is another whole answer: no part of it stands against a part of the "
            "answer. Leave one of the two out.")  # fmt: skip
    return (parts or ("answer" if foil else "sentence")) if has_parts else None


def scores_of_answer(
    model: LanguageModel,
    context: Context,
    loss: LossName,
    method: str,
    cuts: tuple[AnswerParts | None, DocumentParts],
    bar: Bar = no_bar,
    checkpoint: Path | None = None,
) -> tuple[Scored, PartScores | None]:
    """The scores of an answer; and where it is cut into parts theirs, which sum to the answer's."""
    parts, document_parts = cuts
    if parts is None or context.contrast is not None:
        asked, run = loss_kind(loss).loss, {"checkpoint": checkpoint, "bar": bar}
        (scored,) = scores_of_parts(model.network, [context], asked, method, **run)
        if parts is None or scored.tokens is None:
            return scored, None
        whole = Segment("answer", (answer_text(context, model.tokenizer),), np.zeros(0, int))
        segments = document_segments(context, document_parts)
        given = None if scored.given is None else np.array([scored.given])
        return scored, PartScores([whole], segments, scored.tokens[None], given)
    by_part = part_scores(
        model.network, context, answer_segments(context, model.tokenizer, parts),
        document_segments(context, document_parts), method=method, checkpoint=checkpoint,
        progress=partial(bar, desc=method, unit="context"),
    )  # fmt: skip
    scored = scored_by_tokens(context, by_part.by_position.sum(axis=0))
    given = None if by_part.given is None else float(by_part.given.sum())
    return scored._replace(given=given), by_part


def question_line(
    model: LanguageModel,
    question: str,
    documents: AnyPath | Sequence[str | Document],
    *,
    answer: str | None = None,
    foil: str = "",
    chat: bool = True,
) -> Line:
    """The question as a line of a file would ask it."""
    require_question(question)
    for text, name in (("" if answer is None else answer, "answer"), (foil, "foil")):
        require_text(text, name)
    if isinstance(documents, str | Path):
        read = read_documents(documents)
    else:
        require_documents(documents)
        read = named_documents(
            [Document("", text) if isinstance(text, str) else text for text in documents]
        )
    answer, foil = answer and answer.strip(), foil.strip()
    line = Line("question", documents=read, answer=answer, foil=foil)
    if chat and model.chat_template is not None:
        message = {"role": "user", "content": question}
        return line._replace(messages=(message,), template=model.chat_template)
    answer, foil = answer and spaced(answer), foil and spaced(foil)
    return line._replace(question=question, answer=answer, foil=foil)


def require_documents(documents: object) -> None:
    """Raise unless this is a list of texts or of documents, at least one."""
    listed = documents if isinstance(documents, Sequence) else ()
    others = [at for at, one in enumerate(listed) if not isinstance(one, str | Document)]
    got = "none" if isinstance(documents, Sequence) else described(documents)
    require(
        len(listed) > 0 and not others,
        "documents",
        got=f"{described(listed[others[0]])} at index {others[0]}" if others else got,
        expected="a folder, a file, or a list of texts or of Document, at least one",
        cure="Pass the texts themselves, or Document(title, text) for each.",
    )


def answered_context(
    model: LanguageModel, read: Context | PromptOnly, loss: LossName, tokens: int, progress: Bar
) -> Context:
    """The context with its answer, which the model gives itself where there is none."""
    bar = partial(progress, desc="answering", unit="context")
    (context,) = self_answered([read], model, loss, tokens=tokens, progress=bar)
    require_fitting(model.network, [context])
    return context


def answer_of(
    line: Line, context: Context, scored: Scored, model: LanguageModel, method: str, question: str
) -> Answer:
    """An answer with its parts, of their scores, and what all documents gave."""
    names = {document.name for document in line.documents}
    kinds = {**dict.fromkeys(names, "document"), QUESTION: "question"}
    whole = sum(abs(score) for (name, _), score in scored.parts.items() if name in names) or 1

    def part(name: str, kind: str, places: np.ndarray) -> AnswerPart:
        score, most = scored.parts[name, kind], ""
        kind = kind if kind == REST else kinds.get(name, "message")
        if scored.tokens is not None:
            speaking_for = np.maximum(scored.tokens, 0)
            by_text = held_by_text(context.tokens, speaking_for, places.tolist())
            most = most_in_words(by_text) if any(by_text.values()) else ""
        of_documents = score / whole if kind == "document" else None
        share = places.size / context.length
        return AnswerPart(name, kind, score, of_documents, places.size, share, most)

    parts = [part(*named, places) for named, places in parts_of(context)]
    parts.sort(key=lambda part: (part.kind == REST, part.kind != "document", -part.score))
    answer = answer_text(context, model.tokenizer), line.foil.strip(), context.cut
    given = scored.given
    if given is None and METHODS[method].by_log_weights:
        loss = loss_kind("contrast" if line.foil else "margin").loss
        given = float(given_by_parts(model.network, [context], loss)[0])
    return Answer(question, *answer, method, tuple(parts), context, scored.tokens, given)


def answer_text(context: Context, tokenizer: Any) -> str:
    """The text of a context's answer."""
    asked = np.flatnonzero(context.weights) + 1
    ids = context.window[asked] if context.contrast is None else context.contrast.answer
    return "".join(texts_of_ids(ids, tokenizer)).strip()


def finding_of(
    parts: Sequence[AnswerPart], answer: str, foil: str = "", *, signed: bool = False
) -> str:
    """Which document gave most, in a sentence."""
    documents = [part for part in parts if part.kind == "document"]
    top, least = (end(documents, key=lambda part: part.score) for end in (max, min))
    tokens = sum(part.tokens for part in documents)
    asked = f"The answer “{answer}” comes from “{top.name}” most of all"
    if foil:
        asked = f"“{top.name}” decides most between “{answer}” and “{foil}”"
    if not signed:
        all_hold = f"the {len(documents)} documents hold"
        all_hold = all_hold if len(documents) > 1 else "the document holds"
        return (
            f"{asked}: it holds {percent(top.of_documents)} of what {all_hold}, with "
            f"{top.tokens} of their {tokens} tokens. They hold "
            f"{percent(sum(part.score for part in documents))} of the whole influence."
        )
    if top.score <= 0:
        asked = f"No document speaks for “{answer}”; the least against it, “{top.name}”"
    against = f" Against it speaks “{least.name}” most: {least.score:+.2f}." * (
        least.score < 0 < top.score
    )
    return f"{asked}: {top.score:+.2f}, with {top.tokens} of {tokens} tokens of documents.{against}"


def _row(part: AnswerPart, signed: bool) -> tuple[str, ...]:
    score = f"{part.score:+.3f}" if signed else f"{part.score:.1%}"
    share = "" if part.of_documents is None else f"{part.of_documents:{'+' * signed}.1%}"
    name = IN_NO_PART if part.kind == REST else f"“{part.name}”"
    return name, score, share, f"{part.tokens}", part.most
