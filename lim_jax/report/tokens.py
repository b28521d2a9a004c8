"""A context's tokens, as they stand in the text of a page and on the card of each."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from lim_jax._checks import require
from lim_jax.adjoint.ledger import CHANNELS
from lim_jax.density.statistics import Influence
from lim_jax.explanations.account import HOPS, TokenAccount
from lim_jax.prompts.contexts import places_by_name
from lim_jax.report.sentences import percent
from lim_jax.report.shades import Shading
from lim_jax.report.wording import digits, with_error

REGIONS = ("left", "middle", "right")
FIELDS = ("token", "place", "position", "density", "mean", "part", "asks", *CHANNELS, *HOPS)
MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # of a token that makes no character by itself
MOST = 3  # tokens of a part that are named


class ShownContext(NamedTuple):
    """A context on a page: what the text needs of each token, and what its card tells (`FIELDS`).

    `after` is the token after the context; of `length` tokens those that make one character are
    one of `tokens`.
    """

    tokens: list[dict[str, Any]]
    records: list[list[str]]
    after: str
    length: int


def joined_tokens(texts: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Tokens as they are shown: those that make one character together are one, with their numbers.

    Of a character of several tokens the last has its text, and the others are empty.

    >>> joined_tokens(["n", "", "é", "!", ""])
    [('n', [0]), ('é', [1, 2]), ('!', [3]), ('�', [4])]
    """
    groups, begun = [], 0
    for at, text in enumerate(texts):
        if text:
            groups.append((text, list(range(begun, at + 1))))
            begun = at + 1
    rest = list(range(begun, len(texts)))  # of a character that ends after the context
    return [*groups, (UNKNOWN, rest)] if rest else groups


def held_by_text(
    texts: Sequence[str], energies: Float[Any, " tokens"], places: Sequence[int]
) -> dict[str, float]:
    """What tokens of one text hold together, of some places, as `joined_tokens` shows them.

    >>> held_by_text(["a", "", "é", "a"], np.array([1.0, 2.0, 3.0, 4.0]), [0, 1, 2, 3])
    {'a': 5.0, 'é': 5.0}
    """
    chosen, by_text = set(places), {}
    for text, group in joined_tokens(texts):
        inside = [at for at in group if at in chosen]
        if inside:
            by_text[text] = by_text.get(text, 0.0) + sum(float(energies[at]) for at in inside)
    return by_text


def most_in_words(held: Mapping[str, float]) -> str:
    r"""The tokens that hold most, each with its part of what all hold.

    >>> most_in_words({" the": 1.0, "Wren": 6.0, "\n": 0.5, ".": 0.5})
    '“Wren” 75 %, “ the” 12 %, “⏎” 6 %'
    """
    whole = sum(held.values()) or 1
    most = sorted(held.items(), key=lambda pair: -pair[1])[:MOST]
    shown = [(in_text(text).replace("\n", ""), percent(part / whole)) for text, part in most]
    return ", ".join(f"“{text}” {part}" for text, part in shown)


def own_density(account: TokenAccount) -> np.ndarray:
    """The density of one context's own influence; zero where it has none."""
    energy = np.asarray(account.energy, float)
    return energy / (energy.mean() or 1)


def shown_context(
    account: TokenAccount, texts: Sequence[str], influence: Influence, shade: Shading
) -> ShownContext:
    """A context's tokens, shaded by its own density, each beside the mean over contexts."""
    density, asked = own_density(account), np.asarray(account.query_weights)
    groups = joined_tokens(texts[:-1])
    cells = _cells(len(density), influence)
    regions = np.asarray(influence.regions.weights).argmax(axis=0)[cells]
    firsts = regions[[group[0] for _, group in groups]]
    begins = np.diff(firsts, prepend=-1) != 0
    shades = shade(np.array([density[group].mean() for _, group in groups])).tolist()
    everywhere = (asked > 0).all()
    tokens = [
        {
            "text": in_text(text),
            "shade": of_group,
            "asked": bool(asked[group].sum() > 0 and not everywhere),
            "region": REGIONS[first] if begin else "",
        }
        for (text, group), of_group, first, begin in zip(
            groups, shades, firsts.tolist(), begins, strict=True
        )
    ]
    names = [REGIONS[region] for region in regions]
    records = _records(account, density, groups, names, cells, influence)
    return ShownContext(tokens, records, in_text(texts[-1]), len(density))


