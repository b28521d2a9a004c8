"""The best attribution at every price: how faithful methods are, by how many tokens they read.

``python -m benchmarks.validation.prices MODEL [--kinds NAME ...] [--prompts N] [--out FOLDER]``
lets a model answer prompts of these kinds, and scores their parts by each method at several prices.
It writes ``prices.csv``, a row for each prompt, method and price, ``prices.png`` and ``prices.md``.
Rows of other kinds stay as the table has them, so that ``--kinds`` alone draws it anew. An
interrupted run goes on. Needs the extra ``prices``.
"""

import argparse
import csv
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lazy_loader
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.report import data_file
from benchmarks.validation import faithfulness
from benchmarks.validation.ablation_study import (
    Ablated,
    ablated_text,
    datamodeling_score,
    ids_of_texts,
    logits_of,
    random_ablations,
    sparse_regression,
)
from benchmarks.validation.documents_first import documents_first
from benchmarks.validation.faithfulness import FACTS, PAIRS, SENTENCES, FaithfulnessSetting, Job
from benchmarks.validation.intervals import Interval, bootstrap_interval
from benchmarks.validation.scored_parts import context_of_prompt, mask_variants
from lim_jax._digest import digest
from lim_jax._partial_runs import each_once
from lim_jax.attribution.ablation_design import balanced_design
from lim_jax.attribution.method import Cost
from lim_jax.attribution.shrunk_regression import shrunk_regression
from lim_jax.models import LanguageModel
from lim_jax.plots.figure_style import ShownFigure, legend_below, line_style
from lim_jax.prompts.contexts import Context
from lim_jax.tasks.prompts import Prompt, encode_text

shapiq: Any = lazy_loader.load("shapiq")  # of the extra `prices`; reading and drawing do without


class Kind(NamedTuple):
    """Prompts of a kind, and by what their parts are scored.

    Attributes
    ----------
    setting
        Which prompts.
    texts
        On how many texts regressions are fitted.
    of_shapiq
        On how many texts methods of shapiq are fitted.
    first
        The number of the first prompt: by those before it rules were chosen.
    documents_first
        On how many texts, half of which leave out whole documents, regressions are fitted too.
    """

    setting: FaithfulnessSetting
    texts: tuple[int, ...]
    of_shapiq: tuple[int, ...]
    first: int = 0
    documents_first: tuple[int, ...] = ()


TEN = (8, 16, 32, 64, 128)
MORE = (16, 32, 64, 128, 256)
KINDS = {
    "10 keys": Kind(FaithfulnessSetting((PAIRS,), 1, 1, 10), TEN, TEN),
    "10 documents": Kind(FaithfulnessSetting((FACTS,), 1, 1, 10), TEN, TEN),
    "40 keys": Kind(FaithfulnessSetting((PAIRS,), 1, 1, 40), MORE, (64, 128), 16),
    "sentences": Kind(
        FaithfulnessSetting((SENTENCES,), 1, 1, (3, 6), tokens=8), MORE, (64,), 16, (16, 32)
    ),
}
Game = Callable[[Bool[np.ndarray, "texts parts"]], Float[np.ndarray, " texts"]]
PATHS = (4, 8)  # of so many gradients
HELD_OUT = 32
TICKS = (3, 6, 12, 24, 48)
NEAR = 0.01  # of scores that count as alike
SAME_PRICE = 0.5  # a reading of half of the text, by which prices of the same texts differ
INFORMED = "informed"
DESIGNED = "designed texts alone"
HIERARCHY = "informed, documents first"
MASK = "mask gradient"
PATH = "mask path"
LEAVE_ONE_OUT = "leave-one-out"
CONTEXT_CITE = "ContextCite"
KERNEL_SHAP = "KernelSHAP, paired"
PROXY_SPEX = "ProxySPEX"
LEAST_TEXTS = {KERNEL_SHAP: 16, PROXY_SPEX: 40}

METHODS = (
    INFORMED,
    DESIGNED,
    MASK,
    PATH,
    LEAVE_ONE_OUT,
    CONTEXT_CITE,
    KERNEL_SHAP,
    PROXY_SPEX,
    HIERARCHY,
)


class Priced(NamedTuple):
    """The scores of a prompt's parts by a method, and its price in readings of the whole text.

    `level` counts the texts or gradients that the method was given; it is 1 of leave-one-out.
    """

    method: str
    level: int
    price: float
    scores: Float[np.ndarray, " parts"]


