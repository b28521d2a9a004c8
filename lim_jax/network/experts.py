r"""Mixtures of experts: tokenwise networks of which a router chooses a few for every token.

.. math:: \mathrm{FNN}(x)_i = \sum_{e \in \mathrm{top}(r_i)} r_{ie}\,f_e(z_i) + f_{\rm shared}(z_i),
          \qquad z_i = \mathrm{LN}(x)_i, \quad r_i = \rho(W_R z_i + b_R)

Which experts are chosen is piecewise constant, and has no derivative; what the chosen ones weigh
has. Chosen pairs of token and expert are sorted by expert and cut into tiles of one expert each, so
that no array of experts times tokens times hidden features is formed.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lim_jax._checks import as_int, require
from lim_jax._precision import promote
from lim_jax._products import linear
from lim_jax.grid.measure import Grid
from lim_jax.network.norms import Norm, normalise_rows
from lim_jax.network.slots import Field, State, require_pair
from lim_jax.network.tokenwise import GATED_AXES, affine
from lim_jax.weights import Weight

TILE = 32  # pairs of a token and an expert
ScoreFunction = Literal["softmax", "sigmoid"]


class Routing(NamedTuple):
    r"""How a router's logits become the chosen experts' weights; known before tracing."""

    top: int  # experts of a token
    scores: ScoreFunction = "softmax"  # rho: a softmax over all experts, or each one's sigmoid
    normalised: bool = True  # whether the chosen ones' weights are divided by their sum
    factor: float = 1.0  # of all weights, at last
    groups: int = 1  # into which experts are cut in order
    topk_group: int = 1  # of the groups, open to a token
    best: int = 1  # of a group's experts, by the sum of whose scores it is judged
    epsilon: float = 0.0  # added to the sum by which weights are divided

    def weights(
        self, logits: Float[Array, "tokens experts"], preference: Float[Array, " experts"] | None
    ) -> tuple[Float[Array, "tokens top"], Int[Array, "tokens top"]]:
        """Return each token's weights and choices of experts; `preference` affects the choice."""
        score = jax.nn.softmax if self.scores == "softmax" else jax.nn.sigmoid
        scores = score(logits)
        preferred = (
            scores if preference is None else scores + preference.astype(scores.dtype)[None, :]
        )
        if self.topk_group < self.groups:
            preferred = jnp.where(self._open(preferred), preferred, -jnp.inf)
        _, chosen = jax.lax.top_k(preferred, self.top)
        weights = jnp.take_along_axis(scores, chosen, axis=1)
        if self.normalised:
            weights /= weights.sum(axis=1, keepdims=True) + self.epsilon
        return self.factor * weights, chosen

    def _open(self, preferred: Float[Array, "tokens experts"]) -> Array:
        """Tell which experts are in the groups that are open to each token."""
        grouped = preferred.reshape(len(preferred), self.groups, -1)
        merit = jax.lax.top_k(grouped, self.best)[0].sum(axis=2)
        _, best_groups = jax.lax.top_k(merit, self.topk_group)
        open_groups = jax.nn.one_hot(best_groups, self.groups).sum(axis=1) > 0
        return jnp.repeat(open_groups, grouped.shape[2], axis=1)


class SparseMixer(NamedTuple):
    r"""Phi-3.5-MoE's routing: the likeliest expert, then the likeliest of the others.

    Each choice has its weight in a softmax over the experts that are still open, without those with
    :math:`(l_{max} - l_e)/\max(|l_e|, l_{max}) > 2\,\text{jitter}`, where :math:`l_{max}` is the
    largest logit that is open.
    """

    jitter: float
    top = 2  # no fields: this routing has no other
    groups = 1
    topk_group = 1

    def weights(
        self, logits: Float[Array, "tokens experts"], preference: Any
    ) -> tuple[Float[Array, "tokens 2"], Int[Array, "tokens 2"]]:
        """Return the likeliest expert and the likeliest of the others, each with its weight."""
        turns = []
        open_logits = logits
        for _ in range(self.top):
            largest = open_logits.max(axis=1, keepdims=True)
            far = (largest - logits) / jnp.maximum(jnp.abs(logits), largest) > 2 * self.jitter
            chosen = jnp.argmax(open_logits, axis=1)[:, None]
            shares = jax.nn.softmax(jnp.where(far, -jnp.inf, open_logits), axis=1)
            turns.append((jnp.take_along_axis(shares, chosen, axis=1), chosen))
            open_logits = open_logits.at[jnp.arange(len(logits))[:, None], chosen].set(-jnp.inf)
        weights, chosen = zip(*turns, strict=True)
        return jnp.concatenate(weights, axis=1), jnp.concatenate(chosen, axis=1)


