"""Norms of kernel blocks against NumPy's singular values, spectra that are hard included."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.differences import difference_by_calls
from reference.networks import LENGTH, layer_of, random_flow, random_states

import lim_jax as lim
from lim_jax.adjoint import block_norms, tangent

WIDTH = 10


def attention():
    return layer_of(random_flow(depth=1)).attention


def in_single(tree):
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, np.float32)), tree)


def matrix_as_blocks(matrix, rows=3):
    """One head whose every block is the given matrix."""
    width = matrix.shape[0]
    value = matrix[None]
    zeros = np.zeros((1, width, rows))
    ones = np.ones((1, rows))
    key = np.zeros_like(value)
    output = np.eye(width)[None]
    return block_norms.Blocks(*jax.device_put((ones, zeros, zeros, key, value, output)))


operator_norms = jax.jit(block_norms.squared_operator_norms)


def with_singular_values(values):
    generator = np.random.default_rng(0)
    left, right = (np.linalg.qr(generator.standard_normal((WIDTH, WIDTH)))[0] for _ in range(2))
    return left @ np.diag(values) @ right


SPECTRA = {
    "one value apart": np.linspace(1.0, 0.1, WIDTH),
    "two equal": np.r_[2.0, 2.0, np.linspace(1.0, 0.1, WIDTH - 2)],
    "two nearly equal": np.r_[2.0, 2.0 - 1e-9, np.linspace(1.0, 0.1, WIDTH - 2)],
    "all equal": np.full(WIDTH, 3.0),
    "rank one": np.r_[5.0, np.zeros(WIDTH - 1)],
    "tiny": 1e-12 * np.linspace(1.0, 0.1, WIDTH),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_operator_norms_of_hard_spectra(name):
    matrix = with_singular_values(SPECTRA[name])
    norms = operator_norms(matrix_as_blocks(matrix))
    np.testing.assert_allclose(norms, SPECTRA[name].max() ** 2, rtol=1e-8)


def test_small_blocks_do_not_underflow_in_float32():
    """Residuals of such a block, squared, are below the least float32."""
    matrix = 1e-12 * with_singular_values(np.linspace(1.0, 0.1, WIDTH))
    norms = operator_norms(in_single(matrix_as_blocks(matrix)))
    np.testing.assert_allclose(norms, 1e-24, rtol=1e-5)


def test_directions_are_conjugate():
    """Steepest ascent takes 62 steps to this residual, conjugate gradients 22."""
    blocks = matrix_as_blocks(with_singular_values(np.linspace(1.0, 0.9, WIDTH)))
    assert jax.jit(block_norms._leading_vectors)(blocks).iterations.item() < 40


def test_a_block_of_zeros_has_norm_and_slope_zero():
    blocks = matrix_as_blocks(np.zeros((WIDTH, WIDTH)))
    norms, slope = jax.jit(lambda b: jax.jvp(operator_norms, (b,), (b,)))(blocks)
    assert norms.tolist() == slope.tolist() == [0.0, 0.0, 0.0]


def test_pulling_back_from_the_heads_is_the_transpose_of_pushing_to_them():
    """Four heads in two groups, by inner products, and the push by the formula in NumPy."""
    heads = 4
    groups = 2
    size = 3
    features = 5
    width = 6
    rows = 7
    shapes = (
        (heads, rows), (heads, features, rows), (heads, size, rows), (groups, size, width),
        (groups, features, width), (heads, width, features), (width, rows),
        (heads * features, rows),
    )  # fmt: skip
    arrays = [np.random.default_rng(seed).normal(size=s) for seed, s in enumerate(shapes)]
    (*parts, tangents, covectors) = arrays

    @jax.jit
    def both(parts, tangents, covectors):
        blocks = block_norms.Blocks(*parts)
        gradients = blocks.score_gradients()
        pushed = blocks.push_to_heads(tangents, gradients)
        return pushed, blocks.pull_from_heads(covectors, gradients)

    pushed, pulled = both(parts, tangents, covectors)
    kernel, step, query, key, value, _ = parts
    for h in range(heads):
        keys = key[h // 2] @ tangents
        values = value[h // 2] @ tangents
        expected = kernel[h] * (values + step[h] * (query[h] * keys).sum(axis=0))
        np.testing.assert_allclose(pushed[h * features : (h + 1) * features], expected, rtol=1e-10)
    there = (pushed * covectors).sum(axis=0)
    back = (tangents * pulled).sum(axis=0)
    np.testing.assert_allclose(back, there, rtol=1e-10)


@pytest.mark.slow
def test_more_rows_than_a_tile():
    """128 rows are two tiles, 130 three with 62 rows of zeros; gates go with their rows."""
    plain = attention()
    gated = dataclasses.replace(plain, gate=3 * jnp.swapaxes(plain.output, 1, 2))
    for length in (128, 130):
        columns = np.array([0, length // 2, length - 1])
        rows = np.arange(length)
        weights = np.where(rows >= columns[:, None], rows + 1.0, 0.0)

        @jax.jit
        def masses_and_blocks(attention, x, weights):
            factors = tangent.kernel_factors(attention, x, lim.token_grid(x.shape[0]))

            def of_column(at):
                j, weights = at
                return block_norms.column_mass(factors, j, weights), factors.column(j)

            return jax.lax.map(of_column, (columns, weights))  # noqa: B023

        states = random_states(1, length, 6)
        masses, blocks = map(np.asarray, masses_and_blocks(gated, states, weights))
        squares = np.linalg.norm(blocks, ord=2, axis=(2, 3)) ** 2
        np.testing.assert_allclose(masses, (weights * squares).sum(axis=1), rtol=1e-11)


@pytest.mark.parametrize(
    "grid",
    [lim.token_grid(7), lim.graded_grid(7), lim.gauss_grid(4, 2)],
    ids=["tokens", "graded", "panels"],
)
def test_frobenius_norms_of_every_block(grid):
    @jax.jit
    def norms_and_blocks(attention, x):
        factors = tangent.kernel_factors(attention, x, grid)
        blocks = jax.vmap(factors.column, out_axes=1)(jnp.arange(grid.size))
        return block_norms.squared_frobenius_norms(factors), blocks

    norms, blocks = norms_and_blocks(attention(), random_states(1, grid.size, 6))
    expected = (np.asarray(blocks) ** 2).sum(axis=(2, 3))
    np.testing.assert_allclose(norms, expected, rtol=1e-11, atol=1e-12)


def test_what_all_values_share_leaves_the_frobenius_norm_in_float32():
    """A bias of values is in no difference v_j - o_i; in its expanded square 1e6 stood beside 1."""
    layer = attention()
    shape = layer.value.shape[:-1]
    biased = dataclasses.replace(layer, value_bias=jnp.full(shape, 1000.0))
    single, x = in_single((biased, random_states()))
    mass = lim.adjoint.cone_mass(single, x, lim.token_grid(LENGTH, jnp.float32), "frobenius")
    expected = lim.adjoint.cone_mass(layer, random_states(), lim.token_grid(LENGTH), "frobenius")
    # A value itself is rounded to 1000 eps, in units of what values differ by.
    np.testing.assert_allclose(mass, expected, rtol=1e-3)


@pytest.mark.slow
def test_float32_is_exact_to_its_rounding():
    grid = lim.token_grid(LENGTH, jnp.float32)
    single, x = in_single((attention(), random_states()))
    for norm in ("operator", "frobenius"):
        mass = lim.adjoint.cone_mass(single, x, grid, norm)
        expected = lim.adjoint.cone_mass(attention(), random_states(), lim.token_grid(LENGTH), norm)
        assert mass.dtype == jnp.float32
        np.testing.assert_allclose(mass, expected, rtol=1e-5)


def test_the_operator_norm_refuses_a_second_derivative():
    grid = lim.token_grid(4)
    x = random_states(1, 4, 6)

    def total(x):
        return jnp.sum(lim.adjoint.cone_mass(attention(), x, grid))

    with pytest.raises(NotImplementedError, match="once"):
        jax.jvp(jax.grad(total), (x,), (x,))


@pytest.mark.slow
def test_the_frobenius_norm_differentiates_twice():
    grid = lim.token_grid(4)
    x = random_states(1, 4, 6)
    direction = random_states(2, 4, 6)
    layer = attention()

    def total(x):
        return jnp.sum(lim.adjoint.cone_mass(layer, x, grid, "frobenius"))

    @jax.jit
    def derivatives(x):
        """The value and its slope, and the slope of both."""
        return jax.jvp(lambda x: jax.jvp(total, (x,), (direction,)), (x,), (direction,))

    _, second = derivatives(x)
    expected = difference_by_calls(lambda x: derivatives(x)[0], x, direction)
    np.testing.assert_allclose(second, expected, rtol=1e-7)
