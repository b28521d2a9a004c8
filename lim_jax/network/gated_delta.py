r"""The gated delta rule (Yang et al., 2024): a state that unlearns what a key held before.

.. math:: S_j = e^{-a\Delta_j}S_{j-1}
          + \beta_j\,k_j\bigl(v_j - e^{-a\Delta_j}S_{j-1}^\top k_j\bigr)^\top, \qquad
          o_i = S_i^\top q_i

In the continuum :math:`\dot S = -(\gamma + \beta k k^\top)S + \beta k v^\top`.
"""

from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._precision import promote
from lim_jax._products import linear, matmul
from lim_jax.network.recurrent import Chunk, RecurrentMixer, scores
from lim_jax.network.slots import State
from lim_jax.weights import Weight

UNIT_ETA = 1e-6
SMALL = 8  # a matrix that is inverted row by row


class GatedDelta(RecurrentMixer):
    r"""The gated delta layer of Qwen3-Next, Qwen 3.5 and Olmo Hybrid.

    `write` is a row for each head: :math:`\beta_j = c\,\sigma(\langle w, \mathrm{LN}(c)_j\rangle)`,
    c the largest, 2 where a state may change its sign along a key. The rest is `RecurrentMixer`'s.
    """

    write: Float[Weight, "heads width"] = eqx.field(kw_only=True)
    largest_write: float = eqx.field(static=True, default=1.0, kw_only=True)
    sharded_axes: ClassVar[Mapping[str, int]] = {**RecurrentMixer.sharded_axes, "write": -2}

    def transform_key(self, key: Array) -> Array:
        """Return keys of length one."""
        return _unit_length(key)

    def transform_query(self, query: Array) -> Array:
        """Return queries of length one, divided by the root of their size."""
        return query.shape[-1] ** -0.5 * _unit_length(query)

    def decays_and_writes(self, normed: State) -> tuple[Array, Array]:
        """Return the logarithms of decays, and the strengths of writes."""
        write = self.largest_write * jax.nn.sigmoid(linear(self.write, normed).T)
        return self.decays(normed), write

    def decays(self, normed: State) -> Float[Array, "heads rows decays"]:
        """Return the logarithms of each head's decays."""
        return -jnp.exp(self.log_decay)[:, None, None] * self.rates(normed)[..., None]

    def writes(self, state: Array, chunk: Chunk) -> Array:
        """Solve for what the rows of a chunk write, each corrected for the rows before it."""
        _, key, value, write, within, since, _ = chunk
        among = jnp.tril(scores(key, key, within) * write[..., None], -1)
        return matmul(_inverse(among), write[..., None] * (value - matmul(since * key, state)))


class KimiDelta(GatedDelta):
    r"""The gated delta layer of Kimi Linear and Ling 3: each feature of keys decays by itself.

    `rate` and `rate_bias` give :math:`\Delta_j` feature by feature; with `least_decay` l the
    logarithm of decays is :math:`l\,\sigma(a(\langle w, z\rangle + b))`. `rate` and `gate` are of
    tokens, or of what `rate_down` and `gate_down` leave of them.
    """

    rate: Float[Weight, "heads size rank"] | None
    rate_bias: Float[Weight, "heads size"] | None
    gate: Float[Weight, "heads features inner"]
    rate_down: Float[Weight, "rank width"] | None = eqx.field(kw_only=True, default=None)
    gate_down: Float[Weight, "inner width"] | None = eqx.field(kw_only=True, default=None)
    least_decay: float | None = eqx.field(static=True, kw_only=True, default=None)
    sharded_axes: ClassVar[Mapping[str, int]] = {
        **GatedDelta.sharded_axes,
        "rate": -3,
        "rate_bias": -2,
    }
    chunk: ClassVar[int] = 16  # whose decays are held for every pair of rows and feature

    def rows(self, name: str, normed: State) -> Array:
        """Map tokens by one of the matrices, or by two of low rank."""
        down = getattr(self, f"{name}_down", None)
        return super().rows(name, normed if down is None else linear(down, normed))

    def decays(self, normed: State) -> Float[Array, "heads rows size"]:
        """Return the logarithms of each feature's decays."""
        numbers = self.rows("rate", normed)
        rate = jnp.exp(self.log_decay)[:, None, None]
        if self.least_decay is None:
            return -rate * jax.nn.softplus(numbers)
        return self.least_decay * jax.nn.sigmoid(rate * numbers)


def _unit_length(vectors: Array) -> Array:
    """Divide vectors by their length, regularised by a small constant."""
    wide = promote(vectors)  # their squares are no numbers of float16, if they are large
    unit = wide * jax.lax.rsqrt(jnp.sum(wide**2, axis=-1, keepdims=True) + UNIT_ETA)
    return unit.astype(vectors.dtype)


@jax.custom_jvp
def _inverse(lower: Array) -> Array:
    """Invert the identity plus strictly lower triangular matrices, by blocks."""
    # In products of matrices: `solve_triangular` took ten times as long on a CPU.
    size = lower.shape[-1]
    if size <= SMALL:
        identity = jnp.broadcast_to(jnp.eye(size, dtype=lower.dtype), lower.shape)
        rows = [identity[..., :1, :]]
        for row in range(1, size):
            before = lower[..., row : row + 1, :row] @ jnp.concatenate(rows, axis=-2)
            rows.append(identity[..., row : row + 1, :] - before)
        return jnp.concatenate(rows, axis=-2)
    half = size // 2
    # Beside one another along an axis that is there: XLA's CPU takes products of few axes.
    both = jnp.concatenate([lower[..., :half, :half], lower[..., half:, half:]])
    first, last = jnp.split(_inverse(both), 2)
    corner = -(last @ lower[..., half:, :half] @ first)
    above = jnp.concatenate([first, jnp.zeros_like(corner)], axis=-1)
    return jnp.concatenate([above, jnp.concatenate([corner, last], axis=-1)], axis=-2)


@_inverse.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Compute the derivative of the inverse."""
    inverse = _inverse(*primals)
    return inverse, -(inverse @ (tangents[0] @ inverse))
