"""AT2: how much the attention of each head counts, learnt from the ablations of other prompts.

Cohen-Wang, Chuang and Madry, "Learning to attribute with attention" (2025). A part's score is a
weighted sum, over layers and heads, of the answer's attention to it. Weights are learnt on the half
of the prompts on which variants of the mask gradient are chosen, from ablations that are there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lazy_loader
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from benchmarks.validation.ablation_study import Ablated, logits_of, without_the_first
from benchmarks.validation.faithfulness import (
    AT2,
    Explained,
    Job,
    answers_of,
    job_of,
    seconds_of,
)
from benchmarks.validation.judged_faithfulness import Run
from benchmarks.validation.scored_parts import context_of_prompt, parts_of_prompt
from lim_jax._checks import require
from lim_jax._digest import digest
from lim_jax._partial_runs import each_once
from lim_jax.adjoint.sites import attention_of
from lim_jax.density.adjoints import LossOfIds
from lim_jax.grid.cells import token_grid
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.ids import scores_of_ids
from lim_jax.network.attention import weights_of_rows
from lim_jax.network.multihead import by_head
from lim_jax.prompts.contexts import Context
from lim_jax.tasks.prompts import encode_text

sklearn: Any = lazy_loader.load("sklearn")  # of the extra; the rest does without
STRENGTHS = np.logspace(-2, 2, 9)
FOLDS = 5
SAME = 0.1  # nats of one answer, by two devices, or in TF32
Attention = Float[np.ndarray, "parts heads"]
Weights = Float[np.ndarray, " heads"]


def learn_heads(
    model: CausalLM,
    tokenizer: Any,
    runs: Mapping[str, Run],
    *,
    folder: Path,
    end: Iterable[int] = (),
    progress: Callable[[list], Iterable] = iter,
) -> tuple[dict[str, Run], dict[str, Any]]:
    """Learn on one half of the prompts how much heads count, and attribute answers by it.

    Parameters
    ----------
    model, tokenizer, end
        As `explain_prompts` had them.
    runs
        By the setting's name what `explain_prompts` gave, of the first prompts if not of all.
    folder
        For a checkpoint of each setting, which serves when there are more prompts, too.
    progress
        Wraps lists of chunks.

    Returns
    -------
    tuple
        The runs, where AT2 has the last row of scores, and of drops, which are NaN on the half that
        it was learnt on; and from how much it was learnt.
    """
    stages = {
        name: _Stage(
            job_of(model, tokenizer, run.setting, end),
            run,
            folder / f"heads_of_{name.replace(' ', '_')}.jsonl",
            progress,
        )
        for name, run in runs.items()
    }
    readings = {name: stage.read() for name, stage in stages.items()}
    kinds = [kind for name, stage in stages.items() for kind in stage.kinds(readings[name][0])]
    weights, strength = weights_of_heads(kinds)
    learnt = {
        "prompts": sum(map(len, kinds)),
        "ablations": sum(len(prompt.values) for kind in kinds for _, prompt in kind),
        "heads": len(weights),
        "strength": strength,
    }
    return {
        name: stage.attribute(weights, *readings[name]) for name, stage in stages.items()
    }, learnt


def weights_of_heads(
    kinds: Sequence[Sequence[tuple[Attention, Explained]]],
) -> tuple[Weights, float]:
    """Fit how much each head counts, by a ridge regression of some prompts' answers; its strength.

    From the attention to what is kept to the logit of the answer's probability, both less the mean
    of a prompt's ablations. All kinds of prompts weigh the same.
    """
    # The authors maximise the mean correlation within a prompt by Adam, from equal weights. Logits
    # of variance one stand for it here. As the prompts are few, a penalty keeps the weights small:
    # its strength predicts prompts that are left out, some at a time.
    rows = []
    effects = []
    for kind in kinds:
        for attention, prompt in kind:
            features = prompt.kept @ attention
            logits = logits_of(prompt.values)
            share = 1 / np.sqrt(len(kind) * len(logits))
            rows.append(share * (features - features.mean(axis=0)))
            effects.append(share * (logits - logits.mean()) / (logits.std() or 1))
    groups = np.repeat(np.arange(len(rows)), list(map(len, rows)))
    features = np.concatenate(rows)
    scale = np.sqrt((features**2).sum() / features.shape[1])
    folds = sklearn.model_selection.GroupKFold(min(FOLDS, len(rows)))
    splits = list(folds.split(features, groups=groups))
    regression = sklearn.linear_model.RidgeCV(STRENGTHS, fit_intercept=False, cv=splits)
    regression.fit(features / scale, np.concatenate(effects))
    return regression.coef_ / scale, float(regression.alpha_)


def attention_to_parts(model: CausalLM, context: Context) -> Attention:
    """Return the answer's mean attention to tokens of each part, if every layer has attention."""
    (rows,) = scores_of_ids(_attention, model, [context.window], ask=[context.ask])
    return np.stack([rows[part.positions].sum(axis=0) for part in parts_of_prompt(context)])


