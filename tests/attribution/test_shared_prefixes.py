"""Contexts scored after what they share: losses and derivatives of the whole network, unpadded."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import byte_network

from lim_jax.attribution import shared_contexts
from lim_jax.attribution.mask_gradients import LEAST
from lim_jax.attribution.mean_scores import score_contexts
from lim_jax.attribution.method import Run
from lim_jax.attribution.methods import mask_path
from lim_jax.attribution.methods.mask_path import nested_rule
from lim_jax.attribution.methods.method_table import METHODS
from lim_jax.attribution.segments import (
    SINK,
    answer_segments,
    context_segments,
    document_numbers,
)
from lim_jax.attribution.shared_contexts import shared_prefixes, shared_texts
from lim_jax.attribution.without_parts import losses_without
from lim_jax.models import shared_prefix
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.loss_kinds import loss_kind
from lim_jax.prompts.contexts import tokenize_context
from lim_jax.prompts.documents import RenderedPrompt

MODEL = jax.tree.map(lambda leaf: 2 * leaf, byte_network(96, depth=2, seed=3))
SAME = "Wren é. Mr. X sang.\n\n"  # of the first document, in bytes one more


def context(second, question, answer, first=SAME):
    """Two documents, of which the second may differ, a question and an answer."""
    text = f"{first}{second} | {question}"
    end = len(first)
    spans = ((0, end, "birds"), (end, end + len(second), "owls"))
    return tokenize_context(RenderedPrompt(text, spans), answer, loss="margin")


FIVE = [
    context("An owl, 3.", "Who?", " It is é."),
    context("An owl, 3.", "What?", " So."),
    context("An owl, 5 m.", "Who?", " X"),
    context("An owl!", "By whom?", " It is é."),
    context("An owl, 3.", "Who?", " No, he."),
]
ALONE = context("An owl, 3.", "Who?", " It", first="A dove. ")
OTHERS = [context("An owl, 3.", f"{word}?", " It", first="The old tower. ") for word in "abcdef"]
CONTEXTS = [*FIVE, ALONE, *OTHERS]


@pytest.fixture(scope="module")
def losses_and_slopes():
    """Loss and derivatives of a context at a log weight of documents, by JAX through the network.

    The context's first token, a document's, has no score.
    """

    def loss(log_weight_of_each, context):
        (asked,) = np.nonzero(context.weights)
        numbers = document_numbers(context)
        ids, right, at, weights, parts = jax.device_put(
            (context.window[:-1], context.window[1:][asked], asked, context.weights[asked], numbers)
        )
        y = Targets(right, weights, at, log_weights=log_weight_of_each, parts=parts)
        return CausalLM.margin_loss(MODEL, MODEL.embed(ids), y)

    def both(context, log_weight):
        inside = jnp.asarray(document_numbers(context) >= 0)
        at = jnp.where(inside, log_weight, 0.0)
        value, slopes = eqx.filter_jit(jax.value_and_grad(partial(loss, context=context)))(at)
        return value, np.where(document_numbers(context) == SINK, 0, -slopes)

    return both


@pytest.fixture
def read(monkeypatch):
    """What is read of prefixes: whose, at how many weights, and whether states are kept."""
    calls = []
    measured = shared_prefix.read_prefix

    def counted(model, prefix, log_weights, *, keep_states):
        calls.append((prefix.contexts, len(log_weights), keep_states))
        return measured(model, prefix, log_weights, keep_states=keep_states)

    monkeypatch.setattr(shared_prefix, "read_prefix", counted)
    return calls


def by_token(scores):
    """The one row of scores by token, which this method has."""
    assert scores.by_token is not None
    (row,) = scores.by_token
    return row


@pytest.mark.slow
def test_scores_after_a_prefix_are_those_of_the_whole_network(losses_and_slopes, read):
    """Documents end in the rest, of two groups and a context by itself; answers are unequal."""
    result = score_contexts(MODEL, CONTEXTS, "margin", "mask-gradient", Run())
    assert sorted(read, key=str) == [
        (range(5), 1, True), (range(5), 2, False), (range(6, 12), 1, True), (range(6, 12), 2, False)
    ]  # fmt: skip
    for context, scores in zip(CONTEXTS, result.scores, strict=True):
        without, _ = losses_and_slopes(context, np.log(LEAST))
        whole, _ = losses_and_slopes(context, 0.0)
        _, slopes = losses_and_slopes(context, np.log(0.2))
        assert np.abs(slopes).max() > 1e-3 and abs(without - whole) > 1e-3
        np.testing.assert_allclose(by_token(scores), np.log(25) * slopes, rtol=1e-8, atol=1e-12)
        assert scores.losses is not None and scores.total_effect is not None
        np.testing.assert_allclose(scores.losses, [whole], rtol=1e-10)
        np.testing.assert_allclose(scores.total_effect, [without - whole], rtol=1e-8)


@pytest.mark.slow
def test_a_path_after_a_prefix_is_that_of_the_whole_network(losses_and_slopes, read, monkeypatch):
    """Three gradients for each; none is added, whatever they add up to."""
    monkeypatch.setattr(mask_path, "NODES", 3)
    monkeypatch.setattr(mask_path, "MOST_NODES", 3)
    result = score_contexts(MODEL, FIVE, "margin", "mask-path", Run())
    assert sorted(read, key=str) == [(range(5), 2, False), (range(5), 3, True)]
    rule = nested_rule(3)
    for context, scores in zip(FIVE, result.scores, strict=True):
        slopes = [losses_and_slopes(context, log_weight)[1] for log_weight in rule.log_weights]
        expected = np.where(document_numbers(context) >= 0, rule.shares @ np.stack(slopes), 0)
        np.testing.assert_allclose(by_token(scores), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_files(tmp_path, read):
    """Bit for bit; of another network's they are refused."""
    first = score_contexts(MODEL, FIVE, "margin", "mask-gradient", Run(tmp_path))
    again = score_contexts(MODEL, FIVE, "margin", "mask-gradient", Run(tmp_path))
    assert len(read) == 4
    for one, other in zip(first.scores, again.scores, strict=True):
        np.testing.assert_array_equal(by_token(one), by_token(other))
    other = jax.tree.map(lambda leaf: 1.5 * leaf, MODEL)
    with pytest.raises(ValueError, match="expected one of parameters"):
        score_contexts(other, FIVE, "margin", "mask-gradient", Run(tmp_path))


