"""What came of the study, as a page of Markdown: every number is of its results."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from benchmarks.validation.gains import Gain, compare_arms
from benchmarks.validation.intervals import Interval, paired_interval
from benchmarks.validation.intervals import interval_words as _interval
from benchmarks.validation.prediction import AT_GOLD, NORMALISED, PROFILE, SCORES
from benchmarks.validation.recalled import recall_gains
from benchmarks.validation.remedies import PLAIN, SELECTIVE, TOLD
from benchmarks.validation.retrievers import in_the_middle
from benchmarks.validation.study import BEFORE, LONG
from lim_jax.adjoint.ledger import CHANNELS
from lim_jax.plots.figure_style import save_figure
from lim_jax.report.wording import digits, with_error
from lim_jax.results.tables import write_json

Record = Mapping[str, Any]


def findings_page(results: Record, figures: Sequence[str] = ()) -> str:
    """Lay out the results of `validate`.

    Parameters
    ----------
    results
        Its results; a part that is missing is left out.
    figures
        Files of figures, which stand at the end.
    """
    gains = compare_arms(results)
    arms = results["arms"]
    parts = [
        "# Does it matter? Influence, retrieval and the remedies",
        _verdict(results, gains),
        _arms_table(arms, gains),
        f"{ARMS_NOTE} {_certainty_of_times(arms)}",
        fold(
            "How it was run, and all that was measured of the arms",
            f"{_what_was_run(results['preset'])} {command_words()}",
            MEASURED_NOTE,
            _measured_table(arms),
        ),
        *_predictions(results["predictions"]),
        *_why(arms, gains),
        *_ablations(results, gains),
        *_from_first_step(results),
        *_shifts(results.get("shifts", {})),
        *_recalls(results["preset"].get("recall"), results.get("recalls", {})),
        *_criteria(arms),
        *(["## Figures"] if figures else []),
    ]
    return lay_out(parts, figures)


def lay_out(parts: Sequence[str], figures: Sequence[str]) -> str:
    """Return a page of these paragraphs, with its figures at the end."""
    pictures = [f"![{name}]({name})" for name in figures]
    return "\n\n".join([*parts, *pictures]) + "\n"


def command_words(options: str = "") -> str:
    """Say which command wrote a page."""
    return f"From a clone: `python -m benchmarks.validation{options}`."


def fold(summary: str, *parts: str) -> str:
    """Return paragraphs that a reader opens by a click.

    >>> print(folded("All of them", "One."))
    <details markdown="1">
    <summary>All of them</summary>
    <BLANKLINE>
    One.
    <BLANKLINE>
    </details>
    """
    head = f'<details markdown="1">\n<summary>{summary}</summary>'
    return "\n\n".join([head, *parts, "</details>"])


def page_of(parts: Sequence[str], figures: Sequence[str], options: str = "") -> str:
    """Return a page: its title, first finding, the command that wrote it, its rest and figures."""
    return lay_out([*parts[:2], command_words(options), *parts[2:]], figures)


ARMS_NOTE = (
    "All arms train the same networks further, on the same batches. A gain is the arm's accuracy "
    "less that of plain training, in the middle of the context, which leaves out the first and "
    "the last quarter of the records: after as many steps, after as many matrix products of "
    "gradients, or after as many CPU seconds. In brackets is its 95 % interval by Student's t, "
    "paired by seed and not corrected for how many there are. Importance weights and Algorithm 2 "
    "weight answers by the place of the record that holds the answer, the gold record. Algorithm "
    "1 and the constraint even out the influence over records, of the training batch or of "
    "probes, which are contexts with a gold record anywhere. Algorithm 3 keeps records "
    "observable. Selective arms raise the gold record's share of each probe's influence, on the "
    "margin of the network's own answer or of the true one. The arms “selective, true answers” "
    "and “answers of the probes” are told the probes' answers: they say what these labels are "
    "worth, and are not counted as remedies."
)
MEASURED_NOTE = (
    "Risk is the cross-entropy on the law of training; LIM (without the place that asks) and the "
    "total Z are of the answer's influence; Φ is the distance from an even density. Memory is that "
    "of one seed's gradient."
)
PREDICTIONS_NOTE = (
    "Cells have Spearman's rank correlation, over the records, of an attribution with the accuracy "
    "where the gold record stands at that place: the mean over seeds with its bootstrap interval. "
    'The profile averages over all gold places; "at the gold record" takes the record that is '
    "asked for."
)
CHANNELS_NOTE = (
    "Shares are of the energy of the answer's influence in the middle region. The last columns "
    "are of the margin's influence: the share of the record that is asked for, and the shares of "
    "its energy by number of attention hops."
)
FIRST_NOTE = (
    "These networks were trained with the remedy, or plainly, from the first step. Cells have the "
    "mean accuracy over gold places, and in brackets that in the middle."
)
SHIFTS_NOTE = (
    "These networks have rotary positions, and are tested on as many records as in training and on "
    "twice as many. The last column of each length is Spearman's correlation of the margin's "
    "normalised influence with accuracy, over the records."
)
RECALLS_NOTE = (
    "In associative recall every pair is asked for once, after all pairs. The table has the mean "
    "accuracy over pairs from the first step, and what is gained by drawing influence to the "
    "evidence of one question of each probe."
)
PROMPTED_NOTE = (
    "Every record of a key-value prompt is gold in turn; an answer is right if greedy decoding "
    "gives it whole. Errors are standard errors over rounds of prompts, intervals the bootstrap's."
)


def _verdict(results: Record, gains: Mapping[str, Gain]) -> str:
    """Say which remedies help, which to take, and whether influence predicts retrieval."""
    arms = results["arms"]
    parts = [headline({name: gain for name, gain in gains.items() if name in arms})]
    best = _best_remedy(arms, gains)
    if best is not None:
        gain = gains[best].middle_at_equal_time or gains[best].middle
        cost = "time" if gains[best].middle_at_equal_time else "steps"
        parts.append(
            f"The best of them is “{best}”{BEST_USE.get(best, '')}: at equal {cost} it gains "
            f"{_interval(gain)} over plain training there."
        )
    low, high = _extremes(results["predictions"], NORMALISED, PROFILE)
    parts.append(
        "Influence tells where a network retrieves well: over the networks, the rank correlation "
        f"of a record's normalised influence with the accuracy at its place is {low:+.2f} to "
        f"{high:+.2f}."
    )
    return " ".join(parts)


BEST_USE = {
    SELECTIVE: ", which draws influence to the record that holds the answer, and for which you "
    "mark that record in a few more contexts, without their answers",
}


def _best_remedy(arms: Mapping[str, Record], gains: Mapping[str, Gain]) -> str | None:
    """Return the remedy that gains most at equal steps, of those whose interval is above 0."""
    remedies = {name: gains[name].middle for name in arms if name in gains and name not in TOLD}
    lifting = {name: gain.value for name, gain in remedies.items() if gain.low > 0}
    return max(lifting, key=lifting.__getitem__, default=None)


def _energies_in_words(best: str, arms: Mapping[str, Record]) -> str:
    """Say what a remedy did to the channels and to the evidence."""
    ours, plain = (_over_boundary(arms[name]) for name in (best, PLAIN))
    energies = " and ".join(
        f"{digits(after)} in the {channel} channel ({digits(before)} with plain training)"
        for channel, after, before in zip(CHANNELS[1:], ours, plain, strict=True)
    )
    return (
        f"With {best} the middle's energy over the weaker boundary's is {energies}. "
        f"{_evidence_in_words(best, arms)}"
    )


def _by_remedy(results: Record) -> dict[str, list[str]]:
    """Return names of variants by the remedy that they vary, without their plain arms."""
    names_by_remedy: dict[str, list[str]] = {}
    for name, variant in results["preset"]["variants"].items():
        if name in results["variants"]:
            names_by_remedy.setdefault(variant["remedy"], []).append(name)
    return names_by_remedy


def _evidence_in_words(best: str, arms: Mapping[str, Record]) -> str:
    """Say what share of influence the asked record has, and how much of it in one hop."""
    (ours, one_hop), (plain, plain_hop) = (
        (_mean(arms[name]["evidence"]), digits(np.mean(arms[name]["hops"], axis=0)[1]))
        for name in (best, PLAIN)
    )
    return (
        f"The record that is asked for has {ours} of the records' influence ({plain}), and "
        f"{one_hop} of that comes by one attention hop ({plain_hop})."
    )


def _over_boundary(record: Record) -> Float[np.ndarray, " channels"]:
    """Return the middle's energy over the weaker boundary's, of cone and local, as seeds' means."""
    energies = np.array(record["channels"])[:, :, 1:]  # seeds, regions, channels
    return (energies[:, 1] / np.minimum(energies[:, 0], energies[:, 2])).mean(axis=0)


