"""Attention whose keys and values come from vectors of low rank: multi-head latent attention."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import require
from lim_jax._products import linear
from lim_jax.network.multihead import CausalAttention, project
from lim_jax.network.norms import Norm, require_width
from lim_jax.network.span import Turns


class LatentAttention(CausalAttention):
    r"""Causal attention through a latent vector of each token (DeepSeek-AI, 2024).

    Of z = LN(c)_j the latent vector :math:`\ell_j = \mathrm{LN}_L(W_L z)` gives every head its
    value :math:`W_V^h\ell_j` and the features :math:`W_K^h\ell_j` of its key that do not turn;
    those that do, :math:`W_T z`, all heads share. Queries are of z, or of a latent vector of their
    own. In each vector the features that turn come first.

    Attributes
    ----------
    query
        One matrix for each head, of z or of the queries' latent vector.
    key, value
        :math:`W_K^h` and :math:`W_V^h`.
    down, down_norm
        :math:`W_L` and :math:`\mathrm{LN}_L`.
    turning
        :math:`W_T`.
    query_down, query_down_norm
        What makes the queries' latent vector of z, and its norm; None for queries of z itself.
    norm, output, output_bias, output_norm, span, scale, cap, sinks, gate, attend
        As in `multihead.CausalAttention`; other biases and norms are None.

    Raises
    ------
    ValueError
        Where other features turn than those that heads share, or there are biases of queries, keys
        or values, or norms of heads.
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
        require(
            self.span.turning in (0, shared),
            "rotary",
            got=f"{self.span.turning} features that turn",
            expected=f"{shared}, those that all heads share",
            cure="Make frequencies for these features, all of them.",
        )
        unknown = (
            self.query_bias, self.key_bias, self.value_bias, self.query_norm, self.key_norm,
        )  # fmt: skip
        cure = "Latent vectors have norms, and no biases."
        plain = all(one is None for one in unknown)
        require(plain, "attention", got="a bias, or a norm of heads", expected="none", cure=cure)

    def queries(
        self, x: Float[Array, "rows width"], turns: Turns | None
    ) -> Float[Array, "heads rows size"]:
        """Queries of any tokens, row by row, turned as `turns` says; None leaves them unturned."""
        require_width(x, self.turning.shape[-1])
        latent = jax.vmap(self.norm)(x)
        if self.query_down is not None:
            latent = linear(self.query_down, latent)
        if self.query_down_norm is not None:
            latent = jax.vmap(self.query_down_norm)(latent)
        return self.span.of_queries(self.scaled(project(self.query, None, latent)), turns)

    def sources(
        self, context: Float[Array, "rows width"], turns: Turns | None
    ) -> tuple[Float[Array, "heads rows size"], Float[Array, "heads rows features"]]:
        """Keys and values of any tokens, as `queries`: all that attention knows of the context."""
        require_width(context, self.turning.shape[-1])
        normed = jax.vmap(self.norm)(context)
        latent = jax.vmap(self.down_norm)(linear(self.down, normed))
        still, value = (project(matrices, None, latent) for matrices in (self.key, self.value))
        turning = linear(self.turning, normed)
        shared = jnp.broadcast_to(turning[None], (len(still), *turning.shape))
        return self.span.of_keys(jnp.concatenate([shared, still], axis=2), turns), value
