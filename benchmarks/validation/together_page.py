"""How often it is said rightly which documents suffice alone, or are needed together: the page."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.validation.intervals import Interval, bootstrap_interval, share_interval
from benchmarks.validation.pairs_of_shapiq import REGRESSION
from benchmarks.validation.prices import INFORMED, PROXY_SPEX
from benchmarks.validation.together_questions import KINDS, NEEDED, NOTHING, OTHER, SUFFICES
from lim_jax.attribution.together import LEAST, SHARE

Row = Mapping[str, Any]
ALL_TEXTS = f"{PROXY_SPEX} on all texts"
METHODS = (INFORMED, PROXY_SPEX, ALL_TEXTS, REGRESSION)
# Of the constant that tells groups of documents, beside which others were tried.
SHARES = {"1/4": 1 / 4, "1/3": 1 / 3, "2/5": 2 / 5}
KIND_WORDS = {"copy": "two state it", "halves": "each holds a half", "one": "one states it"}
WRITTEN_HEAD = (
    "documents, answers",
    "method",
    "price",
    "failed",
    "one suffices",
    "both are needed",
    "nothing",
    "else",
    "right",
    "informed's less this",
)

PAGE = """\
# {title}

{finding}

{about}

## By how the texts were written

That one of two suffices is said where the answer loses {least} of log odds or more without both,
and less than {share} of that without either. That both are needed is said where it loses
more than {rest} of it without either. It is right where this alone is said, and of the documents
that state the evidence; where one document states it, nothing is right.

| {written_head} |
|---|---|---|---|---|---|---|---|---|---|
{written}

A price counts the tokens that a method reads, over those of the whole text; a gradient costs two
more than its pass forward. Informed ablations have their default passes: without the two texts that
score the question and the rest of the prompt, which others do not.

The others are of the package shapiq. {proxy} and the regression fit interactions of pairs (the
index FBII) to about as many tokens. The sum of the interactions that a text keeps says what the
answer loses without each set of the three documents of the largest scores; the same rule reads
that. Five documents have but 32 texts, which are then all read. A leaf of {proxy}'s trees holds
twenty texts or more. On fewer than forty they do not split: it fails, and says nothing. On all 64
of six documents they split once, which makes no pair: it is made for more parts and more texts.

A difference is paired by question; where all are alike it has no width.

## By what the model reads

The model read the texts without each set of documents. So it is known of which pairs the rule is
so, whatever the texts say, with all other documents in. A pair is within the three where these hold
both its documents. Informed ablations read the texts without the three themselves: what they say is
so, and what they miss is not within the three, or in a group of all three.

| documents | method | pairs | within the three | found | said though not so | share found |
|---|---|---|---|---|---|---|
{read}

## The share

The rule takes {share}. Others were tried on informed ablations: chosen by questions of even seeds,
and judged by those of odd seeds. Where one document states it, whatever is said is wrong.

| share | even: copies | even: wrong of one | odd: copies | odd: wrong of one |
|---|---|---|---|---|
{shares}

{chosen}

Every answer by every method is a row of [{table}]({table}).
"""
FINDING = """\
**Where two documents state the evidence, it is said in {copy} of cases that one suffices;
where each holds a half, in {halves} that both are needed;
where one states it, rightly nothing in {one}.**
To the model one of two that state it suffices in {suffices}, and both halves are needed in
{needed}. Of {pairs} pairs the rule holds to the model, {within} of them among the three documents
that informed ablations score highest: they find {found}, and say {not_so} that do not hold.
On as many tokens {proxy} finds {proxy_found}: it fails on {failed}. A regression of pairs
finds {regression_found}, and says {regression_not_so} that do not hold; on copies the share that
informed ablations say rightly, less its own, is {difference}."""


def page_of(rows: Sequence[Row], title: str, about: str, table: str) -> str:
    """Write the page: what is rightly said as texts were written, and as the model reads them.

    `about` says who was asked what, and `table` is the name of the file that has the rows.
    """
    return PAGE.format(
        title=title,
        finding=finding_of(rows),
        about=about,
        table=table,
        least=LEAST,
        share=f"{SHARE:g}",
        rest=f"{1 - SHARE:g}",
        proxy=PROXY_SPEX,
        written_head=" | ".join(WRITTEN_HEAD),
        written=written_table(rows),
        read=read_table(rows),
        shares=shares_table(rows),
        chosen=chosen_words(rows),
    )


def of(rows: Sequence[Row], **columns: str) -> list[Row]:
    """Return the rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in columns.items())]


def finding_of(rows: Sequence[Row]) -> str:
    """Say how often informed ablations say it rightly, and how often others do."""
    own = of(rows, method=INFORMED)
    proxy = of(rows, method=PROXY_SPEX)
    regression = of(rows, method=REGRESSION)
    copies, halves = of(own, kind="copy"), of(own, kind="halves")
    rights = {kind: percent(share_interval(right(of(own, kind=kind)))) for kind in KINDS}
    return FINDING.format(
        **rights,
        suffices=f"{len(of(copies, **{'for the model': SUFFICES}))} of {len(copies)} answers",
        needed=f"{len(of(halves, **{'for the model': NEEDED}))} of {len(halves)}",
        pairs=total(own, "pairs"),
        within=total(own, "within"),
        found=total(own, "found"),
        not_so=total(own, "not so"),
        proxy=PROXY_SPEX,
        proxy_found=total(proxy, "found"),
        failed=f"{total(proxy, 'failed')} of {len(proxy)} answers",
        regression_found=total(regression, "found"),
        regression_not_so=total(regression, "not so"),
        difference=difference_in_words(
            bootstrap_interval(right(copies) - right(of(regression, kind="copy")))
        ),
    )


