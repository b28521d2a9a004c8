"""The study of the remedies: gains by hand, and a run that is taken up where it ended."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.made_results import explanation
from reference.made_study import STAGES, made_arm, made_results
from reference.networks import drawn
from scipy import stats

from benchmarks.validation import accounts, remedies, study
from benchmarks.validation.gains import compare_arms, gain, gains_on_base
from benchmarks.validation.prediction import ATTRIBUTIONS, RecordScores
from benchmarks.validation.recalled import RecallSetting
from benchmarks.validation.remedies import PLAIN, SELECTIVE, Arm
from benchmarks.validation.retrieval import KeyValueTask, RecallTask
from benchmarks.validation.retrievers import PlaceScores, Setting, new_retriever
from benchmarks.validation.study import BALANCED, BASE, LONG, Preset, Variant, presets, validate
from lim_jax.cost import job_cost


def test_a_gain_is_that_of_the_last_step_seed_by_seed():
    arm = made_arm(2, seconds=0.03, after=0.25)
    plain = made_arm(1, after=0.05)
    found = gain(arm, plain)
    ours, theirs = (np.array(record["accuracy"])[-1] for record in (arm, plain))
    np.testing.assert_allclose(found.accuracy.value, (ours - theirs).mean())
    np.testing.assert_allclose(found.middle.value, 0.2)
    np.testing.assert_allclose(found.time, 3)
    risk = np.array(arm["risk"][-1]) - np.array(plain["risk"][-1])
    expected = stats.t.interval(0.95, 2, risk.mean(), stats.sem(risk))
    np.testing.assert_allclose((found.risk.low, found.risk.high), expected)
    lim = np.array(arm["answer_lim"]) - np.array(plain["answer_lim"])
    np.testing.assert_allclose(found.lim.value, lim.mean())
    assert found.middle_at_equal_time is None and found.middle_at_equal_operations is None


@pytest.mark.parametrize("cost, unit", [("seconds", 0.01), ("operations", 1000)])
def test_equal_cost_is_where_plain_training_came_for_as_much(cost, unit):
    """Of a step that costs more, between the plain arm's evaluations."""
    field = {"seconds": "middle_at_equal_time", "operations": "middle_at_equal_operations"}[cost]
    plain = made_arm(1)
    longer = made_arm(4, stages=7)

    def at_equal(costs, after=0.0):
        return gain(made_arm(2, after=after, **{cost: costs * unit}), plain, longer)

    found = at_equal(2.5, after=0.25)
    # 2 stages at 2.5 times the cost are 5 stages, each of which is worth 0.05.
    at_cost = 0.25 + 0.05 * STAGES - 0.05 * 5
    np.testing.assert_allclose(getattr(found, field).value, at_cost)
    ratios = {"seconds": found.time, "operations": found.operations}
    assert ratios == pytest.approx({"seconds": 1, "operations": 1} | {cost: 2.5})
    half = at_equal(2.25)  # 4.5 stages
    np.testing.assert_allclose(getattr(half, field).value, 0.05 * (STAGES - 4.5))
    # Ten stages: plain training was not taken that far.
    assert getattr(at_equal(5), field) is None


def test_arms_and_variants_are_compared_with_their_own_plain_one():
    results = made_results()
    found = compare_arms(results)
    assert set(found) == {
        "Algorithm 1",
        "answers of the probes",
        "strength 3",
        "deeper",
        "from the first step",
    }
    np.testing.assert_allclose(found["deeper"].middle.value, -0.1)
    np.testing.assert_allclose(found["deeper"].time, 3)
    np.testing.assert_allclose(found["strength 3"].time, 4)
    np.testing.assert_allclose(found["Algorithm 1"].operations, 4)
    assert found["deeper"].middle_at_equal_time is None
    assert found["from the first step"].middle_at_equal_operations is None
    # What stands over cost is of the same networks: no other depth, and none before training.
    on_base = gains_on_base(results)
    assert list(on_base) == ["Algorithm 1", "answers of the probes", "strength 3"]
    assert [one.time for one in on_base.values()] == pytest.approx([3, 2, 4])
    assert found["strength 3"].middle_at_equal_time is not None


