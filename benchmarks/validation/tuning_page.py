"""What came of training a published model further, as a page of Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.validation.findings_page import markdown_table, page_of
from benchmarks.validation.intervals import interval_words
from benchmarks.validation.remedies import PLAIN, UNTIL
from benchmarks.validation.retrievers import in_the_middle
from benchmarks.validation.tuned import (
    ALONE,
    AT_EQUAL_STEPS,
    AT_EQUAL_TIME,
    BEFORE,
    SELECTIVE,
    TuningGain,
    tuning_gains,
)
from lim_jax.report.wording import digits

Record = Mapping[str, Any]
NOTE = (
    "An answer is right if greedy decoding gives it whole. Means are over seeds and places; the "
    "middle leaves out the first and the last quarter. Gains are in mean accuracy, paired by seed, "
    "with 95 % intervals by Student's t: wide, of few seeds, not corrected for how many there are. "
    "At equal time plain training has taken as many CPU seconds, between two of its stages; the "
    "gain is left out where it did not train for so long."
)


def tuning_page(results: Record, model: str, figures: Sequence[str] = ()) -> str:
    """Lay out the results of `tune`.

    Parameters
    ----------
    results
        Its results.
    model
        The model's name.
    figures
        Files of figures, which stand at the end.
    """
    parts = [
        f"# Does {model} learn more where it is told where the evidence stands?",
        _verdict(results),
        _what_was_run(results),
        NOTE,
    ]
    for length in ("short", "longer"):
        records = results["tuning"][length]["records"]
        parts += [
            f"## {records} records",
            _gains_table(results, length),
            f"Accuracy by gold place, after {_last_step(results)} steps:",
            _places_table(results, length),
        ]
    return page_of(parts, figures, " --model MODEL --train")


def _verdict(results: Record) -> str:
    """Say what was found on prompts as in training, in bold, and on longer ones."""
    first, second = (_findings(results, length) for length in ("short", "longer"))
    return f"**{first}** {second}"


def _findings(results: Record, length: str) -> str:
    """Say where each arm ends, and after which stages intervals tell it from its counterpart."""
    arms = results["arms"]
    records = results["tuning"][length]["records"]
    accuracy = {name: np.array(arm[length]["accuracy"]) for name, arm in arms.items()}
    ends = {name: f"{course[-1].mean():.2f}" for name, course in accuracy.items()}
    alone = _when_apart(results, ALONE, BEFORE, length)
    by_steps, by_time = (
        _when_apart(results, SELECTIVE, over, length) for over in (AT_EQUAL_STEPS, AT_EQUAL_TIME)
    )
    ours = f"{by_steps} at equal steps, and {by_time} at equal time"
    if by_steps == by_time:
        ours = f"{by_steps} at equal steps and at equal time"
    return (
        f"On {records} records answers at the edges alone take accuracy from "
        f"{accuracy[PLAIN][0].mean():.2f} to {ends[PLAIN]} in {_last_step(results)} steps, "
        f"evidence alone, which tells no answer, to {ends[ALONE]}, and both to {ends[SELECTIVE]}. "
        f"Compared with the start, evidence alone is {alone}; compared with answers alone, "
        f"both are {ours}."
    )


def _when_apart(results: Record, arm: str, over: str, length: str) -> str:
    """Say after which steps an interval of mean accuracy is above zero, or below."""
    gains = tuning_gains(results, arm, over, length=length)
    above = [steps for steps, gain in gains.items() if gain.accuracy.low > 0]
    below = [steps for steps, gain in gains.items() if gain.accuracy.high < 0]
    parts = [
        f"{word} after {_enumerate(stages)} steps"
        for word, stages in (("higher", above), ("lower", below))
        if stages
    ]
    return " and ".join(parts) or "not told apart"


def _enumerate(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _last_step(results: Record) -> int:
    return results["arms"][PLAIN]["steps"][-1]


def _what_was_run(results: Record) -> str:
    tuning = results["tuning"]
    short = tuning["short"]
    longer = tuning["longer"]
    layers = "all layers" if tuning["last"] is None else f"the last {tuning['last']} layers"
    return (
        f"{results['trained']:,} numbers train by Adam at a rate of {tuning['rate']:g}: the norms' "
        f"scales and the query and key matrices of {layers}. A step of plain training "
        f"sees {tuning['batch']} prompts of {short['records']} records with their answers; the "
        f"record that holds the answer is at the edges. A step of {ALONE} sees "
        f"{tuning['probes']} whose gold record is anywhere, and which it is: the loss is minus the "
        f"logarithm of that record's density of the influence on the model's own first word, at "
        f"strength {tuning['strength']:g}, its gradient clipped at {UNTIL:g}. A step of "
        f"{SELECTIVE} sees both. {tuning['seeds']} seeds have their own prompts; the model is "
        f"asked {short['prompts']} of {short['records']} records, and {longer['prompts']} of "
        f"{longer['records']}, longer than those of training."
    )


def _gains_table(results: Record, length: str) -> str:
    """Return every arm after every stage."""
    head = ("arm", "steps", "seconds", "accuracy", "middle", "cross-entropy",
            "gain over before", "over plain, equal steps", "equal time")  # fmt: skip
    rows = []
    for name, arm in results["arms"].items():
        gains = [
            tuning_gains(results, name, over, length=length)
            for over in (BEFORE, AT_EQUAL_STEPS, AT_EQUAL_TIME)
        ]
        for stage, steps in enumerate(arm["steps"]):
            if stage == 0 and name != PLAIN:
                continue
            accuracy = np.array(arm[length]["accuracy"][stage])
            entropy = np.mean(arm[length]["cross_entropy"][stage])
            gains_of_stage = gains if name != PLAIN else gains[:1]
            rows.append(
                (
                    name if stage else BEFORE,
                    str(steps),
                    digits(steps * np.mean(arm["seconds_per_step"])),
                    f"{accuracy.mean():.3f}",
                    f"{in_the_middle(accuracy).mean():.3f}",
                    digits(entropy),
                    *(_gain_cell(each.get(steps)) for each in gains_of_stage),
                    *([""] * (3 - len(gains_of_stage))),
                )
            )
    return markdown_table(head, rows)


def _gain_cell(gain: TuningGain | None) -> str:
    return interval_words(None if gain is None else gain.accuracy)


def _places_table(results: Record, length: str) -> str:
    arms = results["arms"]
    records = results["tuning"][length]["records"]
    before = np.mean(arms[PLAIN][length]["accuracy"][0], axis=0)
    rows = [(BEFORE, *(f"{value:.2f}" for value in before))]
    for name, arm in arms.items():
        after = np.mean(arm[length]["accuracy"][-1], axis=0)
        rows.append((name, *(f"{value:.2f}" for value in after)))
    return markdown_table(("by place", *map(str, range(1, records + 1))), rows)
