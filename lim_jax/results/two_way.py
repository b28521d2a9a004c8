"""What is due to a document and what to its place: its shares in several orders."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from lim_jax._checks import described, require, require_floats, require_kind, require_several
from lim_jax._text_tables import text_table
from lim_jax.probes import Estimate
from lim_jax.results.archive import to_numpy
from lim_jax.results.percentages import error_words, points_in_words

Pair = tuple[np.ndarray, np.ndarray]  # values and their errors


class TwoWayShares(NamedTuple):
    """Shares by document and by place, of so many contexts and orders."""

    table: Estimate  # of each document, a row, at each place; NaN where no order has it there
    by_place: Estimate  # what a document at this place holds, whichever it is
    by_document: Estimate  # what a document holds, wherever it stands
    gap: Estimate | None  # the ends' mean less that of those between; None of two places
    contexts: int
    orders: int


class _Fit(NamedTuple):
    """The fit of one context."""

    levels: np.ndarray  # mu + beta_p of each place, then mu + alpha_d of each document
    inverse: np.ndarray  # the effects' covariance over that of the noise
    noise: float  # its variance
    order_variance: float  # the variance of the orders' means
    sums: np.ndarray  # of the shares of each document (row) at each place (column)
    counts: np.ndarray  # how many shares there are of each document at each place


def two_way_shares(
    shares: Float[Any, "contexts orders places"], documents: Int[Any, "contexts orders places"]
) -> TwoWayShares:
    r"""Separate the share due to the place from that due to the document, with errors.

    Of an order o of a context's documents let :math:`s_{op}` be the share of the document d(o, p)
    at place p. Within a context

    .. math:: s_{op} = \mu + \omega_o + \beta_p + \alpha_{d(o,p)} + \varepsilon_{op}, \qquad
              \sum_p \beta_p = \sum_d \alpha_d = 0

    is fitted by least squares; the order's own :math:`\omega_o` takes what its documents lose to
    the rest of the text. Where every document has every place equally often these are plain means,
    right also where places and documents do not add up; in the orders of `prompts.cyclic_orders`
    they are so on the average over permutations. Errors are of the contexts' scatter. One context
    alone has none: there what does not add up is taken for noise, with :math:`(N - 2)(k - 1)`
    degrees of freedom of N orders of k documents, and the error says nothing about other questions.

    Parameters
    ----------
    shares
        The share of the influence at each place, in each order of each context, such as
        `prompts.ShuffledContexts.shares` gives for one context; not traced.
    documents
        Which document stands there, of the same shape: whole numbers from 0, each once in an order,
        in two orders at least.

    Returns
    -------
    TwoWayShares
        The shares by document and place, by place, and by document, and the gap between the ends'
        mean and that of the places between, each with its standard error.

    Raises
    ------
    ValueError
        If the shares are no floats with these three axes or not finite, `documents` does not number
        all documents in each order, or the orders do not tell places from documents.

    Examples
    --------
    Each of three documents at each of three places, of one context. The second holds 0.3 more than
    the others, and the first place 0.1 more.

    >>> documents = np.array([[[0, 1, 2], [1, 2, 0], [2, 0, 1]]])
    >>> shares = 0.1 + 0.3 * (documents == 1) + np.array([0.1, 0.0, 0.0])
    >>> result = two_way_shares(shares, documents)
    >>> result.by_place.value.round(3).tolist(), result.by_document.value.round(3).tolist()
    ([0.3, 0.2, 0.2], [0.133, 0.433, 0.133])
    """
    require_floats(
        shares, "shares", "contexts orders places", cure="Pass shares[None] for one context."
    )
    shares = to_numpy(shares).astype(float)
    documents = to_numpy(documents)
    _require_orders(shares, documents)
    contexts, orders, places = shares.shape
    fits = [_fit_effects(*context) for context in zip(shares, documents, strict=True)]
    combinations = np.eye(2 * places)
    if places > 2:
        contrast = np.full(places, -1 / (places - 2))
        contrast[[0, -1]] = 1 / 2
        combinations = np.vstack([combinations, np.concatenate([contrast, np.zeros(places)])])
    value, error = (
        _average(fits, combinations) if contexts > 1 else _combine_one(fits[0], combinations)
    )
    by_place, by_document, gap = (
        _estimate(value[part], error[part])
        for part in (slice(places), slice(places, 2 * places), -1)
    )
    table = _estimate(*(_table(fits) if contexts > 1 else _table_of_one(fits[0])))
    return TwoWayShares(table, by_place, by_document, gap if places > 2 else None, contexts, orders)


def _estimate(value: Any, error: Any) -> Estimate:
    """Put values and errors on JAX's default device, as an estimate."""
    return Estimate(jax.device_put(value), jax.device_put(error))


