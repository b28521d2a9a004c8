r"""Which part did the answer come from? Attributions, judged by taking parts out of the text.

What is explained is the model's own answer, to prompts of several kinds in turn. They are drawn by
their number, so that those of a longer run begin with those of a shorter one.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from benchmarks.validation.ablation_study import (
    Ablated,
    context_size,
    ids_of_texts,
    random_ablations,
    read_answers,
    sparse_regression,
    without_the_first,
)
from benchmarks.validation.document_study import question_prompt
from benchmarks.validation.facts import draw_facts
from benchmarks.validation.key_values import draw_key_values, key_value_prompt
from benchmarks.validation.prose import DOCUMENTS, prose_prompt
from benchmarks.validation.scored_parts import (
    MaskVariant,
    MethodOfLoss,
    Parts,
    context_of_prompt,
    mask_variants,
)
from benchmarks.validation.stopwatch import Stopwatch
from lim_jax._checks import AnyPath, require, require_extra
from lim_jax._digest import digest
from lim_jax._partial_runs import each_once
from lim_jax.attribution.methods.integrated_gradients import STEPS
from lim_jax.checkpoints.text import texts_of_ids
from lim_jax.models.causal import CausalLM
from lim_jax.models.padding import padded_size
from lim_jax.prompts.contexts import Context
from lim_jax.tasks.prompts import Prompt, encode_text

PAIRS = "keys and values"
FACTS = "documents"
SENTENCES = "sentences"
INFLUENCE = "influence"
RANDOM = "random"
LEAVE_ONE_OUT = "leave-one-out"
OF_MARGIN = "influence, margin"
PRODUCT = "gradient times input"
SIZE = f"{PRODUCT}, size"
IN_WORDS = (INFLUENCE, OF_MARGIN, PRODUCT, SIZE)
PATH = "integrated gradients"
ROLLOUT = "attention rollout"
AT2 = "AT2"
# The methods of the package that read the whole text, as they are. Others read texts without parts
# (`ablation_study.Ablated`), which the study tokenizes anew as its authors do; the package closes
# up the tokens that it has, and takes the log odds of each token of the answer.
METHODS = {
    INFLUENCE: MethodOfLoss("influence", CausalLM.loss),
    OF_MARGIN: MethodOfLoss("influence", CausalLM.margin_loss),
    PRODUCT: MethodOfLoss("gradient-times-input", CausalLM.loss),
    PATH: MethodOfLoss("integrated-gradients", CausalLM.loss),
    ROLLOUT: MethodOfLoss("rollout", CausalLM.loss),
}
ENDS = ('"', "\n")


class FaithfulnessSetting(NamedTuple):
    """Which prompts, and how attributions are made and judged.

    Attributes
    ----------
    kinds
        Of prompts, in turn: some of `PAIRS`, `FACTS` and `SENTENCES`.
    prompts
        How many, of all kinds together.
    at_once
        How many of them are taken together, and stored.
    records
        In each, of facts at most ten; of sentences, the fewest and the most of a document.
    tokens
        Of the model's answer, at most.
    fitted
        On how many ablations the sparse regressions are fitted, each on the first of the last's.
    held_out
        How many others the datamodeling score is of.
    taken_out
        How many parts are taken out together: those that an attribution ranks highest.
    weights, paths
        Of the mask gradient: at which weights of all parts, and on paths of how many gradients.
    steps
        Of integrated gradients, as many as the package takes; 0 leaves out these and attention
        rollout.
    precision
        Of products, as `jax.default_matmul_precision` has it: long texts take TF32 on a GPU.
    """

    kinds: tuple[str, ...]
    prompts: int
    at_once: int
    records: int | tuple[int, int]
    tokens: int = 5
    fitted: tuple[int, ...] = (32, 64, 128)
    held_out: int = 32
    taken_out: tuple[int, ...] = (1, 3, 5, 10)
    weights: tuple[float, ...] = (1.0, 0.5, 0.2, 0.1)
    paths: tuple[int, ...] = (2, 4, 8)
    steps: int = 0
    precision: str = "float32"


SETTINGS = {
    "10 records": FaithfulnessSetting(
        (PAIRS, FACTS), 200, 40, 10, fitted=(32, 64), held_out=16, taken_out=(1, 3, 5), steps=STEPS
    ),
    "40 records": FaithfulnessSetting((PAIRS,), 60, 12, 40),
    "sentences": FaithfulnessSetting(
        (SENTENCES,), 40, 8, (10, 20), tokens=8, precision="tensorfloat32"
    ),
}


def _quick(setting: FaithfulnessSetting) -> FaithfulnessSetting:
    return setting._replace(
        prompts=8,
        at_once=4,
        fitted=(8, 16),
        held_out=8,
        weights=(1.0, 0.2),
        paths=(2,),
        records=(1, 1) if setting.kinds == (SENTENCES,) else 10,
        taken_out=setting.taken_out[: 2 if setting.kinds == (SENTENCES,) else None],
    )


QUICK = {name: _quick(setting) for name, setting in SETTINGS.items()}


class Explained(NamedTuple):
    """One prompt: the model's answer, and by each attribution the parts that it hangs on.

    Attributes
    ----------
    right
        Whether the answer holds what is asked for.
    tokens, length
        How many the answer has, and the whole context.
    log_probability
        Of the answer, after the whole text.
    scores
        Of every attribution, in the order of `attributions`: the greater, the more does the part
        speak for the answer.
    drops
        By how much the answer's log-probability falls where the parts that an attribution ranks
        highest are taken out, for each of ``taken_out``.
    kept, values
        The ablations that were held out, and the answer's log-probabilities.
    """

    right: bool
    tokens: int
    length: int
    log_probability: float
    scores: Float[np.ndarray, "attributions parts"]
    drops: Float[np.ndarray, "attributions counts"]
    kept: Bool[np.ndarray, "held_out parts"]
    values: Float[np.ndarray, " held_out"]

    def record(self) -> dict[str, Any]:
        """Return plain numbers; of seven digits, more than single precision has."""
        fields = {name: np.asarray(part) for name, part in self._asdict().items()}
        fields["scores"] = np.array([[float(f"{x:.7g}") for x in row] for row in self.scores])
        return {name: part.tolist() for name, part in fields.items()} | {
            "kept": self.kept.astype(int).tolist()
        }


def explained_from_record(record: dict[str, Any]) -> Explained:
    """Return what `Explained.record` says."""
    fields = {name: np.array(record[name]) for name in ("scores", "drops", "values")}
    fields["kept"] = np.array(record["kept"], bool)
    return Explained(**{**record, **fields})


def attributions(setting: FaithfulnessSetting) -> list[str]:
    """Return the names of all that are made, in the order of `Explained.scores`."""
    regressions = [f"ContextCite on {count}" for count in setting.fitted]
    paths = [PATH, ROLLOUT] if setting.steps else []
    masks = [variant.name for variant in variants_of(setting)]
    return [*IN_WORDS, *paths, LEAVE_ONE_OUT, *regressions, RANDOM, *masks]


def variants_of(setting: FaithfulnessSetting) -> list[MaskVariant]:
    """Return the ways to take the mask gradient that are tried."""
    return mask_variants(setting.weights, setting.paths)


def explain_prompts(
    model: CausalLM,
    tokenizer: Any,
    setting: FaithfulnessSetting,
    *,
    end: Iterable[int] = (),
    checkpoint: AnyPath | None = None,
    progress: Callable[[list], Iterable] = iter,
) -> tuple[list[Explained], dict[str, list[float]]]:
    """Let a model answer prompts, attribute its answers to their parts, and take parts out.

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
        A file to read, if it exists, which grows by a line with every chunk of prompts: a run that
        was interrupted and is called again goes on after the last of them, for more prompts too.
    progress
        Wraps the list of chunks, for example ``tqdm.tqdm``; those that it leaves out are not made.

    Returns
    -------
    tuple
        The prompts, of which the n-th is of kind ``n % kinds``; and by name, of `Stopwatch.totals`,
        seconds and for how many contexts or gradients.

    Raises
    ------
    ModuleNotFoundError
        Without scikit-learn, of the extra ``faithfulness``.
    ValueError
        Where the prompts are no whole number of chunks, or the checkpoint is of another model or
        setting.
    """
    require_extra("sklearn", "faithfulness")
    job = job_of(model, tokenizer, setting, end)

    def explain_chunk(first: int) -> dict[str, Any]:
        """Explain the prompts from a number on, and return them with their seconds."""
        numbers = list(range(first, first + setting.at_once))
        job.watch.totals.clear()
        prompts = _explain(job, [job.prompts[number] for number in numbers], numbers)
        seconds = dict(job.watch.totals)
        return {"prompts": [prompt.record() for prompt in prompts], "seconds": seconds}

    firsts = range(0, setting.prompts, setting.at_once)
    chunks = {str(first): partial(explain_chunk, first) for first in firsts}
    run = {"function": "explain_prompts", **job.run}
    results = list(each_once(chunks, checkpoint, run, progress).values())
    prompts = [explained_from_record(prompt) for chunk in results for prompt in chunk["prompts"]]
    return prompts, seconds_of(results)


def seconds_of(chunks: Iterable[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the sums of chunks' seconds, and for how many things these were, by name."""
    seconds: dict[str, list[float]] = {}
    for name, (took, things) in (item for chunk in chunks for item in chunk["seconds"].items()):
        before = seconds.get(name, [0.0, 0])
        seconds[name] = [before[0] + took, before[1] + things]
    return seconds