class Reader:
    """Reads a prompt without some parts: the answer's logit for each token of it, and the price."""

    def __init__(self, job: Job, prompt: Prompt, said: np.ndarray):
        self.tokens = len(said)
        self.parts = len(prompt.spans)
        begins = [prompt.text[start] == "[" for start, _ in prompt.spans]  # as documents do
        self.documents = np.cumsum(begins) - 1
        self._texts = Ablated([prompt], [said], job.tokenizer, job.read)
        self._prompt, self._tokenizer = prompt, job.tokenizer

    def log_probabilities(self, kept: Bool[np.ndarray, "texts _"]) -> Float[np.ndarray, " texts"]:
        """Return the answer's log-probability on each text."""
        return self._texts([kept])[0]

    def logits(self, kept: Bool[np.ndarray, "texts _"]) -> Float[np.ndarray, " texts"]:
        """Return the logit of its probability, over the answer's number of tokens."""
        return logits_of(self.log_probabilities(kept)) / self.tokens

    def price(self, kept: Bool[np.ndarray, "texts _"]) -> float:
        """Return how many tokens these texts have, over those of the whole."""
        texts = [ablated_text(self._prompt, row) for row in kept]
        whole, *sizes = map(len, ids_of_texts([self._prompt.text, *texts], self._tokenizer))
        return sum(sizes) / whole


def priced_gradients(job: Job, context: Context) -> list[Priced]:
    """Score the parts of a prompt by the mask gradient, and on paths of `PATHS`."""
    variants = {variant.name: variant for variant in mask_variants((0.2,), PATHS)}
    names = [("mask-gradient at 0.2", MASK, 1)]
    names += [(f"mask-path on {nodes}", PATH, nodes) for nodes in PATHS]
    return [
        Priced(
            method,
            gradients,
            Cost(gradients, gradients).total,
            variants[f"{name}, margin, own"](job.model, context),
        )
        for name, method, gradients in names
    ]


def priced_scores(
    reader: Reader, kind: Kind, gradients: Sequence[Priced], drawn: Bool[np.ndarray, "texts _"]
) -> Iterator[Priced]:
    """Score the parts of a prompt by every method at each of its prices."""
    yield from gradients
    yield _leave_one_out(reader)
    gradient = gradients[0]
    for texts in kind.texts:
        kept = drawn[:texts]
        values = reader.log_probabilities(kept)
        scores = sparse_regression(kept, values, reader.tokens)
        yield Priced(CONTEXT_CITE, texts, reader.price(kept), scores)
        kept = balanced_design(reader.parts, texts)
        values = reader.logits(kept)
        price = reader.price(kept)
        for name, prior, paid in (
            (INFORMED, gradient.scores, gradient.price),
            (DESIGNED, np.zeros(reader.parts), 0.0),
        ):
            fit = shrunk_regression(kept, values, prior)
            yield Priced(name, texts, paid + price, fit.scores)
        if texts in kind.documents_first:
            kept, values = documents_first(reader.logits, reader.documents, gradient.scores, texts)
            fit = shrunk_regression(kept, values, gradient.scores)
            yield Priced(HIERARCHY, texts, gradient.price + reader.price(kept), fit.scores)
        if texts in kind.of_shapiq:
            yield from _scores_of_shapiq(reader, texts)


def _leave_one_out(reader: Reader) -> Priced:
    """Score each part by what the answer loses without it."""
    texts = np.concatenate([np.ones((1, reader.parts), bool), ~np.eye(reader.parts, dtype=bool)])
    whole, *without = reader.log_probabilities(texts)
    return Priced(LEAVE_ONE_OUT, 1, reader.price(texts), whole - np.array(without))


def _kernel_shap(parts: int, texts: int, game: Game) -> Any:
    """Return what KernelSHAP fits to so many texts."""
    approximator = shapiq.KernelSHAP(n=parts, pairing_trick=True, random_state=0)
    return approximator.approximate(texts, game)


