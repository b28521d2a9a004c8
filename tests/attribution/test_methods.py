"""Every method against its formula on one unpadded context, or on the text without a part."""

import json
from functools import partial
from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.json_entries import require_entries
from reference.networks import byte_network

from lim_jax import models
from lim_jax.attribution import mean_scores
from lim_jax.attribution.files import write_scores
from lim_jax.attribution.gradients import attention_rollout
from lim_jax.attribution.method import Method, Run, Scores, scores_by_token
from lim_jax.attribution.methods import ablations, integrated_gradients
from lim_jax.attribution.methods.method_table import METHODS, MethodName
from lim_jax.attribution.segments import answer_segments, context_segments, whole_answer
from lim_jax.attribution.without_parts import losses_without
from lim_jax.grid.cells import token_grid
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.foils import contrast_loss
from lim_jax.prompts.contexts import Context, Span, tokenize_context
from lim_jax.prompts.documents import RenderedPrompt
from lim_jax.weights import HalfRows

LOSS = CausalLM.margin_loss
PROMPTS = [
    (
        RenderedPrompt("a=1 b=22 c=3 a=", ((0, 3, "first"), (4, 8, "second"), (9, 12, "third"))),
        "17",
    ),
    (RenderedPrompt("a=1 b=2 b=", ((0, 3, "first"), (4, 7, "second"))), "2"),
]
CONTEXTS = [tokenize_context(laid, answer, loss="margin") for laid, answer in PROMPTS]
NAMES = [("first", "part"), ("second", "part"), ("third", "part"), ("", "rest")]


@pytest.fixture(scope="module")
def model():
    return byte_network(24, depth=2, seed=3)


def example(model, context):
    """States and targets of a context by itself, without padding, and the loss of its states."""
    (places,) = context.weights.nonzero()
    weights = context.weights[places].astype("float64")
    y = Targets(*jax.device_put((context.window[1:][places], weights, places)))
    return model.embed(jax.device_put(context.window[:-1])), y


@eqx.filter_jit
def loss_and_gradient(model, x, y):
    return jax.value_and_grad(partial(LOSS, model))(x, y)


def rollout(model, x):
    return attention_rollout(model.flow, x, token_grid(x.shape[0], x.dtype))


def by_formula(model, context, method):
    """Scores of tokens, by the formula of each method."""
    x, y = example(model, context)

    def gradient(x, y):
        return np.asarray(loss_and_gradient(model, x, y)[1])

    if method == "influence":
        energy = np.sum(gradient(x, y) ** 2, axis=1)
        return energy / energy.sum()
    if method == "gradient-times-input":
        return -np.sum(np.asarray(x) * gradient(x, y), axis=1)
    if method == "rollout":
        matrix = np.asarray(eqx.filter_jit(rollout)(model, x))
        return np.asarray(y.weights) @ matrix[np.asarray(y.positions)]
    inside = np.zeros(len(x), bool)
    for span in context.spans:
        inside[span.positions] = True
    words = np.asarray(model.embedding)
    step = np.where(inside[:, None], words[context.window[:-1]] - words.mean(axis=0), 0)
    slopes = [
        gradient(x - jnp.asarray((1 - s) * step), y)
        for s in (np.arange(integrated_gradients.STEPS) + 0.5) / integrated_gradients.STEPS
    ]
    return -np.sum(step * np.mean(slopes, axis=0), axis=1)