def _attention(
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets,
    _: Int[Array, " length"],
) -> Float[Array, "length heads"]:
    """Return what all layers' heads read of each token, on average over the places that ask."""
    x = loss.embed(model, ids, y)
    grid = token_grid(x.shape[0], x.dtype)

    def read_layer(x, layer):
        """Return the next state, and how much each head of a layer attends to each position."""
        attention = attention_of(layer[0])
        rope = attention.rope(grid)
        prefixes = attention.prefixes(grid)
        query = attention.queries(x, rope)
        key, _ = attention.sources(x, rope)
        prefix = prefixes.prefix_weights()[y.positions]
        of_head = partial(weights_of_rows, prefix=prefix, grid=prefixes)
        key = by_head(key, query.shape[0])
        weights = attention.map_heads(of_head, query[:, y.positions], key)
        return model.flow.transition(layer, x, grid), y.weights @ weights

    _, rows = model.flow.scan(read_layer, x)
    return rows.reshape(-1, x.shape[0]).T


class _Read(NamedTuple):
    """What the model said, its log-probability, and the attention to the parts."""

    said: Int[np.ndarray, " tokens"]
    log_probability: float
    attention: Attention


class _Stage(NamedTuple):
    """A setting, whose prompts are read whole, and then without what AT2 ranks highest."""

    job: Job
    run: Run
    checkpoint: Path
    progress: Callable[[list], Iterable]

    def read(self) -> tuple[list[_Read], dict[str, list[float]]]:
        """Read every prompt, and time it."""
        firsts = range(0, len(self.run.prompts), self.job.setting.at_once)
        chunks = self._once({f"attention {n}": partial(self._read, n) for n in firsts})
        readings = [
            _Read(np.array(said, np.int32), log_probability, np.array(attention))
            for chunk in chunks
            for said, log_probability, attention in chunk["prompts"]
        ]
        differences = [
            abs(reading.log_probability - prompt.log_probability)
            for reading, prompt in zip(readings, self.run.prompts, strict=True)
        ]
        require(
            max(differences) < SAME,
            "runs",
            got=f"answers {max(differences):.2g} nats from the model's own",
            expected="what explain_prompts gave of this model and the first prompts",
            cure="Explain the prompts between, or all anew.",
        )
        return readings, seconds_of(chunks)

    def kinds(self, readings: list[_Read]) -> list[list[tuple[Attention, Explained]]]:
        """Return the first half of each kind of prompts, of even numbers."""
        count = len(self.job.setting.kinds)
        pairs = list(
            zip([reading.attention for reading in readings], self.run.prompts, strict=True)
        )
        return [pairs[kind :: 2 * count] for kind in range(count)]

    def attribute(
        self, weights: Weights, readings: list[_Read], seconds: dict[str, list[float]]
    ) -> Run:
        """Return the run with AT2's scores; where it is judged it has drops."""
        setting = self.job.setting
        numbers = range(len(readings))
        scores = [reading.attention @ weights for reading in readings]
        kept = [without_the_first(np.argsort(-row), setting.taken_out) for row in scores]
        groups = {}
        for first in numbers[:: setting.at_once]:
            chunk = numbers[first : first + setting.at_once]
            kept_in_chunk = {n: kept[n] for n in chunk if n // len(setting.kinds) % 2}
            # Named by what is taken out, which is something else when more was learnt.
            groups[f"drops {first} {digest(kept_in_chunk)}"] = partial(
                self._drops, kept_in_chunk, readings
            )
        drops = np.full((len(readings), len(setting.taken_out)), np.nan)
        for number, row in (pair for chunk in self._once(groups) for pair in chunk):
            drops[number] = row
        prompts = [
            prompt._replace(
                scores=np.vstack([prompt.scores, row]), drops=np.vstack([prompt.drops, drop])
            )
            for prompt, row, drop in zip(self.run.prompts, scores, drops, strict=True)
        ]
        return self.run._replace(prompts=prompts, seconds={**self.run.seconds, **seconds})

    def _once(self, groups: dict[str, Callable[[], Any]]) -> list[Any]:
        run = {"function": "learn_heads", **self.job.run}
        return list(each_once(groups, self.checkpoint, run, self.progress).values())

    def _read(self, first: int) -> dict[str, Any]:
        job = self.job
        prompts = job.prompts[first : first + job.setting.at_once]
        contexts = [encode_text(prompt.text, job.tokenizer) for prompt in prompts]
        answers = answers_of(job, [context.ids for context in contexts])
        of = Ablated(prompts, answers, job.tokenizer, job.read)
        whole_values = of([np.ones((1, len(prompt.spans)), bool) for prompt in prompts])
        job.watch.totals.clear()
        readings = []
        for prompt, context, answer, values in zip(
            prompts, contexts, answers, whole_values, strict=True
        ):
            question = context_of_prompt(prompt, context, answer)
            scores = job.time_program(AT2, 1, attention_to_parts, question)
            readings.append((answer.tolist(), float(values[0]), _round(scores)))
        return {"prompts": readings, "seconds": dict(job.watch.totals)}

    def _drops(
        self, kept: dict[int, Bool[np.ndarray, "counts _"]], readings: list[_Read]
    ) -> list[tuple[int, list[float]]]:
        job = self.job
        prompts = [job.prompts[n] for n in kept]
        answers = [readings[n].said for n in kept]
        values = Ablated(prompts, answers, job.tokenizer, job.read)(list(kept.values()))
        pairs = zip(kept, values, strict=True)
        return [(n, (readings[n].log_probability - row).tolist()) for n, row in pairs]


def _round(attention: Attention) -> list[list[float]]:
    """Round to four digits, for they are many."""
    return [[float(f"{x:.4g}") for x in row] for row in attention]