def proxy_spex(parts: int, texts: int, game: Game) -> Any:
    """Return what ProxySPEX fits to so many texts, with interactions of pairs; None where it fails.

    It does where none of its trees splits: a leaf holds twenty texts or more, and a split gains.
    """
    approximator = shapiq.ProxySPEX(n=parts, index="FBII", max_order=2, random_state=0)
    odds: list[Float[np.ndarray, " texts"]] = []

    def read_once(kept: Bool[np.ndarray, "texts parts"]) -> Float[np.ndarray, " texts"]:
        """Return what the game gives, and remember it."""
        odds.append(game(kept))
        return odds[-1]

    try:
        return approximator.approximate(texts, read_once)
    except (IndexError, ValueError):  # of shapiq 1.4.1, of a single coefficient and of none
        if not odds:
            raise  # what reading the texts raised
        return None


def _scores_of_shapiq(reader: Reader, texts: int) -> Iterator[Priced]:
    """Score by methods of the package shapiq, with a budget of so many texts."""
    read: list[Bool[np.ndarray, "texts parts"]] = []

    def game(kept: Bool[np.ndarray, "texts parts"]) -> Float[np.ndarray, " texts"]:
        """Read texts for shapiq, and keep which these were."""
        read.append(np.atleast_2d(kept).astype(bool))
        return reader.logits(read[-1])

    for name, fit in {KERNEL_SHAP: _kernel_shap, PROXY_SPEX: proxy_spex}.items():
        if texts < LEAST_TEXTS[name]:
            continue
        read.clear()
        values = fit(reader.parts, texts, game)
        if values is not None:
            scores = values.get_n_order(1).get_n_order_values(1)
            yield Priced(name, texts, reader.price(np.concatenate(read)), scores)


def rows_of_prompt(job: Job, kind: str, number: int) -> list[dict[str, Any]]:
    """Let the model answer a prompt, score its parts, and judge scores on texts that none read."""
    prompt = faithfulness.drawn_prompt(job.setting, number)
    encoded = encode_text(prompt.text, job.tokenizer)
    (said,) = faithfulness.answers_of(job, [encoded.ids])
    reader = Reader(job, prompt, said)
    context = context_of_prompt(prompt, encoded, said)
    gradients = priced_gradients(job, context)
    most = max(KINDS[kind].texts)
    drawn = random_ablations(reader.parts, most + HELD_OUT, number)
    held_out = drawn[most:]
    judged = reader.log_probabilities(held_out)
    return [
        {
            "kind": kind,
            "prompt": number,
            "tokens": len(encoded.ids),
            "method": method,
            "level": level,
            "price": price,
            "score": float(datamodeling_score(scores, held_out, judged)),
        }
        for method, level, price, scores in priced_scores(reader, KINDS[kind], gradients, drawn)
    ]


def study(
    model: LanguageModel, kinds: Sequence[str], prompts: int, folder: Path
) -> list[dict[str, Any]]:
    """Score so many prompts of each kind; an interrupted run goes on after the last prompt."""
    jobs = {}
    for kind in kinds:
        setting = KINDS[kind].setting._replace(prompts=KINDS[kind].first + prompts)
        jobs[kind] = faithfulness.job_of(model.network, model.tokenizer, setting, model.end_ids)
    rows = {
        f"{kind} {number}": partial(rows_of_prompt, jobs[kind], kind, number)
        for rank in range(prompts)
        for kind in kinds
        for number in [KINDS[kind].first + rank]
    }
    run = {"function": "prices", "model": digest(model.network)}
    bar = partial(tqdm, desc="pricing", unit="prompt")
    found = each_once(rows, folder / "unfinished.json", run, bar)
    return [row for of_prompt in found.values() for row in of_prompt]


def with_earlier(
    rows: Sequence[dict[str, Any]], kinds: Sequence[str], file: Path
) -> list[dict[str, Any]]:
    """Return rows after those of other kinds that a table has, if there is one."""
    earlier: list[dict[str, Any]] = []
    if file.exists():
        with file.open(newline="", encoding="utf-8") as table:
            earlier = [row for row in csv.DictReader(table) if row["kind"] not in kinds]
    return [*earlier, *rows]