class Gate(NamedTuple):
    r""":math:`\sigma(g) \odot u`, of a gate and what it multiplies."""

    activation: Callable[[Array], Array]

    def __call__(self, gate: Array, up: Array) -> Array:
        """Multiply the activated gate with `up`."""
        return self.activation(gate) * up


class ClampedGate(NamedTuple):
    r""":math:`g\,\mathrm{sigmoid}(\alpha g) \odot (u + 1)`, both clamped before: gpt-oss's gate."""

    sharpness: float  # alpha
    limit: float

    def __call__(self, gate: Array, up: Array) -> Array:
        """Clamp both inputs, and multiply the activated gate with `up` plus one."""
        gate = jnp.minimum(gate, self.limit)
        up = jnp.clip(up, -self.limit, self.limit)
        return gate * jax.nn.sigmoid(self.sharpness * gate) * (up + 1)


class Experts(eqx.Module):
    r"""Networks side by side, :math:`f_e(z) = W_D^e\,h(W_G^e z, W_U^e z)`; h is `combine`."""

    gate: Float[Weight, "*layers experts hidden width"] | None  # or h(W_U z)
    up: Float[Weight, "*layers experts hidden width"]
    down: Float[Weight, "*layers experts width hidden"]
    gate_bias: Float[Weight, "*layers experts hidden"] | None = None
    up_bias: Float[Weight, "*layers experts hidden"] | None = None
    down_bias: Float[Weight, "*layers experts width"] | None = None
    combine: Callable[..., Array] = eqx.field(static=True, default=Gate(jax.nn.silu))
    sharded_axes: ClassVar[Mapping[str, int]] = GATED_AXES

    def apply(self, expert: Int[Array, ""], tokens: Float[Array, "tokens width"]) -> State:
        """Apply one expert to some tokens."""
        mine = jax.tree.map(lambda leaf: leaf[expert], self)
        up = affine(mine.up, mine.up_bias, tokens)
        if mine.gate is None:
            hidden = self.combine(up)
        else:
            hidden = self.combine(affine(mine.gate, mine.gate_bias, tokens), up)
        return affine(mine.down, mine.down_bias, hidden)


