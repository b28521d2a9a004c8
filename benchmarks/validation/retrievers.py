r"""Small networks that retrieve: trained here on keys and values, and judged by the gold place.

Where their law of training seldom asks in the middle, they lose it there for a while: a
Lost-in-the-Middle that is made on purpose, in a minute, so that what lifts it can be measured.
Networks of several seeds are trained at once, as one pytree with a leading axis.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from benchmarks.validation.laws import (
    Law,
    edge_law,
    every_place,
    gold_places,
    middle_law,
    uniform_law,
)
from benchmarks.validation.retrieval import KeyValueTask, key_value_examples
from benchmarks.validation.seeds import step_of_seeds
from lim_jax._checks import (
    AnyPath,
    as_path,
)
from lim_jax._jit import filter_jit
from lim_jax._random import fan_in
from lim_jax.density.adjoints import LossOfIds
from lim_jax.grid.measure import Scalar
from lim_jax.loss.losses import autoregressive_cross_entropy, margin_loss
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.small_models import gaussian_model
from lim_jax.network.field import TransformerField
from lim_jax.network.frequencies import rotary_frequencies
from lim_jax.network.gated_delta import GatedDelta
from lim_jax.network.layer_kinds import LayersByKind
from lim_jax.network.norms import GroupedNorm, LayerNorm
from lim_jax.network.positions import Rotary
from lim_jax.tasks.prompts import Example
from lim_jax.training.loop import Progress, resumable

Retrievers = CausalLM  # with a leading axis of seeds
ANSWER_LOSS = LossOfIds(CausalLM.embed, CausalLM.loss)
MARGIN_LOSS = LossOfIds(CausalLM.embed, CausalLM.margin_loss)
OWN_MARGIN_LOSS = LossOfIds(CausalLM.embed, CausalLM.own_margin_loss)
TAPS = 4  # of the convolutions of recurrent layers
LAWS: dict[str, Callable[[int], Law]] = {
    "uniform": uniform_law,
    "edges": edge_law,
    "middle": middle_law,
    "only edges": partial(edge_law, odds=0.0),
}


class Setting(NamedTuple):
    """A task, a network, and how it is trained.

    Attributes
    ----------
    task
        Keys and values.
    width, heads, depth
        Of the network.
    rotary
        Whether places are turned, and not learned: then contexts may be longer than in training.
    attention_every
        Every how many-th layer is attention; the others are gated delta rules.
    law
        Of the gold place, a name of `LAWS`.
    steps, batch, rate
        Updates by Adam, contexts in each, and its rate, which rises over the first tenth. Without
        updates networks are as before training.
    """

    task: KeyValueTask = KeyValueTask()
    width: int = 32
    heads: int = 2
    depth: int = 2
    rotary: bool = False
    attention_every: int = 1
    law: str = "edges"
    steps: int = 1000
    batch: int = 64
    rate: float = 3e-3

    @property
    def gold_law(self) -> Law:
        """The law of the gold place, by record."""
        return LAWS[self.law](self.task.records)


class PlaceScores(NamedTuple):
    """How well a network retrieves, by the place of the record that is asked for.

    Attributes
    ----------
    accuracy
        The share of answers that are right.
    margin
        The mean log odds of the answer.
    cross_entropy
        Minus its mean log probability, in nats.
    """

    accuracy: Float[Array, "*seeds records"]
    margin: Float[Array, "*seeds records"]
    cross_entropy: Float[Array, "*seeds records"]


def answer_batch(examples: Example) -> tuple[Int[Array, "examples length"], Targets]:
    """Return a batch of `ANSWER_LOSS` or `MARGIN_LOSS`: ids, and the answer at their last place.

    Examples
    --------
    >>> task = KeyValueTask(records=2, keys=3, values=4)
    >>> examples = key_value_examples(task, jnp.array([1]), key=jax.random.key(0))
    >>> ids, y = answer_batch(examples)
    >>> ids.shape, y.positions.tolist(), bool(y.targets[0, 0] == examples.window[0, -1])
    ((1, 5), [[4]], True)
    """
    windows = jnp.asarray(examples.window)
    ids = windows[:, :-1]
    count, length = ids.shape
    return ids, Targets(windows[:, -1:], jnp.ones((count, 1)), jnp.full((count, 1), length - 1))


def retrieval_risk(model: CausalLM, examples: Example, weights: Array | None = None) -> Scalar:
    """Compute the mean cross-entropy of the answers, in nats; each times its weight, if any."""
    ids, y = answer_batch(examples)
    losses = jax.vmap(ANSWER_LOSS, in_axes=(None, 0, 0))(model, ids, y)
    return losses.mean() if weights is None else (weights * losses).mean()


def draw(setting: Setting, law: Law, *, key: Key[Array, ""]) -> Example:
    """Draw a batch of the setting's size, with gold places of a law."""
    gold_key, pairs_key = jax.random.split(key)
    gold = gold_places(law, setting.batch, key=gold_key)
    return key_value_examples(setting.task, gold, key=pairs_key)


