"""What came of ``lim-jax study``, as a page of Markdown: every number is of its results."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from lim_jax.adjoint.ledger import CHANNELS
from lim_jax.report.wording import digits, with_error
from lim_jax.validation.gains import Gain, compare_arms
from lim_jax.validation.intervals import Interval, paired_interval
from lim_jax.validation.prediction import AT_GOLD, NORMALISED, PROFILE, SCORES
from lim_jax.validation.remedies import ANSWERS, PLAIN
from lim_jax.validation.retrievers import in_the_middle
from lim_jax.validation.study import LONG

Record = Mapping[str, Any]


def findings_page(results: Record, figures: Sequence[str] = ()) -> str:
    """Lay out the results of `validation.validate`.

    Parameters
    ----------
    results
        Its results; a part that is missing is left out.
    figures
        Files of figures, which stand at the end.
    """
    gains = compare_arms(results)
    parts = [
        "# Does it matter? Influence, retrieval and the remedies",
        _verdict(results, gains),
        _what_was_run(results["preset"]),
        *_predictions(results["predictions"]),
        "## Do the remedies lift the middle?",
        _arms_table(results["arms"], gains),
        f"{ARMS_NOTE} {_certainty_of_times(results['arms'])}",
        *_why(results["arms"]),
        *_ablations(results["variants"], gains),
        *_shifts(results.get("shifts", {})),
        *_criteria(results["arms"]),
        *(f"![{name}]({name})" for name in figures),
    ]
    return "\n\n".join(parts) + "\n"


ARMS_NOTE = (
    "Gains are over plain training from the same weights on the same batches, paired by seed, with "
    "95 % intervals by Student's t. At equal time the plain arm has trained for as many seconds of "
    "the processor. The middle is every record but the first and the last quarter. Risk is the "
    "cross-entropy on the law of training; LIM is of the answer's influence, the place that asks "
    "left out. Memory is what one seed's gradient takes beside the network and the batch."
)


PREDICTIONS_NOTE = (
    "Spearman's rank correlation, over the records of a context, of each attribution with accuracy "
    "at that gold place: the mean over seeds with its bootstrap interval. The profile is over "
    "examples of all gold places; at the gold record it is that of the record that is asked for."
)
SHIFTS_NOTE = (
    "Networks that count places by turning queries and keys, asked in contexts of as many records "
    "as in training and of twice as many. The last column of each length is Spearman's correlation "
    "of the margin's normalised influence with accuracy, over the records."
)
PROMPTED_NOTE = (
    "Key-value prompts with every gold place in turn; an answer is right where greedy decoding "
    "gives it whole. Errors are standard errors over rounds of prompts, intervals the bootstrap's."
)


def _verdict(results: Record, gains: Mapping[str, Gain]) -> str:
    """What was found, of arms and of variants, and what the best remedy did to the channels."""
    arms, variants = results["arms"], results["variants"]
    parts = [found_in_a_line({name: gain for name, gain in gains.items() if name in arms})]
    varied = {name: gain for name, gain in gains.items() if name in variants}
    if varied:
        steps = _lifting({name: gain.middle for name, gain in varied.items()}, most=3)
        time = _lifting({name: gain.middle_at_equal_time for name, gain in varied.items()}, most=3)
        parts.append(
            f"Of {len(varied)} variants of Algorithm 1 on probes {steps[0] or 'none'} lift it at "
            f"equal steps{steps[1]}, {time[0] or 'none'} at equal time{time[1]}."
        )
    remedies = {name: gains[name].middle for name in arms if name in gains and name != ANSWERS}
    lifting = {name: one.value for name, one in remedies.items() if one.low > 0}
    best = max(lifting, key=lifting.__getitem__, default=None)
    if best is not None and "channels" in arms[best]:
        ours, plain = (_over_boundary(arms[name]) for name in (best, PLAIN))
        moved = " and ".join(
            f"in the {channel} channel {digits(after)} where plain training has {digits(before)}"
            for channel, after, before in zip(CHANNELS[1:], ours, plain, strict=True)
        )
        parts.append(f"After {best} the middle's energy is, over the weaker boundary's, {moved}.")
    return " ".join(parts)


def _over_boundary(record: Record) -> Float[np.ndarray, " channels"]:
    """The middle's energy over the weaker boundary's, of cone and local, averaged over seeds."""
    energies = np.array(record["channels"])[:, :, 1:]  # seeds, regions, channels
    return (energies[:, 1] / np.minimum(energies[:, 0], energies[:, 2])).mean(axis=0)


def found_in_a_line(gains: Mapping[str, Gain]) -> str:
    """The first line: which remedies lift the middle, at equal steps and at equal time.

    The arm that is told the probes' answers is no remedy but what their labels are worth, and is
    not counted.

    Examples
    --------
    >>> one = Interval(0.1, 0.05, 0.15)
    >>> found = Gain(one, one, Interval(0.0, -0.1, 0.1), one, one, time=3.0)
    >>> print(found_in_a_line({"Algorithm 1": found}))
    **At equal steps 1 of 1 remedies lifts the middle (Algorithm 1 +0.10); at equal time none.**
    """
    remedies = {name: gain for name, gain in gains.items() if name != ANSWERS}
    steps = {name: gain.middle for name, gain in remedies.items()}
    time = {name: gain.middle_at_equal_time for name, gain in remedies.items()}
    many = f"{_lifting(steps)[0]} of {len(remedies)} remedies"
    first = f"{many} {'lifts' if _lifting(steps)[0] == 1 else 'lift'} the middle"
    return (
        f"**At equal steps {first}{_lifting(steps)[1]}; "
        f"at equal time {_lifting(time)[0] or 'none'}{_lifting(time)[1]}.**"
    )


def _lifting(intervals: Mapping[str, Interval | None], most: int | None = None) -> tuple[int, str]:
    """How many intervals are above zero, and which; with `most` only the first of them."""
    above = {name: one.value for name, one in intervals.items() if one is not None and one.low > 0}
    ordered = sorted(above.items(), key=lambda item: -item[1])
    named = "; ".join(f"{name} +{value:.2f}" for name, value in ordered[:most])
    return len(above), f" ({named})" if above else ""


def _what_was_run(preset: Record) -> str:
    setting = next(iter(preset["settings"].values()))
    task = setting["task"]
    return (
        f"Networks of {setting['depth']} layers, width {setting['width']}, read {task['records']} "
        f"pairs of a key and a value, then a key, and are asked for its value. They were trained "
        f'for {setting["steps"]} steps on gold places of the law "{setting["law"]}", which '
        f"seldom asks in the middle; then each arm trained them for "
        f"{preset['stages'] * preset['every']} steps more. {preset['seeds']} seeds, "
        f"{preset['test']} test contexts for each gold place."
    )


def _predictions(by_setting: Mapping[str, Sequence[Record]]) -> list[str]:
    """Rank correlations with accuracy over the records, an attribution in each row."""
    parts = ["## Does influence predict retrieval?", PREDICTIONS_NOTE]
    for of in (PROFILE, AT_GOLD):
        chosen = {
            name: [one for one in found if one["of"] == of and one["score"] == SCORES[0]]
            for name, found in by_setting.items()
        }
        names = [one["attribution"] for one in next(iter(chosen.values()))]
        rows = [
            (name, *(_correlation(found[row]) for found in chosen.values()))
            for row, name in enumerate(names)
        ]
        parts.append(_table((of, *chosen), rows))
    return parts


def _correlation(prediction: Record) -> str:
    if prediction["interval"]["value"] is None or np.isnan(prediction["interval"]["value"]):
        return "constant"
    fewer = f", {prediction['left_out']} constant" if prediction["left_out"] else ""
    value, low, high = (prediction["interval"][name] for name in Interval._fields)
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f}){fewer}"


def prompted_page(found: Mapping[str, Record], model: str, figures: Sequence[str] = ()) -> str:
    """Lay out what a published model makes of prompts.

    Parameters
    ----------
    found
        By name of the setting, ``prompted_study(...).record()`` with ``"prompts"`` beside it.
    model
        Its name.
    figures
        Files of figures, which stand at the end.
    """
    parts = [f"# Does influence predict what {model} retrieves?", PROMPTED_NOTE]
    for name, one in found.items():
        parts += [f"## {name}, {one['prompts']} prompts", _by_place(one), _rank_table(one)]
    return "\n\n".join([*parts, *(f"![{name}]({name})" for name in figures)]) + "\n"


def _by_place(found: Record) -> str:
    shown = {
        "accuracy": found["scores"]["accuracy"],
        **{name: found["profile"][name] for name in found["profile"]},
    }
    places = range(1, len(next(iter(shown.values()))["value"]) + 1)
    rows = [(name, *map(with_error, one["value"], one["error"])) for name, one in shown.items()]
    return _table(("by record", *map(str, places)), rows)


def _rank_table(found: Record) -> str:
    names = dict.fromkeys(one["attribution"] for one in found["predictions"])
    columns = [(of, score) for of in (PROFILE, AT_GOLD) for score in SCORES]
    by_key = {(one["attribution"], one["of"], one["score"]): one for one in found["predictions"]}
    rows = [(name, *(_correlation(by_key[name, *key]) for key in columns)) for name in names]
    return _table(("rank correlation", *(f"{of}, {score}" for of, score in columns)), rows)


def _arms_table(arms: Mapping[str, Record], gains: Mapping[str, Gain]) -> str:
    plain = arms[PLAIN]
    head = ("arm", "accuracy", "middle", "gain in the middle, equal steps", "equal time", "risk",
            "LIM", "Z", "Φ of probes", "time a step", "memory, MiB")  # fmt: skip
    rows = [("before", *_standing(plain, 0), "", "", "", "", "", "", "", "")]
    for name, record in arms.items():
        gain = gains.get(name)
        rows.append(
            (
                name, *_standing(record, -1),
                _interval(gain and gain.middle), _interval(gain and gain.middle_at_equal_time),
                _mean(record["risk"][-1]), _mean(record["answer_lim"]),
                _mean(record["answer_total"]), _mean(record["discrepancy"][-1]),
                f"{record['seconds_per_step'] / plain['seconds_per_step']:.1f}",
                digits(record["temporary_bytes"] / 2**20),
            )
        )  # fmt: skip
    return _table(head, rows)


def _certainty_of_times(arms: Mapping[str, Record]) -> str:
    """By the two runs of the plain arm, whose steps are the same."""
    first, second = (arms[name]["seconds_per_step"] for name in (PLAIN, LONG))
    apart = max(first, second) / min(first, second) - 1
    return (
        f"Times are the processor's: the plain arm's two runs differ by {apart:.0%} in the time of "
        "a step, and comparisons at equal time are as uncertain. No interval is corrected for how "
        "many there are."
    )


def _standing(record: Record, stage: int) -> tuple[str, str]:
    accuracy = np.array(record["accuracy"][stage])
    return f"{accuracy.mean():.3f}", f"{in_the_middle(accuracy).mean():.3f}"


def _why(arms: Mapping[str, Record]) -> list[str]:
    """Which channels hold the middle's energy, by arm."""
    rows = []
    for name, record in arms.items():
        if "channels" not in record:
            return []
        energies = np.array(record["channels"])  # seeds, regions, channels
        shares = energies / energies.sum(axis=2, keepdims=True)
        rows.append(
            (
                name,
                *(f"{shares[:, 1, a].mean():.2f}" for a in range(len(CHANNELS))),
                *map(digits, _over_boundary(record)),
            )
        )
    head = ("arm", *(f"{name}, share of the middle" for name in CHANNELS),
            "cone, middle over the weaker boundary", "local, the same")  # fmt: skip
    words = (
        "The residual, cone and local channels of the answer's influence at the input, over the "
        "middle region; a share is of the three energies."
    )
    return ["## Which channel did the arm move?", words, _table(head, rows)]


