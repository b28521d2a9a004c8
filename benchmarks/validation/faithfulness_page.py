"""Which record did the answer come from? What came of it, as a page of Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.validation.faithfulness import (
    INFLUENCE,
    LEAVE_ONE_OUT,
    MEASURES,
    RANDOM,
    Cost,
)
from benchmarks.validation.findings_page import markdown_table, page_of

Record = Mapping[str, Any]
SCORE = len(MEASURES) - 1  # the last measure
HOW = (
    "Prompts of {records} records, every place gold in turn; what is explained is the model's own "
    "greedy answer, of {tokens} tokens at most, up to a quotation mark or the end of the line. "
    "Records are taken out of the text, which the tokenizer reads again: each goes with what "
    "stands before it, and the others' numbers stay. A drop is what the answer's log-probability "
    "loses with the records that a method ranks highest. The datamodeling score is Spearman's "
    "correlation, over {held_out} random ablations that no method has seen, of the sums of the "
    "scores of what is left with the log-probability (with its logit it is the same). In brackets "
    "is the bootstrap's 95 % interval over prompts."
)
METHODS = (
    "Influence is the energy of the cross-entropy's adjoint over a record's tokens; beside it that "
    "of the margin, and its root. Dividing it by a prompt's total changes none of the numbers. "
    "Gradient times input is signed, or its size; integrated gradients take {steps} steps from the "
    "average word at the records' places. ContextCite is the Lasso of Cohen-Wang, Shah, Georgiev "
    "and Madry (2024) on so many ablations. Costs are beside the answer's own pass; a gradient "
    "counts for two forward passes more. No method's top-1 drop can be larger than that of "
    "leave-one-out, which looks for it. Random scores are all positive, and so know how many "
    "records are left: their datamodeling score is the floor, not zero."
)
LEADS = (
    "Influence minus each method, paired by prompt: in bold where the interval is on one side of "
    "zero. No interval is corrected for how many there are."
)


def faithfulness_page(found: Record, model: str, figures: Sequence[str] = ()) -> str:
    """Lay out how faithful attributions of a model's answers are.

    Parameters
    ----------
    found
        ``"setting"``, of `FaithfulnessSetting`, and ``"kinds"``: by kind of prompt
        ``faithfulness_study(...)[kind].record()``.
    model
        Its name.
    figures
        Files of figures, which stand at the end.
    """
    kinds = found["kinds"]
    parts = [
        f"# Which record did the answer of {model} come from?",
        _verdict(kinds),
        HOW.format(**found["setting"]),
        METHODS.format(**found["setting"]),
    ]
    for kind, one in kinds.items():
        right = f"{one['right']:.0%} of the answers hold what was asked for"
        sure = f"their log-probability is {one['log_probability']:.2f} on average"
        parts += [
            f"## {kind.capitalize()}, {one['prompts']} prompts",
            f"{right}; {sure}. {_bought(one)}",
            _table(one),
            LEADS,
            _leads(one),
        ]
    return page_of(parts, figures, " --model MODEL --faithfulness")


def _verdict(kinds: Mapping[str, Record]) -> str:
    """The first line: the score of influence, of leave-one-out and of what is best, by kind."""
    parts = []
    for kind, one in kinds.items():
        best = _best(one, SCORE)
        said = [
            f"{name} {_value(one, name, SCORE):.2f} for {_passes(one, name)}"
            + " (the highest)" * (name == best)
            for name in dict.fromkeys((INFLUENCE, LEAVE_ONE_OUT, best))
        ]
        parts.append(f"on {kind} {', '.join(said)}")
    return f"**Datamodeling scores: {'; '.join(parts)}.**"


def _bought(one: Record) -> str:
    """What influence's gradient buys against leave-one-out's passes, and where it loses."""
    shares = [
        f"{_value(one, INFLUENCE, number) / _value(one, LEAVE_ONE_OUT, number):.0%} of its {name}"
        for number, name in enumerate(MEASURES[:SCORE])
    ]
    sides = [
        f"By {MEASURES[number]} the most faithful is {_best(one, number)}; influence is ahead of "
        f"({_named(one, number, 1)}) and behind ({_named(one, number, -1)})."
        for number in (1, SCORE)
    ]
    return (
        f"For {_passes(one, INFLUENCE)} in place of leave-one-out's {_total(one, LEAVE_ONE_OUT)} "
        f"influence has {', '.join(shares[:-1])} and {shares[-1]}. {' '.join(sides)} "
        "Of the rest no difference is sure."
    )


def _named(one: Record, measure: int, sign: int) -> str:
    """Of which methods influence is surely ahead, or with a sign of minus one behind."""
    ends = {name: [sign * lead[end][measure] for end in ("low", "high")]
            for name, lead in one["leads"].items()}  # fmt: skip
    return "; ".join(name for name, both in ends.items() if min(both) > 0) or "none"


def _table(one: Record) -> str:
    rows = [
        (
            name, str(cost["passes"]), str(cost["gradients"]), str(_total(one, name)),
            *(_interval(one["measures"][name], measure) for measure in range(len(MEASURES))),
        )
        for name, cost in one["costs"].items()
    ]  # fmt: skip
    return markdown_table(("method", "passes", "gradients", "in passes", *MEASURES), rows)


def _leads(one: Record) -> str:
    rows = []
    for name, lead in one["leads"].items():
        sure = [low > 0 or high < 0 for low, high in zip(lead["low"], lead["high"], strict=True)]
        cells = [_interval(lead, measure, "+") for measure in range(len(MEASURES))]
        rows.append(
            (
                name,
                *(f"**{cell}**" if bold else cell for cell, bold in zip(cells, sure, strict=True)),
            )
        )
    return markdown_table(("influence over", *MEASURES), rows)


def _interval(one: Record, measure: int, sign: str = "") -> str:
    value, low, high = (one[end][measure] for end in ("value", "low", "high"))
    return f"{value:{sign}.2f} ({low:{sign}.2f} to {high:{sign}.2f})"


def _best(one: Record, measure: int) -> str:
    names = [name for name in one["measures"] if name != RANDOM]
    return max(names, key=lambda name: _value(one, name, measure))


def _value(one: Record, name: str, measure: int) -> float:
    return one["measures"][name]["value"][measure]


def _passes(one: Record, name: str) -> str:
    total = _total(one, name)
    return f"{total} {'pass' if total == 1 else 'passes'}"


def _total(one: Record, name: str) -> int:
    return Cost(**one["costs"][name]).total
