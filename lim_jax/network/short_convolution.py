r"""Gated short convolutions, the recurrent layers of LFM2, as a field in two slots.

.. math:: y_i = W_O\,\Bigl(W_C z_i \odot \bigl(\textstyle\sum_m w_m \odot r_{i-m} + b\bigr)\Bigr),
          \qquad r_j = W_B z_j \odot W_V z_j, \qquad z = \mathrm{LN}(c)
"""

from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lim_jax.grid.measure import Grid
from lim_jax.network.convolution import current_tap, earlier_taps, packed_starts
from lim_jax.network.norms import Norm
from lim_jax.network.slots import State, log_weights_by_head, require_pair
from lim_jax.network.tokenwise import affine
from lim_jax.weights import Weight


class ShortConvolution(eqx.Module):
    """A convolution of gated rows of `context`, which a gate of `x` multiplies; it has one head."""

    norm: Norm
    write: Float[Weight, "channels width"]  # W_B
    read: Float[Weight, "channels width"]  # W_C
    value: Float[Weight, "channels width"]  # W_V
    taps: Float[Weight, "channels taps"]  # the own one last
    output: Float[Weight, "width channels"]
    write_bias: Float[Weight, " channels"] | None = None
    read_bias: Float[Weight, " channels"] | None = None
    value_bias: Float[Weight, " channels"] | None = None
    tap_bias: Float[Weight, " channels"] | None = None
    output_bias: Float[Weight, " width"] | None = None
    sharded_axes: ClassVar[Mapping[str, int]] = {
        "write": -2, "read": -2, "value": -2, "taps": -2, "output": -1, "write_bias": -1,
        "read_bias": -1, "value_bias": -1, "tap_bias": -1,
    }  # fmt: skip

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Convolve the gated rows of `context`, and multiply them by the gate of `x`."""
        require_pair(x, context, grid, self.write.shape[-1])
        return self.project_output(self.reads(x, self.sources(context, grid), grid), self.gates(x))

    def sources(self, context: State, grid: Grid) -> tuple[Float[Array, "1 rows channels"]]:
        """Return the convolved rows of the context."""
        rows = self._rows(context)
        taps = self.taps[None]
        weights = log_weights_by_head(grid, 1)
        weighted = rows if weights is None else jnp.exp(weights)[:, :, None] * rows
        return (
            self._biased(
                earlier_taps(weighted, taps, packed_starts(grid)) + current_tap(rows, taps)
            ),
        )

    def advance(
        self, x: Float[Array, "rows width"], count: Int[Array, ""], memory: Array | None = None
    ) -> tuple[Float[Array, "rows width"], Float[Array, "1 taps channels"]]:
        """Map the rows after `memory`, and return the last rows after `count` of them."""
        rows = self._rows(x)
        taps = self.taps[None]
        earlier = self.taps.shape[1] - 1
        before = jnp.zeros((1, earlier, rows.shape[2]), rows.dtype) if memory is None else memory
        history = jnp.concatenate([before, rows], axis=1)
        convolved = self._biased(earlier_taps(rows, taps, before=before) + current_tap(rows, taps))
        last = jax.lax.dynamic_slice_in_dim(history, count, earlier, axis=1)
        return self.project_output(convolved, self.gates(x)), last

    def _rows(self, tokens: State) -> Float[Array, "1 rows channels"]:
        """Return the rows to convolve: values times the gate of writes."""
        normed = jax.vmap(self.norm)(tokens)
        write = affine(self.write, self.write_bias, normed)
        return (write * affine(self.value, self.value_bias, normed))[None]

    def _biased(self, rows: Array) -> Array:
        """Add the taps' bias."""
        return rows if self.tap_bias is None else rows + self.tap_bias[None, None, :]

    def reads(
        self, x: State, sources: tuple[Float[Array, "1 rows channels"]], grid: Grid
    ) -> Float[Array, "1 rows channels"]:
        """Return the convolved rows, which are what the one head reads."""
        return sources[0]

    def gates(self, x: Float[Array, "rows width"]) -> Float[Array, "1 rows channels"]:
        """Return the gates of the convolved rows."""
        return affine(self.read, self.read_bias, jax.vmap(self.norm)(x))[None]

    def project_output(
        self, heads: Float[Array, "1 rows channels"], gates: Float[Array, "1 rows channels"]
    ) -> Float[Array, "rows width"]:
        """Apply gates and the output matrix."""
        return affine(self.output, self.output_bias, (heads * gates)[0])