def _ablations(variants: Mapping[str, Record], gains: Mapping[str, Gain]) -> list[str]:
    rows = [
        (
            name, *_standing(record, -1), _interval(gains[name].middle),
            _interval(gains[name].middle_at_equal_time), f"{gains[name].time:.1f}",
        )
        for name, record in variants.items()
        if name in gains
    ]  # fmt: skip
    head = ("Algorithm 1, probes, with", "accuracy", "middle", "gain in the middle, equal steps",
            "equal time", "time a step")  # fmt: skip
    return ["## Ablations of Algorithm 1 on probes", _table(head, rows)] if rows else []


def _shifts(shifts: Mapping[str, Record]) -> list[str]:
    """Accuracy and rank correlation at the length of training and at twice it."""
    if not shifts:
        return []
    lengths = list(shifts[PLAIN])
    middles = {
        name: [in_the_middle(np.array(found[length]["accuracy"])) for length in lengths]
        for name, found in shifts.items()
    }
    rows = []
    for name, found in shifts.items():
        row = [name]
        for number, length in enumerate(lengths):
            gain = paired_interval(middles[name][number] - middles[PLAIN][number])
            row += [
                f"{np.mean(found[length]['accuracy']):.3f}", f"{middles[name][number].mean():.3f}",
                "" if name == PLAIN else _interval(gain), _of_influence(found[length]),
            ]  # fmt: skip
        rows.append(row)
    parts = ("accuracy", "middle", "middle over plain", "influence and accuracy")
    head = ("network", *(f"{length}: {part}" for length in lengths for part in parts))
    return ["## Position shift", SHIFTS_NOTE, _table(head, rows)]


