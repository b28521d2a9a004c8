"""Places and documents come apart: closed forms, NumPy's least squares, draws of known errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from lim_jax.probes import Estimate
from lim_jax.prompts import cyclic_orders
from lim_jax.results import two_way_shares, two_way_table
from lim_jax.results.two_way import TwoWayShares, two_way_in_words

PLACES = np.array([0.15, 0.02, -0.11, -0.06])  # their sum is zero
DOCUMENTS = np.array([0.3, -0.12, -0.1, -0.08])
LEVEL = 0.4
GAP = PLACES[[0, 3]].mean() - PLACES[1:3].mean()


def drawn_orders(orders, contexts, seed, places=4):
    return np.stack([cyclic_orders(places, orders, (seed, context)) for context in range(contexts)])


def adding_up(documents):
    """The share of every document at every place of every order, where the two add up."""
    return LEVEL + DOCUMENTS[documents] + PLACES


def test_each_document_has_each_place_once_in_as_many_orders():
    orders = cyclic_orders(5, 10, 3)
    for square in (orders[:5], orders[5:]):
        for lines in (square, square.T):
            np.testing.assert_array_equal(np.sort(lines), np.tile(np.arange(5), (5, 1)))
    assert not np.array_equal(orders[:5], orders[5:]), "of two permutations"
    assert not np.array_equal(orders, cyclic_orders(5, 10, 4))
    np.testing.assert_array_equal(cyclic_orders(5, 3, 3), orders[:3])


@pytest.mark.parametrize("orders", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("contexts", [1, 3])
def test_what_adds_up_is_found_without_an_error_in_any_number_of_orders(orders, contexts):
    documents = drawn_orders(orders, contexts, 0)
    result = two_way_shares(adding_up(documents), documents)
    np.testing.assert_allclose(result.by_place.value, LEVEL + PLACES, atol=1e-12)
    np.testing.assert_allclose(result.by_document.value, LEVEL + DOCUMENTS, atol=1e-12)
    assert result.gap is not None
    np.testing.assert_allclose(result.gap.value, GAP, atol=1e-12)
    assert (result.contexts, result.orders) == (contexts, orders)
    table = LEVEL + DOCUMENTS[:, None] + PLACES
    seen = np.zeros((4, 4), bool)
    seen[documents, np.arange(4)] = True
    np.testing.assert_allclose(result.table.value, np.where(seen, table, np.nan), atol=1e-12)
    if contexts > 1 or orders > 2:
        np.testing.assert_allclose(
            [*result.by_place.error, *result.by_document.error], 0, atol=1e-7
        )
    else:
        assert np.isinf(result.by_place.error).all() and np.isinf(result.gap.error)


def test_in_a_balanced_design_they_are_plain_means_and_errors_the_contexts_scatter():
    generator = np.random.default_rng(0)
    documents = drawn_orders(8, 5, 1)
    shares = generator.random(documents.shape)
    result = two_way_shares(shares, documents)
    places = shares.mean(axis=1)
    np.testing.assert_allclose(result.by_place.value, places.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(result.by_place.error, stats.sem(places), rtol=1e-10)
    of_documents = np.array(
        [
            [share[order == d].mean() for d in range(4)]
            for share, order in zip(shares, documents, strict=True)
        ]
    )
    np.testing.assert_allclose(result.by_document.value, of_documents.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(result.by_document.error, stats.sem(of_documents), rtol=1e-10)
    gaps = places[:, [0, 3]].mean(axis=1) - places[:, 1:3].mean(axis=1)
    assert result.gap is not None
    np.testing.assert_allclose(result.gap, (gaps.mean(), stats.sem(gaps)), rtol=1e-10)
    for d in range(4):
        for p in range(4):
            cells = [
                share[order[:, p] == d, p].mean()
                for share, order in zip(shares, documents, strict=True)
            ]
            np.testing.assert_allclose(result.table.value[d, p], np.mean(cells), rtol=1e-10)
            np.testing.assert_allclose(result.table.error[d, p], stats.sem(cells), rtol=1e-10)


def test_an_unbalanced_context_is_fitted_by_least_squares():
    """Against NumPy's, of orders, places and documents as columns."""
    documents = drawn_orders(7, 1, 2)
    shares = np.random.default_rng(3).random(documents.shape)
    rows = [
        np.concatenate([np.eye(7)[o], np.eye(4)[p], np.eye(4)[documents[0, o, p]]])
        for o in range(7)
        for p in range(4)
    ]
    solved, *_ = np.linalg.lstsq(np.array(rows), shares.ravel(), rcond=None)
    residual = shares.ravel() - np.array(rows) @ solved
    places, of_documents = (part - part.mean() for part in (solved[7:11], solved[11:]))
    result = two_way_shares(shares, documents)
    np.testing.assert_allclose(result.by_place.value, shares.mean() + places, rtol=1e-9)
    np.testing.assert_allclose(result.by_document.value, shares.mean() + of_documents, rtol=1e-9)
    # A contrast's error by the textbook: the noise, times the form of the pseudo-inverse.
    contrast = np.concatenate([np.zeros(7), [0.5, -0.5, -0.5, 0.5], np.zeros(4)])
    inverse = np.linalg.pinv(np.array(rows).T @ np.array(rows))
    noise = (residual**2).sum() / (28 - 13)
    assert result.gap is not None
    np.testing.assert_allclose(
        result.gap.error, np.sqrt(noise * contrast @ inverse @ contrast), rtol=1e-9
    )