def headline(gains: Mapping[str, Gain]) -> str:
    """Say which remedies raise accuracy in the middle, at equal steps, operations and time.

    Arms that are told the probes' answers are no remedy but what their labels are worth, and are
    not counted.

    Examples
    --------
    >>> one, none = Interval(0.1, 0.05, 0.15), Interval(0.0, -0.1, 0.1)
    >>> found = Gain(one, one, none, none, one, one, operations=2.0, time=3.0)
    >>> print(headline({"Algorithm 1": found}))
    **Of 1 remedy 1 raises accuracy in the middle of the context at equal steps (Algorithm 1 +0.10), none at equal operations, none at equal time.**
    """  # noqa: E501
    remedies = {name: gain for name, gain in gains.items() if name not in TOLD}
    of = f"{len(remedies)} {'remedy' if len(remedies) == 1 else 'remedies'}"
    return f"**Of {of} {_raises_in_words(remedies)}.**"


def _raises_in_words(gains: Mapping[str, Gain], with_names: bool = True) -> str:
    """Say how many raise accuracy in the middle at equal steps, operations and time, and which."""
    steps, operations, time = (
        _count_raises({name: getattr(gain, field) for name, gain in gains.items()}, with_names)
        for field in ("middle", "middle_at_equal_operations", "middle_at_equal_time")
    )
    verb = "raises" if steps[0] == 1 else "raise"
    return (
        f"{steps[0] or 'none'} {verb} accuracy in the middle of the context at equal "
        f"steps{steps[1]}, "
        f"{operations[0] or 'none'} at equal operations{operations[1]}, "
        f"{time[0] or 'none'} at equal time{time[1]}"
    )


