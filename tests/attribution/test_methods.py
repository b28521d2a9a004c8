"""Every method against its formula on one unpadded context, or on the text without a part."""

import json
from functools import partial
from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import by_numpy
from reference.networks import byte_network

from lim_jax import models
from lim_jax.attribution import ablations, methods, scoring
from lim_jax.attribution.files import write_scores
from lim_jax.attribution.gradients import attention_rollout
from lim_jax.grid.cells import token_grid
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.foils import contrast_loss
from lim_jax.prompts.contexts import context_of
from lim_jax.prompts.documents import RenderedPrompt

LOSS = CausalLM.margin_loss
PROMPTS = [
    (
        RenderedPrompt("a=1 b=22 c=3 a=", ((0, 3, "first"), (4, 8, "second"), (9, 12, "third"))),
        "17",
    ),
    (RenderedPrompt("a=1 b=2 b=", ((0, 3, "first"), (4, 7, "second"))), "2"),
]
CONTEXTS = [context_of(laid, answer, asked="margin") for laid, answer in PROMPTS]
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
        matrix = by_numpy.run(rollout, model, x)
        return np.asarray(y.weights) @ matrix[np.asarray(y.places)]
    inside = np.zeros(len(x), bool)
    for span in context.spans:
        inside[span.places] = True
    words = np.asarray(model.embedding)
    step = np.where(inside[:, None], words[context.window[:-1]] - words.mean(axis=0), 0)
    slopes = [
        gradient(x - jnp.asarray((1 - s) * step), y)
        for s in (np.arange(methods.STEPS) + 0.5) / methods.STEPS
    ]
    return -np.sum(step * np.mean(slopes, axis=0), axis=1)


