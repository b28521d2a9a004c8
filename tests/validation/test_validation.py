"""The study of the remedies: gains by hand, and a run that is taken up where it ended."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
    difference = gain(arm, plain)
    ours, theirs = (np.array(record["accuracy"])[-1] for record in (arm, plain))
    np.testing.assert_allclose(difference.accuracy.value, (ours - theirs).mean())
    np.testing.assert_allclose(difference.middle.value, 0.2)
    np.testing.assert_allclose(difference.time, 3)
    risk = np.array(arm["risk"][-1]) - np.array(plain["risk"][-1])
    expected = stats.t.interval(0.95, 2, risk.mean(), stats.sem(risk))
    np.testing.assert_allclose((difference.risk.low, difference.risk.high), expected)
    lim = np.array(arm["answer_lim"]) - np.array(plain["answer_lim"])
    np.testing.assert_allclose(difference.lim.value, lim.mean())
    assert difference.middle_at_equal_time is None and difference.middle_at_equal_operations is None


@pytest.mark.parametrize("cost, unit", [("seconds", 0.01), ("operations", 1000)])
def test_equal_cost_is_where_plain_training_came_for_as_much(cost, unit):
    """Of a step that costs more, between the plain arm's evaluations."""
    field = {"seconds": "middle_at_equal_time", "operations": "middle_at_equal_operations"}[cost]
    plain = made_arm(1)
    longer = made_arm(4, stages=7)

    def at_equal(costs, after=0.0):
        return gain(made_arm(2, after=after, **{cost: costs * unit}), plain, longer)

    gains = at_equal(2.5, after=0.25)
    # 2 stages at 2.5 times the cost are 5 stages, each of which is worth 0.05.
    at_cost = 0.25 + 0.05 * STAGES - 0.05 * 5
    np.testing.assert_allclose(getattr(gains, field).value, at_cost)
    ratios = {"seconds": gains.time, "operations": gains.operations}
    assert ratios == pytest.approx({"seconds": 1, "operations": 1} | {cost: 2.5})
    half = at_equal(2.25)  # 4.5 stages
    np.testing.assert_allclose(getattr(half, field).value, 0.05 * (STAGES - 4.5))
    # Ten stages: plain training was not taken that far.
    assert getattr(at_equal(5), field) is None


def test_arms_and_variants_are_compared_with_their_own_plain_one():
    results = made_results()
    comparison = compare_arms(results)
    assert set(comparison) == {
        "Algorithm 1",
        "answers of the probes",
        "strength 3",
        "deeper",
        "from the first step",
    }
    np.testing.assert_allclose(comparison["deeper"].middle.value, -0.1)
    np.testing.assert_allclose(comparison["deeper"].time, 3)
    np.testing.assert_allclose(comparison["strength 3"].time, 4)
    np.testing.assert_allclose(comparison["Algorithm 1"].operations, 4)
    assert comparison["deeper"].middle_at_equal_time is None
    assert comparison["from the first step"].middle_at_equal_operations is None
    # What stands over cost is of the same networks: no other depth, and none before training.
    on_base = gains_on_base(results)
    assert list(on_base) == ["Algorithm 1", "answers of the probes", "strength 3"]
    assert [one.time for one in on_base.values()] == pytest.approx([3, 2, 4])
    assert comparison["strength 3"].middle_at_equal_time is not None


def test_presets_name_what_there_is():
    for preset in presets().values():
        assert preset.arms[0] == PLAIN and set(preset.arms) <= set(remedies.ARMS)
        for variant in preset.variants.values():
            assert variant.remedy in remedies.ARMS
            assert variant.setting is None or variant.setting in preset.settings
    full = presets()["full"]
    assert full.shifted in full.settings and full.settings[full.shifted].rotary
    assert next(iter(full.settings)) == BASE and full.seeds == 5


# One study that is interrupted and goes on, of which each test below holds something.
# Explanations, shifts, recalls and the first training, which other tests hold, are replaced.


@pytest.fixture(scope="module")
def patched():
    with pytest.MonkeyPatch.context() as patched:
        yield patched


@pytest.fixture(scope="module")
def explained(patched):
    """Which networks, windows and places explanations were asked of."""
    calls = []

    def explain(model, windows, weights, regions, *, key, certificates):
        calls.append((np.asarray(model.embedding), windows.shape, np.flatnonzero(weights)))
        return explanation()

    patched.setattr(accounts, "explain", explain)
    evidence = lambda setting, models, examples: {"evidence": examples.gold.shape}  # noqa: E731
    patched.setattr(accounts, "evidence_record", evidence)
    return calls


