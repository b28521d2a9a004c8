r"""The validation that section 4 of the paper asks for: small Transformers on retrieval, by seeds.

Networks are trained here, so that anyone can run it. What comes out of each group of runs is plain
numbers, by seed, which are kept as soon as they are there; comparisons are made of them
afterwards (`compare_arms`), paired by seed.
"""

from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from lim_jax._checks import AnyPath, as_path, counted, require, require_kind
from lim_jax._resuming import each_once
from lim_jax.cost.job import job_cost
from lim_jax.density.adjoints import adjoint_energies
from lim_jax.density.statistics import Influence
from lim_jax.explanations.explanation import explain
from lim_jax.grid.cells import token_grid
from lim_jax.grid.partition import Regions, boundary_regions
from lim_jax.loss.queries import last_token
from lim_jax.tasks.laws import uniform_law
from lim_jax.tasks.prompts import Example
from lim_jax.tasks.retrieval import KeyValueTask
from lim_jax.validation.further import Evaluation, evaluate, train_further
from lim_jax.validation.prediction import predict, record_scores
from lim_jax.validation.remedies import ARMS, PLAIN, Arm, Batches, balanced_on_probes
from lim_jax.validation.retrievers import (
    ANSWER_LOSS,
    MARGIN_LOSS,
    Retrievers,
    Setting,
    asked,
    draw,
    examples_of_every_place,
    of_seeds,
    require_retrievers,
    require_setting,
    train_retrievers,
)
from lim_jax.validation.shifting import shift_record

KINDS = ("settings", "predictions", "arms", "variants", "shifts")
BEFORE, BALANCED = "before", "Algorithm 1, probes"
DELTA = 0.2
LONGER = 5  # how many times the other arms' steps the plain one goes on for
LONG = f"{PLAIN}, {LONGER} times as long"
BASE = "16 records, depth 2"


class Preset(NamedTuple):
    """How much is run.

    Attributes
    ----------
    settings
        Networks by name; the arms train the first further.
    arms
        Names of `remedies.ARMS`; the first is the plain one.
    variants
        Ablations of Algorithm 1 on probes by name: the setting's name, and options of
        `remedies.balanced_on_probes`.
    seeds, stages, every
        Of each network, and of each arm: evaluations, and steps between.
    test
        Examples of each gold place.
    explained
        Contexts of an explanation, for channels and certificates, of the first networks and of
        what the arms make of them; none without.
    shifted
        Which of the networks are asked in longer contexts too, before and after two of the arms;
        empty for none. Their places must be turned (`retrievers.Setting.rotary`).
    """

    settings: dict[str, Setting]
    arms: tuple[str, ...]
    variants: dict[str, tuple[str, dict[str, Any]]]
    seeds: int
    stages: int
    every: int
    test: int
    explained: int
    shifted: str = ""


