"""What training a published model further may give, made by hand of unequal numbers."""

import numpy as np

from benchmarks.validation.remedies import PLAIN
from benchmarks.validation.texts import PromptSetting
from benchmarks.validation.tuned import ALONE, SELECTIVE, Tuning

SEEDS = 3
EVERY = 4
TUNING = Tuning(PromptSetting(8, 16), PromptSetting(9, 9), seeds=SEEDS, stages=2, every=EVERY)
SECONDS = {PLAIN: 2.0, SELECTIVE: 3.0, ALONE: 5.0}  # of a step


def made_tuning():
    """Both are above answers alone at equal steps; all begin alike."""
    rng = np.random.default_rng(1)
    records = {"short": TUNING.short.records, "longer": TUNING.longer.records}
    begun = {name: rng.uniform(0.1, 0.2, (SEEDS, count)) for name, count in records.items()}
    rises = {PLAIN: 0.1, SELECTIVE: 0.2, ALONE: 0.05}

    def scores(arm, length):
        noise = rng.normal(0, 0.01, (2, *begun[length].shape))
        after = [begun[length] + (stage + 1) * rises[arm] + noise[stage] for stage in range(2)]
        accuracy = np.stack([begun[length], *after])
        return {
            "accuracy": accuracy.tolist(),
            "margin": (3 * accuracy).tolist(),
            "cross_entropy": (1 - accuracy).tolist(),
        }

    arms = {
        arm: {
            "steps": [0, EVERY, 2 * EVERY],
            "seconds_per_step": [seconds - 0.5, seconds, seconds + 0.5],
            **{length: scores(arm, length) for length in ("short", "longer")},
        }
        for arm, seconds in SECONDS.items()
    }
    settings = {"short": TUNING.short._asdict(), "longer": TUNING.longer._asdict()}
    return {"tuning": TUNING._asdict() | settings, "trained": 12345, "arms": arms}
