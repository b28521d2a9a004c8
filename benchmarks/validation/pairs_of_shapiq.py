"""Documents together by methods of the package shapiq, which fit interactions of pairs to texts."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import lazy_loader
import numpy as np
from jaxtyping import Float

from benchmarks.validation.prices import PROXY_SPEX, Game, proxy_spex
from benchmarks.validation.subsets import Kept, Subsets, kept_of_sets, numbers_of
from lim_jax.attribution.together import MOST, Together

shapiq: Any = lazy_loader.load("shapiq")  # of the extra `prices`; reading the table does without

REGRESSION = "regression of pairs"


class Fitted(NamedTuple):
    """What a method read, over the whole text's tokens, and what it says of three documents.

    Where it fails it has no documents.
    """

    price: float
    together: Together


def fit_pairs(method: str, subsets: Subsets, texts: int) -> Fitted:
    """Fit interactions to an answer's log odds on so many texts, as shapiq draws them."""
    read: list[Kept] = []

    def game(kept: Kept) -> Float[np.ndarray, " texts"]:
        """Return the answer's log odds on texts, less those on the whole."""
        read.append(np.atleast_2d(kept).astype(bool))
        return -subsets.lost[numbers_of(read[-1])]

    names = subsets.names
    fit = proxy_spex if method == PROXY_SPEX else regression_of_pairs
    interactions = fit(len(names), texts, game)
    if interactions is None:
        return Fitted(subsets.price(np.concatenate(read)), Together((), np.zeros(1)))
    values = interactions.dict_values
    best = sorted(range(len(names)), key=lambda number: -values.get((number,), 0.0))[:MOST]
    fitted = subsets._replace(lost=lost_of_sets(values, len(names)))
    together = fitted.together([names[number] for number in best])
    return Fitted(subsets.price(np.concatenate(read)), together)


def regression_of_pairs(documents: int, texts: int, game: Game) -> Any:
    """Return what a regression fits to so many texts, with interactions of pairs."""
    approximator = shapiq.RegressionFBII(documents, max_order=2, pairing_trick=True, random_state=0)
    return approximator.approximate(texts, game)


def lost_of_sets(
    interactions: Mapping[tuple[int, ...], float], documents: int
) -> Float[np.ndarray, " sets"]:
    """Return what an answer loses without each set of documents, as interactions say.

    Its log odds are the sum of the interactions of which all documents are kept: so is the index
    FBII defined, the best such sum of its order.

    >>> lost_of_sets({(): 7.0, (0,): 3.0, (1,): 3.0, (0, 1): -3.0}, 2).tolist()
    [0.0, 0.0, 0.0, 3.0]
    """
    kept = kept_of_sets(documents)
    holds = np.array([kept[:, list(among)].all(axis=1) for among in interactions])
    odds = np.array([*interactions.values()]) @ holds
    return odds[0] - odds
