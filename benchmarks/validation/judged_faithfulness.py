"""How faithful attributions are: means over prompts, and a choice that is judged on other prompts.

Of the mask gradient many variants are tried. On prompts of even numbers the best of each family is
chosen, for all kinds of prompts together; all that is said of faithfulness is of the others.
"""

import platform
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from benchmarks.validation.ablation_study import datamodeling_score
from benchmarks.validation.faithfulness import (
    AT2,
    FACTS,
    IN_WORDS,
    LEAVE_ONE_OUT,
    PAIRS,
    PATH,
    ROLLOUT,
    Explained,
    FaithfulnessSetting,
    attributions,
    variants_of,
)
from benchmarks.validation.intervals import bootstrap_interval
from lim_jax.attribution.method import Cost

SCORE = "datamodeling score"
MASK = "mask-gradient"
CENTRED = ", less the mean"
Samples = Mapping[str, Float[np.ndarray, "prompts measures"]]
# At so many records: the method, another, and by how much its score may be lower.
TARGETS = (
    (f"{PAIRS}, 40 records", MASK, "ContextCite on 64", 0.03),
    (f"{PAIRS}, 40 records", "mask-path on 4", "ContextCite on 128", 0.05),
    (f"{PAIRS}, 10 records", "mask-path on 4", LEAVE_ONE_OUT, 0.0),
    (f"{FACTS}, 10 records", "mask-path on 4", LEAVE_ONE_OUT, 0.0),
)


class Run(NamedTuple):
    """What `explain_prompts` gave of a setting, and then `learn_heads`."""

    setting: FaithfulnessSetting
    prompts: Sequence[Explained]
    seconds: Mapping[str, Sequence[float]]


def faithfulness_study(runs: Mapping[str, Run]) -> dict[str, Any]:
    """Judge the attributions of all settings, as plain numbers and strings.

    Parameters
    ----------
    runs
        By the setting's name, with the scores of AT2.
    """
    kinds = {
        f"{kind}, {name}" if kind != name else kind: (name, run._replace(prompts=prompts))
        for name, run in runs.items()
        for kind, prompts in _by_kind(run).items()
    }
    samples = {kind: _samples(run) for kind, (_, run) in kinds.items()}
    chosen = _choose(list(samples.values()), [run.setting for run in runs.values()])
    judged = {kind: _judge(of, chosen) for kind, of in samples.items()}
    return {
        "settings": {name: run.setting._asdict() for name, run in runs.items()},
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "chosen": chosen,
        "targets": _targets(judged),
        "kinds": {
            kind: {"setting": name}
            | _about(run, chosen)
            | _measures_record(judged[kind], run.setting)
            | {"variants": _halves(samples[kind])}
            for kind, (name, run) in kinds.items()
        },
    }


def _by_kind(run: Run) -> dict[str, Sequence[Explained]]:
    kinds = run.setting.kinds
    return {kind: run.prompts[number :: len(kinds)] for number, kind in enumerate(kinds)}


def measures_of(setting: FaithfulnessSetting) -> list[str]:
    """Return what is measured of each prompt, in order."""
    return [*(f"top-{count} drop" for count in setting.taken_out), SCORE]


def _samples(run: Run) -> Samples:
    """Return each prompt's measures by attribution, the score last; also of scores less the mean.

    Only of the mask gradient, for which it is a choice. Ranks, and so drops, are the same.
    """
    rows: dict[str, list[np.ndarray]] = {}
    masks = {variant.name for variant in variants_of(run.setting)}
    for prompt in run.prompts:
        names = [*attributions(run.setting), AT2]
        for name, scores, drops in zip(names, prompt.scores, prompt.drops, strict=True):
            centred = {name + CENTRED: scores - scores.mean()} if name in masks else {}
            for called, scored in ({name: scores} | centred).items():
                score = datamodeling_score(scored, prompt.kept, prompt.values)
                rows.setdefault(called, []).append(np.append(drops, score))
    return {name: np.stack(of) for name, of in rows.items()}


def _families(samples: Samples) -> dict[str, list[str]]:
    """Return the variants of the mask gradient, by what they cost."""
    families: dict[str, list[str]] = {}
    for name in samples:
        if name.startswith(("mask-gradient", "mask-path")):
            families.setdefault(name.partition(",")[0].partition(" at")[0], []).append(name)
    return families


def _choose(samples: Sequence[Samples], settings: Sequence[FaithfulnessSetting]) -> dict[str, str]:
    """Choose of each family the variant whose mean score over kinds is highest, on even prompts."""

    def score(name: str) -> float:
        """Return a variant's mean score on even prompts, over the kinds."""
        return float(np.mean([of[name][::2, -1].mean() for of in samples]))

    return {family: max(names, key=score) for family, names in _families(samples[0]).items()}


