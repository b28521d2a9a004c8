r"""Many questions in a context: associative recall, learnt with and without word of its evidence.

Every pair is asked for once (`RecallTask`, MQAR), so that none is seldom asked; what takes
long is to learn that an answer stands behind its key at all. From the first step on an arm draws
influence to the evidence of one question of each probe: which pair, not the answer.
"""

from collections.abc import Mapping
from functools import partial
from time import process_time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from benchmarks.validation.intervals import Interval, paired_interval
from benchmarks.validation.remedies import PLAIN, SELECTIVE, UNTIL
from benchmarks.validation.retrieval import RecallTask, recall_examples
from benchmarks.validation.retrievers import ANSWER_LOSS, OWN_MARGIN_LOSS, by_place
from benchmarks.validation.seeds import step_of_seeds
from lim_jax._checks import (
    AnyPath,
    as_path,
)
from lim_jax._jit import filter_jit
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Scalar
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.small_models import gaussian_model
from lim_jax.tasks.prompts import Example, record_weights
from lim_jax.training.density_objectives import Penalty, influence_penalty
from lim_jax.training.discrepancy import cross_entropy_discrepancy
from lim_jax.training.loop import resumable

RECALLED = (PLAIN, SELECTIVE)
IdsOf = tuple[Int[Array, "examples length"], Targets]


class RecallSetting(NamedTuple):
    """Networks that recall, and how they learn it.

    Attributes
    ----------
    task
        Pairs, and questions after them.
    width, heads, depth
        Of the network.
    batch, probes
        Contexts in a step, and others of which the evidence of one question is told.
    rate
        Of Adam.
    strength
        Of the penalty on probes.
    stages, every
        How often a network is judged, and the steps between.
    test
        Contexts for that, each of which asks for every pair.
    """

    task: RecallTask = RecallTask()
    width: int = 32
    heads: int = 2
    depth: int = 2
    batch: int = 32
    probes: int = 16
    rate: float = 3e-3
    strength: Scalar | float = 1.0
    stages: int = 12
    every: int = 100
    test: int = 128


def all_answers_batch(examples: Example) -> IdsOf:
    """Return all that contexts ask: ids, and the answers at the places that have a weight.

    Examples
    --------
    >>> task = RecallTask(pairs=2, length=10, keys=3, values=4)
    >>> examples = recall_examples(task, 1, key=jax.random.key(0))
    >>> ids, y = all_answers_batch(examples)
    >>> window, places = examples.window[0], y.positions[0]
    >>> ids.shape, y.weights.tolist(), bool((window[places + 1] == y.targets[0]).all())
    ((1, 10), [[0.5, 0.5]], True)
    """
    windows = jnp.asarray(examples.window)
    count = examples.gold.shape[-1]
    places = jnp.argsort(jnp.asarray(examples.weights) == 0, axis=1)[:, :count]
    answers = jnp.take_along_axis(windows, places + 1, axis=1)
    return windows[:, :-1], Targets(answers, jnp.full(places.shape, 1 / count), places)


def recall_gradient(
    setting: RecallSetting,
    model: CausalLM,
    examples: Example,
    probes: Example | None,
    key: Key[Array, ""],
) -> PyTree:
    r"""Return the gradient of the answers' cross-entropy, and of the penalty on probes.

    The penalty is :math:`\beta` times the mean of :math:`-\log m`, where m is the density of the
    influence on one question's evidence, of the margin of the network's own answer to it; its
    gradient is no longer than `remedies.UNTIL`.

    Parameters
    ----------
    setting, model
        How, and what.
    examples, probes
        Of `recall_examples`; None of probes for the first term alone.
    key
        For which of its questions a probe asks.
    """
    risk = eqx.filter_grad(_risk)(model, examples)
    if probes is None:
        return risk
    slope = eqx.filter_grad(_penalty)(model, setting, probes, key)
    scaled = jax.tree.map(lambda leaf: setting.strength * leaf, slope)
    clipped, _ = optax.clip_by_global_norm(UNTIL).update(scaled, optax.EmptyState())
    return jax.tree.map(jnp.add, risk, clipped)


