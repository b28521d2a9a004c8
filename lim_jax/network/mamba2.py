r"""State spaces with a scalar decay for each head: Mamba-2 (Dao and Gu, 2024).

.. math:: S_j = e^{-a\Delta_j}S_{j-1} + \Delta_j\,k_j v_j^\top, \qquad o_i = S_i^\top q_i + D\,v_i

Queries, keys and values are called C, B and x there. It is attention without a softmax:
:math:`o_i = \sum_{j \le i} \Delta_j\,e^{-a(\Delta_{j+1} + \dots + \Delta_i)}\langle q_i, k_j\rangle
v_j`, an integral over the prefix where :math:`\Delta` is a length of context. Lightning attention
(Qin et al., 2024) is the same with :math:`\Delta = 1`, :math:`D = 0` and no convolutions.
"""

from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax.network.recurrent import Chunk, Heads, RecurrentMixer
from lim_jax.network.slots import State
from lim_jax.weights import Weight


class Mamba2(RecurrentMixer):
    r"""The Mamba-2 layer of Nemotron, Granite, Bamba and Falcon-H1; MiniMax's lightning attention.

    `skip` is :math:`D`, `rate_limits` bound :math:`\Delta`; the rest is `RecurrentMixer`'s.
    """

    skip: Float[Weight, " heads"] | None = eqx.field(kw_only=True)
    rate_limits: tuple[float, float] = eqx.field(
        static=True, default=(0.0, float("inf")), kw_only=True
    )
    sharded_axes: ClassVar[Mapping[str, int]] = {**RecurrentMixer.sharded_axes, "skip": -1}

    def decays_and_writes(self, normed: State) -> tuple[Array, Array]:
        """Return the logarithms of decays, and the rates that multiply what is writes."""
        rates = self.rates(normed)
        if self.rate_limits != (0.0, float("inf")):
            rates = jnp.clip(rates, *self.rate_limits)
        return -(jnp.exp(self.log_decay)[:, None] * rates)[..., None], rates

    def with_skip(self, output: Heads, value: Heads) -> Heads:
        """Add D times each token's own value to what heads read from the states."""
        return output if self.skip is None else output + self.skip[:, None, None] * value

    def writes(self, state: Array, chunk: Chunk) -> Array:
        """Return the values that a chunk's rows write, each times its rate."""
        return chunk.write[..., None] * chunk.value