@pytest.fixture(scope="module")
def shifts(patched):
    """A shift's record is which networks it is of."""
    patched.setattr(
        study,
        "shift_record",
        lambda setting, models, **options: {"heads": np.asarray(models.head).tolist()},
    )


@pytest.fixture(scope="module")
def recalls(patched):
    """A record of networks of many questions is what was asked for."""

    def recall_record(setting, keys, arm, *, test, checkpoint):
        return {"asked": [arm, len(keys), test.gold.shape, checkpoint.name, setting.probes]}

    patched.setattr(study, "recall_record", recall_record)


@pytest.fixture(scope="module")
def scored(patched):
    """Columns of the embedding stand for what predictions are made of."""

    def record_scores(model, examples):
        left, right = model.embedding[:4, :2].T
        columns: Any = dict.fromkeys(ATTRIBUTIONS, left)
        return RecordScores(columns, columns, PlaceScores(right, right, -right))

    patched.setattr(study, "record_scores", record_scores)


@pytest.fixture(scope="module")
def counted(patched):
    """What an arm's gradient costs is known of the first, the plain one, and taken for all."""
    known = []

    def cost(job, *shapes):
        known[:] = known or [job_cost(job, *shapes)]
        return known[0]

    patched.setattr(study, "job_cost", cost)
    return known


@pytest.fixture(scope="module")
def trained(patched):
    """For how many steps and by which file networks were trained: they are drawn, by the steps."""
    calls = []

    def train_retrievers(setting, keys, checkpoint=None):
        calls.append((setting.steps, checkpoint and checkpoint.name))
        return drawn(partial(new_retriever, setting), setting.steps, len(keys)), None

    patched.setattr(study, "train_retrievers", train_retrievers)
    return calls


@pytest.fixture(scope="module")
def arms(patched):
    """Some arms follow their probes, one does not; a variant is as its arm is."""

    def seen_in(examples):
        ids = examples.window.astype(float)
        return jnp.vdot(ids, ids)  # some operations, to be counted

    def gradient(model, of_probes, batches):
        seen = seen_in(batches.training) + of_probes * seen_in(batches.probes)
        arrays = eqx.filter(model, eqx.is_array)
        return jax.tree.map(lambda leaf: jnp.cos(seen + leaf), arrays), of_probes

    arm = Arm(gradient, np.array(2.0), every=2)
    patched.setitem(remedies.ARMS, PLAIN, lambda setting: Arm(gradient, np.array(0.0)))
    patched.setitem(remedies.ARMS, BALANCED, lambda setting, **given: arm)
    patched.setattr(study, "SHIFTED", (PLAIN, BALANCED))
    study._arm.cache_clear()
    yield
    study._arm.cache_clear()


PRESET = Preset(
    {"first": Setting(KeyValueTask(4, 5, 3), width=4, heads=1, depth=1, steps=2, batch=2)},
    (PLAIN, BALANCED),
    {
        "every 2nd step": Variant(BALANCED, {"every": 2, "probes": 1}),
        "untrained": Variant(BALANCED, {}, stages=2),
    },
    seeds=2,
    stages=1,
    every=2,
    test=2,
    explained=2,
    shifted="first",
    recall=RecallSetting(RecallTask(2, 8, 3, 2), test=5, probes=7),
)


def run_study(folder, **options):
    with jax.numpy_dtype_promotion("standard"):  # optax promotes
        return validate(PRESET, folder=folder, **options)


class Finished(NamedTuple):
    """A study's folder and numbers, and what it did until it was interrupted in its fourth part."""

    folder: Path
    numbers: dict[str, Any]
    begun: list[str]

    @property
    def arms(self):
        return self.numbers["arms"]

    @property
    def variants(self):
        return self.numbers["variants"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, explained, shifts, recalls, scored, counted, trained, arms):
    """Networks that are judged and trained further: large programs."""
    folder = tmp_path_factory.mktemp("study")
    begun: list[str] = []

    def interrupted(names):
        for name in names:
            begun.append(name)
            if len(begun) == 4:
                raise KeyboardInterrupt
            yield name

    with pytest.raises(KeyboardInterrupt):
        run_study(folder, progress=interrupted)
    return Finished(folder, run_study(folder), begun)


