r"""A published model, trained further by arms that learn from answers, from evidence or from both.

Answers are those of prompts whose gold record stands at the edges. Evidence is told by probes whose
gold record stands anywhere: which record holds the answer, not the answer. All arms of a seed see
the same prompts, and are judged by gold place on prompts drawn anew, at equal steps and at equal
time. Seconds are the processor's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from benchmarks.validation.intervals import Interval, paired_interval
from benchmarks.validation.laws import Law, edge_law, uniform_law
from benchmarks.validation.remedies import PLAIN
from benchmarks.validation.retrievers import PlaceScores, in_the_middle
from benchmarks.validation.study import BEFORE
from benchmarks.validation.texts import PromptSetting, TextBatch, drawn_prompt, text_batch
from benchmarks.validation.tuning import judge, trained_rows, tuning_gradient
from lim_jax._checks import (
    AnyPath,
    as_path,
)
from lim_jax._digest import digest
from lim_jax._jit import filter_jit
from lim_jax._partial_runs import Run, each_once
from lim_jax.models.causal import CausalLM
from lim_jax.tasks.prompts import Example
from lim_jax.training.loop import resumable

Places = Int[np.ndarray, " prompts"]
SELECTIVE = "answers and evidence"
ALONE = "evidence alone"
AT_EQUAL_STEPS = "plain at equal steps"
AT_EQUAL_TIME = "plain at equal time"
OVER = (BEFORE, AT_EQUAL_STEPS, AT_EQUAL_TIME)


class Tuning(NamedTuple):
    """How a published model is trained further, and what it is asked.

    Attributes
    ----------
    short, longer
        The prompts of training, and longer ones, which it is not trained on: how many of each it is
        asked at every stage, a multiple of the records.
    seeds
        Runs, each on prompts of its own.
    stages, every
        How often an arm is judged, and the steps between.
    batch, probes
        Prompts in a step, with answers and with evidence.
    rate
        Of Adam. Of 1e-4 and 3e-4, tried on the prompts of seed 100, the one at which plain training
        of SmolLM2-135M is not done in six steps.
    strength
        Of the penalty.
    last
        How many of the last layers train; None for all.
    """

    short: PromptSetting = PromptSetting(10, 30)
    longer: PromptSetting = PromptSetting(20, 20)
    seeds: int = 3
    stages: int = 4
    every: int = 4
    batch: int = 4
    probes: int = 1
    rate: float = 1e-4
    strength: float = 1.0
    last: int | None = None


class Parts(NamedTuple):
    """What an arm learns from.

    Attributes
    ----------
    answers, evidence
        Whether it does.
    """

    answers: bool
    evidence: bool


TUNED = {PLAIN: Parts(True, False), SELECTIVE: Parts(True, True), ALONE: Parts(False, True)}


class _State(NamedTuple):
    """What a step moves: the rows that train, and the optimiser's moments."""

    rows: PyTree
    moments: PyTree


class _Judged(NamedTuple):
    """After a stage, by gold place; and the processor's seconds of its steps."""

    short: PlaceScores
    longer: PlaceScores
    seconds: Float[Array | np.ndarray, ""]


class _Texts(NamedTuple):
    """Of all that a seed reads: prompts, or batches of them, in the order in which it does."""

    training: Any
    probes: Any
    short: Any
    longer: Any


def tune(
    model: CausalLM,
    tokenizer: Any,
    tuning: Tuning,
    *,
    seed: int = 0,
    folder: AnyPath | None = None,
    progress: Callable[[list], Iterable] = iter,
) -> dict[str, Any]:
    """Train a published model further by each arm of `TUNED`, and judge it after every stage.

    All arms of a seed see the same prompts, and are asked the same.

    Parameters
    ----------
    model
        Whole, from `models.load`.
    tokenizer
        The model's own (`LanguageModel.tokenizer`); None where ids are bytes of UTF-8.
    tuning
        How.
    seed
        The first; the others follow.
    folder
        Where runs are kept as they are done, and the stages of the one that is not: called again
        with the same arguments it goes on from there.
    progress
        Wraps the list of runs, for example ``tqdm.tqdm``.

    Returns
    -------
    dict
        What JSON holds: ``"tuning"``; ``"trained"``, how many numbers train; and ``"arms"``, by
        name ``"steps"`` after which it was judged, ``"seconds_per_step"`` of the processor, by
        seed, and ``"short"`` and ``"longer"``: of `PlaceScores` each by stage, seed and place.
    """
    rows = trained_rows(model, tuning.last)
    folder = None if folder is None else as_path(folder, "folder")
    file = None if folder is None else folder / "tuning.jsonl"
    seeds = range(seed, seed + tuning.seeds)
    texts = _texts(tuning, tokenizer, seeds, model.embedding.dtype)
    about = {
        "function": "tune",
        "model": digest(model),
        "texts": digest(texts),
        "tuning": tuning._asdict(),
    }
    runs = {}
    for each in seeds:
        runs[f"{each}, {BEFORE}"] = partial(_before, model, rows, texts[each])
        for arm in TUNED:
            checkpoint = None if folder is None else folder / f"{each}, {arm}.eqx"
            runs[f"{each}, {arm}"] = partial(
                _run, tuning, model, rows, texts[each], arm, about, checkpoint
            )
    results = each_once(runs, file, about, progress)
    by_seed = {name: [results[f"{each}, {name}"] for each in seeds] for name in (BEFORE, *TUNED)}
    settings = {"short": tuning.short._asdict(), "longer": tuning.longer._asdict()}
    return {
        "tuning": tuning._asdict() | settings,
        "trained": sum(leaf.size for leaf in jax.tree.leaves(rows)),
        "arms": {arm: _record(tuning, by_seed[BEFORE], by_seed[arm]) for arm in TUNED},
    }