def _risk(model: CausalLM, examples: Example) -> Scalar:
    """Compute the mean cross-entropy of the answers to all questions, in nats."""
    ids, y = all_answers_batch(examples)
    return jax.vmap(ANSWER_LOSS, in_axes=(None, 0, 0))(model, ids, y).mean()


def _penalty(
    model: CausalLM, setting: RecallSetting, probes: Example, key: Key[Array, ""]
) -> Scalar:
    pairs = setting.task.pairs
    grid = token_grid(setting.task.length)
    pools = record_weights(jnp.asarray(probes.records[0]), grid.weights, pairs)
    (ids, y), evidence = _one_question(probes, key)
    target = pairs * jax.nn.one_hot(evidence, pairs, dtype=model.embedding.dtype)
    towards_evidence = Penalty(target, cross_entropy_discrepancy, pools=pools)
    return influence_penalty(OWN_MARGIN_LOSS, model, (ids, y), grid, towards_evidence)


def _one_question(examples: Example, key: Key[Array, ""]) -> tuple[IdsOf, Int[Array, " examples"]]:
    """Draw one question of each context; return it with the pair that answers it."""
    ids, y = all_answers_batch(examples)
    assert y.positions is not None  # of few places
    question = jax.random.randint(key, (len(ids), 1), 0, y.weights.shape[1])
    answers, places, gold = (
        jnp.take_along_axis(part, question, axis=1)
        for part in (y.targets, y.positions, jnp.asarray(examples.gold))
    )
    return (ids, Targets(answers, jnp.ones(answers.shape), places)), gold[:, 0]


def recall_record(
    setting: RecallSetting,
    keys: Key[Array, " seeds"],
    arm: str,
    *,
    test: Example,
    checkpoint: AnyPath | None = None,
) -> dict[str, Any]:
    """Train a network for each key by an arm from the first step, and judge it after every stage.

    Arms of one key begin alike, and see the same contexts.

    Parameters
    ----------
    setting
        What, on what, for how long.
    keys
        One for each seed.
    arm
        One of `RECALLED`.
    test
        Contexts that judge, of `recall_examples`.
    checkpoint
        As in `training.resumable`, of stages.

    Returns
    -------
    dict
        ``"steps"`` after which it was judged, ``"seconds_per_step"`` of the processor, all seeds
        together; by stage and seed ``"risk"``, the cross-entropy on the test, and ``"accuracy"``,
        by pair too.
    """
    file = None if checkpoint is None else as_path(checkpoint, "checkpoint")
    step = step_of_seeds(_Step(setting, arm == SELECTIVE), jax.vmap(_batches_key)(keys))
    states = _initial_states(setting, keys)
    jax.block_until_ready(step(states, 0))  # so that no stage's time compiles

    def stage(states: PyTree, number: int) -> tuple[PyTree, tuple[Array, Array, Array]]:
        """Take a stage's steps, and judge the networks and the time that they took."""
        start = process_time()
        for index in range(number * setting.every, (number + 1) * setting.every):
            states, _ = step(states, index)
        jax.block_until_ready(states)
        return states, (*_judge(test, states[0]), jnp.asarray(process_time() - start))

    before = _judge(test, states[0])
    run = setting, keys, arm, test
    _, (*after, seconds) = resumable(stage, states, setting.stages, run=run, checkpoint=file)
    accuracy, risk = (
        np.concatenate([np.asarray(first)[None], np.asarray(later)])
        for first, later in zip(before, after, strict=True)
    )
    return {
        "steps": [setting.every * stage for stage in range(setting.stages + 1)],
        "seconds_per_step": float(np.median(np.asarray(seconds))) / setting.every,
        "accuracy": accuracy.tolist(),
        "risk": risk.tolist(),
    }


