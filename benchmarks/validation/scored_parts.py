"""Scores of the parts of several contexts at once, by gradients: in words, and in attention's mask.

A score is positive where a part speaks for the answer: minus a derivative of the loss.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._jit import filter_jit
from lim_jax.adjoint.masking import path_rule
from lim_jax.attribution.gradients import attention_rollout, integrated_gradients
from lim_jax.grid.cells import token_grid
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.network.slots import State
from lim_jax.tasks.prompts import record_weights

LEAST = 1e-3  # where a path begins: all parts weigh next to nothing


class Asked(NamedTuple):
    """Contexts padded to one size, what is asked of each, and each place's part, -1 in none."""

    ids: Int[Array, "contexts size"]
    y: Targets
    parts: Int[Array, "contexts size"]


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

    @property
    def points(self) -> list[tuple[float, float]]:
        """What `mask_gradients` takes, of each gradient."""
        return [(float(np.log(weight)), float(self.own)) for weight in self.weights]


def mask_variants(weights: tuple[float, ...], paths: tuple[int, ...]) -> list[MaskVariant]:
    """One gradient at each weight, and paths of so many: of both losses, both ways of a part.

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


@filter_jit
def mask_gradients(
    model: CausalLM, asked: Asked, points: Float[Array, "points 2"], count: int
) -> Float[Array, "contexts points 2 parts"]:
    """Minus the derivatives of both losses in the parts' log weights, for each point.

    A point is the log weight of all parts, and whether a part reads itself as before. All are of
    one program, one after another.
    """

    def of_context(
        ids: Int[Array, " size"], y: Targets, parts: Int[Array, " size"]
    ) -> Float[Array, "points 2 parts"]:
        x = model.embed(ids)
        sums = record_weights(parts, jnp.ones_like(x[:, 0]), count)

        def at(point: Float[Array, "2"]) -> Float[Array, "2 parts"]:
            log_weight, own = point
            labels = jnp.where(own > 0, parts, -1)

            def losses(log_weights: Float[Array, " size"]) -> Float[Array, "2"]:
                return _losses(model, x, y._replace(log_weights=log_weights, parts=labels))

            return -_gradients(losses, jnp.where(parts >= 0, log_weight, 0)) @ sums.T

        return jax.lax.map(at, points)

    return jax.vmap(of_context)(*asked)


@filter_jit
def word_gradients(
    model: CausalLM, asked: Asked, count: int
) -> tuple[Float[Array, "contexts 2 parts"], Float[Array, "contexts 2 parts"]]:
    """Of both losses: energies of the gradient in the words, and minus gradient times input.

    Energies are up to a context's length: the parts of the integral of the adjoint's square.
    """

    def of_context(
        ids: Int[Array, " size"], y: Targets, parts: Int[Array, " size"]
    ) -> tuple[Float[Array, "2 parts"], Float[Array, "2 parts"]]:
        x = model.embed(ids)
        sums = record_weights(parts, jnp.ones_like(x[:, 0]), count)
        gradients = _gradients(lambda x: _losses(model, x, y), x)
        energies, products = (gradients**2).sum(axis=2), (gradients * x[None]).sum(axis=2)
        return energies @ sums.T, -products @ sums.T

    return jax.vmap(of_context)(*asked)


@filter_jit
def along_a_path(
    model: CausalLM, asked: Asked, count: int, steps: int
) -> Float[Array, "contexts parts"]:
    """Integrated gradients of the log-probability, from the average word at the parts' places."""
    words = model.embedding
    assert isinstance(words, Array)
    average = words.mean(axis=0)

    def of_context(
        ids: Int[Array, " size"], y: Targets, parts: Int[Array, " size"]
    ) -> Float[Array, " parts"]:
        x = model.embed(ids)
        step = model.embedding_scale * (average[None] - words[ids])
        baseline = jnp.where((parts >= 0)[:, None], x + step, x)
        sums = record_weights(parts, jnp.ones_like(x[:, 0]), count)
        return -(sums @ integrated_gradients(CausalLM.loss, model, x, y, baseline, steps=steps))

    return jax.vmap(of_context)(*asked)


@filter_jit
def rolled_out(model: CausalLM, asked: Asked, count: int) -> Float[Array, "contexts parts"]:
    """Attention rollout of the places that ask."""

    def of_context(
        ids: Int[Array, " size"], y: Targets, parts: Int[Array, " size"]
    ) -> Float[Array, " parts"]:
        x = model.embed(ids)
        rollout = attention_rollout(model.flow, x, token_grid(x.shape[0], x.dtype))
        sums = record_weights(parts, jnp.ones_like(x[:, 0]), count)
        return sums @ (y.weights @ rollout[y.places])

    return jax.vmap(of_context)(*asked)


def _losses(model: CausalLM, x: State, y: Targets) -> Float[Array, "2"]:
    """The mean cross-entropy of the answer, and minus its margin: of one pass forward."""
    state, losses = model.last_state(x, y), (CausalLM.loss, CausalLM.margin_loss)
    return jnp.stack([loss.terminal(model, state, y) for loss in losses])


def _gradients(
    losses: Callable[[Array], Float[Array, "2"]], at: Float[Array, "*shape"]
) -> Float[Array, "2 *shape"]:
    """Of both losses, through one pass forward."""
    _, pull = jax.vjp(losses, at)
    return jax.vmap(pull)(jnp.eye(2, dtype=at.dtype))[0]