def presets() -> dict[str, Preset]:
    """What ``lim-jax study`` runs: `quick` in some three minutes, `full` in an hour and a half."""
    base = Setting()
    lengths = {
        f"{records} records, depth 2": base._replace(task=KeyValueTask(records))
        for records in (8, 24)
    }
    depths = {f"16 records, depth {depth}": base._replace(depth=depth) for depth in (3, 4)}
    earlier = {"16 records, depth 2, 700 steps": base._replace(steps=700)}
    turned = {"16 records, depth 2, rotary": base._replace(rotary=True, steps=600)}
    shorter, deeper = next(iter(lengths)), next(iter(depths))
    strengths = {f"strength {beta:g}": (BASE, {"strength": beta}) for beta in (0.1, 0.3, 10.0)}
    others = {name: (name, {}) for name in (*earlier, shorter, deeper)}
    fewer = {f"{count} probes a step": (BASE, {"probes": count}) for count in (16, 32)}
    rarer = {f"every {nth} step": (BASE, {"every": int(nth[0])}) for nth in ("4th", "8th")}
    small = base._replace(task=KeyValueTask(8, 16, 8), steps=500)
    return {
        "quick": Preset(
            {"8 records, depth 2": small}, (PLAIN, "importance weights", "Algorithm 1, probes"),
            {}, seeds=3, stages=4, every=25, test=64, explained=0,
        ),
        "full": Preset(
            {BASE: base, **earlier, **lengths, **depths, **turned}, tuple(ARMS),
            {
                **strengths,
                **others,
                "target raised in the middle": (BASE, {"target": "middle"}),
                "probes of the training law": (BASE, {"law": base.law}),
                "probes that ask in the middle": (BASE, {"law": "middle"}),
                **fewer,
                **rarer,
            },
            seeds=5, stages=4, every=100, test=128, explained=32, shifted=next(iter(turned)),
        ),
    }  # fmt: skip


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
        at twice it (`shifting.shift_record`).

    Raises
    ------
    ValueError
        Where the first arm is not the plain one, or the folder is of another run.
    """
    require_kind(preset, Preset, "preset", "Take one of presets().")
    seed = counted(seed, "seed", least=0)
    require(
        preset.arms[:1] == (PLAIN,),
        "arms",
        got=f"{preset.arms}",
        expected=f"{PLAIN!r} at the first",
        cure="The others are compared with it.",
    )
    folder = None if folder is None else as_path(folder, "folder")
    runs = _groups(preset, seed, folder)
    run = {"function": "validate", "version": version("lim_jax"), "seed": seed,
           "preset": repr(preset)}  # fmt: skip
    checkpoint = None if folder is None else folder / "study.json"
    found = each_once(runs, checkpoint, run, progress)
    kinds = {kind: {} for kind in KINDS}
    for name, result in found.items():
        kind, _, key = name.partition(": ")
        kinds[kind][key] = result
    return {"seed": seed, "preset": _described(preset), **kinds}


def _groups(preset: Preset, seed: int, folder: Path | None) -> dict[str, Callable[[], Any]]:
    """Groups of runs by name. Networks are trained once, and kept for those that follow."""
    keys = jax.random.split(jax.random.key(seed), preset.seeds)
    kept: dict[str, Retrievers] = {}
    base, attributed = next(iter(preset.settings)), max(1, preset.test // 8)

    def networks(name: str) -> Retrievers:
        if name not in kept:
            kept[name], _ = train_retrievers(
                preset.settings[name], keys, checkpoint=_file(folder, name)
            )
        return kept[name]

    def of_setting(name: str) -> dict[str, Any]:
        setting, explained = preset.settings[name], preset.explained if name == base else 0
        return _setting_record(
            setting, networks(name), preset.test, explained, jax.random.key(seed)
        )

    def of_predictions(name: str) -> list[dict[str, Any]]:
        setting = preset.settings[name]
        examples = examples_of_every_place(setting, attributed, key=jax.random.key(seed))
        judged = of_seeds(record_scores)(networks(name), examples)
        return [one.record() for one in predict(judged)]

    def of_arm(name: str, label: str, arm: Arm, stages: int, looks: int) -> dict[str, Any]:
        run = _Run(preset.settings[name], preset, jax.random.fold_in(keys[0], 7))
        return run.record(networks(name), arm, stages, looks, _file(folder, label))

    def of_shift(name: str) -> dict[str, Any]:
        models, setting = networks(preset.shifted), preset.settings[preset.shifted]
        if name != BEFORE:
            run = _Run(setting, preset, jax.random.fold_in(keys[0], 7))
            file = _file(folder, f"shifted {name}")
            models, _ = run.trained(models, _arm(ARMS[name], setting), preset.stages, file)
        return shift_record(
            setting, models, test=preset.test, attributed=attributed, key=jax.random.key(seed)
        )

    runs: dict[str, Callable[[], Any]] = {
        f"settings: {name}": partial(of_setting, name) for name in preset.settings
    }
    for name in preset.settings:
        runs[f"predictions: {name}"] = partial(of_predictions, name)
    # The longer run is the plain one, taken up where it ended.
    stages = {**dict.fromkeys(preset.arms, preset.stages), LONG: LONGER * preset.stages}
    for name, count in stages.items():
        label = PLAIN if name == LONG else name
        arm = _arm(ARMS[label], preset.settings[base])
        runs[f"arms: {name}"] = partial(of_arm, base, label, arm, count, preset.explained)
    for name, (setting, arm) in _variants(preset, base).items():
        label = f"variant {name}"
        runs[f"variants: {name}"] = partial(of_arm, setting, label, arm, preset.stages, 0)
    if preset.shifted:
        shifts = (BEFORE, PLAIN, BALANCED)
        runs |= {f"shifts: {name}": partial(of_shift, name) for name in shifts}
    return runs


@cache
def _arm(make: Callable[[Setting], Arm], setting: Setting) -> Arm:
    """One, however often it is asked for, so that its step is compiled once."""
    return make(setting)


def _variants(preset: Preset, base: str) -> dict[str, tuple[str, Arm]]:
    """The setting and the arm of each, and plain arms of those whose networks are others."""
    found = {}
    for name, (setting, options) in preset.variants.items():
        found[name] = setting, balanced_on_probes(preset.settings[setting], **options)
        if setting != base:
            found[f"{name}, {PLAIN}"] = setting, _arm(ARMS[PLAIN], preset.settings[setting])
    return found


class _Run(NamedTuple):
    """An arm on a setting."""

    setting: Setting
    preset: Preset
    key: Key[Array, ""]

    def test(self) -> Example:
        of_test, _, _ = jax.random.split(self.key, 3)
        return examples_of_every_place(self.setting, self.preset.test, key=of_test)

    def trained(
        self, models: Retrievers, arm: Arm, stages: int, checkpoint: Path | None
    ) -> tuple[Retrievers, Evaluation]:
        _, of_batches, _ = jax.random.split(self.key, 3)
        return train_further(
            arm, self.setting, models, of_batches, self.test(),
            stages=stages, every=self.preset.every, checkpoint=checkpoint,
        )  # fmt: skip

    def record(
        self, models: Retrievers, arm: Arm, stages: int, explained: int, checkpoint: Path | None
    ) -> dict[str, Any]:
        _, of_batches, of_rest = jax.random.split(self.key, 3)
        test = self.test()
        before = evaluate(self.setting, test, jax.random.fold_in(of_batches, 1), models)
        trained, found = self.trained(models, arm, stages, checkpoint)
        return {
            "steps": [self.preset.every * stage for stage in range(stages + 1)],
            "seconds_per_step": float(np.median(np.asarray(found.seconds))) / self.preset.every,
            **_cost(arm, self.setting, models, of_rest),
            **_course(before, found),
            **influence_record(self.setting, trained, test),
            **_explained(self.setting, trained, explained, of_rest),
        }


def _course(before: Evaluation, found: Evaluation) -> dict[str, Any]:
    """The evaluations, with that before the first step in front: by stage, then by seed."""
    joined = jax.tree.map(
        lambda first, rest: np.concatenate([np.asarray(first)[None], np.asarray(rest)]),
        (before.scores, before.risk, before.discrepancy),
        (found.scores, found.risk, found.discrepancy),
    )
    scores, risk, discrepancy = joined
    return {
        "accuracy": scores.accuracy.tolist(),
        "margin": scores.margin[-1].tolist(),
        "cross_entropy": scores.cross_entropy[-1].tolist(),
        "risk": risk.tolist(),
        "discrepancy": discrepancy.tolist(),
    }


def _cost(arm: Arm, setting: Setting, models: Retrievers, key: Key[Array, ""]) -> dict[str, Any]:
    """Operations and temporary memory of one seed's gradient."""

    def of_one_seed(models: Retrievers, key: Key[Array, ""]) -> tuple[Retrievers, Batches]:
        model = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, models)
        examples = draw(setting, setting.gold_law, key=key)
        return model, Batches(examples, examples, jnp.zeros((), int), key)

    model, batches = eqx.filter_eval_shape(of_one_seed, models, key)
    cost = job_cost(arm.gradient, model, arm.memory, batches)
    return {"operations": cost.operations, "temporary_bytes": cost.temporary}


