r"""Retrieval in ids, without text: batches of any size, seeded, made under jit.

Two tasks. Of key and value (`KeyValueTask`) one pair is asked for at the end of the context, as in
lost-in-the-middle's; in associative recall (`RecallTask`, MQAR) every pair is asked for once,
somewhere after all pairs. Ids below `keys` are keys, those from there on values.
"""

from functools import partial
from operator import index
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from lim_jax._jit import filter_jit
from lim_jax.tasks.prompts import Example

Gold = Int[Array, " examples"]


class KeyValueTask(NamedTuple):
    """Pairs of a key and a value, one after another, then one of the keys: its value is asked.

    Attributes
    ----------
    records
        How many pairs a context holds.
    keys, values
        How many there are to choose from. A context's keys differ; values may not.
    """

    records: int = 16
    keys: int = 32
    values: int = 16

    @property
    def length(self) -> int:
        """The places L of a context."""
        return 2 * self.records + 1

    @property
    def vocabulary(self) -> int:
        """The number of ids."""
        return self.keys + self.values


class RecallTask(NamedTuple):
    r"""Associative recall of many queries: pairs, and later each of their keys once.

    The task of Arora et al., "Zoology: measuring and improving recall in efficient language models"
    (2023): after a key its value is asked, which follows it, and the gap between a pair and its
    query has a power law. The r-th free place of two ids after the pairs, from 0, is taken with a
    probability in proportion to :math:`(r + 1)^{a - 1}`; places that are left over hold values at
    random.

    Attributes
    ----------
    pairs
        How many pairs a context holds.
    length
        The places L, even, at least four for each pair.
    keys, values
        As in `KeyValueTask`.
    power
        a > 0; the smaller, the nearer are the queries.
    """

    pairs: int = 8
    length: int = 64
    keys: int = 32
    values: int = 16
    power: float = 0.01

    @property
    def vocabulary(self) -> int:
        """The number of ids."""
        return self.keys + self.values


def key_value_examples(task: KeyValueTask, gold: Gold, *, key: Key[Array, ""]) -> Example:
    """Draw a context for each gold place.

    Parameters
    ----------
    task
        Its sizes.
    gold
        The number of the pair that each context asks for: of `laws.gold_places`, or `every_place`.
    key
        For keys and values.

    Returns
    -------
    examples
        With a leading axis; windows of ``task.length + 1`` ids, of which the last is the answer.

    Examples
    --------
    >>> task = KeyValueTask(records=2, keys=3, values=4)
    >>> found = key_value_examples(task, jnp.array([1]), key=jax.random.key(0))
    >>> (first, a, second, b, asked, answer), = found.window.tolist()
    >>> first != second == asked, b == answer, found.records.tolist()
    (True, True, [[0, 0, 1, 1, -1]])
    """
    return _key_value_examples(KeyValueTask(*map(index, task)), gold, key)


@filter_jit
def _key_value_examples(task: KeyValueTask, gold: Gold, key: Key[Array, ""]) -> Example:
    keys_key, values_key = jax.random.split(key)
    keys, values = _pairs(keys_key, values_key, gold.shape[0], task.records, task.keys, task.values)
    rows = jnp.arange(gold.shape[0])
    pairs = jnp.stack([keys, values], axis=2).reshape(gold.shape[0], -1)
    window = jnp.column_stack([pairs, keys[rows, gold], values[rows, gold]])
    records = jnp.append(jnp.repeat(jnp.arange(task.records), 2), -1)
    weights = jnp.zeros(task.length).at[-1].set(1)
    return Example(
        window,
        jnp.broadcast_to(weights, (gold.shape[0], task.length)),
        jnp.broadcast_to(records, (gold.shape[0], task.length)),
        gold[:, None],
    )


def recall_examples(task: RecallTask, count: int, *, key: Key[Array, ""]) -> Example:
    """Draw contexts in which every pair is asked for once.

    Parameters
    ----------
    task
        Its sizes.
    count
        How many contexts.
    key
        For keys, values and places.

    Returns
    -------
    examples
        With a leading axis; `gold` holds the number of the pair of each query, in order of place.

    Examples
    --------
    >>> task = RecallTask(pairs=2, length=10, keys=3, values=4)
    >>> found = recall_examples(task, 1, key=jax.random.key(0))
    >>> found.window.shape, (found.weights > 0).sum().item(), sorted(found.gold[0].tolist())
    ((1, 11), 2, [0, 1])
    """
    return _recall_examples(task, jax.random.split(key, count))


@filter_jit
def _recall_examples(task: RecallTask, keys: Key[Array, " examples"]) -> Example:
    return jax.vmap(partial(_recall_context, task))(keys)


def _recall_context(task: RecallTask, key: Key[Array, ""]) -> Example:
    keys_key, values_key, places_key, fill_key = jax.random.split(key, 4)
    keys, values = _pairs(keys_key, values_key, 1, task.pairs, task.keys, task.values)
    pairs = jnp.stack([keys[0], values[0]], axis=1).reshape(-1)
    free = (task.length - 2 * task.pairs) // 2
    odds = jnp.arange(1.0, free + 1) ** (task.power - 1.0)
    # The pair that comes first draws its place first.
    slots = jax.random.choice(places_key, free, (task.pairs,), replace=False, p=odds / odds.sum())
    at = 2 * (task.pairs + slots)
    fill = task.keys + jax.random.randint(fill_key, (task.length + 1,), 0, task.values)
    window = fill.at[: 2 * task.pairs].set(pairs).at[at].set(keys[0]).at[at + 1].set(values[0])
    weights = jnp.zeros(task.length).at[at].set(1 / task.pairs)
    records = jnp.append(jnp.repeat(jnp.arange(task.pairs), 2), jnp.full(2 * free, -1, int))
    return Example(window, weights, records, jnp.argsort(at))


def _pairs(
    keys_key: Key[Array, ""],
    values_key: Key[Array, ""],
    count: int,
    pairs: int,
    keys: int,
    values: int,
) -> tuple[Int[Array, "examples pairs"], Int[Array, "examples pairs"]]:
    """Draw distinct keys for each context, and values."""
    uniform = jax.random.uniform(keys_key, (count * keys,)).reshape(count, keys)
    distinct = jnp.argsort(uniform, axis=1)[:, :pairs]
    return distinct, keys + jax.random.randint(values_key, (count, pairs), 0, values)
