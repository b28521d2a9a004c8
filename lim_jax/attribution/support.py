"""Does a document support an answer? What it loses where the one that gave most is taken out."""

from typing import Any, Literal, NamedTuple

from lim_jax.attribution.method import Run, Scores
from lim_jax.attribution.segments import whole_answer
from lim_jax.attribution.together import Together, masks_without_sets, most_telling
from lim_jax.attribution.without_parts import losses_without
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM
from lim_jax.prompts.contexts import Context

# Log odds, on average over an answer's tokens, chosen by the first answers of SmolLM2-135M in
# `docs/study/support.md`. Of those whose words no document has, one in twenty lost `SUPPORTED` or
# more without the document that scores most. Of those that a document of one sentence states, one
# in twenty lost less than `UNSUPPORTED`, and was given less than `LITTLE` by all documents
# together. Down to minus `AGAINST` scored documents that say nothing of the answer.
SUPPORTED = 1.0
UNSUPPORTED = 0.5
LITTLE = 1.0
AGAINST = 1.5
# Tokens of lower log odds have one chance in thirty, or less. An answer of such tokens may become
# far less likely still without a document, though none states it: `docs/study/trained_support.md`.
UNLIKELY = -3.5
PASSES = 1  # of the text without the document; the whole is read by most methods


Verdict = Literal["supported", "unclear", "unsupported"]


class Support(NamedTuple):
    """What an answer loses without the document that scores most, and what all of them give.

    Attributes
    ----------
    name
        The document.
    log_odds
        The answer's log odds with all documents, on average over its tokens.
    loss
        By how much the answer's log odds fall where the document is taken out of the text.
    total_effect
        By how much they rise as all documents come in; None where the method does not say it.
    loss_without_copies
        By how much they fall where others of which one suffices are taken out with it; None where
        the method names none.
    answer_without
        What the model answers without the document, in one line, empty for nothing; None where the
        answer was not its own.
    given_without
        Whether that is the answer itself, or begins as one that was cut; None where it was not the
        model's own.
    """

    name: str
    log_odds: float
    loss: float
    total_effect: float | None
    loss_without_copies: float | None = None
    answer_without: str | None = None
    given_without: bool | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether a document supports the answer: "supported", "unclear" or "unsupported".

        An answer that the model would hardly give is never supported, nor one that it gives without
        the document too, though all documents together give it little. Where two documents state
        it, it loses little without one, and they give it much together: so it is never unsupported
        by a method that does not say what all documents give.
        """
        little = self.total_effect is not None and self.total_effect < LITTLE
        if max(self.loss, self.loss_without_copies or 0.0) >= SUPPORTED:
            needs_none = little and self.given_without
            return "unclear" if needs_none or self._is_unlikely else "supported"
        return "unsupported" if little and self.loss < UNSUPPORTED else "unclear"

    @property
    def finding(self) -> str:
        """What the answer loses without the document, and why that supports no answer."""
        change = f"{'loses' if self.loss >= 0 else 'gains'} {abs(self.loss):.2f} of log odds"
        sentence = f"Without “{self.name}” in the text the answer {change}"
        if self.verdict == "unsupported":
            sentence += (
                "; of a small model's answers that a document of one sentence states, nineteen in "
                f"twenty lose {UNSUPPORTED} or more, or all documents together give them "
                f"{LITTLE} or more"
            )
        if not self._is_unlikely:
            return f"{sentence}."
        return (
            f"{sentence}. The model would hardly give this answer: with all documents its log odds "
            f"are {self.log_odds:+.2f} a token."
        )

    @property
    def _is_unlikely(self) -> bool:
        """Whether the model would hardly give the answer, even with all documents."""
        return self.log_odds < UNLIKELY

    def record(self) -> dict[str, Any]:
        """Return the verdict and what it rests on, as they stand in answer.json."""
        return {
            "verdict": self.verdict,
            "document": self.name,
            "log_odds": self.log_odds,
            "loss": self.loss,
            "loss_without_copies": self.loss_without_copies,
            "answer_without": self.answer_without,
            "given_without": self.given_without,
        }


def support_of_answer(
    model: CausalLM,
    context: Context,
    scores: Scores,
    loss: Loss,
    run: Run,
    together: Together | None = None,
) -> Support | None:
    """Take the document that scores most out of the text, and read that again.

    `loss` is minus the answer's log odds. `together` has the text without the document, where all
    sets of documents were taken out. None of an answer beside a foil, of which no thresholds were
    measured.
    """
    if context.contrast is not None:
        return None
    if together is not None:
        return _support_of_sets(scores, together)
    return _support_of_reading(model, context, scores, loss, run)


def _support_of_sets(scores: Scores, together: Together) -> Support:
    """Read support off the losses without sets of documents, of which one is the first alone."""
    assert scores.losses is not None  # of a method that reads sets
    name = together.names[0]
    of_copies = [
        group.loss_without_all
        for group in together.groups
        if group.relation == "one suffices" and name in group.names
    ]
    return Support(
        name,
        log_odds=-float(scores.losses.sum()),
        loss=float(together.losses[1]),
        total_effect=_total_effect(scores),
        loss_without_copies=max(of_copies, default=None),
    )


def _support_of_reading(
    model: CausalLM, context: Context, scores: Scores, loss: Loss, run: Run
) -> Support:
    """Read the text again without the document that scores most, and whole if that was not done."""
    by_part = scores.by_part.sum(axis=0)
    name, *_ = most_telling(scores.parts, by_part, scores.documents.tolist())
    masks = masks_without_sets(scores.parts, [name])
    if scores.losses is not None:
        masks = masks[1:]  # the whole was read
    answer = [whole_answer(context)]
    losses = losses_without(model, context, answer, scores.parts, masks, loss, run)[:, 0]
    whole = float(losses[0] if scores.losses is None else scores.losses.sum())
    return Support(name, -whole, float(losses[-1]) - whole, _total_effect(scores))


def _total_effect(scores: Scores) -> float | None:
    """Return what all documents give the whole answer; None where the method does not say it."""
    return None if scores.total_effect is None else float(scores.total_effect.sum())
