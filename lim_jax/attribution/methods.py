"""Ways to say which parts of a context an answer comes from, in one table: a method is one entry.

A part's score is the sum of its tokens', but for methods that leave parts out; positive where the
part speaks for the answer, in units of the loss. That of influence is a share.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lim_jax._checks import require, require_name
from lim_jax._digest import digest
from lim_jax._resuming import once
from lim_jax.adjoint.masking import path_rule
from lim_jax.attribution import gradients
from lim_jax.attribution.ablations import ABLATIONS, ablations, leave_one_out
from lim_jax.attribution.gradients import Tokens
from lim_jax.attribution.measuring import Bar, no_bar
from lim_jax.attribution.parts import parts_of, windows_and_asked
from lim_jax.attribution.segments import FIRST, document_numbers
from lim_jax.density.adjoints import Loss, LossOfIds
from lim_jax.grid.cells import token_grid
from lim_jax.models.causal import CausalLM
from lim_jax.models.ids import Scores, energies_of_ids, scores_of_ids
from lim_jax.prompts.contexts import Context

STEPS = 8  # of integrated gradients
# Of all parts where a mask gradient is taken, each reading itself as before: in the study 0.2 and
# 0.5 do best, and 0.1 is far behind in long texts (docs/study/faithfulness.md).
WEIGHT = 0.2
# Gradients of a mask path, and the weight at which it begins. On the README's question four add up
# to a quarter too much, eight to 3 % too little. Up to `MOST_NODES` they are doubled while the
# scores' sum misses what the documents gave by more than `NEAR` of it, and by more than is shown.
NODES, MOST_NODES, LEAST = 8, 64, 1e-3
NEAR, SHOWN = 1 / 20, 0.005


class Cost(NamedTuple):
    """What a method takes for one context: passes forward, and gradients."""

    passes: int
    gradients: int = 0

    @property
    def total(self) -> int:
        """In passes forward, of which a gradient counts for two more."""
        return self.passes + 2 * self.gradients

    def times(self, parts: int) -> "Cost":
        """The same with a gradient for each of so many parts of the answer."""
        return self._replace(gradients=self.gradients * parts)

    def __str__(self) -> str:
        """As a command says it before it runs."""
        if self.gradients:
            return f"{self.gradients} gradient" + "s" * (self.gradients > 1)
        return f"{self.passes} pass" + "es" * (self.passes > 1)


class Method(NamedTuple):
    """A way to score the parts of a context.

    By tokens in a program, `of_tokens`, or all parts at once, `of_parts`; `cost` is that of so many
    parts, and `words` say what a score is.
    """

    words: str
    cost: Callable[[int], Cost]
    of_tokens: Scores | None = None
    of_parts: Callable[..., Float[np.ndarray, " parts"]] | None = None
    signed: bool = True
    # Whether it goes by log weights, so that what all documents gave is told beside its scores, and
    # whether these add up to that.
    by_log_weights: bool = False
    adds_up: bool = False


class Scored(NamedTuple):
    """Scores of one context, by part in the order of `parts_of`, and by token where there are.

    `given` is what all documents gave, to which the scores of a path should add up.
    """

    parts: Mapping[tuple[str, str], float]
    tokens: Float[np.ndarray, " length"] | None
    given: float | None = None


def _one_gradient(_: int) -> Cost:
    return Cost(1, 1)


def gradient_times_input(loss: LossOfIds, model: CausalLM, ids: Any, y: Any, _: Any) -> Tokens:
    """Minus x times the loss's derivative in it, by token."""
    return -gradients.gradient_times_input(loss.loss, model, loss.embed(model, ids, y), y)


def integrated_gradients(loss: LossOfIds, model: CausalLM, ids: Any, y: Any, parts: Any) -> Tokens:
    """Along the way from the average word at the parts' places."""
    x, words = loss.embed(model, ids, y), model.embedding
    require(
        isinstance(words, Array), "model", got="weights that are left in their files",
        expected="an embedding in memory", cure="Take another method, or more memory.",
    )  # fmt: skip
    assert isinstance(words, Array)
    average = model.embedding_scale * (words.mean(axis=0)[None] - words[ids])
    baseline = jnp.where((parts != -1)[:, None], x + average, x)
    return -gradients.integrated_gradients(loss.loss, model, x, y, baseline, steps=STEPS)


def mask_gradient(loss: LossOfIds, model: CausalLM, ids: Any, y: Any, parts: Any) -> Tokens:
    """Minus the loss's derivative in each token's log weight, where all parts weigh `WEIGHT`."""
    return mask_gradient_at(loss, model, ids, y, parts, math.log(WEIGHT))