def two_way_in_words(result: TwoWayShares, names: Sequence[str]) -> str:
    """Say which document holds most, which place, and whether the middle is lost."""
    document = int(np.argmax(result.by_document.value))
    place = int(np.argmax(result.by_place.value))
    least = int(np.argmin(result.by_place.value))
    lines = [
        f"Wherever it stands, “{names[document]}” holds most: "
        f"{_share_cell(result.by_document, document)} % of the influence.",
        f"Whichever document stands there, place {place + 1} holds most, "
        f"{_share_cell(result.by_place, place)} %; place {least + 1} least, "
        f"{_share_cell(result.by_place, least)} %.",
    ]
    if result.gap is not None:
        points, warning = points_in_words(-float(result.gap.value), float(result.gap.error))
        lines.append(f"The places between hold {points} than the first and the last{warning}.")
    return "\n".join(lines)


def two_way_cells(result: TwoWayShares, names: Sequence[str]) -> list[list[str]]:
    """Return the rows of a table of shares in per cent with errors; the first names the columns."""
    places = range(len(names))
    rows = [["share in %", *(f"place {place + 1}" for place in places), "any place"]]
    for number, name in enumerate(names):
        cells = [_share_cell(result.table, (number, place)) for place in places]
        rows.append([f"“{name}”", *cells, _share_cell(result.by_document, number)])
    by_place = [_share_cell(result.by_place, place) for place in places]
    return [*rows, ["any document", *by_place, ""]]


def two_way_table(result: TwoWayShares, names: Sequence[str]) -> str:
    """Lay out shares in per cent with their errors: documents in rows, places in columns.

    Parameters
    ----------
    result
        The shares, by `two_way_shares`.
    names
        The name of each document, in the order of its numbers.

    Returns
    -------
    str
        The table as text. A dash stands where no order has the document at the place.

    Raises
    ------
    ValueError
        If `result` is not TwoWayShares, or there is not a name for each document.

    Examples
    --------
    >>> documents = np.array([[[0, 1], [1, 0]], [[1, 0], [0, 1]]])
    >>> shares = np.array([[[0.5, 0.25], [0.375, 0.5]], [[0.25, 0.5], [0.5, 0.375]]])
    >>> print(two_way_table(two_way_shares(shares, documents), ["Wren", "Rowan"]))
    share in %           place 1         place 2       any place
    “Wren”        50.0 (error 0)  50.0 (error 0)  50.0 (error 0)
    “Rowan”           31.2 ± 6.2      31.2 ± 6.2  31.2 (error 0)
    any document      40.6 ± 3.1      40.6 ± 3.1
    """
    require_kind(result, TwoWayShares, "result", "Take it from two_way_shares.")
    require_several(names, str, "names", "Pass those of the documents.")
    places = result.by_place.value.size
    require(
        len(names) == places,
        "names",
        got=f"{len(names)} names",
        expected=f"{places}",
        cure="Pass one for each document.",
    )
    return text_table(two_way_cells(result, names))


def _share_cell(shares: Estimate, place: Any) -> str:
    """Write a share in per cent with its error; "-" where no order has the document there."""
    value = 100 * float(shares.value[place])
    error = 100 * float(shares.error[place])
    if math.isnan(value):
        return "-"
    return f"{value:.1f}{error_words(error) or ' (no error)'}"


