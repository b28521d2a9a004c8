"""Prompts to a model: one padded program against gradients of whole contexts, and NumPy's sums."""

import json
from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import pytest
from reference.networks import byte_network
from scipy import stats

from benchmarks.validation import prompted
from benchmarks.validation.key_values import draw_key_values, key_value_prompt
from benchmarks.validation.prediction import SCORES, prediction_table
from benchmarks.validation.prompted import PROMPTED, Answers, ask_prompts, prompted_study
from benchmarks.validation.texts import PromptSetting
from lim_jax import tasks
from lim_jax.grid import token_grid
from lim_jax.models import CausalLM

RECORDS = 3
SETTING = PromptSetting(RECORDS, prompts=6, key_length=1, value_length=2)


def bytes_model(dtype):
    """Small and random, over bytes, for contexts of up to 160."""
    model = byte_network(160, depth=2)
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, dtype)), model)


@pytest.fixture(scope="module")
def model():
    return bytes_model("float64")


def drawn(number):
    data = draw_key_values(RECORDS, number, key_length=1, value_length=2)
    return tasks.encode(key_value_prompt(data, place=number % RECORDS))


@pytest.fixture(scope="module")
def greedy(model):
    """A prompt's example with the answer that the model gives, decoded byte by byte."""
    logits = eqx.filter_jit(lambda model, ids: model.logits(ids))
    example = drawn(1)
    window = example.window.copy()
    query_positions = np.flatnonzero(example.weights)
    for place in query_positions:  # what comes after it is not seen
        window[place + 1] = np.argmax(logits(model, jax.device_put(window[:-1]))[place])
    return example._replace(window=window), query_positions


@pytest.mark.slow
def test_a_padded_prompt_is_measured_as_the_whole_context_is(model):
    """All places are asked there, most with no weight, and nothing is padded."""
    example = drawn(2)
    found = prompted.answers(model, example, RECORDS, size=len(example.weights) + 5, queries=4)
    weights = jax.device_put(np.asarray(example.weights, float))
    weights = weights / weights.sum()

    @eqx.filter_jit
    def whole(model, window):
        x, y = model.example(window, weights)

        def losses(x):
            state = model.flow(x, token_grid(len(x)))
            both = model.terminal_loss(state, y), CausalLM.margin_loss.terminal(model, state, y)
            return both, both

        return x, *jax.jacrev(losses, has_aux=True)(x)

    x, gradients, values = jax.tree.map(np.asarray, whole(model, jax.device_put(example.window)))
    np.testing.assert_allclose(found.cross_entropy, values[0], rtol=1e-12)
    np.testing.assert_allclose(found.margin, -values[1], rtol=1e-12)
    for row, gradient in enumerate(gradients):
        for record in range(RECORDS):
            places = np.flatnonzero(example.records == record)
            assert len(places) == len('"a": "12"')
            energy = sum((len(x) * gradient[i]) @ (len(x) * gradient[i]) / len(x) for i in places)
            product = sum(x[i] @ gradient[i] for i in places)
            np.testing.assert_allclose(found.energies[row, record], energy, rtol=1e-10)
            np.testing.assert_allclose(found.gradient_times_input[row, record], product, rtol=1e-9)
    shares = found.energies / found.energies.sum(axis=1, keepdims=True)
    assert np.abs(shares[0] - shares[1]).max() > 1e-6, "two words are asked for: losses differ"


@pytest.mark.slow
def test_an_answer_is_right_where_greedy_decoding_gives_all_of_it(model, greedy):
    example, asked = greedy
    assert prompted.answers(model, example, RECORDS).right
    for place in asked:
        window = example.window.copy()
        window[place + 1] ^= 1
        assert not prompted.answers(model, example._replace(window=window), RECORDS).right


