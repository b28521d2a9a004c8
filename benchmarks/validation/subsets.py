"""What an answer loses without each set of its documents: all of these texts are read."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from lim_jax.attribution.answer import Answer
from lim_jax.attribution.method import Run
from lim_jax.attribution.together import DocumentGroup, Together, masks_without_sets
from lim_jax.attribution.without_parts import losses_without
from lim_jax.models import CausalLM
from lim_jax.models.loss_kinds import LOSSES

Kept = Bool[np.ndarray, "texts documents"]
# The documents of a group, in no order, and what is said of them.
Claim = tuple[frozenset[str], str]


class Subsets(NamedTuple):
    """An answer on the texts without each set of documents.

    Attributes
    ----------
    names
        The documents.
    lost
        By how much the answer's log odds fall without a set of them. The number of the set has bit
        k where it holds document k.
    tokens
        How many tokens the text without the set has.
    """

    names: tuple[str, ...]
    lost: Float[np.ndarray, " sets"]
    tokens: Int[np.ndarray, " sets"]

    @property
    def pairs(self) -> set[Claim]:
        """The claims that hold of pairs of documents, all others in."""
        pairs = itertools.combinations(self.names, 2)
        return claims(group for pair in pairs for group in self.together(pair).groups)

    def holds(self, claim: Claim) -> bool:
        """Tell whether a claim is so, all other documents in."""
        names, _ = claim
        return claim in claims(self.together(sorted(names)).groups)

    def together(self, names: Sequence[str]) -> Together:
        """Return what the answer loses without each set of these documents, all others in."""
        return Together(tuple(names), self.lost[numbers_of(self.kept_without(names))])

    def kept_without(self, names: Sequence[str]) -> Kept:
        """Return which documents stay where each set of the named ones is left out."""
        sets = kept_of_sets(len(names))
        kept = np.ones((len(sets), len(self.names)), bool)
        kept[:, [self.names.index(name) for name in names]] = sets
        return kept

    def price(self, kept: Kept) -> float:
        """Return how many tokens these texts have, over those of the whole."""
        return float(self.tokens[numbers_of(kept)].sum() / self.tokens[0])


def claims(groups: Iterable[DocumentGroup]) -> set[Claim]:
    """Return what is said of groups of documents, without numbers."""
    return {(frozenset(group.names), group.relation) for group in groups}


def kept_of_sets(documents: int) -> Kept:
    """Return which documents stay where each set of them is left out, by the set's number.

    >>> kept_of_sets(2).tolist()
    [[True, True], [False, True], [True, False], [False, False]]
    """
    return (np.arange(2**documents)[:, None] >> np.arange(documents) & 1) == 0


def numbers_of(kept: Kept) -> Int[np.ndarray, " texts"]:
    """Return the number of the set of documents that each text leaves out.

    >>> numbers_of(kept_of_sets(3)).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return ~kept @ (1 << np.arange(kept.shape[1]))


def read_subsets(model: CausalLM, answered: Answer) -> Subsets:
    """Let a model read an answer's context without each set of its documents."""
    parts, documents = answered.scores.parts, answered.scores.documents
    names = tuple(parts[number].within for number in documents)
    losses = losses_without(
        model,
        answered.context,
        answered.scores.answer,
        parts,
        masks_without_sets(parts, names),
        LOSSES["margin"].loss,
        Run(),
    ).sum(axis=1)
    sizes = np.array([parts[number].positions.size for number in documents])
    tokens = answered.context.length - ~kept_of_sets(len(names)) @ sizes
    return Subsets(names, losses - losses[0], tokens)
