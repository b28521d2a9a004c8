r"""What checkpoints do to scores before and beside the softmax: caps and sinks.

.. math:: s_{ij} = c\,\tanh\bigl(\langle q_i, k_j\rangle / (c\sqrt{d_k})\bigr), \qquad
          A_{ij} = \frac{W_{ij}\,e^{s_{ij}}}{\sum_r W_{ir}\,e^{s_{ir}} + e^{b}/n}

A sink :math:`b` weighs as one more token of the n, takes its mass of the attention, and gives
nothing: rows of A sum to less than one, and every derivative is as without it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax.grid.measure import Grid


class Shaping(NamedTuple):
    """How one head's scores are shaped: by a cap c, known before tracing, and a sink b, or None."""

    cap: float | None = None
    sink: Float[Array, ""] | None = None

    def share_left(self, log_mass: Float[Array, "..."], grid: Grid) -> Float[Array, "..."]:
        r"""Return the share that the sink leaves to a row of log mass :math:`\ell_i`."""
        assert self.sink is not None
        sink = self.sink.astype(log_mass.dtype) - np.log(grid.size).item()
        return jax.nn.sigmoid(log_mass - sink)


PLAIN = Shaping()


def capped(scores: Float[Array, "..."], cap: float | None) -> Float[Array, "..."]:
    r"""Cap scores smoothly, :math:`c\tanh(s/c)`; None leaves them unchanged."""
    return scores if cap is None else cap * jnp.tanh(scores / cap)
