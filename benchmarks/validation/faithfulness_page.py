"""Which part did the answer come from? What came of it, as a page of Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.validation.faithfulness import AT2, INFLUENCE, LEAVE_ONE_OUT, RANDOM, SETTINGS
from benchmarks.validation.findings_page import (
    command_words,
    fold,
    lay_out,
    markdown_table,
)
from benchmarks.validation.judged_faithfulness import MASK, SCORE
from lim_jax.attribution.method import Cost
from lim_jax.attribution.methods.mask_gradient import WEIGHT

Record = Mapping[str, Any]
DROP = "top-3 drop"
TAKEN = f"{MASK} at {WEIGHT:g}, margin, own"  # by `lim-jax ask`
HOW = (
    "A datamodeling score is Spearman's correlation, over random ablations that no method has "
    "seen, of the answer's log-probability with the sum of the scores of the parts that are left. "
    "An ablation takes parts out of the text, each with what stands before it, and tokenizes it "
    "again; the model's own greedy answer is explained. A cost is in forward passes beside the "
    "answer's own; a gradient counts for two. Random scores are positive, so that their sum tells "
    "how many parts are left: their score is the floor, not zero. In brackets is the bootstrap's "
    "95 % interval over prompts; none is corrected for how many there are. A score is in bold "
    "where it differs from {mask}'s, paired by prompt, by an interval on one side of zero."
)
DROPS = (
    "A top-k drop is what the answer's log-probability loses, in nats, without the k parts that a "
    "method ranks highest. Leave-one-out has the largest top-1 drop by construction."
)
METHODS = (
    "The mask gradient is the derivative of the answer's log-probability in the log weights of the "
    "attention measure, an additive mask, where all parts weigh the same; the mask path integrates "
    "it along all weights by {paths} gradients. Influence is the energy of the cross-entropy's "
    "adjoint over a part's tokens; a variant takes the margin's. Integrated gradients take {steps} "
    "steps from the average word at the parts' places. ContextCite is the Lasso of Cohen-Wang, "
    "Shah, Georgiev and Madry (2024) on {fitted} ablations."
)
LEARNT = (
    "AT2 (Cohen-Wang, Chuang and Madry, 2025) is the sum over layers and heads of the answer's "
    "attention to a part's tokens, each head by its weight. The {heads} weights were learnt here "
    "from {prompts} prompts of all kinds, those of even numbers, and their {ablations:,} ablations "
    "that no other method has seen, by a ridge regression whose strength, {strength:.2g}, predicts "
    "prompts that are left out best. Its authors take some thousands of examples of 32 ablations "
    "and maximise the correlation. Once they are learnt it costs one pass. Its score on the even "
    "half, below, is of what it was learnt from."
)
TF32 = (
    " Products were of TF32: of 24 of these texts that were read in float32 too, the mean score of "
    "no method differs by more than 0.003."
)
PROMPTS = {
    "keys and values": "a JSON object of random keys and values of two hexadecimal digits",
    "documents": "documents of one fact each, about persons, drawn at random",
    "sentences": "five documents of Python {python}'s help, in sentences, one of which in each "
    "document says a fact about a person; a title is a part too",
}


def faithfulness_page(results: Record, model: str, figures: Sequence[str] = ()) -> str:
    """Lay out how faithful attributions of a model's answers are.

    Parameters
    ----------
    results
        Of `judge_attributions`: of `faithfulness_study`, and ``learnt`` of `learn_heads`.
    model
        Its name.
    figures
        Files of figures, which stand at the end.
    """
    kinds = results["kinds"]
    settings = results["settings"]
    steps = max(record["steps"] for record in settings.values())
    numbers = {name: _either(settings, name) for name in ("paths", "fitted")}
    parts = [
        f"# Which part did the answer of {model} come from?",
        _verdict(kinds),
        _scores_table(kinds),
        HOW.format(mask=MASK),
        "## What was compared",
        _mean_rights(kinds),
        fold(
            "The methods, and the command",
            METHODS.format(steps=steps, **numbers),
            LEARNT.format(**results["learnt"]),
            command_words(" --model MODEL --faithfulness"),
        ),
        "## What the answer loses without the highest parts",
        DROPS,
        _drops_in_words(kinds),
        *(
            fold(f"{kind.capitalize()}: prompts, drops and seconds", *both)
            for kind, both in (
                (k, (_about(k, record, results), _table(record))) for k, record in kinds.items()
            )
        ),
        "## What was aimed at",
        *_targets(results),
        "## The choice of a variant",
        *_choice(results),
        *_not_run(kinds),
    ]
    return lay_out([*parts, *(["## Figure"] if figures else [])], figures)


def _verdict(kinds: Mapping[str, Record]) -> str:
    """Say how well the mask gradient predicts ablations, and what it is compared with."""
    ours, influence, alone = (
        [_value(record, name) for record in kinds.values()]
        for name in (MASK, INFLUENCE, LEAVE_ONE_OUT)
    )
    first = next(iter(kinds.values()))
    highest = (
        f"{_value(record, best):.2f} by {best} ({_passes(record, best)}) on {kind}"
        for kind, record in kinds.items()
        for best in (_best(record),)
    )
    return (
        f"**The {MASK} predicts what the answer loses when parts of the text are taken out with a "
        f"datamodeling score of {_span(ours)} for {_passes(first, MASK)}; influence "
        f"{_span(influence)} for {_passes(first, INFLUENCE)}, and leave-one-out {_span(alone)} for "
        f"a pass for each part.** Take the {MASK}, as `lim-jax ask` does, where passes are dear. "
        f"Where they are not, the highest scores are {'; '.join(highest)}."
    )


def _span(values: Sequence[float]) -> str:
    """Say the lowest and the highest of some scores.

    >>> _span([0.5, 0.25])
    '0.25 to 0.50'
    """
    low, high = (f"{end:.2f}" for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _scores_table(kinds: Mapping[str, Record]) -> str:
    """Return every method's score on each kind of prompts, and its cost there in passes."""
    names = dict.fromkeys(name for record in kinds.values() for name in record["costs"])
    rows = [(name, *(_score_cell(record, name) for record in kinds.values())) for name in names]
    costs = [
        " to ".join(
            dict.fromkeys(
                str(
                    end(
                        _total(record, name) for record in kinds.values() if name in record["costs"]
                    )
                )
                for end in (min, max)
            )
        )
        for name in names
    ]
    table_rows = [(name, cost, *cells) for (name, *cells), cost in zip(rows, costs, strict=True)]
    return markdown_table(("datamodeling score", "passes", *kinds), table_rows)


