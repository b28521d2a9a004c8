"""What arms of the validation gain over the plain one, paired by seed."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.validation.intervals import Interval, paired_interval
from benchmarks.validation.remedies import PLAIN
from benchmarks.validation.retrievers import in_the_middle
from benchmarks.validation.study import LONG


class Gain(NamedTuple):
    """What an arm has over the plain one: paired by seed, 95 % by Student's t.

    Attributes
    ----------
    accuracy, middle
        Mean accuracy over gold places, and over those at neither edge, after as many steps.
    middle_at_equal_operations, middle_at_equal_time
        The same in the middle, with the plain arm trained for as many operations of matrix
        products, or seconds. None where it was not trained for that long.
    risk
        Mean cross-entropy on the law of training.
    lim
        Of the answer's influence.
    operations, time
        Of a step, over those of the plain arm's.
    """

    accuracy: Interval
    middle: Interval
    middle_at_equal_operations: Interval | None
    middle_at_equal_time: Interval | None
    risk: Interval
    lim: Interval
    operations: float
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
        The plain arm trained on, for the comparisons at equal operations and at equal time.
    """
    ours, theirs = (_last(record) for record in (arm, plain))
    operations, time = (arm[name] / plain[name] for name in ("operations", "seconds_per_step"))

    def at_equal(cost: float) -> Interval | None:
        """Return the gain over the plain arm after as many steps as an arm's take of its own."""
        steps = arm["steps"][-1] * cost
        if longer is None or steps > longer["steps"][-1]:
            return None
        course = in_the_middle(np.array(longer["accuracy"]))
        there = np.array(
            [np.interp(steps, longer["steps"], course_of_seed) for course_of_seed in course.T]
        )
        return paired_interval(ours["middle"] - there)

    return Gain(
        **{name: paired_interval(ours[name] - theirs[name]) for name in ours},
        middle_at_equal_operations=at_equal(operations),
        middle_at_equal_time=at_equal(time),
        operations=operations,
        time=time,
    )


def _last(record: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return a record's numbers by seed, after the last step."""
    accuracy = np.array(record["accuracy"][-1])
    return {
        "accuracy": accuracy.mean(axis=1),
        "middle": in_the_middle(accuracy),
        "risk": np.array(record["risk"][-1]),
        "lim": np.array(record["answer_lim"]),
    }


def compare_arms(results: Mapping[str, Any]) -> dict[str, Gain]:
    """Return the gain of every arm and variant of ``validate``'s results over its own plain arm."""
    arms = results["arms"]
    variants = results["variants"]
    plain = arms[PLAIN]
    longer = arms[LONG]
    gains = {
        name: gain(arm, plain, longer) for name, arm in arms.items() if name not in (PLAIN, LONG)
    }
    for name, variant in variants.items():
        plain_variant = variants.get(f"{name}, {PLAIN}")
        if plain_variant is not None:
            gains[name] = gain(variant, plain_variant)
        elif not name.endswith(f", {PLAIN}"):
            gains[name] = gain(variant, plain, longer)
    return gains


def gains_on_base(results: Mapping[str, Any]) -> dict[str, Gain]:
    """Return the gains of arms and variants from the first setting's networks, which all share."""
    gains = compare_arms(results)
    variants = results["variants"]
    return {name: each for name, each in gains.items() if f"{name}, {PLAIN}" not in variants}