INTERACTION = np.array([[3.0, -1, -1, -1], [-2, 0, 1, 1], [1, 1, -2, 0], [-2, 0, 2, 0]]) / 20


@pytest.mark.slow
@pytest.mark.parametrize("orders", [2, 4])
def test_errors_over_contexts_are_those_of_draws_and_orders_are_not_contexts(orders):
    """Contexts differ in what place and document do together; the fit is right on the average."""
    generator = np.random.default_rng(4)
    repeats = 160
    contexts = 8
    values = []
    errors = []
    naive = []
    for repeat in range(repeats):
        documents = drawn_orders(orders, contexts, repeat)
        own = 0.3 * generator.standard_normal((contexts, 1, 4))  # of a context's places
        noise = 0.02 * generator.standard_normal(documents.shape)
        together = INTERACTION[documents, np.arange(4)]
        shares = adding_up(documents) + together + own + noise
        result = two_way_shares(shares, documents)
        values.append(np.append(result.by_place.value, result.by_document.value))
        errors.append(np.append(result.by_place.error, result.by_document.error))
        naive.append(stats.sem(shares.reshape(-1, 4)))
    values = np.array(values)
    errors = np.array(errors)
    truth = LEVEL + np.concatenate([PLACES, DOCUMENTS])
    off = (values.mean(axis=0) - truth) / (values.std(axis=0) / np.sqrt(repeats))
    assert np.all(np.abs(off) < 4), "of 160 draws each is known to its error"
    spread = values.std(axis=0)
    np.testing.assert_allclose(np.sqrt((errors**2).mean(axis=0)), spread, rtol=0.15)
    if orders == 4:
        # Taken for independent, orders make errors small.
        wrong = np.sqrt((np.array(naive) ** 2).mean(axis=0))
        assert np.all(wrong < 0.75 * spread[:4])


@pytest.mark.parametrize("one_whole", [False, True])
@pytest.mark.parametrize("orders", [4, 6])
def test_errors_of_one_context_are_those_of_its_orders(orders, one_whole):
    """Of independent noise; and of shares that are one in all, whose noise sums to zero."""
    generator = np.random.default_rng(5)
    repeats = 150
    values = []
    squares = []
    for repeat in range(repeats):
        documents = drawn_orders(orders, 1, repeat)
        noise = 0.05 * generator.standard_normal(documents.shape)
        noise -= noise.mean(axis=2, keepdims=True) * one_whole
        result = two_way_shares(adding_up(documents) + noise, documents)
        assert result.gap is not None
        by_place, by_document, gap = map(
            np.array, (result.by_place, result.by_document, result.gap)
        )
        levels, errors = np.concatenate([by_place, by_document, gap[:, None]], axis=1)
        values.append(levels)
        squares.append(errors**2)
    truth = np.concatenate([LEVEL + PLACES, LEVEL + DOCUMENTS, [GAP]])
    values = np.array(values)
    spread = values.std(axis=0)
    assert np.all(np.abs(values.mean(axis=0) - truth) < 4 * spread / np.sqrt(repeats))
    np.testing.assert_allclose(np.sqrt(np.mean(squares, axis=0)), spread, rtol=0.15)


