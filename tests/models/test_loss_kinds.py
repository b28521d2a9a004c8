"""The table of losses: each beside NumPy's softmax, and one more that needs no other file."""

from typing import Any, get_args

import equinox as eqx
import jax
import numpy as np
import pytest
from reference.networks import byte_network
from scipy.special import logsumexp

import lim_jax as lim
from lim_jax import explanations, models
from lim_jax.attribution.profile_run import accounts_of_contexts, measure
from lim_jax.models import CausalLM, Targets
from lim_jax.models.causal import LossOfLogits
from lim_jax.models.loss_kinds import LOSSES, LossKind, LossName, loss_kind
from lim_jax.prompts import tokenize_context
from lim_jax.prompts.documents import RenderedPrompt

PROMPT = "one of"
ANSWER = " two"
FOIL = " a"
PLACES = np.arange(len(PROMPT) - 1, len(PROMPT + ANSWER) - 1)  # which have the answer's bytes next


def context_of_loss(name):
    foil = FOIL if LOSSES[name].needs_foil else ""
    return tokenize_context(RenderedPrompt(PROMPT), ANSWER, loss=name, foil=foil)


def margin(row, answer):
    return logsumexp(np.delete(row, answer)) - row[answer]


def by_formula(logits_of):
    """What each loss is of, written out; the logits are those of every place of a text."""
    text = PROMPT + ANSWER
    rows = logits_of(text[:-1])
    ids = list(text.encode())[1:]
    surprise = [logsumexp(row) - row[one] for row, one in zip(rows, ids, strict=True)]
    others = logits_of((PROMPT + FOIL)[:-1])
    foil = list(FOIL.encode())
    of_foil = [
        logsumexp(row) - row[one] for row, one in zip(others[len(PROMPT) - 1 :], foil, strict=True)
    ]
    return {
        "next-token": np.mean(surprise),
        "answer": np.mean([surprise[at] for at in PLACES]),
        "margin": np.mean([margin(rows[at], ids[at]) for at in PLACES]),
        "last-token": surprise[-1],
        "own-margin": margin(rows[-1], rows[-1].argmax()),
        "contrast": sum(surprise[at] for at in PLACES) - sum(of_foil),
    }


def test_each_loss_is_its_formula_and_its_terminal_after_the_network():
    model = byte_network(16)
    examples = {}
    for name, kind in LOSSES.items():
        context = context_of_loss(name)
        assert (context.contrast is None) == kind.one_pass
        given: Any = context.window[1:], context.weights
        y = context.contrast or Targets(*given)
        wide = jax.tree.map(lambda leaf: leaf.astype(int if leaf.dtype.kind in "iu" else float), y)
        examples[name] = jax.device_put((context.window[:-1].astype(int), wide))

    def measured(model, examples, texts):
        found = {}
        whole = texts[0]
        state = model.flow(model.embed(whole), lim.token_grid(len(whole)))
        for name, (ids, y) in examples.items():
            loss = LOSSES[name].loss
            found[name] = [loss(model, model.embed(ids), y)]
            if isinstance(loss, LossOfLogits):  # of the whole text
                found[name].append(loss.terminal(model, state, y))
        return found, [model.logits(text) for text in texts]

    texts = [(PROMPT + ANSWER)[:-1], (PROMPT + FOIL)[:-1]]
    ids = [jax.device_put(np.frombuffer(text.encode(), np.uint8).astype(int)) for text in texts]
    found, logits = eqx.filter_jit(measured)(model, examples, ids)
    expected = by_formula(dict(zip(texts, logits, strict=True)).get)
    assert set(expected) == set(LOSSES) == set(get_args(LossName))
    assert len({round(float(value), 6) for value in expected.values()}) == len(expected)
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_run")
def test_a_loss_is_added_by_an_entry_alone(monkeypatch):
    """Thrice the margin, at the answer's first place: contexts, energies and a page's accounts."""
    triple = LossOfLogits(
        "triple", lambda logits, y: 3 * CausalLM.margin_loss.from_logits(logits, y)
    )

    def first(answered):
        return np.eye(answered.size)[answered.argmax()]

    monkeypatch.setitem(LOSSES, "triple", LossKind("thrice", triple, first, needs_answer=True))
    model = byte_network(16)
    context = context_of_loss("triple")
    assert context.weights.nonzero()[0].tolist() == [PLACES[0]]
    measured = measure(model, [context], "triple")  # pyright: ignore
    (plain,) = models.energies_of_ids(
        model, [context.window], ask=[context.weights], loss=CausalLM.margin_loss
    )
    np.testing.assert_allclose(measured.energies[0], 9 * plain, rtol=1e-6)
    accounts = []
    monkeypatch.setattr(
        explanations, "account_of_context", lambda *of, progress: accounts.append(of[-1])
    )
    loss = LOSSES["triple"].loss  # pyright: ignore
    accounts_of_contexts(model, [context.window], [context.weights], loss=loss)
    assert accounts == [triple]


@pytest.mark.usefixtures("as_users_run")
def test_a_loss_of_no_name_or_of_two_passes_is_refused():
    model = byte_network(16)
    context = context_of_loss("margin")
    with pytest.raises(ValueError, match=r'loss: got .margins., expected "next-token" or'):
        loss_kind("margins")
    for on_page in (0, 1):
        with pytest.raises(ValueError, match="loss: got .margins."):
            measure(model, [context], "margins", contexts_on_page=on_page)  # pyright: ignore
    with pytest.raises(
        ValueError, match="loss: got function, expected an instance of .*LossOfLogits"
    ):
        explanations.account_of_context(
            model, context.window, context.weights, loss=models.contrast_loss
        )