def kinds_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the kinds of prompts that rows are of, in the order of `KINDS`."""
    return [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]


class Point(NamedTuple):
    """A method at one level: its mean price, its mean score with an interval, and each score."""

    level: int
    price: float
    score: Interval
    by_prompt: dict[str, float]


def points(rows: Sequence[dict[str, Any]], kind: str) -> dict[str, list[Point]]:
    """Average each method of a kind of prompts at each of its prices, in the order of prices."""
    by_method: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        if row["kind"] == kind:
            of_method = by_method.setdefault(row["method"], {})
            of_method.setdefault(int(row["level"]), []).append(row)
    return {
        method: [_point(at) for _, at in sorted(levels.items())]
        for method, levels in by_method.items()
    }


def _point(rows: Sequence[dict[str, Any]]) -> Point:
    """Average the rows of one method at one level."""
    price = float(np.mean([float(row["price"]) for row in rows]))
    by_prompt = {f"{row['prompt']}": float(row["score"]) for row in rows}
    score = bootstrap_interval(np.array([*by_prompt.values()]))
    return Point(int(rows[0]["level"]), price, score, by_prompt)


def figure_of(rows: Sequence[dict[str, Any]], model: str) -> Figure:
    """Draw each method's scores over its prices, a panel for each kind of prompts, two in a row."""
    kinds = kinds_of(rows)
    height = -(-len(kinds) // 2)
    figure = ShownFigure(9, 1 + 3 * height)
    panels = figure.subplots(height, 2, sharey="row", squeeze=False).ravel()
    for axes in panels[len(kinds) :]:
        axes.remove()
    for axes, kind in zip(panels, kinds, strict=False):
        by_method = points(rows, kind)
        for number, name in enumerate(METHODS):
            if name in by_method:
                _draw(axes, by_method[name], name, number)
        axes.set_title(f"{kind}, {len(by_method[MASK][0].by_prompt)} prompts", fontsize=9)
        axes.set_xlabel("price: tokens read, over the whole text's", fontsize=8)
        axes.set_xscale("log")
        axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    for axes in panels[: len(kinds) : 2]:
        axes.set_ylabel("rank correlation with texts that none read", fontsize=8)
    figure.suptitle(f"Scores of an answer's parts at every price, {model}", fontsize=10)
    legend_below(figure, columns=4)
    return figure


def _draw(axes: Axes, of_method: Sequence[Point], name: str, number: int) -> None:
    """Draw one method's line, with intervals."""
    width = 2.2 if name == INFORMED else 1
    style: dict[str, Any] = {**line_style(number), "linewidth": width}
    scores = [point.score for point in of_method]
    below = [score.value - score.low for score in scores]
    above = [score.high - score.value for score in scores]
    axes.errorbar(
        [point.price for point in of_method],
        [score.value for score in scores],
        yerr=[below, above],
        label=name,
        capsize=2,
        **style,
    )


def finding_of(rows: Sequence[dict[str, Any]]) -> str:
    """Say at which prices informed ablations are not below any other method, and where they are."""
    levels = [
        (kind, point, *_best_beside(by_method, point))
        for kind in kinds_of(rows)
        for by_method in [points(rows, kind)]
        for point in by_method[INFORMED]
    ]
    behind = [
        f"{kind}, {own.level} texts: {own.score.value:.2f} beside {best.score.value:.2f} of "
        f"{method}, {_difference_words(own, best)}"
        for kind, own, method, best in levels
        if own.score.value < best.score.value - NEAR
    ]
    sentence = (
        f"**Of {len(levels)} prices informed ablations are at {len(levels) - len(behind)} as "
        f"faithful as any other method that costs no more, within {NEAR}.**"
    )
    if not behind:
        return sentence
    return f"{sentence} Below it, with 95 % for the difference: {'; '.join(behind)}."


def _best_beside(by_method: dict[str, list[Point]], own: Point) -> tuple[str, Point]:
    """Return the method of the best score among those that cost no more, and its point."""
    others = [
        (method, point)
        for method, of_method in by_method.items()
        for point in of_method
        if method not in (INFORMED, DESIGNED, HIERARCHY) and point.price <= own.price + SAME_PRICE
    ]
    return max(others, key=lambda other: float(other[1].score.value))


def _difference_words(own: Point, other: Point) -> str:
    """Say between which numbers the difference of two points lies, over prompts that both have."""
    shared = own.by_prompt.keys() & other.by_prompt.keys()
    differences = [own.by_prompt[name] - other.by_prompt[name] for name in sorted(shared)]
    interval = bootstrap_interval(np.array(differences))
    return f"{interval.low:+.2f} to {interval.high:+.2f}"


def below_the_gradient(rows: Sequence[dict[str, Any]]) -> str:
    """Say where informed ablations are below the mask gradient that they begin with."""
    below = [
        f"{kind}, {point.level} texts: {point.score.value:.2f} beside {gradient.score.value:.2f}"
        for kind in kinds_of(rows)
        for by_method in [points(rows, kind)]
        for (gradient,) in [by_method[MASK]]
        for point in by_method[INFORMED]
        if point.score.value < gradient.score.value - NEAR
    ]
    if not below:
        return ""
    return f" Texts are then trusted too much, below the mask gradient itself: {'; '.join(below)}."


DOCUMENTS_FIRST = """
Where sentences are more than texts tell apart, "informed, documents first" leaves out whole
documents in half of the texts; in the rest, single sentences of the documents whose score is then
beyond two errors of zero, and others whole. One regression takes both. That was chosen among ten
rules on other prompts; on these its score is
{beside}.
It is not in the package.
"""


def documents_first_words(rows: Sequence[dict[str, Any]]) -> str:
    """Say how texts without whole documents do."""
    for kind in kinds_of(rows):
        by_method = points(rows, kind)
        if HIERARCHY in by_method:
            levels = {point.level: point for point in by_method[INFORMED]}
            beside = [
                f"{point.score.value:.2f} beside {levels[point.level].score.value:.2f} of informed "
                f"on {point.level} texts"
                for point in by_method[HIERARCHY]
            ]
            return DOCUMENTS_FIRST.format(beside=", ".join(beside))
    return ""


PAGE = """\
# The best attribution at every price

{finding}

`python -m benchmarks.validation.prices MODEL` let {model} answer prompts:
{prompts}. It scored their parts by every method at several prices. A price
counts the tokens that the method reads, over those of the whole text: a text without half of its
parts costs about a half, and a gradient two more than its pass forward. A score is the rank
correlation over {held_out} texts without about half of their parts, which no method read: between
the sum of the parts' scores that a text keeps, and the answer's log-probability there. With 95 %
over prompts.

![Scores over prices](prices.png)

{tables}
Informed ablations are the mask gradient and texts that a Hadamard matrix chooses, by a regression
that is shrunk towards the former, the more the less the gradient says of a part; "designed texts
alone" is shrunk towards zero. The rule was chosen on eight other prompts of forty keys and
eight of sentences.{below}

ContextCite is a Lasso on texts that keep each part by the toss of a coin.
KernelSHAP and ProxySPEX are of the package shapiq; where the latter fails on a prompt, that is left
out. Long texts take long to read: there these two are fitted on fewer numbers of texts. Sentences
are those of five documents of Python's help, in each of which one more says a fact; titles count as
sentences.
{documents_first}
Every prompt is a row of [prices.csv](prices.csv).
"""


def page_of(rows: Sequence[dict[str, Any]], model: str) -> str:
    """Write the page: the finding, the figure, and a table for each kind of prompts."""
    tables = []
    counts = []
    for kind in kinds_of(rows):
        counts.append(f"{len({row['prompt'] for row in rows if row['kind'] == kind})} of {kind}")
        lines = [f"| {kind}: method | price | score |", "|---|---|---|"]
        for name, of_method in points(rows, kind).items():
            lines += [
                f"| {name} | {point.price:.1f} | {point.score.value:.2f} "
                f"({point.score.low:.2f} to {point.score.high:.2f}) |"
                for point in of_method
            ]
        tables.append("\n".join(lines) + "\n")
    return PAGE.format(
        finding=finding_of(rows),
        model=model,
        prompts=", ".join(counts),
        held_out=HELD_OUT,
        below=below_the_gradient(rows),
        documents_first=documents_first_words(rows),
        tables="\n".join(tables),
    )


def main() -> None:
    """Score the prompts, and write the table, the figure and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="a folder, a GGUF file or a name")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS, help="of prompts")
    parser.add_argument("--prompts", type=int, default=20, help="of each kind")
    parser.add_argument("--out", type=Path, default=Path("prices"), help="the folder to write to")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = LanguageModel.from_pretrained(options.model)
    table = options.out / "prices.csv"
    rows = study(model, options.kinds, options.prompts, options.out)
    rows = with_earlier(rows, options.kinds, table)
    table.write_text(data_file(rows), encoding="utf-8")
    figure_of(rows, model.name).savefig(options.out / "prices.png")
    page = page_of(rows, model.name)
    (options.out / "prices.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