def _score_cell(record: Record, name: str) -> str:
    """Return a score with its interval; nothing where the method did not run on these prompts."""
    if name not in record["measures"]:
        return ""
    cell = _interval(record["measures"][name][SCORE])
    lead = record["leads"].get(name)
    sure = name != MASK and lead is not None and (lead["low"] > 0 or lead["high"] < 0)
    return f"**{cell}**" if sure else cell


def _mean_rights(kinds: Mapping[str, Record]) -> str:
    """Say of which prompts the scores are, and how often their answers were right."""
    prompts = (
        f"{record['judged']} of the {record['prompts']} prompts of “{kind}”, "
        f"{record['right']:.0%} of whose answers are right"
        for kind, record in kinds.items()
    )
    return (
        f"The scores are those of {'; '.join(prompts)}. The answers that are explained are the "
        "model's own, right or wrong."
    )


def _drops_in_words(kinds: Mapping[str, Record]) -> str:
    """Say what the answer loses without the three highest parts, by the mask gradient's order."""
    sentences = []
    for kind, record in kinds.items():
        drops = {name: of[DROP]["value"] for name, of in record["measures"].items()}
        best = max(drops, key=drops.__getitem__)
        sentences.append(
            f"on {kind} the answer loses {drops[MASK]:.2f} without the three parts that {MASK} "
            f"ranks highest, {drops[best]:.2f} by {best}, which finds the most, and "
            f"{drops[RANDOM]:.2f} without three at random"
        )
    words = "; ".join(sentences)
    return f"{words[0].upper()}{words[1:]}."