class MixtureOfExperts(eqx.Module):
    """A pre-normed tokenwise network of experts, a few of which a router chooses for every token.

    Attributes
    ----------
    norm, router_norm
        A map of one token before the experts, and the router's own, or None where they share it.
    router, router_bias
        :math:`W_R`, a row for each expert, and :math:`b_R`, or None.
    experts
        The networks :math:`f_e`.
    routing
        How logits become choices and weights; known before tracing.
    preference
        Added to the experts' scores where they are chosen, not where they are weighted; or None.
    expert_scale
        A learned factor of each expert's weight, or None.
    weighs_input
        Whether a weight multiplies the token that an expert reads, instead of what it returns.
    shared, shared_gate
        A tokenwise field without a norm that every token passes besides, or None; and a row, or
        None: the sigmoid of its product with the normed token multiplies that field's output.
    inward, outward
        Matrices from the width to that of the experts and back, or None where they are equal.
    output_norm
        A map of the sum of all outputs, or None.
    """

    norm: Norm
    router: Float[Weight, "*layers experts width"]
    experts: Experts
    routing: Routing | SparseMixer = eqx.field(static=True)
    router_bias: Float[Weight, "*layers experts"] | None = None
    preference: Float[Weight, "*layers experts"] | None = None
    shared: Field | None = None
    weighs_input: bool = eqx.field(static=True, default=False)
    output_norm: Norm | None = None
    router_norm: Norm | None = None
    expert_scale: Float[Weight, "*layers experts"] | None = None
    shared_gate: Float[Weight, "*layers one width"] | None = None
    inward: Float[Weight, "*layers inner width"] | None = None
    outward: Float[Weight, "*layers width inner"] | None = None

    def __check_init__(self):
        """Raise ValueError unless the routing fits the number of experts."""
        count = self.router.shape[-2]
        routing = self.routing
        as_int(routing.top, "routing.top", most=count, expected=f"from 1 to {count} experts")
        cure = "Take a checkpoint's own numbers."
        require(
            count % routing.groups == 0 and 0 < routing.topk_group <= routing.groups,
            "routing.groups",
            got=f"{routing.topk_group} of {routing.groups} groups of {count} experts",
            expected="groups that share the experts evenly, and at least one that is open",
            cure=cure,
        )
        best = getattr(routing, "best", 1)
        group_size = count // routing.groups
        enough = routing.topk_group == routing.groups or best <= group_size
        require(
            enough,
            "routing.best",
            got=f"groups of {group_size}",
            expected=f"groups of at least {best}, by whose scores each is judged",
            cure=cure,
        )

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Apply the chosen and the shared experts to every token of `x`."""
        require_pair(x, context, grid, self.router.shape[-1])
        normed = jax.vmap(self.norm)(x)
        routed = normed if self.router_norm is None else jax.vmap(self.router_norm)(x)
        output = self._experts_output(normed, routed)
        if self.shared is not None:
            shared = self.shared(normed, normed, grid)
            if self.shared_gate is not None:
                shared *= jax.nn.sigmoid(linear(self.shared_gate, normed))
            output += shared
        return normalise_rows(self.output_norm, output)

    def _experts_output(self, tokens: State, router_input: State) -> State:
        """Add the outputs of every token's chosen experts; the router reads `router_input`."""
        logits = affine(*promote((self.router, self.router_bias, router_input)))
        weights, chosen = self.routing.weights(logits, self.preference)
        if self.expert_scale is not None:
            weights *= self.expert_scale[chosen]
        weights = weights.astype(tokens.dtype)
        if self.inward is not None:
            tokens = linear(self.inward, tokens)
        count = len(chosen)
        token, pair = _sorted_into_tiles(chosen, len(self.router))
        # A row of zeros fills the tiles.
        inputs = jnp.concatenate([tokens, jnp.zeros_like(tokens[:1])])[token]
        weight = jnp.concatenate([weights.ravel(), jnp.zeros_like(weights[0, :1])])[pair]
        if self.weighs_input:
            inputs = weight[..., None] * inputs
            weight = jnp.ones_like(weight)

        @jax.checkpoint
        def tile(expert: Array, tokens: Array, weights: Array) -> Array:
            """Apply one expert to the tokens of one tile, and multiply by their weights."""
            return weights[:, None] * self.experts.apply(expert, tokens)

        expert = jnp.append(chosen.ravel(), 0)[pair[:, 0]]
        tiles = expert, inputs, weight
        _, outputs = jax.lax.scan(lambda _, operands: (None, tile(*operands)), None, tiles)
        total = jnp.zeros((count + 1, tokens.shape[1]), tokens.dtype)
        total = total.at[token.ravel()].add(outputs.reshape(-1, tokens.shape[1]))[:count]
        return total if self.outward is None else linear(self.outward, total)


def _sorted_into_tiles(
    chosen: Int[Array, "tokens top"], experts: int
) -> tuple[Int[Array, "tiles tile"], Int[Array, "tiles tile"]]:
    """Sort pairs of token and expert by expert, and cut them into tiles of one expert each.

    Returns for each slot of each tile its token and its pair (pair p is of token ``p // top``);
    both are one past the last in slots that only fill a tile.
    """
    count, top = chosen.shape
    pairs = count * top
    expert_of_pair = chosen.ravel()
    # A chosen expert's last tile may be filled in part: at most one more tile for each of them.
    tiles = -(-pairs // TILE) + min(experts, pairs)
    pairs_of_expert = jnp.bincount(expert_of_pair, length=experts)
    slots_of_expert = -(-pairs_of_expert // TILE) * TILE
    first_slot = jnp.cumsum(slots_of_expert) - slots_of_expert
    first_rank = jnp.cumsum(pairs_of_expert) - pairs_of_expert
    order = jnp.argsort(expert_of_pair, stable=True)
    expert = expert_of_pair[order]
    slot = first_slot[expert] + jnp.arange(pairs) - first_rank[expert]
    pair = jnp.full(tiles * TILE, pairs).at[slot].set(order)
    token = jnp.where(pair < pairs, pair // top, count)
    return token.reshape(tiles, TILE), pair.reshape(tiles, TILE)
