r"""Squared norms of the blocks of attention's kernel, none of which is formed.

In the coordinates of the heads a block of `tangent` is

.. math:: K(p_i, p_j)\,\xi = \sum_h W_O^h\,k^h_{ij} \bigl[V^h\xi
          + u^h_{ij}\,\langle q^h_i, K^h\xi\rangle\bigr], \qquad u^h_{ij} = v^h_j - o^h_i,

where :math:`V = W_V\,D\mathrm{LN}(x_j)` and :math:`K = W_K\,D\mathrm{LN}(x_j)` are those of the
column. The Frobenius norm is therefore a sum over pairs of heads of products of their size, and
the operator norm the largest :math:`\|K\xi\|` over unit vectors, by conjugate gradients.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax.blocked import TILE
from lim_jax.tangent import KernelFactors

Norm = Literal["operator", "frobenius"]
Rows = Float[Array, " rows"]
Vectors = Float[Array, "width rows"]


def column_mass(
    factors: KernelFactors, j: Array, weights: Float[Array, " length"], norm: Norm
) -> Float[Array, ""]:
    r"""The weighted sum :math:`\sum_i w_i\,\|K(p_i, p_j)\|^2` of one column.

    Rows go tile by tile; tiles without weight are skipped. In the operator norm it is
    differentiated once.

    Examples
    --------
    >>> from lim_jax.field import CausalAttention
    >>> from lim_jax.grid import token_grid
    >>> from lim_jax.tangent import kernel_factors
    >>> one = jnp.ones((1, 1, 1))
    >>> averaging = CausalAttention(lambda z: z, 0 * one, 0 * one, one, one)
    >>> factors = kernel_factors(averaging, jnp.ones((2, 1)), token_grid(2))  # rows of 2 and 1
    >>> float(column_mass(factors, jnp.array(0), jnp.ones(2), "operator"))
    5.0
    """
    squares = {"operator": squared_operator_norms, "frobenius": squared_frobenius_norms}[norm]
    blocks = column_blocks(factors, j)
    rows = _row_tiles((weights, blocks.kernel, blocks.step, blocks.query))

    def grow(mass: Array, tile: tuple) -> tuple[Array, None]:
        weights, kernel, step, query = tile
        tile_blocks = blocks._replace(kernel=kernel, step=step, query=query)
        mass = jax.lax.cond(
            jnp.any(weights != 0),
            lambda mass: mass + weights @ squares(tile_blocks),
            lambda mass: mass,
            mass,
        )
        return mass, None

    return jax.lax.scan(grow, jnp.zeros((), weights.dtype), rows)[0]


class Blocks(NamedTuple):
    r"""What the blocks of one column are made of, in some rows.

    The rows come last: sums over features then run along whole vectors of rows, which on a CPU is
    several times as fast as summing along the features.

    Attributes
    ----------
    kernel
        :math:`k^h_{ij}`.
    step
        :math:`u^h_{ij}`.
    query
        :math:`q^h_i`, scaled.
    key, value
        :math:`K^h` and :math:`V^h`.
    output
        :math:`W_O^h`.
    """

    kernel: Float[Array, "heads rows"]
    step: Float[Array, "heads features rows"]
    query: Float[Array, "heads size rows"]
    key: Float[Array, "heads size width"]
    value: Float[Array, "heads features width"]
    output: Float[Array, "heads width features"]

    def push(self, tangents: Vectors) -> Vectors:
        r""":math:`K\xi` in every row."""
        heads, size, width = self.key.shape
        slopes = jnp.concatenate([self.key, self.value], axis=1).reshape(-1, width) @ tangents
        slopes = slopes.reshape(heads, -1, slopes.shape[1])
        scores = (self.query * slopes[:, :size]).sum(axis=1)
        moved = self.kernel[:, None] * (slopes[:, size:] + self.step * scores[:, None])
        output = jnp.swapaxes(self.output, 0, 1).reshape(width, -1)
        return output @ moved.reshape(-1, tangents.shape[1])


def column_blocks(factors: KernelFactors, j: Array) -> Blocks:
    """Gather what the blocks of column j are made of."""
    return Blocks(
        factors.kernel[:, :, j],
        jnp.swapaxes(factors.steps(j), 1, 2),
        jnp.swapaxes(factors.query, 1, 2),
        *factors.slopes(j),
        factors.output_map,
    )


def squared_frobenius_norms(blocks: Blocks) -> Rows:
    r"""The squared Frobenius norms, by products over pairs of heads.

    With :math:`O_{hg} = W_O^{h*}W_O^g` the pair (h, g) adds :math:`k^hk^g` times

    .. math:: \langle O_{hg}, V^hV^{g*}\rangle + 2\,u^{h*}O_{hg}V^gK^{h*}q^h
              + u^{h*}O_{hg}u^g\; q^{h*}K^hK^{g*}q^g.
    """
    _, step, query, key, value, output = blocks
    outputs = jnp.einsum("hav,gaw->hvgw", output, output)
    values = jnp.einsum("hvb,gwb->hvgw", value, value)
    keys = jnp.einsum("hkb,glb->hkgl", key, key)
    mixed = jnp.einsum("hvgw,gwb,hkb->hgvk", outputs, value, key)
    pairs = (outputs * values).sum(axis=(1, 3))[:, :, None]
    pairs += 2 * (step[:, None] * jnp.einsum("hgvk,hki->hgvi", mixed, query)).sum(axis=2)
    steps = (step[:, None] * jnp.einsum("hvgw,gwi->hgvi", outputs, step)).sum(axis=2)
    pairs += steps * (query[:, None] * jnp.einsum("hkgl,gli->hgki", keys, query)).sum(axis=2)
    return jnp.einsum("hi,hgi,gi->i", blocks.kernel, pairs, blocks.kernel)


@jax.custom_jvp
def squared_operator_norms(blocks: Blocks) -> Rows:
    r"""The squared operator norms: :math:`\|K\xi\|^2` at the unit vectors where it is largest.

    Their derivative is that of :math:`\|K\xi\|^2` at those vectors held still. It is taken once.
    """
    return _leading_vectors(blocks).value


@squared_operator_norms.defjvp
def _squared_operator_norms_jvp(primals, tangents):
    vectors = _leading_vectors(_held_still(*primals)).vector
    return jax.jvp(lambda blocks: (blocks.push(vectors) ** 2).sum(axis=0), primals, tangents)


@jax.custom_jvp
def _held_still(blocks: Blocks) -> Blocks:
    """Refuse derivatives of the vectors, which would be missing in a second derivative."""
    return blocks


@_held_still.defjvp
def _held_still_jvp(primals, tangents):
    raise NotImplementedError(
        "norm: the operator norm of the kernel is differentiated once. For further derivatives "
        'take norm="frobenius".'
    )


class _Ascent(NamedTuple):
    r"""An eigenvector of :math:`K^*K` on its way up, in every row.

    The Rayleigh quotient `value` belongs to the unit `vector`, `image` is :math:`K^*K` of it, and
    `direction`, orthogonal to it, is where to look next.
    """

    vector: Vectors
    image: Vectors
    value: Rows
    direction: Vectors
    climbed: Array


def _leading_vectors(blocks: Blocks) -> _Ascent:
    r"""Climb to the leading eigenvectors of :math:`K^*K`.

    Conjugate gradients for the Rayleigh quotient, after Polak and Ribière, until residuals are
    below the root of the rounding unit: the error of the value is of the order of the residual
    squared over the gap. Ten steps for each feature are the most.
    """
    width, rows = blocks.key.shape[2], blocks.kernel.shape[1]
    dtype = blocks.kernel.dtype
    pull = jax.linear_transpose(blocks.push, jnp.zeros((width, rows), dtype))

    def normal(vectors: Vectors) -> Vectors:
        return pull(blocks.push(vectors))[0]

    def residual(ascent: _Ascent) -> Vectors:
        return ascent.image - _each(ascent.value, ascent.vector)

    def unfinished(ascent: _Ascent) -> Array:
        error = _dot(residual(ascent), residual(ascent))
        short = error > jnp.finfo(dtype).eps * ascent.value**2
        return jnp.any(short) & (ascent.climbed < 10 * width)

    start = np.random.default_rng(0).standard_normal(width)  # any vector in general position
    vector = jnp.asarray(start / np.linalg.norm(start), dtype)
    vector = jnp.broadcast_to(vector[:, None], (width, rows))
    # In units of the first value: squares of small blocks' residuals would underflow.
    unit = _dot(vector, normal(vector))
    inverse = _quotient(jnp.ones_like(unit), unit)

    def scaled(vectors: Vectors) -> Vectors:
        return _each(inverse, normal(vectors))

    image = scaled(vector)
    value = _dot(vector, image)
    ascent = _Ascent(vector, image, value, image - _each(value, vector), jnp.zeros((), int))
    ascent = jax.lax.while_loop(unfinished, lambda ascent: _climb(ascent, scaled), ascent)
    return ascent._replace(value=unit * ascent.value)


def _climb(ascent: _Ascent, normal: Callable[[Vectors], Vectors]) -> _Ascent:
    """Go to the best unit vector in the plane of the vector and its direction."""
    vector, image, value, direction, climbed = ascent
    residual = image - _each(value, vector)
    length = jnp.sqrt(_dot(direction, direction))
    unit = _each(_quotient(jnp.ones_like(length), length), direction)
    unit_image = normal(unit)
    slope, curvature = _dot(unit, residual), _dot(unit, unit_image)
    # The upper eigenpair of [[value, slope], [slope, curvature]].
    half = (value - curvature) / 2
    rise = half + jnp.sqrt(half**2 + slope**2)
    norm = jnp.sqrt(rise**2 + slope**2)
    cosine, sine = jnp.where(norm > 0, _quotient(rise, norm), 1), _quotient(slope, norm)
    vector, unit = (
        _each(cosine, vector) + _each(sine, unit),
        _each(cosine, unit) - _each(sine, vector),
    )
    image, value = _each(cosine, image) + _each(sine, unit_image), curvature + rise
    found = image - _each(value, vector)
    growth = _quotient(_dot(found, found - residual), _dot(residual, residual))
    direction = found + _each(jnp.maximum(growth, 0) * length, unit)
    return _Ascent(vector, image, value, direction, climbed + 1)


def _dot(left: Vectors, right: Vectors) -> Rows:
    return (left * right).sum(axis=0)


def _each(factors: Rows, vectors: Vectors) -> Vectors:
    return factors[None, :] * vectors


def _quotient(numerator: Array, denominator: Array) -> Array:
    """Zero over zero is zero: a block of zeros has every vector for an eigenvector."""
    return jnp.where(denominator > 0, numerator / jnp.where(denominator > 0, denominator, 1), 0)


def _row_tiles(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Cut the last axis into even tiles, which come first; rows of zeros fill the last one."""
    length = arrays[0].shape[-1]
    tiles = -(-length // TILE)
    tile = -(-length // tiles)

    def cut(array: Array) -> Array:
        padding = [(0, 0)] * (array.ndim - 1) + [(0, tiles * tile - length)]
        return jnp.moveaxis(jnp.pad(array, padding).reshape(*array.shape[:-1], tiles, tile), -2, 0)

    return tuple(cut(array) for array in arrays)
