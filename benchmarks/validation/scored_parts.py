"""Scores of the parts of several contexts at once, by gradients: in words, and in attention's mask.

A score is positive where a part speaks for the answer: minus a derivative of the loss.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._errors import filter_jit
from lim_jax.attribution.gradients import attention_rollout, integrated_gradients
from lim_jax.grid.cells import token_grid
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.network.slots import State
from lim_jax.tasks.prompts import record_weights

Scores = Float[Array, "contexts _ parts"]
LEAST = 1e-3  # where a path begins: all parts weigh next to nothing


class Asked(NamedTuple):
    """Contexts padded to one size, what is asked of each, and the part of each place, -1 in none."""

    ids: Int[np.ndarray, "contexts size"]
    y: Targets
    parts: Int[np.ndarray, "contexts size"]


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
    def points(self) -> list[tuple[float, float, float]]:
        """What `mask_gradients` takes, of each gradient."""
        return [(float(np.log(weight)), self.own, self.margin) for weight in self.weights]


def path_rule(nodes: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Weights between `LEAST` and one, and shares: the Gauss--Legendre rule in their logarithm.

    >>> weights, shares = path_rule(2)
    >>> bool(np.isclose(sum(shares), -np.log(LEAST))), bool(LEAST < weights[0] < weights[1] < 1)
    (True, True)
    """
    points, shares = np.polynomial.legendre.leggauss(nodes)
    weights = np.exp(np.log(LEAST) * (1 - points) / 2)
    return tuple(weights.tolist()), tuple((-np.log(LEAST) * shares / 2).tolist())


def mask_variants(weights: tuple[float, ...], paths: tuple[int, ...]) -> list[MaskVariant]:
    """One gradient at each weight, and paths of so many: of both losses, both ways of a part.

    >>> [one.name for one in mask_variants((0.2,), (2,))][:3]
    ['mask-gradient at 0.2', 'mask-path on 2', 'mask-gradient at 0.2, own']
    """
    rules = {f"mask-gradient at {weight:g}": ((weight,), (1.0,)) for weight in weights}
    rules |= {f"mask-path on {nodes}": path_rule(nodes) for nodes in paths}
    return [
        MaskVariant(f"{name}{', margin' * margin}{', own' * own}", *rule, own, margin)
        for margin in (False, True)
        for own in (False, True)
        for name, rule in rules.items()
    ]


@filter_jit
def mask_gradients(
    model: CausalLM, asked: Asked, points: Float[Array, "points 3"], count: int
) -> Scores:
    """Minus the loss's derivatives in the parts' log weights, one gradient for each point.

    A point is the log weight of all parts, whether a part reads itself as before, and whether the
    loss is the margin's. All are of one program, one after another.
    """

    def of_context(
        ids: Int[Array, " size"], y: Targets, parts: Int[Array, " size"]
    ) -> Float[Array, "points parts"]:
        x = model.embed(ids)
        sums = record_weights(parts, jnp.ones_like(x[:, 0]), count)

        def at(point: Float[Array, "3"]) -> Float[Array, " parts"]:
            log_weight, own, margin = point

            def loss(log_weights: Float[Array, " size"]) -> Float[Array, ""]:
                labels = jnp.where(own > 0, parts, -1)
                return _loss(model, x, y._replace(log_weights=log_weights, parts=labels), margin)

            return -(sums @ jax.grad(loss)(jnp.where(parts >= 0, log_weight, 0)))

        return jax.lax.map(at, points)

    return jax.vmap(of_context)(*asked)


@filter_jit
def word_gradients(model: CausalLM, asked: Asked, count: int) -> tuple[Scores, Scores]:
    """Of the log-probability and of the margin: energies of the gradient, and gradient times input.

    Energies are up to a context's length: the parts of the integral of the adjoint's square.
    """

    def of_context(
        ids: Int[Array, " size"], y: Targets, parts: Int[Array, " size"]
    ) -> tuple[Float[Array, "2 parts"], Float[Array, "2 parts"]]:
        x = model.embed(ids)
        sums = record_weights(parts, jnp.ones_like(x[:, 0]), count)

        def of_loss(margin: Float[Array, ""]) -> tuple[Float[Array, " parts"], ...]:
            gradient = jax.grad(lambda x: _loss(model, x, y, margin))(x)
            return sums @ jnp.sum(gradient**2, axis=1), -(sums @ jnp.sum(gradient * x, axis=1))

        return jax.lax.map(of_loss, jnp.arange(2, dtype=x.dtype))

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


def _loss(model: CausalLM, x: State, y: Targets, margin: Float[Array, ""]) -> Float[Array, ""]:
    """The mean cross-entropy of the answer, or minus its margin."""
    state = model.last_state(x, y)
    losses = [loss.terminal(model, state, y) for loss in (CausalLM.loss, CausalLM.margin_loss)]
    return jnp.where(margin > 0, losses[1], losses[0])