def _before(model: CausalLM, rows: PyTree, texts: _Texts) -> dict[str, Any]:
    """Judge how a model answers before any step."""
    return _plain_numbers(_Judged(*_both(model, rows, texts), np.zeros(())))


def _run(
    tuning: Tuning,
    model: CausalLM,
    rows: PyTree,
    texts: _Texts,
    arm: str,
    about: Run,
    checkpoint: Path | None,
) -> dict[str, Any]:
    """Run one arm of one seed; return plain numbers by stage."""
    parts = TUNED[arm]
    every = tuning.every
    state_before = _State(rows, optax.adam(tuning.rate).init(rows))

    def update(state: _State, index: int) -> _State:
        """Take one step, on the texts of its number."""
        training = texts.training[index] if parts.answers else None
        probes = texts.probes[index] if parts.evidence else None
        return _update(tuning.rate, tuning.strength, model, state, training, probes)

    def stage(state: _State, number: int) -> tuple[_State, _Judged]:
        """Take a stage's steps, and judge the network and the time that they took."""
        start = process_time()
        for index in range(number * every, (number + 1) * every):
            state = update(state, index)
        jax.block_until_ready(state)
        seconds = jnp.asarray(process_time() - start, model.embedding.dtype)
        return state, _Judged(*_both(model, state.rows, texts), seconds)

    jax.block_until_ready(update(state_before, 0))  # so that no stage's time compiles
    _, judgements = resumable(
        stage, state_before, tuning.stages, run=(about, arm), checkpoint=checkpoint
    )
    if checkpoint is not None:
        checkpoint.unlink()
    return _plain_numbers(judgements)


def _both(model: CausalLM, rows: PyTree, texts: _Texts) -> tuple[PlaceScores, PlaceScores]:
    return judge(model, rows, texts.short), judge(model, rows, texts.longer)


def _plain_numbers(judgements: _Judged) -> dict[str, Any]:
    by_name = judgements._replace(
        short=judgements.short._asdict(), longer=judgements.longer._asdict()
    )._asdict()
    return jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), by_name)


@filter_jit
def _update(
    rate: float,
    strength: float,
    model: CausalLM,
    state: _State,
    training: TextBatch | None,
    probes: TextBatch | None,
) -> _State:
    slope = tuning_gradient(model, state.rows, training, probes, strength=strength)
    change, moments = optax.adam(rate).update(slope, state.moments)
    return _State(optax.apply_updates(state.rows, change), moments)


def _texts(tuning: Tuning, tokenizer: Any, seeds: range, dtype: DTypeLike) -> dict[int, _Texts]:
    """Return every seed's prompts: those of training, of probes and of tests, no two alike.

    All short ones are padded to one length, all longer ones to another.
    """
    short = tuning.short
    longer = tuning.longer
    steps = tuning.every * tuning.stages
    edges = edge_law(short.records)
    anywhere = uniform_law(short.records)
    examples = partial(_examples, tokenizer)
    by_seed = {
        seed: _Texts(
            examples(short, (seed, 0), _drawn_places(edges, steps * tuning.batch, (seed, 0))),
            examples(short, (seed, 1), _drawn_places(anywhere, steps * tuning.probes, (seed, 1))),
            examples(short, (seed, 2), np.arange(short.prompts) % short.records),
            examples(longer, (seed, 3), np.arange(longer.prompts) % longer.records),
        )
        for seed in seeds
    }
    counts = _Texts(tuning.batch, tuning.probes, short.records, longer.records)
    all_short = [example for each in by_seed.values() for part in each[:3] for example in part]
    all_longer = [example for each in by_seed.values() for example in each.longer]
    padded_alike = _Texts(all_short, all_short, all_short, all_longer)
    return {
        seed: _Texts._make(
            _batches(part, count, like, dtype)
            for part, count, like in zip(each, counts, padded_alike, strict=True)
        )
        for seed, each in by_seed.items()
    }


