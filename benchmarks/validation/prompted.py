r"""Does influence predict what a published model retrieves? Prompts of keys and values, as text.

Every place is gold in turn, so that prompts come in *rounds*, one of each gold place. Rounds are
independent: errors and the bootstrap are over them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from benchmarks.validation.intervals import Interval, bootstrap_interval, rank_correlation
from benchmarks.validation.prediction import AT_GOLD, PROFILE, SCORES, Prediction
from benchmarks.validation.texts import PromptSetting, drawn_prompt, text_batch
from lim_jax._checks import AnyPath, require
from lim_jax._digest import digest
from lim_jax._jit import filter_jit
from lim_jax._partial_runs import each_once
from lim_jax.grid.cells import token_grid
from lim_jax.loss.losses import autoregressive_cross_entropy, margin_loss
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.network.slots import State
from lim_jax.probes import Estimate
from lim_jax.tasks.accuracy import decodes_greedily
from lim_jax.tasks.prompts import Example

LOSSES = ("cross-entropy", "margin")
PROMPTED = tuple(
    f"{kind}, {loss}"
    for kind in ("influence", "normalised influence", "gradient times input")
    for loss in LOSSES
)


class Answers(NamedTuple):
    r"""What a model made of a prompt; with a leading axis, of many.

    Attributes
    ----------
    right
        Whether greedy decoding gives the answer.
    cross_entropy, margin
        Of the answer's words, on average.
    energies
        The records' parts of the integral of :math:`\|P_0\|^2`, of both `LOSSES`.
    gradient_times_input
        The sums over the records' tokens, of both.
    """

    right: Bool[Array | np.ndarray, "*prompts"]
    cross_entropy: Float[Array | np.ndarray, "*prompts"]
    margin: Float[Array | np.ndarray, "*prompts"]
    energies: Float[Array | np.ndarray, "*prompts losses records"]
    gradient_times_input: Float[Array | np.ndarray, "*prompts losses records"]


class PromptedStudy(NamedTuple):
    """How much each record matters to a model and how well it is retrieved, with standard errors.

    Attributes
    ----------
    profile, at_gold
        By attribution, one of `PROMPTED`: of every record, over all prompts, and over those that
        ask for it. Scaled so that the profile's mean over records is one. Influence is a ratio of
        means; what is normalised, and gradient times input in absolute value, is so by prompt.
    scores
        By the gold place, one of `prediction.SCORES`.
    predictions
        Their rank correlations, with the bootstrap's interval over rounds. What is drawn has the
        noise of the means twice: where records hardly differ, intervals lean to zero.
    """

    profile: Mapping[str, Estimate]
    at_gold: Mapping[str, Estimate]
    scores: Mapping[str, Estimate]
    predictions: list[Prediction]

    def record(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings."""
        parts = {"profile": self.profile, "at_gold": self.at_gold, "scores": self.scores}
        return {
            name: {
                key: {"value": estimate.value.tolist(), "error": estimate.error.tolist()}
                for key, estimate in part.items()
            }
            for name, part in parts.items()
        } | {"predictions": [prediction.record() for prediction in self.predictions]}


def ask_prompts(
    model: CausalLM,
    tokenizer: Any,
    setting: PromptSetting,
    *,
    checkpoint: AnyPath | None = None,
    progress: Callable[[list], Iterable] = iter,
) -> Answers:
    """Ask a model for values of keys, prompt after prompt, each of which is drawn by its number.

    All are padded on the right to the longest, so that one program serves them.

    Parameters
    ----------
    model
        From `models.load`, or any other.
    tokenizer
        The model's own (`LanguageModel.tokenizer`); None where ids are bytes of UTF-8.
    setting
        Which prompts.
    checkpoint
        A file to read, if it exists, which grows by a line with every prompt: a run that was
        interrupted and is called again with the same arguments goes on after the last of them.
    progress
        Wraps the list of prompts, for example ``tqdm.tqdm``.

    Returns
    -------
    Answers
        With a leading axis of prompts, on the host; the n-th asks for record ``n % records``.
    """
    records = setting.records
    count = setting.prompts
    require(
        count % records == 0,
        "prompts",
        got=f"{count} prompts of {records} records",
        expected="a multiple of the records",
        cure="Take a multiple of the records: each place holds the needed record in turn.",
    )
    examples = [drawn_prompt(setting, number, tokenizer) for number in range(count)]
    size = max(len(example.weights) for example in examples)
    queries = max(int(np.count_nonzero(example.weights)) for example in examples)

    def ask(example: Example) -> dict[str, Any]:
        """Ask one prompt, and return the results as lists."""
        results = answers(model, example, records, size=size, queries=queries)
        return {name: np.asarray(part).tolist() for name, part in results._asdict().items()}

    run = {
        "function": "ask_prompts",
        "model": digest(model),
        "prompts": digest((records, examples)),
    }
    prompts = {str(number): partial(ask, example) for number, example in enumerate(examples)}
    results = each_once(prompts, checkpoint, run, progress)
    return Answers(
        *(np.array([result[name] for result in results.values()]) for name in Answers._fields)
    )


