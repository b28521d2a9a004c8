"""Attributions of a model's own answers: whole contexts taken one by one, and SciPy's sums."""

import json
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import byte_network
from scipy import stats

from benchmarks.validation import ablation_study, faithfulness, learnt_heads
from benchmarks.validation.ablation_study import ablated_text, random_ablations, sparse_regression
from benchmarks.validation.document_study import question_prompt
from benchmarks.validation.facts import draw_facts
from benchmarks.validation.faithfulness import (
    AT2,
    FACTS,
    PAIRS,
    QUICK,
    SETTINGS,
    Explained,
    FaithfulnessSetting,
    attributions,
    drawn_prompt,
    explain_prompts,
    explained_from_record,
)
from benchmarks.validation.judged_faithfulness import Run, faithfulness_study
from benchmarks.validation.key_values import draw_key_values, key_value_prompt
from benchmarks.validation.learnt_heads import learn_heads, weights_of_heads
from lim_jax.attribution.methods.integrated_gradients import STEPS
from lim_jax.grid import token_grid
from lim_jax.models import Targets

RECORDS = 5
PLACES = 336
TOKENS = 3
SCALE = 1.5
SETTING = FaithfulnessSetting(
    (PAIRS, FACTS),
    6,
    2,
    RECORDS,
    tokens=TOKENS,
    fitted=(8, 12),
    held_out=7,
    taken_out=(1, 3, 5),
    weights=(1.0, 0.2),
    paths=(2,),
    steps=STEPS,
)
NAMES = attributions(SETTING)
OURS = "mask-gradient at 0.2, margin"


@pytest.fixture(scope="module")
def model():
    """Whose head is large, so that answers hang on what stands before; its words have a scale."""
    small = replace(byte_network(PLACES, depth=2, seed=3), embedding_scale=SCALE)
    return eqx.tree_at(lambda one: one.head, small, replace_fn=lambda head: 3 * head)


@pytest.fixture(scope="module", autouse=True)
def one_size():
    """One program serves all contexts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation_study, "STEP", PLACES)
        patch.setattr("lim_jax.models.padding.SHORTEST", PLACES)
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tmp_path_factory.mktemp("faithful") / "asked.jsonl"


@pytest.fixture(scope="module")
def explained_prompts(model, checkpoint):
    return explain_prompts(model, None, SETTING, checkpoint=checkpoint)[0]


def prompt_of(number):
    """What the n-th prompt must be: of kind n % 2, and a place is gold for two seeds in turn."""
    seed = number // 2
    place = 7 * (number // 4) % RECORDS
    if number % 2:
        return question_prompt(draw_facts(RECORDS, seed), place)
    pairs = draw_key_values(RECORDS, seed, key_length=2, value_length=2)
    return key_value_prompt(pairs, place)


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


@pytest.mark.slow
def test_drops_are_those_of_texts_that_are_read_again(model, explained_prompts):
    prompt = prompt_of(5)
    one = explained_prompts[5]
    said = said_after(model, ids_of(prompt.text))
    assert one.tokens == len(said) and one.length == len(prompt.text)
    assert one.right == (prompt.answer.strip() in bytes(said.tolist()).decode("latin1"))

    def value(kept):
        return log_probability(model, ids_of(ablated_text(prompt, kept)), said)

    whole = value(np.ones(RECORDS, bool))
    np.testing.assert_allclose(one.log_probability, whole, rtol=1e-9)
    alone = [whole - value(np.arange(RECORDS) != record) for record in range(RECORDS)]
    scores = dict(zip(NAMES, one.scores, strict=True))
    np.testing.assert_allclose(scores["leave-one-out"], alone, rtol=1e-6, atol=1e-9)
    for row, name in enumerate(NAMES):
        first = np.argsort(-one.scores[row])
        if len(set(one.scores[row].tolist())) < RECORDS:
            continue  # of a regression that leaves some out
        for column, count in enumerate((1, 3, 5)):
            left = ~np.isin(np.arange(RECORDS), first[:count])
            drop = one.drops[row, column]
            np.testing.assert_allclose(
                drop, whole - value(left), rtol=1e-7, atol=1e-9, err_msg=name
            )
    # Held out are the draws after those that the regressions are fitted on.
    drawn = random_ablations(RECORDS, 19, 5)
    np.testing.assert_array_equal(one.kept, drawn[12:])
    np.testing.assert_allclose(one.values, [value(row) for row in drawn[12:]], rtol=1e-9)
    values = np.array([value(row) for row in drawn[:12]])
    for count in (8, 12):
        fitted = sparse_regression(drawn[:count], values[:count], len(said))
        np.testing.assert_allclose(scores[f"ContextCite on {count}"], fitted, rtol=1e-6, atol=1e-9)


@pytest.fixture(scope="module")
def unpadded(model):
    """The fifth prompt's answer in a context of its own length, and the place of each record."""
    prompt = prompt_of(5)
    text = ids_of(prompt.text)
    said = said_after(model, text)
    ids = np.concatenate([text, said[:-1]])
    places = np.full(len(ids), -1)
    for record, (start, end) in enumerate(prompt.spans):
        places[start:end] = record
    asked = np.arange(len(text) - 1, len(ids))
    weights = np.full(len(said), 1 / len(said))
    return jax.device_put(ids), places, Targets(*jax.device_put((said, weights, asked)))


