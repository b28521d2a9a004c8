"""Results of a study, made by hand of unequal numbers: nothing is trained."""

import numpy as np

from benchmarks.validation.faithfulness import KINDS, FaithfulnessSetting, attribution_costs
from benchmarks.validation.prediction import ATTRIBUTIONS, PROFILE, SCORES
from benchmarks.validation.recalled import RecallSetting
from benchmarks.validation.remedies import ANSWERS, PLAIN, SELECTIVE
from benchmarks.validation.retrieval import RecallTask
from benchmarks.validation.study import BALANCED, BEFORE, LONG, LONGER, SHIFTED, Variant, presets

SEEDS, RECORDS, STAGES, EVERY = 3, 8, 2, 25


def made_arm(seed, *, stages=STAGES, seconds=0.01, operations=1000, after=0.0, explained=True):
    """Accuracy rises by stage; after the last it is `after` higher in the middle still."""
    rng = np.random.default_rng(seed)
    start = np.random.default_rng(0).uniform(0.1, 0.3, (SEEDS, RECORDS))
    course = np.stack([start + 0.05 * stage for stage in range(stages + 1)])
    course[-1, :, 2:6] += after
    channels = rng.uniform(1, 2, (SEEDS, 3, 3))
    verdicts = [
        {"one of them": {"holds": index > 0, "margin": 1.5 + index, "vacuous": False,
                         "concluded": True},
         "another": {"holds": False, "margin": -2.0, "vacuous": True, "concluded": False}}
        for index in range(SEEDS)
    ]  # fmt: skip
    found = {
        "steps": [EVERY * stage for stage in range(stages + 1)],
        "seconds_per_step": seconds,
        "operations": operations,
        "temporary_bytes": 3 * 2**20,
        "accuracy": course.tolist(),
        "risk": rng.uniform(0.1, 0.2, (stages + 1, SEEDS)).tolist(),
        "discrepancy": rng.uniform(0.1, 0.2, (stages + 1, SEEDS)).tolist(),
        "answer_lim": rng.uniform(0, 1, SEEDS).tolist(),
        "answer_total": rng.uniform(1, 2, SEEDS).tolist(),
        "answer_records": rng.uniform(0.5, 1.5, (SEEDS, RECORDS)).tolist(),
        "margin_records": rng.uniform(0.5, 1.5, (SEEDS, RECORDS)).tolist(),
    }
    looked = {
        "channels": channels.tolist(),
        "certificates": verdicts,
        "evidence": rng.uniform(0.1, 0.5, SEEDS).tolist(),
        "hops": rng.dirichlet(np.ones(3), SEEDS).tolist(),
    }
    return found | (looked if explained else {})


def made_predictions():
    return [
        {"attribution": name, "of": of, "score": score, "correlations": [0.1, None, 0.5],
         "interval": {"value": row / 10, "low": row / 10 - 0.3, "high": row / 10 + 0.2},
         "left_out": 1}
        for row, name in enumerate(ATTRIBUTIONS)
        for of in (PROFILE, "at the gold record")
        for score in SCORES
    ]  # fmt: skip


def made_shift(seed):
    """At the length of training, and at twice it."""
    rng = np.random.default_rng(seed)
    return {
        f"{records} records": {
            "accuracy": rng.uniform(size=(SEEDS, records)).tolist(),
            "influence": rng.uniform(0.5, 1.5, (SEEDS, records)).tolist(),
            "predictions": made_predictions(),
        }
        for records in (RECORDS, 2 * RECORDS)
    }


def made_recall(seed, seconds):
    """Accuracy by stage, seed and pair."""
    course = np.random.default_rng(seed).uniform(size=(STAGES + 1, SEEDS, RECORDS))
    return {"steps": [EVERY * stage for stage in range(STAGES + 1)], "seconds_per_step": seconds,
            "accuracy": course.tolist(), "risk": course[..., 0].tolist()}  # fmt: skip


def made_results():
    quick = presets()["quick"]
    setting = next(iter(quick.settings.values()))
    described = {**setting._asdict(), "task": setting.task._asdict()}
    arms = {
        PLAIN: made_arm(1),
        "Algorithm 1": made_arm(2, seconds=0.03, operations=4000, after=0.25),
        ANSWERS: made_arm(3, seconds=0.02, after=0.5),
        LONG: made_arm(4, stages=LONGER * STAGES),
    }
    scored = {"accuracy": arms[PLAIN]["accuracy"][0], **{
        name: arms[PLAIN][name] for name in ("answer_records", "margin_records")
    }}  # fmt: skip
    return {
        "seed": 0,
        "preset": {
            **quick._asdict(),
            "settings": {"8 records": described},
            "variants": {
                "strength 3": Variant(BALANCED, {"strength": 3.0})._asdict(),
                "deeper": Variant(BALANCED, {}, "deeper")._asdict(),
                "from the first step": Variant(SELECTIVE, {}, stages=3)._asdict(),
            },
            "recall": {**RecallSetting()._asdict(), "task": RecallTask(8, 48)._asdict()},
        },
        "settings": {"8 records": scored},
        "predictions": {"8 records": made_predictions()},
        "arms": arms,
        "variants": {
            "strength 3": made_arm(5, seconds=0.04, after=0.1, explained=False),
            "deeper": made_arm(6, seconds=0.06, after=-0.1, explained=False),
            f"deeper, {PLAIN}": made_arm(7, seconds=0.02, explained=False),
            "from the first step": made_arm(11, stages=3, explained=False),
            f"from the first step, {PLAIN}": made_arm(12, stages=3, explained=False),
        },
        "shifts": {name: made_shift(8 + number) for number, name in enumerate((BEFORE, *SHIFTED))},
        "recalls": {PLAIN: made_recall(20, 0.02), SELECTIVE: made_recall(21, 0.03)},
    }


def made_faithfulness():
    """Attributions of answers, judged: every number another."""
    setting = FaithfulnessSetting(prompts=40)
    found = {}
    for shift, kind in enumerate(KINDS):
        measures, leads = {}, {}
        for row, name in enumerate(attribution_costs(setting)):
            value = [1 + 0.1 * row + shift, 2 + 0.1 * row, 3 + 0.1 * row, 0.5 - 0.02 * row]
            lead = [0.3 - 0.1 * row, 0.5, -0.4, 0.044 - 0.02 * row]
            measures[name], leads[name] = (
                {
                    "value": part,
                    "low": [one - wide for one in part],
                    "high": [one + 2 * wide for one in part],
                }
                for part, wide in ((value, 0.04), (lead, 0.03))
            )
        del leads["influence"]
        found[kind] = {
            "prompts": 20 + shift,
            "right": 0.25 + shift / 2,
            "log_probability": -1.25 - shift,
            "costs": {name: one._asdict() for name, one in attribution_costs(setting).items()},
            "measures": measures,
            "leads": leads,
        }
    return {"setting": setting._asdict(), "kinds": found}
