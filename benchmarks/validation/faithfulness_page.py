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
    "Prompts of {records} records, every place gold in turn. The model's own greedy answer is "
    "explained, of {tokens} tokens at most. An ablation takes records out of the text, each with "
    "what stands before it, and tokenizes it again. A top-k drop is what the answer's "
    "log-probability loses without the k records that a method ranks highest. The datamodeling "
    "score is Spearman's correlation, over {held_out} random ablations that no method has seen, of "
    "the log-probability with the sum of the scores of the records that are left. In brackets is "
    "the bootstrap's 95 % interval over prompts."
)
METHODS = (
    "Influence is the energy of the cross-entropy's adjoint over a record's tokens; variants take "
    "the margin's, or the root. Integrated gradients take {steps} steps from the average word at "
    "the records' places. ContextCite is the Lasso of Cohen-Wang, Shah, Georgiev and Madry (2024) "
    "on 32 or 64 ablations. Costs leave out the answer's own pass; a gradient counts for two "
    "forward passes. Leave-one-out has the largest top-1 drop by construction. Random scores are "
    "positive, so that their sum tells how many records are left: their datamodeling score is the "
    "floor, not zero. The second table of each kind has influence minus each method, paired by "
    "prompt, in bold where the interval is on one side of zero. No interval is corrected for how "
    "many there are."
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
    """What influence's gradient buys against leave-one-out's passes, and which method is best."""
    shares = [
        f"{_value(one, INFLUENCE, number) / _value(one, LEAVE_ONE_OUT, number):.0%} of its {name}"
        for number, name in enumerate(MEASURES[:SCORE])
    ]
    return (
        f"For {_passes(one, INFLUENCE)} in place of leave-one-out's {_total(one, LEAVE_ONE_OUT)} "
        f"influence has {', '.join(shares[:-1])} and {shares[-1]}. The largest {MEASURES[1]} is "
        f"that of {_best(one, 1)}, the highest {MEASURES[SCORE]} that of {_best(one, SCORE)}."
    )


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