def _either(settings: Mapping[str, Record], name: str) -> str:
    """Return all numbers that any setting tries, in words.

    >>> _either({"one": {"paths": (2, 4)}, "two": {"paths": (2, 8)}}, "paths")
    '2, 4 or 8'
    """
    numbers = dict.fromkeys(
        f"{number:g}" for setting in settings.values() for number in setting[name]
    )
    *before, last = numbers
    return f"{', '.join(before)} or {last}" if before else last


def _choice(results: Record) -> list[str]:
    words = "; ".join(f"{family}: {name}" for family, name in results["chosen"].items())
    weights = _either(results["settings"], "weights")
    how = (
        f"The mask gradient can be taken where all parts weigh {weights}; a part can read "
        'itself as before, "own"; it can be of the log-probability or of the margin (the mean log '
        "odds of the answer's tokens); and the mean over parts can be taken off. Of each family "
        "the variant with the highest score on the prompts of even numbers, on average over the "
        "kinds of prompts, is chosen."
    )
    finding = (
        "Variants were chosen on one half of the prompts, and **all else on this page is of the "
        f"other half**. Chosen are {words}.{_package_variant(results)}"
    )
    return [finding, fold("The variants and their scores", how, _variants(results))]


def _package_variant(results: Record) -> str:
    """Return how the variant that the package takes did, on average over the kinds of prompts."""

    def means(name: str) -> str:
        """Write a variant's score on either half, averaged over the kinds of prompts."""
        halves = zip(
            *(record["variants"][name] for record in results["kinds"].values()), strict=True
        )
        return " and ".join(f"{sum(scores) / len(scores):.2f}" for scores in map(list, halves))

    if TAKEN not in next(iter(results["kinds"].values()))["variants"]:
        return ""
    return (
        f" `lim-jax ask` takes {TAKEN}: on average over the kinds a score of {means(TAKEN)} on the "
        f"even half and on the other, where {results['chosen'][MASK]} has "
        f"{means(results['chosen'][MASK])}."
    )


def _variants(results: Record) -> str:
    """Say what is chosen, what differs from it in one way with one gradient, and what is learnt."""
    kinds = results["kinds"]
    chosen = results["chosen"]
    variants = list(next(iter(kinds.values()))["variants"])
    near = [name for name in variants if name.startswith(MASK) and _differ(name, chosen[MASK]) == 1]
    rows = [
        (
            f"**{name}**" if name in chosen.values() else name,
            *("{:.2f}, {:.2f}".format(*record["variants"][name]) for record in kinds.values()),
        )
        for name in dict.fromkeys((chosen[MASK], *near, TAKEN, *chosen.values(), AT2))
        if name in variants
    ]
    return markdown_table(("score on the even half, on the other", *kinds), rows)


def _differ(name: str, other: str) -> int:
    """Count the options in which two variants of one family differ: a weight counts once."""
    (weight, *options), (of, *others) = (variant.split(", ") for variant in (name, other))
    return (weight != of) + len(set(options) ^ set(others))