def answers(
    model: CausalLM,
    example: Example,
    records: int,
    *,
    size: int | None = None,
    queries: int | None = None,
) -> Answers:
    """Return what a model makes of one prompt: two gradients through one forward pass.

    Parameters
    ----------
    model
        Any.
    example
        From `tasks.encode`.
    records
        How many it has.
    size, queries
        To pad the context and the answer's words to, so that one program serves many prompts.
    """
    dtype = model.embedding.dtype
    batch = text_batch([example], records, size=size, queries=queries, dtype=dtype)
    ids, y, pools, _ = jax.tree.map(lambda leaf: leaf[0], batch)
    length = jax.device_put(np.asarray(len(example.weights), dtype))
    return _answers(model, ids, y, pools, length)


@filter_jit
def _answers(
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets,
    pools: Float[Array, "records length"],
    length: Float[Array, ""],
) -> Answers:
    x = model.embed(ids)
    grid = token_grid(len(ids), x.dtype)

    def losses(x: State) -> tuple[Float[Array, "2"], Float[Array, "queries vocabulary"]]:
        """Return both losses, and the logits at the answer."""
        logits = model.readout(model.flow(x, grid)[y.positions], grid)
        both = (
            autoregressive_cross_entropy(logits, y.targets, y.weights),
            margin_loss(logits, y.targets, y.weights),
        )
        return jnp.stack(both), logits

    (cross_entropy, minus_margin), pull, logits = jax.vjp(losses, x, has_aux=True)
    (gradients,) = jax.vmap(pull)(jnp.eye(2, dtype=x.dtype))
    # The integral of ‖P‖² over a place is L ‖∂x‖², with L the places before padding.
    energies = length * jnp.sum(gradients**2, axis=2) @ pools.T
    products = jnp.sum(gradients * x[None], axis=2) @ pools.T
    right = decodes_greedily(logits, y.targets, y.weights)
    return Answers(right, cross_entropy, -minus_margin, energies, products)


def prompted_study(answers: Answers) -> PromptedStudy:
    """Average over prompts, and correlate attributions and scores over the records.

    Parameters
    ----------
    answers
        Of `ask_prompts`.
    """
    rounds = _rounds(answers)
    totals = rounds.profile.mean(axis=2)
    scores = _estimate(rounds.scores.mean(axis=0), _error(rounds.scores))
    return PromptedStudy(
        _by_name(PROMPTED, _ratio(rounds.profile, totals)),
        _by_name(PROMPTED, _ratio(rounds.at_gold, totals)),
        _by_name(SCORES, scores),
        _predictions(bootstrap_interval(rounds, _correlations)),
    )


class _Rounds(NamedTuple):
    """Of each round the profile over its prompts, and the rest by the record that is gold."""

    profile: Float[np.ndarray, "rounds attributions records"]
    at_gold: Float[np.ndarray, "rounds attributions records"]
    scores: Float[np.ndarray, "rounds scores records"]


def _rounds(answers: Answers) -> _Rounds:
    records = answers.energies.shape[2]
    numbers = np.arange(records)
    products = np.abs(answers.gradient_times_input)
    parts = [answers.energies, _over_mean(answers.energies), _over_mean(products)]
    attributions = np.concatenate(parts, axis=1).reshape(-1, records, len(PROMPTED), records)
    scores = np.stack([answers.right, answers.margin, -answers.cross_entropy], axis=1)
    return _Rounds(
        attributions.mean(axis=1),
        # The record that is gold, of the prompt that asks for it.
        attributions[:, numbers, :, numbers].transpose(1, 2, 0),
        scores.reshape(-1, records, len(SCORES)).transpose(0, 2, 1),
    )


def _over_mean(values: Array | np.ndarray) -> Array | np.ndarray:
    return values / values.mean(axis=2, keepdims=True)


def _correlations(rounds: _Rounds) -> Float[np.ndarray, "2 attributions scores"]:
    profile, at_gold, scores = (part.mean(axis=0) for part in rounds)
    attributed = np.stack([profile, at_gold])[:, :, None, :]
    return rank_correlation(*np.broadcast_arrays(attributed, scores[None, None]))


def _predictions(interval: Interval) -> list[Prediction]:
    """Return one network's predictions: a correlation, with its interval over rounds."""
    return [
        Prediction(
            attribution,
            of,
            score,
            interval.value[i, j, k][None],
            Interval(*(end[i, j, k] for end in interval)),
            int(np.isnan(interval.value[i, j, k])),
        )
        for i, of in enumerate((PROFILE, AT_GOLD))
        for j, attribution in enumerate(PROMPTED)
        for k, score in enumerate(SCORES)
    ]


def _ratio(
    samples: Float[np.ndarray, "rounds attributions records"],
    totals: Float[np.ndarray, "rounds attributions"],
) -> Estimate:
    """Return the ratio of the means over rounds; its error is linearised."""
    total = totals.mean(axis=0)[:, None]
    value = samples.mean(axis=0) / total
    error = _error(samples - value[None] * totals[:, :, None]) / total
    return _estimate(value, error)


def _error(samples: Float[np.ndarray, " rounds *shape"]) -> Float[np.ndarray, "*shape"]:
    """Return the standard error of a mean; infinite with one round."""
    if len(samples) == 1:
        return np.full(samples.shape[1:], np.inf)
    return samples.std(axis=0, ddof=1) / np.sqrt(len(samples))


def _estimate(value: np.ndarray, error: np.ndarray) -> Estimate:
    return Estimate(jax.device_put(value), jax.device_put(error))


def _by_name(names: tuple[str, ...], estimates: Estimate) -> dict[str, Estimate]:
    rows = zip(names, estimates.value, estimates.error, strict=True)
    return {name: Estimate(value, error) for name, value, error in rows}
