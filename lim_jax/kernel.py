r"""The Volterra kernel of attention, block by block, and its cone mass.

The derivative of multi-head attention in its `context` slot is an integral operator. With
:math:`k^h` the attention kernel, :math:`v^h`, :math:`o^h` and :math:`q^h` a head's values, outputs
and queries,

.. math:: K(p, q) = \sum_h k^h(p, q)\, W_O^h \Bigl[W_V^h + \bigl(v^h(q) - o^h(p)\bigr)
          \otimes W_K^{h\top} q^h(p) / \sqrt{d_k}\Bigr]\, D\mathrm{LN}(X(q))

(`eq:attention-nonlocal-kernel`, projected as in `eq:multihead-volterra-derivative`). Blocks are
densities: the Jacobian's block is :math:`\hat K_{ij} = W_{ij} K(p_i, p_j)`, that is
:math:`K/L` on tokens.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import require
from lim_jax.attention import continued_kernel
from lim_jax.field import CausalAttention, State
from lim_jax.grid import Grid

Norm = Literal["operator", "frobenius"]


class KernelFactors(NamedTuple):
    r"""What the blocks :math:`K(p_i, p_j)` are made of, over heads h and positions.

    Attributes
    ----------
    kernel
        :math:`k^h(p_i, p_j)`, a density in j.
    value_map
        :math:`W_O^h W_V^h`.
    value, output
        :math:`W_O^h v^h_j` and :math:`W_O^h o^h_i`.
    score_slope
        :math:`W_K^{h\top} q^h_i/\sqrt{d_k}`.
    norm_slope
        :math:`D\mathrm{LN}(x_j)`.
    """

    kernel: Float[Array, "heads length length"]
    value_map: Float[Array, "heads width width"]
    value: Float[Array, "heads length width"]
    output: Float[Array, "heads length width"]
    score_slope: Float[Array, "heads length width"]
    norm_slope: Float[Array, "length width width"]

    def column(self, j: Array) -> Float[Array, "length width width"]:
        r"""The blocks :math:`K(p_i, p_j)` of one column, over i."""
        heads = self.kernel[:, :, j]
        steps = self.value[:, j][:, None, :] - self.output
        blocks = jnp.einsum("hi,hab->iab", heads, self.value_map)
        blocks = blocks + jnp.einsum("hi,hia,hib->iab", heads, steps, self.score_slope)
        return blocks @ self.norm_slope[j]


def kernel_factors(attention: CausalAttention, x: State, grid: Grid) -> KernelFactors:
    """Compute once what every block of the kernel at `x` needs."""
    query, key, value = attention.projections(x, x)
    kernel = jax.vmap(continued_kernel, in_axes=(0, 0, None))(query, key, grid)
    outputs = jnp.einsum("hij,hjv->hiv", grid.prefix_weights()[None] * kernel, value)
    return KernelFactors(
        kernel,
        attention.output @ attention.value,
        jnp.einsum("hdv,hjv->hjd", attention.output, value),
        jnp.einsum("hdv,hiv->hid", attention.output, outputs),
        jnp.einsum("hkd,hik->hid", attention.key, query) / math.sqrt(query.shape[-1]),
        jax.vmap(jax.jacfwd(attention.norm))(x),
    )


def cone_mass(
    attention: CausalAttention, x: State, grid: Grid, norm: Norm = "operator"
) -> Float[Array, " length"]:
    r"""The cone mass :math:`\mathcal C(q) = \int_q^1 \|K(p, q)\|^2\,dp` at every position.

    `eq:cone-mass`, exact on the grid, in its density normalisation: on tokens
    :math:`\sum_{i \ge j} \Delta p\,\|L\hat K_{ij}\|^2`, which converges; the literal
    `eq:finite-cone-mass-estimator` is this times :math:`\Delta p_j^2` and tends to 0. The weights
    of :math:`\int_q^1` are the adjoint's, :math:`\Delta p_i W_{ij}/\Delta p_j`.

    It grows like :math:`1/q` at 0, so no average of it over a left region converges.

    Streams over columns: no array larger than the attention matrices is formed.

    Parameters
    ----------
    attention
        The attention sublayer, for example ``field.attention``.
    x
        The states of one example.
    grid
        Their positions.
    norm
        ``"operator"`` (the paper's) or ``"frobenius"``, by which probes estimate it.

    Raises
    ------
    ValueError
        Where the norm has another name.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> one = jnp.ones((1, 1, 1))
    >>> averaging = CausalAttention(lambda z: z, 0 * one, 0 * one, one, one)
    >>> cone_mass(averaging, jnp.ones((2, 1)), token_grid(2)).tolist()  # sums of Δp/p^2 over p >= q
    [2.5, 0.5]
    """
    require(
        norm in ("operator", "frobenius"),
        "norm",
        got=repr(norm),
        expected='"operator" or "frobenius"',
        cure="See cone_mass.",
    )
    factors = kernel_factors(attention, x, grid)
    weights, prefix = grid.weights, grid.prefix_weights()

    def mass(j: Array) -> Float[Array, ""]:
        future = weights * prefix[:, j] / weights[j]
        return future @ jax.vmap(_squared_norm, in_axes=(0, None))(factors.column(j), norm)

    return jax.lax.map(mass, jnp.arange(grid.size))


def _squared_norm(block: Float[Array, "width width"], norm: Norm) -> Float[Array, ""]:
    if norm == "frobenius":
        return jnp.sum(block**2)
    return jnp.linalg.eigvalsh(block.T @ block)[-1]