def new_retriever(setting: Setting, *, key: Key[Array, ""]) -> CausalLM:
    """Make a network before training.

    Examples
    --------
    >>> setting = Setting(KeyValueTask(records=2, keys=3, values=4), width=8, depth=1)
    >>> model = new_retriever(setting, key=jax.random.key(0))
    >>> model.vocabulary, model.positions.shape
    (7, (5, 8))
    """
    task = setting.task
    size = setting.width // setting.heads
    model = gaussian_model(
        task.vocabulary,
        None if setting.rotary else task.length,
        width=setting.width,
        heads=setting.heads,
        depth=setting.depth,
        rotary=Rotary(rotary_frequencies(size)) if setting.rotary else None,
        key=key,
    )
    if setting.attention_every == 1:
        return model
    layers = _hybrid(model.flow.layers, setting, jax.random.fold_in(key, 1))
    return eqx.tree_at(lambda model: model.flow.layers, model, layers)


def _hybrid(layers: TransformerField, setting: Setting, key: Key[Array, ""]) -> LayersByKind:
    """Make layers of which only every so-many-th keeps its attention."""
    order = [int((k + 1) % setting.attention_every == 0) for k in range(setting.depth)]

    def layers_of_kind(kind: int) -> TransformerField:
        """Return the layers of one kind, in their order."""
        return jax.tree.map(lambda leaf: leaf[np.flatnonzero(np.equal(order, kind))], layers)

    keys = jax.random.split(key, order.count(0))
    states = jax.vmap(partial(_gated_delta, setting.width, setting.heads))(keys)
    return LayersByKind((replace(layers_of_kind(0), attention=states), layers_of_kind(1)), order)


def _gated_delta(width: int, heads: int, key: Key[Array, ""]) -> GatedDelta:
    """Draw a layer, whose decays begin as those of published networks do."""
    keys = jax.random.split(key, 12)
    size = width // heads
    query, key_, value, gate = (fan_in(k, heads, size, width) for k in keys[:4])
    taps = (fan_in(k, heads, size, TAPS) for k in keys[4:7])
    low = math.log(0.001)
    high = math.log(0.1)
    rates = jnp.exp(jax.random.uniform(keys[7], (heads,), minval=low, maxval=high))
    return GatedDelta(
        LayerNorm.init(width),
        query,
        key_,
        value,
        fan_in(keys[8], heads, width),
        jnp.log(jnp.expm1(rates)),
        jnp.log(jax.random.uniform(keys[9], (heads,), minval=1.0, maxval=16.0)),
        gate,
        fan_in(keys[10], heads, width, size) / math.sqrt(heads),
        *taps,
        head_norm=GroupedNorm(jnp.ones((heads, size)), heads),
        write=fan_in(keys[11], heads, width),
    )


def train_retrievers(
    setting: Setting,
    keys: Key[Array, " seeds"],
    *,
    checkpoint: AnyPath | None = None,
    progress: Progress = iter,
) -> tuple[Retrievers, Float[Array, "steps seeds"]]:
    """Train a network for each key, all in one program, on batches of the setting's law.

    Parameters
    ----------
    setting
        What to train, on what, for how long.
    keys
        One for each seed: for its parameters and its batches.
    checkpoint, progress
        As in `training.resumable`.

    Returns
    -------
    tuple
        The networks with a leading axis of seeds, and the loss of every step.
    """
    file = None if checkpoint is None else as_path(checkpoint, "checkpoint")
    if setting.steps == 0:
        return _initial_states(setting, keys)[0], jnp.zeros((0, len(keys)))
    batch_keys = jax.vmap(partial(jax.random.fold_in, data=1))(keys)
    (models, _), losses = resumable(
        step_of_seeds(_Lesson(setting), batch_keys),
        _initial_states(setting, keys),
        setting.steps,
        run=(setting, keys),
        checkpoint=file,
        every=200,
        progress=progress,
    )
    return models, losses


