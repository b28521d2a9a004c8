"""A question asked of a model and of documents: which of them its answer comes from."""

from collections.abc import Sequence
from functools import partial
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lim_jax._checks import AnyPath, as_int, described, require, require_kind, require_text
from lim_jax._digest import digest
from lim_jax._partial_runs import checkpoint_folder, each_once, within_checkpoint
from lim_jax.attribution.answer import Answer, AnswerPart
from lim_jax.attribution.answer_comparison import shown_answer
from lim_jax.attribution.method import Cost, Method, Run, Scores
from lim_jax.attribution.methods import informed
from lim_jax.attribution.methods.method_table import GRADIENT, INFORMED, PATH, method_named
from lim_jax.attribution.operations import pass_operations
from lim_jax.attribution.parts import UNNAMED, is_document, iterate_parts
from lim_jax.attribution.profile_run import Bar, no_bar, require_fitting
from lim_jax.attribution.segments import (
    AnswerParts,
    DocumentParts,
    Segment,
    answer_segments,
    context_segments,
    document_positions,
    whole_answer,
)
from lim_jax.attribution.support import PASSES, support_of_answer
from lim_jax.attribution.together import SETS, read_together
from lim_jax.attribution.token_text import most_in_words, sum_by_text
from lim_jax.attribution.without_parts import without_parts
from lim_jax.checkpoints.text import texts_of_ids
from lim_jax.models import generation
from lim_jax.models.language_model import LanguageModel
from lim_jax.models.loss_kinds import LossName, loss_kind
from lim_jax.models.padding import padded_length
from lim_jax.prompts.contexts import Context, PromptOnly
from lim_jax.prompts.documents import (
    QUESTION,
    Document,
    named_documents,
    require_question,
    text_digest,
)
from lim_jax.prompts.own_answers import ANSWERS, answer_ends, generate_answers, without_ends
from lim_jax.prompts.prompt_files import (
    Line,
    context_of_line,
    read_documents,
    require_words,
    spaced,
)

ANSWER_WITHOUT = "answer_without.jsonl"  # beside `own_answers.ANSWERS`
SENTENCE = 16  # tokens of a sentence of an answer that is not known yet
# Up to so many operations the mask path is the method where none is named: some twenty seconds of
# two cores, and less than one of a graphics card.
AFFORDABLE = 3e12


class Question(NamedTuple):
    """A question with its documents, and how its answer is to be explained; as `ask` takes them."""

    question: str
    documents: AnyPath | Sequence[str | Document]
    method: str | None
    passes: int | None
    parts: AnswerParts | None
    document_parts: DocumentParts | None
    chat: bool
    answer: str | None
    answer_tokens: int
    foil: str
    max_length: int


