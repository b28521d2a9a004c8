r"""Do the remedies lift the middle? Each trains the same networks further, on the same batches.

An arm says how a step's gradient is made. All arms start from the same weights, with a fresh
optimiser, and see the same batches of the training law and the same probes of another law, so
that what comes out is compared seed by seed. By time as well as by steps: the plain arm goes on
for longer, and a dearer arm is compared with where that has come in as many seconds. These are the
processor's, of all its cores, so that whatever else the machine does counts little.
"""

from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from lim_jax._checks import (
    AnyPath,
    as_path,
    counted,
    finite_scalar,
    require_kind,
    require_name,
)
from lim_jax.density.adjoints import adjoint_energies
from lim_jax.grid.cells import CellGrid, token_grid
from lim_jax.models.causal import CausalLM
from lim_jax.probes import rademacher_probes
from lim_jax.tasks.laws import middle_law, uniform_law
from lim_jax.tasks.prompts import Example
from lim_jax.tasks.retrieval import record_weights
from lim_jax.training.balancing import balanced_gradients, influence_penalty, raised_multiplier
from lim_jax.training.estimators import balanced_density, example_density
from lim_jax.training.loop import Progress, resumable, step_of_seeds
from lim_jax.training.observing import observability_objective
from lim_jax.training.reweighting import importance_weights, reweight_positions
from lim_jax.validation.retrievers import (
    ANSWER_LOSS,
    LAWS,
    MARGIN_LOSS,
    PlaceScores,
    Retrievers,
    Setting,
    asked,
    draw,
    require_case,
    require_setting,
    retrieval_risk,
    scores_by_place,
)

Scalar = Float[Array, ""]
Gradient = Callable[[CausalLM, PyTree, "Batches"], tuple[PyTree, PyTree]]
UNTIL = 1.0  # the norm to which a penalty's own gradient is clipped
OPTIMISER = optax.adam(1e-3)


class Batches(NamedTuple):
    """What a step sees.

    Attributes
    ----------
    training, probes
        Examples of the training law, and of the uniform one.
    step
        Its number.
    key
        For what else an arm draws.
    """

    training: Example
    probes: Example
    step: Int[Array, ""]
    key: Key[Array, ""]


class Arm(NamedTuple):
    """A way to train.

    Attributes
    ----------
    gradient
        ``gradient(model, memory, batches) -> (gradient, memory)``.
    memory
        What the arm carries from step to step, at the first.
    """

    gradient: Gradient
    memory: PyTree = ()


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


def plain(setting: Setting) -> Arm:
    """Train on as before."""
    require_setting(setting)
    return Arm(lambda model, memory, batches: (_risk_gradient(model, batches.training), memory))


def importance_weighted(setting: Setting) -> Arm:
    r"""Weight each answer by the uniform law over the training law of its gold place.

    `eq:positional-importance-weight`: on average the risk under the uniform law.
    """
    require_setting(setting)
    records = setting.task.records
    law = uniform_law(records), setting.gold_law
    weights = eqx.filter_jit(importance_weights)(*law, token_grid(records))

    def gradient(model, memory, batches):
        of_gold = weights[batches.training.gold[:, 0]]
        return _risk_gradient(model, batches.training, of_gold), memory

    return Arm(gradient)


def reweighted(setting: Setting, *, every: int = 10, rate: float = 0.5) -> Arm:
    """Algorithm 2 over records: an answer's weight follows the influence of its gold place.

    The loss asks one position only, so what is weighted is not the position that asks but the
    record that is asked for.
    """
    grid, pools = _token_grid(setting), _pools(setting)
    records = token_grid(setting.task.records)
    every, rate = counted(every, "every"), finite_scalar(rate, "rate")

    def reweigh(model: CausalLM, weights: Array, examples: Example) -> Array:
        energies = (
            adjoint_energies(ANSWER_LOSS, model, asked(examples), grid)
            @ pools.T
            / pools.sum(axis=1)[None, :]
        )
        density = balanced_density(energies, records.weights, epsilon=1e-8)
        return reweight_positions(
            weights, density, 1.0, records, rate=rate, smallest=0.1, largest=8.0
        )

    def gradient(model, weights, batches):
        weights = jax.lax.cond(
            batches.step % every == 0,
            lambda weights: reweigh(model, weights, batches.training),
            lambda weights: weights,
            weights,
        )
        of_gold = weights[batches.training.gold[:, 0]]
        return _risk_gradient(model, batches.training, of_gold), weights

    return Arm(gradient, jnp.ones(setting.task.records))


def balanced_on_training(setting: Setting, *, strength: float = 1.0) -> Arm:
    """Algorithm 1 on the training batch: cross-entropy, a ratio of means, over the records."""
    grid, pools = _token_grid(setting), _pools(setting)
    strength = finite_scalar(strength, "strength")

    def gradient(model, memory, batches):
        batch = asked(batches.training)
        _, found = balanced_gradients(ANSWER_LOSS, model, batch, grid, pools=pools)
        return _added(found.risk, _clipped(found.penalty, strength)), memory

    return Arm(gradient)


