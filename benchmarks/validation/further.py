r"""Trained further by a remedy, and judged: all arms from the same weights, on the same batches.

With a fresh optimiser, so that what comes out is compared seed by seed. By time as well as by
steps: the plain arm goes on for longer, and a dearer arm is compared with where that has come in as
many seconds. These are the processor's, of all its cores, so that whatever else the machine does
counts little.
"""

from functools import partial
from time import process_time
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from benchmarks.validation.laws import uniform_law
from benchmarks.validation.remedies import Arm, Batches, Gradient, probed_penalty
from benchmarks.validation.retrievers import (
    PlaceScores,
    Retrievers,
    Setting,
    draw,
    retrieval_risk,
    scores_by_place,
)
from benchmarks.validation.seeds import step_of_seeds
from lim_jax._checks import AnyPath, as_path
from lim_jax._jit import filter_jit
from lim_jax.grid.measure import Scalar
from lim_jax.models.causal import CausalLM
from lim_jax.tasks.prompts import Example
from lim_jax.training.loop import Progress, resumable

OPTIMISER = optax.adam(1e-3)


class Evaluation(NamedTuple):
    r"""Where an arm stands after some steps, for each seed.

    Attributes
    ----------
    scores
        By gold place, on the same examples throughout.
    risk
        The mean cross-entropy on the law of training.
    discrepancy
        :math:`\Phi` of the margin's influence over the records, under the uniform law: what the
        arm "balanced on probes" lowers.
    seconds
        The processor's, of the steps since the evaluation before, all seeds together.
    """

    scores: PlaceScores
    risk: Float[Array, "*shape"]
    discrepancy: Float[Array, "*shape"]
    seconds: Float[Array, "..."]


def train_further(
    arm: Arm,
    setting: Setting,
    models: Retrievers,
    key: Key[Array, ""],
    test: Example,
    *,
    stages: int,
    every: int,
    checkpoint: AnyPath | None = None,
    progress: Progress = iter,
) -> tuple[Retrievers, Evaluation]:
    """Train all seeds by an arm, and evaluate them after every stage.

    Parameters
    ----------
    arm, setting, models
        How, on what, and where to start: of `train_retrievers`.
    key
        For the batches: the same key gives every arm the same.
    test
        Examples for the scores, of `examples_of_every_place`.
    stages, every
        How often to evaluate, and how many steps lie between.
    checkpoint, progress
        As in `training.resumable`, of stages.

    Returns
    -------
    tuple
        The networks, and the evaluations with leading axes of stages and seeds.
    """
    file = None if checkpoint is None else as_path(checkpoint, "checkpoint")
    seeds = jax.tree.leaves(eqx.filter(models, eqx.is_array))[0].shape[0]
    keys = jax.random.split(jax.random.fold_in(key, 0), seeds)
    step = step_of_seeds(_Step(setting, arm.gradient), keys)
    judge = partial(evaluate, setting, test, jax.random.fold_in(key, 1))
    states = _initial_states(models, arm.memory)
    warm = jax.block_until_ready(step(states, 0))  # so that no stage's time holds it
    del warm

    def stage(states: PyTree, number: int) -> tuple[PyTree, Evaluation]:
        """Take a stage's steps, and judge the networks and the time that they took."""
        begun = process_time()
        for index in range(number * every, (number + 1) * every):
            states, _ = step(states, index)
        jax.block_until_ready(states)
        return states, judge(states[0], jnp.asarray(process_time() - begun))

    name = arm.name or arm.gradient  # which a checkpoint refuses without a name
    run = name, arm.memory, arm.every, setting, key, test, every
    (models, _, _), evaluations = resumable(
        stage, states, stages, run=run, checkpoint=file, progress=progress
    )
    return models, evaluations


@filter_jit
def _initial_states(models: Retrievers, memory: PyTree) -> PyTree:
    def begin(model: CausalLM) -> PyTree:
        """Return a network with its arm's memory and a new optimiser."""
        return model, memory, OPTIMISER.init(eqx.filter(model, eqx.is_array))

    return eqx.filter_vmap(begin)(models)


class _Step(eqx.Module):
    """A step of one seed, compiled once for all that an arm trains further in a setting."""

    setting: Setting = eqx.field(static=True)
    gradient: Gradient = eqx.field(static=True)

    def __call__(
        self, state: PyTree, key: Key[Array, ""], index: Int[Array, ""]
    ) -> tuple[PyTree, None]:
        setting = self.setting
        model, memory, moments = state
        training_key, probes_key, arm_key = jax.random.split(key, 3)
        batches = Batches(
            draw(setting, setting.gold_law, key=training_key),
            draw(setting, uniform_law(setting.task.records), key=probes_key),
            index,
            arm_key,
        )
        gradient, memory = self.gradient(model, memory, batches)
        change, moments = OPTIMISER.update(gradient, moments)
        return (eqx.apply_updates(model, change), memory, moments), None


def evaluate(
    setting: Setting,
    test: Example,
    key: Key[Array, ""],
    models: Retrievers,
    seconds: Scalar | float = 0.0,
) -> Evaluation:
    """Judge networks of all seeds: scores on `test`, and what is drawn anew by the key.

    Parameters
    ----------
    setting, test, models
        As in `train_further`.
    key
        For examples of the training law, and of the uniform one.
    seconds
        What is to be noted as such.
    """
    return Evaluation(*_judge(setting, test, key, models), jnp.asarray(seconds))


@filter_jit
def _judge(
    setting: Setting, test: Example, key: Key[Array, ""], models: Retrievers
) -> tuple[PlaceScores, Float[Array, " seeds"], Float[Array, " seeds"]]:
    risk_key, probes_key = jax.random.split(key)
    risky = draw(setting._replace(batch=1024), setting.gold_law, key=risk_key)
    uniform = uniform_law(setting.task.records)
    probes = draw(setting._replace(batch=256), uniform, key=probes_key)
    penalty = probed_penalty(setting)

    def judge_model(model: CausalLM) -> tuple[PlaceScores, Scalar, Scalar]:
        """Return one network's scores by place, its risk and its penalty."""
        return scores_by_place(model, test), retrieval_risk(model, risky), penalty(model, probes)

    return eqx.filter_vmap(judge_model)(models)
