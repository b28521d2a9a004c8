"""What a method is, and what it gives: scores of an answer's parts by the parts of its context."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from lim_jax._checks import require
from lim_jax._partial_runs import within_checkpoint
from lim_jax.attribution.parts import is_document
from lim_jax.attribution.profile_run import Bar, no_bar
from lim_jax.attribution.segments import AnswerParts, DocumentParts, Segment
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM
from lim_jax.models.padding import Padding
from lim_jax.models.shared_prefix import Kept, ReadPrefix
from lim_jax.prompts.contexts import Context

ALL_PARTS: tuple[AnswerParts, ...] = ("answer", "sentence", "token")


class Cost(NamedTuple):
    """What a method takes for one context.

    Attributes
    ----------
    passes
        How many passes forward it takes, those of gradients too.
    gradients
        How many gradients it takes back, each of which counts for two more passes in `total`.
    """

    passes: int
    gradients: int = 0

    @property
    def total(self) -> int:
        """The cost in forward passes, of which each gradient counts for two more."""
        return self.passes + 2 * self.gradients

    def __str__(self) -> str:
        """Return the number of passes in words, and that of gradients where there are any."""
        passes = f"{self.passes} pass" + ("es" if self.passes > 1 else "")
        gradients = f" and {self.gradients} gradient" + ("s" if self.gradients > 1 else "")
        return passes + (gradients if self.gradients else "")


def no_prefix(*_: Any, **__: Any) -> None:
    """Say that a context shares nothing with others."""
    return None


class Run(NamedTuple):
    """How a method's computation goes on: what it keeps, what it shows, what it may reuse.

    Attributes
    ----------
    checkpoint
        A folder for finished results, from which an interrupted run goes on; None for none.
    bar
        A progress bar, called as tqdm is.
    padding
        The lengths to which contexts are padded; None for `padding.padded_length`.
    prefix
        ``prefix(log_weights, keep_states=False)``: the `ReadPrefix` of the ids with which this
        context and others begin, read with each log weight on all documents; None where it shares
        none, or layers would keep too much of it. With `keep_states` it has the states that
        derivatives need.
    texts
        ``texts(kept)``: what several texts keep of such a prefix, read, a row of `kept` for each
        text and a column for each position; None as of `prefix`.
    """

    checkpoint: Path | None = None
    bar: Bar = no_bar
    padding: Padding | None = None
    prefix: Callable[..., ReadPrefix | None] = no_prefix
    texts: Callable[[Kept], ReadPrefix | None] = no_prefix

    def within(self, name: str) -> "Run":
        """Return the run with the subfolder `name` of its folder."""
        return self._replace(checkpoint=within_checkpoint(self.checkpoint, name))


class Scores(NamedTuple):
    """Scores of the parts of an answer by the parts of its context, from one method.

    Attributes
    ----------
    answer
        The parts of the answer, a row each.
    parts
        The parts of the context, a column each: those of documents, then others.
    by_part
        Positive where a part of the context speaks for the part of the answer, in units of the
        loss; of a method that is not `signed` shares.
    by_token
        The same of every token of the context, of methods that have it; None else.
    total_effect
        By how much the loss of each part of the answer falls as all documents come in from next to
        nothing, of methods that say it; None else.
    note
        What else is to be known of these scores, in a sentence behind the finding.
    errors
        The standard deviation of each score given what was read; of methods with `changes` their
        sizes, by part. NaN where the method knows no error, None for methods without errors.
    changes
        By how much the score of each token changed when the mask path's gradients were last
        doubled, with its sign: of any tokens these add up to the change of their score, whose
        size is its error. None of other methods.
    losses
        The loss of each part of the answer on the whole context, of methods that read it; None
        else.
    """

    answer: Sequence[Segment]
    parts: Sequence[Segment]
    by_part: Float[np.ndarray, "answer parts"]
    by_token: Float[np.ndarray, "answer length"] | None = None
    total_effect: Float[np.ndarray, " answer"] | None = None
    note: str = ""
    errors: Float[np.ndarray, "answer parts"] | None = None
    losses: Float[np.ndarray, " answer"] | None = None
    changes: Float[np.ndarray, "answer length"] | None = None

    @property
    def documents(self) -> Int[np.ndarray, " documents"]:
        """The numbers of the columns that are parts of documents."""
        inside = [is_document(*part.label) for part in self.parts]
        return np.flatnonzero(inside)

    @property
    def tokens(self) -> Float[np.ndarray, " length"] | None:
        """The scores of every token for the whole answer, of methods that have them."""
        return None if self.by_token is None else self.by_token.sum(axis=0)

    def by_name(self) -> dict[tuple[str, str], float]:
        """Return the score of each named part for the whole answer, summed over its segments."""
        return self._sum_by_name(self.by_part.sum(axis=0))

    def errors_by_name(self) -> dict[tuple[str, str], float]:
        """Return the error of each of those scores: the size of its change, of a mask path.

        Other errors add up in squares, as if the scores that are summed had none in common. Parts
        whose error the method does not say are left out.
        """
        if self.changes is not None:
            changes = sum_by_part(self.changes, self.parts).sum(axis=0)
            return {label: abs(change) for label, change in self._sum_by_name(changes).items()}
        if self.errors is None:
            return {}
        squares = self._sum_by_name((self.errors**2).sum(axis=0))
        return {label: math.sqrt(square) for label, square in squares.items() if square >= 0}

    def _sum_by_name(self, by_part: Float[np.ndarray, " parts"]) -> dict[tuple[str, str], float]:
        """Sum a number of each part over the parts of one name."""
        sums: dict[tuple[str, str], float] = {}
        for part, number in zip(self.parts, by_part.tolist(), strict=True):
            sums[part.label] = sums.get(part.label, 0.0) + number
        return sums


# ``scores(model, context, answer, parts, loss, run)``.
Scoring = Callable[[CausalLM, Context, Sequence[Segment], Sequence[Segment], Loss, Run], Scores]


class Method(NamedTuple):
    """A way to score the parts of a context by what an answer owes to them.

    Attributes
    ----------
    words
        What a score is, in the help of commands.
    how
        How it is computed, in a sentence of a page: "a score is ...".
    scores
        ``scores(model, context, answer, parts, loss, run)``, the `Scores` of one context.
    cost
        The `Cost` of so many parts of the context, and so many of the answer.
    answer_parts
        Into which parts it can cut an answer.
    document_parts
        How documents are cut where the user does not say it.
    signed
        Whether a score has a sign; else it is a share.
    whole
        Of what it is a share, where it is one.
    reads_foil
        Whether it can say why the answer was given and not a foil.
    """

    words: str
    how: str
    scores: Scoring
    cost: Callable[[int, int], Cost]
    answer_parts: tuple[AnswerParts, ...] = ALL_PARTS
    document_parts: DocumentParts = "sentences"
    signed: bool = True
    whole: str = "what the whole context gives"
    reads_foil: bool = True


def scores_by_token(
    answer: Sequence[Segment],
    parts: Sequence[Segment],
    by_token: Float[np.ndarray, "answer length"],
    total_effect: Float[np.ndarray, " answer"] | None = None,
    note: str = "",
) -> Scores:
    """Score each part of a context by the sum of its tokens' scores.

    Parameters
    ----------
    answer, parts
        The parts of the answer and of the context, as a method is given them.
    by_token
        The scores of every token of the context, a row for each part of the answer, in units of
        the loss; of a method that is not signed shares.
    total_effect
        What all documents give each part of the answer, in units of the loss; None where the
        method does not say it.
    note
        What else is to be known of these scores, in a sentence; empty for nothing.

    Returns
    -------
    Scores
        The scores by part, with those by token.
    """
    by_part = sum_by_part(by_token, parts)
    return Scores(answer, parts, by_part, by_token, total_effect, note)


def sum_by_part(
    by_token: Float[np.ndarray, "answer length"], parts: Sequence[Segment]
) -> Float[np.ndarray, "answer parts"]:
    """Sum scores of tokens over each part of a context."""
    columns = [by_token[:, part.positions].sum(axis=1) for part in parts]
    return np.stack(columns, axis=1) if columns else by_token[:, :0]


def require_uncut(answer: Sequence[Segment], why: str) -> None:
    """Raise ValueError if an answer is cut into several parts; `why` says what forbids it."""
    require(
        len(answer) == 1,
        "parts",
        got=f"{len(answer)} parts of the answer",
        expected=f"the whole answer, {why}",
        cure="Take parts='answer'.",
    )


def run_options(name: str, run: Run) -> dict[str, Any]:
    """Return a run's checkpoint, padding and bar as options of `models.ids`, for one context."""
    return {
        "checkpoint": run.checkpoint,
        "padding": run.padding,
        "progress": lambda numbers: run.bar(numbers, desc=name, unit="context"),
    }