def _count_raises(intervals: Mapping[str, Interval | None], with_names: bool) -> tuple[int, str]:
    """Say how many intervals are above zero, and which."""
    above = {
        name: interval.value
        for name, interval in intervals.items()
        if interval is not None and interval.low > 0
    }
    highest_first = sorted(above.items(), key=lambda item: -item[1])
    names = "; ".join(f"{name} +{value:.2f}" for name, value in highest_first)
    return len(above), f" ({names})" if above and with_names else ""


def _what_was_run(preset: Record) -> str:
    setting = next(iter(preset["settings"].values()))
    task = setting["task"]
    return (
        f"Networks of {setting['depth']} layers and width {setting['width']} read "
        f"{task['records']} pairs of a key and a value, then a key, and answer with its value. "
        f"The pair of that key is the gold record. They were trained for {setting['steps']} steps "
        f'on gold places of the law "{setting["law"]}", seldom in the middle, and then for '
        f"{preset['stages'] * preset['every']} steps by each arm. {preset['seeds']} seeds, "
        f"{preset['test']} test contexts for each gold place."
    )


def _predictions(by_setting: Mapping[str, Sequence[Record]]) -> list[str]:
    """Say which attributions go with accuracy over the records; a row of the tables for each."""
    parts = [PREDICTIONS_NOTE]
    for of in (PROFILE, AT_GOLD):
        by_network = {
            name: [
                prediction
                for prediction in predictions
                if prediction["of"] == of and prediction["score"] == SCORES[0]
            ]
            for name, predictions in by_setting.items()
        }
        names = [prediction["attribution"] for prediction in next(iter(by_network.values()))]
        rows = [
            (name, *(_correlation(predictions[row]) for predictions in by_network.values()))
            for row, name in enumerate(names)
        ]
        parts.append(markdown_table((of, *by_network), rows))
    return [
        "## Does influence predict retrieval?",
        _ranges(by_setting),
        fold("All rank correlations", *parts),
    ]


def _ranges(by_setting: Mapping[str, Sequence[Record]]) -> str:
    """Say between which rank correlations each attribution is, over the networks."""
    parts = []
    for name in dict.fromkeys(
        prediction["attribution"] for prediction in next(iter(by_setting.values()))
    ):
        (low, high), (least, most) = (_extremes(by_setting, name, of) for of in (PROFILE, AT_GOLD))
        parts.append(f"{name} {low:+.2f} to {high:+.2f} ({least:+.2f} to {most:+.2f})")
    return (
        f"The mean rank correlation with accuracy, from the lowest to the highest of "
        f"{len(by_setting)} {'network' if len(by_setting) == 1 else 'networks'}, is for the "
        f"profile (and at the gold record): {'; '.join(parts)}."
    )


