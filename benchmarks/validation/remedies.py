r"""Do the remedies lift the middle? Each trains the same networks further, on the same batches.

An arm says how a step's gradient is made. All arms see the same batches of the training law and
the same probes of another law (`further.train_further`), so that what comes out is compared seed by
seed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from benchmarks.validation.laws import middle_law, uniform_law
from benchmarks.validation.retrievers import (
    ANSWER_LOSS,
    LAWS,
    MARGIN_LOSS,
    OWN_MARGIN_LOSS,
    Setting,
    answer_batch,
    draw,
    retrieval_risk,
)
from lim_jax.density.adjoints import LossOfIds, adjoint_energies
from lim_jax.grid.cells import CellGrid, token_grid
from lim_jax.grid.measure import Scalar
from lim_jax.models.causal import CausalLM
from lim_jax.probes import rademacher_probes
from lim_jax.tasks.prompts import Example, record_weights
from lim_jax.training.density_objectives import (
    Penalty,
    influence_penalty,
    raised_multiplier,
    risk_and_penalty,
)
from lim_jax.training.discrepancy import cross_entropy_discrepancy
from lim_jax.training.estimators import (
    Energies,
    Estimator,
    Places,
    balanced_density,
    over_total,
)
from lim_jax.training.gramian_penalties import observability_objective
from lim_jax.training.reweighting import importance_weights, reweight_positions

Gradient = Callable[[CausalLM, PyTree, "Batches"], tuple[PyTree, PyTree]]
UNTIL = 1.0  # the norm to which a penalty's own gradient is clipped


def _mean_profile(energies: Energies, weights: Places, epsilon: Scalar | float) -> Places:
    return over_total(energies, (energies @ weights)[:, None], epsilon).mean(axis=0)


@partial(Estimator, _mean_profile)
def example_density(profile: Places, weights: Places, epsilon: Scalar | float) -> Places:
    r"""Return the mean of the examples' own profiles, :math:`E_b/(Z_b + \epsilon_{inf})`.

    Every example counts alike, however large its gradient, and the estimate has no bias. But it is
    of *another density* than that of `balanced_density`: a mean of ratios, not the paper's ratio of
    means, which examples with large gradients govern. They agree where all profiles, or all totals,
    are the same. Its statistic is that mean.
    """
    return profile


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
    every
        Steps from one look at influence to the next; those between are plain ones.
    name
        By which a checkpoint tells the arm from others.
    """

    gradient: Gradient
    memory: PyTree = ()
    every: int = 1
    name: str = ""


def plain(setting: Setting) -> Arm:
    """Train on as before."""
    return Arm(lambda model, memory, batches: (_risk_gradient(model, batches.training), memory))


def importance_weighted(setting: Setting) -> Arm:
    r"""Weight each answer by the uniform law over the training law of its gold place.

    `eq:positional-importance-weight`: on average the risk under the uniform law.
    """
    records = setting.task.records
    law = uniform_law(records), setting.gold_law
    weights = eqx.filter_jit(importance_weights)(*law, token_grid(records))

    def gradient(model, memory, batches):
        gold_weights = weights[batches.training.gold[:, 0]]
        return _risk_gradient(model, batches.training, gold_weights), memory

    return Arm(gradient)


