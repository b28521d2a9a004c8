"""Which documents suffice alone, or are needed together: how often `lim_jax.ask` says it rightly.

``python -m benchmarks.validation.together MODEL [--draws N] [--out FOLDER]`` asks a model questions
about five or six documents: of which two state the evidence, of which each holds one half of it,
and of which one states it. It reads the texts without each set of documents too, to which methods
of the package shapiq are fitted. It writes ``together.csv``, a row for each answer and method, and
``together.md``. An interrupted run goes on. Needs the extra ``prices``.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import lim_jax as lim
from benchmarks.report import data_file
from benchmarks.validation.pairs_of_shapiq import REGRESSION, Fitted, fit_pairs
from benchmarks.validation.prices import INFORMED, PROXY_SPEX
from benchmarks.validation.subsets import Subsets, claims, kept_of_sets, read_subsets
from benchmarks.validation.together_page import ALL_TEXTS, SHARES, page_of
from benchmarks.validation.together_questions import KINDS, Drawn, drawn_question, said_of
from lim_jax._digest import digest
from lim_jax._partial_runs import each_once
from lim_jax.attribution.ablation_design import balanced_design
from lim_jax.attribution.methods import mask_gradient
from lim_jax.attribution.methods.informed import PASSES, texts_of_passes
from lim_jax.attribution.together import SETS, Together
from lim_jax.models import LanguageModel

# Draws a question of a kind by a seed.
Draw = Callable[[str, int], Drawn]

TITLE = "Which documents suffice alone, and which are needed together?"
ABOUT = """\
`python -m benchmarks.validation.together MODEL` asked {model} {questions} questions about five or
six documents of a sentence each. Of a kind two documents state the evidence, one in other words. Of
the next each holds one half of it: who somebody's neighbour is, and what that neighbour does. Of
the last one document states it. Explained is the right answer. Brackets have 95 % over questions
drawn anew. A network that does need both halves is [asked the same](trained_together.md)."""


def read_question(model: LanguageModel, draw: Draw, kind: str, seed: int) -> dict[str, Any]:
    """Explain the right answer by informed ablations, and read all texts without documents."""
    drawn = draw(kind, seed)
    explained = lim.ask(
        model, drawn.question, drawn.documents, answer=drawn.answer, method="informed"
    )
    together = explained.together
    assert together is not None  # the default budget is enough
    subsets = read_subsets(model.network, explained)
    return {
        "kind": kind,
        "seed": seed,
        "question": drawn.question,
        "answer": drawn.answer,
        "evidence": drawn.evidence,
        "given": explained.total_effect,
        "names": together.names,
        "losses": together.losses.tolist(),
        "documents": subsets.names,
        "lost": subsets.lost.tolist(),
        "tokens": subsets.tokens.tolist(),
    }


def read_all(model: LanguageModel, draw: Draw, draws: int, folder: Path) -> list[dict[str, Any]]:
    """Read so many questions of each kind; an interrupted run goes on."""
    readings = {
        f"{kind} {seed}": partial(read_question, model, draw, kind, seed)
        for seed in range(draws)
        for kind in KINDS
    }
    bar = partial(tqdm, desc="explaining", unit="answer")
    run = {"function": "together", "model": digest(model.network)}
    return list(each_once(readings, folder / "unfinished.json", run, bar).values())


def rows_of(reading: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what each method says of the documents of a question that was read."""
    subsets = Subsets(
        tuple(reading["documents"]), np.array(reading["lost"]), np.array(reading["tokens"])
    )
    together = Together(tuple(reading["names"]), np.array(reading["losses"]))
    price = price_of_informed(subsets, together.names)
    every = len(subsets.lost)
    texts = min(every, round(price * every / subsets.price(kept_of_sets(len(subsets.names)))))
    said = {
        INFORMED: Fitted(price, together),
        PROXY_SPEX: fit_pairs(PROXY_SPEX, subsets, texts),
        ALL_TEXTS: fit_pairs(PROXY_SPEX, subsets, every),
        REGRESSION: fit_pairs(REGRESSION, subsets, texts),
    }
    about = {name: reading[name] for name in ("kind", "seed", "given")}
    return [
        {**about, "method": method, **_judge(fitted, subsets, reading)}
        for method, fitted in said.items()
    ]


def price_of_informed(subsets: Subsets, names: Sequence[str]) -> float:
    """Return how many tokens informed ablations read to score documents, over the whole text's.

    A gradient costs two more than its pass forward.
    """
    design = balanced_design(len(subsets.names), texts_of_passes(PASSES - SETS, 1))
    sets = subsets.kept_without(names)[1:]  # the first of them is the whole
    gradient = mask_gradient.METHOD.cost(len(subsets.names), 1).total
    return gradient + subsets.price(np.concatenate([design, sets]))


def _judge(fitted: Fitted, subsets: Subsets, reading: dict[str, Any]) -> dict[str, Any]:
    """Judge what is said of documents by how they were written, and by what the model loses."""
    evidence = reading["evidence"]
    together = fitted.together
    losses = {frozenset(names): loss for names, loss in together.losses_by_set().items()}
    pair = [*evidence, *evidence][:2]  # of one document it is twice this
    said = claims(together.groups)
    pairs = subsets.pairs
    return {
        "question": reading["question"],
        "answer": reading["answer"],
        "price": fitted.price,
        "failed": int(not together.names),
        "among the first": len({*together.names} & {*evidence}),
        "without the first": losses.get(frozenset(pair[:1])),
        "without the second": losses.get(frozenset(pair[1:])),
        "without both": losses.get(frozenset(pair)),
        "said": said_of(together.groups, pair),
        **{
            f"said at {name}": said_of(together.groups_at(share), pair)
            for name, share in SHARES.items()
        },
        "right": KINDS[reading["kind"]],
        "for the model": said_of(subsets.together(evidence).groups, pair),
        "pairs": len(pairs),
        "within": sum(names <= {*together.names} for names, _ in pairs),
        "found": len(pairs & said),
        "not so": sum(not subsets.holds(claim) for claim in said),
    }


def main() -> None:
    """Ask, and write the table and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="a folder, a GGUF file or a name")
    parser.add_argument("--draws", type=int, default=24, help="of each kind of documents")
    parser.add_argument("--out", type=Path, default=Path("together"), help="the folder to write to")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = LanguageModel.from_pretrained(options.model)
    readings = read_all(model, drawn_question, options.draws, options.out)
    rows = [row for reading in tqdm(readings, desc="judging") for row in rows_of(reading)]
    (options.out / "together.csv").write_text(data_file(rows), encoding="utf-8")
    about = ABOUT.format(model=model.name, questions=len(readings))
    page = page_of(rows, TITLE, about, "together.csv")
    (options.out / "together.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