@pytest.mark.parametrize(
    "method", ["influence", "gradient-times-input", "integrated-gradients", "rollout"]
)
def test_scores_of_tokens_are_those_of_the_formula_and_parts_their_sums(model, method):
    found = methods.scores_of_parts(model, CONTEXTS, LOSS, method)
    for scored, context in zip(found, CONTEXTS, strict=True):
        expected = by_formula(model, context, method)
        assert scored.tokens is not None
        np.testing.assert_allclose(scored.tokens, expected, rtol=1e-9, atol=1e-13)
        assert [*scored.parts] == [name for name in NAMES if name in scored.parts]
        for span in context.spans:
            part = scored.parts[span.name, "part"]
            np.testing.assert_allclose(part, expected[span.places].sum(), rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(sum(scored.parts.values()), expected.sum(), atol=1e-12)


def loss_of_text(model, text, answer):
    """The loss of a text that was written without a part."""
    return by_numpy.run(LOSS, model, *example(model, context_of(RenderedPrompt(text), answer)))


def test_a_part_left_out_is_the_text_without_it_and_what_asks_stays(model):
    (scored, _) = methods.scores_of_parts(model, CONTEXTS, LOSS, "leave-one-out")
    whole = loss_of_text(model, "a=1 b=22 c=3 a=", "17")
    without = {"first": " b=22 c=3 a=", "second": "a=1  c=3 a=", "third": "a=1 b=22  a="}
    for name, text in without.items():
        gained = loss_of_text(model, text, "17") - whole
        np.testing.assert_allclose(scored.parts[name, "part"], gained, rtol=1e-9, atol=1e-12)
    # The rest has the place that asks, which stays.
    rest = loss_of_text(model, "a=1b=22c=3=", "17") - whole
    np.testing.assert_allclose(scored.parts["", "rest"], rest, rtol=1e-9, atol=1e-12)
    assert scored.tokens is None
    everywhere = context_of(PROMPTS[0][0], asked="next-token")
    with pytest.raises(ValueError, match="loss: got one that asks at every place"):
        methods.scores_of_parts(model, [everywhere], CausalLM.loss, "leave-one-out")


def test_a_contrast_is_left_out_of_the_prompt(model):
    laid = PROMPTS[0][0]
    context = context_of(laid, "17", asked="contrast", foil="2")
    (scored,) = methods.scores_of_parts(model, [context], contrast_loss, "leave-one-out")

    def loss(model, ids, y):
        return contrast_loss(model, model.embed(ids), y)

    def odds(text):
        one = context_of(RenderedPrompt(text), "17", asked="contrast", foil="2")
        assert one.contrast is not None
        return by_numpy.run(loss, model, *jax.device_put((one.window[:-1], one.contrast)))

    gained = odds("a=1  c=3 a=") - odds(laid.text)
    np.testing.assert_allclose(scored.parts["second", "part"], gained, rtol=1e-9, atol=1e-12)


def test_a_sparse_regression_finds_the_terms_of_a_sum(model, monkeypatch):
    """Minus a loss that is a sum over kept parts: all terms but for the small ones' shrinkage."""
    terms, seen = np.array([2.0, 0.0, -1.0, 0.003]), []

    def losses(model, context, places, kept, loss):
        seen.append(kept)
        return 5 - kept @ terms

    monkeypatch.setattr(ablations, "losses_without", losses)
    found = ablations.ablations(model, CONTEXTS[0], [np.arange(1)] * 4, LOSS)
    # The Lasso takes its strength, over a feature's deviation, from every term.
    strength = 0.01 / seen[0].std(axis=0)
    shrunk = np.sign(terms) * np.maximum(np.abs(terms) - strength, 0)
    np.testing.assert_allclose(found, shrunk, atol=8e-3)
    assert found[1] == found[3] == 0 and seen[0].shape == (64, 4)
    assert abs(seen[0].mean() - 0.5) < 0.15


def test_scores_go_on_after_the_last_context(model, tmp_path, monkeypatch):
    method, run = "gradient-times-input", partial(methods.scores_of_parts, model)
    first = run(CONTEXTS[:1], LOSS, method, checkpoint=tmp_path)
    calls, scores = [], models.ids._scores
    monkeypatch.setattr(models.ids, "_scores", lambda *of: calls.append(of) or scores(*of))
    found = run(CONTEXTS, LOSS, method, checkpoint=tmp_path)
    assert len(calls) == 1
    np.testing.assert_array_equal(found[0].tokens, first[0].tokens)
    with pytest.raises(ValueError, match="another"):
        run(CONTEXTS[1:], LOSS, method, checkpoint=tmp_path)
    other = CONTEXTS[1]._replace(spans=CONTEXTS[1].spans[:1])  # the same ids, fewer parts
    with pytest.raises(ValueError, match="of context"):
        run([CONTEXTS[0], other], LOSS, method, checkpoint=tmp_path)
    with pytest.raises(ValueError):
        run(CONTEXTS, LOSS, "rollout", checkpoint=tmp_path)


def test_a_method_is_one_entry(model, monkeypatch):
    def position(loss, model, ids, y, parts):
        return jnp.where(parts >= 0, jnp.arange(ids.shape[0], dtype=float), 0)

    entry = methods.Method("its positions", methods.METHODS["rollout"].cost, position)
    monkeypatch.setattr(methods, "METHODS", {**methods.METHODS, "position": entry})
    found = methods.scores_of_parts(model, CONTEXTS, LOSS, "position")
    assert found[0].parts == {
        ("first", "part"): 3.0, ("second", "part"): 22.0, ("third", "part"): 30.0, ("", "rest"): 0.0
    }  # fmt: skip
    with pytest.raises(ValueError, match="method: got 'guess', expected \"influence\" or "):
        methods.scores_of_parts(model, CONTEXTS, LOSS, "guess")


def test_what_a_paths_scores_fail_to_add_up_to_is_told(model, tmp_path, monkeypatch):
    """Of the second context half a unit is missing; of a method that need not add up nothing."""
    of_part = [dict(zip(NAMES, row, strict=True)) for row in ([1.0, 1, 1, 0], [0.5, 0.5, 0, 0])]
    scored = [methods.Scored(*of) for of in zip(of_part, [None] * 2, [3.0, 1.5], strict=True)]
    monkeypatch.setattr(scoring, "scores_of_parts", lambda *_, **run: scored)
    found = {
        method: scoring.score_contexts(model, CONTEXTS, "margin", method, checkpoint=tmp_path)
        for method in ("mask-path", "leave-one-out")
    }
    said = [scoring.scores_finding(one) for one in found.values()]
    assert said[0] == said[1].replace("leave-one-out", "mask-path") + (
        " All documents together give +2.250 on average; their scores add up to +2.000, and differ "
        "from it by at most 0.500 in a context."
    )
    for one in found.values():
        write_scores(one, "margin", tmp_path)
        read = json.loads((tmp_path / "profile.json").read_text())
        assert read.get("given") == (None if one.given is None else [3.0, 1.5])


def test_a_path_takes_more_gradients_where_its_scores_miss_what_was_given(
    model, tmp_path, monkeypatch
):
    """From one on, twice as many while the sum is off by more than a twentieth, to a most."""
    taken, rows = [], methods._rows

    def counted(score, model, contexts, loss, **run):
        if score is not methods._path_ends:
            (rule,) = score.args
            taken.append((rule.shape[1], len(contexts)))
        return rows(score, model, contexts, loss, **run)

    monkeypatch.setattr(methods, "_rows", counted)
    monkeypatch.setattr(methods, "SHOWN", 0.0)
    monkeypatch.setattr(methods, "NODES", 1)
    sharp = jax.tree.map(lambda leaf: 3 * leaf, model)
    found = methods.scores_of_parts(sharp, CONTEXTS, LOSS, "mask-path", checkpoint=tmp_path)
    given = methods.given_by_parts(sharp, CONTEXTS, LOSS)
    for scored, whole in zip(found, given, strict=True):
        assert scored.given == pytest.approx(whole, rel=1e-9)
        assert abs(sum(scored.parts.values()) - whole) <= abs(whole) / 20
    assert taken[0] == (1, len(CONTEXTS)) and len(taken) > 1
    assert [nodes for nodes, _ in taken] == [2**power for power in range(len(taken))]
    assert [count for _, count in taken] == sorted((count for _, count in taken), reverse=True)
    # From a checkpoint it is the same, and where no more may be taken the rest is left to be told.
    again = methods.scores_of_parts(sharp, CONTEXTS, LOSS, "mask-path", checkpoint=tmp_path)
    assert [one.parts for one in again] == [one.parts for one in found]
    monkeypatch.setattr(methods, "MOST_NODES", 1)
    (first, *_) = methods.scores_of_parts(sharp, CONTEXTS, LOSS, "mask-path")
    assert first.given == pytest.approx(given[0], rel=1e-9)
    assert methods.unresolved(np.array([sum(first.parts.values())]), given[:1]).all()


def test_what_is_not_shown_is_not_missed():
    """A twentieth of what was given, or half of the second decimal that is printed."""
    sums, given = np.array([-0.897, -0.84, 0.004, 0.008]), np.array([-0.809, -0.809, 0.0, 0.002])
    assert methods.unresolved(sums, given).tolist() == [True, False, False, True]


def test_methods_say_their_cost():
    assert set(get_args(methods.MethodName)) == methods.METHODS.keys()
    assert [str(methods.METHODS[name].cost(10)) for name in ("rollout", "leave-one-out")] == [
        "1 pass", "11 passes"
    ]  # fmt: skip
    assert str(methods.METHODS["mask-path"].cost(10).times(3)) == "24 gradients"
    totals = {name: method.cost(10).total for name, method in methods.METHODS.items()}
    assert totals == {
        "influence": 3, "mask-gradient": 3, "mask-path": 24, "gradient-times-input": 3,
        "integrated-gradients": 24, "rollout": 1, "leave-one-out": 11, "ablations": 64,
    }  # fmt: skip