def written_table(rows: Sequence[Row]) -> str:
    """Count what each method says of each kind of documents, and how often that is right."""
    lines = []
    for kind, words in KIND_WORDS.items():
        own = right(of(rows, kind=kind, method=INFORMED))
        for method in METHODS:
            answers = of(rows, kind=kind, method=method)
            said = [len(of(answers, said=name)) for name in (SUFFICES, NEEDED, NOTHING, OTHER)]
            less = (
                ""
                if method == INFORMED
                else difference_in_words(bootstrap_interval(own - right(answers)))
            )
            price = np.mean([float(row["price"]) for row in answers])
            cells = [
                f"{words}, {len(answers)}",
                method,
                f"{price:.1f}",
                total(answers, "failed"),
                *said,
                percent(share_interval(right(answers))),
                less,
            ]
            lines.append(table_line(cells))
    return "\n".join(lines)


def read_table(rows: Sequence[Row]) -> str:
    """Count which pairs that are so for the model each method finds, and what is not so."""
    lines = []
    for kind, words in KIND_WORDS.items():
        for method in METHODS:
            answers = of(rows, kind=kind, method=method)
            counts = [total(answers, name) for name in ("pairs", "within", "found", "not so")]
            lines.append(table_line([words, method, *counts, percent(share_found(answers))]))
    return "\n".join(lines)


def shares_table(rows: Sequence[Row]) -> str:
    """Count what other shares say rightly of copies, and wrongly of one document."""
    lines = []
    for name in SHARES:
        cells = [name]
        for parity in (0, 1):
            answers = of_parity(rows, parity)
            cells += [
                percent(share_interval(right(of(answers, kind="copy"), f"said at {name}"))),
                f"{wrong_of_one(answers, name)} of {len(of(answers, kind='one'))}",
            ]
        lines.append(table_line(cells))
    return "\n".join(lines)


def chosen_words(rows: Sequence[Row]) -> str:
    """Say which share even seeds choose, and whether it is better on odd ones."""
    taken = next(name for name, share in SHARES.items() if share == SHARE)
    best = chosen_share(of_parity(rows, 0))
    if best == taken:
        return (
            "On even seeds no other that rightly says nothing of one document says more of copies: "
            f"{taken} stays."
        )
    odd = of_parity(rows, 1)
    copies = of(odd, kind="copy")
    gain = bootstrap_interval(right(copies, f"said at {best}") - right(copies, f"said at {taken}"))
    better = gain.low > 0 and not wrong_of_one(odd, best)
    verdict = "a clear gain" if better else f"no clear gain: {taken} stays"
    more = difference_in_words(gain)
    return f"Even seeds choose {best}. On odd seeds it says {more} more of copies, {verdict}."


def chosen_share(rows: Sequence[Row]) -> str:
    """Return the share that says most rightly of copies, of those that say nothing of one."""
    copies = of(rows, kind="copy")
    silent = [name for name in SHARES if not wrong_of_one(rows, name)]
    return max(silent, key=lambda name: right(copies, f"said at {name}").sum())


def of_parity(rows: Sequence[Row], parity: int) -> list[Row]:
    """Return the rows of informed ablations of even seeds, or of odd ones."""
    return [row for row in of(rows, method=INFORMED) if int(row["seed"]) % 2 == parity]


def wrong_of_one(rows: Sequence[Row], share: str) -> int:
    """Count the answers of which one document states the evidence and a share says something."""
    one = of(rows, kind="one")
    return len(one) - len(of(one, **{f"said at {share}": NOTHING}))


def right(rows: Sequence[Row], column: str = "said") -> np.ndarray:
    """Tell of each answer whether what is said of it is right, as zero or one."""
    return np.array([row[column] == row["right"] for row in rows], float)


def total(rows: Sequence[Row], column: str) -> int:
    """Sum a column of counts."""
    return sum(int(row[column]) for row in rows)


def share_found(rows: Sequence[Row]) -> Interval:
    """Return which share of the pairs that are so for the model is found."""
    counts = np.array([[int(row["found"]), int(row["pairs"])] for row in rows], float)
    return bootstrap_interval(counts, ratio)


def ratio(counts: np.ndarray) -> np.ndarray:
    """Return how many are found of those that are so; NaN where none is."""
    found, so = counts.sum(axis=0)
    return found / np.where(so, so, np.nan)


def percent(interval: Interval) -> str:
    """Write a share with its interval; nothing where there is none.

    >>> percent(Interval(np.array(0.5), np.array(0.25), np.array(0.75)))
    '50% (25% to 75%)'
    """
    if np.isnan(interval.value):
        return ""
    return f"{interval.value:.0%} ({interval.low:.0%} to {interval.high:.0%})"


def difference_in_words(interval: Interval) -> str:
    """Write a difference of shares with its interval, all with signs.

    >>> gained(Interval(np.array(0.5), np.array(-0.25), np.array(0.75)))
    '+50% (-25% to +75%)'
    """
    return f"{interval.value:+.0%} ({interval.low:+.0%} to {interval.high:+.0%})"


def table_line(cells: Sequence[object]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(map(str, cells))} |"
