r"""The validation that section 4 of the paper asks for: small Transformers on retrieval, by seeds.

Networks are trained here, so that anyone can run it. What comes out of each group of runs is plain
numbers, by seed, which are kept as soon as they are there; comparisons are made of them
afterwards (`compare_arms`), paired by seed.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from benchmarks.validation.accounts import explained_record, influence_record
from benchmarks.validation.further import Evaluation, evaluate, train_further
from benchmarks.validation.prediction import predict, record_scores
from benchmarks.validation.recalled import RECALLED, RecallSetting, recall_record
from benchmarks.validation.remedies import (
    ANSWERS,
    ARMS,
    PLAIN,
    SELECTIVE,
    SELECTIVE_TRUE,
    Arm,
    Batches,
)
from benchmarks.validation.retrieval import KeyValueTask, recall_examples
from benchmarks.validation.retrievers import (
    Retrievers,
    Setting,
    draw,
    examples_of_every_place,
    over_seeds,
    train_retrievers,
)
from benchmarks.validation.shifting import shift_record
from lim_jax._checks import AnyPath, as_path
from lim_jax._partial_runs import each_once
from lim_jax.cost.job import job_cost
from lim_jax.tasks.prompts import Example

KINDS = ("settings", "predictions", "arms", "variants", "shifts", "recalls")
BEFORE = "before"
BALANCED = "Algorithm 1, probes"
SHIFTED = (PLAIN, BALANCED, SELECTIVE)
FROM_FIRST = 12  # stages of training from the first step
LONGER = 5  # how many times the other arms' steps the plain one goes on for
LONG = f"{PLAIN}, {LONGER} times as long"
BASE = "16 records, depth 2"


class Variant(NamedTuple):
    """An ablation: a remedy with other options, or of other networks.

    Attributes
    ----------
    remedy, options
        One of `remedies.ARMS`, and what it is given beside the setting.
    setting
        The networks' name; None for the first.
    stages
        From networks before training for so many stages; None from those that are trained, for as
        many as the arms.
    """

    remedy: str
    options: dict[str, Any]
    setting: str | None = None
    stages: int | None = None


class Preset(NamedTuple):
    """How much is run.

    Attributes
    ----------
    settings
        Networks by name; the arms train the first further.
    arms
        Names of `remedies.ARMS`; the first is the plain one.
    variants
        Ablations by name. Those of other networks than the arms' have a plain arm of their own.
    seeds, stages, every
        Of each network, and of each arm: evaluations, and steps between.
    test
        Examples of each gold place.
    explained
        Contexts of an explanation, for channels and certificates, of the first networks and of
        what the arms make of them; none without.
    shifted
        Which of the networks are asked in longer contexts too, before and after `SHIFTED`; empty
        for none. Their places must be turned (`retrievers.Setting.rotary`).
    recall
        Networks of many questions, which learn from the first step; None for none.
    """

    settings: dict[str, Setting]
    arms: tuple[str, ...]
    variants: dict[str, Variant]
    seeds: int
    stages: int
    every: int
    test: int
    explained: int
    shifted: str = ""
    recall: RecallSetting | None = None


def presets() -> dict[str, Preset]:
    """Return what ``python -m benchmarks.validation`` runs: `quick` two minutes, `full` some 80."""
    base = Setting()
    small = Setting(KeyValueTask(8, 16, 8), steps=500)
    others = {
        "8 records, depth 2": small,
        "24 records, depth 2": base._replace(task=KeyValueTask(24)),
        "16 records, depth 4": base._replace(depth=4),
        "16 records, depth 2, rotary": base._replace(rotary=True, steps=600),
    }
    shorter, longer, deeper, turned = others
    return {
        "quick": Preset(
            {shorter: small._replace(steps=300)},
            (PLAIN, BALANCED, SELECTIVE),
            {},
            seeds=3,
            stages=4,
            every=25,
            test=64,
            explained=0,
        ),
        "full": Preset(
            {BASE: base, **others},
            tuple(ARMS),
            _ablations(shorter, longer, deeper),
            seeds=5,
            stages=4,
            every=100,
            test=128,
            explained=32,
            shifted=turned,
            recall=RecallSetting(),
        ),
    }


def _ablations(shorter: str, longer: str, deeper: str) -> dict[str, Variant]:
    own_answers = partial(Variant, SELECTIVE)
    true_answers = partial(Variant, SELECTIVE_TRUE)
    with_answers = partial(Variant, ANSWERS)
    algorithm_1 = partial(Variant, BALANCED)
    fewer_or_more = {
        f"{whose} answers, {count} probes": make({"probes": count})
        for whose, make in (("own", own_answers), ("true", true_answers))
        for count in (8, 32, 64)
    }
    return {
        **fewer_or_more,
        "own answers, every 4th step": own_answers({"every": 4}),
        "own answers, strength 0.3": own_answers({"strength": 0.3}),
        "own answers, clip 0.3": own_answers({"clip": 0.3}),
        "own answers, clip 3": own_answers({"clip": 3.0}),
        "own answers, 10 % of labels wrong": own_answers({"wrong": 0.1}),
        "own answers, 30 % of labels wrong": own_answers({"wrong": 0.3}),
        "own answers, only edge records labelled": own_answers({"law": "only edges"}),
        "answers of 16 probes": with_answers({"probes": 16}),
        "true answers, and these answers told": true_answers({"taught": True}),
        f"own answers, {longer}": own_answers({}, longer),
        f"own answers, {deeper}": own_answers({}, deeper),
        f"own answers, {shorter}, from the first step": own_answers({}, shorter, FROM_FIRST),
        "Algorithm 1, 16 probes": algorithm_1({"probes": 16}),
        "Algorithm 1, every 8th step": algorithm_1({"every": 8}),
    }


def validate(
    preset: Preset,
    *,
    seed: int = 0,
    folder: AnyPath | None = None,
    progress: Callable[[list], Iterable] = iter,
) -> dict[str, Any]:
    """Run a preset; what it gives is plain numbers in lists and dictionaries.

    Parameters
    ----------
    preset
        Of `presets`, or another.
    seed
        Of the first network; the others count on.
    folder
        Where the networks and the results so far are kept: a run that was interrupted goes on from
        them to the same numbers, times apart.
    progress
        Wraps the list of the groups' names, for example ``tqdm.tqdm``.

    Returns
    -------
    results
        ``"settings"`` and ``"predictions"``: by name, how well each network retrieves, what matters
        to it, and how both go together (`prediction.Prediction`); ``"arms"`` and
        ``"variants"``: by name, what came of training further; for each variant with its own
        plain arm. ``"shifts"``: before and after training further, at the length of training and
        at twice it (`shifting.shift_record`). ``"recalls"``: networks of many questions, told
        where evidence stands or not (`recalled.recall_record`).
    """
    folder = None if folder is None else as_path(folder, "folder")
    keys = jax.random.split(jax.random.key(seed), preset.seeds)
    runs = _Study(preset, seed, folder, keys, {}).groups()
    run = {
        "function": "validate",
        "version": version("lim_jax"),
        "seed": seed,
        "preset": repr(preset),
    }
    checkpoint = None if folder is None else folder / "study.json"
    results = each_once(runs, checkpoint, run, progress)
    kinds = {kind: {} for kind in KINDS}
    for name, result in results.items():
        kind, _, key = name.partition(": ")
        kinds[kind][key] = result
    return {"seed": seed, "preset": _preset_record(preset), **kinds}


class _Study(NamedTuple):
    """A preset's runs. Networks are trained once, and kept for those that follow."""

    preset: Preset
    seed: int
    folder: Path | None
    keys: Key[Array, " seeds"]
    kept: dict[str, Retrievers]

    def groups(self) -> dict[str, Callable[[], Any]]:
        """Return groups of runs by name."""
        preset = self.preset
        base = self.base
        runs: dict[str, Callable[[], Any]] = {
            f"settings: {name}": partial(self.run_setting, name) for name in preset.settings
        }
        for name in preset.settings:
            runs[f"predictions: {name}"] = partial(self.run_predictions, name)
        # The longer run is the plain one, taken up where it ended.
        stages = {**dict.fromkeys(preset.arms, preset.stages), LONG: LONGER * preset.stages}
        for name, count in stages.items():
            label = PLAIN if name == LONG else name
            arm = _arm(label, preset.settings[base])
            runs[f"arms: {name}"] = partial(
                self.run_arm, base, label, arm, count, explained=preset.explained
            )
        for name, variant in _with_plain(preset.variants).items():
            setting = variant.setting or base
            arm = _arm(variant.remedy, preset.settings[setting], **variant.options)
            runs[f"variants: {name}"] = partial(
                self.run_arm,
                setting,
                f"variant {name}",
                arm,
                variant.stages or preset.stages,
                trained=variant.stages is None,
            )
        for name in (BEFORE, *SHIFTED) if preset.shifted else ():
            runs[f"shifts: {name}"] = partial(self.run_shift, name)
        if preset.recall is not None:
            for name in RECALLED:
                runs[f"recalls: {name}"] = partial(self.run_recall, preset.recall, name)
        return runs

    @property
    def base(self) -> str:
        """The setting that the arms train further."""
        return next(iter(self.preset.settings))

    @property
    def attributed(self) -> int:
        """Examples of each gold place for attributions, which are dear."""
        return max(1, self.preset.test // 8)

    def networks(self, name: str, trained: bool = True) -> Retrievers:
        setting = self.preset.settings[name]
        file = _file(self.folder, name)
        if not trained:
            return train_retrievers(setting._replace(steps=0), self.keys)[0]
        if name not in self.kept:
            self.kept[name], _ = train_retrievers(setting, self.keys, checkpoint=file)
        return self.kept[name]

    def run_setting(self, name: str) -> dict[str, Any]:
        setting = self.preset.settings[name]
        explained = self.preset.explained
        return _setting_record(
            setting,
            self.networks(name),
            self.preset.test,
            explained if name == self.base else 0,
            jax.random.key(self.seed),
        )

    def run_predictions(self, name: str) -> list[dict[str, Any]]:
        setting = self.preset.settings[name]
        key = jax.random.key(self.seed)
        examples = examples_of_every_place(setting, self.attributed, key=key)
        scores = over_seeds(record_scores)(self.networks(name), examples)
        return [prediction.record() for prediction in predict(scores)]

    def run_arm(
        self,
        name: str,
        label: str,
        arm: Arm,
        stages: int,
        *,
        explained: int = 0,
        trained: bool = True,
    ) -> dict[str, Any]:
        models = self.networks(name, trained)
        file = _file(self.folder, label)
        return self.run(name).record(models, arm, stages, explained, file)

    def run_shift(self, name: str) -> dict[str, Any]:
        preset = self.preset
        models = self.networks(self.preset.shifted)
        setting = preset.settings[preset.shifted]
        if name != BEFORE:
            file = _file(self.folder, f"shifted {name}")
            run = self.run(preset.shifted)
            models, _ = run.train(models, _arm(name, setting), preset.stages, file)
        return shift_record(
            setting,
            models,
            test=preset.test,
            attributed=self.attributed,
            key=jax.random.key(self.seed),
        )

    def run_recall(self, setting: RecallSetting, arm: str) -> dict[str, Any]:
        test = recall_examples(setting.task, setting.test, key=jax.random.key(self.seed))
        file = _file(self.folder, f"recall {arm}")
        return recall_record(setting, self.keys, arm, test=test, checkpoint=file)

    def run(self, name: str) -> "_ArmRun":
        return _ArmRun(self.preset.settings[name], self.preset, jax.random.fold_in(self.keys[0], 7))


@cache
def _arm(remedy: str, setting: Setting, **options: Any) -> Arm:
    """Return one arm, however often it is asked for, so that its step is compiled once."""
    return ARMS[remedy](setting, **options)._replace(name=f"{remedy} {options}")


def _with_plain(variants: Mapping[str, Variant]) -> dict[str, Variant]:
    """Add the plain arms of those variants whose networks are others than the arms'."""
    with_plain = {}
    for name, variant in variants.items():
        with_plain[name] = variant
        if variant.setting is not None or variant.stages is not None:
            with_plain[f"{name}, {PLAIN}"] = variant._replace(remedy=PLAIN, options={})
    return with_plain


class _ArmRun(NamedTuple):
    """An arm on a setting."""

    setting: Setting
    preset: Preset
    key: Key[Array, ""]

    def test(self) -> Example:
        test_key, _, _ = jax.random.split(self.key, 3)
        return examples_of_every_place(self.setting, self.preset.test, key=test_key)

    def train(
        self, models: Retrievers, arm: Arm, stages: int, checkpoint: Path | None
    ) -> tuple[Retrievers, Evaluation]:
        _, batches_key, _ = jax.random.split(self.key, 3)
        return train_further(
            arm,
            self.setting,
            models,
            batches_key,
            self.test(),
            stages=stages,
            every=self.preset.every,
            checkpoint=checkpoint,
        )

    def record(
        self, models: Retrievers, arm: Arm, stages: int, explained: int, checkpoint: Path | None
    ) -> dict[str, Any]:
        _, batches_key, cost_key = jax.random.split(self.key, 3)
        test = self.test()
        before = evaluate(self.setting, test, jax.random.fold_in(batches_key, 1), models)
        trained, evaluations = self.train(models, arm, stages, checkpoint)
        return {
            "steps": [self.preset.every * stage for stage in range(stages + 1)],
            "seconds_per_step": float(np.median(np.asarray(evaluations.seconds)))
            / self.preset.every,
            **_cost(arm, self.setting, models, cost_key),
            **_course(before, evaluations),
            **influence_record(self.setting, trained, test),
            **(explained_record(self.setting, trained, explained, cost_key) if explained else {}),
        }


def _course(before: Evaluation, later: Evaluation) -> dict[str, Any]:
    """Return the evaluations, with that before the first step in front: by stage, then by seed."""
    courses = jax.tree.map(
        lambda first, others: np.concatenate([np.asarray(first)[None], np.asarray(others)]),
        (before.scores, before.risk, before.discrepancy),
        (later.scores, later.risk, later.discrepancy),
    )
    scores, risk, discrepancy = courses
    return {
        "accuracy": scores.accuracy.tolist(),
        "margin": scores.margin[-1].tolist(),
        "cross_entropy": scores.cross_entropy[-1].tolist(),
        "risk": risk.tolist(),
        "discrepancy": discrepancy.tolist(),
    }


def _cost(arm: Arm, setting: Setting, models: Retrievers, key: Key[Array, ""]) -> dict[str, Any]:
    """Count operations of one seed's gradient, averaged over steps, and its temporary memory."""

    def first_seed(models: Retrievers, key: Key[Array, ""]) -> tuple[Retrievers, Batches]:
        """Return the first seed's network, and batches of it."""
        model = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, models)
        examples = draw(setting, setting.gold_law, key=key)
        return model, Batches(examples, examples, jnp.zeros((), int), key)

    model, batches = eqx.filter_eval_shape(first_seed, models, key)
    cost = job_cost(arm.gradient, model, arm.memory, batches)
    operations = cost.operations
    if arm.every > 1:  # those between the looks are plain
        between = job_cost(_arm(PLAIN, setting).gradient, model, (), batches).operations
        operations = (operations + (arm.every - 1) * between) / arm.every
    return {"operations": operations, "temporary_bytes": cost.temporary}


def _setting_record(
    setting: Setting, models: Retrievers, test: int, explained: int, key: Key[Array, ""]
) -> dict[str, Any]:
    test_key, risk_key, explanation_key = jax.random.split(key, 3)
    examples = examples_of_every_place(setting, test, key=test_key)
    evaluation = evaluate(setting, examples, risk_key, models)
    return {
        **{name: np.asarray(part).tolist() for name, part in evaluation.scores._asdict().items()},
        "risk": evaluation.risk.tolist(),
        **influence_record(setting, models, examples),
        **(explained_record(setting, models, explained, explanation_key) if explained else {}),
    }


def _file(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / f"{name.replace(', ', '-').replace(' ', '_')}.run"


def _preset_record(preset: Preset) -> dict[str, Any]:
    settings = {
        name: {**setting._asdict(), "task": setting.task._asdict()}
        for name, setting in preset.settings.items()
    }
    variants = {name: variant._asdict() for name, variant in preset.variants.items()}
    recall = preset.recall
    if recall is not None:
        recall = {**recall._asdict(), "task": recall.task._asdict()}
    return {**preset._asdict(), "settings": settings, "variants": variants, "recall": recall}
