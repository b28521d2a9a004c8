"""A context's tokens, as they stand in the text of a page and on the card of each."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lim_jax._checks import require, require_callable, require_kind, require_several, require_text
from lim_jax.adjoint.ledger import CHANNELS
from lim_jax.asking import places_by_name
from lim_jax.density.statistics import Influence
from lim_jax.explanations.account import HOPS, TokenAccount
from lim_jax.report.sentences import percent
from lim_jax.report.shades import Shading
from lim_jax.report.wording import digits, with_error

REGIONS = ("left", "middle", "right")
FIELDS = ("token", "place", "position", "density", "mean", "part", "asks", *CHANNELS, *HOPS)
MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
NOTHING = "∅"


class ShownContext(NamedTuple):
    """A context on a page.

    Attributes
    ----------
    tokens
        What the text needs of each: its text, shade, whether the loss asks here and not
        everywhere, and the name of the region that begins with it.
    records
        What the card tells of each, in the order of `FIELDS`.
    after
        The token after the context.
    loss
        Of the context.
    """

    tokens: list[dict[str, Any]]
    records: list[list[str]]
    after: str
    loss: str


def own_density(account: TokenAccount) -> np.ndarray:
    """The density of one context's own influence; zero where it has none.

    Examples
    --------
    >>> heads, by_depth = np.ones((1, 1)), np.array([[1.0, 3.0], [0.0, 0.0]])
    >>> account = TokenAccount(0, 0, 0, 0, heads, by_depth)
    >>> own_density(account).tolist()
    [0.5, 1.5]
    """
    require_kind(account, TokenAccount, "account", "Take it from account_of_context.")
    energy = np.asarray(account.energy, float)
    return energy / (energy.mean() or 1)


def shown_context(
    account: TokenAccount, texts: Sequence[str], influence: Influence, shade: Shading
) -> ShownContext:
    """Shade a context's tokens by its own density, and tell of each beside the mean over contexts.

    Parameters
    ----------
    account, texts, influence
        As in `page.write_page`, of one context.
    shade
        From densities to shades.
    """
    require_kind(influence, Influence, "influence", "Measure it with lim.influence.")
    require_callable(shade, "shade", "from densities to shades, such as shading makes")
    density, asked = own_density(account), np.asarray(account.query_weights)
    require_several(texts, str, "texts", "Take them from models.texts_of_ids.")
    require(
        len(texts) == len(density) + 1,
        "texts",
        got=f"{len(texts)} of them",
        expected=f"{len(density) + 1}, one for each token and the one after them",
        cure="Take those of the window that the account is of.",
    )
    cells = _cells(len(density), influence)
    regions = np.asarray(influence.regions.weights).argmax(axis=0)[cells]
    names = [REGIONS[region] for region in regions]
    begins, shades = np.diff(regions, prepend=-1) != 0, shade(density).tolist()
    tokens = [
        {
            "text": in_text(texts[at]),
            "shade": shades[at],
            "asked": bool(asked[at] > 0 and not (asked > 0).all()),
            "region": names[at] if begins[at] else "",
        }
        for at in range(len(density))
    ]
    records = _records(account, density, texts, names, cells, influence)
    return ShownContext(tokens, records, in_text(texts[-1]), digits(account.loss))


class Block(NamedTuple):
    """A named part of a context on a page.

    Attributes
    ----------
    name
        Of the part.
    share, tokens
        Of the context's influence and of its tokens, in per cent.
    width
        The share as a number, for a bar.
    shade
        That of its mean density.
    most
        Its tokens that hold most of its share, each with its part of that.
    """

    name: str
    share: str
    tokens: str
    width: float
    shade: int
    most: list[tuple[str, str]]


def blocks_of(
    account: TokenAccount, texts: Sequence[str], spans: Sequence[Any], shade: Shading, most: int = 3
) -> list[Block]:
    """The named parts of a context, in its order, with their shares of its influence.

    Parameters
    ----------
    account, texts, shade
        As in `shown_context`.
    spans
        Each has a ``name`` and its ``places``; those of one name count together.
    most
        How many tokens of each are named.

    Raises
    ------
    ValueError
        Where a place is not of the context.
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
    return [_block(name, at, density, texts, shade, most) for name, at in named.items()]


def _block(
    name: str,
    places: list[int],
    density: np.ndarray,
    texts: Sequence[str],
    shade: Shading,
    most: int,
) -> Block:
    held, whole = density[places], density.sum() or 1
    share, own = float(held.sum() / whole), held.sum() or 1
    largest = sorted(range(len(places)), key=lambda at: -held[at])[:most]
    return Block(
        name,
        percent(share),
        percent(len(places) / len(density)),
        round(100 * share, 2),
        int(shade(np.array([held.mean() if places else 0.0]))[0]),
        [(in_text(texts[places[at]]), percent(held[at] / own)) for at in largest],
    )


def _cells(length: int, influence: Influence) -> np.ndarray:
    """The cell of the influence's grid in which the middle of each token's own cell lies."""
    middles = (np.arange(length) + 0.5) / length
    return np.searchsorted(np.asarray(influence.grid.edges), middles) - 1


def _records(
    account: TokenAccount,
    density: np.ndarray,
    texts: Sequence[str],
    names: Sequence[str],
    cells: np.ndarray,
    influence: Influence,
) -> list[list[str]]:
    length = len(density)
    mean, error = (np.asarray(one)[cells] for one in (influence.density, influence.density_error))
    shares = np.concatenate([parts_shares(account.channels), parts_shares(account.hops)])
    asked = np.asarray(account.query_weights)
    return [
        [
            "".join(_visible(letter) for letter in texts[at]) or NOTHING,
            f"{at + 1} of {length}, {names[at]}",
            f"{(at + 1) / length:.4f}",
            digits(density[at]),
            with_error(mean[at], error[at]),
            f"{digits(100 * density[at] / length)} %",
            f"The loss asks here, with weight {digits(asked[at])}." if asked[at] > 0 else "",
            *(f"{100 * share:.1f}" for share in shares[:, at]),
        ]
        for at in range(length)
    ]


def parts_shares(parts: Any) -> np.ndarray:
    """Each part's share of the parts' sum; zero where there is none.

    Examples
    --------
    >>> parts_shares([[1.0, 0.0], [3.0, 0.0]]).tolist()
    [[0.25, 0.0], [0.75, 0.0]]
    """
    parts = np.asarray(parts, float)
    whole = parts.sum(axis=0)
    return parts / np.where(whole > 0, whole, 1)


def in_text(token: str) -> str:
    r"""A token as it stands in the text: what cannot be seen gets a mark, and lines still break.

    Spaces beside letters stay, since the shade shows them.

    Examples
    --------
    >>> in_text(" the"), in_text("  "), in_text(".\n"), in_text("\x00"), in_text("")
    (' the', '··', '.⏎\n', '⟨00⟩', '∅')
    """
    require_text(token, "token")
    blank = not token.strip(" \n")
    letters = {"\n": MARKS["\n"] + "\n", " ": "·" if blank else " "}
    return "".join(letters.get(letter) or _visible(letter) for letter in token) or NOTHING


def _visible(letter: str) -> str:
    return MARKS.get(letter) or (letter if letter.isprintable() else f"⟨{ord(letter):02x}⟩")
