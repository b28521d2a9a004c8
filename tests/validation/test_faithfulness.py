"""Attributions of a model's own answers: whole contexts taken one by one, and SciPy's sums."""

import json
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import byte_network
from scipy import stats

from benchmarks.validation import ablations, faithfulness
from benchmarks.validation.ablations import ablated_text, random_ablations, sparse_regression
from benchmarks.validation.documents import question_prompt
from benchmarks.validation.facts import draw_facts
from benchmarks.validation.faithfulness import (
    Explained,
    FaithfulnessSetting,
    attribution_costs,
    explain_prompts,
    faithfulness_study,
)
from lim_jax import tasks
from lim_jax.grid import token_grid
from lim_jax.models import Targets

RECORDS, PLACES, TOKENS, SCALE = 5, 336, 3, 1.5
SETTING = FaithfulnessSetting(
    prompts=10, records=RECORDS, key_length=1, value_length=1, tokens=TOKENS, fitted=(5, 12),
    held_out=7, steps=2,
)  # fmt: skip
NAMES = list(attribution_costs(SETTING))


@pytest.fixture(scope="module")
def model():
    """Whose head is large, so that answers hang on what stands before; its words have a scale."""
    small = replace(byte_network(PLACES, depth=1, seed=3), embedding_scale=SCALE)
    return eqx.tree_at(lambda one: one.head, small, replace_fn=lambda head: 3 * head)


@pytest.fixture(scope="module", autouse=True)
def one_size():
    """One program serves all contexts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablations, "STEP", PLACES)
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tmp_path_factory.mktemp("faithful") / "asked.jsonl"


@pytest.fixture(scope="module")
def found(model, checkpoint):
    return explain_prompts(model, None, SETTING, checkpoint=checkpoint)


def prompt_of(number):
    """What the n-th prompt must be: of kind n % 2, with the records in turn."""
    seed, place = number // 2, number // 2 % RECORDS
    if number % 2:
        return question_prompt(draw_facts(RECORDS, seed), place)
    pairs = tasks.draw_key_values(RECORDS, seed, key_length=1, value_length=1)
    return tasks.key_value_prompt(pairs, place)


@eqx.filter_jit
def padded_logits(model, ids):
    return model.logits(ids)


def logits_after(model, ids):
    """Of all places of a row, which is filled up to the network's; what comes after is not seen."""
    row = np.pad(np.asarray(ids, np.int32), (0, PLACES - len(ids)))
    return np.asarray(padded_logits(model, jax.device_put(row)))[: len(ids)]


def ids_of(text):
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def said_after(model, ids, ends=(10, 34)):
    """Greedily, id by id."""
    row = list(ids)
    while len(row) < len(ids) + TOKENS and (len(row) == len(ids) or row[-1] not in ends):
        row.append(int(np.argmax(logits_after(model, row)[-1])))
    said = np.array(row[len(ids) :], np.int32)
    return said[:-1] if len(said) > 1 and said[-1] in ends else said


def log_probability(model, ids, said):
    logits = logits_after(model, np.concatenate([ids, said[:-1]]))[len(ids) - 1 :]
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logs[np.arange(len(said)), said].sum()