class ReadQuestion(NamedTuple):
    """A question that was read: what the model will read, and how its answer is to be scored.

    Attributes
    ----------
    question, line
        The question, and the line of a file that would ask it.
    read
        The context, or the prompt whose answer the model is to give.
    method_name
        The method, the one that was asked for or the default.
    loss
        Its name.
    answer_parts, document_parts
        How the answer and the documents are cut.
    """

    question: Question
    line: Line
    read: Context | PromptOnly
    method_name: str
    loss: LossName
    answer_parts: AnswerParts
    document_parts: DocumentParts

    def reads_sets(self, answer: int) -> bool:
        """Tell whether sets of documents are left out too, for so many parts of the answer."""
        passes = self.question.passes or informed.PASSES
        return (
            self.method_name == INFORMED
            and not self.question.foil  # beside which no thresholds were measured
            and len(self.line.documents) > 1
            and informed.leaves_sets(passes, answer)
        )

    def method(self, answer: int) -> Method:
        """Return the method with the budget that was asked for, less what sets take."""
        passes = self.question.passes
        if self.reads_sets(answer):
            passes = (passes or informed.PASSES) - SETS
        return method_named(self.method_name, passes)

    def cost(self, model: LanguageModel) -> Cost:
        """Return the cost of scores and support, estimated where the answer is not known yet.

        Then the model also answers anew, to the text without a document.
        """
        if isinstance(self.read, Context):
            context = self.read
            answer = len(segments_of_answer(context, model.tokenizer, self.answer_parts))
            more = PASSES
        else:
            # An answer of one token stands for that which the model will give.
            context = self.read.with_answer(self.read.encoded.ids[-1:], model.tokenizer, self.loss)
            tokens = self.question.answer_tokens
            counts = {"answer": 1, "token": tokens}
            answer = counts.get(self.answer_parts, max(1, tokens // SENTENCE))
            more = PASSES + 1
        parts = len(context_segments(context, self.document_parts))
        cost = self.method(answer).cost(parts, answer)
        if self.question.foil:
            return cost
        if self.reads_sets(answer):
            more += SETS - PASSES  # support is among these
        return cost._replace(passes=cost.passes + more)

    def operations(self, model: LanguageModel) -> int:
        """Return about how many operations scores and support take."""
        tokens = self.read.length
        if isinstance(self.read, PromptOnly):
            tokens += self.question.answer_tokens
        return self.cost(model).total * pass_operations(model.network, tokens)


def ask(
    model: LanguageModel,
    question: str,
    documents: AnyPath | Sequence[str | Document],
    *,
    method: str | None = None,
    passes: int | None = None,
    parts: AnswerParts | None = None,
    document_parts: DocumentParts | None = None,
    answer: str | None = None,
    foil: str = "",
    chat: bool = True,
    answer_tokens: int = 32,
    max_length: int = 4096,
    checkpoint: AnyPath | None = None,
    progress: Bar = no_bar,
) -> Answer:
    """Ask a model a question about documents, and say which of them its answer comes from.

    The document that scores most is also taken out of the text, and the answer read again: what it
    loses says whether a document supports it (`Answer.support`). An answer that the model gave
    itself it then gives anew, without the document.

    Parameters
    ----------
    model
        A network, its tokenizer and its chat template, of `LanguageModel.from_pretrained`.
    question
        As the model is asked.
    documents
        A folder of texts, a file of texts, or a list of texts or of `Document`.
    method
        How parts are scored, by a name of `attribution.methods.method_table`: "mask-path", the
        default where it takes seconds; "mask-gradient", the default of longer texts and larger
        models; "influence", "gradient-times-input", "integrated-gradients", "rollout",
        "leave-one-out", "ablations" or "informed".
    passes
        About how many times the method "informed", which is then the default, may read the whole
        context, by default 24: the more, the smaller are the errors of its scores. From 20 on, and
        two more for each further part of the answer, it also says which documents suffice alone,
        and which are needed together.
    parts
        The parts of the answer: ``"answer"``, the whole; ``"sentence"``, the default where the
        method scores them and there is no foil; or ``"token"``. Of the mask gradient and path each
        takes a backward pass for each gradient.
    document_parts
        The parts of documents: ``"documents"``, ``"paragraphs"``, ``"sentences"`` or ``"tokens"``.
        Methods that leave parts out read a text for each. By default sentences where the method
        scores tokens, which costs nothing, else documents.
    answer
        What is explained; None for what the model answers itself, of `answer_tokens` at most.
    foil
        What might have been answered instead; then scores are of the odds of the two. Empty for
        none: scores are of the log odds of the answer's tokens, on average.
    chat
        Whether the model's chat template lays question and documents out, where it has one.
    answer_tokens
        The most tokens of an answer that the model gives itself.
    max_length
        The most tokens of question and documents; more are refused.
    checkpoint
        A folder that keeps what is finished, so that an interrupted call goes on; None for none.
    progress
        A bar, called with a list and with `desc`, `unit` and `leave` as ``tqdm.tqdm`` takes them;
        none by default.

    Returns
    -------
    Answer
        The answer, and the scores of all parts.

    Raises
    ------
    ValueError
        Where the question or all documents are empty, the model ends at once, or the method does
        not score such parts.

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
    request = Question(
        question,
        documents,
        method=method,
        passes=passes,
        parts=parts,
        document_parts=document_parts,
        chat=chat,
        answer=answer,
        answer_tokens=answer_tokens,
        foil=foil,
        max_length=max_length,
    )
    prompt = read_question(model, request)
    folder = None if checkpoint is None else checkpoint_folder(checkpoint)
    return answer_question(model, prompt, Run(folder, progress))


def read_question(model: LanguageModel, question: Question) -> ReadQuestion:
    """Read a question and documents as the model will, before anything is computed.

    Errors are those of `ask`; the model's weights are not read.
    """
    as_int(question.max_length, "max_length")
    as_int(question.answer_tokens, "answer_tokens")
    name, answer_parts = choose_method(question)
    document_parts = question.document_parts or method_named(name).document_parts
    line = question_line(
        model,
        question.question,
        question.documents,
        answer=question.answer,
        foil=question.foil,
        chat=question.chat,
    )
    loss: LossName = "contrast" if question.foil else "margin"
    read = context_of_line(line, model.tokenizer, loss, question.max_length)
    _require_tokens_of_documents(read)
    prompt = ReadQuestion(question, line, read, name, loss, answer_parts, document_parts)
    if question.method is None and name == PATH and prompt.operations(model) > AFFORDABLE:
        return prompt._replace(method_name=GRADIENT)  # of the same parts
    return prompt


def answer_question(model: LanguageModel, prompt: ReadQuestion, run: Run) -> Answer:
    """Let the model answer, where the answer is not given, and score the parts of the context."""
    question = prompt.question
    context = answer_context(model, prompt.read, prompt.loss, question.answer_tokens, run)
    loss = loss_kind(prompt.loss).loss
    network = model.network
    answer = segments_of_answer(context, model.tokenizer, prompt.answer_parts)
    parts = context_segments(context, prompt.document_parts)
    scores = prompt.method(len(answer)).scores(network, context, answer, parts, loss, run)
    together = None
    if prompt.reads_sets(len(answer)):
        together = read_together(network, context, scores, loss, run.within("sets"))
    support = support_of_answer(network, context, scores, loss, run.within("support"), together)
    text = answer_text(context, model.tokenizer)
    if support is not None and isinstance(prompt.read, PromptOnly):
        without = answer_without(model, prompt, context, support.name, run)
        is_given = without == shown_answer(text, context.cut)
        support = support._replace(answer_without=without, given_without=is_given)
    return Answer(
        question=question.question,
        text=text,
        foil=prompt.line.foil.strip(),
        cut=context.cut,
        method=prompt.method_name,
        parts=part_rows(prompt.line, context, scores),
        context=context,
        scores=scores,
        support=support,
        together=together,
    )


def choose_method(question: Question) -> tuple[str, AnswerParts]:
    """Return the name of a question's method, and how to cut the answer.

    Raises ValueError where the method does not take the budget, the foil or such parts.
    """
    default = PATH if question.passes is None else INFORMED
    method = question.method or default
    foil = question.foil
    parts = question.parts
    known = method_named(method, question.passes, foil=bool(foil)).answer_parts
    require(
        parts is None or parts in known,
        "parts",
        got=f"{parts!r} with the method {method!r}",
        expected=" or ".join(map(repr, known)),
        cure="Take one of these parts, or the method mask-gradient.",
    )
    require(
        not foil or parts in (None, "answer"),
        "parts",
        got=f"{parts!r} with a foil",
        expected="the whole answer, since a foil is another whole answer",
        cure="Leave `parts` or `foil` out.",
    )
    uncut = bool(foil) or "sentence" not in known
    return method, parts or ("answer" if uncut else "sentence")


def segments_of_answer(context: Context, tokenizer: Any, parts: AnswerParts) -> list[Segment]:
    """Cut an answer into parts; return it whole where it is compared with a foil."""
    if context.contrast is None:
        return answer_segments(context, tokenizer, parts)
    return [whole_answer(context, answer_text(context, tokenizer))]


def question_line(
    model: LanguageModel,
    question: str,
    documents: AnyPath | Sequence[str | Document],
    *,
    answer: str | None = None,
    foil: str = "",
    chat: bool = True,
) -> Line:
    """Return the line of a file that would ask the question about these documents."""
    require_question(question)
    if answer is not None:
        require_text(answer, "answer")
        require_words(answer, "answer")
        answer = answer.strip()
    if foil:
        require_text(foil, "foil")
        require_words(foil, "foil")
    if isinstance(documents, str | Path):
        read = read_documents(documents)
    else:
        require_documents(documents)
        read = named_documents(
            [Document("", text) if isinstance(text, str) else text for text in documents]
        )
    foil = foil.strip()
    line = Line("prompt", documents=read, answer=answer, foil=foil)
    if chat and model.chat_template is not None:
        message = {"role": "user", "content": question}
        return line._replace(messages=(message,), template=model.chat_template)
    if answer is not None:
        answer = spaced(answer)
    if foil:
        foil = spaced(foil)
    return line._replace(question=question, answer=answer, foil=foil)


def require_documents(documents: object) -> None:
    """Raise ValueError unless this is a list of texts or of documents, at least one."""
    entries = documents if isinstance(documents, Sequence) else ()
    others = [at for at, document in enumerate(entries) if not isinstance(document, str | Document)]
    got = "none" if isinstance(documents, Sequence) else described(documents)
    require(
        len(entries) > 0 and not others,
        "documents",
        got=f"{described(entries[others[0]])} at index {others[0]}" if others else got,
        expected="a folder, a file, or a list of texts or of Document, at least one",
        cure="Pass the texts themselves, or Document(title, text) for each.",
    )


def _require_tokens_of_documents(read: Context | PromptOnly) -> None:
    """Raise ValueError unless the tokenizer makes a token at least of what documents say."""
    if isinstance(read, Context):
        has_tokens = bool(document_positions(read))
    else:
        spans = [span for span in read.prompt.spans if is_document(span[2], "part")]
        has_tokens = any(read.encoded.within(start, end).any() for start, end, _ in spans)
    require(
        has_tokens,
        "documents",
        got="texts of which the model's tokenizer makes no token",
        expected="a document of some tokens, at least one",
        cure="Pass texts of visible letters.",
    )


def answer_context(
    model: LanguageModel, read: Context | PromptOnly, loss: LossName, tokens: int, run: Run
) -> Context:
    """Return the context with its answer, which the model gives itself where there is none."""
    (context,) = generate_answers(
        [read],
        model,
        loss,
        tokens=tokens,
        checkpoint=within_checkpoint(run.checkpoint, ANSWERS),
        progress=partial(run.bar, desc="answering", unit="context"),
    )
    require_fitting(model.network, [context])
    return context


def answer_without(
    model: LanguageModel, prompt: ReadQuestion, context: Context, name: str, run: Run
) -> str:
    """Return what the model answers to the text without a document, in one line."""
    parts = context_segments(context)
    left = without_parts(context, parts, np.array([part.within != name for part in parts]))
    ids = left.window[: left.first_query + 1]
    tokens = prompt.question.answer_tokens
    ends = answer_ends(model, context.chat)
    size = padded_length(prompt.read.length + tokens - 1)  # that of the whole text, as its program

    def give_answer() -> list[int]:
        """Let the model answer: the ids, with the one that ends the answer."""
        answered = generation.answer(
            model.network, jax.device_put(ids), tokens, ends, padding=lambda _: size
        )
        return np.asarray(answered).tolist()

    file = within_checkpoint(run.checkpoint, ANSWER_WITHOUT)
    about = {}
    if file is not None:
        asked = digest((model.network, ids, tokens, ends))
        about = {"function": "answer_without", "prompt": asked}
    bar = partial(run.bar, desc="answering without it", unit="context", leave=False)
    said, cut = without_ends(each_once({name: give_answer}, file, about, bar)[name], ends)
    texts = texts_of_ids(said, model.tokenizer) if said.size else []
    return shown_answer("".join(texts), cut)


def part_rows(line: Line, context: Context, scores: Scores) -> tuple[AnswerPart, ...]:
    """Return a row for each named part of the context, documents by their scores first."""
    digests = {document.name: text_digest(document) for document in line.documents}
    kinds = {**dict.fromkeys(digests, "document"), QUESTION: "question"}
    by_name = scores.by_name()
    errors = scores.errors_by_name()
    total = sum(abs(score) for (name, _), score in by_name.items() if name in digests) or 1

    def part(name: str, kind: str, positions: np.ndarray) -> AnswerPart:
        """Return the row of one part: its score, its share of documents' scores, its tokens."""
        error = errors.get((name, kind))
        score = by_name.get((name, kind), nan)
        most = ""
        kind = kind if kind == UNNAMED else kinds.get(name, "message")
        if scores.tokens is not None:
            speaking_for = np.maximum(scores.tokens, 0)
            by_text = sum_by_text(context.tokens, speaking_for, positions.tolist())
            most = most_in_words(by_text) if any(by_text.values()) else ""
        share_of_documents = None
        if kind == "document":
            score = 0.0 if isnan(score) else score  # one that has no tokens gives nothing
            share_of_documents = score / total
        share = positions.size / context.length
        return AnswerPart(
            name,
            kind,
            score,
            share_of_documents,
            positions.size,
            share,
            most,
            error,
            digests.get(name),
        )

    parts = [part(*named, positions) for named, positions in iterate_parts(context)]
    parts.sort(key=lambda p: (p.kind == UNNAMED, p.kind != "document", -np.nan_to_num(p.score)))
    return tuple(parts)


def answer_text(context: Context, tokenizer: Any) -> str:
    """Return the text of a context's answer."""
    answer_positions = np.flatnonzero(context.weights) + 1
    ids = context.window[answer_positions] if context.contrast is None else context.contrast.answer
    return "".join(texts_of_ids(ids, tokenizer)).strip()