def _fit_effects(shares: np.ndarray, documents: np.ndarray) -> _Fit:
    """Fit the model of `two_way_shares` to one context by least squares.

    An order's mean is taken off the shares, and 1/k off each column.
    """
    orders, places = shares.shape
    marks = np.eye(places)[documents]  # of each order and place its document
    columns = np.concatenate([np.broadcast_to(np.eye(places), marks.shape), marks], axis=2)
    columns = (columns - 1 / places).reshape(-1, 2 * places)
    means = shares.mean(axis=1)
    deviations = (shares - means[:, None]).ravel()
    normal = columns.T @ columns
    separable = int(np.linalg.matrix_rank(normal, hermitian=True)) == 2 * (places - 1)
    require(
        separable,
        "documents",
        got="orders that do not tell places from documents",
        expected=(
            "orders in which each document changes places with all others, at once or through "
            "others"
        ),
        cure="Take those of prompts.cyclic_orders, two at least.",
    )
    inverse = np.linalg.pinv(normal, hermitian=True)
    effects = inverse @ (columns.T @ deviations)
    freedom = (orders - 2) * (places - 1)
    residual = ((deviations - columns @ effects) ** 2).sum()
    return _Fit(
        means.mean() + effects,
        inverse,
        residual / freedom if freedom else math.inf,
        means.var(ddof=1),
        np.einsum("op,opd->dp", shares, marks),
        marks.sum(axis=0).T,
    )


def _average(fits: list[_Fit], combinations: np.ndarray) -> Pair:
    """Average combinations of the contexts' levels, with the standard errors of their scatter."""
    values = np.array([combinations @ fit.levels for fit in fits])
    return values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(len(fits))


def _combine_one(fit: _Fit, combinations: np.ndarray) -> Pair:
    """Return combinations of one context's levels, with errors from its noise and its orders."""
    effects = np.einsum("ij,jk,ik->i", combinations, fit.inverse, combinations)
    orders = fit.counts.sum(axis=0)[0]  # in each of which every place has one document
    # The orders' mean is once in every level and in no contrast, whose coefficients sum to zero.
    mean_variance = combinations.sum(axis=1) * fit.order_variance / orders
    return combinations @ fit.levels, np.sqrt(fit.noise * effects + mean_variance)


def _table(fits: list[_Fit]) -> Pair:
    """Average the documents' shares at each place over the contexts with an order that has them."""
    counts = np.array([fit.counts for fit in fits])
    sums = np.array([fit.sums for fit in fits])
    cells = np.ma.array(sums / np.maximum(counts, 1), mask=counts == 0)
    error = cells.std(axis=0, ddof=1) / np.sqrt(cells.count(axis=0))
    return cells.mean(axis=0).filled(np.nan), error.filled(np.inf)


def _table_of_one(fit: _Fit) -> Pair:
    """Return one context's mean shares, with errors from its noise and its orders' means."""
    number = np.maximum(fit.counts, 1)
    variance = fit.noise * (1 - 1 / len(number)) + fit.order_variance
    error = np.sqrt(np.where(fit.counts > 0, variance / number, np.inf))
    return np.where(fit.counts > 0, fit.sums / number, np.nan), error


def _require_orders(shares: np.ndarray, documents: np.ndarray) -> None:
    """Raise ValueError unless shares are finite and each order numbers all documents."""
    finite = bool(np.isfinite(shares).all())
    require(
        finite,
        "shares",
        got="NaN or infinity",
        expected="finite shares of the influence",
        cure="Find where they come from.",
    )
    places = shares.shape[2]
    numbers_documents = documents.shape == shares.shape and np.issubdtype(
        documents.dtype, np.integer
    )
    numbers_documents = (
        numbers_documents and places > 1 and bool((np.sort(documents) == np.arange(places)).all())
    )
    all_numbers = "in each order all numbers of documents from 0, two at least"
    require(
        numbers_documents,
        "documents",
        got=described(documents),
        expected=f"of shape {shares.shape}, {all_numbers}",
        cure="Take the orders of prompts.cyclic_orders.",
    )