def balanced_on_probes(
    setting: Setting,
    *,
    strength: float = 1.0,
    target: str = "uniform",
    law: str = "uniform",
    probes: int | None = None,
    every: int = 1,
) -> Arm:
    """Algorithm 1 on probes of another law: the margin's influence, normalised by example.

    Parameters
    ----------
    setting
        The task.
    strength
        Of the penalty.
    target
        ``"uniform"``, or ``"middle"``: half as much again in the middle as at the edges.
    law
        Of the probes' gold places, a name of `retrievers.LAWS`.
    probes
        How many of the batch's probes are looked at; None for all.
    every
        Steps from one look to the next; between them the step is a plain one. The penalty counts
        as many times as much.
    """
    penalty = _probed_penalty(setting, target, probes)
    require_name(law, LAWS, "law", "See retrievers.LAWS.")
    strength, every = finite_scalar(strength, "strength"), counted(every, "every")

    def gradient(model, memory, batches):
        def of_penalty(model: CausalLM) -> CausalLM:
            if law == "uniform":
                examples = batches.probes
            else:
                examples = draw(setting, LAWS[law](setting.task.records), key=batches.key)
            return _clipped(eqx.filter_grad(penalty)(model, examples), strength * every)

        def nothing(model: CausalLM) -> CausalLM:
            return jax.tree.map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))

        risk = _risk_gradient(model, batches.training)
        if every == 1:
            return _added(risk, of_penalty(model)), memory
        looked = batches.step % every == 0
        arrays, rest = eqx.partition(model, eqx.is_array)
        found = jax.lax.cond(
            looked,
            lambda arrays: of_penalty(eqx.combine(arrays, rest)),
            lambda arrays: nothing(eqx.combine(arrays, rest)),
            arrays,
        )
        return _added(risk, found), memory

    return Arm(gradient)


def constrained_on_probes(setting: Setting, *, limit: float = 0.02, stiffness: float = 10.0) -> Arm:
    r"""The risk under :math:`\Phi \le \tau` of the probes, its multiplier raised at every step."""
    penalty = _probed_penalty(setting, "uniform", None)
    limit, stiffness = finite_scalar(limit, "limit"), finite_scalar(stiffness, "stiffness")

    def gradient(model, multiplier, batches):
        value, slope = eqx.filter_value_and_grad(penalty)(model, batches.probes)
        raised = raised_multiplier(multiplier, value, limit=limit, stiffness=stiffness)
        risk = _risk_gradient(model, batches.training)
        # The multiplier follows slowly: one batch is no minimisation.
        return _added(risk, _clipped(slope, raised)), multiplier + 0.02 * (raised - multiplier)

    return Arm(gradient, jnp.zeros(()))


def observed(
    setting: Setting, *, strength: float = 1.0, examples: int = 16, places: int = 8
) -> Arm:
    """Algorithm 3: the observability of records' places by the last place, before each layer.

    Of some of the batch and some of the places, which are drawn anew at each step.
    """
    grid, of_records = _token_grid(setting), 2 * setting.task.records
    strength, examples = finite_scalar(strength, "strength"), counted(examples, "examples")
    places = counted(places, "places", most=of_records)

    def observations(model: CausalLM, x: Array) -> Array:
        return model.flow.trajectory(x, grid).states[:-1, -1]

    def penalty(model: CausalLM, batches: Batches) -> Scalar:
        of_signs, of_places = jax.random.split(batches.key)
        chosen = jax.random.choice(of_places, of_records, (places,), replace=False)
        value, _ = observability_objective(
            lambda *_: jnp.zeros(()),
            observations,
            model,
            _embedded(model, _first(batches.training, examples)),
            grid,
            rademacher_probes(1, setting.width, key=of_signs),
            strength=1.0,
            step=1.0,
            positions=chosen,
        )
        return value

    def gradient(model, memory, batches):
        found = eqx.filter_grad(penalty)(model, batches)
        return _added(_risk_gradient(model, batches.training), _clipped(found, strength)), memory

    return Arm(gradient)


def answers_on_probes(setting: Setting) -> Arm:
    """Train on the probes' own answers too: not a remedy without them, but what they are worth."""
    require_setting(setting)

    def gradient(model, memory, batches):
        both = (_risk_gradient(model, part) for part in (batches.training, batches.probes))
        return _added(*both), memory

    return Arm(gradient)