def _drawn_places(law: Law, count: int, key: tuple[int, int]) -> Places:
    odds = np.asarray(law, float)
    return np.random.default_rng(key).choice(len(odds), count, p=odds / odds.sum())


def _examples(
    tokenizer: Any, setting: PromptSetting, of: tuple[int, int], places: Places
) -> list[Example]:
    """Draw prompts of a seed and a kind, which no other seed or kind has."""
    seed, kind = of
    first = (4 * seed + kind) * 2**32
    return [
        drawn_prompt(setting, first + index, tokenizer, place=int(place))
        for index, place in enumerate(places)
    ]


def _batches(
    examples: Sequence[Example], count: int, padded_alike: Sequence[Example], dtype: DTypeLike
) -> list[TextBatch]:
    """Stack so many at a time, all as long as the longest of those that are to be alike."""
    records = 1 + max(int(example.records.max()) for example in examples)
    size = max(len(example.weights) for example in padded_alike)
    queries = max(int(np.count_nonzero(example.weights)) for example in padded_alike)
    return [
        text_batch(examples[at : at + count], records, size=size, queries=queries, dtype=dtype)
        for at in range(0, len(examples), count)
    ]


def _record(
    tuning: Tuning, before: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return an arm's scores by stage, seed and place; the first stage is before any step."""
    seconds = np.array([run["seconds"] for run in runs])
    stages = seconds.shape[1]

    def course(length: str, name: str) -> list:
        """Return one measure of all seeds, from before training to the last stage."""
        by_seed = [
            [start[length][name], *run[length][name]]
            for start, run in zip(before, runs, strict=True)
        ]
        return np.swapaxes(by_seed, 0, 1).tolist()

    return {
        "steps": [tuning.every * stage for stage in range(stages + 1)],
        "seconds_per_step": (seconds.sum(axis=1) / (tuning.every * stages)).tolist(),
        "short": {name: course("short", name) for name in PlaceScores._fields},
        "longer": {name: course("longer", name) for name in PlaceScores._fields},
    }


class TuningGain(NamedTuple):
    """What an arm has over another network, paired by seed, with 95 % intervals by Student's t.

    Attributes
    ----------
    accuracy, middle
        Means over gold places, and over those at neither edge.
    cross_entropy
        Of the answer, over gold places.
    """

    accuracy: Interval
    middle: Interval
    cross_entropy: Interval


def tuning_gains(
    results: Mapping[str, Any], arm: str, over: str = AT_EQUAL_STEPS, *, length: str = "short"
) -> dict[int, TuningGain]:
    """Compare an arm with where it began, or with the plain one, by the steps that it took.

    Parameters
    ----------
    results
        Of `tune`.
    arm
        A name of `TUNED`.
    over
        What it is compared with, one of `OVER`. At equal time the plain arm has trained for as
        many seconds, and stands between two stages; stages that it did not reach are left out.
    length
        Of the prompts that are asked: ``"short"`` or ``"longer"``.
    """
    ours = results["arms"][arm]
    plain = results["arms"][PLAIN]
    dearer = np.mean(ours["seconds_per_step"]) / np.mean(plain["seconds_per_step"])
    factor = {BEFORE: 0.0, AT_EQUAL_STEPS: 1.0, AT_EQUAL_TIME: float(dearer)}[over]
    mine = _by_measure(ours[length])
    theirs = _by_measure(plain[length])

    def difference(name: str, stage: int, at_steps: float) -> Interval:
        """Return the gain in a measure over plain training after so many steps of it."""
        there = [np.interp(at_steps, plain["steps"], course) for course in theirs[name].T]
        return paired_interval(mine[name][stage] - np.array(there))

    return {
        steps: TuningGain(*(difference(name, stage, factor * steps) for name in TuningGain._fields))
        for stage, steps in enumerate(ours["steps"])
        if stage and factor * steps <= plain["steps"][-1]
    }


def _by_measure(scores: Mapping[str, Any]) -> dict[str, Float[np.ndarray, "stages seeds"]]:
    accuracy = np.array(scores["accuracy"])
    return {
        "accuracy": accuracy.mean(axis=2),
        "middle": in_the_middle(accuracy),
        "cross_entropy": np.array(scores["cross_entropy"]).mean(axis=2),
    }