def _extremes(
    by_setting: Mapping[str, Sequence[Record]], name: str, of: str
) -> tuple[float, float]:
    """Return the lowest and the highest rank correlation of an attribution with accuracy."""
    values = [
        prediction["interval"]["value"]
        for predictions in by_setting.values()
        for prediction in predictions
        if (prediction["attribution"], prediction["of"], prediction["score"])
        == (name, of, SCORES[0])
    ]
    defined = [value for value in values if value is not None]
    return min(defined, default=np.nan), max(defined, default=np.nan)


def _correlation(prediction: Record) -> str:
    if prediction["interval"]["value"] is None or np.isnan(prediction["interval"]["value"]):
        return "constant"
    fewer = f", {prediction['left_out']} constant" if prediction["left_out"] else ""
    value, low, high = (prediction["interval"][name] for name in Interval._fields)
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f}){fewer}"


def prompted_page(results: Mapping[str, Record], model: str, figures: Sequence[str] = ()) -> str:
    """Lay out what a published model makes of prompts.

    Parameters
    ----------
    results
        By name of the setting, ``prompted_study(...).record()`` with ``"prompts"`` beside it.
    model
        Its name.
    figures
        Files of figures, which stand at the end.
    """
    parts = [f"# Does influence predict what {model} retrieves?", PROMPTED_NOTE]
    for name, result in results.items():
        parts += [f"## {name}, {result['prompts']} prompts", _by_place(result), _rank_table(result)]
    return page_of(parts, figures, " --model MODEL")


def _by_place(result: Record) -> str:
    estimates = {
        "accuracy": result["scores"]["accuracy"],
        **{name: result["profile"][name] for name in result["profile"]},
    }
    records = range(1, len(next(iter(estimates.values()))["value"]) + 1)
    rows = [
        (name, *map(with_error, estimate["value"], estimate["error"]))
        for name, estimate in estimates.items()
    ]
    return markdown_table(("by record", *map(str, records)), rows)


def _rank_table(result: Record) -> str:
    names = dict.fromkeys(prediction["attribution"] for prediction in result["predictions"])
    columns = [(of, score) for of in (PROFILE, AT_GOLD) for score in SCORES]
    by_key = {
        (prediction["attribution"], prediction["of"], prediction["score"]): prediction
        for prediction in result["predictions"]
    }
    rows = [(name, *(_correlation(by_key[name, *key]) for key in columns)) for name in names]
    return markdown_table(("rank correlation", *(f"{of}, {score}" for of, score in columns)), rows)


def _arms_table(arms: Mapping[str, Record], gains: Mapping[str, Gain]) -> str:
    plain = arms[PLAIN]
    head = ("arm", "accuracy", "in the middle", "gain there at equal steps",
            "at equal operations", "at equal time", "time of a step over plain's")  # fmt: skip
    rows = [("before", *_standing(plain, 0), *("",) * 4)]
    for name, record in arms.items():
        gain = gains.get(name)
        rows.append(
            (
                name,
                *_standing(record, -1),
                _interval(gain and gain.middle),
                _interval(gain and gain.middle_at_equal_operations),
                _interval(gain and gain.middle_at_equal_time),
                f"{record['seconds_per_step'] / plain['seconds_per_step']:.1f}",
            )
        )
    return markdown_table(head, rows)


def _measured_table(arms: Mapping[str, Record]) -> str:
    head = ("arm", "risk", "LIM", "Z", "Φ of probes", "operations of a step over plain's",
            "memory, MiB")  # fmt: skip
    rows = [
        (
            name,
            _mean(record["risk"][-1]),
            _mean(record["answer_lim"]),
            _mean(record["answer_total"]),
            _mean(record["discrepancy"][-1]),
            f"{record['operations'] / arms[PLAIN]['operations']:.1f}",
            digits(record["temporary_bytes"] / 2**20),
        )
        for name, record in arms.items()
    ]
    return markdown_table(head, rows)


def _certainty_of_times(arms: Mapping[str, Record]) -> str:
    """Say how certain times are, by the two runs of the plain arm, whose steps are the same."""
    first, second = (arms[name]["seconds_per_step"] for name in (PLAIN, LONG))
    difference = max(first, second) / min(first, second) - 1
    return (
        f"CPU times are uncertain: the plain arm's two runs differ by {difference:.0%} in the time "
        "of a step."
    )


def _standing(record: Record, stage: int) -> tuple[str, str]:
    accuracy = np.array(record["accuracy"][stage])
    return f"{accuracy.mean():.3f}", f"{in_the_middle(accuracy).mean():.3f}"