@pytest.mark.slow
def test_energies_in_single_precision_are_near_double(model):
    example = drawn(0)
    low, high = (prompted.answers(one, example, RECORDS) for one in (bytes_model("float32"), model))
    assert low.energies.dtype == "float32" and low.right == high.right
    for ours, exact in zip(low[1:], high[1:], strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_prompts_are_asked_once_and_the_same_whether_interrupted_or_not(
    model, tmp_path, monkeypatch
):
    whole = ask_prompts(model, None, SETTING)
    checkpoint = tmp_path / "asked"
    calls = []
    assert whole.energies.shape == (6, 2, RECORDS) and whole.right.dtype == bool
    for number in range(6):
        found = prompted.answers(model, drawn(number), RECORDS)
        for ours, theirs in zip(found, whole, strict=True):
            np.testing.assert_array_equal(ours, theirs[number])
    answers = prompted.answers

    def counting(*arguments, **sizes):
        calls.append(arguments)
        return answers(*arguments, **sizes)

    def interrupted(prompts):
        yield from prompts[:4]
        raise KeyboardInterrupt

    monkeypatch.setattr(prompted, "answers", counting)
    with pytest.raises(KeyboardInterrupt):
        ask_prompts(model, None, SETTING, checkpoint=checkpoint, progress=interrupted)
    assert len(calls) == 4
    again = ask_prompts(model, None, SETTING, checkpoint=checkpoint)
    assert len(calls) == 6
    for ours, theirs in zip(again, whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    other = eqx.tree_at(lambda model: model.head, model, replace_fn=lambda head: 2 * head)
    for wrong, message in (
        ((other, None, SETTING), "of model"),
        ((replace(model, logit_scale=0.5), None, SETTING), "of model"),
        ((model, None, SETTING._replace(value_length=1)), "of prompts"),
    ):
        with pytest.raises(ValueError, match=message):
            ask_prompts(*wrong, checkpoint=checkpoint)
    with pytest.raises(ValueError, match="prompts: got 7 prompts of 3 records"):
        ask_prompts(model, None, SETTING._replace(prompts=7))


@pytest.fixture(scope="module")
def made():
    """Answers of 60 rounds of four records: what they are worth rises with the record."""
    generator = np.random.default_rng(0)
    gold = np.arange(240) % 4
    energies = np.exp(generator.standard_normal((240, 2, 4)) + 0.5 * np.arange(4))
    energies[np.arange(240), :, gold] *= 3
    products = generator.standard_normal((240, 2, 4)) * (1 + np.arange(4)[::-1])
    margin = gold + 0.3 * generator.standard_normal(240)
    return Answers(margin > 1.5, np.log1p(np.exp(-margin)), margin, energies, products)


@pytest.fixture(scope="module")
def study(made):
    return prompted_study(made)


def by_prompt(found):
    """Every attribution of every prompt and record, normalised or not, by name."""
    result = {}
    for row, loss in enumerate(("cross-entropy", "margin")):
        energies = found.energies[:, row]
        products = np.abs(found.gradient_times_input[:, row])
        result[f"influence, {loss}"] = energies
        result[f"normalised influence, {loss}"] = energies / energies.sum(axis=1)[:, None] * 4
        result[f"gradient times input, {loss}"] = products / products.sum(axis=1)[:, None] * 4
    return result


def test_profiles_and_scores_are_means_over_prompts(made, study):
    found = study
    gold = np.arange(240) % 4
    scores = dict(zip(SCORES, (made.right, made.margin, -made.cross_entropy), strict=True))
    for name, values in scores.items():
        expected = [values[gold == place].mean() for place in range(4)]
        np.testing.assert_allclose(found.scores[name].value, expected, rtol=1e-12)
        errors = [stats.sem(values[gold == place].astype(float)) for place in range(4)]
        np.testing.assert_allclose(found.scores[name].error, errors, rtol=1e-12)
    ours = {}
    parts = by_prompt(made)
    assert set(parts) == set(PROMPTED)
    for name, values in parts.items():
        mean = values.mean()
        at_gold = [values[gold == place, place].mean() for place in range(4)]
        ours["profile", name] = values.mean(axis=0) / mean
        ours["at the gold record", name] = np.array(at_gold) / mean
        np.testing.assert_allclose(found.profile[name].value, ours["profile", name], rtol=1e-12)
        np.testing.assert_allclose(found.at_gold[name].value, at_gold / mean, rtol=1e-12)
    for prediction in found.predictions:
        place_scores = found.scores[prediction.score].value
        expected = np.asarray(
            stats.spearmanr(ours[prediction.of, prediction.attribution], place_scores)
        )[0]
        assert prediction.interval.value == pytest.approx(expected)
        assert (
            prediction.correlations.tolist() == [prediction.interval.value]
            and prediction.left_out == 0
        )
    clear = [
        prediction
        for prediction in found.predictions
        if prediction.of == "profile" and prediction.score == "margin"
    ]
    assert clear[0].interval.low > 0.9 and clear[-1].interval.high < 0
    record = json.loads(json.dumps(found.record()))
    assert record["profile"]["influence, margin"]["error"] == pytest.approx(
        found.profile["influence, margin"].error
    )
    assert record["predictions"][0]["correlations"] == found.predictions[0].correlations.tolist()


def test_errors_of_profiles_are_those_of_leaving_out_each_round(made, study):
    """The jackknife of a ratio of means agrees with its linearisation to second order."""
    found = study
    for name, values in by_prompt(made).items():
        rounds = values.reshape(60, 4, 4)
        gold = rounds[:, np.arange(4), np.arange(4)]
        without = [np.delete(rounds, one, axis=0) for one in range(60)]
        profiles = np.stack([part.mean(axis=(0, 1)) / part.mean() for part in without])
        at_gold = np.stack(
            [
                np.delete(gold, one, axis=0).mean(axis=0) / part.mean()
                for one, part in enumerate(without)
            ]
        )
        for left, estimate in ((profiles, found.profile[name]), (at_gold, found.at_gold[name])):
            error = np.sqrt(59 / 60 * ((left - left.mean(axis=0)) ** 2).sum(axis=0))
            np.testing.assert_allclose(estimate.error, error, rtol=0.05, err_msg=name)


def test_one_round_has_no_error_and_a_model_that_is_always_right_no_correlation(made):
    alone = prompted_study(Answers(*(part[:4] for part in made)))
    assert np.isinf(alone.scores["margin"].error).all()
    assert np.isinf(alone.profile["influence, margin"].error).all()
    always = prompted_study(made._replace(right=np.ones(240, bool)))
    for prediction in always.predictions:
        assert (
            np.isnan(prediction.interval).all()
            == (prediction.score == "accuracy")
            == prediction.left_out
        )
    assert prediction_table(always.predictions).count("constant") == 2 * len(PROMPTED)
