"""Prompts of keys and values as text, drawn by their number and padded to one shape."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from benchmarks.validation.key_values import draw_key_values, key_value_prompt
from lim_jax.models.causal import Targets
from lim_jax.tasks.prompts import Example, encode


class PromptSetting(NamedTuple):
    """Which prompts.

    Attributes
    ----------
    records
        Pairs in each.
    prompts
        How many, a multiple of the records.
    key_length, value_length
        In hexadecimal digits, as in `draw_key_values`.
    """

    records: int = 10
    prompts: int = 500
    key_length: int = 3
    value_length: int = 3


class TextBatch(NamedTuple):
    """Prompts padded on the right, so that one program serves many.

    Attributes
    ----------
    ids
        Of the contexts.
    y
        The answers' tokens, given the true ones before them; what fills up has no weight.
    pools
        One where a place belongs to a record, else zero.
    gold
        The record that is asked for.
    """

    ids: Int[Array, "prompts length"]
    y: Targets
    pools: Float[Array, "prompts records length"]
    gold: Int[Array, " prompts"]


def drawn_prompt(
    setting: PromptSetting, number: int, tokenizer: Any = None, *, place: int | None = None
) -> Example:
    """Return the prompt of a number, in ids.

    Parameters
    ----------
    setting
        Which prompts; how many does not matter.
    number
        From 0; each is another prompt.
    tokenizer
        The model's own; None where ids are bytes of UTF-8.
    place
        Of the record that is asked for. None: the number's remainder by the records, so that every
        place has its turn.

    Examples
    --------
    >>> found = drawn_prompt(PromptSetting(records=3), 4)
    >>> found.gold.tolist(), bytes(found.window[-3:].tolist()).decode()
    ([1], '946')
    """
    data = draw_key_values(
        setting.records,
        number,
        key_length=setting.key_length,
        value_length=setting.value_length,
    )
    place = number % setting.records if place is None else place
    return encode(key_value_prompt(data, place=place), tokenizer)


def text_batch(
    examples: Sequence[Example],
    records: int,
    *,
    size: int | None = None,
    queries: int | None = None,
    dtype: DTypeLike = "float32",
) -> TextBatch:
    """Pad prompts to one shape.

    Parameters
    ----------
    examples
        From `drawn_prompt`, or of any other prompts of one gold record each.
    records
        How many each has.
    size, queries
        To pad contexts and answers to; None for the longest.
    dtype
        Of weights and pools: the model's.

    Examples
    --------
    >>> setting = PromptSetting(records=2, value_length=1)
    >>> found = text_batch([drawn_prompt(setting, 0)], 2, size=96, queries=2)
    >>> found.ids.shape, found.y.weights.tolist(), found.pools.sum(axis=2).tolist()
    ((1, 96), [[1.0, 0.0]], [[10.0, 10.0]])
    """
    length = max(len(example.weights) for example in examples)
    words = max(int(np.count_nonzero(example.weights)) for example in examples)
    size = length if size is None else size
    queries = words if queries is None else queries
    rows = [_pad_example(example, records, size, queries, dtype) for example in examples]
    return jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves)), *rows)


def _pad_example(
    example: Example, records: int, size: int, queries: int, dtype: DTypeLike
) -> TextBatch:
    window, weights, record_numbers, gold = (np.asarray(part) for part in example)
    positions = np.flatnonzero(weights)
    more = size - len(weights)
    more_words = queries - len(positions)
    weights = np.full(len(positions), 1 / len(positions), dtype)
    at_queries = (window[1:][positions], weights, positions)
    targets, weights, positions = (np.pad(part, (0, more_words)) for part in at_queries)
    y = Targets(targets, weights, positions)  # pyright: ignore
    numbers = np.pad(record_numbers, (0, more), constant_values=-1)
    pools = (numbers[None] == np.arange(records)[:, None]).astype(dtype)
    return TextBatch._make((np.pad(window[:-1], (0, more)), y, pools, gold[0]))