def _batches_key(key: Key[Array, ""]) -> Key[Array, ""]:
    return jax.random.fold_in(key, 1)


@filter_jit
def _initial_states(setting: RecallSetting, keys: Key[Array, " seeds"]) -> PyTree:
    def begin(key: Key[Array, ""]) -> PyTree:
        """Draw a network, with a new optimiser."""
        model = gaussian_model(
            setting.task.vocabulary,
            setting.task.length,
            width=setting.width,
            heads=setting.heads,
            depth=setting.depth,
            key=jax.random.fold_in(key, 0),
        )
        return model, _optimiser(setting).init(eqx.filter(model, eqx.is_array))

    return eqx.filter_vmap(begin)(keys)


def _optimiser(setting: RecallSetting) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(UNTIL), optax.adam(setting.rate))


class _Step(eqx.Module):
    """A step of one seed; all arms draw the same contexts."""

    setting: RecallSetting = eqx.field(static=True)
    selective: bool = eqx.field(static=True)

    def __call__(
        self, state: PyTree, key: Key[Array, ""], index: Int[Array, ""]
    ) -> tuple[PyTree, None]:
        del index
        setting = self.setting
        model, moments = state
        examples_key, probes_key, questions_key = jax.random.split(key, 3)
        draw = partial(recall_examples, setting.task)
        examples = draw(setting.batch, key=examples_key)
        probes = draw(setting.probes, key=probes_key) if self.selective else None
        slope = recall_gradient(setting, model, examples, probes, questions_key)
        change, moments = _optimiser(setting).update(slope, moments)
        return (eqx.apply_updates(model, change), moments), None


@filter_jit
def _judge(
    test: Example, models: CausalLM
) -> tuple[Float[Array, "seeds pairs"], Float[Array, " seeds"]]:
    ids, y = all_answers_batch(test)
    gold = jnp.asarray(test.gold)
    pairs = test.gold.shape[-1]

    def judge_model(model: CausalLM) -> tuple[Array, Scalar]:
        """Return one network's accuracy by place, and its risk."""

        def right(ids: Int[Array, " length"], y: Targets) -> Float[Array, " queries"]:
            """Tell which questions of an example are answered right."""
            logits = model.logits(ids)[y.positions]
            return (logits.argmax(axis=1) == y.targets).astype(logits.dtype)

        right_by_example = jax.vmap(right)(ids, y)
        return by_place(right_by_example.ravel(), gold.ravel(), pairs), _risk(model, test)

    return eqx.filter_vmap(judge_model)(models)


class RecallGain(NamedTuple):
    """What evidence is worth after some steps, in mean accuracy: paired by seed, 95 %.

    Attributes
    ----------
    at_equal_steps
        Over plain training after as many.
    at_equal_time
        Over plain training for as many of the processor's seconds, between two stages. None where
        it was not trained for that long.
    """

    at_equal_steps: Interval
    at_equal_time: Interval | None


def recall_gains(records: Mapping[str, Mapping[str, Any]]) -> dict[int, RecallGain]:
    """Compare the arm that is told evidence with the plain one, by steps.

    Parameters
    ----------
    records
        Of `recall_record`, by the names of `RECALLED`.
    """
    plain, ours = (records[name] for name in RECALLED)
    dearer = ours["seconds_per_step"] / plain["seconds_per_step"]
    mine, theirs = (np.mean(record["accuracy"], axis=2) for record in (ours, plain))

    def over(stage: int, steps: float) -> Interval | None:
        """Return the gain over plain training after so many steps of it."""
        if steps > plain["steps"][-1]:
            return None
        there = [np.interp(steps, plain["steps"], course) for course in theirs.T]
        return paired_interval(mine[stage] - np.array(there))

    return {
        steps: RecallGain(paired_interval(mine[stage] - theirs[stage]), over(stage, dearer * steps))
        for stage, steps in enumerate(ours["steps"])
        if stage
    }