def _why(arms: Mapping[str, Record], gains: Mapping[str, Gain]) -> list[str]:
    """Say which channels hold the middle's energy, by arm."""
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
                _mean(record["evidence"]),
                *map(digits, np.mean(record["hops"], axis=0)[1:]),
            )
        )
    hops = range(1, len(arms[PLAIN]["hops"][0]))
    head = ("arm", *(f"{name}, share of the middle" for name in CHANNELS),
            "cone, middle over the weaker boundary", "local, the same",
            "share of the record asked for",
            *(f"in {hop} hop{'s' if hop > 1 else ''}" for hop in hops))  # fmt: skip
    best = _best_remedy(arms, gains)
    words = (
        "No remedy surely raises accuracy in the middle."
        if best is None
        else _energies_in_words(best, arms)
    )
    table = fold("All arms", CHANNELS_NOTE, markdown_table(head, rows))
    return ["## Which channel did the arm move?", words, table]


def _ablations(results: Record, gains: Mapping[str, Gain]) -> list[str]:
    rows = [
        (
            remedy,
            name,
            *_standing(results["variants"][name], -1),
            _interval(gain.middle),
            _interval(gain.middle_at_equal_operations),
            _interval(gain.middle_at_equal_time),
            f"{gain.operations:.1f}",
            f"{gain.time:.1f}",
        )
        for remedy, names in _by_remedy(results).items()
        for name, gain in ((name, gains[name]) for name in names)
    ]
    head = ("remedy", "with", "accuracy", "middle", "gain in the middle, equal steps",
            "equal operations", "equal time", "operations a step", "time a step")  # fmt: skip
    counts = []
    for remedy, names in _by_remedy(results).items():
        words = _raises_in_words({name: gains[name] for name in names}, with_names=False)
        of = "1 variant" if len(names) == 1 else f"{len(names)} variants"
        counts.append(f"Of {of} of {remedy} {words}.")
    table = fold("All variants", markdown_table(head, rows))
    return ["## Ablations", " ".join(counts), table] if rows else []


def _from_first_step(results: Record) -> list[str]:
    """Say how accuracy rises where a remedy is there from the beginning."""
    stages = {name: variant["stages"] for name, variant in results["preset"]["variants"].items()}
    names = [name for name in results["variants"] if stages.get(name)]
    if not names:
        return []
    rows = []
    sentences = []
    for name in names:
        ours, plain = (
            in_the_middle(np.array(results["variants"][label]["accuracy"])[-1]).mean()
            for label in (name, f"{name}, {PLAIN}")
        )
        sentences.append(
            f"With {name}, accuracy in the middle ends at {ours:.2f}, where plain training "
            f"ends at {plain:.2f}."
        )
        for label in (name, f"{name}, {PLAIN}"):
            course = np.array(results["variants"][label]["accuracy"])
            middle = in_the_middle(course)
            rows.append(
                (
                    label,
                    *(
                        f"{course[stage].mean():.2f} ({middle[stage].mean():.2f})"
                        for stage in range(len(course))
                    ),
                )
            )
    steps = results["variants"][names[0]]["steps"]
    head = ("after so many steps", *map(str, steps))
    table = fold("Accuracy by step", FIRST_NOTE, markdown_table(head, rows))
    return ["## From the first step", " ".join(sentences), table]


def _shifts(shifts: Mapping[str, Record]) -> list[str]:
    """Report accuracy and rank correlation at the length of training and at twice it."""
    if not shifts:
        return []
    lengths = list(shifts[PLAIN])
    middles = {
        name: [in_the_middle(np.array(record[length]["accuracy"])) for length in lengths]
        for name, record in shifts.items()
    }
    rows = []
    gains = []
    for name, record in shifts.items():
        row = [name]
        for number, length in enumerate(lengths):
            gain = paired_interval(middles[name][number] - middles[PLAIN][number])
            if name not in (PLAIN, BEFORE):
                gains.append(f"{_interval(gain)} with {name} on {length}")
            row += [
                f"{np.mean(record[length]['accuracy']):.3f}",
                f"{middles[name][number].mean():.3f}",
                "" if name == PLAIN else _interval(gain),
                _influence_correlation(record[length]),
            ]
        rows.append(row)
    parts = ("accuracy", "middle", "middle over plain", "influence and accuracy")
    head = ("network", *(f"{length}: {part}" for length in lengths for part in parts))
    words = (
        "Over plain training the middle of contexts with rotary positions, as long as in training "
        f"and twice as long, gains {'; '.join(gains)}."
    )
    return [
        "## Position shift",
        words,
        fold("All of them", SHIFTS_NOTE, markdown_table(head, rows)),
    ]