def test_a_cell_of_one_context_has_the_error_of_its_orders():
    generator = np.random.default_rng(6)
    documents = drawn_orders(8, 1, 0)
    cells = []
    squares = []
    for _ in range(150):
        noise = 0.05 * generator.standard_normal(documents.shape)
        noise += 0.1 * generator.standard_normal((1, 8, 1))  # of an order
        table = two_way_shares(adding_up(documents) + noise, documents).table
        cells.append(np.asarray(table.value))
        squares.append(np.asarray(table.error) ** 2)
    # A document has a place in two orders of eight.
    np.testing.assert_allclose(np.std(cells, axis=0), np.sqrt((0.05**2 + 0.1**2) / 2), rtol=0.15)
    np.testing.assert_allclose(np.sqrt(np.mean(squares, axis=0)), np.std(cells, axis=0), rtol=0.15)


def test_two_documents_have_no_middle():
    documents = np.array([[[0, 1], [1, 0]]] * 2)
    result = two_way_shares(np.array([[[0.5, 0.2], [0.3, 0.4]]] * 2), documents)
    assert result.gap is None
    np.testing.assert_allclose(result.by_place.value, [0.4, 0.3])
    np.testing.assert_allclose(result.by_document.value, [0.45, 0.25])
    assert len(two_way_in_words(result, ["a", "b"]).splitlines()) == 2


def test_two_documents_in_two_orders_of_one_context_have_no_errors():
    """Nothing is left over to tell them by; nor is there a warning of numbers that are none."""
    result = two_way_shares(np.array([[[0.5, 0.2], [0.3, 0.4]]]), np.array([[[0, 1], [1, 0]]]))
    np.testing.assert_allclose(result.by_place.value, [0.4, 0.3])
    np.testing.assert_allclose(result.by_document.value, [0.45, 0.25])
    for part in (result.by_place, result.by_document, result.table):
        assert np.isinf(np.asarray(part.error)).all()


SHARES = np.ones((1, 2, 3))
SQUARE = np.array([[[0, 1, 2], [1, 2, 0]]])


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    "shares, documents, message",
    [
        (SHARES[0], SQUARE[0], "shares: got shape"),
        (SHARES * np.nan, SQUARE, "shares: got NaN"),
        (SHARES, SQUARE[:, :1], "documents: got an array"),
        (SHARES, SQUARE * 1.0, "documents: got an array"),
        (SHARES, SQUARE + 1, "documents: got an array"),
        (SHARES, np.array([[[0, 1, 1], [1, 2, 0]]]), "documents: got an array"),
        (SHARES[..., :1], np.zeros((1, 2, 1), int), "documents: got an array"),
        (SHARES[:, :1], SQUARE[:, :1], "documents: got orders that do not tell"),
        (SHARES, SQUARE[:, [0, 0]], "documents: got orders that do not tell"),
        (SHARES, np.array([[[0, 1, 2], [1, 0, 2]]]), "documents: got orders that do not tell"),
    ],
)
def test_what_are_no_orders_is_refused(shares, documents, message):
    with pytest.raises(ValueError, match=message):
        two_way_shares(shares, documents)


def estimate(value, error):
    return Estimate(jnp.array(value), jnp.array(error))


def test_words_and_table_are_of_the_numbers():
    result = TwoWayShares(
        estimate(
            [[0.1, np.nan, 0.3], [0.2, 0.5, 0.6], [0.7, 0.8, 0.9]],
            [[0.01, np.inf, 0.03], [0.04, np.inf, 0.05], [0.06, 0.07, 0.08]],
        ),
        estimate([0.2, 0.11, 0.4], [0.01, 0.02, 0.03]),
        estimate([0.3, 0.1, 0.25], [0.015, 0.01, 0.02]),
        estimate(-0.1, 0.06),
        2,
        3,
    )
    assert two_way_in_words(result, ["a", "b", "c"]).splitlines() == [
        "Wherever it stands, “a” holds most: 30.0 ± 1.5 % of the influence.",
        "Whichever document stands there, place 3 holds most, 40.0 ± 3.0 %; "
        "place 2 least, 11.0 ± 2.0 %.",
        "The places between hold 10.0 ± 6.0 points more than the first and the last, "
        "which is within two errors.",
    ]
    rows = [line.split() for line in two_way_table(result, ["a", "b", "c"]).splitlines()]
    assert rows[1] == "“a” 10.0 ± 1.0 - 30.0 ± 3.0 30.0 ± 1.5".split()
    assert rows[2] == "“b” 20.0 ± 4.0 50.0 (no error) 60.0 ± 5.0 10.0 ± 1.0".split()
    assert rows[4] == "any document 20.0 ± 1.0 11.0 ± 2.0 40.0 ± 3.0".split()
    with pytest.raises(ValueError, match="names: got 1 names, expected 3"):
        two_way_table(result, ["a"])
