r"""Where the record stands that is asked for: laws of the gold place, and draws from them.

A law is an array of probabilities, one for each record. That of training and that of probing or
testing are two arrays: what is lost in the middle is often lost because the first has little there.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from lim_jax._checks import (
    counted,
    described,
    guarded,
    is_real,
    require,
    require_floats,
    require_key,
    require_known,
)
from lim_jax._errors import filter_jit

Law = Float[Array, " records"]


def uniform_law(records: int) -> Law:
    """Every place alike.

    Examples
    --------
    >>> uniform_law(4).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    return _law_on_host(np.ones(counted(records, "records")))


def edge_law(records: int, *, width: float = 0.25, odds: float = 0.02) -> Law:
    """The first and the last records, and seldom one between them.

    Parameters
    ----------
    records
        How many.
    width
        The share of the records that each edge has, rounded down; at least one record.
    odds
        The probability of a place in the middle over that of one at an edge.

    Raises
    ------
    ValueError
        Where the edges leave no middle, or an option is no number of its range.

    Examples
    --------
    >>> edge_law(6, odds=0.5).tolist()
    [0.25, 0.125, 0.125, 0.125, 0.125, 0.25]
    """
    odds = _odds(odds)
    return _law_on_host(np.where(_at_edge(records, width), 1.0, odds))


def middle_law(records: int, *, width: float = 0.25, odds: float = 0.02) -> Law:
    """The records between the edges, and seldom one of the edges'.

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
    odds = _odds(odds)
    return _law_on_host(np.where(_at_edge(records, width), odds, 1.0))


@filter_jit
@filter_jit
def law_of_weights(weights: Float[Array, " records"]) -> Law:
    """Probabilities in proportion to any weights, such as a density at the records' places.

    Raises
    ------
    ValueError
        Where they are no row of floats.
    EquinoxRuntimeError
        Where one is negative, or not finite, or all are zero.

    Examples
    --------
    >>> law_of_weights(jnp.array([1.0, 3.0])).tolist()
    [0.25, 0.75]
    """
    require_floats(weights, "weights", "records", cure="Give a weight for each record.")
    total = weights.sum()
    wrong = jnp.any(weights < 0) | ~jnp.isfinite(total) | (total <= 0)
    message = "weights: expected finite numbers that are not negative, one above zero, got others."
    weights = guarded(weights, wrong, message)
    return weights / weights.sum()


def gold_places(law: Law, count: int, *, key: Key[Array, ""]) -> Int[Array, " examples"]:
    """Draw the gold place of each example, independently.

    Examples
    --------
    >>> gold_places(jnp.array([0.0, 1.0, 0.0]), 3, key=jax.random.key(0)).tolist()
    [1, 1, 1]
    """
    require_key(key)
    return _drawn(law_of_weights(law), counted(count, "count"), key)


def every_place(records: int, count: int) -> Int[Array, " examples"]:
    """Every gold place `count` times, in turn: to measure all of them equally well.

    Examples
    --------
    >>> every_place(3, 2).tolist()
    [0, 1, 2, 0, 1, 2]
    """
    places = np.arange(counted(records, "records"))
    return jax.device_put(np.tile(places, counted(count, "count")))


@filter_jit
def _drawn(law: Law, count: int, key: Key[Array, ""]) -> Int[Array, " examples"]:
    return jax.random.choice(key, law.shape[0], (count,), p=law)


def _law_on_host(weights: np.ndarray) -> Law:
    """Of weights that are known before anything is compiled."""
    return law_of_weights(jax.device_put(weights))


def _odds(odds: float) -> float:
    require(
        is_real(odds) and 0 <= float(odds) < math.inf,
        "odds",
        got=described(odds),
        expected="a finite number from 0",
        cure="One is the uniform law, and 0 never asks there.",
    )
    return float(odds)


def _at_edge(records: int, width: float) -> Bool[np.ndarray, " records"]:
    records = counted(records, "records")
    share = "a share of the records, above zero"
    require_known(width, "width", expected=share, cure="A quarter is 0.25.")
    edge = max(1, int(records * width))
    require(
        2 * edge < records,
        "width",
        got=f"two edges of {edge} among {records} records",
        expected="some records between the edges",
        cure="Take a smaller width, or more records.",
    )
    places = np.arange(records)
    return (places < edge) | (places >= records - edge)
