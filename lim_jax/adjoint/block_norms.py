r"""Squared norms of the blocks of attention's kernel, none of which is formed.

In the coordinates of the heads a block of `tangent` is

.. math:: K(p_i, p_j)\,\xi = \sum_h W_O^h\,A^h_{ij} \bigl[V^h\xi
          + u^h_{ij}\,\langle q^h_i, K^h\xi\rangle\bigr], \qquad u^h_{ij} = v^h_j - o^h_i,

where :math:`V^h = Dv^h(x_j)` and :math:`K^h = Dk^h(x_j)`, and a row's gates multiply
:math:`A^h_{ij}`. The Frobenius norms are therefore sums over pairs of heads of products of
matrices, and an operator norm is the largest :math:`\|K\xi\|` over unit vectors, by conjugate
gradients. Blocks are formed where a norm follows attention's output, and for the Frobenius norms
where there are gates.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._checks import no_derivative
from lim_jax.adjoint.tangent import KernelFactors
from lim_jax.network.multihead import by_head, join_matrices

TILE = 64
COLUMNS = 32
TWICE = (
    "norm: the operator norm of the kernel is differentiated once. For further derivatives "
    'take norm="frobenius".'
)
Rows = Float[Array, " rows"]
Vectors = Float[Array, "width rows"]
ScoreGradients = Float[Array, "heads width rows"]
HeadOutputs = Float[Array, "joined rows"]


def squared_frobenius_norms(factors: KernelFactors) -> Float[Array, "length length"]:
    r"""Compute the squared Frobenius norms of all blocks by products over pairs of heads."""
    # With O_hg = W_O^h* W_O^g the pair (h, g) adds A^h_ij A^g_ij times
    # <O_hg, V^h V^g*> + 2 u^h* O_hg V^g K^h* q^h + u^h* O_hg u^g q^h* K^h K^g* q^g.
    length = factors.query.shape[1]
    if factors.attention.output_norm is not None or factors.gates is not None:
        # From the blocks, a column at a time: gates and norms differ by row.
        column_squares = jax.checkpoint(lambda j: (factors.column(j) ** 2).sum(axis=(1, 2)))
        return jax.lax.map(column_squares, jnp.arange(length)).T
    # Only v_j - o_i enters, whose square is expanded: what all values share, such as a bias, would
    # be lost in it.
    centre = jax.lax.stop_gradient(factors.value.mean(axis=1, keepdims=True))
    factors = factors._replace(value=factors.value - centre, output=factors.output - centre)
    size = min(COLUMNS, length)
    tiles = -(-length // size)
    # The last column fills the last tile.
    columns = jnp.minimum(jnp.arange(tiles * size), length - 1).reshape(tiles, size)
    squares = jax.lax.map(jax.checkpoint(lambda tile: _column_squares(factors, tile)), columns)
    return jnp.swapaxes(squares, 0, 1).reshape(length, -1)[:, :length]


def _column_squares(
    factors: KernelFactors, columns: Int[Array, " columns"]
) -> Float[Array, "length columns"]:
    """Compute the squared Frobenius norms of blocks in a few columns, by pairs of heads."""
    source_jacobians = jax.vmap(factors.source_jacobians, out_axes=1)
    key_jacobians, value_jacobians = source_jacobians(columns)
    values_at = factors.value[:, columns]
    kernels = factors.kernel[:, :, columns]
    output = factors.attention.output
    heads = len(factors.query)
    heads_of_group = heads // len(key_jacobians)

    def group_of(head: Array) -> Array:
        """Return the number of the group of keys and values that a head reads."""
        return head // heads_of_group

    def cap_slope(head: Array) -> Array | float:
        """Return the slope of a head's score cap in these columns, one without a cap."""
        return 1.0 if factors.slope is None else factors.slope[head][:, columns]

    @jax.checkpoint
    def add(squares: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        """Add what one pair of heads contributes to the blocks' squared norms."""
        h, g = pair
        keys = key_jacobians[group_of(h)]
        values = value_jacobians[group_of(h)]
        other_keys = key_jacobians[group_of(g)]
        other_values = value_jacobians[group_of(g)]
        metric = output[h].T @ output[g]
        metric_values = jnp.einsum("vw,jwb->jvb", metric, other_values)
        products = jnp.einsum("jvb,jvb->j", values, metric_values)[None, :]
        between = jnp.einsum("jvb,jkb->jvk", metric_values, keys)
        at_columns = jnp.einsum("jv,jvk->jk", values_at[h], between)
        along = at_columns[None] - jnp.einsum("iv,jvk->ijk", factors.output[h], between)
        products += 2 * cap_slope(h) * jnp.einsum("ijk,ik->ij", along, factors.query[h])
        key_products = jnp.einsum("jkb,jlb->jkl", keys, other_keys)
        scored = jnp.einsum("ik,jkl->ijl", factors.query[h], key_products)
        scores = cap_slope(h) * cap_slope(g) * jnp.einsum("ijl,il->ij", scored, factors.query[g])
        products += _metric_products(factors.output, values_at, pair, metric) * scores
        return squares + kernels[h] * kernels[g] * products, None

    pairs = jnp.divmod(jnp.arange(heads**2), heads)
    return jax.lax.scan(add, jnp.zeros_like(kernels[0]), pairs)[0]


def _metric_products(
    output: Array, value: Array, pair: tuple[Array, Array], metric: Array
) -> Float[Array, "length columns"]:
    r"""Compute :math:`u^{h*}O_{hg}u^g`, with the metric :math:`O_{hg}`."""
    h, g = pair
    column_squares = jnp.sum(value[h] @ metric * value[g], axis=1)[None, :]
    row_squares = jnp.sum(output[h] @ metric * output[g], axis=1)[:, None]
    across = output[h] @ (metric @ value[g].T) + output[g] @ (value[h] @ metric).T
    return column_squares + row_squares - across


def column_mass(
    factors: KernelFactors, j: Array, weights: Float[Array, " length"]
) -> Float[Array, ""]:
    r"""Sum :math:`\sum_i w_i\,\|K(p_i, p_j)\|^2` of one column in the operator norm."""
    # Rows go tile by tile; tiles without weight are skipped. It is differentiated once.
    if factors.attention.output_norm is not None:
        return weights @ jnp.linalg.norm(factors.column(j), ord=2, axis=(1, 2)) ** 2
    blocks = column_blocks(factors, j)
    rows = _row_tiles((weights, blocks.kernel, blocks.step, blocks.query, blocks.gates))

    def add(mass: Array, tile: tuple) -> tuple[Array, None]:
        """Add a tile's weighted squared operator norms; skip a tile without weight."""
        weights, kernel, step, query, gates = tile
        tile_blocks = blocks._replace(kernel=kernel, step=step, query=query, gates=gates)
        mass = jax.lax.cond(
            jnp.any(weights != 0),
            lambda mass: mass + weights @ squared_operator_norms(tile_blocks),
            lambda mass: mass,
            mass,
        )
        return mass, None

    return jax.lax.scan(add, jnp.zeros((), weights.dtype), rows)[0]


class Blocks(NamedTuple):
    """The factors of one column's blocks in some rows."""

    # The rows come last: on a CPU sums along vectors of rows are several times as fast.
    kernel: Float[Array, "heads rows"]  # A^h_{ij}
    step: Float[Array, "heads features rows"]  # u^h_{ij}
    query: Float[Array, "heads size rows"]  # q^h_i, scaled
    key: Float[Array, "groups size width"]  # K^h
    value: Float[Array, "groups features width"]  # V^h
    output: Float[Array, "heads width features"]  # W_O^h
    gates: Float[Array, "heads features rows"] | None = None

    def push(self, tangents: Vectors) -> Vectors:
        r"""Compute :math:`K\xi` in every row."""
        return self.joined_output() @ self.push_to_heads(tangents, self.score_gradients())

    def score_gradients(self) -> ScoreGradients:
        """Compute :math:`K^{h*}q^h_i`, the derivative of a score in the column's token."""
        return jnp.einsum("hsw,hsr->hwr", by_head(self.key, len(self.query)), self.query)

    def push_to_heads(self, tangents: Vectors, score_gradients: ScoreGradients) -> HeadOutputs:
        r"""Compute :math:`A(V\xi + u\,\langle K^*q, \xi\rangle)`, outputs before :math:`W_O`."""
        groups, features, width = self.value.shape
        values = (self.value.reshape(-1, width) @ tangents).reshape(groups, features, -1)
        scores = (score_gradients * tangents[None]).sum(axis=1)
        values = by_head(values, len(self.query)) + self.step * scores[:, None]
        return (self.weights() * values).reshape(-1, tangents.shape[1])

    def pull_from_heads(self, covectors: HeadOutputs, score_gradients: ScoreGradients) -> Vectors:
        r"""Compute :math:`V^*A\eta + K^*q\,\langle u, A\eta\rangle`: transposed `push_to_heads`."""
        groups, features, width = self.value.shape
        weighted = self.weights() * covectors.reshape(self.step.shape)
        group_sums = weighted.reshape(groups, -1, *weighted.shape[1:]).sum(axis=1)
        values = self.value.reshape(-1, width).T @ group_sums.reshape(-1, covectors.shape[1])
        scores = (self.step * weighted).sum(axis=1)
        return values + (score_gradients * scores[:, None]).sum(axis=0)

    def weights(self) -> Float[Array, " heads #features rows"]:
        """Return the kernel, times the gates if there are any."""
        kernel = self.kernel[:, None]
        return kernel if self.gates is None else kernel * self.gates

    def joined_output(self) -> Float[Array, "width joined"]:
        """Return the output matrices of all heads side by side."""
        return join_matrices(self.output)


def column_blocks(factors: KernelFactors, j: Array) -> Blocks:
    """Gather the factors of the blocks in column j."""
    assert factors.attention.output_norm is None
    return Blocks(
        factors.kernel[:, :, j],
        jnp.swapaxes(factors.steps(j), 1, 2),
        jnp.swapaxes(factors.query, 1, 2),
        *factors.source_jacobians(j),
        factors.attention.output,
        None if factors.gates is None else jnp.swapaxes(factors.gates, 1, 2),
    )


@jax.custom_jvp
def squared_operator_norms(blocks: Blocks) -> Rows:
    r"""Compute every block's largest :math:`\|K\xi\|^2` for unit vectors, differentiable once."""
    return _leading_vectors(blocks).value


@squared_operator_norms.defjvp
def _squared_operator_norms_jvp(primals, tangents):
    r"""Differentiate :math:`\|K\xi\|^2` in the blocks, with the maximiser held fixed."""
    # The maximiser's own derivative drops out of the first derivative, but not of the second.
    vectors = _leading_vectors(no_derivative(*primals, TWICE)).vector
    return jax.jvp(lambda blocks: (blocks.push(vectors) ** 2).sum(axis=0), primals, tangents)


class _Eigenvectors(NamedTuple):
    """The state of the conjugate gradients for the leading eigenvectors, one in every row."""

    vector: Vectors  # of length one
    image: Vectors  # K*K vector
    value: Rows  # the Rayleigh quotient
    residual: Vectors  # image - value * vector
    error: Rows  # the residual's square
    direction: Vectors  # of the next search, orthogonal to the vector
    iterations: Array


def _leading_vectors(blocks: Blocks) -> _Eigenvectors:
    """Find the leading eigenvectors of :math:`K^*K` by conjugate gradients (Polak and Ribière)."""
    # They stop at residuals below the root of the rounding unit, or after ten steps a feature.
    width = blocks.key.shape[2]
    rows = blocks.kernel.shape[1]
    dtype = blocks.kernel.dtype
    output = blocks.joined_output()
    score_gradients = blocks.score_gradients()
    metric = output.T @ output

    def normal(vectors: Vectors) -> Vectors:
        """Apply :math:`K^*K` to every row's vector."""
        heads = blocks.push_to_heads(vectors, score_gradients)
        return blocks.pull_from_heads(metric @ heads, score_gradients)

    def unfinished(state: _Eigenvectors) -> Array:
        """Tell whether some residual is still large and steps are left."""
        inexact = state.error > jnp.finfo(dtype).eps * state.value**2
        return jnp.any(inexact) & (state.iterations < 10 * width)

    # Start from K* of a random image and of the images' rank-one parts: at L = 256 and d = 64 this
    # takes 9.9 steps, a random vector 12.4.
    random = jnp.asarray(np.random.default_rng(0).standard_normal(width), dtype)
    heads = blocks.push_to_heads(jnp.broadcast_to(random[:, None], (width, rows)), score_gradients)
    heads += (blocks.weights() * blocks.step).reshape(-1, rows)
    vector = _unit_rows(blocks.pull_from_heads(metric @ heads, score_gradients))
    image = normal(vector)
    # In units of the first value: squares of small blocks' residuals would underflow.
    unit = _dot(vector, image)
    inverse = _quotient(1, unit)

    def scaled(vectors: Vectors) -> Vectors:
        """Apply :math:`K^*K` in units of each row's first Rayleigh quotient."""
        return _each(inverse, normal(vectors))

    image = _each(inverse, image)
    value = _quotient(unit, unit)
    residual = image - _each(value, vector)
    error = _dot(residual, residual)
    state = _Eigenvectors(vector, image, value, residual, error, residual, jnp.zeros((), int))
    state = jax.lax.while_loop(unfinished, lambda state: _search(state, scaled), state)
    return state._replace(value=unit * state.value)


def _search(state: _Eigenvectors, normal: Callable[[Vectors], Vectors]) -> _Eigenvectors:
    """Take one step: maximise over unit vectors in the plane of the vector and its direction."""
    vector, image, value, residual, error, direction, iterations = state
    direction_image = normal(direction)
    square = _dot(direction, direction)
    inverse = _quotient(1, jnp.sqrt(square))
    slope = inverse * _dot(direction, residual)
    curvature = inverse**2 * _dot(direction, direction_image)
    # The upper eigenpair of [[value, slope], [slope, curvature]].
    half = (value - curvature) / 2
    rise = half + jnp.sqrt(half**2 + slope**2)
    norm = jnp.sqrt(rise**2 + slope**2)
    cosine = jnp.where(norm > 0, _quotient(rise, norm), 1)
    sine = _quotient(slope, norm)
    larger = _each(cosine, vector) + _each(inverse * sine, direction)
    image = _each(cosine, image) + _each(inverse * sine, direction_image)
    value = curvature + rise
    remaining = image - _each(value, larger)
    growth = jnp.maximum(_quotient(_dot(remaining, remaining - residual), error), 0)
    direction = remaining + _each(growth * cosine, direction)
    direction = direction - _each(growth * sine * jnp.sqrt(square), vector)
    error = _dot(remaining, remaining)
    return _Eigenvectors(larger, image, value, remaining, error, direction, iterations + 1)


def _dot(first: Vectors, second: Vectors) -> Rows:
    """Compute the inner product of every row's two vectors."""
    return (first * second).sum(axis=0)


def _unit_rows(vectors: Vectors) -> Vectors:
    """Divide every row's vector by its Euclidean norm; a zero vector stays zero."""
    # By the largest entry first: squares of small ones would underflow.
    vectors = _each(_quotient(1, jnp.abs(vectors).max(axis=0)), vectors)
    return _each(_quotient(1, jnp.sqrt(_dot(vectors, vectors))), vectors)


def _each(factors: Rows, vectors: Vectors) -> Vectors:
    """Multiply every row's vector by the row's factor."""
    return factors[None, :] * vectors


def _quotient(numerator: Array | int, denominator: Array) -> Array:
    """Divide, with zero over zero as zero: a block of zeros has every vector for an eigenvector."""
    return jnp.where(denominator > 0, numerator / jnp.where(denominator > 0, denominator, 1), 0)


def _row_tiles(arrays: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
    """Split each array's last axis into tiles, numbered by a new first axis; pad with zeros."""
    length = jax.tree.leaves(arrays)[0].shape[-1]
    size = min(TILE, length)
    tiles = -(-length // size)

    def cut(array: Array) -> Array:
        """Pad the last axis to whole tiles and move the tiles to the front."""
        padding = [(0, 0)] * (array.ndim - 1) + [(0, tiles * size - length)]
        return jnp.moveaxis(jnp.pad(array, padding).reshape(*array.shape[:-1], tiles, size), -2, 0)

    return jax.tree.map(cut, arrays)