PLAIN, ANSWERS = "plain", "answers of the probes"
ARMS: dict[str, Callable[[Setting], Arm]] = {
    PLAIN: plain,
    "importance weights": importance_weighted,
    "Algorithm 2, by record": reweighted,
    "Algorithm 1, training law": balanced_on_training,
    "Algorithm 1, probes": balanced_on_probes,
    "constrained, probes": constrained_on_probes,
    "Algorithm 3": observed,
    ANSWERS: answers_on_probes,
}


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
    require_kind(arm, Arm, "arm", "Take one of ARMS, of the setting.")
    require_case(setting, models, test, key)
    stages, every = counted(stages, "stages"), counted(every, "every", cure="Take 100.")
    file = None if checkpoint is None else as_path(checkpoint, "checkpoint")
    seeds = jax.tree.leaves(eqx.filter(models, eqx.is_array))[0].shape[0]
    keys = jax.random.split(jax.random.fold_in(key, 0), seeds)
    step = step_of_seeds(_Step(setting, arm.gradient), keys)
    judge = partial(evaluate, setting, test, jax.random.fold_in(key, 1))
    states = _begun(models, arm.memory)
    compiled = jax.block_until_ready(step(states, 0))  # so that no stage's time holds it
    del compiled

    def stage(states: PyTree, number: int) -> tuple[PyTree, Evaluation]:
        begun = process_time()
        for index in range(number * every, (number + 1) * every):
            states, _ = step(states, index)
        jax.block_until_ready(states)
        return states, judge(states[0], jnp.asarray(process_time() - begun))

    (models, _, _), found = resumable(stage, states, stages, checkpoint=file, progress=progress)
    return models, found


@eqx.filter_jit
def _begun(models: Retrievers, memory: PyTree) -> PyTree:
    def of_one(model: CausalLM) -> PyTree:
        return model, memory, OPTIMISER.init(eqx.filter(model, eqx.is_array))

    return eqx.filter_vmap(of_one)(models)


class _Step(eqx.Module):
    """A step of one seed, compiled once for all that an arm trains further in a setting."""

    setting: Setting = eqx.field(static=True)
    gradient: Gradient = eqx.field(static=True)

    def __call__(
        self, state: PyTree, key: Key[Array, ""], index: Int[Array, ""]
    ) -> tuple[PyTree, None]:
        setting, (model, memory, moments) = self.setting, state
        of_training, of_probes, of_arm = jax.random.split(key, 3)
        batches = Batches(
            draw(setting, setting.gold_law, key=of_training),
            draw(setting, uniform_law(setting.task.records), key=of_probes), index, of_arm,
        )  # fmt: skip
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
    require_case(setting, models, test, key)
    seconds = finite_scalar(seconds, "seconds")
    return Evaluation(*_judged(setting, test, key, models), jnp.asarray(seconds))


@eqx.filter_jit
def _judged(
    setting: Setting, test: Example, key: Key[Array, ""], models: Retrievers
) -> tuple[PlaceScores, Float[Array, " seeds"], Float[Array, " seeds"]]:
    of_risk, of_probes = jax.random.split(key)
    risky = draw(setting._replace(batch=1024), setting.gold_law, key=of_risk)
    uniform = uniform_law(setting.task.records)
    probes = draw(setting._replace(batch=256), uniform, key=of_probes)
    penalty = _probed_penalty(setting, "uniform", None)

    def of_one(model: CausalLM) -> tuple[PlaceScores, Scalar, Scalar]:
        return scores_by_place(model, test), retrieval_risk(model, risky), penalty(model, probes)

    return eqx.filter_vmap(of_one)(models)


def _risk_gradient(model: CausalLM, examples: Example, weights: Array | None = None) -> CausalLM:
    return eqx.filter_grad(retrieval_risk)(model, examples, weights)


def _probed_penalty(
    setting: Setting, target: str, probes: int | None
) -> Callable[[CausalLM, Example], Scalar]:
    grid, pools = _token_grid(setting), _pools(setting)
    targets = {"uniform": uniform_law, "middle": partial(middle_law, odds=2 / 3)}
    require_name(target, targets, "target", "See balanced_on_probes.")
    probes = None if probes is None else counted(probes, "probes")
    density = targets[target](setting.task.records) * setting.task.records

    def penalty(model: CausalLM, examples: Example) -> Scalar:
        return influence_penalty(
            MARGIN_LOSS, model, asked(_first(examples, probes)), grid,
            target=density, estimate=example_density, pools=pools,
        )  # fmt: skip

    return penalty


def _embedded(model: CausalLM, examples: Example) -> tuple[Array, Any]:
    ids, y = asked(examples)
    return jax.vmap(model.embed)(ids, y), y


def _first(examples: Example, count: int | None) -> Example:
    return jax.tree.map(lambda leaf: leaf[:count], examples)


def _token_grid(setting: Setting) -> CellGrid:
    require_setting(setting)
    return token_grid(setting.task.length)


def _pools(setting: Setting) -> Float[Array, "records length"]:
    records = setting.task.records
    numbers = np.append(np.repeat(np.arange(records), 2), -1)
    return record_weights(numbers, _token_grid(setting).weights, records)


def _clipped(gradient: CausalLM, strength: Scalar | float) -> CausalLM:
    """A penalty's gradient times its strength, and then no longer than `UNTIL`."""
    scaled = jax.tree.map(lambda leaf: strength * leaf, gradient)
    factor = jnp.minimum(1.0, UNTIL / (optax.tree.norm(scaled) + 1e-12))
    return jax.tree.map(lambda leaf: factor * leaf, scaled)


def _added(first: CausalLM, second: CausalLM) -> CausalLM:
    return jax.tree.map(jnp.add, first, second)