@pytest.fixture(scope="module")
def attention(model, unpadded):
    """Its attention: of every layer a matrix for each head."""
    ids, _, _ = unpadded
    grid = token_grid(len(ids))

    @eqx.filter_jit
    def measured(model):
        def of_layer(layer, state):
            rope = layer.attention.rope(grid)
            return layer.attention.queries(state, rope), layer.attention.sources(state, rope)[0]

        states = model.flow.trajectory(model.embed(ids), grid).states
        return jax.vmap(of_layer)(model.flow.layers, states[:-1])

    layers = []
    for query, key in zip(*map(np.asarray, measured(model)), strict=True):
        logits = np.einsum("hid,hjd->hij", query, np.repeat(key, len(query) // len(key), axis=0))
        logits /= np.sqrt(query.shape[-1])
        weights = np.where(np.tril(np.ones((len(ids), len(ids)), bool)), np.exp(logits), 0)
        layers.append(weights / weights.sum(axis=2, keepdims=True))
    return layers


def by_record(values, places):
    return np.array([values[places == record].sum() for record in range(RECORDS)])


@pytest.mark.slow
def test_what_reads_the_whole_text_is_of_the_unpadded_context(
    model, explained_prompts, unpadded, attention
):
    ids, places, y = unpadded

    @eqx.filter_jit
    def measured(model, ids):
        x = model.embed(ids)
        words = SCALE * (model.embedding.mean(axis=0)[None] - model.embedding[ids])
        start = jnp.where((places >= 0)[:, None], x + words, x)
        nodes = (np.arange(STEPS) + 0.5) / STEPS
        states = jnp.stack([x, *(start + s * (x - start) for s in nodes.tolist())])
        along = jax.vmap(jax.grad(model.loss), (0, None))(states, y)
        return x, start, along, jax.grad(model.margin_loss)(x, y)

    x, start, along, margin = jax.tree.map(np.asarray, measured(model, ids))
    gradients = (along[0], margin)
    path = along[1:]
    scores = dict(zip(NAMES, explained_prompts[5].scores, strict=True))
    energies = [by_record((gradient**2).sum(axis=1), places) for gradient in gradients]
    product = by_record((x * gradients[0]).sum(axis=1), places)
    along = by_record(((x - start) * path.mean(axis=0)).sum(axis=1), places)
    shares = [energy / (one**2).sum() for energy, one in zip(energies, gradients, strict=True)]
    for name, expected in (
        ("influence", shares[0]),
        ("influence, margin", shares[1]),
        ("gradient times input", -product),
        ("gradient times input, size", np.abs(product)),
        ("integrated gradients", -along),
    ):
        np.testing.assert_allclose(scores[name], expected, rtol=1e-6, err_msg=name)
    rollout = np.eye(len(x))
    for weights in attention:
        rollout = (weights.mean(axis=0) + np.eye(len(x))) / 2 @ rollout
    query_positions = np.asarray(y.positions)
    weights = np.asarray(y.weights)
    np.testing.assert_allclose(
        scores["attention rollout"],
        by_record(weights @ rollout[query_positions], places),
        rtol=1e-6,
    )
    assert np.abs(shares[0] - shares[1]).max() > 1e-6


@pytest.mark.slow
def test_the_mask_gradient_is_the_difference_of_the_answer_at_two_weights_of_a_part(
    model, explained_prompts, unpadded
):
    """Central differences in a part's log weight, of the answer's sums over its tokens."""
    ids, places, y = unpadded
    step = 1e-4
    root = np.sqrt(1 / 3)
    lowest = np.log(1e-3)
    nodes = lowest * (1 + root) / 2, lowest * (1 - root) / 2

    @eqx.filter_jit
    def losses(model, log_weights, labels):
        def of(log_weights):
            asked = y._replace(log_weights=log_weights, parts=labels)
            x = model.embed(ids)
            return jnp.stack([model.loss(x, asked), model.margin_loss(x, asked)])

        return jax.vmap(of)(log_weights)

    def slopes(log_weight, own):
        inside = np.where(places >= 0, log_weight, 0.0)
        bumps = step * (places[None] == np.arange(RECORDS)[:, None])
        rows = np.concatenate([inside + bumps, inside - bumps])
        labels = places if own else np.full_like(places, -1)
        above, below = np.split(np.asarray(losses(model, *jax.device_put((rows, labels)))), 2)
        return -len(y.targets) * (above - below).T / (2 * step)

    scores = dict(zip(NAMES, explained_prompts[5].scores, strict=True))
    for own, ending in ((False, ""), (True, ", own")):
        weighed = slopes(np.log(0.2), own)
        path = -lowest / 2 * (slopes(nodes[0], own) + slopes(nodes[1], own))
        for row, middle in ((0, ""), (1, ", margin")):
            for name, expected in (("gradient at 0.2", weighed), ("path on 2", path)):
                np.testing.assert_allclose(
                    scores[f"mask-{name}{middle}{ending}"], expected[row], rtol=1e-5, atol=1e-8
                )
    given = scores["mask-gradient at 0.2"]
    other = scores["mask-gradient at 0.2, own"]
    assert np.abs(given - other).max() > 1e-3 * np.abs(given).max()


@pytest.fixture(scope="module")
def learnt(model, explained_prompts, tmp_path_factory):
    """The run with AT2's scores, from how much it was learnt, and the folder of its checkpoint."""
    folder = tmp_path_factory.mktemp("heads")
    run = Run(SETTING, explained_prompts, {"ablations": [1.0, 2]})
    runs, about = learn_heads(model, None, {"some of": run}, folder=folder)
    return runs["some of"], about, folder


@pytest.mark.slow
def test_heads_are_learnt_on_one_half_and_judged_on_the_other(
    model, explained_prompts, learnt, unpadded, attention
):
    run, about, folder = learnt
    lines = (folder / "heads_of_some_of.jsonl").read_text(encoding="utf-8").splitlines()[1:4]
    stored = [one for line in lines for one in json.loads(line)["found"]["prompts"]]
    read = [np.array(one) for _, _, one in stored]
    _, places, y = unpadded
    rows = [head[np.asarray(y.positions)].mean(axis=0) for layer in attention for head in layer]
    expected = np.stack([by_record(row, places) for row in rows], axis=1)
    np.testing.assert_allclose(read[5], expected, rtol=6e-4)
    # Of six prompts of two kinds the first half are 0 and 4, and 1 and 5.
    halves = [[(read[n], explained_prompts[n]) for n in numbers] for numbers in ((0, 4), (1, 5))]
    weights, strength = weights_of_heads(halves)
    assert about == {"prompts": 4, "ablations": 28, "heads": len(rows), "strength": strength}
    for number, (one, before) in enumerate(zip(run.prompts, explained_prompts, strict=True)):
        scores = read[number] @ weights
        np.testing.assert_array_equal(one.scores, [*before.scores, scores])
        np.testing.assert_array_equal(one.drops[:-1], before.drops)
        if number not in (2, 3):
            assert np.isnan(one.drops[-1]).all()
            continue
        prompt = prompt_of(number)
        ids = ids_of(prompt.text)
        for count, drop in zip((1, 3, 5), one.drops[-1], strict=True):
            left = ids_of(ablated_text(prompt, np.argsort(np.argsort(-scores)) >= count))
            value = log_probability(model, left, said_after(model, ids))
            np.testing.assert_allclose(drop, one.log_probability - value, rtol=1e-7, atol=1e-9)
    # Answers of each length compile a program of their own, whose first call has no seconds.
    compiled = len({explained_prompt.tokens for explained_prompt in explained_prompts})
    assert list(run.seconds) == ["ablations", AT2] and run.seconds[AT2][1] == 6 - compiled


@pytest.mark.slow
def test_heads_are_read_once_and_drops_of_other_weights_anew(
    model, explained_prompts, learnt, monkeypatch
):
    run, _, folder = learnt
    read = []
    whole = learnt_heads.Ablated

    def counting(prompts, *rest):
        read.append(len(prompts))
        return whole(prompts, *rest)

    monkeypatch.setattr(learnt_heads, "Ablated", counting)

    def again(explained_prompts):
        given = {"some of": Run(SETTING, explained_prompts, {})}
        return learn_heads(model, None, given, folder=folder)[0]["some of"]

    for ours, theirs in zip(again(explained_prompts).prompts, run.prompts, strict=True):
        np.testing.assert_array_equal(ours.scores, theirs.scores)
        np.testing.assert_array_equal(ours.drops, theirs.drops)
    assert not read
    # Of fewer prompts others rank highest, and without them the two that are judged are read.
    opposite = [
        explained_prompt._replace(values=explained_prompt.values[::-1])
        for explained_prompt in explained_prompts[:4]
    ]
    assert len(again(opposite).prompts) == 4 and read == [2]
    with pytest.raises(ValueError, match="runs: got answers .* from the model's own, expected"):
        again([*explained_prompts[:2], *explained_prompts[4:], *explained_prompts[2:4]])


def heads_example(attention, weights, shift=0.0):
    """A prompt of four parts whose answer hangs on attention alone, and all of its ablations."""
    kept = (np.arange(16)[:, None] >> np.arange(4)) % 2 == 1
    values = -np.log1p(np.exp(-(kept @ attention @ weights + shift)))
    return attention, Explained(True, 1, 9, -1.0, np.ones((1, 4)), np.ones((1, 1)), kept, values)


def test_what_heads_count_is_found_where_answers_hang_on_attention_alone():
    rng = np.random.default_rng(0)
    true = np.array([1.0, -0.5, 0.0, 2.0, 0.7])

    def example():
        attention = rng.dirichlet(np.ones(4), size=5).T
        attention[:, 4] = 0  # a head that reads no part
        attention /= np.linalg.norm(attention @ true)  # so that all logits vary as much
        return heads_example(attention, true, rng.standard_normal())

    weights, strength = weights_of_heads([[example() for _ in range(9)], [example()]])
    assert strength == 0.01
    np.testing.assert_allclose(weights[:4] / weights[0], true[:4], atol=0.05)
    assert weights[4] == 0


def test_kinds_of_prompts_and_prompts_weigh_the_same_whatever_their_numbers():
    """Three of one kind, and one of another, whose logits fall thrice as fast: they balance."""
    attention = np.array([[0.1], [0.2], [0.3], [0.4]])
    ups = 3 * [heads_example(attention, [1.0])]
    down = heads_example(attention, [-3.0])
    np.testing.assert_allclose(weights_of_heads([ups, [down]])[0], 0, atol=1e-12)
    assert weights_of_heads([ups])[0] > 1


@pytest.mark.slow
def test_every_field_is_of_every_prompt_and_chance_is_not_the_ablations(explained_prompts):
    assert len(explained_prompts) == 6
    for explained_prompt in explained_prompts:
        assert explained_prompt.scores.shape == (
            len(NAMES),
            RECORDS,
        ) and explained_prompt.drops.shape == (len(NAMES), 3)
        assert explained_prompt.kept.shape == (7, RECORDS) and explained_prompt.values.shape == (7,)
        back = explained_from_record(json.loads(json.dumps(explained_prompt.record())))
        np.testing.assert_allclose(back.scores, explained_prompt.scores, rtol=1e-6)
        for ours, theirs in zip(
            back._replace(scores=0), explained_prompt._replace(scores=0), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    chance = np.stack(
        [explained_prompt.scores[NAMES.index("random")] for explained_prompt in explained_prompts]
    )
    assert len(np.unique(chance)) == 6 * RECORDS and (0 <= chance).all() and (chance < 1).all()
    # The largest drop of one record is leave-one-out's, and all five are everything.
    drops = np.stack([explained_prompt.drops for explained_prompt in explained_prompts])
    best = drops[:, NAMES.index("leave-one-out"), 0]
    assert (drops[..., 0] <= best[:, None] + 1e-12).all()
    np.testing.assert_allclose(drops[..., 2], drops[:, :1, 2] + np.zeros((6, len(NAMES))))


def test_an_answer_ends_before_what_ends_it(model, monkeypatch):
    """At the second id it is the first alone, and at the first it is that one."""
    ids = ids_of(prompt_of(0).text)
    said = said_after(model, ids)
    assert len(said) == 3 and len(set(said.tolist())) > 1
    explained = []

    def recorded(prompts, answers, *rest):
        explained.append(answers[0].tolist())
        raise KeyboardInterrupt

    monkeypatch.setattr(faithfulness, "Ablated", recorded)
    first = int(said[0])
    other = next(int(one) for one in said if one != said[0])
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


@pytest.mark.slow
def test_a_run_goes_on_and_is_the_beginning_of_a_longer_one(
    model, explained_prompts, checkpoint, monkeypatch
):
    lines = checkpoint.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    checkpoint.write_bytes(b"".join(lines[:3]) + lines[3][:50])
    calls = []
    whole = faithfulness._explain

    def counting(job, prompts, numbers):
        calls.append(numbers)
        return whole(job, prompts, numbers)

    monkeypatch.setattr(faithfulness, "_explain", counting)
    again, seconds = explain_prompts(model, None, SETTING, checkpoint=checkpoint)
    assert calls == [[4, 5]]
    for ours, theirs in zip(again, explained_prompts, strict=True):
        np.testing.assert_array_equal(ours.scores, theirs.scores)
    # Of the chunk that was read back only what followed a compilation has seconds.
    assert seconds["ablations"][1] > 0 and seconds["ablations"][0] > 0

    def first_two(chunks):
        assert len(chunks) == 4
        return chunks[:2]

    # What is left out for want of time is neither made nor given.
    longer = SETTING._replace(prompts=8)
    fewer, _ = explain_prompts(model, None, longer, checkpoint=checkpoint, progress=first_two)
    assert len(calls) == 1 and len(fewer) == 6
    with pytest.raises(ValueError, match="of setting"):
        explain_prompts(model, None, SETTING._replace(tokens=2), checkpoint=checkpoint)
    other = replace(model, embedding_scale=2.0)
    with pytest.raises(ValueError, match="of model"):
        explain_prompts(other, None, SETTING, checkpoint=checkpoint)
    with pytest.raises(ValueError, match="of ids"):
        explain_prompts(model, None, SETTING, end=(3,), checkpoint=checkpoint)


def test_what_is_refused(model, monkeypatch):
    with pytest.raises(ValueError, match="prompts: got 7 of them, 2 at once, expected a multiple"):
        explain_prompts(model, None, SETTING._replace(prompts=7))
    with pytest.raises(ValueError, match="steps: got 3, expected 8, as the package's"):
        explain_prompts(model, None, SETTING._replace(steps=3))
    elsewhere = eqx.tree_at(lambda one: one.embedding, model, None)
    with pytest.raises(ValueError, match="model: got one whose weights are left in their files"):
        explain_prompts(elsewhere, None, SETTING)
    monkeypatch.setitem(sys.modules, "sklearn", None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError, match="faithfulness"):
        explain_prompts(model, None, SETTING)


@pytest.mark.parametrize("settings", [SETTINGS, QUICK])
def test_every_place_is_gold_in_both_halves(settings):
    for setting in settings.values():
        assert setting.prompts % (2 * len(setting.kinds)) == setting.prompts % setting.at_once == 0
        for kind in range(len(setting.kinds)):
            numbers = range(kind, setting.prompts, len(setting.kinds))
            golds = [drawn_prompt(setting, number).gold for number in numbers]
            assert len(set(golds[::2])) >= min(4, len(golds) // 2)
            if isinstance(setting.records, int):
                assert golds[::2] == golds[1::2]


def made_run(setting, seed):
    """Attributions whose scores are the truth with noise: of the ninth variant the least."""
    rng = np.random.default_rng(seed)
    names = [*attributions(setting), AT2]
    prompts = []
    best = names.index(OURS)
    for number in range(setting.prompts):
        truth = rng.standard_normal(RECORDS)
        kept = rng.uniform(size=(7, RECORDS)) < 0.5
        noise = np.where(np.arange(len(names)) == best, 0.01, 3.0)
        scores = truth + noise[:, None] * rng.standard_normal((len(names), RECORDS))
        drops = rng.standard_normal((len(names), len(setting.taken_out)))
        drops[-1] += 0 if number // 2 % 2 else np.nan  # AT2 was learnt there
        prompts.append(
            Explained(rng.uniform() < 0.5, 2, 90, -1.5, scores, drops, kept, kept @ truth)
        )
    seconds = {"word gradients": [6.0, 3], "mask gradients": [10.0, 2], "ablations": [3.0, 60]}
    return Run(setting, prompts, {**seconds, AT2: [7.0, 2]})


class Study(NamedTuple):
    """A run of forty prompts, and what the study says of it and of another."""

    run: Run
    judged: dict[str, Any]

    @property
    def documents(self):
        return self.judged["kinds"]["documents, 10 records"]

    @property
    def other_half(self):
        """The documents' prompts that judge: each fourth, as kinds take turns and halves do."""
        return [self.run.prompts[number] for number in range(3, 40, 4)]

    def correlations(self, name):
        column = NAMES.index(name)
        return np.array(
            [
                stats.spearmanr(row.kept @ row.scores[column], row.values)[0]
                if np.any(row.scores[column])
                else 0.0
                for row in self.other_half
            ]
        )


@pytest.fixture(scope="module")
def of_two_runs():
    setting = SETTING._replace(prompts=40)
    run = made_run(setting, 0)
    # A prompt of the other half, of the second kind, in which it orders nothing: it counts as zero.
    run.prompts[3].scores[NAMES.index(OURS)] = 0
    return Study(run, faithfulness_study({"10 records": run, "sentences": made_run(setting, 1)}))


@pytest.mark.slow
def test_every_kind_of_prompts_of_every_run_is_judged(of_two_runs):
    assert list(of_two_runs.judged["kinds"])[::2] == [
        "keys and values, 10 records",
        "keys and values, sentences",
    ]


@pytest.mark.slow
def test_what_is_judged_can_be_written(of_two_runs):
    judged = of_two_runs.judged
    assert json.loads(json.dumps(judged))["kinds"] == judged["kinds"]


@pytest.mark.slow
def test_a_variant_is_chosen_on_one_half(of_two_runs):
    """Of each variant both halves, and the choice is the highest mean over kinds on the first."""
    chosen = of_two_runs.judged["chosen"]
    assert chosen["mask-gradient"] == OURS
    assert set(chosen) == {"mask-gradient", "mask-path on 2"}
    variants = of_two_runs.documents["variants"]
    means = {
        name: np.mean([one["variants"][name][0] for one in of_two_runs.judged["kinds"].values()])
        for name in variants
        if name.startswith("mask-path")
    }
    assert len(means) == 8
    assert max(means, key=lambda name: means[name]) == chosen["mask-path on 2"]
    assert len(variants) == 3 * 8 + 1


@pytest.mark.slow
def test_a_kind_counts_its_prompts_and_answers(of_two_runs):
    one = of_two_runs.documents
    assert one["judged"] == len(of_two_runs.other_half) == 10
    assert one["prompts"] == 20 and one["parts"] == [5, 5, 5]
    prompts = of_two_runs.run.prompts
    assert one["right"] == np.mean([prompts[number].right for number in range(1, 40, 2)])


@pytest.mark.slow
def test_the_chosen_variant_is_judged_on_the_other_half(of_two_runs):
    value = of_two_runs.documents["measures"]["mask-gradient"]["datamodeling score"]["value"]
    np.testing.assert_allclose(value, np.mean(of_two_runs.correlations(OURS)), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name, column", [("random", NAMES.index("random")), (AT2, -1)])
def test_drops_are_averaged_over_the_other_half(of_two_runs, name, column):
    drops = [row.drops[column, 1] for row in of_two_runs.other_half]
    value = of_two_runs.documents["measures"][name]["top-3 drop"]["value"]
    np.testing.assert_allclose(value, np.mean(drops))


@pytest.mark.slow
def test_the_chosen_variants_lead_has_an_interval(of_two_runs):
    ahead = of_two_runs.correlations(OURS) - of_two_runs.correlations("influence")
    lead = of_two_runs.documents["leads"]["influence"]
    np.testing.assert_allclose(lead["value"], ahead.mean(), atol=1e-12)
    wide = (lead["high"] - lead["low"]) / (2 * 1.96 * ahead.std(ddof=1) / np.sqrt(10))
    assert 0.7 < wide < 1.3


@pytest.mark.slow
def test_costs_are_passes_and_gradients(of_two_runs):
    costs = of_two_runs.documents["costs"]
    assert {name: list(cost.values()) for name, cost in costs.items()} == {
        "influence": [1, 1],
        "influence, margin": [1, 1],
        "gradient times input": [1, 1],
        "gradient times input, size": [1, 1],
        "integrated gradients": [8, 8],
        "attention rollout": [1, 0],
        "leave-one-out": [5, 0],
        "ContextCite on 8": [8, 0],
        "ContextCite on 12": [12, 0],
        "random": [0, 0],
        "AT2": [1, 0],
        "mask-gradient": [1, 1],
        "mask-path on 2": [2, 2],
    }


@pytest.mark.slow
def test_seconds_are_those_of_one_prompt(of_two_runs):
    seconds = of_two_runs.documents["seconds"]
    assert [seconds[name] for name in ("influence", "mask-path on 2", "random", AT2)] == [
        2.0,
        10.0,
        0.0,
        3.5,
    ]
    assert seconds["leave-one-out"] is None
    np.testing.assert_allclose(seconds["ContextCite on 12"], 12 / 20)
