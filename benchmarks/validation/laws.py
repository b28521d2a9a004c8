r"""Where the record stands that is asked for: laws of the gold place, and draws from them.

A law is an array of probabilities, one for each record. That of training and that of probing or
testing are two arrays: what is lost in the middle is often lost because the first has little there.
"""

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from lim_jax._jit import filter_jit

Law = Float[Array, " records"]


def uniform_law(records: int) -> Law:
    """Return the law of every place alike.

    Examples
    --------
    >>> uniform_law(4).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    return _law_on_host(np.ones(records))


def edge_law(records: int, *, width: float = 0.25, odds: float = 0.02) -> Law:
    """Return the law of the first and the last records, and seldom one between them.

    Parameters
    ----------
    records
        How many.
    width
        The share of the records that each edge has, rounded down; at least one record.
    odds
        The probability of a place in the middle over that of one at an edge.

    Examples
    --------
    >>> edge_law(6, odds=0.5).tolist()
    [0.25, 0.125, 0.125, 0.125, 0.125, 0.25]
    """
    return _law_on_host(np.where(_at_edge(records, width), 1.0, odds))


def middle_law(records: int, *, width: float = 0.25, odds: float = 0.02) -> Law:
    """Return the law of the records between the edges, and seldom one of the edges'.

    Parameters
    ----------
    records, width
        As in `edge_law`.
    odds
        The probability of a place at an edge over that of one in the middle.

    Examples
    --------
    >>> middle_law(6, odds=0.0).tolist()
    [0.0, 0.25, 0.25, 0.25, 0.25, 0.0]
    """
    return _law_on_host(np.where(_at_edge(records, width), odds, 1.0))


@filter_jit
def law_of_weights(weights: Float[Array, " records"]) -> Law:
    """Return probabilities in proportion to any weights, such as a density at the records' places.

    Examples
    --------
    >>> law_of_weights(jnp.array([1.0, 3.0])).tolist()
    [0.25, 0.75]
    """
    return weights / weights.sum()


def gold_places(law: Law, count: int, *, key: Key[Array, ""]) -> Int[Array, " examples"]:
    """Draw the gold place of each example, independently.

    Examples
    --------
    >>> gold_places(jnp.array([0.0, 1.0, 0.0]), 3, key=jax.random.key(0)).tolist()
    [1, 1, 1]
    """
    return _draw_records(law_of_weights(law), count, key)


def every_place(records: int, count: int) -> Int[Array, " examples"]:
    """Return every gold place `count` times, in turn: to measure all of them equally well.

    Examples
    --------
    >>> every_place(3, 2).tolist()
    [0, 1, 2, 0, 1, 2]
    """
    places = np.arange(records)
    return jax.device_put(np.tile(places, count))


@filter_jit
def _draw_records(law: Law, count: int, key: Key[Array, ""]) -> Int[Array, " examples"]:
    return jax.random.choice(key, law.shape[0], (count,), p=law)


def _law_on_host(weights: np.ndarray) -> Law:
    """Return the law of weights that are known before anything is compiled."""
    return law_of_weights(jax.device_put(weights))


def _at_edge(records: int, width: float) -> Bool[np.ndarray, " records"]:
    edge = max(1, int(records * width))
    numbers = np.arange(records)
    return (numbers < edge) | (numbers >= records - edge)
