"""Results of a study, made by hand of unequal numbers: nothing is trained."""

import numpy as np

from benchmarks.validation.faithfulness import QUICK
from benchmarks.validation.prediction import ATTRIBUTIONS, PROFILE, SCORES
from benchmarks.validation.recalled import RecallSetting
from benchmarks.validation.remedies import ANSWERS, PLAIN, SELECTIVE
from benchmarks.validation.retrieval import RecallTask
from benchmarks.validation.study import BALANCED, BEFORE, LONG, LONGER, SHIFTED, Variant, presets

SEEDS = 3
RECORDS = 8
STAGES = 2
EVERY = 25


def made_arm(seed, *, stages=STAGES, seconds=0.01, operations=1000, after=0.0, explained=True):
    """Accuracy rises by stage; after the last it is `after` higher in the middle still."""
    rng = np.random.default_rng(seed)
    start = np.random.default_rng(0).uniform(0.1, 0.3, (SEEDS, RECORDS))
    course = np.stack([start + 0.05 * stage for stage in range(stages + 1)])
    course[-1, :, 2:6] += after
    channels = rng.uniform(1, 2, (SEEDS, 3, 3))
    verdicts = [
        {
            "one of them": {
                "holds": index > 0,
                "margin": 1.5 + index,
                "vacuous": False,
                "concluded": True,
            },
            "another": {"holds": False, "margin": -2.0, "vacuous": True, "concluded": False},
        }
        for index in range(SEEDS)
    ]
    arm = {
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
    return arm | (looked if explained else {})


def made_predictions(more=0.0):
    return [
        {
            "attribution": name,
            "of": of,
            "score": score,
            "correlations": [0.1, None, 0.5],
            "interval": {
                "value": row / 10 + more,
                "low": row / 10 + more - 0.3,
                "high": row / 10 + more + 0.2,
            },
            "left_out": 1,
        }
        for row, name in enumerate(ATTRIBUTIONS)
        for of in (PROFILE, "at the gold record")
        for score in SCORES
    ]


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
    return {
        "steps": [EVERY * stage for stage in range(STAGES + 1)],
        "seconds_per_step": seconds,
        "accuracy": course.tolist(),
        "risk": course[..., 0].tolist(),
    }


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
    scored = {
        "accuracy": arms[PLAIN]["accuracy"][0],
        **{name: arms[PLAIN][name] for name in ("answer_records", "margin_records")},
    }
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


COSTS = {
    "influence": (1, 1), "integrated gradients": (8, 8), "leave-one-out": (10, 0),
    "ContextCite on 32": (32, 0), "ContextCite on 64": (64, 0), "random": (0, 0),
    "mask-gradient": (1, 1), "mask-path on 4": (4, 4), "AT2": (1, 0),
}  # fmt: skip
TRIED = (
    "mask-gradient at 1", "mask-gradient at 0.2", "mask-gradient at 0.2, own",
    "mask-gradient at 1, own", "mask-path on 4", "mask-path on 4, own", "AT2",
)  # fmt: skip


def made_measures(shift):
    """Each attribution's measures: the later in the table, the larger its drops."""
    measures = {}
    for row, name in enumerate(COSTS):
        drops = {
            f"top-{count} drop": 1 + shift + count + 0.1 * row for count in [1, 3, 5][: 3 - shift]
        }
        values = drops | {"datamodeling score": 0.5 - 0.02 * row}
        measures[name] = {measure: _interval(value, 0.04) for measure, value in values.items()}
    return measures


def made_leads():
    """How far the chosen mask gradient is ahead of every other."""
    leads = {name: _interval(0.05 - 0.03 * row, 0.03) for row, name in enumerate(COSTS)}
    del leads["mask-gradient"]
    return leads


def made_kind(shift):
    """What was found on prompts of one kind, of which the second's numbers are shifted by one."""
    return {
        "setting": ("10 records", "sentences")[shift],
        "prompts": 40 + shift,
        "judged": 20 + shift,
        "parts": [10, 10.0, 10] if shift == 0 else [60, 71.6, 90],
        "length": 130.4,
        "right": 0.25 + shift / 2,
        "log_probability": -1.25 - shift,
        "costs": {
            name: {"passes": passes, "gradients": gradients}
            for name, (passes, gradients) in COSTS.items()
        },
        "seconds": {
            name: None if name == "leave-one-out" else 0.25 * sum(cost)
            for name, cost in COSTS.items()
        },
        "measures": made_measures(shift),
        "leads": made_leads(),
        "variants": {name: [0.5 + n / 100, 0.6 + n / 100] for n, name in enumerate(TRIED)},
    }


def made_targets():
    """An aim that surely holds, one that holds but not surely, and one that surely fails."""
    aims = {"method": "mask-gradient", "other": "ContextCite on 64", "allowed": 0.03}
    return [
        {"kind": "one", **aims, "value": -0.02, "low": -0.025, "high": 0.0},
        {"kind": "two", **aims, "value": -0.02, "low": -0.035, "high": 0.0},
        {"kind": "three", **aims | {"allowed": 0.0}, "value": -0.04, "low": -0.08, "high": -0.01},
    ]


def made_faithfulness():
    """Attributions of answers, judged: every number another."""
    return {
        "settings": {name: QUICK[name]._asdict() for name in ("10 records", "sentences")},
        "python": "3.12.3",
        "device": "NVIDIA H100 80GB HBM3",
        "chosen": {
            "mask-gradient": "mask-gradient at 0.2",
            "mask-path on 4": "mask-path on 4, own",
        },
        "learnt": {"prompts": 84, "ablations": 1968, "heads": 270, "strength": 3.1623},
        "targets": made_targets(),
        "kinds": {"keys and values, 10 records": made_kind(0), "sentences": made_kind(1)},
    }


def _interval(value, wide):
    return {"value": value, "low": value - wide, "high": value + 2 * wide}
