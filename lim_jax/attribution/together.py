"""Documents of which one suffices, or which are needed together: an answer without sets of them."""

import itertools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from lim_jax.attribution.method import Run, Scores
from lim_jax.attribution.segments import Segment, whole_answer
from lim_jax.attribution.without_parts import losses_without
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM
from lim_jax.prompts.contexts import Context

MOST = 3  # documents, of which all sets are left out
SETS = 2**MOST - 1  # of these, but for none
# Fewer log odds than these, which a set gives, are not said to be given by its documents together.
LEAST = 0.5
# Where documents without the others give less than this share of what all of a set give, one
# suffices; where each of them takes all but this share of it away, they are needed together.
SHARE = 1 / 4


class DocumentGroup(NamedTuple):
    """Documents of which one suffices, or which are all needed.

    Attributes
    ----------
    names
        The documents, two or three.
    relation
        Whether one of them suffices, or all are needed together.
    loss
        What the answer loses at most where one of them stays, or at least where one is left out,
        in log odds.
    loss_without_all
        What it loses without all of them.
    """

    names: tuple[str, ...]
    relation: Literal["one suffices", "needed together"]
    loss: float
    loss_without_all: float

    @property
    def sentence(self) -> str:
        """The relation and its losses in words."""
        quoted = [f"“{name}”" for name in self.names]
        names = f"{', '.join(quoted[:-1])} and {quoted[-1]}"
        others, every = ("the other", "both") if len(quoted) == 2 else ("the others", "all")
        without_all = f"without {every} {self.loss_without_all:.2f}."
        if self.relation == "one suffices":
            return (
                f"One of {names} suffices: without {others} the answer loses at most "
                f"{self.loss:.2f} of log odds, {without_all}"
            )
        return (
            f"{names} are needed together: without one of them the answer loses at least "
            f"{self.loss:.2f} of log odds, {without_all}"
        )


class Together(NamedTuple):
    """What an answer loses without each set of the documents that matter most, all others in.

    Attributes
    ----------
    names
        The documents, at most three, those of the largest scores first.
    losses
        By how much the answer's log odds fall without a set of them, in units of the loss. The
        number of the set has bit k where it holds document k, so that the first loss is zero.
    """

    names: tuple[str, ...]
    losses: Float[np.ndarray, " sets"]

    @property
    def groups(self) -> list[DocumentGroup]:
        """The documents of which one suffices, or which are needed together.

        They are one group of all, or else groups of two; none where neither is so.
        """
        return self.groups_at(SHARE)

    def groups_at(self, share: float) -> list[DocumentGroup]:
        """Return these groups as another share than `SHARE` tells them."""
        numbers = range(len(self.names))
        for size in range(len(self.names), 1, -1):
            candidates = [
                self._group(chosen, share) for chosen in itertools.combinations(numbers, size)
            ]
            groups = [group for group in candidates if group is not None]
            if groups:
                return groups
        return []

    @property
    def finding(self) -> str:
        """Which documents suffice alone, and which are needed together, in sentences."""
        return " ".join(group.sentence for group in self.groups)

    def losses_by_set(self) -> dict[tuple[str, ...], float]:
        """Return what the answer loses without each set of the documents, smaller sets first."""
        numbers = range(len(self.names))
        return {
            tuple(self.names[k] for k in chosen): self._loss(chosen)
            for size in numbers
            for chosen in itertools.combinations(numbers, size + 1)
        }

    def record(self) -> list[dict[str, Any]]:
        """Return the same as it stands in answer.json."""
        return [
            {"without": list(names), "loss": loss} for names, loss in self.losses_by_set().items()
        ]

    def _loss(self, chosen: Sequence[int]) -> float:
        """Return what the answer loses without these documents."""
        return float(self.losses[sum(1 << k for k in chosen)])

    def _group(self, chosen: tuple[int, ...], share: float) -> DocumentGroup | None:
        """Return these documents as a group; None where none suffices and not all are needed."""
        without_all = self._loss(chosen)
        if without_all < LEAST:
            return None
        names = tuple(self.names[k] for k in chosen)
        fewer = [self._loss(left) for left in itertools.combinations(chosen, len(chosen) - 1)]
        alone = [self._loss((k,)) for k in chosen]
        if max(fewer) < share * without_all:
            return DocumentGroup(names, "one suffices", max(0.0, *fewer), without_all)
        if min(alone) > (1 - share) * without_all:
            return DocumentGroup(names, "needed together", min(alone), without_all)
        return None


def read_together(
    model: CausalLM, context: Context, scores: Scores, loss: Loss, run: Run
) -> Together:
    """Read the text without each set of the documents that score most, of a method that read it."""
    assert scores.losses is not None
    names = most_telling(scores.parts, scores.by_part.sum(axis=0), scores.documents.tolist())
    masks = masks_without_sets(scores.parts, names)[1:]  # the first of them is the whole
    answer = [whole_answer(context)]
    losses = losses_without(model, context, answer, scores.parts, masks, loss, run)[:, 0]
    return Together(names, np.append(0.0, losses - scores.losses.sum()))


def most_telling(
    parts: Sequence[Segment], by_part: Float[np.ndarray, " parts"], documents: Sequence[int]
) -> tuple[str, ...]:
    """Return the names of the documents of the largest scores, at most `MOST`."""
    scores: dict[str, float] = {}
    for column in documents:
        name = parts[column].within
        scores[name] = scores.get(name, 0.0) + float(by_part[column])
    return tuple(sorted(scores, key=lambda name: -scores[name])[:MOST])


def masks_without_sets(
    parts: Sequence[Segment], names: Sequence[str]
) -> Bool[np.ndarray, "sets parts"]:
    """Return which parts stay where each set of the named documents is left out, in their order."""
    holds = np.array([[part.within == name for part in parts] for name in names])
    sets = np.arange(2 ** len(names))[:, None] >> np.arange(len(names)) & 1
    return ~(sets.astype(bool) @ holds)