@pytest.mark.parametrize("number", [2, 5])
def test_drops_are_those_of_texts_that_are_read_again(model, found, number):
    prompt = prompt_of(number)
    said = said_after(model, ids_of(prompt.text))
    assert found.tokens[number] == len(said)
    assert found.right[number] == (prompt.answer.strip() in bytes(said.tolist()).decode("latin1"))

    def value(kept):
        return log_probability(model, ids_of(ablated_text(prompt, kept)), said)

    whole = value(np.ones(RECORDS, bool))
    np.testing.assert_allclose(found.log_probability[number], whole, rtol=1e-9)
    alone = [whole - value(np.arange(RECORDS) != record) for record in range(RECORDS)]
    scores = dict(zip(NAMES, found.scores[number], strict=True))
    np.testing.assert_allclose(scores["leave-one-out"], alone, rtol=1e-7, atol=1e-9)
    for row, name in enumerate(NAMES):
        first = np.argsort(-found.scores[number, row])
        if len(set(found.scores[number, row].tolist())) < RECORDS:
            continue  # of a regression that leaves some out
        for column, count in enumerate((1, 3, 5)):
            left = ~np.isin(np.arange(RECORDS), first[:count])
            drop = found.drops[number, row, column]
            np.testing.assert_allclose(
                drop, whole - value(left), rtol=1e-7, atol=1e-9, err_msg=name
            )
    # Held out are the draws after those that the regressions are fitted on.
    drawn = random_ablations(RECORDS, 19, number)
    np.testing.assert_array_equal(found.kept[number], drawn[12:])
    np.testing.assert_allclose(found.values[number], [value(one) for one in drawn[12:]], rtol=1e-9)
    values = np.array([value(one) for one in drawn[:12]])
    for count in (5, 12):
        fitted = sparse_regression(drawn[:count], values[:count], len(said))
        np.testing.assert_allclose(scores[f"ContextCite on {count}"], fitted, rtol=1e-6, atol=1e-9)


def test_what_reads_the_whole_text_is_of_the_unpadded_context(model, found):
    prompt = prompt_of(number := 5)
    text = ids_of(prompt.text)
    said = said_after(model, text)
    ids = np.concatenate([text, said[:-1]])
    places = np.full(len(ids), -1)
    for record, (start, end) in enumerate(prompt.spans):
        places[start:end] = record
    asked = np.arange(len(text) - 1, len(ids))
    weights = np.full(len(said), 1 / len(said))
    y = Targets(*jax.device_put((said, weights, asked)))

    @eqx.filter_jit
    def measured(model, ids):
        x = model.embed(ids)
        words = SCALE * (model.embedding.mean(axis=0)[None] - model.embedding[ids])
        start = jnp.where((places >= 0)[:, None], x + words, x)
        gradients = [jax.grad(loss)(x, y) for loss in (model.loss, model.margin_loss)]
        path = [jax.grad(model.loss)(start + s * (x - start), y) for s in (0.25, 0.75)]
        return x, start, gradients, path

    x, start, gradients, path = jax.tree.map(np.asarray, measured(model, jax.device_put(ids)))
    scores = dict(zip(NAMES, found.scores[number], strict=True))

    def by_record(values):
        return np.array([values[places == record].sum() for record in range(RECORDS)])

    energies = [by_record(len(ids) * (one**2).sum(axis=1)) for one in gradients]
    product = by_record((x * gradients[0]).sum(axis=1))
    along = by_record(((x - start) * (path[0] + path[1]) / 2).sum(axis=1))
    for name, expected in (
        ("influence", energies[0]),
        ("influence, margin", energies[1]),
        ("influence, root", np.sqrt(energies[0])),
        ("gradient times input", -product),
        ("gradient times input, size", np.abs(product)),
        ("integrated gradients", -along),
    ):
        np.testing.assert_allclose(scores[name], expected, rtol=1e-6, err_msg=name)
    rollout = layer_rollout(model, x)
    np.testing.assert_allclose(
        scores["attention rollout"], by_record(weights @ rollout[asked]), rtol=1e-6
    )
    assert np.abs(energies[0] / energies[0].sum() - energies[1] / energies[1].sum()).max() > 1e-6


