"""Attention whose keys and values come from vectors of low rank: multi-head latent attention."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import require
from lim_jax._products import linear
from lim_jax.network.masks import Rope
from lim_jax.network.multihead import CausalAttention, project
from lim_jax.network.norms import Norm
from lim_jax.weights import Weight


class LatentAttention(CausalAttention):
    r"""Causal attention through a latent vector of each token (DeepSeek-AI, 2024).

    Of z = LN(c)_j the latent vector :math:`\ell_j = \mathrm{LN}_L(W_L z)` gives every head its
    value :math:`W_V^h\ell_j` and the features :math:`W_K^h\ell_j` of its key that are not rotated;
    the rotated ones come first, :math:`W_T z`, and all heads share them. Queries are of z, or of
    its latent vector by `query_down`. The rest is as in `CausalAttention`.
    """

    query: Float[Weight, "*layers heads size latent"]
    key: Float[Weight, "*layers heads still rank"]
    value: Float[Weight, "*layers heads features rank"]
    output: Float[Weight, "*layers heads width features"]
    down: Float[Weight, "*layers rank width"] = eqx.field(kw_only=True)
    down_norm: Norm = eqx.field(kw_only=True)
    rope_key: Float[Weight, "*layers shared width"] = eqx.field(kw_only=True)
    query_down: Float[Weight, "*layers latent width"] | None = eqx.field(kw_only=True, default=None)
    query_down_norm: Norm | None = eqx.field(kw_only=True, default=None)

    def __check_init__(self):
        """Raise ValueError unless the rotated features are those that all heads share."""
        shared = self.rope_key.shape[-2]
        require(
            self.mask.rotary_dim in (0, shared),  # a configuration may scale others
            "rotary",
            got=f"{self.mask.rotary_dim} features that are rotated",
            expected=f"{shared}, those that all heads share",
            cure="Make frequencies for them.",
        )
        biases = self.query_bias, self.key_bias, self.value_bias
        norms = self.query_norm, self.key_norm, self.value_norm
        assert all(part is None for part in (*biases, *norms))

    def queries(
        self, x: Float[Array, "rows width"], rope: Rope | None
    ) -> Float[Array, "heads rows size"]:
        """Compute the queries of any tokens, row by row; without `rope` they know no positions."""
        latent = jax.vmap(self.norm)(x)
        if self.query_down is not None:
            latent = linear(self.query_down, latent)
        if self.query_down_norm is not None:
            latent = jax.vmap(self.query_down_norm)(latent)
        return self.mask.encode_queries(self.scaled(project(self.query, None, latent)), rope)

    def sources(
        self, context: Float[Array, "rows width"], rope: Rope | None
    ) -> tuple[Float[Array, "heads rows size"], Float[Array, "heads rows features"]]:
        """Compute the keys and values of any tokens, row by row."""
        normed = jax.vmap(self.norm)(context)
        latent = jax.vmap(self.down_norm)(linear(self.down, normed))
        still, value = (project(matrices, None, latent) for matrices in (self.key, self.value))
        rotated = linear(self.rope_key, normed)
        shared = jnp.broadcast_to(rotated[None], (len(still), *rotated.shape))
        return self.mask.encode_keys(jnp.concatenate([shared, still], axis=2), rope), value