def _setting_record(
    setting: Setting, models: Retrievers, test: int, explained: int, key: Key[Array, ""]
) -> dict[str, Any]:
    of_test, of_risk, of_rest = jax.random.split(key, 3)
    examples = examples_of_every_place(setting, test, key=of_test)
    found = evaluate(setting, examples, of_risk, models)
    return {
        **{name: np.asarray(part).tolist() for name, part in found.scores._asdict().items()},
        "risk": found.risk.tolist(),
        **influence_record(setting, models, examples),
        **_explained(setting, models, explained, of_rest),
    }


def influence_record(setting: Setting, models: Retrievers, test: Example) -> dict[str, Any]:
    """LIM and Z by seed, and the density of records, of the answers' cross-entropy and margin.

    The place that asks is left out of regions and records: it is most of the influence, whatever
    the others do. Of a record the density is relative to the mean over records.
    """
    require_setting(setting)
    require_retrievers(models)
    require_kind(test, Example, "test", "Draw them by examples_of_every_place.")
    grid = token_grid(setting.task.length)
    regions = boundary_regions(grid, DELTA).without([grid.size - 1])
    found = _influences(models, test, regions)
    return {name: np.asarray(part).tolist() for name, part in found.items()}


@eqx.filter_jit
def _influences(models: Retrievers, test: Example, regions: Regions) -> dict[str, Array]:
    """Of every seed, along a leading axis."""

    def of_one(model: Retrievers) -> dict[str, Array]:
        parts = {}
        for name, loss in (("answer", ANSWER_LOSS), ("margin", MARGIN_LOSS)):
            energies = adjoint_energies(loss, model, asked(test), regions.grid)
            found = Influence.from_energies(energies, regions)
            of_records = found.energy[:-1].reshape(-1, 2).sum(axis=1)
            parts |= {
                f"{name}_lim": found.indices().lim,
                f"{name}_total": found.total,
                f"{name}_records": of_records / of_records.mean(),
            }
        return parts

    return eqx.filter_vmap(of_one)(models)


