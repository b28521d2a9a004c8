"""Scores of a prompt's parts from its whole text: by the package's methods, and by variants.

The package takes the mask gradient in one way, which this study chose among several
(`mask_variants`). It has the derivative for any weights of the parts; where a part reads itself as
little as others do, which did not do better, the derivative is here. A score is positive where a
part speaks for the answer.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax.adjoint.masking import path_rule
from lim_jax.attribution.gradients import Tokens
from lim_jax.attribution.mask_gradients import (
    LEAST,
    answer_mask_gradient,
    mask_gradients,
    with_documents_at,
)
from lim_jax.attribution.method import Run, scores_by_token
from lim_jax.attribution.methods.method_table import method_named
from lim_jax.attribution.segments import Segment, document_numbers, whole_answer
from lim_jax.density.adjoints import LossOfIds
from lim_jax.models.causal import CausalLM, LossOfLogits, Targets
from lim_jax.models.ids import scores_of_ids
from lim_jax.prompts.contexts import Context, Span
from lim_jax.tasks.prompts import EncodedText, Prompt

Parts = Float[np.ndarray, " parts"]


class MethodOfLoss(NamedTuple):
    """A method of the package, by its name, of one of the losses of an answer."""

    method: str
    loss: LossOfLogits

    def __call__(self, model: CausalLM, context: Context) -> Parts:
        """Return the scores of a context's parts."""
        score = method_named(self.method).scores
        parts = parts_of_prompt(context)
        return score(model, context, [whole_answer(context)], parts, self.loss, Run()).by_part[0]


class MaskVariant(NamedTuple):
    """A way to take derivatives in the attention mask: at weights of all parts, of a sum of shares.

    Attributes
    ----------
    name
        What it is called.
    weights, shares
        At each weight a gradient, which counts for its share.
    own
        Whether a part reads itself as before.
    margin
        Whether it is of the answer's margin, its log odds, in place of its log-probability.
    """

    name: str
    weights: tuple[float, ...]
    shares: tuple[float, ...]
    own: bool
    margin: bool

    def __call__(self, model: CausalLM, context: Context) -> Parts:
        """Return the scores of a context's parts, of the mean over the answer's tokens."""
        loss = CausalLM.margin_loss if self.margin else CausalLM.loss
        log_weights = np.log(self.weights)
        answer = [whole_answer(context)]
        if self.own:
            gradients = mask_gradients(model, context, answer, loss, log_weights, Run())
            by_token = np.tensordot(self.shares, gradients, axes=1)
        else:
            rule = np.stack([log_weights, self.shares], axis=1)
            nodes = jax.device_put(rule.astype(model.embedding.dtype))
            (row,) = scores_of_ids(
                jax.tree_util.Partial(_where_parts_read_themselves_less, nodes),
                model,
                [context.window],
                ask=[context.ask],
                loss=loss,
                parts=[document_numbers(context)],
            )
            by_token = row[None]
        return scores_by_token(answer, parts_of_prompt(context), by_token).by_part[0]


def mask_variants(weights: tuple[float, ...], paths: tuple[int, ...]) -> list[MaskVariant]:
    """List one gradient at each weight, and paths of so many: of both losses, both ways of a part.

    >>> [one.name for one in mask_variants((0.2,), (2,))][:3]
    ['mask-gradient at 0.2', 'mask-path on 2', 'mask-gradient at 0.2, own']
    """
    rules = {f"mask-gradient at {weight:g}": ((weight,), (1.0,)) for weight in weights}
    for nodes in paths:
        log_weights, shares = path_rule(nodes, LEAST)
        rules[f"mask-path on {nodes}"] = tuple(np.exp(log_weights).tolist()), tuple(shares.tolist())
    return [
        MaskVariant(f"{name}{', margin' * margin}{', own' * own}", *rule, own, margin)
        for margin in (False, True)
        for own in (False, True)
        for name, rule in rules.items()
    ]


def context_of_prompt(
    prompt: Prompt, encoded: EncodedText, answer: Int[np.ndarray, " answer"]
) -> Context:
    """Return a prompt and what the model said, which is asked; parts are named by their numbers."""
    window = np.concatenate([encoded.ids, answer])
    weights = np.zeros(len(window) - 1)
    weights[-len(answer) :] = 1 / len(answer)
    spans = tuple(
        Span(f"{number}", np.flatnonzero(encoded.within(*span)))
        for number, span in enumerate(prompt.spans)
    )
    tokens = (*encoded.tokens, *[""] * (len(answer) - 1))
    return Context(window, weights, tokens, spans)


def parts_of_prompt(context: Context) -> list[Segment]:
    """Return the parts of a prompt, one for each span."""
    return [Segment(span.name, span.texts, span.positions) for span in context.spans]


def _where_parts_read_themselves_less(
    nodes: Float[Array, "nodes 2"],
    loss: LossOfIds,
    model: CausalLM,
    ids: Int[Array, " length"],
    y: Targets,
    parts: Int[Array, " length"],
) -> Tokens:
    x = loss.embed(model, ids, y)

    def gradient(node: Float[Array, "2"]) -> Tokens:
        """Compute one node's share of the path."""
        log_weight, share = node
        asked = with_documents_at(log_weight, x, y, parts)._replace(parts=None)
        return share * answer_mask_gradient(loss.loss, model, x, asked)

    return -jax.lax.map(gradient, nodes).sum(axis=0)