def _optimiser(setting: Setting) -> optax.GradientTransformation:
    warm = optax.schedules.linear_schedule(0.0, setting.rate, max(1, setting.steps // 10))
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(warm))


@filter_jit
def _initial_states(setting: Setting, keys: Key[Array, " seeds"]) -> PyTree:
    def begin(key: Key[Array, ""]) -> PyTree:
        """Draw a network, with a new optimiser."""
        model = new_retriever(setting, key=jax.random.fold_in(key, 0))
        return model, _optimiser(setting).init(eqx.filter(model, eqx.is_array))

    return eqx.filter_vmap(begin)(keys)


class _Lesson(eqx.Module):
    """A step of one seed, compiled once for all trainings of a setting."""

    setting: Setting = eqx.field(static=True)

    def __call__(
        self, state: PyTree, key: Key[Array, ""], index: Int[Array, ""]
    ) -> tuple[PyTree, Scalar]:
        del index
        model, moments = state
        examples = draw(self.setting, self.setting.gold_law, key=key)
        risk, gradient = eqx.filter_value_and_grad(retrieval_risk)(model, examples)
        change, moments = _optimiser(self.setting).update(gradient, moments)
        return (eqx.apply_updates(model, change), moments), risk


def scores_by_place(model: CausalLM, examples: Example) -> PlaceScores:
    """Judge one network on examples, and average over those of each gold place.

    Parameters
    ----------
    model
        Any.
    examples
        That ask at their last place for one record each: every gold place of `records` must be
        there (`every_place`), else its scores are NaN.
    """
    ids, y = answer_batch(examples)
    gold = jnp.asarray(examples.gold[:, 0])
    records = examples.records.shape[1] // 2

    def judge(ids: Int[Array, " length"], y: Targets) -> tuple[Array, Array, Array]:
        """Tell whether an example is answered right, and by what margin and log probability."""
        logits = model.logits(ids)[-1:]
        answer = y.targets
        weight = y.weights
        right = logits.argmax(axis=1)[0] == answer[0]
        scores = (
            -margin_loss(logits, answer, weight),
            autoregressive_cross_entropy(logits, answer, weight),
        )
        return right.astype(logits.dtype), *scores

    return PlaceScores(*(by_place(values, gold, records) for values in jax.vmap(judge)(ids, y)))


def by_place(
    values: Float[Array, " examples"], gold: Int[Array, " examples"], records: int
) -> Float[Array, " records"]:
    """Average over the examples of each gold place; NaN where there are none.

    Examples
    --------
    >>> by_place(jnp.array([1.0, 0.0, 1.0]), jnp.array([0, 0, 1]), 2).tolist()
    [0.5, 1.0]
    """
    sums = jnp.zeros(records, values.dtype).at[gold].add(values)
    return sums / jnp.zeros(records, values.dtype).at[gold].add(1)


def in_the_middle(
    values: Float[Array | np.ndarray, "*shape records"],
) -> Float[np.ndarray, "*shape"]:
    """Return the mean over the records that are at neither edge, by the width of `edge_law`.

    On the host: results are not differentiated.

    Examples
    --------
    >>> float(in_the_middle(jnp.array([9.0, 1.0, 3.0, 9.0])))
    2.0
    """
    array = np.asarray(values)
    inside = np.asarray(middle_law(array.shape[-1], odds=0.0)) > 0
    return np.asarray(array[..., inside].mean(axis=-1))


def examples_of_every_place(setting: Setting, count: int, *, key: Key[Array, ""]) -> Example:
    """Draw examples with every gold place `count` times."""
    return key_value_examples(setting.task, every_place(setting.task.records, count), key=key)


def over_seeds(function: Callable) -> Callable:
    """Turn a function of one network and examples into one of networks of all seeds and these."""
    return eqx.filter_vmap(function, in_axes=(eqx.if_array(0), None))
