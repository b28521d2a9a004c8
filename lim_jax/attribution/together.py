"""Documents of which one suffices, or which are needed together: an answer without sets of them."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from lim_jax.attribution.segments import Segment

MOST = 3  # documents, of which all sets are left out
# Fewer log odds than these, which a set gives, are not said to be given by its documents together.
LEAST = 0.5
# Where documents without the others give less than this share of what all of a set give, one
# suffices; where each of them takes all but this share of it away, they are needed together.
SHARE = 1 / 4


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
    def finding(self) -> str:
        """Which documents suffice alone, and which are needed together, in sentences.

        It is said of all of them, or else of each two; empty where neither is so.
        """
        numbers = range(len(self.names))
        for size in range(len(self.names), 1, -1):
            sets = itertools.combinations(numbers, size)
            sentences = [sentence for chosen in sets if (sentence := self._sentence(chosen))]
            if sentences:
                return " ".join(sentences)
        return ""

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

    def _sentence(self, chosen: tuple[int, ...]) -> str:
        """Say that one of these documents suffices, or that all are needed; empty if neither."""
        without_all = self._loss(chosen)
        if without_all < LEAST:
            return ""
        fewer = [self._loss(left) for left in itertools.combinations(chosen, len(chosen) - 1)]
        alone = [self._loss((k,)) for k in chosen]
        quoted = [f"“{self.names[k]}”" for k in chosen]
        names = f"{', '.join(quoted[:-1])} and {quoted[-1]}"
        others, every = ("the other", "both") if len(chosen) == 2 else ("the others", "all")
        if max(fewer) < SHARE * without_all:
            return (
                f"One of {names} suffices: without {others} the answer loses at most "
                f"{max(0.0, *fewer):.2f} of log odds, without {every} {without_all:.2f}."
            )
        if min(alone) > (1 - SHARE) * without_all:
            return (
                f"{names} are needed together: without one of them the answer loses at least "
                f"{min(alone):.2f} of log odds, without {every} {without_all:.2f}."
            )
        return ""


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
