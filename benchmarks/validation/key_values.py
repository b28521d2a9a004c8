"""Key-value retrieval as text: many pairs, and the value of one key is asked for."""

from typing import NamedTuple

import numpy as np

from lim_jax._checks import as_int, require, require_kind
from lim_jax.tasks.prompts import Prompt, join_pieces, move_record

DIGITS = list("0123456789abcdef")


class KeyValues(NamedTuple):
    """Pairs of a key and a value, and the number of the pair that is asked for."""

    pairs: tuple[tuple[str, str], ...]
    gold: int


def draw_key_values(
    count: int, seed: int, *, key_length: int = 4, value_length: int = 4
) -> KeyValues:
    """Draw pairs of hexadecimal digits, no key twice, and the one that is asked for.

    Many tokenizers read each digit by itself. Lengths are in digits; `seed` is for
    `numpy.random.default_rng`.

    Examples
    --------
    >>> draw_key_values(2, seed=0)
    KeyValues(pairs=(('da84', '2dae'), ('4010', '89fb')), gold=1)
    """
    for length, name in ((key_length, "key_length"), (value_length, "value_length")):
        as_int(length, name, expected="a number of digits")
    most = len(DIGITS) ** key_length
    expected = f"at most {most}, the keys of {key_length} digits"
    fits = as_int(count, "count") <= most
    got = f"{count}"
    require(fits, "count", got=got, expected=expected, cure="Raise key_length.")
    rng = np.random.default_rng(as_int(seed, "seed", least=0))
    keys: dict[str, None] = {}  # in the order drawn
    while len(keys) < count:
        keys["".join(rng.choice(DIGITS, key_length))] = None
    values = ["".join(rng.choice(DIGITS, value_length)) for _ in range(count)]
    return KeyValues(tuple(zip(keys, values, strict=True)), int(rng.integers(count)))


def key_value_prompt(data: KeyValues, place: int | None = None) -> Prompt:
    """Lay out pairs as a JSON object, with the one that is asked for at a place.

    Lost-in-the-middle's task, in words of our own. The answer is the value, which the text's last
    mark opens. `place` is from 0, the other pairs stay in their order; None: where it is.

    Examples
    --------
    >>> prompt = key_value_prompt(KeyValues((("a", "1"), ("b", "2"), ("c", "3")), 0), place=1)
    >>> print(prompt.text, prompt.answer, prompt.gold)
    A JSON object of keys and values:
    <BLANKLINE>
    {"b": "2",
     "a": "1",
     "c": "3"}
    <BLANKLINE>
    The value of the key "a" is " 1 (1,)
    >>> [prompt.text[start:end] for start, end in prompt.spans]
    ['"b": "2"', '"a": "1"', '"c": "3"']
    """
    require_kind(data, KeyValues, "data", "Draw it by draw_key_values.")
    count = len(data.pairs)
    keys = len({key for key, _ in data.pairs})
    require(
        keys == count,
        "data",
        got=f"{count} pairs of {keys} keys",
        expected="no key twice",
        cure="Draw keys that differ: a key that is asked for has one value.",
    )
    place = data.gold if place is None else place
    for name, number in (("data.gold", data.gold), ("place", place)):
        expected = f"the number of one of the {count} pairs, known before tracing"
        as_int(number, name, least=0, most=count - 1, expected=expected)
    pieces = [("A JSON object of keys and values:\n\n{", False)]
    for key, value in move_record(data.pairs, data.gold, place):
        pieces += [(f'"{key}": "{value}"', True), (",\n ", False)]
    key, value = data.pairs[data.gold]
    pieces[-1] = (f'}}\n\nThe value of the key "{key}" is "', False)
    return join_pieces(pieces, value, [place])