def _of_influence(found: Record) -> str:
    """The rank correlation of the normalised influence's profile with accuracy."""
    return next(
        _correlation(one)
        for one in found["predictions"]
        if (one["attribution"], one["of"], one["score"]) == (NORMALISED, PROFILE, SCORES[0])
    )


def _criteria(arms: Mapping[str, Record]) -> list[str]:
    """In how many seeds each certificate holds, and how far from it the others are."""
    found = {name: record["certificates"] for name, record in arms.items() if
             "certificates" in record}  # fmt: skip
    if not found:
        return []
    names = list(next(iter(found.values()))[0])
    rows = [
        (arm, *(_certificate([one[name] for one in by_seed]) for name in names))
        for arm, by_seed in found.items()
    ]
    words = (
        "In how many seeds each criterion of the paper holds under the last-token loss, with the "
        "mean margin of its worst inequality (negative: it fails by that much)."
    )
    return ["## Certificates", words, _table(("arm", *names), rows)]


def _certificate(by_seed: Sequence[Record]) -> str:
    held = sum(one["holds"] for one in by_seed)
    vacuous = sum(one["vacuous"] for one in by_seed)
    margins = [one["margin"] for one in by_seed if np.isfinite(one["margin"])]
    margin = f", {digits(np.mean(margins))}" if margins else ""
    return f"{held} of {len(by_seed)}{margin}" + (f", {vacuous} vacuous" if vacuous else "")


def _interval(one: Interval | None) -> str:
    return "" if one is None else f"{one.value:+.3f} ({one.low:+.3f} to {one.high:+.3f})"


def _mean(values: Any) -> str:
    return digits(np.mean(values))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