def mask_rules(method: str) -> Iterator[Float[np.ndarray, "2 nodes"]]:
    """At which log weights a method by these takes gradients, and the share of each; then more."""
    if not METHODS[method].adds_up:
        yield np.array([[math.log(WEIGHT)], [1.0]])
        return
    nodes = NODES
    while nodes <= MOST_NODES:
        yield path_rule(nodes, LEAST)
        nodes *= 2


def unresolved(
    sums: Float[np.ndarray, " rows"], given: Float[np.ndarray, " rows"]
) -> Bool[np.ndarray, " rows"]:
    """Mark where scores of a path do not add up to what they are of."""
    return np.abs(sums - given) > np.maximum(NEAR * np.abs(given), SHOWN)


def mask_path(loss: LossOfIds, model: CausalLM, ids: Any, y: Any, parts: Any) -> Tokens:
    """The integral of the mask gradient as all parts come in: they add up to what all gave."""
    return mask_path_by(jnp.asarray(path_rule(NODES, LEAST)), loss, model, ids, y, parts)


def mask_path_by(
    rule: Float[Array, "2 nodes"], loss: LossOfIds, model: CausalLM, ids: Any, y: Any, parts: Any
) -> Tokens:
    """The same by a rule of `mask_rules`."""
    log_weights, shares = rule.astype(model.embedding.dtype)

    def at(log_weight: Float[Array, ""]) -> Tokens:
        return mask_gradient_at(loss, model, ids, y, parts, log_weight)

    return jnp.where(parts >= 0, shares @ jax.lax.map(at, log_weights), 0)


def mask_gradient_at(
    loss: LossOfIds, model: CausalLM, ids: Any, y: Any, parts: Any, log_weight: Any
) -> Tokens:
    """Minus the loss's derivative in the log weights, where all parts have the same."""
    x = loss.embed(model, ids, y)
    chosen = jnp.where(parts >= 0, log_weight, 0).astype(x.dtype)
    y = y._replace(parts=parts)  # a part reads itself as before
    gradient = jax.grad(lambda u: loss.loss(model, x, y._replace(log_weights=u)))(chosen)
    return -jnp.where(parts == FIRST, 0, gradient)


def given_by_parts(
    model: CausalLM, contexts: Sequence[Context], loss: Loss, **run: Any
) -> Float[np.ndarray, " contexts"]:
    """By how much the loss falls as all parts come in from next to nothing, in two passes each."""
    rows = _rows(_path_ends, model, contexts, loss, **run)
    return np.array([without - whole for without, whole in rows])


def _path_ends(loss: LossOfIds, model: CausalLM, ids: Any, y: Any, parts: Any) -> Float[Array, "2"]:
    """The loss where the parts weigh next to nothing, and the whole context's."""
    x = loss.embed(model, ids, y)

    def at(log_weight: Float[Array, ""]) -> Float[Array, ""]:
        chosen = jnp.where(parts >= 0, log_weight, 0)
        return loss.loss(model, x, y._replace(log_weights=chosen, parts=parts))

    return jax.lax.map(at, jnp.asarray([math.log(LEAST), 0], x.dtype))


def rollout(loss: LossOfIds, model: CausalLM, ids: Any, y: Any, _: Any) -> Tokens:
    """What attention hands on from each token to the places that ask; it knows no answer."""
    x = loss.embed(model, ids, y)
    matrix = gradients.attention_rollout(model.flow, x, token_grid(x.shape[0], x.dtype))
    return y.weights @ matrix[y.places]


MethodName = Literal[
    "influence", "mask-gradient", "mask-path", "gradient-times-input", "integrated-gradients",
    "rollout", "leave-one-out", "ablations",
]  # fmt: skip
METHODS: Mapping[str, Method] = {
    "influence": Method("its share of the squared gradient", _one_gradient, signed=False),
    "mask-gradient": Method(
        "by how much the answer gains as attention reads more of it", _one_gradient, mask_gradient,
        by_log_weights=True,
    ),
    "mask-path": Method(
        "the same from next to nothing on, so that scores add up",
        lambda _: Cost(NODES, NODES), mask_path, by_log_weights=True, adds_up=True,
    ),
    "gradient-times-input": Method(
        "its states times the gradient", _one_gradient, gradient_times_input
    ),
    "integrated-gradients": Method(
        "the gradient's integral from average words", lambda _: Cost(STEPS, STEPS),
        integrated_gradients,
    ),
    "rollout": Method("what attention hands on", lambda _: Cost(1), rollout, signed=False),
    "leave-one-out": Method(
        "the loss's rise without it", lambda parts: Cost(parts + 1), None, leave_one_out
    ),
    "ablations": Method(
        "its coefficient in a sparse regression", lambda _: Cost(ABLATIONS), None, ablations
    ),
}  # fmt: skip