@pytest.mark.slow
def test_a_study_goes_on_from_what_is_finished(finished, trained):
    assert finished.begun == [
        "settings: first",
        "predictions: first",
        "arms: plain",
        "arms: Algorithm 1, probes",
    ]
    # Once before the interruption and once after it, by one file; and before training.
    assert trained == [(2, "first.run")] * 2 + [(0, None)] * 2
    assert run_study(finished.folder) == finished.numbers


@pytest.mark.slow
def test_a_study_does_not_go_on_from_another_seeds(finished):
    with pytest.raises(ValueError, match="study.json"):
        run_study(finished.folder, seed=1)


@pytest.mark.slow
def test_arms_and_variants_begin_with_the_same_networks(finished):
    """The longer run by way of the plain one."""
    arms = finished.arms
    assert list(arms) == [PLAIN, "Algorithm 1, probes", LONG]
    for arm in (*arms.values(), finished.variants["every 2nd step"]):
        assert arm["accuracy"][0] == arms[PLAIN]["accuracy"][0]
        assert arm["risk"][0] == arms[PLAIN]["risk"][0]
    assert arms[LONG]["risk"][:2] == arms[PLAIN]["risk"]
    assert arms["Algorithm 1, probes"]["risk"][1] != arms[PLAIN]["risk"][1]
    assert len(arms[LONG]["steps"]) == 6


@pytest.mark.slow
def test_a_look_and_a_plain_gradient_cost_alike(finished, counted):
    """The balanced arm looks at every other step."""
    costs = {(arm["operations"], arm["temporary_bytes"]) for arm in finished.arms.values()}
    assert costs == {(counted[0].operations, counted[0].temporary)}
    assert counted[0].operations > 0


@pytest.mark.slow
def test_networks_are_explained_before_and_after_each_arm_at_the_place_that_asks(
    finished, explained
):
    """Every seed's own, and of no variant's."""
    assert len(explained) == 2 * 4
    assert {shape for _, shape, _ in explained} == {(2, 10)}
    assert all(asked.tolist() == [8] for _, _, asked in explained)
    assert len({embedding.tobytes() for embedding, _, _ in explained}) == 8


@pytest.mark.slow
def test_predictions_are_ranked_seed_by_seed(finished, explained):
    columns = [embedding[:4, :2].T for embedding, _, _ in explained[:2]]
    for prediction in finished.numbers["predictions"]["first"]:
        correlations = [np.asarray(stats.spearmanr(*pair))[0] for pair in columns]
        np.testing.assert_allclose(prediction["correlations"], correlations)


@pytest.mark.slow
def test_an_arm_keeps_its_channels_evidence_and_certificates(finished):
    plain = finished.arms[PLAIN]
    assert plain["channels"] == 2 * [explanation().regional.energies.tolist()]
    assert plain["evidence"] == [2, 1]
    assert plain["certificates"][1]["one of them"] == {
        "holds": False,
        "margin": pytest.approx(1 / 3 - 0.1),
        "vacuous": True,
        "concluded": True,
    }


@pytest.mark.slow
def test_shifts_are_of_each_seed_before_and_after_either_arm(finished):
    shifted = finished.numbers["shifts"]
    assert list(shifted) == ["before", PLAIN, "Algorithm 1, probes"]
    heads = [np.array(one["heads"]) for one in shifted.values()]
    assert all(len(head) == 2 for head in heads) and len({head.tobytes() for head in heads}) == 3


@pytest.mark.slow
def test_networks_of_many_questions_are_asked_of_each_arm_by_a_file(finished):
    assert {name: one["asked"] for name, one in finished.numbers["recalls"].items()} == {
        PLAIN: [PLAIN, 2, [5, 2], "recall_plain.run", 7],
        SELECTIVE: [SELECTIVE, 2, [5, 2], "recall_selective-own_answers.run", 7],
    }
    assert finished.numbers["preset"]["recall"]["task"]["length"] == 8


@pytest.mark.slow
def test_a_variant_of_untrained_networks_has_a_plain_arm_from_the_same(finished):
    first, plain = (finished.variants[name] for name in ("untrained", "untrained, plain"))
    assert first["risk"][0] == plain["risk"][0] != finished.arms[PLAIN]["risk"][0]
    assert first["steps"] == plain["steps"] == [0, 2, 4] and first["risk"][1] != plain["risk"][1]


@pytest.mark.slow
def test_variants_are_trained_as_their_arms_and_compared(finished):
    variant = finished.variants["every 2nd step"]
    assert variant["risk"] == finished.arms["Algorithm 1, probes"]["risk"]
    compared = compare_arms(finished.numbers)
    assert set(compared) == {"Algorithm 1, probes", "every 2nd step", "untrained"}