def scored(model, context, method, loss=LOSS):
    """The scores of a context's named parts for its whole answer."""
    parts = context_segments(context)
    return METHODS[method].scores(model, context, [whole_answer(context)], parts, loss, Run())


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["influence", "gradient-times-input", "integrated-gradients", "rollout"]
)
def test_scores_of_tokens_are_those_of_the_formula_and_parts_their_sums(model, method):
    for context in CONTEXTS:
        scores = scored(model, context, method)
        expected = by_formula(model, context, method)
        assert scores.tokens is not None
        np.testing.assert_allclose(scores.tokens, expected, rtol=1e-9, atol=1e-13)
        by_name = scores.by_name()
        assert [*by_name] == [name for name in NAMES if name in by_name]
        for span in context.spans:
            part = by_name[span.name, "part"]
            np.testing.assert_allclose(part, expected[span.positions].sum(), rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(sum(by_name.values()), expected.sum(), atol=1e-12)


def test_shares_of_a_rollout_sum_to_one_where_sinks_take_attention(model):
    """They are of what attention hands on, and a sink hands on nothing."""
    with_sinks = eqx.tree_at(
        lambda model: model.flow.layers.attention.sinks,
        model,
        jax.device_put(np.ones((2, 2))),
        is_leaf=lambda leaf: leaf is None,
    )
    shares = scored(with_sinks, CONTEXTS[0], "rollout").by_name()
    np.testing.assert_allclose(sum(shares.values()), 1, rtol=1e-12)


def test_a_rollout_refuses_a_foil_of_which_it_says_nothing(model):
    """As any method that says the same of every answer, before anything is computed."""
    context = tokenize_context(
        RenderedPrompt("a=1 a=", ((0, 3, "a"),)), "1", loss="contrast", foil="2"
    )
    with pytest.raises(ValueError, match="method: got 'rollout' with a foil, expected one"):
        mean_scores.score_contexts(model, [context], "contrast", "rollout", Run())


@pytest.mark.parametrize("method", ["influence", "gradient-times-input", "rollout"])
def test_a_method_of_the_whole_answer_refuses_parts_of_it(model, method):
    answer = answer_segments(CONTEXTS[0], None, "token")
    with pytest.raises(ValueError, match="parts: got 2 parts of the answer, expected the whole"):
        METHODS[method].scores(model, CONTEXTS[0], answer, [], LOSS, Run())


def losses_of_text(model, text, answer):
    """The losses of an answer's tokens, of a text that was written without a part."""
    context = tokenize_context(RenderedPrompt(text), answer)
    x, y = example(model, context)
    rows = jnp.eye(y.weights.shape[0])

    @eqx.filter_jit
    def losses(model, x):
        return jax.vmap(lambda row: LOSS(model, x, y._replace(weights=row)))(rows)

    return np.asarray(losses(model, x)) * np.asarray(y.weights)


@pytest.mark.slow
def test_a_part_left_out_is_the_text_without_it_and_what_asks_stays(model):
    by_name = scored(model, CONTEXTS[0], "leave-one-out").by_name()
    whole = losses_of_text(model, "a=1 b=22 c=3 a=", "17").sum()
    without = {"first": " b=22 c=3 a=", "second": "a=1  c=3 a=", "third": "a=1 b=22  a="}
    for name, text in without.items():
        gained = losses_of_text(model, text, "17").sum() - whole
        np.testing.assert_allclose(by_name[name, "part"], gained, rtol=1e-9, atol=1e-12)
    # The rest has the place that asks, which stays.
    rest = losses_of_text(model, "a=1b=22c=3=", "17").sum() - whole
    np.testing.assert_allclose(by_name["", "rest"], rest, rtol=1e-9, atol=1e-12)
    everywhere = tokenize_context(PROMPTS[0][0], loss="next-token")
    with pytest.raises(ValueError, match="loss: got one that asks at every position"):
        scored(model, everywhere, "leave-one-out", CausalLM.loss)


def test_a_context_is_padded_as_the_run_says(model, monkeypatch):
    """By a method of tokens: 16 tokens to 19, with the scores of 16."""
    read = []
    scores = models.ids._scores
    monkeypatch.setattr(
        models.ids, "_scores", lambda *of: read.append(of[3].shape[1]) or scores(*of)
    )
    context = CONTEXTS[0]
    cut = [whole_answer(context)], context_segments(context)
    expected, padded = (
        METHODS["gradient-times-input"].scores(model, context, *cut, LOSS, Run(padding=padding))
        for padding in (None, lambda length: length + 3)
    )
    assert read == [16, 19]
    assert padded.tokens is not None and expected.tokens is not None
    np.testing.assert_allclose(padded.tokens, expected.tokens, rtol=1e-6, atol=1e-9)


def test_texts_without_parts_are_padded_as_the_run_says(model, monkeypatch):
    """Of 16, 13 and 12 tokens."""
    read = []
    scores = models.ids._scores
    monkeypatch.setattr(
        models.ids, "_scores", lambda *of: read.append(of[3].shape[1]) or scores(*of)
    )
    context = CONTEXTS[0]
    answer, parts = [whole_answer(context)], context_segments(context)
    masks = np.array([[True] * 4, [False, True, True, True], [True, False, True, True]])
    expected, losses = (
        losses_without(model, context, answer, parts, masks, LOSS, Run(padding=padding))
        for padding in (None, lambda length: length + 1)
    )
    lengths = [context.length, context.length - 3, context.length - 4]
    assert set(read) == {16, *(length + 1 for length in lengths)}
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


@pytest.mark.slow
def test_what_each_token_of_the_answer_loses_without_a_part(model):
    """Of two tokens, which lose differently, and whose losses sum to the answer's."""
    (context, *_), parts = CONTEXTS, context_segments(CONTEXTS[0])
    answer = answer_segments(context, None, "token")
    leave_one_out = METHODS["leave-one-out"].scores
    scores = leave_one_out(model, context, answer, parts, LOSS, Run())
    whole = losses_of_text(model, "a=1 b=22 c=3 a=", "17")
    without = losses_of_text(model, "a=1  c=3 a=", "17")
    np.testing.assert_allclose(scores.by_part[:, 1], without - whole, rtol=1e-9, atol=1e-12)
    assert abs(np.diff(without - whole)[0]) > 1e-3 and scores.by_token is None
    (of_all,) = leave_one_out(model, context, [whole_answer(context)], parts, LOSS, Run()).by_part
    np.testing.assert_allclose(scores.by_part.sum(axis=0), of_all, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_contrast_is_left_out_of_the_prompt(model):
    prompt = PROMPTS[0][0]
    context = tokenize_context(prompt, "17", loss="contrast", foil="2")
    by_name = scored(model, context, "leave-one-out", contrast_loss).by_name()

    @eqx.filter_jit
    def loss(model, ids, y):
        return contrast_loss(model, model.embed(ids), y)

    def odds(text):
        one = tokenize_context(RenderedPrompt(text), "17", loss="contrast", foil="2")
        assert one.contrast is not None
        return loss(model, *jax.device_put((one.window[:-1], one.contrast)))

    gained = odds("a=1  c=3 a=") - odds(prompt.text)
    np.testing.assert_allclose(by_name["second", "part"], gained, rtol=1e-9, atol=1e-12)


def test_a_sparse_regression_finds_the_terms_of_a_sum(model, monkeypatch):
    """Minus losses that are sums over kept parts: all terms but for the small ones' shrinkage."""
    terms = np.array([[2.0, 0.0, -1.0, 0.003], [0.0, 0.0, 0.0, 3.0]])
    seen = []

    def losses(model, context, answer, parts, kept, loss, run):
        seen.append(kept)
        return 5 - kept @ terms.T

    monkeypatch.setattr(ablations, "losses_without", losses)
    answer = answer_segments(CONTEXTS[0], None, "token")
    parts = context_segments(CONTEXTS[0])
    by_part = ablations.scores(model, CONTEXTS[0], answer, parts, LOSS, Run()).by_part
    # The Lasso takes its strength, over a feature's deviation, from every term.
    strength = 0.01 / seen[0].std(axis=0)
    shrunk = np.sign(terms) * np.maximum(np.abs(terms) - strength, 0)
    np.testing.assert_allclose(by_part, shrunk, atol=8e-3)
    assert by_part[0, 1] == by_part[0, 3] == by_part[1, 0] == 0 and seen[0].shape == (64, 4)
    assert abs(seen[0].mean() - 0.5) < 0.15


def test_scores_go_on_after_the_last_context(model, tmp_path, monkeypatch):
    method = "gradient-times-input"
    run = Run(tmp_path)
    score = partial(mean_scores.score_contexts, model, loss="margin", run=run)
    first = score(CONTEXTS[:1], method=method)
    calls = []
    scores = models.ids._scores
    monkeypatch.setattr(models.ids, "_scores", lambda *of: calls.append(of) or scores(*of))
    result = score(CONTEXTS, method=method)
    assert len(calls) == 1
    np.testing.assert_array_equal(result.scores[0].tokens, first.scores[0].tokens)
    with pytest.raises(ValueError, match="another"):
        score(CONTEXTS[1:], method=method)
    other = CONTEXTS[1]._replace(spans=CONTEXTS[1].spans[:1])  # the same ids, fewer parts
    with pytest.raises(ValueError, match="of context"):
        score([CONTEXTS[0], other], method=method)
    with pytest.raises(ValueError):
        score(CONTEXTS, method="rollout")


def test_a_method_is_one_entry(model, monkeypatch):
    def positions(model, context, answer, parts, loss, run):
        return scores_by_token(answer, parts, np.arange(context.length, dtype=float)[None])

    entry = Method("its position", "the position", positions, METHODS["rollout"].cost)
    monkeypatch.setitem(METHODS, "position", entry)
    first, _ = mean_scores.score_contexts(model, CONTEXTS, "margin", "position", Run()).scores
    rest = sum(range(CONTEXTS[0].length)) - (3 + 22 + 30)
    assert list(first.by_name().items()) == list(zip(NAMES, (3, 22, 30, rest), strict=True))
    with pytest.raises(ValueError, match="method: got 'guess', expected \"influence\" or "):
        mean_scores.score_contexts(model, CONTEXTS, "margin", "guess", Run())


@pytest.mark.slow
def test_a_models_own_word_is_that_of_the_whole_context_where_parts_are_left_out():
    """Without any of the three parts this network would say another word."""
    model = byte_network(24, depth=2, seed=2)
    context = tokenize_context(PROMPTS[0][0], loss="own-margin")

    def logits(kept):
        return np.asarray(model.logits(jax.device_put(context.window[:-1][kept])))[-1]

    def log_odds(row):
        return row[word] - np.logaddexp.reduce(np.delete(row, word))

    whole = logits(np.ones(context.length, bool))
    word = whole.argmax()
    without = [
        logits(~np.isin(np.arange(context.length), span.positions)) for span in context.spans
    ]
    assert all(row.argmax() != word for row in without)
    result = mean_scores.score_contexts(model, [context], "own-margin", "leave-one-out", Run())
    lost = [log_odds(whole) - log_odds(row) for row in without]
    np.testing.assert_allclose(result.scores[0].by_part[0, :3], lost, rtol=1e-5)


def test_contexts_are_padded_to_the_longest_of_their_program(model, monkeypatch):
    """All are known before the first is scored: 67 and 70 tokens to 80, and 33 as elsewhere."""
    padded = []

    def positions(model, context, answer, parts, loss, run):
        padded.append(run.within("gradient").padding(context.length))
        return scores_by_token(answer, parts, np.zeros((1, context.length)))

    entry = Method("its position", "the position", positions, METHODS["rollout"].cost)
    monkeypatch.setitem(METHODS, "position", entry)
    contexts = [
        Context(
            np.zeros(length + 1, int),
            np.eye(length)[-1],
            ("a",) * length,
            (Span("one", np.array([1])),),
        )
        for length in (67, 33, 70)
    ]
    mean_scores.score_contexts(model, contexts, "margin", "position", Run())
    assert padded == [80, 48, 80]


def test_what_scores_fail_to_add_up_to_is_told(model, tmp_path, monkeypatch):
    """Of the second context half a unit is missing; of unknown totals nothing is said."""
    of_part = iter([[1.0, 1, 1, 7], [0.5, 0.5, 9]] * 2)
    totals = iter([np.array([3.0]), np.array([1.5]), None, None])

    def scores(model, context, answer, parts, loss, run):
        return Scores(answer, parts, np.array([next(of_part)]), None, next(totals))

    entry = METHODS["mask-path"]._replace(scores=scores)
    monkeypatch.setitem(METHODS, "mask-path", entry)
    known, unknown = (
        mean_scores.score_contexts(model, CONTEXTS, "margin", "mask-path", Run()) for _ in range(2)
    )
    assert known.total_effects is not None and known.total_effects.tolist() == [3.0, 1.5]
    assert unknown.total_effects is None
    assert mean_scores.scores_finding(known) == mean_scores.scores_finding(unknown) + (
        " All documents together give +2.250 on average; their scores add up to +2.000, and differ "
        "from it by at most 0.500 in a context."
    )
    for one in (known, unknown):
        write_scores(one, "margin", tmp_path)
        read = json.loads((tmp_path / "profile.json").read_text(encoding="utf-8"))
        absent = "influence", "signed", "given"
        columns = "profile --method, records.csv"
        require_entries(read, "profile.json", columns, absent=absent)
        assert read.get("given") == (None if one.total_effects is None else [3.0, 1.5])


def test_methods_say_what_they_score():
    """The whole answer alone, or its parts too; tokens, or parts that are left out; and signs."""
    every = ("answer", "sentence", "token")
    whole = ("answer",)
    of_method = {
        name: ({*method.answer_parts}, method.document_parts, method.signed)
        for name, method in METHODS.items()
    }
    assert of_method == {
        "influence": ({*whole}, "sentences", False),
        "mask-gradient": ({*every}, "sentences", True),
        "mask-path": ({*every}, "sentences", True),
        "gradient-times-input": ({*whole}, "sentences", True),
        "integrated-gradients": ({*whole}, "sentences", True),
        "rollout": ({*whole}, "sentences", False),
        "leave-one-out": ({*every}, "documents", True),
        "ablations": ({*every}, "documents", True),
        "informed": ({*every}, "documents", True),
    }


def test_of_an_answer_that_nothing_moves_no_token_has_influence(model):
    """Where the readout is zero every answer is as likely, whatever is read."""
    still = eqx.tree_at(lambda model: model.head, model, jnp.zeros_like(model.head))
    token_scores = scored(still, CONTEXTS[0], "influence").tokens
    assert token_scores is not None and not token_scores.any()


def test_influence_is_that_of_the_contrast_where_one_is_asked(model):
    context = tokenize_context(PROMPTS[0][0], "17", loss="contrast", foil="2")
    token_scores = np.asarray(scored(model, context, "influence", contrast_loss).tokens)

    @eqx.filter_jit
    def slopes(model, x, y):
        return jax.grad(lambda x: contrast_loss(model, x, y))(x)

    ids, y = jax.device_put((context.window[:-1], context.contrast))
    energy = np.sum(np.asarray(slopes(model, model.embed(ids), y)) ** 2, axis=1)
    np.testing.assert_allclose(
        token_scores, (energy / energy.sum())[: len(token_scores)], rtol=1e-9, atol=1e-13
    )


def test_integrated_gradients_need_the_average_word(model):
    """Which is that of an array: half precision in memory is not called a file."""
    bits = jax.device_put(np.zeros(model.embedding.shape, np.uint16))
    stored = eqx.tree_at(lambda model: model.embedding, model, HalfRows(bits, "bfloat16"))
    with pytest.raises(ValueError, match="model: got an embedding as HalfRows, expected an array"):
        scored(stored, CONTEXTS[0], "integrated-gradients")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_method_goes_on_from_what_it_kept(model, method, tmp_path, monkeypatch):
    """Once more it gives the same, and reads nothing."""
    context = CONTEXTS[0]
    parts = context_segments(CONTEXTS[0])[:1]
    kept = partial(METHODS[method].scores, model, context, [whole_answer(context)], parts, LOSS)
    alone = kept(Run())
    first = kept(Run(tmp_path))
    monkeypatch.setattr(models.ids, "_scores", lambda *_: pytest.fail("read again"))
    again = kept(Run(tmp_path))
    for found in (first, again):
        np.testing.assert_allclose(found.by_part, alone.by_part, rtol=1e-9, atol=1e-12)


def test_methods_say_their_cost():
    assert set(get_args(MethodName)) == METHODS.keys()
    assert [str(METHODS[name].cost(10, 1)) for name in ("rollout", "leave-one-out")] == [
        "1 pass",
        "11 passes",
    ]
    assert str(METHODS["mask-path"].cost(10, 3)) == "9 passes and 21 gradients"
    # Of an answer in two parts the path back is taken twice, and the ends of the path once.
    totals = {name: method.cost(10, 2).total for name, method in METHODS.items()}
    assert totals == {
        "influence": 3,
        "mask-gradient": 7,
        "mask-path": 37,
        "gradient-times-input": 3,
        "integrated-gradients": 24,
        "rollout": 1,
        "leave-one-out": 11,
        "ablations": 64,
        "informed": 24,
    }
