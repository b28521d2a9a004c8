r"""The continuum Cesàro flow exp(cC), (Cf)(p) = mean of f over [0, p], in closed form.

Beside the identity exp(cC) has at (p, q) the kernel k(log(p/q))/p, where k(y) is
sqrt(c/y) I_1(2 sqrt(cy)), and it multiplies q^n by exp(c/(n+1)).
"""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.differences import fitted_order
from scipy.special import i1

import lim_jax as lim
from lim_jax.grid.panels import gauss_grid

C = 2.0


def averaging_flow():
    zeros = jnp.zeros((1, 1, 1))
    one = jnp.ones((1, 1, 1))
    layer = lim.CausalAttention(eqx.nn.Identity(), zeros, zeros, one, one)
    return lim.ContinuousFlow(
        lambda time: layer,
        horizon=C,
        solver=diffrax.Dopri8(),
        stepsize_controller=diffrax.PIDController(rtol=1e-11, atol=1e-11),
    )


jitted_adjoint = eqx.filter_jit(lim.continuous_adjoint)


def kernel(y):
    return np.sqrt(C / y) * i1(2 * np.sqrt(C * y))


def input_adjoint(terminal_loss, grid):
    example = (jnp.asarray(np.zeros((grid.size, 1))), None)
    times = jnp.array([0.0])
    adjoint = jitted_adjoint(averaging_flow(), terminal_loss, example, grid, times)
    return np.asarray(adjoint.covectors)[0, :, 0]


@pytest.mark.slow
def test_tokens_reach_the_last_rows_kernel_at_first_order():
    """In the relative root mean square over q in (0.05, 0.98); packed, four contexts are one."""
    sizes = (6, 12, 24, 48)
    errors = []
    ends = np.cumsum(sizes)
    starts = jax.device_put(np.repeat(ends - sizes, sizes))
    last = jax.device_put(np.isin(np.arange(ends[-1]) + 1, ends).astype(float))
    packed = lim.token_grid(sum(sizes)).starting(starts)
    adjoints = np.split(input_adjoint(lambda x, y: last @ x[:, 0], packed) / ends[-1], ends[:-1])
    for size, gradient in zip(sizes, adjoints, strict=True):
        q = np.asarray(lim.token_grid(size).nodes)
        inside = (q > 0.05) & (q < 0.98)
        expected = kernel(np.log(1 / q[inside]))
        gap = size * gradient[inside] - expected
        errors.append(np.linalg.norm(gap) / np.linalg.norm(expected))
    assert abs(fitted_order(sizes, errors) - 1) < 0.15


@pytest.mark.slow
def test_panels_multiply_powers_by_their_eigenvalues():
    grid = gauss_grid(32)
    powers = np.asarray(grid.nodes) ** np.arange(4)[:, None]

    @jax.jit
    @jax.vmap
    def flown(x):
        averages = averaging_flow()(x, grid)
        return averages, grid.interpolate(averages, jnp.ones(1))

    at_nodes, at_one = map(np.asarray, flown(jnp.asarray(powers[:, :, None])))
    eigenvalues = np.exp(C / np.arange(1, 5))
    np.testing.assert_allclose(at_nodes[..., 0], eigenvalues[:, None] * powers, rtol=0, atol=1e-8)
    np.testing.assert_allclose(at_one[:, 0, 0], eigenvalues, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_panels_reach_the_input_adjoint_of_a_smooth_covector():
    """P_0(q) = g(q) + the integral of k(y) g(q e^y) over y from 0 to log(1/q)."""
    grid = gauss_grid(16, panels=12)
    covector = jnp.asarray(np.cos(3 * np.asarray(grid.nodes))[:, None])
    adjoint = input_adjoint(lambda x, y: lim.inner(covector, x, grid), grid)
    q = np.asarray(grid.nodes)
    u, w = np.polynomial.legendre.leggauss(80)
    y = np.log(1 / q)[:, None] * (u + 1) / 2
    integrals = (kernel(y) * np.cos(3 * q[:, None] * np.exp(y))) @ (w / 2) * np.log(1 / q)
    inside = q > 1e-3
    np.testing.assert_allclose(
        adjoint[inside], (np.cos(3 * q) + integrals)[inside], rtol=0, atol=1e-8
    )