@pytest.mark.slow
def test_numbers_are_of_the_models_precision():
    with jax.enable_x64(False):
        model = byte_network(96, depth=2, seed=3)
        result = score_contexts(model, FIVE, "margin", "mask-gradient", Run())
    expected = score_contexts(
        byte_network(96, depth=2, seed=3), FIVE, "margin", "mask-gradient", Run()
    )
    for one, other in zip(result.scores, expected.scores, strict=True):
        bound = 1e-4 * np.abs(by_token(other)).max()
        np.testing.assert_allclose(by_token(one), by_token(other), rtol=0, atol=bound)


def contexts_of(loss, **options):
    spans = ((0, 20, "birds"),)
    return [
        tokenize_context(RenderedPrompt(SAME + end, spans), loss=loss, **options) for end in "abcde"
    ]


def test_what_asks_everywhere_shares_nothing():
    prefix_of = shared_prefixes(MODEL, contexts_of("next-token"))
    assert [prefix_of(number, (0.0,)) for number in range(5)] == [None] * 5


@pytest.mark.slow
def test_what_is_compared_with_a_foil_is_read_whole(read, texts_read):
    """It is a prompt with two continuations, and has no rows of one answer."""
    contexts = contexts_of("contrast", answer=" a", foil=" b")
    result = score_contexts(MODEL, contexts, "contrast", "mask-gradient", Run())
    assert read == [] and len(result.scores) == 5
    result = score_contexts(MODEL, contexts, "contrast", "leave-one-out", Run())
    assert texts_read == [] and len(result.scores) == 5