def _influence_correlation(record: Record) -> str:
    """Return the rank correlation of the normalised influence's profile with accuracy."""
    return next(
        _correlation(prediction)
        for prediction in record["predictions"]
        if (prediction["attribution"], prediction["of"], prediction["score"])
        == (NORMALISED, PROFILE, SCORES[0])
    )


def _recalls(setting: Record | None, recalls: Mapping[str, Record]) -> list[str]:
    """Say how accuracy rises where every pair is asked for, with and without word of evidence."""
    if not setting or not recalls:
        return []
    gains = recall_gains(recalls)
    rows = [
        (name, *(f"{np.mean(each):.2f}" for each in record["accuracy"]))
        for name, record in recalls.items()
    ]
    rows += [
        (f"gain, equal {cost}", "", *(_interval(getattr(each, field)) for each in gains.values()))
        for cost, field in (("steps", "at_equal_steps"), ("time", "at_equal_time"))
    ]
    task = setting["task"]
    plain, ours = recalls.values()
    ends = (np.mean(each["accuracy"][-1]) for each in (ours, plain))
    finding = (
        "Where every pair of a context is asked for, drawing influence to the evidence of one "
        "question ends after {} steps at an accuracy of {:.2f}, and plain training at {:.2f}."
    ).format(plain["steps"][-1], *ends)
    words = (
        f"{RECALLS_NOTE} There are {task['pairs']} pairs in {task['length']} places, "
        f"{setting['probes']} probes beside {setting['batch']} contexts; a step takes "
        f"{ours['seconds_per_step'] / plain['seconds_per_step']:.1f} times as long."
    )
    head = ("after so many steps", *map(str, plain["steps"]))
    table = fold("Accuracy by step", words, markdown_table(head, rows))
    return ["## Many questions in a context", finding, table]


def _criteria(arms: Mapping[str, Record]) -> list[str]:
    """Report in how many seeds each certificate holds, and how far from it the others are."""
    by_arm = {
        name: record["certificates"] for name, record in arms.items() if "certificates" in record
    }
    if not by_arm:
        return []
    names = list(next(iter(by_arm.values()))[0])
    rows = [
        (arm, *(_certificate([one[name] for one in by_seed]) for name in names))
        for arm, by_seed in by_arm.items()
    ]
    runs = [one for by_seed in by_arm.values() for one in by_seed]
    counts = (
        f"{name} in {sum(one[name]['holds'] for one in runs)} "
        f"({sum(one[name]['vacuous'] for one in runs)})"
        for name in names
    )
    words = (
        f"Over {len(runs)} trained networks, all arms and seeds, each criterion of the paper holds "
        "under the last-token loss in so many, and is vacuous in the number in brackets: "
        f"{'; '.join(counts)}."
    )
    note = (
        "Cells have in how many seeds the criterion holds, and the mean margin of its worst "
        "inequality, negative where it fails."
    )
    table = fold("All arms", note, markdown_table(("arm", *names), rows))
    return ["## Certificates", words, table]


def _certificate(by_seed: Sequence[Record]) -> str:
    num_held = sum(certificate["holds"] for certificate in by_seed)
    vacuous = sum(certificate["vacuous"] for certificate in by_seed)
    margins = [
        certificate["margin"] for certificate in by_seed if np.isfinite(certificate["margin"])
    ]
    margin = f", {digits(np.mean(margins))}" if margins else ""
    return f"{num_held} of {len(by_seed)}{margin}" + (f", {vacuous} vacuous" if vacuous else "")


def _mean(values: Any) -> str:
    return digits(np.mean(values))


def write_findings(
    folder: Path, name: str, results: Any, figures: Mapping[str, Figure], page: str
) -> None:
    """Write results, their figures and the page that shows them; its first paragraph is printed."""
    write_json(folder / f"{name}.json", results)
    for stem, figure in figures.items():
        save_figure(figure, folder, stem)
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    print(page.split("\n\n")[1].replace("**", ""))
    pictures = "a figure" if len(figures) == 1 else f"{len(figures)} figures"
    print(f"Wrote {name}.json, {name}.md and {pictures} to {folder}.")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a table in Markdown.

    >>> print(markdown_table(("a", "b"), [("1", "2")]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
