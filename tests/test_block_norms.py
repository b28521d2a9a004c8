"""Norms of kernel blocks against NumPy's singular values, spectra that are hard included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import LENGTH, central_difference, random_flow, random_states

import lim_jax as lim
from lim_jax.adjoint import block_norms, tangent

WIDTH = 10


def attention():
    return jax.tree.map(lambda leaf: leaf[0], random_flow(depth=1).layers).attention


def matrix_as_blocks(matrix, rows=3):
    """One head whose every block is the given matrix."""
    width = matrix.shape[0]
    zeros = jnp.zeros((1, width, rows))
    value = jnp.asarray(matrix)[None]
    return block_norms.Blocks(
        jnp.ones((1, rows)), zeros, zeros, jnp.zeros_like(value), value, jnp.eye(width)[None]
    )


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
    found = block_norms.squared_operator_norms(matrix_as_blocks(matrix))
    np.testing.assert_allclose(found, SPECTRA[name].max() ** 2, rtol=1e-8)


def test_small_blocks_do_not_underflow_in_float32():
    """Residuals of such a block, squared, are below the least float32."""
    matrix = (1e-12 * with_singular_values(np.linspace(1.0, 0.1, WIDTH))).astype(np.float32)
    blocks = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), matrix_as_blocks(matrix))
    np.testing.assert_allclose(block_norms.squared_operator_norms(blocks), 1e-24, rtol=1e-5)


def test_directions_are_conjugate():
    """Steepest ascent takes 62 steps to this residual, conjugate gradients 22."""
    blocks = matrix_as_blocks(with_singular_values(np.linspace(1.0, 0.9, WIDTH)))
    assert block_norms._leading_vectors(blocks).climbed < 40


def test_a_block_of_zeros_has_norm_and_slope_zero():
    blocks = matrix_as_blocks(np.zeros((WIDTH, WIDTH)))
    found, slope = jax.jvp(block_norms.squared_operator_norms, (blocks,), (blocks,))
    assert found.tolist() == slope.tolist() == [0.0, 0.0, 0.0]


def test_more_rows_than_a_tile():
    """128 rows are two tiles, 130 three with 62 rows of zeros."""
    for length in (128, 130):
        grid, x = lim.token_grid(length), random_states(1, length, 6)
        factors = tangent.kernel_factors(attention(), x, grid)
        for j in (0, length // 2, length - 1):
            weights = np.where(np.arange(length) >= j, np.arange(length) + 1.0, 0.0)
            blocks = np.asarray(factors.column(jnp.array(j)))
            expected = weights @ np.linalg.norm(blocks, ord=2, axis=(1, 2)) ** 2
            found = block_norms.column_mass(factors, jnp.array(j), jnp.asarray(weights))
            np.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize(
    "grid", [lim.token_grid(7), lim.gauss_grid(4, 2)], ids=["tokens", "panels"]
)
def test_frobenius_norms_of_every_block(grid):
    factors = tangent.kernel_factors(attention(), random_states(1, grid.size, 6), grid)
    blocks = np.stack([factors.column(j) for j in jnp.arange(grid.size)], axis=1)
    found = block_norms.squared_frobenius_norms(factors)
    np.testing.assert_allclose(found, (blocks**2).sum(axis=(2, 3)), rtol=1e-11, atol=1e-12)


def test_float32_is_exact_to_its_rounding():
    grid, x = lim.token_grid(LENGTH, jnp.float32), random_states().astype(jnp.float32)
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), attention())
    for norm in ("operator", "frobenius"):
        found = lim.adjoint.cone_mass(single, x, grid, norm)
        expected = lim.adjoint.cone_mass(attention(), random_states(), lim.token_grid(LENGTH), norm)
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_operator_norm_refuses_a_second_derivative():
    grid, x = lim.token_grid(4), random_states(1, 4, 6)

    def total(x):
        return jnp.sum(lim.adjoint.cone_mass(attention(), x, grid))

    with pytest.raises(NotImplementedError, match="once"):
        jax.jvp(jax.grad(total), (x,), (x,))


def test_the_frobenius_norm_differentiates_twice():
    grid, x, direction = lim.token_grid(4), random_states(1, 4, 6), random_states(2, 4, 6)

    def total(x):
        return jnp.sum(lim.adjoint.cone_mass(attention(), x, grid, "frobenius"))

    slope, bend = jax.jvp(lambda x: jax.jvp(total, (x,), (direction,))[1], (x,), (direction,))
    np.testing.assert_allclose(slope, central_difference(total, x, direction), rtol=1e-8)
    expected = central_difference(lambda x: jnp.vdot(jax.grad(total)(x), direction), x, direction)
    np.testing.assert_allclose(bend, expected, rtol=1e-7)
