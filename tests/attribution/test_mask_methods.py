"""Mask gradients and paths of a question beside a network in NumPy, whose complex steps are exact.

The first document begins the context: many heads rest on its first token, which therefore weighs
one throughout and has no score.
"""

import json
from typing import Any

import jax
import numpy as np
import pytest
from reference import numpy_network
from reference.networks import byte_network, layer_of
from reference.pages import Read

import lim_jax as lim
from lim_jax.attribution.explanation_run import ContextBatch
from lim_jax.attribution.heads import heads_table, strongest_heads
from lim_jax.attribution.mean_scores import score_contexts
from lim_jax.attribution.method import Run
from lim_jax.attribution.segments import document_numbers
from lim_jax.attribution.signed_profile import signed_profile
from lim_jax.attribution.time_budget import NetworkAndLoss
from lim_jax.models import CausalLM, LanguageModel, Targets
from lim_jax.prompts.contexts import tokenize_context
from lim_jax.prompts.documents import RenderedPrompt
from lim_jax.report.sources import answer_page

TEXT = "Up.\n\nDn 2.\n\nQuestion: Who?\nAnswer:"
PLACES = {"document 1": (0, 3), "document 2": (5, 10), "question": (22, 26)}
SPANS = tuple((*place, name) for name, place in PLACES.items())
CONTEXT = tokenize_context(RenderedPrompt(TEXT, SPANS), " It", loss="margin")
LENGTH = CONTEXT.length
HEADS = 2
DEPTH = 2
LENGTH_OF_PATH = np.log(25)  # from the square of the weight a fifth to one
NUMBERS = np.full(LENGTH, -1)
NUMBERS[1:3], NUMBERS[5:10] = 0, 1  # the first token belongs to no part
INSIDE = NUMBERS >= 0
TOKENS = np.eye(LENGTH)[:, None, None]


@pytest.fixture(scope="module")
def network():
    return byte_network(LENGTH, heads=HEADS, depth=DEPTH, seed=3)


def ask_model(network, method, **how) -> Any:
    answered = lim.ask(
        LanguageModel(network), "Who?", ["Up.", "Dn 2."], answer="It", method=method, **how
    )
    assert "".join(answered.context.tokens) == TEXT + " I", "what the network read"
    return answered


def scores_of_answer_parts(answered):
    """The scores of every token of the context for each part of the answer."""
    return answered.scores.by_token


def numpy_losses(network, log_weights, parts=NUMBERS, query_weights=CONTEXT.weights) -> Any:
    """Minus the mean log odds of the answer, for log weights (..., layers, heads, length)."""
    words = np.asarray(network.embedding)[CONTEXT.window[:-1]]
    x = words + np.asarray(network.positions)[:LENGTH]
    states = np.broadcast_to(x.astype(complex), (*log_weights.shape[:-3], *x.shape))
    masks = [numpy_network.soft_mask(log_weights[..., k, :, :], parts) for k in range(DEPTH)]
    layers = [layer_of(network.flow, k) for k in range(DEPTH)]
    states = numpy_network.flow(layers, states, DEPTH, "split", lambda _: 1.0, masks)
    losses = np.zeros(states.shape[:-2], complex)
    for place in np.flatnonzero(query_weights):
        logits = states[..., place, :] @ np.asarray(network.head).T
        answer = CONTEXT.window[place + 1]
        others = np.log(np.exp(np.delete(logits, answer, axis=-1)).sum(axis=-1))
        losses = losses - query_weights[place] * (logits[..., answer] - others)
    return losses


def slopes(network, log_weights, parts=NUMBERS, query_weights=CONTEXT.weights):
    """Derivatives of the loss in the log weights of all tokens, where these are."""
    moved = log_weights[..., None, None, None, :] + 1j * numpy_network.STEP * TOKENS
    moved = np.broadcast_to(moved, (*moved.shape[:-3], DEPTH, HEADS, LENGTH))
    return numpy_network.derivative(numpy_losses(network, moved, parts, query_weights))


def loss_where_documents_weigh(network, weight):
    log_weights = np.where(INSIDE, np.log(weight), 0)
    return numpy_losses(network, np.broadcast_to(log_weights, (DEPTH, HEADS, LENGTH))).real