def test_presets_name_what_there_is():
    for preset in presets().values():
        assert preset.arms[0] == PLAIN and set(preset.arms) <= set(remedies.ARMS)
        for one in preset.variants.values():
            assert one.remedy in remedies.ARMS
            assert one.setting is None or one.setting in preset.settings
    full = presets()["full"]
    assert full.shifted in full.settings and full.settings[full.shifted].rotary
    assert next(iter(full.settings)) == BASE and full.seeds == 5


@pytest.fixture
def promoting():
    with jax.numpy_dtype_promotion("standard"):  # optax promotes
        yield


@pytest.fixture
def explained(monkeypatch):
    """Explanations are tested by themselves; here is what they were asked of."""
    calls = []

    def explain(model, windows, weights, regions, *, key, certificates):
        calls.append((np.asarray(model.embedding), windows.shape, np.flatnonzero(weights)))
        return explanation()

    monkeypatch.setattr(accounts, "explain", explain)
    evidence = lambda setting, models, examples: {"evidence": examples.gold.shape}  # noqa: E731
    monkeypatch.setattr(accounts, "evidence_record", evidence)
    return calls


@pytest.fixture
def shifts(monkeypatch):
    """So are shifts."""
    monkeypatch.setattr(
        study,
        "shift_record",
        lambda setting, models, **options: {"heads": np.asarray(models.head).tolist()},
    )


@pytest.fixture
def recalls(monkeypatch):
    """And networks of many questions."""

    def recall_record(setting, keys, arm, *, test, checkpoint):
        return {"asked": [arm, len(keys), test.gold.shape, checkpoint.name, setting.probes]}

    monkeypatch.setattr(study, "recall_record", recall_record)


@pytest.fixture
def scored(monkeypatch):
    """And what predictions are made of: columns of the embedding stand for it."""

    def record_scores(model, examples):
        left, right = model.embedding[:4, :2].T
        columns: Any = dict.fromkeys(ATTRIBUTIONS, left)
        return RecordScores(columns, columns, PlaceScores(right, right, -right))

    monkeypatch.setattr(study, "record_scores", record_scores)


@pytest.fixture
def counted(monkeypatch):
    """What an arm's gradient costs is known of the first, the plain one, and taken for all."""
    known = []

    def cost(job, *shapes):
        known[:] = known or [job_cost(job, *shapes)]
        return known[0]

    monkeypatch.setattr(study, "job_cost", cost)
    return known


@pytest.fixture
def networks(monkeypatch):
    """And the first training: networks that are drawn, others after steps than before them."""
    asked = []

    def train_retrievers(setting, keys, checkpoint=None):
        asked.append((setting.steps, checkpoint and checkpoint.name))
        return drawn(partial(new_retriever, setting), setting.steps, len(keys)), None

    monkeypatch.setattr(study, "train_retrievers", train_retrievers)
    return asked


@pytest.fixture
def varied(monkeypatch):
    """Arms too: some follow their probes, one does not; the variant is as the arm is."""

    def seen_in(examples):
        ids = examples.window.astype(float)
        return jnp.vdot(ids, ids)  # some operations, to be counted

    def gradient(model, of_probes, batches):
        seen = seen_in(batches.training) + of_probes * seen_in(batches.probes)
        arrays = eqx.filter(model, eqx.is_array)
        return jax.tree.map(lambda leaf: jnp.cos(seen + leaf), arrays), of_probes

    options = {"every": 2, "probes": 1}
    arm = Arm(gradient, np.array(2.0), every=2)
    monkeypatch.setitem(remedies.ARMS, PLAIN, lambda setting: Arm(gradient, np.array(0.0)))
    monkeypatch.setitem(remedies.ARMS, BALANCED, lambda setting, **given: arm)
    monkeypatch.setattr(study, "SHIFTED", (PLAIN, BALANCED))
    study._arm.cache_clear()
    yield options
    study._arm.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("promoting", "scored", "recalls", "shifts")
