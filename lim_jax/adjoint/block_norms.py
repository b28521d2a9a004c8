r"""Squared norms of the blocks of attention's kernel, none of which is formed.

In the coordinates of the heads a block of `tangent` is

.. math:: K(p_i, p_j)\,\xi = \sum_h W_O^h\,A^h_{ij} \bigl[V^h\xi
          + u^h_{ij}\,\langle q^h_i, K^h\xi\rangle\bigr], \qquad u^h_{ij} = v^h_j - o^h_i,

where :math:`V^h = Dv^h(x_j)` and :math:`K^h = Dk^h(x_j)` are those of the column, taken a few
columns at a time, and the row's gates, where there are, multiply :math:`A^h_{ij}`. The Frobenius
norms are therefore sums over pairs of heads of products of matrices, and an operator norm is the
largest :math:`\|K\xi\|` over unit vectors, by conjugate gradients. Where a norm of the output
follows the heads' sum, and for the Frobenius norms where there are gates, blocks are formed after
all.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._checks import (
    require,
    require_kind,
    undifferentiated,
)
from lim_jax.adjoint.tangent import KernelFactors
from lim_jax.network.multihead import by_head

TILE, COLUMNS = 64, 32
TWICE = (
    "norm: the operator norm of the kernel is differentiated once. For further derivatives "
    'take norm="frobenius".'
)
Rows = Float[Array, " rows"]
Vectors = Float[Array, "width rows"]
Listening = Float[Array, "heads width rows"]
InHeads = Float[Array, "joined rows"]


def squared_frobenius_norms(factors: KernelFactors) -> Float[Array, "length length"]:
    r"""The squared Frobenius norms of all blocks, by products over pairs of heads.

    With :math:`O_{hg} = W_O^{h*}W_O^g` the pair (h, g) adds :math:`A^h_{ij}A^g_{ij}` times

    .. math:: \langle O_{hg}, V^hV^{g*}\rangle + 2\,u^{h*}O_{hg}V^gK^{h*}q^h
              + u^{h*}O_{hg}u^g\; q^{h*}K^hK^{g*}q^g.

    Multiplied out, every term is a product of a matrix of rows with one of columns; columns go
    tile by tile. Where heads are so sharp that scores change by 60 in one unit of x, float32 keeps
    four digits, here as in the operator norm.

    Examples
    --------
    >>> from lim_jax.network.multihead import CausalAttention
    >>> from lim_jax.grid import token_grid
    >>> from lim_jax.adjoint.tangent import kernel_factors
    >>> one = jnp.ones((1, 1, 1))
    >>> averaging = CausalAttention(lambda z: z, 0 * one, 0 * one, one, one)
    >>> factors = kernel_factors(averaging, jnp.ones((2, 1)), token_grid(2))
    >>> squared_frobenius_norms(factors)[1].tolist()
    [1.0, 1.0]
    """
    require_kind(factors, KernelFactors, "factors", "Take them from kernel_factors.")
    length = factors.query.shape[1]
    if factors.attention.output_norm is not None or factors.gates is not None:
        return _formed_squares(factors)
    tile = min(COLUMNS, length)
    tiles = -(-length // tile)
    # The last column fills the last tile.
    columns = jnp.minimum(jnp.arange(tiles * tile), length - 1).reshape(tiles, tile)
    squares = jax.lax.map(jax.checkpoint(lambda some: _column_squares(factors, some)), columns)
    return jnp.swapaxes(squares, 0, 1).reshape(length, -1)[:, :length]


def _formed_squares(factors: KernelFactors) -> Float[Array, "length length"]:
    """The same of blocks that are formed, a column at a time, behind gates or the output's norm.

    These differ from row to row, and products over pairs of heads do not know them.
    """
    of_column = jax.checkpoint(lambda j: (factors.column(j) ** 2).sum(axis=(1, 2)))
    return jax.lax.map(of_column, jnp.arange(factors.query.shape[1])).T


def _column_squares(
    factors: KernelFactors, columns: Int[Array, " columns"]
) -> Float[Array, "length columns"]:
    """The squared norms of some columns' blocks, pair of heads by pair."""
    slopes = jax.vmap(factors.slopes, out_axes=1)(columns)
    values_at, kernels = factors.value[:, columns], factors.kernel[:, :, columns]
    output = factors.attention.output
    heads, groups = len(factors.query), len(slopes[0])

    def bent(head: Array) -> Array | float:
        """By what a cap slows the scores of a head."""
        return 1.0 if factors.slope is None else factors.slope[head][:, columns]

    @jax.checkpoint
    def add(squares: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        h, g = pair
        (keys, values), (other_keys, other_values) = (
            [slope[head // (heads // groups)] for slope in slopes] for head in pair
        )
        mixed = output[h].T @ output[g]
        mixed_values = jnp.einsum("vw,jwb->jvb", mixed, other_values)
        products = jnp.einsum("jvb,jvb->j", values, mixed_values)[None, :]
        between = jnp.einsum("jvb,jkb->jvk", mixed_values, keys)
        at_columns = jnp.einsum("jv,jvk->jk", values_at[h], between)
        along = at_columns[None] - jnp.einsum("iv,jvk->ijk", factors.output[h], between)
        products += 2 * bent(h) * jnp.einsum("ijk,ik->ij", along, factors.query[h])
        key_products = jnp.einsum("jkb,jlb->jkl", keys, other_keys)
        scored = jnp.einsum("ik,jkl->ijl", factors.query[h], key_products)
        scores = bent(h) * bent(g) * jnp.einsum("ijl,il->ij", scored, factors.query[g])
        products += _metric_products(factors.output, values_at, pair, mixed) * scores
        return squares + kernels[h] * kernels[g] * products, None

    pairs = jnp.divmod(jnp.arange(heads**2), heads)
    return jax.lax.scan(add, jnp.zeros_like(kernels[0]), pairs)[0]


def _metric_products(
    output: Array, value: Array, pair: tuple[Array, Array], mixed: Array
) -> Float[Array, "length columns"]:
    r""":math:`u^{h*}O_{hg}u^g`."""
    h, g = pair
    of_columns = jnp.sum(value[h] @ mixed * value[g], axis=1)[None, :]
    of_rows = jnp.sum(output[h] @ mixed * output[g], axis=1)[:, None]
    across = output[h] @ (mixed @ value[g].T) + output[g] @ (value[h] @ mixed).T
    return of_columns + of_rows - across


def column_mass(
    factors: KernelFactors, j: Array, weights: Float[Array, " length"]
) -> Float[Array, ""]:
    r"""The weighted sum :math:`\sum_i w_i\,\|K(p_i, p_j)\|^2` of one column in the operator norm.

    Rows go tile by tile; tiles without weight are skipped. It is differentiated once.

    Examples
    --------
    >>> from lim_jax.network.multihead import CausalAttention
    >>> from lim_jax.grid import token_grid
    >>> from lim_jax.adjoint.tangent import kernel_factors
    >>> one = jnp.ones((1, 1, 1))
    >>> averaging = CausalAttention(lambda z: z, 0 * one, 0 * one, one, one)
    >>> factors = kernel_factors(averaging, jnp.ones((2, 1)), token_grid(2))  # rows of 2 and 1
    >>> float(column_mass(factors, jnp.array(0), jnp.ones(2)))
    5.0
    """
    if factors.attention.output_norm is not None:
        return weights @ jnp.linalg.norm(factors.column(j), ord=2, axis=(1, 2)) ** 2
    blocks = column_blocks(factors, j)
    rows = _row_tiles((weights, blocks.kernel, blocks.step, blocks.query, blocks.gates))

    def grow(mass: Array, tile: tuple) -> tuple[Array, None]:
        weights, kernel, step, query, gates = tile
        tile_blocks = blocks._replace(kernel=kernel, step=step, query=query, gates=gates)
        mass = jax.lax.cond(
            jnp.any(weights != 0),
            lambda mass: mass + weights @ squared_operator_norms(tile_blocks),
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
        :math:`A^h_{ij}`.
    step
        :math:`u^h_{ij}`.
    query
        :math:`q^h_i`, scaled.
    key, value
        :math:`K^h` and :math:`V^h`, one for each group of heads.
    output
        :math:`W_O^h`.
    gates
        Those of the rows, or None.
    """

    kernel: Float[Array, "heads rows"]
    step: Float[Array, "heads features rows"]
    query: Float[Array, "heads size rows"]
    key: Float[Array, "groups size width"]
    value: Float[Array, "groups features width"]
    output: Float[Array, "heads width features"]
    gates: Float[Array, "heads features rows"] | None = None

    def push(self, tangents: Vectors) -> Vectors:
        r""":math:`K\xi` in every row."""
        return self.joined_output() @ self.push_to_heads(tangents, self.listening())

    def listening(self) -> Listening:
        r""":math:`K^{h*}q^h_i`: which tangents of the column change the score."""
        return jnp.einsum("hsw,hsr->hwr", by_head(self.key, len(self.query)), self.query)

    def push_to_heads(self, tangents: Vectors, listening: Listening) -> InHeads:
        r""":math:`A(V\xi + u\,\langle K^*q, \xi\rangle)`: :math:`K\xi` before :math:`W_O`."""
        groups, features, width = self.value.shape
        values = (self.value.reshape(-1, width) @ tangents).reshape(groups, features, -1)
        scores = (listening * tangents[None]).sum(axis=1)
        values = by_head(values, len(self.query)) + self.step * scores[:, None]
        return (self.weights() * values).reshape(-1, tangents.shape[1])

    def pull_from_heads(self, covectors: InHeads, listening: Listening) -> Vectors:
        r""":math:`V^*A\eta + K^*q\,\langle u, A\eta\rangle`, the transpose of `push_to_heads`."""
        groups, features, width = self.value.shape
        weighed = self.weights() * covectors.reshape(self.step.shape)
        of_groups = weighed.reshape(groups, -1, *weighed.shape[1:]).sum(axis=1)
        values = self.value.reshape(-1, width).T @ of_groups.reshape(-1, covectors.shape[1])
        scores = (self.step * weighed).sum(axis=1)
        return values + (listening * scores[:, None]).sum(axis=0)

    def weights(self) -> Float[Array, "heads #features rows"]:
        """The kernel, times the gates where there are."""
        kernel = self.kernel[:, None]
        return kernel if self.gates is None else kernel * self.gates

    def joined_output(self) -> Float[Array, "width joined"]:
        r""":math:`W_O` of all heads side by side."""
        return jnp.swapaxes(self.output, 0, 1).reshape(self.output.shape[1], -1)


def column_blocks(factors: KernelFactors, j: Array) -> Blocks:
    """Gather what the blocks of column j are made of, where no norm of the output follows."""
    got, cure = "a norm of the output", "Form the blocks: factors.column(j)."
    plain = factors.attention.output_norm is None
    require(plain, "attention", got=got, expected="none", cure=cure)
    return Blocks(
        factors.kernel[:, :, j],
        jnp.swapaxes(factors.steps(j), 1, 2),
        jnp.swapaxes(factors.query, 1, 2),
        *factors.slopes(j),
        factors.attention.output,
        None if factors.gates is None else jnp.swapaxes(factors.gates, 1, 2),
    )


@jax.custom_jvp
def squared_operator_norms(blocks: Blocks) -> Rows:
    r"""The squared operator norms: :math:`\|K\xi\|^2` at the unit vectors where it is largest.

    Their derivative is that of :math:`\|K\xi\|^2` at those vectors held still. It is taken once.
    """
    return _leading_vectors(blocks).value


@squared_operator_norms.defjvp
def _squared_operator_norms_jvp(primals, tangents):
    # Held still: their own derivatives would be missing in a second derivative.
    vectors = _leading_vectors(undifferentiated(*primals, TWICE)).vector
    return jax.jvp(lambda blocks: (blocks.push(vectors) ** 2).sum(axis=0), primals, tangents)


class _Ascent(NamedTuple):
    r"""An eigenvector of :math:`K^*K` on its way up, in every row.

    The Rayleigh quotient `value` belongs to the unit `vector`, `image` is :math:`K^*K` of it,
    `residual` is ``image - value * vector`` and `error` its square; `direction`, orthogonal to the
    vector, is where to look next.
    """

    vector: Vectors
    image: Vectors
    value: Rows
    residual: Vectors
    error: Rows
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
    output, listening = blocks.joined_output(), blocks.listening()
    metric = output.T @ output

    def normal(vectors: Vectors) -> Vectors:
        pushed = blocks.push_to_heads(vectors, listening)
        return blocks.pull_from_heads(metric @ pushed, listening)

    def unfinished(ascent: _Ascent) -> Array:
        short = ascent.error > jnp.finfo(dtype).eps * ascent.value**2
        return jnp.any(short) & (ascent.climbed < 10 * width)

    # K* of an image in general position and of the images' rank-one parts: at L = 256 and d = 64
    # 9.9 steps for the 12.4 of a random vector.
    random = jnp.asarray(np.random.default_rng(0).standard_normal(width), dtype)
    heads = blocks.push_to_heads(jnp.broadcast_to(random[:, None], (width, rows)), listening)
    heads += (blocks.weights() * blocks.step).reshape(-1, rows)
    vector = _unit(blocks.pull_from_heads(metric @ heads, listening))
    image = normal(vector)
    # In units of the first value: squares of small blocks' residuals would underflow.
    unit = _dot(vector, image)
    inverse = _quotient(1, unit)

    def scaled(vectors: Vectors) -> Vectors:
        return _each(inverse, normal(vectors))

    image, value = _each(inverse, image), _quotient(unit, unit)
    residual = image - _each(value, vector)
    error = _dot(residual, residual)
    ascent = _Ascent(vector, image, value, residual, error, residual, jnp.zeros((), int))
    ascent = jax.lax.while_loop(unfinished, lambda ascent: _climb(ascent, scaled), ascent)
    return ascent._replace(value=unit * ascent.value)


def _climb(ascent: _Ascent, normal: Callable[[Vectors], Vectors]) -> _Ascent:
    """Go to the best unit vector in the plane of the vector and its direction."""
    vector, image, value, residual, error, direction, climbed = ascent
    direction_image = normal(direction)
    square = _dot(direction, direction)
    inverse = _quotient(1, jnp.sqrt(square))
    slope = inverse * _dot(direction, residual)
    curvature = inverse**2 * _dot(direction, direction_image)
    # The upper eigenpair of [[value, slope], [slope, curvature]].
    half = (value - curvature) / 2
    rise = half + jnp.sqrt(half**2 + slope**2)
    norm = jnp.sqrt(rise**2 + slope**2)
    cosine, sine = jnp.where(norm > 0, _quotient(rise, norm), 1), _quotient(slope, norm)
    moved = _each(cosine, vector) + _each(inverse * sine, direction)
    image = _each(cosine, image) + _each(inverse * sine, direction_image)
    value = curvature + rise
    found = image - _each(value, moved)
    growth = jnp.maximum(_quotient(_dot(found, found - residual), error), 0)
    direction = (
        found + _each(growth * cosine, direction) - _each(growth * sine * jnp.sqrt(square), vector)
    )
    return _Ascent(moved, image, value, found, _dot(found, found), direction, climbed + 1)


def _dot(left: Vectors, right: Vectors) -> Rows:
    return (left * right).sum(axis=0)


def _unit(vectors: Vectors) -> Vectors:
    """Divide by the largest entry first: squares of small ones would underflow."""
    vectors = _each(_quotient(1, jnp.abs(vectors).max(axis=0)), vectors)
    return _each(_quotient(1, jnp.sqrt(_dot(vectors, vectors))), vectors)


def _each(factors: Rows, vectors: Vectors) -> Vectors:
    return factors[None, :] * vectors


def _quotient(numerator: Array | int, denominator: Array) -> Array:
    """Zero over zero is zero: a block of zeros has every vector for an eigenvector."""
    return jnp.where(denominator > 0, numerator / jnp.where(denominator > 0, denominator, 1), 0)


def _row_tiles(arrays: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
    """Cut the last axis into tiles, which come first; rows of zeros fill the last one."""
    length = jax.tree.leaves(arrays)[0].shape[-1]
    tile = min(TILE, length)
    tiles = -(-length // tile)

    def cut(array: Array) -> Array:
        padding = [(0, 0)] * (array.ndim - 1) + [(0, tiles * tile - length)]
        return jnp.moveaxis(jnp.pad(array, padding).reshape(*array.shape[:-1], tiles, tile), -2, 0)

    return jax.tree.map(cut, arrays)
