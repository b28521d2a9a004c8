r"""Which record did the answer come from? Attributions, judged by taking records out of the text.

What is explained is the model's own answer. Prompts are of two kinds in turn, and every place is
gold in turn: those of a longer run begin with those of a shorter one.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from benchmarks.validation.ablations import (
    ablating,
    context_size,
    datamodeling_score,
    random_ablations,
    sparse_regression,
    without_the_first,
)
from benchmarks.validation.documents import question_prompt
from benchmarks.validation.facts import draw_facts
from benchmarks.validation.intervals import Interval, bootstrap_interval
from benchmarks.validation.prompted import answers
from lim_jax._checks import AnyPath, require, require_extra
from lim_jax._digest import digest
from lim_jax._errors import filter_jit
from lim_jax._resuming import each_once
from lim_jax.attribution.gradients import attention_rollout, integrated_gradients
from lim_jax.attribution.methods import Cost
from lim_jax.grid.cells import token_grid
from lim_jax.models.answering import answer
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.text import texts_of_ids
from lim_jax.tasks.key_value import draw_key_values, key_value_prompt
from lim_jax.tasks.prompts import EncodedText, Example, Prompt, encode_text, record_weights

KINDS = ("keys and values", "documents")
TAKEN_OUT = (1, 3, 5)
MEASURES = (*(f"top-{count} drop" for count in TAKEN_OUT), "datamodeling score")
INFLUENCE, MARGIN, ROOT = "influence", "influence, margin", "influence, root"
RANDOM, LEAVE_ONE_OUT = "random", "leave-one-out"
WHOLE = (
    INFLUENCE, MARGIN, ROOT, "gradient times input", "gradient times input, size",
    "integrated gradients", "attention rollout",
)  # fmt: skip
ENDS = ('"', "\n")


class FaithfulnessSetting(NamedTuple):
    """Which prompts, and how attributions are made and judged.

    Attributes
    ----------
    prompts
        How many, of both kinds together: a multiple of twice the records.
    records
        In each, at most ten.
    key_length, value_length
        In hexadecimal digits, as in `tasks.draw_key_values`.
    tokens
        Of the model's answer, at most.
    fitted
        On how many ablations the sparse regressions are fitted, each on the first of the last's.
    held_out
        How many others the datamodeling score is of.
    steps
        Of integrated gradients.
    """

    prompts: int = 200
    records: int = 10
    key_length: int = 2
    value_length: int = 2
    tokens: int = 5
    fitted: tuple[int, ...] = (32, 64)
    held_out: int = 16
    steps: int = 8


class Explained(NamedTuple):
    """One prompt: the model's answer, and by each attribution the records it hangs on; or many.

    Attributes
    ----------
    right
        Whether the answer holds what is asked for.
    tokens
        How many the answer has.
    log_probability
        Of the answer, after the whole text.
    scores
        Of every attribution, in the order of `attribution_costs`: the greater, the more does the
        record speak for the answer.
    drops
        By how much the answer's log-probability falls where the records that an attribution ranks
        highest are taken out, for each of `TAKEN_OUT`.
    kept, values
        The ablations that were held out, and the answer's log-probabilities.
    """

    right: Bool[np.ndarray, "*prompts"]
    tokens: Int[np.ndarray, "*prompts"]
    log_probability: Float[np.ndarray, "*prompts"]
    scores: Float[np.ndarray, "*prompts attributions records"]
    drops: Float[np.ndarray, "*prompts attributions counts"]
    kept: Bool[np.ndarray, "*prompts held_out records"]
    values: Float[np.ndarray, "*prompts held_out"]


class Faithfulness(NamedTuple):
    """How faithful attributions are on prompts of one kind, over prompts.

    Attributes
    ----------
    prompts
        How many.
    right
        The share of answers that hold what is asked for.
    log_probability
        The mean of the answers'.
    costs
        Of each attribution.
    measures
        Of each, the mean of `MEASURES` over prompts with the bootstrap's interval.
    leads
        By how much influence is above each of the others, paired by prompt.
    """

    prompts: int
    right: float
    log_probability: float
    costs: Mapping[str, Cost]
    measures: Mapping[str, Interval]
    leads: Mapping[str, Interval]

    def record(self) -> dict[str, Any]:
        """Everything as plain numbers and strings."""
        plain = {
            part: {
                name: {end: values.tolist() for end, values in interval._asdict().items()}
                for name, interval in getattr(self, part).items()
            }
            for part in ("measures", "leads")
        }
        costs = {name: cost._asdict() for name, cost in self.costs.items()}
        return {**self._asdict(), "costs": costs, **plain}


def attribution_costs(setting: FaithfulnessSetting) -> dict[str, Cost]:
    r"""The attributions that are compared, and what each takes beside the answer itself.

    Influence is the records' part of the integral of :math:`\|P_0\|^2`, of the answer's mean
    cross-entropy and of its margin; the root of the first is as large as a gradient. To normalise
    it by a prompt's total changes neither ranks nor rank correlations. Gradient times input is of
    the mean log-probability, signed and in absolute value, and so are integrated gradients, whose
    path begins with the average word at the records' places. Rollout is of the places that ask.
    Leave-one-out takes a pass for each record, a sparse regression one for each ablation that it
    is fitted on; the random ranking takes nothing.

    Examples
    --------
    >>> found = attribution_costs(FaithfulnessSetting())
    >>> found["influence"].total, found["leave-one-out"].total, found["integrated gradients"].total
    (3, 10, 24)
    """
    one, steps = Cost(1, 1), setting.steps
    whole = (one, one, one, one, one, Cost(steps, steps), Cost(1, 0))
    found = dict(zip(WHOLE, whole, strict=True)) | {LEAVE_ONE_OUT: Cost(setting.records, 0)}
    found |= {f"ContextCite on {count}": Cost(count, 0) for count in setting.fitted}
    return found | {RANDOM: Cost(0, 0)}


def explain_prompts(
    model: CausalLM,
    tokenizer: Any,
    setting: FaithfulnessSetting,
    *,
    end: Iterable[int] = (),
    checkpoint: AnyPath | None = None,
    progress: Callable[[list], Iterable] = iter,
) -> Explained:
    """Let a model answer prompts, attribute its answers to records, and take records out.

    An answer ends before a quotation mark, the end of a line or an id of `end`, and is explained
    without: the ids before it, or that one alone.

    Parameters
    ----------
    model
        From `models.load`, or any other whose weights are not left in their files.
    tokenizer
        The model's own (`LanguageModel.tokenizer`); None where ids are bytes of UTF-8.
    setting
        Which prompts, and how.
    end
        The ids that end what the model says, of `LanguageModel.end_ids`.
    checkpoint
        A file to read, if it exists, which grows by a line with every prompt: a run that was
        interrupted and is called again goes on after the last of them, for more prompts too.
    progress
        Wraps the list of prompts, for example ``tqdm.tqdm``.

    Returns
    -------
    Explained
        With a leading axis of prompts; the n-th is of kind ``n % 2``, and asks for record
        ``n // 2 % records``.

    Raises
    ------
    ModuleNotFoundError
        Without scikit-learn, of the extra ``faithfulness``.
    ValueError
        Where the prompts are no whole number of rounds, or the checkpoint is of another model or
        setting.
    """
    records, count = setting.records, setting.prompts
    require(
        count % (2 * records) == 0,
        "prompts",
        got=f"{count} prompts of {records} records",
        expected="a multiple of twice the records",
        cure="Every place is gold in turn, in prompts of both kinds.",
    )
    require_extra("sklearn", "faithfulness")
    require(
        isinstance(model.embedding, Array),
        "model",
        got="one whose weights are left in their files",
        expected="its embedding as an array",
        cure="Load it by models.load.",
    )
    ends = _ends(model, tokenizer, end)
    first = [encode_text(_prompt(setting, number).text, tokenizer).ids for number in range(2)]
    run = {
        "function": "explain_prompts",
        "model": digest(model),
        "setting": {**setting._asdict(), "prompts": "any number"},
        "ids": digest([*first, np.array(ends)]),
    }

    def explained(number: int) -> dict[str, Any]:
        found = _explained(model, tokenizer, setting, ends, number)
        return {name: np.asarray(part).tolist() for name, part in found._asdict().items()}

    prompts = {str(number): partial(explained, number) for number in range(count)}
    found = each_once(prompts, checkpoint, run, progress)
    return Explained(
        *(np.array([one[name] for one in found.values()]) for name in Explained._fields)
    )


def _prompt(setting: FaithfulnessSetting, number: int) -> Prompt:
    """One of the prompts, by its number."""
    seed, kind = divmod(number, len(KINDS))
    place = seed % setting.records
    if kind == 0:
        data = draw_key_values(
            setting.records, seed,
            key_length=setting.key_length, value_length=setting.value_length,
        )  # fmt: skip
        return key_value_prompt(data, place)
    return question_prompt(draw_facts(setting.records, seed), place)


def _ends(model: CausalLM, tokenizer: Any, end: Iterable[int]) -> list[int]:
    """The ids that end an answer: those that spell a quotation mark or the end of a line too."""
    if tokenizer is None:
        spelt = [ord(mark) for mark in ENDS]
    else:
        texts = tokenizer.decode_batch([[one] for one in range(model.vocabulary)])
        spelt = [one for one, text in enumerate(texts) if any(mark in text for mark in ENDS)]
    return sorted({*spelt, *end})


def _explained(
    model: CausalLM, tokenizer: Any, setting: FaithfulnessSetting, ends: list[int], number: int
) -> Explained:
    """One of the prompts."""
    prompt, records, fitted = _prompt(setting, number), setting.records, max(setting.fitted)
    context = encode_text(prompt.text, tokenizer)
    said = np.asarray(answer(model, context.ids, setting.tokens, ends))
    said = said[:-1] if len(said) > 1 and int(said[-1]) in ends else said
    of = ablating(model, prompt, said, tokenizer, queries=setting.tokens)
    drawn = random_ablations(records, fitted + setting.held_out, number)
    # All at once, so that contexts of like lengths go together.
    once = [np.ones((1, records), bool), ~np.eye(records, dtype=bool), drawn]
    whole, alone, values = np.split(of(np.concatenate(once)), [1, 1 + records])
    rng = np.random.default_rng([number, 1])
    scores = np.stack([
        *_of_the_whole(model, _example(prompt, context, said), setting),
        whole - alone,
        *(sparse_regression(drawn[:count], values[:count], len(said)) for count in setting.fitted),
        rng.uniform(size=records),
    ])  # fmt: skip
    # Records whose scores tie, such as those that a regression leaves out, in any order.
    chance = rng.permutation(records)
    taken = [without_the_first(np.lexsort((chance, -row)), TAKEN_OUT) for row in scores]
    drops = whole - of(np.concatenate(taken)).reshape(len(scores), len(TAKEN_OUT))
    right = prompt.answer.strip() in "".join(texts_of_ids(said, tokenizer))
    return Explained(
        np.array(right), np.array(len(said)), whole[0], scores, drops, drawn[fitted:],
        values[fitted:],
    )  # fmt: skip


def _of_the_whole(
    model: CausalLM, example: Example, setting: FaithfulnessSetting
) -> Float[np.ndarray, "attributions records"]:
    """The attributions that read the whole text only: all of `WHOLE`."""
    length, asked = len(example.weights), np.flatnonzero(example.weights)
    size, queries = context_size(model, length), setting.tokens
    found = answers(model, example, setting.records, size=size, queries=queries)
    dtype, more = np.dtype(model.embedding.dtype), queries - len(asked)
    queried = (
        np.pad(example.window[1:][asked], (0, more)),
        np.pad(np.full(len(asked), 1 / len(asked), dtype), (0, more)),
        np.pad(asked.astype(np.int32), (0, more)),
    )
    ids = np.pad(example.window[:-1], (0, size - length))
    places = np.pad(example.records, (0, size - length), constant_values=-1)
    y = Targets(*map(jax.device_put, queried))
    ids, places = jax.device_put((ids, places))
    others = _along_a_path(model, ids, y, places, setting.records, setting.steps)
    energies, products = np.asarray(found.energies), np.asarray(found.gradient_times_input)
    influence, product = [*energies, np.sqrt(energies[0])], [-products[0], np.abs(products[0])]
    return np.stack([*influence, *product, *map(np.asarray, others)]).astype(float)


@filter_jit
def _along_a_path(
    model: CausalLM, ids: Int[Array, " size"], y: Targets, places: Int[Array, " size"],
    records: int, steps: int,
) -> tuple[Float[Array, " records"], Float[Array, " records"]]:  # fmt: skip
    """Integrated gradients of the log-probability, and attention rollout, by record."""
    x, words = model.embed(ids), model.embedding
    assert isinstance(words, Array)
    average = model.embedding_scale * (words.mean(axis=0)[None] - words[ids])
    baseline = jnp.where((places >= 0)[:, None], x + average, x)
    sums = record_weights(places, jnp.ones_like(x[:, 0]), records)
    path = integrated_gradients(CausalLM.loss, model, x, y, baseline, steps=steps)
    rollout = attention_rollout(model.flow, x, token_grid(x.shape[0], x.dtype))
    return -(sums @ path), sums @ (y.weights @ rollout[y.places])


def _example(prompt: Prompt, context: EncodedText, said: Int[np.ndarray, " answer"]) -> Example:
    """The text's ids with the answer's after them, which belong to no record."""
    before, after = len(context.ids), len(said)
    places = np.full(before + after - 1, -1, np.int32)
    for number, span in enumerate(prompt.spans):
        places[:before][context.within(*span)] = number
    weights = np.zeros(len(places), np.float32)
    weights[before - 1 :] = 1 / after
    window = np.concatenate([context.ids, said]).astype(np.int32)
    return Example(window, weights, places, np.array(prompt.gold, np.int32))


def faithfulness_study(found: Explained, setting: FaithfulnessSetting) -> dict[str, Faithfulness]:
    """How faithful each attribution is, by kind of prompt.

    Parameters
    ----------
    found
        Of `explain_prompts`.
    setting
        Its own.
    """
    known = attribution_costs(setting)
    parts = [Explained(*(part[kind :: len(KINDS)] for part in found)) for kind in range(len(KINDS))]
    return {name: _of_kind(part, known) for name, part in zip(KINDS, parts, strict=True)}


def _of_kind(found: Explained, known: Mapping[str, Cost]) -> Faithfulness:
    cases = zip(found.scores, found.kept, found.values, strict=True)
    scores = np.stack([datamodeling_score(*case) for case in cases])
    samples = np.concatenate([found.drops, scores[..., None]], axis=2)
    means, leads = map(bootstrap_interval, (samples, samples[:, :1] - samples[:, 1:]))
    return Faithfulness(
        len(samples), float(found.right.mean()), float(found.log_probability.mean()), known,
        _by_name(known, means), _by_name([*known][1:], leads),
    )  # fmt: skip


def _by_name(names: Iterable[str], found: Interval) -> dict[str, Interval]:
    return {name: Interval(*(end[row] for end in found)) for row, name in enumerate(names)}