def test_recurrent_layers_share_nothing(monkeypatch):
    """What they wrote into their memory was weighed when it was written."""
    monkeypatch.setattr(shared_contexts, "reads_by_softmax", lambda flow: False)
    prefix_of = shared_prefixes(MODEL, FIVE)
    assert prefix_of(0, (0.0,), keep_states=True) is None


@pytest.fixture
def texts_read(monkeypatch):
    """Of which contexts texts are read, and how many."""
    calls = []
    measured = shared_prefix.read_texts

    def counted(model, prefix, kept):
        calls.append((prefix.contexts, len(kept)))
        return measured(model, prefix, kept)

    monkeypatch.setattr(shared_prefix, "read_texts", counted)
    return calls


@eqx.filter_jit
def loss_of_ids(ids, targets, at, weights):
    """The margin loss of ids by the whole network, unpadded."""
    return CausalLM.margin_loss(MODEL, MODEL.embed(ids), Targets(targets, weights, at))


def loss_of_text(context, stays, asks):
    """The loss of the text that is left where some places of a context stay, one of which asks."""
    ids = context.window[:-1][stays]
    targets = context.window[1:][asks]
    at = np.flatnonzero(asks[stays])
    return float(loss_of_ids(*jax.device_put((ids, targets, at, np.ones(1)))))


MARGIN = loss_kind("margin").loss


@pytest.mark.slow
def test_texts_without_parts_after_what_they_share_are_those_of_the_whole_network(texts_read):
    """Also the text without documents, of which nothing is shared; of each token of the answer."""
    texts_of = shared_texts(MODEL, CONTEXTS)
    for number in (0, 2, 5, 7):
        context = CONTEXTS[number]
        parts = context_segments(context)
        answer = answer_segments(context, None, "token")
        masks = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 1], [1, 1, 0], [1, 1, 1]])
        run = Run(texts=partial(texts_of, number))
        losses = losses_without(MODEL, context, answer, parts, masks > 0, MARGIN, run)
        places = np.arange(context.length)
        asked = np.flatnonzero(context.weights)
        for mask, of_text in zip(masks, losses, strict=True):
            kept = [part.positions for part, keeps in zip(parts, mask, strict=True) if keeps]
            # From the first place that asks on all stays.
            stays = (places >= asked[0]) | np.isin(places, np.concatenate(kept))
            by_place = np.zeros(context.length)
            for place in asked:
                of_place = loss_of_text(context, stays, places == place)
                by_place[place] = context.weights[place] * of_place
            expected = [by_place[part.positions].sum() for part in answer]
            np.testing.assert_allclose(of_text, expected, rtol=1e-9)
        assert np.ptp(losses[:, 0]) > 1e-3 and len(answer) > 1
    assert texts_read == [(range(5), 5), (range(6, 12), 5)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "texts"),
    [("leave-one-out", [4]), ("informed", [4, 1])],
)
def test_methods_read_texts_once_for_contexts_that_share_them(method, texts, texts_read):
    """Their scores are those of each context alone; sets of documents are of one context."""
    result = score_contexts(MODEL, CONTEXTS, "margin", method, Run())
    groups = range(5), range(6, 12)
    assert texts_read == [(group, count) for group in groups for count in texts]
    for context, scores in zip(CONTEXTS, result.scores, strict=True):
        cut = scores.answer, context_segments(context)
        alone = METHODS[method].scores(MODEL, context, *cut, MARGIN, Run())
        bound = 1e-7 * np.abs(alone.by_part).max()
        np.testing.assert_allclose(scores.by_part, alone.by_part, rtol=0, atol=bound)