@pytest.fixture(scope="module")
def mask_gradient(network):
    """Minus the slopes where documents weigh 0.2, times log 25, and none of the first token."""
    gradient = -LENGTH_OF_PATH * slopes(network, np.where(INSIDE, np.log(0.2), 0))
    assert abs(gradient[0]) > 1e-4, "otherwise the first token would have a score"
    return np.where(np.arange(LENGTH) > 0, gradient, 0)


@pytest.mark.slow
@pytest.mark.parametrize("parts", ["answer", "token"])
def test_a_mask_gradient_is_taken_where_documents_weigh_a_fifth(network, mask_gradient, parts):
    """A document reads itself as before, the question weighs one, the first token has no score."""
    answered = ask_model(network, "mask-gradient", parts=parts)
    np.testing.assert_allclose(answered.tokens, mask_gradient, rtol=1e-9, atol=1e-13)
    assert answered.tokens[0] == 0
    by_name = {part.name: part.score for part in answered.parts}
    for name, (start, end) in PLACES.items():
        expected = mask_gradient[start:end].sum()
        np.testing.assert_allclose(by_name[name], expected, rtol=1e-9, atol=1e-13)


@pytest.mark.slow
def test_each_token_of_the_answer_counts_by_its_own_weight(network, mask_gradient):
    """The loss is the mean over three tokens, and the rows of parts sum to the answer's."""
    rows = scores_of_answer_parts(ask_model(network, "mask-gradient", parts="token"))
    at = np.where(INSIDE, np.log(0.2), 0)
    places = np.flatnonzero(CONTEXT.weights)
    assert len(rows) == len(places) == 3
    for row, place in zip(rows, places, strict=True):
        alone = np.where(np.arange(LENGTH) == place, 1 / 3, 0)
        expected = -LENGTH_OF_PATH * slopes(network, at, query_weights=alone)
        np.testing.assert_allclose(row[1:], expected[1:], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(rows.sum(axis=0), mask_gradient, rtol=1e-9, atol=1e-13)


def profiled(network, method) -> Any:
    """The scores of tokens and parts of a context that a file has, in a profile."""
    (scores,) = score_contexts(network, [CONTEXT], "margin", method, Run()).scores
    return scores


def test_a_profile_takes_the_same_mask_gradient(network, mask_gradient):
    scored = profiled(network, "mask-gradient")
    np.testing.assert_allclose(scored.tokens, mask_gradient, rtol=1e-9, atol=1e-13)
    assert scored.tokens[0] == 0, "the context's first token has no score"
    for name, (start, end) in PLACES.items():
        expected = mask_gradient[start:end].sum()
        score = scored.by_name()[name, "part"]
        np.testing.assert_allclose(score, expected, rtol=1e-9, atol=1e-13)


def test_a_profile_takes_the_same_path(network, path):
    scored = profiled(network, "mask-path")
    np.testing.assert_allclose(scored.tokens, path, atol=1e-3 * np.abs(path).max())
    assert not scored.tokens[~INSIDE].any()


@pytest.fixture(scope="module")
def path(network):
    """The integral of minus the slopes from a weight of a thousandth, by many more nodes."""
    nodes, weights = np.polynomial.legendre.leggauss(30)
    length = -np.log(1e-3)
    rows = slopes(network, np.where(INSIDE, -length * (1 - nodes[:, None]) / 2, 0))
    return np.where(INSIDE, -length / 2 * weights @ rows, 0)


@pytest.mark.slow
@pytest.mark.parametrize("parts", ["answer", "token"])
def test_a_path_integrates_mask_gradients_of_documents_alone(network, path, parts):
    """Positions outside documents come in no path, and so have no score by it."""
    answered = ask_model(network, "mask-path", parts=parts)
    np.testing.assert_allclose(answered.tokens, path, atol=1e-3 * np.abs(path).max())
    assert np.abs(path[INSIDE]).min() > 0
    assert not scores_of_answer_parts(answered)[:, ~INSIDE].any()
    assert not answered.tokens[~INSIDE].any()


def interpolating_path(network, nodes):
    """The path by the rule that is exact for polynomials in the weight's root, on Fejér's nodes."""
    first = np.sqrt(1e-3)
    places = np.cos(np.pi * np.arange(1, nodes + 1) / (nodes + 1))
    roots = (1 + first + (1 - first) * places) / 2
    powers = np.arange(nodes)[:, None]
    integrals = (1 - first ** (powers[:, 0] + 1)) / (powers[:, 0] + 1)
    shares = np.linalg.solve(roots**powers, integrals) * 2 / roots
    rows = slopes(network, np.where(INSIDE, 2 * np.log(roots)[:, None], 0))
    return np.where(INSIDE, -shares @ rows, 0)


def test_a_paths_error_is_what_three_gradients_in_place_of_seven_change(network):
    """By document, each with its sign lost; what no document has, has no score and no error."""
    answered = ask_model(network, "mask-path", parts="answer", document_parts="documents")
    fine, coarse = (interpolating_path(network, nodes) for nodes in (7, 3))
    by_name = {part.name: part for part in answered.parts}
    changes = {}
    for name in ("document 1", "document 2"):
        start, end = PLACES[name]
        np.testing.assert_allclose(by_name[name].score, fine[start:end].sum(), rtol=1e-9)
        changes[name] = (fine - coarse)[start:end].sum()
        assert abs(changes[name]) > 1e-6
        np.testing.assert_allclose(by_name[name].error, abs(changes[name]), rtol=1e-6)
    assert changes["document 1"] < 0 < changes["document 2"], "a size has no sign"
    sizes = np.abs([changes["document 1"], changes["document 2"]])
    np.testing.assert_allclose(answered.scores.errors, [sizes], rtol=1e-6)
    for name in ("question", ""):
        assert np.isnan(by_name[name].score) and by_name[name].error is None
    record = answered.record()
    assert [part["score"] is None for part in record["parts"]] == [False, False, True, True]
    json.dumps(record, allow_nan=False)
    compared = answered.compare(answered)
    assert {part.name for part in compared.parts} == {"document 1", "document 2"}
    question = [row for row in f"{answered}".splitlines() if row.startswith("“question”")]
    assert question == [f"“question”{'4':>{len(question[0]) - len('“question”')}}"]


def test_a_paths_errors_of_documents_do_not_depend_on_how_these_are_cut(network):
    """Changes of a document's tokens have signs, and add up to that of its score."""
    fine, coarse = (interpolating_path(network, nodes) for nodes in (7, 3))
    expected = {
        name: abs((fine - coarse)[start:end].sum())
        for name, (start, end) in PLACES.items()
        if name != "question"
    }
    for document_parts in ("documents", "sentences", "tokens"):
        for parts in ("answer", "token"):
            answered = ask_model(network, "mask-path", parts=parts, document_parts=document_parts)
            errors = {part.name: part.error for part in answered.parts if part.error is not None}
            assert errors == pytest.approx(expected, rel=1e-6), (document_parts, parts)
            data = Read(answer_page(answered).html).json("data")
            assert data["errors"] is None
            columns = np.array(data["changes"]).sum(axis=0)
            shown = [columns[0].sum(), columns[1:].sum()]  # a sentence, and two
            np.testing.assert_allclose(np.abs(shown), list(expected.values()), rtol=2e-3)
    record = {part["name"]: part["error"] for part in answered.record()["parts"]}
    assert record["document 2"] == pytest.approx(expected["document 2"])
    (row,) = [row for row in f"{answered}".splitlines() if row.startswith("“document 2”")]
    assert f"±{expected['document 2']:.3f}" in row


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mask-gradient", "mask-path"])
def test_documents_give_the_loss_without_them_less_that_of_the_whole(network, method):
    """With next to nothing of documents; all else weighs one, and parts read themselves."""
    expected = loss_where_documents_weigh(network, 1e-3) - loss_where_documents_weigh(network, 1)
    assert abs(expected) > 1e-3
    for parts in ("answer", "token"):
        total_effect = ask_model(network, method, parts=parts).total_effect
        np.testing.assert_allclose(total_effect, expected, rtol=1e-9)


def heads_of(network):
    """The heads that gave most to each part of the one context."""
    network_and_loss = NetworkAndLoss(network, [CONTEXT.weights], CausalLM.margin_loss)
    return strongest_heads(network_and_loss, ContextBatch([CONTEXT.window], [CONTEXT]))


@pytest.fixture(scope="module")
def heads(network):
    return heads_of(network)


def test_heads_gave_the_slopes_in_their_own_log_weights(network, heads):
    """Layer by layer and head by head, summed over a part's tokens but the context's first."""
    at = np.where(INSIDE, np.log(0.2), 0)
    moves = np.zeros((DEPTH, HEADS, LENGTH, DEPTH, HEADS, LENGTH))
    for layer, head, token in np.ndindex(DEPTH, HEADS, LENGTH):
        moves[layer, head, token, layer, head, token] = numpy_network.STEP
    by_head = -LENGTH_OF_PATH * numpy_network.derivative(numpy_losses(network, at + 1j * moves))
    assert np.abs(by_head[:, :, 0]).max() > 1e-5
    by_head[:, :, 0] = 0
    assert len(heads) == len(PLACES) * DEPTH * HEADS
    for head in heads:
        start, end = PLACES[head.name]
        expected = by_head[head.layer, head.head, start:end].sum()
        np.testing.assert_allclose(head.score, expected, rtol=1e-9, atol=1e-13)
        assert head.contexts == 1 and head.error == np.inf


def test_heads_of_each_part_stand_by_size_and_those_in_no_part_are_left_out(heads):
    assert list(dict.fromkeys(head.name for head in heads)) == list(PLACES)
    for name in PLACES:
        sizes = [abs(head.score) for head in heads if head.name == name]
        assert sizes == sorted(sizes, reverse=True)
    assert {head.score < 0 for head in heads} == {True, False}
    first = heads_table(heads).splitlines()[2]
    assert first.split()[:4] == ["“document", "1”", f"{heads[0].layer}", f"{heads[0].head}"]
    assert first.split()[-2:] == ["-", "1"], "one context has no error"


def test_of_more_heads_the_five_that_gave_most_are_told():
    strongest = heads_of(byte_network(LENGTH, heads=4, depth=2, seed=3))
    assert [head.name for head in strongest] == [name for name in PLACES for _ in range(5)]


@pytest.mark.slow
def test_heads_of_a_models_own_word_are_of_the_whole_contexts_where_documents_weigh_less():
    """At the weight where the gradient is taken another word is likeliest."""
    context = tokenize_context(RenderedPrompt(TEXT, SPANS), loss="own-margin")
    network = byte_network(context.length, heads=HEADS, depth=DEPTH, seed=1)
    ids = jax.device_put(context.window[:-1])
    numbers = document_numbers(context)
    mask = Targets(
        ids,
        jax.device_put(context.weights),
        log_weights=jax.device_put(np.where(numbers >= 0, np.log(0.2), 0)),
        parts=jax.device_put(numbers),
    )
    word, other = (int(network.logits(ids, y)[-1].argmax()) for y in (None, mask))
    assert word != other
    known = context._replace(window=np.append(context.window[:-1], word))
    heads, expected = (
        strongest_heads(
            NetworkAndLoss(network, [one.weights], loss), ContextBatch([one.window], [one])
        )
        for one, loss in (
            (context, CausalLM.own_margin_loss),
            (known, CausalLM.margin_loss),
        )
    )
    assert heads == expected


@pytest.mark.slow
def test_a_signed_profile_is_minus_the_slopes_by_position_where_all_weigh_one(network):
    """As a density over the positions of one context, and of the first token too."""
    profile = signed_profile(network, [CONTEXT], "margin", delta=0.25)
    expected = LENGTH * -slopes(network, np.zeros(LENGTH), np.full(LENGTH, -1))
    np.testing.assert_allclose(profile.density.value, expected, rtol=1e-9, atol=1e-11)
    weights = np.asarray(profile.regions.weights)
    np.testing.assert_allclose(profile.regional.value, weights @ expected, atol=1e-11)
    assert profile.contexts == 1 and np.isinf(np.asarray(profile.regional.error)).all()


def test_a_signed_profile_shows_errors_of_two_contexts_and_of_one_none(network):
    other = CONTEXT._replace(window=np.where(CONTEXT.window == ord("2"), 55, CONTEXT.window))
    both = signed_profile(network, [CONTEXT, other], "margin")
    alone = signed_profile(network, [CONTEXT], "margin")
    meaning, *lines = f"{both}".splitlines()
    assert meaning == "By how much the loss falls as attention reads more of each region:"
    assert len(lines) == 2
    assert len(f"{alone}".splitlines()) == 2, "the meaning, and the integrals without errors"
    assert np.isfinite(np.asarray(both.regional.error)).all()