def _targets(results: Record) -> list[str]:
    rows = []
    verdicts = []
    for target in results["targets"]:
        holds = target["value"] >= -target["allowed"]
        sure = target["low"] >= -target["allowed"] or target["high"] < -target["allowed"]
        verdict = ("holds" if holds else "**fails**") + ("" if sure else ", not surely")
        verdicts.append(verdict.replace("**", ""))
        difference = "{value:+.3f} ({low:+.3f} to {high:+.3f})".format(**target)
        aim = f"at least {target['other']}"
        if target["allowed"] > 0:
            aim += f" less {target['allowed']}"
        rows.append((target["kind"], f"{target['method']} {aim}", difference, verdict))
    head = ("prompts", "the score of", "difference of the scores", "")
    counts = "; ".join(
        f"“{verdict}” of {verdicts.count(verdict)}" for verdict in dict.fromkeys(verdicts)
    )
    words = (
        f"{len(rows)} scores were aimed at. A verdict is not sure where the interval of the "
        f"difference reaches over the aim: {counts}."
    )
    return [words, fold("What was aimed at, and what came of it", markdown_table(head, rows))]


def _about(kind: str, record: Record, results: Record) -> str:
    setting = results["settings"][record["setting"]]
    fewest, mean, most = record["parts"]
    parts = f"{most}" if fewest == most else f"{fewest} to {most}, on average {mean:.0f},"
    on_cpu = results["device"] == "cpu"
    processor = "of all cores of a CPU" if on_cpu else f"on one {results['device']}"
    text = PROMPTS[kind.partition(",")[0]].format(python=results["python"].rpartition(".")[0])
    return (
        f"{record['prompts']} prompts of {parts} parts and {record['length']:.0f} tokens on "
        f"average, {text}, and a question, every place gold in turn. An answer has "
        f"{setting['tokens']} tokens at most. {record['right']:.0%} of the answers hold what was "
        f"asked for; their log-probability is {record['log_probability']:.2f} on average. Of "
        f"{record['judged']} prompts, with {setting['held_out']} ablations held out; the seconds "
        f"of one prompt are {processor}, "
        f"many prompts at a time, after compiling; a gradient's are those of two, for it is of "
        f"the log-probability and the margin at once. The last column has {MASK}'s score minus "
        "that of each method, paired by prompt, in bold where the interval is on one side of zero."
        + TF32
        * (not on_cpu and setting["precision"] == "tensorfloat32")
    )


def _table(record: Record) -> str:
    rows = [
        (
            name,
            str(cost["passes"]),
            str(cost["gradients"]),
            str(_total(record, name)),
            _seconds_cell(record["seconds"][name]),
            *map(_interval, record["measures"][name].values()),
            "" if name == MASK else _interval(record["leads"][name], "+"),
        )
        for name, cost in record["costs"].items()
    ]
    head = ("method", "passes", "gradients", "in passes", "seconds", *record["measures"][MASK])
    return markdown_table((*head, f"{MASK}'s score over it"), rows)


def _interval(record: Record, sign: str = "") -> str:
    """Return a number with its interval, in bold if it is a difference that is not zero."""
    cell = f"{record['value']:{sign}.2f} ({record['low']:{sign}.2f} to {record['high']:{sign}.2f})"
    return f"**{cell}**" if sign and (record["low"] > 0 or record["high"] < 0) else cell


def _not_run(kinds: Mapping[str, Record]) -> list[str]:
    """Return how many prompts of each setting were not run; nothing where all were."""
    run = {
        name: sum(record["prompts"] for record in kinds.values() if record["setting"] == name)
        for name in SETTINGS
    }
    missing = [
        f"{run[name] or 'none'} of the {setting.prompts} of “{name}”"
        for name, setting in SETTINGS.items()
        if run[name] < setting.prompts
    ]
    words = f"Of its prompts the study ran {', '.join(missing)}: intervals are wide."
    return ["## What is not here", words] if missing else []


def _seconds_cell(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2g}"


def _best(record: Record) -> str:
    return max(
        (name for name in record["measures"] if name != RANDOM), key=lambda n: _value(record, n)
    )


def _value(record: Record, name: str) -> float:
    return record["measures"][name][SCORE]["value"]


def _passes(record: Record, name: str) -> str:
    total = _total(record, name)
    return f"{total} {'pass' if total == 1 else 'passes'}"


def _total(record: Record, name: str) -> int:
    return Cost(**record["costs"][name]).total