def scores_of_parts(
    model: CausalLM,
    contexts: Sequence[Context],
    loss: Loss,
    method: str = "influence",
    *,
    checkpoint: Path | None = None,
    bar: Bar = no_bar,
) -> list[Scored]:
    """Score the parts of every context by one of `METHODS`."""
    require_name(method, METHODS, "method", "Each is one entry of attribution.methods.METHODS.")
    of_tokens, of_parts = METHODS[method].of_tokens, METHODS[method].of_parts
    progress = partial(bar, desc=method, unit="context")
    if of_parts is not None:
        return _scores_of_parts(of_parts, model, contexts, loss, checkpoint, progress)
    run = {"checkpoint": checkpoint, "progress": progress}
    if METHODS[method].adds_up:
        rows, given = _path_rows(model, contexts, loss, checkpoint, progress)
        scored = [scored_by_tokens(*pair) for pair in zip(contexts, rows, strict=True)]
        return [one._replace(given=whole) for one, whole in zip(scored, given, strict=True)]
    if of_tokens is None:
        windows, asked = windows_and_asked(contexts)
        energies = energies_of_ids(model, windows, ask=asked, loss=loss, **run)
        rows = [energy / (energy.sum() or 1) for energy in energies]
    else:
        rows = _rows(of_tokens, model, contexts, loss, **run)
    return [scored_by_tokens(*pair) for pair in zip(contexts, rows, strict=True)]


def _path_rows(
    model: CausalLM,
    contexts: Sequence[Context],
    loss: Loss,
    checkpoint: Path | None,
    bar: Callable[..., Any],
) -> tuple[list[Float[np.ndarray, " length"]], list[float]]:
    """The scores of a path by token, by as many gradients as each context takes, and what is given.

    Of a context whose sum is far from that after the most gradients, the last scores.
    """
    ends = checkpoint and checkpoint / "given"
    given = given_by_parts(model, contexts, loss, checkpoint=ends, progress=bar)
    rows: dict[int, Float[np.ndarray, " length"]] = {}
    left = np.arange(len(contexts))
    for rule in mask_rules("mask-path"):
        nodes = rule.shape[1]
        kept = checkpoint if nodes == NODES else checkpoint and checkpoint / f"{nodes} gradients"
        score = jax.tree_util.Partial(mask_path_by, jax.device_put(rule))
        some = [contexts[number] for number in left.tolist()]
        found = _rows(score, model, some, loss, checkpoint=kept, progress=bar)
        rows.update(zip(left.tolist(), found, strict=True))
        left = left[unresolved(np.array([row.sum() for row in found]), given[left])]
        if not left.size:
            break
    return [rows[number] for number in range(len(contexts))], given.tolist()


def _scores_of_parts(
    score: Callable[..., Float[np.ndarray, " parts"]],
    model: CausalLM,
    contexts: Sequence[Context],
    loss: Loss,
    checkpoint: Path | None,
    bar: Callable[..., Any],
) -> list[Scored]:
    scored = []
    run = {} if checkpoint is None else {"scores": digest((score, model, loss))}
    for number in bar(list(range(len(contexts)))):
        context, named = contexts[number], list(parts_of(contexts[number]))
        places = [of_part for _, of_part in named]
        measured = partial(score, model, context, places, loss) if named else partial(np.zeros, 0)
        if checkpoint is not None:
            about = {**run, "context": digest((context.window, context.asked, places))}
            measured = partial(once, checkpoint / f"{number}", about, measured)
        scored.append(Scored(_by_name(named, measured()), None))
    return scored


def scored_by_tokens(context: Context, tokens: Float[np.ndarray, " length"]) -> Scored:
    """Parts with the sums of their tokens' scores."""
    named = list(parts_of(context))
    return Scored(_by_name(named, [tokens[places].sum() for _, places in named]), tokens)


def _by_name(named: Sequence[tuple[Any, Any]], scores: Any) -> dict[Any, float]:
    return {name: float(score) for (name, _), score in zip(named, scores, strict=True)}


def _rows(
    score: Scores, model: CausalLM, contexts: Sequence[Context], loss: Loss, **run: Any
) -> list[Float[np.ndarray, " _"]]:
    windows, asked = windows_and_asked(contexts)
    # Those of the documents alone: what asks counts whole wherever a gradient is taken.
    numbers = [document_numbers(context) for context in contexts]
    return scores_of_ids(score, model, windows, ask=asked, loss=loss, parts=numbers, **run)
