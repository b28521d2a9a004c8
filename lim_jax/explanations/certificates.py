"""The paper's criteria on a loss's adjoints, each judged by as much work as it takes to decide.

Survival of recency wants the norm of every layer's derivative, primacy of the cone channel all
pairs of depths and of future positions. Mostly neither can hold, and that is seen for nothing:
covectors bound the norms from below, and one pair of contributions that point apart refutes that
none do.
"""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from lim_jax._jit import cached_jit, filter_jit
from lim_jax.adjoint.certificate import Certificate, make_inequality
from lim_jax.adjoint.cone import JointCone, joint_cone
from lim_jax.adjoint.criteria import (
    bearable_amplification,
    primacy_noncancellation,
    recency_survival,
)
from lim_jax.adjoint.krylov import NormBounds
from lim_jax.adjoint.ledger import CONE, RESIDUAL, channels
from lim_jax.adjoint.residual import amplification, interaction_norms
from lim_jax.adjoint.sites import AttentionSites, attention_of, attention_sites
from lim_jax.adjoint.tangent import kernel_factors
from lim_jax.explanations.account import ContextParts
from lim_jax.grid.measure import Grid
from lim_jax.grid.partition import Regions
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.network.slots import State

Judged = Literal["deciding", "all"]


def survival_of_recency(
    model: CausalLM,
    ids: Int[Array, "examples length"],
    adjoints: ContextParts,
    regions: Regions,
    depth: int,
    key: Key[Array, ""],
    scope: Judged,
) -> Certificate:
    """Judge `criteria.recency_survival` by a lower bound of c, and by the norms if it may hold."""
    terminal = adjoints.vectors[:, RESIDUAL]
    initial = adjoints.vectors.sum(axis=1)
    from_below = _products_from_below(adjoints.growths, depth)
    below = recency_survival(terminal, initial, from_below, regions)
    if scope == "all" or not below.vacuous:
        products = _amplifications(model, ids, regions.grid, depth, key)
        return recency_survival(terminal, initial, products, regions)
    most = bearable_amplification(regions)
    least = from_below[:, 0].min()
    necessary = make_inequality("what c may be > the least c, from below", most, least, least.dtype)
    return below._replace(inequalities=(necessary,))


def primacy_of_the_cone(
    model: CausalLM,
    examples: tuple[Int[Array, "examples length"], Targets],
    adjoints: ContextParts,
    regions: Regions,
    depth: int,
    terminal_loss: Any,
    scope: Judged,
) -> Certificate:
    """Judge `criteria.primacy_noncancellation` by the first token, and in full if it may hold."""
    least = _least_of_first_token(model, *adjoints.attention_input, regions.grid, depth)
    if scope == "all" or float(least) > 0:
        cone = _joint_cone(model, terminal_loss, examples, regions.grid, depth)
        return primacy_noncancellation(cone, regions)
    energy = (adjoints.vectors[:, CONE] ** 2).sum(axis=2).mean(axis=0)
    weights = regions.grid.weights
    length = jnp.cumsum(weights[::-1])[::-1]
    every = jnp.full_like(energy, least)
    layers = model.flow.depth - depth
    horizon = jnp.asarray(model.flow.horizon * layers / model.flow.depth, energy.dtype)
    largest = jnp.maximum(jnp.abs(every), energy / (horizon * length) ** 2)  # at least
    first_token_cone = JointCone(every, largest, energy, length, horizon)
    necessary = make_inequality("κ_L, of the first token alone > 0", least, 0.0, least.dtype)
    return primacy_noncancellation(first_token_cone, regions)._replace(inequalities=(necessary,))


@cached_jit
def _products_from_below(
    growths: Float[Array, "examples depth"], depth: int
) -> Float[Array, "examples layers"]:
    """Bound from below the products of the layers' amplification, for each context."""
    return jax.vmap(lambda norms: amplification(NormBounds(norms, norms)).products)(
        growths[:, depth:]
    )


@filter_jit
def _amplifications(
    model: CausalLM, ids: Int[Array, "examples length"], grid: Grid, depth: int, key: Key[Array, ""]
) -> Float[Array, "examples layers"]:
    """Compute the products of the layers' amplification from their norms, for each context."""

    def amplify(ids: Int[Array, " length"]) -> Float[Array, " layers"]:
        """Bound one context's amplification by every layer from `depth` on."""
        norms = interaction_norms(model.flow, model.embed(ids), grid, key=key)
        return amplification(jax.tree.map(lambda leaf: leaf[depth:], norms)).products

    return jax.lax.map(amplify, ids)


@filter_jit
def _joint_cone(
    model: CausalLM,
    terminal_loss: Any,
    examples: tuple[Int[Array, "examples length"], Targets],
    grid: Grid,
    depth: int,
) -> JointCone:
    """Compute the joint cone of contexts from the attention of the layers from `depth` on."""

    def sites_of_example(example: tuple[Array, Targets]) -> AttentionSites:
        """Return one example's states and covectors where attention from `depth` on reads."""
        ids, targets = example
        loss = partial(terminal_loss, model)
        example = (model.embed(ids), targets)
        ledger = channels(model.flow, loss, example, grid)
        sites = attention_sites(model.flow, ledger.states, ledger.covectors, grid)
        return jax.tree.map(lambda leaf: leaf[depth:], sites)

    return joint_cone(jax.lax.map(sites_of_example, examples), grid)


@filter_jit
def _least_of_first_token(
    model: CausalLM,
    states: Float[Array, "examples length width"],
    covectors: Float[Array, "examples length width"],
    grid: Grid,
    depth: int,
) -> Float[Array, ""]:
    r"""Return the least :math:`\Gamma` of the first token, over pairs of positions in one layer."""
    flow = model.flow
    first = jnp.zeros((), int)
    scale = flow.profile(jnp.asarray(depth * flow.horizon / flow.depth, covectors.dtype))

    def contributions(attention_input: tuple[State, State]) -> Float[Array, "length width"]:
        """Pull one example's covector at every position back to the first token."""
        state, covector = attention_input

        def column(layer: Any) -> State:
            """Pull the covector back through the first token's column of the kernel."""
            return kernel_factors(attention_of(layer[0]), state, grid).pull_column(first, covector)

        return scale * flow.at_layer(column, jnp.asarray(depth), covector.dtype)

    parts = jax.lax.map(contributions, (states, covectors))
    return (jnp.einsum("nix,njx->ij", parts, parts) / len(parts)).min()