class Block(NamedTuple):
    """A named part of a context on a page: its shares in per cent, and its tokens that hold most.

    `width` is the share as a number, for a bar; `shade` that of its mean density.
    """

    name: str
    share: str
    tokens: str
    width: float
    shade: int
    most: str


def blocks_of(
    account: TokenAccount, texts: Sequence[str], spans: Sequence[Any], shade: Shading
) -> list[Block]:
    """The named parts of a context, in its order, with their shares of its influence.

    Spans of one name count together. The last part is what is in none of them, where there is
    something.
    """
    density = own_density(account)
    named = {name: places.tolist() for name, places in places_by_name(spans).items()}
    outside = [at for places in named.values() for at in places if not 0 <= at < len(density)]
    require(
        not outside,
        "spans",
        got=f"the places {outside[:3]}",
        expected=f"places from 0 to {len(density) - 1}",
        cure="Count them from the first token of the context that is shown.",
    )
    inside = {at for places in named.values() for at in places}
    rest = [at for at in range(len(density)) if at not in inside]
    parts = [*named.items(), ("", rest)] if named and rest else named.items()
    return [_block(name, at, density, texts, shade) for name, at in parts]


def _block(
    name: str, places: list[int], density: np.ndarray, texts: Sequence[str], shade: Shading
) -> Block:
    held, whole = density[places], density.sum() or 1
    share, mean = float(held.sum() / whole), np.array([held.mean() if places else 0.0])
    return Block(
        name,
        percent(share),
        percent(len(places) / len(density)),
        round(100 * share, 2),
        int(shade(mean)[0]),
        most_in_words(held_by_text(texts[: len(density)], density, places)),
    )


def _cells(length: int, influence: Influence) -> np.ndarray:
    """The cell of the influence's grid in which the middle of each token's own cell lies."""
    middles = (np.arange(length) + 0.5) / length
    return np.searchsorted(np.asarray(influence.grid.edges), middles) - 1


def _records(
    account: TokenAccount,
    density: np.ndarray,
    groups: Sequence[tuple[str, list[int]]],
    names: Sequence[str],
    cells: np.ndarray,
    influence: Influence,
) -> list[list[str]]:
    """What the cards tell; of several tokens the density is their mean, and their part the sum."""
    length = len(density)
    mean, error = np.asarray(influence.density)[cells], np.asarray(influence.density_error)[cells]
    parts = [np.asarray(energies, float) for energies in (account.channels, account.hops)]
    asked = np.asarray(account.query_weights)
    records = []
    for text, group in groups:
        first, last, weight = group[0] + 1, group[-1] + 1, asked[group].sum()
        numbers = f"{first}" if first == last else f"{first} to {last}"
        shares = np.concatenate([parts_shares(part[:, group].sum(axis=1)) for part in parts])
        records.append([
            "".join(map(_visible, text)),
            f"{numbers} of {length}, {names[group[0]]}",
            f"{last / length:.4f}",
            digits(density[group].mean()),
            # A mean's error is at most the mean of the errors.
            with_error(mean[group].mean(), error[group].mean()),
            f"{digits(100 * density[group].sum() / length)} %",
            f"The loss asks here, with weight {digits(weight)}." if weight > 0 else "",
            *(f"{100 * share:.1f}" for share in shares),
        ])  # fmt: skip
    return records


def parts_shares(parts: Any) -> np.ndarray:
    """Each part's share of the parts' sum; zero where there is none."""
    parts = np.asarray(parts, float)
    whole = parts.sum(axis=0)
    return parts / np.where(whole > 0, whole, 1)


def in_text(token: str) -> str:
    r"""A token as it stands in the text: what cannot be seen gets a mark, and lines still break.

    Spaces beside letters stay, since the shade shows them.

    >>> in_text(" the"), in_text("  "), in_text(".\n"), in_text("\x00"), in_text("")
    (' the', '··', '.⏎\n', '⟨00⟩', '�')
    """
    blank = not token.strip(" \n")
    letters = {"\n": MARKS["\n"] + "\n", " ": "·" if blank else " "}
    return "".join(letters.get(letter) or _visible(letter) for letter in token) or UNKNOWN


def _visible(letter: str) -> str:
    return MARKS.get(letter) or (letter if letter.isprintable() else f"⟨{ord(letter):02x}⟩")