def _judge(samples: Samples, chosen: Mapping[str, str]) -> Samples:
    """Return the measures on odd prompts, of each family those of its chosen variant."""
    others = [name for name in samples if not name.startswith("mask-")]
    return {name: samples[chosen.get(name, name)][1::2] for name in (*others, *chosen)}


def _halves(samples: Samples) -> dict[str, list[float]]:
    """Return every variant's mean score on even prompts and on odd ones; of AT2, learnt, too."""
    names = [*sum(_families(samples).values(), []), AT2]
    return {name: [float(samples[name][half::2, -1].mean()) for half in (0, 1)] for name in names}


def _measures_record(judged: Samples, setting: FaithfulnessSetting) -> dict[str, Any]:
    """Return the means, and by how much the mask gradient's score is above each of the others."""
    names = measures_of(setting)
    rows = _intervals(np.stack([*judged.values()], axis=1))
    others = [name for name in judged if name != MASK]
    leads = _leads(judged, [(MASK, name) for name in others])
    return {
        "measures": {
            name: dict(zip(names, row, strict=True)) for name, row in zip(judged, rows, strict=True)
        },
        "leads": dict(zip(others, leads, strict=True)),
    }


def _leads(judged: Samples, pairs: Sequence[tuple[str, str]]) -> list[dict[str, float]]:
    """Return by how much the first one's score is above the other's, paired by prompt."""
    return _intervals(
        np.stack([judged[first][:, -1] - judged[other][:, -1] for first, other in pairs], 1)
    )


def _intervals(samples: Float[np.ndarray, " prompts *shape"]) -> list[Any]:
    """Return the means over prompts, each with the bootstrap's interval."""
    interval = bootstrap_interval(samples)

    def of(*ends: Any) -> Any:
        """Return the interval at each place of nested lists."""
        if isinstance(ends[0], list):
            return [of(*inner) for inner in zip(*ends, strict=True)]
        return dict(zip(interval._fields, ends, strict=True))

    return of(*(end.tolist() for end in interval))


def _targets(judged: Mapping[str, Samples]) -> list[dict[str, Any]]:
    """Return each of `TARGETS` whose prompts there are, with the scores' paired difference."""
    targets = []
    for kind, method, other, allowed in TARGETS:
        if {method, other} <= judged.get(kind, {}).keys():
            about = {"kind": kind, "method": method, "other": other, "allowed": allowed}
            targets.append(about | _leads(judged[kind], [(method, other)])[0])
    return targets


def _about(run: Run, chosen: Mapping[str, str]) -> dict[str, Any]:
    """Return which prompts these are, and what each attribution costs for one of them."""
    parts = [prompt.scores.shape[1] for prompt in run.prompts]
    others = [name for name in attributions(run.setting) if not name.startswith("mask-")]
    names = [*others, AT2, *chosen]
    costs = {name: _cost(name, run.setting, round(float(np.mean(parts)))) for name in names}
    return {
        "prompts": len(run.prompts),
        "judged": len(run.prompts[1::2]),
        "parts": [min(parts), float(np.mean(parts)), max(parts)],
        "length": float(np.mean([prompt.length for prompt in run.prompts])),
        "right": float(np.mean([prompt.right for prompt in run.prompts])),
        "log_probability": float(np.mean([prompt.log_probability for prompt in run.prompts])),
        "costs": {name: cost._asdict() for name, cost in costs.items()},
        "seconds": {name: _seconds(name, cost, run.seconds) for name, cost in costs.items()},
    }


def _cost(name: str, setting: FaithfulnessSetting, parts: int) -> Cost:
    """Return what an attribution takes for one prompt, beside the answer itself."""
    if name in (*IN_WORDS, MASK):
        return Cost(1, 1)
    costs = {PATH: Cost(setting.steps, setting.steps), LEAVE_ONE_OUT: Cost(parts)}
    costs |= {ROLLOUT: Cost(1), AT2: Cost(1)}  # of AT2 when it was learnt
    if name in costs:
        return costs[name]
    number = int(name.rpartition(" ")[2]) if " on " in name else 0
    return Cost(number, number if name.startswith("mask-path") else 0)


def _seconds(name: str, cost: Cost, seconds: Mapping[str, Sequence[float]]) -> float | None:
    """Return the seconds of one prompt, of programs compiled before; None where none was."""
    if cost.total == 0:
        return 0.0
    if name in (PATH, ROLLOUT, AT2):
        number = 1
        of = name
    elif cost.gradients:
        number = cost.gradients
        of = "word gradients" if name in IN_WORDS else "mask gradients"
    else:
        number = cost.passes
        of = LEAVE_ONE_OUT if name == LEAVE_ONE_OUT else "ablations"
    took, things = seconds.get(of, (0.0, 0))
    return number * took / things if things else None
