"""Key-value retrieval as text: many pairs, and the value of one key is asked for."""

import uuid
from typing import Literal, NamedTuple

import numpy as np

from lim_jax._checks import as_int, require, require_kind
from lim_jax.tasks.prompts import Prompt, laid_out, moved

Length = int | Literal["uuid"]
DIGITS = list("0123456789abcdef")


class KeyValues(NamedTuple):
    """Pairs of a key and a value, and the number of the pair that is asked for."""

    pairs: tuple[tuple[str, str], ...]
    gold: int


def draw_key_values(
    count: int, seed: int, *, key_length: Length = 4, value_length: Length = 4
) -> KeyValues:
    """Pairs of random hexadecimal digits, no key twice; the one that is asked for is drawn too.

    Many tokenizers read each digit by itself. Those of small models make some 36 tokens of a uuid,
    as lost-in-the-middle's pairs are of, so that the default is shorter. Lengths are in digits, or
    ``"uuid"``, of version 4; `seed` is for `numpy.random.default_rng`.

    Examples
    --------
    >>> draw_key_values(2, seed=0)
    KeyValues(pairs=(('da84', '2dae'), ('4010', '89fb')), gold=1)
    """
    key_length = _known(key_length, "key_length", as_int(count, "count"))
    value_length = _known(value_length, "value_length")
    rng = np.random.default_rng(as_int(seed, "seed", least=0))
    keys: dict[str, None] = {}  # in the order drawn
    while len(keys) < count:
        keys[_drawn(key_length, rng)] = None
    values = [_drawn(value_length, rng) for _ in range(count)]
    return KeyValues(tuple(zip(keys, values, strict=True)), int(rng.integers(count)))


def key_value_prompt(data: KeyValues, place: int | None = None) -> Prompt:
    """Pairs as a JSON object, with the one that is asked for at a place.

    Lost-in-the-middle's task; the words are our own. A record is a pair with its quotation marks.
    The answer is the value, which the text's last mark opens. `place` is from 0, the other pairs
    stay in their order; None: where it is.

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
    count, keys = len(data.pairs), len({key for key, _ in data.pairs})
    require(keys == count, "data", got=f"{count} pairs of {keys} keys",
            expected="no key twice", cure="A key that is asked for has one value.")  # fmt: skip
    place = data.gold if place is None else place
    for name, number in (("data.gold", data.gold), ("place", place)):
        expected = f"the number of one of the {count} pairs, known before tracing"
        as_int(number, name, least=0, most=count - 1, expected=expected)
    pieces = [("A JSON object of keys and values:\n\n{", False)]
    for key, value in moved(data.pairs, data.gold, place):
        pieces += [(f'"{key}": "{value}"', True), (",\n ", False)]
    key, value = data.pairs[data.gold]
    pieces[-1] = (f'}}\n\nThe value of the key "{key}" is "', False)
    return laid_out(pieces, value, [place])


def _drawn(length: Length, rng: np.random.Generator) -> str:
    if length == "uuid":
        return str(uuid.UUID(bytes=rng.bytes(16), version=4))
    return "".join(rng.choice(DIGITS, length))


def _known(length: Length, name: str, count: int = 1) -> Length:
    """A length, of which there are so many keys."""
    if isinstance(length, str) and length == "uuid":
        return length
    digits = as_int(length, name, expected='a number of digits, or "uuid"')
    most = len(DIGITS) ** digits
    require(count <= most, "count", got=f"{count}",
            expected=f"at most {most}, the keys of {digits} digits",
            cure="Raise key_length.")  # fmt: skip
    return digits
