"""Documents in several orders: each context has its documents at the places that it says."""

import numpy as np
import pytest

from lim_jax.prompts import Document, Line, cyclic_orders, named_documents, shuffle_documents
from lim_jax.prompts.contexts import Span

DOCUMENTS = named_documents(
    [Document("One", "Wrens sing."), Document("", "Rowans grow."), Document("Two", "It rains.")]
)
LINE = Line("here", documents=DOCUMENTS, question="Who sings?", answer=" wrens", id="q7")
ORDERS = np.array([[2, 0, 1], [0, 1, 2], [1, 2, 0]])
SHOWN = ["One\nWrens sing.", "Rowans grow.", "Two\nIt rains."]


def test_every_context_has_the_documents_at_the_places_of_its_order():
    orders = shuffle_documents(LINE, ORDERS, None, "answer", 99)
    assert orders.names == ("One", "document 2", "Two")
    np.testing.assert_array_equal(orders.orders, ORDERS)
    for order, context in zip(ORDERS, orders.contexts, strict=True):
        text = "\n\n".join(SHOWN[number] for number in order)
        assert "".join(context.tokens).startswith(text + "\n\nQuestion: Who sings?\nAnswer: ")
        assert bytes(context.window[-5:].tolist()) == b"wrens" and context.id == "q7"
        parts = {span.name: span.positions for span in context.spans}
        for name, shown in zip(orders.names, SHOWN, strict=True):
            assert "".join(context.tokens[place] for place in parts[name]) == shown


def test_shares_are_those_of_the_document_at_each_place():
    orders = shuffle_documents(LINE, ORDERS, None, "answer", 99)
    generator = np.random.default_rng(0)
    energies = [generator.random(context.length) for context in orders.contexts]
    shares = orders.shares(energies)
    for order, energy, row in zip(ORDERS, energies, shares, strict=True):
        ends = np.cumsum([len(SHOWN[number]) + 2 for number in order])
        for number, end, share in zip(order, ends, row, strict=True):
            part = energy[end - 2 - len(SHOWN[number]) : end - 2]
            np.testing.assert_allclose(share, part.sum() / energy.sum(), rtol=1e-12)
    np.testing.assert_array_equal(orders.shares([energy * 0 for energy in energies]), 0)
    for wrong in (energies[:2], [*energies[:2], energies[2][1:]], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match="energies: got shapes "):
            orders.shares(wrong)


def test_a_title_and_a_text_that_stand_apart_are_one_document():
    """As in chats whose template has a place for each."""
    orders = shuffle_documents(LINE, ORDERS, None, "answer", 99)

    def apart(context):
        halves = [
            Span(span.name, places)
            for span in context.spans
            for places in (span.positions[:4], span.positions[2:])
        ]
        return context._replace(spans=tuple(halves))

    energies = [np.arange(1.0, context.length + 1) for context in orders.contexts]
    halved = orders._replace(contexts=[apart(context) for context in orders.contexts])
    np.testing.assert_array_equal(halved.shares(energies), orders.shares(energies))


@pytest.mark.parametrize(
    "line, message",
    [
        (LINE._replace(documents=DOCUMENTS[:2]), "here: got 2 documents, .* 3"),
        (LINE._replace(answer=None), "here: got no answer"),
        (Line("there", text="Wrens sing."), "there: got 0 documents"),
        (LINE._replace(question="Who sings " + 99 * "so " + "?"), "here: got .* tokens"),
    ],
)
def test_lines_that_have_not_these_documents_are_refused(line, message):
    with pytest.raises(ValueError, match=message):
        shuffle_documents(line, ORDERS, None, "answer", 99)


def test_a_document_that_is_not_laid_out_is_missed(monkeypatch):
    render = Line.prompt.fget
    assert render is not None
    monkeypatch.setattr(
        Line, "prompt", property(lambda line: render(line)._replace(spans=render(line).spans[1:]))
    )
    with pytest.raises(ValueError, match=r"here: got a context without \['Two'\], expected all"):
        shuffle_documents(LINE, ORDERS, None, "answer", 99)


@pytest.mark.parametrize("documents, orders", [(1, 2), (3, 1), (3, 2.5), (3, True)])
@pytest.mark.usefixtures("as_users_run")
def test_fewer_than_two_are_no_orders(documents, orders):
    with pytest.raises(ValueError, match="(documents|orders): got"):
        cyclic_orders(documents, orders)


@pytest.mark.parametrize("seed", [-1, 0.5, "a", None, [], [0, -1], True, ("a",)])
@pytest.mark.usefixtures("as_users_run")
def test_seeds_are_whole_numbers(seed):
    with pytest.raises(ValueError, match="seed: got .*expected a whole number"):
        cyclic_orders(3, 3, seed)


@pytest.mark.parametrize(
    "orders, message",
    [
        ([[0, 1, 2]], "orders: got list, expected a NumPy array whose rows each hold 0 to k - 1"),
        (ORDERS[0], r"orders: got an array of int64 with shape \(3,\)"),
        (ORDERS * 1.0, "orders: got an array of float64"),
        (ORDERS == 0, "orders: got "),
        (ORDERS[:0], "orders: got an array"),
        (np.array([[0, 1, 2], [0, 0, 1]]), r"orders: got \[0, 0, 1\], expected"),
        (ORDERS + 1, r"orders: got \[3, 1, 2\]"),
        (ORDERS - 3, r"orders: got \[-1, -3, -2\]"),
    ],
)
@pytest.mark.usefixtures("as_users_run")
def test_orders_are_permutations(orders, message):
    with pytest.raises(ValueError, match=message):
        shuffle_documents(LINE, orders, None, "answer", 99)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda energy: energy * np.nan, "energies: got NaN or infinite values"),
        (lambda energy: energy - 1, "energies: got a number below zero"),
        (lambda energy: energy[1:], r"got shapes \(\d+,\) and \(\d+,\), expected \(\d+,\) and"),
    ],
)
def test_energies_that_have_no_shares_are_refused(change, message):
    documents = named_documents([Document("", "Wrens sing."), Document("", "Rowans grow.")])
    line = Line("here", documents=documents, question="Who sings?", answer=" wrens")
    shuffled = shuffle_documents(line, cyclic_orders(2, 2), None, "answer", 80)
    energies = [np.full(context.length, 0.5) for context in shuffled.contexts]
    assert shuffled.shares(energies).shape == (2, 2)
    with pytest.raises(ValueError, match=message):
        shuffled.shares([change(energy) for energy in energies])