def layer_rollout(model, x):
    """The mean of the one layer's attention matrices and of the identity."""
    field, grid = jax.tree.map(lambda leaf: leaf[0], model.flow.layers), token_grid(len(x))
    attention = field.attention
    x = jax.device_put(x)
    query = np.asarray(attention.queries(x, attention.rope(grid)))
    key = np.asarray(attention.sources(x, attention.rope(grid))[0])
    logits = np.einsum("hid,hjd->hij", query, np.repeat(key, len(query) // len(key), axis=0))
    logits /= np.sqrt(query.shape[-1])
    seen = np.tril(np.ones((len(x), len(x)), bool))
    weights = np.where(seen, np.exp(logits), 0)
    weights /= weights.sum(axis=2, keepdims=True)
    return (weights.mean(axis=0) + np.eye(len(x))) / 2


def test_every_field_is_of_every_prompt_and_chance_is_not_the_ablations(found):
    assert found.right.shape == found.tokens.shape == found.log_probability.shape == (10,)
    assert found.right.dtype == bool and found.tokens.dtype.kind == "i"
    assert found.scores.shape == (10, len(NAMES), RECORDS) and found.drops.shape[1:] == (
        len(NAMES),
        3,
    )
    assert found.kept.shape == (10, 7, RECORDS) and found.values.shape == (10, 7)
    chance = found.scores[:, NAMES.index("random")]
    assert len(np.unique(chance)) == 10 * RECORDS and (0 <= chance).all() and (chance < 1).all()
    # The largest drop of one record is leave-one-out's, and all five are everything.
    best = found.drops[:, NAMES.index("leave-one-out"), 0]
    assert (found.drops[..., 0] <= best[:, None] + 1e-12).all()
    np.testing.assert_allclose(found.drops[..., 2], found.drops[:, :1, 2] + np.zeros((10, 11)))


def test_an_answer_ends_before_what_ends_it(model, monkeypatch):
    """At the second id it is the first alone, and at the first it is that one."""
    ids = ids_of(prompt_of(0).text)
    said = said_after(model, ids)
    assert len(said) == 3 and len(set(said.tolist())) > 1
    explained = []

    def recorded(model, prompt, answer, *rest, **sizes):
        explained.append(np.asarray(answer).tolist())
        raise KeyboardInterrupt

    monkeypatch.setattr(faithfulness, "ablating", recorded)
    first, other = int(said[0]), next(int(one) for one in said if one != said[0])
    for end in ((), (other,), (first,)):
        with pytest.raises(KeyboardInterrupt):
            explain_prompts(model, None, SETTING, end=end)
    before = said.tolist()[: said.tolist().index(other)]
    assert explained == [said.tolist(), before, [first]]


class Words:
    """A tokenizer of three words, of which one holds the end of a line."""

    @staticmethod
    def decode_batch(rows):
        return [["a", 'b"', "c\n"][ids[0]] if ids[0] < 3 else "d" for ids in rows]


def test_words_that_hold_a_mark_end_an_answer(model):
    assert faithfulness._ends(model, Words, [7]) == [1, 2, 7]
    assert faithfulness._ends(model, None, [3]) == [3, 10, 34]


def test_a_run_goes_on_and_is_the_beginning_of_a_longer_one(model, found, checkpoint, monkeypatch):
    lines = checkpoint.read_bytes().splitlines(keepends=True)
    assert len(lines) == 11
    checkpoint.write_bytes(b"".join(lines[:10]) + lines[10][:50])
    asked, whole = [], faithfulness._explained

    def counting(*arguments):
        asked.append(arguments[-1])
        return whole(*arguments)

    monkeypatch.setattr(faithfulness, "_explained", counting)
    again = explain_prompts(model, None, SETTING, checkpoint=checkpoint)
    assert asked == [9]
    for ours, theirs in zip(again, found, strict=True):
        np.testing.assert_array_equal(ours, theirs)

    def stopped(prompts):
        assert len(prompts) == 20
        yield from prompts[:10]
        raise KeyboardInterrupt

    longer = SETTING._replace(prompts=20)
    with pytest.raises(KeyboardInterrupt):
        explain_prompts(model, None, longer, checkpoint=checkpoint, progress=stopped)
    assert asked == [9]
    for other, message in (
        (SETTING._replace(steps=3), "of setting"),
        (SETTING._replace(value_length=2), "of setting"),
    ):
        with pytest.raises(ValueError, match=message):
            explain_prompts(model, None, other, checkpoint=checkpoint)
    other = replace(model, embedding_scale=2.0)
    with pytest.raises(ValueError, match="of model"):
        explain_prompts(other, None, SETTING, checkpoint=checkpoint)
    with pytest.raises(ValueError, match="of ids"):
        explain_prompts(model, None, SETTING, end=(3,), checkpoint=checkpoint)


def test_what_is_refused(model, monkeypatch):
    with pytest.raises(ValueError, match="prompts: got 15 prompts of 5 records, expected a mult"):
        explain_prompts(model, None, SETTING._replace(prompts=15))
    elsewhere = eqx.tree_at(lambda one: one.embedding, model, None)
    with pytest.raises(ValueError, match="model: got one whose weights are left in their files"):
        explain_prompts(elsewhere, None, SETTING)
    monkeypatch.setattr("lim_jax._checks.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="faithfulness"):
        explain_prompts(model, None, SETTING)


def test_costs_are_counted():
    found = attribution_costs(FaithfulnessSetting())
    assert {name: (*cost, cost.total) for name, cost in found.items()} == {
        "influence": (1, 1, 3),
        "influence, margin": (1, 1, 3),
        "influence, root": (1, 1, 3),
        "gradient times input": (1, 1, 3),
        "gradient times input, size": (1, 1, 3),
        "integrated gradients": (8, 8, 24),
        "attention rollout": (1, 0, 1),
        "leave-one-out": (10, 0, 10),
        "ContextCite on 32": (32, 0, 32),
        "ContextCite on 64": (64, 0, 64),
        "random": (0, 0, 0),
    }


def test_means_and_leads_are_over_the_prompts_of_a_kind():
    rng, methods = np.random.default_rng(0), len(NAMES)
    made = Explained(
        rng.uniform(size=40) < 0.5, rng.integers(1, 4, 40), -rng.uniform(size=40),
        rng.standard_normal((40, methods, RECORDS)), rng.standard_normal((40, methods, 3)),
        rng.uniform(size=(40, 7, RECORDS)) < 0.5, -rng.uniform(size=(40, 7)),
    )  # fmt: skip
    made.scores[4, 3] = 0  # orders nothing, and counts as zero
    made.drops[1::2, 0] += 1
    judged = faithfulness_study(made, SETTING)
    assert list(judged) == ["keys and values", "documents"]
    for kind, one in enumerate(judged.values()):
        rows = range(kind, 40, 2)
        assert one.prompts == 20 and one.right == np.mean([made.right[n] for n in rows])
        np.testing.assert_allclose(one.log_probability, made.log_probability[kind::2].mean())
        assert one.costs == attribution_costs(SETTING)
        samples = np.zeros((20, methods, 4))
        for row, n in enumerate(rows):
            samples[row, :, :3] = made.drops[n]
            for method in range(methods):
                if np.any(made.scores[n, method]):
                    sums = made.kept[n] @ made.scores[n, method]
                    samples[row, method, 3] = np.asarray(stats.spearmanr(sums, made.values[n]))[0]
        error = samples.std(axis=0, ddof=1) / np.sqrt(20)
        for method, name in enumerate(NAMES):
            mean = one.measures[name]
            np.testing.assert_allclose(mean.value, samples[:, method].mean(axis=0), atol=1e-12)
            wide = (mean.high - mean.low) / (2 * 1.96 * error[method])
            assert ((0.7 < wide) & (wide < 1.3)).all()
        for method, name in enumerate(NAMES[1:], 1):
            lead, ahead = one.leads[name], samples[:, 0] - samples[:, method]
            np.testing.assert_allclose(lead.value, ahead.mean(axis=0), atol=1e-12)
            wide = (lead.high - lead.low) / (2 * 1.96 * ahead.std(axis=0, ddof=1) / np.sqrt(20))
            assert ((0.7 < wide) & (wide < 1.3)).all()
        record = json.loads(json.dumps(one.record()))
        assert list(record["measures"]) == list(record["costs"]) == NAMES
        assert list(record["leads"]) == NAMES[1:]
        assert record["costs"]["leave-one-out"] == {"passes": 5, "gradients": 0}
        assert record["measures"]["random"]["low"] == one.measures["random"].low.tolist()
        assert record["prompts"] == 20 and record["right"] == one.right