def reweighted(setting: Setting, *, every: int = 10, rate: float = 0.5) -> Arm:
    """Return Algorithm 2 over records: an answer's weight follows the influence of its gold place.

    The loss asks one position only, so what is weighted is not the position that asks but the
    record that is asked for.
    """
    grid = _token_grid(setting)
    pools = _pools(setting)
    records = token_grid(setting.task.records)

    def reweigh(model: CausalLM, weights: Array, examples: Example) -> Array:
        energies = (
            adjoint_energies(ANSWER_LOSS, model, answer_batch(examples), grid)
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
        gold_weights = weights[batches.training.gold[:, 0]]
        return _risk_gradient(model, batches.training, gold_weights), weights

    return Arm(gradient, jnp.ones(setting.task.records), every)


def balanced_on_training(setting: Setting, *, strength: float = 1.0) -> Arm:
    """Return Algorithm 1 on the training batch: cross-entropy, a ratio of means, over records."""
    grid = _token_grid(setting)
    penalty = Penalty(pools=_pools(setting))

    def gradient(model, memory, batches):
        batch = answer_batch(batches.training)
        _, gradients, _ = risk_and_penalty(ANSWER_LOSS, model, batch, grid, penalty)
        return _add(gradients.risk, _clip(gradients.penalty, strength)), memory

    return Arm(gradient)


def probed_penalty(
    setting: Setting, target: str = "uniform", probes: int | None = None
) -> Callable[[CausalLM, Example], Scalar]:
    r"""Return :math:`\Phi` of the examples' mean profile of the margin's influence over records.

    Parameters
    ----------
    setting, target, probes
        As in `balanced_on_probes`.
    """
    grid = _token_grid(setting)
    pools = _pools(setting)
    targets = {"uniform": uniform_law, "middle": partial(middle_law, odds=2 / 3)}
    density = targets[target](setting.task.records) * setting.task.records
    over_records = Penalty(density, estimate=example_density, pools=pools)

    def penalty(model: CausalLM, examples: Example) -> Scalar:
        batch = answer_batch(_first(examples, probes))
        return influence_penalty(MARGIN_LOSS, model, batch, grid, over_records)

    return penalty


def balanced_on_probes(
    setting: Setting,
    *,
    strength: float = 1.0,
    target: str = "uniform",
    law: str = "uniform",
    probes: int | None = None,
    every: int = 1,
) -> Arm:
    """Return Algorithm 1 on probes of another law: the margin's influence, normalised by example.

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
    penalty = probed_penalty(setting, target, probes)

    def penalty_gradient(model: CausalLM, batches: Batches) -> CausalLM:
        examples = _probes_of_law(setting, law, batches)
        return _clip(eqx.filter_grad(penalty)(model, examples), strength * every)

    return _with_penalty(penalty_gradient, every)


def selective_on_probes(
    setting: Setting,
    *,
    answers: str = "own",
    strength: float = 1.0,
    clip: float = UNTIL,
    law: str = "uniform",
    probes: int = 16,
    every: int = 1,
    wrong: float = 0.0,
    taught: bool = False,
) -> Arm:
    """Return Algorithm 1 towards each probe's own gold record: where the evidence stands is known.

    Parameters
    ----------
    setting
        The task.
    answers
        Whose margin's influence it is: the network's ``"own"`` answer, or the ``"true"`` one, which
        tells the network more.
    strength
        Of the penalty, minus the logarithm of the gold record's share of the influence.
    clip
        The norm to which its gradient is clipped.
    law, probes, every
        As in `balanced_on_probes`.
    wrong
        The share of probes of which another record than the gold one is said to be the evidence.
    taught
        Whether the network is trained on these probes' answers too.
    """
    losses = {"own": OWN_MARGIN_LOSS, "true": MARGIN_LOSS}
    shares = _gold_share_penalty(setting)
    records = setting.task.records

    def probes_and_evidence(batches: Batches) -> tuple[Example, Int[Array, " probes"]]:
        """Return probes, and the records that are said to be their evidence."""
        examples = _first(_probes_of_law(setting, law, batches), probes)
        gold = examples.gold[:, 0]
        chance_key, place_key = jax.random.split(jax.random.fold_in(batches.key, 1))
        wrong_gold = (gold + jax.random.randint(place_key, gold.shape, 1, records)) % records
        return examples, jnp.where(
            jax.random.bernoulli(chance_key, wrong, gold.shape), wrong_gold, gold
        )

    def penalty_gradient(model: CausalLM, batches: Batches) -> CausalLM:
        examples, evidence = probes_and_evidence(batches)
        gradient = eqx.filter_grad(shares)(model, examples, evidence, losses[answers])
        gradient = _clip(gradient, strength * every, clip)
        return _add(gradient, _risk_gradient(model, examples)) if taught else gradient

    return _with_penalty(penalty_gradient, every)


def _gold_share_penalty(
    setting: Setting,
) -> Callable[[CausalLM, Example, Int[Array, " examples"], LossOfIds], Scalar]:
    """Return minus the logarithm of the evidence's share of an example's influence, as a mean.

    Of ``penalty(model, examples, evidence, loss)``, where `evidence` is the record of each example,
    and the share is times the number of records.
    """
    grid = _token_grid(setting)
    pools = _pools(setting)
    records = setting.task.records

    def penalty(
        model: CausalLM, examples: Example, evidence: Int[Array, " examples"], loss: LossOfIds
    ) -> Scalar:
        target = records * jax.nn.one_hot(evidence, records, dtype=model.embedding.dtype)
        towards_evidence = Penalty(target, cross_entropy_discrepancy, pools=pools)
        return influence_penalty(loss, model, answer_batch(examples), grid, towards_evidence)

    return penalty


def _probes_of_law(setting: Setting, law: str, batches: Batches) -> Example:
    """Return the batch's probes, which are uniform, or others of a law."""
    if law == "uniform":
        return batches.probes
    return draw(setting, LAWS[law](setting.task.records), key=batches.key)


def _with_penalty(penalty_gradient: Callable[[CausalLM, Batches], CausalLM], every: int) -> Arm:
    """Return the risk's gradient, and on every n-th step a penalty's beside it."""

    def gradient(model, memory, batches):
        risk = _risk_gradient(model, batches.training)
        if every == 1:
            return _add(risk, penalty_gradient(model, batches)), memory
        arrays, static = eqx.partition(model, eqx.is_array)
        beside = jax.lax.cond(
            batches.step % every == 0,
            lambda arrays: penalty_gradient(eqx.combine(arrays, static), batches),
            lambda arrays: jax.tree.map(jnp.zeros_like, eqx.filter(arrays, eqx.is_inexact_array)),
            arrays,
        )
        return _add(risk, beside), memory

    return Arm(gradient, every=every)


def constrained_on_probes(setting: Setting, *, limit: float = 0.02, stiffness: float = 10.0) -> Arm:
    r"""Return the risk under :math:`\Phi \le \tau` of probes, whose multiplier each step raises."""
    penalty = probed_penalty(setting, "uniform", None)

    def gradient(model, multiplier, batches):
        value, slope = eqx.filter_value_and_grad(penalty)(model, batches.probes)
        raised = raised_multiplier(multiplier, value, limit=limit, stiffness=stiffness)
        risk = _risk_gradient(model, batches.training)
        # The multiplier follows slowly: one batch is no minimisation.
        return _add(risk, _clip(slope, raised)), multiplier + 0.02 * (raised - multiplier)

    return Arm(gradient, jnp.zeros(()))


def observed(
    setting: Setting, *, strength: float = 1.0, examples: int = 16, places: int = 8
) -> Arm:
    """Return Algorithm 3: the observability of records' places by the last, before each layer.

    Of some of the batch and some of the places, which are drawn anew at each step.
    """
    grid = _token_grid(setting)
    num_positions = 2 * setting.task.records

    def observations(model: CausalLM, x: Array) -> Array:
        return model.flow.trajectory(x, grid).states[:-1, -1]

    def penalty(model: CausalLM, batches: Batches) -> Scalar:
        signs_key, positions_key = jax.random.split(batches.key)
        positions = jax.random.choice(positions_key, num_positions, (places,), replace=False)
        value, _ = observability_objective(
            lambda *_: jnp.zeros(()),
            observations,
            model,
            _embedded(model, _first(batches.training, examples)),
            grid,
            rademacher_probes(1, setting.width, key=signs_key),
            strength=1.0,
            step=1.0,
            positions=positions,
        )
        return value

    def gradient(model, memory, batches):
        slope = eqx.filter_grad(penalty)(model, batches)
        return _add(_risk_gradient(model, batches.training), _clip(slope, strength)), memory

    return Arm(gradient)


def answers_on_probes(setting: Setting, *, probes: int | None = None) -> Arm:
    """Train on the probes' own answers too: not a remedy without them, but what they are worth.

    Parameters
    ----------
    setting
        The task.
    probes
        How many of the batch's probes tell their answers; None for all.
    """

    def gradient(model, memory, batches):
        examples = batches.training, _first(batches.probes, probes)
        return _add(*(_risk_gradient(model, part) for part in examples)), memory

    return Arm(gradient)


PLAIN = "plain"
ANSWERS = "answers of the probes"
SELECTIVE = "selective, own answers"
SELECTIVE_TRUE = "selective, true answers"
TOLD = (SELECTIVE_TRUE, ANSWERS)  # these know the probes' answers
ARMS: dict[str, Callable[..., Arm]] = {
    PLAIN: plain,
    "importance weights": importance_weighted,
    "Algorithm 2, by record": reweighted,
    "Algorithm 1, training law": balanced_on_training,
    "Algorithm 1, probes": balanced_on_probes,
    "constrained, probes": constrained_on_probes,
    "Algorithm 3": observed,
    SELECTIVE: selective_on_probes,
    SELECTIVE_TRUE: partial(selective_on_probes, answers="true"),
    ANSWERS: answers_on_probes,
}


def _risk_gradient(model: CausalLM, examples: Example, weights: Array | None = None) -> CausalLM:
    return eqx.filter_grad(retrieval_risk)(model, examples, weights)


def _embedded(model: CausalLM, examples: Example) -> tuple[Array, Any]:
    ids, y = answer_batch(examples)
    return jax.vmap(model.embed)(ids, y), y


def _first(examples: Example, count: int | None) -> Example:
    return jax.tree.map(lambda leaf: leaf[:count], examples)


def _token_grid(setting: Setting) -> CellGrid:
    return token_grid(setting.task.length)


def _pools(setting: Setting) -> Float[Array, "records length"]:
    records = setting.task.records
    numbers = np.append(np.repeat(np.arange(records), 2), -1)
    return record_weights(numbers, _token_grid(setting).weights, records)


def _clip(gradient: CausalLM, strength: Scalar | float, clip: Scalar | float = UNTIL) -> CausalLM:
    """Return a penalty's gradient times its strength, and then no longer than `clip`."""
    scaled = jax.tree.map(lambda leaf: strength * leaf, gradient)
    factor = jnp.minimum(1.0, clip / (optax.tree.norm(scaled) + 1e-12))
    return jax.tree.map(lambda leaf: factor * leaf, scaled)


def _add(first: CausalLM, second: CausalLM) -> CausalLM:
    return jax.tree.map(jnp.add, first, second)