def _explained(
    setting: Setting, models: Retrievers, count: int, key: Key[Array, ""]
) -> dict[str, Any]:
    """Channel energies over the regions and certificates, by seed; nothing where none is asked."""
    if count == 0:
        return {}
    of_batch, of_norms = jax.random.split(key)
    batch = setting._replace(batch=count)
    law = uniform_law(setting.task.records)
    windows = jnp.asarray(draw(batch, law, key=of_batch).window)
    grid = token_grid(setting.task.length)
    regions, asks = boundary_regions(grid, DELTA), last_token(grid.size)
    arrays, static = eqx.partition(models, eqx.is_array)
    seeds = jax.tree.leaves(arrays)[0].shape[0]
    channels, certificates = [], []
    for number in range(seeds):
        leaves = jax.tree.map(lambda leaf: np.asarray(leaf)[number], arrays)  # noqa: B023
        one = eqx.combine(jax.device_put(leaves), static)
        found = explain(one, windows, asks, regions, key=of_norms, certificates="all")
        channels.append(found.regional.energies.tolist())
        certificates.append(
            {
                one.name: {
                    "holds": one.holds, "margin": one.margin, "vacuous": bool(one.vacuous),
                    "concluded": one.concluded,
                }
                for one in found.certificates
            }
        )  # fmt: skip
    return {"channels": channels, "certificates": certificates}


def _file(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / f"{name.replace(', ', '-').replace(' ', '_')}.run"


def _described(preset: Preset) -> dict[str, Any]:
    settings = {
        name: {**setting._asdict(), "task": setting.task._asdict()}
        for name, setting in preset.settings.items()
    }
    return {**preset._asdict(), "settings": settings}
