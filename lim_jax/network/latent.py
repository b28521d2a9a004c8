"""Attention whose keys and values come from vectors of low rank: multi-head latent attention."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import require
from lim_jax._products import linear
from lim_jax.network.multihead import CausalAttention, project
from lim_jax.network.norms import Norm
from lim_jax.network.span import Turns


class LatentAttention(CausalAttention):
    r"""Causal attention through a latent vector of each token (DeepSeek-AI, 2024).

    Of z = LN(c)_j the latent vector :math:`\ell_j = \mathrm{LN}_L(W_L z)` gives every head its
    value :math:`W_V^h\ell_j` and the features :math:`W_K^h\ell_j` of its key that do not turn;
    those that do, :math:`W_T z`, all heads share. Queries are of z, or of a latent vector of their
    own. In each vector the rotated features come first.

    `query_down` makes the queries' latent vector of z, and is None for queries of z itself. Biases
    of queries, keys and values and norms of heads are None; the rest is as in `CausalAttention`.
    """

    query: Float[Array, "*layers heads size latent"]
    key: Float[Array, "*layers heads still rank"]
    value: Float[Array, "*layers heads features rank"]
    output: Float[Array, "*layers heads width features"]
    down: Float[Array, "*layers rank width"] = eqx.field(kw_only=True)
    down_norm: Norm = eqx.field(kw_only=True)
    turning: Float[Array, "*layers shared width"] = eqx.field(kw_only=True)
    query_down: Float[Array, "*layers latent width"] | None = eqx.field(kw_only=True, default=None)
    query_down_norm: Norm | None = eqx.field(kw_only=True, default=None)

    def __check_init__(self):
        shared = self.turning.shape[-2]
        require(  # a configuration may scale other features
            self.span.turning in (0, shared),
            "rotary",
            got=f"{self.span.turning} features that are rotated",
            expected=f"{shared}, those that all heads share",
            cure="Make frequencies for these features, all of them.",
        )
        biases = self.query_bias, self.key_bias, self.value_bias
        assert all(part is None for part in (*biases, self.query_norm, self.key_norm))

    def queries(
        self, x: Float[Array, "rows width"], turns: Turns | None
    ) -> Float[Array, "heads rows size"]:
        """Queries of any tokens, row by row."""
        latent = jax.vmap(self.norm)(x)
        if self.query_down is not None:
            latent = linear(self.query_down, latent)
        if self.query_down_norm is not None:
            latent = jax.vmap(self.query_down_norm)(latent)
        return self.span.of_queries(self.scaled(project(self.query, None, latent)), turns)

    def sources(
        self, context: Float[Array, "rows width"], turns: Turns | None
    ) -> tuple[Float[Array, "heads rows size"], Float[Array, "heads rows features"]]:
        """Keys and values of any tokens, row by row."""
        normed = jax.vmap(self.norm)(context)
        latent = jax.vmap(self.down_norm)(linear(self.down, normed))
        still, value = (project(matrices, None, latent) for matrices in (self.key, self.value))
        turning = linear(self.turning, normed)
        shared = jnp.broadcast_to(turning[None], (len(still), *turning.shape))
        return self.span.of_keys(jnp.concatenate([shared, still], axis=2), turns), value
