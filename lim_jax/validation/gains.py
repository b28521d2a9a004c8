"""What arms of the validation gain over the plain one, paired by seed."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lim_jax._checks import described, require
from lim_jax.validation.intervals import Interval, paired_interval
from lim_jax.validation.remedies import PLAIN
from lim_jax.validation.retrievers import in_the_middle
from lim_jax.validation.study import BALANCED, LONG

RECORD = ("accuracy", "answer_lim", "risk", "seconds_per_step", "steps")


class Gain(NamedTuple):
    """What an arm has over the plain one: paired by seed, 95 % by Student's t.

    Attributes
    ----------
    accuracy, middle
        Mean accuracy over gold places, and over those at neither edge, after as many steps.
    middle_at_equal_time
        The same in the middle, with the plain arm trained for as many seconds. None where it was
        not trained for that long.
    risk
        Mean cross-entropy on the law of training.
    lim
        Of the answer's influence.
    time
        Seconds a step over those of the plain arm.
    """

    accuracy: Interval
    middle: Interval
    middle_at_equal_time: Interval | None
    risk: Interval
    lim: Interval
    time: float


def gain(
    arm: Mapping[str, Any], plain: Mapping[str, Any], longer: Mapping[str, Any] | None = None
) -> Gain:
    """Compare an arm's record with the plain arm's, from the same networks.

    Parameters
    ----------
    arm, plain
        Entries of ``validate(...)["arms"]`` or ``["variants"]``, of as many steps.
    longer
        The plain arm trained on, for the comparison at equal time.
    """
    for record, name in ((arm, "arm"), (plain, "plain")):
        _require_entries(record, name, RECORD)
    if longer is not None:
        _require_entries(longer, "longer", RECORD)
    ours, theirs = (_last(record) for record in (arm, plain))
    time = arm["seconds_per_step"] / plain["seconds_per_step"]
    reached, at_time = arm["steps"][-1] * time, None
    if longer is not None and reached <= longer["steps"][-1]:
        course = in_the_middle(np.array(longer["accuracy"]))
        there = np.array([np.interp(reached, longer["steps"], one) for one in course.T])
        at_time = paired_interval(ours["middle"] - there)
    apart = {name: paired_interval(ours[name] - theirs[name]) for name in ours}
    return Gain(**apart, middle_at_equal_time=at_time, time=time)


def _require_entries(record: Any, name: str, entries: tuple[str, ...]) -> None:
    """Refuse what is no dictionary with these names."""
    require(
        isinstance(record, Mapping) and all(entry in record for entry in entries),
        name,
        got=described(record),
        expected=f"a dictionary with {', '.join(entries)}",
        cure="Take what validate gives.",
    )


def _last(record: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """By seed, after the last step."""
    accuracy = np.array(record["accuracy"][-1])
    return {
        "accuracy": accuracy.mean(axis=1),
        "middle": in_the_middle(accuracy),
        "risk": np.array(record["risk"][-1]),
        "lim": np.array(record["answer_lim"]),
    }


def compare_arms(results: Mapping[str, Any]) -> dict[str, Gain]:
    """The gain of every arm and variant of ``validate``'s results, each over its own plain arm."""
    _require_entries(results, "results", ("arms", "variants"))
    arms, variants = results["arms"], results["variants"]
    plain, longer = arms[PLAIN], arms[LONG]
    gains = {
        name: gain(arm, plain, longer) for name, arm in arms.items() if name not in (PLAIN, LONG)
    }
    for name, variant in variants.items():
        own = variants.get(f"{name}, {PLAIN}")
        if own is not None:
            gains[name] = gain(variant, own)
        elif not name.endswith(f", {PLAIN}"):
            gains[name] = gain(variant, plain, longer)
    return gains


def gains_on_probes(results: Mapping[str, Any]) -> dict[str, Gain]:
    """The gains of Algorithm 1 on probes and of its variants, those from the same networks."""
    gains, variants = compare_arms(results), results["variants"]
    return {
        name: gains[name]
        for name in (BALANCED, *variants)
        if name in gains and f"{name}, {PLAIN}" not in variants
    }