def test_a_study_goes_on_from_what_is_finished(tmp_path, explained, counted, varied, networks):
    """Networks that are judged and trained further: large programs."""
    setting = Setting(KeyValueTask(4, 5, 3), width=4, heads=1, depth=1, steps=2, batch=2)
    preset = Preset(
        {"first": setting},
        (PLAIN, "Algorithm 1, probes"),
        {"every 2nd step": Variant(BALANCED, varied), "untrained": Variant(BALANCED, {}, stages=2)},
        seeds=2,
        stages=1,
        every=2,
        test=2,
        explained=2,
        shifted="first",
        recall=RecallSetting(RecallTask(2, 8, 3, 2), test=5, probes=7),
    )
    seen: list[str] = []

    def interrupted(names):
        for name in names:
            seen.append(name)
            if len(seen) == 4:
                raise KeyboardInterrupt
            yield name

    with pytest.raises(KeyboardInterrupt):
        validate(preset, folder=tmp_path, progress=interrupted)
    found = validate(preset, folder=tmp_path)
    assert seen == [
        "settings: first",
        "predictions: first",
        "arms: plain",
        "arms: Algorithm 1, probes",
    ]
    # Once before the interruption and once after it, by one file; and before training.
    assert networks == [(2, "first.run")] * 2 + [(0, None)] * 2
    arms = found["arms"]
    assert list(arms) == [PLAIN, "Algorithm 1, probes", LONG]
    # All from the same networks, the longer run by way of the plain one.
    for arm in (*arms.values(), found["variants"]["every 2nd step"]):
        assert arm["accuracy"][0] == arms[PLAIN]["accuracy"][0]
        assert arm["risk"][0] == arms[PLAIN]["risk"][0]
    assert arms[LONG]["risk"][:2] == arms[PLAIN]["risk"]
    assert arms["Algorithm 1, probes"]["risk"][1] != arms[PLAIN]["risk"][1]
    assert len(arms[LONG]["steps"]) == 6
    costs = {(arm["operations"], arm["temporary_bytes"]) for arm in arms.values()}
    # The balanced arm looks at every other step; a look and a plain gradient are counted alike.
    assert costs == {(counted[0].operations, counted[0].temporary)}
    assert counted[0].operations > 0
    # Of the networks, then of each arm's: every seed's own, at the place that asks.
    assert len(explained) == 2 * 4  # and of no variant's
    assert {shape for _, shape, _ in explained} == {(2, 10)}
    assert all(asked.tolist() == [8] for _, _, asked in explained)
    assert len({embedding.tobytes() for embedding, _, _ in explained}) == 8
    columns = [embedding[:4, :2].T for embedding, _, _ in explained[:2]]
    for one in found["predictions"]["first"]:
        correlations = [np.asarray(stats.spearmanr(*pair))[0] for pair in columns]
        np.testing.assert_allclose(one["correlations"], correlations)
    made = explanation()
    assert arms[PLAIN]["channels"] == 2 * [made.regional.energies.tolist()]
    assert arms[PLAIN]["evidence"] == [2, 1]
    one = arms[PLAIN]["certificates"][1]["one of them"]
    assert one == {
        "holds": False,
        "margin": pytest.approx(1 / 3 - 0.1),
        "vacuous": True,
        "concluded": True,
    }
    # Of the same networks before, and of each seed after either arm.
    shifted = found["shifts"]
    assert list(shifted) == ["before", PLAIN, "Algorithm 1, probes"]
    heads = [np.array(one["heads"]) for one in shifted.values()]
    assert all(len(head) == 2 for head in heads) and len({head.tobytes() for head in heads}) == 3
    assert {name: one["asked"] for name, one in found["recalls"].items()} == {
        PLAIN: [PLAIN, 2, [5, 2], "recall_plain.run", 7],
        SELECTIVE: [SELECTIVE, 2, [5, 2], "recall_selective-own_answers.run", 7],
    }
    assert found["preset"]["recall"]["task"]["length"] == 8
    assert validate(preset, folder=tmp_path) == found
    with pytest.raises(ValueError, match="study.json"):
        validate(preset, folder=tmp_path, seed=1)
    assert set(compare_arms(found)) == {"Algorithm 1, probes", "every 2nd step", "untrained"}
    # From networks before training, beside a plain arm from the same.
    first, plain = (found["variants"][name] for name in ("untrained", "untrained, plain"))
    assert first["risk"][0] == plain["risk"][0] != arms[PLAIN]["risk"][0]
    assert first["steps"] == plain["steps"] == [0, 2, 4] and first["risk"][1] != plain["risk"][1]
    assert found["variants"]["every 2nd step"]["risk"] == arms["Algorithm 1, probes"]["risk"]