def drawn_prompt(setting: FaithfulnessSetting, number: int) -> Prompt:
    """Draw the prompt of a number: every place is gold in turn, in both halves of seeds."""
    seed, kind = divmod(number, len(setting.kinds))
    turn = 7 * (seed // 2)  # so that also a few prompts of many records ask here and there
    if setting.kinds[kind] == SENTENCES:
        return prose_prompt(seed, turn % DOCUMENTS, setting.records)  # pyright: ignore
    records = setting.records
    assert isinstance(records, int)
    if setting.kinds[kind] == PAIRS:
        data = draw_key_values(records, seed, key_length=2, value_length=2)
        return key_value_prompt(data, turn % records)
    return question_prompt(draw_facts(records, seed), turn % records)


def _ends(model: CausalLM, tokenizer: Any, end: Iterable[int]) -> list[int]:
    """Return the ids that end an answer, also those that spell a quotation mark or a line's end."""
    if tokenizer is None:
        spelt = [ord(mark) for mark in ENDS]
    else:
        texts = tokenizer.decode_batch([[number] for number in range(model.vocabulary)])
        spelt = [number for number, text in enumerate(texts) if any(mark in text for mark in ENDS)]
    return sorted({*spelt, *end})


class Job(NamedTuple):
    """What all chunks of prompts have in common: `size` is of whole contexts.

    And `run`, which tells one study of a model from another, whatever the number of its prompts.
    """

    model: CausalLM
    tokenizer: Any
    setting: FaithfulnessSetting
    prompts: list[Prompt]
    ends: list[int]
    watch: Stopwatch
    size: int
    run: dict[str, Any]

    def read(self, *rows: Any, name: str = "answers") -> tuple[np.ndarray, np.ndarray]:
        """Call `read_answers`, padded to whole contexts, or to three fifths of long ones."""
        sizes = [self.size, context_size(self.model, self.size * 3 // 5)][: 1 + (self.size > 256)]
        return read_answers(
            self.model, *rows, sizes=sizes, queries=self.setting.tokens, watch=self.watch, name=name
        )

    def time_program(
        self, name: str, count: int, program: Callable[[CausalLM, Context], Any], context: Context
    ) -> Any:
        """Run a program on a context that the package pads, and keep its seconds by name."""
        tokens = np.count_nonzero(context.weights)
        shapes = padded_size(self.model, context.length), int(tokens)
        return self.watch(name, count, program, self.model, context, compiled_for=shapes)


def job_of(
    model: CausalLM, tokenizer: Any, setting: FaithfulnessSetting, end: Iterable[int]
) -> Job:
    """Return the prompts of a setting, and what is needed to ask them."""
    require(
        isinstance(model.embedding, Array),
        "model",
        got="one whose weights are left in their files",
        expected="its embedding as an array",
        cure="Load it by models.load.",
    )
    require(
        setting.prompts % setting.at_once == 0,
        "prompts",
        got=f"{setting.prompts} of them, {setting.at_once} at once",
        expected="a multiple of the latter",
        cure="Take a multiple of `at_once`: prompts are computed so many at a time.",
    )
    require(
        setting.steps in (0, STEPS),
        "steps",
        got=str(setting.steps),
        expected=f"{STEPS}, as the package's integrated gradients take, or 0 for none",
        cure="Pass one of these.",
    )
    prompts = [drawn_prompt(setting, number) for number in range(setting.prompts)]
    ids = ids_of_texts([prompt.text for prompt in prompts], tokenizer)
    ends = _ends(model, tokenizer, end)
    size = context_size(model, max(map(len, ids)) + setting.tokens - 1)
    run = {
        "model": digest(model),
        "setting": {**setting._asdict(), "prompts": "any number"},
        "ids": digest([*ids[: setting.at_once], np.array(ends)]),
    }
    return Job(model, tokenizer, setting, prompts, ends, Stopwatch(), size, run)


def _explain(job: Job, prompts: list[Prompt], numbers: list[int]) -> list[Explained]:
    """Explain some of the prompts together."""
    setting = job.setting
    num_fitted = max(job.setting.fitted)
    contexts = [encode_text(prompt.text, job.tokenizer) for prompt in prompts]
    answers = answers_of(job, [context.ids for context in contexts])
    of = Ablated(prompts, answers, job.tokenizer, job.read)
    counts = [len(prompt.spans) for prompt in prompts]
    ablations_by_prompt = [
        random_ablations(count, num_fitted + setting.held_out, number)
        for count, number in zip(counts, numbers, strict=True)
    ]
    whole_values = of([np.ones((1, count), bool) for count in counts], name="whole contexts")
    alone = of([~np.eye(count, dtype=bool) for count in counts], name=LEAVE_ONE_OUT)
    values = of(ablations_by_prompt, name="ablations")
    gradients = [
        _attribute_whole_context(job, context_of_prompt(*parts))
        for parts in zip(prompts, contexts, answers, strict=True)
    ]
    rngs = [np.random.default_rng([number, 1]) for number in numbers]
    scores = [
        _in_order(
            setting,
            gradients[n],
            whole_values[n] - alone[n],
            ablations_by_prompt[n],
            values[n],
            len(answers[n]),
            rngs[n].uniform(size=count),
        )
        for n, count in enumerate(counts)
    ]
    # Parts whose scores tie, such as those that a regression leaves out, in any order.
    chances = [rng.permutation(count) for rng, count in zip(rngs, counts, strict=True)]
    kept_without_first = [
        np.concatenate(
            [without_the_first(np.lexsort((chance, -row)), setting.taken_out) for row in rows]
        )
        for chance, rows in zip(chances, scores, strict=True)
    ]
    values_without = of(kept_without_first, name="drops")
    return [
        Explained(
            prompt.answer.strip() in "".join(texts_of_ids(answers[n], job.tokenizer)),
            len(answers[n]),
            len(contexts[n].ids),
            float(whole_values[n][0]),
            scores[n],
            whole_values[n] - values_without[n].reshape(-1, len(setting.taken_out)),
            ablations_by_prompt[n][num_fitted:],
            values[n][num_fitted:],
        )
        for n, prompt in enumerate(prompts)
    ]


def answers_of(job: Job, contexts: list[Int[np.ndarray, " _"]]) -> list[Int[np.ndarray, " _"]]:
    """Return what the model answers, id by id, without what ends it."""
    rows = contexts
    lengths = [len(ids) for ids in contexts]
    going = [True] * len(rows)
    for _ in range(job.setting.tokens):
        _, likeliest = job.read(rows, [ids[-1:] for ids in rows], name="answers")
        rows = [
            np.append(ids, answer).astype(np.int32) if goes else ids
            for ids, answer, goes in zip(rows, likeliest, going, strict=True)
        ]
        going = [
            goes and int(ids[-1]) not in job.ends for ids, goes in zip(rows, going, strict=True)
        ]
        if not any(going):
            break
    answers = [ids[length:] for ids, length in zip(rows, lengths, strict=True)]
    return [
        answer[:-1] if len(answer) > 1 and int(answer[-1]) in job.ends else answer
        for answer in answers
    ]


def _attribute_whole_context(job: Job, context: Context) -> dict[str, Parts]:
    """Return the attributions that read the whole context only, by name."""
    setting = job.setting
    by_name = {}
    for name, method in METHODS.items():
        if name in IN_WORDS:
            by_name[name] = job.time_program("word gradients", 1, method, context)
        elif setting.steps:
            by_name[name] = job.time_program(name, 1, method, context)
    by_name[SIZE] = np.abs(by_name[PRODUCT])
    for variant in variants_of(setting):
        scores = job.time_program("mask gradients", len(variant.weights), variant, context)
        # A loss is the mean over the answer's tokens: a score is in nats of the whole answer.
        by_name[variant.name] = np.count_nonzero(context.weights) * scores
    return by_name


def _in_order(
    setting: FaithfulnessSetting,
    gradients: dict[str, Parts],
    alone: Float[np.ndarray, " parts"],
    ablations_of_prompt: Bool[np.ndarray, "ablations parts"],
    values: Float[np.ndarray, " ablations"],
    tokens: int,
    chance: Float[np.ndarray, " parts"],
) -> Float[np.ndarray, "attributions parts"]:
    """Return the scores of one prompt, in the order of `attributions`."""
    by_name = gradients | {LEAVE_ONE_OUT: alone, RANDOM: chance}
    for count in setting.fitted:
        by_name[f"ContextCite on {count}"] = sparse_regression(
            ablations_of_prompt[:count], values[:count], tokens
        )
    return np.stack([by_name[name] for name in attributions(setting)])
